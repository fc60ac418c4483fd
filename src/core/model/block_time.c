/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * The time embedding of a U-Net: an MLP per image, not per token. */
#include "core/model/block_ops.h"

static void params(const struct dt_block *b, struct dt_block_param_counts *p)
{
    dt_block_count_linear(p, 1, b->hidden, b->time_dim, b->bias);
    if (b->depth > 1)
        dt_block_count_linear(p, 1, b->time_dim, b->time_dim, b->bias);
}

/* Two layers on one vector per item; too small to split, so every rank repeats it. */
static void kernels(const struct dt_block *b, struct dt_kop_list *o)
{
    dt_kop_emit_gemm(o, o->w.n, b->time_dim, b->hidden, 1);
    if (b->depth < 2)
        return;
    dt_kop_emit_pointwise(o, DT_KOP_ACT, o->w.n, b->time_dim, 0, 2, false, 1);
    dt_kop_emit_gemm(o, o->w.n, b->time_dim, b->time_dim, 1);
}

static double kept(const struct dt_block *b, const struct dt_block_share *w, bool keep_cheap,
                   double e)
{
    (void)keep_cheap;
    return e * w->n * (b->hidden + 2.0 * b->time_dim);
}

const struct dt_block_row dt_block_time = {
    .by_items = dt_block_always,
    .params = params,
    .whole = params,
    .kernels = kernels,
    .kept = kept,
    .input = NULL,
    .cpu_flow = dt_block_cpu_none,
    .cpu_temporaries = dt_block_cpu_none,
    .cpu_packed = dt_block_cpu_all,
    .cpu_scratch = dt_block_cpu_none,
};
