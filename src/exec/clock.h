/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * The one clock.  core/ and sim/ have none. */
#ifndef DT_EXEC_CLOCK_H
#define DT_EXEC_CLOCK_H

#include <stdint.h>

/* Monotonic time in nanoseconds since an unspecified start; never goes back. */
uint64_t dt_clock_ns(void);

#endif
