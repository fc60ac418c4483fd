/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Hugging Face configs of vision towers -> shapes.  Defaults are those of transformers' config
 * classes. */
#include "core/model/hf.h"

struct defaults {
    int image, patch;
    double norm_eps;
    const char *activation;
};

static enum dt_status vision_like(const struct dt_hf *hf, const struct defaults *d,
                                  struct dt_shape *s)
{
    int side, image;

    dt_shape_init(s, DT_SHAPE_ENCODER);
    DT_TRY(dt_hf_need(hf, "num_hidden_layers", DT_LIM_LAYERS, &s->layers));
    DT_TRY(dt_hf_need(hf, "hidden_size", DT_LIM_HIDDEN, &s->hidden));
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
    DT_TRY(vision_like(hf, &(struct defaults){224, 16, 1e-12, "gelu"}, s));
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
    DT_TRY(vision_like(hf, &(struct defaults){224, 32, 1e-5, "quick_gelu"}, s));
    s->class_tokens = 1;
    s->class_attends = true;
    s->positions += 1;
    s->pre_norm = s->clip_names = true;
    s->patch_bias = s->final_norm = false;
    dt_hf_assume(hf, "post_layernorm: left out");
    dt_hf_assume(hf, "visual_projection: left out");
    return DT_OK;
}

enum dt_status dt_hf_siglip(const struct dt_hf *hf, struct dt_shape *s)
{
    DT_TRY(vision_like(hf, &(struct defaults){224, 16, 1e-6, "gelu_pytorch_tanh"}, s));
    s->clip_names = true;
    dt_hf_assume(hf, "attention pooling head: left out");
    return DT_OK;
}
