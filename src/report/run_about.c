/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING. */
#include "report/run_about.h"

#include "base/mem.h"
#include "base/utf8.h"
#include "report/runs_open.h"

#include <math.h>
#include <sqlite3.h>
#include <stdio.h>
#include <string.h>

enum { OP_BYTES = 48, LANE_BYTES = 64 };

/* `line`: what an end of line becomes. */
static void copy(sqlite3_stmt *s, int column, char line, char *out, size_t size)
{
    const char *text = (const char *)sqlite3_column_text(s, column);
    size_t left = text ? strlen(text) : 0, n = 0;

    while (left > 0) {
        size_t k = dt_utf8_length(text, left), used = k ? k : 1;

        if (n + used >= size)
            break;
        if (k == 0 || (unsigned char)*text < 0x20 || *text == 0x7f)
            out[n] = *text == '\n' ? line : '?';
        else
            memcpy(out + n, text, used);
        n += used;
        text += used;
        left -= used;
    }
    out[n] = '\0';
    if (left > 0 && size > 4 && n + 4 > size) /* cut */
        memcpy(out + size - 4, "...", 4);
}

void dt_run_about_copy(sqlite3_stmt *s, int column, char *out, size_t size)
{
    copy(s, column, '?', out, size);
}

static enum dt_status failed(const struct dt_runs_db *db, const char *path, struct dt_error *err)
{
    struct dt_runs_db named = *db;

    named.path = path;
    return dt_runs_error(&named, err);
}

/* Statements of one run: %s is the schema. */
static enum dt_status prepare(const struct dt_runs_db *db, const char *schema, const char *path,
                              const char *format, int64_t id, struct dt_error *err,
                              sqlite3_stmt **out)
{
    char sql[1024];

    snprintf(sql, sizeof(sql), format, schema, schema, schema, schema);
    if (sqlite3_prepare_v2(db->db, sql, -1, out, NULL) != SQLITE_OK)
        return failed(db, path, err);
    sqlite3_bind_int64(*out, 1, id);
    return DT_OK;
}

/* "jobs/a.yaml" is "a". */
static void name_of(const char *file, char *out, size_t size)
{
    const char *slash = strrchr(file, '/'), *base = slash ? slash + 1 : file;
    const char *dot = strrchr(base, '.');
    bool yaml =
        dot && dot > base &&
        (strcmp(dot, ".yaml") == 0 || strcmp(dot, ".yml") == 0 || strcmp(dot, ".json") == 0);

    snprintf(out, size, "%.*s", (int)(yaml ? dot - base : (long)strlen(base)), base);
}

#define NUMBER(column) "typeof(" column ") IN ('integer', 'real')"
#define PLAN(key) "CASE WHEN json_valid(plan) THEN json_extract(plan, '$." key "') END"
static const char run_sql[] = "SELECT kind, job_name, " PLAN("strategy") ", " PLAN(
    "cluster") ", started, version, n_ops, "
               "EXISTS (SELECT 1 FROM %s.op WHERE run = ?1), makespan_ns, "
               "CASE WHEN json_valid(report) THEN json_extract(report, '$.mfu') END, "
               "coalesce(length(job), 0) + coalesce(length(plan), 0) + coalesce(length(report), 0) "
               "+ 200, "
               "(SELECT count(*) FROM %s.lane WHERE run = ?1), "
               "CASE WHEN kind = 'simulated' AND json_valid(report) THEN json_extract(report, "
               "'$.iteration_s') END FROM %s.run WHERE id = ?1";

/* NAN where it is no number. */
static double number(sqlite3_stmt *s, int column)
{
    int type = sqlite3_column_type(s, column);

    return type == SQLITE_FLOAT || type == SQLITE_INTEGER ? sqlite3_column_double(s, column) : NAN;
}

static enum dt_status read_run(const struct dt_runs_db *db, const char *schema, const char *path,
                               int64_t id, struct dt_error *err, struct dt_run_about *out)
{
    sqlite3_stmt *s = NULL;
    enum dt_status st = DT_OK;
    int rc;

    DT_TRY(prepare(db, schema, path, run_sql, id, err, &s));
    rc = sqlite3_step(s);
    if (rc == SQLITE_ROW) {
        out->id = id;
        dt_run_about_copy(s, 0, out->kind, sizeof(out->kind));
        dt_run_about_copy(s, 1, out->job_file, sizeof(out->job_file));
        name_of(out->job_file, out->job, sizeof(out->job));
        dt_run_about_copy(s, 2, out->strategy, sizeof(out->strategy));
        dt_run_about_copy(s, 3, out->cluster, sizeof(out->cluster));
        dt_run_about_copy(s, 4, out->started, sizeof(out->started));
        dt_run_about_copy(s, 5, out->version, sizeof(out->version));
        out->n_ops = sqlite3_column_int64(s, 6);
        out->ops = sqlite3_column_int(s, 7) != 0;
        out->makespan_s = 1e-9 * sqlite3_column_double(s, 8);
        out->mfu = number(s, 9);
        out->iteration_s = number(s, 12) > 0 ? number(s, 12) : out->makespan_s;
        out->bytes = sqlite3_column_int64(s, 10) + sqlite3_column_int64(s, 11) * LANE_BYTES +
                     (out->ops ? out->n_ops * OP_BYTES : 0);
    } else {
        st = rc == SQLITE_DONE
                 ? dt_error_at(err, DT_ERR_INPUT, path, 0, 0, "has no run %lld", (long long)id)
                 : failed(db, path, err);
    }
    sqlite3_finalize(s);
    return st;
}

/* Training reports the mean MFU of its steps, the first ones included; what is stored is the last one.  None where the
 * mean is none, or where the step would have one above 1. */
static enum dt_status read_step_mfu(const struct dt_runs_db *db, const char *schema,
                                    const char *path, int64_t id, struct dt_error *err,
                                    struct dt_run_about *out)
{
    sqlite3_stmt *s = NULL;
    double mfu;

    if (strcmp(out->kind, "executed") != 0 || isnan(out->mfu) || !(out->makespan_s > 0) ||
        !dt_runs_has_table(db, schema, "work"))
        return DT_OK;
    DT_TRY(prepare(db, schema, path,
                   "SELECT (SELECT sum(model_flops) FROM %s.work WHERE run = ?1), CASE WHEN "
                   "json_valid(report) THEN json_extract(report, '$.gemm_peak_flops') END "
                   "FROM %s.run WHERE id = ?1",
                   id, err, &s));
    if (sqlite3_step(s) == SQLITE_ROW && number(s, 0) >= 0 && number(s, 1) > 0) {
        mfu = number(s, 0) / out->makespan_s / number(s, 1);
        out->mfu = mfu <= 1 ? mfu : NAN;
    }
    sqlite3_finalize(s);
    return DT_OK;
}

static enum dt_status read_origin(const struct dt_runs_db *db, const char *schema, const char *path,
                                  int64_t id, struct dt_error *err, struct dt_run_about *out)
{
    sqlite3_stmt *s = NULL;

    if (!dt_runs_has_table(db, schema, "origin"))
        return DT_OK;
    DT_TRY(prepare(db, schema, path, "SELECT host, overrides FROM %s.origin WHERE run = ?1", id,
                   err, &s));
    if (sqlite3_step(s) == SQLITE_ROW) {
        dt_run_about_copy(s, 0, out->host, sizeof(out->host));
        copy(s, 1, ' ', out->overrides, sizeof(out->overrides));
    }
    sqlite3_finalize(s);
    return DT_OK;
}

static enum dt_status read_tags(const struct dt_runs_db *db, const char *schema, const char *path,
                                int64_t id, struct dt_error *err, struct dt_run_about *out)
{
    sqlite3_stmt *s = NULL;
    size_t n = 0;

    if (!dt_runs_has_table(db, schema, "tag"))
        return DT_OK;
    DT_TRY(prepare(db, schema, path, "SELECT name FROM %s.tag WHERE run = ?1 ORDER BY name", id,
                   err, &s));
    while (sqlite3_step(s) == SQLITE_ROW && n + 1 < sizeof(out->tags)) {
        if (n > 0)
            out->tags[n++] = ' ';
        dt_run_about_copy(s, 0, out->tags + n, sizeof(out->tags) - n);
        n += strlen(out->tags + n);
    }
    sqlite3_finalize(s);
    return DT_OK;
}

enum dt_status dt_run_about_read(const struct dt_runs_db *db, const char *schema, const char *path,
                                 int64_t id, struct dt_error *err, struct dt_run_about *out)
{
    struct dt_run_about a = {0};

    DT_TRY(read_run(db, schema, path, id, err, &a));
    DT_TRY(read_step_mfu(db, schema, path, id, err, &a));
    DT_TRY(read_origin(db, schema, path, id, err, &a));
    DT_TRY(read_tags(db, schema, path, id, err, &a));
    *out = a;
    return DT_OK;
}

char *dt_run_about_text(const struct dt_run_about *a, char *buf, size_t size)
{
    const char *keys = a->overrides;
    char strategy[64];
    size_t n;

    /* the strategy is said once */
    snprintf(strategy, sizeof(strategy), "search.strategy=%s", a->strategy);
    n = strlen(strategy);
    if (strncmp(keys, strategy, n) == 0 && (keys[n] == '\0' || keys[n] == ' '))
        keys += n + (keys[n] == ' ');
    snprintf(buf, size, "%s%s%s%s%s, %s%s%s%s%.10s%s%.5s%s", a->job, a->strategy[0] ? ", " : "",
             a->strategy, keys[0] ? ", " : "", keys, a->kind, a->host[0] ? " on " : "", a->host,
             a->started[0] ? " " : "", a->started, strlen(a->started) > 16 ? " " : "",
             strlen(a->started) > 16 ? a->started + 11 : "", strlen(a->started) > 16 ? "Z" : "");
    return buf;
}

/* ---- all of a file ---- */

static enum dt_status pragma(const struct dt_runs_db *db, const char *name, struct dt_error *err,
                             int64_t *out)
{
    sqlite3_stmt *s = NULL;
    char sql[64];

    snprintf(sql, sizeof(sql), "PRAGMA main.%s", name);
    if (sqlite3_prepare_v2(db->db, sql, -1, &s, NULL) != SQLITE_OK)
        return dt_runs_error(db, err);
    *out = sqlite3_step(s) == SQLITE_ROW ? sqlite3_column_int64(s, 0) : 0;
    sqlite3_finalize(s);
    return DT_OK;
}

static enum dt_status read_all(const struct dt_runs_db *db, struct dt_error *err,
                               struct dt_runs_list *l)
{
    int64_t page, pages, unused;
    sqlite3_stmt *s = NULL;
    enum dt_status st = DT_OK;
    int rc = SQLITE_DONE;

    DT_TRY(pragma(db, "page_size", err, &page));
    DT_TRY(pragma(db, "page_count", err, &pages));
    DT_TRY(pragma(db, "freelist_count", err, &unused));
    l->file_bytes = page * pages;
    l->free_bytes = page * unused;
    if (sqlite3_prepare_v2(db->db, "SELECT id FROM run ORDER BY id", -1, &s, NULL) != SQLITE_OK)
        return dt_runs_error(db, err);
    while (st == DT_OK && (rc = sqlite3_step(s)) == SQLITE_ROW) {
        if (dt_grow((void **)&l->run, &l->cap, (size_t)l->n + 1, sizeof(*l->run)))
            st = dt_error_nomem(err, "the list of runs");
        else
            st = dt_run_about_read(db, "main", db->path, sqlite3_column_int64(s, 0), err,
                                   &l->run[l->n]);
        l->n += st == DT_OK;
    }
    if (st == DT_OK && rc != SQLITE_DONE)
        st = dt_runs_error(db, err);
    sqlite3_finalize(s);
    return st;
}

enum dt_status dt_runs_list(const char *path, struct dt_error *err, struct dt_runs_list *out)
{
    struct dt_runs_list l = {0};
    struct dt_runs_db db;
    enum dt_status st;

    DT_TRY(dt_runs_open(&db, path, err));
    st = read_all(&db, err, &l);
    dt_runs_close(&db);
    if (st == DT_OK)
        *out = l;
    else
        dt_runs_list_free(&l);
    return st;
}

void dt_runs_list_free(struct dt_runs_list *l)
{
    dt_free(l->run);
    memset(l, 0, sizeof(*l));
}
