/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * The checkpoint folder of a training: rank 0 takes it, says which run this is and which checkpoint
 * it goes on from, and all ranks hear it. */
#ifndef DT_EXEC_TRAIN_TRAIN_FOLDER_H
#define DT_EXEC_TRAIN_TRAIN_FOLDER_H

#include "exec/checkpoint/checkpoint_lock.h"
#include "exec/train/train.h"

struct dt_train_folder {
    struct dt_ckpt_lock *lock; /* rank 0 with a folder */
    char run_id[DT_RUN_ID_SIZE];
    bool found;      /* there is something to go on from */
    char path[1200]; /* which */
    struct dt_shard_prints data;
};

/* Collective; fails at all ranks alike.  A job without a folder has a run, too. */
enum dt_status dt_train_folder_open(struct dt_train_folder *f, const struct dt_train_options *o,
                                    struct dt_exec *x, struct dt_error *err);
/* Collective: the data must be what the checkpoint, whose state it is, was trained on, unless that
 * may have changed.  On rank 0 `state` then points to the data to save. */
enum dt_status dt_train_folder_data(struct dt_train_folder *f, const struct dt_train_options *o,
                                    struct dt_exec *x, struct dt_ckpt_state *state,
                                    struct dt_error *err);
/* This rank alone, when nothing hinders the first step any more: a run that begins anew, and not
 * again after a restart that has something to go on from, sets aside what is there. */
enum dt_status dt_train_folder_begin(struct dt_train_folder *f, const struct dt_train_options *o,
                                     struct dt_error *err);
/* This rank alone: gives the folder back. */
void dt_train_folder_close(struct dt_train_folder *f);

#endif
