/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Fitting size distributions to published summary figures; how the shipped presets were made
 * (doc/samples.md). */
#ifndef DT_CORE_MODEL_SAMPLES_FIT_H
#define DT_CORE_MODEL_SAMPLES_FIT_H

#include "base/status.h"

/* One row of a complementary CDF of image sizes: the shares of all images whose smaller side, and
 * whose larger side, is at least `px` pixels.  Shares strictly between 0 and 1. */
struct dt_samples_ccdf {
    double px, smaller, larger;
};
/* ln(smaller side) ~ Normal(mu, sigma); larger = smaller * exp(|a|), a ~ Normal(0, aspect_sigma).
 */
struct dt_samples_size_fit {
    double mu, sigma, aspect_sigma;
    /* root mean square residual, in standard deviations of the normal quantile */
    double rms_probit;
};
enum { DT_SIZE_CCDF_MAX = 32 };

/* Least squares (GSL, trust region) on the normal quantiles of the shares: 2n residuals, three
 * parameters.  2 <= n <= DT_SIZE_CCDF_MAX.  Deterministic. */
enum dt_status dt_samples_fit(const struct dt_samples_ccdf *ccdf, int n, struct dt_error *err,
                              struct dt_samples_size_fit *out);

/* P(larger side >= px) under a fit: a skew-normal tail, by Gauss-Legendre quadrature. */
double dt_samples_size_fit_larger(const struct dt_samples_size_fit *fit, double px);

/* The log-normal with this mean whose `quantile` (0.5 < quantile < 1) is at `value` > mean; closed
 * form, the narrower of the two solutions.  DT_ERR_INPUT when none exists. */
enum dt_status dt_samples_lognormal_from_mean(double mean, double value, double quantile,
                                              struct dt_error *err, double *mu, double *sigma);

#endif
