/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Softmax by rows, and the middle of the head: from a chunk of logits to losses and their gradient.
 */
#include "kernels/cpu/simd.h"

struct soft {
    enum dt_dtype t;
    int64_t rows, width;
    const void *x;
    float *y;
    float f;
};

DT_INLINE void soft_row(const struct soft *a, int64_t r, enum dt_dtype t)
{
    const void *x = dt_at(a->x, r * a->width, t);
    float *y = a->y + r * a->width, f = a->f, max, inv;
    double sum;

    DT_MAXIMUM(max, 0, a->width, f * dt_ld(x, i, t));
    DT_SIMD_LOOP
    for (int64_t i = 0; i < a->width; i++)
        y[i] = dt_exp(f * dt_ld(x, i, t) - max);
    DT_REDUCE(double, 0.0, DT_PLUS, sum, 0, a->width, (double)y[i]);
    inv = (float)(1.0 / sum);
    DT_SIMD_LOOP
    for (int64_t i = 0; i < a->width; i++)
        y[i] *= inv;
}

static void soft_block(void *arg, int64_t r, int thread)
{
    const struct soft *a = arg;

    (void)thread;
    DT_BY_TYPE(a->t, soft_row, a, r);
}

static void softmax(struct dt_queue *q, enum dt_dtype dtype, int64_t rows, int64_t width,
                    float inv_temperature, const void *x, float *p)
{
    struct soft a = {dtype, rows, width, x, p, inv_temperature};

    if (q->status == DT_OK)
        dt_cpu_for(q, rows, soft_block, &a);
}

/* ---- cross-entropy of a row of logits ---- */

/* Stretches of logits: fp32 sums inside, double over them. */
enum { STRETCH = 1024 };

static float row_max(const float *z, int64_t n)
{
    float max;

    DT_MAXIMUM(max, 0, n, z[i]);
    return max;
}

static double row_sum(const float *z, int64_t n, float max)
{
    double total = 0;

    for (int64_t begin = 0; begin < n; begin += STRETCH) {
        int64_t end = dt_min64(begin + STRETCH, n);
        float s;

        DT_SUM(s, begin, end, dt_exp(z[i] - max));
        total += (double)s;
    }
    return total;
}

DT_INLINE void row_grad(const float *z, int64_t n, float lse, float f, void *d, enum dt_dtype t)
{
    DT_SIMD_LOOP
    for (int64_t i = 0; i < n; i++)
        dt_st(d, i, f * dt_exp(z[i] - lse), t);
}

struct xent_rows { /* a chunk of rows */
    enum dt_dtype t;
    int64_t vocab, stride, stride_d; /* elements between rows of logits and of d */
    const float *logits;
    const int32_t *target;
    float scale;
    float *nll;
    int32_t *best; /* NULL = not wanted */
    void *d;       /* gradient of the logits; NULL = not wanted */
    /* vocabulary in parts: by row, and where this part begins */
    int64_t first;
    float *max, *token; /* largest logit; -(the best token), -inf where another part has it */
    double *sum;        /* of exponentials, and the target's logit */
};

static void xent_row(void *arg, int64_t r, int thread)
{
    const struct xent_rows *a = arg;
    const float *z = a->logits + r * a->stride;
    void *d = a->d ? dt_at_w(a->d, r * a->stride_d, a->t) : NULL;
    int32_t target = a->target[r];
    float max = row_max(z, a->vocab), lse;

    (void)thread;
    if (a->best) {
        int64_t i = 0;

        while (i < a->vocab - 1 && z[i] != max)
            i++;
        a->best[r] = (int32_t)i;
    }
    if (target < 0) {
        a->nll[r] = 0;
        if (d)
            memset(d, 0, (size_t)a->vocab * dt_dtype_bytes(a->t));
        return;
    }
    lse = (float)((double)max + log(row_sum(z, a->vocab, max)));
    a->nll[r] = lse - z[target];
    if (!d)
        return;
    DT_BY_TYPE(a->t, row_grad, z, a->vocab, lse, a->scale, d);
    dt_st(d, target, a->scale * (dt_exp(z[target] - lse) - 1.0f), a->t);
}

/* ---- the same with the vocabulary in parts: three steps between which the members meet ---- */

static void part_max(void *arg, int64_t r, int thread)
{
    const struct xent_rows *a = arg;

    (void)thread;
    a->max[r] = row_max(a->logits + r * a->stride, a->vocab);
}

/* The target in this part; -1 when it is another's or none. */
static int64_t part_target(const struct xent_rows *a, int64_t r)
{
    int64_t i = a->target[r] < 0 ? -1 : a->target[r] - a->first;

    return i < a->vocab ? i : -1;
}

static void part_sum(void *arg, int64_t r, int thread)
{
    const struct xent_rows *a = arg;
    const float *z = a->logits + r * a->stride;
    int64_t target = part_target(a, r), i = 0;

    (void)thread;
    a->sum[2 * r] = a->target[r] < 0 ? 0 : row_sum(z, a->vocab, a->max[r]);
    a->sum[2 * r + 1] = target < 0 ? 0 : (double)z[target];
    if (!a->best)
        return;
    while (i < a->vocab && z[i] != a->max[r])
        i++;
    a->token[r] = i < a->vocab ? -(float)(a->first + i) : -INFINITY;
}

static void part_end(void *arg, int64_t r, int thread)
{
    const struct xent_rows *a = arg;
    const float *z = a->logits + r * a->stride;
    void *d = a->d ? dt_at_w(a->d, r * a->stride_d, a->t) : NULL;
    int64_t target = part_target(a, r);
    float lse;

    (void)thread;
    if (a->best) /* no part has it: NaN */
        a->best[r] = a->token[r] > -INFINITY ? (int32_t)-a->token[r] : 0;
    if (a->target[r] < 0) {
        a->nll[r] = 0;
        if (d)
            memset(d, 0, (size_t)a->vocab * dt_dtype_bytes(a->t));
        return;
    }
    lse = (float)((double)a->max[r] + log(a->sum[2 * r]));
    a->nll[r] = lse - (float)a->sum[2 * r + 1];
    if (!d)
        return;
    DT_BY_TYPE(a->t, row_grad, z, a->vocab, lse, a->scale, d);
    if (target >= 0)
        dt_st(d, target, a->scale * (dt_exp(z[target] - lse) - 1.0f), a->t);
}

static void rows_in_parts(struct dt_queue *q, const struct dt_xent_parts *p, struct xent_rows *a,
                          int64_t m)
{
    dt_cpu_for(q, m, part_max, a);
    p->max(q, p->arg, m, a->max);
    dt_cpu_for(q, m, part_sum, a);
    p->sum(q, p->arg, 2 * m, a->sum);
    if (a->best)
        p->max(q, p->arg, m, a->token);
    dt_cpu_for(q, m, part_end, a);
}

/* Rows of a chunk: many, because every chunk reads the whole weight and updates its whole gradient,
 * and few enough that fp32 logits and their gradient stay within SCRATCH_BYTES. */
enum { SCRATCH_BYTES = 192 << 20, CHUNK_MAX = 1024, CHUNK_MIN = 16 };
enum { PART_ROW_BYTES = 2 * sizeof(double) + 2 * sizeof(float) }; /* sum, max, token */

static int64_t chunk_rows(int64_t rows, int64_t vocab, size_t elem)
{
    int64_t fit = SCRATCH_BYTES / (vocab * (int64_t)(sizeof(float) + elem));

    return dt_min64(rows, dt_max64(CHUNK_MIN, dt_min64(CHUNK_MAX, fit / 16 * 16)));
}

static void xent(struct dt_queue *q, const struct dt_xent *c, const void *x, const int32_t *target,
                 float *nll, int32_t *best, void *dx, float *dw, bool add_dw)
{
    const struct dt_weight_shape *s = dt_cpu_weight_shape(c->w);
    size_t elem = dt_dtype_bytes(c->dtype);
    bool grad = dx || dw;
    const struct dt_xent_parts *parts = c->parts;
    int64_t vocab = parts ? parts->vocab : s->out;
    int64_t width = s->in, chunk = chunk_rows(c->rows, parts ? parts->most : s->out, elem);
    int64_t stride = (s->out + 31) / 32 * 32; /* rows begin on cache lines */
    size_t bytes = sizeof(float) * (size_t)(chunk * stride);
    size_t d_bytes = grad ? (elem * (size_t)(chunk * stride) + 63) / 64 * 64 : 0;
    struct xent_rows a = {
        .t = c->dtype, .vocab = s->out, .stride = stride, .stride_d = stride, .scale = c->scale};
    struct dt_product logits = {.n = s->out,
                                .k = width,
                                .ra = width,
                                .ca = 1,
                                .rb = 1,
                                .cb = width + 1,
                                .rc = stride,
                                .type = (int32_t)c->dtype,
                                .c_type = DT_F32};
    struct dt_product to_x = {.n = width,
                              .k = s->out,
                              .ra = stride,
                              .ca = 1,
                              .rb = width,
                              .cb = 1,
                              .rc = width,
                              .type = (int32_t)c->dtype,
                              .c_type = (int32_t)c->dtype};
    struct dt_product to_w = {.m = s->out,
                              .n = width,
                              .ra = 1,
                              .ca = stride,
                              .rb = width,
                              .cb = 1,
                              .rc = width,
                              .type = (int32_t)c->dtype,
                              .c_type = DT_F32};
    char *room;

    assert(s->kernel == 0 && s->dtype == c->dtype);
    if (q->status != DT_OK)
        return;
    for (int64_t r = 0; r < c->rows; r++)
        if (target[r] >= vocab) {
            dt_queue_fail(q, DT_ERR_INPUT,
                          "target %d of row %lld is outside the vocabulary of %lld", (int)target[r],
                          (long long)r, (long long)vocab);
            return;
        }
    if (c->rows == 0 && dw && !add_dw)
        memset(dw, 0, sizeof(float) * (size_t)(s->out * width));
    if (c->rows == 0)
        return;
    room = dt_cpu_scratch(q, DT_SCRATCH_OUTER,
                          bytes + d_bytes + (parts ? (size_t)chunk * PART_ROW_BYTES : 0));
    if (!room)
        return;
    a.logits = (const float *)(void *)room;
    a.d = grad ? room + bytes : NULL;
    if (parts) {
        a.first = parts->first;
        a.sum = (double *)(void *)(room + bytes + d_bytes);
        a.max = (float *)(a.sum + 2 * chunk);
        a.token = a.max + chunk;
    }
    for (int64_t r = 0; r < c->rows && q->status == DT_OK; r += chunk) {
        int64_t m = dt_min64(chunk, c->rows - r);
        const void *xr = (const char *)x + (size_t)(r * width) * elem;

        logits.m = to_x.m = to_w.k = m;
        to_w.add = add_dw || r > 0;
        a.target = target + r;
        a.nll = nll + r;
        a.best = best ? best + r : NULL;
        dt_cpu_product(q, &logits, xr, NULL, c->w, NULL, room);
        if (q->status != DT_OK)
            return;
        if (parts)
            rows_in_parts(q, parts, &a, m);
        else
            dt_cpu_for(q, m, xent_row, &a);
        if (dx)
            dt_cpu_product(q, &to_x, a.d, NULL, c->w, NULL,
                           (char *)dx + (size_t)(r * width) * elem);
        if (dw)
            dt_cpu_product(q, &to_w, a.d, xr, NULL, NULL, dw);
    }
}

void DT_SIMD(dt_cpu_softmax)(struct dt_kernels *k)
{
    k->softmax = softmax;
    k->xent = xent;
}
