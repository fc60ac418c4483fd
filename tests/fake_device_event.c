/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Events and gates of the fake device. */
#include "fake_device_impl.h"

#include "base/clock.h"

#include <time.h>

struct dt_device_event { /* of the fake device */
    struct dt_fake *f;
    pthread_mutex_t lock; /* of all below */
    pthread_cond_t progress;
    struct dt_fake_slot own,
        *slot; /* its counts; those of processes are in memory that they share */
    uint64_t ns;
    bool foreign; /* another process has made it */
    int users;    /* its owner, and tasks */
};

struct dt_device_gate { /* of the fake device */
    struct dt_fake *f;
    pthread_mutex_t lock; /* of all below */
    pthread_cond_t progress;
    uint64_t n;
    int users; /* its owner, and tasks */
};

/* ---- events ---- */

static enum dt_status event_new(const struct dt_device *dev, struct dt_error *err,
                                struct dt_device_event **out)
{
    struct dt_device_event *e = calloc(1, sizeof(*e));

    if (!e)
        return dt_error_nomem(err, "an event");
    e->f = dt_fake_of(dev);
    e->users = 1;
    e->own.alive = true;
    e->slot = &e->own;
    pthread_mutex_init(&e->lock, NULL);
    pthread_cond_init(&e->progress, NULL);
    *out = e;
    return DT_OK;
}

void dt_fake_event_share(struct dt_device_event *e, struct dt_fake_slot *slot, bool foreign)
{
    e->slot = slot;
    e->foreign = foreign;
}

/* Has its record of that number been passed? */
static bool is_done(const struct dt_device_event *e, uint64_t number)
{
    if (!atomic_load(&e->slot->alive))
        dt_fake_stop("an event is asked about that its process has freed");
    return atomic_load(&e->slot->done) >= number;
}

/* Locked.  Nobody tells of what another process does. */
static void wait_for(struct dt_device_event *e, uint64_t number)
{
    const struct timespec pause = {0, 50000};

    while (!is_done(e, number)) {
        if (!e->foreign) {
            pthread_cond_wait(&e->progress, &e->lock);
            continue;
        }
        pthread_mutex_unlock(&e->lock);
        nanosleep(&pause, NULL);
        pthread_mutex_lock(&e->lock);
    }
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
    if (!e->foreign && e->slot != &e->own)
        atomic_store(&e->slot->alive, false);
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
    if (record)
        atomic_fetch_add(&e->slot->recorded, 1);
    *p = (struct point){e, atomic_load(&e->slot->recorded)};
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
    if (p->number > atomic_load(&p->e->slot->done))
        atomic_store(&p->e->slot->done, p->number);
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
    if (!p->e->f->set.fault_wait)
        wait_for(p->e, p->number);
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
    done = is_done(e, atomic_load(&e->slot->recorded)) || e->f->set.fault_done;
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
    wait_for(e, atomic_load(&e->slot->recorded));
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
    if (dt_fake_of_queue(q)->set.sync)
        dt_fake_stop("a gate needs queues that are threads");
    gate_task(q, g, "gate_wait", run_gate_wait, n);
}

void dt_fake_event_entries(struct dt_device *dev)
{
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
