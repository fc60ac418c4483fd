/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Do messages meet?  SENDs leave a lane in the order of their producers, RECVs are posted in the order of their consumers:
 * here from the orders of lanes alone, where there is no program; in one, schedule_recv.c finds out and puts it right. */
#include "core/schedule/schedule_fill.h"

/* One chunk per lane and slots that are aligned: each lane takes its microbatches in their order, forwards from one side
 * and gradients from the other. */
static bool in_order_anyway(const struct dt_sched *s)
{
    for (int i = 0; i < s->n_modules; i++)
        if (s->m[i].vpp > 1)
            return false;
    return s->aligned;
}

struct places { /* where forwards and backwards stand in the orders of their lanes */
    uint32_t *f, *b;
};

static void find_places(const struct dt_sched *s, const struct dt_sched_module *m,
                        struct places *at)
{
    for (int r = 0; r < m->dp; r++)
        for (int stage = 0; stage < m->pp; stage++) {
            const struct dt_sched_lane_order *o = dt_sched_order(s, m, r, stage);

            for (uint32_t i = 0; i < o->n; i++) {
                int v = (int)DT_CODE_CHUNK(o->code[i]) * m->pp + stage;
                size_t to = dt_sched_at(m, r, v, DT_CODE_MB(o->code[i]));

                if (DT_CODE_KIND(o->code[i]) == DT_CODE_FORWARD)
                    at->f[to] = i;
                else if (DT_CODE_KIND(o->code[i]) == DT_CODE_BACKWARD)
                    at->b[to] = i;
            }
        }
}

struct inbox {      /* of one lane */
    uint64_t *last; /* [n_lanes]: behind the last message of each sender, in its order */
    uint32_t *from; /* senders that have one */
    uint32_t n;
    bool ok;
};

static void arrives(struct inbox *x, uint32_t from, uint32_t place, uint32_t rank)
{
    uint64_t at = ((uint64_t)place << 32 | rank) + 1;

    if (x->last[from] == 0)
        x->from[x->n++] = from;
    x->ok &= at > x->last[from];
    x->last[from] = at;
}

/* What a forward (or backward) takes in, in the order of its RECVs. */
static void arrive_for(const struct dt_sched *s, const struct dt_sched_module *m,
                       const struct places *at, int r, int v, uint32_t k, bool backward,
                       struct inbox *x)
{
    uint32_t mb = m->mb_first[r] + k;
    int next = backward ? v + 1 : v - 1;

    if (next >= 0 && next < m->n_v) {
        size_t of = dt_sched_at(m, r, next, k);

        if (dt_sched_fill_crosses(m, &s->a->m[m->index], backward ? v : v - 1, mb))
            arrives(x, dt_sched_lane_of(m, r, next),
                    backward ? at[m->index].b[of] : at[m->index].f[of], 0);
        return;
    }
    for (uint32_t i = backward ? m->out_first[mb] : m->in_first[mb];
         i < (backward ? m->out_first : m->in_first)[mb + 1]; i++) {
        const struct dt_sched_transfer *t = &s->transfers[backward ? m->out[i] : m->in[i]];
        const struct dt_sched_module *y = &s->m[backward ? t->d : t->u];
        uint32_t y_mb = backward ? t->d_mb : t->u_mb;
        int y_r = y->replica_of[y_mb], y_v = backward ? 0 : y->n_v - 1;
        size_t of = dt_sched_at(y, y_r, y_v, y_mb - y->mb_first[y_r]);

        arrives(x, dt_sched_lane_of(y, y_r, y_v), backward ? at[t->d].b[of] : at[t->u].f[of],
                backward ? t->gin_rank : t->out_rank);
    }
}

static bool lane_in_order(const struct dt_sched *s, const struct dt_sched_module *m,
                          const struct places *at, int r, int stage, struct inbox *x)
{
    const struct dt_sched_lane_order *o = dt_sched_order(s, m, r, stage);

    for (uint32_t i = 0; i < o->n; i++)
        if (DT_CODE_KIND(o->code[i]) != DT_CODE_WEIGHT)
            arrive_for(s, m, at, r, (int)DT_CODE_CHUNK(o->code[i]) * m->pp + stage,
                       DT_CODE_MB(o->code[i]), DT_CODE_KIND(o->code[i]) == DT_CODE_BACKWARD, x);
    while (x->n > 0)
        x->last[x->from[--x->n]] = 0;
    return x->ok;
}

enum dt_status dt_sched_meets(struct dt_sched *s, struct dt_error *err, bool *yes)
{
    struct inbox x = {.last = DT_ARENA_NEW(&s->arena, uint64_t, s->n_lanes),
                      .from = DT_ARENA_NEW(&s->arena, uint32_t, s->n_lanes),
                      .ok = true};
    struct places at[DT_MAX_MODULES];

    *yes = in_order_anyway(s);
    if (*yes)
        return DT_OK;
    for (int i = 0; i < s->n_modules; i++) {
        size_t n = (size_t)s->m[i].n_mb * (size_t)s->m[i].n_v + 1;

        at[i] = (struct places){dt_arena_alloc_raw(&s->arena, n, sizeof(*at[i].f)),
                                dt_arena_alloc_raw(&s->arena, n, sizeof(*at[i].b))};
        if (!at[i].f || !at[i].b || !x.last || !x.from)
            return dt_error_nomem(err, "order of messages");
        find_places(s, &s->m[i], &at[i]);
    }
    for (int i = 0; i < s->n_modules; i++)
        for (int l = 0; x.ok && l < s->m[i].dp * s->m[i].pp; l++)
            x.ok = lane_in_order(s, &s->m[i], at, l / s->m[i].pp, l % s->m[i].pp, &x);
    *yes = x.ok;
    return DT_OK;
}
