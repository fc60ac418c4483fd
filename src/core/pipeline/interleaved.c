/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Interleaved 1F1B (Narayanan et al. 2021, as in Megatron-core): 1F1B over sequences of chunks.  Forwards come in
 * groups of pp microbatches, chunk by chunk inside a group; backwards likewise with the chunks reversed:
 *
 *     pp 2, vpp 2    group 0          group 1
 *     forwards       0a 1a 0b 1b      2a 3a 2b 3b ...      (a, b: chunks 0 and 1)
 *     backwards      0b 1b 0a 1a      2b 3b 2a 3a ... */
#include "core/pipeline/pipeline.h"

/* Chunk-forwards that the lane runs before its first backward.  Megatron-LM's count, which has behind = 0, plus those
 * of the modules behind, plus a burst: the pp microbatches of a group leave the last chunk within pp turns, the
 * modules behind take one every vpp turns and so return the last of them (pp - 1)(vpp - 1) turns late; without as many
 * more chunk-forwards in flight the lane would wait for it in every group. */
static int warmup(const struct dt_pipe_lane *l)
{
    int burst = l->behind > 0 ? (l->pp - 1) * (l->vpp - 1) : 0;

    return 2 * (l->pp - 1 - l->stage) + (l->vpp - 1) * l->pp + l->behind * l->vpp + burst;
}

static int64_t in_flight(const struct dt_pipe_lane *l)
{
    int64_t want = (int64_t)warmup(l) + 1, all = l->n * l->vpp;

    if (l->vpp == 1)
        return dt_pipe_1f1b.in_flight(l);
    return want < all ? want : all;
}

/* Backward k follows forward warmup + k, and the gradient leaves with the last chunk of a group: count the forwards of
 * chunk 0 done by then.  A group takes its pp microbatches in one burst, the module in front makes them one by one:
 * it must be pp - 1 ahead. */
static int depth(const struct dt_pipe_lane *l)
{
    int most = 0, group = l->pp * l->vpp;

    if (l->vpp == 1)
        return dt_pipe_1f1b.depth(l);
    for (int j = 0; j < l->pp; j++) {
        int done = warmup(l) + (l->vpp - 1) * l->pp + j + 1, rest = done % group;
        int taken = done / group * l->pp + (rest < l->pp ? rest : l->pp) - j;

        most = taken > most ? taken : most;
    }
    return most + l->pp - 1;
}

/* Megatron-core's schedule table with groups of pp microbatches. */
static uint32_t forward_at(const struct dt_pipe_lane *l, uint32_t i)
{
    uint32_t pp = (uint32_t)l->pp, group = pp * (uint32_t)l->vpp, in = i % group;

    return DT_CODE(i / group * pp + in % pp, in / pp, DT_CODE_FORWARD);
}

static uint32_t backward_at(const struct dt_pipe_lane *l, uint32_t i)
{
    uint32_t code = forward_at(l, i);

    return DT_CODE(DT_CODE_MB(code), (uint32_t)l->vpp - 1 - DT_CODE_CHUNK(code), DT_CODE_BACKWARD);
}

/* Writes the code unless its microbatch, or its backward, is not there. */
static void write_code(const struct dt_pipe_lane *l, const bool *backward, uint32_t c,
                       uint32_t *code, uint32_t *n)
{
    if (DT_CODE_MB(c) < (uint64_t)l->n &&
        (DT_CODE_KIND(c) == DT_CODE_FORWARD || backward[DT_CODE_CHUNK(c)]))
        code[(*n)++] = c;
}

/* A last group of fewer than pp microbatches: the order of whole groups without what is not there.  Lanes that do not
 * wait for each other in a circle do not when some of their work goes, and hold no more. */
static uint32_t order(const struct dt_pipe_lane *l, int64_t held, const bool *backward,
                      uint32_t *code)
{
    struct dt_pipe_lane whole = *l;
    uint32_t n = 0, total, ahead;

    if (l->vpp == 1 || l->n % l->pp == 0)
        return dt_pipe_in_turn(l, held, backward, forward_at, backward_at, code);
    whole.n = (l->n / l->pp + 1) * l->pp;
    total = (uint32_t)(whole.n * l->vpp);
    ahead = (uint32_t)in_flight(&whole) - 1;
    for (uint32_t i = 0; i < total + ahead; i++) {
        if (i < total)
            write_code(l, backward, forward_at(l, i), code, &n);
        if (i >= ahead)
            write_code(l, backward, backward_at(l, i - ahead), code, &n);
    }
    return n;
}

const struct dt_pipe dt_pipe_interleaved = {
    .chunks = true, .bounded = true, .in_flight = in_flight, .depth = depth, .order = order};
