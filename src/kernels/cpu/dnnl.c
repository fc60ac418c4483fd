/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Products over oneDNN 2.6 (C API).
 *
 * A product is cut into pieces by a rule that knows only its shape; each piece is a primitive for
 * one thread, and dt_cpu_for deals pieces to threads.  So sums are the same for any number of
 * threads on every instruction set, and a core that is busy elsewhere delays one piece.  What is
 * too small to cut runs on oneDNN's own threads where its code divides only outputs among them
 * ("brg…" matmuls, convolutions forward and backward by data); convolutions backward by weights
 * divide the sum and are not used (products.c).
 *
 * A queue keeps its primitives by shape, with memory objects per thread: a call looks them up, sets
 * the pointers and runs. */
#include "kernels/cpu/dnnl_impl.h"

#include "core/mem.h"

#include <string.h>
#ifdef _OPENMP
#include <omp.h>
#endif

enum { CACHE_SLOTS = 2048, CACHE_MAX = 1200, CALL_MAX = 4, KEY_WORDS = 16 };
enum { KEY_PRODUCT = 1, KEY_CONV_FWD, KEY_CONV_BWD };
enum { ARG_A, ARG_B, ARG_C, ARG_BIAS, ARG_SCRATCH, ARG_N };

struct entry { /* one primitive */
    int64_t key[KEY_WORDS];
    dnnl_primitive_t prim;
    dnnl_memory_desc_t weights; /* what it wants of its weight */
    dnnl_memory_desc_t md[ARG_N];
    int arg[ARG_N];       /* DNNL_ARG_…; 0 = not an argument */
    dnnl_memory_t *mem;   /* threads x ARG_N */
    size_t scratch_bytes; /* of one thread */
    bool only_outputs;    /* its own threads divide no sum */
};

struct dt_products {
    struct entry *slot[CACHE_SLOTS]; /* open addressing */
    int used;
    int threads; /* of the queue */
    dnnl_engine_t engine;
    dnnl_stream_t stream;
};

dnnl_engine_t dt_dnnl_engine(const struct dt_queue *q)
{
    return q->products->engine;
}
dnnl_stream_t dt_dnnl_stream(const struct dt_queue *q)
{
    return q->products->stream;
}

bool dt_dnnl_fail(struct dt_queue *q, dnnl_status_t st, const char *what)
{
    dt_queue_fail(q, st == dnnl_out_of_memory ? DT_ERR_NOMEM : DT_ERR_INTERNAL,
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

enum dt_status dt_products_open(struct dt_cpu *cpu, const struct dt_device_options *opt,
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

void dt_products_close(struct dt_cpu *cpu)
{
    dnnl_engine_destroy(cpu->engine);
}

enum dt_status dt_products_new(struct dt_queue *q, struct dt_error *err)
{
    struct dt_products *p = dt_calloc(1, sizeof(*p));

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

static void entry_free(struct entry *e, int threads)
{
    if (!e)
        return;
    for (int i = 0; e->mem && i < threads * ARG_N; i++)
        if (e->mem[i])
            dnnl_memory_destroy(e->mem[i]);
    if (e->prim)
        dnnl_primitive_destroy(e->prim);
    dt_free(e->mem);
    dt_free(e);
}

static void cache_clear(struct dt_products *p)
{
    for (int i = 0; i < CACHE_SLOTS; i++) {
        entry_free(p->slot[i], p->threads);
        p->slot[i] = NULL;
    }
    p->used = 0;
}

/* Before a call looks up its (at most CALL_MAX) primitives: with endless new shapes, start over. */
static void cache_room(struct dt_products *p)
{
    if (p->used > CACHE_MAX - CALL_MAX)
        cache_clear(p);
}

void dt_products_free(struct dt_queue *q)
{
    if (!q->products)
        return;
    cache_clear(q->products);
    dnnl_stream_destroy(q->products->stream);
    dt_free(q->products);
}

/* ---- the cache ---- */

/* The slot that holds the key, or the free one where it belongs. */
static struct entry **cache_slot(struct dt_products *p, const int64_t key[KEY_WORDS])
{
    uint64_t h = UINT64_C(0x9e3779b97f4a7c15);

    for (int i = 0; i < KEY_WORDS; i++)
        h = (h ^ (uint64_t)key[i]) * UINT64_C(0xff51afd7ed558ccd), h ^= h >> 32;
    for (uint64_t i = h % CACHE_SLOTS;; i = (i + 1) % CACHE_SLOTS)
        if (!p->slot[i] || memcmp(p->slot[i]->key, key, sizeof(p->slot[i]->key)) == 0)
            return &p->slot[i];
}

static void entry_arg(struct entry *e, int slot, int arg, const dnnl_memory_desc_t *md)
{
    e->arg[slot] = arg;
    e->md[slot] = *md;
}

/* From an operation descriptor to a ready primitive.  `sum`: c is added to. */
static bool entry_build(struct dt_queue *q, struct entry *e, const_dnnl_op_desc_t desc, bool sum)
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
        return dt_dnnl_fail(q, st, "attributes");
    dnnl_primitive_attr_set_scratchpad_mode(attr, dnnl_scratchpad_mode_user);
    if (sum && dnnl_post_ops_create(&post) == dnnl_success) {
        dnnl_post_ops_append_sum(post, 1.0f);
        dnnl_primitive_attr_set_post_ops(attr, post);
    }
    st = dnnl_primitive_desc_create(&pd, desc, attr, q->products->engine, NULL);
    if (st != dnnl_success) {
        dt_dnnl_fail(q, st, "no implementation for this product");
        goto out_attr;
    }
    st = dnnl_primitive_create(&e->prim, pd);
    if (st != dnnl_success) {
        dt_dnnl_fail(q, st, "creating a primitive");
        goto out_desc;
    }
    md = dnnl_primitive_desc_query_md(pd, dnnl_query_scratchpad_md, 0);
    e->scratch_bytes = md ? dnnl_memory_desc_get_size(md) : 0;
    if (e->scratch_bytes > 0)
        entry_arg(e, ARG_SCRATCH, DNNL_ARG_SCRATCHPAD, md);
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

typedef bool build_fn(struct dt_queue *q, struct entry *e, const void *arg);

static bool entry_memory(struct dt_queue *q, struct entry *e)
{
    int threads = q->products->threads;
    dnnl_status_t st;

    e->mem = dt_calloc((size_t)threads * ARG_N, sizeof(*e->mem));
    if (!e->mem)
        return dt_dnnl_fail(q, dnnl_out_of_memory, "a memory object");
    for (int i = 0; i < threads * ARG_N; i++) {
        if (!e->arg[i % ARG_N])
            continue;
        st = dnnl_memory_create(&e->mem[i], &e->md[i % ARG_N], q->products->engine,
                                DNNL_MEMORY_NONE);
        if (st != dnnl_success)
            return dt_dnnl_fail(q, st, "a memory object");
    }
    return true;
}

/* The primitive of the key, made if new; `threads` is part of the key: what it may run on. */
static struct entry *entry_get(struct dt_queue *q, int64_t key[KEY_WORDS], int threads,
                               build_fn *build, const void *arg)
{
    struct entry **slot, *e;

    key[KEY_WORDS - 1] = threads;
    slot = cache_slot(q->products, key);
    if (*slot)
        return *slot;
    e = dt_calloc(1, sizeof(*e));
    if (!e) {
        dt_queue_fail(q, DT_ERR_NOMEM, "out of memory for a primitive");
        return NULL;
    }
    memcpy(e->key, key, sizeof(e->key));
    dt_dnnl_threads(threads);
    if (!build(q, e, arg) || !entry_memory(q, e)) {
        entry_free(e, q->products->threads);
        return NULL;
    }
    *slot = e;
    q->products->used++;
    return e;
}

/* Runs a primitive on a thread's memory objects: `ptr` in ARG_ order, `packed` the weight if it is
 * one. `scratch` is room for e->scratch_bytes. */
static dnnl_status_t entry_run(struct dt_queue *q, const struct entry *e, int thread,
                               void *const ptr[ARG_N], dnnl_memory_t packed, void *scratch)
{
    dnnl_memory_t *mem = e->mem + (ptrdiff_t)thread * ARG_N;
    dnnl_exec_arg_t args[ARG_N];
    dnnl_status_t st;
    int n = 0;

    for (int i = 0; i < ARG_N; i++) {
        if (i == ARG_B && packed) {
            args[n++] = (dnnl_exec_arg_t){DNNL_ARG_WEIGHTS, packed};
            continue;
        }
        if (!mem[i])
            continue;
        st = dnnl_memory_set_data_handle(mem[i], i == ARG_SCRATCH ? scratch : ptr[i]);
        if (st != dnnl_success)
            return st;
        args[n++] = (dnnl_exec_arg_t){e->arg[i], mem[i]};
    }
    st = dnnl_primitive_execute(e->prim, q->products->stream, n, args);
    return st == dnnl_success ? dnnl_stream_wait(q->products->stream) : st;
}

/* ---- pieces ---- */

/* A grid of pieces, `full` in size but for the last row and column of the grid: four primitives. */
struct pieces {
    struct dt_queue *q;
    int64_t rows, cols;        /* of the grid */
    struct entry *entry[2][2]; /* [last row][last column] */
    dnnl_memory_t packed[2][2];
    const char *a, *b, *bias;
    char *c;
    int64_t a_row, b_col, c_row, c_col, bias_col; /* bytes from one piece to the next */
    char *scratch;
    size_t scratch_each;
    _Atomic int status;
};

static void piece(void *arg, int64_t block, int thread)
{
    struct pieces *p = arg;
    int64_t i = block / p->cols, j = block % p->cols;
    int last_i = i == p->rows - 1, last_j = j == p->cols - 1;
    void *const ptr[ARG_N] = {
        (void *)(uintptr_t)(p->a + i * p->a_row),
        p->b ? (void *)(uintptr_t)(p->b + j * p->b_col) : NULL,
        p->c + i * p->c_row + j * p->c_col,
        p->bias ? (void *)(uintptr_t)(p->bias + j * p->bias_col) : NULL,
        NULL,
    };
    dnnl_status_t st =
        entry_run(p->q, p->entry[last_i][last_j], thread, ptr, p->packed[last_i][last_j],
                  p->scratch + (size_t)thread * p->scratch_each);

    if (st != dnnl_success)
        atomic_store(&p->status, (int)st);
}

/* The primitives are there: packs the weight for them, then runs all pieces.  `threads`: of a
 * single piece, oneDNN's own. */
static void pieces_run(struct pieces *p, const struct dt_weight *w, enum dt_view view, int threads)
{
    struct dt_queue *q = p->q;
    size_t each = 0;

    for (int i = 0; i < CALL_MAX; i++) {
        struct entry *e = p->entry[i / 2][i % 2];

        if (!e)
            continue;
        each = e->scratch_bytes > each ? e->scratch_bytes : each;
        if (w && !(p->packed[i / 2][i % 2] = dt_dnnl_packed(q, w, view, &e->weights)))
            return;
    }
    p->scratch_each = (each + 63) / 64 * 64;
    p->scratch = dt_cpu_scratch(q, DT_SCRATCH_PRODUCT, p->scratch_each * (size_t)q->threads + 64);
    if (!p->scratch)
        return;
    dt_dnnl_threads(threads);
    dt_cpu_for(q, p->rows * p->cols, piece, p);
    if (p->status != 0)
        dt_dnnl_fail(q, (dnnl_status_t)p->status, "running a primitive");
}

/* ---- matmul ---- */

struct product_build {
    const struct dt_product *p;
    bool weight;
};

static bool product_build(struct dt_queue *q, struct entry *e, const void *arg)
{
    const struct product_build *pb = arg;
    const struct dt_product *p = pb->p;
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
        return dt_dnnl_fail(q, st, "describing a matmul");
    entry_arg(e, ARG_A, DNNL_ARG_SRC, &a);
    entry_arg(e, ARG_C, DNNL_ARG_DST, &c);
    if (!pb->weight)
        entry_arg(e, ARG_B, DNNL_ARG_WEIGHTS, &b);
    if (p->bias)
        entry_arg(e, ARG_BIAS, DNNL_ARG_BIAS, &bias);
    return entry_build(q, e, &desc, p->add);
}

static struct entry *product_entry(struct dt_queue *q, const struct dt_product *p, bool weight,
                                   int threads)
{
    const struct product_build pb = {p, weight};
    int64_t key[KEY_WORDS] = {
        KEY_PRODUCT,        p->m,  p->n,    p->k,      p->ra,  p->ca,   weight ? 0 : p->rb,
        weight ? 0 : p->cb, p->rc, p->type, p->c_type, p->add, p->bias, weight};

    return entry_get(q, key, threads, product_build, &pb);
}

enum {
    PIECE_ROWS = 256,     /* at most: enough for a packed b to pay for its way through the cache */
    PIECE_COLS = 512,     /* at most, of a plain b, which every piece copies into its own order */
    PIECE_MACS = 1 << 24, /* at least, when cutting finer for the sake of balance */
    PIECES = 8            /* enough of them for balance on a few cores */
};

static int64_t round_up(int64_t x, int64_t to)
{
    return (x + to - 1) / to * to;
}

/* Rows and columns of a piece. */
static void product_cut(const struct dt_product *p, bool weight, int64_t *mb, int64_t *nb)
{
    int64_t rows = dt_blocks(p->m, PIECE_ROWS), cols = weight ? 1 : dt_blocks(p->n, PIECE_COLS);
    double macs = (double)p->m * (double)p->n * (double)p->k;

    while (rows * cols < PIECES && macs / (double)(rows * cols) > PIECE_MACS) {
        if (!weight && p->n / cols > p->m / rows)
            cols++;
        else if (p->m / rows > 32)
            rows++;
        else
            break;
    }
    *mb = round_up(dt_blocks(p->m, rows), 16);
    *nb = cols == 1 ? p->n : round_up(dt_blocks(p->n, cols), 64);
}

void dt_cpu_product(struct dt_queue *q, const struct dt_product *p, const void *a, const void *b,
                    const struct dt_weight *w, const float *bias, void *c)
{
    int64_t elem = (int64_t)dt_dtype_bytes((enum dt_dtype)p->type), mb, nb;
    int64_t c_elem = (int64_t)dt_dtype_bytes((enum dt_dtype)p->c_type);
    /* of a weight, b's strides say only which way round it is read */
    enum dt_view view = p->rb == 1 && p->cb != 1 ? DT_VIEW_FORWARD : DT_VIEW_BACKWARD;
    struct pieces g = {.q = q, .a = a, .b = b, .bias = (const char *)bias, .c = c};
    int threads = 1;

    if (q->status != DT_OK || p->m == 0 || p->n == 0)
        return;
    cache_room(q->products);
    product_cut(p, w != NULL, &mb, &nb);
    g.rows = dt_blocks(p->m, mb);
    g.cols = dt_blocks(p->n, nb);
    if (g.rows * g.cols == 1 && (double)p->n * (double)p->k * (double)p->m > PIECE_MACS &&
        q->threads > 1) {
        struct entry *e = product_entry(q, p, w != NULL, q->threads);

        if (!e)
            return;
        if (e->only_outputs) {
            g.entry[1][1] = e;
            threads = q->threads;
        }
    }
    for (int i = 0; i < CALL_MAX && threads == 1; i++) {
        struct dt_product s = *p;
        bool last_i = i / 2, last_j = i % 2;

        if ((!last_i && g.rows == 1) || (!last_j && g.cols == 1))
            continue;
        s.m = last_i ? p->m - (g.rows - 1) * mb : mb;
        s.n = last_j ? p->n - (g.cols - 1) * nb : nb;
        g.entry[last_i][last_j] = product_entry(q, &s, w != NULL, 1);
        if (!g.entry[last_i][last_j])
            return;
    }
    g.a_row = mb * p->ra * elem;
    g.b_col = nb * p->cb * elem;
    g.c_row = mb * p->rc * c_elem;
    g.c_col = nb * c_elem;
    g.bias_col = nb * (int64_t)sizeof(float);
    pieces_run(&g, w, view, threads);
}

/* ---- convolution ---- */

struct conv_build {
    const struct dt_conv *c;
    bool backward, bias, add;
};

static bool conv_build(struct dt_queue *q, struct entry *e, const void *arg)
{
    const struct conv_build *cb = arg;
    const struct dt_conv *c = cb->c;
    int64_t oh = dt_conv_out(c->h, c), ow = dt_conv_out(c->w, c);
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
        return dt_dnnl_fail(q, st, "describing a convolution");
    entry_arg(e, ARG_A, cb->backward ? DNNL_ARG_DIFF_DST : DNNL_ARG_SRC, cb->backward ? &y : &x);
    entry_arg(e, ARG_C, cb->backward ? DNNL_ARG_DIFF_SRC : DNNL_ARG_DST, cb->backward ? &x : &y);
    if (cb->bias)
        entry_arg(e, ARG_BIAS, DNNL_ARG_BIAS, &b);
    return entry_build(q, e, &desc, cb->add);
}

static struct entry *conv_entry(struct dt_queue *q, const struct conv_build *cb, int64_t images,
                                int threads)
{
    struct dt_conv c = *cb->c;
    struct conv_build piece = *cb;
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

/* A piece is as many images as make it worth while. */
void dt_cpu_conv(struct dt_queue *q, const struct dt_conv *c, bool backward, const void *a,
                 const struct dt_weight *w, const float *bias, bool add, void *out)
{
    const struct conv_build cb = {c, backward, bias != NULL, add};
    int64_t elem = (int64_t)dt_dtype_bytes(c->dtype), x = c->h * c->w * c->c_in;
    int64_t y = dt_conv_out(c->h, c) * dt_conv_out(c->w, c) * c->c_out;
    double macs = (double)y * (double)c->kernel * (double)c->kernel * (double)c->c_in;
    int64_t images = dt_max64(1, dt_min64(c->n, (int64_t)(PIECE_MACS / (macs + 1))));
    struct pieces g = {.q = q, .cols = 1, .a = a, .bias = (const char *)bias, .c = out};
    int threads;

    assert(!(backward && (add || bias)));
    if (q->status != DT_OK || c->n == 0)
        return;
    cache_room(q->products);
    g.rows = dt_blocks(c->n, images);
    threads = g.rows == 1 ? q->threads : 1;
    g.entry[1][1] = conv_entry(q, &cb, c->n - (g.rows - 1) * images, threads);
    if (g.rows > 1)
        g.entry[0][1] = conv_entry(q, &cb, images, threads);
    if (!g.entry[1][1] || (g.rows > 1 && !g.entry[0][1]))
        return;
    g.a_row = images * (backward ? y : x) * elem;
    g.c_row = images * (backward ? x : y) * elem;
    pieces_run(&g, w, DT_VIEW_FILTER, threads);
}
