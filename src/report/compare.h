/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Two runs of the runs file side by side, simulated or executed: as wholes, by modules, and op by op where an op of
 * one is the same work as an op of the other.
 *
 * The key of an op is what it is about: module, replica, stage, kind, chunk, part, microbatch, peer lane.  It means the
 * same work only in equal layouts: stage 0 of five holds other blocks than stage 0 of ten.  So ops are joined module
 * by module, where both have the layout and as many passes of each kind; of the others only wholes are compared. */
#ifndef DT_REPORT_COMPARE_H
#define DT_REPORT_COMPARE_H

#include "report/run_facts.h"
#include "report/run_ref.h"
#include "report/run_summary.h"
#include "base/status.h"
#include <stddef.h>
#include <stdint.h>

/* ---- work ---- */

/* Did two runs have the same to do: SAME, OTHER, or neither can be said. */
enum dt_compare_work { DT_COMPARE_SAME, DT_COMPARE_OTHER, DT_COMPARE_UNKNOWN };
/* Of each module (work[modules of a], by model FLOPs; 0.01 % are none), and of the whole: also the model, the samples and
 * the batch as the facts have them. */
enum dt_compare_work dt_compare_work(const struct dt_run_summary *a,
                                     const struct dt_run_summary *b);
/* Is the fact of that name about what had to be done; the others are about how. */
bool dt_compare_is_work(const char *fact);
/* b's model FLOPs of the module relative to a's; NAN = not known. */
double dt_compare_module_work(const struct dt_run_summary *a, const struct dt_run_summary *b,
                              const char *module);

/* ---- ops ---- */

struct dt_compare_line {
    char name[96];   /* "iteration_s", "llm.forward_s", "lane llm/0.1 compute_s" */
    int64_t n;       /* ops that were joined */
    double a_s, b_s; /* sums; of iteration_s the makespans */
    double median;   /* of the ops' (b - a) / a, where a > 0 */
};
struct dt_compare_module { /* of a */
    const char *name;      /* borrowed from a */
    bool same_layout;
    int64_t joined;   /* ops */
    char why_not[96]; /* why none of them is joined; "" */
};
/* Memory of a lane (per GPU or process) of a module with the same layout in both, in bytes; -1 = not known. */
struct dt_compare_memory {
    char name[64]; /* "llm/0.1" */
    char host[64]; /* of b, or else of a; "" = not known */
    int rank;      /* likewise; -1 */
    int64_t a_predicted, a_allocated, b_predicted, b_allocated;
};
struct dt_compare {
    struct dt_run_summary a, b;
    struct dt_run_difference differ[DT_RUN_FACTS_MAX];
    int n_differ; /* 0: of one job and its choices, as far as is known */
    struct dt_compare_module module[DT_MAX_MODULES];
    int n_modules;
    int64_t joined, only_a, only_b;
    double median_abs_error,
        bias; /* of the compute ops' (b - a) / a, NAN without any; between runs of two jobs no
                                      error, only a difference */
    struct dt_compare_line *line; /* [0] is the iteration; then modules' kinds, then lanes */
    int n;
    size_t cap;
    struct dt_compare_memory *memory; /* of lanes of both runs, predicted by one memory model */
    int n_memory;
    size_t cap_memory;
};
/* What a lane took, or else what it was predicted to. */
int64_t dt_compare_memory_a(const struct dt_compare_memory *m);
int64_t dt_compare_memory_b(const struct dt_compare_memory *m);
enum dt_status dt_compare_runs(const struct dt_run_ref *a, const struct dt_run_ref *b,
                               struct dt_error *err, struct dt_compare *out);
void dt_compare_free(struct dt_compare *c);
/* (b - a) / a; infinite when only a is 0. */
double dt_compare_relative(double a, double b);
/* The line of this name; NULL. */
const struct dt_compare_line *dt_compare_find(const struct dt_compare *c, const char *name);

#endif
