/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Element-wise kernels, sums over the pixels of an item and over rows. */
#include "kernels/cuda/cuda.h"

enum { THREADS = 256 };

/* ---- one in, one or two out ---- */

template <typename A, typename B, int V> __global__ void cast_kernel(int64_t n, const A *x, B *y)
{
    DT_CU_EACH(V, i, n)
    {
        float f[V];

        dt_cu_load<V>(f, x + i);
        dt_cu_store<V>(y + i, f);
    }
}

template <typename A, typename B>
static void cast_to(struct dt_device_queue *q, int64_t n, const void *x, void *y)
{
    constexpr int V = 4; /* 16 bytes on the wider side */

    if (n % V == 0 && dt_cuda_aligned(x, y))
        DT_LAUNCH(q, dt_cuda_grid(q, n / V, THREADS), THREADS, 0, (cast_kernel<A, B, V>), n,
                  (const A *)x, (B *)y);
    else
        DT_LAUNCH(q, dt_cuda_grid(q, n, THREADS), THREADS, 0, (cast_kernel<A, B, 1>), n,
                  (const A *)x, (B *)y);
}

static void cast(struct dt_device_queue *q, int64_t n, enum dt_dtype from, const void *x,
                 enum dt_dtype to, void *y)
{
    if (n == 0)
        return;
    DT_BY_TYPE(from, {
        if (to == DT_BF16)
            cast_to<T, dt_cu_bf16>(q, n, x, y);
        else
            cast_to<T, float>(q, n, x, y);
    });
}

template <typename T, int V> __global__ void add_kernel(int64_t n, const T *a, const T *b, T *y)
{
    DT_CU_EACH(V, i, n)
    {
        float f[V], g[V];

        dt_cu_load<V>(f, a + i);
        dt_cu_load<V>(g, b + i);
        for (int j = 0; j < V; j++)
            f[j] += g[j];
        dt_cu_store<V>(y + i, f);
    }
}

static void add(struct dt_device_queue *q, enum dt_dtype dtype, int64_t n, const void *a,
                const void *b, void *y)
{
    if (n == 0)
        return;
    DT_BY_TYPE(dtype,
               DT_BY_WIDTH(n % (16 / sizeof(T)) == 0 && dt_cuda_aligned(a, b, y),
                           DT_LAUNCH(q, dt_cuda_grid(q, n / V, THREADS), THREADS, 0,
                                     (add_kernel<T, V>), n, (const T *)a, (const T *)b, (T *)y)));
}

template <typename T, int V> __global__ void scale_kernel(int64_t n, float f, const T *x, T *y)
{
    DT_CU_EACH(V, i, n)
    {
        float g[V];

        dt_cu_load<V>(g, x + i);
        for (int j = 0; j < V; j++)
            g[j] *= f;
        dt_cu_store<V>(y + i, g);
    }
}

static void scale(struct dt_device_queue *q, enum dt_dtype dtype, int64_t n, float f, const void *x,
                  void *y)
{
    if (n == 0)
        return;
    DT_BY_TYPE(dtype, DT_BY_WIDTH(n % (16 / sizeof(T)) == 0 && dt_cuda_aligned(x, y),
                                  DT_LAUNCH(q, dt_cuda_grid(q, n / V, THREADS), THREADS, 0,
                                            (scale_kernel<T, V>), n, f, (const T *)x, (T *)y)));
}

template <typename T, int V>
__global__ void add_row_kernel(int64_t n, int64_t width, int64_t ld, const float *row, T *y)
{
    DT_CU_EACH(V, i, n)
    {
        int64_t at = i % width;
        T *p = y + i / width * ld + at;
        float f[V], g[V];

        dt_cu_load<V>(f, p);
        dt_cu_load<V>(g, row + at);
        for (int j = 0; j < V; j++)
            f[j] += g[j];
        dt_cu_store<V>(p, f);
    }
}

void dt_cuda_add_row(struct dt_device_queue *q, enum dt_dtype dtype, int64_t rows, int64_t width,
                     int64_t ld, const float *row, void *y)
{
    int64_t n = rows * width;

    if (n == 0)
        return;
    DT_BY_TYPE(dtype,
               DT_BY_WIDTH((width | ld) % (16 / (int)sizeof(T)) == 0 && dt_cuda_aligned(row, y),
                           DT_LAUNCH(q, dt_cuda_grid(q, n / V, THREADS), THREADS, 0,
                                     (add_row_kernel<T, V>), n, width, ld, row, (T *)y)));
}

/* ---- items ---- */

template <typename T, int V>
__global__ void mix_kernel(struct dt_kernel_items items, int64_t width, const float *a, const T *x,
                           const float *b, const T *z, T *y)
{
    DT_CU_EACH(V, i, items.rows * width)
    {
        int item = dt_cu_item_of(items, i / width);
        float f[V], g[V], s = a[item], t = b[item];

        dt_cu_load<V>(f, x + i);
        dt_cu_load<V>(g, z + i);
        for (int j = 0; j < V; j++)
            f[j] = dt_cu_fma(s, f[j], dt_cu_mul(t, g[j]));
        dt_cu_store<V>(y + i, f);
    }
}

static void mix(struct dt_device_queue *q, enum dt_dtype dtype, const struct dt_kernel_items *items,
                int64_t width, const float *a, const void *x, const float *b, const void *z,
                void *y)
{
    int64_t n = items->rows * width;

    if (n == 0)
        return;
    DT_BY_TYPE(dtype, DT_BY_WIDTH(width % (16 / sizeof(T)) == 0 && dt_cuda_aligned(x, z, y),
                                  DT_LAUNCH(q, dt_cuda_grid(q, n / V, THREADS), THREADS, 0,
                                            (mix_kernel<T, V>), *items, width, a, (const T *)x, b,
                                            (const T *)z, (T *)y)));
}

template <typename T, int V>
__global__ void item_add_kernel(struct dt_kernel_items items, int64_t width, const T *x, const T *e,
                                T *y)
{
    DT_CU_EACH(V, i, items.rows * width)
    {
        int64_t item = dt_cu_item_of(items, i / width);
        float f[V], g[V];

        dt_cu_load<V>(f, x + i);
        dt_cu_load<V>(g, e + item * width + i % width);
        for (int j = 0; j < V; j++)
            f[j] += g[j];
        dt_cu_store<V>(y + i, f);
    }
}

static void item_add(struct dt_device_queue *q, enum dt_dtype dtype,
                     const struct dt_kernel_items *items, int64_t width, const void *x,
                     const void *e, void *y)
{
    int64_t n = items->rows * width;

    if (n == 0)
        return;
    DT_BY_TYPE(dtype, DT_BY_WIDTH(width % (16 / sizeof(T)) == 0 && dt_cuda_aligned(x, e, y),
                                  DT_LAUNCH(q, dt_cuda_grid(q, n / V, THREADS), THREADS, 0,
                                            (item_add_kernel<T, V>), *items, width, (const T *)x,
                                            (const T *)e, (T *)y)));
}

/* ---- sums over rows ----
 *
 * In two steps: blocks of COLUMNS accesses and a chunk of rows leave the sums of their rows; then every column's
 * chunks are added.  Both times threads take a column's rows in turn, LANES of them or MORE_LANES, and are added in
 * their order, which does not depend on how many columns an access has. */

enum { COLUMNS = 32, LANES = 8, MORE_LANES = 32, LEAST_CHUNK = 32, ENOUGH_BLOCKS = 528 };

/* Chunk blockIdx.x of rows, or of items (cu NULL: there are none). */
template <typename T, int V>
__global__ void __launch_bounds__(COLUMNS *LANES)
    chunk_sums(struct dt_kernel_items items, int chunk, int64_t width, const T *x, float *part)
{
    DT_SHARED(float, room, LANES *COLUMNS *V);
    int column = threadIdx.x % COLUMNS, lane = threadIdx.x / COLUMNS;
    int64_t first = blockIdx.y * (int64_t)(COLUMNS * V), at = first + column * V;
    int64_t begin = blockIdx.x * (int64_t)chunk, end;
    float sum[V] = {};

    end = begin + chunk < items.rows ? begin + chunk : items.rows;
    if (items.cu) {
        struct dt_cu_chunk c = dt_cu_chunk_of(items, blockIdx.x);

        begin = c.begin;
        end = c.end;
    }
    if (at < width) {
        x += at;
#pragma unroll 8
        for (int64_t r = begin + lane; r < end; r += LANES) {
            dt_cu_packed<T, V> a = dt_cu_take<V>(x + r * width);

#pragma unroll
            for (int j = 0; j < V; j++)
                sum[j] += a.at(j);
        }
    }
    for (int j = 0; j < V; j++)
        room[(lane * V + j) * COLUMNS + column] = sum[j];
    __syncthreads();
    for (int i = threadIdx.x; i < COLUMNS * V; i += COLUMNS * LANES) {
        float s = 0;

        for (int l = 0; l < LANES; l++)
            s += room[(l * V + i % V) * COLUMNS + i / V];
        if (first + i < width)
            part[blockIdx.x * width + first + i] = s;
    }
}

/* The sum of rows begin .. end - 1 of column `at`, in lane 0. */
__device__ float sum_column(const float *x, int64_t begin, int64_t end, int64_t width, int64_t at,
                            float *room)
{
    int column = threadIdx.x % COLUMNS, lane = threadIdx.x / COLUMNS, lanes = blockDim.x / COLUMNS;
    float sum = 0;

    if (at < width) {
#pragma unroll 8
        for (int64_t r = begin + lane; r < end; r += lanes)
            sum += x[r * width + at];
    }
    room[threadIdx.x] = sum;
    __syncthreads();
    if (lane == 0)
        for (int l = 1; l < lanes; l++)
            sum += room[l * COLUMNS + column];
    return sum;
}

/* Rows of sums, all or item by item. */
template <typename Out>
__global__ void __launch_bounds__(COLUMNS *MORE_LANES)
    add_chunks(struct dt_kernel_items items, int64_t chunks, int64_t width, const float *part,
               Out *out, bool add)
{
    DT_SHARED(float, room, MORE_LANES *COLUMNS);
    int64_t at = blockIdx.y * (int64_t)COLUMNS + threadIdx.x % COLUMNS, item = blockIdx.x;
    int64_t begin = items.cu ? dt_cu_first_chunk(items, item) : 0;
    int64_t end = begin + (items.cu ? dt_cu_chunks_of(items, item) : chunks);
    float sum = sum_column(part, begin, end, width, at, room);
    Out *o = out + item * width + at;

    if (threadIdx.x < COLUMNS && at < width)
        *o = dt_cu_from_float<Out>(add ? dt_cu_float(*o) + sum : sum);
}

/* All rows of sums; from column `half` on they are another tensor's. */
__global__ void __launch_bounds__(COLUMNS *MORE_LANES)
    add_pairs(int64_t chunks, int64_t width, int64_t half, const float *part, float *out,
              float *second, bool add)
{
    DT_SHARED(float, room, MORE_LANES *COLUMNS);
    int64_t at = blockIdx.x * (int64_t)COLUMNS + threadIdx.x % COLUMNS;
    float sum = sum_column(part, 0, chunks, width, at, room);
    float *o = at < half ? out + at : second + (at - half);

    if (threadIdx.x < COLUMNS && at < width && (at < half || second))
        *o = add ? *o + sum : sum;
}

static unsigned lanes_for(int64_t rows)
{
    return rows > 4 * LANES ? MORE_LANES : LANES;
}

static const struct dt_kernel_items no_items = {0, NULL, 0};

static void add_halves(struct dt_device_queue *q, int64_t parts, int64_t width, int64_t half,
                       const float *part, float *out, float *second, bool add)
{
    if (width > 0)
        DT_LAUNCH(q, (unsigned)dt_cuda_blocks(width, COLUMNS), COLUMNS * lanes_for(parts), 0,
                  add_pairs, parts, width, half, part, out, second, add);
}

void dt_cuda_add_parts(struct dt_device_queue *q, int64_t parts, int64_t width, const float *part,
                       float *out, bool add)
{
    add_halves(q, parts, width, width, part, out, NULL, add);
}

void dt_cuda_add_pairs(struct dt_device_queue *q, int64_t parts, int64_t width, const float *part,
                       float *out, float *second, bool add)
{
    add_halves(q, parts, 2 * width, width, part, out, second, add);
}

/* Rows of a chunk: as many as leave enough blocks to keep every processor of an H100 busy four times over. */
static int chunk_for(int64_t rows, int64_t columns)
{
    int chunk = DT_CU_CHUNK;

    while (chunk > LEAST_CHUNK && dt_cuda_blocks(rows, chunk) * columns < ENOUGH_BLOCKS)
        chunk /= 2;
    return chunk;
}

/* out[item, :] (+)= sums over the item's rows; Out: fp32 or T. */
template <typename T, typename Out>
static void sum_rows(struct dt_device_queue *q, const struct dt_kernel_items *items, int64_t n,
                     int64_t width, const T *x, Out *out, bool add)
{
    constexpr int W = 16 / sizeof(T);
    int64_t wide = dt_cuda_blocks(width, COLUMNS * W);
    int chunk = items->cu ? DT_CU_CHUNK : chunk_for(items->rows, wide);
    int64_t chunks = items->cu ? dt_cuda_chunk_numbers(items) : dt_cuda_blocks(items->rows, chunk);
    unsigned columns = (unsigned)dt_cuda_blocks(width, COLUMNS);
    float *part;

    if (n * width == 0 || (items->rows == 0 && add))
        return;
    assert(columns <= 65535);
    part = (float *)dt_cuda_scratch(q, DT_SCRATCH_KERNEL,
                                    sizeof(float) * (size_t)(chunks * width) + 4);
    if (!part)
        return;
    if (chunks > 0)
        DT_BY_WIDTH(
            width % W == 0 && dt_cuda_aligned(x),
            DT_LAUNCH(q, dim3((unsigned)chunks, (unsigned)dt_cuda_blocks(width, COLUMNS * V)),
                      COLUMNS * LANES, 0, (chunk_sums<T, V>), *items, chunk, width, x, part));
    if (items->cu)
        DT_LAUNCH(q, dim3((unsigned)n, columns), COLUMNS * LANES, 0, (add_chunks<Out>), *items,
                  chunks, width, (const float *)part, out, add);
    else
        DT_LAUNCH(q, dim3(1, columns), COLUMNS * lanes_for(chunks), 0, (add_chunks<Out>), no_items,
                  chunks, width, (const float *)part, out, add);
}

static void item_sum(struct dt_device_queue *q, enum dt_dtype dtype,
                     const struct dt_kernel_items *items, int64_t width, const void *dy, void *de,
                     bool add)
{
    DT_BY_TYPE(dtype, (sum_rows<T, T>(q, items, items->n, width, (const T *)dy, (T *)de, add)));
}

static void bias_bwd(struct dt_device_queue *q, enum dt_dtype dtype, int64_t rows, int64_t width,
                     const void *dy, float *db, bool add)
{
    struct dt_kernel_items all = {0, NULL, rows};

    DT_BY_TYPE(dtype, (sum_rows<T, float>(q, &all, 1, width, (const T *)dy, db, add)));
}

void dt_cuda_elementwise(struct dt_kernels *k)
{
    k->cast = cast;
    k->add = add;
    k->scale = scale;
    k->mix = mix;
    k->item_add = item_add;
    k->item_sum = item_sum;
    k->bias_bwd = bias_bwd;
}
