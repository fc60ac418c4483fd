/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Inside src/kernels/cuda only: the queue, launches, and what kernels have in common.
 *
 * Rules for kernels: no PTX but in ptx.h; launches by DT_LAUNCH; shared memory by DT_SHARED; every thread of
 * a block comes to every barrier.  Sums run over fixed blocks in a fixed order: no atomics on floats. */
#ifndef DT_KERNELS_CUDA_CUDA_H
#define DT_KERNELS_CUDA_CUDA_H

#include "kernels/cuda/ptx.h"

extern "C" {
#include "kernels/kernels.h"
}

#include <assert.h>

/* Workspaces of a queue; a kernel uses its own, the products that it calls use theirs. */
enum {
    DT_SCRATCH_KERNEL,
    DT_SCRATCH_OUTER,
    DT_SCRATCH_PRODUCT,
    DT_SCRATCH_BIAS,
    DT_SCRATCH_LIBRARY, /* cuDNN's */
    DT_SCRATCH_N
};

struct dt_cuda;          /* device.cu */
struct dt_cuda_products; /* products.cu */

struct dt_device_queue {
    const struct dt_device *dev;
    cudaStream_t stream;
    enum dt_status status; /* first failure, sticky */
    struct dt_error err;
    int *flag; /* host memory that kernels write: what is wrong with data */
    struct {
        void *p;
        size_t bytes;
    } scratch[DT_SCRATCH_N];
    struct dt_cuda_products *products;
    struct dt_cuda_caller *caller; /* its functions of the host; NULL: it has had none */
    struct dt_device_queue *next;  /* of the device */
};

/* What a kernel leaves in q->flag[0]; the rest are its arguments. */
enum { DT_FLAG_NONE, DT_FLAG_TARGET, DT_FLAG_WORDS = 4 };

void dt_cuda_fail(struct dt_device_queue *q, enum dt_status status, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
/* Has it not failed?  Then its card is the calling thread's. */
bool dt_cuda_ready(struct dt_device_queue *q);
/* A runtime call on q returned `e`; `what` was tried.  Is all well? */
bool dt_cuda_ok(struct dt_device_queue *q, cudaError_t e, const char *what);
/* What a runtime call said.  The runtime forgets it where it is no success (also "not ready"): it would say it again
 * to the next one who asks how a launch went. */
static inline cudaError_t dt_cuda_said(cudaError_t e)
{
    if (e != cudaSuccess)
        cudaGetLastError();
    return e;
}
/* At least `bytes`, contents undefined, until the next call for the same region in the queue's order.  NULL
 * (and a failed queue) when out of memory. */
void *dt_cuda_scratch(struct dt_device_queue *q, int region, size_t bytes);
/* The same for who can do without: out of memory, the queue goes on. */
void *dt_cuda_scratch_try(struct dt_device_queue *q, int region, size_t bytes);
/* Processors of the card: launches of grid-stride loops are as large as they keep busy. */
int dt_cuda_processors(const struct dt_device_queue *q);
/* Shared memory that a block may have, in bytes, by asking. */
size_t dt_cuda_shared(const struct dt_device_queue *q);

/* What a kernel's arguments take, one behind another. */
template <typename K> struct dt_cuda_arguments;
template <typename... A> struct dt_cuda_arguments<void (*)(A...)> {
    static constexpr size_t bytes()
    {
        size_t at = 0;

        ((at = (at + alignof(A) - 1) / alignof(A) * alignof(A) + sizeof(A)), ...);
        return at;
    }
};
/* Until CUDA 12.1 and its driver, 530 (CUDA C++ Programming Guide, 12.1: 32,764 since then, on cards of 7.0 or newer). */
constexpr size_t DT_CUDA_ARGUMENTS_MOST = 4096;

/* kernel<<<grid, block>>>(...) on the queue; nothing when it has failed. */
#define DT_LAUNCH(q, grid, block, shared, kernel, ...)                                             \
    do {                                                                                           \
        if (dt_cuda_ready(q)) {                                                                    \
            auto dt_kernel_ = &kernel;                                                             \
            static_assert(dt_cuda_arguments<decltype(dt_kernel_)>::bytes() <=                      \
                              DT_CUDA_ARGUMENTS_MOST,                                              \
                          "older drivers take fewer arguments");                                   \
            DT_CUDA_START(#kernel, dt_kernel_, grid, block, shared, (q)->stream, __VA_ARGS__);     \
            dt_cuda_ok(q, cudaGetLastError(), #kernel);                                            \
        }                                                                                          \
    } while (0)

/* A statement with T = the type of activations. */
#define DT_BY_TYPE(dtype, ...)                                                                     \
    do {                                                                                           \
        if ((dtype) == DT_BF16) {                                                                  \
            using T = dt_cu_bf16;                                                                  \
            __VA_ARGS__;                                                                           \
        } else {                                                                                   \
            using T = float;                                                                       \
            __VA_ARGS__;                                                                           \
        }                                                                                          \
    } while (0)

/* A statement with V = elements of a 16-byte access, or 1 where `fits` is false. */
#define DT_BY_WIDTH(fits, ...)                                                                     \
    do {                                                                                           \
        if (fits) {                                                                                \
            constexpr int V = 16 / sizeof(T);                                                      \
            __VA_ARGS__;                                                                           \
        } else {                                                                                   \
            constexpr int V = 1;                                                                   \
            __VA_ARGS__;                                                                           \
        }                                                                                          \
    } while (0)

/* A statement with V as above where the sizes fit, and WHOLE where everything is aligned, too.  Which thread has which
 * elements, and so the order of a sum, is a matter of sizes only: where a tensor lies must not change results. */
#define DT_BY_ACCESS(fits, aligned, ...)                                                           \
    do {                                                                                           \
        if ((fits) && (aligned)) {                                                                 \
            constexpr int V = 16 / sizeof(T);                                                      \
            constexpr bool WHOLE = true;                                                           \
            __VA_ARGS__;                                                                           \
        } else if (fits) {                                                                         \
            constexpr int V = 16 / sizeof(T);                                                      \
            constexpr bool WHOLE = false;                                                          \
            __VA_ARGS__;                                                                           \
        } else {                                                                                   \
            constexpr int V = 1;                                                                   \
            constexpr bool WHOLE = true;                                                           \
            __VA_ARGS__;                                                                           \
        }                                                                                          \
    } while (0)

/* Do all these begin at multiples of 16 bytes?  NULL does. */
template <typename... P> static inline bool dt_cuda_aligned(P... p)
{
    return ((reinterpret_cast<uintptr_t>(p) | ...) & 15) == 0;
}

/* V elements in accesses of at most 16 bytes; not WHOLE: one by one. */
template <typename T, int V> struct dt_cu_vec {
    alignas(V * sizeof(T) < 16 ? V * sizeof(T) : 16) T v[V];
};
template <int V, bool WHOLE = true, typename T>
__device__ __forceinline__ void dt_cu_load(float x[V], const T *p)
{
    if constexpr (WHOLE) {
        dt_cu_vec<T, V> a = *reinterpret_cast<const dt_cu_vec<T, V> *>(p);

#pragma unroll
        for (int i = 0; i < V; i++)
            x[i] = dt_cu_float(a.v[i]);
    } else {
#pragma unroll
        for (int i = 0; i < V; i++)
            x[i] = dt_cu_float(p[i]);
    }
}
/* The same as they lie, to be made floats one by one when they are needed: half as many registers in bf16. */
template <typename T, int V> struct dt_cu_packed {
    unsigned w[(V * sizeof(T) + 3) / 4];

    __device__ __forceinline__ float at(int i) const
    {
        if constexpr (sizeof(T) == 4)
            return __uint_as_float(w[i]);
        else
            return __uint_as_float(i % 2 ? w[i / 2] & 0xffff0000u : w[i / 2] << 16);
    }
};
__device__ __forceinline__ unsigned dt_cu_bits(float x)
{
    return __float_as_uint(x);
}
__device__ __forceinline__ unsigned dt_cu_bits(dt_cu_bf16 x)
{
    return x.bits;
}
template <int V, bool WHOLE = true, typename T>
__device__ __forceinline__ dt_cu_packed<T, V> dt_cu_take(const T *p)
{
    dt_cu_packed<T, V> a;

    if constexpr (WHOLE && V * sizeof(T) == 16) {
        uint4 u = *reinterpret_cast<const uint4 *>(p);

        a.w[0] = u.x;
        a.w[1] = u.y;
        a.w[2] = u.z;
        a.w[3] = u.w;
    } else if constexpr (sizeof(T) == 4) {
#pragma unroll
        for (int i = 0; i < V; i++)
            a.w[i] = dt_cu_bits(p[i]);
    } else {
#pragma unroll
        for (int i = 0; i < V; i += 2)
            a.w[i / 2] = dt_cu_bits(p[i]) | (V > 1 ? dt_cu_bits(p[i + (V > 1)]) << 16 : 0);
    }
    return a;
}
template <int V, bool WHOLE = true, typename T>
__device__ __forceinline__ void dt_cu_store(T *p, const float x[V])
{
    if constexpr (WHOLE) {
        dt_cu_vec<T, V> a;

#pragma unroll
        for (int i = 0; i < V; i++)
            a.v[i] = dt_cu_from_float<T>(x[i]);
        *reinterpret_cast<dt_cu_vec<T, V> *>(p) = a;
    } else {
#pragma unroll
        for (int i = 0; i < V; i++)
            p[i] = dt_cu_from_float<T>(x[i]);
    }
}

/* A loop of all threads of a launch over n elements, V of them, from i on, in each turn. */
#define DT_CU_EACH(V, i, n)                                                                        \
    for (int64_t i = (int64_t)V * (blockIdx.x * (int64_t)blockDim.x + threadIdx.x),                \
                 step_ = (int64_t)V * gridDim.x * blockDim.x;                                      \
         i < (n); i += step_)

/* The same sum (maximum) in all lanes of a warp. */
struct dt_cu_plus {
    template <typename F> __device__ F operator()(F a, F b) const { return a + b; }
};
struct dt_cu_larger {
    __device__ float operator()(float a, float b) const { return fmaxf(a, b); }
};
template <typename F> __device__ __forceinline__ F dt_cu_warp_sum(F x)
{
    return dt_cu_warp_fold<dt_cu_plus>(x);
}
__device__ __forceinline__ float dt_cu_warp_max(float x)
{
    return dt_cu_warp_fold<dt_cu_larger>(x);
}
/* The same in all threads of a one-dimensional block of whole warps; `room`: shared, 32 places, for nothing
 * else until the block has met again. */
template <typename F> __device__ __forceinline__ F dt_cu_block_sum(F x, F *room)
{
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32, warps = blockDim.x / 32;

    x = dt_cu_warp_sum(x);
    __syncthreads(); /* who used the room before has read it */
    if (lane == 0)
        room[warp] = x;
    __syncthreads();
    return dt_cu_warp_sum(lane < warps ? room[lane] : F(0));
}
__device__ __forceinline__ float dt_cu_block_max(float x, float *room)
{
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32, warps = blockDim.x / 32;

    x = dt_cu_warp_max(x);
    __syncthreads();
    if (lane == 0)
        room[warp] = x;
    __syncthreads();
    return dt_cu_warp_max(room[lane < warps ? lane : 0]);
}

/* ---- items of any sizes (struct dt_kernel_items) ---- */

#ifndef __CUDACC__
static inline void dt_cu_see(struct dt_kernel_items &a, const char *kernel)
{
    a.cu = (const int32_t *)cucpu_seen(a.cu, kernel);
}
static inline void dt_cu_see(struct dt_kernel_images &a, const char *kernel)
{
    dt_cu_see(a.items, kernel);
    a.hw = (const int32_t *)cucpu_seen(a.hw, kernel);
}
#endif

/* The item that has row r. */
__device__ __forceinline__ int dt_cu_item_of(const struct dt_kernel_items &a, int64_t r)
{
    int lo = 0, hi = (int)a.n; /* cu[lo] <= r < cu[hi] */

    while (hi - lo > 1) {
        int mid = (lo + hi) / 2;

        if (a.cu[mid] <= r)
            lo = mid;
        else
            hi = mid;
    }
    return lo;
}

/* Items cut into chunks of C rows, the last one shorter, so that a chunk does not depend on where its item lies.  Item i's
 * begin at number cu[i] / C + i, which leaves room for all of them; some numbers are nobody's. */
enum { DT_CU_CHUNK = 256 };
struct dt_cu_chunk {
    int item, number; /* of the item */
    int64_t begin, end;
};
template <int C = DT_CU_CHUNK>
__device__ __forceinline__ int64_t dt_cu_first_chunk(const struct dt_kernel_items &a, int64_t item)
{
    return a.cu[item] / C + item;
}
template <int C = DT_CU_CHUNK>
__device__ __forceinline__ struct dt_cu_chunk dt_cu_chunk_of(const struct dt_kernel_items &a,
                                                             int64_t at)
{
    int lo = 0, hi = (int)a.n;
    struct dt_cu_chunk c;

    while (hi - lo > 1) {
        int mid = (lo + hi) / 2;

        if (dt_cu_first_chunk<C>(a, mid) <= at)
            lo = mid;
        else
            hi = mid;
    }
    c.item = lo;
    c.number = (int)(at - dt_cu_first_chunk<C>(a, lo));
    c.begin = a.cu[lo] + (int64_t)c.number * C;
    c.end = c.begin + C < a.cu[lo + 1] ? c.begin + C : a.cu[lo + 1];
    return c; /* begin >= end: nobody's */
}
/* Chunks of item i. */
template <int C = DT_CU_CHUNK>
__device__ __forceinline__ int64_t dt_cu_chunks_of(const struct dt_kernel_items &a, int64_t item)
{
    return (a.cu[item + 1] - a.cu[item] + C - 1) / C;
}
/* Numbers that there are. */
template <int C = DT_CU_CHUNK>
static inline int64_t dt_cuda_chunk_numbers(const struct dt_kernel_items *a)
{
    return a->n > 0 ? a->rows / C + a->n : 0;
}

static inline int64_t dt_cuda_blocks(int64_t n, int64_t per)
{
    return (n + per - 1) / per;
}
/* Blocks of a grid-stride loop over n threads' work. */
static inline unsigned dt_cuda_grid(const struct dt_device_queue *q, int64_t n, int threads)
{
    int64_t want = dt_cuda_blocks(n, threads), most = 16 * (int64_t)dt_cuda_processors(q);

    return (unsigned)(want < 1 ? 1 : want < most ? want : most);
}

/* What the compiler has made of these is made again at the next use (ptx.h). */
template <typename T, int V, int N>
__device__ __forceinline__ void dt_cu_forget_all(dt_cu_packed<T, V> (&a)[N])
{
#pragma unroll
    for (int k = 0; k < N; k++)
#pragma unroll
        for (unsigned &x : a[k].w)
            dt_cu_forget(x);
}

/* Products that are added to something are one fused operation, and products that are not stand alone: said for each
 * where the same arithmetic is compiled more than once, as for tensors that are aligned and that are not.  Left to it,
 * the compiler fuses what it likes, in each copy anew, and last bits would tell where a tensor lies. */
__device__ __forceinline__ float dt_cu_fma(float a, float b, float c)
{
    return __fmaf_rn(a, b, c);
}
__device__ __forceinline__ float dt_cu_mul(float a, float b)
{
    return __fmul_rn(a, b);
}

/* out[width] (+)= the sum of `parts` rows of partial sums, in a fixed order (elementwise.cu). */
void dt_cuda_add_parts(struct dt_device_queue *q, int64_t parts, int64_t width, const float *part,
                       float *out, bool add);
/* The same of rows of 2 * width, whose second half goes to `second`, if there is one. */
void dt_cuda_add_pairs(struct dt_device_queue *q, int64_t parts, int64_t width, const float *part,
                       float *out, float *second, bool add);
/* y[rows, width], rows `ld` elements apart, += row[width] (elementwise.cu). */
void dt_cuda_add_row(struct dt_device_queue *q, enum dt_dtype dtype, int64_t rows, int64_t width,
                     int64_t ld, const float *row, void *y);

/* ---- products (products.cu) ---- */

/* c[m,n] (+)= a b, rows of a matrix `ld` elements apart; `turned`: the matrix lies in memory as its transpose. */
struct dt_cuda_matrix {
    const void *p;
    enum dt_dtype dtype;
    int64_t ld;
    bool turned;
};
void dt_cuda_product(struct dt_device_queue *q, int64_t m, int64_t n, int64_t k,
                     struct dt_cuda_matrix a, struct dt_cuda_matrix b, bool add,
                     enum dt_dtype c_type, int64_t ldc, void *c);
/* The same with a bias of n and a residual of a's type, m x n as c is; both may be NULL, and residual c. */
void dt_cuda_product_bias(struct dt_device_queue *q, int64_t m, int64_t n, int64_t k,
                          struct dt_cuda_matrix a, struct dt_cuda_matrix b, const float *bias,
                          const void *residual, int64_t ldc, void *c);
/* dw[out,in] (+)= dyᵀ x, dbias[out] (+)= column sums of dy [m,out]; either may be NULL. */
struct dt_cuda_gradients {
    enum dt_dtype dtype;
    int64_t m, out, in;
    const void *x, *dy;
    float *dw, *dbias;
    bool add, add_bias;
};
void dt_cuda_product_gradients(struct dt_device_queue *q, const struct dt_cuda_gradients *g);
struct dt_cuda_products *dt_cuda_products_new(const struct dt_device *dev, struct dt_error *err);
void dt_cuda_products_free(struct dt_cuda_products *p);

/* ---- weights (weights.cu) ---- */

/* In the type of the products; convolution: [out][kernel][kernel][in]. */
const void *dt_cuda_weight(struct dt_device_queue *q, const struct dt_device_weight *w);
const struct dt_device_weight_shape *dt_cuda_weight_shape(const struct dt_device_weight *w);
void dt_cuda_weights(struct dt_device *dev); /* fills weight_* */

/* ---- the table, by file ---- */
void dt_cuda_act(struct dt_kernels *k);
void dt_cuda_attention(struct dt_kernels *k);
void dt_cuda_conv(struct dt_kernels *k);
void dt_cuda_elementwise(struct dt_kernels *k);
void dt_cuda_embedding(struct dt_kernels *k);
void dt_cuda_groupnorm(struct dt_kernels *k);
void dt_cuda_image(struct dt_kernels *k);
void dt_cuda_linear(struct dt_kernels *k);
void dt_cuda_linear_act(struct dt_kernels *k);
void dt_cuda_loss(struct dt_kernels *k);
void dt_cuda_norm(struct dt_kernels *k);
void dt_cuda_optimizer(struct dt_kernels *k);
void dt_cuda_random(struct dt_kernels *k);
void dt_cuda_route(struct dt_kernels *k);
void dt_cuda_rows(struct dt_kernels *k);

#endif
