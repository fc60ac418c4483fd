/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Two runs of the runs file side by side, simulated or executed, joined op by op.
 *
 * The key of an op is what it is about: module, replica, stage, kind, chunk, part, microbatch, peer
 * lane.  Ops of only one run are counted and left out of the sums. */
#ifndef DT_REPORT_COMPARE_H
#define DT_REPORT_COMPARE_H

#include "report/run_facts.h"
#include "base/status.h"
#include <stddef.h>
#include <stdint.h>

struct dt_run_ref {
    char file[1024];
    int64_t id;
};
/* "FILE:ID", "ID" or "last" (of `file`); "last-1" is the one before. */
enum dt_status dt_run_find(const char *text, const char *file, struct dt_error *err,
                           struct dt_run_ref *out);

struct dt_run_head {
    int64_t id, n_ops;
    char kind[16], job[256], started[40], version[40];
};
struct dt_compare_line {
    char name[96];   /* "iteration_s", "llm.forward_s", "lane llm/0.1 compute_s" */
    int64_t n;       /* ops that were joined */
    double a_s, b_s; /* sums; of iteration_s the makespans */
    double median;   /* of the ops' (b - a) / a, where a > 0 */
};
struct dt_compare_metric { /* of a whole run */
    const char *name;      /* "mfu" */
    double a, b;
};
enum { DT_COMPARE_METRICS_MAX = 8 };
/* Memory of a lane (per GPU or process), in bytes; -1 = not known. */
struct dt_compare_memory {
    char name[64]; /* "llm/0.1" */
    char host[64]; /* of b, or else of a; "" = not known */
    int rank;      /* likewise; -1 */
    int64_t a_predicted, a_allocated, b_predicted, b_allocated;
};
struct dt_compare {
    struct dt_run_head a, b;
    struct dt_run_facts facts_a, facts_b; /* what they were of */
    struct dt_run_difference differ[DT_RUN_FACTS_MAX];
    int n_differ;      /* 0: of one job, as far as is known */
    double peak_flops; /* of a GPU or process: what both MFUs are a share of; 0 = each of its own */
    bool peak_of_b;    /* it is b's, else a's */
    int64_t joined, only_a, only_b;
    double median_abs_error, bias; /* of the compute ops' (b - a) / a; between runs of two jobs no
                                      error, only a difference */
    struct dt_compare_line *line;  /* [0] is the iteration; then modules' kinds, then lanes */
    int n;
    size_t cap;
    struct dt_compare_metric metric[DT_COMPARE_METRICS_MAX]; /* those that both runs have */
    int n_metrics;
    struct dt_compare_memory *memory; /* of lanes of both runs, predicted by one memory model */
    int n_memory;
    size_t cap_memory;
};
/* What a lane took, or else what it was predicted to. */
int64_t dt_compare_memory_a(const struct dt_compare_memory *m);
int64_t dt_compare_memory_b(const struct dt_compare_memory *m);
/* Both runs must have kept their ops. */
enum dt_status dt_compare_runs(const struct dt_run_ref *a, const struct dt_run_ref *b,
                               struct dt_error *err, struct dt_compare *out);
void dt_compare_free(struct dt_compare *c);
/* (b - a) / a; infinite when only a is 0. */
double dt_compare_relative(double a, double b);
/* The line of this name; NULL. */
const struct dt_compare_line *dt_compare_find(const struct dt_compare *c, const char *name);
const struct dt_compare_metric *dt_compare_find_metric(const struct dt_compare *c,
                                                       const char *name);

#endif
