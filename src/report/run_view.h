/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * One iteration of a run as pictures and sums need it, simulated or executed, in memory or from the runs file: lanes, their
 * ops with begin and end, and which GPUs they share. */
#ifndef DT_REPORT_RUN_VIEW_H
#define DT_REPORT_RUN_VIEW_H

#include "core/schedule/timeline.h"
#include "report/compare.h"

struct dt_run_view_op {
    uint8_t kind; /* enum dt_op_kind */
    uint8_t chunk, part;
    int32_t mb;   /* -1 = of none */
    int32_t peer; /* the other lane of a message; -1 = none */
    int64_t bytes, begin_ns, end_ns;
};
struct dt_run_view_lane {
    int module, replica, stage, gpus;
    int64_t first_gpu;
    uint32_t first, n; /* ops, in the order of the lane */
};
struct dt_run_view_module {
    char name[64];
    int replicas, stages; /* dp, pp */
    int64_t gpus;         /* of all its lanes */
    bool guest;           /* the plan lays it on another's GPUs */
    int host;             /* the module on whose GPUs it lies; itself, if they are its own */
    bool steps_on_host;   /* its optimizer is offloaded: GPUs are idle during its steps */
};
struct dt_run_view {
    int n_modules, n_lanes;
    struct dt_run_view_module module[DT_MAX_MODULES];
    struct dt_run_view_lane *lane; /* [n_lanes] */
    uint32_t n_ops;
    struct dt_run_view_op *op; /* [n_ops] */
    int64_t makespan_ns;
    int64_t gpus; /* of all lanes, those that several share counted once */
};
/* *out is the caller's (dt_run_view_free). */
enum dt_status dt_run_view_of(const struct dt_program *p, const struct dt_model *m,
                              const struct dt_timeline *t, struct dt_error *err,
                              struct dt_run_view *out);
/* Of a run in a runs file; without ops where it has kept none.  The makespan is that of the run. */
enum dt_status dt_run_view_read(const struct dt_run_ref *run, struct dt_error *err,
                                struct dt_run_view *out);
void dt_run_view_free(struct dt_run_view *v);
/* Whose optimizer steps are the host's, by the plan of a run on GPUs. */
void dt_run_view_offload(struct dt_run_view *v, const struct dt_plan *p);
/* Works out hosts and GPUs from the lanes; those that make views call it. */
enum dt_status dt_run_view_seat(struct dt_run_view *v, struct dt_error *err);

enum { DT_RUN_VIEW_ROWS_MAX = 160 };
/* A row of a picture: a lane of a module that has GPUs of its own, and all lanes of other modules that share GPUs with it. */
struct dt_run_view_row {
    int lane;
    int n_guests, *guest; /* in the same block as the rows */
};
/* A row for each stage, of the replica that has most guests, the first of such; and one for another replica as long as stages of
 * guests are left that no row of the stage has.  Rows in the order of the stages, and how many were more than that; *out is the caller's
 * (dt_free). */
enum dt_status dt_run_view_rows(const struct dt_run_view *v, struct dt_error *err,
                                struct dt_run_view_row **out, int *n, int *more);
/* Is an earlier guest of the row of the same stage as this one?  They do alike, on other GPUs of the row's. */
bool dt_run_view_row_again(const struct dt_run_view *v, const struct dt_run_view_row *r, int guest);
/* "llm"; "llm + encoder" where these share all of their GPUs. */
void dt_run_view_modules_name(const struct dt_run_view *v, int module, char *buf, size_t size);
/* "llm stage 3", or without where there is one stage. */
void dt_run_view_stage_name(const struct dt_run_view *v, int module, int stage, char *buf,
                            size_t size);
/* The same; "llm stage 3 replica 1" of another than the first. */
void dt_run_view_row_name(const struct dt_run_view *v, const struct dt_run_view_row *r, char *buf,
                          size_t size);
/* "4 of 1,280 GPUs, replica 0 of 64, with encoder"; `unit`: "GPU", "process". */
void dt_run_view_row_note(const struct dt_run_view *v, const struct dt_run_view_row *r,
                          const char *unit, char *buf, size_t size);

#endif
