/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING. */
#include "exec/train/train_save.h"

#include "base/mem.h"
#include "exec/train/train_agree.h"

#include <stdio.h>
#include <string.h>
#include <time.h>

/* ---- beginning ---- */

static enum dt_status open_share(struct dt_train_save *s, struct dt_error *err)
{
    struct dt_ckpt_part *parts;
    enum dt_status st;

    DT_TRY(dt_setup_parts(s->setup, &s->whole, err, &parts));
    st = dt_ckpt_share_new(parts, s->whole.n, s->state.step, 0, err, &s->share, &s->files[s->rank]);
    dt_free(parts);
    return st;
}

static enum dt_status collect(struct dt_train_save *s, struct dt_error *err)
{
    struct dt_error mine = {.status = DT_OK};
    enum dt_status st;

    DT_TRY(dt_exec_gather(s->x, err));
    DT_TRY(dt_exec_share_new(s->x, err, &s->whole));
    DT_TRY(dt_exec_collect(s->x, &s->whole, err));
    st = open_share(s, &mine);
    if (st == DT_OK && s->rank == 0)
        st = dt_ckpt_share_folder(s->setup->job->run.checkpoint_dir, s->state.step, s->state.run_id,
                                  &mine, &s->tag);
    return dt_train_agree(s->x, s->rank, s->ranks, st, &mine, err);
}

/* Everybody's numbers of files, and what the folder goes by. */
static enum dt_status exchange(struct dt_train_save *s, struct dt_error *err)
{
    size_t n = 2 * (size_t)s->ranks + 1;
    double *v = dt_calloc(n, sizeof(*v));
    enum dt_status st;

    if (!v)
        return dt_error_nomem(err, "numbers of files");
    v[2 * s->rank] = s->files[s->rank].model;
    v[2 * s->rank + 1] = s->files[s->rank].optimizer;
    v[n - 1] = s->rank == 0 ? (double)s->tag : 0;
    st = dt_exec_sum(s->x, v, n, err);
    for (int r = 0; st == DT_OK && r < s->ranks; r++)
        s->files[r] = (struct dt_ckpt_share_files){(int)v[2 * r], (int)v[2 * r + 1]};
    s->tag = (uint64_t)v[n - 1];
    dt_free(v);
    return st;
}

enum dt_status dt_train_save_begin(struct dt_train_save *s, const struct dt_ckpt_state *state,
                                   struct dt_error *err)
{
    enum dt_status st;

    DT_TRY(dt_train_save_poll(s, true, err));
    if (!s->files)
        s->files = dt_calloc((size_t)s->ranks, sizeof(*s->files));
    if (!s->files)
        return dt_error_nomem(err, "numbers of files");
    s->state = *state;
    st = collect(s, err);
    if (st == DT_OK)
        st = exchange(s, err);
    if (st == DT_OK)
        st = dt_ckpt_share_start(s->share, s->setup->job->run.checkpoint_dir, s->tag, s->rank,
                                 s->files, s->ranks, err);
    if (st != DT_OK)
        dt_train_save_close(s);
    return st;
}

/* ---- ending ---- */

static enum dt_status all_done(struct dt_train_save *s, struct dt_error *err, bool *out)
{
    double n = dt_ckpt_share_done(s->share);

    DT_TRY(dt_exec_sum(s->x, &n, 1, err));
    *out = n >= s->ranks;
    return DT_OK;
}

static enum dt_status commit(struct dt_train_save *s, struct dt_error *err)
{
    const struct dt_job_run_options *r = &s->setup->job->run;
    const struct dt_ckpt_options opt = {.keep = r->checkpoint_keep, .warn = s->warn};

    DT_TRY(dt_ckpt_lock_check(s->lock, err));
    return dt_ckpt_share_commit(r->checkpoint_dir, s->tag, &s->state, &opt, s->files, s->ranks, err,
                                s->path, sizeof(s->path));
}

enum dt_status dt_train_save_poll(struct dt_train_save *s, bool wait, struct dt_error *err)
{
    const struct timespec pause = {.tv_nsec = 2000000};
    struct dt_error mine = {.status = DT_OK};
    enum dt_status st;
    bool done = false;

    if (!s->share)
        return DT_OK;
    while (!done) {
        DT_TRY(all_done(s, err, &done));
        if (!done && !wait)
            return DT_OK;
        if (!done)
            nanosleep(&pause, NULL);
    }
    st = dt_ckpt_share_end(s->share, &mine);
    s->share = NULL;
    dt_exec_whole_free(&s->whole);
    st = dt_train_agree(s->x, s->rank, s->ranks, st, &mine, err);
    if (st != DT_OK) {
        double all = 0;

        if (s->rank == 0)
            dt_ckpt_share_abandon(s->setup->job->run.checkpoint_dir, s->state.step, s->tag);
        dt_exec_sum(s->x, &all, 1, NULL); /* nobody ends the job while files are left to remove */
        return st;
    }
    if (s->rank == 0)
        st = commit(s, &mine);
    return dt_train_agree(s->x, s->rank, s->ranks, st, &mine, err);
}

void dt_train_save_close(struct dt_train_save *s)
{
    if (s->share) {
        dt_ckpt_share_end(s->share, NULL);
        s->share = NULL;
        if (s->rank == 0)
            dt_ckpt_share_abandon(s->setup->job->run.checkpoint_dir, s->state.step, s->tag);
    }
    dt_exec_whole_free(&s->whole);
    dt_free(s->files);
    s->files = NULL;
}
