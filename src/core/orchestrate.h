/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Orchestration: choose every module's layout (DistTrain section 4), and the baselines. */
#ifndef DT_CORE_ORCHESTRATE_H
#define DT_CORE_ORCHESTRATE_H

#include "core/cost.h"
#include "core/plan.h"

struct dt_search_options {
    int gpus;          /* GPUs to use at most; 0 = the whole cluster */
    int k;             /* plans kept for ranking by timeline (default 8) */
    bool rank;         /* rank the K best by timeline on real samples */
    unsigned tp_mask;  /* bit t = TP 2^t allowed; default 0xf */
    int max_vpp;       /* interleaving degrees tried for the LLM; default 1 */
};
struct dt_search_stats {
    int64_t candidates;     /* layouts costed */
    int64_t convex_solves;
    double lower_bound_s;   /* least convex bound over (TP, DP_lm): no realisable plan's formula is below it */
    char infeasible[2048];  /* why plans were rejected, per constraint with counts; "" when not */
};
struct dt_search_result {
    int n;                  /* best first */
    struct dt_plan *plans;  /* [n], dt_free */
    struct dt_search_stats stats;
};
struct dt_search_input {
    const struct dt_model *model;
    const struct dt_cluster *cluster;
    const struct dt_samples *samples;
    struct dt_cost *cost;
    struct dt_policy policy;
    bool frozen[DT_MAX_MODULES];
    struct dt_search_options opt;
};

/* Mean time of one sample in module m with the whole module on one lane of TP tp: forward + backward, seconds
 * (C_m(TP_m) of the paper), under freezing. */
double dt_module_sample_s(const struct dt_search_input *in, int module, int tp);
/* The formula: T_warmup + T_steady of a plan (paper section 4; DESIGN section 4). */
void dt_formula(const struct dt_search_input *in, const struct dt_plan *p,
                struct dt_plan_prediction *out);
/* Convex inner problem for fixed TP and DP_lm in real x: returns the minimum of the formula and the x_m.
 * c[m] = C_m(TP_m), tp[m], n_total GPUs; min_x[m] lower bounds from memory.  GSL 1-D minimisation over the
 * steady interval, closed form inside. */
double dt_convex_solve(int n_modules, int llm, const double *c, const int *tp, int dp_llm,
                       int microbatch, int64_t global_batch, double n_total, const double *min_x,
                       double *x);

/* Plans for the strategy, best first.  DT_ERR_INFEASIBLE when none fits, with reasons. */
enum dt_status dt_orchestrate(enum dt_strategy strategy, const struct dt_search_input *in,
                              struct dt_error *err, struct dt_search_result *out);
void dt_search_result_free(struct dt_search_result *r);

#endif
