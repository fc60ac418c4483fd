/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Cores for ranks: those of one host share the cores that they may use. */
#ifndef DT_COMM_CORES_H
#define DT_COMM_CORES_H

#include "comm/transport.h"

/* Of `n` cores, those of the k-th of `ranks` ranks: [*first, *first + *count).  More ranks than
 * cores: one each, in turn. */
void dt_cores_share(int n, int ranks, int k, int *first, int *count);
/* Pins this process to its share and says how many cores that is.  Ranks count as sharing when they
 * are on one host and may use the same cores; a launcher that gave each its own has done the work.
 * With more ranks than cores nothing is pinned.  Collective; before any thread is started. */
enum dt_status dt_cores_take(struct dt_transport *t, struct dt_error *err, int *threads);

#endif
