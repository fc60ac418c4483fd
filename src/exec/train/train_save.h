/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Checkpoints of a run: every rank writes its share beside the training, and when all have, rank 0
 * commits.  At most one is under way. */
#ifndef DT_EXEC_TRAIN_TRAIN_SAVE_H
#define DT_EXEC_TRAIN_TRAIN_SAVE_H

#include "exec/checkpoint/checkpoint_lock.h"
#include "exec/checkpoint/checkpoint_share.h"
#include "exec/train/setup.h"

struct dt_train_save {
    const struct dt_setup *setup;
    struct dt_exec *x;
    const struct dt_warn *warn; /* rank 0; NULL = nobody listens */
    struct dt_ckpt_lock *lock;  /* of the folder; rank 0 */
    int rank, ranks;
    struct dt_ckpt_sharing *share;     /* NULL = none under way */
    struct dt_exec_whole whole;        /* what it is written from */
    struct dt_ckpt_share_files *files; /* of all ranks */
    struct dt_ckpt_state state;        /* what is under way */
    uint64_t tag;                      /* what its folder goes by */
    char path[1200];                   /* the last that was committed; rank 0 */
};

/* All are collective and fail at all ranks alike, with the message of the rank that failed. */

/* Copies what there is and begins to write it; waits for the one before. */
enum dt_status dt_train_save_begin(struct dt_train_save *s, const struct dt_ckpt_state *state,
                                   struct dt_error *err);
/* Commits if all ranks have written; with `wait` when they have. */
enum dt_status dt_train_save_poll(struct dt_train_save *s, bool wait, struct dt_error *err);
/* This rank alone: gives up what is under way, and frees. */
void dt_train_save_close(struct dt_train_save *s);

#endif
