/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * A command on the ranks that an MPI launcher started: they meet, agree that they are of one binary
 * and one job, watch each other, and end together. */
#ifndef DT_CLI_RANKS_H
#define DT_CLI_RANKS_H

#include "core/job/job.h"
#include "comm/supervisor.h"
#include "exec/train/setup.h"

/* Alone: NULL and NULL. */
struct dt_cli_ranks {
    struct dt_transport *transport;
    struct dt_supervisor *supervisor;
    int cores; /* for this rank */
};
struct dt_cli;
typedef enum dt_status dt_cli_ranks_fn(void *ctx, const struct dt_cli_ranks *r,
                                       struct dt_error *err);

/* First of all in a command that may run on ranks: *launched tells whether a launcher started this
 * process, which then ends with it.  Refuses what would run several times, each alone, and a `job`
 * that the `ranks` to be started could not read. */
enum dt_status dt_cli_ranks_begin(const char *job, int64_t ranks, struct dt_error *err,
                                  bool *launched);
/* Runs fn on every rank.  `ranks`: as many as the user said, 0 = any number.  When it fails on one,
 * the job ends with one message. */
enum dt_status dt_cli_on_ranks(const struct dt_job *job, int64_t ranks, dt_cli_ranks_fn *fn,
                               void *ctx, struct dt_error *err);

/* DT_ERR_INPUT unless the job has a run: map, which says `what` ("what to train on"). */
enum dt_status dt_cli_need_run(const struct dt_job *job, const char *what, struct dt_error *err);
/* The device that the job names, for this rank; NULL: alone. */
enum dt_status dt_cli_open_device(const struct dt_job *job, const struct dt_cli_ranks *ranks,
                                  struct dt_error *err, struct dt_device **out);
/* Opens the job's data and model on a CPU, alone, and calls fn; `what`: as above. */
typedef enum dt_status dt_cli_setup_fn(struct dt_cli *cli, const struct dt_setup *s,
                                       struct dt_error *err);
enum dt_status dt_cli_on_setup(struct dt_cli *cli, const struct dt_job *job, const char *what,
                               dt_cli_setup_fn *fn, struct dt_error *err);

#endif
