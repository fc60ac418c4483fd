/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Importing Kineto traces: the layouts of its versions, the links between kernels and operators,
 * and element types. */
#include "import_fixture.h"

START_TEST(kineto_links_kernels_to_shapes)
{
    struct dt_import_rules *rules = shipped_rules();
    struct dt_import_kernels_name top[DT_KIMPORT_TOP];
    struct dt_import_trace t = {0};
    struct found f;
    size_t len;
    char *text = kineto_text("NVIDIA H100 80GB HBM3", &today, &len);

    open_found(&f);
    dt_assert_ok(dt_import_trace_parse_kineto("t.json", text, len, &err, &t), err);
    ck_assert_str_eq(t.device, "H100 80GB HBM3");
    import(&f, &t, rules);
    dt_assert_ok(dt_import_trace_parse_kineto("t.json", text, len, &err, &t), err);
    import(&f, &t, rules); /* a second rank: its observations join the first's */
    finish(&f);
    ck_assert_uint_eq(f.rows, 2);
    check_row(&f, DT_KOP_GEMM, 512, 120, 2 * KT_STEPS);
    ck_assert_int_eq(row_of(&f, DT_KOP_GEMM, DT_PHASE_FWD, 512)->r.d[1], 256);
    ck_assert_int_eq(row_of(&f, DT_KOP_GEMM, DT_PHASE_FWD, 512)->r.d[2], 128);
    check_row(&f, DT_KOP_ATTN_CAUSAL, 2, 50, 2 * KT_STEPS);
    /* the product of the backward pass is named, not guessed at */
    ck_assert_double_eq_tol(f.sums.unmapped_ns, 2 * KT_STEPS * 103e3, 0.5);
    ck_assert_int_eq(dt_import_kernels_top(f.k, top), 3);
    dt_assert_has(top[0].name, "s16816gemm");
    ck_assert_int_eq(top[0].kernels, 2 * KT_STEPS);
    ck_assert_double_eq_tol(top[1].ns, 2 * KT_STEPS * 30e3, 0.5);
    ck_assert_double_eq_tol(f.sums.ignored_ns, 2 * KT_STEPS * 5e3, 0.5);
    close_found(&f);
    dt_import_rules_free(rules);
    free(text);
}
END_TEST

/* All of the versions give the same rows; the product and the reduction of its parts are one
 * observation, of the product's type; integers are no op. */
START_TEST(every_version_of_kineto_gives_the_same_rows)
{
    struct dt_import_rules *rules = shipped_rules();

    for (int bits = 0; bits < 8; bits++) {
        const struct kt_kineto how = {bits & 1, bits & 2, bits & 4};
        const struct dt_profile_table_row *gemm;
        struct dt_import_trace t = {0};
        struct found f;
        size_t len;
        char *text = kineto_text("card", &how, &len);

        dt_assert_ok(dt_import_trace_parse_kineto("t.json", text, len, &err, &t), err);
        open_found(&f);
        import(&f, &t, rules);
        finish(&f);
        ck_assert_msg(f.rows == 2, "version %d: %zu rows", bits, f.rows);
        check_row(&f, DT_KOP_GEMM, 512, 120, KT_STEPS);
        gemm = row_of(&f, DT_KOP_GEMM, DT_PHASE_FWD, 512);
        ck_assert_str_eq(f.t.dtypes[gemm->dtype], how.tf32 ? "tf32" : "bf16");
        check_row(&f, DT_KOP_ATTN_CAUSAL, 2, 50, KT_STEPS);
        ck_assert_int_eq(f.sums.kernels, 7 * KT_STEPS);
        ck_assert_int_eq(f.sums.mapped, 3 * KT_STEPS);
        ck_assert_int_eq(f.sums.mixed_dtype, KT_STEPS);
        ck_assert_int_eq(f.sums.assumed_dtype, KT_STEPS); /* the annotated attention */
        ck_assert_double_eq_tol(f.sums.unmapped_ns, 103e3 * KT_STEPS, 0.5);
        close_found(&f);
        free(text);
    }
    dt_import_rules_free(rules);
}
END_TEST

/* Kernels in a range that names a product; each in an operator of one type, "" = in none.  What the
 * row's type is, NULL = no row. */
START_TEST(an_annotated_op_has_one_type)
{
    static const char tf32[] = "cutlass_80_tensorop_s1688gemm_128x64", bf16[] = "ampere_bf16_gemm";
    static const struct {
        const char *kernel[2], *type[2], *dtype;
    } cases[] = {
        {{tf32, "splitKreduce_kernel<float>"}, {"float", "float"}, "tf32"},
        {{"ampere_sgemm_64x64", "splitKreduce_kernel<float>"}, {"float", "float"}, "fp32"},
        {{"gemm_of_whom", "k"}, {"float", "float"}, NULL},
        {{"copy_kernel", bf16}, {"float", "c10::BFloat16"}, NULL},
        {{"arange_kernel", bf16}, {"long", "c10::BFloat16"}, "bf16"},
        {{"k", "l"}, {"long", "bool"}, NULL},
        {{"k", "l"}, {"c10::Float8_e4m3fn", "c10::Float8_e4m3fn"}, NULL},
        {{"k", "l"}, {"", ""}, "bf16"}, /* the default */
        {{bf16, "l"}, {"", ""}, "bf16"},
        {{tf32, "l"}, {"", ""}, NULL}, /* not the default's */
        {{"ampere_sgemm_64x64", "l"}, {"", ""}, NULL},
    };
    struct dt_import_rules *rules = shipped_rules();

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct dt_import_trace t = {0};
        struct found f;
        char text[4096];
        size_t n = (size_t)snprintf(text, sizeof(text),
                                    "[{\"ph\": \"X\", \"cat\": \"user_annotation\", \"name\": "
                                    "\"disttrain gemm fwd 8 2 4\", \"ts\": 1, \"dur\": 99}");

        for (int k = 0; k < 2; k++) {
            n += (size_t)snprintf(text + n, sizeof(text) - n,
                                  ",{\"ph\": \"X\", \"cat\": \"cpu_op\", \"name\": \"aten::x\", "
                                  "\"ts\": %d, \"dur\": 5, \"args\": {\"External id\": %d, "
                                  "\"Input Dims\": [[8, 4]], \"Input type\": [\"%s\"]}}",
                                  10 * k + 2, k + 1, cases[i].type[k]);
            n += (size_t)snprintf(text + n, sizeof(text) - n,
                                  ",{\"ph\": \"X\", \"cat\": \"kernel\", \"name\": \"%s\", "
                                  "\"ts\": 200, \"dur\": %d, \"args\": {\"External id\": %d}}",
                                  cases[i].kernel[k], 2 + k, k + 1);
        }
        snprintf(text + n, sizeof(text) - n, "]");
        dt_assert_ok(dt_import_trace_parse_kineto("t.json", text, strlen(text), &err, &t), err);
        open_found(&f);
        import(&f, &t, rules);
        finish(&f);
        ck_assert_msg(f.rows == (cases[i].dtype != NULL), "case %zu: %zu rows", i, f.rows);
        if (f.rows) {
            ck_assert_str_eq(f.t.dtypes[f.t.rows[0].dtype], cases[i].dtype);
            ck_assert_double_eq_tol(f.t.rows[0].r.median_ns, 5000, 1e-9);
        } else {
            ck_assert_int_eq(f.sums.unmapped, 2);
            ck_assert_int_eq(f.sums.mixed_dtype + f.sums.unknown_math + f.sums.denied_dtype, 2);
        }
        close_found(&f);
    }
    dt_import_rules_free(rules);
}
END_TEST

/* A launch that two threads claim, and an operator that is elsewhere, are nobody's. */
START_TEST(links_that_contradict_are_not_followed)
{
#define OP(id, tid, ts)                                                                            \
    "{\"ph\": \"X\", \"cat\": \"cpu_op\", \"name\": \"aten::mm\", \"tid\": " #tid ", \"ts\": " #ts \
    ", \"dur\": 9, \"args\": {\"External id\": " #id ", \"Input Dims\": [[8, 4], [4, " #id         \
    "]], \"Input type\": [\"c10::Half\", \"c10::Half\"]}},"
#define CALL(tid, ts)                                                                              \
    "{\"ph\": \"X\", \"cat\": \"cuda_runtime\", \"tid\": " #tid ", \"ts\": " #ts                   \
    ", \"dur\": 1, \"args\": {\"correlation\": 5}},"
#define KERNEL(args)                                                                               \
    "{\"ph\": \"X\", \"cat\": \"kernel\", \"name\": \"k\", \"ts\": 50, \"dur\": 3, \"args\": "     \
    "{" args "}}]"
    static const struct {
        const char *text;
        int n; /* dim 1 of the row; 0 = no row */
    } cases[] = {
        {"[" OP(3, 1, 10) CALL(1, 12) KERNEL("\"correlation\": 5"), 3},
        {"[" OP(3, 1, 10) CALL(1, 12) KERNEL("\"correlation\": 5, \"External id\": 3"), 3},
        {"[" OP(3, 1, 10) CALL(1, 12) KERNEL("\"correlation\": 5, \"External id\": 5"), 3},
        {"[" OP(3, 1, 10) OP(4, 1, 30) CALL(1, 12) KERNEL("\"correlation\": 5, \"External id\": 4"),
         0},
        {"[" OP(3, 1, 10) OP(4, 2, 10) CALL(1, 12) CALL(2, 12) KERNEL("\"correlation\": 5"), 0},
        {"[" OP(3, 1, 10) OP(3, 2, 10) KERNEL("\"External id\": 3"), 0},
        {"[" OP(3, 1, 10) KERNEL("\"External id\": 3"), 3},
    };
    struct dt_import_rules *rules = shipped_rules();

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct dt_import_trace t = {0};
        struct found f;

        dt_assert_ok(
            dt_import_trace_parse_kineto("t.json", cases[i].text, strlen(cases[i].text), &err, &t),
            err);
        open_found(&f);
        import(&f, &t, rules);
        finish(&f);
        ck_assert_msg(f.rows == (cases[i].n > 0), "case %zu: %zu rows", i, f.rows);
        if (f.rows)
            ck_assert_int_eq(f.t.rows[0].r.d[1], cases[i].n);
        close_found(&f);
    }
    dt_import_rules_free(rules);
}
END_TEST

/* One kernel in one operator, of a type and with a name. */
static void one_kernel(struct found *f, const struct dt_import_rules *rules, const char *kernel,
                       const char *op, const char *dims, const char *type)
{
    struct dt_import_trace t = {0};
    char text[1024];

    snprintf(text, sizeof(text),
             "[{\"ph\": \"X\", \"cat\": \"cpu_op\", \"name\": \"%s\", \"ts\": 1, \"dur\": 9, "
             "\"args\": {\"External id\": 3, \"Input Dims\": %s, \"Input type\": [\"%s\"]}},\n"
             "{\"ph\": \"X\", \"cat\": \"kernel\", \"name\": \"%s\", \"ts\": 20, \"dur\": 1.5, "
             "\"args\": {\"External id\": 3}}]",
             op, dims, type, kernel);
    dt_assert_ok(dt_import_trace_parse_kineto("t.json", text, strlen(text), &err, &t), err);
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
        {"k", "aten::mm", "[[8, 4], [4, 2]]", "c10::Half", DT_KOP_GEMM, {8, 2, 4}, "fp16"},
        {"k", "aten::mm", "[[8, 4], [4, 2]]", "float", -1, {0}, ""},
        {"volta_sgemm_64x64_nn",
         "aten::mm",
         "[[8, 4], [4, 2]]",
         "float",
         DT_KOP_GEMM,
         {8, 2, 4},
         "fp32"},
        {"cutlass_80_tensorop_s1688gemm_256x128",
         "aten::mm",
         "[[8, 4], [4, 2]]",
         "float",
         DT_KOP_GEMM,
         {8, 2, 4},
         "tf32"},
        {"k", "aten::mm", "[[8, 4]]", "float", -1, {0}, ""},
        {"k", "aten::mm", "[[0, 4], [4, 2]]", "float", -1, {0}, ""},
        {"k", "aten::bmm", "[[8, 8, 4], [8, 4, 2]]", "float", -1, {0}, ""},
        {"k",
         "aten::native_layer_norm",
         "[[4, 16, 64]]",
         "c10::BFloat16",
         DT_KOP_NORM,
         {64, 64},
         "bf16"},
        {"k", "aten::gelu", "[[4, 16, 64]]", "", DT_KOP_ACT, {64, 64, 0}, "bf16"},
        {"k", "aten::gelu", "[[4, 16, 64]]", "float", DT_KOP_ACT, {64, 64, 0}, "fp32"},
        {"k", "aten::gelu", "[[4, 16, 64]]", "?", -1, {0}, ""},
        {"k", "aten::add", "[[4, 16, 64], [4, 16, 64], []]", "long\", \"long", -1, {0}, ""},
        {"k", "aten::add", "[[4, 16, 64], [4, 16, 64], []]", "float\", \"long", -1, {0}, ""},
        {"k", "aten::add", "[[4, 16, 64], [4, 16, 64], []]", "double\", \"float", -1, {0}, ""},
        {"k",
         "aten::embedding",
         "[[1000, 64], [4, 16]]",
         "c10::BFloat16\", \"long",
         DT_KOP_EMBED,
         {64, 64},
         "bf16"},
        {"k",
         "aten::add",
         "[[4, 16, 64], [4, 16, 64], []]",
         "c10::BFloat16",
         DT_KOP_ADD,
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
         DT_KOP_ATTN_CAUSAL,
         {2, 64, 8, 2, 128},
         "bf16"},
        {"full",
         "aten::_flash_attention_forward",
         "[[2, 64, 8, 128], [2, 64, 8, 128], [2, 64, 8, 128]]",
         "c10::BFloat16",
         DT_KOP_ATTN_FULL,
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
    struct dt_import_rules *rules = shipped_rules();

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
            const struct dt_profile_table_row *r = &f.t.rows[0];

            ck_assert_int_eq(r->r.family, cases[i].family);
            ck_assert_msg(memcmp(r->r.d, cases[i].d, sizeof(r->r.d)) == 0, "case %zu", i);
            ck_assert_str_eq(f.t.dtypes[r->dtype], cases[i].dtype);
            ck_assert_double_eq_tol(r->r.median_ns, 1500, 1e-9);
        }
        ck_assert_double_eq_tol(f.sums.unmapped_ns, f.rows ? 0 : 1500, 1e-9);
        close_found(&f);
    }
    dt_import_rules_free(rules);
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
        struct dt_import_trace t = {0};

        ck_assert_int_eq(
            dt_import_trace_parse_kineto("t.json", cases[i].text, strlen(cases[i].text), &err, &t),
            DT_ERR_INPUT);
        ck_assert_msg(strstr(err.message, cases[i].says), "case %zu: %s", i, err.message);
        ck_assert_str_eq(err.file, "t.json");
    }
}
END_TEST

static Suite *suite(void)
{
    Suite *s = suite_create("profile_kineto");
    TCase *c = dt_test_case(s, "all", 300);

    tcase_add_test(c, kineto_links_kernels_to_shapes);
    tcase_add_test(c, every_version_of_kineto_gives_the_same_rows);
    tcase_add_test(c, an_annotated_op_has_one_type);
    tcase_add_test(c, links_that_contradict_are_not_followed);
    tcase_add_test(c, shipped_rules_know_operators_and_types);
    tcase_add_test(c, bad_kineto_is_refused_where_it_stands);
    return s;
}

int main(void)
{
    return dt_test_run(suite());
}
