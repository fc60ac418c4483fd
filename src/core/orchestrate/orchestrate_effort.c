/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * How long the planner looks: what each effort allows itself.  Every effort asks the same questions of the same cost and
 * memory models and accepts a plan by the same checks; they differ in how many layouts are looked at, and in how many
 * programs are timed, of how many of the replicas. */
#include "core/orchestrate/orchestrate_internal.h"

#include <math.h>

/* A layout that is costed takes as long as so many ops that are timed: 0.3 to 0.6 us against 0.16 us, as seen. */
enum { LAYOUT_OPS = 3 };

const char *const dt_search_effort_names[DT_EFFORT_N + 1] = {
    [DT_EFFORT_NORMAL] = "normal",
    [DT_EFFORT_QUICK] = "quick",
    [DT_EFFORT_THOROUGH] = "thorough",
};
const char *const dt_search_effort_help[DT_EFFORT_N + 1] = {
    [DT_EFFORT_NORMAL] = "a second or two on a thousand GPUs",
    [DT_EFFORT_QUICK] = "about a tenth of one, for many questions one after the other",
    [DT_EFFORT_THOROUGH] = "several times as many candidates as normal",
};

static const struct dt_orch_effort efforts[DT_EFFORT_N] = {
    [DT_EFFORT_NORMAL] = {.pool = 96,
                          .margin = 0.06,
                          .wide = true,
                          .budget = DT_SEARCH_BUDGET,
                          .first_samples = 256,
                          .rank_ops = 1.2e5,
                          .again = 0.015,
                          .again_guests = 0.003,
                          .hosts = 24,
                          .guest_budget = 600000,
                          .polish = 3,
                          .together = 4.7,
                          .work = 7.5,
                          .reorder_ops = 7e5,
                          .reorder_program = 4e5,
                          .close = 0.015},
    [DT_EFFORT_QUICK] = {.coarse = true,
                         .pool = 24,
                         .margin = 0.06,
                         .budget = 100000,
                         .first_samples = 64,
                         .rank_ops = 2.5e4,
                         .again = 0.012,
                         .again_guests = 0.012,
                         .most_ops = 4e4,
                         .hosts = 6,
                         .guest_budget = 50000,
                         .reorder_ops = 4e4,
                         .reorder_program = 1e4,
                         .close = 0.012},
    [DT_EFFORT_THOROUGH] = {.pool = 256,
                            .margin = 0.12,
                            .wide = true,
                            .budget = 20000000,
                            .first_samples = 512,
                            .rank_ops = 3e5,
                            .again = 0.03,
                            .again_guests = 0.03,
                            .hosts = 96,
                            .guest_budget = 4800000,
                            .polish = 1,
                            .reorder_ops = 5e6,
                            .reorder_program = 1e6,
                            .close = 0.03},
};

const struct dt_orch_effort *dt_orch_effort_of(const struct dt_search_input *in)
{
    return &efforts[in->opt.effort];
}

int64_t dt_orch_budget(const struct dt_search_input *in)
{
    return in->opt.budget > 0 ? in->opt.budget : dt_orch_effort_of(in)->budget;
}

int64_t dt_orch_polish_end(const struct dt_search_input *in, int64_t ops, int64_t layouts)
{
    const struct dt_orch_effort *e = dt_orch_effort_of(in);
    int64_t budget = dt_orch_budget(in), end = ops + e->polish * budget;

    if (in->opt.neighbours > 0)
        return ops + in->opt.neighbours;
    if (e->together > 0)
        end = (int64_t)fmin((double)end, e->together * (double)budget);
    return (int64_t)fmax((double)end, e->work * (double)budget - LAYOUT_OPS * (double)layouts);
}
