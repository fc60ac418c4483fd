/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING. */
#include "core/profile/profile_notes.h"

#include "base/file.h"
#include "base/mem.h"
#include "core/profile/sqlite_guard.h"

#include <sqlite3.h>
#include <string.h>

enum { BUSY_MS = 10000, STEPS = 20000, ROWS_MAX = 1 << 20 };

static const char make_table[] =
    "CREATE TABLE IF NOT EXISTS note(device TEXT NOT NULL, library INTEGER NOT NULL,"
    " what TEXT NOT NULL, value BLOB NOT NULL, ns REAL NOT NULL, first_ns REAL NOT NULL,"
    " PRIMARY KEY(device, library, what)) WITHOUT ROWID";

struct dt_profile_notes {
    char *path;
    sqlite3 *db;
    int64_t steps;
};

static enum dt_status db_error(const struct dt_profile_notes *n, struct dt_error *err)
{
    int code = n->db ? sqlite3_errcode(n->db) & 0xff : SQLITE_NOMEM;
    bool input = code == SQLITE_NOTADB || code == SQLITE_CORRUPT;

    if (code == SQLITE_NOMEM)
        return dt_error_nomem(err, "the notes of devices");
    return dt_error_at(err, input ? DT_ERR_INPUT : DT_ERR_DB, n->path, 0, 0, "notes of devices: %s",
                       sqlite3_errmsg(n->db));
}

/* A number of the schema; -1: it cannot be read. */
static int count(sqlite3 *db, const char *sql)
{
    sqlite3_stmt *st;
    int n = -1;

    if (sqlite3_prepare_v2(db, sql, -1, &st, NULL) != SQLITE_OK)
        return -1;
    if (sqlite3_step(st) == SQLITE_ROW)
        n = sqlite3_column_int(st, 0);
    sqlite3_finalize(st);
    return n;
}

/* Only a new file, one of notes, and a profile are written to. */
static enum dt_status make(const struct dt_profile_notes *n, struct dt_error *err)
{
    int all = count(n->db, "SELECT count(*) FROM sqlite_master WHERE type <> 'index'");
    int known = count(n->db, "SELECT count(*) FROM sqlite_master WHERE type = 'table' AND name IN"
                             " ('note', 'point')");

    if (all < 0 || known < 0)
        return db_error(n, err);
    if (all > 0 && known == 0)
        return dt_error_at(err, DT_ERR_INPUT, n->path, 0, 0,
                           "notes of devices: a database of something else");
    if (count(n->db, "SELECT count(*) FROM sqlite_master WHERE name = 'note'") == 0 &&
        sqlite3_exec(n->db, make_table, NULL, NULL, NULL) != SQLITE_OK)
        return db_error(n, err);
    return DT_OK;
}

static enum dt_status open_file(struct dt_profile_notes *n, struct dt_error *err)
{
    DT_TRY(dt_file_check(n->path, err));
    if (sqlite3_open_v2(n->path, &n->db,
                        SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE | SQLITE_OPEN_NOMUTEX,
                        NULL) != SQLITE_OK)
        return db_error(n, err);
    n->steps = STEPS;
    dt_profile_sql_guard(n->db, &n->steps);
    sqlite3_busy_timeout(n->db, BUSY_MS);
    return make(n, err);
}

enum dt_status dt_profile_notes_open(const char *path, struct dt_error *err,
                                     struct dt_profile_notes **out)
{
    struct dt_profile_notes *n = dt_calloc(1, sizeof(*n));
    enum dt_status st;

    if (!n || !(n->path = dt_strdup(path))) {
        dt_free(n);
        return dt_error_nomem(err, "the notes of devices");
    }
    st = open_file(n, err);
    if (st != DT_OK) {
        dt_profile_notes_close(n);
        return st;
    }
    *out = n;
    return DT_OK;
}

void dt_profile_notes_close(struct dt_profile_notes *n)
{
    if (!n)
        return;
    sqlite3_close(n->db);
    dt_free(n->path);
    dt_free(n);
}

/* ---- rows ---- */

/* false: it is not what we write. */
static bool get(sqlite3_stmt *st, struct dt_profile_note *note)
{
    static const int types[] = {SQLITE_TEXT, SQLITE_INTEGER, SQLITE_TEXT,
                                SQLITE_BLOB, SQLITE_FLOAT,   SQLITE_FLOAT};

    for (int i = 0; i < 6; i++)
        if (sqlite3_column_type(st, i) != types[i])
            return false;
    *note = (struct dt_profile_note){
        .device = (const char *)sqlite3_column_text(st, 0),
        .library = sqlite3_column_int64(st, 1),
        .what = (const char *)sqlite3_column_text(st, 2),
        .value = sqlite3_column_blob(st, 3),
        .bytes = (size_t)sqlite3_column_bytes(st, 3),
        .ns = sqlite3_column_double(st, 4),
        .first_ns = sqlite3_column_double(st, 5),
    };
    return note->device && note->what && note->value && note->bytes > 0 &&
           note->bytes < DT_PROFILE_NOTE_BYTES && strlen(note->device) < DT_PROFILE_NOTE_TEXT &&
           strlen(note->what) < DT_PROFILE_NOTE_TEXT;
}

enum dt_status dt_profile_notes_read(struct dt_profile_notes *n, dt_profile_note_fn *take,
                                     void *ctx, struct dt_error *err)
{
    struct dt_profile_note note;
    bool right = true, room = true;
    sqlite3_stmt *st;
    int rc, rows = 0;

    n->steps = STEPS;
    if (sqlite3_prepare_v2(n->db, "SELECT device, library, what, value, ns, first_ns FROM note", -1,
                           &st, NULL) != SQLITE_OK)
        return db_error(n, err);
    while (right && room && (rc = sqlite3_step(st)) == SQLITE_ROW) {
        right = rows++ < ROWS_MAX && get(st, &note);
        room = !right || take(ctx, &note);
    }
    sqlite3_finalize(st);
    if (!room)
        return dt_error_nomem(err, "the notes of devices");
    if (!right)
        return dt_error_at(err, DT_ERR_INPUT, n->path, 0, 0,
                           "notes of devices: row %d is not one that disttrain writes", rows);
    return rc == SQLITE_DONE ? DT_OK : db_error(n, err);
}

static bool put(sqlite3 *db, const struct dt_profile_note *note)
{
    static const char insert[] =
        "INSERT INTO note VALUES(?1, ?2, ?3, ?4, ?5, ?6) ON CONFLICT(device, library, what) DO"
        " UPDATE SET value = ?4, ns = ?5, first_ns = ?6 WHERE ?5 < ns";
    sqlite3_stmt *st;
    bool ok;

    if (sqlite3_prepare_v2(db, insert, -1, &st, NULL) != SQLITE_OK)
        return false;
    ok = sqlite3_bind_text(st, 1, note->device, -1, SQLITE_STATIC) == SQLITE_OK &&
         sqlite3_bind_int64(st, 2, note->library) == SQLITE_OK &&
         sqlite3_bind_text(st, 3, note->what, -1, SQLITE_STATIC) == SQLITE_OK &&
         sqlite3_bind_blob(st, 4, note->value, (int)note->bytes, SQLITE_STATIC) == SQLITE_OK &&
         sqlite3_bind_double(st, 5, note->ns) == SQLITE_OK &&
         sqlite3_bind_double(st, 6, note->first_ns) == SQLITE_OK && sqlite3_step(st) == SQLITE_DONE;
    sqlite3_finalize(st);
    return ok;
}

enum dt_status dt_profile_notes_write(struct dt_profile_notes *n,
                                      const struct dt_profile_note *note, struct dt_error *err)
{
    enum dt_status st = DT_OK;

    n->steps = STEPS;
    if (sqlite3_exec(n->db, "BEGIN IMMEDIATE", NULL, NULL, NULL) != SQLITE_OK ||
        !put(n->db, note) || sqlite3_exec(n->db, "COMMIT", NULL, NULL, NULL) != SQLITE_OK)
        st = db_error(n, err);
    if (!sqlite3_get_autocommit(n->db))
        sqlite3_exec(n->db, "ROLLBACK", NULL, NULL, NULL);
    return st;
}
