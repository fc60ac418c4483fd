/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * cuBLASLt, which is loaded at run time: the functions that we use, a product as it describes it, and the
 * choice of an algorithm for it. */
#ifndef DT_KERNELS_CUDA_PRODUCTS_H
#define DT_KERNELS_CUDA_PRODUCTS_H

#include "kernels/cuda/cuda.h"

#include <cublasLt.h>

#define DT_CUDA_LT_FUNCTIONS(X)                                                                    \
    X(GetVersion)                                                                                  \
    X(Create)                                                                                      \
    X(Destroy)                                                                                     \
    X(MatmulDescCreate)                                                                            \
    X(MatmulDescDestroy)                                                                           \
    X(MatmulDescSetAttribute)                                                                      \
    X(MatrixLayoutCreate)                                                                          \
    X(MatrixLayoutDestroy)                                                                         \
    X(MatmulPreferenceCreate)                                                                      \
    X(MatmulPreferenceDestroy)                                                                     \
    X(MatmulPreferenceSetAttribute)                                                                \
    X(MatmulAlgoCheck)                                                                             \
    X(MatmulAlgoGetHeuristic)                                                                      \
    X(Matmul)

struct dt_cuda_lt {
#define X(name) decltype(&cublasLt##name) name;
    DT_CUDA_LT_FUNCTIONS(X)
#undef X
};
/* Leaves a function with the status of a call that failed. */
#define DT_CUDA_LT_TRY(call)                                                                       \
    do {                                                                                           \
        cublasStatus_t st_ = call;                                                                 \
                                                                                                   \
        if (st_ != CUBLAS_STATUS_SUCCESS)                                                          \
            return st_;                                                                            \
    } while (0)

/* Does the library say that it does not do this, and not that something broke?  It says either of a bias in fp32 beside a
 * result in bf16, and says it when it is asked for an algorithm or only when the product is to run. */
static inline bool dt_cuda_lt_refuses(cublasStatus_t st)
{
    return st == CUBLAS_STATUS_NOT_SUPPORTED || st == CUBLAS_STATUS_INVALID_VALUE ||
           st == CUBLAS_STATUS_ARCH_MISMATCH;
}

/* Loaded once; NULL with `err` filled when it is not there. */
const struct dt_cuda_lt *dt_cuda_lt_load(struct dt_error *err);

/* Workspace of a queue's products, in bytes: what NVIDIA recommends for sm_90 (cuBLAS documentation, cublasSetWorkspace). */
enum { DT_CUDA_PRODUCT_ROOM = 32 << 20 };

/* What comes with d = a b + c. */
enum {
    DT_CUDA_PLAIN,
    DT_CUDA_BIAS, /* + a row, the bias */
    DT_CUDA_BIAS_GRAD, /* a is a turned gradient: the sums of its rows go to where a bias would be read */
    DT_CUDA_GELU,      /* GELU of it (tanh form), and what it was before goes to h */
    DT_CUDA_GELU_BIAS, /* the same of d + a bias */
    DT_CUDA_GELU_GRAD  /* times the derivative of GELU where h is */
};

/* What decides which algorithm is taken: of rows, as we know them. */
struct dt_cuda_shape {
    int64_t m, n, k, lda, ldb, ldc;
    int32_t type, c_type, bias_type;
    uint8_t a_turned, b_turned, beta, epilogue;
    uint8_t a_align, b_align, c_align, d_align, bias_align; /* log2 of bytes */
    uint8_t pad[3];
};
struct dt_cuda_operands {
    const void *a, *b;
    const void *bias; /* or where its gradient goes */
    const void *c;    /* NULL: nothing is added */
    void *d;
    void *h; /* laid out like d; NULL: none */
};
struct dt_cuda_call { /* the library's descriptors of it */
    cublasLtMatmulDesc_t op;
    cublasLtMatrixLayout_t a, b, c; /* of columns: first, second factor, result */
    cublasLtMatmulPreference_t want;
};
cublasStatus_t dt_cuda_call_open(const struct dt_cuda_lt *lt, const struct dt_cuda_shape *s,
                                 const struct dt_cuda_operands *o, struct dt_cuda_call *c);
void dt_cuda_call_close(const struct dt_cuda_lt *lt, struct dt_cuda_call *c);
/* The product into `d` instead of o->d. */
cublasStatus_t dt_cuda_call_run(struct dt_device_queue *q, const struct dt_cuda_lt *lt,
                                cublasLtHandle_t handle, const struct dt_cuda_shape *s,
                                const struct dt_cuda_call *x, const struct dt_cuda_operands *o,
                                void *d, void *room, const cublasLtMatmulAlgo_t *algo);
/* The algorithm for a shape that is new to the queue: the one that was noted for it, else the library's first one or,
 * where the device keeps notes (struct dt_device_notes), the fastest.  *none: there is none for this epilogue. */
cublasStatus_t dt_cuda_choose(struct dt_device_queue *q, const struct dt_cuda_lt *lt,
                              cublasLtHandle_t handle, const struct dt_cuda_shape *s,
                              struct dt_cuda_call *x, const struct dt_cuda_operands *o, void *room,
                              cublasLtMatmulAlgo_t *algo, bool *none);
/* The same where there is another way without this epilogue, which takes ns(arg); below 0: it cannot be run.  *none: that
 * is the way to go.  The device keeps notes. */
typedef double dt_cuda_apart_fn(struct dt_device_queue *q, void *arg);
cublasStatus_t dt_cuda_choose_way(struct dt_device_queue *q, const struct dt_cuda_lt *lt,
                                  cublasLtHandle_t handle, const struct dt_cuda_shape *s,
                                  struct dt_cuda_call *x, const struct dt_cuda_operands *o,
                                  void *room, dt_cuda_apart_fn *apart, void *arg,
                                  cublasLtMatmulAlgo_t *algo, bool *none);
/* Nanoseconds of the fastest of some runs, on a queue that has nothing else to do; below 0: it cannot be run. */
double dt_cuda_time(struct dt_device_queue *q, bool (*run)(struct dt_device_queue *q, void *arg),
                    void *arg);

struct dt_cuda_shape dt_cuda_shape_of(int64_t m, int64_t n, int64_t k,
                                      const struct dt_cuda_matrix &a,
                                      const struct dt_cuda_matrix &b, enum dt_dtype c_type,
                                      int64_t ldc, const struct dt_cuda_operands &o);
/* false: nothing has been done, as the other way is faster, or the library has none for such an epilogue (or q failed). */
bool dt_cuda_multiply_if_faster(struct dt_device_queue *q, const struct dt_cuda_shape *s,
                                const struct dt_cuda_operands *o, dt_cuda_apart_fn *apart,
                                void *arg);

#endif
