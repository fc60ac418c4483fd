/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * The import driver: reads a table with its family's row function, groups repeated measurements and
 * merges the rows into the target. */
#include "fit/profile_import_priv.h"

#include "base/doc.h"
#include "base/mem.h"
#include "base/quantile.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

const char *dt_import_format_name(int i, const char **summary)
{
    *summary = dt_import_formats[i].summary;
    return dt_import_formats[i].name;
}

/* ---- grouping and merging ---- */

static int compare_key(const void *x, const void *y)
{
    return dt_profile_table_compare_key(x, y);
}

static int compare_time(const void *x, const void *y)
{
    const struct dt_profile_table_row *a = x, *b = y;
    int c = compare_key(a, b);
    if (c)
        return c;
    if (a->r.median_ns != b->r.median_ns)
        return a->r.median_ns < b->r.median_ns ? -1 : 1;
    return 0;
}

static void group(struct dt_profile_table *t)
{
    size_t w = 0;

    qsort(t->rows, t->n_rows, sizeof *t->rows, compare_time);
    for (size_t i = 0, j; i < t->n_rows; i = j) {
        for (j = i + 1; j < t->n_rows && compare_key(&t->rows[i], &t->rows[j]) == 0; j++)
            ;
        struct dt_profile_table_row row = t->rows[i];
        const double *ns = &t->rows[i].r.median_ns;
        row.r.n = (int64_t)(j - i);
        row.r.median_ns = dt_quantile(ns, sizeof(row), j - i, 0.5);
        row.r.p10_ns = dt_quantile(ns, sizeof(row), j - i, 0.1);
        row.r.p90_ns = dt_quantile(ns, sizeof(row), j - i, 0.9);
        t->rows[w++] = row;
    }
    t->n_rows = w;
}

void dt_import_share_names(struct dt_profile_table *add, const struct dt_profile_table *t)
{
    memcpy(add->devices, t->devices, sizeof t->devices);
    memcpy(add->dtypes, t->dtypes, sizeof t->dtypes);
    add->n_devices = t->n_devices;
    add->n_dtypes = t->n_dtypes;
    add->n_sources = t->n_sources; /* only its count is looked at while rows are added */
}

enum dt_status dt_import_merge(struct dt_profile_table *t, struct dt_profile_table *add,
                               struct dt_error *err)
{
    size_t old = t->n_rows, w = 0;

    /* Reserve first: after this nothing fails. */
    if (dt_grow((void **)&t->rows, &t->cap_rows, old + add->n_rows, sizeof *t->rows))
        return dt_error_nomem(err, "profile rows");
    memcpy(t->dtypes, add->dtypes, sizeof t->dtypes);
    t->n_dtypes = add->n_dtypes;
    if (add->n_rows == 0)
        return DT_OK;
    qsort(add->rows, add->n_rows, sizeof *add->rows, compare_key);
    for (size_t i = 0; i < old; i++)
        if (!bsearch(&t->rows[i], add->rows, add->n_rows, sizeof *add->rows, compare_key))
            t->rows[w++] = t->rows[i];
    memcpy(t->rows + w, add->rows, add->n_rows * sizeof *add->rows);
    t->n_rows = w + add->n_rows;
    return DT_OK;
}

static enum dt_status prepare(struct dt_import *im, struct dt_profile_table *t,
                              const struct dt_import_format *who,
                              const struct dt_import_options *opt)
{
    DT_TRY(dt_profile_table_device(t, opt->device, im->err, &im->proto.device));
    DT_TRY(
        dt_profile_table_dtype(t, opt->dtype ? opt->dtype : who->dtype, im->err, &im->proto.dtype));
    DT_TRY(dt_profile_table_source(t, &opt->source, im->err, &im->proto.r.source));
    im->proto.r.kind = DT_ROW_MEASURED;
    dt_import_share_names(im->t, t);
    return DT_OK;
}

static enum dt_status find_family(const char *family, const struct dt_import_options *opt,
                                  struct dt_import *im, const struct dt_import_format **who)
{
    const char *names[DT_IMPORT_MAX_FAMILIES + 1];
    const char *near;

    *who = NULL;
    for (int i = 0; i <= DT_IMPORT_MAX_FAMILIES && (names[i] = dt_import_formats[i].name); i++)
        if (strcmp(names[i], family) == 0)
            *who = &dt_import_formats[i];
    if (!*who) {
        near = dt_suggest(family, names);
        return dt_error_set(im->err, DT_ERR_USAGE, "unknown table family '%.60s'%s%s%s", family,
                            near ? "; did you mean " : "", near ? near : "", near ? "?" : "");
    }
    if (!(*who)->wants_shape)
        return DT_OK;
    for (im->shape = dt_import_shapes; im->shape->name; im->shape++)
        if (opt->shape && strcmp(im->shape->name, opt->shape) == 0)
            return DT_OK;
    return dt_error_set(im->err, DT_ERR_USAGE,
                        "vidur-layer needs --shape llama-3-8b or --shape llama-2-7b");
}

static enum dt_status read_rows(struct dt_import *im, const struct dt_import_format *who, size_t *n)
{
    bool more = true;

    for (int i = 0; i < DT_IMPORT_MAX_COLS && who->needed[i]; i++)
        DT_TRY(dt_profile_csv_column(&im->csv, who->needed[i], im->err, &im->col[i]));
    for (*n = 0;; ++*n) {
        DT_TRY(dt_profile_csv_next(&im->csv, im->err, &more));
        if (!more)
            break;
        DT_TRY(who->row(im));
    }
    if (im->t->n_rows == 0)
        return dt_error_at(im->err, DT_ERR_INPUT, im->csv.name, 0, 0,
                           "no row of this table can be imported");
    return DT_OK;
}

enum dt_status dt_import_profile(const char *family, const char *name, const char *text, size_t len,
                                 const struct dt_import_options *opt, struct dt_error *err,
                                 struct dt_profile_table *t, struct dt_import_result *result)
{
    const struct dt_import_format *who;
    struct dt_profile_table add = {0};
    struct dt_import im = {.err = err, .t = &add};
    size_t lines = 0;
    enum dt_status status;

    DT_TRY(find_family(family, opt, &im, &who));
    DT_TRY(prepare(&im, t, who, opt));
    status = dt_profile_csv_open(&im.csv, name, text, len, err);
    if (status == DT_OK)
        status = read_rows(&im, who, &lines);
    if (status == DT_OK && !who->has_stats)
        group(&add);
    if (status == DT_OK)
        status = dt_import_merge(t, &add, err);
    if (status == DT_OK)
        *result = (struct dt_import_result){
            .rows = add.n_rows, .measurements = lines, .skipped = im.skipped};
    dt_profile_csv_close(&im.csv);
    add.n_sources = 0;
    dt_profile_table_free(&add);
    return status;
}
