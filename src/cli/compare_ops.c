/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * disttrain compare: two runs op by op, worst differences first. */
#include "cli/compare.h"

#include "cli/rows.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static double relative(const struct dt_compare_line *l)
{
    return dt_compare_relative(l->a_s, l->b_s);
}

static double memory_relative(const struct dt_compare_memory *m)
{
    return dt_compare_relative((double)dt_compare_memory_a(m), (double)dt_compare_memory_b(m));
}

static int worst_first(const void *a, const void *b)
{
    const struct dt_compare_line *x = a, *y = b;
    double dx = fabs(x->b_s - x->a_s), dy = fabs(y->b_s - y->a_s);

    return dx != dy ? (dx < dy ? 1 : -1) : strcmp(x->name, y->name);
}

static int worst_memory_first(const void *a, const void *b)
{
    const struct dt_compare_memory *x = a, *y = b;
    double dx = fabs(memory_relative(x)), dy = fabs(memory_relative(y));

    return dx != dy ? (dx < dy ? 1 : -1) : strcmp(x->name, y->name);
}

void dt_cli_compared_sort(struct dt_compare *p)
{
    if (p->n > 1)
        qsort(p->line + 1, (size_t)p->n - 1, sizeof(*p->line), worst_first);
    if (p->n_memory > 0)
        qsort(p->memory, (size_t)p->n_memory, sizeof(*p->memory), worst_memory_first);
}

/* "relative" has no number where a is 0 and b is not: null for programs, "-" for people. */
static void add_relative(struct dt_cli_rows *o, double r)
{
    dt_cli_row_number(o, "relative", NULL, NULL, 1, r);
    dt_cli_row_number(o, NULL, "[%]", "%+.1f", 100, r);
}

static void lines(struct dt_cli_rows *o, const struct dt_compare *c, int top)
{
    for (int i = o->json ? 0 : 1; i < c->n && (top == 0 || i <= top); i++) {
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
        dt_cli_row_number(o, "relative", NULL, NULL, 1, r);
        dt_cli_row_cell(o, "b - a [%]", isfinite(r) ? "%+.1f" : "-", 100 * r);
    }
}

void dt_cli_compared_print_ops(const struct dt_compare *p, int top)
{
    struct dt_cli_rows o;

    if (p->n > 1) {
        dt_cli_rows_table(&o);
        lines(&o, p, top);
        printf("\n");
        dt_cli_rows_end(&o, stdout);
    }
    if (p->n_memory > 0) {
        dt_cli_rows_table(&o);
        memory(&o, p, top);
        printf("\n");
        dt_cli_rows_end(&o, stdout);
    }
}

/* ---- for programs ---- */

void dt_cli_run_json_members(struct dt_json *j, const struct dt_run_summary *s)
{
    const struct dt_run_about *a = &s->about;
    char text[1400];

    if (s->measured)
        dt_json_kv_string(j, "run", NULL);
    else
        dt_json_kv_int(j, "run", a->id);
    dt_json_kv_string(j, "name", dt_run_about_text(a, text, sizeof(text)));
    dt_json_kv_string(j, "kind", a->kind);
    dt_json_kv_string(j, "job", s->measured ? a->job : a->job_file);
    dt_json_kv_string(j, "strategy", a->strategy[0] ? a->strategy : NULL);
    dt_json_kv_string(j, "overrides", a->overrides[0] ? a->overrides : NULL);
    dt_json_kv_string(j, "host", a->host[0] ? a->host : NULL);
    dt_json_kv_string(j, "started", a->started[0] ? a->started : NULL);
    dt_json_kv_string(j, "version", a->version[0] ? a->version : NULL);
    dt_json_kv_string(j, "tags", a->tags[0] ? a->tags : NULL);
    dt_json_kv_int(j, "ops", s->kept_ops);
}

static void json_head(struct dt_json *j, const char *key, const struct dt_run_summary *s)
{
    dt_json_key(j, key);
    dt_json_begin_object(j);
    dt_cli_run_json_members(j, s);
    dt_json_end_object(j);
}

/* same_job: null where it is not known. */
static void json_job(const struct dt_compare *c, struct dt_json *j)
{
    dt_json_key(j, "same_job");
    if (c->a.facts.n == 0 || c->b.facts.n == 0)
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

static void json_joined(const struct dt_compare *c, struct dt_json *j)
{
    struct dt_cli_rows o;

    dt_cli_rows_json(&o, j, "joined_modules");
    for (int i = 0; i < c->n_modules; i++) {
        const struct dt_compare_module *m = &c->module[i];

        dt_cli_row(&o);
        dt_cli_row_text(&o, "name", NULL, m->name);
        dt_cli_row_int(&o, "ops", NULL, m->joined);
        dt_cli_row_text(&o, "why_not", NULL, m->why_not[0] ? m->why_not : NULL);
    }
    dt_cli_rows_end(&o, NULL);
}

static void metric(void *ctx, const struct dt_cli_compared_row *r, int k)
{
    struct dt_cli_rows *o = ctx;

    dt_cli_row(o);
    dt_cli_row_text(o, "name", NULL, r->name);
    dt_cli_row_number(o, "a", NULL, NULL, 1, r->v[0]);
    dt_cli_row_number(o, "b", NULL, NULL, 1, r->v[k]);
    dt_cli_row_number(o, "difference", NULL, NULL, 1, r->v[k] - r->v[0]);
    add_relative(o, dt_compare_relative(r->v[0], r->v[k]));
}

struct metrics {
    struct dt_cli_rows o;
    int k;
};

/* Those of whole runs that both state. */
static void metric_of_run(void *ctx, const struct dt_cli_compared_row *r)
{
    struct metrics *m = ctx;

    if (!strchr(r->name, '.') && strcmp(r->name, "iteration_s") != 0 && !isnan(r->v[0]) &&
        !isnan(r->v[m->k]))
        metric(&m->o, r, m->k);
}

void dt_cli_compared_json_ops(struct dt_json *j, const struct dt_cli_compared *all, int k)
{
    const struct dt_compare *c = &all->pair[k];
    bool error = c->n_differ == 0 && all->work[k] != DT_COMPARE_OTHER;
    struct metrics m = {.k = k};
    struct dt_cli_rows o;

    json_head(j, "a", &c->a);
    json_head(j, "b", &c->b);
    dt_json_kv_int(j, "joined", c->joined);
    dt_json_kv_int(j, "only_a", c->only_a);
    dt_json_kv_int(j, "only_b", c->only_b);
    json_joined(c, j);
    json_job(c, j);
    dt_json_kv_double(j, "median_abs_difference", c->median_abs_error);
    dt_json_kv_double(j, "mean_difference", c->bias);
    /* runs of two jobs differ; that is no error of a prediction */
    dt_json_kv_double(j, "median_abs_error", error ? c->median_abs_error : NAN);
    dt_json_kv_double(j, "bias", error ? c->bias : NAN);
    dt_cli_rows_json(&o, j, "lines");
    lines(&o, c, 0);
    dt_cli_rows_end(&o, NULL);
    dt_cli_rows_json(&m.o, j, "metrics");
    dt_cli_compared_rows(all, metric_of_run, &m);
    dt_cli_rows_end(&m.o, NULL);
    dt_cli_rows_json(&o, j, "memory");
    memory(&o, c, 0);
    dt_cli_rows_end(&o, NULL);
}
