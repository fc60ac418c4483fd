/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING. */
#include "report/sweep.h"

#include "base/mem.h"
#include "report/runs.h"
#include "report/runs_open.h"

#include <math.h>
#include <sqlite3.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

enum { POINTS_MAX = 1 << 20, SET_MAX = 1 << 16 };

/* ---- the columns of a point ---- */

enum type { INTEGER, REAL, TEXT };
static const struct column {
    const char *name;
    enum type type;
    size_t at, size;
    bool later; /* older files lack it */
} columns[] = {
#define AT(member)                                                                                 \
    offsetof(struct dt_sweep_result, member), sizeof(((struct dt_sweep_result *)0)->member)
#define INTO(member) AT(member), false
    {"feasible", INTEGER, INTO(feasible)},
    {"status", INTEGER, INTO(status)},
    {"gpus", INTEGER, INTO(gpus)},
    {"gpus_used", INTEGER, INTO(gpus_used)},
    {"failures", INTEGER, INTO(failures)},
#define X(name) {#name, REAL, INTO(name)},
    DT_SWEEP_NUMBERS(X)
#undef X
#define X(name) {#name, REAL, AT(name), true},
        DT_SWEEP_LATER(X)
#undef X
            {"effort", TEXT, INTO(effort)},
    {"plan", TEXT, INTO(plan)},
    {"reason", TEXT, INTO(reason)},
#undef INTO
#undef AT
};
enum { COLUMNS = sizeof columns / sizeof columns[0] };

struct dt_sweep {
    struct dt_runs_db db;
    int64_t id;
    sqlite3_stmt *insert;
    char path[4096];
};

static enum dt_status prepare(const struct dt_runs_db *r, const char *sql, struct dt_error *err,
                              sqlite3_stmt **out)
{
    return sqlite3_prepare_v2(r->db, sql, -1, out, NULL) == SQLITE_OK ? DT_OK
                                                                      : dt_runs_error(r, err);
}

static enum dt_status exec(const struct dt_runs_db *r, const char *sql, struct dt_error *err)
{
    return sqlite3_exec(r->db, sql, NULL, NULL, NULL) == SQLITE_OK ? DT_OK : dt_runs_error(r, err);
}

static enum dt_status damaged(const struct dt_runs_db *r, struct dt_error *err, const char *what)
{
    return dt_error_at(err, DT_ERR_INPUT, r->path, 0, 0, "runs file: damaged: sweep: %s", what);
}

/* "a INTEGER NOT NULL, b REAL NOT NULL, ..." or "a, b, ...", or as many question marks. */
static void list_columns(char *sql, size_t size, bool types, bool marks)
{
    static const char *const words[] = {"INTEGER", "REAL", "TEXT"};
    size_t n = strlen(sql);

    for (int i = 0; i < COLUMNS && n < size; i++)
        n += (size_t)snprintf(sql + n, size - n, ",%s%s%s%s", marks ? "?" : columns[i].name,
                              types ? " " : "", types ? words[columns[i].type] : "",
                              types ? " NOT NULL" : "");
}

static void append(char *sql, size_t size, const char *text)
{
    size_t n = strlen(sql);

    snprintf(sql + n, size - n, "%s", text);
}

static bool has_column(const struct dt_runs_db *r, const struct column *c)
{
    return sqlite3_table_column_metadata(r->db, "main", "sweep_point", c->name, NULL, NULL, NULL,
                                         NULL, NULL) == SQLITE_OK;
}

static enum dt_status add_later_columns(const struct dt_runs_db *r, struct dt_error *err)
{
    char sql[160];

    for (int i = 0; i < COLUMNS; i++) {
        snprintf(sql, sizeof sql, "ALTER TABLE sweep_point ADD COLUMN %s REAL NOT NULL DEFAULT 0",
                 columns[i].name);
        if (columns[i].later && !has_column(r, &columns[i]))
            DT_TRY(exec(r, sql, err));
    }
    return DT_OK;
}

static enum dt_status make_tables(const struct dt_runs_db *r, struct dt_error *err)
{
    char sql[2048] = "CREATE TABLE IF NOT EXISTS sweep(id INTEGER PRIMARY KEY, identity TEXT NOT "
                     "NULL UNIQUE, job_name TEXT NOT NULL, job TEXT NOT NULL, keys TEXT NOT NULL, "
                     "started TEXT NOT NULL, version TEXT NOT NULL);"
                     "CREATE TABLE IF NOT EXISTS sweep_point(sweep INTEGER NOT NULL REFERENCES "
                     "sweep(id), point TEXT NOT NULL";

    DT_TRY(dt_runs_make_tables(r, err));
    list_columns(sql, sizeof sql, true, false);
    append(sql, sizeof sql, ", PRIMARY KEY(sweep, point)) WITHOUT ROWID");
    DT_TRY(exec(r, sql, err));
    return add_later_columns(r, err);
}

/* ---- reading ---- */

void dt_sweep_points_free(struct dt_sweep_point *points, int n)
{
    for (int i = 0; points && i < n; i++)
        dt_free(points[i].set);
    dt_free(points);
}

/* A text of at most `max` bytes without a zero byte; NULL where it is something else. */
static const char *text_of(sqlite3_stmt *s, int column, size_t max)
{
    const char *text;
    int n;

    if (sqlite3_column_type(s, column) != SQLITE_TEXT)
        return NULL;
    text = (const char *)sqlite3_column_text(s, column);
    n = sqlite3_column_bytes(s, column);
    return text && (size_t)n <= max && strlen(text) == (size_t)n ? text : NULL;
}

static bool take(sqlite3_stmt *s, int column, const struct column *c, struct dt_sweep_result *r)
{
    char *at = (char *)r + c->at;
    int type = sqlite3_column_type(s, column);
    const char *text;

    switch (c->type) {
    case INTEGER: {
        int64_t v = sqlite3_column_int64(s, column);
        int32_t kept = (int32_t)v;

        if (type != SQLITE_INTEGER || v < 0 || v > INT32_MAX)
            return false;
        memcpy(at, &kept, sizeof kept);
        return true;
    }
    case REAL: {
        double v = sqlite3_column_double(s, column);

        if ((type != SQLITE_FLOAT && type != SQLITE_INTEGER) || !(v >= 0) || !isfinite(v))
            return false;
        memcpy(at, &v, sizeof v);
        return true;
    }
    case TEXT:
        break;
    }
    text = text_of(s, column, c->size - 1);
    if (text)
        strcpy(at, text);
    return text != NULL;
}

static enum dt_status read_row(const struct dt_runs_db *r, sqlite3_stmt *s, struct dt_error *err,
                               struct dt_sweep_point *p)
{
    const char *set = text_of(s, 0, SET_MAX);

    memset(p, 0, sizeof *p);
    if (!set)
        return damaged(r, err, "what a point is of, is no text");
    for (int i = 0; i < COLUMNS; i++)
        if (!take(s, i + 1, &columns[i], &p->r)) {
            char text[96];

            snprintf(text, sizeof text, "%s of a point is out of range", columns[i].name);
            return damaged(r, err, text);
        }
    if (p->r.feasible ? p->r.feasible != 1 || !(p->r.iteration_s > 0) || p->r.gpus < 1
                      : !p->r.reason[0])
        return damaged(r, err, "a point contradicts itself");
    if (p->r.iteration_s_mean == 0) { /* of an older file, or not feasible */
        p->r.iteration_s_mean = p->r.iteration_s;
        p->r.iteration_s_mean_p10 = p->r.iteration_s_p10;
        p->r.iteration_s_mean_p90 = p->r.iteration_s_p90;
    }
    p->set = dt_strdup(set);
    return p->set ? DT_OK : dt_error_nomem(err, "points of a sweep");
}

static enum dt_status read_points(const struct dt_runs_db *r, int64_t id, struct dt_error *err,
                                  struct dt_sweep_point **out, int *n)
{
    char sql[2048] = "SELECT point";
    struct dt_sweep_point *points = NULL;
    size_t cap = 0, count = 0;
    enum dt_status st = DT_OK;
    void *grown = NULL;
    sqlite3_stmt *s;
    int rc = SQLITE_DONE;

    for (int i = 0; i < COLUMNS; i++) {
        append(sql, sizeof sql, ",");
        append(sql, sizeof sql,
               columns[i].later && !has_column(r, &columns[i]) ? "0" : columns[i].name);
    }
    append(sql, sizeof sql, " FROM sweep_point WHERE sweep = ? ORDER BY point");
    DT_TRY(prepare(r, sql, err, &s));
    sqlite3_bind_int64(s, 1, id);
    while (st == DT_OK && (rc = sqlite3_step(s)) == SQLITE_ROW) {
        if (count >= POINTS_MAX)
            st = damaged(r, err, "more than 1,048,576 points");
        else if (dt_grow(&grown, &cap, count + 1, sizeof *points) != 0)
            st = dt_error_nomem(err, "points of a sweep");
        points = grown;
        if (st == DT_OK)
            st = read_row(r, s, err, &points[count]);
        if (st == DT_OK)
            count++;
    }
    if (st == DT_OK && rc != SQLITE_DONE)
        st = dt_runs_error(r, err);
    sqlite3_finalize(s);
    if (st != DT_OK) {
        dt_sweep_points_free(points, (int)count);
        return st;
    }
    *out = points;
    *n = (int)count;
    return DT_OK;
}

static enum dt_status copy_text(sqlite3_stmt *s, int column, const struct dt_runs_db *r,
                                struct dt_error *err, char **out)
{
    const char *text = text_of(s, column, SET_MAX);

    if (!text)
        return damaged(r, err, "what it is of, is no text");
    *out = dt_strdup(text);
    return *out ? DT_OK : dt_error_nomem(err, "a sweep");
}

static enum dt_status read_about(const struct dt_runs_db *r, int64_t id, struct dt_error *err,
                                 struct dt_sweep_data *d)
{
    enum dt_status st = DT_OK;
    sqlite3_stmt *s;
    int rc;

    DT_TRY(prepare(r,
                   "SELECT id, job_name, keys, started FROM sweep WHERE id = ?1 OR (?1 = 0 AND id "
                   "= (SELECT max(id) FROM sweep))",
                   err, &s));
    sqlite3_bind_int64(s, 1, id);
    rc = sqlite3_step(s);
    if (rc == SQLITE_ROW) {
        d->id = sqlite3_column_int64(s, 0);
        st = copy_text(s, 1, r, err, &d->job_name);
        if (st == DT_OK)
            st = copy_text(s, 2, r, err, &d->keys);
        if (st == DT_OK)
            st = copy_text(s, 3, r, err, &d->started);
    } else if (rc == SQLITE_DONE) {
        st = id ? dt_error_at(err, DT_ERR_INPUT, r->path, 0, 0, "has no sweep %lld", (long long)id)
                : dt_error_at(err, DT_ERR_INPUT, r->path, 0, 0, "has no sweeps");
    } else {
        st = dt_runs_error(r, err);
    }
    sqlite3_finalize(s);
    return st;
}

void dt_sweep_data_free(struct dt_sweep_data *d)
{
    dt_free(d->job_name);
    dt_free(d->keys);
    dt_free(d->started);
    dt_sweep_points_free(d->points, d->n);
    memset(d, 0, sizeof *d);
}

enum dt_status dt_sweep_read(const char *file, int64_t id, struct dt_error *err,
                             struct dt_sweep_data *out)
{
    struct dt_sweep_data d = {0};
    struct dt_runs_db r;
    enum dt_status st;

    DT_TRY(dt_runs_open(&r, file, err));
    if (!dt_runs_has_table(&r, "main", "sweep") || !dt_runs_has_table(&r, "main", "sweep_point"))
        st = dt_error_at(err, DT_ERR_INPUT, file, 0, 0, "has no sweeps");
    else
        st = read_about(&r, id, err, &d);
    if (st == DT_OK)
        st = read_points(&r, d.id, err, &d.points, &d.n);
    dt_runs_close(&r);
    if (st == DT_OK)
        *out = d;
    else
        dt_sweep_data_free(&d);
    return st;
}

/* ---- writing ---- */

static enum dt_status begin_sweep(struct dt_sweep *s, const struct dt_sweep_about *a,
                                  struct dt_error *err)
{
    const char *const texts[] = {a->identity, a->job_name, a->job_json,
                                 a->keys,     a->started,  a->version};
    enum dt_status st = DT_OK;
    sqlite3_stmt *q;

    DT_TRY(prepare(&s->db,
                   "INSERT INTO sweep(identity,job_name,job,keys,started,version) "
                   "VALUES(?,?,?,?,?,?) ON CONFLICT(identity) DO NOTHING",
                   err, &q));
    for (int i = 0; i < 6; i++)
        sqlite3_bind_text(q, i + 1, texts[i], -1, SQLITE_STATIC);
    if (sqlite3_step(q) != SQLITE_DONE)
        st = dt_runs_error(&s->db, err);
    sqlite3_finalize(q);
    DT_TRY(st);
    DT_TRY(prepare(&s->db, "SELECT id FROM sweep WHERE identity = ?", err, &q));
    sqlite3_bind_text(q, 1, a->identity, -1, SQLITE_STATIC);
    if (sqlite3_step(q) == SQLITE_ROW)
        s->id = sqlite3_column_int64(q, 0);
    else
        st = dt_runs_error(&s->db, err);
    sqlite3_finalize(q);
    return st;
}

static enum dt_status prepare_insert(struct dt_sweep *s, struct dt_error *err)
{
    char sql[2048] = "INSERT OR REPLACE INTO sweep_point(sweep,point";

    list_columns(sql, sizeof sql, false, false);
    append(sql, sizeof sql, ") VALUES(?,?");
    list_columns(sql, sizeof sql, false, true);
    append(sql, sizeof sql, ")");
    return prepare(&s->db, sql, err, &s->insert);
}

enum dt_status dt_sweep_open(const char *file, const struct dt_sweep_about *about,
                             struct dt_error *err, struct dt_sweep **out,
                             struct dt_sweep_point **points, int *n)
{
    struct dt_sweep *s = dt_calloc(1, sizeof *s);
    enum dt_status st;

    if (!s)
        return dt_error_nomem(err, "a sweep");
    snprintf(s->path, sizeof s->path, "%s", file);
    st = dt_runs_open_write(&s->db, s->path, err);
    if (st != DT_OK) {
        dt_free(s);
        return st;
    }
    st = make_tables(&s->db, err);
    if (st == DT_OK)
        st = begin_sweep(s, about, err);
    if (st == DT_OK)
        st = prepare_insert(s, err);
    if (st == DT_OK)
        st = read_points(&s->db, s->id, err, points, n);
    if (st == DT_OK && (st = exec(&s->db, "COMMIT", err)) != DT_OK)
        dt_sweep_points_free(*points, *n);
    if (st == DT_OK)
        *out = s;
    else
        dt_sweep_close(s);
    return st;
}

static void bind(sqlite3_stmt *q, int place, const struct column *c,
                 const struct dt_sweep_result *r)
{
    const char *at = (const char *)r + c->at;
    int32_t i;
    double v;

    switch (c->type) {
    case INTEGER:
        memcpy(&i, at, sizeof i);
        sqlite3_bind_int64(q, place, i);
        break;
    case REAL:
        memcpy(&v, at, sizeof v);
        sqlite3_bind_double(q, place, v);
        break;
    case TEXT:
        sqlite3_bind_text(q, place, at, -1, SQLITE_STATIC);
        break;
    }
}

enum dt_status dt_sweep_add(struct dt_sweep *s, const char *set, const struct dt_sweep_result *r,
                            struct dt_error *err)
{
    enum dt_status st = DT_OK;

    sqlite3_bind_int64(s->insert, 1, s->id);
    sqlite3_bind_text(s->insert, 2, set, -1, SQLITE_STATIC);
    for (int i = 0; i < COLUMNS; i++)
        bind(s->insert, i + 3, &columns[i], r);
    if (sqlite3_step(s->insert) != SQLITE_DONE) /* a statement alone is a transaction */
        st = dt_runs_error(&s->db, err);
    sqlite3_reset(s->insert);
    return st;
}

int64_t dt_sweep_id(const struct dt_sweep *s)
{
    return s->id;
}

void dt_sweep_close(struct dt_sweep *s)
{
    if (!s)
        return;
    sqlite3_finalize(s->insert);
    dt_runs_close(&s->db);
    dt_free(s);
}

/* ---- the front ---- */

double dt_sweep_token_s(const struct dt_sweep_result *r)
{
    return r->feasible && r->tokens > 0 && r->goodput > 0
               ? r->iteration_s_mean / r->tokens / r->goodput
               : NAN;
}

static bool beats(const double *a, const double *b, int n)
{
    bool better = false;

    for (int g = 0; g < n; g++) {
        if (!(a[g] <= b[g]))
            return false;
        better |= a[g] < b[g];
    }
    return better;
}

void dt_sweep_front(const double *goal, int n, int n_goals, bool *front)
{
    for (int i = 0; i < n; i++) {
        const double *mine = goal + (size_t)i * (size_t)n_goals;

        front[i] = true;
        for (int g = 0; g < n_goals; g++)
            front[i] &= !isnan(mine[g]);
        for (int k = 0; front[i] && k < n; k++)
            front[i] = !beats(goal + (size_t)k * (size_t)n_goals, mine, n_goals);
    }
}
