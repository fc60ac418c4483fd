/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING. */
#include "base/reduce.h"

#include "base/bf16.h"

#include <string.h>

enum {
    BLOCK = 1024, /* elements summed at a time: stays in the first-level cache */
    STEP = 16,
};

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

/* x = x OP y.  In steps of a length that the compiler knows, which it makes into vectors at -O2. */
#define PAIR(T, name, OP)                                                                          \
    static void name(T *restrict x, const T *restrict y, size_t n)                                 \
    {                                                                                              \
        size_t i = 0;                                                                              \
                                                                                                   \
        for (; i + STEP <= n; i += STEP)                                                           \
            for (size_t j = 0; j < STEP; j++)                                                      \
                x[i + j] = OP(x[i + j], y[i + j]);                                                 \
        for (; i < n; i++)                                                                         \
            x[i] = OP(x[i], y[i]);                                                                 \
    }
/* Two parts commute; more are summed from the first member on. */
#define PARTS(T, name, OP)                                                                         \
    PAIR(T, name##_pair, OP)                                                                       \
    static void name(T *x, const void *const *others, int members, int me, size_t n)               \
    {                                                                                              \
        T sum[BLOCK];                                                                              \
                                                                                                   \
        if (members == 2) {                                                                        \
            name##_pair(x, others[1 - me], n);                                                     \
            return;                                                                                \
        }                                                                                          \
        for (size_t at = 0; at < n; at += BLOCK) {                                                 \
            size_t m = n - at < BLOCK ? n - at : BLOCK;                                            \
                                                                                                   \
            memcpy(sum, (me == 0 ? x : (const T *)others[0]) + at, m * sizeof(T));                 \
            for (int k = 1; k < members; k++)                                                      \
                name##_pair(sum, (k == me ? x : (const T *)others[k]) + at, m);                    \
            memcpy(x + at, sum, m * sizeof(T));                                                    \
        }                                                                                          \
    }
#define ADD(a, b) ((a) + (b))
PARTS(float, parts_f32, ADD)
PARTS(double, parts_f64, ADD)
PARTS(float, parts_f32_max, max_f32)
PARTS(uint64_t, parts_u64_max, max_u64)

static void add_bf16(float *restrict sum, const uint16_t *restrict y, size_t n)
{
    size_t i = 0;

    for (; i + STEP <= n; i += STEP)
        for (size_t j = 0; j < STEP; j++)
            sum[i + j] += dt_bf16_to_f32(y[i + j]);
    for (; i < n; i++)
        sum[i] += dt_bf16_to_f32(y[i]);
}

static void round_all(uint16_t *restrict x, const float *restrict sum, size_t n)
{
    size_t i = 0;

    for (; i + STEP <= n; i += STEP)
        for (size_t j = 0; j < STEP; j++)
            x[i + j] = dt_bf16_from_f32(sum[i + j]);
    for (; i < n; i++)
        x[i] = dt_bf16_from_f32(sum[i]);
}

static void parts_bf16(uint16_t *x, const void *const *others, int members, int me, size_t n)
{
    float sum[BLOCK];

    for (size_t at = 0; at < n; at += BLOCK) {
        size_t m = n - at < BLOCK ? n - at : BLOCK;

        for (size_t i = 0; i < m; i++)
            sum[i] = -0.0f; /* what leaves every first part as it is */
        for (int k = 0; k < members; k++)
            add_bf16(sum, (k == me ? x : (const uint16_t *)others[k]) + at, m);
        round_all(x + at, sum, m);
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
