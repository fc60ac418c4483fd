/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING. */
#include "kernels/cpu/bf16.h"

#include <stddef.h>

#ifdef DT_CPU_X86
#include <immintrin.h>
#ifdef __linux__
#include <sys/syscall.h>
#include <unistd.h>
#endif

/* ---- AVX512-BF16: 6 x 4 vectors of sums in registers, 24 of 32 ---- */

#define WITH_BF16 __attribute__((target("avx512f,avx512bf16")))
#define INLINE_BF16 static inline __attribute__((always_inline, target("avx512f,avx512bf16")))

enum { LANES = 16, MR = 6, NV = 4 };

INLINE_BF16 void tile(const int mr, const int nv, int64_t k, const uint16_t *a, int64_t lda,
                      const uint16_t *b, int64_t ldb, float *c, int64_t ldc, bool add)
{
    __m512 acc[MR][NV];

#pragma GCC unroll 6
    for (int i = 0; i < mr; i++)
#pragma GCC unroll 4
        for (int j = 0; j < nv; j++)
            acc[i][j] = add ? _mm512_loadu_ps(c + i * ldc + j * LANES) : _mm512_setzero_ps();
    for (int64_t p = 0; p < k; p += 2) {
        __m512bh row[NV];

#pragma GCC unroll 4
        for (int j = 0; j < nv; j++)
            row[j] = (__m512bh)_mm512_loadu_si512(b + p * ldb + 2 * j * LANES);
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
            _mm512_storeu_ps(c + i * ldc + j * LANES, acc[i][j]);
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

    for (; j + NV * LANES <= n; j += NV * LANES)
        column(NV, m, k, a, lda, b + 2 * j, ldb, c + j, ldc, add);
    for (; j + 2 * LANES <= n; j += 2 * LANES)
        column(2, m, k, a, lda, b + 2 * j, ldb, c + j, ldc, add);
    for (; j < n; j += LANES)
        column(1, m, k, a, lda, b + 2 * j, ldb, c + j, ldc, add);
}

/* ---- AMX ---- */

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

dt_bf16_product_fn *dt_bf16_product(bool amx)
{
    __builtin_cpu_init();
    if (!__builtin_cpu_supports("avx512bf16"))
        return NULL;
    return amx && amx_there() && amx_granted() ? product_amx : product_avx512;
}
#else
dt_bf16_product_fn *dt_bf16_product(bool amx)
{
    (void)amx;
    return NULL;
}
#endif
