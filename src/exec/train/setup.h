/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * What a job's `run:` map stands for: tokenizer, loader options, noise schedule, plan; shared by
 * train, eval and sample. */
#ifndef DT_EXEC_TRAIN_SETUP_H
#define DT_EXEC_TRAIN_SETUP_H

#include "core/job/job.h"
#include "exec/checkpoint/checkpoint.h"
#include "exec/data/loader.h"
#include "exec/program/execute.h"

struct dt_setup {
    const struct dt_job *job;
    const struct dt_device *device; /* borrowed */
    enum dt_dtype dtype;
    struct dt_plan plan; /* the job's, if it states one; else all modules on this one device */
    struct dt_tokenizer *tokenizer;
    struct dt_diffusion diffusion; /* alpha_bar NULL without a generator */
    char **shards;
    int n_shards;
    char **producers; /* addresses; instead of shards */
    int n_producers;
    struct dt_loader_options loader; /* with shards and tokenizer; the caller may change it */
    int encoder, generator;          /* modules; -1 = none */
    struct dt_ckpt_job identity;     /* what checkpoints hold to */
    struct dt_cost *cost; /* what reordering goes by, the same on every rank; NULL: one GPU */
};
/* `need_data`: without shards it is an error. */
enum dt_status dt_setup_open(const struct dt_job *job, const struct dt_device *device,
                             bool need_data, struct dt_error *err, struct dt_setup *out);
void dt_setup_close(struct dt_setup *s);
/* How the job's model and `run` map read data: everything but the shards. */
enum dt_status dt_setup_loader(const struct dt_job *job, const struct dt_tokenizer *t,
                               struct dt_error *err, struct dt_loader_options *out);
/* Threads and precision of the job. */
void dt_setup_device(const struct dt_job *job, struct dt_device_options *out);
void dt_setup_exec_options(const struct dt_setup *s, struct dt_exec_options *out);

/* The parts for checkpoints: a share's to write, or all to read into; *parts is one block of w->n (dt_free). */
enum dt_status dt_setup_parts(const struct dt_setup *s, const struct dt_exec_whole *w,
                              struct dt_error *err, struct dt_ckpt_part **parts);
/* The plan that training executes: the job's, or else all modules in turns on one GPU; with places, not validated. */
enum dt_status dt_setup_plan(const struct dt_job *j, struct dt_error *err, struct dt_plan *out);
/* Part of dt_setup_open: fills in `identity`. */
enum dt_status dt_setup_identify(struct dt_setup *s, struct dt_error *err);
/* DT_ERR_INPUT names what differs between the job and that of a checkpoint: of the model and, for `training` to go on,
 * of the batch, the sequences, the seed and what is frozen. */
enum dt_status dt_setup_check_checkpoint(const struct dt_setup *s, const char *path, bool training,
                                         struct dt_error *err);
/* Digest of the shards' names, sizes and some of what is in them. */
enum dt_status dt_setup_data_digest(const struct dt_setup *s, struct dt_error *err, char *buf,
                                    size_t size);

/* What MFU is measured against: the best of several square products in the setup's type, as large as it takes for a
 * millisecond (8,192 rows and columns at most, and what there is memory for). */
struct dt_setup_peak {
    double flops; /* FLOP/s */
    int side;     /* rows and columns */
};
enum dt_status dt_setup_gemm_peak(const struct dt_setup *s, struct dt_error *err,
                                  struct dt_setup_peak *out);

#endif
