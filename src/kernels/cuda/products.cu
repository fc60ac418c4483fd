/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Products by cuBLASLt, and the linear kernels. */
#include "kernels/cuda/products.h"

extern "C" {
#include "base/mem.h"
}

#include <string.h>

enum { KNOWN = 1 << 10 };

struct known {
    struct dt_cuda_shape s;
    cublasLtMatmulAlgo_t algo;
    bool used, none; /* none: the library does not do this */
};

struct dt_cuda_products {
    const struct dt_cuda_lt *lt;
    cublasLtHandle_t handle;
    struct known known[KNOWN];
    int n;
    cublasStatus_t said; /* of what it refused last */
};

static bool lt_ok(struct dt_device_queue *q, cublasStatus_t st, const char *what)
{
    if (st != CUBLAS_STATUS_SUCCESS)
        dt_cuda_fail(q, st == CUBLAS_STATUS_ALLOC_FAILED ? DT_ERR_NOMEM : DT_ERR_INTERNAL,
                     "cuBLASLt: %s: status %d", what, (int)st);
    return st == CUBLAS_STATUS_SUCCESS;
}

struct dt_cuda_products *dt_cuda_products_new(const struct dt_device *dev, struct dt_error *err)
{
    struct dt_cuda_products *p = (struct dt_cuda_products *)dt_calloc(1, sizeof(*p));
    cublasStatus_t st;

    (void)dev;
    if (!p) {
        dt_error_nomem(err, "a queue's products");
        return NULL;
    }
    p->lt = dt_cuda_lt_load(err);
    if (!p->lt) {
        dt_free(p);
        return NULL;
    }
    st = p->lt->Create(&p->handle);
    if (st != CUBLAS_STATUS_SUCCESS) {
        dt_error_set(err, DT_ERR_INTERNAL, "cuBLASLt cannot be started: status %d", (int)st);
        dt_free(p);
        return NULL;
    }
    return p;
}

void dt_cuda_products_free(struct dt_cuda_products *p)
{
    if (!p)
        return;
    p->lt->Destroy(p->handle);
    dt_free(p);
}

static uint64_t hash(const struct dt_cuda_shape *s)
{
    const unsigned char *p = (const unsigned char *)s;
    uint64_t h = 1469598103934665603u;

    for (size_t i = 0; i < sizeof(*s); i++)
        h = (h ^ p[i]) * 1099511628211u;
    return h;
}

/* Where `s` is or will be; a full table forgets all. */
static struct known *place_of(struct dt_cuda_products *p, const struct dt_cuda_shape *s)
{
    size_t i = (size_t)(hash(s) % KNOWN);

    if (p->n > KNOWN / 2) {
        memset(p->known, 0, sizeof(p->known));
        p->n = 0;
    }
    while (p->known[i].used && memcmp(&p->known[i].s, s, sizeof(*s)) != 0)
        i = (i + 1) % KNOWN;
    return &p->known[i];
}

/* Its algorithm, where the shape is new, and the product itself; *none: there is no algorithm. */
static cublasStatus_t find_and_run(struct dt_device_queue *q, struct known *k,
                                   const struct dt_cuda_shape *s, const struct dt_cuda_operands *o,
                                   void *room, bool *none)
{
    struct dt_cuda_products *p = q->products;
    struct dt_cuda_call x = {};
    cublasStatus_t st = dt_cuda_call_open(p->lt, s, o, &x);

    if (st == CUBLAS_STATUS_SUCCESS && !k->used)
        st = dt_cuda_choose(q, p->lt, p->handle, s, &x, o, room, &k->algo, none);
    if (st == CUBLAS_STATUS_SUCCESS && !*none)
        st = dt_cuda_call_run(q, p->lt, p->handle, s, &x, o, o->d, room, &k->algo);
    dt_cuda_call_close(p->lt, &x);
    return st;
}

/* false: the library does not do this, and nothing has been done (or it failed: q says so). */
static bool multiply(struct dt_device_queue *q, const struct dt_cuda_shape *s,
                     const struct dt_cuda_operands *o)
{
    struct dt_cuda_products *p = q->products;
    struct known *k = place_of(p, s);
    cublasStatus_t st;
    bool none = false;
    void *room;

    if ((k->used && k->none) || !dt_cuda_ready(q))
        return false;
    room = dt_cuda_scratch(q, DT_SCRATCH_PRODUCT, DT_CUDA_PRODUCT_ROOM);
    if (!room)
        return false;
    st = find_and_run(q, k, s, o, room, &none);
    if (none || dt_cuda_lt_refuses(st)) {
        p->said = none ? CUBLAS_STATUS_NOT_SUPPORTED : st;
        none = true;
    } else if (!lt_ok(q, st, "a product")) {
        return false;
    }
    p->n += !k->used;
    k->s = *s;
    k->used = true;
    k->none = none;
    return !none;
}

/* What is known of a shape whose product may have another way. */
static bool learn(struct dt_device_queue *q, const struct dt_cuda_shape *s,
                  const struct dt_cuda_operands *o, dt_cuda_apart_fn *apart, void *arg)
{
    struct dt_cuda_products *p = q->products;
    void *room = dt_cuda_scratch(q, DT_SCRATCH_PRODUCT, DT_CUDA_PRODUCT_ROOM);
    struct dt_cuda_call x = {};
    cublasLtMatmulAlgo_t algo = {};
    cublasStatus_t st;
    struct known *k;
    bool none = false;

    if (!room)
        return false;
    st = dt_cuda_call_open(p->lt, s, o, &x);
    if (st == CUBLAS_STATUS_SUCCESS)
        st = dt_cuda_choose_way(q, p->lt, p->handle, s, &x, o, room, apart, arg, &algo, &none);
    dt_cuda_call_close(p->lt, &x);
    if (dt_cuda_lt_refuses(st)) {
        none = true;
        st = CUBLAS_STATUS_SUCCESS;
    }
    if (!lt_ok(q, st, "a product's description") || q->status != DT_OK)
        return false;
    k = place_of(p, s); /* products of the other way have come in between */
    k->s = *s;
    k->algo = algo;
    k->none = none;
    k->used = true;
    p->n++;
    return true;
}

bool dt_cuda_multiply_if_faster(struct dt_device_queue *q, const struct dt_cuda_shape *s,
                                const struct dt_cuda_operands *o, dt_cuda_apart_fn *apart,
                                void *arg)
{
    if (!q->dev->notes || !dt_cuda_ready(q))
        return false;
    return (place_of(q->products, s)->used || learn(q, s, o, apart, arg)) && multiply(q, s, o);
}

static uint8_t alignment(const void *p)
{
    uint8_t log2 = 1; /* parameters in bf16 lie side by side */

    while (log2 < 8 && ((uintptr_t)p >> log2 & 1) == 0)
        log2++;
    return log2;
}

struct dt_cuda_shape dt_cuda_shape_of(int64_t m, int64_t n, int64_t k,
                                      const struct dt_cuda_matrix &a,
                                      const struct dt_cuda_matrix &b, enum dt_dtype c_type,
                                      int64_t ldc, const struct dt_cuda_operands &o)
{
    struct dt_cuda_shape s;

    memset(&s, 0, sizeof(s)); /* compared as bytes */
    s.m = m;
    s.n = n;
    s.k = k;
    s.lda = a.ld;
    s.ldb = b.ld;
    s.ldc = ldc;
    s.type = a.dtype;
    s.c_type = c_type;
    s.epilogue = o.bias ? DT_CUDA_BIAS : DT_CUDA_PLAIN;
    s.bias_type = DT_F32;
    s.a_turned = a.turned;
    s.b_turned = b.turned;
    s.beta = o.c != NULL;
    s.a_align = alignment(o.a);
    s.b_align = alignment(o.b);
    s.c_align = alignment(o.c ? o.c : o.d);
    s.d_align = alignment(o.d);
    s.bias_align = o.bias ? alignment(o.bias) : 0; /* the library looks at the pointer */
    return s;
}

struct product { /* d = a b + bias + c; bias and c may be NULL */
    int64_t m, n, k;
    struct dt_cuda_matrix a, b;
    const float *bias;
    const void *c;
    enum dt_dtype type; /* of c and d */
    int64_t ldc;
    void *d;
};

/* With a bias of that type, or NULL. */
static bool attempt(struct dt_device_queue *q, const struct product *p, const void *bias,
                    enum dt_dtype bias_type)
{
    const struct dt_cuda_operands o = {p->a.p, p->b.p, bias, p->c, p->d, NULL};
    struct dt_cuda_shape s = dt_cuda_shape_of(p->m, p->n, p->k, p->a, p->b, p->type, p->ldc, o);

    s.bias_type = bias_type;
    return multiply(q, &s, &o);
}

/* The bias as it is, or in the type of the result, or aligned: whichever the library takes. */
static bool with_bias(struct dt_device_queue *q, const struct product *p)
{
    void *own;

    if (dt_cuda_aligned(p->bias) && attempt(q, p, p->bias, DT_F32))
        return true;
    if (q->status != DT_OK || (p->type == DT_F32 && dt_cuda_aligned(p->bias)))
        return false;
    own = dt_cuda_scratch(q, DT_SCRATCH_BIAS, (size_t)p->n * dt_dtype_bytes(p->type));
    if (!own)
        return false;
    q->dev->k->cast(q, p->n, DT_F32, p->bias, p->type, own);
    return attempt(q, p, own, p->type);
}

static void product(struct dt_device_queue *q, const struct product *p)
{
    if (q->status != DT_OK || (p->bias && with_bias(q, p)) || q->status != DT_OK)
        return;
    if (attempt(q, p, NULL, DT_F32)) {
        if (p->bias) /* no library's: one more pass */
            dt_cuda_add_row(q, p->type, p->m, p->n, p->ldc, p->bias, p->d);
        return;
    }
    if (q->status == DT_OK)
        dt_cuda_fail(q, DT_ERR_INTERNAL,
                     "cuBLASLt has no algorithm for a product of %lld x %lld x %lld: status %d",
                     (long long)p->m, (long long)p->n, (long long)p->k, (int)q->products->said);
}

void dt_cuda_product(struct dt_device_queue *q, int64_t m, int64_t n, int64_t k,
                     struct dt_cuda_matrix a, struct dt_cuda_matrix b, bool add,
                     enum dt_dtype c_type, int64_t ldc, void *c)
{
    if (m == 0 || n == 0)
        return;
    if (k == 0) {
        if (!add)
            q->dev->zero(q, c, (size_t)(m * ldc) * dt_dtype_bytes(c_type));
        return;
    }
    const struct product p = {m, n, k, a, b, NULL, add ? c : NULL, c_type, ldc, c};

    product(q, &p);
}

void dt_cuda_product_bias(struct dt_device_queue *q, int64_t m, int64_t n, int64_t k,
                          struct dt_cuda_matrix a, struct dt_cuda_matrix b, const float *bias,
                          const void *residual, int64_t ldc, void *c)
{
    const struct product p = {m, n, k, a, b, bias, residual, a.dtype, ldc, c};

    if (m > 0 && n > 0 && k > 0)
        product(q, &p);
}

/* ---- linear ---- */

static void linear_fwd(struct dt_device_queue *q, int64_t m, const void *x,
                       const struct dt_device_weight *w, const float *bias, const void *residual,
                       void *y)
{
    const struct dt_device_weight_shape *s = dt_cuda_weight_shape(w);

    if (m > 0)
        dt_cuda_product_bias(q, m, s->out, s->in, {x, s->dtype, s->in, false},
                             {dt_cuda_weight(q, w), s->dtype, s->in, true}, bias, residual, s->out,
                             y);
}

static void linear_bwd_input(struct dt_device_queue *q, int64_t m, const void *dy,
                             const struct dt_device_weight *w, void *dx, bool add)
{
    const struct dt_device_weight_shape *s = dt_cuda_weight_shape(w);

    if (m > 0)
        dt_cuda_product(q, m, s->in, s->out, {dy, s->dtype, s->out, false},
                        {dt_cuda_weight(q, w), s->dtype, s->in, false}, add, s->dtype, s->in, dx);
}

/* Both in the same pass over dy; false: the library has no such epilogue for these (or q has failed). */
static bool both_gradients(struct dt_device_queue *q, const struct dt_cuda_gradients *g)
{
    bool aside = g->add_bias || !dt_cuda_aligned(g->dbias);
    void *sums =
        aside ? dt_cuda_scratch(q, DT_SCRATCH_BIAS, (size_t)g->out * sizeof(float)) : g->dbias;
    struct dt_cuda_operands o = {g->dy, g->x, sums, g->add ? g->dw : NULL, g->dw, NULL};
    struct dt_cuda_shape s;

    if (!sums || g->m == 0 || g->in == 0 || g->out == 0)
        return false;
    s = dt_cuda_shape_of(g->out, g->in, g->m, {g->dy, g->dtype, g->out, true},
                         {g->x, g->dtype, g->in, false}, DT_F32, g->in, o);
    s.epilogue = DT_CUDA_BIAS_GRAD;
    if (!multiply(q, &s, &o))
        return false;
    if (aside)
        dt_cuda_add_parts(q, 1, g->out, (const float *)sums, g->dbias, g->add_bias);
    return true;
}

void dt_cuda_product_gradients(struct dt_device_queue *q, const struct dt_cuda_gradients *g)
{
    if (g->dw && g->dbias && both_gradients(q, g))
        return;
    if (g->dw)
        dt_cuda_product(q, g->out, g->in, g->m, {g->dy, g->dtype, g->out, true},
                        {g->x, g->dtype, g->in, false}, g->add, DT_F32, g->in, g->dw);
    if (g->dbias)
        q->dev->k->bias_bwd(q, g->dtype, g->m, g->out, g->dy, g->dbias, g->add_bias);
}

static void linear_bwd_weight(struct dt_device_queue *q, enum dt_dtype dtype, int64_t m,
                              int64_t out, int64_t in, const void *x, const void *dy, float *dw,
                              float *dbias, bool add)
{
    const struct dt_cuda_gradients g = {dtype, m, out, in, x, dy, dw, dbias, add, add};

    dt_cuda_product_gradients(q, &g);
}

void dt_cuda_linear(struct dt_kernels *k)
{
    k->linear_fwd = linear_fwd;
    k->linear_bwd_input = linear_bwd_input;
    k->linear_bwd_weight = linear_bwd_weight;
}
