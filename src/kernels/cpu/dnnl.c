/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Everything that is oneDNN's (2.6, C API): primitives of products and convolutions, and weights in
 * its packed layouts.  No other file includes its header.
 *
 * A queue keeps its primitives by shape, with memory objects per thread: a call looks them up, sets
 * the pointers and runs. */
#include "kernels/cpu/dnnl.h"

#include "base/hash.h"
#include "base/mem.h"
#include "kernels/cpu/pack.h"

#include <oneapi/dnnl/dnnl.h>
#include <pthread.h>
#include <string.h>
#ifdef _OPENMP
#include <omp.h>
#endif

enum { CACHE_ENTRIES = 1 << 13, CACHE_MAX = 1 << 12, KEY_WORDS = 16 };
enum { KEY_PRODUCT = 1, KEY_CONV_FWD, KEY_CONV_BWD };

struct dt_cpu_primitive { /* one primitive */
    int64_t key[KEY_WORDS];
    dnnl_primitive_t prim;
    dnnl_memory_desc_t weights; /* what it wants of its weight */
    dnnl_memory_desc_t md[DT_ARG_N];
    int arg[DT_ARG_N];    /* DNNL_ARG_…; 0 = not an argument */
    dnnl_memory_t *mem;   /* threads x DT_ARG_N */
    size_t scratch_bytes; /* of one thread */
    bool only_outputs;    /* its own threads divide no sum */
};

struct dt_cpu_products {
    struct dt_cpu_primitive *entry[CACHE_ENTRIES]; /* open addressing */
    int used;
    int threads; /* of the queue */
    dnnl_engine_t engine;
    dnnl_stream_t stream;
};

static bool fail(struct dt_device_queue *q, dnnl_status_t st, const char *what)
{
    dt_cpu_queue_fail(q, st == dnnl_out_of_memory ? DT_ERR_NOMEM : DT_ERR_INTERNAL,
                      "oneDNN: %s failed (status %d)", what, (int)st);
    return false;
}

/* oneDNN takes the calling thread's setting, when a primitive is made and when it runs. */
void dt_dnnl_threads(int n)
{
#ifdef _OPENMP
    if (omp_get_max_threads() != n)
        omp_set_num_threads(n);
#else
    (void)n;
#endif
}

static dnnl_data_type_t type_of(int t)
{
    return t == DT_BF16 ? dnnl_bf16 : dnnl_f32;
}

/* ---- opening ---- */

static bool isa_at_least(dnnl_cpu_isa_t have, dnnl_cpu_isa_t want)
{
    return ((unsigned)have & (unsigned)want) == (unsigned)want;
}

enum dt_status dt_cpu_products_open(struct dt_cpu *cpu, const struct dt_device_options *opt,
                                    struct dt_error *err)
{
    dnnl_cpu_isa_t isa = dnnl_get_effective_cpu_isa();
    struct dt_device_info *info = &cpu->dev.info;
    dnnl_engine_t engine;

    if (dnnl_engine_create(&engine, dnnl_cpu, 0) != dnnl_success)
        return dt_error_set(err, DT_ERR_INTERNAL, "oneDNN has no CPU engine here");
    cpu->engine = engine;
    info->bf16 = isa_at_least(isa, dnnl_cpu_isa_avx512_core);
    info->fast = DT_F32;
    /* AVX-512 without bf16 instructions emulates them at a third of fp32's speed. */
    if (isa_at_least(isa, dnnl_cpu_isa_avx512_core_bf16) && !(opt && opt->no_bf16)) {
        info->fast = DT_BF16;
        strcpy(info->isa,
               isa_at_least(isa, dnnl_cpu_isa_avx512_core_amx) ? "AMX-BF16" : "AVX512-BF16");
    }
    return DT_OK;
}

void dt_cpu_products_close(struct dt_cpu *cpu)
{
    dnnl_engine_destroy(cpu->engine);
}

enum dt_status dt_cpu_products_new(struct dt_device_queue *q, struct dt_error *err)
{
    struct dt_cpu_products *p = dt_calloc(1, sizeof(*p));

    if (!p)
        return dt_error_nomem(err, "a queue");
    p->engine = ((struct dt_cpu *)q->dev->impl)->engine;
    if (dnnl_stream_create(&p->stream, p->engine, dnnl_stream_default_flags) != dnnl_success) {
        dt_free(p);
        return dt_error_set(err, DT_ERR_INTERNAL, "oneDNN: no stream");
    }
    p->threads = q->threads;
    q->products = p;
    return DT_OK;
}

static void entry_free(struct dt_cpu_primitive *e, int threads)
{
    if (!e)
        return;
    for (int i = 0; e->mem && i < threads * DT_ARG_N; i++)
        if (e->mem[i])
            dnnl_memory_destroy(e->mem[i]);
    if (e->prim)
        dnnl_primitive_destroy(e->prim);
    dt_free(e->mem);
    dt_free(e);
}

static void cache_clear(struct dt_cpu_products *p)
{
    for (int i = 0; i < CACHE_ENTRIES; i++) {
        entry_free(p->entry[i], p->threads);
        p->entry[i] = NULL;
    }
    p->used = 0;
}

void dt_dnnl_room(struct dt_device_queue *q, int primitives)
{
    if (q->products->used > CACHE_MAX - primitives)
        cache_clear(q->products);
}

int dt_cpu_primitives(const struct dt_device_queue *q)
{
    return q->products->used;
}

void dt_cpu_products_free(struct dt_device_queue *q)
{
    if (!q->products)
        return;
    cache_clear(q->products);
    dnnl_stream_destroy(q->products->stream);
    dt_free(q->products);
}

/* ---- the cache ---- */

/* The entry that holds the key, or the free one where it belongs. */
static struct dt_cpu_primitive **cache_entry(struct dt_cpu_products *p,
                                             const int64_t key[KEY_WORDS])
{
    uint64_t h = DT_HASH_START;

    for (int i = 0; i < KEY_WORDS; i++)
        h = dt_hash_word(h, (uint64_t)key[i]);
    for (uint64_t i = h % CACHE_ENTRIES;; i = (i + 1) % CACHE_ENTRIES)
        if (!p->entry[i] || memcmp(p->entry[i]->key, key, sizeof(p->entry[i]->key)) == 0)
            return &p->entry[i];
}

static void entry_arg(struct dt_cpu_primitive *e, int k, int arg, const dnnl_memory_desc_t *md)
{
    e->arg[k] = arg;
    e->md[k] = *md;
}

/* From an operation descriptor to a ready primitive.  `sum`: c is added to. */
static bool entry_build(struct dt_device_queue *q, struct dt_cpu_primitive *e,
                        const_dnnl_op_desc_t desc, bool sum)
{
    dnnl_primitive_attr_t attr = NULL;
    dnnl_primitive_desc_t pd = NULL;
    const dnnl_memory_desc_t *md;
    const char *impl;
    dnnl_post_ops_t post = NULL;
    dnnl_status_t st;
    bool ok = false;

    st = dnnl_primitive_attr_create(&attr);
    if (st != dnnl_success)
        return fail(q, st, "attributes");
    dnnl_primitive_attr_set_scratchpad_mode(attr, dnnl_scratchpad_mode_user);
    if (sum && dnnl_post_ops_create(&post) == dnnl_success) {
        dnnl_post_ops_append_sum(post, 1.0f);
        dnnl_primitive_attr_set_post_ops(attr, post);
    }
    st = dnnl_primitive_desc_create(&pd, desc, attr, q->products->engine, NULL);
    if (st != dnnl_success) {
        fail(q, st, "no implementation for this product");
        goto out_attr;
    }
    st = dnnl_primitive_create(&e->prim, pd);
    if (st != dnnl_success) {
        fail(q, st, "creating a primitive");
        goto out_desc;
    }
    md = dnnl_primitive_desc_query_md(pd, dnnl_query_scratchpad_md, 0);
    e->scratch_bytes = md ? dnnl_memory_desc_get_size(md) : 0;
    if (e->scratch_bytes > 0)
        entry_arg(e, DT_ARG_SCRATCH, DNNL_ARG_SCRATCHPAD, md);
    ok = dnnl_primitive_desc_query(pd, dnnl_query_impl_info_str, 0, &impl) == dnnl_success;
    e->only_outputs = ok && strncmp(impl, "brg", 3) == 0;
    md = dnnl_primitive_desc_query_md(pd, dnnl_query_weights_md, 0);
    e->weights = *md;
out_desc:
    dnnl_primitive_desc_destroy(pd);
out_attr:
    if (post)
        dnnl_post_ops_destroy(post);
    dnnl_primitive_attr_destroy(attr);
    return ok;
}

typedef bool build_fn(struct dt_device_queue *q, struct dt_cpu_primitive *e, const void *arg);

static bool entry_memory(struct dt_device_queue *q, struct dt_cpu_primitive *e)
{
    int threads = q->products->threads;
    dnnl_status_t st;

    e->mem = dt_calloc((size_t)threads * DT_ARG_N, sizeof(*e->mem));
    if (!e->mem)
        return fail(q, dnnl_out_of_memory, "a memory object");
    for (int i = 0; i < threads * DT_ARG_N; i++) {
        if (!e->arg[i % DT_ARG_N])
            continue;
        st = dnnl_memory_create(&e->mem[i], &e->md[i % DT_ARG_N], q->products->engine,
                                DNNL_MEMORY_NONE);
        if (st != dnnl_success)
            return fail(q, st, "a memory object");
    }
    return true;
}

/* The primitive of the key, made if new; `threads` is part of the key: what it may run on. */
static struct dt_cpu_primitive *entry_get(struct dt_device_queue *q, int64_t key[KEY_WORDS],
                                          int threads, build_fn *build, const void *arg)
{
    struct dt_cpu_primitive **at, *e;

    key[KEY_WORDS - 1] = threads;
    at = cache_entry(q->products, key);
    if (*at)
        return *at;
    e = dt_calloc(1, sizeof(*e));
    if (!e) {
        dt_cpu_queue_fail(q, DT_ERR_NOMEM, "out of memory for a primitive");
        return NULL;
    }
    memcpy(e->key, key, sizeof(e->key));
    dt_dnnl_threads(threads);
    if (!build(q, e, arg) || !entry_memory(q, e)) {
        entry_free(e, q->products->threads);
        return NULL;
    }
    *at = e;
    q->products->used++;
    return e;
}

int dt_dnnl_run(struct dt_device_queue *q, const struct dt_cpu_primitive *e, int thread,
                void *const ptr[DT_ARG_N], struct dnnl_memory *packed, void *scratch)
{
    dnnl_memory_t *mem = e->mem + (ptrdiff_t)thread * DT_ARG_N;
    dnnl_exec_arg_t args[DT_ARG_N];
    dnnl_status_t st;
    int n = 0;

    for (int i = 0; i < DT_ARG_N; i++) {
        if (i == DT_ARG_B && packed) {
            args[n++] = (dnnl_exec_arg_t){DNNL_ARG_WEIGHTS, packed};
            continue;
        }
        if (!mem[i])
            continue;
        st = dnnl_memory_set_data_handle(mem[i], i == DT_ARG_SCRATCH ? scratch : ptr[i]);
        if (st != dnnl_success)
            return st;
        args[n++] = (dnnl_exec_arg_t){e->arg[i], mem[i]};
    }
    st = dnnl_primitive_execute(e->prim, q->products->stream, n, args);
    return st == dnnl_success ? dnnl_stream_wait(q->products->stream) : st;
}

bool dt_dnnl_fail(struct dt_device_queue *q, int status, const char *what)
{
    return fail(q, (dnnl_status_t)status, what);
}

size_t dt_dnnl_scratch_bytes(const struct dt_cpu_primitive *e)
{
    return e->scratch_bytes;
}

bool dt_dnnl_only_outputs(const struct dt_cpu_primitive *e)
{
    return e->only_outputs;
}

/* ---- matmul ---- */

struct product_build {
    const struct dt_cpu_product_args *p;
    bool weight;
};

static bool product_build(struct dt_device_queue *q, struct dt_cpu_primitive *e, const void *arg)
{
    const struct product_build *pb = arg;
    const struct dt_cpu_product_args *p = pb->p;
    dnnl_dims_t da = {p->m, p->k}, db = {p->k, p->n}, dc = {p->m, p->n}, dbias = {1, p->n};
    dnnl_dims_t sa = {p->ra, p->ca}, sb = {p->rb, p->cb}, sc = {p->rc, 1};
    dnnl_memory_desc_t a, b, c, bias;
    dnnl_matmul_desc_t desc;
    dnnl_status_t st;

    dnnl_memory_desc_init_by_strides(&a, 2, da, type_of(p->type), sa);
    if (pb->weight)
        dnnl_memory_desc_init_by_tag(&b, 2, db, type_of(p->type), dnnl_format_tag_any);
    else
        dnnl_memory_desc_init_by_strides(&b, 2, db, type_of(p->type), sb);
    dnnl_memory_desc_init_by_strides(&c, 2, dc, type_of(p->c_type), sc);
    dnnl_memory_desc_init_by_tag(&bias, 2, dbias, dnnl_f32, dnnl_ab);
    st = dnnl_matmul_desc_init(&desc, &a, &b, p->bias ? &bias : NULL, &c);
    if (st != dnnl_success)
        return fail(q, st, "describing a matmul");
    entry_arg(e, DT_ARG_A, DNNL_ARG_SRC, &a);
    entry_arg(e, DT_ARG_C, DNNL_ARG_DST, &c);
    if (!pb->weight)
        entry_arg(e, DT_ARG_B, DNNL_ARG_WEIGHTS, &b);
    if (p->bias)
        entry_arg(e, DT_ARG_BIAS, DNNL_ARG_BIAS, &bias);
    return entry_build(q, e, &desc, p->add);
}

struct dt_cpu_primitive *dt_dnnl_product(struct dt_device_queue *q,
                                         const struct dt_cpu_product_args *p, bool weight,
                                         int threads)
{
    const struct product_build pb = {p, weight};
    int64_t key[KEY_WORDS] = {
        KEY_PRODUCT,        p->m,  p->n,    p->k,      p->ra,  p->ca,   weight ? 0 : p->rb,
        weight ? 0 : p->cb, p->rc, p->type, p->c_type, p->add, p->bias, weight};

    return entry_get(q, key, threads, product_build, &pb);
}

/* ---- convolution ---- */

static bool conv_build(struct dt_device_queue *q, struct dt_cpu_primitive *e, const void *arg)
{
    const struct dt_cpu_conv_build *cb = arg;
    const struct dt_kernel_conv *c = cb->c;
    int64_t oh = dt_kernel_conv_out(c->h, c), ow = dt_kernel_conv_out(c->w, c);
    dnnl_dims_t dx = {c->n, c->c_in, c->h, c->w}, dy = {c->n, c->c_out, oh, ow};
    dnnl_dims_t dw = {c->c_out, c->c_in, c->kernel, c->kernel}, db = {c->c_out};
    dnnl_dims_t strides = {c->stride, c->stride}, pad = {c->pad, c->pad};
    dnnl_dims_t pad_r = {(oh - 1) * c->stride + c->kernel - c->h - c->pad,
                         (ow - 1) * c->stride + c->kernel - c->w - c->pad};
    dnnl_memory_desc_t x, y, w, b;
    dnnl_convolution_desc_t desc;
    dnnl_status_t st;

    dnnl_memory_desc_init_by_tag(&x, 4, dx, type_of(c->dtype), dnnl_nhwc);
    dnnl_memory_desc_init_by_tag(&y, 4, dy, type_of(c->dtype), dnnl_nhwc);
    dnnl_memory_desc_init_by_tag(&w, 4, dw, type_of(c->dtype), dnnl_format_tag_any);
    dnnl_memory_desc_init_by_tag(&b, 1, db, dnnl_f32, dnnl_a);
    if (cb->backward)
        st = dnnl_convolution_backward_data_desc_init(&desc, dnnl_convolution_direct, &x, &w, &y,
                                                      strides, pad, pad_r);
    else
        st = dnnl_convolution_forward_desc_init(&desc, dnnl_forward_training,
                                                dnnl_convolution_direct, &x, &w,
                                                cb->bias ? &b : NULL, &y, strides, pad, pad_r);
    if (st != dnnl_success)
        return fail(q, st, "describing a convolution");
    entry_arg(e, DT_ARG_A, cb->backward ? DNNL_ARG_DIFF_DST : DNNL_ARG_SRC, cb->backward ? &y : &x);
    entry_arg(e, DT_ARG_C, cb->backward ? DNNL_ARG_DIFF_SRC : DNNL_ARG_DST, cb->backward ? &x : &y);
    if (cb->bias)
        entry_arg(e, DT_ARG_BIAS, DNNL_ARG_BIAS, &b);
    return entry_build(q, e, &desc, cb->add);
}

struct dt_cpu_primitive *dt_dnnl_conv(struct dt_device_queue *q, const struct dt_cpu_conv_build *cb,
                                      int64_t images, int threads)
{
    struct dt_kernel_conv c = *cb->c;
    struct dt_cpu_conv_build piece = *cb;
    int64_t key[KEY_WORDS] = {cb->backward ? KEY_CONV_BWD : KEY_CONV_FWD,
                              c.dtype,
                              images,
                              c.h,
                              c.w,
                              c.c_in,
                              c.c_out,
                              c.kernel,
                              c.stride,
                              c.pad,
                              cb->bias,
                              cb->add};

    c.n = images;
    piece.c = &c;
    return entry_get(q, key, threads, conv_build, &piece);
}

/* ---- weights: one copy per layout that some primitive asked for ----
 *
 * Packed from the fp32 master, or its copy in bf16, when it is older than that. */

enum { VARIANTS = 12 };

struct variant {
    dnnl_memory_desc_t md;
    enum dt_cpu_view view;
    dnnl_memory_t mem, to, from; /* as the primitive sees it; its packing */
    dnnl_primitive_t reorder;
    void *data;
    uint64_t version; /* of what it was packed from; 0 = none */
};

struct dt_device_weight {
    struct dt_cpu *cpu;
    struct dt_device_weight_shape shape;
    const float *master;
    const void *rounded; /* read instead; NULL */
    uint64_t version;
    pthread_mutex_t lock; /* queues of two threads may share a frozen weight */
    struct variant variants[VARIANTS];
    int n_variants;
};

static void *source(const struct dt_device_weight *w)
{
    return (void *)(uintptr_t)(w->rounded ? w->rounded : w->master);
}

static void view_desc(const struct dt_device_weight *w, enum dt_cpu_view view,
                      dnnl_memory_desc_t *md)
{
    const struct dt_device_weight_shape *s = &w->shape;
    dnnl_data_type_t type = w->rounded ? dnnl_bf16 : dnnl_f32;
    dnnl_dims_t dims = {s->in, s->out}, strides = {1, s->in};

    if (view == DT_VIEW_FORWARD) {
        dnnl_memory_desc_init_by_strides(md, 2, dims, type, strides);
    } else if (view == DT_VIEW_BACKWARD) {
        dnnl_dims_t bdims = {s->out, s->in};

        dnnl_memory_desc_init_by_tag(md, 2, bdims, type, dnnl_ab);
    } else {
        dnnl_dims_t fdims = {s->out, s->in, s->kernel, s->kernel};

        dnnl_memory_desc_init_by_tag(md, 4, fdims, type, dnnl_oihw);
    }
}

/* The part of `whole` that the weight fills when a product is wider than it (dt_cpu_product_args's room):
 * the same blocks at the same places, as many as hold the weight. */
static void filled_desc(const dnnl_memory_desc_t *weight, const dnnl_memory_desc_t *whole,
                        dnnl_memory_desc_t *md)
{
    const dnnl_blocking_desc_t *b = &whole->format_desc.blocking;

    *md = *whole;
    for (int d = 0; d < whole->ndims; d++) {
        int64_t block = 1;

        if (weight->dims[d] == whole->dims[d])
            continue;
        for (int i = 0; i < b->inner_nblks; i++)
            block *= b->inner_idxs[i] == d ? b->inner_blks[i] : 1;
        md->dims[d] = weight->dims[d];
        md->padded_dims[d] = (weight->dims[d] + block - 1) / block * block;
    }
}

static bool variant_build(struct dt_device_queue *q, struct dt_device_weight *w, struct variant *v)
{
    dnnl_engine_t engine = q->products->engine;
    size_t bytes = dnnl_memory_desc_get_size(&v->md);
    dnnl_primitive_desc_t pd = NULL;
    dnnl_memory_desc_t from, to;
    dnnl_status_t st;

    view_desc(w, v->view, &from);
    filled_desc(&from, &v->md, &to);
    v->data = dt_cpu_alloc(w->cpu, bytes);
    if (!v->data) {
        dt_cpu_queue_fail(q, DT_ERR_NOMEM, "out of memory: %zu bytes for a packed weight", bytes);
        return false;
    }
    memset(v->data, 0, bytes); /* what lies behind the weight stays so */
    /* oneDNN fills the padding of blocked layouts with zeros when a pointer is set: give it last */
    if ((st = dnnl_memory_create(&v->mem, &v->md, engine, v->data)) != dnnl_success ||
        (st = dnnl_memory_create(&v->to, &to, engine, v->data)) != dnnl_success ||
        (st = dnnl_memory_create(&v->from, &from, engine, source(w))) != dnnl_success ||
        (st = dnnl_reorder_primitive_desc_create(&pd, &from, engine, &to, engine, NULL)) !=
            dnnl_success)
        return fail(q, st, "packing a weight");
    st = dnnl_primitive_create(&v->reorder, pd);
    dnnl_primitive_desc_destroy(pd);
    return st == dnnl_success || fail(q, st, "packing a weight");
}

static void variant_free(struct dt_device_weight *w, struct variant *v)
{
    if (v->mem)
        dnnl_memory_destroy(v->mem);
    if (v->to)
        dnnl_memory_destroy(v->to);
    if (v->from)
        dnnl_memory_destroy(v->from);
    if (v->reorder)
        dnnl_primitive_destroy(v->reorder);
    dt_cpu_free(w->cpu, v->data);
    memset(v, 0, sizeof(*v));
}

/* Whether the variant's layout is one that dt_cpu_pack makes. */
static bool own_packing(const struct dt_device_weight *w, const struct variant *v,
                        struct dt_cpu_pack *p)
{
    const struct dt_device_weight_shape *s = &w->shape;
    const dnnl_blocking_desc_t *b = &v->md.format_desc.blocking;
    bool forward = v->view == DT_VIEW_FORWARD;

    if (s->dtype != DT_BF16 || w->rounded || v->view == DT_VIEW_FILTER ||
        v->md.format_kind != dnnl_blocked || v->md.extra.flags != 0 || b->inner_nblks != 3 ||
        b->inner_idxs[0] != 0 || b->inner_idxs[1] != 1 || b->inner_idxs[2] != 0 ||
        b->inner_blks[2] != 2)
        return false;
    *p = (struct dt_cpu_pack){.x = w->master,
                              .to = v->data,
                              .turned = forward,
                              .k = forward ? s->in : s->out,
                              .n = forward ? s->out : s->in,
                              .ldx = s->in,
                              .kb = 2 * b->inner_blks[0],
                              .nb = b->inner_blks[1],
                              .tk = b->strides[0],
                              .tn = b->strides[1]};
    return true;
}

static dnnl_memory_t packed_locked(struct dt_device_queue *q, struct dt_device_weight *w,
                                   enum dt_cpu_view view, const dnnl_memory_desc_t *want)
{
    struct variant *v = NULL;
    struct dt_cpu_pack pack;
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
    if (own_packing(w, v, &pack) && dt_cpu_pack(q, &pack)) {
        v->version = w->version;
        return v->mem;
    }
    args[0] = (dnnl_exec_arg_t){DNNL_ARG_FROM, v->from};
    args[1] = (dnnl_exec_arg_t){DNNL_ARG_TO, v->to};
    st = dnnl_primitive_execute(v->reorder, q->products->stream, 2, args);
    if (st == dnnl_success)
        st = dnnl_stream_wait(q->products->stream);
    if (st != dnnl_success)
        return fail(q, st, "packing a weight"), NULL;
    v->version = w->version;
    return v->mem;
}

struct dnnl_memory *dt_dnnl_packed(struct dt_device_queue *q, const struct dt_device_weight *cw,
                                   enum dt_cpu_view view, const struct dt_cpu_primitive *e)
{
    struct dt_device_weight *w = (struct dt_device_weight *)(uintptr_t)cw; /* packing is a cache */
    dnnl_memory_t m;

    dt_dnnl_threads(q->threads); /* packing divides its output */
    pthread_mutex_lock(&w->lock);
    m = packed_locked(q, w, view, &e->weights);
    pthread_mutex_unlock(&w->lock);
    return m;
}

enum dt_status dt_cpu_weight_new(const struct dt_device *dev,
                                 const struct dt_device_weight_shape *shape, const float *master,
                                 const void *rounded, struct dt_error *err,
                                 struct dt_device_weight **out)
{
    struct dt_device_weight *w;

    assert(shape->out > 0 && shape->in > 0 && shape->kernel >= 0 && (master || rounded));
    assert(!rounded || shape->dtype == DT_BF16);
    if (shape->dtype == DT_BF16 && !dev->info.bf16)
        return dt_error_set(err, DT_ERR_INPUT,
                            "this CPU has no bf16 products (AVX-512 is needed): use fp32");
    w = dt_calloc(1, sizeof(*w));
    if (!w)
        return dt_error_nomem(err, "a weight");
    w->cpu = dev->impl;
    w->shape = *shape;
    w->master = master;
    w->rounded = rounded;
    w->version = 1;
    pthread_mutex_init(&w->lock, NULL);
    *out = w;
    return DT_OK;
}

void dt_cpu_weight_free(struct dt_device_weight *w)
{
    if (!w)
        return;
    for (int i = 0; i < VARIANTS; i++)
        variant_free(w, &w->variants[i]);
    pthread_mutex_destroy(&w->lock);
    dt_free(w);
}

void dt_cpu_weight_changed(struct dt_device_queue *q, struct dt_device_weight *w)
{
    (void)q;
    pthread_mutex_lock(&w->lock);
    w->version++;
    pthread_mutex_unlock(&w->lock);
}

const struct dt_device_weight_shape *dt_cpu_weight_shape(const struct dt_device_weight *w)
{
    return &w->shape;
}
