/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Doubling and halving of images; timestep embedding; mean squared error. */
#include "kernels/cpu/simd.h"

struct image {
    enum dt_dtype t;
    int64_t n, h, w, c; /* of the small image */
    const void *x;
    void *y;
};

/* One block is one row of the small image. */
DT_INLINE void up_row(const struct image *a, int64_t row, enum dt_dtype t)
{
    size_t elem = t == DT_BF16 ? 2 : 4, line = (size_t)(2 * a->w * a->c) * elem;
    char *y = dt_at_w(a->y, row * 2 * 2 * a->w * a->c, t);

    for (int64_t x = 0; x < a->w; x++)
        for (int i = 0; i < 2; i++)
            memcpy(dt_at_w(y, (2 * x + i) * a->c, t), dt_at(a->x, (row * a->w + x) * a->c, t),
                   (size_t)a->c * elem);
    memcpy(y + line, y, line);
}

/* y[small] = f * sum of the four pixels of x[big] */
DT_INLINE void down_row(const struct image *a, int64_t row, float f, enum dt_dtype t)
{
    const void *top = dt_at(a->x, row * 2 * 2 * a->w * a->c, t);
    const void *low = dt_at(top, 2 * a->w * a->c, t);

    for (int64_t x = 0; x < a->w; x++) {
        void *y = dt_at_w(a->y, (row * a->w + x) * a->c, t);
        int64_t p = 2 * x * a->c, r = p + a->c;

        DT_SIMD_LOOP
        for (int64_t i = 0; i < a->c; i++)
            dt_st(y, i,
                  f * ((dt_ld(top, p + i, t) + dt_ld(top, r + i, t)) +
                       (dt_ld(low, p + i, t) + dt_ld(low, r + i, t))),
                  t);
    }
}

/* y[big] = x[small] / 4 */
DT_INLINE void spread_row(const struct image *a, int64_t row, enum dt_dtype t)
{
    int64_t line = 2 * a->w * a->c;

    for (int64_t p = 0; p < 4 * a->w; p++) {
        int64_t bx = p % (2 * a->w), by = p / (2 * a->w);
        void *y = dt_at_w(a->y, row * 2 * line + by * line + bx * a->c, t);
        const void *x = dt_at(a->x, (row * a->w + bx / 2) * a->c, t);

        DT_SIMD_LOOP
        for (int64_t i = 0; i < a->c; i++)
            dt_st(y, i, 0.25f * dt_ld(x, i, t), t);
    }
}

static void up_block(void *arg, int64_t row, int thread)
{
    const struct image *a = arg;

    (void)thread;
    DT_BY_TYPE(a->t, up_row, a, row);
}
static void sum_block(void *arg, int64_t row, int thread)
{
    const struct image *a = arg;

    (void)thread;
    DT_BY_TYPE(a->t, down_row, a, row, 1.0f);
}
static void mean_block(void *arg, int64_t row, int thread)
{
    const struct image *a = arg;

    (void)thread;
    DT_BY_TYPE(a->t, down_row, a, row, 0.25f);
}
static void spread_block(void *arg, int64_t row, int thread)
{
    const struct image *a = arg;

    (void)thread;
    DT_BY_TYPE(a->t, spread_row, a, row);
}

static void run(struct dt_device_queue *q, enum dt_dtype t, int64_t n, int64_t h, int64_t w,
                int64_t c, const void *x, void *y, dt_cpu_block_fn *fn)
{
    struct image a = {t, n, h, w, c, x, y};

    if (q->status == DT_OK)
        dt_cpu_for(q, n * h, fn, &a);
}

static void upsample2_fwd(struct dt_device_queue *q, enum dt_dtype dtype, int64_t n, int64_t h,
                          int64_t w, int64_t c, const void *x, void *y)
{
    run(q, dtype, n, h, w, c, x, y, up_block);
}

static void upsample2_bwd(struct dt_device_queue *q, enum dt_dtype dtype, int64_t n, int64_t h,
                          int64_t w, int64_t c, const void *dy, void *dx)
{
    run(q, dtype, n, h, w, c, dy, dx, sum_block);
}

static void avgpool2_fwd(struct dt_device_queue *q, enum dt_dtype dtype, int64_t n, int64_t h,
                         int64_t w, int64_t c, const void *x, void *y)
{
    assert(h % 2 == 0 && w % 2 == 0);
    run(q, dtype, n, h / 2, w / 2, c, x, y, mean_block);
}

static void avgpool2_bwd(struct dt_device_queue *q, enum dt_dtype dtype, int64_t n, int64_t h,
                         int64_t w, int64_t c, const void *dy, void *dx)
{
    assert(h % 2 == 0 && w % 2 == 0);
    run(q, dtype, n, h / 2, w / 2, c, dy, dx, spread_block);
}

/* Few and exact: double, on one thread. */
static void timestep(struct dt_device_queue *q, enum dt_dtype dtype, int64_t n, int64_t dim,
                     const float *t, float period, float shift, bool cos_first, void *y)
{
    int64_t half = dim / 2;

    assert(dim % 2 == 0);
    if (q->status != DT_OK)
        return;
    for (int64_t i = 0; i < half; i++) {
        double freq = exp(-log((double)period) * (double)i / ((double)half - (double)shift));

        for (int64_t r = 0; r < n; r++) {
            double angle = (double)t[r] * freq;

            dt_st(y, r * dim + (cos_first ? half : 0) + i, (float)sin(angle), dtype);
            dt_st(y, r * dim + (cos_first ? 0 : half) + i, (float)cos(angle), dtype);
        }
    }
}

/* ---- mean squared error ---- */

struct mse {
    enum dt_dtype t;
    int64_t items, width;
    const void *pred, *target;
    float f, *sse;
    void *d;
};

enum { STRETCH = 1024 }; /* summed in fp32; stretches are summed in double */

DT_INLINE void mse_item(const struct mse *a, int64_t item, enum dt_dtype t)
{
    const void *p = dt_at(a->pred, item * a->width, t);
    const void *z = dt_at(a->target, item * a->width, t);
    void *d = a->d ? dt_at_w(a->d, item * a->width, t) : NULL;
    double total = 0;

    for (int64_t begin = 0; begin < a->width; begin += STRETCH) {
        int64_t end = dt_cpu_min64(begin + STRETCH, a->width);
        float s;

        DT_SUM(s, begin, end,
               (dt_ld(p, i, t) - dt_ld(z, i, t)) * (dt_ld(p, i, t) - dt_ld(z, i, t)));
        total += (double)s;
        if (!d)
            continue;
        DT_SIMD_LOOP
        for (int64_t i = begin; i < end; i++)
            dt_st(d, i, a->f * (dt_ld(p, i, t) - dt_ld(z, i, t)), t);
    }
    a->sse[item] = (float)total;
}

static void mse_block(void *arg, int64_t item, int thread)
{
    const struct mse *a = arg;

    (void)thread;
    DT_BY_TYPE(a->t, mse_item, a, item);
}

static void mse(struct dt_device_queue *q, enum dt_dtype dtype, int64_t items, int64_t width,
                const void *pred, const void *target, float scale, float *sse, void *dpred)
{
    struct mse a = {dtype, items, width, pred, target, 2 * scale, sse, dpred};

    if (q->status == DT_OK)
        dt_cpu_for(q, items, mse_block, &a);
}

void DT_SIMD(dt_cpu_image)(struct dt_kernels *k)
{
    k->upsample2_fwd = upsample2_fwd;
    k->upsample2_bwd = upsample2_bwd;
    k->avgpool2_fwd = avgpool2_fwd;
    k->avgpool2_bwd = avgpool2_bwd;
    k->timestep = timestep;
    k->mse = mse;
}
