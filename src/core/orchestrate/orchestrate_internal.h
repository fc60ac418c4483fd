/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * What the planner's files share: cost tables, memory look-ups, the branch-and-bound search. */
#ifndef DT_CORE_ORCHESTRATE_ORCHESTRATE_INTERNAL_H
#define DT_CORE_ORCHESTRATE_ORCHESTRATE_INTERNAL_H

#include "core/cost/memory.h"
#include "core/orchestrate/orchestrate.h"

enum {
    DT_TP_N = 8, /* tensor-parallel degrees 2^0 .. 2^7 */
    DT_SEARCH_VPP_MAX = 16
};

/* Sizes of one sample in a module over the first global batch. */
struct dt_orch_work_stats {
    double n, tokens, tokens_sq;             /* means */
    double tokens_sd;                        /* standard deviation of tokens */
    double n_max, tokens_max, tokens_sq_max; /* largest sample */
    int64_t longest;                         /* longest sequence or image of any sample */
};

struct dt_orch_stage_entry { /* the best split of a module over (pp, vpp) */
    double max_s;    /* slowest stage: time of one sample through all its chunks; < 0 = not yet
                           computed */
    uint16_t *split; /* [pp*vpp + 1] */
};

struct dt_orch_tp_costs { /* one module at one TP degree */
    bool legal;           /* heads divide, lanes tile the nodes */
    double sample_s;      /* C_m(TP): one sample through the whole module, forward and backward */
    double *block_s;      /* [n_blocks] */
    struct dt_orch_stage_entry *stage; /* [(vpp-1) * n_blocks + pp-1] */
};

/* Rejections, per constraint, for the infeasible message. */
struct dt_orch_rejects {
    int64_t memory, gpus, heads, nodes;
    int64_t assigned; /* plans that fit by estimate but not with the microbatches assigned */
    double memory_least_over_bytes; /* the closest miss */
    char memory_least[160];
    int64_t gpus_least; /* fewest GPUs that any rejected layout needed */
};

struct dt_orch_mem_entry {
    uint64_t key; /* 0 = free */
    uint32_t dp_lm;
    float over_bytes; /* <= 0: fits; > 0: by how much the worst stage seen is over */
};

struct dt_orch_table {
    const struct dt_search_input *in;
    struct dt_arena arena;
    struct dt_plan scratch; /* template of every plan; layouts are set before a memory question */
    struct dt_orch_work_stats work[DT_MAX_MODULES];
    struct dt_orch_tp_costs *cost[DT_MAX_MODULES]; /* [DT_TP_N] each */
    int max_vpp, gpus;
    double static_bytes[DT_MAX_MODULES], optimizer_bytes[DT_MAX_MODULES];
    double sigmas; /* spread that the largest microbatch is taken to have */
    struct dt_orch_mem_entry *mem;
    size_t mem_cap, mem_n;
    struct dt_orch_rejects rejects;
    bool nomem; /* sticky: an allocation inside the search failed */
};

struct dt_orch_cand { /* a realisable layout vector */
    double score, total_s, lower_bound_s;
    int gpus, vpp; /* vpp of the LLM */
    uint8_t tpi[DT_MAX_MODULES];
    int16_t pp[DT_MAX_MODULES];
    int dp[DT_MAX_MODULES];
};

/* orchestrate_table.c */
enum dt_status dt_orch_table_new(const struct dt_search_input *in, struct dt_error *err,
                                 struct dt_orch_table **out);
void dt_orch_table_free(struct dt_orch_table *t);
void dt_orch_work_stats(const struct dt_search_input *in, int module,
                        struct dt_orch_work_stats *out);
/* Times of single blocks for one sample under a plan's freezing and the given shard. */
struct dt_orch_block_timer {
    const struct dt_search_input *in;
    const struct dt_plan *p;
    int module;
    struct dt_block_shard shard;
    struct dt_work work; /* of k samples */
    double k;
    unsigned char trainable[UINT16_MAX];
};
void dt_orch_block_timer_init(struct dt_orch_block_timer *b, const struct dt_search_input *in,
                              const struct dt_plan *p, int module,
                              const struct dt_block_shard *shard,
                              const struct dt_orch_work_stats *w);
double dt_orch_block_timer_s(const struct dt_orch_block_timer *b,
                             int block); /* forward and backward */
/* Slowest stage of module m at TP index tpi; NULL when out of memory (t->nomem). */
const struct dt_orch_stage_entry *dt_orch_table_stage(struct dt_orch_table *t, int m, int tpi,
                                                      int pp, int vpp);
/* Samples of a slot that the fullest of dp replicas takes. */
static inline int64_t dt_orch_samples_per_replica(int64_t slot, int dp)
{
    return (slot + dp - 1) / dp;
}

/* orchestrate_memory.c */
/* Does every stage of module m fit: LLM pp and vpp, generators at most gen_pp stages deep. */
bool dt_orch_table_fits(struct dt_orch_table *t, int m, int tpi, int pp, int dp, int dp_lm,
                        int pp_lm, int vpp_lm, int gen_pp);
void dt_orch_table_static_bytes(struct dt_orch_table *t,
                                int m); /* fills the sums that the next one uses */
/* Fewest GPUs on which the parameters of module m can lie at all (real number, >= tp [* DP_lm]). */
double dt_orch_table_min_gpus(const struct dt_orch_table *t, int m, int tpi, int dp);
/* Work of the largest of many microbatches of `samples` samples: mean + sigmas, at most all of the
 * largest. */
void dt_orch_largest_work(const struct dt_orch_work_stats *s, double samples, double sigmas,
                          struct dt_work *out);
/* Count a stage that does not fit and keep the closest miss. */
void dt_orch_note_reject(struct dt_orch_table *t, const struct dt_plan *p, int m, int stage,
                         const struct dt_memory *mem);
/* Forget what was asked (after a change of sigmas). */
void dt_orch_table_forget(struct dt_orch_table *t);

/* orchestrate_search.c: the best layouts, best first; cap[m] (may be NULL) limits each module's
 * GPUs. */
enum dt_status dt_orch_search(struct dt_orch_table *t, const double *cap, int k,
                              struct dt_error *err, struct dt_orch_cand *out, int *n,
                              struct dt_search_stats *stats);
/* The layout of c's TP degrees, DP_lm and pp_lm with the fewest GPUs whose score is at most
 * `limit`. */
enum dt_status dt_orch_search_lean(struct dt_orch_table *t, const struct dt_orch_cand *c,
                                   double limit, struct dt_error *err, struct dt_orch_cand *out);

/* orchestrate.c: dt_orch_formula with the sample statistics at hand */
void dt_orch_formula_stats(const struct dt_search_input *in, const struct dt_plan *p,
                           const struct dt_orch_work_stats *stats, struct dt_plan_prediction *out);

/* orchestrate_bound.c: seconds that no timeline of a plan of this table undercuts, for samples that
 * are all the mean one (0 when the table does not cover the plan). */
double dt_orch_plan_least_s(const struct dt_orch_table *t, const struct dt_plan *p);
/* If p's program has more than ops_max ops and falls into independent broker groups (the gcd of all
 * DP): the plan of some of the groups and their share of the global batch, not yet placed. */
bool dt_orch_plan_share(const struct dt_plan *p, int llm, double ops_max, struct dt_plan *out);

/* orchestrate_rank.c */
/* Warm-up of the LLM for one microbatch taking c seconds on one lane: the pipeline fills once;
 * interleaving divides the fill beyond the first stage by vpp.  That is the LLM's own view.  Seen
 * from the modules around it a microbatch still takes all of c to pass through. */
static inline double dt_orch_llm_warmup_s(double c, int pp, int vpp)
{
    return c * (vpp + pp - 1) / ((double)pp * vpp);
}
/* Staged total: `warm` of all modules (the LLM's as above), intervals of the LLM and of the slowest
 * other module; `pass` is what the LLM's passage takes beyond its warm-up (0 for vpp = 1). */
static inline double dt_orch_staged_s(double warm, double steps, double llm, double others,
                                      double pass)
{
    double a = steps * llm, b = pass + steps * others;

    return warm + (a > b ? a : b);
}
enum dt_status dt_orch_cand_plan(struct dt_orch_table *t, const struct dt_orch_cand *c,
                                 enum dt_plan_strategy strategy, struct dt_error *err,
                                 struct dt_plan *out);
/* Fill predictions of n plans (timeline too when asked for), drop those whose assigned microbatches
 * do not fit and, if `sort`, order them: shortest timeline first, of those within 0.1 % of it the
 * one with the fewest GPUs.  Sorting needs no timeline of a plan that cannot be the shortest: those
 * come last, by staged_s, with timeline_s 0. */
enum dt_status dt_orch_rank(struct dt_orch_table *t, struct dt_plan *plans, int *n, bool sort,
                            struct dt_error *err);
/* dt_orch_search, then plans, then dt_orch_rank, then the leaner variant of the winner. */
enum dt_status dt_search_plans(struct dt_orch_table *t, const double *cap,
                               enum dt_plan_strategy strategy, struct dt_error *err,
                               struct dt_search_result *out);
/* orchestrate_explain.c */
void dt_orch_rejects_text(const struct dt_orch_table *t, char *out, size_t size);
enum dt_status dt_orch_infeasible(const struct dt_orch_table *t, struct dt_error *err);

/* ---- strategies: a file strategy_NAME.c each, and a row of DT_STRATEGIES (core/model/plan.h) ---- */

struct dt_orch_planner {
    /* Plans, best first. */
    enum dt_status (*plan)(struct dt_orch_table *t, struct dt_error *err,
                           struct dt_search_result *out);
    void (*policy)(
        struct dt_plan_policy *y); /* what it makes of the stated policy; NULL: keeps it */
};
/* strategy_manual.c: the plan t->in->manual, placed, checked and costed. */
enum dt_status dt_orch_plan_stated(struct dt_orch_table *t, struct dt_error *err,
                                   struct dt_search_result *out);

/* orchestrate_convex.c: dt_orch_convex_solve with the constant term given (M*C_lm, divided by vpp). */
double dt_orch_convex_solve_base(int n_modules, int llm, const double *c, const int *tp, int dp_llm,
                                 int microbatch, int64_t global_batch, double n_total,
                                 const double *min_x, double base_s, double *x);

#endif
