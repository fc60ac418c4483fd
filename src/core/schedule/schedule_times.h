/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * How long the ops of a plan take, by what they do: for the durations of a program (durations.c) and for its makespan
 * where no program is written (schedule_direct.c). */
#ifndef DT_CORE_SCHEDULE_SCHEDULE_TIMES_H
#define DT_CORE_SCHEDULE_SCHEDULE_TIMES_H

#include "core/schedule/schedule_impl.h"

/* No timeline overflows if all durations in a row are shorter than this: their sum in 2^20 ns, of which 2^41 are far from
 * the end of 64 bits. */
enum { DT_SCHED_SUM_SHIFT = 20, DT_SCHED_SUM_BITS = 41 };

struct dt_sched_send_cost {
    uint64_t bytes;
    uint32_t width;
    bool same_node, used;
    struct dt_cost_time t;
    int64_t ns, alpha_ns;
};
struct
    dt_sched_part_cost { /* of one of the parts that an op is cut into: the last work that was asked for */
    int first, n;        /* blocks */
    uint32_t id;         /* of the work, + 1; 0: none yet */
    struct dt_cost_stage_ns ns;
    struct dt_cost_stage_ns *all; /* [n_ids], where every microbatch is cut; NULL: not asked yet */
};
struct dt_sched_module_times {
    struct dt_block_shard *shard; /* [pp] */
    unsigned char *trainable;
    uint32_t *work_id; /* [mb]: microbatches of equal work share an id */
    uint32_t n_ids;
    struct dt_work *work;            /* [n_ids] */
    struct dt_cost_stage_ns **ns;    /* [v][n_ids]; equal stages share one; NULL: not asked yet */
    struct dt_sched_part_cost *part; /* [v][backward][DT_PARTS_MAX] */
    int64_t *step_ns;                /* [pp], negative: not asked yet */
    struct dt_cost_time *step;
};
struct dt_sched_times {
    const struct dt_plan *plan;
    const struct dt_model *model;
    const struct dt_cluster *cluster;
    const struct dt_assignment *a;
    struct dt_cost *cost;
    struct dt_sched_module_times m[DT_MAX_MODULES];
    struct dt_sched_send_cost *sends;
    bool oom;
    uint32_t late;  /* an op whose time is no time; DT_NONE */
    double late_ns; /* that */
    struct dt_arena arena;
};

/* *t: what the plan stands on is set, the rest zero; -1: out of memory.  Afterwards the caller frees the arena. */
int dt_sched_times_init(struct dt_sched_times *t);

/* Of op i, for the error at the end; what is no time gives 0. */
int64_t dt_sched_times_ns(struct dt_sched_times *t, uint32_t i, double ns);

/* The times of a virtual stage for all works of its module: each comes to each stage.  NULL: out of memory. */
const struct dt_cost_stage_ns *dt_sched_times_stage(struct dt_sched_times *t, int module, int v);
/* Of one part of a virtual stage. */
struct dt_cost_stage_ns dt_sched_times_part(struct dt_sched_times *t, int module, int v,
                                            bool backward, int part, int parts, uint32_t id);
/* What an op of this kind takes of them. */
static inline double dt_sched_times_of(const struct dt_sched_times *t, enum dt_op_kind kind,
                                       const struct dt_cost_stage_ns *s)
{
    if (kind == DT_OP_FORWARD)
        return s->fwd;
    if (kind == DT_OP_WEIGHT_GRAD)
        return s->later + s->again;
    return dt_pipe_of(t->plan->policy.schedule)->put_off ? s->bwd - s->later : s->bwd;
}
/* The optimizer's step of a stage; i: its op. */
int64_t dt_sched_times_step(struct dt_sched_times *t, uint32_t i, int module, int stage);
/* A message between lanes on the same GPUs, of which nothing moves. */
static inline bool dt_sched_times_there(const struct dt_lane *a, const struct dt_lane *b)
{
    return a->first_gpu == b->first_gpu && a->gpus == b->gpus;
}
/* Any other; i: its SEND. */
const struct dt_sched_send_cost *dt_sched_times_send(struct dt_sched_times *t, uint32_t i,
                                                     const struct dt_lane *a,
                                                     const struct dt_lane *b, uint64_t bytes);
/* A collective of lanes of a module, all GPUs of which take part `gpus`. */
struct dt_sched_collective {
    const struct dt_group *group;
    int module;
    bool tied;
    uint64_t bytes; /* of each op, experts included */
    int64_t gpus;
};
void dt_sched_times_group(struct dt_sched_times *t, const struct dt_sched_collective *c,
                          struct dt_cost_time *cost);
/* What a core of each member does for it in its `ns`: measured, or else all but the latencies. */
double dt_sched_times_core(struct dt_sched_times *t, const struct dt_sched_collective *c,
                           double ns);

#endif
