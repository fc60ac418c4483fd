/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * How unequal the microbatches of a global batch are, with Entrain's assignment and without. */
#ifndef DT_CORE_SCHEDULE_ASSIGN_SPREAD_H
#define DT_CORE_SCHEDULE_ASSIGN_SPREAD_H

#include "core/schedule/assign.h"

/* Samples in the order in which they come; encoders balanced, nothing deferred; as it is run. */
enum { DT_ASSIGN_SPREAD_GIVEN, DT_ASSIGN_SPREAD_BALANCED, DT_ASSIGN_SPREAD_RUN, DT_ASSIGN_SPREADS };

struct
    dt_assign_spread { /* of the microbatches of all replicas, by the sum of their samples' forward and backward */
    double std_s, cv, max_over_mean;
    /* the same inside replicas, whose numbers of microbatches, and so their means, may differ: the root of the mean
     * variance, absolute and relative to the replica's own mean */
    double within_std_s, within_cv;
};
struct dt_assign_spreads {
    struct dt_assign_spread of[DT_MAX_MODULES][DT_ASSIGN_SPREADS];
    int64_t samples, deferred;
    int slots;            /* K */
    int64_t fewest, most; /* K_eff of replicas */
};

/* Of a plan whose policy has that assignment. */
enum dt_status dt_assign_spread(const struct dt_plan *p, const struct dt_model *m,
                                struct dt_cost *cost, const struct dt_samples *s,
                                int64_t first_sample, struct dt_error *err,
                                struct dt_assign_spreads *out);

#endif
