/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING. */
#include "exec/train/train_folder.h"

#include "exec/train/train_agree.h"
#include "comm/supervisor.h"

#include <stdio.h>
#include <string.h>

/* A run that began here last and was stopped before it saved is not what is gone on from. */
static void mention_lost(const char *dir, const struct dt_train_folder *f, const struct dt_warn *w)
{
    char id[DT_RUN_ID_SIZE], since[32], path[sizeof(f->path)];
    bool found;

    if (dt_ckpt_last_run(dir, id, since) && strcmp(id, f->run_id) != 0 &&
        dt_ckpt_find_run(dir, id, NULL, NULL, &found, path, sizeof(path), NULL) == DT_OK && !found)
        dt_warn(w,
                "%s: run %s, which began here at %s, has no checkpoint; resuming from %s of run %s",
                dir, id, since, f->path, f->run_id);
}

/* A run that began anew here set others aside and was stopped before it saved, say. */
static void mention_aside(const char *dir, const struct dt_warn *w)
{
    char id[DT_RUN_ID_SIZE], path[sizeof(((struct dt_train_folder *)0)->path)];

    if (dt_ckpt_last_aside(dir, path, sizeof(path), id))
        dt_warn(
            w,
            "%s: there is no checkpoint to resume, so a new run begins; %s is of an earlier one, "
            "which \"--run-id %s\" resumes",
            dir, path, id);
}

/* A run of a given id goes on from its own checkpoints only; otherwise what is there goes on. */
static enum dt_status choose(struct dt_train_folder *f, const struct dt_train_options *o,
                             const char *dir, struct dt_error *err)
{
    bool any = !o->run_id && !o->from_scratch;

    if (o->run_id)
        snprintf(f->run_id, sizeof(f->run_id), "%s", o->run_id);
    else
        dt_ckpt_run_id_new(f->run_id);
    if (!dir[0])
        return DT_OK;
    DT_TRY(dt_ckpt_lock(dir, &(struct dt_ckpt_lock_options){o->run_id, o->stop, o->warn}, err,
                        &f->lock));
    dt_ckpt_tidy(dir, o->warn);
    if (o->run_id || any)
        DT_TRY(dt_ckpt_find_run(dir, o->run_id, o->warn, err, &f->found, f->path, sizeof(f->path),
                                any ? f->run_id : NULL));
    if (f->found && any)
        mention_lost(dir, f, o->warn);
    if (!f->found && any)
        mention_aside(dir, o->warn);
    return dt_ckpt_lock_run(f->lock, f->run_id, err);
}

/* Ranks that went on from different checkpoints (folders that are not shared) would train on as if
 * nothing were wrong. */
static enum dt_status same_checkpoint(const struct dt_train_folder *f,
                                      const struct dt_train_options *o, const char *dir,
                                      struct dt_error *err)
{
    struct dt_supervisor_fact fact = {"checkpoint", "none"};
    char digest[40], value[80], path[sizeof(f->path)];
    bool found = f->found, any = !o->run_id && !o->from_scratch;
    const char *slash;

    if (!o->supervisor)
        return DT_OK;
    snprintf(path, sizeof(path), "%s", f->path);
    if (!found && any && dir[0] && dt_ckpt_find(dir, NULL, &found, path, sizeof(path)) != DT_OK)
        found = false;
    if (found && dt_ckpt_identity(path, NULL, digest, sizeof(digest)) == DT_OK) {
        slash = strrchr(path, '/');
        snprintf(value, sizeof(value), "%.30s (%s)", slash ? slash + 1 : path, digest);
        fact.value = value;
    }
    return dt_supervisor_agree(o->supervisor, &fact, 1, err);
}

enum dt_status dt_train_folder_open(struct dt_train_folder *f, const struct dt_train_options *o,
                                    struct dt_exec *x, struct dt_error *err)
{
    const char *dir = o->setup->job->run.checkpoint_dir;
    int rank = o->transport ? o->transport->rank : 0, ranks = o->transport ? o->transport->size : 1;
    struct dt_error mine = {.status = DT_OK};
    struct {
        char run_id[DT_RUN_ID_SIZE], path[sizeof(f->path)], found;
    } told = {.found = 0};
    enum dt_status st = DT_OK;

    memset(f, 0, sizeof(*f));
    if (rank == 0)
        st = choose(f, o, dir, &mine);
    DT_TRY(dt_train_agree(x, rank, ranks, st, &mine, err));
    memcpy(told.run_id, f->run_id, sizeof(told.run_id));
    memcpy(told.path, f->path, sizeof(told.path));
    told.found = f->found;
    if (ranks > 1)
        DT_TRY(dt_train_tell(x, rank, &told, sizeof(told), err));
    memcpy(f->run_id, told.run_id, sizeof(f->run_id));
    memcpy(f->path, told.path, sizeof(f->path));
    f->found = told.found;
    return same_checkpoint(f, o, dir, err);
}

static enum dt_status same_data(const struct dt_train_folder *f, const struct dt_train_options *o,
                                const struct dt_ckpt_state *state, struct dt_shard_prints *was,
                                struct dt_error *err)
{
    if (state->step > 0 && state->cursor.fingerprint == 0 && !o->changed_data)
        return dt_error_at(err, DT_ERR_INPUT, f->path, 0, 0,
                           "this checkpoint does not say which data it was trained on; "
                           "--changed-data resumes with the present data, from its beginning");
    return dt_ckpt_read_data(f->path, o->changed_data ? NULL : o->warn, err, was);
}

static enum dt_status check_data(struct dt_train_folder *f, const struct dt_train_options *o,
                                 const struct dt_ckpt_state *state, struct dt_error *err)
{
    const struct dt_setup *s = o->setup;
    struct dt_shard_prints was = {.n = 0};
    enum dt_status st = DT_OK;

    if (f->found)
        st = same_data(f, o, state, &was, err);
    if (st != DT_OK && o->changed_data && st == DT_ERR_INPUT)
        st = DT_OK;
    if (s->n_producers > 0) { /* the shards of before stay known: training may go back to them */
        f->data = was;
        return st;
    }
    if (st == DT_OK)
        st = dt_shard_prints_take((const char *const *)s->shards, s->n_shards, &was, 0, err,
                                  &f->data, NULL);
    if (st == DT_OK && was.n > 0 && !o->changed_data)
        st = dt_shard_prints_compare(&was, &f->data, (const char *const *)s->shards, err);
    dt_shard_prints_free(&was);
    return st;
}

enum dt_status dt_train_folder_data(struct dt_train_folder *f, const struct dt_train_options *o,
                                    struct dt_exec *x, struct dt_ckpt_state *state,
                                    struct dt_error *err)
{
    int rank = o->transport ? o->transport->rank : 0, ranks = o->transport ? o->transport->size : 1;
    struct dt_error mine = {.status = DT_OK};
    enum dt_status st = DT_OK;

    if (!o->setup->job->run.checkpoint_dir[0])
        return DT_OK;
    if (rank == 0)
        st = check_data(f, o, state, &mine);
    DT_TRY(dt_train_agree(x, rank, ranks, st, &mine, err));
    state->data = rank == 0 && (f->data.n > 0 || o->setup->n_producers > 0) ? &f->data : NULL;
    return DT_OK;
}

enum dt_status dt_train_folder_begin(struct dt_train_folder *f, const struct dt_train_options *o,
                                     struct dt_error *err)
{
    if (!f->lock || !o->from_scratch || f->found)
        return DT_OK;
    DT_TRY(dt_ckpt_lock_check(f->lock, err));
    return dt_ckpt_set_aside(o->setup->job->run.checkpoint_dir, o->warn, err);
}

void dt_train_folder_close(struct dt_train_folder *f)
{
    dt_shard_prints_free(&f->data);
    dt_ckpt_unlock(f->lock);
    f->lock = NULL;
}
