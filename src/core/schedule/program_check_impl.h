/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * What the files of dt_program_check share. */
#ifndef DT_CORE_SCHEDULE_PROGRAM_CHECK_IMPL_H
#define DT_CORE_SCHEDULE_PROGRAM_CHECK_IMPL_H

#include "core/schedule/schedule_fill.h"
#include "core/schedule/timeline.h"

enum dt_status dt_check_fail(struct dt_error *err, const struct dt_program *p, uint32_t i,
                             const char *what);
/* Is `for_op` a direct dependency of op i. */
bool dt_check_waits(const struct dt_program *p, uint32_t i, uint32_t for_op);
/* Forwards, backwards, transfers, in-flight bounds (program_check_data.c).  Fills s->m[].f_idx and
 * b_idx with the first part of every forward and backward. */
enum dt_status dt_check_data(const struct dt_program *p, struct dt_sched *s, struct dt_error *err);
/* Collectives and steps (program_check_sync.c). */
enum dt_status dt_check_sync(const struct dt_program *p, struct dt_sched *s, struct dt_error *err);
/* Compute ops never overlap on a GPU that lanes share (schedule_colocate.c). */
enum dt_status dt_check_colocated(const struct dt_program *p, const struct dt_topo *topo,
                                  struct dt_error *err);

#endif
