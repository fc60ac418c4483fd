/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Assignment: which samples form which microbatch of which replica of which module, in which order
 * (DESIGN section 4a), with intra- and inter-microbatch reordering. */
#ifndef DT_CORE_SCHEDULE_ASSIGN_H
#define DT_CORE_SCHEDULE_ASSIGN_H

#include "core/cost/cost.h"
#include "core/model/plan.h"
#include "core/model/samples.h"

struct dt_microbatch {
    uint32_t first,
        n; /* samples[first .. first+n) of the module's list; n may be 0 (no work in this slot) */
    /* of a window: its first one; two of an encoder with the same slot: see dt_assignment_deferred */
    uint32_t slot;
};
struct dt_assignment_module {
    int n_replicas;
    uint32_t *mb_first;       /* [n_replicas+1] offsets into mb */
    struct dt_microbatch *mb; /* replica-major, in execution order */
    bool
        parts; /* of an encoder: what a position defers is a microbatch apart (dt_assignment_deferred) */
    struct dt_work *work; /* [number of microbatches]: sum over its samples */
    int64_t *samples;     /* global sample indices */
    /* parallel to samples, of a module whose replicas share items: which of the sample's items for this module (from
     * 0); NULL: all of them.  A sample without such items is in no microbatch then */
    uint32_t *items;
    /* parallel to samples: this module's work of each (sizes of boundary transfers); NULL = a
     * microbatch's work split evenly over its samples */
    struct dt_work *sample_work;
};
struct dt_assignment {
    int n_modules;
    int64_t first_sample, n_samples; /* the global batch: samples [first, first+n) of the set */
    int n_slots;                     /* BS / (DP_lm * M) */
    struct dt_assignment_module m[DT_MAX_MODULES];
    struct dt_arena arena;
};

/* Is microbatch b of a replica, which has [first, end), what the position before it has deferred to its slot (Entrain,
 * assign_shift.c)?  It stands between the rest of that position and the rest of its own slot. */
static inline bool dt_assignment_deferred(const struct dt_assignment_module *a, uint32_t first,
                                          uint32_t end, uint32_t b)
{
    return a->parts && b > first && b + 1 < end && a->mb[b].slot == a->mb[b + 1].slot &&
           a->mb[b - 1].slot + 1 == a->mb[b].slot;
}

/* What is held of microbatch b (of all replicas') while it is in flight: its work, with what it has deferred. */
static inline struct dt_work dt_assignment_held(const struct dt_assignment_module *a, uint32_t b)
{
    struct dt_work w = a->work[b];

    if (dt_assignment_deferred(a, 0, a->mb_first[a->n_replicas], b + 1))
        dt_work_add(&w, &a->work[b + 1]);
    return w;
}

/* Microbatches of a replica, what is deferred not counted apart. */
static inline int64_t dt_assignment_positions(const struct dt_assignment_module *a, int replica)
{
    uint32_t first = a->mb_first[replica], end = a->mb_first[replica + 1];
    int64_t n = end - first;

    for (uint32_t b = first; b < end; b++)
        n -= dt_assignment_deferred(a, first, end, b);
    return n;
}

/* What GPUs are charged for each microbatch that is in flight: the largest; of an encoder in phases, which holds all of a
 * replica's at a time, the mean of the replica that has most (so a block's workspace is counted as the mean one's). */
struct dt_work dt_assignment_charged(const struct dt_plan *p, const struct dt_assignment *a,
                                     int module);

/* Builds the assignment of the global batch that starts at `first_sample`, as the plan's policy says: slot by slot, or
 * Entrain's (assign_entrain.h).
 * intra: samples sorted by encoder+generator cost descending, each to the least-loaded DP replica (LPT), equal
 * cardinality; inter: order of microbatches of each replica.  cost may be NULL when both are off. */
enum dt_status dt_assign(const struct dt_plan *p, const struct dt_model *m, struct dt_cost *cost,
                         const struct dt_samples *s, int64_t first_sample, struct dt_error *err,
                         struct dt_assignment **out);
void dt_assign_free(struct dt_assignment *a);
/* Each sample exactly once per module; counts per replica; DT_ERR_INTERNAL with the first violation. */
enum dt_status dt_assign_check(const struct dt_assignment *a, struct dt_error *err);

/* LPT: n costs onto k bins, each with at most ceil(n/k) items (equal cardinality) when `equal`; bin[i] = bin of item i.
 * Ties to the lowest bin.  O(n log n).  Returns the largest bin's load.  Graham bound: <= (4/3 - 1/(3k)) OPT
 * without the cardinality constraint. */
enum dt_status dt_assign_lpt(const double *cost, int n, int k, bool equal, int *bin,
                             double *max_load);

/* Inter-microbatch order for one pipeline: n microbatches, each with an extra stage time that varies
 * (encoder/generator), p stages of the whole path.  order[] is a permutation of 0..n-1.  Uses the algorithm of
 * DistTrain section 5 and falls back to the given order when its own model (dt_assign_chain_makespan) says it is no
 * better. */
struct dt_assign_chain { /* a linear pipeline: per-stage forward/backward ns of each microbatch */
    int p, n;
    const double *fwd, *bwd; /* [p * n], stage-major */
};
double dt_assign_chain_makespan(const struct dt_assign_chain *c,
                                const int *order); /* 1F1B, no communication */
enum dt_status dt_assign_inter_order(const struct dt_assign_chain *c, int *order, double *before,
                                     double *after);

#endif
