/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * The state of one branch-and-bound search, shared by its files. */
#ifndef DT_CORE_ORCHESTRATE_ORCHESTRATE_SEARCH_H
#define DT_CORE_ORCHESTRATE_ORCHESTRATE_SEARCH_H

#include "core/orchestrate/orchestrate_internal.h"

/* Bounds are compared with this much slack, far above rounding and far below any real difference. */
#define DT_ORCH_SLACK 1e-9

struct dt_orch_cell { /* schedule and chunks, microbatch, the LLM's lane and DP */
    double bound;
    int dp_lm;
    uint8_t pipe, microbatch, lane;
};

struct dt_orch_option { /* one layout of one module */
    int gpus;
    struct dt_orch_choice of;
    double warm, interval;
    bool sure; /* fits whatever LLM is in front of it */
};

struct dt_orch_options {
    struct dt_orch_option *o;
    size_t n, cap;
};

struct dt_orch_front {        /* Pareto-optimal layouts of a module that fit in memory */
    struct dt_orch_options l; /* sorted by GPUs ascending */
    double warm_min, interval_min;
};

struct dt_orch_pool {       /* the best candidates, best first */
    struct dt_orch_cand *c; /* [k] */
    int k, n;
    int per_key;   /* so many at most that differ only around the LLM's layout */
    int sure;      /* so many are kept however slow they are */
    double margin; /* the others are at most this much slower than the best; 0: however slow */
    double limit;  /* none is slower than this */
};

struct dt_search_state {
    struct dt_orch_table *t;
    const double *cap; /* most GPUs per module, or NULL */
    struct dt_orch_pool pool;
    struct dt_search_stats *stats;
    int n_modules, llm;
    int others[DT_MAX_MODULES], n_others, n_gens; /* generators first, then encoders */
    const struct dt_orch_choice *only;            /* no other LLM than this; NULL: any */
    bool lean; /* find the fewest GPUs with total <= limit beside it, not the least total */
    double limit;
    struct dt_orch_options raw;                       /* unsorted layouts of one module */
    size_t beater;                                    /* of them the one that beat another last */
    struct dt_orch_option unfit[DT_ORCH_RECOMPUTE_N]; /* of a lane, dp and depth, by memory alone */
    int n_unfit;
    struct dt_orch_times *times[DT_ORCH_RECOMPUTE_N]; /* of its lane at hand */
    /* the cell at hand */
    const struct dt_orch_cell *c;
    const struct dt_orch_pipe *pipe;
    const struct dt_orch_least *least[DT_MAX_MODULES]; /* of the others */
    double cell_bound, steps;
    double min_gpus; /* one lane of each module, or what the parameters alone need */
    int micro, lane_gpus;
    /* the LLM's least times over recomputation: all of a sample, without what is put off, without twice that */
    double sample_lm, passage_lm, filled_lm;
    int64_t slot;
    int behind[DT_MAX_MODULES]; /* of encoders: microbatches under way behind them */
    bool alone;                 /* generators are asked for whatever is in front of them */
    int room_lm,
        depth_lm; /* then: GPUs of the LLM and the module at hand, and stages of the LLM, at most */
    int deepest_lm;    /* depth of the LLM that may be of use in the cell, at most */
    int gen_pp, pp_lm; /* deepest generator, depth of the LLM */
    struct dt_orch_choice of_lm;
    double base;                 /* warm-up of the LLM */
    double pass;                 /* what a microbatch's passage through it takes beyond that */
    double interval_lm, work_lm; /* of a slot; without what ZeRO exchanges */
    struct dt_orch_front any_depth[DT_MAX_MODULES];  /* generators, whatever gen_pp */
    struct dt_orch_front shallow[DT_MAX_MODULES];    /* of these those with at most gen_pp stages */
    struct dt_orch_front front[DT_MAX_MODULES];      /* around the LLM at hand */
    const struct dt_orch_front *use[DT_MAX_MODULES]; /* what is combined: one of the two above */
    /* the combination at hand */
    const struct dt_orch_option *pick[DT_MAX_MODULES];
    bool all;         /* every combination within the threshold is kept, not only the best */
    double threshold; /* a combination must not take longer than this */
    struct dt_orch_cand best;
    bool found;
    double refused; /* the least score that did not fit as a whole */
    bool careful;   /* so no layout that fits by itself is left out */
};

/* Lower score first, then fewer GPUs. */
static inline bool dt_orch_cand_better(const struct dt_orch_cand *a, const struct dt_orch_cand *b)
{
    return a->score != b->score ? a->score < b->score : a->gpus < b->gpus;
}

/* Behind chunks more may wait for a generator, and where backwards are split its stages put off more: what fits behind
 * an LLM of one stage is asked for once more. */
static inline bool dt_orch_asked_again(const struct dt_search_state *s)
{
    return s->pipe->vpp > 1 || s->pipe->split;
}

/* Does what ZeRO exchanges count in the search?  Where less than level 2 may be chosen, the others are a way out when memory
 * is short, and looking this up for all of them takes longer than the rest; plans that are ranked have it anyway. */
static inline bool dt_orch_counts_exchange(const struct dt_search_state *s, int m)
{
    return s->t->space.of[m].zero[0] >= 2 && !s->t->in->opt.uniform;
}

/* ---- orchestrate_pool.c: the k best ---- */

/* The score that a newcomer must not exceed. */
double dt_orch_pool_threshold(const struct dt_orch_pool *p);
/* The same for one with the key of `c`: its plan-wide choices and its LLM's lane, DP and PP. */
double dt_orch_pool_key_threshold(const struct dt_orch_pool *p, const struct dt_orch_cand *c,
                                  int llm);
void dt_orch_pool_add(struct dt_orch_pool *p, const struct dt_orch_cand *c, int llm);

/* ---- orchestrate_search.c ---- */

/* For the modules of the table; the rest zero. */
void dt_orch_search_init(struct dt_search_state *s, struct dt_orch_table *t);

/* ---- orchestrate_cells.c ---- */

/* All cells of the schedule with a bound of each, the least first; false when out of memory. */
bool dt_orch_cells_list(struct dt_search_state *s, enum dt_pipe_schedule schedule,
                        struct dt_orch_cell **out, size_t *n);
void dt_orch_cell_set(struct dt_search_state *s, const struct dt_orch_cell *c);
/* No combination with an LLM of this warm-up, passage and interval that leaves so many GPUs is faster by the formula. */
double dt_orch_cell_bound(const struct dt_search_state *s, double gpus, double base, double pass,
                          double interval);
/* The LLM's warm-up at any depth, at least. */
double dt_orch_cell_least_base(const struct dt_search_state *s);
/* The convex optimum of the cell and the x_m that it takes. */
double dt_orch_cell_convex(struct dt_search_state *s, double *x);
/* What no timeline of the cell with a pipeline of this depth, whose slowest stage takes `interval` a slot, undercuts
 * for samples that are all the mean one. */
double dt_orch_cell_floor(const struct dt_search_state *s, int pp, double interval);
/* Deepest LLM pipeline that leaves a lane to every other module. */
int dt_orch_cell_depth_max(const struct dt_search_state *s);
/* Least GPUs of the others, and least warm-up: a replica sees at least one sample of a slot. */
int dt_orch_cell_least_gpus(const struct dt_search_state *s);
double dt_orch_cell_least_warm(const struct dt_search_state *s);
static inline int dt_orch_module_cap(const struct dt_search_state *s, int m, int gpus)
{
    return s->cap && s->cap[m] < gpus ? (int)s->cap[m] : gpus;
}

/* ---- orchestrate_front.c ---- */

struct dt_orch_limits { /* what a layout may take to be of use */
    int pp_max, gpus_max;
    double interval_max; /* seconds per slot */
    double interval_min; /* no combination is faster than this: being faster is worth nothing */
    double base, pass;   /* warm-up of all other modules, and passage of the LLM, at least */
};
/* The Pareto-optimal layouts of module m within the limits; false when there is none. */
bool dt_orch_front_build(struct dt_search_state *s, int m, const struct dt_orch_limits *lim,
                         struct dt_orch_front *f);
/* Those of `all` with at most pp_max stages. */
bool dt_orch_front_shallow(struct dt_search_state *s, const struct dt_orch_front *all, int pp_max,
                           struct dt_orch_front *f);
/* Best combination of all fronts in `left` GPUs beside the LLM's `used`; into s->best, s->found. */
void dt_orch_front_combine(struct dt_search_state *s, int left, int used);

#endif
