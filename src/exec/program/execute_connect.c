/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Tags of messages, and which of them a rank will send or receive.
 *
 * A transport that is on_queue may need to know that beforehand (NCCL connects ranks when they first have something
 * to say).  All messages from one lane to another have one tag there, as they are received in the order in which
 * they are sent; dt_program_check proves that. */
#include "exec/program/execute_impl.h"

int dt_exec_tag(const struct dt_exec *x, uint32_t recv)
{
    const struct dt_program *p = x->it.p;
    uint64_t tag = recv;

    if (x->ranks.data->on_queue)
        tag = (uint64_t)p->ops[p->ops[recv].peer].lane * (uint64_t)p->n_lanes + p->ops[recv].lane;
    return (int)(tag % DT_EXEC_TAG_TOKEN);
}

struct edges {
    struct dt_transport_edge *e;
    size_t n, cap;
};

static enum dt_status add(struct edges *l, struct dt_transport_edge e, struct dt_error *err)
{
    for (size_t k = l->n; k-- > 0;)
        if (l->e[k].from == e.from && l->e[k].to == e.to && l->e[k].tag == e.tag)
            return DT_OK;
    if (dt_grow((void **)&l->e, &l->cap, l->n + 1, sizeof(*l->e)))
        return dt_error_nomem(err, "edges between ranks");
    l->e[l->n++] = e;
    return DT_OK;
}

/* Those into member t of the lane of RECV i. */
static enum dt_status find_into(const struct dt_exec *x, uint32_t i, int t, struct edges *l,
                                struct dt_error *err)
{
    const struct dt_op *recv = &x->it.p->ops[i], *send = &x->it.p->ops[recv->peer];

    for (int k = 0; k < dt_exec_feeders(&x->ranks, send, recv); k++) {
        struct dt_transport_edge e = {dt_exec_rank_of(&x->ranks, send, dt_exec_feeder(recv, t, k)),
                                      dt_exec_rank_of(&x->ranks, recv, t), dt_exec_tag(x, i)};

        if (e.from != e.to && (e.from == x->ranks.rank || e.to == x->ranks.rank))
            DT_TRY(add(l, e, err));
    }
    return DT_OK;
}

/* In the order of the program, which all ranks have alike. */
static enum dt_status find(const struct dt_exec *x, struct edges *l, struct dt_error *err)
{
    const struct dt_program *p = x->it.p;

    for (uint32_t i = 0; i < p->n_ops; i++) {
        const struct dt_op *recv = &p->ops[i];

        if (recv->kind != DT_OP_RECV ||
            !(dt_exec_here(&x->ranks, recv) || dt_exec_here(&x->ranks, &p->ops[recv->peer])))
            continue;
        for (int t = 0; t < dt_exec_members(&x->env, recv->module); t++)
            DT_TRY(find_into(x, i, t, l, err));
    }
    return DT_OK;
}

enum dt_status dt_exec_connect(const struct dt_exec *x, struct dt_error *err)
{
    struct dt_transport *data = x->ranks.data;
    uint64_t lanes = (uint64_t)x->it.p->n_lanes;
    struct edges l = {0};
    enum dt_status st;

    if (!x->ranks.t)
        return DT_OK;
    if (!data->on_queue)
        return data->connect(data, NULL, 0, err);
    if (lanes * lanes > DT_EXEC_TAG_TOKEN && (uint64_t)x->ranks.n < lanes)
        return dt_error_set(
            err, DT_ERR_INPUT,
            "%d pipeline stages on %d ranks have more pairs than this transport has "
            "tags; start a rank for each GPU",
            x->it.p->n_lanes, x->ranks.n);
    st = find(x, &l, err);
    if (st == DT_OK)
        st = data->connect(data, l.e, (int)l.n, err);
    dt_free(l.e);
    return st;
}
