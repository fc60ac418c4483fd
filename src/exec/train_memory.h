/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Memory of each rank, predicted. */
#ifndef DT_EXEC_TRAIN_MEMORY_H
#define DT_EXEC_TRAIN_MEMORY_H

#include "exec/train.h"

/* The largest microbatch of each module over the programs seen; memory is kept for it. */
struct dt_memory_seen {
    struct dt_work most[DT_MAX_MODULES];
    int64_t n[DT_MAX_MODULES]; /* microbatches of a replica, at most */
};
void dt_memory_see(struct dt_memory_seen *seen, const struct dt_program *p);

/* Fills predicted_bytes of out[ranks]: the sum over the lanes of a rank of what the memory model
 * charges a CPU (core/memory_cpu.h), and the scratch of the lane that needs most. */
enum dt_status dt_train_predict_memory(const struct dt_setup *s, const struct dt_memory_seen *seen,
                                       int ranks, struct dt_error *err, struct dt_rank_memory *out);

#endif
