/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Transformer layers: attention (block_attention.c) and MLP, dense or of experts (block_mlp.c).
 *
 * Tensor parallelism is Megatron's (Shoeybi et al. 2019; sequence parallelism: Korthikanti et al. 2022):
 *
 *   norm(s/tp) -AG-> qkv (n/tp) -> attention (heads/tp) -> out (k/tp) -RS-> add(s/tp)
 *   norm(s/tp) -AG-> up  (n/tp) -> activation           -> down (k/tp) -RS-> add(s/tp)
 *
 * Heads that tp does not divide are dealt unevenly; the list is that of the widest rank. */
#include "core/model/block_ops.h"

#include <math.h>

static int norms(const struct dt_block *b)
{
    return b->norms > 0 ? b->norms : 2;
}

static void params(const struct dt_block *b, struct dt_block_param_counts *p)
{
    dt_block_attention_params(b, p);
    dt_block_mlp_params(b, p);
    if (!b->norm_free)
        dt_block_count_norm(p, norms(b), b->hidden, b->layernorm);
    if (b->layer_scale)
        p->vectors += 2 * (int64_t)b->hidden;
}

static void whole(const struct dt_block *b, struct dt_block_param_counts *p)
{
    dt_block_attention_whole(b, p);
    dt_block_mlp_whole(b, p);
}

static void kernels(const struct dt_block *b, struct dt_kop_list *o)
{
    if (b->unfused) {
        dt_block_unfused_transformer(b, o);
        return;
    }
    dt_block_attention_kernels(b, o);
    dt_block_mlp_kernels(b, o);
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
    double stream = e * w->norm_tokens * b->hidden;
    int before = norms(b) == 1 ? 1 : 2, behind = norms(b) == 4 ? 2 : 0;
    /* norms behind, and scales, keep what they take in; their output is added to the stream and not needed */
    int held = before * (keep_cheap ? 2 : 1) + behind + (b->layer_scale ? 2 : 0);
    double stats = keep_cheap ? dt_block_stat_bytes(b->layernorm) : 0;

    return stream * held + (before + behind) * stats * w->norm_tokens +
           dt_block_attention_kept(b, w, keep_cheap, e) + dt_block_mlp_kept(b, w, keep_cheap, e);
}

static double kept(const struct dt_block *b, const struct dt_block_share *w, bool keep_cheap,
                   double e)
{
    return b->unfused ? unfused(b, w, keep_cheap) : fused(b, w, keep_cheap, e);
}

/* Of context parallelism, elements for each of a rank's tokens in a backward: keys and values of all ranks, those that
 * own rows see, and these's gradients.  Of a document in 2 cp chunks a rank sees 2 cp + 1 with its two.  On a ring there are
 * two ranks' and as many gradients, and those of the step that sees most, the own one: 3 chunks; and gradients of queries,
 * in rows of q, k and v. */
static double context(const struct dt_block_cpu *c, double q, double kv)
{
    if (c->cp <= 1)
        return 0;
    return c->ring ? 2 * kv * (2 + 2 + 2 * 1.5) + q + 2 * kv : 2 * kv * (c->cp + 2 * (c->cp + 0.5));
}

static double temporaries(const struct dt_block *b, const struct dt_block_cpu *c)
{
    double q = ceil(b->heads / c->tp) * b->head_dim, kv = ceil(b->kv_heads / c->tp) * b->head_dim;
    double f = ceil(b->ffn / c->tp), width = q + 2 * kv + q; /* of qkv and of the output */

    width += context(c, q, kv);

    if (b->n_experts > 0)
        return c->e * (c->tokens * (width + (b->qk_norm ? 3 * (q + kv) : 0)) +
                       2 * c->own * b->hidden) +
               dt_block_experts_temporaries(b, c);
    width += b->gated ? 3 * f : f;
    width += b->qk_norm ? 3 * (q + kv) : 0;
    width += c->tp > 1 ? 3.0 * b->hidden : 0; /* whole rows, gathered and summed */
    return c->e * (c->tokens * width + 2 * c->own * b->hidden);
}

/* qkv and its output; the way up of an MLP or of experts, and down. */
static struct dt_block_dealt dealt(const struct dt_block *b, double tp)
{
    double qkv = (ceil(b->heads / tp) + 2 * ceil(b->kv_heads / tp)) * b->head_dim;
    double up = (b->gated ? 2 : 1) * ceil(fmax(b->ffn, b->n_experts > 0 ? b->shared_ffn : 0) / tp);

    return (struct dt_block_dealt){fmax(qkv, up), b->hidden};
}

const struct dt_block_row dt_block_transformer = {
    .by_items = dt_block_never,
    .params = params,
    .whole = whole,
    .kernels = kernels,
    .kept = kept,
    .input = dt_block_input_stream,
    .cpu_flow = dt_block_cpu_stream,
    .cpu_temporaries = temporaries,
    .cpu_packed = dt_block_cpu_all,
    .cpu_scratch = dt_block_cpu_none,
    .dealt = dealt,
};
