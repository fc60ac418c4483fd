/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING. */
#include "fit/profile_local.h"

#include "base/hash.h"
#include "base/heap.h"
#include "base/mem.h"

#include <gsl/gsl_linalg.h>
#include <gsl/gsl_sort_double.h>
#include <gsl/gsl_statistics_double.h>
#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

enum dt_status dt_fit_local_add(struct dt_fit_local *l, const double *x, double y, int fold,
                                struct dt_error *err)
{
    struct dt_fit_local_point *p;

    if (dt_grow((void **)&l->points, &l->cap, l->n + 1, sizeof *l->points))
        return dt_error_nomem(err, "points of a fit");
    p = &l->points[l->n];
    memset(p, 0, sizeof *p);
    p->y = y;
    p->fold = fold;
    for (int i = 0; i < l->dim; i++) {
        p->x[i] = x[i];
        l->min[i] = l->n == 0 || x[i] < l->min[i] ? x[i] : l->min[i];
        l->max[i] = l->n == 0 || x[i] > l->max[i] ? x[i] : l->max[i];
    }
    l->n++;
    return DT_OK;
}

void dt_fit_local_free(struct dt_fit_local *l)
{
    dt_free(l->points);
    l->points = NULL;
    l->n = l->cap = 0;
}

int dt_fit_local_fold(const long long *key, int n)
{
    uint64_t h = DT_HASH_START;

    for (int i = 0; i < n;
         i++) { /* not dt_hash_word: scores of published profiles stand on these folds */
        h = (h ^ (uint64_t)key[i]) * DT_HASH_GOLDEN;
        h ^= h >> 29;
    }
    return (int)(h % DT_LOCAL_FOLDS);
}

struct near {
    double d2;
    const struct dt_fit_local_point *p;
};

/* The `near` nearest points, the farthest of them first, by (distance, address): ties go to the
 * earlier point. */
#define FARTHER(ctx, a, b) ((a).d2 != (b).d2 ? (a).d2 > (b).d2 : (a).p > (b).p)
DT_HEAP(nears, const void *, struct near, 2, FARTHER, DT_HEAP_SET)

static int nearest(const struct dt_fit_local *l, const double *x, int skip_fold, struct near *h)
{
    int n = 0;

    for (size_t i = 0; i < l->n; i++) {
        struct near c = {0, &l->points[i]};
        if (c.p->fold == skip_fold)
            continue;
        for (int k = 0; k < l->dim; k++)
            c.d2 += (c.p->x[k] - x[k]) * (c.p->x[k] - x[k]);
        if (n < l->near)
            nears_push(NULL, h, (uint32_t)n++, c);
        else if (FARTHER(NULL, h[0], c))
            nears_down(NULL, h, (uint32_t)n, 0, c);
    }
    return n;
}

/* Weighted least squares of y on (1, x - x0), slopes held back by a small ridge so that neighbours
 * in a line or a plane give a finite answer. */
static void solve(const struct dt_fit_local *l, const double *x0, const struct near *h,
                  const double *w, int n, double *beta)
{
    enum { P = DT_LOCAL_MAX_DIM + 1 };
    int p = l->dim + 1;
    double a[P * P] = {0}, b[P] = {0}, z[P], sum = 0;

    for (int i = 0; i < n; i++) {
        z[0] = 1;
        for (int k = 0; k < l->dim; k++)
            z[k + 1] = h[i].p->x[k] - x0[k];
        for (int r = 0; r < p; r++) {
            for (int c = 0; c < p; c++)
                a[r * p + c] += w[i] * z[r] * z[c];
            b[r] += w[i] * z[r] * h[i].p->y;
        }
        sum += w[i];
    }
    const double ridge = 0.02; /* octaves squared: small beside the neighbours' spread */
    for (int k = 1; k < p; k++)
        a[k * p + k] += ridge * sum;
    gsl_matrix_view ma = gsl_matrix_view_array(a, (size_t)p, (size_t)p);
    gsl_vector_view vb = gsl_vector_view_array(b, (size_t)p),
                    vx = gsl_vector_view_array(beta, (size_t)p);
    /* Positive definite by the ridge and sum > 0, so the factorisation cannot fail. */
    gsl_linalg_cholesky_decomp1(&ma.matrix);
    gsl_linalg_cholesky_solve(&ma.matrix, &vb.vector, &vx.vector);
}

void dt_fit_local_eval(const struct dt_fit_local *l, const double *x, int skip_fold,
                       struct dt_fit_local_value *out)
{
    struct near h[DT_LOCAL_MAX_NEAR];
    double x0[DT_LOCAL_MAX_DIM], w[DT_LOCAL_MAX_NEAR], beta[DT_LOCAL_MAX_DIM + 1],
        r[DT_LOCAL_MAX_NEAR];
    double lo = INFINITY, hi = -INFINITY;
    int n;

    for (int k = 0; k < l->dim; k++)
        x0[k] = fmin(fmax(x[k], l->min[k]), l->max[k]);
    n = nearest(l, x0, skip_fold, h);
    double reach2 = fmax(h[0].d2 * 1.02, 1e-12);
    for (int i = 0; i < n; i++) {
        double u = sqrt(h[i].d2 / reach2), t = 1 - u * u * u;
        w[i] = t * t * t + 1e-9;
        lo = fmin(lo, h[i].p->y);
        hi = fmax(hi, h[i].p->y);
    }
    solve(l, x0, h, w, n, beta);
    out->y = fmin(fmax(beta[0], lo), hi); /* never beyond what the neighbours show */
    for (int i = 0; i < n; i++) {
        r[i] = h[i].p->y - out->y;
        for (int k = 0; k < l->dim; k++)
            r[i] -= beta[k + 1] * (h[i].p->x[k] - x0[k]);
    }
    gsl_sort(r, 1, (size_t)n);
    out->lo = fmin(0, gsl_stats_quantile_from_sorted_data(r, 1, (size_t)n, 0.1));
    out->hi = fmax(0, gsl_stats_quantile_from_sorted_data(r, 1, (size_t)n, 0.9));
    out->n = n;
}

size_t dt_fit_local_errors(const struct dt_fit_local *l, size_t step, double least, double *e,
                           size_t cap)
{
    size_t n = 0;

    for (size_t i = 0; i < l->n && n < cap; i += step) {
        struct dt_fit_local_value v;

        if (l->points[i].x[0] < least)
            continue;
        dt_fit_local_eval(l, l->points[i].x, l->points[i].fold, &v);
        e[n++] = fabs(exp(v.y - l->points[i].y) - 1);
    }
    return n;
}

void dt_fit_local_score(double *e, size_t n, struct dt_fit_local_score *out)
{
    *out = (struct dt_fit_local_score){.n = n};
    if (n == 0)
        return;
    gsl_sort(e, 1, n);
    out->mean = gsl_stats_mean(e, 1, n);
    out->median = gsl_stats_median_from_sorted_data(e, 1, n);
    out->p90 = gsl_stats_quantile_from_sorted_data(e, 1, n, 0.9);
}

enum dt_status dt_fit_local_validate(const struct dt_fit_local *l, size_t limit,
                                     struct dt_error *err, struct dt_fit_local_score *out)
{
    size_t step = l->n / limit + 1, cap = l->n / step + 1;
    double *e = dt_calloc(cap, sizeof *e);

    if (!e)
        return dt_error_nomem(err, "a cross-validation");
    dt_fit_local_score(e, dt_fit_local_errors(l, step, -INFINITY, e, cap), out);
    dt_free(e);
    return DT_OK;
}
