/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * The keys of models and of module maps (disttrain-job(5)): a table for each kind of module (U-Nets: shape_keys_unet.c). */
#include "core/model/shape_keys.h"

#include "core/model/samples_sound.h"

#include <string.h>

const char *const dt_shape_kind_words[] = {"llm", "encoder", "unet", NULL};
const char *const dt_shape_part_words[] = {"text", "vision",
                                           NULL}; /* of dt_hf_part, from the first on */
const char *const dt_shape_modality_words[] = {"text", "image", "audio", NULL};
static const char *const norm_words[] = {"rmsnorm", "layernorm", NULL};  /* of layernorm */
static const char *const attention_words[] = {"flash", "unfused", NULL}; /* of unfused */
const char *const dt_shape_projector_words[] = {"none", "linear", "mlp", NULL};
const char *const dt_shape_projector_norm_words[] = {"none", "layernorm", "rmsnorm", NULL};
static const char *const merge_words[] = {"concatenate", "mean", NULL};     /* of merge_mean */
static const char *const names_words[] = {"vit", "clip", "qwen2-vl", NULL}; /* of tower_names */
static const char *const weight_words[] = {"sum", "none", NULL};            /* of top_k_raw */
static const char *const expert_words[] = {"qwen", "mixtral", NULL};        /* of mixtral_names */

/* LLM = Llama habits, encoder = ViT habits, U-Net = Stable Diffusion habits. */
const struct dt_shape dt_shape_defaults[] = {
    [DT_SHAPE_LLM] = {.kind = DT_SHAPE_LLM,
                      .role = DT_ROLE_LLM,
                      .modality = DT_MODALITY_TEXT,
                      .projector = DT_PROJ_MLP,
                      .projector_bias = true,
                      .merge = 1,
                      .latent_scale = 8,
                      .moe_every = 1,
                      .imbalance = 1,
                      .arith = {.balance_loss = DT_BALANCE_LOSS},
                      .norms = 2,
                      .gated = true},
    [DT_SHAPE_ENCODER] = {.kind = DT_SHAPE_ENCODER,
                          .role = DT_ROLE_ENCODER,
                          .modality = DT_MODALITY_IMAGE,
                          .projector = DT_PROJ_MLP,
                          .projector_bias = true,
                          .merge = 1,
                          .latent_scale = 8,
                          .layernorm = true,
                          .bias = true,
                          .patch_bias = true,
                          .final_norm = true,
                          .channels = 3},
    [DT_SHAPE_UNET] =
        {.kind = DT_SHAPE_UNET,
         .role = DT_ROLE_GENERATOR,
         .modality = DT_MODALITY_IMAGE,
         .projector = DT_PROJ_MLP,
         .projector_bias = true,
         .merge = 1,
         .latent_scale = 8,
         .unet = {.in_channels = 4, .out_channels = 4, .res_blocks = 2, .class_layers = 1}},
};

/* ---- values with a form of their own ---- */

/* What says where the other keys come from is read before them. */
enum dt_status dt_shape_read_before(struct dt_node map, const struct dt_key *key, void *into,
                                    struct dt_error *err)
{
    (void)map;
    (void)key;
    (void)into;
    (void)err;
    return DT_OK;
}

static enum dt_status read_seqpar(struct dt_node map, const struct dt_key *key, void *into,
                                  struct dt_error *err)
{
    struct dt_shape *s = into;
    bool seqpar = !s->no_seqpar;

    DT_TRY(dt_get_bool(map, key->name, &seqpar, err));
    s->no_seqpar = !seqpar;
    return DT_OK;
}

/* The first name, the habit, is what is not stated. */
static enum dt_status read_activation(struct dt_node map, const struct dt_key *key, void *into,
                                      struct dt_error *err)
{
    struct dt_shape *s = into;
    int activation = (int)s->arith.activation - 1;

    DT_TRY(dt_get_enum(map, key->name, key->words, &activation, err));
    s->arith.activation = (enum dt_block_activation)(activation + 1);
    return DT_OK;
}

static enum dt_status read_norms(struct dt_node map, const struct dt_key *key, void *into,
                                 struct dt_error *err)
{
    struct dt_shape *s = into;
    int norms = s->norms;

    DT_TRY(dt_get_i32(map, key->name, 1, 4, &norms, err));
    if (norms == 3)
        return dt_node_error(dt_map_get(map, key->name), err,
                             "norms: 2 (before attention and before the MLP), 4 (behind them too) "
                             "or 1 (one for both)");
    s->norms = norms;
    return DT_OK;
}

/* The first of any scaling, the others of llama3. */
static const char *const of_scaling[] = {"factor", "low_freq_factor", "high_freq_factor",
                                         "original_positions"};

static enum dt_status read_rope(struct dt_node map, const struct dt_key *key, void *into,
                                struct dt_error *err)
{
    struct dt_node n = dt_map_get(map, key->name);
    struct dt_shape *s = into;

    DT_TRY(dt_keys_read(n, key->name, key->keys, &s->arith.rope, err));
    for (size_t i = 0; i < sizeof(of_scaling) / sizeof(of_scaling[0]); i++) {
        struct dt_node value = dt_map_get(n, of_scaling[i]);
        bool counts = i == 0 ? s->arith.rope.scaling != DT_ROPE_PLAIN
                             : s->arith.rope.scaling == DT_ROPE_LLAMA3;

        if (!counts && dt_node_present(value))
            return dt_node_error(value, err, "%s counts with scaling: %s; the scaling is %s",
                                 of_scaling[i], i == 0 ? "linear or llama3" : "llama3",
                                 dt_rope_scaling_names[s->arith.rope.scaling]);
    }
    return dt_rope_check(n, &s->arith.rope, err);
}

/* ---- the rows ---- */

#define SIZE_ROWS                                                                                  \
    {.name = "layers",                                                                             \
     .type = DT_KEY_INTEGER,                                                                       \
     DT_KEY_INTO(struct dt_shape, layers),                                                         \
     .min = 1,                                                                                     \
     .max = DT_LIM_LAYERS,                                                                         \
     .needed = "32",                                                                               \
     .help = "transformer layers"},                                                                \
        {.name = "hidden",                                                                         \
         .type = DT_KEY_INTEGER,                                                                   \
         DT_KEY_INTO(struct dt_shape, hidden),                                                     \
         .min = 1,                                                                                 \
         .max = DT_LIM_HIDDEN,                                                                     \
         .needed = "4096",                                                                         \
         .help = "width of the residual stream"},                                                  \
        {.name = "ffn",                                                                            \
         .type = DT_KEY_INTEGER,                                                                   \
         DT_KEY_INTO(struct dt_shape, ffn),                                                        \
         .min = 1,                                                                                 \
         .max = DT_LIM_FFN,                                                                        \
         .needed = "11008",                                                                        \
         .help = "width inside an MLP"},                                                           \
        {.name = "heads",                                                                          \
         .type = DT_KEY_INTEGER,                                                                   \
         DT_KEY_INTO(struct dt_shape, heads),                                                      \
         .min = 1,                                                                                 \
         .max = DT_LIM_HEADS,                                                                      \
         .needed = "32",                                                                           \
         .help = "attention heads"},                                                               \
        {.name = "kv_heads",                                                                       \
         .type = DT_KEY_INTEGER,                                                                   \
         DT_KEY_INTO(struct dt_shape, kv_heads),                                                   \
         .min = 1,                                                                                 \
         .max = DT_LIM_HEADS,                                                                      \
         .fallback = "heads",                                                                      \
         .help = "heads of key and value"},                                                        \
    {                                                                                              \
        .name = "head_dim", .type = DT_KEY_INTEGER, DT_KEY_INTO(struct dt_shape, head_dim),        \
        .min = 1, .max = DT_LIM_HEADS, .fallback = "hidden / heads", .help = "width of a head"     \
    }
#define POSITION_ROW                                                                               \
    {                                                                                              \
        .name = "positions", .type = DT_KEY_INTEGER, DT_KEY_INTO(struct dt_shape, positions),      \
        .min = 0, .max = DT_LIM_POSITIONS,                                                         \
        .help = "learned positions; 0: rotary in an LLM, none in an encoder"                       \
    }
#define FLAG_ROWS                                                                                  \
    {.name = "gated",                                                                              \
     .type = DT_KEY_BOOL,                                                                          \
     DT_KEY_INTO(struct dt_shape, gated),                                                          \
     .help = "gated MLP"},                                                                         \
        {.name = "bias",                                                                           \
         .type = DT_KEY_BOOL,                                                                      \
         DT_KEY_INTO(struct dt_shape, bias),                                                       \
         .help = "biases everywhere"},                                                             \
        {.name = "qkv_bias",                                                                       \
         .type = DT_KEY_BOOL,                                                                      \
         DT_KEY_INTO(struct dt_shape, qkv_bias),                                                   \
         .help = "biases on query, key and value"},                                                \
        {.name = "qk_norm",                                                                        \
         .type = DT_KEY_BOOL,                                                                      \
         DT_KEY_INTO(struct dt_shape, qk_norm),                                                    \
         .help = "norms of query and key"},                                                        \
    {                                                                                              \
        .name = "norm", .type = DT_KEY_WORD, DT_KEY_INTO(struct dt_shape, layernorm),              \
        .words = norm_words, .help = "kind of the norms"                                           \
    }
#define WINDOW_ROWS(MEANING)                                                                       \
    {.name = "window",                                                                             \
     .type = DT_KEY_INTEGER,                                                                       \
     DT_KEY_INTO(struct dt_shape, window),                                                         \
     .min = 0,                                                                                     \
     .max = DT_LIM_POSITIONS,                                                                      \
     .help = MEANING},                                                                             \
    {                                                                                              \
        .name = "window_every", .type = DT_KEY_INTEGER,                                            \
        DT_KEY_INTO(struct dt_shape, window_every), .min = 0, .max = DT_LIM_LAYERS,                \
        .help = "every so many layers one attends to all; 0: none"                                 \
    }
#define ATTENTION_ROWS                                                                             \
    {.name = "attention",                                                                          \
     .type = DT_KEY_WORD,                                                                          \
     DT_KEY_INTO(struct dt_shape, unfused),                                                        \
     .words = attention_words,                                                                     \
     .help = "whether scores pass through memory"},                                                \
    {                                                                                              \
        .name = "sequence_parallel", .type = DT_KEY_BOOL, .read = read_seqpar, .fallback = "true", \
        .help = "tensor-parallel ranks share norms and residuals"                                  \
    }
#define ARITHMETIC_ROWS(eps, habit)                                                                \
    {.name = "norm_eps",                                                                           \
     .type = DT_KEY_NUMBER,                                                                        \
     DT_KEY_INTO(struct dt_shape, arith.norm_eps),                                                 \
     .min = DT_NORM_EPS_MIN,                                                                       \
     .max = 1,                                                                                     \
     .fallback = eps,                                                                              \
     .help = "added to the variance in every norm"},                                               \
        {.name = "activation",                                                                     \
         .type = DT_KEY_WORD,                                                                      \
         .words = dt_block_activation_names + 1,                                                   \
         .read = read_activation,                                                                  \
         .fallback = habit,                                                                        \
         .help = "activation function of the MLPs"},                                               \
        {.name = "attention_scale",                                                                \
         .type = DT_KEY_NUMBER,                                                                    \
         DT_KEY_INTO(struct dt_shape, arith.attention_scale),                                      \
         .min = 1e-6,                                                                              \
         .max = 1e6,                                                                               \
         .fallback = "1 / sqrt(head_dim)",                                                         \
         .help = "factor of the scores"},                                                          \
    {                                                                                              \
        .name = "attention_scale_by_layer", .type = DT_KEY_BOOL,                                   \
        DT_KEY_INTO(struct dt_shape, arith.scale_by_layer),                                        \
        .help = "divide that by the layer's number, from 1"                                        \
    }

const struct dt_key dt_shape_hf_keys[] = {
    {.name = "config",
     .type = DT_KEY_OWN,
     .form = "path of a config.json",
     .file = DT_KEY_FILE,
     .needed = "config.json",
     .help = "the configuration"},
    {.name = "ignore",
     .type = DT_KEY_OWN,
     .form = "list of keys",
     .fallback = "none",
     .help = "keys taken as absent"},
    {.name = "part",
     .type = DT_KEY_WORD,
     .words = dt_shape_part_words,
     .read = dt_shape_read_before,
     .fallback = "the whole; a config with both needs it in a module",
     .help = "of a configuration with an LLM and a vision tower, one of them"},
    {.name = NULL},
};
static const struct dt_key rope_keys[] = {
    {.name = "theta",
     .type = DT_KEY_NUMBER,
     DT_KEY_INTO(struct dt_rope, theta),
     .min = DT_ROPE_THETA_MIN,
     .max = DT_ROPE_THETA_MAX,
     .fallback = "10000",
     .help = "base of the frequencies"},
    {.name = "scaling",
     .type = DT_KEY_WORD,
     DT_KEY_INTO(struct dt_rope, scaling),
     .words = dt_rope_scaling_names,
     .help = "of frequencies, for longer texts"},
    {.name = "factor",
     .type = DT_KEY_NUMBER,
     DT_KEY_INTO(struct dt_rope, factor),
     .min = 1,
     .max = DT_ROPE_FACTOR_MAX,
     .fallback = "none; a scaling needs it",
     .help = "by which frequencies are divided"},
    {.name = "low_freq_factor",
     .type = DT_KEY_NUMBER,
     DT_KEY_INTO(struct dt_rope, low_freq),
     .min = 0,
     .max = DT_ROPE_FACTOR_MAX,
     .fallback = "none; llama3 needs it",
     .help = "of llama3: fewer rotations are divided"},
    {.name = "high_freq_factor",
     .type = DT_KEY_NUMBER,
     DT_KEY_INTO(struct dt_rope, high_freq),
     .min = 0,
     .max = DT_ROPE_FACTOR_MAX,
     .fallback = "none; llama3 needs it",
     .help = "of llama3: more rotations stay"},
    {.name = "original_positions",
     .type = DT_KEY_INTEGER,
     DT_KEY_INTO(struct dt_rope, original),
     .min = 1,
     .max = DT_LIM_POSITIONS,
     .fallback = "none; llama3 needs it",
     .help = "of llama3: positions trained on"},
    {.name = NULL},
};
static const struct dt_key llm_keys[] = {
    DT_SHAPE_COMMON_ROWS,
    SIZE_ROWS,
    {.name = "vocab",
     .type = DT_KEY_INTEGER,
     DT_KEY_INTO(struct dt_shape, vocab),
     .min = 1,
     .max = DT_LIM_VOCAB,
     .needed = "32000",
     .help = "tokens of the vocabulary"},
    POSITION_ROW,
    {.name = "experts",
     .type = DT_KEY_INTEGER,
     DT_KEY_INTO(struct dt_shape, n_experts),
     .min = 0,
     .max = DT_LIM_EXPERTS,
     .help = "experts of a layer; 0: dense"},
    {.name = "top_k",
     .type = DT_KEY_INTEGER,
     DT_KEY_INTO(struct dt_shape, top_k),
     .min = 1,
     .max = DT_LIM_EXPERTS,
     .fallback = "none; experts need it",
     .help = "experts per token"},
    {.name = "expert_ffn",
     .type = DT_KEY_INTEGER,
     DT_KEY_INTO(struct dt_shape, expert_ffn),
     .min = 1,
     .max = DT_LIM_FFN,
     .fallback = "ffn",
     .help = "width inside an expert"},
    {.name = "shared_ffn",
     .type = DT_KEY_INTEGER,
     DT_KEY_INTO(struct dt_shape, shared_ffn),
     .min = 0,
     .max = DT_LIM_FFN,
     .help = "width inside the experts that all tokens share, together; 0: none"},
    {.name = "shared_gate",
     .type = DT_KEY_BOOL,
     DT_KEY_INTO(struct dt_shape, shared_gate),
     .help = "a gate of each token weighs what the shared experts add"},
    {.name = "dense_first",
     .type = DT_KEY_INTEGER,
     DT_KEY_INTO(struct dt_shape, dense_first),
     .min = 0,
     .max = DT_LIM_LAYERS,
     .help = "layers before the first one with experts"},
    {.name = "moe_every",
     .type = DT_KEY_INTEGER,
     DT_KEY_INTO(struct dt_shape, moe_every),
     .min = 1,
     .max = DT_LIM_LAYERS,
     .help = "every so many layers one has experts"},
    {.name = "expert_capacity",
     .type = DT_KEY_NUMBER,
     DT_KEY_INTO(struct dt_shape, capacity),
     .min = 0,
     .max = 64,
     .help = "rows that an expert pads or cuts to, over the mean; 0: nothing is dropped"},
    {.name = "expert_imbalance",
     .type = DT_KEY_NUMBER,
     DT_KEY_INTO(struct dt_shape, imbalance),
     .min = 1,
     .max = 64,
     .help = "rows of the busiest rank of expert parallelism, over the mean"},
    {.name = "expert_norm",
     .type = DT_KEY_WORD,
     DT_KEY_INTO(struct dt_shape, arith.top_k_raw),
     .words = weight_words,
     .help = "what the weights of a token's experts are divided by"},
    {.name = "expert_names",
     .type = DT_KEY_WORD,
     DT_KEY_INTO(struct dt_shape, mixtral_names),
     .words = expert_words,
     .help = "what tensors of experts are called"},
    {.name = "balance_loss",
     .type = DT_KEY_NUMBER,
     DT_KEY_INTO(struct dt_shape, arith.balance_loss),
     .min = 0,
     .max = 100,
     .help = "factor of the loss that asks for even routing when experts are trained; 0: without"},
    WINDOW_ROWS("tokens that a token attends to at most; 0: all before it"),
    {.name = "norms",
     .type = DT_KEY_INTEGER,
     DT_KEY_INTO(struct dt_shape, norms),
     .min = 1,
     .max = 4,
     .read = read_norms,
     .help = "of a layer: 1, 2 or 4"},
    {.name = "kv_lora",
     .type = DT_KEY_INTEGER,
     DT_KEY_INTO(struct dt_shape, kv_lora),
     .min = 0,
     .max = DT_LIM_HIDDEN,
     .help = "width of compressed keys and values (latent attention); 0: none"},
    {.name = "q_lora",
     .type = DT_KEY_INTEGER,
     DT_KEY_INTO(struct dt_shape, q_lora),
     .min = 0,
     .max = DT_LIM_HIDDEN,
     .help = "width of compressed queries; 0: they are not"},
    {.name = "rope_dim",
     .type = DT_KEY_INTEGER,
     DT_KEY_INTO(struct dt_shape, rope_dim),
     .min = 0,
     .max = DT_LIM_HEADS,
     .help = "elements of a latent head that are rotated"},
    {.name = "v_dim",
     .type = DT_KEY_INTEGER,
     DT_KEY_INTO(struct dt_shape, v_dim),
     .min = 0,
     .max = DT_LIM_HEADS,
     .help = "width of a latent head's values"},
    FLAG_ROWS,
    {.name = "tied",
     .type = DT_KEY_BOOL,
     DT_KEY_INTO(struct dt_shape, tied),
     .help = "the head shares the embedding"},
    ATTENTION_ROWS,
    ARITHMETIC_ROWS("1e-5", "silu if gated, else gelu-tanh"),
    {.name = "rope",
     .type = DT_KEY_OWN,
     .at = offsetof(struct dt_shape, arith.rope),
     .keys = rope_keys,
     .read = read_rope,
     .help = "rotary positions"},
    {.name = NULL},
};
static const struct dt_key encoder_keys[] = {
    DT_SHAPE_COMMON_ROWS,
    SIZE_ROWS,
    POSITION_ROW,
    FLAG_ROWS,
    {.name = "patch",
     .type = DT_KEY_INTEGER,
     DT_KEY_INTO(struct dt_shape, patch),
     .min = 1,
     .max = DT_LIM_PATCH,
     .needed = "16",
     .help = "pixels a side of a patch"},
    {.name = "channels",
     .type = DT_KEY_INTEGER,
     DT_KEY_INTO(struct dt_shape, channels),
     .min = 1,
     .max = DT_LIM_PATCH,
     .help = "of an image"},
    DT_SHAPE_RESIZE_ROW,
    {.name = "merge",
     .type = DT_KEY_INTEGER,
     DT_KEY_INTO(struct dt_shape, merge),
     .min = 1,
     .max = DT_LIM_MERGE,
     .help = "patches a side of the square that becomes one row for the LLM"},
    {.name = "merge_by",
     .type = DT_KEY_WORD,
     DT_KEY_INTO(struct dt_shape, merge_mean),
     .words = merge_words,
     .help = "what the row is of them"},
    WINDOW_ROWS("patches of the square window that a patch attends to (64: 8 x 8); 0: all"),
    DT_SHAPE_PROJECTOR_ROWS,
    DT_SHAPE_RATE_ROW("none; audio needs it, or mel_bins"),
    {.name = "mel_bins",
     .type = DT_KEY_INTEGER,
     DT_KEY_INTO(struct dt_shape, mel_bins),
     .min = DT_SAMPLE_SOUND_BINS_MIN,
     .max = DT_SAMPLE_SOUND_BINS_MAX,
     .fallback = "none; frames_per_s instead",
     .help = "filters of the spectrograms that an audio encoder cuts into patches"},
    {.name = "class_tokens",
     .type = DT_KEY_INTEGER,
     DT_KEY_INTO(struct dt_shape, class_tokens),
     .min = 0,
     .max = DT_LIM_PATCH,
     .help = "tokens before the patches"},
    {.name = "patch_bias",
     .type = DT_KEY_BOOL,
     DT_KEY_INTO(struct dt_shape, patch_bias),
     .help = "bias of the patch embedding"},
    {.name = "pre_norm",
     .type = DT_KEY_BOOL,
     DT_KEY_INTO(struct dt_shape, pre_norm),
     .help = "norm before the first layer"},
    {.name = "final_norm",
     .type = DT_KEY_BOOL,
     DT_KEY_INTO(struct dt_shape, final_norm),
     .help = "norm after the last layer"},
    ATTENTION_ROWS,
    ARITHMETIC_ROWS("1e-12", "silu if gated, else gelu"),
    {.name = "names",
     .type = DT_KEY_WORD,
     DT_KEY_INTO(struct dt_shape, tower_names),
     .words = names_words,
     .help = "names of tensors in files"},
    {.name = "grid_rotary",
     .type = DT_KEY_BOOL,
     DT_KEY_INTO(struct dt_shape, grid_rope),
     .help = "rotary positions of patches, down and across, instead of learned ones"},
    {.name = "class_attention",
     .type = DT_KEY_BOOL,
     DT_KEY_INTO(struct dt_shape, class_attends),
     .help = "patches attend to the class tokens"},
    {.name = NULL},
};
/* of a module whose kind is not known */
const struct dt_key dt_shape_any_keys[] = {
    DT_SHAPE_COMMON_ROWS,
    {.name = NULL},
};
const struct dt_shape_row dt_shape_rows[] = {
    [DT_SHAPE_LLM] = {"an LLM module", llm_keys},
    [DT_SHAPE_ENCODER] = {"an encoder module", encoder_keys},
    [DT_SHAPE_UNET] = {"a unet module", dt_shape_unet_keys},
};

/* Read by model.c, which knows the modules' names. */
const struct dt_key dt_model_keys[] = {
    {.name = "preset",
     .type = DT_KEY_OWN,
     .form = "preset or path",
     .file = DT_KEY_PRESET,
     .fallback = "none",
     .help = "a model; any other key but name changes one of its modules"},
    {.name = "name",
     .type = DT_KEY_OWN,
     .form = "string",
     .fallback = "the preset's",
     .help = "what it is called"},
    {.name = "modules",
     .type = DT_KEY_OWN,
     .form = "map of modules",
     .file = DT_KEY_FILE,
     .fallback = "none",
     .help = "modules by name, instead of a preset"},
    {.name = "LLM",
     .type = DT_KEY_OWN,
     .any = true,
     .keys = llm_keys,
     .base = &dt_shape_defaults[DT_SHAPE_LLM],
     .help = "the LLM, by its name"},
    {.name = "ENCODER",
     .type = DT_KEY_OWN,
     .any = true,
     .keys = encoder_keys,
     .base = &dt_shape_defaults[DT_SHAPE_ENCODER],
     .help = "an encoder, by its name"},
    {.name = "UNET",
     .type = DT_KEY_OWN,
     .any = true,
     .keys = dt_shape_unet_keys,
     .base = &dt_shape_defaults[DT_SHAPE_UNET],
     .help = "a generator, by its name"},
    {.name = NULL},
};
