/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING. */
#include "exec/train/train_log.h"

#include "exec/train/train_experts.h"

#include "base/json.h"
#include "base/mem.h"
#include "base/clock.h"
#include "exec/train/tensorboard.h"

#include <dirent.h>
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

struct dt_train_log {
    char path[1200], run_id[DT_RUN_ID_SIZE];
    FILE *jsonl;
    struct dt_tensorboard *board;
};

/* The folder and those above it. */
static enum dt_status make_dirs(const char *dir, struct dt_error *err)
{
    char path[1024];

    snprintf(path, sizeof(path), "%s", dir);
    for (char *p = path + 1;; p++) {
        char c = *p;

        if (c != '/' && c)
            continue;
        *p = 0;
        if (mkdir(path, 0777) != 0 && errno != EEXIST)
            return dt_error_at(err, DT_ERR_IO, path, 0, 0, "cannot make the folder: %s",
                               strerror(errno));
        if (!c)
            return DT_OK;
        *p = c;
    }
}

/* Is it a file that a log is made of. */
static bool is_ours(const char *name)
{
    return strcmp(name, "metrics.jsonl") == 0 || strncmp(name, "events.out.tfevents.", 20) == 0;
}

static enum dt_status move(const char *dir, const char *aside, const char *name,
                           struct dt_error *err)
{
    char from[1400], to[1400];

    if (snprintf(from, sizeof(from), "%s/%s", dir, name) >= (int)sizeof(from) ||
        snprintf(to, sizeof(to), "%s/%s", aside, name) >= (int)sizeof(to))
        return dt_error_at(err, DT_ERR_IO, dir, 0, 0, "file name too long: %s", name);
    return rename(from, to) == 0 ? DT_OK
                                 : dt_error_at(err, DT_ERR_IO, from, 0, 0, "cannot move to %s: %s",
                                               aside, strerror(errno));
}

/* The next run has a log of its own.  A log without lines is none. */
static enum dt_status set_aside(const char *dir, const struct dt_warn *warn, struct dt_error *err)
{
    enum dt_status st = DT_OK;
    char path[1200], aside[1200];
    struct dirent *e;
    struct stat sb;
    DIR *d;

    snprintf(path, sizeof(path), "%s/metrics.jsonl", dir);
    if (stat(path, &sb) != 0 || sb.st_size == 0)
        return DT_OK;
    for (int n = 1;; n++) {
        snprintf(aside, sizeof(aside), "%s/before-%d", dir, n);
        if (mkdir(aside, 0777) == 0)
            break;
        if (errno != EEXIST)
            return dt_error_at(err, DT_ERR_IO, aside, 0, 0, "cannot make the folder: %s",
                               strerror(errno));
    }
    d = opendir(dir);
    if (!d)
        return dt_error_at(err, DT_ERR_IO, dir, 0, 0, "cannot read the folder: %s",
                           strerror(errno));
    while (st == DT_OK && (e = readdir(d)))
        if (is_ours(e->d_name))
            st = move(dir, aside, e->d_name, err);
    closedir(d);
    if (st == DT_OK)
        dt_warn(warn, "%s: the log of the run before is in %s now", dir, aside);
    return st;
}

enum dt_status dt_train_log_open(const char *dir, const char *run_id, bool anew,
                                 const struct dt_warn *warn, struct dt_error *err,
                                 struct dt_train_log **out)
{
    struct dt_train_log *l;
    enum dt_status st;

    *out = NULL;
    if (!dir[0])
        return DT_OK;
    DT_TRY(make_dirs(dir, err));
    if (anew)
        DT_TRY(set_aside(dir, warn, err));
    l = dt_calloc(1, sizeof(*l));
    if (!l)
        return dt_error_nomem(err, "a log");
    snprintf(l->path, sizeof(l->path), "%s/metrics.jsonl", dir);
    snprintf(l->run_id, sizeof(l->run_id), "%s", run_id);
    l->jsonl = fopen(l->path, "a");
    st = l->jsonl ? dt_tensorboard_open(dir, dt_clock_wall_s(), err, &l->board)
                  : dt_error_at(err, DT_ERR_IO, l->path, 0, 0, "cannot open: %s", strerror(errno));
    if (st != DT_OK) {
        dt_train_log_close(l, NULL);
        return st;
    }
    *out = l;
    return DT_OK;
}

/* A log may be of several runs, one after the other. */
static void begin_line(const struct dt_train_log *l, struct dt_json *j, int64_t step)
{
    char utc[32];

    dt_clock_utc(utc, sizeof(utc));
    dt_json_init(j, false);
    dt_json_begin_object(j);
    dt_json_kv_string(j, "run_id", l->run_id);
    dt_json_kv_string(j, "time", utc);
    dt_json_kv_int(j, "step", step);
}

static enum dt_status write_line(struct dt_train_log *l, struct dt_json *j, struct dt_error *err)
{
    char *text = NULL;
    bool bad;

    dt_json_end_object(j);
    DT_TRY(dt_json_finish(j, err, &text));
    bad = fprintf(l->jsonl, "%s\n", text) < 0 || fflush(l->jsonl) != 0;
    dt_free(text);
    return bad ? dt_error_at(err, DT_ERR_IO, l->path, 0, 0, "cannot write: %s", strerror(errno))
               : DT_OK;
}

static enum dt_status write_json(struct dt_train_log *l, const struct dt_train_step *s,
                                 struct dt_error *err)
{
    struct dt_json j;

    begin_line(l, &j, s->step);
    dt_json_kv_double(&j, "loss", s->r.loss);
    if (s->r.targets > 0)
        dt_json_kv_double(&j, "loss_text", s->r.loss_text);
    if (s->r.images > 0)
        dt_json_kv_double(&j, "loss_image", s->r.loss_image);
    dt_json_kv_double(&j, "grad_norm", s->r.grad_norm);
    dt_json_kv_double(&j, "lr", s->r.lr);
    dt_json_kv_int(&j, "tokens", s->r.tokens);
    dt_json_kv_int(&j, "targets", s->r.targets);
    dt_json_kv_int(&j, "images_encoded", s->r.encoded);
    dt_json_kv_int(&j, "images_generated", s->r.images);
    dt_json_kv_double(&j, "step_s", s->step_s);
    dt_json_kv_double(&j, "data_s", s->data_s);
    if (s->order)
        dt_json_kv_string(&j, "order", s->order);
    if (s->reference_s[0] > 0) {
        dt_json_kv_double(&j, "reference_before_s", s->reference_s[0]);
        dt_json_kv_double(&j, "reference_after_s", s->reference_s[1]);
        dt_json_kv_bool(&j, "reference_steady", s->reference_steady);
        dt_json_key(&j, "reference_ranks_s");
        dt_json_begin_array(&j);
        for (int r = 0; r < s->reference_ranks; r++)
            dt_json_double(&j, s->reference_rank_s[r]);
        dt_json_end_array(&j);
    }
    dt_json_kv_double(&j, "tokens_per_s", s->tokens_per_s);
    dt_json_kv_double(&j, "samples_per_s", s->samples_per_s);
    dt_json_kv_double(&j, "mfu", s->mfu);
    if (s->r.expert_forwards > 0) {
        dt_json_key(&j, "experts");
        dt_train_experts_json(&j, s->r.balance, s->r.busiest);
    }
    dt_json_kv_int(&j, "bad_documents", s->bad_documents);
    dt_json_kv_int(&j, "skipped_steps", s->trouble.skipped);
    dt_json_kv_int(&j, "spikes", s->trouble.spikes);
    dt_json_kv_int(&j, "rollbacks", s->trouble.rollbacks);
    return write_line(l, &j, err);
}

static void culprit(struct dt_json *j, const char *key, const struct dt_exec_culprit *c)
{
    if (!c->name[0])
        return;
    dt_json_key(j, key);
    dt_json_begin_object(j);
    dt_json_kv_string(j, "tensor", c->name);
    dt_json_kv_int(j, "nan", (int64_t)c->bad.nan);
    dt_json_kv_int(j, "infinite", (int64_t)c->bad.inf);
    dt_json_kv_int(j, "values", (int64_t)c->values);
    dt_json_end_object(j);
}

enum dt_status dt_train_log_event(struct dt_train_log *l, const struct dt_train_event *e,
                                  struct dt_error *err)
{
    struct dt_json j;
    char text[2048];

    if (!l)
        return DT_OK;
    begin_line(l, &j, e->step);
    dt_json_kv_string(&j, "event", dt_train_trouble_name(e));
    dt_json_kv_string(&j, "action", dt_guard_action_names[e->verdict.action]);
    dt_json_kv_double(&j, "loss", e->loss);
    dt_json_kv_double(&j, "grad_norm", e->grad_norm);
    if (e->verdict.cause == DT_GUARD_SPIKE) {
        dt_json_kv_double(&j, "median", e->verdict.median);
        dt_json_kv_double(&j, "limit", e->verdict.limit);
    }
    if (e->module[0])
        dt_json_kv_string(&j, "module", e->module);
    culprit(&j, "parameter", &e->param);
    culprit(&j, "gradient", &e->grad);
    dt_json_kv_int(&j, "samples", e->n_samples);
    dt_json_key(&j, "sample_names");
    dt_json_begin_array(&j);
    for (int64_t i = 0; i < e->n_samples && i < DT_EVENT_SAMPLES; i++)
        dt_json_string(&j, e->samples[i]);
    dt_json_end_array(&j);
    if (e->to_step >= 0)
        dt_json_kv_int(&j, "to_step", e->to_step);
    dt_train_trouble_text(e, text, sizeof(text));
    dt_json_kv_string(&j, "message", text);
    return write_line(l, &j, err);
}

enum dt_status dt_train_log_mix(struct dt_train_log *l, int64_t step,
                                const struct dt_orch_mix_found *f, struct dt_error *err)
{
    struct dt_json j;
    char text[1024];

    if (!l)
        return DT_OK;
    begin_line(l, &j, step);
    dt_json_kv_string(&j, "event", "mix");
    dt_orch_mix_json(f, &j);
    dt_json_kv_string(&j, "message", dt_orch_mix_text(f, text, sizeof(text)));
    return write_line(l, &j, err);
}

enum dt_status dt_train_log_step(struct dt_train_log *l, const struct dt_train_step *s,
                                 struct dt_error *err)
{
    const char *tags[14];
    float values[14];
    int n = 0;

    if (!l)
        return DT_OK;
    DT_TRY(write_json(l, s, err));
    if (s->r.targets > 0) {
        tags[n] = "loss/text";
        values[n++] = (float)s->r.loss_text;
    }
    if (s->r.images > 0) {
        tags[n] = "loss/image";
        values[n++] = (float)s->r.loss_image;
    }
    if (s->r.expert_forwards > 0) {
        tags[n] = "experts/balance";
        values[n++] = (float)s->r.balance;
        tags[n] = "experts/busiest";
        values[n++] = (float)s->r.busiest[DT_LOAD_EXPERT];
    }
    tags[n] = "train/grad_norm";
    values[n++] = (float)s->r.grad_norm;
    tags[n] = "train/lr";
    values[n++] = (float)s->r.lr;
    tags[n] = "train/skipped_steps";
    values[n++] = (float)s->trouble.skipped;
    tags[n] = "train/spikes";
    values[n++] = (float)s->trouble.spikes;
    tags[n] = "train/rollbacks";
    values[n++] = (float)s->trouble.rollbacks;
    tags[n] = "speed/tokens_per_s";
    values[n++] = (float)s->tokens_per_s;
    if (!isnan(s->mfu)) {
        tags[n] = "speed/mfu";
        values[n++] = (float)s->mfu;
    }
    DT_TRY(dt_tensorboard_scalars(l->board, dt_clock_wall_s(), s->step, tags, values, n, err));
    return dt_tensorboard_flush(l->board, err);
}

enum dt_status dt_train_log_close(struct dt_train_log *l, struct dt_error *err)
{
    enum dt_status st = DT_OK;

    if (!l)
        return DT_OK;
    if (l->jsonl && fclose(l->jsonl) != 0)
        st = dt_error_at(err, DT_ERR_IO, l->path, 0, 0, "cannot write: %s", strerror(errno));
    if (l->board && dt_tensorboard_close(l->board, st == DT_OK ? err : NULL) != DT_OK &&
        st == DT_OK)
        st = DT_ERR_IO;
    dt_free(l);
    return st;
}
