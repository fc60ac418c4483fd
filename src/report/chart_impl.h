/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * What the two drawings of a chart share. */
#ifndef DT_REPORT_CHART_IMPL_H
#define DT_REPORT_CHART_IMPL_H

#include "base/text.h"
#include "report/chart.h"

#include <stddef.h>

enum { DT_CHART_TICKS_MAX = 40 };

struct dt_chart_scale {
    bool log, empty;
    double from, to;
    int n_ticks;
    double tick[DT_CHART_TICKS_MAX];
    double step; /* of a linear scale's ticks */
};
/* Round limits and ticks around what an axis spans; about `want` ticks. */
void dt_chart_scale_fit(struct dt_chart_scale *s, const struct dt_chart_axis *axis, double least,
                        double most, int want);
/* 0 at the beginning of the axis, 1 at its end. */
double dt_chart_scale_at(const struct dt_chart_scale *s, double v);
/* A tick's number, with as many decimals as the ticks need: "1,296", "0.25", "2.5 M". */
void dt_chart_scale_label(const struct dt_chart_scale *s, double v, char *buf, size_t size);
/* A value as people read it, with four figures and its unit. */
void dt_chart_value(double v, const char *unit, char *buf, size_t size);
/* "time [s]" */
void dt_chart_axis_title(const struct dt_chart_axis *a, char *buf, size_t size);

bool dt_chart_is_bars(const struct dt_chart *c);
/* Can the axis show it. */
bool dt_chart_shows(const struct dt_chart_axis *a, double v);
/* Point i of a series is in the picture. */
bool dt_chart_has(const struct dt_chart *c, const struct dt_chart_series *s, int i);
/* Both limits of a whisker can be shown. */
bool dt_chart_has_range(const struct dt_chart *c, const struct dt_chart_series *s, int i);
enum dt_status dt_chart_check(const struct dt_chart *c, struct dt_error *err);
/* Scales of both axes; of bars only y is set. */
void dt_chart_scales(const struct dt_chart *c, int want_x, int want_y, struct dt_chart_scale *x,
                     struct dt_chart_scale *y);
enum dt_chart_colour dt_chart_colour_of(const struct dt_chart *c, int series);
/* Values that are there but that a logarithmic axis cannot show. */
int dt_chart_left_out(const struct dt_chart *c);
/* Marked points of all series in order of x (then y): *at is an array of {series, point} pairs, the caller's. */
struct dt_chart_place {
    int series, point;
};
enum dt_status dt_chart_front(const struct dt_chart *c, struct dt_error *err,
                              struct dt_chart_place **at, int *n);
/* The style of a file of its own. */
void dt_chart_file_style(struct dt_text *t);

#endif
