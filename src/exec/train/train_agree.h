/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * One outcome for all ranks of a training, and what rank 0 knows for all.  Collective. */
#ifndef DT_EXEC_TRAIN_TRAIN_AGREE_H
#define DT_EXEC_TRAIN_TRAIN_AGREE_H

#include "exec/program/execute.h"

/* The lowest rank's failure becomes everybody's; `mine` is this rank's where st is not DT_OK. */
enum dt_status dt_train_agree(struct dt_exec *x, int rank, int ranks, enum dt_status st,
                              const struct dt_error *mine, struct dt_error *err);
/* The lists of all ranks, one behind the other (dt_free; NULL where all are empty). */
enum dt_status dt_train_gather(struct dt_exec *x, int rank, int ranks, const int64_t *mine, int n,
                               struct dt_error *err, int64_t **all, int *n_all);
/* Rank 0's n bytes to all. */
enum dt_status dt_train_tell(struct dt_exec *x, int rank, void *bytes, size_t n,
                             struct dt_error *err);

#endif
