/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Metrics of a training run: metrics.jsonl (one object per line, appended to when a run goes on)
 * and TensorBoard events beside it. */
#ifndef DT_EXEC_TRAIN_TRAIN_LOG_H
#define DT_EXEC_TRAIN_TRAIN_LOG_H

#include "exec/train/train.h"

struct dt_train_log;
/* dir "" = no files: *out is NULL, which the others accept. */
/* Lines name the run. `anew`: the files of a run before go to DIR/before-1, or the next number that is free, and `warn` hears of it; else the
 * log goes on where it ended. */
enum dt_status dt_train_log_open(const char *dir, const char *run_id, bool anew,
                                 const struct dt_warn *warn, struct dt_error *err,
                                 struct dt_train_log **out);
enum dt_status dt_train_log_step(struct dt_train_log *l, const struct dt_train_step *s,
                                 struct dt_error *err);
/* A line of its own, whatever log_interval is. */
enum dt_status dt_train_log_event(struct dt_train_log *l, const struct dt_train_event *e,
                                  struct dt_error *err);
/* The samples up to this step ask for another plan. */
enum dt_status dt_train_log_mix(struct dt_train_log *l, int64_t step,
                                const struct dt_orch_mix_found *f, struct dt_error *err);
enum dt_status dt_train_log_close(struct dt_train_log *l, struct dt_error *err);

#endif
