/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Between the files of disttrain data: an action each. */
#ifndef DT_CLI_DATA_H
#define DT_CLI_DATA_H

#include "cli/cli.h"
#include "exec/data/frames.h"
#include "exec/data/report.h"

#include <stdio.h>

enum dt_status dt_cli_data_pack(struct dt_cli *cli, struct dt_error *err);
enum dt_status dt_cli_data_index(struct dt_cli *cli, struct dt_error *err);

/* --on-bad. */
enum dt_status dt_cli_data_on_bad(const struct dt_cli *cli, struct dt_error *err, bool *fatal);
/* --frame-stride and --frames-max; 0 where they are not given. */
enum dt_status dt_cli_data_frames(const struct dt_cli *cli, struct dt_data_frames *f,
                                  struct dt_error *err);
/* --index, as *keep and *folder (NULL = beside the shards). */
void dt_cli_data_keep(const struct dt_cli *cli, bool *keep, const char **folder);
/* Lines of what was bad. */
void dt_cli_data_report(FILE *f, const char *begin, const struct dt_data_report *r);

#endif
