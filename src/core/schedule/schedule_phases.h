/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Encoders with phases (model/plan_phases.c) while lanes take turns on GPUs: how much of each phase is left on every GPU.
 * GPUs are numbered by the caller, who knows which count. */
#ifndef DT_CORE_SCHEDULE_SCHEDULE_PHASES_H
#define DT_CORE_SCHEDULE_SCHEDULE_PHASES_H

#include "core/schedule/schedule_impl.h"

struct dt_sched_phases;
/* Nothing has begun, and nothing is counted yet; 0, with *out NULL where no module has phases, or -1: out of memory. */
int dt_sched_phases_new(const struct dt_sched *s, const struct dt_program *p, uint32_t n_gpus,
                        struct dt_arena *a, struct dt_sched_phases **out);
/* Op i is on GPUs [first, first + n). */
void dt_sched_phases_add(struct dt_sched_phases *x, uint32_t i, uint32_t first, uint32_t n);
/* All ops that were added are to be begun. */
void dt_sched_phases_rewind(struct dt_sched_phases *x);
/* Op i, on those GPUs, begins. */
void dt_sched_phases_begin(struct dt_sched_phases *x, uint32_t i, uint32_t first, uint32_t n);
/* May it?  Nothing of others comes before the forwards, and no backward before the others' work. */
bool dt_sched_phases_allow(const struct dt_sched_phases *x, uint32_t i, uint32_t first, uint32_t n);

#endif
