/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * What the files of the schedule compiler share; nothing outside schedule*.c and program_check.c
 * includes it. */
#ifndef DT_CORE_SCHEDULE_SCHEDULE_IMPL_H
#define DT_CORE_SCHEDULE_SCHEDULE_IMPL_H

#include "core/model/boundary.h"
#include "core/cost/memory.h"
#include "core/schedule/schedule.h"

enum {
    DT_PARTS_MAX = DT_PLAN_BUCKETS
}; /* buckets of one virtual stage when its collectives overlap with compute */

/* One virtual stage (chunk * pp + stage) of a module: what every replica of it has in common. */
struct dt_sched_vstage {
    uint16_t first, n; /* blocks */
    bool backward; /* runs BACKWARD ops: trains something or something upstream of it is trained */
    bool split;    /* runs WEIGHT_GRAD ops apart from them */
    uint8_t f_parts, b_parts; /* ops of the first forward and of the last backward */
    /* Every forward, every backward (or weight gradient) is cut so, and each part has its own gather (ZeRO 3, both) and
     * sync (ZeRO 2). */
    bool f_each, b_each;
    struct dt_boundary wire; /* what leaves the stage for the next one */
    /* By bucket in forward order (f_parts or b_parts of them): group or DT_NONE, and bytes per GPU.
     * Collectives of each microbatch: the group of the first one, and how far on that of the next is. */
    uint32_t sync_group[DT_PARTS_MAX], gather_group[DT_PARTS_MAX];
    uint32_t sync_stride, gather_stride;
    uint64_t sync_bytes[DT_PARTS_MAX], gather_bytes[DT_PARTS_MAX];
};

/* Samples in common between an upstream and a downstream microbatch, as one transfer. */
struct dt_sched_transfer {
    uint32_t u_mb, d_mb; /* microbatches counted over all replicas of their module */
    uint8_t u, d;        /* modules */
    bool grad;           /* mirrored for gradients */
    uint32_t in_rank;    /* position among the transfers into d_mb */
    uint32_t gin_rank;   /* position among the mirrored transfers into d_mb */
    uint32_t out_rank;   /* position among the transfers out of u_mb */
    uint64_t bytes;
};

/* Compute order of a lane, in the codes of core/pipeline/pipeline.h. */
struct dt_sched_lane_order {
    uint32_t n;
    uint32_t *code;
    uint32_t *first_f,
        *last_b; /* [vpp] microbatch of the chunk's first forward and of what completes its gradients: the last
                  * backward or, where it is split, weight gradient; or DT_NONE */
};

struct dt_sched_module {
    const struct dt_module *mod;
    const struct dt_plan_layout *layout;
    int index, pp, vpp, dp, n_v, lane_gpus;
    bool trains;               /* some block of it is trained */
    uint32_t lane_base;        /* lanes of (replica, stage) = lane_base + replica * pp + stage */
    const uint32_t *mb_first;  /* [dp + 1] */
    uint32_t n_mb;             /* over all replicas */
    uint16_t *replica_of;      /* [n_mb] */
    struct dt_sched_vstage *v; /* [n_v] */
    bool *lane_trains;         /* [pp] */
    uint32_t *in_first,
        *in;         /* transfers into each microbatch: in[in_first[mb] .. in_first[mb + 1]) */
    uint32_t *gin_n; /* mirrored ones among them */
    uint32_t *out_first, *out; /* transfers out of each microbatch */
    bool mirrored_out; /* the last virtual stage runs a backward: every transfer out is mirrored */
    struct dt_sched_lane_order *order; /* [pp] when shared by all replicas, else [dp * pp] */
    uint32_t *f_idx, *b_idx;           /* op of the first part of F/B, see dt_sched_at */
    /* When the list schedule ended virtual stage v of microbatch mb (of replica 0 for all when
     * aligned): when[(mb * n_v + v) * 2 + backward]; NULL without a list schedule. */
    int64_t *when;
};

/* Where lanes of one chunk have both a fixed order and a list schedule (slots that are not aligned). */
enum dt_sched_take { DT_SCHED_FIXED, DT_SCHED_LIST };

struct dt_sched {
    const struct dt_plan *plan;
    const struct dt_model *model;
    const struct dt_cluster *cluster;
    const struct dt_assignment *a;
    struct dt_cost *cost;
    int n_modules;
    bool aligned; /* microbatch k of every replica of every module is slot k */
    struct dt_sched_module m[DT_MAX_MODULES];
    enum dt_sched_take take;
    /* Of an interleaved module, 1 + the rule that orders its chunks (schedule_list.c), 0: the list schedule chooses one.  Out, where there are
     * guests: a bit for each rule that came near the chosen one, and may be better with the guests' turns. */
    int chunk_rule;
    uint32_t other_rules;
    int64_t limit_ns; /* turns of guests that will certainly end later are given up; 0: none */
    int64_t rough_ns; /* where those of the first rule end later, no other is tried; 0: none */
    int64_t first_ns; /* when these end; 0: whether another is tried does not depend on rough_ns */
    bool
        rules_alone; /* turns of guests are those of a rule: their work is not placed into bubbles (schedule_bubbles.c) */
    bool
        bubbles_left; /* out: those, or a first rule without the limit, might have made it another makespan */
    bool tells;                      /* what became of guests' turns is asked: all of */
    struct dt_sched_bubbles bubbles; /* out */
    /* out, of plans with guests whose turns were timed: how long each op takes, and an order of all ops, each behind
     * what it waits for; the caller's to free.  NULL: not known */
    struct dt_durations dur;
    uint32_t *order;
    /* out, of such plans: when the last op ends; negative: not known.  Where that alone is wanted (in), the turns are not
     * written down. */
    int64_t makespan_ns;
    bool makespan_only;
    bool
        list_sooner; /* out: the list schedule ended before the fixed order, with mean microbatches and free transfers */
    uint32_t n_transfers;
    struct dt_sched_transfer *transfers;
    struct dt_sched_link
        *link; /* [n_lanes]; NULL: no module offloads parameters (schedule_link.h) */
    uint32_t n_lanes, n_groups;
    uint32_t tied_group; /* first of dp groups, DT_NONE when the model ties nothing across stages */
    uint32_t norm_group; /* DT_NONE when nothing is trained */
    struct dt_arena arena; /* scratch of one compilation */
};

/* Where f_idx/b_idx keep virtual stage v of microbatch k of a replica: consecutive in k for one
 * lane. */
static inline size_t dt_sched_at(const struct dt_sched_module *m, int replica, int v, uint32_t k)
{
    uint32_t first = m->mb_first[replica], n = m->mb_first[replica + 1] - first;
    int at = v % m->pp * m->vpp + v / m->pp;

    return (size_t)first * m->n_v + (size_t)at * n + k;
}
static inline const struct dt_sched_lane_order *
dt_sched_order(const struct dt_sched *s, const struct dt_sched_module *m, int replica, int stage)
{
    return &m->order[s->aligned ? stage : replica * m->pp + stage];
}
/* The lane of virtual stage v of a replica. */
static inline uint32_t dt_sched_lane_of(const struct dt_sched_module *m, int replica, int v)
{
    return m->lane_base + (uint32_t)(replica * m->pp + v % m->pp);
}
/* Bytes that leave virtual stage v for the next one. */
static inline uint64_t dt_sched_vstage_bytes(const struct dt_sched_vstage *v,
                                             const struct dt_work *w)
{
    return dt_boundary_bytes(&v->wire, w->tokens, w->n);
}
/* Ops of a forward, and of a backward or weight gradient that completes gradients. */
static inline int dt_sched_forward_parts(const struct dt_sched_vstage *v, bool first)
{
    return first || v->f_each ? v->f_parts : 1;
}
static inline int dt_sched_gradient_parts(const struct dt_sched_vstage *v, bool last)
{
    return last || v->b_each ? v->b_parts : 1;
}
static inline int dt_sched_backward_parts(const struct dt_sched_vstage *v, bool last)
{
    return v->split ? 1 : dt_sched_gradient_parts(v, last);
}
/* Times that the parameters of a virtual stage are used, and gathered with ZeRO 3: by n forwards, then n backwards. */
static inline uint32_t dt_sched_uses(const struct dt_sched_vstage *v, uint32_t n)
{
    return v->backward ? 2 * n : n;
}
/* Blocks of bucket `part` of `parts` (in forward order) of a virtual stage of blocks [*first,
 * *first + *n). */
static inline void dt_sched_vstage_bucket(int part, int parts, int *first, int *n)
{
    int lo = *first + *n * part / parts, hi = *first + *n * (part + 1) / parts;

    *first = lo;
    *n = hi - lo;
}

/* Modules, virtual stages, replica counts (schedule.c). */
enum dt_status dt_sched_init(struct dt_sched *s, const struct dt_plan *plan,
                             const struct dt_model *model, const struct dt_cluster *cluster,
                             const struct dt_assignment *a, struct dt_error *err);
void dt_sched_fini(struct dt_sched *s);
/* Trained parameters per GPU, parts and groups of every virtual stage (schedule_sync.c). */
void dt_sched_sync_init(struct dt_sched *s);
/* Transfers between modules; sets `aligned` (schedule_boundary.c). */
enum dt_status dt_sched_transfers(struct dt_sched *s, struct dt_error *err);
/* Compute order of every lane (schedule_order.c). */
enum dt_status dt_sched_orders(struct dt_sched *s, struct dt_error *err);
/* The list schedule (schedule_list.c): orders for lanes of modules with list[m]; other lanes keep
 * the order they have.  Filled like m.order.  Lanes of modules with fixed[m] come with an order: several chunks with
 * Megatron-core's, which is kept if no rule of the list schedule ends earlier; one chunk with that of the schedule,
 * which is kept as `take` says. */
enum dt_status dt_sched_list(struct dt_sched *s, const bool *list, const bool *fixed,
                             struct dt_error *err);
/* RECVs of a lane are in the order of their consumers; where that is not the order in which some
 * peer sends, the lane takes the order of a common topological level instead (schedule_recv.c). */
enum dt_status dt_sched_match(struct dt_sched *s, struct dt_program *p, struct dt_error *err);
/* Does every lane receive from every other in the order in which that one sends, its RECVs in the order of their consumers
 * (schedule_meet.c)?  The orders are there; no program is. */
enum dt_status dt_sched_meets(struct dt_sched *s, struct dt_error *err, bool *yes);

/* Colocated plans: makes ops of lanes that share a GPU take turns (schedule_colocate.c). */
enum dt_status dt_sched_colocate(struct dt_sched *s, struct dt_program *p, struct dt_error *err);

/* Durations for a timeline: what they stand on is not asked (durations.c). */
enum dt_status dt_sched_durations(const struct dt_sched *s, const struct dt_program *p,
                                  struct dt_error *err, struct dt_durations *out);

/* Of a stage that steps on its host, or copies parameters there and back: GPUs that do so there at the same time, on the node
 * of its own that has most (schedule_host.c). */
enum dt_sched_host_use { DT_SCHED_HOST_STEPS, DT_SCHED_HOST_COPIES };
int dt_sched_host_ranks(const struct dt_plan *p, const struct dt_model *m,
                        const struct dt_cluster *c, int module, int stage,
                        enum dt_sched_host_use use);
/* Trained parameters of blocks [first, first + n) held by one GPU of a lane (schedule_sync.c). */
uint64_t dt_sched_trained_params(const struct dt_plan *p, const struct dt_model *m, int module,
                                 int first, int n);
/* The same of a rank that updates its share of them alone (ZeRO). */
double dt_sched_trained_share(const struct dt_plan *p, const struct dt_model *m, int module,
                              int first, int n);
/* How the group of all lanes of a stage lies on nodes: per_node, ahead and share. */
void dt_sched_group_shape(const struct dt_plan *p, int module, int stage, int gpus_per_node,
                          struct dt_group *g);
/* Expert parallelism: what each group moves of experts. */
void dt_sched_expert_groups(const struct dt_sched *s, struct dt_program *p);
/* GPUs that hold the same parameters and so share one gradient sync per member lane (cp and ip
 * ranks). */
static inline int dt_sched_sync_ranks(const struct dt_plan_layout *l)
{
    return l->cp * l->ip;
}

#endif
