/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * The runs file: every run, simulated or executed, kept in one SQLite file (schema:
 * doc/formats.md).
 *
 * A run is written in one transaction: after a crash or a full disk it is there whole or not at
 * all. */
#ifndef DT_REPORT_RUNS_H
#define DT_REPORT_RUNS_H

#include "core/model/plan.h"
#include "report/report.h"
#include "report/run_facts.h"
#include "core/schedule/timeline.h"

enum { DT_RUNS_SCHEMA = 1 };
enum dt_run_kind { DT_RUN_SIMULATED, DT_RUN_EXECUTED };

struct dt_run_memory {                        /* of a lane, per GPU or process */
    int64_t predicted_bytes, allocated_bytes; /* allocated: -1 = not known */
};

/* What a rank did for a batch beside an executed iteration: took its samples and packed them; put
 * them in order and compiled the program. */
enum dt_run_data_work { DT_DATA_LOAD, DT_DATA_ORDER, DT_DATA_WORK_N };
struct dt_run_data {
    int rank;
    int64_t batch; /* of the step of that number, counted from 1 */
    enum dt_run_data_work work;
    int64_t begin_ns, end_ns; /* like the timeline's; before its begin or behind its end, too */
};

struct dt_run_record { /* what is kept; everything borrowed; NULL parts are left out */
    enum dt_run_kind kind;
    const char *job_name, *job_json; /* the job as read, overrides applied */
    const char *started;             /* ISO 8601 UTC, from the caller (core/ has no clock) */
    const char *version;
    const char *report_json; /* the very text of --json */
    uint64_t seed;
    const struct dt_plan *plan;
    const struct dt_model *model;
    const struct dt_program *program;
    const struct dt_timeline *timeline;
    const int *lane_rank;         /* [n_lanes] who executed it: its first member; NULL = nobody */
    const char *const *rank_host; /* [ranks]; NULL = not known */
    const char *memory_of;        /* devices whose memory model predicted it: "cpu" or "gpu" */
    const struct dt_run_memory *lane_memory; /* [n_lanes] */
    const struct dt_run_data *data;          /* [n_data] */
    int64_t n_data;
    const struct dt_run_facts *facts; /* what it was of; NULL = not known */
    const double *model_flops;        /* [modules of the model] of the iteration: its work */
    const char *host;                 /* where it was made */
    const char *overrides;            /* KEY=VALUE of the command line, one a line */
    bool ops;                         /* keep a row per op (else lanes only) */
};
/* Creates the file when absent; refuses a foreign or newer file.  *run_id is the new run's number.
 */
enum dt_status dt_runs_add(const char *path, const struct dt_run_record *run, struct dt_error *err,
                           int64_t *run_id);

#endif
