/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Transformer layers: attention and MLP, dense or of experts.
 *
 * Tensor parallelism is Megatron's (Shoeybi et al. 2019; sequence parallelism: Korthikanti et al. 2022):
 *
 *   norm(s/tp) -AG-> qkv (n/tp) -> attention (heads/tp) -> out (k/tp) -RS-> add(s/tp)
 *   norm(s/tp) -AG-> up  (n/tp) -> activation           -> down (k/tp) -RS-> add(s/tp)
 *
 * Heads that tp does not divide are dealt unevenly; the list is that of the widest rank. */
#include "core/model/block_ops.h"

#include <math.h>

static void params(const struct dt_block *b, struct dt_block_param_counts *p)
{
    int64_t h = b->hidden, q = (int64_t)b->heads * b->head_dim;
    int64_t kv = (int64_t)b->kv_heads * b->head_dim, experts = b->n_experts > 0 ? b->n_experts : 1;
    bool qkv_bias = b->bias || b->qkv_bias;

    dt_block_count_linear(p, 1, h, q, qkv_bias);
    dt_block_count_linear(p, 2, h, kv, qkv_bias);
    dt_block_count_linear(p, 1, q, h, b->bias);
    dt_block_count_linear(p, experts, h, b->gated ? 2 * (int64_t)b->ffn : b->ffn, b->bias);
    dt_block_count_linear(p, experts, b->ffn, h, b->bias);
    dt_block_count_norm(p, 2, h, b->layernorm);
    if (b->n_experts > 0)
        dt_block_count_linear(p, 1, h, b->n_experts, false); /* router */
    if (b->qk_norm)
        dt_block_count_norm(p, 2, b->head_dim, b->layernorm);
}

static void attention_half(const struct dt_block *b, struct dt_kop_list *o)
{
    const struct dt_block_share *w = &o->w;
    double heads = dt_block_ceil_div(b->heads, w->tp), kv = dt_block_ceil_div(b->kv_heads, w->tp);
    double qd = heads * b->head_dim, kvd = kv * b->head_dim;

    dt_kop_emit_pointwise(o, DT_KOP_NORM, w->norm_tokens, b->hidden, 0, 2, true, 1);
    dt_kop_emit_tp_enter(o, w->tokens, b->hidden);
    dt_kop_emit_gemm(o, w->tokens, qd + 2 * kvd, b->hidden, 1);
    if (b->qk_norm)
        dt_kop_emit_pointwise(o, DT_KOP_NORM, w->tokens * (heads + kv), b->head_dim, 0, 2, true, 1);
    if (b->causal && b->max_pos == 0) /* rotary positions unless they are learned */
        dt_kop_emit_pointwise(o, DT_KOP_ROPE, w->tokens, qd + kvd, 0, 2, false, 1);
    /* context parallelism gathers keys and values and deals the causal triangle evenly */
    dt_kop_emit_coll_apart(o, DT_KOP_ALL_GATHER, w->cp, w->tp,
                           DT_ELEM_BYTES * w->tokens_all * 2 * kvd, 1);
    dt_kop_emit_attention(o, b->causal, w->seq, w->tokens_sq, heads, kv, b->head_dim, 1 / w->cp);
    dt_kop_emit_gemm(o, w->tokens, b->hidden, qd, 1);
    dt_kop_emit_tp_leave(o, w->tokens, b->hidden);
    dt_kop_emit_pointwise(o, DT_KOP_ADD, w->norm_tokens, b->hidden, 0, 3, false, 1);
}

static void mlp_half(const struct dt_block *b, struct dt_kop_list *o)
{
    const struct dt_block_share *w = &o->w;
    double f = dt_block_ceil_div(b->ffn, w->tp), rows = w->tokens, experts = 1;

    dt_kop_emit_pointwise(o, DT_KOP_NORM, w->norm_tokens, b->hidden, 0, 2, true, 1);
    dt_kop_emit_tp_enter(o, w->tokens, b->hidden);
    if (b->n_experts > 0) {
        /* Every expert-parallel rank brings its own tokens and holds n_experts/ep experts: on
         * average it processes tokens*top_k rows, spread evenly (routing imbalance is not
         * modelled). */
        double bytes = DT_ELEM_BYTES * w->norm_tokens * b->top_k * b->hidden;

        experts = dt_block_ceil_div(b->n_experts, w->ep);
        rows = w->tokens * b->top_k / experts;
        dt_kop_emit_gemm(o, w->norm_tokens, b->n_experts, b->hidden, 1);
        /* dispatch and combine; expert groups span lanes */
        dt_kop_emit_coll_apart(o, DT_KOP_ALL_TO_ALL, w->ep, w->tp * w->cp, bytes, 2);
    }
    dt_kop_emit_gemm(o, rows, b->gated ? 2 * f : f, b->hidden, experts);
    dt_kop_emit_pointwise(o, DT_KOP_ACT, rows, f, b->gated, b->gated ? 3 : 2, false, experts);
    dt_kop_emit_gemm(o, rows, b->hidden, f, experts);
    dt_kop_emit_tp_leave(o, w->tokens, b->hidden);
    dt_kop_emit_pointwise(o, DT_KOP_ADD, w->norm_tokens, b->hidden, 0, 3, false, 1);
}

static void kernels(const struct dt_block *b, struct dt_kop_list *o)
{
    if (b->unfused && b->n_experts == 0) {
        dt_block_unfused_transformer(b, o);
        return;
    }
    attention_half(b, o);
    mlp_half(b, o);
}

/* Unfused attention after the paper as it stands: 34 bytes per token and hidden unit (dropout masks
 * included; 24 of them split by tp) and 5 per score (softmax output, dropout mask and output),
 * which `selective` leaves out. */
static double unfused(const struct dt_block *b, const struct dt_block_share *w, bool scores)
{
    double heads = dt_block_ceil_div(b->heads, w->tp), qd = heads * b->head_dim;
    double kvd = dt_block_ceil_div(b->kv_heads, w->tp) * b->head_dim,
           f = dt_block_ceil_div(b->ffn, w->tp);
    double split = DT_ELEM_BYTES * (2 * qd + 2 * kvd + f * (b->gated ? 3 : 2));

    return w->norm_tokens * 10 * b->hidden + w->tokens * split +
           (scores ? 5 * heads * w->tokens * w->seq : 0);
}

static double fused(const struct dt_block *b, const struct dt_block_share *w, bool keep_cheap,
                    double e)
{
    double heads = dt_block_ceil_div(b->heads, w->tp), kv = dt_block_ceil_div(b->kv_heads, w->tp);
    double f = dt_block_ceil_div(b->ffn, w->tp),
           rows = b->n_experts > 0 ? w->tokens * b->top_k : w->tokens;
    double stream = e * w->norm_tokens * b->hidden;
    double attn = e * b->head_dim * (2 * heads + 2 * kv) + 4 * heads;
    double mlp = e * f * (b->gated ? 2 : 1) + (keep_cheap ? e * f : 0);
    double sum = stream * (keep_cheap ? 4 : 2) + w->tokens * attn + rows * mlp;

    if (keep_cheap)
        sum += 2 * dt_block_stat_bytes(b->layernorm) * w->norm_tokens;
    if (b->n_experts > 0) /* the dispatched rows are the experts' own input */
        sum += e * w->norm_tokens * b->top_k * b->hidden;
    if (b->qk_norm) /* q and k before their norm */
        sum += w->tokens * (heads + kv) *
               (e * b->head_dim + (keep_cheap ? dt_block_stat_bytes(b->layernorm) : 0));
    return sum;
}

static double kept(const struct dt_block *b, const struct dt_block_share *w, bool keep_cheap,
                   double e)
{
    return b->unfused ? unfused(b, w, keep_cheap) : fused(b, w, keep_cheap, e);
}

static double temporaries(const struct dt_block *b, const struct dt_block_cpu *c)
{
    double q = ceil(b->heads / c->tp) * b->head_dim, kv = ceil(b->kv_heads / c->tp) * b->head_dim;
    double f = ceil(b->ffn / c->tp), width = q + 2 * kv + q; /* of qkv and of the output */

    width += b->gated ? 3 * f : f;
    width += b->qk_norm ? 3 * (q + kv) : 0;
    width += c->tp > 1 ? 3.0 * b->hidden : 0; /* whole rows, gathered and summed */
    return c->e * (c->tokens * width + 2 * c->own * b->hidden);
}

const struct dt_block_row dt_block_transformer = {
    .by_items = dt_block_never,
    .params = params,
    .kernels = kernels,
    .kept = kept,
    .input = dt_block_input_stream,
    .cpu_flow = dt_block_cpu_stream,
    .cpu_temporaries = temporaries,
    .cpu_packed = dt_block_cpu_all,
    .cpu_scratch = dt_block_cpu_none,
};
