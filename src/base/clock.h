/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * The one clock.  core/ and sim/ have none. */
#ifndef DT_BASE_CLOCK_H
#define DT_BASE_CLOCK_H

#include <stddef.h>
#include <stdint.h>
#include <time.h>

/* Monotonic time in nanoseconds since an unspecified start; never goes back. */
uint64_t dt_clock_ns(void);
/* Time that this process has had of cores, all threads together. */
uint64_t dt_clock_process_ns(void);
uint64_t dt_clock_thread_ns(void); /* of the thread that asks */
/* The instant `ns` from now, of that clock and, for locks, which know no other, of the wall's. */
struct timespec dt_clock_in(int64_t ns);
struct timespec dt_clock_wall_in(int64_t ns);
/* Seconds since 1970, UTC, for labels of logs only: it may jump. */
double dt_clock_wall_s(void);
/* The date and time now, UTC, ISO 8601 ("2026-11-20T23:02:43Z"), for labels only; "" if size < 21. */
void dt_clock_utc(char *buf, size_t size);
/* The same of so many seconds ago; "" also if there is no such date. */
void dt_clock_utc_ago(double s, char *buf, size_t size);

#endif
