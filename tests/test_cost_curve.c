/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Fitted curves against the constants that made the data, with noise and outliers; nccl-tests
 * output, made by a generator here in the layouts of several versions. */
#include "fit/cost_curve.h"
#include "base/mem.h"
#include "base/quantile.h"
#include "base/rng.h"
#include "test_util.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static struct dt_error err;

static void open_table(struct dt_profile_table *t, struct dt_profile_table_row *row)
{
    const struct dt_profile_source s = {
        .name = "made up", .origin = "this test", .licence = "none", .date = "today"};

    memset(t, 0, sizeof(*t));
    memset(row, 0, sizeof(*row));
    dt_assert_ok(dt_profile_table_device(t, "card", &err, &row->device), err);
    dt_assert_ok(dt_profile_table_dtype(t, "bf16", &err, &row->dtype), err);
    dt_assert_ok(dt_profile_table_source(t, &s, &err, &row->r.source), err);
    row->r.n = 1;
    row->r.kind = DT_ROW_MEASURED;
}

static void add(struct dt_profile_table *t, struct dt_profile_table_row *row, double ns)
{
    row->r.median_ns = row->r.p10_ns = row->r.p90_ns = ns;
    dt_assert_ok(dt_profile_table_add(t, row, &err), err);
}

/* alpha 9 us, 200 GB/s on the bus, 3 % noise, every ninth size three times too slow. */
START_TEST(outliers_do_not_bend_the_curve)
{
    struct dt_profile_table t;
    struct dt_profile_table_row row;
    struct dt_curves c;
    struct dt_rng r;
    char *svg;
    int outliers = 0;

    open_table(&t, &row);
    dt_rng_init(&r, dt_test_seed(), 3);
    row.r.family = DT_KOP_ALL_REDUCE;
    row.r.d[0] = row.r.d[1] = 8;
    for (int i = 0; i < 45; i++) {
        double bytes = floor(1024 * pow(2, 20.0 * i / 44));
        double ns = (9000 + bytes * 2 * 7 / 8 / 200) * (1 + 0.03 * dt_rng_normal(&r));

        row.r.d[2] = (int64_t)bytes;
        add(&t, &row, i % 9 == 4 ? 3 * ns : ns);
        outliers += i % 9 == 4;
    }
    dt_assert_ok(dt_curves_fit(&t, &err, &c), err);
    ck_assert_int_eq(c.n, 1);
    ck_assert_int_eq(c.curve[0].n, 45);
    ck_assert_int_eq(c.curve[0].gpus, 8);
    ck_assert_double_eq_tol(c.curve[0].t0_ns, 9000, 0.03 * 9000);
    ck_assert_double_eq_tol(c.curve[0].rate, 200, 0.03 * 200);
    ck_assert_double_lt(c.curve[0].median_error, 0.05);
    for (int i = 0, seen = 0; i < 45; i++) { /* the outliers are kept, not hidden */
        seen += c.curve[0].point[i].fitted_ns < 0.5 * c.curve[0].point[i].ns;
        ck_assert(i < 44 || seen == 5);
    }
    dt_assert_ok(dt_curve_svg(&t, &c.curve[0], &err, &svg), err);
    ck_assert_ptr_nonnull(strstr(svg, "all_reduce"));
    for (char *p = svg; (p = strstr(p, "<circle")); p++)
        outliers++;
    ck_assert_int_eq(outliers, 45 + 5);
    dt_free(svg);
    dt_curves_free(&c);
    dt_profile_table_free(&t);
}
END_TEST

/* Products: the rate is the asymptote, t0 x rate the half-way size; kinds stay apart. */
START_TEST(kinds_have_curves_of_their_own)
{
    struct dt_profile_table t;
    struct dt_profile_table_row row;
    struct dt_curves c;

    open_table(&t, &row);
    row.r.family = DT_KOP_GEMM;
    for (int phase = 0; phase < 2; phase++)
        for (int64_t m = 128; m <= 16384; m *= 2) {
            row.r.phase = phase;
            row.r.d[0] = row.r.d[1] = row.r.d[2] = m;
            add(&t, &row, 4000.0 + 2.0 * (double)(m * m * m) / (250e3 / (phase + 1)));
        }
    row.r.family = DT_KOP_NORM;
    row.r.phase = 0;
    row.r.d[2] = 0;
    for (int64_t m = 1; m <= 4; m *= 2) { /* too few sizes */
        row.r.d[0] = 64 * m;
        row.r.d[1] = 64;
        add(&t, &row, 3000);
    }
    dt_assert_ok(dt_curves_fit(&t, &err, &c), err);
    ck_assert_int_eq(c.n, 2);
    for (int k = 0; k < 2; k++) {
        ck_assert(c.curve[k].flops);
        ck_assert_double_eq_tol(c.curve[k].t0_ns, 4000, 1);
        ck_assert_double_eq_tol(c.curve[k].rate, 250e3 / (c.curve[k].phase + 1), 1);
        ck_assert_double_lt(c.curve[k].p90_error, 1e-6);
    }
    dt_curves_free(&c);
    dt_profile_table_free(&t);
}
END_TEST

/* Times that say nothing about a rate, or a launch that would take negative time. */
START_TEST(odd_times_give_odd_curves_no_crash)
{
    for (int kind = 0; kind < 3; kind++) {
        struct dt_profile_table t;
        struct dt_profile_table_row row;
        struct dt_curves c;

        open_table(&t, &row);
        row.r.family = DT_KOP_ADD;
        row.r.d[1] = 64;
        for (int64_t m = 1; m <= 1 << 16; m *= 4) {
            row.r.d[0] = m;
            add(&t, &row,
                kind == 0   ? 5000
                : kind == 1 ? 1e6 / (double)m
                            : 0.01 * (double)m * sqrt((double)m) + 1);
        }
        dt_assert_ok(dt_curves_fit(&t, &err, &c), err);
        ck_assert_int_eq(c.n, 1);
        ck_assert_double_ge(c.curve[0].t0_ns, 0);
        ck_assert(c.curve[0].rate > 0);
        for (int i = 0; i < c.curve[0].n; i++)
            ck_assert(c.curve[0].point[i].fitted_ns >= 0);
        if (kind == 0)
            ck_assert_double_eq_tol(c.curve[0].t0_ns, 5000, 50);
        dt_curves_free(&c);
        dt_profile_table_free(&t);
    }
}
END_TEST

/* Of four sizes three lie nearly on a line and one takes twice as long: the 90th percentile of the errors is 7 tenths of
 * the way from the third to the last. */
START_TEST(few_sizes_have_quantiles)
{
    static const double ns[] = {10000, 20200, 40800, 160000};
    struct dt_profile_table t;
    struct dt_profile_table_row row;
    struct dt_curves c;
    double e[4];

    open_table(&t, &row);
    row.r.family = DT_KOP_ADAMW;
    for (int i = 0; i < 4; i++) {
        row.r.d[0] = 1000000LL << i;
        add(&t, &row, ns[i]);
    }
    dt_assert_ok(dt_curves_fit(&t, &err, &c), err);
    ck_assert_int_eq(c.n, 1);
    for (int i = 0; i < 4; i++)
        e[i] = fabs(c.curve[0].point[i].fitted_ns / ns[i] - 1);
    ck_assert(e[0] < 0.02 && e[1] < 0.02 && e[2] < 0.02 && e[3] > 0.48 && e[3] < 0.51);
    dt_sort_numbers(e, 4);
    ck_assert_double_eq_tol(c.curve[0].median_error, (e[1] + e[2]) / 2, 1e-12);
    ck_assert_double_eq_tol(c.curve[0].p90_error, e[2] + 0.7 * (e[3] - e[2]), 1e-12);
    dt_curves_free(&c);
    dt_profile_table_free(&t);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("cost_curve");
    TCase *c = dt_test_case(s, "cost_curve", 0);

    tcase_add_test(c, outliers_do_not_bend_the_curve);
    tcase_add_test(c, kinds_have_curves_of_their_own);
    tcase_add_test(c, odd_times_give_odd_curves_no_crash);
    tcase_add_test(c, few_sizes_have_quantiles);
    return dt_test_run(s);
}
