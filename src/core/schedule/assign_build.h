/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Assignment, the inside: shared by assign*.c only. */
#ifndef DT_CORE_SCHEDULE_ASSIGN_BUILD_H
#define DT_CORE_SCHEDULE_ASSIGN_BUILD_H

#include "core/schedule/assign.h"

struct dt_assign_keyed {
    double cost;
    int index;
};
/* Falling cost, ties by rising index: a total order. */
void dt_assign_keyed_sort(struct dt_assign_keyed *items, int n);

/* LPT of items already in falling order onto k bins that start with load[]; at most `cap` items a
 * bin (the caller sees to cap * k >= n).  heap[k] and fill[k] are workspace; fill[b] ends as the
 * number of items in bin b.  bin[i] belongs to items[i]. */
void dt_assign_lpt_sorted(const struct dt_assign_keyed *items, int n, int k, int cap, double *load,
                          int *heap, int *fill, int *bin);

/* ---- what an assignment is built from (assign.c fills it, assign_slots.c deals samples) ---- */

struct dt_assign_module {
    int dp, share; /* replicas; replicas of one broker group = dp / groups */
    /* slots whose items the replicas share out (dt_plan_window); 0: samples.  All that follows is of samples */
    int window;
    bool spread;          /* dp > samples of a slot: a sample goes to replica (k*S + j) mod dp */
    struct dt_work *work; /* [batch] */
    double *fwd, *bwd;    /* [batch] ns (or FLOPs); NULL when no order is asked for */
};

struct dt_assign_job {
    const struct dt_plan *plan;
    const struct dt_model *model;
    const struct dt_samples *set;
    int64_t first;               /* sample of the set that the batch begins with */
    struct dt_cost *cost;        /* NULL: FLOPs */
    int batch, slots, slot_size; /* BS, n, S = DP_lm * M */
    int groups;                  /* broker groups: gcd of all DP */
    int group_size;              /* samples of a slot in one group: S / groups */
    struct dt_assign_module m[DT_MAX_MODULES];
    int *at; /* [batch] slot-major: sample (0 .. batch-1) at position j of slot k: at[k*S + j] */
    int *replica; /* [n_modules][batch] by position: replica of the sample at that position */
    struct dt_arena *scratch;
};

/* The sample of the set that is number i of the batch: a plan that stands for one of more replicas may have what some broker groups of
 * that one have, of each slot a part. */
static inline int64_t dt_assign_sample(const struct dt_assign_job *j, int i)
{
    const struct dt_plan *p = j->plan;
    int64_t slot = i / j->slot_size;

    if (p->first_group == 0 || p->stands_for < 2)
        return j->first + i;
    return j->first + slot * j->slot_size * p->stands_for +
           (int64_t)(p->first_group - 1) * j->group_size + i % j->slot_size;
}

/* Deals samples to slots and positions (at[]): as given, or by LPT when the plan says so. */
enum dt_status dt_assign_deal(struct dt_assign_job *j, struct dt_error *err);
/* Deals every slot's samples to each module's replicas (replica[]). */
enum dt_status dt_assign_share(struct dt_assign_job *j, struct dt_error *err);
/* Items of every window to the replicas that serve the LLM replicas of their samples (assign_items.c). */
enum dt_status dt_assign_items(const struct dt_assign_job *j, int m, struct dt_error *err,
                               struct dt_assignment *a);
/* Entrain's assignment, of all modules (assign_shift.c). */
enum dt_status dt_assign_shift(struct dt_assign_job *j, struct dt_error *err,
                               struct dt_assignment *a);
/* Permutes the slots of every broker group by dt_assign_inter_order. */
enum dt_status dt_assign_order(struct dt_assign_job *j, struct dt_error *err);

#endif
