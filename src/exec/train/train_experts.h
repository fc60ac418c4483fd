/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * How unevenly rows went to experts while training. */
#ifndef DT_EXEC_TRAIN_TRAIN_EXPERTS_H
#define DT_EXEC_TRAIN_TRAIN_EXPERTS_H

#include "base/json.h"
#include "exec/train/train.h"

/* The summary's members are sums over forwards until dt_train_experts_end makes them means. */
void dt_train_experts_add(struct dt_train_summary *s, const struct dt_exec_result *r);
void dt_train_experts_end(struct dt_train_summary *s);
/* An object, of a step or of the summary. */
void dt_train_experts_json(struct dt_json *j, double balance, const double busiest[DT_LOAD_N]);

#endif
