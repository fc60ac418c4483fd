/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Checkpoints of the runs before, set aside in DIR/before-N for a run that begins anew. */
#include "base/mem.h"
#include "exec/checkpoint/checkpoint_dir.h"
#include "exec/checkpoint/checkpoint_own.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define BEFORE "before-"

struct aside {
    const char *dir;
    int fd;
    struct dt_ckpt_step *steps; /* by rising step, complete or not */
    size_t n, cap;
    bool pointer;    /* there is a `latest` of ours to move */
    char before[32]; /* "before-N" */
    char newest[sizeof(((struct dt_ckpt_step *)0)->name)], run_id[DT_RUN_ID_SIZE]; /* "" = none */
};

/* ---- what there is ---- */

/* The number of a folder for earlier runs, or 0. */
static int before_number(const char *name)
{
    size_t digits;

    if (strncmp(name, BEFORE, strlen(BEFORE)) != 0)
        return 0;
    name += strlen(BEFORE);
    digits = strspn(name, "0123456789");
    return digits > 0 && digits < 9 && name[digits] == '\0' ? atoi(name) : 0;
}

int dt_ckpt_before(const char *dir, int below)
{
    DIR *d = opendir(dir);
    struct dirent *e;
    int best = 0;

    if (!d)
        return 0;
    while ((e = readdir(d))) {
        int k = before_number(e->d_name);

        if (k > best && (below == 0 || k < below))
            best = k;
    }
    closedir(d);
    return best;
}

enum dt_status dt_ckpt_before_path(char *out, size_t size, const char *dir, int number,
                                   struct dt_error *err)
{
    char name[32];

    snprintf(name, sizeof(name), BEFORE "%d", number);
    return dt_ckpt_path(out, size, dir, name, err);
}

bool dt_ckpt_last_aside(const char *dir, char *path, size_t size, char run_id[DT_RUN_ID_SIZE])
{
    char before[PATH_MAX];
    bool found = false;

    for (int k = dt_ckpt_before(dir, 0); k > 0 && !found; k = dt_ckpt_before(dir, k))
        if (dt_ckpt_before_path(before, sizeof(before), dir, k, NULL) != DT_OK ||
            dt_ckpt_find_run(before, NULL, NULL, NULL, &found, path, size, run_id) != DT_OK)
            found = false;
    return found;
}

/* A damaged one, too: it must not stand beside the run that begins. */
static enum dt_status see(struct aside *a, const char *name, struct dt_error *err)
{
    struct dt_ckpt_step one = {.step = dt_ckpt_step_of(name)};
    struct dt_ckpt_owner owner;
    struct stat sb;
    void *steps = a->steps;

    if (strcmp(name, DT_CKPT_POINTER) == 0)
        a->pointer = fstatat(a->fd, name, &sb, AT_SYMLINK_NOFOLLOW) == 0 && S_ISREG(sb.st_mode);
    if (one.step < 0) {
        one.step = dt_ckpt_step_aside(name);
        one.aside = true;
    }
    if (one.step < 0 || strlen(name) >= sizeof(one.name) || !dt_ckpt_owned(a->fd, name, &owner))
        return DT_OK;
    memcpy(one.name, name, strlen(name) + 1);
    if (dt_grow(&steps, &a->cap, a->n + 1, sizeof(one)))
        return dt_error_nomem(err, "a list of checkpoints");
    a->steps = steps;
    a->steps[a->n++] = one;
    return DT_OK;
}

/* What would have been resumed. */
static enum dt_status find_newest(struct aside *a, struct dt_error *err)
{
    char path[PATH_MAX], id[DT_RUN_ID_SIZE];
    enum dt_status st;
    bool found;

    st = dt_ckpt_find_run(a->dir, NULL, NULL, NULL, &found, path, sizeof(path), id);
    if (st == DT_ERR_NOMEM)
        return dt_error_nomem(err, "a list of checkpoints");
    for (size_t i = 0; st == DT_OK && found && i < a->n; i++)
        if (strcmp(a->steps[i].name, strrchr(path, '/') + 1) == 0) {
            memcpy(a->newest, a->steps[i].name, sizeof(a->newest));
            memcpy(a->run_id, id, sizeof(a->run_id));
        }
    return DT_OK;
}

static enum dt_status look(struct aside *a, DIR *d, struct dt_error *err)
{
    struct dirent *e;

    while ((e = readdir(d)))
        DT_TRY(see(a, e->d_name, err));
    if (a->n > 1)
        qsort(a->steps, a->n, sizeof(*a->steps), dt_ckpt_by_step);
    return find_newest(a, err);
}

/* ---- moving it ---- */

static enum dt_status make_folder(struct aside *a, struct dt_error *err)
{
    for (int k = 1;; k++) {
        snprintf(a->before, sizeof(a->before), BEFORE "%d", k);
        if (mkdirat(a->fd, a->before, 0777) == 0)
            return DT_OK;
        if (errno != EEXIST)
            return dt_error_at(err, DT_ERR_IO, a->dir, 0, 0, "cannot make the folder %s: %s",
                               a->before, strerror(errno));
    }
}

static enum dt_status move(const struct aside *a, const char *name, struct dt_error *err)
{
    char to[160];

    snprintf(to, sizeof(to), "%s/%s", a->before, name);
    if (renameat(a->fd, name, a->fd, to) == 0)
        return DT_OK;
    return dt_error_at(err, DT_ERR_IO, a->dir, 0, 0, "cannot move %s to %s: %s", name, to,
                       strerror(errno));
}

/* The pointer first and the newest checkpoint last: whoever looks into DIR after this was killed
 * in between finds the newest, or nothing. */
static enum dt_status move_all(struct aside *a, struct dt_error *err)
{
    DT_TRY(make_folder(a, err));
    if (a->pointer)
        DT_TRY(move(a, DT_CKPT_POINTER, err));
    for (size_t i = 0; i < a->n; i++)
        DT_TRY(move(a, a->steps[i].name, err));
    return DT_OK;
}

static void say(const struct aside *a, const struct dt_warn *warn)
{
    if (!a->newest[0])
        dt_warn(warn, "%s: what was left of the run before is in %s/%s now; it cannot be resumed",
                a->dir, a->dir, a->before);
    else if (a->n == 1)
        dt_warn(warn, "%s: %s of the run before is in %s/%s now; \"--run-id %s\" resumes it",
                a->dir, a->newest, a->dir, a->before, a->run_id);
    else
        dt_warn(
            warn,
            "%s: %zu checkpoints of the run before are in %s/%s now; \"--run-id %s\" resumes %s",
            a->dir, a->n, a->dir, a->before, a->run_id, a->newest);
}

enum dt_status dt_ckpt_set_aside(const char *dir, const struct dt_warn *warn, struct dt_error *err)
{
    DIR *d = opendir(dir);
    struct aside a = {.dir = dir, .fd = d ? dirfd(d) : -1};
    enum dt_status st;

    if (!d)
        return dt_error_at(err, DT_ERR_IO, dir, 0, 0, "cannot open: %s", strerror(errno));
    st = look(&a, d, err);
    if (st == DT_OK && (a.pointer || a.n > 0)) {
        st = move_all(&a, err);
        if (st == DT_OK)
            say(&a, warn);
    }
    closedir(d);
    dt_free(a.steps);
    return st;
}
