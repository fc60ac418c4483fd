/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Context parallelism: rows of other members.
 *
 *   own rows      [ e0 e1 | l0 l1 ]                        early and late chunks of samples 0 and 1
 *                        | gather
 *   all           [ e0 e1 l0 l1 . | e0 e1 l0 l1 | .. ]     member after member, each in a place for the longest
 *                        | key_at
 *   seen          [ what e0's rows see, e1's, l0's, l1's ] documents from their beginning, so some rows twice
 *
 * Backwards the same, transposed: among what early rows see no row is there twice, nor among what late ones see, so
 * two copies that add bring together what there is of each row. */
#include "exec/modules/impl.h"

struct dt_nn_context dt_nn_context_room(struct dt_nn_call *c, int64_t width)
{
    struct dt_nn_context room = {NULL, NULL};

    if (!c->s->cp)
        return room;
    room.all = dt_nn_work_rows(c, c->batch->gathered, width);
    room.seen = dt_nn_work_rows(c, c->batch->keys, width);
    return room;
}

/* Where this member's rows are among all. */
static char *mine(const struct dt_nn_call *c, const struct dt_nn_context *room, int64_t width)
{
    struct dt_tp *cp = c->s->cp;

    return dt_nn_off(room->all, dt_tp_rank(cp) * (c->batch->gathered / dt_tp_size(cp)) * width,
                     c->es);
}

void dt_nn_context_gather(struct dt_nn_call *c, const struct dt_nn_context *room, int64_t width,
                          const void *x, int64_t stride)
{
    const struct dt_batch *b = c->batch;
    int64_t spare = b->gathered / dt_tp_size(c->s->cp) - b->rows;
    char *own = mine(c, room, width);

    c->k->copy2d(c->q, c->dtype, b->rows, width, x, stride, own, width, false);
    if (spare > 0)
        c->s->dev->zero(c->q, dt_nn_off(own, b->rows * width, c->es),
                        (size_t)(spare * width) * c->es);
    dt_tp_all_gather(c->q, c->s->cp, c->dtype, b->gathered, width, room->all);
    c->k->rows_copy(c->q, c->dtype, b->keys, width, room->all, b->dev.key_at, room->seen, NULL,
                    false);
}

void dt_nn_context_scatter(struct dt_nn_call *c, const struct dt_nn_context *room, int64_t width,
                           const char *d_seen, void *dx, int64_t stride)
{
    const struct dt_batch *b = c->batch;
    int64_t early = b->keys_early;

    c->s->dev->zero(c->q, room->all, (size_t)(b->gathered * width) * c->es);
    c->k->rows_copy(c->q, c->dtype, early, width, d_seen, NULL, room->all, b->dev.key_at, false);
    c->k->rows_copy(c->q, c->dtype, b->keys - early, width, dt_nn_off(d_seen, early * width, c->es),
                    NULL, room->all, b->dev.key_at + early, true);
    dt_tp_reduce_scatter(c->q, c->s->cp, c->dtype, b->gathered, width, room->all);
    c->k->copy2d(c->q, c->dtype, b->rows, width, mine(c, room, width), width, dx, stride, false);
}

void dt_nn_context_join(struct dt_nn_call *c, int64_t n, void *whole)
{
    dt_tp_all_reduce(c->q, c->s->cp, c->dtype, n, whole);
}
