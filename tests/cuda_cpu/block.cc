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
#include <string>
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

struct fiber {
    cucpu_thread t;
    void *sp;
    char *stack;
    bool done, waits; // waits: for the others of its warp, or of the block
    unsigned number;
    const char *file; // where it waits
    int line;
    uint64_t barrier; // meetings of the block that it has been to
    size_t shared_at;
    int groups; // of asynchronous copies, committed
    std::vector<copy> copies;
    void *fake; // of the address sanitizer
};

struct warp {
    unsigned there; // lanes that have come to the meeting
    unsigned mask;
    uint64_t turn;
    unsigned char slot[2][32 * SLOT];
};

struct crew { // of one host thread
    std::vector<std::unique_ptr<fiber>> fibers;
    std::vector<warp> warps;
    std::vector<unsigned char> shared;
    std::vector<std::pair<size_t, std::string>> names; // of shared memory
    fiber *now = nullptr;
    void *home = nullptr;
    const std::function<void()> *body = nullptr;
    const char *kernel = "?";
    unsigned n = 0, alive = 0, at_barrier = 0;
    uint64_t barriers = 0;
    const char *barrier_file = nullptr;
    int barrier_line = 0;
    size_t dynamic = 0;
    uint64_t random = 1;
    void *fake_home = nullptr;
    const void *home_bottom = nullptr;
    size_t home_size = 0;

    ~crew()
    {
        for (auto &f : fibers)
            munmap(f->stack, STACK);
    }
};
thread_local crew crew_;

uint64_t draw(crew &c)
{
    c.random ^= c.random << 13;
    c.random ^= c.random >> 7;
    c.random ^= c.random << 17;
    return c.random;
}

void go_home(fiber *f, bool last)
{
    crew &c = crew_;

#if defined(__SANITIZE_ADDRESS__)
    __sanitizer_start_switch_fiber(last ? nullptr : &f->fake, c.home_bottom, c.home_size);
#endif
    cucpu_switch(&f->sp, c.home);
#if defined(__SANITIZE_ADDRESS__)
    __sanitizer_finish_switch_fiber(f->fake, nullptr, nullptr);
#endif
    (void)last;
}

void go_to(fiber *f)
{
    crew &c = crew_;

    c.now = f;
    cucpu_self = &f->t;
#if defined(__SANITIZE_ADDRESS__)
    __sanitizer_start_switch_fiber(&c.fake_home, f->stack, STACK);
#endif
    cucpu_switch(&c.home, f->sp);
#if defined(__SANITIZE_ADDRESS__)
    __sanitizer_finish_switch_fiber(c.fake_home, nullptr, nullptr);
#endif
    c.now = nullptr;
    cucpu_self = nullptr;
}

extern "C" void cucpu_fiber()
{
    crew &c = crew_;
    fiber *f = c.now;

#if defined(__SANITIZE_ADDRESS__)
    __sanitizer_finish_switch_fiber(nullptr, &c.home_bottom, &c.home_size);
#endif
    (*c.body)();
    f->done = true;
    c.alive--;
    go_home(f, true);
    abort();
}

void prepare(fiber &f)
{
    void **sp;

    if (!f.stack) {
        void *p = mmap(nullptr, STACK, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

        if (p == MAP_FAILED)
            cucpu_fail("no memory for a stack");
        f.stack = static_cast<char *>(p);
    }
#if defined(__x86_64__)
    sp = reinterpret_cast<void **>(f.stack + STACK - 16);
    *--sp = nullptr; // where it would return to, and alignment as after a call
    *--sp = reinterpret_cast<void *>(&cucpu_fiber);
    sp -= SAVED;
    memset(sp, 0, SAVED * sizeof(*sp));
#else
    sp = reinterpret_cast<void **>(f.stack + STACK - 16 - 160);
    memset(sp, 0, 160);
    sp[11] = reinterpret_cast<void *>(&cucpu_fiber);
#endif
    f.sp = sp;
    f.done = f.waits = false;
    f.barrier = 0;
    f.shared_at = 0;
    f.groups = 0;
    if (!f.copies.empty())
        f.copies.clear();
    f.fake = nullptr;
}

[[noreturn]] void stuck(crew &c)
{
    fprintf(stderr, "cuda on the cpu: kernel %s hangs:\n", c.kernel);
    for (unsigned i = 0; i < c.n; i++) {
        fiber &f = *c.fibers[i];

        if (i < 40 || i + 8 > c.n)
            fprintf(stderr, "  thread %u of block %u %u %u %s %s:%d\n", i, f.t.block.x, f.t.block.y,
                    f.t.block.z, f.done ? "has ended; last met at" : "waits at",
                    f.file ? f.file : "-", f.line);
    }
    abort();
}

// A warp goes on until all its lanes have ended or wait for the block.  In each turn another lane is first, and
// another one next to it: steps have no factor in common with 32, the most lanes there are.
bool run_warp(crew &c, unsigned first)
{
    unsigned lanes = c.n - first < 32 ? c.n - first : 32;
    bool moved = false, again = true;

    while (again) {
        uint64_t r = draw(c);
        unsigned at = r % 32, step = (r >> 32) % 32 | 1;

        again = false;
        for (unsigned i = 0; i < 32; i++, at = (at + step) % 32) {
            if (at >= lanes)
                continue;
            fiber *f = c.fibers[first + at].get();

            if (f->done || f->waits)
                continue;
            go_to(f);
            again = true;
        }
        moved = moved || again;
    }
    return moved;
}

void run_all(crew &c)
{
    unsigned warps = static_cast<unsigned>(c.warps.size());

    while (c.alive > 0) {
        unsigned first = static_cast<unsigned>(draw(c) % warps);
        bool moved = false;

        for (unsigned i = 0; i < warps; i++)
            moved = run_warp(c, (first + i) % warps * 32) || moved;
        if (!moved)
            stuck(c);
    }
}

} // namespace

thread_local cucpu_thread *cucpu_self;

void cucpu_fail(const char *fmt, ...)
{
    va_list ap;

    va_start(ap, fmt);
    fprintf(stderr, "cuda on the cpu: kernel %s: ", crew_.kernel);
    vfprintf(stderr, fmt, ap);
    fputs("\n", stderr);
    va_end(ap);
    abort();
}

int cucpu_lane()
{
    return static_cast<int>(crew_.now->number % 32);
}

void cucpu_barrier(const char *file, int line)
{
    crew &c = crew_;
    fiber *f = c.now;

    if (c.at_barrier > 0 &&
        (c.barrier_line != line || (c.barrier_file != file && strcmp(c.barrier_file, file) != 0)))
        cucpu_fail("threads of one block wait at two barriers, %s:%d and %s:%d", c.barrier_file,
                   c.barrier_line, file, line);
    f->file = c.barrier_file = file;
    f->line = c.barrier_line = line;
    if (++c.at_barrier < c.n) {
        f->waits = true;
        go_home(f, false);
        return;
    }
    c.at_barrier = 0;
    for (unsigned i = 0; i < c.n; i++)
        c.fibers[i]->waits = false;
}

const unsigned char *cucpu_warp(unsigned mask, const void *mine, size_t bytes, const char *file,
                                int line)
{
    crew &c = crew_;
    fiber *f = c.now;
    unsigned number = f->number;
    unsigned first = number / 32 * 32, lanes = c.n - first < 32 ? c.n - first : 32;
    unsigned all = lanes == 32 ? ~0u : (1u << lanes) - 1, lane = number % 32;
    warp &w = c.warps[number / 32];
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
    f->file = file;
    f->line = line;
    if (w.there != all) {
        f->waits = true;
        go_home(f, false);
        return slots;
    }
    w.there = 0;
    w.turn++;
    for (unsigned i = first; i < first + lanes; i++)
        c.fibers[i]->waits = false;
    return slots;
}

void *cucpu_shared(size_t bytes, const char *name)
{
    crew &c = crew_;
    fiber *f = c.now;
    size_t at = (f->shared_at + 127) / 128 * 128;

    f->shared_at = at + bytes;
    if (f->shared_at > SHARED)
        cucpu_fail("%s brings its shared memory to %zu bytes, more than the %d without asking",
                   name, f->shared_at, SHARED);
    return c.shared.data() + SHARED_MOST + at;
}

void *cucpu_dynamic_shared()
{
    crew &c = crew_;

    // It ends where the room ends, so that who goes beyond it meets what belongs to nobody.
    return c.shared.data() + (SHARED_MOST - (c.dynamic + 15) / 16 * 16);
}

void cucpu_async_copy(void *dst, const void *src, int bytes, int from_src)
{
    fiber *f = crew_.now;

    if (reinterpret_cast<uintptr_t>(dst) % 16 || reinterpret_cast<uintptr_t>(src) % 16)
        cucpu_fail("an asynchronous copy of 16 bytes is not aligned");
    f->copies.push_back({dst, src, bytes, from_src, f->groups});
}

void cucpu_async_commit()
{
    crew_.now->groups++;
}

void cucpu_async_wait(int left)
{
    fiber *f = crew_.now;
    size_t kept = 0;

    for (const copy &x : f->copies) {
        if (x.group >= f->groups - left) {
            f->copies[kept++] = x;
            continue;
        }
        memcpy(x.dst, x.src, static_cast<size_t>(x.from_src));
        memset(static_cast<char *>(x.dst) + x.from_src, 0,
               static_cast<size_t>(x.bytes - x.from_src));
    }
    f->copies.resize(kept);
}

void cucpu_run(const cucpu_kernel &k)
{
    crew &c = crew_;
    unsigned n = k.block.x * k.block.y * k.block.z;

    c.kernel = k.name;
    c.n = n;
    c.body = &k.body;
    c.dynamic = k.shared;
    c.random = k.seed * 0x9e3779b97f4a7c15u + 1;
    while (c.fibers.size() < n)
        c.fibers.push_back(std::make_unique<fiber>());
    c.warps.resize((n + 31) / 32);
    c.shared.resize(SHARED_MOST + SHARED);
    for (unsigned z = 0; z < k.grid.z; z++)
        for (unsigned y = 0; y < k.grid.y; y++)
            for (unsigned x = 0; x < k.grid.x; x++) {
                c.alive = n;
                c.at_barrier = 0;
                if (k.shared > 0)
                    memset(c.shared.data() + SHARED_MOST - (k.shared + 15) / 16 * 16, 0xff,
                           (k.shared + 15) / 16 * 16);
                memset(c.shared.data() + SHARED_MOST, 0xff, SHARED);
                for (warp &w : c.warps) {
                    w.there = 0;
                    w.turn = 0;
                }
                for (unsigned i = 0; i < n; i++) {
                    fiber &f = *c.fibers[i];

                    prepare(f);
                    f.number = i;
                    f.t = {{i % k.block.x, i / k.block.x % k.block.y, i / k.block.x / k.block.y},
                           {x, y, z},
                           k.block,
                           k.grid};
                }
                run_all(c);
            }
    c.kernel = "?";
}
