/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * RMSNorm and LayerNorm.
 *
 * A row belongs to a group of threads, a warp where it is narrow: as many as have the row in KEPT accesses each, all of
 * them under way at once, and in registers from one pass to the next.  What a very wide row has beyond that is read
 * again.  A block has several groups, and all of them come to its barriers, also those without a row. */
#include "kernels/cuda/cuda.h"

/* CHUNKS: blocks of the backward, each of which leaves a row of sums: two for every processor of an H100.  It holds one or
 * two sums of every column in registers, 128 of them as two blocks have on a processor, so a thread has fewer accesses
 * than in the forward. */
enum { THREADS = 256, WIDEST = 512, KEPT_FORWARD = 8, CHUNKS = 264 };
template <bool LAYER> constexpr int kept = LAYER ? 3 : 4;

struct rows { /* struct dt_kernel_norm, as kernels want it */
    int64_t rows, inner, stride;
    int width;
    float eps;
};

__device__ __forceinline__ int64_t row_at(const struct rows &n, int64_t r)
{
    return n.inner > 0 ? r / n.inner * n.stride + r % n.inner * n.width : r * n.width;
}

/* The sums of N numbers each over the `group` threads of a row, in the order of its warps. */
template <int N> __device__ __forceinline__ void group_sums(int group, float (&x)[N], float *room)
{
    int warp = threadIdx.x / 32, warps = group / 32, first = warp / warps * warps;

#pragma unroll
    for (int i = 0; i < N; i++)
        x[i] = dt_cu_warp_sum(x[i]);
    if (warps == 1)
        return;
    __syncthreads(); /* who used the room before has read it */
    if (threadIdx.x % 32 == 0)
        for (int i = 0; i < N; i++)
            room[N * warp + i] = x[i];
    __syncthreads();
    for (int i = 0; i < N; i++) {
        x[i] = 0;
        for (int w = 0; w < warps; w++)
            x[i] += room[N * (first + w) + i];
    }
}

/* GROUP: threads of a row, 0: `group` of them (tensors of odd widths or places, for which nothing is unrolled twice). */
template <typename T, int V, bool WHOLE, int GROUP, bool LAYER>
__global__ void __launch_bounds__(GROUP == 0 || GROUP > THREADS ? WIDEST : THREADS)
    forward_kernel(struct rows n, int group, const T *x, const float *gamma, const float *beta,
                   T *y, float *mean, float *rstd)
{
    DT_SHARED(float, room, 32);
    const int G = GROUP > 0 ? GROUP : group;
    int64_t r = blockIdx.x * (int64_t)(blockDim.x / G) + threadIdx.x / G;
    int width = r < n.rows ? n.width : 0, t = threadIdx.x % G * V, step = G * V;
    dt_cu_packed<T, V> c[KEPT_FORWARD] = {};
    float mu = 0, sum[1] = {0}, f[V], g[V], b[V];

    x += row_at(n, r);
    y += row_at(n, r);
#pragma unroll
    for (int k = 0; k < KEPT_FORWARD; k++)
        if (k * step + t < width)
            c[k] = dt_cu_take<V, WHOLE>(x + k * step + t);
    if constexpr (LAYER) {
#pragma unroll
        for (int k = 0; k < KEPT_FORWARD; k++)
            for (int j = 0; j < V; j++)
                if (k * step + t < width)
                    sum[0] += c[k].at(j);
        for (int at = KEPT_FORWARD * step + t; at < width; at += step) {
            dt_cu_load<V, WHOLE>(f, x + at);
            for (int j = 0; j < V; j++)
                sum[0] += f[j];
        }
        group_sums<1>(G, sum, room);
        mu = sum[0] / (float)n.width;
        sum[0] = 0;
        dt_cu_forget_all(c);
    }
#pragma unroll
    for (int k = 0; k < KEPT_FORWARD; k++)
        for (int j = 0; j < V; j++)
            if (k * step + t < width) {
                float d = c[k].at(j) - mu;

                sum[0] = dt_cu_fma(d, d, sum[0]);
            }
    for (int at = KEPT_FORWARD * step + t; at < width; at += step) {
        dt_cu_load<V, WHOLE>(f, x + at);
        for (int j = 0; j < V; j++)
            sum[0] = dt_cu_fma(f[j] - mu, f[j] - mu, sum[0]);
    }
    dt_cu_forget_all(c);
    group_sums<1>(G, sum, room);
    float rs = rsqrtf(sum[0] / (float)n.width + n.eps);

#pragma unroll
    for (int k = 0; k <= KEPT_FORWARD; k++)
        for (int at = k * step + t; at < width; at += step) {
            if (k < KEPT_FORWARD)
                for (int j = 0; j < V; j++)
                    f[j] = c[k < KEPT_FORWARD ? k : 0].at(j);
            else
                dt_cu_load<V, WHOLE>(f, x + at);
            dt_cu_load<V, WHOLE>(g, gamma + at);
            if constexpr (LAYER)
                dt_cu_load<V, WHOLE>(b, beta + at);
            for (int j = 0; j < V; j++) {
                f[j] = dt_cu_mul(f[j] - mu, rs);
                f[j] = LAYER ? dt_cu_fma(f[j], g[j], b[j]) : dt_cu_mul(f[j], g[j]);
            }
            dt_cu_store<V, WHOLE>(y + at, f);
            if (k < KEPT_FORWARD)
                break;
        }
    if (t == 0 && width > 0) {
        rstd[r] = rs;
        if constexpr (LAYER)
            mean[r] = mu;
    }
}

/* What sums and result of the backward need of one access: normed x, dy, dy gamma. */
template <typename T, int V, bool WHOLE> struct piece {
    float hat[V], dy[V], g[V];

    __device__ __forceinline__ piece(const dt_cu_packed<T, V> &x, const dt_cu_packed<T, V> &d,
                                     const float *gamma, float mu, float rs)
    {
        dt_cu_load<V, WHOLE>(g, gamma);
#pragma unroll
        for (int j = 0; j < V; j++) {
            hat[j] = dt_cu_mul(x.at(j) - mu, rs);
            dy[j] = d.at(j);
            g[j] = dt_cu_mul(dy[j], g[j]);
        }
    }
};

/* dx (+)= rs (g - s1 - hat s2) */
template <typename T, int V, bool WHOLE>
__device__ __forceinline__ void put_gradient(const struct piece<T, V, WHOLE> &p, float s1, float s2,
                                             float rs, T *dx, bool add)
{
    float f[V], before[V];

    if (add)
        dt_cu_load<V, WHOLE>(before, dx);
#pragma unroll
    for (int j = 0; j < V; j++) {
        f[j] = dt_cu_fma(-p.hat[j], s2, p.g[j] - s1);
        f[j] = add ? dt_cu_fma(rs, f[j], before[j]) : dt_cu_mul(rs, f[j]);
    }
    dt_cu_store<V, WHOLE>(dx, f);
}

/* Sums of columns of a block's groups, in their order, to `to`. */
template <int KEPT, int V>
__device__ __forceinline__ void leave_sums(int group, int width, const float (&sum)[KEPT][V],
                                           float *room, float *to)
{
    int groups = blockDim.x / group, me = (int)threadIdx.x, t = me % group * V;

#pragma unroll
    for (int k = 0; k < KEPT; k++) {
        float s[V];

        for (int j = 0; j < V; j++)
            s[j] = sum[k][j];
        if (groups > 1) {
            __syncthreads();
            for (int j = 0; j < V; j++)
                room[me * V + j] = s[j];
            __syncthreads();
            for (int g = 1; me < group && g < groups; g++)
                for (int j = 0; j < V; j++)
                    s[j] += room[(g * group + me) * V + j];
        }
        if (me < group && k * group * V + t < width)
            for (int j = 0; j < V; j++)
                to[k * group * V + t + j] = s[j];
    }
}

/* A block's groups take rows side by side, then those of a launch's blocks further on, and the block leaves the sums over
 * its rows in its own row of part: dgamma's, then dbeta's. */
template <typename T, int V, bool WHOLE, int GROUP, bool LAYER>
__global__ void __launch_bounds__(GROUP == 0 || GROUP > THREADS ? WIDEST : THREADS,
                                  GROUP == 0 || GROUP > THREADS ? 1 : 2)
    backward_kernel(struct rows n, int group, const T *x, const float *gamma, const float *mean,
                    const float *rstd, const T *dy, T *dx, bool add_dx, float *part)
{
    DT_SHARED(float, room, 64);
    DT_SHARED(float, fold, GROUP == 0 || GROUP < THREADS ? THREADS * V : 1);
    constexpr int KEPT = kept<LAYER>;
    const int G = GROUP > 0 ? GROUP : group;
    int groups = blockDim.x / G, t = threadIdx.x % G * V, step = G * V;
    float dg[KEPT][V] = {}, db[KEPT][V] = {};
    float *mine = part ? part + blockIdx.x * (LAYER ? 2 : 1) * (int64_t)n.width : NULL;
    bool first = true;

    for (int64_t base = blockIdx.x * (int64_t)groups; base < n.rows;
         base += gridDim.x * (int64_t)groups, first = false) {
        int64_t r = base + threadIdx.x / G, row = row_at(n, r);
        int width = r < n.rows ? n.width : 0;
        float mu = LAYER && width > 0 ? mean[r] : 0, rs = width > 0 ? rstd[r] : 0;
        float s[LAYER ? 2 : 1] = {0}, s1 = 0, s2;
        dt_cu_packed<T, V> xs[KEPT] = {}, ds[KEPT] = {};

#pragma unroll
        for (int k = 0; k < KEPT; k++)
            if (k * step + t < width) {
                xs[k] = dt_cu_take<V, WHOLE>(x + row + k * step + t);
                ds[k] = dt_cu_take<V, WHOLE>(dy + row + k * step + t);
            }
#pragma unroll
        for (int k = 0; k < KEPT; k++)
            if (k * step + t < width) {
                struct piece<T, V, WHOLE> p(xs[k], ds[k], gamma + k * step + t, mu, rs);

                for (int j = 0; j < V; j++) {
                    s[0] = dt_cu_fma(p.g[j], p.hat[j], s[0]);
                    dg[k][j] = dt_cu_fma(p.dy[j], p.hat[j], dg[k][j]);
                    if constexpr (LAYER) {
                        s[1] += p.g[j];
                        db[k][j] += p.dy[j];
                    }
                }
            }
        for (int at = KEPT * step + t; at < width; at += step) { /* one group in the block */
            struct piece<T, V, WHOLE> p(dt_cu_take<V, WHOLE>(x + row + at),
                                        dt_cu_take<V, WHOLE>(dy + row + at), gamma + at, mu, rs);

            for (int j = 0; j < V; j++) {
                s[0] = dt_cu_fma(p.g[j], p.hat[j], s[0]);
                if constexpr (LAYER)
                    s[1] += p.g[j];
                if (mine) { /* this thread's alone */
                    mine[at + j] = dt_cu_fma(p.dy[j], p.hat[j], first ? 0 : mine[at + j]);
                    if constexpr (LAYER)
                        mine[n.width + at + j] = (first ? 0 : mine[n.width + at + j]) + p.dy[j];
                }
            }
        }
        if (!dx)
            continue;
        dt_cu_forget_all(xs);
        dt_cu_forget_all(ds);
        group_sums(G, s, room);
        s2 = s[0] / (float)n.width;
        if constexpr (LAYER)
            s1 = s[1] / (float)n.width;
#pragma unroll
        for (int k = 0; k < KEPT; k++)
            if (k * step + t < width) {
                struct piece<T, V, WHOLE> p(xs[k], ds[k], gamma + k * step + t, mu, rs);

                put_gradient(p, s1, s2, rs, dx + row + k * step + t, add_dx);
            }
        for (int at = KEPT * step + t; at < width; at += step) {
            struct piece<T, V, WHOLE> p(dt_cu_take<V, WHOLE>(x + row + at),
                                        dt_cu_take<V, WHOLE>(dy + row + at), gamma + at, mu, rs);

            put_gradient(p, s1, s2, rs, dx + row + at, add_dx);
        }
    }
    if (!mine)
        return;
    leave_sums(G, n.width, dg, fold, mine);
    if constexpr (LAYER)
        leave_sums(G, n.width, db, fold, mine + n.width);
}

template <typename T> static bool fits(const struct dt_kernel_norm *n)
{
    return (n->width | (n->inner > 0 ? n->stride : 0)) % (16 / (int)sizeof(T)) == 0;
}

/* Threads for a row of so many accesses, and of a block that has such groups. */
static int group_for(int64_t accesses, int kept, bool forward)
{
    int g = 32;

    while (g < WIDEST && (int64_t)g * kept < accesses)
        g *= forward ? 4 : 2; /* 32, 128, 512 are enough where a thread has more accesses */
    return g;
}
static int threads_of(int group)
{
    return group > THREADS ? group : THREADS;
}

/* A statement with G as a constant where accesses are whole, else 0; FEW: of 32, 128 and 512. */
#define BY_GROUP(few, group, whole, ...)                                                           \
    do {                                                                                           \
        if constexpr (!(whole)) {                                                                  \
            constexpr int G = 0;                                                                   \
            __VA_ARGS__;                                                                           \
        } else if ((group) == 32) {                                                                \
            constexpr int G = 32;                                                                  \
            __VA_ARGS__;                                                                           \
        } else if ((group) == 128) {                                                               \
            constexpr int G = 128;                                                                 \
            __VA_ARGS__;                                                                           \
        } else if ((group) == 512) {                                                               \
            constexpr int G = 512;                                                                 \
            __VA_ARGS__;                                                                           \
        } else if constexpr (few) {                                                                \
            assert(!"a group of another size");                                                    \
        } else if ((group) == 64) {                                                                \
            constexpr int G = 64;                                                                  \
            __VA_ARGS__;                                                                           \
        } else {                                                                                   \
            constexpr int G = 256;                                                                 \
            __VA_ARGS__;                                                                           \
        }                                                                                          \
    } while (0)

template <typename T, int V, bool WHOLE, bool LAYER>
static void forward_by(struct dt_device_queue *q, const struct rows &s, const T *x,
                       const float *gamma, const float *beta, T *y, float *mean, float *rstd)
{
    int group = group_for(s.width / V, KEPT_FORWARD, true), threads = threads_of(group);
    unsigned blocks = (unsigned)dt_cuda_blocks(s.rows, threads / group);

    BY_GROUP(true, group, WHOLE && V > 1,
             DT_LAUNCH(q, blocks, threads, 0, (forward_kernel<T, V, WHOLE, G, LAYER>), s, group, x,
                       gamma, beta, y, mean, rstd));
}

static struct rows rows_of(const struct dt_kernel_norm *n)
{
    assert(n->width <= 1 << 30);
    return {n->rows, n->inner, n->stride, (int)n->width, n->eps};
}

template <bool LAYER>
static void forward(struct dt_device_queue *q, const struct dt_kernel_norm *n, const void *x,
                    const float *gamma, const float *beta, void *y, float *mean, float *rstd)
{
    if (n->rows > 0)
        DT_BY_TYPE(n->dtype,
                   DT_BY_ACCESS(fits<T>(n), dt_cuda_aligned(x, y, gamma, beta),
                                (forward_by<T, V, WHOLE, LAYER>(q, rows_of(n), (const T *)x, gamma,
                                                                beta, (T *)y, mean, rstd))));
}

struct backward { /* what goes in and what comes out */
    const void *x;
    const float *gamma, *mean, *rstd;
    const void *dy;
    void *dx;
    bool add_dx;
};

/* *blocks: of sums in part. */
template <typename T, int V, bool WHOLE, bool LAYER>
static void backward_by(struct dt_device_queue *q, const struct rows &s, const struct backward &b,
                        float *part, int64_t *blocks)
{
    int group = group_for(s.width / V, kept<LAYER>, false), threads = threads_of(group);
    int64_t want = dt_cuda_blocks(s.rows, threads / group);

    *blocks = want < CHUNKS ? want : CHUNKS;
    BY_GROUP(false, group, WHOLE && V > 1,
             DT_LAUNCH(q, (unsigned)*blocks, threads, 0, (backward_kernel<T, V, WHOLE, G, LAYER>),
                       s, group, (const T *)b.x, b.gamma, b.mean, b.rstd, (const T *)b.dy,
                       (T *)b.dx, b.add_dx, part));
}

template <bool LAYER>
static void backward(struct dt_device_queue *q, const struct dt_kernel_norm *n,
                     const struct backward &b, float *dgamma, float *dbeta, bool add_w)
{
    int64_t sums = (LAYER ? 2 : 1) * n->width, most = n->rows < CHUNKS ? n->rows : CHUNKS;
    int64_t blocks = 0;
    float *part = NULL;

    if (n->width == 0 || (n->rows == 0 && (add_w || !dgamma)))
        return;
    if (dgamma) {
        part = (float *)dt_cuda_scratch(q, DT_SCRATCH_KERNEL,
                                        sizeof(float) * (size_t)(most * sums) + 4);
        if (!part)
            return;
    }
    if (n->rows > 0)
        DT_BY_TYPE(n->dtype, DT_BY_ACCESS(fits<T>(n), dt_cuda_aligned(b.x, b.dy, b.dx, b.gamma),
                                          (backward_by<T, V, WHOLE, LAYER>(q, rows_of(n), b, part,
                                                                           &blocks))));
    if (dgamma && LAYER)
        dt_cuda_add_pairs(q, blocks, n->width, part, dgamma, dbeta, add_w);
    else if (dgamma)
        dt_cuda_add_parts(q, blocks, n->width, part, dgamma, add_w);
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
    backward<false>(q, n, {x, gamma, NULL, rstd, dy, dx, add_dx}, dgamma, NULL, add_w);
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
    backward<true>(q, n, {x, gamma, mean, rstd, dy, dx, add_dx}, dgamma, dbeta, add_w);
}

void dt_cuda_norm(struct dt_kernels *k)
{
    k->rmsnorm_fwd = rmsnorm_fwd;
    k->rmsnorm_bwd = rmsnorm_bwd;
    k->layernorm_fwd = layernorm_fwd;
    k->layernorm_bwd = layernorm_bwd;
}
