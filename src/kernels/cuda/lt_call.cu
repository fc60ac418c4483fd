/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * A product as cuBLASLt's descriptors say it.
 *
 * cuBLASLt knows columns where we know rows: c = a b by rows is cᵀ = bᵀ aᵀ by columns, in the same memory.  So our
 * second factor is its first one, and what it calls a column of the result is one of our rows. */
#include "kernels/cuda/products.h"

static cudaDataType_t type_of(int32_t t)
{
    return t == DT_BF16 ? CUDA_R_16BF : CUDA_R_32F;
}

void dt_cuda_call_close(const struct dt_cuda_lt *lt, struct dt_cuda_call *c)
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

/* A bias has as many elements as its columns, our rows, are long; the gradient of one is of its second factor. */
static cublasStatus_t set_bias(const struct dt_cuda_lt *lt, struct dt_cuda_call *c,
                               const struct dt_cuda_shape *s, const void *bias)
{
    int32_t type = type_of(s->bias_type);

    DT_CUDA_LT_TRY(lt->MatmulDescSetAttribute(c->op, CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, &type,
                                              sizeof(type)));
    return lt->MatmulDescSetAttribute(c->op, CUBLASLT_MATMUL_DESC_BIAS_POINTER, &bias,
                                      sizeof(bias));
}

/* What an activation is of lies like the result, and is of its type. */
static cublasStatus_t set_h(const struct dt_cuda_lt *lt, struct dt_cuda_call *c,
                            const struct dt_cuda_shape *s, const void *h)
{
    int64_t ld = s->ldc;

    DT_CUDA_LT_TRY(
        lt->MatmulDescSetAttribute(c->op, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, &ld, sizeof(ld)));
    return lt->MatmulDescSetAttribute(c->op, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, &h,
                                      sizeof(h));
}

static cublasStatus_t set_epilogue(const struct dt_cuda_lt *lt, struct dt_cuda_call *c,
                                   const struct dt_cuda_shape *s, const struct dt_cuda_operands *o)
{
    static const cublasLtEpilogue_t epilogues[] = {
        CUBLASLT_EPILOGUE_DEFAULT,  CUBLASLT_EPILOGUE_BIAS,          CUBLASLT_EPILOGUE_BGRADB,
        CUBLASLT_EPILOGUE_GELU_AUX, CUBLASLT_EPILOGUE_GELU_AUX_BIAS, CUBLASLT_EPILOGUE_DGELU};
    cublasLtEpilogue_t epilogue = epilogues[s->epilogue];

    if (s->epilogue == DT_CUDA_PLAIN)
        return CUBLAS_STATUS_SUCCESS;
    DT_CUDA_LT_TRY(lt->MatmulDescSetAttribute(c->op, CUBLASLT_MATMUL_DESC_EPILOGUE, &epilogue,
                                              sizeof(epilogue)));
    if (o->bias)
        DT_CUDA_LT_TRY(set_bias(lt, c, s, o->bias));
    return o->h ? set_h(lt, c, s, o->h) : CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t dt_cuda_call_open(const struct dt_cuda_lt *lt, const struct dt_cuda_shape *s,
                                 const struct dt_cuda_operands *o, struct dt_cuda_call *c)
{
    cublasOperation_t ta = s->b_turned ? CUBLAS_OP_T : CUBLAS_OP_N;
    cublasOperation_t tb = s->a_turned ? CUBLAS_OP_T : CUBLAS_OP_N;
    cudaDataType_t in = type_of(s->type), out = type_of(s->c_type);

    DT_CUDA_LT_TRY(lt->MatmulDescCreate(&c->op, CUBLAS_COMPUTE_32F, CUDA_R_32F));
    DT_CUDA_LT_TRY(lt->MatmulDescSetAttribute(c->op, CUBLASLT_MATMUL_DESC_TRANSA, &ta, sizeof(ta)));
    DT_CUDA_LT_TRY(lt->MatmulDescSetAttribute(c->op, CUBLASLT_MATMUL_DESC_TRANSB, &tb, sizeof(tb)));
    DT_CUDA_LT_TRY(set_epilogue(lt, c, s, o));
    DT_CUDA_LT_TRY(lt->MatrixLayoutCreate(&c->a, in, (uint64_t)(s->b_turned ? s->k : s->n),
                                          (uint64_t)(s->b_turned ? s->n : s->k), s->ldb));
    DT_CUDA_LT_TRY(lt->MatrixLayoutCreate(&c->b, in, (uint64_t)(s->a_turned ? s->m : s->k),
                                          (uint64_t)(s->a_turned ? s->k : s->m), s->lda));
    DT_CUDA_LT_TRY(lt->MatrixLayoutCreate(&c->c, out, (uint64_t)s->n, (uint64_t)s->m, s->ldc));
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t dt_cuda_call_run(struct dt_device_queue *q, const struct dt_cuda_lt *lt,
                                cublasLtHandle_t handle, const struct dt_cuda_shape *s,
                                const struct dt_cuda_call *x, const struct dt_cuda_operands *o,
                                void *d, void *room, const cublasLtMatmulAlgo_t *algo)
{
    float one = 1, beta = s->beta ? 1.0f : 0.0f;
    cublasStatus_t st =
        lt->Matmul(handle, x->op, &one, o->b, x->a, o->a, x->b, &beta, o->c ? o->c : d, x->c, d,
                   x->c, algo, room, DT_CUDA_PRODUCT_ROOM, q->stream);

    if (dt_cuda_lt_refuses(st))
        cudaGetLastError(); /* what it tried is no failure of the next launch */
    return st;
}
