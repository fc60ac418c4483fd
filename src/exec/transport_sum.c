/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Sums of the members' parts, always in the order of members, so that a result depends neither on
 * how the vector was cut nor on who arrived first. */
#include "exec/safetensors.h"
#include "exec/transport_impl.h"

#include <string.h>

enum { BLOCK = 1024 }; /* elements summed at a time: stays in the first-level cache */

size_t dt_reduce_bytes(enum dt_reduce_type type)
{
    switch (type) {
    case DT_REDUCE_BF16:
        return 2;
    case DT_REDUCE_F32:
    case DT_REDUCE_F32_MAX:
        return 4;
    case DT_REDUCE_F64:
    case DT_REDUCE_U64_MAX:
        break;
    }
    return 8;
}

static inline float max_f32(float a, float b)
{
    return a > b || a != a ? a : b; /* a NaN stays one, whichever side it is on */
}
static inline uint64_t max_u64(uint64_t a, uint64_t b)
{
    return a > b ? a : b;
}

/* Two parts commute; more are summed from the first member on. */
#define PARTS(T, name, OP)                                                                         \
    static void name(T *restrict x, const void *const *others, int members, int me, size_t n)      \
    {                                                                                              \
        T sum[BLOCK];                                                                              \
                                                                                                   \
        if (members == 2) {                                                                        \
            const T *restrict y = others[1 - me];                                                  \
                                                                                                   \
            for (size_t i = 0; i < n; i++)                                                         \
                x[i] = OP(x[i], y[i]);                                                             \
            return;                                                                                \
        }                                                                                          \
        for (size_t at = 0; at < n; at += BLOCK) {                                                 \
            size_t m = n - at < BLOCK ? n - at : BLOCK;                                            \
                                                                                                   \
            memcpy(sum, (me == 0 ? x : (const T *)others[0]) + at, m * sizeof(T));                 \
            for (int k = 1; k < members; k++) {                                                    \
                const T *y = (k == me ? x : (const T *)others[k]) + at;                            \
                                                                                                   \
                for (size_t i = 0; i < m; i++)                                                     \
                    sum[i] = OP(sum[i], y[i]);                                                     \
            }                                                                                      \
            memcpy(x + at, sum, m * sizeof(T));                                                    \
        }                                                                                          \
    }
#define ADD(a, b) ((a) + (b))
PARTS(float, parts_f32, ADD)
PARTS(double, parts_f64, ADD)
PARTS(float, parts_f32_max, max_f32)
PARTS(uint64_t, parts_u64_max, max_u64)

static void parts_bf16(uint16_t *x, const void *const *others, int members, int me, size_t n)
{
    float sum[BLOCK];

    for (size_t at = 0; at < n; at += BLOCK) {
        size_t m = n - at < BLOCK ? n - at : BLOCK;

        for (int k = 0; k < members; k++) {
            const uint16_t *y = (k == me ? x : (const uint16_t *)others[k]) + at;

            for (size_t i = 0; i < m; i++)
                sum[i] = k ? sum[i] + dt_bf16_to_f32(y[i]) : dt_bf16_to_f32(y[i]);
        }
        for (size_t i = 0; i < m; i++)
            x[at + i] = dt_f32_to_bf16(sum[i]);
    }
}

void dt_reduce_parts(enum dt_reduce_type type, void *x, const void *const *others, int members,
                     int me, size_t n)
{
    if (members < 2)
        return;
    switch (type) {
    case DT_REDUCE_F32:
        parts_f32(x, others, members, me, n);
        break;
    case DT_REDUCE_F64:
        parts_f64(x, others, members, me, n);
        break;
    case DT_REDUCE_BF16:
        parts_bf16(x, others, members, me, n);
        break;
    case DT_REDUCE_U64_MAX:
        parts_u64_max(x, others, members, me, n);
        break;
    case DT_REDUCE_F32_MAX:
        parts_f32_max(x, others, members, me, n);
        break;
    }
}
