/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Activation bytes kept for the backward pass, per kept tensor, after Korthikanti et al. 2022
 * (table 2), with these differences: flash attention keeps no s x s scores, only its output and one
 * fp32 log-sum-exp per head; no dropout masks; gated MLPs and grouped keys/values by their real
 * widths; statistics of norms are counted.  The executor's blocks (exec/modules) allocate exactly
 * this at cp = 1 (tests/test_modules_stage.c, and of the widest member of tp test_modules_tp.c).
 *
 *   transformer layer, bytes per token (e bytes an element, 2 in bf16; q = heads * head_dim,
 *   k = kv_heads * head_dim):
 *
 *     norm inputs (residual stream)   2 x eh              /tp with sequence parallelism
 *     norm outputs                    2 x eh              the same; recomputed under `selective`
 *     norm statistics, fp32           2 x 4 (8 LayerNorm) the same
 *     q, k, v and attention output    e(q + 2k) + eq      /tp
 *     log-sum-exp                     4 heads             /tp
 *     MLP up output                   ef (2ef if gated)   /tp
 *     activation output               ef                  /tp; recomputed under `selective`
 *
 * For h = q = k = f/4 without gate this is 32h + 4 heads + 8: the paper's 34h less its two one-byte
 * dropout masks.  `selective` drops what norms and activation functions produce
 * (dt_kop_family_recomputed); `full` keeps the block's input.  The LM head's loss is computed chunk
 * by chunk together with its gradient, which lies where the norm's output would. */
#include "core/model/block_ops.h"

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

/* Mean and reciprocal deviation (LayerNorm, GroupNorm) or the latter alone (RMSNorm), fp32. */
static double stat_bytes(bool mean)
{
    return mean ? 8 : 4;
}

static double transformer(const struct dt_block *b, const struct dt_block_share *w, bool keep_cheap,
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
        sum += 2 * stat_bytes(b->layernorm) * w->norm_tokens;
    if (b->n_experts > 0) /* the dispatched rows are the experts' own input */
        sum += e * w->norm_tokens * b->top_k * b->hidden;
    if (b->qk_norm) /* q and k before their norm */
        sum += w->tokens * (heads + kv) *
               (e * b->head_dim + (keep_cheap ? stat_bytes(b->layernorm) : 0));
    return sum;
}

/* GroupNorm and SiLU are one kernel: it keeps its input and its output, the convolution's input.
 * Channels are split in whole groups of the second norm. */
static double resnet(const struct dt_block *b, const struct dt_block_share *w, double tokens,
                     bool keep_cheap, double e)
{
    double all = dt_block_groups(b, b->c_out), groups = dt_block_ceil_div(all, w->tp);
    double sum = e * tokens * (keep_cheap ? 2 : 1) * (b->c_in + groups * (b->c_out / all));

    if (keep_cheap)
        sum += stat_bytes(true) * w->n * (dt_block_groups(b, b->c_in) + groups);
    return sum;
}

static double spatial(const struct dt_block *b, const struct dt_block_share *w, double tokens,
                      bool keep_cheap, double e)
{
    double c = b->hidden, heads = dt_block_ceil_div(b->heads, w->tp), width = heads * b->head_dim;
    double f = dt_block_ceil_div(b->ffn, w->tp);
    /* three norms: inputs, and outputs unless recomputed */
    double streams = c * (keep_cheap ? 6 : 3);
    double self = 4 * width, cross = 2 * width;
    double kv = b->context_len > 0 ? 2 * width * w->n * b->context_len : 2 * width * tokens;
    double lse = 4 * 2 * heads * tokens;
    double mlp = f * (keep_cheap ? 3 : 2);
    double outer = c * (keep_cheap ? 3 : 2); /* block input, norm output, input of proj_out */

    double stats = keep_cheap ? stat_bytes(true) : 0;

    return e * tokens * outer + stats * w->n * dt_block_groups(b, b->hidden) +
           b->depth *
               (e * (tokens * (streams + self + cross + mlp) + kv) + lse + 3 * stats * tokens);
}

static double conv(const struct dt_block *b, const struct dt_block_share *w, double tokens,
                   bool keep_cheap, double e)
{
    if (!b->layernorm || !keep_cheap)
        return e * tokens * b->c_in;
    return 2 * e * tokens * b->c_in + stat_bytes(true) * w->n * dt_block_groups(b, b->c_in);
}

/* Tokens of a projector's input on one rank: conditioning states come whole. */
static double projector_tokens(const struct dt_block *b, const struct dt_block_share *w)
{
    if (b->context_len > 0)
        return w->n * b->context_len / w->cp;
    return w->tokens / (w->seqpar ? w->tp : 1);
}

static double projector(const struct dt_block *b, const struct dt_block_share *w, bool keep_cheap,
                        double e)
{
    double tokens = b->context_len > 0 ? w->n * b->context_len / w->cp : w->tokens;
    double in = e * projector_tokens(b, w) * b->in_dim;
    double mid = e * tokens * dt_block_ceil_div(b->mid_dim, w->tp);

    return in + mid * (keep_cheap ? 2 : 1);
}

/* What `full` recompute keeps: the block's input. */
static double block_input(const struct dt_block *b, const struct dt_block_share *w, double tokens,
                          double e)
{
    switch (b->kind) {
    case DT_BLOCK_TRANSFORMER:
    case DT_BLOCK_NORM:
    case DT_BLOCK_LM_HEAD:
        return e * w->norm_tokens * b->hidden;
    case DT_BLOCK_PROJECTOR:
        return e * projector_tokens(b, w) * b->in_dim;
    case DT_BLOCK_SPATIAL_TRANSFORMER:
        return e * tokens * b->hidden;
    case DT_BLOCK_CONV:
    case DT_BLOCK_RESNET:
        return e * tokens * b->c_in;
    case DT_BLOCK_EMBEDDING:
    case DT_BLOCK_PATCH_EMBED:
    case DT_BLOCK_TIME_EMBED:
    case DT_BLOCK_KIND_N:
        break;
    }
    return 0;
}

double dt_block_act_bytes_of(const struct dt_block *b, const struct dt_block_shard *s,
                             const struct dt_work *work, enum dt_block_recompute r, int elem_bytes)
{
    struct dt_block_share w;
    bool keep = r == DT_RECOMPUTE_NONE;
    double tokens, e = elem_bytes;

    if (work->n <= 0 || work->tokens <= 0)
        return 0;
    dt_block_share_init(&w, b, s, work);
    tokens = w.tokens * dt_block_level_scale(b->level);
    switch (b->kind) {
    case DT_BLOCK_EMBEDDING: /* token numbers and positions, int32 */
        return 8 * w.tokens;
    case DT_BLOCK_PATCH_EMBED: /* the pixels of the patches */
        return e * w.norm_tokens * b->patch * b->patch * b->channels;
    case DT_BLOCK_TIME_EMBED:
        return e * w.n * (b->hidden + 2.0 * b->time_dim);
    case DT_BLOCK_TRANSFORMER:
    case DT_BLOCK_PROJECTOR:
    case DT_BLOCK_LM_HEAD:
    case DT_BLOCK_NORM:
    case DT_BLOCK_CONV:
    case DT_BLOCK_RESNET:
    case DT_BLOCK_SPATIAL_TRANSFORMER:
    case DT_BLOCK_KIND_N:
        break;
    }
    if (r == DT_RECOMPUTE_FULL)
        return block_input(b, &w, tokens, e);
    switch (b->kind) {
    case DT_BLOCK_TRANSFORMER:
        return b->unfused ? unfused(b, &w, keep) : transformer(b, &w, keep, e);
    case DT_BLOCK_RESNET:
        return resnet(b, &w, tokens, keep, e);
    case DT_BLOCK_SPATIAL_TRANSFORMER:
        return spatial(b, &w, tokens, keep, e);
    case DT_BLOCK_CONV:
        return conv(b, &w, tokens, keep, e);
    case DT_BLOCK_PROJECTOR:
        return projector(b, &w, keep, e);
    case DT_BLOCK_LM_HEAD:
        return w.norm_tokens *
               (e * b->hidden * (keep ? 2 : 1) + (keep ? stat_bytes(b->layernorm) : 0));
    case DT_BLOCK_EMBEDDING:
    case DT_BLOCK_PATCH_EMBED:
    case DT_BLOCK_NORM:
    case DT_BLOCK_TIME_EMBED:
    case DT_BLOCK_KIND_N:
        break;
    }
    /* final norm */
    return w.norm_tokens * (e * b->hidden + (keep ? stat_bytes(b->layernorm) : 0));
}

double dt_block_act_bytes(const struct dt_block *b, const struct dt_block_shard *s,
                          const struct dt_work *work, enum dt_block_recompute r)
{
    return dt_block_act_bytes_of(b, s, work, r, DT_ELEM_BYTES);
}
