/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Mixtures of experts: the choice of experts, the order of rows by expert, and how rows come together again. */
#include "kernels/cpu/simd.h"

#define DT_KERNEL_FUNCTION static inline
#include "kernels/choose.h"

struct route {
    struct dt_kernel_route r;
    int64_t per;
    const struct dt_kernel_items *items;
    const float *prob, *dweight, *load;
    const int32_t *chosen;
    int32_t *expert, *count, *place, *choice, *row;
    float *weight, *loads, *sum, balance;
    enum dt_dtype t;
    void *dlogit;
};

static void run(struct dt_device_queue *q, struct route *a, dt_cpu_block_fn *fn)
{
    a->per = dt_cpu_block_rows(a->r.experts);
    assert(a->r.top_k >= 1 && a->r.top_k <= a->r.experts && a->r.top_k <= DT_KERNEL_TOP_K_MAX);
    if (q->status == DT_OK)
        dt_cpu_for(q, dt_cpu_blocks(a->r.rows, a->per), fn, a);
}

/* ---- choice ---- */

static void choose_block(void *arg, int64_t block, int thread)
{
    const struct route *a = arg;
    int64_t begin = block * a->per, end = dt_cpu_min64(begin + a->per, a->r.rows);

    (void)thread;
    for (int64_t r = begin; r < end; r++) {
        const float *p = a->prob + r * a->r.experts;
        int32_t *to = a->expert + r * a->r.top_k;
        float sum = 0, f = 1;

        for (int j = 0; j < a->r.top_k; j++) {
            int e = dt_kernel_next_best(p, a->r.experts, j > 0 ? to[j - 1] : -1);

            to[j] = e < 0 ? j : e; /* e < 0: p is not a number */
            sum += p[to[j]];
        }
        if (a->r.normed)
            f = 1 / sum;
        for (int j = 0; a->weight && j < a->r.top_k; j++)
            a->weight[r * a->r.top_k + j] = p[to[j]] * f;
    }
}

static void route_choose(struct dt_device_queue *q, const struct dt_kernel_route *r,
                         const float *prob, int32_t *expert, float *weight)
{
    struct route a = {.r = *r, .prob = prob, .expert = expert, .weight = weight};

    run(q, &a, choose_block);
}

/* ---- order: a counting sort, in one go ---- */

static void sort_all(void *arg, int64_t block, int thread)
{
    const struct route *a = arg;
    int64_t n = a->r.rows * a->r.top_k, at = 0;

    (void)block;
    (void)thread;
    memset(a->count, 0, (size_t)a->r.experts * sizeof(*a->count));
    for (int64_t i = 0; i < n; i++)
        a->count[a->chosen[i]]++;
    for (int e = 0; e < a->r.experts; e++) { /* for now: where the next of e goes */
        int32_t c = a->count[e];

        a->count[e] = (int32_t)at;
        at += c;
    }
    for (int64_t i = 0; i < n; i++) {
        int32_t to = a->count[a->chosen[i]]++;

        a->place[i] = to;
        a->choice[to] = (int32_t)i;
        a->row[to] = (int32_t)(i / a->r.top_k);
    }
    for (int e = a->r.experts - 1; e > 0; e--) /* ends become numbers */
        a->count[e] -= a->count[e - 1];
}

static void route_sort(struct dt_device_queue *q, const struct dt_kernel_route *r,
                       const int32_t *expert, int32_t *count, int32_t *place, int32_t *choice,
                       int32_t *row)
{
    struct route a = {
        .r = *r, .chosen = expert, .count = count, .place = place, .choice = choice, .row = row};

    if (q->status == DT_OK)
        dt_cpu_for(q, 1, sort_all, &a);
}

/* ---- balance ---- */

static void load_item(void *arg, int64_t i, int thread)
{
    const struct route *a = arg;
    int64_t begin = a->items->cu[i], end = a->items->cu[i + 1];
    int n = a->r.experts, k = a->r.top_k;
    float *load = a->loads + i * n;

    (void)thread;
    memset(load, 0, (size_t)n * sizeof(*load));
    for (int64_t c = begin * k; c < end * k; c++)
        load[a->chosen[c]] += 1; /* exact up to 2^24 rows */
    for (int e = 0; e < n; e++)
        load[e] = end > begin ? load[e] * (float)n / (float)((end - begin) * k) : 0;
}

static void route_load(struct dt_device_queue *q, const struct dt_kernel_route *r,
                       const struct dt_kernel_items *items, const int32_t *expert, float *load)
{
    struct route a = {.r = *r, .items = items, .chosen = expert, .loads = load};

    if (q->status == DT_OK)
        dt_cpu_for(q, items->n, load_item, &a);
}

static void even_item(void *arg, int64_t i, int thread)
{
    const struct route *a = arg;
    int n = a->r.experts;
    double sum = 0;

    (void)thread;
    for (int e = 0; e < n; e++) {
        double p = 0;

        for (int64_t r = a->items->cu[i]; r < a->items->cu[i + 1]; r++)
            p += (double)a->prob[r * n + e];
        sum += (double)a->load[i * n + e] * p;
    }
    a->sum[i] = (float)sum;
}

static void route_even(struct dt_device_queue *q, const struct dt_kernel_route *r,
                       const struct dt_kernel_items *items, const float *prob, const float *load,
                       float *sum)
{
    struct route a = {.r = *r, .items = items, .prob = prob, .load = load, .sum = sum};

    if (q->status == DT_OK)
        dt_cpu_for(q, items->n, even_item, &a);
}

/* ---- gradient of the logits ---- */

/* dL/dp of a row's choices, in d. */
static void choices_back(const struct route *a, const float *p, const int32_t *chosen,
                         const float *dw, float *d)
{
    float sum = 0, dot = 0;

    for (int j = 0; a->r.normed && j < a->r.top_k; j++) {
        sum += p[chosen[j]];
        dot += p[chosen[j]] * dw[j];
    }
    for (int j = 0; j < a->r.top_k; j++)
        d[j] = a->r.normed ? (dw[j] - dot / sum) / sum : dw[j];
}

DT_INLINE void route_back(const struct route *a, int64_t begin, int64_t end, enum dt_dtype t)
{
    int64_t n = a->r.experts;
    float d[DT_KERNEL_TOP_K_MAX];

    for (int64_t r = begin; r < end; r++) {
        const float *p = a->prob + r * n;
        const int32_t *chosen = a->chosen + r * a->r.top_k;
        const float *load = a->load ? a->load + dt_cpu_item_of(a->items, r) * n : NULL;
        void *to = dt_at_w(a->dlogit, r * n, t);
        float dot = 0;

        choices_back(a, p, chosen, a->dweight + r * a->r.top_k, d);
        for (int j = 0; j < a->r.top_k; j++)
            dot += p[chosen[j]] * d[j];
        for (int64_t e = 0; load && e < n; e++)
            dot += p[e] * a->balance * load[e];
        for (int64_t e = 0; e < n; e++) {
            float g = load ? a->balance * load[e] : 0;

            for (int j = 0; j < a->r.top_k; j++)
                g += chosen[j] == e ? d[j] : 0;
            dt_st(to, e, p[e] * (g - dot), t);
        }
    }
}

static void back_block(void *arg, int64_t block, int thread)
{
    const struct route *a = arg;
    int64_t begin = block * a->per, end = dt_cpu_min64(begin + a->per, a->r.rows);

    (void)thread;
    DT_BY_TYPE(a->t, route_back, a, begin, end);
}

static void route_bwd(struct dt_device_queue *q, enum dt_dtype dtype,
                      const struct dt_kernel_route *r, const float *prob, const int32_t *expert,
                      const float *dweight, const struct dt_kernel_items *items, const float *load,
                      float balance, void *dlogit)
{
    struct route a = {.r = *r,
                      .t = dtype,
                      .items = items,
                      .prob = prob,
                      .chosen = expert,
                      .dweight = dweight,
                      .load = load,
                      .balance = balance,
                      .dlogit = dlogit};

    run(q, &a, back_block);
}

/* ---- rows ---- */

struct rows {
    enum dt_dtype t;
    int64_t n, width, per;
    int k;
    const float *w, *b;
    const void *x, *dy;
    void *y;
    float *dw;
    const int32_t *place;
    bool add;
};

static void run_rows(struct dt_device_queue *q, struct rows *a, dt_cpu_block_fn *fn)
{
    a->per = dt_cpu_block_rows(a->width);
    if (q->status == DT_OK)
        dt_cpu_for(q, dt_cpu_blocks(a->n, a->per), fn, a);
}

DT_INLINE void weigh(const struct rows *a, int64_t begin, int64_t end, enum dt_dtype t)
{
    for (int64_t r = begin; r < end; r++) {
        const void *x = dt_at(a->x, r * a->width, t);
        void *y = dt_at_w(a->y, r * a->width, t);
        float w = a->w[r];

        DT_SIMD_LOOP
        for (int64_t i = 0; i < a->width; i++)
            dt_st(y, i, w * dt_ld(x, i, t), t);
    }
}
DT_ROWS_BLOCK_FN(weigh_block, weigh)

static void rows_weigh(struct dt_device_queue *q, enum dt_dtype dtype, int64_t rows, int64_t width,
                       const float *w, const void *x, void *y)
{
    struct rows a = {.t = dtype, .n = rows, .width = width, .w = w, .x = x, .y = y};

    run_rows(q, &a, weigh_block);
}

enum { STRETCH = 1024 }; /* fp32 sums inside, double over them */

DT_INLINE void weigh_back(const struct rows *a, int64_t begin, int64_t end, enum dt_dtype t)
{
    for (int64_t r = begin; r < end; r++) {
        const void *x = dt_at(a->x, r * a->width, t), *dy = dt_at(a->dy, r * a->width, t);
        void *dx = dt_at_w(a->y, r * a->width, t);
        float w = a->w[r], part;
        double sum = 0;

        for (int64_t at = 0; at < a->width; at += STRETCH) {
            DT_SUM(part, at, dt_cpu_min64(at + STRETCH, a->width),
                   dt_ld(dy, i, t) * dt_ld(x, i, t));
            sum += (double)part;
        }
        a->dw[r] = (float)sum;
        DT_SIMD_LOOP
        for (int64_t i = 0; i < a->width; i++)
            dt_st(dx, i, w * dt_ld(dy, i, t), t);
    }
}
DT_ROWS_BLOCK_FN(weigh_back_block, weigh_back)

static void rows_weigh_bwd(struct dt_device_queue *q, enum dt_dtype dtype, int64_t rows,
                           int64_t width, const float *w, const void *x, const void *dy, void *dx,
                           float *dw)
{
    struct rows a = {
        .t = dtype, .n = rows, .width = width, .w = w, .x = x, .dy = dy, .y = dx, .dw = dw};

    run_rows(q, &a, weigh_back_block);
}

DT_INLINE void bias(const struct rows *a, int64_t begin, int64_t end, enum dt_dtype t)
{
    for (int64_t r = begin; r < end; r++) {
        void *y = dt_at_w(a->y, r * a->width, t);
        float w = a->w[r];

        DT_SIMD_LOOP
        for (int64_t i = 0; i < a->width; i++)
            dt_st(y, i, dt_ld(y, i, t) + w * a->b[i], t);
    }
}
DT_ROWS_BLOCK_FN(bias_block, bias)

static void rows_bias(struct dt_device_queue *q, enum dt_dtype dtype, int64_t rows, int64_t width,
                      const float *w, const float *b, void *y)
{
    struct rows a = {.t = dtype, .n = rows, .width = width, .w = w, .b = b, .y = y};

    run_rows(q, &a, bias_block);
}

DT_INLINE void bias_back(const struct rows *a, int64_t begin, int64_t end, enum dt_dtype t)
{
    for (int64_t r = begin; r < end; r++) {
        const void *dy = dt_at(a->dy, r * a->width, t);
        double sum = 0;
        float part;

        for (int64_t at = 0; at < a->width; at += STRETCH) {
            DT_SUM(part, at, dt_cpu_min64(at + STRETCH, a->width), dt_ld(dy, i, t) * a->b[i]);
            sum += (double)part;
        }
        a->dw[r] += (float)sum;
    }
}
DT_ROWS_BLOCK_FN(bias_back_block, bias_back)

static void rows_bias_bwd(struct dt_device_queue *q, enum dt_dtype dtype, int64_t rows,
                          int64_t width, const float *b, const void *dy, float *dw)
{
    struct rows a = {.t = dtype, .n = rows, .width = width, .b = b, .dy = dy, .dw = dw};

    run_rows(q, &a, bias_back_block);
}

DT_INLINE void join(const struct rows *a, int64_t begin, int64_t end, enum dt_dtype t)
{
    for (int64_t r = begin; r < end; r++) {
        const int32_t *place = a->place ? a->place + r * a->k : NULL;
        void *y = dt_at_w(a->y, r * a->width, t);

        for (int64_t i = 0; i < a->width; i++) {
            float sum = a->add ? dt_ld(y, i, t) : 0;

            for (int j = 0; j < a->k; j++)
                sum += dt_ld(a->x, (place ? place[j] : r * a->k + j) * a->width + i, t);
            dt_st(y, i, sum, t);
        }
    }
}
DT_ROWS_BLOCK_FN(join_block, join)

static void rows_join(struct dt_device_queue *q, enum dt_dtype dtype, int64_t rows, int k,
                      int64_t width, const void *x, const int32_t *place, void *y, bool add)
{
    struct rows a = {
        .t = dtype, .n = rows, .width = width, .k = k, .x = x, .y = y, .place = place, .add = add};

    run_rows(q, &a, join_block);
}

void DT_SIMD(dt_cpu_route)(struct dt_kernels *k)
{
    k->route_choose = route_choose;
    k->route_sort = route_sort;
    k->route_load = route_load;
    k->route_even = route_even;
    k->route_bwd = route_bwd;
    k->rows_weigh = rows_weigh;
    k->rows_weigh_bwd = rows_weigh_bwd;
    k->rows_bias = rows_bias;
    k->rows_bias_bwd = rows_bias_bwd;
    k->rows_join = rows_join;
}
