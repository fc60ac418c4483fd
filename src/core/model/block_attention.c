/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * The attention half of transformer layers: multi-head and grouped, or latent (DeepSeek-V2, 2024: MLA).
 *
 *   latent:  x -> c_q (q_lora) -norm-> q: heads x (head_dim), of which rope_dim are rotated
 *            x -> c_kv (kv_lora) -norm-> k: heads x (head_dim - rope_dim), v: heads x v_dim
 *            x -> rope_dim of every key, shared by all heads
 *
 * Compressed states are made from the sequence-parallel share of the tokens and gathered, as Megatron Core does. */
#include "core/model/block_ops.h"

/* The ways down: made from own tokens, and so whole on every rank of tensor parallelism. */
void dt_block_attention_whole(const struct dt_block *b, struct dt_block_param_counts *p)
{
    if (b->kv_lora == 0)
        return;
    if (b->q_lora > 0) {
        dt_block_count_linear(p, 1, b->hidden, b->q_lora, b->bias);
        dt_block_count_norm(p, 1, b->q_lora, b->layernorm);
    }
    dt_block_count_linear(p, 1, b->hidden, (int64_t)b->kv_lora + b->rope_dim, b->bias);
    dt_block_count_norm(p, 1, b->kv_lora, b->layernorm);
}

static void latent_params(const struct dt_block *b, struct dt_block_param_counts *p)
{
    int64_t q = (int64_t)b->heads * b->head_dim;

    dt_block_attention_whole(b, p);
    dt_block_count_linear(p, 1, b->q_lora > 0 ? b->q_lora : b->hidden, q, b->bias);
    dt_block_count_linear(p, 1, b->kv_lora,
                          (int64_t)b->heads * (b->head_dim - b->rope_dim + b->v_dim), b->bias);
    dt_block_count_linear(p, 1, (int64_t)b->heads * b->v_dim, b->hidden, b->bias);
}

void dt_block_attention_params(const struct dt_block *b, struct dt_block_param_counts *p)
{
    int64_t h = b->hidden, q = (int64_t)b->heads * b->head_dim;
    int64_t kv = (int64_t)b->kv_heads * b->head_dim;
    bool qkv_bias = (b->bias && !b->no_qkv_bias) || b->qkv_bias;

    if (b->kv_lora > 0) {
        latent_params(b, p);
        return;
    }
    dt_block_count_linear(p, 1, h, q, qkv_bias);
    dt_block_count_linear(p, 2, h, kv, qkv_bias);
    dt_block_count_linear(p, 1, q, h, b->bias);
    if (b->qk_norm_whole) {
        dt_block_count_norm(p, 1, q, b->layernorm);
        dt_block_count_norm(p, 1, kv, b->layernorm);
    } else if (b->qk_norm) {
        dt_block_count_norm(p, 2, b->head_dim, b->layernorm);
    }
}

/* Share of the pairs of tokens that a window leaves, in sequences of `seq`: whole blocks of it, or what lies before
 * a token. */
static double within(const struct dt_block *b, double seq)
{
    double w = b->window;

    if (w <= 0 || w >= seq)
        return 1;
    return b->causal ? (2 * seq - w) * w / (seq * seq) : w / seq;
}

/* Context parallelism deals the causal triangle evenly; keys and values, `width` elements a token, are gathered, and
 * again for the backward, since a rank keeps its own tokens' alone. */
static void gather_keys(struct dt_kop_list *o, double width)
{
    const struct dt_block_share *w = &o->w;
    int before = o->n;

    dt_kop_emit_coll_apart(o, DT_KOP_ALL_GATHER, w->cp, w->tp, 0,
                           DT_ELEM_BYTES * w->tokens_all * width, 1);
    if (o->n > before)
        o->k[before].again = true;
}

static void latent_kernels(const struct dt_block *b, struct dt_kop_list *o, double heads)
{
    const struct dt_block_share *w = &o->w;
    double gathered = (b->q_lora > 0 ? b->q_lora : b->hidden) + b->kv_lora + b->rope_dim;

    if (b->q_lora > 0) {
        dt_kop_emit_gemm(o, w->norm_tokens, b->q_lora, b->hidden, 1);
        dt_kop_emit_pointwise(o, DT_KOP_NORM, w->norm_tokens, b->q_lora, 0, 2, true, 1);
    }
    dt_kop_emit_gemm(o, w->norm_tokens, b->kv_lora + b->rope_dim, b->hidden, 1);
    dt_kop_emit_pointwise(o, DT_KOP_NORM, w->norm_tokens, b->kv_lora, 0, 2, true, 1);
    dt_kop_emit_tp_enter(o, w->tokens, gathered);
    dt_kop_emit_gemm(o, w->tokens, heads * b->head_dim, b->q_lora > 0 ? b->q_lora : b->hidden, 1);
    dt_kop_emit_gemm(o, w->tokens, heads * (b->head_dim - b->rope_dim + b->v_dim), b->kv_lora, 1);
    dt_kop_emit_pointwise(o, DT_KOP_ROPE, w->tokens, (heads + 1) * b->rope_dim, 0, 2, false, 1);
    gather_keys(o, heads * (b->head_dim + b->v_dim));
    /* scores are as wide as a query, sums as a value: a head of the mean of the two costs the same */
    dt_kop_emit_attention(o, b->causal, w->seq, w->tokens_sq, heads, heads,
                          (b->head_dim + b->v_dim) / 2.0, within(b, w->seq) / w->cp);
    dt_kop_emit_gemm(o, w->tokens, b->hidden, heads * b->v_dim, 1);
}

static void grouped_kernels(const struct dt_block *b, struct dt_kop_list *o, double heads)
{
    const struct dt_block_share *w = &o->w;
    double kv = dt_block_ceil_div(b->kv_heads, w->tp);
    double qd = heads * b->head_dim, kvd = kv * b->head_dim;

    dt_kop_emit_tp_enter(o, w->tokens, b->hidden);
    dt_kop_emit_gemm(o, w->tokens, qd + 2 * kvd, b->hidden, 1);
    if (b->qk_norm_whole)
        dt_kop_emit_pointwise(o, DT_KOP_NORM, w->tokens, qd + kvd, 0, 2, true, 1);
    else if (b->qk_norm)
        dt_kop_emit_pointwise(o, DT_KOP_NORM, w->tokens * (heads + kv), b->head_dim, 0, 2, true, 1);
    if (b->grid_rope || (b->causal && b->max_pos == 0)) /* rotary unless they are learned */
        dt_kop_emit_pointwise(o, DT_KOP_ROPE, w->tokens, qd + kvd, 0, 2, false, 1);
    gather_keys(o, 2 * kvd);
    dt_kop_emit_attention(o, b->causal, w->seq, w->tokens_sq, heads, kv, b->head_dim,
                          within(b, w->seq) / w->cp);
    dt_kop_emit_gemm(o, w->tokens, b->hidden, qd, 1);
}

void dt_block_attention_kernels(const struct dt_block *b, struct dt_kop_list *o)
{
    const struct dt_block_share *w = &o->w;
    double heads = dt_block_ceil_div(b->heads, w->tp);

    dt_kop_emit_pointwise(o, DT_KOP_NORM, w->norm_tokens, b->hidden, 0, 2, true, 1);
    if (b->kv_lora > 0)
        latent_kernels(b, o, heads);
    else
        grouped_kernels(b, o, heads);
    dt_kop_emit_tp_leave(o, w->tokens, b->hidden);
    if (b->norms == 4)
        dt_kop_emit_pointwise(o, DT_KOP_NORM, w->norm_tokens, b->hidden, 0, 2, true, 1);
    dt_kop_emit_pointwise(o, DT_KOP_ADD, w->norm_tokens, b->hidden, 0, 3, false, 1);
}

/* Compressed states, and normed ones, of own tokens; queries, keys, values, output and log-sum-exp of own heads. */
static double latent_kept(const struct dt_block *b, const struct dt_block_share *w, double heads,
                          bool keep_cheap, double e)
{
    double lora = b->q_lora + b->kv_lora;

    return w->norm_tokens * e * (lora + b->rope_dim + (keep_cheap ? lora : 0)) +
           w->tokens * heads * (e * 2 * (b->head_dim + b->v_dim) + 4);
}

double dt_block_attention_kept(const struct dt_block *b, const struct dt_block_share *w,
                               bool keep_cheap, double e)
{
    double heads = dt_block_ceil_div(b->heads, w->tp), kv = dt_block_ceil_div(b->kv_heads, w->tp);
    double sum, stat = keep_cheap ? dt_block_stat_bytes(b->layernorm) : 0;

    if (b->kv_lora > 0)
        return latent_kept(b, w, heads, keep_cheap, e);
    sum = w->tokens * (e * b->head_dim * (2 * heads + 2 * kv) + 4 * heads);
    if (b->qk_norm || b->qk_norm_whole) /* q and k before their norm */
        sum += w->tokens *
               ((heads + kv) * e * b->head_dim + (b->qk_norm_whole ? 2 : heads + kv) * stat);
    return sum;
}
