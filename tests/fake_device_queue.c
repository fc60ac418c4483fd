/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Queues of the fake device: a thread each, which takes its time. */
#include "fake_device_impl.h"

#include "base/clock.h"

#include <execinfo.h>
#include <stdatomic.h>
#include <dlfcn.h>
#include <stdio.h>
#include <time.h>

const char *const dt_fake_wait_names[] = {"queue_sync", "event_sync", "a copy of pageable memory"};

struct task {
    struct task *next;
    const char *what; /* NULL: the device's own, never delayed */
    dt_fake_task_fn *fn;
    max_align_t arg[];
};

struct dt_device_queue { /* of the fake device */
    struct dt_fake *f;
    struct dt_device_queue *cpu;
    uint64_t number;
    pthread_t thread;
    pthread_mutex_t lock; /* of all below */
    pthread_cond_t work, progress;
    struct task *first, **last;
    uint64_t put, done;
    enum dt_status status; /* as far as it has got */
    bool stop;
    struct dt_device_queue *next; /* of the device */
};

struct dt_fake *dt_fake_of_queue(const struct dt_device_queue *q)
{
    return q->f;
}

/* ---- tasks ---- */

void *dt_fake_task(const char *what, dt_fake_task_fn *fn, size_t arg_bytes)
{
    struct task *t = calloc(1, sizeof(*t) + arg_bytes);

    if (!t)
        dt_fake_stop("out of memory for a task");
    t->what = what;
    t->fn = fn;
    return t->arg;
}

static uint64_t mix(uint64_t x)
{
    x = (x ^ (x >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    x = (x ^ (x >> 27)) * UINT64_C(0x94d049bb133111eb);
    return x ^ (x >> 31);
}

/* By queue and number of the task: the same whatever the time. */
static void delay(const struct dt_device_queue *q, uint64_t number)
{
    const struct dt_fake_settings *s = &q->f->set;
    uint64_t draw = mix(mix(s->seed + q->number * UINT64_C(0x9e3779b97f4a7c15)) + number);
    struct timespec t;

    if (s->delay_us == 0 || draw % s->share != 0)
        return;
    draw = mix(draw) % (s->delay_us * 1000);
    t = (struct timespec){.tv_sec = (time_t)(draw / 1000000000),
                          .tv_nsec = (long)(draw % 1000000000)};
    nanosleep(&t, NULL);
}

static void run_task(struct dt_device_queue *q, struct task *t)
{
    dt_fake_doing(t->what);
    t->fn(q->cpu, q->f->cpu, t->arg);
    dt_fake_doing(NULL);
    dt_fake_account(q->f, 0);
    free(t);
}

static void trace(struct dt_fake *f, const struct dt_fake_span *s)
{
    pthread_mutex_lock(&f->lock);
    if (f->traced && f->n_spans == f->cap_spans) {
        f->cap_spans = 2 * f->cap_spans + 1024;
        f->spans = realloc(f->spans, f->cap_spans * sizeof(*f->spans));
        if (!f->spans)
            dt_fake_stop("out of memory for the trace");
    }
    if (f->traced)
        f->spans[f->n_spans++] = *s;
    pthread_mutex_unlock(&f->lock);
}

size_t dt_fake_trace(const struct dt_device *dev, struct dt_fake_span *out, size_t max)
{
    struct dt_fake *f = dt_fake_of(dev);
    size_t n;

    pthread_mutex_lock(&f->lock);
    n = f->n_spans < max ? f->n_spans : max;
    if (n > 0)
        memcpy(out, f->spans, n * sizeof(*out));
    f->n_spans = 0;
    f->traced = true;
    pthread_mutex_unlock(&f->lock);
    return n;
}

static void *serve(void *arg)
{
    struct dt_device_queue *q = arg;

    pthread_mutex_lock(&q->lock);
    for (;;) {
        struct task *t = q->first;
        struct dt_fake_span span;
        uint64_t number = q->done;

        if (!t && q->stop)
            break;
        if (!t) {
            pthread_cond_wait(&q->work, &q->lock);
            continue;
        }
        q->first = t->next;
        if (!q->first)
            q->last = &q->first;
        pthread_mutex_unlock(&q->lock);
        span = (struct dt_fake_span){t->what, q->number, dt_clock_ns(), 0};
        if (t->what)
            delay(q, number);
        run_task(q, t);
        span.end_ns = dt_clock_ns();
        if (span.what)
            trace(q->f, &span);
        pthread_mutex_lock(&q->lock);
        q->done++;
        q->status = q->f->cpu->queue_state(q->cpu);
        pthread_cond_broadcast(&q->progress);
    }
    pthread_mutex_unlock(&q->lock);
    return NULL;
}

void dt_fake_submit(struct dt_device_queue *q, void *arg)
{
    struct task *t = (struct task *)(void *)((char *)arg - offsetof(struct task, arg));

    pthread_mutex_lock(&q->f->lock);
    if (t->what)
        dt_fake_count(q->f, t->what);
    pthread_mutex_unlock(&q->f->lock);
    if (q->f->set.sync) {
        run_task(q, t);
        q->status = q->f->cpu->queue_state(q->cpu);
        return;
    }
    pthread_mutex_lock(&q->lock);
    *q->last = t;
    q->last = &t->next;
    q->put++;
    pthread_cond_signal(&q->work);
    pthread_mutex_unlock(&q->lock);
}

void dt_fake_drain(struct dt_device_queue *q)
{
    pthread_mutex_lock(&q->lock);
    for (uint64_t put = q->put; q->done < put;)
        pthread_cond_wait(&q->progress, &q->lock);
    pthread_mutex_unlock(&q->lock);
}

void dt_fake_here(struct dt_device_queue *q, void *arg)
{
    if (!q->f->set.sync)
        dt_fake_drain(q);
    run_task(q, (struct task *)(void *)((char *)arg - offsetof(struct task, arg)));
}

/* ---- when all have passed ---- */

struct passing {
    struct dt_fake *f;
    void (*fn)(struct dt_fake *f, void *arg);
    void *arg;
    atomic_int left;
};

static void one_less(struct passing *p)
{
    if (atomic_fetch_sub(&p->left, 1) > 1)
        return;
    p->fn(p->f, p->arg);
    free(p);
}

static void run_passing(struct dt_device_queue *cpu, const struct dt_device *dev, void *arg)
{
    (void)cpu;
    (void)dev;
    one_less(*(struct passing **)arg);
}

void dt_fake_when_passed(struct dt_fake *f, void (*fn)(struct dt_fake *f, void *arg), void *arg)
{
    struct passing *p;

    if (f->set.sync || f->set.fault_free) {
        fn(f, arg);
        return;
    }
    p = calloc(1, sizeof(*p));
    if (!p)
        dt_fake_stop("out of memory for a task");
    p->f = f;
    p->fn = fn;
    p->arg = arg;
    p->left = 1; /* this function */
    pthread_mutex_lock(&f->lock);
    for (struct dt_device_queue *q = f->queues; q; q = q->next) {
        struct passing **of = dt_fake_task(NULL, run_passing, sizeof(p));
        struct task *t = (struct task *)(void *)((char *)of - offsetof(struct task, arg));

        *of = p;
        pthread_mutex_lock(&q->lock);
        if (q->done == q->put) {
            free(t);
        } else {
            atomic_fetch_add(&p->left, 1);
            *q->last = t;
            q->last = &t->next;
            q->put++;
            pthread_cond_signal(&q->work);
        }
        pthread_mutex_unlock(&q->lock);
    }
    pthread_mutex_unlock(&f->lock);
    one_less(p);
}

/* ---- the log ---- */

void dt_fake_log(struct dt_fake *f, enum dt_fake_wait_kind kind, uint64_t begin_ns)
{
    struct dt_fake_wait w = {.kind = kind, .begin_ns = begin_ns, .end_ns = dt_clock_ns()};
    void *frame[10] = {0};
    int n = backtrace(frame, 10);

    for (int i = 2; i < n; i++) /* less this and the entry of the table */
        w.caller[i - 2] = frame[i];
    pthread_mutex_lock(&f->lock);
    if (f->n_waits == f->cap_waits) {
        struct dt_fake_wait *grown = realloc(f->waits, (2 * f->cap_waits + 64) * sizeof(*grown));

        if (!grown)
            dt_fake_stop("out of memory for the log");
        f->waits = grown;
        f->cap_waits = 2 * f->cap_waits + 64;
    }
    f->waits[f->n_waits++] = w;
    pthread_mutex_unlock(&f->lock);
}

size_t dt_fake_waits(const struct dt_device *dev, struct dt_fake_wait *out, size_t max)
{
    struct dt_fake *f = dt_fake_of(dev);
    size_t n;

    pthread_mutex_lock(&f->lock);
    n = f->n_waits;
    for (size_t i = 0; i < n && i < max; i++)
        out[i] = f->waits[i];
    f->n_waits = 0;
    pthread_mutex_unlock(&f->lock);
    return n;
}

/* ---- queues ---- */

static void queue_free(struct dt_device_queue *q)
{
    struct dt_device_queue **at;

    if (!q)
        return;
    pthread_mutex_lock(&q->f->lock);
    for (at = &q->f->queues; *at != q; at = &(*at)->next)
        ;
    *at = q->next;
    pthread_mutex_unlock(&q->f->lock);
    if (!q->f->set.sync) {
        pthread_mutex_lock(&q->lock);
        q->stop = true;
        pthread_cond_signal(&q->work);
        pthread_mutex_unlock(&q->lock);
        pthread_join(q->thread, NULL);
    }
    q->f->cpu->queue_free(q->cpu);
    pthread_mutex_destroy(&q->lock);
    pthread_cond_destroy(&q->work);
    pthread_cond_destroy(&q->progress);
    free(q);
}

static enum dt_status queue_new(const struct dt_device *dev, bool high_priority,
                                struct dt_error *err, struct dt_device_queue **out)
{
    struct dt_fake *f = dt_fake_of(dev);
    struct dt_device_queue *q = calloc(1, sizeof(*q));
    enum dt_status st =
        q ? f->cpu->queue_new(f->cpu, high_priority, err, &q->cpu) : dt_error_nomem(err, "a queue");

    if (st != DT_OK) {
        free(q);
        return st;
    }
    q->f = f;
    q->last = &q->first;
    pthread_mutex_init(&q->lock, NULL);
    pthread_cond_init(&q->work, NULL);
    pthread_cond_init(&q->progress, NULL);
    pthread_mutex_lock(&f->lock);
    q->number = f->n_queues++;
    q->next = f->queues;
    f->queues = q;
    pthread_mutex_unlock(&f->lock);
    if (!f->set.sync && pthread_create(&q->thread, NULL, serve, q) != 0)
        dt_fake_stop("a queue's thread cannot be started");
    *out = q;
    return DT_OK;
}

static bool passed(struct dt_device_queue *q)
{
    bool all;

    pthread_mutex_lock(&q->lock);
    all = q->done == q->put;
    pthread_mutex_unlock(&q->lock);
    return all;
}

static enum dt_status queue_sync(struct dt_device_queue *q, struct dt_error *err)
{
    if (!passed(q)) {
        uint64_t begin = dt_clock_ns();

        dt_fake_drain(q);
        dt_fake_log(q->f, DT_FAKE_QUEUE_SYNC, begin);
    }
    pthread_mutex_lock(&q->lock);
    q->status = DT_OK;
    pthread_mutex_unlock(&q->lock);
    return q->f->cpu->queue_sync(q->cpu, err);
}

static enum dt_status queue_state(const struct dt_device_queue *q)
{
    struct dt_device_queue *w = (struct dt_device_queue *)(uintptr_t)q;
    enum dt_status st;

    pthread_mutex_lock(&w->lock);
    st = w->status;
    pthread_mutex_unlock(&w->lock);
    return st;
}

struct call {
    void (*fn)(void *);
    void *arg;
};

static void run_call(struct dt_device_queue *cpu, const struct dt_device *dev, void *arg)
{
    const struct call *c = arg;

    dev->call(cpu, c->fn, c->arg);
}

static void queue_call(struct dt_device_queue *q, void (*fn)(void *), void *arg)
{
    struct call *c = dt_fake_task("call", run_call, sizeof(*c));

    *c = (struct call){fn, arg};
    dt_fake_submit(q, c);
}

/* What tests/fake_nccl.c takes for one. */
static void *queue_stream(struct dt_device_queue *q)
{
    return q;
}

void dt_fake_queue_entries(struct dt_device *dev)
{
    dev->queue_new = queue_new;
    dev->queue_free = queue_free;
    dev->queue_sync = queue_sync;
    dev->queue_state = queue_state;
    dev->call = queue_call;
    dev->queue_stream = queue_stream;
}

void dt_fake_share(struct dt_device *dev)
{
    struct dt_fake *f = dt_fake_of(dev);

    pthread_mutex_lock(&f->lock);
    f->shared = true;
    pthread_mutex_unlock(&f->lock);
}

/* A module for tests has a function of its own for this, which waits for its queues. */
static void *dt_fake_of_module(const void *p)
{
    static void *(*host)(const void *);
    static bool asked;
    char path[4096];
    void *so, *symbol;

    if (!asked && getenv("DISTTRAIN_TEST_DEVICE")) {
        snprintf(path, sizeof(path), "%s/disttrain-%s.so", getenv("DISTTRAIN_MODULES"),
                 getenv("DISTTRAIN_TEST_DEVICE"));
        so = dlopen(path, RTLD_NOW | RTLD_NOLOAD);
        symbol = so ? dlsym(so, "cucpu_host") : NULL;
        memcpy(&host, &symbol, sizeof(host)); /* POSIX allows it, C has no cast */
        asked = so != NULL;
    }
    return host ? host(p) : (void *)(uintptr_t)p;
}

void *dt_test_host(const void *p)
{
    struct dt_fake *f = dt_fake_is_device(p) ? dt_fake_of_block(p) : NULL;

    if (!f) /* a module's; or memory of a library, which no queue is known for */
        return dt_fake_is_device(p) ? dt_fake_alias(p, "a test") : dt_fake_of_module(p);
    pthread_mutex_lock(&f->lock);
    for (struct dt_device_queue *q = f->queues; q && !f->set.sync && !f->shared; q = q->next) {
        pthread_mutex_unlock(&f->lock); /* tasks want it; no queue goes while a test looks */
        dt_fake_drain(q);
        pthread_mutex_lock(&f->lock);
    }
    pthread_mutex_unlock(&f->lock);
    return dt_fake_alias(p, "a test");
}
