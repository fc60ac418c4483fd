/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING. */
#include "fit/drift.h"

#include <math.h>
#include <stdio.h>

/* The larger over the smaller; 1 when one is not known. */
static double factor(double a, double b)
{
    return a > 0 && b > 0 ? fmax(a / b, b / a) : 1;
}

bool dt_drift_counts(const struct dt_drift *d)
{
    return d->steady >= DT_DRIFT_STEADY_MIN && !(d->foreign > DT_DRIFT_FOREIGN_MAX);
}

void dt_drift_reason(const struct dt_drift *d, char *buf, size_t size)
{
    if (d->foreign > DT_DRIFT_FOREIGN_MAX)
        snprintf(buf, size, "other work took %.0f %% of the cores' time (at most %.0f %%)",
                 100 * d->foreign, 100 * DT_DRIFT_FOREIGN_MAX);
    else
        snprintf(buf, size,
                 "the machine kept its speed in %.0f %% of the repeats (at least %.0f %%)",
                 100 * d->steady, 100 * DT_DRIFT_STEADY_MIN);
}

double dt_drift_move(double time_s, const struct dt_drift *here, const struct dt_drift *there)
{
    return here->reference_s > 0 && there->reference_s > 0
               ? time_s * there->reference_s / here->reference_s
               : time_s;
}

double dt_drift_between(const double time_s[2], const struct dt_drift here[2],
                        const struct dt_drift *there)
{
    double x = dt_drift_move(time_s[0], &here[0], there),
           y = dt_drift_move(time_s[1], &here[1], there), span = here[1].at_s - here[0].at_s,
           w = span > 0 ? (there->at_s - here[0].at_s) / span : 0.5;

    w = fmin(fmax(w, 0), 1);
    return (1 - w) * x + w * y;
}

bool dt_drift_agree(const double time_s[2], const struct dt_drift here[2],
                    const struct dt_drift *there)
{
    return factor(dt_drift_move(time_s[0], &here[0], there),
                  dt_drift_move(time_s[1], &here[1], there)) <= DT_DRIFT_PAIR_MAX;
}

bool dt_drift_holds(double predicted_s, double measured_s)
{
    return factor(predicted_s, measured_s) <= DT_DRIFT_PAIR_MAX;
}

int dt_drift_free_cores(int n, double busy)
{
    int m = n;

    while (m > 0 && busy - (n - m) > DT_DRIFT_FOREIGN_MAX * m)
        m--;
    return m;
}
