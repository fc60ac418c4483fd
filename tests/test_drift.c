/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Correcting for a machine that drifts, and calling it too busy: synthetic times, no clock. */
#include "fit/drift.h"
#include "comm/load.h"
#include "comm/reference.h"
#include "test_util.h"

#include <math.h>
#include <stdio.h>

static struct dt_drift at(double t, double reference, double foreign)
{
    return (struct dt_drift){.reference_s = reference, .steady = 1, .foreign = foreign, .at_s = t};
}

#define ck_near(a, b) ck_assert_msg(fabs((a) - (b)) < 1e-12 * fabs(b), "%.15g, not %.15g", a, b)

/* A machine whose speed is any function of time: what was predicted at one speed is exact at
 * another. */
START_TEST(predictions_follow_the_speed)
{
    struct dt_drift here[2] = {at(0, 1, 0), at(10, 2, 0)}, there = at(4, 1.5, 0);
    double work = 0.25, time_s[2] = {work * 1, work * 2};

    ck_near(dt_drift_move(time_s[0], &here[0], &there), 1.5 * work);
    ck_near(dt_drift_move(time_s[1], &here[1], &there), 1.5 * work);
    ck_near(dt_drift_between(time_s, here, &there), 1.5 * work);
    ck_assert(dt_drift_agree(time_s, here, &there));
    /* without a reference nothing is moved */
    there = at(4, 0, 0);
    ck_near(dt_drift_move(time_s[1], &here[1], &there), time_s[1]);
}
END_TEST

START_TEST(the_nearer_profile_weighs_more)
{
    struct dt_drift here[2] = {at(0, 1, 0), at(10, 1, 0)};
    double time_s[2] = {1, 1.1};

    for (int t = -5; t <= 15; t++) {
        struct dt_drift there = at(t, 1, 0);
        double w = t < 0 ? 0 : t > 10 ? 1 : t / 10.0;

        ck_near(dt_drift_between(time_s, here, &there), 1 + 0.1 * w);
    }
}
END_TEST

START_TEST(what_counts)
{
    struct dt_drift calm = at(0, 1, DT_DRIFT_FOREIGN_MAX), restless = at(0, 1, 0),
                    busy = at(0, 1, DT_DRIFT_FOREIGN_MAX + 0.01), unknown = at(0, 0, -1);
    struct dt_drift here[2] = {at(0, 1, 0), at(1, 1, 0)};
    double near[2] = {1, DT_DRIFT_PAIR_MAX * 0.999}, far[2] = {DT_DRIFT_PAIR_MAX * 1.001, 1};
    char text[160];

    calm.steady = DT_DRIFT_STEADY_MIN;
    restless.steady = DT_DRIFT_STEADY_MIN - 0.01;
    ck_assert(dt_drift_counts(&calm));
    ck_assert(!dt_drift_counts(&restless));
    ck_assert(!dt_drift_counts(&busy));
    ck_assert(dt_drift_counts(&unknown));
    ck_assert(dt_drift_agree(near, here, &here[0]));
    ck_assert(!dt_drift_agree(far, here, &here[0]));
    /* 2026-11-28: 118.8 ms predicted of one rank, 96.1 measured, and a table of errors of 21 % */
    ck_assert(!dt_drift_holds(118.8, 96.1));
    ck_assert(!dt_drift_holds(96.1, 118.8));
    ck_assert(dt_drift_holds(105, 96.1));
    dt_drift_reason(&busy, text, sizeof(text));
    dt_assert_has(text, "other work took 7 %");
    dt_drift_reason(&restless, text, sizeof(text));
    dt_assert_has(text, "kept its speed in 49 % of the repeats");
}
END_TEST

START_TEST(cores_that_are_free)
{
    ck_assert_int_eq(dt_drift_free_cores(2, 0), 2);
    ck_assert_int_eq(dt_drift_free_cores(2, 0.1), 2);
    ck_assert_int_eq(dt_drift_free_cores(2, 0.3), 1);
    ck_assert_int_eq(dt_drift_free_cores(2, 1.0), 1);
    ck_assert_int_eq(dt_drift_free_cores(2, 1.2), 0);
    ck_assert_int_eq(dt_drift_free_cores(2, 2.0), 0);
    ck_assert_int_eq(dt_drift_free_cores(1, 1.0), 0);
    ck_assert_int_eq(dt_drift_free_cores(64, 1.5), 64);
    ck_assert_int_eq(dt_drift_free_cores(64, 8), 59);
    for (int n = 1; n < 40; n++) /* more work never leaves more */
        for (double busy = 0; busy <= n; busy += 0.125)
            ck_assert_int_ge(dt_drift_free_cores(n, busy), dt_drift_free_cores(n, busy + 0.125));
}
END_TEST

/* Of two CPUs, 100 ticks a second: cpu1 is busy with others, cpu0 with us; steal is others'. */
START_TEST(who_uses_the_cores)
{
    static struct dt_load a, b;
    const struct dt_load_cpus both = {2, {0, 1}}, first = {1, {0}};
    struct dt_load_cpus calm;

    dt_load_parse("cpu  9 9 9 9 9 9 9 9 9 9\ncpu0 100 0 50 1000 7 0 0 0 0 0\n"
                  "cpu1 0 20 0 1000 0 1 2 3 0 0\nintr 5 cpu7 1 1 1 1 1\n",
                  100, &a);
    ck_assert(a.known);
    ck_near(a.busy_s[0], 1.5);
    ck_near(a.busy_s[1], 0.26);
    ck_assert(a.busy_s[7] == 0);
    b = a;
    a.at_s = 10;
    a.own_s = 3;
    b.at_s = 14;
    b.own_s = 6;
    b.busy_s[0] += 3.5; /* of 4 s: 3 s ours */
    b.busy_s[1] += 4;
    ck_near(dt_load_foreign(&a, &b, &both), 4.5 / 4);
    ck_near(dt_load_foreign(&a, &b, &first), 0.5 / 4);
    dt_load_least_busy(&a, &b, &both, 1, &calm);
    ck_assert_int_eq(calm.n, 1);
    ck_assert_int_eq(calm.cpu[0], 0);
    dt_load_parse("nothing like it\n", 100, &b);
    ck_assert(!b.known);
    ck_assert(dt_load_foreign(&a, &b, &both) < 0);
}
END_TEST

/* However long that takes here. */
START_TEST(the_reference_kernel_runs)
{
    for (int threads = 1; threads <= 3; threads++) {
        struct dt_load_reference *r;
        struct dt_error err;
        double s;

        dt_assert_ok(dt_load_reference_new(threads, &err, &r), err);
        s = dt_load_reference_s(r);
        ck_assert(s > 0 && isfinite(s));
        dt_load_reference_free(r);
    }
    ck_assert(dt_load_reference_steady(1, 1.1) && dt_load_reference_steady(1.1, 1));
    ck_assert(!dt_load_reference_steady(1, 1.2) && !dt_load_reference_steady(1.2, 1));
}
END_TEST

int main(void)
{
    Suite *u = suite_create("drift");
    TCase *c = dt_test_case(u, "drift", 60);

    tcase_add_test(c, predictions_follow_the_speed);
    tcase_add_test(c, the_nearer_profile_weighs_more);
    tcase_add_test(c, what_counts);
    tcase_add_test(c, cores_that_are_free);
    tcase_add_test(c, who_uses_the_cores);
    tcase_add_test(c, the_reference_kernel_runs);
    return dt_test_run(u);
}
