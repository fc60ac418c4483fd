/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Names of checkpoints' folders, and which there are.  Shared by checkpoint*.c only. */
#ifndef DT_EXEC_CHECKPOINT_CHECKPOINT_DIR_H
#define DT_EXEC_CHECKPOINT_CHECKPOINT_DIR_H

#include "exec/checkpoint/checkpoint_impl.h"

/* Between the step and the run of a checkpoint that has made way for one of another run. */
#define DT_CKPT_OF ".of-"

struct dt_ckpt_step {
    char name[80];
    int64_t step;
    bool aside; /* "STEP.of-RUN" */
};

void dt_ckpt_step_name(char *buf, size_t size, int64_t step);
/* Step of a folder's name, or -1; a name that has made way is none. */
int64_t dt_ckpt_step_of(const char *name);
/* Step of a checkpoint that has made way for one of another run, or -1. */
int64_t dt_ckpt_step_aside(const char *name);
/* For qsort of struct dt_ckpt_step: by rising step. */
int dt_ckpt_by_step(const void *a, const void *b);
/* The complete checkpoints in DIR, by rising step; of run `run_id` (NULL: of any, and none that has
 * made way).  *n = 0 if there is no such folder; *out is freed with dt_free. */
enum dt_status dt_ckpt_list(const char *dir, const char *run_id, struct dt_error *err,
                            struct dt_ckpt_step **out, size_t *n);
/* The highest N below `below` (0 = of all) of the folders DIR/before-N, or 0. */
int dt_ckpt_before(const char *dir, int below);
enum dt_status dt_ckpt_before_path(char *out, size_t size, const char *dir, int number,
                                   struct dt_error *err);

#endif
