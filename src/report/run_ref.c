/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING. */
#include "report/run_ref.h"

#include "base/number.h"
#include "report/runs_open.h"

#include <ctype.h>
#include <sqlite3.h>
#include <stdio.h>
#include <string.h>

/* Is it "last" or "last-N". */
static bool from_the_end(const char *text, int64_t *back)
{
    *back = 0;
    return strncmp(text, "last", 4) == 0 &&
           (text[4] == '\0' || (text[4] == '-' && dt_number_int(text + 5, back) && *back >= 0));
}

bool dt_run_tag_valid(const char *name)
{
    size_t n = strlen(name);
    int64_t back;

    if (n == 0 || n >= DT_RUN_TAG_SIZE || !isalpha((unsigned char)name[0]) ||
        from_the_end(name, &back))
        return false;
    for (size_t i = 0; i < n; i++)
        if (!isalnum((unsigned char)name[i]) && !strchr("._-", name[i]))
            return false;
    return true;
}

/* The number that the query gives for what was bound; 0 = no row. */
static enum dt_status number(const struct dt_runs_db *file, sqlite3_stmt *s, struct dt_error *err,
                             int64_t *out)
{
    int rc = sqlite3_step(s);

    *out = 0;
    if (rc == SQLITE_DONE)
        return DT_OK;
    if (rc != SQLITE_ROW)
        return dt_runs_error(file, err);
    *out = sqlite3_column_int64(s, 0);
    if (sqlite3_column_type(s, 0) == SQLITE_INTEGER && *out > 0)
        return DT_OK;
    return dt_error_at(err, DT_ERR_INPUT, file->path, 0, 0,
                       "runs file: damaged: a run has no number from 1 on");
}

static enum dt_status ask(const struct dt_runs_db *file, const char *sql, const char *tag,
                          int64_t back, struct dt_error *err, int64_t *out)
{
    sqlite3_stmt *s = NULL;
    enum dt_status st;

    if (sqlite3_prepare_v2(file->db, sql, -1, &s, NULL) != SQLITE_OK)
        return dt_runs_error(file, err);
    if (tag)
        sqlite3_bind_text(s, 1, tag, -1, SQLITE_STATIC);
    else
        sqlite3_bind_int64(s, 1, back);
    st = number(file, s, err, out);
    sqlite3_finalize(s);
    return st;
}

static enum dt_status find_tag(const struct dt_runs_db *file, const char *tag, struct dt_error *err,
                               int64_t *out)
{
    *out = 0;
    if (dt_run_tag_valid(tag) && dt_runs_has_table(file, "main", "tag"))
        DT_TRY(ask(file, "SELECT run FROM tag WHERE name = ?", tag, 0, err, out));
    if (*out > 0)
        return DT_OK;
    return dt_error_set(err, DT_ERR_USAGE,
                        "'%s' is not a run: a number, last, last-1 or a tag, with FILE: before it "
                        "if it is in another file; 'disttrain runs list --runs %s' lists them",
                        tag, file->path);
}

enum dt_status dt_run_find(const char *text, const char *file, struct dt_error *err,
                           struct dt_run_ref *out)
{
    const char *colon = strrchr(text, ':'), *id = colon ? colon + 1 : text;
    struct dt_runs_db db;
    enum dt_status st;
    int64_t back;

    if (snprintf(out->file, sizeof(out->file), "%.*s", (int)(colon ? colon - text : 1000),
                 colon ? text : file) >= (int)sizeof(out->file))
        return dt_error_set(err, DT_ERR_USAGE, "file name too long: %s", text);
    if (dt_number_int(id, &out->id) && out->id >= 1)
        return DT_OK;
    DT_TRY(dt_runs_open(&db, out->file, err));
    if (!from_the_end(id, &back)) {
        st = find_tag(&db, id, err, &out->id);
    } else {
        st = ask(&db, "SELECT id FROM run ORDER BY id DESC LIMIT 1 OFFSET ?", NULL, back, err,
                 &out->id);
        if (st == DT_OK && out->id == 0)
            st = dt_error_at(err, DT_ERR_INPUT, out->file, 0, 0, "has no %lld runs",
                             (long long)back + 1);
    }
    dt_runs_close(&db);
    return st;
}
