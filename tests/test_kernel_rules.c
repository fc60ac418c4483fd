/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Rules that map kernels to ops: what they take, what they refuse, what the shipped ones know. */
#include "fit/kernel_rules.h"
#include "base/mem.h"
#include "core/profile/profile_schema.h"
#include "test_util.h"

#include <stdio.h>

static struct dt_error err;

static struct dt_import_rules *rules_of(const char *text)
{
    struct dt_import_rules *r = NULL;

    dt_assert_ok(dt_import_rules_parse("rules.yaml", text, strlen(text), &err, &r), err);
    return r;
}

static struct dt_import_rules *shipped_rules(void)
{
    const char *srcdir = getenv("srcdir");
    struct dt_import_rules *r = NULL;
    char path[4096];

    snprintf(path, sizeof(path), "%s/traces/rules/default.yaml", srcdir ? srcdir : ".");
    dt_assert_ok(dt_import_rules_read(path, &err, &r), err);
    return r;
}

/* A range "disttrain OP PHASE DIM..." is known for every op and every phase that the cost model
 * asks for. */
START_TEST(shipped_rules_know_every_annotation)
{
    static const int n_dims[] = {
        [DT_KOP_GEMM] = 3,           [DT_KOP_ATTN_CAUSAL] = 5, [DT_KOP_ATTN_FULL] = 5,
        [DT_KOP_ATTN_CROSS] = 5,     [DT_KOP_CONV2D] = 5,      [DT_KOP_NORM] = 2,
        [DT_KOP_GROUPNORM] = 2,      [DT_KOP_ACT] = 3,         [DT_KOP_ADD] = 2,
        [DT_KOP_ROPE] = 2,           [DT_KOP_EMBED] = 2,       [DT_KOP_XENT] = 2,
        [DT_KOP_ADAMW] = 1,          [DT_KOP_ALL_REDUCE] = 3,  [DT_KOP_ALL_GATHER] = 3,
        [DT_KOP_REDUCE_SCATTER] = 3, [DT_KOP_ALL_TO_ALL] = 3,  [DT_KOP_SEND_RECV] = 2};
    struct dt_import_rules *rules = shipped_rules();
    bool *may = dt_calloc(dt_import_rules_count(rules), sizeof(*may));

    ck_assert(may != NULL);
    dt_import_rules_select(rules, "any_kernel", NULL, may);
    for (int f = 0; f < DT_KOP_BLOCK; f++)
        for (int p = 0; p < DT_PHASE_N; p++) {
            struct dt_import_trace_what w = {.kernel = "any_kernel", .n_ranges = 1};
            struct dt_import_hit hit;
            char text[256];
            bool weights = f == DT_KOP_GEMM || f == DT_KOP_CONV2D || f == DT_KOP_NORM ||
                           f == DT_KOP_GROUPNORM || f == DT_KOP_EMBED;
            bool has = p == DT_PHASE_FWD || (p == DT_PHASE_WGRAD && weights) ||
                       (p == DT_PHASE_DGRAD && f < DT_KOP_ADAMW && f != DT_KOP_EMBED);

            snprintf(text, sizeof(text), "disttrain %s %s", dt_kop_family_names[f],
                     dt_profile_table_phase_names[p]);
            for (int i = 0; i < n_dims[f]; i++)
                snprintf(text + strlen(text), sizeof(text) - strlen(text), " %d",
                         f == DT_KOP_ACT && i == 2 ? 1 : i + 11);
            w.range[0] = text;
            ck_assert_msg(dt_import_rules_match(rules, may, &w, &hit) == has, "%s", text);
            if (!has)
                continue;
            ck_assert_int_eq((int)hit.family, f);
            ck_assert_int_eq((int)hit.phase, p);
            ck_assert(hit.sum);
            for (int i = 0; i < n_dims[f]; i++)
                ck_assert_int_eq(hit.d[i], f == DT_KOP_ACT && i == 2 ? 1 : i + 11);
        }
    dt_free(may);
    dt_import_rules_free(rules);
}
END_TEST

START_TEST(bad_rules_are_refused_where_they_stand)
{
    static const struct {
        const char *text, *says;
        int line;
    } cases[] = {
        {"rule: []", "unknown", 1},
        {"rules: []", "1 to 1000", 1},
        {"rules:\n  - {op: gemm, dims: [1, 2, 3]}", "needs kernel:", 2},
        {"rules:\n  - {kernel: x}", "op", 2},
        {"rules:\n  - {kernel: x, op: gem, dims: [1, 2, 3]}", "gemm", 2},
        {"rules:\n  - {kernel: x, op: block, dims: [1, 2]}", "op", 2},
        {"rules:\n  - {kernel: x, op: gemm, dims: [1, 2]}", "list of 3", 2},
        {"rules:\n  - {kernel: x, op: gemm, dims: [1, 2, $1]}", "0 captures", 2},
        {"rules:\n  - {kernel: '(x)', op: gemm, dims: [1, 2, $2]}", "1 capture", 2},
        {"rules:\n  - {kernel: x, op: gemm, dims: [1, 2, width]}", "a dim is", 2},
        {"rules:\n  - {kernel: x, op: gemm, dims: [1, 2, 3*]}", "a dim is", 2},
        {"rules:\n  - {kernel: x, op: gemm, dims: [1, 2, input9.1]}", "a dim is", 2},
        {"rules:\n  - {kernel: '(', op: gemm, dims: [1, 2, 3]}", "regular expression", 2},
        {"rules:\n  - {kernel: 'a{9}', op: gemm, dims: [1, 2, 3]}", "counts", 2},
        {"rules:\n  - {kernel: '[{]a{9}', op: gemm, dims: [1, 2, 3]}", "counts", 2},
        {"rules:\n  - {kernel: 'a++++++++++++++++++++', op: gemm, dims: [1, 2, 3]}",
         "right behind another", 2},
        {"rules:\n  - {kernel: 'a(b|c)?d*?', op: gemm, dims: [1, 2, 3]}", "right behind another",
         2},
        {"rules:\n  - {kernel: '(((((((((a+)+)+)+)+)+)+)+)+)+', op: gemm, dims: [1, 2, 3]}",
         "too large", 2},
        {"rules:\n  - {kernel: '((((((((((((a+)+)+)+)+)+)+)+)+)+)+)+)+', op: gemm, dims: [1, 2, "
         "3]}",
         "too large", 2},
        {"rules:\n  - {kernel: '(a)\\1', op: gemm, dims: [1, 2, 3]}", "back-references", 2},
        {"rules:\n  - {kernel: x, ignore: true, op: gemm, dims: [1, 2, 3]}", "one of", 2},
        {"rules:\n  - {kernel: x, ignore: true, unmapped: true}", "one of", 2},
        {"rules:\n  - {kernel: x, op: gemm, dims: [1, 2, 3],\n     equal: [1]}", "pairs", 3},
        {"rules:\n  - {kernel: x, op: gemm, dims: [1, 2, 3], phase: back}", "dgrad", 2},
        {"rules:\n  - {kernel: x, op: gemm, dims: [1, 2, 3], kernal: x}", "kernel", 2},
    };

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct dt_import_rules *r;

        ck_assert_int_eq(
            dt_import_rules_parse("r.yaml", cases[i].text, strlen(cases[i].text), &err, &r),
            DT_ERR_INPUT);
        ck_assert_msg(strstr(err.message, cases[i].says), "case %zu: %s", i, err.message);
        ck_assert_msg(err.line == cases[i].line, "case %zu: line %d: %s", i, err.line, err.message);
    }
}
END_TEST

START_TEST(ranges_are_tried_from_the_inside)
{
    struct dt_import_rules *rules =
        rules_of("rules:\n"
                 "  - {nvtx: '^b ([0-9]+)$', op: adamw, dims: [$1]}\n"
                 "  - {nvtx: '^c', kernel: k, op: adamw, dims: [2*3]}\n"
                 "  - {kernel: '^big_([0-9]+)$', op: adamw, dims: [$1]}\n");
    bool may[3];
    struct dt_import_trace_what w = {.kernel = "k", .n_ranges = 3, .range = {"b x", "b 7", "b 8"}};
    struct dt_import_hit hit;

    dt_import_rules_select(rules, "k", NULL, may);
    ck_assert(dt_import_rules_match(rules, may, &w, &hit));
    ck_assert_int_eq(hit.d[0], 7);
    ck_assert_int_eq(hit.range, 1);
    ck_assert(hit.sum); /* the range as a whole */
    w.range[1] = w.range[2] = "cc";
    ck_assert(dt_import_rules_match(rules, may, &w, &hit));
    ck_assert_int_eq(hit.d[0], 6);
    ck_assert(!hit.sum); /* single kernels of a range */
    w.n_ranges = 0;
    ck_assert(!dt_import_rules_match(rules, may, &w, &hit));
    w.kernel = "big_999999999999999999999999"; /* more than a dim can be */
    dt_import_rules_select(rules, w.kernel, NULL, may);
    ck_assert(!dt_import_rules_match(rules, may, &w, &hit));
    w.kernel = "big_0"; /* no such op */
    ck_assert(!dt_import_rules_match(rules, may, &w, &hit));
    w.kernel = "big_42";
    ck_assert(dt_import_rules_match(rules, may, &w, &hit));
    dt_import_rules_free(rules);
}
END_TEST

/* Signs that are characters, and as many groups as do no harm. */
START_TEST(long_patterns_are_taken)
{
    struct dt_import_rules *r = rules_of(
        "rules:\n  - {kernel: 'a[+*]+\\+*[?]?((((b+)+c)+[*+?])+d)+', ignore: true}\n"
        "  - {kernel: '^(void )?at::native::(vectorized|unrolled)_elementwise_kernel<[0-9]+, "
        "at::native::[A-Za-z]+Functor<[a-z0-9:]+>, at::detail::Array<char\\*, [0-9]+>>', "
        "ignore: true}");

    ck_assert_int_eq(dt_import_rules_count(r), 2);
    dt_import_rules_free(r);
}
END_TEST

START_TEST(literal_braces_are_taken)
{
    static const char *const patterns[] = {"a\\{b", "a[{]b", "a[^]x]b", "a[[:punct:]{]b"};

    for (size_t i = 0; i < sizeof(patterns) / sizeof(patterns[0]); i++) {
        struct dt_import_rules *rules;
        char text[128];
        bool may;

        snprintf(text, sizeof(text), "rules: [{kernel: '%s', op: adamw, dims: [1]}]", patterns[i]);
        rules = rules_of(text);
        dt_import_rules_select(rules, "a{b", NULL, &may);
        ck_assert(may);
        dt_import_rules_select(rules, "aab]", NULL, &may);
        ck_assert(may == (i == 2));
        dt_import_rules_free(rules);
    }
}
END_TEST

int main(void)
{
    Suite *s = suite_create("kernel_rules");
    TCase *c = dt_test_case(s, "kernel_rules", 0);

    tcase_add_test(c, shipped_rules_know_every_annotation);
    tcase_add_test(c, bad_rules_are_refused_where_they_stand);
    tcase_add_test(c, ranges_are_tried_from_the_inside);
    tcase_add_test(c, literal_braces_are_taken);
    tcase_add_test(c, long_patterns_are_taken);
    return dt_test_run(s);
}
