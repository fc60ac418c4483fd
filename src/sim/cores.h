/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Ranks that share cores: a program on hosts whose ranks have few of them.
 *
 * A rank has its share of the host's cores to itself, as an executor's rank binds itself to it; where a host has
 * fewer cores than ranks they share all.  A compute op needs one core of its rank's.  So does a message inside the
 * host, at the rank that receives it, and a collective, at each of its ranks, once its latency is over: what carries
 * it there is a thread that copies and adds.  While more of all these are under way than there are cores, all go on
 * at the same, lower rate (processor sharing: what a fair scheduler does over times longer than its slices):
 *
 *     rate of each = min(1, cores / ops that need one of these cores and are under way)
 *
 * Beside its program each rank may have other work from the begin on, such as making its next batch:
 * a thread that needs a core, too, until that work is done.  Nothing waits for it.
 *
 * Latencies, and messages between hosts, take their time whatever the cores do.  With cores enough
 * the result is the topological evaluation's, to the nanosecond. */
#ifndef DT_SIM_CORES_H
#define DT_SIM_CORES_H

#include "core/schedule/schedule.h"
#include "core/schedule/timeline.h"

/* A rank is a GPU, a host those of one GPU / gpus_per_node; ranks of one host have n / ranks of its n cores each, whole
 * ones, as dt_cores_share (comm/cores.h) deals them.  Durations on a core of one's own, with latencies (alpha_ns).  batch_ns: what each rank does beside it.  O(ops x ops under way on a host). */
enum dt_status dt_sim_cores_run(const struct dt_program *p, const struct dt_durations *d,
                                int gpus_per_node, int cores_per_node, int64_t batch_ns,
                                struct dt_error *err, struct dt_timeline *out);
/* Do ranks of this plan, with a thread for compute and one for messages each, share cores at all?
 */
bool dt_sim_cores_shared(const struct dt_plan *p, const struct dt_cluster *c);

#endif
