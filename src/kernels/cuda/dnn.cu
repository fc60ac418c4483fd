/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * cuDNN's plans, kept by shape, and how they are run.  A shape that the library has no plan for is remembered, too:
 * our own kernels take it. */
#include "kernels/cuda/device.h"
#include "kernels/cuda/dnn.h"
#include "kernels/cuda/dnn_graph.h"

extern "C" {
#include "base/clock.h"
#include "base/mem.h"
}

#include <string.h>

/* Lengths of documents make many shapes of attention: convolutions have half of the places to themselves. */
enum { KNOWN = 256, KNOWN_ATTENTION = KNOWN / 2 };
/* Of a plan, at most: more than its keys and values in fp32 is not worth the memory (assumed). */
static const int64_t ROOM = 256 << 20;

struct plan {
    struct dt_cuda_dnn_shape s;
    struct dt_cuda_dnn_graph graph; /* what the plan was made of lives as long as it */
    bool asked;                     /* the library has been: until then our kernels do it */
    void *plan;                     /* NULL: there is none */
    int64_t workspace;
};
struct dt_cuda_dnn_plans {
    const struct dt_cuda_dnn *fn;
    void *handle;         /* of all queues: it is given their streams */
    pthread_mutex_t lock; /* of the handle and of what follows */
    struct plan *known[KNOWN];
    int n, n_attention;
    bool at_once;
    struct dt_cuda_dnn_uses uses; /* of shapes that have no plan */
};

struct dt_cuda_dnn_plans *dt_cuda_dnn_plans_new(unsigned often, bool at_once, struct dt_error *err)
{
    const struct dt_cuda_dnn *fn = dt_cuda_dnn_load(err);
    struct dt_cuda_dnn_plans *p;
    int st;

    if (!fn)
        return NULL;
    p = (struct dt_cuda_dnn_plans *)dt_calloc(1, sizeof(*p));
    if (!p) {
        dt_error_nomem(err, "cuDNN's plans");
        return NULL;
    }
    p->fn = fn;
    p->uses.often = often;
    p->at_once = at_once;
    st = fn->Create(&p->handle);
    if (st != DT_DNN_SUCCESS) {
        dt_error_set(err, DT_ERR_INTERNAL, "cuDNN cannot be started: status %d", st);
        dt_free(p);
        return NULL;
    }
    pthread_mutex_init(&p->lock, NULL);
    return p;
}

void dt_cuda_dnn_plans_free(struct dt_cuda_dnn_plans *p)
{
    if (!p)
        return;
    while (p->n > 0) {
        dt_cuda_dnn_graph_end(&p->known[--p->n]->graph);
        dt_free(p->known[p->n]);
    }
    p->fn->Destroy(p->handle);
    pthread_mutex_destroy(&p->lock);
    dt_free(p);
}

size_t dt_cuda_dnn_version(const struct dt_cuda_dnn_plans *p)
{
    return p->fn->GetVersion();
}

/* ---- which shapes get one ---- */

static uint64_t hash(const struct dt_cuda_dnn_shape *s)
{
    const unsigned char *p = (const unsigned char *)s;
    uint64_t h = 1469598103934665603u;

    for (size_t i = 0; i < sizeof(*s); i++)
        h = (h ^ p[i]) * 1099511628211u;
    return h ^ h >> 32;
}

bool dt_cuda_dnn_use(struct dt_cuda_dnn_uses *u, const struct dt_cuda_dnn_shape *s)
{
    uint64_t h = hash(s);
    auto &set = u->seen[h % dt_cuda_dnn_uses::SETS];
    int at = 0;

    while (at < dt_cuda_dnn_uses::WAYS && (set[at].n == 0 || set[at].hash != h))
        at++;
    if (at == dt_cuda_dnn_uses::WAYS) {
        for (at = 0; at < dt_cuda_dnn_uses::WAYS && set[at].n > 0; at++)
            ;
        if (at == dt_cuda_dnn_uses::WAYS) {
            for (auto &x : set)
                x.n--;
            return false;
        }
        set[at].hash = h;
    }
    if (++set[at].n < u->often)
        return false;
    set[at].n = 0;
    return true;
}

/* ---- plans ---- */

static unsigned planned;
static uint64_t planned_ns;

__attribute__((visibility("default"))) unsigned dt_cuda_dnn_planned(uint64_t *ns)
{
    *ns = __atomic_load_n(&planned_ns, __ATOMIC_RELAXED);
    return __atomic_load_n(&planned, __ATOMIC_RELAXED);
}

static bool is_attention(const struct dt_cuda_dnn_shape *s)
{
    return s->what == DT_DNN_ATTENTION_FWD || s->what == DT_DNN_ATTENTION_BWD;
}

/* If a call fails, what has been made so far is destroyed. */
static void build(struct dt_cuda_dnn_plans *p, struct plan *k)
{
    const struct dt_cuda_dnn_card card = {p->handle, NULL};
    uint64_t begin = dt_clock_ns();
    int tried;

    dt_cuda_dnn_graph_begin(&k->graph, p->fn);
    if (is_attention(&k->s))
        dt_cuda_dnn_attention_ops(&k->graph, &k->s);
    else
        dt_cuda_dnn_conv_ops(&k->graph, &k->s);
    k->plan = dt_cuda_dnn_plan(&k->graph, &card, ROOM, &k->workspace, &tried);
    if (!k->plan)
        dt_cuda_dnn_graph_end(&k->graph);
    __atomic_fetch_add(&planned, 1, __ATOMIC_RELAXED);
    __atomic_fetch_add(&planned_ns, dt_clock_ns() - begin, __ATOMIC_RELAXED);
}

/* NULL: it has not come often enough, or there is no room for one more, since what may still run is not destroyed.  The
 * lock is held. */
static struct plan *plan_of(struct dt_cuda_dnn_plans *p, const struct dt_cuda_dnn_shape *s)
{
    struct plan *k;

    for (int i = 0; i < p->n; i++)
        if (memcmp(&p->known[i]->s, s, sizeof(*s)) == 0)
            return p->known[i];
    if (p->n == KNOWN || (is_attention(s) && p->n_attention == KNOWN_ATTENTION) ||
        !dt_cuda_dnn_use(&p->uses, s))
        return NULL;
    k = (struct plan *)dt_calloc(1, sizeof(*k));
    if (!k)
        return NULL;
    k->s = *s;
    p->known[p->n++] = k;
    p->n_attention += is_attention(s);
    return k;
}

/* Where the tensors of a run lie. */
struct places {
    int n;
    int64_t uid[DT_DNN_PLACES];
    void *p[DT_DNN_PLACES];
};

static void put(struct places *at, int64_t uid, const void *p)
{
    assert(at->n < DT_DNN_PLACES);
    at->uid[at->n] = uid;
    at->p[at->n++] = (void *)(uintptr_t)p;
}

static int execute(struct dt_cuda_dnn_plans *p, cudaStream_t stream, void *plan,
                   const struct places *at, void *room)
{
    struct dt_cuda_dnn_graph g;
    void *pack;

    dt_cuda_dnn_graph_begin(&g, p->fn);
    pack = dt_cuda_dnn_new(&g, DT_DNN_VARIANT_PACK);
    dt_cuda_dnn_set(&g, pack, DT_DNN_PACK_UNIQUE_IDS, DT_DNN_T_INT64, at->n, at->uid);
    dt_cuda_dnn_set(&g, pack, DT_DNN_PACK_DATA_POINTERS, DT_DNN_T_VOID_PTR, at->n, at->p);
    dt_cuda_dnn_set(&g, pack, DT_DNN_PACK_WORKSPACE, DT_DNN_T_VOID_PTR, 1, &room);
    dt_cuda_dnn_finalize(&g, pack);
    if (g.status == DT_DNN_SUCCESS)
        g.status = p->fn->SetStream(p->handle, stream);
    if (g.status == DT_DNN_SUCCESS)
        g.status = p->fn->BackendExecute(p->handle, plan, pack);
    dt_cuda_dnn_graph_end(&g);
    return g.status;
}

/* A kernel is loaded when it is first launched, for which the driver may wait for the whole device, and so for other ranks.  So
 * the plan is run once here, on a stream that only writes down what it would do (as cudnn-frontend's Graph::warmup
 * does): with any memory, as nobody does it. */
static bool load(struct dt_cuda *c, const struct plan *k)
{
    struct dt_device_memory_owner *o = c->dev.memory_for(&c->dev, NULL);
    float number = 1;
    cudaStream_t stream = NULL;
    cudaGraph_t graph = NULL;
    struct places at = {};
    void *any = NULL;
    bool loaded = false;

    if (c->dev.alloc(&c->dev, 256, NULL, &any) == DT_OK &&
        dt_cuda_said(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking)) == cudaSuccess &&
        dt_cuda_said(cudaStreamBeginCapture(stream, cudaStreamCaptureModeRelaxed)) == cudaSuccess) {
        for (int i = 0; i < k->graph.n_places; i++)
            put(&at, k->graph.place[i].uid, k->graph.place[i].by_value ? &number : any);
        loaded = execute(c->dnn, stream, k->plan, &at, any) == DT_DNN_SUCCESS;
        loaded = dt_cuda_said(cudaStreamEndCapture(stream, &graph)) == cudaSuccess && loaded;
    }
    if (graph)
        dt_cuda_said(cudaGraphDestroy(graph));
    if (stream)
        dt_cuda_said(cudaStreamDestroy(stream));
    c->dev.free(&c->dev, any);
    c->dev.memory_for(&c->dev, o);
    return loaded;
}

/* Where a call fails, the shape is our kernels' from now on.  The lock is held. */
static void ask(struct dt_cuda *c, struct plan *k)
{
    k->asked = true;
    build(c->dnn, k);
    if (k->plan && !load(c, k)) {
        dt_cuda_dnn_graph_end(&k->graph);
        k->plan = NULL;
    }
}

void dt_cuda_dnn_settle(struct dt_cuda *c)
{
    struct dt_cuda_dnn_plans *p = c->dnn;

    if (!p)
        return;
    dt_cuda_use(&c->dev);
    pthread_mutex_lock(&p->lock);
    for (int i = 0; i < p->n; i++)
        if (!p->known[i]->asked)
            ask(c, p->known[i]);
    pthread_mutex_unlock(&p->lock);
}

/* ---- runs ---- */

static size_t up(size_t bytes)
{
    return (bytes + 255) / 256 * 256;
}

static unsigned ran[DT_DNN_WHAT_N];

__attribute__((visibility("default"))) void dt_cuda_dnn_ran(unsigned out[5])
{
    static_assert(DT_DNN_WHAT_N == 5, "tests count as many kinds");
    for (int i = 0; i < DT_DNN_WHAT_N; i++)
        out[i] = __atomic_load_n(&ran[i], __ATOMIC_RELAXED);
}

/* false: nothing has been done.  `own` bytes of workspace are for what the graph itself keeps there: the first
 * `delta` of them the sums of o d_o, the rest dq in fp32. */
static bool run(struct dt_device_queue *q, const struct dt_cuda_dnn_shape *s, struct places *at,
                size_t delta, size_t own)
{
    struct dt_cuda *c = dt_cuda_of(q->dev);
    struct dt_cuda_dnn_plans *p = c->dnn;
    char text[256] = "", *room;
    struct plan *k;
    int st;

    if (!dt_cuda_ready(q))
        return false;
    pthread_mutex_lock(&p->lock);
    k = plan_of(p, s);
    if (k && !k->asked && p->at_once)
        ask(c, k);
    if (!k || !k->plan) {
        pthread_mutex_unlock(&p->lock);
        return false;
    }
    room = (char *)dt_cuda_scratch_try(q, DT_SCRATCH_LIBRARY, own + up((size_t)k->workspace) + 256);
    if (!room) {
        pthread_mutex_unlock(&p->lock);
        return false;
    }
    if (own > 0) {
        put(at, DT_DNN_UID_DELTA, room);
        put(at, DT_DNN_UID_DQ_SUM, room + delta);
    }
    st = execute(p, q->stream, k->plan, at, room + own);
    if (st != DT_DNN_SUCCESS)
        p->fn->GetLastErrorString(text, sizeof(text));
    pthread_mutex_unlock(&p->lock);
    if (st == DT_DNN_SUCCESS)
        __atomic_fetch_add(&ran[s->what], 1, __ATOMIC_RELAXED);
    else
        dt_cuda_fail(q, DT_ERR_INTERNAL, "cuDNN: status %d: %s", st, text);
    return st == DT_DNN_SUCCESS;
}

/* ---- convolutions ---- */

/* A pixel that is its own patch is a row of a product, which takes bias and residual with it.  Pixels are whole accesses
 * of 16 bytes: filters of 4 channels had no plan on an H100, or one with wrong results. */
static bool can_conv(const struct dt_device_queue *q, const struct dt_kernel_conv *c, const void *a,
                     const void *b, const void *d)
{
    return dt_cuda_of(q->dev)->dnn && c->dtype == DT_BF16 && (c->kernel > 1 || c->stride > 1) &&
           c->c_in % 8 == 0 && c->c_out % 8 == 0 && dt_cuda_aligned(a, b, d);
}

static struct dt_cuda_dnn_shape conv_shape(enum dt_cuda_dnn_what what,
                                           const struct dt_kernel_conv *c)
{
    struct dt_cuda_dnn_shape s;

    memset(&s, 0, sizeof(s)); /* compared as bytes */
    s.what = what;
    s.c_in = c->c_in;
    s.c_out = c->c_out;
    s.kernel = c->kernel;
    s.stride = c->stride;
    s.pad = c->pad;
    s.n = c->n;
    s.h = c->h;
    s.w = c->w;
    return s;
}

bool dt_cuda_dnn_conv_fwd(struct dt_device_queue *q, const struct dt_kernel_conv *c, const void *x,
                          const void *w, const float *bias, const void *residual, void *y)
{
    struct dt_cuda_dnn_shape s = conv_shape(DT_DNN_CONV_FWD, c);
    int64_t n = c->n * dt_kernel_conv_out(c->h, c) * dt_kernel_conv_out(c->w, c) * c->c_out;
    bool in_place = residual && residual == y;
    struct places at = {};
    void *to = y;

    if (!can_conv(q, c, x, w, y) || !dt_cuda_aligned(residual))
        return false;
    if (bias && !dt_cuda_aligned(bias)) {
        void *own = dt_cuda_scratch_try(q, DT_SCRATCH_BIAS, (size_t)c->c_out * sizeof(float));

        if (!own)
            return false;
        q->dev->copy(q, own, bias, (size_t)c->c_out * sizeof(float), DT_COPY_ON_DEVICE);
        bias = (const float *)own;
    }
    if (in_place) { /* nobody says that a graph may write what it reads */
        to = dt_cuda_scratch_try(q, DT_SCRATCH_OUTER, (size_t)n * dt_dtype_bytes(c->dtype));
        if (!to)
            return false;
    }
    s.bias = bias != NULL;
    s.residual = residual != NULL;
    put(&at, DT_DNN_UID_X, x);
    put(&at, DT_DNN_UID_W, w);
    put(&at, DT_DNN_UID_Y, to);
    if (bias)
        put(&at, DT_DNN_UID_BIAS, bias);
    if (residual)
        put(&at, DT_DNN_UID_RESIDUAL, residual);
    if (!run(q, &s, &at, 0, 0))
        return false;
    if (in_place)
        q->dev->copy(q, y, to, (size_t)n * dt_dtype_bytes(c->dtype), DT_COPY_ON_DEVICE);
    return true;
}

bool dt_cuda_dnn_conv_bwd_input(struct dt_device_queue *q, const struct dt_kernel_conv *c,
                                const void *dy, const void *w, void *dx, bool add)
{
    struct dt_cuda_dnn_shape s = conv_shape(DT_DNN_CONV_DATA, c);
    int64_t n = c->n * c->h * c->w * c->c_in;
    struct places at = {};
    void *to = dx;

    if (!can_conv(q, c, dy, w, dx))
        return false;
    if (add) {
        to = dt_cuda_scratch_try(q, DT_SCRATCH_OUTER, (size_t)n * dt_dtype_bytes(c->dtype));
        if (!to)
            return false;
    }
    put(&at, DT_DNN_UID_X, to);
    put(&at, DT_DNN_UID_W, w);
    put(&at, DT_DNN_UID_Y, dy);
    if (!run(q, &s, &at, 0, 0))
        return false;
    if (add)
        q->dev->k->add(q, c->dtype, n, dx, to, dx);
    return true;
}

const float *dt_cuda_dnn_conv_bwd_weight(struct dt_device_queue *q, const struct dt_kernel_conv *c,
                                         const void *x, const void *dy)
{
    struct dt_cuda_dnn_shape s = conv_shape(DT_DNN_CONV_FILTER, c);
    size_t n = (size_t)c->c_out * (size_t)c->c_in * (size_t)c->kernel * (size_t)c->kernel;
    struct places at = {};
    void *dw;

    if (!can_conv(q, c, x, dy, NULL))
        return NULL;
    dw = dt_cuda_scratch_try(q, DT_SCRATCH_OUTER, n * sizeof(float));
    if (!dw)
        return NULL;
    put(&at, DT_DNN_UID_X, x);
    put(&at, DT_DNN_UID_W, dw);
    put(&at, DT_DNN_UID_Y, dy);
    return run(q, &s, &at, 0, 0) ? (const float *)dw : NULL;
}

/* ---- attention ---- */

/* Sequences of one length only: then rows are as many as the longest ones would have.  What the library calls causal is
 * what we do where there are as many keys as queries. */
static bool can_attend(const struct dt_device_queue *q, const struct dt_kernel_attention *a,
                       const struct dt_cuda_dnn_shape *s)
{
    const struct dt_cuda *c = dt_cuda_of(q->dev);

    return c->dnn && a->dtype == DT_BF16 && a->n_seq > 0 && a->max_q > 0 && a->max_k > 0 &&
           a->rows_q == a->n_seq * a->max_q && a->rows_k == a->n_seq * a->max_k &&
           (!a->causal || a->max_q == a->max_k) && a->head_dim % 8 == 0 && a->stride_q % 8 == 0 &&
           a->stride_k % 8 == 0 && a->stride_v % 8 == 0 && a->stride_o % 8 == 0 &&
           !dt_cuda_dnn_attention_fails(s, dt_cuda_dnn_version(c->dnn), c->capability);
}

static struct dt_cuda_dnn_shape attention_shape(enum dt_cuda_dnn_what what,
                                                const struct dt_kernel_attention *a)
{
    struct dt_cuda_dnn_shape s;

    memset(&s, 0, sizeof(s));
    s.what = what;
    s.heads = a->heads;
    s.kv_heads = a->kv_heads;
    s.head_dim = a->head_dim;
    s.causal = a->causal;
    s.n = a->n_seq;
    s.lq = a->max_q;
    s.lk = a->max_k;
    s.stride_q = a->stride_q;
    s.stride_k = a->stride_k;
    s.stride_v = a->stride_v;
    s.stride_o = a->stride_o;
    return s;
}

/* What both directions read; numbers of the host are read before the call returns. */
static void put_inputs(struct places *at, const struct dt_kernel_attention *a, const float *nothing,
                       const void *query, const void *key, const void *value)
{
    put(at, DT_DNN_UID_Q, query);
    put(at, DT_DNN_UID_K, key);
    put(at, DT_DNN_UID_V, value);
    put(at, DT_DNN_UID_SCALE, &a->scale);
    if (a->causal)
        put(at, DT_DNN_UID_NOTHING, nothing);
}

bool dt_cuda_dnn_attention_fwd(struct dt_device_queue *q, const struct dt_kernel_attention *a,
                               const void *query, const void *key, const void *value, void *o,
                               float *lse)
{
    struct dt_cuda_dnn_shape s = attention_shape(DT_DNN_ATTENTION_FWD, a);
    const float nothing = -INFINITY;
    struct places at = {};

    if (!can_attend(q, a, &s) || !dt_cuda_aligned(query, key, value, o, lse))
        return false;
    put_inputs(&at, a, &nothing, query, key, value);
    put(&at, DT_DNN_UID_O, o);
    put(&at, DT_DNN_UID_LSE, lse);
    return run(q, &s, &at, 0, 0);
}

bool dt_cuda_dnn_attention_bwd(struct dt_device_queue *q, const struct dt_kernel_attention *a,
                               const void *query, const void *key, const void *value, const void *o,
                               const float *lse, const void *d_o, void *dq, void *dk, void *dv)
{
    struct dt_cuda_dnn_shape s = attention_shape(DT_DNN_ATTENTION_BWD, a);
    size_t rows = (size_t)(a->rows_q * a->heads), delta = up(rows * sizeof(float));
    const float nothing = -INFINITY, one = 1;
    struct places at = {};

    if (!can_attend(q, a, &s) || !dt_cuda_aligned(query, key, value, o, d_o) ||
        !dt_cuda_aligned(lse, dq, dk, dv))
        return false;
    put_inputs(&at, a, &nothing, query, key, value);
    put(&at, DT_DNN_UID_O, o);
    put(&at, DT_DNN_UID_LSE, lse);
    put(&at, DT_DNN_UID_DO, d_o);
    put(&at, DT_DNN_UID_DQ, dq);
    put(&at, DT_DNN_UID_DK, dk);
    put(&at, DT_DNN_UID_DV, dv);
    put(&at, DT_DNN_UID_ONE, &one);
    return run(q, &s, &at, delta, delta + up(rows * (size_t)a->head_dim * sizeof(float)));
}
