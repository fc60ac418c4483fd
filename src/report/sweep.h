/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Sweeps: a job at many points, kept in the runs file beside the runs (tables sweep and sweep_point of doc/formats.md).
 *
 * A sweep is known by its identity, which whoever makes it derives from all that its results depend on; a point by its
 * KEY=VALUEs.  Each result is written in a transaction of its own, so that an interrupted sweep goes on where it was. */
#ifndef DT_REPORT_SWEEP_H
#define DT_REPORT_SWEEP_H

#include "base/status.h"

#include <stdbool.h>
#include <stdint.h>

/* Numbers of a result: columns of sweep_point, members of JSON.  0 = not known for what the cluster may not state. */
#define DT_SWEEP_NUMBERS(X)                                                                        \
    X(iteration_s)                                                                                 \
    X(iteration_s_p10)                                                                             \
    X(iteration_s_p90)                                                                             \
    X(mfu)                                                                                         \
    X(mfu_cluster)                                                                                 \
    X(tokens_per_s)                                                                                \
    X(samples_per_s)                                                                               \
    X(bubble_fraction)                                                                             \
    X(exposed_comm_s)                                                                              \
    X(goodput)                                                                                     \
    X(memory_bytes_max)                                                                            \
    X(memory_bytes)                                                                                \
    X(tokens)                                                                                      \
    X(price_per_gpu_hour)                                                                          \
    X(watts_per_gpu)                                                                               \
    X(pue)                                                                                         \
    X(grams_co2_per_kwh)
/* The same; older files lack these columns, and their points have the iteration's. */
#define DT_SWEEP_LATER(X)                                                                          \
    X(iteration_s_mean)                                                                            \
    X(iteration_s_mean_p10)                                                                        \
    X(iteration_s_mean_p90)

/* Plain data: sent between processes as it is. */
struct dt_sweep_result {
    int32_t feasible;
    int32_t status;          /* enum dt_status of what is not feasible */
    int32_t gpus, gpus_used; /* of the cluster; by the plan */
    int32_t failures;        /* goodput counts failures and checkpoints */
    int32_t pad;
#define X(name) double name;
    DT_SWEEP_NUMBERS(X)
    DT_SWEEP_LATER(X)
#undef X
    char effort[16]; /* of the search; "kept" where the plan was */
    char plan[512];  /* the layouts on one line; "" of what is not feasible */
    char reason[1024];
};

struct dt_sweep_about {
    const char *identity; /* at most 127 bytes */
    const char *job_name, *job_json;
    const char *keys; /* that vary, as JSON: an array of strings */
    const char *started, *version;
};
struct dt_sweep_point {
    char *set; /* its KEY=VALUEs as JSON: an array of strings */
    struct dt_sweep_result r;
};

struct dt_sweep; /* open for writing */
/* Begins the sweep, or goes on with that of the same identity: *n points (dt_sweep_points_free) are there already. */
enum dt_status dt_sweep_open(const char *file, const struct dt_sweep_about *about,
                             struct dt_error *err, struct dt_sweep **out,
                             struct dt_sweep_point **points, int *n);
/* One more result, or another one of the same point. */
enum dt_status dt_sweep_add(struct dt_sweep *s, const char *set, const struct dt_sweep_result *r,
                            struct dt_error *err);
int64_t dt_sweep_id(const struct dt_sweep *s);
void dt_sweep_close(struct dt_sweep *s);

/* For readers: the sweep `id`, or the latest for 0. */
struct dt_sweep_data {
    int64_t id;
    char *job_name, *keys, *started;
    int n;
    struct dt_sweep_point *points; /* in the order of their texts */
};
enum dt_status dt_sweep_read(const char *file, int64_t id, struct dt_error *err,
                             struct dt_sweep_data *out);
void dt_sweep_data_free(struct dt_sweep_data *d);
void dt_sweep_points_free(struct dt_sweep_point *points, int n);

/* Of a long training, failures and checkpoints included; NaN where nothing is trained. */
double dt_sweep_token_s(const struct dt_sweep_result *r);
/* front[i]: no other point is at least as good in all of the n_goals numbers and better in one; less is better.
 * goal[i * n_goals + g]; a point with a NaN is on no front. */
void dt_sweep_front(const double *goal, int n, int n_goals, bool *front);

#endif
