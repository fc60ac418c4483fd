/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * How many times as fast one way of doing the same work is as another, and within what that is known, from times taken in
 * turns on a machine whose speed changes.  Pure functions of the numbers.
 *
 * In every round each step is done once in every order, one right after the other.  Of round r, step i and order k
 *
 *     log time = level(i) + order(i, k) + speed(r, i) + beta log reference(r, i, k) + noise
 *
 * where speed(r, i) is what the machine did to all orders of this step alike, and the reference kernel (comm/reference.h)
 * follows it from order to order, as far as it does: beta, from 0 to 1, is what leaves the least noise.  order(i, k) is the
 * mean over rounds of what is left, each round's bounded to 2.5 standard deviations (by their median absolute value) of
 * the median, so that a step in which the speed flipped counts for little (Huber 1964, one step). */
#ifndef DT_FIT_GAIN_H
#define DT_FIT_GAIN_H

#include "base/status.h"

#include <stdbool.h>

struct dt_fit_turns {
    int rounds, steps, orders;
    const double *time_s;      /* [rounds][steps][orders], each > 0 */
    const double *reference_s; /* likewise; NULL: not known */
};

struct dt_fit_gain {
    double gain;   /* of what all steps take in the first order over what they take in this one */
    double within; /* of it, with a probability of 95 %; INFINITY where nothing says so */
};
/* out[orders], the first 1 within 0.  The uncertainty is that of leaving out one round after the other (the jackknife) and
 * Student's t of their number less one. */
enum dt_status dt_fit_gains(const struct dt_fit_turns *t, struct dt_error *err,
                            struct dt_fit_gain *out);
/* A prediction and a measurement of one gain: how far the first is above the second, and within what that is known. */
struct dt_fit_apart {
    double apart, within;
};
struct dt_fit_apart dt_fit_gain_apart(const struct dt_fit_gain *predicted,
                                      const struct dt_fit_gain *measured);
/* A gain is predicted well if it is within 3 points of the measured one; whoever compares measures until each of the two is
 * known within half of that, and says nothing where both together are not known within it (doc/loop.md). */
#define DT_FIT_GAIN_TARGET 0.03
#define DT_FIT_GAIN_AIM 0.015
/* Beyond the target even if both are wrong by as much as they may be. */
bool dt_fit_gain_missed(const struct dt_fit_apart *a);

/* The geometric mean of n >= 1 values of one gain that know nothing of each other, and Student's uncertainty of it. */
void dt_fit_gain_mean(const double *gain, int n, struct dt_fit_gain *out);

#endif
