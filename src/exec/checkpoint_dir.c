/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * A checkpoint's folders: made under another name, renamed when complete, removed when old. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE /* renameat2 */
#endif
#include "core/file.h"
#include "core/mem.h"
#include "exec/checkpoint_impl.h"

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

#define STEP "step-"
#define TEMP ".tmp-"
#define OLD ".old-"
#define POINTER "latest"
#define KEPT "kept"

enum dt_status dt_ckpt_path(char *out, size_t size, const char *dir, const char *name,
                            struct dt_error *err)
{
    int n = snprintf(out, size, "%s/%s", dir, name);

    if (n < 0 || (size_t)n >= size)
        return dt_error_at(err, DT_ERR_INPUT, dir, 0, 0, "file name too long");
    return DT_OK;
}

/* A folder without folders in it, as all of ours are; what cannot be removed stays. */
void dt_ckpt_remove(const char *path)
{
    char file[PATH_MAX];
    struct dirent *e;
    DIR *d = opendir(path);

    if (!d)
        return;
    while ((e = readdir(d)))
        if (strcmp(e->d_name, ".") != 0 && strcmp(e->d_name, "..") != 0 &&
            dt_ckpt_path(file, sizeof(file), path, e->d_name, NULL) == DT_OK)
            unlink(file);
    closedir(d);
    rmdir(path);
}

/* Step of a folder's name, or -1. */
static int64_t step_of(const char *name)
{
    size_t digits;

    if (strncmp(name, STEP, strlen(STEP)) != 0)
        return -1;
    name += strlen(STEP);
    digits = strspn(name, "0123456789");
    if (digits < 8 || digits > 18 || name[digits] != '\0')
        return -1;
    return strtoll(name, NULL, 10);
}

static bool complete(const char *dir, const char *name)
{
    char path[PATH_MAX];
    int n = snprintf(path, sizeof(path), "%s/%s/manifest.json", dir, name);

    return n > 0 && n < (int)sizeof(path) && access(path, R_OK) == 0;
}

static int by_step(const void *a, const void *b)
{
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;

    return (x > y) - (x < y);
}

/* Steps of the checkpoints in DIR, rising; *n = 0 if there is no such folder. */
static enum dt_status list_steps(const char *dir, struct dt_error *err, int64_t **out, size_t *n)
{
    enum dt_status st = DT_OK;
    struct dirent *e;
    size_t cap = 0;
    void *steps = NULL;
    DIR *d = opendir(dir);

    *n = 0;
    *out = NULL;
    if (!d)
        return DT_OK;
    while ((e = readdir(d))) {
        int64_t step = step_of(e->d_name);

        if (step < 0 || !complete(dir, e->d_name))
            continue;
        if (dt_grow(&steps, &cap, *n + 1, sizeof(step))) {
            st = dt_error_nomem(err, "a list of checkpoints");
            break;
        }
        ((int64_t *)steps)[(*n)++] = step;
    }
    closedir(d);
    if (st != DT_OK) {
        dt_free(steps);
        return st;
    }
    if (*n > 1)
        qsort(steps, *n, sizeof(int64_t), by_step);
    *out = steps;
    return DT_OK;
}

static void step_name(char *buf, size_t size, int64_t step)
{
    snprintf(buf, size, STEP "%08" PRId64, step);
}

enum dt_status dt_checkpoint_of_step(const char *dir, int64_t step, struct dt_error *err, char *out,
                                     size_t size)
{
    char name[32];

    step_name(name, sizeof(name), step);
    return dt_ckpt_path(out, size, dir, name, err);
}

/* ---- keeping ---- */

enum dt_status dt_checkpoint_keep(const char *path, struct dt_error *err)
{
    static const char text[] = "Training stopped after this checkpoint; remove this file to let "
                               "later ones take its place.\n";
    char mark[PATH_MAX];

    DT_TRY(dt_ckpt_path(mark, sizeof(mark), path, KEPT, err));
    return dt_file_write(mark, text, strlen(text), err);
}

static bool kept(const char *dir, int64_t step)
{
    char path[PATH_MAX], mark[PATH_MAX];

    return dt_checkpoint_of_step(dir, step, NULL, path, sizeof(path)) == DT_OK &&
           dt_ckpt_path(mark, sizeof(mark), path, KEPT, NULL) == DT_OK && access(mark, F_OK) == 0;
}

/* ---- saving ---- */

static bool starts(const char *name, const char *with)
{
    return strncmp(name, with, strlen(with)) == 0;
}

/* Folders "<prefix>...PID", and the pointer before it was renamed. */
void dt_checkpoint_tidy(const char *dir)
{
    char path[PATH_MAX];
    struct dirent *e;
    DIR *d = opendir(dir);

    if (!d)
        return;
    while ((e = readdir(d))) {
        const char *dot = strrchr(e->d_name, '.');
        bool pointer = starts(e->d_name, POINTER ".tmp.");
        long pid;

        if (!(pointer || starts(e->d_name, TEMP) || starts(e->d_name, OLD)) || !dot ||
            dot == e->d_name)
            continue;
        pid = strtol(dot + 1, NULL, 10);
        if (pid > 0 && pid != (long)getpid() && (kill((pid_t)pid, 0) == 0 || errno != ESRCH))
            continue;
        if (dt_ckpt_path(path, sizeof(path), dir, e->d_name, NULL) != DT_OK)
            continue;
        if (pointer)
            unlink(path);
        else
            dt_ckpt_remove(path);
    }
    closedir(d);
}

enum dt_status dt_ckpt_temp(const char *dir, int64_t step, long pid, struct dt_error *err,
                            char *temp, size_t size)
{
    char name[64], step_text[32];

    step_name(step_text, sizeof(step_text), step);
    snprintf(name, sizeof(name), TEMP "%s.%ld", step_text, pid);
    return dt_ckpt_path(temp, size, dir, name, err);
}

enum dt_status dt_ckpt_begin(const char *dir, int64_t step, struct dt_error *err, char *temp,
                             size_t size)
{
    if (mkdir(dir, 0777) != 0 && errno != EEXIST)
        return dt_error_at(err, DT_ERR_IO, dir, 0, 0, "cannot create: %s", strerror(errno));
    dt_checkpoint_tidy(dir);
    DT_TRY(dt_ckpt_temp(dir, step, (long)getpid(), err, temp, size));
    if (mkdir(temp, 0777) != 0)
        return dt_error_at(err, DT_ERR_IO, temp, 0, 0, "cannot create: %s", strerror(errno));
    return DT_OK;
}

static enum dt_status sync_folder(const char *path, struct dt_error *err)
{
    int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
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

/* A checkpoint of this step that is there already changes places with the new one at once, where
 * the file system can do that; elsewhere it steps aside first. */
static enum dt_status put_in_place(const char *temp, const char *final, const char *aside,
                                   struct dt_error *err)
{
    if (rename(temp, final) == 0)
        return DT_OK;
    if (errno != EEXIST && errno != ENOTEMPTY)
        return dt_error_at(err, DT_ERR_IO, final, 0, 0, "cannot rename into place: %s",
                           strerror(errno));
#ifdef RENAME_EXCHANGE
    if (renameat2(AT_FDCWD, temp, AT_FDCWD, final, RENAME_EXCHANGE) == 0) {
        dt_ckpt_remove(temp);
        return DT_OK;
    }
#endif
    if (rename(final, aside) != 0 || rename(temp, final) != 0)
        return dt_error_at(err, DT_ERR_IO, final, 0, 0, "cannot rename into place: %s",
                           strerror(errno));
    dt_ckpt_remove(aside);
    return DT_OK;
}

/* Under another name first: half a removed checkpoint must not look like one. */
static void remove_step(const char *dir, int64_t step)
{
    char name[32], old[64], path[PATH_MAX], aside[PATH_MAX];

    step_name(name, sizeof(name), step);
    snprintf(old, sizeof(old), OLD "%s.%ld", name, (long)getpid());
    if (dt_ckpt_path(path, sizeof(path), dir, name, NULL) == DT_OK &&
        dt_ckpt_path(aside, sizeof(aside), dir, old, NULL) == DT_OK && rename(path, aside) == 0)
        dt_ckpt_remove(aside);
}

enum dt_status dt_ckpt_commit(const char *dir, const char *temp, int64_t step, int keep,
                              struct dt_error *err, char *final, size_t size)
{
    char name[32], old[64], aside[PATH_MAX], pointer[PATH_MAX], line[40];
    int64_t *steps;
    size_t n, others = 0;

    step_name(name, sizeof(name), step);
    snprintf(old, sizeof(old), OLD "%s.%ld", name, (long)getpid());
    DT_TRY(dt_ckpt_path(final, size, dir, name, err));
    DT_TRY(dt_ckpt_path(aside, sizeof(aside), dir, old, err));
    DT_TRY(dt_ckpt_path(pointer, sizeof(pointer), dir, POINTER, err));
    DT_TRY(sync_folder(temp, err));
    DT_TRY(put_in_place(temp, final, aside, err));
    DT_TRY(sync_folder(dir, err));
    snprintf(line, sizeof(line), "%s\n", name);
    DT_TRY(dt_file_write(pointer, line, strlen(line), err));
    if (keep <= 0)
        return DT_OK;
    DT_TRY(list_steps(dir, err, &steps, &n));
    while (n > 0 &&
           steps[n - 1] > step) /* of a run that went further: not the older ones of ours */
        n--;
    for (size_t i = 0; i < n; i++)
        if (!kept(dir, steps[i]))
            steps[others++] = steps[i];
    n = others;
    for (size_t i = 0; i + (size_t)keep < n; i++)
        remove_step(dir, steps[i]);
    dt_free(steps);
    return DT_OK;
}

/* ---- finding ---- */

/* What `latest` says, if it names a complete checkpoint. */
static bool follow_pointer(const char *dir, char *name, size_t size)
{
    char path[PATH_MAX], *text;
    bool good;

    if (dt_ckpt_path(path, sizeof(path), dir, POINTER, NULL) != DT_OK ||
        dt_file_read(path, 4096, NULL, &text, NULL) != DT_OK)
        return false;
    text[strcspn(text, "\r\n")] = '\0';
    good = step_of(text) >= 0 && strlen(text) < size && complete(dir, text);
    if (good)
        memcpy(name, text, strlen(text) + 1);
    dt_free(text);
    return good;
}

enum dt_status dt_checkpoint_find(const char *path, struct dt_error *err, bool *found, char *out,
                                  size_t size)
{
    int64_t *steps;
    char name[64];
    size_t n;

    *found = false;
    if (complete(path, ".")) {
        if ((size_t)snprintf(out, size, "%s", path) >= size)
            return dt_error_at(err, DT_ERR_INPUT, path, 0, 0, "file name too long");
        *found = true;
        return DT_OK;
    }
    if (!follow_pointer(path, name, sizeof(name))) {
        DT_TRY(list_steps(path, err, &steps, &n));
        if (n == 0)
            return DT_OK;
        step_name(name, sizeof(name), steps[n - 1]);
        dt_free(steps);
    }
    DT_TRY(dt_ckpt_path(out, size, path, name, err));
    *found = true;
    return DT_OK;
}
