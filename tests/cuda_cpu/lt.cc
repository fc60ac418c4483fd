// SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
//
// cuBLASLt on a CPU: products in double, by the definition, of what the descriptors say.  It checks what the
// library's documentation demands, and is as picky as the library may be: by default a bias must have the
// result's type (CUCPU_LT_BIAS=any: or be fp32), so that callers' other ways are walked, too.
#include "cuda_cpu_impl.h"

#include <cstdio>
#include <cstdlib>
#include <cublasLt.h>
#include <vector>

extern "C" {
#include "base/status.h"
}
#include "kernels/cuda/products.h"

struct cublasLtContext {
    int alive;
};
struct cublasLtMatmulDescOpaque_t {
    cublasOperation_t ta = CUBLAS_OP_N, tb = CUBLAS_OP_N;
    cublasLtEpilogue_t epilogue = CUBLASLT_EPILOGUE_DEFAULT;
    const void *bias = nullptr;
    int32_t bias_type = -1;
};
struct cublasLtMatrixLayoutOpaque_t {
    cudaDataType_t type;
    uint64_t rows, columns;
    int64_t ld;
};
struct cublasLtMatmulPreferenceOpaque_t {
    uint64_t room = 0;
    uint32_t align[4] = {256, 256, 256, 256}; // what the library assumes where nothing is said
};

namespace
{

const uint64_t MARK = 0x6c74a160;

[[noreturn]] void stop(const char *what)
{
    fprintf(stderr, "cuBLASLt on the cpu: %s\n", what);
    abort();
}

double get(const void *p, cudaDataType_t t, size_t i)
{
    if (t == CUDA_R_32F)
        return static_cast<const float *>(p)[i];
    uint32_t u = uint32_t(static_cast<const uint16_t *>(p)[i]) << 16;
    float f;

    memcpy(&f, &u, 4);
    return f;
}

void set(void *p, cudaDataType_t t, size_t i, double x)
{
    float f = float(x);
    uint32_t u;

    if (t == CUDA_R_32F) {
        static_cast<float *>(p)[i] = f;
        return;
    }
    memcpy(&u, &f, 4);
    if (f == f)
        u += 0x7fff + (u >> 16 & 1);
    static_cast<uint16_t *>(p)[i] = uint16_t(u >> 16);
}

size_t extent(const cublasLtMatrixLayoutOpaque_t &l)
{
    return (l.columns - 1) * size_t(l.ld) + l.rows;
}

} // namespace

cublasStatus_t cublasLtCreate(cublasLtHandle_t *h)
{
    if (cucpu_fails("cublasLtCreate"))
        return CUBLAS_STATUS_INTERNAL_ERROR;
    *h = new cublasLtContext{1};
    return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtDestroy(cublasLtHandle_t h)
{
    delete h;
    return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t *d, cublasComputeType_t,
                                        cudaDataType_t)
{
    if (cucpu_fails("cublasLtMatmulDescCreate"))
        return CUBLAS_STATUS_INTERNAL_ERROR;
    *d = new cublasLtMatmulDescOpaque_t;
    return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t d)
{
    delete d;
    return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t d,
                                              cublasLtMatmulDescAttributes_t what, const void *p,
                                              size_t bytes)
{
    if (cucpu_fails("cublasLtMatmulDescSetAttribute"))
        return CUBLAS_STATUS_INTERNAL_ERROR;
    auto take = [&](void *to, size_t n) {
        if (bytes != n)
            stop("an attribute of another size");
        memcpy(to, p, n);
    };

    switch (what) {
    case CUBLASLT_MATMUL_DESC_TRANSA:
        take(&d->ta, 4);
        break;
    case CUBLASLT_MATMUL_DESC_TRANSB:
        take(&d->tb, 4);
        break;
    case CUBLASLT_MATMUL_DESC_EPILOGUE:
        take(&d->epilogue, 4);
        break;
    case CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE:
        take(&d->bias_type, 4);
        break;
    case CUBLASLT_MATMUL_DESC_BIAS_POINTER:
        take(&d->bias, sizeof(void *));
        break;
    }
    return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t *l, cudaDataType_t type,
                                          uint64_t rows, uint64_t columns, int64_t ld)
{
    if (cucpu_fails("cublasLtMatrixLayoutCreate"))
        return CUBLAS_STATUS_INTERNAL_ERROR;
    *l = new cublasLtMatrixLayoutOpaque_t{type, rows, columns, ld};
    return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t l)
{
    delete l;
    return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t *p)
{
    if (cucpu_fails("cublasLtMatmulPreferenceCreate"))
        return CUBLAS_STATUS_INTERNAL_ERROR;
    *p = new cublasLtMatmulPreferenceOpaque_t;
    return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t p)
{
    delete p;
    return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t p,
                                                    cublasLtMatmulPreferenceAttributes_t what,
                                                    const void *value, size_t bytes)
{
    if (cucpu_fails("cublasLtMatmulPreferenceSetAttribute"))
        return CUBLAS_STATUS_INTERNAL_ERROR;
    if (what == CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES && bytes == 8)
        memcpy(&p->room, value, 8);
    else if (what >= CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES && bytes == 4)
        memcpy(&p->align[what - CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES], value, 4);
    else
        stop("a preference of another size");
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t, cublasLtMatmulDesc_t d,
                                              cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                                              cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t to,
                                              cublasLtMatmulPreference_t p, int wanted,
                                              cublasLtMatmulHeuristicResult_t *found, int *n)
{
    if (cucpu_fails("cublasLtMatmulAlgoGetHeuristic"))
        return CUBLAS_STATUS_INTERNAL_ERROR;
    const char *any = getenv("CUCPU_LT_BIAS");

    *n = 0;
    if (wanted < 1 || a->type != b->type || c->type != to->type)
        stop("types that do not go together");
    if (d->epilogue == CUBLASLT_EPILOGUE_BIAS && d->bias_type != to->type &&
        !(any && strcmp(any, "any") == 0))
        return CUBLAS_STATUS_NOT_SUPPORTED;
    *found = {};
    // the alignment that the algorithm relies on is what the product is held to
    found->algo.data[0] = MARK;
    for (int i = 0; i < 4; i++)
        found->algo.data[1 + i] = p->align[i];
    found->algo.data[5] = p->room;
    found->workspaceSize = size_t(p->room);
    found->state = CUBLAS_STATUS_SUCCESS;
    *n = 1;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmul(cublasLtHandle_t, cublasLtMatmulDesc_t d, const void *alpha,
                              const void *a, cublasLtMatrixLayout_t la, const void *b,
                              cublasLtMatrixLayout_t lb, const void *beta, const void *c,
                              cublasLtMatrixLayout_t lc, void *to, cublasLtMatrixLayout_t ld,
                              const cublasLtMatmulAlgo_t *algo, void *room, size_t bytes,
                              cudaStream_t s)
{
    if (cucpu_fails("cublasLtMatmul"))
        return CUBLAS_STATUS_INTERNAL_ERROR;
    cublasLtMatmulDescOpaque_t op = *d;
    cublasLtMatrixLayoutOpaque_t A = *la, B = *lb, C = *lc, D = *ld;
    uint64_t m = op.ta == CUBLAS_OP_N ? A.rows : A.columns;
    uint64_t k = op.ta == CUBLAS_OP_N ? A.columns : A.rows;
    uint64_t n = op.tb == CUBLAS_OP_N ? B.columns : B.rows;
    float f, g;
    const void *at[4] = {a, b, c, to};

    memcpy(&f, alpha, 4);
    memcpy(&g, beta, 4);
    if ((op.tb == CUBLAS_OP_N ? B.rows : B.columns) != k || D.rows != m || D.columns != n ||
        C.rows != m || C.columns != n)
        stop("sizes that do not go together");
    if (A.ld < int64_t(A.rows) || B.ld < int64_t(B.rows) || D.ld < int64_t(D.rows))
        stop("columns nearer to each other than they are long");
    if (algo->data[0] != MARK || bytes < algo->data[5] || !room)
        stop("not the algorithm, or not the workspace, that was found");
    for (int i = 0; i < 4; i++)
        if (reinterpret_cast<uintptr_t>(at[i]) % algo->data[1 + i] != 0)
            stop("a matrix that is not aligned as the algorithm was found for");
    cucpu_seen(room, "a product's workspace");
    const void *sa = cucpu_seen(a, "a product"), *sb = cucpu_seen(b, "a product");
    const void *sc = g != 0 ? cucpu_seen(c, "a product") : nullptr;
    const void *bias =
        op.epilogue == CUBLASLT_EPILOGUE_BIAS ? cucpu_seen(op.bias, "a product") : nullptr;
    void *sd = cucpu_seen(to, "a product");

    cucpu_task(s, "a product", [=] {
        std::vector<double> x(extent(A)), y(extent(B)), r(m);

        for (size_t i = 0; i < x.size(); i++)
            x[i] = get(sa, A.type, i);
        for (size_t i = 0; i < y.size(); i++)
            y[i] = get(sb, B.type, i);
        size_t si = op.ta == CUBLAS_OP_N ? 1 : size_t(A.ld),
               sk = op.ta == CUBLAS_OP_N ? size_t(A.ld) : 1;
        size_t tk = op.tb == CUBLAS_OP_N ? 1 : size_t(B.ld),
               tj = op.tb == CUBLAS_OP_N ? size_t(B.ld) : 1;

        for (size_t j = 0; j < n; j++) {
            for (size_t i = 0; i < m; i++)
                r[i] = 0;
            if (si == 1) {
                for (size_t l = 0; l < k; l++) {
                    double w = y[l * tk + j * tj];

                    for (size_t i = 0; i < m; i++)
                        r[i] += x[i + l * sk] * w;
                }
            } else {
                for (size_t i = 0; i < m; i++) {
                    double sum = 0;

                    for (size_t l = 0; l < k; l++)
                        sum += x[i * si + l] * y[l * tk + j * tj];
                    r[i] = sum;
                }
            }
            for (size_t i = 0; i < m; i++) {
                double sum = double(f) * r[i];

                if (sc)
                    sum += double(g) * get(sc, C.type, i + j * size_t(C.ld));
                if (bias)
                    sum += get(bias, cudaDataType_t(op.bias_type), i);
                set(sd, D.type, i + j * size_t(D.ld), sum);
            }
        }
    });
    return CUBLAS_STATUS_SUCCESS;
}

// In place of lt.cu.
const struct dt_cuda_lt *dt_cuda_lt_load(struct dt_error *)
{
    static const struct dt_cuda_lt lt = {
#define X(fn) &cublasLt##fn,
        DT_CUDA_LT_FUNCTIONS(X)
#undef X
    };

    return &lt;
}
