/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING. */
#include "report/timeline_draw.h"

#include "base/mem.h"
#include "report/chart_impl.h"

#include <stdio.h>
#include <string.h>

enum { COLUMNS = 80, COLUMNS_MIN = 50, NAMES_MAX = 34 };

struct grid {
    const struct dt_run_view *v;
    struct dt_text *t;
    bool colour, drawn[DT_TIME_N];
    int columns, names, w; /* of the terminal; of what stands left of the bars; of these */
    /* of one row, per column */
    double *busy;        /* [w][DT_TIME_N] ns */
    int *mb;             /* [w] microbatch that begins here; -1 = none */
    unsigned char *kind; /* [w] enum dt_report_time; DT_TIME_N = idle */
};

static int64_t edge(const struct grid *g, int column)
{
    return (int64_t)((double)g->v->makespan_ns * column / g->w);
}

/* The time of an op, dealt to the columns it lies in. */
static void spread(struct grid *g, const struct dt_run_view_op *o)
{
    enum dt_report_time time = dt_report_time_of((enum dt_op_kind)o->kind);
    double per = (double)g->v->makespan_ns / g->w;
    int from = (int)((double)o->begin_ns / per), to = (int)((double)o->end_ns / per);

    if (o->end_ns <= o->begin_ns || o->begin_ns < 0 || o->end_ns > g->v->makespan_ns)
        return;
    for (int c = from; c <= to && c < g->w; c++) {
        double a = per * c > (double)o->begin_ns ? per * c : (double)o->begin_ns;
        double b = per * (c + 1) < (double)o->end_ns ? per * (c + 1) : (double)o->end_ns;

        g->busy[c * DT_TIME_N + time] += b > a ? b - a : 0;
    }
}

/* What takes most of a column: of computation, where it computes half of the time, else of the rest. */
static void decide(struct grid *g)
{
    for (int c = 0; c < g->w; c++) {
        const double *busy = &g->busy[c * DT_TIME_N];
        double all = (double)(edge(g, c + 1) - edge(g, c)), compute = 0, most = 0;
        int first = 0, end = DT_TIME_COLLECTIVE;

        for (int k = 0; k < DT_TIME_COLLECTIVE; k++)
            compute += busy[k];
        if (2 * compute < all) {
            first = DT_TIME_COLLECTIVE;
            end = DT_TIME_N;
        }
        g->kind[c] = DT_TIME_N;
        for (int k = first; k < end; k++)
            if (busy[k] > most && (first == 0 || 4 * busy[k] > all)) {
                most = busy[k];
                g->kind[c] = (unsigned char)k;
            }
        if (g->kind[c] < DT_TIME_N)
            g->drawn[g->kind[c]] = true;
    }
}

/* The number of a microbatch stands where its op begins, if the op is wide enough to leave a column free. */
static void number(struct grid *g, const struct dt_run_view_op *o)
{
    double per = (double)g->v->makespan_ns / g->w;
    int from = (int)((double)o->begin_ns / per + 0.5), to = (int)((double)o->end_ns / per + 0.5);
    char text[16];

    if (o->mb < 0 || o->begin_ns < 0 || o->end_ns > g->v->makespan_ns ||
        dt_op_resource((enum dt_op_kind)o->kind) != DT_RES_COMPUTE)
        return;
    if (from < g->w && snprintf(text, sizeof text, "%d", o->mb) + 1 <= to - from)
        g->mb[from] = o->mb;
}

static void lane(struct grid *g, int k)
{
    const struct dt_run_view_lane *l = &g->v->lane[k];

    for (uint32_t i = l->first; i < l->first + l->n; i++) {
        spread(g, &g->v->op[i]);
        number(g, &g->v->op[i]);
    }
}

static void put(const struct grid *g, int kind, const char *s)
{
    static const char *const escapes[DT_TIME_N] = {"\033[36m", "\033[34m", "\033[32m", "\033[31m",
                                                   "\033[33m", "\033[35m", "\033[93m", "\033[37m"};
    bool on = g->colour && kind < DT_TIME_N;

    dt_text_add(g->t, "%s%s%s", on ? escapes[kind] : "", s, on ? "\033[0m" : "");
}

static void row(struct grid *g, const struct dt_run_view_row *r)
{
    char name[256], digits[16] = "";
    int at = 0;

    memset(g->busy, 0, (size_t)g->w * DT_TIME_N * sizeof *g->busy);
    for (int c = 0; c < g->w; c++)
        g->mb[c] = -1;
    lane(g, r->lane);
    for (int k = 0; k < r->n_guests; k++)
        if (!dt_run_view_row_again(g->v, r, k))
            lane(g, r->guest[k]);
    decide(g);
    dt_run_view_row_name(g->v, r, name, sizeof name);
    dt_text_add(g->t, "%*.*s │", g->names, g->names, name);
    for (int c = 0; c < g->w; c++) {
        char one[2] = "";

        if (g->mb[c] >= 0) {
            snprintf(digits, sizeof digits, "%d", g->mb[c]);
            at = 0;
        }
        one[0] = digits[at];
        at += digits[at] != '\0';
        put(g, g->kind[c],
            one[0]                   ? one
            : g->kind[c] < DT_TIME_N ? dt_report_time_kinds[g->kind[c]].mark
                                     : " ");
    }
    dt_text_add(g->t, "│\n");
}

static void axis(const struct grid *g)
{
    const struct dt_chart_axis a = {.zero = true};
    double end_s = 1e-9 * (double)g->v->makespan_ns, unit = end_s < 0.5 ? 1e3 : 1;
    struct dt_chart_scale s;
    int at = 0;

    dt_chart_scale_fit(&s, &a, 0, end_s * unit, g->w / 14 + 1);
    dt_text_add(g->t, "%*s └", g->names, "");
    for (int c = 0; c < g->w; c++) {
        bool tick = false;

        for (int k = 0; k < s.n_ticks; k++)
            tick |= (int)(s.tick[k] / (end_s * unit) * g->w) == c;
        dt_text_add(g->t, "%s", tick ? "┴" : "─");
    }
    dt_text_add(g->t, "┘\n");
    for (int k = 0; k < s.n_ticks && s.tick[k] <= end_s * unit * (1 + 1e-9); k++) {
        char label[64], number[48];
        int from, n;

        dt_chart_scale_label(&s, s.tick[k], number, sizeof number);
        n = snprintf(label, sizeof label, "%s %s", number, unit > 1 ? "ms" : "s");
        from = g->names + 2 + (int)(s.tick[k] / (end_s * unit) * g->w) - n / 2;
        if (from + n > g->columns || from <= at)
            continue;
        dt_text_add(g->t, "%*s%s", from - at, "", label);
        at = from + n;
    }
    dt_text_add(g->t, "\n");
}

/* What was drawn, and what rows stand for. */
static void legend(const struct grid *g, const struct dt_report_timeline_text *words,
                   const struct dt_run_view_row *rows, int n, int more)
{
    char name[256], note[256], last[sizeof name + sizeof note + 2] = "", line[sizeof last];

    for (int k = 0; k < DT_TIME_N; k++)
        if (g->drawn[k]) {
            put(g, k, dt_report_time_kinds[k].mark);
            dt_text_add(g->t, " %s   ", dt_report_time_kinds[k].name);
        }
    dt_text_add(g->t, "numbers: microbatches\n");
    for (int i = 0; i < n; i++) {
        dt_run_view_modules_name(g->v, g->v->lane[rows[i].lane].module, name, sizeof name);
        dt_run_view_row_note(g->v, &rows[i], words->unit, note, sizeof note);
        snprintf(line, sizeof line, "%s: %s", name, note);
        if (strcmp(line, last) != 0) /* most stages of a module are alike */
            dt_text_add(g->t, "%s\n", line);
        memcpy(last, line, sizeof last);
    }
    if (more)
        dt_text_add(g->t, "%d more stage%s not shown\n", more, dt_plural(more));
}

static enum dt_status draw(struct grid *g, const struct dt_report_timeline_text *words,
                           const struct dt_run_view_row *rows, int n, int more,
                           struct dt_error *err)
{
    char name[256];

    for (int i = 0; i < n; i++) {
        dt_run_view_row_name(g->v, &rows[i], name, sizeof name);
        g->names = (int)strlen(name) > g->names ? (int)strlen(name) : g->names;
    }
    g->names = g->names > NAMES_MAX ? NAMES_MAX : g->names;
    g->w = g->columns - g->names - 3;
    g->busy = dt_calloc((size_t)g->w * DT_TIME_N, sizeof *g->busy);
    g->mb = dt_calloc((size_t)g->w, sizeof *g->mb);
    g->kind = dt_calloc((size_t)g->w, 1);
    if (!g->busy || !g->mb || !g->kind)
        return dt_error_nomem(err, "a picture of the run");
    dt_text_add(g->t, "%s\n", words->title);
    for (int i = 0; i < n; i++)
        row(g, &rows[i]);
    axis(g);
    legend(g, words, rows, n, more);
    return DT_OK;
}

enum dt_status dt_report_timeline_text(const struct dt_run_view *v,
                                       const struct dt_report_timeline_text *words,
                                       const struct dt_chart_terminal *term, struct dt_error *err,
                                       char **out)
{
    struct dt_text t = {0};
    struct grid g = {.v = v, .t = &t, .colour = term->colour};
    struct dt_run_view_row *rows;
    enum dt_status st;
    int n, more;

    if (v->makespan_ns <= 0)
        return dt_error_set(err, DT_ERR_RANGE, "an iteration of no time has no timeline");
    g.columns = term->width > 0 ? term->width : COLUMNS;
    g.columns = g.columns < COLUMNS_MIN ? COLUMNS_MIN : g.columns;
    DT_TRY(dt_run_view_rows(v, err, &rows, &n, &more));
    st = draw(&g, words, rows, n, more, err);
    dt_free(rows);
    dt_free(g.busy);
    dt_free(g.mb);
    dt_free(g.kind);
    if (st != DT_OK) {
        dt_free(t.s);
        return st;
    }
    return dt_text_finish(&t, err, out);
}
