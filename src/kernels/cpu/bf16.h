/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Small products of bf16 in hardware, for attention: AVX512-BF16 and AMX, chosen at run time.
 *
 *   c[m][n] (+)= a[m][k] b[k][n]      c and its sums fp32
 *
 * a has dense rows of k; b holds rows in pairs, as both instruction sets take them:
 *
 *   b: | b(0,0) b(1,0) | b(0,1) b(1,1) | ... | b(0,ldb-1) b(1,ldb-1) |   rows 0 and 1
 *      | b(2,0) b(3,0) | ...                                             rows 2 and 3
 *
 * m and n are multiples of 16, k of 32: callers pad with zeros. */
#ifndef DT_KERNELS_CPU_BF16_H
#define DT_KERNELS_CPU_BF16_H

#include <stdbool.h>
#include <stdint.h>

enum { DT_BF16_MN = 16, DT_BF16_K = 32 };

typedef void dt_bf16_product_fn(int64_t m, int64_t n, int64_t k, const uint16_t *a, int64_t lda,
                                const uint16_t *b, int64_t ldb, float *c, int64_t ldc, bool add);

/* What this CPU has: NULL = none.  `amx` false leaves AMX out. */
dt_bf16_product_fn *dt_bf16_product(bool amx);

#endif
