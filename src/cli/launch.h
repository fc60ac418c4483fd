/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * disttrain train --ranks N: this program again, N times under mpirun, and again from the last
 * checkpoint when it fails. */
#ifndef DT_CLI_LAUNCH_H
#define DT_CLI_LAUNCH_H

#include "core/status.h"
#include <signal.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct dt_launch {
    int ranks;
    int64_t max_restarts;
    const char *run_id; /* handed to every start, so that restarts go on with this run; NULL = none */
    const volatile sig_atomic_t *stop; /* set by the caller's signal handler */
};
/* Returns when the job has ended; *exit_status is the job's own.  A rank that refuses its input
 * (2, 3 or 4) is not started again. */
enum dt_status dt_launch(const struct dt_launch *l, struct dt_error *err, int *exit_status);
/* The arguments of this process without --ranks and --max-restarts, and, unless it is NULL, with
 * --run-id `run_id`.  `text` is changed and pointed into; *n of at most `max`. */
void dt_launch_args(char *text, size_t len, const char *run_id, char **args, int max, int *n);

#endif
