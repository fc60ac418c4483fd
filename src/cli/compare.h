/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * What the parts of disttrain compare share: runs and measured values side by side, all against the first. */
#ifndef DT_CLI_COMPARE_H
#define DT_CLI_COMPARE_H

#include "cli/cli.h"
#include "base/json.h"
#include "report/compare.h"

enum { DT_CLI_COMPARE_MAX = 26 }; /* letters */
struct dt_cli_compared {
    int n;
    struct dt_run_summary *run;                 /* [n]; mfu is of `peak_flops` where it is known */
    struct dt_compare pair[DT_CLI_COMPARE_MAX]; /* of run k and the first; [0] is none */
    bool paired[DT_CLI_COMPARE_MAX];            /* both are runs of a runs file */
    enum dt_compare_work work[DT_CLI_COMPARE_MAX]; /* against the first's */
    double peak_flops; /* of a GPU or process: what each mfu is a share of; 0 = each of its own */
    int peak_of;       /* whose it is */
};

/* A row of the table: a metric that at least one run states. */
struct dt_cli_compared_row {
    char name[96]; /* "mfu", "llm.forward_gpu_s" */
    const char *unit;
    double v[DT_CLI_COMPARE_MAX]; /* NAN = not known */
};
typedef void dt_cli_compared_fn(void *ctx, const struct dt_cli_compared_row *row);
/* Work first, then the whole run, then modules. */
void dt_cli_compared_rows(const struct dt_cli_compared *c, dt_cli_compared_fn *fn, void *ctx);

/* "samples (a: text, 1f...; b: x.tar, step 22, 3e...), precision (a: bf16; b: fp32)" of run k. */
void dt_cli_compared_differences(const struct dt_cli_compared *c, int k, char *buf, size_t size);
/* Lines and lanes of a pair, worst first; its tables; its members of an object that is open. */
void dt_cli_compared_sort(struct dt_compare *p);
void dt_cli_compared_print_ops(const struct dt_compare *p, int top);
void dt_cli_compared_json_ops(struct dt_json *j, const struct dt_cli_compared *all, int k);
/* What a run is: members of an object that is open. */
void dt_cli_run_json_members(struct dt_json *j, const struct dt_run_summary *s);
/* Layouts and rows alone. */
void dt_cli_compared_print_values(const struct dt_cli_compared *c);
void dt_cli_compared_json_rows(struct dt_json *j, const struct dt_cli_compared *c);
void dt_cli_compared_print(const struct dt_cli_compared *c, int top);
enum dt_status dt_cli_compared_json(const struct dt_cli_compared *c, struct dt_error *err);

/* Tolerances NAME=PERCENT.  Before any work (c: NULL), what they say; then that there are such lines. */
enum dt_status dt_cli_compared_check_names(const struct dt_cli *cli,
                                           const struct dt_cli_compared *c, struct dt_error *err);
/* DT_ERR_TOLERANCE of the first that does not hold; `junit` (may be NULL): the file that tells of all. */
enum dt_status dt_cli_compared_check(const struct dt_cli *cli, const struct dt_cli_compared *c,
                                     const char *junit, struct dt_error *err);
/* Such a file of a comparison that could not be made, for the reason in `why`. */
enum dt_status dt_cli_compared_junit_error(const char *junit, const struct dt_error *why,
                                           struct dt_error *err);

#endif
