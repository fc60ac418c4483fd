/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Fits of size distributions.
 *
 * The published figures are shares of hundreds of millions of images, so sampling error is nil and
 * what remains is the misfit of the family; hence plain least squares on normal quantiles, where a
 * log-normal is a straight line, and not a likelihood. */
#include "core/model/samples_fit.h"

#include <gsl/gsl_cdf.h>
#include <gsl/gsl_errno.h>
#include <gsl/gsl_integration.h>
#include <gsl/gsl_multifit_nlinear.h>
#include <gsl/gsl_randist.h>
#include <math.h>
#include <stdbool.h>

struct fit_data {
    const struct dt_samples_ccdf *ccdf;
    int n;
    gsl_integration_glfixed_table *quad;
};

struct tail {
    const struct dt_samples_size_fit *fit;
    double ln_px;
};

/* Integrand over u = |a|/aspect_sigma: density of u times P(ln smaller >= ln px - |a|). */
static double tail_at(double u, void *arg)
{
    const struct tail *t = arg;
    double z = (t->ln_px - t->fit->mu - t->fit->aspect_sigma * u) / t->fit->sigma;
    return 2.0 * gsl_ran_ugaussian_pdf(u) * gsl_cdf_ugaussian_Q(z);
}

/* Beyond eight standard deviations the normal density is below 1e-14. */
static double tail_probability(const struct dt_samples_size_fit *fit, double px,
                               const gsl_integration_glfixed_table *quad)
{
    struct tail t = {fit, log(px)};
    gsl_function f = {tail_at, &t};
    return gsl_integration_glfixed(&f, 0.0, 8.0, quad);
}

double dt_samples_size_fit_larger(const struct dt_samples_size_fit *fit, double px)
{
    gsl_integration_glfixed_table *quad = gsl_integration_glfixed_table_alloc(64);
    if (!quad)
        return NAN;
    double q = tail_probability(fit, px, quad);
    gsl_integration_glfixed_table_free(quad);
    return q;
}

/* Keeps a trial step of the solver away from quantiles of 0 and 1. */
static double probit(double q)
{
    return gsl_cdf_ugaussian_Qinv(fmin(fmax(q, 1e-12), 1.0 - 1e-12));
}

static void fit_of_vector(const gsl_vector *x, struct dt_samples_size_fit *fit)
{
    fit->mu = gsl_vector_get(x, 0);
    fit->sigma = exp(gsl_vector_get(x, 1)); /* logarithms keep both positive */
    fit->aspect_sigma = exp(gsl_vector_get(x, 2));
}

static int residuals(const gsl_vector *x, void *arg, gsl_vector *r)
{
    const struct fit_data *d = arg;
    struct dt_samples_size_fit fit = {0};
    fit_of_vector(x, &fit);
    for (int i = 0; i < d->n; i++) {
        double z = (log(d->ccdf[i].px) - fit.mu) / fit.sigma;
        double q = tail_probability(&fit, d->ccdf[i].px, d->quad);
        gsl_vector_set(r, (size_t)(2 * i), z - probit(d->ccdf[i].smaller));
        gsl_vector_set(r, (size_t)(2 * i + 1), probit(q) - probit(d->ccdf[i].larger));
    }
    return GSL_SUCCESS;
}

static enum dt_status check_ccdf(const struct dt_samples_ccdf *c, int n, struct dt_error *err)
{
    if (n < 2 || n > DT_SIZE_CCDF_MAX)
        return dt_error_set(err, DT_ERR_INPUT, "size fit: 2 to %d rows are needed, not %d",
                            (int)DT_SIZE_CCDF_MAX, n);
    for (int i = 0; i < n; i++) {
        bool ok = c[i].px >= 1 && isfinite(c[i].px) && c[i].smaller > 0 && c[i].larger < 1 &&
                  c[i].smaller < c[i].larger;
        ok = ok && (i == 0 || (c[i].px > c[i - 1].px && c[i].smaller < c[i - 1].smaller &&
                               c[i].larger < c[i - 1].larger));
        if (!ok)
            return dt_error_set(err, DT_ERR_INPUT,
                                "size fit: row %d: sides must grow and shares fall, with "
                                "0 < smaller < larger < 1",
                                i + 1);
    }
    return DT_OK;
}

/* Start: the line through the first and last quantile of the smaller side; a mild aspect. */
static void start_point(const struct dt_samples_ccdf *c, int n, gsl_vector *x)
{
    double z0 = probit(c[0].smaller), z1 = probit(c[n - 1].smaller);
    double sigma = (log(c[n - 1].px) - log(c[0].px)) / (z1 - z0);
    gsl_vector_set(x, 0, log(c[0].px) - sigma * z0);
    gsl_vector_set(x, 1, log(sigma));
    gsl_vector_set(x, 2, log(0.3));
}

enum dt_status dt_samples_fit(const struct dt_samples_ccdf *ccdf, int n, struct dt_error *err,
                              struct dt_samples_size_fit *out)
{
    DT_TRY(check_ccdf(ccdf, n, err));
    enum dt_status st = DT_OK;
    gsl_error_handler_t *old = gsl_set_error_handler_off();
    gsl_multifit_nlinear_parameters par = gsl_multifit_nlinear_default_parameters();
    struct fit_data d = {ccdf, n, gsl_integration_glfixed_table_alloc(64)};
    gsl_multifit_nlinear_workspace *w =
        gsl_multifit_nlinear_alloc(gsl_multifit_nlinear_trust, &par, (size_t)(2 * n), 3);
    gsl_vector *x = gsl_vector_alloc(3);
    gsl_multifit_nlinear_fdf f = {.f = residuals, .n = (size_t)(2 * n), .p = 3, .params = &d};
    if (!d.quad || !w || !x) {
        st = dt_error_nomem(err, "size fit");
        goto done;
    }
    start_point(ccdf, n, x);
    int info = 0;
    if (gsl_multifit_nlinear_init(x, &f, w) ||
        gsl_multifit_nlinear_driver(200, 1e-12, 1e-12, 1e-12, NULL, NULL, &info, w)) {
        st = dt_error_set(err, DT_ERR_INPUT,
                          "size fit: no log-normal fits these shares (no convergence)");
        goto done;
    }
    struct dt_samples_size_fit fit = {0};
    double ss = 0;
    fit_of_vector(gsl_multifit_nlinear_position(w), &fit);
    gsl_vector *r = gsl_multifit_nlinear_residual(w);
    for (size_t i = 0; i < r->size; i++)
        ss += gsl_vector_get(r, i) * gsl_vector_get(r, i);
    fit.rms_probit = sqrt(ss / (double)r->size);
    *out = fit;
done:
    gsl_vector_free(x);
    gsl_multifit_nlinear_free(w);
    gsl_integration_glfixed_table_free(d.quad);
    gsl_set_error_handler(old);
    return st;
}

/* mean = exp(mu + s^2/2) and value = exp(mu + z s) give s^2/2 - z s + ln(value/mean) = 0. */
enum dt_status dt_samples_lognormal_from_mean(double mean, double value, double quantile,
                                              struct dt_error *err, double *mu, double *sigma)
{
    if (!(mean > 0 && value > mean && quantile > 0.5 && quantile < 1))
        return dt_error_set(err, DT_ERR_INPUT,
                            "log-normal: needs 0 < mean < value of the quantile");
    double z = gsl_cdf_ugaussian_Pinv(quantile), d = z * z - 2.0 * log(value / mean);
    if (d < 0)
        return dt_error_set(err, DT_ERR_INPUT,
                            "log-normal: no spread puts the quantile that far above the mean");
    *sigma = z - sqrt(d);
    *mu = log(mean) - *sigma * *sigma / 2.0;
    return DT_OK;
}
