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
const char *const dt_job_run_transport_names[] = {"auto", "staged", "nccl", "ipc", NULL};
const char *const dt_job_run_device_names[] = {"auto", "cpu", "cuda", NULL};
const char *const dt_job_run_precision_names[] = {"auto", "fp32", "bf16", NULL};

enum {
    DATA_MAX = 4096,
    STEPS_MAX = 1 << 30,
    THREADS_MAX = 256,
    FRAMES_MAX = 1 << 20,
    DEVICE_MODULES = 2 /* words before are no modules */,
    PATH_SIZE = 4096
};

void dt_job_run_defaults(struct dt_job_run_options *r)
{
    *r = (struct dt_job_run_options){
        .generate = 0.5,
        .fit = 2,
        .audio_max_s = 10,
        .packed = true,
        .shuffle = true,
        .frame_stride = 1,
        .bad_samples = -1,
        .data_threads = 1,
        .data_deadline_s = 60,
        .data_silent_s = 5,
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
        .device_index = -1,
        .log_interval = 1,
        .checkpoint_keep = 2,
    };
    dt_guard_defaults(&r->guard);
    snprintf(r->tokenizer, sizeof(r->tokenizer), "bytes");
    snprintf(r->data_index, sizeof(r->data_index), "auto");
}

static void free_paths(struct dt_job_paths *p)
{
    for (int i = 0; i < p->n; i++)
        dt_free(p->path[i]);
    dt_free(p->path);
}

void dt_job_run_free(struct dt_job_run_options *r)
{
    free_paths(&r->data);
    free_paths(&r->eval_data);
}

/* A name of the data: a file, a folder or a range of files.  What is looked for beside the job
 * first is its part before any pattern. */
static enum dt_status add_data(struct dt_node n, const char *key, bool shallow,
                               struct dt_job_paths *paths, struct dt_error *err)
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
    if (!shallow && !strchr(text, '{') && strncmp(text, "tcp://", 6) != 0 &&
        dt_preset_relative(n, text, NULL, path, sizeof(path)) != DT_OK)
        snprintf(path, sizeof(path), "%s", text);
    paths->path[paths->n] = dt_strdup(path);
    if (!paths->path[paths->n])
        return dt_error_nomem(err, "paths of the data");
    paths->n++;
    return DT_OK;
}

static enum dt_status read_data(struct dt_node map, const struct dt_key *key, void *into,
                                struct dt_error *err)
{
    struct dt_node n = dt_map_get(map, key->name);
    size_t count = dt_node_is_seq(n) ? dt_seq_size(n) : 1;
    struct dt_job *j = into;
    struct dt_job_paths *p = (struct dt_job_paths *)((char *)into + key->at);

    if (count < 1 || count > DATA_MAX)
        return dt_node_error(n, err, "%s: expected 1 to %d paths", key->name, DATA_MAX);
    p->path = dt_calloc(count, sizeof(*p->path));
    if (!p->path)
        return dt_error_nomem(err, "paths of the data");
    if (!dt_node_is_seq(n))
        return add_data(n, key->name, j->shallow, p, err);
    for (size_t i = 0; i < count; i++)
        DT_TRY(add_data(dt_seq_at(n, i), key->name, j->shallow, p, err));
    return DT_OK;
}

/* An empty path is a script's variable that was not set, not the wish to do without. */
static enum dt_status read_folder(struct dt_node map, const struct dt_key *key, void *into,
                                  struct dt_error *err)
{
    char *path = (char *)into + key->at;

    DT_TRY(dt_get_string(map, key->name, path, key->size, err));
    if (!path[0])
        return dt_node_error(dt_map_get(map, key->name), err,
                             "%s: an empty path; leave the key out to do without", key->name);
    return DT_OK;
}

/* The same of a file that is looked for beside the job, unless it is one of the key's words. */
static enum dt_status read_file(struct dt_node map, const struct dt_key *key, void *into,
                                struct dt_error *err)
{
    char *path = (char *)into + key->at, found[PATH_SIZE];
    const struct dt_job *j = into;

    DT_TRY(read_folder(map, key, into, err));
    if (j->shallow || (key->words && strcmp(path, key->words[0]) == 0))
        return DT_OK;
    DT_TRY(dt_preset_relative(dt_map_get(map, key->name), path, err, found, key->size));
    memcpy(path, found, strlen(found) + 1);
    return DT_OK;
}

/* A word, or the word of a module and a number: cuda:1. */
static enum dt_status read_device(struct dt_node map, const struct dt_key *key, void *into,
                                  struct dt_error *err)
{
    struct dt_job_run_options *r = &((struct dt_job *)into)->run;
    char text[32] = "", *colon;
    int index = -1, end = 0;

    DT_TRY(dt_get_string(map, key->name, text, sizeof(text), err));
    colon = strchr(text, ':');
    if (colon && (sscanf(colon, ":%4d%n", &index, &end) != 1 || colon[end] || colon[1] == '-' ||
                  colon[1] == '+' || colon[1] == ' '))
        return dt_node_error(dt_map_get(map, key->name), err,
                             "device: \"%s\" has no number of a device behind ':', such as cuda:0",
                             text);
    if (colon)
        *colon = '\0';
    for (int i = 0; key->words[i]; i++)
        if (strcmp(text, key->words[i]) == 0 && (!colon || i >= DEVICE_MODULES)) {
            r->device = i;
            r->device_index = index;
            return DT_OK;
        }
    return dt_node_error(dt_map_get(map, key->name), err,
                         "device: expected auto, cpu, cuda or cuda:N (see 'disttrain devices')");
}

static enum dt_status read_min_lr(struct dt_node map, const struct dt_key *key, void *into,
                                  struct dt_error *err)
{
    struct dt_job *j = into;

    return dt_get_double(map, key->name, key->min, j->run.lr, &j->run.min_lr, err);
}

static enum dt_status read_checkpoint(struct dt_node map, const struct dt_key *key, void *into,
                                      struct dt_error *err)
{
    struct dt_node n = dt_map_get(map, key->name);
    const struct dt_key *missing;

    DT_TRY(dt_keys_read(n, key->name, key->keys, into, err));
    missing = dt_keys_missing(key->keys, into);
    return missing ? dt_map_require(n, key->name, missing->name, err) : DT_OK;
}

/* in the order of enum dt_guard_action, from stop on */
static const char *const nonfinite_words[] = {"stop", "skip", "rollback", NULL};

/* A word, or {skip: 3}. */
static enum dt_status read_nonfinite(struct dt_node map, const struct dt_key *key, void *into,
                                     struct dt_error *err)
{
    struct dt_node n = dt_map_get(map, key->name);
    struct dt_guard_options *g = &((struct dt_job *)into)->run.guard;
    int action = g->nonfinite - DT_GUARD_STOP;

    if (!dt_node_is_map(n)) {
        DT_TRY(dt_get_enum(map, key->name, key->words, &action, err));
    } else {
        DT_TRY(dt_map_check(n, key->name, key->words + 1, err));
        if (dt_map_size(n) != 1)
            return dt_node_error(n, err, "nonfinite: expected {skip: N} or {rollback: N}");
        action = dt_node_present(dt_map_get(n, "skip")) ? 1 : 2;
        DT_TRY(dt_get_i32(n, key->words[action], 1, STEPS_MAX, &g->nonfinite_most, err));
    }
    g->nonfinite = action + DT_GUARD_STOP;
    return DT_OK;
}

/* A word, or {action: skip, most: 3, deviations: 10, window: 64}. */
static enum dt_status read_spike(struct dt_node map, const struct dt_key *key, void *into,
                                 struct dt_error *err)
{
    struct dt_node n = dt_map_get(map, key->name);
    struct dt_job *j = into;

    if (!dt_node_is_map(n))
        return dt_get_enum(map, key->name, key->words, &j->run.guard.spike, err);
    return dt_keys_read(n, key->name, key->keys, into, err);
}

/* ---- the rows ---- */

static const char *const bad_words[] = {"skip", "fatal", NULL}; /* false, true of fatal */
static const char *const only_bytes[] = {"bytes", NULL};
static const char *const index_words[] = {"auto", "none", NULL};
static const struct dt_key checkpoint_keys[] = {
    {.name = "dir",
     .type = DT_KEY_STRING,
     .form = "path",
     .file = DT_KEY_FILE,
     DT_KEY_INTO(struct dt_job, run.checkpoint_dir),
     .read = read_folder,
     .needed = "checkpoints",
     .help = "folder of the checkpoints"},
    {.name = "interval",
     .type = DT_KEY_INTEGER,
     DT_KEY_INTO(struct dt_job, run.checkpoint_interval),
     .min = 0,
     .max = STEPS_MAX,
     .help = "steps between checkpoints; 0: only at the end"},
    {.name = "keep",
     .type = DT_KEY_INTEGER,
     DT_KEY_INTO(struct dt_job, run.checkpoint_keep),
     .min = 0,
     .max = STEPS_MAX,
     .help = "newest ones kept; 0: all"},
    {.name = NULL},
};
static const struct dt_key spike_keys[] = {
    {.name = "action",
     .type = DT_KEY_WORD,
     DT_KEY_INTO(struct dt_job, run.guard.spike),
     .words = dt_guard_action_names,
     .help = "what to do"},
    {.name = "most",
     .type = DT_KEY_INTEGER,
     DT_KEY_INTO(struct dt_job, run.guard.spike_most),
     .min = 1,
     .max = STEPS_MAX,
     .help = "how often in a row"},
    {.name = "deviations",
     .type = DT_KEY_NUMBER,
     DT_KEY_INTO(struct dt_job, run.guard.deviations),
     .min = 1,
     .max = 1e6,
     .help = "above the median, in normalised median absolute deviations"},
    {.name = "window",
     .type = DT_KEY_INTEGER,
     DT_KEY_INTO(struct dt_job, run.guard.window),
     .min = DT_GUARD_WINDOW_MIN,
     .max = DT_GUARD_WINDOW_MAX,
     .help = "losses that the median is of"},
    {.name = NULL},
};
const struct dt_key dt_job_run_keys[] = {
    {.name = "data",
     .type = DT_KEY_OWN,
     DT_KEY_INTO(struct dt_job, run.data),
     .form = "path or list of paths",
     .file = DT_KEY_FILE,
     .read = read_data,
     .fallback = "none",
     .help = "shards, folders of shards or ranges of shards; or producers, tcp://HOST:PORT,..."},
    {.name = "data_keys",
     .type = DT_KEY_STRING,
     .form = "path",
     .file = DT_KEY_FILE,
     DT_KEY_INTO(struct dt_job, run.data_keys),
     .read = read_file,
     .fallback = "none",
     .help = "key file for producers on other machines"},
    {.name = "data_index",
     .type = DT_KEY_STRING,
     .form = "path",
     .file = DT_KEY_FILE,
     DT_KEY_INTO(struct dt_job, run.data_index),
     .read = read_folder,
     .words = index_words,
     .help = "where indexes of shards are kept, so that a run begins without passing over them"},
    {.name = "eval_data",
     .type = DT_KEY_OWN,
     DT_KEY_INTO(struct dt_job, run.eval_data),
     .form = "path or list of paths",
     .file = DT_KEY_FILE,
     .read = read_data,
     .fallback = "none",
     .help = "held-out shards for disttrain eval"},
    {.name = "tokenizer",
     .type = DT_KEY_STRING,
     .form = "path of a tokenizer.json",
     .file = DT_KEY_FILE,
     DT_KEY_INTO(struct dt_job, run.tokenizer),
     .read = read_file,
     .words = only_bytes,
     .help = "how text becomes tokens"},
    {.name = "log_dir",
     .type = DT_KEY_STRING,
     .form = "path",
     .file = DT_KEY_FILE,
     DT_KEY_INTO(struct dt_job, run.log_dir),
     .read = read_folder,
     .fallback = "none",
     .help = "folder of metrics"},
    {.name = "init_from",
     .type = DT_KEY_STRING,
     .form = "path",
     .file = DT_KEY_FILE,
     DT_KEY_INTO(struct dt_job, run.init_from),
     .read = read_file,
     .fallback = "none",
     .help = "weights to begin with: safetensors, a folder of them or a checkpoint"},
    {.name = "init_partial",
     .type = DT_KEY_BOOL,
     DT_KEY_INTO(struct dt_job, run.init_partial),
     .help = "they may lack a module, or a part of a layer"},
    {.name = "generate",
     .type = DT_KEY_NUMBER,
     DT_KEY_INTO(struct dt_job, run.generate),
     .min = 0,
     .max = 1,
     .help = "share of the documents whose image is drawn instead of read"},
    {.name = "caption_drop",
     .type = DT_KEY_NUMBER,
     DT_KEY_INTO(struct dt_job, run.caption_drop),
     .min = 0,
     .max = 1,
     .help = "share of these documents that lose their text"},
    {.name = "fit",
     .type = DT_KEY_WORD,
     DT_KEY_INTO(struct dt_job, run.fit),
     .words = dt_job_run_fit_names,
     .help = "how images get a module's resize"},
    {.name = "audio_max_s",
     .type = DT_KEY_NUMBER,
     DT_KEY_INTO(struct dt_job, run.audio_max_s),
     .min = 0.03,
     .max = 655.35,
     .unit = "s",
     .help = "longer sounds are cut to it"},
    {.name = "packed",
     .type = DT_KEY_BOOL,
     DT_KEY_INTO(struct dt_job, run.packed),
     .help = "fill sequences with several documents"},
    {.name = "text_only",
     .type = DT_KEY_BOOL,
     DT_KEY_INTO(struct dt_job, run.text_only),
     .help = "samples without an image or a sound are good"},
    {.name = "frame_stride",
     .type = DT_KEY_INTEGER,
     DT_KEY_INTO(struct dt_job, run.frame_stride),
     .min = 1,
     .max = FRAMES_MAX,
     .help = "every so many frames of a video one is taken"},
    {.name = "frames_max",
     .type = DT_KEY_INTEGER,
     DT_KEY_INTO(struct dt_job, run.frames_max),
     .min = 1,
     .max = FRAMES_MAX,
     .fallback = "all of them",
     .help = "so many of these at most, evenly spread"},
    {.name = "shuffle",
     .type = DT_KEY_BOOL,
     DT_KEY_INTO(struct dt_job, run.shuffle),
     .help = "a new order of the samples in every epoch"},
    {.name = "bad_data",
     .type = DT_KEY_WORD,
     DT_KEY_INTO(struct dt_job, run.fatal),
     .words = bad_words,
     .help = "count bad samples and continue, or stop"},
    {.name = "bad_samples",
     .type = DT_KEY_INTEGER,
     DT_KEY_INTO(struct dt_job, run.bad_samples),
     .min = 0,
     .max = DT_KEY_NO_LIMIT,
     .fallback = "any number",
     .help = "so many of an epoch are counted and passed over; one more stops the run"},
    {.name = "data_threads",
     .type = DT_KEY_INTEGER,
     DT_KEY_INTO(struct dt_job, run.data_threads),
     .min = 0,
     .max = THREADS_MAX,
     .help = "threads that read and decode"},
    {.name = "data_deadline_s",
     .type = DT_KEY_NUMBER,
     DT_KEY_INTO(struct dt_job, run.data_deadline_s),
     .min = 0.1,
     .max = 86400,
     .unit = "s",
     .help = "without anything from any producer the job ends"},
    {.name = "data_late_s",
     .type = DT_KEY_NUMBER,
     DT_KEY_INTO(struct dt_job, run.data_late_s),
     .min = 0.1,
     .max = 86400,
     .unit = "s",
     .fallback = "half of data_deadline_s",
     .help = "a producer that owes a document for so long is left for another"},
    {.name = "data_silent_s",
     .type = DT_KEY_NUMBER,
     DT_KEY_INTO(struct dt_job, run.data_silent_s),
     .min = 0.1,
     .max = 86400,
     .unit = "s",
     .help = "likewise one that does not answer"},
    {.name = "steps",
     .type = DT_KEY_INTEGER,
     DT_KEY_INTO(struct dt_job, run.steps),
     .min = 1,
     .max = STEPS_MAX,
     .help = "optimizer steps of the run"},
    {.name = "warmup_steps",
     .type = DT_KEY_INTEGER,
     DT_KEY_INTO(struct dt_job, run.warmup_steps),
     .min = 0,
     .max = STEPS_MAX,
     .fallback = "50, or a tenth of a shorter run",
     .help = "steps in which the learning rate rises to lr"},
    {.name = "lr",
     .type = DT_KEY_NUMBER,
     DT_KEY_INTO(struct dt_job, run.lr),
     .min = 0,
     .max = 10,
     .help = "learning rate"},
    {.name = "min_lr",
     .type = DT_KEY_NUMBER,
     DT_KEY_INTO(struct dt_job, run.min_lr),
     .min = 0,
     .max = 10,
     .read = read_min_lr,
     .help = "what it falls to, at most lr"},
    {.name = "decay",
     .type = DT_KEY_WORD,
     DT_KEY_INTO(struct dt_job, run.decay),
     .words = dt_job_run_decay_names,
     .help = "how it falls after the warm-up"},
    {.name = "weight_decay",
     .type = DT_KEY_NUMBER,
     DT_KEY_INTO(struct dt_job, run.weight_decay),
     .min = 0,
     .max = 10,
     .help = "of AdamW, on matrices and filters"},
    {.name = "beta1",
     .type = DT_KEY_NUMBER,
     DT_KEY_INTO(struct dt_job, run.beta1),
     .min = 0,
     .max = 0.999999,
     .help = "of AdamW: the first moment"},
    {.name = "beta2",
     .type = DT_KEY_NUMBER,
     DT_KEY_INTO(struct dt_job, run.beta2),
     .min = 0,
     .max = 0.999999,
     .help = "of AdamW: the second moment"},
    {.name = "eps",
     .type = DT_KEY_NUMBER,
     DT_KEY_INTO(struct dt_job, run.eps),
     .min = 1e-15,
     .max = 1,
     .help = "of AdamW: added to the root of the second moment"},
    {.name = "clip",
     .type = DT_KEY_NUMBER,
     DT_KEY_INTO(struct dt_job, run.clip),
     .min = 0,
     .max = 1e6,
     .help = "largest norm of all gradients together; 0: none"},
    {.name = "text_weight",
     .type = DT_KEY_NUMBER,
     DT_KEY_INTO(struct dt_job, run.text_weight),
     .min = 0,
     .max = 1e6,
     .help = "weight of the loss of tokens in the sum"},
    {.name = "image_weight",
     .type = DT_KEY_NUMBER,
     DT_KEY_INTO(struct dt_job, run.image_weight),
     .min = 0,
     .max = 1e6,
     .help = "weight of the loss of noise in the sum"},
    {.name = "dropout",
     .type = DT_KEY_NUMBER,
     DT_KEY_INTO(struct dt_job, run.dropout),
     .min = 0,
     .max = 0.99,
     .help = "share dropped of what a layer adds to its residual stream"},
    {.name = "noise",
     .type = DT_KEY_WORD,
     DT_KEY_INTO(struct dt_job, run.noise),
     .words = dt_job_run_noise_names,
     .help = "schedule of the diffusion"},
    {.name = "noise_steps",
     .type = DT_KEY_INTEGER,
     DT_KEY_INTO(struct dt_job, run.noise_steps),
     .min = 2,
     .max = 1 << 20,
     .help = "its steps"},
    {.name = "seed",
     .type = DT_KEY_INTEGER,
     DT_KEY_INTO(struct dt_job, run.seed),
     .min = 0,
     .max = DT_KEY_NO_LIMIT,
     .help = "seed of parameters, order of the data, timesteps and noise"},
    {.name = "device",
     .type = DT_KEY_OWN,
     DT_KEY_INTO(struct dt_job, run.device),
     .form = "cuda:N",
     .words = dt_job_run_device_names,
     .read = read_device,
     .fallback = "auto",
     .help = "what computes; auto: a GPU where there is one"},
    {.name = "transport",
     .type = DT_KEY_WORD,
     DT_KEY_INTO(struct dt_job, run.transport),
     .words = dt_job_run_transport_names,
     .help = "between GPUs: NCCL, by way of the hosts' memory, or CUDA IPC; auto: NCCL where it "
             "can be used"},
    {.name = "threads",
     .type = DT_KEY_INTEGER,
     DT_KEY_INTO(struct dt_job, run.threads),
     .min = 0,
     .max = THREADS_MAX,
     .help = "threads of a kernel; 0: one per core"},
    {.name = "precision",
     .type = DT_KEY_WORD,
     DT_KEY_INTO(struct dt_job, run.precision),
     .words = dt_job_run_precision_names,
     .help = "of computation; auto: the faster one"},
    {.name = "algorithms",
     .type = DT_KEY_STRING,
     .form = "path",
     .file = DT_KEY_FILE,
     DT_KEY_INTO(struct dt_job, run.algorithms),
     .read = read_folder,
     .fallback = "none",
     .help = "file of the algorithms that are fastest for products on a GPU, which are looked for"},
    {.name = "deterministic",
     .type = DT_KEY_BOOL,
     DT_KEY_INTO(struct dt_job, run.deterministic),
     .help = "the same bits in every run: nothing that is measured decides how a GPU computes"},
    {.name = "log_interval",
     .type = DT_KEY_INTEGER,
     DT_KEY_INTO(struct dt_job, run.log_interval),
     .min = 1,
     .max = STEPS_MAX,
     .help = "steps between lines of metrics"},
    {.name = "checkpoint",
     .type = DT_KEY_OWN,
     .keys = checkpoint_keys,
     .read = read_checkpoint,
     .fallback = "none",
     .help = "where and when checkpoints are written"},
    {.name = "nonfinite",
     .type = DT_KEY_OWN,
     .form = "map such as {skip: 3}",
     .words = nonfinite_words,
     .read = read_nonfinite,
     .fallback = "skip",
     .help = "what to do about a loss or gradient that is not finite"},
    {.name = "spike",
     .type = DT_KEY_OWN,
     .form = "map",
     .words = dt_guard_action_names,
     .keys = spike_keys,
     .read = read_spike,
     .fallback = "warn",
     .help = "what to do about a spike of the loss"},
    {.name = NULL},
};

static enum dt_status check_rollback(struct dt_node run, const struct dt_job_run_options *r,
                                     struct dt_error *err)
{
    if (!dt_guard_rolls_back(&r->guard) || r->checkpoint_dir[0])
        return DT_OK;
    return dt_node_error(
        dt_map_get(run, r->guard.nonfinite == DT_GUARD_ROLLBACK ? "nonfinite" : "spike"), err,
        "rollback goes back to a checkpoint: the job needs run.checkpoint, such as "
        "{dir: DIR, interval: 100}");
}

enum dt_status dt_job_run(struct dt_node map, struct dt_job *j, struct dt_error *err)
{
    struct dt_job_run_options *r = &j->run;

    r->stated = dt_node_present(map) && !dt_node_is_null(map);
    if (!r->stated)
        return DT_OK;
    DT_TRY(dt_keys_read(map, "run", dt_job_run_keys, j, err));
    if (!dt_node_present(dt_map_get(map, "warmup_steps")) && r->warmup_steps > r->steps / 10)
        r->warmup_steps = r->steps / 10;
    return check_rollback(map, r, err);
}
