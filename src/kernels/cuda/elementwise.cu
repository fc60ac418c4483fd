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
            f[j] = s * f[j] + t * g[j];
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
 * In two steps: blocks of COLUMNS columns and a chunk of rows leave the sums of their rows; then every column's
 * chunks are added.  Both times LANES threads take rows in turn, and are added in their order. */

enum { COLUMNS = 32, LANES = 8 };

/* The sum of rows begin .. end - 1 of column `at`, in lane 0. */
template <typename T>
__device__ float sum_column(const T *x, int64_t begin, int64_t end, int64_t width, int64_t at,
                            float *room)
{
    int column = threadIdx.x % COLUMNS, lane = threadIdx.x / COLUMNS;
    float sum = 0;

    if (at < width) {
#pragma unroll 4
        for (int64_t r = begin + lane; r < end; r += LANES)
            sum += dt_cu_float(x[r * width + at]);
    }
    room[threadIdx.x] = sum;
    __syncthreads();
    if (lane == 0)
        for (int l = 1; l < LANES; l++)
            sum += room[l * COLUMNS + column];
    return sum;
}

/* Chunk blockIdx.x of rows, or of items (cu NULL: there are none). */
template <typename T>
__global__ void chunk_sums(struct dt_kernel_items items, int64_t width, const T *x, float *part)
{
    DT_SHARED(float, room, LANES *COLUMNS);
    int64_t at = blockIdx.y * (int64_t)COLUMNS + threadIdx.x % COLUMNS;
    int64_t begin = blockIdx.x * (int64_t)DT_CU_CHUNK, end;

    end = begin + DT_CU_CHUNK < items.rows ? begin + DT_CU_CHUNK : items.rows;
    if (items.cu) {
        struct dt_cu_chunk c = dt_cu_chunk_of(items, blockIdx.x);

        begin = c.begin;
        end = c.end;
    }
    float sum = sum_column(x, begin, end, width, at, room);

    if (threadIdx.x < COLUMNS && at < width)
        part[blockIdx.x * width + at] = sum;
}

/* Rows of sums, all or item by item. */
template <typename Out>
__global__ void add_chunks(struct dt_kernel_items items, int64_t chunks, int64_t width,
                           const float *part, Out *out, bool add)
{
    DT_SHARED(float, room, LANES *COLUMNS);
    int64_t at = blockIdx.y * (int64_t)COLUMNS + threadIdx.x % COLUMNS, item = blockIdx.x;
    int64_t begin = items.cu ? dt_cu_first_chunk(items, item) : 0;
    int64_t end = begin + (items.cu ? dt_cu_chunks_of(items, item) : chunks);
    float sum = sum_column(part, begin, end, width, at, room);
    Out *o = out + item * width + at;

    if (threadIdx.x < COLUMNS && at < width)
        *o = dt_cu_from_float<Out>(add ? dt_cu_float(*o) + sum : sum);
}

static const struct dt_kernel_items no_items = {0, NULL, 0};

void dt_cuda_add_parts(struct dt_device_queue *q, int64_t parts, int64_t width, const float *part,
                       float *out, bool add)
{
    if (width > 0)
        DT_LAUNCH(q, dim3(1, (unsigned)dt_cuda_blocks(width, COLUMNS)), COLUMNS * LANES, 0,
                  (add_chunks<float>), no_items, parts, width, part, out, add);
}

/* out[item, :] (+)= sums over the item's rows; Out: fp32 or T. */
template <typename T, typename Out>
static void sum_rows(struct dt_device_queue *q, const struct dt_kernel_items *items, int64_t n,
                     int64_t width, const T *x, Out *out, bool add)
{
    int64_t chunks =
        items->cu ? dt_cuda_chunk_numbers(items) : dt_cuda_blocks(items->rows, DT_CU_CHUNK);
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
        DT_LAUNCH(q, dim3((unsigned)chunks, columns), COLUMNS * LANES, 0, (chunk_sums<T>), *items,
                  width, x, part);
    DT_LAUNCH(q, dim3((unsigned)n, columns), COLUMNS * LANES, 0, (add_chunks<Out>), *items, chunks,
              width, (const float *)part, out, add);
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
