/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Small fp32 matrix products for attention, in the compiler's vector types: c (+)= a b where b and
 * c have rows of whole vectors and a is read one element at a time with any strides (so a
 * transposed a is free). MR x NV vectors of c stay in registers: 24 of AVX-512's 32, 12 of
 * AVX2's 16. */
#ifndef DT_KERNELS_CPU_TILE_H
#define DT_KERNELS_CPU_TILE_H

#include "kernels/cpu/simd.h"

#if defined(__AVX512F__)
enum { DT_VL = 16, DT_NV = 4, DT_MR = 6 };
#elif defined(__AVX__)
enum { DT_VL = 8, DT_NV = 2, DT_MR = 6 };
#else
enum { DT_VL = 4, DT_NV = 2, DT_MR = 4 };
#endif
typedef float dt_cpu_vec __attribute__((vector_size(DT_VL * 4), aligned(4), may_alias));

/* Room for n elements in whole vectors. */
DT_INLINE int64_t dt_vec_round(int64_t n)
{
    return (n + DT_VL - 1) / DT_VL * DT_VL;
}

DT_INLINE void dt_tile(const int mr, const int nv, int64_t k, const float *a, int64_t ra,
                       int64_t ca, const float *b, int64_t ldb, float *c, int64_t ldc, bool add)
{
    dt_cpu_vec acc[6][4], row[4];

#pragma GCC unroll 6
    for (int i = 0; i < mr; i++)
#pragma GCC unroll 4
        for (int j = 0; j < nv; j++)
            acc[i][j] = add ? *(const dt_cpu_vec *)(c + i * ldc + j * DT_VL) : (dt_cpu_vec){0};
    for (int64_t p = 0; p < k; p++) {
#pragma GCC unroll 4
        for (int j = 0; j < nv; j++)
            row[j] = *(const dt_cpu_vec *)(b + p * ldb + j * DT_VL);
#pragma GCC unroll 6
        for (int i = 0; i < mr; i++) {
            float s = a[i * ra + p * ca];

#pragma GCC unroll 4
            for (int j = 0; j < nv; j++)
                acc[i][j] += s * row[j];
        }
    }
#pragma GCC unroll 6
    for (int i = 0; i < mr; i++)
#pragma GCC unroll 4
        for (int j = 0; j < nv; j++)
            *(dt_cpu_vec *)(c + i * ldc + j * DT_VL) = acc[i][j];
}

/* A column of tiles nv vectors wide. */
DT_INLINE void dt_tile_column(const int nv, int64_t m, int64_t k, const float *a, int64_t ra,
                              int64_t ca, const float *b, int64_t ldb, float *c, int64_t ldc,
                              bool add)
{
    int64_t i = 0;

    for (; i + DT_MR <= m; i += DT_MR)
        dt_tile(DT_MR, nv, k, a + i * ra, ra, ca, b, ldb, c + i * ldc, ldc, add);
    for (; i + 2 <= m; i += 2)
        dt_tile(2, nv, k, a + i * ra, ra, ca, b, ldb, c + i * ldc, ldc, add);
    for (; i < m; i++)
        dt_tile(1, nv, k, a + i * ra, ra, ca, b, ldb, c + i * ldc, ldc, add);
}

/* n is a multiple of DT_VL. */
static inline void dt_cpu_small_product(int64_t m, int64_t n, int64_t k, const float *a, int64_t ra,
                                        int64_t ca, const float *b, int64_t ldb, float *c,
                                        int64_t ldc, bool add)
{
    int64_t j = 0;

    for (; j + DT_NV * DT_VL <= n; j += DT_NV * DT_VL)
        dt_tile_column(DT_NV, m, k, a, ra, ca, b + j, ldb, c + j, ldc, add);
    for (; j < n; j += DT_VL)
        dt_tile_column(1, m, k, a, ra, ca, b + j, ldb, c + j, ldc, add);
}

/* Rows of a head, to fp32 with rows of `room` (zeros behind width), times f. */
DT_INLINE void dt_load_rows(const void *x, int64_t stride, int64_t rows, int64_t width,
                            int64_t room, float f, float *to, enum dt_dtype t)
{
    for (int64_t r = 0; r < rows; r++) {
        const void *from = dt_at(x, r * stride, t);

        DT_SIMD_LOOP
        for (int64_t i = 0; i < width; i++)
            to[r * room + i] = f * dt_ld(from, i, t);
        for (int64_t i = width; i < room; i++)
            to[r * room + i] = 0;
    }
}

/* The same transposed: to[i][r], rows of `room` (zeros behind `rows`). */
DT_INLINE void dt_load_transposed(const void *x, int64_t stride, int64_t rows, int64_t width,
                                  int64_t room, float *to, enum dt_dtype t)
{
    for (int64_t r = 0; r < rows; r++) {
        const void *from = dt_at(x, r * stride, t);

        for (int64_t i = 0; i < width; i++)
            to[i * room + r] = dt_ld(from, i, t);
    }
    for (int64_t i = 0; rows < room && i < width; i++)
        memset(to + i * room + rows, 0, sizeof(float) * (size_t)(room - rows));
}

DT_INLINE void dt_store_rows(const float *from, int64_t room, int64_t rows, int64_t width, void *x,
                             int64_t stride, enum dt_dtype t)
{
    for (int64_t r = 0; r < rows; r++) {
        void *to = dt_at_w(x, r * stride, t);

        DT_SIMD_LOOP
        for (int64_t i = 0; i < width; i++)
            dt_st(to, i, from[r * room + i], t);
    }
}

#endif
