/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Locally weighted linear regression (LOESS of degree 1) in up to four dimensions, with spread and
 * cross-validation.  The profile fit is built on it: y is the logarithm of a time over a simple
 * model of that time, x are logarithms of a shape. */
#ifndef DT_FIT_PROFILE_LOCAL_H
#define DT_FIT_PROFILE_LOCAL_H

#include "base/status.h"
#include <stddef.h>

enum { DT_LOCAL_MAX_DIM = 4, DT_LOCAL_MAX_NEAR = 64, DT_LOCAL_FOLDS = 5 };

struct dt_fit_local_point {
    double x[DT_LOCAL_MAX_DIM], y;
    int fold; /* 0..DT_LOCAL_FOLDS-1; points that resemble each other belong in one fold */
};
struct dt_fit_local {
    int dim, near; /* near: neighbours used, <= DT_LOCAL_MAX_NEAR */
    struct dt_fit_local_point *points;
    size_t n, cap;
    double min[DT_LOCAL_MAX_DIM], max[DT_LOCAL_MAX_DIM];
};
struct dt_fit_local_value {
    double y;      /* the estimate */
    double lo, hi; /* 10th and 90th percentile of the neighbours' residuals: lo <= 0 <= hi */
    int n;         /* neighbours used */
};
struct dt_fit_local_score { /* |exp(estimate - y) - 1| over held-out points */
    size_t n;
    double mean, median, p90;
};

/* A zeroed struct with dim and near set is an empty set of points. */
enum dt_status dt_fit_local_add(struct dt_fit_local *l, const double *x, double y, int fold,
                                struct dt_error *err);
void dt_fit_local_free(struct dt_fit_local *l);
/* Estimate at x, which is first moved into the points' bounding box (beyond it the ratio to the
 * model is kept). `skip_fold` -1 = use all.  The set must not be empty.  O(n). */
void dt_fit_local_eval(const struct dt_fit_local *l, const double *x, int skip_fold,
                       struct dt_fit_local_value *out);
/* k-fold cross-validation over at most `limit` points, evenly picked. */
enum dt_status dt_fit_local_validate(const struct dt_fit_local *l, size_t limit,
                                     struct dt_error *err, struct dt_fit_local_score *out);
/* The held-out errors behind it, of points with x[0] >= least, every step-th: at most `cap` into e[]. */
size_t dt_fit_local_errors(const struct dt_fit_local *l, size_t step, double least, double *e,
                           size_t cap);
/* Statistics of n errors, which are sorted in place; n may be 0. */
void dt_fit_local_score(double *e, size_t n, struct dt_fit_local_score *out);
/* Fold of a group of points named by integers. */
int dt_fit_local_fold(const long long *key, int n);

#endif
