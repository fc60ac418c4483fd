/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * RMSNorm and LayerNorm.
 *
 * A row belongs to a warp where it is narrow, else to a block ("group" below).  Its elements stay in registers
 * from one pass to the next, KEPT accesses per thread; what a very wide row has beyond that is read again. */
#include "kernels/cuda/cuda.h"

enum { THREADS = 256, KEPT = 4, NARROW = 1024, CHUNKS = 264, CHUNKS_NARROW = 64 };

struct rows { /* struct dt_kernel_norm, as kernels want it */
    int64_t rows, width, inner, stride;
    float eps;
};

__device__ __forceinline__ int64_t row_at(const struct rows &n, int64_t r)
{
    return n.inner > 0 ? r / n.inner * n.stride + r % n.inner * n.width : r * n.width;
}

template <int G> __device__ __forceinline__ float group_sum(float x, float *room)
{
    if constexpr (G == 32)
        return dt_cu_warp_sum(x);
    else
        return dt_cu_block_sum(x, room);
}

template <typename T, int V, bool WHOLE, int G, bool LAYER>
__global__ void __launch_bounds__(THREADS)
    forward_kernel(struct rows n, const T *x, const float *gamma, const float *beta, T *y,
                   float *mean, float *rstd)
{
    DT_SHARED(float, room, 32);
    int64_t r = blockIdx.x * (int64_t)(THREADS / G) + threadIdx.x / G;
    int64_t t = threadIdx.x % G * V, step = G * V, far = KEPT * step + t;
    float c[KEPT][V], f[V], g[V], b[V], mu = 0, sum = 0;

    if (r >= n.rows) /* a whole warp; blocks have one row or such warps */
        return;
    x += row_at(n, r);
    y += row_at(n, r);
#pragma unroll
    for (int k = 0; k < KEPT; k++) {
        bool in = k * step + t < n.width;

        if (in)
            dt_cu_load<V, WHOLE>(c[k], x + k * step + t);
        for (int j = 0; j < V; j++)
            c[k][j] = in ? c[k][j] : 0;
    }
    if constexpr (LAYER) {
#pragma unroll
        for (int k = 0; k < KEPT; k++)
            for (int j = 0; j < V; j++)
                mu += c[k][j];
        for (int64_t at = far; at < n.width; at += step) {
            dt_cu_load<V, WHOLE>(f, x + at);
            for (int j = 0; j < V; j++)
                mu += f[j];
        }
        mu = group_sum<G>(mu, room) / (float)n.width;
    }
#pragma unroll
    for (int k = 0; k < KEPT; k++)
        for (int j = 0; j < V; j++)
            if (k * step + t < n.width)
                sum += (c[k][j] - mu) * (c[k][j] - mu);
    for (int64_t at = far; at < n.width; at += step) {
        dt_cu_load<V, WHOLE>(f, x + at);
        for (int j = 0; j < V; j++)
            sum += (f[j] - mu) * (f[j] - mu);
    }
    float rs = rsqrtf(group_sum<G>(sum, room) / (float)n.width + n.eps);

#pragma unroll
    for (int k = 0; k <= KEPT; k++)
        for (int64_t at = k * step + t; at < n.width; at += step) {
            if (k < KEPT)
                for (int j = 0; j < V; j++)
                    f[j] = c[k < KEPT ? k : 0][j];
            else
                dt_cu_load<V, WHOLE>(f, x + at);
            dt_cu_load<V, WHOLE>(g, gamma + at);
            if constexpr (LAYER)
                dt_cu_load<V, WHOLE>(b, beta + at);
            for (int j = 0; j < V; j++)
                f[j] = (f[j] - mu) * rs * g[j] + (LAYER ? b[j] : 0);
            dt_cu_store<V, WHOLE>(y + at, f);
            if (k < KEPT)
                break;
        }
    if (t == 0) {
        rstd[r] = rs;
        if constexpr (LAYER)
            mean[r] = mu;
    }
}

/* One group's share of a pass of the backward at elements `at`: what the sums and the result need of one access. */
template <typename T, int V, bool WHOLE> struct piece {
    float hat[V], dy[V], g[V]; /* normed x, dy, dy gamma */

    __device__ __forceinline__ void get(const T *x, const T *d, const float *gamma, int64_t at,
                                        float mu, float rs)
    {
        float w[V];

        dt_cu_load<V, WHOLE>(hat, x + at);
        dt_cu_load<V, WHOLE>(dy, d + at);
        dt_cu_load<V, WHOLE>(w, gamma + at);
        for (int j = 0; j < V; j++) {
            hat[j] = (hat[j] - mu) * rs;
            g[j] = dy[j] * w[j];
        }
    }
};

/* Group `blockIdx.x * (THREADS / G) + ...` takes every groups-th row, and leaves the sums over its rows in
 * its own row of part: dgamma's, then dbeta's. */
template <typename T, int V, bool WHOLE, int G, bool LAYER>
__global__ void __launch_bounds__(THREADS)
    backward_kernel(struct rows n, const T *x, const float *gamma, const float *mean,
                    const float *rstd, const T *dy, T *dx, bool add_dx, float *part)
{
    DT_SHARED(float, room, 32);
    int64_t group = blockIdx.x * (int64_t)(THREADS / G) + threadIdx.x / G;
    int64_t groups = gridDim.x * (int64_t)(THREADS / G);
    int64_t t = threadIdx.x % G * V, step = G * V;
    float dg[KEPT][V] = {}, db[KEPT][V] = {};
    float *mine = part ? part + group * (LAYER ? 2 : 1) * n.width : NULL;
    bool first = true;

    for (int64_t r = group; r < n.rows; r += groups, first = false) {
        const T *xr = x + row_at(n, r), *dr = dy + row_at(n, r);
        float mu = LAYER ? mean[r] : 0, rs = rstd[r], s1 = 0, s2 = 0;
        struct piece<T, V, WHOLE> p;

#pragma unroll
        for (int k = 0; k <= KEPT; k++)
            for (int64_t at = k * step + t; at < n.width; at += step) {
                p.get(xr, dr, gamma, at, mu, rs);
                for (int j = 0; j < V; j++) {
                    s1 += p.g[j];
                    s2 += p.g[j] * p.hat[j];
                }
                if (k < KEPT) {
                    for (int j = 0; j < V; j++) {
                        dg[k < KEPT ? k : 0][j] += p.dy[j] * p.hat[j];
                        db[k < KEPT ? k : 0][j] += p.dy[j];
                    }
                    break;
                }
                for (int j = 0; mine && j < V; j++) { /* this thread's alone */
                    mine[at + j] = (first ? 0 : mine[at + j]) + p.dy[j] * p.hat[j];
                    if constexpr (LAYER)
                        mine[n.width + at + j] = (first ? 0 : mine[n.width + at + j]) + p.dy[j];
                }
            }
        if (!dx)
            continue;
        s2 = group_sum<G>(s2, room) / (float)n.width;
        s1 = LAYER ? group_sum<G>(s1, room) / (float)n.width : 0;
        for (int64_t at = t; at < n.width; at += step) {
            float f[V], before[V];
            T *to = dx + row_at(n, r) + at;

            p.get(xr, dr, gamma, at, mu, rs);
            if (add_dx)
                dt_cu_load<V, WHOLE>(before, to);
            for (int j = 0; j < V; j++)
                f[j] = rs * (p.g[j] - s1 - p.hat[j] * s2) + (add_dx ? before[j] : 0);
            dt_cu_store<V, WHOLE>(to, f);
        }
    }
    if (!mine)
        return;
#pragma unroll
    for (int k = 0; k < KEPT; k++)
        for (int j = 0; j < V; j++)
            if (k * step + t < n.width) {
                mine[k * step + t + j] = dg[k][j];
                if constexpr (LAYER)
                    mine[n.width + k * step + t + j] = db[k][j];
            }
    for (int64_t at = KEPT * step + t; first && at < n.width; at += step) /* it had no row */
        for (int j = 0; j < V; j++) {
            mine[at + j] = 0;
            if constexpr (LAYER)
                mine[n.width + at + j] = 0;
        }
}

template <typename T> static bool fits(const struct dt_kernel_norm *n)
{
    return (n->width | (n->inner > 0 ? n->stride : 0)) % (16 / (int)sizeof(T)) == 0;
}

template <bool LAYER>
static void forward(struct dt_device_queue *q, const struct dt_kernel_norm *n, const void *x,
                    const float *gamma, const float *beta, void *y, float *mean, float *rstd)
{
    struct rows s = {n->rows, n->width, n->inner, n->stride, n->eps};

    if (n->rows == 0)
        return;
    DT_BY_TYPE(n->dtype, DT_BY_ACCESS(fits<T>(n), dt_cuda_aligned(x, y, gamma, beta), {
                   if (n->width <= NARROW)
                       DT_LAUNCH(q, (unsigned)dt_cuda_blocks(n->rows, THREADS / 32), THREADS, 0,
                                 (forward_kernel<T, V, WHOLE, 32, LAYER>), s, (const T *)x, gamma,
                                 beta, (T *)y, mean, rstd);
                   else
                       DT_LAUNCH(q, (unsigned)n->rows, THREADS, 0,
                                 (forward_kernel<T, V, WHOLE, THREADS, LAYER>), s, (const T *)x,
                                 gamma, beta, (T *)y, mean, rstd);
               }));
}

template <bool LAYER>
static void backward(struct dt_device_queue *q, const struct dt_kernel_norm *n, const void *x,
                     const float *gamma, const float *mean, const float *rstd, const void *dy,
                     void *dx, bool add_dx, float *dgamma, float *dbeta, bool add_w)
{
    struct rows s = {n->rows, n->width, n->inner, n->stride, n->eps};
    bool narrow = n->width <= NARROW;
    int64_t per = narrow ? THREADS / 32 : 1, most = narrow ? CHUNKS_NARROW : CHUNKS;
    int64_t want = dt_cuda_blocks(n->rows, per), blocks = want < most ? want : most;
    int64_t groups = blocks * per, sums = (LAYER ? 2 : 1) * n->width;
    float *part = NULL;

    if (n->width == 0 || (n->rows == 0 && (add_w || !dgamma)))
        return;
    if (dgamma) {
        part = (float *)dt_cuda_scratch(q, DT_SCRATCH_KERNEL,
                                        sizeof(float) * (size_t)(groups * sums + sums));
        if (!part)
            return;
    }
    if (n->rows > 0)
        DT_BY_TYPE(n->dtype, DT_BY_ACCESS(fits<T>(n), dt_cuda_aligned(x, dy, dx, gamma), {
                       if (narrow)
                           DT_LAUNCH(q, (unsigned)blocks, THREADS, 0,
                                     (backward_kernel<T, V, WHOLE, 32, LAYER>), s, (const T *)x,
                                     gamma, mean, rstd, (const T *)dy, (T *)dx, add_dx, part);
                       else
                           DT_LAUNCH(q, (unsigned)blocks, THREADS, 0,
                                     (backward_kernel<T, V, WHOLE, THREADS, LAYER>), s,
                                     (const T *)x, gamma, mean, rstd, (const T *)dy, (T *)dx,
                                     add_dx, part);
                   }));
    if (!dgamma)
        return;
    if (!LAYER) {
        dt_cuda_add_parts(q, groups, n->width, part, dgamma, add_w);
        return;
    }
    /* both kinds at once, then each to its place */
    float *both = part + groups * sums;

    dt_cuda_add_parts(q, groups, sums, part, both, false);
    q->dev->k->copy2d(q, DT_F32, 1, n->width, both, n->width, dgamma, n->width, add_w);
    if (dbeta)
        q->dev->k->copy2d(q, DT_F32, 1, n->width, both + n->width, n->width, dbeta, n->width,
                          add_w);
}

static void rmsnorm_fwd(struct dt_device_queue *q, const struct dt_kernel_norm *n, const void *x,
                        const float *gamma, void *y, float *rstd)
{
    forward<false>(q, n, x, gamma, NULL, y, NULL, rstd);
}

static void rmsnorm_bwd(struct dt_device_queue *q, const struct dt_kernel_norm *n, const void *x,
                        const float *gamma, const float *rstd, const void *dy, void *dx,
                        bool add_dx, float *dgamma, bool add_w)
{
    backward<false>(q, n, x, gamma, NULL, rstd, dy, dx, add_dx, dgamma, NULL, add_w);
}

static void layernorm_fwd(struct dt_device_queue *q, const struct dt_kernel_norm *n, const void *x,
                          const float *gamma, const float *beta, void *y, float *mean, float *rstd)
{
    forward<true>(q, n, x, gamma, beta, y, mean, rstd);
}

static void layernorm_bwd(struct dt_device_queue *q, const struct dt_kernel_norm *n, const void *x,
                          const float *gamma, const float *mean, const float *rstd, const void *dy,
                          void *dx, bool add_dx, float *dgamma, float *dbeta, bool add_w)
{
    backward<true>(q, n, x, gamma, mean, rstd, dy, dx, add_dx, dgamma, dbeta, add_w);
}

void dt_cuda_norm(struct dt_kernels *k)
{
    k->rmsnorm_fwd = rmsnorm_fwd;
    k->rmsnorm_bwd = rmsnorm_bwd;
    k->layernorm_fwd = layernorm_fwd;
    k->layernorm_bwd = layernorm_bwd;
}
