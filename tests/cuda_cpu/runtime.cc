// SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
//
// CUDA's runtime on a CPU.
//
//   memory    one file, mapped twice: callers hold addresses at which nothing may be read or written, kernels and
//             copies use those SPAN further on.  Fresh memory is 0xff, a guard page lies behind every block,
//             what is between it and the block's end is looked at when the block is freed, and freed memory
//             faults at once, whatever still uses it
//   streams   threads that run closures in their order; one in CUCPU_SHARE (256) waits up to CUCPU_DELAY_US (0)
//             microseconds before it, as CUCPU_SEED (1) says, which also draws the order of threads in blocks
//   errors    of calls with wrong arguments end the program: the module may not make any
#include "cuda_cpu_impl.h"

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cuda_runtime.h>
#include <deque>
#include <fcntl.h>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <sys/mman.h>
#include <thread>
#include <unistd.h>
#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#define POISON(p, n) ASAN_POISON_MEMORY_REGION(p, n)
#define UNPOISON(p, n) ASAN_UNPOISON_MEMORY_REGION(p, n)
#else
#define POISON(p, n) ((void)0)
#define UNPOISON(p, n) ((void)0)
#endif

namespace
{

const size_t SPAN = size_t(1) << 38;
enum { ALIGN = 256, PAGE = 4096, CANARY = 0x5a, FRESH = 0xff };

[[noreturn]] void stop(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
void stop(const char *fmt, ...)
{
    va_list ap;

    va_start(ap, fmt);
    fputs("cuda on the cpu: ", stderr);
    vfprintf(stderr, fmt, ap);
    fputs("\n", stderr);
    va_end(ap);
    abort();
}

uint64_t mix(uint64_t x)
{
    x += 0x9e3779b97f4a7c15u;
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
    x = (x ^ x >> 27) * 0x94d049bb133111ebu;
    return x ^ x >> 31;
}

// ---- memory ----

struct block {
    size_t bytes, pages_at, pages;
    bool live, foreign; // foreign: another process's
    cucpu_slot *slot;   // who has it mapped; NULL: nobody has asked for a handle
};

struct memory {
    std::mutex lock;
    char *base = nullptr;
    int fd = -1;
    size_t end = PAGE;
    std::map<size_t, block> blocks; // by offset
    std::map<char *, size_t> pinned;
    size_t live = 0;

    void open()
    {
        if (base)
            return;
        fd = memfd_create("cucpu", MFD_CLOEXEC);
        void *p =
            mmap(nullptr, 2 * SPAN, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

        if (fd < 0 || p == MAP_FAILED)
            stop("no address space for the memory of a card");
        base = static_cast<char *>(p);
    }
};
memory mem;

bool is_device(const void *p)
{
    const char *c = static_cast<const char *>(p);

    return mem.base && c >= mem.base && c < mem.base + SPAN;
}

bool is_pinned(const void *p)
{
    char *c = static_cast<char *>(const_cast<void *>(p));
    auto it = mem.pinned.upper_bound(c);

    if (it == mem.pinned.begin())
        return false;
    --it;
    return c < it->first + it->second;
}

// Where kernels find the `bytes` at p, which lie in one live block; what for is said where they do not.
void *alias(const void *p, size_t bytes, const char *what)
{
    std::lock_guard<std::mutex> hold(mem.lock);

    if (!is_device(p))
        stop("%s is given %p, which is not memory of the card", what, p);
    size_t at = static_cast<size_t>(static_cast<const char *>(p) - mem.base);
    auto it = mem.blocks.upper_bound(at);

    if (it == mem.blocks.begin())
        stop("%s is given %p, which was never allocated", what, p);
    --it;
    if (!it->second.live)
        stop("%s is given %p, in %zu bytes that have been freed", what, p, it->second.bytes);
    if (at + bytes > it->first + it->second.bytes)
        stop("%s is given %zu bytes at %p, beyond the end of %zu", what, bytes, p,
             it->second.bytes);
    return mem.base + SPAN + at;
}

// ---- streams ----

struct task {
    const char *what;
    std::function<void()> run;
};

uint64_t n_streams;
std::atomic<int> n_graphs;

} // namespace

struct CUgraph_st {
    int alive;
};
struct CUstream_st {
    std::mutex lock;
    std::condition_variable more, less;
    std::deque<task> tasks;
    bool busy = false, closed = false, capturing = false;
    uint64_t number, done = 0;
    int card = cucpu_card;
    std::thread thread;
    std::thread::id maker;
};

namespace
{

std::mutex streams_lock;
std::set<cudaStream_t> streams;
std::map<std::pair<const void *, int>, int> allowed; // dynamic shared memory of kernels on a card

void pause_maybe(CUstream_st *s, uint64_t number)
{
    static const uint64_t seed = cucpu_setting("CUCPU_SEED", 1),
                          share = cucpu_setting("CUCPU_SHARE", 256);
    static const uint64_t most = cucpu_setting("CUCPU_DELAY_US", 0);
    uint64_t r = mix(mix(seed * 1000003 + s->number) + number);

    if (most > 0 && share > 0 && r % share == 0)
        std::this_thread::sleep_for(std::chrono::microseconds(mix(r) % most));
}

void serve(CUstream_st *s)
{
    std::unique_lock<std::mutex> hold(s->lock);

    for (;;) {
        s->more.wait(hold, [s] { return s->closed || !s->tasks.empty(); });
        if (s->tasks.empty())
            return;
        task t = std::move(s->tasks.front());

        s->tasks.pop_front();
        s->busy = true;
        hold.unlock();
        pause_maybe(s, s->done);
        t.run();
        t.run = nullptr;
        hold.lock();
        s->done++;
        s->busy = false;
        if (s->tasks.empty())
            s->less.notify_all();
    }
}

void put(cudaStream_t s, const char *what, std::function<void()> run)
{
    if (!s)
        stop("%s goes to the stream that everything waits for", what);
    std::lock_guard<std::mutex> hold(s->lock);

    if (s->capturing) // it would be in the graph
        return;
    s->tasks.push_back({what, std::move(run)});
    s->more.notify_one();
}

cudaError_t stream_new(cudaStream_t *out)
{
    CUstream_st *s = new CUstream_st;

    s->number = __atomic_add_fetch(&n_streams, 1, __ATOMIC_RELAXED);
    s->maker = std::this_thread::get_id();
    s->thread = std::thread(serve, s);
    std::lock_guard<std::mutex> hold(streams_lock);

    streams.insert(s);
    *out = s;
    return cudaSuccess;
}

// Words that streams wait for.
std::mutex standing_lock;
std::list<std::pair<const uint64_t *, uint64_t>> standing;

// What the driver has and the runtime does not; with CUCPU_GATES=no the functions are there and refuse.
bool has_values()
{
    const char *env = getenv("CUCPU_GATES");

    return !env || strcmp(env, "no") != 0;
}
int write_value(cudaStream_t s, unsigned long long at, uint64_t value, unsigned)
{
    uint64_t *p = static_cast<uint64_t *>(cucpu_seen(reinterpret_cast<void *>(at), "write value"));

    if (cucpu_fails("cuStreamWriteValue64"))
        return cudaErrorUnknown;
    if (!has_values())
        return cudaErrorNotSupported;

    put(s, "write value", [p, value] { __atomic_store_n(p, value, __ATOMIC_RELEASE); });
    return 0;
}
int wait_value(cudaStream_t s, unsigned long long at, uint64_t value, unsigned)
{
    uint64_t *p = static_cast<uint64_t *>(cucpu_seen(reinterpret_cast<void *>(at), "wait value"));

    if (cucpu_fails("cuStreamWaitValue64"))
        return cudaErrorUnknown;
    if (!has_values())
        return cudaErrorNotSupported;

    put(s, "wait value", [p, value] {
        auto at = standing.begin();
        {
            std::lock_guard<std::mutex> hold(standing_lock);
            at = standing.insert(standing.end(), {p, value});
        }
        while (__atomic_load_n(p, __ATOMIC_ACQUIRE) < value)
            std::this_thread::sleep_for(std::chrono::microseconds(50));
        std::lock_guard<std::mutex> hold(standing_lock);
        standing.erase(at);
    });
    return 0;
}

} // namespace

// ---- launches ----

void *cucpu_seen(const void *p, const char *kernel)
{
    if (!p)
        return nullptr;
    if (!is_device(p)) {
        std::lock_guard<std::mutex> hold(mem.lock);

        if (is_pinned(p))
            return const_cast<void *>(p);
    }
    return alias(p, 0, kernel);
}

void cucpu_launch(const char *name, const void *kernel, dim3 grid, dim3 block, size_t shared,
                  cudaStream_t stream, std::function<void()> body)
{
    static const uint64_t seed = cucpu_setting("CUCPU_SEED", 1);
    static std::atomic<uint64_t> launches;
    uint64_t threads = uint64_t(block.x) * block.y * block.z;
    size_t most = 48 << 10;

    {
        std::lock_guard<std::mutex> hold(streams_lock);
        auto it = allowed.find({kernel, cucpu_card});

        if (it != allowed.end() && size_t(it->second) > most)
            most = size_t(it->second);
    }
    if (grid.x == 0 || grid.y == 0 || grid.z == 0 || grid.y > 65535 || grid.z > 65535 ||
        grid.x > 0x7fffffffu || threads == 0 || threads > 1024 || block.z > 64)
        stop("%s is launched with a grid of %u x %u x %u blocks of %u x %u x %u", name, grid.x,
             grid.y, grid.z, block.x, block.y, block.z);
    if (shared > most)
        stop("%s is launched with %zu bytes of shared memory, and may have %zu", name, shared,
             most);
    if (stream && stream->card != cucpu_card) {
        cucpu_error = cudaErrorInvalidResourceHandle;
        return;
    }
    if (cucpu_fails("cudaLaunchKernel")) {
        cucpu_error = cudaErrorUnknown;
        return;
    }
    if (cucpu_dry()) {
        cucpu_dry_launch(name, kernel, grid, block, shared);
        return;
    }
    cucpu_kernel k = {name, grid, block, shared, mix(seed + launches++), std::move(body)};

    put(stream, name, [k = std::move(k)] { cucpu_run(k); });
}

void cucpu_put(cudaStream_t s, const char *what, std::function<void()> run)
{
    put(s, what, std::move(run));
}

void cucpu_loads(const char *what)
{
    std::lock_guard<std::mutex> hold(standing_lock);

    for (const auto &x : standing)
        if (__atomic_load_n(x.first, __ATOMIC_ACQUIRE) < x.second)
            stop("%s loads kernels, which waits for all streams, while one waits for a word", what);
}

bool cucpu_capturing(cudaStream_t s)
{
    std::lock_guard<std::mutex> hold(s->lock);

    return s->capturing;
}

int cucpu_stream_card(cudaStream_t s)
{
    return s->card;
}

void cucpu_task(cudaStream_t s, const char *what, std::function<void()> run)
{
    if (s && s->card != cucpu_card)
        stop("%s goes to a stream of another card than the thread's", what);
    put(s, what, std::move(run));
}

// ---- the runtime ----

cudaError_t cudaDeviceSynchronize()
{
    std::set<cudaStream_t> all;
    {
        std::lock_guard<std::mutex> hold(streams_lock);
        all = streams;
    }
    for (cudaStream_t s : all)
        cudaStreamSynchronize(s);
    return cucpu_fails("cudaDeviceSynchronize") ? cucpu_error = cudaErrorUnknown : cudaSuccess;
}
cudaError_t cudaGetLastError()
{
    cudaError_t e = cucpu_error;

    cucpu_error = cudaSuccess;
    return e;
}
const char *cudaGetErrorString(cudaError_t e)
{
    switch (e) {
    case cudaSuccess:
        return "no error";
    case cudaErrorMemoryAllocation:
        return "out of memory";
    case cudaErrorNotReady:
        return "device not ready";
    case cudaErrorInsufficientDriver:
        return "CUDA driver version is insufficient for CUDA runtime version";
    case cudaErrorDeviceUninitialized:
        return "invalid device context";
    case cudaErrorMapBufferObjectFailed:
        return "mapping of buffer object failed";
    case cudaErrorInvalidResourceHandle:
        return "invalid resource handle";
    case cudaErrorNotSupported:
        return "operation not supported";
    default:
        return "another error";
    }
}
cudaError_t cudaGetDriverEntryPointByVersion(const char *name, void **fn, unsigned,
                                             unsigned long long, cudaDriverEntryPointQueryResult *)
{
    CALL("cudaGetDriverEntryPointByVersion");
    if (strcmp(name, "cuStreamWriteValue64") == 0)
        *fn = reinterpret_cast<void *>(&write_value);
    else if (strcmp(name, "cuStreamWaitValue64") == 0)
        *fn = reinterpret_cast<void *>(&wait_value);
    else if (strcmp(name, "cuMemGetAddressRange") == 0)
        *fn = reinterpret_cast<void *>(&cucpu_address_range);
    else
        return cucpu_error = cudaErrorInvalidValue;
    return cudaSuccess;
}

static size_t card_bytes()
{
    return cucpu_setting("CUCPU_MEMORY_MIB", 8 << 10) << 20;
}

cudaError_t cudaMalloc(void **p, size_t bytes)
{
    CALL("cudaMalloc");
    std::lock_guard<std::mutex> hold(mem.lock);
    size_t used = (bytes + ALIGN - 1) / ALIGN * ALIGN, pages = (used + PAGE - 1) / PAGE * PAGE;

    if (bytes == 0)
        stop("cudaMalloc of nothing");
    if (mem.live + bytes > card_bytes())
        return cucpu_error = cudaErrorMemoryAllocation;
    mem.open();
    size_t pages_at = mem.end, at = pages_at + pages - used;

    if (pages_at + pages + PAGE > SPAN || ftruncate(mem.fd, off_t(pages_at + pages)) != 0)
        return cucpu_error = cudaErrorMemoryAllocation;
    char *seen = mem.base + SPAN + pages_at;

    if (mmap(seen, pages, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, mem.fd,
             off_t(pages_at)) == MAP_FAILED)
        return cucpu_error = cudaErrorMemoryAllocation;
    UNPOISON(seen, pages);
    if (!cucpu_dry()) // which may have more memory than the host
        memset(mem.base + SPAN + at, FRESH, bytes);
    memset(mem.base + SPAN + at + bytes, CANARY, used - bytes);
    POISON(mem.base + SPAN + at + bytes, used - bytes);
    mem.blocks[at] = {bytes, pages_at, pages, true, false, nullptr};
    mem.end = pages_at + pages + PAGE;
    mem.live += bytes;
    *p = mem.base + at;
    return cudaSuccess;
}

cudaError_t cudaFree(void *p)
{
    std::lock_guard<std::mutex> hold(mem.lock);

    if (!p)
        return cudaSuccess;
    size_t at = static_cast<size_t>(static_cast<char *>(p) - mem.base);
    auto it = mem.blocks.find(at);

    if (it == mem.blocks.end() || !it->second.live || it->second.foreign)
        stop("cudaFree of %p, which is no block", p);
    block &b = it->second;

    if (b.slot && cucpu_slot_user(b.slot))
        stop("cudaFree of %zu bytes that process %d has mapped", b.bytes, cucpu_slot_user(b.slot));
    char *end = mem.base + SPAN + at + b.bytes;

    UNPOISON(end, mem.base + SPAN + b.pages_at + b.pages - end);
    for (char *c = end; c < mem.base + SPAN + b.pages_at + b.pages; c++)
        if (*c != CANARY)
            stop("something was written %td bytes behind the end of a block of %zu", c - end,
                 b.bytes);
    b.live = false;
    mem.live -= b.bytes;
    mmap(mem.base + SPAN + b.pages_at, b.pages, PROT_NONE,
         MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
    fallocate(mem.fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, off_t(b.pages_at),
              off_t(b.pages));
    return cucpu_fails("cudaFree") ? cucpu_error = cudaErrorUnknown : cudaSuccess;
}

cudaError_t cudaMallocHost(void **p, size_t bytes)
{
    CALL("cudaMallocHost");
    void *q = malloc(bytes);
    std::lock_guard<std::mutex> hold(mem.lock);

    if (!q)
        return cucpu_error = cudaErrorMemoryAllocation;
    mem.pinned[static_cast<char *>(q)] = bytes;
    *p = q;
    return cudaSuccess;
}
cudaError_t cudaFreeHost(void *p)
{
    std::lock_guard<std::mutex> hold(mem.lock);

    if (mem.pinned.erase(static_cast<char *>(p)) == 0)
        stop("cudaFreeHost of what cudaMallocHost did not give");
    free(p);
    return cucpu_fails("cudaFreeHost") ? cucpu_error = cudaErrorUnknown : cudaSuccess;
}

cudaError_t cudaMemcpyAsync(void *dst, const void *src, size_t bytes, cudaMemcpyKind kind,
                            cudaStream_t s)
{
    CALL("cudaMemcpyAsync");
    bool from = kind == cudaMemcpyDeviceToHost || kind == cudaMemcpyDeviceToDevice;
    bool to = kind == cudaMemcpyHostToDevice || kind == cudaMemcpyDeviceToDevice;

    if (from != is_device(src) || to != is_device(dst))
        stop("a copy of kind %d from %p to %p", int(kind), src, dst);
    if (from)
        src = alias(src, bytes, "a copy");
    if (to)
        dst = alias(dst, bytes, "a copy");
    put(s, "a copy", [=] { memcpy(dst, src, bytes); });
    return cudaSuccess;
}
cudaError_t cudaMemsetAsync(void *p, int byte, size_t bytes, cudaStream_t s)
{
    CALL("cudaMemsetAsync");
    p = alias(p, bytes, "memset");
    put(s, "memset", [=] { memset(p, byte, bytes); });
    return cudaSuccess;
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t *s, unsigned flags)
{
    CALL("cudaStreamCreateWithFlags");
    if (flags != cudaStreamNonBlocking)
        stop("a stream that waits for the one that everything waits for");
    return stream_new(s);
}
cudaError_t cudaStreamCreateWithPriority(cudaStream_t *s, unsigned flags, int)
{
    CALL("cudaStreamCreateWithPriority");
    return cudaStreamCreateWithFlags(s, flags);
}
cudaError_t cudaStreamDestroy(cudaStream_t s)
{
    {
        std::lock_guard<std::mutex> hold(streams_lock);

        if (streams.erase(s) == 0)
            stop("a stream is destroyed that is none");
    }
    {
        std::lock_guard<std::mutex> hold(s->lock);

        s->closed = true;
        s->more.notify_one();
    }
    s->thread.join();
    delete s;
    return cucpu_fails("cudaStreamDestroy") ? cucpu_error = cudaErrorUnknown : cudaSuccess;
}
cudaError_t cudaStreamSynchronize(cudaStream_t s)
{
    std::unique_lock<std::mutex> hold(s->lock);

    s->less.wait(hold, [s] { return s->tasks.empty() && !s->busy; });
    return cucpu_fails("cudaStreamSynchronize") ? cucpu_error = cudaErrorUnknown : cudaSuccess;
}
cudaError_t cudaStreamQuery(cudaStream_t s)
{
    CALL("cudaStreamQuery");
    std::lock_guard<std::mutex> hold(s->lock);

    return s->tasks.empty() && !s->busy ? cudaSuccess : cudaErrorNotReady;
}
cudaError_t cudaStreamBeginCapture(cudaStream_t s, cudaStreamCaptureMode mode)
{
    CALL("cudaStreamBeginCapture");
    std::lock_guard<std::mutex> hold(s->lock);

    if (mode != cudaStreamCaptureModeRelaxed || s->capturing)
        stop("a capture that forbids what loading may do, or a second one");
    s->capturing = true;
    return cudaSuccess;
}
cudaError_t cudaStreamEndCapture(cudaStream_t s, cudaGraph_t *graph)
{
    std::lock_guard<std::mutex> hold(s->lock);

    if (!s->capturing)
        stop("the end of a capture that never began");
    s->capturing = false;
    *graph = nullptr;
    CALL("cudaStreamEndCapture");
    *graph = new CUgraph_st{1};
    n_graphs++;
    return cudaSuccess;
}
cudaError_t cudaGraphDestroy(cudaGraph_t graph)
{
    delete graph;
    n_graphs--;
    CALL("cudaGraphDestroy");
    return cudaSuccess;
}
cudaError_t cudaLaunchHostFunc(cudaStream_t s, cudaHostFn_t fn, void *arg)
{
    CALL("cudaLaunchHostFunc");
    put(s, "a call of the host", [=] { // CUDA may run those of all streams one after another
        static std::mutex one;
        std::lock_guard<std::mutex> hold(one);

        fn(arg);
    });
    return cudaSuccess;
}

cudaError_t cudaFuncSetAttribute(const void *kernel, cudaFuncAttribute what, int value)
{
    CALL("cudaFuncSetAttribute");
    if (what != cudaFuncAttributeMaxDynamicSharedMemorySize || size_t(value) > cucpu_shared_most())
        return cucpu_error = cudaErrorInvalidValue;
    std::lock_guard<std::mutex> hold(streams_lock);

    allowed[{kernel, cucpu_card}] = value;
    return cudaSuccess;
}

// ---- for ipc.cc ----

bool cucpu_block_of(const void *p, cucpu_place *out)
{
    std::lock_guard<std::mutex> hold(mem.lock);

    if (!is_device(p))
        return false;
    size_t at = static_cast<size_t>(static_cast<const char *>(p) - mem.base);
    auto it = mem.blocks.upper_bound(at);

    if (it == mem.blocks.begin())
        return false;
    --it;
    block &b = it->second;

    if (!b.live || b.foreign || at >= it->first + b.bytes)
        return false;
    if (!b.slot)
        b.slot = cucpu_slot_new();
    *out = {mem.base + it->first,   mem.fd,  b.pages_at, b.pages,
            it->first - b.pages_at, b.bytes, b.slot};
    return true;
}

void *cucpu_block_map(const cucpu_place &theirs)
{
    std::lock_guard<std::mutex> hold(mem.lock);

    mem.open();
    size_t pages_at = mem.end;

    if (pages_at + theirs.pages + PAGE > SPAN ||
        mmap(mem.base + SPAN + pages_at, theirs.pages, PROT_READ | PROT_WRITE,
             MAP_SHARED | MAP_FIXED, theirs.fd, off_t(theirs.pages_at)) == MAP_FAILED)
        return nullptr;
    mem.end = pages_at + theirs.pages + PAGE;
    mem.blocks[pages_at + theirs.inside] = {theirs.bytes, pages_at, theirs.pages,
                                            true,         true,     nullptr};
    return mem.base + pages_at + theirs.inside;
}

void cucpu_block_unmap(void *p)
{
    std::lock_guard<std::mutex> hold(mem.lock);
    auto it = mem.blocks.find(static_cast<size_t>(static_cast<char *>(p) - mem.base));

    if (it == mem.blocks.end() || !it->second.live || !it->second.foreign)
        stop("%p is unmapped, which is no other process's block", p);
    it->second.live = false;
    mmap(mem.base + SPAN + it->second.pages_at, it->second.pages, PROT_NONE,
         MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
}

// ---- for tests ----

// Where the host may look at what lies at p, once nothing is under way on the streams that the caller has made: those of
// other ranks may wait for the rank that looks.
extern "C" __attribute__((visibility("default"))) void *cucpu_host(const void *p)
{
    std::set<cudaStream_t> mine;

    if (!is_device(p))
        return const_cast<void *>(p);
    {
        std::lock_guard<std::mutex> hold(streams_lock);

        for (cudaStream_t s : streams)
            if (s->maker == std::this_thread::get_id())
                mine.insert(s);
    }
    for (cudaStream_t s : mine)
        cudaStreamSynchronize(s);
    return alias(p, 0, "a test");
}

// What there is of the runtime's things: streams and graphs, events, blocks of memory, blocks of page-locked memory.
extern "C" __attribute__((visibility("default"))) void cucpu_left(int out[4])
{
    std::lock_guard<std::mutex> hold(mem.lock), also(streams_lock);

    out[0] = static_cast<int>(streams.size()) + n_graphs;
    out[1] = cucpu_events();
    out[2] = 0;
    for (const auto &b : mem.blocks)
        out[2] += b.second.live;
    out[3] = static_cast<int>(mem.pinned.size());
}
