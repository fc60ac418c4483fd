/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Ranks that are threads of one process.  A message is copied once, straight from the sender's
 * memory to the receiver's, by whichever side came second; a send is over when it is received, so
 * that a program which hangs with messages of any size hangs here with all.
 *
 * In the memory of devices a rank has a queue, on which its copies and sums follow one another.  A transfer
 * has an event: at first what was on its rank's queue when it was posted, then, on the queue of the side
 * that came second, the copy.  Where queues may wait for what has not been issued yet, transfers are put on the
 * callers' queues instead (transport_meet.c). */
#include "comm/transport_impl.h"
#include "comm/transport_meet.h"

#include "base/mem.h"
#include "kernels/kernels.h"

#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { UNDER_WAY, COPYING, DONE, OTHER_SIZE };

struct dt_transport_xfer {
    struct dt_transport_xfer *next; /* in a queue of the receiving rank */
    uint64_t key;
    char *buf;
    size_t bytes, other_bytes;
    int from, to;
    bool send;
    struct mark *mark; /* of device memory */
    atomic_int state;
    struct dt_transport_meet_ticket ticket; /* on queues; nothing else of this is used then */
};

/* An event, one of its rank's. */
struct mark {
    struct dt_device_event *event;
    struct mark *next, *all;
};

struct queue {
    struct dt_transport_xfer *first, **last;
};

/* Messages to one rank that have found no partner yet. */
struct mailbox {
    pthread_mutex_t lock;
    struct queue sends, recvs;
};

struct house { /* what the ranks share; the last to close takes it down */
    atomic_int open;
    int n;
    struct mailbox *box;
    struct dt_transport_meet *meet; /* on queues */
};

struct rank {
    struct dt_transport_base base; /* first: see dt_transport_base */
    struct dt_transport t;
    struct house *house;
    /* of device memory; dev NULL: of host memory */
    const struct dt_device *dev;
    pthread_mutex_t lock; /* of all below */
    struct dt_device_queue *q;
    struct mark *free, *all;
};

static struct rank *rank_of(const struct dt_transport *t)
{
    return t->impl;
}

static struct house *house_of(struct dt_transport *t)
{
    return rank_of(t)->house;
}

/* ---- marks.  Locked ---- */

static enum dt_status mark_take(struct rank *r, struct dt_error *err, struct mark **out)
{
    struct mark *m = r->free;
    enum dt_status st;

    if (m) {
        r->free = m->next;
        *out = m;
        return DT_OK;
    }
    m = dt_calloc(1, sizeof(*m));
    if (!m)
        return dt_error_nomem(err, "an event");
    st = r->dev->event_new(r->dev, err, &m->event);
    if (st != DT_OK) {
        dt_free(m);
        return st;
    }
    m->all = r->all;
    r->all = m;
    *out = m;
    return DT_OK;
}

static void mark_put(struct rank *r, struct mark *m)
{
    m->next = r->free;
    r->free = m;
}

/* What was on the rank's queue has passed; *m is given back then. */
static enum dt_status mark_done(struct rank *r, struct mark **m, bool *done, struct dt_error *err)
{
    enum dt_status st = DT_OK;

    pthread_mutex_lock(&r->lock);
    *done = r->dev->event_done((*m)->event);
    if (*done) {
        mark_put(r, *m);
        *m = NULL;
        if (r->dev->queue_state(r->q) != DT_OK)
            st = r->dev->queue_sync(r->q, err);
    }
    pthread_mutex_unlock(&r->lock);
    return st;
}

/* ---- messages ---- */

/* The first of a queue that fits is taken out; NULL when there is none. */
static struct dt_transport_xfer *take(struct queue *q, int from, uint64_t key)
{
    for (struct dt_transport_xfer **at = &q->first; *at; at = &(*at)->next) {
        struct dt_transport_xfer *x = *at;

        if (x->from == from && x->key == key) {
            *at = x->next;
            if (q->last == &x->next)
                q->last = at;
            return x;
        }
    }
    return NULL;
}

static void put(struct queue *q, struct dt_transport_xfer *x)
{
    x->next = NULL;
    *q->last = x;
    q->last = &x->next;
}

static enum dt_status mark_now(struct rank *r, struct dt_error *err, struct mark **out)
{
    enum dt_status st;

    pthread_mutex_lock(&r->lock);
    st = mark_take(r, err, out);
    if (st == DT_OK)
        r->dev->event_record(r->q, (*out)->event);
    pthread_mutex_unlock(&r->lock);
    return st;
}

/* Both have been posted, x by this rank. */
static void move(struct rank *r, struct dt_transport_xfer *x, struct dt_transport_xfer *y)
{
    void *to = x->send ? y->buf : x->buf;
    const void *from = x->send ? x->buf : y->buf;

    if (!r->dev) {
        if (x->bytes > 0) /* an empty message may have no buffer */
            memcpy(to, from, x->bytes);
        return;
    }
    pthread_mutex_lock(&r->lock);
    r->dev->event_wait(r->q, y->mark->event);
    r->dev->copy(r->q, to, from, x->bytes, DT_COPY_ON_DEVICE);
    r->dev->event_record(r->q, x->mark->event);
    r->dev->event_record(r->q, y->mark->event);
    pthread_mutex_unlock(&r->lock);
}

static enum dt_status post(struct dt_transport *t, struct dt_transport_xfer *x,
                           struct dt_error *err)
{
    struct mailbox *box = &house_of(t)->box[x->to];
    struct dt_transport_xfer *y;
    bool fits;

    if (rank_of(t)->dev)
        DT_TRY(mark_now(rank_of(t), err, &x->mark));
    atomic_init(&x->state, UNDER_WAY);
    pthread_mutex_lock(&box->lock);
    y = take(x->send ? &box->recvs : &box->sends, x->from, x->key);
    if (y)
        atomic_store_explicit(&y->state, COPYING, memory_order_relaxed);
    else
        put(x->send ? &box->sends : &box->recvs, x);
    pthread_mutex_unlock(&box->lock);
    if (!y)
        return DT_OK;
    fits = x->bytes == y->bytes;
    if (fits && x->bytes)
        move(rank_of(t), x, y);
    x->other_bytes = y->bytes;
    y->other_bytes = x->bytes;
    atomic_store_explicit(&x->state, fits ? DONE : OTHER_SIZE, memory_order_relaxed);
    /* the last touch of y: its owner may take it back now */
    atomic_store_explicit(&y->state, fits ? DONE : OTHER_SIZE, memory_order_release);
    return DT_OK;
}

static enum dt_status wire_send(struct dt_transport *t, struct dt_transport_xfer *x, int to,
                                uint64_t key, const void *buf, size_t bytes,
                                struct dt_device_queue *q, struct dt_error *err)
{
    (void)q;
    x->key = key;
    x->buf = (char *)(uintptr_t)buf; /* only read */
    x->bytes = bytes;
    x->from = t->rank;
    x->to = to;
    x->send = true;
    return post(t, x, err);
}

static enum dt_status wire_recv(struct dt_transport *t, struct dt_transport_xfer *x, int from,
                                uint64_t key, void *buf, size_t bytes, struct dt_device_queue *q,
                                struct dt_error *err)
{
    (void)q;
    x->key = key;
    x->buf = buf;
    x->bytes = bytes;
    x->from = from;
    x->to = t->rank;
    x->send = false;
    return post(t, x, err);
}

static enum dt_status wire_progress(struct dt_transport *t, struct dt_transport_xfer *x,
                                    struct dt_device_queue *q, bool *done, struct dt_error *err)
{
    int state = atomic_load_explicit(&x->state, memory_order_acquire);

    if (state == DONE && x->mark)
        return mark_done(rank_of(t), &x->mark, done, err);
    (void)q;
    *done = state == DONE;
    if (state == OTHER_SIZE)
        return dt_transport_size_error(err, x->from, x->to, x->key,
                                       x->send ? x->bytes : x->other_bytes,
                                       x->send ? x->other_bytes : x->bytes);
    return DT_OK;
}

static void wire_cancel(struct dt_transport *t, struct dt_transport_xfer *x)
{
    struct mailbox *box = &house_of(t)->box[x->to];
    struct queue *q = x->send ? &box->sends : &box->recvs;

    pthread_mutex_lock(&box->lock);
    for (struct dt_transport_xfer **at = &q->first; *at; at = &(*at)->next)
        if (*at == x) {
            *at = x->next;
            if (q->last == &x->next)
                q->last = at;
            atomic_store_explicit(&x->state, DONE, memory_order_relaxed);
            break;
        }
    pthread_mutex_unlock(&box->lock);
    while (atomic_load_explicit(&x->state, memory_order_acquire) == COPYING)
        sched_yield();
}

static const struct dt_transport_wire threads_wire = {
    .xfer_bytes = sizeof(struct dt_transport_xfer),
    .key_max = DT_KEY_COLL - 1,
    .send = wire_send,
    .recv = wire_recv,
    .progress = wire_progress,
    .cancel = wire_cancel,
};

/* ---- device memory ---- */

static enum dt_status follow(struct dt_transport *t, struct dt_device_queue *q,
                             struct dt_error *err)
{
    struct rank *r = rank_of(t);
    enum dt_status st;
    struct mark *m;

    if (r->dev->queue_state(q) != DT_OK)
        return r->dev->queue_sync(q, err);
    pthread_mutex_lock(&r->lock);
    st = mark_take(r, err, &m);
    if (st == DT_OK) {
        r->dev->event_record(q, m->event);
        r->dev->event_wait(r->q, m->event);
        mark_put(r, m);
    }
    pthread_mutex_unlock(&r->lock);
    return st;
}

static void sum(struct dt_transport *t, enum dt_reduce_type type, void *x,
                const void *const *others, int members, int me, size_t n, struct dt_device_queue *q)
{
    struct rank *r = rank_of(t);

    (void)q;
    pthread_mutex_lock(&r->lock);
    r->dev->k->reduce(r->q, type, (int64_t)n, members, me, x, others);
    pthread_mutex_unlock(&r->lock);
}

static enum dt_status settle(struct dt_transport *t, void **mark, bool *done, struct dt_error *err)
{
    struct mark *m = *mark;
    enum dt_status st;

    if (!m) {
        DT_TRY(mark_now(rank_of(t), err, &m));
        *mark = m;
    }
    st = mark_done(rank_of(t), &m, done, err);
    *mark = m;
    return st;
}

/* No request uses it any more that has not settled. */
static enum dt_status grow(struct dt_transport *t, char **p, size_t *cap, size_t bytes,
                           struct dt_error *err)
{
    const struct dt_device *d = rank_of(t)->dev;
    void *more;

    d->free(d, *p);
    *p = NULL;
    *cap = 0;
    DT_TRY(dt_transport_alloc(d, false, bytes, err, &more));
    *p = more;
    *cap = bytes;
    return DT_OK;
}

static void free_memory(struct dt_transport *t, char *p)
{
    rank_of(t)->dev->free(rank_of(t)->dev, p);
}

static const struct dt_transport_wire device_wire = {
    .xfer_bytes = sizeof(struct dt_transport_xfer),
    .key_max = DT_KEY_COLL - 1,
    .send = wire_send,
    .recv = wire_recv,
    .progress = wire_progress,
    .cancel = wire_cancel,
    .follow = follow,
    .sum = sum,
    .settle = settle,
    .grow = grow,
    .free = free_memory,
};

/* ---- on queues ---- */

static struct dt_transport_meet *meet_of(const struct dt_transport *t)
{
    return rank_of(t)->house->meet;
}

static enum dt_status queue_send(struct dt_transport *t, struct dt_transport_xfer *x, int to,
                                 uint64_t key, const void *buf, size_t bytes,
                                 struct dt_device_queue *q, struct dt_error *err)
{
    const struct dt_transport_meet_side s = {.key = key,
                                             .from = t->rank,
                                             .to = to,
                                             .send = true,
                                             .buf = (char *)(uintptr_t)buf, /* only read */
                                             .bytes = bytes};

    return dt_transport_meet_post(meet_of(t), &s, q, err, &x->ticket);
}

static enum dt_status queue_recv(struct dt_transport *t, struct dt_transport_xfer *x, int from,
                                 uint64_t key, void *buf, size_t bytes, struct dt_device_queue *q,
                                 struct dt_error *err)
{
    const struct dt_transport_meet_side s = {
        .key = key, .from = from, .to = t->rank, .buf = buf, .bytes = bytes};

    return dt_transport_meet_post(meet_of(t), &s, q, err, &x->ticket);
}

static enum dt_status queue_progress(struct dt_transport *t, struct dt_transport_xfer *x,
                                     struct dt_device_queue *q, bool *done, struct dt_error *err)
{
    (void)err;
    dt_transport_meet_wait(meet_of(t), &x->ticket, q);
    *done = true;
    return DT_OK;
}

static void queue_cancel(struct dt_transport *t, struct dt_transport_xfer *x)
{
    dt_transport_meet_cancel(meet_of(t), &x->ticket);
}

static enum dt_status queue_follow(struct dt_transport *t, struct dt_device_queue *q,
                                   struct dt_error *err)
{
    const struct dt_device *d = rank_of(t)->dev;

    if (d->queue_state(q) != DT_OK)
        return d->queue_sync(q, err);
    return dt_transport_meet_state(meet_of(t), t->rank, err);
}

static void queue_sum(struct dt_transport *t, enum dt_reduce_type type, void *x,
                      const void *const *others, int members, int me, size_t n,
                      struct dt_device_queue *q)
{
    rank_of(t)->dev->k->reduce(q, type, (int64_t)n, members, me, x, others);
}

static enum dt_status queue_mark(struct dt_transport *t, struct dt_device_queue *q, void **mark,
                                 struct dt_error *err)
{
    struct rank *r = rank_of(t);
    struct mark *m = *mark;
    enum dt_status st = DT_OK;

    pthread_mutex_lock(&r->lock);
    if (!m)
        st = mark_take(r, err, &m);
    if (st == DT_OK)
        r->dev->event_record(q, m->event);
    pthread_mutex_unlock(&r->lock);
    *mark = m;
    return st;
}

static bool queue_passed(struct dt_transport *t, void *mark)
{
    struct mark *m = mark;

    return !m || rank_of(t)->dev->event_done(m->event);
}

static const struct dt_transport_wire queue_wire = {
    .xfer_bytes = sizeof(struct dt_transport_xfer),
    .key_max = DT_KEY_COLL - 1,
    .send = queue_send,
    .recv = queue_recv,
    .progress = queue_progress,
    .cancel = queue_cancel,
    .follow = queue_follow,
    .sum = queue_sum,
    .grow = grow,
    .free = free_memory,
    .mark = queue_mark,
    .passed = queue_passed,
};

static void give_up(struct dt_transport *t)
{
    if (meet_of(t))
        dt_transport_meet_give_up(meet_of(t), t->rank, rank_of(t)->q);
}

static enum dt_status state(struct dt_transport *t, struct dt_error *err)
{
    return meet_of(t) ? dt_transport_meet_state(meet_of(t), t->rank, err) : DT_OK;
}

/* ---- opening and closing ---- */

static void device_close(struct rank *r)
{
    if (!r->dev)
        return;
    if (r->q)
        r->dev->queue_free(r->q);
    for (struct mark *m = r->all, *next; m; m = next) {
        next = m->all;
        r->dev->event_free(m->event);
        dt_free(m);
    }
    pthread_mutex_destroy(&r->lock);
}

static enum dt_status device_open(struct rank *r, const struct dt_device *dev, struct dt_error *err)
{
    if (pthread_mutex_init(&r->lock, NULL) != 0)
        return dt_error_nomem(err, "the lock of a transport");
    r->dev = dev;
    r->t.memory = DT_TRANSPORT_DEVICE;
    return dev->queue_new(dev, true, err, &r->q);
}

static void house_free(struct house *h)
{
    if (!h)
        return;
    dt_transport_meet_free(h->meet);
    for (int k = 0; h->box && k < h->n; k++)
        pthread_mutex_destroy(&h->box[k].lock);
    dt_free(h->box);
    dt_free(h);
}

static void close_rank(struct dt_transport *t)
{
    struct rank *r;
    struct house *h;

    if (!t)
        return;
    r = t->impl;
    h = r->house;
    give_up(t);
    if (r->dev)
        (void)r->dev->queue_sync(r->q, NULL); /* it uses what is freed next */
    dt_transport_base_free(t);
    device_close(r);
    dt_free(r);
    if (atomic_fetch_sub_explicit(&h->open, 1, memory_order_acq_rel) == 1)
        house_free(h);
}

static void abort_process(struct dt_transport *t, int exit_status)
{
    (void)t;
    _exit(exit_status);
}

static enum dt_status house_new(int n, struct dt_error *err, struct house **out)
{
    struct house *h = dt_calloc(1, sizeof(*h));

    if (h)
        h->box = dt_calloc((size_t)n, sizeof(*h->box));
    if (!h || !h->box) {
        house_free(h);
        return dt_error_nomem(err, "ranks as threads");
    }
    for (; h->n < n; h->n++) {
        struct mailbox *box = &h->box[h->n];

        box->sends.last = &box->sends.first;
        box->recvs.last = &box->recvs.first;
        if (pthread_mutex_init(&box->lock, NULL) != 0) {
            house_free(h);
            return dt_error_nomem(err, "ranks as threads");
        }
    }
    *out = h;
    return DT_OK;
}

static enum dt_status rank_new(struct house *h, int k, const char *name,
                               const struct dt_device *dev, struct dt_error *err,
                               struct dt_transport **out)
{
    struct rank *r = dt_calloc(1, sizeof(*r));
    enum dt_status st;

    if (!r)
        return dt_error_nomem(err, "a rank as a thread");
    r->house = h;
    r->t.impl = r;
    r->t.rank = r->t.local_rank = k;
    r->t.size = r->t.local_size = h->n;
    r->t.sharer = k;
    r->t.sharers = h->n;
    r->t.on_queue = h->meet != NULL;
    r->t.close = close_rank;
    r->t.abort = abort_process;
    r->t.give_up = give_up;
    r->t.state = state;
    snprintf(r->t.name, sizeof(r->t.name), "%s", name);
    if (gethostname(r->t.host, sizeof(r->t.host) - 1) != 0)
        snprintf(r->t.host, sizeof(r->t.host), "localhost");
    st = dev ? device_open(r, dev, err) : DT_OK;
    if (st == DT_OK)
        st = dt_transport_base_init(&r->t,
                                    !dev      ? &threads_wire
                                    : h->meet ? &queue_wire
                                              : &device_wire,
                                    err);
    if (st) {
        dt_transport_base_free(&r->t);
        device_close(r);
        dt_free(r);
        return st;
    }
    atomic_fetch_add_explicit(&h->open, 1, memory_order_relaxed);
    *out = &r->t;
    return DT_OK;
}

/* devices NULL: host memory. */
static enum dt_status open_threads(int n, const char *name, const struct dt_device *const *devices,
                                   struct dt_error *err, struct dt_transport **out)
{
    struct house *h = NULL;
    enum dt_status st = DT_OK;
    int k = 0;

    if (n < 1)
        return dt_error_set(err, DT_ERR_INTERNAL, "a job of %d ranks", n);
    DT_TRY(house_new(n, err, &h));
    if (devices && devices[0]->info.gates)
        st = dt_transport_meet_new(n, devices[0], err, &h->meet);
    while (k < n && !st) {
        st = rank_new(h, k, name, devices ? devices[k] : NULL, err, &out[k]);
        k += !st;
    }
    if (!st)
        return DT_OK;
    if (k == 0)
        house_free(h);
    while (k > 0)
        close_rank(out[--k]);
    return st;
}

enum dt_status dt_transport_open_threads(int n, struct dt_error *err, struct dt_transport **out)
{
    return open_threads(n, "threads", NULL, err, out);
}

enum dt_status dt_transport_open_threads_on(int n, const struct dt_device *const *devices,
                                            struct dt_error *err, struct dt_transport **out)
{
    return open_threads(n, "threads", devices, err, out);
}

enum dt_status dt_transport_open_self(struct dt_error *err, struct dt_transport **out)
{
    return open_threads(1, "self", NULL, err, out);
}
