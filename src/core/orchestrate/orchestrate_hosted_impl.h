/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * What the files of the search for plans with guests alone share (orchestrate_hosted.c, orchestrate_hosted_moves.c). */
#ifndef DT_CORE_ORCHESTRATE_ORCHESTRATE_HOSTED_IMPL_H
#define DT_CORE_ORCHESTRATE_ORCHESTRATE_HOSTED_IMPL_H

#include "core/orchestrate/orchestrate_hosted.h"

enum { DT_ORCH_HOSTS_MAX = 96 };

struct dt_orch_host_lm {
    double score; /* seconds of an iteration, near enough */
    struct dt_orch_cand c;
};

struct dt_orch_hosting {
    struct dt_orch_table *t;
    bool few; /* GPUs */
    const struct dt_orch_hosted *h;
    struct dt_search_stats *stats;
    int llm, most, n[DT_SCHED_N];
    bool leaving; /* the parameters of some guest may leave between phases */
    /* of chunks, that may be asked for, and looked through for that, still (split_chunks) */
    int64_t splits, steps;
    struct dt_orch_host_lm host[DT_SCHED_N]
                               [DT_ORCH_HOSTS_MAX]; /* of each schedule, the best first */
};

/* The plan as it stands, if it is one and memory holds it. */
enum dt_status dt_orch_hosted_settle(struct dt_orch_hosting *w, struct dt_plan *p);
/* The parameters of module m, between phases: are they open to leave, to stay; and can they leave, where it lies and as it runs? */
bool dt_orch_hosted_may_leave(const struct dt_orch_hosting *w, int m);
bool dt_orch_hosted_may_stay(const struct dt_orch_hosting *w, int m);
bool dt_orch_hosted_can_leave(const struct dt_orch_hosting *w, struct dt_plan *p, int m);
/* orchestrate_hosted_moves.c: of n plans that have timelines the best, on few GPUs more of them, each as fast as single steps make
 * it; in order. */
enum { DT_ORCH_HOSTED_BEST = 6 };
enum dt_status dt_orch_hosted_polish(struct dt_orch_hosting *w, struct dt_plan *plans, int n,
                                     struct dt_error *err);

/* Gives the LLM of several chunks the split whose slowest part is fastest of those with which the plan fits, if there is one: of splits
 * that are nearly even first, then of such as are less and less, as far as memory can be asked about so many. */
bool dt_orch_hosted_chunks(struct dt_orch_hosting *w, const struct dt_orch_times *times,
                           struct dt_plan *p);

#endif
