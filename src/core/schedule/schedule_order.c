/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * The order of forwards and backwards on every lane: that of the plan's schedule (core/pipeline) where the graph allows
 * a fixed one.  Modules around an interleaved one take the list schedule; so does every module when slots are not
 * aligned and that is faster than the fixed order. */
#include "core/schedule/schedule_impl.h"

static int order_alloc(struct dt_sched *s, struct dt_sched_lane_order *o, uint32_t n, int vpp)
{
    o->n = 0;
    o->code = DT_ARENA_NEW(&s->arena, uint32_t, n + 1);
    o->first_f = DT_ARENA_NEW(&s->arena, uint32_t, vpp);
    o->last_b = DT_ARENA_NEW(&s->arena, uint32_t, vpp);
    return o->code && o->first_f && o->last_b ? 0 : -1;
}

static void order_ends(struct dt_sched_lane_order *o, int vpp)
{
    for (int c = 0; c < vpp; c++)
        o->first_f[c] = o->last_b[c] = DT_NONE;
    for (uint32_t i = 0; i < o->n; i++) {
        uint32_t c = DT_CODE_CHUNK(o->code[i]), mb = DT_CODE_MB(o->code[i]);

        if (DT_CODE_KIND(o->code[i]) != DT_CODE_FORWARD)
            o->last_b[c] = mb;
        else if (o->first_f[c] == DT_NONE)
            o->first_f[c] = mb;
    }
}

/* Puts the weight gradients of a lane that splits its backwards into its order: that of backward k behind backward
 * k + put_off. */
static enum dt_status put_off(struct dt_sched *s, struct dt_sched_module *m, int stage, uint32_t n,
                              struct dt_sched_lane_order *o, struct dt_error *err)
{
    int deferred = dt_memory_deferred(s->plan, s->model, m->index, stage, n);
    uint32_t waits = deferred > 0 ? (uint32_t)deferred - 1 : 0, from = o->n, w = 0, b = 0;
    uint32_t *whole = o->code;

    if (deferred == 0)
        return DT_OK;
    if (order_alloc(s, o, 3 * n, 1) != 0)
        return dt_error_nomem(err, "order of a lane");
    for (uint32_t i = 0; i < from; i++) {
        o->code[o->n++] = whole[i];
        if (DT_CODE_KIND(whole[i]) != DT_CODE_BACKWARD)
            continue;
        whole[b++] = DT_CODE(DT_CODE_MB(whole[i]), 0, DT_CODE_WEIGHT); /* b <= i */
        if (b > waits)
            o->code[o->n++] = whole[w++];
    }
    while (w < b)
        o->code[o->n++] = whole[w++];
    return DT_OK;
}

/* The schedule's own order; chunks without a backward leave none. */
static enum dt_status order_lane(struct dt_sched *s, struct dt_sched_module *m, int stage,
                                 uint32_t n, struct dt_sched_lane_order *o, struct dt_error *err)
{
    struct dt_pipe_lane lane = dt_memory_pipe_lane(s->plan, s->model, m->index, stage, n);
    int held = dt_memory_in_flight(s->plan, s->model, m->index, stage, n);
    const struct dt_pipe *pipe = dt_pipe_of(s->plan->policy.schedule);
    bool backward[DT_MAX_VSTAGES];

    if (order_alloc(s, o, 2 * n * (uint32_t)m->vpp, m->vpp) != 0)
        return dt_error_nomem(err, "order of a lane");
    for (int c = 0; c < m->vpp; c++)
        backward[c] = m->v[c * m->pp + stage].backward;
    if (s->plan->modules[m->index].phases)
        pipe = &dt_pipe_gpipe;
    o->n = pipe->order(&lane, held, backward, o->code);
    return DT_OK;
}

/* A module that takes its inputs from others and works on some slots only.  1F1B counted in its own microbatches would
 * wait for inputs of slots that the modules in front may not begin before it has run a backward.  So a lane goes by the
 * times of core/pipeline/one_f_one_b.c: F of slot k at 2k - a, B at 2k + a + 1, where a is its bound less one.  Its
 * microbatches are of different slots, hence it holds no more than the bound.
 *
 * A module without inputs keeps 1F1B in its own microbatches: that only moves forwards ahead of these times. */
static enum dt_status order_by_slots(struct dt_sched *s, struct dt_sched_module *m, int replica,
                                     int stage, struct dt_sched_lane_order *o, struct dt_error *err)
{
    const struct dt_microbatch *mb = &s->a->m[m->index].mb[m->mb_first[replica]];
    uint32_t n = m->mb_first[replica + 1] - m->mb_first[replica], b = 0;
    int64_t ahead = dt_memory_in_flight(s->plan, s->model, m->index, stage, s->a->n_slots) - 1;

    if (order_alloc(s, o, 2 * n, 1) != 0)
        return dt_error_nomem(err, "order of a lane");
    for (uint32_t f = 0; f <= n; f++) {
        while (m->v[stage].backward && b < f && (f == n || mb[f].slot > mb[b].slot + ahead))
            o->code[o->n++] = DT_CODE(b++, 0, DT_CODE_BACKWARD);
        if (f < n)
            o->code[o->n++] = DT_CODE(f, 0, DT_CODE_FORWARD);
    }
    return DT_OK;
}

/* An encoder whose positions may be in two parts (Entrain): F of position p at 2p - a, B of what goes to the LLM in slot q
 * at 2q + a + 1, where a is its bound without the one position more that deferral holds.  q is p or p + 1, so times grow
 * along every dependency as in 1F1B, and a position more is held than there. */
static enum dt_status order_by_positions(struct dt_sched *s, struct dt_sched_module *m, int replica,
                                         int stage, struct dt_sched_lane_order *o,
                                         struct dt_error *err)
{
    const struct dt_assignment_module *a = &s->a->m[m->index];
    uint32_t first = m->mb_first[replica], end = m->mb_first[replica + 1], b = first;
    int64_t ahead = dt_memory_in_flight(s->plan, s->model, m->index, stage, INT32_MAX) - 2;

    if (order_alloc(s, o, 2 * (end - first), 1) != 0)
        return dt_error_nomem(err, "order of a lane");
    for (uint32_t f = first; f <= end; f++) {
        int64_t at = f == end ? INT64_MAX
                              : (int64_t)a->mb[f].slot - dt_assignment_deferred(a, first, end, f);

        while (m->v[stage].backward && b < f && at > (int64_t)a->mb[b].slot + ahead)
            o->code[o->n++] = DT_CODE(b++ - first, 0, DT_CODE_BACKWARD);
        if (f < end)
            o->code[o->n++] = DT_CODE(f - first, 0, DT_CODE_FORWARD);
    }
    return DT_OK;
}

static bool takes_inputs(const struct dt_sched *s, const struct dt_sched_module *m)
{
    for (int e = 0; e < s->model->n_edges; e++)
        if (s->model->edges[e].dst == m->index)
            return true;
    return false;
}

/* Microbatches of lane l of a module (one replica stands for all when slots are aligned). */
static uint32_t lane_microbatches(const struct dt_sched_module *m, int l)
{
    return m->mb_first[l / m->pp + 1] - m->mb_first[l / m->pp];
}

/* `by_slots`: the list schedule could stand for it. */
static enum dt_status module_orders(struct dt_sched *s, struct dt_sched_module *m, int lanes,
                                    bool fixed, bool by_slots, struct dt_error *err)
{
    m->order = DT_ARENA_NEW(&s->arena, struct dt_sched_lane_order, lanes);
    if (!m->order)
        return dt_error_nomem(err, "orders of lanes");
    for (int l = 0; l < lanes; l++) {
        uint32_t n = lane_microbatches(m, l);

        if (n >= DT_MB_MAX)
            return dt_error_set(err, DT_ERR_INPUT,
                                "module %s: %u microbatches per replica, at most %d", m->mod->name,
                                n, DT_MB_MAX - 1);
        if (fixed && dt_plan_defers(s->plan, s->model, m->index))
            DT_TRY(
                order_by_positions(s, m, s->aligned ? 0 : l / m->pp, l % m->pp, &m->order[l], err));
        else if (fixed && by_slots && n != (uint32_t)s->a->n_slots && takes_inputs(s, m))
            DT_TRY(order_by_slots(s, m, l / m->pp, l % m->pp, &m->order[l], err));
        else if (fixed)
            DT_TRY(order_lane(s, m, l % m->pp, n, &m->order[l], err));
        else if (order_alloc(s, &m->order[l], 2 * n * (uint32_t)m->vpp, m->vpp) != 0)
            return dt_error_nomem(err, "orders of lanes");
    }
    return DT_OK;
}

enum dt_status dt_sched_orders(struct dt_sched *s, struct dt_error *err)
{
    bool list[DT_MAX_MODULES] = {false}, fixed[DT_MAX_MODULES], interleaved = false, any = false;
    int lanes[DT_MAX_MODULES];

    for (int i = 0; i < s->n_modules; i++) {
        lanes[i] = s->aligned ? s->m[i].pp : s->m[i].dp * s->m[i].pp;
        interleaved |= s->m[i].vpp > 1;
    }
    for (int i = 0; i < s->n_modules; i++) {
        /* what is far ahead in a fixed order puts off the first backward as well; the list runs backwards that are ready */
        list[i] = dt_pipe_of(s->plan->policy.schedule)->bounded && !s->plan->modules[i].phases &&
                  (!s->aligned || (interleaved && s->n_modules > 1) || dt_plan_is_ahead(s->plan));
        any |= list[i];
        fixed[i] = !list[i] || !interleaved || s->m[i].vpp > 1;
        DT_TRY(module_orders(s, &s->m[i], lanes[i], fixed[i], list[i] && !interleaved, err));
    }
    if (any)
        DT_TRY(dt_sched_list(s, list, fixed, err));
    for (int i = 0; i < s->n_modules; i++)
        for (int l = 0; l < lanes[i]; l++) {
            DT_TRY(put_off(s, &s->m[i], l % s->m[i].pp, lane_microbatches(&s->m[i], l),
                           &s->m[i].order[l], err));
            order_ends(&s->m[i].order[l], s->m[i].vpp);
        }
    return DT_OK;
}
