/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * disttrain compare: two runs side by side, worst differences first. */
#include "cli/session.h"
#include "cli/rows.h"
#include "report/compare.h"
#include "base/doc.h"
#include "base/mem.h"
#include "base/number.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static const struct dt_cli_option options[] = {
    {"tolerance", 't', DT_OPT_LIST, "NAME=PERCENT",
     "fail (exit status 4) when a line differs by more, such as iteration_s=5%"},
    {"anyway", 0, DT_OPT_FLAG, NULL, "also compare runs of different jobs"},
    {"top", 0, DT_OPT_INT, "N", "lines to print (default 20; 0 = all)"},
    {"runs", 0, DT_OPT_STRING, "FILE",
     "the runs file, for runs named without one (default $DISTTRAIN_RUNS or ./disttrain-runs.db)"},
    {NULL, 0, DT_OPT_FLAG, NULL, NULL},
};

static double relative(const struct dt_compare_line *l)
{
    return dt_compare_relative(l->a_s, l->b_s);
}

static double memory_relative(const struct dt_compare_memory *m)
{
    return dt_compare_relative((double)dt_compare_memory_a(m), (double)dt_compare_memory_b(m));
}

/* ---- one job? ---- */

/* "samples (a: text, 1f...; b: x.tar, step 22, 3e...), precision (a: bf16; b: fp32)" */
static void name_differences(const struct dt_compare *c, char *buf, size_t size)
{
    size_t n = 0;

    buf[0] = '\0';
    for (int i = 0; i < c->n_differ && n < size; i++)
        n += (size_t)snprintf(buf + n, size - n, "%s%s (a: %s; b: %s)", i ? ", " : "",
                              c->differ[i].name, c->differ[i].a, c->differ[i].b);
}

static enum dt_status one_job(const struct dt_compare *c, struct dt_error *err)
{
    char text[3000];

    if (c->n_differ == 0)
        return DT_OK;
    name_differences(c, text, sizeof(text));
    return dt_error_set(err, DT_ERR_INPUT,
                        "not the same job: %s; --anyway compares them nevertheless, but neither is "
                        "a prediction of the other",
                        text);
}

/* ---- tolerances ---- */

/* "lane llm/0.1 memory_bytes"; NULL. */
static const struct dt_compare_memory *find_memory(const struct dt_compare *c, const char *name)
{
    char text[96];

    for (int i = 0; i < c->n_memory; i++) {
        snprintf(text, sizeof(text), "lane %s memory_bytes", c->memory[i].name);
        if (strcmp(text, name) == 0)
            return &c->memory[i];
    }
    return NULL;
}

struct tolerance {
    char name[96];
    double percent;
};

static enum dt_status parse(const char *text, struct dt_error *err, struct tolerance *t)
{
    const char *eq = strrchr(text, '=');
    char number[32];
    size_t n;

    if (!eq || eq == text || (size_t)(eq - text) >= sizeof(t->name) ||
        strlen(eq + 1) >= sizeof(number))
        return dt_error_set(err, DT_ERR_USAGE,
                            "--tolerance: '%s' is not NAME=PERCENT, such as iteration_s=5%%", text);
    snprintf(t->name, sizeof(t->name), "%.*s", (int)(eq - text), text);
    snprintf(number, sizeof(number), "%s", eq + 1);
    n = strlen(number);
    if (n > 0 && number[n - 1] == '%')
        number[n - 1] = '\0';
    if (!dt_number_double(number, &t->percent) || !(t->percent >= 0))
        return dt_error_set(err, DT_ERR_USAGE, "--tolerance: '%s' is not a percentage of 0 or more",
                            eq + 1);
    return DT_OK;
}

static enum dt_status no_such_line(const struct dt_compare *c, const char *name,
                                   struct dt_error *err)
{
    size_t n = 0, most = (size_t)c->n + (size_t)c->n_metrics;
    const char **words = dt_malloc((most + 1) * sizeof(*words)), *near;

    if (!words)
        return dt_error_nomem(err, "names of lines");
    for (int i = 0; i < c->n; i++)
        words[n++] = c->line[i].name;
    for (int i = 0; i < c->n_metrics; i++)
        words[n++] = c->metric[i].name;
    words[n] = NULL;
    near = dt_suggest(name, words);
    dt_error_set(err, DT_ERR_USAGE,
                 "--tolerance: these runs have no line '%s'%s%s%s; without --tolerance, the first "
                 "column names them",
                 name, near ? "; did you mean '" : "", near ? near : "", near ? "'?" : "");
    dt_free(words);
    return DT_ERR_USAGE;
}

/* b's difference from a in the line that the tolerance names. */
static enum dt_status difference(const struct dt_compare *c, const struct tolerance *t,
                                 struct dt_error *err, double *out)
{
    const struct dt_compare_line *l = dt_compare_find(c, t->name);
    const struct dt_compare_metric *m = dt_compare_find_metric(c, t->name);
    const struct dt_compare_memory *k = find_memory(c, t->name);

    if (!l && !m && !k)
        return no_such_line(c, t->name, err);
    *out = l ? relative(l) : m ? dt_compare_relative(m->a, m->b) : memory_relative(k);
    return DT_OK;
}

/* Before any work (c: NULL), what the tolerances say; then that there are such lines. */
static enum dt_status check_options(const struct dt_cli *cli, const struct dt_compare *c,
                                    struct dt_error *err)
{
    struct tolerance t;
    double differs;

    for (int i = 0; i < cli->n_list; i++) {
        DT_TRY(parse(cli->list[i], err, &t));
        if (c)
            DT_TRY(difference(c, &t, err, &differs));
    }
    return DT_OK;
}

static enum dt_status check(const struct dt_compare *c, const char *text, struct dt_error *err)
{
    struct tolerance t;
    double differs;

    DT_TRY(parse(text, err, &t));
    DT_TRY(difference(c, &t, err, &differs));
    if (fabs(differs) <= t.percent / 100)
        return DT_OK;
    return dt_error_set(err, DT_ERR_TOLERANCE, "%s differs by %+.2f %%, more than %g %%", t.name,
                        100 * differs, t.percent);
}

/* ---- results ---- */

static int worst_first(const void *a, const void *b)
{
    const struct dt_compare_line *x = a, *y = b;
    double dx = fabs(x->b_s - x->a_s), dy = fabs(y->b_s - y->a_s);

    return dx != dy ? (dx < dy ? 1 : -1) : strcmp(x->name, y->name);
}

static void print_head(const char *what, const struct dt_run_head *h)
{
    printf("%s  run %lld, %s %s, %s, %lld ops\n", what, (long long)h->id, h->kind, h->started,
           h->job, (long long)h->n_ops);
}

static int worst_metric_first(const void *a, const void *b)
{
    const struct dt_compare_metric *x = a, *y = b;
    double dx = fabs(dt_compare_relative(x->a, x->b)), dy = fabs(dt_compare_relative(y->a, y->b));

    return dx != dy ? (dx < dy ? 1 : -1) : strcmp(x->name, y->name);
}

/* "relative" has no number where a is 0 and b is not: 0 for programs, "-" for people. */
static void add_relative(struct dt_cli_rows *o, double r)
{
    dt_cli_row_number(o, "relative", NULL, NULL, 1, isfinite(r) ? r : 0);
    dt_cli_row_number(o, NULL, "[%]", "%+.1f", 100, r);
}

static void metrics(struct dt_cli_rows *o, const struct dt_compare *c)
{
    for (int i = 0; i < c->n_metrics; i++) {
        const struct dt_compare_metric *m = &c->metric[i];

        dt_cli_row(o);
        dt_cli_row_text(o, "name", "of the run", m->name);
        dt_cli_row_number(o, "a", "a", "%.6g", 1, m->a);
        dt_cli_row_number(o, "b", "b", "%.6g", 1, m->b);
        dt_cli_row_number(o, "difference", "b - a", "%+.6g", 1, m->b - m->a);
        add_relative(o, dt_compare_relative(m->a, m->b));
    }
}

static void print_metrics(const struct dt_compare *c)
{
    struct dt_cli_rows o;

    dt_cli_rows_table(&o);
    metrics(&o, c);
    printf("\n");
    dt_cli_rows_end(&o, stdout);
    if (c->peak_flops > 0 && dt_compare_find_metric(c, "mfu"))
        printf("mfu: of %.4g GFLOP/s per GPU or process on both sides, %s by %s\n",
               1e-9 * c->peak_flops,
               strcmp(c->peak_of_b ? c->b.kind : c->a.kind, "executed") == 0 ? "measured"
                                                                             : "stated",
               c->peak_of_b ? "b" : "a");
}

static int worst_memory_first(const void *a, const void *b)
{
    const struct dt_compare_memory *x = a, *y = b;
    double dx = fabs(memory_relative(x)), dy = fabs(memory_relative(y));

    return dx != dy ? (dx < dy ? 1 : -1) : strcmp(x->name, y->name);
}

/* Bytes, or -1: null for programs, "-" for people, who get no column of dashes. */
static void add_bytes(struct dt_cli_rows *o, const char *key, const char *head, int64_t bytes)
{
    if (o->json && bytes < 0)
        dt_cli_row_text(o, key, NULL, NULL);
    else if (o->json)
        dt_cli_row_int(o, key, NULL, bytes);
    else
        dt_cli_row_number(o, NULL, head, "%.2f", 1, bytes < 0 ? NAN : (double)bytes / 1048576);
}

static void memory(struct dt_cli_rows *o, const struct dt_compare *c, int top)
{
    bool a = false, b = false; /* lanes that were not executed have nothing allocated */

    for (int i = 0; i < c->n_memory; i++) {
        a |= c->memory[i].a_allocated >= 0;
        b |= c->memory[i].b_allocated >= 0;
    }
    for (int i = 0; i < c->n_memory && (top == 0 || i < top); i++) {
        const struct dt_compare_memory *m = &c->memory[i];
        double r = memory_relative(m);

        dt_cli_row(o);
        dt_cli_row_text(o, "lane", "memory of lanes", m->name);
        if (o->json)
            add_bytes(o, "rank", NULL, m->rank);
        dt_cli_row_text(o, "host", NULL, m->host[0] ? m->host : NULL);
        dt_cli_row_cell(o, "rank", m->rank >= 0 ? "%d%s%s" : "-", m->rank, m->host[0] ? " on " : "",
                        m->host);
        add_bytes(o, "a_predicted_bytes", "a predicted [MiB]", m->a_predicted);
        add_bytes(o, "a_allocated_bytes", a ? "a allocated" : NULL, m->a_allocated);
        add_bytes(o, "b_predicted_bytes", "b predicted", m->b_predicted);
        add_bytes(o, "b_allocated_bytes", b ? "b allocated" : NULL, m->b_allocated);
        dt_cli_row_int(o, "difference_bytes", NULL,
                       dt_compare_memory_b(m) - dt_compare_memory_a(m));
        dt_cli_row_number(o, "relative", NULL, NULL, 1, isfinite(r) ? r : 0);
        dt_cli_row_cell(o, "b - a [%]", "%+.1f", 100 * r);
    }
}

static void print_memory(const struct dt_compare *c, int top)
{
    struct dt_cli_rows o;

    dt_cli_rows_table(&o);
    memory(&o, c, top);
    printf("\n");
    dt_cli_rows_end(&o, stdout);
}

static void lines(struct dt_cli_rows *o, const struct dt_compare *c, int top)
{
    for (int i = 0; i < c->n && (top == 0 || i <= top); i++) {
        const struct dt_compare_line *l = &c->line[i];

        dt_cli_row(o);
        dt_cli_row_text(o, "name", "what", l->name);
        dt_cli_row_int(o, "ops", "ops", l->n);
        dt_cli_row_number(o, "a_s", "a [ms]", "%.3f", 1e3, l->a_s);
        dt_cli_row_number(o, "b_s", "b [ms]", "%.3f", 1e3, l->b_s);
        dt_cli_row_number(o, "difference_s", "b - a [ms]", "%+.3f", 1e3, l->b_s - l->a_s);
        add_relative(o, relative(l));
        dt_cli_row_number(o, "median", "median of ops [%]", "%+.1f", 100, l->median);
    }
}

static void print_table(const struct dt_compare *c, int top)
{
    struct dt_cli_rows o;

    print_head("a", &c->a);
    print_head("b", &c->b);
    if (c->n_differ > 0) {
        char text[3000];

        name_differences(c, text, sizeof(text));
        printf("not the same job: %s\n", text);
    } else if (c->facts_a.n == 0 || c->facts_b.n == 0) {
        printf("it is not known whether they are of the same job: %s does not record it\n",
               c->facts_a.n == 0 ? "a" : "b");
    }
    printf("%lld ops joined, %lld only in a, %lld only in b\n\n", (long long)c->joined,
           (long long)c->only_a, (long long)c->only_b);
    dt_cli_rows_table(&o);
    lines(&o, c, top);
    dt_cli_rows_end(&o, stdout);
    if (c->n_metrics > 0)
        print_metrics(c);
    if (c->n_memory > 0)
        print_memory(c, top);
    printf(c->n_differ == 0 ? "\ncompute ops: median |error| %.1f %%, bias %+.1f %%\n"
                            : "\ncompute ops: median |difference| %.1f %%, mean %+.1f %%\n",
           100 * c->median_abs_error, 100 * c->bias);
}

static void json_head(struct dt_json *j, const char *key, const struct dt_run_head *h)
{
    dt_json_key(j, key);
    dt_json_begin_object(j);
    dt_json_kv_int(j, "run", h->id);
    dt_json_kv_string(j, "kind", h->kind);
    dt_json_kv_string(j, "job", h->job);
    dt_json_kv_string(j, "started", h->started);
    dt_json_kv_string(j, "version", h->version);
    dt_json_kv_int(j, "ops", h->n_ops);
    dt_json_end_object(j);
}

/* same_job: null where it is not known. */
static void json_job(const struct dt_compare *c, struct dt_json *j)
{
    dt_json_key(j, "same_job");
    if (c->facts_a.n == 0 || c->facts_b.n == 0)
        dt_json_null(j);
    else
        dt_json_bool(j, c->n_differ == 0);
    dt_json_key(j, "differs");
    dt_json_begin_array(j);
    for (int i = 0; i < c->n_differ; i++) {
        dt_json_begin_object(j);
        dt_json_kv_string(j, "name", c->differ[i].name);
        dt_json_kv_string(j, "a", c->differ[i].a);
        dt_json_kv_string(j, "b", c->differ[i].b);
        dt_json_end_object(j);
    }
    dt_json_end_array(j);
}

/* Runs of two jobs differ; that is no error of a prediction. */
static void json_error(struct dt_json *j, const char *key, const struct dt_compare *c, double v)
{
    dt_json_key(j, key);
    if (c->n_differ == 0)
        dt_json_double(j, v);
    else
        dt_json_null(j);
}

static enum dt_status print_json(const struct dt_compare *c, struct dt_error *err)
{
    struct dt_cli_rows o;
    struct dt_json j;

    dt_json_init(&j, true);
    dt_json_begin_object(&j);
    json_head(&j, "a", &c->a);
    json_head(&j, "b", &c->b);
    dt_json_kv_int(&j, "joined", c->joined);
    dt_json_kv_int(&j, "only_a", c->only_a);
    dt_json_kv_int(&j, "only_b", c->only_b);
    json_job(c, &j);
    dt_json_kv_double(&j, "median_abs_difference", c->median_abs_error);
    dt_json_kv_double(&j, "mean_difference", c->bias);
    json_error(&j, "median_abs_error", c, c->median_abs_error);
    json_error(&j, "bias", c, c->bias);
    dt_json_kv_double(&j, "peak_flops", c->peak_flops);
    dt_cli_rows_json(&o, &j, "lines");
    lines(&o, c, 0);
    dt_cli_rows_end(&o, NULL);
    dt_cli_rows_json(&o, &j, "metrics");
    metrics(&o, c);
    dt_cli_rows_end(&o, NULL);
    dt_cli_rows_json(&o, &j, "memory");
    memory(&o, c, 0);
    dt_cli_rows_end(&o, NULL);
    dt_json_end_object(&j);
    return dt_cli_json_emit(&j, err);
}

static enum dt_status command(struct dt_cli *cli, struct dt_error *err)
{
    const char *file = dt_cli_runs_file(cli);
    struct dt_run_ref a, b;
    struct dt_compare c;
    enum dt_status st = DT_OK;
    int64_t top;

    DT_TRY(dt_cli_int(cli, "top", 0, 1 << 20, 20, &top, err));
    DT_TRY(check_options(cli, NULL, err));
    DT_TRY(dt_run_find(cli->args[0], file, err, &a));
    DT_TRY(dt_run_find(cli->args[1], file, err, &b));
    DT_TRY(dt_compare_runs(&a, &b, err, &c));
    if (!dt_cli_flag(cli, "anyway"))
        st = one_job(&c, err);
    if (st == DT_OK)
        st = check_options(cli, &c, err);
    if (st != DT_OK) {
        dt_compare_free(&c);
        return st;
    }
    if (c.n > 1)
        qsort(c.line + 1, (size_t)c.n - 1, sizeof(*c.line), worst_first);
    qsort(c.metric, (size_t)c.n_metrics, sizeof(*c.metric), worst_metric_first);
    if (c.n_memory > 0)
        qsort(c.memory, (size_t)c.n_memory, sizeof(*c.memory), worst_memory_first);
    if (cli->json)
        st = print_json(&c, err);
    else
        print_table(&c, (int)top);
    for (int i = 0; i < cli->n_list && st == DT_OK; i++)
        st = check(&c, cli->list[i], err);
    dt_compare_free(&c);
    return st;
}

const struct dt_cli_command dt_cmd_compare = {
    .name = "compare",
    .args = "RUN RUN",
    .summary = "two runs side by side, simulated or executed",
    .options = options,
    .min_args = 2,
    .max_args = 2,
    .run = command,
};
