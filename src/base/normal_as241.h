/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * The normal distribution's quantile: M. J. Wichura, "Algorithm AS 241: The percentage points of
 * the normal distribution", Applied Statistics 37 (1988), PPND16; relative error about 1e-16.
 *
 * Included by the host's normal.c and by kernels of cards; DT_NORMAL_FUNCTION is in front of its functions. */
#ifndef DT_BASE_NORMAL_AS241_H
#define DT_BASE_NORMAL_AS241_H

#include <math.h>

/* Ratio of two polynomials of degree 7, constant terms first. */
DT_NORMAL_FUNCTION double ratio(const double num[8], const double den[8], double r)
{
    double n = num[7], d = den[7];

    for (int i = 6; i >= 0; i--) {
        n = n * r + num[i];
        d = d * r + den[i];
    }
    return n / d;
}

/* |p - 1/2| <= 0.425 */
DT_NORMAL_FUNCTION double near_median(double q)
{
    static const double num[8] = {3.3871328727963666080e0, 1.3314166789178437745e2,
                                  1.9715909503065514427e3, 1.3731693765509461125e4,
                                  4.5921953931549871457e4, 6.7265770927008700853e4,
                                  3.3430575583588128105e4, 2.5090809287301226727e3};
    static const double den[8] = {1.0,
                                  4.2313330701600911252e1,
                                  6.8718700749205790830e2,
                                  5.3941960214247511077e3,
                                  2.1213794301586595867e4,
                                  3.9307895800092710610e4,
                                  2.8729085735721942674e4,
                                  5.2264952788528545610e3};

    return q * ratio(num, den, 0.180625 - q * q);
}

/* R = sqrt(-log(the smaller tail)), up to 5 (a tail of 1.4e-11) */
DT_NORMAL_FUNCTION double in_tail(double r)
{
    static const double num[8] = {1.42343711074968357734e0,  4.63033784615654529590e0,
                                  5.76949722146069140550e0,  3.64784832476320460504e0,
                                  1.27045825245236838258e0,  2.41780725177450611770e-1,
                                  2.27238449892691845833e-2, 7.74545014278341407640e-4};
    static const double den[8] = {1.0,
                                  2.05319162663775882187e0,
                                  1.67638483018380384940e0,
                                  6.89767334985100004550e-1,
                                  1.48103976427480074590e-1,
                                  1.51986665636164571966e-2,
                                  5.47593808499534494600e-4,
                                  1.05075007164441684324e-9};

    return ratio(num, den, r - 1.6);
}

DT_NORMAL_FUNCTION double far_out(double r)
{
    static const double num[8] = {6.65790464350110377720e0,  5.46378491116411436990e0,
                                  1.78482653991729133580e0,  2.96560571828504891230e-1,
                                  2.65321895265761230930e-2, 1.24266094738807843860e-3,
                                  2.71155556874348757815e-5, 2.01033439929228813265e-7};
    static const double den[8] = {1.0,
                                  5.99832206555887937690e-1,
                                  1.36929880922735805310e-1,
                                  1.48753612908506148525e-2,
                                  7.86869131145613259100e-4,
                                  1.84631831751005468180e-5,
                                  1.42151175831644588870e-7,
                                  2.04426310338993978564e-15};

    return ratio(num, den, r - 5.0);
}

DT_NORMAL_FUNCTION double dt_normal_as241(double p)
{
    double q = p - 0.5, r, x;

    if (fabs(q) <= 0.425)
        return near_median(q);
    r = sqrt(-log(q < 0 ? p : 1.0 - p));
    x = r <= 5.0 ? in_tail(r) : far_out(r);
    return q < 0 ? -x : x;
}

#endif
