/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Transformer layer, pre-norm: Llama's (RMSNorm, rotary positions, grouped keys, SwiGLU) and
 * GPT-2's or ViT's (LayerNorm, biases, plain MLP) from one list of steps.
 *
 *   x -> n1 -> qkv -(norm of q, k)-(rope)-> attention o -> x2 = x + drop(o Wo)
 *   x2 -> n2 -> h = up(n2) -> a = act(h) -> y = x2 + drop(a Wdown)
 *
 * Tensor parallelism: heads and the MLP's width are dealt; x, n1, x2, n2 and y are own rows.
 * Context parallelism: all rows are the member's own, and keys and values of the others' come for attention
 * alone, forward and again backward (context.c). */
#include "exec/modules/impl.h"

#include <math.h>

struct dims {          /* widths of this member */
    int64_t rows, own; /* all, and those of norms and residuals */
    int64_t hidden, heads, kv_heads, q, kv, qkv, ffn, up;
};

static struct dims dims_of(const struct dt_nn_call *c)
{
    const struct dt_block *b = c->b;
    struct dims d = {.rows = c->batch->rows,
                     .own = dt_nn_own_rows(c->s, c->batch->rows),
                     .hidden = b->hidden,
                     .heads = dt_nn_mine(c->s, b->heads),
                     .kv_heads = dt_nn_mine(c->s, b->kv_heads),
                     .ffn = dt_nn_mine(c->s, b->ffn)};

    d.q = d.heads * b->head_dim;
    d.kv = d.kv_heads * b->head_dim;
    d.qkv = d.q + 2 * d.kv;
    d.up = b->gated ? 2 * d.ffn : d.ffn;
    return d;
}

static struct dt_kernel_norm norm_of(const struct dt_nn_call *c)
{
    return (struct dt_kernel_norm){.dtype = c->dtype,
                                   .rows = dt_nn_own_rows(c->s, c->batch->rows),
                                   .width = c->b->hidden,
                                   .eps = (float)c->s->numbers.norm_eps};
}

static void layout(struct dt_nn_call *c)
{
    const struct dt_block *b = c->b;
    struct dims d = dims_of(c);
    struct dt_nn_tf_act *t = &c->act.tf;

    if (b->layernorm) {
        t->mean1 = dt_nn_keep_f32(c, d.own, true);
        t->mean2 = dt_nn_keep_f32(c, d.own, true);
    }
    t->rstd1 = dt_nn_keep_f32(c, d.own, true);
    t->rstd2 = dt_nn_keep_f32(c, d.own, true);
    if (b->qk_norm) {
        t->rq = dt_nn_keep_f32(c, d.rows * d.heads, true);
        t->rk = dt_nn_keep_f32(c, d.rows * d.kv_heads, true);
    }
    t->lse = dt_nn_keep_f32(c, d.rows * d.heads, false);
    if (b->n_experts > 0)
        t->prob = dt_nn_keep_f32(c, d.rows * b->n_experts, false);
    t->n1 = dt_nn_keep_rows(c, d.own, d.hidden, true);
    t->qkv = dt_nn_keep_rows(c, d.rows, d.qkv, false);
    if (b->qk_norm)
        t->raw = dt_nn_keep_rows(c, d.rows, d.q + d.kv, false);
    t->o = dt_nn_keep_rows(c, d.rows, d.q, false);
    t->x2 = dt_nn_keep_rows(c, d.own, d.hidden, false);
    t->n2 = dt_nn_keep_rows(c, d.own, d.hidden, true);
    if (b->n_experts > 0) {
        dt_nn_experts_layout(c);
        return;
    }
    t->h = dt_nn_keep_rows(c, d.rows, d.up, false);
    t->a = dt_nn_keep_rows(c, d.rows, d.ffn, true);
}

static struct dt_kernel_attention attention_of(const struct dt_nn_call *c, const struct dims *d)
{
    const struct dt_block *b = c->b;
    const struct dt_batch *m = c->batch;

    bool windows = b->window > 0; /* images are cut into some, whose patches lie together */
    int64_t longest = windows ? m->max_window : m->max_len;

    return (struct dt_kernel_attention){.dtype = c->dtype,
                                        .causal = b->causal,
                                        .heads = (int)d->heads,
                                        .kv_heads = (int)d->kv_heads,
                                        .head_dim = b->head_dim,
                                        .n_seq = windows ? m->n_window : m->n_seq,
                                        .cu_q = windows ? m->dev.cu_window : m->dev.cu,
                                        .cu_k = windows ? m->dev.cu_window : m->dev.cu,
                                        .rows_q = d->rows,
                                        .rows_k = d->rows,
                                        .max_q = longest,
                                        .max_k = longest,
                                        .stride_q = d->qkv,
                                        .stride_k = d->qkv,
                                        .stride_v = d->qkv,
                                        .stride_o = d->q,
                                        .scale = c->n->scale};
}

static bool rotary(const struct dt_block *b)
{
    return b->grid_rope || (b->causal && b->max_pos == 0);
}

static void rope(struct dt_nn_call *c, const struct dims *d, bool inverse, char *qkv)
{
    const struct dt_block *b = c->b;

    if (rotary(b)) /* keys follow the queries in a row: one call turns both */
        c->k->rope(c->q, c->dtype, d->rows, (int)(d->heads + d->kv_heads), b->head_dim, b->head_dim,
                   d->qkv, c->batch->dev.pos, b->grid_rope ? c->batch->dev.turn : c->s->rope,
                   inverse, qkv);
}

/* Rows of heads inside [q | k] matrices. */
static struct dt_kernel_norm head_norm(const struct dt_nn_call *c, const struct dims *d,
                                       int64_t heads)
{
    return (struct dt_kernel_norm){.dtype = c->dtype,
                                   .rows = d->rows * heads,
                                   .width = c->b->head_dim,
                                   .inner = heads,
                                   .stride = d->q + d->kv,
                                   .eps = (float)c->s->numbers.norm_eps};
}

static void qk_norm(struct dt_nn_call *c, const struct dims *d, bool again)
{
    struct dt_nn_tf_act *t = &c->act.tf;
    struct dt_kernel_norm nq = head_norm(c, d, d->heads), nk = head_norm(c, d, d->kv_heads);
    char *out = dt_nn_work_rows(c, d->rows, d->q + d->kv);

    if (!again)
        c->k->copy2d(c->q, c->dtype, d->rows, d->q + d->kv, t->qkv, d->qkv, t->raw, d->q + d->kv,
                     false);
    dt_nn_norm(c, &nq, false, t->raw, TF_QN, -1, out, NULL, t->rq);
    dt_nn_norm(c, &nk, false, dt_nn_off(t->raw, d->q, c->es), TF_KN, -1,
               dt_nn_off(out, d->q, c->es), NULL, t->rk);
    if (!again)
        c->k->copy2d(c->q, c->dtype, d->rows, d->q + d->kv, out, d->q + d->kv, t->qkv, d->qkv,
                     false);
}

static void activate(struct dt_nn_call *c, const struct dims *d)
{
    struct dt_nn_tf_act *t = &c->act.tf;

    if (c->b->gated)
        c->k->glu_fwd(c->q, c->n->act, c->dtype, d->rows, d->ffn, false, t->h, t->a);
    else
        c->k->act_fwd(c->q, c->n->act, c->dtype, d->rows * d->ffn, t->h, t->a);
}

/* y = residual + drop(x W + b) */
static void join(struct dt_nn_call *c, const struct dims *d, const char *x, int w, int b, int drop,
                 const char *residual, char *y, char *room)
{
    if (!dt_nn_drops(c)) {
        dt_nn_linear_row(c, d->rows, x, w, b, residual, y, room);
        return;
    }
    dt_nn_linear_row(c, d->rows, x, w, b, NULL, y, room);
    dt_nn_drop(c, drop, d->hidden, y, y);
    c->k->add(c->q, c->dtype, d->own * d->hidden, y, residual, y);
}

/* y = residual + drop(the experts' output) */
static void join_experts(struct dt_nn_call *c, const struct dims *d, bool again)
{
    dt_nn_experts_forward(c, again ? NULL : c->y);
    if (dt_nn_counting(c) || again)
        return;
    if (dt_nn_drops(c))
        dt_nn_drop(c, DT_DROP_MLP, d->hidden, c->y, c->y);
    c->k->add(c->q, c->dtype, d->own * d->hidden, c->y, c->act.tf.x2, c->y);
}

static void forward(struct dt_nn_call *c, bool again)
{
    const struct dt_block *b = c->b;
    struct dims d = dims_of(c);
    struct dt_nn_tf_act *t = &c->act.tf;
    struct dt_kernel_norm n = norm_of(c);
    struct dt_kernel_attention a = attention_of(c, &d);
    char *room = dt_nn_tp_room(c, d.rows, d.hidden);
    struct dt_nn_context others = dt_nn_context_room(c, d.q, d.kv, d.heads, false);

    if (dt_nn_counting(c)) { /* the workspace that qk_norm takes */
        if (b->qk_norm)
            dt_nn_work_rows(c, d.rows, d.q + d.kv);
        if (b->n_experts > 0)
            join_experts(c, &d, again);
        return;
    }
    dt_nn_norm(c, &n, b->layernorm, c->x, TF_N1, TF_N1B, t->n1, t->mean1, t->rstd1);
    dt_nn_linear_col(c, d.rows, t->n1, TF_QKV, TF_QKVB, t->qkv, room);
    if (b->qk_norm)
        qk_norm(c, &d, false);
    rope(c, &d, false, t->qkv);
    if (c->s->cp)
        dt_nn_context_attend(c, &others, &a, t->qkv, t->o, t->lse);
    else
        c->k->attention_fwd(c->q, &a, t->qkv, dt_nn_off(t->qkv, d.q, c->es),
                            dt_nn_off(t->qkv, d.q + d.kv, c->es), t->o, t->lse);
    join(c, &d, t->o, TF_O, TF_OB, DT_DROP_ATTENTION, c->x, t->x2, room);
    dt_nn_norm(c, &n, b->layernorm, t->x2, TF_N2, TF_N2B, t->n2, t->mean2, t->rstd2);
    if (b->n_experts > 0) {
        join_experts(c, &d, again);
        return;
    }
    if (b->gated) {
        dt_nn_linear_col(c, d.rows, t->n2, TF_UP, TF_UPB, t->h, room);
        activate(c, &d);
    } else {
        dt_nn_linear_col_act(c, d.rows, t->n2, TF_UP, TF_UPB, &(struct dt_nn_act){c->n->act, t->h},
                             t->a, room);
    }
    if (!again)
        join(c, &d, t->a, TF_DOWN, TF_DOWNB, DT_DROP_MLP, t->x2, c->y, room);
}

/* What `selective` left out. */
static void cheap_again(struct dt_nn_call *c, const struct dims *d)
{
    struct dt_nn_tf_act *t = &c->act.tf;
    struct dt_kernel_norm n = norm_of(c);

    dt_nn_norm(c, &n, c->b->layernorm, c->x, TF_N1, TF_N1B, t->n1, t->mean1, t->rstd1);
    dt_nn_norm(c, &n, c->b->layernorm, t->x2, TF_N2, TF_N2B, t->n2, t->mean2, t->rstd2);
    if (c->b->qk_norm)
        qk_norm(c, d, true);
    if (c->b->n_experts == 0) /* else when the order of rows is known */
        activate(c, d);
}

struct rooms { /* for all rows, where there are other members; own rows, where there is dropout */
    char *a, *b, *drop;
};

/* The gradient of what joined the residual stream with gradient dy: drawn anew where the weight's
 * gradient comes later. */
static const char *branch_grad(struct dt_nn_call *c, const struct dims *d, int drop, const char *dy,
                               const struct rooms *room)
{
    if (!dt_nn_drops(c))
        return dy;
    dt_nn_drop(c, drop, d->hidden, dy, room->drop);
    return room->drop;
}

static void experts_back(struct dt_nn_call *c, int what, const struct dims *d,
                         const struct rooms *room, char *dn2, char *dx2)
{
    const char *dy = dt_nn_counting(c) ? NULL : branch_grad(c, d, DT_DROP_MLP, c->dy, room);

    dt_nn_experts_backward(c, what, dy, dn2);
    if (!dt_nn_counting(c) && (what & DT_BACKWARD_INPUT) && dx2 != c->dy)
        dt_nn_copy(c, dx2, c->dy, (size_t)(d->own * d->hidden) * c->es);
}

static void dense_back(struct dt_nn_call *c, int what, const struct dims *d,
                       const struct rooms *room, char *dh, char *dn2, char *dx2)
{
    struct dt_nn_tf_act *t = &c->act.tf;
    char *da = c->b->gated ? dt_nn_grad_rows(c, d->rows, d->ffn, false) : NULL;
    const char *dy;

    if (dt_nn_counting(c))
        return;
    dy = branch_grad(c, d, DT_DROP_MLP, c->dy, room);
    if (c->b->gated)
        dt_nn_linear_row_back(c, what, d->rows, t->a, dy, TF_DOWN, TF_DOWNB, da, room->a);
    else
        dt_nn_linear_row_act_back(c, what, d->rows, t->a, dy, TF_DOWN, TF_DOWNB,
                                  &(struct dt_nn_act){c->n->act, t->h}, dh, room->a);
    if ((what & DT_BACKWARD_INPUT) && c->b->gated)
        c->k->glu_bwd(c->q, c->n->act, c->dtype, d->rows, d->ffn, false, t->h, da, dh);
    if ((what & DT_BACKWARD_INPUT) && dx2 != c->dy)
        dt_nn_copy(c, dx2, c->dy, (size_t)(d->own * d->hidden) * c->es);
    dt_nn_linear_col_back(c, what, d->rows, t->n2, dh, TF_UP, TF_UPB, dn2, room->a, room->b);
}

static void mlp_back(struct dt_nn_call *c, int what, const struct dims *d, const struct rooms *room,
                     char *dh, char *dn2, char *dx2)
{
    struct dt_nn_tf_act *t = &c->act.tf;
    struct dt_kernel_norm n = norm_of(c);

    if (c->b->n_experts > 0)
        experts_back(c, what, d, room, dn2, dx2);
    else
        dense_back(c, what, d, room, dh, dn2, dx2);
    if (dt_nn_counting(c))
        return;
    dt_nn_norm_back(c, what, &n, c->b->layernorm, t->x2, TF_N2, TF_N2B, t->mean2, t->rstd2, dn2,
                    dx2, true);
}

/* Gradients of the normed q and k become those of the raw ones; `dnormed` keeps what the scales'
 * gradients need. */
static void qk_norm_back(struct dt_nn_call *c, int what, const struct dims *d, char *dqkv,
                         char *dnormed)
{
    struct dt_nn_tf_act *t = &c->act.tf;
    struct dt_kernel_norm nq = head_norm(c, d, d->heads), nk = head_norm(c, d, d->kv_heads);
    char *raw = dt_nn_grad_rows(c, d->rows, d->q + d->kv, false);

    if (dt_nn_counting(c))
        return;
    if (what & DT_BACKWARD_INPUT)
        c->k->copy2d(c->q, c->dtype, d->rows, d->q + d->kv, dqkv, d->qkv, dnormed, d->q + d->kv,
                     false);
    dt_nn_norm_back(c, what, &nq, false, t->raw, TF_QN, -1, NULL, t->rq, dnormed, raw, false);
    dt_nn_norm_back(c, what, &nk, false, dt_nn_off(t->raw, d->q, c->es), TF_KN, -1, NULL, t->rk,
                    dt_nn_off(dnormed, d->q, c->es), dt_nn_off(raw, d->q, c->es), false);
    if (what & DT_BACKWARD_INPUT)
        c->k->copy2d(c->q, c->dtype, d->rows, d->q + d->kv, raw, d->q + d->kv, dqkv, d->qkv, false);
}

/* Gradients of queries, keys and values. */
static void heads_back(struct dt_nn_call *c, const struct dims *d, const struct dt_nn_context *room,
                       const char *d_o, char *dqkv)
{
    struct dt_nn_tf_act *t = &c->act.tf;
    struct dt_kernel_attention a = attention_of(c, d);
    int64_t k = d->q, v = d->q + d->kv;

    if (c->s->cp)
        dt_nn_context_attend_back(c, room, &a, &(struct dt_nn_attended){t->qkv, t->o, t->lse}, d_o,
                                  dqkv);
    else
        c->k->attention_bwd(c->q, &a, t->qkv, dt_nn_off(t->qkv, k, c->es),
                            dt_nn_off(t->qkv, v, c->es), t->o, t->lse, d_o, dqkv,
                            dt_nn_off(dqkv, k, c->es), dt_nn_off(dqkv, v, c->es));
    rope(c, d, true, dqkv);
}

static void attention_back(struct dt_nn_call *c, int what, const struct dims *d,
                           const struct rooms *room, char *dqkv, char *dn1, char *dnormed,
                           char *dx2)
{
    struct dt_nn_tf_act *t = &c->act.tf;
    struct dt_kernel_norm n = norm_of(c);
    char *d_o = dt_nn_grad_rows(c, d->rows, d->q, false);
    struct dt_nn_context others = dt_nn_context_room(c, d->q, d->kv, d->heads, true);

    if (!dt_nn_counting(c)) {
        dt_nn_linear_row_back(c, what, d->rows, t->o,
                              branch_grad(c, d, DT_DROP_ATTENTION, dx2, room), TF_O, TF_OB, d_o,
                              room->a);
        if (what & DT_BACKWARD_INPUT)
            heads_back(c, d, &others, d_o, dqkv);
    }
    if (c->b->qk_norm)
        qk_norm_back(c, what, d, dqkv, dnormed);
    if (dt_nn_counting(c))
        return;
    dt_nn_linear_col_back(c, what, d->rows, t->n1, dqkv, TF_QKV, TF_QKVB, dn1, room->a, room->b);
    if (c->dx && !c->s->split)
        c->dx = dx2; /* the input's gradient grows in place */
    else if (c->dx && (what & DT_BACKWARD_INPUT))
        dt_nn_copy(c, c->dx, dx2, (size_t)(d->own * d->hidden) * c->es);
    dt_nn_norm_back(c, what, &n, c->b->layernorm, c->x, TF_N1, TF_N1B, t->mean1, t->rstd1, dn1,
                    c->dx, true);
}

static void backward(struct dt_nn_call *c, int what)
{
    struct dims d = dims_of(c);
    char *dh = c->b->n_experts > 0 ? NULL : dt_nn_grad_rows(c, d.rows, d.up, true);
    char *dn2 = dt_nn_grad_rows(c, d.own, d.hidden, true);
    char *dqkv = dt_nn_grad_rows(c, d.rows, d.qkv, true);
    char *dn1 = dt_nn_grad_rows(c, d.own, d.hidden, true);
    char *dnormed = c->b->qk_norm ? dt_nn_grad_rows(c, d.rows, d.q + d.kv, true) : NULL;
    char *dx2 = c->dy;
    struct dt_nn_area work = c->work;
    struct rooms room;

    if (!dt_nn_counting(c)) {
        if (c->n->mode == DT_LAY_FULL)
            forward(c, true);
        else if (c->n->mode == DT_LAY_SELECTIVE)
            cheap_again(c, &d);
        c->work = work;
    }
    room.a = dt_nn_tp_room(c, d.rows, d.hidden);
    room.b = dt_nn_tp_room(c, d.rows, d.hidden);
    room.drop = dt_nn_drop_room(c, d.own, d.hidden);
    if (c->s->split) /* kept apart from dy and from the input's gradient: Wo's gradient needs it */
        dx2 = dt_nn_grad_rows(c, d.own, d.hidden, true);
    mlp_back(c, what, &d, &room, dh, dn2, dx2);
    attention_back(c, what, &d, &room, dqkv, dn1, dnormed, dx2);
}

static void note(struct dt_nn_shape_facts *f, const struct dt_block *b, int i)
{
    (void)i;
    f->n_transformers++;
    f->experts |= b->n_experts > 0;
    while (f->window * f->window < b->window)
        f->window++;
    f->grid_dim = b->grid_rope ? b->head_dim : f->grid_dim;
}

const struct dt_nn_block_ops dt_nn_ops_transformer = {
    .layout = layout,
    .forward = forward,
    .backward = backward,
    .in_width = dt_nn_in_hidden,
    .out_width = dt_nn_out_hidden,
    .begin = dt_nn_begin_none,
    .note = note,
};
