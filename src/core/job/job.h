/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Jobs: the user's statement of a run (DESIGN section 3), read into values the core works on. */
#ifndef DT_CORE_JOB_JOB_H
#define DT_CORE_JOB_JOB_H

#include "core/cost/cost.h"
#include "base/keys.h"
#include "core/job/guard.h"
#include "core/orchestrate/orchestrate.h"
#include "core/schedule/supply.h"
#include "core/model/plan.h"
#include "core/model/samples.h"

struct dt_job_simulate_options { /* the job's `simulate:` map */
    int iterations;              /* iterations simulated, each on its own global batch; default 1 */
    bool contention;             /* max-min fair link sharing; default true */
    /* of a core, that each rank needs for its next batch while it computes; 0 = none */
    double batch_s;
    double jitter; /* sigma of log-normal per-op jitter; 0 = off */
    double slow_gpu_fraction,
        slow_gpu_factor; /* share of lanes slowed, and by how much (1.1 = 10 % slower) */
    bool failures;       /* MTBF failures with checkpoint/restart -> goodput */
    double checkpoint_interval_s, checkpoint_write_s, restart_s;
    uint64_t seed;
    struct dt_sched_supply preprocess; /* what makes the input */
    char preprocess_profile[1024]; /* whose rates it has; "" = those of dt_sched_supply_defaults */
};

struct dt_job_paths {
    char **path;
    int n;
};
/* The job's `run:` map: what training needs beyond the plan (disttrain-job(5)).  Paths are as the job file sees
 * them. */
struct dt_job_run_options {
    bool stated; /* the map is there */
    /* shards, folders of shards, "x-{000..012}.tar"; or producers, "tcp://HOST:PORT" */
    struct dt_job_paths data;
    char data_index[1024]; /* "auto", "none" or a folder */
    char data_keys[1024];  /* for producers; "" = none */
    /* no producer gives anything; one does not answer; one owes a document, 0 = the first */
    double data_deadline_s, data_silent_s, data_late_s;
    struct dt_job_paths eval_data; /* held-out shards, for eval */
    char tokenizer[1024];          /* "bytes" or a tokenizer.json */
    double generate;               /* share of documents whose image is a target */
    double caption_drop;           /* share of these that lose their text (guidance) */
    double audio_max_s;            /* longer sounds are cut */
    int fit; /* how images get a module's `resize`: index of dt_job_run_fit_names */
    bool packed, text_only, shuffle, fatal;
    int frame_stride, frames_max; /* of a video's frames; 0 = all */
    int64_t bad_samples; /* of an epoch, that are passed over; more are an error; -1 = any number */
    int data_threads;
    int64_t steps, warmup_steps;
    double lr, min_lr, weight_decay, beta1, beta2, eps, clip;
    int decay; /* index of dt_job_run_decay_names */
    double text_weight, image_weight, dropout;
    int noise, noise_steps; /* index of dt_job_run_noise_names */
    uint64_t seed;
    int device;                  /* index of dt_job_run_device_names */
    int device_index;            /* of "cuda:1"; -1 = ranks take turns */
    int transport;               /* index of dt_job_run_transport_names */
    int threads;                 /* 0 = one per core */
    int precision;               /* index of dt_job_run_precision_names */
    char algorithms[1024];       /* notes of devices (exec/train/profiler_notes.h); "" = none */
    bool deterministic;          /* the same bits in every run */
    char log_dir[1024];          /* "" = no files */
    int log_interval;            /* steps between lines of metrics */
    char checkpoint_dir[1024];   /* "" = no checkpoints */
    int64_t checkpoint_interval; /* steps; 0 = only at the end */
    int checkpoint_keep;
    struct dt_guard_options guard; /* `nonfinite` and `spike` */
    char init_from[1024];          /* weights to begin with; "" = random */
    bool init_partial;             /* they may lack whole modules */
};
extern const char
    *const dt_job_run_fit_names[]; /* as dt_image_fit_names: "none", "max", "crop", "stretch" */
extern const char
    *const dt_job_run_decay_names[]; /* as dt_optimizer_decay_names: "constant", "cosine" */
extern const char *const dt_job_run_noise_names[];     /* as dt_diffusion_schedule_names */
extern const char *const dt_job_run_transport_names[]; /* in the order of enum dt_transport_over */
extern const char *const dt_job_run_device_names[];    /* "auto", "cpu", "cuda" */
enum { DT_JOB_RUN_CUDA = 2 };                          /* of them */
extern const char *const dt_job_run_precision_names[]; /* "auto", "fp32", "bf16" */

struct dt_job {
    char name[256];     /* file name */
    struct dt_doc *doc; /* the job as read, overrides applied */
    struct dt_model *model;
    struct dt_cluster cluster;
    struct dt_samples *samples;
    struct dt_profile *profile;
    struct dt_plan_policy policy;
    /* of each module; a plan may state its own */
    bool frozen[DT_MAX_MODULES];
    enum dt_block_recompute recompute[DT_MAX_MODULES];
    int zero[DT_MAX_MODULES];
    enum dt_plan_offload offload[DT_MAX_MODULES];
    enum dt_plan_strategy strategy;
    struct dt_search_options search;
    struct dt_cost_options cost_opt;
    struct dt_job_simulate_options sim;
    struct dt_job_run_options run;
    bool has_plan; /* strategy manual: from `plan:` (map or path of a plan.json) or plan_file */
    struct dt_plan plan;
    char plan_file[4096]; /* beside the job (dt_job_read_planned); "" = none */
    /* named by `plan:`, of which the command line changes something ("plan.llm.tp=4"): where `plan` stood are its changes
     * now, and the file's path is here; "" = none */
    char plan_named[4096];
    const char *plan_text; /* what is in it, while the job is being read; NULL: it is read */
    bool plan_from_file;   /* the plan brought policies along */
    char plan_changes
        [1024]; /* where the job's policies are others than its plan file's, for people; "" */
    char search_unused
        [320]; /* keys that the plan, or the strategy, leaves nothing to, "search.gpus, train.reorder"; of `search` those outside of the job's file */
    bool shallow;                 /* being read without looking for the files that it names */
    bool searched;                /* being read as if its strategy were disttrain */
    struct dt_job_inputs *inputs; /* whose samples and profile these are; NULL: the job's own */
};
/* Every key of a job, maps within maps, into a struct dt_job: what readers, `disttrain keys` and the completion go by. */
extern const struct dt_key dt_job_keys[];
/* All defaults, nothing that needs to be freed. */
void dt_job_defaults(struct dt_job *j);

/* Reads the file, applies `overrides` ("train.global_batch=960"), loads everything it names.  Relative paths inside a
 * job are relative to the job file. */
enum dt_status dt_job_read(const char *path, const char *const *overrides, int n_overrides,
                           struct dt_error *err, struct dt_job **out);
/* The same from text, without loading samples/profile when `shallow` (validation, fuzzing). */
enum dt_status dt_job_parse(const char *name, const char *text, size_t len,
                            const char *const *overrides, int n_overrides, bool shallow,
                            struct dt_error *err, struct dt_job **out);
/* The same with a plan.json beside the job (NULL: none), relative to the working directory: strategy manual,
 * and the plan's policies instead of the job's `train` map.  Overrides of `train` are applied to the plan. */
enum dt_status dt_job_read_planned(const char *path, const char *plan_file,
                                   const char *const *overrides, int n_overrides,
                                   struct dt_error *err, struct dt_job **out);
void dt_job_free(struct dt_job *j);
/* Is it a job that plans and simulations are made of.  On GPUs one in fp32 is trained alone: times and memory are those of bf16. */
enum dt_status dt_job_check_predicted(const struct dt_job *j, struct dt_error *err);
/* What the search would be asked if the job did not state its plan (search.strategy=disttrain): policies, what modules have in
 * common and options of *in are set, the rest is left.  Not for a job with a plan file beside it, whose `train` map is gone. */
enum dt_status dt_job_as_searched(const struct dt_job *j, struct dt_error *err,
                                  struct dt_search_input *in);

/* ---- many jobs that differ in a few keys (job_inputs.c) ---- */

/* Profiles and samples, each read once: jobs that ask for the same ones share them.  A file that changes in the
 * meantime is not read again.  For one thread; to be freed after the jobs. */
struct dt_job_inputs;
enum dt_status dt_job_inputs_new(struct dt_error *err, struct dt_job_inputs **out);
void dt_job_inputs_free(struct dt_job_inputs *in);
/* What no other profile or samples of these have, also of those that they have let go; 0: none of these. */
uint64_t dt_job_inputs_number(const struct dt_job_inputs *in, const void *thing);

struct dt_job_source { /* what a job is made of */
    const char *name;  /* of the file, which its paths are relative to; "standard input" */
    const char *text;
    size_t len;
    const char *plan_file; /* a plan.json beside it, as with dt_job_read_planned; NULL = none */
    const char *plan_text; /* what that file has in it; NULL: it is read */
    const char *const *overrides;
    int n_overrides;
    bool shallow;
    struct dt_job_inputs *inputs; /* NULL: it shares nothing */
};
enum dt_status dt_job_read_source(const struct dt_job_source *src, struct dt_error *err,
                                  struct dt_job **out);
/* The text of a job's file ("-": standard input), and what it is called. */
enum dt_status dt_job_read_text(const char *path, struct dt_error *err, const char **name,
                                char **text, size_t *len);

#endif
