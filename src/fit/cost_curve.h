/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Two constants per kind of measurement: what a profile says in a nutshell, and how well two
 * constants say it.
 *
 *     time = t0 + x / rate
 *
 * x is what an op moves or computes: bytes on the bus of a collective (alpha-beta), flop of a
 * product (then t0 x rate is the size at half of the full efficiency), bytes of a memory-bound
 * kernel. */
#ifndef DT_FIT_COST_CURVE_H
#define DT_FIT_COST_CURVE_H

#include "core/profile/profile_schema.h"

struct dt_curve_point {
    double x, ns, fitted_ns;
};
struct dt_curve {
    int device, dtype; /* of the table */
    int family, phase;
    int64_t gpus, gpus_per_node; /* of a collective; else 0 */
    bool flops;         /* x counts flop, else bytes (parameters for adamw, tokens for block) */
    double t0_ns, rate; /* rate per ns */
    double median_error, p90_error; /* of |fitted / measured - 1| */
    int n;
    struct dt_curve_point *point; /* [n] ascending in x */
};
struct dt_curves {
    struct dt_curve *curve;
    int n;
    size_t cap;
};

enum { DT_CURVE_POINTS_MIN = 4 };
/* Fits every (device, dtype, op, phase; GPUs of a collective; key of a block) with at least
 * DT_CURVE_POINTS_MIN sizes.  Relative residuals; bisquare weights (gsl_multifit_robust), then least
 * squares without what lies beyond three deviations, so outliers do not count; t0 is not negative.
 * Sorts the table. */
enum dt_status dt_curves_fit(struct dt_profile_table *t, struct dt_error *err,
                             struct dt_curves *out);
void dt_curves_free(struct dt_curves *c);
/* Residuals over x as SVG text for the caller to dt_free: fitted / measured, lines at 10 %. */
enum dt_status dt_curve_svg(const struct dt_profile_table *t, const struct dt_curve *c,
                            struct dt_error *err, char **out);

#endif
