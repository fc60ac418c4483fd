/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING. */
#include "report/timeline_draw.h"

#include "base/mem.h"
#include "report/chart_impl.h"
#include "report/html.h"

#include <stdio.h>
#include <string.h>

/* Of a row, from its top: the bars of its own module, those of guests (lower), collectives, messages that leave and
 * messages that arrive. */
enum {
    ROW = 34,
    BAR = 18,
    GUEST_TOP = 7,
    COLL_TOP = 20,
    SEND_TOP = 25,
    RECV_TOP = 28,
    HOST_TOP = 31,
    THIN = 3
};
enum { WIDTH = 1200, LEFT = 270, RIGHT = 20, PLOT = WIDTH - LEFT - RIGHT, FOOT = 30 };
enum { BARS_MAX = 9000 }; /* some 1.5 MB of text */
#define VISIBLE 0.3       /* px: what the legend explains is at least once as wide */

const struct dt_report_time_kind dt_report_time_kinds[DT_TIME_N] = {
    {"forward", "▒", DT_CHART_SKY},
    {"backward", "█", DT_CHART_BLUE},
    {"weight gradient", "▓", DT_CHART_GREEN},
    {"optimizer step", "$", DT_CHART_RED},
    {"gradient and parameter collectives", "=", DT_CHART_ORANGE},
    {"transfers", "-", DT_CHART_PURPLE},
    {"data", "+", DT_CHART_OLIVE},
    {"host link", "~", DT_CHART_GREY},
};

enum dt_report_time dt_report_time_of(enum dt_op_kind kind)
{
    switch (kind) {
    case DT_OP_FORWARD:
        return DT_TIME_FORWARD;
    case DT_OP_BACKWARD:
        return DT_TIME_BACKWARD;
    case DT_OP_WEIGHT_GRAD:
        return DT_TIME_WEIGHT_GRAD;
    case DT_OP_STEP:
        return DT_TIME_STEP;
    case DT_OP_GRAD_SYNC:
    case DT_OP_GRAD_NORM:
    case DT_OP_PARAM_GATHER:
        return DT_TIME_COLLECTIVE;
    case DT_OP_SEND:
    case DT_OP_RECV:
        return DT_TIME_TRANSFER;
    case DT_OP_OFFLOAD:
    case DT_OP_RELOAD:
        return DT_TIME_HOST;
    case DT_OP_FETCH:
    case DT_OP_KIND_N:
        break;
    }
    return DT_TIME_DATA;
}

/* ---- bars ---- */

struct pen {
    const struct dt_run_view *v;
    struct dt_text *t; /* NULL = bars are only counted */
    int64_t span_ns;
    double px_per_ns, narrow_ns;
    int64_t bars;
    double widest[DT_TIME_N]; /* px */
    bool guests;
    /* the bar that waits for more of its kind */
    const struct dt_run_view_op *op;
    int lane, ops;
    int64_t begin_ns, end_ns;
    int y, h;
};

static void say_time(struct dt_text *t, int64_t begin_ns, int64_t end_ns)
{
    double ms = 1e-6 * (double)(end_ns - begin_ns);

    dt_text_add(t, ", %.*f ms from %.3f s", ms < 0.1 ? 5 : 3, ms, 1e-9 * (double)begin_ns);
}

static void say(const struct pen *p)
{
    const struct dt_run_view_lane *l = &p->v->lane[p->lane];

    dt_text_add(p->t, "<title>%s", dt_op_kind_names[p->op->kind]);
    if (p->ops > 1)
        dt_text_add(p->t, " and others, %d ops", p->ops);
    else if (p->op->mb >= 0)
        dt_text_add(p->t, " microbatch %d", p->op->mb);
    if (p->ops == 1 && p->op->peer >= 0) {
        const struct dt_run_view_lane *o = &p->v->lane[p->op->peer];

        dt_text_add(p->t, p->op->kind == DT_OP_SEND ? " to " : " from ");
        dt_html_escape(p->t, p->v->module[o->module].name);
        dt_text_add(p->t, " stage %d replica %d, %.3g MiB", o->stage, o->replica,
                    (double)p->op->bytes / 1048576);
    }
    say_time(p->t, p->begin_ns, p->end_ns);
    dt_text_add(p->t, " (");
    dt_html_escape(p->t, p->v->module[l->module].name);
    dt_text_add(p->t, ")</title>");
}

static void flush(struct pen *p)
{
    enum dt_report_time time;
    double w;

    if (!p->op)
        return;
    time = dt_report_time_of((enum dt_op_kind)p->op->kind);
    w = p->px_per_ns * (double)(p->end_ns - p->begin_ns);
    p->bars++;
    p->widest[time] = w > p->widest[time] ? w : p->widest[time];
    if (p->t) {
        dt_text_add(p->t, "<rect class=\"%s\" x=\"%.2f\" y=\"%d\" width=\"%.2f\" height=\"%d\">",
                    dt_chart_fill_class(dt_report_time_kinds[time].colour),
                    p->px_per_ns * (double)p->begin_ns, p->y, w, p->h);
        say(p);
        dt_text_add(p->t, "</rect>\n");
    }
    p->op = NULL;
}

/* What is narrow joins a neighbour of its kind, or any neighbour that is as narrow. */
static void bar(struct pen *p, int lane, const struct dt_run_view_op *o, int y, int h)
{
    double narrow = p->narrow_ns, wide = (double)(o->end_ns - o->begin_ns);

    if (o->end_ns <= o->begin_ns || o->begin_ns < 0 || o->end_ns > p->v->makespan_ns)
        return; /* nothing to see, or a damaged file */
    if (p->op && p->y == y && (double)(o->begin_ns - p->end_ns) < narrow &&
        o->begin_ns >= p->begin_ns &&
        (wide < narrow || (double)(p->end_ns - p->begin_ns) < narrow) &&
        (p->op->kind == o->kind || wide < narrow)) {
        p->end_ns = o->end_ns > p->end_ns ? o->end_ns : p->end_ns;
        p->ops++;
        return;
    }
    flush(p);
    p->op = o;
    p->lane = lane;
    p->ops = 1;
    p->begin_ns = o->begin_ns;
    p->end_ns = o->end_ns;
    p->y = y;
    p->h = h;
}

static void lane(struct pen *p, int k, int top, bool guest)
{
    static const int tops[DT_RES_N] = {0, SEND_TOP, RECV_TOP, COLL_TOP, HOST_TOP};
    const struct dt_run_view_lane *l = &p->v->lane[k];

    p->guests |= guest;
    for (int res = 0; res < DT_RES_N; res++) {
        int y = top + (res == DT_RES_COMPUTE && guest ? GUEST_TOP : tops[res]);
        int h = res != DT_RES_COMPUTE ? THIN : guest ? BAR - GUEST_TOP : BAR;

        for (uint32_t i = l->first; i < l->first + l->n; i++)
            if ((int)dt_op_resource((enum dt_op_kind)p->v->op[i].kind) == res)
                bar(p, k, &p->v->op[i], y, h);
        flush(p);
    }
}

static void bars(struct pen *p, const struct dt_run_view_row *rows, int n)
{
    p->bars = 0;
    for (int i = 0; i < n; i++) {
        lane(p, rows[i].lane, i * ROW, false);
        for (int g = 0; g < rows[i].n_guests; g++)
            if (!dt_run_view_row_again(p->v, &rows[i], g))
                lane(p, rows[i].guest[g], i * ROW, true);
    }
}

/* ---- around them ---- */

static void text_at(struct dt_text *t, const char *class, int x, int y, const char *anchor,
                    const char *s)
{
    dt_text_add(t, "<text class=\"%s\" x=\"%d\" y=\"%d\" text-anchor=\"%s\">", class, x, y, anchor);
    dt_html_escape(t, s);
    dt_text_add(t, "</text>\n");
}

static void legend(const struct pen *p, int y)
{
    int x = LEFT;

    for (int k = 0; k < DT_TIME_N; k++) {
        const struct dt_report_time_kind *kind = &dt_report_time_kinds[k];

        if (p->widest[k] < VISIBLE)
            continue;
        dt_text_add(p->t, "<rect class=\"%s\" x=\"%d\" y=\"%d\" width=\"12\" height=\"12\"/>",
                    dt_chart_fill_class(kind->colour), x, y - 10);
        text_at(p->t, "", x + 17, y, "start", kind->name);
        x += 40 + (int)(6.6 * (double)strlen(kind->name));
    }
    if (p->guests)
        text_at(p->t, "dt-soft", x, y, "start", "lower bars: a module on these GPUs as a guest");
}

static void labels(const struct pen *p, const struct dt_report_timeline_text *words,
                   const struct dt_run_view_row *rows, int n, int top)
{
    char text[256];

    for (int i = 0; i < n; i++) {
        dt_run_view_row_name(p->v, &rows[i], text, sizeof text);
        text_at(p->t, "", LEFT - 8, top + i * ROW + 12, "end", text);
        dt_run_view_row_note(p->v, &rows[i], words->unit, text, sizeof text);
        text_at(p->t, "dt-soft dt-small", LEFT - 8, top + i * ROW + 25, "end", text);
    }
}

static void ticks(const struct pen *p, int top, int height)
{
    const struct dt_chart_axis axis = {.zero = true};
    double end_s = 1e-9 * (double)p->span_ns, unit = end_s < 0.5 ? 1e3 : 1;
    struct dt_chart_scale s;
    char label[64];

    dt_chart_scale_fit(&s, &axis, 0, end_s * unit, 10);
    dt_text_add(p->t, "<g class=\"dt-ticks\">\n");
    for (int k = 0; k < s.n_ticks && s.tick[k] <= end_s * unit * (1 + 1e-9); k++) {
        double x = LEFT + PLOT * s.tick[k] / (end_s * unit);

        dt_chart_scale_label(&s, s.tick[k], label, sizeof label);
        dt_text_add(
            p->t,
            "<line class=\"dt-grid\" x1=\"%.1f\" y1=\"%d\" x2=\"%.1f\" y2=\"%d\"/>"
            "<text class=\"dt-soft\" x=\"%.1f\" y=\"%d\" text-anchor=\"middle\">%s %s</text>\n",
            x, top, x, top + height + 4, x, top + height + 18, label, unit > 1 ? "ms" : "s");
    }
    dt_text_add(p->t, "</g>\n");
}

static void head(struct dt_text *t, const struct dt_report_timeline_text *words,
                 enum dt_chart_form form, const char *id, int height)
{
    dt_text_add(t,
                "<svg xmlns=\"http://www.w3.org/2000/svg\" class=\"dt-chart\" width=\"%d\" "
                "height=\"%d\" viewBox=\"0 0 %d %d\" role=\"img\" aria-labelledby=\"%s-t %s-d\">\n",
                WIDTH, height, WIDTH, height, id, id);
    dt_text_add(t, "<title id=\"%s-t\">", id);
    dt_html_escape(t, words->title);
    dt_text_add(t, "</title><desc id=\"%s-d\">", id);
    dt_html_escape(t, words->subtitle);
    dt_text_add(t, " A row for each stage of every module; time runs to the right."
                   "</desc>\n");
    if (form == DT_CHART_FRAGMENT)
        return;
    dt_chart_file_style(t);
    dt_text_add(t, "<rect class=\"dt-paper\" width=\"100%%\" height=\"100%%\"/>\n");
    text_at(t, "dt-title", 12, 24, "start", words->title);
    if (words->subtitle)
        text_at(t, "dt-soft", 12, 42, "start", words->subtitle);
}

/* As few pixels as keep the number of bars within bounds are what is narrow. */
static void count(struct pen *p, const struct dt_run_view_row *rows, int n)
{
    double px = 0.02;

    do {
        p->narrow_ns = px / p->px_per_ns;
        bars(p, rows, n);
        px *= 2;
    } while (p->bars > BARS_MAX && px < PLOT);
}

static void draw(struct pen *p, struct dt_text *t, const struct dt_report_timeline_text *words,
                 enum dt_chart_form form, const char *id, const struct dt_run_view_row *rows, int n,
                 int more)
{
    int top = form == DT_CHART_FILE ? 78 : 30, height = n * ROW;

    count(p, rows, n);
    p->t = t;
    head(t, words, form, id, top + height + FOOT + (more ? 18 : 0));
    legend(p, top - 14);
    ticks(p, top, height);
    labels(p, words, rows, n, top);
    dt_text_add(t,
                "<svg class=\"dt-time\" x=\"%d\" y=\"%d\" width=\"%d\" height=\"%d\" viewBox=\"0 0 "
                "%d %d\" preserveAspectRatio=\"none\" data-end-ns=\"%lld\">\n",
                LEFT, top, PLOT, height, PLOT, height, (long long)p->span_ns);
    for (int i = 0; i < n; i++)
        dt_text_add(t, "<rect class=\"dt-empty\" y=\"%d\" width=\"%d\" height=\"%d\"/>\n", i * ROW,
                    PLOT, BAR);
    bars(p, rows, n);
    dt_text_add(t, "</svg>\n");
    if (more) {
        char note[64];

        snprintf(note, sizeof note, "%d more stage%s not shown", more, dt_plural(more));
        text_at(t, "dt-soft", LEFT, top + height + FOOT + 8, "start", note);
    }
    dt_text_add(t, "</svg>\n");
}

enum dt_status dt_report_timeline_svg(const struct dt_run_view *v,
                                      const struct dt_report_timeline_text *words,
                                      enum dt_chart_form form, const char *id, struct dt_error *err,
                                      char **out)
{
    int64_t span_ns = words->span_ns > v->makespan_ns ? words->span_ns : v->makespan_ns;
    struct pen p = {
        .v = v, .span_ns = span_ns, .px_per_ns = span_ns > 0 ? PLOT / (double)span_ns : 1};
    struct dt_run_view_row *rows;
    struct dt_text t = {0};
    int n, more;

    DT_TRY(dt_run_view_rows(v, err, &rows, &n, &more));
    draw(&p, &t, words, form, id ? id : "timeline", rows, n, more);
    dt_free(rows);
    return dt_text_finish(&t, err, out);
}
