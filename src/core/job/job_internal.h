/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Inside job*.c only: readers of a job's maps. */
#ifndef DT_CORE_JOB_JOB_INTERNAL_H
#define DT_CORE_JOB_JOB_INTERNAL_H

#include "core/job/job.h"

/* Inputs that are shared (job_inputs.c): what was added under that key, or NULL; it has one user more then.  `add` takes
 * the thing over, for one user, whatever it returns. */
enum dt_job_input {
    DT_JOB_PROFILE,
    DT_JOB_SAMPLES, /* of a job */
    DT_JOB_DRAWN    /* samples that those of jobs are the first of */
};
void *dt_job_input_find(struct dt_job_inputs *in, enum dt_job_input kind, const char *key);
enum dt_status dt_job_input_add(struct dt_job_inputs *in, enum dt_job_input kind, const char *key,
                                void *thing, struct dt_error *err);
/* One user less of something that was added. */
void dt_job_input_drop(struct dt_job_inputs *in, const void *thing);
/* The same, and it is freed and not found any more; there must be no other user. */
void dt_job_input_forget(struct dt_job_inputs *in, const void *thing);

/* Reads `samples`, from what is shared where something is (job_samples.c). */
enum dt_status dt_job_samples(struct dt_node root, struct dt_job *j, struct dt_error *err);

/* The plan (job_plan.c): the file beside the job or named in it, read before the policies where the strategy is manual; the
 * strategy, which is manual with a file beside the job; and what stands when all is read. */
enum dt_status dt_job_plan_file(struct dt_node root, struct dt_job *j, struct dt_error *err);
enum dt_status dt_job_plan_strategy(struct dt_node root, struct dt_job *j, struct dt_error *err);
enum dt_status dt_job_plan_finish(struct dt_node root, bool shallow, struct dt_job *j,
                                  struct dt_error *err);
/* The strategy's policy, and which of the job's stated keys it drops (search_unused). */
void dt_job_strategy_policy(struct dt_node root, struct dt_job *j);
/* Each takes the map (may be absent) and needs what stands before it: model and cluster, then policy. */
enum dt_status dt_job_train(struct dt_node map, struct dt_job *j, struct dt_error *err);
/* What `train` leaves open is the search's to choose (job_auto.c). */
enum dt_status dt_job_search(struct dt_node map, struct dt_node train, struct dt_job *j,
                             struct dt_error *err);
bool dt_job_is_auto(struct dt_node n);
void dt_job_open_search(struct dt_node train, struct dt_job *j);
/* train.assignment and what goes with it, when the strategy is known (job_auto.c). */
extern const char *const dt_job_assignment_help[DT_ASSIGNMENT_N + 1];
extern const char *const dt_job_warmup_help[DT_WARMUP_N + 1];   /* of train.warmup */
extern const char *const dt_job_cp_comm_help[DT_CP_COMM_N + 1]; /* of train.cp_comm */
enum dt_status dt_job_assignment(struct dt_node search, struct dt_node train, struct dt_job *j,
                                 struct dt_error *err);
enum dt_status dt_job_run(struct dt_node map, struct dt_job *j, struct dt_error *err);
enum dt_status dt_job_simulate(struct dt_node map, struct dt_job *j, struct dt_error *err);
void dt_job_run_defaults(struct dt_job_run_options *r);
void dt_job_run_free(struct dt_job_run_options *r);
/* Rows of the maps, into a struct dt_job (job_read.c, job_run.c, job_simulate.c). */
extern const struct dt_key dt_job_train_keys[], dt_job_search_keys[], dt_job_simulate_keys[],
    dt_job_run_keys[];
/* Makes room for an override "model.…", "cluster.…" or "samples.…" where the job names a preset
 * only: `model: mllm-72b` becomes `model: {preset: mllm-72b}`. */
enum dt_status dt_job_widen(struct dt_doc *doc, const char *override, struct dt_error *err);

#endif
