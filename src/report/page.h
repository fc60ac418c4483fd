/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Pages about runs: what is known of a run, and the sections that show it.  Sections are functions of data that add to a
 * text, for whatever page they stand in; the whole page is made of them. */
#ifndef DT_REPORT_PAGE_H
#define DT_REPORT_PAGE_H

#include "base/mem.h"
#include "base/text.h"
#include "core/cost/cost.h"
#include "core/model/plan.h"
#include "report/breakdown.h"
#include "report/run_summary.h"
#include "report/sweep.h"

/* The single numbers of a run: X(ENUMERATOR, member of its JSON) */
#define DT_REPORT_NUMBERS(X)                                                                       \
    X(ITERATION, "iteration_s")                                                                    \
    X(P10, "iteration_s_p10")                                                                      \
    X(P90, "iteration_s_p90")                                                                      \
    X(TOKENS, "tokens_per_s")                                                                      \
    X(SAMPLES, "samples_per_s")                                                                    \
    X(MFU, "mfu")                                                                                  \
    X(HFU, "hfu")                                                                                  \
    X(MFU_CLUSTER, "mfu_cluster")                                                                  \
    X(GPUS_USED, "gpus_used")                                                                      \
    X(GPUS, "gpus")                                                                                \
    X(BUBBLES, "bubble_fraction")                                                                  \
    X(EXPOSED, "exposed_comm_s")                                                                   \
    X(GOODPUT, "goodput")                                                                          \
    X(ITERATIONS, "iterations")                                                                    \
    X(RANKS, "ranks")                                                                              \
    X(STEPS, "last_step")
enum dt_report_number {
#define ENUMERATOR(id, key) DT_NUMBER_##id,
    DT_REPORT_NUMBERS(ENUMERATOR)
#undef ENUMERATOR
        DT_NUMBER_N
};
extern const char *const dt_report_number_keys[DT_NUMBER_N];

struct dt_report_module { /* as its JSON has it; NaN = not told */
    char name[64];
    double utilisation, memory_bytes, model_flops;
};

/* ---- what is worked out from the job that a run keeps (predictions); arrays are the page's ---- */

struct dt_report_next { /* a plan beside the one that was run */
    const char *text;   /* its layouts */
    const char *policy; /* schedule, microbatch and other modes */
    double iteration_s, memory_bytes;
    int gpus;
    bool same; /* it is the one that was run */
};
struct dt_report_input {
    const char *name, *value; /* "NIC bandwidth", "23.5 GB/s" */
    double less, more;        /* relative change of the iteration with 10 % less and more of it */
};
struct dt_report_stage { /* memory of a GPU that holds a stage, in bytes */
    const char *name;
    double params, grads, optimizer, activations, other, guests;
};
struct dt_report_part { /* what the iteration consists of, on its critical path */
    const char *what, *module, *direction, *rests_on, *source;
    double s, p10_s, p90_s, share;
};
struct dt_report_order { /* one module, as samples come and as they are reordered */
    const char *module;
    double replica_before, replica_after;       /* slowest replica / mean */
    double microbatch_before, microbatch_after; /* slowest microbatch of a replica / mean */
};
struct dt_report_assumption {
    const char *what, *value, *source;
};
struct dt_report_worked_out {
    struct dt_report_next *next;
    struct dt_report_input *input;
    struct dt_report_stage *stage;
    struct dt_report_part *part;
    struct dt_report_order *order;
    struct dt_report_assumption *assumption;
    int n_next, n_input, n_stage, n_part, n_order, n_assumption;
    double
        again_s; /* the first iteration simulated anew when the page was made; NaN = it was not */
    double memory_limit_bytes;
    double order_before_s,
        order_after_s;       /* iterations of the first batch, as it comes and as it is reordered */
    const char *order_name;  /* how samples are reordered */
    const char *why_not;     /* NULL, or why nothing could be worked out */
    const char *why_no_next; /* likewise for plans */
};

struct dt_report_page_run {
    int64_t id;
    char name[64]; /* "run 12" */
    char job[256], model[64], cluster[64], strategy[32], started[40], version[40];
    bool executed, cpu;
    double number[DT_NUMBER_N];   /* NaN = not told */
    double provenance[DT_PROV_N]; /* all 0: not told */
    int n_modules;
    struct dt_report_module module[DT_MAX_MODULES];
    bool has_plan;
    struct dt_plan plan;
    char assumed[1024], profile_note[512], plan_changes[1024], device[64];
    double memory_max_bytes;       /* of the fullest GPU or process; NaN = not told */
    char memory_unfit[256];        /* which iteration does not fit, and by how much; "" = all do */
    double reorder_s[4];           /* none, inter, intra, both; NaN = not told */
    struct dt_run_summary summary; /* nothing is known in it of what is no run of a runs file */
    char *job_json, *report_json;
    struct dt_run_view view; /* without ops where the run has kept none */
    bool has_spent;
    struct dt_report_breakdown spent;
    char no_spent[256]; /* why not */
    struct dt_report_worked_out worked;
    struct dt_arena arena; /* of what was worked out */
    bool no_memory;        /* for some of it */
};
/* Nothing is known. */
void dt_report_page_init(struct dt_report_page_run *r);
/* Reads a run of the runs file; nothing is worked out yet.  Nothing is left to free on failure. */
enum dt_status dt_report_page_read(const struct dt_run_ref *ref, struct dt_error *err,
                                   struct dt_report_page_run *out);
/* Numbers from the JSON of a report that is at hand, into what dt_report_page_init made; the view is not filled. */
enum dt_status dt_report_page_parse(const char *json, struct dt_error *err,
                                    struct dt_report_page_run *out);
/* Where the time goes, from the view. */
void dt_report_page_spend(struct dt_report_page_run *r);
void dt_report_page_free(struct dt_report_page_run *r);

enum { DT_REPORT_PAGE_RUNS_MAX = 16 };

/* "30.989 s", or "15.867 ms" below half a second, into buf; returns buf. */
char *dt_report_page_seconds(double s, char *buf, size_t size);

/* ---- sections: each adds itself, or nothing where there is nothing to say ---- */

/* `id` begins the ids of a section's pictures. */
void dt_report_page_answer(struct dt_text *t, const struct dt_report_page_run *r,
                           const char *question);
void dt_report_page_numbers(struct dt_text *t, const struct dt_report_page_run *r);
enum dt_status dt_report_page_provenance(struct dt_text *t, const struct dt_report_page_run *r,
                                         const char *id, struct dt_error *err);
/* The plan's layouts, with utilisation and memory of each module. */
void dt_report_page_modules(struct dt_text *t, const struct dt_report_page_run *r);
/* span_ns: what the width stands for, at least the makespan; 0 = that. */
enum dt_status dt_report_page_timeline(struct dt_text *t, const struct dt_report_page_run *r,
                                       int64_t span_ns, const char *id, struct dt_error *err);
enum dt_status dt_report_page_spent(struct dt_text *t, const struct dt_report_page_run *r,
                                    const char *id, struct dt_error *err);
enum dt_status dt_report_page_memory(struct dt_text *t, const struct dt_report_page_run *r,
                                     const char *id, struct dt_error *err);
enum dt_status dt_report_page_order(struct dt_text *t, const struct dt_report_page_run *r,
                                    const char *id, struct dt_error *err);
void dt_report_page_next(struct dt_text *t, const struct dt_report_page_run *r);
enum dt_status dt_report_page_inputs(struct dt_text *t, const struct dt_report_page_run *r,
                                     const char *id, struct dt_error *err);
void dt_report_page_parts(struct dt_text *t, const struct dt_report_page_run *r);
void dt_report_page_assumptions(struct dt_text *t, const struct dt_report_page_run *r);
/* Several runs side by side: a table with differences to the first, intervals, where the time goes. */
enum dt_status dt_report_page_compare(struct dt_text *t, const struct dt_report_page_run *runs,
                                      int n, struct dt_error *err);
enum dt_status dt_report_page_compare_spent(struct dt_text *t,
                                            const struct dt_report_page_run *runs, int n,
                                            struct dt_error *err);

/* ---- the page ---- */

struct dt_report_page_options {
    const char *title; /* the question; NULL = made from the run */
    const char *made;  /* when and by what version, for the foot */
};
/* *out is the caller's (dt_free). */
enum dt_status dt_report_page(const struct dt_report_page_run *runs, int n,
                              const struct dt_report_page_options *opt, struct dt_error *err,
                              char **out);
/* Of a sweep: charts over the number of GPUs, and all points. */
enum dt_status dt_report_sweep_page(const struct dt_sweep_data *d,
                                    const struct dt_report_page_options *opt, struct dt_error *err,
                                    char **out);

#endif
