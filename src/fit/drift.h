/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Measuring on a machine whose speed drifts and that others use, too.
 *
 * A reference kernel, always the same work (comm/reference.h), runs between the repeats of each measurement.  Its times say
 * how fast the machine was then, what is measured is brought to one of these speeds, and a time predicted from one
 * measurement is brought to the speed of another:
 *
 *     time there = time here x reference there / reference here
 *
 * Repeats in which the speed changed are left out.  A measurement counts only if most of its repeats are left and others
 * left the machine alone meanwhile. */
#ifndef DT_FIT_DRIFT_H
#define DT_FIT_DRIFT_H

#include <stdbool.h>
#include <stddef.h>

/* Bounds of a measurement that counts; doc/loop.md has what they rest on. */
#define DT_DRIFT_STEADY_MIN 0.5   /* of the repeats, at one speed from beginning to end */
#define DT_DRIFT_FOREIGN_MAX 0.06 /* of the cores' time, taken by others */
/* Predictions of one time from two measurements may differ by this factor. */
#define DT_DRIFT_PAIR_MAX 1.20

struct dt_drift {       /* of one measurement */
    double reference_s; /* the reference kernel's time at its speed; 0 = not known */
    double steady;      /* share of its repeats that are left */
    double foreign;     /* share of the cores' time that others took; < 0 = not known */
    double at_s;        /* its middle, on any clock */
};
bool dt_drift_counts(const struct dt_drift *d);
/* Why it does not: "others took 41 % of the cores' time (at most 15 %)". */
void dt_drift_reason(const struct dt_drift *d, char *buf, size_t size);

/* time_s, predicted from what was measured at `here`, at the machine's speed `there`; unchanged
 * where a reference is not known. */
double dt_drift_move(double time_s, const struct dt_drift *here, const struct dt_drift *there);
/* The same from the measurements before and after, each weighted by how near it is in time. */
double dt_drift_between(const double time_s[2], const struct dt_drift here[2],
                        const struct dt_drift *there);
/* Do the two agree? */
bool dt_drift_agree(const double time_s[2], const struct dt_drift here[2],
                    const struct dt_drift *there);
/* Does what is predicted of one rank alone, which waits for nobody, come to what it took?  If it does not, blocks and steps did
 * not run at one speed, whatever the reference kernel says, or costs of one rank are wrong: then so are all others. */
bool dt_drift_holds(double predicted_s, double measured_s);

/* How many of n cores can be measured on when others keep `busy` cores' worth of them at work: as
 * many as leave these others all the rest and no more than DT_DRIFT_FOREIGN_MAX of themselves. */
int dt_drift_free_cores(int n, double busy);

#endif
