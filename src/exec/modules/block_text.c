/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * The ends of transformers: token and patch embedding, final norm, projector, LM head with its
 * loss. */
#include "exec/modules/impl.h"

static void zero_unless_written(struct dt_call *c, int role)
{
    struct dt_slot *s = dt_slot_of(c, role);

    if (!s->written)
        c->s->dev->zero(c->q, c->s->grads + s->at, s->n * sizeof(float));
    s->written = true;
}

static void table_back(struct dt_call *c, int role, int64_t width, const int32_t *id)
{
    const struct dt_slot *s = dt_slot_of(c, role);

    zero_unless_written(c, role);
    c->k->embedding_bwd(c->q, c->dtype, c->batch->rows, width, s->out, id, c->dy,
                        dt_grad_of(c, role));
}

/* ---- token embedding: tokens, learned positions, and the encoders' rows in their places ---- */

static void embedding_layout(struct dt_call *c)
{
    c->act.emb.ids = dt_keep(c, (size_t)c->batch->rows * 4, false);
    c->act.emb.pos = dt_keep(c, (size_t)c->batch->rows * 4, false);
}

static void embedding_forward(struct dt_call *c, bool again)
{
    const struct dt_batch *m = c->batch;
    const struct dt_block *b = c->b;

    if (dt_counting(c) || again)
        return;
    dt_copy(c, c->act.emb.ids, m->dev.ids, (size_t)m->rows * 4);
    dt_copy(c, c->act.emb.pos, m->dev.pos, (size_t)m->rows * 4);
    c->k->embedding_fwd(c->q, c->dtype, m->rows, b->hidden, b->vocab, m->dev.ids,
                        dt_master_of(c, EMB_TOKEN), c->y, false);
    if (c->in_rows && m->n_in > 0)
        c->k->rows_copy(c->q, c->dtype, m->n_in, b->hidden, c->in_rows, NULL, c->y, m->dev.in_row,
                        false);
    if (dt_slot_of(c, EMB_POS))
        c->k->embedding_fwd(c->q, c->dtype, m->rows, b->hidden, b->max_pos, m->dev.pos,
                            dt_master_of(c, EMB_POS), c->y, true);
}

static void embedding_backward(struct dt_call *c, int what)
{
    const struct dt_batch *m = c->batch;

    if (dt_counting(c))
        return;
    if ((what & DT_BACKWARD_INPUT) && c->d_in_rows && m->n_in > 0)
        c->k->rows_copy(c->q, c->dtype, m->n_in, c->b->hidden, c->dy, m->dev.in_row, c->d_in_rows,
                        NULL, false);
    if (!(what & DT_BACKWARD_WEIGHT) || !c->n->trained)
        return;
    table_back(c, EMB_TOKEN, c->b->hidden, c->act.emb.ids);
    if (dt_slot_of(c, EMB_POS))
        table_back(c, EMB_POS, c->b->hidden, c->act.emb.pos);
}

const struct dt_block_ops dt_ops_embedding = {embedding_layout, embedding_forward,
                                              embedding_backward};

/* ---- patch embedding ---- */

static void patch_layout(struct dt_call *c)
{
    c->act.patch.px = dt_keep_rows(c, c->batch->rows, c->s->facts.patch_width, false);
}

static void patch_forward(struct dt_call *c, bool again)
{
    const struct dt_batch *m = c->batch;
    const struct dt_block *b = c->b;

    if (dt_counting(c) || again)
        return;
    c->k->cast(c->q, m->rows * c->s->facts.patch_width, DT_F32, m->dev.pixels, c->dtype,
               c->act.patch.px);
    dt_linear(c, m->rows, c->act.patch.px, PATCH_W, PATCH_B, NULL, c->y);
    if (dt_slot_of(c, PATCH_POS))
        c->k->embedding_fwd(c->q, c->dtype, m->rows, b->hidden, b->max_pos, m->dev.pos,
                            dt_master_of(c, PATCH_POS), c->y, true);
}

static void patch_backward(struct dt_call *c, int what)
{
    if (dt_counting(c) || !(what & DT_BACKWARD_WEIGHT) || !c->n->trained)
        return;
    dt_linear_back(c, DT_BACKWARD_WEIGHT, c->batch->rows, c->act.patch.px, c->dy, PATCH_W, PATCH_B,
                   NULL, false);
    if (dt_slot_of(c, PATCH_POS))
        table_back(c, PATCH_POS, c->b->hidden, c->batch->dev.pos);
}

const struct dt_block_ops dt_ops_patch = {patch_layout, patch_forward, patch_backward};

/* ---- final norm ---- */

static struct dt_norm norm_of(const struct dt_call *c)
{
    return (struct dt_norm){.dtype = c->dtype,
                            .rows = c->batch->rows,
                            .width = c->b->hidden,
                            .eps = (float)c->s->numbers.norm_eps};
}

static void stats_layout(struct dt_call *c)
{
    if (c->b->layernorm)
        c->act.norm.mean = dt_keep_f32(c, c->batch->rows, true);
    c->act.norm.rstd = dt_keep_f32(c, c->batch->rows, true);
}

static void norm_layout(struct dt_call *c)
{
    stats_layout(c);
}

static void norm_forward(struct dt_call *c, bool again)
{
    struct dt_norm n = norm_of(c);

    if (dt_counting(c) || again)
        return;
    dt_norm(c, &n, c->b->layernorm, c->x, NORM_G, NORM_B, c->y, c->act.norm.mean, c->act.norm.rstd);
}

static void norm_backward(struct dt_call *c, int what)
{
    struct dt_norm n = norm_of(c);
    char *again =
        c->n->mode == DT_LAY_NONE ? NULL : dt_grad_rows(c, c->batch->rows, c->b->hidden, false);

    if (dt_counting(c))
        return;
    if (again) /* for the statistics */
        dt_norm(c, &n, c->b->layernorm, c->x, NORM_G, NORM_B, again, c->act.norm.mean,
                c->act.norm.rstd);
    if (c->dx && !c->s->split)
        c->dx = c->dy;
    dt_norm_back(c, what, &n, c->b->layernorm, c->x, NORM_G, NORM_B, c->act.norm.mean,
                 c->act.norm.rstd, c->dy, c->dx, false);
}

const struct dt_block_ops dt_ops_norm = {norm_layout, norm_forward, norm_backward};

/* ---- projector: one linear layer, or linear, GELU, linear ---- */

static int64_t projected_rows(const struct dt_call *c)
{
    return c->b->context_len > 0 ? c->batch->n_seq * c->b->context_len : c->batch->rows;
}

static void projector_layout(struct dt_call *c)
{
    if (c->b->mid_dim == 0)
        return;
    c->act.proj.h = dt_keep_rows(c, projected_rows(c), c->b->mid_dim, false);
    c->act.proj.a = dt_keep_rows(c, projected_rows(c), c->b->mid_dim, true);
}

static void projector_forward(struct dt_call *c, bool again)
{
    int64_t rows = projected_rows(c);
    char *y = c->n->has_y ? c->y : c->context;

    if (dt_counting(c))
        return;
    if (c->b->mid_dim == 0) {
        if (!again)
            dt_linear(c, rows, c->x, PROJ_W1, PROJ_B1, NULL, y);
        return;
    }
    dt_linear(c, rows, c->x, PROJ_W1, PROJ_B1, NULL, c->act.proj.h);
    c->k->act_fwd(c->q, DT_ACT_GELU_ERF, c->dtype, rows * c->b->mid_dim, c->act.proj.h,
                  c->act.proj.a);
    if (!again)
        dt_linear(c, rows, c->act.proj.a, PROJ_W2, PROJ_B2, NULL, y);
}

static void projector_backward(struct dt_call *c, int what)
{
    int64_t rows = projected_rows(c);
    char *dy = c->n->has_y ? c->dy : c->d_context;
    char *dh = c->b->mid_dim == 0 ? NULL : dt_grad_rows(c, rows, c->b->mid_dim, true);

    if (!c->n->has_y && c->s->split)
        dy = dt_flow_kept(c, what, c->d_context, rows * c->b->out_dim);
    if (dt_counting(c))
        return;
    if (c->b->mid_dim == 0) {
        dt_linear_back(c, what, rows, c->x, dy, PROJ_W1, PROJ_B1, c->dx, false);
        return;
    }
    if (c->n->mode == DT_LAY_FULL)
        projector_forward(c, true);
    else if (c->n->mode == DT_LAY_SELECTIVE)
        c->k->act_fwd(c->q, DT_ACT_GELU_ERF, c->dtype, rows * c->b->mid_dim, c->act.proj.h,
                      c->act.proj.a);
    dt_linear_back(c, what, rows, c->act.proj.a, dy, PROJ_W2, PROJ_B2, dh, false);
    if (what & DT_BACKWARD_INPUT)
        c->k->act_bwd(c->q, DT_ACT_GELU_ERF, c->dtype, rows * c->b->mid_dim, c->act.proj.h, dh, dh);
    dt_linear_back(c, what, rows, c->x, dh, PROJ_W1, PROJ_B1, c->dx, false);
}

const struct dt_block_ops dt_ops_projector = {projector_layout, projector_forward,
                                              projector_backward};

/* ---- LM head: final norm, logits, loss ----
 *
 * Loss and gradient of a chunk of rows are computed together, so that logits never exist for all of
 * them.  With everything kept that happens in the forward, and the gradient of the normed states
 * lies where they would (the weights' gradient is added then, too); with recompute the forward
 * computes the loss alone and the backward does it again with gradients.  Conditioning states for
 * generators are normed states; their gradient joins here. */

static void head_layout(struct dt_call *c)
{
    stats_layout(c);
    c->act.norm.dn = dt_keep_rows(c, c->batch->rows, c->b->hidden, true);
}

static void loss(struct dt_call *c, const char *n, bool gradient)
{
    const struct dt_batch *m = c->batch;
    const struct dt_slot *w = dt_slot_of(c, HEAD_W);
    struct dt_xent x = {c->dtype, m->rows, w->w, m->loss_scale, NULL};
    float *dw = gradient && c->n->trained ? dt_grad_of(c, HEAD_W) : NULL;

    c->k->xent(c->q, &x, n, m->dev.target, m->dev.nll, m->dev.best,
               gradient ? c->act.norm.dn : NULL, dw, w->written);
    if (dw)
        dt_slot_of(c, HEAD_W)->written = true;
}

static void head_forward(struct dt_call *c, bool again)
{
    struct dt_norm norm = norm_of(c);
    char *n = dt_work_rows(c, c->batch->rows, c->b->hidden);

    if (dt_counting(c))
        return;
    dt_norm(c, &norm, c->b->layernorm, c->x, HEAD_G, HEAD_B, n, c->act.norm.mean, c->act.norm.rstd);
    if (again) {
        loss(c, n, true);
        return;
    }
    if (c->out_rows && c->batch->n_cond > 0)
        c->k->rows_copy(c->q, c->dtype, c->batch->n_cond, c->b->hidden, n, c->batch->dev.cond_row,
                        c->out_rows, NULL, false);
    loss(c, n, c->n->mode == DT_LAY_NONE && c->batch->train);
}

static void head_backward(struct dt_call *c, int what)
{
    struct dt_norm norm = norm_of(c);
    char *dn = c->n->mode == DT_LAY_NONE ? c->act.norm.dn
                                         : dt_grad_rows(c, c->batch->rows, c->b->hidden, true);

    if (dt_counting(c))
        return;
    if (what & DT_BACKWARD_INPUT) {
        c->act.norm.dn = dn;
        if (c->n->mode != DT_LAY_NONE)
            head_forward(c, true);
        if (c->d_out_rows && c->batch->n_cond > 0)
            c->k->rows_copy(c->q, c->dtype, c->batch->n_cond, c->b->hidden, c->d_out_rows, NULL, dn,
                            c->batch->dev.cond_row, true);
    } else if (c->n->mode != DT_LAY_NONE) { /* statistics for the scale's gradient */
        dt_norm(c, &norm, c->b->layernorm, c->x, HEAD_G, HEAD_B,
                dt_work_rows(c, c->batch->rows, c->b->hidden), c->act.norm.mean, c->act.norm.rstd);
    }
    dt_norm_back(c, what, &norm, c->b->layernorm, c->x, HEAD_G, HEAD_B, c->act.norm.mean,
                 c->act.norm.rstd, dn, c->dx, false);
}

const struct dt_block_ops dt_ops_head = {head_layout, head_forward, head_backward};
