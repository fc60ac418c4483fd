/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Fitted curves against the constants that made the data, with noise and outliers; nccl-tests
 * output, made by a generator here in the layouts of several versions. */
#include "core/cost_curve.h"
#include "core/mem.h"
#include "core/profile_nccl_text.h"
#include "core/rng.h"
#include "test_util.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static struct dt_error err;

static void open_table(struct dt_ptable *t, struct dt_ptable_row *row)
{
    const struct dt_profile_source s = {
        .name = "made up", .origin = "this test", .licence = "none", .date = "today"};

    memset(t, 0, sizeof(*t));
    memset(row, 0, sizeof(*row));
    dt_assert_ok(dt_ptable_device(t, "card", &err, &row->device), err);
    dt_assert_ok(dt_ptable_dtype(t, "bf16", &err, &row->dtype), err);
    dt_assert_ok(dt_ptable_source(t, &s, &err, &row->r.source), err);
    row->r.n = 1;
    row->r.kind = DT_ROW_MEASURED;
}

static void add(struct dt_ptable *t, struct dt_ptable_row *row, double ns)
{
    row->r.median_ns = row->r.p10_ns = row->r.p90_ns = ns;
    dt_assert_ok(dt_ptable_add(t, row, &err), err);
}

/* alpha 9 us, 200 GB/s on the bus, 3 % noise, every ninth size three times too slow. */
START_TEST(outliers_do_not_bend_the_curve)
{
    struct dt_ptable t;
    struct dt_ptable_row row;
    struct dt_curves c;
    struct dt_rng r;
    char *svg;
    int outliers = 0;

    open_table(&t, &row);
    dt_rng_init(&r, dt_test_seed(), 3);
    row.r.family = DT_OP_ALL_REDUCE;
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
    dt_ptable_free(&t);
}
END_TEST

/* Products: the rate is the asymptote, t0 x rate the half-way size; kinds stay apart. */
START_TEST(kinds_have_curves_of_their_own)
{
    struct dt_ptable t;
    struct dt_ptable_row row;
    struct dt_curves c;

    open_table(&t, &row);
    row.r.family = DT_OP_GEMM;
    for (int phase = 0; phase < 2; phase++)
        for (int64_t m = 128; m <= 16384; m *= 2) {
            row.r.phase = phase;
            row.r.d[0] = row.r.d[1] = row.r.d[2] = m;
            add(&t, &row, 4000.0 + 2.0 * (double)(m * m * m) / (250e3 / (phase + 1)));
        }
    row.r.family = DT_OP_NORM;
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
    dt_ptable_free(&t);
}
END_TEST

/* Times that say nothing about a rate, or a launch that would take negative time. */
START_TEST(odd_times_give_odd_curves_no_crash)
{
    for (int kind = 0; kind < 3; kind++) {
        struct dt_ptable t;
        struct dt_ptable_row row;
        struct dt_curves c;

        open_table(&t, &row);
        row.r.family = DT_OP_ADD;
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
        dt_ptable_free(&t);
    }
}
END_TEST

/* ---- nccl-tests ---- */

struct output {
    const char *program; /* named in the text, or NULL */
    bool redop, root;    /* columns that the version has */
    int hosts, ranks;
};

/* Sizes 1 KiB .. 1 MiB; out of place 10 + size/1000 us, in place 2 us less. */
static int write_output(const struct output *o, char *buf, size_t size)
{
    int n = 0;

    if (o->program)
        n += snprintf(buf + n, size - n, "# nThread 1 nGpus 1 minBytes 1024 %s_perf\n#\n",
                      o->program);
    for (int r = 0; r < o->ranks; r++)
        n += snprintf(buf + n, size - n,
                      "#  Rank %2d Group  0 Pid %6d on  host%c device %2d [0x07] Card\n", r,
                      4711 + r, 'a' + r * o->hosts / o->ranks, r);
    n += snprintf(buf + n, size - n, "#       size         count      type ... time\n");
    for (int b = 1024; b <= 1 << 20; b *= 4) {
        n += snprintf(buf + n, size - n, "%12d %12d float %s %s", b, b / 4, o->redop ? "sum" : "",
                      o->root ? "-1" : "");
        for (int k = 0; k < 2; k++)
            n += snprintf(buf + n, size - n, " %9.3f %7.2f %7.2f %s", 10 + b / 1000.0 - 2 * k, 0.1,
                          0.2, k ? "N/A" : o->root ? "0" : "2e-07");
        n += snprintf(buf + n, size - n, "\n");
    }
    return n + snprintf(buf + n, size - n, "# Out of bounds values : 0 OK\n");
}

START_TEST(nccl_tests_of_several_versions)
{
    static const struct {
        struct output o;
        const char *file;
        int family;
        int64_t d[3]; /* without bytes */
    } cases[] = {
        {{"all_reduce", true, true, 1, 8}, "x.txt", DT_OP_ALL_REDUCE, {8, 8}},
        {{NULL, true, false, 2, 8}, "dir/old.txt", DT_OP_ALL_REDUCE, {8, 4}},
        {{NULL, false, false, 1, 4}, "dir/all_gather_perf.log", DT_OP_ALL_GATHER, {4, 4}},
        {{"reduce_scatter", true, true, 4, 8}, "x", DT_OP_REDUCE_SCATTER, {8, 2}},
        {{"alltoall", false, true, 1, 2}, "x", DT_OP_ALL_TO_ALL, {2, 2}},
        {{"sendrecv", false, false, 2, 2}, "x", DT_OP_SEND_RECV, {1}},
        {{"sendrecv", false, false, 1, 2}, "x", DT_OP_SEND_RECV, {2}},
    };
    static char text[1 << 14];

    for (size_t k = 0; k < sizeof(cases) / sizeof(cases[0]); k++) {
        int len = write_output(&cases[k].o, text, sizeof(text)), at;
        struct dt_ptable_row row;
        struct dt_ptable t;
        size_t rows = 0;

        open_table(&t, &row);
        dt_assert_ok(dt_nccl_text_import(cases[k].file, text, (size_t)len, &t, row.device,
                                         row.dtype, row.r.source, &err, &rows),
                     err);
        ck_assert_uint_eq(rows, 6);
        at = cases[k].family == DT_OP_SEND_RECV ? 1 : 2;
        for (size_t i = 0; i < rows; i++) {
            const struct dt_profile_row *r = &t.rows[i].r;

            ck_assert_int_eq(r->family, cases[k].family);
            ck_assert_int_eq(r->d[0], cases[k].d[0]);
            if (at == 2)
                ck_assert_int_eq(r->d[1], cases[k].d[1]);
            ck_assert_double_eq_tol(r->median_ns, 9000 + (double)r->d[at], 1);
            ck_assert_double_eq_tol(r->p90_ns - r->p10_ns, 2000, 1);
        }
        dt_ptable_free(&t);
    }
}
END_TEST

START_TEST(damaged_nccl_output_is_refused_with_its_line)
{
    static const struct {
        const char *text, *why;
        int line;
    } cases[] = {
        {"", "no line with times", 0},
        {"# Rank 0 on a device 0\n1024 256 float sum -1 1 1 1 0 1 1 1 0\n", "how many GPUs", 2},
        {"1024 256 float none -1 1 1 1 0 1 1 1 0\n", "which operation", 1},
        {"# nGpus 2 all_reduce_perf\n1024 256 float sum -1 1 1\n", "no line of nccl-tests", 2},
        {"# nGpus 2 all_reduce_perf\nhello world this is a line of text here ok\n",
         "no line of nccl-tests", 2},
        {"# nGpus 2 all_reduce_perf\n1024 256 float sum -1 1 1 1 7 1 1 1 0\n", "wrong results", 2},
        {"# nGpus 2 all_reduce_perf\n1024 256 float sum 1 1 1 1e+00 1 1 1 0e+00\n",
         "wrong results", 2},
        {"# nGpus 2 all_reduce_perf\n1024 256 float sum -1 0 1 1 0 1 1 1 0\n", "not above 0", 2},
        {"# Rank 0 on a device 0\n# Rank 1 on a device 1\n# Rank 2 on b device 0\n# "
         "all_reduce_perf\n"
         "1024 256 float sum -1 1 1 1 0 1 1 1 0\n",
         "different numbers", 5},
    };

    for (size_t k = 0; k < sizeof(cases) / sizeof(cases[0]); k++) {
        struct dt_ptable_row row;
        struct dt_ptable t;
        size_t rows = 0;

        open_table(&t, &row);
        memset(&err, 0, sizeof(err));
        ck_assert_int_eq(dt_nccl_text_import("out", cases[k].text, strlen(cases[k].text), &t,
                                             row.device, row.dtype, row.r.source, &err, &rows),
                         DT_ERR_INPUT);
        dt_assert_has(err.message, cases[k].why);
        ck_assert_int_eq(err.line, cases[k].line);
        dt_ptable_free(&t);
    }
}
END_TEST

int main(void)
{
    Suite *s = suite_create("cost_curve");
    TCase *c = tcase_create("cost_curve");
    SRunner *r;
    int failed;

    tcase_add_test(c, outliers_do_not_bend_the_curve);
    tcase_add_test(c, kinds_have_curves_of_their_own);
    tcase_add_test(c, odd_times_give_odd_curves_no_crash);
    tcase_add_test(c, nccl_tests_of_several_versions);
    tcase_add_test(c, damaged_nccl_output_is_refused_with_its_line);
    suite_add_tcase(s, c);
    r = srunner_create(s);
    srunner_run_all(r, CK_NORMAL);
    failed = srunner_ntests_failed(r);
    srunner_free(r);
    return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
