// SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
//
// Events of CUDA on a CPU: counters, as CUDA has them; a wait means the record before it.  Those that processes share
// count in a slot of memory that they share (ipc.cc), and whoever waits there looks again and again.
#include "cuda_cpu_impl.h"

#include <chrono>
#include <condition_variable>
#include <cuda_runtime.h>
#include <memory>
#include <mutex>
#include <thread>

namespace
{

std::atomic<int> n_events;

} // namespace

// What an event is, for whoever waits for it: it may be destroyed meanwhile.
struct moment {
    std::mutex lock;
    std::condition_variable passed;
    cucpu_slot own = {}, *slot = &own;
    bool shared = false, maker = true;
    std::chrono::steady_clock::time_point at;

    bool is_done(uint64_t number)
    {
        if (!slot->alive)
            cucpu_stop("an event is asked for that its process has destroyed");
        return slot->done >= number;
    }
};
struct CUevent_st {
    std::shared_ptr<moment> m = std::make_shared<moment>();
    int card = cucpu_card;
    bool timed;
};

static void wait_for(moment *m, uint64_t number)
{
    while (m->shared && !m->is_done(number))
        std::this_thread::sleep_for(std::chrono::microseconds(50));
    std::unique_lock<std::mutex> hold(m->lock);

    m->passed.wait(hold, [&] { return m->slot->done >= number; });
}

int cucpu_events()
{
    return n_events;
}

cudaEvent_t cucpu_event_over(cucpu_slot *s, bool own)
{
    cudaEvent_t e = new CUevent_st;

    e->timed = false;
    e->m->slot = s;
    e->m->shared = true;
    e->m->maker = own;
    n_events++;
    return e;
}

cucpu_slot *cucpu_event_slot(cudaEvent_t e)
{
    return e->m->shared ? e->m->slot : nullptr;
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t *e, unsigned flags)
{
    CALL("cudaEventCreateWithFlags");
    if (flags & cudaEventInterprocess) {
        if (!(flags & cudaEventDisableTiming))
            return cucpu_error = cudaErrorInvalidValue;
        *e = cucpu_event_over(cucpu_slot_new(), true);
        return cudaSuccess;
    }
    *e = new CUevent_st;
    (*e)->m->own.alive = 1;
    (*e)->timed = flags == cudaEventDefault;
    n_events++;
    return cudaSuccess;
}
cudaError_t cudaEventDestroy(cudaEvent_t e)
{
    if (e->m->shared && e->m->maker)
        e->m->slot->alive = 0;
    if (e->m->shared && !e->m->maker)
        cucpu_slot_close(e->m->slot);
    delete e;
    n_events--;
    return cucpu_fails("cudaEventDestroy") ? cucpu_error = cudaErrorUnknown : cudaSuccess;
}
cudaError_t cudaEventRecord(cudaEvent_t e, cudaStream_t s)
{
    CALL("cudaEventRecord");
    if (s && cucpu_stream_card(s) != e->card)
        return cucpu_error = cudaErrorInvalidResourceHandle;
    std::shared_ptr<moment> m = e->m;
    uint64_t number = ++m->slot->recorded;

    cucpu_put(s, "an event", [m, number] {
        std::lock_guard<std::mutex> hold(m->lock);

        if (number > m->slot->done) {
            m->at = std::chrono::steady_clock::now();
            m->slot->done = number;
        }
        m->passed.notify_all();
    });
    return cudaSuccess;
}
cudaError_t cudaStreamWaitEvent(cudaStream_t s, cudaEvent_t e, unsigned)
{
    CALL("cudaStreamWaitEvent");
    std::shared_ptr<moment> m = e->m;
    uint64_t number = m->slot->recorded;

    if (cucpu_setting("CUCPU_FAULT_WAIT", 0)) // a fault that tests must see
        return cudaSuccess;
    cucpu_put(s, "waiting for an event", [m, number] { wait_for(m.get(), number); });
    return cudaSuccess;
}
cudaError_t cudaEventQuery(cudaEvent_t e)
{
    CALL("cudaEventQuery");
    return e->m->is_done(e->m->slot->recorded) ? cudaSuccess : cucpu_error = cudaErrorNotReady;
}
cudaError_t cudaEventSynchronize(cudaEvent_t e)
{
    CALL("cudaEventSynchronize");
    wait_for(e->m.get(), e->m->slot->recorded);
    return cudaSuccess;
}
cudaError_t cudaEventElapsedTime(float *ms, cudaEvent_t begin, cudaEvent_t end)
{
    CALL("cudaEventElapsedTime");
    if (!begin->timed || !end->timed)
        cucpu_stop("the time of an event that has none is asked for");
    if (cudaEventQuery(begin) != cudaSuccess || cudaEventQuery(end) != cudaSuccess)
        return cucpu_error = cudaErrorNotReady;
    if (begin->m->slot->recorded == 0 || end->m->slot->recorded == 0)
        return cucpu_error = cudaErrorInvalidResourceHandle;
    std::lock_guard<std::mutex> hold(end->m->lock);

    *ms = std::chrono::duration<float, std::milli>(end->m->at - begin->m->at).count();
    return cudaSuccess;
}
