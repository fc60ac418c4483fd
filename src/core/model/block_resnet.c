/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * ResBlocks of a U-Net: two convolutions, the time embedding between them, a shortcut.
 *
 *   GN -> conv (c_out/tp) -> GN(c_out/tp) -> conv (c_in/tp) -AR-> + shortcut */
#include "core/model/block_ops.h"

#include <math.h>

static void params(const struct dt_block *b, struct dt_block_param_counts *p)
{
    int64_t i = b->c_in, o = b->c_out, taps = (int64_t)b->kernel * b->kernel;

    dt_block_count_norm(p, 1, i, true);
    dt_block_count_linear(p, 1, i * taps, o, true);
    dt_block_count_linear(p, 1, b->time_dim, o, true);
    dt_block_count_norm(p, 1, o, true);
    dt_block_count_linear(p, 1, o * taps, o, true);
    if (i != o)
        dt_block_count_linear(p, 1, i, o, true);
}

static void kernels(const struct dt_block *b, struct dt_kop_list *o)
{
    double tokens = o->w.tokens * dt_block_level_scale(b->level);
    double mid = dt_block_ceil_div(b->c_out, o->w.tp);

    dt_kop_emit_pointwise(o, DT_KOP_GROUPNORM, tokens, b->c_in, 0, 3, true, 1);
    dt_kop_emit_pointwise(o, DT_KOP_ACT, tokens, b->c_in, 0, 2, false, 1);
    dt_kop_emit_conv(o, tokens, b->c_in, mid, b->kernel, 1);
    dt_kop_emit_gemm(o, o->w.n, mid, b->time_dim,
                     1); /* time embedding of each item, added to its channels */
    dt_kop_emit_pointwise(o, DT_KOP_GROUPNORM, tokens, mid, 0, 3, true, 1);
    dt_kop_emit_pointwise(o, DT_KOP_ACT, tokens, mid, 0, 2, false, 1);
    dt_kop_emit_conv(o, tokens, mid, b->c_out, b->kernel, 1);
    if (b->c_in != b->c_out)
        dt_kop_emit_conv(o, tokens, dt_block_ceil_div(b->c_in, o->w.tp), b->c_out, 1, 1);
    dt_kop_emit_coll(o, DT_KOP_ALL_REDUCE, o->w.tp, DT_ELEM_BYTES * tokens * b->c_out, 1);
    dt_kop_emit_pointwise(o, DT_KOP_ADD, tokens, b->c_out, 0, 3, false, 1);
}

/* GroupNorm and SiLU are one kernel: it keeps its input and its output, the convolution's input.
 * Channels are split in whole groups of the second norm. */
static double kept(const struct dt_block *b, const struct dt_block_share *w, bool keep_cheap,
                   double e)
{
    double tokens = w->tokens * dt_block_level_scale(b->level);
    double all = dt_block_groups(b, b->c_out), groups = dt_block_ceil_div(all, w->tp);
    double sum = e * tokens * (keep_cheap ? 2 : 1) * (b->c_in + groups * (b->c_out / all));

    if (keep_cheap)
        sum += dt_block_stat_bytes(true) * w->n * (dt_block_groups(b, b->c_in) + groups);
    return sum;
}

static double input(const struct dt_block *b, const struct dt_block_share *w, double e)
{
    return e * (w->tokens * dt_block_level_scale(b->level)) * b->c_in;
}

static double flow(const struct dt_block *b, const struct dt_block_cpu *c)
{
    return c->e * c->rows * fmax(b->c_in - c->skip, b->c_out);
}

static double temporaries(const struct dt_block *b, const struct dt_block_cpu *c)
{
    double mid = ceil(b->c_out / c->tp);

    return c->e * c->rows *
           (mid + b->c_in * (c->skip > 0 ? 2.0 : 1.0) +
            (c->tp > 1 && b->c_in != b->c_out ? (double)b->c_in * (1 + 1 / c->tp) : 0));
}

static double scratch(const struct dt_block *b, const struct dt_block_cpu *c)
{
    return dt_block_cpu_filter(b, c, b->c_out > b->c_in ? b->c_out : b->c_in);
}

const struct dt_block_row dt_block_resnet = {
    .by_items = dt_block_always,
    .params = params,
    .kernels = kernels,
    .kept = kept,
    .input = input,
    .cpu_flow = flow,
    .cpu_temporaries = temporaries,
    .cpu_packed = dt_block_cpu_all,
    .cpu_scratch = scratch,
};
