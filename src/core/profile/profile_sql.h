/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * A profile file as an open database: only the schema's own statements run in it, under limits. */
#ifndef DT_CORE_PROFILE_PROFILE_SQL_H
#define DT_CORE_PROFILE_PROFILE_SQL_H

#include "base/status.h"
#include <stdint.h>

struct sqlite3;

enum { DT_PROFILE_FILE_MAX_BYTES = 512 << 20 };

struct dt_profile_sql {
    struct sqlite3 *db;
    const char *name, *text; /* the caller's; text is NULL for a database file */
    int64_t steps;           /* counted by the limit on work, so the struct must not move */
};

/* Runs the text of a .sql file in a database in memory, or opens a database file read-only. */
enum dt_status dt_profile_sql_run(struct dt_profile_sql *p, const char *name, const char *text,
                                  struct dt_error *err);
enum dt_status dt_profile_sql_open(struct dt_profile_sql *p, const char *path,
                                   struct dt_error *err);
void dt_profile_sql_close(struct dt_profile_sql *p);

/* What SQLite says is wrong, as DT_ERR_INPUT. */
enum dt_status dt_profile_sql_error(const struct dt_profile_sql *p, struct dt_error *err);
/* Adds to an error about a row (its rowid) where the row stands: file, line and column of its
 * values in the text; of a database the table and the row, in the message.  Runs the text once
 * more. */
void dt_profile_sql_place(const struct dt_profile_sql *p, const char *table, int64_t row,
                          struct dt_error *err);

#endif
