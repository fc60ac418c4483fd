/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * What a run is, in a few words and numbers: for lists of runs, and for the heads of comparisons and reports.
 *
 * Text of a file goes to terminals: what is no well-formed UTF-8, or controls them, is "?" here. */
#ifndef DT_REPORT_RUN_ABOUT_H
#define DT_REPORT_RUN_ABOUT_H

#include "base/status.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct dt_runs_db;
struct sqlite3_stmt;

struct dt_run_about {
    int64_t id;
    char kind[16];       /* "simulated", "executed" */
    char job_file[256];  /* as it was named */
    char job[128];       /* without folders and ".yaml" */
    char strategy[32];   /* of the plan; "" = not known, like all that follow */
    char cluster[64];    /* of the plan */
    char overrides[512]; /* KEY=VALUE, a blank between two; cut short with "..." */
    char host[256];
    char started[40]; /* ISO 8601 UTC */
    char version[40];
    char tags[512];    /* a blank between two */
    int64_t n_ops;     /* of the program */
    bool ops;          /* are they kept */
    double makespan_s; /* of the timeline that is stored: the first iteration's of a simulation */
    double
        iteration_s; /* what the report of a simulation says, as all else it says; else makespan_s */
    double
        mfu; /* of an executed run that of the stored iteration; NAN where the report does not say */
    int64_t bytes; /* in the file, about: 48 an op, 64 a lane, texts as they are long */
};
/* `schema` is "main" or "other"; DT_ERR_INPUT if there is no such run. */
enum dt_status dt_run_about_read(const struct dt_runs_db *db, const char *schema, const char *path,
                                 int64_t id, struct dt_error *err, struct dt_run_about *out);
/* "mllm-72b-1296, megatron-lm, train.global_batch=960, simulated on north 2026-11-22 17:21Z"; returns buf. */
char *dt_run_about_text(const struct dt_run_about *a, char *buf, size_t size);
/* A column's text, made fit for a terminal, cut where it is too long. */
void dt_run_about_copy(struct sqlite3_stmt *s, int column, char *out, size_t size);

/* All runs of a file, in the order of their numbers. */
struct dt_runs_list {
    struct dt_run_about *run;
    int n;
    size_t cap;
    int64_t file_bytes, free_bytes; /* on disk; of it, pages without content */
};
enum dt_status dt_runs_list(const char *path, struct dt_error *err, struct dt_runs_list *out);
void dt_runs_list_free(struct dt_runs_list *l);

#endif
