/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Element-wise kernels and sums over rows or pixels. */
#include "kernels/cpu/simd.h"

struct ew {
    enum dt_dtype t, to;
    int64_t n, width, per;
    struct dt_kernel_items items;
    const void *x, *z;
    const float *a, *b;
    void *y;
    float f;
    bool add;
    float *part;
};

#define BLOCK_FN(name, inner)                                                                      \
    static void name(void *arg, int64_t block, int thread)                                         \
    {                                                                                              \
        const struct ew *a = arg;                                                                  \
        int64_t begin = block * a->per, end = dt_cpu_min64(begin + a->per, a->n);                  \
                                                                                                   \
        (void)thread;                                                                              \
        DT_BY_TYPE(a->t, inner, a, begin, end);                                                    \
    }

static void run(struct dt_device_queue *q, struct ew *a, int64_t width, dt_cpu_block_fn *fn)
{
    a->per = dt_cpu_block_rows(width);
    if (q->status == DT_OK)
        dt_cpu_for(q, dt_cpu_blocks(a->n, a->per), fn, a);
}

DT_INLINE void cast_range(const struct ew *a, int64_t begin, int64_t end, enum dt_dtype t)
{
    if (a->to == DT_BF16) {
        DT_SIMD_LOOP
        for (int64_t i = begin; i < end; i++)
            dt_st(a->y, i, dt_ld(a->x, i, t), DT_BF16);
    } else {
        DT_SIMD_LOOP
        for (int64_t i = begin; i < end; i++)
            dt_st(a->y, i, dt_ld(a->x, i, t), DT_F32);
    }
}
BLOCK_FN(cast_block, cast_range)

static void cast(struct dt_device_queue *q, int64_t n, enum dt_dtype from, const void *x,
                 enum dt_dtype to, void *y)
{
    struct ew a = {.t = from, .to = to, .n = n, .x = x, .y = y};

    run(q, &a, 1, cast_block);
}

DT_INLINE void add_range(const struct ew *a, int64_t begin, int64_t end, enum dt_dtype t)
{
    DT_SIMD_LOOP
    for (int64_t i = begin; i < end; i++)
        dt_st(a->y, i, dt_ld(a->x, i, t) + dt_ld(a->z, i, t), t);
}
BLOCK_FN(add_block, add_range)

static void add(struct dt_device_queue *q, enum dt_dtype dtype, int64_t n, const void *x,
                const void *z, void *y)
{
    struct ew a = {.t = dtype, .n = n, .x = x, .z = z, .y = y};

    run(q, &a, 1, add_block);
}

DT_INLINE void scale_range(const struct ew *a, int64_t begin, int64_t end, enum dt_dtype t)
{
    DT_SIMD_LOOP
    for (int64_t i = begin; i < end; i++)
        dt_st(a->y, i, a->f * dt_ld(a->x, i, t), t);
}
BLOCK_FN(scale_block, scale_range)

static void scale(struct dt_device_queue *q, enum dt_dtype dtype, int64_t n, float f, const void *x,
                  void *y)
{
    struct ew a = {.t = dtype, .n = n, .f = f, .x = x, .y = y};

    run(q, &a, 1, scale_block);
}

/* A block here is a stretch of elements of the whole tensor; it may cross items. */
DT_INLINE void mix_range(const struct ew *a, int64_t begin, int64_t end, enum dt_dtype t)
{
    int64_t item = dt_cpu_item_of(&a->items, begin / a->width);

    for (int64_t i = begin; i < end; item++) {
        int64_t stop = dt_cpu_min64(end, a->items.cu[item + 1] * a->width);
        float fx = a->a[item], fz = a->b[item];

        DT_SIMD_LOOP
        for (int64_t j = i; j < stop; j++)
            dt_st(a->y, j, fx * dt_ld(a->x, j, t) + fz * dt_ld(a->z, j, t), t);
        i = stop;
    }
}
BLOCK_FN(mix_block, mix_range)

static void mix(struct dt_device_queue *q, enum dt_dtype dtype, const struct dt_kernel_items *items,
                int64_t width, const float *fa, const void *x, const float *fb, const void *z,
                void *y)
{
    struct ew a = {.t = dtype,
                   .n = items->rows * width,
                   .width = width,
                   .items = *items,
                   .a = fa,
                   .b = fb,
                   .x = x,
                   .z = z,
                   .y = y};

    run(q, &a, 1, mix_block);
}

DT_INLINE void item_add_rows(const struct ew *a, int64_t begin, int64_t end, enum dt_dtype t)
{
    int64_t item = dt_cpu_item_of(&a->items, begin);

    for (int64_t r = begin; r < end; r++) {
        const void *x = dt_at(a->x, r * a->width, t), *e;
        void *y = dt_at_w(a->y, r * a->width, t);

        while (r >= a->items.cu[item + 1])
            item++;
        e = dt_at(a->z, item * a->width, t);
        DT_SIMD_LOOP
        for (int64_t i = 0; i < a->width; i++)
            dt_st(y, i, dt_ld(x, i, t) + dt_ld(e, i, t), t);
    }
}
BLOCK_FN(item_add_block, item_add_rows)

static void item_add(struct dt_device_queue *q, enum dt_dtype dtype,
                     const struct dt_kernel_items *items, int64_t width, const void *x,
                     const void *e, void *y)
{
    struct ew a = {
        .t = dtype, .n = items->rows, .width = width, .items = *items, .x = x, .z = e, .y = y};

    run(q, &a, width, item_add_block);
}

/* ---- sums over rows: per block of rows into the workspace, then over blocks in order ---- */

DT_INLINE void sum_rows(const struct ew *a, int64_t begin, int64_t end, enum dt_dtype t)
{
    float *s = a->part + begin / a->per * a->width;

    memset(s, 0, sizeof(float) * (size_t)a->width);
    for (int64_t r = begin; r < end; r++) {
        const void *x = dt_at(a->x, r * a->width, t);

        DT_SIMD_LOOP
        for (int64_t i = 0; i < a->width; i++)
            s[i] += dt_ld(x, i, t);
    }
}
BLOCK_FN(sum_block, sum_rows)

/* Leaves part[blocks][width]; returns the number of blocks, -1 if the queue failed. */
static int64_t partial_sums(struct dt_device_queue *q, struct ew *a)
{
    int64_t blocks;

    a->per = dt_cpu_max64(dt_cpu_block_rows(a->width), dt_cpu_blocks(a->n, 64));
    blocks = dt_cpu_blocks(a->n, a->per);
    a->part = dt_cpu_scratch(q, DT_SCRATCH_KERNEL,
                             sizeof(float) * (size_t)(dt_cpu_max64(blocks, 1) * a->width));
    if (!a->part)
        return -1;
    dt_cpu_for(q, blocks, sum_block, a);
    for (int64_t b = 1; b < blocks; b++) {
        const float *p = a->part + b * a->width;

        DT_SIMD_LOOP
        for (int64_t i = 0; i < a->width; i++)
            a->part[i] += p[i];
    }
    if (blocks == 0)
        memset(a->part, 0, sizeof(float) * (size_t)a->width);
    return blocks;
}

static void bias_bwd(struct dt_device_queue *q, enum dt_dtype dtype, int64_t rows, int64_t width,
                     const void *dy, float *db, bool do_add)
{
    struct ew a = {.t = dtype, .n = rows, .width = width, .x = dy};

    if (q->status != DT_OK || partial_sums(q, &a) < 0)
        return;
    for (int64_t i = 0; i < width; i++)
        db[i] = (do_add ? db[i] : 0) + a.part[i];
}

DT_INLINE void item_sum_store(const struct ew *a, int64_t item, enum dt_dtype t)
{
    void *y = dt_at_w(a->y, item * a->width, t);

    DT_SIMD_LOOP
    for (int64_t i = 0; i < a->width; i++)
        dt_st(y, i, (a->add ? dt_ld(y, i, t) : 0) + a->part[i], t);
}

static void item_sum(struct dt_device_queue *q, enum dt_dtype dtype,
                     const struct dt_kernel_items *items, int64_t width, const void *dy, void *de,
                     bool do_add)
{
    for (int64_t item = 0; item < items->n && q->status == DT_OK; item++) {
        struct ew a = {.t = dtype,
                       .n = dt_cpu_item_rows(items, item),
                       .width = width,
                       .x = dt_at(dy, items->cu[item] * width, dtype),
                       .y = de,
                       .add = do_add};

        if (partial_sums(q, &a) < 0)
            return;
        DT_BY_TYPE(dtype, item_sum_store, &a, item);
    }
}

void DT_SIMD(dt_cpu_elementwise)(struct dt_kernels *k)
{
    k->cast = cast;
    k->add = add;
    k->scale = scale;
    k->mix = mix;
    k->item_add = item_add;
    k->item_sum = item_sum;
    k->bias_bwd = bias_bwd;
}
