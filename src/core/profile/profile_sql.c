/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Opening profile files: SQL text run in an in-memory database, or an SQLite database read-only.
 *
 * Either may come from anywhere, so an authorizer lets only the schema's own statements run, and
 * sizes and statement steps are bounded. */
#include "core/profile/profile_sql.h"

#include "base/file.h"
#include "core/profile/sqlite_guard.h"

#include <ctype.h>
#include <sqlite3.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

enum { STEP_LIMIT = 20000 /* x 100,000 VM instructions */ };

static const char *const table_names[] = {"meta", "source", "series", "point", NULL};

static bool own_table(const char *name)
{
    for (int i = 0; name && table_names[i]; i++)
        if (strcmp(table_names[i], name) == 0)
            return true;
    return false;
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

static void set_limits(sqlite3 *db, int64_t *steps)
{
    *steps = STEP_LIMIT;
    sqlite3_limit(db, SQLITE_LIMIT_LENGTH, DT_PROFILE_FILE_MAX_BYTES);
    sqlite3_limit(db, SQLITE_LIMIT_SQL_LENGTH, DT_PROFILE_FILE_MAX_BYTES);
    sqlite3_limit(db, SQLITE_LIMIT_COLUMN, 32);
    sqlite3_limit(db, SQLITE_LIMIT_EXPR_DEPTH, 16);
    sqlite3_limit(db, SQLITE_LIMIT_COMPOUND_SELECT, 2);
    sqlite3_limit(db, SQLITE_LIMIT_ATTACHED, 0);
    dt_profile_sql_guard(db, steps);
}

enum dt_status dt_profile_sql_error(const struct dt_profile_sql *p, struct dt_error *err)
{
    return dt_error_at(err, DT_ERR_INPUT, p->name, 0, 0, "not a valid profile: %s",
                       sqlite3_errmsg(p->db));
}

static void place_of(const char *text, const char *at, int *line, int *column)
{
    *line = *column = 1;
    for (const char *c = text; c < at; c++) {
        *column = *c == '\n' ? 1 : *column + 1;
        *line += *c == '\n';
    }
}

static enum dt_status sql_error(const char *name, const char *text, const char *at,
                                const char *what, struct dt_error *err)
{
    char brief[160]; /* SQLite quotes all of the text that it could make nothing of */
    int line, column;

    place_of(text, at, &line, &column);
    snprintf(brief, sizeof(brief), "%s", what);
    if (strlen(what) >= sizeof(brief))
        memcpy(brief + sizeof(brief) - 4, "...", 4);
    for (char *c = brief; *c; c++)
        *c = *c == '\n' ? ' ' : *c;
    return dt_error_at(err, DT_ERR_INPUT, name, line, column, "not a valid profile: %s", brief);
}

/* Statement by statement, so that an error has a place; *running is the one at work. */
static enum dt_status run_sql(sqlite3 *db, const char *name, const char *text, struct dt_error *err,
                              const char **running)
{
    for (const char *at = text, *next; *at; at = next) {
        sqlite3_stmt *st = NULL;
        at += strspn(at, " \t\r\n");
        int rc = sqlite3_prepare_v2(db, at, -1, &st, &next);
        if (rc != SQLITE_OK) {
            int offset = sqlite3_error_offset(db);
            return sql_error(name, text, at + (offset > 0 ? offset : 0), sqlite3_errmsg(db), err);
        }
        *running = at;
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

/* A fresh in-memory database that obeys the limits. */
static enum dt_status open_memory(int64_t *steps, struct dt_error *err, sqlite3 **out)
{
    sqlite3 *db = NULL;

    if (sqlite3_open_v2(":memory:", &db,
                        SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE | SQLITE_OPEN_NOMUTEX,
                        NULL) != SQLITE_OK) {
        sqlite3_close(db);
        return dt_error_nomem(err, "the profile database");
    }
    sqlite3_exec(db, "PRAGMA max_page_count=262144", NULL, NULL, NULL);
    set_limits(db, steps);
    sqlite3_set_authorizer(db, allow_load, NULL);
    *out = db;
    return DT_OK;
}

enum dt_status dt_profile_sql_run(struct dt_profile_sql *p, const char *name, const char *text,
                                  struct dt_error *err)
{
    const char *running = text;
    sqlite3 *db;
    enum dt_status status;

    DT_TRY(open_memory(&p->steps, err, &db));
    status = run_sql(db, name, text, err, &running);
    if (status != DT_OK) {
        sqlite3_close(db);
        return status;
    }
    sqlite3_set_authorizer(db, allow_read, NULL);
    p->db = db;
    p->name = name;
    p->text = text;
    return DT_OK;
}

enum dt_status dt_profile_sql_open(struct dt_profile_sql *p, const char *path, struct dt_error *err)
{
    DT_TRY(dt_file_check(path, err));
    p->name = path;
    p->text = NULL;
    if (sqlite3_open_v2(path, &p->db, SQLITE_OPEN_READONLY | SQLITE_OPEN_NOMUTEX, NULL) !=
        SQLITE_OK) {
        enum dt_status status = dt_profile_sql_error(p, err);
        dt_profile_sql_close(p);
        return status;
    }
    set_limits(p->db, &p->steps);
    sqlite3_set_authorizer(p->db, allow_read, NULL);
    return DT_OK;
}

void dt_profile_sql_close(struct dt_profile_sql *p)
{
    sqlite3_close(p->db);
    p->db = NULL;
}

/* ---- where a row comes from ---- */

struct search {
    const char *table;
    int64_t row;
    const char *running, *last; /* the statement at work now, and at the row before */
    int n;                      /* rows that it gave this table */
    const char *found;          /* the statement that gave the row, as its row number `nth` */
    int nth;
};

static void see_row(void *context, int action, const char *db, const char *table, sqlite3_int64 row)
{
    struct search *s = context;

    (void)db;
    if (action != SQLITE_INSERT || strcmp(table, s->table) != 0 || s->found)
        return;
    s->n = s->running == s->last ? s->n + 1 : 0;
    s->last = s->running;
    if (row == s->row) {
        s->found = s->running;
        s->nth = s->n;
    }
}

/* Past a quoted string, quoted name or comment that begins at c; c itself where none does. */
static const char *past_quoted(const char *c)
{
    const char *end = NULL;

    if (*c == '\'' || *c == '"' || *c == '`')
        end = strchr(c + 1, *c); /* a doubled quote looks like two strings side by side */
    else if (*c == '[')
        end = strchr(c + 1, ']');
    else if (strncmp(c, "--", 2) == 0)
        end = strchr(c, '\n');
    else if (strncmp(c, "/*", 2) == 0)
        end = (end = strstr(c + 2, "*/")) ? end + 1 : NULL;
    else
        return c;
    return end ? end + 1 : c + strlen(c);
}

/* The nth list of values of an INSERT statement, or the statement if it is written otherwise. */
static const char *values_of(const char *statement, int nth)
{
    bool values = false;
    int depth = 0;

    for (const char *c = statement, *next; *c && !(*c == ';' && depth == 0); c = next) {
        next = past_quoted(c);
        if (next != c)
            continue;
        next = c + 1;
        if (isalpha((unsigned char)*c) || *c == '_') {
            while (isalnum((unsigned char)*next) || *next == '_')
                next++;
            if (next - c == 6 && strncasecmp(c, "values", 6) == 0 && depth == 0)
                values = true;
        } else if (*c == '(') {
            if (depth++ == 0 && values && nth-- == 0)
                return c;
        } else if (*c == ')') {
            depth--;
        }
    }
    return statement;
}

void dt_profile_sql_place(const struct dt_profile_sql *p, const char *table, int64_t row,
                          struct dt_error *err)
{
    struct search s = {.table = table, .row = row};
    struct dt_error unused;
    sqlite3 *db;
    int64_t steps;

    snprintf(err->file, sizeof err->file, "%s", p->name);
    /* The statements ran once without fault; they run again, watched. */
    if (p->text && open_memory(&steps, &unused, &db) == DT_OK) {
        sqlite3_update_hook(db, see_row, &s);
        (void)run_sql(db, p->name, p->text, &unused, &s.running);
        sqlite3_close(db);
    }
    if (s.found) {
        place_of(p->text, values_of(s.found, s.nth), &err->line, &err->col);
    } else {
        size_t used = strlen(err->message);
        snprintf(err->message + used, sizeof err->message - used, " (row %lld of table %s)",
                 (long long)row, table);
    }
}
