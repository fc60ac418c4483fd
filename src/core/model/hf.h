/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Hugging Face configs, inside hf*.c only: getters (an absent key takes the library's default, and
 * says so) and the table of keys.  No key goes unnoticed: one is read, is known not to matter, or
 * is refused. */
#ifndef DT_CORE_MODEL_HF_H
#define DT_CORE_MODEL_HF_H

#include "core/model/shape.h"

/* Sets of model types, as bits. */
enum {
    DT_HF_LLAMA = 1 << 0,
    DT_HF_QWEN2 = 1 << 1,
    DT_HF_QWEN3 = 1 << 2,
    DT_HF_MIXTRAL = 1 << 3,
    DT_HF_GPT2 = 1 << 4,
    DT_HF_VIT = 1 << 5,
    DT_HF_CLIP = 1 << 6,
    DT_HF_SIGLIP = 1 << 7,
    DT_HF_UNET = 1 << 8,
    DT_HF_PAIR = 1 << 9, /* what stands around vision_config, of which the text tower is left out */
    DT_HF_ROPE = 1 << 10, /* rope_scaling and rope_parameters themselves */
    DT_HF_MISTRAL = 1 << 11,
    DT_HF_QWEN2_MOE = 1 << 12,
    DT_HF_QWEN3_MOE = 1 << 13,
    DT_HF_DEEPSEEK = 1 << 14, /* DeepSeekMoE, V2 and V3 */
    DT_HF_OLMO = 1 << 15,     /* OLMo, OLMo 2 and OLMoE */
    DT_HF_GEMMA = 1 << 16,    /* Gemma 1 to 3 */
    DT_HF_PHI3 = 1 << 17,
    DT_HF_INTERNLM2 = 1 << 18,
    DT_HF_NEOX = 1 << 19,
    DT_HF_FALCON = 1 << 20,
    DT_HF_DINOV2 = 1 << 21,
    DT_HF_INTERN_VIT = 1 << 22,
    DT_HF_QWEN_VISION = 1 << 23, /* vision_config of Qwen2-VL and Qwen2.5-VL */
    DT_HF_VLM = 1 << 24          /* what stands around both towers of a model that has both */
};

struct dt_hf {
    struct dt_node map;
    const char *type;
    char *assumed;
    size_t size;
    struct dt_error *err;
    struct dt_node ignore; /* keys that count as absent */
    /* rope scalings that do not run may be planned */
    bool planned;
};

/* Every key is read, of no consequence, at its only supported value, or ignored on request. */
enum dt_status dt_hf_check_keys(const struct dt_hf *hf, unsigned types);
bool dt_hf_ignored(const struct dt_hf *hf, const char *key);

struct dt_node dt_hf_get(const struct dt_hf *hf, const char *key); /* absent when ignored or null */
bool dt_hf_has(const struct dt_hf *hf, const char *key);
/* Not there at all, or ignored: null is a value of its own to the library. */
bool dt_hf_absent(const struct dt_hf *hf, const char *key);
enum dt_status dt_hf_need(const struct dt_hf *hf, const char *key, int max, int *out);
enum dt_status dt_hf_int(const struct dt_hf *hf, const char *key, int max, int fallback, int *out);
enum dt_status dt_hf_double(const struct dt_hf *hf, const char *key, double min, double max,
                            double fallback, double *out);
enum dt_status dt_hf_bool(const struct dt_hf *hf, const char *key, bool fallback, bool *out);
/* By the names that transformers has for them. */
enum dt_status dt_hf_activation(const struct dt_hf *hf, const char *key, const char *fallback,
                                enum dt_block_activation *out);
/* A switch that only has one supported position. */
enum dt_status dt_hf_only(const struct dt_hf *hf, const char *key, bool expected, const char *why);
/* One "key: value" line. */
void dt_hf_assume(const struct dt_hf *hf, const char *fmt, ...)
    __attribute__((format(printf, 2, 3)));

/* hf_rope.c: rope_theta, rope_scaling, rope_parameters */
enum dt_status dt_hf_rope(const struct dt_hf *hf, double theta, struct dt_shape *s);

/* hf_text.c: layers with the keys of Llama; what a family takes for granted */
struct dt_hf_habits {
    double norm_eps, theta;
    int kv_heads; /* where the key is absent; 0, or null there: as many as heads */
    bool tied;
    const char *activation_key, *activation; /* NULL = hidden_act, silu */
};
enum dt_status dt_hf_llama_like(const struct dt_hf *hf, const struct dt_hf_habits *h,
                                struct dt_shape *s);
/* Attention over a window: as it is; or supported only where it is never shorter than a sequence can be. */
enum dt_status dt_hf_window(const struct dt_hf *hf, struct dt_shape *s);
enum dt_status dt_hf_whole_window(const struct dt_hf *hf, int positions);
enum dt_status dt_hf_qwen_window(const struct dt_hf *hf, int positions);

typedef enum dt_status dt_hf_reader(const struct dt_hf *hf, struct dt_shape *s);
/* hf_text.c */
dt_hf_reader dt_hf_llama, dt_hf_mistral, dt_hf_qwen2, dt_hf_qwen3, dt_hf_gpt2, dt_hf_internlm2;
/* hf_moe.c */
dt_hf_reader dt_hf_mixtral, dt_hf_qwen2_moe, dt_hf_qwen3_moe, dt_hf_deepseek, dt_hf_deepseek_v2,
    dt_hf_deepseek_v3, dt_hf_olmoe;
/* hf_gemma.c */
dt_hf_reader dt_hf_gemma, dt_hf_gemma2, dt_hf_gemma3;
/* hf_neox.c */
dt_hf_reader dt_hf_gpt_neox, dt_hf_falcon, dt_hf_olmo, dt_hf_olmo2, dt_hf_phi3;
/* hf_vision.c */
dt_hf_reader dt_hf_vit, dt_hf_clip, dt_hf_siglip, dt_hf_dinov2, dt_hf_intern_vit;
/* hf_qwen_vision.c */
dt_hf_reader dt_hf_qwen2_vision, dt_hf_qwen25_vision;
/* hf_pair.c: models with both towers; how the vision tower joins the LLM */
struct dt_hf_pair {
    const char *type, *text;             /* key of the LLM's config; NULL = it is the whole one */
    const char *text_type, *vision_type; /* readers; NULL = by the tower's own model_type */
    dt_hf_reader *join;
};
enum { DT_HF_PAIRS = 6 };
extern const struct dt_hf_pair dt_hf_pairs[DT_HF_PAIRS];
const struct dt_hf_pair *dt_hf_pair_of(const char *type);
/* What a model type would need that blocks cannot express; NULL = not known here. */
const char *dt_hf_missing(const char *type);
/* hf_unet.c */
dt_hf_reader dt_hf_unet;

#endif
