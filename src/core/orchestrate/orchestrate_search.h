/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * The state of one branch-and-bound search, shared by its two files. */
#ifndef DT_CORE_ORCHESTRATE_ORCHESTRATE_SEARCH_H
#define DT_CORE_ORCHESTRATE_ORCHESTRATE_SEARCH_H

#include "core/orchestrate/orchestrate_internal.h"

struct dt_orch_cell { /* all TP degrees, DP_lm and the LLM's vpp */
    double bound;
    int dp_lm;
    uint8_t vpp, tpi[DT_MAX_MODULES];
};

struct dt_orch_option { /* one layout of one module */
    int gpus, dp, pp;
    double warm, interval;
};

struct dt_orch_options {
    struct dt_orch_option *o;
    size_t n, cap;
};

struct dt_orch_front {        /* Pareto-optimal layouts of a module that fit in memory */
    struct dt_orch_options l; /* sorted by GPUs ascending */
    double warm_min, interval_min;
};

struct dt_search_state {
    struct dt_orch_table *t;
    const double *cap;         /* most GPUs per module, or NULL */
    struct dt_orch_cand *pool; /* [k], unordered */
    int k, n_pool;
    struct dt_search_stats *stats;
    int n_modules, llm;
    int others[DT_MAX_MODULES], n_others, n_gens; /* generators first, then encoders */
    bool lean;                                    /* find the fewest GPUs with total <= limit */
    double limit;
    struct dt_orch_options raw; /* unsorted layouts of one module */
    /* the cell at hand */
    const struct dt_orch_cell *c;
    double cell_bound, steps;
    double min_gpus; /* one lane of each module, or what the parameters alone need */
    double sample_s[DT_MAX_MODULES];
    int64_t slot;
    int gen_pp, pp_lm; /* deepest generator, depth of the LLM */
    double base;       /* warm-up of the LLM */
    double pass;       /* what a microbatch's passage through it takes beyond that */
    double interval_lm;
    struct dt_orch_front front[DT_MAX_MODULES];
    struct dt_orch_front any_depth[DT_MAX_MODULES]; /* generators, whatever gen_pp */
    /* the combination at hand */
    const struct dt_orch_option *pick[DT_MAX_MODULES];
    double threshold; /* a combination must not take longer than this */
    struct dt_orch_cand best;
    bool found;
};

/* Lower score first, then fewer GPUs. */
static inline bool dt_orch_cand_better(const struct dt_orch_cand *a, const struct dt_orch_cand *b)
{
    return a->score != b->score ? a->score < b->score : a->gpus < b->gpus;
}
struct dt_orch_limits { /* what a layout may take to be of use */
    int pp_max, gpus_max;
    double interval_max; /* seconds per slot */
    double interval_min; /* no combination is faster than this: being faster is worth nothing */
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
