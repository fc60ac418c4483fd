/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * What varies: items, ranges, grids, Latin hypercubes; counts such as 1T. */
#include "base/number.h"
#include "core/job/job_axes.h"

#include "test_util.h"

#include <math.h>
#include <stdio.h>

static struct dt_job_axis must_read(const char *text)
{
    struct dt_error err = {0};
    struct dt_job_axis a;

    dt_assert_ok(dt_job_axis_read(text, &err, &a), err);
    return a;
}

START_TEST(items_are_what_the_page_says)
{
    static const struct {
        const char *text, *key, *values;
    } cases[] = {
        {"cluster.nodes=12,24", "cluster.nodes", "12|24"},
        {"a.b= 1 , x y ,z", "a.b", "1|x y|z"},
        {"n=96..4096*2", "n", "96|192|384|768|1536|3072"},
        {"n=1..20*1.5", "n", "1|2|3|5|8|11|17"},
        {"n=1..3", "n", "1..3"},
        {"n=1..3,7", "n", "1|2|3|7"},
        {"n=10..50+20", "n", "10|30|50"},
        {"n=10..49+20", "n", "10|30"},
        {"r=0.1..0.5+0.1", "r", "0.1|0.2|0.3|0.4|0.5"},
        {"r=1..2+0.25", "r", "1|1.25|1.5|1.75|2"},
        {"r=-2..2+2", "r", "-2|0|2"},
        {"w=100..400*2 GB/s", "w", "100 GB/s|200 GB/s|400 GB/s"},
        {"w=100 GB/s,200 Gb/s", "w", "100 GB/s|200 Gb/s"},
        {"p=../a.csv,b..c", "p", "../a.csv|b..c"},
        {"p=[1,2],{a: 1, b: [2,3]},\"x,y\",'z,w'", "p", "[1,2]|{a: 1, b: [2,3]}|\"x,y\"|'z,w'"},
        {"p=shard-{000..012}.tar", "p", "shard-{000..012}.tar"},
        {"e=1e12..1e14*10", "e", "1e+12|1e+13|1e+14"},
        {"eq=a=b", "eq", "a=b"},
    };

    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct dt_job_axis a = must_read(cases[i].text);
        char text[512] = "";

        if (a.between)
            snprintf(text, sizeof text, "%g..%g", a.from, a.to);
        for (int k = 0; k < a.n; k++)
            snprintf(text + strlen(text), sizeof text - strlen(text), "%s%s", k ? "|" : "",
                     a.value[k]);
        ck_assert_str_eq(a.key, cases[i].key);
        ck_assert_str_eq(text, cases[i].values);
        dt_job_axis_free(&a);
    }
}
END_TEST

START_TEST(wrong_items_are_told_what_is_right)
{
    static const struct {
        const char *text, *why;
    } cases[] = {
        {"", "KEY=VALUE"},
        {"nodes", "KEY=VALUE"},
        {"=1", "KEY=VALUE"},
        {"nodes=", "KEY=VALUE"},
        {"n=1,,2", "missing between commas"},
        {"n=1,", "missing between commas"},
        {"n=1,2,1", "listed twice"},
        {"n=1..3,2", "listed twice"},
        {"n=3,1..5", "listed twice"},
        {"n=1..5,9,4..7", "listed twice"},
        {"r=1..1.000000000001+0.0000000000001,7", "listed twice"}, /* to the digits that are kept */
        {"n=5..1", "from the smaller"},
        {"n=1..x", "A..B+STEP"},
        {"n=1..5+", "step follows"},
        {"n=1..5+0", "above 0"},
        {"n=1..5*1", "above 1"},
        {"n=0..5*2", "begins above 0"},
        {"n=1..5+1+1", "then a unit"},
        {"n=0.5..2,7", "needs a step"},
        {"n=1..5*,7", "needs its factor"},
        {"n=1..1000000,2000000", "more than"},
        {"n=1..10000,20001..30000",
         "\"26385\": more than 16,384 values"}, /* of all items together */
        {"n=[1,2", "not closed"},
        {"n='1,2", "not closed"},
    };

    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct dt_error err = {0};
        struct dt_job_axis a;

        ck_assert_msg(dt_job_axis_read(cases[i].text, &err, &a) == DT_ERR_USAGE, "%s",
                      cases[i].text);
        ck_assert_msg(strstr(err.message, cases[i].why) != NULL, "%s: %s", cases[i].text,
                      err.message);
    }
}
END_TEST

START_TEST(grids_have_every_combination_once)
{
    struct dt_job_axis a[3] = {must_read("x=1,2,3"), must_read("y=5..6"), must_read("z=p,q")};
    struct dt_error err = {0};
    struct dt_job_points p;
    char text[512] = "";

    dt_assert_ok(dt_job_points_grid(a, 3, &err, &p), err);
    ck_assert_int_eq(p.n, 12);
    for (int i = 0; i < p.n; i++)
        snprintf(text + strlen(text), sizeof text - strlen(text), "%s%s%s ", p.value[3 * i],
                 p.value[3 * i + 1], p.value[3 * i + 2]);
    ck_assert_str_eq(text, "15p 15q 16p 16q 25p 25q 26p 26q 35p 35q 36p 36q ");
    dt_job_points_free(&p);
    dt_assert_ok(dt_job_points_grid(a, 0, &err, &p), err);
    ck_assert_int_eq(p.n, 1); /* the job as it stands */
    dt_job_points_free(&p);
    for (int i = 0; i < 3; i++)
        dt_job_axis_free(&a[i]);
    a[0] = must_read("x=0.5..2");
    ck_assert_int_eq(dt_job_points_grid(a, 1, &err, &p), DT_ERR_USAGE);
    dt_job_axis_free(&a[0]);
    a[0] = must_read("x=1..1000");
    a[1] = must_read("x=1..900000000000000");
    ck_assert_int_eq(dt_job_points_grid(a, 2, &err, &p), DT_ERR_USAGE);
    dt_job_axis_free(&a[0]);
    dt_job_axis_free(&a[1]);
}
END_TEST

/* Each part of each axis has just one point, whatever the seed; the seed matters; the same one gives the same. */
START_TEST(latin_hypercubes_are_latin)
{
    struct dt_job_axis a[4] = {must_read("x=0.0..1.0"), must_read("y=10..1000*"),
                               must_read("z=1.0..1024.0*"), must_read("w=a,b,c,d")};
    uint64_t seed = dt_test_seed();
    struct dt_error err = {0};

    for (int round = 0; round < 40; round++, seed++) {
        struct dt_job_points p, again, other;
        int n = 1 + (int)(seed % 97), same = 0, count[4] = {0};
        char *x = dt_calloc((size_t)n, 1), *z = dt_calloc((size_t)n, 1);

        dt_assert_ok(dt_job_points_sample(a, 4, n, seed, &err, &p), err);
        dt_assert_ok(dt_job_points_sample(a, 4, n, seed, &err, &again), err);
        dt_assert_ok(dt_job_points_sample(a, 4, n, seed + 1000, &err, &other), err);
        for (int i = 0; i < n; i++) {
            double u = atof(p.value[4 * i]), y = atof(p.value[4 * i + 1]);
            double v = log2(atof(p.value[4 * i + 2])) / 10;

            ck_assert_msg(u > 0 && u < 1 && !x[(int)(u * n)], "seed %llu: x",
                          (unsigned long long)seed);
            ck_assert_msg(v > 0 && v < 1 && !z[(int)(v * n)], "seed %llu: z",
                          (unsigned long long)seed);
            x[(int)(u * n)] = z[(int)(v * n)] = 1;
            ck_assert(y >= 10 && y <= 1000 && y == floor(y));
            count[p.value[4 * i + 3][0] - 'a']++;
            for (int k = 0; k < 4; k++)
                ck_assert_str_eq(p.value[4 * i + k], again.value[4 * i + k]);
            same += strcmp(p.value[4 * i], other.value[4 * i]) == 0;
        }
        ck_assert_int_eq(same, 0);
        for (int k = 0; k < 4; k++) /* values of a list come equally often, as far as n allows */
            ck_assert(count[k] >= n / 4 - 1 && count[k] <= n / 4 + 2);
        dt_job_points_free(&p);
        dt_job_points_free(&again);
        dt_job_points_free(&other);
        dt_free(x);
        dt_free(z);
    }
    for (int i = 0; i < 4; i++)
        dt_job_axis_free(&a[i]);
}
END_TEST

START_TEST(counts_have_suffixes)
{
    static const struct {
        const char *text;
        double value; /* 0 = none */
    } cases[] = {
        {"1T", 1e12}, {"500B", 5e11}, {"2.5M", 2.5e6}, {"3K", 3e3}, {"3k", 3e3}, {"7G", 7e9},
        {"1Q", 1e15}, {"1e12", 1e12}, {"42", 42},      {"0", 0},    {"-1T", 0},  {"T", 0},
        {"1TB", 0},   {"1 T", 0},     {"1t", 0},       {"", 0},     {"nan", 0},  {"1e400", 0},
    };

    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        double v = 0;

        ck_assert_msg(dt_number_count(cases[i].text, &v) == (cases[i].value > 0), "%s",
                      cases[i].text);
        ck_assert_double_eq(v, cases[i].value);
    }
}
END_TEST

int main(void)
{
    Suite *s = suite_create("axes");
    TCase *c = dt_test_case(s, "axes", 0);

    tcase_add_test(c, items_are_what_the_page_says);
    tcase_add_test(c, wrong_items_are_told_what_is_right);
    tcase_add_test(c, grids_have_every_combination_once);
    tcase_add_test(c, latin_hypercubes_are_latin);
    tcase_add_test(c, counts_have_suffixes);
    return dt_test_run(s);
}
