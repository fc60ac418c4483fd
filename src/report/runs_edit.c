/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING. */
#include "report/runs_edit.h"

#include "base/mem.h"
#include "report/run_ref.h"
#include "report/runs_open.h"

#include <sqlite3.h>
#include <stdio.h>
#include <string.h>

static enum dt_status exec(const struct dt_runs_db *db, const char *sql, struct dt_error *err)
{
    return sqlite3_exec(db->db, sql, NULL, NULL, NULL) == SQLITE_OK ? DT_OK
                                                                    : dt_runs_error(db, err);
}

/* The number that a query gives; 0 where it gives none. */
static enum dt_status number(const struct dt_runs_db *db, const char *sql, int64_t id,
                             struct dt_error *err, int64_t *out)
{
    sqlite3_stmt *s = NULL;
    int rc;

    if (sqlite3_prepare_v2(db->db, sql, -1, &s, NULL) != SQLITE_OK)
        return dt_runs_error(db, err);
    if (sqlite3_bind_parameter_count(s) > 0)
        sqlite3_bind_int64(s, 1, id);
    rc = sqlite3_step(s);
    *out = rc == SQLITE_ROW ? sqlite3_column_int64(s, 0) : 0;
    sqlite3_finalize(s);
    return rc == SQLITE_ROW || rc == SQLITE_DONE ? DT_OK : dt_runs_error(db, err);
}

/* Open for changes, with all tables; a file that is not there is not made. */
static enum dt_status open_db(struct dt_runs_db *db, const char *path, struct dt_error *err)
{
    struct dt_runs_db there;
    enum dt_status st;

    DT_TRY(dt_runs_open(&there, path, err));
    dt_runs_close(&there);
    DT_TRY(dt_runs_open_write(db, path, err));
    st = dt_runs_make_tables(db, err);
    if (st != DT_OK)
        dt_runs_close(db);
    return st;
}

/* What was done stays if all went well. */
static enum dt_status close_db(struct dt_runs_db *db, enum dt_status st, bool keep,
                               struct dt_error *err)
{
    if (st == DT_OK && keep)
        st = exec(db, "COMMIT", err);
    if (st != DT_OK || !keep)
        sqlite3_exec(db->db, "ROLLBACK", NULL, NULL, NULL);
    dt_runs_close(db);
    return st;
}

/* ---- tags ---- */

static enum dt_status bound(const struct dt_runs_db *db, const char *sql, const char *tag,
                            int64_t id, struct dt_error *err)
{
    enum dt_status st = DT_OK;
    sqlite3_stmt *s = NULL;

    if (sqlite3_prepare_v2(db->db, sql, -1, &s, NULL) != SQLITE_OK)
        return dt_runs_error(db, err);
    sqlite3_bind_text(s, 1, tag, -1, SQLITE_STATIC);
    if (sqlite3_bind_parameter_count(s) > 1)
        sqlite3_bind_int64(s, 2, id);
    if (sqlite3_step(s) != SQLITE_DONE)
        st = dt_runs_error(db, err);
    sqlite3_finalize(s);
    return st;
}

static enum dt_status is_there(const struct dt_runs_db *db, int64_t id, struct dt_error *err)
{
    int64_t n;

    DT_TRY(number(db, "SELECT count(*) FROM run WHERE id = ?", id, err, &n));
    return n > 0 ? DT_OK
                 : dt_error_at(err, DT_ERR_INPUT, db->path, 0, 0, "has no run %lld", (long long)id);
}

enum dt_status dt_runs_tag(const char *path, const char *tag, int64_t id, struct dt_error *err)
{
    struct dt_runs_db db;
    enum dt_status st;

    if (!dt_run_tag_valid(tag))
        return dt_error_set(err, DT_ERR_USAGE,
                            "'%s' cannot be a tag: a letter, then letters, digits, '.', '_' and "
                            "'-', at most %d in all, and not last or last-N",
                            tag, DT_RUN_TAG_SIZE - 1);
    DT_TRY(open_db(&db, path, err));
    st = is_there(&db, id, err);
    if (st == DT_OK)
        st = bound(&db, "INSERT OR REPLACE INTO tag(name, run) VALUES(?, ?)", tag, id, err);
    return close_db(&db, st, true, err);
}

enum dt_status dt_runs_untag(const char *path, const char *tag, struct dt_error *err)
{
    struct dt_runs_db db;
    enum dt_status st;

    DT_TRY(open_db(&db, path, err));
    st = bound(&db, "DELETE FROM tag WHERE name = ?", tag, 0, err);
    if (st == DT_OK && sqlite3_changes(db.db) == 0)
        st = dt_error_at(err, DT_ERR_INPUT, path, 0, 0, "has no tag '%s'", tag);
    return close_db(&db, st, true, err);
}

/* ---- removing ---- */

static enum dt_status content_bytes(const struct dt_runs_db *db, struct dt_error *err, int64_t *out)
{
    int64_t page, pages, unused;

    DT_TRY(number(db, "PRAGMA page_size", 0, err, &page));
    DT_TRY(number(db, "PRAGMA page_count", 0, err, &pages));
    DT_TRY(number(db, "PRAGMA freelist_count", 0, err, &unused));
    *out = page * (pages - unused);
    return DT_OK;
}

/* The number of the newest run is remembered, so that it is not given again. */
static const char remember[] =
    "INSERT OR REPLACE INTO meta(key, value) SELECT 'last_run', max(coalesce((SELECT max(id) FROM "
    "run), 0), coalesce((SELECT CAST(value AS INTEGER) FROM meta WHERE key = 'last_run'), 0))";

static enum dt_status remove_run(const struct dt_runs_db *db, int64_t id, bool ops_only,
                                 struct dt_error *err)
{
    static const char *const tables[] = {"op",   "lane", "place",  "memory", "data",
                                         "fact", "work", "origin", "tag",    NULL};
    char sql[96];

    for (int i = 0; tables[i]; i++) {
        snprintf(sql, sizeof(sql), "DELETE FROM %s WHERE run = %lld", tables[i], (long long)id);
        DT_TRY(exec(db, sql, err));
        if (ops_only)
            return DT_OK;
    }
    snprintf(sql, sizeof(sql), "DELETE FROM run WHERE id = %lld", (long long)id);
    return exec(db, sql, err);
}

static enum dt_status note(struct dt_runs_removed *r, int64_t id, struct dt_error *err)
{
    if (dt_grow((void **)&r->id, &r->cap, (size_t)r->n + 1, sizeof(*r->id)))
        return dt_error_nomem(err, "a list of runs");
    r->id[r->n++] = id;
    return DT_OK;
}

/* Not in a transaction.  That it cannot be done now is no failure: the next removal does it. */
static void give_back(const char *path, struct dt_runs_removed *r)
{
    struct dt_error err = {0};
    struct dt_runs_db db;

    if (dt_runs_open_write(&db, path, &err) == DT_OK) {
        sqlite3_exec(db.db, "ROLLBACK", NULL, NULL, NULL);
        exec(&db, "VACUUM", &err);
        dt_runs_close(&db);
    }
    snprintf(r->not_given_back, sizeof(r->not_given_back), "%.*s",
             (int)sizeof(r->not_given_back) - 1, err.message);
}

/* Ends what the change of `r` began. */
static enum dt_status finish(struct dt_runs_db *db, const char *path, bool keep, enum dt_status st,
                             struct dt_error *err, struct dt_runs_removed *r,
                             struct dt_runs_removed *out)
{
    if (st == DT_OK)
        st = content_bytes(db, err, &r->bytes_after);
    st = close_db(db, st, keep, err);
    if (st == DT_OK && keep && r->n > 0)
        give_back(path, r);
    if (st == DT_OK)
        *out = *r;
    else
        dt_runs_removed_free(r);
    return st;
}

static enum dt_status may_go(const struct dt_runs_db *db, int64_t id, bool tagged,
                             struct dt_error *err)
{
    int64_t n;

    DT_TRY(is_there(db, id, err));
    DT_TRY(number(db, "SELECT count(*) FROM tag WHERE run = ?", id, err, &n));
    return n == 0 || tagged ? DT_OK
                            : dt_error_at(err, DT_ERR_INPUT, db->path, 0, 0,
                                          "run %lld has a tag, which keeps it; remove the tag, or "
                                          "use --force",
                                          (long long)id);
}

enum dt_status dt_runs_remove(const char *path, const int64_t *id, int n, bool tagged,
                              struct dt_error *err, struct dt_runs_removed *out)
{
    struct dt_runs_removed r = {0};
    struct dt_runs_db db;
    enum dt_status st;

    DT_TRY(open_db(&db, path, err));
    st = content_bytes(&db, err, &r.bytes_before);
    for (int i = 0; i < n && st == DT_OK; i++)
        st = may_go(&db, id[i], tagged, err);
    if (st == DT_OK)
        st = exec(&db, remember, err);
    for (int i = 0; i < n && st == DT_OK; i++) {
        st = remove_run(&db, id[i], false, err);
        if (st == DT_OK)
            st = note(&r, id[i], err);
    }
    return finish(&db, path, true, st, err, &r, out);
}

/* ---- pruning ---- */

/* Runs that may go, the oldest first, with what speaks for it. */
static const char candidates[] =
    "SELECT id, row_number() OVER (ORDER BY id DESC) > ?1, started < ?2, "
    "EXISTS (SELECT 1 FROM tag WHERE tag.run = run.id), EXISTS (SELECT 1 FROM op WHERE op.run = "
    "run.id) FROM run ORDER BY id";

struct candidate {
    int64_t id;
    bool limit; /* goes by number or by age */
};

static enum dt_status find_candidates(const struct dt_runs_db *db, const struct dt_runs_limits *l,
                                      struct dt_error *err, struct candidate **out, int *n)
{
    struct candidate *list = NULL;
    sqlite3_stmt *s = NULL;
    enum dt_status st = DT_OK;
    size_t cap = 0;
    int rc = SQLITE_DONE;

    *n = 0;
    if (sqlite3_prepare_v2(db->db, candidates, -1, &s, NULL) != SQLITE_OK)
        return dt_runs_error(db, err);
    sqlite3_bind_int64(s, 1, l->keep);
    sqlite3_bind_text(s, 2, l->before, -1, SQLITE_STATIC);
    while (st == DT_OK && (rc = sqlite3_step(s)) == SQLITE_ROW) {
        if (sqlite3_column_int(s, 3) || (l->ops && !sqlite3_column_int(s, 4)))
            continue;
        if (dt_grow((void **)&list, &cap, (size_t)*n + 1, sizeof(*list)))
            st = dt_error_nomem(err, "a list of runs");
        else
            list[(*n)++] = (struct candidate){sqlite3_column_int64(s, 0),
                                              (l->keep >= 0 && sqlite3_column_int(s, 1)) ||
                                                  (l->before && sqlite3_column_int(s, 2))};
    }
    if (st == DT_OK && rc != SQLITE_DONE)
        st = dt_runs_error(db, err);
    sqlite3_finalize(s);
    if (st == DT_OK)
        *out = list;
    else
        dt_free(list);
    return st;
}

static enum dt_status prune(const struct dt_runs_db *db, const struct dt_runs_limits *l,
                            struct dt_error *err, struct dt_runs_removed *r)
{
    struct candidate *list = NULL;
    enum dt_status st = DT_OK;
    int64_t bytes;
    int n = 0;

    DT_TRY(content_bytes(db, err, &r->bytes_before));
    DT_TRY(find_candidates(db, l, err, &list, &n));
    st = exec(db, remember, err);
    for (int size = 0; size <= (l->bytes >= 0); size++) /* by size, what the others have left */
        for (int i = 0; i < n && st == DT_OK; i++) {
            if (size ? list[i].limit : !list[i].limit)
                continue;
            if (size)
                st = content_bytes(db, err, &bytes);
            if (st != DT_OK || (size && bytes <= l->bytes))
                break;
            st = remove_run(db, list[i].id, l->ops, err);
            if (st == DT_OK)
                st = note(r, list[i].id, err);
        }
    dt_free(list);
    return st;
}

enum dt_status dt_runs_prune(const char *path, const struct dt_runs_limits *l, struct dt_error *err,
                             struct dt_runs_removed *out)
{
    struct dt_runs_removed r = {0};
    struct dt_runs_db db;
    enum dt_status st;

    DT_TRY(open_db(&db, path, err));
    st = prune(&db, l, err, &r);
    return finish(&db, path, !l->dry_run, st, err, &r, out);
}

void dt_runs_removed_free(struct dt_runs_removed *r)
{
    dt_free(r->id);
    memset(r, 0, sizeof(*r));
}
