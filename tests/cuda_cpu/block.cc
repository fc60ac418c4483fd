// SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
//
// The fibers of a block.  Stacks are kept from launch to launch, one set for each thread of the host that
// runs kernels.
#include "cuda_cpu.h"
#include "cuda_cpu_impl.h"

#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <sys/mman.h>
#include <vector>
#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/common_interface_defs.h>
#endif

enum { STACK = 64 << 10, SHARED = 48 << 10, SHARED_MOST = 227 << 10, SLOT = 64 };

// ---- switching ----
//
// Saves what a callee must keep and changes stacks.

extern "C" void cucpu_switch(void **save, void *to);
extern "C" void cucpu_first();

#if defined(__x86_64__)
asm(R"(
.text
.globl cucpu_switch
.type cucpu_switch, @function
cucpu_switch:
    endbr64
    pushq %rbp
    pushq %rbx
    pushq %r12
    pushq %r13
    pushq %r14
    pushq %r15
    movq %rsp, (%rdi)
    movq %rsi, %rsp
    popq %r15
    popq %r14
    popq %r13
    popq %r12
    popq %rbx
    popq %rbp
    ret
.size cucpu_switch, .-cucpu_switch
)");
enum { SAVED = 6 };
#elif defined(__aarch64__)
asm(R"(
.text
.globl cucpu_switch
.type cucpu_switch, %function
cucpu_switch:
    sub sp, sp, #160
    stp x19, x20, [sp]
    stp x21, x22, [sp, #16]
    stp x23, x24, [sp, #32]
    stp x25, x26, [sp, #48]
    stp x27, x28, [sp, #64]
    stp x29, x30, [sp, #80]
    stp d8, d9, [sp, #96]
    stp d10, d11, [sp, #112]
    stp d12, d13, [sp, #128]
    stp d14, d15, [sp, #144]
    mov x9, sp
    str x9, [x0]
    mov sp, x1
    ldp x19, x20, [sp]
    ldp x21, x22, [sp, #16]
    ldp x23, x24, [sp, #32]
    ldp x25, x26, [sp, #48]
    ldp x27, x28, [sp, #64]
    ldp x29, x30, [sp, #80]
    ldp d8, d9, [sp, #96]
    ldp d10, d11, [sp, #112]
    ldp d12, d13, [sp, #128]
    ldp d14, d15, [sp, #144]
    add sp, sp, #160
    ret
.size cucpu_switch, .-cucpu_switch
)");
#else
#error "this processor needs its cucpu_switch"
#endif

namespace
{

struct copy {
    void *dst;
    const void *src;
    int bytes, from_src, group;
};

// A stack.  Threads that have not begun are run on it one after another, without a switch, until one has to wait:
// the stack is its own then, until it has ended.
struct fiber {
    void *sp;
    char *stack;
    void *fake; // of the address sanitizer
};

struct thread {
    cucpu_thread t;
    unsigned number;
    fiber *on;
    const char *file; // where it waits
    int line;
    size_t shared_at;
    int groups; // of asynchronous copies, committed
    std::vector<copy> copies;
};

struct warp { // sets of lanes
    unsigned alive;
    unsigned fresh; // have not begun
    unsigned ready; // may go on: they have not begun, or what they have met at is over
    unsigned there; // have come to the meeting
    uint64_t turn;
    unsigned char slot[2][32 * SLOT];
};

struct crew { // of one host thread
    std::vector<thread> threads;
    std::vector<std::unique_ptr<fiber>> fibers;
    std::vector<fiber *> idle;
    std::vector<warp> warps;
    std::vector<unsigned char> shared;
    thread *now = nullptr;
    fiber *on = nullptr; // the stack in use; nullptr: the host's own
    fiber home = {};
    const cucpu_kernel *kernel = nullptr;
    uint3 block = {};
    unsigned n = 0, alive = 0, at_barrier = 0;
    const char *barrier_file = nullptr;
    int barrier_line = 0;
    size_t shared_used = 0;
    uint64_t random = 1;
    // whose turn it is
    unsigned warp_now = 0, warps_seen = 0, lane = 0, step = 1, lanes_seen = 0;
    bool again = false, moved = false;
    const void *home_bottom = nullptr;
    size_t home_size = 0;

    ~crew()
    {
        for (auto &f : fibers)
            munmap(f->stack, STACK);
    }
};
thread_local std::unique_ptr<crew> crew_owner;
constinit thread_local crew *crew_ = nullptr; // the same, for those who are asked often

uint64_t draw(crew &c)
{
    c.random ^= c.random << 13;
    c.random ^= c.random >> 7;
    c.random ^= c.random << 17;
    return c.random;
}

const char *kernel_name()
{
    return crew_ && crew_->kernel ? crew_->kernel->name : "?";
}

// ---- whose turn it is ----

[[noreturn]] void stuck(crew &c)
{
    fprintf(stderr, "cuda on the cpu: kernel %s hangs:\n", kernel_name());
    for (unsigned i = 0; i < c.n; i++) {
        thread &x = c.threads[i];
        bool alive = c.warps[i / 32].alive >> i % 32 & 1;

        if (i < 40 || i + 8 > c.n)
            fprintf(stderr, "  thread %u of block %u %u %u %s %s:%d\n", i, c.block.x, c.block.y,
                    c.block.z, alive ? "waits at" : "has ended; last met at", x.file ? x.file : "-",
                    x.line);
    }
    abort();
}

// In each turn another lane is first, and another one next to it: steps have no factor in common with 32, the most
// lanes there are.
void begin_turn(crew &c)
{
    uint64_t r = draw(c);

    c.lane = r % 32;
    c.step = (r >> 32) % 32 | 1;
    c.lanes_seen = 0;
    c.again = false;
}

void begin_round(crew &c)
{
    c.warp_now = static_cast<unsigned>(draw(c) % c.warps.size());
    c.warps_seen = 0;
    c.moved = false;
    begin_turn(c);
}

// The thread that goes on; nullptr: all have ended.  A warp goes on until all its lanes have ended or wait for the
// block, then comes the next warp.
thread *next(crew &c)
{
    if (c.alive == 0)
        return nullptr;
    for (;;) {
        warp &w = c.warps[c.warp_now];

        while (w.ready && c.lanes_seen < 32) {
            unsigned lane = c.lane;

            c.lane = (c.lane + c.step) % 32;
            c.lanes_seen++;
            if (w.ready >> lane & 1) {
                c.again = c.moved = true;
                return &c.threads[c.warp_now * 32 + lane];
            }
        }
        if (!c.again) {
            if (++c.warps_seen == c.warps.size()) {
                if (!c.moved)
                    stuck(c);
                begin_round(c);
                continue;
            }
            if (++c.warp_now == c.warps.size())
                c.warp_now = 0;
        }
        begin_turn(c);
    }
}

// ---- stacks ----

extern "C" void cucpu_fiber();

fiber *new_fiber(crew &c)
{
    c.fibers.push_back(std::make_unique<fiber>());
    fiber *f = c.fibers.back().get();
    void *p = mmap(nullptr, STACK, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    void **sp;

    if (p == MAP_FAILED)
        cucpu_fail("no memory for a stack");
    f->stack = static_cast<char *>(p);
    // not all at the same place of a page: they would share few places of the processor's caches
    char *top = f->stack + STACK - 64 * (c.fibers.size() * 5 % 251) - 16;
#if defined(__x86_64__)
    sp = reinterpret_cast<void **>(top);
    *--sp = nullptr; // where it would return to, and alignment as after a call
    *--sp = reinterpret_cast<void *>(&cucpu_fiber);
    sp -= SAVED;
    memset(sp, 0, SAVED * sizeof(*sp));
#else
    sp = reinterpret_cast<void **>(top - 160);
    memset(sp, 0, 160);
    sp[11] = reinterpret_cast<void *>(&cucpu_fiber);
#endif
    f->sp = sp;
    f->fake = nullptr;
    return f;
}

fiber *idle_fiber(crew &c)
{
    if (c.idle.empty())
        return new_fiber(c);
    fiber *f = c.idle.back();

    c.idle.pop_back();
    return f;
}

// From the stack in use to another one; returns when somebody comes back to it.
void go_to(crew &c, fiber *to)
{
    fiber *from = c.on;

    c.on = to;
#if defined(__SANITIZE_ADDRESS__)
    if (to == &c.home)
        __sanitizer_start_switch_fiber(&from->fake, c.home_bottom, c.home_size);
    else
        __sanitizer_start_switch_fiber(&from->fake, to->stack, STACK);
#endif
    cucpu_switch(&from->sp, to->sp);
#if defined(__SANITIZE_ADDRESS__)
    __sanitizer_finish_switch_fiber(from->fake, nullptr, nullptr);
#endif
}

void begin(crew &c, thread *x)
{
    const cucpu_kernel &k = *c.kernel;
    unsigned i = x->number;

    c.warps[i / 32].fresh &= ~(1u << i % 32);
    x->on = c.on;
    x->file = nullptr;
    x->line = 0;
    x->shared_at = 0;
    x->groups = 0;
    if (!x->copies.empty())
        x->copies.clear();
    x->t = {{i % k.block.x, i / k.block.x % k.block.y, i / k.block.x / k.block.y},
            c.block,
            k.block,
            k.grid};
}

void set_now(crew &c, thread *x)
{
    c.now = x;
    cucpu_self = &x->t;
}

bool is_fresh(const crew &c, const thread *x)
{
    return c.warps[x->number / 32].fresh >> x->number % 32 & 1;
}

// The thread that runs waits, until it is ready and its turn comes.
void wait_here(crew &c)
{
    thread *me = c.now, *x = next(c);

    if (is_fresh(c, x)) {
        c.now = x;
        go_to(c, idle_fiber(c));
    } else if (x != me) {
        set_now(c, x);
        go_to(c, x->on);
    }
    set_now(c, me);
}

// c.now has not begun when somebody comes here.
extern "C" void cucpu_fiber()
{
    crew &c = *crew_;
    fiber *me = c.on;

#if defined(__SANITIZE_ADDRESS__)
    __sanitizer_finish_switch_fiber(nullptr, c.home_bottom ? nullptr : &c.home_bottom,
                                    c.home_bottom ? nullptr : &c.home_size);
#endif
    for (;;) {
        thread *x = c.now;

        begin(c, x);
        set_now(c, x);
        c.kernel->body();
        x = c.now;
        warp &w = c.warps[x->number / 32];

        w.alive &= ~(1u << x->number % 32);
        w.ready &= w.alive;
        c.alive--;
        x = next(c);
        c.now = x;
        if (x && is_fresh(c, x))
            continue;
        c.idle.push_back(me);
        if (x) {
            cucpu_self = &x->t;
            go_to(c, x->on);
        } else {
            go_to(c, &c.home);
        }
    }
}

void run_block(crew &c)
{
    unsigned n = c.n;

    c.alive = n;
    c.at_barrier = 0;
    for (warp &w : c.warps) {
        w.alive = n >= 32 ? ~0u : (1u << n) - 1;
        w.fresh = w.ready = w.alive;
        w.there = 0;
        n -= n < 32 ? n : 32;
    }
    begin_round(c);
    c.now = next(c);
    c.on = &c.home;
    go_to(c, idle_fiber(c));
    c.now = nullptr;
    cucpu_self = nullptr;
}

} // namespace

constinit thread_local cucpu_thread *cucpu_self = nullptr;

void cucpu_fail(const char *fmt, ...)
{
    va_list ap;

    va_start(ap, fmt);
    fprintf(stderr, "cuda on the cpu: kernel %s: ", kernel_name());
    vfprintf(stderr, fmt, ap);
    fputs("\n", stderr);
    va_end(ap);
    abort();
}

int cucpu_lane()
{
    return static_cast<int>(crew_->now->number % 32);
}

void cucpu_barrier(const char *file, int line)
{
    crew &c = *crew_;
    thread *x = c.now;

    if (c.at_barrier > 0 &&
        (c.barrier_line != line || (c.barrier_file != file && strcmp(c.barrier_file, file) != 0)))
        cucpu_fail("threads of one block wait at two barriers, %s:%d and %s:%d", c.barrier_file,
                   c.barrier_line, file, line);
    x->file = c.barrier_file = file;
    x->line = c.barrier_line = line;
    if (++c.at_barrier < c.n) {
        c.warps[x->number / 32].ready &= ~(1u << x->number % 32);
        wait_here(c);
        return;
    }
    c.at_barrier = 0;
    for (warp &w : c.warps)
        w.ready = w.alive;
}

const unsigned char *cucpu_warp(unsigned mask, const void *mine, size_t bytes, const char *file,
                                int line, void (*then)(unsigned char *all))
{
    crew &c = *crew_;
    thread *x = c.now;
    unsigned lane = x->number % 32, first = x->number - lane;
    unsigned lanes = c.n - first < 32 ? c.n - first : 32;
    unsigned all = lanes == 32 ? ~0u : (1u << lanes) - 1;
    warp &w = c.warps[x->number / 32];
    unsigned char *slots = w.slot[w.turn & 1];

    if ((mask & all) != all)
        cucpu_fail("%s:%d: only the lanes %08x of a warp meet; this is not imitated", file, line,
                   mask);
    if (w.there & 1u << lane)
        cucpu_fail("%s:%d: lane %u comes twice to one meeting", file, line, lane);
    if (bytes > SLOT)
        cucpu_fail("%s:%d: a lane brings %zu bytes", file, line, bytes);
    if (bytes > 0)
        memcpy(slots + SLOT * lane, mine, bytes);
    w.there |= 1u << lane;
    x->file = file;
    x->line = line;
    if (w.there != all) {
        w.ready &= ~(1u << lane);
        wait_here(c);
        return slots;
    }
    w.there = 0;
    w.turn++;
    w.ready |= all;
    if (then)
        then(slots);
    return slots;
}

void *cucpu_shared(size_t bytes, const char *name)
{
    crew &c = *crew_;
    thread *x = c.now;
    size_t at = (x->shared_at + 127) / 128 * 128;

    x->shared_at = at + bytes;
    if (x->shared_at > SHARED)
        cucpu_fail("%s brings its shared memory to %zu bytes, more than the %d without asking",
                   name, x->shared_at, SHARED);
    if (x->shared_at > c.shared_used)
        c.shared_used = x->shared_at;
    return c.shared.data() + SHARED_MOST + at;
}

void *cucpu_dynamic_shared()
{
    crew &c = *crew_;

    // It ends where the room ends, so that who goes beyond it meets what belongs to nobody.
    return c.shared.data() + (SHARED_MOST - (c.kernel->shared + 15) / 16 * 16);
}

void cucpu_async_copy(void *dst, const void *src, int bytes, int from_src)
{
    thread *x = crew_->now;

    if (reinterpret_cast<uintptr_t>(dst) % 16 || reinterpret_cast<uintptr_t>(src) % 16)
        cucpu_fail("an asynchronous copy of 16 bytes is not aligned");
    x->copies.push_back({dst, src, bytes, from_src, x->groups});
}

void cucpu_async_commit()
{
    crew_->now->groups++;
}

void cucpu_async_wait(int left)
{
    thread *x = crew_->now;
    size_t kept = 0;

    for (const copy &one : x->copies) {
        if (one.group >= x->groups - left) {
            x->copies[kept++] = one;
            continue;
        }
        memcpy(one.dst, one.src, static_cast<size_t>(one.from_src));
        memset(static_cast<char *>(one.dst) + one.from_src, 0,
               static_cast<size_t>(one.bytes - one.from_src));
    }
    x->copies.resize(kept);
}

void cucpu_run(const cucpu_kernel &k)
{
    size_t dynamic = (k.shared + 15) / 16 * 16;

    if (!crew_) {
        crew_owner = std::make_unique<crew>();
        crew_ = crew_owner.get();
        crew_->shared.assign(SHARED_MOST + SHARED, 0xff);
    }
    crew &c = *crew_;

    c.kernel = &k;
    c.n = k.block.x * k.block.y * k.block.z;
    c.random = k.seed * 0x9e3779b97f4a7c15u + 1;
    for (unsigned i = static_cast<unsigned>(c.threads.size()); i < c.n; i++) {
        c.threads.emplace_back();
        c.threads[i].number = i;
    }
    c.warps.resize((c.n + 31) / 32);
    for (unsigned z = 0; z < k.grid.z; z++)
        for (unsigned y = 0; y < k.grid.y; y++)
            for (unsigned x = 0; x < k.grid.x; x++) {
                c.block = {x, y, z};
                run_block(c);
                memset(c.shared.data() + SHARED_MOST - dynamic, 0xff, dynamic);
                memset(c.shared.data() + SHARED_MOST, 0xff, c.shared_used);
                c.shared_used = 0;
            }
    c.kernel = nullptr;
}
