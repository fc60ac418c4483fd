/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Inside block*.c only: a lane rank's share of the work, and writers that append kernels. */
#ifndef DT_CORE_MODEL_BLOCK_OPS_H
#define DT_CORE_MODEL_BLOCK_OPS_H

#include "core/model/model.h"

enum { DT_ELEM_BYTES = 2 }; /* bf16 activations and weights */

struct dt_block_share { /* what one rank of the lane processes, before tensor parallelism */
    double n;           /* items */
    double tokens;      /* tokens of this rank (context parallelism divides them) */
    double tokens_all;  /* tokens before context parallelism */
    double tokens_sq;   /* attention work before context parallelism */
    double seq;         /* mean sequence length as attention sees it: tokens_sq / tokens */
    /* tokens of norms and residuals: divided by tp under sequence parallelism */
    double norm_tokens;
    double tp, cp, ep;
    bool seqpar;
};

struct dt_kop_list {
    struct dt_kop *k;
    int n;
    bool again; /* k is the list for other tokens_sq: what does not vary with them stays */
    bool by_sq; /* what is being written does */
    struct dt_block_share w;
};

/* Image parallelism: whole items go to ip ranks, so the lane is as slow as the fullest rank.  Its
 * share is at least total/ip and at least the largest item; both as a fraction of the total,
 * applied to every sum. */
void dt_block_share_init(struct dt_block_share *w, const struct dt_block *b,
                         const struct dt_block_shard *s, const struct dt_work *work);

static inline double dt_block_ceil_div(double a, double b)
{
    int64_t x = (int64_t)a, y = (int64_t)b;

    return (double)((x + y - 1) / y);
}

void dt_kop_emit_gemm(struct dt_kop_list *o, double m, double n, double k, double count);
/* Element-wise kernels: `passes` = reads + writes of a tokens x width tensor. */
void dt_kop_emit_pointwise(struct dt_kop_list *o, enum dt_kop_family f, double tokens, double width,
                           int64_t extra, double passes, bool has_weight, double count);
/* bytes: full buffer, nccl-tests convention.  The group is GPUs that are `stride` apart (1: neighbours); the
 * block does not know nodes, the cost model finds how many of a group share one. */
void dt_kop_emit_coll_apart(struct dt_kop_list *o, enum dt_kop_family f, double gpus, double stride,
                            double bytes, double count);
void dt_kop_emit_coll(struct dt_kop_list *o, enum dt_kop_family f, double gpus, double bytes,
                      double count);
/* Self-attention over sequences of mean length seq with total squared length tokens_sq. */
void dt_kop_emit_attention(struct dt_kop_list *o, bool causal, double seq, double tokens_sq,
                           double heads, double kv_heads, double head_dim, double count);
void dt_kop_emit_cross(struct dt_kop_list *o, double items, double tokens, double heads,
                       double kv_len, double head_dim, double count);
void dt_kop_emit_conv(struct dt_kop_list *o, double pixels, double c_in, double c_out, int kernel,
                      int stride);

/* Enter and leave the part of a block that is split by tp: all-gather in and reduce-scatter out
 * under sequence parallelism, else one all-reduce out. */
void dt_kop_emit_tp_enter(struct dt_kop_list *o, double tokens, double width);
void dt_kop_emit_tp_leave(struct dt_kop_list *o, double tokens, double width);

/* block_unfused.c */
void dt_block_unfused_transformer(const struct dt_block *b, struct dt_kop_list *o);
void dt_block_unfused_embedding(const struct dt_block *b, struct dt_kop_list *o);
void dt_block_unfused_head(const struct dt_block *b, struct dt_kop_list *o);

/* block_unet.c */
void dt_block_unet_kops(const struct dt_block *b, struct dt_kop_list *o);
/* Latent pixels at a U-Net level: a quarter per level down. */
double dt_block_level_scale(int level);

#endif
