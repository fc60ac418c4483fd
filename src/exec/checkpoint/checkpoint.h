/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Checkpoints: a folder per step, complete or not there.
 *
 *   DIR/step-00001200/model.safetensors      parameters, Hugging Face names behind "MODULE."
 *                     optimizer.safetensors  "exp_avg/NAME", "exp_avg_sq/NAME" of what is trained
 *                     state.json             step, seed, counters, data cursor, job digest
 *                     data.json              fingerprints of the shards
 *                     job.json               what a job that goes on from it must agree in
 *                     manifest.json          the run; sizes and CRC-32 of all headers and tensors
 *                     .disttrain             that this program made the folder
 *   DIR/latest                               the name of the newest
 *   DIR/run.json, DIR/lock                   the run that began last; the training at work
 *   DIR/before-1/step-00000300, latest       of the runs before one that began anew
 *
 * A save writes everything into DIR/.tmp-STEP.TAG, syncs it, renames it, then moves the pointer,
 * then removes what is too old: whenever it is killed, `latest` names a complete checkpoint.  Only
 * what this program made is ever removed, and of a run by that run only.  Large models are cut into
 * model-00001-of-0000N.safetensors with an index.  Masters are fp32, so the model's file is both
 * the weights to hand on and the state to go on from. */
#ifndef DT_EXEC_CHECKPOINT_CHECKPOINT_H
#define DT_EXEC_CHECKPOINT_CHECKPOINT_H

#include "exec/data/loader.h"
#include "exec/data/shard_print.h"
#include "exec/modules/module.h"

/* A run is one training from its first step on, however often it is stopped and goes on.  Its id
 * tells it from another one in the same folder. */
#define DT_RUN_ID_SIZE 65
#define DT_RUN_UNNAMED "unnamed" /* of checkpoints that say nothing */

/* Gets what a file says of parameter `i` of a part, as dt_param lays it out; the values are host memory, until it
 * returns. */
typedef enum dt_status dt_ckpt_put_fn(void *arg, enum dt_param_what what, int i,
                                      const float *values, struct dt_error *err);

/* Parameters in flat buffers of the host, laid out as a stage has them. */
struct dt_ckpt_part {
    const char *module; /* name; its parameters are "module.NAME" in our files */
    const struct dt_param *params;
    int n_params;
    float *master;
    float *exp_avg, *exp_avg_sq;  /* NULL = nothing is trained */
    const unsigned char *trained; /* per parameter: it has moments; NULL = all */
    dt_ckpt_put_fn *put; /* NULL, or who loads: is given tensors, instead of the buffers above */
    void *arg;
};

/* What of its job a checkpoint holds to: lines "NAME VALUE\n". */
struct dt_ckpt_job {
    char *model;    /* without it the weights mean something else; NULL = not known */
    char *training; /* what a training that goes on must share beside */
};

struct dt_ckpt_state {
    int64_t step;    /* optimizer steps done */
    uint64_t seed;   /* of the run */
    uint64_t draws;  /* counter of random draws (timesteps, noise, dropout) */
    int64_t samples; /* seen so far */
    int64_t tokens;
    double train_s; /* time spent training, all runs together */
    struct dt_data_cursor cursor;
    char job_digest[40];         /* dt_ckpt_job_digest; before there was job.json, another one */
    char precision[8];           /* of what saved it: "fp32", "bf16"; "" = not known */
    char run_id[DT_RUN_ID_SIZE]; /* whose it is; "" = DT_RUN_UNNAMED */
    const struct dt_shard_prints *data; /* to save; NULL = none, as after reading */
    const struct dt_ckpt_job *job;      /* the same */
};

struct dt_ckpt_options {
    int keep;                   /* newest ones kept, of this run, this step and before; 0 = all */
    int64_t shard_bytes_max;    /* of a model file; 0 = 5 GB, as Hugging Face cuts */
    const struct dt_warn *warn; /* of what stays although it would go; NULL = nobody listens */
};

/* ---- runs ---- */

/* 128 random bits, as text. */
void dt_ckpt_run_id_new(char out[DT_RUN_ID_SIZE]);
/* 1 to 64 letters, digits, ".", "_" and "-". */
bool dt_ckpt_run_id_valid(const char *text);
/* The run that began in DIR last, and when; false if nothing says so. */
bool dt_ckpt_last_run(const char *dir, char run_id[DT_RUN_ID_SIZE], char since[32]);

/* ---- saving and loading ---- */

/* `path` (may be NULL) gets the new folder.  A checkpoint of the same step is
 * replaced.  Values that are not finite are refused, here and in a share of a rank:
 * DT_ERR_DIVERGED, and nothing is written. */
enum dt_status dt_ckpt_save(const char *dir, const struct dt_ckpt_part *parts, int n_parts,
                            const struct dt_ckpt_state *state, const struct dt_ckpt_options *opt,
                            struct dt_error *err, char *path, size_t path_size);
/* Removes what killed saves left behind: folders of ours with temporary names, and files, of
 * processes that are gone.  What it cannot remove stays, and what is not ours, which `warn` hears
 * of; a DIR that is not there is fine. */
void dt_ckpt_tidy(const char *dir, const struct dt_warn *warn);
/* The folder to go on from: `path` itself if it is a checkpoint, else what its `latest` names, else
 * its newest complete one.  *found is false (and DT_OK) where there never was one; DT_ERR_INPUT
 * where there was and none is complete. */
enum dt_status dt_ckpt_find(const char *path, struct dt_error *err, bool *found, char *out,
                            size_t size);
/* The folder of a step in DIR, there or not. */
enum dt_status dt_ckpt_of_step(const char *dir, int64_t step, struct dt_error *err, char *out,
                               size_t size);
/* A checkpoint that no later save removes to make room; state.json and all else stays as it is. */
enum dt_status dt_ckpt_keep(const char *path, struct dt_error *err);
/* The same, of run `run_id` only (NULL = any), whose newest is taken if `latest` is not its, also of
 * those that were set aside; tells `warn` when that is not what `latest` names.  `found_id` gets the
 * run that made it. */
enum dt_status dt_ckpt_find_run(const char *path, const char *run_id, const struct dt_warn *warn,
                                struct dt_error *err, bool *found, char *out, size_t size,
                                char found_id[DT_RUN_ID_SIZE]);
/* For a run that begins anew, with the folder locked: what is there of the runs before, complete or
 * not, and `latest` go to DIR/before-N, the first that is free, and `warn` hears of it.  Links and
 * what is not ours stay. */
enum dt_status dt_ckpt_set_aside(const char *dir, const struct dt_warn *warn, struct dt_error *err);
/* The newest checkpoint of what was set aside last, and whose it is; false if there is none. */
bool dt_ckpt_last_aside(const char *dir, char *path, size_t size, char run_id[DT_RUN_ID_SIZE]);
/* Only state.json, checked against the manifest. */
enum dt_status dt_ckpt_read_state(const char *path, struct dt_error *err,
                                  struct dt_ckpt_state *out);
/* What data it was trained on (dt_shard_prints_free); none, and a warning, for a checkpoint from
 * before that was kept.  Without it, and without the cursor's fingerprint, DT_ERR_INPUT. */
enum dt_status dt_ckpt_read_data(const char *path, const struct dt_warn *warn, struct dt_error *err,
                                 struct dt_shard_prints *out);
/* What its job was (dt_ckpt_job_free); nothing for a checkpoint from before that was kept. */
enum dt_status dt_ckpt_read_job(const char *path, struct dt_error *err, struct dt_ckpt_job *out);
void dt_ckpt_job_free(struct dt_ckpt_job *j);
/* What differs between two that are known, or NULL (dt_free): "llm.transformer.heads is 2 there and 4 in the job".  Of
 * the model, or, where that is the same, with `training` of the rest. */
enum dt_status dt_ckpt_job_compare(const struct dt_ckpt_job *theirs, const struct dt_ckpt_job *ours,
                                   bool training, struct dt_error *err, char **differ);
void dt_ckpt_job_digest(const struct dt_ckpt_job *j, char *buf, size_t size);
/* Digest of its manifest, and so of all that is in it. */
enum dt_status dt_ckpt_identity(const char *path, struct dt_error *err, char *buf, size_t size);
/* Everything, checksums included; `moments` false leaves the optimizer alone (eval, sample).
 * DT_ERR_INPUT names the file or tensor that is damaged or has values that are not finite, or lists
 * what is missing, unexpected or of another shape; then buffers hold no useful state. */
enum dt_status dt_ckpt_load(const char *path, const struct dt_ckpt_part *parts, int n_parts,
                            bool moments, struct dt_error *err, struct dt_ckpt_state *out);

/* Weights of others: any safetensors file, index or folder of them, or a checkpoint of ours.  A
 * parameter is looked for as "module.NAME", NAME, and NAME with the base model's prefix put before
 * it or taken away ("model.", "transformer.", "vit.", ...).  With `partial` parameters that the
 * file lacks keep their values; shapes must always agree, at least one must be there, and all
 * values must be finite.  Tensors of the file that nothing asked for are counted, and named in
 * `unexpected`. */
struct dt_ckpt_init_module { /* in parameters; a tied table counts where it is used, too */
    char name[DT_NAME_MAX];
    int64_t asked, found, missing;
    int64_t unused;     /* tensors of the file behind "NAME." that nothing asked for */
    char expected[256]; /* the first names that were missing */
    int64_t halves;     /* blocks some of whose matrices were found, and others not */
    char half[112];     /* the first matrix that such a block lacks */
};
struct dt_ckpt_init_report {
    int64_t loaded, missing, unexpected;
    char missing_names[1024], unexpected_names[1024]; /* "a, b, ... and 7 more" */
    int n_modules;
    struct dt_ckpt_init_module modules[DT_MAX_MODULES];
};
/* A module none of whose parameters was found would begin at random as if nothing were wrong, and so would a part of a
 * layer whose other matrices were found (under other names, or fused, in the file): DT_ERR_INPUT says what was looked for
 * and what the file has. */
enum dt_status dt_ckpt_init_check_modules(const struct dt_ckpt_init_report *r, const char *path,
                                          struct dt_error *err);
enum dt_status dt_ckpt_init_from(const char *path, const struct dt_ckpt_part *parts, int n_parts,
                                 bool partial, struct dt_error *err,
                                 struct dt_ckpt_init_report *out);

/* "crc32-length" of a text as hexadecimal digits. */
void dt_ckpt_digest(const char *text, size_t len, char *buf, size_t size);

#endif
