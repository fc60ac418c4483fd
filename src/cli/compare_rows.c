/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * disttrain compare: the rows of its table, and its table and JSON of many runs. */
#include "cli/compare.h"

#include "cli/rows.h"
#include "cli/session.h"
#include "base/json.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* ---- rows ---- */

static void row(const struct dt_cli_compared *c, const char *name, const char *unit,
                dt_cli_compared_fn *fn, void *ctx)
{
    struct dt_cli_compared_row r = {.unit = unit};
    bool any = false;

    snprintf(r.name, sizeof(r.name), "%s", name);
    for (int k = 0; k < c->n; k++) {
        if (!dt_run_summary_find(&c->run[k], name, &r.v[k]))
            r.v[k] = NAN;
        any |= !isnan(r.v[k]);
    }
    if (any)
        fn(ctx, &r);
}

/* Modules of all runs, each once. */
static bool seen_before(const struct dt_cli_compared *c, int k, const char *name)
{
    for (int i = 0; i < k; i++)
        if (dt_run_summary_module(&c->run[i], name))
            return true;
    return false;
}

static void modules(const struct dt_cli_compared *c, int from, int to, dt_cli_compared_fn *fn,
                    void *ctx)
{
    char name[96];

    for (int k = 0; k < c->n; k++)
        for (int i = 0; i < c->run[k].n_modules; i++) {
            const char *module = c->run[k].module[i].name;

            for (int m = from; m < to && !seen_before(c, k, module); m++) {
                snprintf(name, sizeof(name), "%s.%s", module, dt_run_module_metric_rows[m].name);
                row(c, name, dt_run_module_metric_rows[m].unit, fn, ctx);
            }
        }
}

/* Are the peaks different, so that each run's own MFU is another number. */
static bool peaks_differ(const struct dt_cli_compared *c)
{
    for (int k = 0; k < c->n; k++)
        if (c->run[k].v[DT_RUN_mfu] != c->run[k].v[DT_RUN_mfu_own_peak] &&
            !isnan(c->run[k].v[DT_RUN_mfu]))
            return true;
    return false;
}

void dt_cli_compared_rows(const struct dt_cli_compared *c, dt_cli_compared_fn *fn, void *ctx)
{
    modules(c, DT_RUN_OF_model_flops, DT_RUN_OF_model_flops + 1, fn, ctx);
    for (int m = 0; m < DT_RUN_METRICS_N; m++)
        if (m != DT_RUN_mfu_own_peak || peaks_differ(c))
            row(c, dt_run_metric_rows[m].name, dt_run_metric_rows[m].unit, fn, ctx);
    modules(c, DT_RUN_OF_model_flops + 1, DT_RUN_MODULE_METRICS_N, fn, ctx);
}

/* ---- for people ---- */

/* The units that values are printed in: of a row the largest that its largest value reaches.  Names of times end in "_s",
 * and so these are always seconds. */
static const struct {
    const char *unit, *shown;
    double is;
} shown[] = {
    {"share", "%", 0.01},        {"bytes", "MiB", 1048576},  {"bytes", "GiB", 1073741824},
    {"flop", "MFLOP", 1e6},      {"flop", "GFLOP", 1e9},     {"flop", "TFLOP", 1e12},
    {"flop", "PFLOP", 1e15},     {"flop/s", "MFLOP/s", 1e6}, {"flop/s", "GFLOP/s", 1e9},
    {"flop/s", "TFLOP/s", 1e12}, {"1/s", "per s", 1},
};
enum { SHOWN_N = sizeof(shown) / sizeof(shown[0]) };

static double unit_of_row(const struct dt_cli_compared *c, const struct dt_cli_compared_row *r,
                          const char **name)
{
    double most = 0, is = 1;
    bool first = true;

    *name = r->unit;
    for (int k = 0; k < c->n; k++)
        most = fabs(r->v[k]) > most ? fabs(r->v[k]) : most;
    for (int i = 0; i < SHOWN_N; i++)
        if (strcmp(shown[i].unit, r->unit) == 0 && (first || most >= shown[i].is)) {
            *name = shown[i].shown;
            is = shown[i].is;
            first = false;
        }
    return is;
}

/* Numbers of a column differ in size by many orders: about six digits of each. */
static void number_text(double v, char *buf, size_t size)
{
    if (isnan(v))
        snprintf(buf, size, "-");
    else if (v != 0 && (fabs(v) < 1e-4 || fabs(v) >= 1e9))
        snprintf(buf, size, "%.4e", v);
    else if (v == floor(v) && fabs(v) >= 1)
        snprintf(buf, size, "%.0f", v);
    else
        snprintf(buf, size, "%.*f",
                 fabs(v) >= 1e5    ? 0
                 : fabs(v) >= 1000 ? 1
                 : fabs(v) >= 10   ? 2
                 : fabs(v) >= 0.1  ? 4
                                   : 6,
                 v);
}

struct table {
    const struct dt_cli_compared *c;
    struct dt_cli_rows *rows;
};

static void print_row(void *ctx, const struct dt_cli_compared_row *r)
{
    const struct table *t = ctx;
    char text[64], head[32];
    const char *unit;
    double is;

    dt_cli_row(t->rows);
    dt_cli_row_cell(t->rows, "what", "%s", r->name);
    is = unit_of_row(t->c, r, &unit);
    dt_cli_row_cell(t->rows, "unit", "%s", unit);
    for (int k = 0; k < t->c->n; k++) {
        double relative = dt_compare_relative(r->v[0], r->v[k]);

        snprintf(head, sizeof(head), t->c->n == 1 ? "value" : "%c", 'a' + k);
        number_text(r->v[k] / is, text, sizeof(text));
        dt_cli_row_cell(t->rows, head, "%s", text);
        if (k == 0)
            continue;
        snprintf(head, sizeof(head), "%c - a [%%]", 'a' + k);
        dt_cli_row_cell(t->rows, head, isfinite(relative) ? "%+.1f" : "-", 100 * relative);
    }
}

static void print_layouts(const struct dt_cli_compared *c)
{
    struct dt_cli_rows o;
    bool any = false;
    char head[8];

    dt_cli_rows_table(&o);
    for (int k = 0; k < c->n; k++)
        for (int i = 0; i < c->run[k].n_modules; i++) {
            const char *name = c->run[k].module[i].name;

            if (seen_before(c, k, name))
                continue;
            dt_cli_row(&o);
            dt_cli_row_cell(&o, "layout of", "%s", name);
            for (int j = 0; j < c->n; j++) {
                const struct dt_run_module *m = dt_run_summary_module(&c->run[j], name);

                snprintf(head, sizeof(head), c->n == 1 ? "is" : "%c", 'a' + j);
                dt_cli_row_cell(&o, head, "%s", m && m->layout[0] ? m->layout : "-");
                any |= m && m->layout[0];
            }
        }
    if (any) {
        printf("\n");
        dt_cli_rows_end(&o, stdout);
    } else {
        dt_cli_table_free(&o.cells);
    }
}

static void print_work(const struct dt_cli_compared *c, int k)
{
    char text[4000];
    size_t n = 0;

    if (c->work[k] == DT_COMPARE_SAME) {
        printf("%c: the same work as a\n", 'a' + k);
        return;
    }
    if (c->work[k] == DT_COMPARE_UNKNOWN) {
        printf("%c: whether its work is that of a is not known\n", 'a' + k);
        return;
    }
    for (int i = 0; i < c->run[0].n_modules && n < sizeof(text); i++) {
        const char *name = c->run[0].module[i].name;
        double r = dt_compare_module_work(&c->run[0], &c->run[k], name);

        if (!dt_run_summary_module(&c->run[k], name) && !c->run[k].measured)
            n +=
                (size_t)snprintf(text + n, sizeof(text) - n, "%s%s not in it", n ? ", " : "", name);
        else if (!isnan(r))
            n += (size_t)snprintf(text + n, sizeof(text) - n, "%s%s %+.2f %%", n ? ", " : "", name,
                                  100 * r);
    }
    printf("%c: OTHER WORK than a%s%s%s: neither predicts the other\n", 'a' + k,
           n ? " (model FLOPs: " : "", n ? text : "", n ? ")" : "");
}

static void print_heads(const struct dt_cli_compared *c)
{
    char text[1400];

    for (int k = 0; k < c->n; k++) {
        const struct dt_run_summary *s = &c->run[k];

        dt_run_about_text(&s->about, text, sizeof(text));
        if (s->measured)
            printf("%c  %s: %s\n", 'a' + k, s->file, text);
        else
            printf("%c  run %lld: %s%s%s%s, %lld ops\n", 'a' + k, (long long)s->about.id, text,
                   s->about.tags[0] ? " [" : "", s->about.tags, s->about.tags[0] ? "]" : "",
                   (long long)s->about.n_ops);
    }
    for (int k = 1; k < c->n; k++) {
        print_work(c, k);
        dt_cli_compared_differences(c, k, text, sizeof(text));
        if (text[0])
            printf("   %s: %s\n",
                   c->work[k] == DT_COMPARE_OTHER ? "not the same job" : "other choices", text);
        if (c->run[0].facts.n == 0 || c->run[k].facts.n == 0)
            printf("   whether they are of the same job is not known: %c does not record it\n",
                   c->run[0].facts.n == 0 ? 'a' : 'a' + k);
    }
}

static void print_peak(const struct dt_cli_compared *c)
{
    const struct dt_run_summary *of = &c->run[c->peak_of];

    if (c->peak_flops > 0 && c->n > 1)
        printf("mfu: of %.4g TFLOP/s per GPU or process on all sides, %s by %c%s\n",
               1e-12 * c->peak_flops,
               of->measured || strcmp(of->about.kind, "executed") == 0 ? "measured" : "stated",
               'a' + c->peak_of, peaks_differ(c) ? "; mfu_own_peak: each of its own" : "");
    for (int k = 0; k < c->n; k++)
        if (!isnan(c->run[k].v[DT_RUN_mfu]) && !(c->run[k].peak_flops > 0) && c->n > 1)
            printf("mfu of %c is of a peak that it does not state\n", 'a' + k);
}

/* Of which modules ops are joined, and of which not and why. */
static void print_joined(const struct dt_cli_compared *c, int k)
{
    const struct dt_compare *p = &c->pair[k];

    printf("\n%c and a op by op: %lld ops joined, %lld only in a, %lld only in %c\n", 'a' + k,
           (long long)p->joined, (long long)p->only_a, (long long)p->only_b, 'a' + k);
    for (int i = 0; i < p->n_modules; i++)
        if (p->module[i].why_not[0])
            printf("   %s is compared as a whole only: %s\n", p->module[i].name,
                   p->module[i].why_not);
    if (p->joined > 0 && !isnan(p->median_abs_error))
        printf(p->n_differ == 0 && c->work[k] != DT_COMPARE_OTHER
                   ? "   compute ops: median |error| %.1f %%, bias %+.1f %%\n"
                   : "   compute ops: median |difference| %.1f %%, mean %+.1f %%\n",
               100 * p->median_abs_error, 100 * p->bias);
}

void dt_cli_compared_print_values(const struct dt_cli_compared *c)
{
    struct dt_cli_rows o;
    struct table t = {c, &o};

    print_layouts(c);
    printf("\n");
    dt_cli_rows_table(&o);
    dt_cli_compared_rows(c, print_row, &t);
    dt_cli_rows_end(&o, stdout);
    print_peak(c);
}

void dt_cli_compared_print(const struct dt_cli_compared *c, int top)
{
    print_heads(c);
    dt_cli_compared_print_values(c);
    for (int k = 1; k < c->n; k++)
        if (c->paired[k]) {
            print_joined(c, k);
            if (c->n == 2)
                dt_cli_compared_print_ops(&c->pair[k], top);
        }
}

/* ---- for programs ---- */

static void json_row(void *ctx, const struct dt_cli_compared_row *r)
{
    const struct table *t = ctx;
    struct dt_json *j = t->rows->json;

    dt_cli_row(t->rows);
    dt_cli_row_text(t->rows, "name", NULL, r->name);
    dt_cli_row_text(t->rows, "unit", NULL, r->unit);
    dt_json_key(j, "values");
    dt_json_begin_array(j);
    for (int k = 0; k < t->c->n; k++)
        dt_json_double(j, r->v[k]);
    dt_json_end_array(j);
    dt_json_key(j, "relative");
    dt_json_begin_array(j);
    for (int k = 0; k < t->c->n; k++)
        dt_json_double(j, dt_compare_relative(r->v[0], r->v[k]));
    dt_json_end_array(j);
}

static void json_layouts(struct dt_json *j, const struct dt_run_summary *s)
{
    struct dt_cli_rows o;

    dt_cli_rows_json(&o, j, "modules");
    for (int i = 0; i < s->n_modules; i++) {
        dt_cli_row(&o);
        dt_cli_row_text(&o, "name", NULL, s->module[i].name);
        dt_cli_row_text(&o, "layout", NULL, s->module[i].layout[0] ? s->module[i].layout : NULL);
        dt_cli_row_number(&o, "model_flops", NULL, NULL, 1, s->module[i].v[DT_RUN_OF_model_flops]);
    }
    dt_cli_rows_end(&o, NULL);
}

static void json_run(struct dt_json *j, const struct dt_cli_compared *c, int k)
{
    static const char *const work[] = {"same", "other", "unknown"};
    const struct dt_run_summary *s = &c->run[k];

    dt_json_begin_object(j);
    dt_json_kv_string(j, "file", s->file);
    dt_cli_run_json_members(j, s);
    dt_json_kv_string(j, "work", work[c->work[k]]);
    dt_json_kv_double(j, "peak_flops", s->peak_flops > 0 ? s->peak_flops : NAN);
    json_layouts(j, s);
    dt_json_end_object(j);
}

void dt_cli_compared_json_rows(struct dt_json *j, const struct dt_cli_compared *c)
{
    struct dt_cli_rows o;
    struct table t = {c, &o};

    dt_cli_rows_json(&o, j, "rows");
    dt_cli_compared_rows(c, json_row, &t);
    dt_cli_rows_end(&o, NULL);
}

enum dt_status dt_cli_compared_json(const struct dt_cli_compared *c, struct dt_error *err)
{
    struct dt_json j;

    dt_json_init(&j, true);
    dt_json_begin_object(&j);
    dt_json_key(&j, "runs");
    dt_json_begin_array(&j);
    for (int k = 0; k < c->n; k++)
        json_run(&j, c, k);
    dt_json_end_array(&j);
    dt_json_kv_double(&j, "peak_flops", c->peak_flops);
    dt_cli_compared_json_rows(&j, c);
    if (c->n == 2 && c->paired[1]) {
        dt_cli_compared_json_ops(&j, c, 1);
    } else {
        dt_json_key(&j, "pairs");
        dt_json_begin_array(&j);
        for (int k = 1; k < c->n; k++)
            if (c->paired[k]) {
                dt_json_begin_object(&j);
                dt_cli_compared_json_ops(&j, c, k);
                dt_json_end_object(&j);
            }
        dt_json_end_array(&j);
    }
    dt_json_end_object(&j);
    return dt_cli_json_emit(&j, err);
}
