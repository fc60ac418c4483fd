/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Spatial transformer of the U-Net (diffusers' Transformer2DModel with BasicTransformerBlocks):
 *
 *   x -> GroupNorm -> proj_in -> layers -> t -> proj_out -> + x
 *   layer: x1 -> LN -> self-attention -> x2 -> LN -> cross-attention to the conditioning states
 *          -> x3 -> LN -> GEGLU -> next
 *
 * Without conditioning states (context_len 0) the second attention is a self-attention too.
 *
 * Tensor parallelism: heads and GEGLU's width are dealt; x, x2, x3, the norms and t are whole at
 * every member, each product by inputs ends in a sum.  proj_in's outputs and proj_out's inputs are
 * dealt by channels. */
#include "exec/modules/impl.h"

#include <math.h>

#define SP_GN_EPS 1e-6f /* Transformer2DModel's GroupNorm */
#define SP_LN_EPS 1e-5f /* BasicTransformerBlock's LayerNorms */

struct dims { /* widths of this member, but for c */
    int64_t rows, c, heads, w, f, ctx_rows;
};

static struct dims dims_of(const struct dt_nn_call *c)
{
    const struct dt_block *b = c->b;
    struct dims d = {.rows = dt_nn_level_rows(c->batch, b->level), .c = b->hidden};

    d.heads = dt_nn_mine(c->s, b->heads);
    d.w = d.heads * b->head_dim;
    d.f = dt_nn_mine(c->s, b->ffn);
    d.ctx_rows = b->context_len > 0 ? c->batch->n_seq * b->context_len : d.rows;
    return d;
}

static int role(int layer, int r)
{
    return SP_N + layer * SPL_N + r;
}

static struct dt_kernel_norm norm_of(const struct dt_nn_call *c, const struct dims *d)
{
    return (struct dt_kernel_norm){
        .dtype = c->dtype, .rows = d->rows, .width = d->c, .eps = SP_LN_EPS};
}

static void layout(struct dt_nn_call *c)
{
    const struct dt_block *b = c->b;
    struct dims d = dims_of(c);
    int64_t stats = c->batch->n_seq * dt_block_groups(b, b->hidden);

    c->act.sp.mean = dt_nn_keep_f32(c, stats, true);
    c->act.sp.rstd = dt_nn_keep_f32(c, stats, true);
    for (int i = 0; i < b->depth; i++) {
        struct dt_nn_sp_layer *l = &c->act.sp.layer[i];

        for (int j = 0; j < 3; j++) {
            l->mean[j] = dt_nn_keep_f32(c, d.rows, true);
            l->rstd[j] = dt_nn_keep_f32(c, d.rows, true);
        }
        l->lse1 = dt_nn_keep_f32(c, d.rows * d.heads, false);
        l->lse2 = dt_nn_keep_f32(c, d.rows * d.heads, false);
    }
    c->act.sp.n = dt_nn_keep_rows(c, d.rows, d.c, true);
    c->act.sp.t = dt_nn_keep_rows(c, d.rows, d.c, false);
    for (int i = 0; i < b->depth; i++) {
        struct dt_nn_sp_layer *l = &c->act.sp.layer[i];

        l->x = dt_nn_keep_rows(c, d.rows, d.c, false);
        l->n1 = dt_nn_keep_rows(c, d.rows, d.c, true);
        l->qkv = dt_nn_keep_rows(c, d.rows, 3 * d.w, false);
        l->o = dt_nn_keep_rows(c, d.rows, d.w, false);
        l->x2 = dt_nn_keep_rows(c, d.rows, d.c, false);
        l->n2 = dt_nn_keep_rows(c, d.rows, d.c, true);
        l->q = dt_nn_keep_rows(c, d.rows, d.w, false);
        l->kv = dt_nn_keep_rows(c, d.ctx_rows, 2 * d.w, false);
        l->o2 = dt_nn_keep_rows(c, d.rows, d.w, false);
        l->x3 = dt_nn_keep_rows(c, d.rows, d.c, false);
        l->n3 = dt_nn_keep_rows(c, d.rows, d.c, true);
        l->h = dt_nn_keep_rows(c, d.rows, 2 * d.f, false);
        l->a = dt_nn_keep_rows(c, d.rows, d.f, true);
    }
}

static struct dt_kernel_attention self_of(const struct dt_nn_call *c, const struct dims *d)
{
    const struct dt_block *b = c->b;
    const struct dt_batch *m = c->batch;
    int64_t longest = dt_nn_level_longest(m, b->level);

    return (struct dt_kernel_attention){.dtype = c->dtype,
                                        .heads = (int)d->heads,
                                        .kv_heads = (int)d->heads,
                                        .head_dim = b->head_dim,
                                        .n_seq = m->n_seq,
                                        .cu_q = m->dev.cu_level[b->level],
                                        .cu_k = m->dev.cu_level[b->level],
                                        .rows_q = d->rows,
                                        .rows_k = d->rows,
                                        .max_q = longest,
                                        .max_k = longest,
                                        .stride_q = 3 * d->w,
                                        .stride_k = 3 * d->w,
                                        .stride_v = 3 * d->w,
                                        .stride_o = d->w,
                                        .scale = (float)(1 / sqrt((double)b->head_dim))};
}

static struct dt_kernel_attention cross_of(const struct dt_nn_call *c, const struct dims *d)
{
    struct dt_kernel_attention a = self_of(c, d);

    a.stride_q = d->w;
    a.stride_k = a.stride_v = 2 * d->w;
    if (c->b->context_len > 0) {
        a.cu_k = c->batch->dev.cu_context;
        a.rows_k = d->ctx_rows;
        a.max_k = c->b->context_len;
    }
    return a;
}

static void layer_norm(struct dt_nn_call *c, const struct dims *d, int i, int which, const char *x,
                       char *y)
{
    static const int g[3] = {SPL_N1, SPL_N2, SPL_N3};
    struct dt_nn_sp_layer *l = &c->act.sp.layer[i];
    struct dt_kernel_norm n = norm_of(c, d);

    dt_nn_norm(c, &n, true, x, role(i, g[which]), role(i, g[which] + 1), y, l->mean[which],
               l->rstd[which]);
}

static void attend(struct dt_nn_call *c, const struct dt_kernel_attention *a, const char *q,
                   const char *k, const char *v, char *o, float *lse)
{
    if (a->heads > 0) /* else other members have them all */
        c->k->attention_fwd(c->q, a, q, k, v, o, lse);
}

static void geglu(struct dt_nn_call *c, const struct dims *d, struct dt_nn_sp_layer *l)
{
    if (d->f > 0)
        c->k->glu_fwd(c->q, DT_ACT_GELU_ERF, c->dtype, d->rows, d->f, true, l->h, l->a);
}

static void layer_forward(struct dt_nn_call *c, const struct dims *d, int i, char *next, char *room)
{
    struct dt_nn_sp_layer *l = &c->act.sp.layer[i];
    struct dt_kernel_attention a = self_of(c, d), x = cross_of(c, d);

    layer_norm(c, d, i, 0, l->x, l->n1);
    dt_nn_linear(c, d->rows, l->n1, role(i, SPL_QKV), -1, NULL, l->qkv);
    attend(c, &a, l->qkv, dt_nn_off(l->qkv, d->w, c->es), dt_nn_off(l->qkv, 2 * d->w, c->es), l->o,
           l->lse1);
    dt_nn_linear_row(c, d->rows, l->o, role(i, SPL_O), role(i, SPL_OB), l->x, l->x2, room);
    layer_norm(c, d, i, 1, l->x2, l->n2);
    dt_nn_linear(c, d->rows, l->n2, role(i, SPL_Q), -1, NULL, l->q);
    dt_nn_linear(c, d->ctx_rows, c->b->context_len > 0 ? c->context : l->n2, role(i, SPL_KV), -1,
                 NULL, l->kv);
    attend(c, &x, l->q, l->kv, dt_nn_off(l->kv, d->w, c->es), l->o2, l->lse2);
    dt_nn_linear_row(c, d->rows, l->o2, role(i, SPL_O2), role(i, SPL_O2B), l->x2, l->x3, room);
    layer_norm(c, d, i, 2, l->x3, l->n3);
    dt_nn_linear(c, d->rows, l->n3, role(i, SPL_UP), role(i, SPL_UPB), NULL, l->h);
    geglu(c, d, l);
    dt_nn_linear_row(c, d->rows, l->a, role(i, SPL_DOWN), role(i, SPL_DOWNB), l->x3, next, room);
}

static char *next_of(struct dt_nn_call *c, int i)
{
    return i + 1 < c->b->depth ? c->act.sp.layer[i + 1].x : c->act.sp.t;
}

static void first_norm(struct dt_nn_call *c)
{
    struct dt_nn_norm_at at = dt_nn_norm_whole(c->b, c->b->hidden, SP_GN_EPS, false);

    dt_nn_groupnorm(c, &at, c->x, SP_G, SP_GB, c->act.sp.n, c->act.sp.mean, c->act.sp.rstd);
}

/* To all channels from a product whose outputs are dealt. */
static void project_in(struct dt_nn_call *c, const struct dims *d, char *room)
{
    char *x = c->act.sp.layer[0].x;

    if (!c->s->tp) {
        dt_nn_linear(c, d->rows, c->act.sp.n, SP_IN, SP_INB, NULL, x);
        return;
    }
    dt_nn_linear(c, d->rows, c->act.sp.n, SP_IN, SP_INB, NULL,
                 dt_nn_channels_mine(c, d->rows, d->c, 1, room));
    dt_nn_channels_join(c, d->rows, d->c, 1, room, x);
}

static void forward(struct dt_nn_call *c, bool again)
{
    const struct dt_block *b = c->b;
    struct dims d = dims_of(c);
    char *room = dt_nn_tp_room(c, d.rows, d.c),
         *cut = dt_nn_tp_room(c, d.rows, dt_nn_mine(c->s, d.c));

    if (dt_nn_counting(c))
        return;
    first_norm(c);
    project_in(c, &d, room);
    for (int i = 0; i < b->depth; i++)
        layer_forward(c, &d, i, next_of(c, i), room);
    if (!again)
        dt_nn_linear_row(c, d.rows, dt_nn_channels_cut(c, d.rows, d.c, 1, c->act.sp.t, cut), SP_OUT,
                         SP_OUTB, c->x, c->y, room);
}

static void cheap_again(struct dt_nn_call *c, const struct dims *d)
{
    const struct dt_block *b = c->b;

    first_norm(c);
    for (int i = 0; i < b->depth; i++) {
        struct dt_nn_sp_layer *l = &c->act.sp.layer[i];

        layer_norm(c, d, i, 0, l->x, l->n1);
        layer_norm(c, d, i, 1, l->x2, l->n2);
        layer_norm(c, d, i, 2, l->x3, l->n3);
        geglu(c, d, l);
    }
}

/* ---- backward: gradients of a layer; `dt` enters as that of its output and leaves as that of its
 * input.  With a split backward every product's dy gets its own place in the stash. ---- */

struct rooms { /* this member's channels, and those of all */
    char *mine, *all;
};

struct grads {
    char *dout, *dh, *dn3, *dx3, *dq, *dkv, *dn2, *dx2, *dqkv, *dn1;
};

static struct grads grads_of(struct dt_nn_call *c, const struct dims *d)
{
    struct grads g;

    g.dout = dt_nn_grad_rows(c, d->rows, d->c, true);
    g.dh = dt_nn_grad_rows(c, d->rows, 2 * d->f, true);
    g.dn3 = dt_nn_grad_rows(c, d->rows, d->c, true);
    g.dq = dt_nn_grad_rows(c, d->rows, d->w, true);
    g.dkv = dt_nn_grad_rows(c, d->ctx_rows, 2 * d->w, true);
    g.dn2 = dt_nn_grad_rows(c, d->rows, d->c, true);
    g.dqkv = dt_nn_grad_rows(c, d->rows, 3 * d->w, true);
    g.dn1 = dt_nn_grad_rows(c, d->rows, d->c, true);
    g.dx3 = g.dx2 = g.dout; /* in place */
    if (c->s->split) {
        g.dx3 = dt_nn_grad_rows(c, d->rows, d->c, true);
        g.dx2 = dt_nn_grad_rows(c, d->rows, d->c, true);
    }
    return g;
}

/* The gradient of what all members have whole, from their summands. */
static void sum_input(struct dt_nn_call *c, int what, const struct dims *d, char *dn)
{
    if (what & DT_BACKWARD_INPUT)
        dt_nn_sum(c, d->rows * d->c, dn);
}

static void attend_back(struct dt_nn_call *c, const struct dt_kernel_attention *a, const char *q,
                        const char *k, const char *v, const char *o, const float *lse,
                        const char *d_o, char *dq, char *dk, char *dv)
{
    if (a->heads > 0)
        c->k->attention_bwd(c->q, a, q, k, v, o, lse, d_o, dq, dk, dv);
}

static void norm_back(struct dt_nn_call *c, int what, const struct dims *d, int i, int which,
                      const char *x, const char *dn, char *dx)
{
    static const int g[3] = {SPL_N1, SPL_N2, SPL_N3};
    struct dt_nn_sp_layer *l = &c->act.sp.layer[i];
    struct dt_kernel_norm n = norm_of(c, d);

    dt_nn_norm_back(c, what, &n, true, x, role(i, g[which]), role(i, g[which] + 1), l->mean[which],
                    l->rstd[which], dn, dx, true);
}

static void mlp_back(struct dt_nn_call *c, int what, const struct dims *d, int i,
                     const struct grads *g, char *da)
{
    struct dt_nn_sp_layer *l = &c->act.sp.layer[i];

    dt_nn_linear_back(c, what, d->rows, l->a, g->dout, role(i, SPL_DOWN), role(i, SPL_DOWNB), da,
                      false);
    if (what & DT_BACKWARD_INPUT) {
        if (d->f > 0)
            c->k->glu_bwd(c->q, DT_ACT_GELU_ERF, c->dtype, d->rows, d->f, true, l->h, da, g->dh);
        dt_nn_copy(c, g->dx3, g->dout, (size_t)(d->rows * d->c) * c->es);
    }
    dt_nn_linear_back(c, what, d->rows, l->n3, g->dh, role(i, SPL_UP), role(i, SPL_UPB), g->dn3,
                      false);
    sum_input(c, what, d, g->dn3);
    norm_back(c, what, d, i, 2, l->x3, g->dn3, g->dx3);
}

static void cross_back(struct dt_nn_call *c, int what, const struct dims *d, int i,
                       const struct grads *g, char *d_o)
{
    struct dt_nn_sp_layer *l = &c->act.sp.layer[i];
    struct dt_kernel_attention a = cross_of(c, d);
    bool states = c->b->context_len > 0;

    dt_nn_linear_back(c, what, d->rows, l->o2, g->dx3, role(i, SPL_O2), role(i, SPL_O2B), d_o,
                      false);
    if (what & DT_BACKWARD_INPUT) {
        attend_back(c, &a, l->q, l->kv, dt_nn_off(l->kv, d->w, c->es), l->o2, l->lse2, d_o, g->dq,
                    g->dkv, dt_nn_off(g->dkv, d->w, c->es));
        dt_nn_copy(c, g->dx2, g->dx3, (size_t)(d->rows * d->c) * c->es);
    }
    dt_nn_linear_back(c, what, d->rows, l->n2, g->dq, role(i, SPL_Q), -1, g->dn2, false);
    if (states)
        dt_nn_linear_back(c, what, d->ctx_rows, c->context, g->dkv, role(i, SPL_KV), -1,
                          c->n->need ? c->d_context : NULL, true);
    else
        dt_nn_linear_back(c, what, d->rows, l->n2, g->dkv, role(i, SPL_KV), -1, g->dn2, true);
    sum_input(c, what, d, g->dn2);
    norm_back(c, what, d, i, 1, l->x2, g->dn2, g->dx2);
}

static void self_back(struct dt_nn_call *c, int what, const struct dims *d, int i,
                      const struct grads *g, char *d_o, char *dx)
{
    struct dt_nn_sp_layer *l = &c->act.sp.layer[i];
    struct dt_kernel_attention a = self_of(c, d);

    dt_nn_linear_back(c, what, d->rows, l->o, g->dx2, role(i, SPL_O), role(i, SPL_OB), d_o, false);
    if (what & DT_BACKWARD_INPUT) {
        attend_back(c, &a, l->qkv, dt_nn_off(l->qkv, d->w, c->es),
                    dt_nn_off(l->qkv, 2 * d->w, c->es), l->o, l->lse1, d_o, g->dqkv,
                    dt_nn_off(g->dqkv, d->w, c->es), dt_nn_off(g->dqkv, 2 * d->w, c->es));
        dt_nn_copy(c, dx, g->dx2, (size_t)(d->rows * d->c) * c->es);
    }
    dt_nn_linear_back(c, what, d->rows, l->n1, g->dqkv, role(i, SPL_QKV), -1, g->dn1, false);
    sum_input(c, what, d, g->dn1);
    norm_back(c, what, d, i, 0, l->x, g->dn1, dx);
}

/* proj_out: its inputs are dealt, so a member has the gradient of its own channels of t. */
static void project_out_back(struct dt_nn_call *c, int what, const struct dims *d, char *dt,
                             const struct rooms *room)
{
    const void *t = dt_nn_channels_cut(c, d->rows, d->c, 1, c->act.sp.t, room->mine);
    char *to = c->s->tp ? dt_nn_channels_mine(c, d->rows, d->c, 1, room->all) : dt;

    dt_nn_linear_back(c, what, d->rows, t, c->dy, SP_OUT, SP_OUTB, to, false);
    if (c->s->tp && (what & DT_BACKWARD_INPUT))
        dt_nn_channels_join(c, d->rows, d->c, 1, room->all, dt);
}

static void project_in_back(struct dt_nn_call *c, int what, const struct dims *d, const char *dx0,
                            char *dn, const struct rooms *room)
{
    const void *mine = dt_nn_channels_cut(c, d->rows, d->c, 1, dx0, room->mine);

    dt_nn_linear_back(c, what, d->rows, c->act.sp.n, mine, SP_IN, SP_INB, dn, false);
    sum_input(c, what, d, dn);
}

static void backward(struct dt_nn_call *c, int what)
{
    const struct dt_block *b = c->b;
    struct dims d = dims_of(c);
    struct dt_nn_norm_at norm = dt_nn_norm_whole(b, b->hidden, SP_GN_EPS, false);
    struct rooms room = {dt_nn_tp_room(c, d.rows, dt_nn_mine(c->s, d.c)),
                         dt_nn_tp_room(c, d.rows, d.c)};
    char *da = dt_nn_grad_rows(c, d.rows, d.f, false),
         *d_o = dt_nn_grad_rows(c, d.rows, d.w, false);
    char *dx0 = dt_nn_grad_rows(c, d.rows, d.c, true), *dn = dt_nn_grad_rows(c, d.rows, d.c, true);
    struct dt_nn_area work = c->work;

    if (!dt_nn_counting(c) && c->n->mode == DT_LAY_FULL)
        forward(c, true);
    else if (!dt_nn_counting(c) && c->n->mode == DT_LAY_SELECTIVE)
        cheap_again(c, &d);
    for (int i = b->depth - 1; i >= 0; i--) {
        struct dt_nn_area next;
        struct grads g;

        if (!c->s->split) /* one set serves all layers */
            c->work = work;
        g = grads_of(c, &d);
        if (dt_nn_counting(c))
            continue;
        if (i == b->depth - 1)
            project_out_back(c, what, &d, g.dout, &room);
        mlp_back(c, what, &d, i, &g, da);
        cross_back(c, what, &d, i, &g, d_o);
        next = c->s->split ? c->stash : work; /* where the layer below will have its dout */
        self_back(c, what, &d, i, &g, d_o,
                  i == 0 ? dx0 : dt_nn_area_take(&next, (size_t)(d.rows * d.c) * c->es, false));
    }
    if (dt_nn_counting(c))
        return;
    project_in_back(c, what, &d, dx0, dn, &room);
    if (c->dx && (what & DT_BACKWARD_INPUT)) {
        if (!c->s->split)
            c->dx = c->dy;
        else
            dt_nn_copy(c, c->dx, c->dy, (size_t)(d.rows * d.c) * c->es);
    }
    dt_nn_groupnorm_back(c, what, &norm, c->x, SP_G, SP_GB, c->act.sp.mean, c->act.sp.rstd, dn,
                         c->dx, true);
}

static void note(struct dt_nn_shape_facts *f, const struct dt_block *b, int i)
{
    if (b->context_len == 0)
        return;
    f->context_last = i;
    f->context_len = b->context_len;
    f->context_dim = b->context_dim;
}

const struct dt_nn_block_ops dt_nn_ops_spatial = {
    .layout = layout,
    .forward = forward,
    .backward = backward,
    .in_width = dt_nn_in_hidden,
    .out_width = dt_nn_out_hidden,
    .begin = dt_nn_begin_none,
    .note = note,
};
