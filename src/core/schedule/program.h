/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Program: THE SCHEDULE.  Lanes of ops with explicit dependencies; what sim/ and exec/ walk.
 *
 *  lane = one pipeline stage of one replica of one module: the tp*cp*ip GPUs that act in lockstep.
 *  Each lane has five in-order resources:
 *     compute    | FORWARD, BACKWARD, WEIGHT_GRAD, STEP (of an offloaded optimizer the host's)
 *     p2p out    | SEND
 *     p2p in     | RECV, FETCH
 *     collective | GRAD_SYNC, PARAM_GATHER, GRAD_NORM
 *     host link  | OFFLOAD, RELOAD
 *  Ops of one lane are contiguous in ops[]; ops of one resource run in array order.
 *
 *  producer op -> SEND (p2p out) ....link.... RECV (p2p in) -> consumer op
 *
 * Timing rules (both evaluators and the executor's recorder):
 *  - an op begins when all its dependencies have ended (dep[0] is the previous op on its resource);
 *  - FETCH lasts its duration, from when its input is there if that is later than its begin (release_ns);
 *  - SEND is buffered: it does not wait for the receiver; it lasts alpha + bytes/bandwidth;
 *  - RECV depends on its SEND; begin = max(previous on p2p in, SEND.begin), end = max(begin, SEND.end);
 *  - a collective op belongs to a group: it begins when every member is ready and lasts as long as its longest
 *    member; all members begin together and end together.
 */
#ifndef DT_CORE_SCHEDULE_PROGRAM_H
#define DT_CORE_SCHEDULE_PROGRAM_H

#include "base/json.h"
#include "core/schedule/assign.h"
#include "core/model/plan.h"

enum dt_op_kind {
    DT_OP_FORWARD,
    DT_OP_BACKWARD, /* input and weight gradients together; the former alone where WEIGHT_GRAD follows */
    DT_OP_WEIGHT_GRAD, /* weight gradient alone (schedules that split the backward) */
    DT_OP_SEND,
    DT_OP_RECV,
    DT_OP_GRAD_SYNC, /* ZeRO 0: all-reduce; 1: reduce-scatter, 2 and 3: of each microbatch; over the DP group of a
                      * stage */
    DT_OP_GRAD_NORM, /* scalar all-reduce over every lane that trains something */
    DT_OP_STEP,
    DT_OP_PARAM_GATHER, /* all-gather of parameters; ZeRO 1 and 2: before the first use of the iteration, 3: each */
    DT_OP_FETCH,   /* wait for this microbatch's input data (CPU side; zero cost unless modelled) */
    DT_OP_OFFLOAD, /* of a guest: its parameters are copied to the host; they leave the device when it has ended and the
                    * last forward has */
    DT_OP_RELOAD,  /* they come back, before the first backward (none: before the next iteration) */
    DT_OP_KIND_N
};
extern const char *const dt_op_kind_names[DT_OP_KIND_N + 1];
enum dt_op_resource {
    DT_RES_COMPUTE,
    DT_RES_P2P_OUT,
    DT_RES_P2P_IN,
    DT_RES_COLL,
    DT_RES_HOST,
    DT_RES_N
};
static inline enum dt_op_resource dt_op_resource(enum dt_op_kind k)
{
    static const uint8_t of[DT_OP_KIND_N + 1] = {
        [DT_OP_SEND] = DT_RES_P2P_OUT,        [DT_OP_RECV] = DT_RES_P2P_IN,
        [DT_OP_FETCH] = DT_RES_P2P_IN,        [DT_OP_GRAD_SYNC] = DT_RES_COLL,
        [DT_OP_GRAD_NORM] = DT_RES_COLL,      [DT_OP_PARAM_GATHER] = DT_RES_COLL,
        [DT_OP_FORWARD] = DT_RES_COMPUTE,     [DT_OP_BACKWARD] = DT_RES_COMPUTE,
        [DT_OP_WEIGHT_GRAD] = DT_RES_COMPUTE, [DT_OP_STEP] = DT_RES_COMPUTE,
        [DT_OP_OFFLOAD] = DT_RES_HOST,        [DT_OP_RELOAD] = DT_RES_HOST,
        [DT_OP_KIND_N] = DT_RES_COMPUTE,
    };

    return (enum dt_op_resource)of[k < DT_OP_KIND_N ? k : DT_OP_KIND_N];
}

#define DT_NONE UINT32_MAX
enum {
    DT_OPF_GRAD =
        1, /* SEND/RECV carries gradients (backward direction); PARAM_GATHER is for a backward */
    DT_OPF_BOUNDARY = 2, /* SEND/RECV between modules (through a broker) */
    /* GRAD_SYNC of an embedding shared by the first and last stage of one replica: an all-reduce
     * over those two lanes, after their data-parallel syncs */
    DT_OPF_TIED = 4
};

struct dt_op {    /* 48 bytes */
    uint8_t kind; /* enum dt_op_kind */
    uint8_t module;
    uint8_t chunk; /* vpp chunk */
    uint8_t flags; /* DT_OPF_* */
    /* bucket part of the first forward / last backward (ZeRO 3 / 2: of each), GRAD_SYNC, PARAM_GATHER; 0 of 1 else */
    uint8_t part, parts;
    uint16_t more_n; /* further dependencies: deps[more_first .. +more_n) */
    uint16_t stage, replica;
    /* microbatch index within the replica of this module; DT_NONE for step, norm, and syncs and gathers that are done
     * once an iteration */
    uint32_t mb;
    uint32_t lane;
    /* SEND/RECV: the peer op's index (a RECV's SEND is named here, not in dep[]); collectives:
     * group index; else DT_NONE */
    uint32_t peer;
    /* SEND/RECV payload; collectives: full buffer per lane GPU (nccl-tests convention) */
    uint64_t bytes;  /* the same of OFFLOAD and RELOAD: per GPU */
    uint32_t dep[3]; /* op indices or DT_NONE; dep[0] = previous on the same resource */
    uint32_t more_first;
};

struct dt_lane {
    uint32_t first, n; /* ops */
    uint16_t module, stage, replica, gpus;
    uint32_t first_gpu;
    uint32_t in_flight_max; /* the bound charged by the memory model (chunk-microbatches) */
};
struct dt_group { /* members of one collective: group_ops[first .. first+n) are op indices */
    uint32_t first, n;
    uint8_t kind;      /* enum dt_op_kind */
    uint16_t per_node; /* lanes' GPUs that a node has room for (for the cost model) */
    uint16_t ahead;    /* places of its first node that are in front of them */
    uint16_t share;    /* such groups that use the node's NICs at the same time */
    /* Expert parallelism: of the ops' bytes those of experts, which ep times fewer ranks hold */
    uint64_t expert_bytes;
};

struct dt_program {
    int n_lanes;
    uint32_t n_ops, n_deps, n_groups, n_group_ops;
    struct dt_lane *lanes;
    struct dt_op *ops;
    uint32_t *deps;
    struct dt_group *groups;
    uint32_t *group_ops;
    /* [n_ops] of each FETCH, when its input is there, ns from the begin of the iteration; 0 of other ops.  NULL: all
     * input is there from the begin (schedule/supply.h) */
    int64_t *release_ns; /* borrowed */
    /* Steps of modules that offload the optimizer are the host's, and their GPUs are idle: not where devices are CPUs. */
    bool steps_on_hosts;
    const struct dt_plan *plan;             /* borrowed */
    const struct dt_assignment *assignment; /* borrowed */
    struct dt_arena arena;
};
void dt_program_free(struct dt_program *p);
/* Does a GPU do nothing during this op of its compute resource? */
static inline bool dt_program_on_host(const struct dt_program *p, const struct dt_op *op)
{
    return op->kind == DT_OP_STEP && p->steps_on_hosts &&
           dt_plan_offloads_optimizer(&p->plan->modules[op->module]);
}
/* When an op that could begin at `at` begins to last its duration. */
static inline int64_t dt_program_released(const struct dt_program *p, uint32_t i, int64_t at)
{
    return p->release_ns && p->release_ns[i] > at ? p->release_ns[i] : at;
}

/* Proves, from plan, assignment and model alone and with no code of the compiler:
 *  - lanes, resources and indices are in order; nothing waits in a circle, messages and groups included;
 *  - every forward once and every backward once, or none where nothing is trained; weight gradients apart from it once
 *    where the schedule splits the backward, else none;
 *  - every message and fetch that the samples ask for once, of their bytes, after what makes it and before what uses it;
 *    messages of two lanes are received in the order in which they are sent;
 *  - lanes hold what memory was charged for, and no more messages wait than there are buffers for;
 *  - parameters that are offloaded are there when they are used, and their memory is used by nobody until they have left;
 *  - gathers come before the first use, syncs after the last gradient of their part, the norm after all of them, the
 *    step after the norm; groups have the members and bytes that the plan gives them.
 * "After" is what dependencies imply, less the turns of messages (doc/program.md).  DT_ERR_INTERNAL on the first
 * violation, with lane, op and what was expected. */
enum dt_status dt_program_check(const struct dt_program *p, const struct dt_model *m,
                                struct dt_error *err);
/* One line per op: "llm/3.2 F mb=5 chunk=0 deps=..." into a growing buffer; lane -1 = all.  Caller dt_free()s. */
enum dt_status dt_program_print(const struct dt_program *p, int lane, struct dt_error *err,
                                char **out);
/* The same as members of an open object: "lanes" with their ops, and the sizes of the "groups". */
enum dt_status dt_program_json(const struct dt_program *p, int lane, struct dt_json *j,
                               struct dt_error *err);
/* 64-bit digest of everything above (for runs, equality of ranks, determinism tests). */
uint64_t dt_program_digest(const struct dt_program *p);

#endif
