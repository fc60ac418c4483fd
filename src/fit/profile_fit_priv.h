/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Shared by the parts of the profile fit; nobody else includes it. */
#ifndef DT_FIT_PROFILE_FIT_PRIV_H
#define DT_FIT_PROFILE_FIT_PRIV_H

#include "fit/profile_fit.h"

#define DT_FIT_A100 "A100-SXM4-80GB"
#define DT_FIT_A800 "A800-SXM4-80GB"
#define DT_FIT_H100 "H100-SXM5-80GB"
#define DT_FIT_A100_PCIE "A100-PCIe-80GB"

struct dt_fit_device {
    const char *name, *base;  /* base: whose kernels it has */
    double flops_per_ns;      /* dense bf16 peak */
    double tf32_flops_per_ns; /* dense TF32 peak */
    double hbm_bytes_per_ns;  /* published HBM bandwidth */
    double launch_ns;         /* floor of the time model; the fit corrects it */
    double nvlink_slowdown;   /* of the bandwidth part, against base */
};

/* A fitted surface: ln(time / model) over log2 of the shape. */
struct dt_fit_estimate {
    double ns, lo, hi; /* hi, lo: factors of p90 and p10 */
    int n;
};

struct dt_fit {
    const struct dt_profile_table *in;
    struct dt_profile_table *out;
    struct dt_error *err;
    const struct dt_fit_device *dev;
    int out_device, out_bf16, out_any, out_fp32;
    struct dt_fit_report *report;
    struct dt_fit_local gemm;      /* of dev->base */
    struct dt_fit_local gemm_a100; /* reference of the gradients' ratio, which only the A100 has */
    /* reference of the convolutions' ratio, which only the H100 has */
    struct dt_fit_local gemm_h100;
    const struct dt_fit_device *a100, *h100;
    double gemm_ratio[3][3];    /* per phase: intercept, slope over log2(flops), of ln(time / A100
                                   surface) */
    double gemm_ratio_range[2]; /* log2(flops) seen */
    double gemm_ratio_spread;   /* residual, ln */
};

const struct dt_fit_device *dt_fit_find_device(const char *name);

/* Walks measured rows: next index >= i that matches, or n_rows. */
size_t dt_fit_next(const struct dt_fit *f, size_t i, const char *device, const char *dtype,
                   int family, int phase);
enum dt_status dt_fit_missing(struct dt_fit *f, const char *device, const char *what,
                              const char *importer);
enum dt_status dt_fit_score(struct dt_fit *f, const char *what, const struct dt_fit_local *l,
                            size_t limit);
void dt_fit_add_score(struct dt_fit *f, const char *what, const struct dt_fit_local_score *s);

/* A source of derived rows: its origin is that of the measured rows (device, dtype, family) named,
 * up to three. */
struct dt_fit_from {
    const char *device, *dtype;
    int family, phase;
};
enum dt_status dt_fit_source(struct dt_fit *f, const char *name, const char *note,
                             const struct dt_fit_from *from, int n_from, int *out);

struct dt_fit_row {
    int family, phase, kind, source, dtype;
    int64_t d[6];
    double floor_ns; /* the device's peak: no statistic goes below it */
};
/* Rounds to whole ns and appends. */
enum dt_status dt_fit_emit(struct dt_fit *f, const struct dt_fit_row *row,
                           const struct dt_fit_estimate *e);

/* profile_fit_gemm.c */
double dt_fit_gemm_model(const struct dt_fit_device *dev, double m, double n, double k);
void dt_fit_gemm_time(const struct dt_fit *f, int phase, double m, double n, double k,
                      struct dt_fit_estimate *e);
/* Forward on the H100, whatever device is fitted. */
void dt_fit_gemm_h100(const struct dt_fit *f, double m, double n, double k,
                      struct dt_fit_estimate *e);
enum dt_status dt_fit_gemm(struct dt_fit *f);
/* profile_fit_attn.c */
enum dt_status dt_fit_attention(struct dt_fit *f);
/* profile_fit_mem.c, profile_fit_comm.c, profile_fit_conv.c */
enum dt_status dt_fit_pointwise(struct dt_fit *f);
enum dt_status dt_fit_collectives(struct dt_fit *f);
enum dt_status dt_fit_conv(struct dt_fit *f);

#endif
