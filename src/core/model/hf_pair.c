/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Hugging Face configs of models with a vision tower and an LLM: where each is, and what joins them.  Also the model
 * types that are known not to fit into blocks, and why. */
#include "core/model/hf.h"

#include <math.h>
#include <string.h>

/* hf->map is the whole config here, s the vision tower's shape. */

/* "default" drops the first row of the features, "full" keeps all.  Here class tokens never go to the LLM, and patches
 * always do. */
static enum dt_status select_rows(const struct dt_hf *hf, const struct dt_shape *s)
{
    static const char key[] = "vision_feature_select_strategy";
    struct dt_node at = dt_hf_has(hf, key) ? dt_map_get(hf->map, key) : hf->map;
    const char *right = s->class_tokens > 0 ? "default" : "full";
    char stated[32] = "default";

    if (dt_hf_has(hf, key))
        DT_TRY(dt_get_string(hf->map, key, stated, sizeof(stated), hf->err));
    else if (s->class_tokens > 0)
        dt_hf_assume(hf, "%s: default", key);
    if (strcmp(stated, right) == 0)
        return DT_OK;
    return dt_node_error(at, hf->err, "%s: \"%s\"%s is not supported (supported: %s; %s)", key,
                         stated, dt_hf_has(hf, key) ? "" : ", the library's default,", right,
                         s->class_tokens > 0 ? "the class token is not the LLM's"
                                             : "the tower has no class token to drop, and the "
                                               "first row is a patch");
}

/* Features are hidden_states[vision_feature_layer] of the tower: those behind that layer, and the norm behind the last
 * one, are not needed. */
static enum dt_status join_llava(const struct dt_hf *hf, struct dt_shape *s)
{
    int layer = -2;

    s->projector = DT_PROJ_MLP;
    DT_TRY(dt_hf_only(hf, "multimodal_projector_bias", true, "the projector is taken with biases"));
    if (dt_hf_has(hf, "vision_feature_layer"))
        DT_TRY(dt_get_i32(hf->map, "vision_feature_layer", -DT_LIM_LAYERS, -1, &layer, hf->err));
    if (-layer > s->layers)
        return dt_node_error(dt_map_get(hf->map, "vision_feature_layer"), hf->err,
                             "vision_feature_layer: %d of %d layers", layer, s->layers);
    s->layers += layer + 1;
    if (layer < -1)
        dt_hf_assume(hf, "vision_feature_layer: %d; layers behind it are left out", layer);
    if (s->final_norm)
        dt_hf_assume(hf, "norm behind the vision tower's layers: left out");
    s->final_norm = false;
    return select_rows(hf, s);
}

/* Pixel shuffle, a norm of the merged row, two layers. */
static enum dt_status join_internvl(const struct dt_hf *hf, struct dt_shape *s)
{
    double ratio = 0.5;

    DT_TRY(dt_hf_double(hf, "downsample_ratio", 1.0 / DT_LIM_MERGE, 1, 0.5, &ratio));
    s->merge = (int)lround(1 / ratio);
    if (fabs(s->merge * ratio - 1) > 1e-9)
        return dt_node_error(dt_map_get(hf->map, "downsample_ratio"), hf->err,
                             "downsample_ratio: %g is not supported (supported: 1, 1/2, 1/3 and "
                             "so on)",
                             ratio);
    s->projector = DT_PROJ_MLP;
    s->projector_norm = DT_NORM_LAYERNORM;
    return DT_OK;
}

static enum dt_status join_linear(const struct dt_hf *hf, struct dt_shape *s)
{
    (void)hf;
    s->projector = DT_PROJ_LINEAR;
    return DT_OK;
}

/* The mean of as many patches a side as leave mm_tokens_per_image. */
static enum dt_status join_gemma3(const struct dt_hf *hf, struct dt_shape *s)
{
    int tokens = 256, side = (int)lround(sqrt(s->positions)), rows;

    DT_TRY(dt_hf_int(hf, "mm_tokens_per_image", DT_LIM_POSITIONS, 256, &tokens));
    rows = (int)lround(sqrt(tokens));
    if (rows * rows != tokens || side % rows != 0 || side / rows > DT_LIM_MERGE)
        return dt_node_error(hf->map, hf->err,
                             "mm_tokens_per_image: %d of %d x %d patches is not supported (whole "
                             "squares of them are)",
                             tokens, side, side);
    s->merge = side / rows;
    s->merge_mean = true;
    s->projector = DT_PROJ_LINEAR;
    s->projector_norm = DT_NORM_RMSNORM;
    s->projector_bias = false;
    return DT_OK;
}

static enum dt_status join_itself(const struct dt_hf *hf, struct dt_shape *s)
{
    (void)hf;
    (void)s;
    return DT_OK;
}

const struct dt_hf_pair dt_hf_pairs[DT_HF_PAIRS] = {
    {"llava", "text_config", NULL, NULL, join_llava},
    {"internvl_chat", "llm_config", NULL, NULL, join_internvl},
    {"paligemma", "text_config", NULL, NULL, join_linear},
    {"gemma3", "text_config", "gemma3_text", "siglip_vision_model", join_gemma3},
    {"qwen2_vl", NULL, "qwen2", "qwen2_vl_vision", join_itself},
    {"qwen2_5_vl", NULL, "qwen2", "qwen2_5_vl_vision", join_itself},
};

const struct dt_hf_pair *dt_hf_pair_of(const char *type)
{
    for (int i = 0; i < DT_HF_PAIRS; i++)
        if (strcmp(dt_hf_pairs[i].type, type) == 0)
            return &dt_hf_pairs[i];
    return NULL;
}

const char *dt_hf_missing(const char *type)
{
    static const struct {
        const char *type, *feature;
    } known[] = {
        {"mamba", "state-space layers"},
        {"mamba2", "state-space layers"},
        {"falcon_mamba", "state-space layers"},
        {"jamba", "state-space layers"},
        {"bamba", "state-space layers"},
        {"zamba", "state-space layers"},
        {"zamba2", "state-space layers"},
        {"nemotron_h", "state-space layers"},
        {"granitemoehybrid", "state-space layers"},
        {"rwkv", "linear recurrences"},
        {"recurrent_gemma", "linear recurrences"},
        {"qwen3_next", "gated linear attention"},
        {"minimax", "linear attention"},
        {"bloom", "ALiBi biases of attention"},
        {"mpt", "ALiBi biases of attention"},
        {"gpt_oss", "attention sinks"},
        {"llama4", "attention in chunks"},
        {"llama4_text", "attention in chunks"},
        {"mllama", "cross-attention to an image"},
        {"t5", "an encoder and a decoder with cross-attention"},
        {"mt5", "an encoder and a decoder with cross-attention"},
        {"bart", "an encoder and a decoder with cross-attention"},
        {"whisper", "an encoder and a decoder with cross-attention"},
        {"bert", "the head of a masked language model"},
        {"roberta", "the head of a masked language model"},
        {"gemma3n", "embeddings of every layer"},
        {"gemma3n_text", "embeddings of every layer"},
        {"swin", "windows that move, and levels of a transformer"},
        {"convnext", "convolutions outside U-Nets"},
        {"blip-2", "a querying transformer between the towers"},
        {"instructblip", "a querying transformer between the towers"},
        {"idefics2", "a resampler between the towers"},
    };

    for (size_t i = 0; i < sizeof(known) / sizeof(known[0]); i++)
        if (strcmp(known[i].type, type) == 0)
            return known[i].feature;
    return NULL;
}
