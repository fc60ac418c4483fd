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

static enum dt_status make_id(struct dt_nccl_ranks *s, void *arg, struct dt_error *err)
{
    int result;

    DT_TRY(dt_nccl_state(s, err));
    result = s->f->GetUniqueId(arg);
    if (result != DT_NCCL_SUCCESS)
        dt_nccl_failed(s, NULL, "the id of a communicator", result);
    return dt_nccl_state(s, err);
}

static enum dt_status new_id(struct dt_nccl_ranks *s, struct dt_nccl_id *id, struct dt_error *err)
{
    return dt_nccl_issue(s, make_id, id, err);
}

struct beginning { /* of a link */
    struct dt_transport_edge edge;
    int me, n;
    const struct dt_nccl_id *id;
    struct dt_nccl_link *link;
};

static enum dt_status begin_link(struct dt_nccl_ranks *s, void *arg, struct dt_error *err)
{
    struct beginning *b = arg;

    return dt_nccl_link_new(s, &b->edge, b->me, b->n, b->id, err, &b->link);
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
    struct beginning b = {.edge = {-1, -1, -1}, .me = c->me, .n = c->n};
    struct dt_nccl_id *id = dt_calloc(1, sizeof(*id));
    enum dt_status st;

    if (!id)
        return dt_error_nomem(err, "the id of a communicator");
    st = share_id(s, ranks, c->n, c->me, id, err);
    if (st != DT_OK) {
        dt_transport_leave(id); /* of what has failed, more may come */
        return st;
    }
    b.id = id;
    st = dt_nccl_issue(s, begin_link, &b, err);
    dt_free(id);
    *out = b.link;
    return st == DT_OK ? dt_nccl_link_ready(s, b.link, err) : st;
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

struct choice {
    const struct dt_transport_edge *edges;
    int n;
    struct fresh *fresh;
    int m; /* of them */
};

/* This rank's edges that are new. */
static enum dt_status choose(struct dt_nccl_ranks *s, void *arg, struct dt_error *err)
{
    struct choice *c = arg;
    int me = s->t.rank;

    (void)err;
    for (int k = 0; k < c->n; k++) {
        const struct dt_transport_edge *e = &c->edges[k];

        if ((e->from == me || e->to == me) && e->from != e->to &&
            !dt_nccl_link_find(s, e->from, e->to, e->tag) && !among(c->fresh, c->m, e))
            c->fresh[c->m++].edge = *e;
    }
    return DT_OK;
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

static enum dt_status first_message(struct dt_nccl_ranks *s, void *arg, struct dt_error *err)
{
    struct dt_nccl_link *l = arg;
    void *stream = s->dev->queue_stream(s->q);
    int result;

    DT_TRY(dt_nccl_state(s, err));
    result = l->me == 0 ? s->f->Send(s->scratch, FIRST_BYTES, DT_NCCL_INT8, 1, l->h, stream)
                        : s->f->Recv((char *)s->scratch + FIRST_BYTES, FIRST_BYTES, DT_NCCL_INT8, 0,
                                     l->h, stream);
    return dt_nccl_settle(s, l, "the first message of an edge", result, s->q, err);
}

/* In an order that is the same for all: the first edge that is not connected has both its ranks at it. */
static enum dt_status connect_all(struct dt_nccl_ranks *s, struct fresh *f, int n,
                                  struct dt_error *err)
{
    for (int k = 0; k < n; k++) {
        struct beginning b = {
            .edge = f[k].edge, .me = f[k].edge.from != s->t.rank, .n = 2, .id = &f[k].id};

        DT_TRY(dt_nccl_issue(s, begin_link, &b, err));
        f[k].link = b.link;
    }
    for (int k = 0; k < n; k++)
        DT_TRY(dt_nccl_link_ready(s, f[k].link, err));
    for (int k = 0; k < n; k++)
        DT_TRY(dt_nccl_issue(s, first_message, f[k].link, err));
    return DT_OK;
}

enum dt_status dt_nccl_connect(struct dt_transport *t, const struct dt_transport_edge *edges, int n,
                               struct dt_error *err)
{
    struct dt_nccl_ranks *s = dt_nccl_of(t);
    struct fresh *f = dt_calloc((size_t)n + 1, sizeof(*f));
    struct choice c = {.edges = edges, .n = n, .fresh = f};
    enum dt_status st;

    if (!f)
        return dt_error_nomem(err, "edges between ranks");
    st = dt_nccl_issue(s, choose, &c, err);
    n = c.m;
    if (st == DT_OK)
        st = exchange_ids(s, f, n, err);
    if (st != DT_OK) {
        dt_transport_leave(f); /* as in join() */
        return st;
    }
    st = connect_all(s, f, n, err);
    dt_free(f);
    return st;
}
