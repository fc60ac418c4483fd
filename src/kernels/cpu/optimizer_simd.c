/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * AdamW, sums over parameters, zeroing, the clipping coefficient. */
#include "kernels/cpu/simd.h"

enum { BLOCK = 1 << 14, STRETCH = 1024 };

/* ---- blocks of many tensors, part after part: first[k] is the first one of part k, first[parts] is behind
 * the last ---- */

static int part_of(const int64_t *first, int parts, int64_t block)
{
    int lo = 0, hi = parts; /* first[lo] <= block < first[hi] */

    while (hi - lo > 1) {
        int mid = lo + (hi - lo) / 2;

        if (first[mid] <= block)
            lo = mid;
        else
            hi = mid;
    }
    return lo;
}

/* `part`: structs of `size` bytes that begin with the number of elements.  Fills first[0 .. parts]. */
static void count_blocks(int64_t *first, int parts, const void *part, size_t size)
{
    first[0] = 0;
    for (int k = 0; k < parts; k++) {
        const int64_t *n = (const void *)((const char *)part + (size_t)k * size);

        first[k + 1] = first[k] + dt_cpu_blocks(*n, BLOCK);
    }
}

/* ---- AdamW ---- */

struct opt {
    const struct dt_kernel_adamw_part *part;
    const int64_t *first;
    int parts;
    float lr, beta1, beta2, eps, decay, c1, c2, coef;
};

/* p -= lr (m/c1 / (sqrt(v/c2) + eps) + decay p); c1, c2: bias corrections. */
static void adamw_block(void *arg, int64_t block, int thread)
{
    const struct opt *a = arg;
    int k = part_of(a->first, a->parts, block);
    const struct dt_kernel_adamw_part *t = &a->part[k];
    int64_t begin = (block - a->first[k]) * BLOCK, end = dt_cpu_min64(begin + BLOCK, t->n);
    float lr = a->lr, b1 = a->beta1, b2 = a->beta2, eps = a->eps, coef = a->coef;
    float i1 = 1.0f / a->c1, i2 = 1.0f / a->c2, keep = 1.0f - lr * (t->decay ? a->decay : 0.0f);
    const float *g = t->g;
    float *p = t->p, *m = t->m, *v = t->v;
    uint16_t *copy = t->copy;

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
    if (!copy)
        return;
    DT_SIMD_LOOP
    for (int64_t i = begin; i < end; i++) /* the block is still in a cache */
        copy[i] = dt_bf16_from_f32(p[i]);
}

static void adamw(struct dt_device_queue *q, const struct dt_kernel_adamw *h, int parts,
                  const struct dt_kernel_adamw_part *part, const float *coef)
{
    struct opt a = {.part = part,
                    .parts = parts,
                    .lr = h->lr,
                    .beta1 = h->beta1,
                    .beta2 = h->beta2,
                    .eps = h->eps,
                    .decay = h->weight_decay};
    int64_t *first;

    assert(h->step >= 1);
    if (q->status != DT_OK)
        return;
    first = dt_cpu_scratch(q, DT_SCRATCH_KERNEL, sizeof(*first) * ((size_t)parts + 1));
    if (!first)
        return;
    count_blocks(first, parts, part, sizeof(*part));
    a.first = first;
    a.coef = coef ? *coef : 1.0f;
    a.c1 = (float)(1.0 - pow((double)h->beta1, (double)h->step));
    a.c2 = (float)(1.0 - pow((double)h->beta2, (double)h->step));
    dt_cpu_for(q, first[parts], adamw_block, &a);
}

/* ---- sums ---- */

struct sums {
    const struct dt_kernel_span *part;
    const int64_t *first;
    int parts;
    double *sum; /* per block */
};

/* In double, by stretches. */
DT_INLINE void block_sum(const struct sums *a, int64_t block, bool square)
{
    int k = part_of(a->first, a->parts, block);
    const float *x = a->part[k].x;
    int64_t at = (block - a->first[k]) * BLOCK, stop = dt_cpu_min64(at + BLOCK, a->part[k].n);
    double total = 0;

    for (int64_t begin = at; begin < stop; begin += STRETCH) {
        int64_t end = dt_cpu_min64(begin + STRETCH, stop);
        double s;

        DT_REDUCE(double, 0.0, DT_PLUS, s, begin, end,
                  square ? (double)x[i] * (double)x[i] : (double)x[i]);
        total += s;
    }
    a->sum[block] = total;
}

static void sum_block(void *arg, int64_t block, int thread)
{
    (void)thread;
    block_sum(arg, block, false);
}
static void sq_block(void *arg, int64_t block, int thread)
{
    (void)thread;
    block_sum(arg, block, true);
}

static void reduce(struct dt_device_queue *q, int parts, const struct dt_kernel_span *part,
                   double *out, bool add, dt_cpu_block_fn *fn)
{
    struct sums a = {.part = part, .parts = parts};
    int64_t blocks = 0, *first;

    for (int k = 0; k < parts; k++)
        blocks += dt_cpu_blocks(part[k].n, BLOCK);
    if (q->status != DT_OK)
        return;
    first = dt_cpu_scratch(q, DT_SCRATCH_KERNEL,
                           sizeof(*first) * ((size_t)parts + 1) + sizeof(double) * (size_t)blocks);
    if (!first)
        return;
    count_blocks(first, parts, part, sizeof(*part));
    a.first = first;
    a.sum = (double *)(first + parts + 1);
    dt_cpu_for(q, blocks, fn, &a);
    if (!add)
        *out = 0;
    for (int k = 0; k < parts; k++) {
        double *s = a.sum + first[k];
        int64_t n = first[k + 1] - first[k];

        for (int64_t step = 1; step < n; step *= 2) /* the pairwise tree */
            for (int64_t i = 0; i + step < n; i += 2 * step)
                s[i] += s[i + step];
        if (n > 0)
            *out += s[0];
    }
}

static void sum(struct dt_device_queue *q, int64_t n, const float *x, double *out, bool add)
{
    struct dt_kernel_span part = {n, (float *)(uintptr_t)x};

    reduce(q, 1, &part, out, add, sum_block);
}

static void sum_sq(struct dt_device_queue *q, int parts, const struct dt_kernel_span *part,
                   double *out, bool add)
{
    reduce(q, parts, part, out, add, sq_block);
}

static void zero(struct dt_device_queue *q, int parts, const struct dt_kernel_span *part)
{
    for (int k = 0; q->status == DT_OK && k < parts; k++)
        if (part[k].n > 0)
            memset(part[k].x, 0, (size_t)part[k].n * sizeof(float));
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
    k->zero = zero;
    k->clip_coef = clip_coef;
}
