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

static void softmax(struct dt_device_queue *q, enum dt_dtype dtype, int64_t rows, int64_t width,
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

/* Sum of e^(z - max); with `keep` they take the logits' place. */
DT_INLINE double row_sum(float *z, int64_t n, float max, bool keep)
{
    double total = 0;

    for (int64_t begin = 0; begin < n; begin += STRETCH) {
        int64_t end = dt_cpu_min64(begin + STRETCH, n);
        float s;

        if (keep) {
            DT_SIMD_LOOP
            for (int64_t i = begin; i < end; i++)
                z[i] = dt_exp(z[i] - max);
            DT_SUM(s, begin, end, z[i]);
        } else {
            DT_SUM(s, begin, end, dt_exp(z[i] - max));
        }
        total += (double)s;
    }
    return total;
}

static double row_exp(float *z, int64_t n, float max, bool keep)
{
    return keep ? row_sum(z, n, max, true) : row_sum(z, n, max, false);
}

DT_INLINE void row_scaled(const float *e, int64_t n, float f, void *d, enum dt_dtype t)
{
    DT_SIMD_LOOP
    for (int64_t i = 0; i < n; i++)
        dt_st(d, i, f * e[i], t);
}

struct xent_rows { /* a chunk of rows */
    enum dt_dtype t;
    int64_t vocab, stride; /* elements between rows of logits and of d */
    float *logits;         /* with d: exponentials in the end */
    const int32_t *target;
    float scale;
    float *nll;
    int32_t *best; /* NULL = not wanted */
    void *d;       /* gradient of the logits (fp32: in their place); NULL = not wanted */
    /* vocabulary in parts: by row, and where this part begins */
    int64_t first;
    float *max, *token; /* largest logit; -(the best token), -inf where another part has it */
    double *sum;        /* of exponentials, and the target's logit */
};

/* The gradient of row r from its exponentials and their sum; 0 behind the vocabulary and, of an
 * ignored row, everywhere.  `target` < 0: in another part. */
static void xent_grad(const struct xent_rows *a, int64_t r, int64_t target, double sum)
{
    const float *e = a->logits + r * a->stride;
    void *d = dt_at_w(a->d, r * a->stride, a->t);
    int64_t n = a->target[r] < 0 ? 0 : a->vocab;
    float hit = n > 0 && target >= 0 ? a->scale * (float)((double)e[target] / sum - 1.0) : 0;

    DT_BY_TYPE(a->t, row_scaled, e, n, (float)((double)a->scale / sum), d);
    memset(dt_at_w(d, n, a->t), 0, (size_t)(a->stride - n) * dt_dtype_bytes(a->t));
    if (n > 0 && target >= 0)
        dt_st(d, target, hit, a->t);
}

static void xent_row(void *arg, int64_t r, int thread)
{
    const struct xent_rows *a = arg;
    float *z = a->logits + r * a->stride;
    int32_t target = a->target[r];
    float max = row_max(z, a->vocab), hit = target < 0 ? 0 : z[target];
    double sum = 1;

    (void)thread;
    if (a->best) {
        int64_t i = 0;

        while (i < a->vocab - 1 && z[i] != max)
            i++;
        a->best[r] = (int32_t)i;
    }
    a->nll[r] = 0;
    if (target >= 0) {
        sum = row_exp(z, a->vocab, max, a->d != NULL);
        a->nll[r] = (float)((double)max + log(sum)) - hit;
    }
    if (a->d)
        xent_grad(a, r, target, sum);
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
    float *z = a->logits + r * a->stride;
    int64_t target = part_target(a, r), i = 0;

    (void)thread;
    if (a->best) {
        while (i < a->vocab && z[i] != a->max[r])
            i++;
        a->token[r] = i < a->vocab ? -(float)(a->first + i) : -INFINITY;
    }
    a->sum[2 * r + 1] = target < 0 ? 0 : (double)z[target];
    a->sum[2 * r] = a->target[r] < 0 ? 0 : row_exp(z, a->vocab, a->max[r], a->d != NULL);
}

static void part_end(void *arg, int64_t r, int thread)
{
    const struct xent_rows *a = arg;
    double sum = a->sum[2 * r];

    (void)thread;
    if (a->best) /* no part has it: NaN */
        a->best[r] = a->token[r] > -INFINITY ? (int32_t)-a->token[r] : 0;
    a->nll[r] = 0;
    if (a->target[r] >= 0)
        a->nll[r] = (float)((double)a->max[r] + log(sum)) - (float)a->sum[2 * r + 1];
    if (a->d)
        xent_grad(a, r, part_target(a, r), sum);
}

static void rows_in_parts(struct dt_device_queue *q, const struct dt_kernel_xent_parts *p,
                          struct xent_rows *a, int64_t m)
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
 * and few enough that fp32 logits and their gradient stay within SCRATCH_BYTES; chunks are of equal
 * length, in 16s (core/cost/memory_cpu.c follows this). */
enum { SCRATCH_BYTES = 320 << 20, CHUNK_MAX = 1024, CHUNK_MIN = 16 };
enum { PART_ROW_BYTES = 2 * sizeof(double) + 2 * sizeof(float) }; /* sum, max, token */

static int64_t chunk_rows(int64_t rows, int64_t vocab, size_t each)
{
    int64_t fit = SCRATCH_BYTES / (vocab * (int64_t)each) / CHUNK_MIN * CHUNK_MIN;
    int64_t most = dt_cpu_max64(CHUNK_MIN, dt_cpu_min64(CHUNK_MAX, fit));
    int64_t even = dt_cpu_blocks(rows, dt_cpu_max64(1, dt_cpu_blocks(rows, most)));

    return dt_cpu_min64(rows, dt_cpu_blocks(even, CHUNK_MIN) * CHUNK_MIN);
}

/* Rows of logits begin on cache lines.  A wide product is as wide as they are, since oneDNN's best
 * matmuls want dense rows and whole blocks of 64 columns. */
enum { WIDE = 1024 };

static int64_t row_stride(int64_t vocab)
{
    int64_t to = vocab < WIDE ? 32 : 64;

    return dt_cpu_blocks(vocab, to) * to;
}

static void xent(struct dt_device_queue *q, const struct dt_kernel_xent *c, const void *x,
                 const int32_t *target, float *nll, int32_t *best, void *dx, float *dw, bool add_dw)
{
    const struct dt_device_weight_shape *s = dt_cpu_weight_shape(c->w);
    size_t elem = dt_dtype_bytes(c->dtype);
    bool grad = dx || dw;
    const struct dt_kernel_xent_parts *parts = c->parts;
    int64_t vocab = parts ? parts->vocab : s->out;
    /* an fp32 gradient takes its logit's place */
    size_t d_elem = c->dtype == DT_F32 ? 0 : elem;
    int64_t width = s->in, stride = row_stride(s->out);
    int64_t chunk =
        chunk_rows(c->rows, row_stride(parts ? parts->most : s->out), sizeof(float) + d_elem);
    size_t bytes = sizeof(float) * (size_t)(chunk * stride);
    size_t d_bytes = grad ? d_elem * (size_t)(chunk * stride) : 0;
    struct xent_rows a = {.t = c->dtype, .vocab = s->out, .stride = stride, .scale = c->scale};
    struct dt_cpu_product_args logits = {.n = stride,
                                         .k = width,
                                         .ra = width,
                                         .ca = 1,
                                         .rb = 1,
                                         .cb = width + 1,
                                         .rc = stride,
                                         .type = (int32_t)c->dtype,
                                         .c_type = DT_F32};
    struct dt_cpu_product_args to_x = {.n = width,
                                       .k = stride,
                                       .ra = stride,
                                       .ca = 1,
                                       .rb = width,
                                       .cb = 1,
                                       .rc = width,
                                       .type = (int32_t)c->dtype,
                                       .c_type = (int32_t)c->dtype};
    struct dt_cpu_product_args to_w = {.m = s->out,
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
            dt_cpu_queue_fail(q, DT_ERR_INPUT,
                              "target %d of row %lld is outside the vocabulary of %lld",
                              (int)target[r], (long long)r, (long long)vocab);
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
    a.logits = (float *)(void *)room;
    a.d = !grad ? NULL : room + (d_elem ? bytes : 0);
    if (parts) {
        a.first = parts->first;
        a.sum = (double *)(void *)(room + bytes + d_bytes);
        a.max = (float *)(a.sum + 2 * chunk);
        a.token = a.max + chunk;
    }
    for (int64_t r = 0; r < c->rows && q->status == DT_OK; r += chunk) {
        int64_t m = dt_cpu_min64(chunk, c->rows - r);
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
