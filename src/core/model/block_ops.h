/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Inside block*.c, and the memory model: a lane rank's share of the work, writers that append kernels, and what each
 * kind of block is. */
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
    double tp, cp, ep, ahead;
    bool seqpar, any_routing;
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
/* bytes: full buffer, nccl-tests convention.  The group is GPUs that are `stride` apart (1: neighbours), its first node begins
 * with `ahead` others; the block does not know nodes, the cost model finds how many of a group share one. */
void dt_kop_emit_coll_apart(struct dt_kop_list *o, enum dt_kop_family f, double gpus, double stride,
                            double ahead, double bytes, double count);
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
/* All-reduces over tp that are not as many forward as backward. */
void dt_kop_emit_all_reduce(struct dt_kop_list *o, double bytes, double forward, double backward);
/* block_embedding.c, block_head.c: partial rows that are summed on the way in, of which only gradients of all rows come back;
 * partial gradients, and the sums of the loss over the vocabulary's shards, which the backward has from the forward. */
void dt_block_embedding_sum(const struct dt_block *b, struct dt_kop_list *o);
void dt_block_head_enter(const struct dt_block *b, struct dt_kop_list *o);
void dt_block_head_sums(struct dt_kop_list *o);

/* block_attention.c, block_mlp.c: the halves of a transformer layer.  `whole`: as in the rows; `kept`: bytes for the backward,
 * see block_act.c. */
void dt_block_attention_params(const struct dt_block *b, struct dt_block_param_counts *p);
void dt_block_attention_kernels(const struct dt_block *b, struct dt_kop_list *o);
double dt_block_attention_kept(const struct dt_block *b, const struct dt_block_share *w,
                               bool keep_cheap, double e);
void dt_block_attention_whole(const struct dt_block *b, struct dt_block_param_counts *p);
void dt_block_mlp_params(const struct dt_block *b, struct dt_block_param_counts *p);
void dt_block_mlp_whole(const struct dt_block *b, struct dt_block_param_counts *p);
void dt_block_mlp_kernels(const struct dt_block *b, struct dt_kop_list *o);
double dt_block_mlp_kept(const struct dt_block *b, const struct dt_block_share *w, bool keep_cheap,
                         double e);

/* Of a layer with experts, instead of what its MLP adds (cpu_temporaries). */
struct dt_block_cpu;
double dt_block_experts_temporaries(const struct dt_block *b, const struct dt_block_cpu *c);

/* block_unfused.c */
void dt_block_unfused_transformer(const struct dt_block *b, struct dt_kop_list *o);
void dt_block_unfused_embedding(const struct dt_block *b, struct dt_kop_list *o);
void dt_block_unfused_head(const struct dt_block *b, struct dt_kop_list *o);

/* Latent pixels at a U-Net level: a quarter per level down. */
double dt_block_level_scale(int level);

/* ---- kinds: a file block_KIND.c each, and a row of DT_BLOCK_KINDS (model.h) ---- */

/* A block on a process of a CPU (core/cost/memory_cpu.c). */
struct dt_block_cpu {
    double e;          /* bytes of an element */
    double tp, cp, ep; /* at least 1 */
    bool ring; /* keys and values of context parallelism go round a ring; else they are gathered */
    double tokens; /* of the process */
    double own;    /* of them, between blocks */
    double rows;   /* of them, at the block's level of a U-Net */
    double items;
    double params; /* of the block, on this process */
    int skip;      /* channels of the skip that it joins to its input */
    bool last;     /* of its module */
};

struct dt_block_dealt {
    double share, whole;
};
struct dt_block_row {
    bool (*by_items)(const struct dt_block *b); /* see dt_block_by_items */
    void (*params)(const struct dt_block *b, struct dt_block_param_counts *p);
    /* Of them those that every rank of tensor parallelism has whole; NULL: none.  Norms and biases of a layer, few, are not
     * told apart from what is dealt. */
    void (*whole)(const struct dt_block *b, struct dt_block_param_counts *p);
    void (*kernels)(const struct dt_block *b, struct dt_kop_list *o);
    /* Bytes kept for the backward; keep_cheap: what norms and activation functions produce too. */
    double (*kept)(const struct dt_block *b, const struct dt_block_share *w, bool keep_cheap,
                   double e);
    /* Of them what full recomputation keeps; NULL: all, for they are the input. */
    double (*input)(const struct dt_block *b, const struct dt_block_share *w, double e);
    /* On a CPU, bytes: the larger of input and output; temporaries of forward and backward; scratch of its kernels.
     * Elements: weights that products keep packed. */
    double (*cpu_flow)(const struct dt_block *b, const struct dt_block_cpu *c);
    double (*cpu_temporaries)(const struct dt_block *b, const struct dt_block_cpu *c);
    double (*cpu_packed)(const struct dt_block *b, const struct dt_block_cpu *c);
    double (*cpu_scratch)(const struct dt_block *b, const struct dt_block_cpu *c);
    /* Products that tensor parallelism deals, the widest: columns of a member's share, and of the whole of those whose inputs are
     * dealt; NULL: there are none beside sequence parallelism. */
    struct dt_block_dealt (*dealt)(const struct dt_block *b, double tp);
};
#define DECLARE(id, name, kind) extern const struct dt_block_row dt_block_##kind;
DT_BLOCK_KINDS(DECLARE)
#undef DECLARE
const struct dt_block_row *dt_block_row_of(const struct dt_block *b);

/* For the rows. */
bool dt_block_never(const struct dt_block *b);
bool dt_block_always(const struct dt_block *b);
/* `times` linear layers, or convolutions of taps in one; `times` norms. */
void dt_block_count_linear(struct dt_block_param_counts *p, int64_t times, int64_t in, int64_t out,
                           bool bias);
/* `times` MLPs of that width, as the block has them. */
void dt_block_count_mlp(struct dt_block_param_counts *p, int64_t times, const struct dt_block *b,
                        int width);
void dt_block_count_norm(struct dt_block_param_counts *p, int64_t times, int64_t width,
                         bool layernorm);
/* Per row: mean and reciprocal deviation (LayerNorm, GroupNorm) or the latter alone (RMSNorm), fp32. */
double dt_block_stat_bytes(bool mean);
/* The input of a block of the residual stream. */
double dt_block_input_stream(const struct dt_block *b, const struct dt_block_share *w, double e);
/* block_cpu.c: nothing; all parameters; a row of the stream; scratch of filters over that many channels */
double dt_block_cpu_none(const struct dt_block *b, const struct dt_block_cpu *c);
double dt_block_cpu_all(const struct dt_block *b, const struct dt_block_cpu *c);
double dt_block_cpu_stream(const struct dt_block *b, const struct dt_block_cpu *c);
double dt_block_cpu_filter(const struct dt_block *b, const struct dt_block_cpu *c, double channels);

#endif
