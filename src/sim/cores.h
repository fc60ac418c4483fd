/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Ranks that share cores: a program on hosts with fewer cores than ranks.
 *
 * A compute op needs one core.  While more of them run on a host than it has cores, all go on at
 * the same, lower rate (processor sharing: what a fair scheduler does over times longer than its
 * slices):
 *
 *     rate of each = min(1, cores / compute ops under way on the host)
 *
 * Messages and collectives take their time whatever the cores do.  With a core for every rank the
 * result is the topological evaluation's, to the nanosecond. */
#ifndef DT_SIM_CORES_H
#define DT_SIM_CORES_H

#include "core/timeline.h"

/* Lanes on one host share its cores: host of a GPU = GPU / gpus_per_node.  `ns`: durations as in
 * struct dt_durations, on a core of one's own.  O(ops x lanes of a host). */
enum dt_status dt_cores_run(const struct dt_program *p, const int64_t *ns, int gpus_per_node,
                            int cores_per_node, struct dt_error *err, struct dt_timeline *out);
/* Do lanes of this plan share cores at all? */
bool dt_cores_shared(const struct dt_plan *p, const struct dt_cluster *c);

#endif
