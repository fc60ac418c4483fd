/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * AdamW, sums over parameters, the clipping coefficient. */
#include "kernels/cpu/simd.h"

enum { BLOCK = 1 << 14, STRETCH = 1024 };

struct opt {
    int64_t n;
    float *p, *m, *v;
    const float *g;
    float lr, beta1, beta2, eps, decay, c1, c2, coef;
    double *part;
};

/* p -= lr (m/c1 / (sqrt(v/c2) + eps) + decay p); c1, c2: bias corrections. */
static void adamw_block(void *arg, int64_t block, int thread)
{
    const struct opt *a = arg;
    int64_t begin = block * BLOCK, end = dt_cpu_min64(begin + BLOCK, a->n);
    float lr = a->lr, b1 = a->beta1, b2 = a->beta2, eps = a->eps, coef = a->coef;
    float i1 = 1.0f / a->c1, i2 = 1.0f / a->c2, keep = 1.0f - lr * a->decay;
    const float *g = a->g;
    float *p = a->p, *m = a->m, *v = a->v;

    (void)thread;
    DT_SIMD_LOOP
    for (int64_t i = begin; i < end; i++) {
        float x = coef == 0.0f ? 0.0f : g[i] * coef;
        float mi = b1 * m[i] + (1.0f - b1) * x;
        float vi = b2 * v[i] + (1.0f - b2) * x * x;

        m[i] = mi;
        v[i] = vi;
        p[i] = p[i] * keep - lr * (mi * i1) / (sqrtf(vi * i2) + eps);
    }
}

static void adamw(struct dt_device_queue *q, const struct dt_kernel_adamw *h, int64_t n, float *p,
                  const float *g, float *m, float *v, const float *coef)
{
    struct opt a = {.n = n,
                    .p = p,
                    .g = g,
                    .m = m,
                    .v = v,
                    .lr = h->lr,
                    .beta1 = h->beta1,
                    .beta2 = h->beta2,
                    .eps = h->eps,
                    .decay = h->weight_decay,
                    .coef = coef ? *coef : 1.0f};

    assert(h->step >= 1);
    a.c1 = (float)(1.0 - pow((double)h->beta1, (double)h->step));
    a.c2 = (float)(1.0 - pow((double)h->beta2, (double)h->step));
    if (q->status == DT_OK)
        dt_cpu_for(q, dt_cpu_blocks(n, BLOCK), adamw_block, &a);
}

/* In double, by stretches. */
DT_INLINE double block_sum(const struct opt *a, int64_t block, bool square)
{
    int64_t stop = dt_cpu_min64((block + 1) * BLOCK, a->n);
    double total = 0;

    for (int64_t begin = block * BLOCK; begin < stop; begin += STRETCH) {
        int64_t end = dt_cpu_min64(begin + STRETCH, stop);
        double s;

        DT_REDUCE(double, 0.0, DT_PLUS, s, begin, end,
                  square ? (double)a->g[i] * (double)a->g[i] : (double)a->g[i]);
        total += s;
    }
    return total;
}

static void sum_block(void *arg, int64_t block, int thread)
{
    const struct opt *a = arg;

    (void)thread;
    a->part[block] = block_sum(a, block, false);
}
static void sq_block(void *arg, int64_t block, int thread)
{
    const struct opt *a = arg;

    (void)thread;
    a->part[block] = block_sum(a, block, true);
}

static void reduce(struct dt_device_queue *q, int64_t n, const float *x, double *out, bool add,
                   dt_cpu_block_fn *fn)
{
    struct opt a = {.n = n, .g = x};
    int64_t blocks = dt_cpu_blocks(n, BLOCK);

    if (q->status != DT_OK)
        return;
    a.part = dt_cpu_scratch(q, DT_SCRATCH_KERNEL, sizeof(double) * (size_t)(blocks + 1));
    if (!a.part)
        return;
    a.part[0] = 0;
    dt_cpu_for(q, blocks, fn, &a);
    for (int64_t step = 1; step < blocks; step *= 2) /* the pairwise tree */
        for (int64_t i = 0; i + step < blocks; i += 2 * step)
            a.part[i] += a.part[i + step];
    *out = (add ? *out : 0) + a.part[0];
}

static void sum(struct dt_device_queue *q, int64_t n, const float *x, double *out, bool add)
{
    reduce(q, n, x, out, add, sum_block);
}

static void sum_sq(struct dt_device_queue *q, int64_t n, const float *x, double *out, bool add)
{
    reduce(q, n, x, out, add, sq_block);
}

static void clip_coef(struct dt_device_queue *q, const double *sq, float max_norm, float *norm,
                      float *coef)
{
    double n = sqrt(*sq);

    if (q->status != DT_OK)
        return;
    if (norm)
        *norm = (float)n;
    if (!isfinite(n))
        *coef = 0;
    else if (max_norm <= 0)
        *coef = 1;
    else
        *coef = (float)fmin(1.0, (double)max_norm / (n + 1e-6));
}

void DT_SIMD(dt_cpu_optimizer)(struct dt_kernels *k)
{
    k->adamw = adamw;
    k->sum = sum;
    k->sum_sq = sum_sq;
    k->clip_coef = clip_coef;
}
