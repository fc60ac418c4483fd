/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Attention of bf16 on tensor cores: tiles of 64 queries and 64 keys, four warps of 16 rows each, an online
 * softmax in registers (Dao, "FlashAttention-2", 2023).  The backward makes dq, and dk with dv, in a kernel each,
 * forming the scores twice: every sum has one owner, so that results do not change from run to run. */
#include "kernels/cuda/attention.h"

enum { TILE = 64, WARPS = 4, THREADS = 32 * WARPS, HALF = 32 };
#define LOG2E 1.4426950408889634f

/* Rows of a tile in shared memory: D elements and 16 bytes, so that eight rows lie in different banks. */
template <int D> struct tile {
    static constexpr int LD = D + 8;
    static constexpr int SIZE = TILE * LD;
};

/* ---- fragments; see ptx.h ---- */

/* rows r .. r+15, columns c .. c+15 */
template <int LD>
__device__ __forceinline__ void get_a(unsigned a[4], const dt_cu_bf16 *t, int r, int c)
{
    int lane = threadIdx.x % 32;

    dt_cu_load_matrices(a, t + (r + lane % 16) * LD + c + lane / 16 * 8);
}
/* Of the transpose: columns are rows n .. n+15 of t, rows its columns c .. c+15; b[0..1] for n .. n+7. */
template <int LD>
__device__ __forceinline__ void get_b_turned(unsigned b[4], const dt_cu_bf16 *t, int n, int c)
{
    int lane = threadIdx.x % 32;

    dt_cu_load_matrices(b, t + (n + lane / 16 * 8 + lane % 8) * LD + c + lane / 8 % 2 * 8);
}
/* rows r .. r+15, columns c .. c+15; b[0..1] for c .. c+7 */
template <int LD>
__device__ __forceinline__ void get_b(unsigned b[4], const dt_cu_bf16 *t, int r, int c)
{
    int lane = threadIdx.x % 32;

    dt_cu_load_matrices_turned(b, t + (r + lane / 8 % 2 * 8 + lane % 8) * LD + c + lane / 16 * 8);
}

/* c[16, N*8] += rows r.. of a by (rows n.. of b)ᵀ, over D columns */
template <int D, int N>
__device__ __forceinline__ void scores(float c[N][4], const dt_cu_bf16 *a, int r,
                                       const dt_cu_bf16 *b, int n)
{
    constexpr int LD = tile<D>::LD;

#pragma unroll
    for (int k = 0; k < D; k += 16) {
        unsigned fa[4], fb[4];

        get_a<LD>(fa, a, r, k);
#pragma unroll
        for (int i = 0; i < N; i += 2) {
            get_b_turned<LD>(fb, b, n + 8 * i, k);
            dt_cu_mma(c[i], fa, fb);
            dt_cu_mma(c[i + 1], fa, fb + 2);
        }
    }
}

/* c[16, D] += p[16, N*8] by rows r.. of b; p: as `scores` leaves it, rounded here */
template <int D, int N>
__device__ __forceinline__ void gather(float c[D / 8][4], const float p[N][4], const dt_cu_bf16 *b,
                                       int r)
{
    constexpr int LD = tile<D>::LD;

#pragma unroll
    for (int k = 0; k < N; k += 2) {
        unsigned fa[4] = {dt_cu_pack_bf16(p[k][0], p[k][1]), dt_cu_pack_bf16(p[k][2], p[k][3]),
                          dt_cu_pack_bf16(p[k + 1][0], p[k + 1][1]),
                          dt_cu_pack_bf16(p[k + 1][2], p[k + 1][3])};
        unsigned fb[4];

#pragma unroll
        for (int i = 0; i < D / 8; i += 2) {
            get_b<LD>(fb, b, r + 8 * k, 8 * i);
            dt_cu_mma(c[i], fa, fb);
            dt_cu_mma(c[i + 1], fa, fb + 2);
        }
    }
}

/* Rows begin .. begin + TILE - 1 of x, of which `rows` are there, D columns of which `n` are. */
template <int D>
__device__ __forceinline__ void fetch(dt_cu_bf16 *t, const dt_cu_bf16 *x, int64_t stride, int begin,
                                      int rows, int n)
{
    for (int i = threadIdx.x; i < TILE * D / 8; i += THREADS) {
        int r = i / (D / 8), c = i % (D / 8) * 8;
        bool there = begin + r < rows && c < n;

        dt_cu_copy_async(t + r * tile<D>::LD + c, there ? x + (begin + r) * stride + c : x, there);
    }
}

/* Rows g and g + 8 of a warp's 16 x D result, times `by`, to rows of memory below `rows`. */
template <int D>
__device__ __forceinline__ void put(const float c[D / 8][4], const float by[2], dt_cu_bf16 *x,
                                    int64_t stride, int begin, int rows, int n)
{
    int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;

#pragma unroll
    for (int half = 0; half < 2; half++) {
        int r = begin + g + 8 * half;

        if (r >= rows)
            continue;
#pragma unroll
        for (int i = 0; i < D / 8; i++)
            if (8 * i < n)
                *reinterpret_cast<unsigned *>(x + r * stride + 8 * i + 2 * t) =
                    dt_cu_pack_bf16(c[i][2 * half] * by[half], c[i][2 * half + 1] * by[half]);
    }
}

__device__ __forceinline__ float quad_sum(float x)
{
    x += __shfl_xor_sync(0xffffffffu, x, 1);
    return x + __shfl_xor_sync(0xffffffffu, x, 2);
}
__device__ __forceinline__ float quad_max(float x)
{
    x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, 1));
    return fmaxf(x, __shfl_xor_sync(0xffffffffu, x, 2));
}

/* ---- forward ---- */

template <int D> __global__ void __launch_bounds__(THREADS) mma_forward(struct dt_cuda_attention a)
{
    DT_DYNAMIC_SHARED(dt_cu_bf16, room);
    dt_cu_bf16 *sq = room, *sk = sq + tile<D>::SIZE, *sv = sk + tile<D>::SIZE;
    struct dt_cu_seq p = dt_cu_seq_of(a, a.seq + (int)blockIdx.z);
    /* of causal sequences the long rows first */
    int i0 = (int)(gridDim.x - 1 - blockIdx.x) * TILE, h = (int)blockIdx.y;
    int warp = threadIdx.x / 32, g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
    int shift = p.lk - p.lq, row = i0 + 16 * warp + g; /* and row + 8 */
    int most = a.causal ? min(p.lk, min(i0 + TILE, p.lq) + shift) : p.lk;
    const dt_cu_bf16 *q = (const dt_cu_bf16 *)a.q + p.q0 * a.stride_q + h * a.head_dim;
    const dt_cu_bf16 *k = (const dt_cu_bf16 *)a.k + p.k0 * a.stride_k + h / a.group * a.head_dim;
    const dt_cu_bf16 *v = (const dt_cu_bf16 *)a.v + p.k0 * a.stride_v + h / a.group * a.head_dim;
    float o[D / 8][4] = {}, max[2] = {-INFINITY, -INFINITY}, sum[2] = {}, f = a.scale * LOG2E;

    if (i0 >= p.lq)
        return;
    fetch<D>(sq, q, a.stride_q, i0, p.lq, a.head_dim);
    fetch<D>(sk, k, a.stride_k, 0, p.lk, a.head_dim);
    dt_cu_copy_commit();
    for (int j0 = 0; j0 < most; j0 += TILE) {
        float s[TILE / 8][4] = {};

        dt_cu_copy_wait<0>();
        __syncthreads(); /* these keys are there; nobody needs the values before */
        fetch<D>(sv, v, a.stride_v, j0, p.lk, a.head_dim);
        dt_cu_copy_commit();
        scores<D, TILE / 8>(s, sq, 16 * warp, sk, 0);
#pragma unroll
        for (int half = 0; half < 2; half++) {
            int sees = a.causal ? min(p.lk, row + 8 * half + shift + 1) : p.lk;
            float to = max[half], mine = 0, keep, from;

#pragma unroll
            for (int i = 0; i < TILE / 8; i++)
#pragma unroll
                for (int e = 0; e < 2; e++) {
                    float x = s[i][2 * half + e] * f;

                    x = j0 + 8 * i + 2 * t + e < sees ? x : -INFINITY;
                    s[i][2 * half + e] = x;
                    to = fmaxf(to, x);
                }
            to = quad_max(to);
            /* fmaxf leaves NaN out: a row may have nothing else, and that must show */
            from = to == -INFINITY ? 0 : to;
            keep = to == -INFINITY ? 1 : exp2f(max[half] - to);
            max[half] = to;
#pragma unroll
            for (int i = 0; i < TILE / 8; i++)
#pragma unroll
                for (int e = 0; e < 2; e++) {
                    float x = s[i][2 * half + e];

                    x = exp2f(x - from);
                    s[i][2 * half + e] = x;
                    mine += x;
                }
            sum[half] = sum[half] * keep + mine;
#pragma unroll
            for (int i = 0; i < D / 8; i++) {
                o[i][2 * half] *= keep;
                o[i][2 * half + 1] *= keep;
            }
        }
        dt_cu_copy_wait<0>();
        __syncthreads(); /* these values are there; nobody needs the keys any more */
        if (j0 + TILE < most)
            fetch<D>(sk, k, a.stride_k, j0 + TILE, p.lk, a.head_dim);
        dt_cu_copy_commit();
        gather<D, TILE / 8>(o, s, sv, 0);
    }
    dt_cu_copy_wait<0>();
    for (int half = 0; half < 2; half++) {
        float all = quad_sum(sum[half]);
        int r = row + 8 * half;

        sum[half] = all == 0 ? 0 : 1 / all;
        if (t == 0 && r < p.lq)
            a.lse[h * a.rows_q + p.q0 + r] =
                all == 0 ? -INFINITY : (max[half] + log2f(all)) / LOG2E;
    }
    put<D>(o, sum, (dt_cu_bf16 *)a.o + p.q0 * a.stride_o + h * a.head_dim, a.stride_o,
           i0 + 16 * warp, p.lq, a.head_dim);
}

/* ---- backward: queries ---- */

template <int D> __global__ void __launch_bounds__(THREADS) mma_dq(struct dt_cuda_attention a)
{
    DT_DYNAMIC_SHARED(dt_cu_bf16, room);
    constexpr int SIZE = tile<D>::SIZE;
    dt_cu_bf16 *sq = room, *sd = sq + SIZE, *skv = sd + SIZE; /* keys, values; twice */
    struct dt_cu_seq p = dt_cu_seq_of(a, a.seq + (int)blockIdx.z);
    int i0 = (int)(gridDim.x - 1 - blockIdx.x) * TILE, h = (int)blockIdx.y;
    int warp = threadIdx.x / 32, g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
    int shift = p.lk - p.lq, row = i0 + 16 * warp + g;
    int most = a.causal ? min(p.lk, min(i0 + TILE, p.lq) + shift) : p.lk;
    const dt_cu_bf16 *k = (const dt_cu_bf16 *)a.k + p.k0 * a.stride_k + h / a.group * a.head_dim;
    const dt_cu_bf16 *v = (const dt_cu_bf16 *)a.v + p.k0 * a.stride_v + h / a.group * a.head_dim;
    float dq[D / 8][4] = {}, lse[2], delta[2], f = a.scale * LOG2E, by[2] = {a.scale, a.scale};

    if (i0 >= p.lq)
        return;
    for (int half = 0; half < 2; half++) {
        int64_t at = h * a.rows_q + p.q0 + row + 8 * half;
        bool there = row + 8 * half < p.lq;

        lse[half] = there ? a.lse[at] * LOG2E : -INFINITY;
        delta[half] = there ? a.delta[at] : 0;
    }
    fetch<D>(sq, (const dt_cu_bf16 *)a.q + p.q0 * a.stride_q + h * a.head_dim, a.stride_q, i0, p.lq,
             a.head_dim);
    fetch<D>(sd, (const dt_cu_bf16 *)a.d_o + p.q0 * a.stride_o + h * a.head_dim, a.stride_o, i0,
             p.lq, a.head_dim);
    fetch<D>(skv, k, a.stride_k, 0, p.lk, a.head_dim);
    fetch<D>(skv + SIZE, v, a.stride_v, 0, p.lk, a.head_dim);
    dt_cu_copy_commit();
    for (int j0 = 0, turn = 0; j0 < most; j0 += TILE, turn ^= 1) {
        dt_cu_bf16 *sk = skv + turn * 2 * SIZE, *sv = sk + SIZE,
                   *next = skv + (1 - turn) * 2 * SIZE;

        if (j0 + TILE < most) {
            fetch<D>(next, k, a.stride_k, j0 + TILE, p.lk, a.head_dim);
            fetch<D>(next + SIZE, v, a.stride_v, j0 + TILE, p.lk, a.head_dim);
        }
        dt_cu_copy_commit();
        dt_cu_copy_wait<1>();
        __syncthreads();
        for (int n = 0; n < TILE; n += HALF) {
            float s[HALF / 8][4] = {}, d[HALF / 8][4] = {};

            scores<D, HALF / 8>(s, sq, 16 * warp, sk, n);
            scores<D, HALF / 8>(d, sd, 16 * warp, sv, n);
#pragma unroll
            for (int i = 0; i < HALF / 8; i++)
#pragma unroll
                for (int e = 0; e < 4; e++) {
                    int half = e / 2, j = j0 + n + 8 * i + 2 * t + e % 2;
                    int sees = a.causal ? min(p.lk, row + 8 * half + shift + 1) : p.lk;
                    float x =
                        j < sees && lse[half] != -INFINITY ? exp2f(s[i][e] * f - lse[half]) : 0;

                    s[i][e] = x * (d[i][e] - delta[half]);
                }
            gather<D, HALF / 8>(dq, s, sk, n);
        }
        __syncthreads(); /* nobody needs this turn's any more */
    }
    dt_cu_copy_wait<0>();
    put<D>(dq, by, (dt_cu_bf16 *)a.dq + p.q0 * a.stride_q + h * a.head_dim, a.stride_q,
           i0 + 16 * warp, p.lq, a.head_dim);
}

/* ---- backward: keys and values ---- */

template <int D> __global__ void __launch_bounds__(THREADS) mma_dkv(struct dt_cuda_attention a)
{
    DT_DYNAMIC_SHARED(dt_cu_bf16, room);
    DT_SHARED(float, rows, 2 * TILE); /* of the queries: lse, delta */
    constexpr int SIZE = tile<D>::SIZE;
    dt_cu_bf16 *sk = room, *sv = sk + SIZE, *sqd = sv + SIZE; /* queries, gradients; twice */
    struct dt_cu_seq p = dt_cu_seq_of(a, a.seq + (int)blockIdx.z);
    int j0 = (int)blockIdx.x * TILE, hk = (int)blockIdx.y;
    int warp = threadIdx.x / 32, g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
    int shift = p.lk - p.lq, key = j0 + 16 * warp + g; /* and key + 8 */
    int from = a.causal ? max(0, j0 - shift) / TILE * TILE : 0;
    int tiles = p.lq > from ? (p.lq - from + TILE - 1) / TILE : 0, all = tiles * a.group;
    float dk[D / 8][4] = {}, dv[D / 8][4] = {}, f = a.scale * LOG2E;
    const float plain[2] = {1, 1}, by[2] = {a.scale, a.scale};

    if (j0 >= p.lk)
        return;
    auto fetch_turn =
        [&](int n) { /* tile n of all heads' */
                     int h = hk * a.group + n / tiles, i0 = from + n % tiles * TILE;
                     dt_cu_bf16 *to = sqd + n % 2 * 2 * SIZE;

                     fetch<D>(to, (const dt_cu_bf16 *)a.q + p.q0 * a.stride_q + h * a.head_dim,
                              a.stride_q, i0, p.lq, a.head_dim);
                     fetch<D>(to + SIZE,
                              (const dt_cu_bf16 *)a.d_o + p.q0 * a.stride_o + h * a.head_dim,
                              a.stride_o, i0, p.lq, a.head_dim);
        };

    fetch<D>(sk, (const dt_cu_bf16 *)a.k + p.k0 * a.stride_k + hk * a.head_dim, a.stride_k, j0,
             p.lk, a.head_dim);
    fetch<D>(sv, (const dt_cu_bf16 *)a.v + p.k0 * a.stride_v + hk * a.head_dim, a.stride_v, j0,
             p.lk, a.head_dim);
    if (all > 0)
        fetch_turn(0);
    dt_cu_copy_commit();
    for (int n = 0; n < all; n++) {
        int h = hk * a.group + n / tiles, i0 = from + n % tiles * TILE;
        const dt_cu_bf16 *sq = sqd + n % 2 * 2 * SIZE, *sd = sq + SIZE;

        if (n + 1 < all)
            fetch_turn(n + 1);
        dt_cu_copy_commit();
        if (threadIdx.x < TILE) {
            int64_t at = h * a.rows_q + p.q0 + i0 + threadIdx.x;
            bool there = i0 + (int)threadIdx.x < p.lq;

            rows[threadIdx.x] = there ? a.lse[at] * LOG2E : -INFINITY;
            rows[TILE + threadIdx.x] = there ? a.delta[at] : 0;
        }
        dt_cu_copy_wait<1>();
        __syncthreads();
        for (int m = 0; m < TILE; m += HALF) {
            float s[HALF / 8][4] = {}, d[HALF / 8][4] = {};

            scores<D, HALF / 8>(s, sk, 16 * warp, sq, m);
            scores<D, HALF / 8>(d, sv, 16 * warp, sd, m);
#pragma unroll
            for (int i = 0; i < HALF / 8; i++)
#pragma unroll
                for (int e = 0; e < 4; e++) {
                    int at = m + 8 * i + 2 * t + e % 2, j = key + 8 * (e / 2);
                    int sees = a.causal ? min(p.lk, i0 + at + shift + 1) : p.lk;
                    float lse = rows[at];
                    float x = j < sees && lse != -INFINITY ? exp2f(s[i][e] * f - lse) : 0;

                    s[i][e] = x;
                    d[i][e] = x * (d[i][e] - rows[TILE + at]);
                }
            gather<D, HALF / 8>(dv, s, sd, m);
            gather<D, HALF / 8>(dk, d, sq, m);
        }
        __syncthreads(); /* nobody needs this turn's any more */
    }
    dt_cu_copy_wait<0>();
    put<D>(dk, by, (dt_cu_bf16 *)a.dk + p.k0 * a.stride_k + hk * a.head_dim, a.stride_k,
           j0 + 16 * warp, p.lk, a.head_dim);
    put<D>(dv, plain, (dt_cu_bf16 *)a.dv + p.k0 * a.stride_v + hk * a.head_dim, a.stride_v,
           j0 + 16 * warp, p.lk, a.head_dim);
}

/* ---- entries ---- */

#define BY_DIM(n, ...)                                                                             \
    do {                                                                                           \
        if ((n) <= 16) {                                                                           \
            constexpr int D = 16;                                                                  \
            __VA_ARGS__;                                                                           \
        } else if ((n) <= 32) {                                                                    \
            constexpr int D = 32;                                                                  \
            __VA_ARGS__;                                                                           \
        } else if ((n) <= 48) {                                                                    \
            constexpr int D = 48;                                                                  \
            __VA_ARGS__;                                                                           \
        } else if ((n) <= 64) {                                                                    \
            constexpr int D = 64;                                                                  \
            __VA_ARGS__;                                                                           \
        } else if ((n) <= 80) {                                                                    \
            constexpr int D = 80;                                                                  \
            __VA_ARGS__;                                                                           \
        } else if ((n) <= 96) {                                                                    \
            constexpr int D = 96;                                                                  \
            __VA_ARGS__;                                                                           \
        } else if ((n) <= 128) {                                                                   \
            constexpr int D = 128;                                                                 \
            __VA_ARGS__;                                                                           \
        } else {                                                                                   \
            constexpr int D = 160;                                                                 \
            __VA_ARGS__;                                                                           \
        }                                                                                          \
    } while (0)

/* Tiles of a block: q, k, v; and of the backward q, d_o twice each (or k, v), and the other two. */
enum { FORWARD_TILES = 3, BACKWARD_TILES = 6 };

template <int D> static size_t shared_bytes(int tiles)
{
    return (size_t)tiles * tile<D>::SIZE * sizeof(dt_cu_bf16);
}

bool dt_cuda_mma_can(const struct dt_device_queue *q, const struct dt_kernel_attention *a,
                     const struct dt_cuda_attention *c, bool backward)
{
    size_t bytes = 0;

    if (a->dtype != DT_BF16 || a->head_dim % 8 != 0 || a->head_dim > 160 ||
        (a->stride_q | a->stride_k | a->stride_v | a->stride_o) % 8 != 0 ||
        !dt_cuda_aligned(c->q, c->k, c->v, c->o, c->d_o, c->dq, c->dk, c->dv))
        return false;
    BY_DIM(a->head_dim, bytes = shared_bytes<D>(backward ? BACKWARD_TILES : FORWARD_TILES));
    return bytes + 2 * TILE * sizeof(float) <= dt_cuda_shared(q); /* of the backward: lse, delta */
}

/* More shared memory than a kernel has without asking. */
template <typename K> static bool allow(struct dt_device_queue *q, K *kernel, size_t bytes)
{
    return dt_cuda_ready(q) &&
           dt_cuda_ok(q,
                      cudaFuncSetAttribute((const void *)kernel,
                                           cudaFuncAttributeMaxDynamicSharedMemorySize, (int)bytes),
                      "shared memory of attention");
}

void dt_cuda_mma_fwd(struct dt_device_queue *q, const struct dt_kernel_attention *a,
                     const struct dt_cuda_attention *c)
{
    BY_DIM(a->head_dim, {
        size_t bytes = shared_bytes<D>(FORWARD_TILES);
        auto launch = [&](const struct dt_cuda_attention &part, dim3 grid) {
            DT_LAUNCH(q, grid, THREADS, bytes, mma_forward<D>, part);
        };

        if (allow(q, &mma_forward<D>, bytes))
            dt_cuda_by_seq(*c, a->n_seq, dt_cuda_blocks(a->max_q, TILE), a->heads, launch);
    });
}

void dt_cuda_mma_bwd(struct dt_device_queue *q, const struct dt_kernel_attention *a,
                     const struct dt_cuda_attention *c)
{
    BY_DIM(a->head_dim, {
        size_t bytes = shared_bytes<D>(BACKWARD_TILES);
        auto to_q = [&](const struct dt_cuda_attention &part, dim3 grid) {
            DT_LAUNCH(q, grid, THREADS, bytes, mma_dq<D>, part);
        };
        auto to_kv = [&](const struct dt_cuda_attention &part, dim3 grid) {
            DT_LAUNCH(q, grid, THREADS, bytes, mma_dkv<D>, part);
        };

        if (!allow(q, &mma_dq<D>, bytes) || !allow(q, &mma_dkv<D>, bytes))
            return;
        dt_cuda_by_seq(*c, a->n_seq, dt_cuda_blocks(a->max_q, TILE), a->heads, to_q);
        dt_cuda_by_seq(*c, a->n_seq, dt_cuda_blocks(a->max_k, TILE), a->kv_heads, to_kv);
    });
}
