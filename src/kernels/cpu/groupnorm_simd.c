/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Group norm over NHWC, with SiLU behind it if asked.
 *
 * Pixels are rows of all channels, so sums run per channel over slabs of an item's pixels (fp32 inside a
 * slab, double across slabs, in slab order) and only then over the channels of a group.  What
 * belongs to a group is spread over its channels first, so that every loop over pixels runs along
 * whole rows.  The variance is the mean of squared distances from the mean, in a second pass: no
 * cancellation. */
#include "kernels/cpu/simd.h"

enum { SLAB = 128 }; /* pixels */

struct gn {
    struct dt_kernel_groupnorm g;
    const void *x, *dy;
    const float *gamma, *beta;
    void *y;
    bool add;
    int64_t n_slabs;
    int32_t *first;     /* per item and one more: its first slab */
    int32_t *item;      /* per slab */
    float *part;        /* slabs x 2 x channels: sums of a slab */
    float *mean, *rstd; /* items x channels */
    float *m1, *m2;     /* items x channels: backward, the group means of g and of g xh */
};

/* Slab b: its item, and pixels [*begin, *end) of all. */
DT_INLINE int64_t slab_of(const struct gn *a, int64_t b, int64_t *begin, int64_t *end)
{
    int64_t item = a->item[b];

    *begin = a->g.items.cu[item] + (b - a->first[item]) * SLAB;
    *end = dt_cpu_min64(*begin + SLAB, a->g.items.cu[item + 1]);
    return item;
}

/* Per channel: sum of (x - mean) or, `second`, of its square; the mean is 0 until it is known. */
DT_INLINE void moments(const struct gn *a, int64_t b, bool second, enum dt_dtype t)
{
    int64_t begin, end, item = slab_of(a, b, &begin, &end), c = a->g.channels;
    float *sum = a->part + b * 2 * c;
    const float *mean = a->mean + item * c;

    memset(sum, 0, sizeof(float) * (size_t)c);
    for (int64_t p = begin; p < end; p++) {
        const void *x = dt_at(a->x, p * c, t);

        DT_SIMD_LOOP
        for (int64_t i = 0; i < c; i++) {
            float d = dt_ld(x, i, t) - mean[i];

            sum[i] += second ? d * d : d;
        }
    }
}

#define BLOCK_FN(name, inner, ...)                                                                 \
    static void name(void *arg, int64_t b, int thread)                                             \
    {                                                                                              \
        const struct gn *a = arg;                                                                  \
                                                                                                   \
        (void)thread;                                                                              \
        DT_BY_TYPE(a->g.dtype, inner, a, b, __VA_ARGS__);                                          \
    }
BLOCK_FN(first_block, moments, false)
BLOCK_FN(second_block, moments, true)

/* Mean over the pixels and channels of (item, group), of the slabs' sums weighted by channel (NULL
 * = 1). */
static double group_mean(const struct gn *a, int64_t item, int64_t group, int64_t which,
                         const float *weight)
{
    int64_t c = a->g.channels, per = c / a->g.groups;
    double sum = 0;

    for (int64_t s = a->first[item]; s < a->first[item + 1]; s++) {
        const float *part = a->part + (s * 2 + which) * c;

        for (int64_t i = group * per; i < (group + 1) * per; i++)
            sum += (double)part[i] * (weight ? (double)weight[i] : 1.0);
    }
    return sum / (double)(dt_cpu_max64(dt_cpu_item_rows(&a->g.items, item), 1) * per);
}

/* The value of a group to all its channels. */
static void spread(const struct gn *a, int64_t item, int64_t group, float value, float *to)
{
    int64_t per = a->g.channels / a->g.groups;

    for (int64_t i = 0; i < per; i++)
        to[item * a->g.channels + group * per + i] = value;
}

DT_INLINE void write_rows(const struct gn *a, int64_t b, bool silu, enum dt_dtype t)
{
    int64_t begin, end, item = slab_of(a, b, &begin, &end), c = a->g.channels;
    const float *mean = a->mean + item * c, *rstd = a->rstd + item * c;
    const float *gamma = a->gamma, *beta = a->beta;

    for (int64_t p = begin; p < end; p++) {
        int64_t at = p * c;
        const void *x = dt_at(a->x, at, t);
        void *y = dt_at_w(a->y, at, t);

        DT_SIMD_LOOP
        for (int64_t i = 0; i < c; i++) {
            float v = (dt_ld(x, i, t) - mean[i]) * rstd[i] * gamma[i] + beta[i];

            dt_st(y, i, silu ? v * dt_sigmoid(v) : v, t);
        }
    }
}
BLOCK_FN(write_block, write_rows, false)
BLOCK_FN(write_silu_block, write_rows, true)

/* The workspace, and the slabs; false if there is none. */
static bool room(struct dt_device_queue *q, struct gn *a)
{
    int64_t items = a->g.items.n, n = items * a->g.channels, parts, slabs = 0;
    float *p;

    for (int64_t i = 0; i < items; i++)
        slabs += dt_cpu_blocks(dt_cpu_item_rows(&a->g.items, i), SLAB);
    parts = slabs * 2 * a->g.channels;
    p = dt_cpu_scratch(q, DT_SCRATCH_KERNEL,
                       sizeof(float) * (size_t)(parts + 4 * n + items + 1 + slabs));
    if (!p)
        return false;
    a->n_slabs = slabs;
    a->part = p;
    a->mean = p + parts;
    a->rstd = a->mean + n;
    a->m1 = a->rstd + n;
    a->m2 = a->m1 + n;
    a->first = (int32_t *)(void *)(a->m2 + n);
    a->item = a->first + items + 1;
    a->first[0] = 0;
    for (int64_t i = 0; i < items; i++) {
        a->first[i + 1] =
            a->first[i] + (int32_t)dt_cpu_blocks(dt_cpu_item_rows(&a->g.items, i), SLAB);
        for (int32_t s = a->first[i]; s < a->first[i + 1]; s++)
            a->item[s] = (int32_t)i;
    }
    return true;
}

static void groupnorm_fwd(struct dt_device_queue *q, const struct dt_kernel_groupnorm *g,
                          const void *x, const float *gamma, const float *beta, void *y,
                          float *mean, float *rstd)
{
    struct gn a = {.g = *g, .x = x, .gamma = gamma, .beta = beta, .y = y};
    int64_t n = g->items.n * g->groups;

    assert(g->groups > 0 && g->channels % g->groups == 0);
    if (q->status != DT_OK || g->items.rows == 0 || !room(q, &a))
        return;
    memset(a.mean, 0, sizeof(float) * (size_t)(g->items.n * g->channels));
    dt_cpu_for(q, a.n_slabs, first_block, &a);
    for (int64_t i = 0; i < n; i++) {
        mean[i] = (float)group_mean(&a, i / g->groups, i % g->groups, 0, NULL);
        spread(&a, i / g->groups, i % g->groups, mean[i], a.mean);
    }
    dt_cpu_for(q, a.n_slabs, second_block, &a);
    for (int64_t i = 0; i < n; i++) {
        double var = group_mean(&a, i / g->groups, i % g->groups, 0, NULL);

        rstd[i] = (float)(1.0 / sqrt(var + (double)g->eps));
        spread(&a, i / g->groups, i % g->groups, rstd[i], a.rstd);
    }
    dt_cpu_for(q, a.n_slabs, g->silu ? write_silu_block : write_block, &a);
}

/* ---- backward ---- */

/* dy behind SiLU: through its derivative, rebuilt from x. */
DT_INLINE float grad_at(float dy, float xh, float gamma, float beta, bool silu)
{
    float v = xh * gamma + beta, s;

    if (!silu)
        return dy;
    s = dt_sigmoid(v);
    return dy * (s + v * s * (1 - s));
}

/* Per channel: sums of dy and of dy xh. */
DT_INLINE void grad_sums(const struct gn *a, int64_t b, bool silu, enum dt_dtype t)
{
    int64_t begin, end, item = slab_of(a, b, &begin, &end), c = a->g.channels;
    const float *mean = a->mean + item * c, *rstd = a->rstd + item * c;
    const float *gamma = a->gamma, *beta = a->beta;
    float *s1 = a->part + b * 2 * c, *s2 = s1 + c;

    memset(s1, 0, sizeof(float) * (size_t)(2 * c));
    for (int64_t p = begin; p < end; p++) {
        int64_t at = p * c;
        const void *x = dt_at(a->x, at, t), *dy = dt_at(a->dy, at, t);

        DT_SIMD_LOOP
        for (int64_t i = 0; i < c; i++) {
            float xh = (dt_ld(x, i, t) - mean[i]) * rstd[i];
            float d = grad_at(dt_ld(dy, i, t), xh, gamma[i], beta[i], silu);

            s1[i] += d;
            s2[i] += d * xh;
        }
    }
}
BLOCK_FN(sums_block, grad_sums, false)
BLOCK_FN(sums_silu_block, grad_sums, true)

DT_INLINE void grad_rows(const struct gn *a, int64_t b, bool silu, enum dt_dtype t)
{
    int64_t begin, end, item = slab_of(a, b, &begin, &end), c = a->g.channels;
    const float *mean = a->mean + item * c, *rstd = a->rstd + item * c;
    const float *m1 = a->m1 + item * c, *m2 = a->m2 + item * c;
    const float *gamma = a->gamma, *beta = a->beta;
    float keep = a->add ? 1.0f : 0.0f;

    for (int64_t p = begin; p < end; p++) {
        int64_t at = p * c;
        const void *x = dt_at(a->x, at, t), *dy = dt_at(a->dy, at, t);
        void *dx = dt_at_w(a->y, at, t);

        DT_SIMD_LOOP
        for (int64_t i = 0; i < c; i++) {
            float xh = (dt_ld(x, i, t) - mean[i]) * rstd[i];
            float d = grad_at(dt_ld(dy, i, t), xh, gamma[i], beta[i], silu) * gamma[i];
            float old = keep != 0.0f ? dt_ld(dx, i, t) : 0.0f; /* may be unset if not kept */

            dt_st(dx, i, old + rstd[i] * (d - m1[i] - xh * m2[i]), t);
        }
    }
}
BLOCK_FN(grad_block, grad_rows, false)
BLOCK_FN(grad_silu_block, grad_rows, true)

/* Sums over items and slabs, in order. */
static void weight_grads(const struct gn *a, float *dgamma, float *dbeta, bool add)
{
    int64_t c = a->g.channels;

    for (int64_t i = 0; i < c; i++) {
        double s1 = 0, s2 = 0;

        for (int64_t b = 0; b < a->n_slabs; b++) {
            s1 += (double)a->part[b * 2 * c + i];
            s2 += (double)a->part[b * 2 * c + c + i];
        }
        dgamma[i] = (add ? dgamma[i] : 0) + (float)s2;
        if (dbeta)
            dbeta[i] = (add ? dbeta[i] : 0) + (float)s1;
    }
}

static void groupnorm_bwd(struct dt_device_queue *q, const struct dt_kernel_groupnorm *g,
                          const void *x, const float *gamma, const float *beta, const float *mean,
                          const float *rstd, const void *dy, void *dx, bool add_dx, float *dgamma,
                          float *dbeta, bool add_w)
{
    struct gn a = {.g = *g, .x = x, .dy = dy, .gamma = gamma, .beta = beta, .y = dx, .add = add_dx};
    int64_t n = g->items.n * g->groups;

    assert(g->groups > 0 && g->channels % g->groups == 0);
    if (q->status != DT_OK || !room(q, &a))
        return;
    for (int64_t i = 0; i < n; i++) {
        spread(&a, i / g->groups, i % g->groups, mean[i], a.mean);
        spread(&a, i / g->groups, i % g->groups, rstd[i], a.rstd);
    }
    dt_cpu_for(q, a.n_slabs, g->silu ? sums_silu_block : sums_block, &a);
    if (dgamma)
        weight_grads(&a, dgamma, dbeta, add_w);
    if (!dx)
        return;
    for (int64_t i = 0; i < n; i++) {
        int64_t item = i / g->groups, group = i % g->groups;

        spread(&a, item, group, (float)group_mean(&a, item, group, 0, gamma), a.m1);
        spread(&a, item, group, (float)group_mean(&a, item, group, 1, gamma), a.m2);
    }
    dt_cpu_for(q, a.n_slabs, g->silu ? grad_silu_block : grad_block, &a);
}

void DT_SIMD(dt_cpu_groupnorm)(struct dt_kernels *k)
{
    k->groupnorm_fwd = groupnorm_fwd;
    k->groupnorm_bwd = groupnorm_bwd;
}
