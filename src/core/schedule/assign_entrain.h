/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Entrain's assignment of one global batch (Jang and Chowdhury 2026, arXiv 2605.27918, algorithm 3): encoder
 * microbatches of equal load, and LLM work of some samples deferred by one microbatch.  Numbers only: no plan, no model.
 *
 *   position      |  0 (heavy)  |  1 (light)  |  2 (heavy)  |  3 (light)  |
 *   encoder       |   a b c     |     d e     |    f g h    |     i j     |   equal in the encoder's load
 *   LLM           |   a b       |   c d e     |    f        |   g h i j   |   c, g and h: one position later
 *
 * Positions come in pairs; only samples of a pair's first position are deferred, so an encoder's output waits for one
 * position at most. */
#ifndef DT_CORE_SCHEDULE_ASSIGN_ENTRAIN_H
#define DT_CORE_SCHEDULE_ASSIGN_ENTRAIN_H

#include "base/mem.h"
#include "base/status.h"

#include <stdbool.h>
#include <stdint.h>

struct dt_assign_loads {
    int n;                   /* samples */
    const double *enc, *llm; /* [n] load of each in the encoders and in the LLM, not negative */
    const int64_t
        *id; /* [n] breaks ties, so that the order of samples does not matter; NULL: their places */
};

struct dt_assign_replica {
    int samples;
    int positions; /* K_eff: microbatches of the replica */
    int deferred;  /* samples */
    double most;   /* T*: the largest load of an LLM microbatch */
};

struct dt_assign_entrained {      /* where each sample goes; the arrays lie in the caller's arena */
    int *replica;                 /* [n] */
    int *position;                /* [n] in the encoders */
    bool *deferred;               /* [n] in the LLM one position later */
    struct dt_assign_replica *of; /* [dp] */
};

/* dp replicas, at most k microbatches each.  DT_ERR_NOMEM, or DT_ERR_INTERNAL for dp, k or n below 1. */
enum dt_status dt_assign_entrain(const struct dt_assign_loads *in, int dp, int k,
                                 struct dt_arena *arena, struct dt_assign_entrained *out);

/* ---- its steps (assign_defer.c) ---- */

/* Loads of a set of samples that are deferred together: those of `llm[items[0 .. n)]`, in 1/1024 of their sum. */
struct dt_assign_subsets;
enum dt_status dt_assign_subsets_new(const int *items, int n, const double *llm,
                                     struct dt_arena *arena, struct dt_assign_subsets **out);
/* The subset whose sum is nearest to `want`, the smaller one of two: its sum, and what to name it by. */
double dt_assign_subsets_near(const struct dt_assign_subsets *s, double want, int *name);
/* Sets deferred[] of the items of that subset; returns how many these are. */
int dt_assign_subsets_take(const struct dt_assign_subsets *s, int name, bool *deferred);

/* Row i (heavy) with column j (light) makes a largest load of cost[i * n + j], alone it is of alone[i].  Finds the least t
 * such that all rows with alone[i] > t go to columns of their own at no more than t, t not below `least`; of[i]: the
 * column of each of those rows, -1 for the others. */
enum dt_status dt_assign_bottleneck(int n, const double *cost, const double *alone, double least,
                                    struct dt_arena *arena, int *of, double *t);

#endif
