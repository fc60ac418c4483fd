/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Which checkpoints there are, and which one to go on from. */
#include "base/file.h"
#include "base/mem.h"
#include "exec/checkpoint/checkpoint_dir.h"
#include "exec/checkpoint/checkpoint_own.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define STEP "step-"

void dt_ckpt_step_name(char *buf, size_t size, int64_t step)
{
    snprintf(buf, size, STEP "%08" PRId64, step);
}

/* The step that a name begins with, and what follows it. */
static int64_t step_prefix(const char *name, const char **rest)
{
    size_t digits;

    if (strncmp(name, STEP, strlen(STEP)) != 0)
        return -1;
    name += strlen(STEP);
    digits = strspn(name, "0123456789");
    if (digits < 8 || digits > 18)
        return -1;
    *rest = name + digits;
    return strtoll(name, NULL, 10);
}

int64_t dt_ckpt_step_of(const char *name)
{
    const char *rest;
    int64_t step = step_prefix(name, &rest);

    return step >= 0 && *rest == '\0' ? step : -1;
}

int64_t dt_ckpt_step_aside(const char *name)
{
    const char *rest;
    int64_t step = step_prefix(name, &rest);

    return step >= 0 && strncmp(rest, DT_CKPT_OF, strlen(DT_CKPT_OF)) == 0 ? step : -1;
}

int dt_ckpt_by_step(const void *a, const void *b)
{
    const struct dt_ckpt_step *x = a, *y = b;

    if (x->step != y->step)
        return (x->step > y->step) - (x->step < y->step);
    return x->aside != y->aside ? y->aside - x->aside : strcmp(x->name, y->name);
}

static bool wanted(int fd, const char *name, const char *run_id, struct dt_ckpt_step *out)
{
    int64_t aside = dt_ckpt_step_aside(name), step = aside < 0 ? dt_ckpt_step_of(name) : aside;
    char id[DT_RUN_ID_SIZE];

    if (step < 0 || strlen(name) >= sizeof(out->name) || (aside >= 0 && !run_id) ||
        !dt_ckpt_complete(fd, name, id) || (run_id && strcmp(id, run_id) != 0))
        return false;
    memcpy(out->name, name, strlen(name) + 1);
    out->step = step;
    out->aside = aside >= 0;
    return true;
}

enum dt_status dt_ckpt_list(const char *dir, const char *run_id, struct dt_error *err,
                            struct dt_ckpt_step **out, size_t *n)
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
        struct dt_ckpt_step one;

        if (!wanted(dirfd(d), e->d_name, run_id, &one))
            continue;
        if (dt_grow(&steps, &cap, *n + 1, sizeof(one))) {
            st = dt_error_nomem(err, "a list of checkpoints");
            break;
        }
        ((struct dt_ckpt_step *)steps)[(*n)++] = one;
    }
    closedir(d);
    if (st != DT_OK) {
        dt_free(steps);
        return st;
    }
    if (*n > 1)
        qsort(steps, *n, sizeof(struct dt_ckpt_step), dt_ckpt_by_step);
    *out = steps;
    return DT_OK;
}

/* ---- which one ---- */

struct find {
    const char *dir, *run_id;
    const struct dt_warn *warn;
    char pointed[64]; /* what `latest` names; "" = nothing that could be a checkpoint */
    char why_not[512];
};

static void read_pointer(struct find *f)
{
    char path[PATH_MAX], *text;

    if (dt_ckpt_path(path, sizeof(path), f->dir, DT_CKPT_POINTER, NULL) != DT_OK ||
        dt_file_read(path, 4096, NULL, &text, NULL) != DT_OK)
        return;
    text[strcspn(text, "\r\n")] = '\0';
    if (dt_ckpt_step_of(text) >= 0 && strlen(text) < sizeof(f->pointed))
        memcpy(f->pointed, text, strlen(text) + 1);
    else
        snprintf(f->why_not, sizeof(f->why_not), "it holds no name of a checkpoint");
    dt_free(text);
}

/* Whether its manifest can be read; says whose it is. */
static enum dt_status readable(struct find *f, const char *name, struct dt_error *err, bool *out,
                               char id[DT_RUN_ID_SIZE])
{
    char path[PATH_MAX], *text;
    struct dt_error why = {0};
    enum dt_status st;
    size_t len;

    if (snprintf(path, sizeof(path), "%s/%s/manifest.json", f->dir, name) >= (int)sizeof(path))
        return dt_error_at(err, DT_ERR_INPUT, f->dir, 0, 0, "file name too long");
    st = dt_file_read(path, DT_CKPT_JSON_MAX, &why, &text, &len);
    if (st == DT_OK) {
        st = dt_ckpt_manifest_run_id("manifest.json", text, len, &why, id);
        dt_free(text);
    }
    if (st == DT_ERR_NOMEM) {
        if (err)
            *err = why;
        return st;
    }
    if (st != DT_OK && !f->why_not[0])
        snprintf(f->why_not, sizeof(f->why_not), "%s/manifest.json: %.400s", name, why.message);
    *out = st == DT_OK;
    return DT_OK;
}

/* A training may move it, and remove what it named, while somebody looks. */
static enum dt_status follow_pointer(struct find *f, struct dt_error *err, bool *good,
                                     char id[DT_RUN_ID_SIZE])
{
    char before[sizeof(f->pointed)];

    do {
        memcpy(before, f->pointed, sizeof(before));
        f->pointed[0] = f->why_not[0] = '\0';
        read_pointer(f);
        if (f->pointed[0])
            DT_TRY(readable(f, f->pointed, err, good, id));
    } while (!*good && strcmp(before, f->pointed) != 0);
    return DT_OK;
}

static bool fits(const struct find *f, const char *id)
{
    return !f->run_id || strcmp(id, f->run_id) == 0;
}

/* Newest first, as `latest` has nothing to go on from. */
static enum dt_status look_through(struct find *f, struct dt_error *err, bool *found, char *name,
                                   char id[DT_RUN_ID_SIZE])
{
    struct dt_ckpt_step *steps;
    size_t n;

    enum dt_status st;

    DT_TRY(dt_ckpt_list(f->dir, f->run_id, err, &steps, &n));
    st = DT_OK;
    while (n > 0 && !*found && st == DT_OK) {
        st = readable(f, steps[n - 1].name, err, found, id);
        *found = *found && fits(f, id);
        if (*found)
            memcpy(name, steps[n - 1].name, sizeof(steps->name));
        n--;
    }
    dt_free(steps);
    if (*found && f->why_not[0])
        dt_warn(f->warn, "%s: latest%s%s cannot be gone on from (%s); taking %s instead", f->dir,
                f->pointed[0] ? ", " : "", f->pointed, f->why_not, name);
    return st;
}

static enum dt_status find_in(struct find *f, struct dt_error *err, bool *found, char *name,
                              char id[DT_RUN_ID_SIZE])
{
    bool good = false;

    DT_TRY(follow_pointer(f, err, &good, id));
    if (good && fits(f, id)) {
        *found = true;
        memcpy(name, f->pointed, sizeof(f->pointed));
    }
    if (!*found)
        DT_TRY(look_through(f, err, found, name, id));
    if (*found || good || !f->why_not[0] || f->run_id)
        return DT_OK;
    return dt_error_at(err, DT_ERR_INPUT, f->dir, 0, 0,
                       "no checkpoint is complete any more: latest%s%s (%s); \"disttrain train "
                       "--from-scratch\" starts a new run",
                       f->pointed[0] ? " names " : "", f->pointed, f->why_not);
}

/* In a folder of checkpoints. */
static enum dt_status find_below(const char *dir, const char *run_id, const struct dt_warn *warn,
                                 struct dt_error *err, bool *found, char *out, size_t size,
                                 char id[DT_RUN_ID_SIZE])
{
    struct find f = {.dir = dir, .run_id = run_id, .warn = warn};
    char name[sizeof(((struct dt_ckpt_step *)0)->name)];

    DT_TRY(find_in(&f, err, found, name, id));
    return *found ? dt_ckpt_path(out, size, dir, name, err) : DT_OK;
}

/* What was set aside last, first. */
static enum dt_status find_aside(const char *dir, const char *run_id, const struct dt_warn *warn,
                                 struct dt_error *err, bool *found, char *out, size_t size,
                                 char id[DT_RUN_ID_SIZE])
{
    char before[PATH_MAX];

    for (int k = dt_ckpt_before(dir, 0); k > 0 && !*found; k = dt_ckpt_before(dir, k)) {
        DT_TRY(dt_ckpt_before_path(before, sizeof(before), dir, k, err));
        DT_TRY(find_below(before, run_id, warn, err, found, out, size, id));
    }
    return DT_OK;
}

enum dt_status dt_ckpt_find_run(const char *path, const char *run_id, const struct dt_warn *warn,
                                struct dt_error *err, bool *found, char *out, size_t size,
                                char found_id[DT_RUN_ID_SIZE])
{
    char id[DT_RUN_ID_SIZE];
    bool got = false;

    *found = false;
    if (dt_ckpt_complete(AT_FDCWD, path, id)) {
        if ((size_t)snprintf(out, size, "%s", path) >= size)
            return dt_error_at(err, DT_ERR_INPUT, path, 0, 0, "file name too long");
        got = !run_id || strcmp(id, run_id) == 0;
    } else {
        DT_TRY(find_below(path, run_id, warn, err, &got, out, size, id));
        if (!got && run_id)
            DT_TRY(find_aside(path, run_id, warn, err, &got, out, size, id));
    }
    if (got && found_id)
        memcpy(found_id, id, DT_RUN_ID_SIZE);
    *found = got;
    return DT_OK;
}

enum dt_status dt_ckpt_find(const char *path, struct dt_error *err, bool *found, char *out,
                            size_t size)
{
    return dt_ckpt_find_run(path, NULL, NULL, err, found, out, size, NULL);
}
