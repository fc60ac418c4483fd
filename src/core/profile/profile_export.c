/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Writing profiles: the same rows always give the same bytes. */
#include "core/profile/profile_schema.h"

#include "base/file.h"
#include "base/mem.h"

#include <sqlite3.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

/* sqlite3_str: printf whose decimal point does not depend on the locale, with %Q for SQL strings.
 */
static void put_number(sqlite3_str *s, double v)
{
    if (v == (double)(int64_t)v)
        sqlite3_str_appendf(s, ",%lld", (long long)v);
    else
        sqlite3_str_appendf(s, ",%.10g", v);
}

static void put_point(sqlite3_str *s, int series, const struct dt_profile_row *r, bool first)
{
    sqlite3_str_appendf(s, "%s(%d", first ? "INSERT INTO point VALUES\n" : ",\n", series);
    for (int i = 0; i < 6; i++)
        sqlite3_str_appendf(s, ",%lld", (long long)r->d[i]);
    sqlite3_str_appendf(s, ",%lld", (long long)r->n);
    put_number(s, r->median_ns);
    put_number(s, r->p10_ns);
    put_number(s, r->p90_ns);
    sqlite3_str_append(s, ")", 1);
}

static bool same_series(const struct dt_profile_table_row *a, const struct dt_profile_table_row *b)
{
    return a->device == b->device && a->dtype == b->dtype && a->r.family == b->r.family &&
           a->r.phase == b->r.phase && a->r.kind == b->r.kind && a->r.source == b->r.source;
}

static void put_series(sqlite3_str *s, const struct dt_profile_table *t, int id,
                       const struct dt_profile_table_row *row)
{
    sqlite3_str_appendf(s, "INSERT INTO series VALUES(%d,%Q,%Q,%Q,%Q,%Q,%d);\n", id,
                        t->devices[row->device], t->dtypes[row->dtype],
                        dt_kop_family_names[row->r.family],
                        dt_profile_table_phase_names[row->r.phase],
                        dt_profile_row_kind_names[row->r.kind], row->r.source + 1);
}

enum dt_status dt_profile_table_to_sql(struct dt_profile_table *t, struct dt_error *err,
                                       char **text, size_t *len)
{
    enum { ROWS_PER_INSERT = 500 };
    sqlite3_str *s = sqlite3_str_new(NULL);
    int series = 0;
    size_t in_statement = 0;

    dt_profile_table_sort(t);
    sqlite3_str_appendall(s, "-- DistTrain kernel profile.  Schema: doc/formats.md.\nBEGIN;\n");
    sqlite3_str_appendall(s, dt_profile_schema_sql);
    sqlite3_str_appendf(s, "INSERT INTO meta VALUES('schema_version','%d'),('points','%lld');\n",
                        DT_PROFILE_SCHEMA, (long long)t->n_rows);
    for (int i = 0; i < t->n_sources; i++) {
        const struct dt_profile_source *o = &t->sources[i];
        sqlite3_str_appendf(s, "INSERT INTO source VALUES(%d,%Q,%Q,%Q,%Q,%Q);\n", i + 1, o->name,
                            o->origin, o->licence, o->date, o->note);
    }
    for (size_t i = 0; i < t->n_rows; i++)
        if (i == 0 || !same_series(&t->rows[i - 1], &t->rows[i]))
            put_series(s, t, ++series, &t->rows[i]);
    series = 0;
    for (size_t i = 0; i < t->n_rows; i++) {
        bool new_series = i == 0 || !same_series(&t->rows[i - 1], &t->rows[i]);
        if (in_statement > 0 && (new_series || in_statement == ROWS_PER_INSERT)) {
            sqlite3_str_append(s, ";\n", 2);
            in_statement = 0;
        }
        series += new_series;
        put_point(s, series, &t->rows[i].r, in_statement++ == 0);
    }
    sqlite3_str_appendall(s, in_statement ? ";\nCOMMIT;\n" : "COMMIT;\n");
    if (sqlite3_str_errcode(s) != SQLITE_OK) {
        sqlite3_free(sqlite3_str_finish(s));
        return dt_error_nomem(err, "the profile's text");
    }
    *len = (size_t)sqlite3_str_length(s);
    char *copy = dt_malloc(*len + 1);
    if (copy)
        memcpy(copy, sqlite3_str_value(s), *len + 1);
    sqlite3_free(sqlite3_str_finish(s));
    if (!copy)
        return dt_error_nomem(err, "the profile's text");
    *text = copy;
    return DT_OK;
}

/* A fresh database beside the target, renamed over it when complete. */
static enum dt_status write_database(const char *path, const char *sql, struct dt_error *err)
{
    enum dt_status status = DT_OK;
    char tmp[4096];
    sqlite3 *db = NULL;
    int fd;

    DT_TRY(dt_file_temp(path, err, tmp, sizeof tmp, &fd));
    close(fd); /* an empty file is an empty database */
    if (sqlite3_open_v2(tmp, &db, SQLITE_OPEN_READWRITE, NULL) != SQLITE_OK ||
        sqlite3_exec(db, sql, NULL, NULL, NULL) != SQLITE_OK)
        status = dt_error_at(err, DT_ERR_IO, path, 0, 0, "cannot write the database: %s",
                             db ? sqlite3_errmsg(db) : "out of memory");
    if (sqlite3_close(db) != SQLITE_OK && status == DT_OK)
        status = dt_error_at(err, DT_ERR_IO, path, 0, 0, "cannot close the database");
    if (status == DT_OK && rename(tmp, path) != 0)
        status =
            dt_error_at(err, DT_ERR_IO, path, 0, 0, "cannot rename the new database into place");
    if (status != DT_OK)
        unlink(tmp);
    return status;
}

enum dt_status dt_profile_table_write(struct dt_profile_table *t, const char *path,
                                      struct dt_error *err)
{
    enum dt_status status;
    size_t n = strlen(path), len;
    char *text;

    DT_TRY(dt_profile_table_to_sql(t, err, &text, &len));
    if (strcmp(path, "-") == 0 || (n > 4 && strcmp(path + n - 4, ".sql") == 0))
        status = dt_file_write(path, text, len, err);
    else
        status = write_database(path, text, err);
    dt_free(text);
    return status;
}
