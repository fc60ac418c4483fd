/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * vision_config of Qwen2-VL and Qwen2.5-VL -> shapes.  Defaults are those of transformers' config classes.
 *
 * Patches are temporal_patch_size frames deep (an image is repeated).  The merger's norm is that of single patches, so
 * here the tower's final norm; its first layer is as wide as what it takes in. */
#include "core/model/hf.h"

#include "base/number.h"

static enum dt_status qwen_vision(const struct dt_hf *hf, int width, struct dt_shape *s)
{
    int frames = 2, channels = 3, merge = 2;

    s->hidden = width;
    DT_TRY(dt_hf_need(hf, "depth", DT_LIM_LAYERS, &s->layers));
    DT_TRY(dt_hf_int(hf, "num_heads", DT_LIM_HEADS, 16, &s->heads));
    DT_TRY(dt_hf_int(hf, "patch_size", DT_LIM_PATCH, 14, &s->patch));
    DT_TRY(dt_hf_int(hf, dt_hf_has(hf, "in_chans") ? "in_chans" : "in_channels", 16, 3, &channels));
    DT_TRY(dt_hf_int(hf, "temporal_patch_size", 16, 2, &frames));
    DT_TRY(dt_hf_int(hf, "spatial_merge_size", DT_LIM_MERGE, 2, &merge));
    s->channels = channels * frames;
    s->patch_bias = false;
    s->arith.norm_eps = 1e-6;
    s->merge = merge;
    s->projector = DT_PROJ_MLP;
    s->projector_hidden = merge * merge * width;
    s->grid_rope = true;
    s->tower_names = DT_TOWER_QWEN;
    return DT_OK;
}

enum dt_status dt_hf_qwen2_vision(const struct dt_hf *hf, struct dt_shape *s)
{
    int width, ratio = 4;

    dt_shape_init(s, DT_SHAPE_ENCODER);
    DT_TRY(dt_hf_need(hf, "embed_dim", DT_LIM_HIDDEN / 4, &width));
    DT_TRY(qwen_vision(hf, width, s));
    DT_TRY(dt_hf_int(hf, "mlp_ratio", 8, 4, &ratio));
    s->ffn = ratio * width;
    return dt_hf_activation(hf, "hidden_act", "quick_gelu", &s->arith.activation);
}

/* fullatt_block_indexes must be the last of every so many layers, as far as there are layers. */
static enum dt_status whole_layers(const struct dt_hf *hf, struct dt_shape *s)
{
    static const char key[] = "fullatt_block_indexes";
    struct dt_node list = dt_hf_get(hf, key);
    int64_t first = 0, layer;
    size_t n = dt_seq_size(list);

    if (dt_node_present(list) && !dt_node_is_seq(list))
        return dt_node_error(list, hf->err, "%s: expected a list", key);
    for (size_t i = 0; i < n; i++) {
        const char *text = dt_node_text(dt_seq_at(list, i));

        if (!text || !dt_number_int(text, &layer) || layer < 0 || layer >= DT_LIM_LAYERS)
            return dt_node_error(dt_seq_at(list, i), hf->err, "%s: expected numbers of layers",
                                 key);
        first = i == 0 ? layer + 1 : first;
        if (layer + 1 != first * (int64_t)(i + 1))
            return dt_node_error(dt_seq_at(list, i), hf->err,
                                 "%s: supported are layers at equal distances, such as 7, 15, 23, "
                                 "31",
                                 key);
    }
    if (!dt_node_present(list)) {
        n = 4;
        first = 8;
        dt_hf_assume(hf, "%s: [7, 15, 23, 31]", key);
    }
    if (n > 0 && first * (int64_t)(n + 1) <= s->layers)
        return dt_node_error(dt_node_present(list) ? list : hf->map, hf->err,
                             "%s: with %d layers it ends early (supported: layers at equal "
                             "distances, here up to %d)",
                             key, s->layers, (int)(s->layers / first * first - 1));
    s->window_every = (int)first;
    return DT_OK;
}

/* Windows of as many whole squares of merged patches as window_size pixels have a side. */
static enum dt_status windows(const struct dt_hf *hf, struct dt_shape *s)
{
    int pixels = 112, side;

    DT_TRY(dt_hf_int(hf, "window_size", 1 << 14, 112, &pixels));
    side = pixels / (s->merge * s->patch) * s->merge;
    if (side == 0)
        return dt_node_error(hf->map, hf->err,
                             "window_size: %d pixels are less than %d x %d merged patches of %d",
                             pixels, s->merge, s->merge, s->patch);
    s->window = side * side;
    return whole_layers(hf, s);
}

enum dt_status dt_hf_qwen25_vision(const struct dt_hf *hf, struct dt_shape *s)
{
    int width;

    dt_shape_init(s, DT_SHAPE_ENCODER);
    s->layernorm = false;
    s->gated = true;
    DT_TRY(dt_hf_need(hf, "hidden_size", DT_LIM_HIDDEN / 4, &width));
    DT_TRY(qwen_vision(hf, width, s));
    DT_TRY(dt_hf_need(hf, "intermediate_size", DT_LIM_FFN, &s->ffn));
    DT_TRY(windows(hf, s));
    return dt_hf_activation(hf, "hidden_act", "silu", &s->arith.activation);
}
