/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * How Entrain's strategy divides GPUs, and by how many samples. */
#include "core/orchestrate/orchestrate_sizing.h"
#include "base/rng.h"
#include "test_util.h"

#include <math.h>

enum { SAMPLES = 2048 };

/* The publication's ratios of the loads of encoder and LLM: 10:6 of 16 GPUs become 5 and 3 stages of two GPUs, 1.27
 * (SynthChartNet with a 3B LLM) 4 and 4. */
START_TEST(published_divisions)
{
    const double most[] = {1.667, 1}, even[] = {1.27, 1};
    int of[2];

    dt_orch_allocate(2, most, 8, of);
    ck_assert(of[0] == 5 && of[1] == 3);
    dt_orch_allocate(2, most, 16, of);
    ck_assert(of[0] == 10 && of[1] == 6);
    dt_orch_allocate(2, even, 8, of);
    ck_assert(of[0] == 4 && of[1] == 4);
    ck_assert_int_eq(dt_orch_sizing_trials(0.95, 0.05), 59);
    ck_assert_int_eq(dt_orch_sizing_trials(0.99, 0.01), 459);
    ck_assert_int_eq(dt_orch_sizing_trials(0.5, 0.5), 1);
}
END_TEST

/* Every unit is given, everybody has one, and whoever would have more than one is less than one unit off the proportion
 * unless others had to be lifted to one. */
START_TEST(divisions_are_proportional)
{
    struct dt_rng r;

    dt_rng_init(&r, dt_test_seed(), 1);
    for (int t = 0; t < 2000; t++) {
        int n = 1 + (int)dt_rng_below(&r, 5), units = n + (int)dt_rng_below(&r, 60), of[8];
        int sum = 0;
        double load[8], all = 0;
        bool lifted = false;

        for (int m = 0; m < n; m++)
            all += load[m] = exp(dt_rng_normal(&r));
        dt_orch_allocate(n, load, units, of);
        for (int m = 0; m < n; m++) {
            sum += of[m];
            ck_assert_int_ge(of[m], 1);
            lifted |= load[m] / all * units < 1;
        }
        ck_assert_int_eq(sum, units);
        for (int m = 0; m < n && !lifted; m++)
            ck_assert_double_lt(fabs(of[m] - load[m] / all * units), 1);
    }
}
END_TEST

static double load[2 * SAMPLES];

static struct dt_orch_loads drawn(double ratio, double sigma, uint64_t seed)
{
    struct dt_rng r;

    dt_rng_init(&r, seed, 2);
    for (int i = 0; i < SAMPLES; i++) {
        load[i] = ratio * exp(sigma * dt_rng_normal(&r));
        load[SAMPLES + i] = exp(sigma / 2 * dt_rng_normal(&r));
    }
    return (struct dt_orch_loads){
        .n_modules = 2, .n = SAMPLES, .load = load, .confidence = 0.95, .p_error = 0.05, .seed = 1};
}

START_TEST(equal_samples_need_one)
{
    struct dt_orch_loads in = drawn(1.4, 0, 1);
    struct dt_orch_sizing z;

    dt_orch_size(&in, 16, &z);
    ck_assert(z.samples == 1 && !z.boundary && z.n_steps == 1 && z.trials == 59);
    ck_assert(z.units[0] == 9 && z.units[1] == 7);
    ck_assert_double_eq_tol(z.share[0], 1.4 / 2.4, 1e-12);
    ck_assert_double_eq_tol(z.mean_share[0], 1.4 / 2.4, 1e-12);
}
END_TEST

/* Other draws of that many samples, which the sizing has not seen, give another division no more often than was asked
 * for, but for the confidence; with half as many they do. */
START_TEST(enough_samples_are_enough)
{
    int failed = 0, tried = 0, fewer = 0;

    for (uint64_t seed = 1; seed <= 40; seed++) {
        struct dt_orch_loads in = drawn(0.7 + 0.05 * (double)(seed % 20), 0.8, seed);
        struct dt_orch_sizing z;
        struct dt_rng r;
        int other = 0;

        dt_orch_size(&in, 8, &z);
        if (z.boundary)
            continue;
        ck_assert_int_eq(z.step[z.n_steps - 1].others, 0);
        for (int k = 0; k + 1 < z.n_steps; k++) {
            ck_assert_int_gt(z.step[k].others, 0);
            ck_assert_int_eq(z.step[k + 1].samples, 2 * z.step[k].samples);
            fewer++;
        }
        dt_rng_init(&r, seed, 3);
        for (int t = 0; t < 400; t++) {
            double sum[2] = {0};
            int of[2];

            for (int64_t k = 0; k < z.samples; k++) {
                uint64_t i = dt_rng_below(&r, SAMPLES);

                sum[0] += load[i];
                sum[1] += load[SAMPLES + i];
            }
            dt_orch_allocate(2, sum, 8, of);
            other += of[0] != z.units[0];
        }
        tried++;
        failed += other > 400 * 0.05;
    }
    ck_assert_int_gt(tried, 20);
    ck_assert_int_gt(fewer, tried);
    ck_assert_int_le(failed, tried / 5); /* 5 % are expected */
}
END_TEST

/* The mean between two divisions: no number of samples decides, and all of them do. */
START_TEST(a_boundary_is_said)
{
    struct dt_orch_loads in = drawn(1, 0.8, 5);
    struct dt_orch_sizing z;
    double sum[2] = {0};

    for (int i = 0; i < SAMPLES; i++) {
        sum[0] += load[i];
        sum[1] += load[SAMPLES + i];
    }
    for (int i = 0; i < SAMPLES; i++) /* 4.5 : 3.5 of 8 */
        load[i] *= 4.5 / 3.5 * sum[1] / sum[0];
    dt_orch_size(&in, 8, &z);
    ck_assert(z.boundary && z.samples == SAMPLES);
    ck_assert_int_eq(z.units[0] + z.units[1], 8);
    ck_assert(z.units[0] == 4 || z.units[0] == 5);
    in.profile = 1;
    dt_orch_size(&in, 8, &z);
    ck_assert(!z.boundary && z.samples == 1 && z.trials == 0 && z.n_steps == 0);
    dt_orch_allocate(2, (double[]){load[0], load[SAMPLES]}, 8, (int *)z.step[0].least);
    ck_assert_int_eq(z.units[0], z.step[0].least[0]);
}
END_TEST

/* Draws that the test makes for itself give the division as often; on a boundary half of them do; and moving a little less
 * than the margin changes nothing, a little more does. */
START_TEST(stability_is_that_of_other_draws)
{
    for (int near = 0; near < 2; near++) {
        struct dt_orch_loads in = drawn(1, 0.8, 9);
        struct dt_orch_sizing z;
        struct dt_rng r;
        double sum[2] = {0}, share[2], same = 0;
        int of[2], was[2];

        for (int i = 0; i < SAMPLES; i++) {
            sum[0] += load[i];
            sum[1] += load[SAMPLES + i];
        }
        for (int i = 0; i < SAMPLES; i++) /* 4.5 : 3.5, or 4 : 4, of 8 */
            load[i] *= (near ? 4.5 / 3.5 : 1) * sum[1] / sum[0];
        dt_orch_size(&in, 8, &z);
        dt_orch_size_stable(&in, 256, &z);
        dt_rng_init(&r, dt_test_seed(), 4);
        for (int t = 0; t < 1000; t++) {
            double s[2] = {0};

            for (int k = 0; k < 256; k++) {
                uint64_t i = dt_rng_below(&r, SAMPLES);

                s[0] += load[i];
                s[1] += load[SAMPLES + i];
            }
            dt_orch_allocate(2, s, 8, of);
            same += of[0] == z.units[0];
        }
        ck_assert_double_eq_tol((double)z.stable.same / z.stable.draws, same / 1000, 0.1);
        ck_assert(near ? same < 700 : same > 950);
        ck_assert(near ? z.stable.n_others > 0 && z.stable.margin < 0.001
                       : fabs(z.stable.margin - 0.5 / 8) < 1e-6);
        dt_orch_allocate(2, z.share, 8, was);
        for (int more = 0; more < 2 && !near; more++) { /* nothing is less than no distance */
            double by = z.stable.margin * (more ? 1 + 1e-6 : 1 - 1e-6);

            memcpy(share, z.share, sizeof(share));
            share[z.stable.from] -= by;
            share[z.stable.to] += by;
            dt_orch_allocate(2, share, 8, of);
            ck_assert_int_eq(of[0] != was[0], more);
        }
    }
}
END_TEST

/* With a unit for each module there is no other division, wherever the load goes; with one more there is: alone the
 * module with more of the load has two, and the other one has to get more than it. */
START_TEST(a_unit_for_each_module_has_no_margin)
{
    struct dt_orch_loads in = drawn(1, 0.8, 9);
    struct dt_orch_sizing z;
    int more;

    dt_orch_size(&in, 2, &z);
    dt_orch_size_stable(&in, 64, &z);
    ck_assert_int_eq(z.stable.same, z.stable.draws);
    ck_assert(isinf(z.stable.margin));
    dt_orch_size(&in, 3, &z);
    dt_orch_size_stable(&in, 64, &z);
    more = z.share[1] > z.share[0];
    ck_assert_double_eq_tol(z.stable.margin, fabs(z.share[0] - z.share[1]) / 2, 1e-6);
    ck_assert_int_eq(z.stable.from, more);
    ck_assert_int_eq(z.stable.to, !more);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("sizing");
    TCase *tc = dt_test_case(suite, "sizing", 60);
    tcase_add_test(tc, published_divisions);
    tcase_add_test(tc, divisions_are_proportional);
    tcase_add_test(tc, equal_samples_need_one);
    tcase_add_test(tc, enough_samples_are_enough);
    tcase_add_test(tc, a_boundary_is_said);
    tcase_add_test(tc, stability_is_that_of_other_draws);
    tcase_add_test(tc, a_unit_for_each_module_has_no_margin);
    return dt_test_run(suite);
}
