/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Shapes: what the numbers of a model file or of a Hugging Face config say, before they become
 * blocks. Inside model*.c, shape*.c and hf*.c only. */
#ifndef DT_CORE_MODEL_SHAPE_H
#define DT_CORE_MODEL_SHAPE_H

#include "base/keys.h"
#include "core/model/model.h"

enum { DT_MAX_LEVELS = 8 };
enum dt_shape_kind { DT_SHAPE_NONE, DT_SHAPE_LLM, DT_SHAPE_ENCODER, DT_SHAPE_UNET };
enum dt_shape_projector { DT_PROJ_NONE, DT_PROJ_LINEAR, DT_PROJ_MLP };

/* Which tower of a config that has an encoder and an LLM. */
enum dt_hf_part { DT_HF_ALL, DT_HF_TEXT, DT_HF_VISION };

/* Bounds that keep every product of shape numbers inside int64. */
enum {
    DT_LIM_LAYERS = 1024,
    DT_LIM_HIDDEN = 1 << 17,
    DT_LIM_FFN = 1 << 20,
    DT_LIM_HEADS = 1 << 12,
    DT_LIM_VOCAB = 1 << 24,
    DT_LIM_POSITIONS = 1 << 24,
    DT_LIM_EXPERTS = 1 << 10,
    DT_LIM_PATCH = 1 << 10,
    DT_LIM_MERGE = 16,
    DT_LIM_CHANNELS = 1 << 14,
};

/* Bounds of numbers that arithmetic takes. */
#define DT_NORM_EPS_MIN 1e-15
#define DT_ROPE_THETA_MIN 1.0
#define DT_ROPE_THETA_MAX 1e15
#define DT_ROPE_FACTOR_MAX 1e6

struct dt_shape_unet {
    int n_levels, res_blocks, in_channels, out_channels;
    int channels[DT_MAX_LEVELS]; /* per level, from the input resolution down */
    int attention[DT_MAX_LEVELS];
    int depth[DT_MAX_LEVELS]; /* transformer layers of each spatial transformer; 0 = default 1 */
    int heads[DT_MAX_LEVELS]; /* 0 = from head_dim */
    int head_dim;
    int time_dim; /* 0 = 4 x first channel count */
    int context_dim,
        context_len; /* cross-attention states; length 0 = second self-attention instead */
    int class_dim,
        class_layers; /* pooled condition added to or concatenated with the time embedding */
    bool class_concat;
    int norm_groups; /* 0 = dt_block_groups' habit */
};

struct dt_shape {
    enum dt_shape_kind kind;
    enum dt_module_role role;
    enum dt_module_modality modality;
    int layers, hidden, ffn, heads, kv_heads, head_dim; /* kv_heads, head_dim 0 = derived */
    int vocab, positions;
    /* expert_ffn 0 = ffn; layers from dense_first on have experts where (number from 0, + 1) divides by moe_every */
    int n_experts, top_k, expert_ffn, shared_ffn, moe_every, dense_first;
    double capacity, imbalance;
    bool shared_gate, router_bias;
    int window,
        window_every; /* layers whose (number from 0) + 1 it divides see all; 0 = none does */
    int q_lora, kv_lora, rope_dim, v_dim;
    int norms; /* of a layer; 0 = 2 */
    bool gated, bias, qkv_bias, qk_norm, layernorm, tied, unfused, no_seqpar;
    bool qk_norm_whole, no_qkv_bias, norm_free, layer_scale;
    const char *planned_only; /* see dt_module */
    int patch, channels, class_tokens;
    bool patch_bias, pre_norm, final_norm, class_attends, grid_rope;
    enum dt_module_tower tower_names;
    bool mixtral_names;
    struct dt_module_arithmetic arith;
    struct dt_shape_unet unet;
    int resize, latent_scale;
    double frames_per_s;
    int mel_bins; /* see dt_module */
    enum dt_shape_projector projector;
    int projector_hidden; /* 0 = the projector's output width */
    bool projector_bias;
    enum dt_block_norm projector_norm;
    int merge;       /* 1 = none */
    bool merge_mean; /* else side by side */
};

extern const char *const dt_shape_kind_words[];   /* of the kinds from DT_SHAPE_LLM on; NULL */
extern const char *const dt_shape_part_words[];   /* of the parts from DT_HF_TEXT on; NULL */
extern const struct dt_shape dt_shape_defaults[]; /* by kind */
/* The keys of each kind of module. */
struct dt_shape_row {
    const char *what; /* for messages */
    const struct dt_key *keys;
};
extern const struct dt_shape_row dt_shape_rows[]; /* by kind */
extern const struct dt_key dt_shape_any_keys[], dt_shape_hf_keys[];
/* Defaults of a kind: LLM = Llama habits, encoder = ViT habits, U-Net = Stable Diffusion habits. */
void dt_shape_init(struct dt_shape *s, enum dt_shape_kind kind);
/* Applies the keys of a module map (preset or hf first, then everything else). */
enum dt_status dt_shape_read(struct dt_node node, struct dt_shape *s, char *assumed, size_t size,
                             struct dt_error *err);
/* Whether the `hf` key of a map names a config with an encoder and an LLM, of which no part is stated; and one of its
 * towers. */
enum dt_status dt_shape_is_pair(struct dt_node node, struct dt_error *err, bool *pair);
enum dt_status dt_shape_read_part(struct dt_node node, enum dt_hf_part part, struct dt_shape *s,
                                  char *assumed, size_t size, struct dt_error *err);
/* Fills derived fields and checks consistency; errors are placed at `node`. */
enum dt_status dt_shape_check(struct dt_node node, struct dt_shape *s, struct dt_error *err);
/* Expands a checked shape.  llm_hidden 0 = no projector. */
enum dt_status dt_shape_build(const struct dt_shape *s, int llm_hidden, struct dt_arena *arena,
                              struct dt_error *err, struct dt_module *out);
/* Conditioning tokens per generated item and their width. */
int dt_shape_context_tokens(const struct dt_shape *s);
int dt_shape_context_width(const struct dt_shape *s);

/* A file named in `node`'s document: as is when absolute, else beside that document, else from the
 * working directory.  It must exist. */
enum dt_status dt_preset_relative(struct dt_node node, const char *path, struct dt_error *err,
                                  char *out, size_t size);
/* Gives a bad-input error that names no place the place of `node`; passes everything else. */
enum dt_status dt_preset_error_place(struct dt_node node, enum dt_status st, struct dt_error *err);
/* Finds and reads traces/KIND/NAME.yaml or a path; errors are placed at `node`. */
enum dt_status dt_preset_open(struct dt_node node, const char *kind, const char *name,
                              struct dt_error *err, struct dt_doc **out);

enum dt_status dt_rope_check(struct dt_node node, const struct dt_rope *r, struct dt_error *err);
/* hf.c; appends one line per assumed default to `assumed` (may be NULL with size 0).  `ignore`: a
 * list of keys to take as if the config did not have them, or an absent node. */
enum dt_status dt_hf_shape(const char *path, struct dt_node ignore, enum dt_hf_part part,
                           struct dt_shape *s, char *assumed, size_t size, struct dt_error *err);
enum dt_status dt_hf_is_pair(const char *path, struct dt_error *err, bool *pair);
enum dt_status dt_hf_parse(const char *name, const char *text, size_t len, struct dt_shape *s,
                           char *assumed, size_t size, struct dt_error *err);

#endif
