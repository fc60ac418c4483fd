/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * The reference's U-Net, one image at a time. */
#include "ref_impl.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

struct act { /* NHWC of one image */
    int h, w, c;
    double *v;
};

static struct act conv(struct ref_module *r, const char *prefix, const char *name, struct act x,
                       int out, int kernel, int stride)
{
    char text[96];
    struct act y = {(x.h + 2 * (kernel / 2) - kernel) / stride + 1,
                    (x.w + 2 * (kernel / 2) - kernel) / stride + 1, out, NULL};
    const double *w, *b;

    snprintf(text, sizeof(text), "%s.weight", name);
    w = ref_must(r, prefix, text);
    snprintf(text, sizeof(text), "%s.bias", name);
    b = ref_must(r, prefix, text);
    y.v = NEW(r, (size_t)(y.h * y.w) * (size_t)out);
    for (int i = 0; i < y.h; i++)
        for (int j = 0; j < y.w; j++)
            for (int o = 0; o < out; o++) {
                double s = b[o];

                for (int ky = 0; ky < kernel; ky++)
                    for (int kx = 0; kx < kernel; kx++) {
                        int sy = i * stride + ky - kernel / 2, sx = j * stride + kx - kernel / 2;

                        if (sy < 0 || sy >= x.h || sx < 0 || sx >= x.w)
                            continue;
                        for (int c = 0; c < x.c; c++)
                            s += x.v[(sy * x.w + sx) * x.c + c] *
                                 w[((o * x.c + c) * kernel + ky) * kernel + kx];
                    }
                y.v[(i * y.w + j) * out + o] = s;
            }
    return y;
}

static struct act group_norm(struct ref_module *r, const struct dt_block *block, const char *prefix,
                             const char *name, struct act x, double eps, bool with_silu)
{
    const double *g = ref_get(r, "%s%s.weight", prefix, name),
                 *b = ref_get(r, "%s%s.bias", prefix, name);
    int groups = dt_block_groups(block, x.c), each = x.c / groups, px = x.h * x.w;
    struct act y = x;

    y.v = NEW(r, (size_t)px * (size_t)x.c);
    for (int k = 0; k < groups; k++) {
        double mean = 0, var = 0, n = (double)each * px;

        for (int i = 0; i < px; i++)
            for (int c = k * each; c < (k + 1) * each; c++)
                mean += x.v[i * x.c + c] / n;
        for (int i = 0; i < px; i++)
            for (int c = k * each; c < (k + 1) * each; c++)
                var += (x.v[i * x.c + c] - mean) * (x.v[i * x.c + c] - mean) / n;
        for (int i = 0; i < px; i++)
            for (int c = k * each; c < (k + 1) * each; c++) {
                double t = (x.v[i * x.c + c] - mean) / sqrt(var + eps) * g[c] + b[c];

                y.v[i * x.c + c] = with_silu ? ref_silu(t) : t;
            }
    }
    return y;
}

static struct act res_block(struct ref_module *r, const struct dt_block *b, const char *p,
                            struct act x, const double *time)
{
    struct act h =
        conv(r, p, "conv1", group_norm(r, b, p, "norm1", x, r->norm_eps, true), b->c_out, 3, 1);
    double *e = ref_named(r, p, "time_emb_proj", 1, b->time_dim, b->c_out,
                          ref_map(r, b->time_dim, time, ref_silu));

    for (int i = 0; i < h.h * h.w * h.c; i++)
        h.v[i] += e[i % h.c];
    h = conv(r, p, "conv2", group_norm(r, b, p, "norm2", h, r->norm_eps, true), b->c_out, 3, 1);
    if (b->c_in != b->c_out)
        x = conv(r, p, "conv_shortcut", x, b->c_out, 1, 1);
    h.v = ref_plus(r, h.h * h.w * h.c, h.v, x.v);
    return h;
}

static double *basic_block(struct ref_module *r, const struct dt_block *b, const char *p, int rows,
                           double *x, const double *states)
{
    int c = b->hidden, w = b->heads * b->head_dim, f = b->ffn;
    int len = states ? b->context_len : rows, cw = states ? b->context_dim : c;
    int *zero = DT_ARENA_NEW(&r->arena, int, rows + len);
    double *n = ref_layer_norm(r, p, "norm1", rows, c, 1e-5, x), *q, *k, *v, *h;
    const double *s = states;

    q = ref_named(r, p, "attn1.to_q", rows, c, w, n);
    k = ref_named(r, p, "attn1.to_k", rows, c, w, n);
    v = ref_named(r, p, "attn1.to_v", rows, c, w, n);
    h = ref_attend(r, rows, rows, zero, zero, b->heads, b->heads, b->head_dim, false,
                   1 / sqrt(b->head_dim), q, k, v);
    x = ref_plus(r, rows * c, x, ref_named(r, p, "attn1.to_out.0", rows, w, c, h));
    n = ref_layer_norm(r, p, "norm2", rows, c, 1e-5, x);
    s = s ? s : n;
    q = ref_named(r, p, "attn2.to_q", rows, c, w, n);
    k = ref_named(r, p, "attn2.to_k", len, cw, w, s);
    v = ref_named(r, p, "attn2.to_v", len, cw, w, s);
    h = ref_attend(r, rows, len, zero, zero, b->heads, b->heads, b->head_dim, false,
                   1 / sqrt(b->head_dim), q, k, v);
    x = ref_plus(r, rows * c, x, ref_named(r, p, "attn2.to_out.0", rows, w, c, h));
    n = ref_layer_norm(r, p, "norm3", rows, c, 1e-5, x);
    h = ref_named(r, p, "ff.net.0.proj", rows, c, 2 * f, n);
    n = NEW(r, (size_t)rows * (size_t)f);
    for (int i = 0; i < rows * f; i++)
        n[i] = h[i / f * 2 * f + i % f] * ref_gelu(h[i / f * 2 * f + f + i % f]);
    return ref_plus(r, rows * c, x, ref_named(r, p, "ff.net.2", rows, f, c, n));
}

static struct act spatial(struct ref_module *r, const struct dt_block *b, const char *p,
                          struct act x, const double *states)
{
    int rows = x.h * x.w;
    struct act y = group_norm(r, b, p, "norm", x, 1e-6, false);
    char q[128];

    y.v = ref_named(r, p, "proj_in", rows, x.c, x.c, y.v);
    for (int i = 0; i < b->depth; i++) {
        snprintf(q, sizeof(q), "%stransformer_blocks.%d.", p, i);
        y.v = basic_block(r, b, q, rows, y.v, b->context_len > 0 ? states : NULL);
    }
    y.v = ref_plus(r, rows * x.c, ref_named(r, p, "proj_out", rows, x.c, x.c, y.v), x.v);
    return y;
}

static struct act join(struct ref_module *r, struct act a, struct act b)
{
    struct act y = {a.h, a.w, a.c + b.c, NULL};

    y.v = NEW(r, (size_t)(a.h * a.w) * (size_t)y.c);
    for (int i = 0; i < a.h * a.w; i++) {
        memcpy(y.v + i * y.c, a.v + i * a.c, (size_t)a.c * sizeof(double));
        memcpy(y.v + i * y.c + a.c, b.v + i * b.c, (size_t)b.c * sizeof(double));
    }
    return y;
}

static struct act twice(struct ref_module *r, struct act x)
{
    struct act y = {2 * x.h, 2 * x.w, x.c, NULL};

    y.v = NEW(r, (size_t)(y.h * y.w) * (size_t)y.c);
    for (int i = 0; i < y.h; i++)
        for (int j = 0; j < y.w; j++)
            memcpy(y.v + (i * y.w + j) * y.c, x.v + (i / 2 * x.w + j / 2) * x.c,
                   (size_t)x.c * sizeof(double));
    return y;
}

/* diffusers' forward, driven by the shape of its configuration rather than by our list of blocks:
 * levels, ResBlocks per level and attention flags are read off the tensors that exist. */
struct unet {
    struct ref_module *r;
    const struct dt_block *block; /* the next one in the list, for widths only */
    const double *time, *states;
};

static const struct dt_block *next(struct unet *u, enum dt_block_kind k)
{
    while (u->block->kind != k)
        u->block++;
    return u->block++;
}

static struct act pair(struct unet *u, const char *where, int i, struct act x)
{
    char p[96];

    snprintf(p, sizeof(p), "%sresnets.%d.", where, i);
    x = res_block(u->r, next(u, DT_BLOCK_RESNET), p, x, u->time);
    if (!ref_get(u->r, "%sattentions.%d.norm.weight", where, i))
        return x;
    snprintf(p, sizeof(p), "%sattentions.%d.", where, i);
    return spatial(u->r, next(u, DT_BLOCK_SPATIAL_TRANSFORMER), p, x, u->states);
}

static struct act unet(struct unet *u, struct act x, int out_channels)
{
    const struct dt_block *last = &u->r->m->blocks[u->r->m->n_blocks - 1];
    struct act skip[64];
    char where[64], p[96];
    int n = 0, c0 = u->block->c_out;

    x = conv(u->r, "", "conv_in", x, c0, 3, 1);
    skip[n++] = x;
    for (int l = 0; snprintf(where, sizeof(where), "down_blocks.%d.", l),
             ref_get(u->r, "%sresnets.0.conv1.weight", where);
         l++) {
        for (int i = 0; ref_get(u->r, "%sresnets.%d.conv1.weight", where, i); i++)
            skip[n++] = x = pair(u, where, i, x);
        if (ref_get(u->r, "%sdownsamplers.0.conv.weight", where))
            skip[n++] = x = conv(u->r, where, "downsamplers.0.conv", x, x.c, 3, 2);
    }
    x = pair(u, "mid_block.", 0, x);
    snprintf(p, sizeof(p), "mid_block.resnets.1.");
    x = res_block(u->r, next(u, DT_BLOCK_RESNET), p, x, u->time);
    for (int l = 0; snprintf(where, sizeof(where), "up_blocks.%d.", l),
             ref_get(u->r, "%sresnets.0.conv1.weight", where);
         l++) {
        for (int i = 0; ref_get(u->r, "%sresnets.%d.conv1.weight", where, i); i++)
            x = pair(u, where, i, join(u->r, x, skip[--n]));
        if (ref_get(u->r, "%supsamplers.0.conv.weight", where))
            x = conv(u->r, where, "upsamplers.0.conv", twice(u->r, x), x.c, 3, 1);
    }
    x = group_norm(u->r, last, "", "conv_norm_out", x, u->r->norm_eps, true);
    return conv(u->r, "", "conv_out", x, out_channels, 3, 1);
}

static double *time_embedding(struct ref_module *r, const struct dt_block *b, double t)
{
    double *sin_cos = NEW(r, b->hidden);
    int half = b->hidden / 2;

    for (int i = 0; i < half; i++) {
        double a = t * exp(-log(10000.0) * i / (half - r->m->arith.freq_shift));
        bool sine_first = r->m->arith.sine_first;

        sin_cos[i] = sine_first ? sin(a) : cos(a);
        sin_cos[half + i] = sine_first ? cos(a) : sin(a);
    }
    return ref_named(
        r, "time_embedding.", "linear_2", 1, b->time_dim, b->time_dim,
        ref_map(r, b->time_dim,
                ref_named(r, "time_embedding.", "linear_1", 1, b->hidden, b->time_dim, sin_cos),
                ref_silu));
}

double ref_unet(struct ref_module *r, const struct ref_unet_in *in, double *pred)
{
    const struct dt_module *m = r->m;
    const struct dt_block *proj = m->blocks[0].kind == DT_BLOCK_PROJECTOR ? &m->blocks[0] : NULL;
    const struct dt_block *time = proj ? &m->blocks[1] : &m->blocks[0], *first = time + 1;
    int ctx = 0, width = 0, at = 0, out = m->blocks[m->n_blocks - 1].c_out;
    double loss = 0;

    for (int i = 0; i < m->n_blocks; i++)
        if (m->blocks[i].kind == DT_BLOCK_SPATIAL_TRANSFORMER) {
            ctx = m->blocks[i].context_len;
            width = proj ? proj->in_dim : m->blocks[i].context_dim;
        }
    for (int i = 0; i < in->n; i++) {
        int h = in->hw[i][0], w = in->hw[i][1], n = h * w * first->c_in;
        struct unet u = {r, first, time_embedding(r, time, in->t[i]), in->states + i * ctx * width};
        struct act x = {h, w, first->c_in, NEW(r, n)};
        double sse = 0;

        if (proj)
            u.states = ref_project(r, proj, "context_projector.", ctx, u.states);
        for (int k = 0; k < n; k++)
            x.v[k] = in->alpha[i] * in->x0[at + k] + in->sigma[i] * in->noise[at + k];
        x = unet(&u, x, out);
        for (int k = 0; k < n; k++) {
            double e = x.v[k] - in->noise[at + k];

            sse += e * e;
            if (pred)
                pred[at + k] = x.v[k];
        }
        loss += in->scale * sse / n;
        at += n;
    }
    dt_arena_free(&r->arena);
    return loss;
}
