/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Rows: gathers and scatters, rectangles, rotary positions. */
#include "kernels/cuda/cuda.h"

enum { THREADS = 256 };

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
    k->rows_copy = rows_copy;
    k->copy2d = copy2d;
    k->rope = rope;
}
