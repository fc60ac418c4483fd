/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING. */
#include "record.h"

#include "base/clock.h"
#include "kernels/cpu/cpu.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const char *const rec_class_names[REC_CLASSES] = {"products", "head_loss",   "attention",
                                                  "norms",    "activations", "optimizer"};

static struct rec state;
static struct dt_kernels table;
static const struct dt_kernels *own;

const struct rec *rec_state(void)
{
    return &state;
}

void rec_reset(void)
{
    memset(&state, 0, sizeof(state));
}

/* Kernels that call others through the table are charged once, as the outer one. */
static int depth;

static uint64_t enter(void)
{
    depth++;
    return dt_clock_ns();
}

static void leave(uint64_t t0, enum rec_class c)
{
    if (--depth == 0)
        state.seconds[c] += (double)(dt_clock_ns() - t0) * 1e-9;
}

static void note(const struct rec_product *p, int64_t count)
{
    for (int i = 0; i < state.n; i++) {
        struct rec_product *s = &state.product[i];

        if (s->kind == p->kind && s->dtype == p->dtype && s->m == p->m && s->n == p->n &&
            s->k == p->k && memcmp(&s->conv, &p->conv, sizeof(p->conv)) == 0) {
            s->count += count;
            return;
        }
    }
    if (state.n == REC_MAX) {
        fprintf(stderr, "bench: more than %d shapes of products\n", REC_MAX);
        exit(EXIT_FAILURE);
    }
    state.product[state.n] = *p;
    state.product[state.n++].count = count;
}

static void note_gemm(enum rec_kind kind, enum dt_dtype t, int64_t m, int64_t n, int64_t k,
                      int64_t count)
{
    struct rec_product p;

    memset(&p, 0, sizeof(p)); /* compared as bytes */
    p.kind = kind, p.dtype = t, p.m = m, p.n = n, p.k = k;
    if (m > 0)
        note(&p, count);
}

static void note_conv(enum rec_kind kind, const struct dt_kernel_conv *c)
{
    struct rec_product p;

    memset(&p, 0, sizeof(p));
    p.kind = kind, p.dtype = c->dtype;
    p.conv.dtype = c->dtype, p.conv.n = c->n, p.conv.h = c->h, p.conv.w = c->w;
    p.conv.c_in = c->c_in, p.conv.c_out = c->c_out, p.conv.kernel = c->kernel;
    p.conv.stride = c->stride, p.conv.pad = c->pad;
    if (c->n > 0)
        note(&p, 1);
}

/* ---- products ---- */

static void linear_fwd(struct dt_device_queue *q, int64_t m, const void *x,
                       const struct dt_device_weight *w, const float *bias, const void *residual,
                       void *y)
{
    const struct dt_device_weight_shape *s = dt_cpu_weight_shape(w);
    uint64_t t = enter();

    note_gemm(REC_FWD, s->dtype, m, s->out, s->in, 1);
    own->linear_fwd(q, m, x, w, bias, residual, y);
    leave(t, REC_PRODUCT);
}

static void linear_bwd_input(struct dt_device_queue *q, int64_t m, const void *dy,
                             const struct dt_device_weight *w, void *dx, bool add)
{
    const struct dt_device_weight_shape *s = dt_cpu_weight_shape(w);
    uint64_t t = enter();

    note_gemm(REC_INPUT, s->dtype, m, s->in, s->out, 1);
    own->linear_bwd_input(q, m, dy, w, dx, add);
    leave(t, REC_PRODUCT);
}

static void linear_bwd_weight(struct dt_device_queue *q, enum dt_dtype dtype, int64_t m,
                              int64_t out, int64_t in, const void *x, const void *dy, float *dw,
                              float *dbias, bool add)
{
    uint64_t t = enter();

    if (dw && m > 0)
        note_gemm(REC_WEIGHT, dtype, out, in, m, 1);
    own->linear_bwd_weight(q, dtype, m, out, in, x, dy, dw, dbias, add);
    leave(t, REC_PRODUCT);
}

static void conv_fwd(struct dt_device_queue *q, const struct dt_kernel_conv *c, const void *x,
                     const struct dt_device_weight *w, const float *bias, const void *residual,
                     void *y)
{
    uint64_t t = enter();

    note_conv(REC_CONV_FWD, c);
    own->conv_fwd(q, c, x, w, bias, residual, y);
    leave(t, REC_PRODUCT);
}

static void conv_bwd_input(struct dt_device_queue *q, const struct dt_kernel_conv *c,
                           const void *dy, const struct dt_device_weight *w, void *dx, bool add)
{
    uint64_t t = enter();

    note_conv(REC_CONV_INPUT, c);
    own->conv_bwd_input(q, c, dy, w, dx, add);
    leave(t, REC_PRODUCT);
}

static void conv_bwd_weight(struct dt_device_queue *q, const struct dt_kernel_conv *c,
                            const void *x, const void *dy, float *dw, float *dbias, bool add)
{
    uint64_t t = enter();

    note_conv(REC_CONV_WEIGHT, c);
    own->conv_bwd_weight(q, c, x, dy, dw, dbias, add);
    leave(t, REC_PRODUCT);
}

/* Its products in chunks of 1,024 rows at most: whole logits would not fit where the bound is
 * measured either. */
static void xent(struct dt_device_queue *q, const struct dt_kernel_xent *c, const void *x,
                 const int32_t *target, float *nll, int32_t *best, void *dx, float *dw, bool add_dw)
{
    enum { CHUNK = 1024 };
    const struct dt_device_weight_shape *s = dt_cpu_weight_shape(c->w);
    uint64_t t = enter();

    for (int64_t r = 0; r < c->rows; r += CHUNK) {
        int64_t m = dt_cpu_min64(CHUNK, c->rows - r);

        note_gemm(REC_LOGITS, c->dtype, m, s->out, s->in, 1);
        if (dx)
            note_gemm(REC_INPUT, c->dtype, m, s->in, s->out, 1);
        if (dw)
            note_gemm(REC_WEIGHT, c->dtype, s->out, s->in, m, 1);
    }
    own->xent(q, c, x, target, nll, best, dx, dw, add_dw);
    leave(t, REC_HEAD);
}

/* ---- the others: only their time ---- */

#define TIMED(class, call)                                                                         \
    do {                                                                                           \
        uint64_t t_ = enter();                                                                     \
        call;                                                                                      \
        leave(t_, class);                                                                          \
    } while (0)

static void attention_fwd(struct dt_device_queue *q, const struct dt_kernel_attention *a,
                          const void *query, const void *key, const void *value, void *o,
                          float *lse)
{
    TIMED(REC_ATTENTION, own->attention_fwd(q, a, query, key, value, o, lse));
}
static void attention_bwd(struct dt_device_queue *q, const struct dt_kernel_attention *a,
                          const void *query, const void *key, const void *value, const void *o,
                          const float *lse, const void *d_o, void *dq, void *dk, void *dv)
{
    TIMED(REC_ATTENTION, own->attention_bwd(q, a, query, key, value, o, lse, d_o, dq, dk, dv));
}
static void rmsnorm_fwd(struct dt_device_queue *q, const struct dt_kernel_norm *n, const void *x,
                        const float *gamma, void *y, float *rstd)
{
    TIMED(REC_NORM, own->rmsnorm_fwd(q, n, x, gamma, y, rstd));
}
static void rmsnorm_bwd(struct dt_device_queue *q, const struct dt_kernel_norm *n, const void *x,
                        const float *gamma, const float *rstd, const void *dy, void *dx,
                        bool add_dx, float *dgamma, bool add_w)
{
    TIMED(REC_NORM, own->rmsnorm_bwd(q, n, x, gamma, rstd, dy, dx, add_dx, dgamma, add_w));
}
static void layernorm_fwd(struct dt_device_queue *q, const struct dt_kernel_norm *n, const void *x,
                          const float *gamma, const float *beta, void *y, float *mean, float *rstd)
{
    TIMED(REC_NORM, own->layernorm_fwd(q, n, x, gamma, beta, y, mean, rstd));
}
static void layernorm_bwd(struct dt_device_queue *q, const struct dt_kernel_norm *n, const void *x,
                          const float *gamma, const float *mean, const float *rstd, const void *dy,
                          void *dx, bool add_dx, float *dgamma, float *dbeta, bool add_w)
{
    TIMED(REC_NORM,
          own->layernorm_bwd(q, n, x, gamma, mean, rstd, dy, dx, add_dx, dgamma, dbeta, add_w));
}
static void groupnorm_fwd(struct dt_device_queue *q, const struct dt_kernel_groupnorm *g,
                          const void *x, const float *gamma, const float *beta, void *y,
                          float *mean, float *rstd)
{
    TIMED(REC_NORM, own->groupnorm_fwd(q, g, x, gamma, beta, y, mean, rstd));
}
static void groupnorm_bwd(struct dt_device_queue *q, const struct dt_kernel_groupnorm *g,
                          const void *x, const float *gamma, const float *beta, const float *mean,
                          const float *rstd, const void *dy, void *dx, bool add_dx, float *dgamma,
                          float *dbeta, bool add_w)
{
    TIMED(REC_NORM, own->groupnorm_bwd(q, g, x, gamma, beta, mean, rstd, dy, dx, add_dx, dgamma,
                                       dbeta, add_w));
}
static void act_fwd(struct dt_device_queue *q, enum dt_kernel_act act, enum dt_dtype dtype,
                    int64_t n, const void *x, void *y)
{
    TIMED(REC_ACT, own->act_fwd(q, act, dtype, n, x, y));
}
static void act_bwd(struct dt_device_queue *q, enum dt_kernel_act act, enum dt_dtype dtype,
                    int64_t n, const void *x, const void *dy, void *dx)
{
    TIMED(REC_ACT, own->act_bwd(q, act, dtype, n, x, dy, dx));
}
static void linear_act_fwd(struct dt_device_queue *q, int64_t m, const void *x,
                           const struct dt_device_weight *w, const float *bias,
                           enum dt_kernel_act act, void *h, void *y)
{
    const struct dt_device_weight_shape *s = dt_cpu_weight_shape(w);

    linear_fwd(q, m, x, w, bias, NULL, h);
    act_fwd(q, act, s->dtype, m * s->out, h, y);
}
static void linear_act_bwd(struct dt_device_queue *q, int64_t m, const void *dy,
                           const struct dt_device_weight *w, enum dt_kernel_act act, const void *h,
                           void *dh)
{
    const struct dt_device_weight_shape *s = dt_cpu_weight_shape(w);

    linear_bwd_input(q, m, dy, w, dh, false);
    act_bwd(q, act, s->dtype, m * s->in, h, dh, dh);
}
static void glu_fwd(struct dt_device_queue *q, enum dt_kernel_act act, enum dt_dtype dtype,
                    int64_t rows, int64_t width, bool gate_last, const void *h, void *y)
{
    TIMED(REC_ACT, own->glu_fwd(q, act, dtype, rows, width, gate_last, h, y));
}
static void glu_bwd(struct dt_device_queue *q, enum dt_kernel_act act, enum dt_dtype dtype,
                    int64_t rows, int64_t width, bool gate_last, const void *h, const void *dy,
                    void *dh)
{
    TIMED(REC_ACT, own->glu_bwd(q, act, dtype, rows, width, gate_last, h, dy, dh));
}
static void adamw(struct dt_device_queue *q, const struct dt_kernel_adamw *h, int parts,
                  const struct dt_kernel_adamw_part *part, const float *coef)
{
    TIMED(REC_OPTIMIZER, own->adamw(q, h, parts, part, coef));
}
static void sum_sq(struct dt_device_queue *q, int parts, const struct dt_kernel_span *part,
                   double *out, bool add)
{
    TIMED(REC_OPTIMIZER, own->sum_sq(q, parts, part, out, add));
}

void rec_device(const struct dt_device *dev, struct dt_device *out)
{
    own = dev->k;
    table = *own;
    table.linear_fwd = linear_fwd;
    table.linear_bwd_input = linear_bwd_input;
    table.linear_bwd_weight = linear_bwd_weight;
    table.linear_act_fwd = linear_act_fwd;
    table.linear_act_bwd = linear_act_bwd;
    table.conv_fwd = conv_fwd;
    table.conv_bwd_input = conv_bwd_input;
    table.conv_bwd_weight = conv_bwd_weight;
    table.xent = xent;
    table.attention_fwd = attention_fwd;
    table.attention_bwd = attention_bwd;
    table.rmsnorm_fwd = rmsnorm_fwd;
    table.rmsnorm_bwd = rmsnorm_bwd;
    table.layernorm_fwd = layernorm_fwd;
    table.layernorm_bwd = layernorm_bwd;
    table.groupnorm_fwd = groupnorm_fwd;
    table.groupnorm_bwd = groupnorm_bwd;
    table.act_fwd = act_fwd;
    table.act_bwd = act_bwd;
    table.glu_fwd = glu_fwd;
    table.glu_bwd = glu_bwd;
    table.adamw = adamw;
    table.sum_sq = sum_sq;
    *out = *dev;
    out->k = &table;
    rec_reset();
}
