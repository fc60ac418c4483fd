/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * For the _simd.c files: names per instruction set, loads and stores of both activation types, and
 * the elementary functions in a form that the compiler vectorises.
 *
 * A kernel's inner function is DT_INLINE with a `t` that its caller passes as a constant, so the
 * branch on the type is gone from the loops. */
#ifndef DT_KERNELS_CPU_SIMD_H
#define DT_KERNELS_CPU_SIMD_H

#include "base/bf16.h"
#include "kernels/cpu/cpu.h"

#include <math.h>
#include <string.h>

#ifndef DT_ISA
#define DT_ISA base
#endif
#define DT_PASTE2(a, b) a##_##b
#define DT_PASTE(a, b) DT_PASTE2(a, b)
#define DT_SIMD(name) DT_PASTE(name, DT_ISA)

#define DT_INLINE static inline __attribute__((always_inline))
#define DT_SIMD_LOOP _Pragma("omp simd")

/* Registration, one per file; dt_cpu_simd_X calls them (table_simd.c). */
void DT_SIMD(dt_cpu_act)(struct dt_kernels *k);
void DT_SIMD(dt_cpu_attention)(struct dt_kernels *k);
void DT_SIMD(dt_cpu_attention_bwd)(struct dt_kernels *k);
void DT_SIMD(dt_cpu_elementwise)(struct dt_kernels *k);
void DT_SIMD(dt_cpu_groupnorm)(struct dt_kernels *k);
void DT_SIMD(dt_cpu_image)(struct dt_kernels *k);
void DT_SIMD(dt_cpu_norm)(struct dt_kernels *k);
void DT_SIMD(dt_cpu_optimizer)(struct dt_kernels *k);
void DT_SIMD(dt_cpu_random)(struct dt_kernels *k);
void DT_SIMD(dt_cpu_route)(struct dt_kernels *k);
void DT_SIMD(dt_cpu_rows)(struct dt_kernels *k);
void DT_SIMD(dt_cpu_softmax)(struct dt_kernels *k);

/* Calls f(..., constant type) for a run-time type. */
#define DT_BY_TYPE(type, f, ...)                                                                   \
    do {                                                                                           \
        if ((type) == DT_BF16)                                                                     \
            f(__VA_ARGS__, DT_BF16);                                                               \
        else                                                                                       \
            f(__VA_ARGS__, DT_F32);                                                                \
    } while (0)

/* A block of the n rows of a struct, as `inner` does them for the struct's type of elements. */
#define DT_ROWS_BLOCK_FN(name, inner)                                                              \
    static void name(void *arg, int64_t block, int thread)                                         \
    {                                                                                              \
        const struct rows *a = arg;                                                                \
        int64_t begin = block * a->per, end = dt_cpu_min64(begin + a->per, a->n);                  \
                                                                                                   \
        (void)thread;                                                                              \
        DT_BY_TYPE(a->t, inner, a, begin, end);                                                    \
    }

DT_INLINE float dt_bits_float(uint32_t u)
{
    float f;

    memcpy(&f, &u, sizeof(f));
    return f;
}
DT_INLINE uint32_t dt_float_bits(float f)
{
    uint32_t u;

    memcpy(&u, &f, sizeof(u));
    return u;
}
DT_INLINE float dt_ld(const void *p, int64_t i, enum dt_dtype t)
{
    return t == DT_BF16 ? dt_bf16_to_f32(((const uint16_t *)p)[i]) : ((const float *)p)[i];
}
DT_INLINE void dt_st(void *p, int64_t i, float x, enum dt_dtype t)
{
    if (t == DT_BF16)
        ((uint16_t *)p)[i] = dt_bf16_from_f32(x);
    else
        ((float *)p)[i] = x;
}
DT_INLINE const void *dt_at(const void *p, int64_t i, enum dt_dtype t)
{
    return (const char *)p + i * (t == DT_BF16 ? 2 : 4);
}
DT_INLINE void *dt_at_w(void *p, int64_t i, enum dt_dtype t)
{
    return (char *)p + i * (t == DT_BF16 ? 2 : 4);
}

/* result = sum (or maximum) of `term`, an expression in i, over begin <= i < end: 16 partial
 * results, element i in number (i - begin) % 16, joined in a fixed tree.  The order is the same on
 * every instruction set; compilers are shy of vectorising reductions in the usual form. */
enum { DT_PARTIALS = 16 };
#define DT_REDUCE(type, init, join, result, begin, end, term)                                      \
    do {                                                                                           \
        type partial_[DT_PARTIALS];                                                                \
        int64_t at_ = (begin), end_ = (end);                                                       \
                                                                                                   \
        for (int l_ = 0; l_ < DT_PARTIALS; l_++)                                                   \
            partial_[l_] = (init);                                                                 \
        for (; at_ + DT_PARTIALS <= end_; at_ += DT_PARTIALS) {                                    \
            DT_SIMD_LOOP                                                                           \
            for (int l_ = 0; l_ < DT_PARTIALS; l_++) {                                             \
                int64_t i = at_ + l_;                                                              \
                                                                                                   \
                partial_[l_] = join(partial_[l_], (term));                                         \
            }                                                                                      \
        }                                                                                          \
        for (int64_t i = at_; i < end_; i++)                                                       \
            partial_[i - at_] = join(partial_[i - at_], (term));                                   \
        for (int w_ = DT_PARTIALS / 2; w_ > 0; w_ /= 2)                                            \
            for (int l_ = 0; l_ < w_; l_++)                                                        \
                partial_[l_] = join(partial_[l_], partial_[l_ + w_]);                              \
        (result) = partial_[0];                                                                    \
    } while (0)
#define DT_PLUS(a, b) ((a) + (b))
DT_INLINE float dt_max(float a, float b)
{
    return b > a ? b : a;
}
#define DT_SUM(result, begin, end, term) DT_REDUCE(float, 0.0f, DT_PLUS, result, begin, end, term)
#define DT_MAXIMUM(result, begin, end, term)                                                       \
    DT_REDUCE(float, -INFINITY, dt_max, result, begin, end, term)

/* e^x to 2 ulp: x = n ln 2 + r, |r| <= ln 2 / 2, Taylor polynomial of degree 7 in r (error below
 * 3e-9 relative), scaled by 2^n through the exponent bits.  Below -86.6: 0; above 88.7: infinity.
 */
DT_INLINE float dt_exp(float x)
{
    const float magic = 0x1.8p23f; /* adding it rounds to an integer in the low bits */
    float lo = x < -86.6f ? -86.6f : x;
    float c = lo > 88.8f ? 88.8f : lo;
    float t = c * 0x1.715476p+0f + magic;
    float n = t - magic;
    float r = (c - n * 0x1.62e4p-1f) - n * 0x1.7f7d1cp-20f;
    float p = 0x1.a01a02p-13f;
    uint32_t k = dt_float_bits(t) - dt_float_bits(magic);
    float y;

    p = p * r + 0x1.6c16c2p-10f;
    p = p * r + 0x1.111112p-7f;
    p = p * r + 0x1.555556p-5f;
    p = p * r + 0x1.555556p-3f;
    p = p * r + 0.5f;
    p = p * r + 1.0f;
    p = p * r + 1.0f;
    y = p * dt_bits_float((k + 126u) << 23) * 2.0f; /* 2^(n-1) is finite also for n = 128 */
    y = x < -86.6f ? 0.0f : y;
    return x > 88.72f ? INFINITY : y;
}
DT_INLINE float dt_sigmoid(float x)
{
    return 1.0f / (1.0f + dt_exp(-x));
}

/* Abramowitz & Stegun 7.1.26: absolute error below 1.5e-7. */
DT_INLINE float dt_erf(float x)
{
    float a = fabsf(x), t = 1.0f / (1.0f + 0.3275911f * a);
    float p = 1.061405429f;

    p = p * t - 1.453152027f;
    p = p * t + 1.421413741f;
    p = p * t - 0.284496736f;
    p = p * t + 0.254829592f;
    p = 1.0f - p * t * dt_exp(-a * a);
    return x < 0 ? -p : p;
}

#endif
