/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * The staged transport: what is posted, and collectives that are put on the caller's queue.
 *
 *   q   ... | copy to page-locked memory | host function: the collective of `inner`, waited for | copy back | ...
 *
 * It is the queue that waits for the other ranks there, not the host.  All that is put on queues in the name of a comm
 * uses the same page-locked memory: it is on one queue, so one operation has left it when the next one comes. */
#include "comm/transport_staged.h"

#include "base/mem.h"

#include <string.h>

enum { ALIGN = 64 };

/* Bytes [at, at + bytes) of the buffer come back, to the same place. */
static void comes_back(struct dt_transport_staged_request *r, size_t at, size_t bytes)
{
    if (bytes > 0)
        r->in[r->n_in++] = (struct dt_transport_staged_range){r->buf + at, r->recv_at + at, bytes};
}

static void goes_out(struct dt_transport_staged_request *r, const char *from, size_t at,
                     size_t bytes)
{
    r->out =
        (struct dt_transport_staged_range){(char *)(uintptr_t)from + at, at, bytes}; /* only read */
}

/* ---- on the caller's queue ---- */

enum dt_status dt_transport_staged_state(struct dt_transport *t, struct dt_error *err)
{
    struct dt_transport_staged *s = dt_transport_staged_of(t);
    enum dt_status st;

    if (!atomic_load_explicit(&s->stop, memory_order_acquire))
        return DT_OK;
    pthread_mutex_lock(&s->lock);
    st = s->error.status;
    if (err)
        *err = s->error;
    pthread_mutex_unlock(&s->lock);
    return st;
}

/* The first failure is told. */
static void stop_for(struct dt_transport_staged *s, const struct dt_error *e)
{
    pthread_mutex_lock(&s->lock);
    if (s->error.status == DT_OK)
        s->error = *e;
    pthread_mutex_unlock(&s->lock);
    atomic_store_explicit(&s->stop, true, memory_order_release);
}

void dt_transport_staged_stop(struct dt_transport_staged *s)
{
    struct dt_error e = {0};

    dt_error_set(&e, DT_ERR_PEER, "rank %d has given up its collectives", s->t.rank);
    stop_for(s, &e);
}

static const char *const names[] = {
    [BROADCAST] = "a broadcast on a queue",           [ALL_REDUCE] = "an all-reduce on a queue",
    [REDUCE_SCATTER] = "a reduce-scatter on a queue", [ALL_GATHER] = "an all-gather on a queue",
    [ALL_TO_ALL] = "an all-to-all on a queue",
};

/* The host function.  What fails leaves undefined bytes behind; who posts next, or asks, is told. */
static void meet_others(void *arg)
{
    struct dt_transport_staged_request *r = arg;
    struct dt_transport_staged *s = r->staged;
    struct dt_error e = {0};
    enum dt_status st = DT_OK;

    if (!atomic_load_explicit(&s->stop, memory_order_acquire)) {
        st = dt_transport_staged_post_inner(s, r, &e);
        if (st == DT_OK)
            st = dt_transport_wait_unless(s->inner, r->inner, s->t.limit_s, names[r->kind],
                                          &s->stop, &e);
    }
    if (st != DT_OK)
        stop_for(s, &e);
    dt_transport_staged_put_free(s, r);
}

/* The bytes behind its end. */
static enum dt_status room_for(struct dt_transport_staged *s, struct dt_transport_staged_comm *c,
                               size_t bytes, struct dt_error *err, char **out)
{
    struct dt_transport_staged_room *room = c->room;
    void *p;

    if (!room || room->cap < bytes) {
        bytes += bytes / 2; /* allocating it may stop the device */
        DT_TRY(dt_transport_alloc(s->dev, true, ALIGN + bytes, err, &p));
        room = p;
        *room = (struct dt_transport_staged_room){c->room, bytes};
        c->room = room;
    }
    *out = (char *)room + ALIGN;
    return DT_OK;
}

void dt_transport_staged_room_free(struct dt_transport_staged *s,
                                   struct dt_transport_staged_comm *c)
{
    if (atomic_load_explicit(&s->stop, memory_order_acquire)) {
        dt_transport_leave(c->room); /* `inner` may still write into it */
        return;
    }
    for (struct dt_transport_staged_room *r = c->room, *next; r; r = next) {
        next = r->next;
        s->dev->host_free(s->dev, r);
    }
}

static enum dt_status put_on_queue(struct dt_transport_staged *s,
                                   struct dt_transport_staged_request *r, struct dt_device_queue *q,
                                   struct dt_error *err)
{
    const struct dt_device *d = s->dev;
    struct dt_transport_staged_range in[2] = {
        r->in[0], r->in[1]}; /* the request may be another's after the call */
    int n_in = r->n_in;
    char *stand;

    DT_TRY(dt_transport_staged_state(&s->t, err));
    if (d->queue_state(q) != DT_OK)
        return d->queue_sync(q, err);
    DT_TRY(room_for(s, (struct dt_transport_staged_comm *)(void *)r->comm, r->bytes, err, &stand));
    r->stand = stand;
    if (r->out.bytes > 0)
        d->copy(q, stand + r->out.at, r->out.device, r->out.bytes, DT_COPY_TO_HOST);
    d->call(q, meet_others, r);
    for (int i = 0; i < n_in; i++)
        d->copy(q, in[i].device, stand + in[i].at, in[i].bytes, DT_COPY_TO_DEVICE);
    return DT_OK;
}

static enum dt_status post(struct dt_transport_staged *s, struct dt_transport_staged_request *r,
                           struct dt_device_queue *q, struct dt_error *err, struct dt_req **out)
{
    enum dt_status st;

    if (out)
        return dt_transport_staged_post(s, r, q, err, out);
    st = put_on_queue(s, r, q, err);
    if (st != DT_OK)
        dt_transport_staged_put_free(s, r);
    return st;
}

/* ---- the table's entries ---- */

static enum dt_status post_send(struct dt_transport *t, int to, int tag, const void *buf,
                                size_t bytes, struct dt_device_queue *q, struct dt_error *err,
                                struct dt_req **out)
{
    struct dt_transport_staged_request *r;

    DT_TRY(dt_req_check_queue(t, q, err));
    DT_TRY(dt_transport_staged_new(dt_transport_staged_of(t), SEND, bytes, false, err, &r));
    r->peer = to;
    r->tag = tag;
    r->n = bytes;
    r->buf = (char *)(uintptr_t)buf; /* only read */
    goes_out(r, buf, 0, bytes);
    return post(dt_transport_staged_of(t), r, q, err, out);
}

static enum dt_status post_recv(struct dt_transport *t, int from, int tag, void *buf, size_t bytes,
                                struct dt_device_queue *q, struct dt_error *err,
                                struct dt_req **out)
{
    struct dt_transport_staged_request *r;

    DT_TRY(dt_req_check_queue(t, q, err));
    DT_TRY(dt_transport_staged_new(dt_transport_staged_of(t), RECV, bytes, false, err, &r));
    r->peer = from;
    r->tag = tag;
    r->n = bytes;
    r->buf = buf;
    comes_back(r, 0, bytes);
    return post(dt_transport_staged_of(t), r, q, err, out);
}

static enum dt_status coll_new(struct dt_comm *c, enum dt_transport_staged_kind kind, void *buf,
                               size_t bytes, bool on_queue, struct dt_device_queue *q,
                               struct dt_error *err, struct dt_transport_staged_request **out)
{
    DT_TRY(dt_req_check_queue(c->t, q, err));
    DT_TRY(dt_transport_staged_new(dt_transport_staged_of(c->t), kind, bytes, on_queue, err, out));
    (*out)->comm = c;
    (*out)->buf = buf;
    return DT_OK;
}

/* Counts of all members stay with the request. */
static enum dt_status keep(struct dt_comm *c, struct dt_transport_staged_request *r,
                           const size_t *counts, size_t **kept, size_t *cap, struct dt_error *err)
{
    if (dt_grow((void **)kept, cap, (size_t)c->n, sizeof(**kept)) != 0) {
        dt_transport_staged_put_free(dt_transport_staged_of(c->t), r);
        return dt_error_nomem(err, "the pieces of a collective");
    }
    memcpy(*kept, counts, (size_t)c->n * sizeof(**kept));
    return DT_OK;
}

static size_t sum(const size_t *counts, int n)
{
    size_t all = 0;

    for (int k = 0; k < n; k++)
        all += counts[k];
    return all;
}

static enum dt_status post_broadcast(struct dt_comm *c, int root, void *buf, size_t bytes,
                                     struct dt_device_queue *q, struct dt_error *err,
                                     struct dt_req **out)
{
    struct dt_transport_staged_request *r;

    DT_TRY(coll_new(c, BROADCAST, buf, bytes, !out, q, err, &r));
    r->peer = root;
    r->n = bytes;
    if (root == c->me)
        goes_out(r, buf, 0, bytes);
    else
        comes_back(r, 0, bytes);
    return post(dt_transport_staged_of(c->t), r, q, err, out);
}

static enum dt_status post_all_reduce(struct dt_comm *c, enum dt_reduce_type type, void *buf,
                                      size_t n, struct dt_device_queue *q, struct dt_error *err,
                                      struct dt_req **out)
{
    size_t e = dt_reduce_bytes(type);
    struct dt_transport_staged_request *r;

    if (n > SIZE_MAX / 2 / e)
        return dt_error_set(err, DT_ERR_INTERNAL, "all-reduce of %zu elements", n);
    DT_TRY(coll_new(c, ALL_REDUCE, buf, n * e, !out, q, err, &r));
    r->type = type;
    r->n = n;
    goes_out(r, buf, 0, n * e);
    comes_back(r, 0, n * e);
    return post(dt_transport_staged_of(c->t), r, q, err, out);
}

static enum dt_status post_reduce_scatter(struct dt_comm *c, enum dt_reduce_type type, void *buf,
                                          const size_t *counts, struct dt_device_queue *q,
                                          struct dt_error *err, struct dt_req **out)
{
    size_t e = dt_reduce_bytes(type), all = sum(counts, c->n) * e;
    struct dt_transport_staged_request *r;

    DT_TRY(coll_new(c, REDUCE_SCATTER, buf, all, !out, q, err, &r));
    DT_TRY(keep(c, r, counts, &r->counts, &r->counts_cap, err));
    r->type = type;
    goes_out(r, buf, 0, all);
    comes_back(r, sum(counts, c->me) * e, counts[c->me] * e);
    return post(dt_transport_staged_of(c->t), r, q, err, out);
}

static enum dt_status post_all_gather(struct dt_comm *c, void *buf, const size_t *bytes,
                                      struct dt_device_queue *q, struct dt_error *err,
                                      struct dt_req **out)
{
    size_t all = sum(bytes, c->n), mine = sum(bytes, c->me), after = mine + bytes[c->me];
    struct dt_transport_staged_request *r;

    DT_TRY(coll_new(c, ALL_GATHER, buf, all, !out, q, err, &r));
    DT_TRY(keep(c, r, bytes, &r->counts, &r->counts_cap, err));
    goes_out(r, buf, mine, bytes[c->me]);
    comes_back(r, 0, mine);
    comes_back(r, after, all - after);
    return post(dt_transport_staged_of(c->t), r, q, err, out);
}

static enum dt_status post_all_to_all(struct dt_comm *c, const void *send, const size_t *send_bytes,
                                      void *recv, const size_t *recv_bytes,
                                      struct dt_device_queue *q, struct dt_error *err,
                                      struct dt_req **out)
{
    size_t sends = sum(send_bytes, c->n), receives = sum(recv_bytes, c->n);
    size_t at = (sends + ALIGN - 1) / ALIGN * ALIGN;
    struct dt_transport_staged_request *r;

    DT_TRY(coll_new(c, ALL_TO_ALL, recv, at + receives, !out, q, err, &r));
    DT_TRY(keep(c, r, recv_bytes, &r->counts, &r->counts_cap, err));
    DT_TRY(keep(c, r, send_bytes, &r->send_counts, &r->send_counts_cap, err));
    r->send = send;
    r->recv_at = at;
    goes_out(r, send, 0, sends);
    comes_back(r, 0, receives);
    return post(dt_transport_staged_of(c->t), r, q, err, out);
}

void dt_transport_staged_fill_posts(struct dt_transport *t)
{
    t->post_send = post_send;
    t->post_recv = post_recv;
    t->post_broadcast = post_broadcast;
    t->post_all_reduce = post_all_reduce;
    t->post_reduce_scatter = post_reduce_scatter;
    t->post_all_gather = post_all_gather;
    t->post_all_to_all = post_all_to_all;
}
