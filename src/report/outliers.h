/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * What stands out in a timeline: lanes slower than their replicas, ops slower than their like.
 *
 * Times are compared per token of their microbatches, as samples differ in size.
 *
 * A straggler is a lane whose median pass (forward, backward, weight gradient), as a multiple of
 * the median of its like, is over 1.08 times that of the other replicas of its module and stage (at
 * least one other), and beyond it by 6 normalised median absolute deviations (MAD x 1.4826, for
 * normal noise a standard deviation).
 *
 * A slow op is a pass of over 1.5 times the median of its like (module, stage, chunk, part, kind;
 * at least 4 of them, over microbatches and replicas), beyond it by 6 such deviations and by 1 % of
 * the iteration.  Those of a straggler's lane are not told apart from it.
 *
 * The factors are house rules: what a person would want to look at first. */
#ifndef DT_REPORT_OUTLIERS_H
#define DT_REPORT_OUTLIERS_H

#include "core/schedule/timeline.h"

enum { DT_OUTLIERS_MAX = 5 }; /* of each kind, the costliest first */

struct dt_outlier {
    uint32_t lane;
    uint32_t op;      /* DT_NONE = the lane */
    double ns, usual; /* time taken, and what its like would have taken */
};
struct dt_outliers {
    int n_lanes, n_ops;
    struct dt_outlier lane[DT_OUTLIERS_MAX], op[DT_OUTLIERS_MAX];
};

/* O(n log n).  A program without an assignment has microbatches of equal size. */
enum dt_status dt_outliers_find(const struct dt_program *p, const struct dt_timeline *t,
                                struct dt_error *err, struct dt_outliers *out);
/* "rank 3: llm/1.0 takes 1.42 times as long per token as its replicas" and the like; `place` is
 * what the lane is called by those who run it ("rank 3 on host"), NULL = nothing. */
void dt_outlier_text(const struct dt_program *p, const struct dt_model *m,
                     const struct dt_outlier *o, const char *place, char *buf, size_t size);

#endif
