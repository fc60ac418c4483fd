/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * What every database of unknown origin is opened under: nothing that its schema holds runs, and
 * the work done in it is bounded. */
#ifndef DT_CORE_PROFILE_SQLITE_GUARD_H
#define DT_CORE_PROFILE_SQLITE_GUARD_H

#include <stdint.h>

struct sqlite3;

/* *steps counts down, 100,000 instructions of SQLite's machine each: at 0 the statement at work is
 * interrupted.  It must stay where it is as long as the connection. */
void dt_profile_sql_guard(struct sqlite3 *db, int64_t *steps);

#endif
