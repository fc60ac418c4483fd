/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING. */
#include "report/compare.h"

#include "base/mem.h"
#include "base/number.h"
#include "report/runs_open.h"
#include "base/quantile.h"
#include "base/utf8.h"

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

/* ---- which run ---- */

static enum dt_status last_run(const char *path, int64_t back, struct dt_error *err, int64_t *id)
{
    struct dt_runs_db file;
    sqlite3_stmt *s = NULL;
    enum dt_status st = DT_OK;
    int rc;

    DT_TRY(dt_runs_open(&file, path, err));
    rc = sqlite3_prepare_v2(file.db, "SELECT id FROM run ORDER BY id DESC LIMIT 1 OFFSET ?", -1, &s,
                            NULL);
    if (rc == SQLITE_OK) {
        sqlite3_bind_int64(s, 1, back);
        rc = sqlite3_step(s);
    }
    if (rc == SQLITE_ROW && sqlite3_column_type(s, 0) == SQLITE_INTEGER &&
        sqlite3_column_int64(s, 0) > 0)
        *id = sqlite3_column_int64(s, 0);
    else if (rc == SQLITE_DONE)
        st = dt_error_at(err, DT_ERR_INPUT, path, 0, 0, "has no %lld runs", (long long)back + 1);
    else if (rc == SQLITE_ROW)
        st = dt_error_at(err, DT_ERR_INPUT, path, 0, 0,
                         "runs file: damaged: a run has no number from 1 on");
    else
        st = dt_runs_error(&file, err);
    sqlite3_finalize(s);
    dt_runs_close(&file);
    return st;
}

enum dt_status dt_run_find(const char *text, const char *file, struct dt_error *err,
                           struct dt_run_ref *out)
{
    const char *colon = strrchr(text, ':'), *id = colon ? colon + 1 : text;
    int64_t back = 0;

    if (snprintf(out->file, sizeof(out->file), "%.*s", (int)(colon ? colon - text : 1000),
                 colon ? text : file) >= (int)sizeof(out->file))
        return dt_error_set(err, DT_ERR_USAGE, "file name too long: %s", text);
    if (strncmp(id, "last", 4) == 0 &&
        (id[4] == '\0' || (id[4] == '-' && dt_number_int(id + 5, &back) && back >= 0)))
        return last_run(out->file, back, err, &out->id);
    if (!dt_number_int(id, &out->id) || out->id < 1)
        return dt_error_set(err, DT_ERR_USAGE,
                            "'%s' is not a run: a number, last or last-1, with FILE: before it if "
                            "it is in another file",
                            text);
    return DT_OK;
}

/* ---- reading ---- */

/* Text of a file goes to terminals: what is no well-formed UTF-8 or controls them does not. */
static void copy_text(sqlite3_stmt *s, int column, char *out, size_t size)
{
    const char *text = (const char *)sqlite3_column_text(s, column);
    size_t left = text ? strlen(text) : 0, n = 0;

    while (left > 0) {
        size_t k = dt_utf8_length(text, left), used = k ? k : 1;

        if (n + used >= size)
            break;
        if (k == 0 || (unsigned char)*text < 0x20 || *text == 0x7f)
            out[n] = '?';
        else
            memcpy(out + n, text, used);
        n += used;
        text += used;
        left -= used;
    }
    out[n] = '\0';
}

static enum dt_status head(struct compare *c, const char *where, int64_t id, struct dt_error *err,
                           struct dt_run_head *out, double *makespan_s)
{
    sqlite3_stmt *s = NULL;
    char sql[256];
    enum dt_status st = DT_OK;

    snprintf(sql, sizeof(sql),
             "SELECT kind, job_name, started, version, makespan_ns, "
             "(SELECT count(*) FROM %s.op WHERE run = ?1) FROM %s.run WHERE id = ?1",
             where, where);
    if (sqlite3_prepare_v2(c->db, sql, -1, &s, NULL) != SQLITE_OK)
        return failed(c, err);
    sqlite3_bind_int64(s, 1, id);
    if (sqlite3_step(s) != SQLITE_ROW) {
        st = dt_error_at(err, DT_ERR_INPUT, c->path, 0, 0, "has no run %lld", (long long)id);
    } else {
        out->id = id;
        copy_text(s, 0, out->kind, sizeof(out->kind));
        copy_text(s, 1, out->job, sizeof(out->job));
        copy_text(s, 2, out->started, sizeof(out->started));
        copy_text(s, 3, out->version, sizeof(out->version));
        *makespan_s = 1e-9 * sqlite3_column_double(s, 4);
        out->n_ops = sqlite3_column_int64(s, 5);
        if (out->n_ops == 0)
            st = dt_error_at(err, DT_ERR_INPUT, c->path, 0, 0,
                             "run %lld has kept no ops; simulate again with --timeline all",
                             (long long)id);
    }
    sqlite3_finalize(s);
    return st;
}

/* Ops with their keys; `nth` tells apart those whose keys are equal. */
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
             "LEFT JOIN %s.lane q ON q.run = o.run AND q.lane = o.peer_lane WHERE o.run = %lld;"
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
    c->out->only_a = c->out->a.n_ops - c->out->joined;
    c->out->only_b = c->out->b.n_ops - c->out->joined;
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
    if (l && strcmp(l->name, "all") == 0) {
        c->out->median_abs_error = dt_median(c->ratio, c->n_ratio);
        c->out->n--;
    }
    return DT_OK;
}

/* ---- tables of later ---- */

static enum dt_status read_facts(struct compare *c, const char *where, int64_t id,
                                 struct dt_error *err, struct dt_run_facts *out)
{
    sqlite3_stmt *s = NULL;
    char sql[128];
    int rc;

    if (!dt_runs_has_table(&c->file, where, "fact"))
        return DT_OK;
    snprintf(sql, sizeof(sql), "SELECT name, value FROM %s.fact WHERE run = %lld", where,
             (long long)id);
    if (sqlite3_prepare_v2(c->db, sql, -1, &s, NULL) != SQLITE_OK)
        return failed(c, err);
    while ((rc = sqlite3_step(s)) == SQLITE_ROW) {
        struct dt_run_fact fact;

        copy_text(s, 0, fact.name, sizeof(fact.name));
        copy_text(s, 1, fact.value, sizeof(fact.value));
        dt_run_facts_add(out, fact.name, fact.value);
    }
    sqlite3_finalize(s);
    return rc == SQLITE_DONE ? DT_OK : failed(c, err);
}

static double peak_of(const struct dt_run_facts *f)
{
    const char *text = dt_run_facts_find(f, "peak_flops");
    double v = 0;

    return text && dt_number_double(text, &v) && v > 0 ? v : 0;
}

/* A cluster's data sheet and a product measured here are not the same 100 %: both MFUs become
 * shares of what was measured, if one of them is, or else of b's. */
static void one_peak(struct dt_compare *o)
{
    double a = peak_of(&o->facts_a), b = peak_of(&o->facts_b);

    if (!(a > 0 && b > 0))
        return;
    o->peak_of_b = strcmp(o->b.kind, "executed") == 0 || strcmp(o->a.kind, "executed") != 0;
    o->peak_flops = o->peak_of_b ? b : a;
    for (int k = 0; k < o->n_metrics; k++)
        if (strcmp(o->metric[k].name, "mfu") == 0) {
            o->metric[k].a *= a / o->peak_flops;
            o->metric[k].b *= b / o->peak_flops;
        }
}

/* ---- metrics of whole runs ---- */

#define REPORT(path) "json_extract(r.report, '$." path "')"
/* Busy shares come from the lanes, which every run has; the rest from reports.  Memory is that of a
 * GPU in simulated runs, of a process in executed ones: runs of one kind have the same. */
static const struct {
    const char *name, *sql;
    bool same_kind;
} metrics[] = {
    {"mfu", REPORT("mfu"), false},
    {"tokens_per_s", REPORT("tokens_per_s"), false},
    {"samples_per_s", REPORT("samples_per_s"), false},
    {"bubble_share",
     /* lanes may share GPUs: of each, what no lane before it has */
     "(SELECT 1.0 - sum(busy) / (sum(max(0, past - max(first, coalesce(seen, first)))) * "
     "r.makespan_ns) FROM (SELECT 1.0 * busy_ns * gpus busy, first_gpu first, first_gpu + gpus "
     "past, "
     "max(first_gpu + gpus) OVER (ORDER BY first_gpu, lane ROWS BETWEEN UNBOUNDED PRECEDING AND 1 "
     "PRECEDING) seen FROM %s.lane WHERE run = r.id AND r.makespan_ns > 0))",
     false},
    {"exposed_comm_share", REPORT("exposed_comm_s") " / " REPORT("iteration_s"), false},
    {"memory_bytes_max",
     "coalesce((SELECT max(json_extract(value, '$.allocated_bytes')) FROM json_each(r.report, "
     "'$.memory')), (SELECT max(json_extract(value, '$.memory_bytes_max')) FROM json_each(r.report,"
     " '$.modules')))",
     true},
};

/* *found = false where the run does not say. */
static enum dt_status metric(struct compare *c, const char *where, int64_t id, int k,
                             struct dt_error *err, double *out, bool *found)
{
    sqlite3_stmt *s = NULL;
    char value[640], sql[1024];
    enum dt_status st = DT_OK;
    int rc;

    snprintf(value, sizeof(value), metrics[k].sql, where);
    /* a run without a report, or with one that is no JSON, has lanes all the same */
    snprintf(sql, sizeof(sql),
             "SELECT %s FROM (SELECT id, makespan_ns, CASE WHEN json_valid(report) THEN report END "
             "report FROM %s.run WHERE id = %lld) r",
             value, where, (long long)id);
    if (sqlite3_prepare_v2(c->db, sql, -1, &s, NULL) != SQLITE_OK)
        return failed(c, err);
    rc = sqlite3_step(s);
    if (rc != SQLITE_ROW) {
        st = failed(c, err);
    } else {
        int type = sqlite3_column_type(s, 0);

        *out = sqlite3_column_double(s, 0);
        *found = (type == SQLITE_INTEGER || type == SQLITE_FLOAT) && isfinite(*out);
    }
    sqlite3_finalize(s);
    return st;
}

static enum dt_status add_metrics(struct compare *c, struct dt_error *err)
{
    struct dt_compare *o = c->out;
    bool same = strcmp(o->a.kind, o->b.kind) == 0;

    for (int k = 0; k < (int)(sizeof(metrics) / sizeof(metrics[0])); k++) {
        struct dt_compare_metric m = {.name = metrics[k].name};
        bool in_a = false, in_b = false;

        if (metrics[k].same_kind && !same)
            continue;
        DT_TRY(metric(c, "main", o->a.id, k, err, &m.a, &in_a));
        DT_TRY(metric(c, "other", o->b.id, k, err, &m.b, &in_b));
        if (in_a && in_b)
            o->metric[o->n_metrics++] = m;
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

    if (dt_grow((void **)&o->memory, &o->cap_memory, (size_t)o->n_memory + 1, sizeof(*o->memory)))
        return dt_error_nomem(err, "lanes");
    m = &o->memory[o->n_memory++];
    *m = (struct dt_compare_memory){.a_predicted = bytes_at(s, 1),
                                    .a_allocated = bytes_at(s, 2),
                                    .b_predicted = bytes_at(s, 3),
                                    .b_allocated = bytes_at(s, 4),
                                    .rank = (int)bytes_at(s, 5)};
    copy_text(s, 0, m->name, sizeof(m->name));
    copy_text(s, 6, m->host, sizeof(m->host));
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
        "coalesce(q.host, p.host) FROM main.lane l JOIN other.lane k USING(module, replica, "
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
    struct dt_compare_line *l = new_line(c, "iteration_s");

    if (!l)
        return dt_error_nomem(err, "lines");
    DT_TRY(head(c, "main", a->id, err, &c->out->a, &l->a_s));
    c->path = b->file;
    DT_TRY(head(c, "other", b->id, err, &c->out->b, &l->b_s));
    l->median = l->a_s > 0 ? l->b_s / l->a_s - 1 : 0;
    l->n = 1;
    DT_TRY(read_facts(c, "main", a->id, err, &c->out->facts_a));
    DT_TRY(read_facts(c, "other", b->id, err, &c->out->facts_b));
    DT_TRY(add_metrics(c, err));
    one_peak(c->out);
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
        out->n_differ = dt_run_facts_differ(&out->facts_a, &out->facts_b, out->differ);
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

const struct dt_compare_metric *dt_compare_find_metric(const struct dt_compare *c, const char *name)
{
    for (int i = 0; i < c->n_metrics; i++)
        if (strcmp(c->metric[i].name, name) == 0)
            return &c->metric[i];
    return NULL;
}

double dt_compare_relative(double a, double b)
{
    return a != 0 ? (b - a) / fabs(a) : b != 0 ? INFINITY : 0;
}
