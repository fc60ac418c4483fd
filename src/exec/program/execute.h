/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * The executor: walks a program with real modules and records when each op began and ended.
 *
 * It decides no order.  Every rank has the whole program and walks the ops of its lanes; a process
 * alone hosts all of them.  One total order that follows the dependencies is taken from the
 * program, and every op does what it says:
 *
 *   FETCH        samples of the microbatch become the batch of the lane's module
 *   FORWARD ...  the stage's blocks (of a bucket part) on the lane's device
 *   SEND, RECV   between lanes of a rank: a hand-off; rows are copied only where the microbatches
 *                of both sides differ.  Between ranks: a message of the rows that are wanted
 *   GRAD_SYNC    the sum over replicas: ZeRO-1 leaves each rank its piece, ZeRO-0 all of it
 *   GRAD_NORM    the norm over everything that is trained, each parameter once
 *   STEP         AdamW over what the rank owns, unless the caller declines
 *   PARAM_GATHER every rank gets the pieces that others stepped
 *
 * Messages and collectives between ranks are begun by a communication thread as soon as what they
 * wait for has ended; all else runs on the calling thread.
 *
 * What a lane keeps of a microbatch between its forward and its backward (dt_exec_microbatch), its
 * batches and buffers are made when first needed and used again, so a step allocates nothing of
 * their size once the largest shapes have been seen. */
#ifndef DT_EXEC_PROGRAM_EXECUTE_H
#define DT_EXEC_PROGRAM_EXECUTE_H

#include "base/finite.h"
#include "core/schedule/timeline.h"
#include "exec/program/batching.h"
#include "exec/modules/module.h"
#include "exec/program/optimizer.h"
#include "comm/transport.h"

struct dt_supervisor;

struct dt_exec_options {
    const struct dt_device *device;
    const struct dt_model *model;   /* one encoder, one LLM, one generator at most */
    const struct dt_plan *plan;     /* layouts without ip; cp and ep of the LLM alone */
    struct dt_transport *transport; /* NULL = this process alone; else every rank calls with equal
                                       options */
    struct dt_transport *data;      /* between the same ranks, of the device's memory; NULL =
                                       opened over `transport`, as `over` says */
    enum dt_transport_over over;
    struct dt_supervisor *supervisor; /* is told what this rank does; NULL = nobody */
    double limit_s;                   /* of a message or collective; 0 = the transport's */
    int64_t clock_ahead_ns;           /* of this rank's dt_clock_ns before rank 0's */
    enum dt_dtype dtype;
    struct dt_optimizer_options optimizer;
    const struct dt_diffusion *diffusion; /* NULL without a generator */
    double text_weight, image_weight;     /* of the two losses in the sum */
    double dropout;                       /* of transformer layers; modules/module.h */
    const struct dt_device
        *host; /* a CPU whose kernels and memory serve what is offloaded; NULL: opened here */
    int host_threads;   /* then, where the device is no CPU itself; 0 = one per core */
    size_t ferry_bytes; /* of a stretch that checkpoints copy, equal on all ranks; 0 = ferry.h's */
    uint64_t seed;      /* of parameters, timesteps, noise and dropout */
};

struct dt_exec_result {
    double loss;       /* weighted sum of the two below */
    double loss_text;  /* nats per target token, mean over all targets of the global batch */
    double loss_image; /* mean squared error of the noise, mean over the images to draw */
    int64_t targets, images, tokens, encoded;
    double grad_norm; /* before clipping; 0 when nothing is trained */
    double lr;
    bool applied;  /* false: no parameter and no moment has changed */
    double signal; /* of the inputs of all ranks, added up */
    double compute_s,
        waited_s; /* of this rank: in compute ops; its compute queue stood still until others had
                                 * done something, by the device's clock */
    /* Experts, else 0.  A forward is that of one layer for one microbatch (of all members of an expert group). */
    double expert_forwards;
    double
        balance; /* mean of experts * sum of (share of choices) * (mean p): 1 where all is even */
    double busiest
        [DT_LOAD_N]; /* rows of the busiest over the mean (modules/module.h), mean over forwards */
};

/* Says whether the step is made, knowing what the iteration has come to: all of the result from `loss`
 * to `lr`.  Every rank is asked once, with the same numbers to the bit, and must say the
 * same. */
typedef bool dt_exec_accept_fn(void *ctx, const struct dt_exec_result *r);

/* The samples of one iteration: what the program's assignment counts. */
struct dt_exec_input {
    const struct dt_sequence *const *seqs;
    int64_t n;
    int64_t step;              /* counted from 1 */
    double signal;             /* whatever; see the result */
    dt_exec_accept_fn *accept; /* NULL: whatever is finite */
    void *accept_ctx;
};

/* What dt_supervisor_doing was told, in words: "llm/0.1 F of microbatch 3". */
void dt_exec_describe(const struct dt_model *m, int module, int op, int64_t microbatch, char *buf,
                      size_t size);

struct dt_exec;
/* Builds stages and optimizers of every lane and initialises the parameters by name from the seed,
 * equal for every layout.  Stages grow when larger microbatches come. */
enum dt_status dt_exec_new(const struct dt_exec_options *opt, struct dt_error *err,
                           struct dt_exec **out);
void dt_exec_free(struct dt_exec *x);
/* What the transport between devices does without, and why, in a line; "" = nothing. */
const char *dt_exec_note(const struct dt_exec *x);

/* One iteration.  `p` was compiled for this plan and an assignment whose samples are 0 .. n-1 of
 * `in`. The timeline may be NULL (at all ranks or none); rank 0 gets that of all of them.
 * Collective: every rank has the same program and gets the same result. */
enum dt_status dt_exec_run(struct dt_exec *x, const struct dt_program *p,
                           const struct dt_exec_input *in, struct dt_error *err,
                           struct dt_timeline *timeline, struct dt_exec_result *out);

/* Of the last iteration, on every rank: of each of its n samples the sum of the losses of its
 * targets, then likewise those of its images, each unweighted. */
const double *dt_exec_losses(const struct dt_exec *x);

/* The first tensor, in the order of modules and of their parameters, with values that are not
 * finite. */
struct dt_exec_culprit {
    char name[160]; /* "llm.model.layers.0.mlp.up_proj.weight"; "" = there is none */
    struct dt_nonfinite bad;
    uint64_t values; /* of the tensor */
};
/* Of the parameters, and of the gradients of the last iteration.  Collective. */
enum dt_status dt_exec_find_nonfinite(struct dt_exec *x, struct dt_error *err,
                                      struct dt_exec_culprit *param, struct dt_exec_culprit *grad);

/* Of the last iteration, as above. */
enum dt_status dt_exec_timeline(struct dt_exec *x, const struct dt_program *p, struct dt_error *err,
                                struct dt_timeline *out);
/* After the last iteration, before parameters are read: what others have stepped, exactly (training
 * in bf16 itself makes do with less, execute_gather.c).  Collective. */
enum dt_status dt_exec_gather(struct dt_exec *x, struct dt_error *err);

/* The stage that holds virtual stage v of a replica, and its optimizer (checkpoints, tests).
 * Replicas hold equal parameters.  NULL: it is on another rank. */
struct dt_stage *dt_exec_stage(const struct dt_exec *x, int module, int replica, int v);
struct dt_optimizer *dt_exec_optimizer(const struct dt_exec *x, int module, int replica, int v);
/* Masters were written from outside: copies what replica 0 holds to the others and tells all. */
enum dt_status dt_exec_changed(struct dt_exec *x, struct dt_error *err);

/* Parameters and moments of the model, whole, for checkpoints.  They are collected in the host's memory and
 * taken from it, stretch by stretch; none of this takes device memory, and a CPU's only until all is collected. */
struct dt_exec_part {
    int module, v;
    const struct dt_param *params; /* of the whole virtual stage */
    int n_params;
    float *master; /* host memory, laid out like `params`; NULL in parts to read into */
    float *exp_avg, *exp_avg_sq;  /* likewise; NULL, too, where nothing is trained */
    const unsigned char *trained; /* per parameter */
    void *impl, *own;
};
struct dt_exec_whole {
    struct dt_exec_part *part; /* virtual stages in the order of modules */
    int n;
    void *impl;
};
/* All parts, to read into; or this rank's share, to write: every part is one rank's. */
enum dt_status dt_exec_whole_new(struct dt_exec *x, struct dt_error *err,
                                 struct dt_exec_whole *out);
enum dt_status dt_exec_share_new(struct dt_exec *x, struct dt_error *err,
                                 struct dt_exec_whole *out);
void dt_exec_whole_free(struct dt_exec_whole *w);
/* `w` is this rank's share, and gets what the ranks hold of it.  Collective, after dt_exec_gather.
 */
enum dt_status dt_exec_collect(struct dt_exec *x, struct dt_exec_whole *w, struct dt_error *err);
/* What a parameter of a part is from now on, all of it: this rank takes what is its own.  The values are the
 * caller's again at once. */
enum dt_status dt_exec_put(const struct dt_exec_part *part, enum dt_param_what what, int param,
                           const float *values, struct dt_error *err);
/* All has been put (on every rank). */
enum dt_status dt_exec_put_end(struct dt_exec *x, struct dt_error *err);

/* v[n] becomes the sum over ranks.  Collective; alone it does nothing. */
enum dt_status dt_exec_sum(struct dt_exec *x, double *v, size_t n, struct dt_error *err);
/* Bytes in use on the device, now and at most. */
void dt_exec_memory(const struct dt_exec *x, int64_t *now_bytes, int64_t *max_bytes);
/* Bytes in the host's memory of what is offloaded. */
int64_t dt_exec_host_memory(const struct dt_exec *x);
/* Of dt_exec_memory, those of a lane (of this rank's member) now: all but the workspaces of kernels and buffers
 * that are between two messages.  0 when it is elsewhere. */
int64_t dt_exec_lane_memory(const struct dt_exec *x, int module, int replica, int stage);
/* Microbatches of a virtual stage in use at once, at most so far: its microbatches in flight. */
int dt_exec_in_flight(const struct dt_exec *x, int module, int replica, int v);

#endif
