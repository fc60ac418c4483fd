/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Mixtures of experts: the choice of experts, the order of rows by expert, and how rows come together again. */
#include "kernels/cuda/cuda.h"

#define DT_KERNEL_FUNCTION static __device__
#include "kernels/choose.h"

enum { THREADS = 256 };

/* ---- choice: a thread has a row ---- */

__global__ void choose_kernel(struct dt_kernel_route a, const float *prob, int32_t *expert,
                              float *weight)
{
    DT_CU_EACH(1, r, a.rows)
    {
        const float *p = prob + r * a.experts;
        int32_t *to = expert + r * a.top_k;
        float sum = 0, f = 1;

        for (int j = 0; j < a.top_k; j++) {
            int e = dt_kernel_next_best(p, a.experts, j > 0 ? to[j - 1] : -1);

            to[j] = e < 0 ? j : e; /* e < 0: p is not a number */
            sum += p[to[j]];
        }
        if (a.normed)
            f = 1 / sum;
        for (int j = 0; weight && j < a.top_k; j++)
            weight[r * a.top_k + j] = p[to[j]] * f;
    }
}

static void route_choose(struct dt_device_queue *q, const struct dt_kernel_route *r,
                         const float *prob, int32_t *expert, float *weight)
{
    if (r->rows > 0)
        DT_LAUNCH(q, dt_cuda_grid(q, r->rows, THREADS), THREADS, 0, choose_kernel, *r, prob, expert,
                  weight);
}

/* ---- order: a block has an expert and looks at all choices ---- */

__global__ void count_kernel(int64_t n, const int32_t *expert, int32_t *count)
{
    DT_SHARED(int, room, 32);
    int mine = 0;

    for (int64_t i = threadIdx.x; i < n; i += THREADS)
        mine += expert[i] == (int32_t)blockIdx.x;
    mine = dt_cu_block_sum(mine, room);
    if (threadIdx.x == 0)
        count[blockIdx.x] = mine;
}

__global__ void sort_kernel(int64_t n, int top_k, const int32_t *expert, const int32_t *count,
                            int32_t *place, int32_t *choice, int32_t *row)
{
    DT_SHARED(int, room, 32);
    DT_SHARED(int, upto, THREADS); /* choices of this expert up to this thread's */
    int before = 0, at;

    for (int e = threadIdx.x; e < (int)blockIdx.x; e += THREADS)
        before += count[e];
    at = dt_cu_block_sum(before, room);
    for (int64_t begin = 0; begin < n; begin += THREADS) {
        int64_t i = begin + threadIdx.x;
        bool mine = i < n && expert[i] == (int32_t)blockIdx.x;

        upto[threadIdx.x] = mine;
        __syncthreads();
        for (int step = 1; step < THREADS; step *= 2) {
            int more = (int)threadIdx.x >= step ? upto[threadIdx.x - step] : 0;

            __syncthreads();
            upto[threadIdx.x] += more;
            __syncthreads();
        }
        if (mine) {
            int to = at + upto[threadIdx.x] - 1;

            place[i] = to;
            choice[to] = (int32_t)i;
            row[to] = (int32_t)(i / top_k);
        }
        at += upto[THREADS - 1];
        __syncthreads();
    }
}

static void route_sort(struct dt_device_queue *q, const struct dt_kernel_route *r,
                       const int32_t *expert, int32_t *count, int32_t *place, int32_t *choice,
                       int32_t *row)
{
    int64_t n = r->rows * r->top_k;

    DT_LAUNCH(q, (unsigned)r->experts, THREADS, 0, count_kernel, n, expert, count);
    DT_LAUNCH(q, (unsigned)r->experts, THREADS, 0, sort_kernel, n, r->top_k, expert, count, place,
              choice, row);
}

/* ---- balance: a block has an item, its threads take experts in turn ---- */

__global__ void load_kernel(struct dt_kernel_route a, struct dt_kernel_items items,
                            const int32_t *expert, float *load)
{
    int64_t begin = items.cu[blockIdx.x], end = items.cu[blockIdx.x + 1];

    load += blockIdx.x * (int64_t)a.experts;
    for (int e = threadIdx.x; e < a.experts; e += THREADS) {
        int64_t n = 0;

        for (int64_t c = begin * a.top_k; c < end * a.top_k; c++)
            n += expert[c] == e;
        load[e] = end > begin ? (float)n * (float)a.experts / (float)((end - begin) * a.top_k) : 0;
    }
}

static void route_load(struct dt_device_queue *q, const struct dt_kernel_route *r,
                       const struct dt_kernel_items *items, const int32_t *expert, float *load)
{
    if (items->n > 0)
        DT_LAUNCH(q, (unsigned)items->n, THREADS, 0, load_kernel, *r, *items, expert, load);
}

__global__ void even_kernel(struct dt_kernel_route a, struct dt_kernel_items items,
                            const float *prob, const float *load, float *sum)
{
    DT_SHARED(double, room, 32);
    int64_t begin = items.cu[blockIdx.x], end = items.cu[blockIdx.x + 1];
    double mine = 0;

    load += blockIdx.x * (int64_t)a.experts;
    for (int e = threadIdx.x; e < a.experts; e += THREADS) {
        double p = 0;

        for (int64_t r = begin; r < end; r++)
            p += (double)prob[r * a.experts + e];
        mine += (double)load[e] * p;
    }
    mine = dt_cu_block_sum(mine, room);
    if (threadIdx.x == 0)
        sum[blockIdx.x] = (float)mine;
}

static void route_even(struct dt_device_queue *q, const struct dt_kernel_route *r,
                       const struct dt_kernel_items *items, const float *prob, const float *load,
                       float *sum)
{
    if (items->n > 0)
        DT_LAUNCH(q, (unsigned)items->n, THREADS, 0, even_kernel, *r, *items, prob, load, sum);
}

/* ---- gradient of the logits: a thread has a row ---- */

template <typename T>
__global__ void back_kernel(struct dt_kernel_route a, struct dt_kernel_items items,
                            const float *prob, const int32_t *expert, const float *dweight,
                            const float *load, float balance, T *dlogit)
{
    DT_CU_EACH(1, r, a.rows)
    {
        const float *p = prob + r * a.experts, *dw = dweight + r * a.top_k;
        const int32_t *chosen = expert + r * a.top_k;
        const float *l = load ? load + (int64_t)dt_cu_item_of(items, r) * a.experts : NULL;
        float sum = 0, inner = 0, dot = 0;

        for (int j = 0; a.normed && j < a.top_k; j++) {
            sum += p[chosen[j]];
            inner += p[chosen[j]] * dw[j];
        }
        for (int j = 0; j < a.top_k; j++)
            dot += p[chosen[j]] * (a.normed ? (dw[j] - inner / sum) / sum : dw[j]);
        for (int e = 0; l && e < a.experts; e++)
            dot += p[e] * balance * l[e];
        for (int e = 0; e < a.experts; e++) {
            float g = l ? balance * l[e] : 0;

            for (int j = 0; j < a.top_k; j++)
                if (chosen[j] == e)
                    g += a.normed ? (dw[j] - inner / sum) / sum : dw[j];
            dlogit[r * a.experts + e] = dt_cu_from_float<T>(p[e] * (g - dot));
        }
    }
}

static void route_bwd(struct dt_device_queue *q, enum dt_dtype dtype,
                      const struct dt_kernel_route *r, const float *prob, const int32_t *expert,
                      const float *dweight, const struct dt_kernel_items *items, const float *load,
                      float balance, void *dlogit)
{
    if (r->rows > 0)
        DT_BY_TYPE(dtype,
                   DT_LAUNCH(q, dt_cuda_grid(q, r->rows, THREADS), THREADS, 0, (back_kernel<T>), *r,
                             *items, prob, expert, dweight, load, balance, (T *)dlogit));
}

/* ---- rows ---- */

template <typename T, int V>
__global__ void weigh_kernel(int64_t n, int64_t width, const float *w, const T *x, T *y)
{
    DT_CU_EACH(V, i, n)
    {
        float f = w[i / width], a[V];

        dt_cu_load<V>(a, x + i);
        for (int j = 0; j < V; j++)
            a[j] *= f;
        dt_cu_store<V>(y + i, a);
    }
}

static void rows_weigh(struct dt_device_queue *q, enum dt_dtype dtype, int64_t rows, int64_t width,
                       const float *w, const void *x, void *y)
{
    int64_t n = rows * width;

    if (n > 0)
        DT_BY_TYPE(dtype,
                   DT_BY_WIDTH(width % (16 / (int)sizeof(T)) == 0 && dt_cuda_aligned(x, y),
                               DT_LAUNCH(q, dt_cuda_grid(q, n / V, THREADS), THREADS, 0,
                                         (weigh_kernel<T, V>), n, width, w, (const T *)x, (T *)y)));
}

/* A block has a row. */
template <typename T>
__global__ void weigh_back_kernel(int64_t width, const float *w, const T *x, const T *dy, T *dx,
                                  float *dw)
{
    DT_SHARED(double, room, 32);
    int64_t at = blockIdx.x * width;
    float f = w[blockIdx.x], part = 0;
    double sum = 0;
    int count = 0;

    for (int64_t i = threadIdx.x; i < width; i += THREADS) { /* fp32 for short stretches only */
        float d = dt_cu_float(dy[at + i]);

        part += d * dt_cu_float(x[at + i]);
        dx[at + i] = dt_cu_from_float<T>(f * d);
        if (++count == 64) {
            sum += (double)part;
            part = 0;
            count = 0;
        }
    }
    sum = dt_cu_block_sum(sum + (double)part, room);
    if (threadIdx.x == 0)
        dw[blockIdx.x] = (float)sum;
}

static void rows_weigh_bwd(struct dt_device_queue *q, enum dt_dtype dtype, int64_t rows,
                           int64_t width, const float *w, const void *x, const void *dy, void *dx,
                           float *dw)
{
    if (rows > 0)
        DT_BY_TYPE(dtype, DT_LAUNCH(q, (unsigned)rows, THREADS, 0, (weigh_back_kernel<T>), width, w,
                                    (const T *)x, (const T *)dy, (T *)dx, dw));
}

template <typename T, int V>
__global__ void bias_kernel(int64_t n, int64_t width, const float *w, const float *b, T *y)
{
    DT_CU_EACH(V, i, n)
    {
        const float *at = b + i % width;
        float f = w[i / width], a[V];

        dt_cu_load<V>(a, y + i);
        for (int j = 0; j < V; j++)
            a[j] += f * at[j];
        dt_cu_store<V>(y + i, a);
    }
}

static void rows_bias(struct dt_device_queue *q, enum dt_dtype dtype, int64_t rows, int64_t width,
                      const float *w, const float *b, void *y)
{
    int64_t n = rows * width;

    if (n > 0)
        DT_BY_TYPE(dtype,
                   DT_BY_WIDTH(width % (16 / (int)sizeof(T)) == 0 && dt_cuda_aligned(y, y),
                               DT_LAUNCH(q, dt_cuda_grid(q, n / V, THREADS), THREADS, 0,
                                         (bias_kernel<T, V>), n, width, w, b, (T *)y)));
}

/* A block has a row. */
template <typename T>
__global__ void bias_back_kernel(int64_t width, const float *b, const T *dy, float *dw)
{
    DT_SHARED(double, room, 32);
    int64_t at = blockIdx.x * width;
    float part = 0;
    double sum = 0;
    int count = 0;

    for (int64_t i = threadIdx.x; i < width; i += THREADS) { /* fp32 for short stretches only */
        part += dt_cu_float(dy[at + i]) * b[i];
        if (++count == 64) {
            sum += (double)part;
            part = 0;
            count = 0;
        }
    }
    sum = dt_cu_block_sum(sum + (double)part, room);
    if (threadIdx.x == 0)
        dw[blockIdx.x] += (float)sum;
}

static void rows_bias_bwd(struct dt_device_queue *q, enum dt_dtype dtype, int64_t rows,
                          int64_t width, const float *b, const void *dy, float *dw)
{
    if (rows > 0)
        DT_BY_TYPE(dtype, DT_LAUNCH(q, (unsigned)rows, THREADS, 0, (bias_back_kernel<T>), width, b,
                                    (const T *)dy, dw));
}

template <typename T, int V>
__global__ void join_kernel(int64_t n, int k, int64_t width, const T *x, const int32_t *place, T *y,
                            bool add)
{
    DT_CU_EACH(V, i, n)
    {
        int64_t r = i / width, at = i % width;
        float sum[V] = {}, a[V];

        if (add)
            dt_cu_load<V>(sum, y + i);
        for (int j = 0; j < k; j++) {
            dt_cu_load<V>(a, x + (place ? place[r * k + j] : r * k + j) * width + at);
            for (int v = 0; v < V; v++)
                sum[v] += a[v];
        }
        dt_cu_store<V>(y + i, sum);
    }
}

static void rows_join(struct dt_device_queue *q, enum dt_dtype dtype, int64_t rows, int k,
                      int64_t width, const void *x, const int32_t *place, void *y, bool add)
{
    int64_t n = rows * width;

    if (n > 0)
        DT_BY_TYPE(dtype, DT_BY_WIDTH(width % (16 / (int)sizeof(T)) == 0 && dt_cuda_aligned(x, y),
                                      DT_LAUNCH(q, dt_cuda_grid(q, n / V, THREADS), THREADS, 0,
                                                (join_kernel<T, V>), n, k, width, (const T *)x,
                                                place, (T *)y, add)));
}

void dt_cuda_route(struct dt_kernels *k)
{
    k->route_choose = route_choose;
    k->route_sort = route_sort;
    k->route_load = route_load;
    k->route_even = route_even;
    k->route_bwd = route_bwd;
    k->rows_weigh = rows_weigh;
    k->rows_weigh_bwd = rows_weigh_bwd;
    k->rows_bias = rows_bias;
    k->rows_bias_bwd = rows_bias_bwd;
    k->rows_join = rows_join;
}
