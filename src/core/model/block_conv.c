/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Single convolutions of a U-Net: conv_in, downsample, upsample, conv_out. */
#include "core/model/block_ops.h"

#include <math.h>

static void params(const struct dt_block *b, struct dt_block_param_counts *p)
{
    int64_t taps = (int64_t)b->kernel * b->kernel;

    if (b->layernorm)
        dt_block_count_norm(p, 1, b->c_in, true);
    dt_block_count_linear(p, 1, b->c_in * taps, b->c_out, true);
}

static void kernels(const struct dt_block *b, struct dt_kop_list *o)
{
    double tokens = o->w.tokens * dt_block_level_scale(b->level);
    double out = b->upsample ? tokens * 4 : b->stride == 2 ? tokens / 4 : tokens;
    bool split_out = b->c_out >= b->c_in;
    double c_in = split_out ? b->c_in : dt_block_ceil_div(b->c_in, o->w.tp);
    double c_out = split_out ? dt_block_ceil_div(b->c_out, o->w.tp) : b->c_out;

    if (b->layernorm) { /* GroupNorm + SiLU in front of conv_out */
        dt_kop_emit_pointwise(o, DT_KOP_GROUPNORM, tokens, c_in, 0, 3, true, 1);
        dt_kop_emit_pointwise(o, DT_KOP_ACT, tokens, c_in, 0, 2, false, 1);
    }
    dt_kop_emit_conv(o, out, c_in, c_out, b->kernel, b->stride);
    dt_kop_emit_coll(o, split_out ? DT_KOP_ALL_GATHER : DT_KOP_ALL_REDUCE, o->w.tp,
                     DT_ELEM_BYTES * out * b->c_out, 1);
}

static double kept(const struct dt_block *b, const struct dt_block_share *w, bool keep_cheap,
                   double e)
{
    double tokens = w->tokens * dt_block_level_scale(b->level);

    if (!b->layernorm || !keep_cheap)
        return e * tokens * b->c_in;
    return 2 * e * tokens * b->c_in +
           dt_block_stat_bytes(true) * w->n * dt_block_groups(b, b->c_in);
}

static double input(const struct dt_block *b, const struct dt_block_share *w, double e)
{
    return e * (w->tokens * dt_block_level_scale(b->level)) * b->c_in;
}

static double flow(const struct dt_block *b, const struct dt_block_cpu *c)
{
    return c->e * c->rows *
           fmax(b->c_in - c->skip, b->c_out * (b->upsample     ? 4
                                               : b->stride > 1 ? 0.25
                                                               : 1));
}

static double temporaries(const struct dt_block *b, const struct dt_block_cpu *c)
{
    if (b->upsample) /* the large input, and it and its gradient again in the backward */
        return c->e * c->rows * 12 * b->c_in;
    if (b->layernorm) /* the last: prediction and its gradient, in fp32 too */
        return c->rows * (c->e * (b->c_in + 2.0 * b->c_out) + 4.0 * b->c_out);
    return !c->last && b->stride == 1 ? 4 * c->rows * b->c_in : 0; /* noisy latents */
}

static double scratch(const struct dt_block *b, const struct dt_block_cpu *c)
{
    return dt_block_cpu_filter(b, c, b->c_in);
}

const struct dt_block_row dt_block_conv = {
    .by_items = dt_block_never,
    .params = params,
    .kernels = kernels,
    .kept = kept,
    .input = input,
    .cpu_flow = flow,
    .cpu_temporaries = temporaries,
    .cpu_packed = dt_block_cpu_all,
    .cpu_scratch = scratch,
};
