/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * The convex problem of orchestration: closed forms, other points, and what has no solution. */
#include "small_world.h"

/* ---- the convex problem ---- */

struct problem {
    int n, llm, tp[DT_MAX_MODULES], dp, micro;
    int64_t batch;
    double c[DT_MAX_MODULES], min[DT_MAX_MODULES], gpus;
};

static double value_at(const struct problem *p, const double *x)
{
    double slot = (double)p->dp * p->micro, warm = p->micro * p->c[p->llm], longest = 0;

    for (int m = 0; m < p->n; m++) {
        double t = slot * p->tp[m] * p->c[m] / x[m];

        longest = fmax(longest, t);
        warm += m == p->llm ? 0 : t;
    }
    return warm + longest * ((double)p->batch / slot - 1);
}

static double solve(const struct problem *p, double *x)
{
    return dt_orch_convex_solve(p->n, p->llm, p->c, p->tp, p->dp, p->micro, p->batch, p->gpus,
                                p->min, x);
}

static void random_problem(struct problem *p)
{
    double need = 0;

    memset(p, 0, sizeof(*p));
    p->n = 1 + below(5);
    p->llm = below(p->n);
    p->dp = 1 + below(12);
    p->micro = 1 + below(3);
    p->batch = (int64_t)p->dp * p->micro * (1 + below(40));
    for (int m = 0; m < p->n; m++) {
        p->tp[m] = 1 << below(4);
        p->c[m] = exp(uniform(-6, 2));
        p->min[m] = below(2) ? uniform(0, 40) : 0;
        need += p->min[m];
    }
    p->gpus = need + uniform(5, 300);
}

START_TEST(convex_proportional)
{
    /* No warm-up to speak of and no memory: x_m = N TP_m C_m / sum TP_j C_j. */
    struct problem p = {.n = 3,
                        .llm = 1,
                        .dp = 4,
                        .micro = 1,
                        .batch = INT64_C(4) << 40,
                        .tp = {2, 8, 1},
                        .c = {0.2385, 1.713, 0.0931},
                        .gpus = 1296};
    double x[3], sum = 0;

    solve(&p, x);
    for (int m = 0; m < 3; m++)
        sum += p.tp[m] * p.c[m];
    for (int m = 0; m < 3; m++)
        ck_assert_double_eq_tol(x[m], p.gpus * p.tp[m] * p.c[m] / sum, 1e-3);
}
END_TEST

START_TEST(convex_one_slot)
{
    /* One slot has no steady phase: the LLM gets nothing, the rest share as sqrt(K). */
    struct problem p = {.n = 3,
                        .llm = 1,
                        .dp = 4,
                        .micro = 2,
                        .batch = 8,
                        .tp = {2, 8, 1},
                        .c = {0.2385, 1.713, 0.0931},
                        .gpus = 96};
    double x[3], a = sqrt(2 * 0.2385), b = sqrt(0.0931);

    p.min[1] = 32;
    ck_assert_double_eq_tol(solve(&p, x), 2 * 1.713 + 8 * (a + b) * (a + b) / 64, 1e-12);
    ck_assert_double_eq_tol(x[0], 64 * a / (a + b), 1e-9);
    ck_assert_double_eq_tol(x[1], 32, 1e-12);
}
END_TEST

START_TEST(convex_is_the_minimum)
{
    for (int t = 0; t < 300; t++) {
        struct problem p;
        double x[DT_MAX_MODULES], best, sum = 0;

        random_problem(&p);
        best = solve(&p, x);
        for (int m = 0; m < p.n; m++) {
            sum += x[m];
            ck_assert_double_ge(x[m], p.min[m] * (1 - 1e-9));
        }
        ck_assert_double_le(sum, p.gpus * (1 + 1e-9));
        if (p.batch > (int64_t)p.dp * p.micro) /* with one slot x_lm = 0 is a limit, no point */
            ck_assert_double_eq_tol(value_at(&p, x) / best, 1, 1e-9);
        for (int i = 0; i < 300; i++) { /* random feasible points, some of them near the optimum */
            double y[DT_MAX_MODULES], room = p.gpus, share[DT_MAX_MODULES], all = 0;

            for (int m = 0; m < p.n; m++) {
                room -= p.min[m];
                share[m] = i % 2 ? uniform(0.001, 1)
                                 : fmax(1e-6, (x[m] - p.min[m]) * (1 + uniform(-0.05, 0.05)));
                all += share[m];
            }
            for (int m = 0; m < p.n; m++)
                y[m] = p.min[m] + room * share[m] / all;
            ck_assert_msg(value_at(&p, y) >= best * (1 - 1e-7), "seed %" PRIu64 " case %d", seed,
                          t);
        }
    }
}
END_TEST

START_TEST(convex_infeasible)
{
    struct problem p = {.n = 2,
                        .llm = 0,
                        .dp = 1,
                        .micro = 1,
                        .batch = 9,
                        .tp = {1, 1},
                        .c = {1, 1},
                        .min = {5, 6},
                        .gpus = 10.9};

    ck_assert(isinf(solve(&p, NULL)));
}
END_TEST

int main(void)
{
    Suite *s = suite_create("convex");
    TCase *c = dt_test_case(s, "all", 120);

    tcase_add_checked_fixture(c, setup_seed, NULL);
    tcase_add_test(c, convex_proportional);
    tcase_add_test(c, convex_one_slot);
    tcase_add_test(c, convex_is_the_minimum);
    tcase_add_test(c, convex_infeasible);
    return dt_test_run(s);
}
