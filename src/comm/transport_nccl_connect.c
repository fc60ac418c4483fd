/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Who is to talk over NCCL finds one another: the first member makes an id and sends it over the control transport.
 *
 * All communicators of a call are begun before one is waited for, so that it does not matter who comes first.  A
 * first message goes over each edge, since NCCL connects two ranks when they first have something to say, and
 * waits for both: later posts do not. */
#include "comm/transport_nccl_impl.h"

#include "base/mem.h"

#include <stdio.h>
#include <string.h>

enum { FIRST_BYTES = 64 };

static enum dt_status new_id(struct dt_nccl_ranks *s, struct dt_nccl_id *id, struct dt_error *err)
{
    enum dt_status st;
    int result;

    pthread_mutex_lock(&s->lock);
    st = dt_nccl_state(s, err);
    if (st == DT_OK) {
        result = s->f->GetUniqueId(id);
        if (result != DT_NCCL_SUCCESS)
            dt_nccl_failed(s, NULL, "the id of a communicator", result);
        st = dt_nccl_state(s, err);
    }
    pthread_mutex_unlock(&s->lock);
    return st;
}

static enum dt_status wait_for(struct dt_nccl_ranks *s, struct dt_req *r, struct dt_error *err)
{
    return dt_transport_wait(s->control, r, s->t.limit_s, "the id of a communicator", err);
}

/* ---- groups ---- */

static enum dt_status share_id(struct dt_nccl_ranks *s, const int *ranks, int n, int me,
                               struct dt_nccl_id *id, struct dt_error *err)
{
    struct dt_transport *c = s->control;
    struct dt_req *r;

    if (me > 0) {
        DT_TRY(c->post_recv(c, ranks[0], DT_TRANSPORT_NCCL_TAG, id, sizeof(*id), NULL, err, &r));
        return wait_for(s, r, err);
    }
    DT_TRY(new_id(s, id, err));
    for (int k = 1; k < n; k++) {
        DT_TRY(c->post_send(c, ranks[k], DT_TRANSPORT_NCCL_TAG, id, sizeof(*id), NULL, err, &r));
        DT_TRY(wait_for(s, r, err));
    }
    return DT_OK;
}

static enum dt_status join(struct dt_nccl_ranks *s, const int *ranks, const struct dt_comm *c,
                           struct dt_error *err, struct dt_nccl_link **out)
{
    static const struct dt_transport_edge none = {-1, -1, -1};
    struct dt_nccl_id *id = dt_calloc(1, sizeof(*id));
    enum dt_status st;

    if (!id)
        return dt_error_nomem(err, "the id of a communicator");
    st = share_id(s, ranks, c->n, c->me, id, err);
    if (st != DT_OK) {
        dt_transport_leave(id); /* of what has failed, more may come */
        return st;
    }
    st = dt_nccl_link_new(s, &none, c->me, c->n, id, err, out);
    dt_free(id);
    return st == DT_OK ? dt_nccl_link_ready(s, *out, err) : st;
}

enum dt_status dt_nccl_comm_new(struct dt_transport *t, const int *ranks, int n,
                                struct dt_error *err, struct dt_comm **out)
{
    struct dt_nccl_ranks *s = dt_nccl_of(t);
    struct dt_nccl_link *l = NULL;
    struct dt_comm *c;
    enum dt_status st;

    DT_TRY(s->base_comm_new(t, ranks, n, err, &c));
    st = n > 1 ? join(s, ranks, c, err, &l) : DT_OK;
    if (st != DT_OK) {
        s->base_comm_free(c);
        return st;
    }
    c->own = l;
    *out = c;
    return DT_OK;
}

/* ---- edges ---- */

struct fresh { /* an edge without a link yet */
    struct dt_transport_edge edge;
    struct dt_nccl_id id;
    struct dt_req *req;
    struct dt_nccl_link *link;
};

static bool among(const struct fresh *f, int n, const struct dt_transport_edge *e)
{
    for (int k = 0; k < n; k++)
        if (f[k].edge.from == e->from && f[k].edge.to == e->to && f[k].edge.tag == e->tag)
            return true;
    return false;
}

/* This rank's edges that are new; how many. */
static int choose(struct dt_nccl_ranks *s, const struct dt_transport_edge *edges, int n,
                  struct fresh *f)
{
    int me = s->t.rank, m = 0;

    pthread_mutex_lock(&s->lock);
    for (int k = 0; k < n; k++) {
        const struct dt_transport_edge *e = &edges[k];

        if ((e->from == me || e->to == me) && e->from != e->to &&
            !dt_nccl_link_find(s, e->from, e->to, e->tag) && !among(f, m, e))
            f[m++].edge = *e;
    }
    pthread_mutex_unlock(&s->lock);
    return m;
}

static enum dt_status exchange_ids(struct dt_nccl_ranks *s, struct fresh *f, int n,
                                   struct dt_error *err)
{
    struct dt_transport *c = s->control;

    for (int k = 0; k < n; k++) {
        struct fresh *x = &f[k];

        if (x->edge.from != s->t.rank) {
            DT_TRY(c->post_recv(c, x->edge.from, DT_TRANSPORT_NCCL_TAG, &x->id, sizeof(x->id), NULL,
                                err, &x->req));
            continue;
        }
        DT_TRY(new_id(s, &x->id, err));
        DT_TRY(c->post_send(c, x->edge.to, DT_TRANSPORT_NCCL_TAG, &x->id, sizeof(x->id), NULL, err,
                            &x->req));
    }
    for (int k = 0; k < n; k++)
        DT_TRY(wait_for(s, f[k].req, err));
    return DT_OK;
}

static enum dt_status first_message(struct dt_nccl_ranks *s, struct dt_nccl_link *l,
                                    struct dt_error *err)
{
    void *stream = s->dev->queue_stream(s->q);
    enum dt_status st;
    int result;

    pthread_mutex_lock(&s->lock);
    st = dt_nccl_state(s, err);
    if (st == DT_OK) {
        result = l->me == 0 ? s->f->Send(s->scratch, FIRST_BYTES, DT_NCCL_INT8, 1, l->h, stream)
                            : s->f->Recv((char *)s->scratch + FIRST_BYTES, FIRST_BYTES,
                                         DT_NCCL_INT8, 0, l->h, stream);
        st = dt_nccl_settle(s, l, "the first message of an edge", result, s->q, err);
    }
    pthread_mutex_unlock(&s->lock);
    return st;
}

/* In an order that is the same for all: the first edge that is not connected has both its ranks at it. */
static enum dt_status connect_all(struct dt_nccl_ranks *s, struct fresh *f, int n,
                                  struct dt_error *err)
{
    for (int k = 0; k < n; k++)
        DT_TRY(dt_nccl_link_new(s, &f[k].edge, f[k].edge.from != s->t.rank, 2, &f[k].id, err,
                                &f[k].link));
    for (int k = 0; k < n; k++)
        DT_TRY(dt_nccl_link_ready(s, f[k].link, err));
    for (int k = 0; k < n; k++)
        DT_TRY(first_message(s, f[k].link, err));
    return DT_OK;
}

enum dt_status dt_nccl_connect(struct dt_transport *t, const struct dt_transport_edge *edges, int n,
                               struct dt_error *err)
{
    struct dt_nccl_ranks *s = dt_nccl_of(t);
    struct fresh *f = dt_calloc((size_t)n + 1, sizeof(*f));
    enum dt_status st;

    if (!f)
        return dt_error_nomem(err, "edges between ranks");
    n = choose(s, edges, n, f);
    st = exchange_ids(s, f, n, err);
    if (st != DT_OK) {
        dt_transport_leave(f); /* as in join() */
        return st;
    }
    st = connect_all(s, f, n, err);
    dt_free(f);
    return st;
}
