/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * LM heads: final norm, logits and loss.  The loss is computed chunk by chunk together with its gradient, which lies
 * where the norm's output would. */
#include "core/model/block_ops.h"

#include <math.h>

/* derived: the limits of kernels/cpu/softmax_simd.c */
#define LOGITS_BYTES 335544320.0
enum { CHUNK_MAX = 1024, CHUNK_MIN = 16, LOGITS_WIDE = 1024 };

static void params(const struct dt_block *b, struct dt_block_param_counts *p)
{
    if (!b->norm_free)
        dt_block_count_norm(p, 1, b->hidden, b->layernorm);
    p->matrices = b->tied ? 0 : (int64_t)b->vocab * b->hidden;
}

/* Beside sequence parallelism rows are whole already, but every rank has the gradient of its share of the vocabulary. */
void dt_block_head_enter(const struct dt_block *b, struct dt_kop_list *o)
{
    if (o->w.seqpar)
        dt_kop_emit_tp_enter(o, o->w.tokens, b->hidden);
    else
        dt_kop_emit_all_reduce(o, DT_ELEM_BYTES * o->w.tokens * b->hidden, 0, 1);
}

/* Maximum, target logit and sum of exponentials, one fp32 per token each. */
void dt_block_head_sums(struct dt_kop_list *o)
{
    dt_kop_emit_all_reduce(o, 4 * o->w.tokens, 3, 0);
}

static void fused(const struct dt_block *b, struct dt_kop_list *o)
{
    double v = dt_block_ceil_div(b->vocab, o->w.tp);

    dt_kop_emit_pointwise(o, DT_KOP_NORM, o->w.norm_tokens, b->hidden, 0, 2, true, 1);
    dt_block_head_enter(b, o);
    dt_kop_emit_gemm(o, o->w.tokens, v, b->hidden, 1);
    dt_block_head_sums(o);
    dt_kop_emit_pointwise(o, DT_KOP_XENT, o->w.tokens, v, 0, 2, false, 1);
}

static void kernels(const struct dt_block *b, struct dt_kop_list *o)
{
    if (b->unfused)
        dt_block_unfused_head(b, o);
    else
        fused(b, o);
}

static double kept(const struct dt_block *b, const struct dt_block_share *w, bool keep_cheap,
                   double e)
{
    return w->norm_tokens * (e * b->hidden * (keep_cheap ? 2 : 1) +
                             (keep_cheap ? dt_block_stat_bytes(b->layernorm) : 0));
}

static double temporaries(const struct dt_block *b, const struct dt_block_cpu *c)
{
    return c->e * (c->own + (c->tp > 1 ? 3 * c->tokens : 0)) * b->hidden;
}

static double packed(const struct dt_block *b, const struct dt_block_cpu *c)
{
    return (double)b->vocab * b->hidden / c->tp;
}

/* A chunk of logits and, where it does not take their place, their gradient. */
static double scratch(const struct dt_block *b, const struct dt_block_cpu *c)
{
    double vocab = ceil(b->vocab / c->tp), block = vocab < LOGITS_WIDE ? 32 : 64;
    double each = c->e < 4 ? 4 + c->e : 4, rows, even;

    each *= ceil(vocab / block) * block;
    rows = fmax(CHUNK_MIN, fmin(CHUNK_MAX, floor(LOGITS_BYTES / each / CHUNK_MIN) * CHUNK_MIN));
    even = ceil(c->tokens / fmax(1, ceil(c->tokens / rows))); /* chunks of equal length */
    return fmin(c->tokens, ceil(even / CHUNK_MIN) * CHUNK_MIN) * each;
}

const struct dt_block_row dt_block_head = {
    .by_items = dt_block_never,
    .params = params,
    .kernels = kernels,
    .kept = kept,
    .input = dt_block_input_stream,
    .cpu_flow = dt_block_cpu_stream,
    .cpu_temporaries = temporaries,
    .cpu_packed = packed,
    .cpu_scratch = scratch,
};
