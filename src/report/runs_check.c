/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * What a runs file must be, as tables of columns; SQLite itself keeps anything in any column. */
#include "core/schedule/program.h"
#include "report/run_ref.h"
#include "report/runs.h"
#include "report/runs_open.h"

#include <math.h>
#include <sqlite3.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

enum { COLUMNS_MAX = 12, TEXT_MAX = 1 << 29 };
enum type { INTEGER, TEXT, REAL };

struct column {
    const char *name;
    enum type type;
    bool null;        /* may be NULL */
    int64_t min, max; /* of a text: bytes; of a REAL only the sign */
};
struct table {
    const char *name;
    const char *run; /* column that says which run the row is of */
    const char *key; /* rows come in this order, no two equal */
    bool may_lack;   /* files of before */
    struct column column[COLUMNS_MAX];
};

#define NS DT_RUNS_TIME_MAX_NS
#define LANES (DT_RUNS_LANES_MAX - 1)
#define RANKS (DT_RUNS_RANKS_MAX - 1)
/* Names of modules are at most 47 bytes (DT_NAME_MAX), of hosts 255. */
static const struct table tables[] = {
    {"run",
     "id",
     "id",
     false,
     {{"id", INTEGER, false, 1, INT64_MAX},
      {"kind", TEXT, false, 1, 15},
      {"job_name", TEXT, false, 0, 4096},
      {"started", TEXT, false, 0, 39},
      {"version", TEXT, false, 0, 39},
      {"n_ops", INTEGER, false, 0, UINT32_MAX},
      {"makespan_ns", INTEGER, false, 0, NS},
      {"report", TEXT, true, 0, TEXT_MAX}}},
    {"lane",
     "run",
     "lane",
     false,
     {{"lane", INTEGER, false, 0, LANES},
      {"module", TEXT, false, 1, DT_NAME_MAX - 1},
      {"replica", INTEGER, false, 0, INT32_MAX},
      {"stage", INTEGER, false, 0, INT32_MAX},
      {"first_gpu", INTEGER, false, 0, INT32_MAX},
      {"gpus", INTEGER, false, 1, INT32_MAX},
      {"busy_ns", INTEGER, false, 0, INT64_MAX}}},
    {"place",
     "run",
     "lane",
     true,
     {{"lane", INTEGER, false, 0, LANES},
      {"rank", INTEGER, false, 0, RANKS},
      {"host", TEXT, true, 0, 255}}},
    {"memory",
     "run",
     "lane",
     true,
     {{"lane", INTEGER, false, 0, LANES},
      {"model", TEXT, false, 1, 15},
      {"predicted_bytes", INTEGER, false, 0, INT64_MAX},
      {"allocated_bytes", INTEGER, true, 0, INT64_MAX}}},
    {"data",
     "run",
     "rank, batch, work",
     true,
     {{"rank", INTEGER, false, 0, RANKS},
      {"batch", INTEGER, false, 0, INT64_MAX},
      {"work", TEXT, false, 1, 31},
      {"begin_ns", INTEGER, false, -NS, NS},
      {"end_ns", INTEGER, false, -NS, NS}}},
    {"fact",
     "run",
     "name",
     true,
     {{"name", TEXT, false, 1, sizeof((struct dt_run_fact *)0)->name - 1},
      {"value", TEXT, false, 0, sizeof((struct dt_run_fact *)0)->value - 1}}},
    {"work",
     "run",
     "module",
     true,
     {{"module", TEXT, false, 1, DT_NAME_MAX - 1}, {"model_flops", REAL, false, 0, 0}}},
    {"origin",
     "run",
     "run",
     true,
     {{"host", TEXT, true, 0, 255}, {"overrides", TEXT, true, 0, 1 << 20}}},
    {"tag", "run", "name", true, {{"name", TEXT, false, 1, DT_RUN_TAG_SIZE - 1}}},
    {"op",
     "run",
     "op",
     false,
     {{"op", INTEGER, false, 0, UINT32_MAX},
      {"lane", INTEGER, false, 0, LANES},
      {"kind", TEXT, false, 1, 31},
      {"chunk", INTEGER, false, 0, INT32_MAX},
      {"part", INTEGER, false, 0, INT32_MAX},
      {"microbatch", INTEGER, true, 0, INT32_MAX},
      {"peer_lane", INTEGER, true, 0, LANES},
      {"bytes", INTEGER, false, 0, INT64_MAX},
      {"begin_ns", INTEGER, false, 0, NS},
      {"end_ns", INTEGER, false, 0, NS}}},
};
enum { TABLES_N = sizeof tables / sizeof *tables, RUN = 0, LANE = 1, OP = 9 };

struct check {
    const struct dt_runs_db *r;
    const char *schema, *path;
    int64_t id;
    struct dt_error *err;
    int64_t n_lanes, n_ops, declared_ops;
};

static int n_columns(const struct table *t)
{
    int n = 0;

    while (n < COLUMNS_MAX && t->column[n].name)
        n++;
    return n;
}

static enum dt_status failed(const struct check *c)
{
    struct dt_runs_db named = *c->r;

    named.path = c->path;
    return dt_runs_error(&named, c->err);
}

static enum dt_status prepare(const struct check *c, const char *sql, sqlite3_stmt **out)
{
    return sqlite3_prepare_v2(c->r->db, sql, -1, out, NULL) == SQLITE_OK ? DT_OK : failed(c);
}

/* The one number that the statement gives; `none` where it gives no row. */
static enum dt_status number(const struct check *c, const char *sql, int64_t none, int64_t *out)
{
    sqlite3_stmt *s;
    enum dt_status st = DT_OK;
    int rc;

    DT_TRY(prepare(c, sql, &s));
    rc = sqlite3_step(s);
    if (rc == SQLITE_ROW)
        *out = sqlite3_column_int64(s, 0);
    else if (rc == SQLITE_DONE)
        *out = none;
    else
        st = failed(c);
    sqlite3_finalize(s);
    return st;
}

/* ---- what file it is ---- */

/* 0 = none, 1 = a table, 2 = something else of that name. */
static enum dt_status kind_of_table(const struct check *c, const char *name, int64_t *out)
{
    char sql[200];

    snprintf(
        sql, sizeof sql,
        "SELECT CASE type WHEN 'table' THEN 1 ELSE 2 END FROM pragma_table_list WHERE schema = "
        "'%s' AND name = '%s'",
        c->schema, name);
    return number(c, sql, 0, out);
}

static enum dt_status check_columns(const struct check *c, const struct table *t)
{
    bool has[COLUMNS_MAX] = {false};
    int n = n_columns(t), rc;
    sqlite3_stmt *s;
    char sql[160];

    snprintf(sql, sizeof sql, "SELECT name FROM pragma_table_xinfo('%s', '%s') WHERE hidden = 0",
             t->name, c->schema);
    DT_TRY(prepare(c, sql, &s));
    while ((rc = sqlite3_step(s)) == SQLITE_ROW) {
        const char *name = (const char *)sqlite3_column_text(s, 0);

        for (int i = 0; name && i < n; i++)
            has[i] |= strcmp(name, t->column[i].name) == 0;
    }
    sqlite3_finalize(s);
    if (rc != SQLITE_DONE)
        return failed(c);
    for (int i = 0; i < n; i++)
        if (!has[i])
            return dt_error_at(c->err, DT_ERR_INPUT, c->path, 0, 0,
                               "not a runs file: table %s has no column %s", t->name,
                               t->column[i].name);
    return DT_OK;
}

static enum dt_status check_tables(const struct check *c)
{
    int64_t kind;

    for (int i = 0; i < TABLES_N; i++) {
        DT_TRY(kind_of_table(c, tables[i].name, &kind));
        if (kind == 0 && tables[i].may_lack)
            continue;
        if (kind != 1)
            return dt_error_at(c->err, DT_ERR_INPUT, c->path, 0, 0, "not a runs file: %s is %s",
                               tables[i].name,
                               kind ? "no table but a view or virtual table" : "no table in it");
        DT_TRY(check_columns(c, &tables[i]));
    }
    return DT_OK;
}

static enum dt_status check_version(const struct check *c)
{
    int64_t kind, version = -1;
    char sql[160];

    DT_TRY(kind_of_table(c, "meta", &kind));
    if (kind != 1)
        return dt_error_at(c->err, DT_ERR_INPUT, c->path, 0, 0,
                           "not a runs file: it is a database of another program (it has no table "
                           "meta)");
    snprintf(sql, sizeof sql, "SELECT value FROM %s.meta WHERE key = 'disttrain_runs_schema'",
             c->schema);
    DT_TRY(number(c, sql, -1, &version));
    if (version < 0)
        return dt_error_at(c->err, DT_ERR_INPUT, c->path, 0, 0,
                           "not a runs file: it is a database of another program (its table meta "
                           "does not mention runs)");
    if (version != DT_RUNS_SCHEMA)
        return dt_error_at(c->err, DT_ERR_INPUT, c->path, 0, 0,
                           "runs file has schema %lld, this program knows %d; name another file "
                           "with --runs",
                           (long long)version, DT_RUNS_SCHEMA);
    return DT_OK;
}

enum dt_status dt_runs_identify(const struct dt_runs_db *r, const char *schema, const char *path,
                                struct dt_error *err, bool *empty)
{
    struct check c = {.r = r, .schema = schema, .path = path, .err = err};
    int64_t program = 0, version = 0, objects = 0;
    char sql[96];

    snprintf(sql, sizeof sql, "PRAGMA %s.application_id", schema);
    DT_TRY(number(&c, sql, 0, &program));
    snprintf(sql, sizeof sql, "PRAGMA %s.user_version", schema);
    DT_TRY(number(&c, sql, 0, &version));
    snprintf(sql, sizeof sql, "SELECT count(*) FROM %s.sqlite_master", schema);
    DT_TRY(number(&c, sql, 0, &objects));
    if ((program != 0 && program != DT_RUNS_APPLICATION_ID) || version != 0)
        return dt_error_at(err, DT_ERR_INPUT, path, 0, 0,
                           "not a runs file: it is a database of another program (application_id "
                           "0x%08x, user_version %lld)",
                           (unsigned)program, (long long)version);
    if (objects == 0 && empty) {
        *empty = true;
        return DT_OK;
    }
    if (objects == 0)
        return dt_error_at(err, DT_ERR_INPUT, path, 0, 0, "not a runs file: it is empty");
    DT_TRY(check_version(&c));
    DT_TRY(check_tables(&c));
    if (empty)
        *empty = false;
    return DT_OK;
}

bool dt_runs_has_table(const struct dt_runs_db *r, const char *schema, const char *table)
{
    struct check c = {.r = r, .schema = schema, .path = r->path};
    int64_t kind = 0;

    return kind_of_table(&c, table, &kind) == DT_OK && kind == 1;
}

/* ---- rows ---- */

static enum dt_status bad_value(const struct check *c, const struct table *t,
                                const struct column *k, int64_t row, const char *what)
{
    return dt_error_at(c->err, DT_ERR_INPUT, c->path, 0, 0,
                       "runs file: damaged: run %lld, row %lld of table %s: %s %s",
                       (long long)c->id, (long long)row, t->name, k->name, what);
}

static enum dt_status check_value(const struct check *c, const struct table *t, sqlite3_stmt *s,
                                  int i, int64_t row)
{
    const struct column *k = &t->column[i];
    int type = sqlite3_column_type(s, i);
    char text[96];
    int64_t v;

    if (type == SQLITE_NULL)
        return k->null ? DT_OK : bad_value(c, t, k, row, "is NULL");
    if (k->type == REAL) {
        double x = sqlite3_column_double(s, i);

        return (type == SQLITE_FLOAT || type == SQLITE_INTEGER) && isfinite(x) && x >= 0
                   ? DT_OK
                   : bad_value(c, t, k, row, "is not a number of 0 or more");
    }
    if (type != (k->type == TEXT ? SQLITE_TEXT : SQLITE_INTEGER))
        return bad_value(c, t, k, row, k->type == TEXT ? "is no text" : "is not a whole number");
    v = k->type == TEXT ? sqlite3_column_bytes(s, i) : sqlite3_column_int64(s, i);
    if (v < k->min || v > k->max) {
        snprintf(text, sizeof text, "is %lld%s, not %lld to %lld", (long long)v,
                 k->type == TEXT ? " bytes long" : "", (long long)k->min, (long long)k->max);
        return bad_value(c, t, k, row, text);
    }
    if (k->type == TEXT) {
        const void *p = sqlite3_column_text(s, i);

        if (!p)
            return dt_error_nomem(c->err, "a text of the runs file");
        if (memchr(p, 0, (size_t)v))
            return bad_value(c, t, k, row, "holds a zero byte");
    }
    return DT_OK;
}

static bool is_kind_of_op(const char *name)
{
    for (int k = 0; k < DT_OP_KIND_N; k++)
        if (strcmp(dt_op_kind_names[k], name) == 0)
            return true;
    return false;
}

/* What a row's values say together. */
static enum dt_status check_row(struct check *c, const struct table *t, sqlite3_stmt *s,
                                int64_t row)
{
    const struct column *k = t->column;

    if (t == &tables[RUN])
        c->declared_ops = sqlite3_column_int64(s, 5);
    if (t == &tables[LANE] && sqlite3_column_int64(s, 0) != row)
        return bad_value(c, t, &k[0], row, "does not count from 0 without a gap");
    if (t == &tables[LANE] && sqlite3_column_int64(s, 4) + sqlite3_column_int64(s, 5) > INT32_MAX)
        return bad_value(c, t, &k[4], row, "is too large");
    if (t != &tables[OP])
        return DT_OK;
    if (sqlite3_column_int64(s, 0) != row)
        return bad_value(c, t, &k[0], row, "does not count from 0 without a gap");
    if (sqlite3_column_int64(s, 1) >= c->n_lanes)
        return bad_value(c, t, &k[1], row, "is the number of no lane");
    if (!is_kind_of_op((const char *)sqlite3_column_text(s, 2)))
        return bad_value(c, t, &k[2], row, "is no kind of op");
    if (sqlite3_column_type(s, 6) != SQLITE_NULL && sqlite3_column_int64(s, 6) >= c->n_lanes)
        return bad_value(c, t, &k[6], row, "is the number of no lane");
    if (sqlite3_column_int64(s, 9) < sqlite3_column_int64(s, 8))
        return bad_value(c, t, &k[9], row, "is before its begin_ns");
    return DT_OK;
}

/* Rows whose key is not that of another row: two would be joined twice. */
static enum dt_status check_unique(const struct check *c, const struct table *t, int64_t n)
{
    char sql[256];
    int64_t different;

    snprintf(sql, sizeof sql,
             "SELECT count(*) FROM (SELECT DISTINCT %s FROM %s.%s WHERE %s = %lld)", t->key,
             c->schema, t->name, t->run, (long long)c->id);
    DT_TRY(number(c, sql, 0, &different));
    return different == n
               ? DT_OK
               : dt_error_at(c->err, DT_ERR_INPUT, c->path, 0, 0,
                             "runs file: damaged: run %lld has %lld duplicate rows in table %s",
                             (long long)c->id, (long long)(n - different), t->name);
}

static enum dt_status check_rows(struct check *c, const struct table *t, int64_t *n)
{
    char sql[512] = "SELECT ";
    sqlite3_stmt *s;
    enum dt_status st = DT_OK;
    int rc = SQLITE_DONE, columns = n_columns(t);

    *n = 0;
    for (int i = 0; i < columns; i++)
        sqlite3_snprintf((int)(sizeof sql - strlen(sql)), sql + strlen(sql), "%s%s", i ? ", " : "",
                         t->column[i].name);
    sqlite3_snprintf((int)(sizeof sql - strlen(sql)), sql + strlen(sql),
                     " FROM %s.%s WHERE %s = %lld ORDER BY %s", c->schema, t->name, t->run,
                     (long long)c->id, t->key);
    DT_TRY(prepare(c, sql, &s));
    while (st == DT_OK && (rc = sqlite3_step(s)) == SQLITE_ROW) {
        for (int i = 0; i < columns && st == DT_OK; i++)
            st = check_value(c, t, s, i, *n);
        if (st == DT_OK)
            st = check_row(c, t, s, *n);
        ++*n;
    }
    sqlite3_finalize(s);
    if (st == DT_OK && rc != SQLITE_DONE)
        st = failed(c);
    /* lanes and ops count on: no two are equal */
    return st == DT_OK && t != &tables[LANE] && t != &tables[OP] ? check_unique(c, t, *n) : st;
}

/* SQLite reads a file that was cut inside its last page as if it went on with zeros. */
static enum dt_status check_size(const struct check *c)
{
    const char *name = sqlite3_db_filename(c->r->db, c->schema);
    int64_t page = 0;
    struct stat sb;
    char sql[64];

    snprintf(sql, sizeof sql, "PRAGMA %s.page_size", c->schema);
    DT_TRY(number(c, sql, 0, &page));
    if (name && page > 0 && stat(name, &sb) == 0 && sb.st_size % page != 0)
        return dt_error_at(c->err, DT_ERR_INPUT, c->path, 0, 0,
                           "runs file: damaged: cut off inside a page");
    return DT_OK;
}

enum dt_status dt_runs_check(const struct dt_runs_db *r, const char *schema, const char *path,
                             int64_t id, struct dt_error *err, int64_t *n_lanes, int64_t *n_ops)
{
    struct check c = {.r = r, .schema = schema, .path = path, .id = id, .err = err};
    int64_t n = 0;

    DT_TRY(check_size(&c));
    for (int i = 0; i < TABLES_N; i++) {
        if (tables[i].may_lack && !dt_runs_has_table(r, schema, tables[i].name))
            continue;
        DT_TRY(check_rows(&c, &tables[i], &n));
        if (i == RUN && n == 0)
            return dt_error_at(err, DT_ERR_INPUT, path, 0, 0, "has no run %lld", (long long)id);
        if (i == LANE)
            c.n_lanes = n;
        if (i == OP)
            c.n_ops = n;
    }
    if (c.n_ops != 0 && c.n_ops != c.declared_ops)
        return dt_error_at(err, DT_ERR_INPUT, path, 0, 0,
                           "runs file: damaged: run %lld has kept %lld of its %lld ops",
                           (long long)id, (long long)c.n_ops, (long long)c.declared_ops);
    if (n_lanes)
        *n_lanes = c.n_lanes;
    if (n_ops)
        *n_ops = c.n_ops;
    return DT_OK;
}
