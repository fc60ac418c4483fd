/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING. */
#include "report/compare.h"

#include "base/mem.h"
#include "base/number.h"
#include "report/run_about.h"
#include "report/runs_open.h"
#include "base/quantile.h"

#include <math.h>
#include <sqlite3.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct compare {
    struct dt_runs_db file; /* a's; b's is attached as "other" */
    sqlite3 *db;            /* of it */
    const char *path;
    struct dt_compare *out;
    double *ratio;
    size_t n_ratio, cap_ratio;
};

static enum dt_status failed(const struct compare *c, struct dt_error *err)
{
    struct dt_runs_db named = c->file;

    named.path = c->path;
    return dt_runs_error(&named, err);
}

/* ---- work ---- */

enum { WORK_TOLERANCE_PPM = 100 };

double dt_compare_module_work(const struct dt_run_summary *a, const struct dt_run_summary *b,
                              const char *name)
{
    const struct dt_run_module *x = dt_run_summary_module(a, name),
                               *y = dt_run_summary_module(b, name);

    return x && y ? dt_compare_relative(x->v[DT_RUN_OF_model_flops], y->v[DT_RUN_OF_model_flops])
                  : NAN;
}

bool dt_compare_is_work(const char *fact)
{
    static const char *const names[] = {"model", "samples", "global_batch", "seq_len", NULL};

    for (int i = 0; names[i]; i++)
        if (strcmp(names[i], fact) == 0)
            return true;
    return false;
}

enum dt_compare_work dt_compare_work(const struct dt_run_summary *a, const struct dt_run_summary *b)
{
    struct dt_run_difference d[DT_RUN_FACTS_MAX];
    int n = dt_run_facts_differ(&a->facts, &b->facts, d);
    bool known = a->n_modules > 0 && b->n_modules > 0;
    bool all = known && !a->measured && !b->measured; /* who measured need not name all modules */

    for (int i = 0; i < n; i++)
        if (dt_compare_is_work(d[i].name))
            return DT_COMPARE_OTHER;
    for (int i = 0; all && i < b->n_modules; i++)
        if (!dt_run_summary_module(a, b->module[i].name))
            return DT_COMPARE_OTHER;
    for (int i = 0; i < a->n_modules; i++) {
        double r = dt_compare_module_work(a, b, a->module[i].name);

        if (all && !dt_run_summary_module(b, a->module[i].name))
            return DT_COMPARE_OTHER;
        if (fabs(r) > 1e-6 * WORK_TOLERANCE_PPM)
            return DT_COMPARE_OTHER;
        known &= !isnan(r);
    }
    return known || (a->facts.n > 0 && b->facts.n > 0) ? DT_COMPARE_SAME : DT_COMPARE_UNKNOWN;
}

/* ---- which ops are the same work ---- */

/* Of all kinds that compute: a backward that is split, or cut into parts, is another op. */
static bool same_passes(const struct dt_run_module *a, const struct dt_run_module *b)
{
    static const enum dt_op_kind kinds[] = {DT_OP_FORWARD, DT_OP_BACKWARD, DT_OP_WEIGHT_GRAD};

    for (size_t k = 0; k < sizeof(kinds) / sizeof(kinds[0]); k++)
        if (a->n_ops[kinds[k]] != b->n_ops[kinds[k]])
            return false;
    return true;
}

static bool same_layout(const struct dt_run_module *a, const struct dt_run_module *b)
{
    return a->pp == b->pp && a->dp == b->dp &&
           (!a->layout[0] || !b->layout[0] || strcmp(a->layout, b->layout) == 0);
}

static void why_not_joined(const struct dt_run_summary *sa, const struct dt_run_summary *sb,
                           const struct dt_run_module *a, const struct dt_run_module *b, char *out,
                           size_t size)
{
    const char *one = dt_run_facts_find(&sa->facts, "microbatch"),
               *other = dt_run_facts_find(&sb->facts, "microbatch");

    out[0] = '\0';
    if (!b)
        snprintf(out, size, "the other run has no such module");
    else if (sa->kept_ops == 0 || sb->kept_ops == 0)
        snprintf(out, size, "a run has kept no ops");
    else if (!same_layout(a, b))
        snprintf(out, size, "other layout");
    else if (one && other && strcmp(one, other) != 0)
        snprintf(out, size, "other microbatch");
    else if (!same_passes(a, b))
        snprintf(out, size, "its passes are divided into other ops");
}

/* Into the table pair(m, k): modules and kinds whose ops are joined. */
static enum dt_status pair_module(struct compare *c, sqlite3_stmt *insert,
                                  const struct dt_run_module *a, struct dt_error *err)
{
    struct dt_compare *o = c->out;
    const struct dt_run_module *b = dt_run_summary_module(&o->b, a->name);
    struct dt_compare_module *m = &o->module[o->n_modules++];

    m->name = a->name;
    m->same_layout = b && same_layout(a, b);
    why_not_joined(&o->a, &o->b, a, b, m->why_not, sizeof(m->why_not));
    for (int k = 0; !m->why_not[0] && k < DT_OP_KIND_N; k++) {
        if (a->n_ops[k] != b->n_ops[k] || a->n_ops[k] == 0)
            continue;
        sqlite3_bind_text(insert, 1, a->name, -1, SQLITE_STATIC);
        sqlite3_bind_text(insert, 2, dt_op_kind_names[k], -1, SQLITE_STATIC);
        if (sqlite3_step(insert) != SQLITE_DONE)
            return failed(c, err);
        sqlite3_reset(insert);
        m->joined += a->n_ops[k];
    }
    return DT_OK;
}

static enum dt_status make_pairs(struct compare *c, struct dt_error *err)
{
    sqlite3_stmt *s = NULL;
    enum dt_status st = DT_OK;

    if (sqlite3_exec(c->db, "CREATE TEMP TABLE pair(m TEXT, k TEXT)", NULL, NULL, NULL) !=
            SQLITE_OK ||
        sqlite3_prepare_v2(c->db, "INSERT INTO temp.pair(m, k) VALUES(?, ?)", -1, &s, NULL) !=
            SQLITE_OK)
        return failed(c, err);
    for (int i = 0; i < c->out->a.n_modules && st == DT_OK; i++)
        st = pair_module(c, s, &c->out->a.module[i], err);
    sqlite3_finalize(s);
    return st;
}

/* Ops of such modules and kinds with their keys; `nth` tells apart those whose keys are equal. */
static enum dt_status make_keys(struct compare *c, const char *table, const char *where, int64_t id,
                                struct dt_error *err)
{
    char sql[1024];

    snprintf(sql, sizeof(sql),
             "CREATE TEMP TABLE %s AS SELECT l.module m, l.replica r, l.stage s, o.kind k, "
             "o.chunk c, o.part p, coalesce(o.microbatch, -1) mb, "
             "coalesce(q.module || q.replica || '.' || q.stage, '') peer, "
             "row_number() OVER (PARTITION BY o.lane, o.kind, o.chunk, o.part, o.microbatch, "
             "o.peer_lane ORDER BY o.op) nth, (o.end_ns - o.begin_ns) * 1e-9 t "
             "FROM %s.op o JOIN %s.lane l ON l.run = o.run AND l.lane = o.lane "
             "LEFT JOIN %s.lane q ON q.run = o.run AND q.lane = o.peer_lane WHERE o.run = %lld "
             "AND EXISTS (SELECT 1 FROM temp.pair x WHERE x.m = l.module AND x.k = o.kind);"
             "CREATE INDEX %s_key ON %s(m, k, r, s, c, p, mb, peer, nth)",
             table, where, where, where, (long long)id, table, table);
    return sqlite3_exec(c->db, sql, NULL, NULL, NULL) == SQLITE_OK ? DT_OK : failed(c, err);
}

/* ---- lines ---- */

static struct dt_compare_line *new_line(struct compare *c, const char *name)
{
    struct dt_compare *o = c->out;
    struct dt_compare_line *l;

    if (dt_grow((void **)&o->line, &o->cap, (size_t)o->n + 1, sizeof(*o->line)))
        return NULL;
    l = &o->line[o->n++];
    memset(l, 0, sizeof(*l));
    snprintf(l->name, sizeof(l->name), "%s", name);
    c->n_ratio = 0;
    return l;
}

static enum dt_status add(struct compare *c, struct dt_compare_line *l, double a, double b,
                          struct dt_error *err)
{
    l->n++;
    l->a_s += a;
    l->b_s += b;
    if (!(a > 0))
        return DT_OK;
    if (dt_grow((void **)&c->ratio, &c->cap_ratio, c->n_ratio + 1, sizeof(*c->ratio)))
        return dt_error_nomem(err, "ops");
    c->ratio[c->n_ratio++] = b / a - 1;
    return DT_OK;
}

/* Rows (name, a, b) in the order of names become lines. */
static enum dt_status lines(struct compare *c, const char *sql, struct dt_error *err)
{
    struct dt_compare_line *l = NULL;
    sqlite3_stmt *s = NULL;
    enum dt_status st = DT_OK;
    int rc;

    if (sqlite3_prepare_v2(c->db, sql, -1, &s, NULL) != SQLITE_OK)
        return failed(c, err);
    while (st == DT_OK && (rc = sqlite3_step(s)) == SQLITE_ROW) {
        const char *name = (const char *)sqlite3_column_text(s, 0);

        if (!l || strncmp(l->name, name, sizeof(l->name) - 1) != 0) {
            if (l)
                l->median = dt_median(c->ratio, c->n_ratio);
            l = new_line(c, name);
        }
        st = l ? add(c, l, sqlite3_column_double(s, 1), sqlite3_column_double(s, 2), err)
               : dt_error_nomem(err, "lines");
    }
    if (st == DT_OK && rc != SQLITE_DONE)
        st = failed(c, err);
    if (l && st == DT_OK)
        l->median = dt_median(c->ratio, c->n_ratio);
    sqlite3_finalize(s);
    return st;
}

#define JOIN " FROM a JOIN b USING(m, k, r, s, c, p, mb, peer, nth) "
#define COMPUTE " k IN ('forward', 'backward', 'weight_grad', 'step') "

static enum dt_status count(struct compare *c, struct dt_error *err)
{
    sqlite3_stmt *s = NULL;

    if (sqlite3_prepare_v2(c->db, "SELECT count(*)" JOIN, -1, &s, NULL) != SQLITE_OK)
        return failed(c, err);
    if (sqlite3_step(s) == SQLITE_ROW)
        c->out->joined = sqlite3_column_int64(s, 0);
    sqlite3_finalize(s);
    c->out->only_a = c->out->a.kept_ops - c->out->joined;
    c->out->only_b = c->out->b.kept_ops - c->out->joined;
    return DT_OK;
}

/* Over compute ops: the median of absolute errors, the mean of errors. */
static enum dt_status errors(struct compare *c, struct dt_error *err)
{
    struct dt_compare_line *l;

    DT_TRY(lines(c, "SELECT 'all', a.t, b.t" JOIN "WHERE" COMPUTE, err));
    for (size_t i = 0; i < c->n_ratio; i++) {
        c->out->bias += c->ratio[i] / (double)c->n_ratio;
        c->ratio[i] = fabs(c->ratio[i]);
    }
    l = c->out->n > 0 ? &c->out->line[c->out->n - 1] : NULL;
    c->out->median_abs_error = NAN;
    if (c->n_ratio == 0)
        c->out->bias = NAN;
    if (l && strcmp(l->name, "all") == 0) {
        c->out->median_abs_error = dt_median(c->ratio, c->n_ratio);
        c->out->n--;
    }
    return DT_OK;
}

/* ---- memory of lanes ---- */

static int64_t bytes_at(sqlite3_stmt *s, int column)
{
    return sqlite3_column_type(s, column) == SQLITE_NULL ? -1 : sqlite3_column_int64(s, column);
}

static enum dt_status add_lane(struct compare *c, sqlite3_stmt *s, struct dt_error *err)
{
    struct dt_compare *o = c->out;
    struct dt_compare_memory *m;
    char module[DT_NAME_MAX];
    bool same = false;

    dt_run_about_copy(s, 7, module, sizeof(module));
    for (int i = 0; i < o->n_modules; i++)
        same |= o->module[i].same_layout && strcmp(o->module[i].name, module) == 0;
    if (!same)
        return DT_OK;
    if (dt_grow((void **)&o->memory, &o->cap_memory, (size_t)o->n_memory + 1, sizeof(*o->memory)))
        return dt_error_nomem(err, "lanes");
    m = &o->memory[o->n_memory++];
    *m = (struct dt_compare_memory){.a_predicted = bytes_at(s, 1),
                                    .a_allocated = bytes_at(s, 2),
                                    .b_predicted = bytes_at(s, 3),
                                    .b_allocated = bytes_at(s, 4),
                                    .rank = (int)bytes_at(s, 5)};
    dt_run_about_copy(s, 0, m->name, sizeof(m->name));
    dt_run_about_copy(s, 6, m->host, sizeof(m->host));
    return DT_OK;
}

/* A place in b comes before one in a. */
static enum dt_status memory_of_lanes(struct compare *c, int64_t a, int64_t b, struct dt_error *err)
{
    sqlite3_stmt *s = NULL;
    char sql[1024];
    enum dt_status st = DT_OK;
    int rc;

    for (int k = 0; k < 4; k++) /* files of before lack them */
        if (!dt_runs_has_table(&c->file, k % 2 ? "main" : "other", k < 2 ? "memory" : "place"))
            return DT_OK;
    snprintf(
        sql, sizeof(sql),
        "SELECT l.module || '/' || l.replica || '.' || l.stage, x.predicted_bytes, "
        "x.allocated_bytes, y.predicted_bytes, y.allocated_bytes, coalesce(q.rank, p.rank), "
        "coalesce(q.host, p.host), l.module FROM main.lane l JOIN other.lane k USING(module, "
        "replica, "
        "stage) JOIN main.memory x ON x.run = l.run AND x.lane = l.lane JOIN other.memory y ON "
        "y.run = k.run AND y.lane = k.lane AND y.model = x.model LEFT JOIN main.place p ON "
        "p.run = l.run AND p.lane = l.lane LEFT JOIN other.place q ON q.run = k.run AND q.lane "
        "= k.lane WHERE l.run = %lld AND k.run = %lld ORDER BY l.lane",
        (long long)a, (long long)b);
    if (sqlite3_prepare_v2(c->db, sql, -1, &s, NULL) != SQLITE_OK)
        return failed(c, err);
    while (st == DT_OK && (rc = sqlite3_step(s)) == SQLITE_ROW)
        st = add_lane(c, s, err);
    if (st == DT_OK && rc != SQLITE_DONE)
        st = failed(c, err);
    sqlite3_finalize(s);
    return st;
}

int64_t dt_compare_memory_a(const struct dt_compare_memory *m)
{
    return m->a_allocated >= 0 ? m->a_allocated : m->a_predicted;
}

int64_t dt_compare_memory_b(const struct dt_compare_memory *m)
{
    return m->b_allocated >= 0 ? m->b_allocated : m->b_predicted;
}

static enum dt_status run(struct compare *c, const struct dt_run_ref *a, const struct dt_run_ref *b,
                          struct dt_error *err)
{
    struct dt_compare *o = c->out;
    struct dt_compare_line *l;

    DT_TRY(dt_run_summary_of(&c->file, "main", a->file, a->id, err, &o->a));
    DT_TRY(dt_run_summary_of(&c->file, "other", b->file, b->id, err, &o->b));
    l = new_line(c, "iteration_s");
    if (!l)
        return dt_error_nomem(err, "lines");
    l->a_s = o->a.about.makespan_s;
    l->b_s = o->b.about.makespan_s;
    l->median = l->a_s > 0 ? l->b_s / l->a_s - 1 : 0;
    l->n = 1;
    DT_TRY(make_pairs(c, err));
    DT_TRY(memory_of_lanes(c, a->id, b->id, err));
    DT_TRY(make_keys(c, "a", "main", a->id, err));
    DT_TRY(make_keys(c, "b", "other", b->id, err));
    DT_TRY(count(c, err));
    DT_TRY(errors(c, err));
    DT_TRY(lines(c, "SELECT m || '.' || k || '_s' name, a.t, b.t" JOIN "ORDER BY name", err));
    return lines(c,
                 "SELECT 'lane ' || m || '/' || r || '.' || s || ' compute_s' name, a.t, b.t" JOIN
                 "WHERE" COMPUTE "ORDER BY name",
                 err);
}

enum dt_status dt_compare_runs(const struct dt_run_ref *a, const struct dt_run_ref *b,
                               struct dt_error *err, struct dt_compare *out)
{
    struct dt_compare result = {0};
    struct compare c = {.path = a->file, .out = &result};
    struct dt_runs_db other;
    enum dt_status st;

    DT_TRY(dt_runs_open_two(&c.file, a->file, &other, b->file, err));
    c.db = c.file.db;
    st = dt_runs_check(&c.file, "main", a->file, a->id, err, NULL, NULL);
    if (st == DT_OK)
        st = dt_runs_check(&c.file, "other", b->file, b->id, err, NULL, NULL);
    if (st == DT_OK)
        st = run(&c, a, b, err);
    dt_runs_close(&c.file);
    dt_runs_close(&other);
    dt_free(c.ratio);
    if (st == DT_OK) {
        *out = result;
        for (int i = 0; i < out->n_modules; i++)
            out->module[i].name = out->a.module[i].name;
        out->n_differ = dt_run_facts_differ(&out->a.facts, &out->b.facts, out->differ);
    } else {
        dt_compare_free(&result);
    }
    return st;
}

void dt_compare_free(struct dt_compare *c)
{
    dt_free(c->line);
    dt_free(c->memory);
    memset(c, 0, sizeof(*c));
}

const struct dt_compare_line *dt_compare_find(const struct dt_compare *c, const char *name)
{
    for (int i = 0; i < c->n; i++)
        if (strcmp(c->line[i].name, name) == 0)
            return &c->line[i];
    return NULL;
}

double dt_compare_relative(double a, double b)
{
    return a != 0 ? (b - a) / fabs(a) : b != 0 ? INFINITY : 0;
}
