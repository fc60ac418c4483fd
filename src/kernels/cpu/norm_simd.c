/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Layer norm and RMS norm.  One code: RMS norm is layer norm with mean 0 and no beta.
 *
 * The gradients of gamma and beta are sums over rows: every block of rows leaves its partial sums
 * in the workspace, and they are added in the order of the blocks. */
#include "kernels/cpu/simd.h"

struct norm {
    struct dt_kernel_norm n;
    const void *x, *dy;
    const float *gamma, *beta;
    const float *mean, *rstd; /* backward; mean NULL = RMS */
    float *mean_out, *rstd_out;
    void *y, *dx;
    bool layer, add;
    float *part; /* blocks x (1 or 2) x width; NULL = not wanted */
    int64_t per;
};

DT_INLINE int64_t row_at(const struct dt_kernel_norm *n, int64_t i)
{
    return n->inner > 0 ? i / n->inner * n->stride + i % n->inner * n->width : i * n->width;
}

DT_INLINE void fwd_rows(const struct norm *a, int64_t begin, int64_t end, enum dt_dtype t)
{
    int64_t width = a->n.width;

    for (int64_t r = begin; r < end; r++) {
        int64_t at = row_at(&a->n, r);
        const void *x = dt_at(a->x, at, t);
        void *y = dt_at_w(a->y, at, t);
        float sum, sq, mean = 0, rstd;

        if (a->layer) {
            DT_SUM(sum, 0, width, dt_ld(x, i, t));
            mean = sum / (float)width;
        }
        DT_SUM(sq, 0, width, (dt_ld(x, i, t) - mean) * (dt_ld(x, i, t) - mean));
        rstd = 1.0f / sqrtf(sq / (float)width + a->n.eps);
        if (a->beta) {
            DT_SIMD_LOOP
            for (int64_t i = 0; i < width; i++)
                dt_st(y, i, (dt_ld(x, i, t) - mean) * rstd * a->gamma[i] + a->beta[i], t);
        } else {
            DT_SIMD_LOOP
            for (int64_t i = 0; i < width; i++)
                dt_st(y, i, (dt_ld(x, i, t) - mean) * rstd * a->gamma[i], t);
        }
        if (a->mean_out)
            a->mean_out[r] = mean;
        if (a->rstd_out)
            a->rstd_out[r] = rstd;
    }
}

static void fwd_block(void *arg, int64_t block, int thread)
{
    const struct norm *a = arg;
    int64_t begin = block * a->per, end = dt_cpu_min64(begin + a->per, a->n.rows);

    (void)thread;
    DT_BY_TYPE(a->n.dtype, fwd_rows, a, begin, end);
}

/* With xh = (x - mean) rstd and g = dy gamma:
 * dx = rstd (g - mean(g) - xh mean(g xh)); without the first mean for RMS norm. */
DT_INLINE void bwd_rows(const struct norm *a, int64_t begin, int64_t end, float *dgamma,
                        float *dbeta, enum dt_dtype t)
{
    int64_t width = a->n.width;

    for (int64_t r = begin; r < end; r++) {
        int64_t at = row_at(&a->n, r);
        const void *x = dt_at(a->x, at, t), *dy = dt_at(a->dy, at, t);
        void *dx = a->dx ? dt_at_w(a->dx, at, t) : NULL;
        float mean = a->mean ? a->mean[r] : 0, rstd = a->rstd[r], s1 = 0, s2 = 0;

        if (dx) {
            if (a->layer)
                DT_SUM(s1, 0, width, dt_ld(dy, i, t) * a->gamma[i]);
            DT_SUM(s2, 0, width, dt_ld(dy, i, t) * a->gamma[i] * (dt_ld(x, i, t) - mean));
            s2 *= rstd / (float)width;
            s1 /= (float)width;
        }
        if (dgamma) {
            DT_SIMD_LOOP
            for (int64_t i = 0; i < width; i++)
                dgamma[i] += dt_ld(dy, i, t) * ((dt_ld(x, i, t) - mean) * rstd);
        }
        if (dbeta) {
            DT_SIMD_LOOP
            for (int64_t i = 0; i < width; i++)
                dbeta[i] += dt_ld(dy, i, t);
        }
        if (dx && a->add) {
            DT_SIMD_LOOP
            for (int64_t i = 0; i < width; i++) {
                float xh = (dt_ld(x, i, t) - mean) * rstd;

                dt_st(dx, i,
                      dt_ld(dx, i, t) + rstd * (dt_ld(dy, i, t) * a->gamma[i] - s1 - xh * s2), t);
            }
        } else if (dx) {
            DT_SIMD_LOOP
            for (int64_t i = 0; i < width; i++) {
                float xh = (dt_ld(x, i, t) - mean) * rstd;

                dt_st(dx, i, rstd * (dt_ld(dy, i, t) * a->gamma[i] - s1 - xh * s2), t);
            }
        }
    }
}

static void bwd_block(void *arg, int64_t block, int thread)
{
    const struct norm *a = arg;
    int64_t begin = block * a->per, end = dt_cpu_min64(begin + a->per, a->n.rows), w = a->n.width;
    float *dgamma = a->part ? a->part + block * w * (a->layer ? 2 : 1) : NULL;
    float *dbeta = dgamma && a->layer ? dgamma + w : NULL;

    (void)thread;
    if (dgamma)
        memset(dgamma, 0, sizeof(float) * (size_t)(w * (a->layer ? 2 : 1)));
    DT_BY_TYPE(a->n.dtype, bwd_rows, a, begin, end, dgamma, dbeta);
}

/* The blocks' partial sums in block order: out[i] (+)= sum over b of part[b * stride + i]. */
static void add_parts(const float *part, int64_t blocks, int64_t stride, int64_t width, float *out,
                      bool add)
{
    if (!add)
        memset(out, 0, sizeof(float) * (size_t)width);
    for (int64_t b = 0; b < blocks; b++) {
        const float *p = part + b * stride;

        DT_SIMD_LOOP
        for (int64_t i = 0; i < width; i++)
            out[i] += p[i];
    }
}

static void forward(struct dt_device_queue *q, struct norm *a)
{
    a->per = dt_cpu_block_rows(a->n.width);
    if (q->status == DT_OK)
        dt_cpu_for(q, dt_cpu_blocks(a->n.rows, a->per), fwd_block, a);
}

static void backward(struct dt_device_queue *q, struct norm *a, float *dgamma, float *dbeta,
                     bool add_w)
{
    int64_t blocks, stride = a->n.width * (a->layer ? 2 : 1);

    if (q->status != DT_OK)
        return;
    a->per = dt_cpu_max64(dt_cpu_block_rows(a->n.width), dt_cpu_blocks(a->n.rows, 64));
    blocks = dt_cpu_blocks(a->n.rows, a->per);
    if (dgamma) {
        a->part = dt_cpu_scratch(q, DT_SCRATCH_KERNEL,
                                 sizeof(float) * (size_t)(dt_cpu_max64(blocks, 1) * stride));
        if (!a->part)
            return;
    }
    dt_cpu_for(q, blocks, bwd_block, a);
    if (dgamma)
        add_parts(a->part, blocks, stride, a->n.width, dgamma, add_w);
    if (dgamma && dbeta)
        add_parts(a->part + a->n.width, blocks, stride, a->n.width, dbeta, add_w);
}

static void rmsnorm_fwd(struct dt_device_queue *q, const struct dt_kernel_norm *n, const void *x,
                        const float *gamma, void *y, float *rstd)
{
    struct norm a = {.n = *n, .x = x, .gamma = gamma, .y = y, .rstd_out = rstd};

    forward(q, &a);
}

static void rmsnorm_bwd(struct dt_device_queue *q, const struct dt_kernel_norm *n, const void *x,
                        const float *gamma, const float *rstd, const void *dy, void *dx,
                        bool add_dx, float *dgamma, bool add_w)
{
    struct norm a = {
        .n = *n, .x = x, .gamma = gamma, .rstd = rstd, .dy = dy, .dx = dx, .add = add_dx};

    backward(q, &a, dgamma, NULL, add_w);
}

static void layernorm_fwd(struct dt_device_queue *q, const struct dt_kernel_norm *n, const void *x,
                          const float *gamma, const float *beta, void *y, float *mean, float *rstd)
{
    struct norm a = {.n = *n,
                     .x = x,
                     .gamma = gamma,
                     .beta = beta,
                     .y = y,
                     .mean_out = mean,
                     .rstd_out = rstd,
                     .layer = true};

    forward(q, &a);
}

static void layernorm_bwd(struct dt_device_queue *q, const struct dt_kernel_norm *n, const void *x,
                          const float *gamma, const float *mean, const float *rstd, const void *dy,
                          void *dx, bool add_dx, float *dgamma, float *dbeta, bool add_w)
{
    struct norm a = {.n = *n,
                     .x = x,
                     .gamma = gamma,
                     .mean = mean,
                     .rstd = rstd,
                     .dy = dy,
                     .dx = dx,
                     .add = add_dx,
                     .layer = true};

    backward(q, &a, dgamma, dbeta, add_w);
}

void DT_SIMD(dt_cpu_norm)(struct dt_kernels *k)
{
    k->rmsnorm_fwd = rmsnorm_fwd;
    k->rmsnorm_bwd = rmsnorm_bwd;
    k->layernorm_fwd = layernorm_fwd;
    k->layernorm_bwd = layernorm_bwd;
}
