/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * The job's `run:` map: data, optimizer, losses, precision, logs and checkpoints of a training run.
 * disttrain-job(5) documents every key and default. */
#include "core/job/job_internal.h"

#include "core/model/shape.h"

#include <stdio.h>
#include <string.h>

const char *const dt_job_run_fit_names[] = {"none", "max", "crop", "stretch", NULL};
const char *const dt_job_run_decay_names[] = {"constant", "cosine", NULL};
const char *const dt_job_run_noise_names[] = {"linear", "scaled-linear", "cosine", NULL};
const char *const dt_job_run_precision_names[] = {"auto", "fp32", "bf16", NULL};

enum { DATA_MAX = 4096, STEPS_MAX = 1 << 30, THREADS_MAX = 256 };

void dt_job_run_defaults(struct dt_job_run_options *r)
{
    *r = (struct dt_job_run_options){
        .generate = 0.5,
        .fit = 2,
        .packed = true,
        .shuffle = true,
        .data_threads = 1,
        .steps = 1000,
        .warmup_steps = 50,
        .lr = 1e-3,
        .weight_decay = 0.1,
        .beta1 = 0.9,
        .beta2 = 0.95,
        .eps = 1e-8,
        .clip = 1,
        .decay = 1,
        .text_weight = 1,
        .image_weight = 1,
        .noise = 2,
        .noise_steps = 1000,
        .seed = 1,
        .log_interval = 1,
        .checkpoint_keep = 2,
    };
    dt_guard_defaults(&r->guard);
    snprintf(r->tokenizer, sizeof(r->tokenizer), "bytes");
}

static void free_paths(char **paths, int n)
{
    for (int i = 0; i < n; i++)
        dt_free(paths[i]);
    dt_free(paths);
}

void dt_job_run_free(struct dt_job_run_options *r)
{
    free_paths(r->data, r->n_data);
    free_paths(r->eval_data, r->n_eval_data);
}

/* A name of the data: a file, a folder or a range of files.  What is looked for beside the job
 * first is its part before any pattern. */
static enum dt_status add_data(struct dt_node n, const char *key, bool shallow, char **paths,
                               int *n_paths, struct dt_error *err)
{
    const char *text = dt_node_text(n);
    char path[4096];

    if (!text || !*text)
        return dt_node_error(n, err, "%s: expected the path of a shard or of a folder of shards",
                             key);
    if (strlen(text) >= sizeof(path))
        return dt_node_error(n, err, "%s: that path is too long", key);
    snprintf(path, sizeof(path), "%s", text);
    /* A job may be planned without its data: what is missing is reported when it is opened. */
    if (!shallow && !strchr(text, '{') &&
        dt_preset_relative(n, text, NULL, path, sizeof(path)) != DT_OK)
        snprintf(path, sizeof(path), "%s", text);
    paths[*n_paths] = dt_strdup(path);
    if (!paths[*n_paths])
        return dt_error_nomem(err, "paths of the data");
    ++*n_paths;
    return DT_OK;
}

static enum dt_status read_data(struct dt_node map, const char *key, bool shallow, char ***paths,
                                int *n_paths, struct dt_error *err)
{
    struct dt_node n = dt_map_get(map, key);
    size_t count = dt_node_is_seq(n) ? dt_seq_size(n) : 1;

    if (!dt_node_present(n))
        return DT_OK;
    if (count < 1 || count > DATA_MAX)
        return dt_node_error(n, err, "%s: expected 1 to %d paths", key, DATA_MAX);
    *paths = dt_calloc(count, sizeof(**paths));
    if (!*paths)
        return dt_error_nomem(err, "paths of the data");
    if (!dt_node_is_seq(n))
        return add_data(n, key, shallow, *paths, n_paths, err);
    for (size_t i = 0; i < count; i++)
        DT_TRY(add_data(dt_seq_at(n, i), key, shallow, *paths, n_paths, err));
    return DT_OK;
}

/* An empty path is a script's variable that was not set, not the wish to do without. */
static enum dt_status get_path(struct dt_node map, const char *key, char *buf, size_t size,
                               struct dt_error *err)
{
    struct dt_node n = dt_map_get(map, key);

    DT_TRY(dt_get_string(map, key, buf, size, err));
    if (dt_node_present(n) && !buf[0])
        return dt_node_error(n, err, "%s: an empty path; leave the key out to do without", key);
    return DT_OK;
}

static enum dt_status read_files(struct dt_node map, bool shallow, struct dt_job_run_options *r,
                                 struct dt_error *err)
{
    struct dt_node n = dt_map_get(map, "tokenizer");
    char path[sizeof(r->tokenizer)];

    DT_TRY(read_data(map, "data", shallow, &r->data, &r->n_data, err));
    DT_TRY(read_data(map, "eval_data", shallow, &r->eval_data, &r->n_eval_data, err));
    DT_TRY(get_path(map, "tokenizer", r->tokenizer, sizeof(r->tokenizer), err));
    if (!shallow && strcmp(r->tokenizer, "bytes") != 0) {
        DT_TRY(dt_preset_relative(n, r->tokenizer, err, path, sizeof(path)));
        memcpy(r->tokenizer, path, sizeof(path));
    }
    DT_TRY(get_path(map, "log_dir", r->log_dir, sizeof(r->log_dir), err));
    DT_TRY(get_path(map, "init_from", r->init_from, sizeof(r->init_from), err));
    DT_TRY(dt_get_bool(map, "init_partial", &r->init_partial, err));
    if (!shallow && r->init_from[0]) {
        DT_TRY(dt_preset_relative(dt_map_get(map, "init_from"), r->init_from, err, path,
                                  sizeof(path)));
        memcpy(r->init_from, path, sizeof(path));
    }
    return DT_OK;
}

static enum dt_status read_optimizer(struct dt_node map, struct dt_job_run_options *r,
                                     struct dt_error *err)
{
    DT_TRY(dt_get_int(map, "steps", 1, STEPS_MAX, &r->steps, err));
    if (!dt_node_present(dt_map_get(map, "warmup_steps")) && r->warmup_steps > r->steps / 10)
        r->warmup_steps = r->steps / 10;
    DT_TRY(dt_get_int(map, "warmup_steps", 0, STEPS_MAX, &r->warmup_steps, err));
    DT_TRY(dt_get_double(map, "lr", 0, 10, &r->lr, err));
    DT_TRY(dt_get_double(map, "min_lr", 0, r->lr, &r->min_lr, err));
    DT_TRY(dt_get_enum(map, "decay", dt_job_run_decay_names, &r->decay, err));
    DT_TRY(dt_get_double(map, "weight_decay", 0, 10, &r->weight_decay, err));
    DT_TRY(dt_get_double(map, "beta1", 0, 0.999999, &r->beta1, err));
    DT_TRY(dt_get_double(map, "beta2", 0, 0.999999, &r->beta2, err));
    DT_TRY(dt_get_double(map, "eps", 1e-15, 1, &r->eps, err));
    return dt_get_double(map, "clip", 0, 1e6, &r->clip, err);
}

static enum dt_status read_checkpoint(struct dt_node map, struct dt_job_run_options *r,
                                      struct dt_error *err)
{
    static const char *const keys[] = {"dir", "interval", "keep", NULL};

    DT_TRY(dt_map_check(map, "checkpoint", keys, err));
    if (dt_node_present(map))
        DT_TRY(dt_map_require(map, "checkpoint", "dir", err));
    DT_TRY(get_path(map, "dir", r->checkpoint_dir, sizeof(r->checkpoint_dir), err));
    DT_TRY(dt_get_int(map, "interval", 0, STEPS_MAX, &r->checkpoint_interval, err));
    return dt_get_i32(map, "keep", 0, STEPS_MAX, &r->checkpoint_keep, err);
}

/* A word, or {skip: 3}. */
static enum dt_status read_nonfinite(struct dt_node run, struct dt_guard_options *g,
                                     struct dt_error *err)
{
    /* in the order of enum dt_guard_action, from stop on */
    static const char *const words[] = {"stop", "skip", "rollback", NULL};
    struct dt_node n = dt_map_get(run, "nonfinite");
    int action = g->nonfinite - DT_GUARD_STOP;

    if (!dt_node_is_map(n)) {
        DT_TRY(dt_get_enum(run, "nonfinite", words, &action, err));
    } else {
        DT_TRY(dt_map_check(n, "nonfinite", words + 1, err));
        if (dt_map_size(n) != 1)
            return dt_node_error(n, err, "nonfinite: expected {skip: N} or {rollback: N}");
        action = dt_node_present(dt_map_get(n, "skip")) ? 1 : 2;
        DT_TRY(dt_get_i32(n, words[action], 1, STEPS_MAX, &g->nonfinite_most, err));
    }
    g->nonfinite = action + DT_GUARD_STOP;
    return DT_OK;
}

/* A word, or {action: skip, most: 3, deviations: 10, window: 64}. */
static enum dt_status read_spike(struct dt_node run, struct dt_guard_options *g,
                                 struct dt_error *err)
{
    static const char *const keys[] = {"action", "most", "deviations", "window", NULL};
    struct dt_node n = dt_map_get(run, "spike");

    if (!dt_node_is_map(n))
        return dt_get_enum(run, "spike", dt_guard_action_names, &g->spike, err);
    DT_TRY(dt_map_check(n, "spike", keys, err));
    DT_TRY(dt_get_enum(n, "action", dt_guard_action_names, &g->spike, err));
    DT_TRY(dt_get_i32(n, "most", 1, STEPS_MAX, &g->spike_most, err));
    DT_TRY(dt_get_double(n, "deviations", 1, 1e6, &g->deviations, err));
    return dt_get_i32(n, "window", DT_GUARD_WINDOW_MIN, DT_GUARD_WINDOW_MAX, &g->window, err);
}

static enum dt_status read_guard(struct dt_node run, struct dt_job_run_options *r,
                                 struct dt_error *err)
{
    DT_TRY(read_nonfinite(run, &r->guard, err));
    DT_TRY(read_spike(run, &r->guard, err));
    if (!dt_guard_rolls_back(&r->guard) || r->checkpoint_dir[0])
        return DT_OK;
    return dt_node_error(
        dt_map_get(run, r->guard.nonfinite == DT_GUARD_ROLLBACK ? "nonfinite" : "spike"), err,
        "rollback goes back to a checkpoint: the job needs run.checkpoint, such as "
        "{dir: DIR, interval: 100}");
}

enum dt_status dt_job_run(struct dt_node map, bool shallow, struct dt_job *j, struct dt_error *err)
{
    static const char *const keys[] = {"data",
                                       "eval_data",
                                       "tokenizer",
                                       "generate",
                                       "caption_drop",
                                       "fit",
                                       "packed",
                                       "text_only",
                                       "shuffle",
                                       "bad_data",
                                       "data_threads",
                                       "steps",
                                       "lr",
                                       "warmup_steps",
                                       "min_lr",
                                       "decay",
                                       "weight_decay",
                                       "beta1",
                                       "beta2",
                                       "eps",
                                       "clip",
                                       "text_weight",
                                       "image_weight",
                                       "dropout",
                                       "noise",
                                       "noise_steps",
                                       "seed",
                                       "threads",
                                       "precision",
                                       "log_dir",
                                       "log_interval",
                                       "checkpoint",
                                       "init_from",
                                       "init_partial",
                                       "nonfinite",
                                       "spike",
                                       NULL};
    static const char *const bad[] = {"skip", "fatal", NULL};
    struct dt_job_run_options *r = &j->run;
    int64_t seed = (int64_t)r->seed;
    int fatal = r->fatal;

    r->stated = dt_node_present(map) && !dt_node_is_null(map);
    if (!r->stated)
        return DT_OK;
    DT_TRY(dt_map_check(map, "run", keys, err));
    DT_TRY(read_files(map, shallow, r, err));
    DT_TRY(dt_get_double(map, "generate", 0, 1, &r->generate, err));
    DT_TRY(dt_get_double(map, "caption_drop", 0, 1, &r->caption_drop, err));
    DT_TRY(dt_get_enum(map, "fit", dt_job_run_fit_names, &r->fit, err));
    DT_TRY(dt_get_bool(map, "packed", &r->packed, err));
    DT_TRY(dt_get_bool(map, "text_only", &r->text_only, err));
    DT_TRY(dt_get_bool(map, "shuffle", &r->shuffle, err));
    DT_TRY(dt_get_enum(map, "bad_data", bad, &fatal, err));
    r->fatal = fatal == 1;
    DT_TRY(dt_get_i32(map, "data_threads", 0, THREADS_MAX, &r->data_threads, err));
    DT_TRY(read_optimizer(map, r, err));
    DT_TRY(dt_get_double(map, "text_weight", 0, 1e6, &r->text_weight, err));
    DT_TRY(dt_get_double(map, "image_weight", 0, 1e6, &r->image_weight, err));
    DT_TRY(dt_get_double(map, "dropout", 0, 0.99, &r->dropout, err));
    DT_TRY(dt_get_enum(map, "noise", dt_job_run_noise_names, &r->noise, err));
    DT_TRY(dt_get_i32(map, "noise_steps", 2, 1 << 20, &r->noise_steps, err));
    DT_TRY(dt_get_int(map, "seed", 0, INT64_MAX, &seed, err));
    r->seed = (uint64_t)seed;
    DT_TRY(dt_get_i32(map, "threads", 0, THREADS_MAX, &r->threads, err));
    DT_TRY(dt_get_enum(map, "precision", dt_job_run_precision_names, &r->precision, err));
    DT_TRY(dt_get_i32(map, "log_interval", 1, STEPS_MAX, &r->log_interval, err));
    DT_TRY(read_checkpoint(dt_map_get(map, "checkpoint"), r, err));
    return read_guard(map, r, err);
}
