/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Ranks that share cores: a program on hosts with fewer cores than ranks.
 *
 * A compute op needs one core.  So does a message or a collective inside the host, at each of its
 * ranks, once its latency is over: what carries it there is a thread that copies and adds.  While
 * more of all these run on a host than it has cores, all go on at the same, lower rate (processor
 * sharing: what a fair scheduler does over times longer than its slices):
 *
 *     rate of each = min(1, cores / ops that need a core under way on the host)
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

/* Lanes on one host share its cores: host of a GPU = GPU / gpus_per_node.  Durations on a core of
 * one's own, with latencies (alpha_ns).  batch_ns: what each rank does beside it.  O(ops x ops under way on a host). */
enum dt_status dt_sim_cores_run(const struct dt_program *p, const struct dt_durations *d,
                                int gpus_per_node, int cores_per_node, int64_t batch_ns,
                                struct dt_error *err, struct dt_timeline *out);
/* Do ranks of this plan, with a thread for compute and one for messages each, share cores at all?
 */
bool dt_sim_cores_shared(const struct dt_plan *p, const struct dt_cluster *c);

#endif
