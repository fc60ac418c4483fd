/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * A job at a point: planned and simulated with other KEY=VALUEs, many times in one process.
 *
 *     dt_points_open("mllm-72b-1296", NULL, &err, &points);
 *     for each point:
 *         dt_point_eval(points, &(struct dt_point_request){.overrides = keys, .n_overrides = 2}, &err, &p);
 *         ... p.feasible ? p.iteration_s : p.error.message ...
 *         dt_point_free(&p);
 *     dt_points_close(points);
 *
 * The numbers are those of `disttrain simulate JOB KEY=VALUE...`, to the last bit.  Profiles, samples, what the cost
 * model has worked out, timelines of plans and figures of simulations are kept between points where they are the same.
 * For one thread. */
#ifndef DT_CLI_POINT_H
#define DT_CLI_POINT_H

#include "cli/session.h"

struct dt_point {
    bool feasible;
    struct dt_error error; /* why not: no plan fits, a value is refused, the profile lacks rows */
    /* of a feasible one */
    int gpus, gpus_used; /* of the cluster; by the plan */
    double iteration_s, iteration_s_p10, iteration_s_p90;
    double iteration_s_mean, iteration_s_mean_p10,
        iteration_s_mean_p90; /* as in struct dt_report */
    double mfu, mfu_cluster, tokens_per_s, samples_per_s, bubble_fraction, exposed_comm_s;
    double goodput;       /* share of wall time that trains; 1 where failures are not simulated */
    double mem_bytes_max; /* of the fullest GPU */
    double tokens; /* of an iteration, in the mean: padding counts where sequences are padded */
    struct dt_cluster cluster;
    bool failures; /* they are simulated */
    bool searched; /* for the plan, which is not a stated one */
    enum dt_search_effort effort;
    struct dt_plan plan;
    char plan_text[512];           /* the layouts on one line */
    struct dt_search_stats search; /* all zero where the plan is kept */
    char *report;                  /* on request: the text of `simulate --json` */
};

/* What else is wanted while job, plans and simulation are at hand; a failure is that of the evaluation. */
typedef enum dt_status dt_point_visit_fn(void *ctx, const struct dt_session *s,
                                         const struct dt_sim_result *r, struct dt_error *err);

struct dt_point_request {
    const char *const *overrides; /* KEY=VALUE, the later ones win */
    int n_overrides;
    bool report;
    bool
        failures; /* simulated wherever the cluster states mtbf_gpu_hours and the job not whether */
    dt_point_visit_fn *visit; /* NULL = nobody; for feasible points only */
    void *ctx;
};

struct dt_points;
/* Reads the job's text (a file, "-", or the name of a shipped job) and that of the plan.json beside it (NULL: none). */
enum dt_status dt_points_open(const char *job, const char *plan_file, struct dt_error *err,
                              struct dt_points **out);
/* The same of a job's text that is at hand, such as that which a run keeps; `name` is the file that it was read from. */
enum dt_status dt_points_open_text(const char *name, const char *text, struct dt_error *err,
                                   struct dt_points **out);
void dt_points_close(struct dt_points *p);
/* Is the job valid with these, and the profile complete?  Nothing is planned; what is read for it is kept.  `visit`
 * (NULL: nobody) sees a session without plans and no simulation. */
enum dt_status dt_points_check(struct dt_points *p, const char *const *overrides, int n,
                               dt_point_visit_fn *visit, void *ctx, struct dt_error *err);
/* From here on no plan is searched for: points are evaluated with this one, as with `simulate --plan FILE`. */
enum dt_status dt_points_keep_plan(struct dt_points *p, const struct dt_plan *plan,
                                   struct dt_error *err);
/* Of the plan that is kept or beside the job; the same for all jobs without one. */
uint64_t dt_points_plan_digest(const struct dt_points *p);
/* A point that is refused is DT_OK, not feasible, and says why (where there is no visitor, also one whose later iterations do
 * not fit into memory, which the first alone was planned with); it fails when memory runs out or the visitor does. */
enum dt_status dt_point_eval(struct dt_points *p, const struct dt_point_request *q,
                             struct dt_error *err, struct dt_point *out);
void dt_point_free(struct dt_point *p);

#endif
