/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * A page about a sweep: charts over the number of GPUs, and every point in a table, those that failed with their
 * reason. */
#include "report/page.h"

#include "base/doc.h"
#include "report/html.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SERIES_MAX = 8, LABEL = 192 };

struct point {
    const struct dt_sweep_result *r;
    char label[LABEL]; /* its KEY=VALUEs */
    char group[LABEL]; /* the same without what says how many GPUs there are */
    bool front;
};
struct sweep {
    const struct dt_sweep_data *d;
    struct point *p; /* [d->n], by group, then GPUs */
    int n, feasible;
    bool clusters, sizes; /* clusters, or else plans, differ in their number of GPUs */
    bool priced;          /* a price is stated, of some point at least */
};

/* What charts are over: the cluster's GPUs, or those of the plan where clusters are all of a size. */
static int gpus_of(const struct sweep *s, const struct dt_sweep_result *r)
{
    return s->clusters ? r->gpus : r->gpus_used;
}

/* ---- points ---- */

static void append(char *buf, const char *s)
{
    size_t n = strlen(buf);

    if (n + 1 < LABEL)
        snprintf(buf + n, LABEL - n, "%s%s", n ? ", " : "", s);
}

/* Keys that say how large the cluster is. */
static bool is_size(const char *key_value)
{
    static const char *const keys[] = {"cluster.nodes=", "cluster.gpus=", "search.gpus="};

    for (size_t k = 0; k < sizeof keys / sizeof keys[0]; k++)
        if (strncmp(key_value, keys[k], strlen(keys[k])) == 0)
            return true;
    return false;
}

static enum dt_status read_set(const char *set, struct dt_error *err, struct point *p)
{
    struct dt_doc *doc;

    DT_TRY(dt_doc_parse("a point of the sweep", set, strlen(set), err, &doc));
    for (size_t i = 0; dt_node_is_seq(dt_doc_root(doc)) && i < dt_seq_size(dt_doc_root(doc)); i++) {
        const char *s = dt_node_text(dt_seq_at(dt_doc_root(doc), i));

        if (!s ||
            strcmp(s, "search.effort=quick") == 0) /* the usual; the table says it of each plan */
            continue;
        append(p->label, s);
        if (!is_size(s))
            append(p->group, s);
    }
    dt_doc_free(doc);
    return DT_OK;
}

static int by_group(const void *va, const void *vb)
{
    const struct point *a = va, *b = vb;
    int c = strcmp(a->group, b->group);

    if (c != 0)
        return c;
    if (a->r->gpus != b->r->gpus)
        return a->r->gpus < b->r->gpus ? -1 : 1;
    return strcmp(a->label, b->label);
}

/* For 10^9 tokens, of all GPUs of the cluster; NaN without a price. */
static double money(const struct dt_sweep_result *r)
{
    return r->price_per_gpu_hour > 0
               ? 1e9 * dt_sweep_token_s(r) / 3600 * r->gpus * r->price_per_gpu_hour
               : NAN;
}

/* The front of GPUs, time per token and, with a price, money: fewer GPUs are slower. */
static enum dt_status mark_front(struct sweep *s, struct dt_error *err)
{
    enum { GOALS = 3 };
    double *goal = dt_malloc(GOALS * (size_t)s->n * sizeof *goal);
    bool *front = dt_calloc((size_t)s->n, sizeof *front);

    if (!goal || !front) {
        dt_free(goal);
        dt_free(front);
        return dt_error_nomem(err, "a page");
    }
    for (int i = 0; i < s->n; i++) {
        const struct dt_sweep_result *r = s->p[i].r;

        goal[GOALS * i] = r->feasible ? gpus_of(s, r) : NAN;
        goal[GOALS * i + 1] = dt_sweep_token_s(r);
        goal[GOALS * i + 2] = s->priced ? money(r) : 0;
    }
    dt_sweep_front(goal, s->n, GOALS, front);
    for (int i = 0; i < s->n; i++)
        s->p[i].front = front[i];
    dt_free(goal);
    dt_free(front);
    return DT_OK;
}

static enum dt_status sweep_open(const struct dt_sweep_data *d, struct dt_error *err,
                                 struct sweep *s)
{
    *s = (struct sweep){.d = d, .n = d->n, .p = dt_calloc((size_t)d->n + 1, sizeof *s->p)};
    if (!s->p)
        return dt_error_nomem(err, "a page");
    for (int i = 0; i < d->n; i++) {
        s->p[i].r = &d->points[i].r;
        s->feasible += s->p[i].r->feasible != 0;
        s->priced |= isfinite(money(s->p[i].r));
        for (int k = i; k > 0 && s->p[i].r->feasible && !s->clusters; k--)
            if (s->p[k - 1].r->feasible) {
                s->clusters |= s->p[k - 1].r->gpus != s->p[i].r->gpus;
                s->sizes |= s->p[k - 1].r->gpus_used != s->p[i].r->gpus_used;
                break;
            }
        DT_TRY(read_set(d->points[i].set, err, &s->p[i]));
    }
    qsort(s->p, (size_t)s->n, sizeof *s->p, by_group);
    return mark_front(s, err);
}

/* ---- charts ---- */

enum what { ITERATION, TOKENS, MFU, MONEY };

static double value(const struct dt_sweep_result *r, enum what what)
{
    return !r->feasible        ? NAN
           : what == ITERATION ? r->iteration_s
           : what == TOKENS    ? r->tokens_per_s
           : what == MONEY     ? money(r)
                               : 100 * r->mfu;
}

struct columns { /* of all points, in their order */
    double *x, *y, *low, *high;
    bool *front;
};

static enum dt_status columns_new(const struct sweep *s, enum what what, struct dt_error *err,
                                  struct columns *c)
{
    size_t n = (size_t)s->n + 1;

    c->x = dt_calloc(4 * n, sizeof *c->x);
    c->front = dt_calloc(n, sizeof *c->front);
    if (!c->x || !c->front) {
        dt_free(c->x);
        dt_free(c->front);
        return dt_error_nomem(err, "a chart");
    }
    c->y = c->x + n;
    c->low = c->y + n;
    c->high = c->low + n;
    for (int i = 0; i < s->n; i++) {
        const struct dt_sweep_result *r = s->p[i].r;

        c->x[i] = gpus_of(s, r);
        c->y[i] = value(r, what);
        c->low[i] = what == ITERATION ? r->iteration_s_p10 : NAN;
        c->high[i] = what == ITERATION ? r->iteration_s_p90 : NAN;
        c->front[i] = what == TOKENS && s->p[i].front;
    }
    return DT_OK;
}

/* Points of a group are one series; the ninth group and all further ones are left to the table. */
static int make_series(const struct sweep *s, const struct columns *c,
                       struct dt_chart_series series[SERIES_MAX], int *left)
{
    int n = 0;

    *left = 0;
    for (int i = 0, j; i < s->n; i = j) {
        for (j = i + 1; j < s->n && strcmp(s->p[i].group, s->p[j].group) == 0;)
            j++;
        if (n == SERIES_MAX) {
            *left += j - i;
            continue;
        }
        series[n++] = (struct dt_chart_series){.name = s->p[i].group[0] ? s->p[i].group : NULL,
                                               .n = j - i,
                                               .x = &c->x[i],
                                               .y = &c->y[i],
                                               .low = &c->low[i],
                                               .high = &c->high[i],
                                               .front = &c->front[i]};
    }
    return n;
}

static enum dt_status over_gpus(struct dt_text *t, const struct sweep *s, enum what what,
                                struct dt_error *err)
{
    static const struct {
        const char *title, *label, *unit, *id;
    } words[] = {{"Iteration time", "iteration", "s", "sweep-iteration"},
                 {"Throughput", "throughput", "tokens/s", "sweep-tokens"},
                 {"MFU", "MFU", "%", "sweep-mfu"},
                 {"Money for 10^9 tokens, failures included", "money", "", "sweep-money"}};
    struct dt_chart_series series[SERIES_MAX];
    struct columns c = {0};
    char *svg, note[96] = "";
    enum dt_status st;
    int left;

    DT_TRY(columns_new(s, what, err, &c));
    const struct dt_chart chart = {
        .title = words[what].title,
        .x = {.label = s->clusters ? "GPUs in the cluster" : "GPUs used", .log = true},
        .y = {.label = words[what].label,
              .unit = words[what].unit,
              .log = what != MFU,
              .zero = what == MFU},
        .series = series,
        .n_series = make_series(s, &c, series, &left),
        .front_name = s->priced ? "front: none on as few GPUs is as fast and as cheap"
                                : "front: none on as few GPUs is as fast",
        .width = 1080};

    st = dt_chart_svg(&chart, DT_CHART_FRAGMENT, words[what].id, err, &svg);
    dt_free(c.x);
    dt_free(c.front);
    if (st != DT_OK)
        return st;
    if (left > 0)
        snprintf(note, sizeof note, " %d points of further combinations are in the table only.",
                 left);
    dt_html_raw(t, "<figure><div class=\"scroll\">");
    dt_html_raw(t, svg);
    dt_html_raw(t, "</div><figcaption>");
    dt_html_text(t, "%s, predicted%s.%s", words[what].title,
                 what == ITERATION ? "; whiskers: 80 % intervals" : "", note);
    dt_html_raw(t, "</figcaption></figure>\n");
    dt_free(svg);
    return DT_OK;
}

/* ---- the table ---- */

static void one_point(struct dt_html_table *b, const struct point *p, bool priced)
{
    const struct dt_sweep_result *r = p->r;
    char text[64];

    dt_html_cell(b, "%s%s", p->label, p->front ? " ★" : "");
    dt_html_cell(b, "%d", r->gpus);
    if (!r->feasible) {
        for (int k = 0; k < 6 + priced; k++)
            dt_html_cell(b, "–");
        dt_html_cell(b, "%s", r->reason);
        return;
    }
    dt_html_cell(b, "%d", r->gpus_used);
    snprintf(text, sizeof text, "%.3f", r->iteration_s);
    dt_html_cell_number(b, "iteration_s", r->iteration_s, text);
    dt_html_cell(b, "%.3f to %.3f", r->iteration_s_p10, r->iteration_s_p90);
    snprintf(text, sizeof text, "%.0f", r->tokens_per_s);
    dt_html_cell_number(b, "tokens_per_s", r->tokens_per_s, text);
    dt_html_cell(b, "%.2f", 100 * r->mfu);
    if (priced) {
        snprintf(text, sizeof text, "%.2f", money(r));
        dt_html_cell_number(b, "money", money(r), text);
    }
    dt_html_cell(b, "%.2f", r->memory_bytes_max / 1073741824);
    dt_html_cell(b, "%s (%s)", r->plan, r->effort);
}

static void table(struct dt_text *t, const struct sweep *s)
{
    struct dt_html_column columns[10] = {{"point", false},
                                         {"GPUs", true},
                                         {"used", true},
                                         {"iteration [s]", true},
                                         {"80 % interval [s]", true},
                                         {"tokens/s", true},
                                         {"MFU [%]", true}};
    struct dt_html_table b;
    int n = 7;

    if (s->priced)
        columns[n++] = (struct dt_html_column){"money for 10^9 tokens", true};
    columns[n++] = (struct dt_html_column){"memory [GiB]", true};
    columns[n++] =
        (struct dt_html_column){"plan (effort of its search), or why there is none", false};
    dt_html_table_begin(&b, t,
                        s->priced ? "All points; ★: no other on as few GPUs is as fast and as cheap"
                                  : "All points; ★: no other on as few GPUs is as fast",
                        columns, n);
    for (int i = 0; i < s->n; i++)
        one_point(&b, &s->p[i], s->priced);
    dt_html_table_end(&b);
}

static enum dt_status write_page(struct dt_text *t, const struct sweep *s,
                                 const struct dt_report_page_options *opt, struct dt_error *err)
{
    const char *slash = strrchr(s->d->job_name, '/'), *job = slash ? slash + 1 : s->d->job_name;
    char title[512];

    const char *dot = strrchr(job, '.');

    snprintf(title, sizeof title, "%.*s at %d points",
             (int)(dot && dot > job ? (size_t)(dot - job) : strlen(job)), job, s->n);
    DT_TRY(dt_html_page_begin(t, opt->title ? opt->title : title, err));
    dt_html_raw(t, "<h1>");
    dt_html_escape(t, opt->title ? opt->title : title);
    dt_html_raw(t, "</h1>\n<p class=\"answer\">");
    dt_html_text(
        t, "Sweep %lld, started %s: at %d of %d points a plan fits. All times are predictions.",
        (long long)s->d->id, s->d->started, s->feasible, s->n);
    dt_html_raw(t, "</p>\n");
    if (s->clusters || s->sizes) {
        dt_html_raw(t, "<h2>Over the number of GPUs</h2>\n");
        DT_TRY(over_gpus(t, s, ITERATION, err));
        DT_TRY(over_gpus(t, s, TOKENS, err));
        DT_TRY(over_gpus(t, s, MFU, err));
        if (s->priced)
            DT_TRY(over_gpus(t, s, MONEY, err));
    }
    dt_html_raw(t, "<h2>Points</h2>\n");
    table(t, s);
    dt_html_raw(t, "<p class=\"note\">");
    dt_html_escape(t, opt->made);
    dt_html_raw(t, "</p>\n");
    dt_html_page_end(t);
    return DT_OK;
}

enum dt_status dt_report_sweep_page(const struct dt_sweep_data *d,
                                    const struct dt_report_page_options *opt, struct dt_error *err,
                                    char **out)
{
    struct dt_text t = {0};
    struct sweep s;
    enum dt_status st = sweep_open(d, err, &s);

    if (st == DT_OK)
        st = write_page(&t, &s, opt, err);
    dt_free(s.p);
    if (st != DT_OK) {
        dt_free(t.s);
        return st;
    }
    return dt_text_finish(&t, err, out);
}
