/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * What the files of dt_program_check share.
 *
 * Nothing here comes from the compiler (tests/lint.sh holds that): what must be in a program is
 * worked out again from the plan, the assignment and the model, as doc/program.md states it.  Taken
 * as given are the model's own facts (blocks, their parameters, the tensors behind a block), what a
 * plan trains and where it puts a lane, and the bounds that the memory model charges for. */
#ifndef DT_CORE_SCHEDULE_PROGRAM_CHECK_IMPL_H
#define DT_CORE_SCHEDULE_PROGRAM_CHECK_IMPL_H

#include "base/mem.h"
#include "core/model/boundary.h"
#include "core/schedule/program.h"

/* Compute ops of one microbatch in one virtual stage: first and last part, DT_NONE = none. */
struct dt_check_work {
    uint32_t f, f_end, b, b_end, w, w_end;
    /* a bit for each part that has a collective of its own: gathers for the forward and for the backward, syncs */
    uint8_t own[3];
};

struct dt_check_vstage {
    int first, n;                /* blocks */
    bool backward;               /* trains something, or something upstream of it does */
    bool trains;                 /* has parameters of its own that are trained */
    bool split;                  /* their gradients are an op of their own */
    int sync_parts;              /* buckets of its gradients; 0: nobody to share them with */
    int gather_parts;            /* buckets of its parameters; 0: every replica has them */
    bool sync_each, gather_each; /* at every microbatch (ZeRO 2; ZeRO 3) */
    uint64_t token_bytes[DT_LEVEL_MAX],
        item_bytes; /* of what it hands on, by level of the tokens */
};

struct dt_check_module {
    const struct dt_assignment_module *a;
    int pp, vpp, dp, n_v;
    uint32_t n_mb;              /* over all replicas */
    struct dt_check_vstage *v;  /* [n_v] */
    struct dt_check_work *work; /* [n_mb * n_v] */
    /* [n_mb * n_v]: RECV of what virtual stage v takes from a neighbour: activations, gradients */
    uint32_t (*inner)[2];
};

/* Samples that an upstream and a downstream microbatch have in common. */
struct dt_check_transfer {
    uint32_t u, d, u_mb, d_mb; /* modules; microbatches over all replicas */
    uint64_t bytes;
    uint32_t recv[2]; /* activations, gradients */
};

struct dt_check {
    const struct dt_program *p;
    const struct dt_model *model;
    struct dt_error *err;
    struct dt_check_module m[DT_MAX_MODULES];
    uint32_t n_transfers;
    struct dt_check_transfer *transfer; /* sorted by u, u_mb, d, d_mb */
    uint32_t *order,
        *position; /* of every op in one topological order; members of a group share one */
    uint32_t *stack, *seen, stamp; /* of dt_check_after */
    struct dt_arena arena;
};

/* Fills the error with where and what op i is, then the text; returns DT_ERR_INTERNAL. */
enum dt_status dt_check_fail(const struct dt_check *c, uint32_t i, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
static inline int dt_check_v(const struct dt_check *c, const struct dt_op *op)
{
    return op->chunk * c->m[op->module].pp + op->stage;
}
static inline uint32_t dt_check_mb(const struct dt_check *c, const struct dt_op *op)
{
    return c->m[op->module].a->mb_first[op->replica] + op->mb;
}
/* Microbatches of a replica. */
static inline uint32_t dt_check_count(const struct dt_check *c, int module, int replica)
{
    const uint32_t *first = &c->m[module].a->mb_first[replica];

    return first[1] - first[0];
}
static inline struct dt_check_work *dt_check_at(const struct dt_check *c, int module, uint32_t mb,
                                                int v)
{
    return &c->m[module].work[(size_t)mb * (size_t)c->m[module].n_v + (size_t)v];
}
static inline bool dt_check_is_work(const struct dt_op *op)
{
    return op->kind == DT_OP_FORWARD || op->kind == DT_OP_BACKWARD || op->kind == DT_OP_WEIGHT_GRAD;
}

/* The op that completes a microbatch's gradients of a virtual stage. */
static inline uint32_t dt_check_gradients(const struct dt_check_vstage *v,
                                          const struct dt_check_work *w)
{
    return v->split ? w->w : w->b;
}

/* Do two lanes share GPUs? */
static inline bool dt_check_meet(const struct dt_lane *a, const struct dt_lane *b)
{
    return a->first_gpu < b->first_gpu + b->gpus && b->first_gpu < a->first_gpu + a->gpus;
}

/* program_check_graph.c: nothing waits in a circle; fills order and position. */
enum dt_status dt_check_order(struct dt_check *c);
/* Does op `later` (no RECV) begin only when op `earlier` has ended, by its dependencies and theirs?
 * What one message's turn behind another implies does not count: the executor hands messages on
 * inside a process without waiting for their turn (exec/program/execute_graph.c). */
bool dt_check_after(struct dt_check *c, uint32_t later, uint32_t earlier);

/* program_check_plan.c: fills m[] and transfer[]. */
enum dt_status dt_check_expect(struct dt_check *c);
/* The order of transfer[], for qsort and bsearch. */
int dt_check_by_place(const void *a, const void *b);
/* Bytes that virtual stage v hands on for a microbatch. */
uint64_t dt_check_wire(const struct dt_check *c, int module, int v, uint32_t mb);
/* Does a GPU of the lane hold parameters of blocks [first, first + n), of those trained or of all?  Are they of `bytes`
 * at `each` bytes, with `vectors` more for those that are no matrices? */
bool dt_check_shared(const struct dt_check *c, int module, int first, int n, bool all);
bool dt_check_bytes(const struct dt_check *c, int module, int first, int n, bool all, uint64_t each,
                    uint64_t vectors, uint64_t bytes);
/* The same of its experts, with expert parallelism; else 0. */
bool dt_check_expert_bytes(const struct dt_check *c, int module, int first, int n, bool all,
                           uint64_t each, uint64_t vectors, uint64_t bytes);

/* program_check_work.c: every forward and backward once; what lanes hold. */
enum dt_status dt_check_compute(struct dt_check *c);
enum dt_status dt_check_held(struct dt_check *c);
/* program_check_data.c: sends and receives name each other; every transfer once, from its producer to
 * its consumer. */
enum dt_status dt_check_pairs(struct dt_check *c);
enum dt_status dt_check_data(struct dt_check *c);
/* program_check_sync.c: groups and their members; collectives and steps of every lane. */
enum dt_status dt_check_groups(struct dt_check *c);
enum dt_status dt_check_sync(struct dt_check *c);
/* program_check_host.c: parameters that are offloaded. */
enum dt_status dt_check_host(struct dt_check *c);

#endif
