/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * The view of a profile that the cost model uses: all rows of one device and dtype. */
#include "core/profile/profile.h"

#include "base/file.h"
#include "base/mem.h"
#include "core/model/cluster_gpu.h"
#include "core/profile/profile_schema.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Rows that hold for every dtype (collectives count bytes) carry this one. */
static const char any_dtype[] = "any";

static int compare(const void *x, const void *y)
{
    const struct dt_profile_row *a = x, *b = y;

    if (a->family != b->family)
        return a->family < b->family ? -1 : 1;
    if (a->phase != b->phase)
        return a->phase < b->phase ? -1 : 1;
    for (int i = 0; i < 6; i++)
        if (a->d[i] != b->d[i])
            return a->d[i] < b->d[i] ? -1 : 1;
    /* The same point twice: the better founded row first (measured, fitted, derived, assumed). */
    if (a->kind != b->kind)
        return a->kind < b->kind ? -1 : 1;
    if (a->n != b->n)
        return a->n > b->n ? -1 : 1;
    return (a->source > b->source) - (a->source < b->source);
}

static bool same_point(const struct dt_profile_row *a, const struct dt_profile_row *b)
{
    return a->family == b->family && a->phase == b->phase && memcmp(a->d, b->d, sizeof a->d) == 0;
}

/* The first device of the file whose kernels take the same time; -1 if there is none. */
static int same_chip(const struct dt_profile_table *t, const char *device)
{
    const struct dt_cluster_gpu *asked = dt_cluster_gpu_find(device), *d;

    for (int i = 0; asked && i < t->n_devices; i++)
        if ((d = dt_cluster_gpu_find(t->devices[i])) && strcmp(d->chip, asked->chip) == 0)
            return i;
    return -1;
}

static enum dt_status pick_device(const struct dt_profile_table *t, const char *path,
                                  const char *device, struct dt_error *err, int *out)
{
    char list[512] = "";

    if (t->n_devices == 1 && !device[0]) {
        *out = 0;
        return DT_OK;
    }
    if (device[0] && (*out = dt_profile_table_find_device(t, device)) >= 0)
        return DT_OK;
    if ((*out = same_chip(t, device)) >= 0)
        return DT_OK;
    for (int i = 0; i < t->n_devices; i++) {
        size_t used = strlen(list);
        snprintf(list + used, sizeof list - used, "%s%s", i ? ", " : "", t->devices[i]);
    }
    if (t->n_devices == 0)
        return dt_error_at(err, DT_ERR_INPUT, path, 0, 0, "the profile has no rows");
    return dt_error_at(err, DT_ERR_INPUT, path, 0, 0,
                       device[0] ? "no rows for device '%s'; the file has %s"
                                 : "%sthe file has several devices, name one of %s",
                       device, list);
}

static enum dt_status build(const struct dt_profile_table *t, const char *path, int device,
                            const char *dtype, struct dt_error *err, struct dt_profile *p)
{
    int64_t n = 0;

    p->rows = dt_calloc(t->n_rows, sizeof *p->rows);
    p->sources = dt_calloc((size_t)t->n_sources, sizeof *p->sources);
    if (!p->rows || !p->sources)
        return dt_error_nomem(err, "the profile");
    p->n_sources = t->n_sources;
    memcpy(p->sources, t->sources, (size_t)t->n_sources * sizeof *p->sources);
    snprintf(p->device, sizeof p->device, "%s", t->devices[device]);
    snprintf(p->dtype, sizeof p->dtype, "%s", dtype);
    for (size_t i = 0; i < t->n_rows; i++) {
        const char *d = t->dtypes[t->rows[i].dtype];
        if (t->rows[i].device == device && t->rows[i].r.phase < DT_PHASE_N &&
            (strcmp(d, dtype) == 0 || strcmp(d, any_dtype) == 0))
            p->rows[n++] = t->rows[i].r;
    }
    if (n == 0)
        return dt_error_at(err, DT_ERR_INPUT, path, 0, 0, "no rows of dtype '%s' for device '%s'",
                           dtype, p->device);
    qsort(p->rows, (size_t)n, sizeof *p->rows, compare);
    p->n_rows = 1;
    for (int64_t i = 1; i < n; i++)
        if (!same_point(&p->rows[p->n_rows - 1], &p->rows[i]))
            p->rows[p->n_rows++] = p->rows[i];
    int64_t at = 0;
    for (int f = 0; f < DT_KOP_FAMILY_N; f++)
        for (int ph = 0; ph <= DT_PHASE_N; ph++) {
            p->first[f][ph] = at;
            while (ph < DT_PHASE_N && at < p->n_rows && p->rows[at].family == f &&
                   p->rows[at].phase == ph)
                at++;
        }
    return DT_OK;
}

enum dt_status dt_profile_load(const char *name, const char *device, const char *dtype,
                               struct dt_error *err, struct dt_profile **out)
{
    char path[1024];
    struct dt_profile_table t = {0};
    struct dt_profile *p = NULL;
    enum dt_status status;
    int index = 0;

    DT_TRY(dt_file_find("profiles", name, ".sql", err, path, sizeof path));
    DT_TRY(dt_profile_table_read(path, err, &t));
    status = pick_device(&t, path, device ? device : "", err, &index);
    if (status == DT_OK && !(p = dt_calloc(1, sizeof *p)))
        status = dt_error_nomem(err, "the profile");
    if (status == DT_OK)
        status = build(&t, path, index, dtype, err, p);
    dt_profile_table_free(&t);
    if (status != DT_OK) {
        dt_profile_free(p);
        return status;
    }
    *out = p;
    return DT_OK;
}

void dt_profile_free(struct dt_profile *p)
{
    if (!p)
        return;
    dt_free(p->rows);
    dt_free(p->sources);
    dt_free(p);
}
