/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Group norm over NHWC, with SiLU behind it if asked.
 *
 * Pixels are rows of all channels, so sums run per channel over slabs of pixels (fp32 inside a
 * slab, double across slabs, in slab order) and only then over the channels of a group.  The
 * variance is the mean of squared distances from the mean, in a second pass: no cancellation. */
#include "kernels/cpu/simd.h"

enum { SLAB = 256 }; /* pixels */

struct gn {
    struct dt_groupnorm g;
    const void *x, *dy;
    const float *gamma, *beta, *mean, *rstd;
    float *mean_out, *rstd_out;
    void *y;
    bool add;
    int64_t slabs; /* per item */
    float *part;   /* items*slabs x (1 or 2) x channels */
    float *coef;   /* backward: items x 2 x groups, the two group means */
};

/* Slab of block b: its item, and pixels [*begin, *end). */
DT_INLINE int64_t slab_of(const struct gn *a, int64_t b, int64_t *begin, int64_t *end)
{
    *begin = b % a->slabs * SLAB;
    *end = dt_min64(*begin + SLAB, a->g.pixels);
    return b / a->slabs;
}

/* Per channel: sum of x, or of (x - mean)^2 once `mean` is there. */
DT_INLINE void moments(const struct gn *a, int64_t b, bool second, enum dt_dtype t)
{
    int64_t begin, end, item = slab_of(a, b, &begin, &end), c = a->g.channels;
    int64_t per = c / a->g.groups;
    float *sum = a->part + b * c;

    memset(sum, 0, sizeof(float) * (size_t)c);
    for (int64_t p = begin; p < end; p++) {
        const void *x = dt_at(a->x, (item * a->g.pixels + p) * c, t);

        if (!second) {
            DT_SIMD_LOOP
            for (int64_t i = 0; i < c; i++)
                sum[i] += dt_ld(x, i, t);
            continue;
        }
        for (int64_t g = 0; g < a->g.groups; g++) {
            float mean = a->mean_out[item * a->g.groups + g];

            DT_SIMD_LOOP
            for (int64_t i = g * per; i < (g + 1) * per; i++) {
                float d = dt_ld(x, i, t) - mean;

                sum[i] += d * d;
            }
        }
    }
}

static void first_block(void *arg, int64_t b, int thread)
{
    const struct gn *a = arg;

    (void)thread;
    DT_BY_TYPE(a->g.dtype, moments, a, b, false);
}
static void second_block(void *arg, int64_t b, int thread)
{
    const struct gn *a = arg;

    (void)thread;
    DT_BY_TYPE(a->g.dtype, moments, a, b, true);
}

/* Mean over the pixels and channels of (item, group) of partial sums `part` (stride between slabs).
 */
static double group_mean(const struct gn *a, const float *part, int64_t stride, int64_t item,
                         int64_t group)
{
    int64_t c = a->g.channels, per = c / a->g.groups;
    double sum = 0;

    for (int64_t s = 0; s < a->slabs; s++)
        for (int64_t i = group * per; i < (group + 1) * per; i++)
            sum += (double)part[(item * a->slabs + s) * stride + i];
    return sum / (double)(a->g.pixels * per);
}

DT_INLINE void write_rows(const struct gn *a, int64_t b, enum dt_dtype t)
{
    int64_t begin, end, item = slab_of(a, b, &begin, &end), c = a->g.channels;
    int64_t per = c / a->g.groups;

    for (int64_t p = begin; p < end; p++) {
        int64_t at = (item * a->g.pixels + p) * c;
        const void *x = dt_at(a->x, at, t);
        void *y = dt_at_w(a->y, at, t);

        for (int64_t g = 0; g < a->g.groups; g++) {
            float mean = a->mean_out[item * a->g.groups + g];
            float rstd = a->rstd_out[item * a->g.groups + g];

            if (a->g.silu) {
                DT_SIMD_LOOP
                for (int64_t i = g * per; i < (g + 1) * per; i++) {
                    float v = (dt_ld(x, i, t) - mean) * rstd * a->gamma[i] + a->beta[i];

                    dt_st(y, i, v * dt_sigmoid(v), t);
                }
            } else {
                DT_SIMD_LOOP
                for (int64_t i = g * per; i < (g + 1) * per; i++)
                    dt_st(y, i, (dt_ld(x, i, t) - mean) * rstd * a->gamma[i] + a->beta[i], t);
            }
        }
    }
}

static void write_block(void *arg, int64_t b, int thread)
{
    const struct gn *a = arg;

    (void)thread;
    DT_BY_TYPE(a->g.dtype, write_rows, a, b);
}

static void groupnorm_fwd(struct dt_queue *q, const struct dt_groupnorm *g, const void *x,
                          const float *gamma, const float *beta, void *y, float *mean, float *rstd)
{
    struct gn a = {.g = *g,
                   .x = x,
                   .gamma = gamma,
                   .beta = beta,
                   .y = y,
                   .mean_out = mean,
                   .rstd_out = rstd,
                   .slabs = dt_blocks(g->pixels, SLAB)};
    int64_t blocks = g->items * a.slabs;

    assert(g->groups > 0 && g->channels % g->groups == 0);
    if (q->status != DT_OK || blocks == 0)
        return;
    a.part = dt_cpu_scratch(q, DT_SCRATCH_KERNEL, sizeof(float) * (size_t)(blocks * g->channels));
    if (!a.part)
        return;
    dt_cpu_for(q, blocks, first_block, &a);
    for (int64_t i = 0; i < g->items * g->groups; i++)
        mean[i] = (float)group_mean(&a, a.part, g->channels, i / g->groups, i % g->groups);
    dt_cpu_for(q, blocks, second_block, &a);
    for (int64_t i = 0; i < g->items * g->groups; i++) {
        double var = group_mean(&a, a.part, g->channels, i / g->groups, i % g->groups);

        rstd[i] = (float)(1.0 / sqrt(var + (double)g->eps));
    }
    dt_cpu_for(q, blocks, write_block, &a);
}

/* ---- backward ---- */

/* dy behind SiLU: through its derivative, rebuilt from x. */
DT_INLINE float grad_at(const struct gn *a, float dy, float xh, int64_t i)
{
    float v, s;

    if (!a->g.silu)
        return dy;
    v = xh * a->gamma[i] + a->beta[i];
    s = dt_sigmoid(v);
    return dy * (s + v * s * (1 - s));
}

/* Per channel: sums of dy and of dy xh. */
DT_INLINE void grad_sums(const struct gn *a, int64_t b, enum dt_dtype t)
{
    int64_t begin, end, item = slab_of(a, b, &begin, &end), c = a->g.channels;
    int64_t per = c / a->g.groups;
    float *s1 = a->part + b * 2 * c, *s2 = s1 + c;

    memset(s1, 0, sizeof(float) * (size_t)(2 * c));
    for (int64_t p = begin; p < end; p++) {
        int64_t at = (item * a->g.pixels + p) * c;
        const void *x = dt_at(a->x, at, t), *dy = dt_at(a->dy, at, t);

        for (int64_t g = 0; g < a->g.groups; g++) {
            float mean = a->mean[item * a->g.groups + g];
            float rstd = a->rstd[item * a->g.groups + g];

            DT_SIMD_LOOP
            for (int64_t i = g * per; i < (g + 1) * per; i++) {
                float xh = (dt_ld(x, i, t) - mean) * rstd;
                float d = grad_at(a, dt_ld(dy, i, t), xh, i);

                s1[i] += d;
                s2[i] += d * xh;
            }
        }
    }
}

static void sums_block(void *arg, int64_t b, int thread)
{
    const struct gn *a = arg;

    (void)thread;
    DT_BY_TYPE(a->g.dtype, grad_sums, a, b);
}

DT_INLINE void grad_rows(const struct gn *a, int64_t b, bool add, enum dt_dtype t)
{
    int64_t begin, end, item = slab_of(a, b, &begin, &end), c = a->g.channels;
    int64_t per = c / a->g.groups;

    for (int64_t p = begin; p < end; p++) {
        int64_t at = (item * a->g.pixels + p) * c;
        const void *x = dt_at(a->x, at, t), *dy = dt_at(a->dy, at, t);
        void *dx = dt_at_w(a->y, at, t);

        for (int64_t g = 0; g < a->g.groups; g++) {
            float mean = a->mean[item * a->g.groups + g];
            float rstd = a->rstd[item * a->g.groups + g];
            float m1 = a->coef[(item * a->g.groups + g) * 2];
            float m2 = a->coef[(item * a->g.groups + g) * 2 + 1];

            DT_SIMD_LOOP
            for (int64_t i = g * per; i < (g + 1) * per; i++) {
                float xh = (dt_ld(x, i, t) - mean) * rstd;
                float d = grad_at(a, dt_ld(dy, i, t), xh, i) * a->gamma[i];
                float v = rstd * (d - m1 - xh * m2);

                dt_st(dx, i, add ? dt_ld(dx, i, t) + v : v, t);
            }
        }
    }
}

static void grad_block(void *arg, int64_t b, int thread)
{
    const struct gn *a = arg;

    (void)thread;
    if (a->add)
        DT_BY_TYPE(a->g.dtype, grad_rows, a, b, true);
    else
        DT_BY_TYPE(a->g.dtype, grad_rows, a, b, false);
}

/* Means over a group of gamma times the channel sums. */
static void group_coefs(struct gn *a)
{
    int64_t c = a->g.channels, per = c / a->g.groups;

    for (int64_t ig = 0; ig < a->g.items * a->g.groups; ig++) {
        int64_t item = ig / a->g.groups, g = ig % a->g.groups;
        double m1 = 0, m2 = 0, n = (double)(a->g.pixels * per);

        for (int64_t s = 0; s < a->slabs; s++)
            for (int64_t i = g * per; i < (g + 1) * per; i++) {
                const float *part = a->part + (item * a->slabs + s) * 2 * c;

                m1 += (double)part[i] * (double)a->gamma[i];
                m2 += (double)part[c + i] * (double)a->gamma[i];
            }
        a->coef[ig * 2] = (float)(m1 / n);
        a->coef[ig * 2 + 1] = (float)(m2 / n);
    }
}

static void groupnorm_bwd(struct dt_queue *q, const struct dt_groupnorm *g, const void *x,
                          const float *gamma, const float *beta, const float *mean,
                          const float *rstd, const void *dy, void *dx, bool add_dx, float *dgamma,
                          float *dbeta, bool add_w)
{
    struct gn a = {.g = *g,
                   .x = x,
                   .dy = dy,
                   .gamma = gamma,
                   .beta = beta,
                   .mean = mean,
                   .rstd = rstd,
                   .y = dx,
                   .add = add_dx,
                   .slabs = dt_blocks(g->pixels, SLAB)};
    int64_t blocks = g->items * a.slabs, c = g->channels;

    if (q->status != DT_OK)
        return;
    a.part =
        dt_cpu_scratch(q, DT_SCRATCH_KERNEL,
                       sizeof(float) * (size_t)(blocks * 2 * c + g->items * g->groups * 2 + 1));
    if (!a.part)
        return;
    a.coef = a.part + blocks * 2 * c;
    dt_cpu_for(q, blocks, sums_block, &a);
    for (int64_t i = 0; i < c; i++) {
        double s1 = 0, s2 = 0;

        if (!dgamma)
            break;
        for (int64_t b = 0; b < blocks; b++) {
            s1 += (double)a.part[b * 2 * c + i];
            s2 += (double)a.part[b * 2 * c + c + i];
        }
        dgamma[i] = (add_w ? dgamma[i] : 0) + (float)s2;
        if (dbeta)
            dbeta[i] = (add_w ? dbeta[i] : 0) + (float)s1;
    }
    if (!dx)
        return;
    group_coefs(&a);
    dt_cpu_for(q, blocks, grad_block, &a);
}

void DT_SIMD(dt_cpu_groupnorm)(struct dt_kernels *k)
{
    k->groupnorm_fwd = groupnorm_fwd;
    k->groupnorm_bwd = groupnorm_bwd;
}
