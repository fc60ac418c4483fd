/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Spatial transformers of a U-Net: self-attention, cross-attention to the conditioning states, GEGLU.
 *
 *   GN -> proj_in (n/tp) -AG-> {self, cross, GEGLU}: n/tp then k/tp, -AR- each -> proj_out (k/tp) -AR-> */
#include "core/model/block_ops.h"

#include <math.h>

static void params(const struct dt_block *b, struct dt_block_param_counts *p)
{
    int64_t c = b->hidden, w = (int64_t)b->heads * b->head_dim, f = b->ffn, d = b->depth;
    int64_t ctx = b->context_len > 0 ? b->context_dim : c;

    dt_block_count_norm(p, 1, c, true);
    dt_block_count_linear(p, 2, c, c, true);
    dt_block_count_norm(p, 3 * d, c, true);
    dt_block_count_linear(p, 3 * d, c, w, false); /* self-attention */
    dt_block_count_linear(p, d, w, c, true);
    dt_block_count_linear(p, d, c, w, false); /* cross-attention */
    dt_block_count_linear(p, 2 * d, ctx, w, false);
    dt_block_count_linear(p, d, w, c, true);
    dt_block_count_linear(p, d, c, 2 * f, true); /* GEGLU */
    dt_block_count_linear(p, d, f, c, true);
}

static void self_attention(const struct dt_block *b, struct dt_kop_list *o, double tokens,
                           double repeat)
{
    double scale = dt_block_level_scale(b->level), heads = dt_block_ceil_div(b->heads, o->w.tp);
    double width = heads * b->head_dim;

    dt_kop_emit_gemm(o, tokens, 3 * width, b->hidden, repeat);
    dt_kop_emit_attention(o, false, o->w.seq * scale, o->w.tokens_sq * scale * scale, heads, heads,
                          b->head_dim, repeat);
    dt_kop_emit_gemm(o, tokens, b->hidden, width, repeat);
}

static void cross_attention(const struct dt_block *b, struct dt_kop_list *o, double tokens,
                            double repeat)
{
    double heads = dt_block_ceil_div(b->heads, o->w.tp), width = heads * b->head_dim;

    dt_kop_emit_gemm(o, tokens, width, b->hidden, repeat);
    dt_kop_emit_gemm(o, o->w.n * b->context_len, 2 * width, b->context_dim, repeat);
    dt_kop_emit_cross(o, o->w.n, tokens, heads, b->context_len, b->head_dim, repeat);
    dt_kop_emit_gemm(o, tokens, b->hidden, width, repeat);
}

static void kernels(const struct dt_block *b, struct dt_kop_list *o)
{
    double tokens = o->w.tokens * dt_block_level_scale(b->level);
    double c = b->hidden, d = b->depth, f = dt_block_ceil_div(b->ffn, o->w.tp), split;
    double bytes = DT_ELEM_BYTES * tokens * c;

    split = dt_block_ceil_div(b->hidden, o->w.tp);
    dt_kop_emit_pointwise(o, DT_KOP_GROUPNORM, tokens, c, 0, 3, true, 1);
    dt_kop_emit_gemm(o, tokens, split, c, 1);
    dt_kop_emit_coll(o, DT_KOP_ALL_GATHER, o->w.tp, bytes, 1);
    dt_kop_emit_pointwise(o, DT_KOP_NORM, tokens, c, 0, 2, true, 3 * d);
    if (b->context_len > 0) {
        self_attention(b, o, tokens, d);
        cross_attention(b, o, tokens, d);
    } else { /* no cross-attention states: the second attention is a self-attention too (AudioLDM)
              */
        self_attention(b, o, tokens, 2 * d);
    }
    dt_kop_emit_gemm(o, tokens, 2 * f, c, d);
    dt_kop_emit_pointwise(o, DT_KOP_ACT, tokens, f, 1, 3, false, d);
    dt_kop_emit_gemm(o, tokens, c, f, d);
    dt_kop_emit_coll(o, DT_KOP_ALL_REDUCE, o->w.tp, bytes, 3 * d);
    dt_kop_emit_pointwise(o, DT_KOP_ADD, tokens, c, 0, 3, false, 3 * d);
    dt_kop_emit_gemm(o, tokens, c, split, 1);
    dt_kop_emit_coll(o, DT_KOP_ALL_REDUCE, o->w.tp, bytes, 1);
    dt_kop_emit_pointwise(o, DT_KOP_ADD, tokens, c, 0, 3, false, 1);
}

static double kept(const struct dt_block *b, const struct dt_block_share *w, bool keep_cheap,
                   double e)
{
    double tokens = w->tokens * dt_block_level_scale(b->level);
    double c = b->hidden, heads = dt_block_ceil_div(b->heads, w->tp), width = heads * b->head_dim;
    double f = dt_block_ceil_div(b->ffn, w->tp);
    /* three norms: inputs, and outputs unless recomputed */
    double streams = c * (keep_cheap ? 6 : 3);
    double self = 4 * width, cross = 2 * width;
    double kv = b->context_len > 0 ? 2 * width * w->n * b->context_len : 2 * width * tokens;
    double lse = 4 * 2 * heads * tokens;
    double mlp = f * (keep_cheap ? 3 : 2);
    double outer = c * (keep_cheap ? 3 : 2); /* block input, norm output, input of proj_out */

    double stats = keep_cheap ? dt_block_stat_bytes(true) : 0;

    return e * tokens * outer + stats * w->n * dt_block_groups(b, b->hidden) +
           b->depth *
               (e * (tokens * (streams + self + cross + mlp) + kv) + lse + 3 * stats * tokens);
}

static double input(const struct dt_block *b, const struct dt_block_share *w, double e)
{
    return e * (w->tokens * dt_block_level_scale(b->level)) * b->hidden;
}

static double flow(const struct dt_block *b, const struct dt_block_cpu *c)
{
    return c->e * c->rows * b->hidden;
}

static double temporaries(const struct dt_block *b, const struct dt_block_cpu *c)
{
    double rows = c->rows, w = ceil(b->heads / c->tp) * b->head_dim;
    double f = ceil(b->ffn / c->tp), states = c->items * b->context_len;

    return c->e * (rows * (3 * f + 5 * w + 6.0 * b->hidden) +
                   2 * w * (b->context_len > 0 ? states : rows));
}

const struct dt_block_row dt_block_spatial = {
    .by_items = dt_block_always,
    .params = params,
    .kernels = kernels,
    .kept = kept,
    .input = input,
    .cpu_flow = flow,
    .cpu_temporaries = temporaries,
    .cpu_packed = dt_block_cpu_all,
    .cpu_scratch = dt_block_cpu_none,
};
