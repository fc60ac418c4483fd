/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Plans by their places in the space, and the neighbours of one: all that differ in one thing, and in what has to follow
 * it. */
#ifndef DT_CORE_ORCHESTRATE_ORCHESTRATE_MOVES_H
#define DT_CORE_ORCHESTRATE_ORCHESTRATE_MOVES_H

#include "core/orchestrate/orchestrate_internal.h"

struct dt_orch_spot {
    struct dt_orch_cand c;
    unsigned set; /* bit m: module m is a guest */
};

struct dt_orch_move {
    struct dt_orch_spot to;
    double expect; /* seconds */
};

struct dt_orch_hand { /* the plan at hand */
    struct dt_orch_spot at;
    double first_s; /* its timeline at first sight */
    double ratio;   /* of that to the formula */
    /* its neighbours, the most promising first; those before `next` have been tried */
    struct dt_orch_move *moves;
    size_t n, next, cap;
    bool listed;
};

struct dt_orch_moves {
    struct dt_orch_table *t;
    const struct dt_search_input *in;
    const double *cap; /* most GPUs per module, or NULL */
    int llm;
    bool few;     /* GPUs: nothing near is left out */
    double reach; /* how much slower than the plan at hand a neighbour may be expected to be */
    struct dt_orch_hand *hand; /* the one whose neighbours are listed */
    struct dt_hash_table seen; /* what has been tried */
    bool nomem;                /* sticky */
};

/* False where the space does not hold the plan. */
bool dt_orch_spot_of(const struct dt_orch_moves *w, const struct dt_plan *p,
                     struct dt_orch_spot *out);
/* The place in the space that is nearest to the plan: what the space does not hold of it is the nearest that it does hold.
 * Maybe not legal. */
void dt_orch_spot_near(const struct dt_orch_moves *w, const struct dt_plan *p,
                       struct dt_orch_spot *out);
/* The staged formula, as dt_orch_formula() has it of a plan. */
double dt_orch_spot_formula_s(struct dt_orch_moves *w, const struct dt_orch_spot *s);
/* Does the space hold it, but for memory? */
bool dt_orch_spot_is_legal(const struct dt_orch_moves *w, const struct dt_orch_spot *s);
/* False where it was there before, or out of memory (w->nomem). */
bool dt_orch_spot_remember(struct dt_orch_moves *w, const struct dt_orch_spot *s);
/* Lists the neighbours of `h` that are within reach. */
enum dt_status dt_orch_moves_list(struct dt_orch_moves *w, struct dt_orch_hand *h,
                                  struct dt_error *err);

#endif
