/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Context parallelism: rows of other members.
 *
 *   own rows      [ e0 e1 | l0 l1 ]                        early and late halves of samples 0 and 1
 *                        | gather
 *   all           [ e0 e1 l0 l1 . | e0 e1 l0 l1 | .. ]     member after member, each in a place for the longest
 *                        | key_at
 *   seen          [ what e0's rows see, e1's, l0's, l1's ] documents from their beginning, so some rows twice
 *
 * Backwards the same, transposed: among what early rows see no row is there twice, nor among what late ones see, so
 * two copies that add bring together what there is of each row.
 *
 * On a ring (context_ring.c) a member has one place at a time, and sees of it what it sees of that member. */
#include "exec/modules/impl.h"

int64_t dt_nn_context_place(const struct dt_nn_call *c)
{
    int64_t n = dt_tp_size(c->s->cp);

    return (c->batch->gathered + n - 1) / n; /* counted for limits it may not divide */
}

struct dt_nn_context dt_nn_context_room(struct dt_nn_call *c, int64_t q, int64_t kv, int64_t heads,
                                        bool back)
{
    const struct dt_batch *b = c->batch;
    struct dt_nn_context room = {.q = q, .kv = kv};
    int64_t places;

    if (!c->s->cp)
        return room;
    places = c->s->ring ? 2 * dt_nn_context_place(c) : b->gathered;
    room.all = dt_nn_work_rows(c, places, 2 * kv);
    room.seen = dt_nn_work_rows(c, b->keys_step, 2 * kv);
    if (back)
        room.d_seen = dt_nn_work_rows(c, b->keys_step, 2 * kv);
    if (!c->s->ring)
        return room;
    room.part = dt_nn_work_rows(c, b->rows, back ? q + 2 * kv : q);
    if (back) {
        room.d_all = dt_nn_work_rows(c, places, 2 * kv);
        return room;
    }
    room.part_lse = dt_nn_work(c, (size_t)(b->rows * heads) * sizeof(float));
    if (c->dtype != DT_F32)
        room.sum = dt_nn_work(c, (size_t)(b->rows * q) * sizeof(float));
    return room;
}

/* ---- steps ---- */

void dt_nn_context_bring(struct dt_nn_call *c, const struct dt_nn_context *r, const void *x,
                         int64_t stride, char *place)
{
    int64_t width = 2 * r->kv, rows = c->batch->rows, spare = dt_nn_context_place(c) - rows;

    c->k->copy2d(c->q, c->dtype, rows, width, x, stride, place, width, false);
    if (spare > 0)
        c->s->dev->zero(c->q, dt_nn_off(place, rows * width, c->es),
                        (size_t)(spare * width) * c->es);
}

static const int32_t *step_cu(const struct dt_batch *b, int64_t step)
{
    return b->host.cu_keys + step * (b->n_seq + 1);
}

void dt_nn_context_see(struct dt_nn_call *c, const struct dt_nn_context *r,
                       const struct dt_nn_step *step, const char *from,
                       struct dt_kernel_attention *a)
{
    const struct dt_batch *b = c->batch;

    a->causal &= step->number == 0; /* of other members own rows see what lies before them alone */
    a->cu_k = b->dev.cu_keys + step->number * (b->n_seq + 1);
    a->rows_k = step_cu(b, step->number)[b->n_seq];
    a->max_k = b->max_keys;
    a->stride_k = a->stride_v = 2 * r->kv;
    c->k->rows_copy(c->q, c->dtype, a->rows_k, 2 * r->kv, from, b->dev.key_at + step->first,
                    r->seen, NULL, false);
}

void dt_nn_context_add(struct dt_nn_call *c, const struct dt_nn_context *r,
                       const struct dt_nn_step *step, char *to)
{
    const struct dt_batch *b = c->batch;
    const int32_t *cu = step_cu(b, step->number), *at = b->dev.key_at + step->first;
    int64_t width = 2 * r->kv, early = cu[b->n_early], all = cu[b->n_seq];

    c->k->rows_copy(c->q, c->dtype, early, width, r->d_seen, NULL, to, at, true);
    c->k->rows_copy(c->q, c->dtype, all - early, width, dt_nn_off(r->d_seen, early * width, c->es),
                    NULL, to, at + early, true);
}

void dt_nn_context_next(const struct dt_nn_call *c, struct dt_nn_step *step)
{
    step->first += step_cu(c->batch, step->number++)[c->batch->n_seq];
}

/* ---- all members' rows at once ---- */

/* Where this member's rows are among all. */
static char *mine(const struct dt_nn_call *c, const struct dt_nn_context *r)
{
    return dt_nn_off(r->all, dt_tp_rank(c->s->cp) * dt_nn_context_place(c) * 2 * r->kv, c->es);
}

/* The keys and values that own rows see, from own ones' beside the queries in qkv and all others'. */
static struct dt_kernel_attention gather(struct dt_nn_call *c, const struct dt_nn_context *r,
                                         const struct dt_kernel_attention *a, const char *qkv)
{
    struct dt_kernel_attention seen = *a;

    dt_nn_context_bring(c, r, dt_nn_off(qkv, r->q, c->es), a->stride_q, mine(c, r));
    dt_tp_all_gather(c->q, c->s->cp, c->dtype, c->batch->gathered, 2 * r->kv, r->all);
    dt_nn_context_see(c, r, &(struct dt_nn_step){0}, r->all, &seen);
    return seen;
}

void dt_nn_context_attend(struct dt_nn_call *c, const struct dt_nn_context *r,
                          const struct dt_kernel_attention *a, const char *qkv, char *o, float *lse)
{
    struct dt_kernel_attention seen;

    if (c->s->ring) {
        dt_nn_ring_attend(c, r, a, qkv, o, lse);
        return;
    }
    seen = gather(c, r, a, qkv);
    c->k->attention_fwd(c->q, &seen, qkv, r->seen, dt_nn_off(r->seen, r->kv, c->es), o, lse);
}

void dt_nn_context_attend_back(struct dt_nn_call *c, const struct dt_nn_context *r,
                               const struct dt_kernel_attention *a, const struct dt_nn_attended *t,
                               const char *d_o, char *dqkv)
{
    struct dt_kernel_attention seen;

    if (c->s->ring) {
        dt_nn_ring_attend_back(c, r, a, t, d_o, dqkv);
        return;
    }
    seen = gather(c, r, a, t->qkv);
    c->k->attention_bwd(c->q, &seen, t->qkv, r->seen, dt_nn_off(r->seen, r->kv, c->es), t->o,
                        t->lse, d_o, dqkv, r->d_seen, dt_nn_off(r->d_seen, r->kv, c->es));
    c->s->dev->zero(c->q, r->all, (size_t)(c->batch->gathered * 2 * r->kv) * c->es);
    dt_nn_context_add(c, r, &(struct dt_nn_step){0}, r->all);
    dt_tp_reduce_scatter(c->q, c->s->cp, c->dtype, c->batch->gathered, 2 * r->kv, r->all);
    c->k->copy2d(c->q, c->dtype, c->batch->rows, 2 * r->kv, mine(c, r), 2 * r->kv,
                 dt_nn_off(dqkv, r->q, c->es), a->stride_q, false);
}
