/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * GEMM: the forward surface from a dense table, the gradients from it by a fitted ratio. */
#include "fit/profile_fit_priv.h"

#include <gsl/gsl_multifit.h>
#include <gsl/gsl_sort_double.h>
#include <gsl/gsl_statistics_double.h>
#include <math.h>
#include <string.h>

/* The grid: powers of two, finer around the sizes where tensor cores fill up. */
static const int grid_m[] = {1,    16,   32,   64,   128,   256,   512,
                             1024, 2048, 4096, 8192, 16384, 32768, 65536};
static const int grid_nk[] = {64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384, 32768, 65536};

/* Spread between serving stacks on identical large shapes: SGLang, whose table this is, takes 8.9 %
 * longer than vLLM in the median (derived from the published tables).  It widens p10; p90 gets the
 * half of it. */
static const double stack_lo = 1 / 1.089, stack_hi = 1.045;

double dt_fit_gemm_model(const struct dt_fit_device *dev, double m, double n, double k)
{
    return dev->launch_ns + 2 * m * n * k / dev->flops_per_ns +
           2 * (m * k + k * n + m * n) / dev->hbm_bytes_per_ns;
}

static void log_shape(double m, double n, double k, double *x)
{
    x[0] = log2(m);
    x[1] = log2(n);
    x[2] = log2(k);
}

/* Rows of unaligned m above 64 measure tile quantisation (3-15 % in the median, derived) of decode
 * batches, which training shapes do not have: left out. */
static enum dt_status load(struct dt_fit *f, const struct dt_fit_device *dev,
                           struct dt_fit_local *l)
{
    l->dim = 3;
    l->near = 24;
    for (size_t i = 0;
         (i = dt_fit_next(f, i, dev->name, "bf16", DT_KOP_GEMM, DT_PHASE_FWD)) < f->in->n_rows;
         i++) {
        const struct dt_profile_row *r = &f->in->rows[i].r;
        double m = (double)r->d[0], n = (double)r->d[1], k = (double)r->d[2], x[3];
        const char *origin = f->in->sources[r->source].origin;
        if (r->d[0] > 64 && r->d[0] % 16 != 0)
            continue;
        if (!strstr(origin, "aiconfigurator")) /* the others are for checking against */
            continue;
        const long long key[2] = {r->d[1], r->d[2]};
        log_shape(m, n, k, x);
        DT_TRY(dt_fit_local_add(l, x, log(r->median_ns / dt_fit_gemm_model(dev, m, n, k)),
                                dt_fit_local_fold(key, 2), f->err));
    }
    return l->n >= 1000 ? DT_OK
                        : dt_fit_missing(f, dev->name, "at least 1000 GEMM rows", "aic-gemm");
}

static void surface(const struct dt_fit_local *l, const struct dt_fit_device *dev, double m,
                    double n, double k, struct dt_fit_estimate *e)
{
    struct dt_fit_local_value v;
    double x[3];

    log_shape(m, n, k, x);
    dt_fit_local_eval(l, x, -1, &v);
    e->ns = exp(v.y) * dt_fit_gemm_model(dev, m, n, k);
    e->lo = fmin(exp(v.lo), stack_lo);
    e->hi = fmax(exp(v.hi), stack_hi);
    e->n = v.n;
}

/* The GEMM that a phase of y[m,n] = x[m,k] w[k,n] runs. */
static void phase_shape(int phase, double m, double n, double k, double *g)
{
    g[0] = phase == DT_PHASE_WGRAD ? n : m;
    g[1] = phase == DT_PHASE_FWD ? n : k;
    g[2] = phase == DT_PHASE_FWD ? k : phase == DT_PHASE_DGRAD ? n : m;
}

enum { RATIO_PARAMS = 6 };

static void ratio_row(int phase, double log_flops, double *row)
{
    memset(row, 0, RATIO_PARAMS * sizeof *row);
    row[2 * phase] = 1;
    row[2 * phase + 1] = log_flops;
}

/* ln(t / surface) = a_phase + b_phase log2(flops): what a phase costs more than the forward of the
 * same table is then the difference to a_fwd, b_fwd, so that the other card's clock and stack
 * cancel. */
static enum dt_status fit_ratio(struct dt_fit *f)
{
    enum { MAX = 512 };
    double x[MAX * RATIO_PARAMS], y[MAX], c[RATIO_PARAMS], cov[RATIO_PARAMS * RATIO_PARAMS], chi2,
        err[MAX];
    int n = 0, per_phase[3] = {0, 0, 0};

    f->gemm_ratio_range[0] = INFINITY;
    f->gemm_ratio_range[1] = -INFINITY;
    for (int phase = 0; phase < DT_PHASE_N; phase++)
        for (size_t i = 0; n < MAX && (i = dt_fit_next(f, i, DT_FIT_A100_PCIE, "bf16", DT_KOP_GEMM,
                                                       phase)) < f->in->n_rows;
             i++, n++) {
            const struct dt_profile_row *r = &f->in->rows[i].r;
            struct dt_fit_estimate e;
            double g[3], work = log2(2.0 * (double)r->d[0] * (double)r->d[1] * (double)r->d[2]);
            phase_shape(phase, (double)r->d[0], (double)r->d[1], (double)r->d[2], g);
            surface(&f->gemm_a100, f->a100, g[0], g[1], g[2], &e);
            y[n] = log(r->median_ns / e.ns);
            ratio_row(phase, work, x + n * RATIO_PARAMS);
            per_phase[phase]++;
            f->gemm_ratio_range[0] = fmin(f->gemm_ratio_range[0], work);
            f->gemm_ratio_range[1] = fmax(f->gemm_ratio_range[1], work);
        }
    if (per_phase[0] < 5 || per_phase[1] < 5 || per_phase[2] < 5)
        return dt_fit_missing(f, DT_FIT_A100_PCIE, "GEMM rows of all three phases", "simumax-gemm");
    gsl_matrix_view mx = gsl_matrix_view_array(x, (size_t)n, RATIO_PARAMS);
    gsl_vector_view vy = gsl_vector_view_array(y, (size_t)n),
                    vc = gsl_vector_view_array(c, RATIO_PARAMS);
    gsl_matrix_view mc = gsl_matrix_view_array(cov, RATIO_PARAMS, RATIO_PARAMS);
    gsl_multifit_linear_workspace *w = gsl_multifit_linear_alloc((size_t)n, RATIO_PARAMS);
    if (!w)
        return dt_error_nomem(f->err, "a linear fit");
    int rc = gsl_multifit_linear(&mx.matrix, &vy.vector, &vc.vector, &mc.matrix, &chi2, w);
    if (rc)
        (void)dt_error_set(f->err, DT_ERR_INTERNAL, "the gradient ratio fit failed");
    /* Leave-one-out residuals from the hat matrix: e_i / (1 - h_i), h_i = x_i' cov x_i / s2. */
    double s2 = chi2 / (n - RATIO_PARAMS);
    for (int i = 0; i < n && !rc; i++) {
        double h = 0, fit = 0;
        for (int a = 0; a < RATIO_PARAMS; a++) {
            fit += c[a] * x[i * RATIO_PARAMS + a];
            for (int b = 0; b < RATIO_PARAMS; b++)
                h += x[i * RATIO_PARAMS + a] * x[i * RATIO_PARAMS + b] * cov[a * RATIO_PARAMS + b] /
                     s2;
        }
        err[i] = fabs(exp((fit - y[i]) / fmax(1 - h, 0.1)) - 1);
    }
    gsl_multifit_linear_free(w);
    if (rc)
        return DT_ERR_INTERNAL;
    gsl_sort(err, 1, (size_t)n);
    struct dt_fit_local_score s = {.n = (size_t)n,
                                   .mean = gsl_stats_mean(err, 1, (size_t)n),
                                   .median = gsl_stats_median_from_sorted_data(err, 1, (size_t)n),
                                   .p90 =
                                       gsl_stats_quantile_from_sorted_data(err, 1, (size_t)n, 0.9)};
    dt_fit_add_score(f, "gemm gradients vs forward surface (leave one out)", &s);
    f->gemm_ratio_spread = sqrt(s2);
    for (int p = 0; p < 3; p++)
        for (int k = 0; k < 2; k++)
            f->gemm_ratio[p][k] = c[2 * p + k];
    return DT_OK;
}

void dt_fit_gemm_time(const struct dt_fit *f, int phase, double m, double n, double k,
                      struct dt_fit_estimate *e)
{
    double g[3];

    phase_shape(phase, m, n, k, g);
    surface(&f->gemm, f->dev, g[0], g[1], g[2], e);
    if (phase == DT_PHASE_FWD)
        return;
    double w = log2(2 * m * n * k);
    w = fmin(fmax(w, f->gemm_ratio_range[0]), f->gemm_ratio_range[1]);
    e->ns *= exp(f->gemm_ratio[phase][0] - f->gemm_ratio[0][0] +
                 (f->gemm_ratio[phase][1] - f->gemm_ratio[0][1]) * w);
    /* The weight gradient accumulates in fp32: its output is read and written at 4 bytes. */
    if (phase == DT_PHASE_WGRAD)
        e->ns = fmax(e->ns,
                     f->dev->launch_ns + (8 * n * k + 2 * m * (n + k)) / f->dev->hbm_bytes_per_ns);
    e->lo *= exp(-f->gemm_ratio_spread);
    e->hi *= exp(f->gemm_ratio_spread);
}

void dt_fit_gemm_h100(const struct dt_fit *f, double m, double n, double k,
                      struct dt_fit_estimate *e)
{
    surface(&f->gemm_h100, f->h100, m, n, k, e);
}

/* Other tables of the same card as an independent check. */
static void check_against(struct dt_fit *f, const char *origin, const char *what)
{
    enum { MAX = 16384 };
    static const double min_flops = 1e10; /* below, launch overhead and timer resolution rule */
    double err[MAX];
    size_t n = 0;

    for (size_t i = 0; n < MAX && (i = dt_fit_next(f, i, f->dev->base, "bf16", DT_KOP_GEMM,
                                                   DT_PHASE_FWD)) < f->in->n_rows;
         i++) {
        const struct dt_profile_row *r = &f->in->rows[i].r;
        double m = (double)r->d[0], nn = (double)r->d[1], k = (double)r->d[2];
        struct dt_fit_estimate e;
        if (!strstr(f->in->sources[r->source].origin, origin) || 2 * m * nn * k < min_flops)
            continue;
        surface(&f->gemm, f->dev, m, nn, k, &e);
        err[n++] = fabs(e.ns / r->median_ns - 1);
    }
    if (n == 0)
        return;
    gsl_sort(err, 1, n);
    struct dt_fit_local_score s = {.n = n,
                                   .mean = gsl_stats_mean(err, 1, n),
                                   .median = gsl_stats_median_from_sorted_data(err, 1, n),
                                   .p90 = gsl_stats_quantile_from_sorted_data(err, 1, n, 0.9)};
    dt_fit_add_score(f, what, &s);
}

static enum dt_status resample(struct dt_fit *f, int phase, int kind, int source)
{
    const int n_m = sizeof grid_m / sizeof grid_m[0], n_nk = sizeof grid_nk / sizeof grid_nk[0];

    for (int a = 0; a < n_m; a++)
        for (int b = 0; b < n_nk; b++)
            for (int c = 0; c < n_nk; c++) {
                struct dt_fit_row row = {DT_KOP_GEMM,
                                         phase,
                                         kind,
                                         source,
                                         f->out_bf16,
                                         {grid_m[a], grid_nk[b], grid_nk[c]},
                                         0};
                struct dt_fit_estimate e;
                row.floor_ns = 2.0 * grid_m[a] * grid_nk[b] * grid_nk[c] / f->dev->flops_per_ns;
                dt_fit_gemm_time(f, phase, grid_m[a], grid_nk[b], grid_nk[c], &e);
                DT_TRY(dt_fit_emit(f, &row, &e));
            }
    return DT_OK;
}

enum dt_status dt_fit_gemm(struct dt_fit *f)
{
    const struct dt_fit_from fwd = {f->dev->base, "bf16", DT_KOP_GEMM, DT_PHASE_FWD};
    const struct dt_fit_from grad[] = {fwd,
                                       {DT_FIT_A100_PCIE, "bf16", DT_KOP_GEMM, DT_PHASE_DGRAD}};
    int source;

    DT_TRY(load(f, dt_fit_find_device(f->dev->base), &f->gemm));
    DT_TRY(load(f, f->a100, &f->gemm_a100));
    DT_TRY(load(f, f->h100, &f->gemm_h100));
    DT_TRY(dt_fit_score(f, "gemm fwd (5 folds by n,k)", &f->gemm, 2000));
    DT_TRY(fit_ratio(f));
    check_against(f, "vidur", "gemm fwd against Vidur's layer ops (not fitted)");
    DT_TRY(dt_fit_source(f, "fit: gemm forward",
                         "local log-linear fit of the table, aligned m; p10 also covers the 8.9 % "
                         "between serving stacks",
                         &fwd, 1, &source));
    DT_TRY(resample(f, DT_PHASE_FWD, DT_ROW_FITTED, source));
    DT_TRY(dt_fit_source(f, "fit: gemm gradients",
                         "forward surface at the gradient's shape x ratio fitted on A100 PCIe, "
                         "wgrad accumulates in fp32",
                         grad, 2, &source));
    DT_TRY(resample(f, DT_PHASE_DGRAD, DT_ROW_DERIVED, source));
    return resample(f, DT_PHASE_WGRAD, DT_ROW_DERIVED, source);
}
