/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * How a lane's array is laid out; counting (schedule.c) and filling (schedule_fill.c) share these
 * counts.
 *
 *   [gathers]
 *   { [fetch] [recv ...] forward parts  [send ...]
 *   |         [recv ...] backward parts [send ...] } ...      in the order of the schedule
 *   [syncs] [tied sync] [norm] [step]
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
/* Gathers in front of a lane. */
static inline uint32_t dt_sched_fill_head(const struct dt_sched_module *m, int stage)
{
    uint32_t n = 0;

    for (int v = stage; v < m->n_v; v += m->pp)
        for (int k = 0; k < m->v[v].f_parts; k++)
            n += m->v[v].gather_group[k] != DT_NONE;
    return n;
}
static inline uint32_t dt_sched_fill_syncs(const struct dt_sched_module *m, int stage)
{
    uint32_t n = 0;

    for (int v = stage; v < m->n_v; v += m->pp)
        for (int k = 0; k < m->v[v].b_parts; k++)
            n += m->v[v].sync_group[k] != DT_NONE;
    return n;
}
static inline bool dt_sched_fill_tied(const struct dt_sched *s, const struct dt_sched_module *m,
                                      int stage)
{
    return s->tied_group != DT_NONE && m->index == s->model->llm &&
           (stage == 0 || stage == m->pp - 1);
}
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
    return dt_sched_fill_head(m, stage) + dt_sched_fill_syncs(m, stage) +
           dt_sched_fill_tied(s, m, stage) + m->lane_trains[stage];
}

/* Second pass: every op with its dependencies. */
enum dt_status dt_sched_fill(struct dt_sched *s, struct dt_program *p, struct dt_error *err);

#endif
