/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * All plans of small worlds: every layout of the LLM with every split, and around it what a test puts there. */
#ifndef DT_TESTS_BRUTE_PLANS_H
#define DT_TESTS_BRUTE_PLANS_H

#include "small_world.h"

struct brute {
    const struct dt_search_input *in;
    struct dt_plan p, best_plan;
    struct dt_orch_table
        *expected; /* memory for what is to be expected, too; NULL: for what is assigned alone */
    double best;
    int llm, blocks;
};

static void time_it(struct brute *b)
{
    struct dt_plan p = b->p;
    double s = timeline_of(b->in, &p);

    if (s >= b->best || (b->expected && dt_orch_check_expected(b->expected, &p, NULL) != DT_OK))
        return;
    b->best = s;
    b->best_plan = p;
}

/* All ways of dealing the LLM's blocks to its stages. */
static void splits(struct brute *b, int stage, void (*then)(struct brute *b))
{
    struct dt_plan_module *mp = &b->p.modules[b->llm];

    if (stage == mp->layout.pp) {
        mp->split[stage] = (uint16_t)b->blocks;
        then(b);
        return;
    }
    for (int at = mp->split[stage - 1] + 1; at <= b->blocks - (mp->layout.pp - stage); at++) {
        mp->split[stage] = (uint16_t)at;
        splits(b, stage + 1, then);
    }
}

static struct brute all; /* a plan is large */

static double enumerate(const struct dt_search_input *in, struct dt_orch_table *expected, int gpus,
                        void (*around)(struct brute *b))
{
    all = (struct brute){.in = in, .expected = expected, .best = HUGE_VAL, .llm = in->model->llm};
    all.blocks = in->model->modules[all.llm].n_blocks;
    dt_search_plan_init(in, &all.p);
    for (int tp = 1; tp <= 8 && (in->opt.tp_mask & (unsigned)tp); tp *= 2)
        for (int dp = 1; dp <= in->policy.global_batch; dp *= 2)
            for (int pp = 1; pp <= all.blocks && tp * dp * pp <= gpus; pp++) {
                all.p.modules[all.llm].layout = (struct dt_plan_layout){tp, 1, 1, pp, 1, dp, 1, 0};
                splits(&all, 1, around);
            }
    return all.best;
}

#endif
