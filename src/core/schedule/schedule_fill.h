/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * How a lane's array is laid out; counting (schedule.c) and filling (schedule_fill.c) share these
 * counts.
 *
 *   [gathers] [offload]
 *   { [fetch] [recv ...] forward parts  [send ...] [collectives]
 *   |         [recv ...] backward parts [send ...] [collectives] } ...      in the order of the schedule
 *   [reload] before the first backward, or behind all
 *   [syncs] [tied sync] [norm] [step]
 *
 * Collectives of each microbatch (ZeRO 2 and 3) stand behind the op: for each part of it the gather of the part that
 * comes one or two parts later, be it of this op or the next one, and then its own sync.  So a part may wait for a
 * gather or sync that stands behind it, and whose turn on its resource is before it nevertheless:
 *
 *   compute       p0    p1    p2    p3    q0    q1          one op of four parts, then another
 *   collective    g(p2) s(p0) g(p3) s(p1) g(q0) s(p2) ...   each from the end of its part on
 */
#ifndef DT_CORE_SCHEDULE_SCHEDULE_FILL_H
#define DT_CORE_SCHEDULE_SCHEDULE_FILL_H

#include "core/schedule/schedule_impl.h"

/* Does data cross between lanes behind virtual stage v for microbatch mb? */
static inline bool dt_sched_fill_crosses(const struct dt_sched_module *m,
                                         const struct dt_assignment_module *a, int v, uint32_t mb)
{
    return m->pp > 1 && v >= 0 && v + 1 < m->n_v &&
           dt_sched_vstage_bytes(&m->v[v], &a->work[mb]) > 0;
}
static inline uint32_t dt_sched_fill_in_n(const struct dt_sched_module *m, uint32_t mb)
{
    return m->in_first[mb + 1] - m->in_first[mb];
}
static inline uint32_t dt_sched_fill_out_n(const struct dt_sched_module *m, uint32_t mb)
{
    return m->out_first[mb + 1] - m->out_first[mb];
}
/* FETCH and RECVs before a forward; the first virtual stage of every module reads its samples. */
static inline uint32_t dt_sched_fill_forward_inputs(const struct dt_sched_module *m,
                                                    const struct dt_assignment_module *a, int v,
                                                    uint32_t mb)
{
    if (v == 0)
        return (a->mb[mb].n > 0) + dt_sched_fill_in_n(m, mb);
    return dt_sched_fill_crosses(m, a, v - 1, mb);
}
static inline uint32_t dt_sched_fill_forward_outputs(const struct dt_sched_module *m,
                                                     const struct dt_assignment_module *a, int v,
                                                     uint32_t mb)
{
    return v == m->n_v - 1 ? dt_sched_fill_out_n(m, mb) : dt_sched_fill_crosses(m, a, v, mb);
}
static inline uint32_t dt_sched_fill_backward_inputs(const struct dt_sched_module *m,
                                                     const struct dt_assignment_module *a, int v,
                                                     uint32_t mb)
{
    return v == m->n_v - 1 ? dt_sched_fill_out_n(m, mb) : dt_sched_fill_crosses(m, a, v, mb);
}
static inline uint32_t dt_sched_fill_backward_outputs(const struct dt_sched_module *m,
                                                      const struct dt_assignment_module *a, int v,
                                                      uint32_t mb)
{
    if (v == 0)
        return m->gin_n[mb];
    return m->v[v - 1].backward && dt_sched_fill_crosses(m, a, v - 1, mb);
}
/* The lane of a stage of a replica, before it has ops. */
static inline struct dt_lane dt_sched_fill_lane(const struct dt_sched *s,
                                                const struct dt_sched_module *m, int replica,
                                                int stage)
{
    return (struct dt_lane){.module = (uint16_t)m->index,
                            .stage = (uint16_t)stage,
                            .replica = (uint16_t)replica,
                            .gpus = (uint16_t)m->lane_gpus,
                            .first_gpu =
                                (uint32_t)dt_plan_lane_gpu(s->plan, m->index, replica, stage)};
}

/* ---- the host link ---- */

static inline bool dt_sched_fill_offloads(const struct dt_sched *s, const struct dt_sched_module *m)
{
    return dt_plan_offloads_params(&s->plan->modules[m->index]);
}
/* The entry of a lane's order that its RELOAD stands before, n: behind the last; DT_NONE: it has none. */
static inline uint32_t dt_sched_fill_reload(const struct dt_sched *s,
                                            const struct dt_sched_module *m,
                                            const struct dt_sched_lane_order *o)
{
    uint32_t i = 0;

    if (!dt_sched_fill_offloads(s, m))
        return DT_NONE;
    while (i < o->n && DT_CODE_KIND(o->code[i]) == DT_CODE_FORWARD)
        i++;
    return i;
}

/* ---- collectives of each microbatch ---- */

static inline int dt_sched_fill_parts(const struct dt_sched_module *m,
                                      const struct dt_sched_lane_order *o, int stage, uint32_t i)
{
    uint32_t k = DT_CODE_MB(o->code[i]), chunk = DT_CODE_CHUNK(o->code[i]);
    const struct dt_sched_vstage *v = &m->v[(int)chunk * m->pp + stage];

    if (DT_CODE_KIND(o->code[i]) == DT_CODE_FORWARD)
        return dt_sched_forward_parts(v, k == o->first_f[chunk]);
    if (DT_CODE_KIND(o->code[i]) == DT_CODE_BACKWARD)
        return dt_sched_backward_parts(v, k == o->last_b[chunk]);
    return dt_sched_gradient_parts(v, k == o->last_b[chunk]);
}
/* The part of a lane's compute whose gather comes next. */
struct dt_sched_fill_ahead {
    uint32_t i; /* of the lane's order */
    int part;
};
struct dt_sched_fill_gather {
    int v, bucket; /* bucket: -1: none */
    uint32_t k;
    bool backward;
};
static inline struct dt_sched_fill_gather dt_sched_fill_next(const struct dt_sched_module *m,
                                                             const struct dt_sched_lane_order *o,
                                                             int stage,
                                                             struct dt_sched_fill_ahead *a)
{
    struct dt_sched_fill_gather g = {.bucket = -1};
    const struct dt_sched_vstage *v;
    uint32_t i = a->i;
    int part = a->part++;

    if (i >= o->n)
        return g;
    if (a->part == dt_sched_fill_parts(m, o, stage, i))
        *a = (struct dt_sched_fill_ahead){.i = i + 1};
    g.v = (int)DT_CODE_CHUNK(o->code[i]) * m->pp + stage;
    g.k = DT_CODE_MB(o->code[i]);
    g.backward = DT_CODE_KIND(o->code[i]) != DT_CODE_FORWARD;
    v = &m->v[g.v];
    if (v->f_each) /* both are cut alike */
        g.bucket = g.backward ? v->b_parts - 1 - part : part;
    if (g.bucket >= 0 && v->gather_group[g.bucket] == DT_NONE)
        g.bucket = -1;
    return g;
}
/* How many parts ahead gathers are. */
static inline int dt_sched_fill_lead(const struct dt_sched *s)
{
    return dt_plan_whole_buckets(s->plan->policy.overlap_param);
}
/* The first part, or none if the lane has no such gathers. */
static inline struct dt_sched_fill_ahead
dt_sched_fill_first(const struct dt_sched_module *m, const struct dt_sched_lane_order *o, int stage)
{
    for (int v = stage; v < m->n_v; v += m->pp)
        if (m->v[v].f_each)
            return (struct dt_sched_fill_ahead){0};
    return (struct dt_sched_fill_ahead){.i = o->n};
}
/* Gathers of the first parts, in front of the lane. */
static inline uint32_t dt_sched_fill_begin(const struct dt_sched *s,
                                           const struct dt_sched_module *m,
                                           const struct dt_sched_lane_order *o, int stage,
                                           struct dt_sched_fill_ahead *a)
{
    uint32_t n = 0;

    *a = dt_sched_fill_first(m, o, stage);
    for (int k = 0; k < dt_sched_fill_lead(s); k++)
        n += dt_sched_fill_next(m, o, stage, a).bucket >= 0;
    return n;
}
/* Does entry i of the order complete gradients that are reduced for its microbatch alone? */
static inline bool dt_sched_fill_reduces(const struct dt_sched_module *m,
                                         const struct dt_sched_lane_order *o, int stage, uint32_t i)
{
    const struct dt_sched_vstage *v = &m->v[(int)DT_CODE_CHUNK(o->code[i]) * m->pp + stage];

    return v->b_each && DT_CODE_KIND(o->code[i]) == (v->split ? DT_CODE_WEIGHT : DT_CODE_BACKWARD);
}
/* Collectives behind entry i of the order. */
static inline uint32_t dt_sched_fill_behind(const struct dt_sched_module *m,
                                            const struct dt_sched_lane_order *o, int stage,
                                            uint32_t i, struct dt_sched_fill_ahead *a)
{
    uint32_t n = 0;

    if (dt_sched_fill_reduces(m, o, stage, i))
        n += m->v[(int)DT_CODE_CHUNK(o->code[i]) * m->pp + stage].sync_stride;
    if (a->i >= o->n)
        return n;
    for (int k = dt_sched_fill_parts(m, o, stage, i); k > 0; k--)
        n += dt_sched_fill_next(m, o, stage, a).bucket >= 0;
    return n;
}

/* ---- collectives of the iteration ---- */

/* Gathers in front of a lane. */
static inline uint32_t dt_sched_fill_head(const struct dt_sched_module *m, int stage)
{
    uint32_t n = 0;

    for (int v = stage; v < m->n_v; v += m->pp)
        n += m->v[v].f_each ? 0 : m->v[v].gather_stride;
    return n;
}
static inline uint32_t dt_sched_fill_syncs(const struct dt_sched_module *m, int stage)
{
    uint32_t n = 0;

    for (int v = stage; v < m->n_v; v += m->pp)
        n += m->v[v].b_each ? 0 : m->v[v].sync_stride;
    return n;
}
static inline bool dt_sched_fill_tied(const struct dt_sched *s, const struct dt_sched_module *m,
                                      int stage)
{
    return s->tied_group != DT_NONE && m->index == s->model->llm &&
           (stage == 0 || stage == m->pp - 1);
}
/* The gradients of that table: fp32 (2 bytes in fp16 training). */
static inline uint64_t dt_sched_fill_tied_bytes(const struct dt_sched *s,
                                                const struct dt_sched_module *m)
{
    const struct dt_block *table = &m->mod->blocks[0];

    return dt_plan_policy_grad_bytes(&s->plan->policy) * (uint64_t)table->vocab *
           (uint64_t)table->hidden / (uint64_t)m->layout->tp;
}
enum { DT_SCHED_FILL_NORM_BYTES = 4 };
/* Syncs, norm and step behind it. */
static inline uint32_t dt_sched_fill_tail(const struct dt_sched *s, const struct dt_sched_module *m,
                                          int stage)
{
    return dt_sched_fill_syncs(m, stage) + dt_sched_fill_tied(s, m, stage) +
           2u * m->lane_trains[stage];
}
/* Collective ops of one lane. */
static inline uint32_t dt_sched_fill_group_ops(const struct dt_sched *s,
                                               const struct dt_sched_module *m, int stage)
{
    uint32_t n = dt_sched_fill_tied(s, m, stage) + m->lane_trains[stage];
    uint32_t mbs = m->mb_first[1] - m->mb_first[0];

    for (int v = stage; v < m->n_v; v += m->pp) {
        n += m->v[v].sync_stride * (m->v[v].b_each ? mbs : 1);
        n += m->v[v].gather_stride * (m->v[v].f_each ? dt_sched_uses(&m->v[v], mbs) : 1);
    }
    return n;
}

/* Kind, size and geometry of every group. */
void dt_sched_fill_groups(const struct dt_sched *s, struct dt_program *p);
/* Second pass: every op with its dependencies. */
enum dt_status dt_sched_fill(struct dt_sched *s, struct dt_program *p, struct dt_error *err);

#endif
