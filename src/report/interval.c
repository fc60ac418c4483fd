/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Families of errors, how far they are off, how they hang together, and the interval of a run. */
#include "report/explain.h"

#include "base/mem.h"

#include <gsl/gsl_linalg.h>
#include <gsl/gsl_randist.h>
#include <gsl/gsl_rng.h>
#include <gsl/gsl_sort.h>
#include <gsl/gsl_statistics_double.h>
#include <math.h>

const char *const dt_report_error_family_names[DT_ERRF_N + 1] = {
    "gemm", "attention", "memory-bound", "collective", "p2p", "host", NULL,
};

/* From the tables the rows were fitted on (doc/formats.md), as standard deviations of the
 * logarithm: GEMM 0.07, serving stacks differ by 8.9 % in the median on one shape; attention 0.10,
 * backward over forward on eight points, 15 % at most; memory-bound 0.12, 8.5 % hold-out and one
 * width per table; collectives 0.10, 4 % hold-out and tables that differ; between pairs 0.10; host
 * 0.10, assumed: host processors differ more than GPUs. */
const double dt_report_error_sigma[DT_ERRF_N] = {0.07, 0.10, 0.12, 0.10, 0.10, 0.10};

/* Assumed: kernels of one GPU share its clock, and GEMM and attention its tensor cores and
 * libraries; collectives and transfers share links.  Positive definite (a test). */
const double dt_report_error_correlation[DT_ERRF_N][DT_ERRF_N] = {
    /*               gemm  attn  mem   coll  p2p   host */
    [DT_ERRF_GEMM] = {1.0, 0.5, 0.2, 0.0, 0.0, 0.0},
    [DT_ERRF_ATTENTION] = {0.5, 1.0, 0.2, 0.0, 0.0, 0.0},
    [DT_ERRF_MEMORY_BOUND] = {0.2, 0.2, 1.0, 0.0, 0.0, 0.0},
    [DT_ERRF_COLLECTIVE] = {0.0, 0.0, 0.0, 1.0, 0.5, 0.2},
    [DT_ERRF_P2P] = {0.0, 0.0, 0.0, 0.5, 1.0, 0.2},
    [DT_ERRF_HOST] = {0.0, 0.0, 0.0, 0.2, 0.2, 1.0},
};

enum dt_report_error_family dt_report_error_family_of(int op_family)
{
    switch ((enum dt_kop_family)op_family) {
    case DT_KOP_GEMM:
    case DT_KOP_CONV2D:
        return DT_ERRF_GEMM;
    case DT_KOP_ATTN_CAUSAL:
    case DT_KOP_ATTN_FULL:
    case DT_KOP_ATTN_CROSS:
        return DT_ERRF_ATTENTION;
    case DT_KOP_ALL_REDUCE:
    case DT_KOP_ALL_GATHER:
    case DT_KOP_REDUCE_SCATTER:
    case DT_KOP_ALL_TO_ALL:
        return DT_ERRF_COLLECTIVE;
    case DT_KOP_SEND_RECV:
        return DT_ERRF_P2P;
    case DT_KOP_NORM:
    case DT_KOP_GROUPNORM:
    case DT_KOP_ACT:
    case DT_KOP_ADD:
    case DT_KOP_ROPE:
    case DT_KOP_EMBED:
    case DT_KOP_XENT:
    case DT_KOP_ADAMW:
    case DT_KOP_BLOCK:
    case DT_KOP_CPU_PREP:
    case DT_KOP_CARRY:
    case DT_KOP_FAMILY_N:
        break;
    }
    return DT_ERRF_MEMORY_BOUND;
}

struct draw {
    gsl_rng *rng;
    gsl_matrix *l; /* lower Cholesky factor of the correlation */
    gsl_vector *zero, *z;
    double *t;
};

static void draw_free(struct draw *d)
{
    if (d->rng)
        gsl_rng_free(d->rng);
    if (d->l)
        gsl_matrix_free(d->l);
    if (d->zero)
        gsl_vector_free(d->zero);
    if (d->z)
        gsl_vector_free(d->z);
    dt_free(d->t);
}

static bool draw_open(struct draw *d, uint64_t seed, int draws)
{
    d->rng = gsl_rng_alloc(gsl_rng_mt19937);
    d->l = gsl_matrix_alloc(DT_ERRF_N, DT_ERRF_N);
    d->zero = gsl_vector_calloc(DT_ERRF_N);
    d->z = gsl_vector_alloc(DT_ERRF_N);
    d->t = dt_malloc((size_t)draws * sizeof *d->t);
    if (!d->rng || !d->l || !d->zero || !d->z || !d->t)
        return false;
    for (size_t i = 0; i < DT_ERRF_N; i++)
        for (size_t j = 0; j < DT_ERRF_N; j++)
            gsl_matrix_set(d->l, i, j, dt_report_error_correlation[i][j]);
    gsl_linalg_cholesky_decomp1(d->l); /* positive definite: cannot fail */
    gsl_rng_set(d->rng, (unsigned long)seed);
    return true;
}

enum dt_status dt_report_error_interval(const double *times_s, int n, const double *share,
                                        const double *sigma, uint64_t seed, int draws,
                                        struct dt_error *err, double *p10_s, double *p90_s)
{
    struct draw d = {.rng = NULL};

    if (!draw_open(&d, seed, draws)) {
        draw_free(&d);
        return dt_error_nomem(err, "an interval");
    }
    for (int i = 0; i < draws; i++) {
        double sum = 1;

        gsl_ran_multivariate_gaussian(d.rng, d.zero, d.l, d.z);
        for (int f = 0; f < DT_ERRF_N; f++)
            sum += share[f] * (exp(sigma[f] * gsl_vector_get(d.z, (size_t)f)) - 1);
        d.t[i] = times_s[gsl_rng_uniform_int(d.rng, (unsigned long)n)] * sum;
    }
    gsl_sort(d.t, 1, (size_t)draws);
    *p10_s = gsl_stats_quantile_from_sorted_data(d.t, 1, (size_t)draws, 0.1);
    *p90_s = gsl_stats_quantile_from_sorted_data(d.t, 1, (size_t)draws, 0.9);
    draw_free(&d);
    return DT_OK;
}
