/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * The simulate driver: program x durations x network x noise -> timelines, percentiles, goodput. */
#ifndef DT_SIM_SIMULATE_H
#define DT_SIM_SIMULATE_H

#include "report/explain.h"
#include "core/job/job.h"
#include "report/report.h"
#include "core/schedule/assign_choose.h"

struct dt_sim_data {               /* where the job's simulate.preprocess has a mode; else zeros */
    struct dt_sched_supplied made; /* of the first iteration's batch */
    /* means over iterations: with all input there from the begin, how much longer it takes, and seconds of a core for
     * the batch */
    double fed_s, exposed_s, core_s;
    bool settled; /* it is certain that iterations from here on repeat (dt_sched_stream_settled) */
};
struct dt_sim_result {
    struct dt_report report; /* of the median iteration, percentiles over iterations */
    int iterations;
    double *iteration_s;     /* [iterations] */
    enum dt_assign_way *way; /* [iterations] in which each batch is ordered, owned */
    double goodput;          /* share of wall time that trains, failures included; 1 when off */
    struct dt_assignment *assignment;  /* of the first iteration, owned */
    struct dt_program *program;        /* of the first iteration, owned */
    struct dt_durations durations;     /* of the first iteration, owned */
    struct dt_timeline timeline;       /* of the first iteration, owned */
    struct dt_explanation explanation; /* of the first iteration's timeline, owned */
    struct dt_sim_data data;
    uint64_t events; /* events processed in all */
};
enum {
    DT_SIM_BATCHES = 5,
    DT_SIM_DRAWS = 4000
}; /* global batches and draws behind an interval, at least */
typedef void dt_sim_progress_fn(void *ctx, int done, int total);
/* Where fewer than DT_SIM_BATCHES iterations are simulated, further global batches are evaluated without contention for
 * the interval of the report (programs of up to 262,144 ops). */
/* Simulates `plan` on the job's samples: assign -> compile -> durations -> event engine, per iteration. */
enum dt_status dt_sim_run(const struct dt_job *job, const struct dt_plan *plan,
                          struct dt_cost *cost, dt_sim_progress_fn *progress, void *ctx,
                          struct dt_error *err, struct dt_sim_result *out);
/* Only the time of the first iteration: that of dt_sim_run's timeline. */
enum dt_status dt_sim_first_s(const struct dt_job *job, const struct dt_plan *plan,
                              struct dt_cost *cost, struct dt_error *err, double *seconds);
void dt_sim_result_free(struct dt_sim_result *r);

#endif
