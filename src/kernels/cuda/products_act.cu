/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * A product and the activation behind it.
 *
 * cuBLASLt's epilogues have GELU in its tanh form, and its gradient.  Whether a product with such an epilogue is faster
 * than a product and a pass over memory depends on shape, card and version, so it is taken only where it has been timed
 * and noted as such (search.cu); everywhere else there are two kernels. */
#include "kernels/cuda/products.h"

struct
    pass { /* forward: product into h, activation into y; backward: into dh, which h is read for */
    int64_t m;
    const struct dt_device_weight *w;
    const void *x;
    const float *bias;
    enum dt_kernel_act act;
    void *h, *y;
};

static void forward(struct dt_device_queue *q, const struct pass *p)
{
    const struct dt_device_weight_shape *s = dt_cuda_weight_shape(p->w);

    q->dev->k->linear_fwd(q, p->m, p->x, p->w, p->bias, NULL, p->h);
    q->dev->k->act_fwd(q, p->act, s->dtype, p->m * s->out, p->h, p->y);
}

static void backward(struct dt_device_queue *q, const struct pass *p)
{
    const struct dt_device_weight_shape *s = dt_cuda_weight_shape(p->w);

    q->dev->k->linear_bwd_input(q, p->m, p->x, p->w, p->y, false);
    q->dev->k->act_bwd(q, p->act, s->dtype, p->m * s->in, p->h, p->y, p->y);
}

/* ---- the time of two kernels ---- */

struct apart {
    void (*run)(struct dt_device_queue *q, const struct pass *p);
    const struct pass *p;
    struct pass own; /* what they write is their own */
};

static bool run_apart(struct dt_device_queue *q, void *arg)
{
    const struct apart *a = (const struct apart *)arg;

    a->run(q, &a->own);
    return q->status == DT_OK;
}

static double apart_ns(struct dt_device_queue *q, void *arg)
{
    struct apart *a = (struct apart *)arg;
    const struct dt_device *dev = q->dev;
    const struct dt_device_weight_shape *s = dt_cuda_weight_shape(a->p->w);
    size_t bytes =
        (size_t)a->p->m * (size_t)(a->run == forward ? s->out : s->in) * dt_dtype_bytes(s->dtype);
    struct dt_device_memory_owner *o = dev->memory_for(dev, NULL);
    double ns = -1;

    a->own = *a->p;
    if (dev->alloc(dev, bytes, NULL, &a->own.y) == DT_OK) {
        if (a->run == backward) {
            ns = dt_cuda_time(q, run_apart, a);
        } else if (dev->alloc(dev, bytes, NULL, &a->own.h) == DT_OK) {
            ns = dt_cuda_time(q, run_apart, a);
            dev->free(dev, a->own.h);
        }
        dev->free(dev, a->own.y);
    }
    dev->memory_for(dev, o);
    return ns;
}

/* ---- with the epilogue, where that is faster ---- */

/* The library has one form of GELU, and keeps or reads h in rows of a multiple of 8 elements from addresses of a
 * multiple of 16 bytes (cublasLt.h). */
static bool may_fuse(const struct dt_device_queue *q, const struct pass *p, int64_t width)
{
    return q->dev->notes && p->act == DT_ACT_GELU_TANH && p->m > 0 && width > 0 && width % 8 == 0 &&
           dt_cuda_aligned(p->h);
}

static bool forward_fused(struct dt_device_queue *q, const struct pass *p)
{
    const struct dt_device_weight_shape *w = dt_cuda_weight_shape(p->w);
    struct dt_cuda_operands o = {p->x, dt_cuda_weight(q, p->w), p->bias, NULL, p->y, p->h};
    struct apart a = {forward, p, {}};
    struct dt_cuda_shape s;

    if (!may_fuse(q, p, w->out) || w->in == 0)
        return false;
    if (p->bias && w->dtype == DT_BF16) { /* what all versions take is of the result's type */
        void *own = dt_cuda_scratch(q, DT_SCRATCH_BIAS, (size_t)w->out * dt_dtype_bytes(DT_BF16));

        if (!own)
            return false;
        q->dev->k->cast(q, w->out, DT_F32, p->bias, DT_BF16, own);
        o.bias = own;
    } else if (!dt_cuda_aligned(p->bias)) {
        return false;
    }
    s = dt_cuda_shape_of(p->m, w->out, w->in, {p->x, w->dtype, w->in, false},
                         {o.b, w->dtype, w->in, true}, w->dtype, w->out, o);
    s.bias_type = w->dtype;
    s.epilogue = p->bias ? DT_CUDA_GELU_BIAS : DT_CUDA_GELU;
    return dt_cuda_multiply_if_faster(q, &s, &o, apart_ns, &a);
}

static bool backward_fused(struct dt_device_queue *q, const struct pass *p)
{
    const struct dt_device_weight_shape *w = dt_cuda_weight_shape(p->w);
    struct dt_cuda_operands o = {p->x, dt_cuda_weight(q, p->w), NULL, NULL, p->y, p->h};
    struct apart a = {backward, p, {}};
    struct dt_cuda_shape s;

    if (!may_fuse(q, p, w->in) || w->out == 0)
        return false;
    s = dt_cuda_shape_of(p->m, w->in, w->out, {p->x, w->dtype, w->out, false},
                         {o.b, w->dtype, w->in, false}, w->dtype, w->in, o);
    s.epilogue = DT_CUDA_GELU_GRAD;
    return dt_cuda_multiply_if_faster(q, &s, &o, apart_ns, &a);
}

/* ---- kernels ---- */

static void linear_act_fwd(struct dt_device_queue *q, int64_t m, const void *x,
                           const struct dt_device_weight *w, const float *bias,
                           enum dt_kernel_act act, void *h, void *y)
{
    const struct pass p = {m, w, x, bias, act, h, y};

    if (!forward_fused(q, &p))
        forward(q, &p);
}

static void linear_act_bwd(struct dt_device_queue *q, int64_t m, const void *dy,
                           const struct dt_device_weight *w, enum dt_kernel_act act, const void *h,
                           void *dh)
{
    const struct pass p = {m, w, dy, NULL, act, (void *)(uintptr_t)h, dh};

    if (!backward_fused(q, &p))
        backward(q, &p);
}

void dt_cuda_linear_act(struct dt_kernels *k)
{
    k->linear_act_fwd = linear_act_fwd;
    k->linear_act_bwd = linear_act_bwd;
}
