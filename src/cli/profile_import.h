/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * disttrain profile import: what is read, and how it is reported. */
#ifndef DT_CLI_PROFILE_IMPORT_H
#define DT_CLI_PROFILE_IMPORT_H

#include "fit/kernel_import.h"

#include <stdio.h>

enum dt_cli_import_kind {
    DT_IMPORT_NSYS,
    DT_IMPORT_KINETO,
    DT_IMPORT_NCCL,
    DT_IMPORT_CSV,
    DT_IMPORT_KINDS
};
extern const char *const dt_cli_import_kind_names[];

struct dt_cli_import_file {
    const char *path;
    int kind;
    char device[48]; /* as the file says; "" = it does not */
    char other[48];  /* of another kind, in the same trace; "" = none */
    bool by_time;
    int64_t lines_left_out; /* of nccl-tests: what is not theirs */
    struct dt_import_kernels_sums sums;
};
struct dt_cli_import_run {
    const char *output, *device, *rules_name;
    int n_files, source[DT_IMPORT_KINDS];
    struct dt_cli_import_file *file;
    struct dt_import_rules *rules;
    struct dt_import_kernels *kernels;
    struct dt_profile_table table;
    struct dt_import_kernels_sums sums; /* of all files */
    size_t rows;
    bool written;
    int n_top;
    struct dt_import_kernels_name top[DT_KIMPORT_TOP];
};

void dt_cli_import_print(const struct dt_cli_import_run *run, FILE *f);
enum dt_status dt_cli_import_print_json(const struct dt_cli_import_run *run, struct dt_error *err);

#endif
