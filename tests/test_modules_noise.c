/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Noise schedules, timestep draws, the DDIM sampler. */
#include "module_util.h"

static void open_schedule(struct dt_diffusion *d, enum dt_diffusion_schedule s, int steps)
{
    struct dt_error err;

    dt_assert_ok(dt_diffusion_init(d, s, steps, &err), err);
}

START_TEST(schedules_fall_from_clean_to_noise)
{
    for (int s = 0; s < DT_NOISE_N; s++)
        for (int steps = 50; steps <= 1000; steps *= 20) {
            struct dt_diffusion d;

            open_schedule(&d, (enum dt_diffusion_schedule)s, steps);
            ck_assert_double_gt(d.alpha_bar[0], 0.97);
            ck_assert_double_lt(d.alpha_bar[steps - 1], 0.02);
            for (int t = 0; t < steps; t++) {
                ck_assert(d.alpha_bar[t] > 0 && d.alpha_bar[t] < 1);
                ck_assert(t == 0 || d.alpha_bar[t] < d.alpha_bar[t - 1]);
            }
            dt_diffusion_free(&d);
        }
}
END_TEST

/* By other routes: sums of logarithms; the cosine's product telescopes while beta is unclipped. */
START_TEST(schedules_have_their_values)
{
    struct dt_diffusion d;
    double sum = 0;

    open_schedule(&d, DT_NOISE_LINEAR, 1000);
    for (int t = 0; t < 1000; t++)
        sum += log1p(-(1e-4 + t * (0.0199 / 999)));
    ck_assert_double_eq_tol(log(d.alpha_bar[999]), sum, 1e-9);
    ck_assert_double_eq_tol(d.alpha_bar[999], 4.0358e-5, 1e-8); /* Ho et al.'s chain */
    dt_diffusion_free(&d);
    open_schedule(&d, DT_NOISE_SCALED_LINEAR, 1000);
    ck_assert_double_eq_tol(d.alpha_bar[0], 1 - 0.00085, 1e-12);
    ck_assert_double_eq_tol(d.alpha_bar[999] / d.alpha_bar[998], 1 - 0.012, 1e-12);
    dt_diffusion_free(&d);
    open_schedule(&d, DT_NOISE_COSINE, 1000);
    for (int t = 0; t < 990; t += 41) {
        double a = cos(((t + 1) / 1000.0 + 0.008) / 1.008 * acos(-1) / 2);
        double b = cos(0.008 / 1.008 * acos(-1) / 2);

        ck_assert_double_eq_tol(d.alpha_bar[t], a * a / (b * b), 1e-10);
    }
    ck_assert_double_eq_tol(d.alpha_bar[999] / d.alpha_bar[998], 0.001, 1e-12);
    dt_diffusion_free(&d);
    ck_assert_int_eq(dt_diffusion_init(&d, DT_NOISE_LINEAR, 0, NULL), DT_ERR_INPUT);
}
END_TEST

START_TEST(draws_depend_on_the_image_alone)
{
    struct dt_batch a = {.n_seq = 5}, b = {.n_seq = 2};
    uint64_t sa[5] = {7, 8, 9, 10, 11}, sb[2] = {10, 8};
    float fa[15], fb[6];
    struct dt_diffusion d;
    double mean = 0;

    open_schedule(&d, DT_NOISE_COSINE, 1000);
    a.host.stream = sa;
    a.host.t = fa;
    a.host.alpha = fa + 5;
    a.host.sigma = fa + 10;
    b.host.stream = sb;
    b.host.t = fb;
    b.host.alpha = fb + 2;
    b.host.sigma = fb + 4;
    for (uint64_t draw = 0; draw < 400; draw++) {
        dt_batch_diffuse(&a, &d, 3, draw);
        dt_batch_diffuse(&b, &d, 3, draw);
        ck_assert(fb[0] == fa[3] && fb[1] == fa[1]);
        for (int i = 0; i < 5; i++) {
            ck_assert(fa[i] >= 0 && fa[i] < 1000 && fa[i] == floorf(fa[i]));
            ck_assert_double_eq_tol((double)(fa[5 + i] * fa[5 + i] + fa[10 + i] * fa[10 + i]), 1,
                                    1e-6);
            mean += (double)fa[i] / 2000;
        }
    }
    /* 5 standard errors of the mean of 2,000 uniform draws */
    ck_assert_double_eq_tol(mean, 499.5, 5 * 1000 / sqrt(12.0 * 2000));
    dt_diffusion_free(&d);
}
END_TEST

/* With the true noise, any chain of steps ends at the clean image. */
START_TEST(ddim_undoes_the_noise)
{
    for (int s = 0; s < DT_NOISE_N; s++) {
        struct dt_diffusion d;
        double x0[16];
        float x[16], eps[16];
        int t = 900;

        open_schedule(&d, (enum dt_diffusion_schedule)s, 1000);
        for (int i = 0; i < 16; i++) {
            x0[i] = 0.7 * dt_rng_normal_at(dt_test_seed(), 1, (uint64_t)i);
            eps[i] = (float)dt_rng_normal_at(dt_test_seed(), 2, (uint64_t)i);
            x[i] =
                (float)(sqrt(d.alpha_bar[t]) * x0[i] + sqrt(1 - d.alpha_bar[t]) * (double)eps[i]);
        }
        for (int to; t >= 0; t = to) {
            to = t - 150 < 0 ? -1 : t - 150;
            dt_diffusion_ddim_step(&d, t, to, 0, 0, 16, eps, NULL, x);
        }
        for (int i = 0; i < 16; i++)
            ck_assert_double_eq_tol((double)x[i], x0[i], 2e-4);
        x[0] = 3; /* noise that points far outside: the estimate is bounded */
        eps[0] = -3;
        dt_diffusion_ddim_step(&d, 999, -1, 1, 0, 1, eps, NULL, x);
        ck_assert_double_eq_tol((double)x[0], 1, 1e-6);
        dt_diffusion_free(&d);
    }
}
END_TEST

/* Fresh noise takes the place of old: of whatever eta, what is left is noise of variance 1, and it
 * goes with the old one as far as equation 16 says. */
START_TEST(fresh_noise_keeps_the_spread)
{
    enum { N = 4000 };
    const double etas[] = {0, 0.4, 1};
    float x[N], eps[N], fresh[N];
    struct dt_diffusion d;

    open_schedule(&d, DT_NOISE_COSINE, 1000);
    for (int k = 0; k < 3; k++)
        for (int t = 80; t < 1000; t += 300) {
            int to = t - 60;
            double a = d.alpha_bar[t], b = d.alpha_bar[to], sum = 0, sq = 0, with = 0;
            double s = etas[k] * sqrt((1 - b) / (1 - a)) * sqrt(1 - a / b);

            for (int i = 0; i < N; i++) {
                eps[i] = (float)dt_rng_normal_at(dt_test_seed(), 3, (uint64_t)i);
                fresh[i] = (float)dt_rng_normal_at(dt_test_seed(), 4, (uint64_t)i);
                x[i] = (float)(sqrt(a) * 0.6 + sqrt(1 - a) * (double)eps[i]);
            }
            dt_diffusion_ddim_step(&d, t, to, 0, etas[k], N, eps, fresh, x);
            for (int i = 0; i < N; i++) {
                double e = ((double)x[i] - sqrt(b) * 0.6) / sqrt(1 - b);

                sum += e / N;
                sq += e * e / N;
                with += e * (double)eps[i] / N;
            }
            /* 5 standard errors: 1/sqrt(N) of a mean, sqrt(2/N) of a variance */
            ck_assert_double_eq_tol(sum, 0, 5 / sqrt(N));
            ck_assert_double_eq_tol(sq, 1, 5 * sqrt(2.0 / N));
            ck_assert_double_eq_tol(with, sqrt(1 - b - s * s) / sqrt(1 - b), 5 * sqrt(2.0 / N));
        }
    dt_diffusion_free(&d);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("modules_noise");
    TCase *c = dt_test_case(s, "noise", 0);

    tcase_add_test(c, schedules_fall_from_clean_to_noise);
    tcase_add_test(c, schedules_have_their_values);
    tcase_add_test(c, draws_depend_on_the_image_alone);
    tcase_add_test(c, ddim_undoes_the_noise);
    tcase_add_test(c, fresh_noise_keeps_the_spread);
    return dt_test_run(s);
}
