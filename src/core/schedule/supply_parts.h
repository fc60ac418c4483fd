/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Between supply.c, which says what an image, a text or a clip costs, and supply_stream.c, which queues them. */
#ifndef DT_CORE_SCHEDULE_SUPPLY_PARTS_H
#define DT_CORE_SCHEDULE_SUPPLY_PARTS_H

#include "core/schedule/supply.h"

struct dt_sched_part { /* of a sample, for a module */
    double core_s, bytes;
};
typedef void dt_sched_part_fn(void *ctx, struct dt_sched_part part);

/* Calls fn with each image, clip or text of sample i for the module; `item`: only that one of its items, DT_NONE: all. */
void dt_sched_supply_parts(const struct dt_sched_supply *s, const struct dt_module *m,
                           const struct dt_samples *set, int64_t i, uint32_t item,
                           dt_sched_part_fn *fn, void *ctx);

#endif
