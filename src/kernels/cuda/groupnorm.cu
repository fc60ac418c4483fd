/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * GroupNorm, with SiLU behind it where asked.
 *
 * A block has a chunk of pixels and as many columns (accesses of the channels) as it has threads for; a thread keeps to
 * its column, so that what belongs to channels is read once for all its pixels.  Sums are made per channel
 * first, of all chunks, then of the channels of a group. */
#include "kernels/cuda/cuda.h"

enum { THREADS = 256, CHUNK = 64, FEW = 128, LANES = 8 };

struct image {
    struct dt_kernel_items items;
    int channels, per; /* channels of a group */
    float eps;
    bool silu;
    int columns, lanes; /* of a block: accesses of a pixel, pixels side by side */
};
#ifndef __CUDACC__
static void dt_cu_see(struct image &g, const char *kernel)
{
    dt_cu_see(g.items, kernel);
}
#endif

/* z sigmoid(z) and its derivative */
__device__ __forceinline__ float silu_of(float z, float *d)
{
    float s = 1 / (1 + __expf(-z)), e = dt_cu_mul(s, 1 - s);

    *d = e > 0 ? dt_cu_fma(z, e, s) : s; /* not infinity times 0 */
    return dt_cu_mul(z, s);
}

/* What a thread is for: V channels from `at` on, and pixels begin, begin + lanes, ... of its chunk. */
struct task {
    struct dt_cu_chunk c;
    int at, column, lane, stride; /* stride: elements from one of its pixels to the next */
    int pixels;                   /* 0: it has none */
    int64_t first;                /* element */
};
template <int V> __device__ __forceinline__ struct task task_of(const struct image &g)
{
    struct task t;

    t.c = dt_cu_chunk_of<CHUNK>(g.items, blockIdx.x);
    t.column = (int)threadIdx.x % g.columns;
    t.lane = (int)threadIdx.x / g.columns;
    t.at = ((int)blockIdx.y * g.columns + t.column) * V;
    t.stride = g.lanes * g.channels;
    t.first = (t.c.begin + t.lane) * g.channels + t.at;
    t.pixels = (int)(t.c.end - t.c.begin) - t.lane;
    t.pixels = t.lane < g.lanes && t.at < g.channels && t.pixels > 0
                   ? (t.pixels + g.lanes - 1) / g.lanes
                   : 0;
    return t;
}

/* The block's sums of a column's pixels, lane by lane, to part[chunk][which][channels]. */
template <int V>
__device__ __forceinline__ void leave_sums(const struct image &g, const struct task &t,
                                           const float (&s)[V], int which, float *room, float *part)
{
    int first = (int)blockIdx.y * g.columns * V;
    float *to = part + (blockIdx.x * (int64_t)2 + which) * g.channels + first;

    __syncthreads();
    if (t.lane < g.lanes)
        for (int j = 0; j < V; j++)
            room[(t.lane * V + j) * g.columns + t.column] = s[j];
    __syncthreads();
    for (int i = threadIdx.x; i < g.columns * V; i += THREADS) {
        float sum = 0;

        for (int l = 0; l < g.lanes; l++)
            sum += room[(l * V + i % V) * g.columns + i / V];
        if (first + i < g.channels)
            to[i] = sum;
    }
}

/* The second number of __launch_bounds__ gives ptxas registers enough for what is under way.
 *
 * Sums of x - k and of its square, k being the first pixel's first channel of the group: the variance of
 * values far from 0 would be lost otherwise. */
template <typename T, int V, bool WHOLE>
__global__ void __launch_bounds__(THREADS, 4) stats_kernel(struct image g, const T *x, float *part)
{
    DT_SHARED(float, room, THREADS *V);
    struct task t = task_of<V>(g);
    float s1[V] = {}, s2[V] = {}, k[V] = {};

    if (t.c.begin >= t.c.end)
        return;
    for (int j = 0; t.pixels > 0 && j < V; j++)
        k[j] =
            dt_cu_float(x[(int64_t)g.items.cu[t.c.item] * g.channels + (t.at + j) / g.per * g.per]);
    x += t.first;
#pragma unroll 8
    for (int p = 0; p < t.pixels; p++) {
        dt_cu_packed<T, V> f = dt_cu_take<V, WHOLE>(x + (int64_t)p * t.stride);

#pragma unroll
        for (int j = 0; j < V; j++) {
            float d = f.at(j) - k[j];

            s1[j] += d;
            s2[j] = dt_cu_fma(d, d, s2[j]);
        }
    }
    leave_sums<V>(g, t, s1, 0, room, part);
    leave_sums<V>(g, t, s2, 1, room, part);
}

/* One block per item and group. */
template <typename T>
__global__ void __launch_bounds__(FEW)
    stats_end(struct image g, const T *x, const float *part, float *mean, float *rstd)
{
    DT_SHARED(double, room, 32);
    int64_t n = dt_cu_chunks_of<CHUNK>(g.items, blockIdx.x) * g.per;
    int64_t first = g.items.cu[blockIdx.x], pixels = g.items.cu[blockIdx.x + 1] - first;
    double s1 = 0, s2 = 0, count = (double)pixels * g.per;

    if (pixels == 0)
        return;
    part += dt_cu_first_chunk<CHUNK>(g.items, blockIdx.x) * 2 * g.channels + blockIdx.y * g.per;
    for (int64_t i = threadIdx.x; i < n; i += FEW) {
        const float *p = part + i / g.per * 2 * g.channels + i % g.per;

        s1 += (double)p[0];
        s2 += (double)p[g.channels];
    }
    s1 = dt_cu_block_sum(s1, room) / count;
    s2 = dt_cu_block_sum(s2, room) / count - s1 * s1;
    if (threadIdx.x == 0) {
        int64_t to = blockIdx.x * (int64_t)gridDim.y + blockIdx.y;

        mean[to] = (float)((double)dt_cu_float(x[first * g.channels + blockIdx.y * g.per]) + s1);
        rstd[to] = (float)(1 / sqrt((s2 > 0 ? s2 : 0) + (double)g.eps));
    }
}

template <typename T, int V, bool WHOLE>
__global__ void __launch_bounds__(THREADS)
    forward_kernel(struct image g, const T *x, const float *gamma, const float *beta,
                   const float *mean, const float *rstd, T *y)
{
    struct task t = task_of<V>(g);
    int64_t stat = t.c.item * (int64_t)(g.channels / g.per);
    float mu[V], a[V], b[V];

    if (t.pixels <= 0)
        return;
    dt_cu_load<V, WHOLE>(a, gamma + t.at);
    dt_cu_load<V, WHOLE>(b, beta + t.at);
#pragma unroll
    for (int j = 0; j < V; j++) {
        mu[j] = mean[stat + (t.at + j) / g.per];
        a[j] = dt_cu_mul(rstd[stat + (t.at + j) / g.per], a[j]);
    }
    x += t.first;
    y += t.first;
#pragma unroll 4
    for (int p = 0; p < t.pixels; p++) {
        dt_cu_packed<T, V> in = dt_cu_take<V, WHOLE>(x + (int64_t)p * t.stride);
        float f[V], d;

#pragma unroll
        for (int j = 0; j < V; j++) {
            f[j] = dt_cu_fma(in.at(j) - mu[j], a[j], b[j]);
            f[j] = g.silu ? silu_of(f[j], &d) : f[j];
        }
        dt_cu_store<V, WHOLE>(y + (int64_t)p * t.stride, f);
    }
}

/* Of V channels of an item, for the backward. */
template <int V> struct channels {
    float mu[V], rs[V], gamma[V], beta[V];

    template <bool WHOLE>
    __device__ __forceinline__ void get(const struct image &g, const struct task &t,
                                        const float *ga, const float *be, const float *mean,
                                        const float *rstd)
    {
        int64_t stat = t.c.item * (int64_t)(g.channels / g.per);

        dt_cu_load<V, WHOLE>(gamma, ga + t.at);
        if (g.silu)
            dt_cu_load<V, WHOLE>(beta, be + t.at);
#pragma unroll
        for (int j = 0; j < V; j++) {
            mu[j] = mean[stat + (t.at + j) / g.per];
            rs[j] = rstd[stat + (t.at + j) / g.per];
        }
    }
    /* dy behind the norm (before SiLU), and the normed x, of one element. */
    __device__ __forceinline__ void slopes(bool silu, int j, float x, float dy, float *dz,
                                           float *hat) const
    {
        float d;

        *hat = dt_cu_mul(x - mu[j], rs[j]);
        *dz = dy;
        if (silu) {
            silu_of(dt_cu_fma(*hat, gamma[j], beta[j]), &d);
            *dz = dt_cu_mul(dy, d);
        }
    }
};

/* Per channel: sums of dz and of dz hat. */
template <typename T, int V, bool WHOLE>
__global__ void __launch_bounds__(THREADS, 2)
    grad_sums(struct image g, const T *x, const float *gamma, const float *beta, const float *mean,
              const float *rstd, const T *dy, float *part)
{
    DT_SHARED(float, room, THREADS *V);
    struct task t = task_of<V>(g);
    struct channels<V> c;
    float s1[V] = {}, s2[V] = {}, dz, hat;

    if (t.c.begin >= t.c.end)
        return;
    if (t.pixels > 0)
        c.template get<WHOLE>(g, t, gamma, beta, mean, rstd);
    x += t.first;
    dy += t.first;
#pragma unroll 4
    for (int p = 0; p < t.pixels; p++) {
        dt_cu_packed<T, V> f = dt_cu_take<V, WHOLE>(x + (int64_t)p * t.stride);
        dt_cu_packed<T, V> d = dt_cu_take<V, WHOLE>(dy + (int64_t)p * t.stride);

#pragma unroll
        for (int j = 0; j < V; j++) {
            c.slopes(g.silu, j, f.at(j), d.at(j), &dz, &hat);
            s1[j] += dz;
            s2[j] = dt_cu_fma(dz, hat, s2[j]);
        }
    }
    leave_sums<V>(g, t, s1, 0, room, part);
    leave_sums<V>(g, t, s2, 1, room, part);
}

/* Of an item and a group: the sums over the item's chunks take the place of its first one's; means of dz gamma and of
 * that times hat. */
__global__ void __launch_bounds__(THREADS)
    grad_groups(struct image g, const float *gamma, float *part, float *group)
{
    DT_SHARED(float, room, THREADS);
    int64_t chunks = dt_cu_chunks_of<CHUNK>(g.items, blockIdx.x);
    int64_t pixels = g.items.cu[blockIdx.x + 1] - g.items.cu[blockIdx.x];
    int lane = (int)threadIdx.x / 32, first = (int)blockIdx.y * g.per;

    part += dt_cu_first_chunk<CHUNK>(g.items, blockIdx.x) * 2 * g.channels;
    for (int begin = 0; begin < 2 * g.per; begin += 32) {
        int c = begin + (int)threadIdx.x % 32;
        int64_t at = c / g.per * (int64_t)g.channels + first + c % g.per;
        float s = 0;

        if (c < 2 * g.per) {
#pragma unroll 8
            for (int64_t i = lane; i < chunks; i += LANES)
                s += part[i * 2 * g.channels + at];
        }
        __syncthreads();
        room[threadIdx.x] = s;
        __syncthreads();
        if (lane == 0 && c < 2 * g.per) {
            for (int l = 1; l < LANES; l++)
                s += room[l * 32 + threadIdx.x];
            part[at] = s;
        }
    }
    __syncthreads();
    if (lane > 0)
        return;
    float s1 = 0, s2 = 0, count = (float)pixels * (float)g.per;

    for (int c = first + (int)threadIdx.x; c < first + g.per; c += 32) {
        s1 = dt_cu_fma(part[c], gamma[c], s1);
        s2 = dt_cu_fma(part[g.channels + c], gamma[c], s2);
    }
    s1 = dt_cu_warp_sum(s1);
    s2 = dt_cu_warp_sum(s2);
    if (threadIdx.x == 0) {
        float *to = group + 2 * (blockIdx.x * (int64_t)gridDim.y + blockIdx.y);

        to[0] = s1 / count;
        to[1] = s2 / count;
    }
}

template <typename T, int V, bool WHOLE>
__global__ void __launch_bounds__(THREADS)
    grad_kernel(struct image g, const T *x, const float *gamma, const float *beta,
                const float *mean, const float *rstd, const T *dy, const float *group, T *dx,
                bool add)
{
    struct task t = task_of<V>(g);
    int64_t stat = t.c.item * (int64_t)(g.channels / g.per);
    struct channels<V> c;
    float m1[V], m2[V];

    if (t.pixels <= 0)
        return;
    c.template get<WHOLE>(g, t, gamma, beta, mean, rstd);
#pragma unroll
    for (int j = 0; j < V; j++) {
        m1[j] = group[2 * (stat + (t.at + j) / g.per)];
        m2[j] = group[2 * (stat + (t.at + j) / g.per) + 1];
    }
    x += t.first;
    dy += t.first;
    dx += t.first;
#pragma unroll 2
    for (int p = 0; p < t.pixels; p++) {
        dt_cu_packed<T, V> in = dt_cu_take<V, WHOLE>(x + (int64_t)p * t.stride);
        dt_cu_packed<T, V> d = dt_cu_take<V, WHOLE>(dy + (int64_t)p * t.stride);
        float f[V], before[V], dz, hat;

        if (add)
            dt_cu_load<V, WHOLE>(before, dx + (int64_t)p * t.stride);
#pragma unroll
        for (int j = 0; j < V; j++) {
            c.slopes(g.silu, j, in.at(j), d.at(j), &dz, &hat);
            f[j] = dt_cu_fma(-hat, m2[j], dt_cu_fma(dz, c.gamma[j], -m1[j]));
            f[j] = add ? dt_cu_fma(c.rs[j], f[j], before[j]) : dt_cu_mul(c.rs[j], f[j]);
        }
        dt_cu_store<V, WHOLE>(dx + (int64_t)p * t.stride, f);
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
#pragma unroll 4
    for (int64_t i = 0; i < g.items.n; i++) {
        const float *p = part + dt_cu_first_chunk<CHUNK>(g.items, i) * 2 * g.channels + c;

        s1 += p[0];
        s2 += p[g.channels];
    }
    dgamma[c] = add ? dgamma[c] + s2 : s2;
    dbeta[c] = add ? dbeta[c] + s1 : s1;
}

/* Columns of a block: of all accesses, or of even parts of them where that leaves an eighth fewer of its threads idle. */
static void divide(struct image *g, int accesses, unsigned *parts)
{
    int best = 0;

    for (int p = 1; p <= accesses && p <= 8 + accesses / THREADS; p++) {
        int columns = (accesses + p - 1) / p, lanes = THREADS / columns;
        int busy = lanes > 0 ? accesses * lanes / p : 0;

        if (8 * busy <= 9 * best) /* not for little: whole lines, and several pixels for a thread */
            continue;
        best = busy;
        g->columns = columns;
        g->lanes = lanes;
        *parts = (unsigned)p;
    }
}

static struct image image_of(const struct dt_kernel_groupnorm *g)
{
    return {g->items, g->channels, g->channels / g->groups, g->eps, g->silu, 1, 1};
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
    int64_t n = g->items.rows * g->channels, chunks = dt_cuda_chunk_numbers<CHUNK>(&g->items);
    dim3 each((unsigned)g->items.n, (unsigned)g->groups);
    float *part;

    if (n == 0)
        return;
    part = (float *)dt_cuda_scratch(q, DT_SCRATCH_KERNEL,
                                    sizeof(float) * (size_t)(chunks * 2 * g->channels));
    if (!part)
        return;
    DT_BY_TYPE(g->dtype, DT_BY_ACCESS(fits<T>(g), dt_cuda_aligned(x, y, gamma, beta), {
                   unsigned parts = 1;

                   divide(&s, g->channels / V, &parts);
                   dim3 grid((unsigned)chunks, parts);

                   DT_LAUNCH(q, grid, THREADS, 0, (stats_kernel<T, V, WHOLE>), s, (const T *)x,
                             part);
                   DT_LAUNCH(q, each, FEW, 0, (stats_end<T>), s, (const T *)x, (const float *)part,
                             mean, rstd);
                   DT_LAUNCH(q, grid, THREADS, 0, (forward_kernel<T, V, WHOLE>), s, (const T *)x,
                             gamma, beta, (const float *)mean, (const float *)rstd, (T *)y);
               }));
}

static void groupnorm_bwd(struct dt_device_queue *q, const struct dt_kernel_groupnorm *g,
                          const void *x, const float *gamma, const float *beta, const float *mean,
                          const float *rstd, const void *dy, void *dx, bool add_dx, float *dgamma,
                          float *dbeta, bool add_w)
{
    struct image s = image_of(g);
    int64_t n = g->items.rows * g->channels, chunks = dt_cuda_chunk_numbers<CHUNK>(&g->items);
    int64_t sums = chunks * 2 * g->channels;
    unsigned blocks = (unsigned)dt_cuda_blocks(g->channels, THREADS);
    dim3 each((unsigned)g->items.n, (unsigned)g->groups);
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
    DT_BY_TYPE(g->dtype, DT_BY_ACCESS(fits<T>(g), dt_cuda_aligned(x, dy, dx, gamma, beta), {
                   unsigned parts = 1;

                   divide(&s, g->channels / V, &parts);
                   dim3 grid((unsigned)chunks, parts);

                   DT_LAUNCH(q, grid, THREADS, 0, (grad_sums<T, V, WHOLE>), s, (const T *)x, gamma,
                             beta, mean, rstd, (const T *)dy, part);
                   DT_LAUNCH(q, each, THREADS, 0, grad_groups, s, gamma, part, group);
                   if (dx)
                       DT_LAUNCH(q, grid, THREADS, 0, (grad_kernel<T, V, WHOLE>), s, (const T *)x,
                                 gamma, beta, mean, rstd, (const T *)dy, (const float *)group,
                                 (T *)dx, add_dx);
               }));
    if (dgamma)
        DT_LAUNCH(q, blocks, THREADS, 0, grad_params, s, (const float *)part, dgamma, dbeta, add_w);
}

void dt_cuda_groupnorm(struct dt_kernels *k)
{
    k->groupnorm_fwd = groupnorm_fwd;
    k->groupnorm_bwd = groupnorm_bwd;
}
