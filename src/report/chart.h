/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Charts: one description, drawn as an SVG file, as a fragment of a page or in characters.
 *
 *     struct dt_chart_series s = {.name = "MLLM-72B", .n = n, .x = gpus, .y = days, .low = p10, .high = p90};
 *     struct dt_chart c = {.title = "Time to 1 T tokens", .x = {.label = "GPUs", .log = true},
 *                          .y = {.label = "time", .unit = "days"}, .series = &s, .n_series = 1};
 *     dt_chart_svg(&c, DT_CHART_FILE, NULL, &err, &text);
 *
 * With .categories it is a chart of bars, one group (or stack) of them for each; without, of points and
 * lines over x.  Texts are UTF-8 and escaped; the same description gives the same bytes. */
#ifndef DT_REPORT_CHART_H
#define DT_REPORT_CHART_H

#include "base/status.h"

#include <stdbool.h>

/* Of a series: by place, or one that means something throughout a page (chart_style.c). */
enum dt_chart_colour {
    DT_CHART_AUTO,
    DT_CHART_BLUE,
    DT_CHART_ORANGE,
    DT_CHART_GREEN,
    DT_CHART_PURPLE,
    DT_CHART_SKY,
    DT_CHART_RED,
    DT_CHART_OLIVE,
    DT_CHART_GREY,
    /* shades of these, for stacks; not by place */
    DT_CHART_SILVER,
    DT_CHART_SLATE,
    DT_CHART_STONE,
    DT_CHART_PLUM,
    DT_CHART_AMBER,
    DT_CHART_SAND,
    DT_CHART_COLOUR_N
};

enum dt_chart_mark { DT_CHART_LINE_AND_POINTS, DT_CHART_LINE, DT_CHART_POINTS };

struct dt_chart_axis {
    const char *label, *unit; /* "time", "s": written "time [s]"; NULL = none */
    bool log;                 /* what is not above zero is left out, and the chart says so */
    bool zero;                /* a linear axis begins at zero; that of bars always does */
    double from, to;          /* the least that it spans beside the data; both 0: the data alone */
};
struct dt_chart_series {
    const char *name; /* in the legend; NULL = not there */
    enum dt_chart_mark mark;
    enum dt_chart_colour colour;
    int n;
    const double *x; /* [n], in any order (lines join neighbours in this order); NULL for bars */
    const double *y; /* [n]; NaN = nothing there, and a gap in a line */
    const double *low, *high; /* [n] whiskers; NULL = none, NaN = none there */
    const bool
        *front; /* [n] marked, and joined by a line with those of other series; NULL = none */
    const char *const
        *label; /* [n] said of a point when asked, and beside it if marked; NULL = none */
};
struct dt_chart_rule { /* a line across the chart: a capacity, a deadline */
    const char *name;
    double at;
    bool x; /* at a value of x, not of y (bars have only values of y) */
};
struct dt_chart {
    const char
        *title; /* drawn in a file and in characters; in a page for those who cannot see it */
    const char *summary; /* a sentence for those who cannot see it; NULL = none */
    struct dt_chart_axis x, y;
    const struct dt_chart_series *series;
    int n_series;
    const struct dt_chart_rule *rules;
    int n_rules;
    const char *front_name; /* of the marked points, for the legend; NULL = "front" */

    /* bars: every series has n = n_categories */
    const char *const *categories;
    int n_categories;
    bool stacked;    /* negative values go the other way from zero */
    bool horizontal; /* the y axis lies at the bottom; for long names */

    int width, height; /* of the picture, in px; 0 = 720, and what suits */
};

enum dt_chart_form {
    DT_CHART_FILE,    /* a file of its own with its style, light and dark */
    DT_CHART_FRAGMENT /* for a page that holds dt_chart_page_style() */
};
/* *out is the caller's (dt_free).  `id` begins the ids of a fragment (letters, digits, "-"), unlike any other of its page;
 * NULL for a file.  DT_ERR_INTERNAL where the description contradicts itself. */
enum dt_status dt_chart_svg(const struct dt_chart *c, enum dt_chart_form form, const char *id,
                            struct dt_error *err, char **out);

struct dt_chart_terminal {
    int width, height; /* columns and rows; 0 = 80 and what suits */
    bool colour;       /* ANSI escapes; else series differ by their marks alone */
};
/* The same in characters (Unicode), lines ended by "\n". */
enum dt_status dt_chart_text(const struct dt_chart *c, const struct dt_chart_terminal *t,
                             struct dt_error *err, char **out);

/* CSS for a page: the colours as variables of :root, light, dark and printed, and the classes of fragments.  Made once;
 * the caller's (dt_free). */
enum dt_status dt_chart_page_style(struct dt_error *err, char **out);
/* Class of what is filled with a colour ("dt-f1"), in fragments and files. */
const char *dt_chart_fill_class(enum dt_chart_colour colour);

#endif
