/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Parts of disttrain runs. */
#ifndef DT_CLI_RUNS_H
#define DT_CLI_RUNS_H

#include "cli/compare.h"

/* All that is known of the one run of `c`, as JSON on standard output. */
enum dt_status dt_cli_runs_show_json(const struct dt_cli_compared *c, const struct dt_run_ref *run,
                                     struct dt_error *err);
/* Curves of trainings: of their logs, or of runs whose jobs say where these are. */
enum dt_status dt_cli_runs_plot(const struct dt_cli *cli, struct dt_error *err);

#endif
