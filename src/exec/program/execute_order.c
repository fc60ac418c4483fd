/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * One order for all ops of a process; of it those whose lanes are here.
 *
 * Compute ops and collectives follow the program's topological order.  Messages and fetches are
 * pulled in by whoever needs them, right before it, so that data waits in memory no longer than it
 * must; the dependencies of every op still come before it. */
#include "exec/program/execute_impl.h"

#include <string.h>

static void place(struct dt_exec_iteration *it, const struct dt_exec_ranks *ranks, uint32_t i);

static void put(struct dt_exec_iteration *it, const struct dt_exec_ranks *ranks, uint32_t i)
{
    it->placed[i] = 1;
    if (dt_exec_here(ranks, &it->p->ops[i]))
        it->order[it->n_order++] = i;
}

static void place_deps(struct dt_exec_iteration *it, const struct dt_exec_ranks *ranks, uint32_t i)
{
    const struct dt_op *op = &it->p->ops[i];

    for (int k = 0; k < 3; k++)
        if (op->dep[k] != DT_NONE)
            place(it, ranks, op->dep[k]);
    for (uint32_t k = 0; k < op->more_n; k++)
        place(it, ranks, it->p->deps[op->more_first + k]);
    if (op->kind == DT_OP_RECV)
        place(it, ranks, op->peer);
}

/* Depth: chains of messages that nobody has asked for yet. */
static void place(struct dt_exec_iteration *it, const struct dt_exec_ranks *ranks, uint32_t i)
{
    const struct dt_op *op = &it->p->ops[i];

    if (it->placed[i])
        return;
    if (dt_op_resource(op->kind) != DT_RES_COLL) {
        place_deps(it, ranks, i);
        put(it, ranks, i);
        return;
    }
    /* all members together, after what any of them waits for */
    const struct dt_group *g = &it->p->groups[op->peer];
    for (uint32_t k = 0; k < g->n; k++)
        place_deps(it, ranks, it->p->group_ops[g->first + k]);
    for (uint32_t k = 0; k < g->n; k++)
        put(it, ranks, it->p->group_ops[g->first + k]);
}

/* A step is made when the losses of all samples are known.  Where modules share GPUs a frozen one may
 * have forwards left when another steps: whoever waited for losses there would wait for itself. */
static bool forward_after_step(const struct dt_exec_iteration *it)
{
    bool step = false;

    for (uint32_t k = 0; k < it->n_order; k++) {
        enum dt_op_kind kind = it->p->ops[it->order[k]].kind;

        if (kind == DT_OP_FORWARD && step)
            return true;
        step |= kind == DT_OP_STEP;
    }
    return false;
}

enum dt_status dt_exec_make_order(struct dt_exec_iteration *it, const struct dt_exec_ranks *ranks,
                                  struct dt_error *err)
{
    const struct dt_program *p = it->p;
    struct dt_timeline_topo topo = {0};

    if (dt_grow((void **)&it->order, &it->cap_order, p->n_ops + 1u, sizeof(*it->order)) ||
        dt_grow((void **)&it->placed, &it->cap_placed, p->n_ops + 1u, sizeof(*it->placed)))
        return dt_error_nomem(err, "the order of a program");
    memset(it->placed, 0, p->n_ops);
    it->n_order = 0;
    DT_TRY(dt_timeline_topo_build(p, err, &topo));
    for (uint32_t k = 0; k < topo.n; k++) {
        enum dt_op_resource r = dt_op_resource(p->ops[topo.order[k]].kind);

        if (r == DT_RES_COMPUTE || r == DT_RES_COLL)
            place(it, ranks, topo.order[k]);
    }
    for (uint32_t k = 0; k < topo.n; k++)
        place(it, ranks, topo.order[k]);
    dt_timeline_topo_free(&topo);
    it->late_steps = forward_after_step(it);
    return DT_OK;
}
