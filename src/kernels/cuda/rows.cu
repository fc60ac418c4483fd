/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Tables and rows: embedding, gathers and scatters, rectangles, rotary positions. */
#include "kernels/cuda/cuda.h"

enum { THREADS = 256 };

/* ---- embedding ---- */

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

/* The gradient adds rows in their order for every row of the table, without sorting ids: rows are linked to
 * the next one of the same id, and the first of each chain walks it.
 *
 * next[r]: the row after r with r's id, or -1; first[r]: is there none before it?  One block looks at TILE
 * rows and everything behind (in front of) them: quadratic in the rows, of 4-byte loads that are the same for
 * a whole block. */
enum { TILE = 256 };

__global__ void link_rows(int64_t rows, int64_t vocab, const int32_t *id, int32_t *next,
                          int32_t *first)
{
    DT_SHARED(int32_t, room, TILE);
    int64_t r = blockIdx.x * (int64_t)TILE + threadIdx.x;
    int32_t mine = r < rows ? id[r] : -1, after = -1, before = 0;

    for (int64_t begin = 0; begin < rows; begin += TILE) {
        int64_t left = rows - begin < TILE ? rows - begin : TILE;

        __syncthreads();
        if (threadIdx.x < left)
            room[threadIdx.x] = id[begin + threadIdx.x];
        __syncthreads();
        if (mine < 0 || mine >= vocab)
            continue;
        for (int64_t j = 0; j < left; j++) {
            int64_t other = begin + j;

            if (room[j] != mine || other == r)
                continue;
            if (other < r)
                before = 1;
            else if (after < 0)
                after = (int32_t)other;
        }
    }
    if (r < rows) {
        next[r] = after;
        first[r] = mine >= 0 && mine < vocab && !before;
    }
}

template <typename T>
__global__ void embedding_grad(int64_t width, const int32_t *id, const int32_t *next,
                               const int32_t *first, const T *dy, float *table)
{
    int64_t head = blockIdx.x;
    int64_t at = (int64_t)blockIdx.y * blockDim.x + threadIdx.x;
    float *t;

    if (!first[head] || at >= width)
        return;
    t = table + id[head] * width + at;
    float sum = *t;
    for (int64_t r = head; r >= 0; r = next[r])
        sum += dt_cu_float(dy[r * width + at]);
    *t = sum;
}

static void embedding_bwd(struct dt_device_queue *q, enum dt_dtype dtype, int64_t rows,
                          int64_t width, int64_t vocab, const int32_t *id, const void *dy,
                          float *dtable)
{
    int32_t *next;

    if (rows * width == 0)
        return;
    assert(rows < INT32_MAX);
    next = (int32_t *)dt_cuda_scratch(q, DT_SCRATCH_KERNEL, 2 * sizeof(int32_t) * (size_t)rows);
    if (!next)
        return;
    DT_LAUNCH(q, (unsigned)dt_cuda_blocks(rows, TILE), TILE, 0, link_rows, rows, vocab, id, next,
              next + rows);
    DT_BY_TYPE(dtype, DT_LAUNCH(q, dim3((unsigned)rows, (unsigned)dt_cuda_blocks(width, THREADS)),
                                THREADS, 0, (embedding_grad<T>), width, id, (const int32_t *)next,
                                (const int32_t *)(next + rows), (const T *)dy, dtable));
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

/* ---- rows and rectangles ---- */

template <typename T, int V>
__global__ void rows_kernel(int64_t n, int64_t width, const T *src, const int32_t *src_row,
                            int64_t src_stride, T *dst, const int32_t *dst_row, int64_t dst_stride,
                            bool add)
{
    DT_CU_EACH(V, i, n)
    {
        int64_t row = i / width, at = i % width;
        int64_t from = (src_row ? src_row[row] : row) * src_stride + at;
        int64_t to = (dst_row ? dst_row[row] : row) * dst_stride + at;
        float f[V], g[V];

        dt_cu_load<V>(f, src + from);
        if (add) {
            dt_cu_load<V>(g, dst + to);
            for (int j = 0; j < V; j++)
                f[j] += g[j];
        }
        dt_cu_store<V>(dst + to, f);
    }
}

static void rows_run(struct dt_device_queue *q, enum dt_dtype dtype, int64_t rows, int64_t width,
                     const void *src, const int32_t *src_row, int64_t src_stride, void *dst,
                     const int32_t *dst_row, int64_t dst_stride, bool add)
{
    int64_t n = rows * width;

    if (n == 0)
        return;
    DT_BY_TYPE(dtype, DT_BY_WIDTH((width | src_stride | dst_stride) % (16 / (int)sizeof(T)) == 0 &&
                                      dt_cuda_aligned(src, dst),
                                  DT_LAUNCH(q, dt_cuda_grid(q, n / V, THREADS), THREADS, 0,
                                            (rows_kernel<T, V>), n, width, (const T *)src, src_row,
                                            src_stride, (T *)dst, dst_row, dst_stride, add)));
}

static void rows_copy(struct dt_device_queue *q, enum dt_dtype dtype, int64_t n, int64_t width,
                      const void *src, const int32_t *src_row, void *dst, const int32_t *dst_row,
                      bool add)
{
    rows_run(q, dtype, n, width, src, src_row, width, dst, dst_row, width, add);
}

static void copy2d(struct dt_device_queue *q, enum dt_dtype dtype, int64_t rows, int64_t width,
                   const void *src, int64_t src_stride, void *dst, int64_t dst_stride, bool add)
{
    rows_run(q, dtype, rows, width, src, NULL, src_stride, dst, NULL, dst_stride, add);
}

/* ---- rotary positions ---- */

template <typename T, int V>
__global__ void rope_kernel(int64_t n, int heads, int head_dim, int half, int64_t stride,
                            const int32_t *pos, const float *table, bool inverse, T *x)
{
    DT_CU_EACH(V, i, n) /* pairs */
    {
        int64_t row = i / ((int64_t)heads * half), at = i % half;
        T *p = x + row * stride + i / half % heads * head_dim + at;
        const float *angle = table + (int64_t)pos[row] * 2 * half + at;
        float a[V], b[V], c[V], s[V];

        dt_cu_load<V>(a, p);
        dt_cu_load<V>(b, p + half);
#pragma unroll
        for (int j = 0; j < V; j++) {
            c[j] = angle[j];
            s[j] = inverse ? -angle[half + j] : angle[half + j];

            float y = a[j] * c[j] - b[j] * s[j];

            b[j] = b[j] * c[j] + a[j] * s[j];
            a[j] = y;
        }
        dt_cu_store<V>(p, a);
        dt_cu_store<V>(p + half, b);
    }
}

static void rope(struct dt_device_queue *q, enum dt_dtype dtype, int64_t rows, int heads,
                 int head_dim, int dim, int64_t stride, const int32_t *pos, const float *table,
                 bool inverse, void *x)
{
    int half = dim / 2;
    int64_t n = rows * heads * half;

    if (n == 0)
        return;
    DT_BY_TYPE(
        dtype,
        DT_BY_WIDTH((half | head_dim | stride) % (16 / (int)sizeof(T)) == 0 && dt_cuda_aligned(x),
                    DT_LAUNCH(q, dt_cuda_grid(q, n / V, THREADS), THREADS, 0, (rope_kernel<T, V>),
                              n, heads, head_dim, half, stride, pos, table, inverse, (T *)x)));
}

void dt_cuda_rows(struct dt_kernels *k)
{
    k->embedding_fwd = embedding_fwd;
    k->embedding_bwd = embedding_bwd;
    k->ids_part = ids_part;
    k->rows_copy = rows_copy;
    k->copy2d = copy2d;
    k->rope = rope;
}
