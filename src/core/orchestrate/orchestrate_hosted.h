/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Plans all of whose other modules are guests on the GPUs of the LLM, in a way that a strategy states: the search over the
 * LLM's layouts that such strategies share. */
#ifndef DT_CORE_ORCHESTRATE_ORCHESTRATE_HOSTED_H
#define DT_CORE_ORCHESTRATE_ORCHESTRATE_HOSTED_H

#include "core/orchestrate/orchestrate_internal.h"

struct dt_orch_hosted_view { /* a layout of the LLM, by the formula */
    int64_t slot;            /* samples */
    int gpus;
    double steps;    /* slots after the first */
    double interval; /* of a slot on its slowest stage */
    double passage;  /* of a microbatch through all stages */
};

struct dt_orch_hosted {
    enum dt_plan_strategy strategy;
    int variants; /* ways of placing the guests around one LLM, the likeliest first */
    /* Seconds that the guests add to an iteration of this LLM, near enough: the order in which LLMs are looked at. */
    double (*guests_s)(struct dt_orch_table *t, const struct dt_orch_cand *c,
                       const struct dt_orch_hosted_view *v);
    /* Gives the guests of a plan, whose LLM is set, their layouts and places by one of the variants; false: there is no such
     * way of placing them.  Recomputation and ZeRO are chosen for it. */
    bool (*place)(struct dt_orch_table *t, const struct dt_orch_cand *c, int variant,
                  struct dt_plan *p);
    /* Replicas of generators may share what a slot draws, and ranks with the same parameters may shard optimizer states in
     * groups (dt_plan_module.zero_group). */
    bool drawn, groups;
};
/* The best plans of the class, best first. */
enum dt_status dt_orch_hosted_plans(struct dt_orch_table *t, const struct dt_orch_hosted *h,
                                    struct dt_error *err, struct dt_search_result *out);

/* The first few plans timed whole, all replicas, where ranking looked at some of them; those that memory does not hold are left
 * out. */
enum dt_status dt_orch_time_whole(struct dt_orch_table *t, struct dt_error *err,
                                  struct dt_search_result *out);
/* Sets the stages of module m, as the tables have them; false: out of memory. */
bool dt_orch_hosted_split(struct dt_orch_table *t, const struct dt_orch_cand *c, int m,
                          struct dt_plan *p);

#endif
