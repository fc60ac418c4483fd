/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Projectors between modules: one or two linear layers, of every token, of squares of merged patches, or of the
 * conditioning states of generated items. */
#include "core/model/block_ops.h"

#include <math.h>

static void params(const struct dt_block *b, struct dt_block_param_counts *p)
{
    dt_block_count_linear(p, 1, b->in_dim, b->mid_dim > 0 ? b->mid_dim : b->out_dim, b->bias);
    if (b->mid_dim > 0)
        dt_block_count_linear(p, 1, b->mid_dim, b->out_dim, b->bias);
    if (b->in_norm != DT_NORM_NONE)
        dt_block_count_norm(p, 1, b->in_dim, b->in_norm == DT_NORM_LAYERNORM);
}

/* Rows of `tokens`: with merging fewer. */
static double rows_of(const struct dt_block *b, double tokens)
{
    return b->merge > 1 ? tokens / ((double)b->merge * b->merge) : tokens;
}

static void kernels(const struct dt_block *b, struct dt_kop_list *o)
{
    struct dt_block_share *w = &o->w;

    if (b->pool) /* reads all tokens, writes their means */
        dt_kop_emit_pointwise(o, DT_KOP_ADD, w->norm_tokens, b->in_dim, 0, 1 + rows_of(b, 1), false,
                              1);
    w->tokens = rows_of(b, w->tokens);
    if (b->context_len > 0) /* conditioning tokens of generated items, not the item's own pixels */
        w->tokens = w->n * b->context_len / w->cp;
    w->norm_tokens = w->seqpar ? w->tokens / w->tp : w->tokens;
    if (b->in_norm != DT_NORM_NONE)
        dt_kop_emit_pointwise(o, DT_KOP_NORM, w->norm_tokens, b->in_dim, 0, 2, true, 1);
    dt_kop_emit_tp_enter(o, w->tokens, b->in_dim);
    if (b->mid_dim > 0) {
        double mid = dt_block_ceil_div(b->mid_dim, w->tp);

        dt_kop_emit_gemm(o, w->tokens, mid, b->in_dim, 1);
        dt_kop_emit_pointwise(o, DT_KOP_ACT, w->tokens, mid, 0, 2, false, 1);
        dt_kop_emit_gemm(o, w->tokens, b->out_dim, mid, 1);
        dt_kop_emit_tp_leave(o, w->tokens, b->out_dim);
        return;
    }
    dt_kop_emit_gemm(o, w->tokens, dt_block_ceil_div(b->out_dim, w->tp), b->in_dim, 1);
    dt_kop_emit_coll(o, DT_KOP_ALL_GATHER, w->tp, DT_ELEM_BYTES * w->tokens * b->out_dim, 1);
}

/* Rows of a projector's input on one rank, as its norm takes them: conditioning states come whole. */
static double input_rows(const struct dt_block *b, const struct dt_block_share *w)
{
    if (b->context_len > 0)
        return w->n * b->context_len / w->cp;
    return rows_of(b, w->tokens / (w->seqpar ? w->tp : 1));
}

static double input(const struct dt_block *b, const struct dt_block_share *w, double e)
{
    double patches =
        b->pool ? (double)b->merge * b->merge : 1; /* of each row their mean is taken again */

    return e * input_rows(b, w) * patches * b->in_dim;
}

/* The input, once more normed if it is (the norm's output and statistics are cheap), and the middle. */
static double kept(const struct dt_block *b, const struct dt_block_share *w, bool keep_cheap,
                   double e)
{
    double rows = b->context_len > 0 ? w->n * b->context_len / w->cp : rows_of(b, w->tokens);
    double in = input(b, w, e);
    double mid = e * rows * dt_block_ceil_div(b->mid_dim, w->tp);

    if (b->in_norm != DT_NORM_NONE && keep_cheap)
        in += input_rows(b, w) *
              (e * b->in_dim + dt_block_stat_bytes(b->in_norm == DT_NORM_LAYERNORM));
    return in + mid * (keep_cheap ? 2 : 1);
}

static bool by_items(const struct dt_block *b)
{
    return b->context_len > 0;
}

static double flow(const struct dt_block *b, const struct dt_block_cpu *c)
{
    double rows = b->context_len > 0 ? c->items * b->context_len : rows_of(b, c->own);
    double in = b->pool ? (double)b->merge * b->merge * b->in_dim : b->in_dim;

    return c->e * rows * fmax(in, b->out_dim);
}

static double temporaries(const struct dt_block *b, const struct dt_block_cpu *c)
{
    double rows = b->context_len > 0 ? c->items * b->context_len : rows_of(b, c->tokens);
    double own = b->context_len > 0 ? rows : rows_of(b, c->own);
    double inner = b->in_norm != DT_NORM_NONE ? 2.0 * b->in_dim : 0; /* normed, and its gradient */
    double whole = c->tp > 1 ? 2.0 * (b->in_dim + b->out_dim) : 0;   /* gathered and summed */
    double square = b->pool ? (double)b->merge * b->merge * b->in_dim : b->in_dim;
    bool ordered = b->window > 0 && b->context_len == 0; /* from that of windows to the image's */
    bool again = c->tp > 1 && (b->merge > 1 || ordered); /* patches are dealt again as squares */

    whole += (again ? square : 0) + (ordered ? square : 0);
    if (again || ordered || b->pool) { /* and so are gradients */
        inner = fmax(inner, b->in_dim);
        inner += b->in_norm != DT_NORM_NONE ? b->in_dim : 0;
    }
    inner += b->pool ? b->in_dim : 0; /* means */
    return c->e * (rows * (ceil(b->mid_dim / c->tp) + whole) + own * inner);
}

/* The middle, and what becomes of it; or a single layer's outputs. */
static struct dt_block_dealt dealt(const struct dt_block *b, double tp)
{
    if (b->mid_dim > 0)
        return (struct dt_block_dealt){ceil(b->mid_dim / tp), b->out_dim};
    return (struct dt_block_dealt){ceil(b->out_dim / tp), 0};
}

const struct dt_block_row dt_block_projector = {
    .by_items = by_items,
    .params = params,
    .kernels = kernels,
    .kept = kept,
    .input = input,
    .cpu_flow = flow,
    .cpu_temporaries = temporaries,
    .cpu_packed = dt_block_cpu_all,
    .cpu_scratch = dt_block_cpu_none,
    .dealt = dealt,
};
