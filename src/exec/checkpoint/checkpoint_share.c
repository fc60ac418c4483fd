/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Shares of a checkpoint: a thread that writes them, and putting the ranks' manifests together. */
#include "exec/checkpoint/checkpoint_share.h"

#include "base/mem.h"
#include "exec/checkpoint/checkpoint_impl.h"

#include <limits.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

struct dt_ckpt_sharing {
    struct dt_ckpt_part *parts; /* what they point to is the caller's */
    struct dt_ckpt_share files;
    char temp[PATH_MAX], manifest[64];
    pthread_t thread;
    bool threaded;
    atomic_bool done;
    enum dt_status status;
    struct dt_error error;
};

static void free_share(struct dt_ckpt_sharing *s)
{
    dt_free(s->parts);
    dt_free(s);
}

enum dt_status dt_ckpt_share_new(const struct dt_ckpt_part *parts, int n_parts, int64_t step,
                                 int64_t shard_bytes_max, struct dt_error *err,
                                 struct dt_ckpt_sharing **out, struct dt_ckpt_share_files *files)
{
    struct dt_ckpt_sharing *s = dt_calloc(1, sizeof(*s));
    enum dt_status st = DT_OK;

    if (!s)
        return dt_error_nomem(err, "a share of a checkpoint");
    s->parts = dt_calloc((size_t)n_parts + 1, sizeof(*s->parts));
    if (!s->parts)
        st = dt_error_nomem(err, "a share of a checkpoint");
    s->files = (struct dt_ckpt_share){
        .parts = s->parts,
        .n_parts = n_parts,
        .step = step,
        .shard_bytes_max = shard_bytes_max > 0 ? shard_bytes_max : DT_CKPT_SHARD_BYTES_MAX};
    if (st == DT_OK) {
        if (n_parts > 0)
            memcpy(s->parts, parts, (size_t)n_parts * sizeof(*parts));
        st = dt_ckpt_count(&s->files, err);
    }
    if (st != DT_OK) {
        free_share(s);
        return st;
    }
    *files = (struct dt_ckpt_share_files){s->files.model.n, s->files.optimizer.n};
    *out = s;
    return DT_OK;
}

/* ---- numbers ---- */

/* What is trained nowhere has an empty file of moments, rank 0's. */
static int optimizer_files(const struct dt_ckpt_share_files *files, int rank, int n_ranks)
{
    int n = 0;

    for (int r = 0; r < n_ranks; r++)
        n += files[r].optimizer;
    return n == 0 && rank == 0 ? 1 : files[rank].optimizer;
}

static void number(const struct dt_ckpt_share_files *files, int rank, int n_ranks,
                   struct dt_ckpt_files *model, struct dt_ckpt_files *optimizer)
{
    *model = (struct dt_ckpt_files){.n = files[rank].model};
    *optimizer = (struct dt_ckpt_files){.n = optimizer_files(files, rank, n_ranks)};
    for (int r = 0; r < n_ranks; r++) {
        int n = optimizer_files(files, r, n_ranks);

        model->first += r < rank ? files[r].model : 0;
        model->total += files[r].model;
        optimizer->first += r < rank ? n : 0;
        optimizer->total += n;
    }
}

static void share_name(int rank, char *buf, size_t size)
{
    snprintf(buf, size, "share-%05d.json", rank);
}

/* ---- writing ---- */

static void write_share(struct dt_ckpt_sharing *s)
{
    struct dt_ckpt_manifest m = {.step = s->files.step};

    s->status = dt_ckpt_write(s->temp, &s->files, &m, &s->error);
    if (s->status == DT_OK)
        s->status = dt_ckpt_manifest_write(s->temp, s->manifest, &m, &s->error);
    dt_ckpt_manifest_free(&m);
}

static void *writer(void *arg)
{
    struct dt_ckpt_sharing *s = arg;

    write_share(s);
    atomic_store(&s->done, true);
    return NULL;
}

enum dt_status dt_ckpt_share_folder(const char *dir, int64_t step, const char *run_id,
                                    struct dt_error *err, uint64_t *tag)
{
    char temp[PATH_MAX];

    return dt_ckpt_begin(dir, step, run_id, err, tag, temp, sizeof(temp));
}

enum dt_status dt_ckpt_share_start(struct dt_ckpt_sharing *s, const char *dir, uint64_t tag,
                                   int rank, const struct dt_ckpt_share_files *files, int n_ranks,
                                   struct dt_error *err)
{
    sigset_t all, was;

    number(files, rank, n_ranks, &s->files.model, &s->files.optimizer);
    if (s->files.model.total > DT_TENSOR_FILES_MAX)
        return dt_error_at(err, DT_ERR_INPUT, dir, 0, 0, "a checkpoint of %d files; at most %d",
                           s->files.model.total, DT_TENSOR_FILES_MAX);
    DT_TRY(dt_ckpt_temp(dir, s->files.step, tag, err, s->temp, sizeof(s->temp)));
    share_name(rank, s->manifest, sizeof(s->manifest));
    if (s->files.model.n + s->files.optimizer.n == 0) {
        atomic_store(&s->done, true);
        return DT_OK;
    }
    sigfillset(&all); /* signals are the main thread's */
    pthread_sigmask(SIG_SETMASK, &all, &was);
    s->threaded = pthread_create(&s->thread, NULL, writer, s) == 0;
    pthread_sigmask(SIG_SETMASK, &was, NULL);
    if (!s->threaded) /* then training waits */
        writer(s);
    return DT_OK;
}

bool dt_ckpt_share_done(struct dt_ckpt_sharing *s)
{
    return atomic_load(&s->done);
}

enum dt_status dt_ckpt_share_end(struct dt_ckpt_sharing *s, struct dt_error *err)
{
    enum dt_status st;

    if (!s)
        return DT_OK;
    if (s->threaded)
        pthread_join(s->thread, NULL);
    st = s->status;
    if (st != DT_OK && err)
        *err = s->error;
    free_share(s);
    return st;
}

/* ---- committing ---- */

/* The manifests of the shares, whose files must lie here: a folder that not all ranks share is
 * noticed now. */
static enum dt_status merge(const char *temp, const struct dt_ckpt_share_files *files, int n_ranks,
                            struct dt_ckpt_manifest *m, struct dt_error *err)
{
    for (int r = 0; r < n_ranks; r++) {
        char name[64], path[PATH_MAX];
        struct dt_ckpt_manifest one;
        enum dt_status st;

        if (files[r].model + optimizer_files(files, r, n_ranks) == 0)
            continue;
        share_name(r, name, sizeof(name));
        DT_TRY(dt_ckpt_path(path, sizeof(path), temp, name, err));
        DT_TRY(dt_ckpt_manifest_read(temp, name, err, &one));
        st = dt_ckpt_manifest_merge(m, &one, err);
        dt_ckpt_manifest_free(&one);
        DT_TRY(st);
        unlink(path);
    }
    return DT_OK;
}

static enum dt_status write_rest(const char *temp, const struct dt_ckpt_state *state,
                                 const struct dt_ckpt_share_files *files, int n_ranks,
                                 struct dt_ckpt_manifest *m, struct dt_error *err)
{
    struct dt_ckpt_files model, optimizer;

    number(files, 0, n_ranks, &model, &optimizer);
    DT_TRY(merge(temp, files, n_ranks, m, err));
    if (model.total > 1)
        DT_TRY(dt_ckpt_index(temp, "model", model.total, m, err));
    if (optimizer.total > 1)
        DT_TRY(dt_ckpt_index(temp, "optimizer", optimizer.total, m, err));
    DT_TRY(dt_ckpt_state_write(temp, state, m, err));
    DT_TRY(dt_ckpt_data_write(temp, state, m, err));
    DT_TRY(dt_ckpt_job_write(temp, state, m, err));
    return dt_ckpt_manifest_write(temp, "manifest.json", m, err);
}

enum dt_status dt_ckpt_share_commit(const char *dir, uint64_t tag,
                                    const struct dt_ckpt_state *state,
                                    const struct dt_ckpt_options *opt,
                                    const struct dt_ckpt_share_files *files, int n_ranks,
                                    struct dt_error *err, char *path, size_t path_size)
{
    struct dt_ckpt_manifest m = {.step = state->step};
    char temp[PATH_MAX];
    enum dt_status st;

    memcpy(m.run_id, state->run_id, sizeof(m.run_id));
    DT_TRY(dt_ckpt_temp(dir, state->step, tag, err, temp, sizeof(temp)));
    st = write_rest(temp, state, files, n_ranks, &m, err);
    dt_ckpt_manifest_free(&m);
    if (st == DT_OK)
        st = dt_ckpt_commit(dir, temp, state, opt, err, path, path_size);
    if (st != DT_OK)
        dt_ckpt_drop(temp);
    return st;
}

void dt_ckpt_share_abandon(const char *dir, int64_t step, uint64_t tag)
{
    char temp[PATH_MAX];

    if (dt_ckpt_temp(dir, step, tag, NULL, temp, sizeof(temp)) == DT_OK)
        dt_ckpt_drop(temp);
}
