/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * The fit behind the shipped presets of samples. */
#include "base/doc.h"
#include "base/file.h"
#include "laion.h"
#include "test_util.h"

#include <math.h>
#include <stdio.h>

/* ---- the fit ---- */

START_TEST(shipped_parameters_are_the_fit)
{
    struct dt_samples_size_fit fit;
    struct dt_error err = {0};
    double mu = 0, sigma = 0, aspect = 0;
    ck_assert_int_eq(dt_samples_fit(laion, 3, &err, &fit), DT_OK);
    ck_assert_double_lt(fit.rms_probit, 0.02);
    static const char *const presets[] = {"laion-8k", "interleaved-8k"};
    for (int i = 0; i < 2; i++) {
        char path[1024];
        struct dt_doc *doc = NULL;
        dt_assert_ok(dt_file_find("samples", presets[i], ".yaml", &err, path, sizeof(path)), err);
        ck_assert_msg(dt_doc_read(path, &err, &doc) == DT_OK, "%s", err.message);
        struct dt_node d = dt_map_get(dt_doc_root(doc), "distribution");
        struct dt_node side = dt_map_get(d, "image_side");
        ck_assert_int_eq(dt_get_double(side, "mu", -99, 99, &mu, &err), DT_OK);
        ck_assert_int_eq(dt_get_double(side, "sigma", -99, 99, &sigma, &err), DT_OK);
        ck_assert_int_eq(dt_get_double(d, "aspect_sigma", -99, 99, &aspect, &err), DT_OK);
        ck_assert_double_eq_tol(mu, fit.mu, 1e-6);
        ck_assert_double_eq_tol(sigma, fit.sigma, 1e-6);
        ck_assert_double_eq_tol(aspect, fit.aspect_sigma, 1e-6);
        dt_doc_free(doc);
    }
}
END_TEST

START_TEST(fit_reproduces_the_ccdf)
{
    struct dt_samples_size_fit fit;
    struct dt_error err = {0};
    ck_assert_int_eq(dt_samples_fit(laion, 3, &err, &fit), DT_OK);
    for (int i = 0; i < 3; i++) {
        double z = (log(laion[i].px) - fit.mu) / fit.sigma;
        ck_assert_double_eq_tol(0.5 * erfc(z / sqrt(2)), laion[i].smaller, 0.006);
        ck_assert_double_eq_tol(dt_samples_size_fit_larger(&fit, laion[i].px), laion[i].larger,
                                0.01);
    }
}
END_TEST

/* Shares made from known parameters give the parameters back. */
START_TEST(fit_recovers_parameters)
{
    const struct dt_samples_size_fit truth = {5.913, 0.5719, 0.2385, 0};
    struct dt_samples_ccdf c[5];
    struct dt_samples_size_fit fit;
    struct dt_error err = {0};
    for (int i = 0; i < 5; i++) {
        double px = 131.7 * pow(1.83, i);
        double z = (log(px) - truth.mu) / truth.sigma;
        c[i] = (struct dt_samples_ccdf){px, 0.5 * erfc(z / sqrt(2)),
                                        dt_samples_size_fit_larger(&truth, px)};
    }
    ck_assert_int_eq(dt_samples_fit(c, 5, &err, &fit), DT_OK);
    ck_assert_double_eq_tol(fit.mu, truth.mu, 1e-6);
    ck_assert_double_eq_tol(fit.sigma, truth.sigma, 1e-6);
    ck_assert_double_eq_tol(fit.aspect_sigma, truth.aspect_sigma, 1e-6);
    ck_assert_double_lt(fit.rms_probit, 1e-7);
}
END_TEST

START_TEST(fit_refuses_nonsense)
{
    struct dt_samples_size_fit fit = {1, 2, 3, 4};
    struct dt_error err = {0};
    struct dt_samples_ccdf c[] = {{256, 0.5, 0.6}, {512, 0.7, 0.8}};
    ck_assert_int_eq(dt_samples_fit(c, 2, &err, &fit), DT_ERR_INPUT);
    ck_assert_int_eq(dt_samples_fit(c, 1, &err, &fit), DT_ERR_INPUT);
    c[1] = (struct dt_samples_ccdf){512, 0.3, 0.2};
    ck_assert_int_eq(dt_samples_fit(c, 2, &err, &fit), DT_ERR_INPUT);
    ck_assert_double_eq(fit.mu, 1);
}
END_TEST

START_TEST(lognormal_meets_mean_and_percentile)
{
    double mu, sigma;
    struct dt_error err = {0};
    ck_assert_int_eq(dt_samples_lognormal_from_mean(15, 63, 0.99, &err, &mu, &sigma), DT_OK);
    ck_assert_double_eq_tol(exp(mu + sigma * sigma / 2), 15, 1e-9);
    ck_assert_double_eq_tol(0.5 * erfc((log(63) - mu) / sigma / sqrt(2)), 0.01, 1e-9);
    ck_assert_int_eq(dt_samples_lognormal_from_mean(15, 14, 0.99, &err, &mu, &sigma), DT_ERR_INPUT);
    ck_assert_int_eq(dt_samples_lognormal_from_mean(1, 1e3, 0.99, &err, &mu, &sigma), DT_ERR_INPUT);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("samples_fit");
    TCase *c = dt_test_case(s, "fit", 0);

    tcase_add_test(c, shipped_parameters_are_the_fit);
    tcase_add_test(c, fit_reproduces_the_ccdf);
    tcase_add_test(c, fit_recovers_parameters);
    tcase_add_test(c, fit_refuses_nonsense);
    tcase_add_test(c, lognormal_meets_mean_and_percentile);
    return dt_test_run(s);
}
