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

typedef void dt_cpu_bf16_product_fn(int64_t m, int64_t n, int64_t k, const uint16_t *a, int64_t lda,
                                    const uint16_t *b, int64_t ldb, float *c, int64_t ldc,
                                    bool add);

/* What attention does between its products, and the packing of weights, with AVX-512's own
 * conversions. */
enum { DT_BF16_WIDTH = 16 };
struct dt_cpu_bf16_ops {
    void (*begin)(void); /* before a thread's products, */
    void (*end)(void);   /* and after them: in between it runs no other code that has tiles */
    dt_cpu_bf16_product_fn *product;
    /* Scores s of one query and `keys` keys (a multiple of 16), of which the first `seen` count, to
     * p = exp(scale s - m), 0 behind them; m is the largest so far.  The query's state moves on:
     * *max = m, sum[16] takes the p of each of 16 columns, and when m grows sum and o[room] (room a multiple
     * of 16) are scaled to it. */
    void (*probabilities)(float *s, int64_t keys, int64_t seen, float scale, float *max, float *sum,
                          float *o, int64_t room, uint16_t *p);
    /* Scores s and products dp of two keys, rows of n queries (a multiple of 16), of which those
     * before from[] do not see the key: p = exp(scale s - lse) and ds = p (dp - dot), rows of n,
     * and ds of both keys in pairs. */
    void (*gradients)(int64_t n, const float *s, const float *dp, const float *lse,
                      const float *dot, float scale, const int64_t from[2], uint16_t *p,
                      uint16_t *ds, uint32_t *pairs);
    /* The transpose of rows x width as a `b`: pairs of columns, ldb = rooms; zeros up to rooms (a
     * multiple of 16) and room (of 32). */
    void (*turn_pairs)(const uint16_t *x, int64_t stride, int64_t rows, int64_t width,
                       int64_t rooms, int64_t room, uint16_t *to);
    /* The transpose as an `a`: `room` rows of `rooms`, of 32 both. */
    void (*turn)(const uint16_t *x, int64_t stride, int64_t rows, int64_t width, int64_t rooms,
                 int64_t room, uint16_t *to);
    /* to[r][c] = f x[c][r], rounded; x has whole vectors of rows and columns. */
    void (*store_turned)(const float *x, int64_t ldx, int64_t rows, int64_t width, float f,
                         uint16_t *to, int64_t stride);
    /* A pair of rows (or one, and zeros) of fp32 to a line of blocks of nb columns, tn apart. */
    void (*pack)(const float *x, int64_t stride, int64_t rows, int64_t cols, int64_t nb, int64_t tn,
                 uint16_t *to);
    /* The transpose of up to 16 rows of up to 32: pairs of its rows 2i and 2i+1, 32 elements, to
     * line[i].  Zeros in an odd last pair and for missing columns; lines of no row stay. */
    void (*pack_turned)(const float *x, int64_t stride, int64_t rows, int64_t cols,
                        uint16_t *const line[16]);
};

/* What this CPU has: NULL = none.  `amx` false leaves AMX out. */
const struct dt_cpu_bf16_ops *dt_cpu_bf16_ops(bool amx);

#endif
