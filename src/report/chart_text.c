/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Charts in characters.  Lines are drawn with dots of Braille patterns, 2 x 4 to a character; series are
 * told apart by the marks of their points, and by colour where there is any. */
#include "report/chart_impl.h"

#include "base/mem.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

enum { COLUMNS = 80, COLUMNS_MIN = 40, ROWS = 16, ROWS_MIN = 5, NAME_MAX_SHARE = 40 };

static const char *const marks[] = {"●", "■", "◆", "▲", "○", "□", "◇", "△"};
static const char *const fills[] = {"█", "▓", "▒", "░", "▚", "▞", "▤", "▥"};
enum { MARKS = sizeof marks / sizeof marks[0] };

struct cell {
    unsigned char dots, colour; /* Braille; enum dt_chart_colour */
    const char *mark;           /* in place of the dots */
};
struct canvas {
    const struct dt_chart *c;
    struct dt_text *t;
    bool colour;
    int columns, w, h, names; /* of the terminal; of the plot; columns of what stands left of it */
    struct dt_chart_scale x, y;
    struct cell *cell; /* [h][w] */
};

/* ---- text ---- */

static const char *const escapes[DT_CHART_COLOUR_N] = {
    "",         "\033[34m", "\033[33m", "\033[32m", "\033[35m", "\033[36m", "\033[31m", "\033[93m",
    "\033[90m", "\033[37m", "\033[94m", "\033[90m", "\033[95m", "\033[33m", "\033[37m",
};

static void put(const struct canvas *v, int colour, const char *s)
{
    bool on = v->colour && colour != DT_CHART_AUTO;

    dt_text_add(v->t, "%s%s%s", on ? escapes[colour] : "", s, on ? "\033[0m" : "");
}

static int characters(const char *s)
{
    int n = 0;

    for (; s && *s; s++)
        n += ((unsigned char)*s & 0xc0) != 0x80;
    return n;
}

/* In `columns` columns, flush right or left; what is longer ends with "…".  Control characters, which would steer the
 * terminal, become "?". */
static void fit(const struct canvas *v, const char *s, int columns, bool right)
{
    int n = characters(s), left = n <= columns ? n : columns - 1;

    for (int k = n; right && k < columns; k++)
        dt_text_add(v->t, " ");
    for (; s && *s && left > 0; left--) {
        int bytes = 1;

        while (((unsigned char)s[bytes] & 0xc0) == 0x80)
            bytes++;
        if ((unsigned char)*s < 0x20 || *s == 0x7f)
            dt_text_add(v->t, "?");
        else
            dt_text_add(v->t, "%.*s", bytes, s);
        s += bytes;
    }
    if (n > columns)
        dt_text_add(v->t, "…");
    for (int k = n; !right && k < columns; k++)
        dt_text_add(v->t, " ");
}

static void spaces(const struct canvas *v, int n)
{
    for (int k = 0; k < n; k++)
        dt_text_add(v->t, " ");
}

static void legend(const struct canvas *v, const char *front)
{
    bool bars = dt_chart_is_bars(v->c);
    int at = 0, any = 0;

    for (int k = 0; k <= v->c->n_series; k++) {
        const char *name = k < v->c->n_series ? v->c->series[k].name : front, *mark;
        int w = characters(name) + 2;

        if (!name)
            continue;
        mark = k == v->c->n_series     ? "★"
               : bars && v->c->stacked ? fills[k % MARKS]
                                       : marks[k % MARKS];
        if (bars && !v->c->stacked)
            mark = "█";
        if (any && at + 3 + w > v->columns) {
            dt_text_add(v->t, "\n");
            at = any = 0;
        }
        if (any++) {
            spaces(v, 3);
            at += 3;
        }
        put(v, k < v->c->n_series ? (int)dt_chart_colour_of(v->c, k) : 0, mark);
        dt_text_add(v->t, " ");
        w = w > v->columns ? v->columns : w;
        fit(v, name, w - 2, false);
        at += w;
    }
    if (any)
        dt_text_add(v->t, "\n");
}

/* ---- points and lines ---- */

/* Column and row of dots, from the top left; the plot has 2 w x 4 h of them. */
static void dot(struct canvas *v, int x, int y, int colour)
{
    static const unsigned char bits[4][2] = {
        {0x01, 0x08}, {0x02, 0x10}, {0x04, 0x20}, {0x40, 0x80}};
    struct cell *c;

    if (x < 0 || y < 0 || x >= 2 * v->w || y >= 4 * v->h)
        return;
    c = &v->cell[(y / 4) * v->w + x / 2];
    c->dots |= bits[y % 4][x % 2];
    c->colour = (unsigned char)colour;
}

static int dot_x(const struct canvas *v, double x)
{
    return (int)floor(dt_chart_scale_at(&v->x, x) * (2 * v->w - 1) + 0.5);
}

static int dot_y(const struct canvas *v, double y)
{
    return (int)floor((1 - dt_chart_scale_at(&v->y, y)) * (4 * v->h - 1) + 0.5);
}

static void stroke(struct canvas *v, int x0, int y0, int x1, int y1, int colour)
{
    int dx = x1 > x0 ? x1 - x0 : x0 - x1, dy = y1 > y0 ? y1 - y0 : y0 - y1;
    int n = dx > dy ? dx : dy;

    for (int k = 0; k <= n; k++)
        dot(v, x0 + (n ? (int)floor((double)(x1 - x0) * k / n + 0.5) : 0),
            y0 + (n ? (int)floor((double)(y1 - y0) * k / n + 0.5) : 0), colour);
}

static void mark_at(struct canvas *v, int x, int y, const char *mark, int colour)
{
    struct cell *c = &v->cell[(y / 4) * v->w + x / 2];

    c->mark = mark;
    c->colour = (unsigned char)colour;
}

static void series(struct canvas *v, int k)
{
    const struct dt_chart_series *s = &v->c->series[k];
    int colour = (int)dt_chart_colour_of(v->c, k), last = -1;
    int each = 1 + s->n / (v->w / 6 + 1); /* a mark on some points of a long line, to tell it by */

    for (int i = 0; i < s->n; i++) {
        int x, y;

        if (!dt_chart_has(v->c, s, i)) {
            last = -1;
            continue;
        }
        x = dot_x(v, s->x[i]);
        y = dot_y(v, s->y[i]);
        if (dt_chart_has_range(v->c, s, i))
            stroke(v, x, dot_y(v, s->low[i]), x, dot_y(v, s->high[i]), colour);
        if (s->mark != DT_CHART_POINTS && last >= 0)
            stroke(v, dot_x(v, s->x[last]), dot_y(v, s->y[last]), x, y, colour);
        dot(v, x, y, colour);
        last = i;
    }
    for (int i = 0; i < s->n; i++) {
        bool front = s->front && s->front[i];
        bool marked = s->mark == DT_CHART_LINE ? v->c->n_series > 1 && i % each == each / 2 : true;

        if (dt_chart_has(v->c, s, i) && (marked || front))
            mark_at(v, dot_x(v, s->x[i]), dot_y(v, s->y[i]), front ? "★" : marks[k % MARKS],
                    colour);
    }
}

static void rules(struct canvas *v)
{
    for (int k = 0; k < v->c->n_rules; k++) {
        const struct dt_chart_rule *r = &v->c->rules[k];

        if (!dt_chart_shows(r->x ? &v->c->x : &v->c->y, r->at))
            continue;
        for (int i = 0; i < (r->x ? v->h : v->w); i++) {
            int x = r->x ? dot_x(v, r->at) : 2 * i, y = r->x ? 4 * i : dot_y(v, r->at);

            v->cell[(y / 4) * v->w + x / 2].mark = r->x ? "┊" : "┄";
        }
    }
}

static void plot_row(const struct canvas *v, int row)
{
    char braille[4] = "", label[64] = "";
    const char *name = NULL;
    int tick = -1;

    for (int k = 0; k < v->y.n_ticks; k++)
        if (dot_y(v, v->y.tick[k]) / 4 == row)
            tick = k;
    if (tick >= 0)
        dt_chart_scale_label(&v->y, v->y.tick[tick], label, sizeof label);
    fit(v, label, v->names, true);
    dt_text_add(v->t, "%s", tick >= 0 ? " ┤" : " │");
    for (int k = 0; k < v->c->n_rules; k++)
        if (!v->c->rules[k].x && dt_chart_shows(&v->c->y, v->c->rules[k].at) &&
            dot_y(v, v->c->rules[k].at) / 4 == row)
            name = v->c->rules[k].name;
    for (int x = 0, end = v->w - (name ? characters(name) + 1 : 0); x < end; x++) {
        const struct cell *c = &v->cell[row * v->w + x];
        int code = 0x2800 + c->dots;

        braille[0] = (char)(0xe0 | code >> 12);
        braille[1] = (char)(0x80 | (code >> 6 & 0x3f));
        braille[2] = (char)(0x80 | (code & 0x3f));
        put(v, c->mark || c->dots ? c->colour : 0, c->mark ? c->mark : c->dots ? braille : " ");
    }
    if (name) { /* of a rule, at the end of its line */
        dt_text_add(v->t, " ");
        fit(v, name, characters(name) < v->w ? characters(name) : v->w - 1, false);
    }
    dt_text_add(v->t, "\n");
}

static void x_axis(const struct canvas *v)
{
    char label[128];
    int at = 0;

    spaces(v, v->names);
    dt_text_add(v->t, " └");
    for (int x = 0; x < v->w; x++) {
        bool tick = false;

        for (int k = 0; k < v->x.n_ticks; k++)
            tick |= dot_x(v, v->x.tick[k]) / 2 == x;
        dt_text_add(v->t, "%s", tick ? "┴" : "─");
    }
    dt_text_add(v->t, "\n");
    for (int k = 0; k < v->x.n_ticks; k++) {
        int n, from;

        dt_chart_scale_label(&v->x, v->x.tick[k], label, sizeof label);
        n = characters(label);
        from = v->names + 2 + dot_x(v, v->x.tick[k]) / 2 - n / 2;
        if (from + n > v->columns)
            from = v->columns - n;
        if (from < at + (at > 0))
            continue;
        spaces(v, from - at);
        dt_text_add(v->t, "%s", label);
        at = from + n;
    }
    dt_text_add(v->t, "\n");
    dt_chart_axis_title(&v->c->x, label, sizeof label);
    if (label[0]) {
        spaces(v, v->names + 2 + (v->w > characters(label) ? (v->w - characters(label)) / 2 : 0));
        dt_text_add(v->t, "%s\n", label);
    }
}

static enum dt_status plot(struct canvas *v, int rows, struct dt_error *err)
{
    char label[128];
    int n = 0;

    dt_chart_scales(v->c, v->columns / 12, rows / 3 + 1, &v->x, &v->y);
    for (int k = 0; k < v->y.n_ticks; k++) {
        dt_chart_scale_label(&v->y, v->y.tick[k], label, sizeof label);
        n = characters(label) > n ? characters(label) : n;
    }
    v->names = n;
    v->w = v->columns - n - 2 > 10 ? v->columns - n - 2 : 10;
    v->h = rows;
    v->cell = dt_calloc((size_t)v->w * (size_t)v->h, sizeof *v->cell);
    if (!v->cell)
        return dt_error_nomem(err, "a chart");
    dt_chart_axis_title(&v->c->y, label, sizeof label);
    if (label[0])
        dt_text_add(v->t, "%s\n", label);
    rules(v);
    for (int k = 0; k < v->c->n_series; k++)
        series(v, k);
    for (int row = 0; row < v->h; row++)
        plot_row(v, row);
    x_axis(v);
    dt_free(v->cell);
    return DT_OK;
}

/* ---- bars ---- */

/* A bar of that many columns, eighths included, where it begins at a whole one. */
static int blocks(const struct canvas *v, double columns, int colour)
{
    static const char *const parts[] = {"", "▏", "▎", "▍", "▌", "▋", "▊", "▉"};
    int eighths = (int)floor(columns * 8 + 0.5);

    for (int k = 0; k < eighths / 8; k++)
        put(v, colour, "█");
    if (eighths % 8)
        put(v, colour, parts[eighths % 8]);
    return (eighths + 7) / 8;
}

static void value_after(const struct canvas *v, const struct dt_chart_series *s, int i,
                        double value)
{
    char text[96];

    dt_chart_value(value, v->c->y.unit, text, sizeof text);
    dt_text_add(v->t, " %s", text);
    if (s && dt_chart_has_range(v->c, s, i)) {
        dt_chart_value(s->low[i], NULL, text, sizeof text);
        dt_text_add(v->t, " (%s", text);
        dt_chart_value(s->high[i], NULL, text, sizeof text);
        dt_text_add(v->t, " to %s)", text);
    }
    dt_text_add(v->t, "\n");
}

static int column_of(const struct canvas *v, double value)
{
    return (int)floor(dt_chart_scale_at(&v->y, value) * v->w + 0.5);
}

static void one_bar(const struct canvas *v, int k, int i)
{
    const struct dt_chart_series *s = &v->c->series[k];
    double value = s->y[i];
    int zero = column_of(v, 0), colour = (int)dt_chart_colour_of(v->c, k), at;

    dt_text_add(v->t, " ");
    if (!dt_chart_has(v->c, s, i)) {
        spaces(v, zero);
        dt_text_add(v->t, "│ -\n");
        return;
    }
    at = value < 0 ? column_of(v, value) : zero;
    spaces(v, at);
    for (; value < 0 && at < zero; at++)
        put(v, colour, "█");
    dt_text_add(v->t, "│");
    if (value > 0)
        blocks(v, dt_chart_scale_at(&v->y, value) * v->w - zero, colour);
    value_after(v, s, i, value);
}

static void segments(const struct canvas *v, int i, bool below, int *at)
{
    double sum = 0;

    for (int q = 0; q < v->c->n_series; q++) {
        int k = below ? v->c->n_series - 1 - q : q;
        const struct dt_chart_series *s = &v->c->series[k];

        if (!dt_chart_has(v->c, s, i) || (s->y[i] < 0) != below)
            continue;
        sum += s->y[i];
        if (!below)
            for (; *at < column_of(v, sum); ++*at)
                put(v, (int)dt_chart_colour_of(v->c, k), fills[k % MARKS]);
    }
    if (!below)
        return;
    spaces(v, column_of(v, sum) - *at); /* from the far end inwards */
    *at = column_of(v, sum);
    for (int k = v->c->n_series - 1; k >= 0; k--) {
        const struct dt_chart_series *s = &v->c->series[k];

        if (!dt_chart_has(v->c, s, i) || s->y[i] >= 0)
            continue;
        sum -= s->y[i];
        for (; *at < column_of(v, sum); ++*at)
            put(v, (int)dt_chart_colour_of(v->c, k), fills[k % MARKS]);
    }
}

static void one_stack(const struct canvas *v, int i)
{
    double up = 0, down = 0;
    int at = 0, zero = column_of(v, 0);
    char text[96];

    for (int k = 0; k < v->c->n_series; k++)
        if (dt_chart_has(v->c, &v->c->series[k], i))
            *(v->c->series[k].y[i] < 0 ? &down : &up) += v->c->series[k].y[i];
    dt_text_add(v->t, " ");
    segments(v, i, true, &at);
    spaces(v, zero - at);
    at = zero;
    dt_text_add(v->t, "│");
    segments(v, i, false, &at);
    if (down < 0 && up > 0) { /* a sum would hide both */
        dt_chart_value(down, NULL, text, sizeof text);
        dt_text_add(v->t, " %s and", text);
    }
    value_after(v, NULL, i, down < 0 && !(up > 0) ? down : up);
}

static void bars(struct canvas *v)
{
    int most = 0, values = 16;
    char label[128];

    for (int i = 0; i < v->c->n_categories; i++)
        most = characters(v->c->categories[i]) > most ? characters(v->c->categories[i]) : most;
    for (int k = 0; k < v->c->n_rules; k++)
        most = characters(v->c->rules[k].name) > most ? characters(v->c->rules[k].name) : most;
    v->names = most * 100 > v->columns * NAME_MAX_SHARE ? v->columns * NAME_MAX_SHARE / 100 : most;
    for (int k = 0; k < v->c->n_series; k++)
        values = v->c->series[k].low ? 34 : values;
    v->w = v->columns - v->names - values > 8 ? v->columns - v->names - values : 8;
    dt_chart_scales(v->c, 5, 5, &v->x, &v->y);
    dt_chart_axis_title(&v->c->y, label, sizeof label);
    if (label[0]) {
        spaces(v, v->names + 2);
        dt_text_add(v->t, "%s\n", label);
    }
    for (int i = 0; i < v->c->n_categories; i++)
        for (int k = 0; k < (v->c->stacked ? 1 : v->c->n_series); k++) {
            fit(v, k == 0 ? v->c->categories[i] : "", v->names, true);
            if (v->c->stacked)
                one_stack(v, i);
            else
                one_bar(v, k, i);
        }
    for (int k = 0; k < v->c->n_rules; k++) {
        fit(v, v->c->rules[k].name, v->names, true);
        dt_text_add(v->t, " ");
        spaces(v, column_of(v, v->c->rules[k].at));
        dt_text_add(v->t, "┆");
        value_after(v, NULL, 0, v->c->rules[k].at);
    }
}

/* ---- all of it ---- */

static void foot(const struct canvas *v)
{
    int n = dt_chart_left_out(v->c);

    if (n > 0)
        dt_text_add(v->t, "%d value%s not shown: a logarithmic axis shows none at or below zero\n",
                    n, dt_plural(n));
    if (v->y.empty)
        dt_text_add(v->t, "no data\n");
}

enum dt_status dt_chart_text(const struct dt_chart *c, const struct dt_chart_terminal *term,
                             struct dt_error *err, char **out)
{
    struct dt_text t = {0};
    struct canvas v = {.c = c, .t = &t, .colour = term->colour};
    struct dt_chart_place *at;
    enum dt_status st = DT_OK;
    int n, rows = term->height > 0 ? term->height - 5 : ROWS;

    DT_TRY(dt_chart_check(c, err));
    DT_TRY(dt_chart_front(c, err, &at, &n));
    dt_free(at);
    v.columns = term->width > 0 ? term->width : COLUMNS;
    v.columns = v.columns < COLUMNS_MIN ? COLUMNS_MIN : v.columns;
    if (c->title) {
        fit(&v, c->title, characters(c->title), false);
        dt_text_add(&t, "\n");
    }
    legend(&v, n == 0 ? NULL : c->front_name ? c->front_name : "front");
    if (dt_chart_is_bars(c))
        bars(&v);
    else
        st = plot(&v, rows < ROWS_MIN ? ROWS_MIN : rows, err);
    if (st != DT_OK) {
        dt_free(t.s);
        return st;
    }
    foot(&v);
    return dt_text_finish(&t, err, out);
}
