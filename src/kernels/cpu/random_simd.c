/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Noise and dropout, by counters. */
#include "kernels/cpu/simd.h"

#include "base/rng.h"

enum { BLOCK = 4096 }; /* a multiple of a Philox block */

struct noise {
    enum dt_dtype t;
    int64_t n;
    uint64_t seed, stream, first;
    float f;
    void *y;
};

static void normal_block(void *arg, int64_t block, int thread)
{
    const struct noise *a = arg;
    int64_t end = dt_cpu_min64((block + 1) * BLOCK, a->n);

    (void)thread;
    for (int64_t i = block * BLOCK; i < end; i++)
        dt_st(a->y, i, a->f * (float)dt_rng_normal_at(a->seed, a->stream, a->first + (uint64_t)i),
              a->t);
}

static void normal(struct dt_device_queue *q, enum dt_dtype dtype, int64_t n, uint64_t seed,
                   uint64_t stream, uint64_t first, float scale, void *y)
{
    struct noise a = {
        .t = dtype, .n = n, .seed = seed, .stream = stream, .first = first, .f = scale, .y = y};

    if (q->status == DT_OK)
        dt_cpu_for(q, dt_cpu_blocks(n, BLOCK), normal_block, &a);
}

/* ---- many items: a block is a stretch of elements of all of them ---- */

struct items_noise {
    enum dt_dtype t;
    struct dt_kernel_items items;
    int64_t width, first, n; /* elements: before the first one here, and here */
    uint64_t seed;
    const uint64_t *stream;
    const int32_t *begin; /* NULL: of whole items */
    float f;
    uint32_t limit;
    const void *x;
    void *y;
};

/* Elements [*at, *end) of a block up to the end of its item; their counters begin with *counter.  The next call goes on
 * behind them. */
struct piece {
    int64_t item, at, end, counter;
};

static bool next_piece(const struct items_noise *a, int64_t block_end, struct piece *p)
{
    int64_t base;

    p->at = p->end;
    if (p->at >= block_end)
        return false;
    while (a->first + p->at >= a->items.cu[p->item + 1] * a->width)
        p->item++;
    base = a->items.cu[p->item] * a->width - a->first;
    p->end = dt_cpu_min64(block_end, a->items.cu[p->item + 1] * a->width - a->first);
    p->counter = p->at - base + (a->begin ? a->begin[p->item] * a->width : 0);
    return true;
}

static struct piece first_piece(const struct items_noise *a, int64_t block)
{
    int64_t at = block * BLOCK;

    return (struct piece){.item = dt_cpu_item_of(&a->items, (a->first + at) / a->width), .end = at};
}

static void item_normal_block(void *arg, int64_t block, int thread)
{
    const struct items_noise *a = arg;
    struct piece p = first_piece(a, block);
    int64_t end = dt_cpu_min64((block + 1) * BLOCK, a->n);

    (void)thread;
    while (next_piece(a, end, &p))
        for (int64_t i = p.at; i < p.end; i++)
            dt_st(a->y, i,
                  a->f * (float)dt_rng_normal_at(a->seed, a->stream[p.item],
                                                 (uint64_t)(p.counter + i - p.at)),
                  a->t);
}

static void item_normal(struct dt_device_queue *q, enum dt_dtype dtype,
                        const struct dt_kernel_items *items, int64_t width, uint64_t seed,
                        const uint64_t *stream, float scale, void *y)
{
    struct items_noise a = {.t = dtype,
                            .items = *items,
                            .width = width,
                            .n = items->rows * width,
                            .seed = seed,
                            .stream = stream,
                            .f = scale,
                            .y = y};

    if (q->status == DT_OK)
        dt_cpu_for(q, dt_cpu_blocks(a.n, BLOCK), item_normal_block, &a);
}

static void drop_piece(const struct items_noise *a, const struct piece *p)
{
    const uint32_t key[2] = {(uint32_t)a->seed, (uint32_t)(a->seed >> 32)};
    uint64_t stream = a->stream[p->item];
    uint32_t word[4];

    for (int64_t i = p->at; i < p->end; i++) {
        int64_t e = p->counter + i - p->at;

        if (e % 4 == 0 || i == p->at) {
            const uint32_t ctr[4] = {(uint32_t)(e / 4), (uint32_t)((uint64_t)e / 4 >> 32),
                                     (uint32_t)stream, (uint32_t)(stream >> 32)};

            dt_rng_philox4x32(ctr, key, word);
        }
        dt_st(a->y, i, word[e % 4] < a->limit ? 0.0f : a->f * dt_ld(a->x, i, a->t), a->t);
    }
}

static void dropout_block(void *arg, int64_t block, int thread)
{
    const struct items_noise *a = arg;
    struct piece p = first_piece(a, block);
    int64_t end = dt_cpu_min64((block + 1) * BLOCK, a->n);

    (void)thread;
    while (next_piece(a, end, &p))
        drop_piece(a, &p);
}

static void dropout(struct dt_device_queue *q, enum dt_dtype dtype,
                    const struct dt_kernel_items *items, int64_t width, uint64_t seed,
                    const uint64_t *stream, const int32_t *begin, int64_t first, int64_t rows,
                    float p, const void *x, void *y)
{
    struct items_noise a = {.t = dtype,
                            .items = *items,
                            .width = width,
                            .first = first * width,
                            .n = rows * width,
                            .seed = seed,
                            .stream = stream,
                            .begin = begin,
                            .f = 1.0f / (1.0f - p),
                            .limit = (uint32_t)((double)p * 4294967296.0),
                            .x = x,
                            .y = y};

    assert(p >= 0 && p < 1 && first >= 0 && first + rows <= items->rows);
    if (q->status == DT_OK)
        dt_cpu_for(q, dt_cpu_blocks(a.n, BLOCK), dropout_block, &a);
}

void DT_SIMD(dt_cpu_random)(struct dt_kernels *k)
{
    k->normal = normal;
    k->item_normal = item_normal;
    k->dropout = dropout;
}
