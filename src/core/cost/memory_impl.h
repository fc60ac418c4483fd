/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * What differs between implementations of a device: a row each, walked by memory_stage.c. */
#ifndef DT_CORE_COST_MEMORY_IMPL_H
#define DT_CORE_COST_MEMORY_IMPL_H

#include "core/cost/memory.h"

enum { DT_MEMORY_BUFFERS = 2 /* of a message: one in use, one in transfer */ };

/* What dt_memory_queue(), _deferred(), _held() and _beside_guests() say of a stage, for which what lies behind its module is
 * looked at once, and: */
struct dt_memory_flow {
    int queue, deferred, held, beside_guests;
    int losses; /* microbatches between forward and backward of the last block, which this stage need not have */
};
struct dt_memory_flow dt_memory_flow_of(const struct dt_plan *p, const struct dt_model *m,
                                        int module, int stage, int64_t n_microbatches);

struct dt_memory_lane { /* a stage, and the block that is looked at */
    const struct dt_plan *p;
    const struct dt_module *mod;
    const struct dt_plan_module *mp;
    const struct dt_memory_row *row;
    struct dt_block_shard shard;
    const struct dt_work *work;
    double elem;        /* bytes of an element between blocks */
    double tokens, own; /* of the fullest rank; its own between blocks under tp */
    int zero;           /* of the module, as far as the device goes along */
    double replicas;    /* that share moments, and more from ZeRO 2 on */
    double bucket,
        bucket_grads; /* parameters of the largest bucket, and of the largest with those trained alone */
    const struct dt_block *seen; /* the block that the next four numbers are of */
    /* routed experts' of params; sums over a stage, and over what it trains */
    double experts, expert_params, expert_grads;
    double params, whole, kept;  /* activations: all, and those that stay for the backward */
    double keys;                 /* keys and values of all ranks of context parallelism */
    int deferred;                /* microbatches whose weight gradients are put off, at most */
    double stash;                /* what a split backward leaves for the weight gradients */
    struct dt_memory_memo *memo; /* NULL: nothing is remembered */
    const uint16_t *run; /* then [n_blocks]: the first of the equal layers that a block ends */
};

struct dt_memory_row {
    /* bytes per parameter: as the device keeps it, its gradient, what the optimizer has besides */
    int param, grad, optimizer;
    int master;        /* of param, what goes to the host with the optimizer's */
    bool grads_of_all; /* of every parameter of a chunk that trains any, else of those trained */
    int act_elem;      /* bytes of an element of activations; 0 = of the job's precision */
    int messages;      /* copies of what enters and leaves: 2 = gradients have their own */
    bool workspace_shared; /* chunks take turns in one workspace, else each has its own */
    bool reserve; /* the device's reserve is charged to a stage (else taken off the limit) */
    /* Of block i.  `above`: it runs a backward. */
    double (*packed)(const struct dt_memory_lane *s, int i, bool above); /* copies of weights */
    /* What is left of `param` where the masters are the host's; NULL: all, they are copies of the host's */
    double (*exact)(const struct dt_memory_lane *s, int i);
    double (*wire)(const struct dt_memory_lane *s, int i); /* gathered, of a trained one */
    double (*working)(const struct dt_memory_lane *s, int i, bool above);
    double (*scratch)(const struct dt_memory_lane *s, int i, bool trained);
    /* Beside that, of each further microbatch between forward and backward; NULL: nothing. */
    double (*waiting)(const struct dt_memory_lane *s, int i);
    /* Of the blocks [first, last) of a chunk: beside the working set; kept per microbatch. */
    double (*beside)(const struct dt_memory_lane *s, int module, const struct dt_model *m,
                     int first, int last);
    double (*states)(const struct dt_memory_lane *s, int first, int last);
    double (*batch)(const struct dt_memory_lane *s); /* of a microbatch in flight */
    int spare; /* batches of a chunk that are on their way, beside those in flight */
};
extern const struct dt_memory_row dt_memory_row_cpu, dt_memory_row_executor,
    dt_memory_row_card; /* memory_cpu.c */
struct dt_block_cpu;
struct dt_block_cpu dt_memory_block(const struct dt_memory_lane *s, int i);
/* memory_card.c */
double dt_memory_card_scratch(const struct dt_memory_lane *s, int i, bool trained);

#endif
