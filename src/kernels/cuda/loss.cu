/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Softmax by rows, the head with its cross-entropy, and the mean squared error. */
#include "kernels/cuda/cuda.h"

enum { THREADS = 512, FEW = 128 };

/* ---- softmax ---- */

template <typename T> __global__ void softmax_kernel(int64_t width, float f, const T *x, float *p)
{
    DT_SHARED(float, room, 32);
    DT_SHARED(double, wide, 32);
    float max = -INFINITY;
    double sum = 0;

    x += blockIdx.x * width;
    p += blockIdx.x * width;
    for (int64_t i = threadIdx.x; i < width; i += THREADS)
        max = fmaxf(max, f * dt_cu_float(x[i]));
    max = dt_cu_block_max(max, room);
    for (int64_t i = threadIdx.x; i < width; i += THREADS) {
        p[i] = expf(f * dt_cu_float(x[i]) - max);
        sum += (double)p[i];
    }
    float inv = (float)(1.0 / dt_cu_block_sum(sum, wide));

    for (int64_t i = threadIdx.x; i < width; i += THREADS)
        p[i] *= inv;
}

static void softmax(struct dt_device_queue *q, enum dt_dtype dtype, int64_t rows, int64_t width,
                    float inv_temperature, const void *x, float *p)
{
    if (rows * width > 0)
        DT_BY_TYPE(dtype, DT_LAUNCH(q, (unsigned)rows, THREADS, 0, (softmax_kernel<T>), width,
                                    inv_temperature, (const T *)x, p));
}

/* ---- cross-entropy of rows of logits, one block each ---- */

struct xent_rows {
    int64_t vocab, stride, first; /* columns here, between rows, and the first one's token */
    float scale;
};

/* One block: tells of the first row whose target is outside. */
__global__ void check_targets(int64_t rows, int64_t vocab, const int32_t *target, int *flag)
{
    DT_SHARED(int64_t, first, FEW);
    int64_t mine = rows;

    for (int64_t r = threadIdx.x; r < rows && mine == rows; r += FEW)
        if (target[r] >= vocab)
            mine = r;
    first[threadIdx.x] = mine;
    __syncthreads();
    if (threadIdx.x > 0)
        return;
    for (int i = 1; i < FEW; i++)
        mine = first[i] < mine ? first[i] : mine;
    if (mine == rows)
        return;
    flag[1] = target[mine];
    flag[2] = (int)mine;
    flag[3] = (int)vocab;
    flag[0] = DT_FLAG_TARGET;
}

struct lower {
    __device__ int64_t operator()(int64_t a, int64_t b) const { return b < a ? b : a; }
};

/* Largest logit; the first of equals in *at. */
__device__ float row_max(const float *z, int64_t n, int64_t *at, float *room, int64_t *where)
{
    float max = -INFINITY, all;
    int64_t mine = INT64_MAX;

    for (int64_t i = threadIdx.x; i < n; i += blockDim.x)
        if (z[i] > max) {
            max = z[i];
            mine = i;
        }
    all = dt_cu_block_max(max, room);
    if (max != all)
        mine = INT64_MAX;
    mine = dt_cu_warp_fold<lower>(mine);
    if (threadIdx.x % 32 == 0)
        where[threadIdx.x / 32] = mine;
    __syncthreads();
    for (int w = 0; w < (int)blockDim.x / 32; w++)
        mine = where[w] < mine ? where[w] : mine;
    *at = mine;
    return all;
}

__device__ double row_sum(const float *z, int64_t n, float max, double *room)
{
    double sum = 0;
    float s = 0;
    int count = 0;

    for (int64_t i = threadIdx.x; i < n; i += blockDim.x) { /* fp32 for short stretches only */
        s += expf(z[i] - max);
        if (++count == 64) {
            sum += (double)s;
            s = 0;
            count = 0;
        }
    }
    return dt_cu_block_sum(sum + (double)s, room);
}

/* The gradient of one row: 0 behind the vocabulary, and everywhere where there is no target.  d may be z. */
template <typename T>
__device__ void row_grad(const struct xent_rows &a, const float *z, bool counts, int64_t target,
                         float max, double sum, T *d)
{
    float f = (float)((double)a.scale / sum);

    for (int64_t i = threadIdx.x; i < a.stride; i += blockDim.x) {
        float g = 0;

        if (counts && i < a.vocab) {
            float e = expf(z[i] - max);

            g = i == target ? a.scale * (float)((double)e / sum - 1.0) : f * e;
        }
        d[i] = dt_cu_from_float<T>(g);
    }
}

template <typename T>
__global__ void __launch_bounds__(THREADS)
    xent_kernel(struct xent_rows a, const float *logits, const int32_t *target, float *nll,
                int32_t *best, T *d)
{
    DT_SHARED(float, room, 32);
    DT_SHARED(double, wide, 32);
    DT_SHARED(int64_t, where, 32);
    int64_t r = blockIdx.x, at;
    const float *z = logits + r * a.stride;
    int64_t t = target[r] < a.vocab ? target[r] : -1;
    float hit = t < 0 ? 0 : z[t], max = row_max(z, a.vocab, &at, room, where);
    double sum = row_sum(z, a.vocab, max, wide);

    if (threadIdx.x == 0) {
        nll[r] = t < 0 ? 0 : (float)((double)max + log(sum)) - hit;
        if (best)
            best[r] = (int32_t)(at < a.vocab ? at : a.vocab - 1);
    }
    __syncthreads(); /* all have read their logits: the gradient may take their place */
    if (d)
        row_grad(a, z, t >= 0, t, max, sum, d + r * a.stride);
}

/* ---- the same with the vocabulary in parts: three steps between which the members meet ---- */

__global__ void part_max(struct xent_rows a, const float *logits, float *max)
{
    DT_SHARED(float, room, 32);
    DT_SHARED(int64_t, where, 32);
    int64_t at;
    float m = row_max(logits + blockIdx.x * a.stride, a.vocab, &at, room, where);

    if (threadIdx.x == 0)
        max[blockIdx.x] = m;
}

/* The target in this part; -1 when it is another's or none. */
__device__ __forceinline__ int64_t part_target(const struct xent_rows &a, int32_t target)
{
    int64_t i = target < 0 ? -1 : target - a.first;

    return i < a.vocab ? i : -1;
}

__global__ void part_sum(struct xent_rows a, const float *logits, const int32_t *target,
                         const float *max, double *sum, float *token)
{
    DT_SHARED(float, room, 32);
    DT_SHARED(double, wide, 32);
    DT_SHARED(int64_t, where, 32);
    int64_t r = blockIdx.x, t = part_target(a, target[r]), at;
    const float *z = logits + r * a.stride;
    float mine = row_max(z, a.vocab, &at, room, where);
    double s = target[r] < 0 ? 0 : row_sum(z, a.vocab, max[r], wide);

    if (threadIdx.x == 0) {
        sum[2 * r] = s;
        sum[2 * r + 1] = t < 0 ? 0 : (double)z[t];
        token[r] = at < a.vocab && mine == max[r] ? -(float)(a.first + at) : -INFINITY;
    }
}

template <typename T>
__global__ void part_end(struct xent_rows a, const float *logits, const int32_t *target,
                         const float *max, const double *sum, const float *token, float *nll,
                         int32_t *best, T *d)
{
    int64_t r = blockIdx.x;
    const float *z = logits + r * a.stride;
    double s = sum[2 * r];

    if (threadIdx.x == 0) {
        nll[r] = target[r] < 0 ? 0 : (float)((double)max[r] + log(s)) - (float)sum[2 * r + 1];
        if (best) /* no part has it: NaN */
            best[r] = token[r] > -INFINITY ? (int32_t)-token[r] : 0;
    }
    __syncthreads();
    if (d)
        row_grad(a, z, target[r] >= 0, part_target(a, target[r]), max[r], s, d + r * a.stride);
}

/* ---- the head ---- */

/* Rows of a chunk.  Every chunk reads and writes the whole gradient of the weight in fp32: of vocab x width elements,
 * 8 bytes each for 2 rows of FLOP, so products are slower than memory from rows = 4 FLOP/s / (bytes/s) on.  That is 550
 * rows of an A100 (250 TFLOP/s of real products, 1.8 TB/s) and 1,070 of an H100 (800 and 3.0): CHUNK_MAX, more of which
 * gains nothing and takes memory.  Of vocabularies beyond 87,000, SCRATCH_BYTES hold fewer.  Chunks are of equal
 * length. */
enum { SCRATCH_BYTES = 512 << 20, CHUNK_MAX = 1024, CHUNK_MIN = 16 };

static int64_t row_stride(int64_t vocab)
{
    return dt_cuda_blocks(vocab, 64) * 64;
}

static int64_t chunk_rows(int64_t rows, int64_t vocab, size_t each)
{
    int64_t fit = SCRATCH_BYTES / (vocab * (int64_t)each) / CHUNK_MIN * CHUNK_MIN;
    int64_t most = fit < CHUNK_MIN ? CHUNK_MIN : fit > CHUNK_MAX ? CHUNK_MAX : fit;
    int64_t even = dt_cuda_blocks(rows, dt_cuda_blocks(rows, most));
    int64_t to = dt_cuda_blocks(even, CHUNK_MIN) * CHUNK_MIN;

    return rows < to ? rows : to;
}

struct head { /* a call of xent, and its chunk's workspace */
    struct xent_rows a;
    const struct dt_kernel_xent_parts *parts;
    float *logits;
    void *d;
    double *sum;
    float *max, *token;
};

template <typename T>
static void losses(struct dt_device_queue *q, const struct head *h, int64_t m,
                   const int32_t *target, float *nll, int32_t *best)
{
    const struct dt_kernel_xent_parts *p = h->parts;
    unsigned rows = (unsigned)m;
    unsigned threads = h->a.stride > FEW * 16 ? THREADS : FEW;

    if (!p) {
        DT_LAUNCH(q, rows, threads, 0, (xent_kernel<T>), h->a, (const float *)h->logits, target,
                  nll, best, (T *)h->d);
        return;
    }
    DT_LAUNCH(q, rows, threads, 0, part_max, h->a, (const float *)h->logits, h->max);
    p->max(q, p->arg, m, h->max);
    DT_LAUNCH(q, rows, threads, 0, part_sum, h->a, (const float *)h->logits, target,
              (const float *)h->max, h->sum, h->token);
    p->sum(q, p->arg, 2 * m, h->sum);
    if (best)
        p->max(q, p->arg, m, h->token);
    DT_LAUNCH(q, rows, threads, 0, (part_end<T>), h->a, (const float *)h->logits, target,
              (const float *)h->max, (const double *)h->sum, (const float *)h->token, nll, best,
              (T *)h->d);
}

template <typename T>
static void head_rows(struct dt_device_queue *q, const struct dt_kernel_xent *c,
                      const struct head *h, int64_t chunk, const void *x, const int32_t *target,
                      float *nll, int32_t *best, void *dx, float *dw, bool add_dw)
{
    const struct dt_device_weight_shape *s = dt_cuda_weight_shape(c->w);
    const void *weight = dt_cuda_weight(q, c->w);

    for (int64_t r = 0; r < c->rows && q->status == DT_OK; r += chunk) {
        int64_t m = c->rows - r < chunk ? c->rows - r : chunk;
        struct dt_cuda_matrix xr = {(const T *)x + r * s->in, c->dtype, s->in, false};
        struct dt_cuda_matrix w = {weight, c->dtype, s->in, true};
        struct dt_cuda_matrix d = {h->d, c->dtype, h->a.stride, false};

        dt_cuda_product(q, m, s->out, s->in, xr, w, false, DT_F32, h->a.stride, h->logits);
        losses<T>(q, h, m, target + r, nll + r, best ? best + r : NULL);
        w.turned = false;
        if (dx)
            dt_cuda_product(q, m, s->in, s->out, d, w, false, c->dtype, s->in, (T *)dx + r * s->in);
        d.turned = true;
        if (dw)
            dt_cuda_product(q, s->out, s->in, m, d, xr, add_dw || r > 0, DT_F32, s->in, dw);
    }
}

static void xent(struct dt_device_queue *q, const struct dt_kernel_xent *c, const void *x,
                 const int32_t *target, float *nll, int32_t *best, void *dx, float *dw, bool add_dw)
{
    const struct dt_device_weight_shape *s = dt_cuda_weight_shape(c->w);
    const struct dt_kernel_xent_parts *parts = c->parts;
    int64_t vocab = parts ? parts->vocab : s->out, stride = row_stride(s->out), chunk;
    bool grad = dx || dw;
    size_t d_elem = c->dtype == DT_F32 ? 0 : 2; /* an fp32 gradient takes its logit's place */
    struct head h = {{s->out, stride, parts ? parts->first : 0, c->scale}, parts};
    struct dt_kernel_span whole = {s->out * s->in, dw};
    size_t bytes, d_bytes;
    char *room;

    assert(s->kernel == 0 && s->dtype == c->dtype);
    if (c->rows == 0) {
        if (dw && !add_dw)
            q->dev->k->zero(q, 1, &whole);
        return;
    }
    chunk = chunk_rows(c->rows, row_stride(parts ? parts->most : s->out), sizeof(float) + d_elem);
    bytes = sizeof(float) * (size_t)(chunk * stride);
    d_bytes = grad ? d_elem * (size_t)(chunk * stride) : 0;
    room = (char *)dt_cuda_scratch(q, DT_SCRATCH_OUTER,
                                   bytes + d_bytes +
                                       (size_t)chunk * (2 * sizeof(double) + 2 * sizeof(float)));
    if (!room)
        return;
    h.logits = (float *)room;
    h.d = !grad ? NULL : room + (d_elem ? bytes : 0);
    h.sum = (double *)(room + bytes + d_bytes);
    h.max = (float *)(h.sum + 2 * chunk);
    h.token = h.max + chunk;
    DT_LAUNCH(q, 1, FEW, 0, check_targets, c->rows, vocab, target, q->flag);
    DT_BY_TYPE(c->dtype, head_rows<T>(q, c, &h, chunk, x, target, nll, best, dx, dw, add_dw));
}

/* ---- mean squared error ---- */

template <typename T>
__global__ void mse_kernel(struct dt_kernel_items items, int64_t width, float scale, const T *pred,
                           const T *target, double *part, T *d)
{
    DT_SHARED(double, room, 32);
    struct dt_cu_chunk c = dt_cu_chunk_of(items, blockIdx.x);
    int64_t values = (items.cu[c.item + 1] - items.cu[c.item]) * width;
    float s = 0, f = 2 * scale / (float)values;

    for (int64_t i = c.begin * width + threadIdx.x; i < c.end * width; i += THREADS) {
        float e = dt_cu_float(pred[i]) - dt_cu_float(target[i]);

        s += e * e;
        if (d)
            d[i] = dt_cu_from_float<T>(f * e);
    }
    double sum = dt_cu_block_sum((double)s, room);

    if (threadIdx.x == 0)
        part[blockIdx.x] = sum;
}

__global__ void mse_end(struct dt_kernel_items items, const double *part, float *sse)
{
    for (int64_t i = blockIdx.x * (int64_t)blockDim.x + threadIdx.x; i < items.n;
         i += (int64_t)gridDim.x * blockDim.x) {
        const double *p = part + dt_cu_first_chunk(items, i);
        int64_t n = dt_cu_chunks_of(items, i);
        double s = 0;

        for (int64_t c = 0; c < n; c++)
            s += p[c];
        sse[i] = (float)s;
    }
}

static void mse(struct dt_device_queue *q, enum dt_dtype dtype, const struct dt_kernel_items *items,
                int64_t width, const void *pred, const void *target, float scale, float *sse,
                void *dpred)
{
    int64_t chunks = dt_cuda_chunk_numbers(items);
    double *part;

    if (items->n == 0)
        return;
    part = (double *)dt_cuda_scratch(q, DT_SCRATCH_KERNEL, sizeof(double) * (size_t)chunks);
    if (!part)
        return;
    DT_BY_TYPE(dtype, DT_LAUNCH(q, (unsigned)chunks, THREADS, 0, (mse_kernel<T>), *items, width,
                                scale, (const T *)pred, (const T *)target, part, (T *)dpred));
    DT_LAUNCH(q, dt_cuda_grid(q, items->n, THREADS), THREADS, 0, mse_end, *items,
              (const double *)part, sse);
}

void dt_cuda_loss(struct dt_kernels *k)
{
    k->softmax = softmax;
    k->xent = xent;
    k->mse = mse;
}
