/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Noise and dropout, by counters. */
#include "kernels/cpu/simd.h"

#include "base/rng.h"

enum { BLOCK = 4096 }; /* a multiple of a Philox block */

struct noise {
    enum dt_dtype t;
    int64_t n;
    uint64_t seed, stream, first;
    float f;
    uint32_t limit;
    const void *x;
    void *y;
};

static void normal_block(void *arg, int64_t block, int thread)
{
    const struct noise *a = arg;
    int64_t end = dt_cpu_min64((block + 1) * BLOCK, a->n);

    (void)thread;
    for (int64_t i = block * BLOCK; i < end; i++)
        dt_st(a->y, i, a->f * (float)dt_rng_normal_at(a->seed, a->stream, a->first + (uint64_t)i),
              a->t);
}

static void normal(struct dt_device_queue *q, enum dt_dtype dtype, int64_t n, uint64_t seed,
                   uint64_t stream, uint64_t first, float scale, void *y)
{
    struct noise a = {
        .t = dtype, .n = n, .seed = seed, .stream = stream, .first = first, .f = scale, .y = y};

    if (q->status == DT_OK)
        dt_cpu_for(q, dt_cpu_blocks(n, BLOCK), normal_block, &a);
}

static void dropout_block(void *arg, int64_t block, int thread)
{
    const struct noise *a = arg;
    const uint32_t key[2] = {(uint32_t)a->seed, (uint32_t)(a->seed >> 32)};
    int64_t end = dt_cpu_min64((block + 1) * BLOCK, a->n);
    uint32_t word[4];

    (void)thread;
    for (int64_t i = block * BLOCK; i < end; i++) {
        if (i % 4 == 0) {
            uint64_t at = a->first / 4 + (uint64_t)i / 4;
            const uint32_t ctr[4] = {(uint32_t)at, (uint32_t)(at >> 32), (uint32_t)a->stream,
                                     (uint32_t)(a->stream >> 32)};

            dt_rng_philox4x32(ctr, key, word);
        }
        dt_st(a->y, i, word[i % 4] < a->limit ? 0.0f : a->f * dt_ld(a->x, i, a->t), a->t);
    }
}

static void dropout(struct dt_device_queue *q, enum dt_dtype dtype, int64_t n, uint64_t seed,
                    uint64_t stream, uint64_t first, float p, const void *x, void *y)
{
    struct noise a = {.t = dtype,
                      .n = n,
                      .seed = seed,
                      .stream = stream,
                      .first = first,
                      .f = 1.0f / (1.0f - p),
                      .limit = (uint32_t)((double)p * 4294967296.0),
                      .x = x,
                      .y = y};

    assert(p >= 0 && p < 1 && first % 4 == 0);
    if (q->status == DT_OK)
        dt_cpu_for(q, dt_cpu_blocks(n, BLOCK), dropout_block, &a);
}

void DT_SIMD(dt_cpu_random)(struct dt_kernels *k)
{
    k->normal = normal;
    k->dropout = dropout;
}
