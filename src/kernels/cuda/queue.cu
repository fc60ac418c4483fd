/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Queues are streams, events are events, and a gate is a word of the card's memory that streams write and
 * wait for. */
#include "kernels/cuda/device.h"

extern "C" {
#include "base/clock.h"
#include "base/mem.h"
}

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

/* A clock of float milliseconds tells microseconds apart for 16 s: the base is moved before that. */
#define BASE_NS UINT64_C(4000000000)

struct dt_device_event {
    const struct dt_device *dev;
    cudaEvent_t event;
    bool untimed; /* it is for other processes, too */
};

struct dt_device_gate {
    const struct dt_device *dev;
    uint64_t *word;
};

/* The driver's, asked for by name: the runtime has no such calls. */
typedef int value_fn(cudaStream_t stream, unsigned long long at, uint64_t value, unsigned flags);
static value_fn *write_value, *wait_value;
enum {
    WAIT_GEQ = 0,
    WRITE_DEFAULT = 0
}; /* cuda.h: CU_STREAM_WAIT_VALUE_GEQ, CU_STREAM_WRITE_VALUE_DEFAULT */

static thread_local int current = -1; /* the card that was made this thread's last */

void dt_cuda_use(const struct dt_device *dev)
{
    int index = dt_cuda_of(dev)->index;

    current = dt_cuda_said(cudaSetDevice(index)) == cudaSuccess ? index : -1;
}

/* A thread's first card is number 0, and a stream takes launches and events from threads of its own card only. */
bool dt_cuda_ready(struct dt_device_queue *q)
{
    if (q->status == DT_OK && current != dt_cuda_of(q->dev)->index)
        dt_cuda_use(q->dev);
    return q->status == DT_OK;
}

int dt_cuda_processors(const struct dt_device_queue *q)
{
    return dt_cuda_of(q->dev)->processors;
}

size_t dt_cuda_shared(const struct dt_device_queue *q)
{
    return dt_cuda_of(q->dev)->shared;
}

/* ---- errors ---- */

void dt_cuda_fail(struct dt_device_queue *q, enum dt_status status, const char *fmt, ...)
{
    char text[512];
    va_list ap;

    if (q->status != DT_OK)
        return;
    va_start(ap, fmt);
    vsnprintf(text, sizeof(text), fmt, ap);
    va_end(ap);
    q->status = dt_error_set(&q->err, status, "%s", text);
}

bool dt_cuda_ok(struct dt_device_queue *q, cudaError_t e, const char *what)
{
    if (e != cudaSuccess) {
        dt_cuda_said(e);
        dt_cuda_fail(q, e == cudaErrorMemoryAllocation ? DT_ERR_NOMEM : DT_ERR_INTERNAL,
                     "%s: %s: %s", q->dev->info.name, what, cudaGetErrorString(e));
    }
    return e == cudaSuccess;
}

static enum dt_status runtime_error(struct dt_error *err, cudaError_t e, const char *what)
{
    dt_cuda_said(e);
    return dt_error_set(err, e == cudaErrorMemoryAllocation ? DT_ERR_NOMEM : DT_ERR_INTERNAL,
                        "%s: %s", what, cudaGetErrorString(e));
}

/* What kernels found wrong with their data. */
static void read_flag(struct dt_device_queue *q)
{
    if (q->flag[0] == DT_FLAG_TARGET)
        dt_cuda_fail(q, DT_ERR_INPUT, "target %d of row %d is outside the vocabulary of %d",
                     q->flag[1], q->flag[2], q->flag[3]);
    memset(q->flag, 0, DT_FLAG_WORDS * sizeof(int));
}

/* ---- queues ---- */

static enum dt_status grow_scratch(struct dt_device_queue *q, int region, size_t bytes,
                                   struct dt_error *err)
{
    struct dt_device_memory_owner *o;
    enum dt_status st;
    void *p;

    assert(region >= 0 && region < DT_SCRATCH_N);
    if (q->scratch[region].p && q->scratch[region].bytes >= bytes)
        return DT_OK;
    q->dev->free(q->dev, q->scratch[region].p); /* first: both at once would be a peak */
    q->scratch[region].p = NULL;
    q->scratch[region].bytes = 0;
    o = q->dev->memory_for(q->dev, NULL);
    st = q->dev->alloc(q->dev, bytes, err, &p);
    q->dev->memory_for(q->dev, o);
    if (st != DT_OK)
        return st;
    q->scratch[region].p = p;
    q->scratch[region].bytes = bytes;
    return DT_OK;
}

void *dt_cuda_scratch(struct dt_device_queue *q, int region, size_t bytes)
{
    struct dt_error err;
    enum dt_status st;

    if (q->status != DT_OK)
        return NULL;
    st = grow_scratch(q, region, bytes, &err);
    if (st != DT_OK)
        dt_cuda_fail(q, st, "%s (workspace)", err.message);
    return st == DT_OK ? q->scratch[region].p : NULL;
}

void *dt_cuda_scratch_try(struct dt_device_queue *q, int region, size_t bytes)
{
    return q->status == DT_OK && grow_scratch(q, region, bytes, NULL) == DT_OK
               ? q->scratch[region].p
               : NULL;
}

static void queue_free(struct dt_device_queue *q)
{
    struct dt_device_queue **at;
    struct dt_cuda *c;

    if (!q)
        return;
    c = dt_cuda_of(q->dev);
    dt_cuda_use(q->dev);
    if (q->stream)
        dt_cuda_said(cudaStreamSynchronize(q->stream));
    dt_cuda_caller_free(q);
    for (int i = 0; i < DT_SCRATCH_N; i++)
        q->dev->free(q->dev, q->scratch[i].p);
    pthread_mutex_lock(&c->lock);
    for (at = &c->queues; *at && *at != q; at = &(*at)->next)
        ;
    if (*at)
        *at = q->next;
    pthread_mutex_unlock(&c->lock);
    dt_cuda_products_free(q->products);
    if (q->stream)
        dt_cuda_said(cudaStreamDestroy(q->stream));
    q->dev->host_free(q->dev, q->flag);
    dt_free(q);
}

static enum dt_status queue_open(struct dt_device_queue *q, bool high_priority,
                                 struct dt_error *err)
{
    int least = 0, greatest = 0;
    cudaError_t e;
    void *flag;

    DT_TRY(q->dev->host_alloc(q->dev, DT_FLAG_WORDS * sizeof(int), err, &flag));
    q->flag = (int *)flag;
    memset(flag, 0, DT_FLAG_WORDS * sizeof(int));
    dt_cuda_said(cudaDeviceGetStreamPriorityRange(&least, &greatest));
    e = cudaStreamCreateWithPriority(&q->stream, cudaStreamNonBlocking,
                                     high_priority ? greatest : least);
    if (e != cudaSuccess)
        return runtime_error(err, e, "a queue");
    q->products = dt_cuda_products_new(q->dev, err);
    return q->products ? DT_OK : DT_ERR_INTERNAL;
}

static enum dt_status queue_new(const struct dt_device *dev, bool high_priority,
                                struct dt_error *err, struct dt_device_queue **out)
{
    struct dt_device_queue *q = (struct dt_device_queue *)dt_calloc(1, sizeof(*q));
    struct dt_cuda *c = dt_cuda_of(dev);
    enum dt_status st;

    if (!q)
        return dt_error_nomem(err, "a queue");
    dt_cuda_use(dev);
    q->dev = dev;
    st = queue_open(q, high_priority, err);
    if (st != DT_OK) {
        queue_free(q);
        return st;
    }
    pthread_mutex_lock(&c->lock);
    q->next = c->queues;
    c->queues = q;
    pthread_mutex_unlock(&c->lock);
    *out = q;
    return DT_OK;
}

static void move_base(struct dt_cuda *c);

static enum dt_status queue_sync(struct dt_device_queue *q, struct dt_error *err)
{
    enum dt_status st;

    dt_cuda_use(q->dev);
    dt_cuda_ok(q, cudaStreamSynchronize(q->stream), "waiting for a queue");
    dt_cuda_caller_sync(q);
    read_flag(q);
    move_base(dt_cuda_of(q->dev));
    st = q->status;
    if (st != DT_OK && err)
        *err = q->err;
    q->status = DT_OK;
    return st;
}

static enum dt_status queue_state(const struct dt_device_queue *q)
{
    return q->status;
}

static void queue_copy(struct dt_device_queue *q, void *dst, const void *src, size_t bytes,
                       enum dt_device_copy dir)
{
    static const cudaMemcpyKind kinds[] = {cudaMemcpyHostToDevice, cudaMemcpyDeviceToHost,
                                           cudaMemcpyDeviceToDevice};

    if (bytes > 0 && dt_cuda_ready(q))
        dt_cuda_ok(q, cudaMemcpyAsync(dst, src, bytes, kinds[dir], q->stream), "a copy");
}

static void queue_zero(struct dt_device_queue *q, void *p, size_t bytes)
{
    if (bytes > 0 && dt_cuda_ready(q))
        dt_cuda_ok(q, cudaMemsetAsync(p, 0, bytes, q->stream), "zeroing");
}

static void *queue_stream(struct dt_device_queue *q)
{
    dt_cuda_use(q->dev);
    return q->stream;
}

/* ---- the card's clock ---- */

/* An event on a stream that has nothing to do, and the host's clock when it was seen to be over. */
static bool new_base(struct dt_cuda *c, cudaEvent_t e, uint64_t *ns)
{
    if (dt_cuda_said(cudaEventRecord(e, c->clock)) != cudaSuccess ||
        dt_cuda_said(cudaEventSynchronize(e)) != cudaSuccess)
        return false;
    *ns = dt_clock_ns();
    return true;
}

/* Events are asked for their time within a step: both bases, the newer and the one before, serve. */
static void move_base(struct dt_cuda *c)
{
    cudaEvent_t old = c->base[1].event;
    uint64_t ns;

    pthread_mutex_lock(&c->lock);
    if (dt_clock_ns() - c->base[0].ns > BASE_NS && new_base(c, old, &ns)) {
        c->base[1] = c->base[0];
        c->base[0].event = old;
        c->base[0].ns = ns;
    }
    pthread_mutex_unlock(&c->lock);
}

/* ---- events ---- */

static enum dt_status event_new(const struct dt_device *dev, struct dt_error *err,
                                struct dt_device_event **out)
{
    struct dt_device_event *e = (struct dt_device_event *)dt_calloc(1, sizeof(*e));
    cudaError_t st;

    if (!e)
        return dt_error_nomem(err, "an event");
    dt_cuda_use(dev);
    e->dev = dev;
    st = cudaEventCreateWithFlags(&e->event, cudaEventDefault);
    if (st != cudaSuccess) {
        dt_free(e);
        return runtime_error(err, st, "an event");
    }
    *out = e;
    return DT_OK;
}

struct dt_device_event *dt_cuda_event_over(const struct dt_device *dev, cudaEvent_t e)
{
    struct dt_device_event *event = (struct dt_device_event *)dt_calloc(1, sizeof(*event));

    if (!event) {
        dt_cuda_said(cudaEventDestroy(e));
        return NULL;
    }
    event->dev = dev;
    event->event = e;
    event->untimed = true;
    return event;
}

static void event_free(struct dt_device_event *e)
{
    if (!e)
        return;
    dt_cuda_said(cudaEventDestroy(e->event));
    dt_free(e);
}

static void event_record(struct dt_device_queue *q, struct dt_device_event *e)
{
    if (dt_cuda_ready(q))
        dt_cuda_ok(q, cudaEventRecord(e->event, q->stream), "an event");
}

static void event_wait(struct dt_device_queue *q, struct dt_device_event *e)
{
    if (dt_cuda_ready(q))
        dt_cuda_ok(q, cudaStreamWaitEvent(q->stream, e->event, 0), "waiting for an event");
}

static enum dt_status event_sync(struct dt_device_event *e, struct dt_error *err)
{
    cudaError_t st = cudaEventSynchronize(e->event);

    return st == cudaSuccess ? DT_OK : runtime_error(err, st, "waiting for an event");
}

static bool event_done(struct dt_device_event *e)
{
    return dt_cuda_said(cudaEventQuery(e->event)) != cudaErrorNotReady;
}

static uint64_t event_ns(struct dt_device_event *e)
{
    struct dt_cuda *c = dt_cuda_of(e->dev);
    uint64_t at = 0;
    float ms;

    if (e->untimed)
        return 0;
    pthread_mutex_lock(&c->lock);
    for (int i = 0; i < 2 && at == 0; i++)
        if (dt_cuda_said(cudaEventElapsedTime(&ms, c->base[i].event, e->event)) == cudaSuccess)
            at = c->base[i].ns + (uint64_t)(int64_t)((double)ms * 1e6);
    pthread_mutex_unlock(&c->lock);
    return at;
}

/* ---- gates ---- */

static enum dt_status gate_new(const struct dt_device *dev, struct dt_error *err,
                               struct dt_device_gate **out)
{
    struct dt_device_gate *g = (struct dt_device_gate *)dt_calloc(1, sizeof(*g));
    struct dt_cuda *c = dt_cuda_of(dev);
    enum dt_status st;
    cudaError_t e;
    void *p;

    if (!g)
        return dt_error_nomem(err, "a gate");
    g->dev = dev;
    st = dev->alloc(dev, sizeof(*g->word), err, &p);
    if (st != DT_OK) {
        dt_free(g);
        return st;
    }
    e = cudaMemsetAsync(p, 0, sizeof(*g->word), c->clock);
    if (e == cudaSuccess)
        e = cudaStreamSynchronize(c->clock);
    if (e != cudaSuccess) {
        dev->free(dev, p);
        dt_free(g);
        return runtime_error(err, e, "a gate");
    }
    g->word = (uint64_t *)p;
    *out = g;
    return DT_OK;
}

static void gate_free(struct dt_device_gate *g)
{
    if (!g)
        return;
    g->dev->free(g->dev, g->word);
    dt_free(g);
}

static void gate_raise(struct dt_device_queue *q, struct dt_device_gate *g, uint64_t n)
{
    if (dt_cuda_ready(q) &&
        write_value(q->stream, (unsigned long long)(uintptr_t)g->word, n, WRITE_DEFAULT) != 0)
        dt_cuda_fail(q, DT_ERR_INTERNAL, "a gate cannot be raised");
}

void dt_cuda_wait_word(struct dt_device_queue *q, const uint64_t *word, uint64_t n)
{
    if (dt_cuda_ready(q) &&
        wait_value(q->stream, (unsigned long long)(uintptr_t)word, n, WAIT_GEQ) != 0)
        dt_cuda_fail(q, DT_ERR_INTERNAL, "a gate cannot be waited for");
}

static void gate_wait(struct dt_device_queue *q, struct dt_device_gate *g, uint64_t n)
{
    dt_cuda_wait_word(q, g->word, n);
}

/* ---- opening ---- */

void *dt_cuda_driver_entry(const char *name)
{
    cudaDriverEntryPointQueryResult found;
    void *p = NULL;
    cudaError_t e;

#if CUDART_VERSION >= 12050
    e = cudaGetDriverEntryPointByVersion(name, &p, 12000, cudaEnableDefault, &found);
#else
    e = cudaGetDriverEntryPoint(name, &p, cudaEnableDefault, &found);
#endif
    return dt_cuda_said(e) == cudaSuccess ? p : NULL;
}

static bool entry(const char *name, value_fn **fn)
{
    void *p = dt_cuda_driver_entry(name);

    if (p)
        memcpy(fn, &p, sizeof(*fn)); /* POSIX allows it, C has no cast */
    return p != NULL;
}

/* Drivers have the functions also where they or the card cannot do it (CUDA_ERROR_NOT_SUPPORTED), so a stream that has nothing else
 * to do writes a word, and waits for it. */
static bool has_gates(struct dt_cuda *c)
{
    struct dt_error err;
    void *p = NULL;
    bool has = false;

    if (!entry("cuStreamWriteValue64", &write_value) ||
        !entry("cuStreamWaitValue64", &wait_value) ||
        c->dev.host_alloc(&c->dev, sizeof(uint64_t), &err, &p) != DT_OK)
        return false;
    *(uint64_t *)p = 0;
    if (write_value(c->clock, (unsigned long long)(uintptr_t)p, 1, WRITE_DEFAULT) == 0 &&
        wait_value(c->clock, (unsigned long long)(uintptr_t)p, 1, WAIT_GEQ) == 0)
        has = true;
    has = dt_cuda_said(cudaStreamSynchronize(c->clock)) == cudaSuccess && has &&
          *(volatile uint64_t *)p == 1;
    c->dev.host_free(&c->dev, p);
    return has;
}

enum dt_status dt_cuda_queues(struct dt_cuda *c, struct dt_error *err)
{
    struct dt_device *d = &c->dev;
    cudaError_t e = cudaStreamCreateWithFlags(&c->clock, cudaStreamNonBlocking);

    for (int i = 0; i < 2 && e == cudaSuccess; i++) {
        e = cudaEventCreateWithFlags(&c->base[i].event, cudaEventDefault);
        if (e == cudaSuccess && !new_base(c, c->base[i].event, &c->base[i].ns))
            e = cudaErrorUnknown;
    }
    if (e != cudaSuccess)
        return runtime_error(err, e, "the card's clock");
    d->info.gates = has_gates(c);
    d->queue_new = queue_new;
    d->queue_free = queue_free;
    d->queue_sync = queue_sync;
    d->queue_state = queue_state;
    d->copy = queue_copy;
    d->zero = queue_zero;
    d->call = dt_cuda_call;
    d->queue_stream = queue_stream;
    d->event_new = event_new;
    d->event_free = event_free;
    d->event_record = event_record;
    d->event_wait = event_wait;
    d->event_sync = event_sync;
    d->event_done = event_done;
    d->event_ns = event_ns;
    d->gate_new = gate_new;
    d->gate_free = gate_free;
    d->gate_raise = gate_raise;
    d->gate_wait = gate_wait;
    return DT_OK;
}

void dt_cuda_queues_close(struct dt_cuda *c)
{
    for (int i = 0; i < 2; i++)
        if (c->base[i].event)
            dt_cuda_said(cudaEventDestroy(c->base[i].event));
    if (c->clock)
        dt_cuda_said(cudaStreamDestroy(c->clock));
}
