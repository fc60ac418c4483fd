/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * The parts of `disttrain profile`; cmd_profile.c chooses. */
#ifndef DT_CLI_PROFILE_H
#define DT_CLI_PROFILE_H

#include "cli/cli.h"

/* profile JOB [KEY=VALUE...]: args[0] is the job. */
enum dt_status dt_cmd_profile_job(struct dt_cli *cli, struct dt_error *err);

/* profile --data JOB [KEY=VALUE...]: args[0] is the job. */
enum dt_status dt_cmd_profile_data(struct dt_cli *cli, struct dt_error *err);

/* profile fit PROFILE: args[0] is "fit". */
enum dt_status dt_cmd_profile_fit(struct dt_cli *cli, struct dt_error *err);

/* profile import -o OUT FILE...: args[0] is "import". */
enum dt_status dt_cmd_profile_import(struct dt_cli *cli, struct dt_error *err);

#endif
