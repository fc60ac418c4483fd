/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * The ends of transformers: token and patch embedding, final norm, LM head with its loss.
 * block_projector.c: projectors. */
#include "exec/modules/impl.h"

static void zero_unless_written(struct dt_nn_call *c, int role)
{
    struct dt_nn_weight *s = dt_nn_weight_of(c, role);

    if (!s->written)
        c->s->dev->zero(c->q, c->s->grads + s->at, s->n * sizeof(float));
    s->written = true;
}

static void table_back(struct dt_nn_call *c, int role, int64_t rows, const int32_t *id,
                       const char *dy)
{
    const struct dt_nn_weight *s = dt_nn_weight_of(c, role);

    zero_unless_written(c, role);
    c->k->embedding_bwd(c->q, c->dtype, rows, s->in, s->out, id, dy, dt_nn_grad_of(c, role));
}

static int64_t own_rows(const struct dt_nn_call *c)
{
    return dt_nn_own_rows(c->s, c->batch->rows);
}

static int64_t own_first(const struct dt_nn_call *c)
{
    return dt_nn_own_first(c->s, c->batch->rows);
}

/* ---- token embedding: tokens, learned positions, and the encoders' rows in their places ----
 *
 * Tensor parallelism: a member looks up the tokens of its slice of the table, for all rows; the
 * sum over members has every row once.  An encoders' row comes to the member that has its place, and joins
 * the sum, or own rows behind it. */

static void embedding_layout(struct dt_nn_call *c)
{
    c->act.emb.ids = dt_nn_keep(c, (size_t)c->batch->rows * 4, false);
    c->act.emb.pos = dt_nn_keep(c, (size_t)c->batch->rows * 4, false);
}

static void embedding_forward(struct dt_nn_call *c, bool again)
{
    const struct dt_batch *m = c->batch;
    const struct dt_block *b = c->b;
    int64_t mine = dt_nn_mine(c->s, b->vocab), own = own_rows(c), first = own_first(c);
    char *room = c->s->seqpar ? dt_nn_tp_room(c, m->rows, b->hidden) : NULL, *all;

    if (dt_nn_counting(c) || again)
        return;
    c->k->ids_part(c->q, m->rows, m->dev.ids, dt_nn_mine_first(c->s, b->vocab), mine,
                   c->act.emb.ids);
    dt_nn_copy(c, c->act.emb.pos, m->dev.pos, (size_t)m->rows * 4);
    all = room ? room : c->y;
    c->k->embedding_fwd(c->q, c->dtype, m->rows, b->hidden, mine, c->act.emb.ids,
                        dt_nn_master_of(c, EMB_TOKEN), all, false);
    if (room)
        dt_tp_reduce_scatter(c->q, c->s->tp, c->dtype, m->rows, b->hidden, all);
    if (c->in_rows && m->n_in > 0)
        c->k->rows_copy(c->q, c->dtype, m->n_in, b->hidden, c->in_rows, NULL, all, m->dev.in_row,
                        false);
    if (!room)
        dt_nn_sum(c, m->rows * b->hidden, all);
    else
        dt_nn_copy(c, c->y, dt_nn_off(room, first * b->hidden, c->es),
                   (size_t)(own * b->hidden) * c->es);
    if (dt_nn_weight_of(c, EMB_POS))
        c->k->embedding_fwd(c->q, c->dtype, own, b->hidden, b->max_pos, m->dev.pos + first,
                            dt_nn_master_of(c, EMB_POS), c->y, true);
}

/* The gradient of all rows; of own ones alone, in their place, where tables do not ask for others. */
static const char *rows_of(struct dt_nn_call *c, bool tables, char *room)
{
    int64_t width = c->b->hidden;

    if (tables || !room)
        return dt_nn_whole_rows(c, c->batch->rows, width, c->dy, room);
    dt_nn_copy(c, dt_nn_off(room, own_first(c) * width, c->es), c->dy,
               (size_t)(own_rows(c) * width) * c->es);
    return room;
}

static void embedding_backward(struct dt_nn_call *c, int what)
{
    const struct dt_batch *m = c->batch;
    char *room = c->s->seqpar ? dt_nn_tp_room(c, m->rows, c->b->hidden) : NULL;
    const char *dy;
    bool rows = (what & DT_BACKWARD_INPUT) && c->d_in_rows && m->n_in > 0;
    bool tables = (what & DT_BACKWARD_WEIGHT) && c->n->trained;

    if (dt_nn_counting(c) || !(rows || tables))
        return;
    dy = rows_of(c, tables, room);
    if (rows)
        c->k->rows_copy(c->q, c->dtype, m->n_in, c->b->hidden, dy, m->dev.in_row, c->d_in_rows,
                        NULL, false);
    if (!tables)
        return;
    table_back(c, EMB_TOKEN, m->rows, c->act.emb.ids, dy);
    if (dt_nn_weight_of(c, EMB_POS))
        table_back(c, EMB_POS, own_rows(c), c->act.emb.pos + own_first(c), c->dy);
}

static int64_t embedding_begin(const struct dt_block *b, const struct dt_batch *m)
{
    return m->n_in * b->hidden; /* the encoders' rows */
}

const struct dt_nn_block_ops dt_nn_ops_embedding = {
    .layout = embedding_layout,
    .forward = embedding_forward,
    .backward = embedding_backward,
    .source = true,
    .in_width = dt_nn_in_hidden,
    .out_width = dt_nn_out_hidden,
    .begin = embedding_begin,
    .note = dt_nn_note_nothing,
};

/* ---- patch embedding ---- */

static void patch_layout(struct dt_nn_call *c)
{
    c->act.patch.px = dt_nn_keep_rows(c, own_rows(c), c->s->facts.patch_width, false);
}

static void patch_forward(struct dt_nn_call *c, bool again)
{
    const struct dt_batch *m = c->batch;
    const struct dt_block *b = c->b;
    int64_t own = own_rows(c), first = own_first(c), width = c->s->facts.patch_width;

    if (dt_nn_counting(c) || again)
        return;
    c->k->cast(c->q, own * width, DT_F32, m->dev.pixels + first * width, c->dtype, c->act.patch.px);
    dt_nn_linear(c, own, c->act.patch.px, PATCH_W, PATCH_B, NULL, c->y);
    if (dt_nn_weight_of(c, PATCH_POS))
        c->k->embedding_fwd(c->q, c->dtype, own, b->hidden, b->max_pos, m->dev.pos + first,
                            dt_nn_master_of(c, PATCH_POS), c->y, true);
}

static void patch_backward(struct dt_nn_call *c, int what)
{
    if (dt_nn_counting(c) || !(what & DT_BACKWARD_WEIGHT) || !c->n->trained)
        return;
    dt_nn_linear_back(c, DT_BACKWARD_WEIGHT, own_rows(c), c->act.patch.px, c->dy, PATCH_W, PATCH_B,
                      NULL, false);
    if (dt_nn_weight_of(c, PATCH_POS))
        table_back(c, PATCH_POS, own_rows(c), c->batch->dev.pos + own_first(c), c->dy);
}

static void patch_note(struct dt_nn_shape_facts *f, const struct dt_block *b, int i)
{
    (void)i;
    f->patch_width = b->patch * b->patch * b->channels;
}

const struct dt_nn_block_ops dt_nn_ops_patch = {
    .layout = patch_layout,
    .forward = patch_forward,
    .backward = patch_backward,
    .source = true,
    .in_width = dt_nn_in_hidden,
    .out_width = dt_nn_out_hidden,
    .begin = dt_nn_begin_none,
    .note = patch_note,
};

/* ---- final norm ---- */

static struct dt_kernel_norm norm_of(const struct dt_nn_call *c)
{
    return (struct dt_kernel_norm){.dtype = c->dtype,
                                   .rows = own_rows(c),
                                   .width = c->b->hidden,
                                   .eps = (float)c->s->numbers.norm_eps};
}

static void stats_layout(struct dt_nn_call *c)
{
    if (c->b->layernorm)
        c->act.norm.mean = dt_nn_keep_f32(c, own_rows(c), true);
    c->act.norm.rstd = dt_nn_keep_f32(c, own_rows(c), true);
}

static void norm_layout(struct dt_nn_call *c)
{
    stats_layout(c);
}

static void norm_forward(struct dt_nn_call *c, bool again)
{
    struct dt_kernel_norm n = norm_of(c);

    if (dt_nn_counting(c) || again)
        return;
    dt_nn_norm(c, &n, c->b->layernorm, c->x, NORM_G, NORM_B, c->y, c->act.norm.mean,
               c->act.norm.rstd);
}

static void norm_backward(struct dt_nn_call *c, int what)
{
    struct dt_kernel_norm n = norm_of(c);
    char *again = c->n->mode == DT_LAY_NONE ? NULL : dt_nn_work_rows(c, own_rows(c), c->b->hidden);

    if (dt_nn_counting(c))
        return;
    if (again) /* for the statistics */
        dt_nn_norm(c, &n, c->b->layernorm, c->x, NORM_G, NORM_B, again, c->act.norm.mean,
                   c->act.norm.rstd);
    if (c->dx && !c->s->split)
        c->dx = c->dy;
    dt_nn_norm_back(c, what, &n, c->b->layernorm, c->x, NORM_G, NORM_B, c->act.norm.mean,
                    c->act.norm.rstd, c->dy, c->dx, false);
}

const struct dt_nn_block_ops dt_nn_ops_norm = {
    .layout = norm_layout,
    .forward = norm_forward,
    .backward = norm_backward,
    .in_width = dt_nn_in_hidden,
    .out_width = dt_nn_out_hidden,
    .begin = dt_nn_begin_none,
    .note = dt_nn_note_nothing,
};

/* ---- LM head: final norm, logits, loss ----
 *
 * Loss and gradient of a chunk of rows are computed together, so that logits never exist for all of
 * them.  With everything kept that happens in the forward, and the gradient of the normed states
 * lies where they would (the weights' gradient is added then, too); with recompute the forward
 * computes the loss alone and the backward does it again with gradients.  Conditioning states for
 * generators are normed states; their gradient joins here.
 *
 * Tensor parallelism: all rows' normed states meet a member's slice of the vocabulary; the gradient
 * of the states is summed and goes back to own rows. */

static void head_layout(struct dt_nn_call *c)
{
    stats_layout(c);
    c->act.norm.dn = dt_nn_keep_rows(c, own_rows(c), c->b->hidden, true);
}

static void meet_max(struct dt_device_queue *q, void *tp, int64_t n, float *x)
{
    dt_tp_all_reduce_max(q, tp, n, x);
}

static void meet_sum(struct dt_device_queue *q, void *tp, int64_t n, double *x)
{
    dt_tp_all_reduce_f64(q, tp, n, x);
}

/* n: all rows.  room: for the gradient's summands, where there are other members. */
static void loss(struct dt_nn_call *c, const char *n, bool gradient, char *room)
{
    const struct dt_batch *m = c->batch;
    const struct dt_nn_weight *w = dt_nn_weight_of(c, HEAD_W);
    struct dt_tp *tp = c->s->tp;
    struct dt_kernel_xent_parts parts = {.vocab = c->b->vocab,
                                         .first = dt_nn_mine_first(c->s, c->b->vocab),
                                         .most = dt_tp_count(tp, c->b->vocab, 0),
                                         .max = meet_max,
                                         .sum = meet_sum,
                                         .arg = tp};
    struct dt_kernel_xent x = {c->dtype, m->rows, w->w, m->loss_scale, tp ? &parts : NULL};
    float *dw = gradient && c->n->trained ? dt_nn_grad_of(c, HEAD_W) : NULL;
    char *dn = tp ? room : c->act.norm.dn;

    c->k->xent(c->q, &x, n, m->dev.target, m->dev.nll, m->dev.best, gradient ? dn : NULL, dw,
               w->written);
    if (dw)
        dt_nn_weight_of(c, HEAD_W)->written = true;
    if (tp && gradient)
        dt_nn_own_sum(c, m->rows, c->b->hidden, dn, c->act.norm.dn, false);
}

static void head_forward(struct dt_nn_call *c, bool again)
{
    struct dt_kernel_norm norm = norm_of(c);
    char *n = dt_nn_work_rows(c, own_rows(c), c->b->hidden);
    char *room_n = dt_nn_tp_room(c, c->batch->rows, c->b->hidden);
    char *room_dn = dt_nn_tp_room(c, c->batch->rows, c->b->hidden);

    if (dt_nn_counting(c))
        return;
    dt_nn_norm(c, &norm, c->b->layernorm, c->x, HEAD_G, HEAD_B, n, c->act.norm.mean,
               c->act.norm.rstd);
    n = dt_nn_whole_rows(c, c->batch->rows, c->b->hidden, n, room_n);
    if (again) {
        loss(c, n, true, room_dn);
        return;
    }
    if (c->out_rows && c->batch->n_cond > 0) /* conditioning states: own ones of the rows at n */
        c->k->rows_copy(c->q, c->dtype, c->batch->n_cond, c->b->hidden, n, c->batch->dev.cond_row,
                        c->out_rows, NULL, false);
    loss(c, n, c->n->mode == DT_LAY_NONE && c->batch->train, room_dn);
}

/* The gradient of own conditioning states joins that of own rows, or of all where members have whole ones. */
static void states_back(struct dt_nn_call *c, char *dn, char *room)
{
    const struct dt_batch *m = c->batch;
    int64_t width = c->b->hidden, own = own_first(c) * width, n = own_rows(c) * width;

    if (!room) {
        c->k->rows_copy(c->q, c->dtype, m->n_cond, width, c->d_out_rows, NULL, dn, m->dev.cond_row,
                        true);
        return;
    }
    c->s->dev->zero(c->q, dt_nn_off(room, own, c->es), (size_t)n * c->es);
    if (m->n_cond > 0)
        c->k->rows_copy(c->q, c->dtype, m->n_cond, width, c->d_out_rows, NULL, room,
                        m->dev.cond_row, true);
    if (!c->s->seqpar)
        dt_nn_sum(c, n, room);
    c->k->add(c->q, c->dtype, n, dn, dt_nn_off(room, own, c->es), dn);
}

static void head_backward(struct dt_nn_call *c, int what)
{
    struct dt_kernel_norm norm = norm_of(c);
    char *dn = c->n->mode == DT_LAY_NONE ? c->act.norm.dn
                                         : dt_nn_grad_rows(c, own_rows(c), c->b->hidden, true);
    char *room = dt_nn_tp_room(c, c->batch->rows, c->b->hidden);
    struct dt_nn_area work = c->work;

    if (dt_nn_counting(c))
        return;
    if (what & DT_BACKWARD_INPUT) {
        c->act.norm.dn = dn;
        if (c->n->mode != DT_LAY_NONE)
            head_forward(c, true);
        c->work = work;
        if (c->batch->n_cond_all > 0 && (c->d_out_rows || c->batch->n_cond == 0))
            states_back(c, dn, room);
    } else if (c->n->mode != DT_LAY_NONE) { /* statistics for the scale's gradient */
        dt_nn_norm(c, &norm, c->b->layernorm, c->x, HEAD_G, HEAD_B,
                   dt_nn_work_rows(c, own_rows(c), c->b->hidden), c->act.norm.mean,
                   c->act.norm.rstd);
    }
    dt_nn_norm_back(c, what, &norm, c->b->layernorm, c->x, HEAD_G, HEAD_B, c->act.norm.mean,
                    c->act.norm.rstd, dn, c->dx, false);
}

const struct dt_nn_block_ops dt_nn_ops_head = {
    .layout = head_layout,
    .forward = head_forward,
    .backward = head_backward,
    .in_width = dt_nn_in_hidden,
    .out_width = dt_nn_out_none,
    .begin = dt_nn_begin_none,
    .note = dt_nn_note_nothing,
};
