/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Module maps of model files (disttrain-job(5)) into shapes. */
#include "core/model/shape.h"

#include "base/file.h"

#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

enum { PATH_SIZE = 4096, PRESET_DEPTH_MAX = 8 };

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

/* ---- derived numbers ---- */

/* A change of heads or of the width asks anew for numbers that followed from them.  Those that did not were stated, and
 * stay. */
static void derive_anew(struct dt_node n, struct dt_shape *s)
{
    bool heads = dt_node_present(dt_map_get(n, "heads"));
    bool derived = s->heads > 0 && s->head_dim * s->heads == s->hidden;

    if (derived && (heads || dt_node_present(dt_map_get(n, "hidden"))))
        s->head_dim = 0;
    if (heads && s->kv_heads == s->heads)
        s->kv_heads = 0;
    if (!heads && dt_node_present(dt_map_get(n, "head_dim")))
        memset(s->unet.heads, 0, sizeof(s->unet.heads));
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

/* hf: config.json, or {config: config.json, ignore: [key, ...], part: vision}. */
struct hf {
    char path[PATH_SIZE];
    struct dt_node ignore;
    int part; /* enum dt_hf_part */
};

static enum dt_status open_hf(struct dt_node module, struct hf *out, struct dt_error *err)
{
    struct dt_node hf = dt_map_get(module, "hf"), at = hf;
    char name[PATH_SIZE] = "";
    int part = -1;

    out->ignore = (struct dt_node){0};
    if (dt_node_is_map(hf)) {
        DT_TRY(dt_keys_check(hf, "hf", dt_shape_hf_keys, err));
        DT_TRY(dt_get_enum(hf, "part", dt_shape_part_words, &part, err));
        DT_TRY(dt_keys_require(hf, "hf", dt_shape_hf_keys, err));
        DT_TRY(dt_get_string(hf, "config", name, sizeof(name), err));
        at = dt_map_get(hf, "config");
        out->ignore = dt_map_get(hf, "ignore");
    } else {
        DT_TRY(dt_get_string(module, "hf", name, sizeof(name), err));
    }
    out->part = part + 1;
    return dt_preset_relative(at, name, err, out->path, sizeof(out->path));
}

static enum dt_status read_hf(struct dt_node module, struct dt_shape *s, char *assumed, size_t size,
                              struct dt_error *err)
{
    struct hf hf;

    DT_TRY(open_hf(module, &hf, err));
    return dt_hf_shape(hf.path, hf.ignore, (enum dt_hf_part)hf.part, s, assumed, size, err);
}

enum dt_status dt_shape_is_pair(struct dt_node node, struct dt_error *err, bool *pair)
{
    struct hf hf;

    *pair = false;
    if (!dt_node_present(dt_map_get(node, "hf")))
        return DT_OK;
    DT_TRY(open_hf(node, &hf, err));
    return hf.part == DT_HF_ALL ? dt_hf_is_pair(hf.path, err, pair) : DT_OK;
}

enum dt_status dt_shape_read_part(struct dt_node node, enum dt_hf_part part, struct dt_shape *s,
                                  char *assumed, size_t size, struct dt_error *err)
{
    struct hf hf;

    DT_TRY(open_hf(node, &hf, err));
    return dt_hf_shape(hf.path, hf.ignore, part, s, assumed, size, err);
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
    return read_hf(node, s, assumed, size, err);
}

static enum dt_status read_depth(struct dt_node node, int depth, struct dt_shape *s, char *assumed,
                                 size_t size, struct dt_error *err)
{
    const struct dt_shape_row *row;
    int kind = (int)s->kind - 1;
    bool stated = dt_node_present(dt_map_get(node, "kind"));

    if (!dt_node_is_map(node))
        return dt_node_error(node, err,
                             "a module is a map: {preset: NAME, ...}, {hf: config.json, "
                             "...} or {kind: llm|encoder|unet, ...}");
    DT_TRY(read_base(node, depth, s, assumed, size, err));
    DT_TRY(dt_get_enum(node, "kind", dt_shape_kind_words, &kind, err));
    if (stated && s->kind == DT_SHAPE_NONE)
        dt_shape_init(s, (enum dt_shape_kind)(kind + 1));
    else if (stated && (int)s->kind != kind + 1)
        return dt_node_error(dt_map_get(node, "kind"), err,
                             "kind: the module is of kind %s already",
                             dt_shape_kind_words[s->kind - 1]);
    if (s->kind == DT_SHAPE_NONE) {
        DT_TRY(dt_keys_check(node, "a module", dt_shape_any_keys, err));
        return dt_node_error(node, err,
                             "a module needs \"preset\", \"hf\" or \"kind\" (llm, "
                             "encoder, unet)");
    }
    row = &dt_shape_rows[s->kind];
    derive_anew(node, s);
    return dt_keys_read(node, row->what, row->keys, s, err);
}

enum dt_status dt_shape_read(struct dt_node node, struct dt_shape *s, char *assumed, size_t size,
                             struct dt_error *err)
{
    return read_depth(node, 0, s, assumed, size, err);
}
