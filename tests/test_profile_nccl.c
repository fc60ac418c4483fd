/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Reading what nccl-tests prints: the layouts of its versions, what launchers and NCCL put around
 * it, and what is refused. */
#include "test_util.h"

#include "base/mem.h"
#include "fit/profile_nccl_text.h"

#include <stdio.h>

static struct dt_error err;

struct output {
    const char *program, *start; /* how the text names it */
    const char *redop, *root;    /* "" = a version without this column */
    int hosts, ranks;
    double factor;      /* busbw / algbw */
    bool old_bandwidth; /* algbw is busbw */
};
struct style {
    bool iterations;   /* i_min, i_max, i_p99, i_cv% */
    const char *stamp; /* date and time behind each line */
    const char *tag;   /* before each line */
    const char *noise; /* a line after every line */
};

struct text {
    char *at;
    size_t size;
    FILE *f;
    const struct output *o;
    const struct style *style;
};

static void line(struct text *t, const char *s)
{
    fprintf(t->f, "%s%s\n%s", t->style->tag, s, t->style->noise);
}

/* Sizes 1 KiB .. 1 MiB; out of place 10 + size/1000 us, in place 2 us less. */
static void times(struct text *t, int bytes)
{
    char s[512];
    int n = snprintf(s, sizeof(s), "%12d  %12d     float  %6s  %6s", bytes, bytes / 4, t->o->redop,
                     t->o->root);

    for (int k = 0; k < 2; k++) {
        double us = 10 + bytes / 1000.0 - 2 * k, alg = bytes / us / 1000;

        n += snprintf(s + n, sizeof(s) - (size_t)n, "  %7.3f  %6.2f  %6.2f  %6s", us,
                      t->o->old_bandwidth ? alg * t->o->factor : alg, alg * t->o->factor,
                      k             ? "N/A"
                      : *t->o->root ? "0"
                                    : "2e-07");
        if (t->style->iterations)
            n += snprintf(s + n, sizeof(s) - (size_t)n, "  %7.2f  %7.2f  %7.2f  %7.2f", us - 1,
                          us + 1, us + 1, 3.5);
    }
    snprintf(s + n, sizeof(s) - (size_t)n, "%s", t->style->stamp);
    line(t, s);
}

static void write_output(const struct output *o, const struct style *style, struct text *t)
{
    char s[512];

    t->o = o;
    t->style = style;
    t->f = open_memstream(&t->at, &t->size);
    ck_assert(t->f != NULL);
    if (o->start) {
        snprintf(s, sizeof(s), "%s%s_perf -b 1K -e 1M -f 4 -g 1", o->start, o->program);
        line(t, s);
    }
    line(t, "# nThread 1 nGpus 1 minBytes 1024 maxBytes 1048576 step: 4(factor) warmup iters: 5");
    line(t, "#");
    line(t, "# Using devices");
    for (int r = 0; r < o->ranks; r++) {
        snprintf(s, sizeof(s), "#  Rank %2d Group  0 Pid %6d on      host%c device %2d [0x07] Card",
                 r, 4711 + r, 'a' + r * o->hosts / o->ranks, r);
        line(t, s);
    }
    line(t,
         "#       size         count      type   redop    root     time   algbw   busbw  #wrong");
    line(t, "");
    for (int b = 1024; b <= 1 << 20; b *= 4)
        times(t, b);
    line(t, "# Out of bounds values : 0 OK");
    line(t, "# Avg bus bandwidth    : 12.3 ");
    fclose(t->f);
}

static enum dt_status import(const char *file, const char *text, size_t len,
                             struct dt_profile_table *t, struct dt_import_nccl_counts *n)
{
    const struct dt_profile_source s = {.name = "test"};
    int device, dtype, source;

    memset(t, 0, sizeof(*t));
    memset(n, 0, sizeof(*n));
    memset(&err, 0, sizeof(err));
    ck_assert_int_eq(dt_profile_table_device(t, "card", &err, &device), DT_OK);
    ck_assert_int_eq(dt_profile_table_dtype(t, "any", &err, &dtype), DT_OK);
    ck_assert_int_eq(dt_profile_table_source(t, &s, &err, &source), DT_OK);
    return dt_import_nccl_text(file, text, len, t, device, dtype, source, &err, n);
}

static void check_rows(const struct dt_profile_table *t, size_t rows, int family, const int64_t *d)
{
    int at = family == DT_KOP_SEND_RECV ? 1 : 2;

    ck_assert_uint_eq(t->n_rows, rows);
    for (size_t i = 0; i < rows; i++) {
        const struct dt_profile_row *r = &t->rows[i].r;

        ck_assert_int_eq(r->family, family);
        ck_assert_int_eq(r->d[0], d[0]);
        if (at == 2)
            ck_assert_int_eq(r->d[1], d[1]);
        ck_assert_double_eq_tol(r->median_ns, 9000 + (double)r->d[at], 1);
        ck_assert_double_eq_tol(r->p90_ns - r->p10_ns, 2000, 1);
    }
}

#define COLLECTIVE "# Collective test starting: "

START_TEST(versions_give_the_same_rows)
{
    static const struct {
        struct output o;
        const char *file;
        int family;
        int64_t d[3]; /* without bytes */
    } cases[] = {
        {{"all_reduce", "#   ", "sum", "-1", 1, 8, 1.75, false},
         "x.txt",
         DT_KOP_ALL_REDUCE,
         {8, 8}},
        {{"", NULL, "sum", "", 2, 8, 1.75, false},
         "dir/all_reduce_perf.txt",
         DT_KOP_ALL_REDUCE,
         {8, 4}},
        {{"", NULL, "", "", 1, 4, .75, true}, "dir/all_gather_perf.log", DT_KOP_ALL_GATHER, {4, 4}},
        {{"reduce_scatter", COLLECTIVE, "sum", "-1", 4, 8, .875, false},
         "x",
         DT_KOP_REDUCE_SCATTER,
         {8, 2}},
        {{"alltoall", COLLECTIVE, "none", "-1", 1, 2, .5, false}, "x", DT_KOP_ALL_TO_ALL, {2, 2}},
        {{"sendrecv", COLLECTIVE, "sum", "-1", 2, 2, 1, false}, "x", DT_KOP_SEND_RECV, {1}},
        {{"sendrecv", COLLECTIVE, "", "", 1, 2, 1, false}, "x", DT_KOP_SEND_RECV, {2}},
        /* what the file says goes before its name */
        {{"all_reduce", COLLECTIVE, "sum", "-1", 1, 8, 1.75, false},
         "sendrecv_perf",
         DT_KOP_ALL_REDUCE,
         {8, 8}},
        {{"all_gather", "user@host:~$ mpirun -np 8 -H a,b ./build/", "none", "-1", 2, 8, .875,
          false},
         "x",
         DT_KOP_ALL_GATHER,
         {8, 4}},
    };
    static const char *const stamps[] = {"", "  2026-07-02 12:34:56"};
    static const char *const tags[] = {
        "", "[1,0]<stdout>:", "[prterun-a-17@1,0]<stdout>: ", "0: ", " 0: ", "[0] "};
    static const char *const noises[] = {
        "", "hosta:4711:4711 [0] NCCL INFO Channel 00/02 : 0 1 2 3, 4 5 6 7\n",
        "[1,3]<stderr>:hosta:4711:4723 [3] NCCL INFO comm 0x5 rank 3 nranks 8 - Init COMPLETE\n\n"};

    for (size_t k = 0; k < sizeof(cases) / sizeof(cases[0]); k++)
        for (int how = 0; how < 72; how++) {
            const struct style style = {how % 2, stamps[how / 2 % 2], tags[how / 4 % 6],
                                        noises[how / 24]};
            struct dt_import_nccl_counts n;
            struct dt_profile_table t;
            struct text text;

            write_output(&cases[k].o, &style, &text);
            dt_assert_ok(import(cases[k].file, text.at, text.size, &t, &n), err);
            ck_assert_uint_eq(n.rows, 6);
            ck_assert((n.left_out > 6) == (style.noise[0] != '\0'));
            check_rows(&t, 6, cases[k].family, cases[k].d);
            dt_profile_table_free(&t);
            free(text.at);
        }
}
END_TEST

#define HEAD "# nThread 1 nGpus 2 minBytes 1024\n# all_reduce_perf\n"
#define GOOD "1024 256 float sum -1 1.00 1.02 1.02 0 1.00 1.02 1.02 0\n"
#define RANK(r, host) "#  Rank  " #r " Group  0 Pid 1 on " #host " device 0 [0x07] Card\n"

START_TEST(several_runs_in_one_file)
{
    static const char two[] =
        HEAD GOOD "# Collective test concluded: all_reduce_perf\n"
                  "$ ./all_gather_perf -g 4\n# nThread 2 nGpus 2\n"
                  "4096 1024 float none -1 2.00 2.05 1.54 0 2.00 2.05 1.54 0\n";
    struct dt_import_nccl_counts n;
    struct dt_profile_table t;

    dt_assert_ok(import("x", two, strlen(two), &t, &n), err);
    ck_assert_uint_eq(n.rows, 2);
    ck_assert_uint_eq(n.left_out, 1);
    ck_assert_int_eq(t.rows[0].r.family, DT_KOP_ALL_REDUCE);
    ck_assert_int_eq(t.rows[0].r.d[0], 2);
    ck_assert_int_eq(t.rows[1].r.family, DT_KOP_ALL_GATHER);
    ck_assert_int_eq(t.rows[1].r.d[0], 4);
    dt_profile_table_free(&t);
}
END_TEST

START_TEST(what_is_not_understood_is_refused_with_its_line)
{
    static const struct {
        const char *text, *why;
        int line;
    } cases[] = {
        {"", "no line with times", 0},
        {"hello world\n", "no line with times", 0},
        {"# Rank 0 on a device 0\n# all_reduce_perf\n" GOOD, "how many GPUs", 3},
        {"# nThread 1 nGpus 2\n" GOOD, "which operation", 2},
        {"# nThread 1 nGpus 2\n# all_reduce_perf or all_gather_perf\n" GOOD, "which operation", 3},
        {"# nThread 1 nGpus 2\n# alltoallv_perf\n" GOOD, "no op of a profile", 3},
        {"# nThread 1 nGpus 2\n# broadcast_perf\n" GOOD, "no op of a profile", 3},
        {HEAD "1024 256 float sum -1 1 1\n", "no line of nccl-tests", 3},
        {HEAD "1024 256 float\n", "no line of nccl-tests", 3},
        {HEAD "1024\n", "no line of nccl-tests", 3},
        /* a column more, as of the branch that had side work */
        {HEAD "1024 256 float sum -1 1.00 1.02 1.02 9 0 1.00 1.02 1.02 9 0\n",
         "no line of nccl-tests", 3},
        {HEAD "1024 256 float sum -1 1.00 1.02 1.02 7 1.00 1.02 1.02 0\n", "wrong results", 3},
        {HEAD "1024 256 float sum 1.00 1.02 1.02 1e+00 1.00 1.02 1.02 0e+00\n", "wrong results", 3},
        {HEAD GOOD "# Out of bounds values : 3 FAILED\n", "wrong results", 4},
        {HEAD "1024 256 float sum -1 0 1 1 0 1 1 1 0\n", "not above 0", 3},
        {HEAD "1024 256 float sum -1 x 1 1 0 1 1 1 0\n", "not numbers", 3},
        /* milliseconds; and the factor of another operation */
        {HEAD "1048576 256 float sum -1 0.04 26.21 26.21 0 0.04 26.21 26.21 0\n", "another unit",
         3},
        {"# nThread 2 nGpus 2\n# all_gather_perf\n"
         "1048576 256 float sum -1 40.0 26.21 39.32 0 40.0 26.21 39.32 0\n",
         "another operation", 3},
        {HEAD "# size count type redop root cputime algbw busbw #wrong\n" GOOD, "cputime", 3},
        {HEAD "#  bytes N type time algbw busbw delta time algbw busbw delta\n", "milliseconds", 3},
        {HEAD "1024 256 float sum -1hosta:1:1 [0] NCCL INFO Channel 00\n", "broken by a message",
         3},
        {HEAD "hosta: Test NCCL failure common.cu:958 'unhandled system error'\n", "failed here",
         3},
        {RANK(0, a) RANK(1, a) RANK(2, b) "# all_reduce_perf\n" GOOD, "different numbers", 5},
        {RANK(0, a) RANK(0, b) "# all_reduce_perf\n" GOOD, "a second rank 0", 2},
        {RANK(0, a) RANK(2, b) "# all_reduce_perf\n" GOOD, "not all ranks", 2},
        {"# nThread 1\n" RANK(0, a) "# nThread 1\n" RANK(0, b) GOOD, "did not know", 3},
        {RANK(0, a) "# Rank 1 Group 1 Pid 1 on a device 1\n" GOOD, "side by side", 2},
    };

    for (size_t k = 0; k < sizeof(cases) / sizeof(cases[0]); k++) {
        struct dt_import_nccl_counts n;
        struct dt_profile_table t;

        ck_assert_msg(import("out", cases[k].text, strlen(cases[k].text), &t, &n) == DT_ERR_INPUT,
                      "case %zu is read", k);
        dt_assert_has(err.message, cases[k].why);
        ck_assert_msg(err.line == cases[k].line, "case %zu: line %d", k, err.line);
        dt_profile_table_free(&t);
    }
}
END_TEST

int main(void)
{
    Suite *s = suite_create("profile_nccl");
    TCase *c = dt_test_case(s, "profile_nccl", 0);

    tcase_add_test(c, versions_give_the_same_rows);
    tcase_add_test(c, several_runs_in_one_file);
    tcase_add_test(c, what_is_not_understood_is_refused_with_its_line);
    return dt_test_run(s);
}
