/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Tables of rows by number: embedding and its gradient. */
#include "kernels/cuda/cuda.h"

enum { THREADS = 256 };

template <typename T, int V>
__global__ void embedding_kernel(int64_t n, int64_t width, int64_t vocab, const int32_t *id,
                                 const float *table, T *y, bool add)
{
    DT_CU_EACH(V, i, n)
    {
        int32_t t = id[i / width];
        float f[V] = {}, g[V];

        if (t >= 0 && t < vocab)
            dt_cu_load<V>(f, table + t * width + i % width);
        if (add) {
            dt_cu_load<V>(g, y + i);
            for (int j = 0; j < V; j++)
                f[j] += g[j];
        }
        dt_cu_store<V>(y + i, f);
    }
}

static void embedding_fwd(struct dt_device_queue *q, enum dt_dtype dtype, int64_t rows,
                          int64_t width, int64_t vocab, const int32_t *id, const float *table,
                          void *y, bool add)
{
    int64_t n = rows * width;
    bool fits = width % 4 == 0 && dt_cuda_aligned(table, y);

    if (n == 0)
        return;
    DT_BY_TYPE(dtype, {
        if (fits) /* 16 bytes of the table at a time */
            DT_LAUNCH(q, dt_cuda_grid(q, n / 4, THREADS), THREADS, 0, (embedding_kernel<T, 4>), n,
                      width, vocab, id, table, (T *)y, add);
        else
            DT_LAUNCH(q, dt_cuda_grid(q, n, THREADS), THREADS, 0, (embedding_kernel<T, 1>), n,
                      width, vocab, id, table, (T *)y, add);
    });
}

/* ---- gradient ----
 *
 * Rows are sorted by id.  The id's rows ("run") are counted, the counts added up to where each run begins, and every row put
 * into its run, in whatever order.  Of a run of a FEW rows a warp sorts the numbers of its rows in registers and adds the rows
 * to the table in their order.  Longer runs are sorted first; then SLOTS rows at a time are added side by side
 * by a block, and its sums in the order of the slots.  So the order of additions follows from the ids alone.  What is
 * added by atomics is integers. */

enum { FEW = 8, SLOTS = 32, WIDE = THREADS / SLOTS, SCAN = 1024, PIECES = 32 };

struct run {
    int32_t id, begin, n;
};
struct sorted {             /* in workspace */
    int32_t *count, *begin; /* [vocab] */
    int32_t *place;         /* [rows]: the rows of runs */
    int32_t *order;         /* the same in order, of long runs only */
    struct run *few, *many; /* in the order of ids */
    int32_t *n_few, *n_many;
};
#ifndef __CUDACC__
static inline void dt_cu_see(struct sorted &s, const char *kernel)
{
    s.count = (int32_t *)cucpu_seen(s.count, kernel);
    s.begin = (int32_t *)cucpu_seen(s.begin, kernel);
    s.place = (int32_t *)cucpu_seen(s.place, kernel);
    s.order = (int32_t *)cucpu_seen(s.order, kernel);
    s.few = (struct run *)cucpu_seen(s.few, kernel);
    s.many = (struct run *)cucpu_seen(s.many, kernel);
    s.n_few = (int32_t *)cucpu_seen(s.n_few, kernel);
    s.n_many = (int32_t *)cucpu_seen(s.n_many, kernel);
}
#endif

__global__ void count_ids(int64_t rows, int64_t vocab, const int32_t *id, struct sorted s)
{
    DT_CU_EACH(1, r, rows)
    {
        int32_t t = id[r];

        if (t >= 0 && t < vocab)
            atomicAdd(&s.count[t], 1);
    }
}

/* Sums of all threads before this one, of three numbers each. */
__device__ __forceinline__ void sums_before(int (&x)[3], int *room)
{
    int before[3] = {0, 0, 0};

    for (int i = 0; i < 3; i++)
        room[3 * threadIdx.x + i] = x[i];
    __syncthreads();
    for (int step = 1; step < SCAN; step *= 2) {
        int more[3];

        for (int i = 0; i < 3; i++)
            more[i] = (int)threadIdx.x >= step ? room[3 * (threadIdx.x - step) + i] : 0;
        __syncthreads();
        for (int i = 0; i < 3; i++)
            room[3 * threadIdx.x + i] += more[i];
        __syncthreads();
    }
    for (int i = 0; i < 3; i++)
        before[i] = threadIdx.x > 0 ? room[3 * (threadIdx.x - 1) + i] : 0;
    for (int i = 0; i < 3; i++)
        x[i] = before[i];
}

/* One block; each thread has a stretch of ids. */
__global__ void __launch_bounds__(SCAN) list_runs(int64_t vocab, struct sorted s)
{
    DT_SHARED(int, room, 3 * SCAN);
    int64_t each = (vocab + SCAN - 1) / SCAN, first = threadIdx.x * each;
    int64_t last = first + each < vocab ? first + each : vocab;
    int at[3] = {0, 0, 0}; /* rows, short runs, long runs before this id */

    for (int64_t t = first; t < last; t++) {
        int n = s.count[t];

        at[0] += n;
        at[1] += n > 0 && n <= FEW;
        at[2] += n > FEW;
    }
    sums_before(at, room);
    for (int64_t t = first; t < last; t++) {
        int n = s.count[t];

        if (n == 0)
            continue;
        s.begin[t] = at[0];
        if (n <= FEW)
            s.few[at[1]++] = {(int32_t)t, at[0], n};
        else
            s.many[at[2]++] = {(int32_t)t, at[0], n};
        at[0] += n;
    }
    if (threadIdx.x == SCAN - 1) {
        *s.n_few = at[1];
        *s.n_many = at[2];
    }
}

__global__ void place_rows(int64_t rows, int64_t vocab, const int32_t *id, struct sorted s)
{
    DT_CU_EACH(1, r, rows)
    {
        int32_t t = id[r];

        if (t >= 0 && t < vocab)
            s.place[s.begin[t] + atomicAdd(&s.count[t], -1) - 1] = (int32_t)r;
    }
}

/* Each row of a long run counts those that come before it. */
__global__ void order_rows(struct sorted s)
{
    DT_SHARED(int32_t, room, THREADS);

    for (int k = blockIdx.x; k < *s.n_many; k += gridDim.x) {
        struct run run = s.many[k];

        for (int first = blockIdx.y * THREADS; first < run.n; first += gridDim.y * THREADS) {
            int i = first + (int)threadIdx.x, rank = 0;
            int32_t mine = i < run.n ? s.place[run.begin + i] : 0;

            for (int at = 0; at < run.n; at += THREADS) {
                int left = run.n - at < THREADS ? run.n - at : THREADS;

                __syncthreads();
                if ((int)threadIdx.x < left)
                    room[threadIdx.x] = s.place[run.begin + at + threadIdx.x];
                __syncthreads();
                for (int j = 0; j < left; j++)
                    rank += room[j] < mine;
            }
            if (i < run.n)
                s.order[run.begin + rank] = mine;
        }
    }
}

__device__ __forceinline__ void swap_to_order(int32_t &a, int32_t &b)
{
    int32_t low = min(a, b);

    b = max(a, b);
    a = low;
}

/* The rows of a short run in their order, in every lane; behind them INT32_MAX.  Batcher's network for 8. */
__device__ __forceinline__ void rows_of_run(const struct run &run, const int32_t *place,
                                            int32_t (&row)[FEW])
{
    static constexpr unsigned char pairs[][2] = {
        {0, 1}, {2, 3}, {4, 5}, {6, 7}, {0, 2}, {1, 3}, {4, 6}, {5, 7}, {1, 2}, {5, 6},
        {0, 4}, {1, 5}, {2, 6}, {3, 7}, {2, 4}, {3, 5}, {1, 2}, {3, 4}, {5, 6}};

#pragma unroll
    for (int i = 0; i < FEW; i++)
        row[i] = i < run.n ? place[run.begin + i] : INT32_MAX;
    if (run.n > 1) {
#pragma unroll
        for (int i = 0; i < 19; i++)
            swap_to_order(row[pairs[i][0]], row[pairs[i][1]]);
    }
}

/* A warp has a short run and 32 V columns at a time. */
template <typename T, int V>
__global__ void __launch_bounds__(THREADS)
    add_few(int64_t width, struct sorted s, const T *dy, float *table)
{
    int64_t columns = (width + 32 * V - 1) / (32 * V), n = *s.n_few * columns;

    for (int64_t i = (blockIdx.x * (int64_t)THREADS + threadIdx.x) / 32; i < n;
         i += gridDim.x * (int64_t)(THREADS / 32)) {
        struct run run = s.few[i / columns];
        int64_t at = (i % columns * 32 + threadIdx.x % 32) * V;
        dt_cu_packed<T, V> d[FEW];
        int32_t row[FEW];
        float sum[V];

        if (at >= width)
            continue;
        rows_of_run(run, s.place, row);
#pragma unroll
        for (int k = 0; k < FEW; k++)
            if (k < run.n)
                d[k] = dt_cu_take<V>(dy + row[k] * width + at);
        dt_cu_load<V>(sum, table + run.id * width + at);
#pragma unroll
        for (int k = 0; k < FEW; k++)
            if (k < run.n)
                for (int j = 0; j < V; j++)
                    sum[j] += d[k].at(j);
        dt_cu_store<V>(table + run.id * width + at, sum);
    }
}

/* A block has a long run and WIDE V columns at a time. */
template <typename T, int V>
__global__ void __launch_bounds__(THREADS)
    add_many(int64_t width, struct sorted s, const T *dy, float *table)
{
    DT_SHARED(float, room, SLOTS *WIDE *V);
    int slot = threadIdx.x / WIDE, access = threadIdx.x % WIDE;
    int64_t columns = (width + WIDE * V - 1) / (WIDE * V), n = *s.n_many * columns;

    for (int64_t i = blockIdx.x; i < n; i += gridDim.x) {
        struct run run = s.many[i / columns];
        int64_t first = i % columns * WIDE * V, at = first + access * V;
        const int32_t *row = s.order + run.begin;
        float sum[V] = {};

        if (at < width) {
#pragma unroll 4
            for (int r = slot; r < run.n; r += SLOTS) {
                dt_cu_packed<T, V> d = dt_cu_take<V>(dy + row[r] * width + at);

#pragma unroll
                for (int j = 0; j < V; j++)
                    sum[j] += d.at(j);
            }
        }
        __syncthreads(); /* all have read what the run before left */
        for (int j = 0; j < V; j++)
            room[(slot * V + j) * WIDE + access] = sum[j];
        __syncthreads();
        for (int c = threadIdx.x; c < WIDE * V; c += THREADS)
            if (first + c < width) {
                float f = table[run.id * width + first + c];

                for (int k = 0; k < SLOTS; k++)
                    f += room[(k * V + c % V) * WIDE + c / V];
                table[run.id * width + first + c] = f;
            }
    }
}

/* Where all of it lies in workspace. */
static bool sorted_new(struct dt_device_queue *q, int64_t rows, int64_t vocab, struct sorted *s)
{
    size_t n = (size_t)(2 * vocab + 2 * rows), runs = (size_t)(rows < vocab ? rows : vocab) + 1;
    size_t lists = (n + 3) / 4 * 4;
    int32_t *p = (int32_t *)dt_cuda_scratch(
        q, DT_SCRATCH_KERNEL, (lists + 4) * sizeof(int32_t) + 2 * runs * sizeof(struct run));

    if (!p)
        return false;
    s->count = p;
    s->begin = s->count + vocab;
    s->place = s->begin + vocab;
    s->order = s->place + rows;
    s->n_few = p + lists;
    s->n_many = s->n_few + 1;
    s->few = (struct run *)(p + lists + 4);
    s->many = s->few + runs;
    q->dev->zero(q, s->count, sizeof(int32_t) * (size_t)vocab);
    return true;
}

static void embedding_bwd(struct dt_device_queue *q, enum dt_dtype dtype, int64_t rows,
                          int64_t width, int64_t vocab, const int32_t *id, const void *dy,
                          float *dtable)
{
    unsigned most = 8 * (unsigned)dt_cuda_processors(q), each = dt_cuda_grid(q, rows, THREADS);
    struct sorted s;

    if (rows * width == 0 || vocab == 0)
        return;
    assert(rows < INT32_MAX && vocab < INT32_MAX);
    if (!sorted_new(q, rows, vocab, &s))
        return;
    DT_LAUNCH(q, each, THREADS, 0, count_ids, rows, vocab, id, s);
    DT_LAUNCH(q, 1, SCAN, 0, list_runs, vocab, s);
    DT_LAUNCH(q, each, THREADS, 0, place_rows, rows, vocab, id, s);
    if (rows > FEW)
        DT_LAUNCH(q, dim3((unsigned)dt_cuda_processors(q), PIECES), THREADS, 0, order_rows, s);
    DT_BY_TYPE(dtype, DT_BY_WIDTH(width % (16 / sizeof(T)) == 0 && dt_cuda_aligned(dy, dtable), {
                   DT_LAUNCH(q, most, THREADS, 0, (add_few<T, V>), width, s, (const T *)dy, dtable);
                   if (rows > FEW)
                       DT_LAUNCH(q, most, THREADS, 0, (add_many<T, V>), width, s, (const T *)dy,
                                 dtable);
               }));
}

__global__ void ids_kernel(int64_t n, const int32_t *id, int64_t first, int64_t count, int32_t *out)
{
    DT_CU_EACH(1, i, n)
    {
        int64_t at = id[i] - first;

        out[i] = at >= 0 && at < count ? (int32_t)at : -1;
    }
}

static void ids_part(struct dt_device_queue *q, int64_t n, const int32_t *id, int64_t first,
                     int64_t count, int32_t *out)
{
    if (n > 0)
        DT_LAUNCH(q, dt_cuda_grid(q, n, THREADS), THREADS, 0, ids_kernel, n, id, first, count, out);
}

void dt_cuda_embedding(struct dt_kernels *k)
{
    k->embedding_fwd = embedding_fwd;
    k->embedding_bwd = embedding_bwd;
    k->ids_part = ids_part;
}
