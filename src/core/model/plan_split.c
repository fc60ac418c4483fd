/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Dividing a module's blocks over its pipeline stages: the linear partition problem, solved
 * exactly. */
#include "core/model/plan.h"

#include <assert.h>

/* Greedy from the end: stages needed when none may exceed `limit`; from the end, because the last
 * stages then hold as much as they can ("ties put more blocks late"). */
static int stages_needed(const double *cost, int n, double limit)
{
    int stages = 1;
    double sum = 0;

    for (int b = n - 1; b >= 0; b--) {
        if (cost[b] > limit)
            return n + 1;
        if (sum + cost[b] > limit) {
            stages++;
            sum = 0;
        }
        sum += cost[b];
    }
    return stages;
}

/* The least feasible limit, by bisection on the value down to rounding: two different stage sums of
 * real blocks are much further apart than 1e-14, so the split it gives is the exact one. */
static double least_limit(const double *cost, int n, int v)
{
    double lo = 0, hi = 0;

    for (int b = 0; b < n; b++) {
        hi += cost[b];
        if (cost[b] > lo)
            lo = cost[b];
    }
    hi *= 1 + 1e-12; /* sums from the end round differently */
    for (int i = 0; i < 60 && hi - lo > 1e-14 * hi; i++) {
        double mid = 0.5 * (lo + hi);

        if (stages_needed(cost, n, mid) <= v)
            hi = mid;
        else
            lo = mid;
    }
    return stages_needed(cost, n, lo) <= v ? lo : hi;
}

void dt_plan_split_blocks(const double *cost, int n_blocks, int v, uint16_t *split)
{
    double limit, sum = 0;
    int stage = v - 1, in_stage = 0;

    assert(v >= 1 && n_blocks >= v && n_blocks <= UINT16_MAX);
    limit = least_limit(cost, n_blocks, v);
    split[v] = (uint16_t)n_blocks;
    for (int b = n_blocks - 1; b >= 0; b--) {
        /* A stage also ends when the blocks before it are only just enough for the stages before
         * it. */
        if (in_stage > 0 && stage > 0 && (sum + cost[b] > limit || b + 1 == stage)) {
            split[stage--] = (uint16_t)(b + 1);
            sum = 0;
            in_stage = 0;
        }
        sum += cost[b];
        in_stage++;
    }
    assert(stage == 0);
    split[0] = 0;
}
