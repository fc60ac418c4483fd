/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Errors of a table, and the interval of a prediction. */
#include "core/accuracy.h"

#include "core/mem.h"

#include <gsl/gsl_randist.h>
#include <gsl/gsl_rng.h>
#include <gsl/gsl_sort.h>
#include <gsl/gsl_statistics_double.h>
#include <math.h>

const char *const dt_error_family_names[DT_ERRF_N + 1] = {
    "gemm", "attention", "memory-bound", "collective", "p2p", "host", NULL,
};

/* From the tables the rows were fitted on (doc/formats.md), as standard deviations of the
 * logarithm: GEMM 0.07, serving stacks differ by 8.9 % in the median on one shape; attention 0.10,
 * backward over forward on eight points, 15 % at most; memory-bound 0.12, 8.5 % hold-out and one
 * width per table; collectives 0.10, 4 % hold-out and tables that differ; between pairs 0.10; host
 * 0.10, assumed: host processors differ more than GPUs. */
const double dt_error_sigma[DT_ERRF_N] = {0.07, 0.10, 0.12, 0.10, 0.10, 0.10};

enum dt_error_family dt_error_family_of(int op_family)
{
    switch (op_family) {
    case DT_OP_GEMM:
    case DT_OP_CONV2D:
        return DT_ERRF_GEMM;
    case DT_OP_ATTN_CAUSAL:
    case DT_OP_ATTN_FULL:
    case DT_OP_ATTN_CROSS:
        return DT_ERRF_ATTENTION;
    case DT_OP_ALL_REDUCE:
    case DT_OP_ALL_GATHER:
    case DT_OP_REDUCE_SCATTER:
    case DT_OP_ALL_TO_ALL:
        return DT_ERRF_COLLECTIVE;
    case DT_OP_SEND_RECV:
        return DT_ERRF_P2P;
    default:
        return DT_ERRF_MEMORY_BOUND;
    }
}

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

enum dt_status dt_accuracy_interval(double time_s, const double *elasticity, uint64_t seed,
                                    int draws, struct dt_error *err, double *p10_s, double *p90_s)
{
    gsl_rng *rng = gsl_rng_alloc(gsl_rng_mt19937);
    double *t = dt_malloc((size_t)draws * sizeof *t);

    if (!rng || !t) {
        if (rng)
            gsl_rng_free(rng);
        dt_free(t);
        return dt_error_nomem(err, "an interval");
    }
    gsl_rng_set(rng, (unsigned long)seed);
    for (int i = 0; i < draws; i++) {
        double log_t = 0;

        for (int f = 0; f < DT_ERRF_N; f++)
            log_t += elasticity[f] * dt_error_sigma[f] * gsl_ran_ugaussian(rng);
        t[i] = time_s * exp(log_t);
    }
    gsl_sort(t, 1, (size_t)draws);
    *p10_s = gsl_stats_quantile_from_sorted_data(t, 1, (size_t)draws, 0.1);
    *p90_s = gsl_stats_quantile_from_sorted_data(t, 1, (size_t)draws, 0.9);
    gsl_rng_free(rng);
    dt_free(t);
    return DT_OK;
}
