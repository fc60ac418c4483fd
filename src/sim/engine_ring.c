/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Collectives over several nodes: one flow over the rings that a group's ranks form. */
#include "sim/engine_internal.h"

enum { RINGS = 2 };

/* What each member of a ring passes on of a buffer: a reduce-scatter or all-gather (n-1)/n of it, an all-reduce does
 * both. */
static struct dt_network_ring ring(int64_t of, int64_t apart, double bytes, bool all_reduce)
{
    return (struct dt_network_ring){(uint32_t)of, (uint32_t)apart,
                                    (all_reduce ? 2 : 1) * bytes * (double)(of - 1) / (double)of};
}

/* As the durations have them (dt_sched_times_group): all ranks that hold the same parameters, and experts among those
 * that hold the same ones; or the groups that shard, and the same place of all groups for sums. */
static int rings_of(const struct dt_engine_run *r, const struct dt_group *gr,
                    const struct dt_op *op, uint32_t per_lane, struct dt_network_ring *out)
{
    const struct dt_plan_module *m = r->p->plan ? &r->p->plan->modules[op->module] : NULL;
    bool sync = op->kind == DT_OP_GRAD_SYNC, tied = op->flags & DT_OPF_TIED;
    bool all_reduce = sync && (tied || (m && m->zero == 0));
    int64_t ranks = (int64_t)gr->n * per_lane;
    int n = 0;

    if (m && m->zero_group > 0 && !tied) {
        int64_t group = m->zero_group;

        out[n++] = ring(group, 1, (double)op->bytes, false);
        if (sync)
            out[n++] = ring(ranks / group, group, (double)op->bytes / (double)group, true);
        return n;
    }
    out[n++] = ring(ranks, 1, (double)(op->bytes - gr->expert_bytes), all_reduce);
    if (m && gr->expert_bytes > 0)
        out[n++] = ring(ranks / m->layout.ep, m->layout.ep, (double)gr->expert_bytes, all_reduce);
    return n;
}

static struct dt_network_ranks ranks_of(const struct dt_engine_run *r, uint32_t g)
{
    const struct dt_group *gr = &r->p->groups[g];
    const uint32_t *ops = &r->p->group_ops[gr->first];
    const struct dt_plan_layout *l =
        r->p->plan ? &r->p->plan->modules[r->p->ops[ops[0]].module].layout : NULL;

    for (uint32_t i = 0; i < gr->n; i++)
        r->e->members[i] = r->p->ops[ops[i]].lane;
    return (struct dt_network_ranks){r->p->lanes, r->e->members, gr->n,
                                     l ? (uint32_t)(dt_plan_layout_copies(l) / l->dp) : 1};
}

bool dt_engine_group_flows(const struct dt_engine_run *r, uint32_t g, int64_t ns)
{
    const struct dt_group *gr = &r->p->groups[g];
    const struct dt_op *op = &r->p->ops[r->p->group_ops[gr->first]];
    /* A norm is a scalar: latency only. */
    bool moves = op->kind == DT_OP_GRAD_SYNC || op->kind == DT_OP_PARAM_GATHER;
    struct dt_network_ring rings[RINGS];
    struct dt_network_ranks ranks;

    if (!moves || ns <= 0 || op->bytes == 0 || gr->n < 2 || gr->n > (uint32_t)r->p->n_lanes)
        return false;
    ranks = ranks_of(r, g);
    return dt_network_rings_cross(r->net, &ranks, rings,
                                  rings_of(r, gr, op, ranks.per_lane, rings));
}

void dt_engine_ring_start(struct dt_engine_run *r, uint32_t g, int64_t now)
{
    const struct dt_group *gr = &r->p->groups[g];
    const uint32_t *ops = &r->p->group_ops[gr->first];
    struct dt_network_ranks ranks = ranks_of(r, g);
    struct dt_network_ring rings[RINGS];
    int n = rings_of(r, gr, &r->p->ops[ops[0]], ranks.per_lane, rings);
    int64_t ns = 0;

    for (uint32_t i = 0; i < gr->n; i++)
        ns = r->node[ops[i]].end_ns > ns ? r->node[ops[i]].end_ns : ns;
    if (dt_network_start_rings(r->net, &ranks, rings, n, ns, now, ops[0]) == DT_NONE)
        r->nomem = true;
}
