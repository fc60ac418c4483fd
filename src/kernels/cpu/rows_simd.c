/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Rows: embedding, gathers and scatters, strided rectangles, rotary positions. */
#include "kernels/cpu/simd.h"

struct rows {
    enum dt_dtype t;
    int64_t n, width, per, vocab;
    const int32_t *from_row, *to_row; /* NULL = i */
    const void *src;
    int64_t src_stride, dst_stride;
    void *dst;
    const float *table;
    float *dtable;
    bool add;
};

static void run(struct dt_device_queue *q, struct rows *a, dt_cpu_block_fn *fn)
{
    a->per = dt_cpu_block_rows(a->width);
    if (q->status == DT_OK)
        dt_cpu_for(q, dt_cpu_blocks(a->n, a->per), fn, a);
}

DT_INLINE void embed_rows(const struct rows *a, int64_t begin, int64_t end, enum dt_dtype t)
{
    for (int64_t r = begin; r < end; r++) {
        int64_t id = a->from_row[r];
        bool in = id >= 0 && id < a->vocab;
        const float *from = a->table + (in ? id : 0) * a->width;
        void *y = dt_at_w(a->dst, r * a->width, t);

        if (!in && !a->add)
            memset(y, 0, (size_t)a->width * (t == DT_BF16 ? 2 : 4));
        if (!in)
            continue;
        if (a->add) {
            DT_SIMD_LOOP
            for (int64_t i = 0; i < a->width; i++)
                dt_st(y, i, dt_ld(y, i, t) + from[i], t);
        } else {
            DT_SIMD_LOOP
            for (int64_t i = 0; i < a->width; i++)
                dt_st(y, i, from[i], t);
        }
    }
}
DT_ROWS_BLOCK_FN(embed_block, embed_rows)

static void embedding_fwd(struct dt_device_queue *q, enum dt_dtype dtype, int64_t rows,
                          int64_t width, int64_t vocab, const int32_t *id, const float *table,
                          void *y, bool add)
{
    struct rows a = {.t = dtype,
                     .n = rows,
                     .width = width,
                     .vocab = vocab,
                     .from_row = id,
                     .table = table,
                     .dst = y,
                     .add = add};

    run(q, &a, embed_block);
}

enum { COLUMNS = 64 };

/* A block owns some columns of the whole table and walks all rows in order, so that equal ids add
 * in row order whatever the threads do. */
DT_INLINE void embed_back(const struct rows *a, int64_t block, enum dt_dtype t)
{
    int64_t c0 = block * COLUMNS, c1 = dt_cpu_min64(c0 + COLUMNS, a->width);

    for (int64_t r = 0; r < a->n; r++) {
        const void *dy = dt_at(a->src, r * a->width, t);
        int64_t id = a->from_row[r];
        float *to;

        if (id < 0 || id >= a->vocab)
            continue;
        to = a->dtable + id * a->width;
        DT_SIMD_LOOP
        for (int64_t i = c0; i < c1; i++)
            to[i] += dt_ld(dy, i, t);
    }
}

static void embed_back_block(void *arg, int64_t block, int thread)
{
    const struct rows *a = arg;

    (void)thread;
    DT_BY_TYPE(a->t, embed_back, a, block);
}

static void embedding_bwd(struct dt_device_queue *q, enum dt_dtype dtype, int64_t rows,
                          int64_t width, int64_t vocab, const int32_t *id, const void *dy,
                          float *dtable)
{
    struct rows a = {.t = dtype,
                     .n = rows,
                     .width = width,
                     .vocab = vocab,
                     .from_row = id,
                     .src = dy,
                     .dtable = dtable};

    if (q->status == DT_OK)
        dt_cpu_for(q, dt_cpu_blocks(width, COLUMNS), embed_back_block, &a);
}

DT_INLINE void copy_rows(const struct rows *a, int64_t begin, int64_t end, enum dt_dtype t)
{
    for (int64_t r = begin; r < end; r++) {
        int64_t from = a->from_row ? a->from_row[r] : r, to = a->to_row ? a->to_row[r] : r;
        const void *x = dt_at(a->src, from * a->src_stride, t);
        void *y = dt_at_w(a->dst, to * a->dst_stride, t);

        if (a->add) {
            DT_SIMD_LOOP
            for (int64_t i = 0; i < a->width; i++)
                dt_st(y, i, dt_ld(y, i, t) + dt_ld(x, i, t), t);
        } else {
            memcpy(y, x, (size_t)a->width * (t == DT_BF16 ? 2 : 4));
        }
    }
}
DT_ROWS_BLOCK_FN(copy_block, copy_rows)

static void rows_copy(struct dt_device_queue *q, enum dt_dtype dtype, int64_t n, int64_t width,
                      const void *src, const int32_t *src_row, void *dst, const int32_t *dst_row,
                      bool add)
{
    struct rows a = {.t = dtype,
                     .n = n,
                     .width = width,
                     .from_row = src_row,
                     .to_row = dst_row,
                     .src = src,
                     .src_stride = width,
                     .dst = dst,
                     .dst_stride = width,
                     .add = add};

    run(q, &a, copy_block);
}

static void copy(struct dt_device_queue *q, int parts, const struct dt_kernel_copy_part *part)
{
    for (int k = 0; q->status == DT_OK && k < parts; k++)
        if (part[k].n > 0)
            memcpy(part[k].to, part[k].from, (size_t)part[k].n);
}

static void copy2d(struct dt_device_queue *q, enum dt_dtype dtype, int64_t rows, int64_t width,
                   const void *src, int64_t src_stride, void *dst, int64_t dst_stride, bool add)
{
    struct rows a = {.t = dtype,
                     .n = rows,
                     .width = width,
                     .src = src,
                     .src_stride = src_stride,
                     .dst = dst,
                     .dst_stride = dst_stride,
                     .add = add};

    run(q, &a, copy_block);
}

/* ---- rotary positions ---- */

struct rope {
    enum dt_dtype t;
    int64_t rows, per, stride;
    int heads, head_dim, half;
    const int32_t *pos;
    const float *table;
    float sign;
    void *x;
};

DT_INLINE void rope_rows(const struct rope *a, int64_t begin, int64_t end, enum dt_dtype t)
{
    for (int64_t r = begin; r < end; r++) {
        const float *cosine = a->table + (int64_t)a->pos[r] * 2 * a->half;
        const float *sine = cosine + a->half;

        for (int h = 0; h < a->heads; h++) {
            void *lo = dt_at_w(a->x, r * a->stride + (int64_t)h * a->head_dim, t);
            void *hi = dt_at_w(lo, a->half, t);

            DT_SIMD_LOOP
            for (int i = 0; i < a->half; i++) {
                float c = cosine[i], s = a->sign * sine[i];
                float u = dt_ld(lo, i, t), v = dt_ld(hi, i, t);

                dt_st(lo, i, u * c - v * s, t);
                dt_st(hi, i, v * c + u * s, t);
            }
        }
    }
}

static void rope_block(void *arg, int64_t block, int thread)
{
    const struct rope *a = arg;
    int64_t begin = block * a->per, end = dt_cpu_min64(begin + a->per, a->rows);

    (void)thread;
    DT_BY_TYPE(a->t, rope_rows, a, begin, end);
}

static void rope(struct dt_device_queue *q, enum dt_dtype dtype, int64_t rows, int heads,
                 int head_dim, int dim, int64_t stride, const int32_t *pos, const float *table,
                 bool inverse, void *x)
{
    struct rope a = {.t = dtype,
                     .rows = rows,
                     .stride = stride,
                     .heads = heads,
                     .head_dim = head_dim,
                     .half = dim / 2,
                     .pos = pos,
                     .table = table,
                     .sign = inverse ? -1.0f : 1.0f,
                     .x = x};

    assert(dim % 2 == 0 && dim <= head_dim);
    a.per = dt_cpu_block_rows((int64_t)heads * dim);
    if (q->status == DT_OK)
        dt_cpu_for(q, dt_cpu_blocks(rows, a.per), rope_block, &a);
}

static void ids_part(struct dt_device_queue *q, int64_t n, const int32_t *id, int64_t first,
                     int64_t count, int32_t *out)
{
    if (q->status != DT_OK)
        return;
    for (int64_t i = 0; i < n; i++) {
        int64_t at = id[i] - first;

        out[i] = at >= 0 && at < count ? (int32_t)at : -1;
    }
}

void DT_SIMD(dt_cpu_rows)(struct dt_kernels *k)
{
    k->embedding_fwd = embedding_fwd;
    k->embedding_bwd = embedding_bwd;
    k->ids_part = ids_part;
    k->rows_copy = rows_copy;
    k->copy = copy;
    k->copy2d = copy2d;
    k->rope = rope;
}
