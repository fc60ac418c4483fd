/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Collectives over several nodes: one flow around the ring of a group's members. */
#include "sim/engine_internal.h"

#include <math.h>

/* Of ranks that shard in groups: what passes between the lanes of one group, and for gradients of the shards that are summed
 * over groups.  A lane has so many copies of its parameters. */
static double in_groups(const struct dt_plan_module *m, const struct dt_op *op)
{
    double group = m->zero_group, copies = (double)dt_plan_layout_copies(&m->layout);
    double of_lane = copies / m->layout.dp, lanes = fmax(1, group / of_lane);
    double bytes = (double)op->bytes * (lanes - 1) / lanes;

    if (op->kind == DT_OP_GRAD_SYNC)
        bytes += 2 * (1 - group / copies) * (double)op->bytes * fmin(1, of_lane / group);
    return bytes;
}

/* Does nothing pass between lanes, as groups of shards lie inside of one? */
static bool in_groups_only(const struct dt_engine_run *r, const struct dt_op *op)
{
    const struct dt_plan_module *m = r->p->plan ? &r->p->plan->modules[op->module] : NULL;

    return m && m->zero_group > 0 && !(op->flags & DT_OPF_TIED) && in_groups(m, op) <= 0;
}

bool dt_engine_group_flows(const struct dt_engine_run *r, uint32_t g, int64_t ns)
{
    const struct dt_group *gr = &r->p->groups[g];
    const uint32_t *ops = &r->p->group_ops[gr->first];
    const struct dt_op *op = &r->p->ops[ops[0]];
    /* A norm is a scalar: latency only. */
    bool moves = op->kind == DT_OP_GRAD_SYNC || op->kind == DT_OP_PARAM_GATHER;

    if (!moves || ns <= 0 || op->bytes == 0 || gr->n < 2 || gr->n > (uint32_t)r->p->n_lanes)
        return false;
    if (in_groups_only(r, op))
        return false;
    for (uint32_t i = 0; i < gr->n; i++)
        r->e->members[i] = r->p->ops[ops[i]].lane;
    return dt_network_ring_crosses(r->net, r->p->lanes, r->e->members, gr->n);
}

void dt_engine_ring_start(struct dt_engine_run *r, uint32_t g, int64_t now)
{
    const struct dt_group *gr = &r->p->groups[g];
    const uint32_t *ops = &r->p->group_ops[gr->first];
    const struct dt_op *op = &r->p->ops[ops[0]];
    int64_t ns = 0;

    for (uint32_t i = 0; i < gr->n; i++) {
        r->e->members[i] = r->p->ops[ops[i]].lane;
        ns = r->node[ops[i]].end_ns > ns ? r->node[ops[i]].end_ns : ns;
    }
    /* Ring: reduce-scatter or all-gather pass (n-1)/n of the buffer, all-reduce does both. */
    bool tied = op->flags & DT_OPF_TIED,
         zero = !r->p->plan || r->p->plan->modules[op->module].zero > 0;
    bool all_reduce = op->kind == DT_OP_GRAD_SYNC && (tied || !zero);
    double bytes = (double)(op->bytes - gr->expert_bytes) * (gr->n - 1) / gr->n;
    int group = r->p->plan ? r->p->plan->modules[op->module].zero_group : 0;

    if (group > 0 && !tied)
        bytes = in_groups(&r->p->plan->modules[op->module], op);
    if (gr->expert_bytes > 0) { /* over the lanes that hold the same experts, which are fewer */
        const struct dt_plan_layout *l = &r->p->plan->modules[op->module].layout;
        double lanes = fmax(1, (double)gr->n * l->cp / l->ep);

        bytes += (double)gr->expert_bytes * (lanes - 1) / lanes;
    }
    bytes *= all_reduce ? 2 : 1;
    if (dt_network_start_ring(r->net, r->p->lanes, r->e->members, gr->n, bytes, ns, now, ops[0]) ==
        DT_NONE)
        r->nomem = true;
}
