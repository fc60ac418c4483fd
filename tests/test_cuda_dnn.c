/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Convolutions and attention of cards by cuDNN against our own kernels, which other tests hold to the definitions; who does
 * what; and what comes of calls that fail.  Without DISTTRAIN_TEST_DEVICE=cuda the card is the module built for a
 * CPU, whose cuDNN runs graphs by their definitions (tests/cuda_cpu). */
#include "config.h"

#include "base/bf16.h"
#include "base/mem.h"
#include "base/rng.h"
#include "kernels/device_open.h"
#include "kernels/kernels.h"
#include "test_util.h"

#include <dlfcn.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#define MODULES "tests/modules/CPU"

enum { FORWARD, DATA, FILTER, ATTEND, ATTEND_BACK, GRAPHS };

/* of the module, where it is built for a CPU */
static void (*graphs_ran)(unsigned out[GRAPHS]);
static void (*fail_at)(const char *name, unsigned at);
static const char *(*called)(unsigned i, unsigned *calls);
static int (*left)(void);
static void (*runtime_left)(int out[4]);

static void find(const char *name, void *fn)
{
    void *so = dlopen(MODULES "/disttrain-cuda.so", RTLD_NOW | RTLD_NOLOAD), *p;

    p = so ? dlsym(so, name) : NULL;
    memcpy(fn, &p, sizeof(p)); /* POSIX allows it, C has no cast */
}

struct work {
    struct dt_device *dev;
    struct dt_device_queue *q;
    struct dt_error err;
};

static enum dt_status begin(struct work *k, bool own)
{
    static const struct dt_device_choice which = {.name = "cuda"};
    const struct dt_device_options opt = {.own_kernels = own};

    memset(k, 0, sizeof(*k));
    DT_TRY(dt_device_open(&which, &opt, &k->err, &k->dev));
    return k->dev->queue_new(k->dev, false, &k->err, &k->q);
}

static void end(struct work *k)
{
    if (k->q)
        k->dev->queue_free(k->q);
    if (k->dev)
        k->dev->close(k->dev);
}

/* Memory of the device with numbers of a kind: bf16, rounded, or fp32. */
struct numbers {
    enum dt_dtype type;
    int64_t n;
    void *p;     /* on the device */
    float *host; /* at first, then what came of it */
};

static void fill(struct work *k, const struct numbers *x)
{
    uint16_t *half = dt_malloc((size_t)x->n * 2 + 2);

    for (int64_t i = 0; i < x->n; i++)
        half[i] = dt_bf16_from_f32(x->host[i]);
    k->dev->copy(k->q, x->p, x->type == DT_BF16 ? (void *)half : x->host,
                 (size_t)x->n * dt_dtype_bytes(x->type), DT_COPY_TO_DEVICE);
    if (k->dev->queue_state(k->q) == DT_OK)
        (void)k->dev->queue_sync(k->q, &k->err);
    dt_free(half);
}

static enum dt_status take(struct work *k, struct numbers *x, enum dt_dtype type, int64_t n,
                           uint64_t seed)
{
    *x = (struct numbers){type, n, NULL, NULL};
    DT_TRY(k->dev->alloc(k->dev, (size_t)n * dt_dtype_bytes(type) + 16, &k->err, &x->p));
    x->host = dt_malloc((size_t)n * sizeof(float));
    for (int64_t i = 0; i < n; i++) {
        x->host[i] = (float)dt_rng_normal_at(seed, 3, (uint64_t)i) * 0.5f;
        if (type == DT_BF16)
            x->host[i] = dt_bf16_to_f32(dt_bf16_from_f32(x->host[i]));
    }
    fill(k, x);
    return DT_OK;
}

static enum dt_status get(struct work *k, struct numbers *x)
{
    uint16_t *half = dt_malloc((size_t)x->n * 2 + 2);
    enum dt_status st;

    k->dev->copy(k->q, x->type == DT_BF16 ? (void *)half : x->host, x->p,
                 (size_t)x->n * dt_dtype_bytes(x->type), DT_COPY_TO_HOST);
    st = k->dev->queue_sync(k->q, &k->err);
    for (int64_t i = 0; x->type == DT_BF16 && i < x->n; i++)
        x->host[i] = dt_bf16_to_f32(half[i]);
    dt_free(half);
    return st;
}

static void drop(struct work *k, struct numbers *x)
{
    if (x->p)
        k->dev->free(k->dev, x->p);
    dt_free(x->host);
    *x = (struct numbers){0};
}

/* ---- one of everything, on a device ---- */

struct conv_case {
    struct dt_kernel_conv c;
    bool bias, residual, in_place, add;
    int64_t off; /* floats that the bias lies behind an aligned place */
    bool ours;   /* cuDNN is not asked */
};
enum { Y, DX, DW, DB, CONV_RESULTS };

static enum dt_status convolve(struct work *k, const struct conv_case *s, struct numbers r[])
{
    const struct dt_kernel_conv *c = &s->c;
    int64_t ny = c->n * dt_kernel_conv_out(c->h, c) * dt_kernel_conv_out(c->w, c) * c->c_out;
    int64_t nx = c->n * c->h * c->w * c->c_in,
            nw = (int64_t)c->c_out * c->c_in * c->kernel * c->kernel;
    const struct dt_device_weight_shape shape = {DT_BF16, c->c_out, c->c_in, c->kernel};
    struct numbers x, w, b, dy, res = {0};
    struct dt_device_weight *weight = NULL;
    enum dt_status st;

    DT_TRY(take(k, &x, DT_BF16, nx, 1));
    DT_TRY(take(k, &w, DT_F32, nw, 2));
    DT_TRY(take(k, &b, DT_F32, c->c_out + s->off, 3));
    DT_TRY(take(k, &dy, DT_BF16, ny, 4));
    DT_TRY(take(k, &res, DT_BF16, ny, 5));
    DT_TRY(take(k, &r[Y], DT_BF16, ny, 5)); /* the residual, where it is in place */
    DT_TRY(take(k, &r[DX], DT_BF16, nx, 6));
    DT_TRY(take(k, &r[DW], DT_F32, nw, 7));
    DT_TRY(take(k, &r[DB], DT_F32, c->c_out, 8));
    st = k->dev->weight_new(k->dev, &shape, w.p, NULL, &k->err, &weight);
    if (st == DT_OK) {
        k->dev->k->conv_fwd(k->q, c, x.p, weight, s->bias ? (float *)b.p + s->off : NULL,
                            s->in_place   ? r[Y].p
                            : s->residual ? res.p
                                          : NULL,
                            r[Y].p);
        k->dev->k->conv_bwd_input(k->q, c, dy.p, weight, r[DX].p, s->add);
        k->dev->k->conv_bwd_weight(k->q, c, x.p, dy.p, r[DW].p, s->bias ? r[DB].p : NULL, s->add);
        for (int i = 0; i < CONV_RESULTS && st == DT_OK; i++)
            st = get(k, &r[i]);
        k->dev->weight_free(weight);
    }
    drop(k, &x), drop(k, &w), drop(k, &b), drop(k, &dy), drop(k, &res);
    return st;
}

struct attention_case {
    int heads, kv_heads, head_dim, n;
    bool causal;
    int lq, lk, shorter; /* the last sequence is so much shorter */
    float low;           /* about this are all scores; 0: as they come */
};
enum { O, LSE, DQ, DK, DV, ATTENTION_RESULTS };

/* The first element of every head's rows, of which there are so many. */
static void set_first(struct work *k, struct numbers *x, int64_t rows, int64_t stride, int heads,
                      int dim, float to)
{
    for (int64_t i = 0; i < rows; i++)
        for (int h = 0; h < heads; h++)
            x->host[i * stride + h * dim] = to;
    fill(k, x);
}

static enum dt_status attend(struct work *k, const struct attention_case *s, struct numbers r[])
{
    struct dt_kernel_attention a = {.dtype = DT_BF16,
                                    .causal = s->causal,
                                    .heads = s->heads,
                                    .kv_heads = s->kv_heads,
                                    .head_dim = s->head_dim,
                                    .n_seq = s->n,
                                    .max_q = s->lq,
                                    .max_k = s->lk,
                                    .scale = 0.2f};
    int32_t cu[2][16];
    struct numbers q, key, value, d_o;
    enum dt_status st = DT_OK;
    void *on[2];

    for (int i = 0; i <= s->n; i++) {
        cu[0][i] = i * s->lq - (i == s->n ? s->shorter : 0);
        cu[1][i] = i * s->lk - (i == s->n ? s->shorter : 0);
    }
    a.rows_q = cu[0][s->n];
    a.rows_k = cu[1][s->n];
    a.stride_q = (int64_t)s->heads * s->head_dim + 16;
    a.stride_k = (int64_t)s->kv_heads * s->head_dim;
    a.stride_v = a.stride_k + 8;
    a.stride_o = (int64_t)s->heads * s->head_dim;
    for (int i = 0; i < 2; i++) {
        DT_TRY(k->dev->alloc(k->dev, sizeof(cu[i]), &k->err, &on[i]));
        k->dev->copy(k->q, on[i], cu[i], sizeof(cu[i]), DT_COPY_TO_DEVICE);
    }
    a.cu_q = on[0];
    a.cu_k = on[1];
    DT_TRY(take(k, &q, DT_BF16, a.rows_q * a.stride_q, 1));
    DT_TRY(take(k, &key, DT_BF16, a.rows_k * a.stride_k, 2));
    DT_TRY(take(k, &value, DT_BF16, a.rows_k * a.stride_v, 3));
    DT_TRY(take(k, &d_o, DT_BF16, a.rows_q * a.stride_o, 4));
    DT_TRY(take(k, &r[O], DT_BF16, a.rows_q * a.stride_o, 5));
    DT_TRY(take(k, &r[LSE], DT_F32, a.rows_q * a.heads, 6));
    DT_TRY(take(k, &r[DQ], DT_BF16, a.rows_q * a.stride_q, 7));
    DT_TRY(take(k, &r[DK], DT_BF16, a.rows_k * a.stride_k, 8));
    DT_TRY(take(k, &r[DV], DT_BF16, a.rows_k * a.stride_v, 9));
    if (s->low < 0) {
        set_first(k, &q, a.rows_q, a.stride_q, s->heads, s->head_dim, 1);
        set_first(k, &key, a.rows_k, a.stride_k, s->kv_heads, s->head_dim, s->low / a.scale);
    }
    k->dev->k->attention_fwd(k->q, &a, q.p, key.p, value.p, r[O].p, r[LSE].p);
    k->dev->k->attention_bwd(k->q, &a, q.p, key.p, value.p, r[O].p, r[LSE].p, d_o.p, r[DQ].p,
                             r[DK].p, r[DV].p);
    for (int i = 0; i < ATTENTION_RESULTS && st == DT_OK; i++)
        st = get(k, &r[i]);
    drop(k, &q), drop(k, &key), drop(k, &value), drop(k, &d_o);
    for (int i = 0; i < 2; i++)
        k->dev->free(k->dev, on[i]);
    return st;
}

/* ---- cuDNN's against ours ---- */

/* What the module itself exports, which is there on a card, too. */
static void of_module(const struct work *k, const char *name, void *fn)
{
    void *p, *so;
    Dl_info info;

    memcpy(&p, &k->dev->k->add, sizeof(p)); /* POSIX allows it, C has no cast */
    ck_assert_int_ne(dladdr(p, &info), 0);
    so = dlopen(info.dli_fname, RTLD_NOW | RTLD_NOLOAD);
    ck_assert_ptr_nonnull(so);
    p = dlsym(so, name);
    ck_assert_ptr_nonnull(p);
    memcpy(fn, &p, sizeof(p));
    dlclose(so);
}

static void count_of_module(const struct work *k, unsigned out[GRAPHS])
{
    void (*ran)(unsigned out[GRAPHS]);

    of_module(k, "dt_cuda_dnn_ran", &ran);
    ran(out);
}

/* Both round to bf16 what they keep between products; sums of n products of such differ by that, over their size. */
static void same(const struct numbers *x, const struct numbers *y, const char *what)
{
    double largest = 1e-6;

    ck_assert_int_eq(x->n, y->n);
    for (int64_t i = 0; i < x->n; i++)
        largest = fmax(largest, fabs((double)y->host[i]));
    for (int64_t i = 0; i < x->n; i++)
        ck_assert_msg(fabs((double)x->host[i] - (double)y->host[i]) < 0x1p-6 * largest,
                      "%s[%lld] is %g, not %g", what, (long long)i, (double)x->host[i],
                      (double)y->host[i]);
}

/* Which graphs have run since `before`, as the imitation says. */
static void expect_ran(const unsigned before[GRAPHS], const unsigned want[GRAPHS])
{
    unsigned now[GRAPHS];

    if (!graphs_ran)
        return;
    graphs_ran(now);
    for (int i = 0; i < GRAPHS; i++)
        ck_assert_msg(now[i] - before[i] == want[i], "graph %d ran %u times, not %u", i,
                      now[i] - before[i], want[i]);
}

static void counts(unsigned out[GRAPHS])
{
    memset(out, 0, GRAPHS * sizeof(out[0]));
    if (graphs_ran)
        graphs_ran(out);
}

static const struct conv_case convs[] = {
    {{DT_BF16, 2, 9, 7, 16, 24, 3, 1, 1}, true, false, false, false, 0, false},
    {{DT_BF16, 2, 9, 7, 16, 24, 3, 1, 1}, true, true, false, true, 0, false},
    {{DT_BF16, 2, 9, 7, 16, 16, 3, 1, 1}, true, true, true, true, 1, false},
    {{DT_BF16, 1, 8, 8, 8, 16, 3, 1, 1}, true, false, false, false, 3, false},
    {{DT_BF16, 1, 8, 8, 4, 16, 3, 1, 1}, true, false, false, false, 0, true}, /* latents */
    {{DT_BF16, 1, 8, 8, 16, 4, 3, 1, 1}, true, false, false, false, 0, true},
    {{DT_BF16, 1, 8, 8, 12, 8, 3, 1, 1}, false, false, false, true, 0, true},
    {{DT_BF16, 3, 9, 8, 16, 16, 3, 2, 1}, false, false, false, false, 0, false},
    {{DT_BF16, 2, 6, 5, 8, 8, 3, 1, 1}, false, true, false, true, 0, false},
    {{DT_BF16, 2, 8, 8, 8, 16, 4, 4, 0}, true, false, false, false, 0, false}, /* patches */
};
enum { CONVS = sizeof(convs) / sizeof(convs[0]) };

START_TEST(test_convolutions)
{
    static const unsigned once[GRAPHS] = {1, 1, 1, 0, 0}, none[GRAPHS] = {0};
    struct numbers r[2][CONV_RESULTS];
    unsigned before[GRAPHS];
    struct work k[2];

    for (int own = 0; own < 2; own++) {
        dt_assert_ok(begin(&k[own], own == 1), k[own].err);
        counts(before);
        dt_assert_ok(convolve(&k[own], &convs[_i], r[own]), k[own].err);
        expect_ran(before, own || convs[_i].ours ? none : once);
    }
    for (int i = 0; i < CONV_RESULTS; i++)
        if (i != DB || convs[_i].bias)
            same(&r[0][i], &r[1][i], (const char *[]){"y", "dx", "dw", "dbias"}[i]);
    for (int own = 0; own < 2; own++) {
        for (int i = 0; i < CONV_RESULTS; i++)
            drop(&k[own], &r[own][i]);
        end(&k[own]);
    }
}
END_TEST

static const struct {
    struct attention_case a;
    bool ours; /* cuDNN is not asked */
} attentions[] = {
    {{2, 2, 64, 1, true, 40, 40, 0, 0}, false},  {{4, 4, 64, 3, false, 17, 17, 0, 0}, false},
    {{4, 2, 32, 2, true, 33, 33, 0, 0}, false},  {{2, 2, 40, 2, false, 19, 7, 0, 0}, false},
    {{6, 1, 16, 2, false, 12, 20, 0, 0}, false}, {{2, 2, 80, 2, true, 16, 16, 0, 0}, false},
    {{2, 2, 64, 3, true, 17, 17, 5, 0}, true},   {{2, 2, 64, 2, true, 9, 12, 0, 0}, true},
};
enum { ATTENTIONS = sizeof(attentions) / sizeof(attentions[0]) };

START_TEST(test_attention)
{
    static const unsigned once[GRAPHS] = {0, 0, 0, 1, 1}, none[GRAPHS] = {0};
    static const char *const names[] = {"o", "lse", "dq", "dk", "dv"};
    struct numbers r[2][ATTENTION_RESULTS];
    unsigned before[GRAPHS];
    struct work k[2];

    for (int own = 0; own < 2; own++) {
        dt_assert_ok(begin(&k[own], own == 1), k[own].err);
        counts(before);
        dt_assert_ok(attend(&k[own], &attentions[_i].a, r[own]), k[own].err);
        expect_ran(before, own || attentions[_i].ours ? none : once);
    }
    for (int i = 0; i < ATTENTION_RESULTS; i++)
        same(&r[0][i], &r[1][i], names[i]);
    for (int own = 0; own < 2; own++) {
        for (int i = 0; i < ATTENTION_RESULTS; i++)
            drop(&k[own], &r[own][i]);
        end(&k[own]);
    }
}
END_TEST

/* ---- what it is known to do wrong ---- */

/* Its imitation does it wrong, too (tests/cuda_cpu/dnn_run.cc), so that nothing finite comes of what is asked for in vain. */
static const struct {
    const char *version;
    struct attention_case a;
    bool forward, backward; /* are the library's */
} doubtful[] = {
    {"91500", {1, 1, 16, 1, false, 3, 257, 0, 0}, true, false},
    {"91500", {1, 1, 16, 1, true, 40, 40, 0, 0}, true, false},
    {"91500", {1, 1, 16, 1, false, 3, 128, 0, -120}, true, true},
    {"91501", {1, 1, 16, 1, false, 3, 257, 0, -120}, true, true},
    {"91501", {2, 1, 16, 2, false, 5, 77, 0, -120}, true, true},
    {"91501", {2, 2, 16, 2, false, 5, 64, 0, -120}, true, false},
    {"93000", {2, 1, 16, 1, false, 5, 192, 0, -120}, true, false},
    {"93000", {1, 1, 16, 1, true, 64, 64, 0, -120}, true, true},
    {"93000", {2, 2, 16, 1, false, 1, 128, 0, -120}, true, false},
    {"91000", {2, 2, 16, 1, true, 128, 128, 0, 0}, false, false},
    {"91001", {2, 2, 16, 1, true, 128, 128, 0, 0}, false, false},
    {"91002", {2, 2, 16, 1, true, 128, 128, 0, 0}, true, true},
};
enum { DOUBTFUL = sizeof(doubtful) / sizeof(doubtful[0]) };

START_TEST(test_what_it_does_wrong)
{
    const unsigned want[GRAPHS] = {0, 0, 0, doubtful[_i].forward, doubtful[_i].backward};
    static const char *const names[] = {"o", "lse", "dq", "dk", "dv"};
    struct numbers r[2][ATTENTION_RESULTS];
    unsigned before[2][GRAPHS];
    struct work k[2];

    if (!graphs_ran)
        return; /* a card has one version */
    setenv("CUCPU_DNN_VERSION", doubtful[_i].version, 1);
    for (int own = 0; own < 2; own++) {
        dt_assert_ok(begin(&k[own], own == 1), k[own].err);
        counts(before[0]);
        count_of_module(&k[own], before[1]);
        dt_assert_ok(attend(&k[own], &doubtful[_i].a, r[own]), k[own].err);
        if (own)
            continue;
        expect_ran(before[0], want);
        count_of_module(&k[0], before[0]);
        ck_assert_uint_eq(before[0][ATTEND_BACK] - before[1][ATTEND_BACK], want[ATTEND_BACK]);
    }
    for (int i = 0; i < ATTENTION_RESULTS; i++) {
        for (int64_t at = 0; at < r[0][i].n; at++)
            ck_assert_msg(isfinite(r[0][i].host[at]), "%s[%lld]", names[i], (long long)at);
        /* of scores that are all about the same, dq is what roundings leave of a sum of 0 */
        if (i != DQ || doubtful[_i].a.low == 0)
            same(&r[0][i], &r[1][i], names[i]);
    }
    for (int own = 0; own < 2; own++) {
        for (int i = 0; i < ATTENTION_RESULTS; i++)
            drop(&k[own], &r[own][i]);
        end(&k[own]);
    }
    unsetenv("CUCPU_DNN_VERSION");
}
END_TEST

/* ---- who does it ---- */

static unsigned planned(const struct work *k)
{
    unsigned (*fn)(uint64_t * ns);
    uint64_t ns;

    of_module(k, "dt_cuda_dnn_planned", &fn);
    return fn(&ns);
}

/* Usual shapes, each kind once: without this, a card whose library refused them all would compare our kernels with
 * themselves. */
START_TEST(test_the_library_does_it)
{
    struct numbers r[CONV_RESULTS], a[ATTENTION_RESULTS];
    unsigned before[GRAPHS], after[GRAPHS];
    struct work k;

    dt_assert_ok(begin(&k, false), k.err);
    count_of_module(&k, before);
    dt_assert_ok(convolve(&k, &convs[1], r), k.err);
    dt_assert_ok(attend(&k, &attentions[0].a, a), k.err);
    count_of_module(&k, after);
    for (int i = 0; i < GRAPHS; i++)
        ck_assert_msg(after[i] == before[i] + 1, "graph %d ran %u times", i, after[i] - before[i]);
    for (int i = 0; i < CONV_RESULTS; i++)
        drop(&k, &r[i]);
    for (int i = 0; i < ATTENTION_RESULTS; i++)
        drop(&k, &a[i]);
    end(&k);
}
END_TEST

static char warned[512];
static int warnings;

static void listen(void *ctx, const char *line)
{
    (void)ctx;
    warnings++;
    snprintf(warned, sizeof(warned), "%s", line);
}

START_TEST(test_without_it)
{
    static const struct dt_device_choice which = {.name = "cuda"};
    static const struct dt_warn warn = {.say = listen};
    const struct dt_device_options opt[2] = {{.warn = &warn}, {.own_kernels = true, .warn = &warn}};
    static const unsigned none[GRAPHS] = {0};
    struct numbers r[CONV_RESULTS];
    unsigned before[GRAPHS];
    struct work k = {0};

    if (!graphs_ran)
        return;
    setenv("CUCPU_DNN", "no", 1);
    for (int i = 0; i < 2; i++) { /* one that is not asked is not missed */
        dt_assert_ok(dt_device_open(&which, &opt[i], &k.err, &k.dev), k.err);
        ck_assert_str_eq(k.dev->info.library, "");
        end(&k);
        ck_assert_int_eq(warnings, 1);
    }
    ck_assert_msg(strstr(warned, "there is no cuDNN") && strstr(warned, "our own kernels"), "%s",
                  warned);
    setenv("CUCPU_DNN", "yes", 1);
    setenv("DISTTRAIN_CUDNN", "no", 1);
    dt_assert_ok(begin(&k, false), k.err);
    ck_assert_str_eq(k.dev->info.library, "");
    end(&k);
    setenv("DISTTRAIN_CUDNN", "at-once", 1);
    setenv("CUCPU_DNN_REFUSES", "conv", 1); /* it has no plan */
    dt_assert_ok(begin(&k, false), k.err);
    ck_assert_str_eq(k.dev->info.library, "cuDNN 9.19.0");
    for (int i = 0; i < 2; i++) {
        counts(before);
        dt_assert_ok(convolve(&k, &convs[1], r), k.err);
        expect_ran(before, none);
        for (int j = 0; j < CONV_RESULTS; j++)
            drop(&k, &r[j]);
    }
    end(&k);
    unsetenv("CUCPU_DNN_REFUSES");
    ck_assert_int_eq(warnings, 1);
}
END_TEST

/* One query and one key; every width of the result's rows is a shape of its own. */
static void attend_once(struct work *k, void *memory, int64_t stride)
{
    struct dt_kernel_attention a = {.dtype = DT_BF16,
                                    .heads = 1,
                                    .kv_heads = 1,
                                    .head_dim = 8,
                                    .n_seq = 1,
                                    .max_q = 1,
                                    .max_k = 1,
                                    .rows_q = 1,
                                    .rows_k = 1,
                                    .stride_q = 8,
                                    .stride_k = 8,
                                    .stride_v = 8,
                                    .stride_o = stride,
                                    .scale = 1};
    uint16_t *x = memory;

    a.cu_q = a.cu_k = memory;
    k->dev->k->attention_fwd(k->q, &a, x + 8, x + 16, x + 24, x + 32, (float *)(void *)(x + 64));
}

/* A plan takes long: what never comes again gets none, and what comes often gets one in spite of all the others, when the
 * device settles and not before. */
START_TEST(test_plans_are_few)
{
    enum { NEW = 1200, EVERY = 12, LATE = 5 };
    static const int32_t cu[2] = {0, 1};
    unsigned before, ran[2][GRAPHS], often = 0;
    struct work k;
    void *memory;

    unsetenv("DISTTRAIN_CUDNN");
    dt_assert_ok(begin(&k, false), k.err);
    dt_assert_ok(k.dev->alloc(k.dev, 256, &k.err, &memory), k.err);
    k.dev->zero(k.q, memory, 256);
    k.dev->copy(k.q, memory, cu, sizeof(cu), DT_COPY_TO_DEVICE);
    before = planned(&k);
    count_of_module(&k, ran[0]);
    for (int i = 0; i < NEW; i++) {
        attend_once(&k, memory, 16 + 8 * i);
        if (i % EVERY == 0) {
            attend_once(&k, memory, 8);
            often++;
        }
        if (often < DT_KERNEL_SETTLES + LATE)
            ck_assert_uint_eq(planned(&k), before);
        if (often < DT_KERNEL_SETTLES || often >= DT_KERNEL_SETTLES + LATE)
            k.dev->settle(k.dev);
    }
    ck_assert_uint_gt(often, DT_KERNEL_SETTLES + LATE);
    ck_assert_uint_eq(planned(&k), before + 1);
    count_of_module(&k, ran[1]);
    ck_assert_uint_eq(ran[1][ATTEND] - ran[0][ATTEND], often - DT_KERNEL_SETTLES - LATE);
    dt_assert_ok(k.dev->queue_sync(k.q, &k.err), k.err);
    k.dev->free(k.dev, memory);
    end(&k);
    setenv("DISTTRAIN_CUDNN", "at-once", 1);
}
END_TEST

/* Other ranks may come only after what this one is about to do: a queue waits for them, and loading kernels, as it waits for the
 * queue, would wait for ever (the imitation ends the program). */
START_TEST(test_nothing_is_loaded_while_a_queue_waits)
{
    enum { OFTEN = 2 };
    struct dt_device_queue *waits;
    struct dt_device_gate *gate;
    unsigned before, ran[2][GRAPHS];
    struct work k;
    void *memory;

    if (!graphs_ran)
        return;
    if (_i == 0)
        setenv("DISTTRAIN_CUDNN", "2", 1);
    dt_assert_ok(begin(&k, false), k.err);
    dt_assert_ok(k.dev->alloc(k.dev, 256, &k.err, &memory), k.err);
    dt_assert_ok(k.dev->queue_new(k.dev, false, &k.err, &waits), k.err);
    dt_assert_ok(k.dev->gate_new(k.dev, &k.err, &gate), k.err);
    k.dev->zero(k.q, memory, 256);
    k.dev->gate_wait(waits, gate, 1);
    dt_assert_ok(k.dev->queue_sync(k.q, &k.err), k.err);
    usleep(50000); /* it stands there */
    before = planned(&k);
    for (int i = 0; i < 2 * OFTEN; i++)
        attend_once(&k, memory, 8); /* at once: here it ends */
    ck_assert_uint_eq(planned(&k), before);
    k.dev->gate_raise(k.q, gate, 1);
    dt_assert_ok(k.dev->queue_sync(k.q, &k.err), k.err);
    dt_assert_ok(k.dev->queue_sync(waits, &k.err), k.err);
    k.dev->settle(k.dev);
    ck_assert_uint_eq(planned(&k), before + 1);
    counts(ran[0]);
    attend_once(&k, memory, 8);
    counts(ran[1]);
    ck_assert_uint_eq(ran[1][ATTEND], ran[0][ATTEND] + 1);
    dt_assert_ok(k.dev->queue_sync(k.q, &k.err), k.err);
    k.dev->queue_free(waits);
    k.dev->gate_free(gate);
    k.dev->free(k.dev, memory);
    end(&k);
    setenv("DISTTRAIN_CUDNN", "at-once", 1);
}
END_TEST

/* A shape's plan is made once. */
START_TEST(test_plans_are_kept)
{
    struct numbers r[CONV_RESULTS];
    unsigned n = 0, first[2] = {0}, now, calls;
    struct work k;
    const char *name;

    if (!graphs_ran)
        return;
    dt_assert_ok(begin(&k, false), k.err);
    for (int i = 0; i < 2; i++) {
        fail_at("", 0); /* counts anew */
        dt_assert_ok(convolve(&k, &convs[0], r), k.err);
        for (int j = 0; j < CONV_RESULTS; j++)
            drop(&k, &r[j]);
        for (now = 0; (name = called(now, &calls)) != NULL; now++)
            if (strcmp(name, "cudnnBackendFinalize") == 0)
                first[i] = calls;
    }
    n = first[0];
    ck_assert_uint_gt(n, 30);
    ck_assert_uint_eq(first[1], 3); /* a pack each */
    end(&k);
}
END_TEST

/* ---- calls that fail ---- */

/* Both, with call number `at` of `what` failing; what went well is right. */
static bool attempt(const char *what, unsigned at, struct numbers good[2][ATTENTION_RESULTS])
{
    struct numbers r[ATTENTION_RESULTS];
    int rest[4];
    bool ok = true;
    struct work k;

    fail_at(what, at);
    if (begin(&k, false) != DT_OK)
        ok = false;
    for (int i = 0; i < 2 && ok; i++) {
        memset(r, 0, sizeof(r));
        ok = (i == 0 ? convolve(&k, &convs[2], r) : attend(&k, &attentions[2].a, r)) == DT_OK;
        for (int j = 0; j < (i == 0 ? CONV_RESULTS : ATTENTION_RESULTS); j++) {
            if (ok && good[i][j].host)
                same(&r[j], &good[i][j], what);
            if (ok && !good[i][j].host) {
                good[i][j] = r[j];
                k.dev->free(k.dev, r[j].p);
                good[i][j].p = NULL;
            } else {
                drop(&k, &r[j]);
            }
        }
    }
    if (!ok)
        ck_assert_msg(k.err.message[0], "%s, call %u: an error without a message", what, at);
    end(&k);
    fail_at("", 0);
    ck_assert_msg(left() == 0, "%s, call %u: %d descriptors or handles are left", what, at, left());
    runtime_left(rest);
    ck_assert_msg(rest[0] == 0 && rest[2] == 0, "%s, call %u: %d streams, %d blocks are left", what,
                  at, rest[0], rest[2]);
    return ok;
}

START_TEST(test_every_call)
{
    static const char *const names[] = {
        "cudnnCreate",          "cudnnSetStream",           "cudnnBackendCreateDescriptor",
        "cudnnBackendFinalize", "cudnnBackendSetAttribute", "cudnnBackendGetAttribute",
        "cudnnBackendExecute",  "cudaStreamBeginCapture",   "cudaStreamEndCapture",
    };
    enum { NAMES = sizeof(names) / sizeof(names[0]) };
    static struct numbers good[2][ATTENTION_RESULTS];
    unsigned n, calls, errors = 0, silent = 0, counted[NAMES] = {0};
    const char *name;

    if (!graphs_ran)
        return;
    ck_assert(attempt("", 0, good));
    fail_at("", 0);
    {
        struct numbers r[ATTENTION_RESULTS];
        struct work k;

        dt_assert_ok(begin(&k, false), k.err);
        dt_assert_ok(convolve(&k, &convs[2], r), k.err);
        for (int j = 0; j < CONV_RESULTS; j++)
            drop(&k, &r[j]);
        dt_assert_ok(attend(&k, &attentions[2].a, r), k.err);
        for (int j = 0; j < ATTENTION_RESULTS; j++)
            drop(&k, &r[j]);
        end(&k);
    }
    for (n = 0; (name = called(n, &calls)) != NULL; n++)
        for (int i = 0; i < NAMES; i++)
            if (strcmp(name, names[i]) == 0)
                counted[i] = calls;
    for (int i = 0; i < NAMES; i++) {
        ck_assert_msg(counted[i] > 0, "%s is never called", names[i]);
        for (unsigned at = 1; at <= counted[i]; at += counted[i] > 40 ? 7 : 1) {
            if (attempt(names[i], at, good))
                silent++;
            else
                errors++;
        }
    }
    printf("%u calls that fail: %u errors, %u without consequences\n", errors + silent, errors,
           silent);
    ck_assert_uint_ge(errors, 10); /* runs that fail are errors, plans that fail are not */
    ck_assert_uint_ge(silent, 50);
    for (int i = 0; i < 2; i++)
        for (int j = 0; j < ATTENTION_RESULTS; j++)
            dt_free(good[i][j].host);
}
END_TEST

static bool has_library(void)
{
    struct work k;
    bool has = false;

    if (begin(&k, false) == DT_OK)
        has = k.dev->info.library[0] != '\0';
    end(&k);
    return has;
}

int main(void)
{
    const char *card = getenv("DISTTRAIN_TEST_DEVICE");
    Suite *s = suite_create("cards: cuDNN");
    TCase *t = dt_test_case(s, "graphs", 240);

    if (!card || strcmp(card, "cuda") != 0) {
        if (access(MODULES "/disttrain-cuda.so", R_OK) != 0) {
            printf("SKIP: there is no C++20 compiler for %s\n", MODULES);
            return 77;
        }
        setenv("DISTTRAIN_MODULES", MODULES, 1);
        setenv("DISTTRAIN_CUDA_ARENA", "0", 1);
        setenv("CUCPU_DNN", "yes", 1);
    }
    setenv("DISTTRAIN_CUDNN", "at-once", 1);
    if (!has_library()) {
        printf("SKIP: there is no cuDNN\n");
        return 77;
    }
    find("cucpu_dnn_ran", &graphs_ran);
    find("cucpu_fail_at", &fail_at);
    find("cucpu_called", &called);
    find("cucpu_dnn_left", &left);
    find("cucpu_left", &runtime_left);
    tcase_add_loop_test(t, test_convolutions, 0, CONVS);
    tcase_add_loop_test(t, test_attention, 0, ATTENTIONS);
    tcase_add_loop_test(t, test_what_it_does_wrong, 0, DOUBTFUL);
    tcase_add_test(t, test_the_library_does_it);
    tcase_add_test(t, test_without_it);
    tcase_add_test(t, test_plans_are_few);
    tcase_add_loop_test(t, test_nothing_is_loaded_while_a_queue_waits, 0, 1);
    if (graphs_ran)
        tcase_add_loop_test_raise_signal(t, test_nothing_is_loaded_while_a_queue_waits, SIGABRT, 1,
                                         2);
    tcase_add_test(t, test_plans_are_kept);
    tcase_add_test(t, test_every_call);
    return dt_test_run(s);
}
