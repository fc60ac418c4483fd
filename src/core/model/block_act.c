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

double dt_block_stat_bytes(bool mean)
{
    return mean ? 8 : 4;
}

double dt_block_input_stream(const struct dt_block *b, const struct dt_block_share *w, double e)
{
    return e * w->norm_tokens * b->hidden;
}

double dt_block_act_bytes_of(const struct dt_block *b, const struct dt_block_shard *s,
                             const struct dt_work *work, enum dt_block_recompute r, int elem_bytes)
{
    const struct dt_block_row *row = dt_block_row_of(b);
    struct dt_block_share w;

    if (work->n <= 0 || work->tokens <= 0)
        return 0;
    dt_block_share_init(&w, b, s, work);
    if (r == DT_RECOMPUTE_FULL && row->input)
        return row->input(b, &w, elem_bytes);
    return row->kept(b, &w, r == DT_RECOMPUTE_NONE, elem_bytes);
}

double dt_block_act_bytes(const struct dt_block *b, const struct dt_block_shard *s,
                          const struct dt_work *work, enum dt_block_recompute r)
{
    return dt_block_act_bytes_of(b, s, work, r, DT_ELEM_BYTES);
}

/* Elements of the output of a kernel with weights. */
static double output_elems(const struct dt_kop *k)
{
    switch (k->family) {
    case DT_KOP_GEMM:
        return (double)k->d[0] * (double)k->d[1];
    case DT_KOP_CONV2D:
        return (double)k->d[0] * (double)k->d[2];
    case DT_KOP_NORM:
    case DT_KOP_GROUPNORM:
    case DT_KOP_EMBED:
        return (double)k->d[0] * (double)k->d[1];
    case DT_KOP_ATTN_CAUSAL:
    case DT_KOP_ATTN_FULL:
    case DT_KOP_ATTN_CROSS:
    case DT_KOP_ACT:
    case DT_KOP_ADD:
    case DT_KOP_ROPE:
    case DT_KOP_XENT:
    case DT_KOP_ADAMW:
    case DT_KOP_ALL_REDUCE:
    case DT_KOP_ALL_GATHER:
    case DT_KOP_REDUCE_SCATTER:
    case DT_KOP_ALL_TO_ALL:
    case DT_KOP_SEND_RECV:
    case DT_KOP_BLOCK:
    case DT_KOP_CPU_PREP:
    case DT_KOP_CARRY:
    case DT_KOP_FAMILY_N:
        break;
    }
    return 0;
}

double dt_block_stash_bytes(const struct dt_block *b, const struct dt_block_shard *s,
                            const struct dt_work *work, int elem_bytes)
{
    struct dt_kop k[DT_MAX_KOPS];
    double sum = 0;
    int n;

    if (work->n <= 0 || work->tokens <= 0 || b->kind == DT_BLOCK_LM_HEAD)
        return 0;
    n = dt_block_kops(b, s, work, k);
    for (int i = 0; i < n; i++)
        if (k[i].has_weight)
            sum += k[i].count * output_elems(&k[i]);
    if (b->n_experts > 0 &&
        b->shared_ffn == 0) { /* of the output itself, too: experts have copies of its rows */
        struct dt_block_share w;

        dt_block_share_init(&w, b, s, work);
        sum += w.norm_tokens * b->hidden;
    }
    return elem_bytes * sum;
}

double dt_block_keys_bytes(const struct dt_block *b, const struct dt_block_shard *s,
                           const struct dt_work *work, int elem_bytes)
{
    struct dt_kop k[DT_MAX_KOPS];
    double sum = 0;
    int n;

    if (s->cp <= 1 || work->n <= 0 || work->tokens <= 0)
        return 0;
    n = dt_block_kops(b, s, work, k);
    for (int i = 0; i < n; i++)
        if (k[i].again)
            sum += k[i].bytes / DT_ELEM_BYTES;
    return elem_bytes * sum;
}
