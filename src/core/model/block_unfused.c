/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * GPT blocks as Megatron-LM ran them before flash attention: the score matrix goes through HBM
 * several times, dropout is on, the loss is a chain of element-wise kernels on fp32 logits, and
 * every weight gradient is added to the accumulated one by a kernel of its own.
 *
 *   norm > qkv, bias > scores > softmax > dropout > weighted sum > permute > out > bias-dropout-add
 *   norm > up > bias-gelu > down > bias-dropout-add
 *
 * Fused kernels of that code (scale-mask-softmax, bias-gelu, bias-dropout-add) are one pass each.
 * Element-wise kernels are counted in passes of 2 bytes per element over HBM and take the rate of
 * the residual add (3 passes), the plainest streaming kernel of a profile. */
#include "core/model/block_ops.h"

#define MASK 0.5 /* one byte per element */

/* `fwd`, `back`: passes over tokens x width; `calls`: kernels of each phase. */
static struct dt_kop *passes(struct dt_kop_list *o, double tokens, double width, double fwd,
                             double back, double calls, double calls_back)
{
    struct dt_kop *k;

    dt_kop_emit_pointwise(o, DT_KOP_ADD, tokens, width, 0, 3, false, fwd / 3);
    k = &o->k[o->n - 1];
    k->own_back = true;
    k->back = back / 3;
    k->own_calls = true;
    k->calls = (float)calls;
    k->calls_back = (float)calls_back;
    return k;
}

/* fp16 gradient read, fp32 accumulated gradient read and written: 10 bytes per weight and
 * microbatch. */
static void accumulate(struct dt_kop_list *o, double n, double k)
{
    passes(o, k, n, 0, 5, 0, 1)->wgrad_only = true;
}

static void linear(struct dt_kop_list *o, double tokens, double n, double k)
{
    dt_kop_emit_gemm(o, tokens, n, k, 1);
    accumulate(o, n, k);
}

/* `batch` products [m,k].[k,n] in one kernel; both operands are activations. */
static void batched(struct dt_kop_list *o, double batch, double m, double n, double k, double count)
{
    struct dt_kop *op;

    dt_kop_emit_gemm(o, batch * m, n, k, count);
    op = &o->k[o->n - 1];
    op->bytes = DT_ELEM_BYTES * batch * (m * k + k * n + m * n);
    op->has_weight = false;
    op->core = true;
}

/* Means of the sequence lengths as for fused attention: s = tokens_sq / tokens; rows of scores
 * heads x tokens; key/value heads are expanded to query heads. */
static void core(const struct dt_block *b, struct dt_kop_list *o, double heads)
{
    const struct dt_block_share *w = &o->w;
    double s = w->seq > 1 ? w->seq : 1, rows = heads * w->tokens;
    double batch = heads * w->tokens / s;

    o->by_sq = true;
    batched(o, batch, s, s, b->head_dim, 1);
    passes(o, rows, s, 2, 3, 1, 1)->core = true;               /* scale, mask, softmax */
    passes(o, rows, s, 2 + MASK, 2 + MASK, 1, 1)->core = true; /* dropout */
    batched(o, batch, s, b->head_dim, s, 1);
    o->by_sq = false;
    passes(o, w->tokens, heads * b->head_dim, 2, 2, 1, 1); /* permute to tokens x width */
}

static void bias_dropout_add(struct dt_kop_list *o, double tokens, double width)
{
    /* forward: x, residual in, y out, mask out; backward: mask and gradient in, gradient out, its
     * column sum */
    passes(o, tokens, width, 3 + MASK, 3 + MASK, 1, 2);
}

/* Forward x in, y out; backward x and gradient in, gradient out, column sums of two products. */
static void norm(struct dt_kop_list *o, double width)
{
    passes(o, o->w.norm_tokens, width, 2, 4, 1, 2);
}

void dt_block_unfused_transformer(const struct dt_block *b, struct dt_kop_list *o)
{
    const struct dt_block_share *w = &o->w;
    double heads = dt_block_ceil_div(b->heads, w->tp), kv = dt_block_ceil_div(b->kv_heads, w->tp);
    double qd = heads * b->head_dim, kvd = kv * b->head_dim, f = dt_block_ceil_div(b->ffn, w->tp);

    norm(o, b->hidden);
    dt_kop_emit_tp_enter(o, w->tokens, b->hidden);
    linear(o, w->tokens, qd + 2 * kvd, b->hidden);
    if (b->bias || b->qkv_bias)
        passes(o, w->tokens, qd + 2 * kvd, 2, 1, 1, 1);
    if (b->causal && b->max_pos == 0)
        dt_kop_emit_pointwise(o, DT_KOP_ROPE, w->tokens, qd + kvd, 0, 2, false, 1);
    core(b, o, heads);
    linear(o, w->tokens, b->hidden, qd);
    dt_kop_emit_tp_leave(o, w->tokens, b->hidden);
    bias_dropout_add(o, w->norm_tokens, b->hidden);

    norm(o, b->hidden);
    dt_kop_emit_tp_enter(o, w->tokens, b->hidden);
    linear(o, w->tokens, b->gated ? 2 * f : f, b->hidden);
    /* bias and activation; backward: input and gradient in, gradient out, column sum */
    passes(o, w->tokens, f, b->gated ? 3 : 2, b->gated ? 5 : 4, 1, 2);
    linear(o, w->tokens, b->hidden, f);
    dt_kop_emit_tp_leave(o, w->tokens, b->hidden);
    bias_dropout_add(o, w->norm_tokens, b->hidden);
}

void dt_block_unfused_embedding(const struct dt_block *b, struct dt_kop_list *o)
{
    double v = dt_block_ceil_div(b->vocab, o->w.tp);

    dt_kop_emit_pointwise(o, DT_KOP_EMBED, o->w.tokens, b->hidden, 0, 2, true, 1);
    dt_block_embedding_sum(b, o);
    if (b->max_pos > 0)
        dt_kop_emit_pointwise(o, DT_KOP_ADD, o->w.norm_tokens, b->hidden, 0, 3, true, 1);
    passes(o, o->w.norm_tokens, b->hidden, 2 + MASK, 2 + MASK, 1, 1); /* dropout */
    /* the table's gradient is dense: zeroed, scattered into, added to the accumulated one */
    passes(o, v, b->hidden, 0, 6, 0, 2)->wgrad_only = true;
}

void dt_block_unfused_head(const struct dt_block *b, struct dt_kop_list *o)
{
    double v = dt_block_ceil_div(b->vocab, o->w.tp);

    norm(o, b->hidden);
    dt_block_head_enter(b, o);
    linear(o, o->w.tokens, v, b->hidden);
    dt_block_head_sums(o);
    /* Vocabulary-parallel loss, bytes per logit: to fp32 2+4, maximum 4, subtract 4+4, exponential
     * 4+4, sum 4, divide 4+4 = 38; backward: scale 4+4, to fp16 4+2 = 14. */
    passes(o, o->w.tokens, v, 19, 7, 12, 4);
}
