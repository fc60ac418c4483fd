/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * The table of profile rows in memory. */
#include "core/profile/profile_schema.h"

#include "base/mem.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

const char *const dt_profile_row_kind_names[DT_ROW_KIND_N + 1] = {"measured", "fitted", "derived",
                                                                  "assumed", NULL};
const char *const dt_profile_table_phase_names[DT_PTABLE_PHASE_N + 1] = {"fwd", "dgrad", "wgrad",
                                                                         "bwd", NULL};

void dt_profile_table_free(struct dt_profile_table *t)
{
    dt_free(t->sources);
    dt_free(t->rows);
    memset(t, 0, sizeof *t);
}

static enum dt_status intern(char *names, size_t width, int *n, const char *name, const char *what,
                             struct dt_error *err, int *out)
{
    for (int i = 0; i < *n; i++)
        if (strcmp(names + (size_t)i * width, name) == 0) {
            *out = i;
            return DT_OK;
        }
    if (!name[0] || strlen(name) >= width)
        return dt_error_set(err, DT_ERR_INPUT,
                            "profile: %s name '%.80s' must have 1 to %zu characters", what, name,
                            width - 1);
    if (*n == DT_PTABLE_MAX_NAMES)
        return dt_error_set(err, DT_ERR_INPUT, "profile: more than %d %ss in one file",
                            DT_PTABLE_MAX_NAMES, what);
    memcpy(names + (size_t)*n * width, name, strlen(name) + 1);
    *out = (*n)++;
    return DT_OK;
}

enum dt_status dt_profile_table_device(struct dt_profile_table *t, const char *name,
                                       struct dt_error *err, int *out)
{
    return intern(t->devices[0], sizeof t->devices[0], &t->n_devices, name, "device", err, out);
}

enum dt_status dt_profile_table_dtype(struct dt_profile_table *t, const char *name,
                                      struct dt_error *err, int *out)
{
    return intern(t->dtypes[0], sizeof t->dtypes[0], &t->n_dtypes, name, "dtype", err, out);
}

int dt_profile_table_find_device(const struct dt_profile_table *t, const char *name)
{
    for (int i = 0; i < t->n_devices; i++)
        if (strcmp(t->devices[i], name) == 0)
            return i;
    return -1;
}

enum dt_status dt_profile_table_source(struct dt_profile_table *t,
                                       const struct dt_profile_source *s, struct dt_error *err,
                                       int *out)
{
    for (int i = 0; i < t->n_sources; i++) {
        const struct dt_profile_source *o = &t->sources[i];
        if (strcmp(o->name, s->name) == 0 && strcmp(o->origin, s->origin) == 0 &&
            strcmp(o->note, s->note) == 0) {
            *out = i;
            return DT_OK;
        }
    }
    if (t->n_sources == DT_PTABLE_MAX_SOURCES)
        return dt_error_set(err, DT_ERR_INPUT, "profile: more than %d sources in one file",
                            DT_PTABLE_MAX_SOURCES);
    if (dt_grow((void **)&t->sources, &t->cap_sources, (size_t)t->n_sources + 1, sizeof *s))
        return dt_error_nomem(err, "profile sources");
    t->sources[t->n_sources] = *s;
    t->sources[t->n_sources].id = t->n_sources + 1;
    *out = t->n_sources++;
    return DT_OK;
}

static enum dt_status check_row(const struct dt_profile_table *t,
                                const struct dt_profile_table_row *row, struct dt_error *err)
{
    const struct dt_profile_row *r = &row->r;
    const double limit_ns = 1e13; /* nearly three hours: no single kernel takes longer */

    if (r->family < 0 || r->family >= DT_KOP_FAMILY_N || r->phase < 0 ||
        r->phase >= DT_PTABLE_PHASE_N || r->kind < 0 || r->kind >= DT_ROW_KIND_N ||
        row->device < 0 || row->device >= t->n_devices || row->dtype < 0 ||
        row->dtype >= t->n_dtypes || r->source < 0 || r->source >= t->n_sources)
        return dt_error_set(err, DT_ERR_INPUT,
                            "profile row: unknown op, phase, kind, device, dtype or source");
    for (int i = 0; i < 6; i++)
        if (r->d[i] < 0 || r->d[i] > INT64_C(1) << 48)
            return dt_error_set(err, DT_ERR_INPUT, "profile row of %s: d%d = %lld is out of range",
                                dt_kop_family_names[r->family], i, (long long)r->d[i]);
    if (r->d[0] < 1 || r->n < 1)
        return dt_error_set(err, DT_ERR_INPUT, "profile row of %s: d0 and n must be at least 1",
                            dt_kop_family_names[r->family]);
    /* The negated form also rejects NaN. */
    if (!(r->p10_ns > 0 && r->p10_ns <= r->median_ns && r->median_ns <= r->p90_ns &&
          r->p90_ns <= limit_ns))
        return dt_error_set(err, DT_ERR_INPUT,
                            "profile row of %s (%lld,%lld,%lld,...): times must satisfy "
                            "0 < p10_ns <= median_ns <= p90_ns <= 1e13",
                            dt_kop_family_names[r->family], (long long)r->d[0], (long long)r->d[1],
                            (long long)r->d[2]);
    return DT_OK;
}

enum dt_status dt_profile_table_add(struct dt_profile_table *t,
                                    const struct dt_profile_table_row *row, struct dt_error *err)
{
    DT_TRY(check_row(t, row, err));
    if (t->n_rows == DT_PTABLE_MAX_ROWS)
        return dt_error_set(err, DT_ERR_INPUT, "profile: more than %d rows", DT_PTABLE_MAX_ROWS);
    if (dt_grow((void **)&t->rows, &t->cap_rows, t->n_rows + 1, sizeof *row))
        return dt_error_nomem(err, "profile rows");
    t->rows[t->n_rows++] = *row;
    return DT_OK;
}

/* Names before sorting decide the order, so indices are first renumbered in name order; after that
 * rows compare by integers alone. */
static void renumber(char *names, size_t width, int n, int *map)
{
    char tmp[DT_NAME_MAX];
    int order[DT_PTABLE_MAX_NAMES];

    for (int i = 0; i < n; i++)
        order[i] = i;
    for (int i = 1; i < n; i++) /* insertion sort of names, carrying where each came from */
        for (int j = i;
             j > 0 && strcmp(names + (size_t)j * width, names + (size_t)(j - 1) * width) < 0; j--) {
            memcpy(tmp, names + (size_t)j * width, width);
            memcpy(names + (size_t)j * width, names + (size_t)(j - 1) * width, width);
            memcpy(names + (size_t)(j - 1) * width, tmp, width);
            int o = order[j];
            order[j] = order[j - 1];
            order[j - 1] = o;
        }
    for (int i = 0; i < n; i++)
        map[order[i]] = i;
}

static int compare_sources(const void *x, const void *y)
{
    const struct dt_profile_source *a = x, *b = y;
    int c = strcmp(a->name, b->name);
    if (c == 0)
        c = strcmp(a->origin, b->origin);
    return c ? c : strcmp(a->note, b->note);
}

#define CMP(f)                                                                                     \
    if (a->f != b->f)                                                                              \
        return a->f < b->f ? -1 : 1;

int dt_profile_table_compare_key(const struct dt_profile_table_row *a,
                                 const struct dt_profile_table_row *b)
{
    CMP(device)
    CMP(dtype)
    CMP(r.family)
    CMP(r.phase)
    CMP(r.kind)
    CMP(r.source)
    for (int i = 0; i < 6; i++)
        CMP(r.d[i])
    return 0;
}

static int compare_rows(const void *x, const void *y)
{
    const struct dt_profile_table_row *a = x, *b = y;
    int c = dt_profile_table_compare_key(a, b);
    if (c)
        return c;
    CMP(r.n)
    CMP(r.median_ns)
    CMP(r.p10_ns)
    CMP(r.p90_ns)
#undef CMP
    return 0;
}

void dt_profile_table_sort(struct dt_profile_table *t)
{
    int devices[DT_PTABLE_MAX_NAMES], dtypes[DT_PTABLE_MAX_NAMES], sources[DT_PTABLE_MAX_SOURCES];
    size_t w = 0;

    renumber(t->devices[0], sizeof t->devices[0], t->n_devices, devices);
    renumber(t->dtypes[0], sizeof t->dtypes[0], t->n_dtypes, dtypes);
    if (t->n_sources > 0)
        qsort(t->sources, (size_t)t->n_sources, sizeof *t->sources, compare_sources);
    for (int i = 0; i < t->n_sources; i++) {
        sources[t->sources[i].id - 1] = i; /* id is 1 + the index before this sort */
        t->sources[i].id = i + 1;
    }
    for (size_t i = 0; i < t->n_rows; i++) {
        t->rows[i].device = devices[t->rows[i].device];
        t->rows[i].dtype = dtypes[t->rows[i].dtype];
        t->rows[i].r.source = sources[t->rows[i].r.source];
    }
    if (t->n_rows > 0)
        qsort(t->rows, t->n_rows, sizeof *t->rows, compare_rows);
    for (size_t i = 0; i < t->n_rows; i++) {
        if (w > 0 && dt_profile_table_compare_key(&t->rows[w - 1], &t->rows[i]) == 0) {
            int64_t n = t->rows[w - 1].r.n + t->rows[i].r.n;
            if (t->rows[i].r.n > t->rows[w - 1].r.n)
                t->rows[w - 1] = t->rows[i];
            t->rows[w - 1].r.n = n;
        } else {
            t->rows[w++] = t->rows[i];
        }
    }
    t->n_rows = w;
}
