/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Convolution.  Tables have TF32 (H100, NCHW) and fp32 (A100); bf16 is derived as an implicit GEMM
 * of (output pixels, c_out, c_in k^2), its efficiency that of the GEMM times a ratio fitted where
 * conv was measured. */
#include "fit/profile_fit_priv.h"

#include <gsl/gsl_sort_double.h>
#include <gsl/gsl_statistics_double.h>
#include <math.h>
#include <string.h>

static const int grid_pixels[] = {64, 256, 1024, 4096, 16384, 65536, 262144};
static const int grid_channels[] = {4, 64, 128, 320, 640, 1280, 2560};
static const struct {
    int kernel, stride;
} grid_kernel[] = {{1, 1}, {3, 1}, {3, 2}};
static const int grid_fp32_pixels[] = {256, 1024, 4096, 16384, 65536};
static const int grid_fp32_channels[] = {64, 256, 1024};
#define COUNT(a) ((int)(sizeof(a) / sizeof((a)[0])))

struct ratio { /* exp of quantiles of ln(time of conv as share of peak / time of GEMM as share of
                  peak) */
    double median, lo, hi, backward; /* backward: measured backward / forward, 0 if none */
    size_t n;
};

/* TF32 convolutions of a training step on the H100, against our bf16 GEMM surface, each relative to
 * its own peak. Layers of at least 64 input channels: the first, of 3, is memory-bound. */
static enum dt_status fit_ratio(struct dt_fit *f, struct ratio *out)
{
    enum { MAX = 128 };
    double y[MAX], fwd = 0, bwd = 0;
    size_t n = 0;

    for (size_t i = 0; n < MAX && (i = dt_fit_next(f, i, DT_FIT_H100, "tf32", DT_KOP_CONV2D,
                                                   DT_PHASE_FWD)) < f->in->n_rows;
         i++) {
        const struct dt_profile_row *r = &f->in->rows[i].r;
        double m = (double)r->d[0], no = (double)r->d[2], k = (double)(r->d[1] * r->d[3] * r->d[3]);
        struct dt_fit_estimate e;
        if (r->d[1] < 64)
            continue;
        dt_fit_gemm_h100(f, m, no, k, &e); /* each relative to its own peak */
        y[n++] = log(r->median_ns * f->h100->tf32_flops_per_ns / (e.ns * f->h100->flops_per_ns));
    }
    if (n < 4)
        return dt_fit_missing(f, DT_FIT_H100, "TF32 convolutions", "triosim-conv");
    for (size_t i = 0;
         (i = dt_fit_next(f, i, DT_FIT_H100, "tf32", DT_KOP_CONV2D, DT_PHASE_BWD)) < f->in->n_rows;
         i++)
        for (size_t j = 0; (j = dt_fit_next(f, j, DT_FIT_H100, "tf32", DT_KOP_CONV2D,
                                            DT_PHASE_FWD)) < f->in->n_rows;
             j++)
            if (memcmp(f->in->rows[i].r.d, f->in->rows[j].r.d, sizeof f->in->rows[i].r.d) == 0) {
                bwd += f->in->rows[i].r.median_ns;
                fwd += f->in->rows[j].r.median_ns;
            }
    gsl_sort(y, 1, n);
    out->n = n;
    out->median = exp(gsl_stats_median_from_sorted_data(y, 1, n));
    out->lo = exp(gsl_stats_quantile_from_sorted_data(y, 1, n, 0.1)) / out->median;
    out->hi = exp(gsl_stats_quantile_from_sorted_data(y, 1, n, 0.9)) / out->median;
    out->backward = fwd > 0 ? bwd / fwd : 0;
    struct dt_fit_local_score s = {.n = n};
    double e[MAX];
    for (size_t i = 0; i < n; i++)
        e[i] = fabs(out->median / exp(y[i]) - 1);
    gsl_sort(e, 1, n);
    s.mean = gsl_stats_mean(e, 1, n);
    s.median = gsl_stats_median_from_sorted_data(e, 1, n);
    s.p90 = gsl_stats_quantile_from_sorted_data(e, 1, n, 0.9);
    dt_fit_add_score(f, "conv2d: implicit GEMM x ratio, TF32 (in sample)", &s);
    return DT_OK;
}

static enum dt_status resample_bf16(struct dt_fit *f, const struct ratio *ratio, const int *source)
{
    for (int phase = 0; phase < DT_PHASE_N; phase++)
        for (int a = 0; a < COUNT(grid_pixels); a++)
            for (int b = 0; b < COUNT(grid_channels); b++)
                for (int c = 0; c < COUNT(grid_channels); c++)
                    for (int k = 0; k < COUNT(grid_kernel); k++) {
                        int kernel = grid_kernel[k].kernel, p = grid_pixels[a],
                            ci = grid_channels[b], co = grid_channels[c];
                        double depth = (double)ci * kernel * kernel;
                        struct dt_fit_row row = {DT_KOP_CONV2D,
                                                 phase,
                                                 phase ? DT_ROW_ASSUMED : DT_ROW_DERIVED,
                                                 source[phase != 0],
                                                 f->out_bf16,
                                                 {p, ci, co, kernel, grid_kernel[k].stride},
                                                 0};
                        struct dt_fit_estimate e;
                        dt_fit_gemm_time(f, phase, p, co, depth, &e);
                        if (kernel > 1) { /* 1 x 1 is a GEMM */
                            e.ns *= ratio->median;
                            e.lo *= ratio->lo;
                            e.hi *= ratio->hi;
                            /* TF32's backward took longer against its forward than two GEMMs do. */
                            if (phase)
                                e.hi *= fmax(ratio->backward / 2, 1);
                        }
                        if (grid_kernel[k].stride > 1)
                            e.hi *= 1.3; /* assumed: no strided convolution in any table */
                        row.floor_ns = 2.0 * p * co * depth / f->dev->flops_per_ns;
                        DT_TRY(dt_fit_emit(f, &row, &e));
                    }
    return DT_OK;
}

/* fp32 without tensor cores, 3 x 3, stride 1: as measured, on our grid.  Peak 19.5 TFLOP/s
 * (published). */
static enum dt_status fp32(struct dt_fit *f)
{
    static const double peak = 19.5e3;
    const struct dt_fit_from from = {DT_FIT_A100_PCIE, "fp32", DT_KOP_CONV2D, DT_PHASE_FWD};
    struct dt_fit_local l = {.dim = 3, .near = 32};
    enum dt_status status = DT_OK;
    int source;

    for (size_t i = 0;
         status == DT_OK && (i = dt_fit_next(f, i, DT_FIT_A100_PCIE, "fp32", DT_KOP_CONV2D,
                                             DT_PHASE_FWD)) < f->in->n_rows;
         i++) {
        const struct dt_profile_row *r = &f->in->rows[i].r;
        double work = 18.0 * (double)r->d[0] * (double)r->d[1] * (double)r->d[2];
        double x[3] = {log2((double)r->d[0]), log2((double)r->d[1]), log2((double)r->d[2])};
        const long long key[3] = {r->d[0], r->d[1], r->d[2]};
        if (r->d[3] == 3 && r->d[4] == 1)
            status = dt_fit_local_add(&l, x, log(r->median_ns / (5000 + work / peak)),
                                      dt_fit_local_fold(key, 3), f->err);
    }
    if (status == DT_OK && l.n >= 100) {
        status = dt_fit_score(f, "conv2d fp32 fwd (5 folds)", &l, 1000);
        if (status == DT_OK)
            status = dt_fit_source(
                f, "fit: fp32 convolution",
                "3x3 stride 1 without TF32, A100 PCIe; Winograd may beat the direct flop peak",
                &from, 1, &source);
        for (int a = 0; status == DT_OK && a < COUNT(grid_fp32_pixels); a++)
            for (int b = 0; status == DT_OK && b < COUNT(grid_fp32_channels); b++)
                for (int c = 0; status == DT_OK && c < COUNT(grid_fp32_channels); c++) {
                    int p = grid_fp32_pixels[a], ci = grid_fp32_channels[b],
                        co = grid_fp32_channels[c];
                    double x[3] = {log2(p), log2(ci), log2(co)};
                    struct dt_fit_row row = {DT_KOP_CONV2D,
                                             DT_PHASE_FWD,
                                             DT_ROW_DERIVED,
                                             source,
                                             f->out_fp32,
                                             {p, ci, co, 3, 1},
                                             0};
                    struct dt_fit_local_value v;
                    struct dt_fit_estimate e;
                    dt_fit_local_eval(&l, x, -1, &v);
                    e = (struct dt_fit_estimate){exp(v.y) * (5000 + 18.0 * p * ci * co / peak),
                                                 exp(v.lo), exp(v.hi), v.n};
                    status = dt_fit_emit(f, &row, &e);
                }
    }
    dt_fit_local_free(&l);
    return status;
}

enum dt_status dt_fit_conv(struct dt_fit *f)
{
    const struct dt_fit_from from[] = {{f->dev->base, "bf16", DT_KOP_GEMM, DT_PHASE_FWD},
                                       {DT_FIT_H100, "tf32", DT_KOP_CONV2D, DT_PHASE_FWD},
                                       {DT_FIT_A100_PCIE, "bf16", DT_KOP_GEMM, DT_PHASE_DGRAD}};
    struct ratio ratio;
    int source[2];

    DT_TRY(fit_ratio(f, &ratio));
    DT_TRY(dt_fit_source(
        f, "fit: bf16 convolution forward",
        "implicit GEMM x ratio of TF32 conv (share of TF32 peak) to bf16 GEMM (share of bf16 peak)",
        from, 2, &source[0]));
    DT_TRY(dt_fit_source(
        f, "fit: bf16 convolution gradients",
        "implicit GEMM's gradients x the forward's ratio; TF32 NCHW measured 3.7 x forward: in p90",
        from, 3, &source[1]));
    DT_TRY(resample_bf16(f, &ratio, source));
    return strcmp(f->dev->base, DT_FIT_A100) == 0 ? fp32(f) : DT_OK;
}
