/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * AdamW over the trained parameters of a stage, the learning-rate schedule, and what is decayed.
 *
 * Decoupled weight decay (Loshchilov & Hutter 2019) pulls on matrices and filters only: not on
 * biases, not on norms, not on the token table and learned positions of the LLM (nor on the head's
 * copy of a shared table, which must stay equal to it). */
#ifndef DT_EXEC_PROGRAM_OPTIMIZER_H
#define DT_EXEC_PROGRAM_OPTIMIZER_H

#include "exec/modules/module.h"
#include "kernels/kernels.h"

enum dt_optimizer_decay { DT_LR_CONSTANT, DT_LR_COSINE, DT_LR_N };
extern const char *const dt_optimizer_decay_names[]; /* "constant", "cosine", NULL */

struct dt_optimizer_options {
    double lr, min_lr;    /* cosine ends at min_lr */
    int64_t warmup_steps; /* step 1 has lr / warmup_steps */
    enum dt_optimizer_decay decay;
    int64_t steps; /* the last one of the schedule */
    double beta1, beta2, eps, weight_decay;
    double clip; /* of the global gradient norm; 0 = none */
};
void dt_optimizer_defaults(struct dt_optimizer_options *o);
/* Learning rate of a step, counted from 1: of the last one min_lr, but of a run of one step lr. */
double dt_optimizer_lr(const struct dt_optimizer_options *o, int64_t step);

struct dt_optimizer_segment { /* consecutive floats that are treated alike */
    size_t at, n;
    size_t moment; /* where its moments begin */
    bool decay, tied;
    bool idle;    /* nothing reads them: without a gradient, they would only decay */
    bool counted; /* in the gradient norm, on this rank */
};
/* Floats of the flat buffers that a rank steps. */
struct dt_optimizer_owned {
    size_t at, n;
    bool counted; /* no other rank counts them in the gradient norm */
};
struct dt_optimizer_host;
struct dt_optimizer_chunk;
struct dt_optimizer {
    const struct dt_device *dev;
    struct dt_stage *stage;
    float *exp_avg, *exp_avg_sq; /* device memory, `moments` floats; NULL when nothing is stepped */
    size_t moments;              /* of all: laid out like the stage's parameters */
    bool sharded;                /* only of what is owned, segment after segment */
    /* Stepped on the host (optimizer_host.h): these, and the masters of the stage, are in the host's memory; `master` is laid
     * out like the moments, and has what is not trained, too: where it would lie, or behind them */
    const char *name;               /* the module's */
    struct dt_optimizer_host *host; /* NULL: on the device, of the stage's masters */
    bool offloaded;                 /* that, of a layout, too; false where nothing is stepped */
    float *master;
    size_t masters;                    /* floats */
    struct dt_optimizer_segment *kept; /* in it: what is not trained */
    int n_kept;
    struct dt_optimizer_chunk *chunks;
    int n_chunks;
    struct dt_optimizer_segment *segments;
    int n_segments;
    struct dt_kernel_adamw_part *stepped; /* per segment */
    struct dt_kernel_span *counted;       /* gradients of those in the norm */
    int n_counted;
    unsigned char *trained; /* per parameter of the stage */
};
/* What a rank steps of a stage. */
struct dt_optimizer_spec {
    const struct dt_module *module;
    struct dt_stage *stage;
    int member; /* of the tensor-parallel ranks of the stage; what they all hold is counted by the first */
    const struct dt_optimizer_owned
        *owned; /* NULL: all.  Else moments are kept of these floats only, which ascend */
    int n_owned;
    bool offloaded; /* the host steps it */
};
/* `host`: open, of an offloaded one, whose masters are taken on `q` behind dt_stage_init; else NULL. */
enum dt_status dt_optimizer_init(struct dt_optimizer *o, const struct dt_device *dev,
                                 const struct dt_optimizer_spec *spec,
                                 struct dt_optimizer_host *host, struct dt_device_queue *q,
                                 struct dt_error *err);
/* The same without memory: which moments there are, and where they lie.  To be freed, too. */
enum dt_status dt_optimizer_layout(struct dt_optimizer *o, const struct dt_optimizer_spec *spec,
                                   struct dt_error *err);
void dt_optimizer_free(struct dt_optimizer *o);
/* The stage's parameters lie elsewhere now (dt_stage_return). */
void dt_optimizer_moved(struct dt_optimizer *o);
/* *sq (device memory) += squares of the gradients; copies of shared tables are left out. */
void dt_optimizer_sum_sq(struct dt_device_queue *q, const struct dt_optimizer *o, double *sq);
/* What scales the gradients: in device memory, and what the host knows of it (of optimizers that step there). */
struct dt_optimizer_coef {
    const float *device;
    float host;
};
/* One step.  The stage's weights are told. */
void dt_optimizer_step(struct dt_device_queue *q, struct dt_optimizer *o,
                       const struct dt_optimizer_options *opt, int64_t step,
                       const struct dt_optimizer_coef *coef, int first_block, int last_block);

#endif
