/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * What simulations have said.  Points of a sweep often end with the same plan, as on clusters of one node more than the
 * plan has use for: such are simulated once. */
#ifndef DT_CLI_POINT_KNOWN_H
#define DT_CLI_POINT_KNOWN_H

#include "core/job/job.h"
#include "report/report.h"

/* A simulation, and all that it depends on. */
struct dt_point_sim {
    const struct dt_job *job;   /* its cluster and `simulate` map */
    const struct dt_plan *plan; /* whatever was predicted of it */
    uint64_t samples, cost;     /* numbers that no others have */
};

struct dt_point_known;
enum dt_status dt_point_known_new(struct dt_error *err, struct dt_point_known **out);
void dt_point_known_free(struct dt_point_known *k);

/* False: not known.  The report is that of this job's cluster, whose idle nodes matter to its figures alone. */
bool dt_point_known_find(struct dt_point_known *k, const struct dt_point_sim *sim,
                         struct dt_report *report, double *goodput);
/* Without the memory for it, it is simulated again when it comes again. */
void dt_point_known_add(struct dt_point_known *k, const struct dt_point_sim *sim,
                        const struct dt_report *report, double goodput);

#endif
