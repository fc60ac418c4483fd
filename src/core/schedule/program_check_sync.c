/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Check of a program: groups have the right members, syncs follow the gradients of their part, the
 * norm follows all syncs, the step follows the norm, gathers come before the first use. */
#include "core/schedule/program_check_impl.h"

static enum dt_status check_groups(const struct dt_program *p, struct dt_error *err)
{
    uint32_t members = 0;

    for (uint32_t g = 0; g < p->n_groups; g++) {
        const struct dt_group *x = &p->groups[g];

        if (x->n == 0 || (uint64_t)x->first + x->n > p->n_group_ops)
            return dt_error_set(err, DT_ERR_INTERNAL, "program: group %u has no members", g);
        for (uint32_t k = 0; k < x->n; k++) {
            uint32_t i = p->group_ops[x->first + k];
            const struct dt_op *op, *first;

            if (i >= p->n_ops)
                return dt_error_set(err, DT_ERR_INTERNAL, "program: group %u: no op %u", g, i);
            op = &p->ops[i];
            first = &p->ops[p->group_ops[x->first]];
            if (op->kind != x->kind || op->peer != g || op->bytes != first->bytes ||
                op->flags != first->flags)
                return dt_check_fail(err, p, i, "differs from its group");
            /* The norm spans modules, a shared embedding two stages; else one stage of all
             * replicas. */
            if (x->kind != DT_OP_GRAD_NORM && !(op->flags & DT_OPF_TIED) &&
                (op->module != first->module || op->stage != first->stage ||
                 op->chunk != first->chunk || op->part != first->part || op->replica != k))
                return dt_check_fail(err, p, i, "is in the group of another stage");
            members++;
        }
    }
    for (uint32_t i = 0; i < p->n_ops; i++)
        if (dt_op_resource(p->ops[i].kind) == DT_RES_COLL) {
            if (members-- == 0)
                return dt_check_fail(err, p, i, "is in no group");
        }
    if (members != 0)
        return dt_error_set(err, DT_ERR_INTERNAL, "program: an op is in two groups");
    return DT_OK;
}

/* What one lane must hold, counted while walking it. */
struct lane_state {
    uint32_t syncs, tied, gathers, norms, steps, norm;
    uint32_t last_compute; /* last forward or backward */
};

static enum dt_status check_sync_op(const struct dt_program *p, const struct dt_sched *s,
                                    const struct dt_sched_module *m, uint32_t i,
                                    const struct lane_state *x, struct dt_error *err)
{
    const struct dt_op *op = &p->ops[i];
    int v = op->chunk * m->pp + op->stage, n = m->v[v].b_parts;
    uint32_t last = DT_NONE;

    if (x->norms > 0)
        return dt_check_fail(err, p, i, "is after the gradient norm");
    if (op->flags & DT_OPF_TIED) {
        if (x->last_compute != DT_NONE && !dt_check_waits(p, i, x->last_compute))
            return dt_check_fail(err, p, i, "does not wait for the gradients it sums");
        return DT_OK;
    }
    if (op->part >= n || op->parts != n || op->peer != m->v[v].sync_group[n - 1 - op->part] ||
        op->bytes != m->v[v].sync_bytes[n - 1 - op->part])
        return dt_check_fail(err, p, i, "is not the sync of its part");
    /* The last backward of its chunk on this lane: the one with the highest index. */
    for (uint32_t k = 0; k < m->mb_first[op->replica + 1] - m->mb_first[op->replica]; k++) {
        uint32_t b = m->b_idx[dt_sched_at(m, op->replica, v, k)];

        last = last == DT_NONE || b > last ? b : last;
    }
    if (last == DT_NONE)
        return DT_OK;
    if (s->plan->policy.overlap_grad) {
        if (p->ops[last].parts != n || !dt_check_waits(p, i, last + op->part))
            return dt_check_fail(err, p, i, "does not wait for the gradients of its part");
    } else if (!dt_check_waits(p, i, x->last_compute)) {
        return dt_check_fail(err, p, i, "does not wait for the end of compute");
    }
    return DT_OK;
}

static enum dt_status check_gather(const struct dt_program *p, const struct dt_sched_module *m,
                                   uint32_t i, struct dt_error *err)
{
    const struct dt_op *op = &p->ops[i];
    int v = op->chunk * m->pp + op->stage;
    uint32_t first = DT_NONE;

    if (op->part >= m->v[v].f_parts || op->peer != m->v[v].gather_group[op->part] ||
        op->bytes != m->v[v].gather_bytes[op->part])
        return dt_check_fail(err, p, i, "is not the gather of its part");
    for (uint32_t k = 0; k < m->mb_first[op->replica + 1] - m->mb_first[op->replica]; k++) {
        uint32_t f = m->f_idx[dt_sched_at(m, op->replica, v, k)];

        first = f < first ? f : first;
    }
    if (first != DT_NONE &&
        (p->ops[first].parts != m->v[v].f_parts || !dt_check_waits(p, first + op->part, i)))
        return dt_check_fail(err, p, i, "is not waited for by the first use of its parameters");
    return DT_OK;
}

static enum dt_status check_lane(const struct dt_program *p, const struct dt_sched *s,
                                 uint32_t lane, struct dt_error *err)
{
    const struct dt_lane *l = &p->lanes[lane];
    const struct dt_sched_module *m = &s->m[l->module];
    struct lane_state x = {.last_compute = DT_NONE};

    for (uint32_t i = l->first; i < l->first + l->n; i++)
        if (p->ops[i].kind == DT_OP_FORWARD || p->ops[i].kind == DT_OP_BACKWARD)
            x.last_compute = i;
    for (uint32_t i = l->first; i < l->first + l->n; i++) {
        const struct dt_op *op = &p->ops[i];

        switch (op->kind) {
        case DT_OP_GRAD_SYNC:
            DT_TRY(check_sync_op(p, s, m, i, &x, err));
            *(op->flags & DT_OPF_TIED ? &x.tied : &x.syncs) += 1;
            break;
        case DT_OP_PARAM_GATHER:
            DT_TRY(check_gather(p, m, i, err));
            x.gathers++;
            break;
        case DT_OP_GRAD_NORM:
            if (op->peer != s->norm_group ||
                (x.last_compute != DT_NONE && !dt_check_waits(p, i, x.last_compute)))
                return dt_check_fail(err, p, i, "does not wait for the lane's last backward");
            x.norm = i;
            x.norms++;
            break;
        case DT_OP_STEP:
            if (x.norms != 1 || !dt_check_waits(p, i, x.norm))
                return dt_check_fail(err, p, i, "does not wait for the gradient norm");
            x.steps++;
            break;
        default:
            break;
        }
    }
    if (x.syncs != dt_fill_syncs(m, l->stage) || x.gathers != dt_fill_head(m, l->stage) ||
        x.tied != dt_fill_tied(s, m, l->stage) || x.norms != m->lane_trains[l->stage] ||
        x.steps != m->lane_trains[l->stage])
        return dt_error_set(err, DT_ERR_INTERNAL,
                            "program: %s/%d.%d lacks a sync, gather, norm or step", m->mod->name,
                            l->replica, l->stage);
    return DT_OK;
}

enum dt_status dt_check_sync(const struct dt_program *p, struct dt_sched *s, struct dt_error *err)
{
    DT_TRY(check_groups(p, err));
    for (uint32_t l = 0; l < s->n_lanes; l++)
        DT_TRY(check_lane(p, s, l, err));
    return DT_OK;
}
