/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * A checkpoint's folders: made under another name, renamed when complete, removed when old. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE /* renameat2 */
#endif
#include "exec/checkpoint/checkpoint_dir.h"

#include "base/file.h"
#include "base/mem.h"
#include "exec/checkpoint/checkpoint_own.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define TEMP ".tmp-"
#define OLD ".old-"

enum dt_status dt_ckpt_path(char *out, size_t size, const char *dir, const char *name,
                            struct dt_error *err)
{
    int n = snprintf(out, size, "%s/%s", dir, name);

    if (n < 0 || (size_t)n >= size)
        return dt_error_at(err, DT_ERR_INPUT, dir, 0, 0, "file name too long");
    return DT_OK;
}

static int open_dir(const char *dir)
{
    return open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
}

static bool starts(const char *name, const char *with)
{
    return strncmp(name, with, strlen(with)) == 0;
}

static const char *run_of(const struct dt_ckpt_state *s)
{
    return s->run_id[0] ? s->run_id : DT_RUN_UNNAMED;
}

enum dt_status dt_ckpt_of_step(const char *dir, int64_t step, struct dt_error *err, char *out,
                               size_t size)
{
    char name[32];

    dt_ckpt_step_name(name, sizeof(name), step);
    return dt_ckpt_path(out, size, dir, name, err);
}

/* ---- keeping ---- */

enum dt_status dt_ckpt_keep(const char *path, struct dt_error *err)
{
    static const char text[] = "Training stopped after this checkpoint; remove this file to let "
                               "later ones take its place.\n";
    char mark[PATH_MAX];

    DT_TRY(dt_ckpt_path(mark, sizeof(mark), path, DT_CKPT_KEPT, err));
    return dt_file_write(mark, text, strlen(text), err);
}

static bool kept(int dir, const char *step)
{
    char mark[128];
    struct stat sb;

    snprintf(mark, sizeof(mark), "%s/" DT_CKPT_KEPT, step);
    return fstatat(dir, mark, &sb, AT_SYMLINK_NOFOLLOW) == 0;
}

/* ---- making way ---- */

/* False where `to` is taken; file systems without renameat2's flags (NFS) have a moment between
 * looking and renaming. */
static bool rename_to_new(int dir, const char *from, const char *to)
{
    struct stat sb;

#ifdef RENAME_NOREPLACE
    if (renameat2(dir, from, dir, to, RENAME_NOREPLACE) == 0)
        return true;
    if (errno != EINVAL && errno != ENOSYS)
        return false;
#endif
    return fstatat(dir, to, &sb, AT_SYMLINK_NOFOLLOW) != 0 && errno == ENOENT &&
           renameat(dir, from, dir, to) == 0;
}

/* To "STEP.of-RUN", for a checkpoint of a run, or "STEP.kept", with a number where that is taken.
 */
static bool set_aside(int dir, const char *from, const char *step, const char *run_id, char *to,
                      size_t size)
{
    for (int k = 0; k < 1000; k++) {
        char number[16] = "";

        if (k > 0)
            snprintf(number, sizeof(number), ".%d", k);
        if (run_id)
            snprintf(to, size, "%s" DT_CKPT_OF "%.8s%s", step, run_id, number);
        else
            snprintf(to, size, "%s.kept%s", step, number);
        if (rename_to_new(dir, from, to))
            return true;
        if (errno != EEXIST && errno != ENOTEMPTY)
            return false;
    }
    return false;
}

/* The step in ".old-STEP.TAG" and ".tmp-STEP.TAG". */
static bool step_in(const char *hidden, char *step, size_t size)
{
    const char *name = hidden + strlen(TEMP), *dot = strchr(name, '.');

    if (!dot || (size_t)(dot - name) >= size)
        return false;
    memcpy(step, name, (size_t)(dot - name));
    step[dot - name] = '\0';
    return dt_ckpt_step_of(step) >= 0;
}

/* Removes a folder of ours under a hidden name; what somebody else has put into it gets its old
 * name back. */
static void discard(const char *dir, int fd, const char *hidden, const struct dt_warn *warn)
{
    char step[64], aside[128];

    if (dt_ckpt_empty(fd, hidden) != DT_CKPT_OTHERS_INSIDE)
        return;
    if (!step_in(hidden, step, sizeof(step)))
        return;
    if (rename_to_new(fd, hidden, step))
        snprintf(aside, sizeof(aside), "%s", step);
    else if (!set_aside(fd, hidden, step, NULL, aside, sizeof(aside)))
        snprintf(aside, sizeof(aside), "%s", hidden);
    dt_warn(warn,
            "%s: files of the old checkpoint %s that this program did not write are kept in %s/%s",
            dir, step, dir, aside);
}

/* ---- tidying ---- */

/* The process that a temporary file is named after ("latest.tmp.PID"). */
static bool maker_lives(const char *name)
{
    const char *at = strstr(name, ".tmp.");
    long pid = at ? strtol(at + 5, NULL, 10) : 0;

    return pid > 0 && pid != (long)getpid() && (kill((pid_t)pid, 0) == 0 || errno != ESRCH);
}

/* A step that had to make way for itself without anything there to change places with. */
static bool bring_back(int fd, const char *hidden)
{
    char step[64], run_id[DT_RUN_ID_SIZE];

    return starts(hidden, OLD) && step_in(hidden, step, sizeof(step)) &&
           dt_ckpt_complete(fd, hidden, run_id) && rename_to_new(fd, hidden, step);
}

static void tidy_folder(const char *dir, int fd, const char *name, const struct dt_warn *warn,
                        struct dt_ckpt_names *others)
{
    struct dt_ckpt_owner owner;
    char step[64];

    if (!step_in(name, step, sizeof(step))) { /* a copy of ours that somebody named, say */
        dt_ckpt_names_add(others, "%s", name);
    } else if (!dt_ckpt_owned(fd, name, &owner)) {
        /* killed before the marker was there: an empty folder, of which nothing is lost */
        if (unlinkat(fd, name, AT_REMOVEDIR) != 0)
            dt_ckpt_names_add(others, "%s", name);
    } else if ((owner.process.pid == (long)getpid() ||
                dt_ckpt_lives(&owner.process) != DT_CKPT_LIVES) &&
               !bring_back(fd, name)) {
        discard(dir, fd, name, warn);
    }
}

void dt_ckpt_tidy(const char *dir, const struct dt_warn *warn)
{
    struct dt_ckpt_names others = {.n = 0};
    struct dirent *e;
    struct stat sb;
    int fd = open_dir(dir);
    DIR *d = fd >= 0 ? fdopendir(fd) : NULL;

    if (!d) {
        if (fd >= 0)
            close(fd);
        return;
    }
    while ((e = readdir(d))) {
        if (starts(e->d_name, TEMP) || starts(e->d_name, OLD))
            tidy_folder(dir, fd, e->d_name, warn, &others);
        else if (dt_ckpt_temp_file(fd, e->d_name) && !maker_lives(e->d_name))
            unlinkat(fd, e->d_name, 0);
        else if (dt_ckpt_step_of(e->d_name) >= 0 &&
                 fstatat(fd, e->d_name, &sb, AT_SYMLINK_NOFOLLOW) == 0 && S_ISLNK(sb.st_mode))
            dt_ckpt_names_add(&others, "%s (a symbolic link)", e->d_name);
    }
    closedir(d);
    if (others.n > 0)
        dt_warn(warn, "%s: left alone, as this program did not make it: %s", dir,
                dt_ckpt_names_end(&others));
}

/* ---- saving ---- */

static void hidden_name(char *buf, size_t size, const char *prefix, int64_t step, uint64_t tag)
{
    char name[32];

    dt_ckpt_step_name(name, sizeof(name), step);
    snprintf(buf, size, "%s%s.%013" PRIx64, prefix, name, tag);
}

enum dt_status dt_ckpt_temp(const char *dir, int64_t step, uint64_t tag, struct dt_error *err,
                            char *temp, size_t size)
{
    char name[64];

    hidden_name(name, sizeof(name), TEMP, step, tag);
    return dt_ckpt_path(temp, size, dir, name, err);
}

enum dt_status dt_ckpt_begin(const char *dir, int64_t step, const char *run_id,
                             struct dt_error *err, uint64_t *tag, char *temp, size_t size)
{
    enum dt_status st;

    if (mkdir(dir, 0777) != 0 && errno != EEXIST)
        return dt_error_at(err, DT_ERR_IO, dir, 0, 0, "cannot create: %s", strerror(errno));
    dt_ckpt_tidy(dir, NULL);
    *tag = dt_ckpt_random() >> 12; /* a double holds it, in which ranks tell each other */
    DT_TRY(dt_ckpt_temp(dir, step, *tag, err, temp, size));
    if (mkdir(temp, 0777) != 0)
        return dt_error_at(err, DT_ERR_IO, temp, 0, 0, "cannot create: %s", strerror(errno));
    st = dt_ckpt_mark(temp, run_id[0] ? run_id : DT_RUN_UNNAMED, err);
    if (st != DT_OK)
        dt_ckpt_drop(temp);
    return st;
}

void dt_ckpt_drop(const char *temp)
{
    const char *slash = strrchr(temp, '/');
    char dir[PATH_MAX];
    int fd;

    if (!slash || snprintf(dir, sizeof(dir), "%.*s", (int)(slash - temp), temp) >= PATH_MAX)
        return;
    fd = open_dir(dir);
    if (fd < 0)
        return;
    if (unlinkat(fd, slash + 1, AT_REMOVEDIR) != 0)
        discard(dir, fd, slash + 1, NULL);
    close(fd);
}

static enum dt_status sync_folder(const char *path, struct dt_error *err)
{
    int fd = open_dir(path);
    bool failed;

    if (fd < 0)
        return dt_error_at(err, DT_ERR_IO, path, 0, 0, "cannot open: %s", strerror(errno));
    /* file systems that cannot sync a folder say EINVAL */
    failed = fsync(fd) != 0 && errno != EINVAL;
    if (failed)
        dt_error_at(err, DT_ERR_IO, path, 0, 0, "cannot sync: %s", strerror(errno));
    close(fd);
    return failed ? DT_ERR_IO : DT_OK;
}

struct commit {
    const char *dir, *temp; /* temp: its name in dir */
    char name[32], old[64];
    const struct dt_ckpt_state *state;
    const struct dt_warn *warn;
    int fd;
};

static enum dt_status cannot_rename(const struct commit *c, struct dt_error *err)
{
    int saved = errno;
    char path[PATH_MAX];

    if (dt_ckpt_path(path, sizeof(path), c->dir, c->name, err) != DT_OK)
        return DT_ERR_INPUT;
    return dt_error_at(err, DT_ERR_IO, path, 0, 0, "cannot rename into place: %s", strerror(saved));
}

/* What is there already is no checkpoint of this run: it steps aside and stays. */
static enum dt_status past_others(const struct commit *c, const char *run_id, struct dt_error *err)
{
    char aside[128];

    if (!set_aside(c->fd, c->name, c->name, run_id, aside, sizeof(aside)))
        return cannot_rename(c, err);
    dt_warn(c->warn, "%s: %s of %s%s is now %s", c->dir, c->name,
            run_id ? "run " : "another maker than this program", run_id ? run_id : "", aside);
    return renameat(c->fd, c->temp, c->fd, c->name) == 0 ? DT_OK : cannot_rename(c, err);
}

/* This run's own checkpoint of this step changes places with the new one at once, where the file
 * system can do that; elsewhere it steps aside first. */
static enum dt_status put_in_place(const struct commit *c, struct dt_error *err)
{
    struct dt_ckpt_owner owner;

    if (renameat(c->fd, c->temp, c->fd, c->name) == 0)
        return DT_OK;
    if (errno != EEXIST && errno != ENOTEMPTY && errno != ENOTDIR)
        return cannot_rename(c, err);
    if (!dt_ckpt_owned(c->fd, c->name, &owner))
        return past_others(c, NULL, err);
    if (strcmp(owner.run_id, run_of(c->state)) != 0)
        return past_others(c, owner.run_id, err);
#ifdef RENAME_EXCHANGE
    if (renameat2(c->fd, c->temp, c->fd, c->name, RENAME_EXCHANGE) == 0) {
        discard(c->dir, c->fd, c->temp, c->warn);
        return DT_OK;
    }
#endif
    if (renameat(c->fd, c->name, c->fd, c->old) != 0 ||
        renameat(c->fd, c->temp, c->fd, c->name) != 0)
        return cannot_rename(c, err);
    discard(c->dir, c->fd, c->old, c->warn);
    return DT_OK;
}

/* Under another name first: half a removed checkpoint must not look like one. */
static void remove_step(const struct commit *c, int64_t step, const char *name)
{
    char old[64];

    hidden_name(old, sizeof(old), OLD, step, dt_ckpt_random() >> 12);
    if (rename_to_new(c->fd, name, old))
        discard(c->dir, c->fd, old, c->warn);
}

/* Of this run and before this step; what went further is not counted. */
static enum dt_status remove_old(const struct commit *c, int keep, struct dt_error *err)
{
    struct dt_ckpt_step *steps;
    size_t n;

    DT_TRY(dt_ckpt_list(c->dir, run_of(c->state), err, &steps, &n));
    for (size_t i = 0, k = 0; i < n; i++) { /* newest first */
        struct dt_ckpt_step *s = &steps[n - 1 - i];
        struct dt_ckpt_owner owner;

        if (s->step > c->state->step || s->aside || kept(c->fd, s->name) ||
            !dt_ckpt_owned(c->fd, s->name, &owner))
            continue;
        if (k++ >= (size_t)keep)
            remove_step(c, s->step, s->name);
    }
    dt_free(steps);
    return DT_OK;
}

static enum dt_status commit(struct commit *c, const struct dt_ckpt_options *opt,
                             struct dt_error *err)
{
    char pointer[PATH_MAX], line[40];

    DT_TRY(dt_ckpt_path(pointer, sizeof(pointer), c->dir, DT_CKPT_POINTER, err));
    DT_TRY(put_in_place(c, err));
    DT_TRY(sync_folder(c->dir, err));
    snprintf(line, sizeof(line), "%s\n", c->name);
    DT_TRY(dt_file_check(pointer, err)); /* a pipe would wait for a reader */
    DT_TRY(dt_file_write(pointer, line, strlen(line), err));
    return opt->keep > 0 ? remove_old(c, opt->keep, err) : DT_OK;
}

enum dt_status dt_ckpt_commit(const char *dir, const char *temp, const struct dt_ckpt_state *state,
                              const struct dt_ckpt_options *opt, struct dt_error *err, char *final,
                              size_t size)
{
    const char *slash = strrchr(temp, '/');
    struct commit c = {
        .dir = dir, .temp = slash ? slash + 1 : temp, .state = state, .warn = opt->warn};
    enum dt_status st;

    dt_ckpt_step_name(c.name, sizeof(c.name), state->step);
    hidden_name(c.old, sizeof(c.old), OLD, state->step, dt_ckpt_random() >> 12);
    DT_TRY(dt_ckpt_path(final, size, dir, c.name, err));
    DT_TRY(sync_folder(temp, err));
    c.fd = open_dir(dir);
    if (c.fd < 0)
        return dt_error_at(err, DT_ERR_IO, dir, 0, 0, "cannot open: %s", strerror(errno));
    st = commit(&c, opt, err);
    close(c.fd);
    return st;
}
