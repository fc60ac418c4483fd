/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Shapes: derived numbers and consistency. */
#include "core/model/shape.h"

#include <string.h>

static enum dt_status need(struct dt_node node, const char *what, const char *key, int value,
                           struct dt_error *err)
{
    if (value > 0)
        return DT_OK;
    return dt_node_error(node, err, "%s: key \"%s\" is missing (a positive integer)", what, key);
}

/* Keys of the map at hand that count only beside others; a 0 that says there is none of it does no harm. */
struct beside {
    const char *key;
    bool counts;
    const char *with;
};

static enum dt_status refuse_idle(struct dt_node map, const struct beside *keys, size_t n,
                                  struct dt_error *err)
{
    for (size_t i = 0; i < n; i++) {
        struct dt_node value = dt_map_get(map, keys[i].key);

        if (!keys[i].counts && dt_node_present(value))
            return dt_node_error(value, err, "%s counts with %s", keys[i].key, keys[i].with);
    }
    return DT_OK;
}

/* Layers as Megatron-LM ran them before flash attention knew nothing of these (block_unfused.c). */
static enum dt_status check_unfused(struct dt_node node, const struct dt_shape *s,
                                    struct dt_error *err)
{
    struct dt_node attention = dt_map_get(node, "attention");
    const char *has = s->n_experts > 0                 ? "experts"
                      : s->window > 0                  ? "a window"
                      : s->kv_lora > 0                 ? "latent attention (kv_lora)"
                      : s->qk_norm || s->qk_norm_whole ? "norms of queries and keys (qk_norm)"
                      : s->norms != 0 && s->norms != 2 ? "other than two norms of a layer (norms)"
                      : s->layer_scale                 ? "scales of layers"
                                                       : NULL;

    if (!s->unfused || !has)
        return DT_OK;
    return dt_node_error(dt_node_present(attention) ? attention : node, err,
                         "attention: unfused is GPT's as it was before flash attention, without "
                         "%s; use flash",
                         has);
}

static enum dt_status check_transformer(struct dt_node node, const char *what, struct dt_shape *s,
                                        struct dt_error *err)
{
    DT_TRY(check_unfused(node, s, err));
    DT_TRY(need(node, what, "layers", s->layers, err));
    DT_TRY(need(node, what, "hidden", s->hidden, err));
    DT_TRY(need(node, what, "ffn", s->ffn, err));
    DT_TRY(need(node, what, "heads", s->heads, err));
    if (s->kv_heads == 0)
        s->kv_heads = s->heads;
    if (s->head_dim == 0 && s->hidden % s->heads != 0)
        return dt_node_error(
            node, err,
            "%s: hidden %d is not a multiple of heads %d; state head_dim or change one of them",
            what, s->hidden, s->heads);
    if (s->head_dim == 0)
        s->head_dim = s->hidden / s->heads;
    if (s->kv_heads > s->heads || s->heads % s->kv_heads != 0)
        return dt_node_error(node, err,
                             "%s: heads %d is not a multiple of kv_heads %d; grouped attention "
                             "gives every key/value head equally many query heads",
                             what, s->heads, s->kv_heads);
    return DT_OK;
}

enum dt_status dt_rope_check(struct dt_node node, const struct dt_rope *r, struct dt_error *err)
{
    if (r->scaling != DT_ROPE_PLAIN && !(r->factor >= 1))
        return dt_node_error(node, err, "rope: scaling %s needs factor, 1 or more",
                             dt_rope_scaling_names[r->scaling]);
    if (r->scaling != DT_ROPE_LLAMA3)
        return DT_OK;
    if (r->original < 1)
        return dt_node_error(node, err,
                             "rope: scaling llama3 needs the original number of positions");
    if (!(r->low_freq > 0 && r->high_freq > r->low_freq))
        return dt_node_error(node, err,
                             "rope: scaling llama3 needs low_freq_factor above 0 and "
                             "high_freq_factor above that");
    return DT_OK;
}

/* Multi-head latent attention. */
static enum dt_status check_latent(struct dt_node node, const struct dt_shape *s,
                                   struct dt_error *err)
{
    if (s->kv_lora == 0) {
        if (s->q_lora > 0 || s->rope_dim > 0 || s->v_dim > 0)
            return dt_node_error(node, err,
                                 "q_lora, rope_dim and v_dim are of latent attention, which needs "
                                 "kv_lora too");
        return DT_OK;
    }
    DT_TRY(need(node, "llm", "v_dim", s->v_dim, err));
    if (s->rope_dim < 1 || s->rope_dim >= s->head_dim)
        return dt_node_error(node, err,
                             "rope_dim: %d of a head's %d elements (head_dim); latent attention "
                             "rotates some of them, not all",
                             s->rope_dim, s->head_dim);
    if (s->kv_heads != s->heads)
        return dt_node_error(node, err, "kv_heads: latent attention has as many as heads, %d",
                             s->heads);
    return DT_OK;
}

/* What says something of experts, if anything does. */
static const char *of_experts(const struct dt_shape *s)
{
    return s->expert_ffn > 0    ? "expert_ffn"
           : s->shared_ffn > 0  ? "shared_ffn"
           : s->shared_gate     ? "shared_gate"
           : s->dense_first > 0 ? "dense_first"
           : s->moe_every > 1   ? "moe_every"
           : s->capacity > 0    ? "expert_capacity"
           : s->imbalance > 1   ? "expert_imbalance"
                                : NULL;
}

static enum dt_status check_llm(struct dt_node node, struct dt_shape *s, struct dt_error *err)
{
    static const char of_dense[] = "experts, of which a dense LLM has none";
    const bool experts = s->n_experts > 0;
    const struct beside keys[] = {
        {"top_k", experts, of_dense},
        {"expert_norm", experts, of_dense},
        {"expert_names", experts, of_dense},
        {"balance_loss", experts || s->arith.balance_loss == 0, of_dense},
        {"window_every", s->window > 0 || s->window_every == 0,
         "window, the tokens that a token attends to"},
        {"rope", s->positions == 0, "positions: 0; those of this LLM are learned"},
    };

    DT_TRY(check_transformer(node, "llm", s, err));
    DT_TRY(need(node, "llm", "vocab", s->vocab, err));
    if (s->modality != DT_MODALITY_TEXT)
        return dt_node_error(node, err,
                             "modality: an LLM works on text tokens; use text or leave it "
                             "out");
    if (s->n_experts > 0 && (s->top_k < 1 || s->top_k > s->n_experts))
        return dt_node_error(node, err, "top_k: %d of %d experts per token; use 1 to %d", s->top_k,
                             s->n_experts, s->n_experts);
    if (s->n_experts == 0 && of_experts(s))
        return dt_node_error(node, err,
                             "%s: a dense LLM has no experts; state experts and top_k too",
                             of_experts(s));
    DT_TRY(refuse_idle(node, keys, sizeof(keys) / sizeof(keys[0]), err));
    if (s->n_experts > 0 && s->shared_gate && s->shared_ffn == 0)
        return dt_node_error(node, err,
                             "shared_gate: it is of experts that all tokens share; state "
                             "shared_ffn, their width");
    if (s->capacity > 0 && s->imbalance > 1)
        return dt_node_error(node, err,
                             "expert_imbalance: with expert_capacity every expert has the rows of "
                             "its capacity; state one of the two");
    if (s->n_experts == 0)
        s->top_k = 0;
    return check_latent(node, s, err);
}

/* An encoder of [frames][mel_bins], one value each. */
static enum dt_status check_spectrogram(struct dt_node node, const struct dt_shape *s,
                                        struct dt_error *err)
{
    int across = s->patch > 0 ? s->mel_bins / s->patch : 0, positions;

    if (s->modality != DT_MODALITY_AUDIO)
        return dt_node_error(node, err,
                             "mel_bins: spectrograms are of sound; state modality: "
                             "audio, or leave mel_bins out");
    if (s->frames_per_s > 0)
        return dt_node_error(node, err,
                             "mel_bins and frames_per_s: patches of a spectrogram are counted, not "
                             "stated; leave one of the two out");
    if (s->mel_bins % s->patch != 0)
        return dt_node_error(node, err, "mel_bins: %d filters are no multiple of patch %d",
                             s->mel_bins, s->patch);
    if (s->channels != 1)
        return dt_node_error(node, err, "channels: a spectrogram has 1, not %d", s->channels);
    if (s->resize > 0 || s->merge > 1)
        return dt_node_error(node, err,
                             "%s: it is of images; a spectrogram has the length of its clip",
                             s->resize > 0 ? "resize" : "merge");
    positions = s->positions - s->class_tokens;
    if (s->positions > 0 && (positions < across || positions % across != 0))
        return dt_node_error(node, err,
                             "positions: %d behind %d class tokens are no multiple of the %d "
                             "patches of a moment (mel_bins / patch)",
                             positions, s->class_tokens, across);
    return DT_OK;
}

static enum dt_status check_encoder(struct dt_node node, struct dt_shape *s, struct dt_error *err)
{
    const struct beside keys[] = {
        {"window_every", s->window > 0 || s->window_every == 0,
         "window, the patches that a patch attends to"},
        {"merge_by", s->merge > 1, "merge, the side of the squares of patches that become one row"},
        {"frames_per_s", s->modality == DT_MODALITY_AUDIO, "modality: audio"},
        {"resize", s->modality == DT_MODALITY_IMAGE || s->resize == 0 || s->mel_bins > 0,
         "modality: image"},
    };

    DT_TRY(check_transformer(node, "encoder", s, err));
    DT_TRY(need(node, "encoder", "patch", s->patch, err));
    DT_TRY(refuse_idle(node, keys, sizeof(keys) / sizeof(keys[0]), err));
    if (s->grid_rope && (s->positions > 0 || s->modality != DT_MODALITY_IMAGE))
        return dt_node_error(node, err,
                             s->positions > 0
                                 ? "grid_rotary: rotary positions stand instead of learned ones; "
                                   "leave positions out"
                                 : "grid_rotary: it is of patches of an image");
    if (s->grid_rope && s->head_dim % 4 != 0)
        return dt_node_error(node, err,
                             "grid_rotary: half of a head turns by the row, half by the column, in "
                             "pairs; 4 does not divide head_dim %d",
                             s->head_dim);
    if (s->mel_bins > 0)
        return check_spectrogram(node, s, err);
    if (s->modality == DT_MODALITY_AUDIO && s->frames_per_s <= 0)
        return dt_node_error(node, err,
                             "encoder: audio needs mel_bins, the filters of a spectrogram (128), "
                             "or frames_per_s, the tokens per second of sound (BEATs: 49.6)");
    if (s->merge > 1 && s->modality != DT_MODALITY_IMAGE)
        return dt_node_error(node, err,
                             "merge: it joins squares of patches of an image; frames of sound "
                             "have no second side (lower frames_per_s instead)");
    if (s->merge > 1 && s->projector == DT_PROJ_NONE)
        return dt_node_error(node, err,
                             "merge: the projector takes the merged rows in; state projector: "
                             "linear or mlp");
    return DT_OK;
}

static enum dt_status check_level(struct dt_node node, struct dt_shape_unet *u, int l,
                                  struct dt_error *err)
{
    int c = u->channels[l];

    if (u->norm_groups > 0 && c % u->norm_groups != 0)
        return dt_node_error(
            node, err, "unet: %d channels at level %d are not a multiple of %d groups of a norm", c,
            l, u->norm_groups);
    if (u->depth[l] == 0)
        u->depth[l] = 1;
    if (u->heads[l] == 0) {
        int d = u->head_dim > 0 ? u->head_dim : 64; /* Stable Diffusion 2.1's (FACTS, derived) */

        if (c % d != 0 && u->attention[l])
            return dt_node_error(
                node, err,
                "unet: %d channels at level %d are not a multiple of head_dim %d; state heads", c,
                l, d);
        u->heads[l] = c >= d ? c / d : 1;
    }
    if (c % u->heads[l] != 0)
        return dt_node_error(node, err,
                             "unet: %d channels at level %d are not a multiple of heads %d", c, l,
                             u->heads[l]);
    return DT_OK;
}

static enum dt_status check_unet(struct dt_node node, struct dt_shape *s, struct dt_error *err)
{
    struct dt_shape_unet *u = &s->unet;
    const struct beside keys[] = {
        {"class_layers", u->class_dim > 0, "class_dim, the width of class embeddings"},
        {"frames_per_s", s->modality == DT_MODALITY_AUDIO, "modality: audio"},
    };

    DT_TRY(refuse_idle(node, keys, sizeof(keys) / sizeof(keys[0]), err));
    if (u->n_levels == 0)
        return dt_node_error(node, err,
                             "unet: key \"channels\" is missing (a list, one count per "
                             "level)");
    for (int l = 0; l < u->n_levels; l++)
        DT_TRY(check_level(node, u, l, err));
    if (u->time_dim == 0)
        u->time_dim = 4 * u->channels[0];
    if (u->context_len > 0)
        DT_TRY(need(node, "unet", "context_dim", u->context_dim, err));
    if (u->class_concat && u->class_dim == 0)
        return dt_node_error(node, err, "unet: class_concat needs class_dim");
    if (s->modality == DT_MODALITY_TEXT)
        return dt_node_error(node, err, "modality: a U-Net generates image or audio");
    if (s->modality == DT_MODALITY_AUDIO && s->frames_per_s <= 0)
        return dt_node_error(node, err,
                             "unet: audio needs frames_per_s, the latent pixels per "
                             "second of sound (AudioLDM: 400)");
    if (s->modality == DT_MODALITY_IMAGE && s->resize % s->latent_scale != 0)
        return dt_node_error(node, err, "resize: %d pixels are not a multiple of latent_scale %d",
                             s->resize, s->latent_scale);
    if (dt_shape_context_tokens(s) == 0 && s->projector != DT_PROJ_NONE)
        return dt_node_error(node, err,
                             "unet: nothing takes in the LLM's conditioning; state "
                             "context_len and context_dim, or class_dim");
    return DT_OK;
}

enum dt_status dt_shape_check(struct dt_node node, struct dt_shape *s, struct dt_error *err)
{
    switch (s->kind) {
    case DT_SHAPE_LLM:
        return check_llm(node, s, err);
    case DT_SHAPE_ENCODER:
        return check_encoder(node, s, err);
    case DT_SHAPE_UNET:
        return check_unet(node, s, err);
    case DT_SHAPE_NONE:
        break;
    }
    return dt_node_error(node, err,
                         "a module needs \"preset\", \"hf\" or \"kind\" (llm, encoder, unet)");
}
