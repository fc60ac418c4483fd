/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Errors of a table. */
#include "fit/accuracy.h"

#include "base/mem.h"

#include <gsl/gsl_sort.h>
#include <gsl/gsl_statistics_double.h>
#include <math.h>

enum dt_status dt_accuracy_summary(const struct dt_accuracy_row *rows, int n, struct dt_error *err,
                                   struct dt_accuracy *out)
{
    double *abs_error = dt_malloc((size_t)(n > 0 ? n : 1) * sizeof *abs_error);
    struct dt_accuracy a = {0};

    if (!abs_error)
        return dt_error_nomem(err, "errors of a table");
    for (int i = 0; i < n; i++) {
        const struct dt_accuracy_row *r = &rows[i];
        double e;

        if (!(r->measured_s > 0))
            continue;
        e = r->predicted_s / r->measured_s - 1;
        abs_error[a.n++] = fabs(e);
        a.bias += e;
        a.cover80 += r->measured_s >= r->p10_s && r->measured_s <= r->p90_s;
    }
    if (a.n > 0) {
        gsl_sort(abs_error, 1, (size_t)a.n);
        a.mape = gsl_stats_mean(abs_error, 1, (size_t)a.n);
        a.median = gsl_stats_quantile_from_sorted_data(abs_error, 1, (size_t)a.n, 0.5);
        a.p90 = gsl_stats_quantile_from_sorted_data(abs_error, 1, (size_t)a.n, 0.9);
        a.max = abs_error[a.n - 1];
        a.bias /= a.n;
        a.cover80 /= a.n;
    }
    dt_free(abs_error);
    *out = a;
    return DT_OK;
}
