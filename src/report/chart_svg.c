/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING. */
#include "report/chart_impl.h"

#include "base/mem.h"
#include "report/html.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

enum { WIDTH = 720, HEIGHT = 380, PAD = 12, LEGEND_ROW = 18, BAR = 18, BAR_MIN = 7 };
#define EM 6.6 /* px of a mean character of 12 px */

struct draw {
    const struct dt_chart *c;
    struct dt_text *t;
    struct dt_chart_scale x, y;
    double left, top, w, h; /* of the plot */
    int width, height;      /* of the picture */
    double slot;            /* px of a category */
    bool slant;             /* names of categories */
};

static int characters(const char *s)
{
    int n = 0;

    for (; s && *s; s++)
        n += ((unsigned char)*s & 0xc0) != 0x80;
    return n;
}

/* At most `most` characters, "…" in place of the rest. */
static void shortened(struct dt_text *t, const char *s, int most)
{
    char part[256];
    size_t at = 0;
    int n = 0;

    if (characters(s) <= most) {
        dt_html_escape(t, s);
        return;
    }
    for (; s[at] && at + 4 < sizeof part; at++) {
        n += ((unsigned char)s[at] & 0xc0) != 0x80;
        if (n == most)
            break;
    }
    snprintf(part, sizeof part, "%.*s", (int)at, s);
    dt_html_escape(t, part);
    dt_text_add(t, "…");
}

static double px(const struct draw *d, double x)
{
    return d->left + d->w * dt_chart_scale_at(&d->x, x);
}

static double py(const struct draw *d, double y)
{
    return d->top + d->h * (1 - dt_chart_scale_at(&d->y, y));
}

static void line(struct dt_text *t, const char *class, double x1, double y1, double x2, double y2)
{
    dt_text_add(t, "<line class=\"%s\" x1=\"%.1f\" y1=\"%.1f\" x2=\"%.1f\" y2=\"%.1f\"/>", class,
                x1, y1, x2, y2);
}

static void text_at(struct dt_text *t, const char *class, double x, double y, const char *anchor,
                    const char *s)
{
    dt_text_add(t, "<text%s%s%s x=\"%.1f\" y=\"%.1f\" text-anchor=\"%s\">",
                class ? " class=\"" : "", class ? class : "", class ? "\"" : "", x, y, anchor);
    dt_html_escape(t, s);
    dt_text_add(t, "</text>\n");
}

/* ---- legend ---- */

enum mark { MARK_POINT, MARK_LINE, MARK_BAR };
static const char *const dashes[] = {"none", "7 3", "2 3", "9 3 2 3"};

static void shape(struct dt_text *t, int series, enum dt_chart_colour colour, double x, double y,
                  double r)
{
    const char *class = dt_chart_fill_class(colour);

    switch (series % 4) {
    case 0:
        dt_text_add(t, "<circle class=\"%s\" cx=\"%.1f\" cy=\"%.1f\" r=\"%.1f\"/>", class, x, y, r);
        break;
    case 1:
        dt_text_add(t, "<path class=\"%s\" d=\"M%.1f %.1fh%.1fv%.1fh%.1fz\"/>", class, x - r + 0.5,
                    y - r + 0.5, 2 * r - 1, 2 * r - 1, 1 - 2 * r);
        break;
    case 2:
        dt_text_add(t, "<path class=\"%s\" d=\"M%.1f %.1fl%.1f %.1fl%.1f %.1fl%.1f %.1fz\"/>",
                    class, x, y - r - 0.5, r + 0.5, r + 0.5, -r - 0.5, r + 0.5, -r - 0.5, -r - 0.5);
        break;
    case 3:
        dt_text_add(t, "<path class=\"%s\" d=\"M%.1f %.1fl%.1f %.1fh%.1fz\"/>", class, x,
                    y - r - 0.5, r + 0.5, 2 * r, -2 * r - 1);
        break;
    }
}

static bool has_points(const struct dt_chart *c, int k)
{
    return !dt_chart_is_bars(c) && c->series[k].mark != DT_CHART_LINE;
}

static bool has_line(const struct dt_chart *c, int k)
{
    return !dt_chart_is_bars(c) && c->series[k].mark != DT_CHART_POINTS;
}

static void swatch(const struct draw *d, int k, double x, double y)
{
    enum dt_chart_colour colour = dt_chart_colour_of(d->c, k);

    if (dt_chart_is_bars(d->c))
        dt_text_add(d->t, "<rect class=\"%s\" x=\"%.1f\" y=\"%.1f\" width=\"12\" height=\"12\"/>",
                    dt_chart_fill_class(colour), x + 2, y - 10);
    if (has_line(d->c, k))
        dt_text_add(
            d->t,
            "<line class=\"dt-s%d dt-line\" stroke-dasharray=\"%s\" x1=\"%.1f\" y1=\"%.1f\" "
            "x2=\"%.1f\" y2=\"%.1f\"/>",
            colour, dashes[k % 4], x, y - 4, x + 18, y - 4);
    if (has_points(d->c, k))
        shape(d->t, k, colour, x + 9, y - 4, 3.5);
}

/* Places entries in rows from y on and draws them, or (t NULL) only counts the rows. */
static int legend(const struct draw *d, const char *front, bool drawn, double y)
{
    double x = PAD;
    int rows = 0;

    for (int k = 0; k <= d->c->n_series; k++) {
        const char *name = k < d->c->n_series ? d->c->series[k].name : front;
        double w;

        if (!name)
            continue;
        w = 24 + EM * characters(name) + 16;
        if (rows == 0 || x + w > d->width) {
            rows++;
            x = PAD;
        }
        if (drawn) {
            double at = y + LEGEND_ROW * rows - 4;

            if (k < d->c->n_series) {
                swatch(d, k, x, at);
            } else {
                line(d->t, "dt-front", x, at - 4, x + 18, at - 4);
                dt_text_add(
                    d->t, "<circle class=\"dt-front dt-ring\" cx=\"%.1f\" cy=\"%.1f\" r=\"5.5\"/>",
                    x + 9, at - 4);
            }
            text_at(d->t, NULL, x + 24, at, "start", name);
        }
        x += w;
    }
    return rows;
}

/* ---- axes ---- */

static void y_axis(const struct draw *d)
{
    char label[64];
    bool lies = d->c->horizontal;

    for (int k = 0; k < d->y.n_ticks; k++) {
        double at = dt_chart_scale_at(&d->y, d->y.tick[k]);
        double v = lies ? d->left + d->w * at : d->top + d->h * (1 - at);

        dt_chart_scale_label(&d->y, d->y.tick[k], label, sizeof label);
        if (lies) {
            line(d->t, "dt-grid", v, d->top, v, d->top + d->h);
            text_at(d->t, "dt-soft", v, d->top + d->h + 16, "middle", label);
        } else {
            line(d->t, "dt-grid", d->left, v, d->left + d->w, v);
            text_at(d->t, "dt-soft", d->left - 6, v + 4, "end", label);
        }
    }
    dt_chart_axis_title(&d->c->y, label, sizeof label);
    if (lies)
        text_at(d->t, NULL, d->left + d->w / 2, d->top + d->h + 34, "middle", label);
    else
        text_at(d->t, NULL, PAD, d->top - 10, "start", label);
}

static void categories(const struct draw *d)
{
    for (int i = 0; i < d->c->n_categories; i++) {
        if (d->c->horizontal) {
            dt_text_add(d->t, "<text x=\"%.1f\" y=\"%.1f\" text-anchor=\"end\">", d->left - 8,
                        d->top + d->slot * (i + 0.5) + 4);
        } else {
            double x = d->left + d->slot * (i + 0.5), y = d->top + d->h + 16;

            if (d->slant)
                dt_text_add(d->t,
                            "<text text-anchor=\"end\" transform=\"translate(%.1f %.1f) "
                            "rotate(-35)\">",
                            x + 4, y - 2);
            else
                dt_text_add(d->t, "<text x=\"%.1f\" y=\"%.1f\" text-anchor=\"middle\">", x, y);
        }
        shortened(d->t, d->c->categories[i], 40);
        dt_text_add(d->t, "</text>\n");
    }
}

static void x_axis(const struct draw *d)
{
    double below = d->top + d->h, last = -1000;
    char label[128];

    for (int k = 0; k < d->x.n_ticks; k++) {
        double x = px(d, d->x.tick[k]), half;

        line(d->t, "dt-grid", x, d->top, x, below);
        dt_chart_scale_label(&d->x, d->x.tick[k], label, sizeof label);
        half = EM * characters(label) / 2;
        if (x - half < last + 6) /* it would touch the one before */
            continue;
        last = x + half;
        text_at(d->t, "dt-soft", x, below + 16, "middle", label);
    }
    line(d->t, "dt-axis", d->left, below, d->left + d->w, below);
    dt_chart_axis_title(&d->c->x, label, sizeof label);
    text_at(d->t, NULL, d->left + d->w / 2, below + 34, "middle", label);
}

static void rules(const struct draw *d)
{
    for (int k = 0; k < d->c->n_rules; k++) {
        const struct dt_chart_rule *r = &d->c->rules[k];
        bool upright = r->x || d->c->horizontal;
        double at;

        if (!dt_chart_shows(r->x ? &d->c->x : &d->c->y, r->at))
            continue;
        if (upright) {
            double v = dt_chart_scale_at(r->x ? &d->x : &d->y, r->at);

            at = d->left + d->w * v;
            line(d->t, "dt-rule", at, d->top, at, d->top + d->h);
            text_at(d->t, NULL, at + (v > 0.5 ? -4 : 4), d->top - 5, v > 0.5 ? "end" : "start",
                    r->name);
        } else {
            at = py(d, r->at);
            line(d->t, "dt-rule", d->left, at, d->left + d->w, at);
            text_at(d->t, NULL, d->left + d->w, at - 5, "end", r->name);
        }
    }
}

/* ---- marks ---- */

/* "MLLM-72B: GPUs 96, time 12.3 days (11.9 to 12.8)" */
static void told(const struct draw *d, const struct dt_chart_series *s, int i)
{
    const struct dt_chart *c = d->c;
    char value[96];

    dt_text_add(d->t, "<title>");
    if (s->name) {
        dt_html_escape(d->t, s->name);
        dt_text_add(d->t, ": ");
    }
    if (dt_chart_is_bars(c)) {
        dt_html_escape(d->t, c->categories[i]);
    } else {
        if (s->label && s->label[i]) {
            dt_html_escape(d->t, s->label[i]);
            dt_text_add(d->t, ", ");
        }
        dt_chart_value(s->x[i], c->x.unit, value, sizeof value);
        dt_html_escape(d->t, c->x.label);
        dt_text_add(d->t, " ");
        dt_html_escape(d->t, value);
    }
    dt_chart_value(s->y[i], c->y.unit, value, sizeof value);
    dt_text_add(d->t, ", ");
    dt_html_escape(d->t, dt_chart_is_bars(c) ? NULL : c->y.label);
    dt_text_add(d->t, "%s", dt_chart_is_bars(c) || !c->y.label ? "" : " ");
    dt_html_escape(d->t, value);
    if (dt_chart_has_range(c, s, i)) {
        dt_chart_value(s->low[i], NULL, value, sizeof value);
        dt_text_add(d->t, " (%s to ", value);
        dt_chart_value(s->high[i], NULL, value, sizeof value);
        dt_text_add(d->t, "%s)", value);
    }
    dt_text_add(d->t, "</title>");
}

static void whisker(const struct draw *d, int series, double at, double low, double high)
{
    const struct dt_chart *c = d->c;
    double a = dt_chart_scale_at(&d->y, low), b = dt_chart_scale_at(&d->y, high);
    int colour = dt_chart_is_bars(c) ? 0 : (int)dt_chart_colour_of(c, series);
    char class[48];

    snprintf(class, sizeof class, colour ? "dt-s%d dt-whisker" : "dt-axis", colour);
    dt_text_add(d->t, "<path class=\"%s\" d=\"", class);
    if (c->horizontal)
        dt_text_add(d->t, "M%.1f %.1fH%.1fM%.1f %.1fv6M%.1f %.1fv6\"/>", d->left + d->w * a, at,
                    d->left + d->w * b, d->left + d->w * a, at - 3, d->left + d->w * b, at - 3);
    else
        dt_text_add(d->t, "M%.1f %.1fV%.1fM%.1f %.1fh6M%.1f %.1fh6\"/>", at,
                    d->top + d->h * (1 - a), d->top + d->h * (1 - b), at - 3,
                    d->top + d->h * (1 - a), at - 3, d->top + d->h * (1 - b));
}

/* One column of pixels of a line of more points than pixels: its first, least, most and last, in the
 * order in which they come. */
struct column {
    int at[4], n;
};

static void add(struct column *c, int i)
{
    for (int k = 0; k < c->n; k++)
        if (c->at[k] == i)
            return;
    c->at[c->n++] = i;
    for (int k = c->n - 1; k > 0 && c->at[k] < c->at[k - 1]; k--) {
        int swap = c->at[k];

        c->at[k] = c->at[k - 1];
        c->at[k - 1] = swap;
    }
}

static void path_line(const struct draw *d, const struct dt_chart_series *s, int k)
{
    bool pen = false, thin = s->n > 2 * d->w;

    dt_text_add(d->t, "<path class=\"dt-s%d dt-line\" stroke-dasharray=\"%s\" d=\"",
                dt_chart_colour_of(d->c, k), dashes[k % 4]);
    for (int i = 0; i < s->n;) {
        struct column col = {{i}, 1};
        int least = i, most = i, j = i + 1;

        if (!dt_chart_has(d->c, s, i)) {
            pen = false;
            i++;
            continue;
        }
        for (; thin && j < s->n && dt_chart_has(d->c, s, j) &&
               floor(px(d, s->x[j])) == floor(px(d, s->x[i]));
             j++) {
            least = s->y[j] < s->y[least] ? j : least;
            most = s->y[j] > s->y[most] ? j : most;
        }
        add(&col, least);
        add(&col, most);
        add(&col, j - 1);
        for (int q = 0; q < col.n; q++) {
            dt_text_add(d->t, "%s%.1f %.1f", pen ? "L" : "M", px(d, s->x[col.at[q]]),
                        py(d, s->y[col.at[q]]));
            pen = true;
        }
        i = j;
    }
    dt_text_add(d->t, "\">");
    if (s->name) {
        dt_text_add(d->t, "<title>");
        dt_html_escape(d->t, s->name);
        dt_text_add(d->t, "</title>");
    }
    dt_text_add(d->t, "</path>\n");
}

static void points(const struct draw *d, const struct dt_chart_series *s, int k)
{
    for (int i = 0; i < s->n; i++) {
        if (!dt_chart_has(d->c, s, i))
            continue;
        dt_text_add(d->t, "<g>");
        told(d, s, i);
        if (dt_chart_has_range(d->c, s, i))
            whisker(d, k, px(d, s->x[i]), s->low[i], s->high[i]);
        shape(d->t, k, dt_chart_colour_of(d->c, k), px(d, s->x[i]), py(d, s->y[i]), 3.5);
        dt_text_add(d->t, "</g>\n");
    }
}

static void front(const struct draw *d, const struct dt_chart_place *at, int n)
{
    if (n == 0)
        return;
    dt_text_add(d->t, "<path class=\"dt-front\" d=\"");
    for (int i = 0; i < n; i++) {
        const struct dt_chart_series *s = &d->c->series[at[i].series];

        dt_text_add(d->t, "%s%.1f %.1f", i ? "L" : "M", px(d, s->x[at[i].point]),
                    py(d, s->y[at[i].point]));
    }
    dt_text_add(d->t, "\"/>\n");
    for (int i = 0; i < n; i++) {
        const struct dt_chart_series *s = &d->c->series[at[i].series];
        double x = px(d, s->x[at[i].point]), y = py(d, s->y[at[i].point]);
        const char *label = s->label ? s->label[at[i].point] : NULL;
        bool right = label && x + 10 + EM * characters(label) < d->width;

        dt_text_add(
            d->t, "<circle class=\"dt-front dt-ring\" cx=\"%.1f\" cy=\"%.1f\" r=\"6.5\"/>\n", x, y);
        if (label)
            text_at(d->t, NULL, right ? x + 9 : x - 9, y - 7, right ? "start" : "end", label);
    }
}

static void bar(const struct draw *d, int k, int i, double from, double to, double at, double thick)
{
    double a = dt_chart_scale_at(&d->y, fmin(from, to)),
           b = dt_chart_scale_at(&d->y, fmax(from, to));

    dt_text_add(d->t, "<rect class=\"%s\" ", dt_chart_fill_class(dt_chart_colour_of(d->c, k)));
    if (d->c->horizontal)
        dt_text_add(d->t, "x=\"%.2f\" y=\"%.1f\" width=\"%.2f\" height=\"%.1f\">",
                    d->left + d->w * a, at, d->w * (b - a), thick);
    else
        dt_text_add(d->t, "x=\"%.1f\" y=\"%.2f\" width=\"%.1f\" height=\"%.2f\">", at,
                    d->top + d->h * (1 - b), thick, d->h * (b - a));
    told(d, &d->c->series[k], i);
    dt_text_add(d->t, "</rect>\n");
}

static void bars(const struct draw *d)
{
    const struct dt_chart *c = d->c;
    int beside = c->stacked || c->n_series == 0 ? 1 : c->n_series;
    double room = d->slot * (c->n_categories > 1 ? 0.76 : 0.6), thick = room / beside;
    double begin = c->horizontal ? d->top : d->left;

    for (int i = 0; i < c->n_categories; i++) {
        double up = 0, down = 0;

        for (int k = 0; k < c->n_series; k++) {
            const struct dt_chart_series *s = &c->series[k];
            double at = begin + d->slot * i + (d->slot - room) / 2 + (c->stacked ? 0 : thick * k);
            double *sum = s->y[i] < 0 ? &down : &up, from = c->stacked ? *sum : 0;

            if (!dt_chart_has(c, s, i))
                continue;
            bar(d, k, i, from, from + s->y[i], at, thick);
            *sum += c->stacked ? s->y[i] : 0;
            if (dt_chart_has_range(c, s, i))
                whisker(d, k, at + thick / 2, s->low[i], s->high[i]);
        }
    }
    if (c->horizontal) {
        double zero = d->left + d->w * dt_chart_scale_at(&d->y, 0);

        line(d->t, "dt-axis", zero, d->top, zero, d->top + d->h);
    } else {
        line(d->t, "dt-axis", d->left, py(d, 0), d->left + d->w, py(d, 0));
    }
}

/* ---- the picture ---- */

static int longest_category(const struct dt_chart *c)
{
    int most = 0;

    for (int i = 0; i < c->n_categories; i++) {
        int n = characters(c->categories[i]);

        most = n > most ? n : most;
    }
    return most < 40 ? most : 40;
}

static double widest_tick(const struct draw *d)
{
    char label[64];
    int most = 0;

    for (int k = 0; k < d->y.n_ticks; k++) {
        dt_chart_scale_label(&d->y, d->y.tick[k], label, sizeof label);
        most = characters(label) > most ? characters(label) : most;
    }
    return EM * most;
}

static void lay_out(struct draw *d, bool titled, const char *front_name)
{
    const struct dt_chart *c = d->c;
    bool bars_on = dt_chart_is_bars(c), upright_rules = false;
    int per = bars_on && !c->stacked && c->n_series > 1 ? c->n_series : 1, rows;
    double below = 46;

    d->width = c->width > 0 ? c->width : WIDTH;
    rows = legend(d, front_name, false, 0);
    d->top = (titled ? 32 : 6) + LEGEND_ROW * rows + 4;
    for (int k = 0; k < c->n_rules; k++)
        upright_rules |= c->rules[k].x || c->horizontal;
    if (!c->horizontal && (c->y.label || c->y.unit))
        d->top += 22;
    else if (upright_rules)
        d->top += 16;
    dt_chart_scales(c, d->width / 110, c->horizontal ? d->width / 110 : 6, &d->x, &d->y);
    d->left = PAD + (c->horizontal ? 8 + EM * longest_category(c) : 6 + widest_tick(d));
    d->w = d->width - d->left - 24;
    d->height = c->height > 0 ? c->height : HEIGHT;
    if (c->horizontal && c->height <= 0) {
        double each = per > 1 ? fmax(BAR_MIN * per, BAR) + 6 : BAR + 6;

        d->height = (int)(d->top + each * c->n_categories + below);
    }
    if (bars_on && !c->horizontal && c->n_categories > 0) {
        d->slant = EM * longest_category(c) > d->w / c->n_categories - 4;
        below = d->slant ? 24 + 0.58 * EM * longest_category(c) : 26;
    }
    if (dt_chart_left_out(c) > 0)
        below += 18;
    d->h = fmax(d->height - d->top - below, 40);
    d->height = (int)(d->top + d->h + below);
    d->slot = (c->horizontal ? d->h : d->w) / (c->n_categories > 0 ? c->n_categories : 1);
}

static void head(const struct draw *d, enum dt_chart_form form, const char *id)
{
    struct dt_text *t = d->t;
    const char *summary = d->c->summary ? d->c->summary : d->c->title;

    dt_text_add(t,
                "<svg xmlns=\"http://www.w3.org/2000/svg\" class=\"dt-chart\" width=\"%d\" "
                "height=\"%d\" viewBox=\"0 0 %d %d\" role=\"img\" aria-labelledby=\"%s-t %s-d\">\n",
                d->width, d->height, d->width, d->height, id, id);
    dt_text_add(t, "<title id=\"%s-t\">", id);
    dt_html_escape(t, d->c->title);
    dt_text_add(t, "</title><desc id=\"%s-d\">", id);
    dt_html_escape(t, summary);
    dt_text_add(t, "</desc>\n");
    if (form == DT_CHART_FRAGMENT)
        return;
    dt_chart_file_style(t);
    dt_text_add(t, "<rect class=\"dt-paper\" width=\"100%%\" height=\"100%%\"/>\n");
    if (d->c->title)
        text_at(t, "dt-title", PAD, 24, "start", d->c->title);
}

static void foot(const struct draw *d)
{
    int n = dt_chart_left_out(d->c);
    char note[128];

    if (n > 0) {
        snprintf(note, sizeof note,
                 "%d value%s not shown: a logarithmic axis shows none at or below zero", n,
                 dt_plural(n));
        text_at(d->t, "dt-soft", PAD, d->height - 6, "start", note);
    }
    if (d->y.empty)
        text_at(d->t, "dt-soft", d->left + d->w / 2, d->top + d->h / 2, "middle", "no data");
    dt_text_add(d->t, "</svg>\n");
}

enum dt_status dt_chart_svg(const struct dt_chart *c, enum dt_chart_form form, const char *id,
                            struct dt_error *err, char **out)
{
    struct dt_text t = {0};
    struct draw d = {.c = c, .t = &t};
    struct dt_chart_place *at = NULL;
    const char *front_name;
    int n = 0;

    DT_TRY(dt_chart_check(c, err));
    DT_TRY(dt_chart_front(c, err, &at, &n));
    front_name = n == 0 ? NULL : c->front_name ? c->front_name : "front";
    lay_out(&d, form == DT_CHART_FILE && c->title, front_name);
    head(&d, form, id ? id : "chart");
    legend(&d, front_name, true, form == DT_CHART_FILE && c->title ? 32 : 6);
    y_axis(&d);
    if (dt_chart_is_bars(c)) {
        bars(&d);
        categories(&d);
    } else {
        x_axis(&d);
        for (int k = 0; k < c->n_series; k++)
            if (has_line(c, k))
                path_line(&d, &c->series[k], k);
        for (int k = 0; k < c->n_series; k++)
            if (has_points(c, k))
                points(&d, &c->series[k], k);
        front(&d, at, n);
    }
    rules(&d);
    foot(&d);
    dt_free(at);
    return dt_text_finish(&t, err, out);
}
