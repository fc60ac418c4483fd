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
    DT_HF_PAIR = 1 << 9, /* what stands around vision_config */
    DT_HF_ROPE = 1 << 10 /* rope_scaling and rope_parameters themselves */
};

struct dt_hf {
    struct dt_node map;
    const char *type;
    char *assumed;
    size_t size;
    struct dt_error *err;
    struct dt_node ignore; /* keys that count as absent */
};

/* Every key is read, of no consequence, at its only supported value, or ignored on request. */
enum dt_status dt_hf_check_keys(const struct dt_hf *hf, unsigned types);
bool dt_hf_ignored(const struct dt_hf *hf, const char *key);

struct dt_node dt_hf_get(const struct dt_hf *hf, const char *key); /* absent when ignored or null */
bool dt_hf_has(const struct dt_hf *hf, const char *key);
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
enum dt_status dt_hf_rope(const struct dt_hf *hf, double theta, struct dt_rope *out);
/* hf_text.c */
enum dt_status dt_hf_llama(const struct dt_hf *hf, struct dt_shape *s);
enum dt_status dt_hf_qwen2(const struct dt_hf *hf, struct dt_shape *s);
enum dt_status dt_hf_qwen3(const struct dt_hf *hf, struct dt_shape *s);
enum dt_status dt_hf_mixtral(const struct dt_hf *hf, struct dt_shape *s);
enum dt_status dt_hf_gpt2(const struct dt_hf *hf, struct dt_shape *s);
/* hf_vision.c */
enum dt_status dt_hf_vit(const struct dt_hf *hf, struct dt_shape *s);
enum dt_status dt_hf_clip(const struct dt_hf *hf, struct dt_shape *s);
enum dt_status dt_hf_siglip(const struct dt_hf *hf, struct dt_shape *s);
/* hf_unet.c */
enum dt_status dt_hf_unet(const struct dt_hf *hf, struct dt_shape *s);

#endif
