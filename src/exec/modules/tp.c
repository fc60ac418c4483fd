/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Tensor parallelism of products, after Megatron-LM (Shoeybi et al. 2019; sequence parallelism:
 * Korthikanti et al. 2022):
 *
 *   own rows -gather-> [ W1 by outputs ] -> [ W2 by inputs ] -sum, scatter-> own rows
 *
 * and the transposes backwards.  What is gathered is not kept: the backward gathers it again.
 * Without sequence parallelism rows are whole: nothing to gather, the sum goes to all. */
#include "exec/modules/impl.h"

char *dt_nn_tp_room(struct dt_nn_call *c, int64_t rows, int64_t width)
{
    return c->s->tp ? dt_nn_work_rows(c, rows, width) : NULL;
}

char *dt_nn_whole_rows(struct dt_nn_call *c, int64_t rows, int64_t width, const void *x, char *room)
{
    struct dt_stage *s = c->s;

    if (!s->seqpar)
        return (char *)(uintptr_t)x;
    dt_nn_copy(c, dt_nn_off(room, dt_nn_own_first(s, rows) * width, c->es), x,
               (size_t)(dt_nn_own_rows(s, rows) * width) * c->es);
    dt_tp_all_gather(c->q, s->tp, c->dtype, rows, width, room);
    return room;
}

void dt_nn_own_sum(struct dt_nn_call *c, int64_t rows, int64_t width, char *part, void *y, bool add)
{
    struct dt_stage *s = c->s;
    int64_t n = dt_nn_own_rows(s, rows) * width;
    const char *sum = dt_nn_off(part, dt_nn_own_first(s, rows) * width, c->es);

    if (s->seqpar)
        dt_tp_reduce_scatter(c->q, s->tp, c->dtype, rows, width, part);
    else
        dt_nn_sum(c, n, part);
    if (add)
        c->k->add(c->q, c->dtype, n, y, sum, y);
    else
        dt_nn_copy(c, y, sum, (size_t)n * c->es);
}

void dt_nn_sum(struct dt_nn_call *c, int64_t n, void *x)
{
    dt_tp_all_reduce(c->q, c->s->tp, c->dtype, n, x);
}

/* ---- products ---- */

void dt_nn_linear_col(struct dt_nn_call *c, int64_t rows, const void *x, int w, int b, void *y,
                      char *room)
{
    if (dt_nn_chunks(c->s, rows) > 1)
        dt_nn_chunks_col(c, rows, x, w, b, y, room);
    else
        dt_nn_linear(c, rows, dt_nn_whole_rows(c, rows, dt_nn_weight_of(c, w)->in, x, room), w, b,
                     NULL, y);
}

void dt_nn_linear_col_act(struct dt_nn_call *c, int64_t rows, const void *x, int w, int b,
                          const struct dt_nn_act *a, void *y, char *room)
{
    const struct dt_nn_weight *s = dt_nn_weight_of(c, w);

    if (dt_nn_chunks(c->s, rows) > 1) {
        dt_nn_chunks_col(c, rows, x, w, b, a->h, room);
        c->k->act_fwd(c->q, a->act, c->dtype, rows * s->out, a->h, y);
    } else {
        dt_nn_linear_act(c, rows, dt_nn_whole_rows(c, rows, s->in, x, room), w, b, a, y);
    }
}

/* One member brings the bias; the residual joins after the sum. */
void dt_nn_linear_row(struct dt_nn_call *c, int64_t rows, const void *x, int w, int b,
                      const void *residual, void *y, char *room)
{
    struct dt_stage *s = c->s;
    int64_t width = dt_nn_weight_of(c, w)->out;

    if (!s->tp) {
        dt_nn_linear(c, rows, x, w, b, residual, y);
        return;
    }
    b = dt_tp_rank(s->tp) == 0 ? b : -1;
    if (dt_nn_chunks(s, rows) > 1) {
        dt_nn_chunks_row(c, rows, x, w, b, y, room);
    } else {
        dt_nn_linear(c, rows, x, w, b, NULL, room);
        dt_nn_own_sum(c, rows, width, room, y, false);
    }
    if (residual)
        c->k->add(c->q, c->dtype, dt_nn_own_rows(s, rows) * width, y, residual, y);
}

void dt_nn_linear_col_back(struct dt_nn_call *c, int what, int64_t rows, const void *x,
                           const void *dy, int w, int b, void *dx, char *room_x, char *room_dx)
{
    int64_t width = dt_nn_weight_of(c, w)->in;
    bool want = dx && (what & DT_BACKWARD_INPUT);

    if (!c->s->tp) {
        dt_nn_linear_back(c, what, rows, x, dy, w, b, dx, false);
        return;
    }
    if (want && dt_nn_chunks(c->s, rows) > 1) {
        dt_nn_chunks_col_back(c, what, rows, x, dy, w, b, dx, room_x, room_dx);
        return;
    }
    if ((what & DT_BACKWARD_WEIGHT) && c->n->trained)
        x = dt_nn_whole_rows(c, rows, width, x, room_x);
    dt_nn_linear_back(c, what, rows, x, dy, w, b, want ? room_dx : NULL, false);
    if (want)
        dt_nn_own_sum(c, rows, width, room_dx, dx, false);
}

void dt_nn_linear_row_back(struct dt_nn_call *c, int what, int64_t rows, const void *x,
                           const void *dy, int w, int b, void *dx, char *room)
{
    bool want = (what & DT_BACKWARD_INPUT) && dx;
    bool used = want || ((what & DT_BACKWARD_WEIGHT) && c->n->trained);

    if (want && dt_nn_chunks(c->s, rows) > 1) {
        dt_nn_chunks_row_back(c, what, rows, x, dy, w, b, dx, room);
        return;
    }
    if (used)
        dy = dt_nn_whole_rows(c, rows, dt_nn_weight_of(c, w)->out, dy, room);
    dt_nn_linear_back(c, what, rows, x, dy, w, b, dx, false);
}

void dt_nn_linear_row_act_back(struct dt_nn_call *c, int what, int64_t rows, const void *x,
                               const void *dy, int w, int b, const struct dt_nn_act *a, void *dh,
                               char *room)
{
    const struct dt_nn_weight *s = dt_nn_weight_of(c, w);
    bool want = (what & DT_BACKWARD_INPUT) != 0;

    if (want && dt_nn_chunks(c->s, rows) > 1) {
        dt_nn_chunks_row_back(c, what, rows, x, dy, w, b, dh, room);
        c->k->act_bwd(c->q, a->act, c->dtype, rows * s->in, a->h, dh, dh);
        return;
    }
    if (want || ((what & DT_BACKWARD_WEIGHT) && c->n->trained))
        dy = dt_nn_whole_rows(c, rows, s->out, dy, room);
    dt_nn_linear_act_back(c, what, rows, x, dy, w, b, a, dh);
}

/* ---- channels ---- */

char *dt_nn_channels_mine(struct dt_nn_call *c, int64_t rows, int64_t grains, int64_t grain,
                          char *room)
{
    return dt_nn_off(room, dt_nn_mine_first(c->s, grains) * grain * rows, c->es);
}

void dt_nn_channels_join(struct dt_nn_call *c, int64_t rows, int64_t grains, int64_t grain,
                         char *room, void *y)
{
    struct dt_tp *tp = c->s->tp;

    dt_tp_all_gather(c->q, tp, c->dtype, grains, grain * rows, room);
    for (int k = 0; k < dt_tp_size(tp); k++) {
        int64_t first = dt_tp_first(tp, grains, k) * grain, n = dt_tp_count(tp, grains, k) * grain;

        if (n > 0)
            c->k->copy2d(c->q, c->dtype, rows, n, dt_nn_off(room, first * rows, c->es), n,
                         dt_nn_off(y, first, c->es), grains * grain, false);
    }
}

const void *dt_nn_channels_cut(struct dt_nn_call *c, int64_t rows, int64_t grains, int64_t grain,
                               const void *x, char *room)
{
    int64_t n = dt_nn_mine(c->s, grains) * grain;

    if (!c->s->tp)
        return x;
    if (n > 0)
        c->k->copy2d(c->q, c->dtype, rows, n,
                     dt_nn_off(x, dt_nn_mine_first(c->s, grains) * grain, c->es), grains * grain,
                     room, n, false);
    return room;
}
