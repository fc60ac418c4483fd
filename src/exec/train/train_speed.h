/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * How fast the ranks' cores are around an iteration (comm/reference.h), and how much of its products' rate training uses. */
#ifndef DT_EXEC_TRAIN_TRAIN_SPEED_H
#define DT_EXEC_TRAIN_TRAIN_SPEED_H

#include "exec/train/train.h"

struct dt_train_speed;
/* NULL in *out where o does not ask for it; DT_ERR_INPUT on a card. */
enum dt_status dt_train_speed_open(const struct dt_train_options *o, int ranks,
                                   struct dt_error *err, struct dt_train_speed **out);
void dt_train_speed_close(struct dt_train_speed *p);
/* Does the iteration have one?  Then both others are called around it, by all ranks. */
bool dt_train_speed_due(const struct dt_train_speed *p, int64_t step);
void dt_train_speed_before(struct dt_train_speed *p);
/* Collective.  What it says of ranks stays until the next one. */
enum dt_status dt_train_speed_after(struct dt_train_speed *p, struct dt_exec *x,
                                    struct dt_error *err, struct dt_train_step *s);

/* The share of the products' measured rate (sum) that so many model FLOPs in so many seconds are, of a step (from 1 on) or
 * of all together (step 0).  More than all of it cannot be: then it is NAN, and `o->warn` hears why, of the first such step
 * and of all together. */
double dt_train_mfu(const struct dt_train_options *o, struct dt_train_summary *sum, int64_t step,
                    double model_flops, double seconds);

#endif
