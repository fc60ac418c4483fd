/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Attention whose products are of bf16: queries, keys and values as they are, probabilities and
 * gradients of scores rounded to it.  Scores, the softmax and all sums are fp32.  Here: how rows
 * are brought into the forms that bf16.h takes. */
#ifndef DT_KERNELS_CPU_ATTENTION_BF16_H
#define DT_KERNELS_CPU_ATTENTION_BF16_H

#include "kernels/cpu/bf16.h"
#include "kernels/cpu/simd.h"

DT_INLINE int64_t dt_up_to(int64_t n, int64_t to)
{
    return (n + to - 1) / to * to;
}

/* Rows as they are, dense: an `a`.  Zeros up to `room` columns and `rooms` rows. */
DT_INLINE void dt_bf16_rows(const uint16_t *x, int64_t stride, int64_t rows, int64_t width,
                            int64_t rooms, int64_t room, uint16_t *to)
{
    for (int64_t r = 0; r < rows; r++) {
        memcpy(to + r * room, x + r * stride, (size_t)width * 2);
        memset(to + r * room + width, 0, (size_t)(room - width) * 2);
    }
    memset(to + rows * room, 0, (size_t)((rooms - rows) * room) * 2);
}

/* Pairs of rows: a `b` of rooms x room. */
DT_INLINE void dt_bf16_pairs(const uint16_t *x, int64_t stride, int64_t rows, int64_t width,
                             int64_t rooms, int64_t room, uint16_t *to)
{
    for (int64_t r = 0; r < rooms; r += 2) {
        const uint16_t *lo = x + r * stride, *hi = lo + stride;
        uint16_t *out = to + r * room;

        if (r + 1 < rows) {
            DT_SIMD_LOOP
            for (int64_t i = 0; i < width; i++) {
                uint32_t pair = (uint32_t)lo[i] | (uint32_t)hi[i] << 16;

                memcpy(out + 2 * i, &pair, sizeof(pair));
            }
        } else {
            for (int64_t i = 0; i < width; i++) {
                out[2 * i] = r < rows ? lo[i] : 0;
                out[2 * i + 1] = 0;
            }
        }
        memset(out + 2 * width, 0, (size_t)(room - width) * 4);
    }
}

/* Fetches rows that will be wanted soon: they lie far apart, which no hardware foresees. */
DT_INLINE void dt_bf16_soon(const uint16_t *x, int64_t stride, int64_t rows, int64_t width)
{
    for (int64_t r = 0; r < rows; r++)
        for (int64_t i = 0; i < width; i += 32) /* a cache line */
            __builtin_prefetch(x + r * stride + i);
}

/* `ops` of the device; called by attention_fwd and attention_bwd of the same instruction set
 * after they have checked the arguments. */
void DT_SIMD(dt_cpu_attention_bf16_fwd)(struct dt_device_queue *q,
                                        const struct dt_cpu_bf16_ops *ops,
                                        const struct dt_kernel_attention *p, const void *query,
                                        const void *key, const void *value, void *o, float *lse);
void DT_SIMD(dt_cpu_attention_bf16_bwd)(struct dt_device_queue *q,
                                        const struct dt_cpu_bf16_ops *ops,
                                        const struct dt_kernel_attention *p, const void *query,
                                        const void *key, const void *value, const void *o,
                                        const float *lse, const void *d_o, void *dq, void *dk,
                                        void *dv);

#endif
