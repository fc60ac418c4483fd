/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * The schedule compiler: plan + assignment -> program, for every schedule of core/pipeline over a general module graph;
 * and the duration of every op. */
#ifndef DT_CORE_SCHEDULE_SCHEDULE_H
#define DT_CORE_SCHEDULE_SCHEDULE_H

#include "core/cost/cost.h"
#include "core/schedule/program.h"

/* A plan with eager forwards that does not say how far its stages are ahead is compiled with them as far ahead as memory allows
 * for these microbatches: *out is that plan, of the caller's to free, or NULL where the plan is complete as it is. */
enum dt_status dt_sched_ahead(const struct dt_plan *plan, const struct dt_model *model,
                              const struct dt_cluster *cluster, const struct dt_assignment *a,
                              struct dt_error *err, struct dt_plan **out);

/* (The program's plan is then its own.)  `cost` is only asked when lanes need a list schedule, or may take one (unequal counts, an interleaved module). */
enum dt_status dt_sched_compile(const struct dt_plan *plan, const struct dt_model *model,
                                const struct dt_cluster *cluster, const struct dt_assignment *a,
                                struct dt_cost *cost, struct dt_error *err,
                                struct dt_program **out);

/* What became of the turns of guests on their hosts' GPUs (schedule_bubbles.c); all 0 where there were no turns with times. */
struct dt_sched_bubbles {
    int64_t rules_ns; /* the makespan in the turns that a rule of choice gives, */
    int64_t ns;       /* and in those of the program */
    /* No turns are shorter than the longest chain of ops that wait for each other, nor than what a GPU has to do */
    int64_t chain_ns, work_ns;
    int64_t
        free_ns; /* what would have been found if guests could hold any number of microbatches; 0: not looked for */
    uint32_t moved,
        guest_ops; /* guests' compute ops, and those whose number among the ops of their GPU is another */
};
/* dt_sched_compile(), and what the turns of its guests gained (NULL: is not asked); with `rules_alone` the program is the one whose turns a rule
 * gives. */
enum dt_status dt_sched_compile_turns(const struct dt_plan *plan, const struct dt_model *model,
                                      const struct dt_cluster *cluster,
                                      const struct dt_assignment *a, struct dt_cost *cost,
                                      bool rules_alone, struct dt_error *err,
                                      struct dt_sched_bubbles *bubbles, struct dt_program **out);

/* The makespan of that program on the timeline without contention; the rest of it is not kept. */
enum dt_status dt_sched_makespan(const struct dt_plan *plan, const struct dt_model *model,
                                 const struct dt_cluster *cluster, const struct dt_assignment *a,
                                 struct dt_cost *cost, struct dt_error *err, int64_t *ns);

/* The same for searches, which compare many plans: of the orders that an interleaved LLM with guests could take, the one that
 * seems best without guests.  *exact: no other comes near, so that it is what dt_sched_makespan() says; else that may be less.
 * A plan that takes longer than limit_ns (0: none) may be given up as soon as that is certain: *ns is INT64_MAX then.  Of one that
 * takes longer than rough_ns (0: none) by the first rule of its guests' turns, which is *first_ns, the other is not tried; 0:
 * there are no guests, or whether it is tried does not depend on rough_ns (GPUs stand idle for so long by the first rule that it is,
 * or bounds leave so little to gain that it is not). */
enum dt_status dt_sched_glance(const struct dt_plan *plan, const struct dt_model *model,
                               const struct dt_cluster *cluster, const struct dt_assignment *a,
                               struct dt_cost *cost, int64_t limit_ns, int64_t rough_ns,
                               struct dt_error *err, int64_t *ns, int64_t *first_ns, bool *exact);

/* Seconds that the collectives of a module with ZeRO 2 or 3 take one after the other on its busiest lane, over n
 * microbatches, those of experts apart: no program of the plan ends sooner.  0 with less ZeRO. */
double dt_sched_collectives_s(const struct dt_plan *plan, const struct dt_model *model,
                              const struct dt_cluster *cluster, struct dt_cost *cost, int module,
                              int64_t n);

/* Seconds, near enough, that the steps of masters and moments on the host take at the end of an iteration, where nothing else is
 * left to do: of the module that takes longest with its guests, all GPUs of a node sharing the host.  0: there are none. */
double dt_sched_host_step_s(const struct dt_plan *plan, const struct dt_model *model,
                            const struct dt_cluster *cluster, struct dt_cost *cost);

struct dt_durations {
    int64_t *
        ns; /* [n_ops]; SEND: alpha + bytes/bw without contention; RECV: 0; collectives: their time */
    int64_t *alpha_ns; /* NULL unless asked for: [n_ops] latency part of SENDs */
    int64_t *
        core_ns; /* NULL unless asked for, or a cluster's ranks have no cores: [n_ops] of SENDs and collectives: what
                  * a core does at each end, or of each member; the rest of ns is waiting */
    struct dt_cost_time prov; /* sum over compute + communication ops of provenance */
};
/* Durations of every op; rounded to ns once per op. */
enum dt_status dt_durations_compute(const struct dt_program *p, const struct dt_model *model,
                                    const struct dt_cluster *cluster, struct dt_cost *cost,
                                    bool want_alpha, struct dt_error *err,
                                    struct dt_durations *out);
void dt_durations_free(struct dt_durations *d);

#endif
