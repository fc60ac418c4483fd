/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Keys of a job that vary, and the points to evaluate it at.
 *
 *     KEY=ITEM,ITEM,...     cluster.nodes=12,24,48..192+48      search.strategy=disttrain,megatron-lm
 *
 *     ITEM    VALUE         as on the command line (YAML); commas inside of quotes and brackets are its own
 *             A..B+STEP     A, A + STEP, ... up to B
 *             A..B*FACTOR   A, A x FACTOR, ... up to B
 *             A..B          all whole numbers from A to B; of a random sample: any number between them
 *             A..B*         of a random sample: any number between them, evenly in its logarithm
 *
 * A range may end with a unit, "100..400*2 GB/s".  Between whole numbers (written without a point or an exponent) all
 * values are whole: those of a factor are rounded. */
#ifndef DT_CORE_JOB_JOB_AXES_H
#define DT_CORE_JOB_JOB_AXES_H

#include "base/mem.h"
#include "base/status.h"

#include <stdbool.h>

enum { DT_JOB_AXES_MAX = 8, DT_JOB_AXIS_VALUES_MAX = 1 << 14, DT_JOB_POINTS_MAX = 1 << 17 };

struct dt_job_axis {
    char key[128];
    /* the only item is a range without a step */
    bool between, log, whole;
    double from, to;
    char unit[32];
    int n; /* values otherwise */
    const char **value;
    struct dt_arena arena;
};
/* *out needs no dt_job_axis_free() when this fails. */
enum dt_status dt_job_axis_read(const char *text, struct dt_error *err, struct dt_job_axis *out);
void dt_job_axis_free(struct dt_job_axis *a);
/* Values that it has in a grid. */
int64_t dt_job_axis_grid(const struct dt_job_axis *a);

struct dt_job_points {
    int n, n_axes;
    const char **value; /* [n * n_axes], of point i and axis a at [i * n_axes + a] */
    struct dt_arena arena;
};
/* Every value of each axis with every value of the others, the last axis fastest. */
enum dt_status dt_job_points_grid(const struct dt_job_axis *axes, int n_axes, struct dt_error *err,
                                  struct dt_job_points *out);
/* A Latin hypercube of n points (McKay, Beckman and Conover 1979): each axis, cut into n parts that are equally likely,
 * has one point in each part. */
enum dt_status dt_job_points_sample(const struct dt_job_axis *axes, int n_axes, int n,
                                    uint64_t seed, struct dt_error *err, struct dt_job_points *out);
void dt_job_points_free(struct dt_job_points *p);

#endif
