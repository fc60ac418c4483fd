/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Pictures of an iteration: a row for each stage of every module that has GPUs of its own, of one replica or as many as show
 * all guests, with what its GPUs do for other modules; idle time is blank. */
#ifndef DT_REPORT_TIMELINE_DRAW_H
#define DT_REPORT_TIMELINE_DRAW_H

#include "report/chart.h"
#include "report/run_view.h"

struct dt_report_timeline_text {
    const char *title;    /* job, cluster and result */
    const char *subtitle; /* what is seen; NULL = none */
    const char *unit;     /* what a lane consists of: "GPU", "process" */
    int64_t
        span_ns; /* what the width stands for, for several runs on one scale; less than the makespan: that */
};
/* SVG text: the caller's (dt_free).  Where there are more ops than eyes tell apart, neighbours become one bar.  `id` as for
 * dt_chart_svg; a fragment's bars lie in an inner <svg class="dt-time">, whose viewBox zooms them. */
enum dt_status dt_report_timeline_svg(const struct dt_run_view *v,
                                      const struct dt_report_timeline_text *words,
                                      enum dt_chart_form form, const char *id, struct dt_error *err,
                                      char **out);
/* The same in characters, for small pipelines: columns are equal parts of the iteration, microbatches are numbered. */
enum dt_status dt_report_timeline_text(const struct dt_run_view *v,
                                       const struct dt_report_timeline_text *words,
                                       const struct dt_chart_terminal *term, struct dt_error *err,
                                       char **out);

/* The kinds of time that pictures and sums tell apart. */
enum dt_report_time {
    DT_TIME_FORWARD,
    DT_TIME_BACKWARD,
    DT_TIME_WEIGHT_GRAD,
    DT_TIME_STEP,
    DT_TIME_COLLECTIVE,
    DT_TIME_TRANSFER,
    DT_TIME_DATA,
    DT_TIME_HOST,
    DT_TIME_N
};
struct dt_report_time_kind {
    const char *name, *mark; /* for a legend; one character */
    enum dt_chart_colour colour;
};
extern const struct dt_report_time_kind dt_report_time_kinds[DT_TIME_N];
enum dt_report_time dt_report_time_of(enum dt_op_kind kind);

#endif
