/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * What the planner's files share: cost tables, memory look-ups, the branch-and-bound search. */
#ifndef DT_CORE_ORCHESTRATE_ORCHESTRATE_INTERNAL_H
#define DT_CORE_ORCHESTRATE_ORCHESTRATE_INTERNAL_H

#include "base/hashtable.h"
#include "core/cost/memory.h"
#include "core/orchestrate/orchestrate.h"

enum { DT_SEARCH_VPP_MAX = 16 };

/* ---- the space: what the search may choose from (orchestrate_space.c) ---- */

enum {
    DT_ORCH_LANES_MAX = 128, /* a byte names one */
    DT_ORCH_MICROBATCHES_MAX = 32,
    DT_ORCH_PIPES_MAX = DT_SCHED_N + DT_SEARCH_VPP_MAX,
    DT_ORCH_RECOMPUTE_N = DT_RECOMPUTE_FULL + 1,
    DT_ORCH_STATES_MAX = 2 * (DT_ZERO_MAX + 1)
};

struct dt_orch_lane { /* how wide a lane of a module is */
    int tp, cp, ep;
};
static inline int dt_orch_lane_gpus(const struct dt_orch_lane *l)
{
    return l->tp * l->cp;
}
struct dt_orch_pipe { /* a schedule with the LLM's number of chunks per stage */
    enum dt_pipe_schedule schedule;
    int vpp;
    bool split; /* backwards are split */
};
struct dt_orch_modes { /* of one module */
    int n_lanes, n_recompute, n_zero;
    struct dt_orch_lane lane[DT_ORCH_LANES_MAX];
    enum dt_block_recompute recompute[DT_ORCH_RECOMPUTE_N];
    /* Levels of ZeRO, the one to be preferred first; then those with masters and moments on the host, if they may be there. */
    int zero[DT_ORCH_STATES_MAX];
    bool on_host[DT_ORCH_STATES_MAX];
    unsigned offloads; /* bit o: enum dt_plan_offload o */
};
struct dt_orch_space {
    int n_microbatches, n_pipes;
    bool whole; /* there is a pipe whose backwards are not split */
    int microbatch[DT_ORCH_MICROBATCHES_MAX];
    struct dt_orch_pipe pipe[DT_ORCH_PIPES_MAX];
    struct dt_orch_modes of[DT_MAX_MODULES];
};

/* ---- how long to look (orchestrate_effort.c) ---- */

struct dt_orch_effort {
    bool coarse; /* of chunks and microbatches only powers of two */
    bool
        wide; /* where the space is small, once more with plans that are far slower by the formula */
    int pool;       /* candidates of a schedule whose timelines may be asked for */
    double margin;  /* how much slower than the best of them by the formula one may be */
    int64_t budget; /* ops of programs that ranking may time */
    /* Programs of more ops are ranked by a share of their replicas (dt_orch_plan_share).  At first sight a share of so
     * many samples is enough, if it is no longer than that; what comes so close to the best is looked at again, with
     * guests, whose programs take longer to time, less. */
    double rank_ops, first_samples, again, again_guests;
    double
        most_ops; /* programs of more, shares of replicas included, are not timed once another plan is */
    int hosts;            /* layouts of the LLM of a schedule that guests are tried on */
    int64_t guest_budget; /* of the budget */
    int polish; /* times the budget that the neighbours of the best plans may take beyond it, */
    double together; /* and with all that was timed before, at most; 0: no matter */
    /* They may take longer where the layouts were found in no time: as many budgets as this together with all that was timed
     * before and with the layouts costed; 0: they may not. */
    double work;
    /* ops of a program by all of which the reordering is chosen (of a longer one by a share), and of all of them together */
    double reorder_program, reorder_ops;
    double close; /* to the best: plans that get their own way of reordering, too */
};
const struct dt_orch_effort *dt_orch_effort_of(const struct dt_search_input *in);
/* The budget of ranking: as stated, or the effort's. */
int64_t dt_orch_budget(const struct dt_search_input *in);
/* Where the neighbours of the best plans (orchestrate_polish.c) end that begin after so many ops, so many layouts having been
 * costed. */
int64_t dt_orch_polish_end(const struct dt_search_input *in, int64_t ops, int64_t layouts);

/* ---- tables ---- */

/* Sizes of one sample in a module over the first global batch. */
struct dt_orch_work_stats {
    double n, tokens, tokens_sq;             /* means */
    double tokens_sd;                        /* standard deviation of tokens */
    double n_max, tokens_max, tokens_sq_max; /* largest sample */
    int64_t longest;                         /* longest sequence or image of any sample */
    double samples;                          /* of the set that batches are drawn from */
};

struct dt_orch_stage_entry { /* the best split of a module over (pp, vpp) */
    double max_s;            /* slowest stage: time of one sample through all its chunks */
    uint16_t *split;         /* [pp*vpp + 1]; NULL = not yet computed */
};

/* Times of one module in one mode: a lane, recomputation, a microbatch, whole or split backwards. */
struct dt_orch_times {
    double sample_s; /* C_m: one sample through the whole module, forward and backward */
    double later_s;  /* of it, what a split backward puts off */
    double *block_s; /* [n_blocks]; NULL = not yet computed */
    struct dt_orch_stage_entry *stage[DT_SEARCH_VPP_MAX]; /* [vpp - 1][pp - 1] */
};

/* The least over all modes of a module, for whole and split backwards. */
struct dt_orch_least {
    double sample_s; /* C_m */
    double gpu_s;    /* GPUs of a lane x C_m */
    int lane_gpus;
};

/* Rejections, per constraint, for the infeasible message. */
struct dt_orch_rejects {
    int64_t memory; /* answers: one that was forgotten is given, and counted, once more */
    int64_t gpus, heads, nodes;
    int64_t assigned; /* plans that fit by estimate but not with the microbatches assigned */
    int64_t hosts;    /* plans whose hosts have too little memory for what is offloaded, instead */
    double hosts_least_bytes; /* of a node */
    double hosts_floor_bytes; /* what every plan has there: no plan was looked at; 0: that fits */
    double memory_least_over_bytes; /* the closest miss */
    char memory_least[160];
    int64_t gpus_least; /* fewest GPUs that any rejected layout needed */
};

struct dt_orch_mem_entry {
    uint64_t key[2];
    /* the most replicas seen with which it does not fit, and the fewest with which it does (0: none) */
    uint32_t over_dp, fits_dp;
};

struct dt_orch_exchange { /* of a module in a layout */
    uint64_t key[2];
    double seconds;
};

struct dt_orch_table {
    const struct dt_search_input *in;
    struct dt_arena arena;
    struct dt_orch_space space;
    struct dt_plan scratch; /* template of every plan; layouts are set before a memory question */
    struct dt_orch_work_stats work[DT_MAX_MODULES];
    /* [lane][recompute][microbatch (LLM alone)][split], dt_orch_times_of fills them */
    struct dt_orch_times *times[DT_MAX_MODULES];
    struct dt_orch_least least[DT_MAX_MODULES][2]; /* [split]; not of the LLM */
    int gpus;
    double static_bytes[DT_MAX_MODULES], grad_bytes[DT_MAX_MODULES],
        optimizer_bytes[DT_MAX_MODULES];
    bool shares;   /* the plans' windows and groups were chosen (orchestrate_shares.c) */
    bool uneven;   /* nothing fits otherwise: splits that do are looked for all over the space */
    double sigmas; /* spread that the largest microbatch is taken to have */
    double *load[DT_MAX_MODULES]; /* [batch], orchestrate_group.c: a sample's FLOPs to their mean */
    int *next_even; /* [gpus + 1]: the least number above each one that divides the batch */
    /* [n_near] plans that descents came by, by timelines of all replicas, best first */
    struct dt_plan *near;
    int n_near;
    struct dt_memory_memo *acts;
    struct dt_hash_table mem;      /* of struct dt_orch_mem_entry */
    struct dt_hash_table regions;  /* orchestrate_memory.c: what follows from other answers */
    struct dt_arena region_arena;  /* what its entries point to */
    struct dt_hash_table exchange; /* of struct dt_orch_exchange */
    struct dt_hash_table refused;  /* orchestrate_plans.c: candidates that memory does not hold */
    struct dt_orch_rejects rejects;
    int64_t simulated, ops, untimed; /* as in struct dt_search_stats */
    bool nomem;                      /* sticky: an allocation inside the search failed */
};

struct dt_orch_choice {            /* of one module */
    uint8_t lane, recompute, zero; /* indices into its modes */
    int16_t pp;
    int dp;
};
struct dt_orch_cand { /* a realisable layout vector */
    double score, total_s, lower_bound_s;
    int gpus;
    uint8_t pipe, microbatch; /* indices into the space */
    struct dt_orch_choice of[DT_MAX_MODULES];
};

/* orchestrate_space.c */
/* Fills t->space; counts what is not legal. */
void dt_orch_space_fill(struct dt_orch_table *t);
/* Where in the space a plan's module, or its pipeline, lies; -1: elsewhere. */
int dt_orch_space_lane(const struct dt_orch_table *t, int m, const struct dt_plan_layout *l);
int dt_orch_space_recompute(const struct dt_orch_table *t, int m, enum dt_block_recompute r);
int dt_orch_space_microbatch(const struct dt_orch_table *t, int microbatch);
/* Its level of ZeRO with its masters and moments where they are. */
int dt_orch_space_zero(const struct dt_orch_table *t, int m, const struct dt_plan_module *mp);
/* What a choice makes of a module of a plan, but for the split; `vpp` is the LLM's. */
void dt_orch_choice_apply(const struct dt_orch_table *t, int m, const struct dt_orch_choice *c,
                          int vpp, struct dt_plan *p);
/* What may be offloaded of module m: the set that is open, or what is stated. */
static inline unsigned dt_orch_offloads(const struct dt_search_input *in, int m)
{
    return in->opt.offload[m] ? in->opt.offload[m] : 1U << in->offload[m];
}
/* The first way of holding its states, or (`on_host`) the first with masters and moments on the host; -1: there is none. */
int dt_orch_state_of(const struct dt_orch_modes *o, bool on_host);
/* Level number z of the module's, with masters and moments where they are then; parameters stay, or `leave` between phases. */
void dt_orch_states_apply(const struct dt_orch_modes *o, int z, bool leave,
                          struct dt_plan_module *mp);

/* orchestrate_table.c */
enum dt_status dt_orch_table_new(const struct dt_search_input *in, struct dt_error *err,
                                 struct dt_orch_table **out);
void dt_orch_table_free(struct dt_orch_table *t);
void dt_orch_work_stats(const struct dt_search_input *in, int module,
                        struct dt_orch_work_stats *out);
/* Times of single blocks for one sample under a plan's freezing, schedule and microbatch, and the
 * given shard. */
struct dt_orch_block_timer {
    const struct dt_search_input *in;
    const struct dt_plan *p;
    int module;
    struct dt_block_shard shard;
    struct dt_work work; /* of k samples */
    double k;
    bool split; /* backwards are split */
    unsigned char trainable[UINT16_MAX];
};
/* Work of k mean samples. */
void dt_orch_mean_work(const struct dt_orch_work_stats *s, double k, struct dt_work *out);
void dt_orch_block_timer_init(struct dt_orch_block_timer *b, const struct dt_search_input *in,
                              const struct dt_plan *p, int module,
                              const struct dt_block_shard *shard,
                              const struct dt_orch_work_stats *w);
/* Forward and backward; *later_s (may be NULL): of it, what a split backward puts off. */
double dt_orch_block_timer_s(const struct dt_orch_block_timer *b, int block, double *later_s);
/* Times of module m in a mode, `microbatch` an index into the space (the LLM's; 0 for others);
 * NULL when out of memory (t->nomem). */
struct dt_orch_times *dt_orch_times_of(struct dt_orch_table *t, int m, int lane, int recompute,
                                       int microbatch, bool split);
/* Slowest stage in that mode; NULL when out of memory (t->nomem). */
const struct dt_orch_stage_entry *dt_orch_stage_of(struct dt_orch_table *t, int m,
                                                   struct dt_orch_times *times, int pp, int vpp);
/* Samples of a slot that the fullest of dp replicas takes. */
static inline int64_t dt_orch_samples_per_replica(int64_t slot, int dp)
{
    return (slot + dp - 1) / dp;
}

/* orchestrate_memory.c */
/* Gives module m of t->scratch this layout, with the best split; false when out of memory. */
bool dt_orch_table_set(struct dt_orch_table *t, int m, const struct dt_orch_choice *c,
                       int microbatch, const struct dt_orch_pipe *pipe);
/* Does every stage of a module fit.  What lies around it counts, too: the LLM's pipeline and replicas, and the depth of
 * the deepest generator. */
struct dt_orch_question {
    int m;
    struct dt_orch_choice of;
    int pipe, microbatch; /* indices into the space */
    int dp_lm, pp_lm, gen_pp;
    int behind; /* of an encoder: dt_orch_behind() */
    bool alone; /* of a generator: as behind an LLM of one stage, of one chunk */
};
/* Microbatches under way behind a module, as the schedules of those modules have it. */
int dt_orch_behind(struct dt_orch_table *t, const struct dt_orch_question *q);
bool dt_orch_table_fits(struct dt_orch_table *t, const struct dt_orch_question *q);
/* Of one that does not: is it known that it does not with any more recomputation or ZeRO, either? */
bool dt_orch_table_hopeless(struct dt_orch_table *t, const struct dt_orch_question *q);
/* What that question does not know of a whole candidate: what waits for generators behind an interleaved LLM or beside a
 * deeper one, and what stages behind deep encoders put off where backwards are split. */
bool dt_orch_cand_fits(struct dt_orch_table *t, const struct dt_orch_cand *c);
void dt_orch_table_static_bytes(struct dt_orch_table *t,
                                int m); /* fills the sums that the next one uses */
/* Fewest GPUs on which the parameters of module m can lie at all in any mode (real number), of dp replicas at most;
 * `lane` the GPUs of the narrowest lane. */
double dt_orch_table_min_gpus(const struct dt_orch_table *t, int m, int lane, int dp);
/* Work of the largest of many microbatches of `samples` samples: mean + sigmas, at most all of the
 * largest. */
void dt_orch_largest_work(const struct dt_orch_work_stats *s, double samples, double sigmas,
                          struct dt_work *out);
/* The same of module m of a plan, whose replicas may share items in windows. */
void dt_orch_expected_work(const struct dt_orch_work_stats *s, const struct dt_plan *p, int llm,
                           int m, double sigmas, struct dt_work *out);
/* Count a stage that does not fit and keep the closest miss. */
void dt_orch_note_reject(struct dt_orch_table *t, const struct dt_plan *p, int m, int stage,
                         const struct dt_memory *mem);
/* Forget what was asked (after a change of sigmas). */
void dt_orch_table_forget(struct dt_orch_table *t);

/* orchestrate_exchange.c: seconds that a slot takes the busiest lane of module m for what ZeRO 2 and 3 exchange at every
 * microbatch, one collective after the other; 0 with less ZeRO.  As many slots of that are what dt_sched_collectives_s() says. */
double dt_orch_plan_exchange_s(const struct dt_search_input *in, const struct dt_plan *p, int m);
/* The same of a choice beside an LLM of dp_lm replicas; pipe and microbatch are indices into the space.  Remembered;
 * 0 when out of memory (t->nomem). */
double dt_orch_choice_exchange_s(struct dt_orch_table *t, int m, const struct dt_orch_choice *c,
                                 int pipe, int microbatch, int dp_lm);

/* orchestrate_search.c: of each schedule the k best candidates, beyond the first `sure` of them none that is slower
 * than the best by more than `margin` (0: however slow); all of them together, best first, in out[DT_SCHED_N * k].
 * cap[m] (may be NULL) limits each module's GPUs.  Schedules do not compete here, as the formula is off by a few per
 * cent, and not alike for all of them. */
struct dt_orch_keep {
    int k, sure;
    double margin;
    int per_key; /* candidates that have the cell and the LLM's depth and ZeRO in common */
};
enum { DT_ORCH_PER_KEY = 2 }; /* more: every combination around an LLM counts, not only the best */
enum dt_status dt_orch_search(struct dt_orch_table *t, const double *cap,
                              const struct dt_orch_keep *keep, struct dt_error *err,
                              struct dt_orch_cand *out, int *n, struct dt_search_stats *stats);
/* orchestrate_quick.c: a few good candidates of every pipe, the best k of them; maybe none where there are some. */
enum dt_status dt_orch_search_quick(struct dt_orch_table *t, int k, struct dt_error *err,
                                    struct dt_orch_cand *out, int *n,
                                    struct dt_search_stats *stats);
/* orchestrate_own.c: chooses the layout of module m beside the candidate's LLM, which takes `interval` a slot, through
 * which a slot passes fastest on at most `left` GPUs; gen_pp: depth of the deepest generator.  The GPUs that it takes; 0:
 * none fits. */
int dt_orch_choose_own(struct dt_orch_table *t, struct dt_orch_cand *c, int m, int left,
                       double interval, int gen_pp);
/* The candidate with c's LLM whose others take the fewest GPUs with a score of at most `limit`. */
enum dt_status dt_orch_search_lean(struct dt_orch_table *t, const struct dt_orch_cand *c,
                                   double limit, struct dt_error *err, struct dt_orch_cand *out);

/* The k best around c's LLM that take at most `limit`, best first. */
enum dt_status dt_orch_search_around(struct dt_orch_table *t, const struct dt_orch_cand *c,
                                     const double *cap, double limit, int k, struct dt_error *err,
                                     struct dt_orch_cand *out, int *n);

/* orchestrate.c: dt_orch_formula with the sample statistics at hand */
void dt_orch_formula_stats(const struct dt_search_input *in, const struct dt_plan *p,
                           const struct dt_orch_work_stats *stats, struct dt_plan_prediction *out);

/* orchestrate_bound.c: seconds that no timeline of a plan of this table undercuts, for samples that
 * are all the mean one (0 when the table does not cover the plan). */
double dt_orch_plan_least_s(struct dt_orch_table *t, const struct dt_plan *p);
/* The table's times of a module of the plan; NULL when the table does not cover it. */
const struct dt_orch_times *dt_orch_plan_times(struct dt_orch_table *t, const struct dt_plan *p,
                                               int m);
/* Ops of the plan's program, near enough. */
double dt_orch_plan_ops(const struct dt_plan *p, int llm);
/* If p's program has more than ops_max ops and falls into independent broker groups (the gcd of all
 * DP): the plan of some of the groups and their share of the global batch, not yet placed. */
bool dt_orch_plan_share(const struct dt_plan *p, int llm, double ops_max, struct dt_plan *out);
/* orchestrate_group.c */
/* Gives the lanes of `part`, a share of p, their GPUs: those that they have in p, or with guests the first ones, as guests of one group
 * lie on GPUs of others. */
enum dt_status dt_orch_place_share(const struct dt_plan *p, const struct dt_cluster *cluster,
                                   struct dt_error *err, struct dt_plan *part);
/* Where samples are not dealt to broker groups by their cost, gives `part`, a share of p, what the groups
 * have that take longest, as these are what the iteration waits for. */
void dt_orch_slowest_groups(struct dt_orch_table *t, const struct dt_plan *p, struct dt_plan *part);

/* orchestrate_rank.c */
/* Warm-up of the LLM for one microbatch taking c seconds on one lane, `later` of them put off: the
 * pipeline fills once; interleaving divides the fill beyond the first stage by vpp; what is put off fills the gaps of
 * the others, before and after (core/pipeline/zb_h1.c), as far as n microbatches go.  That is the LLM's own view.
 * Seen from the modules around it a microbatch still takes all of c - later to pass through. */
static inline double dt_orch_llm_warmup_s(double c, double later, int64_t n, int pp, int vpp)
{
    double gaps = (pp - 1) + (double)((n < pp ? n : pp) - 1);

    return c * (vpp + pp - 1) / ((double)pp * vpp) - later / pp * gaps;
}
/* What a microbatch's passage through the LLM takes beyond that warm-up. */
static inline double dt_orch_llm_pass_s(double c, double later, double warmup)
{
    return c - later > warmup ? c - later - warmup : 0;
}
/* Staged total: `warm` of all modules (the LLM's as above), intervals of the LLM and of the slowest
 * other module; `pass` is what the LLM's passage takes beyond its warm-up (0 for vpp = 1). */
static inline double dt_orch_staged_s(double warm, double steps, double llm, double others,
                                      double pass)
{
    double a = steps * llm, b = pass + steps * others;

    return warm + (a > b ? a : b);
}
/* The layouts and policies of a candidate as a plan, not yet placed. */
enum dt_status dt_orch_cand_layouts(struct dt_orch_table *t, const struct dt_orch_cand *c,
                                    enum dt_plan_strategy strategy, struct dt_error *err,
                                    struct dt_plan *out);
enum dt_status dt_orch_cand_plan(struct dt_orch_table *t, const struct dt_orch_cand *c,
                                 enum dt_plan_strategy strategy, struct dt_error *err,
                                 struct dt_plan *out);
/* The same with guests (bit m: module m) on the LLM's GPUs, and memory for what is to be expected.  DT_ERR_INFEASIBLE or
 * DT_ERR_INPUT: there is no such plan; *err need not say why. */
enum dt_status dt_orch_cand_plan_with(struct dt_orch_table *t, const struct dt_orch_cand *c,
                                      unsigned guests, enum dt_plan_strategy strategy,
                                      struct dt_error *err, struct dt_plan *out);
/* The same with the fastest splits alone unless `uneven`; *even: it has them. */
enum dt_status dt_orch_cand_plan_split(struct dt_orch_table *t, const struct dt_orch_cand *c,
                                       unsigned guests, enum dt_plan_strategy strategy, bool uneven,
                                       struct dt_error *err, struct dt_plan *out, bool *even);
/* What tells a candidate with these guests from others: no two share both words, or as good as none. */
void dt_orch_cand_key(const struct dt_orch_cand *c, unsigned guests, int n_modules,
                      uint64_t key[2]);
/* orchestrate_split.c: gives module m of a plan the fastest split with which it fits, for what is to be expected. */
enum dt_orch_fit {
    DT_ORCH_FIT_LEFT, /* nothing is changed: it fits, or has no stages that could be unlike */
    DT_ORCH_FIT_CHANGED,
    DT_ORCH_FIT_NONE /* no split fits, and nothing is changed */
};
enum dt_orch_fit dt_orch_split_module(struct dt_orch_table *t, struct dt_plan *p, int m,
                                      const struct dt_orch_times *times);
/* The same without a look at whether it fits as it is, however few blocks a stage has, and whatever lies beside which stage;
 * exact for stages of one chunk.  False: no split fits, and nothing is changed. */
bool dt_orch_split_any(struct dt_orch_table *t, struct dt_plan *p, int m,
                       const struct dt_orch_times *times);
/* False: whatever the splits, memory does not hold what is to be expected on the LLM's first GPU, with the guests there. */
bool dt_orch_split_may_fit(struct dt_orch_table *t, struct dt_plan *p);
/* Gives modules of the candidate's plan that do not fit, for what is to be expected, the fastest splits with
 * which they do; false where there is none, or nothing is to be changed. */
bool dt_orch_split_to_fit(struct dt_orch_table *t, const struct dt_orch_cand *c, struct dt_plan *p);
/* The one of n plans that is p, predictions and reordering aside; NULL: there is none. */
struct dt_plan *dt_orch_plan_listed(struct dt_plan *plans, int n, const struct dt_plan *p);
/* Is there such a one that has the same splits, too? */
bool dt_orch_plan_listed_split(const struct dt_plan *plans, int n, const struct dt_plan *p);
/* Of one kind: schedule, guests, whether these have several stages, microbatch and the LLM's TP are the same. */
bool dt_orch_plans_alike(const struct dt_plan *p, const struct dt_plan *q, int llm);
/* Memory against the microbatches to be expected, where none are assigned. */
enum dt_status dt_orch_check_expected(struct dt_orch_table *t, struct dt_plan *p,
                                      struct dt_error *err);
/* Do all nodes together have the memory for what the plan offloads?  Where they do not, no other split of its blocks helps. */
bool dt_orch_hosts_may_hold(struct dt_orch_table *t, const struct dt_plan *p);
/* What all hosts together have of any plan of the table's space: masters and moments of every trained parameter once, where the
 * job offloads them; without experts. */
double dt_orch_hosts_floor_bytes(const struct dt_orch_table *t);
/* Is even that too much?  Then the table's rejects say so. */
bool dt_orch_hosts_hold_none(struct dt_orch_table *t);
/* Counts why it does not fit: what is offloaded is too much for a node's host, or the microbatches are too large. */
void dt_orch_note_unfit(struct dt_orch_table *t, const struct dt_plan *p);
/* Fill predictions of n plans (timeline too when asked for), drop those whose assigned microbatches
 * do not fit and, if `sort`, order them: shortest timeline first, of those within 0.1 % of it the
 * one with the fewest GPUs.  Sorting needs no timeline of a plan that cannot be the shortest: those
 * come last, by staged_s, with timeline_s 0. */
enum dt_status dt_orch_rank(struct dt_orch_table *t, struct dt_plan *plans, int *n, bool sort,
                            struct dt_error *err);
/* Predictions of one plan with a timeline of the replicas that take so many samples, or (0) as close as ranking looks;
 * *closer: the latter would be of more.  A plan that takes longer than limit_s may be given up, and is then said to take
 * HUGE_VAL; of one that takes longer than rough_s the turns of guests are taken by one rule alone.  DT_ERR_INFEASIBLE where
 * what was assigned does not fit. */
enum dt_status dt_orch_time_plan(struct dt_orch_table *t, struct dt_plan *p, double samples,
                                 double limit_s, double rough_s, struct dt_error *err,
                                 bool *closer);
/* Ops of the program that this times. */
double dt_orch_look_ops(const struct dt_orch_table *t, const struct dt_plan *p, double samples);
/* Does memory hold all of its microbatches, as those of the batch that begins there are assigned?  DT_ERR_INFEASIBLE: it
 * does not. */
enum dt_status dt_orch_check_whole(const struct dt_search_input *in, const struct dt_plan *p,
                                   int64_t first_sample, struct dt_error *err);
/* How many batches there are with other samples than those before them, up to `most`. */
int dt_orch_distinct_batches(const struct dt_search_input *in, int most);
/* The timeline of the program of `run`, which stands for plan p or is p; memory is checked for p.  HUGE_VAL: a glance
 * that was given up, as it takes longer than limit_s for certain; beyond rough_s a glance may be of more than it takes. */
enum dt_orch_look {
    DT_ORCH_EXACT,  /* dt_sched_makespan() */
    DT_ORCH_GLANCE, /* dt_sched_glance() */
};
enum dt_status dt_orch_run_timeline_s(const struct dt_search_input *in, const struct dt_plan *p,
                                      const struct dt_plan *run, enum dt_orch_look look,
                                      double limit_s, double rough_s, int64_t first_sample,
                                      struct dt_error *err, double *seconds, double *mem_bytes_max);
/* orchestrate_timed.c: the same, if a search before this one has run it; for those after this one */
struct dt_orch_timeline {
    double seconds;
    int64_t first_ns; /* of a glance: by the first rule of guests' turns; 0: there are none */
    double mem_bytes_max;
    bool rough; /* no other rule was tried */
};
bool dt_orch_timed_find(const struct dt_search_input *in, const struct dt_plan *p,
                        const struct dt_plan *run, enum dt_orch_look look, int64_t rough_ns,
                        int64_t first_sample, double *seconds, double *mem_bytes_max);
void dt_orch_timed_add(const struct dt_search_input *in, const struct dt_plan *p,
                       const struct dt_plan *run, enum dt_orch_look look, int64_t first_sample,
                       const struct dt_orch_timeline *line);
/* By timeline as above; those without one, by staged_s, last. */
enum dt_status dt_orch_sort(struct dt_plan *plans, int n, struct dt_error *err);
/* orchestrate_plans.c */
/* dt_orch_search, then plans, then dt_orch_rank, then the leaner variant of the winner. */
enum dt_status dt_search_plans(struct dt_orch_table *t, const double *cap,
                               enum dt_plan_strategy strategy, struct dt_error *err,
                               struct dt_search_result *out);
/* orchestrate_with.c: adds plans with guests on the LLM's GPUs to those of `out`, which may have none; best first.  Nothing
 * where no module may be a guest, or where there are plans and they are not ranked. */
enum dt_status dt_orch_place_guests(struct dt_orch_table *t, enum dt_plan_strategy strategy,
                                    struct dt_error *err, struct dt_search_result *out);
/* orchestrate_polish.c: adds to the plans of `out` the best, by timeline, that changes of one thing at a time lead to; keeps
 * as many as were asked for. */
enum dt_status dt_orch_polish(struct dt_orch_table *t, const double *cap,
                              enum dt_plan_strategy strategy, struct dt_error *err,
                              struct dt_search_result *out);
/* orchestrate_shares.c */
/* Choice number k of the ranks with the same parameters that shard together: half or twice as many as now, or those of a node.
 * With fewer, gradients cross nodes for a shard alone and rings are shorter, and each rank has more to step.  0: all of them; -1:
 * there is no such choice, or it cannot help. */
enum { DT_ORCH_GROUPS = 3 };
int dt_orch_group_of(const struct dt_orch_table *t, const struct dt_plan_module *mp, int k);
/* Adds the plans that single steps of zero_group and of windows lead to from the best of two kinds, where they are faster as
 * ranking looks at them. */
enum dt_status dt_orch_choose_shares(struct dt_orch_table *t, struct dt_error *err,
                                     struct dt_search_result *out);
/* The best plan, whose way of reordering is chosen (r->reorder): the same steps in each way that comes near it, as what replicas
 * share may be worth nothing in the way that plans were ranked in.  A plan that a step made faster has its way chosen anew. */
enum dt_status dt_orch_choose_shares_again(struct dt_orch_table *t, struct dt_error *err,
                                           struct dt_search_result *r);
/* orchestrate.c: one search of everything that is open, by the strategy's planner. */
enum dt_status dt_orch_find(enum dt_plan_strategy strategy, const struct dt_search_input *in,
                            struct dt_error *err, struct dt_search_result *out);
/* orchestrate_offload.c: where something may be offloaded or not, a search without and one with, and what is best of both. */
enum dt_status dt_orch_find_offloading(enum dt_plan_strategy strategy,
                                       const struct dt_search_input *in, struct dt_error *err,
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
#define DT_ORCH_PLANNER(id, name, planner, help) extern const struct dt_orch_planner planner;
DT_STRATEGIES(DT_ORCH_PLANNER)
#undef DT_ORCH_PLANNER
/* strategy_manual.c: the plan t->in->manual, placed, checked and costed. */
enum dt_status dt_orch_plan_stated(struct dt_orch_table *t, struct dt_error *err,
                                   struct dt_search_result *out);

/* orchestrate_convex.c: the convex problem with its numbers at hand: k[m] = GPU-seconds of a slot, `steps` slots
 * after the first, base_s = the LLM's warm-up. */
double dt_orch_convex_solve_k(int n_modules, int llm, const double *k, double steps, double n_total,
                              const double *min_x, double base_s, double *x);

/* ---- orchestrate_reorder.c ---- */

/* DT_REORDER_*. */
int dt_orch_way_of(const struct dt_plan_policy *y);
void dt_orch_set_way(struct dt_plan_policy *y, int way);
/* The best plan in the way of reordering that suits it, where those that come near it have theirs. */
enum dt_status dt_orch_reorder_best(struct dt_orch_table *t, struct dt_search_result *r,
                                    struct dt_error *err);

#endif
