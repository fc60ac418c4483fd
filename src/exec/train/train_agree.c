/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING. */
#include "exec/train/train_agree.h"

#include "base/mem.h"

#include <stdio.h>
#include <string.h>

enum { SHOWN = 1024 }; /* characters of a message that others get to see */

struct outcome { /* as numbers, to be added up: all but one rank's are zero */
    double status, file[sizeof(((struct dt_error *)0)->file)], message[SHOWN];
};

static void tell(const struct dt_error *e, struct outcome *o)
{
    o->status = e->status;
    for (size_t i = 0; i + 1 < sizeof(e->file) && e->file[i]; i++)
        o->file[i] = (unsigned char)e->file[i];
    for (size_t i = 0; i + 1 < SHOWN && e->message[i]; i++)
        o->message[i] = (unsigned char)e->message[i];
}

static enum dt_status hear(const struct outcome *o, struct dt_error *e)
{
    char file[sizeof(o->file) / sizeof(o->file[0])], message[SHOWN];

    for (size_t i = 0; i < sizeof(file); i++)
        file[i] = (char)(unsigned char)o->file[i];
    for (size_t i = 0; i < SHOWN; i++)
        message[i] = (char)(unsigned char)o->message[i];
    if (!file[0])
        return dt_error_set(e, (enum dt_status)o->status, "%s", message);
    return dt_error_at(e, (enum dt_status)o->status, file, 0, 0, "%s", message);
}

enum dt_status dt_train_agree(struct dt_exec *x, int rank, int ranks, enum dt_status st,
                              const struct dt_error *mine, struct dt_error *err)
{
    double *failed = dt_calloc((size_t)ranks, sizeof(*failed));
    struct outcome *o = dt_calloc(1, sizeof(*o));
    enum dt_status sum = DT_OK;
    int r = 0;

    if (!failed || !o) {
        sum = dt_error_nomem(err, "the outcome of a save");
    } else {
        failed[rank] = st != DT_OK;
        sum = dt_exec_sum(x, failed, (size_t)ranks, err);
    }
    while (sum == DT_OK && r < ranks && failed[r] == 0)
        r++;
    if (sum == DT_OK && r < ranks) {
        if (r == rank)
            tell(mine, o);
        sum = dt_exec_sum(x, (double *)o, sizeof(*o) / sizeof(double), err);
        if (sum == DT_OK)
            sum = hear(o, err);
    }
    dt_free(failed);
    dt_free(o);
    return sum;
}

/* Numbers below 2^53 are the same as doubles. */
static enum dt_status join(struct dt_exec *x, const int64_t *mine, int n, int at, int total,
                           struct dt_error *err, int64_t *all)
{
    double *v = dt_calloc((size_t)total, sizeof(*v));
    enum dt_status st = v ? DT_OK : dt_error_nomem(err, "what ranks tell each other");

    for (int i = 0; i < n && st == DT_OK; i++)
        v[at + i] = (double)mine[i];
    if (st == DT_OK)
        st = dt_exec_sum(x, v, (size_t)total, err);
    for (int i = 0; i < total && st == DT_OK; i++)
        all[i] = (int64_t)v[i];
    dt_free(v);
    return st;
}

enum dt_status dt_train_gather(struct dt_exec *x, int rank, int ranks, const int64_t *mine, int n,
                               struct dt_error *err, int64_t **all, int *n_all)
{
    double *counts = dt_calloc((size_t)ranks, sizeof(*counts));
    enum dt_status st = DT_OK;
    int at = 0, total = 0;

    if (!counts)
        return dt_error_nomem(err, "what ranks tell each other");
    counts[rank] = n;
    st = dt_exec_sum(x, counts, (size_t)ranks, err);
    for (int r = 0; r < ranks && st == DT_OK; r++) {
        at += r < rank ? (int)counts[r] : 0;
        total += (int)counts[r];
    }
    dt_free(counts);
    DT_TRY(st);
    *all = NULL;
    *n_all = total;
    if (total == 0)
        return DT_OK;
    *all = dt_calloc((size_t)total, sizeof(**all));
    st = *all ? join(x, mine, n, at, total, err, *all)
              : dt_error_nomem(err, "what ranks tell each other");
    if (st != DT_OK) {
        dt_free(*all);
        *all = NULL;
    }
    return st;
}

enum dt_status dt_train_tell(struct dt_exec *x, int rank, void *bytes, size_t n,
                             struct dt_error *err)
{
    unsigned char *b = bytes;
    double *v = dt_calloc(n, sizeof(*v));
    enum dt_status st;

    if (!v)
        return dt_error_nomem(err, "what rank 0 tells");
    for (size_t i = 0; i < n && rank == 0; i++)
        v[i] = b[i];
    st = dt_exec_sum(x, v, n, err);
    for (size_t i = 0; i < n && st == DT_OK; i++)
        b[i] = (unsigned char)v[i];
    dt_free(v);
    return st;
}
