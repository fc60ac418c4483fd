/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Which of cuBLASLt's algorithms a product takes.  The library's first guess is usually good; where the device keeps
 * notes, all that it suggests are timed once, on the operands at hand but into memory of their own, and the fastest
 * is noted for every later run on such a card with the same version of the library. */
#include "kernels/cuda/device.h"
#include "kernels/cuda/products.h"

#include <stdio.h>
#include <string.h>

/* Each candidate runs once before it is timed.  What is not at least 2 % faster than the library's first is not
 * taken for it: times on a card scatter by about that much. */
enum { CANDIDATES = 8, RUNS = 4 };
static const double WORTH = 0.98;

/* At most `want` algorithms, the library's favourite first; *n = 0: it has none.  Sums of parts of k are kept in fp32: by itself
 * the library may keep them in the result's type, and round them to bf16 before it adds them. */
static cublasStatus_t ask(const struct dt_cuda_lt *lt, cublasLtHandle_t handle,
                          const struct dt_cuda_shape *s, struct dt_cuda_call *c, int want,
                          cublasLtMatmulHeuristicResult_t *found, int *n)
{
    const struct {
        cublasLtMatmulPreferenceAttributes_t what;
        uint8_t log2;
    } align[] = {{CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, s->b_align},
                 {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, s->a_align},
                 {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, s->c_align},
                 {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, s->d_align}};
    uint64_t room = DT_CUDA_PRODUCT_ROOM;
    uint32_t parts = CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE;
    cublasStatus_t st;
    int got = 0;

    DT_CUDA_LT_TRY(lt->MatmulPreferenceCreate(&c->want));
    DT_CUDA_LT_TRY(lt->MatmulPreferenceSetAttribute(
        c->want, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &room, sizeof(room)));
    if (s->c_type == DT_BF16)
        DT_CUDA_LT_TRY(lt->MatmulPreferenceSetAttribute(
            c->want, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, &parts, sizeof(parts)));
    for (size_t i = 0; i < sizeof(align) / sizeof(align[0]); i++) {
        uint32_t bytes = 1u << align[i].log2;

        DT_CUDA_LT_TRY(
            lt->MatmulPreferenceSetAttribute(c->want, align[i].what, &bytes, sizeof(bytes)));
    }
    st = lt->MatmulAlgoGetHeuristic(handle, c->op, c->a, c->b, c->c, c->c, c->want, want, found,
                                    &got);
    *n = 0;
    if (dt_cuda_lt_refuses(st))
        return CUBLAS_STATUS_SUCCESS;
    DT_CUDA_LT_TRY(st);
    for (int i = 0; i < got; i++)
        if (found[i].state == CUBLAS_STATUS_SUCCESS &&
            found[i].workspaceSize <= DT_CUDA_PRODUCT_ROOM)
            found[(*n)++] = found[i];
    return CUBLAS_STATUS_SUCCESS;
}

/* ---- notes ---- */

static void name_of(const struct dt_cuda_shape *s, char *out, size_t size)
{
    static const char *const epilogues[] = {"none", "bias",         "bias gradient",
                                            "gelu", "gelu of bias", "gelu gradient"};
    static const char *const types[] = {"fp32", "bf16"};

    snprintf(out, size,
             "m %lld n %lld k %lld ld %lld %lld %lld %s to %s turned %d%d add %d "
             "epilogue %s%s%s%s aligned %d %d %d %d %d",
             (long long)s->m, (long long)s->n, (long long)s->k, (long long)s->lda,
             (long long)s->ldb, (long long)s->ldc, types[s->type], types[s->c_type], s->a_turned,
             s->b_turned, s->beta, epilogues[s->epilogue], s->epilogue ? " " : "",
             s->epilogue ? types[s->bias_type] : "", s->c_type == DT_BF16 ? " parts fp32" : "",
             1 << s->a_align, 1 << s->b_align, 1 << s->c_align, 1 << s->d_align,
             1 << s->bias_align);
}

/* What was noted may be of a library that says the same of itself and is another one: it is asked. */
static bool is_noted(const struct dt_device_notes *notes, const struct dt_device *dev,
                     const struct dt_cuda_lt *lt, cublasLtHandle_t handle, const char *name,
                     const struct dt_cuda_call *x, cublasLtMatmulAlgo_t *algo)
{
    cublasLtMatmulHeuristicResult_t can;

    return notes->find(notes->arg, dev->info.name, (int64_t)lt->GetVersion(), name, algo,
                       sizeof(*algo)) &&
           lt->MatmulAlgoCheck(handle, x->op, x->a, x->b, x->c, x->c, algo, &can) ==
               CUBLAS_STATUS_SUCCESS &&
           can.state == CUBLAS_STATUS_SUCCESS && can.workspaceSize <= DT_CUDA_PRODUCT_ROOM;
}

/* ---- timing ---- */

double dt_cuda_time(struct dt_device_queue *q, bool (*run)(struct dt_device_queue *q, void *arg),
                    void *arg)
{
    cudaEvent_t event[2] = {};
    float best = INFINITY, ms;
    int i = 0;

    if (dt_cuda_said(cudaEventCreateWithFlags(&event[0], 0)) == cudaSuccess &&
        dt_cuda_said(cudaEventCreateWithFlags(&event[1], 0)) == cudaSuccess &&
        dt_cuda_said(cudaStreamSynchronize(q->stream)) == cudaSuccess)
        for (; i < RUNS; i++) {
            if (dt_cuda_said(cudaEventRecord(event[0], q->stream)) != cudaSuccess || !run(q, arg) ||
                dt_cuda_said(cudaEventRecord(event[1], q->stream)) != cudaSuccess ||
                dt_cuda_said(cudaEventSynchronize(event[1])) != cudaSuccess ||
                dt_cuda_said(cudaEventElapsedTime(&ms, event[0], event[1])) != cudaSuccess)
                break;
            if (i > 0 && ms < best)
                best = ms;
        }
    for (cudaEvent_t e : event)
        if (e)
            dt_cuda_said(cudaEventDestroy(e));
    return i < RUNS ? -1 : (double)best * 1e6;
}

struct trial {
    const struct dt_cuda_lt *lt;
    cublasLtHandle_t handle;
    const struct dt_cuda_shape *s;
    const struct dt_cuda_call *x;
    const struct dt_cuda_operands *o;
    void *room, *d; /* workspace; memory for results */
    const cublasLtMatmulAlgo_t *algo;
};

static bool try_it(struct dt_device_queue *q, void *arg)
{
    const struct trial *t = (const struct trial *)arg;

    return dt_cuda_call_run(q, t->lt, t->handle, t->s, t->x, t->o, t->d, t->room, t->algo) ==
           CUBLAS_STATUS_SUCCESS;
}

/* The fastest of `n`; *ns its time and *first_ns that of the library's first one.  -1: nothing could be timed. */
static int fastest(struct dt_device_queue *q, struct trial *t,
                   const cublasLtMatmulHeuristicResult_t *found, int n, double *ns,
                   double *first_ns)
{
    int best = -1;

    for (int i = 0; i < n; i++) {
        double now;

        t->algo = &found[i].algo;
        now = dt_cuda_time(q, try_it, t);
        if (i == 0)
            *first_ns = now;
        if (now >= 0 && (best < 0 || now < (best == 0 ? WORTH : 1.0) * *ns)) {
            best = i;
            *ns = now;
        }
    }
    return best;
}

/* The result's place is not written to: what is added to may lie there. */
static int search(struct dt_device_queue *q, struct trial *t,
                  const cublasLtMatmulHeuristicResult_t *found, int n, double *ns, double *first_ns)
{
    const struct dt_device *dev = q->dev;
    size_t bytes =
        (size_t)((t->s->m - 1) * t->s->ldc + t->s->n) * dt_dtype_bytes((enum dt_dtype)t->s->c_type);
    struct dt_device_memory_owner *o = dev->memory_for(dev, NULL);
    void *p = NULL;
    int best = -1;

    if (dev->alloc(dev, bytes + 256, NULL, &p) == DT_OK) {
        t->d = (void *)(((uintptr_t)p + 255) / 256 * 256);
        best = fastest(q, t, found, n, ns, first_ns);
        dev->free(dev, p);
    }
    dev->memory_for(dev, o);
    return best;
}

cublasStatus_t dt_cuda_choose(struct dt_device_queue *q, const struct dt_cuda_lt *lt,
                              cublasLtHandle_t handle, const struct dt_cuda_shape *s,
                              struct dt_cuda_call *x, const struct dt_cuda_operands *o, void *room,
                              cublasLtMatmulAlgo_t *algo, bool *none)
{
    const struct dt_device_notes *notes = q->dev->notes;
    struct trial t = {lt, handle, s, x, o, room, NULL, NULL};
    cublasLtMatmulHeuristicResult_t found[CANDIDATES];
    double ns = 0, first_ns = 0;
    int n, best = -1;
    char name[320];

    *none = false;
    if (notes) {
        name_of(s, name, sizeof(name));
        if (is_noted(notes, q->dev, lt, handle, name, x, algo))
            return CUBLAS_STATUS_SUCCESS;
    }
    DT_CUDA_LT_TRY(ask(lt, handle, s, x, notes ? CANDIDATES : 1, found, &n));
    *none = n == 0;
    if (*none)
        return CUBLAS_STATUS_SUCCESS;
    if (notes && n > 1)
        best = search(q, &t, found, n, &ns, &first_ns);
    if (best >= 0)
        notes->keep(notes->arg, q->dev->info.name, (int64_t)lt->GetVersion(), name,
                    &found[best].algo, sizeof(found[best].algo), ns, first_ns);
    *algo = found[best >= 0 && notes->at_once ? best : 0].algo;
    return CUBLAS_STATUS_SUCCESS;
}

/* ---- one product, or two kernels ---- */

/* Noted for the way without the epilogue: no algorithm, which the library's have something in. */
static bool is_nothing(const cublasLtMatmulAlgo_t *algo)
{
    static const cublasLtMatmulAlgo_t nothing = {};

    return memcmp(algo, &nothing, sizeof(nothing)) == 0;
}

static bool way_is_noted(const struct dt_device_notes *notes, const struct dt_device *dev,
                         const struct dt_cuda_lt *lt, cublasLtHandle_t handle, const char *name,
                         const struct dt_cuda_call *x, cublasLtMatmulAlgo_t *algo, bool *none)
{
    *none = notes->find(notes->arg, dev->info.name, (int64_t)lt->GetVersion(), name, algo,
                        sizeof(*algo)) &&
            is_nothing(algo);
    return *none || is_noted(notes, dev, lt, handle, name, x, algo);
}

cublasStatus_t dt_cuda_choose_way(struct dt_device_queue *q, const struct dt_cuda_lt *lt,
                                  cublasLtHandle_t handle, const struct dt_cuda_shape *s,
                                  struct dt_cuda_call *x, const struct dt_cuda_operands *o,
                                  void *room, dt_cuda_apart_fn *apart, void *arg,
                                  cublasLtMatmulAlgo_t *algo, bool *none)
{
    static const cublasLtMatmulAlgo_t nothing = {};
    const struct dt_device_notes *notes = q->dev->notes;
    struct trial t = {lt, handle, s, x, o, room, NULL, NULL};
    cublasLtMatmulHeuristicResult_t found[CANDIDATES];
    double ns = 0, first_ns = 0, other_ns;
    int n, best;
    bool better;
    char name[320];

    name_of(s, name, sizeof(name));
    if (way_is_noted(notes, q->dev, lt, handle, name, x, algo, none))
        return CUBLAS_STATUS_SUCCESS;
    DT_CUDA_LT_TRY(ask(lt, handle, s, x, CANDIDATES, found, &n));
    *none = true;
    other_ns = n > 0 ? apart(q, arg) : -1;
    best = other_ns >= 0 ? search(q, &t, found, n, &ns, &first_ns) : -1;
    if (best < 0)
        return CUBLAS_STATUS_SUCCESS;
    better = ns < WORTH * other_ns;
    *algo = better ? found[best].algo : nothing;
    notes->keep(notes->arg, q->dev->info.name, (int64_t)lt->GetVersion(), name, algo, sizeof(*algo),
                better ? ns : other_ns, other_ns);
    *none = !better || !notes->at_once;
    return CUBLAS_STATUS_SUCCESS;
}
