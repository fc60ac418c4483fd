/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * A device that remembers: the CPU's own, whose kernels are called through wrappers that note the
 * shape of every product and the time spent per class of kernel. */
#ifndef DT_TESTS_BENCH_RECORD_H
#define DT_TESTS_BENCH_RECORD_H

#include "kernels/kernels.h"

enum rec_kind {
    REC_FWD,    /* y[m,n] = x[m,k] w[n,k]ᵀ, output of the activations' type */
    REC_INPUT,  /* dx[m,n] = dy[m,k] w[k,n], the same */
    REC_WEIGHT, /* dw[m,n] = dy[k,m]ᵀ x[k,n], fp32 output */
    REC_LOGITS, /* as REC_FWD, fp32 output */
    REC_CONV_FWD,
    REC_CONV_INPUT,
    REC_CONV_WEIGHT
};
struct rec_product {
    enum rec_kind kind;
    enum dt_dtype dtype;
    int64_t m, n, k;
    struct dt_kernel_conv conv; /* of the REC_CONV_ kinds */
    int64_t count;
};

enum rec_class {
    REC_PRODUCT,
    REC_HEAD,
    REC_ATTENTION,
    REC_NORM,
    REC_ACT,
    REC_OPTIMIZER,
    REC_CLASSES
};
extern const char *const rec_class_names[REC_CLASSES];

enum { REC_MAX = 512 };
struct rec {
    struct rec_product product[REC_MAX];
    int n;
    double seconds[REC_CLASSES];
};

/* What has been recorded since rec_reset; one device at a time. */
const struct rec *rec_state(void);
void rec_reset(void);
/* `out` takes the place of `dev`; valid as long as it. */
void rec_device(const struct dt_device *dev, struct dt_device *out);

#endif
