/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * The simulate driver: program x durations x network x noise -> timelines, percentiles, goodput. */
#ifndef DT_SIM_SIMULATE_H
#define DT_SIM_SIMULATE_H

#include "core/job.h"
#include "core/report.h"

struct dt_sim_result {
    struct dt_report report;         /* of the median iteration, percentiles over iterations */
    int iterations;
    double *iteration_s;             /* [iterations] */
    double goodput;                  /* share of wall time that trains, failures included; 1 when off */
    struct dt_assignment *assignment; /* of the first iteration, owned */
    struct dt_program *program;       /* of the first iteration, owned */
    struct dt_durations durations;    /* of the first iteration, owned */
    struct dt_timeline timeline;      /* of the first iteration, owned */
    uint64_t events;                 /* events processed in all */
};
typedef void dt_progress_fn(void *ctx, int done, int total);
/* Simulates `plan` on the job's samples: assign -> compile -> durations -> event engine, per iteration. */
enum dt_status dt_simulate(const struct dt_job *job, const struct dt_plan *plan,
                           struct dt_cost *cost, dt_progress_fn *progress, void *ctx,
                           struct dt_error *err, struct dt_sim_result *out);
void dt_sim_result_free(struct dt_sim_result *r);

#endif
