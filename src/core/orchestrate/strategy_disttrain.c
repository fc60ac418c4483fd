/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Strategy disttrain: every module has a layout of its own, found by search. */
#include "core/orchestrate/orchestrate_internal.h"

/* Fewer GPUs than modules: all of them share the GPUs and take turns, each with as many replicas as
 * divide the batch. */
static enum dt_status colocated(struct dt_orch_table *t, struct dt_error *err,
                                struct dt_search_result *out)
{
    const struct dt_search_input *stated = t->in;
    struct dt_search_input in = *stated;
    struct dt_plan p;
    int dp = t->gpus;
    enum dt_status st;

    dt_search_plan_init(&in, &p);
    p.colocated = true;
    while (dp > 1 && in.policy.global_batch % ((int64_t)dp * in.policy.microbatch) != 0)
        dp--;
    for (int m = 0; m < p.n_modules; m++)
        p.modules[m].layout.dp = dp;
    in.manual = &p;
    t->in = &in;
    st = dt_orch_plan_stated(t, err, out);
    t->in = stated;
    if (st == DT_OK)
        out->plans[0].strategy = DT_STRATEGY_DISTTRAIN;
    return st;
}

static enum dt_status plan(struct dt_orch_table *t, struct dt_error *err,
                           struct dt_search_result *out)
{
    enum dt_status st;

    if (t->gpus < t->in->model->n_modules)
        return colocated(t, err, out);
    st = dt_search_plans(t, NULL, DT_STRATEGY_DISTTRAIN, err, out);
    if (st != DT_OK && st != DT_ERR_INFEASIBLE)
        return st;
    DT_TRY(dt_orch_place_guests(t, DT_STRATEGY_DISTTRAIN, err, out));
    if (out->n == 0)
        return st;
    return dt_orch_polish(t, NULL, DT_STRATEGY_DISTTRAIN, err, out);
}

const struct dt_orch_planner dt_orch_planner_disttrain = {.plan = plan};
