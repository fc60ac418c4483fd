/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Patches of an image into tokens, with class tokens and learned positions. */
#include "core/model/block_ops.h"

static void params(const struct dt_block *b, struct dt_block_param_counts *p)
{
    int64_t h = b->hidden;

    dt_block_count_linear(p, 1, (int64_t)b->patch * b->patch * b->channels, h, b->bias);
    p->vectors += ((int64_t)b->max_pos + b->class_tokens) * h;
}

static void kernels(const struct dt_block *b, struct dt_kop_list *o)
{
    double in = (double)b->patch * b->patch * b->channels;

    dt_kop_emit_gemm(o, o->w.norm_tokens, b->hidden, in, 1);
    if (b->max_pos > 0)
        dt_kop_emit_pointwise(o, DT_KOP_ADD, o->w.norm_tokens, b->hidden, 0, 3, true, 1);
}

/* The pixels of the patches. */
static double kept(const struct dt_block *b, const struct dt_block_share *w, bool keep_cheap,
                   double e)
{
    (void)keep_cheap;
    return e * w->norm_tokens * b->patch * b->patch * b->channels;
}

static double packed(const struct dt_block *b, const struct dt_block_cpu *c)
{
    (void)c;
    return (double)b->patch * b->patch * b->channels * b->hidden;
}

const struct dt_block_row dt_block_patch = {
    .by_items = dt_block_never,
    .params = params,
    .whole = params,
    .kernels = kernels,
    .kept = kept,
    .input = NULL,
    .cpu_flow = dt_block_cpu_stream,
    .cpu_temporaries = dt_block_cpu_none,
    .cpu_packed = packed,
    .cpu_scratch = dt_block_cpu_none,
};
