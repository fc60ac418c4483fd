/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING. */
#include "ref_kernels.h"

#include <math.h>
#include <stdlib.h>

void ref_linear(int64_t m, int64_t out, int64_t in, const double *x, const double *w,
                const double *bias, double *y)
{
    for (int64_t i = 0; i < m; i++)
        for (int64_t j = 0; j < out; j++) {
            double s = bias ? bias[j] : 0;

            for (int64_t k = 0; k < in; k++)
                s += x[i * in + k] * w[j * in + k];
            y[i * out + j] = s;
        }
}

static double conv_at(const struct dt_kernel_conv *c, const double *x, const double *w, int64_t n,
                      int64_t oy, int64_t ox, int64_t o)
{
    double s = 0;

    for (int ky = 0; ky < c->kernel; ky++)
        for (int kx = 0; kx < c->kernel; kx++) {
            int64_t y = oy * c->stride + ky - c->pad, z = ox * c->stride + kx - c->pad;

            if (y < 0 || y >= c->h || z < 0 || z >= c->w)
                continue;
            for (int i = 0; i < c->c_in; i++)
                s += x[((n * c->h + y) * c->w + z) * c->c_in + i] *
                     w[((o * c->c_in + i) * c->kernel + ky) * c->kernel + kx];
        }
    return s;
}

void ref_conv(const struct dt_kernel_conv *c, const double *x, const double *w, const double *bias,
              double *y)
{
    int64_t oh = dt_kernel_conv_out(c->h, c), ow = dt_kernel_conv_out(c->w, c);

    for (int64_t n = 0; n < c->n; n++)
        for (int64_t oy = 0; oy < oh; oy++)
            for (int64_t ox = 0; ox < ow; ox++)
                for (int64_t o = 0; o < c->c_out; o++)
                    y[((n * oh + oy) * ow + ox) * c->c_out + o] =
                        conv_at(c, x, w, n, oy, ox, o) + (bias ? bias[o] : 0);
}

void ref_norm(const struct dt_kernel_norm *n, bool layer, const double *x, const double *gamma,
              const double *beta, double *y)
{
    for (int64_t r = 0; r < n->rows; r++) {
        int64_t at =
            n->inner > 0 ? r / n->inner * n->stride + r % n->inner * n->width : r * n->width;
        double mean = 0, var = 0;

        for (int64_t i = 0; i < n->width && layer; i++)
            mean += x[at + i] / (double)n->width;
        for (int64_t i = 0; i < n->width; i++)
            var += (x[at + i] - mean) * (x[at + i] - mean) / (double)n->width;
        for (int64_t i = 0; i < n->width; i++)
            y[at + i] =
                (x[at + i] - mean) / sqrt(var + (double)n->eps) * gamma[i] + (beta ? beta[i] : 0);
    }
}

void ref_groupnorm(const struct dt_kernel_groupnorm *g, const double *x, const double *gamma,
                   const double *beta, double *y)
{
    int64_t c = g->channels, per = c / g->groups;

    for (int64_t ig = 0; ig < g->items.n * g->groups; ig++) {
        const int32_t *cu = &g->items.cu[ig / g->groups];
        int64_t base = cu[0] * c, c0 = ig % g->groups * per, values = (cu[1] - cu[0]) * per;
        double mean = 0, var = 0, n = (double)values;

        for (int64_t e = 0; e < values; e++)
            mean += x[base + e / per * c + c0 + e % per] / n;
        for (int64_t e = 0; e < values; e++) {
            double d = x[base + e / per * c + c0 + e % per] - mean;

            var += d * d / n;
        }
        for (int64_t e = 0; e < values; e++) {
            int64_t ch = c0 + e % per, at = base + e / per * c + ch;
            double v = (x[at] - mean) / sqrt(var + (double)g->eps) * gamma[ch] + beta[ch];

            y[at] = g->silu ? v / (1 + exp(-v)) : v;
        }
    }
}

/* One query row: p is room for the longest sequence. */
static void attend(const struct dt_kernel_attention *a, const double *q, const double *k,
                   const double *v, int64_t keys, double *p, double *o, double *lse)
{
    double max = -INFINITY, sum = 0;

    for (int64_t j = 0; j < keys; j++) {
        p[j] = 0;
        for (int c = 0; c < a->head_dim; c++)
            p[j] += (double)a->scale * q[c] * k[j * a->stride_k + c];
        max = fmax(max, p[j]);
    }
    for (int64_t j = 0; j < keys; j++)
        sum += p[j] = exp(p[j] - max);
    for (int c = 0; c < a->head_dim; c++) {
        o[c] = 0;
        for (int64_t j = 0; j < keys; j++)
            o[c] += p[j] / sum * v[j * a->stride_v + c];
    }
    *lse = keys > 0 ? max + log(sum) : -INFINITY;
}

void ref_attention(const struct dt_kernel_attention *a, const double *q, const double *k,
                   const double *v, double *o, double *lse)
{
    double *p = malloc(sizeof(double) * (size_t)(a->max_k + 1));

    for (int64_t s = 0; s < a->n_seq; s++)
        for (int h = 0; h < a->heads; h++)
            for (int64_t i = a->cu_q[s]; i < a->cu_q[s + 1]; i++) {
                int64_t lq = a->cu_q[s + 1] - a->cu_q[s], lk = a->cu_k[s + 1] - a->cu_k[s];
                int64_t keys = a->causal ? i - a->cu_q[s] + lk - lq + 1 : lk;
                int64_t kv = h / (a->heads / a->kv_heads) * a->head_dim;

                attend(a, q + i * a->stride_q + h * a->head_dim, k + a->cu_k[s] * a->stride_k + kv,
                       v + a->cu_k[s] * a->stride_v + kv, keys < 0 ? 0 : keys, p,
                       o + i * a->stride_o + h * a->head_dim, lse + h * a->rows_q + i);
            }
    free(p);
}

double ref_act(enum dt_kernel_act act, double x)
{
    switch (act) {
    case DT_ACT_GELU_TANH:
        return 0.5 * x * (1 + tanh(sqrt(2 / M_PI) * (x + 0.044715 * x * x * x)));
    case DT_ACT_GELU_ERF:
        return 0.5 * x * (1 + erf(x / sqrt(2)));
    case DT_ACT_QUICK_GELU:
        return x / (1 + exp(-1.702 * x));
    case DT_ACT_SILU:
        return x / (1 + exp(-x));
    case DT_ACT_SIGMOID:
        return 1 / (1 + exp(-x));
    case DT_ACT_RELU:
    case DT_ACT_N:
        break;
    }
    return x > 0 ? x : 0;
}

void ref_glu(enum dt_kernel_act act, int64_t rows, int64_t width, bool gate_last, const double *h,
             double *y)
{
    for (int64_t r = 0; r < rows; r++)
        for (int64_t i = 0; i < width; i++) {
            double a = h[r * 2 * width + i], b = h[r * 2 * width + width + i];

            y[r * width + i] = gate_last ? a * ref_act(act, b) : ref_act(act, a) * b;
        }
}

void ref_rope(int64_t rows, int heads, int head_dim, int dim, int64_t stride, const int32_t *pos,
              const float *table, bool inverse, double *x)
{
    for (int64_t r = 0; r < rows; r++)
        for (int h = 0; h < heads; h++)
            for (int i = 0; i < dim / 2; i++) {
                double *u = x + r * stride + h * head_dim + i, *v = u + dim / 2, a = *u, b = *v;
                double c = (double)table[pos[r] * dim + i];
                double s = (double)table[pos[r] * dim + dim / 2 + i] * (inverse ? -1 : 1);

                *u = a * c - b * s;
                *v = b * c + a * s;
            }
}

double ref_xent_row(int64_t vocab, int64_t width, const double *x, const double *w, int target)
{
    double sum = 0, at = 0;

    if (target < 0)
        return 0;
    for (int64_t j = 0; j < vocab; j++) {
        double z = 0;

        for (int64_t i = 0; i < width; i++)
            z += x[i] * w[j * width + i];
        sum += exp(z);
        if (j == target)
            at = z;
    }
    return log(sum) - at;
}

double ref_slope(double (*loss)(void *ctx), void *ctx, double *x)
{
    double keep = *x, h = 1e-5 * fmax(1, fabs(keep)), up, down;

    *x = keep + h;
    up = loss(ctx);
    *x = keep - h;
    down = loss(ctx);
    *x = keep;
    return (up - down) / (2 * h);
}
