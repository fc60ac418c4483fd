/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Queues and events of the fake device: a thread per queue, which takes its time. */
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

struct dt_device_event { /* of the fake device */
    struct dt_fake *f;
    pthread_mutex_t lock; /* of all below */
    pthread_cond_t progress;
    uint64_t recorded, done, ns;
    int users; /* its owner, and tasks */
};

struct dt_device_gate { /* of the fake device */
    struct dt_fake *f;
    pthread_mutex_t lock; /* of all below */
    pthread_cond_t progress;
    uint64_t n;
    int users; /* its owner, and tasks */
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
    struct dt_device_memory_owner *before = q->f->cpu->memory_for(q->f->cpu, &q->f->packed);

    dt_fake_doing(t->what);
    t->fn(q->cpu, q->f->cpu, t->arg);
    dt_fake_doing(NULL);
    q->f->cpu->memory_for(q->f->cpu, before);
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

/* ---- events ---- */

static enum dt_status event_new(const struct dt_device *dev, struct dt_error *err,
                                struct dt_device_event **out)
{
    struct dt_device_event *e = calloc(1, sizeof(*e));

    if (!e)
        return dt_error_nomem(err, "an event");
    e->f = dt_fake_of(dev);
    e->users = 1;
    pthread_mutex_init(&e->lock, NULL);
    pthread_cond_init(&e->progress, NULL);
    *out = e;
    return DT_OK;
}

/* Unlocks it. */
static void event_leave(struct dt_device_event *e)
{
    bool last = --e->users == 0;

    pthread_mutex_unlock(&e->lock);
    if (!last)
        return;
    pthread_mutex_destroy(&e->lock);
    pthread_cond_destroy(&e->progress);
    free(e);
}

static void event_free(struct dt_device_event *e)
{
    if (!e)
        return;
    pthread_mutex_lock(&e->lock);
    event_leave(e);
}

struct point {
    struct dt_device_event *e;
    uint64_t number; /* of the record */
};

static void *point_task(struct dt_device_event *e, const char *what, dt_fake_task_fn *fn,
                        bool record)
{
    struct point *p = dt_fake_task(what, fn, sizeof(*p));

    pthread_mutex_lock(&e->lock);
    e->users++;
    e->recorded += record;
    *p = (struct point){e, e->recorded};
    pthread_mutex_unlock(&e->lock);
    return p;
}

static void run_record(struct dt_device_queue *cpu, const struct dt_device *dev, void *arg)
{
    struct point *p = arg;

    (void)cpu;
    (void)dev;
    pthread_mutex_lock(&p->e->lock);
    p->e->ns = dt_clock_ns();
    p->e->done = p->number > p->e->done ? p->number : p->e->done;
    pthread_cond_broadcast(&p->e->progress);
    event_leave(p->e);
}

static void event_record(struct dt_device_queue *q, struct dt_device_event *e)
{
    dt_fake_submit(q, point_task(e, "event_record", run_record, true));
}

static void run_wait(struct dt_device_queue *cpu, const struct dt_device *dev, void *arg)
{
    struct point *p = arg;

    (void)cpu;
    (void)dev;
    pthread_mutex_lock(&p->e->lock);
    while (p->e->done < p->number && !p->e->f->set.fault_wait)
        pthread_cond_wait(&p->e->progress, &p->e->lock);
    event_leave(p->e);
}

static void event_wait(struct dt_device_queue *q, struct dt_device_event *e)
{
    dt_fake_submit(q, point_task(e, "event_wait", run_wait, false));
}

static bool event_done(struct dt_device_event *e)
{
    bool done;

    pthread_mutex_lock(&e->lock);
    done = e->done == e->recorded || e->f->set.fault_done;
    pthread_mutex_unlock(&e->lock);
    return done;
}

static enum dt_status event_sync(struct dt_device_event *e, struct dt_error *err)
{
    uint64_t begin = dt_clock_ns();

    (void)err;
    if (event_done(e))
        return DT_OK;
    pthread_mutex_lock(&e->lock);
    for (uint64_t number = e->recorded; e->done < number;)
        pthread_cond_wait(&e->progress, &e->lock);
    pthread_mutex_unlock(&e->lock);
    dt_fake_log(e->f, DT_FAKE_EVENT_SYNC, begin);
    return DT_OK;
}

static uint64_t event_ns(struct dt_device_event *e)
{
    uint64_t ns;

    pthread_mutex_lock(&e->lock);
    ns = e->ns;
    pthread_mutex_unlock(&e->lock);
    return ns;
}

/* ---- gates ---- */

static enum dt_status gate_new(const struct dt_device *dev, struct dt_error *err,
                               struct dt_device_gate **out)
{
    struct dt_device_gate *g = calloc(1, sizeof(*g));

    if (!g)
        return dt_error_nomem(err, "a gate");
    g->f = dt_fake_of(dev);
    g->users = 1;
    pthread_mutex_init(&g->lock, NULL);
    pthread_cond_init(&g->progress, NULL);
    *out = g;
    return DT_OK;
}

/* Unlocks it. */
static void gate_leave(struct dt_device_gate *g)
{
    bool last = --g->users == 0;

    pthread_mutex_unlock(&g->lock);
    if (!last)
        return;
    pthread_mutex_destroy(&g->lock);
    pthread_cond_destroy(&g->progress);
    free(g);
}

static void gate_free(struct dt_device_gate *g)
{
    if (!g)
        return;
    pthread_mutex_lock(&g->lock);
    gate_leave(g);
}

struct at_gate {
    struct dt_device_gate *g;
    uint64_t n;
};

static void gate_task(struct dt_device_queue *q, struct dt_device_gate *g, const char *what,
                      dt_fake_task_fn *fn, uint64_t n)
{
    struct at_gate *a = dt_fake_task(what, fn, sizeof(*a));

    pthread_mutex_lock(&g->lock);
    g->users++;
    pthread_mutex_unlock(&g->lock);
    *a = (struct at_gate){g, n};
    dt_fake_submit(q, a);
}

static void run_raise(struct dt_device_queue *cpu, const struct dt_device *dev, void *arg)
{
    struct at_gate *a = arg;

    (void)cpu;
    (void)dev;
    pthread_mutex_lock(&a->g->lock);
    a->g->n = a->n > a->g->n ? a->n : a->g->n;
    pthread_cond_broadcast(&a->g->progress);
    gate_leave(a->g);
}

static void gate_raise(struct dt_device_queue *q, struct dt_device_gate *g, uint64_t n)
{
    gate_task(q, g, "gate_raise", run_raise, n);
}

static void run_gate_wait(struct dt_device_queue *cpu, const struct dt_device *dev, void *arg)
{
    struct at_gate *a = arg;

    (void)cpu;
    (void)dev;
    pthread_mutex_lock(&a->g->lock);
    while (a->g->n < a->n && !a->g->f->set.fault_wait)
        pthread_cond_wait(&a->g->progress, &a->g->lock);
    gate_leave(a->g);
}

static void gate_wait(struct dt_device_queue *q, struct dt_device_gate *g, uint64_t n)
{
    if (q->f->set.sync)
        dt_fake_stop("a gate needs queues that are threads");
    gate_task(q, g, "gate_wait", run_gate_wait, n);
}

void dt_fake_queue_entries(struct dt_device *dev)
{
    dev->queue_new = queue_new;
    dev->queue_free = queue_free;
    dev->queue_sync = queue_sync;
    dev->queue_state = queue_state;
    dev->call = queue_call;
    dev->queue_stream = queue_stream;
    dev->event_new = event_new;
    dev->event_free = event_free;
    dev->event_record = event_record;
    dev->event_wait = event_wait;
    dev->event_sync = event_sync;
    dev->event_done = event_done;
    dev->event_ns = event_ns;
    dev->gate_new = gate_new;
    dev->gate_free = gate_free;
    dev->gate_raise = gate_raise;
    dev->gate_wait = gate_wait;
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
