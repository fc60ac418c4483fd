/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Products by cuBLASLt, and the linear kernels.
 *
 * cuBLASLt knows columns where we know rows: c = a b by rows is cᵀ = bᵀ aᵀ by columns, in the same memory. */
#include "kernels/cuda/products.h"

extern "C" {
#include "base/mem.h"
}

#include <string.h>

enum { WORKSPACE = 32 << 20, KNOWN = 1 << 10 };

/* What decides which algorithm is taken. */
struct shape {
    int64_t m, n, k, lda, ldb, ldc;
    int32_t type, c_type, bias_type; /* -1: no bias */
    uint8_t a_turned, b_turned, beta;
    uint8_t a_align, b_align, c_align, d_align; /* log2 */
    uint8_t pad;
};

struct known {
    struct shape s;
    cublasLtMatmulAlgo_t algo;
    bool used, none; /* none: the library has no algorithm for this */
};

struct dt_cuda_products {
    const struct dt_cuda_lt *lt;
    cublasLtHandle_t handle;
    struct known known[KNOWN];
    int n;
};

static cudaDataType_t type_of(enum dt_dtype t)
{
    return t == DT_BF16 ? CUDA_R_16BF : CUDA_R_32F;
}

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

/* ---- descriptors of one call ---- */

struct call {
    cublasLtMatmulDesc_t op;
    cublasLtMatrixLayout_t a, b, c; /* of columns: first, second factor, result */
    cublasLtMatmulPreference_t want;
};

static void close_call(const struct dt_cuda_lt *lt, struct call *c)
{
    if (c->want)
        lt->MatmulPreferenceDestroy(c->want);
    if (c->c)
        lt->MatrixLayoutDestroy(c->c);
    if (c->b)
        lt->MatrixLayoutDestroy(c->b);
    if (c->a)
        lt->MatrixLayoutDestroy(c->a);
    if (c->op)
        lt->MatmulDescDestroy(c->op);
}

static cublasStatus_t set_bias(const struct dt_cuda_lt *lt, struct call *c, const struct shape *s,
                               const void *bias)
{
    cublasLtEpilogue_t epilogue = CUBLASLT_EPILOGUE_BIAS;
    int32_t type = type_of((enum dt_dtype)s->bias_type);
    cublasStatus_t st;

    if (s->bias_type < 0)
        return CUBLAS_STATUS_SUCCESS;
    st = lt->MatmulDescSetAttribute(c->op, CUBLASLT_MATMUL_DESC_EPILOGUE, &epilogue,
                                    sizeof(epilogue));
    if (st == CUBLAS_STATUS_SUCCESS)
        st = lt->MatmulDescSetAttribute(c->op, CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, &type,
                                        sizeof(type));
    if (st == CUBLAS_STATUS_SUCCESS)
        st = lt->MatmulDescSetAttribute(c->op, CUBLASLT_MATMUL_DESC_BIAS_POINTER, &bias,
                                        sizeof(bias));
    return st;
}

static cublasStatus_t open_call(const struct dt_cuda_lt *lt, const struct shape *s,
                                const void *bias, struct call *c)
{
    cublasOperation_t ta = s->b_turned ? CUBLAS_OP_T : CUBLAS_OP_N;
    cublasOperation_t tb = s->a_turned ? CUBLAS_OP_T : CUBLAS_OP_N;
    cudaDataType_t in = type_of((enum dt_dtype)s->type), out = type_of((enum dt_dtype)s->c_type);
    cublasStatus_t st;

#define TRY(call)                                                                                  \
    do {                                                                                           \
        st = call;                                                                                 \
        if (st != CUBLAS_STATUS_SUCCESS)                                                           \
            return st;                                                                             \
    } while (0)
    TRY(lt->MatmulDescCreate(&c->op, CUBLAS_COMPUTE_32F, CUDA_R_32F));
    TRY(lt->MatmulDescSetAttribute(c->op, CUBLASLT_MATMUL_DESC_TRANSA, &ta, sizeof(ta)));
    TRY(lt->MatmulDescSetAttribute(c->op, CUBLASLT_MATMUL_DESC_TRANSB, &tb, sizeof(tb)));
    TRY(set_bias(lt, c, s, bias));
    TRY(lt->MatrixLayoutCreate(&c->a, in, (uint64_t)(s->b_turned ? s->k : s->n),
                               (uint64_t)(s->b_turned ? s->n : s->k), s->ldb));
    TRY(lt->MatrixLayoutCreate(&c->b, in, (uint64_t)(s->a_turned ? s->m : s->k),
                               (uint64_t)(s->a_turned ? s->k : s->m), s->lda));
    TRY(lt->MatrixLayoutCreate(&c->c, out, (uint64_t)s->n, (uint64_t)s->m, s->ldc));
    return CUBLAS_STATUS_SUCCESS;
}

static cublasStatus_t ask(const struct dt_cuda_lt *lt, cublasLtHandle_t handle,
                          const struct shape *s, struct call *c, cublasLtMatmulAlgo_t *algo,
                          bool *none)
{
    const struct {
        cublasLtMatmulPreferenceAttributes_t what;
        uint8_t log2;
    } align[] = {{CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, s->b_align},
                 {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, s->a_align},
                 {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, s->c_align},
                 {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, s->d_align}};
    cublasLtMatmulHeuristicResult_t found;
    uint64_t room = WORKSPACE;
    cublasStatus_t st;
    int n = 0;

    TRY(lt->MatmulPreferenceCreate(&c->want));
    TRY(lt->MatmulPreferenceSetAttribute(c->want, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &room,
                                         sizeof(room)));
    for (size_t i = 0; i < sizeof(align) / sizeof(align[0]); i++) {
        uint32_t bytes = 1u << align[i].log2;

        TRY(lt->MatmulPreferenceSetAttribute(c->want, align[i].what, &bytes, sizeof(bytes)));
    }
#undef TRY
    st = lt->MatmulAlgoGetHeuristic(handle, c->op, c->a, c->b, c->c, c->c, c->want, 1, &found, &n);
    *none = st == CUBLAS_STATUS_NOT_SUPPORTED ||
            (st == CUBLAS_STATUS_SUCCESS && (n == 0 || found.state != CUBLAS_STATUS_SUCCESS));
    if (*none)
        return CUBLAS_STATUS_SUCCESS;
    if (st == CUBLAS_STATUS_SUCCESS)
        *algo = found.algo;
    return st;
}

static uint64_t hash(const struct shape *s)
{
    const unsigned char *p = (const unsigned char *)s;
    uint64_t h = 1469598103934665603u;

    for (size_t i = 0; i < sizeof(*s); i++)
        h = (h ^ p[i]) * 1099511628211u;
    return h;
}

/* Where `s` is or will be; a full table forgets all. */
static struct known *place_of(struct dt_cuda_products *p, const struct shape *s)
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

/* false: the library has none for such a bias (or failed: q says so). */
static bool multiply(struct dt_device_queue *q, const struct shape *s, const void *a, const void *b,
                     const void *bias, const void *c, void *d)
{
    struct dt_cuda_products *p = q->products;
    struct known *k = place_of(p, s);
    float one = 1, beta = s->beta ? 1.0f : 0.0f;
    struct call x = {};
    cublasStatus_t st;
    void *room;
    bool done = false;

    if (k->used && k->none)
        return false;
    room = dt_cuda_scratch(q, DT_SCRATCH_PRODUCT, WORKSPACE);
    if (!room)
        return false;
    st = open_call(p->lt, s, bias, &x);
    if (st == CUBLAS_STATUS_SUCCESS && !k->used) {
        st = ask(p->lt, p->handle, s, &x, &k->algo, &k->none);
        if (st == CUBLAS_STATUS_SUCCESS) {
            k->s = *s;
            k->used = true;
            p->n++;
        }
    }
    if (lt_ok(q, st, "a product's description") && !k->none)
        done = lt_ok(q,
                     p->lt->Matmul(p->handle, x.op, &one, b, x.a, a, x.b, &beta, c, x.c, d, x.c,
                                   &k->algo, room, WORKSPACE, q->stream),
                     "a product");
    close_call(p->lt, &x);
    return done;
}

static uint8_t alignment(const void *p)
{
    uint8_t log2 = 1; /* parameters in bf16 lie side by side */

    while (log2 < 8 && ((uintptr_t)p >> log2 & 1) == 0)
        log2++;
    return log2;
}

/* d = a b + bias + c; bias and c may be NULL. */
static void product(struct dt_device_queue *q, int64_t m, int64_t n, int64_t k,
                    const struct dt_cuda_matrix &a, const struct dt_cuda_matrix &b,
                    const float *bias, const void *c, enum dt_dtype c_type, int64_t ldc, void *d)
{
    struct shape s;
    void *rounded;

    if (q->status != DT_OK)
        return;
    memset(&s, 0, sizeof(s)); /* compared as bytes */
    s.m = m;
    s.n = n;
    s.k = k;
    s.lda = a.ld;
    s.ldb = b.ld;
    s.ldc = ldc;
    s.type = a.dtype;
    s.c_type = c_type;
    s.bias_type = bias ? DT_F32 : -1;
    s.a_turned = a.turned;
    s.b_turned = b.turned;
    s.beta = c != NULL;
    s.a_align = alignment(a.p);
    s.b_align = alignment(b.p);
    s.c_align = alignment(c ? c : d);
    s.d_align = alignment(d);
    if (multiply(q, &s, a.p, b.p, bias, c ? c : d, d) || q->status != DT_OK)
        return;
    if (bias && c_type == DT_BF16) { /* libraries that want a bias in the type of the result */
        rounded = dt_cuda_scratch(q, DT_SCRATCH_BIAS, (size_t)n * 2);
        if (!rounded)
            return;
        q->dev->k->cast(q, n, DT_F32, bias, DT_BF16, rounded);
        s.bias_type = DT_BF16;
        if (multiply(q, &s, a.p, b.p, rounded, c ? c : d, d) || q->status != DT_OK)
            return;
    }
    dt_cuda_fail(q, DT_ERR_INTERNAL,
                 "cuBLASLt has no algorithm for a product of %lld x %lld x %lld", (long long)m,
                 (long long)n, (long long)k);
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
    product(q, m, n, k, a, b, NULL, add ? c : NULL, c_type, ldc, c);
}

void dt_cuda_product_bias(struct dt_device_queue *q, int64_t m, int64_t n, int64_t k,
                          struct dt_cuda_matrix a, struct dt_cuda_matrix b, const float *bias,
                          const void *residual, int64_t ldc, void *c)
{
    if (m > 0 && n > 0 && k > 0)
        product(q, m, n, k, a, b, bias, residual, a.dtype, ldc, c);
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

static void linear_bwd_weight(struct dt_device_queue *q, enum dt_dtype dtype, int64_t m,
                              int64_t out, int64_t in, const void *x, const void *dy, float *dw,
                              float *dbias, bool add)
{
    if (dw)
        dt_cuda_product(q, out, in, m, {dy, dtype, out, true}, {x, dtype, in, false}, add, DT_F32,
                        in, dw);
    if (dbias)
        q->dev->k->bias_bwd(q, dtype, m, out, dy, dbias, add);
}

void dt_cuda_linear(struct dt_kernels *k)
{
    k->linear_fwd = linear_fwd;
    k->linear_bwd_input = linear_bwd_input;
    k->linear_bwd_weight = linear_bwd_weight;
}
