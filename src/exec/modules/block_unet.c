/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * The U-Net's convolutional blocks: time embedding, single convolutions (in, down, up, out with the
 * loss), ResBlocks.
 *
 *   ResBlock: [x | skip] -> s1 = silu(norm) -> conv1 -> + time -> h1
 *             h1         -> s2 = silu(norm) -> conv2 -> + x (or its 1 x 1 shortcut)
 *
 * Tensor parallelism: activations between blocks are whole at every member.  In a ResBlock conv1's
 * outputs are dealt in whole groups of the second norm, conv2's inputs likewise and the shortcut's
 * inputs by channels; one sum makes the output whole.  A convolution that halves or doubles has its
 * outputs dealt and joined.  Gradients of the time embedding stay summands until its own block. */
#include "exec/modules/impl.h"

static float eps_of(const struct dt_nn_call *c)
{
    return (float)c->s->numbers.norm_eps;
}

/* ---- time embedding: sinusoids, two linear layers ---- */

static void time_layout(struct dt_nn_call *c)
{
    int64_t n = c->batch->n_seq;

    c->act.time.sin = dt_nn_keep_rows(c, n, c->b->hidden, false);
    c->act.time.h = dt_nn_keep_rows(c, n, c->b->time_dim, false);
    c->act.time.a = dt_nn_keep_rows(c, n, c->b->time_dim, false);
}

static void time_forward(struct dt_nn_call *c, bool again)
{
    int64_t n = c->batch->n_seq;

    if (dt_nn_counting(c) || again)
        return;
    c->k->timestep(c->q, c->dtype, n, c->b->hidden, c->batch->dev.t, 10000.0f,
                   (float)c->s->numbers.freq_shift, !c->s->numbers.sine_first, c->act.time.sin);
    dt_nn_linear(c, n, c->act.time.sin, TIME_W1, TIME_B1, NULL, c->act.time.h);
    c->k->act_fwd(c->q, DT_ACT_SILU, c->dtype, n * c->b->time_dim, c->act.time.h, c->act.time.a);
    dt_nn_linear(c, n, c->act.time.a, TIME_W2, TIME_B2, NULL, c->time);
}

static void time_backward(struct dt_nn_call *c, int what)
{
    int64_t n = c->batch->n_seq;
    char *dh = dt_nn_grad_rows(c, n, c->b->time_dim, true), *dy = c->d_time;

    if (!dt_nn_counting(c) && (what & DT_BACKWARD_INPUT))
        dt_nn_sum(c, n * c->b->time_dim, c->d_time);
    if (c->s->split)
        dy = dt_flow_kept(c, what, c->d_time, n * c->b->time_dim);
    if (dt_nn_counting(c))
        return;
    dt_nn_linear_back(c, what, n, c->act.time.a, dy, TIME_W2, TIME_B2, dh, false);
    if (what & DT_BACKWARD_INPUT)
        c->k->act_bwd(c->q, DT_ACT_SILU, c->dtype, n * c->b->time_dim, c->act.time.h, dh, dh);
    dt_nn_linear_back(c, what & DT_BACKWARD_WEIGHT, n, c->act.time.sin, dh, TIME_W1, TIME_B1, NULL,
                      false);
}

static void time_note(struct dt_nn_shape_facts *f, const struct dt_block *b, int i)
{
    f->time_first = i + 1;
    f->time_dim = b->time_dim;
}

const struct dt_nn_block_ops dt_nn_ops_time = {
    .layout = time_layout,
    .forward = time_forward,
    .backward = time_backward,
    .source = true,
    .in_width = dt_nn_in_hidden,
    .out_width = dt_nn_out_none,
    .begin = dt_nn_begin_none,
    .note = time_note,
};

/* ---- single convolutions ---- */

/* Are its outputs dealt?  Not of the first and the last convolution. */
static bool dealt(const struct dt_nn_call *c)
{
    return c->s->tp && !c->n->own_x && !c->b->layernorm;
}

static struct dt_nn_conv_at conv_at(const struct dt_nn_call *c)
{
    const struct dt_block *b = c->b;
    int out = dealt(c) ? (int)dt_nn_mine(c->s, b->c_out) : b->c_out;

    return (struct dt_nn_conv_at){b->level, b->upsample, b->c_in, out, b->kernel, b->stride};
}

static int64_t conv_rows_out(const struct dt_nn_call *c)
{
    int64_t rows = dt_nn_level_rows(c->batch, c->b->level);

    return c->b->upsample ? rows * 4 : c->b->stride == 2 ? rows / 4 : rows;
}

static struct dt_nn_norm_at norm_at(const struct dt_nn_call *c)
{
    return dt_nn_norm_whole(c->b, c->b->c_in, eps_of(c), true);
}

static void conv_layout(struct dt_nn_call *c)
{
    const struct dt_block *b = c->b;

    if (!b->layernorm)
        return;
    c->act.conv.mean = dt_nn_keep_f32(c, c->batch->n_seq * dt_block_groups(b, b->c_in), true);
    c->act.conv.rstd = dt_nn_keep_f32(c, c->batch->n_seq * dt_block_groups(b, b->c_in), true);
    c->act.conv.s = dt_nn_keep_rows(c, dt_nn_level_rows(c->batch, b->level), b->c_in, true);
}

/* x_t = alpha x0 + sigma noise, into the block's kept input. */
static void noisy_latents(struct dt_nn_call *c)
{
    const struct dt_batch *m = c->batch;
    int64_t n = m->rows * c->b->c_in;
    float *mixed = dt_nn_work(c, (size_t)n * 4);
    struct dt_kernel_items images = dt_nn_items(m, 0);

    if (dt_nn_counting(c))
        return;
    if (!m->given_noise)
        c->k->mix(c->q, DT_F32, &images, c->b->c_in, m->dev.alpha, m->dev.pixels, m->dev.sigma,
                  m->dev.noise, mixed);
    c->k->cast(c->q, n, DT_F32, m->given_noise ? m->dev.pixels : mixed, c->dtype, c->x);
}

static void upsample(struct dt_nn_call *c, bool back, const char *from, char *to)
{
    struct dt_kernel_images small = dt_nn_image_sizes(c->batch, c->b->level);

    if (back)
        c->k->upsample2_bwd(c->q, c->dtype, &small, c->b->c_in, from, to);
    else
        c->k->upsample2_fwd(c->q, c->dtype, &small, c->b->c_in, from, to);
}

/* Predicted noise, its error, and (dy not NULL) the gradient of scale * sum of mean squares. */
static void noise_loss(struct dt_nn_call *c, char *dy)
{
    const struct dt_batch *m = c->batch;
    int64_t width = c->b->c_out;
    float *d = dy ? dt_nn_work(c, (size_t)(m->rows * width) * 4) : NULL;
    struct dt_kernel_items images = dt_nn_items(m, 0);

    if (dt_nn_counting(c) || m->given_noise)
        return;
    c->k->mse(c->q, DT_F32, &images, width, m->dev.pred, m->dev.noise, m->loss_scale, m->dev.sse,
              d);
    if (dy)
        c->k->cast(c->q, m->rows * width, DT_F32, d, c->dtype, dy);
}

static void conv_forward(struct dt_nn_call *c, bool again)
{
    const struct dt_block *b = c->b;
    struct dt_nn_conv_at at = conv_at(c);
    struct dt_nn_norm_at norm = norm_at(c);
    int64_t rows = dt_nn_level_rows(c->batch, b->level), out_rows = conv_rows_out(c);
    char *in = c->x, *out = c->y, *room = NULL;

    if (c->n->own_x && !again)
        noisy_latents(c);
    if (b->upsample)
        in = dt_nn_work_rows(c, 4 * rows, b->c_in);
    if (b->layernorm)
        out = dt_nn_work_rows(c, rows, b->c_out);
    if (dealt(c))
        room = dt_nn_tp_room(c, out_rows, b->c_out);
    if (dt_nn_counting(c))
        return;
    if (b->upsample)
        upsample(c, false, c->x, in);
    if (b->layernorm) {
        in = c->act.conv.s;
        dt_nn_groupnorm(c, &norm, c->x, CONV_G, CONV_GB, in, c->act.conv.mean, c->act.conv.rstd);
    }
    if (again)
        return;
    if (room) {
        dt_nn_conv(c, &at, in, CONV_W, CONV_B, NULL,
                   dt_nn_channels_mine(c, out_rows, b->c_out, 1, room));
        dt_nn_channels_join(c, out_rows, b->c_out, 1, room, out);
        return;
    }
    dt_nn_conv(c, &at, in, CONV_W, CONV_B, NULL, out);
    if (b->layernorm) {
        c->k->cast(c->q, rows * b->c_out, c->dtype, out, DT_F32, c->batch->dev.pred);
        noise_loss(c, NULL);
    }
}

static void conv_backward(struct dt_nn_call *c, int what)
{
    const struct dt_block *b = c->b;
    struct dt_nn_conv_at at = conv_at(c);
    struct dt_nn_norm_at norm = norm_at(c);
    int64_t rows = dt_nn_level_rows(c->batch, b->level), out_rows = conv_rows_out(c);
    char *in = c->x, *din = c->dx;
    char *ds = b->layernorm ? dt_nn_grad_rows(c, rows, b->c_in, true) : NULL;
    char *big = b->upsample ? dt_nn_grad_rows(c, 4 * rows, b->c_in, false) : NULL;
    char *dbig = b->upsample ? dt_nn_grad_rows(c, 4 * rows, b->c_in, false) : NULL;
    const void *dy = b->layernorm ? dt_nn_grad_rows(c, rows, b->c_out, false) : c->dy;
    char *room = dealt(c) ? dt_nn_tp_room(c, out_rows, at.c_out) : NULL;

    if (dt_nn_counting(c)) {
        if (b->layernorm)
            dt_nn_work(c, (size_t)(rows * b->c_out) * 4);
        return;
    }
    if (b->layernorm) {
        in = c->act.conv.s;
        din = ds;
        noise_loss(c, (char *)(uintptr_t)dy);
        if (c->n->mode != DT_LAY_NONE)
            dt_nn_groupnorm(c, &norm, c->x, CONV_G, CONV_GB, in, c->act.conv.mean,
                            c->act.conv.rstd);
    } else if (b->upsample) {
        in = big;
        din = c->dx ? dbig : NULL;
        if ((what & DT_BACKWARD_WEIGHT) && c->n->trained)
            upsample(c, false, c->x, big);
    }
    if (c->n->own_x)
        din = NULL;
    if (room)
        dy = dt_nn_channels_cut(c, out_rows, b->c_out, 1, dy, room);
    dt_nn_conv_back(c, what, &at, in, dy, CONV_W, CONV_B, din, false);
    if (b->upsample && c->dx && (what & DT_BACKWARD_INPUT))
        upsample(c, true, dbig, c->dx);
    if (room && c->dx && (what & DT_BACKWARD_INPUT))
        dt_nn_sum(c, rows * b->c_in, c->dx);
    if (b->layernorm)
        dt_nn_groupnorm_back(c, what, &norm, c->x, CONV_G, CONV_GB, c->act.conv.mean,
                             c->act.conv.rstd, ds, c->dx, false);
}

static int64_t channels_in(const struct dt_block *b)
{
    return b->c_in;
}

/* conv_out makes the prediction, and no running activation. */
static int64_t conv_out(const struct dt_block *b, int64_t *rows)
{
    *rows = b->upsample ? *rows * 4 : b->stride == 2 ? *rows / 4 : *rows;
    return b->layernorm ? 0 : b->c_out;
}

static void conv_note(struct dt_nn_shape_facts *f, const struct dt_block *b, int i)
{
    if (f->conv_in < 0) {
        f->conv_in = i;
        f->in_channels = b->c_in;
    }
    f->out_channels = b->c_out;
}

const struct dt_nn_block_ops dt_nn_ops_conv = {
    .layout = conv_layout,
    .forward = conv_forward,
    .backward = conv_backward,
    .in_width = channels_in,
    .out_width = conv_out,
    .begin = dt_nn_begin_none,
    .note = conv_note,
};

/* ---- ResBlock ---- */

static struct dt_nn_norm_at norm2_at(const struct dt_nn_call *c)
{
    int all = dt_block_groups(c->b, c->b->c_out), groups = (int)dt_nn_mine(c->s, all);

    return (struct dt_nn_norm_at){c->b->level, c->b->c_out / all * groups, groups, eps_of(c), true};
}

/* This member's channels between the convolutions. */
static int mid(const struct dt_nn_call *c)
{
    return norm2_at(c).channels;
}

static void res_layout(struct dt_nn_call *c)
{
    const struct dt_block *b = c->b;
    int64_t rows = dt_nn_level_rows(c->batch, b->level), n = c->batch->n_seq;

    c->act.res.mean1 = dt_nn_keep_f32(c, n * dt_block_groups(b, b->c_in), true);
    c->act.res.rstd1 = dt_nn_keep_f32(c, n * dt_block_groups(b, b->c_in), true);
    c->act.res.mean2 = dt_nn_keep_f32(c, n * norm2_at(c).groups, true);
    c->act.res.rstd2 = dt_nn_keep_f32(c, n * norm2_at(c).groups, true);
    if (!c->n->x_elsewhere)
        c->act.res.x = c->x;
    else if (c->n->mode == DT_LAY_FULL) /* the join is this block's input: always kept */
        c->act.res.x = dt_nn_area_take(&c->saved, (size_t)(rows * b->c_in) * c->es, true);
    else
        c->act.res.x = dt_nn_keep_rows(c, rows, b->c_in, false);
    c->act.res.s1 = dt_nn_keep_rows(c, rows, b->c_in, true);
    c->act.res.h1 = dt_nn_keep_rows(c, rows, mid(c), false);
    c->act.res.s2 = dt_nn_keep_rows(c, rows, mid(c), true);
}

/* silu(time embedding), which every ResBlock's projection takes. */
static char *time_silu(struct dt_nn_call *c)
{
    int64_t n = c->batch->n_seq * c->b->time_dim;
    char *st = dt_nn_work(c, (size_t)n * c->es);

    if (!dt_nn_counting(c))
        c->k->act_fwd(c->q, DT_ACT_SILU, c->dtype, n, c->time, st);
    return st;
}

/* h1 += projected time embedding, per image. */
static void add_time(struct dt_nn_call *c)
{
    int width = mid(c);
    char *st = time_silu(c), *e = dt_nn_work_rows(c, c->batch->n_seq, width);
    struct dt_kernel_items images = dt_nn_items(c->batch, c->b->level);

    if (dt_nn_counting(c))
        return;
    dt_nn_linear(c, c->batch->n_seq, st, RES_T, RES_TB, NULL, e);
    if (width > 0)
        c->k->item_add(c->q, c->dtype, &images, width, c->act.res.h1, e, c->act.res.h1);
}

static void norm1(struct dt_nn_call *c)
{
    struct dt_nn_norm_at at = norm_at(c);

    dt_nn_groupnorm(c, &at, c->act.res.x, RES_N1, RES_N1B, c->act.res.s1, c->act.res.mean1,
                    c->act.res.rstd1);
}

static void norm2(struct dt_nn_call *c)
{
    struct dt_nn_norm_at at = norm2_at(c);

    dt_nn_groupnorm(c, &at, c->act.res.h1, RES_N2, RES_N2B, c->act.res.s2, c->act.res.mean2,
                    c->act.res.rstd2);
}

/* This member's channels of the input, for its part of the shortcut. */
static const void *shortcut_in(struct dt_nn_call *c, char *room)
{
    return dt_nn_channels_cut(c, dt_nn_level_rows(c->batch, c->b->level), c->b->c_in, 1,
                              c->act.res.x, room);
}

static char *shortcut_room(struct dt_nn_call *c)
{
    if (!dt_nn_weight_of(c, RES_S))
        return NULL;
    return dt_nn_tp_room(c, dt_nn_level_rows(c->batch, c->b->level), dt_nn_mine(c->s, c->b->c_in));
}

/* y = conv2 + shortcut: one member brings the biases, the identity joins after the sum. */
static void res_end(struct dt_nn_call *c, char *room)
{
    const struct dt_block *b = c->b;
    struct dt_nn_conv_at c2 = {b->level, false, mid(c), b->c_out, b->kernel, 1};
    int64_t rows = dt_nn_level_rows(c->batch, b->level);
    bool first = dt_tp_rank(c->s->tp) == 0, shortcut = dt_nn_weight_of(c, RES_S) != NULL;
    const char *residual = c->s->tp ? NULL : c->act.res.x;

    if (shortcut) {
        dt_nn_linear(c, rows, shortcut_in(c, room), RES_S, first ? RES_SB : -1, NULL, c->y);
        residual = c->y;
    }
    dt_nn_conv(c, &c2, c->act.res.s2, RES_C2, first ? RES_C2B : -1, residual, c->y);
    dt_nn_sum(c, rows * b->c_out, c->y);
    if (c->s->tp && !shortcut)
        c->k->add(c->q, c->dtype, rows * b->c_out, c->y, c->act.res.x, c->y);
}

static void res_forward(struct dt_nn_call *c, bool again)
{
    const struct dt_block *b = c->b;
    struct dt_nn_conv_at c1 = {b->level, false, b->c_in, mid(c), b->kernel, 1};
    int64_t rows = dt_nn_level_rows(c->batch, b->level), w = c->n->x_width;
    char *room = shortcut_room(c);

    if (dt_nn_counting(c)) {
        add_time(c);
        return;
    }
    if (c->n->x_elsewhere && !again) {
        c->k->copy2d(c->q, c->dtype, rows, w, c->x, w, c->act.res.x, b->c_in, false);
        c->k->copy2d(c->q, c->dtype, rows, b->c_in - w, c->skip, b->c_in - w,
                     dt_nn_off(c->act.res.x, w, c->es), b->c_in, false);
    }
    norm1(c);
    dt_nn_conv(c, &c1, c->act.res.s1, RES_C1, RES_C1B, NULL, c->act.res.h1);
    add_time(c);
    norm2(c);
    if (again)
        return;
    res_end(c, room);
}

static void time_back(struct dt_nn_call *c, int what, const char *dh1)
{
    const struct dt_block *b = c->b;
    int64_t n = c->batch->n_seq, wide = n * b->time_dim, width = mid(c);
    char *de = dt_nn_grad_rows(c, n, width, true), *dst = dt_nn_grad_rows(c, n, b->time_dim, false);
    char *st = time_silu(c);
    struct dt_kernel_items images = dt_nn_items(c->batch, b->level);

    if (dt_nn_counting(c))
        return;
    if ((what & DT_BACKWARD_INPUT) && width > 0)
        c->k->item_sum(c->q, c->dtype, &images, width, dh1, de, false);
    dt_nn_linear_back(c, what, n, st, de, RES_T, RES_TB, c->n->need ? dst : NULL, false);
    if ((what & DT_BACKWARD_INPUT) && c->n->need) {
        c->k->act_bwd(c->q, DT_ACT_SILU, c->dtype, wide, c->time, dst, dst);
        c->k->add(c->q, c->dtype, wide, c->d_time, dst, c->d_time);
    }
}

struct rooms { /* the shortcut's own channels, and those of all members */
    char *mine, *all;
};

/* A member has the gradient of its own channels; all are joined. */
static void shortcut_back(struct dt_nn_call *c, int what, char *to, const struct rooms *room)
{
    int64_t rows = dt_nn_level_rows(c->batch, c->b->level), channels = c->b->c_in;
    char *dx = to;

    if (c->s->tp && to)
        dx = dt_nn_channels_mine(c, rows, channels, 1, room->all);
    dt_nn_linear_back(c, what, rows, shortcut_in(c, room->mine), c->dy, RES_S, RES_SB, dx, false);
    if (c->s->tp && to && (what & DT_BACKWARD_INPUT))
        dt_nn_channels_join(c, rows, channels, 1, room->all, to);
}

/* Gradient of the block's input [x | skip] from the first norm and the shortcut. */
static void input_back(struct dt_nn_call *c, int what, const char *ds1, char *joined,
                       const struct rooms *room)
{
    const struct dt_block *b = c->b;
    struct dt_nn_norm_at at = norm_at(c);
    int64_t rows = dt_nn_level_rows(c->batch, b->level), w = c->n->x_width;
    bool shortcut = dt_nn_weight_of(c, RES_S) != NULL, want = c->dx != NULL;
    char *to = c->n->x_elsewhere ? joined : c->dx;

    if (shortcut)
        shortcut_back(c, what, want ? to : NULL, room);
    else if (want && (what & DT_BACKWARD_INPUT))
        dt_nn_copy(c, to, c->dy, (size_t)(rows * b->c_out) * c->es);
    dt_nn_groupnorm_back(c, what, &at, c->act.res.x, RES_N1, RES_N1B, c->act.res.mean1,
                         c->act.res.rstd1, ds1, want ? to : NULL, true);
    if (!c->n->x_elsewhere || !want || !(what & DT_BACKWARD_INPUT))
        return;
    c->k->copy2d(c->q, c->dtype, rows, w, joined, b->c_in, c->dx, w, false);
    c->k->copy2d(c->q, c->dtype, rows, b->c_in - w, dt_nn_off(joined, w, c->es), b->c_in, c->d_skip,
                 b->c_in - w, false);
}

static void res_backward(struct dt_nn_call *c, int what)
{
    const struct dt_block *b = c->b;
    struct dt_nn_conv_at c1 = {b->level, false, b->c_in, mid(c), b->kernel, 1};
    struct dt_nn_conv_at c2 = {b->level, false, mid(c), b->c_out, b->kernel, 1};
    struct dt_nn_norm_at norm = norm2_at(c);
    int64_t rows = dt_nn_level_rows(c->batch, b->level);
    char *ds2 = dt_nn_grad_rows(c, rows, mid(c), true), *dh1 = ds2;
    char *ds1 = dt_nn_grad_rows(c, rows, b->c_in, true), *joined = NULL;
    struct rooms room = {0};
    struct dt_nn_area work;

    if (c->s->split) /* else in place */
        dh1 = dt_nn_grad_rows(c, rows, mid(c), true);
    if (c->n->x_elsewhere)
        joined = dt_nn_grad_rows(c, rows, b->c_in, false);
    if (dt_nn_weight_of(c, RES_S)) {
        room.mine = shortcut_room(c);
        room.all = dt_nn_tp_room(c, rows, b->c_in);
    }
    work = c->work;
    if (dt_nn_counting(c)) {
        time_back(c, what, dh1);
        return;
    }
    if (c->n->mode == DT_LAY_FULL) {
        res_forward(c, true);
    } else if (c->n->mode == DT_LAY_SELECTIVE) {
        norm1(c);
        norm2(c);
    }
    c->work = work;
    dt_nn_conv_back(c, what, &c2, c->act.res.s2, c->dy, RES_C2, RES_C2B, ds2, false);
    dt_nn_groupnorm_back(c, what, &norm, c->act.res.h1, RES_N2, RES_N2B, c->act.res.mean2,
                         c->act.res.rstd2, ds2, dh1, false);
    time_back(c, what, dh1);
    dt_nn_conv_back(c, what, &c1, c->act.res.s1, dh1, RES_C1, RES_C1B, ds1, false);
    if (what & DT_BACKWARD_INPUT)
        dt_nn_sum(c, rows * b->c_in, ds1);
    input_back(c, what, ds1, joined, &room);
}

static int64_t res_out(const struct dt_block *b, int64_t *rows)
{
    (void)rows;
    return b->c_out;
}

static void res_note(struct dt_nn_shape_facts *f, const struct dt_block *b, int i)
{
    (void)b;
    f->time_last = i;
}

const struct dt_nn_block_ops dt_nn_ops_resnet = {
    .layout = res_layout,
    .forward = res_forward,
    .backward = res_backward,
    .in_width = channels_in,
    .out_width = res_out,
    .begin = dt_nn_begin_none,
    .note = res_note,
};
