/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * AdamW, sums over parameters, zeroing and copying of many tensors, the clipping coefficient, sums of ranks.
 *
 * Many tensors a launch: the table of them travels with the kernel's arguments, TABLE of them at a time: as many as fit
 * into the arguments that older drivers take (DT_LAUNCH).
 * Tensors are cut into blocks of 2^14 elements, one for a CUDA block each, numbered through all of a table. */
#include "kernels/cuda/cuda.h"

#include <math.h>

enum { THREADS = 256, BLOCK = 1 << 14, TABLE = 60 };

template <typename P> struct table {
    int parts;
    int64_t first[TABLE + 1]; /* of part k; first[parts]: all */
    P part[TABLE];
};

#ifndef __CUDACC__
static void dt_cu_see(struct dt_kernel_span &p, const char *kernel)
{
    p.x = (float *)cucpu_seen(p.x, kernel);
}
static void dt_cu_see(struct dt_kernel_copy_part &p, const char *kernel)
{
    p.from = cucpu_seen(p.from, kernel);
    p.to = cucpu_seen(p.to, kernel);
}
static void dt_cu_see(struct dt_kernel_adamw_part &p, const char *kernel)
{
    p.p = (float *)cucpu_seen(p.p, kernel);
    p.g = (const float *)cucpu_seen(p.g, kernel);
    p.m = (float *)cucpu_seen(p.m, kernel);
    p.v = (float *)cucpu_seen(p.v, kernel);
    p.copy = cucpu_seen(p.copy, kernel);
}
template <typename P> static void dt_cu_see(table<P> &t, const char *kernel)
{
    for (int i = 0; i < t.parts; i++)
        dt_cu_see(t.part[i], kernel);
}
#endif

template <typename P> __device__ __forceinline__ int part_of(const table<P> &t, int64_t block)
{
    int lo = 0, hi = t.parts; /* first[lo] <= block < first[hi] */

    while (hi - lo > 1) {
        int mid = (lo + hi) / 2;

        if (t.first[mid] <= block)
            lo = mid;
        else
            hi = mid;
    }
    return lo;
}

/* Parts from `at` on; how many.  Empty ones are left out. */
template <typename P> static int fill(table<P> *t, int at, int parts, const P *part)
{
    int k = at;

    t->parts = 0;
    t->first[0] = 0;
    for (; k < parts && t->parts < TABLE; k++) {
        if (part[k].n == 0)
            continue;
        t->part[t->parts] = part[k];
        t->first[t->parts + 1] = t->first[t->parts] + dt_cuda_blocks(part[k].n, BLOCK);
        t->parts++;
    }
    return k - at;
}

/* ---- AdamW ---- */

struct adamw {
    float lr, b1, b2, eps, decay, i1, i2;
};

__device__ __forceinline__ void adamw_one(const struct adamw &h, float keep, float coef, float g,
                                          float &p, float &m, float &v)
{
    float x = coef == 0.0f ? 0.0f : g * coef;

    m = h.b1 * m + (1.0f - h.b1) * x;
    v = h.b2 * v + (1.0f - h.b2) * x * x;
    p = p * keep - h.lr * (m * h.i1) / (sqrtf(v * h.i2) + h.eps);
}

template <int V>
__global__ void __launch_bounds__(THREADS)
    adamw_kernel(table<struct dt_kernel_adamw_part> t, struct adamw h, const float *coef_at)
{
    int k = part_of(t, blockIdx.x);
    const struct dt_kernel_adamw_part &a = t.part[k];
    int64_t begin = (blockIdx.x - t.first[k]) * BLOCK;
    int64_t end = begin + BLOCK < a.n ? begin + BLOCK : a.n;
    float coef = coef_at ? *coef_at : 1.0f, keep = 1.0f - h.lr * (a.decay ? h.decay : 0.0f);

    for (int64_t i = begin + V * threadIdx.x; i < end; i += V * THREADS) {
        float p[V], g[V], m[V], v[V];

        dt_cu_load<V>(p, a.p + i);
        dt_cu_load<V>(g, a.g + i);
        dt_cu_load<V>(m, a.m + i);
        dt_cu_load<V>(v, a.v + i);
        for (int j = 0; j < V; j++)
            adamw_one(h, keep, coef, g[j], p[j], m[j], v[j]);
        dt_cu_store<V>(a.p + i, p);
        dt_cu_store<V>(a.m + i, m);
        dt_cu_store<V>(a.v + i, v);
        if (a.copy)
            dt_cu_store<V>((dt_cu_bf16 *)a.copy + i, p);
    }
}

static bool all_fit(const table<struct dt_kernel_adamw_part> *t)
{
    for (int k = 0; k < t->parts; k++)
        if (t->part[k].n % 4 != 0 || (uintptr_t)t->part[k].copy % 8 != 0 ||
            !dt_cuda_aligned(t->part[k].p, t->part[k].g, t->part[k].m, t->part[k].v))
            return false;
    return true;
}

static void adamw(struct dt_device_queue *q, const struct dt_kernel_adamw *h, int parts,
                  const struct dt_kernel_adamw_part *part, const float *coef)
{
    double c1 = 1.0 - pow((double)h->beta1, (double)h->step);
    double c2 = 1.0 - pow((double)h->beta2, (double)h->step);
    struct adamw a = {h->lr,           h->beta1,      h->beta2,     h->eps,
                      h->weight_decay, 1 / (float)c1, 1 / (float)c2};
    table<struct dt_kernel_adamw_part> t;

    assert(h->step >= 1);
    for (int k = 0; k < parts;) {
        k += fill(&t, k, parts, part);
        if (t.parts == 0)
            continue;
        if (all_fit(&t))
            DT_LAUNCH(q, (unsigned)t.first[t.parts], THREADS, 0, (adamw_kernel<4>), t, a, coef);
        else
            DT_LAUNCH(q, (unsigned)t.first[t.parts], THREADS, 0, (adamw_kernel<1>), t, a, coef);
    }
}

/* ---- sums ---- */

template <bool SQUARE> __global__ void block_sums(table<struct dt_kernel_span> t, double *sum)
{
    DT_SHARED(double, room, 32);
    int k = part_of(t, blockIdx.x);
    const float *x = t.part[k].x;
    int64_t begin = (blockIdx.x - t.first[k]) * BLOCK;
    int64_t end = begin + BLOCK < t.part[k].n ? begin + BLOCK : t.part[k].n;
    double s = 0;

    for (int64_t i = begin + threadIdx.x; i < end; i += THREADS)
        s += SQUARE ? (double)x[i] * (double)x[i] : (double)x[i];
    s = dt_cu_block_sum(s, room);
    if (threadIdx.x == 0)
        sum[blockIdx.x] = s;
}

/* Block k: of part k. */
__global__ void part_sums(table<struct dt_kernel_span> t, const double *sum, double *part)
{
    DT_SHARED(double, room, 32);
    double s = 0;

    for (int64_t i = t.first[blockIdx.x] + threadIdx.x; i < t.first[blockIdx.x + 1]; i += THREADS)
        s += sum[i];
    s = dt_cu_block_sum(s, room);
    if (threadIdx.x == 0)
        part[blockIdx.x] = s;
}

/* In their order, as if every part had been a call of its own.  One thread. */
__global__ void add_in_order(int parts, const double *part, double *out, bool add)
{
    double s = add ? *out : 0;

    for (int k = 0; k < parts; k++)
        s += part[k];
    *out = s;
}

template <bool SQUARE>
static void sums(struct dt_device_queue *q, int parts, const struct dt_kernel_span *part,
                 double *out, bool add)
{
    table<struct dt_kernel_span> t;
    int64_t blocks = 0, at = 0;
    double *sum, *of_part;
    int done = 0;

    for (int k = 0; k < parts; k++)
        blocks += dt_cuda_blocks(part[k].n, BLOCK);
    sum = (double *)dt_cuda_scratch(q, DT_SCRATCH_KERNEL,
                                    sizeof(double) * (size_t)(blocks + parts + 1));
    if (!sum)
        return;
    of_part = sum + blocks;
    for (int k = 0; k < parts;) {
        k += fill(&t, k, parts, part);
        if (t.parts == 0)
            continue;
        DT_LAUNCH(q, (unsigned)t.first[t.parts], THREADS, 0, (block_sums<SQUARE>), t, sum + at);
        DT_LAUNCH(q, (unsigned)t.parts, THREADS, 0, part_sums, t, (const double *)(sum + at),
                  of_part + done);
        at += t.first[t.parts];
        done += t.parts;
    }
    DT_LAUNCH(q, 1, 1, 0, add_in_order, done, (const double *)of_part, out, add);
}

static void sum_sq(struct dt_device_queue *q, int parts, const struct dt_kernel_span *part,
                   double *out, bool add)
{
    sums<true>(q, parts, part, out, add);
}

static void sum(struct dt_device_queue *q, int64_t n, const float *x, double *out, bool add)
{
    struct dt_kernel_span part = {n, (float *)(uintptr_t)x};

    sums<false>(q, 1, &part, out, add);
}

/* ---- zeroing ---- */

__global__ void zero_kernel(table<struct dt_kernel_span> t)
{
    int k = part_of(t, blockIdx.x);
    float *x = t.part[k].x;
    int64_t begin = (blockIdx.x - t.first[k]) * BLOCK;
    int64_t end = begin + BLOCK < t.part[k].n ? begin + BLOCK : t.part[k].n;

    for (int64_t i = begin + threadIdx.x; i < end; i += THREADS)
        x[i] = 0;
}

static void zero(struct dt_device_queue *q, int parts, const struct dt_kernel_span *part)
{
    table<struct dt_kernel_span> t;

    for (int k = 0; k < parts;) {
        k += fill(&t, k, parts, part);
        if (t.parts > 0)
            DT_LAUNCH(q, (unsigned)t.first[t.parts], THREADS, 0, zero_kernel, t);
    }
}

/* ---- copying ---- */

/* 16 bytes at a time where all begin and end at such, else one by one. */
template <typename T> __global__ void copy_kernel(table<struct dt_kernel_copy_part> t)
{
    int k = part_of(t, blockIdx.x);
    const T *from = (const T *)t.part[k].from;
    T *to = (T *)t.part[k].to;
    const int64_t per = BLOCK / (int64_t)sizeof(T), n = t.part[k].n / (int64_t)sizeof(T);
    int64_t begin = (blockIdx.x - t.first[k]) * per, end = begin + per < n ? begin + per : n;

    for (int64_t i = begin + threadIdx.x; i < end; i += THREADS)
        to[i] = from[i];
}

static void copy(struct dt_device_queue *q, int parts, const struct dt_kernel_copy_part *part)
{
    table<struct dt_kernel_copy_part> t;

    for (int k = 0; k < parts;) {
        bool whole = true;

        k += fill(&t, k, parts, part);
        for (int i = 0; i < t.parts; i++)
            whole = whole && t.part[i].n % 16 == 0 && dt_cuda_aligned(t.part[i].from, t.part[i].to);
        if (t.parts == 0)
            continue;
        if (whole)
            DT_LAUNCH(q, (unsigned)t.first[t.parts], THREADS, 0, (copy_kernel<uint4>), t);
        else
            DT_LAUNCH(q, (unsigned)t.first[t.parts], THREADS, 0, (copy_kernel<uint8_t>), t);
    }
}

/* ---- clipping ---- */

__global__ void clip_kernel(const double *sq, float max_norm, float *norm, float *coef)
{
    double n = sqrt(*sq);

    if (norm)
        *norm = (float)n;
    if (!isfinite(n))
        *coef = 0;
    else
        *coef = max_norm > 0 && n + 1e-6 > max_norm ? (float)(max_norm / (n + 1e-6)) : 1.0f;
}

static void clip_coef(struct dt_device_queue *q, const double *sq, float max_norm, float *norm,
                      float *coef)
{
    DT_LAUNCH(q, 1, 1, 0, clip_kernel, sq, max_norm, norm, coef);
}

/* ---- sums of ranks ---- */

enum { MEMBERS = 480 }; /* what fits into the arguments of a kernel */

struct members {
    int n;
    const void *x[MEMBERS];
};
#ifndef __CUDACC__
static void dt_cu_see(struct members &m, const char *kernel)
{
    for (int i = 0; i < m.n; i++)
        m.x[i] = cucpu_seen(m.x[i], kernel);
}
#endif

template <enum dt_reduce_type TYPE> struct kind;
template <> struct kind<DT_REDUCE_F32> {
    using E = float;
    using S = float;
    static __device__ S first(E x) { return x; }
    static __device__ S join(S a, E b) { return a + b; }
    static __device__ E last(S s) { return s; }
};
template <> struct kind<DT_REDUCE_F64> {
    using E = double;
    using S = double;
    static __device__ S first(E x) { return x; }
    static __device__ S join(S a, E b) { return a + b; }
    static __device__ E last(S s) { return s; }
};
template <> struct kind<DT_REDUCE_BF16> { /* in fp32, rounded once */
    using E = dt_cu_bf16;
    using S = float;
    static __device__ S first(E x) { return dt_cu_float(x); }
    static __device__ S join(S a, E b) { return a + dt_cu_float(b); }
    static __device__ E last(S s) { return dt_cu_from_float<dt_cu_bf16>(s); }
};
template <> struct kind<DT_REDUCE_F32_MAX> { /* a NaN stays one */
    using E = float;
    using S = float;
    static __device__ S first(E x) { return x; }
    static __device__ S join(S a, E b) { return a > b || a != a ? a : b; }
    static __device__ E last(S s) { return s; }
};
template <> struct kind<DT_REDUCE_U64_MAX> {
    using E = uint64_t;
    using S = uint64_t;
    static __device__ S first(E x) { return x; }
    static __device__ S join(S a, E b) { return a > b ? a : b; }
    static __device__ E last(S s) { return s; }
};

template <enum dt_reduce_type TYPE>
__global__ void reduce_kernel(int64_t n, struct members m, void *out)
{
    using K = kind<TYPE>;
    using E = typename K::E;

    for (int64_t i = blockIdx.x * (int64_t)blockDim.x + threadIdx.x; i < n;
         i += (int64_t)gridDim.x * blockDim.x) {
        typename K::S s = K::first(((const E *)m.x[0])[i]);

        for (int k = 1; k < m.n; k++)
            s = K::join(s, ((const E *)m.x[k])[i]);
        ((E *)out)[i] = K::last(s);
    }
}

template <enum dt_reduce_type TYPE>
static void reduce_as(struct dt_device_queue *q, int64_t n, const struct members &m, void *x)
{
    DT_LAUNCH(q, dt_cuda_grid(q, n, THREADS), THREADS, 0, (reduce_kernel<TYPE>), n, m, x);
}

static void reduce(struct dt_device_queue *q, enum dt_reduce_type type, int64_t n, int members,
                   int me, void *x, const void *const *others)
{
    struct members m = {};

    if (members < 2 || n == 0)
        return;
    if (members > MEMBERS) {
        dt_cuda_fail(q, DT_ERR_INPUT, "a sum over %d ranks on a card, which adds at most %d",
                     members, MEMBERS);
        return;
    }
    m.n = members;
    for (int k = 0; k < members; k++)
        m.x[k] = k == me ? x : others[k];
    switch (type) {
    case DT_REDUCE_F32:
        reduce_as<DT_REDUCE_F32>(q, n, m, x);
        break;
    case DT_REDUCE_F64:
        reduce_as<DT_REDUCE_F64>(q, n, m, x);
        break;
    case DT_REDUCE_BF16:
        reduce_as<DT_REDUCE_BF16>(q, n, m, x);
        break;
    case DT_REDUCE_U64_MAX:
        reduce_as<DT_REDUCE_U64_MAX>(q, n, m, x);
        break;
    case DT_REDUCE_F32_MAX:
        reduce_as<DT_REDUCE_F32_MAX>(q, n, m, x);
        break;
    }
}

void dt_cuda_optimizer(struct dt_kernels *k)
{
    k->adamw = adamw;
    k->sum_sq = sum_sq;
    k->sum = sum;
    k->zero = zero;
    k->copy = copy;
    k->clip_coef = clip_coef;
    k->reduce = reduce;
}
