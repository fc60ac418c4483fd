/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Where the time of an iteration goes, GPU by GPU: each instant of each GPU is one kind of computation, communication that
 * computation waits for, or idle for a reason.  Worked out from when ops began and ended alone, so that simulated and
 * executed runs are measured with one rule. */
#ifndef DT_REPORT_BREAKDOWN_H
#define DT_REPORT_BREAKDOWN_H

#include "report/chart.h"
#include "report/run_view.h"

enum dt_report_spent {
    DT_SPENT_FORWARD,
    DT_SPENT_BACKWARD,
    DT_SPENT_WEIGHT_GRAD,
    DT_SPENT_STEP,
    /* exposed: the next op begins when this ends */
    DT_SPENT_TRANSFER, /* messages between stages of a module */
    DT_SPENT_BOUNDARY, /* messages between modules */
    DT_SPENT_GATHER,
    DT_SPENT_SYNC,
    DT_SPENT_NORM,
    DT_SPENT_DATA,
    DT_SPENT_HOST,      /* parameters on their way to the host, or back */
    DT_SPENT_HOST_STEP, /* the optimizer's update by the host's cores */
    /* bubbles */
    DT_SPENT_FILL,   /* before the first op: the pipeline fills */
    DT_SPENT_STAGE,  /* for another stage of the module */
    DT_SPENT_MODULE, /* for another module */
    DT_SPENT_DRAIN, /* after the last backward: for the others, before the optimizer step and to the end */
    DT_SPENT_OTHER, /* between ops, for nothing that the run records */
    DT_SPENT_N
};
enum { DT_SPENT_EXPOSED = DT_SPENT_TRANSFER, DT_SPENT_BUBBLE = DT_SPENT_FILL };
struct dt_report_spent_kind {
    const char *name, *meaning;
    enum dt_chart_colour colour;
};
extern const struct dt_report_spent_kind dt_report_spent_kinds[DT_SPENT_N];

/* GPUs that hold one stage of the module that they belong to. */
struct dt_report_seat {
    int module, stage;
    int64_t gpus;
    double gpu_ns[DT_SPENT_N]; /* sums to gpus * makespan */
};
struct dt_report_breakdown {
    int n;
    struct dt_report_seat *seat; /* [n] in the order of modules and stages */
    struct dt_report_seat all;   /* module, stage -1 */
};
/* DT_ERR_RANGE where a view has no ops, or lanes share GPUs in more ways than any plan of ours. */
enum dt_status dt_report_breakdown_of(const struct dt_run_view *v, struct dt_error *err,
                                      struct dt_report_breakdown *out);
void dt_report_breakdown_free(struct dt_report_breakdown *b);
/* Share of the GPUs' time. */
double dt_report_spent_share(const struct dt_report_seat *s, enum dt_report_spent k);

#endif
