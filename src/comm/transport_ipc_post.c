/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * What is posted over CUDA IPC: messages to and from ranks whose memory can be mapped.  All else is the staged
 * transport's, and a request stands for its. */
#include "comm/transport_ipc.h"

#include "base/mem.h"

static struct dt_ipc_request *request_of(struct dt_req *r)
{
    return (struct dt_ipc_request *)(void *)r;
}

/* ---- requests ---- */

void dt_ipc_request_free(struct dt_ipc *s, struct dt_ipc_request *r)
{
    s->dev->event_free(r->ready);
    if (r->kind == DT_IPC_SEND)
        s->dev->event_free(r->copied);
    dt_free(r);
}

/* Locked, as what follows is. */
static enum dt_status request_make(struct dt_ipc *s, enum dt_ipc_kind kind, struct dt_error *err,
                                   struct dt_ipc_request **out)
{
    struct dt_ipc_request *r = dt_calloc(1, sizeof(*r));
    enum dt_status st = DT_OK;

    if (!r)
        return dt_error_nomem(err, "a request of the transport");
    r->kind = kind;
    if (kind != DT_IPC_STAGED)
        st = s->dev->event_new(s->dev, err, &r->ready);
    if (st == DT_OK && kind == DT_IPC_SEND)
        st = s->dev->ipc_event_new(s->dev, err, &r->copied, &r->copied_handle);
    if (st != DT_OK) {
        dt_ipc_request_free(s, r);
        return st;
    }
    r->number = ++s->n_requests;
    r->all = s->all;
    s->all = r;
    *out = r;
    return DT_OK;
}

static enum dt_status request_new(struct dt_ipc *s, enum dt_ipc_kind kind, struct dt_error *err,
                                  struct dt_ipc_request **out)
{
    struct dt_ipc_request *r = s->free[kind];

    if (r)
        s->free[kind] = r->next;
    else
        DT_TRY(request_make(s, kind, err, &r));
    r->state = DT_IPC_WAITS;
    r->staged = r->tells = NULL;
    r->mapping = NULL;
    r->failed.status = DT_OK;
    if (kind == DT_IPC_RECV)
        r->copied = NULL;
    r->next = r->prev = NULL;
    *out = r;
    return DT_OK;
}

static void put_free(struct dt_ipc *s, struct dt_ipc_request *r)
{
    r->next = s->free[r->kind];
    s->free[r->kind] = r;
}

static void line_up(struct dt_ipc *s, struct dt_ipc_request *r)
{
    r->prev = s->last;
    *(s->last ? &s->last->next : &s->first) = r;
    s->last = r;
}

static void leave_line(struct dt_ipc *s, struct dt_ipc_request *r)
{
    *(r->prev ? &r->prev->next : &s->first) = r->next;
    *(r->next ? &r->next->prev : &s->last) = r->prev;
}

/* ---- messages ---- */

static enum dt_status post_near(struct dt_ipc *s, enum dt_ipc_kind kind, int peer, int tag,
                                void *buf, size_t bytes, struct dt_device_queue *q,
                                struct dt_error *err, struct dt_req **out)
{
    struct dt_ipc_request *r;
    enum dt_status st;

    DT_TRY(dt_req_check_queue(&s->t, q, err));
    if (s->dev->queue_state(q) != DT_OK)
        return s->dev->queue_sync(q, err);
    pthread_mutex_lock(&s->lock);
    st = request_new(s, kind, err, &r);
    if (st == DT_OK) {
        r->peer = peer;
        r->tag = tag;
        r->buf = buf;
        r->bytes = bytes;
        s->dev->event_record(q, r->ready);
        line_up(s, r);
        dt_ipc_advance(s, r);
        *out = (struct dt_req *)(void *)r;
    }
    pthread_mutex_unlock(&s->lock);
    return st;
}

/* What the staged transport has posted; `st` says whether it has. */
static enum dt_status stand_for(struct dt_ipc *s, enum dt_status st, struct dt_req *staged,
                                struct dt_error *err, struct dt_req **out)
{
    struct dt_ipc_request *r;

    if (st != DT_OK || !out)
        return st;
    pthread_mutex_lock(&s->lock);
    st = request_new(s, DT_IPC_STAGED, err, &r);
    if (st == DT_OK) {
        r->staged = staged;
        *out = (struct dt_req *)(void *)r;
    }
    pthread_mutex_unlock(&s->lock);
    return st;
}

static bool is_near(const struct dt_ipc *s, int peer)
{
    return peer >= 0 && peer < s->t.size && s->peer[peer].near;
}

static enum dt_status post_send(struct dt_transport *t, int to, int tag, const void *buf,
                                size_t bytes, struct dt_device_queue *q, struct dt_error *err,
                                struct dt_req **out)
{
    struct dt_ipc *s = dt_ipc_of(t);
    struct dt_req *r = NULL;
    enum dt_status st;

    if (is_near(s, to))
        return post_near(s, DT_IPC_SEND, to, tag, (void *)(uintptr_t)buf, bytes, q, err, out);
    st = s->staged->post_send(s->staged, to, tag, buf, bytes, q, err, &r);
    return stand_for(s, st, r, err, out);
}

static enum dt_status post_recv(struct dt_transport *t, int from, int tag, void *buf, size_t bytes,
                                struct dt_device_queue *q, struct dt_error *err,
                                struct dt_req **out)
{
    struct dt_ipc *s = dt_ipc_of(t);
    struct dt_req *r = NULL;
    enum dt_status st;

    if (is_near(s, from))
        return post_near(s, DT_IPC_RECV, from, tag, buf, bytes, q, err, out);
    st = s->staged->post_recv(s->staged, from, tag, buf, bytes, q, err, &r);
    return stand_for(s, st, r, err, out);
}

/* ---- collectives: all are staged ---- */

static enum dt_status post_broadcast(struct dt_comm *c, int root, void *buf, size_t bytes,
                                     struct dt_device_queue *q, struct dt_error *err,
                                     struct dt_req **out)
{
    struct dt_ipc *s = dt_ipc_of(c->t);
    struct dt_req *r = NULL;
    enum dt_status st;

    st = s->staged->post_broadcast(c->inner, root, buf, bytes, q, err, out ? &r : NULL);
    return stand_for(s, st, r, err, out);
}

static enum dt_status post_all_reduce(struct dt_comm *c, enum dt_reduce_type type, void *buf,
                                      size_t n, struct dt_device_queue *q, struct dt_error *err,
                                      struct dt_req **out)
{
    struct dt_ipc *s = dt_ipc_of(c->t);
    struct dt_req *r = NULL;
    enum dt_status st;

    st = s->staged->post_all_reduce(c->inner, type, buf, n, q, err, out ? &r : NULL);
    return stand_for(s, st, r, err, out);
}

static enum dt_status post_reduce_scatter(struct dt_comm *c, enum dt_reduce_type type, void *buf,
                                          const size_t *counts, struct dt_device_queue *q,
                                          struct dt_error *err, struct dt_req **out)
{
    struct dt_ipc *s = dt_ipc_of(c->t);
    struct dt_req *r = NULL;
    enum dt_status st;

    st = s->staged->post_reduce_scatter(c->inner, type, buf, counts, q, err, out ? &r : NULL);
    return stand_for(s, st, r, err, out);
}

static enum dt_status post_all_gather(struct dt_comm *c, void *buf, const size_t *bytes,
                                      struct dt_device_queue *q, struct dt_error *err,
                                      struct dt_req **out)
{
    struct dt_ipc *s = dt_ipc_of(c->t);
    struct dt_req *r = NULL;
    enum dt_status st;

    st = s->staged->post_all_gather(c->inner, buf, bytes, q, err, out ? &r : NULL);
    return stand_for(s, st, r, err, out);
}

static enum dt_status post_all_to_all(struct dt_comm *c, const void *send, const size_t *send_bytes,
                                      void *recv, const size_t *recv_bytes,
                                      struct dt_device_queue *q, struct dt_error *err,
                                      struct dt_req **out)
{
    struct dt_ipc *s = dt_ipc_of(c->t);
    struct dt_req *r = NULL;
    enum dt_status st;

    st = s->staged->post_all_to_all(c->inner, send, send_bytes, recv, recv_bytes, q, err,
                                    out ? &r : NULL);
    return stand_for(s, st, r, err, out);
}

/* ---- over? ---- */

/* Other ranks wait for this one's offers and copies, too, whatever it waits for itself. */
static enum dt_status test(struct dt_transport *t, struct dt_req *req, bool *done,
                           struct dt_error *err)
{
    struct dt_ipc *s = dt_ipc_of(t);
    struct dt_ipc_request *r = request_of(req);
    enum dt_status st = DT_OK;

    *done = false;
    if (r->kind == DT_IPC_STAGED)
        st = s->staged->test(s->staged, r->staged, done, err);
    pthread_mutex_lock(&s->lock);
    dt_ipc_advance_all(s);
    if (r->kind != DT_IPC_STAGED)
        st = dt_ipc_look(s, r, done, err);
    if ((st != DT_OK || *done) && r->kind != DT_IPC_STAGED)
        leave_line(s, r);
    if (st == DT_OK && *done)
        put_free(s, r);
    s->failed =
        s->failed || st != DT_OK; /* the others may still name it: nothing of it is used again */
    pthread_mutex_unlock(&s->lock);
    if (st != DT_OK)
        *done = false;
    return st;
}

/* Beside the notes, as long as the copy may take at 10 GB/s. */
static uint64_t eager_ns(const struct dt_transport *t, const struct dt_req *req)
{
    const struct dt_ipc_request *r = (const struct dt_ipc_request *)(const void *)req;
    const struct dt_transport *staged = dt_ipc_of(t)->staged;

    return r->kind == DT_IPC_STAGED ? staged->eager_ns(staged, r->staged) : 100000 + r->bytes / 10;
}

void dt_ipc_fill_posts(struct dt_transport *t)
{
    t->post_send = post_send;
    t->post_recv = post_recv;
    t->post_broadcast = post_broadcast;
    t->post_all_reduce = post_all_reduce;
    t->post_reduce_scatter = post_reduce_scatter;
    t->post_all_gather = post_all_gather;
    t->post_all_to_all = post_all_to_all;
    t->test = test;
    t->eager_ns = eager_ns;
}
