/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Hugging Face config.json -> shape.  Keys that are absent take the library's default, and every
 * default taken is written down; keys that would change the model in a way blocks cannot express
 * are errors, and so are keys that hf_keys.c does not know. */
#include "core/model/hf.h"

#include "base/file.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

enum { CONFIG_MAX = 4 << 20 }; /* configs are a few kB */

void dt_hf_assume(const struct dt_hf *hf, const char *fmt, ...)
{
    size_t used = hf->assumed ? strlen(hf->assumed) : hf->size;
    va_list ap;

    if (used + 1 >= hf->size)
        return;
    va_start(ap, fmt);
    vsnprintf(hf->assumed + used, hf->size - used, fmt, ap);
    va_end(ap);
    used = strlen(hf->assumed);
    if (used + 1 < hf->size) {
        hf->assumed[used] = '\n';
        hf->assumed[used + 1] = '\0';
    }
}

struct dt_node dt_hf_get(const struct dt_hf *hf, const char *key)
{
    struct dt_node n = dt_map_get(hf->map, key);

    return dt_node_is_null(n) || dt_hf_ignored(hf, key) ? (struct dt_node){n.doc, NULL} : n;
}

bool dt_hf_has(const struct dt_hf *hf, const char *key)
{
    return dt_node_present(dt_hf_get(hf, key));
}

bool dt_hf_absent(const struct dt_hf *hf, const char *key)
{
    return dt_hf_ignored(hf, key) || !dt_node_present(dt_map_get(hf->map, key));
}

enum dt_status dt_hf_need(const struct dt_hf *hf, const char *key, int max, int *out)
{
    if (!dt_hf_has(hf, key))
        return dt_node_error(hf->map, hf->err,
                             "%s config: key \"%s\" is missing (a positive integer)", hf->type,
                             key);
    return dt_get_i32(hf->map, key, 1, max, out, hf->err);
}

enum dt_status dt_hf_int(const struct dt_hf *hf, const char *key, int max, int fallback, int *out)
{
    if (dt_hf_has(hf, key))
        return dt_get_i32(hf->map, key, 1, max, out, hf->err);
    *out = fallback;
    dt_hf_assume(hf, "%s: %d", key, fallback);
    return DT_OK;
}

enum dt_status dt_hf_double(const struct dt_hf *hf, const char *key, double min, double max,
                            double fallback, double *out)
{
    if (dt_hf_has(hf, key))
        return dt_get_double(hf->map, key, min, max, out, hf->err);
    *out = fallback;
    dt_hf_assume(hf, "%s: %g", key, fallback);
    return DT_OK;
}

enum dt_status dt_hf_bool(const struct dt_hf *hf, const char *key, bool fallback, bool *out)
{
    if (dt_hf_has(hf, key))
        return dt_get_bool(hf->map, key, out, hf->err);
    *out = fallback;
    dt_hf_assume(hf, "%s: %s", key, fallback ? "true" : "false");
    return DT_OK;
}

enum dt_status dt_hf_activation(const struct dt_hf *hf, const char *key, const char *fallback,
                                enum dt_block_activation *out)
{
    static const struct {
        const char *name;
        enum dt_block_activation f;
    } known[] = {{"gelu", DT_ACTIVATION_GELU},
                 {"gelu_python", DT_ACTIVATION_GELU},
                 {"gelu_new", DT_ACTIVATION_GELU_TANH},
                 {"gelu_pytorch_tanh", DT_ACTIVATION_GELU_TANH},
                 {"gelu_fast", DT_ACTIVATION_GELU_TANH},
                 {"quick_gelu", DT_ACTIVATION_QUICK_GELU},
                 {"silu", DT_ACTIVATION_SILU},
                 {"swish", DT_ACTIVATION_SILU},
                 {"relu", DT_ACTIVATION_RELU}};
    char name[64];

    snprintf(name, sizeof(name), "%s", fallback);
    if (dt_hf_has(hf, key))
        DT_TRY(dt_get_string(hf->map, key, name, sizeof(name), hf->err));
    else
        dt_hf_assume(hf, "%s: %s", key, fallback);
    for (size_t i = 0; i < sizeof(known) / sizeof(known[0]); i++)
        if (strcmp(known[i].name, name) == 0) {
            *out = known[i].f;
            return DT_OK;
        }
    return dt_node_error(dt_map_get(hf->map, key), hf->err,
                         "%s: \"%s\" is not supported (supported: gelu, gelu_new, "
                         "gelu_pytorch_tanh, quick_gelu, silu, relu)",
                         key, name);
}

enum dt_status dt_hf_only(const struct dt_hf *hf, const char *key, bool expected, const char *why)
{
    bool v = expected;

    if (dt_hf_has(hf, key))
        DT_TRY(dt_get_bool(hf->map, key, &v, hf->err));
    if (v != expected)
        return dt_node_error(dt_map_get(hf->map, key), hf->err, "%s: %s is not supported (%s)", key,
                             v ? "true" : "false", why);
    return DT_OK;
}

/* ---- the table ---- */

struct reader {
    const char *type;
    unsigned keys;
    dt_hf_reader *read;
    bool nested;  /* the shape is inside vision_config when there is one */
    bool planned; /* see struct dt_hf */
};
static const struct reader readers[] = {
    {"llama", DT_HF_LLAMA, dt_hf_llama, false, false},
    {"mistral", DT_HF_MISTRAL, dt_hf_mistral, false, true},
    {"qwen2", DT_HF_QWEN2, dt_hf_qwen2, false, false},
    {"qwen3", DT_HF_QWEN3, dt_hf_qwen3, false, false},
    {"mixtral", DT_HF_MIXTRAL, dt_hf_mixtral, false, false},
    {"qwen2_moe", DT_HF_QWEN2_MOE, dt_hf_qwen2_moe, false, true},
    {"qwen3_moe", DT_HF_QWEN3_MOE, dt_hf_qwen3_moe, false, true},
    {"deepseek", DT_HF_DEEPSEEK, dt_hf_deepseek, false, true},
    {"deepseek_v2", DT_HF_DEEPSEEK, dt_hf_deepseek_v2, false, true},
    {"deepseek_v3", DT_HF_DEEPSEEK, dt_hf_deepseek_v3, false, true},
    {"olmoe", DT_HF_OLMO, dt_hf_olmoe, false, true},
    {"olmo", DT_HF_OLMO, dt_hf_olmo, false, true},
    {"olmo2", DT_HF_OLMO, dt_hf_olmo2, false, true},
    {"gemma", DT_HF_GEMMA, dt_hf_gemma, false, true},
    {"gemma2", DT_HF_GEMMA, dt_hf_gemma2, false, true},
    {"gemma3_text", DT_HF_GEMMA, dt_hf_gemma3, false, true},
    {"phi3", DT_HF_PHI3, dt_hf_phi3, false, true},
    {"internlm2", DT_HF_INTERNLM2, dt_hf_internlm2, false, true},
    {"gpt2", DT_HF_GPT2, dt_hf_gpt2, false, false},
    {"gpt_neox", DT_HF_NEOX, dt_hf_gpt_neox, false, false},
    {"falcon", DT_HF_FALCON, dt_hf_falcon, false, false},
    {"vit", DT_HF_VIT, dt_hf_vit, false, false},
    {"clip", DT_HF_CLIP, dt_hf_clip, true, false},
    {"clip_vision_model", DT_HF_CLIP, dt_hf_clip, false, false},
    {"siglip", DT_HF_SIGLIP, dt_hf_siglip, true, false},
    {"siglip_vision_model", DT_HF_SIGLIP, dt_hf_siglip, false, false},
    {"dinov2", DT_HF_DINOV2, dt_hf_dinov2, false, false},
    {"intern_vit_6b", DT_HF_INTERN_VIT, dt_hf_intern_vit, false, false},
    {"qwen2_vl_vision", DT_HF_QWEN_VISION, dt_hf_qwen2_vision, false, false},
    {"qwen2_5_vl_vision", DT_HF_QWEN_VISION, dt_hf_qwen25_vision, false, false},
    {"UNet2DConditionModel", DT_HF_UNET, dt_hf_unet, false, false},
};
enum { N_READERS = sizeof(readers) / sizeof(readers[0]) };

static const struct reader *reader_of(const char *type)
{
    for (int i = 0; i < N_READERS; i++)
        if (strcmp(readers[i].type, type) == 0)
            return &readers[i];
    return NULL;
}

static enum dt_status unsupported(struct dt_node at, const char *type, struct dt_error *err)
{
    const char *types[N_READERS + DT_HF_PAIRS + 1], *near, *missing = dt_hf_missing(type);
    int n = 0;
    char list[1024];
    size_t used = 0;

    if (missing)
        return dt_node_error(at, err, "model type \"%s\" needs %s, which blocks cannot express",
                             type, missing);
    for (int i = 0; i < N_READERS; i++)
        types[n++] = readers[i].type;
    for (int i = 0; i < DT_HF_PAIRS; i++)
        types[n++] = dt_hf_pairs[i].type;
    types[n] = NULL;
    for (int i = 0; i < n; i++)
        used += (size_t)snprintf(list + used, sizeof(list) - used, "%s%s", i ? ", " : "", types[i]);
    near = dt_suggest(type, types);
    return dt_node_error(at, err, "model type \"%.60s\" is not supported%s%s%s (supported: %s)",
                         type, near ? "; the nearest is \"" : "", near ? near : "",
                         near ? "\"" : "", list);
}

static bool somewhere(struct dt_node root, const char *key)
{
    static const char *const inside[] = {"vision_config", "text_config", "llm_config",
                                         "rope_parameters", "rope_scaling"};
    struct dt_node vision = dt_map_get(root, inside[0]);
    bool found = dt_node_present(dt_map_get(root, key)) || dt_node_present(dt_map_get(vision, key));

    for (size_t i = 0; i < sizeof(inside) / sizeof(inside[0]) && !found; i++)
        found = dt_node_present(dt_map_get(dt_map_get(root, inside[i]), key));
    return found;
}

/* Keys that a job leaves out on purpose: each must be there, or it is a slip of the pen. */
static enum dt_status check_ignore(const struct dt_hf *hf, struct dt_node root)
{
    if (dt_node_present(hf->ignore) && !dt_node_is_seq(hf->ignore))
        return dt_node_error(hf->ignore, hf->err, "ignore: expected a list of keys of the config");
    for (size_t i = 0; i < dt_seq_size(hf->ignore); i++) {
        const char *key = dt_node_text(dt_seq_at(hf->ignore, i));

        if (!key || !somewhere(root, key))
            return dt_node_error(dt_seq_at(hf->ignore, i), hf->err,
                                 "ignore: the config has no key \"%.60s\"", key ? key : "?");
        dt_hf_assume(hf, "%s: ignored, as the job asks", key);
    }
    return DT_OK;
}

static const char *type_key(struct dt_node map)
{
    return dt_node_present(dt_map_get(map, "model_type")) ? "model_type" : "_class_name";
}

static enum dt_status read_type(struct dt_node map, char *type, size_t size, struct dt_error *err)
{
    const char *key = type_key(map);

    if (!dt_node_is_map(map))
        return dt_node_error(map, err, "a Hugging Face config is a JSON object");
    if (!dt_node_present(dt_map_get(map, key)))
        return dt_node_error(map, err,
                             "a Hugging Face config needs \"model_type\" (or \"_class_name\" "
                             "for diffusers)");
    return dt_get_string(map, key, type, size, err);
}

/* One tower of a model that has both; `around`: bits of keys that stand beside its own. */
static enum dt_status read_tower(const struct dt_hf *root, const char *key, const char *reader,
                                 unsigned around, struct dt_shape *s)
{
    struct dt_hf hf = *root;
    const struct reader *r;
    char type[64] = "";

    if (key)
        hf.map = dt_map_get(root->map, key);
    if (!dt_node_is_map(hf.map))
        return dt_node_error(root->map, root->err, "%s config: key \"%s\" is missing (an object)",
                             root->type, key);
    if (reader)
        snprintf(type, sizeof(type), "%s", reader);
    else
        DT_TRY(read_type(hf.map, type, sizeof(type), hf.err));
    r = reader_of(type);
    if (!r)
        return unsupported(dt_map_get(hf.map, type_key(hf.map)), type, hf.err);
    hf.type = type;
    hf.planned = true;
    DT_TRY(r->read(&hf, s));
    return dt_hf_check_keys(&hf, r->keys | around);
}

static enum dt_status read_pair(const struct dt_hf *hf, const struct dt_hf_pair *p,
                                enum dt_hf_part part, struct dt_shape *s)
{
    if (part == DT_HF_ALL)
        return dt_node_error(hf->map, hf->err,
                             "a %s config has an encoder and an LLM: state it for the whole model, "
                             "or part: vision or part: text beside config",
                             p->type);
    if (p->text)
        DT_TRY(dt_hf_check_keys(hf, DT_HF_VLM));
    if (part == DT_HF_TEXT) {
        DT_TRY(read_tower(hf, p->text, p->text_type, p->text ? 0 : DT_HF_VLM, s));
        if (s->role != DT_ROLE_LLM)
            return dt_node_error(dt_map_get(hf->map, p->text), hf->err,
                                 "%s: it is not of a language model", p->text);
        if (!p->text) /* Qwen2-VL's, of which a patch has three positions */
            s->planned_only = "multimodal rotary positions";
        return DT_OK;
    }
    DT_TRY(read_tower(hf, "vision_config", p->vision_type, 0, s));
    if (s->role != DT_ROLE_ENCODER)
        return dt_node_error(dt_map_get(hf->map, "vision_config"), hf->err,
                             "vision_config: it is of a language model");
    return p->join(hf, s);
}

static enum dt_status read_root(struct dt_node root, struct dt_node ignore, enum dt_hf_part part,
                                struct dt_shape *s, char *assumed, size_t size,
                                struct dt_error *err)
{
    char type[64] = "";
    struct dt_hf hf = {
        .map = root, .type = type, .assumed = assumed, .size = size, .err = err, .ignore = ignore};
    struct dt_node vision = dt_map_get(root, "vision_config");
    const struct reader *r;

    DT_TRY(read_type(root, type, sizeof(type), err));
    DT_TRY(check_ignore(&hf, root));
    if (dt_hf_pair_of(type))
        return read_pair(&hf, dt_hf_pair_of(type), part, s);
    r = reader_of(type);
    if (!r)
        return unsupported(dt_map_get(root, type_key(root)), type, err);
    if (part != DT_HF_ALL)
        return dt_node_error(root, err, "a %s config has no two towers: leave out part", type);
    if (r->nested && dt_node_present(vision)) {
        if (!dt_node_is_map(vision))
            return dt_node_error(vision, err, "vision_config: expected an object");
        DT_TRY(dt_hf_check_keys(&hf, DT_HF_PAIR));
        hf.map = vision;
    }
    hf.planned = r->planned;
    DT_TRY(r->read(&hf, s));
    return dt_hf_check_keys(&hf, r->keys);
}

/* Errors of the config are placed there, those of `ignore` in the job. */
static enum dt_status parse(const char *name, const char *text, size_t len, struct dt_node ignore,
                            enum dt_hf_part part, struct dt_shape *s, char *assumed, size_t size,
                            struct dt_error *err)
{
    struct dt_doc *doc = NULL;
    struct dt_shape shape = {0};
    enum dt_status st;

    DT_TRY(dt_doc_parse(name, text, len, err, &doc));
    st = read_root(dt_doc_root(doc), ignore, part, &shape, assumed, size, err);
    if (st == DT_OK)
        st = dt_shape_check(dt_doc_root(doc), &shape, err);
    dt_doc_free(doc);
    if (st == DT_OK)
        *s = shape;
    return st;
}

enum dt_status dt_hf_parse(const char *name, const char *text, size_t len, struct dt_shape *s,
                           char *assumed, size_t size, struct dt_error *err)
{
    return parse(name, text, len, (struct dt_node){0}, DT_HF_ALL, s, assumed, size, err);
}

enum dt_status dt_hf_is_pair(const char *path, struct dt_error *err, bool *pair)
{
    struct dt_doc *doc = NULL;
    char type[64] = "";
    enum dt_status st;

    DT_TRY(dt_doc_read(path, err, &doc));
    st = read_type(dt_doc_root(doc), type, sizeof(type), err);
    if (st == DT_OK)
        *pair = dt_hf_pair_of(type) != NULL;
    dt_doc_free(doc);
    return st;
}

enum dt_status dt_hf_shape(const char *path, struct dt_node ignore, enum dt_hf_part part,
                           struct dt_shape *s, char *assumed, size_t size, struct dt_error *err)
{
    char *text = NULL;
    size_t len = 0;
    enum dt_status st;

    DT_TRY(dt_file_read(path, CONFIG_MAX, err, &text, &len));
    st = parse(path, text, len, ignore, part, s, assumed, size, err);
    dt_free(text);
    return st;
}

enum dt_status dt_hf_module(const char *path, struct dt_arena *arena, struct dt_error *err,
                            struct dt_module *out, char *assumed, size_t size)
{
    struct dt_shape shape;
    struct dt_module module = {0};

    DT_TRY(dt_hf_shape(path, (struct dt_node){0}, DT_HF_ALL, &shape, assumed, size, err));
    DT_TRY(dt_shape_build(&shape, 0, arena, err, &module));
    *out = module;
    return DT_OK;
}
