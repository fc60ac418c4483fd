/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * What the ranks gather when training ends: who decoded how much, what memory each had, the timeline of the last iteration and
 * what made batches beside it. */
#ifndef DT_EXEC_TRAIN_TRAIN_END_H
#define DT_EXEC_TRAIN_TRAIN_END_H

#include "exec/train/train.h"
#include "exec/train/train_memory.h"

struct dt_train_end {
    const struct dt_train_options *o;
    struct dt_exec *x;
    struct dt_prefetch *prefetch; /* it is stopped */
    const struct dt_train_memory_seen *seen;
    int64_t memory_bytes;      /* of this rank, at most after a step */
    const int64_t *lane_bytes; /* [n_lanes of the program], likewise; NULL where no step was done */
    int64_t steps_before;      /* those of earlier processes */
    /* has ranks, loading and the last program; gets decoded, memory, lanes, timeline, beside */
    struct dt_train_summary *sum;
};
/* Collective.  What it has allocated before a failure is the summary's, too. */
enum dt_status dt_train_end(const struct dt_train_end *e, struct dt_error *err);

#endif
