/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * ZB-H1 (Qi et al. 2024, "Zero Bubble Pipeline Parallelism"): 1F1B whose backward is split.  B, the gradient of the
 * input, is what the stage in front waits for and takes its turn as in 1F1B; W, the gradient of the weights, is put off
 * by as many backwards as there are stages in front, so that it fills the gap in which gradients travel there:
 *
 *     stage 0    F0 F1 F2 F3          B0 W0 F4 B1 W1 F5 B2 W2    B3 W3    B4 W4    B5 W5
 *     stage 1       F0 F1 F2       B0 F3 B1 W0 F4 B2 W1 F5 B3 W2 B4 W3    B5 W4 W5
 *     stage 2          F0 F1    B0 F2 B1 F3 B2 W0 F4 B3 W1 F5 B4 W2 B5 W3 W4 W5
 *     stage 3             F0 B0 F1 B1 F2 B2 F3 B3 W0 F4 B4 W1 F5 B5 W2 W3 W4 W5
 *
 * With p equal stages, n >= p and W <= B an iteration takes n (F + B + W) + (p - 1)(F + B - W), where 1F1B takes
 * (n + p - 1)(F + B + W).  A lane holds as much between F and B as in 1F1B, and nowhere more than p microbatches
 * between F and W: what the first stage holds in 1F1B.
 *
 * No other lane waits for a W, so it closes no circle, whatever the order of F and B. */
#include "core/pipeline/pipeline.h"

static int64_t in_flight(const struct dt_pipe_lane *l)
{
    return dt_pipe_1f1b.in_flight(l);
}

static int depth(const struct dt_pipe_lane *l)
{
    return dt_pipe_1f1b.depth(l);
}

static uint32_t order(const struct dt_pipe_lane *l, int64_t held, const bool *backward,
                      uint32_t *code)
{
    return dt_pipe_1f1b.order(l, held, backward, code);
}

static int put_off(const struct dt_pipe_lane *l)
{
    return l->before;
}

const struct dt_pipe dt_pipe_zb_h1 = {
    .bounded = true, .in_flight = in_flight, .depth = depth, .order = order, .put_off = put_off};
