/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Images at half and at double size, and the sinusoids of time steps. */
#include "kernels/cuda/cuda.h"

enum { THREADS = 256 };

/* Images of one size (items.cu NULL; hw NULL), or each of its own. */
struct images {
    struct dt_kernel_images of;
    int64_t h, w, c; /* of one size */
};
#ifndef __CUDACC__
static void dt_cu_see(struct images &a, const char *kernel)
{
    dt_cu_see(a.of, kernel);
}
#endif

/* Element i of the small images as the first of its four in the big ones, whose rows are *line elements long. */
__device__ __forceinline__ int64_t big_of(const struct images &a, int64_t i, int64_t *line)
{
    int64_t row = i / a.c, ch = i % a.c, first, w, p;

    if (a.of.hw) {
        int item = dt_cu_item_of(a.of.items, row);

        first = a.of.items.cu[item];
        w = a.of.hw[2 * item + 1] >> a.of.halved;
    } else {
        first = row / (a.h * a.w) * (a.h * a.w);
        w = a.w;
    }
    p = row - first;
    *line = 2 * w * a.c;
    return (4 * first + p / w * 4 * w + p % w * 2) * a.c + ch;
}

/* small[i] = f times the sum of the four */
template <typename T, int V>
__global__ void to_small(struct images a, int64_t n, float f, const T *big, T *small)
{
    DT_CU_EACH(V, i, n)
    {
        int64_t line, at = big_of(a, i, &line);
        float s[V], t[V];

        dt_cu_load<V>(s, big + at);
        for (int k = 1; k < 4; k++) {
            dt_cu_load<V>(t, big + at + (k / 2) * line + (k % 2) * a.c);
            for (int j = 0; j < V; j++)
                s[j] += t[j];
        }
        for (int j = 0; j < V; j++)
            s[j] *= f;
        dt_cu_store<V>(small + i, s);
    }
}

/* all four = f small[i] */
template <typename T, int V>
__global__ void to_big(struct images a, int64_t n, float f, const T *small, T *big)
{
    DT_CU_EACH(V, i, n)
    {
        int64_t line, at = big_of(a, i, &line);
        float s[V];

        dt_cu_load<V>(s, small + i);
        for (int j = 0; j < V; j++)
            s[j] *= f;
        for (int k = 0; k < 4; k++)
            dt_cu_store<V>(big + at + (k / 2) * line + (k % 2) * a.c, s);
    }
}

static void shrink(struct dt_device_queue *q, enum dt_dtype dtype, const struct images *a,
                   int64_t rows, float f, const void *big, void *small)
{
    int64_t n = rows * a->c;

    if (n == 0)
        return;
    DT_BY_TYPE(dtype,
               DT_BY_WIDTH(a->c % (16 / (int)sizeof(T)) == 0 && dt_cuda_aligned(big, small),
                           DT_LAUNCH(q, dt_cuda_grid(q, n / V, THREADS), THREADS, 0,
                                     (to_small<T, V>), *a, n, f, (const T *)big, (T *)small)));
}

static void grow(struct dt_device_queue *q, enum dt_dtype dtype, const struct images *a,
                 int64_t rows, float f, const void *small, void *big)
{
    int64_t n = rows * a->c;

    if (n == 0)
        return;
    DT_BY_TYPE(dtype, DT_BY_WIDTH(a->c % (16 / (int)sizeof(T)) == 0 && dt_cuda_aligned(big, small),
                                  DT_LAUNCH(q, dt_cuda_grid(q, n / V, THREADS), THREADS, 0,
                                            (to_big<T, V>), *a, n, f, (const T *)small, (T *)big)));
}

static void upsample2_fwd(struct dt_device_queue *q, enum dt_dtype dtype,
                          const struct dt_kernel_images *small, int64_t c, const void *x, void *y)
{
    struct images a = {*small, 0, 0, c};

    grow(q, dtype, &a, small->items.rows, 1, x, y);
}

static void upsample2_bwd(struct dt_device_queue *q, enum dt_dtype dtype,
                          const struct dt_kernel_images *small, int64_t c, const void *dy, void *dx)
{
    struct images a = {*small, 0, 0, c};

    shrink(q, dtype, &a, small->items.rows, 1, dy, dx);
}

static void avgpool2_fwd(struct dt_device_queue *q, enum dt_dtype dtype, int64_t n, int64_t h,
                         int64_t w, int64_t c, const void *x, void *y)
{
    struct images a = {{}, h / 2, w / 2, c};

    assert(h % 2 == 0 && w % 2 == 0);
    shrink(q, dtype, &a, n * (h / 2) * (w / 2), 0.25f, x, y);
}

static void avgpool2_bwd(struct dt_device_queue *q, enum dt_dtype dtype, int64_t n, int64_t h,
                         int64_t w, int64_t c, const void *dy, void *dx)
{
    struct images a = {{}, h / 2, w / 2, c};

    assert(h % 2 == 0 && w % 2 == 0);
    grow(q, dtype, &a, n * (h / 2) * (w / 2), 0.25f, dy, dx);
}

template <typename T>
__global__ void timestep_kernel(int64_t n, int64_t half, const float *t, float log_period,
                                float shift, bool cos_first, T *y)
{
    DT_CU_EACH(1, i, n * half)
    {
        int64_t r = i / half, j = i % half;
        /* t reaches 1,000 and is multiplied with it: the exponent in double, the angle rounded once */
        float a = (float)((double)t[r] *
                          exp(-(double)log_period * (double)j / ((double)half - (double)shift)));
        float s = sinf(a), c = cosf(a);

        y[r * 2 * half + j] = dt_cu_from_float<T>(cos_first ? c : s);
        y[r * 2 * half + half + j] = dt_cu_from_float<T>(cos_first ? s : c);
    }
}

static void timestep(struct dt_device_queue *q, enum dt_dtype dtype, int64_t n, int64_t dim,
                     const float *t, float period, float shift, bool cos_first, void *y)
{
    int64_t half = dim / 2;

    assert(dim % 2 == 0);
    if (n * half == 0)
        return;
    DT_BY_TYPE(dtype,
               DT_LAUNCH(q, dt_cuda_grid(q, n * half, THREADS), THREADS, 0, (timestep_kernel<T>), n,
                         half, t, logf(period), shift, cos_first, (T *)y));
}

void dt_cuda_image(struct dt_kernels *k)
{
    k->upsample2_fwd = upsample2_fwd;
    k->upsample2_bwd = upsample2_bwd;
    k->avgpool2_fwd = avgpool2_fwd;
    k->avgpool2_bwd = avgpool2_bwd;
    k->timestep = timestep;
}
