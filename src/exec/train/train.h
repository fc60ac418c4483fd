/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Training: take a global batch and its program, made while the step before ran; execute it; log,
 * save, go on.  There is no other training loop. */
#ifndef DT_EXEC_TRAIN_TRAIN_H
#define DT_EXEC_TRAIN_TRAIN_H

#include "exec/train/prefetch.h"
#include "exec/train/train_trouble.h"
#include <signal.h>

struct dt_train_step { /* what is known after a step */
    int64_t step, steps;
    struct dt_exec_result r;
    double step_s;         /* the executed iteration */
    double data_s;         /* waiting for its batch before it */
    const char *order;     /* of its samples, where each batch has its own; NULL: the plan's */
    double reference_s[2]; /* the reference kernel before and after, means of ranks; 0 = not run */
    bool reference_steady; /* these were the same */
    int reference_ranks;   /* so many, of each the geometric mean of both; until the next step */
    const double *reference_rank_s;
    double tokens_per_s, samples_per_s; /* of both together */
    double mfu; /* model FLOPs over step_s and the measured GEMM peak; NAN where that cannot be */
    double eta_s;
    int64_t documents, bad_documents; /* since this process began */
    struct dt_train_trouble trouble;  /* this one included */
};
typedef void dt_train_fn(void *ctx, const struct dt_train_step *s);
typedef void dt_train_event_fn(void *ctx, const struct dt_train_event *e);

struct dt_supervisor;

struct dt_train_options {
    const struct dt_setup *setup;
    struct dt_transport *transport;   /* NULL = alone; else every rank calls with an equal setup */
    struct dt_supervisor *supervisor; /* of its ranks; NULL = nobody watches */
    bool from_scratch;                /* do not go on from a checkpoint */
    bool changed_data;                /* go on although the data is not what it was */
    int64_t reference_every; /* iterations between runs of the reference kernel; 0 = never */
    /* Orders of samples that take turns, from scratch, in all steps of the job, which are as many; NULL = none; stays the caller's,
     * longer than the summary. */
    const struct dt_train_turns *turns;
    const char *run_id;         /* go on from this run's checkpoints only, or begin it; NULL =
                                          from what is there */
    const struct dt_warn *warn; /* of rank 0; NULL = nobody listens */
    const volatile sig_atomic_t *stop; /* not 0 on some rank: all save and stop after the same step;
                                          NULL = never */
    dt_train_fn *on_step;              /* on rank 0; NULL = none */
    dt_train_event_fn *on_event; /* likewise, of a step that was not like others, before on_step;
                                          not of the one that ends training, which is an error */
    void *ctx;
};

struct dt_train_rank_memory {
    int64_t allocated_bytes; /* at most, on its device */
    int64_t predicted_bytes; /* by the memory model, of its lanes */
    int64_t allocated_host_bytes,
        predicted_host_bytes; /* of what is offloaded; 0 where nothing is */
};

/* Of a lane's first member: without the workspace of kernels, which lanes of a rank share. */
struct dt_train_lane_memory {
    int rank;
    int64_t allocated_bytes, predicted_bytes;
};

struct dt_train_summary {
    int64_t first_step, last_step; /* done by this process: first_step + 1 .. last_step */
    bool resumed, stopped;
    char checkpoint[1200]; /* the last one written or found; "" = none */
    char run_id[DT_RUN_ID_SIZE];
    struct dt_train_step last; /* that was made */
    struct dt_train_trouble trouble;
    double best_loss, mean_step_s, train_s; /* train_s: of all processes together */
    double mfu, gemm_peak_flops;            /* mean; NAN where that cannot be, of all ranks */
    int gemm_peak_side;                     /* rows and columns of the product */
    bool mfu_refused;                       /* of some step; it was said why */
    int64_t tokens, samples;                /* of all processes together */
    double share_outside; /* of the time of this process's iterations between compute ops */
    double share_waited;  /* of the same: waiting for other ranks */
    /* Experts: mean over the forwards of this process's iterations, as in the result of one; 0 without experts. */
    double expert_forwards, balance, busiest[DT_LOAD_N];
    int ranks;
    int64_t memory_max_bytes;            /* of the rank that took most */
    struct dt_train_rank_memory *memory; /* [ranks]; NULL when no step was done */
    struct dt_train_lane_memory *lanes;  /* [n_lanes of the program]; likewise */
    struct dt_ckpt_init_report init;     /* when weights were read */
    struct dt_data_report data;
    struct dt_prefetch_report loading; /* of this rank */
    double *decoded;                   /* [ranks] images */
    struct dt_orch_mix_found *mix;     /* on rank 0, the last that was told of; NULL: nothing */
    int64_t mix_step;                  /* then */
    /* The last iteration, for the runs file; dt_train_summary_free. */
    struct dt_program *program;
    struct dt_assignment *assignment;
    uint64_t samples_digest;
    double model_flops[DT_MAX_MODULES]; /* of its iteration */
    struct dt_timeline timeline;        /* this and the next on rank 0 only */
    struct dt_run_data *beside; /* [n_beside] made of other batches meanwhile, by all ranks */
    int64_t n_beside;
};
/* What the guard stops is DT_ERR_DIVERGED: the message says what and where, and names the last good
 * checkpoint, which is kept.  On failure of a save the error is returned after the loop has stopped; what was saved before
 * stays. */
enum dt_status dt_train(const struct dt_train_options *o, struct dt_error *err,
                        struct dt_train_summary *out);
void dt_train_summary_free(struct dt_train_summary *s);

#endif
