/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING. */
#include "kernels/cpu/bf16.h"

#include <math.h>
#include <stddef.h>

#ifdef DT_CPU_X86
#include <immintrin.h>
#ifdef __linux__
#include <sys/syscall.h>
#include <unistd.h>
#endif

/* ---- AVX512-BF16: 6 x 4 vectors of sums in registers, 24 of 32 ---- */

#define WITH_BF16 __attribute__((target("avx512f,avx512bw,avx512bf16")))
#define INLINE_BF16                                                                                \
    static inline __attribute__((always_inline, target("avx512f,avx512bw,avx512bf16")))

enum { WIDTH = DT_BF16_WIDTH, MR = 6, NV = 4 };

INLINE_BF16 void tile(const int mr, const int nv, int64_t k, const uint16_t *a, int64_t lda,
                      const uint16_t *b, int64_t ldb, float *c, int64_t ldc, bool add)
{
    __m512 acc[MR][NV];

#pragma GCC unroll 6
    for (int i = 0; i < mr; i++)
#pragma GCC unroll 4
        for (int j = 0; j < nv; j++)
            acc[i][j] = add ? _mm512_loadu_ps(c + i * ldc + j * WIDTH) : _mm512_setzero_ps();
    for (int64_t p = 0; p < k; p += 2) {
        __m512bh row[NV];

#pragma GCC unroll 4
        for (int j = 0; j < nv; j++)
            row[j] = (__m512bh)_mm512_loadu_si512(b + p * ldb + 2 * j * WIDTH);
#pragma GCC unroll 6
        for (int i = 0; i < mr; i++) {
            int32_t pair;

            __builtin_memcpy(&pair, a + i * lda + p, sizeof(pair));
            __m512bh s = (__m512bh)_mm512_set1_epi32(pair);

#pragma GCC unroll 4
            for (int j = 0; j < nv; j++)
                acc[i][j] = _mm512_dpbf16_ps(acc[i][j], s, row[j]);
        }
    }
#pragma GCC unroll 6
    for (int i = 0; i < mr; i++)
#pragma GCC unroll 4
        for (int j = 0; j < nv; j++)
            _mm512_storeu_ps(c + i * ldc + j * WIDTH, acc[i][j]);
}

INLINE_BF16 void column(const int nv, int64_t m, int64_t k, const uint16_t *a, int64_t lda,
                        const uint16_t *b, int64_t ldb, float *c, int64_t ldc, bool add)
{
    int64_t i = 0;

    for (; i + MR <= m; i += MR)
        tile(MR, nv, k, a + i * lda, lda, b, ldb, c + i * ldc, ldc, add);
    for (; i + 2 <= m; i += 2) /* m is even */
        tile(2, nv, k, a + i * lda, lda, b, ldb, c + i * ldc, ldc, add);
}

WITH_BF16 static void product_avx512(int64_t m, int64_t n, int64_t k, const uint16_t *a,
                                     int64_t lda, const uint16_t *b, int64_t ldb, float *c,
                                     int64_t ldc, bool add)
{
    int64_t j = 0;

    for (; j + NV * WIDTH <= n; j += NV * WIDTH)
        column(NV, m, k, a, lda, b + 2 * j, ldb, c + j, ldc, add);
    for (; j + 2 * WIDTH <= n; j += 2 * WIDTH)
        column(2, m, k, a, lda, b + 2 * j, ldb, c + j, ldc, add);
    for (; j < n; j += WIDTH)
        column(1, m, k, a, lda, b + 2 * j, ldb, c + j, ldc, add);
}

/* ---- between products ---- */

/* e^x for x <= 0, to 3e-6, which is more than bf16 keeps: Taylor of degree 5 on [-ln 2 / 2, ln 2 /
 * 2]. */
INLINE_BF16 __m512 exp_bf16(__m512 x)
{
    __m512 c = _mm512_max_ps(_mm512_set1_ps(-110.0f), x); /* below: 0; a NaN stays one */
    __m512 n = _mm512_roundscale_ps(_mm512_mul_ps(c, _mm512_set1_ps(0x1.715476p+0f)),
                                    _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    __m512 r = _mm512_fnmadd_ps(n, _mm512_set1_ps(0x1.62e4p-1f), c);
    __m512 p = _mm512_set1_ps(0x1.111112p-7f);

    r = _mm512_fnmadd_ps(n, _mm512_set1_ps(0x1.7f7d1cp-20f), r);
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(0x1.555556p-5f));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(0x1.555556p-3f));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(0.5f));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(1.0f));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(1.0f));
    return _mm512_scalef_ps(p, n);
}

/* Those of the 16 elements from `at` on that lie in [begin, end). */
INLINE_BF16 __mmask16 between(int64_t at, int64_t begin, int64_t end)
{
    int64_t lo = begin - at, hi = end - at;

    lo = lo < 0 ? 0 : lo > WIDTH ? WIDTH : lo;
    hi = hi < 0 ? 0 : hi > WIDTH ? WIDTH : hi;
    return (__mmask16)(((1u << hi) - 1u) & ~((1u << lo) - 1u));
}

WITH_BF16 static void probabilities(float *s, int64_t keys, int64_t seen, float scale, float *max,
                                    float *sum, float *o, int64_t room, uint16_t *p)
{
    __m512 f = _mm512_set1_ps(scale), top = _mm512_set1_ps(-INFINITY), total;
    float m;

    for (int64_t j = 0; j < seen; j += WIDTH) {
        __m512 x = _mm512_mul_ps(f, _mm512_loadu_ps(s + j));

        _mm512_storeu_ps(s + j, x);
        top = _mm512_mask_max_ps(top, between(j, 0, seen), top, x);
    }
    m = _mm512_reduce_max_ps(top);
    if (m > *max) {
        f = *max == -INFINITY ? _mm512_setzero_ps() : exp_bf16(_mm512_set1_ps(*max - m));
        _mm512_storeu_ps(sum, _mm512_mul_ps(f, _mm512_loadu_ps(sum)));
        for (int64_t i = 0; i < room; i += WIDTH)
            _mm512_storeu_ps(o + i, _mm512_mul_ps(f, _mm512_loadu_ps(o + i)));
        *max = m;
    }
    /* Or it has seen nothing so far, but perhaps NaN, which no maximum shows. */
    f = _mm512_set1_ps(*max == -INFINITY ? 0 : *max);
    total = _mm512_loadu_ps(sum);
    for (int64_t j = 0; j < keys; j += WIDTH) {
        __mmask16 in = between(j, 0, seen);
        __m512 e = _mm512_setzero_ps();

        if (in)
            e = _mm512_maskz_mov_ps(in, exp_bf16(_mm512_sub_ps(_mm512_loadu_ps(s + j), f)));
        total = _mm512_add_ps(total, e);
        _mm256_storeu_si256((__m256i *)(void *)(p + j), (__m256i)_mm512_cvtneps_pbh(e));
    }
    _mm512_storeu_ps(sum, total);
}

WITH_BF16 static void gradients(int64_t n, const float *s, const float *dp, const float *lse,
                                const float *dot, float scale, const int64_t from[2], uint16_t *p,
                                uint16_t *ds, uint32_t *pairs)
{
    __m512 f = _mm512_set1_ps(scale);

    for (int64_t i = 0; i < n; i += WIDTH) {
        __m512 l = _mm512_loadu_ps(lse + i), d = _mm512_loadu_ps(dot + i);
        __m256i g[2];

        for (int h = 0; h < 2; h++) {
            __mmask16 in = between(i, from[h], n);
            __m512 x = _mm512_fmsub_ps(f, _mm512_loadu_ps(s + h * n + i), l);
            __m512 e = _mm512_maskz_mov_ps(in, exp_bf16(x));
            __m512 y = _mm512_sub_ps(_mm512_loadu_ps(dp + h * n + i), d);

            y = _mm512_maskz_mul_ps(in, e, y);
            g[h] = (__m256i)_mm512_cvtneps_pbh(y);
            _mm256_storeu_si256((__m256i *)(void *)(p + h * n + i), (__m256i)_mm512_cvtneps_pbh(e));
            _mm256_storeu_si256((__m256i *)(void *)(ds + h * n + i), g[h]);
        }
        _mm512_storeu_si512(pairs + i,
                            _mm512_or_si512(_mm512_cvtepu16_epi32(g[0]),
                                            _mm512_slli_epi32(_mm512_cvtepu16_epi32(g[1]), 16)));
    }
}

/* ---- transposes: 16 x 16 elements of 32 bits in registers ---- */

/* Rows to columns of four by four elements, then of four by four such blocks. */
INLINE_BF16 void turn_16(__m512i r[WIDTH])
{
    __m512i t[WIDTH];

#pragma GCC unroll 8
    for (int i = 0; i < WIDTH; i += 2) {
        t[i] = _mm512_unpacklo_epi32(r[i], r[i + 1]);
        t[i + 1] = _mm512_unpackhi_epi32(r[i], r[i + 1]);
    }
#pragma GCC unroll 4
    for (int i = 0; i < WIDTH; i += 4) {
        r[i] = _mm512_unpacklo_epi64(t[i], t[i + 2]);
        r[i + 1] = _mm512_unpackhi_epi64(t[i], t[i + 2]);
        r[i + 2] = _mm512_unpacklo_epi64(t[i + 1], t[i + 3]);
        r[i + 3] = _mm512_unpackhi_epi64(t[i + 1], t[i + 3]);
    }
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++) {
        t[i] = _mm512_shuffle_i32x4(r[i], r[4 + i], 0x88); /* blocks 0 and 2 of each */
        t[4 + i] = _mm512_shuffle_i32x4(r[i], r[4 + i], 0xdd);
        t[8 + i] = _mm512_shuffle_i32x4(r[8 + i], r[12 + i], 0x88);
        t[12 + i] = _mm512_shuffle_i32x4(r[8 + i], r[12 + i], 0xdd);
    }
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++) {
        r[i] = _mm512_shuffle_i32x4(t[i], t[8 + i], 0x88);
        r[4 + i] = _mm512_shuffle_i32x4(t[4 + i], t[12 + i], 0x88);
        r[8 + i] = _mm512_shuffle_i32x4(t[i], t[8 + i], 0xdd);
        r[12 + i] = _mm512_shuffle_i32x4(t[4 + i], t[12 + i], 0xdd);
    }
}

/* Elements c .. c + n of a row of `width`, zeros behind it; of no row all zeros. */
INLINE_BF16 __mmask32 within(int64_t c, int64_t width, int n)
{
    int64_t left = width - c;

    return left >= n ? UINT32_MAX >> (32 - n) : left <= 0 ? 0 : (1u << left) - 1u;
}

WITH_BF16 static void turn_pairs(const uint16_t *x, int64_t stride, int64_t rows, int64_t width,
                                 int64_t rooms, int64_t room, uint16_t *to)
{
    for (int64_t r = 0; r < rooms; r += WIDTH)
        for (int64_t c = 0; c < room; c += 2 * WIDTH) {
            __mmask32 in = within(c, width, 2 * WIDTH);
            __m512i v[WIDTH];

#pragma GCC unroll 16
            for (int i = 0; i < WIDTH; i++)
                v[i] = r + i < rows ? _mm512_maskz_loadu_epi16(in, x + (r + i) * stride + c)
                                    : _mm512_setzero_si512();
            turn_16(v);
#pragma GCC unroll 16
            for (int i = 0; i < WIDTH; i++)
                _mm512_storeu_si512(to + (c + 2 * i) * rooms + 2 * r, v[i]);
        }
}

WITH_BF16 static void turn(const uint16_t *x, int64_t stride, int64_t rows, int64_t width,
                           int64_t rooms, int64_t room, uint16_t *to)
{
    for (int64_t r = 0; r < rooms; r += 2 * WIDTH)
        for (int64_t c = 0; c < room; c += WIDTH) {
            __mmask32 in = within(c, width, WIDTH);
            __m512i v[WIDTH];

#pragma GCC unroll 16
            for (int i = 0; i < WIDTH; i++) { /* two rows in pairs */
                const uint16_t *at = x + (r + 2 * i) * stride + c;
                __mmask32 lo = r + 2 * i < rows ? in : 0, hi = r + 2 * i + 1 < rows ? in : 0;

                v[i] = _mm512_or_si512(
                    _mm512_cvtepu16_epi32(_mm512_castsi512_si256(_mm512_maskz_loadu_epi16(lo, at))),
                    _mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm512_castsi512_si256(
                                          _mm512_maskz_loadu_epi16(hi, at + stride))),
                                      16));
            }
            turn_16(v);
#pragma GCC unroll 16
            for (int i = 0; i < WIDTH; i++)
                _mm512_storeu_si512(to + (c + i) * rooms + r, v[i]);
        }
}

WITH_BF16 static void store_turned(const float *x, int64_t ldx, int64_t rows, int64_t width,
                                   float f, uint16_t *to, int64_t stride)
{
    for (int64_t r = 0; r < rows; r += WIDTH)
        for (int64_t c = 0; c < width; c += WIDTH) {
            __mmask32 in = within(c, width, WIDTH);
            __m512i v[WIDTH];

#pragma GCC unroll 16
            for (int i = 0; i < WIDTH; i++)
                v[i] = _mm512_loadu_si512(x + (c + i) * ldx + r);
            turn_16(v);
            for (int i = 0; i < WIDTH && r + i < rows; i++) {
                __m512 y = _mm512_mul_ps(_mm512_set1_ps(f), _mm512_castsi512_ps(v[i]));

                _mm512_mask_storeu_epi16(to + (r + i) * stride + c, in,
                                         _mm512_castsi256_si512((__m256i)_mm512_cvtneps_pbh(y)));
            }
        }
}

/* ---- packing of weights (pack.c) ---- */

enum { PREFETCH = 64 }; /* elements ahead in every row: measured */

WITH_BF16 static void pack(const float *x, int64_t stride, int64_t rows, int64_t cols, int64_t nb,
                           int64_t tn, uint16_t *to)
{
    const float *below = rows > 1 ? x + stride : x;
    __mmask16 two = rows > 1 ? UINT16_MAX : 0;

    for (int64_t n = 0; n < cols; n += WIDTH) {
        __mmask16 in = (__mmask16)within(n, cols, WIDTH);
        __m256i low = (__m256i)_mm512_cvtneps_pbh(_mm512_maskz_loadu_ps(in, x + n));
        __m256i high = (__m256i)_mm512_cvtneps_pbh(_mm512_maskz_loadu_ps(in & two, below + n));

        _mm512_storeu_si512(to + n / nb * tn + n % nb * 2,
                            _mm512_or_si512(_mm512_cvtepu16_epi32(low),
                                            _mm512_slli_epi32(_mm512_cvtepu16_epi32(high), 16)));
    }
}

WITH_BF16 static void pack_turned(const float *x, int64_t stride, int64_t rows, int64_t cols,
                                  uint16_t *const line[WIDTH])
{
    __mmask16 low = (__mmask16)within(0, rows, WIDTH), high = (__mmask16)within(WIDTH, rows, WIDTH);
    __m512i v[WIDTH];

#pragma GCC unroll 16
    for (int i = 0; i < WIDTH; i++) {
        const float *at = x + i * stride;

        _mm_prefetch((const char *)(at + PREFETCH), _MM_HINT_T0);
        _mm_prefetch((const char *)(at + PREFETCH + WIDTH), _MM_HINT_T0);
        v[i] = i < cols ? (__m512i)_mm512_cvtne2ps_pbh(_mm512_maskz_loadu_ps(high, at + WIDTH),
                                                       _mm512_maskz_loadu_ps(low, at))
                        : _mm512_setzero_si512();
    }
    turn_16(v);
#pragma GCC unroll 16
    for (int i = 0; i < WIDTH; i++)
        if (2 * i < rows)
            _mm512_storeu_si512(line[i], v[i]);
}

/* ---- AMX ---- */

static void nothing(void) {}

#define DT_AMX_TARGET __attribute__((target("amx-tile,amx-bf16")))
#include "kernels/cpu/bf16_amx.h"

/* Linux hands out the tiles' registers on request (arch_prctl(2), ARCH_REQ_XCOMP_PERM). */
static bool amx_granted(void)
{
#if defined(__linux__) && defined(SYS_arch_prctl)
    enum { REQ_XCOMP_PERM = 0x1023, XTILEDATA = 18 };

    return syscall(SYS_arch_prctl, REQ_XCOMP_PERM, XTILEDATA) == 0;
#else
    return false;
#endif
}

/* CPUID leaf 7: EDX bit 22 AMX-BF16, bit 24 AMX-TILE. */
static bool amx_there(void)
{
    unsigned eax = 7, ebx, ecx = 0, edx;

    __asm__("cpuid" : "+a"(eax), "=b"(ebx), "+c"(ecx), "=d"(edx));
    return (edx >> 22 & 1u) && (edx >> 24 & 1u);
}

const struct dt_cpu_bf16_ops *dt_cpu_bf16_ops(bool amx)
{
    static const struct dt_cpu_bf16_ops avx512 = {
        nothing,    nothing, product_avx512, probabilities, gradients,
        turn_pairs, turn,    store_turned,   pack,          pack_turned};
    static const struct dt_cpu_bf16_ops tiles = {begin_amx, end_amx,    product_amx, probabilities,
                                                 gradients, turn_pairs, turn,        store_turned,
                                                 pack,      pack_turned};

    __builtin_cpu_init();
    if (!__builtin_cpu_supports("avx512bf16"))
        return NULL;
    return amx && amx_there() && amx_granted() ? &tiles : &avx512;
}
#else
const struct dt_cpu_bf16_ops *dt_cpu_bf16_ops(bool amx)
{
    (void)amx;
    return NULL;
}
#endif
