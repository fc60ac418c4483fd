/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING. */
#include "core/profile/sqlite_guard.h"

#include <sqlite3.h>

static int bounded(void *steps)
{
    return --*(int64_t *)steps < 0;
}

void dt_profile_sql_guard(sqlite3 *db, int64_t *steps)
{
    int was;

    sqlite3_limit(db, SQLITE_LIMIT_TRIGGER_DEPTH, 0);
    sqlite3_limit(db, SQLITE_LIMIT_WORKER_THREADS, 0);
    sqlite3_db_config(db, SQLITE_DBCONFIG_DEFENSIVE, 1, &was);
    sqlite3_db_config(db, SQLITE_DBCONFIG_TRUSTED_SCHEMA, 0, &was);
    sqlite3_db_config(db, SQLITE_DBCONFIG_ENABLE_TRIGGER, 0, &was);
    sqlite3_db_config(db, SQLITE_DBCONFIG_ENABLE_VIEW, 0, &was);
    sqlite3_progress_handler(db, 100000, bounded, steps);
}
