// SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
//
// cuBLASLt on a CPU: products in double, by the definition, of what the descriptors say.  It checks what the
// library's documentation demands, and is as picky as the library may be: a bias must have the result's type, or the
// call is INVALID_VALUE, as that of an H100 said.  CUCPU_LT_BIAS=any: or be fp32; no: it takes none; late: it names
// algorithms and refuses when the product is to run.  CUCPU_LT_GRADIENT=no, late: the same of the gradient of a bias;
// CUCPU_LT_GELU=no, late, slow, fast: of GELU behind a product, or that takes 2 ms longer than it needs, or products
// without it do.
//
// It has two algorithms for most products.  Number 0 adds the sums of both halves of k and rounds them to the result's type
// before, unless its preference forbids that.  Number 1 is for matrices aligned to 16 bytes and wants little workspace.
// CUCPU_LT_SLOW=N: number N takes 2 ms longer than it needs.
#include "cuda_cpu_impl.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cublasLt.h>
#include <thread>
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
    const void *aux = nullptr;
    int64_t aux_ld = 0;
};
struct cublasLtMatrixLayoutOpaque_t {
    cudaDataType_t type;
    uint64_t rows, columns;
    int64_t ld;
};
struct cublasLtMatmulPreferenceOpaque_t {
    uint64_t room = 0;
    uint32_t align[4] = {256, 256, 256, 256}; // what the library assumes where nothing is said
    uint32_t parts = CUBLASLT_REDUCTION_SCHEME_MASK;
};

namespace
{

const uint64_t MARK = 0x6c74a160;

// What an algorithm relies on: data[1 + i] the alignment of matrix i, data[5] the workspace; data[6] is its number.  data[7]: it
// rounds the sums of both halves of k to the result's type before it adds them.
cublasLtMatmulAlgo_t algorithm(const uint32_t align[4], uint64_t room, uint64_t number, bool rounds)
{
    cublasLtMatmulAlgo_t a = {};

    a.data[0] = MARK;
    for (int i = 0; i < 4; i++)
        a.data[1 + i] = number == 0 ? align[i] : 16;
    a.data[5] = number == 0 || room < 4096 ? room : 4096;
    a.data[6] = number;
    a.data[7] = rounds;
    return a;
}

std::atomic<unsigned> ran[2], ran_gelu;

bool has_bias(cublasLtEpilogue_t e)
{
    return e == CUBLASLT_EPILOGUE_BIAS || e == CUBLASLT_EPILOGUE_GELU_AUX_BIAS;
}

bool has_aux(cublasLtEpilogue_t e)
{
    return e == CUBLASLT_EPILOGUE_GELU_AUX || e == CUBLASLT_EPILOGUE_GELU_AUX_BIAS ||
           e == CUBLASLT_EPILOGUE_DGELU;
}

// The tanh form of Hendrycks and Gimpel, and its derivative.
double gelu(double x)
{
    return 0.5 * x * (1 + std::tanh(std::sqrt(2 / M_PI) * (x + 0.044715 * x * x * x)));
}
double gelu_slope(double x)
{
    double t = std::tanh(std::sqrt(2 / M_PI) * (x + 0.044715 * x * x * x));

    return 0.5 * (1 + t) + 0.5 * x * (1 - t * t) * std::sqrt(2 / M_PI) * (1 + 3 * 0.044715 * x * x);
}

bool says(const char *name, const char *what)
{
    const char *env = getenv(name);

    return env && strcmp(env, what) == 0;
}

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

double rounded(double x, cudaDataType_t t)
{
    float f;

    set(&f, t, 0, x);
    return get(&f, t, 0);
}

// What it does not do, as the environment has it refuse: "no" when it is asked, "late" when it is to run.
cublasStatus_t refusal(const cublasLtMatmulDescOpaque_t &d, const char *when)
{
    bool refused = (has_aux(d.epilogue) && says("CUCPU_LT_GELU", when)) ||
                   (has_bias(d.epilogue) && says("CUCPU_LT_BIAS", when)) ||
                   (d.epilogue == CUBLASLT_EPILOGUE_BGRADB && says("CUCPU_LT_GRADIENT", when));

    return refused ? CUBLAS_STATUS_NOT_SUPPORTED : CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t wrong_bias(const cublasLtMatmulDescOpaque_t &d,
                          const cublasLtMatrixLayoutOpaque_t &to)
{
    bool biased = has_bias(d.epilogue) && !says("CUCPU_LT_BIAS", "any");

    return (biased || d.epilogue == CUBLASLT_EPILOGUE_BGRADB) && d.bias_type != to.type
               ? CUBLAS_STATUS_INVALID_VALUE
               : CUBLAS_STATUS_SUCCESS;
}

size_t extent(const cublasLtMatrixLayoutOpaque_t &l)
{
    return (l.columns - 1) * size_t(l.ld) + l.rows;
}

} // namespace

size_t cublasLtGetVersion()
{
    return 130100;
}
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
    case CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER:
        take(&d->aux, sizeof(void *));
        break;
    case CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD:
        take(&d->aux_ld, 8);
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
    else if (what == CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK && bytes == 4)
        memcpy(&p->parts, value, 4);
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
    *n = 0;
    if (wanted < 1 || a->type != b->type || c->type != to->type)
        stop("types that do not go together");
    if (cublasStatus_t st = refusal(*d, "no"))
        return st;
    if (cublasStatus_t st =
            says("CUCPU_LT_BIAS", "late") ? CUBLAS_STATUS_SUCCESS : wrong_bias(*d, *to))
        return st;
    bool aligned = true;

    for (uint32_t bytes : p->align)
        aligned = aligned && bytes >= 16;
    for (uint64_t number = 0; number < 2 && *n < wanted && (number == 0 || aligned); number++) {
        cublasLtMatmulHeuristicResult_t &f = found[(*n)++];

        f = {};
        f.algo = algorithm(p->align, p->room, number,
                           number == 0 && (p->parts & (CUBLASLT_REDUCTION_SCHEME_INPLACE |
                                                       CUBLASLT_REDUCTION_SCHEME_OUTPUT_TYPE)));
        f.workspaceSize = size_t(f.algo.data[5]);
        f.state = CUBLAS_STATUS_SUCCESS;
    }
    return CUBLAS_STATUS_SUCCESS;
}

// What was made by another version is refused.
cublasStatus_t cublasLtMatmulAlgoCheck(cublasLtHandle_t, cublasLtMatmulDesc_t,
                                       cublasLtMatrixLayout_t, cublasLtMatrixLayout_t,
                                       cublasLtMatrixLayout_t, cublasLtMatrixLayout_t,
                                       const cublasLtMatmulAlgo_t *algo,
                                       cublasLtMatmulHeuristicResult_t *result)
{
    if (cucpu_fails("cublasLtMatmulAlgoCheck"))
        return CUBLAS_STATUS_INTERNAL_ERROR;
    if (algo->data[0] != MARK || algo->data[6] > 1)
        return CUBLAS_STATUS_INVALID_VALUE;
    *result = {};
    result->workspaceSize = size_t(algo->data[5]);
    return CUBLAS_STATUS_SUCCESS;
}

// How often products with GELU have run.
extern "C" __attribute__((visibility("default"))) unsigned cucpu_lt_ran_gelu()
{
    return ran_gelu;
}

// How often each algorithm has run.
extern "C" __attribute__((visibility("default"))) void cucpu_lt_ran(unsigned out[2])
{
    for (int i = 0; i < 2; i++)
        out[i] = ran[i];
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
    cublasStatus_t no = refusal(op, "late");

    if (no == CUBLAS_STATUS_SUCCESS)
        no = wrong_bias(op, D);
    if (no != CUBLAS_STATUS_SUCCESS) {
        cucpu_error = cudaErrorInvalidValue; // who asks the runtime next is told
        return no;
    }
    uint64_t number = algo->data[6], room_bytes = algo->data[5];
    bool rounds = algo->data[7] != 0;
    size_t half = rounds ? size_t(k / 2) : 0;

    if (number > 1)
        stop("an algorithm that there is not");
    ran[number]++;
    void *sr = cucpu_seen(room, "a product's workspace");
    const void *sa = cucpu_seen(a, "a product"), *sb = cucpu_seen(b, "a product");
    const void *sc = g != 0 ? cucpu_seen(c, "a product") : nullptr;
    const void *bias = has_bias(op.epilogue) ? cucpu_seen(op.bias, "a product") : nullptr;
    void *db = op.epilogue == CUBLASLT_EPILOGUE_BGRADB
                   ? cucpu_seen(const_cast<void *>(op.bias), "a product")
                   : nullptr;
    void *sd = cucpu_seen(to, "a product");
    const char *slow = getenv("CUCPU_LT_SLOW");
    bool wait = (slow && atoi(slow) == int(number)) ||
                says("CUCPU_LT_GELU", has_aux(op.epilogue) ? "slow" : "fast");
    void *aux = nullptr;

    if (has_aux(op.epilogue)) {
        if (reinterpret_cast<uintptr_t>(op.aux) % 16 != 0 || op.aux_ld % 8 != 0 ||
            op.aux_ld < int64_t(D.rows))
            stop("what GELU is of is not aligned, or its columns are too near to each other");
        aux = cucpu_seen(const_cast<void *>(op.aux), "a product");
        ran_gelu++;
    }

    if (cucpu_dry()) {
        cucpu_dry_product(n, m, k, A.type, D.type,
                          sc != nullptr); // of rows, as the caller knows it
        return CUBLAS_STATUS_SUCCESS;
    }
    if (!bias && !db && !aux && op.epilogue != CUBLASLT_EPILOGUE_DEFAULT)
        stop("an epilogue that there is not");
    cucpu_task(s, "a product", [=] {
        if (wait)
            std::this_thread::sleep_for(std::chrono::milliseconds(2));
        memset(sr, 0xff, size_t(room_bytes < 4096 ? room_bytes : 4096));
        // what is not added to is not read: a factor that lies in the result's place is lost
        for (size_t j = 0; j < n && !sc; j++)
            for (size_t i = 0; i < m; i++)
                set(sd, D.type, i + j * size_t(D.ld), NAN);
        std::vector<double> x(extent(A)), y(extent(B)), r(m);

        for (size_t i = 0; i < x.size(); i++)
            x[i] = get(sa, A.type, i);
        for (size_t i = 0; i < y.size(); i++)
            y[i] = get(sb, B.type, i);
        size_t si = op.ta == CUBLAS_OP_N ? 1 : size_t(A.ld),
               sk = op.ta == CUBLAS_OP_N ? size_t(A.ld) : 1;
        size_t tk = op.tb == CUBLAS_OP_N ? 1 : size_t(B.ld),
               tj = op.tb == CUBLAS_OP_N ? size_t(B.ld) : 1;

        // to r, a column of the result: the sums over a part of k
        auto add = [&](size_t j, size_t from, size_t end) {
            std::vector<double> part(m);

            for (size_t l = from; l < end && si == 1; l++) {
                double w = y[l * tk + j * tj];

                for (size_t i = 0; i < m; i++)
                    part[i] += x[i + l * sk] * w;
            }
            for (size_t i = 0; i < m && si != 1; i++)
                for (size_t l = from; l < end; l++)
                    part[i] += x[i * si + l] * y[l * tk + j * tj];
            for (size_t i = 0; i < m; i++)
                r[i] += rounds ? rounded(part[i], D.type) : part[i];
        };

        for (size_t j = 0; j < n; j++) {
            if (db) {
                double sum = 0;

                for (size_t l = 0; l < k; l++)
                    sum += y[l * tk + j * tj];
                set(db, cudaDataType_t(op.bias_type), j, sum);
            }
            std::fill(r.begin(), r.end(), 0);
            add(j, 0, half);
            add(j, half, size_t(k));
            for (size_t i = 0; i < m; i++) {
                double sum = double(f) * r[i];

                if (sc)
                    sum += double(g) * get(sc, C.type, i + j * size_t(C.ld));
                if (bias)
                    sum += get(bias, cudaDataType_t(op.bias_type), i);
                if (op.epilogue == CUBLASLT_EPILOGUE_DGELU) {
                    sum *= gelu_slope(get(aux, D.type, i + j * size_t(op.aux_ld)));
                } else if (aux) {
                    set(aux, D.type, i + j * size_t(op.aux_ld), sum);
                    sum = gelu(sum);
                }
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
