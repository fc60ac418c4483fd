/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * The sections of a page that show when things happened: the timeline, where the time goes. */
#include "report/page.h"

#include "report/html.h"
#include "report/timeline_draw.h"

#include <stdio.h>
#include <string.h>

static const char *unit_of(const struct dt_report_page_run *r)
{
    return r->cpu ? "process" : "GPU";
}

enum dt_status dt_report_page_timeline(struct dt_text *t, const struct dt_report_page_run *r,
                                       int64_t span_ns, const char *id, struct dt_error *err)
{
    char title[512], subtitle[256], time[48], *svg;
    const struct dt_report_timeline_text words = {title, subtitle, unit_of(r), span_ns};

    dt_html_raw(t, "<h2>One iteration</h2>\n");
    if (r->view.n_ops == 0) {
        dt_html_raw(t, "<p class=\"note\">The run has kept no ops, so that there is no timeline; "
                       "<code>simulate --timeline all</code> keeps them.</p>\n");
        return DT_OK;
    }
    dt_report_page_seconds(1e-9 * (double)r->view.makespan_ns, time, sizeof time);
    snprintf(title, sizeof title, "Timeline of %s: %s", r->name, time);
    snprintf(subtitle, sizeof subtitle, "%s, %s.", r->model,
             r->executed ? "measured" : "simulated");
    DT_TRY(dt_report_timeline_svg(&r->view, &words, DT_CHART_FRAGMENT, id, err, &svg));
    dt_html_raw(t, "<figure class=\"timeline\"><div class=\"scroll\">");
    dt_html_raw(t, svg);
    dt_html_raw(t, "</div><figcaption>");
    dt_html_text(t,
                 "%s: %s. A row for each stage of every module, of one replica, which stands for "
                 "the others that "
                 "share their GPUs with the same modules; below "
                 "the bars of a row its collectives, the messages it sends and those it receives. "
                 "Blank is idle.",
                 r->executed ? "The last iteration of the run, measured"
                             : "The first iteration, simulated",
                 time);
    dt_html_raw(t, "</figcaption></figure>\n");
    dt_free(svg);
    return DT_OK;
}

/* ---- where the time goes ---- */

struct bars { /* shares in percent, a row for each bar */
    int n;
    char (*name)[96];
    const char **names;
    double *percent; /* [DT_SPENT_N][n] */
};

static enum dt_status bars_new(struct bars *b, int n, struct dt_error *err)
{
    memset(b, 0, sizeof *b);
    b->n = n;
    b->name = dt_calloc((size_t)n, sizeof *b->name);
    b->names = dt_calloc((size_t)n, sizeof *b->names);
    b->percent = dt_calloc((size_t)n * DT_SPENT_N, sizeof *b->percent);
    return b->name && b->names && b->percent ? DT_OK : dt_error_nomem(err, "where the time goes");
}

static void bars_free(struct bars *b)
{
    dt_free(b->name);
    dt_free(b->names);
    dt_free(b->percent);
}

static void bars_set(struct bars *b, int i, const struct dt_report_seat *s)
{
    b->names[i] = b->name[i];
    for (int k = 0; k < DT_SPENT_N; k++)
        b->percent[k * b->n + i] = 100 * dt_report_spent_share(s, (enum dt_report_spent)k);
}

static enum dt_status draw(struct dt_text *t, const struct bars *b, const char *title,
                           const char *id, struct dt_error *err)
{
    struct dt_chart_series s[DT_SPENT_N];
    int n = 0;
    char *svg;

    for (int k = 0; k < DT_SPENT_N; k++) {
        double most = 0;

        for (int i = 0; i < b->n; i++)
            most = b->percent[k * b->n + i] > most ? b->percent[k * b->n + i] : most;
        if (most >= 0.1)
            s[n++] = (struct dt_chart_series){.name = dt_report_spent_kinds[k].name,
                                              .colour = dt_report_spent_kinds[k].colour,
                                              .n = b->n,
                                              .y = &b->percent[k * b->n]};
    }
    const struct dt_chart c = {.title = title,
                               .y = {.label = "share of the iteration", .unit = "%", .to = 100},
                               .series = s,
                               .n_series = n,
                               .categories = b->names,
                               .n_categories = b->n,
                               .stacked = true,
                               .horizontal = true,
                               .width = 1080};

    DT_TRY(dt_chart_svg(&c, DT_CHART_FRAGMENT, id, err, &svg));
    dt_html_raw(t, "<figure><div class=\"scroll\">");
    dt_html_raw(t, svg);
    dt_html_raw(t, "</div></figure>\n");
    dt_free(svg);
    return DT_OK;
}

/* Of iterations below half a second milliseconds are told. */
static double units_per_s(const struct dt_report_page_run *r)
{
    return r->view.makespan_ns < 500000000 ? 1e3 : 1;
}

static void one_row(struct dt_html_table *b, const struct dt_report_page_run *r, int k)
{
    const struct dt_report_breakdown *s = &r->spent;
    double share = dt_report_spent_share(&s->all, (enum dt_report_spent)k);
    char text[64], key[48];

    dt_html_cell(b, "%s", dt_report_spent_kinds[k].name);
    dt_html_cell(b, "%s", dt_report_spent_kinds[k].meaning);
    dt_html_cell(b, "%.3f", share * units_per_s(r) * 1e-9 * (double)r->view.makespan_ns);
    snprintf(text, sizeof text, "%.2f", 100 * share);
    snprintf(key, sizeof key, "spent-%d", k);
    dt_html_cell_number(b, key, share, text);
    for (int i = 0; i < s->n; i++)
        dt_html_cell(b, "%.2f", 100 * dt_report_spent_share(&s->seat[i], (enum dt_report_spent)k));
}

static enum dt_status table(struct dt_text *t, const struct dt_report_page_run *r,
                            const struct bars *bars, struct dt_error *err)
{
    int n = 4 + r->spent.n;
    struct dt_html_column *columns = dt_calloc((size_t)n, sizeof *columns);
    char(*heads)[128] = dt_calloc((size_t)n, sizeof *heads);
    struct dt_html_table b;

    if (!columns || !heads) {
        dt_free(columns);
        dt_free(heads);
        return dt_error_nomem(err, "where the time goes");
    }
    columns[0].head = "kind of time";
    columns[1].head = "what it is";
    columns[2] = (struct dt_html_column){units_per_s(r) > 1 ? "mean [ms]" : "mean [s]", true};
    columns[3] = (struct dt_html_column){"all [%]", true};
    for (int i = 0; i < r->spent.n; i++) {
        snprintf(heads[i], sizeof heads[i], "%s [%%]", bars->names[i + 1]);
        columns[4 + i] = (struct dt_html_column){heads[i], true};
    }
    dt_html_table_begin(
        &b, t,
        "Each instant of each GPU is one kind of time: shares of the iteration, weighted by "
        "GPUs; the mean is over all of them",
        columns, n);
    for (int k = 0; k < DT_SPENT_N; k++)
        if (r->spent.all.gpu_ns[k] > 0)
            one_row(&b, r, k);
    dt_html_table_end(&b);
    dt_free(columns);
    dt_free(heads);
    return DT_OK;
}

static void sums(struct dt_text *t, const struct dt_report_page_run *r)
{
    double compute = 0, exposed = 0, bubble = 0;
    double host = dt_report_spent_share(&r->spent.all, DT_SPENT_HOST_STEP);
    char steps[64] = "";

    for (int k = 0; k < DT_SPENT_N; k++) {
        double share = dt_report_spent_share(&r->spent.all, (enum dt_report_spent)k);

        *(k < DT_SPENT_EXPOSED ? &compute : k < DT_SPENT_BUBBLE ? &exposed : &bubble) += share;
    }
    if (host > 0)
        snprintf(steps, sizeof steps, ", %.1f %% optimizer steps of hosts", 100 * host);
    dt_html_raw(t, "<p>");
    dt_html_text(
        t,
        "Of the time of all %s, %.1f %% is computation, %.1f %% communication and data that "
        "computation waits for%s, and %.1f %% bubbles.",
        r->cpu ? "processes" : "GPUs", 100 * compute, 100 * (exposed - host), steps, 100 * bubble);
    dt_html_raw(t, "</p>\n");
}

static enum dt_status spent(struct dt_text *t, const struct dt_report_page_run *r, struct bars *b,
                            const char *id, struct dt_error *err)
{
    snprintf(b->name[0], sizeof b->name[0], "all %lld %s", (long long)r->spent.all.gpus,
             r->cpu ? "processes" : "GPUs");
    bars_set(b, 0, &r->spent.all);
    for (int i = 0; i < r->spent.n; i++) {
        const struct dt_report_seat *s = &r->spent.seat[i];

        dt_run_view_stage_name(&r->view, s->module, s->stage, b->name[i + 1], sizeof b->name[0]);
        bars_set(b, i + 1, &r->spent.seat[i]);
    }
    sums(t, r);
    DT_TRY(draw(t, b, "Where the time of an iteration goes", id, err));
    return table(t, r, b, err);
}

enum dt_status dt_report_page_spent(struct dt_text *t, const struct dt_report_page_run *r,
                                    const char *id, struct dt_error *err)
{
    struct bars b;
    enum dt_status st;

    dt_html_raw(t, "<h2>Where the time goes</h2>\n");
    if (!r->has_spent) {
        dt_html_raw(t, "<p class=\"note\">Not worked out: ");
        dt_html_escape(t, r->no_spent);
        dt_html_raw(t, ".</p>\n");
        return DT_OK;
    }
    if (r->executed && r->number[DT_NUMBER_RANKS] < (double)r->view.gpus) {
        dt_html_raw(t, "<p class=\"note\">");
        dt_html_text(t,
                     "%.0f process%s executed the lanes of %lld in turn: what one waits for is "
                     "mostly the computation of "
                     "another.",
                     r->number[DT_NUMBER_RANKS], r->number[DT_NUMBER_RANKS] == 1 ? "" : "es",
                     (long long)r->view.gpus);
        dt_html_raw(t, "</p>\n");
    }
    dt_html_raw(t, r->executed
                       ? "<p class=\"note\">Measured: from the begin and end of every op of the "
                         "last iteration.</p>\n"
                       : "<p class=\"note\">Predicted: from the first simulated iteration.</p>\n");
    st = bars_new(&b, r->spent.n + 1, err);
    if (st == DT_OK)
        st = spent(t, r, &b, id, err);
    bars_free(&b);
    return st;
}

enum dt_status dt_report_page_compare_spent(struct dt_text *t,
                                            const struct dt_report_page_run *runs, int n,
                                            struct dt_error *err)
{
    struct bars b;
    enum dt_status st;
    int at = 0;

    for (int i = 0; i < n; i++)
        at += runs[i].has_spent;
    if (at < 2)
        return DT_OK;
    st = bars_new(&b, at, err);
    at = 0;
    for (int i = 0; st == DT_OK && i < n; i++)
        if (runs[i].has_spent) {
            snprintf(b.name[at], sizeof b.name[at], "%s%s", runs[i].name,
                     runs[i].executed ? " (measured)" : "");
            bars_set(&b, at++, &runs[i].spent.all);
        }
    if (st == DT_OK)
        st = draw(t, &b, "Where the time of the runs goes", "compare-spent", err);
    bars_free(&b);
    return st;
}
