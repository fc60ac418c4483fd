/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Activation bytes kept for the backward pass, per kept tensor, after Korthikanti et al. 2022
 * (table 2), with these differences: flash attention keeps no s x s scores, only its output and one
 * fp32 log-sum-exp per head; no dropout masks; gated MLPs and grouped keys/values by their real
 * widths.
 *
 *   transformer layer, bytes per token (2-byte elements; q = heads*head_dim, k =
 * kv_heads*head_dim): norm inputs (residual stream)   2 x 2h            /tp with sequence
 * parallelism norm outputs                    2 x 2h            /tp with s.p.; recomputed under
 * `selective` q, k, v and attention output    2(q + 2k) + 2q    /tp log-sum-exp 4 heads /tp MLP up
 * output                   2f (4f if gated)  /tp activation output               2f /tp; recomputed
 * under `selective`
 *
 *   For h = q = k = f/4 without gate this is 32h + 4 heads: the paper's 34h less its two one-byte
 * dropout masks. `selective` drops what norms and activation functions produce (dt_recomputed);
 * `full` keeps the block's input. Logits and the loss live only within one microbatch's head: the
 * memory model charges them as workspace. */
#include "core/block_ops.h"

static double transformer(const struct dt_block *b, const struct dt_share *w, bool keep_cheap)
{
    double heads = dt_ceil_div(b->heads, w->tp), kv = dt_ceil_div(b->kv_heads, w->tp);
    double f = dt_ceil_div(b->ffn, w->tp),
           rows = b->n_experts > 0 ? w->tokens * b->top_k : w->tokens;
    double stream = DT_ELEM_BYTES * w->norm_tokens * b->hidden;
    double attn = DT_ELEM_BYTES * b->head_dim * (2 * heads + 2 * kv) + 4 * heads;
    double mlp = DT_ELEM_BYTES * f * (b->gated ? 2 : 1) + (keep_cheap ? DT_ELEM_BYTES * f : 0);
    double sum = stream * (keep_cheap ? 4 : 2) + w->tokens * attn + rows * mlp;

    if (b->n_experts > 0) /* the dispatched rows are the experts' own input */
        sum += DT_ELEM_BYTES * w->norm_tokens * b->top_k * b->hidden;
    if (b->qk_norm) /* q and k before their norm */
        sum += DT_ELEM_BYTES * w->tokens * b->head_dim * (heads + kv);
    return sum;
}

/* GroupNorm -> SiLU -> conv keeps the norm's input, the norm's output (SiLU's input) and the conv's
 * input. */
static double resnet(const struct dt_block *b, double tokens, double tp, bool keep_cheap)
{
    double per_stage = keep_cheap ? 3 : 1;

    return DT_ELEM_BYTES * tokens * per_stage * (b->c_in + dt_ceil_div(b->c_out, tp));
}

static double spatial(const struct dt_block *b, const struct dt_share *w, double tokens,
                      bool keep_cheap)
{
    double c = b->hidden, heads = dt_ceil_div(b->heads, w->tp), width = heads * b->head_dim;
    double f = dt_ceil_div(b->ffn, w->tp);
    double streams =
        c * (keep_cheap ? 6 : 3); /* three norms: inputs, and outputs unless recomputed */
    double self = 4 * width, cross = 2 * width;
    double kv = b->context_len > 0 ? 2 * width * w->n * b->context_len : 2 * width * tokens;
    double lse = 4 * 2 * heads * tokens;
    double mlp = f * (keep_cheap ? 3 : 2);
    double outer = c * (keep_cheap ? 3 : 2); /* block input, norm output, input of proj_out */

    return DT_ELEM_BYTES * tokens * outer +
           b->depth * (DT_ELEM_BYTES * (tokens * (streams + self + cross + mlp) + kv) + lse);
}

static double conv(const struct dt_block *b, const struct dt_share *w, double tokens,
                   bool keep_cheap)
{
    double c_in = b->c_out >= b->c_in ? b->c_in : dt_ceil_div(b->c_in, w->tp);

    return DT_ELEM_BYTES * tokens * c_in * (b->layernorm && keep_cheap ? 3 : 1);
}

static double projector(const struct dt_block *b, const struct dt_share *w, bool keep_cheap)
{
    double tokens = b->context_len > 0 ? w->n * b->context_len / w->cp : w->tokens;
    double in = DT_ELEM_BYTES * tokens / (w->seqpar ? w->tp : 1) * b->in_dim;
    double mid = DT_ELEM_BYTES * tokens * dt_ceil_div(b->mid_dim, w->tp);

    return in + mid * (keep_cheap ? 2 : 1);
}

/* What `full` recompute keeps: the block's input. */
static double block_input(const struct dt_block *b, const struct dt_share *w, double tokens)
{
    switch (b->kind) {
    case DT_BLOCK_TRANSFORMER:
    case DT_BLOCK_NORM:
    case DT_BLOCK_LM_HEAD:
        return DT_ELEM_BYTES * w->norm_tokens * b->hidden;
    case DT_BLOCK_PROJECTOR:
        return DT_ELEM_BYTES * (b->context_len > 0 ? w->n * b->context_len / w->cp : w->tokens) /
               (w->seqpar ? w->tp : 1) * b->in_dim;
    case DT_BLOCK_SPATIAL_TRANSFORMER:
        return DT_ELEM_BYTES * tokens * b->hidden;
    case DT_BLOCK_CONV:
    case DT_BLOCK_RESNET:
        return DT_ELEM_BYTES * tokens * b->c_in;
    default:
        return 0;
    }
}

double dt_block_act_bytes(const struct dt_block *b, const struct dt_shard *s,
                          const struct dt_work *work, enum dt_recompute r)
{
    struct dt_share w;
    bool keep = r == DT_RECOMPUTE_NONE;
    double tokens;

    if (work->n <= 0 || work->tokens <= 0)
        return 0;
    dt_share_init(&w, s, work);
    tokens = w.tokens * dt_level_scale(b->level);
    switch (b->kind) {
    case DT_BLOCK_EMBEDDING: /* token numbers, int64 */
        return 8 * w.tokens;
    case DT_BLOCK_PATCH_EMBED: /* the pixels of the patches */
        return DT_ELEM_BYTES * w.norm_tokens * b->patch * b->patch * b->channels;
    case DT_BLOCK_TIME_EMBED:
        return DT_ELEM_BYTES * w.n * (b->hidden + 2.0 * b->time_dim);
    default:
        break;
    }
    if (r == DT_RECOMPUTE_FULL)
        return block_input(b, &w, tokens);
    switch (b->kind) {
    case DT_BLOCK_TRANSFORMER:
        return transformer(b, &w, keep);
    case DT_BLOCK_RESNET:
        return resnet(b, tokens, w.tp, keep);
    case DT_BLOCK_SPATIAL_TRANSFORMER:
        return spatial(b, &w, tokens, keep);
    case DT_BLOCK_CONV:
        return conv(b, &w, tokens, keep);
    case DT_BLOCK_PROJECTOR:
        return projector(b, &w, keep);
    case DT_BLOCK_LM_HEAD:
        return DT_ELEM_BYTES * w.norm_tokens * b->hidden * (keep ? 2 : 1);
    default: /* final norm */
        return DT_ELEM_BYTES * w.norm_tokens * b->hidden;
    }
}
