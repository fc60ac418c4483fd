/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Shared by the files of `disttrain accuracy`; nobody else includes it. */
#ifndef DT_CLI_ACCURACY_H
#define DT_CLI_ACCURACY_H

#include "cli/session.h"
#include "fit/accuracy.h"

enum { DT_ACC_PROFILES = 8 };
struct dt_cli_acc_profiles { /* read once, shared by all rows */
    int n;
    const char *name[DT_ACC_PROFILES];
    char device[DT_ACC_PROFILES][DT_NAME_MAX];
    struct dt_profile *profile[DT_ACC_PROFILES];
};
void dt_cli_acc_profiles_free(struct dt_cli_acc_profiles *p);

struct dt_cli_acc_variant {              /* constants other than the shipped ones */
    const struct dt_cost_tuning *tuning; /* NULL = shipped */
    double dispatch;                     /* factor on the host's time per kernel; 0 = 1 */
};
struct dt_cli_acc_run {
    struct dt_accuracy_measured_table table;
    struct dt_accuracy_row *rows;
    int *order;  /* worst first */
    char **note; /* [n_notes] what cost models say of their profiles, each once */
    size_t notes_cap;
    int n_notes;
    struct dt_accuracy a;
};
/* Predicts every `every`-th row of a table; `v` may be NULL. */
enum dt_status dt_cli_acc_run_table(const char *path, int every, const struct dt_cli_acc_variant *v,
                                    struct dt_cli_acc_profiles *p, struct dt_error *err,
                                    struct dt_cli_acc_run *r);
void dt_cli_acc_run_free(struct dt_cli_acc_run *r);
static inline double dt_cli_acc_error(const struct dt_accuracy_row *r)
{
    return r->measured_s > 0 ? r->predicted_s / r->measured_s - 1 : 0;
}

/* Hold-out errors of the fit of measured rows (a profile file of `db import`), as text or, with j,
 * as the member "holdout". */
enum dt_status dt_cli_acc_holdout(const char *path, struct dt_json *j, struct dt_error *err);
/* What 10 % less and more of each constant does to the tables, as text or as the member
 * "sensitivity". */
enum dt_status dt_cli_acc_sensitivity(const char *const *paths, int n, int every,
                                      struct dt_cli_acc_profiles *p, struct dt_json *j,
                                      struct dt_error *err);

#endif
