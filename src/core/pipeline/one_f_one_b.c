/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * 1F1B (PipeDream-flush; Narayanan et al. 2021):
 *
 *     F0 F1 F2 | F3 B0 | F4 B1 | ... | B5 B6 B7
 *     warm-up    one forward, one backward
 *
 * Why it cannot deadlock in any graph whose transfers stay inside their slot: let a be the stages after a lane on the
 * longest path.  Give F(k) the time 2k - a and B(k) the time 2k + a + 1.  Data flows to smaller a, so times grow along
 * every dependency, and sorting a lane by them gives exactly warm-up min(n, a) and 1F1B.
 *
 * The warm-up is the in-flight bound of the memory model less one, so that order and memory cannot disagree. */
#include "core/pipeline/pipeline.h"

static int64_t in_flight(const struct dt_pipe_lane *l)
{
    int64_t want = (int64_t)l->pp - l->stage + l->behind;

    return want < l->n ? want : l->n;
}

static int depth(const struct dt_pipe_lane *l)
{
    return l->pp + l->behind;
}

static uint32_t forward_at(const struct dt_pipe_lane *l, uint32_t i)
{
    (void)l;
    return DT_CODE(i, 0, DT_CODE_FORWARD);
}

static uint32_t backward_at(const struct dt_pipe_lane *l, uint32_t i)
{
    (void)l;
    return DT_CODE(i, 0, DT_CODE_BACKWARD);
}

static uint32_t order(const struct dt_pipe_lane *l, int64_t held, const bool *backward,
                      uint32_t *code)
{
    return dt_pipe_in_turn(l, held, backward, forward_at, backward_at, code);
}

const struct dt_pipe dt_pipe_1f1b = {
    .bounded = true, .in_step = true, .in_flight = in_flight, .depth = depth, .order = order};
