/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Ranks that are threads of one process.  A message is copied once, straight from the sender's
 * memory to the receiver's, by whichever side came second; a send is over when it is received, so
 * that a program which hangs with messages of any size hangs here with all. */
#include "comm/transport_impl.h"

#include "base/mem.h"

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
    atomic_int state;
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
};

struct rank {
    struct dt_transport_base base; /* first: see dt_transport_base */
    struct dt_transport t;
    struct house *house;
};

static struct house *house_of(struct dt_transport *t)
{
    return ((struct rank *)t->impl)->house;
}

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

static enum dt_status post(struct dt_transport *t, struct dt_transport_xfer *x)
{
    struct mailbox *box = &house_of(t)->box[x->to];
    struct dt_transport_xfer *y;
    bool fits;

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
        memcpy(x->send ? y->buf : x->buf, x->send ? x->buf : y->buf, x->bytes);
    x->other_bytes = y->bytes;
    y->other_bytes = x->bytes;
    atomic_store_explicit(&x->state, fits ? DONE : OTHER_SIZE, memory_order_relaxed);
    /* the last touch of y: its owner may take it back now */
    atomic_store_explicit(&y->state, fits ? DONE : OTHER_SIZE, memory_order_release);
    return DT_OK;
}

static enum dt_status wire_send(struct dt_transport *t, struct dt_transport_xfer *x, int to,
                                uint64_t key, const void *buf, size_t bytes, struct dt_error *err)
{
    (void)err;
    x->key = key;
    x->buf = (char *)(uintptr_t)buf; /* only read */
    x->bytes = bytes;
    x->from = t->rank;
    x->to = to;
    x->send = true;
    return post(t, x);
}

static enum dt_status wire_recv(struct dt_transport *t, struct dt_transport_xfer *x, int from,
                                uint64_t key, void *buf, size_t bytes, struct dt_error *err)
{
    (void)err;
    x->key = key;
    x->buf = buf;
    x->bytes = bytes;
    x->from = from;
    x->to = t->rank;
    x->send = false;
    return post(t, x);
}

static enum dt_status wire_progress(struct dt_transport *t, struct dt_transport_xfer *x, bool *done,
                                    struct dt_error *err)
{
    int state = atomic_load_explicit(&x->state, memory_order_acquire);

    (void)t;
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

static void house_free(struct house *h)
{
    if (!h)
        return;
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
    dt_transport_base_free(t);
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

static enum dt_status rank_new(struct house *h, int k, const char *name, struct dt_error *err,
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
    r->t.close = close_rank;
    r->t.abort = abort_process;
    snprintf(r->t.name, sizeof(r->t.name), "%s", name);
    if (gethostname(r->t.host, sizeof(r->t.host) - 1) != 0)
        snprintf(r->t.host, sizeof(r->t.host), "localhost");
    st = dt_transport_base_init(&r->t, &threads_wire, err);
    if (st) {
        dt_transport_base_free(&r->t);
        dt_free(r);
        return st;
    }
    atomic_fetch_add_explicit(&h->open, 1, memory_order_relaxed);
    *out = &r->t;
    return DT_OK;
}

static enum dt_status open_threads(int n, const char *name, struct dt_error *err,
                                   struct dt_transport **out)
{
    struct house *h = NULL;
    enum dt_status st = DT_OK;
    int k = 0;

    if (n < 1)
        return dt_error_set(err, DT_ERR_INTERNAL, "a job of %d ranks", n);
    DT_TRY(house_new(n, err, &h));
    while (k < n && !st) {
        st = rank_new(h, k, name, err, &out[k]);
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
    return open_threads(n, "threads", err, out);
}

enum dt_status dt_transport_open_self(struct dt_error *err, struct dt_transport **out)
{
    return open_threads(1, "self", err, out);
}
