/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * What becomes of a step: numbers that are none, losses that stand out, and when it is enough. */
#include "core/job/guard.h"
#include "base/rng.h"
#include "test_util.h"

#include <math.h>

static struct dt_guard g;

static void begin(int nonfinite, int spike)
{
    struct dt_guard_options o;

    dt_guard_defaults(&o);
    o.nonfinite = nonfinite;
    o.spike = spike;
    dt_guard_init(&g, &o);
}

/* Steps that are fine, so many, around 2. */
static int64_t settle(int64_t step, int n, struct dt_rng *r)
{
    for (int i = 0; i < n; i++)
        ck_assert_int_eq(dt_guard_judge(&g, step++, 2 + 0.05 * dt_rng_normal(r), 1).action,
                         DT_GUARD_OFF);
    return step;
}

static enum dt_guard_action judge(int64_t step, double loss)
{
    return dt_guard_judge(&g, step, loss, 1).action;
}

/* ---- numbers that are none ---- */

START_TEST(skips_three_in_a_row)
{
    static const double none[] = {NAN, INFINITY, -INFINITY};

    begin(DT_GUARD_SKIP, DT_GUARD_WARN);
    for (int round = 0; round < 3; round++) {
        for (int k = 0; k < 3; k++) {
            struct dt_guard_verdict v =
                k == round ? dt_guard_judge(&g, k, 1, none[k]) : dt_guard_judge(&g, k, none[k], 1);

            ck_assert_int_eq(v.cause, DT_GUARD_NONFINITE);
            ck_assert_int_eq(v.action, DT_GUARD_SKIP);
            ck_assert(!dt_guard_applies(&v));
            ck_assert_int_eq(v.nth, k + 1);
            ck_assert_int_eq(v.most, 3);
        }
        if (round < 2) /* what was made counts anew */
            ck_assert_int_eq(judge(9, 1), DT_GUARD_OFF);
    }
    ck_assert_int_eq(judge(9, NAN), DT_GUARD_STOP);
}
END_TEST

START_TEST(stops_at_once)
{
    begin(DT_GUARD_STOP, DT_GUARD_WARN);
    ck_assert_int_eq(judge(1, 3), DT_GUARD_OFF);
    ck_assert_int_eq(dt_guard_judge(&g, 2, 3, NAN).action, DT_GUARD_STOP);
    ck_assert_int_eq(dt_guard_lost(&g, 2).action, DT_GUARD_STOP);
}
END_TEST

/* Bounded as long as no step beyond the one that failed is made. */
START_TEST(rolls_back_without_a_loop)
{
    begin(DT_GUARD_ROLLBACK, DT_GUARD_WARN);
    for (int k = 1; k <= 3; k++) {
        struct dt_guard_verdict v = dt_guard_judge(&g, 50 - k, NAN, 1);

        ck_assert_int_eq(v.action, DT_GUARD_ROLLBACK);
        ck_assert_int_eq(v.nth, k);
        for (int step = 40; step <= 49; step++) /* up to where it failed, not beyond */
            ck_assert_int_eq(judge(step, 1), DT_GUARD_OFF);
    }
    ck_assert_int_eq(judge(50, 1), DT_GUARD_OFF); /* progress */
    ck_assert_int_eq(judge(51, INFINITY), DT_GUARD_ROLLBACK);
    ck_assert_int_eq(judge(41, NAN), DT_GUARD_ROLLBACK);
    ck_assert_int_eq(dt_guard_lost(&g, 41).action, DT_GUARD_ROLLBACK);
    ck_assert_int_eq(judge(41, NAN), DT_GUARD_STOP);
}
END_TEST

/* ---- spikes ---- */

/* Losses as training has them: falling, noisy, level at last.  Nothing of it is a spike. */
START_TEST(is_not_alarmed_by_training)
{
    struct dt_rng r;

    dt_rng_init(&r, dt_test_seed(), (uint64_t)_i);
    begin(DT_GUARD_SKIP, DT_GUARD_WARN);
    for (int64_t step = 1; step <= 20000; step++) {
        double noise = pow(10, -_i % 4), falling = 9 * exp(-(double)step / (100 * (1 + _i)));
        double loss = (1 + falling) * (1 + 0.2 * noise * dt_rng_normal(&r));

        ck_assert_msg(judge(step, loss) == DT_GUARD_OFF, "step %d: %g", (int)step, loss);
    }
}
END_TEST

START_TEST(sees_what_stands_out)
{
    struct dt_rng r;
    int64_t step = 1;

    dt_rng_init(&r, dt_test_seed(), 2);
    begin(DT_GUARD_SKIP, DT_GUARD_WARN);
    ck_assert_int_eq(judge(step++, 1e9), DT_GUARD_OFF); /* nothing is known at the start */
    for (int k = 0; k < 15; k++)
        ck_assert_int_eq(judge(step++, 1e3 * dt_rng_uniform(&r)), DT_GUARD_OFF);
    step = settle(step, 80, &r);
    for (int k = 0; k < 30; k++) {
        struct dt_guard_verdict v = dt_guard_judge(&g, step++, 3 + 10 * dt_rng_uniform(&r), 1);

        ck_assert_int_eq(v.cause, DT_GUARD_SPIKE);
        ck_assert_int_eq(v.action, DT_GUARD_WARN);
        ck_assert(dt_guard_applies(&v));
        ck_assert_double_lt(fabs(v.median - 2), 0.05);
        ck_assert_double_lt(v.limit, 3);
        ck_assert_double_gt(v.limit, 2.2);
        step = settle(step, 5, &r); /* what stood out has not moved the median */
    }
}
END_TEST

/* The limit is the median and ten deviations, whatever the unit; a tenth at least. */
START_TEST(limit_is_as_documented)
{
    struct dt_rng r;

    dt_rng_init(&r, dt_test_seed(), 3);
    for (int round = 0; round < 50; round++) {
        double scale = exp(10 * dt_rng_normal(&r)), v[64], d[64], median, mad, limit;
        struct dt_guard_verdict verdict;

        begin(DT_GUARD_SKIP, DT_GUARD_SKIP);
        for (int i = 0; i < 64; i++) {
            v[i] = scale * (round % 2 ? 1 + 0.05 * dt_rng_uniform(&r) : 1 + 0.001 * (i % 3));
            ck_assert_int_eq(judge(i + 1, v[i]), DT_GUARD_OFF);
        }
        for (int i = 1; i < 64; i++) /* by insertion, unlike the guard */
            for (int k = i; k > 0 && v[k] < v[k - 1]; k--) {
                double t = v[k];

                v[k] = v[k - 1];
                v[k - 1] = t;
            }
        median = (v[31] + v[32]) / 2;
        for (int i = 0; i < 64; i++) {
            int at = i;

            d[i] = fabs(v[i] - median);
            for (; at > 0 && d[at] < d[at - 1]; at--) {
                double t = d[at];

                d[at] = d[at - 1];
                d[at - 1] = t;
            }
        }
        mad = (d[31] + d[32]) / 2;
        limit = median + fmax(14.826 * mad, 0.1 * median);
        verdict = dt_guard_judge(&g, 65, limit * (1 + 1e-9), 1);
        ck_assert_int_eq(verdict.action, DT_GUARD_SKIP);
        ck_assert_double_lt(fabs(verdict.limit / limit - 1), 1e-12);
        ck_assert_int_eq(judge(66, limit * (1 - 1e-9)), DT_GUARD_OFF);
    }
}
END_TEST

/* What stays is no spike: a data set may change. */
START_TEST(a_new_level_is_accepted)
{
    struct dt_rng r;
    int64_t step;

    dt_rng_init(&r, dt_test_seed(), 4);
    begin(DT_GUARD_SKIP, DT_GUARD_SKIP);
    step = settle(1, 100, &r);
    for (int k = 0; k < 3; k++)
        ck_assert_int_eq(judge(step++, 5), DT_GUARD_SKIP);
    ck_assert_int_eq(judge(step++, 5), DT_GUARD_WARN);
    for (int k = 0; k < 100; k++)
        ck_assert_int_eq(judge(step++, 5 + 0.1 * dt_rng_uniform(&r)), DT_GUARD_OFF);
    ck_assert_int_eq(judge(step++, 9), DT_GUARD_SKIP);
}
END_TEST

START_TEST(spikes_do_as_they_are_told)
{
    struct dt_rng r;

    dt_rng_init(&r, dt_test_seed(), 5);
    begin(DT_GUARD_SKIP, DT_GUARD_OFF);
    settle(1, 100, &r);
    ck_assert_int_eq(judge(101, 1e6), DT_GUARD_OFF);
    begin(DT_GUARD_SKIP, DT_GUARD_STOP);
    settle(1, 100, &r);
    ck_assert_int_eq(judge(101, 1e6), DT_GUARD_STOP);
    begin(DT_GUARD_SKIP, DT_GUARD_ROLLBACK);
    settle(1, 100, &r);
    ck_assert_int_eq(judge(101, 1e6), DT_GUARD_ROLLBACK);
    /* back where losses were higher: the window begins anew */
    for (int k = 0; k < 20; k++)
        ck_assert_int_eq(judge(50 + k, 4 + 0.1 * dt_rng_uniform(&r)), DT_GUARD_OFF);
}
END_TEST

/* Two guards that are told the same say the same: ranks need not ask each other. */
START_TEST(ranks_decide_alike)
{
    struct dt_rng r;

    dt_rng_init(&r, dt_test_seed(), 6);
    for (int round = 0; round < 20; round++) {
        struct dt_guard_options o;
        struct dt_guard a, b;

        dt_guard_defaults(&o);
        o.nonfinite = DT_GUARD_STOP + (int)dt_rng_below(&r, 3);
        o.spike = (int)dt_rng_below(&r, 5);
        o.window = DT_GUARD_WINDOW_MIN + (int)dt_rng_below(&r, 100);
        o.nonfinite_most = 1 + (int)dt_rng_below(&r, 4);
        dt_guard_init(&a, &o);
        memset(&b, 0xA5, sizeof(b));
        dt_guard_init(&b, &o);
        for (int64_t step = 1; step < 500; step++) {
            uint64_t kind = dt_rng_below(&r, 12);
            double loss = kind == 0 ? NAN : kind == 1 ? 100 : dt_rng_uniform(&r);
            double norm = kind == 2 ? INFINITY : 1;
            struct dt_guard_verdict x = dt_guard_judge(&a, step, loss, norm);
            struct dt_guard_verdict y = dt_guard_judge(&b, step, loss, norm);

            ck_assert_int_eq(x.cause, y.cause);
            ck_assert_int_eq(x.action, y.action);
            ck_assert_int_eq(x.nth, y.nth);
            ck_assert(isfinite(loss + norm) || !dt_guard_applies(&x));
            if (x.action == DT_GUARD_SKIP)
                ck_assert_int_le(x.nth, x.most);
        }
    }
}
END_TEST

int main(void)
{
    Suite *s = suite_create("guard");
    TCase *c = dt_test_case(s, "steps", 0);

    tcase_add_test(c, skips_three_in_a_row);
    tcase_add_test(c, stops_at_once);
    tcase_add_test(c, rolls_back_without_a_loop);
    tcase_add_loop_test(c, is_not_alarmed_by_training, 0, 8);
    tcase_add_test(c, sees_what_stands_out);
    tcase_add_test(c, limit_is_as_documented);
    tcase_add_test(c, a_new_level_is_accepted);
    tcase_add_test(c, spikes_do_as_they_are_told);
    tcase_add_test(c, ranks_decide_alike);
    return dt_test_run(s);
}
