/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Kernels again, in double and as plainly as possible: the forwards.  Gradients are checked against
 * central differences of these. */
#ifndef DT_TESTS_REF_KERNELS_H
#define DT_TESTS_REF_KERNELS_H

#include "kernels/kernels.h"

/* y[m,out] = x[m,in] w[out,in]ᵀ + bias (NULL) */
void ref_linear(int64_t m, int64_t out, int64_t in, const double *x, const double *w,
                const double *bias, double *y);
/* w in [c_out][c_in][k][k] order */
void ref_conv(const struct dt_kernel_conv *c, const double *x, const double *w, const double *bias,
              double *y);
/* layer: subtract the mean; beta NULL = none.  Rows as struct dt_kernel_norm says. */
void ref_norm(const struct dt_kernel_norm *n, bool layer, const double *x, const double *gamma,
              const double *beta, double *y);
void ref_groupnorm(const struct dt_kernel_groupnorm *g, const double *x, const double *gamma,
                   const double *beta, double *y);
/* cu_* are host arrays */
void ref_attention(const struct dt_kernel_attention *a, const double *q, const double *k,
                   const double *v, double *o, double *lse);
double ref_act(enum dt_kernel_act act, double x);
void ref_glu(enum dt_kernel_act act, int64_t rows, int64_t width, bool gate_last, const double *h,
             double *y);
void ref_rope(int64_t rows, int heads, int head_dim, int dim, int64_t stride, const int32_t *pos,
              const float *table, bool inverse, double *x);
/* Loss of one row of logits = x wᵀ. */
double ref_xent_row(int64_t vocab, int64_t width, const double *x, const double *w, int target);

/* d(loss)/d(*x) by central differences. */
double ref_slope(double (*loss)(void *ctx), void *ctx, double *x);

#endif
