/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Check of a program: data goes from the op that makes it to the op that uses it.
 *
 *   producer (last part) <- SEND ...... RECV <- consumer (first part)
 *
 * Microbatch, chunk and direction of a SEND say what it carries, those of its RECV for whom. */
#include "core/schedule/program_check_impl.h"

#include <stdlib.h>

static bool is_grad(const struct dt_op *op)
{
    return op->flags & DT_OPF_GRAD;
}

/* ---- pairs ---- */

static enum dt_status check_pair(struct dt_check *c, uint32_t i)
{
    const struct dt_op *op = &c->p->ops[i], *peer;
    bool send = op->kind == DT_OP_SEND;

    if (op->peer >= c->p->n_ops)
        return dt_check_fail(c, i, "names no %s", send ? "receive" : "send");
    peer = &c->p->ops[op->peer];
    if (peer->kind != (send ? DT_OP_RECV : DT_OP_SEND) || peer->peer != i)
        return dt_check_fail(c, i, "names op %u, which is no %s that names it", op->peer,
                             send ? "receive" : "send");
    if (peer->bytes != op->bytes)
        return dt_check_fail(c, i, "is of %llu bytes, its peer of %llu",
                             (unsigned long long)op->bytes, (unsigned long long)peer->bytes);
    if (peer->flags != op->flags)
        return dt_check_fail(c, i, "carries gradients or crosses modules, its peer does not");
    if (peer->lane == op->lane)
        return dt_check_fail(c, i, "has its peer on its own lane");
    if (op->mb >=
        c->m[op->module].a->mb_first[op->replica + 1] - c->m[op->module].a->mb_first[op->replica])
        return dt_check_fail(c, i, "is of no microbatch of its replica");
    return DT_OK;
}

/* Messages from one lane to another are received in the order in which they are sent. */
static enum dt_status check_turns(struct dt_check *c)
{
    const struct dt_program *p = c->p;
    uint32_t *last = DT_ARENA_NEW(&c->arena, uint32_t, p->n_lanes + 1); /* RECV + 1, per lane */

    if (!last)
        return dt_error_nomem(c->err, "check of a program");
    for (int l = 0; l < p->n_lanes; l++) {
        const struct dt_lane *lane = &p->lanes[l];

        for (uint32_t i = lane->first; i < lane->first + lane->n; i++) {
            uint32_t *at;

            if (p->ops[i].kind != DT_OP_SEND)
                continue;
            at = &last[p->ops[p->ops[i].peer].lane];
            if (*at > p->ops[i].peer)
                return dt_check_fail(c, i, "is received before op %u, which is sent before it",
                                     p->ops[*at - 1].peer - lane->first);
            *at = p->ops[i].peer + 1;
        }
        for (uint32_t i = lane->first; i < lane->first + lane->n; i++)
            if (p->ops[i].kind == DT_OP_SEND)
                last[p->ops[p->ops[i].peer].lane] = 0;
    }
    return DT_OK;
}

/* ---- what a pair carries ---- */

/* Between modules: where its RECV is noted, and the bytes of the samples in common. */
static enum dt_status between(struct dt_check *c, const struct dt_op *send,
                              const struct dt_op *recv, uint32_t **noted, uint64_t *bytes)
{
    bool grad = is_grad(send);
    const struct dt_op *u = grad ? recv : send, *d = grad ? send : recv;
    struct dt_check_transfer key = {.u = u->module, .d = d->module}, *t;
    uint32_t i = (uint32_t)(recv - c->p->ops);
    const struct dt_check_module *um = &c->m[u->module];

    key.u_mb = dt_check_mb(c, u);
    key.d_mb = dt_check_mb(c, d);
    t = bsearch(&key, c->transfer, c->n_transfers, sizeof(key), dt_check_by_place);
    if (!t)
        return dt_check_fail(c, i,
                             "is from a microbatch that has no sample in common with its own");
    if (dt_check_v(c, u) != um->n_v - 1 || dt_check_v(c, d) != 0)
        return dt_check_fail(c, i,
                             "is not between the last virtual stage of one module and the "
                             "first of the other");
    if (grad && !um->v[um->n_v - 1].backward)
        return dt_check_fail(c, i, "brings gradients where nothing is trained");
    *noted = &t->recv[grad];
    *bytes = t->bytes;
    return DT_OK;
}

/* Inside a module: from one virtual stage to the next, or back. */
static enum dt_status inside(struct dt_check *c, const struct dt_op *send, const struct dt_op *recv,
                             uint32_t **noted, uint64_t *bytes)
{
    bool grad = is_grad(send);
    struct dt_check_module *m = &c->m[recv->module];
    int from = dt_check_v(c, send), to = dt_check_v(c, recv);
    uint32_t i = (uint32_t)(recv - c->p->ops), mb = dt_check_mb(c, recv);

    if (send->module != recv->module || send->replica != recv->replica || send->mb != recv->mb)
        return dt_check_fail(c, i, "is from another module, replica or microbatch");
    if (to != from + (grad ? -1 : 1))
        return dt_check_fail(c, i, "is from virtual stage %d, not from %d", from,
                             grad ? to + 1 : to - 1);
    if (grad && !m->v[to].backward)
        return dt_check_fail(c, i, "brings gradients where nothing is trained");
    *noted = &m->inner[(size_t)mb * (size_t)m->n_v + (size_t)to][grad];
    *bytes = dt_check_wire(c, recv->module, grad ? to : from, mb);
    return DT_OK;
}

/* A SEND names its producer second, and stands behind it with nothing but other SENDs between: by these the executor
 * counts who still needs an output (exec/program/execute.c). */
static enum dt_status check_producer(struct dt_check *c, uint32_t send, uint32_t producer)
{
    uint32_t number = producer - c->p->lanes[c->p->ops[send].lane].first;

    if (c->p->ops[send].dep[1] != producer)
        return dt_check_fail(c, send, "does not wait for op %u of its lane, whose output it is",
                             number);
    for (uint32_t k = send; k > producer; k--)
        if (c->p->ops[k].kind != DT_OP_SEND)
            return dt_check_fail(c, send, "does not stand right behind op %u, whose output it is",
                                 number);
    if (send < producer)
        return dt_check_fail(c, send, "stands before op %u, whose output it is", number);
    return DT_OK;
}

static enum dt_status note_pair(struct dt_check *c, uint32_t recv)
{
    const struct dt_op *to = &c->p->ops[recv], *from = &c->p->ops[to->peer];
    const struct dt_check_work *w;
    uint32_t *noted = NULL, producer;
    uint64_t bytes = 0;

    if (to->flags & DT_OPF_BOUNDARY)
        DT_TRY(between(c, from, to, &noted, &bytes));
    else
        DT_TRY(inside(c, from, to, &noted, &bytes));
    if (*noted != DT_NONE)
        return dt_check_fail(c, recv, "comes twice: op %u of the lane brings the same",
                             *noted - c->p->lanes[to->lane].first);
    *noted = recv;
    if (to->bytes != bytes || bytes == 0)
        return dt_check_fail(c, recv, "is of %llu bytes, not of %llu",
                             (unsigned long long)to->bytes, (unsigned long long)bytes);
    w = dt_check_at(c, from->module, dt_check_mb(c, from), dt_check_v(c, from));
    producer = is_grad(from) ? w->b_end : w->f_end;
    return check_producer(c, to->peer, producer);
}

/* ---- what an op uses ---- */

static enum dt_status use(struct dt_check *c, uint32_t consumer, uint32_t recv, const char *what)
{
    if (recv == DT_NONE)
        return dt_check_fail(c, consumer, "has no message with %s", what);
    if (!dt_check_after(c, consumer, recv))
        return dt_check_fail(c, consumer, "does not wait for op %u of its lane, which brings %s",
                             recv - c->p->lanes[c->p->ops[consumer].lane].first, what);
    return DT_OK;
}

/* From the neighbour `from` of virtual stage v in the module. */
static enum dt_status use_inner(struct dt_check *c, int module, uint32_t mb, int v, int from,
                                bool grad)
{
    const struct dt_check_module *m = &c->m[module];
    const struct dt_check_work *w = dt_check_at(c, module, mb, v);
    const struct dt_check_work *x = dt_check_at(c, module, mb, from);
    uint32_t consumer = grad ? w->b : w->f, producer = grad ? x->b_end : x->f_end;

    if (m->pp > 1 && dt_check_wire(c, module, grad ? v : from, mb) == 0)
        return DT_OK; /* of no sample */
    if (m->pp > 1)
        return use(c, consumer, m->inner[(size_t)mb * (size_t)m->n_v + (size_t)v][grad],
                   grad ? "gradients of the next virtual stage"
                        : "activations of the virtual stage before");
    if (!dt_check_after(c, consumer, producer))
        return dt_check_fail(c, consumer, "comes before op %u of its lane, which feeds it",
                             producer - c->p->lanes[c->p->ops[consumer].lane].first);
    return DT_OK;
}

static enum dt_status check_uses(struct dt_check *c, int module)
{
    const struct dt_check_module *m = &c->m[module];

    for (uint32_t mb = 0; mb < m->n_mb; mb++)
        for (int v = 0; v < m->n_v; v++) {
            if (v > 0)
                DT_TRY(use_inner(c, module, mb, v, v - 1, false));
            if (v < m->n_v - 1 && m->v[v].backward)
                DT_TRY(use_inner(c, module, mb, v, v + 1, true));
        }
    return DT_OK;
}

static enum dt_status check_transfers(struct dt_check *c)
{
    for (uint32_t i = 0; i < c->n_transfers; i++) {
        const struct dt_check_transfer *t = &c->transfer[i];
        const struct dt_check_module *u = &c->m[t->u];

        DT_TRY(use(c, dt_check_at(c, (int)t->d, t->d_mb, 0)->f, t->recv[0],
                   "the output of an upstream module"));
        if (u->v[u->n_v - 1].backward)
            DT_TRY(use(c, dt_check_at(c, (int)t->u, t->u_mb, u->n_v - 1)->b, t->recv[1],
                       "gradients of a downstream module"));
    }
    return DT_OK;
}

/* The first virtual stage fetches the samples of every microbatch that has any, once. */
static enum dt_status check_fetches(struct dt_check *c)
{
    const struct dt_program *p = c->p;
    uint32_t *fetched[DT_MAX_MODULES];

    for (int i = 0; i < c->model->n_modules; i++) {
        fetched[i] = DT_ARENA_NEW(&c->arena, uint32_t, c->m[i].n_mb + 1); /* op + 1 */
        if (!fetched[i])
            return dt_error_nomem(c->err, "check of a program");
    }
    for (uint32_t i = 0; i < p->n_ops; i++) {
        const struct dt_op *op = &p->ops[i];
        uint32_t mb;

        if (op->kind != DT_OP_FETCH)
            continue;
        mb = dt_check_mb(c, op);
        if (op->mb >= dt_check_count(c, op->module, op->replica) || dt_check_v(c, op) != 0 ||
            c->m[op->module].a->mb[mb].n == 0)
            return dt_check_fail(c, i, "fetches no samples of its lane");
        if (fetched[op->module][mb] > 0)
            return dt_check_fail(c, i, "fetches what op %u of the lane has fetched",
                                 fetched[op->module][mb] - 1 - p->lanes[op->lane].first);
        fetched[op->module][mb] = i + 1;
    }
    for (int i = 0; i < c->model->n_modules; i++)
        for (uint32_t mb = 0; mb < c->m[i].n_mb; mb++)
            if (c->m[i].a->mb[mb].n > 0)
                DT_TRY(use(c, dt_check_at(c, i, mb, 0)->f, fetched[i][mb] - 1, "its samples"));
    return DT_OK;
}

enum dt_status dt_check_data(struct dt_check *c)
{
    for (uint32_t i = 0; i < c->p->n_ops; i++)
        if (c->p->ops[i].kind == DT_OP_RECV)
            DT_TRY(note_pair(c, i));
    for (int i = 0; i < c->model->n_modules; i++)
        DT_TRY(check_uses(c, i));
    DT_TRY(check_transfers(c));
    return check_fetches(c);
}

enum dt_status dt_check_pairs(struct dt_check *c)
{
    for (uint32_t i = 0; i < c->p->n_ops; i++)
        if (c->p->ops[i].kind == DT_OP_SEND || c->p->ops[i].kind == DT_OP_RECV)
            DT_TRY(check_pair(c, i));
    return check_turns(c);
}
