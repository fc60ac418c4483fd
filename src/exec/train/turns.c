/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING. */
#include "exec/train/turns.h"

void dt_train_turns_ways(struct dt_train_turns *t, const struct dt_model *m,
                         const struct dt_plan *plan)
{
    static const enum dt_assign_way ways[] = {DT_WAY_NONE, DT_WAY_INTRA, DT_WAY_INTER, DT_WAY_BOTH,
                                              DT_WAY_ENTRAIN};

    t->n = 0;
    for (size_t k = 0; k < sizeof(ways) / sizeof(*ways); k++) {
        dt_assign_way_plan(plan, ways[k], &t->plan[t->n]);
        if (ways[k] == DT_WAY_ENTRAIN && dt_plan_check_entrain(&t->plan[t->n], m, NULL) != DT_OK)
            continue;
        t->way[t->n++] = ways[k];
    }
}

int64_t dt_train_turns_steps(const struct dt_train_turns *t)
{
    return t->n * (t->warm_up + t->batches * t->rounds);
}

void dt_train_turn(const struct dt_train_turns *t, int64_t step, struct dt_train_turn *out)
{
    int64_t at = step / t->n, place = step % t->n; /* of the batch among all, of the order in it */

    *out = (struct dt_train_turn){.batch = at, .round = -1};
    if (at >= t->warm_up) {
        out->round = (at - t->warm_up) / t->batches;
        out->batch = t->warm_up + (at - t->warm_up) % t->batches;
    }
    if (out->round % 2 == 1)
        place = t->n - 1 - place;
    out->order = (int)((place + out->batch) % t->n);
}
