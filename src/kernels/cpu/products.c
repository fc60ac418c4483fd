/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Linear layers and convolutions as products.
 *
 * The gradient of a filter is a matmul over the output pixels: rows of x under each filter tap are
 * gathered beside each other (im2col) for a slab of output pixels, then dyᵀ times that slab is
 * added up slab by slab in order. */
#include "kernels/cpu/products.h"

#include <string.h>

enum { SLAB_BYTES = 8 << 20 }; /* of gathered rows: they stay in a last-level cache */

static void linear_fwd(struct dt_device_queue *q, int64_t m, const void *x,
                       const struct dt_device_weight *w, const float *bias, const void *residual,
                       void *y)
{
    const struct dt_device_weight_shape *s = dt_cpu_weight_shape(w);
    struct dt_cpu_product_args p = {.m = m,
                                    .n = s->out,
                                    .k = s->in,
                                    .ra = s->in,
                                    .ca = 1,
                                    .rb = 1,
                                    .cb = s->in + 1, /* any but 1: read transposed */
                                    .rc = s->out,
                                    .type = (int32_t)s->dtype,
                                    .c_type = (int32_t)s->dtype,
                                    .add = residual != NULL,
                                    .bias = bias != NULL};

    assert(s->kernel == 0);
    if (residual && residual != y)
        q->dev->k->copy2d(q, s->dtype, m, s->out, residual, s->out, y, s->out, false);
    dt_cpu_product(q, &p, x, NULL, w, bias, y);
}

static void linear_bwd_input(struct dt_device_queue *q, int64_t m, const void *dy,
                             const struct dt_device_weight *w, void *dx, bool add)
{
    const struct dt_device_weight_shape *s = dt_cpu_weight_shape(w);
    struct dt_cpu_product_args p = {.m = m,
                                    .n = s->in,
                                    .k = s->out,
                                    .ra = s->out,
                                    .ca = 1,
                                    .rb = s->in,
                                    .cb = 1,
                                    .rc = s->in,
                                    .type = (int32_t)s->dtype,
                                    .c_type = (int32_t)s->dtype,
                                    .add = add};

    assert(s->kernel == 0);
    dt_cpu_product(q, &p, dy, NULL, w, NULL, dx);
}

static void linear_act_fwd(struct dt_device_queue *q, int64_t m, const void *x,
                           const struct dt_device_weight *w, const float *bias,
                           enum dt_kernel_act act, void *h, void *y)
{
    const struct dt_device_weight_shape *s = dt_cpu_weight_shape(w);

    linear_fwd(q, m, x, w, bias, NULL, h);
    q->dev->k->act_fwd(q, act, s->dtype, m * s->out, h, y);
}

static void linear_act_bwd(struct dt_device_queue *q, int64_t m, const void *dy,
                           const struct dt_device_weight *w, enum dt_kernel_act act, const void *h,
                           void *dh)
{
    const struct dt_device_weight_shape *s = dt_cpu_weight_shape(w);

    linear_bwd_input(q, m, dy, w, dh, false);
    q->dev->k->act_bwd(q, act, s->dtype, m * s->in, h, dh, dh);
}

static void linear_bwd_weight(struct dt_device_queue *q, enum dt_dtype dtype, int64_t m,
                              int64_t out, int64_t in, const void *x, const void *dy, float *dw,
                              float *dbias, bool add)
{
    struct dt_cpu_product_args p = {.m = out,
                                    .n = in,
                                    .k = m,
                                    .ra = 1,
                                    .ca = out,
                                    .rb = in,
                                    .cb = 1,
                                    .rc = in,
                                    .type = (int32_t)dtype,
                                    .c_type = DT_F32,
                                    .add = add};

    if (q->status != DT_OK)
        return;
    if (dw && m > 0)
        dt_cpu_product(q, &p, dy, x, NULL, NULL, dw);
    else if (dw && !add)
        memset(dw, 0, sizeof(float) * (size_t)(out * in));
    if (dbias)
        q->dev->k->bias_bwd(q, dtype, m, out, dy, dbias, add);
}

/* ---- convolution ---- */

static void conv_fwd(struct dt_device_queue *q, const struct dt_kernel_conv *c, const void *x,
                     const struct dt_device_weight *w, const float *bias, const void *residual,
                     void *y)
{
    int64_t rows = c->n * dt_kernel_conv_out(c->h, c) * dt_kernel_conv_out(c->w, c);

    if (residual && residual != y)
        q->dev->k->copy2d(q, c->dtype, rows, c->c_out, residual, c->c_out, y, c->c_out, false);
    dt_cpu_conv(q, c, false, x, w, bias, residual != NULL, y);
}

static void conv_bwd_input(struct dt_device_queue *q, const struct dt_kernel_conv *c,
                           const void *dy, const struct dt_device_weight *w, void *dx, bool add)
{
    int64_t n = c->n * c->h * c->w * c->c_in;
    void *to = dx;

    if (q->status != DT_OK || n == 0)
        return;
    if (add) {
        to = dt_cpu_scratch(q, DT_SCRATCH_OUTER, (size_t)n * dt_dtype_bytes(c->dtype));
        if (!to)
            return;
    }
    dt_cpu_conv(q, c, true, dy, w, NULL, false, to);
    if (add)
        q->dev->k->add(q, c->dtype, n, dx, to, dx);
}

struct gather {
    const struct dt_kernel_conv *c;
    int64_t oh, ow, first, rows, per; /* output pixels first .. first + rows, `per` in a block */
    const char *x;
    char *col;
};

static void gather_block(void *arg, int64_t block, int thread)
{
    const struct gather *g = arg;
    const struct dt_kernel_conv *c = g->c;
    size_t pixel = (size_t)c->c_in * dt_dtype_bytes(c->dtype);
    int64_t end = dt_cpu_min64((block + 1) * g->per, g->rows);

    (void)thread;
    for (int64_t r = block * g->per; r < end; r++) {
        int64_t p = g->first + r, ox = p % g->ow, oy = p / g->ow % g->oh, img = p / (g->ow * g->oh);
        char *to = g->col + (size_t)r * pixel * (size_t)(c->kernel * c->kernel);

        for (int ky = 0; ky < c->kernel; ky++)
            for (int kx = 0; kx < c->kernel; kx++, to += pixel) {
                int64_t y = oy * c->stride + ky - c->pad, x = ox * c->stride + kx - c->pad;

                if (y < 0 || y >= c->h || x < 0 || x >= c->w)
                    memset(to, 0, pixel);
                else
                    memcpy(to, g->x + (size_t)((img * c->h + y) * c->w + x) * pixel, pixel);
            }
    }
}

struct scatter {
    const float *from; /* [c_out][taps][c_in] */
    float *to;         /* [c_out][c_in][taps] */
    int64_t c_in, taps;
    bool add;
};

/* Constant taps: the compiler unrolls them. */
static inline __attribute__((always_inline)) void scatter_row(const float *from, float *to,
                                                              int64_t c_in, int64_t taps, bool add)
{
    for (int64_t i = 0; i < c_in; i++)
        for (int64_t t = 0; t < taps; t++)
            to[i * taps + t] = from[t * c_in + i] + (add ? to[i * taps + t] : 0.0f);
}

static void scatter_block(void *arg, int64_t o, int thread)
{
    const struct scatter *s = arg;
    const float *from = s->from + o * s->taps * s->c_in;
    float *to = s->to + o * s->taps * s->c_in;

    (void)thread;
    if (s->taps == 9 && s->add)
        scatter_row(from, to, s->c_in, 9, true);
    else if (s->taps == 9)
        scatter_row(from, to, s->c_in, 9, false);
    else
        scatter_row(from, to, s->c_in, s->taps, s->add);
}

static void conv_bwd_weight(struct dt_device_queue *q, const struct dt_kernel_conv *c,
                            const void *x, const void *dy, float *dw, float *dbias, bool add)
{
    int64_t taps = (int64_t)c->kernel * c->kernel, width = taps * c->c_in;
    int64_t oh = dt_kernel_conv_out(c->h, c), ow = dt_kernel_conv_out(c->w, c),
            pixels = c->n * oh * ow;
    size_t elem = dt_dtype_bytes(c->dtype);
    int64_t slab = dt_cpu_max64(256, SLAB_BYTES / ((int64_t)elem * width) / 256 * 256);
    struct gather g = {c, oh, ow, 0, 0, dt_cpu_block_rows(width), x, NULL};
    struct scatter s = {NULL, dw, c->c_in, taps, add};
    struct dt_cpu_product_args p = {.m = c->c_out,
                                    .n = width,
                                    .ra = 1,
                                    .ca = c->c_out,
                                    .rb = width,
                                    .cb = 1,
                                    .rc = width,
                                    .type = (int32_t)c->dtype,
                                    .c_type = DT_F32};
    bool direct = taps == 1 && c->stride == 1 && c->pad == 0;
    size_t sum_bytes = sizeof(float) * (size_t)(c->c_out * width);
    char *room;

    if (direct || pixels == 0) { /* a 1x1 filter is a linear layer */
        if (pixels == 0 && dw && !add && q->status == DT_OK)
            memset(dw, 0, sum_bytes);
        linear_bwd_weight(q, c->dtype, pixels, c->c_out, c->c_in, x, dy, pixels ? dw : NULL, dbias,
                          add);
        return;
    }
    if (dw && q->status == DT_OK) {
        slab = dt_cpu_min64(slab, pixels);
        sum_bytes = (sum_bytes + 63) / 64 * 64;
        room = dt_cpu_scratch(q, DT_SCRATCH_OUTER, sum_bytes + elem * (size_t)(slab * width));
        if (!room)
            return;
        s.from = (const float *)(void *)room;
        g.col = room + sum_bytes;
        for (g.first = 0; g.first < pixels; g.first += slab) {
            g.rows = dt_cpu_min64(slab, pixels - g.first);
            dt_cpu_for(q, dt_cpu_blocks(g.rows, g.per), gather_block, &g);
            p.k = g.rows;
            p.add = g.first > 0;
            dt_cpu_product(q, &p, (const char *)dy + elem * (size_t)(g.first * c->c_out), g.col,
                           NULL, NULL, room);
        }
        if (q->status == DT_OK)
            dt_cpu_for(q, c->c_out, scatter_block, &s);
    }
    if (dbias)
        q->dev->k->bias_bwd(q, c->dtype, pixels, c->c_out, dy, dbias, add);
}

void dt_cpu_products(struct dt_kernels *k)
{
    k->linear_fwd = linear_fwd;
    k->linear_bwd_input = linear_bwd_input;
    k->linear_bwd_weight = linear_bwd_weight;
    k->linear_act_fwd = linear_act_fwd;
    k->linear_act_bwd = linear_act_bwd;
    k->conv_fwd = conv_fwd;
    k->conv_bwd_input = conv_bwd_input;
    k->conv_bwd_weight = conv_bwd_weight;
}
