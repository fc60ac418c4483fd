/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * The fit's devices, driver, sources and rows. */
#include "fit/profile_fit_priv.h"

#include <gsl/gsl_errno.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

/* Peaks and bandwidths: published (vendor data sheets, dense, no sparsity).  A800: A100 with NVLink
 * cut from 600 to 400 GB/s (published).  launch_ns only shapes the model that the fit corrects. */
static const struct dt_fit_device devices[] = {
    {DT_FIT_A100, DT_FIT_A100, 312e3, 156e3, 2039, 2500, 1.0},
    {DT_FIT_A800, DT_FIT_A100, 312e3, 156e3, 2039, 2500, 600.0 / 400.0},
    {DT_FIT_H100, DT_FIT_H100, 989e3, 494.5e3, 3350, 2500, 1.0},
};

const struct dt_fit_device *dt_fit_find_device(const char *name)
{
    for (size_t i = 0; i < sizeof devices / sizeof devices[0]; i++)
        if (strcmp(devices[i].name, name) == 0)
            return &devices[i];
    return NULL;
}

const char *dt_fit_device(int i)
{
    return i >= 0 && (size_t)i < sizeof devices / sizeof devices[0] ? devices[i].name : NULL;
}

size_t dt_fit_next(const struct dt_fit *f, size_t i, const char *device, const char *dtype,
                   int family, int phase)
{
    const struct dt_profile_table *t = f->in;

    for (; i < t->n_rows; i++) {
        const struct dt_profile_table_row *r = &t->rows[i];
        if (r->r.family == family && r->r.phase == phase && r->r.kind == DT_ROW_MEASURED &&
            strcmp(t->devices[r->device], device) == 0 && strcmp(t->dtypes[r->dtype], dtype) == 0)
            break;
    }
    return i;
}

enum dt_status dt_fit_missing(struct dt_fit *f, const char *device, const char *what,
                              const char *importer)
{
    return dt_error_set(f->err, DT_ERR_INPUT,
                        "the fit of %s needs %s of %s: 'disttrain db import %s' first",
                        f->dev->name, what, device, importer);
}

void dt_fit_add_score(struct dt_fit *f, const char *what, const struct dt_fit_local_score *s)
{
    struct dt_fit_report *r = f->report;

    if (!r || r->n == (int)(sizeof r->score / sizeof r->score[0]))
        return;
    snprintf(r->score[r->n].what, sizeof r->score[r->n].what, "%s", what);
    r->score[r->n++].s = *s;
}

enum dt_status dt_fit_score(struct dt_fit *f, const char *what, const struct dt_fit_local *l,
                            size_t limit)
{
    struct dt_fit_local_score s;

    if (!f->report)
        return DT_OK;
    DT_TRY(dt_fit_local_validate(l, limit, f->err, &s));
    dt_fit_add_score(f, what, &s);
    return DT_OK;
}

enum dt_status dt_fit_source(struct dt_fit *f, const char *name, const char *note,
                             const struct dt_fit_from *from, int n_from, int *out)
{
    struct dt_profile_source s = {0};

    snprintf(s.name, sizeof s.name, "%s", name);
    /* A device that differs from its base only in its links shares the base's kernels as they are;
     * its link rows say themselves that they are derived. */
    snprintf(s.note, sizeof s.note, "%s%s",
             strcmp(f->dev->name, f->dev->base)
                 ? "measured on A100-SXM4-80GB, the same compute (published); "
                 : "",
             note);
    for (int i = 0; i < n_from; i++) {
        size_t row =
            dt_fit_next(f, 0, from[i].device, from[i].dtype, from[i].family, from[i].phase);
        const struct dt_profile_source *o;
        char piece[sizeof s.origin + 4];
        if (row == f->in->n_rows)
            continue;
        o = &f->in->sources[f->in->rows[row].r.source];
        snprintf(piece, sizeof piece, "%s%s", s.origin[0] ? "; " : "", o->origin);
        if (!strstr(s.origin, o->origin) && strlen(s.origin) + strlen(piece) < sizeof s.origin)
            strcat(s.origin, piece);
        if (!strstr(s.licence, o->licence) &&
            strlen(s.licence) + strlen(o->licence) + 3 < sizeof s.licence) {
            strcat(s.licence, s.licence[0] ? ", " : "");
            strcat(s.licence, o->licence);
        }
        if (strcmp(o->date, s.date) > 0)
            snprintf(s.date, sizeof s.date, "%s", o->date);
    }
    if (n_from == 0) { /* rests on published constants alone */
        snprintf(s.origin, sizeof s.origin, "vendor data sheets");
        snprintf(s.licence, sizeof s.licence, "facts");
    }
    if (!s.date[0])
        snprintf(s.date, sizeof s.date, "not recorded");
    return dt_profile_table_source(f->out, &s, f->err, out);
}

enum dt_status dt_fit_emit(struct dt_fit *f, const struct dt_fit_row *row,
                           const struct dt_fit_estimate *e)
{
    struct dt_profile_table_row r = {.device = f->out_device, .dtype = row->dtype};

    r.r.family = row->family;
    r.r.phase = row->phase;
    r.r.kind = row->kind;
    r.r.source = row->source;
    r.r.n = e->n > 0 ? e->n : 1;
    memcpy(r.r.d, row->d, sizeof r.r.d);
    /* ceil keeps a rounded time from stepping over the peak by a fraction of a ns. */
    double least = ceil(fmax(row->floor_ns, 1));
    r.r.median_ns = fmax(rint(e->ns), least);
    r.r.p10_ns = fmin(fmax(rint(e->ns * fmin(e->lo, 1)), least), r.r.median_ns);
    r.r.p90_ns = fmax(rint(e->ns * fmax(e->hi, 1)), r.r.median_ns);
    return dt_profile_table_add(f->out, &r, f->err);
}

static enum dt_status run(struct dt_fit *f)
{
    DT_TRY(dt_profile_table_device(f->out, f->dev->name, f->err, &f->out_device));
    DT_TRY(dt_profile_table_dtype(f->out, "bf16", f->err, &f->out_bf16));
    DT_TRY(dt_profile_table_dtype(f->out, "any", f->err, &f->out_any));
    DT_TRY(dt_profile_table_dtype(f->out, "fp32", f->err, &f->out_fp32));
    DT_TRY(dt_fit_gemm(f));
    DT_TRY(dt_fit_attention(f));
    DT_TRY(dt_fit_collectives(f));
    DT_TRY(dt_fit_pointwise(f));
    return dt_fit_conv(f);
}

enum dt_status dt_fit_profile(const struct dt_profile_table *in, const char *device,
                              struct dt_error *err, struct dt_profile_table *out,
                              struct dt_fit_report *report)
{
    struct dt_profile_table t = {0};
    struct dt_fit f = {.in = in, .out = &t, .err = err, .report = report};
    gsl_error_handler_t *was = gsl_set_error_handler_off();
    enum dt_status status;

    f.dev = dt_fit_find_device(device);
    f.a100 = dt_fit_find_device(DT_FIT_A100);
    f.h100 = dt_fit_find_device(DT_FIT_H100);
    if (report)
        report->n = 0;
    if (f.dev)
        status = run(&f);
    else
        status = dt_error_set(err, DT_ERR_USAGE, "no fit for device '%.60s'; known: %s, %s, %s",
                              device, devices[0].name, devices[1].name, devices[2].name);
    dt_fit_local_free(&f.gemm);
    dt_fit_local_free(&f.gemm_a100);
    dt_fit_local_free(&f.gemm_h100);
    gsl_set_error_handler(was);
    if (status != DT_OK) {
        dt_profile_table_free(&t);
        return status;
    }
    *out = t;
    return DT_OK;
}
