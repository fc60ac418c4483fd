/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Weights in oneDNN's packed layouts: one copy per layout that some primitive asked for, packed
 * from the fp32 master when it is older than the master. */
#include "kernels/cpu/dnnl_impl.h"

#include "core/mem.h"

#include <pthread.h>
#include <string.h>

enum { VARIANTS = 12 };

struct variant {
    dnnl_memory_desc_t md;
    enum dt_view view;
    dnnl_memory_t mem, from;
    dnnl_primitive_t reorder;
    void *data;
    uint64_t version; /* of the master that it holds; 0 = none */
};

struct dt_weight {
    struct dt_cpu *cpu;
    struct dt_weight_shape shape;
    const float *master;
    uint64_t version;
    pthread_mutex_t lock; /* queues of two threads may share a frozen weight */
    struct variant variants[VARIANTS];
    int n_variants;
};

static void view_desc(const struct dt_weight *w, enum dt_view view, dnnl_memory_desc_t *md)
{
    const struct dt_weight_shape *s = &w->shape;
    dnnl_dims_t dims = {s->in, s->out}, strides = {1, s->in};

    if (view == DT_VIEW_FORWARD) {
        dnnl_memory_desc_init_by_strides(md, 2, dims, dnnl_f32, strides);
    } else if (view == DT_VIEW_BACKWARD) {
        dnnl_dims_t bdims = {s->out, s->in};

        dnnl_memory_desc_init_by_tag(md, 2, bdims, dnnl_f32, dnnl_ab);
    } else {
        dnnl_dims_t fdims = {s->out, s->in, s->kernel, s->kernel};

        dnnl_memory_desc_init_by_tag(md, 4, fdims, dnnl_f32, dnnl_oihw);
    }
}

static bool variant_build(struct dt_queue *q, struct dt_weight *w, struct variant *v)
{
    dnnl_engine_t engine = dt_dnnl_engine(q);
    dnnl_primitive_desc_t pd = NULL;
    dnnl_memory_desc_t from;
    dnnl_status_t st;

    view_desc(w, v->view, &from);
    v->data = dt_cpu_alloc(w->cpu, dnnl_memory_desc_get_size(&v->md));
    if (!v->data) {
        dt_queue_fail(q, DT_ERR_NOMEM, "out of memory: %zu bytes for a packed weight",
                      dnnl_memory_desc_get_size(&v->md));
        return false;
    }
    /* oneDNN fills the padding of blocked layouts with zeros when a pointer is set: give it last */
    if ((st = dnnl_memory_create(&v->mem, &v->md, engine, v->data)) != dnnl_success ||
        (st = dnnl_memory_create(&v->from, &from, engine, (void *)(uintptr_t)w->master)) !=
            dnnl_success ||
        (st = dnnl_reorder_primitive_desc_create(&pd, &from, engine, &v->md, engine, NULL)) !=
            dnnl_success)
        return dt_dnnl_fail(q, st, "packing a weight");
    st = dnnl_primitive_create(&v->reorder, pd);
    dnnl_primitive_desc_destroy(pd);
    return st == dnnl_success || dt_dnnl_fail(q, st, "packing a weight");
}

static void variant_free(struct dt_weight *w, struct variant *v)
{
    if (v->mem)
        dnnl_memory_destroy(v->mem);
    if (v->from)
        dnnl_memory_destroy(v->from);
    if (v->reorder)
        dnnl_primitive_destroy(v->reorder);
    dt_cpu_free(w->cpu, v->data);
    memset(v, 0, sizeof(*v));
}

static dnnl_memory_t packed_locked(struct dt_queue *q, struct dt_weight *w, enum dt_view view,
                                   const dnnl_memory_desc_t *want)
{
    struct variant *v = NULL;
    dnnl_exec_arg_t args[2];
    dnnl_status_t st;

    for (int i = 0; i < w->n_variants && !v; i++)
        if (w->variants[i].view == view && dnnl_memory_desc_equal(&w->variants[i].md, want))
            v = &w->variants[i];
    if (!v) {
        if (w->n_variants == VARIANTS) /* more layouts than kinds of use: forget the oldest */
            variant_free(w, v = &w->variants[0]);
        else
            v = &w->variants[w->n_variants];
        v->md = *want;
        v->view = view;
        if (!variant_build(q, w, v)) {
            variant_free(w, v);
            return NULL;
        }
        if (v == &w->variants[w->n_variants])
            w->n_variants++;
    }
    if (v->version == w->version)
        return v->mem;
    args[0] = (dnnl_exec_arg_t){DNNL_ARG_FROM, v->from};
    args[1] = (dnnl_exec_arg_t){DNNL_ARG_TO, v->mem};
    st = dnnl_primitive_execute(v->reorder, dt_dnnl_stream(q), 2, args);
    if (st == dnnl_success)
        st = dnnl_stream_wait(dt_dnnl_stream(q));
    if (st != dnnl_success)
        return dt_dnnl_fail(q, st, "packing a weight"), NULL;
    v->version = w->version;
    return v->mem;
}

dnnl_memory_t dt_dnnl_packed(struct dt_queue *q, const struct dt_weight *cw, enum dt_view view,
                             const dnnl_memory_desc_t *want)
{
    struct dt_weight *w = (struct dt_weight *)(uintptr_t)cw; /* packing is a cache */
    dnnl_memory_t m;

    dt_dnnl_threads(q->threads); /* packing divides its output */
    pthread_mutex_lock(&w->lock);
    m = packed_locked(q, w, view, want);
    pthread_mutex_unlock(&w->lock);
    return m;
}

enum dt_status dt_cpu_weight_new(const struct dt_device *dev, const struct dt_weight_shape *shape,
                                 const float *master, struct dt_error *err, struct dt_weight **out)
{
    struct dt_weight *w;

    assert(shape->out > 0 && shape->in > 0 && shape->kernel >= 0 && master);
    if (shape->dtype == DT_BF16 && !dev->info.bf16)
        return dt_error_set(err, DT_ERR_INPUT,
                            "this CPU has no bf16 products (AVX-512 is needed): use fp32");
    w = dt_calloc(1, sizeof(*w));
    if (!w)
        return dt_error_nomem(err, "a weight");
    w->cpu = dev->impl;
    w->shape = *shape;
    w->master = master;
    w->version = 1;
    pthread_mutex_init(&w->lock, NULL);
    *out = w;
    return DT_OK;
}

void dt_cpu_weight_free(struct dt_weight *w)
{
    if (!w)
        return;
    for (int i = 0; i < VARIANTS; i++)
        variant_free(w, &w->variants[i]);
    pthread_mutex_destroy(&w->lock);
    dt_free(w);
}

void dt_cpu_weight_changed(struct dt_queue *q, struct dt_weight *w)
{
    (void)q;
    pthread_mutex_lock(&w->lock);
    w->version++;
    pthread_mutex_unlock(&w->lock);
}

const struct dt_weight_shape *dt_cpu_weight_shape(const struct dt_weight *w)
{
    return &w->shape;
}
