/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * The product of bf16.h in AMX tiles.  A tile has 16 rows of 64 bytes: 16 x 32 of a, 16 pairs of
 * rows x 16 columns of b, 16 x 16 sums.  Two by two sums are under way at a time:
 *
 *                  b4     b5
 *            a6  | c0     c1
 *            a7  | c2     c3
 *
 * Included where DT_AMX_TARGET and the compiler's _tile_ operations are defined (bf16.c), or an
 * imitation of them (the test, for CPUs that have none). */
#ifndef DT_KERNELS_CPU_BF16_AMX_H
#define DT_KERNELS_CPU_BF16_AMX_H

#include "kernels/cpu/bf16.h"

#include <string.h>

struct dt_cpu_amx_config { /* what ldtilecfg reads: 64 bytes */
    uint8_t palette, start_row, reserved[14];
    uint16_t row_bytes[16];
    uint8_t rows[16];
};

DT_AMX_TARGET static inline void amx_sums(int64_t k, const uint16_t *a, int64_t lda,
                                          const uint16_t *b, int64_t ldb, float *c, int64_t ldc,
                                          bool down, bool right, bool add)
{
    size_t sa = (size_t)lda * 2, sb = (size_t)ldb * 4, sc = (size_t)ldc * 4;
    float *below = c + (down ? 16 * ldc : 0);

    if (add) {
        _tile_loadd(0, c, sc);
        if (right)
            _tile_loadd(1, c + 16, sc);
        if (down)
            _tile_loadd(2, below, sc);
        if (down && right)
            _tile_loadd(3, below + 16, sc);
    } else {
        _tile_zero(0);
        _tile_zero(1);
        _tile_zero(2);
        _tile_zero(3);
    }
    for (int64_t p = 0; p < k; p += DT_BF16_K) {
        const uint16_t *bp = b + p * ldb;

        _tile_loadd(4, bp, sb);
        _tile_loadd(6, a + p, sa);
        _tile_dpbf16ps(0, 6, 4);
        if (right) {
            _tile_loadd(5, bp + 32, sb);
            _tile_dpbf16ps(1, 6, 5);
        }
        if (down) {
            _tile_loadd(7, a + 16 * lda + p, sa);
            _tile_dpbf16ps(2, 7, 4);
        }
        if (down && right)
            _tile_dpbf16ps(3, 7, 5);
    }
    _tile_stored(0, c, sc);
    if (right)
        _tile_stored(1, c + 16, sc);
    if (down)
        _tile_stored(2, below, sc);
    if (down && right)
        _tile_stored(3, below + 16, sc);
}

/* The product library sets a configuration of its own in every call, so this one lasts from begin
 * to end. */
DT_AMX_TARGET static void begin_amx(void)
{
    struct dt_cpu_amx_config config;

    memset(&config, 0, sizeof(config));
    config.palette = 1;
    for (int i = 0; i < 8; i++) {
        config.rows[i] = 16;
        config.row_bytes[i] = 64;
    }
    _tile_loadconfig(&config);
}

DT_AMX_TARGET static void end_amx(void)
{
    _tile_release();
}

DT_AMX_TARGET static void product_amx(int64_t m, int64_t n, int64_t k, const uint16_t *a,
                                      int64_t lda, const uint16_t *b, int64_t ldb, float *c,
                                      int64_t ldc, bool add)
{
    for (int64_t j = 0; j < n; j += 32)
        for (int64_t i = 0; i < m; i += 32)
            amx_sums(k, a + i * lda, lda, b + 2 * j, ldb, c + i * ldc + j, ldc, i + 16 < m,
                     j + 16 < n, add);
}

#endif
