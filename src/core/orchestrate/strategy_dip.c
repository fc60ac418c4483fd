/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Strategy dip, the second baseline of Entrain's evaluation (arXiv 2605.27918, which calls PipeWeaver, arXiv 2504.14145, so): an
 * encoder has the LLM's TP, PP and DP on the same GPUs and runs in phases (plan_phases.c), samples as they are given.  A generator,
 * which neither knows, lies on the LLM's last stage.
 *
 * Published are the three phases and that both modules are cut into as many stages; ours is what else a plan has: the LLM's layouts
 * are searched, recomputation is the least that fits, and what PipeWeaver searches for itself, the order of the parts of
 * microbatches, is left out. */
#include "core/orchestrate/orchestrate_hosted.h"

#include <math.h>

/* The lane of module m that is as wide as the LLM's, or -1. */
static int lane_of(const struct dt_orch_table *t, const struct dt_orch_cand *c, int m)
{
    int llm = t->in->model->llm;
    const struct dt_orch_lane *wide = &t->space.of[llm].lane[c->of[llm].lane];

    for (int l = 0; l < t->space.of[m].n_lanes; l++) {
        const struct dt_orch_lane *lane = &t->space.of[m].lane[l];

        if (lane->tp == wide->tp && lane->cp == wide->cp && lane->ep == 1)
            return l;
    }
    return -1;
}

/* Encoders pass all slots through as many stages as the LLM has, and back. */
static double guests_s(struct dt_orch_table *t, const struct dt_orch_cand *c,
                       const struct dt_orch_hosted_view *v)
{
    int pp = c->of[t->in->model->llm].pp;
    double sum = 0;

    for (int m = 0; m < t->in->model->llm; m++) {
        int lane = lane_of(t, c, m);
        struct dt_orch_times *x =
            lane < 0 ? NULL : dt_orch_times_of(t, m, lane, 0, 0, t->space.pipe[c->pipe].split);

        if (!x || pp > t->in->model->modules[m].n_blocks)
            return HUGE_VAL;
        sum += t->space.microbatch[c->microbatch] * x->sample_s;
    }
    return sum * (v->steps + pp) / pp;
}

static bool place(struct dt_orch_table *t, const struct dt_orch_cand *c, int variant,
                  struct dt_plan *p)
{
    const struct dt_plan_layout *l = &p->modules[t->in->model->llm].layout;
    struct dt_orch_cand own = *c;

    (void)variant;
    for (int m = t->in->model->llm + 1; m < p->n_modules; m++) {
        struct dt_plan_module *mp = &p->modules[m];

        mp->layout =
            (struct dt_plan_layout){.tp = l->tp,
                                    .cp = 1,
                                    .ep = 1,
                                    .ip = l->cp,
                                    .pp = 1,
                                    .vpp = 1,
                                    .dp = l->dp,
                                    .first_gpu = (l->pp - 1) * l->dp * dt_plan_layout_lane_gpus(l)};
        mp->split[0] = 0;
        mp->split[1] = (uint16_t)t->in->model->modules[m].n_blocks;
        mp->pinned = true;
    }
    for (int m = 0; m < t->in->model->llm; m++) {
        int lane = lane_of(t, c, m);

        if (lane < 0)
            return false;
        own.of[m] =
            (struct dt_orch_choice){.lane = (uint8_t)lane, .pp = (int16_t)l->pp, .dp = l->dp};
        dt_orch_choice_apply(t, m, &own.of[m], 1, p);
        if (!dt_orch_hosted_split(t, &own, m, p))
            return false;
        p->modules[m].phases = true;
    }
    return true;
}

static enum dt_status plan(struct dt_orch_table *t, struct dt_error *err,
                           struct dt_search_result *out)
{
    static const struct dt_orch_hosted class = {
        .strategy = DT_STRATEGY_DIP, .variants = 1, .guests_s = guests_s, .place = place};
    const struct dt_model *m = t->in->model;

    if (m->llm == 0)
        return dt_error_set(err, DT_ERR_INPUT,
                            "strategy dip: it puts encoders before the LLM, and model %s has no "
                            "encoder; use another strategy",
                            m->name);
    return dt_orch_hosted_plans(t, &class, err, out);
}

static void policy(struct dt_plan_policy *y)
{
    y->intra_reorder = y->inter_reorder = y->batch_reorder = false;
}

const struct dt_orch_planner dt_orch_planner_dip = {.plan = plan, .policy = policy};
