/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * The runs file as an open database.  It may come from anywhere, or be something else altogether:
 * what it is, is checked before it is used, and rows before they are read.
 *
 * Readers write nothing, with one exception that SQLite itself asks for: what a writer left half
 * done when it was killed (a hot journal) is undone first, in the file where that is allowed, else
 * in a copy that goes with dt_runs_close. */
#ifndef DT_REPORT_RUNS_OPEN_H
#define DT_REPORT_RUNS_OPEN_H

#include "base/status.h"
#include <stdbool.h>
#include <stdint.h>

struct sqlite3;

/* In the header of the file ("DTrn"); 0 in files of before it was set. */
#define DT_RUNS_APPLICATION_ID 0x4454726e
enum { DT_RUNS_LANES_MAX = 1 << 20, DT_RUNS_RANKS_MAX = 1 << 20 };
/* Times further than this from the iteration's begin (73 years) cannot be subtracted safely. */
#define DT_RUNS_TIME_MAX_NS (INT64_MAX / 4)

struct dt_runs_db {
    struct sqlite3 *db;
    const char *path; /* as the user names it; the caller's */
    char at[4200];    /* what is open */
    char folder[256]; /* of the copy; "" = none */
    int64_t steps;    /* the struct must not move */
};

/* For reading, in one transaction from here on.  DT_ERR_INPUT where it is not there, is no runs
 * file, or is damaged. */
enum dt_status dt_runs_open(struct dt_runs_db *r, const char *path, struct dt_error *err);
/* Two files side by side: `b` becomes "other" in `a`, which may be the same file. */
enum dt_status dt_runs_open_two(struct dt_runs_db *a, const char *path_a, struct dt_runs_db *b,
                                const char *path_b, struct dt_error *err);
/* For writing; made where it is not there.  A transaction is open on success. */
enum dt_status dt_runs_open_write(struct dt_runs_db *r, const char *path, struct dt_error *err);
void dt_runs_close(struct dt_runs_db *r);
/* In that transaction: only a file that is empty or ours is written to; ours gets the tables that it lacks. */
enum dt_status dt_runs_make_tables(const struct dt_runs_db *r, struct dt_error *err);

/* What SQLite says is wrong. */
enum dt_status dt_runs_error(const struct dt_runs_db *r, struct dt_error *err);
/* Is it a runs file of this version, its tables as they must be?  *empty (may be NULL: that is
 * refused): nobody has written to it. */
enum dt_status dt_runs_identify(const struct dt_runs_db *r, const char *schema, const char *path,
                                struct dt_error *err, bool *empty);
/* Are all rows of the run what the schema says: types, ranges, numbers in order?  `schema` is
 * "main" or "other", `path` the file's name for messages.  `n_lanes` and `n_ops` (of the kept ones)
 * may be NULL. */
enum dt_status dt_runs_check(const struct dt_runs_db *r, const char *schema, const char *path,
                             int64_t id, struct dt_error *err, int64_t *n_lanes, int64_t *n_ops);
/* Files of before may lack tables. */
bool dt_runs_has_table(const struct dt_runs_db *r, const char *schema, const char *table);

#endif
