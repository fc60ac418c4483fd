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

static const struct {
    const char *type;
    unsigned keys;
    enum dt_status (*read)(const struct dt_hf *, struct dt_shape *);
    bool nested; /* the shape is inside vision_config when there is one */
} readers[] = {
    {"llama", DT_HF_LLAMA, dt_hf_llama, false},
    {"qwen2", DT_HF_QWEN2, dt_hf_qwen2, false},
    {"qwen3", DT_HF_QWEN3, dt_hf_qwen3, false},
    {"mixtral", DT_HF_MIXTRAL, dt_hf_mixtral, false},
    {"gpt2", DT_HF_GPT2, dt_hf_gpt2, false},
    {"vit", DT_HF_VIT, dt_hf_vit, false},
    {"clip", DT_HF_CLIP, dt_hf_clip, true},
    {"clip_vision_model", DT_HF_CLIP, dt_hf_clip, false},
    {"siglip", DT_HF_SIGLIP, dt_hf_siglip, true},
    {"siglip_vision_model", DT_HF_SIGLIP, dt_hf_siglip, false},
    {"UNet2DConditionModel", DT_HF_UNET, dt_hf_unet, false},
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

static bool somewhere(struct dt_node root, const char *key)
{
    static const char *const inside[] = {"vision_config", "rope_parameters", "rope_scaling"};
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

static enum dt_status read_root(struct dt_node root, struct dt_node ignore, struct dt_shape *s,
                                char *assumed, size_t size, struct dt_error *err)
{
    char type[64] = "";
    const char *key =
        dt_node_present(dt_map_get(root, "model_type")) ? "model_type" : "_class_name";
    struct dt_hf hf = {root, type, assumed, size, err, ignore};
    struct dt_node vision = dt_map_get(root, "vision_config");
    int i;

    if (!dt_node_is_map(root))
        return dt_node_error(root, err, "a Hugging Face config is a JSON object");
    if (!dt_hf_has(&hf, key))
        return dt_node_error(root, err,
                             "a Hugging Face config needs \"model_type\" (or \"_class_name\" "
                             "for diffusers)");
    DT_TRY(dt_get_string(root, key, type, sizeof(type), err));
    for (i = 0; i < N_READERS && strcmp(readers[i].type, type) != 0; i++)
        ;
    if (i == N_READERS)
        return unsupported(dt_map_get(root, key), type, err);
    DT_TRY(check_ignore(&hf, root));
    if (readers[i].nested && dt_node_present(vision)) {
        if (!dt_node_is_map(vision))
            return dt_node_error(vision, err, "vision_config: expected an object");
        DT_TRY(dt_hf_check_keys(&hf, DT_HF_PAIR));
        hf.map = vision;
    }
    DT_TRY(readers[i].read(&hf, s));
    return dt_hf_check_keys(&hf, readers[i].keys);
}

/* Errors of the config are placed there, those of `ignore` in the job. */
static enum dt_status parse(const char *name, const char *text, size_t len, struct dt_node ignore,
                            struct dt_shape *s, char *assumed, size_t size, struct dt_error *err)
{
    struct dt_doc *doc = NULL;
    struct dt_shape shape = {0};
    enum dt_status st;

    DT_TRY(dt_doc_parse(name, text, len, err, &doc));
    st = read_root(dt_doc_root(doc), ignore, &shape, assumed, size, err);
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
    return parse(name, text, len, (struct dt_node){0}, s, assumed, size, err);
}

enum dt_status dt_hf_shape(const char *path, struct dt_node ignore, struct dt_shape *s,
                           char *assumed, size_t size, struct dt_error *err)
{
    char *text = NULL;
    size_t len = 0;
    enum dt_status st;

    DT_TRY(dt_file_read(path, CONFIG_MAX, err, &text, &len));
    st = parse(path, text, len, ignore, s, assumed, size, err);
    dt_free(text);
    return st;
}

enum dt_status dt_hf_module(const char *path, struct dt_arena *arena, struct dt_error *err,
                            struct dt_module *out, char *assumed, size_t size)
{
    struct dt_shape shape;
    struct dt_module module = {0};

    DT_TRY(dt_hf_shape(path, (struct dt_node){0}, &shape, assumed, size, err));
    DT_TRY(dt_shape_build(&shape, 0, arena, err, &module));
    *out = module;
    return DT_OK;
}
