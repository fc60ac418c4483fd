/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * What eval and sample share: a job with the weights that training has left. */
#ifndef DT_CLI_TRAINED_H
#define DT_CLI_TRAINED_H

#include "cli/cli.h"
#include "exec/infer/infer.h"
#include "exec/train/setup.h"

struct dt_cli_trained {
    struct dt_job *job;
    struct dt_device *device;
    struct dt_setup setup;
    bool has_setup;
    struct dt_infer *infer;
    struct dt_ckpt_state state;
    char checkpoint[1200];
};

/* Reads the job of the command line (a file, "-", or the name of a shipped job), and the weights of
 * --checkpoint or of the job's checkpoint folder.  `batch` documents at once; 0 = the default.
 * `out` stays where it is until it is closed; zero after a failure. */
enum dt_status dt_cli_trained_open(const struct dt_cli *cli, int batch, struct dt_error *err,
                                   struct dt_cli_trained *out);
void dt_cli_trained_close(struct dt_cli_trained *t);

/* Relative folders of the job that training writes to: those in the folder of the job's file, where they are there, like
 * the files that a job names; else they are in the working directory, and made there. */
enum dt_status dt_cli_job_folders(struct dt_job *job, struct dt_error *err);

#endif
