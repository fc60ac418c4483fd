/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Strategy distmm (DistMM*), the second baseline of the evaluation, as recalled from the paper's body, not re-checked
 * against it: GPUs proportional to module FLOPs on the samples (training FLOPs: a frozen module counts what it still
 * computes); inside its share every module takes the layouts that the same search finds best. */
#include "core/orchestrate/orchestrate_hosted.h"

#include <math.h>

static double training_flops(const struct dt_orch_table *t, int m)
{
    const struct dt_model *model = t->in->model;
    struct dt_work w;
    double sum = 0;

    dt_search_mean_work(t->in, m, &w);
    for (int b = 0; b < model->modules[m].n_blocks; b++) {
        int passes = dt_plan_trained(&t->scratch, model, m, b)            ? 3
                     : dt_plan_upstream_trained(&t->scratch, model, m, b) ? 2
                                                                          : 1;

        sum += passes * dt_block_flops(&model->modules[m].blocks[b], &w);
    }
    return sum;
}

static enum dt_status plan(struct dt_orch_table *t, struct dt_error *err,
                           struct dt_search_result *out)
{
    double flops[DT_MAX_MODULES], cap[DT_MAX_MODULES], sum = 0;

    for (int m = 0; m < t->in->model->n_modules; m++) {
        flops[m] = training_flops(t, m);
        sum += flops[m];
    }
    for (int m = 0; m < t->in->model->n_modules; m++)
        cap[m] = fmax(1, floor(t->gpus * flops[m] / sum));
    DT_TRY(dt_search_plans(t, cap, DT_STRATEGY_DISTMM, err, out));
    DT_TRY(dt_orch_polish(t, cap, DT_STRATEGY_DISTMM, err, out));
    /* shares of the replicas order the best by milliseconds of their optimizer steps */
    return dt_orch_time_whole(t, err, out);
}

static void policy(struct dt_plan_policy *y)
{
    y->intra_reorder = y->inter_reorder = y->batch_reorder = false;
    y->stepccl = false;
}

const struct dt_orch_planner dt_orch_planner_distmm = {.plan = plan, .policy = policy};
