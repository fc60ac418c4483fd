/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Attention: the entries, and a plain form for fp32 and for what tensor cores' form cannot take.  In it a
 * thread has a row (a query of the forward and of dq, a key of dk and dv) and walks over tiles of the others in
 * shared memory.  Every sum has one owner and one order. */
#include "kernels/cuda/attention.h"
#include "kernels/cuda/dnn.h"

enum { ROWS = 64, TILE = 16 };

/* Element i of a head's row, 0 from the head's end on. */
template <typename T, int D> __device__ void get_row(float f[D], const T *row, int n)
{
#pragma unroll
    for (int i = 0; i < D; i++)
        f[i] = i < n ? dt_cu_float(row[i]) : 0;
}
template <typename T, int D> __device__ void put_row(T *row, const float f[D], int n, float by)
{
#pragma unroll
    for (int i = 0; i < D; i++)
        if (i < n)
            row[i] = dt_cu_from_float<T>(f[i] * by);
}
template <typename T, int D>
__device__ void get_tile(float *tile, const T *x, int64_t stride, int begin, int end, int n)
{
    for (int i = threadIdx.x; i < TILE * D; i += ROWS) {
        int r = begin + i / D, c = i % D;

        tile[i] = r < end && c < n ? dt_cu_float(x[r * stride + c]) : 0;
    }
}
template <int D> __device__ __forceinline__ float dot(const float a[D], const float *b)
{
    float s = 0;

#pragma unroll
    for (int i = 0; i < D; i++)
        s += a[i] * b[i];
    return s;
}

template <typename T, int D>
__global__ void __launch_bounds__(ROWS) forward_kernel(struct dt_cuda_attention a)
{
    DT_SHARED(float, keys, TILE *D);
    DT_SHARED(float, values, TILE *D);
    struct dt_cu_seq p = dt_cu_seq_of(a, a.seq + (int)blockIdx.z);
    int i = (int)blockIdx.x * ROWS + (int)threadIdx.x, h = (int)blockIdx.y;
    int last = min((int)blockIdx.x * ROWS + ROWS, p.lq) - 1; /* query of the block */
    int sees = a.causal ? min(p.lk, i + p.lk - p.lq + 1) : p.lk;
    int most = a.causal ? min(p.lk, last + p.lk - p.lq + 1) : p.lk;
    const T *k = (const T *)a.k + p.k0 * a.stride_k + h / a.group * a.head_dim;
    const T *v = (const T *)a.v + p.k0 * a.stride_v + h / a.group * a.head_dim;
    float q[D], o[D] = {}, max = -INFINITY, sum = 0;

    if ((int)blockIdx.x * ROWS >= p.lq)
        return;
    if (i < p.lq)
        get_row<T, D>(q, (const T *)a.q + (p.q0 + i) * a.stride_q + h * a.head_dim, a.head_dim);
    for (int begin = 0; begin < most; begin += TILE) {
        __syncthreads();
        get_tile<T, D>(keys, k, a.stride_k, begin, p.lk, a.head_dim);
        get_tile<T, D>(values, v, a.stride_v, begin, p.lk, a.head_dim);
        __syncthreads();
        for (int j = 0; i < p.lq && j < TILE && begin + j < sees; j++) {
            float s = a.scale * dot<D>(q, keys + j * D), to = fmaxf(max, s);
            float keep = expf(max - to), e = expf(s - to);

            sum = sum * keep + e;
#pragma unroll
            for (int c = 0; c < D; c++)
                o[c] = o[c] * keep + e * values[j * D + c];
            max = to;
        }
    }
    if (i >= p.lq)
        return;
    put_row<T, D>((T *)a.o + (p.q0 + i) * a.stride_o + h * a.head_dim, o, a.head_dim,
                  sum == 0 ? 0 : 1 / sum);
    a.lse[h * a.rows_q + p.q0 + i] = sum == 0 ? -INFINITY : max + logf(sum);
}

/* A warp per query row and head: the sum of o d_o. */
template <typename T> __global__ void delta_kernel(struct dt_cuda_attention a, int64_t n)
{
    int64_t at = blockIdx.x * (int64_t)(blockDim.x / 32) + threadIdx.x / 32;
    int lane = threadIdx.x % 32;
    float s = 0;

    if (at >= n)
        return;
    int64_t h = at / a.rows_q, row = at % a.rows_q * a.stride_o + h * a.head_dim;

    for (int i = lane; i < a.head_dim; i += 32)
        s += dt_cu_float(((const T *)a.o)[row + i]) * dt_cu_float(((const T *)a.d_o)[row + i]);
    s = dt_cu_warp_sum(s);
    if (lane == 0)
        a.delta[at] = s;
}

template <typename T, int D>
__global__ void __launch_bounds__(ROWS) dq_kernel(struct dt_cuda_attention a)
{
    DT_SHARED(float, keys, TILE *D);
    DT_SHARED(float, values, TILE *D);
    struct dt_cu_seq p = dt_cu_seq_of(a, a.seq + (int)blockIdx.z);
    int i = (int)blockIdx.x * ROWS + (int)threadIdx.x, h = (int)blockIdx.y;
    int last = min((int)blockIdx.x * ROWS + ROWS, p.lq) - 1;
    int sees = a.causal ? min(p.lk, i + p.lk - p.lq + 1) : p.lk;
    int most = a.causal ? min(p.lk, last + p.lk - p.lq + 1) : p.lk;
    const T *k = (const T *)a.k + p.k0 * a.stride_k + h / a.group * a.head_dim;
    const T *v = (const T *)a.v + p.k0 * a.stride_v + h / a.group * a.head_dim;
    float q[D], d[D], dq[D] = {}, lse = 0, delta = 0;

    if ((int)blockIdx.x * ROWS >= p.lq)
        return;
    if (i < p.lq) {
        get_row<T, D>(q, (const T *)a.q + (p.q0 + i) * a.stride_q + h * a.head_dim, a.head_dim);
        get_row<T, D>(d, (const T *)a.d_o + (p.q0 + i) * a.stride_o + h * a.head_dim, a.head_dim);
        lse = a.lse[h * a.rows_q + p.q0 + i];
        delta = a.delta[h * a.rows_q + p.q0 + i];
    }
    for (int begin = 0; begin < most; begin += TILE) {
        __syncthreads();
        get_tile<T, D>(keys, k, a.stride_k, begin, p.lk, a.head_dim);
        get_tile<T, D>(values, v, a.stride_v, begin, p.lk, a.head_dim);
        __syncthreads();
        for (int j = 0; i < p.lq && j < TILE && begin + j < sees; j++) {
            float e = expf(a.scale * dot<D>(q, keys + j * D) - lse);
            float ds = a.scale * e * (dot<D>(d, values + j * D) - delta);

#pragma unroll
            for (int c = 0; c < D; c++)
                dq[c] += ds * keys[j * D + c];
        }
    }
    if (i < p.lq)
        put_row<T, D>((T *)a.dq + (p.q0 + i) * a.stride_q + h * a.head_dim, dq, a.head_dim, 1);
}

template <typename T, int D>
__global__ void __launch_bounds__(ROWS) dkv_kernel(struct dt_cuda_attention a)
{
    DT_SHARED(float, queries, TILE *D);
    DT_SHARED(float, grads, TILE *D);
    DT_SHARED(float, lse, TILE);
    DT_SHARED(float, delta, TILE);
    struct dt_cu_seq p = dt_cu_seq_of(a, a.seq + (int)blockIdx.z);
    int j = (int)blockIdx.x * ROWS + (int)threadIdx.x, hk = (int)blockIdx.y;
    /* the first query that sees the block's first key, and this thread's */
    int from = a.causal ? max(0, (int)blockIdx.x * ROWS - (p.lk - p.lq)) : 0;
    int seen = a.causal ? max(0, j - (p.lk - p.lq)) : 0;
    float k[D], v[D], dk[D] = {}, dv[D] = {};

    if ((int)blockIdx.x * ROWS >= p.lk)
        return;
    if (j < p.lk) {
        get_row<T, D>(k, (const T *)a.k + (p.k0 + j) * a.stride_k + hk * a.head_dim, a.head_dim);
        get_row<T, D>(v, (const T *)a.v + (p.k0 + j) * a.stride_v + hk * a.head_dim, a.head_dim);
    }
    for (int h = hk * a.group; h < (hk + 1) * a.group; h++) {
        const T *q = (const T *)a.q + p.q0 * a.stride_q + h * a.head_dim;
        const T *d_o = (const T *)a.d_o + p.q0 * a.stride_o + h * a.head_dim;

        for (int begin = from / TILE * TILE; begin < p.lq; begin += TILE) {
            __syncthreads();
            get_tile<T, D>(queries, q, a.stride_q, begin, p.lq, a.head_dim);
            get_tile<T, D>(grads, d_o, a.stride_o, begin, p.lq, a.head_dim);
            if (threadIdx.x < TILE && begin + (int)threadIdx.x < p.lq) {
                lse[threadIdx.x] = a.lse[h * a.rows_q + p.q0 + begin + threadIdx.x];
                delta[threadIdx.x] = a.delta[h * a.rows_q + p.q0 + begin + threadIdx.x];
            }
            __syncthreads();
            for (int t = max(0, seen - begin); j < p.lk && t < TILE && begin + t < p.lq; t++) {
                float e = expf(a.scale * dot<D>(k, queries + t * D) - lse[t]);
                float ds = a.scale * e * (dot<D>(v, grads + t * D) - delta[t]);

#pragma unroll
                for (int c = 0; c < D; c++) {
                    dv[c] += e * grads[t * D + c];
                    dk[c] += ds * queries[t * D + c];
                }
            }
        }
    }
    if (j >= p.lk)
        return;
    put_row<T, D>((T *)a.dk + (p.k0 + j) * a.stride_k + hk * a.head_dim, dk, a.head_dim, 1);
    put_row<T, D>((T *)a.dv + (p.k0 + j) * a.stride_v + hk * a.head_dim, dv, a.head_dim, 1);
}

/* A statement with D = the head's elements, rounded up. */
#define BY_DIM(n, ...)                                                                             \
    do {                                                                                           \
        if ((n) <= 32) {                                                                           \
            constexpr int D = 32;                                                                  \
            __VA_ARGS__;                                                                           \
        } else if ((n) <= 64) {                                                                    \
            constexpr int D = 64;                                                                  \
            __VA_ARGS__;                                                                           \
        } else if ((n) <= 128) {                                                                   \
            constexpr int D = 128;                                                                 \
            __VA_ARGS__;                                                                           \
        } else {                                                                                   \
            constexpr int D = 256;                                                                 \
            __VA_ARGS__;                                                                           \
        }                                                                                          \
    } while (0)

static struct dt_cuda_attention call_of(const struct dt_kernel_attention *a)
{
    struct dt_cuda_attention c = {};

    assert(a->heads % a->kv_heads == 0);
    c.rows_q = a->rows_q;
    c.stride_q = a->stride_q;
    c.stride_k = a->stride_k;
    c.stride_v = a->stride_v;
    c.stride_o = a->stride_o;
    c.cu_q = a->cu_q;
    c.cu_k = a->cu_k;
    c.scale = a->scale;
    c.heads = a->heads;
    c.group = a->heads / a->kv_heads;
    c.head_dim = a->head_dim;
    c.causal = a->causal;
    return c;
}

static bool too_wide(struct dt_device_queue *q, const struct dt_kernel_attention *a)
{
    if (a->head_dim > 256)
        dt_cuda_fail(q, DT_ERR_INPUT, "heads of %d elements on a card, which takes at most 256",
                     a->head_dim);
    return a->head_dim > 256;
}

static void attention_fwd(struct dt_device_queue *q, const struct dt_kernel_attention *a,
                          const void *query, const void *key, const void *value, void *o,
                          float *lse)
{
    struct dt_cuda_attention c = call_of(a);

    if (a->rows_q == 0 || dt_cuda_dnn_attention_fwd(q, a, query, key, value, o, lse) ||
        too_wide(q, a))
        return;
    c.q = query;
    c.k = key;
    c.v = value;
    c.o = o;
    c.lse = lse;
    if (dt_cuda_mma_can(q, a, &c, false)) {
        dt_cuda_mma_fwd(q, a, &c);
        return;
    }
    DT_BY_TYPE(a->dtype, BY_DIM(a->head_dim, {
                   auto launch = [&](const struct dt_cuda_attention &part, dim3 grid) {
                       DT_LAUNCH(q, grid, ROWS, 0, (forward_kernel<T, D>), part);
                   };

                   dt_cuda_by_seq(c, a->n_seq, dt_cuda_blocks(a->max_q, ROWS), a->heads, launch);
               }));
}

static void attention_bwd(struct dt_device_queue *q, const struct dt_kernel_attention *a,
                          const void *query, const void *key, const void *value, const void *o,
                          const float *lse, const void *d_o, void *dq, void *dk, void *dv)
{
    struct dt_cuda_attention c = call_of(a);
    int64_t n = a->rows_q * a->heads;

    if ((a->rows_q == 0 && a->rows_k == 0) ||
        dt_cuda_dnn_attention_bwd(q, a, query, key, value, o, lse, d_o, dq, dk, dv) ||
        too_wide(q, a))
        return;
    c.q = query;
    c.k = key;
    c.v = value;
    c.o = (void *)(uintptr_t)o;
    c.lse = (float *)(uintptr_t)lse;
    c.d_o = d_o;
    c.dq = dq;
    c.dk = dk;
    c.dv = dv;
    c.delta = (float *)dt_cuda_scratch(q, DT_SCRATCH_KERNEL, sizeof(float) * (size_t)n + 4);
    if (!c.delta)
        return;
    if (n > 0)
        DT_BY_TYPE(a->dtype,
                   DT_LAUNCH(q, (unsigned)dt_cuda_blocks(n, 8), 256, 0, (delta_kernel<T>), c, n));
    if (dt_cuda_mma_can(q, a, &c, true)) {
        dt_cuda_mma_bwd(q, a, &c);
        return;
    }
    DT_BY_TYPE(a->dtype, BY_DIM(a->head_dim, {
                   auto to_q = [&](const struct dt_cuda_attention &part, dim3 grid) {
                       DT_LAUNCH(q, grid, ROWS, 0, (dq_kernel<T, D>), part);
                   };
                   auto to_kv = [&](const struct dt_cuda_attention &part, dim3 grid) {
                       DT_LAUNCH(q, grid, ROWS, 0, (dkv_kernel<T, D>), part);
                   };

                   dt_cuda_by_seq(c, a->n_seq, dt_cuda_blocks(a->max_q, ROWS), a->heads, to_q);
                   dt_cuda_by_seq(c, a->n_seq, dt_cuda_blocks(a->max_k, ROWS), a->kv_heads, to_kv);
               }));
}

/* ---- keys in parts ---- */

/* A warp per query row and head.  Weights of what there is and of the part: their shares of the sum of exp(score). */
template <typename T>
__global__ void join_kernel(int64_t n, int64_t rows, int head_dim, int64_t stride, const T *part,
                            const float *part_lse, float *o, float *lse)
{
    int64_t at = blockIdx.x * (int64_t)(blockDim.x / 32) + threadIdx.x / 32;
    int lane = threadIdx.x % 32;

    if (at >= n)
        return;
    int64_t from = at % rows * stride + at / rows * head_dim;
    float was = lse[at], comes = part_lse[at], max = fmaxf(was, comes);

    __syncwarp();           /* all have read what one writes */
    if (comes == -INFINITY) /* the row sees none of its keys */
        return;
    float old = expf(was - max), more = expf(comes - max), sum = old + more;

    for (int i = lane; i < head_dim; i += 32)
        o[from + i] = old / sum * o[from + i] + more / sum * dt_cu_float(part[from + i]);
    if (lane == 0)
        lse[at] = max + logf(sum);
}

static void attention_join(struct dt_device_queue *q, const struct dt_kernel_attention *a,
                           const void *part, const float *part_lse, float *o, float *lse)
{
    int64_t n = a->rows_q * a->heads;

    if (n > 0)
        DT_BY_TYPE(a->dtype, DT_LAUNCH(q, (unsigned)dt_cuda_blocks(n, 8), 256, 0, (join_kernel<T>),
                                       n, a->rows_q, a->head_dim, a->stride_o, (const T *)part,
                                       part_lse, o, lse));
}

void dt_cuda_attention(struct dt_kernels *k)
{
    k->attention_fwd = attention_fwd;
    k->attention_join = attention_join;
    k->attention_bwd = attention_bwd;
}
