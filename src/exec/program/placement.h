/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Placement: which rank stands for which GPU of a plan.
 *
 *   GPUs of the plan   0 1 2 3 | 4 5 6 7          as many ranks: one each
 *   4 ranks            0 0 1 1 | 2 2 3 3          fewer: neighbours together
 *
 * Modules of a colocated plan share GPUs, so a rank hosts a lane of each.  A lane of tp x cp GPUs
 * is as many ranks, its members: member c tp + t is t of tensor and c of context parallelism. */
#ifndef DT_EXEC_PROGRAM_PLACEMENT_H
#define DT_EXEC_PROGRAM_PLACEMENT_H

#include "core/model/plan.h"

struct dt_placement {
    const struct dt_plan *plan; /* borrowed */
    int ranks, n_gpus;
    int *gpu; /* [n_gpus] that the plan uses, ascending */
};
/* DT_ERR_INPUT: more ranks than GPUs, or so few that two members of a lane would meet on one; both
 * say how many it should be. */
enum dt_status dt_placement_init(struct dt_placement *p, const struct dt_plan *plan, int ranks,
                                 struct dt_error *err);
void dt_placement_free(struct dt_placement *p);
/* The rank of a GPU of the plan.  O(log GPUs). */
int dt_placement_gpu_rank(const struct dt_placement *p, int gpu);
/* The rank of member `t` (0 .. tp cp - 1) of a lane. */
int dt_placement_rank(const struct dt_placement *p, int module, int replica, int stage, int t);
/* The member of a lane that a rank is, or -1. */
int dt_placement_member(const struct dt_placement *p, int module, int replica, int stage, int rank);

#endif
