/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Memory of each rank, predicted. */
#ifndef DT_EXEC_TRAIN_MEMORY_H
#define DT_EXEC_TRAIN_MEMORY_H

#include "exec/train.h"

/* Fills predicted_bytes of out[ranks]: the sum over the lanes of a rank of what the memory model
 * charges a GPU of the plan, for the largest microbatch of this program. */
enum dt_status dt_train_predict_memory(const struct dt_program *p, const struct dt_model *model,
                                       const struct dt_cluster *c, int ranks, struct dt_error *err,
                                       struct dt_rank_memory *out);

#endif
