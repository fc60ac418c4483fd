/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Residuals of a fitted curve as a picture. */
#include "fit/cost_curve.h"
#include "base/mem.h"
#include "base/text.h"
#include "report/html.h"

#include <math.h>

enum { LEFT = 64, RIGHT = 620, TOP = 40, BOTTOM = 300 };
#define SPAN                                                                                       \
    1.0 /* the axis shows errors of up to +- 100 %; what lies beyond stands on the border */

static double across(const struct dt_curve *c, double x)
{
    double lo = log10(c->point[0].x), hi = log10(c->point[c->n - 1].x);

    return hi > lo ? LEFT + (RIGHT - LEFT) * (log10(x) - lo) / (hi - lo) : (LEFT + RIGHT) / 2.0;
}

static double down(double error)
{
    error = error > SPAN ? SPAN : error < -SPAN ? -SPAN : error;
    return (TOP + BOTTOM) / 2.0 - error / SPAN * (BOTTOM - TOP) / 2.0;
}

static void line(struct dt_text *o, double error, const char *style)
{
    dt_text_add(o,
                "<path d=\"M%d %.1fH%d\" %s/><text x=\"%d\" y=\"%.1f\" text-anchor=\"end\">%+.0f "
                "%%</text>\n",
                LEFT, down(error), RIGHT, style, LEFT - 6, down(error) + 4, 100 * error);
}

enum dt_status dt_curve_svg(const struct dt_profile_table *t, const struct dt_curve *c,
                            struct dt_error *err, char **out)
{
    struct dt_text o = {0};
    double lo = log10(c->point[0].x), hi = log10(c->point[c->n - 1].x);

    dt_text_add(&o,
                "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 640 350\" "
                "font-family=\"sans-serif\" font-size=\"12\">\n"
                "<rect width=\"640\" height=\"350\" fill=\"white\"/>\n"
                "<text x=\"%d\" y=\"20\">%s %s on ",
                LEFT, dt_kop_family_names[c->family], dt_profile_table_phase_names[c->phase]);
    dt_html_escape(&o, t->devices[c->device]); /* a name of a file */
    dt_text_add(&o, ": t0 %.3g us, %d sizes, |error| median %.1f %%, p90 %.1f %%</text>\n",
                c->t0_ns * 1e-3, c->n, 100 * c->median_error, 100 * c->p90_error);
    line(&o, 0, "stroke=\"#444\"");
    line(&o, 0.1, "stroke=\"#bbb\" stroke-dasharray=\"4 3\"");
    line(&o, -0.1, "stroke=\"#bbb\" stroke-dasharray=\"4 3\"");
    line(&o, 0.5, "stroke=\"#eee\"");
    line(&o, -0.5, "stroke=\"#eee\"");
    for (int e = (int)ceil(lo); e <= (int)floor(hi); e++)
        dt_text_add(&o,
                    "<path d=\"M%.1f %dV%d\" stroke=\"#eee\"/><text x=\"%.1f\" y=\"%d\" "
                    "text-anchor=\"middle\">1e%d</text>\n",
                    across(c, pow(10, e)), TOP, BOTTOM, across(c, pow(10, e)), BOTTOM + 16, e);
    for (int i = 0; i < c->n; i++)
        dt_text_add(
            &o, "<circle cx=\"%.1f\" cy=\"%.1f\" r=\"2\" fill=\"#1f77b4\" fill-opacity=\"0.6\"/>\n",
            across(c, c->point[i].x), down(c->point[i].fitted_ns / c->point[i].ns - 1));
    dt_text_add(&o,
                "<text x=\"%d\" y=\"%d\" text-anchor=\"middle\">%s, fitted / measured - 1 "
                "upwards</text>\n</svg>\n",
                (LEFT + RIGHT) / 2, BOTTOM + 38, c->flops ? "flop" : "units moved");
    return dt_text_finish(&o, err, out);
}
