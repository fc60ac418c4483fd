/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * What training says at its end. */
#ifndef DT_CLI_TRAIN_SUMMARY_H
#define DT_CLI_TRAIN_SUMMARY_H

#include "report/outliers.h"
#include "report/runs.h"
#include "exec/train/train.h"
#include "comm/supervisor.h"

/* What stands out in the last iteration, whose lanes are whose, and what they take; nothing when no
 * step was done. */
struct dt_cli_train_findings {
    struct dt_outliers o;
    int *rank;                    /* [n_lanes], of a lane's first member */
    const char **host;            /* [ranks]; NULL = not known */
    struct dt_run_memory *memory; /* [n_lanes] */
};
enum dt_status dt_cli_train_findings(const struct dt_train_summary *s,
                                     const struct dt_supervisor *supervisor, struct dt_error *err,
                                     struct dt_cli_train_findings *out);
void dt_cli_train_findings_free(struct dt_cli_train_findings *f);

/* The text of --json (dt_free). */
enum dt_status dt_cli_train_json(const struct dt_setup *setup, const struct dt_train_summary *s,
                                 const struct dt_cli_train_findings *f, struct dt_error *err,
                                 char **out);
void dt_cli_train_print(const struct dt_setup *setup, const struct dt_train_summary *s,
                        const struct dt_cli_train_findings *f);

#endif
