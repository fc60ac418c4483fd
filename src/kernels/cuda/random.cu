/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Noise and dropout, by counters: the numbers of base/rng.h. */
#include "kernels/cuda/cuda.h"

#include <math.h>

#define DT_NORMAL_FUNCTION static __device__
#include "base/normal_as241.h"

enum { THREADS = 256 };

struct stream {
    uint64_t seed, stream, first;
};

/* Philox4x32-10 (Salmon et al., SC'11), as base/rng.c */
__device__ __forceinline__ void philox(const struct stream &s, uint64_t block, uint32_t out[4])
{
    uint32_t c0 = (uint32_t)block, c1 = (uint32_t)(block >> 32);
    uint32_t c2 = (uint32_t)s.stream, c3 = (uint32_t)(s.stream >> 32);
    uint32_t k0 = (uint32_t)s.seed, k1 = (uint32_t)(s.seed >> 32);

#pragma unroll
    for (int round = 0; round < 10; round++) {
        uint32_t h0 = __umulhi(0xD2511F53u, c0), l0 = 0xD2511F53u * c0;
        uint32_t h1 = __umulhi(0xCD9E8D57u, c2), l1 = 0xCD9E8D57u * c2;

        c0 = h1 ^ c1 ^ k0;
        c1 = l1;
        c2 = h0 ^ c3 ^ k1;
        c3 = l0;
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    out[0] = c0;
    out[1] = c1;
    out[2] = c2;
    out[3] = c3;
}

__device__ __forceinline__ float one_normal(const struct stream &s, uint64_t i)
{
    uint32_t w[4];

    philox(s, (s.first + i) ^ ((uint64_t)1 << 63), w);
    uint64_t bits = (uint64_t)w[1] << 32 | w[0];

    return (float)dt_normal_as241(((double)(bits >> 12) + 0.5) * 0x1p-52);
}

template <typename T> __global__ void normal_kernel(int64_t n, struct stream s, float scale, T *y)
{
    for (int64_t i = blockIdx.x * (int64_t)blockDim.x + threadIdx.x; i < n;
         i += (int64_t)gridDim.x * blockDim.x)
        y[i] = dt_cu_from_float<T>(scale * one_normal(s, (uint64_t)i));
}

static void normal(struct dt_device_queue *q, enum dt_dtype dtype, int64_t n, uint64_t seed,
                   uint64_t stream, uint64_t first, float scale, void *y)
{
    struct stream s = {seed, stream, first};

    if (n == 0)
        return;
    DT_BY_TYPE(dtype, DT_LAUNCH(q, dt_cuda_grid(q, n, THREADS), THREADS, 0, (normal_kernel<T>), n,
                                s, scale, (T *)y));
}

template <typename T>
__global__ void item_normal_kernel(struct dt_kernel_items items, int64_t width, uint64_t seed,
                                   const uint64_t *stream, float scale, T *y)
{
    for (int64_t i = blockIdx.x * (int64_t)blockDim.x + threadIdx.x; i < items.rows * width;
         i += (int64_t)gridDim.x * blockDim.x) {
        int item = dt_cu_item_of(items, i / width);
        struct stream s = {seed, stream[item], 0};

        y[i] = dt_cu_from_float<T>(scale * one_normal(s, (uint64_t)(i - items.cu[item] * width)));
    }
}

static void item_normal(struct dt_device_queue *q, enum dt_dtype dtype,
                        const struct dt_kernel_items *items, int64_t width, uint64_t seed,
                        const uint64_t *stream, float scale, void *y)
{
    int64_t n = items->rows * width;

    if (n > 0)
        DT_BY_TYPE(dtype,
                   DT_LAUNCH(q, dt_cuda_grid(q, n, THREADS), THREADS, 0, (item_normal_kernel<T>),
                             *items, width, seed, stream, scale, (T *)y));
}

/* WHOLE: four elements, one block of random words, at a time; else one. */
template <typename T, bool WHOLE>
__global__ void dropout_kernel(struct dt_kernel_items items, int64_t width, uint64_t seed,
                               const uint64_t *stream, const int32_t *begin, int64_t first,
                               int64_t n, uint32_t limit, float f, const T *x, T *y)
{
    constexpr int V = WHOLE ? 4 : 1;

    for (int64_t i = V * (blockIdx.x * (int64_t)blockDim.x + threadIdx.x); i < n;
         i += V * (int64_t)gridDim.x * blockDim.x) {
        int item = dt_cu_item_of(items, first + i / width);
        int64_t e = (first - items.cu[item] + (begin ? begin[item] : 0)) * width + i;
        struct stream s = {seed, stream[item], 0};
        uint32_t w[4];
        float v[V];

        philox(s, (uint64_t)e / 4, w);
        dt_cu_load<V>(v, x + i);
        for (int j = 0; j < V; j++)
            v[j] = w[WHOLE ? j : e % 4] < limit ? 0.0f : f * v[j];
        dt_cu_store<V>(y + i, v);
    }
}

static void dropout(struct dt_device_queue *q, enum dt_dtype dtype,
                    const struct dt_kernel_items *items, int64_t width, uint64_t seed,
                    const uint64_t *stream, const int32_t *begin, int64_t first, int64_t rows,
                    float p, const void *x, void *y)
{
    uint32_t limit = (uint32_t)((double)p * 4294967296.0);
    float f = 1.0f / (1.0f - p);
    int64_t n = rows * width;

    assert(p >= 0 && p < 1);
    if (n == 0)
        return;
    DT_BY_TYPE(dtype, {
        if (width % 4 == 0 && dt_cuda_aligned(x, y))
            DT_LAUNCH(q, dt_cuda_grid(q, n / 4, THREADS), THREADS, 0, (dropout_kernel<T, true>),
                      *items, width, seed, stream, begin, first, n, limit, f, (const T *)x, (T *)y);
        else
            DT_LAUNCH(q, dt_cuda_grid(q, n, THREADS), THREADS, 0, (dropout_kernel<T, false>),
                      *items, width, seed, stream, begin, first, n, limit, f, (const T *)x, (T *)y);
    });
}

void dt_cuda_random(struct dt_kernels *k)
{
    k->normal = normal;
    k->item_normal = item_normal;
    k->dropout = dropout;
}
