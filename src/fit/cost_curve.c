/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING. */
#include "fit/cost_curve.h"

#include "core/cost/cost_internal.h"
#include "base/mem.h"
#include "base/quantile.h"

#include <gsl/gsl_errno.h>
#include <gsl/gsl_multifit.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Rows that one curve goes through. */
static bool same_curve(const struct dt_profile_table_row *a, const struct dt_profile_table_row *b)
{
    bool collective = dt_cost_is_collective(a->r.family);

    if (a->device != b->device || a->dtype != b->dtype || a->r.family != b->r.family ||
        a->r.phase != b->r.phase)
        return false;
    if (a->r.family == DT_KOP_SEND_RECV || a->r.family == DT_KOP_CPU_PREP)
        return a->r.d[0] == b->r.d[0];
    if (a->r.family == DT_KOP_BLOCK)
        return a->r.d[1] == b->r.d[1];
    return !(collective || a->r.family == DT_KOP_CARRY) ||
           (a->r.d[0] == b->r.d[0] && a->r.d[1] == b->r.d[1]);
}

static int by_x(const void *a, const void *b)
{
    const struct dt_curve_point *p = a, *q = b;

    if (p->x != q->x)
        return p->x < q->x ? -1 : 1;
    return (p->ns > q->ns) - (p->ns < q->ns);
}

/* ---- the fit ---- */

/* Least squares of relative errors, 1 = t0 / ns + slope x / ns, over the points of weight 1. */
static bool solve(const struct dt_curve *c, const double *weight, bool with_t0, bool robust,
                  double *t0, double *slope)
{
    size_t p = with_t0 ? 2 : 1, n = (size_t)c->n;
    gsl_matrix *x = gsl_matrix_alloc(n, p), *cov = gsl_matrix_alloc(p, p);
    gsl_vector *y = gsl_vector_alloc(n), *v = gsl_vector_alloc(p);
    gsl_multifit_robust_workspace *w =
        gsl_multifit_robust_alloc(gsl_multifit_robust_bisquare, n, p);
    gsl_multifit_linear_workspace *l = gsl_multifit_linear_alloc(n, p);
    bool ok = x && cov && y && v && w && l;

    if (ok) {
        double scale = c->point[c->n - 1].x, chi; /* columns of like size */
        int rc;

        for (size_t i = 0; i < n; i++) { /* points left out become 0 = 0 */
            gsl_matrix_set(x, i, 0, weight[i] * c->point[i].x / scale / c->point[i].ns);
            if (with_t0)
                gsl_matrix_set(x, i, 1, weight[i] / c->point[i].ns);
            gsl_vector_set(y, i, weight[i]);
        }
        rc = robust ? gsl_multifit_robust(x, y, v, cov, w)
                    : gsl_multifit_linear(x, y, v, cov, &chi, l);
        /* not converged after its 100 rounds: still the best estimate so far */
        ok = rc == GSL_SUCCESS || (robust && rc == GSL_EMAXITER);
        *slope = gsl_vector_get(v, 0) / scale;
        *t0 = with_t0 ? gsl_vector_get(v, 1) : 0;
        ok = ok && isfinite(*slope) && isfinite(*t0);
    }
    if (w)
        gsl_multifit_robust_free(w);
    if (l)
        gsl_multifit_linear_free(l);
    gsl_vector_free(y);
    gsl_vector_free(v);
    gsl_matrix_free(x);
    gsl_matrix_free(cov);
    return ok;
}

/* Weight 0 for points beyond three deviations, estimated from the median of the absolute errors
 * (1.4826: normal errors).  Bisquare weights alone leave a bias of some per cent when a tenth of
 * the points is far to one side. */
static void leave_out(const struct dt_curve *c, double t0, double slope, double *e, double *weight)
{
    double limit;

    for (int i = 0; i < c->n; i++)
        e[i] = weight[i] = fabs((t0 + slope * c->point[i].x) / c->point[i].ns - 1);
    dt_sort_numbers(e, (size_t)c->n);
    limit = 3 * 1.4826 * e[c->n / 2] + 1e-9;
    for (int i = 0; i < c->n; i++)
        weight[i] = weight[i] <= limit ? 1 : 0;
}

static bool robust_line(const struct dt_curve *c, bool with_t0, double *e, double *weight,
                        double *t0, double *slope)
{
    for (int i = 0; i < c->n; i++)
        weight[i] = 1;
    if (!solve(c, weight, with_t0, true, t0, slope))
        return false;
    for (int round = 0; round < 3; round++) {
        double a = *t0, b = *slope;

        leave_out(c, a, b, e, weight);
        if (!solve(c, weight, with_t0, false, t0, slope)) {
            *t0 = a;
            *slope = b;
            break;
        }
    }
    return true;
}

static enum dt_status fit(struct dt_curve *c, struct dt_error *err)
{
    gsl_error_handler_t *old = gsl_set_error_handler_off();
    double t0 = 0, slope = 0, *e = dt_malloc(2 * (size_t)c->n * sizeof(*e));
    bool ok;

    if (!e) {
        gsl_set_error_handler(old);
        return dt_error_nomem(err, "residuals");
    }
    qsort(c->point, (size_t)c->n, sizeof(*c->point), by_x);
    ok = robust_line(c, true, e, e + c->n, &t0, &slope);
    if (ok && t0 < 0) /* a launch takes no negative time */
        ok = robust_line(c, false, e, e + c->n, &t0, &slope);
    gsl_set_error_handler(old);
    if (!ok || !(slope > 0)) { /* times that do not grow with x at all */
        slope = 0;
        t0 = c->point[c->n / 2].ns;
    }
    c->t0_ns = t0;
    c->rate = slope > 0 ? 1 / slope : INFINITY;
    for (int i = 0; i < c->n; i++) {
        c->point[i].fitted_ns = t0 + slope * c->point[i].x;
        e[i] = fabs(c->point[i].fitted_ns / c->point[i].ns - 1);
    }
    c->median_error = dt_median(e, (size_t)c->n);
    c->p90_error = dt_quantile(e, sizeof(*e), (size_t)c->n, 0.9);
    dt_free(e);
    return DT_OK;
}

/* ---- curves of a table ---- */

static bool used(const struct dt_profile_table_row *r, int leader, const struct dt_profile_table *t)
{
    return r->r.phase < DT_PHASE_N && same_curve(&t->rows[leader], r);
}

static enum dt_status add_curve(const struct dt_profile_table *t, int first, unsigned char *taken,
                                struct dt_error *err, struct dt_curves *out)
{
    const struct dt_profile_table_row *lead = &t->rows[first];
    struct dt_curve c = {.device = lead->device,
                         .dtype = lead->dtype,
                         .family = lead->r.family,
                         .phase = lead->r.phase,
                         .flops = dt_cost_family[lead->r.family].flops};
    enum dt_status st = DT_OK;
    size_t cap = 0;

    if (dt_cost_is_collective(c.family)) {
        c.gpus = c.family == DT_KOP_SEND_RECV ? 2 : lead->r.d[0];
        c.gpus_per_node = c.family == DT_KOP_SEND_RECV ? lead->r.d[0] : lead->r.d[1];
    }
    for (size_t i = (size_t)first; i < t->n_rows && st == DT_OK; i++) {
        const struct dt_profile_table_row *r = &t->rows[i];
        double x;

        if (taken[i] || !used(r, first, t))
            continue;
        taken[i] = 1;
        x = dt_cost_units(r->r.family, r->r.d);
        if (!(x > 0))
            continue;
        if (dt_grow((void **)&c.point, &cap, (size_t)c.n + 1, sizeof(*c.point)))
            st = dt_error_nomem(err, "points of a curve");
        else
            c.point[c.n++] = (struct dt_curve_point){x, r->r.median_ns, 0};
    }
    if (st == DT_OK && c.n >= DT_CURVE_POINTS_MIN)
        st = fit(&c, err);
    if (st == DT_OK && c.n >= DT_CURVE_POINTS_MIN) {
        if (dt_grow((void **)&out->curve, &out->cap, (size_t)out->n + 1, sizeof(*out->curve)))
            st = dt_error_nomem(err, "curves");
        else
            out->curve[out->n++] = c;
    }
    if (st != DT_OK || c.n < DT_CURVE_POINTS_MIN)
        dt_free(c.point);
    return st;
}

enum dt_status dt_curves_fit(struct dt_profile_table *t, struct dt_error *err,
                             struct dt_curves *out)
{
    struct dt_curves c = {0};
    unsigned char *taken;
    enum dt_status st = DT_OK;

    dt_profile_table_sort(t);
    taken = dt_calloc(t->n_rows + 1, 1);
    if (!taken)
        return dt_error_nomem(err, "rows");
    for (size_t i = 0; i < t->n_rows && st == DT_OK; i++)
        if (!taken[i] && t->rows[i].r.phase < DT_PHASE_N)
            st = add_curve(t, (int)i, taken, err, &c);
    dt_free(taken);
    if (st != DT_OK) {
        dt_curves_free(&c);
        return st;
    }
    *out = c;
    return DT_OK;
}

void dt_curves_free(struct dt_curves *c)
{
    for (int i = 0; i < c->n; i++)
        dt_free(c->curve[i].point);
    dt_free(c->curve);
    memset(c, 0, sizeof(*c));
}
