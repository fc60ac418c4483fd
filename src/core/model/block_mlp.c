/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * The MLP half of transformer layers, dense or of experts.
 *
 * Experts are dealt to the ep ranks of an expert group, which are neighbours among the ranks that hold the same shard
 * of the dense layers (dp x cp, so that they are tp apart); each is split by tp as a dense MLP is.  A rank's rows
 * travel as in Megatron Core: own tokens -all-to-all-> rows of own experts -AG over tp-> MLP -RS-> -all-to-all->.
 * Without an expert group the tokens are gathered over tp once, and chosen from there.
 *
 * What routing does is stated, not modelled: `capacity` or `imbalance` (model.h) times the mean rows. */
#include "core/model/block_ops.h"

#include <math.h>

/* Router, and the gate of shared experts. */
void dt_block_mlp_whole(const struct dt_block *b, struct dt_block_param_counts *p)
{
    if (b->n_experts == 0)
        return;
    dt_block_count_linear(p, 1, b->hidden, b->n_experts, b->bias);
    p->vectors += b->router_bias ? b->n_experts : 0;
    if (b->shared_gate)
        dt_block_count_linear(p, 1, b->hidden, 1, false);
}

void dt_block_mlp_params(const struct dt_block *b, struct dt_block_param_counts *p)
{
    if (b->n_experts == 0) {
        dt_block_count_mlp(p, 1, b, b->ffn);
        return;
    }
    dt_block_count_mlp(p, b->n_experts, b, b->ffn);
    if (b->shared_ffn > 0)
        dt_block_count_mlp(p, 1, b, b->shared_ffn);
    dt_block_mlp_whole(b, p);
}

/* Rows of the busiest rank over the mean. */
static double crowding(const struct dt_block *b, const struct dt_block_share *w)
{
    if (b->capacity > 0)
        return b->capacity;
    return w->ep > 1 && b->imbalance > 1 ? b->imbalance : 1;
}

/* The same of the rows that there is room for: of all members' rows each may choose as many experts here as it can. */
static double roominess(const struct dt_block *b, double ep)
{
    double here = b->n_experts / ep;

    return ep > 1 ? ep * fmin(b->top_k, here) / b->top_k : 1;
}

/* `times` MLPs of `rows` each, `f` wide on this rank. */
static void mlp(const struct dt_block *b, struct dt_kop_list *o, double rows, double f,
                double times)
{
    dt_kop_emit_gemm(o, rows, b->gated ? 2 * f : f, b->hidden, times);
    dt_kop_emit_pointwise(o, DT_KOP_ACT, rows, f, b->gated, b->gated ? 3 : 2, false, times);
    dt_kop_emit_gemm(o, rows, b->hidden, f, times);
}

static void shared_experts(const struct dt_block *b, struct dt_kop_list *o)
{
    const struct dt_block_share *w = &o->w;

    if (b->shared_gate)
        dt_kop_emit_gemm(o, w->norm_tokens, 1, b->hidden, 1);
    mlp(b, o, w->tokens, dt_block_ceil_div(b->shared_ffn, w->tp), 1);
}

/* Rows of `w->norm_tokens` tokens to the ranks of their experts, or back. */
static void exchange(const struct dt_block *b, struct dt_kop_list *o, double rows)
{
    dt_kop_emit_coll_apart(o, DT_KOP_ALL_TO_ALL, o->w.ep, o->w.tp, o->w.ahead,
                           DT_ELEM_BYTES * rows / o->w.tokens * o->w.norm_tokens * b->hidden, 1);
}

static void experts(const struct dt_block *b, struct dt_kop_list *o)
{
    const struct dt_block_share *w = &o->w;
    double f = dt_block_ceil_div(b->ffn, w->tp), local = dt_block_ceil_div(b->n_experts, w->ep);
    double rows = w->tokens * b->top_k * crowding(b, w); /* of the lane's rank that has most */
    double copies = w->seqpar && w->ep > 1 ? rows / w->tp : rows;

    dt_kop_emit_gemm(o, w->norm_tokens, b->n_experts, b->hidden, 1);
    if (w->ep <= 1 || b->shared_ffn > 0)
        dt_kop_emit_tp_enter(o, w->tokens, b->hidden);
    dt_kop_emit_pointwise(o, DT_KOP_ADD, copies, b->hidden, 0, 2, false, 1); /* into their order */
    if (w->ep > 1) {
        exchange(b, o, rows);
        dt_kop_emit_tp_enter(o, rows, b->hidden);
    }
    mlp(b, o, rows / local, f, local);
    if (w->ep > 1) {
        dt_kop_emit_tp_leave(o, rows, b->hidden);
        exchange(b, o, rows);
    }
    dt_kop_emit_pointwise(o, DT_KOP_ADD, copies, b->hidden, 0, 2, false, 1); /* weighed, added */
    if (b->shared_ffn > 0)
        shared_experts(b, o);
    if (w->ep <= 1 || b->shared_ffn > 0)
        dt_kop_emit_tp_leave(o, w->tokens, b->hidden);
}

void dt_block_mlp_kernels(const struct dt_block *b, struct dt_kop_list *o)
{
    const struct dt_block_share *w = &o->w;

    if (b->norms != 1)
        dt_kop_emit_pointwise(o, DT_KOP_NORM, w->norm_tokens, b->hidden, 0, 2, true, 1);
    if (b->n_experts > 0) {
        experts(b, o);
    } else {
        dt_kop_emit_tp_enter(o, w->tokens, b->hidden);
        mlp(b, o, w->tokens, dt_block_ceil_div(b->ffn, w->tp), 1);
        dt_kop_emit_tp_leave(o, w->tokens, b->hidden);
    }
    if (b->norms == 4)
        dt_kop_emit_pointwise(o, DT_KOP_NORM, w->norm_tokens, b->hidden, 0, 2, true, 1);
    dt_kop_emit_pointwise(o, DT_KOP_ADD, w->norm_tokens, b->hidden, 0, 3, false, 1);
}

/* Forward: logits, what goes into `down` and what comes out.  Backward: logits' gradient, rows of the output's gradient,
 * of h's, weighed a and its gradient, rows of the input's gradient; of shared experts h's and a's.  Both: the order of
 * choices, four numbers and two weights each, which the backward has two gradients of besides; in an expert group rows
 * and weights on their way, too (exec/modules/experts.c). */
double dt_block_experts_temporaries(const struct dt_block *b, const struct dt_block_cpu *c)
{
    double f = ceil(b->ffn / c->tp), up = b->gated ? 2 * f : f;
    double shared = ceil(b->shared_ffn / c->tp) * (b->gated ? 3 : 2);
    double row = 2.0 * b->n_experts + shared, choice = 0; /* of an own row, and of an own choice */
    double taken = 3.0 * b->hidden + 3 * f + up;          /* of a row that experts here take */
    double numbers = 13, weights = 1;                     /* of a choice, and of such a row */

    if (c->tp > 1) /* whole rows: gathered and summed, forward and backward; and attention's */
        row += 5.0 * b->hidden + 3.0 * b->hidden;
    if (b->shared_gate) /* both ways: what goes through, and its share twice in fp32; the logit's gradient */
        row += 2 * ceil(b->shared_ffn / c->tp) + 3 + 16 / c->e;
    if (c->ep > 1) {
        choice += 2.0 * b->hidden;
        taken += 2.0 * b->hidden;
        numbers = 14;
        weights = 3;
    }
    return c->tokens * (c->e * row + b->top_k * (c->e * choice + 4 * numbers) +
                        b->top_k * roominess(b, c->ep) * (c->e * taken + 4 * weights));
}

double dt_block_mlp_kept(const struct dt_block *b, const struct dt_block_share *w, bool keep_cheap,
                         double e)
{
    double wide = e * (b->gated ? 2 : 1) + (keep_cheap ? e : 0); /* per row and unit of width */
    double f = dt_block_ceil_div(b->ffn, w->tp), crowd, routed;

    if (b->n_experts == 0)
        return w->tokens * wide * f;
    crowd = b->top_k * (w->any_routing ? roominess(b, w->ep) : crowding(b, w));
    routed = w->any_routing ? w->tokens : w->norm_tokens; /* our executor routes gathered rows */
    return w->tokens * crowd * wide * f +
           w->tokens * wide * ceil(b->shared_ffn / w->tp)
           /* the experts' own input, gathered over tp and not again for the weights' gradients; what the router gives
            * each, fp32, and the shared ones' gate */
           + e * w->tokens * crowd * b->hidden + 4 * routed * b->n_experts +
           (b->shared_gate ? e * routed : 0);
}
