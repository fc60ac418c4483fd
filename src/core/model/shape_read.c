/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Module maps of model files (disttrain-job(5)) into shapes. */
#include "core/model/shape.h"

#include "base/file.h"
#include "base/number.h"

#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

enum { PATH_SIZE = 4096, PRESET_DEPTH_MAX = 8 };

static const char *const kind_words[] = {"llm", "encoder", "unet", NULL};
static const char *const modality_words[] = {"text", "image", "audio", NULL};
static const char *const norm_words[] = {"rmsnorm", "layernorm", NULL};
static const char *const attention_words[] = {"flash", "unfused", NULL};
static const char *const projector_words[] = {"none", "linear", "mlp", NULL};

#define COMMON_KEYS "name", "kind", "preset", "hf", "modality"
#define ARITH_KEYS "norm_eps", "activation", "attention_scale", "attention_scale_by_layer"
static const char *const any_keys[] = {COMMON_KEYS, NULL};
static const char *const llm_keys[] = {COMMON_KEYS,
                                       "layers",
                                       "hidden",
                                       "ffn",
                                       "heads",
                                       "kv_heads",
                                       "head_dim",
                                       "vocab",
                                       "positions",
                                       "experts",
                                       "top_k",
                                       "gated",
                                       "bias",
                                       "qkv_bias",
                                       "qk_norm",
                                       "norm",
                                       "tied",
                                       "attention",
                                       "sequence_parallel",
                                       ARITH_KEYS,
                                       "rope",
                                       NULL};
static const char *const encoder_keys[] = {COMMON_KEYS,
                                           "layers",
                                           "hidden",
                                           "ffn",
                                           "heads",
                                           "kv_heads",
                                           "head_dim",
                                           "positions",
                                           "gated",
                                           "bias",
                                           "qkv_bias",
                                           "qk_norm",
                                           "norm",
                                           "patch",
                                           "channels",
                                           "resize",
                                           "projector",
                                           "projector_hidden",
                                           "frames_per_s",
                                           "class_tokens",
                                           "patch_bias",
                                           "pre_norm",
                                           "final_norm",
                                           "attention",
                                           "sequence_parallel",
                                           ARITH_KEYS,
                                           "names",
                                           "class_attention",
                                           NULL};
static const char *const unet_keys[] = {
    COMMON_KEYS,   "channels",     "attention",    "depth",        "heads",
    "head_dim",    "res_blocks",   "in_channels",  "out_channels", "time_dim",
    "context_dim", "context_len",  "class_dim",    "class_layers", "class_concat",
    "resize",      "latent_scale", "frames_per_s", "projector",    "projector_hidden",
    "norm_eps",    "norm_groups",  "freq_shift",   "sine_first",   NULL};

/* ---- files ---- */

static bool exists(const char *path)
{
    struct stat sb;

    return stat(path, &sb) == 0;
}

enum dt_status dt_preset_relative(struct dt_node node, const char *path, struct dt_error *err,
                                  char *out, size_t size)
{
    const char *name = node.doc ? dt_doc_name(node.doc) : "";
    const char *slash = strrchr(name, '/');
    int n;

    if (path[0] != '/' && slash) {
        n = snprintf(out, size, "%.*s/%s", (int)(slash - name), name, path);
        if (n > 0 && (size_t)n < size && exists(out))
            return DT_OK;
    }
    n = snprintf(out, size, "%s", path);
    if (n < 0 || (size_t)n >= size)
        return dt_node_error(node, err, "file name too long");
    if (exists(out))
        return DT_OK;
    return dt_node_error(node, err,
                         "no file \"%.200s\"%s; paths are relative to the file that names them",
                         path, slash ? " there or in the working directory" : "");
}

enum dt_status dt_preset_error_place(struct dt_node node, enum dt_status st, struct dt_error *err)
{
    char message[sizeof(err->message)];

    if (st != DT_ERR_INPUT || !err || err->line > 0)
        return st;
    if (err->file[0])
        snprintf(message, sizeof(message), "%s: %.3000s", err->file, err->message);
    else
        memcpy(message, err->message, sizeof(message));
    return dt_node_error(node, err, "%s", message);
}

enum dt_status dt_preset_open(struct dt_node node, const char *kind, const char *name,
                              struct dt_error *err, struct dt_doc **out)
{
    char near[PATH_SIZE], found[PATH_SIZE];

    if (strchr(name, '/')) {
        DT_TRY(dt_preset_relative(node, name, err, near, sizeof(near)));
        return dt_preset_error_place(node, dt_doc_read(near, err, out), err);
    }
    if (strchr(name, '.') && dt_preset_relative(node, name, NULL, near, sizeof(near)) == DT_OK)
        return dt_preset_error_place(node, dt_doc_read(near, err, out), err);
    DT_TRY(dt_preset_error_place(node, dt_file_find(kind, name, ".yaml", err, found, sizeof(found)),
                                 err));
    return dt_doc_read(found, err, out);
}

/* ---- lists, one value per U-Net level ---- */

static enum dt_status level_value(struct dt_node n, const char *key, int min, int max, bool boolean,
                                  int *out, struct dt_error *err)
{
    const char *text = dt_node_text(n);
    int64_t v = 0;

    if (boolean && text && (strcmp(text, "true") == 0 || strcmp(text, "false") == 0)) {
        *out = text[0] == 't';
        return DT_OK;
    }
    if (boolean)
        return dt_node_error(n, err, "%s: expected true or false for each level", key);
    if (!text || !dt_number_int(text, &v) || v < min || v > max)
        return dt_node_error(n, err, "%s: expected an integer from %d to %d for each level", key,
                             min, max);
    *out = (int)v;
    return DT_OK;
}

static enum dt_status get_levels(struct dt_node map, const char *key, int levels, int min, int max,
                                 bool boolean, int *out, struct dt_error *err)
{
    struct dt_node n = dt_map_get(map, key);
    size_t size = dt_seq_size(n);
    int values[DT_MAX_LEVELS] = {0};

    if (!dt_node_present(n))
        return DT_OK;
    if (!dt_node_is_seq(n)) { /* one value for all levels */
        DT_TRY(level_value(n, key, min, max, boolean, &values[0], err));
        for (int i = 0; i < DT_MAX_LEVELS; i++)
            out[i] = values[0];
        return DT_OK;
    }
    if ((int)size != levels)
        return dt_node_error(n, err, "%s: %zu values for %d levels; give one per entry of channels",
                             key, size, levels);
    for (int i = 0; i < levels; i++)
        DT_TRY(level_value(dt_seq_at(n, (size_t)i), key, min, max, boolean, &values[i], err));
    memcpy(out, values, sizeof(values));
    return DT_OK;
}

/* ---- keys of each kind ---- */

static enum dt_status read_transformer(struct dt_node n, struct dt_shape *s, struct dt_error *err)
{
    int norm = s->layernorm, unfused = s->unfused;
    bool seqpar = !s->no_seqpar;

    DT_TRY(dt_get_i32(n, "layers", 1, DT_LIM_LAYERS, &s->layers, err));
    /* a new width asks for new derived numbers, unless they are stated too */
    if (dt_node_present(dt_map_get(n, "hidden")) || dt_node_present(dt_map_get(n, "heads")))
        s->head_dim = 0;
    if (dt_node_present(dt_map_get(n, "heads")))
        s->kv_heads = 0;
    DT_TRY(dt_get_i32(n, "hidden", 1, DT_LIM_HIDDEN, &s->hidden, err));
    DT_TRY(dt_get_i32(n, "ffn", 1, DT_LIM_FFN, &s->ffn, err));
    DT_TRY(dt_get_i32(n, "heads", 1, DT_LIM_HEADS, &s->heads, err));
    DT_TRY(dt_get_i32(n, "kv_heads", 1, DT_LIM_HEADS, &s->kv_heads, err));
    DT_TRY(dt_get_i32(n, "head_dim", 1, DT_LIM_HEADS, &s->head_dim, err));
    DT_TRY(dt_get_i32(n, "positions", 0, DT_LIM_POSITIONS, &s->positions, err));
    DT_TRY(dt_get_bool(n, "gated", &s->gated, err));
    DT_TRY(dt_get_bool(n, "bias", &s->bias, err));
    DT_TRY(dt_get_bool(n, "qkv_bias", &s->qkv_bias, err));
    DT_TRY(dt_get_bool(n, "qk_norm", &s->qk_norm, err));
    DT_TRY(dt_get_enum(n, "norm", norm_words, &norm, err));
    s->layernorm = norm;
    DT_TRY(dt_get_enum(n, "attention", attention_words, &unfused, err));
    DT_TRY(dt_get_bool(n, "sequence_parallel", &seqpar, err));
    s->unfused = unfused;
    s->no_seqpar = !seqpar;
    return DT_OK;
}

static enum dt_status read_llm(struct dt_node n, struct dt_shape *s, struct dt_error *err)
{
    DT_TRY(read_transformer(n, s, err));
    DT_TRY(dt_get_i32(n, "vocab", 1, DT_LIM_VOCAB, &s->vocab, err));
    DT_TRY(dt_get_i32(n, "experts", 0, DT_LIM_EXPERTS, &s->n_experts, err));
    DT_TRY(dt_get_i32(n, "top_k", 1, DT_LIM_EXPERTS, &s->top_k, err));
    return dt_get_bool(n, "tied", &s->tied, err);
}

static enum dt_status read_adapter(struct dt_node n, struct dt_shape *s, struct dt_error *err)
{
    int projector = s->projector;

    DT_TRY(dt_get_enum(n, "projector", projector_words, &projector, err));
    s->projector = projector;
    DT_TRY(dt_get_i32(n, "projector_hidden", 1, DT_LIM_HIDDEN, &s->projector_hidden, err));
    DT_TRY(dt_get_i32(n, "resize", 0, 1 << 15, &s->resize, err));
    return dt_get_double(n, "frames_per_s", 1e-3, 1e6, &s->frames_per_s, err);
}

static enum dt_status read_encoder(struct dt_node n, struct dt_shape *s, struct dt_error *err)
{
    DT_TRY(read_transformer(n, s, err));
    DT_TRY(read_adapter(n, s, err));
    DT_TRY(dt_get_i32(n, "patch", 1, DT_LIM_PATCH, &s->patch, err));
    DT_TRY(dt_get_i32(n, "channels", 1, DT_LIM_PATCH, &s->channels, err));
    DT_TRY(dt_get_i32(n, "class_tokens", 0, DT_LIM_PATCH, &s->class_tokens, err));
    DT_TRY(dt_get_bool(n, "class_attention", &s->class_attends, err));
    DT_TRY(dt_get_bool(n, "patch_bias", &s->patch_bias, err));
    DT_TRY(dt_get_bool(n, "pre_norm", &s->pre_norm, err));
    return dt_get_bool(n, "final_norm", &s->final_norm, err);
}

static enum dt_status read_channels(struct dt_node n, struct dt_shape_unet *u, struct dt_error *err)
{
    struct dt_node list = dt_map_get(n, "channels");
    size_t levels = dt_seq_size(list);

    if (!dt_node_present(list))
        return DT_OK;
    if (levels < 1 || levels > DT_MAX_LEVELS)
        return dt_node_error(list, err,
                             "channels: expected a list of 1 to %d channel counts, one "
                             "per level, such as [320, 640, 1280, 1280]",
                             DT_MAX_LEVELS);
    u->n_levels = (int)levels;
    u->time_dim = 0; /* derived numbers are derived anew */
    memset(u->heads, 0, sizeof(u->heads));
    return get_levels(n, "channels", u->n_levels, 1, DT_LIM_CHANNELS, false, u->channels, err);
}

static enum dt_status read_unet(struct dt_node n, struct dt_shape *s, struct dt_error *err)
{
    struct dt_shape_unet *u = &s->unet;

    DT_TRY(read_adapter(n, s, err));
    DT_TRY(read_channels(n, u, err));
    DT_TRY(get_levels(n, "attention", u->n_levels, 0, 1, true, u->attention, err));
    DT_TRY(get_levels(n, "depth", u->n_levels, 1, 64, false, u->depth, err));
    DT_TRY(get_levels(n, "heads", u->n_levels, 1, DT_LIM_HEADS, false, u->heads, err));
    if (dt_node_present(dt_map_get(n, "head_dim")) && !dt_node_present(dt_map_get(n, "heads")))
        memset(u->heads, 0, sizeof(u->heads));
    DT_TRY(dt_get_i32(n, "head_dim", 1, DT_LIM_HEADS, &u->head_dim, err));
    DT_TRY(dt_get_i32(n, "res_blocks", 1, 16, &u->res_blocks, err));
    DT_TRY(dt_get_i32(n, "in_channels", 1, DT_LIM_CHANNELS, &u->in_channels, err));
    DT_TRY(dt_get_i32(n, "out_channels", 1, DT_LIM_CHANNELS, &u->out_channels, err));
    DT_TRY(dt_get_i32(n, "time_dim", 1, DT_LIM_HIDDEN, &u->time_dim, err));
    DT_TRY(dt_get_i32(n, "context_dim", 1, DT_LIM_HIDDEN, &u->context_dim, err));
    DT_TRY(dt_get_i32(n, "context_len", 0, 1 << 16, &u->context_len, err));
    DT_TRY(dt_get_i32(n, "class_dim", 0, DT_LIM_HIDDEN, &u->class_dim, err));
    DT_TRY(dt_get_i32(n, "class_layers", 1, 2, &u->class_layers, err));
    DT_TRY(dt_get_bool(n, "class_concat", &u->class_concat, err));
    return dt_get_i32(n, "latent_scale", 1, 1 << 10, &s->latent_scale, err);
}

/* ---- a module map ---- */

static enum dt_status read_depth(struct dt_node node, int depth, struct dt_shape *s, char *assumed,
                                 size_t size, struct dt_error *err);

static enum dt_status read_preset(struct dt_node node, int depth, struct dt_shape *s, char *assumed,
                                  size_t size, struct dt_error *err)
{
    char name[PATH_SIZE] = "";
    struct dt_doc *doc = NULL;
    struct dt_node root;
    enum dt_status st;

    DT_TRY(dt_get_string(node, "preset", name, sizeof(name), err));
    if (depth >= PRESET_DEPTH_MAX)
        return dt_node_error(dt_map_get(node, "preset"), err,
                             "preset: more than %d presets inside one another", PRESET_DEPTH_MAX);
    DT_TRY(dt_preset_open(dt_map_get(node, "preset"), "models", name, err, &doc));
    root = dt_doc_root(doc);
    if (dt_node_present(dt_map_get(root, "modules")))
        st = dt_node_error(dt_map_get(node, "preset"), err,
                           "preset: \"%s\" is a whole model; a module takes a module preset such "
                           "as llama-7b, vit-huge or sd21-unet",
                           name);
    else
        st = read_depth(root, depth + 1, s, assumed, size, err);
    dt_doc_free(doc);
    return st;
}

/* hf: config.json, or {config: config.json, ignore: [key, ...]}. */
static enum dt_status read_hf(struct dt_node hf, struct dt_node module, struct dt_shape *s,
                              char *assumed, size_t size, struct dt_error *err)
{
    static const char *const keys[] = {"config", "ignore", NULL};
    char name[PATH_SIZE] = "", path[PATH_SIZE];
    struct dt_node ignore = {0}, at = hf;

    if (dt_node_is_map(hf)) {
        DT_TRY(dt_map_check(hf, "hf", keys, err));
        DT_TRY(dt_map_require(hf, "hf", "config", err));
        DT_TRY(dt_get_string(hf, "config", name, sizeof(name), err));
        at = dt_map_get(hf, "config");
        ignore = dt_map_get(hf, "ignore");
    } else {
        DT_TRY(dt_get_string(module, "hf", name, sizeof(name), err));
    }
    DT_TRY(dt_preset_relative(at, name, err, path, sizeof(path)));
    return dt_hf_shape(path, ignore, s, assumed, size, err);
}

static enum dt_status read_base(struct dt_node node, int depth, struct dt_shape *s, char *assumed,
                                size_t size, struct dt_error *err)
{
    bool preset = dt_node_present(dt_map_get(node, "preset"));
    bool hf = dt_node_present(dt_map_get(node, "hf"));

    if (preset && hf)
        return dt_node_error(dt_map_get(node, "hf"), err,
                             "a module comes from either \"preset\" or \"hf\", not from both");
    if (!preset && !hf)
        return DT_OK;
    memset(s, 0, sizeof(*s)); /* a new base replaces whatever was stated before */
    if (preset)
        return read_preset(node, depth, s, assumed, size, err);
    return read_hf(dt_map_get(node, "hf"), node, s, assumed, size, err);
}

static enum dt_status read_depth(struct dt_node node, int depth, struct dt_shape *s, char *assumed,
                                 size_t size, struct dt_error *err)
{
    int kind = (int)s->kind - 1, modality;
    bool stated = dt_node_present(dt_map_get(node, "kind"));

    if (!dt_node_is_map(node))
        return dt_node_error(node, err,
                             "a module is a map: {preset: NAME, ...}, {hf: config.json, "
                             "...} or {kind: llm|encoder|unet, ...}");
    DT_TRY(read_base(node, depth, s, assumed, size, err));
    DT_TRY(dt_get_enum(node, "kind", kind_words, &kind, err));
    if (stated && s->kind == DT_SHAPE_NONE)
        dt_shape_init(s, (enum dt_shape_kind)(kind + 1));
    else if (stated && (int)s->kind != kind + 1)
        return dt_node_error(dt_map_get(node, "kind"), err,
                             "kind: the module is of kind %s already", kind_words[s->kind - 1]);
    if (s->kind == DT_SHAPE_NONE) {
        DT_TRY(dt_map_check(node, "a module", any_keys, err));
        return dt_node_error(node, err,
                             "a module needs \"preset\", \"hf\" or \"kind\" (llm, "
                             "encoder, unet)");
    }
    modality = (int)s->modality;
    DT_TRY(dt_get_enum(node, "modality", modality_words, &modality, err));
    s->modality = (enum dt_module_modality)modality;
    switch (s->kind) {
    case DT_SHAPE_LLM:
        DT_TRY(dt_map_check(node, "an LLM module", llm_keys, err));
        DT_TRY(read_llm(node, s, err));
        break;
    case DT_SHAPE_ENCODER:
        DT_TRY(dt_map_check(node, "an encoder module", encoder_keys, err));
        DT_TRY(read_encoder(node, s, err));
        break;
    case DT_SHAPE_UNET:
        DT_TRY(dt_map_check(node, "a unet module", unet_keys, err));
        DT_TRY(read_unet(node, s, err));
        break;
    case DT_SHAPE_NONE: /* refused above */
        break;
    }
    return dt_shape_read_arith(node, s, err);
}

enum dt_status dt_shape_read(struct dt_node node, struct dt_shape *s, char *assumed, size_t size,
                             struct dt_error *err)
{
    return read_depth(node, 0, s, assumed, size, err);
}
