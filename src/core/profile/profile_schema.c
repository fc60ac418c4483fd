/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Reading profile files: every value is checked on its way out of the database (profile_sql.h). */
#include "core/profile/profile_schema.h"

#include "base/doc.h"
#include "base/file.h"
#include "base/mem.h"
#include "core/profile/profile_sql.h"

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

static int find_word(const char *const *words, const char *word)
{
    for (int i = 0; words[i]; i++)
        if (strcmp(words[i], word) == 0)
            return i;
    return -1;
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

struct series {
    int64_t key; /* the id in the file */
    struct dt_profile_table_row row;
};
struct reading {
    const struct dt_profile_sql *sql;
    sqlite3 *db;
    const char *name;
    struct dt_error *err;
    struct dt_profile_table *t;
    int64_t *source_ids; /* [n_sources] file id -> index */
    struct series *series;
    size_t n_series, cap_series, cap_ids;
    int n_ids;
    int *source_index;
    size_t cap_index;
};

/* An error about a row says where that row stands. */
static enum dt_status placed(const struct reading *rd, const char *table, int64_t row,
                             enum dt_status status)
{
    if (status == DT_ERR_INPUT && rd->err)
        dt_profile_sql_place(rd->sql, table, row, rd->err);
    return status;
}

static enum dt_status read_meta(struct reading *rd, int64_t *declared)
{
    sqlite3_stmt *st;
    char key[64], value[64];
    long long version = -1;
    int rc;

    *declared = -1;
    if (sqlite3_prepare_v2(rd->db, "SELECT key, value FROM meta", -1, &st, NULL) != SQLITE_OK)
        return dt_profile_sql_error(rd->sql, rd->err);
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
        return dt_profile_sql_error(rd->sql, rd->err);
    if (version != DT_PROFILE_SCHEMA)
        return dt_error_at(rd->err, DT_ERR_INPUT, rd->name, 0, 0,
                           "profile schema version %lld, this program reads version %d", version,
                           DT_PROFILE_SCHEMA);
    return DT_OK;
}

static enum dt_status one_source(struct reading *rd, sqlite3_stmt *st)
{
    struct dt_profile_source s = {0};
    int index;

    if (!copy_text(st, 1, s.name, sizeof s.name) || !copy_text(st, 2, s.origin, sizeof s.origin) ||
        !copy_text(st, 3, s.licence, sizeof s.licence) ||
        !copy_text(st, 4, s.date, sizeof s.date) || !copy_text(st, 5, s.note, sizeof s.note))
        return dt_error_set(rd->err, DT_ERR_INPUT, "source %lld: a text is missing or too long",
                            (long long)sqlite3_column_int64(st, 0));
    DT_TRY(dt_profile_table_source(rd->t, &s, rd->err, &index));
    if (dt_grow((void **)&rd->source_ids, &rd->cap_ids, (size_t)rd->n_ids + 1, sizeof(int64_t)) ||
        dt_grow((void **)&rd->source_index, &rd->cap_index, (size_t)rd->n_ids + 1, sizeof(int)))
        return dt_error_nomem(rd->err, "profile sources");
    rd->source_ids[rd->n_ids] = sqlite3_column_int64(st, 0);
    rd->source_index[rd->n_ids++] = index;
    return DT_OK;
}

static enum dt_status read_sources(struct reading *rd)
{
    sqlite3_stmt *st;
    enum dt_status status = DT_OK;
    int rc = SQLITE_DONE;

    if (sqlite3_prepare_v2(rd->db, "SELECT id, name, origin, licence, date, note FROM source", -1,
                           &st, NULL) != SQLITE_OK)
        return dt_profile_sql_error(rd->sql, rd->err);
    while (status == DT_OK && (rc = sqlite3_step(st)) == SQLITE_ROW)
        status = placed(rd, "source", sqlite3_column_int64(st, 0), one_source(rd, st));
    if (status == DT_OK && rc != SQLITE_DONE)
        status = dt_profile_sql_error(rd->sql, rd->err);
    sqlite3_finalize(st);
    return status;
}

/* The index of a word, or an error that says which words there are. */
static enum dt_status word(struct reading *rd, int64_t series, const char *what,
                           const char *const *words, const char *given, int *out)
{
    const char *near = dt_suggest(given, words);
    char all[512] = "";

    if ((*out = find_word(words, given)) >= 0)
        return DT_OK;
    if (near)
        return dt_error_set(rd->err, DT_ERR_INPUT,
                            "series %lld: unknown %s '%s', did you mean '%s'?", (long long)series,
                            what, given, near);
    for (int i = 0; words[i]; i++) {
        size_t used = strlen(all);
        sqlite3_snprintf((int)(sizeof all - used), all + used, "%s%s", i ? ", " : "", words[i]);
    }
    return dt_error_set(rd->err, DT_ERR_INPUT, "series %lld: unknown %s '%s'; known: %s",
                        (long long)series, what, given, all);
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
        return dt_error_set(rd->err, DT_ERR_INPUT, "series %lld: a text is missing or too long",
                            (long long)s.key);
    DT_TRY(word(rd, s.key, "op", dt_kop_family_names, op, &r->family));
    DT_TRY(word(rd, s.key, "phase", dt_profile_table_phase_names, phase, &r->phase));
    DT_TRY(word(rd, s.key, "kind", dt_profile_row_kind_names, kind, &r->kind));
    r->source = -1;
    for (int i = 0; i < rd->n_ids; i++)
        if (rd->source_ids[i] == source)
            r->source = rd->source_index[i];
    if (r->source < 0)
        return dt_error_set(rd->err, DT_ERR_INPUT, "series %lld: source %lld does not exist",
                            (long long)s.key, (long long)source);
    DT_TRY(dt_profile_table_device(rd->t, device, rd->err, &s.row.device));
    DT_TRY(dt_profile_table_dtype(rd->t, dtype, rd->err, &s.row.dtype));
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
        return dt_profile_sql_error(rd->sql, rd->err);
    while (status == DT_OK && (rc = sqlite3_step(st)) == SQLITE_ROW)
        status = placed(rd, "series", sqlite3_column_int64(st, 0), one_series(rd, st));
    if (status == DT_OK && rc != SQLITE_DONE)
        status = dt_profile_sql_error(rd->sql, rd->err);
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
    struct dt_profile_table_row row;
    const struct series *s = find_series(rd, sqlite3_column_int64(st, 0), *last);

    if (!s)
        return dt_error_set(rd->err, DT_ERR_INPUT,
                            "a point names series %lld, which does not exist",
                            (long long)sqlite3_column_int64(st, 0));
    *last = s;
    row = s->row;
    for (int i = 1; i <= 7; i++) {
        if (sqlite3_column_type(st, i) != SQLITE_INTEGER)
            return dt_error_set(rd->err, DT_ERR_INPUT,
                                "a point of series %lld: %s is not a whole number",
                                (long long)s->key, sqlite3_column_name(st, i));
        if (i < 7)
            row.r.d[i - 1] = sqlite3_column_int64(st, i);
    }
    row.r.n = sqlite3_column_int64(st, 7);
    for (int i = 8; i <= 10; i++)
        if (sqlite3_column_type(st, i) != SQLITE_FLOAT &&
            sqlite3_column_type(st, i) != SQLITE_INTEGER)
            return dt_error_set(rd->err, DT_ERR_INPUT, "a point of series %lld: %s is not a number",
                                (long long)s->key, sqlite3_column_name(st, i));
    row.r.median_ns = sqlite3_column_double(st, 8);
    row.r.p10_ns = sqlite3_column_double(st, 9);
    row.r.p90_ns = sqlite3_column_double(st, 10);
    return dt_profile_table_add(rd->t, &row, rd->err);
}

static enum dt_status read_points(struct reading *rd, int64_t declared)
{
    const struct series *last = NULL;
    sqlite3_stmt *st;
    enum dt_status status = DT_OK;
    int rc = SQLITE_DONE;

    if (sqlite3_prepare_v2(rd->db,
                           "SELECT series, d0, d1, d2, d3, d4, d5, n, median_ns, p10_ns, p90_ns, "
                           "rowid FROM point",
                           -1, &st, NULL) != SQLITE_OK)
        return dt_profile_sql_error(rd->sql, rd->err);
    while (status == DT_OK && (rc = sqlite3_step(st)) == SQLITE_ROW)
        status = placed(rd, "point", sqlite3_column_int64(st, 11), one_point(rd, st, &last));
    if (status == DT_OK && rc != SQLITE_DONE)
        status = dt_profile_sql_error(rd->sql, rd->err);
    sqlite3_finalize(st);
    if (status == DT_OK && declared != (int64_t)rd->t->n_rows)
        status = dt_error_at(rd->err, DT_ERR_INPUT, rd->name, 0, 0,
                             "profile is incomplete: meta declares %lld points, the file has %zu",
                             (long long)declared, rd->t->n_rows);
    return status;
}

static enum dt_status read_tables(const struct dt_profile_sql *sql, struct dt_error *err,
                                  struct dt_profile_table *out)
{
    struct dt_profile_table t = {0};
    struct reading rd = {.sql = sql, .db = sql->db, .name = sql->name, .err = err, .t = &t};
    int64_t declared;
    enum dt_status status = read_meta(&rd, &declared);

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
        dt_profile_table_free(&t);
        return status;
    }
    *out = t;
    return DT_OK;
}

enum dt_status dt_profile_table_parse_sql(const char *name, const char *text, struct dt_error *err,
                                          struct dt_profile_table *out)
{
    struct dt_profile_sql sql;
    enum dt_status status;

    DT_TRY(dt_profile_sql_run(&sql, name, text, err));
    status = read_tables(&sql, err, out);
    dt_profile_sql_close(&sql);
    return status;
}

static enum dt_status read_database(const char *path, struct dt_error *err,
                                    struct dt_profile_table *out)
{
    struct dt_profile_sql sql;
    enum dt_status status;

    DT_TRY(dt_profile_sql_open(&sql, path, err));
    status = read_tables(&sql, err, out);
    dt_profile_sql_close(&sql);
    return status;
}

enum dt_status dt_profile_table_read(const char *path, struct dt_error *err,
                                     struct dt_profile_table *out)
{
    enum dt_status status;
    char *text;
    size_t len;

    DT_TRY(dt_file_read(path, DT_PROFILE_FILE_MAX_BYTES, err, &text, &len));
    if (len >= 16 && memcmp(text, "SQLite format 3", 16) == 0) {
        dt_free(text);
        return read_database(path, err, out);
    }
    if (memchr(text, 0, len))
        status = dt_error_at(err, DT_ERR_INPUT, path, 0, 0,
                             "neither an SQLite database nor SQL text (it holds a zero byte)");
    else
        status = dt_profile_table_parse_sql(path, text, err, out);
    dt_free(text);
    return status;
}
