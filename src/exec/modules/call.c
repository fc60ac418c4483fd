/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * How blocks call kernels: weights instead of pointers, gradients that know whether they hold
 * something yet, image runs of equal size. */
#include "exec/modules/impl.h"

#include <string.h>

void *dt_nn_area_take(struct dt_nn_area *a, size_t bytes, bool exact)
{
    char *p = a->base ? a->base + a->used : NULL;

    a->used += exact ? bytes : dt_nn_round64(bytes);
    return p;
}

void *dt_nn_keep(struct dt_nn_call *c, size_t bytes, bool cheap)
{
    enum dt_nn_lay_mode m = c->n->mode;

    if (m == DT_LAY_NONE || (m == DT_LAY_SELECTIVE && !cheap))
        return dt_nn_area_take(&c->saved, bytes, true);
    return dt_nn_area_take(&c->work, bytes, false);
}

void *dt_nn_grad(struct dt_nn_call *c, size_t bytes, bool later)
{
    return dt_nn_area_take(later && c->s->split ? &c->stash : &c->work, bytes, false);
}

struct dt_nn_weight *dt_nn_weight_of(const struct dt_nn_call *c, int role)
{
    int i = c->n->weight[role];

    return i < 0 ? NULL : &c->s->weights[i];
}

float *dt_nn_master_of(const struct dt_nn_call *c, int role)
{
    const struct dt_nn_weight *s = dt_nn_weight_of(c, role);

    return s ? dt_nn_weight_exact(c->s, s) : NULL;
}

float *dt_nn_grad_of(const struct dt_nn_call *c, int role)
{
    const struct dt_nn_weight *s = dt_nn_weight_of(c, role);

    return s && c->n->trained ? c->s->grads + s->at : NULL;
}

static bool has_gradient(const struct dt_nn_call *c, int role)
{
    const struct dt_nn_weight *s = dt_nn_weight_of(c, role);

    return s && s->written;
}

static void wrote(struct dt_nn_call *c, int role)
{
    struct dt_nn_weight *s = dt_nn_weight_of(c, role);

    if (s)
        s->written = true;
}

void dt_nn_bias_back(struct dt_nn_call *c, int64_t rows, const void *dy, int b)
{
    c->k->bias_bwd(c->q, c->dtype, rows, dt_nn_weight_of(c, b)->out, dy, dt_nn_grad_of(c, b),
                   has_gradient(c, b));
    wrote(c, b);
}

/* Of fewer heads or groups than members some members have none: a product without outputs is not
 * made, one without inputs is zero. */
static void nothing(struct dt_nn_call *c, int64_t n, const void *residual, void *y)
{
    if (residual)
        dt_nn_copy(c, y, residual, (size_t)n * c->es);
    else if (n > 0)
        c->s->dev->zero(c->q, y, (size_t)n * c->es);
}

void dt_nn_linear(struct dt_nn_call *c, int64_t rows, const void *x, int w, int b,
                  const void *residual, void *y)
{
    const struct dt_nn_weight *s = dt_nn_weight_of(c, w);

    if (s->n == 0) {
        nothing(c, rows * s->out, residual, y);
        return;
    }
    c->k->linear_fwd(c->q, rows, x, dt_nn_weight_of(c, w)->w, b < 0 ? NULL : dt_nn_master_of(c, b),
                     residual, y);
}

void dt_nn_linear_act(struct dt_nn_call *c, int64_t rows, const void *x, int w, int b,
                      const struct dt_nn_act *a, void *y)
{
    const struct dt_nn_weight *s = dt_nn_weight_of(c, w);

    if (s->n > 0)
        c->k->linear_act_fwd(c->q, rows, x, s->w, b < 0 ? NULL : dt_nn_master_of(c, b), a->act,
                             a->h, y);
}

/* Members that have a slice of the inputs each have the whole bias, whose gradient must be the same on all of them: with
 * the weight's it would come from products of other sizes, or, without inputs, from none. */
static bool bias_apart(const struct dt_nn_weight *s)
{
    return s->dealt_in || s->n == 0;
}

void dt_nn_linear_act_back(struct dt_nn_call *c, int what, int64_t rows, const void *x,
                           const void *dy, int w, int b, const struct dt_nn_act *a, void *dh)
{
    const struct dt_nn_weight *s = dt_nn_weight_of(c, w);

    if ((what & DT_BACKWARD_INPUT) && s->n > 0)
        c->k->linear_act_bwd(c->q, rows, dy, s->w, a->act, a->h, dh);
    dt_nn_linear_back(c, what, rows, x, dy, w, b, NULL, false);
}

void dt_nn_linear_back(struct dt_nn_call *c, int what, int64_t rows, const void *x, const void *dy,
                       int w, int b, void *dx, bool add)
{
    const struct dt_nn_weight *s = dt_nn_weight_of(c, w);

    if ((what & DT_BACKWARD_INPUT) && dx && s->n > 0)
        c->k->linear_bwd_input(c->q, rows, dy, s->w, dx, add);
    else if ((what & DT_BACKWARD_INPUT) && dx && !add)
        nothing(c, rows * s->in, NULL, dx);
    if ((what & DT_BACKWARD_WEIGHT) && c->n->trained) {
        float *db = b < 0 ? NULL : dt_nn_grad_of(c, b);

        if (s->n > 0)
            c->k->linear_bwd_weight(c->q, c->dtype, rows, s->out, s->in, x, dy, dt_nn_grad_of(c, w),
                                    bias_apart(s) ? NULL : db, s->written);
        if (db && s->out > 0 && bias_apart(s))
            c->k->bias_bwd(c->q, c->dtype, rows, s->out, dy, db, s->written);
        wrote(c, w);
        if (b >= 0)
            wrote(c, b);
    }
}

void dt_nn_norm(struct dt_nn_call *c, const struct dt_kernel_norm *n, bool layernorm, const void *x,
                int g, int b, void *y, float *mean, float *rstd)
{
    if (layernorm)
        c->k->layernorm_fwd(c->q, n, x, dt_nn_master_of(c, g), dt_nn_master_of(c, b), y, mean,
                            rstd);
    else
        c->k->rmsnorm_fwd(c->q, n, x, dt_nn_master_of(c, g), y, rstd);
}

void dt_nn_norm_back(struct dt_nn_call *c, int what, const struct dt_kernel_norm *n, bool layernorm,
                     const void *x, int g, int b, const float *mean, const float *rstd,
                     const void *dy, void *dx, bool add)
{
    bool weight = (what & DT_BACKWARD_WEIGHT) && c->n->trained, had = has_gradient(c, g);
    float *dg = weight ? dt_nn_grad_of(c, g) : NULL;

    if (!(what & DT_BACKWARD_INPUT))
        dx = NULL;
    if (!dx && !dg)
        return;
    if (layernorm)
        c->k->layernorm_bwd(c->q, n, x, dt_nn_master_of(c, g), mean, rstd, dy, dx, add, dg,
                            weight ? dt_nn_grad_of(c, b) : NULL, had);
    else
        c->k->rmsnorm_bwd(c->q, n, x, dt_nn_master_of(c, g), rstd, dy, dx, add, dg, had);
    if (weight) {
        wrote(c, g);
        if (layernorm)
            wrote(c, b);
    }
}

void dt_nn_copy(struct dt_nn_call *c, void *dst, const void *src, size_t bytes)
{
    if (dst != src && bytes > 0)
        c->s->dev->copy(c->q, dst, src, bytes, DT_COPY_ON_DEVICE);
}

char *dt_nn_drop_room(struct dt_nn_call *c, int64_t rows, int64_t width)
{
    return c->s->dropout > 0 && c->n->keep ? dt_nn_work_rows(c, rows, width) : NULL;
}

/* A mask belongs to the document, wherever it lies. */
void dt_nn_drop(struct dt_nn_call *c, int which, int64_t width, const void *x, void *y)
{
    const struct dt_batch *b = c->batch;
    struct dt_kernel_items documents = {b->n_seq, b->dev.cu, b->rows};
    int64_t rows = dt_nn_own_rows(c->s, b->rows);

    if (rows > 0)
        c->k->dropout(c->q, c->dtype, &documents, width, b->noise_seed ^ c->n->drop_key[which],
                      b->dev.stream, c->s->cp ? b->dev.begin : NULL, dt_nn_own_first(c->s, b->rows),
                      rows, c->s->dropout, x, y);
}

char *dt_flow_kept(struct dt_nn_call *c, int what, const char *gradient, int64_t elems)
{
    char *kept = dt_nn_grad_rows(c, elems, 1, true);

    if (!dt_nn_counting(c) && (what & DT_BACKWARD_INPUT))
        dt_nn_copy(c, kept, gradient, (size_t)elems * c->es);
    return kept;
}

/* ---- images ---- */

bool dt_nn_images_next(const struct dt_batch *b, int level, struct dt_nn_images *it)
{
    int64_t i = it->first + it->n;

    it->row += it->n * it->h * it->w;
    it->first = i;
    it->n = 0;
    if (i >= b->n_seq)
        return false;
    it->h = b->host.hw[i][0] >> level;
    it->w = b->host.hw[i][1] >> level;
    while (i + it->n < b->n_seq && b->host.hw[i + it->n][0] == b->host.hw[i][0] &&
           b->host.hw[i + it->n][1] == b->host.hw[i][1])
        it->n++;
    return true;
}

int64_t dt_nn_level_rows(const struct dt_batch *b, int level)
{
    return b->rows >> (2 * level);
}

int64_t dt_nn_level_longest(const struct dt_batch *b, int level)
{
    return b->max_len >> (2 * level);
}

struct dt_kernel_items dt_nn_items(const struct dt_batch *b, int level)
{
    return (struct dt_kernel_items){b->n_seq, b->dev.cu_level[level], dt_nn_level_rows(b, level)};
}

struct dt_kernel_images dt_nn_image_sizes(const struct dt_batch *b, int level)
{
    return (struct dt_kernel_images){dt_nn_items(b, level), &b->dev.hw[0][0], level};
}

static struct dt_kernel_groupnorm groupnorm_of(const struct dt_nn_call *c,
                                               const struct dt_nn_norm_at *a)
{
    return (struct dt_kernel_groupnorm){.dtype = c->dtype,
                                        .items = dt_nn_items(c->batch, a->level),
                                        .channels = a->channels,
                                        .groups = a->groups,
                                        .eps = a->eps,
                                        .silu = a->silu};
}

void dt_nn_groupnorm(struct dt_nn_call *c, const struct dt_nn_norm_at *a, const void *x, int g,
                     int b, void *y, float *mean, float *rstd)
{
    struct dt_kernel_groupnorm n = groupnorm_of(c, a);

    if (a->groups > 0)
        c->k->groupnorm_fwd(c->q, &n, x, dt_nn_master_of(c, g), dt_nn_master_of(c, b), y, mean,
                            rstd);
}

void dt_nn_groupnorm_back(struct dt_nn_call *c, int what, const struct dt_nn_norm_at *a,
                          const void *x, int g, int b, const float *mean, const float *rstd,
                          const void *dy, void *dx, bool add)
{
    struct dt_kernel_groupnorm n = groupnorm_of(c, a);
    bool weight = (what & DT_BACKWARD_WEIGHT) && c->n->trained;

    if (!(what & DT_BACKWARD_INPUT))
        dx = NULL;
    if ((!dx && !weight) || a->groups == 0)
        return;
    c->k->groupnorm_bwd(c->q, &n, x, dt_nn_master_of(c, g), dt_nn_master_of(c, b), mean, rstd, dy,
                        dx, add, weight ? dt_nn_grad_of(c, g) : NULL,
                        weight ? dt_nn_grad_of(c, b) : NULL, has_gradient(c, g));
    if (weight) {
        wrote(c, g);
        wrote(c, b);
    }
}

static struct dt_kernel_conv conv_of(const struct dt_nn_call *c, const struct dt_nn_conv_at *a,
                                     const struct dt_nn_images *im)
{
    int up = a->doubled ? 2 : 1;

    return (struct dt_kernel_conv){.dtype = c->dtype,
                                   .n = im->n,
                                   .h = im->h * up,
                                   .w = im->w * up,
                                   .c_in = a->c_in,
                                   .c_out = a->c_out,
                                   .kernel = a->kernel,
                                   .stride = a->stride,
                                   .pad = a->kernel / 2};
}

/* Rows of the input and of the output before this run. */
static int64_t in_row(const struct dt_nn_conv_at *a, const struct dt_nn_images *im)
{
    return a->doubled ? im->row * 4 : im->row;
}

static int64_t out_row(const struct dt_nn_conv_at *a, const struct dt_nn_images *im)
{
    return a->doubled ? im->row * 4 : a->stride == 2 ? im->row / 4 : im->row;
}

static int64_t out_rows(const struct dt_nn_conv_at *a, const struct dt_nn_images *im)
{
    int64_t rows = im->n * im->h * im->w;

    return a->doubled ? rows * 4 : a->stride == 2 ? rows / 4 : rows;
}

void dt_nn_conv(struct dt_nn_call *c, const struct dt_nn_conv_at *a, const void *x, int w, int b,
                const void *residual, void *y)
{
    struct dt_nn_images im = {0};

    while (dt_nn_images_next(c->batch, a->level, &im)) {
        struct dt_kernel_conv v = conv_of(c, a, &im);
        int64_t in = in_row(a, &im) * a->c_in, out = out_row(a, &im) * a->c_out;
        const void *add = residual ? dt_nn_off(residual, out, c->es) : NULL;

        if (a->c_in > 0 && a->c_out > 0)
            c->k->conv_fwd(c->q, &v, dt_nn_off(x, in, c->es), dt_nn_weight_of(c, w)->w,
                           b < 0 ? NULL : dt_nn_master_of(c, b), add, dt_nn_off(y, out, c->es));
        else
            nothing(c, out_rows(a, &im) * a->c_out, add, dt_nn_off(y, out, c->es));
    }
}

void dt_nn_conv_back(struct dt_nn_call *c, int what, const struct dt_nn_conv_at *a, const void *x,
                     const void *dy, int w, int b, void *dx, bool add)
{
    bool weight = (what & DT_BACKWARD_WEIGHT) && c->n->trained;
    struct dt_nn_images im = {0};

    while (dt_nn_images_next(c->batch, a->level, &im)) {
        struct dt_kernel_conv v = conv_of(c, a, &im);
        int64_t in = in_row(a, &im) * a->c_in, out = out_row(a, &im) * a->c_out;
        bool some = a->c_in > 0 && a->c_out > 0;

        if ((what & DT_BACKWARD_INPUT) && dx && some)
            c->k->conv_bwd_input(c->q, &v, dt_nn_off(dy, out, c->es), dt_nn_weight_of(c, w)->w,
                                 dt_nn_off(dx, in, c->es), add);
        else if ((what & DT_BACKWARD_INPUT) && dx && !add)
            nothing(c, v.n * v.h * v.w * a->c_in, NULL, dt_nn_off(dx, in, c->es));
        if (weight) {
            bool apart = bias_apart(dt_nn_weight_of(c, w));

            if (some)
                c->k->conv_bwd_weight(c->q, &v, dt_nn_off(x, in, c->es), dt_nn_off(dy, out, c->es),
                                      dt_nn_grad_of(c, w), apart ? NULL : dt_nn_grad_of(c, b),
                                      has_gradient(c, w));
            if (apart && a->c_out > 0)
                c->k->bias_bwd(c->q, c->dtype, out_rows(a, &im), a->c_out,
                               dt_nn_off(dy, out, c->es), dt_nn_grad_of(c, b), has_gradient(c, w));
            wrote(c, w);
            wrote(c, b);
        }
    }
}
