/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * disttrain train --ranks N: this program again, N times under mpirun, and again from the last
 * checkpoint when it fails. */
#ifndef DT_CLI_LAUNCH_H
#define DT_CLI_LAUNCH_H

#include "base/status.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct dt_launch {
    char *const *argv; /* this process' own, ended by NULL */
    int ranks;
    int64_t max_restarts;
    /* handed to every start, so that restarts go on with this run; NULL = none */
    const char *run_id;
    bool orderly; /* ranks end in order on SIGUSR1; else the first signal ends them at once */
};
/* Returns when the job has ended; *exit_status is the job's own, 5 if a rank was lost in whatever
 * way, 128 and the signal's number if a signal ended it at once.  Only 1 and 5 are tried again. */
enum dt_status dt_launch(const struct dt_launch *l, struct dt_error *err, int *exit_status);

/* ---- launch_args.c ---- */

/* The arguments without --ranks and --max-restarts, ended by NULL, and, unless it is NULL, with
 * --run-id `run_id`.  *out (dt_free) points into argv. */
enum dt_status dt_launch_args(char *const *argv, const char *run_id, struct dt_error *err,
                              char ***out);
/* Launchers put all arguments into one variable, which Linux limits to 128 KiB.  So more than a
 * part of that goes through the environment: the arguments become two that say so. */
enum dt_status dt_launch_pack(char **args, struct dt_error *err);
/* The other end, in main(): the arguments as they were.  They are kept until the end. */
enum dt_status dt_launch_unpack(int *argc, char ***argv, struct dt_error *err);

#endif
