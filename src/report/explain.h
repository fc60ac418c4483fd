/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Where an iteration's time comes from, and how sure it is.
 *
 *   timeline --critical path--> ns per (stage, direction), transfer, collective
 *            --cost_parts-----> contributions: module, kernel, direction; source; interval
 *            --Monte Carlo----> 10th and 90th percentile of the iteration
 *
 * The critical path's share of a kernel family is the derivative of the iteration's logarithm by
 * the logarithm of that family's time, as long as the path stays the same. */
#ifndef DT_REPORT_EXPLAIN_H
#define DT_REPORT_EXPLAIN_H

#include "core/cost/cost.h"
#include "core/schedule/timeline.h"

/* ---- families of errors ---- */

/* Families whose errors are taken as one: everything of a family is too fast or too slow together. */
enum dt_report_error_family {
    DT_ERRF_GEMM,
    DT_ERRF_ATTENTION,
    DT_ERRF_MEMORY_BOUND,
    DT_ERRF_COLLECTIVE,
    DT_ERRF_P2P,
    DT_ERRF_HOST,
    DT_ERRF_N
};
extern const char *const dt_report_error_family_names[DT_ERRF_N + 1];
/* Standard deviation of the logarithm of a family's time, where no row says more. */
extern const double dt_report_error_sigma[DT_ERRF_N];
/* Correlation of the logarithms, symmetric, 1 on the diagonal, positive definite. */
extern const double dt_report_error_correlation[DT_ERRF_N][DT_ERRF_N];
enum dt_report_error_family dt_report_error_family_of(int op_family);

/* 10th and 90th percentile of a run.  times_s[n]: iterations on other samples (or noise), each as
 * likely; share[f]: part of the time that family f accounts for (sum <= 1, the rest is certain);
 * sigma[f]: standard deviation of the logarithm of that part.  Seeded Monte Carlo (GSL), `draws` of
 * them: t = times_s[k] (1 - sum share + sum share_f exp(sigma_f z_f)), z normal, correlated. */
enum dt_status dt_report_error_interval(const double *times_s, int n, const double *share,
                                        const double *sigma, uint64_t seed, int draws,
                                        struct dt_error *err, double *p10_s, double *p90_s);

/* ---- critical path ---- */

/* `waiting`: ns between the end of the last thing that the op waited for and its begin. */
typedef void dt_explain_critical_fn(void *ctx, uint32_t op, int64_t ns, bool waiting);
/* From the end back to the beginning; the ns sum to the makespan when the first op begins at 0. */
void dt_explain_critical_path(const struct dt_program *p, const struct dt_timeline *t,
                              dt_explain_critical_fn *fn, void *ctx);

/* ---- contributions ---- */

enum dt_explain_contribution_kind { /* a kernel of a block, or what is outside of blocks */
                                    DT_CONTRIB_KERNEL,
                                    DT_CONTRIB_HOST,
                                    DT_CONTRIB_TRANSFER,
                                    DT_CONTRIB_GRAD_SYNC,
                                    DT_CONTRIB_GRAD_NORM,
                                    DT_CONTRIB_PARAM_GATHER,
                                    DT_CONTRIB_STEP,
                                    DT_CONTRIB_WAIT,
                                    DT_CONTRIB_DATA,
                                    DT_CONTRIB_LINK,
                                    DT_CONTRIB_N
};
struct dt_explain_contribution {
    enum dt_explain_contribution_kind kind;
    int module, family; /* enum dt_kop_family; -1 = none */
    int direction;      /* enum dt_cost_direction; -1 = none */
    bool core;          /* element-wise kernels on the scores of unfused attention */
    int64_t n, k;       /* of a GEMM; else 0 */
    double critical_ns; /* on the critical path */
    double gpu_ns;      /* over all GPUs */
    int rests; /* enum dt_profile_row_kind of that row; -1 = computed, no row; -2 = assumed, no row */
    double sigma;     /* standard deviation of the logarithm of its time */
    char source[64];  /* of the profile row that weighs most */
    double source_ns; /* its weight so far */
};
struct dt_explanation {
    int n;
    struct dt_explain_contribution *at;        /* largest critical_ns first */
    double makespan_ns, gpu_ns;                /* totals */
    double share[DT_ERRF_N], sigma[DT_ERRF_N]; /* for dt_report_error_interval */
};
enum dt_status dt_explain(const struct dt_program *p, const struct dt_model *m,
                          struct dt_cost *cost, const struct dt_timeline *t, struct dt_error *err,
                          struct dt_explanation *out);
void dt_explanation_free(struct dt_explanation *e);
/* "gemm 12288 x 4096", "transfer", ... into buf. */
void dt_explain_contribution_text(const struct dt_explain_contribution *c, char *buf, size_t size);
enum dt_report_error_family dt_explain_contribution_family(const struct dt_explain_contribution *c);

#endif
