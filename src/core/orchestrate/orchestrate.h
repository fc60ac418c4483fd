/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Orchestration: choose every module's layout (DistTrain section 4), and the baselines. */
#ifndef DT_CORE_ORCHESTRATE_ORCHESTRATE_H
#define DT_CORE_ORCHESTRATE_ORCHESTRATE_H

#include "core/cost/cost.h"
#include "core/model/plan.h"

/* How long to look (orchestrate_effort.c).  What is found is checked alike. */
enum dt_search_effort { DT_EFFORT_NORMAL, DT_EFFORT_QUICK, DT_EFFORT_THOROUGH, DT_EFFORT_N };
extern const char *const dt_search_effort_names[DT_EFFORT_N + 1];
extern const char *const dt_search_effort_help[DT_EFFORT_N + 1];

/* What may be chosen.  A set that is left empty holds what the policy states and nothing else. */
struct dt_search_options {
    int gpus;  /* GPUs to use at most; 0 = the whole cluster */
    int k;     /* plans returned (default 8) */
    bool rank; /* rank the best by timeline on real samples */
    enum dt_search_effort effort;
    /* what is timed is at most so much slower by the formula than the best; 0 = as the effort has it */
    double margin;
    int64_t budget; /* ops of programs that ranking may time; 0 = as the effort has it */
    /* beyond it those of neighbours of the best plans; 0 = as the effort has it */
    int64_t neighbours;
    unsigned schedules;                 /* bit s: enum dt_pipe_schedule s */
    int max_microbatch;                 /* divisors of the global batch up to this; 0: empty */
    unsigned recompute[DT_MAX_MODULES]; /* bit r: enum dt_block_recompute r */
    unsigned zero[DT_MAX_MODULES];      /* bit z: level z */
    unsigned offload[DT_MAX_MODULES];   /* bit o: enum dt_plan_offload o */
    unsigned guests;                    /* bit m: module m may lie on the GPUs of the LLM */
    unsigned tp_mask;                   /* bit t = TP 2^t allowed; default 0xf */
    int max_vpp; /* interleaving degrees tried for the LLM; 0 = as many as its blocks allow, up to 16 */
    int max_cp; /* context parallelism tried for the LLM; 0 = while a rank has 8,192 tokens of a sequence */
    int max_ep;   /* expert parallelism tried for an LLM with experts; 0 = whatever divides them */
    bool uniform; /* search the published formula as it stands: uniform stages, fractional samples
                   * per replica.  Default: slowest real stage and whole samples (staged_s) */
    /* strategy entrain: with that confidence another draw of b_min samples sizes modules otherwise with at most that
     * probability (0: 0.95 and 0.05); samples to size them by, 0: b_min */
    double confidence, p_error;
    int profile_samples;
    int dp;          /* the same: replicas; 0 = as the search finds */
    uint64_t seed;   /* the same: of what is drawn */
    int megatron_pp; /* Megatron-LM: the LLM's pp, or one of the two below */
    /* The best plan takes the reordering that its timeline does best with; the policy's, where it is on, is what layouts
     * are compared with.  false: the policy's is stated. */
    bool free_intra, free_inter;
};
enum {
    DT_MEGATRON_AUTO = 0, /* searched for, with the rest that is not stated */
    DT_MEGATRON_PUBLISHED =
        -1, /* the published configuration as recalled, the rest as the policy states */
};
/* Ways of reordering samples: bits, and names for people. */
enum { DT_REORDER_NONE, DT_REORDER_INTER, DT_REORDER_INTRA, DT_REORDER_BOTH, DT_REORDER_N };
extern const char *const dt_orch_reorder_names[DT_REORDER_N + 1];

struct dt_orch_reorder { /* how that was chosen */
    int batches;         /* global batches that it was decided on; 0: nothing was to be chosen */
    int choice;
    bool share; /* the timelines are those of some of the replicas, which stood for all */
    double mean_s
        [DT_REORDER_N]; /* of the timelines; NAN: not among the choices, INFINITY: does not fit */
};
enum { DT_SEARCH_BUDGET = 800000 }; /* ops at normal effort: a few tenths of a second on one core */
struct dt_search_stats {
    int64_t cells,
        cells_opened; /* (schedule, vpp, microbatch, lane, DP_lm): all, and not pruned by their bounds */
    int64_t candidates; /* layouts costed */
    int64_t convex_solves;
    int64_t simulated, ops; /* plans timed, and the ops of their programs */
    int64_t
        untimed; /* plans kept whose bound is below the best timeline, but the budget was spent */
    int64_t
        unlisted; /* layouts of the LLM beside which no guests were tried: the list of plans was full */
    double
        lower_bound_s; /* least convex bound over all cells: no realisable plan's formula is below it */
    double
        floor_s; /* no plan of the space has a shorter timeline on samples that are all the mean one; 0 = unknown */
    char infeasible[2048]; /* why plans were rejected, per constraint with counts; "" when not */
};
/* Of strategy best: the best plan of a class. */
enum { DT_SEARCH_CLASSES = 3 };
struct dt_search_class {
    enum dt_plan_strategy strategy;
    bool fits;        /* it is among the plans of the result, the one of this strategy */
    double mem_bytes; /* of its fullest GPU */
    char why[512];    /* what binds it, or why no plan of the class fits */
};
/* How the GPUs of a replica were divided among modules (strategy entrain, orchestrate_sizing.c). */
enum { DT_ORCH_SIZING_STEPS = 24 };
struct dt_orch_sizing_step { /* `trials` draws of so many samples beside a first one */
    int64_t samples;
    int others;                                      /* that gave another division than the first */
    int least[DT_MAX_MODULES], most[DT_MAX_MODULES]; /* units of each module in all of them */
};
/* How sure a division is: what draws of a global batch from all samples ask for. */
enum { DT_ORCH_SIZING_OTHERS = 4 };
struct dt_orch_sizing_stable {
    int64_t batch;   /* samples of a draw */
    int draws, same; /* that ask for the division of the plan */
    int n_others;    /* the other divisions that most of them ask for */
    struct {
        int draws, units[DT_MAX_MODULES];
    } other[DT_ORCH_SIZING_OTHERS];
    /* The least share of the load that would have to be module `from`'s and become module `to`'s for all samples to ask for
     * another division; infinite where there is no other, as each module has one unit. */
    double margin;
    int from, to;
};
struct dt_orch_sizing {
    int n_modules;      /* 0: nothing was divided */
    int unit, of_units; /* GPUs of one, and how many a replica has */
    int units[DT_MAX_MODULES];
    int64_t samples; /* that decided: b_min, what was stated, or (boundary) all */
    int trials;      /* 0: the number of samples was stated */
    bool boundary;   /* draws of all samples still differ: the mean lies between two divisions */
    double share
        [DT_MAX_MODULES]; /* of the load of all samples, and the mean of each sample's own shares */
    double mean_share[DT_MAX_MODULES];
    int n_steps;
    struct dt_orch_sizing_step step[DT_ORCH_SIZING_STEPS];
    struct dt_orch_sizing_stable stable; /* of the chosen plan's */
};
struct dt_search_result {
    int n;                 /* best first */
    struct dt_plan *plans; /* [n] */
    /* Where neighbours of the best plans were looked at: all plans that have a timeline, of the replicas that ranking looks at,
     * best first. */
    int n_timed;
    struct dt_plan *timed; /* [n_timed] */
    struct dt_search_stats stats;
    struct dt_orch_reorder reorder; /* of plans[0] */
    int n_classes;
    struct dt_search_class classes[DT_SEARCH_CLASSES];
    struct dt_orch_sizing sizing; /* of plans[0] */
};
struct dt_orch_timed;
struct dt_search_input {
    const struct dt_model *model;
    const struct dt_cluster *cluster;
    const struct dt_samples *samples;
    struct dt_cost *cost;
    struct dt_plan_policy policy;
    /* of each module of the plans that are made */
    bool frozen[DT_MAX_MODULES];
    enum dt_block_recompute recompute[DT_MAX_MODULES];
    int zero[DT_MAX_MODULES];
    enum dt_plan_offload offload[DT_MAX_MODULES];
    struct dt_search_options opt;
    const struct dt_plan *manual; /* DT_STRATEGY_MANUAL: the plan to cost */
    /* disttrain: look only near the plans of this result, found in a wider space, and those of a quick search; NULL: look
     * everywhere. */
    const struct dt_search_result *near;
    struct dt_orch_timed *timed; /* NULL: nothing is remembered */
};

/* Timelines that searches have run, for others (orchestrate_timed.c).  What is found does not depend on it. */
enum dt_status dt_orch_timed_new(struct dt_error *err, struct dt_orch_timed **out);
void dt_orch_timed_free(struct dt_orch_timed *t);
/* The next searches have this cost model and these samples, and numbers for them that no others have or had. */
void dt_orch_timed_on(struct dt_orch_timed *t, const struct dt_cost *cost, uint64_t cost_number,
                      const struct dt_samples *samples, uint64_t samples_number);

/* Has the strategy plans in which encoders run in phases on the LLM's GPUs, so that their parameters may leave in between? */
bool dt_orch_may_leave(enum dt_plan_strategy strategy);

/* What a strategy makes of the stated policy: DistTrain and manual plans keep it; Megatron-LM and
 * DistMM* have neither reordering nor StepCCL.  Apply it before dt_cost_new(): the cost's stepccl
 * must be the policy's. */
void dt_orch_policy(enum dt_plan_strategy strategy, struct dt_plan_policy *policy);

/* A plan to fill in (dt_plan_init), with what the input says of its modules. */
void dt_search_plan_init(const struct dt_search_input *in, struct dt_plan *p);

/* Mean work of one sample of the (first) global batch in module m. */
void dt_search_mean_work(const struct dt_search_input *in, int module, struct dt_work *out);
/* The largest microbatch a plan's module should expect: mean + 3 sigma of that many samples, never
 * more than that many times the largest sample.  Memory is checked against it before an assignment
 * exists. */
void dt_search_largest_work(const struct dt_search_input *in, const struct dt_plan *p,
                            struct dt_work *work /*[modules]*/);

/* The formula: T_warmup + T_steady of a plan (paper section 4; DESIGN section 4). */
void dt_orch_formula(const struct dt_search_input *in, const struct dt_plan *p,
                     struct dt_plan_prediction *out);
/* (total_s is the published formula; staged_s the same with the plan's slowest stage.
 * lower_bound_s, timeline_s and mem_bytes_max are left at 0.) */

/* Time of one iteration by the program's timeline on the samples from `first_sample` on: dt_assign,
 * dt_sched_compile, dt_durations_compute, dt_timeline_eval.  Also checks memory against the microbatches
 * actually assigned and gives the largest stage (mem_bytes_max may be NULL). */
enum dt_status dt_orch_plan_timeline_s(const struct dt_search_input *in, const struct dt_plan *p,
                                       int64_t first_sample, struct dt_error *err, double *seconds,
                                       double *mem_bytes_max);
/* The same where each batch has a way of its own (policy.batch_reorder). */
enum dt_status dt_orch_batch_timeline_s(const struct dt_search_input *in, const struct dt_plan *p,
                                        int64_t first_sample, struct dt_error *err, double *seconds,
                                        double *mem_bytes_max);

/* Sets the reordering of a plan that a search of `in` has returned to the fastest one, as far as the search may
 * choose it.  The search has done so for its best plan. */
enum dt_status dt_orch_choose_reorder(const struct dt_search_input *in, struct dt_plan *p,
                                      struct dt_error *err, struct dt_orch_reorder *out);

/* Which module bounds the steady interval, by how much, and what keeps it from being faster. */
struct dt_orch_binding {
    int module, stage;               /* the module and the stage of its busiest GPU */
    double sample_s[DT_MAX_MODULES]; /* C_m with the layout and the recomputation of the plan */
    /* Time a slot takes the busiest GPU of each module: its stage x samples of a replica, and of a host the guests there. */
    double interval_s[DT_MAX_MODULES];
    double ideal_s[DT_MAX_MODULES];   /* the same of the mean GPU, with fractional samples */
    int stage_of[DT_MAX_MODULES];     /* stage of each module on that GPU */
    bool with_guests[DT_MAX_MODULES]; /* some guest lies there */
    char why[512];                    /* one sentence for people */
};
enum dt_status dt_orch_plan_binding(const struct dt_search_input *in, const struct dt_plan *p,
                                    struct dt_error *err, struct dt_orch_binding *out);

/* Convex inner problem for fixed TP and DP_lm in real x: returns the minimum of the formula and the
 * x_m. c[m] = C_m(TP_m), tp[m], n_total GPUs; min_x[m] lower bounds from memory.  GSL 1-D
 * minimisation over the steady interval, closed form inside; exact to 1e-7 (relative).  HUGE_VAL when
 * the lower bounds alone exceed n_total. */
double dt_orch_convex_solve(int n_modules, int llm, const double *c, const int *tp, int dp_llm,
                            int microbatch, int64_t global_batch, double n_total,
                            const double *min_x, double *x);

/* Plans for the strategy, best first.  DT_ERR_INFEASIBLE when none fits, with reasons. */
enum dt_status dt_orch_find_plans(enum dt_plan_strategy strategy, const struct dt_search_input *in,
                                  struct dt_error *err, struct dt_search_result *out);
void dt_search_result_free(struct dt_search_result *r);

/* ---- what one change of the job would bring (orchestrate_advice.c) ---- */

enum dt_orch_advice_key {
    DT_ADVICE_STRATEGY,
    DT_ADVICE_ZERO,
    DT_ADVICE_MICROBATCH,
    DT_ADVICE_SCHEDULE,
    DT_ADVICE_RECOMPUTE,
    DT_ADVICE_CP,
    DT_ADVICE_EP,
    DT_ADVICE_TP,
    DT_ADVICE_OFFLOAD,
    DT_ADVICE_GPUS,
    DT_ADVICE_MEMORY,
    DT_ADVICE_N
};
extern const char *const dt_orch_advice_names[DT_ADVICE_N + 1];

struct dt_orch_advice_item {
    enum dt_orch_advice_key key;
    char set[320];      /* KEY=VALUE of the job, several with blanks between them */
    double iteration_s; /* of the best plan with that */
    int gpus;           /* that it uses */
};
struct dt_orch_advice {
    double
        now_s; /* of the best plan, by timeline (by the formula without ranking); 0: no plan fits */
    int now_gpus; /* that it uses */
    int searches; /* that were made */
    int n, n_left_out;
    struct dt_orch_advice_item item[DT_ADVICE_N];
    enum dt_orch_advice_key
        left_out[DT_ADVICE_N]; /* stated, but looking would have taken too long */
};
/* No plan fits (`now` NULL): the least change of each key alone with which one does.  Otherwise what is stated and would
 * make the best plan `now`, for which `layouts` were costed, more than 3 % faster if the search might choose it.  For
 * strategy manual `in` is what strategy disttrain would search with, and that is all that is looked
 * at; NULL: nothing is. */
enum dt_status dt_orch_advise(enum dt_plan_strategy strategy, const struct dt_search_input *in,
                              const struct dt_plan *now, int64_t layouts, struct dt_error *err,
                              struct dt_orch_advice *out);

/* Why a plan is as it is: for each dimension that the search chose in, what it chose and what the others would give. */
enum dt_orch_dimension {
    DT_ORCH_SCHEDULE,
    DT_ORCH_VPP,
    DT_ORCH_MICROBATCH,
    DT_ORCH_RECOMPUTE,
    DT_ORCH_ZERO,
    DT_ORCH_OFFLOAD,
    DT_ORCH_TP,
    DT_ORCH_CP,
    DT_ORCH_EP,
    DT_ORCH_PLACEMENT,
    /* not a dimension */
    DT_ORCH_DIMENSION_N
};
extern const char *const dt_orch_dimension_names[DT_ORCH_DIMENSION_N + 1]; /* ended by NULL */
struct dt_orch_decision {
    enum dt_orch_dimension dimension;
    int module;    /* -1: of the whole plan */
    bool chosen;   /* the first of its dimension and module; the alternatives follow */
    int value;     /* as a number: a degree, a level, an enumerator */
    char text[32]; /* the same in words */
    double
        seconds; /* of the best plan with it, by timeline (by the formula without ranking); 0: there is none */
    /* recompute and zero: what the chosen plan would hold with it in its largest stage of the module */
    double same_bytes;
    int same_stage;
    char why[512]; /* there is none, because */
};
enum { DT_ORCH_DECISIONS_MAX = 16 * DT_MAX_MODULES };
struct dt_orch_decisions {
    /* Where alternatives were faster than what the search had chosen, the fastest became the plan: what that had taken (0: none
     * was), and the last of these. */
    double searched_s;
    char by[96];
    int n;
    struct dt_orch_decision d[DT_ORCH_DECISIONS_MAX];
};
/* Searches again for each alternative, near what that search found.  One that is faster than its best plan becomes that plan,
 * and is explained instead (but of strategy best, whose classes are compared as they are searched). */
enum dt_status dt_orch_decide(enum dt_plan_strategy strategy, const struct dt_search_input *in,
                              struct dt_search_result *found, struct dt_error *err,
                              struct dt_orch_decisions *out);

#endif
