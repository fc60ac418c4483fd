/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * The order of forwards and backwards on every lane.
 *
 *   1F1B         F0 F1 F2 | F3 B0 | F4 B1 | ... | B5 B6 B7        warm-up w, then one forward, one
 * backward interleaved  the same over the virtual sequences of Megatron-core: groups of pp
 * microbatches, chunk by chunk inside a group, chunks reversed for backwards GPipe        all
 * forwards, all backwards
 *
 * Why 1F1B cannot deadlock in any graph whose transfers stay inside their slot: let a be the stages
 * after a lane on the longest path.  Give F(k) the time 2k - a and B(k) the time 2k + a + 1.  Data
 * flows to smaller a, so times grow along every dependency, and sorting a lane by them gives
 * exactly warm-up min(n, a) and 1F1B.
 *
 * The warm-up is the in-flight bound of the memory model less one, so that order and memory cannot
 * disagree. Modules around an interleaved one, and every module when slots are not aligned, take
 * the list schedule. */
#include "core/schedule/schedule_impl.h"

/* The i-th forward (or backward) of a lane: Megatron-core's schedule table with groups of pp
 * microbatches. */
static uint32_t sequence_at(const struct dt_sched_module *m, uint32_t i, bool backward)
{
    uint32_t pp = (uint32_t)m->pp, per_group = pp * (uint32_t)m->vpp, in = i % per_group;
    uint32_t chunk = in / pp, mb = i / per_group * pp + in % pp;

    if (m->vpp == 1)
        return DT_CODE(i, 0, backward);
    if (backward)
        chunk = (uint32_t)m->vpp - 1 - chunk;
    return DT_CODE(mb, chunk, backward);
}

static int order_alloc(struct dt_sched *s, struct dt_lane_order *o, uint32_t n, int vpp)
{
    o->n = 0;
    o->code = DT_ARENA_NEW(&s->arena, uint32_t, n + 1);
    o->first_f = DT_ARENA_NEW(&s->arena, uint32_t, vpp);
    o->last_b = DT_ARENA_NEW(&s->arena, uint32_t, vpp);
    return o->code && o->first_f && o->last_b ? 0 : -1;
}

static void order_ends(struct dt_lane_order *o, int vpp)
{
    for (int c = 0; c < vpp; c++)
        o->first_f[c] = o->last_b[c] = DT_NONE;
    for (uint32_t i = 0; i < o->n; i++) {
        uint32_t c = DT_CODE_CHUNK(o->code[i]), mb = DT_CODE_MB(o->code[i]);

        if (DT_CODE_BACKWARD(o->code[i]))
            o->last_b[c] = mb;
        else if (o->first_f[c] == DT_NONE)
            o->first_f[c] = mb;
    }
}

/* `warmup` forwards ahead, then in turn; virtual stages without a backward leave no backward. */
static int fixed_order(struct dt_sched *s, struct dt_sched_module *m, int stage, uint32_t n,
                       uint64_t warmup, struct dt_lane_order *o)
{
    uint32_t total = n * (uint32_t)m->vpp;

    if (warmup > total)
        warmup = total;
    if (order_alloc(s, o, 2 * total, m->vpp) != 0)
        return -1;
    for (uint32_t i = 0; i < total + warmup; i++) {
        if (i < total)
            o->code[o->n++] = sequence_at(m, i, false);
        if (i >= warmup) {
            uint32_t code = sequence_at(m, i - (uint32_t)warmup, true);

            if (m->v[(int)DT_CODE_CHUNK(code) * m->pp + stage].backward)
                o->code[o->n++] = code;
        }
    }
    order_ends(o, m->vpp);
    return 0;
}

static enum dt_status order_lane(struct dt_sched *s, struct dt_sched_module *m, int stage,
                                 uint32_t n, struct dt_lane_order *o, struct dt_error *err)
{
    uint64_t warmup = UINT64_MAX;

    if (s->plan->policy.schedule != DT_SCHED_GPIPE) {
        int held = dt_memory_in_flight(s->plan, s->model, m->index, stage, n);

        warmup = held > 0 ? (uint64_t)held - 1 : 0;
    }
    return fixed_order(s, m, stage, n, warmup, o) == 0 ? DT_OK
                                                       : dt_error_nomem(err, "order of a lane");
}

/* Microbatches of lane l of a module (one replica stands for all when slots are aligned). */
static uint32_t lane_microbatches(const struct dt_sched_module *m, int l)
{
    return m->mb_first[l / m->pp + 1] - m->mb_first[l / m->pp];
}

/* Megatron-core's order exists for whole groups only: with a shorter last group lanes wait for each
 * other in a circle. */
static bool whole_groups(const struct dt_sched_module *m, int lanes)
{
    for (int l = 0; m->vpp > 1 && l < lanes; l += m->pp)
        if (lane_microbatches(m, l) % (uint32_t)m->pp != 0)
            return false;
    return true;
}

static enum dt_status module_orders(struct dt_sched *s, struct dt_sched_module *m, int lanes,
                                    bool fixed, struct dt_error *err)
{
    m->order = DT_ARENA_NEW(&s->arena, struct dt_lane_order, lanes);
    if (!m->order)
        return dt_error_nomem(err, "orders of lanes");
    for (int l = 0; l < lanes; l++) {
        uint32_t n = lane_microbatches(m, l);

        if (n >= DT_MB_MAX)
            return dt_error_set(err, DT_ERR_INPUT,
                                "module %s: %u microbatches per replica, at most %d", m->mod->name,
                                n, DT_MB_MAX - 1);
        if (fixed)
            DT_TRY(order_lane(s, m, l % m->pp, n, &m->order[l], err));
        else if (order_alloc(s, &m->order[l], 2 * n * (uint32_t)m->vpp, m->vpp) != 0)
            return dt_error_nomem(err, "orders of lanes");
    }
    return DT_OK;
}

enum dt_status dt_sched_orders(struct dt_sched *s, struct dt_error *err)
{
    bool list[DT_MAX_MODULES] = {false}, interleaved = false, whole = true, any = false;
    int lanes[DT_MAX_MODULES];

    for (int i = 0; i < s->n_modules; i++) {
        lanes[i] = s->aligned ? s->m[i].pp : s->m[i].dp * s->m[i].pp;
        interleaved |= s->m[i].vpp > 1;
        whole &= whole_groups(&s->m[i], lanes[i]);
    }
    for (int i = 0; i < s->n_modules; i++) {
        list[i] = s->plan->policy.schedule != DT_SCHED_GPIPE &&
                  (!s->aligned || !whole || (interleaved && s->n_modules > 1));
        any |= list[i];
        DT_TRY(module_orders(s, &s->m[i], lanes[i], !list[i] || (s->m[i].vpp > 1 && whole), err));
    }
    if (!any)
        return DT_OK;
    DT_TRY(dt_sched_list(s, list, whole, err));
    for (int i = 0; i < s->n_modules; i++)
        for (int l = 0; list[i] && l < lanes[i]; l++)
            order_ends(&s->m[i].order[l], s->m[i].vpp);
    return DT_OK;
}
