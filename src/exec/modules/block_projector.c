/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Projectors: a norm or none, then one linear layer, or linear, GELU, linear.
 *
 * Merged patches lie side by side in the batch (dt_batch_patches), so that their rows are one wider row as they lie; or
 * the mean of them is taken.
 *
 * Tensor parallelism: the middle is dealt; of a single layer the outputs are, whose columns are
 * then joined.  The projector of conditioning states has them whole, before and after.  Own patches need not be whole
 * squares: those of all members are gathered, and dealt again by merged rows.
 *
 * Where layers attend to windows, rows come window by window; squares are put in the order of their image first. */
#include "exec/modules/impl.h"

static int64_t merged(const struct dt_block *b)
{
    return b->merge > 1 ? (int64_t)b->merge * b->merge : 1;
}

static int64_t projected_rows(const struct dt_nn_call *c)
{
    return c->b->context_len > 0 ? c->batch->n_seq * c->b->context_len
                                 : c->batch->rows / merged(c->b);
}

static bool normed(const struct dt_nn_call *c)
{
    return c->b->in_norm != DT_NORM_NONE;
}

/* Elements of a patch. */
static int64_t patch_width(const struct dt_block *b)
{
    return b->pool ? b->in_dim : b->in_dim / merged(b);
}

/* Rows come window by window, and leave in the order of their image. */
static bool ordered(const struct dt_block *b)
{
    return b->window > 0 && b->context_len == 0;
}

static bool dealt_again(const struct dt_nn_call *c)
{
    return c->s->seqpar && (c->b->merge > 1 || ordered(c->b));
}

/* Is the input not what the first layer or its norm takes, as it lies? */
static bool moved(const struct dt_nn_call *c)
{
    return dealt_again(c) || c->b->pool || ordered(c->b);
}

static struct dt_kernel_norm in_norm_of(const struct dt_nn_call *c)
{
    return (struct dt_kernel_norm){.dtype = c->dtype,
                                   .rows = dt_nn_own_rows(c->s, projected_rows(c)),
                                   .width = c->b->in_dim,
                                   .eps = (float)c->s->numbers.norm_eps};
}

static int64_t middle(const struct dt_nn_call *c)
{
    return dt_nn_mine(c->s, c->b->mid_dim);
}

static void projector_layout(struct dt_nn_call *c)
{
    int64_t own = dt_nn_own_rows(c->s, projected_rows(c));

    if (c->b->in_norm == DT_NORM_LAYERNORM)
        c->act.proj.mean = dt_nn_keep_f32(c, own, true);
    if (normed(c))
        c->act.proj.rstd = dt_nn_keep_f32(c, own, true);
    if (normed(c))
        c->act.proj.n = dt_nn_keep_rows(c, own, c->b->in_dim, true);
    if (c->b->mid_dim == 0)
        return;
    c->act.proj.h = dt_nn_keep_rows(c, projected_rows(c), middle(c), false);
    c->act.proj.a = dt_nn_keep_rows(c, projected_rows(c), middle(c), true);
}

struct rooms {
    char *in[2], *out[2]; /* all rows of inputs and outputs, twice, where there are other members */
    char *patches;        /* all members' patches, where they are dealt again */
    char *squares;        /* the same, of one member too, in another order */
    char *means, *d;      /* of own squares; gradient of what is made of the input */
};

static struct rooms rooms_of(struct dt_nn_call *c)
{
    int64_t rows = projected_rows(c), own = dt_nn_own_rows(c->s, rows);
    struct rooms r = {0};

    for (int i = 0; i < 2; i++) {
        r.in[i] = dt_nn_tp_room(c, rows, c->b->in_dim);
        r.out[i] = dt_nn_tp_room(c, rows, c->b->out_dim);
    }
    if (dealt_again(c))
        r.patches = dt_nn_work_rows(c, rows * merged(c->b), patch_width(c->b));
    if (ordered(c->b))
        r.squares = dt_nn_work_rows(c, rows * merged(c->b), patch_width(c->b));
    if (c->b->pool)
        r.means = dt_nn_work_rows(c, own, c->b->in_dim);
    if (moved(c) && normed(c))
        r.d = dt_nn_work_rows(c, own, c->b->in_dim);
    return r;
}

/* Own rows of the input as the projector has them. */
static const char *merged_rows(struct dt_nn_call *c, const struct rooms *room)
{
    int64_t rows = projected_rows(c), own = dt_nn_own_rows(c->s, rows), n = merged(c->b);
    int64_t width = patch_width(c->b), first = dt_nn_own_first(c->s, rows);
    const char *x = c->x;

    if (dealt_again(c))
        x = dt_nn_whole_rows(c, rows * n, width, x, room->patches);
    if (ordered(c->b)) {
        c->k->rows_copy(c->q, c->dtype, own, n * width, x, c->batch->dev.square + first,
                        room->squares, NULL, false);
        x = room->squares;
    } else if (dealt_again(c)) {
        x = dt_nn_off(x, first * n * width, c->es);
    }
    if (!c->b->pool)
        return x;
    c->k->rows_join(c->q, c->dtype, own, (int)n, width, x, NULL, room->means, false);
    c->k->scale(c->q, c->dtype, own * width, 1 / (float)n, room->means, room->means);
    return room->means;
}

/* What the first layer takes; again: the norm's output is there. */
static const char *projector_input(struct dt_nn_call *c, const struct rooms *room, bool again)
{
    struct dt_kernel_norm n = in_norm_of(c);
    const char *x;

    if (normed(c) && again)
        return c->act.proj.n;
    x = merged_rows(c, room);
    if (!normed(c))
        return x;
    dt_nn_norm(c, &n, c->b->in_norm == DT_NORM_LAYERNORM, x, PROJ_G, PROJ_GB, c->act.proj.n,
               c->act.proj.mean, c->act.proj.rstd);
    return c->act.proj.n;
}

/* Of `squares` means: every patch of one has its share of the gradient. */
static void spread(struct dt_nn_call *c, int64_t squares, char *d, char *to)
{
    int64_t n = merged(c->b), width = patch_width(c->b);

    c->k->scale(c->q, c->dtype, squares * width, 1 / (float)n, d, d);
    for (int64_t i = 0; i < n; i++)
        c->k->copy2d(c->q, c->dtype, squares, width, d, width, dt_nn_off(to, i * width, c->es),
                     n * width, false);
}

/* d, of own merged rows and lost, back to own patches. */
static void unmerge(struct dt_nn_call *c, const struct rooms *room, char *d)
{
    int64_t rows = projected_rows(c), width = patch_width(c->b), n = merged(c->b);
    int64_t own = dt_nn_own_rows(c->s, c->batch->rows);
    char *to;

    if (dealt_again(c))
        d = dt_nn_whole_rows(c, rows, c->b->in_dim, d, room->in[1]);
    if (c->b->pool) {
        to = dealt_again(c) ? room->patches : ordered(c->b) ? room->squares : c->dx;
        spread(c, rows, d, to);
        d = to;
    }
    if (ordered(c->b)) {
        to = dealt_again(c) ? room->squares : c->dx;
        c->k->rows_copy(c->q, c->dtype, rows, n * width, d, NULL, to, c->batch->dev.square, false);
        d = to;
    }
    if (dealt_again(c))
        dt_nn_copy(c, c->dx, dt_nn_off(d, dt_nn_own_first(c->s, c->batch->rows) * width, c->es),
                   (size_t)(own * width) * c->es);
}

/* Room for the gradient of what the first layer takes, where that is not the input as it came. */
static char *inner_room(struct dt_nn_call *c)
{
    return normed(c) || moved(c) ? dt_nn_grad_rows(c, dt_nn_own_rows(c->s, projected_rows(c)),
                                                   c->b->in_dim, normed(c))
                                 : NULL;
}

/* d: that gradient, in inner_room's place; through the norm and to the patches. */
static void projector_input_back(struct dt_nn_call *c, int what, const struct rooms *room, char *d)
{
    struct dt_kernel_norm n = in_norm_of(c);
    char *dx = c->dx;

    if (normed(c)) {
        dx = moved(c) && dx ? room->d : dx;
        dt_nn_norm_back(c, what, &n, c->b->in_norm == DT_NORM_LAYERNORM, merged_rows(c, room),
                        PROJ_G, PROJ_GB, c->act.proj.mean, c->act.proj.rstd, d, dx, false);
        d = dx;
    }
    if (moved(c) && c->dx && (what & DT_BACKWARD_INPUT))
        unmerge(c, room, d);
}

/* One layer: its own columns of all rows, joined. */
static void one_layer(struct dt_nn_call *c, int64_t rows, const struct rooms *room, const char *x,
                      char *y)
{
    int64_t width = c->b->out_dim, own = dt_nn_own_rows(c->s, rows);
    char *mine;

    if (!c->s->tp) {
        dt_nn_linear(c, rows, x, PROJ_W1, PROJ_B1, NULL, y);
        return;
    }
    mine = dt_nn_channels_mine(c, rows, width, 1, room->out[0]);
    dt_nn_linear_col(c, rows, x, PROJ_W1, PROJ_B1, mine, room->in[0]);
    if (!c->s->seqpar) {
        dt_nn_channels_join(c, rows, width, 1, room->out[0], y);
        return;
    }
    dt_nn_channels_join(c, rows, width, 1, room->out[0], room->out[1]);
    dt_nn_copy(c, y, dt_nn_off(room->out[1], dt_nn_own_first(c->s, rows) * width, c->es),
               (size_t)(own * width) * c->es);
}

static void one_layer_back(struct dt_nn_call *c, int what, int64_t rows, const struct rooms *room,
                           const char *x, const char *dy, char *dx)
{
    int64_t width = c->b->out_dim;
    const void *mine;

    mine = dt_nn_whole_rows(c, rows, width, dy, room->out[0]);
    mine = dt_nn_channels_cut(c, rows, width, 1, mine, room->out[1]);
    dt_nn_linear_col_back(c, what, rows, x, mine, PROJ_W1, PROJ_B1, dx, room->in[0], room->in[1]);
}

static void projector_forward(struct dt_nn_call *c, bool again)
{
    int64_t rows = projected_rows(c);
    struct rooms room = rooms_of(c);
    char *y = c->n->has_y ? c->y : c->context;
    const char *x;

    if (dt_nn_counting(c))
        return;
    x = projector_input(c, &room, false);
    if (c->b->mid_dim == 0) {
        if (!again)
            one_layer(c, rows, &room, x, y);
        return;
    }
    dt_nn_linear_col(c, rows, x, PROJ_W1, PROJ_B1, c->act.proj.h, room.in[0]);
    c->k->act_fwd(c->q, DT_ACT_GELU_ERF, c->dtype, rows * middle(c), c->act.proj.h, c->act.proj.a);
    if (!again)
        dt_nn_linear_row(c, rows, c->act.proj.a, PROJ_W2, PROJ_B2, NULL, y, room.out[0]);
}

static void projector_backward(struct dt_nn_call *c, int what)
{
    int64_t rows = projected_rows(c);
    char *dy = c->n->has_y ? c->dy : c->d_context;
    char *dh = c->b->mid_dim == 0 ? NULL : dt_nn_grad_rows(c, rows, middle(c), true);
    char *inner = inner_room(c), *dx;
    struct dt_nn_area work;
    struct rooms room;
    const char *x;

    if (!dt_nn_counting(c) && !c->n->has_y && (what & DT_BACKWARD_INPUT))
        dt_nn_sum(c, rows * c->b->out_dim, c->d_context); /* each member's heads added to its own */
    if (!c->n->has_y && c->s->split)
        dy = dt_flow_kept(c, what, c->d_context, rows * c->b->out_dim);
    work = c->work;
    if (!dt_nn_counting(c) && c->n->mode == DT_LAY_FULL)
        projector_forward(c, true);
    c->work = work;
    room = rooms_of(c);
    if (dt_nn_counting(c))
        return;
    x = projector_input(c, &room, c->n->mode != DT_LAY_SELECTIVE);
    dx = inner && (c->dx || (normed(c) && c->n->trained)) ? inner : c->dx;
    if (c->b->mid_dim == 0) {
        one_layer_back(c, what, rows, &room, x, dy, dx);
        projector_input_back(c, what, &room, inner);
        return;
    }
    if (c->n->mode == DT_LAY_SELECTIVE)
        c->k->act_fwd(c->q, DT_ACT_GELU_ERF, c->dtype, rows * middle(c), c->act.proj.h,
                      c->act.proj.a);
    dt_nn_linear_row_back(c, what, rows, c->act.proj.a, dy, PROJ_W2, PROJ_B2, dh, room.out[0]);
    if (what & DT_BACKWARD_INPUT)
        c->k->act_bwd(c->q, DT_ACT_GELU_ERF, c->dtype, rows * middle(c), c->act.proj.h, dh, dh);
    dt_nn_linear_col_back(c, what, rows, x, dh, PROJ_W1, PROJ_B1, dx, room.in[0], room.in[1]);
    projector_input_back(c, what, &room, inner);
}

static int64_t projector_in(const struct dt_block *b)
{
    return patch_width(b);
}

/* Conditioning states go beside the running activation. */
static int64_t projector_out(const struct dt_block *b, int64_t *rows)
{
    *rows /= merged(b);
    return b->context_len > 0 ? 0 : b->out_dim;
}

static int64_t projector_begin(const struct dt_block *b, const struct dt_batch *m)
{
    return (b->context_len > 0 ? m->n_seq * b->context_len : m->rows) * b->in_dim;
}

static void projector_note(struct dt_nn_shape_facts *f, const struct dt_block *b, int i)
{
    if (b->context_len == 0)
        return;
    f->context_first = i + 1;
    f->context_len = b->context_len;
    f->context_dim = b->out_dim;
}

const struct dt_nn_block_ops dt_nn_ops_projector = {
    .layout = projector_layout,
    .forward = projector_forward,
    .backward = projector_backward,
    .in_width = projector_in,
    .out_width = projector_out,
    .begin = projector_begin,
    .note = projector_note,
};
