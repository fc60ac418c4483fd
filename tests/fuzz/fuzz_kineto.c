/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Kineto traces: any text is refused with a message, or every nanosecond of its kernels is mapped,
 * ignored or reported. */
#include "fit/kernel_import.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#define REQUIRE(x)                                                                                 \
    do {                                                                                           \
        if (!(x))                                                                                  \
            abort();                                                                               \
    } while (0)

static const char rules_text[] =
    "rules:\n"
    "  - {nvtx: '^disttrain adamw fwd ([0-9]+)$', op: adamw, dims: [$1]}\n"
    "  - {kernel: '^Mem', ignore: true}\n"
    "  - {nvtx: 'Backward', unmapped: true}\n"
    "  - {cpu_op: '^aten::addmm$', op: gemm, dims: [input1.0, input2.1, input1.1],\n"
    "     equal: [input1.last, input2.rows]}\n"
    "  - {kernel: 'k', op: norm, dims: [input0.rows, input0.last]}\n";

static void use(struct dt_import_trace *t, const struct dt_import_rules *rules)
{
    const struct dt_profile_source s = {.name = "fuzz"};
    struct dt_import_kernels_name top[DT_KIMPORT_TOP];
    struct dt_import_kernels_sums sums = {0};
    struct dt_error err = {0};
    struct dt_profile_table p = {0};
    struct dt_import_kernels *k;
    double named = 0;
    int device, source, n;
    size_t rows;

    REQUIRE(dt_profile_table_device(&p, "d", &err, &device) == DT_OK);
    REQUIRE(dt_profile_table_source(&p, &s, &err, &source) == DT_OK);
    REQUIRE(dt_import_kernels_new("bf16", &err, &k) == DT_OK);
    REQUIRE(dt_import_kernels_trace(k, t, rules, source, &err, &sums) == DT_OK);
    REQUIRE(sums.kernels == (int64_t)t->n_kernels);
    REQUIRE(sums.mapped + sums.ignored + sums.unmapped == sums.kernels);
    REQUIRE(fabs(sums.mapped_ns + sums.ignored_ns + sums.unmapped_ns - sums.ns) <= 1e-9 * sums.ns);
    n = dt_import_kernels_top(k, top);
    for (int i = 0; i < n; i++)
        named += top[i].ns;
    REQUIRE(named <= sums.unmapped_ns * (1 + 1e-9));
    REQUIRE(n == DT_KIMPORT_TOP || fabs(named - sums.unmapped_ns) <= 1e-9 * sums.ns);
    if (dt_import_kernels_finish(k, device, &err, &p, &rows) != DT_OK)
        REQUIRE(err.message[0] != '\0'); /* a sum beyond what a profile takes */
    dt_import_kernels_free(k);
    dt_profile_table_free(&p);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct dt_error err = {0};
    struct dt_import_rules *rules;
    struct dt_import_trace t = {0};

    if (dt_import_trace_parse_kineto("fuzz.json", (const char *)data, size, &err, &t) != DT_OK) {
        REQUIRE(err.message[0] != '\0');
        return 0;
    }
    REQUIRE(t.n_kernels > 0);
    REQUIRE(dt_import_rules_parse("rules", rules_text, sizeof(rules_text) - 1, &err, &rules) ==
            DT_OK);
    use(&t, rules);
    dt_import_rules_free(rules);
    dt_import_trace_free(&t);
    return 0;
}
