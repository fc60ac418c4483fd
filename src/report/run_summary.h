/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * A run in numbers that mean the same whatever its layout is: of the whole run, and of each module.  Runs of the runs
 * file have them, and so do measured values from elsewhere (report/measured.h). */
#ifndef DT_REPORT_RUN_SUMMARY_H
#define DT_REPORT_RUN_SUMMARY_H

#include "core/schedule/program.h"
#include "report/run_about.h"
#include "report/run_facts.h"
#include "report/run_ref.h"

/* Of the run: X(NAME, unit, what it is).  GPUs are processes where the run was executed on CPUs. */
#define DT_RUN_METRICS(X)                                                                          \
    X(iteration_s, "s", "time of an iteration")                                                    \
    X(iteration_s_p10, "s", "lower end of its 80 % interval")                                      \
    X(iteration_s_p90, "s", "upper end of its 80 % interval")                                      \
    X(mfu, "share", "model FLOPs divided by the peak of the GPUs used")                            \
    X(mfu_own_peak, "share", "the same, of the peak that the run itself states")                   \
    X(model_flops_per_s_per_gpu, "flop/s", "model FLOPs per second and GPU used")                  \
    X(tokens_per_s, "1/s", "tokens trained on per second")                                         \
    X(samples_per_s, "1/s", "samples trained on per second")                                       \
    X(gpus_used, "GPUs", "GPUs of the plan")                                                       \
    X(bubble_share, "share", "of the used GPUs' time, without compute")                            \
    X(exposed_comm_share, "share", "of the iteration, waiting for transfers")                      \
    X(goodput, "share", "of wall time, spent on training")                                         \
    X(memory_bytes_max, "bytes", "largest memory of a GPU or process")
/* Of a module. */
#define DT_RUN_MODULE_METRICS(X)                                                                   \
    X(model_flops, "flop", "its work in an iteration")                                             \
    X(gpus, "GPUs", "its GPUs")                                                                    \
    X(forward_gpu_s, "GPU s", "GPU time of its forward passes")                                    \
    X(backward_gpu_s, "GPU s", "GPU time of its backward passes, weight gradients included")       \
    X(step_gpu_s, "GPU s", "GPU time of its optimizer steps")                                      \
    X(comm_gpu_s, "GPU s", "GPU time of its messages and collectives, hidden or not")              \
    X(busy_share, "share", "of its GPUs' time, with its compute")                                  \
    X(memory_bytes_max, "bytes", "largest memory of a GPU or process, for this module")

#define ENUMERATOR(name, unit, help) DT_RUN_##name,
enum { DT_RUN_METRICS(ENUMERATOR) DT_RUN_METRICS_N };
#undef ENUMERATOR
#define ENUMERATOR(name, unit, help) DT_RUN_OF_##name,
enum { DT_RUN_MODULE_METRICS(ENUMERATOR) DT_RUN_MODULE_METRICS_N };
#undef ENUMERATOR
struct dt_run_metric_row {
    const char *name, *unit, *help;
};
extern const struct dt_run_metric_row dt_run_metric_rows[DT_RUN_METRICS_N + 1];
extern const struct dt_run_metric_row dt_run_module_metric_rows[DT_RUN_MODULE_METRICS_N + 1];

struct dt_run_module {
    char name[DT_NAME_MAX];
    char layout[128]; /* "tp4 pp5 dp64", "with llm: tp4 pp1 dp320"; "" = not known */
    int pp, dp;       /* by its lanes; 0 = not known */
    double v[DT_RUN_MODULE_METRICS_N]; /* NAN = not known */
    int64_t n_ops[DT_OP_KIND_N];       /* kept, by kind */
};
struct dt_run_summary {
    char file[1024];
    struct dt_run_about about;
    bool measured;      /* no run of ours: values from a file */
    char memory_of[16]; /* memory_bytes_max is of a "gpu" or a process ("cpu"); "" = not known */
    double peak_flops;  /* of a GPU or process; 0 = not known */
    struct dt_run_facts facts;
    double v[DT_RUN_METRICS_N]; /* NAN = not known */
    struct dt_run_module module[DT_MAX_MODULES];
    int n_modules;
    int64_t kept_ops;
};
/* Nothing is known. */
void dt_run_summary_init(struct dt_run_summary *s);
/* Of a run whose rows were checked (dt_runs_check). */
enum dt_status dt_run_summary_of(const struct dt_runs_db *db, const char *schema, const char *path,
                                 int64_t id, struct dt_error *err, struct dt_run_summary *out);
/* Opens the file and checks the run. */
enum dt_status dt_run_summary_read(const struct dt_run_ref *run, struct dt_error *err,
                                   struct dt_run_summary *out);
/* What the run was made of, as JSON text for dt_free; NULL where it is not there or is none. */
struct dt_run_documents {
    char *job, *plan, *report;
};
enum dt_status dt_run_documents_read(const struct dt_run_ref *run, struct dt_error *err,
                                     struct dt_run_documents *out);
void dt_run_documents_free(struct dt_run_documents *d);
/* The module of this name; NULL. */
const struct dt_run_module *dt_run_summary_module(const struct dt_run_summary *s, const char *name);
/* The value of "mfu" or "llm.forward_gpu_s" is at *out; false if there is no such name. */
bool dt_run_summary_find(const struct dt_run_summary *s, const char *name, double *out);
/* The MFU as a share of this peak; mfu_own_peak stays. */
void dt_run_summary_set_peak(struct dt_run_summary *s, double peak_flops);

#endif
