/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * The final norm of an encoder. */
#include "core/model/block_ops.h"

static void params(const struct dt_block *b, struct dt_block_param_counts *p)
{
    dt_block_count_norm(p, 1, b->hidden, b->layernorm);
}

static void kernels(const struct dt_block *b, struct dt_kop_list *o)
{
    dt_kop_emit_pointwise(o, DT_KOP_NORM, o->w.norm_tokens, b->hidden, 0, 2, true, 1);
}

static double kept(const struct dt_block *b, const struct dt_block_share *w, bool keep_cheap,
                   double e)
{
    return w->norm_tokens * (e * b->hidden + (keep_cheap ? dt_block_stat_bytes(b->layernorm) : 0));
}

const struct dt_block_row dt_block_norm = {
    .by_items = dt_block_never,
    .params = params,
    .whole = params,
    .kernels = kernels,
    .kept = kept,
    .input = dt_block_input_stream,
    .cpu_flow = dt_block_cpu_stream,
    .cpu_temporaries = dt_block_cpu_none,
    .cpu_packed = dt_block_cpu_none,
    .cpu_scratch = dt_block_cpu_none,
};
