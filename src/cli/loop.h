/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * The parts of `disttrain loop`: layouts to try, what is predicted of them, what is measured. */
#ifndef DT_CLI_LOOP_H
#define DT_CLI_LOOP_H

#include "cli/session.h"
#include "exec/setup.h"

enum { LOOP_OVERRIDES_MAX = 16, LOOP_TEXT_MAX = 512, LOOP_DIR_MAX = 512, LOOP_PATH_MAX = 640 };

struct loop_layout {
    char name[64];            /* "colocated 1x1 2x1 1x2": pp x dp of each module */
    char over[LOOP_TEXT_MAX]; /* the override that states it: "plan={...}" */
    int ranks, threads;       /* threads of a rank */
    double predicted_s, measured_s;
};

struct loop {
    const struct dt_cli *cli;
    const char *job; /* path or name */
    int64_t steps, warm_up, ranks_max;
    double seconds; /* of each measurement of blocks */
    int cores;
    bool fp32; /* what training computes in */
    char dir[LOOP_DIR_MAX];  /* temporary folder */
    struct dt_samples *seen; /* sizes of what the measured steps train on */
    struct dt_samples *last; /* of the last of these steps */
    const char *runs;        /* the file that keeps its runs, predicted and measured, or NULL */
    struct loop_layout *layout;
    int n;
    size_t cap;
};

/* Layouts of up to ranks_max ranks that the job's batch allows (loop_layouts.c). */
enum dt_status loop_layouts(struct loop *l, const struct dt_job *job, struct dt_error *err);
/* Instead: the job's own plan with each way of reordering samples. */
enum dt_status loop_orders(struct loop *l, const struct dt_plan *plan, struct dt_error *err);

/* "FOLDER/profile-N.sql": blocks timed with N threads while all cores are busy (loop_run.c). */
enum dt_status loop_profile(struct loop *l, int threads, struct dt_error *err);
void loop_profile_path(const struct loop *l, int threads, char *buf, size_t size);
/* Trains some steps with the layout; the median iteration. */
enum dt_status loop_measure(struct loop *l, struct loop_layout *x, struct dt_error *err);
/* Simulates the same steps. */
enum dt_status loop_predict(struct loop *l, struct loop_layout *x, struct dt_error *err);

#endif
