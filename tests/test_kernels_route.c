/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Mixtures of experts: choice, order, balance, and rows that are weighed and come together. */
#include "kernel_util.h"
#include "ref_kernels.h"

enum { WIDTH = 37, ITEMS = 3 };

/* A row's numbers are few, so that many are equal. */
static double *few_values(struct kt *k, struct buf *b)
{
    for (int64_t i = 0; i < b->n; i++)
        b->v[i] = (double)(1 + dt_rng_below(&k->rng, 4)) / 8;
    buf_reset(b);
    return b->v;
}

/* Is a chosen before b? */
static bool before(const double *p, int a, int b)
{
    return p[a] > p[b] || (p[a] == p[b] && a < b);
}

static void check_choice(struct kt *k, int64_t rows, int experts, int top_k, bool normed)
{
    const struct dt_kernel_route r = {rows, experts, top_k, normed};
    struct buf p = buf_new(k, rows * experts, DT_F32, 1, 0);
    struct buf w = buf_new(k, rows * top_k, DT_F32, 1, 0);
    int32_t *chosen = calloc((size_t)(rows * top_k) + 1, sizeof(*chosen));
    int32_t *given = kt_give(k, chosen, (size_t)(rows * top_k) * sizeof(*chosen));

    few_values(k, &p);
    for (int th = 0; th < 2; th++) {
        k->k->route_choose(k->q[th], &r, p.p, given, w.p);
        kt_same(k, th, &w);
        kt_take(k, th, chosen, given, (size_t)(rows * top_k) * sizeof(*chosen));
    }
    for (int64_t i = 0; i < rows; i++) {
        const double *row = p.v + i * experts;
        double sum = 0;

        for (int j = 0; j < top_k; j++) {
            int e = chosen[i * top_k + j], ahead = 0;

            for (int o = 0; o < experts; o++)
                ahead += before(row, o, e);
            ck_assert_msg(ahead == j, "choice %d of row %lld is number %d (seed %" PRIu64 ")", j,
                          (long long)i, ahead, k->seed);
            sum += row[e];
        }
        for (int j = 0; j < top_k; j++)
            kt_near(k, "weight", w.got[i * top_k + j],
                    row[chosen[i * top_k + j]] / (normed ? sum : 1), 1, 1e-6);
    }
    buf_free(&p), buf_free(&w), free(chosen);
}

START_TEST(chooses_the_largest)
{
    struct kt k;

    kt_open(&k, _i);
    check_choice(&k, 41, 8, 2, true);
    check_choice(&k, 600, 5, 5, true);
    check_choice(&k, 17, 64, 6, false);
    check_choice(&k, 3, 1, 1, true);
    check_choice(&k, 0, 4, 2, true);
    kt_close(&k);
}
END_TEST

static void check_order(struct kt *k, int64_t rows, int experts, int top_k)
{
    const struct dt_kernel_route r = {rows, experts, top_k, true};
    int64_t n = rows * top_k, at = 0;
    size_t bytes = (size_t)n * sizeof(int32_t);
    int32_t *e = calloc((size_t)n + 1, sizeof(*e)), *out[4], *dev[4];

    for (int64_t i = 0; i < n; i++) /* expert 1 gets nothing */
        e[i] = dt_rng_below(&k->rng, 3) ? 0 : (int32_t)dt_rng_below(&k->rng, (uint64_t)experts);
    for (int64_t i = 0; i < n; i++)
        e[i] = e[i] == 1 ? 0 : e[i];
    const int32_t *given = kt_give(k, e, bytes);

    for (int i = 0; i < 4; i++) {
        out[i] = calloc((size_t)(i > 0 ? n : experts) + 1, sizeof(int32_t));
        dev[i] = kt_give(k, out[i], i > 0 ? bytes : (size_t)experts * sizeof(int32_t));
    }
    for (int th = 0; th < 2; th++) {
        k->k->route_sort(k->q[th], &r, given, dev[0], dev[1], dev[2], dev[3]);
        for (int i = 0; i < 4; i++)
            kt_take(k, th, out[i], dev[i], i > 0 ? bytes : (size_t)experts * sizeof(int32_t));
        at = 0;
        for (int x = 0; x < experts; x++) {
            int32_t count = 0;

            for (int64_t i = 0; i < n; i++) {
                if (e[i] != x)
                    continue;
                ck_assert_int_eq(out[1][i], at);
                ck_assert_int_eq(out[2][at], i);
                ck_assert_int_eq(out[3][at], i / top_k);
                count++, at++;
            }
            ck_assert_int_eq(out[0][x], count);
        }
    }
    for (int i = 0; i < 4; i++)
        free(out[i]);
    free(e);
}

START_TEST(sorts_by_expert)
{
    struct kt k;

    kt_open(&k, _i);
    check_order(&k, 700, 7, 2);
    check_order(&k, 33, 300, 4);
    check_order(&k, 1, 2, 2);
    check_order(&k, 0, 3, 1);
    kt_close(&k);
}
END_TEST

/* ---- gradients ---- */

struct mix { /* sum of cost . weights + balance * (load . p), of logits z */
    struct dt_kernel_route r;
    const int32_t *chosen, *cu;
    const double *cost, *load;
    double *z, balance;
};

static double mix_loss(void *arg)
{
    const struct mix *m = arg;
    int n = m->r.experts, k = m->r.top_k;
    double loss = 0, *p = calloc((size_t)n, sizeof(double));

    for (int64_t r = 0, item = 0; r < m->r.rows; r++) {
        double sum = 0, of = 0;

        for (int e = 0; e < n; e++)
            sum += p[e] = exp(m->z[r * n + e]);
        for (int e = 0; e < n; e++)
            p[e] /= sum;
        while (m->cu[item + 1] <= r)
            item++;
        for (int j = 0; j < k; j++)
            of += p[m->chosen[r * k + j]];
        for (int j = 0; j < k; j++)
            loss += m->cost[r * k + j] * p[m->chosen[r * k + j]] / (m->r.normed ? of : 1);
        for (int e = 0; m->load && e < n; e++)
            loss += m->balance * m->load[item * n + e] * p[e];
    }
    free(p);
    return loss;
}

static void check_balance(struct kt *k, const struct dt_kernel_route *r, const int32_t *cu,
                          const struct buf *p, const int32_t *chosen, const struct buf *load,
                          const struct buf *sum)
{
    for (int i = 0; i < ITEMS; i++) {
        double rows = cu[i + 1] - cu[i], want = 0;

        for (int e = 0; e < r->experts; e++) {
            double n = 0, of = 0, f;

            for (int64_t c = cu[i] * r->top_k; c < cu[i + 1] * r->top_k; c++)
                n += chosen[c] == e;
            for (int64_t j = cu[i]; j < cu[i + 1]; j++)
                of += p->got[j * r->experts + e];
            f = rows > 0 ? n * r->experts / (rows * r->top_k) : 0;
            kt_near(k, "load", load->got[i * r->experts + e], f, 1, 1e-6);
            want += f * of;
        }
        kt_near(k, "sum of an item", sum->got[i], want, rows + 1, 1e-5);
    }
}

static void check_gradient(struct kt *k, bool normed, bool balanced)
{
    const int32_t cu[ITEMS + 1] = {0, 13, 13, 50};
    const struct dt_kernel_route r = {50, 6, 3, normed};
    const struct dt_kernel_items items = {ITEMS, kt_give(k, cu, sizeof(cu)), 50};
    struct buf z = buf_new(k, r.rows * r.experts, k->t, 1.5, 0);
    struct buf p = buf_new(k, z.n, DT_F32, 1, 0), dz = buf_new(k, z.n, k->t, 1, 0);
    struct buf cost = buf_new(k, r.rows * r.top_k, DT_F32, 1, 0);
    struct buf load = buf_new(k, (int64_t)ITEMS * r.experts, DT_F32, 1, 0);
    struct buf sum = buf_new(k, ITEMS, DT_F32, 1, 0);
    int32_t chosen[150] = {0}, *given = kt_give(k, chosen, sizeof(chosen));
    struct mix m = {r, chosen, cu, cost.v, balanced ? load.got : NULL, z.v, 0.3};

    for (int th = 0; th < 2; th++) {
        k->k->softmax(k->q[th], k->t, r.rows, r.experts, 1, z.p, p.p);
        k->k->route_choose(k->q[th], &r, p.p, given, NULL);
        k->k->route_load(k->q[th], &r, &items, given, load.p);
        k->k->route_even(k->q[th], &r, &items, p.p, load.p, sum.p);
        k->k->route_bwd(k->q[th], k->t, &r, p.p, given, cost.p, &items, balanced ? load.p : NULL,
                        0.3f, dz.p);
        kt_same(k, th, &p), kt_same(k, th, &load), kt_same(k, th, &sum), kt_same(k, th, &dz);
        kt_take(k, th, chosen, given, sizeof(chosen));
    }
    check_balance(k, &r, cu, &p, chosen, &load, &sum);
    kt_gradient(k, "gradient of logits", &dz, NULL, z.v, mix_loss, &m, ref_slope, 60, kt_tol(k->t));
    buf_free(&z), buf_free(&p), buf_free(&dz), buf_free(&cost), buf_free(&load), buf_free(&sum);
}

START_TEST(gradients_are_central_differences)
{
    struct kt k;

    kt_open(&k, _i);
    for (int i = 0; i < 4; i++)
        check_gradient(&k, i & 1, i & 2);
    kt_close(&k);
}
END_TEST

/* ---- rows ---- */

static void check_rows(struct kt *k, int64_t rows, int64_t width, int top, bool add)
{
    struct buf x = buf_new(k, rows * top * width, k->t, 1, 0), y = buf_new(k, x.n, k->t, 1, 0);
    struct buf dy = buf_new(k, x.n, k->t, 1, 0), w = buf_new(k, rows * top, DT_F32, 1, 0);
    struct buf dw = buf_new(k, w.n, DT_F32, 1, 0), sum = buf_new(k, rows * width, k->t, 1, 0);
    struct buf near = buf_new(k, rows * width, k->t, 1, 0);
    struct buf b = buf_new(k, width, DT_F32, 1, 0), biased = buf_new(k, x.n, k->t, 1, 0);
    struct buf dot = buf_new(k, w.n, DT_F32, 1, 0);
    int32_t *place = calloc((size_t)w.n + 1, sizeof(*place));

    for (int64_t i = 0; i < w.n; i++) { /* a permutation */
        int64_t j = (int64_t)dt_rng_below(&k->rng, (uint64_t)i + 1);

        place[i] = place[j];
        place[j] = (int32_t)i;
    }
    const int32_t *given = kt_give(k, place, (size_t)w.n * sizeof(*place));

    for (int th = 0; th < 2; th++) {
        buf_reset(&sum), buf_reset(&near), buf_reset(&dy), buf_reset(&biased), buf_reset(&dot);
        k->k->rows_bias(k->q[th], k->t, w.n, width, w.p, b.p, biased.p);
        k->k->rows_bias_bwd(k->q[th], k->t, w.n, width, b.p, dy.p, dot.p);
        kt_same(k, th, &biased), kt_same(k, th, &dot);
        k->k->rows_weigh(k->q[th], k->t, w.n, width, w.p, x.p, y.p);
        k->k->rows_join(k->q[th], k->t, rows, top, width, x.p, given, sum.p, add);
        k->k->rows_join(k->q[th], k->t, rows, top, width, x.p, NULL, near.p, add);
        k->k->rows_weigh_bwd(k->q[th], k->t, w.n, width, w.p, x.p, dy.p, dy.p, dw.p);
        kt_same(k, th, &y), kt_same(k, th, &sum), kt_same(k, th, &dy), kt_same(k, th, &dw);
        kt_same(k, th, &near);
    }
    for (int64_t r = 0; r < w.n; r++) {
        double product = 0, with_b = dot.v[r];

        for (int64_t i = 0; i < width; i++) {
            kt_near(k, "weighed", y.got[r * width + i], w.v[r] * x.v[r * width + i], 16,
                    kt_tol(k->t));
            kt_near(k, "its gradient", dy.got[r * width + i], w.v[r] * dy.v[r * width + i], 16,
                    kt_tol(k->t));
            kt_near(k, "with a weighed bias", biased.got[r * width + i],
                    biased.v[r * width + i] + w.v[r] * b.v[i], 16, kt_tol(k->t));
            product += dy.v[r * width + i] * x.v[r * width + i];
            with_b += dy.v[r * width + i] * b.v[i];
        }
        kt_near(k, "gradient of a weight", dw.got[r], product, sqrt((double)width) + 1, 1e-5);
        kt_near(k, "what its bias adds", dot.got[r], with_b, sqrt((double)width) + 1, 1e-5);
    }
    for (int64_t r = 0; r < rows; r++)
        for (int64_t i = 0; i < width; i++) {
            double want = add ? sum.v[r * width + i] : 0, beside = add ? near.v[r * width + i] : 0;

            for (int j = 0; j < top; j++) {
                want += x.v[place[r * top + j] * width + i];
                beside += x.v[(r * top + j) * width + i];
            }
            kt_near(k, "joined", sum.got[r * width + i], want, 16, kt_tol(k->t));
            kt_near(k, "of neighbours", near.got[r * width + i], beside, 16, kt_tol(k->t));
        }
    buf_free(&x), buf_free(&y), buf_free(&dy), buf_free(&w), buf_free(&dw), buf_free(&sum);
    buf_free(&near), buf_free(&b), buf_free(&biased), buf_free(&dot);
    free(place);
}

START_TEST(rows_are_weighed_and_joined)
{
    struct kt k;

    kt_open(&k, _i);
    check_rows(&k, 23, WIDTH, 2, false);
    check_rows(&k, 40, 64, 3, true);
    check_rows(&k, 5, 2100, 1, false);
    check_rows(&k, 0, 8, 2, true);
    kt_close(&k);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("kernels_route");
    TCase *c = dt_test_case(s, "route", 120);

    tcase_add_loop_test(c, chooses_the_largest, 0, KT_CASES);
    tcase_add_loop_test(c, sorts_by_expert, 0, KT_CASES);
    tcase_add_loop_test(c, gradients_are_central_differences, 0, KT_CASES);
    tcase_add_loop_test(c, rows_are_weighed_and_joined, 0, KT_CASES);
    return dt_test_run(s);
}
