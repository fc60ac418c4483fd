/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * The published evaluation of DistTrain (SIGCOMM'25) as data: what was run, what was reported, what
 * we get. */
#ifndef DT_CLI_REPRODUCE_H
#define DT_CLI_REPRODUCE_H

#include "cli/session.h"

struct dt_cli_range { /* a reported figure: lo..hi; hi only = "up to"; both 0 = none */
    double lo, hi;
};
struct dt_cli_result_row {
    char section; /* the letter of its part */
    char what[96];
    const char *unit;
    struct dt_cli_range published, recalled;
    double ours;
    bool judged;                /* by what is accepted */
    struct dt_cli_range accept; /* whatever is reported */
    const char *because;        /* it misses; NULL: nothing is known */
    char detail[160];           /* layout, GPUs, iteration time */
};
struct dt_cli_results {
    struct dt_cli_result_row *rows;
    size_t n, cap;
};

/* One simulated run: a preset job with overrides. */
struct dt_cmd_reproduce_case {
    double mfu, samples_per_s, iteration_s, search_s;
    int gpus_used, gpus;
    char layout[160];
};
enum dt_status dt_cmd_reproduce_case_run(const char *job, const char *const *overrides, int n,
                                         struct dt_error *err, struct dt_cmd_reproduce_case *out);
enum dt_status dt_cli_results_add(struct dt_cli_results *r, const struct dt_cli_result_row *row,
                                  struct dt_error *err);

/* The experiments; each appends its rows. */
enum dt_status dt_cmd_reproduce_overall(struct dt_cli_results *r, struct dt_error *err);
enum dt_status dt_cmd_reproduce_orchestration(struct dt_cli_results *r, struct dt_error *err);
enum dt_status dt_cmd_reproduce_reordering(struct dt_cli_results *r, struct dt_error *err);
enum dt_status dt_cmd_reproduce_freezing(struct dt_cli_results *r, struct dt_error *err);
enum dt_status dt_cmd_reproduce_stepccl(struct dt_cli_results *r, struct dt_error *err);
enum dt_status dt_cmd_reproduce_search(struct dt_cli_results *r, struct dt_error *err);
enum dt_status dt_cmd_reproduce_modules(struct dt_cli_results *r, struct dt_error *err);
enum dt_status dt_cmd_reproduce_data(struct dt_cli_results *r, struct dt_error *err);
enum dt_status dt_cmd_reproduce_samples(struct dt_cli_results *r, struct dt_error *err);
/* Megatron MIMO's (arXiv 2605.27678). */
enum dt_status dt_cmd_reproduce_colocated(struct dt_cli_results *r, struct dt_error *err);
enum dt_status dt_cmd_reproduce_long_context(struct dt_cli_results *r, struct dt_error *err);
enum dt_status dt_cmd_reproduce_noncolocated(struct dt_cli_results *r, struct dt_error *err);
enum dt_status dt_cmd_reproduce_boundary(struct dt_cli_results *r, struct dt_error *err);
enum dt_status dt_cmd_reproduce_modes(struct dt_cli_results *r, struct dt_error *err);
/* Entrain's (arXiv 2605.27918). */
enum dt_status dt_cmd_reproduce_entrain(struct dt_cli_results *r, struct dt_error *err);

#endif
