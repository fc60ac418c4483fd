/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * What makes two runs runs of one job: sizes of samples in any order, not where they come from;
 * every policy, not the layout. */
#include "report/run_facts.h"
#include "test_util.h"

#include <stdio.h>

static struct dt_error err;

static struct dt_samples *samples(const char *rows)
{
    struct dt_samples *s;
    char text[512];

    snprintf(text, sizeof(text), "sample,text_tokens,images,audio_s,gen_images\n%s", rows);
    ck_assert_msg(dt_samples_parse_csv("x.csv", text, strlen(text), 4096, NULL, &err, &s) == DT_OK,
                  "%s", err.message);
    return s;
}

START_TEST(digest_of_sizes)
{
    struct dt_samples *a = samples("0,10,28x28,,\n1,20,,,14x28\n2,10,28x28,,\n"),
                      *b = samples("0,20,,,14x28\n1,10,28x28,,\n2,10,28x28,,\n"),
                      *c = samples("0,20,,,28x14\n1,10,28x28,,\n2,10,28x28,,\n"),
                      *d = samples("0,20,14x28,,\n1,10,28x28,,\n2,10,28x28,,\n");

    ck_assert_uint_eq(dt_run_samples_digest(a, 0, 3), dt_run_samples_digest(b, 0, 3));
    ck_assert_uint_ne(dt_run_samples_digest(a, 0, 3), dt_run_samples_digest(c, 0, 3));
    ck_assert_uint_ne(dt_run_samples_digest(b, 0, 3),
                      dt_run_samples_digest(d, 0, 3)); /* read, not drawn */
    ck_assert_uint_ne(dt_run_samples_digest(a, 0, 2), dt_run_samples_digest(b, 0, 3));
    ck_assert_uint_ne(dt_run_samples_digest(a, 0, 2), dt_run_samples_digest(a, 1, 2) + 1);
    /* short sets repeat */
    ck_assert_uint_eq(dt_run_samples_digest(a, 0, 6), 2 * dt_run_samples_digest(a, 0, 3));
    ck_assert_uint_eq(dt_run_samples_digest(a, 2, 3), dt_run_samples_digest(b, 0, 3));
    dt_samples_free(a);
    dt_samples_free(b);
    dt_samples_free(c);
    dt_samples_free(d);
}
END_TEST

static struct dt_run_facts facts(const char *samples, const char *batch, const char *peak)
{
    struct dt_run_facts f = {0};

    dt_run_facts_add(&f, "samples", samples);
    dt_run_facts_add(&f, "global_batch", batch);
    dt_run_facts_add(&f, "peak_flops", peak);
    return f;
}

START_TEST(differences)
{
    struct dt_run_facts a = facts("text, seed 1, 00ff", "8", "1e12"),
                        same = facts("x.tar, step 22, 00ff", "8", "5e10"),
                        other = facts("text, seed 1, 00fe", "16", "1e12"), none = {0};
    struct dt_run_difference d[DT_RUN_FACTS_MAX];

    ck_assert_int_eq(dt_run_facts_differ(&a, &same, d), 0);
    ck_assert_int_eq(dt_run_facts_differ(&a, &none, d), 0);
    ck_assert_int_eq(dt_run_facts_differ(&none, &a, d), 0);
    ck_assert_int_eq(dt_run_facts_differ(&a, &other, d), 2);
    ck_assert_str_eq(d[0].name, "samples");
    ck_assert_str_eq(d[0].b, "text, seed 1, 00fe");
    ck_assert_str_eq(d[1].name, "global_batch");
    ck_assert_str_eq(d[1].a, "8");
    for (int i = 0; i < 2 * DT_RUN_FACTS_MAX; i++) /* what does not fit is left out */
        dt_run_facts_add(&none, "x", "y");
    ck_assert_int_eq(none.n, DT_RUN_FACTS_MAX);
}
END_TEST

int main(void)
{
    Suite *u = suite_create("run_facts");
    TCase *c = dt_test_case(u, "run_facts", 0);

    tcase_add_test(c, digest_of_sizes);
    tcase_add_test(c, differences);
    return dt_test_run(u);
}
