/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * GPipe (Huang et al. 2019): all forwards, then all backwards.  A lane holds every microbatch. */
#include "core/pipeline/pipeline.h"

static int64_t in_flight(const struct dt_pipe_lane *l)
{
    return l->n * l->vpp;
}

static uint32_t order(const struct dt_pipe_lane *l, int64_t held, const bool *backward,
                      uint32_t *code)
{
    uint32_t n = 0;

    (void)held;
    for (uint32_t i = 0; i < (uint32_t)l->n; i++)
        code[n++] = DT_CODE(i, 0, DT_CODE_FORWARD);
    for (uint32_t i = 0; backward[0] && i < (uint32_t)l->n; i++)
        code[n++] = DT_CODE(i, 0, DT_CODE_BACKWARD);
    return n;
}

const struct dt_pipe dt_pipe_gpipe = {.in_flight = in_flight, .order = order};
