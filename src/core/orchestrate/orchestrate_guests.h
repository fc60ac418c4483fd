/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Layouts of guests on the GPUs of an LLM that is chosen. */
#ifndef DT_CORE_ORCHESTRATE_ORCHESTRATE_GUESTS_H
#define DT_CORE_ORCHESTRATE_ORCHESTRATE_GUESTS_H

#include "core/orchestrate/orchestrate_internal.h"

enum {
    DT_ORCH_GUEST_LAYOUTS = 24, /* of one guest */
    DT_ORCH_GUEST_COMBOS = 48,  /* of all guests of a host, whose memory may be asked for */
    DT_ORCH_GUEST_FEW = 16,     /* on so few GPUs every number of replicas is tried */
};

struct dt_orch_guest { /* one layout of a guest */
    struct dt_orch_choice of;
    double load; /* seconds of an iteration that a GPU works for it, and its first microbatch */
    double pass; /* seconds of a microbatch, forward and backward */
};

struct dt_orch_guest_combo { /* a layout of each guest */
    double load;
    uint8_t of[DT_MAX_MODULES];
};

/* The layouts of module m with the least load beside c's LLM, on its GPUs; `deep`: of as many stages as it has, else of one;
 * `on_host`: with masters and moments there.  How many of out[DT_ORCH_GUEST_LAYOUTS]. */
int dt_orch_guest_layouts(struct dt_orch_table *t, const struct dt_orch_cand *c, int m, bool deep,
                          bool on_host, struct dt_orch_guest *out);
/* Combinations of the guests' n[] layouts each, the least loaded first, where `slots` passes count beside the load.  How many
 * of out[DT_ORCH_GUEST_COMBOS]. */
int dt_orch_guest_combos(struct dt_orch_guest (*o)[DT_ORCH_GUEST_LAYOUTS], const int *n, int guests,
                         double slots, struct dt_orch_guest_combo *out);

#endif
