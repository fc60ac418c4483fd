/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Ring attention (Liu et al. 2023, arXiv 2310.01889): keys and values go round the members of context parallelism, and
 * a member attends to those at hand while it passes them on and the next ones come.
 *
 *   member 0, step   0            1            2            3
 *   keys of          0            3            2            1           one place in use, one that fills
 *   attention        0, causal    3            2            1           parts, joined by their sums of exp(score)
 *   passes on        0 ->         3 ->         2 ->
 *   gradients of     0 ->         3 ->         2 ->         1 ->        backwards, behind them: each member adds its
 *                                                                       part; after as many hops they are at home
 *
 * Hops are begun early and ended late (dt_tp_begin_pass), in the same order at all members. */
#include "exec/modules/impl.h"

struct places { /* of a ring: what is in use, and what comes */
    char *here, *next;
};

static struct places places_of(const struct dt_nn_call *c, const struct dt_nn_context *r,
                               char *rooms)
{
    return (struct places){rooms, dt_nn_off(rooms, dt_nn_context_place(c) * 2 * r->kv, c->es)};
}

static int pass(struct dt_nn_call *c, const struct dt_nn_context *r, const struct places *p)
{
    return dt_tp_begin_pass(c->q, c->s->cp, p->here,
                            (size_t)(dt_nn_context_place(c) * 2 * r->kv) * c->es, p->next);
}

static void passed(struct dt_nn_call *c, int begun, struct places *p)
{
    char *here = p->here;

    dt_tp_end(c->q, c->s->cp, begun);
    p->here = p->next;
    p->next = here;
}

/* What own queries see of the keys at hand joins what they saw before. */
static void attend_part(struct dt_nn_call *c, const struct dt_nn_context *r,
                        const struct dt_kernel_attention *a, const char *qkv, float *sum,
                        float *lse)
{
    if (a->rows_k == 0)
        return;
    c->k->attention_fwd(c->q, a, qkv, r->seen, dt_nn_off(r->seen, r->kv, c->es), r->part,
                        r->part_lse);
    c->k->attention_join(c->q, a, r->part, r->part_lse, sum, lse);
}

void dt_nn_ring_attend(struct dt_nn_call *c, const struct dt_nn_context *r,
                       const struct dt_kernel_attention *a, const char *qkv, char *o, float *lse)
{
    struct places p = places_of(c, r, r->all);
    struct dt_nn_step step = {0};
    float *sum = c->dtype == DT_F32 ? (void *)o : r->sum; /* parts are joined in fp32 */
    int64_t n = dt_tp_size(c->s->cp), values = c->batch->rows * r->q;

    dt_nn_context_bring(c, r, dt_nn_off(qkv, r->q, c->es), a->stride_q, p.here);
    for (int64_t t = 0; t < n; t++, dt_nn_context_next(c, &step)) {
        int begun = t + 1 < n ? pass(c, r, &p) : -1;
        struct dt_kernel_attention now = *a;

        dt_nn_context_see(c, r, &step, p.here, &now);
        if (t > 0) {
            attend_part(c, r, &now, qkv, sum, lse);
        } else {
            c->k->attention_fwd(c->q, &now, qkv, r->seen, dt_nn_off(r->seen, r->kv, c->es), o, lse);
            if (sum != (void *)o)
                c->k->cast(c->q, values, c->dtype, o, DT_F32, sum);
        }
        passed(c, begun, &p);
    }
    if (sum != (void *)o)
        c->k->cast(c->q, values, DT_F32, sum, c->dtype, o);
}

/* Gradients of own queries, and of the keys and values at hand: probabilities are those of all keys, since lse is. */
static void attend_part_back(struct dt_nn_call *c, const struct dt_nn_context *r,
                             const struct dt_kernel_attention *a, const struct dt_nn_attended *t,
                             const char *d_o, char *dqkv, bool first)
{
    char *dq = first ? dqkv : r->part;

    if (a->rows_k == 0)
        return;
    c->k->attention_bwd(c->q, a, t->qkv, r->seen, dt_nn_off(r->seen, r->kv, c->es), t->o, t->lse,
                        d_o, dq, r->d_seen, dt_nn_off(r->d_seen, r->kv, c->es));
    if (!first)
        c->k->copy2d(c->q, c->dtype, c->batch->rows, r->q, dq, a->stride_q, dqkv, a->stride_q,
                     true);
}

void dt_nn_ring_attend_back(struct dt_nn_call *c, const struct dt_nn_context *r,
                            const struct dt_kernel_attention *a, const struct dt_nn_attended *t,
                            const char *d_o, char *dqkv)
{
    struct places p = places_of(c, r, r->all), d = places_of(c, r, r->d_all);
    struct dt_nn_step step = {0};
    int64_t n = dt_tp_size(c->s->cp);
    int begun, hop = -1;

    dt_nn_context_bring(c, r, dt_nn_off(t->qkv, r->q, c->es), a->stride_q, p.here);
    c->s->dev->zero(c->q, d.here, (size_t)(dt_nn_context_place(c) * 2 * r->kv) * c->es);
    for (int64_t i = 0; i < n; i++, dt_nn_context_next(c, &step)) {
        struct dt_kernel_attention now = *a;

        begun = i + 1 < n ? pass(c, r, &p) : -1;
        dt_nn_context_see(c, r, &step, p.here, &now);
        attend_part_back(c, r, &now, t, d_o, dqkv, i == 0);
        if (i > 0)
            passed(c, hop, &d); /* what members before have of them */
        dt_nn_context_add(c, r, &step, d.here);
        hop = pass(c, r, &d);
        passed(c, begun, &p);
    }
    passed(c, hop, &d); /* home */
    c->k->copy2d(c->q, c->dtype, c->batch->rows, 2 * r->kv, d.here, 2 * r->kv,
                 dt_nn_off(dqkv, r->q, c->es), a->stride_q, false);
}
