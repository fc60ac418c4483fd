/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING. */
#include "fit/kernel_dtype.h"

#include <string.h>

static const char *const dtypes[DT_KTYPE_N] = {
    [DT_KTYPE_BF16] = "bf16", [DT_KTYPE_FP16] = "fp16", [DT_KTYPE_FP32] = "fp32",
    [DT_KTYPE_FP64] = "fp64", [DT_KTYPE_TF32] = "tf32",
};

enum dt_import_type dt_import_type_of(const char *name)
{
    static const struct {
        const char *name;
        enum dt_import_type type;
    } known[] = {{"c10::BFloat16", DT_KTYPE_BF16},
                 {"c10::Half", DT_KTYPE_FP16},
                 {"float", DT_KTYPE_FP32},
                 {"double", DT_KTYPE_FP64},
                 {"Scalar", DT_KTYPE_NONE},
                 {"ScalarList", DT_KTYPE_NONE},
                 {"TensorList", DT_KTYPE_NONE},
                 {"GenericList", DT_KTYPE_NONE},
                 {"", DT_KTYPE_NONE}};

    for (size_t i = 0; i < sizeof(known) / sizeof(known[0]); i++)
        if (strcmp(name, known[i].name) == 0)
            return known[i].type;
    return DT_KTYPE_OTHER;
}

void dt_import_types_inputs(struct dt_import_types *t, enum dt_kop_family family,
                            const struct dt_import_trace_inputs *in)
{
    bool first = true;

    for (int i = 0; in && i < in->n; i++) {
        enum dt_import_type type = in->type[i];

        if (in->axes[i] == 0 || type == DT_KTYPE_NONE) /* a number, a list, no tensor at all */
            continue;
        if (first || type != DT_KTYPE_OTHER || (family != DT_KOP_EMBED && family != DT_KOP_XENT))
            t->operands |= 1u << type;
        first = false;
    }
}

static bool has(const char *s, const char *word)
{
    return strstr(s, word) != NULL;
}

/* Names of cuBLAS, cuDNN and CUTLASS: ampere_sgemm_128x64_nn, cutlass_80_tensorop_s1688gemm_...,
 * sm80_xmma_gemm_f32f32_tf32f32_f32_..., ampere_bf16_s16816gemm_bf16_...; of Tensile: Cijk_..._SB_.
 * The instruction s1688 multiplies TF32 unless the name says fp16 or bf16. */
void dt_import_types_kernel(struct dt_import_types *t, const char *name)
{
    bool bf16 = has(name, "bf16") || has(name, "bfloat16") || has(name, "BFloat16");
    bool fp16 = has(name, "fp16") || has(name, "hgemm") || has(name, "_h16816gemm") ||
                has(name, "_h1688gemm") || has(name, "__half") || has(name, "c10::Half");

    if (has(name, "tf32") || (has(name, "s1688") && !bf16 && !fp16))
        t->names |= 1u << DT_KTYPE_TF32;
    else if (has(name, "sgemm") || has(name, "scudnn") || has(name, "_simt_s") ||
             has(name, "f32f32_f32f32_f32") || has(name, "_SB_"))
        t->names |= 1u << DT_KTYPE_FP32;
    else if (bf16)
        t->names |= 1u << DT_KTYPE_BF16;
    else if (fp16)
        t->names |= 1u << DT_KTYPE_FP16;
    else if (has(name, "gemv") && has(name, "float"))
        t->names |= 1u << DT_KTYPE_FP32;
}

static bool is_product(enum dt_kop_family family)
{
    return family == DT_KOP_GEMM || family == DT_KOP_CONV2D || family == DT_KOP_ATTN_CAUSAL ||
           family == DT_KOP_ATTN_FULL || family == DT_KOP_ATTN_CROSS;
}

/* Of operands in fp32. */
static enum dt_import_type_why decide_math(unsigned names, const char **dtype)
{
    if (names & 1u << DT_KTYPE_TF32)
        *dtype = dtypes[DT_KTYPE_TF32];
    else if (names & 1u << DT_KTYPE_FP32)
        *dtype = dtypes[DT_KTYPE_FP32];
    else
        return DT_KDTYPE_MATH;
    return DT_KDTYPE_OK;
}

enum dt_import_type_why dt_import_types_decide(const struct dt_import_types *t,
                                               enum dt_kop_family family, bool annotated,
                                               const char *fallback, const char **dtype)
{
    unsigned set = t->operands, other = 1u << DT_KTYPE_OTHER;

    if (annotated && (set & ~other))
        set &= ~other;
    if (set == 0) { /* a product's name tells: no other kernel of a product may deny it */
        *dtype = fallback;
        if (!is_product(family) || t->names == 0)
            return DT_KDTYPE_ASSUMED;
        for (int i = 0; i < DT_KTYPE_N; i++)
            if (dtypes[i] && (t->names & 1u << i) && strcmp(dtypes[i], fallback) == 0)
                return DT_KDTYPE_OK;
        return DT_KDTYPE_DENIED;
    }
    if (set & (set - 1) || set == other)
        return DT_KDTYPE_MIXED;
    if (set == 1u << DT_KTYPE_FP32 && is_product(family))
        return decide_math(t->names, dtype);
    for (int i = 0; i < DT_KTYPE_N; i++)
        if (set == 1u << i)
            *dtype = dtypes[i];
    return DT_KDTYPE_OK;
}
