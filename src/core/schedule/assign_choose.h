/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * The assignment of a global batch: the plan's own or, with policy.batch_reorder, the fastest of all ways to order this batch,
 * each compiled and timed without contention.  A pure function of plan, costs and samples: every rank, the simulator and a run that
 * goes on from a checkpoint choose alike. */
#ifndef DT_CORE_SCHEDULE_ASSIGN_CHOOSE_H
#define DT_CORE_SCHEDULE_ASSIGN_CHOOSE_H

#include "core/schedule/assign.h"

/* By name, which decides between ways that take equally long. */
#define DT_ASSIGN_WAYS(X)                                                                          \
    X(BOTH, "both")                                                                                \
    X(ENTRAIN, "entrain")                                                                          \
    X(INTER, "inter")                                                                              \
    X(INTRA, "intra")                                                                              \
    X(NONE, "none")
enum dt_assign_way {
#define DT_X(name, text) DT_WAY_##name,
    DT_ASSIGN_WAYS(DT_X)
#undef DT_X
        DT_WAY_N
};
extern const char *const dt_assign_way_names[DT_WAY_N + 1];

/* What assigning, compiling and timing takes for an op of the program, on one core: measured 2026-11-26, 180 ns of 82,000 ops,
 * 290 ns of 6,400 (doc/calibration.md).  The budget is counted in ops, not on a clock, so that it ends alike on every rank. */
#define DT_ASSIGN_OP_S 300e-9

struct dt_assign_choice {
    bool by_batch;          /* chosen here; else the policy's way */
    enum dt_assign_way way; /* the one that was taken */
    int64_t ns
        [DT_WAY_N]; /* timelines; INT64_MAX: no such way of this plan, too large for memory, beyond the budget */
};

/* dt_assign() of the batch that begins at `first_sample`, in the way that the plan's policy says.  `out` may be NULL. */
enum dt_status dt_assign_choose(const struct dt_plan *p, const struct dt_model *m,
                                const struct dt_cluster *cluster, struct dt_cost *cost,
                                const struct dt_samples *s, int64_t first_sample,
                                struct dt_error *err, struct dt_assignment **a,
                                struct dt_assign_choice *out);
/* The plan with the policy of one of them. */
void dt_assign_way_plan(const struct dt_plan *p, enum dt_assign_way way, struct dt_plan *out);

#endif
