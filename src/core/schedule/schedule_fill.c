/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Second pass of the compiler: writes every op with its dependencies and peers. */
#include "core/schedule/schedule_fill.h"
#include "core/schedule/schedule_link.h"

#include <assert.h>

struct fill {
    struct dt_sched *s;
    struct dt_program *p;
    const struct dt_sched_module *m; /* of the lane being filled */
    const struct dt_assignment_module *a;
    const struct dt_sched_lane_order *o;
    uint32_t lane, at, last[DT_RES_N];
    uint32_t entry;    /* of the lane's order */
    uint32_t reloaded; /* what its first backward, or its step, waits for; DT_NONE */
    uint32_t grads
        [DT_MAX_VSTAGES]; /* per chunk: the first part of the op that completes its gradients, or DT_NONE */
    uint16_t replica, stage;
    /* collectives of each microbatch */
    struct dt_sched_fill_ahead ahead;
    uint32_t
        gathered[2];  /* gathers of the next parts, by their number on the lane modulo 2; DT_NONE */
    uint32_t n_parts; /* compute parts of the lane so far */
    uint32_t unreduced
        [2]; /* syncs of the last part that has completed gradients, and of the one before; DT_NONE */
    bool overflow;
};

static struct dt_op *new_op(struct fill *f, enum dt_op_kind kind, int v, uint32_t mb)
{
    struct dt_op *op = &f->p->ops[f->at];
    enum dt_op_resource res = dt_op_resource(kind);

    *op = (struct dt_op){.kind = (uint8_t)kind,
                         .module = (uint8_t)f->m->index,
                         .chunk = (uint8_t)(v / f->m->pp),
                         .parts = 1,
                         .stage = f->stage,
                         .replica = f->replica,
                         .mb = mb,
                         .lane = f->lane,
                         .peer = DT_NONE,
                         .dep = {f->last[res], DT_NONE, DT_NONE}};
    f->last[res] = f->at++;
    return op;
}

static void add_dep(struct fill *f, struct dt_op *op, uint32_t dep)
{
    if (dep == DT_NONE)
        return;
    if (op->dep[1] == DT_NONE) {
        op->dep[1] = dep;
    } else if (op->dep[2] == DT_NONE) {
        op->dep[2] = dep;
    } else {
        if (op->more_n == 0)
            op->more_first = f->p->n_deps;
        f->overflow |= op->more_n == UINT16_MAX;
        op->more_n++;
        f->p->deps[f->p->n_deps++] = dep;
    }
}

/* The op behind the last part of a forward or backward of any lane. */
static uint32_t forward_end(const struct fill *f, const struct dt_sched_module *m, int r, int v,
                            uint32_t k)
{
    const struct dt_sched_lane_order *o = dt_sched_order(f->s, m, r, v % m->pp);

    return m->f_idx[dt_sched_at(m, r, v, k)] +
           (uint32_t)dt_sched_forward_parts(&m->v[v], k == o->first_f[v / m->pp]);
}

static uint32_t backward_end(const struct fill *f, const struct dt_sched_module *m, int r, int v,
                             uint32_t k)
{
    const struct dt_sched_lane_order *o = dt_sched_order(f->s, m, r, v % m->pp);

    return m->b_idx[dt_sched_at(m, r, v, k)] +
           (uint32_t)dt_sched_backward_parts(&m->v[v], k == o->last_b[v / m->pp]);
}

static void transfer_op(struct fill *f, enum dt_op_kind kind, int v, uint32_t k, unsigned flags,
                        uint64_t bytes, uint32_t peer, uint32_t producer)
{
    struct dt_op *op = new_op(f, kind, v, k);

    op->flags = (uint8_t)flags;
    op->bytes = bytes;
    op->peer = peer;
    op->dep[1] = producer;
}

/* ---- inputs and outputs of a forward ---- */

static void forward_inputs(struct fill *f, int v, uint32_t k, uint32_t mb)
{
    const struct dt_sched_module *m = f->m;

    if (v > 0) {
        if (dt_sched_fill_crosses(m, f->a, v - 1, mb))
            transfer_op(f, DT_OP_RECV, v, k, 0,
                        dt_sched_vstage_bytes(&m->v[v - 1], &f->a->work[mb]),
                        forward_end(f, m, f->replica, v - 1, k), DT_NONE);
        return;
    }
    if (f->a->mb[mb].n > 0)
        new_op(f, DT_OP_FETCH, v, k);
    for (uint32_t i = m->in_first[mb]; i < m->in_first[mb + 1]; i++) {
        const struct dt_sched_transfer *t = &f->s->transfers[m->in[i]];
        const struct dt_sched_module *u = &f->s->m[t->u];
        int r = u->replica_of[t->u_mb];

        transfer_op(f, DT_OP_RECV, v, k, DT_OPF_BOUNDARY, t->bytes,
                    forward_end(f, u, r, u->n_v - 1, t->u_mb - u->mb_first[r]) + t->out_rank,
                    DT_NONE);
    }
}

static void forward_outputs(struct fill *f, int v, uint32_t k, uint32_t mb)
{
    const struct dt_sched_module *m = f->m;
    uint32_t producer = f->at - 1;

    if (v < m->n_v - 1) {
        if (dt_sched_fill_crosses(m, f->a, v, mb))
            transfer_op(f, DT_OP_SEND, v, k, 0, dt_sched_vstage_bytes(&m->v[v], &f->a->work[mb]),
                        m->f_idx[dt_sched_at(m, f->replica, v + 1, k)] - 1, producer);
        return;
    }
    for (uint32_t i = m->out_first[mb]; i < m->out_first[mb + 1]; i++) {
        const struct dt_sched_transfer *t = &f->s->transfers[m->out[i]];
        const struct dt_sched_module *d = &f->s->m[t->d];
        int r = d->replica_of[t->d_mb];
        uint32_t at = d->f_idx[dt_sched_at(d, r, 0, t->d_mb - d->mb_first[r])];

        transfer_op(f, DT_OP_SEND, v, k, DT_OPF_BOUNDARY, t->bytes,
                    at - dt_sched_fill_in_n(d, t->d_mb) + t->in_rank, producer);
    }
}

/* The gather that part `i` of the first forward of a chunk waits for, counted from the lane's first
 * op. */
static uint32_t gather_of(const struct fill *f, int v, int part)
{
    uint32_t at = f->p->lanes[f->lane].first;

    if (f->m->v[v].f_each || f->m->v[v].gather_group[part] == DT_NONE)
        return DT_NONE;
    for (int x = f->stage; x <= v; x += f->m->pp)
        for (int k = 0; k < (x == v ? part : f->m->v[x].f_parts); k++)
            at += f->m->v[x].gather_group[k] != DT_NONE;
    return at;
}

/* Credit: a lane without backwards runs its i-th forward when what it sent after forward i - bound
 * has been consumed. */
static void add_credit(struct fill *f, struct dt_op *op, uint32_t code)
{
    const struct dt_sched_module *m = f->m;
    uint32_t k = DT_CODE_MB(code), mb = m->mb_first[f->replica] + k;
    int v = (int)DT_CODE_CHUNK(code) * m->pp + f->stage;

    if (v < m->n_v - 1) {
        if (dt_sched_fill_crosses(m, f->a, v, mb))
            add_dep(f, op, forward_end(f, m, f->replica, v + 1, k) - 1);
        return;
    }
    for (uint32_t i = m->out_first[mb]; i < m->out_first[mb + 1]; i++) {
        const struct dt_sched_transfer *t = &f->s->transfers[m->out[i]];
        const struct dt_sched_module *d = &f->s->m[t->d];
        int r = d->replica_of[t->d_mb];

        add_dep(f, op, forward_end(f, d, r, 0, t->d_mb - d->mb_first[r]) - 1);
    }
}

/* Part i of an op waits for its own gather, as far as that stands before it, and for the sync that frees the gradients
 * of a bucket: its own, or, where syncs do not overlap with compute, any compute's. */
static void wait_for_own(struct fill *f, struct dt_op *op, int v, int i)
{
    bool overlap = f->s->plan->policy.overlap_grad;
    int whole = f->m->v[v].b_parts > 1 ? dt_plan_whole_buckets(overlap) : 1;
    bool reduces =
        f->m->v[v].b_each && op->kind == (f->m->v[v].split ? DT_OP_WEIGHT_GRAD : DT_OP_BACKWARD);

    if (i < dt_sched_fill_lead(f->s))
        add_dep(f, op, f->gathered[(f->n_parts + (uint32_t)i) % 2]);
    if (i < whole && (reduces || (!overlap && i == 0)))
        add_dep(f, op, f->unreduced[reduces ? whole - 1 - i : 0]);
}

/* ---- the host link ---- */

static void offload(struct fill *f)
{
    const struct dt_lane *l = &f->p->lanes[f->lane];
    struct dt_op *op;
    uint32_t lane;

    if (!dt_sched_fill_offloads(f->s, f->m))
        return;
    op = new_op(f, DT_OP_OFFLOAD, f->stage, DT_NONE);
    op->bytes = dt_sched_link_bytes(f->s, f->m, f->stage, false);
    op->dep[1] = f->last[DT_RES_COLL]; /* parameters as the iteration uses them */
    for (uint32_t k = 0;
         (lane = dt_sched_link_beside(f->s, l, DT_SCHED_LINK_SHARERS, k)) != DT_NONE; k++)
        if (lane < f->lane)
            add_dep(f, op, f->s->link[lane].offload);
}

static void reload(struct fill *f)
{
    const struct dt_lane *l = &f->p->lanes[f->lane];
    struct dt_op *op = new_op(f, DT_OP_RELOAD, f->stage, DT_NONE);
    uint32_t lane;

    op->bytes = dt_sched_link_bytes(f->s, f->m, f->stage, true);
    op->dep[1] = f->last[DT_RES_COMPUTE];
    for (uint32_t k = 0; (lane = dt_sched_link_beside(f->s, l, DT_SCHED_LINK_HOSTS, k)) != DT_NONE;
         k++)
        add_dep(f, op, f->s->link[lane].drained);
    for (uint32_t k = 0;
         (lane = dt_sched_link_beside(f->s, l, DT_SCHED_LINK_SHARERS, k)) != DT_NONE; k++)
        if (dt_sched_link_reloads_first(f->s, lane, f->lane))
            add_dep(f, op, f->s->link[lane].reload);
}

/* A step on the host has the link to itself. */
static void wait_for_link(struct fill *f, struct dt_op *op)
{
    const struct dt_lane *l = &f->p->lanes[f->lane];
    uint32_t lane;

    if (!dt_plan_offloads_optimizer(&f->s->plan->modules[f->m->index]))
        return;
    for (uint32_t k = 0;
         (lane = dt_sched_link_beside(f->s, l, DT_SCHED_LINK_SHARERS, k)) != DT_NONE; k++)
        if (f->s->link[lane].unasked)
            add_dep(f, op, f->s->link[lane].reload);
}

/* What the first that asks waits for. */
static uint32_t take_reloaded(struct fill *f)
{
    uint32_t op = f->reloaded;

    f->reloaded = DT_NONE;
    return op;
}

/* The forward with which a host begins to need memory that guests leave. */
static void wait_for_memory(struct fill *f, struct dt_op *op)
{
    const struct dt_lane *l = &f->p->lanes[f->lane];
    uint32_t lane;

    if (!f->s->link || f->s->link[f->lane].full != f->entry)
        return;
    for (uint32_t k = 0; (lane = dt_sched_link_beside(f->s, l, DT_SCHED_LINK_GUESTS, k)) != DT_NONE;
         k++)
        add_dep(f, op, f->s->link[lane].offload);
}

/* ---- forward ---- */

static void forward(struct fill *f, int v, uint32_t k, uint32_t ordinal, bool forward_only)
{
    const struct dt_sched_module *m = f->m;
    uint32_t mb = m->mb_first[f->replica] + k, in = f->at;
    uint32_t cap = f->p->lanes[f->lane].in_flight_max;
    bool first = k == f->o->first_f[v / m->pp];
    int parts = dt_sched_forward_parts(&m->v[v], first);

    forward_inputs(f, v, k, mb);
    assert(f->at == m->f_idx[dt_sched_at(m, f->replica, v, k)]);
    for (int i = 0; i < parts; i++) {
        struct dt_op *op = new_op(f, DT_OP_FORWARD, v, k);

        op->part = (uint8_t)i;
        op->parts = (uint8_t)parts;
        for (uint32_t d = in; i == 0 && d < m->f_idx[dt_sched_at(m, f->replica, v, k)]; d++)
            add_dep(f, op, d);
        if (first)
            add_dep(f, op, gather_of(f, v, i));
        wait_for_own(f, op, v, i);
        /* Without overlap all gathers of the iteration stand before the first compute op. */
        if (i == 0 && ordinal == 0 && !f->s->plan->policy.overlap_param && !m->v[v].f_each &&
            f->last[DT_RES_COLL] != DT_NONE && f->last[DT_RES_COLL] != gather_of(f, v, 0))
            add_dep(f, op, f->last[DT_RES_COLL]);
        if (i == 0)
            wait_for_memory(f, op);
        if (i == 0 && forward_only && cap > 0 && ordinal >= cap)
            add_credit(f, op, f->o->code[ordinal - cap]);
    }
    forward_outputs(f, v, k, mb);
}

/* ---- backward ---- */

static void backward_inputs(struct fill *f, int v, uint32_t k, uint32_t mb)
{
    const struct dt_sched_module *m = f->m;

    if (v < m->n_v - 1) {
        if (dt_sched_fill_crosses(m, f->a, v, mb))
            transfer_op(f, DT_OP_RECV, v, k, DT_OPF_GRAD,
                        dt_sched_vstage_bytes(&m->v[v], &f->a->work[mb]),
                        backward_end(f, m, f->replica, v + 1, k), DT_NONE);
        return;
    }
    for (uint32_t i = m->out_first[mb]; i < m->out_first[mb + 1]; i++) {
        const struct dt_sched_transfer *t = &f->s->transfers[m->out[i]];
        const struct dt_sched_module *d = &f->s->m[t->d];
        int r = d->replica_of[t->d_mb];

        transfer_op(f, DT_OP_RECV, v, k, DT_OPF_GRAD | DT_OPF_BOUNDARY, t->bytes,
                    backward_end(f, d, r, 0, t->d_mb - d->mb_first[r]) + t->gin_rank, DT_NONE);
    }
}

static void backward_outputs(struct fill *f, int v, uint32_t k, uint32_t mb)
{
    const struct dt_sched_module *m = f->m;
    uint32_t producer = f->at - 1;

    if (v > 0) {
        if (m->v[v - 1].backward && dt_sched_fill_crosses(m, f->a, v - 1, mb))
            transfer_op(f, DT_OP_SEND, v, k, DT_OPF_GRAD,
                        dt_sched_vstage_bytes(&m->v[v - 1], &f->a->work[mb]),
                        m->b_idx[dt_sched_at(m, f->replica, v - 1, k)] - 1, producer);
        return;
    }
    for (uint32_t i = m->in_first[mb]; i < m->in_first[mb + 1]; i++) {
        const struct dt_sched_transfer *t = &f->s->transfers[m->in[i]];
        const struct dt_sched_module *u = &f->s->m[t->u];
        int r = u->replica_of[t->u_mb];
        uint32_t at;

        if (!t->grad)
            continue;
        at = u->b_idx[dt_sched_at(u, r, u->n_v - 1, t->u_mb - u->mb_first[r])];
        transfer_op(f, DT_OP_SEND, v, k, DT_OPF_GRAD | DT_OPF_BOUNDARY, t->bytes,
                    at - dt_sched_fill_out_n(u, t->u_mb) + t->out_rank, producer);
    }
}

/* The op, in buckets where it completes the gradients of its chunk; the first part waits for ops [in, f->at). */
static void gradients(struct fill *f, enum dt_op_kind kind, int v, uint32_t k, uint32_t in)
{
    bool last = k == f->o->last_b[v / f->m->pp] && f->m->v[v].split == (kind == DT_OP_WEIGHT_GRAD);
    int parts = kind == DT_OP_WEIGHT_GRAD ? dt_sched_gradient_parts(&f->m->v[v], last)
                                          : dt_sched_backward_parts(&f->m->v[v], last);
    uint32_t at = f->at;

    if (last)
        f->grads[v / f->m->pp] = at;
    for (int i = 0; i < parts; i++) {
        struct dt_op *op = new_op(f, kind, v, k);

        op->part = (uint8_t)i;
        op->parts = (uint8_t)parts;
        for (uint32_t d = in; i == 0 && d < at; d++)
            add_dep(f, op, d);
        if (i == 0)
            add_dep(f, op, take_reloaded(f));
        wait_for_own(f, op, v, i);
    }
}

static void backward(struct fill *f, int v, uint32_t k)
{
    uint32_t mb = f->m->mb_first[f->replica] + k, in = f->at;

    backward_inputs(f, v, k, mb);
    assert(f->at == f->m->b_idx[dt_sched_at(f->m, f->replica, v, k)]);
    gradients(f, DT_OP_BACKWARD, v, k, in);
    backward_outputs(f, v, k, mb);
}

/* ---- collectives ---- */

static struct dt_op *collective(struct fill *f, enum dt_op_kind kind, int v, uint32_t group,
                                uint32_t member, uint64_t bytes)
{
    uint32_t at = f->at;
    struct dt_op *op = new_op(f, kind, v, DT_NONE);

    op->peer = group;
    op->bytes = bytes;
    f->p->group_ops[f->p->groups[group].first + member] = at;
    return op;
}

/* The gather at f->ahead, which moves on; DT_NONE if that part needs none. */
static uint32_t gather_ahead(struct fill *f, uint32_t after)
{
    const struct dt_sched_module *m = f->m;
    struct dt_sched_fill_gather g = dt_sched_fill_next(m, f->o, f->stage, &f->ahead);
    uint32_t n = m->mb_first[1] - m->mb_first[0], use = g.k + (g.backward ? n : 0);
    const struct dt_sched_vstage *v = &m->v[g.v];
    struct dt_op *op;

    if (g.bucket < 0)
        return DT_NONE;
    op = collective(f, DT_OP_PARAM_GATHER, g.v, v->gather_group[g.bucket] + use * v->gather_stride,
                    f->replica, v->gather_bytes[g.bucket]);
    op->mb = g.k;
    op->flags = g.backward ? DT_OPF_GRAD : 0;
    op->part = (uint8_t)(g.backward ? v->b_parts - 1 - g.bucket : g.bucket);
    op->parts = v->f_parts;
    op->dep[1] = after;
    return f->at - 1;
}

static uint32_t sync_now(struct fill *f, int v, uint32_t k, int part, uint32_t after)
{
    const struct dt_sched_vstage *x = &f->m->v[v];
    int bucket = x->b_parts - 1 - part;
    struct dt_op *op;

    if (x->sync_group[bucket] == DT_NONE)
        return DT_NONE;
    op = collective(f, DT_OP_GRAD_SYNC, v, x->sync_group[bucket] + k * x->sync_stride, f->replica,
                    x->sync_bytes[bucket]);
    op->mb = k;
    op->part = (uint8_t)part;
    op->parts = x->b_parts;
    op->dep[1] = after;
    return f->at - 1;
}

/* Collectives behind entry i of the order, whose parts stand at [first, first + n). */
static void behind(struct fill *f, uint32_t i, uint32_t first)
{
    const struct dt_sched_module *m = f->m;
    int n = dt_sched_fill_parts(m, f->o, f->stage, i), lead = dt_sched_fill_lead(f->s);
    int v = (int)DT_CODE_CHUNK(f->o->code[i]) * m->pp + f->stage;
    int whole = m->v[v].b_parts > 1 ? dt_plan_whole_buckets(f->s->plan->policy.overlap_grad) : 1;
    bool reduces = dt_sched_fill_reduces(m, f->o, f->stage, i);

    for (int k = 0; k < n; k++) {
        uint32_t at = first + (uint32_t)k, d = gather_ahead(f, at);

        if (k + lead < n)
            add_dep(f, &f->p->ops[at + (uint32_t)lead], d);
        else
            f->gathered[(f->n_parts + (uint32_t)(k + lead)) % 2] = d;
        if (!reduces)
            continue;
        d = sync_now(f, v, DT_CODE_MB(f->o->code[i]), k, at);
        if (k + whole < n)
            add_dep(f, &f->p->ops[at + (uint32_t)whole], d);
        f->unreduced[1] = f->unreduced[0];
        f->unreduced[0] = d;
    }
    f->n_parts += (uint32_t)n;
}

static void head(struct fill *f)
{
    const struct dt_sched_module *m = f->m;

    for (int v = f->stage; v < m->n_v; v += m->pp)
        for (int k = 0; k < m->v[v].f_parts; k++) {
            struct dt_op *op;

            if (m->v[v].f_each || m->v[v].gather_group[k] == DT_NONE)
                continue;
            op = collective(f, DT_OP_PARAM_GATHER, v, m->v[v].gather_group[k], f->replica,
                            m->v[v].gather_bytes[k]);
            op->part = (uint8_t)k;
            op->parts = m->v[v].f_parts;
        }
    f->ahead = dt_sched_fill_first(m, f->o, f->stage);
    for (int k = 0; k < dt_sched_fill_lead(f->s); k++)
        f->gathered[k] = gather_ahead(f, DT_NONE);
}

static void syncs(struct fill *f)
{
    const struct dt_sched_module *m = f->m;

    /* The last chunk ends its backwards first, and its last blocks first. */
    for (int v = f->stage + (m->vpp - 1) * m->pp; v >= 0; v -= m->pp)
        for (int i = 0; i < m->v[v].b_parts; i++) {
            int bucket = m->v[v].b_parts - 1 - i;
            struct dt_op *op;

            if (m->v[v].b_each || m->v[v].sync_group[bucket] == DT_NONE)
                continue;
            op = collective(f, DT_OP_GRAD_SYNC, v, m->v[v].sync_group[bucket], f->replica,
                            m->v[v].sync_bytes[bucket]);
            op->part = (uint8_t)i;
            op->parts = m->v[v].b_parts;
            if (!f->s->plan->policy.overlap_grad)
                op->dep[1] = f->last[DT_RES_COMPUTE];
            else if (f->grads[v / m->pp] != DT_NONE)
                op->dep[1] = f->grads[v / m->pp] + (uint32_t)i;
        }
}

static void tail(struct fill *f, uint32_t *norm_member)
{
    const struct dt_sched_module *m = f->m;
    int last_v = f->stage + (m->vpp - 1) * m->pp;
    struct dt_op *op;

    syncs(f);
    if (dt_sched_fill_tied(f->s, m, f->stage)) {
        op = collective(f, DT_OP_GRAD_SYNC, f->stage == 0 ? 0 : last_v,
                        f->s->tied_group + f->replica, f->stage != 0,
                        dt_sched_fill_tied_bytes(f->s, m));
        op->flags = DT_OPF_TIED;
        op->dep[1] = f->last[DT_RES_COMPUTE];
    }
    if (!m->lane_trains[f->stage])
        return;
    op = collective(f, DT_OP_GRAD_NORM, 0, f->s->norm_group, (*norm_member)++,
                    DT_SCHED_FILL_NORM_BYTES);
    op->dep[1] = f->last[DT_RES_COMPUTE];
    op = new_op(f, DT_OP_STEP, 0, DT_NONE);
    op->dep[1] = f->last[DT_RES_COLL];
    op->dep[2] = f->reloaded;
    wait_for_link(f, op);
}

/* ---- groups ---- */

static struct dt_group *set_group(struct dt_program *p, uint32_t g, enum dt_op_kind kind,
                                  uint32_t n, uint32_t *next)
{
    p->groups[g] = (struct dt_group){.first = *next, .n = n, .kind = (uint8_t)kind, .share = 1};
    *next += n;
    return &p->groups[g];
}

/* n groups in a row from the first bucket's. */
static void set_bucket_groups(const struct dt_sched *s, struct dt_program *p,
                              const struct dt_sched_module *m, int stage, enum dt_op_kind kind,
                              const uint32_t *group, int buckets, uint32_t n, uint32_t *next)
{
    int k = 0;

    while (k < buckets && group[k] == DT_NONE)
        k++;
    for (uint32_t i = 0; i < n; i++)
        dt_sched_group_shape(s->plan, m->index, stage, s->cluster->gpus_per_node,
                             set_group(p, group[k] + i, kind, (uint32_t)m->dp, next));
}

/* The shared embedding of replica r: two lanes of different stages, which are in one node or not. */
static void set_tied_group(const struct dt_sched *s, struct dt_program *p, int r, uint32_t *next)
{
    const struct dt_sched_module *m = &s->m[s->model->llm];
    struct dt_group *g = set_group(p, s->tied_group + (uint32_t)r, DT_OP_GRAD_SYNC, 2, next);
    int node = s->cluster->gpus_per_node, ranks = dt_sched_sync_ranks(m->layout);

    dt_sched_group_shape(s->plan, m->index, 0, node, g);
    g->ahead = 0;
    if (dt_plan_lane_gpu(s->plan, m->index, r, 0) / node !=
            dt_plan_lane_gpu(s->plan, m->index, r, m->pp - 1) / node &&
        ranks < g->per_node)
        g->per_node = (uint16_t)ranks;
}

void dt_sched_fill_groups(const struct dt_sched *s, struct dt_program *p)
{
    uint32_t next = 0, trains = 0;

    for (int i = 0; i < s->n_modules; i++) {
        const struct dt_sched_module *m = &s->m[i];

        for (int v = 0; v < m->n_v; v++) {
            const struct dt_sched_vstage *x = &m->v[v];
            uint32_t mbs = m->mb_first[1] - m->mb_first[0];

            set_bucket_groups(s, p, m, v % m->pp, DT_OP_GRAD_SYNC, x->sync_group, x->b_parts,
                              x->sync_stride * (x->b_each ? mbs : 1), &next);
            set_bucket_groups(s, p, m, v % m->pp, DT_OP_PARAM_GATHER, x->gather_group, x->f_parts,
                              x->gather_stride * (x->f_each ? dt_sched_uses(x, mbs) : 1), &next);
        }
        for (int st = 0; st < m->pp; st++)
            trains += m->lane_trains[st] ? (uint32_t)m->dp : 0;
    }
    for (int r = 0; s->tied_group != DT_NONE && r < s->m[s->model->llm].dp; r++)
        set_tied_group(s, p, r, &next);
    if (s->norm_group != DT_NONE) /* every GPU that trains */
        set_group(p, s->norm_group, DT_OP_GRAD_NORM, trains, &next)->per_node =
            (uint16_t)s->cluster->gpus_per_node;
}

/* ---- lanes ---- */

static void fill_lane(struct fill *f, uint32_t *norm_member)
{
    const struct dt_lane *l = &f->p->lanes[f->lane];
    bool forward_only = true, own = false;
    uint32_t ordinal = 0, reload_at;

    f->m = &f->s->m[l->module];
    f->a = &f->s->a->m[l->module];
    f->o = dt_sched_order(f->s, f->m, l->replica, l->stage);
    f->replica = l->replica;
    f->stage = l->stage;
    f->at = l->first;
    for (int r = 0; r < DT_RES_N; r++)
        f->last[r] = DT_NONE;
    for (int c = 0; c < f->m->vpp; c++)
        f->grads[c] = DT_NONE;
    f->gathered[0] = f->gathered[1] = f->unreduced[0] = f->unreduced[1] = DT_NONE;
    f->n_parts = 0;
    f->reloaded = DT_NONE;
    reload_at = dt_sched_fill_reload(f->s, f->m, f->o);
    for (int v = l->stage; v < f->m->n_v; v += f->m->pp) {
        forward_only &= !f->m->v[v].backward;
        own |= f->m->v[v].f_each || f->m->v[v].b_each;
    }
    head(f);
    offload(f);
    for (uint32_t i = 0; i < f->o->n; i++) {
        uint32_t k = DT_CODE_MB(f->o->code[i]);
        int v = (int)DT_CODE_CHUNK(f->o->code[i]) * f->m->pp + l->stage;
        uint32_t first;

        if (i == reload_at) {
            reload(f);
            f->reloaded = f->at - 1;
        }
        f->entry = i;
        first = f->at; /* of a weight gradient */
        if (DT_CODE_KIND(f->o->code[i]) == DT_CODE_FORWARD)
            forward(f, v, k, ordinal++, forward_only);
        else if (DT_CODE_KIND(f->o->code[i]) == DT_CODE_BACKWARD)
            backward(f, v, k);
        else /* its backward is before it on the same resource */
            gradients(f, DT_OP_WEIGHT_GRAD, v, k, f->at);
        if (DT_CODE_KIND(f->o->code[i]) != DT_CODE_WEIGHT)
            first = (DT_CODE_KIND(f->o->code[i]) == DT_CODE_FORWARD
                         ? f->m->f_idx
                         : f->m->b_idx)[dt_sched_at(f->m, f->replica, v, k)];
        if (own)
            behind(f, i, first);
    }
    if (reload_at == f->o->n) {
        reload(f);
        f->reloaded = f->at - 1;
    }
    tail(f, norm_member);
    assert(f->at == l->first + l->n);
}

enum dt_status dt_sched_fill(struct dt_sched *s, struct dt_program *p, struct dt_error *err)
{
    struct fill f = {.s = s, .p = p};
    uint32_t norm_member = 0;

    dt_sched_fill_groups(s, p);
    for (f.lane = 0; f.lane < s->n_lanes; f.lane++)
        fill_lane(&f, &norm_member);
    if (f.overflow)
        return dt_error_set(err, DT_ERR_INPUT, "a microbatch has more than %d transfers",
                            UINT16_MAX);
    return DT_OK;
}
