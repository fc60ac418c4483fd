/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Dividing a module's blocks over its pipeline stages: the linear partition problem, solved
 * exactly. */
#include "core/model/plan.h"

#include <assert.h>
#include <math.h>

/* Greedy from the end: stages needed when none may exceed `limit`; from the end, because the last
 * stages then hold as much as they can ("ties put more blocks late").  *most: the largest of them; *next: the least sum
 * that was too much, below which every limit gives the same stages. */
static int stages_needed(const double *cost, int n, double limit, double *most, double *next)
{
    int stages = 1;
    double sum = 0;

    *most = 0;
    *next = HUGE_VAL;
    for (int b = n - 1; b >= 0; b--) {
        double with = sum + cost[b];

        if (with > limit) {
            *next = with < *next ? with : *next;
            stages++;
            with = cost[b];
        }
        sum = with;
        *most = sum > *most ? sum : *most;
    }
    return stages;
}

/* The least feasible limit, but for rounding: sums of the same blocks in another order.  All below `lo` are too little, hi
 * is enough; both are sums of real stages after the first look, so stacks of equal blocks take three or four. */
static double least_limit(const double *cost, int n, int v)
{
    double lo = 0, hi = 0, most, next;

    for (int b = 0; b < n; b++) {
        hi += cost[b];
        lo = cost[b] > lo ? cost[b] : lo;
    }
    lo = fmax(lo, hi / v * (1 - 1e-12));
    hi *= 1 + 1e-12; /* sums from the end round differently */
    for (bool low = true; lo < hi; low = !low) {
        double limit = low ? lo : 0.5 * (lo + hi);

        if (stages_needed(cost, n, limit, &most, &next) > v)
            lo = next;
        else if (low || most <= lo)
            return most * (1 + 5e-15);
        else
            hi = most;
    }
    return hi * (1 + 5e-15);
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
