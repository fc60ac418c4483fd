/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * What a lane takes of a CPU rank's memory when it is executed.  It differs from what a GPU is
 * charged (memory.h): the master copy is the parameters, products read copies of the weights in
 * layouts of their own, and temporaries, which a GPU's reserve covers, are counted.
 *
 *   master     4 B of every parameter; `grads` as many of all in a stage that trains any
 *   moments    8 B of trained parameters, over the replicas under ZeRO-1
 *   wire       what replicas gather of parameters under ZeRO-1, in a job's bf16: 2 B of matrices, 4 B
 *              of the rest; in fp32 they are gathered where they lie
 *   packed     weights of products in the job's precision, once as the forward reads them and once
 *              as the gradient of the input does (oneDNN's layouts); no tables
 *   activations kept by microbatches in flight, as in memory.h but in the job's precision
 *   workspace  of a stage: two tensors between blocks, the temporaries of the block that has most
 *              (gradients inside it; what recompute or no backward keeps out of the activations),
 *              gradients of skips and of conditioning states
 *   messages   tensors that enter and leave, and their gradients
 *   batches    ids, targets, pixels and noise of a microbatch
 *   scratch    of kernels: logits of a chunk of rows and their gradient, or the gathered rows and
 *              the sum of a filter's gradient.  One for all lanes of a rank: not in `total`. */
#ifndef DT_CORE_COST_MEMORY_CPU_H
#define DT_CORE_COST_MEMORY_CPU_H

#include "core/model/plan.h"

struct dt_memory_cpu { /* bytes */
    double master, grads, moments, wire, packed, activations, workspace, messages, batches, total;
    double scratch;
};

/* `work`: the largest microbatch; elem_bytes: 2 = bf16, 4 = fp32. */
void dt_memory_cpu_stage(const struct dt_plan *p, const struct dt_model *m,
                         const struct dt_cluster *c, int module, int stage,
                         const struct dt_work *work, int64_t n_microbatches, int elem_bytes,
                         struct dt_memory_cpu *out);

#endif
