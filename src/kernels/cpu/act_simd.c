/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Activation functions and gated units. */
#include "kernels/cpu/simd.h"

struct act {
    enum dt_kernel_act act;
    enum dt_dtype t;
    int64_t n, width, per; /* n elements, or rows of width */
    bool gate_last;
    const void *x, *dy;
    void *y;
};

/* f(x), and its derivative if `d`. */
DT_INLINE float value(float x, enum dt_kernel_act act, float *d)
{
    /* tanh form (Hendrycks & Gimpel 2016): x sigmoid(2u), u = sqrt(2/pi) (x + 0.044715 x^3) */
    const float c = 0.7978845608f, k = 0.044715f;
    float s;

    switch (act) {
    case DT_ACT_GELU_TANH:
        s = dt_sigmoid(2 * c * (x + k * x * x * x));
        if (d)
            *d = s + x * s * (1 - s) * 2 * c * (1 + 3 * k * x * x);
        return x * s;
    case DT_ACT_GELU_ERF:
        s = 0.5f * (1 + dt_erf(x * 0.70710678f));
        if (d)
            *d = s + x * 0.39894228f * dt_exp(-0.5f * x * x);
        return x * s;
    case DT_ACT_QUICK_GELU:
        s = dt_sigmoid(1.702f * x);
        if (d)
            *d = s + 1.702f * x * s * (1 - s);
        return x * s;
    case DT_ACT_SILU:
        s = dt_sigmoid(x);
        if (d)
            *d = s + x * s * (1 - s);
        return x * s;
    case DT_ACT_SIGMOID:
        s = dt_sigmoid(x);
        if (d)
            *d = s * (1 - s);
        return s;
    case DT_ACT_RELU:
    case DT_ACT_N:
        break;
    }
    if (d)
        *d = x > 0 ? 1.0f : 0.0f;
    return x > 0 ? x : 0.0f;
}

/* Calls f(..., act, t) with both constant. */
#define BY_ACT(a, f, ...)                                                                          \
    do {                                                                                           \
        switch ((a)->act) {                                                                        \
        case DT_ACT_GELU_TANH:                                                                     \
            DT_BY_TYPE((a)->t, f, __VA_ARGS__, DT_ACT_GELU_TANH);                                  \
            break;                                                                                 \
        case DT_ACT_GELU_ERF:                                                                      \
            DT_BY_TYPE((a)->t, f, __VA_ARGS__, DT_ACT_GELU_ERF);                                   \
            break;                                                                                 \
        case DT_ACT_QUICK_GELU:                                                                    \
            DT_BY_TYPE((a)->t, f, __VA_ARGS__, DT_ACT_QUICK_GELU);                                 \
            break;                                                                                 \
        case DT_ACT_SILU:                                                                          \
            DT_BY_TYPE((a)->t, f, __VA_ARGS__, DT_ACT_SILU);                                       \
            break;                                                                                 \
        case DT_ACT_SIGMOID:                                                                       \
            DT_BY_TYPE((a)->t, f, __VA_ARGS__, DT_ACT_SIGMOID);                                    \
            break;                                                                                 \
        case DT_ACT_RELU:                                                                          \
        case DT_ACT_N:                                                                             \
            DT_BY_TYPE((a)->t, f, __VA_ARGS__, DT_ACT_RELU);                                       \
            break;                                                                                 \
        }                                                                                          \
    } while (0)

DT_INLINE void fwd(const struct act *a, int64_t begin, int64_t end, enum dt_kernel_act act,
                   enum dt_dtype t)
{
    DT_SIMD_LOOP
    for (int64_t i = begin; i < end; i++)
        dt_st(a->y, i, value(dt_ld(a->x, i, t), act, NULL), t);
}

DT_INLINE void bwd(const struct act *a, int64_t begin, int64_t end, enum dt_kernel_act act,
                   enum dt_dtype t)
{
    DT_SIMD_LOOP
    for (int64_t i = begin; i < end; i++) {
        float d;

        value(dt_ld(a->x, i, t), act, &d);
        dt_st(a->y, i, dt_ld(a->dy, i, t) * d, t);
    }
}

DT_INLINE void glu(const struct act *a, int64_t begin, int64_t end, enum dt_kernel_act act,
                   enum dt_dtype t)
{
    int64_t w = a->width;

    for (int64_t r = begin; r < end; r++) {
        const void *gate = dt_at(a->x, r * 2 * w + (a->gate_last ? w : 0), t);
        const void *up = dt_at(a->x, r * 2 * w + (a->gate_last ? 0 : w), t);
        void *y = dt_at_w(a->y, r * w, t);

        DT_SIMD_LOOP
        for (int64_t i = 0; i < w; i++)
            dt_st(y, i, value(dt_ld(gate, i, t), act, NULL) * dt_ld(up, i, t), t);
    }
}

DT_INLINE void glu_back(const struct act *a, int64_t begin, int64_t end, enum dt_kernel_act act,
                        enum dt_dtype t)
{
    int64_t w = a->width;

    for (int64_t r = begin; r < end; r++) {
        int64_t at_gate = r * 2 * w + (a->gate_last ? w : 0);
        int64_t at_up = r * 2 * w + (a->gate_last ? 0 : w);
        const void *gate = dt_at(a->x, at_gate, t), *up = dt_at(a->x, at_up, t);
        const void *dy = dt_at(a->dy, r * w, t);
        void *dgate = dt_at_w(a->y, at_gate, t), *dup = dt_at_w(a->y, at_up, t);

        DT_SIMD_LOOP
        for (int64_t i = 0; i < w; i++) {
            float d, u = dt_ld(up, i, t), g = dt_ld(dy, i, t);
            float f = value(dt_ld(gate, i, t), act, &d);

            dt_st(dgate, i, g * u * d, t);
            dt_st(dup, i, g * f, t);
        }
    }
}

#define BLOCK_FN(name, inner)                                                                      \
    static void name(void *arg, int64_t block, int thread)                                         \
    {                                                                                              \
        const struct act *a = arg;                                                                 \
        int64_t begin = block * a->per, end = dt_cpu_min64(begin + a->per, a->n);                  \
                                                                                                   \
        (void)thread;                                                                              \
        BY_ACT(a, inner, a, begin, end);                                                           \
    }
BLOCK_FN(fwd_block, fwd)
BLOCK_FN(bwd_block, bwd)
BLOCK_FN(glu_block, glu)
BLOCK_FN(glu_back_block, glu_back)

static void run(struct dt_device_queue *q, struct act *a, dt_cpu_block_fn *fn)
{
    a->per = dt_cpu_block_rows(a->width);
    if (q->status == DT_OK)
        dt_cpu_for(q, dt_cpu_blocks(a->n, a->per), fn, a);
}

static void act_fwd(struct dt_device_queue *q, enum dt_kernel_act act, enum dt_dtype dtype,
                    int64_t n, const void *x, void *y)
{
    struct act a = {.act = act, .t = dtype, .n = n, .width = 1, .x = x, .y = y};

    run(q, &a, fwd_block);
}

static void act_bwd(struct dt_device_queue *q, enum dt_kernel_act act, enum dt_dtype dtype,
                    int64_t n, const void *x, const void *dy, void *dx)
{
    struct act a = {.act = act, .t = dtype, .n = n, .width = 1, .x = x, .dy = dy, .y = dx};

    run(q, &a, bwd_block);
}

static void glu_fwd(struct dt_device_queue *q, enum dt_kernel_act act, enum dt_dtype dtype,
                    int64_t rows, int64_t width, bool gate_last, const void *h, void *y)
{
    struct act a = {
        .act = act, .t = dtype, .n = rows, .width = width, .gate_last = gate_last, .x = h, .y = y};

    run(q, &a, glu_block);
}

static void glu_bwd(struct dt_device_queue *q, enum dt_kernel_act act, enum dt_dtype dtype,
                    int64_t rows, int64_t width, bool gate_last, const void *h, const void *dy,
                    void *dh)
{
    struct act a = {.act = act,
                    .t = dtype,
                    .n = rows,
                    .width = width,
                    .gate_last = gate_last,
                    .x = h,
                    .dy = dy,
                    .y = dh};

    run(q, &a, glu_back_block);
}

void DT_SIMD(dt_cpu_act)(struct dt_kernels *k)
{
    k->act_fwd = act_fwd;
    k->act_bwd = act_bwd;
    k->glu_fwd = glu_fwd;
    k->glu_bwd = glu_bwd;
}
