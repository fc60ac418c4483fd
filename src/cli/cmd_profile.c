/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * disttrain profile: measured times, from this machine. */
#include "cli/profile.h"

#include <string.h>

static const struct dt_cli_option options[] = {
    {"output", 'o', DT_OPT_STRING, "FILE", "the profile, .sql text or SQLite (default local.sql)"},
    {"device", 0, DT_OPT_STRING, "NAME", "device name in it (default: the cluster's device)"},
    {"data", 0, DT_OPT_FLAG, NULL,
     "measure what a core preprocesses of the job's data instead (default file cpu-prep.sql)"},
    {"samples", 0, DT_OPT_INT, "N", "data: so many, evenly spread (default 400)"},
    {"ranks", 0, DT_OPT_INT, "N", "start N ranks under mpirun, and measure messages between them"},
    {"sequences", 0, DT_OPT_INT, "N", "largest microbatch measured (default: the global batch)"},
    {"repeats", 0, DT_OPT_INT, "N", "of each measurement, at least (default 15)"},
    {"seconds", 0, DT_OPT_DOUBLE, "S",
     "longer for each size, per module, if time is left (default 1)"},
    {"reference", 0, DT_OPT_DOUBLE, "S",
     "bring times to the speed at which the reference kernel takes S (default: its first time)"},
    {"svg", 0, DT_OPT_STRING, "DIR", "fit: draw the residuals of every curve into this folder"},
    {"rules", 0, DT_OPT_STRING, "FILE", "import: which op a kernel is (default: default)"},
    {"dtype", 0, DT_OPT_STRING, "TYPE",
     "import: element type if neither rule nor trace names one (default bf16)"},
    {"strict", 0, DT_OPT_FLAG, NULL, "import: fail if any kernel is not mapped"},
    {NULL, 0, DT_OPT_FLAG, NULL, NULL},
};

static enum dt_status command(struct dt_cli *cli, struct dt_error *err)
{
    if (strcmp(cli->args[0], "fit") == 0)
        return dt_cmd_profile_fit(cli, err);
    if (strcmp(cli->args[0], "import") == 0)
        return dt_cmd_profile_import(cli, err);
    return dt_cli_flag(cli, "data") ? dt_cmd_profile_data(cli, err) : dt_cmd_profile_job(cli, err);
}

const struct dt_cli_command dt_cmd_profile = {
    .name = "profile",
    .args = "JOB [KEY=VALUE...] | fit PROFILE | import FILE...",
    .summary = "measure this machine for the blocks of a job",
    .options = options,
    .min_args = 1,
    .max_args = -1,
    .run = command,
};
