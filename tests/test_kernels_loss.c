/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Losses, sampling, optimizer. */
#include "base/bf16.h"
#include "kernel_util.h"
#include "ref_kernels.h"

#include <pthread.h>

struct xent_case {
    int64_t rows, vocab, width;
    double *x, *w, scale;
    const int32_t *target;
};

static double xent_loss(void *ctx)
{
    struct xent_case *c = ctx;
    double s = 0;

    for (int64_t r = 0; r < c->rows; r++)
        s += ref_xent_row(c->vocab, c->width, c->x + r * c->width, c->w, c->target[r]);
    return s * c->scale;
}

static void check_xent(struct kt *k, int64_t rows, int64_t vocab, int64_t width, bool add)
{
    struct buf x = buf_new(k, rows * width, k->t, 1.2, 0);
    struct buf w = buf_new(k, vocab * width, DT_F32, 0.8 / sqrt((double)width), 0);
    struct buf dx = buf_new(k, rows * width, k->t, 1, 0), dw = buf_new(k, w.n, DT_F32, 0.01, 0);
    struct buf nll = buf_new(k, rows, DT_F32, 1, 0), alone = buf_new(k, rows, DT_F32, 1, 0);
    double *wr = calloc((size_t)w.n, sizeof(double)), *want = calloc((size_t)rows, sizeof(double));
    int32_t *target = calloc((size_t)rows, sizeof(*target)),
            *best = calloc((size_t)rows, sizeof(*best));
    struct xent_case c = {rows, vocab, width, x.v, wr, 1.0 / (double)rows, target};

    for (int64_t i = 0; i < w.n; i++)
        wr[i] = kt_round(w.v[i], k->t);
    for (int64_t r = 0; r < rows; r++)
        target[r] = r % 5 == 3 ? -1 : (int32_t)dt_rng_below(&k->rng, (uint64_t)vocab);
    const int32_t *targets = kt_give(k, target, (size_t)rows * sizeof(*target));
    int32_t *bests = kt_give(k, best, (size_t)rows * sizeof(*best));

    for (int th = 0; th < 2; th++) {
        struct dt_device_weight_shape s = {k->t, vocab, width, 0};
        struct dt_device_weight *wd = NULL;
        struct dt_error err;

        buf_reset(&dw);
        dt_assert_ok(k->dev[th]->weight_new(k->dev[th], &s, w.p, NULL, &err, &wd), err);
        struct dt_kernel_xent head = {k->t, rows, wd, (float)c.scale, NULL};

        k->k->xent(k->q[th], &head, x.p, targets, nll.p, bests, dx.p, dw.p, add);
        k->k->xent(k->q[th], &head, x.p, targets, alone.p, NULL, NULL, NULL, false);
        kt_same(k, th, &nll), kt_same(k, th, &alone), kt_same(k, th, &dx), kt_same(k, th, &dw);
        kt_take(k, th, best, bests, (size_t)rows * sizeof(*best));
        k->dev[th]->weight_free(wd);
    }
    for (int64_t r = 0; r < rows; r++) {
        double top = -INFINITY, at = 0;

        want[r] = ref_xent_row(vocab, width, x.v + r * width, wr, target[r]);
        for (int64_t j = 0; j < vocab; j++) {
            double z = 0;

            for (int64_t i = 0; i < width; i++)
                z += x.v[r * width + i] * wr[j * width + i];
            top = fmax(top, z);
            at = j == best[r] ? z : at;
        }
        ck_assert(best[r] >= 0 && best[r] < vocab && at >= top - 1e-4);
    }
    kt_all_near(k, "loss", &nll, want, 1e-5);
    kt_all_near(k, "loss without gradient", &alone, want, 1e-5);
    /* bf16: probabilities are rounded before the second product */
    double tol = k->t == DT_BF16 ? 0x1p-6 : 1e-4;
    kt_gradient(k, "dx", &dx, NULL, c.x, xent_loss, &c, ref_slope, 12, tol);
    kt_gradient(k, "dw", &dw, add ? dw.v : NULL, c.w, xent_loss, &c, ref_slope, 12, tol);
    free(wr), free(want), free(target), free(best);
    buf_free(&x), buf_free(&w), buf_free(&dx), buf_free(&dw), buf_free(&nll), buf_free(&alone);
}

START_TEST(test_xent)
{
    struct kt k;

    kt_open(&k, _i);
    if (!kt_no_bf16(&k)) {
        check_xent(&k, 1, 2, 3, false);
        check_xent(&k, 37, 101, 24, true);
        check_xent(&k, 50, 260, 16, false);
        check_xent(&k, 21, 1100, 24, true); /* padded to whole blocks of 64 */
        if (_i < 2)                         /* more than one chunk of rows */
            check_xent(&k, 1100, 61, 8, true);
    }
    kt_close(&k);
}
END_TEST

/* ---- the vocabulary in two parts, each a thread's ---- */

enum { PARTS_ROWS = 1100, PARTS_VOCAB = 61, PARTS_WIDTH = 8, PARTS_FIRST = 31 };

struct meeting {
    pthread_barrier_t gate;
    void *x[2];
};

struct results {
    float nll[PARTS_ROWS], dx[PARTS_ROWS * PARTS_WIDTH], dw[PARTS_VOCAB * PARTS_WIDTH];
    int32_t best[PARTS_ROWS];
};

struct member {
    struct kt *k;
    struct meeting *meeting;
    int me;
    const struct buf *x, *w;
    const int32_t *target;
    struct results *on_device;
};

/* x of both members, on the host: x[0] and x[1] of the meeting, until leave(). */
static void *meet(struct member *m, const void *x, size_t bytes)
{
    void *mine = malloc(bytes);

    kt_take(m->k, m->me, mine, x, bytes);
    m->meeting->x[m->me] = mine;
    pthread_barrier_wait(&m->meeting->gate);
    return malloc(bytes);
}

static void leave(struct member *m, void *result, void *x, size_t bytes)
{
    pthread_barrier_wait(&m->meeting->gate);
    free(m->meeting->x[m->me]);
    kt_copy(m->k, m->me, x, result, bytes, DT_COPY_TO_DEVICE);
    free(result);
}

static void meet_sum(struct dt_device_queue *q, void *arg, int64_t n, double *x)
{
    struct member *m = arg;
    double *sum = meet(m, x, (size_t)n * sizeof(*sum));

    (void)q;
    for (int64_t i = 0; i < n; i++)
        sum[i] = ((double *)m->meeting->x[0])[i] + ((double *)m->meeting->x[1])[i];
    leave(m, sum, x, (size_t)n * sizeof(*sum));
}

static void meet_max(struct dt_device_queue *q, void *arg, int64_t n, float *x)
{
    struct member *m = arg;
    float *max = meet(m, x, (size_t)n * sizeof(*max));

    (void)q;
    for (int64_t i = 0; i < n; i++)
        max[i] = fmaxf(((float *)m->meeting->x[0])[i], ((float *)m->meeting->x[1])[i]);
    leave(m, max, x, (size_t)n * sizeof(*max));
}

static void *member_runs(void *arg)
{
    struct member *m = arg;
    int64_t first = m->me * PARTS_FIRST, rows = m->me ? PARTS_VOCAB - PARTS_FIRST : PARTS_FIRST;
    struct dt_device_weight_shape s = {DT_F32, rows, PARTS_WIDTH, 0};
    struct dt_kernel_xent_parts parts = {PARTS_VOCAB, first, PARTS_FIRST, meet_max, meet_sum, m};
    struct dt_device *dev = m->k->dev[m->me];
    struct dt_device_weight *w = NULL;
    struct dt_error err;
    struct dt_kernel_xent head = {DT_F32, PARTS_ROWS, NULL, 0.37f, &parts};

    dev->weight_new(dev, &s, (const float *)m->w->p + first * PARTS_WIDTH, NULL, &err, &w);
    head.w = w;
    m->k->k->xent(m->k->q[m->me], &head, m->x->p, m->target, m->on_device->nll, m->on_device->best,
                  m->on_device->dx, m->on_device->dw + first * PARTS_WIDTH, false);
    dev->weight_free(w);
    return NULL;
}

START_TEST(test_xent_in_parts)
{
    struct dt_device_weight_shape s = {DT_F32, PARTS_VOCAB, PARTS_WIDTH, 0};
    struct dt_device_weight *w = NULL;
    struct dt_error err;
    struct meeting meeting;
    struct member m[3]; /* the two, and one alone */
    struct results *r = calloc(3, sizeof(*r));
    int32_t target[PARTS_ROWS];
    pthread_t other;
    struct kt k;

    kt_open(&k, 2 * _i);
    struct buf x = buf_new(&k, PARTS_ROWS * PARTS_WIDTH, DT_F32, 1.2, 0);
    struct buf wb = buf_new(&k, PARTS_VOCAB * PARTS_WIDTH, DT_F32, 0.8, 0);

    for (int i = 0; i < PARTS_ROWS; i++)
        target[i] = i % 5 == 3 ? -1 : (int32_t)dt_rng_below(&k.rng, PARTS_VOCAB);
    const int32_t *targets = kt_give(&k, target, sizeof(target));

    /* two equal rows of the table, one in each part: the lower token is the best of the two */
    memcpy((float *)wb.h + 40 * PARTS_WIDTH, (float *)wb.h + 7 * PARTS_WIDTH,
           PARTS_WIDTH * sizeof(float));
    buf_to_device(&wb);
    for (int i = 0; i < 3; i++)
        m[i] = (struct member){&k, &meeting, i, &x, &wb, targets, kt_give(&k, &r[i], sizeof(r[i]))};
    dt_assert_ok(k.dev[0]->weight_new(k.dev[0], &s, wb.p, NULL, &err, &w), err);
    struct dt_kernel_xent head = {DT_F32, PARTS_ROWS, w, 0.37f, NULL};

    k.k->xent(k.q[0], &head, x.p, targets, m[2].on_device->nll, m[2].on_device->best,
              m[2].on_device->dx, m[2].on_device->dw, false);
    ck_assert_int_eq(pthread_barrier_init(&meeting.gate, NULL, 2), 0);
    ck_assert_int_eq(pthread_create(&other, NULL, member_runs, &m[1]), 0);
    member_runs(&m[0]);
    pthread_join(other, NULL);
    for (int i = 0; i < 3; i++)
        kt_take(&k, i % 2, &r[i], m[i].on_device, sizeof(r[i]));
    for (int j = 0; j < PARTS_ROWS; j++)
        for (int i = 0; i < 2; i++) {
            ck_assert_float_eq_tol(r[i].nll[j], r[2].nll[j], 1e-5f * (1 + r[2].nll[j]));
            ck_assert_int_eq(r[i].best[j], r[2].best[j]);
        }
    for (int i = 0; i < PARTS_ROWS * PARTS_WIDTH; i++)
        ck_assert_float_eq_tol(r[0].dx[i] + r[1].dx[i], r[2].dx[i], 1e-5f);
    for (int i = 0; i < PARTS_VOCAB * PARTS_WIDTH; i++)
        ck_assert_float_eq_tol(r[i >= PARTS_FIRST * PARTS_WIDTH].dw[i], r[2].dw[i], 1e-3f);
    pthread_barrier_destroy(&meeting.gate);
    k.dev[0]->weight_free(w);
    buf_free(&x), buf_free(&wb);
    free(r);
    kt_close(&k);
}
END_TEST

START_TEST(test_ids_part)
{
    const int32_t id[7] = {-1, 0, 9, 10, 14, 15, INT32_MAX}, want[7] = {-1, -1, -1, 0, 4, -1, -1};
    int32_t got[7] = {0}, *out;
    struct kt k;

    kt_open(&k, 0);
    out = kt_give(&k, got, sizeof(got));
    k.k->ids_part(k.q[0], 7, kt_give(&k, id, sizeof(id)), 10, 5, out);
    kt_take(&k, 0, got, out, sizeof(got));
    ck_assert_int_eq(memcmp(got, want, sizeof(got)), 0);
    kt_close(&k);
}
END_TEST

/* A target outside the vocabulary is reported by the queue, once; afterwards it works again. */
START_TEST(test_bad_target)
{
    struct dt_device_weight_shape s = {DT_F32, 5, 4, 0};
    float table[20] = {1}, values[4] = {1, 2, 3, 4}, loss = -1, *master, *x, *nll;
    struct dt_device_weight *w = NULL;
    int32_t wrong = 5, right = 4;
    struct dt_error err;
    struct kt k;

    kt_open(&k, 0);
    master = kt_give(&k, table, sizeof(table));
    x = kt_give(&k, values, sizeof(values));
    nll = kt_give(&k, &loss, sizeof(loss));
    const int32_t *target[] = {kt_give(&k, &wrong, sizeof(wrong)),
                               kt_give(&k, &right, sizeof(right))};

    dt_assert_ok(k.dev[0]->weight_new(k.dev[0], &s, master, NULL, &err, &w), err);
    struct dt_kernel_xent head = {DT_F32, 1, w, 1, NULL};

    k.k->xent(k.q[0], &head, x, target[0], nll, NULL, NULL, NULL, false);
    k.k->scale(k.q[0], DT_F32, 4, 2, x, x); /* not run */
    if (kt_is_cpu())                        /* others know when they come to it */
        ck_assert(k.dev[0]->queue_state(k.q[0]) == DT_ERR_INPUT);
    ck_assert_int_eq(k.dev[0]->queue_sync(k.q[0], &err), DT_ERR_INPUT);
    dt_assert_has(err.message, "target 5 of row 0 is outside the vocabulary of 5");
    if (kt_is_cpu())
        ck_assert(*nll == -1 && x[0] == 1);
    k.k->xent(k.q[0], &head, x, target[1], nll, NULL, NULL, NULL, false);
    kt_take(&k, 0, &loss, nll, sizeof(loss));
    ck_assert(loss > 0);
    k.dev[0]->weight_free(w);
    kt_close(&k);
}
END_TEST

START_TEST(test_mse)
{
    enum { ITEMS = 5, ROWS = 955, WIDTH = 7 };
    static const int32_t cu[] = {0, 191, 192, 192, 700, ROWS};
    double want[ITEMS] = {0}, grad[ROWS * WIDTH];
    struct kt k;

    kt_open(&k, _i);
    const struct dt_kernel_items items = {ITEMS, kt_give(&k, cu, sizeof(cu)), ROWS};
    struct buf p = buf_new(&k, ROWS * WIDTH, k.t, 1.3, 0), z = buf_new(&k, p.n, k.t, 1, 0.2);
    struct buf d = buf_new(&k, p.n, k.t, 1, 0), sse = buf_new(&k, ITEMS, DT_F32, 1, 0);

    for (int th = 0; th < 2; th++) {
        k.k->mse(k.q[th], k.t, &items, WIDTH, p.p, z.p, 370.0f, sse.p, d.p);
        kt_same(&k, th, &d), kt_same(&k, th, &sse);
    }
    for (int i = 0, item = 0; i < ROWS * WIDTH; i++) {
        double e = p.v[i] - z.v[i];

        while (i / WIDTH >= cu[item + 1])
            item++;
        want[item] += e * e;
        grad[i] = 2 * 370.0 / ((cu[item + 1] - cu[item]) * WIDTH) * e;
    }
    kt_all_near(&k, "sse", &sse, want, 1e-5);
    kt_all_near(&k, "dpred", &d, grad, kt_tol(k.t));
    buf_free(&p), buf_free(&z), buf_free(&d), buf_free(&sse);
    kt_close(&k);
}
END_TEST

START_TEST(test_softmax)
{
    enum { ROWS = 17, WIDTH = 203 };
    double want[ROWS * WIDTH];
    struct kt k;

    kt_open(&k, _i);
    struct buf x = buf_new(&k, ROWS * WIDTH, k.t, 20, 3), p = buf_new(&k, x.n, DT_F32, 1, 0);

    for (int th = 0; th < 2; th++) {
        k.k->softmax(k.q[th], k.t, ROWS, WIDTH, 1.7f, x.p, p.p);
        kt_same(&k, th, &p);
    }
    for (int r = 0; r < ROWS; r++) {
        double max = -INFINITY, sum = 0;

        for (int i = 0; i < WIDTH; i++)
            max = fmax(max, x.v[r * WIDTH + i]);
        for (int i = 0; i < WIDTH; i++)
            sum += want[r * WIDTH + i] = exp((double)1.7f * (x.v[r * WIDTH + i] - max));
        for (int i = 0; i < WIDTH; i++)
            want[r * WIDTH + i] /= sum;
    }
    kt_all_near(&k, "softmax", &p, want, 2e-5);
    buf_free(&x), buf_free(&p);
    kt_close(&k);
}
END_TEST

START_TEST(test_adamw)
{
    enum { N = 40011, PARTS = 6 };
    static const int64_t n[PARTS] = {1, 0, (1 << 14) + 1, 1 << 14, 0, N - 2 - (1 << 15)};
    struct dt_kernel_adamw h = {2.5e-3f, 0.9f, 0.95f, 1e-8f, 0.1f, 1};
    struct dt_kernel_adamw_part part[PARTS];
    struct kt k;

    kt_open(&k, _i / 2 * 2);
    struct buf p = buf_new(&k, N, DT_F32, 0.5, 0), g = buf_new(&k, N, DT_F32, 0.01, 0);
    struct buf m = buf_new(&k, N, DT_F32, 0, 0), v = buf_new(&k, N, DT_F32, 0, 0);
    double *rp = calloc(N, sizeof(double)), *rm = calloc(N, sizeof(double));
    double *rv = calloc(N, sizeof(double));
    uint16_t *copy = calloc(N, sizeof(*copy)), *copies = kt_give(&k, copy, N * sizeof(*copy));
    const float *coef = kt_give(&k, &(float){0.625f}, sizeof(float));

    for (int th = 0; th < 2; th++) {
        memcpy(rp, p.v, sizeof(double) * N);
        memset(rm, 0, sizeof(double) * N);
        memset(rv, 0, sizeof(double) * N);
        buf_reset(&p), buf_reset(&m), buf_reset(&v);
        for (h.step = 1; h.step <= 5; h.step++) {
            for (int i = 0, at = 0; i < PARTS; at += n[i++])
                part[i] = (struct dt_kernel_adamw_part){n[i],
                                                        (float *)p.p + at,
                                                        (float *)g.p + at,
                                                        (float *)m.p + at,
                                                        (float *)v.p + at,
                                                        i != 3 ? copies + at : NULL,
                                                        i % 2 == 0};
            k.k->adamw(k.q[th], &h, PARTS, part, h.step == 3 ? NULL : coef);
            for (int i = 0; i < N; i++) {
                double x = g.v[i] * (h.step == 3 ? 1 : 0.625), s = (double)h.step;
                double b1 = (double)h.beta1, b2 = (double)h.beta2, lr = (double)h.lr;

                rm[i] = b1 * rm[i] + (1 - b1) * x;
                rv[i] = b2 * rv[i] + (1 - b2) * x * x;
                rp[i] -= lr * (rm[i] / (1 - pow(b1, s)) /
                                   (sqrt(rv[i] / (1 - pow(b2, s))) + (double)h.eps) +
                               (i < n[0] + n[2] ? (double)h.weight_decay * rp[i] : 0));
            }
        }
        kt_same(&k, th, &p), kt_same(&k, th, &m), kt_same(&k, th, &v);
        kt_take(&k, th, copy, copies, N * sizeof(*copy));
        for (int i = 0; i < N; i++) {
            bool left_out = i >= n[0] + n[2] && i < n[0] + n[2] + n[3];

            ck_assert_uint_eq(copy[i], left_out ? 0 : dt_bf16_from_f32(((float *)p.h)[i]));
        }
        memset(copy, 0, N * sizeof(*copy));
        kt_copy(&k, th, copies, copy, N * sizeof(*copy), DT_COPY_TO_DEVICE);
    }
    kt_all_near(&k, "p", &p, rp, 1e-6);
    kt_all_near(&k, "m", &m, rm, 1e-5);
    kt_all_near(&k, "v", &v, rv, 1e-5);
    free(rp), free(rm), free(rv), free(copy);
    buf_free(&p), buf_free(&g), buf_free(&m), buf_free(&v);
    kt_close(&k);
}
END_TEST

START_TEST(test_sums_and_clipping)
{
    static const int64_t sizes[] = {0, 1, 777, 1 << 14, 5 * (1 << 14) + 3, 300001};
    struct kt k;

    kt_open(&k, _i / 2 * 2);
    for (int s = 0; s < 6; s++) {
        struct buf x = buf_new(&k, sizes[s], DT_F32, 1.7, 0.3);
        double got[2][2] = {{3, 4}, {3, 4}}, sum = 3, sq = 4;
        double *d[] = {kt_give(&k, got[0], sizeof(got[0])), kt_give(&k, got[1], sizeof(got[1]))};
        float f[2] = {0}, *df = kt_give(&k, f, sizeof(f)); /* norm and coefficient */

        for (int th = 0; th < 2; th++) {
            k.k->sum(k.q[th], x.n, x.p, d[th], true);
            k.k->sum_sq(k.q[th], 1, &(struct dt_kernel_span){x.n, x.p}, d[th] + 1, true);
            kt_take(&k, th, got[th], d[th], sizeof(got[th]));
        }
        for (int64_t i = 0; i < x.n; i++) {
            sum += x.v[i];
            sq += x.v[i] * x.v[i];
        }
        ck_assert(memcmp(got[0], got[1], sizeof(got[0])) == 0);
        kt_near(&k, "sum", got[0][0], sum, sq, 1e-12);
        kt_near(&k, "sum of squares", got[0][1], sq, sq, 1e-12);
        k.k->clip_coef(k.q[0], d[0] + 1, 1.5f, df, df + 1);
        kt_take(&k, 0, f, df, sizeof(f));
        kt_near(&k, "norm", (double)f[0], sqrt(sq), sqrt(sq), 1e-6);
        kt_near(&k, "coef", (double)f[1], fmin(1, 1.5 / (sqrt(sq) + 1e-6)), 1, 1e-6);
        k.k->clip_coef(k.q[0], d[0] + 1, 0, NULL, df + 1);
        kt_take(&k, 0, f, df, sizeof(f));
        ck_assert(f[1] == 1);
        buf_free(&x);
    }
    /* not finite: the step sees a zero gradient */
    enum { COEF, P, G, M, V, ALL };
    float host[ALL] = {1, 2, NAN, 0, 0}, *f = kt_give(&k, host, sizeof(host));
    struct dt_kernel_adamw h = {0.1f, 0.9f, 0.99f, 1e-8f, 0, 1};

    k.k->clip_coef(k.q[0], kt_give(&k, &(double){INFINITY}, sizeof(double)), 1, NULL, f + COEF);
    k.k->adamw(k.q[0], &h, 1,
               &(struct dt_kernel_adamw_part){1, f + P, f + G, f + M, f + V, NULL, false},
               f + COEF);
    kt_take(&k, 0, host, f, sizeof(host));
    ck_assert(host[COEF] == 0);
    ck_assert(host[P] == 2 && host[M] == 0 && host[V] == 0);
    kt_close(&k);
}
END_TEST

/* Many tensors in one call come to what they come to one by one, to the bit. */
START_TEST(test_tables)
{
    static const int64_t n[] = {3, 0, 1 << 14, (1 << 14) + 17, 5, 3 * (1 << 14) + 1};
    enum { PARTS = sizeof(n) / sizeof(n[0]), GAP = 7 };
    struct dt_kernel_span part[PARTS];
    double one = 2, got = 2, *sum;
    int64_t size = 0;
    struct kt k;

    kt_open(&k, _i / 2 * 2);
    for (int i = 0; i < PARTS; i++)
        size += n[i] + GAP;
    struct buf x = buf_new(&k, size, DT_F32, 1.1, 0.2);
    float *at = x.p;

    for (int i = 0; i < PARTS; at += n[i++] + GAP)
        part[i] = (struct dt_kernel_span){n[i], at};
    sum = kt_give(&k, &one, sizeof(one));
    for (int i = 0; i < PARTS; i++)
        k.k->sum_sq(k.q[0], 1, &part[i], sum, true);
    kt_take(&k, 0, &one, sum, sizeof(one));
    for (int th = 0; th < 2; th++) {
        kt_copy(&k, th, sum, &(double){2}, sizeof(got), DT_COPY_TO_DEVICE);
        k.k->sum_sq(k.q[th], PARTS, part, sum, true);
        kt_take(&k, th, &got, sum, sizeof(got));
        ck_assert(memcmp(&got, &one, sizeof(one)) == 0);
    }
    k.k->sum_sq(k.q[0], 0, NULL, sum, true);
    kt_take(&k, 0, &got, sum, sizeof(got));
    ck_assert(got == one);
    k.k->sum_sq(k.q[0], 0, NULL, sum, false);
    kt_take(&k, 0, &got, sum, sizeof(got));
    ck_assert(got == 0);
    k.k->zero(k.q[0], PARTS, part);
    buf_to_host(&x, 0);
    for (int i = 0; i < PARTS; i++)
        for (int64_t j = -(i > 0); j < n[i] + 1; j++)
            ck_assert((((float *)x.h)[part[i].x - (float *)x.p + j] == 0) == (j >= 0 && j < n[i]));
    buf_free(&x);
    kt_close(&k);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("kernels: losses and optimizer");
    TCase *t = dt_test_case(s, "losses and optimizer", 900);

    tcase_add_loop_test(t, test_xent, 0, KT_CASES);
    tcase_add_loop_test(t, test_xent_in_parts, 0, KT_ISAS);
    tcase_add_test(t, test_ids_part);
    tcase_add_test(t, test_bad_target);
    tcase_add_loop_test(t, test_mse, 0, KT_CASES);
    tcase_add_loop_test(t, test_softmax, 0, KT_CASES);
    tcase_add_loop_test(t, test_adamw, 0, KT_CASES);
    tcase_add_loop_test(t, test_tables, 0, KT_CASES);
    tcase_add_loop_test(t, test_sums_and_clipping, 0, KT_CASES);
    return dt_test_run(s);
}
