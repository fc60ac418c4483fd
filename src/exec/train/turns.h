/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Orders of samples that take turns, step by step, to be compared with each other (`train --orders`, `loop --orders`).
 *
 *     batch 0: none intra inter ...   batch 1: intra inter ... none   ...     some batches of warm-up
 *     batch 3: ...                    batch 4: ...                            then the measured ones, in rounds
 *     batch 3: ...                    batch 4: ...                            backwards, and so on
 *
 * Each batch is trained on once in each order, one right after the other, so that what a machine's speed does within minutes
 * concerns all of them.  The order that begins changes from batch to batch, and every other round goes backwards: what a
 * steady drift adds to one order in one round it takes from it in the next. */
#ifndef DT_EXEC_TRAIN_TURNS_H
#define DT_EXEC_TRAIN_TURNS_H

#include "core/schedule/assign_choose.h"

struct dt_train_turns {
    int n; /* orders */
    enum dt_assign_way way[DT_WAY_N];
    int64_t warm_up, batches, rounds; /* batches before, batches of a round, rounds */
    struct dt_plan plan[DT_WAY_N];    /* the plan in each order */
};
/* The orders that go with a plan, none first and all reordering last, but for Entrain's assignment behind it. */
void dt_train_turns_ways(struct dt_train_turns *t, const struct dt_model *m,
                         const struct dt_plan *plan);
/* Steps of all that. */
int64_t dt_train_turns_steps(const struct dt_train_turns *t);

struct dt_train_turn {
    int64_t batch; /* counted from 0: the first `warm_up` are of the warm-up */
    int64_t round; /* -1: warm-up */
    int order;     /* of way[] */
};
/* Of the step that is number `step`, counted from 0. */
void dt_train_turn(const struct dt_train_turns *t, int64_t step, struct dt_train_turn *out);

#endif
