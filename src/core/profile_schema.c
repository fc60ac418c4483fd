/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Reading profile files: SQL text run in an in-memory database, or an SQLite database opened
 * read-only.
 *
 * Either may come from anywhere, so an authorizer lets only the schema's own statements run, sizes
 * and statement steps are bounded, and every value is checked on the way out. */
#include "core/profile_schema.h"

#include "core/file.h"
#include "core/mem.h"

#include <sqlite3.h>
#include <string.h>

const char dt_profile_schema_sql[] =
    "CREATE TABLE meta(key TEXT NOT NULL, value TEXT NOT NULL);\n"
    "CREATE TABLE source(id INTEGER PRIMARY KEY, name TEXT NOT NULL, origin TEXT NOT NULL,"
    " licence TEXT NOT NULL, date TEXT NOT NULL, note TEXT NOT NULL);\n"
    "CREATE TABLE series(id INTEGER PRIMARY KEY, device TEXT NOT NULL, dtype TEXT NOT NULL,"
    " op TEXT NOT NULL, phase TEXT NOT NULL, kind TEXT NOT NULL,"
    " source INTEGER NOT NULL REFERENCES source(id));\n"
    "CREATE TABLE point(series INTEGER NOT NULL REFERENCES series(id), d0 INTEGER NOT NULL,"
    " d1 INTEGER NOT NULL, d2 INTEGER NOT NULL, d3 INTEGER NOT NULL, d4 INTEGER NOT NULL,"
    " d5 INTEGER NOT NULL, n INTEGER NOT NULL, median_ns REAL NOT NULL, p10_ns REAL NOT NULL,"
    " p90_ns REAL NOT NULL);\n";

enum { FILE_LIMIT_BYTES = 512 << 20, STEP_LIMIT = 20000 /* x 100,000 VM instructions */ };

static const char *const table_names[] = {"meta", "source", "series", "point", NULL};

static int find_word(const char *const *words, const char *word)
{
    for (int i = 0; words[i]; i++)
        if (strcmp(words[i], word) == 0)
            return i;
    return -1;
}

static bool own_table(const char *name)
{
    return name && find_word(table_names, name) >= 0;
}

/* What a profile's SQL text may do: create our tables, insert constants into them, one transaction.
 */
static int allow_load(void *unused, int action, const char *a, const char *b, const char *db,
                      const char *trigger)
{
    (void)unused;
    (void)b;
    if (trigger || (db && strcmp(db, "main") != 0))
        return SQLITE_DENY;
    switch (action) {
    case SQLITE_CREATE_TABLE:
        return own_table(a) ? SQLITE_OK : SQLITE_DENY;
    case SQLITE_INSERT:
    case SQLITE_UPDATE: /* CREATE TABLE itself updates the schema table; ours are only inserted into
                         */
    case SQLITE_READ:
        if (a && strcmp(a, "sqlite_master") == 0)
            return SQLITE_OK;
        return action == SQLITE_INSERT && own_table(a) ? SQLITE_OK : SQLITE_DENY;
    case SQLITE_SELECT: /* a VALUES list of several rows is a SELECT without tables */
    case SQLITE_TRANSACTION:
        return SQLITE_OK;
    default:
        return SQLITE_DENY;
    }
}

static int allow_read(void *unused, int action, const char *a, const char *b, const char *db,
                      const char *trigger)
{
    (void)unused;
    (void)db;
    if (trigger)
        return SQLITE_DENY;
    if (action == SQLITE_SELECT)
        return SQLITE_OK;
    if (action == SQLITE_READ)
        return own_table(a) || (a && strcmp(a, "sqlite_master") == 0) ? SQLITE_OK : SQLITE_DENY;
    return action == SQLITE_FUNCTION && b && strcmp(b, "count") == 0 ? SQLITE_OK : SQLITE_DENY;
}

static int bounded(void *steps)
{
    return ++*(int *)steps > STEP_LIMIT;
}

static void set_limits(sqlite3 *db, int *steps)
{
    int was;

    sqlite3_limit(db, SQLITE_LIMIT_LENGTH, FILE_LIMIT_BYTES);
    sqlite3_limit(db, SQLITE_LIMIT_SQL_LENGTH, FILE_LIMIT_BYTES);
    sqlite3_limit(db, SQLITE_LIMIT_COLUMN, 32);
    sqlite3_limit(db, SQLITE_LIMIT_EXPR_DEPTH, 16);
    sqlite3_limit(db, SQLITE_LIMIT_COMPOUND_SELECT, 2);
    sqlite3_limit(db, SQLITE_LIMIT_ATTACHED, 0);
    sqlite3_limit(db, SQLITE_LIMIT_TRIGGER_DEPTH, 0);
    sqlite3_limit(db, SQLITE_LIMIT_WORKER_THREADS, 0);
    sqlite3_db_config(db, SQLITE_DBCONFIG_DEFENSIVE, 1, &was);
    sqlite3_db_config(db, SQLITE_DBCONFIG_TRUSTED_SCHEMA, 0, &was);
    sqlite3_db_config(db, SQLITE_DBCONFIG_ENABLE_TRIGGER, 0, &was);
    sqlite3_db_config(db, SQLITE_DBCONFIG_ENABLE_VIEW, 0, &was);
    sqlite3_progress_handler(db, 100000, bounded, steps);
}

static enum dt_status db_error(sqlite3 *db, const char *name, struct dt_error *err)
{
    return dt_error_at(err, DT_ERR_INPUT, name, 0, 0, "not a valid profile: %s",
                       sqlite3_errmsg(db));
}

static bool copy_text(sqlite3_stmt *st, int col, char *buf, size_t size)
{
    const char *s = (const char *)sqlite3_column_text(st, col);
    int n = sqlite3_column_bytes(st, col);

    if (!s || n < 0 || (size_t)n >= size || memchr(s, 0, (size_t)n))
        return false;
    memcpy(buf, s, (size_t)n + 1);
    return true;
}

static enum dt_status read_meta(sqlite3 *db, const char *name, struct dt_error *err,
                                int64_t *declared)
{
    sqlite3_stmt *st;
    char key[64], value[64];
    long long version = -1;
    int rc;

    *declared = -1;
    if (sqlite3_prepare_v2(db, "SELECT key, value FROM meta", -1, &st, NULL) != SQLITE_OK)
        return db_error(db, name, err);
    while ((rc = sqlite3_step(st)) == SQLITE_ROW) {
        if (!copy_text(st, 0, key, sizeof key) || !copy_text(st, 1, value, sizeof value))
            continue;
        if (strcmp(key, "schema_version") == 0)
            version = sqlite3_column_int64(st, 1);
        else if (strcmp(key, "points") == 0)
            *declared = sqlite3_column_int64(st, 1);
    }
    sqlite3_finalize(st);
    if (rc != SQLITE_DONE)
        return db_error(db, name, err);
    if (version != DT_PROFILE_SCHEMA)
        return dt_error_at(err, DT_ERR_INPUT, name, 0, 0,
                           "profile schema version %lld, this program reads version %d", version,
                           DT_PROFILE_SCHEMA);
    return DT_OK;
}

struct series {
    int64_t key; /* the id in the file */
    struct dt_ptable_row row;
};
struct reading {
    sqlite3 *db;
    const char *name;
    struct dt_error *err;
    struct dt_ptable *t;
    int64_t *source_ids; /* [n_sources] file id -> index */
    struct series *series;
    size_t n_series, cap_series, cap_ids;
    int n_ids;
    int *source_index;
    size_t cap_index;
};

static enum dt_status read_sources(struct reading *rd)
{
    sqlite3_stmt *st;
    enum dt_status status = DT_OK;
    int rc;

    if (sqlite3_prepare_v2(rd->db, "SELECT id, name, origin, licence, date, note FROM source", -1,
                           &st, NULL) != SQLITE_OK)
        return db_error(rd->db, rd->name, rd->err);
    while (status == DT_OK && (rc = sqlite3_step(st)) == SQLITE_ROW) {
        struct dt_profile_source s = {0};
        int index;
        if (!copy_text(st, 1, s.name, sizeof s.name) ||
            !copy_text(st, 2, s.origin, sizeof s.origin) ||
            !copy_text(st, 3, s.licence, sizeof s.licence) ||
            !copy_text(st, 4, s.date, sizeof s.date) || !copy_text(st, 5, s.note, sizeof s.note)) {
            status = dt_error_at(rd->err, DT_ERR_INPUT, rd->name, 0, 0,
                                 "source %lld: a text is missing or too long",
                                 (long long)sqlite3_column_int64(st, 0));
            break;
        }
        status = dt_ptable_source(rd->t, &s, rd->err, &index);
        if (status == DT_OK && (dt_grow((void **)&rd->source_ids, &rd->cap_ids,
                                        (size_t)rd->n_ids + 1, sizeof(int64_t)) ||
                                dt_grow((void **)&rd->source_index, &rd->cap_index,
                                        (size_t)rd->n_ids + 1, sizeof(int))))
            status = dt_error_nomem(rd->err, "profile sources");
        if (status == DT_OK) {
            rd->source_ids[rd->n_ids] = sqlite3_column_int64(st, 0);
            rd->source_index[rd->n_ids++] = index;
        }
    }
    if (status == DT_OK && rc != SQLITE_DONE)
        status = db_error(rd->db, rd->name, rd->err);
    sqlite3_finalize(st);
    return status;
}

static enum dt_status one_series(struct reading *rd, sqlite3_stmt *st)
{
    char device[DT_NAME_MAX], dtype[16], op[32], phase[16], kind[16];
    struct series s = {.key = sqlite3_column_int64(st, 0)};
    struct dt_profile_row *r = &s.row.r;
    int64_t source = sqlite3_column_int64(st, 6);

    if (!copy_text(st, 1, device, sizeof device) || !copy_text(st, 2, dtype, sizeof dtype) ||
        !copy_text(st, 3, op, sizeof op) || !copy_text(st, 4, phase, sizeof phase) ||
        !copy_text(st, 5, kind, sizeof kind))
        return dt_error_at(rd->err, DT_ERR_INPUT, rd->name, 0, 0,
                           "series %lld: a text is missing or too long", (long long)s.key);
    r->family = -1;
    for (int f = 0; f < DT_OP_FAMILY_N; f++)
        if (strcmp(dt_op_family_names[f], op) == 0)
            r->family = f;
    r->phase = find_word(dt_ptable_phase_names, phase);
    r->kind = find_word(dt_row_kind_names, kind);
    r->source = -1;
    for (int i = 0; i < rd->n_ids; i++)
        if (rd->source_ids[i] == source)
            r->source = rd->source_index[i];
    if (r->family < 0 || r->phase < 0 || r->kind < 0 || r->source < 0)
        return dt_error_at(rd->err, DT_ERR_INPUT, rd->name, 0, 0, "series %lld: unknown %s '%s'",
                           (long long)s.key,
                           r->family < 0  ? "op"
                           : r->phase < 0 ? "phase"
                           : r->kind < 0  ? "kind"
                                          : "source of",
                           r->phase < 0 && r->family >= 0  ? phase
                           : r->kind < 0 && r->family >= 0 ? kind
                                                           : op);
    DT_TRY(dt_ptable_device(rd->t, device, rd->err, &s.row.device));
    DT_TRY(dt_ptable_dtype(rd->t, dtype, rd->err, &s.row.dtype));
    if (dt_grow((void **)&rd->series, &rd->cap_series, rd->n_series + 1, sizeof s))
        return dt_error_nomem(rd->err, "profile series");
    rd->series[rd->n_series++] = s;
    return DT_OK;
}

static enum dt_status read_series(struct reading *rd)
{
    sqlite3_stmt *st;
    enum dt_status status = DT_OK;
    int rc = SQLITE_DONE;

    if (sqlite3_prepare_v2(
            rd->db, "SELECT id, device, dtype, op, phase, kind, source FROM series ORDER BY id", -1,
            &st, NULL) != SQLITE_OK)
        return db_error(rd->db, rd->name, rd->err);
    while (status == DT_OK && (rc = sqlite3_step(st)) == SQLITE_ROW)
        status = one_series(rd, st);
    if (status == DT_OK && rc != SQLITE_DONE)
        status = db_error(rd->db, rd->name, rd->err);
    sqlite3_finalize(st);
    return status;
}

/* Series are in id order; points mostly come series by series, so look at the last one first. */
static const struct series *find_series(const struct reading *rd, int64_t key,
                                        const struct series *last)
{
    size_t lo = 0, hi = rd->n_series;

    if (last && last->key == key)
        return last;
    while (lo < hi) {
        size_t mid = lo + (hi - lo) / 2;
        if (rd->series[mid].key < key)
            lo = mid + 1;
        else
            hi = mid;
    }
    return lo < rd->n_series && rd->series[lo].key == key ? &rd->series[lo] : NULL;
}

static enum dt_status one_point(struct reading *rd, sqlite3_stmt *st, const struct series **last)
{
    struct dt_ptable_row row;
    const struct series *s = find_series(rd, sqlite3_column_int64(st, 0), *last);

    if (!s)
        return dt_error_at(rd->err, DT_ERR_INPUT, rd->name, 0, 0,
                           "a point names series %lld, which does not exist",
                           (long long)sqlite3_column_int64(st, 0));
    *last = s;
    row = s->row;
    for (int i = 1; i <= 7; i++) {
        if (sqlite3_column_type(st, i) != SQLITE_INTEGER)
            return dt_error_at(rd->err, DT_ERR_INPUT, rd->name, 0, 0,
                               "a point of series %lld: %s is not a whole number",
                               (long long)s->key, sqlite3_column_name(st, i));
        if (i < 7)
            row.r.d[i - 1] = sqlite3_column_int64(st, i);
    }
    row.r.n = sqlite3_column_int64(st, 7);
    for (int i = 8; i <= 10; i++)
        if (sqlite3_column_type(st, i) != SQLITE_FLOAT &&
            sqlite3_column_type(st, i) != SQLITE_INTEGER)
            return dt_error_at(rd->err, DT_ERR_INPUT, rd->name, 0, 0,
                               "a point of series %lld: %s is not a number", (long long)s->key,
                               sqlite3_column_name(st, i));
    row.r.median_ns = sqlite3_column_double(st, 8);
    row.r.p10_ns = sqlite3_column_double(st, 9);
    row.r.p90_ns = sqlite3_column_double(st, 10);
    return dt_ptable_add(rd->t, &row, rd->err);
}

static enum dt_status read_points(struct reading *rd, int64_t declared)
{
    const struct series *last = NULL;
    sqlite3_stmt *st;
    enum dt_status status = DT_OK;
    int rc = SQLITE_DONE;

    if (sqlite3_prepare_v2(rd->db,
                           "SELECT series, d0, d1, d2, d3, d4, d5, n, median_ns, p10_ns, p90_ns "
                           "FROM point",
                           -1, &st, NULL) != SQLITE_OK)
        return db_error(rd->db, rd->name, rd->err);
    while (status == DT_OK && (rc = sqlite3_step(st)) == SQLITE_ROW)
        status = one_point(rd, st, &last);
    if (status == DT_OK && rc != SQLITE_DONE)
        status = db_error(rd->db, rd->name, rd->err);
    sqlite3_finalize(st);
    if (status == DT_OK && declared != (int64_t)rd->t->n_rows)
        status = dt_error_at(rd->err, DT_ERR_INPUT, rd->name, 0, 0,
                             "profile is incomplete: meta declares %lld points, the file has %zu",
                             (long long)declared, rd->t->n_rows);
    return status;
}

static enum dt_status read_tables(sqlite3 *db, const char *name, struct dt_error *err,
                                  struct dt_ptable *out)
{
    struct dt_ptable t = {0};
    struct reading rd = {.db = db, .name = name, .err = err, .t = &t};
    int64_t declared;
    enum dt_status status = read_meta(db, name, err, &declared);

    if (status == DT_OK)
        status = read_sources(&rd);
    if (status == DT_OK)
        status = read_series(&rd);
    if (status == DT_OK)
        status = read_points(&rd, declared);
    dt_free(rd.source_ids);
    dt_free(rd.source_index);
    dt_free(rd.series);
    if (status != DT_OK) {
        dt_ptable_free(&t);
        /* A row was refused by the table, which does not know the file. */
        if (err && !err->file[0])
            sqlite3_snprintf(sizeof err->file, err->file, "%s", name);
        return status;
    }
    *out = t;
    return DT_OK;
}

static enum dt_status sql_error(const char *name, const char *text, const char *at,
                                const char *what, struct dt_error *err)
{
    int line = 1, column = 1;

    for (const char *c = text; c < at; c++) {
        column = *c == '\n' ? 1 : column + 1;
        line += *c == '\n';
    }
    return dt_error_at(err, DT_ERR_INPUT, name, line, column, "not a valid profile: %s", what);
}

/* Statement by statement, so that an error has a place. */
static enum dt_status run_sql(sqlite3 *db, const char *name, const char *text, struct dt_error *err)
{
    for (const char *at = text, *next; *at; at = next) {
        sqlite3_stmt *st = NULL;
        at += strspn(at, " \t\r\n");
        int rc = sqlite3_prepare_v2(db, at, -1, &st, &next);
        if (rc != SQLITE_OK) {
            int offset = sqlite3_error_offset(db);
            return sql_error(name, text, at + (offset > 0 ? offset : 0), sqlite3_errmsg(db), err);
        }
        while (st && (rc = sqlite3_step(st)) == SQLITE_ROW)
            ;
        sqlite3_finalize(st); /* its code is that of the step */
        if (st && rc != SQLITE_DONE)
            return sql_error(name, text, at, sqlite3_errmsg(db), err);
    }
    if (!sqlite3_get_autocommit(db))
        return sql_error(name, text, text + strlen(text),
                         "it is truncated: its transaction has no COMMIT", err);
    return DT_OK;
}

enum dt_status dt_ptable_parse_sql(const char *name, const char *text, struct dt_error *err,
                                   struct dt_ptable *out)
{
    enum dt_status status = DT_OK;
    sqlite3 *db = NULL;
    int steps = 0;

    if (sqlite3_open_v2(":memory:", &db,
                        SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE | SQLITE_OPEN_NOMUTEX,
                        NULL) != SQLITE_OK) {
        sqlite3_close(db);
        return dt_error_nomem(err, "the profile database");
    }
    sqlite3_exec(db, "PRAGMA max_page_count=262144", NULL, NULL, NULL);
    set_limits(db, &steps);
    sqlite3_set_authorizer(db, allow_load, NULL);
    status = run_sql(db, name, text, err);
    if (status == DT_OK) {
        sqlite3_set_authorizer(db, allow_read, NULL);
        status = read_tables(db, name, err, out);
    }
    sqlite3_close(db);
    return status;
}

static enum dt_status read_database(const char *path, struct dt_error *err, struct dt_ptable *out)
{
    enum dt_status status = DT_OK;
    sqlite3 *db = NULL;
    int steps = 0;

    if (sqlite3_open_v2(path, &db, SQLITE_OPEN_READONLY | SQLITE_OPEN_NOMUTEX, NULL) != SQLITE_OK) {
        status = db_error(db, path, err);
        sqlite3_close(db);
        return status;
    }
    set_limits(db, &steps);
    sqlite3_set_authorizer(db, allow_read, NULL);
    status = read_tables(db, path, err, out);
    sqlite3_close(db);
    return status;
}

enum dt_status dt_ptable_read(const char *path, struct dt_error *err, struct dt_ptable *out)
{
    enum dt_status status;
    char *text;
    size_t len;

    DT_TRY(dt_file_read(path, FILE_LIMIT_BYTES, err, &text, &len));
    if (len >= 16 && memcmp(text, "SQLite format 3", 16) == 0) {
        dt_free(text);
        return read_database(path, err, out);
    }
    if (memchr(text, 0, len))
        status = dt_error_at(err, DT_ERR_INPUT, path, 0, 0,
                             "neither an SQLite database nor SQL text (it holds a zero byte)");
    else
        status = dt_ptable_parse_sql(path, text, err, out);
    dt_free(text);
    return status;
}
