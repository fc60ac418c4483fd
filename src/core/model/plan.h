/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Plans: per module its layout and stage split, plus the run's policies.  plan.json round-trips. */
#ifndef DT_CORE_MODEL_PLAN_H
#define DT_CORE_MODEL_PLAN_H

#include "base/keys.h"
#include "core/model/cluster.h"
#include "core/model/model.h"
#include "core/pipeline/pipeline.h"
#include "base/status.h"

/* Strategies: X(ENUMERATOR, name in files, struct dt_orch_planner of core/orchestrate, one line for people); the order
 * is that of `enum dt_plan_strategy`. */
#define DT_STRATEGIES(X)                                                                           \
    X(DISTTRAIN, "disttrain", dt_orch_planner_disttrain,                                           \
      "a layout of its own for every module, by search (DistTrain)")                               \
    X(MEGATRON, "megatron-lm", dt_orch_planner_megatron,                                           \
      "encoder and generator as stages as wide as the LLM's (Megatron-LM)")                        \
    X(DISTMM, "distmm", dt_orch_planner_distmm,                                                    \
      "GPUs in proportion to FLOPs, then a search (DistMM*)")                                      \
    X(HOMOGENEOUS, "homogeneous", dt_orch_planner_homogeneous,                                     \
      "the LLM's parallelism for every module (Megatron MIMO's baseline)")                         \
    X(COLOCATED, "colocated", dt_orch_planner_colocated,                                           \
      "every module on all of the LLM's GPUs, encoders in windows (Megatron MIMO)")                \
    X(NONCOLOCATED, "noncolocated", dt_orch_planner_noncolocated,                                  \
      "every module on GPUs of its own (Megatron MIMO, DistTrain)")                                \
    X(DIP, "dip", dt_orch_planner_dip,                                                             \
      "encoders as pipelines over the LLM's GPUs, forward before it and backward behind it")       \
    X(BEST, "best", dt_orch_planner_best,                                                          \
      "the fastest of homogeneous, colocated and noncolocated, side by side")                      \
    X(ENTRAIN, "entrain", dt_orch_planner_entrain,                                                 \
      "GPUs by the loads of enough samples, one DP for all modules (Entrain)")                     \
    X(MANUAL, "manual", dt_orch_planner_manual, "the plan that the job states")

enum dt_plan_strategy {
#define ENUMERATOR(id, name, planner, help) DT_STRATEGY_##id,
    DT_STRATEGIES(ENUMERATOR)
#undef ENUMERATOR
    /* not a strategy */
    DT_STRATEGY_N
};
extern const char *const dt_plan_strategy_names[DT_STRATEGY_N + 1]; /* ended by NULL */
extern const char *const dt_plan_strategy_help[DT_STRATEGY_N + 1];

/* How samples become microbatches: X(ENUMERATOR, name in files, one line for people). */
#define DT_ASSIGNMENTS(X)                                                                          \
    X(SLOTS, "slots", "slot by slot, alike for all modules, in the order of train.reorder")        \
    X(ENTRAIN, "entrain", "equal loads of encoders; some samples' LLM work a microbatch later")

enum dt_plan_assignment {
#define ENUMERATOR(id, name, help) DT_ASSIGNMENT_##id,
    DT_ASSIGNMENTS(ENUMERATOR)
#undef ENUMERATOR
    /* not an assignment */
    DT_ASSIGNMENT_N
};
extern const char *const dt_plan_assignment_names[DT_ASSIGNMENT_N + 1]; /* ended by NULL */

/* How keys and values come to the ranks of context parallelism: X(ENUMERATOR, name in files, one line for people). */
#define DT_CP_COMMS(X)                                                                             \
    X(GATHER, "gather", "all of them before attention")                                            \
    X(RING, "ring", "from neighbour to neighbour, under attention to those at hand")

enum dt_plan_cp_comm {
#define ENUMERATOR(id, name, help) DT_CP_COMM_##id,
    DT_CP_COMMS(ENUMERATOR)
#undef ENUMERATOR
    /* not a way */
    DT_CP_COMM_N
};
extern const char *const dt_plan_cp_comm_names[DT_CP_COMM_N + 1]; /* ended by NULL */

/* How many forwards a lane runs before its first backward: X(ENUMERATOR, name in files, one line for people). */
#define DT_WARMUPS(X)                                                                              \
    X(1F1B, "1f1b", "as many as the schedule needs")                                               \
    X(EAGER, "eager", "as many as memory allows")

enum dt_plan_warmup {
#define ENUMERATOR(id, name, help) DT_WARMUP_##id,
    DT_WARMUPS(ENUMERATOR)
#undef ENUMERATOR
    /* not a warm-up */
    DT_WARMUP_N
};
extern const char *const dt_plan_warmup_names[DT_WARMUP_N + 1]; /* ended by NULL */

/* What of a module lies in the host's memory: X(ENUMERATOR, name in files, one line for people). */
#define DT_OFFLOADS(X)                                                                             \
    X(NONE, "none", "nothing")                                                                     \
    X(OPTIMIZER, "optimizer", "masters and moments, which the host's cores step")                  \
    X(PARAMETERS, "parameters", "a guest's parameters, while others work on its GPUs")             \
    X(ALL, "all", "both")

/* What is offloaded goes through rooms of so many parameters, which take turns (exec/program/optimizer_host.h). */
enum { DT_PLAN_OFFLOAD_CHUNK = 1 << 18, DT_PLAN_OFFLOAD_ROOMS = 3, DT_PLAN_OFFLOAD_BYTES = 4 + 6 };

enum dt_plan_offload {
#define ENUMERATOR(id, name, help) DT_OFFLOAD_##id,
    DT_OFFLOADS(ENUMERATOR)
#undef ENUMERATOR
    /* not a way */
    DT_OFFLOAD_N
};
extern const char *const dt_plan_offload_names[DT_OFFLOAD_N + 1]; /* ended by NULL */

/* Of an iteration, of a microbatch, of a sample in tokens. */
enum { DT_BATCH_MAX = 1 << 18, DT_MICROBATCH_MAX = 1 << 12, DT_SEQ_MAX = 1 << 20 };
enum {
    DT_MAX_VSTAGES = 256, /* pp * vpp of one module */
    DT_PLAN_GPUS_MAX = 1 << 24
}; /* GPUs of one module: keeps every product inside int */

struct dt_plan_layout {
    int tp, cp, ep, pp, vpp, dp;
    int ip; /* image parallelism inside a lane (whole images dealt to ip ranks); lane GPUs = tp*cp*ip */
    int first_gpu; /* GPUs [first_gpu, first_gpu + gpus) */
};
static inline int dt_plan_layout_lane_gpus(const struct dt_plan_layout *l)
{
    return l->tp * l->cp * l->ip;
}
static inline int dt_plan_layout_gpus(const struct dt_plan_layout *l)
{
    return dt_plan_layout_lane_gpus(l) * l->pp * l->dp;
}

/* Ranks that hold the same parameters. */
static inline int64_t dt_plan_layout_copies(const struct dt_plan_layout *l)
{
    return (int64_t)l->dp * l->cp * l->ip;
}
/* Ranges of blocks that a virtual stage's collectives are cut into, at most: where they overlap with compute, and
 * where gradients (ZeRO 2) or parameters (ZeRO 3) are whole for one range at a time. */
enum { DT_PLAN_BUCKETS = 4, DT_ZERO_MAX = 3 };
/* Parameters of a ZeRO 3 module that are gathered, and gradients of a ZeRO 2 module that are not reduced yet: of how
 * many buckets at most.  The next one is under way beside that in use if they overlap with compute. */
static inline int dt_plan_whole_buckets(bool overlap)
{
    return overlap ? 2 : 1;
}

enum { DT_PLAN_WINDOW_ALL = -1 };

struct dt_plan_module {
    struct dt_plan_layout layout;
    enum dt_block_recompute recompute;
    int zero; /* what the ranks that hold the same parameters share out (ZeRO's stages): 1 the optimizer's states, 2 also
               * the gradients, 3 also the parameters; 0 nothing */
    /* Of so many of these ranks at a time, neighbours, with ZeRO 1: each group has the whole of the optimizer's states, and
     * gradients are summed over groups, too (optimizer instances of Megatron Core); 0: of all of them */
    int zero_group;
    /* The optimizer's state of what is trained in it (of a frozen module: its projector): where it lies and is stepped; and of a
     * guest, where its parameters are while nothing uses them */
    enum dt_plan_offload offload;
    bool frozen; /* body frozen; projector blocks stay trained */
    bool pinned; /* layout.first_gpu is stated: dt_plan_place leaves it as it is */
    /* 1 + the module on whose GPUs this one lies, as a guest that takes turns with it; 0: it has its own */
    uint8_t with;
    /* Of an encoder that shares GPUs: on these all of its forwards come before all other work, and all of its backwards behind
     * it, so that it holds every microbatch (plan_phases.c) */
    bool phases;
    /* Of an encoder: its replicas share the items (images, clips) of so many slots at a time, each a microbatch;
     * DT_PLAN_WINDOW_ALL: of the whole batch; 0: the samples of each slot (dt_plan_window).  Of a generator: 1 or 0 */
    int window;
    /* virtual stage v (= chunk*pp + stage) holds blocks [split[v], split[v+1]) ; split[pp*vpp] = n_blocks */
    uint16_t split[DT_MAX_VSTAGES + 1];
    /* With DT_WARMUP_EAGER: microbatches that stage s holds beyond those that the schedule asks for (dt_memory_ahead). */
    uint16_t ahead[DT_MAX_VSTAGES];
};

/* Do masters and moments of what is trained in it lie in the host's memory? */
static inline bool dt_plan_offloads_optimizer(const struct dt_plan_module *mp)
{
    return mp->offload == DT_OFFLOAD_OPTIMIZER || mp->offload == DT_OFFLOAD_ALL;
}
/* Do its parameters, between its last forward and its first backward (plan_offload.c)? */
static inline bool dt_plan_offloads_params(const struct dt_plan_module *mp)
{
    return mp->offload == DT_OFFLOAD_PARAMETERS || mp->offload == DT_OFFLOAD_ALL;
}
/* What is offloaded where masters and moments are on the host or not, and where parameters leave in between or not. */
static inline enum dt_plan_offload dt_plan_offload_of(bool optimizer, bool params)
{
    if (params)
        return optimizer ? DT_OFFLOAD_ALL : DT_OFFLOAD_PARAMETERS;
    return optimizer ? DT_OFFLOAD_OPTIMIZER : DT_OFFLOAD_NONE;
}
/* Do all of its forwards come before all other work on its GPUs, and its backwards behind it? */
static inline bool dt_plan_in_phases(const struct dt_plan_module *mp)
{
    return mp->phases || dt_plan_offloads_params(mp);
}

/* Ranks that share out what ZeRO does. */
static inline int64_t dt_plan_shards(const struct dt_plan_module *mp)
{
    if (mp->zero == 0)
        return 1;
    return mp->zero_group > 0 ? mp->zero_group : dt_plan_layout_copies(&mp->layout);
}

/* How a lane of the module splits and runs its blocks. */
static inline struct dt_block_shard dt_plan_shard(const struct dt_plan_module *mp)
{
    const struct dt_plan_layout *l = &mp->layout;

    return (struct dt_block_shard){.tp = l->tp,
                                   .cp = l->cp,
                                   .ep = l->ep,
                                   .ip = l->ip,
                                   .seqpar = l->tp > 1,
                                   .recompute = mp->recompute};
}

/* What reorder_budget_s is where nobody states it: a small part of a step of seconds (assumed). */
#define DT_REORDER_BUDGET_S 0.5
/* DT_STEPCCL_CHUNKS_TRAINED: on cards, where no number is stated (assumed) */
enum { DT_STEPCCL_CHUNKS_MAX = 16, DT_STEPCCL_CHUNKS_TRAINED = 4 };
struct dt_plan_policy {   /* what the job states about the run; copied into every plan */
    int64_t global_batch; /* samples per iteration */
    int microbatch;       /* M: samples per LLM microbatch */
    int seq_len;
    enum dt_pipe_schedule schedule;
    enum dt_plan_assignment assignment;
    enum dt_plan_warmup warmup;
    enum dt_plan_cp_comm cp_comm;
    bool intra_reorder, inter_reorder;
    /* each batch in the order that its own timeline says is the fastest (core/schedule/assign_choose.h); layouts
     * are compared using the two flags above */
    bool batch_reorder;
    double reorder_budget_s; /* then, for the timelines of a batch */
    bool stepccl;
    int stepccl_chunks; /* of every collective that goes in chunks; 0: the best number for each, and none on CPUs */
    bool half_grads; /* fp16 training: gradients are reduced in 2 bytes, else in 4 */
    bool bf16_grads; /* gradients are kept, summed and reduced in bf16 (on GPUs) */
    bool fp32;       /* fp32 training: activations and parameters travel in 4 bytes, else in 2 */
    bool
        exact_vectors; /* of parameters gathered in 2 bytes, those that are no matrices (struct dt_block_param_counts)
                           * travel in 4: so does the executor, whose kernels read them in fp32, and so count
                           * clusters of CPUs.  GPUs: false, Megatron-LM's distributed optimizer gathers all of
                           * a bf16 model in 2 (recalled) */
    bool overlap_grad,
        overlap_param; /* gradient reduce-scatter / parameter all-gather overlapped with compute */
};

/* Of a gradient that replicas reduce. */
static inline unsigned dt_plan_policy_grad_bytes(const struct dt_plan_policy *y)
{
    return y->half_grads || y->bf16_grads ? 2 : 4;
}
/* Of an activation or a parameter in a message. */
static inline int dt_plan_policy_elem_bytes(const struct dt_plan_policy *y)
{
    return y->fp32 ? 4 : 2;
}

/* The formula's view (DistTrain section 4), filled by planners; seconds. */
struct dt_plan_prediction {
    double warmup_s, steady_s, total_s;
    double lower_bound_s; /* convex bound for this (TP, DP_lm) */
    double staged_s;   /* the formula with every module's slowest real stage and whole samples per
                           * replica (>= total_s): what the search minimises */
    double timeline_s; /* simulated ranking on real samples; 0 = not ranked */
    double mem_bytes_max;
};

struct dt_plan {
    char model[DT_NAME_MAX];
    char cluster[DT_NAME_MAX];
    enum dt_plan_strategy strategy;
    bool colocated; /* all modules share the same GPUs and take turns on them */
    int n_modules;
    char module_names[DT_MAX_MODULES][DT_NAME_MAX];
    struct dt_plan_module modules[DT_MAX_MODULES];
    struct dt_plan_policy policy;
    struct dt_plan_prediction predicted;
    /* Of some of a plan's replicas, which stand for it (dt_orch_plan_share): there are so many times as many, which share
     * out what ZeRO does; 0: it stands for nothing else.  In no file. */
    int stands_for;
    /* Of such a plan: the broker groups of the other that it has begin with number first_group - 1, and it has their samples; 0: it has
     * the first samples, whoever has them. */
    int first_group;
    int in_place; /* of such a plan: its groups, whose lanes lie where they lie in the other; 0: they lie side by side */
};

/* How many times as many replicas there are as the plan has. */
static inline int dt_plan_stands_for(const struct dt_plan *p)
{
    return p->stands_for > 1 ? p->stands_for : 1;
}
/* The same of those that take part in its collectives: replicas that lie side by side are ranked without the others. */
static inline int dt_plan_takes_part(const struct dt_plan *p)
{
    return p->in_place > 0 ? dt_plan_stands_for(p) : 1;
}
/* Samples of one aligned slot (DP_lm * M) and slots per iteration. */
int64_t dt_plan_slot_samples(const struct dt_plan *p, int llm);
int64_t dt_plan_slots(const struct dt_plan *p, int llm);
/* Slots whose items a module's replicas share out as one microbatch each; 0: it takes whole samples, slot by slot.  An
 * encoder or generator with more replicas than the batch has samples shares the items of each slot (1) unless it is told
 * otherwise. */
int64_t dt_plan_window(const struct dt_plan *p, int llm, int module);
/* Microbatches of the replica of a module that runs most: one of every window or slot; of a module with more replicas
 * than a slot has samples, those of single samples, dealt in turn. */
int64_t dt_plan_microbatches(const struct dt_plan *p, int llm, int module);
/* A plan for the model with every layout 1x1, empty splits, no frozen module, no recomputation and ZeRO 0: what callers
 * fill in. */
void dt_plan_init(struct dt_plan *p, const struct dt_model *m, const struct dt_plan_policy *policy);
/* Split n_blocks over v virtual stages so that the largest sum of cost[] is least (exact, binary search on the
 * bottleneck; ties put more blocks late).  cost[] >= 0. */
void dt_plan_split_blocks(const double *cost, int n_blocks, int v, uint16_t *split);

/* ---- placement (plan_place.c) ---- */

int dt_plan_gpus(const struct dt_plan *p); /* GPUs used by all modules; guests add none */
/* The module on whose GPUs this one lies in the end, over any chain of `with`: itself, if it has its own.  Of a colocated
 * plan the one with the most GPUs, for all of them. */
int dt_plan_host(const struct dt_plan *p, int module);
/* Do some modules lie on GPUs of others? */
bool dt_plan_shares(const struct dt_plan *p);
/* Do the last stage of module u and the first of module d take turns on the very same GPUs, so that they never overlap?
 * Of a colocated plan: always. */
bool dt_plan_takes_turns(const struct dt_plan *p, int u, int d);
/* Give every module its GPU range: pinned modules where they are stated to be; the others from GPU 0
 * on, wider lanes first, so that TP groups never straddle nodes; guests from their host's first GPU
 * on.  Checks capacity; that stated ranges lie apart, and guests inside of their hosts, is for
 * dt_plan_validate. */
enum dt_status dt_plan_place(struct dt_plan *p, const struct dt_cluster *c, struct dt_error *err);
/* Lanes tile nodes; modules lie inside the cluster, guests inside their hosts, and no others meet.  Part of
 * dt_plan_validate. */
enum dt_status dt_plan_check_places(const struct dt_plan *p, const struct dt_cluster *c,
                                    struct dt_error *err);
/* No module is pinned any more: for a plan of another cluster, or a part of a plan. */
void dt_plan_unpin(struct dt_plan *p);
/* Global GPU index of the first GPU of a lane (order inside a module: tp fastest, then dp, then pp). */
int dt_plan_lane_gpu(const struct dt_plan *p, int module, int replica, int stage);
/* Of ranks that hold the same parameters of a stage, how many more have room in the node in front of its first. */
int dt_plan_ranks_ahead(const struct dt_plan *p, int module, int stage, int gpus_per_node);
/* dt_plan_shard of a stage where it lies: of its groups that deal experts that which lies worst. */
struct dt_block_shard dt_plan_stage_shard(const struct dt_plan *p, int module, int stage,
                                          int gpus_per_node);

/* ---- validity ---- */

/* Can the experts of the module be dealt to groups of ep of the `copies` = dp*cp ranks that hold the same dense
 * parameters?  Expert groups are ep neighbours among these, tp GPUs apart; an expert is split by tp as a dense MLP is, so
 * that copies/ep ranks hold the same one. */
bool dt_plan_allows_ep(const struct dt_module *m, int ep, int copies);

/* Can the block be split over tp ranks: heads and key/value heads of a transformer block must divide, as
 * Megatron-LM asks; a U-Net's heads (5 at the first level of SD 2.1) are dealt unevenly and costed so. */
bool dt_block_allows_tp(const struct dt_block *b, int tp);
/* Structural validity against a model and cluster: divisibility, splits complete, heads % tp, GPUs fit. */
enum dt_status dt_plan_validate(const struct dt_plan *p, const struct dt_model *m,
                                const struct dt_cluster *c, struct dt_error *err);
/* Is block b of module m trained under this plan; is anything upstream of it trained. */
bool dt_plan_trained(const struct dt_plan *p, const struct dt_model *m, int module, int block);
bool dt_plan_upstream_trained(const struct dt_plan *p, const struct dt_model *m, int module,
                              int block);
/* Does the module's last virtual stage hand samples to the LLM, itself or through others: an encoder? */
bool dt_plan_feeds_llm(const struct dt_model *m, int module);
/* May the microbatches of a module be in two parts, the second of which goes to the LLM one microbatch later
 * (DT_ASSIGNMENT_ENTRAIN)? */
static inline bool dt_plan_defers(const struct dt_plan *p, const struct dt_model *m, int module)
{
    return p->policy.assignment == DT_ASSIGNMENT_ENTRAIN && dt_plan_feeds_llm(m, module);
}
/* Does DT_ASSIGNMENT_ENTRAIN go with the plan; part of dt_plan_validate (plan_entrain.c). */
enum dt_status dt_plan_check_entrain(const struct dt_plan *p, const struct dt_model *m,
                                     struct dt_error *err);
/* Does `ahead` go with the plan: along every path no stage holds more than the one in front of it; part of
 * dt_plan_validate (plan_warmup.c). */
enum dt_status dt_plan_check_warmup(const struct dt_plan *p, const struct dt_model *m,
                                    struct dt_error *err);
/* Does the plan say how far its stages are ahead? */
bool dt_plan_is_ahead(const struct dt_plan *p);
/* Do `phases` go with the plan; part of dt_plan_validate. */
enum dt_status dt_plan_check_phases(const struct dt_plan *p, const struct dt_model *m,
                                    struct dt_error *err);
/* Does virtual stage v of the module run its weight gradients apart from its backwards. */
bool dt_plan_splits_backward(const struct dt_plan *p, const struct dt_model *m, int module, int v);
/* What the modules have, for people: "selective", or "encoder full, llm none" where they differ.  Each returns buf. */
const char *dt_plan_recompute_text(const struct dt_plan *p, char *buf, size_t size);
const char *dt_plan_zero_text(const struct dt_plan *p, char *buf, size_t size);
const char *dt_plan_offload_text(const struct dt_plan *p, char *buf, size_t size);
/* Does any module keep its optimizer's state in host memory, and train anything? */
bool dt_plan_steps_on_host(const struct dt_plan *p, const struct dt_model *m);
/* The same, or does any have its parameters there for a time? */
bool dt_plan_offloads(const struct dt_plan *p, const struct dt_model *m);
/* Has the host a GPU of whose memory parameters of guests leave in between: does any guest of `module`, itself no guest, offload
 * them? */
bool dt_plan_hosts_offload(const struct dt_plan *p, int module);
/* Does `offload` go with the plan; part of dt_plan_validate (plan_offload.c). */
enum dt_status dt_plan_check_offload(const struct dt_plan *p, const struct dt_model *m, int module,
                                     const struct dt_cluster *c, struct dt_error *err);
/* trainable flag per block of a module, for dt_cost_stage (array of n_blocks bytes). */
void dt_plan_trainable(const struct dt_plan *p, const struct dt_model *m, int module,
                       unsigned char *out);

/* Of plan.json.  Version 1: policy.recompute and policy.zero, of all modules; 2: each module has its own. */
#define DT_PLAN_FORMAT "disttrain-plan"
enum { DT_PLAN_VERSION = 2 };
enum dt_status dt_plan_to_json(const struct dt_plan *p, struct dt_error *err, char **out);
enum dt_status dt_plan_parse(const char *name, const char *text, size_t len, struct dt_error *err,
                             struct dt_plan *out);
enum dt_status dt_plan_read(const char *path, struct dt_error *err, struct dt_plan *out);
/* The keys of a job's `plan:` map; MODULE stands for each module of the model. */
extern const struct dt_key dt_plan_map_keys[];
/* The same from a node: the `plan:` map of a job for strategy manual (module name -> {tp, cp, ep, ip, pp, vpp, dp,
 * first_gpu, frozen, recompute, zero, offload, split}); every module of the model must be named.  `base`: the plan without the
 * map.  Without `split` the blocks are divided by forward FLOPs of a nominal sample. */
enum dt_status dt_plan_from_node(struct dt_node node, const struct dt_model *m,
                                 const struct dt_plan *base, struct dt_error *err,
                                 struct dt_plan *out);
/* Such a map for a plan that there is: modules that it does not name, and keys that it does not state, stay as they
 * are; blocks are divided anew where there are other stages. */
enum dt_status dt_plan_change(struct dt_node node, const struct dt_model *m, struct dt_error *err,
                              struct dt_plan *plan);

#endif
