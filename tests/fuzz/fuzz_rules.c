/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Rules of trace imports: any text is refused with a message, or its rules can be asked, and what
 * they answer fits a profile. */
#include "fit/kernel_rules.h"
#include "base/mem.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#define REQUIRE(x)                                                                                 \
    do {                                                                                           \
        if (!(x))                                                                                  \
            abort();                                                                               \
    } while (0)

static void ask(const struct dt_import_rules *rules, const struct dt_import_trace_what *w,
                bool *may)
{
    struct dt_import_hit hit;

    dt_import_rules_select(rules, w->kernel, w->cpu_op, may);
    if (!dt_import_rules_match(rules, may, w, &hit) || hit.ignore || hit.unmapped)
        return;
    REQUIRE(hit.family >= 0 && hit.family < DT_KOP_BLOCK);
    REQUIRE(hit.phase >= 0 && hit.phase < DT_PHASE_N);
    REQUIRE(hit.range >= -1 && hit.range < w->n_ranges);
    REQUIRE(hit.d[0] >= 1);
    for (int i = 0; i < 6; i++)
        REQUIRE(hit.d[i] >= 0 && hit.d[i] <= INT64_C(1) << 48);
    REQUIRE(!hit.dtype || hit.dtype[0]);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const struct dt_import_trace_inputs in = {
        .n = 3, .axes = {2, 3, 0}, .size = {{64, 128}, {2, 0, INT64_MAX}}, .type = {DT_KTYPE_BF16}};
    static const struct dt_import_trace_what asked[] = {
        {.kernel = "void k<64, 128>(float*)"},
        {.kernel = "k", .cpu_op = "aten::mm", .inputs = &in},
        {.kernel = "nccl 99999999999999999999",
         .n_ranges = 2,
         .range = {"inner", "gemm 512 256 128"}},
    };
    struct dt_error err = {0};
    struct dt_import_rules *rules;
    bool *may;

    if (dt_import_rules_parse("fuzz.yaml", (const char *)data, size, &err, &rules) != DT_OK) {
        REQUIRE(err.message[0] != '\0');
        return 0;
    }
    REQUIRE(dt_import_rules_count(rules) > 0);
    may = dt_calloc(dt_import_rules_count(rules), sizeof(*may));
    REQUIRE(may != NULL);
    for (size_t i = 0; i < sizeof(asked) / sizeof(asked[0]); i++)
        ask(rules, &asked[i], may);
    dt_free(may);
    dt_import_rules_free(rules);
    return 0;
}
