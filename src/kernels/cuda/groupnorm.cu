/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * GroupNorm, with SiLU behind it where asked.
 *
 * Sums are made per channel first, where accesses are whole and in a row, by blocks of COLUMNS accesses and
 * a chunk of pixels; then one block per item makes sums of groups of them. */
#include "kernels/cuda/cuda.h"

enum { COLUMNS = 32, LANES = 8, THREADS = COLUMNS * LANES };

struct image {
    struct dt_kernel_items items;
    int channels, per; /* channels of a group */
    float eps;
    bool silu;
};
#ifndef __CUDACC__
static void dt_cu_see(struct image &g, const char *kernel)
{
    dt_cu_see(g.items, kernel);
}
#endif

/* y = z sigmoid(z) and its derivative */
__device__ __forceinline__ float silu_of(float z, float *d)
{
    float s = 1 / (1 + __expf(-z));

    *d = s * (1 - s) > 0 ? s + z * s * (1 - s) : s;
    return z * s;
}

/* Two sums per channel over the block's pixels, to part[chunk][2][channels]. */
template <int V>
__device__ void leave_sums(const struct image &g, float s1[V], float s2[V], float *room,
                           float *part)
{
    int column = threadIdx.x % COLUMNS, lane = threadIdx.x / COLUMNS;
    int64_t at = (blockIdx.y * (int64_t)COLUMNS + column) * V;
    float *to = part + blockIdx.x * 2 * (int64_t)g.channels + at;

    for (int which = 0; which < 2; which++) {
        float *s = which ? s2 : s1;

        for (int j = 0; j < V; j++) {
            __syncthreads();
            room[threadIdx.x] = s[j];
            __syncthreads();
            if (lane == 0 && at < g.channels) {
                float sum = 0;

                for (int l = 0; l < LANES; l++)
                    sum += room[l * COLUMNS + column];
                to[which * (int64_t)g.channels + j] = sum;
            }
        }
    }
}

/* Sums of x - k and of its square, k being the first pixel's first channel of the group: the variance of
 * values far from 0 would be lost otherwise. */
template <typename T, int V> __global__ void stats_kernel(struct image g, const T *x, float *part)
{
    DT_SHARED(float, room, THREADS);
    int64_t at = (blockIdx.y * (int64_t)COLUMNS + threadIdx.x % COLUMNS) * V;
    struct dt_cu_chunk c = dt_cu_chunk_of(g.items, blockIdx.x);
    float s1[V] = {}, s2[V] = {}, f[V], k[V];

    if (c.begin >= c.end)
        return;
    if (at < g.channels) {
        for (int j = 0; j < V; j++)
            k[j] =
                dt_cu_float(x[(int64_t)g.items.cu[c.item] * g.channels + (at + j) / g.per * g.per]);
        for (int64_t p = c.begin + threadIdx.x / COLUMNS; p < c.end; p += LANES) {
            dt_cu_load<V>(f, x + p * g.channels + at);
            for (int j = 0; j < V; j++) {
                s1[j] += f[j] - k[j];
                s2[j] += (f[j] - k[j]) * (f[j] - k[j]);
            }
        }
    }
    leave_sums<V>(g, s1, s2, room, part);
}

/* One block per item, a warp per group in turn. */
template <typename T>
__global__ void stats_end(struct image g, int groups, const T *x, const float *part, float *mean,
                          float *rstd)
{
    int lane = threadIdx.x % 32;
    int64_t n = dt_cu_chunks_of(g.items, blockIdx.x) * g.per, first = g.items.cu[blockIdx.x];
    int64_t pixels = g.items.cu[blockIdx.x + 1] - first;

    if (pixels == 0)
        return;
    x += first * g.channels;
    part += dt_cu_first_chunk(g.items, blockIdx.x) * 2 * g.channels;
    for (int group = threadIdx.x / 32; group < groups; group += THREADS / 32) {
        double s1 = 0, s2 = 0, count = (double)pixels * g.per;

        for (int64_t i = lane; i < n; i += 32) {
            const float *p = part + i / g.per * 2 * g.channels + group * g.per + i % g.per;

            s1 += (double)p[0];
            s2 += (double)p[g.channels];
        }
        s1 = dt_cu_warp_sum(s1) / count;
        s2 = dt_cu_warp_sum(s2) / count - s1 * s1;
        if (lane == 0) {
            mean[blockIdx.x * (int64_t)groups + group] =
                (float)((double)dt_cu_float(x[group * g.per]) + s1);
            rstd[blockIdx.x * (int64_t)groups + group] =
                (float)(1 / sqrt((s2 > 0 ? s2 : 0) + (double)g.eps));
        }
    }
}

template <typename T, int V>
__global__ void forward_kernel(struct image g, int64_t n, const T *x, const float *gamma,
                               const float *beta, const float *mean, const float *rstd, T *y)
{
    int groups = g.channels / g.per;

    for (int64_t i = V * (blockIdx.x * (int64_t)blockDim.x + threadIdx.x); i < n;
         i += V * (int64_t)gridDim.x * blockDim.x) {
        int64_t item = dt_cu_item_of(g.items, i / g.channels);
        int c = (int)(i % g.channels);
        float f[V], d;

        dt_cu_load<V>(f, x + i);
        for (int j = 0; j < V; j++) {
            int64_t s = item * groups + (c + j) / g.per;
            float z = (f[j] - mean[s]) * rstd[s] * gamma[c + j] + beta[c + j];

            f[j] = g.silu ? silu_of(z, &d) : z;
        }
        dt_cu_store<V>(y + i, f);
    }
}

/* dy behind the norm (before SiLU), and the normed x, of element j of an access. */
__device__ __forceinline__ void slopes(const struct image &g, float x, float dy, float mu, float rs,
                                       float gamma, float beta, float *dz, float *hat)
{
    float d;

    *hat = (x - mu) * rs;
    *dz = dy;
    if (g.silu) {
        silu_of(*hat * gamma + beta, &d);
        *dz = dy * d;
    }
}

/* Per channel: sums of dz and of dz hat. */
template <typename T, int V>
__global__ void grad_sums(struct image g, const T *x, const float *gamma, const float *beta,
                          const float *mean, const float *rstd, const T *dy, float *part)
{
    DT_SHARED(float, room, THREADS);
    int64_t at = (blockIdx.y * (int64_t)COLUMNS + threadIdx.x % COLUMNS) * V;
    struct dt_cu_chunk c = dt_cu_chunk_of(g.items, blockIdx.x);
    int64_t stat = c.item * (int64_t)(g.channels / g.per);
    float s1[V] = {}, s2[V] = {}, f[V], d[V], dz, hat;

    if (c.begin >= c.end)
        return;
    if (at < g.channels)
        for (int64_t p = c.begin + threadIdx.x / COLUMNS; p < c.end; p += LANES) {
            dt_cu_load<V>(f, x + p * g.channels + at);
            dt_cu_load<V>(d, dy + p * g.channels + at);
            for (int j = 0; j < V; j++) {
                int64_t s = stat + (at + j) / g.per;

                slopes(g, f[j], d[j], mean[s], rstd[s], g.silu ? gamma[at + j] : 0,
                       g.silu ? beta[at + j] : 0, &dz, &hat);
                s1[j] += dz;
                s2[j] += dz * hat;
            }
        }
    leave_sums<V>(g, s1, s2, room, part);
}

/* Of an item: the sums over its chunks take the place of its first one's; by group, means of g = dz gamma and
 * g hat. */
__global__ void grad_groups(struct image g, const float *gamma, float *part, float *group)
{
    int groups = g.channels / g.per, lane = threadIdx.x % 32;
    int64_t chunks = dt_cu_chunks_of(g.items, blockIdx.x);
    int64_t pixels = g.items.cu[blockIdx.x + 1] - g.items.cu[blockIdx.x];

    part += dt_cu_first_chunk(g.items, blockIdx.x) * 2 * g.channels;
    group += blockIdx.x * (int64_t)groups * 2;
    for (int c = threadIdx.x; c < 2 * g.channels; c += THREADS) {
        float s = 0;

        for (int64_t i = 0; i < chunks; i++)
            s += part[i * 2 * g.channels + c];
        part[c] = s;
    }
    __syncthreads();
    for (int k = threadIdx.x / 32; k < groups; k += THREADS / 32) {
        float s1 = 0, s2 = 0, count = (float)pixels * (float)g.per;

        for (int c = k * g.per + lane; c < (k + 1) * g.per; c += 32) {
            s1 += part[c] * gamma[c];
            s2 += part[g.channels + c] * gamma[c];
        }
        s1 = dt_cu_warp_sum(s1);
        s2 = dt_cu_warp_sum(s2);
        if (lane == 0) {
            group[2 * k] = s1 / count;
            group[2 * k + 1] = s2 / count;
        }
    }
}

template <typename T, int V>
__global__ void grad_kernel(struct image g, int64_t n, const T *x, const float *gamma,
                            const float *beta, const float *mean, const float *rstd, const T *dy,
                            const float *group, T *dx, bool add)
{
    int groups = g.channels / g.per;

    for (int64_t i = V * (blockIdx.x * (int64_t)blockDim.x + threadIdx.x); i < n;
         i += V * (int64_t)gridDim.x * blockDim.x) {
        int64_t item = dt_cu_item_of(g.items, i / g.channels);
        int c = (int)(i % g.channels);
        float f[V], d[V], before[V], dz, hat;

        dt_cu_load<V>(f, x + i);
        dt_cu_load<V>(d, dy + i);
        if (add)
            dt_cu_load<V>(before, dx + i);
        for (int j = 0; j < V; j++) {
            int64_t s = item * groups + (c + j) / g.per;
            float w = gamma[c + j];

            slopes(g, f[j], d[j], mean[s], rstd[s], w, g.silu ? beta[c + j] : 0, &dz, &hat);
            f[j] =
                rstd[s] * (dz * w - group[2 * s] - hat * group[2 * s + 1]) + (add ? before[j] : 0);
        }
        dt_cu_store<V>(dx + i, f);
    }
}

/* Sums of all items, in their order. */
__global__ void grad_params(struct image g, const float *part, float *dgamma, float *dbeta,
                            bool add)
{
    int c = (int)(blockIdx.x * blockDim.x + threadIdx.x);
    float s1 = 0, s2 = 0;

    if (c >= g.channels)
        return;
    for (int64_t i = 0; i < g.items.n; i++) {
        const float *p = part + dt_cu_first_chunk(g.items, i) * 2 * g.channels + c;

        s1 += p[0];
        s2 += p[g.channels];
    }
    dgamma[c] = add ? dgamma[c] + s2 : s2;
    dbeta[c] = add ? dbeta[c] + s1 : s1;
}

static struct image image_of(const struct dt_kernel_groupnorm *g)
{
    return {g->items, g->channels, g->channels / g->groups, g->eps, g->silu};
}

template <typename T> static bool fits(const struct dt_kernel_groupnorm *g)
{
    return g->channels % (16 / (int)sizeof(T)) == 0;
}

static void groupnorm_fwd(struct dt_device_queue *q, const struct dt_kernel_groupnorm *g,
                          const void *x, const float *gamma, const float *beta, void *y,
                          float *mean, float *rstd)
{
    struct image s = image_of(g);
    int64_t n = g->items.rows * g->channels, chunks = dt_cuda_chunk_numbers(&g->items);
    float *part;

    if (n == 0)
        return;
    part = (float *)dt_cuda_scratch(q, DT_SCRATCH_KERNEL,
                                    sizeof(float) * (size_t)(chunks * 2 * g->channels));
    if (!part)
        return;
    DT_BY_TYPE(g->dtype, DT_BY_WIDTH(fits<T>(g) && dt_cuda_aligned(x, y), {
                   dim3 grid((unsigned)chunks, (unsigned)dt_cuda_blocks(g->channels, COLUMNS * V));

                   DT_LAUNCH(q, grid, THREADS, 0, (stats_kernel<T, V>), s, (const T *)x, part);
                   DT_LAUNCH(q, (unsigned)g->items.n, THREADS, 0, (stats_end<T>), s, g->groups,
                             (const T *)x, (const float *)part, mean, rstd);
                   DT_LAUNCH(q, dt_cuda_grid(q, n / V, THREADS), THREADS, 0, (forward_kernel<T, V>),
                             s, n, (const T *)x, gamma, beta, (const float *)mean,
                             (const float *)rstd, (T *)y);
               }));
}

static void groupnorm_bwd(struct dt_device_queue *q, const struct dt_kernel_groupnorm *g,
                          const void *x, const float *gamma, const float *beta, const float *mean,
                          const float *rstd, const void *dy, void *dx, bool add_dx, float *dgamma,
                          float *dbeta, bool add_w)
{
    struct image s = image_of(g);
    int64_t n = g->items.rows * g->channels, chunks = dt_cuda_chunk_numbers(&g->items);
    int64_t sums = chunks * 2 * g->channels;
    unsigned blocks = (unsigned)dt_cuda_blocks(g->channels, THREADS);
    float *part, *group;

    if (n == 0) {
        s.items.n = 0;
        if (dgamma && !add_w && g->channels > 0)
            DT_LAUNCH(q, blocks, THREADS, 0, grad_params, s, (const float *)NULL, dgamma, dbeta,
                      false);
        return;
    }
    part = (float *)dt_cuda_scratch(q, DT_SCRATCH_KERNEL,
                                    sizeof(float) * (size_t)(sums + g->items.n * g->groups * 2));
    if (!part)
        return;
    group = part + sums;
    DT_BY_TYPE(g->dtype, DT_BY_WIDTH(fits<T>(g) && dt_cuda_aligned(x, dy, dx), {
                   dim3 grid((unsigned)chunks, (unsigned)dt_cuda_blocks(g->channels, COLUMNS * V));

                   DT_LAUNCH(q, grid, THREADS, 0, (grad_sums<T, V>), s, (const T *)x, gamma, beta,
                             mean, rstd, (const T *)dy, part);
                   DT_LAUNCH(q, (unsigned)g->items.n, THREADS, 0, grad_groups, s, gamma, part,
                             group);
                   if (dx)
                       DT_LAUNCH(q, dt_cuda_grid(q, n / V, THREADS), THREADS, 0,
                                 (grad_kernel<T, V>), s, n, (const T *)x, gamma, beta, mean, rstd,
                                 (const T *)dy, (const float *)group, (T *)dx, add_dx);
               }));
    if (dgamma)
        DT_LAUNCH(q, blocks, THREADS, 0, grad_params, s, (const float *)part, dgamma, dbeta, add_w);
}

void dt_cuda_groupnorm(struct dt_kernels *k)
{
    k->groupnorm_fwd = groupnorm_fwd;
    k->groupnorm_bwd = groupnorm_bwd;
}
