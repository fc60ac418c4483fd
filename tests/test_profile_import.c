/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Importing traces of kernels: one story in the layouts of Nsight Systems' versions
 * (kernel_traces.h) must give the same rows; what all traces have in common.
 *
 *   test_profile_import --make DIR     writes the traces for test_profile_import_files.sh */
#include "import_fixture.h"

#include "base/file.h"
#include "base/mem.h"
#include "base/number.h"
#include "base/rng.h"

#include <math.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

static char dir[256];

static const char *in_dir(const char *name)
{
    static char path[512];

    snprintf(path, sizeof(path), "%s/%s", dir, name);
    return path;
}

START_TEST(every_version_of_nsys_gives_the_same_rows)
{
    struct dt_import_rules *rules = shipped_rules();

    for (int bits = 0; bits < 128; bits++) {
        struct kt_nsys how = {bits & 1,  bits & 2,  bits & 4, bits & 8,
                              bits & 16, bits & 32, bits & 64};
        struct dt_import_trace t = {0};
        struct dt_import_kernels_name top[DT_KIMPORT_TOP];
        int processes = how.two_processes ? 2 : 1;
        struct found f;

        if (how.two_processes && how.no_process)
            continue; /* nothing in such a file tells their kernels apart */
        ck_assert(kt_write_nsys(in_dir("a.sqlite"), &how));
        dt_assert_ok(dt_import_trace_read_nsys(in_dir("a.sqlite"), &err, &t), err);
        ck_assert_str_eq(t.device, how.no_gpu ? "" : "A100-SXM4-80GB");
        ck_assert(t.by_time == how.no_runtime);
        if (how.two_processes && how.no_runtime) { /* both threads' ranges are open at once */
            dt_import_trace_free(&t);
            continue;
        }
        open_found(&f);
        import(&f, &t, rules);
        finish(&f);
        ck_assert_uint_eq(f.rows, (size_t)processes + 1);
        check_row(&f, DT_KOP_GEMM, 512, 120, KT_STEPS);
        if (how.two_processes)
            check_row(&f, DT_KOP_GEMM, 1024, 120, KT_STEPS);
        check_row(&f, DT_KOP_ATTN_CAUSAL, 2, 50, KT_STEPS * processes);
        ck_assert_int_eq(f.sums.kernels, KT_STEPS * processes * (how.no_copies ? 4 : 5));
        ck_assert_int_eq(f.sums.unmapped, KT_STEPS * processes);
        ck_assert_double_eq_tol(f.sums.unmapped_ns, 30e3 * KT_STEPS * processes, 0.5);
        ck_assert_double_eq_tol(f.sums.ignored_ns, how.no_copies ? 0 : 5e3 * KT_STEPS * processes,
                                0.5);
        ck_assert_double_eq_tol(f.sums.mapped_ns + f.sums.ignored_ns + f.sums.unmapped_ns,
                                f.sums.ns, 0.5);
        ck_assert_int_eq(dt_import_kernels_top(f.k, top), 1);
        dt_assert_has(top[0].name, "mystery_kernel");
        close_found(&f);
    }
    dt_import_rules_free(rules);
}
END_TEST

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

/* Random ranges, nested or overlapping, over random launches: the innermost range is the one that
 * began last of those that hold the launch, and each op has the statistics of its times. */
START_TEST(random_traces_agree_with_a_plain_search)
{
    struct dt_import_rules *rules =
        rules_of("rules:\n  - {nvtx: '^r([0-9]+)$', kernel: k, op: adamw, "
                 "dims: [$1]}\n");
    struct dt_rng rng;

    dt_rng_init(&rng, dt_test_seed(), 11);
    for (int round = 0; round < 200; round++) {
        enum { RANGES = 12, KERNELS = 60 };
        static const char *const names[] = {"r1", "r2", "r3"};
        struct dt_import_trace t = {0};
        struct dt_import_trace_range r[RANGES];
        double times[4][KERNELS];
        size_t n[4] = {0};
        double unmapped = 0;
        struct found f;

        open_found(&f);
        for (int i = 0; i < RANGES; i++) { /* no two begin at once: then the order is plain */
            r[i] =
                (struct dt_import_trace_range){.thread = (int64_t)dt_rng_below(&rng, 2),
                                               .start_ns = 16 * i + (int64_t)dt_rng_below(&rng, 16),
                                               .text = names[dt_rng_below(&rng, 3)]};
            r[i].end_ns = r[i].start_ns + (int64_t)dt_rng_below(&rng, 120);
            dt_assert_ok(dt_import_trace_add_range(&t, &r[i], &err), err);
        }
        for (int k = 0; k < KERNELS; k++) {
            struct dt_import_trace_kernel one = {.thread = (int64_t)dt_rng_below(&rng, 3),
                                                 .at_ns = (int64_t)dt_rng_below(&rng, 300),
                                                 .duration_ns =
                                                     1 + (int64_t)dt_rng_below(&rng, 1000),
                                                 .name = "k"};
            int in = 0;

            for (int i = 0; i < RANGES; i++)
                if (r[i].thread == one.thread && r[i].start_ns <= one.at_ns &&
                    one.at_ns <= r[i].end_ns)
                    in = r[i].text[1] - '0';
            if (in)
                times[in][n[in]++] = (double)one.duration_ns;
            else
                unmapped += (double)one.duration_ns;
            dt_assert_ok(dt_import_trace_add_kernel(&t, &one, &err), err);
        }
        import(&f, &t, rules);
        finish(&f);
        ck_assert_double_eq_tol(f.sums.unmapped_ns, unmapped, 1e-6);
        for (int64_t d = 1; d <= 3; d++) {
            const struct dt_profile_table_row *row;
            size_t m = n[d];

            if (m == 0)
                continue;
            qsort(times[d], m, sizeof(double), by_value);
            row = row_of(&f, DT_KOP_ADAMW, DT_PHASE_FWD, d);
            ck_assert_uint_eq((size_t)row->r.n, m);
            ck_assert_double_eq_tol(row->r.median_ns, (times[d][(m - 1) / 2] + times[d][m / 2]) / 2,
                                    1e-6);
        }
        close_found(&f);
    }
    dt_import_rules_free(rules);
}
END_TEST

/* Cut anywhere, or with bytes changed: read as something, or one message; never part of it. */
START_TEST(damaged_exports_are_refused)
{
    static const struct kt_nsys plain;
    struct dt_import_rules *rules = shipped_rules();
    struct dt_rng r;
    char *whole;
    size_t len;
    int refused = 0;

    ck_assert(kt_write_nsys(in_dir("a.sqlite"), &plain));
    dt_assert_ok(dt_file_read(in_dir("a.sqlite"), 1 << 24, &err, &whole, &len), err);
    dt_rng_init(&r, dt_test_seed(), 12);
    for (int i = 0; i < 300; i++) {
        size_t n = i < 100 ? len * (size_t)i / 100 : len;
        char *copy = dt_malloc(len);
        struct dt_import_trace t = {0};
        FILE *out = fopen(in_dir("b.sqlite"), "wb");

        ck_assert(copy != NULL && out != NULL);
        memcpy(copy, whole, len);
        for (int k = 0; i >= 100 && k < 20; k++)
            copy[dt_rng_below(&r, len)] = (char)dt_rng_u32(&r);
        fwrite(copy, 1, n, out);
        fclose(out);
        dt_free(copy);
        err.message[0] = '\0';
        if (dt_import_trace_read_nsys(in_dir("b.sqlite"), &err, &t) == DT_OK) {
            struct found f;

            ck_assert_msg(i >= 100, "cut at %zu of %zu and read", n, len);
            open_found(&f);
            import(&f, &t, rules);
            close_found(&f);
        } else {
            refused++;
            ck_assert(err.message[0] != '\0');
        }
    }
    ck_assert_int_ge(refused, 100);
    dt_free(whole);
    dt_import_rules_free(rules);
}
END_TEST

/* With every allocation failing once: an error, no leak, no crash. */
START_TEST(out_of_memory_is_an_error)
{
    static const struct kt_nsys plain;
    size_t len;
    char *text = kineto_text("card", &today, &len);
    char path[512];
    bool done = false;

    ck_assert(kt_write_nsys(in_dir("a.sqlite"), &plain));
    snprintf(path, sizeof(path), "%s", in_dir("a.sqlite"));
    for (uint64_t k = 1; !done; k++) {
        static const char rules_text[] =
            "rules:\n  - {nvtx: '^disttrain gemm fwd ([0-9]+)', op: adamw, dims: [$1]}\n";
        struct dt_import_rules *rules = NULL;
        struct dt_import_trace t = {0};
        struct found f;
        enum dt_status st;

        open_found(&f);
        dt_mem_fail_at(k);
        st = dt_import_rules_parse("r", rules_text, sizeof(rules_text) - 1, &err, &rules);
        for (int i = 0; i < 2 && st == DT_OK; i++) {
            st = i ? dt_import_trace_parse_kineto("t", text, len, &err, &t)
                   : dt_import_trace_read_nsys(path, &err, &t);
            if (st == DT_OK)
                st = dt_import_kernels_trace(f.k, &t, rules, f.source, &err, &f.sums);
            dt_import_trace_free(&t);
        }
        if (st == DT_OK)
            st = dt_import_kernels_finish(f.k, f.device, &err, &f.t, &f.rows);
        done = dt_mem_count() < k;
        dt_mem_fail_at(0);
        ck_assert_msg(done == (st == DT_OK), "allocation %d", (int)k);
        dt_import_rules_free(rules);
        close_found(&f);
    }
    free(text);
}
END_TEST

static Suite *suite(void)
{
    Suite *s = suite_create("profile_import");
    TCase *c = dt_test_case(s, "all", 300);

    tcase_add_test(c, every_version_of_nsys_gives_the_same_rows);
    tcase_add_test(c, random_traces_agree_with_a_plain_search);
    tcase_add_test(c, damaged_exports_are_refused);
    tcase_add_test(c, out_of_memory_is_an_error);
    return s;
}

static int make_files(const char *where)
{
    static const struct kt_nsys plain, other = {.names_inline = true, .no_gpu = true};
    FILE *f;

    snprintf(dir, sizeof(dir), "%s", where);
    if (!kt_write_nsys(in_dir("a100.sqlite"), &plain) ||
        !kt_write_nsys(in_dir("unnamed.sqlite"), &other) || !(f = fopen(in_dir("h100.json"), "w")))
        return 1;
    kt_write_kineto(f, "NVIDIA H100 80GB HBM3", &today);
    return fclose(f) ? 1 : 0;
}

int main(int argc, char **argv)
{
    char made[] = "/tmp/dt-import-XXXXXX";
    int status;

    if (argc == 3 && strcmp(argv[1], "--make") == 0)
        return make_files(argv[2]);
    if (!mkdtemp(made))
        return 99;
    snprintf(dir, sizeof(dir), "%s", made);
    printf("seed %llu\n", (unsigned long long)dt_test_seed());
    status = dt_test_run(suite());
    unlink(in_dir("a.sqlite"));
    unlink(in_dir("b.sqlite"));
    rmdir(dir);
    return status;
}
