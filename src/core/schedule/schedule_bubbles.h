/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Guests' work into the bubbles of a finished timeline (schedule_bubbles.c). */
#ifndef DT_CORE_SCHEDULE_SCHEDULE_BUBBLES_H
#define DT_CORE_SCHEDULE_SCHEDULE_BUBBLES_H

#include "core/schedule/schedule_turns.h"

/* dt_sched_turns_find_behind() has been called. */

/* No turns are shorter: chain_ns, work_ns. */
void dt_sched_bubbles_bounds(const struct dt_sched_turns_runs *g, struct dt_sched_bubbles *out);
/* Could an iteration of x->rules_ns be noticeably shorter in other turns?  Not where phases or expert groups leave lanes no
 * choice. */
bool dt_sched_bubbles_matter(const struct dt_sched_turns_runs *g, const struct dt_sched_bubbles *x);
/* `t` is a run of `g` that has ended; where turns are found in which the iteration is shorter, it becomes these; silent: their
 * t->end_ns is all that is asked. */
enum dt_status dt_sched_bubbles_fill(struct dt_sched_turns_runs *g, bool silent,
                                     struct dt_error *err, struct dt_sched_turns *t);
/* What of *out has to do with why the iteration is no shorter than in the turns of `t`, of out->ns: work_ns (more than the
 * bounds say), free_ns, moved and guest_ops.  before: the order of the turns by a rule. */
enum dt_status dt_sched_bubbles_explain(struct dt_sched_turns_runs *g, const uint32_t *before,
                                        const struct dt_sched_turns *t, struct dt_error *err,
                                        struct dt_sched_bubbles *out);

#endif
