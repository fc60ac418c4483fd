/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Memory of each rank, predicted. */
#ifndef DT_EXEC_TRAIN_TRAIN_MEMORY_H
#define DT_EXEC_TRAIN_TRAIN_MEMORY_H

#include "exec/train/train.h"

/* The largest microbatch of each module over the programs seen; memory is kept for it. */
struct dt_train_memory_seen {
    struct dt_work most[DT_MAX_MODULES];
    int64_t n[DT_MAX_MODULES]; /* microbatches of a replica, at most */
};
void dt_train_memory_see(struct dt_train_memory_seen *seen, const struct dt_program *p);

/* Fills the predictions of ranks[n_ranks], and those and the ranks of lanes[p->n_lanes]: what the
 * memory model charges the lanes of a CPU (core/cost/memory_stage.c), of a rank their sum and the scratch of
 * the one that needs most. */
enum dt_status dt_train_predict_memory(const struct dt_setup *s,
                                       const struct dt_train_memory_seen *seen,
                                       const struct dt_program *p, int n_ranks,
                                       struct dt_error *err, struct dt_train_rank_memory *ranks,
                                       struct dt_train_lane_memory *lanes);
/* of_lane[p->n_lanes]: what the lanes of this rank have now, if that is more. */
void dt_train_memory_note(const struct dt_exec *x, const struct dt_program *p, int64_t *of_lane);

#endif
