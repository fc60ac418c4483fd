/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * The kernels at GPT-2 124M and U-Net shapes, beside this machine's own peaks: the largest square
 * product for what is bound by arithmetic, a copy through memory for what is bound by bandwidth. */
#include "base/mem.h"
#include "base/clock.h"
#include "kernels/kernels.h"

#include <stdio.h>
#include <stdlib.h>

enum { ROUNDS = 5 };

struct bench {
    const struct dt_device *dev;
    struct dt_device_queue *q;
    const struct dt_kernels *k;
    enum dt_dtype t;
    double peak_flops, peak_bytes; /* per second */
    void *a, *b, *c, *d;           /* tensors of ELEMS fp32 */
    float *w, *g, *s;
    struct dt_device_weight *weight;
};

enum { ROWS = 4096, HIDDEN = 768, FFN = 3072, VOCAB = 50257, HEADS = 12 };
enum { ELEMS = ROWS * FFN * 2, WEIGHTS = VOCAB * HIDDEN };

typedef void work_fn(struct bench *b);

static double seconds(struct bench *b, work_fn *fn)
{
    double best = 1e30;

    for (int r = 0; r <= ROUNDS; r++) { /* the first one packs and allocates */
        uint64_t t = dt_clock_ns();
        double s;

        fn(b);
        s = (double)(dt_clock_ns() - t) * 1e-9;
        if (r > 0 && s < best)
            best = s;
    }
    if (b->dev->queue_sync(b->q, NULL) != DT_OK) {
        fprintf(stderr, "a kernel failed\n");
        exit(EXIT_FAILURE);
    }
    return best;
}

static void report_flops(struct bench *b, const char *name, work_fn *fn, double flops)
{
    double rate = flops / seconds(b, fn);

    printf("bench: %s_%s %.1f GFLOP/s ratio %.2f of gemm_peak\n", name,
           b->t == DT_BF16 ? "bf16" : "f32", rate * 1e-9, rate / b->peak_flops);
}

static void report_bytes(struct bench *b, const char *name, work_fn *fn, double bytes)
{
    double rate = bytes / seconds(b, fn);

    printf("bench: %s_%s %.2f GB/s ratio %.2f of copy\n", name, b->t == DT_BF16 ? "bf16" : "f32",
           rate * 1e-9, rate / b->peak_bytes);
}

static void weight(struct bench *b, int64_t out, int64_t in, int kernel)
{
    struct dt_device_weight_shape s = {b->t, out, in, kernel};

    b->dev->weight_free(b->weight);
    b->weight = NULL;
    if (b->dev->weight_new(b->dev, &s, b->w, NULL, NULL, &b->weight) != DT_OK)
        exit(EXIT_FAILURE);
}

static void square(struct bench *b)
{
    b->k->linear_fwd(b->q, 2048, b->a, b->weight, NULL, NULL, b->b);
}
static void copy(struct bench *b)
{
    b->k->copy2d(b->q, DT_F32, ROWS, FFN, b->a, FFN, b->b, FFN, false);
}
static void up_fwd(struct bench *b)
{
    b->k->linear_fwd(b->q, ROWS, b->a, b->weight, b->s, NULL, b->b);
}
static void up_dx(struct bench *b)
{
    b->k->linear_bwd_input(b->q, ROWS, b->b, b->weight, b->a, false);
}
static void up_dw(struct bench *b)
{
    b->k->linear_bwd_weight(b->q, b->t, ROWS, FFN, HIDDEN, b->a, b->b, b->g, b->s, true);
}
static void head_loss(struct bench *b)
{
    static int32_t target[ROWS];
    struct dt_kernel_xent x = {b->t, 1024, b->weight, 1e-3f, NULL};

    for (int i = 0; i < ROWS; i++)
        target[i] = i * 37 % VOCAB;
    b->k->xent(b->q, &x, b->a, target, b->s, NULL, b->b, b->g, true);
}

static struct dt_kernel_attention attention(const struct bench *b, const int32_t *cu)
{
    return (struct dt_kernel_attention){.dtype = b->t,
                                        .causal = true,
                                        .heads = HEADS,
                                        .kv_heads = HEADS,
                                        .head_dim = HIDDEN / HEADS,
                                        .n_seq = 4,
                                        .cu_q = cu,
                                        .cu_k = cu,
                                        .rows_q = ROWS,
                                        .rows_k = ROWS,
                                        .max_q = ROWS / 4,
                                        .max_k = ROWS / 4,
                                        .stride_q = 3 * HIDDEN,
                                        .stride_k = 3 * HIDDEN,
                                        .stride_v = 3 * HIDDEN,
                                        .stride_o = HIDDEN,
                                        .scale = 0.125f};
}
static const int32_t cu[] = {0, ROWS / 4, ROWS / 2, ROWS / 4 * 3, ROWS};

static void attn_fwd(struct bench *b)
{
    struct dt_kernel_attention a = attention(b, cu);
    size_t e = dt_dtype_bytes(b->t);
    char *qkv = b->a;

    b->k->attention_fwd(b->q, &a, qkv, qkv + HIDDEN * e, qkv + 2 * HIDDEN * e, b->b, b->s);
}
static void attn_bwd(struct bench *b)
{
    struct dt_kernel_attention a = attention(b, cu);
    size_t e = dt_dtype_bytes(b->t);
    char *qkv = b->a, *d = b->d;

    b->k->attention_bwd(b->q, &a, qkv, qkv + HIDDEN * e, qkv + 2 * HIDDEN * e, b->b, b->s, b->c, d,
                        d + HIDDEN * e, d + 2 * HIDDEN * e);
}
static void norm_fwd(struct bench *b)
{
    struct dt_kernel_norm n = {b->t, ROWS, HIDDEN, 0, 0, 1e-5f};

    b->k->layernorm_fwd(b->q, &n, b->a, b->w, b->w + HIDDEN, b->b, b->s, b->s + ROWS);
}
static void norm_bwd(struct bench *b)
{
    struct dt_kernel_norm n = {b->t, ROWS, HIDDEN, 0, 0, 1e-5f};

    b->k->layernorm_bwd(b->q, &n, b->a, b->w, b->s, b->s + ROWS, b->b, b->c, false, b->g,
                        b->g + HIDDEN, false);
}
static void gelu_fwd(struct bench *b)
{
    b->k->act_fwd(b->q, DT_ACT_GELU_TANH, b->t, ROWS * FFN, b->a, b->b);
}
static void gelu_bwd(struct bench *b)
{
    b->k->act_bwd(b->q, DT_ACT_GELU_TANH, b->t, ROWS * FFN, b->a, b->b, b->c);
}
static void swiglu(struct bench *b)
{
    b->k->glu_fwd(b->q, DT_ACT_SILU, b->t, ROWS, FFN, false, b->a, b->b);
}
static void adamw(struct bench *b)
{
    struct dt_kernel_adamw h = {1e-4f, 0.9f, 0.95f, 1e-8f, 0.1f, 3};

    const struct dt_kernel_adamw_part part = {
        .n = ELEMS, .p = b->a, .g = b->b, .m = b->c, .v = b->d};

    b->k->adamw(b->q, &h, 1, &part, NULL);
}
static void grad_norm(struct bench *b)
{
    const struct dt_kernel_span all = {ELEMS, b->a};
    double out;

    b->k->sum_sq(b->q, 1, &all, &out, false);
}

static struct dt_kernel_conv unet(const struct bench *b)
{
    return (struct dt_kernel_conv){b->t, 2, 32, 32, 320, 320, 3, 1, 1};
}
static void conv_fwd(struct bench *b)
{
    struct dt_kernel_conv c = unet(b);

    b->k->conv_fwd(b->q, &c, b->a, b->weight, b->s, NULL, b->b);
}
static void conv_dx(struct bench *b)
{
    struct dt_kernel_conv c = unet(b);

    b->k->conv_bwd_input(b->q, &c, b->b, b->weight, b->c, false);
}
static void conv_dw(struct bench *b)
{
    struct dt_kernel_conv c = unet(b);

    b->k->conv_bwd_weight(b->q, &c, b->a, b->b, b->g, b->s, true);
}
static void group_norm(struct bench *b)
{
    static const int32_t images[] = {0, 1024, 2048};
    struct dt_kernel_groupnorm g = {b->t, {2, images, 2048}, 320, 32, 1e-5f, true};

    b->k->groupnorm_fwd(b->q, &g, b->a, b->w, b->w, b->b, b->s, b->s + 64);
}

/* Finite values of the type: a stretch of small normals, over and over. */
static void fill(struct bench *b, enum dt_dtype t)
{
    enum { STRETCH = 1 << 16 };
    void *const all[] = {b->a, b->b, b->c, b->d};
    size_t e = dt_dtype_bytes(t);

    for (int i = 0; i < 4; i++) {
        b->k->normal(b->q, t, STRETCH, 1, (uint64_t)i, 0, 0.5f, all[i]);
        for (int64_t j = 0; i == 3 && t == DT_F32 && j < STRETCH; j++)
            ((float *)b->d)[j] *= ((float *)b->d)[j]; /* second moments are not negative */
        for (int64_t at = STRETCH; at < ELEMS; at += STRETCH)
            b->dev->copy(b->q, (char *)all[i] + (size_t)at * e, all[i], STRETCH * e,
                         DT_COPY_ON_DEVICE);
    }
}

static void run_type(struct bench *b, enum dt_dtype t)
{
    double proj = 2.0 * ROWS * HIDDEN * FFN, e = (double)dt_dtype_bytes(t);
    double scores = 2.0 * ROWS * (ROWS / 4) * HIDDEN; /* causal: half of it, twice (q·k and p·v) */
    double conv = 2.0 * 2 * 32 * 32 * 320 * 320 * 9;

    b->t = t;
    fill(b, t);
    weight(b, 2048, 2048, 0);
    b->peak_flops = 2.0 * 2048 * 2048 * 2048 / seconds(b, square);
    printf("bench: gemm_peak_%s %.1f GFLOP/s\n", t == DT_BF16 ? "bf16" : "f32",
           b->peak_flops * 1e-9);
    weight(b, FFN, HIDDEN, 0);
    report_flops(b, "linear_fwd", up_fwd, proj);
    report_flops(b, "linear_bwd_input", up_dx, proj);
    report_flops(b, "linear_bwd_weight", up_dw, proj);
    weight(b, VOCAB, HIDDEN, 0);
    fill(b, t);
    report_flops(b, "xent", head_loss, 6.0 * 1024 * HIDDEN * VOCAB);
    fill(b, t);
    report_flops(b, "attention_fwd", attn_fwd, scores);
    report_flops(b, "attention_bwd", attn_bwd, scores * 2.5);
    weight(b, 320, 320, 3);
    fill(b, t);
    report_flops(b, "conv_fwd", conv_fwd, conv);
    report_flops(b, "conv_bwd_input", conv_dx, conv);
    report_flops(b, "conv_bwd_weight", conv_dw, conv);
    fill(b, t);
    report_bytes(b, "layernorm_fwd", norm_fwd, 2 * e * ROWS * HIDDEN);
    report_bytes(b, "layernorm_bwd", norm_bwd, 3 * e * ROWS * HIDDEN);
    report_bytes(b, "gelu_fwd", gelu_fwd, 2 * e * ROWS * FFN);
    report_bytes(b, "gelu_bwd", gelu_bwd, 3 * e * ROWS * FFN);
    report_bytes(b, "swiglu_fwd", swiglu, 3 * e * ROWS * FFN);
    report_bytes(b, "groupnorm_silu_fwd", group_norm, 2 * e * 2 * 1024 * 320);
    if (t == DT_F32) {
        report_bytes(b, "adamw", adamw, 28.0 * ELEMS);
        report_bytes(b, "grad_norm", grad_norm, 4.0 * ELEMS);
    }
}

int main(void)
{
    struct dt_device *dev = NULL;
    struct bench b = {0};
    void *p[7] = {NULL};

    if (dt_device_open_cpu(NULL, NULL, &dev) != DT_OK ||
        dev->queue_new(dev, false, NULL, &b.q) != DT_OK)
        return EXIT_FAILURE;
    b.dev = dev;
    b.k = dev->k;
    for (int i = 0; i < 7; i++)
        if (dev->alloc(dev, sizeof(float) * (size_t)(i < 4 ? ELEMS : WEIGHTS), NULL, &p[i]) !=
            DT_OK)
            return EXIT_FAILURE;
    b.a = p[0], b.b = p[1], b.c = p[2], b.d = p[3], b.w = p[4], b.g = p[5], b.s = p[6];
    b.k->normal(b.q, DT_F32, WEIGHTS, 2, 0, 0, 0.02f, b.w);
    printf("# %s, %s, %d threads\n", dev->info.name, dev->info.isa, dev->info.threads);
    fill(&b, DT_F32);
    b.peak_bytes = 2.0 * sizeof(float) * ROWS * FFN / seconds(&b, copy);
    printf("bench: memory_copy %.2f GB/s\n", b.peak_bytes * 1e-9);
    run_type(&b, DT_F32);
    if (dev->info.fast == DT_BF16)
        run_type(&b, DT_BF16);
    dev->weight_free(b.weight);
    for (int i = 0; i < 7; i++)
        dev->free(dev, p[i]);
    dev->queue_free(b.q);
    dev->close(dev);
    return EXIT_SUCCESS;
}
