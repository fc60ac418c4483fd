/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING. */
#include "report/runs_open.h"

#include "base/file.h"
#include "core/profile/sqlite_guard.h"

#include <errno.h>
#include <fcntl.h>
#include <sqlite3.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { BUSY_MS = 10000, HEADER_BYTES = 100, STEPS = 20000, TRIES = 3 };
/* One more step of 100,000 instructions for each so many bytes of the file: an op takes at least 30
 * bytes, and reading and comparing it a few thousand instructions. */
enum { BYTES_PER_STEP = 500 };

enum dt_status dt_runs_error(const struct dt_runs_db *r, struct dt_error *err)
{
    int code = r->db ? sqlite3_errcode(r->db) & 0xff : SQLITE_NOMEM;
    int why = r->db ? sqlite3_system_errno(r->db) : 0;
    bool words = why != 0 && (code == SQLITE_CANTOPEN || code == SQLITE_IOERR);

    if (code == SQLITE_NOMEM)
        return dt_error_nomem(err, "the runs file");
    if (code == SQLITE_BUSY)
        return dt_error_at(err, DT_ERR_DB, r->path, 0, 0,
                           "runs file: another program has kept it locked for %d s",
                           BUSY_MS / 1000);
    if (code == SQLITE_INTERRUPT)
        return dt_error_at(err, DT_ERR_INPUT, r->path, 0, 0,
                           "runs file: reading it takes more work than a file of its size can "
                           "need; it is damaged");
    return dt_error_at(err,
                       code == SQLITE_CORRUPT || code == SQLITE_NOTADB ? DT_ERR_INPUT : DT_ERR_DB,
                       r->path, 0, 0, "runs file: %s%s%s", sqlite3_errmsg(r->db), words ? ": " : "",
                       words ? strerror(why) : "");
}

static uint32_t big_endian(const unsigned char *p)
{
    return (uint32_t)p[0] << 24 | (uint32_t)p[1] << 16 | (uint32_t)p[2] << 8 | p[3];
}

/* Looks at the file before SQLite does, which says little of what it cannot open and writes
 * beside what it can.  *size = -1: not there. */
static enum dt_status probe(const char *path, struct dt_error *err, int64_t *size)
{
    unsigned char head[HEADER_BYTES];
    struct stat sb;
    ssize_t n;
    int fd, saved;

    *size = -1;
    DT_TRY(dt_file_check(path, err));
    fd = open(path, O_RDONLY | O_NONBLOCK | O_CLOEXEC);
    saved = errno;
    if (fd < 0 && saved == ENOENT)
        return DT_OK;
    if (fd < 0)
        return dt_error_at(err, DT_ERR_INPUT, path, 0, 0, "cannot open the runs file: %s",
                           strerror(saved));
    if (fstat(fd, &sb) != 0 || (n = read(fd, head, sizeof head)) < 0) {
        saved = errno;
        close(fd);
        return dt_error_at(err, DT_ERR_IO, path, 0, 0, "cannot read the runs file: %s",
                           strerror(saved));
    }
    close(fd);
    *size = sb.st_size;
    if (sb.st_size == 0)
        return DT_OK;
    if (n != HEADER_BYTES || memcmp(head, "SQLite format 3", 16) != 0)
        return dt_error_at(err, DT_ERR_INPUT, path, 0, 0,
                           "not a runs file: it is not an SQLite database");
    if (big_endian(head + 68) != 0 && big_endian(head + 68) != DT_RUNS_APPLICATION_ID)
        return dt_error_at(err, DT_ERR_INPUT, path, 0, 0,
                           "not a runs file: it is a database of another program (application_id "
                           "0x%08x)",
                           big_endian(head + 68));
    return DT_OK;
}

static int allow(void *unused, int action, const char *a, const char *b, const char *db,
                 const char *trigger)
{
    static const char *const functions[] = {
        "count",     "coalesce", "max",    "min",        "sum",    "row_number", "json_extract",
        "json_each", "->>",      "typeof", "json_valid", "length", NULL};

    (void)unused;
    if (trigger)
        return SQLITE_DENY;
    switch (action) {
    case SQLITE_SELECT:
    case SQLITE_READ: /* of tables alone: views are off */
    case SQLITE_TRANSACTION:
        return SQLITE_OK;
    case SQLITE_FUNCTION:
        for (int i = 0; functions[i]; i++)
            if (b && strcmp(b, functions[i]) == 0)
                return SQLITE_OK;
        return SQLITE_DENY;
    case SQLITE_PRAGMA:
        return a && (strcmp(a, "table_xinfo") == 0 || strcmp(a, "table_list") == 0 ||
                     strcmp(a, "application_id") == 0 || strcmp(a, "user_version") == 0 ||
                     strcmp(a, "page_size") == 0 || strcmp(a, "page_count") == 0 ||
                     strcmp(a, "freelist_count") == 0)
                   ? SQLITE_OK
                   : SQLITE_DENY;
    case SQLITE_CREATE_TEMP_TABLE: /* compare joins in tables of its own */
    case SQLITE_CREATE_TEMP_INDEX:
        return SQLITE_OK;
    case SQLITE_UPDATE: /* asked where pragmas and JSON are used as tables; what is open for reading
                         * and defensive cannot be written */
        if (a && strcmp(a, "sqlite_master") == 0)
            return SQLITE_OK;
        /* fall through */
    case SQLITE_INSERT:
    case SQLITE_REINDEX:
        return db && strcmp(db, "temp") == 0 ? SQLITE_OK : SQLITE_DENY;
    default:
        return SQLITE_DENY;
    }
}

/* ---- a writer that was killed ---- */

/* "x" is a file's name, never one of SQLite's special ones. */
static enum dt_status place(struct dt_runs_db *r, const char *path, struct dt_error *err)
{
    int n = snprintf(r->at, sizeof r->at, "%s%s", path[0] == '/' ? "" : "./", path);

    if (path[0] == '\0' || n >= 4096)
        return dt_error_at(err, DT_ERR_INPUT, path, 0, 0, "runs file: the name is %s",
                           path[0] ? "too long" : "empty");
    r->path = path;
    return DT_OK;
}

static bool same(const struct stat *a, const struct stat *b)
{
    return a->st_ino == b->st_ino && a->st_size == b->st_size &&
           a->st_mtim.tv_sec == b->st_mtim.tv_sec && a->st_mtim.tv_nsec == b->st_mtim.tv_nsec;
}

static enum dt_status copy_bytes(const char *path, int from, const char *to, struct dt_error *err)
{
    char block[1 << 16];
    int fd = open(to, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600), saved = errno;
    ssize_t n = fd < 0 ? -1 : 0;

    while (fd >= 0 && (n = read(from, block, sizeof block)) > 0)
        for (ssize_t put, at = 0; at < n; at += put)
            if ((put = write(fd, block + at, (size_t)(n - at))) < 0) {
                n = -1;
                put = sizeof block;
            }
    if (fd >= 0) {
        saved = errno;
        n = close(fd) != 0 ? -1 : n;
    }
    return n < 0 ? dt_error_at(err, DT_ERR_IO, path, 0, 0,
                               "runs file: cannot copy it to %s, to undo the unfinished work of a "
                               "killed writer: %s",
                               to, strerror(saved))
                 : DT_OK;
}

/* The journal of a transaction over several databases names a file that SQLite would delete.  Ours
 * are never of that kind. */
static bool journal_names_others(int fd)
{
    static const unsigned char magic[8] = {0xd9, 0xd5, 0x05, 0xf9, 0x20, 0xa1, 0x63, 0xd7};
    unsigned char tail[8];
    off_t size = lseek(fd, 0, SEEK_END);
    bool named = size >= 8 && pread(fd, tail, 8, size - 8) == 8 && memcmp(tail, magic, 8) == 0;

    lseek(fd, 0, SEEK_SET);
    return named;
}

static enum dt_status open_journal(const struct dt_runs_db *r, struct dt_error *err, int *out)
{
    char name[4300];

    snprintf(name, sizeof name, "%s-journal", r->at);
    *out = open(name, O_RDONLY | O_NONBLOCK | O_CLOEXEC);
    if (*out < 0)
        return dt_error_at(err, DT_ERR_INPUT, r->path, 0, 0,
                           "runs file: a writer was killed, and %s, which undoes its unfinished "
                           "work, cannot be opened: %s",
                           name, strerror(errno));
    if (!journal_names_others(*out))
        return DT_OK;
    close(*out);
    return dt_error_at(err, DT_ERR_INPUT, r->path, 0, 0,
                       "runs file: %s is of a transaction over several databases, which this "
                       "program never makes",
                       name);
}

static enum dt_status make_folder(struct dt_runs_db *r, struct dt_error *err)
{
    const char *tmp = getenv("TMPDIR");

    if (snprintf(r->folder, sizeof r->folder, "%s/disttrain-runs.XXXXXX",
                 tmp && *tmp ? tmp : "/tmp") < (int)sizeof r->folder &&
        mkdtemp(r->folder))
        return DT_OK;
    r->folder[0] = '\0';
    return dt_error_at(err, DT_ERR_IO, r->path, 0, 0,
                       "runs file: a writer was killed, and no folder can be made for a copy in "
                       "which to undo its unfinished work: %s",
                       strerror(errno));
}

static void remove_copy(struct dt_runs_db *r)
{
    static const char *const names[] = {"runs.db", "runs.db-journal"};
    char name[300];

    if (!r->folder[0])
        return;
    for (int i = 0; i < 2; i++) {
        snprintf(name, sizeof name, "%s/%s", r->folder, names[i]);
        unlink(name);
    }
    rmdir(r->folder);
    r->folder[0] = '\0';
}

/* Database and journal as they are at one time: *whole = false where somebody wrote meanwhile. */
static enum dt_status copy_once(struct dt_runs_db *r, struct dt_error *err, bool *whole)
{
    char name[300];
    struct stat before[2], after;
    enum dt_status st;
    int journal, fd;

    *whole = false;
    DT_TRY(open_journal(r, err, &journal));
    fd = open(r->at, O_RDONLY | O_CLOEXEC);
    st = fd < 0 || fstat(fd, &before[0]) != 0 || fstat(journal, &before[1]) != 0
             ? dt_error_at(err, DT_ERR_IO, r->path, 0, 0, "cannot open the runs file: %s",
                           strerror(errno))
             : DT_OK;
    snprintf(name, sizeof name, "%s/runs.db-journal", r->folder);
    if (st == DT_OK)
        st = copy_bytes(r->path, journal, name, err);
    snprintf(name, sizeof name, "%s/runs.db", r->folder);
    if (st == DT_OK)
        st = copy_bytes(r->path, fd, name, err);
    if (st == DT_OK && stat(r->at, &after) == 0 && same(&before[0], &after)) {
        char path[4300];

        snprintf(path, sizeof path, "%s-journal", r->at);
        *whole = stat(path, &after) == 0 && same(&before[1], &after);
    }
    close(journal);
    if (fd >= 0)
        close(fd);
    return st;
}

static enum dt_status copy_aside(struct dt_runs_db *r, struct dt_error *err)
{
    bool whole = false;
    enum dt_status st = DT_OK;

    for (int i = 0; i < TRIES && st == DT_OK && !whole; i++) {
        remove_copy(r);
        st = make_folder(r, err);
        if (st == DT_OK)
            st = copy_once(r, err, &whole);
    }
    if (st == DT_OK && !whole)
        st = dt_error_at(err, DT_ERR_DB, r->path, 0, 0,
                         "runs file: another program is writing to it; try again");
    if (st == DT_OK)
        snprintf(r->at, sizeof r->at, "%s/runs.db", r->folder);
    return st;
}

/* ---- opening ---- */

/* Opens r->at and looks into it, which is when SQLite finds a hot journal. */
static int open_at(struct dt_runs_db *r, int flags)
{
    int rc;

    sqlite3_close(r->db);
    r->db = NULL;
    rc = sqlite3_open_v2(r->at, &r->db, flags | SQLITE_OPEN_NOMUTEX, NULL);
    if (rc != SQLITE_OK)
        return rc;
    sqlite3_extended_result_codes(r->db, 1);
    sqlite3_busy_timeout(r->db, BUSY_MS);
    r->steps = STEPS;
    dt_profile_sql_guard(r->db, &r->steps);
    return sqlite3_exec(r->db, "SELECT count(*) FROM sqlite_master", NULL, NULL, NULL);
}

static bool hot_journal(int rc)
{
    return rc == SQLITE_READONLY_ROLLBACK || rc == SQLITE_READONLY_RECOVERY ||
           rc == SQLITE_READONLY_CANTLOCK;
}

/* The connection, its file whole again, without a transaction. */
static enum dt_status connect(struct dt_runs_db *r, const char *path, struct dt_error *err)
{
    int64_t size;
    int rc, journal;

    memset(r, 0, sizeof *r);
    DT_TRY(place(r, path, err));
    DT_TRY(probe(path, err, &size));
    if (size < 0)
        return dt_error_at(err, DT_ERR_INPUT, path, 0, 0, "cannot open the runs file: %s",
                           strerror(ENOENT));
    rc = open_at(r, SQLITE_OPEN_READONLY);
    if (rc == SQLITE_READONLY_ROLLBACK) {
        DT_TRY(open_journal(r, err, &journal));
        close(journal);
        rc = open_at(r, SQLITE_OPEN_READWRITE);
        if (rc != SQLITE_OK && (rc & 0xff) != SQLITE_CORRUPT && (rc & 0xff) != SQLITE_BUSY) {
            DT_TRY(copy_aside(r, err));
            rc = open_at(r, SQLITE_OPEN_READWRITE);
        }
        if (rc == SQLITE_OK) /* undone; from here on nothing is written */
            rc = open_at(r, SQLITE_OPEN_READONLY);
    }
    if (hot_journal(rc))
        return dt_error_at(
            err, DT_ERR_DB, path, 0, 0,
            "runs file: the unfinished work of a killed writer cannot be undone here: %s",
            sqlite3_errmsg(r->db));
    if (rc != SQLITE_OK)
        return dt_runs_error(r, err);
    r->steps += size / BYTES_PER_STEP;
    return DT_OK;
}

static enum dt_status begin(struct dt_runs_db *r, struct dt_error *err)
{
    sqlite3_set_authorizer(r->db, allow, NULL);
    return sqlite3_exec(r->db, "BEGIN", NULL, NULL, NULL) == SQLITE_OK ? DT_OK
                                                                       : dt_runs_error(r, err);
}

enum dt_status dt_runs_open(struct dt_runs_db *r, const char *path, struct dt_error *err)
{
    enum dt_status st = connect(r, path, err);

    if (st == DT_OK)
        st = begin(r, err);
    if (st == DT_OK)
        st = dt_runs_identify(r, "main", path, err, NULL);
    if (st != DT_OK)
        dt_runs_close(r);
    return st;
}

static enum dt_status attach(struct dt_runs_db *a, const struct dt_runs_db *b, struct dt_error *err)
{
    sqlite3_stmt *s = NULL;
    int rc = sqlite3_prepare_v2(a->db, "ATTACH ? AS other", -1, &s, NULL);

    if (rc == SQLITE_OK) {
        sqlite3_bind_text(s, 1, b->at, -1, SQLITE_STATIC);
        sqlite3_step(s);
        rc = sqlite3_finalize(s);
    }
    a->steps += b->steps;
    return rc == SQLITE_OK ? DT_OK : dt_runs_error(a, err);
}

enum dt_status dt_runs_open_two(struct dt_runs_db *a, const char *path_a, struct dt_runs_db *b,
                                const char *path_b, struct dt_error *err)
{
    enum dt_status st;

    memset(b, 0, sizeof *b);
    st = connect(a, path_a, err);
    if (st == DT_OK)
        st = connect(b, path_b, err);
    if (st == DT_OK)
        st = attach(a, b, err);
    if (st == DT_OK)
        st = begin(a, err);
    if (st == DT_OK)
        st = dt_runs_identify(a, "main", path_a, err, NULL);
    if (st == DT_OK)
        st = dt_runs_identify(a, "other", path_b, err, NULL);
    if (st != DT_OK) {
        dt_runs_close(a);
        dt_runs_close(b);
    }
    return st;
}

enum dt_status dt_runs_open_write(struct dt_runs_db *r, const char *path, struct dt_error *err)
{
    enum dt_status st;
    int64_t size;

    memset(r, 0, sizeof *r);
    DT_TRY(place(r, path, err));
    DT_TRY(probe(path, err, &size));
    if (open_at(r, SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE) == SQLITE_OK &&
        sqlite3_exec(r->db, "BEGIN IMMEDIATE", NULL, NULL, NULL) == SQLITE_OK) {
        sqlite3_progress_handler(r->db, 0, NULL, NULL); /* what it runs from here on is ours */
        return DT_OK;
    }
    st = dt_runs_error(r, err);
    dt_runs_close(r);
    return st;
}

void dt_runs_close(struct dt_runs_db *r)
{
    sqlite3_close(r->db);
    r->db = NULL;
    remove_copy(r);
}
