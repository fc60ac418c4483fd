/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Importing traces of kernels: one story in the layouts of several profilers and versions
 * (kernel_traces.h) must give the same rows.
 *
 *   test_profile_import --make DIR     writes the traces for test_profile_import.sh */
#include "kernel_traces.h"
#include "test_util.h"

#include "core/file.h"
#include "core/kernel_import.h"
#include "core/mem.h"
#include "core/number.h"
#include "core/rng.h"

#include <math.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

static struct dt_error err;
static char dir[256];

static const char *in_dir(const char *name)
{
    static char path[512];

    snprintf(path, sizeof(path), "%s/%s", dir, name);
    return path;
}

static struct dt_krules *rules_of(const char *text)
{
    struct dt_krules *r = NULL;

    dt_assert_ok(dt_krules_parse("rules.yaml", text, strlen(text), &err, &r), err);
    return r;
}

static struct dt_krules *shipped_rules(void)
{
    const char *srcdir = getenv("srcdir");
    struct dt_krules *r = NULL;
    char path[4096];

    snprintf(path, sizeof(path), "%s/traces/rules/default.yaml", srcdir ? srcdir : ".");
    dt_assert_ok(dt_krules_read(path, &err, &r), err);
    return r;
}

/* What an import of traces found. */
struct found {
    struct dt_ptable t;
    struct dt_kimport *k;
    struct dt_kimport_sums sums;
    int device, source;
    size_t rows;
};

static void open_found(struct found *f)
{
    const struct dt_profile_source s = {.name = "test"};

    memset(f, 0, sizeof(*f));
    dt_assert_ok(dt_ptable_device(&f->t, "card", &err, &f->device), err);
    dt_assert_ok(dt_ptable_source(&f->t, &s, &err, &f->source), err);
    dt_assert_ok(dt_kimport_new("bf16", &err, &f->k), err);
}

static void close_found(struct found *f)
{
    dt_kimport_free(f->k);
    dt_ptable_free(&f->t);
}

static void import(struct found *f, struct dt_ktrace *t, const struct dt_krules *r)
{
    dt_assert_ok(dt_kimport_trace(f->k, t, r, f->source, &err, &f->sums), err);
    dt_ktrace_free(t);
}

static void finish(struct found *f)
{
    dt_assert_ok(dt_kimport_finish(f->k, f->device, &err, &f->t, &f->rows), err);
    dt_ptable_sort(&f->t);
}

static const struct dt_ptable_row *row_of(const struct found *f, int family, int phase, int64_t d0)
{
    for (size_t i = 0; i < f->t.n_rows; i++)
        if (f->t.rows[i].r.family == family && f->t.rows[i].r.phase == phase &&
            f->t.rows[i].r.d[0] == d0)
            return &f->t.rows[i];
    ck_abort_msg("no row of %s %d", dt_op_family_names[family], (int)d0);
    return NULL;
}

/* Of 0..4 above `base` us, linear between order statistics: 10 % is 0.4, 90 % is 3.6. */
static void check_row(const struct found *f, int family, int64_t d0, double base_us, int n)
{
    const struct dt_ptable_row *r = row_of(f, family, DT_PHASE_FWD, d0);

    ck_assert_int_eq(r->r.n, n);
    ck_assert_double_eq_tol(r->r.median_ns, (base_us + 2) * 1000, 0.5);
    if (n == KT_STEPS) {
        ck_assert_double_eq_tol(r->r.p10_ns, (base_us + 0.4) * 1000, 0.5);
        ck_assert_double_eq_tol(r->r.p90_ns, (base_us + 3.6) * 1000, 0.5);
    }
    ck_assert_int_eq(r->r.kind, DT_ROW_MEASURED);
}

START_TEST(every_version_of_nsys_gives_the_same_rows)
{
    struct dt_krules *rules = shipped_rules();

    for (int bits = 0; bits < 128; bits++) {
        struct kt_nsys how = {bits & 1,  bits & 2,  bits & 4, bits & 8,
                              bits & 16, bits & 32, bits & 64};
        struct dt_ktrace t = {0};
        struct dt_kimport_name top[DT_KIMPORT_TOP];
        int processes = how.two_processes ? 2 : 1;
        struct found f;

        if (how.two_processes && how.no_process)
            continue; /* nothing in such a file tells their kernels apart */
        ck_assert(kt_write_nsys(in_dir("a.sqlite"), &how));
        dt_assert_ok(dt_ktrace_read_nsys(in_dir("a.sqlite"), &err, &t), err);
        ck_assert_str_eq(t.device, how.no_gpu ? "" : "A100-SXM4-80GB");
        ck_assert(t.by_time == how.no_runtime);
        if (how.two_processes && how.no_runtime) { /* both threads' ranges are open at once */
            dt_ktrace_free(&t);
            continue;
        }
        open_found(&f);
        import(&f, &t, rules);
        finish(&f);
        ck_assert_uint_eq(f.rows, (size_t)processes + 1);
        check_row(&f, DT_OP_GEMM, 512, 120, KT_STEPS);
        if (how.two_processes)
            check_row(&f, DT_OP_GEMM, 1024, 120, KT_STEPS);
        check_row(&f, DT_OP_ATTN_CAUSAL, 2, 50, KT_STEPS * processes);
        ck_assert_int_eq(f.sums.kernels, KT_STEPS * processes * (how.no_copies ? 4 : 5));
        ck_assert_int_eq(f.sums.unmapped, KT_STEPS * processes);
        ck_assert_double_eq_tol(f.sums.unmapped_ns, 30e3 * KT_STEPS * processes, 0.5);
        ck_assert_double_eq_tol(f.sums.ignored_ns, how.no_copies ? 0 : 5e3 * KT_STEPS * processes,
                                0.5);
        ck_assert_double_eq_tol(f.sums.mapped_ns + f.sums.ignored_ns + f.sums.unmapped_ns,
                                f.sums.ns, 0.5);
        ck_assert_int_eq(dt_kimport_top(f.k, top), 1);
        dt_assert_has(top[0].name, "mystery_kernel");
        close_found(&f);
    }
    dt_krules_free(rules);
}
END_TEST

static char *kineto_text(const char *device, size_t *len)
{
    char *text = NULL;
    FILE *f = open_memstream(&text, len);

    ck_assert(f != NULL);
    kt_write_kineto(f, device);
    fclose(f);
    return text;
}

START_TEST(kineto_links_kernels_to_shapes)
{
    struct dt_krules *rules = shipped_rules();
    struct dt_kimport_name top[DT_KIMPORT_TOP];
    struct dt_ktrace t = {0};
    struct found f;
    size_t len;
    char *text = kineto_text("NVIDIA H100 80GB HBM3", &len);

    open_found(&f);
    dt_assert_ok(dt_ktrace_parse_kineto("t.json", text, len, &err, &t), err);
    ck_assert_str_eq(t.device, "H100 80GB HBM3");
    import(&f, &t, rules);
    dt_assert_ok(dt_ktrace_parse_kineto("t.json", text, len, &err, &t), err);
    import(&f, &t, rules); /* a second rank: its observations join the first's */
    finish(&f);
    ck_assert_uint_eq(f.rows, 2);
    check_row(&f, DT_OP_GEMM, 512, 120, 2 * KT_STEPS);
    ck_assert_int_eq(row_of(&f, DT_OP_GEMM, DT_PHASE_FWD, 512)->r.d[1], 256);
    ck_assert_int_eq(row_of(&f, DT_OP_GEMM, DT_PHASE_FWD, 512)->r.d[2], 128);
    check_row(&f, DT_OP_ATTN_CAUSAL, 2, 50, 2 * KT_STEPS);
    /* the product of the backward pass is named, not guessed at */
    ck_assert_double_eq_tol(f.sums.unmapped_ns, 2 * KT_STEPS * 100e3, 0.5);
    ck_assert_int_eq(dt_kimport_top(f.k, top), 2);
    dt_assert_has(top[0].name, "s16816gemm");
    ck_assert_int_eq(top[0].kernels, 2 * KT_STEPS);
    ck_assert_double_eq_tol(top[1].ns, 2 * KT_STEPS * 30e3, 0.5);
    ck_assert_double_eq_tol(f.sums.ignored_ns, 2 * KT_STEPS * 5e3, 0.5);
    close_found(&f);
    dt_krules_free(rules);
    free(text);
}
END_TEST

/* One kernel in one operator, of a type and with a name. */
static void one_kernel(struct found *f, const struct dt_krules *rules, const char *kernel,
                       const char *op, const char *dims, const char *type)
{
    struct dt_ktrace t = {0};
    char text[1024];

    snprintf(text, sizeof(text),
             "[{\"ph\": \"X\", \"cat\": \"cpu_op\", \"name\": \"%s\", \"ts\": 1, \"dur\": 9, "
             "\"args\": {\"External id\": 3, \"Input Dims\": %s, \"Input type\": [\"%s\"]}},\n"
             "{\"ph\": \"X\", \"cat\": \"kernel\", \"name\": \"%s\", \"ts\": 20, \"dur\": 1.5, "
             "\"args\": {\"External id\": 3}}]",
             op, dims, type, kernel);
    dt_assert_ok(dt_ktrace_parse_kineto("t.json", text, strlen(text), &err, &t), err);
    open_found(f);
    import(f, &t, rules);
    finish(f);
}

START_TEST(shipped_rules_know_operators_and_types)
{
    static const char flash[] = "void pytorch_flash::flash_fwd_kernel<pytorch_flash::Flash_fwd_"
                                "kernel_traits<128, 128, 64, 4, false, false, "
                                "cutlass::bfloat16_t>, false, %s, false, false>(Params)";
    static const struct {
        const char *kernel, *op, *dims, *type;
        int family; /* -1 = not mapped */
        int64_t d[6];
        const char *dtype;
    } cases[] = {
        {"k", "aten::mm", "[[8, 4], [4, 2]]", "c10::Half", DT_OP_GEMM, {8, 2, 4}, "fp16"},
        {"k", "aten::mm", "[[8, 4], [4, 2]]", "float", DT_OP_GEMM, {8, 2, 4}, "fp32"},
        {"cutlass_80_tensorop_s1688gemm_256x128",
         "aten::mm",
         "[[8, 4], [4, 2]]",
         "float",
         DT_OP_GEMM,
         {8, 2, 4},
         "tf32"},
        {"k", "aten::mm", "[[8, 4]]", "float", -1, {0}, ""},
        {"k", "aten::mm", "[[0, 4], [4, 2]]", "float", -1, {0}, ""},
        {"k", "aten::bmm", "[[8, 8, 4], [8, 4, 2]]", "float", -1, {0}, ""},
        {"k",
         "aten::native_layer_norm",
         "[[4, 16, 64]]",
         "c10::BFloat16",
         DT_OP_NORM,
         {64, 64},
         "bf16"},
        {"k", "aten::gelu", "[[4, 16, 64]]", "?", DT_OP_ACT, {64, 64, 0}, "bf16"},
        {"k",
         "aten::embedding",
         "[[1000, 64], [4, 16]]",
         "c10::BFloat16",
         DT_OP_EMBED,
         {64, 64},
         "bf16"},
        {"k",
         "aten::add",
         "[[4, 16, 64], [4, 16, 64], []]",
         "c10::BFloat16",
         DT_OP_ADD,
         {64, 64},
         "bf16"},
        {"k", "aten::add", "[[4, 16, 64], [64], []]", "c10::BFloat16", -1, {0}, ""},
        {"ncclDevKernel_AllReduce_Sum_bf16_RING_LL(x)",
         "aten::mm",
         "[[8, 4], [4, 2]]",
         "float",
         -1,
         {0},
         ""},
        {"causal",
         "aten::_flash_attention_forward",
         "[[2, 64, 8, 128], [2, 64, 2, 128], [2, 64, 2, 128]]",
         "c10::BFloat16",
         DT_OP_ATTN_CAUSAL,
         {2, 64, 8, 2, 128},
         "bf16"},
        {"full",
         "aten::_flash_attention_forward",
         "[[2, 64, 8, 128], [2, 64, 8, 128], [2, 64, 8, 128]]",
         "c10::BFloat16",
         DT_OP_ATTN_FULL,
         {2, 64, 8, 8, 128},
         "bf16"},
        {"full",
         "aten::_flash_attention_forward",
         "[[2, 64, 8, 128], [2, 77, 8, 128], []]",
         "c10::BFloat16",
         -1,
         {0},
         ""},
    };
    struct dt_krules *rules = shipped_rules();

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        const char *kernel = cases[i].kernel;
        char name[512];
        struct found f;

        snprintf(name, sizeof(name), flash,
                 kernel[0] == 'c' && kernel[1] == 'a' ? "true" : "false");
        one_kernel(&f, rules,
                   strcmp(kernel, "causal") == 0 || strcmp(kernel, "full") == 0 ? name : kernel,
                   cases[i].op, cases[i].dims, cases[i].type);
        ck_assert_msg(f.rows == (cases[i].family >= 0), "case %zu: %zu rows", i, f.rows);
        if (f.rows) {
            const struct dt_ptable_row *r = &f.t.rows[0];

            ck_assert_int_eq(r->r.family, cases[i].family);
            ck_assert_msg(memcmp(r->r.d, cases[i].d, sizeof(r->r.d)) == 0, "case %zu", i);
            ck_assert_str_eq(f.t.dtypes[r->dtype], cases[i].dtype);
            ck_assert_double_eq_tol(r->r.median_ns, 1500, 1e-9);
        }
        ck_assert_double_eq_tol(f.sums.unmapped_ns, f.rows ? 0 : 1500, 1e-9);
        close_found(&f);
    }
    dt_krules_free(rules);
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
    struct dt_krules *rules = rules_of("rules:\n  - {nvtx: '^r([0-9]+)$', kernel: k, op: adamw, "
                                       "dims: [$1]}\n");
    struct dt_rng rng;

    dt_rng_init(&rng, dt_test_seed(), 11);
    for (int round = 0; round < 200; round++) {
        enum { RANGES = 12, KERNELS = 60 };
        static const char *const names[] = {"r1", "r2", "r3"};
        struct dt_ktrace t = {0};
        struct dt_ktrace_range r[RANGES];
        double times[4][KERNELS];
        size_t n[4] = {0};
        double unmapped = 0;
        struct found f;

        open_found(&f);
        for (int i = 0; i < RANGES; i++) { /* no two begin at once: then the order is plain */
            r[i] = (struct dt_ktrace_range){.lane = (int64_t)dt_rng_below(&rng, 2),
                                            .start_ns = 16 * i + (int64_t)dt_rng_below(&rng, 16),
                                            .text = names[dt_rng_below(&rng, 3)]};
            r[i].end_ns = r[i].start_ns + (int64_t)dt_rng_below(&rng, 120);
            dt_assert_ok(dt_ktrace_add_range(&t, &r[i], &err), err);
        }
        for (int k = 0; k < KERNELS; k++) {
            struct dt_ktrace_kernel one = {.lane = (int64_t)dt_rng_below(&rng, 3),
                                           .at_ns = (int64_t)dt_rng_below(&rng, 300),
                                           .duration_ns = 1 + (int64_t)dt_rng_below(&rng, 1000),
                                           .name = "k"};
            int in = 0;

            for (int i = 0; i < RANGES; i++)
                if (r[i].lane == one.lane && r[i].start_ns <= one.at_ns && one.at_ns <= r[i].end_ns)
                    in = r[i].text[1] - '0';
            if (in)
                times[in][n[in]++] = (double)one.duration_ns;
            else
                unmapped += (double)one.duration_ns;
            dt_assert_ok(dt_ktrace_add_kernel(&t, &one, &err), err);
        }
        import(&f, &t, rules);
        finish(&f);
        ck_assert_double_eq_tol(f.sums.unmapped_ns, unmapped, 1e-6);
        for (int64_t d = 1; d <= 3; d++) {
            const struct dt_ptable_row *row;
            size_t m = n[d];

            if (m == 0)
                continue;
            qsort(times[d], m, sizeof(double), by_value);
            row = row_of(&f, DT_OP_ADAMW, DT_PHASE_FWD, d);
            ck_assert_uint_eq((size_t)row->r.n, m);
            ck_assert_double_eq_tol(row->r.median_ns, (times[d][(m - 1) / 2] + times[d][m / 2]) / 2,
                                    1e-6);
        }
        close_found(&f);
    }
    dt_krules_free(rules);
}
END_TEST

START_TEST(bad_kineto_is_refused_where_it_stands)
{
    static const struct {
        const char *text, *says;
    } cases[] = {
        {"{\"a\": 1}", "traceEvents"},
        {"[]", "no kernel"},
        {"[3]", "an event is a map"},
        {"[{\"ph\": \"X\", \"cat\": \"kernel\", \"name\": \"k\", \"dur\": 1}]", "without ts"},
        {"[{\"ph\": \"X\", \"cat\": \"kernel\", \"name\": \"k\", \"ts\": 1}]", "without dur"},
        {"[{\"ph\": \"X\", \"cat\": \"kernel\", \"name\": \"k\", \"ts\": 1, \"dur\": \"x\"}]",
         "microseconds"},
        {"[{\"ph\": \"X\", \"cat\": \"kernel\", \"name\": \"k\", \"ts\": 1, \"dur\": -1}]",
         "less than no time"},
        {"[{\"ph\": \"X\", \"cat\": \"kernel\", \"name\": \"k\", \"ts\": 1e300, \"dur\": 1}]",
         "microseconds"},
        {"[{\"ph\": \"X\", \"cat\": \"kernel\", \"name\": \"k\", \"ts\": 99999999999999999999, "
         "\"dur\": 1}]",
         "microseconds"},
    };

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct dt_ktrace t = {0};

        ck_assert_int_eq(
            dt_ktrace_parse_kineto("t.json", cases[i].text, strlen(cases[i].text), &err, &t),
            DT_ERR_INPUT);
        ck_assert_msg(strstr(err.message, cases[i].says), "case %zu: %s", i, err.message);
        ck_assert_str_eq(err.file, "t.json");
    }
}
END_TEST

/* Cut anywhere, or with bytes changed: read as something, or one message; never part of it. */
START_TEST(damaged_exports_are_refused)
{
    static const struct kt_nsys plain;
    struct dt_krules *rules = shipped_rules();
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
        struct dt_ktrace t = {0};
        FILE *out = fopen(in_dir("b.sqlite"), "wb");

        ck_assert(copy != NULL && out != NULL);
        memcpy(copy, whole, len);
        for (int k = 0; i >= 100 && k < 20; k++)
            copy[dt_rng_below(&r, len)] = (char)dt_rng_u32(&r);
        fwrite(copy, 1, n, out);
        fclose(out);
        dt_free(copy);
        err.message[0] = '\0';
        if (dt_ktrace_read_nsys(in_dir("b.sqlite"), &err, &t) == DT_OK) {
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
    dt_krules_free(rules);
}
END_TEST

/* With every allocation failing once: an error, no leak, no crash. */
START_TEST(out_of_memory_is_an_error)
{
    static const struct kt_nsys plain;
    size_t len;
    char *text = kineto_text("card", &len);
    char path[512];
    bool done = false;

    ck_assert(kt_write_nsys(in_dir("a.sqlite"), &plain));
    snprintf(path, sizeof(path), "%s", in_dir("a.sqlite"));
    for (uint64_t k = 1; !done; k++) {
        static const char rules_text[] =
            "rules:\n  - {nvtx: '^disttrain gemm fwd ([0-9]+)', op: adamw, dims: [$1]}\n";
        struct dt_krules *rules = NULL;
        struct dt_ktrace t = {0};
        struct found f;
        enum dt_status st;

        open_found(&f);
        dt_mem_fail_at(k);
        st = dt_krules_parse("r", rules_text, sizeof(rules_text) - 1, &err, &rules);
        for (int i = 0; i < 2 && st == DT_OK; i++) {
            st = i ? dt_ktrace_parse_kineto("t", text, len, &err, &t)
                   : dt_ktrace_read_nsys(path, &err, &t);
            if (st == DT_OK)
                st = dt_kimport_trace(f.k, &t, rules, f.source, &err, &f.sums);
            dt_ktrace_free(&t);
        }
        if (st == DT_OK)
            st = dt_kimport_finish(f.k, f.device, &err, &f.t, &f.rows);
        done = dt_mem_count() < k;
        dt_mem_fail_at(0);
        ck_assert_msg(done == (st == DT_OK), "allocation %d", (int)k);
        dt_krules_free(rules);
        close_found(&f);
    }
    free(text);
}
END_TEST

static Suite *suite(void)
{
    Suite *s = suite_create("profile_import");
    TCase *c = tcase_create("all");

    tcase_set_timeout(c, 300);
    tcase_add_test(c, every_version_of_nsys_gives_the_same_rows);
    tcase_add_test(c, kineto_links_kernels_to_shapes);
    tcase_add_test(c, shipped_rules_know_operators_and_types);
    tcase_add_test(c, random_traces_agree_with_a_plain_search);
    tcase_add_test(c, bad_kineto_is_refused_where_it_stands);
    tcase_add_test(c, damaged_exports_are_refused);
    tcase_add_test(c, out_of_memory_is_an_error);
    suite_add_tcase(s, c);
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
    kt_write_kineto(f, "NVIDIA H100 80GB HBM3");
    return fclose(f) ? 1 : 0;
}

int main(int argc, char **argv)
{
    char made[] = "/tmp/dt-import-XXXXXX";
    SRunner *r;
    int failed;

    if (argc == 3 && strcmp(argv[1], "--make") == 0)
        return make_files(argv[2]);
    if (!mkdtemp(made))
        return 99;
    snprintf(dir, sizeof(dir), "%s", made);
    printf("seed %llu\n", (unsigned long long)dt_test_seed());
    r = srunner_create(suite());
    srunner_run_all(r, CK_NORMAL);
    failed = srunner_ntests_failed(r);
    srunner_free(r);
    unlink(in_dir("a.sqlite"));
    unlink(in_dir("b.sqlite"));
    rmdir(dir);
    return failed ? 1 : 0;
}
