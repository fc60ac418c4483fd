/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Hugging Face configs of vision towers -> shapes.  Defaults are those of transformers' config
 * classes. */
#include "core/model/hf.h"

#include <string.h>

struct defaults {
    int image, patch;
    double norm_eps;
    const char *activation;
    bool ratio; /* the MLP's width is not stated, but how much wider than the layer it is */
};

static enum dt_status vision_like(const struct dt_hf *hf, const struct defaults *d,
                                  struct dt_shape *s)
{
    int side, image;

    dt_shape_init(s, DT_SHAPE_ENCODER);
    DT_TRY(dt_hf_need(hf, "num_hidden_layers", DT_LIM_LAYERS, &s->layers));
    DT_TRY(dt_hf_need(hf, "hidden_size", DT_LIM_HIDDEN, &s->hidden));
    if (!d->ratio)
        DT_TRY(dt_hf_need(hf, "intermediate_size", DT_LIM_FFN, &s->ffn));
    DT_TRY(dt_hf_need(hf, "num_attention_heads", DT_LIM_HEADS, &s->heads));
    DT_TRY(dt_hf_int(hf, "image_size", 4096, d->image, &image));
    DT_TRY(dt_hf_int(hf, "patch_size", DT_LIM_PATCH, d->patch, &s->patch));
    DT_TRY(dt_hf_int(hf, "num_channels", DT_LIM_PATCH, 3, &s->channels));
    DT_TRY(dt_hf_double(hf, "layer_norm_eps", DT_NORM_EPS_MIN, 1, d->norm_eps, &s->arith.norm_eps));
    DT_TRY(dt_hf_activation(hf, "hidden_act", d->activation, &s->arith.activation));
    side = image / s->patch;
    if (side < 1)
        return dt_node_error(hf->map, hf->err,
                             "%s config: patch_size %d is larger than image_size %d", hf->type,
                             s->patch, image);
    s->positions = side * side;
    return DT_OK;
}

enum dt_status dt_hf_vit(const struct dt_hf *hf, struct dt_shape *s)
{
    DT_TRY(dt_hf_only(hf, "qkv_bias", true, "ViT layers are taken with biases"));
    DT_TRY(vision_like(hf, &(struct defaults){224, 16, 1e-12, "gelu", false}, s));
    s->class_tokens = 1;
    s->class_attends = true;
    s->positions += 1;
    dt_hf_assume(hf, "pooler: left out");
    return DT_OK;
}

/* Features are those of the patches behind the last layer, which post_layernorm does not touch: it
 * is the pooled class token's. */
enum dt_status dt_hf_clip(const struct dt_hf *hf, struct dt_shape *s)
{
    DT_TRY(vision_like(hf, &(struct defaults){224, 32, 1e-5, "quick_gelu", false}, s));
    s->class_tokens = 1;
    s->class_attends = true;
    s->positions += 1;
    s->pre_norm = true;
    s->tower_names = DT_TOWER_CLIP;
    s->patch_bias = s->final_norm = false;
    dt_hf_assume(hf, "post_layernorm: left out");
    dt_hf_assume(hf, "visual_projection: left out");
    return DT_OK;
}

enum dt_status dt_hf_siglip(const struct dt_hf *hf, struct dt_shape *s)
{
    DT_TRY(vision_like(hf, &(struct defaults){224, 16, 1e-6, "gelu_pytorch_tanh", false}, s));
    s->tower_names = DT_TOWER_CLIP;
    dt_hf_assume(hf, "attention pooling head: left out");
    return DT_OK;
}

/* Its mask token, of training alone, is a parameter beside the class token's. */
enum dt_status dt_hf_dinov2(const struct dt_hf *hf, struct dt_shape *s)
{
    int ratio = 4;

    DT_TRY(vision_like(hf, &(struct defaults){224, 14, 1e-6, "gelu", true}, s));
    DT_TRY(dt_hf_only(hf, "qkv_bias", true, "DINOv2 layers are taken with biases"));
    DT_TRY(dt_hf_int(hf, "mlp_ratio", 8, 4, &ratio));
    DT_TRY(dt_hf_bool(hf, "use_swiglu_ffn", false, &s->gated));
    s->ffn = ratio * s->hidden;
    if (s->gated) { /* two thirds, in whole eights */
        s->ffn = (2 * s->ffn / 3 + 7) / 8 * 8;
        s->arith.activation = DT_ACTIVATION_SILU;
    }
    s->class_tokens = 2;
    s->class_attends = true;
    s->positions += 1;
    s->layer_scale = true;
    return DT_OK;
}

enum dt_status dt_hf_intern_vit(const struct dt_hf *hf, struct dt_shape *s)
{
    char norm[32] = "rms_norm";
    bool bias = false;

    DT_TRY(vision_like(hf, &(struct defaults){224, 14, 1e-6, "gelu", false}, s));
    DT_TRY(dt_hf_bool(hf, "qkv_bias", false, &bias));
    DT_TRY(dt_hf_bool(hf, "qk_normalization", true, &s->qk_norm_whole));
    if (dt_hf_has(hf, "norm_type"))
        DT_TRY(dt_get_string(hf->map, "norm_type", norm, sizeof(norm), hf->err));
    if (strcmp(norm, "rms_norm") != 0 && strcmp(norm, "layer_norm") != 0)
        return dt_node_error(dt_map_get(hf->map, "norm_type"), hf->err,
                             "norm_type: \"%s\" is not supported (supported: rms_norm, layer_norm)",
                             norm);
    s->no_qkv_bias = !bias;
    s->layernorm = norm[0] == 'l';
    s->class_tokens = 1;
    s->class_attends = true;
    s->positions += 1;
    s->final_norm = false;
    s->layer_scale = true;
    return DT_OK;
}
