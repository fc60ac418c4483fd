/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Hugging Face config.json -> shape.  Keys that are absent (or null) take the library's default,
 * and every default taken is written down; keys that would change the architecture in a way blocks
 * cannot express are errors. */
#include "core/hf.h"

#include "core/file.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

enum { CONFIG_MAX = 4 << 20 }; /* configs are a few kB */

void dt_hf_assume(char *assumed, size_t size, const char *fmt, ...)
{
    size_t used = assumed ? strlen(assumed) : size;
    va_list ap;

    if (used + 1 >= size)
        return;
    va_start(ap, fmt);
    vsnprintf(assumed + used, size - used, fmt, ap);
    va_end(ap);
    used = strlen(assumed);
    if (used + 1 < size) {
        assumed[used] = '\n';
        assumed[used + 1] = '\0';
    }
}

bool dt_hf_has(struct dt_node map, const char *key)
{
    struct dt_node n = dt_map_get(map, key);

    return dt_node_present(n) && !dt_node_is_null(n);
}

enum dt_status dt_hf_need(const struct dt_hf *hf, const char *key, int max, int *out)
{
    if (!dt_hf_has(hf->map, key))
        return dt_node_error(hf->map, hf->err,
                             "%s config: key \"%s\" is missing (a positive integer)", hf->type,
                             key);
    return dt_get_i32(hf->map, key, 1, max, out, hf->err);
}

enum dt_status dt_hf_int(const struct dt_hf *hf, const char *key, int max, int fallback, int *out)
{
    if (dt_hf_has(hf->map, key))
        return dt_get_i32(hf->map, key, 1, max, out, hf->err);
    *out = fallback;
    dt_hf_assume(hf->assumed, hf->size, "%s: %d", key, fallback);
    return DT_OK;
}

enum dt_status dt_hf_bool(const struct dt_hf *hf, const char *key, bool fallback, bool *out)
{
    if (dt_hf_has(hf->map, key))
        return dt_get_bool(hf->map, key, out, hf->err);
    *out = fallback;
    dt_hf_assume(hf->assumed, hf->size, "%s: %s", key, fallback ? "true" : "false");
    return DT_OK;
}

enum dt_status dt_hf_only(const struct dt_hf *hf, const char *key, bool expected, const char *why)
{
    bool v = expected;

    if (dt_hf_has(hf->map, key))
        DT_TRY(dt_get_bool(hf->map, key, &v, hf->err));
    if (v != expected)
        return dt_node_error(dt_map_get(hf->map, key), hf->err, "%s: %s is not supported (%s)", key,
                             v ? "true" : "false", why);
    return DT_OK;
}

/* ---- language models ---- */

/* Llama, Qwen2, Qwen3 and Mixtral share these keys. */
static enum dt_status llama_like(const struct dt_hf *hf, struct dt_shape *s)
{
    dt_shape_init(s, DT_SHAPE_LLM);
    DT_TRY(dt_hf_need(hf, "num_hidden_layers", DT_LIM_LAYERS, &s->layers));
    DT_TRY(dt_hf_need(hf, "hidden_size", DT_LIM_HIDDEN, &s->hidden));
    DT_TRY(dt_hf_need(hf, "intermediate_size", DT_LIM_FFN, &s->ffn));
    DT_TRY(dt_hf_need(hf, "num_attention_heads", DT_LIM_HEADS, &s->heads));
    DT_TRY(dt_hf_need(hf, "vocab_size", DT_LIM_VOCAB, &s->vocab));
    DT_TRY(dt_hf_int(hf, "num_key_value_heads", DT_LIM_HEADS, s->heads, &s->kv_heads));
    if (dt_hf_has(hf->map, "head_dim"))
        DT_TRY(dt_hf_need(hf, "head_dim", DT_LIM_HEADS, &s->head_dim));
    return dt_hf_bool(hf, "tie_word_embeddings", false, &s->tied);
}

static enum dt_status read_llama(const struct dt_hf *hf, struct dt_shape *s)
{
    DT_TRY(dt_hf_only(hf, "attention_bias", false, "Llama layers are taken without biases"));
    DT_TRY(dt_hf_only(hf, "mlp_bias", false, "Llama layers are taken without biases"));
    return llama_like(hf, s);
}

static void note_window(const struct dt_hf *hf, const char *key)
{
    if (dt_hf_has(hf->map, key))
        dt_hf_assume(hf->assumed, hf->size, "%s: ignored, attention over the whole sequence", key);
}

static enum dt_status read_qwen2(const struct dt_hf *hf, struct dt_shape *s)
{
    bool window = false;

    DT_TRY(llama_like(hf, s));
    s->qkv_bias = true;
    DT_TRY(dt_hf_bool(hf, "use_sliding_window", false, &window));
    if (window)
        note_window(hf, "sliding_window");
    return DT_OK;
}

static enum dt_status read_qwen3(const struct dt_hf *hf, struct dt_shape *s)
{
    bool window = false;

    DT_TRY(dt_hf_only(hf, "attention_bias", false, "Qwen3 layers are taken without biases"));
    DT_TRY(llama_like(hf, s));
    s->qk_norm = true;
    if (s->head_dim == 0)
        DT_TRY(dt_hf_int(hf, "head_dim", DT_LIM_HEADS, 128, &s->head_dim));
    DT_TRY(dt_hf_bool(hf, "use_sliding_window", false, &window));
    if (window)
        note_window(hf, "sliding_window");
    return DT_OK;
}

static enum dt_status read_mixtral(const struct dt_hf *hf, struct dt_shape *s)
{
    DT_TRY(llama_like(hf, s));
    DT_TRY(dt_hf_int(hf, "num_local_experts", DT_LIM_EXPERTS, 8, &s->n_experts));
    DT_TRY(dt_hf_int(hf, "num_experts_per_tok", DT_LIM_EXPERTS, 2, &s->top_k));
    note_window(hf, "sliding_window");
    return DT_OK;
}

static enum dt_status read_gpt2(const struct dt_hf *hf, struct dt_shape *s)
{
    dt_shape_init(s, DT_SHAPE_LLM);
    s->gated = false;
    s->bias = s->layernorm = true;
    DT_TRY(dt_hf_need(hf, "n_layer", DT_LIM_LAYERS, &s->layers));
    DT_TRY(dt_hf_need(hf, "n_embd", DT_LIM_HIDDEN, &s->hidden));
    DT_TRY(dt_hf_need(hf, "n_head", DT_LIM_HEADS, &s->heads));
    DT_TRY(dt_hf_int(hf, "n_inner", DT_LIM_FFN, 4 * s->hidden, &s->ffn));
    DT_TRY(dt_hf_int(hf, "n_positions", DT_LIM_POSITIONS, 1024, &s->positions));
    DT_TRY(dt_hf_int(hf, "vocab_size", DT_LIM_VOCAB, 50257, &s->vocab));
    return dt_hf_bool(hf, "tie_word_embeddings", true, &s->tied);
}

/* ---- vision encoders ---- */

static enum dt_status vision_like(const struct dt_hf *hf, int image, int patch, struct dt_shape *s)
{
    int side;

    dt_shape_init(s, DT_SHAPE_ENCODER);
    DT_TRY(dt_hf_need(hf, "num_hidden_layers", DT_LIM_LAYERS, &s->layers));
    DT_TRY(dt_hf_need(hf, "hidden_size", DT_LIM_HIDDEN, &s->hidden));
    DT_TRY(dt_hf_need(hf, "intermediate_size", DT_LIM_FFN, &s->ffn));
    DT_TRY(dt_hf_need(hf, "num_attention_heads", DT_LIM_HEADS, &s->heads));
    DT_TRY(dt_hf_int(hf, "image_size", 4096, image, &image));
    DT_TRY(dt_hf_int(hf, "patch_size", DT_LIM_PATCH, patch, &s->patch));
    DT_TRY(dt_hf_int(hf, "num_channels", DT_LIM_PATCH, 3, &s->channels));
    side = image / s->patch;
    if (side < 1)
        return dt_node_error(hf->map, hf->err,
                             "%s config: patch_size %d is larger than image_size %d", hf->type,
                             s->patch, image);
    s->positions = side * side;
    return DT_OK;
}

static enum dt_status read_vit(const struct dt_hf *hf, struct dt_shape *s)
{
    DT_TRY(dt_hf_only(hf, "qkv_bias", true, "ViT layers are taken with biases"));
    DT_TRY(vision_like(hf, 224, 16, s));
    s->class_tokens = 1;
    s->positions += 1;
    dt_hf_assume(hf->assumed, hf->size, "pooler: left out");
    return DT_OK;
}

static enum dt_status read_clip(const struct dt_hf *hf, struct dt_shape *s)
{
    DT_TRY(vision_like(hf, 224, 32, s));
    s->class_tokens = 1;
    s->positions += 1;
    s->pre_norm = true;
    s->patch_bias = false;
    dt_hf_assume(hf->assumed, hf->size, "visual_projection: left out");
    return DT_OK;
}

static enum dt_status read_siglip(const struct dt_hf *hf, struct dt_shape *s)
{
    DT_TRY(vision_like(hf, 224, 16, s));
    dt_hf_assume(hf->assumed, hf->size, "attention pooling head: left out");
    return DT_OK;
}

/* ---- the table ---- */

static const struct {
    const char *type;
    enum dt_status (*read)(const struct dt_hf *, struct dt_shape *);
    bool nested; /* the shape is inside vision_config when there is one */
} readers[] = {
    {"llama", read_llama, false},
    {"qwen2", read_qwen2, false},
    {"qwen3", read_qwen3, false},
    {"mixtral", read_mixtral, false},
    {"gpt2", read_gpt2, false},
    {"vit", read_vit, false},
    {"clip", read_clip, true},
    {"clip_vision_model", read_clip, false},
    {"siglip", read_siglip, true},
    {"siglip_vision_model", read_siglip, false},
    {"UNet2DConditionModel", dt_hf_unet, false},
};
enum { N_READERS = sizeof(readers) / sizeof(readers[0]) };

static enum dt_status unsupported(struct dt_node at, const char *type, struct dt_error *err)
{
    const char *types[N_READERS + 1], *near;
    char list[512];
    size_t used = 0;

    for (int i = 0; i < N_READERS; i++) {
        types[i] = readers[i].type;
        used += (size_t)snprintf(list + used, sizeof(list) - used, "%s%s", i ? ", " : "", types[i]);
    }
    types[N_READERS] = NULL;
    near = dt_suggest(type, types);
    return dt_node_error(at, err, "model type \"%.60s\" is not supported%s%s%s (supported: %s)",
                         type, near ? "; the nearest is \"" : "", near ? near : "",
                         near ? "\"" : "", list);
}

static enum dt_status read_root(struct dt_node root, struct dt_shape *s, char *assumed, size_t size,
                                struct dt_error *err)
{
    char type[64] = "";
    const char *key =
        dt_node_present(dt_map_get(root, "model_type")) ? "model_type" : "_class_name";
    struct dt_hf hf = {root, type, assumed, size, err};
    struct dt_node vision = dt_map_get(root, "vision_config");
    int i;

    if (!dt_node_is_map(root))
        return dt_node_error(root, err, "a Hugging Face config is a JSON object");
    if (!dt_hf_has(root, key))
        return dt_node_error(root, err,
                             "a Hugging Face config needs \"model_type\" (or \"_class_name\" "
                             "for diffusers)");
    DT_TRY(dt_get_string(root, key, type, sizeof(type), err));
    for (i = 0; i < N_READERS && strcmp(readers[i].type, type) != 0; i++)
        ;
    if (i == N_READERS)
        return unsupported(dt_map_get(root, key), type, err);
    if (readers[i].nested && dt_node_present(vision)) {
        if (!dt_node_is_map(vision))
            return dt_node_error(vision, err, "vision_config: expected an object");
        hf.map = vision;
    }
    return readers[i].read(&hf, s);
}

enum dt_status dt_hf_parse(const char *name, const char *text, size_t len, struct dt_shape *s,
                           char *assumed, size_t size, struct dt_error *err)
{
    struct dt_doc *doc = NULL;
    struct dt_shape shape = {0};
    enum dt_status st;

    DT_TRY(dt_doc_parse(name, text, len, err, &doc));
    st = read_root(dt_doc_root(doc), &shape, assumed, size, err);
    if (st == DT_OK)
        st = dt_shape_check(dt_doc_root(doc), &shape, err);
    dt_doc_free(doc);
    if (st == DT_OK)
        *s = shape;
    return st;
}

enum dt_status dt_hf_shape(const char *path, struct dt_shape *s, char *assumed, size_t size,
                           struct dt_error *err)
{
    char *text = NULL;
    size_t len = 0;
    enum dt_status st;

    DT_TRY(dt_file_read(path, CONFIG_MAX, err, &text, &len));
    st = dt_hf_parse(path, text, len, s, assumed, size, err);
    dt_free(text);
    return st;
}

enum dt_status dt_hf_module(const char *path, struct dt_arena *arena, struct dt_error *err,
                            struct dt_module *out, char *assumed, size_t size)
{
    struct dt_shape shape;
    struct dt_module module = {0};

    DT_TRY(dt_hf_shape(path, &shape, assumed, size, err));
    DT_TRY(dt_shape_build(&shape, 0, arena, err, &module));
    *out = module;
    return DT_OK;
}
