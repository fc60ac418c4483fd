/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * The makespan of a program that is not written (schedule_direct.c). */
#ifndef DT_CORE_SCHEDULE_SCHEDULE_DIRECT_H
#define DT_CORE_SCHEDULE_SCHEDULE_DIRECT_H

#include "core/schedule/schedule_impl.h"

/* Of the program that this compilation would make, whose orders are there (dt_sched_orders()).  !*known: this plan needs
 * the program; *ns is set only where it is known. */
enum dt_status dt_sched_direct(struct dt_sched *s, struct dt_error *err, bool *known, int64_t *ns);

#endif
