/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * The CPU as a device.  Calls run at once on the caller's thread and its OpenMP team, so an event
 * is a time stamp and waiting for one is already over. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE /* sched_getaffinity */
#endif
#include "kernels/cpu/cpu.h"

#include "base/mem.h"
#include "base/clock.h"

#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#ifdef _OPENMP
#include <omp.h>
#endif

enum { ALIGN = 64, HEADER = 64 };

struct dt_device_event {
    uint64_t ns;
};
struct dt_device_gate {
    atomic_uint_fast64_t n;
};

static struct dt_cpu *cpu_of(const struct dt_device *dev)
{
    return dev->impl;
}

/* ---- memory ---- */

static void account(struct dt_cpu *cpu, int64_t bytes)
{
    int64_t now = atomic_fetch_add(&cpu->now_bytes, bytes) + bytes;
    int64_t max = atomic_load(&cpu->max_bytes);

    while (now > max && !atomic_compare_exchange_weak(&cpu->max_bytes, &max, now))
        ;
}

static _Thread_local struct dt_device_memory_owner *owner; /* of what this thread allocates */

static struct dt_device_memory_owner *memory_for(const struct dt_device *dev,
                                                 struct dt_device_memory_owner *o)
{
    struct dt_device_memory_owner *before = owner;

    (void)dev;
    owner = o;
    return before;
}

static void account_for(struct dt_device_memory_owner *o, int64_t bytes)
{
    if (o)
        __atomic_fetch_add(&o->now_bytes, bytes, __ATOMIC_RELAXED);
}

static void memory_given(const struct dt_device *dev, struct dt_device_memory_owner *o,
                         int64_t bytes)
{
    account(cpu_of(dev), bytes);
    account_for(o, bytes);
}

/* The size and the owner lie in front, for the accounting; dt_malloc keeps the fault hook of tests
 * in the path. */
void *dt_cpu_alloc(struct dt_cpu *cpu, size_t bytes)
{
    size_t whole;
    char *raw, *p;

    if (bytes > SIZE_MAX - ALIGN - HEADER)
        return NULL;
    whole = bytes + ALIGN + HEADER;
    raw = dt_malloc(whole);
    if (!raw)
        return NULL;
    p = raw + HEADER + (ALIGN - (uintptr_t)raw % ALIGN) % ALIGN;
    memcpy(p - 8, &raw, sizeof(raw));
    memcpy(p - 16, &bytes, sizeof(bytes));
    memcpy(p - 24, &owner, sizeof(owner));
    account(cpu, (int64_t)bytes);
    account_for(owner, (int64_t)bytes);
    return p;
}

void dt_cpu_free(struct dt_cpu *cpu, void *p)
{
    struct dt_device_memory_owner *o;
    size_t bytes;
    char *raw;

    if (!p)
        return;
    memcpy(&raw, (char *)p - 8, sizeof(raw));
    memcpy(&bytes, (char *)p - 16, sizeof(bytes));
    memcpy(&o, (char *)p - 24, sizeof(o));
    account(cpu, -(int64_t)bytes);
    account_for(o, -(int64_t)bytes);
    dt_free(raw);
}

static enum dt_status dev_alloc(const struct dt_device *dev, size_t bytes, struct dt_error *err,
                                void **out)
{
    void *p = dt_cpu_alloc(cpu_of(dev), bytes);

    if (!p)
        return dt_error_set(err, DT_ERR_NOMEM, "out of memory: %zu bytes for a tensor", bytes);
    *out = p;
    return DT_OK;
}

static void dev_free(const struct dt_device *dev, void *p)
{
    dt_cpu_free(cpu_of(dev), p);
}

/* Blocks are the host's own. */
static void memory_trim(const struct dt_device *dev)
{
    (void)dev;
}

/* Kernels are as fast as they get from the first. */
static void settle(const struct dt_device *dev)
{
    (void)dev;
}

static void memory_used(const struct dt_device *dev, int64_t *now_bytes, int64_t *max_bytes)
{
    *now_bytes = atomic_load(&cpu_of(dev)->now_bytes);
    *max_bytes = atomic_load(&cpu_of(dev)->max_bytes);
}

void *dt_cpu_scratch(struct dt_device_queue *q, int region, size_t bytes)
{
    struct dt_cpu *cpu = cpu_of(q->dev);
    struct dt_device_memory_owner *o;
    void *p;

    assert(region >= 0 && region < DT_SCRATCH_N);
    if (q->scratch[region].p && q->scratch[region].bytes >= bytes)
        return q->scratch[region].p;
    dt_cpu_free(cpu, q->scratch[region].p); /* first: both at once would be a peak */
    q->scratch[region].p = NULL;
    q->scratch[region].bytes = 0;
    o = memory_for(q->dev, &cpu->scratch);
    p = dt_cpu_alloc(cpu, bytes);
    memory_for(q->dev, o);
    if (!p) {
        dt_cpu_queue_fail(q, DT_ERR_NOMEM, "out of memory: %zu bytes of workspace", bytes);
        return NULL;
    }
    q->scratch[region].p = p;
    q->scratch[region].bytes = bytes;
    return p;
}

/* ---- sums ---- */

static void reduce(struct dt_device_queue *q, enum dt_reduce_type type, int64_t n, int members,
                   int me, void *x, const void *const *others)
{
    if (q->status == DT_OK)
        dt_reduce_parts(type, x, others, members, me, (size_t)n);
}

/* ---- queues ---- */

void dt_cpu_queue_fail(struct dt_device_queue *q, enum dt_status status, const char *fmt, ...)
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

static void queue_free(struct dt_device_queue *q)
{
    if (!q)
        return;
    dt_cpu_products_free(q);
    for (int i = 0; i < DT_SCRATCH_N; i++)
        dt_cpu_free(cpu_of(q->dev), q->scratch[i].p);
    dt_free(q);
}

static enum dt_status queue_new(const struct dt_device *dev, bool high_priority,
                                struct dt_error *err, struct dt_device_queue **out)
{
    struct dt_device_queue *q = dt_calloc(1, sizeof(*q));
    enum dt_status st;

    (void)high_priority; /* nothing runs behind the caller's back that it could overtake */
    if (!q)
        return dt_error_nomem(err, "a queue");
    q->dev = dev;
    q->threads = dev->info.threads;
    st = dt_cpu_products_new(q, err);
    if (st != DT_OK) {
        dt_free(q);
        return st;
    }
    *out = q;
    return DT_OK;
}

static enum dt_status queue_sync(struct dt_device_queue *q, struct dt_error *err)
{
    enum dt_status st = q->status;

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
    (void)dir;
    if (q->status == DT_OK && bytes > 0)
        memcpy(dst, src, bytes);
}

static void queue_zero(struct dt_device_queue *q, void *p, size_t bytes)
{
    if (q->status == DT_OK && bytes > 0)
        memset(p, 0, bytes);
}

static void queue_call(struct dt_device_queue *q, void (*fn)(void *), void *arg)
{
    if (q->status == DT_OK)
        fn(arg);
}

#ifdef _OPENMP
static const int own_fault[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP, SIGABRT, SIGSYS};

/* oneDNN's products for AVX2 have their stack pointer in a buffer of the heap while they run, so a handler that ran on this
 * thread's stack would overwrite what lies below: signals are for other threads.  (The thread that calls kernels is the
 * program's own, whose handlers have a stack of their own: cli/cmd_train.c.) */
static void take_no_signals(int thread)
{
    static _Thread_local bool taken;
    sigset_t set;

    if (thread == 0 || taken)
        return;
    sigfillset(&set);
    for (int i = 0; i < (int)(sizeof(own_fault) / sizeof(own_fault[0])); i++)
        sigdelset(&set, own_fault[i]);
    taken = pthread_sigmask(SIG_BLOCK, &set, NULL) == 0;
}
#endif

void dt_cpu_for(struct dt_device_queue *q, int64_t blocks, dt_cpu_block_fn *fn, void *arg)
{
#ifdef _OPENMP
    if (blocks > 1 && q->threads > 1) {
#pragma omp parallel num_threads(q->threads)
        {
            take_no_signals(omp_get_thread_num());
            /* dynamic: a core that the system takes away for a while delays one block, not half the
             * loop */
#pragma omp for schedule(dynamic)
            for (int64_t b = 0; b < blocks; b++)
                fn(arg, b, omp_get_thread_num());
        }
        return;
    }
#else
    (void)q;
#endif
    for (int64_t b = 0; b < blocks; b++)
        fn(arg, b, 0);
}

/* ---- events ---- */

static enum dt_status event_new(const struct dt_device *dev, struct dt_error *err,
                                struct dt_device_event **out)
{
    struct dt_device_event *e = dt_calloc(1, sizeof(*e));

    (void)dev;
    if (!e)
        return dt_error_nomem(err, "an event");
    *out = e;
    return DT_OK;
}

static void event_free(struct dt_device_event *e)
{
    dt_free(e);
}

static void event_record(struct dt_device_queue *q, struct dt_device_event *e)
{
    if (q->status == DT_OK)
        e->ns = dt_clock_ns();
}

static void event_wait(struct dt_device_queue *q, struct dt_device_event *e)
{
    (void)q;
    (void)e;
}

static enum dt_status event_sync(struct dt_device_event *e, struct dt_error *err)
{
    (void)e;
    (void)err;
    return DT_OK;
}

static bool event_done(struct dt_device_event *e)
{
    (void)e;
    return true;
}

static uint64_t event_ns(struct dt_device_event *e)
{
    return e->ns;
}

static void *queue_stream(struct dt_device_queue *q)
{
    (void)q;
    return NULL;
}

/* ---- gates: a call has run when it returns, so it can wait for nothing that comes later ---- */

static enum dt_status gate_new(const struct dt_device *dev, struct dt_error *err,
                               struct dt_device_gate **out)
{
    struct dt_device_gate *g = dt_calloc(1, sizeof(*g));

    (void)dev;
    if (!g)
        return dt_error_nomem(err, "a gate");
    *out = g;
    return DT_OK;
}

static void gate_free(struct dt_device_gate *g)
{
    dt_free(g);
}

static void gate_raise(struct dt_device_queue *q, struct dt_device_gate *g, uint64_t n)
{
    uint_fast64_t is = atomic_load(&g->n);

    (void)q;
    while (is < n && !atomic_compare_exchange_weak(&g->n, &is, n))
        ;
}

static void gate_wait(struct dt_device_queue *q, struct dt_device_gate *g, uint64_t n)
{
    if (atomic_load(&g->n) < n)
        dt_cpu_queue_fail(q, DT_ERR_INTERNAL, "a queue of the CPU waits for what comes after it");
}

/* ---- opening ---- */

/* Cores that this process may run on; a rank pinned to some of them must not start more threads. */
static int cores_allowed(void)
{
#ifdef __linux__
    cpu_set_t set;

    if (sched_getaffinity(0, sizeof(set), &set) == 0 && CPU_COUNT(&set) > 0)
        return CPU_COUNT(&set);
#endif
    long n = sysconf(_SC_NPROCESSORS_ONLN);

    return n > 0 ? (int)n : 1;
}

/* The kernels of the widest instruction set that this machine has; DT_CPU_ISA=base, v3, v4 (without
 * bf16) or bf16 (without AMX) lowers it, for tests of the others. */
#ifdef DT_CPU_X86
enum { BASE, V3, V4, BF16, ALL };

static int level_cap(void)
{
    static const char *const names[ALL] = {"base", "v3", "v4", "bf16"};
    const char *cap = getenv("DT_CPU_ISA");
    int level = BASE;

    while (level < ALL && !(cap && strcmp(cap, names[level]) == 0))
        level++;
    return level;
}
#endif

static const char *fill_kernels(struct dt_cpu *cpu, struct dt_kernels *k)
{
    const char *isa = "generic";

    cpu->bf16 = NULL;
    dt_cpu_simd_base(k);
#ifdef DT_CPU_X86
    int level = level_cap();

    __builtin_cpu_init();
    if (level >= V3 && __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
        __builtin_cpu_supports("bmi2")) {
        dt_cpu_simd_v3(k);
        isa = "AVX2";
        if (level >= V4 && __builtin_cpu_supports("avx512f") &&
            __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512cd") &&
            __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl")) {
            dt_cpu_simd_v4(k);
            cpu->bf16 = level >= BF16 ? dt_cpu_bf16_ops(level > BF16) : NULL;
            isa = "AVX-512";
        }
    }
#endif
    dt_cpu_products(k);
    k->reduce = reduce;
    return isa;
}

static void cpu_close(struct dt_device *dev)
{
    struct dt_cpu *cpu;

    if (!dev)
        return;
    cpu = cpu_of(dev);
    dt_cpu_products_close(cpu);
    dt_free((void *)(uintptr_t)dev->k);
    dt_free(cpu);
}

enum dt_status dt_device_open_cpu(const struct dt_device_options *opt, struct dt_error *err,
                                  struct dt_device **out)
{
    struct dt_cpu *cpu = dt_calloc(1, sizeof(*cpu));
    struct dt_kernels *k = dt_calloc(1, sizeof(*k));
    enum dt_status st;

    if (!cpu || !k) {
        dt_free(cpu);
        dt_free(k);
        return dt_error_nomem(err, "the CPU device");
    }
    cpu->dev = (struct dt_device){
        .abi = DT_DEVICE_ABI,
        .k = k,
        .impl = cpu,
        .close = cpu_close,
        .alloc = dev_alloc,
        .free = dev_free,
        .host_alloc = dev_alloc,
        .host_free = dev_free,
        .memory_used = memory_used,
        .memory_trim = memory_trim,
        .settle = settle,
        .memory_given = memory_given,
        .memory_for = memory_for,
        .queue_new = queue_new,
        .queue_free = queue_free,
        .queue_sync = queue_sync,
        .queue_state = queue_state,
        .copy = queue_copy,
        .zero = queue_zero,
        .call = queue_call,
        .queue_stream = queue_stream,
        .event_new = event_new,
        .event_free = event_free,
        .event_record = event_record,
        .event_wait = event_wait,
        .event_sync = event_sync,
        .event_done = event_done,
        .event_ns = event_ns,
        .gate_new = gate_new,
        .gate_free = gate_free,
        .gate_raise = gate_raise,
        .gate_wait = gate_wait,
        .ipc_memory = dt_cpu_ipc_memory,
        .ipc_map = dt_cpu_ipc_map,
        .ipc_unmap = dt_cpu_ipc_unmap,
        .ipc_leave = dt_cpu_ipc_leave,
        .ipc_event_new = dt_cpu_ipc_event_new,
        .ipc_event_open = dt_cpu_ipc_event_open,
        .weight_new = dt_cpu_weight_new,
        .weight_free = dt_cpu_weight_free,
        .weight_changed = dt_cpu_weight_changed,
    };
    snprintf(cpu->dev.info.name, sizeof(cpu->dev.info.name), "cpu");
    snprintf(cpu->dev.info.isa, sizeof(cpu->dev.info.isa), "%s", fill_kernels(cpu, k));
    cpu->dev.info.threads = opt && opt->threads > 0 ? opt->threads : cores_allowed();
#ifndef _OPENMP
    cpu->dev.info.threads = 1;
#endif
    cpu->dev.info.memory_bytes = (int64_t)sysconf(_SC_PHYS_PAGES) * (int64_t)sysconf(_SC_PAGESIZE);
    cpu->dev.info.packs = true;
    cpu->dev.info.host_memory = true;
    st = dt_cpu_products_open(cpu, opt, err);
    if (st != DT_OK) {
        dt_free(k);
        dt_free(cpu);
        return st;
    }
    *out = &cpu->dev;
    return DT_OK;
}
