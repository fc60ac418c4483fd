/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * The fake device's table: memory, copies, weights, opening. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "fake_device_impl.h"
#include "kernels/cpu/cpu.h"
#include "kernels/device_open.h"

#include "base/clock.h"
#include "base/mem.h"

#include <stdio.h>

_Thread_local struct dt_device_memory_owner *dt_fake_owner;

/* ---- memory ---- */

/* What kernels take of the CPU: its queues' workspaces.  What the CPU has taken in all less the weights that it has
 * packed, which no card has, would be the same but for a queue that packs between the two looks. */
static int64_t outside(const struct dt_fake *f)
{
    const struct dt_cpu *cpu = f->cpu->impl;

    return __atomic_load_n(&cpu->scratch.now_bytes, __ATOMIC_RELAXED);
}

void dt_fake_account(struct dt_fake *f, int64_t bytes)
{
    int64_t now;

    pthread_mutex_lock(&f->lock);
    f->now_bytes += bytes;
    now = f->now_bytes + outside(f);
    f->max_bytes = now > f->max_bytes ? now : f->max_bytes;
    pthread_mutex_unlock(&f->lock);
}

/* Nothing is kept. */
static void memory_trim(const struct dt_device *dev)
{
    (void)dev;
}

/* Kernels are the CPU's. */
static void settle(const struct dt_device *dev)
{
    (void)dev;
}

static void memory_used(const struct dt_device *dev, int64_t *now_bytes, int64_t *max_bytes)
{
    struct dt_fake *f = dt_fake_of(dev);

    dt_fake_account(f, 0);
    pthread_mutex_lock(&f->lock);
    *now_bytes = f->now_bytes + outside(f);
    *max_bytes = f->max_bytes;
    pthread_mutex_unlock(&f->lock);
}

static struct dt_device_memory_owner *memory_for(const struct dt_device *dev,
                                                 struct dt_device_memory_owner *o)
{
    struct dt_device_memory_owner *before = dt_fake_owner;

    (void)dev;
    dt_fake_owner = o;
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
    dt_fake_account(dt_fake_of(dev), bytes);
    account_for(o, bytes);
}

/* May there be memory now, if the tests of its lack are asked? */
static bool may_allocate(void)
{
    void *p = dt_malloc(1);

    dt_free(p);
    return p != NULL;
}

enum dt_status dt_fake_alloc(struct dt_fake *f, size_t bytes, struct dt_error *err, void **out)
{
    void *p = may_allocate() ? dt_fake_block_new(f, bytes) : NULL;

    if (!p)
        return dt_error_set(err, DT_ERR_NOMEM, "out of memory: %zu bytes for a tensor", bytes);
    dt_fake_account(f, (int64_t)bytes);
    account_for(dt_fake_owner, (int64_t)bytes);
    pthread_mutex_lock(&f->lock);
    f->blocks++;
    pthread_mutex_unlock(&f->lock);
    *out = p;
    return DT_OK;
}

static void count_allocation(struct dt_fake *f)
{
    pthread_mutex_lock(&f->lock);
    f->allocations++;
    pthread_mutex_unlock(&f->lock);
}

static enum dt_status dev_alloc(const struct dt_device *dev, size_t bytes, struct dt_error *err,
                                void **out)
{
    struct dt_fake *f = dt_fake_of(dev);

    count_allocation(f);
    return dt_fake_alloc(f, bytes, err, out);
}

static void drop(struct dt_fake *f, void *arg)
{
    (void)f;
    dt_fake_block_drop(arg);
}

static void dev_free(const struct dt_device *dev, void *p)
{
    struct dt_fake *f = dt_fake_of(dev);
    struct dt_fake_block *b;
    int64_t bytes;

    if (!p)
        return;
    b = dt_fake_block_of(p);
    bytes = (int64_t)dt_fake_block_bytes(b);
    dt_fake_account(f, -bytes);
    account_for(dt_fake_block_owner(b), -bytes);
    pthread_mutex_lock(&f->lock);
    f->blocks--;
    pthread_mutex_unlock(&f->lock);
    dt_fake_block_retire(b);
    dt_fake_when_passed(f, drop, b);
}

/* ---- host memory that copies without a stop ---- */

static enum dt_status host_alloc(const struct dt_device *dev, size_t bytes, struct dt_error *err,
                                 void **out)
{
    struct dt_fake *f = dt_fake_of(dev);
    struct dt_fake_pinned *r = may_allocate() ? malloc(sizeof(*r)) : NULL;
    char *p = r ? aligned_alloc(64, (bytes + 64) / 64 * 64) : NULL;

    count_allocation(f);
    if (!p) {
        free(r);
        return dt_error_set(err, DT_ERR_NOMEM, "out of memory: %zu bytes for a copy", bytes);
    }
    pthread_mutex_lock(&f->lock);
    *r = (struct dt_fake_pinned){p, bytes, f->pinned};
    f->pinned = r;
    pthread_mutex_unlock(&f->lock);
    *out = p;
    return DT_OK;
}

static void host_free(const struct dt_device *dev, void *p)
{
    struct dt_fake *f = dt_fake_of(dev);
    struct dt_fake_pinned **at, *gone;

    if (!p)
        return;
    pthread_mutex_lock(&f->lock);
    for (at = &f->pinned; *at && (*at)->p != p; at = &(*at)->next)
        ;
    gone = *at;
    if (gone)
        *at = gone->next;
    pthread_mutex_unlock(&f->lock);
    if (!gone)
        dt_fake_stop("host memory at %p is freed that was not allocated here", p);
    free(gone);
    free(p);
}

static bool is_pinned(struct dt_fake *f, const char *p, size_t bytes)
{
    const struct dt_fake_pinned *r;

    pthread_mutex_lock(&f->lock);
    for (r = f->pinned; r && (p < r->p || p + bytes > r->p + r->bytes); r = r->next)
        ;
    pthread_mutex_unlock(&f->lock);
    return r != NULL;
}

/* ---- copies ---- */

const char *const dt_fake_copy_names[] = {
    [DT_COPY_TO_DEVICE] = "copy to the device",
    [DT_COPY_TO_HOST] = "copy to the host",
    [DT_COPY_ON_DEVICE] = "copy on the device",
};

struct copy {
    void *dst;
    const void *src;
    size_t bytes;
    enum dt_device_copy dir;
};

static void run_copy(struct dt_device_queue *cpu, const struct dt_device *dev, void *arg)
{
    const struct copy *c = arg;

    dev->copy(cpu, c->dst, c->src, c->bytes, c->dir);
}

static const void *host_side(struct dt_fake *f, const void *p, size_t bytes)
{
    if (dt_fake_is_device(p))
        dt_fake_stop("a copy takes %p for host memory", p);
    if (!is_pinned(f, p, bytes))
        dt_fake_log(f, DT_FAKE_PAGEABLE, dt_clock_ns());
    return p;
}

static void queue_copy(struct dt_device_queue *q, void *dst, const void *src, size_t bytes,
                       enum dt_device_copy dir)
{
    void *(*alias)(const void *p, const char *what) =
        dir == DT_COPY_ON_DEVICE ? dt_fake_alias_kept : dt_fake_alias;
    struct dt_fake *f = dt_fake_of_queue(q);
    struct copy *c;

    if (bytes == 0)
        return;
    c = dt_fake_task(dt_fake_copy_names[dir], run_copy, sizeof(*c));
    c->dst =
        dir == DT_COPY_TO_HOST ? (void *)(uintptr_t)host_side(f, dst, bytes) : alias(dst, "copy");
    c->src = dir == DT_COPY_TO_DEVICE ? host_side(f, src, bytes) : alias(src, "copy");
    c->bytes = bytes;
    c->dir = dir;
    dt_fake_submit(q, c);
}

struct zero {
    void *p;
    size_t bytes;
};

static void run_zero(struct dt_device_queue *cpu, const struct dt_device *dev, void *arg)
{
    const struct zero *z = arg;

    dev->zero(cpu, z->p, z->bytes);
}

static void queue_zero(struct dt_device_queue *q, void *p, size_t bytes)
{
    struct zero *z;

    if (bytes == 0)
        return;
    z = dt_fake_task("zero", run_zero, sizeof(*z));
    *z = (struct zero){dt_fake_alias(p, "zero"), bytes};
    dt_fake_submit(q, z);
}

/* ---- weights ---- */

static enum dt_status weight_new(const struct dt_device *dev,
                                 const struct dt_device_weight_shape *shape, const float *master,
                                 const void *rounded, struct dt_error *err,
                                 struct dt_device_weight **out)
{
    struct dt_fake *f = dt_fake_of(dev);
    struct dt_device_weight *w = malloc(sizeof(*w));
    enum dt_status st;

    if (!w)
        return dt_error_nomem(err, "a weight");
    w->f = f;
    st = f->cpu->weight_new(f->cpu, shape, dt_fake_alias(master, "weight_new"),
                            dt_fake_alias(rounded, "weight_new"), err, &w->cpu);
    if (st != DT_OK) {
        free(w);
        return st;
    }
    *out = w;
    return DT_OK;
}

static void drop_weight(struct dt_fake *f, void *arg)
{
    struct dt_device_weight *w = arg;

    f->cpu->weight_free(w->cpu);
    free(w);
}

static void weight_free(struct dt_device_weight *w)
{
    if (w)
        dt_fake_when_passed(w->f, drop_weight, w);
}

static void run_changed(struct dt_device_queue *cpu, const struct dt_device *dev, void *arg)
{
    dev->weight_changed(cpu, *(struct dt_device_weight **)arg);
}

static void weight_changed(struct dt_device_queue *q, struct dt_device_weight *w)
{
    struct dt_device_weight **of = dt_fake_task("weight_changed", run_changed, sizeof(*of));

    *of = w->cpu;
    dt_fake_submit(q, of);
}

/* ---- opening ---- */

static uint64_t setting(const char *name, uint64_t otherwise)
{
    const char *s = getenv(name);

    return s && *s ? strtoull(s, NULL, 10) : otherwise;
}

static void read_settings(struct dt_fake_settings *s)
{
    const char *fault = getenv("DISTTRAIN_FAKE_FAULT");

    s->sync = setting("DISTTRAIN_FAKE_SYNC", 0) != 0;
    s->seed = setting("DISTTRAIN_FAKE_SEED", 1);
    s->share = setting("DISTTRAIN_FAKE_SHARE", 512);
    s->share = s->share > 0 ? s->share : 1;
    s->delay_us = setting("DISTTRAIN_FAKE_DELAY_US", 0);
    s->fault_wait = fault && strcmp(fault, "wait") == 0;
    s->fault_free = fault && strcmp(fault, "free") == 0;
    s->fault_done = fault && strcmp(fault, "done") == 0;
    if (fault && *fault && !s->fault_wait && !s->fault_free && !s->fault_done)
        dt_fake_stop("DISTTRAIN_FAKE_FAULT is wait, free or done, not %s", fault);
}

static void fake_close(struct dt_device *dev)
{
    struct dt_fake *f;

    if (!dev)
        return;
    f = dt_fake_of(dev);
    if (f->queues || f->blocks > 0 || f->mapped > 0)
        dt_fake_stop("closed with %s, %d blocks of memory and %d of others",
                     f->queues ? "a queue" : "no queue", f->blocks, f->mapped);
    if (!f->left && dt_fake_pieces_mapped())
        dt_fake_stop("closed while other processes have its memory mapped");
    for (struct dt_fake_pinned *r = f->pinned, *next; r;
         r = next) { /* left to others, on purpose */
        next = r->next;
        free(r);
    }
    f->cpu->close(f->cpu);
    pthread_mutex_destroy(&f->lock);
    free(f->waits);
    free(f->spans);
    free(f);
}

enum dt_status dt_fake_device_open(const struct dt_device_options *opt, struct dt_error *err,
                                   struct dt_device **out)
{
    struct dt_fake *f = calloc(1, sizeof(*f));
    enum dt_status st = f ? dt_device_open_cpu(opt, err, &f->cpu) : dt_error_nomem(err, "a device");

    if (st != DT_OK) {
        free(f);
        return st;
    }
    read_settings(&f->set);
    pthread_mutex_init(&f->lock, NULL);
    dt_fake_kernels(&f->k);
    f->dev = (struct dt_device){
        .abi = DT_DEVICE_ABI,
        .info = f->cpu->info,
        .k = &f->k,
        .impl = f,
        .close = fake_close,
        .alloc = dev_alloc,
        .free = dev_free,
        .host_alloc = host_alloc,
        .host_free = host_free,
        .memory_used = memory_used,
        .memory_trim = memory_trim,
        .settle = settle,
        .memory_given = memory_given,
        .memory_for = memory_for,
        .copy = queue_copy,
        .zero = queue_zero,
        .weight_new = weight_new,
        .weight_free = weight_free,
        .weight_changed = weight_changed,
    };
    dt_fake_queue_entries(&f->dev);
    dt_fake_event_entries(&f->dev);
    dt_fake_ipc_entries(&f->dev);
    snprintf(f->dev.info.name, sizeof(f->dev.info.name), "fake");
    f->dev.info.host_memory = false;
    f->dev.info.packs = false;
    f->dev.info.gates = !f->set.sync;
    *out = &f->dev;
    return DT_OK;
}

enum dt_status dt_test_device_open(const struct dt_device_options *opt, struct dt_error *err,
                                   struct dt_device **out)
{
    struct dt_device_choice other = {.name = getenv("DISTTRAIN_TEST_DEVICE")};

    if (setting("DISTTRAIN_FAKE_DEVICE", 0))
        return dt_fake_device_open(opt, err, out);
    return other.name ? dt_device_open(&other, opt, err, out) : dt_device_open_cpu(opt, err, out);
}

bool dt_test_has_bf16(void)
{
    struct dt_device_options o = {.threads = 1};
    struct dt_device *dev;
    struct dt_error err;
    bool has;

    if (dt_test_device_open(&o, &err, &dev) != DT_OK) {
        fprintf(stderr, "no device: %s\n", err.message);
        abort(); /* "no" would leave tests out in silence */
    }
    has = dev->info.bf16;
    dev->close(dev);
    return has;
}

void dt_fake_count(struct dt_fake *f, const char *what)
{
    int k = 0;

    while (k < f->n_counts && strcmp(f->counts[k].what, what) != 0)
        k++;
    if (k == f->n_counts) {
        if (k == DT_FAKE_COUNTS)
            dt_fake_stop("more than %d kinds of tasks", DT_FAKE_COUNTS);
        f->counts[f->n_counts++] = (struct dt_fake_count){what, 0};
    }
    f->counts[k].n++;
}

int dt_fake_counts(const struct dt_device *dev, struct dt_fake_count out[DT_FAKE_COUNTS])
{
    struct dt_fake *f = dt_fake_of(dev);
    int n;

    pthread_mutex_lock(&f->lock);
    n = f->n_counts;
    memcpy(out, f->counts, (size_t)n * sizeof(*out));
    pthread_mutex_unlock(&f->lock);
    return n;
}

uint64_t dt_fake_tasks(const struct dt_device *dev)
{
    struct dt_fake_count counts[DT_FAKE_COUNTS];
    uint64_t sum = 0;

    for (int k = 0, n = dt_fake_counts(dev, counts); k < n; k++)
        sum += counts[k].n;
    return sum;
}

uint64_t dt_fake_allocations(const struct dt_device *dev)
{
    struct dt_fake *f = dt_fake_of(dev);
    uint64_t n;

    pthread_mutex_lock(&f->lock);
    n = f->allocations;
    pthread_mutex_unlock(&f->lock);
    return n;
}
