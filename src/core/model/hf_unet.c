/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * diffusers UNet2DConditionModel -> shape.  Its `attention_head_dim` is the number of heads when
 * `num_attention_heads` is null (a historical misnomer of the library). */
#include "core/model/hf.h"

#include "base/number.h"

#include <stdio.h>
#include <string.h>

/* One integer for every level, or a list of one per level. */
static enum dt_status levels(const struct dt_hf *hf, const char *key, int n, int max, int *out)
{
    struct dt_node list = dt_map_get(hf->map, key);
    bool seq = dt_node_is_seq(list);

    if (seq && (int)dt_seq_size(list) != n)
        return dt_node_error(list, hf->err, "%s: %zu values for %d levels", key, dt_seq_size(list),
                             n);
    for (int i = 0; i < n; i++) {
        struct dt_node v = seq ? dt_seq_at(list, (size_t)i) : list;
        const char *text = dt_node_text(v);
        int64_t x = 0;

        if (!text || !dt_number_int(text, &x) || x < 1 || x > max)
            return dt_node_error(
                v, hf->err, "%s: expected an integer from 1 to %d or a list of them", key, max);
        out[i] = (int)x;
    }
    return DT_OK;
}

static enum dt_status channels(const struct dt_hf *hf, struct dt_shape_unet *u)
{
    struct dt_node list = dt_map_get(hf->map, "block_out_channels");
    size_t n = dt_seq_size(list);

    if (n < 1 || n > DT_MAX_LEVELS)
        return dt_node_error(dt_node_present(list) ? list : hf->map, hf->err,
                             "block_out_channels: expected a list of 1 to %d channel counts",
                             DT_MAX_LEVELS);
    u->n_levels = (int)n;
    return levels(hf, "block_out_channels", u->n_levels, DT_LIM_CHANNELS, u->channels);
}

/* Levels with cross-attention, from the block types on the way `down` or (mirrored) up. */
static enum dt_status block_types(const struct dt_hf *hf, const char *key, const char *with,
                                  const char *without, bool mirrored, int n, int *out)
{
    struct dt_node list = dt_map_get(hf->map, key);

    if (dt_seq_size(list) != (size_t)n)
        return dt_node_error(dt_node_present(list) ? list : hf->map, hf->err,
                             "%s: expected a list of %d block types", key, n);
    for (int i = 0; i < n; i++) {
        struct dt_node v = dt_seq_at(list, (size_t)i);
        const char *text = dt_node_text(v);
        int level = mirrored ? n - 1 - i : i;

        if (!text || (strcmp(text, with) != 0 && strcmp(text, without) != 0))
            return dt_node_error(v, hf->err,
                                 "%s: block type \"%.60s\" is not supported (supported: %s, "
                                 "%s)",
                                 key, text ? text : "?", with, without);
        out[level] = strcmp(text, with) == 0;
    }
    return DT_OK;
}

static enum dt_status attention_levels(const struct dt_hf *hf, struct dt_shape_unet *u)
{
    struct dt_node mid = dt_map_get(hf->map, "mid_block_type");
    int up[DT_MAX_LEVELS] = {0};

    DT_TRY(block_types(hf, "down_block_types", "CrossAttnDownBlock2D", "DownBlock2D", false,
                       u->n_levels, u->attention));
    DT_TRY(block_types(hf, "up_block_types", "CrossAttnUpBlock2D", "UpBlock2D", true, u->n_levels,
                       up));
    for (int l = 0; l < u->n_levels; l++)
        if (up[l] != u->attention[l])
            return dt_node_error(dt_map_get(hf->map, "up_block_types"), hf->err,
                                 "up_block_types: must mirror down_block_types (level %d differs)",
                                 l);
    if (dt_hf_has(hf, "mid_block_type") &&
        (!dt_node_text(mid) || strcmp(dt_node_text(mid), "UNetMidBlock2DCrossAttn") != 0))
        return dt_node_error(mid, hf->err,
                             "mid_block_type: only UNetMidBlock2DCrossAttn is supported");
    return DT_OK;
}

static enum dt_status heads(const struct dt_hf *hf, struct dt_shape_unet *u)
{
    if (dt_hf_has(hf, "num_attention_heads"))
        return levels(hf, "num_attention_heads", u->n_levels, DT_LIM_HEADS, u->heads);
    if (dt_hf_has(hf, "attention_head_dim"))
        return levels(hf, "attention_head_dim", u->n_levels, DT_LIM_HEADS, u->heads);
    for (int l = 0; l < u->n_levels; l++)
        u->heads[l] = 8;
    dt_hf_assume(hf, "attention_head_dim: 8");
    return DT_OK;
}

/* Pooled conditions next to the time embedding: SDXL's text_time, AudioLDM's simple_projection. */
static enum dt_status class_embedding(const struct dt_hf *hf, struct dt_shape_unet *u)
{
    struct dt_node extra = dt_map_get(hf->map, "addition_embed_type");
    struct dt_node cls = dt_map_get(hf->map, "class_embed_type");
    const char *words;

    if (dt_hf_has(hf, "addition_embed_type")) {
        words = dt_node_text(extra);
        if (!words || strcmp(words, "text_time") != 0)
            return dt_node_error(extra, hf->err,
                                 "addition_embed_type: only text_time is supported");
        u->class_layers = 2;
        return dt_hf_need(hf, "projection_class_embeddings_input_dim", DT_LIM_HIDDEN,
                          &u->class_dim);
    }
    if (!dt_hf_has(hf, "class_embed_type"))
        return DT_OK;
    words = dt_node_text(cls);
    if (!words || strcmp(words, "simple_projection") != 0)
        return dt_node_error(cls, hf->err, "class_embed_type: only simple_projection is supported");
    u->class_layers = 1;
    DT_TRY(dt_hf_need(hf, "projection_class_embeddings_input_dim", DT_LIM_HIDDEN, &u->class_dim));
    return dt_hf_bool(hf, "class_embeddings_concat", false, &u->class_concat);
}

enum dt_status dt_hf_unet(const struct dt_hf *hf, struct dt_shape *s)
{
    struct dt_shape_unet *u = &s->unet;
    bool cosine_first = true;

    dt_shape_init(s, DT_SHAPE_UNET);
    DT_TRY(dt_hf_only(hf, "only_cross_attention", false, "layers have self- and cross-attention"));
    DT_TRY(dt_hf_only(hf, "dual_cross_attention", false, "one transformer per place"));
    DT_TRY(channels(hf, u));
    DT_TRY(attention_levels(hf, u));
    DT_TRY(heads(hf, u));
    DT_TRY(dt_hf_int(hf, "layers_per_block", 16, 2, &u->res_blocks));
    DT_TRY(dt_hf_int(hf, "in_channels", DT_LIM_CHANNELS, 4, &u->in_channels));
    DT_TRY(dt_hf_int(hf, "out_channels", DT_LIM_CHANNELS, 4, &u->out_channels));
    DT_TRY(dt_hf_int(hf, "cross_attention_dim", DT_LIM_HIDDEN, 1280, &u->context_dim));
    DT_TRY(dt_hf_int(hf, "norm_num_groups", DT_LIM_CHANNELS, 32, &u->norm_groups));
    DT_TRY(dt_hf_double(hf, "norm_eps", DT_NORM_EPS_MIN, 1, 1e-5, &s->arith.norm_eps));
    DT_TRY(dt_hf_bool(hf, "flip_sin_to_cos", true, &cosine_first));
    s->arith.sine_first = !cosine_first;
    DT_TRY(dt_hf_double(hf, "freq_shift", 0, 1, 0, &s->arith.freq_shift));
    if (dt_hf_has(hf, "transformer_layers_per_block"))
        DT_TRY(levels(hf, "transformer_layers_per_block", u->n_levels, 64, u->depth));
    if (dt_hf_has(hf, "time_embedding_dim"))
        DT_TRY(dt_hf_need(hf, "time_embedding_dim", DT_LIM_HIDDEN, &u->time_dim));
    /* not in the config: CLIP's text length, and the VAE's factor (both Stable Diffusion's,
     * published) */
    u->context_len = 77;
    dt_hf_assume(hf, "context_len: 77");
    dt_hf_assume(hf, "latent_scale: 8");
    return class_embedding(hf, u);
}
