/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * For tests of kernels: the CPU device with one thread and with two, and tensors that exist twice,
 * as device memory and as doubles.  Every kernel runs on both and must give the same bytes.
 *
 * Kernels are given memory of the device only, and the host reads and writes it by copies, so that the same tests
 * run on a card. */
#ifndef DT_TESTS_KERNEL_UTIL_H
#define DT_TESTS_KERNEL_UTIL_H

#include "base/mem.h"
#include "base/rng.h"
#include "kernels/device_open.h"
#include "kernels/kernels.h"
#include "test_util.h"

#include <math.h>
#include <stdio.h>

/* Loop tests take _i: type and instruction set.  Up to KT_CASES: the best there is, AVX2 and plain
 * C; up to KT_ALL_CASES also AVX-512 without bf16 and AVX512-BF16 without AMX, which differ only in
 * the kernels that have products of bf16.
 *
 * DISTTRAIN_TEST_DEVICE=NAME tests another device than the CPU; it has one instruction set. */
static inline bool kt_is_cpu(void)
{
    return !getenv("DISTTRAIN_TEST_DEVICE");
}
#define KT_ISAS (kt_is_cpu() ? 3 : 1)
#define KT_ALL_ISAS (kt_is_cpu() ? 5 : 1)
#define KT_CASES (2 * KT_ISAS)
#define KT_ALL_CASES (2 * KT_ALL_ISAS)

struct kt_given { /* device memory, freed by kt_close */
    void *p;
    struct kt_given *next;
};

struct kt {
    struct dt_device *dev[2];
    struct dt_device_queue *q[2];
    const struct dt_kernels *k; /* of dev[0]; the same functions as of dev[1] */
    struct dt_rng rng;
    uint64_t seed;
    enum dt_dtype t;
    struct kt_given *given;
};

struct buf {
    int64_t n;
    enum dt_dtype t;
    double *v;   /* values (of inputs), initial values (of outputs) */
    double *got; /* of outputs, after kt_same */
    void *p;     /* device memory: what kernels are given */
    void *
        h; /* the same for the host, as of the last copy; p itself where the host shares the memory */
    void *saved; /* the one-thread result */
    struct kt *k;
};

static inline void kt_open(struct kt *k, int i)
{
    static const char *const isas[] = {"all", "v3", "base", "v4", "bf16"};
    struct dt_device_choice which = {.name = kt_is_cpu() ? "cpu" : getenv("DISTTRAIN_TEST_DEVICE")};
    struct dt_error err;

    memset(k, 0, sizeof(*k));
    k->t = i % 2 ? DT_BF16 : DT_F32;
    k->seed = dt_test_seed();
    dt_rng_init(&k->rng, k->seed, (uint64_t)i);
    setenv("DT_CPU_ISA", isas[i / 2 % 5], 1);
    for (int th = 0; th < 2; th++) {
        struct dt_device_options opt = {.threads = th + 1};

        dt_assert_ok(dt_device_open(&which, &opt, &err, &k->dev[th]), err);
        dt_assert_ok(k->dev[th]->queue_new(k->dev[th], false, &err, &k->q[th]), err);
    }
    k->k = k->dev[0]->k;
}

/* Memory of device 0, exactly as large as the contract says: sanitizers and guard pages watch the end. */
static inline void *kt_alloc(struct kt *k, size_t bytes)
{
    struct dt_error err;
    void *p;

    if (k->dev[0]->info.host_memory)
        return malloc(bytes > 0 ? bytes : 1);
    dt_assert_ok(k->dev[0]->alloc(k->dev[0], bytes, &err, &p), err);
    return p;
}

static inline void kt_free(struct kt *k, void *p)
{
    if (k->dev[0]->info.host_memory)
        free(p);
    else
        k->dev[0]->free(k->dev[0], p);
}

/* Between host and device, in the order of queue `th`, which has done all then. */
static inline void kt_copy(struct kt *k, int th, void *to, const void *from, size_t bytes,
                           enum dt_device_copy dir)
{
    struct dt_error err;

    if (to != from && bytes > 0)
        k->dev[th]->copy(k->q[th], to, from, bytes, dir);
    dt_assert_ok(k->dev[th]->queue_sync(k->q[th], &err), err);
}

/* A copy on the device of what the host holds, until kt_close. */
static inline void *kt_give(struct kt *k, const void *host, size_t bytes)
{
    struct kt_given *g = malloc(sizeof(*g));

    g->p = kt_alloc(k, bytes);
    g->next = k->given;
    k->given = g;
    kt_copy(k, 0, g->p, host, bytes, DT_COPY_TO_DEVICE);
    return g->p;
}

/* What queue `th` has left in device memory. */
static inline void kt_take(struct kt *k, int th, void *host, const void *p, size_t bytes)
{
    kt_copy(k, th, host, p, bytes, DT_COPY_TO_HOST);
}

static inline void kt_close(struct kt *k)
{
    while (k->given) {
        struct kt_given *g = k->given;

        k->given = g->next;
        kt_free(k, g->p);
        free(g);
    }
    for (int th = 0; th < 2; th++) {
        int64_t now, max;

        k->dev[th]->queue_free(k->q[th]);
        k->dev[th]->memory_used(k->dev[th], &now, &max);
        ck_assert_int_eq(now, 0);
        k->dev[th]->close(k->dev[th]);
    }
}

/* The type products can have here. */
static inline bool kt_no_bf16(const struct kt *k)
{
    return k->t == DT_BF16 && !k->dev[0]->info.bf16;
}

/* A card with its maker's libraries, not the module built for a CPU (tests/cuda_cpu/card.cc names that). */
static inline bool kt_is_card(const struct kt *k)
{
    const struct dt_device_info *i = &k->dev[0]->info;

    return strncmp(i->isa, "sm_", 3) == 0 && strcmp(i->name, "CUDA on a CPU") != 0;
}

static inline double kt_round(double x, enum dt_dtype t)
{
    float f = (float)x;
    uint32_t u;

    if (t == DT_F32)
        return (double)f;
    memcpy(&u, &f, 4);
    u = (u + 0x7fffu + (u >> 16 & 1)) & 0xffff0000u;
    memcpy(&f, &u, 4);
    return (double)f;
}

static inline void buf_put(struct buf *b, int64_t i, double x)
{
    float f = (float)x;
    uint32_t u;

    memcpy(&u, &f, 4);
    if (b->t == DT_F32)
        ((float *)b->h)[i] = f;
    else
        ((uint16_t *)b->h)[i] = (uint16_t)(u >> 16);
}

static inline double buf_get(const struct buf *b, int64_t i)
{
    uint32_t u;
    float f;

    if (b->t == DT_F32)
        return (double)((const float *)b->h)[i];
    u = (uint32_t)((const uint16_t *)b->h)[i] << 16;
    memcpy(&f, &u, 4);
    return (double)f;
}

static inline size_t buf_bytes(const struct buf *b)
{
    return (size_t)b->n * dt_dtype_bytes(b->t);
}

/* What the host has written is the device's. */
static inline void buf_to_device(struct buf *b)
{
    kt_copy(b->k, 0, b->p, b->h, buf_bytes(b), DT_COPY_TO_DEVICE);
}

/* What queue `th` has left is the host's to read. */
static inline void buf_to_host(struct buf *b, int th)
{
    kt_copy(b->k, th, b->h, b->p, buf_bytes(b), DT_COPY_TO_HOST);
}

static inline void buf_reset(struct buf *b)
{
    for (int64_t i = 0; i < b->n; i++)
        buf_put(b, i, b->v[i]);
    buf_to_device(b);
}

/* n normal values times scale, rounded to the type; plus an offset. */
static inline struct buf buf_new(struct kt *k, int64_t n, enum dt_dtype t, double scale,
                                 double offset)
{
    struct buf b = {.n = n, .t = t, .k = k};
    size_t bytes = buf_bytes(&b);

    b.v = calloc((size_t)n + 1, sizeof(double));
    b.got = calloc((size_t)n + 1, sizeof(double));
    b.p = kt_alloc(k, bytes);
    b.h = k->dev[0]->info.host_memory ? b.p : malloc(bytes + 1);
    b.saved = malloc(bytes + 1);
    for (int64_t i = 0; i < n; i++)
        b.v[i] = kt_round(offset + scale * dt_rng_normal(&k->rng), t);
    buf_reset(&b);
    return b;
}

static inline void buf_free(struct buf *b)
{
    free(b->v);
    free(b->got);
    if (b->h != b->p)
        free(b->h);
    kt_free(b->k, b->p);
    free(b->saved);
}

/* Queue th did all; what it left in b: one thread's bytes are kept, two threads' must be equal. */
static inline void kt_same(struct kt *k, int th, struct buf *b)
{
    size_t bytes = buf_bytes(b);

    buf_to_host(b, th);
    if (th == 0) {
        memcpy(b->saved, b->h, bytes);
        for (int64_t i = 0; i < b->n; i++)
            b->got[i] = buf_get(b, i);
        return;
    }
    ck_assert_msg(memcmp(b->saved, b->h, bytes) == 0,
                  "one and two threads differ (seed %" PRIu64 ")", k->seed);
}

/* |got - want| <= tol * scale, scale = the largest |want|; `what` names it. */
static inline void kt_near(struct kt *k, const char *what, double got, double want, double scale,
                           double tol)
{
    ck_assert_msg(fabs(got - want) <= tol * scale || got == want,
                  "%s: %.9g, expected %.9g (scale %.3g, tolerance %.1e, seed %" PRIu64 ", type %d)",
                  what, got, want, scale, tol, k->seed, (int)k->t);
}

static inline double kt_scale(const double *v, int64_t n)
{
    double s = 1e-6;

    for (int64_t i = 0; i < n; i++)
        if (isfinite(v[i]))
            s = fmax(s, fabs(v[i]));
    return s;
}

static inline void kt_all_near(struct kt *k, const char *what, const struct buf *b,
                               const double *want, double tol)
{
    double scale = kt_scale(want, b->n);

    for (int64_t i = 0; i < b->n; i++)
        kt_near(k, what, b->got[i], want[i], scale, tol);
}

/* Tolerance of a result: fp32 arithmetic, and the one rounding of a bf16 result (2^-9 of the value,
 * less than 2^-8 of the largest). */
static inline double kt_tol(enum dt_dtype t)
{
    return t == DT_BF16 ? 0x1p-8 : 2e-5;
}

/* A gradient against central differences at up to `most` places. */
static inline void kt_gradient(struct kt *k, const char *what, struct buf *grad,
                               const double *before, double *x, double (*loss)(void *), void *ctx,
                               double (*slope)(double (*)(void *), void *, double *), int most,
                               double tol)
{
    double scale = kt_scale(grad->got, grad->n);

    for (int s = 0; s < most; s++) {
        int64_t i = most >= grad->n ? s : (int64_t)dt_rng_below(&k->rng, (uint64_t)grad->n);

        if (i >= grad->n)
            break;
        kt_near(k, what, grad->got[i], slope(loss, ctx, x + i) + (before ? before[i] : 0), scale,
                tol);
    }
}

#endif
