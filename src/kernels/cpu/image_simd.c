/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Doubling and halving of images; timestep embedding; mean squared error. */
#include "kernels/cpu/simd.h"

/* Of a row of w pixels of the small image, pixels [from, to), and the two rows of the big one that they lie above. */
struct stretch {
    int64_t w, from, to, c;
    const void *x;
    void *y;
};

/* y[big] = x[small] */
DT_INLINE void copy_up(const struct stretch *a, enum dt_dtype t)
{
    size_t elem = t == DT_BF16 ? 2 : 4, line = (size_t)(2 * a->w * a->c) * elem;
    char *y = dt_at_w(a->y, 2 * a->from * a->c, t);

    for (int64_t x = a->from; x < a->to; x++)
        for (int i = 0; i < 2; i++)
            memcpy(dt_at_w(a->y, (2 * x + i) * a->c, t), dt_at(a->x, x * a->c, t),
                   (size_t)a->c * elem);
    memcpy(y + line, y, (size_t)(2 * (a->to - a->from) * a->c) * elem);
}

/* y[small] = f * sum of the four pixels of x[big] */
DT_INLINE void add_down(const struct stretch *a, float f, enum dt_dtype t)
{
    const void *top = a->x, *low = dt_at(a->x, 2 * a->w * a->c, t);

    for (int64_t x = a->from; x < a->to; x++) {
        void *y = dt_at_w(a->y, x * a->c, t);
        int64_t p = 2 * x * a->c, r = p + a->c;

        DT_SIMD_LOOP
        for (int64_t i = 0; i < a->c; i++)
            dt_st(y, i,
                  f * ((dt_ld(top, p + i, t) + dt_ld(top, r + i, t)) +
                       (dt_ld(low, p + i, t) + dt_ld(low, r + i, t))),
                  t);
    }
}

/* ---- images of any sizes: a block is a stretch of pixels of all of them ---- */

struct images {
    enum dt_dtype t;
    struct dt_kernel_images im;
    int64_t c, per;
    const void *x;
    void *y;
};

/* The stretch of a row from pixel p of all, of image i, up to pixel `end` at most. */
DT_INLINE struct stretch stretch_at(const struct images *a, int64_t i, int64_t p, int64_t end,
                                    bool up, enum dt_dtype t)
{
    int64_t first = a->im.items.cu[i], w = a->im.hw[2 * i + 1] >> a->im.halved;
    int64_t row = (p - first) / w, from = (p - first) % w, begin = first + row * w;
    int64_t small = begin * a->c, big = 4 * small;

    return (struct stretch){.w = w,
                            .from = from,
                            .to = dt_cpu_min64(w, from + end - p),
                            .c = a->c,
                            .x = dt_at(a->x, up ? small : big, t),
                            .y = dt_at_w(a->y, up ? big : small, t)};
}

DT_INLINE void each_stretch(const struct images *a, int64_t block, bool up, enum dt_dtype t)
{
    int64_t p = block * a->per, end = dt_cpu_min64(p + a->per, a->im.items.rows);

    for (int64_t i = dt_cpu_item_of(&a->im.items, p); p < end; i++)
        while (p < end && p < a->im.items.cu[i + 1]) {
            struct stretch s = stretch_at(a, i, p, end, up, t);

            if (up)
                copy_up(&s, t);
            else
                add_down(&s, 1.0f, t);
            p += s.to - s.from;
        }
}

static void up_block(void *arg, int64_t block, int thread)
{
    const struct images *a = arg;

    (void)thread;
    DT_BY_TYPE(a->t, each_stretch, a, block, true);
}
static void down_block(void *arg, int64_t block, int thread)
{
    const struct images *a = arg;

    (void)thread;
    DT_BY_TYPE(a->t, each_stretch, a, block, false);
}

static void run_images(struct dt_device_queue *q, enum dt_dtype t,
                       const struct dt_kernel_images *im, int64_t c, const void *x, void *y,
                       dt_cpu_block_fn *fn)
{
    struct images a = {t, *im, c, dt_cpu_block_rows(4 * c), x, y};

    if (q->status == DT_OK)
        dt_cpu_for(q, dt_cpu_blocks(im->items.rows, a.per), fn, &a);
}

static void upsample2_fwd(struct dt_device_queue *q, enum dt_dtype dtype,
                          const struct dt_kernel_images *small, int64_t c, const void *x, void *y)
{
    run_images(q, dtype, small, c, x, y, up_block);
}

static void upsample2_bwd(struct dt_device_queue *q, enum dt_dtype dtype,
                          const struct dt_kernel_images *small, int64_t c, const void *dy, void *dx)
{
    run_images(q, dtype, small, c, dy, dx, down_block);
}

/* ---- images of one size: a block is a row of the small image ---- */

struct image {
    enum dt_dtype t;
    int64_t n, h, w, c; /* of the small image */
    const void *x;
    void *y;
};

DT_INLINE void mean_row(const struct image *a, int64_t row, enum dt_dtype t)
{
    int64_t at = row * a->w * a->c;
    struct stretch s = {a->w, 0, a->w, a->c, dt_at(a->x, 4 * at, t), dt_at_w(a->y, at, t)};

    add_down(&s, 0.25f, t);
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

static void mean_block(void *arg, int64_t row, int thread)
{
    const struct image *a = arg;

    (void)thread;
    DT_BY_TYPE(a->t, mean_row, a, row);
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
    struct dt_kernel_items items;
    int64_t width;
    const void *pred, *target;
    float f, *sse;
    void *d;
};

enum { STRETCH = 1024 }; /* summed in fp32; stretches are summed in double */

DT_INLINE void mse_item(const struct mse *a, int64_t item, enum dt_dtype t)
{
    int64_t at = a->items.cu[item] * a->width, n = dt_cpu_item_rows(&a->items, item) * a->width;
    const void *p = dt_at(a->pred, at, t), *z = dt_at(a->target, at, t);
    void *d = a->d ? dt_at_w(a->d, at, t) : NULL;
    float f = 2 * (a->f / (float)n);
    double total = 0;

    for (int64_t begin = 0; begin < n; begin += STRETCH) {
        int64_t end = dt_cpu_min64(begin + STRETCH, n);
        float s;

        DT_SUM(s, begin, end,
               (dt_ld(p, i, t) - dt_ld(z, i, t)) * (dt_ld(p, i, t) - dt_ld(z, i, t)));
        total += (double)s;
        if (!d)
            continue;
        DT_SIMD_LOOP
        for (int64_t i = begin; i < end; i++)
            dt_st(d, i, f * (dt_ld(p, i, t) - dt_ld(z, i, t)), t);
    }
    a->sse[item] = (float)total;
}

static void mse_block(void *arg, int64_t item, int thread)
{
    const struct mse *a = arg;

    (void)thread;
    DT_BY_TYPE(a->t, mse_item, a, item);
}

static void mse(struct dt_device_queue *q, enum dt_dtype dtype, const struct dt_kernel_items *items,
                int64_t width, const void *pred, const void *target, float scale, float *sse,
                void *dpred)
{
    struct mse a = {dtype, *items, width, pred, target, scale, sse, dpred};

    if (q->status == DT_OK)
        dt_cpu_for(q, items->n, mse_block, &a);
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
