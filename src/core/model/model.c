/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Reading models: a preset or file, plus what the job changes in it, module by module.
 *
 * A model file has `modules:` (name -> module map) or is itself one LLM module; a job may write
 * `model: {preset: mllm-72b, generator: {resize: 512}}`, where every other key names a module of
 * the preset. */
#include "core/model/boundary.h"
#include "core/model/shape.h"

#include <stdio.h>
#include <string.h>

enum { PATH_SIZE = 4096, PRESET_DEPTH_MAX = 8 };

struct draft { /* modules as stated so far */
    int n;
    char name[DT_MAX_MODULES][DT_NAME_MAX];
    struct dt_shape shape[DT_MAX_MODULES];
    char model_name[DT_NAME_MAX];
    char assumed[sizeof(((struct dt_model *)0)->assumed)];
    struct dt_error *err;
};

static int find(const struct draft *d, const char *name)
{
    for (int i = 0; i < d->n; i++)
        if (strcmp(d->name[i], name) == 0)
            return i;
    return -1;
}

/* The module i, perhaps a new one, is of this shape. */
static void keep(struct draft *d, const char *name, int i, const struct dt_shape *shape,
                 const char *line)
{
    d->shape[i] = *shape;
    if (i == d->n)
        memcpy(d->name[d->n++], name, strlen(name) + 1);
    while (*line) { /* "module.key: default" */
        size_t len = strcspn(line, "\n"), used = strlen(d->assumed);

        snprintf(d->assumed + used, sizeof(d->assumed) - used, "%s.%.*s\n", name, (int)len, line);
        line += len + (line[len] == '\n');
    }
}

static enum dt_status read_module(struct draft *d, const char *name, struct dt_node node, int i)
{
    char assumed[1024] = "";
    struct dt_shape shape = i < d->n ? d->shape[i] : (struct dt_shape){0};

    DT_TRY(dt_shape_read(node, &shape, assumed, sizeof(assumed), d->err));
    DT_TRY(dt_shape_check(node, &shape, d->err));
    keep(d, name, i, &shape, assumed);
    return DT_OK;
}

/* Both towers of a Hugging Face config. */
static enum dt_status read_towers(struct draft *d, struct dt_node node)
{
    static const struct {
        const char *name;
        enum dt_hf_part part;
    } towers[] = {{"encoder", DT_HF_VISION}, {"llm", DT_HF_TEXT}};

    for (int i = 0; i < 2; i++) {
        char assumed[1024] = "";
        struct dt_shape shape = {0};

        DT_TRY(dt_shape_read_part(node, towers[i].part, &shape, assumed, sizeof(assumed), d->err));
        DT_TRY(dt_shape_check(node, &shape, d->err));
        keep(d, towers[i].name, i, &shape, assumed);
    }
    return DT_OK;
}

static enum dt_status check_name(struct dt_node node, const char *name, struct dt_error *err)
{
    size_t ok = strspn(name, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-");

    if (name[0] == '\0' || name[ok] != '\0' || strlen(name) >= DT_NAME_MAX)
        return dt_node_error(node, err,
                             "module name \"%.60s\": use 1 to %d letters, digits, '-' or '_'", name,
                             DT_NAME_MAX - 1);
    if (strcmp(name, "preset") == 0 || strcmp(name, "name") == 0)
        return dt_node_error(node, err, "module name \"%s\" is a key of its own; choose another",
                             name);
    return DT_OK;
}

static enum dt_status read_modules(struct draft *d, struct dt_node map)
{
    if (!dt_node_is_map(map) || dt_map_size(map) == 0)
        return dt_node_error(map, d->err, "modules: expected a map from module name to module");
    for (size_t i = 0; i < dt_map_size(map); i++) {
        const char *name;
        struct dt_node node;

        dt_map_at(map, i, &name, &node);
        DT_TRY(check_name(node, name, d->err));
        if (d->n == DT_MAX_MODULES)
            return dt_node_error(node, d->err, "modules: at most %d", DT_MAX_MODULES);
        DT_TRY(read_module(d, name, node, d->n));
    }
    return DT_OK;
}

static enum dt_status no_such_module(const struct draft *d, const char *name, struct dt_node node)
{
    const char *words[DT_MAX_MODULES + 3] = {"preset", "name"}, *near;
    char list[DT_MAX_MODULES * (DT_NAME_MAX + 2) + 1] = "";
    size_t used = 0;

    for (int i = 0; i < d->n; i++) {
        words[i + 2] = d->name[i];
        used +=
            (size_t)snprintf(list + used, sizeof(list) - used, "%s%s", i ? ", " : "", d->name[i]);
    }
    near = dt_suggest(name, words);
    return dt_node_error(
        node, d->err, "model: \"%.60s\" is not a module of this model%s%s%s (modules: %s)", name,
        near ? "; did you mean \"" : "", near ? near : "", near ? "\"?" : "", list);
}

static enum dt_status read_node(struct draft *d, struct dt_node node, int depth);

static enum dt_status read_preset(struct draft *d, struct dt_node at, const char *name, int depth)
{
    struct dt_doc *doc = NULL;
    enum dt_status st;

    if (depth >= PRESET_DEPTH_MAX)
        return dt_node_error(at, d->err, "preset: more than %d presets inside one another",
                             PRESET_DEPTH_MAX);
    DT_TRY(dt_preset_open(at, "models", name, d->err, &doc));
    st = read_node(d, dt_doc_root(doc), depth + 1);
    dt_doc_free(doc);
    if (st == DT_OK && !strpbrk(name, "/.") && strlen(name) < DT_NAME_MAX)
        memcpy(d->model_name, name, strlen(name) + 1);
    return st;
}

static enum dt_status read_changes(struct draft *d, struct dt_node map)
{
    for (size_t i = 0; i < dt_map_size(map); i++) {
        const char *name;
        struct dt_node node;
        int m;

        dt_map_at(map, i, &name, &node);
        if (strcmp(name, "preset") == 0 || strcmp(name, "name") == 0 || strcmp(name, "hf") == 0)
            continue;
        m = find(d, name);
        if (m < 0)
            return no_such_module(d, name, node);
        DT_TRY(read_module(d, name, node, m));
    }
    return DT_OK;
}

static enum dt_status read_node(struct draft *d, struct dt_node node, int depth)
{
    static const char *const keys[] = {"name", "modules", NULL};
    char name[PATH_SIZE] = "";
    bool towers = false;

    if (dt_node_is_scalar(node) && !dt_node_is_null(node) && *dt_node_text(node))
        return read_preset(d, node, dt_node_text(node), depth);
    if (!dt_node_is_map(node))
        return dt_node_error(node, d->err,
                             "model: expected a preset name, a path or a map with "
                             "\"preset\" or \"modules\"");
    DT_TRY(dt_shape_is_pair(node, d->err, &towers));
    if (towers) {
        DT_TRY(read_towers(d, node));
        DT_TRY(read_changes(d, node));
    } else if (dt_node_present(dt_map_get(node, "modules"))) {
        DT_TRY(dt_map_check(node, "model", keys, d->err));
        DT_TRY(read_modules(d, dt_map_get(node, "modules")));
    } else if (dt_node_present(dt_map_get(node, "kind")) ||
               dt_node_present(dt_map_get(node, "hf"))) {
        DT_TRY(read_module(d, "llm", node, 0)); /* a lone LLM */
    } else if (dt_node_present(dt_map_get(node, "preset"))) {
        DT_TRY(dt_get_string(node, "preset", name, sizeof(name), d->err));
        DT_TRY(read_preset(d, dt_map_get(node, "preset"), name, depth));
        DT_TRY(read_changes(d, node));
    } else {
        DT_TRY(dt_map_check(node, "model", keys, d->err));
        return dt_node_error(node, d->err, "model: needs \"preset\" or \"modules\"");
    }
    return dt_get_string(node, "name", d->model_name, sizeof(d->model_name), d->err);
}

/* Routing decides the rows of an expert; nothing here knows it before training does. */
static void assume_routing(const struct dt_shape *s, const struct dt_module *m, char *assumed,
                           size_t size)
{
    size_t used = strlen(assumed);
    bool capacity = s->capacity > 0;

    if (s->n_experts == 0)
        return;
    snprintf(assumed + used, size - used,
             "%s.%s: %g (%s; a token meets %.3g of %.3g billion parameters)\n", m->name,
             capacity ? "expert_capacity" : "expert_imbalance",
             capacity           ? s->capacity
             : s->imbalance > 1 ? s->imbalance
                                : 1.0,
             capacity ? "every expert computes that many times the mean rows, and more are dropped"
                      : "the busiest rank of expert parallelism has that many times the mean rows",
             1e-9 * (double)dt_module_active_params(m), 1e-9 * (double)dt_module_params(m));
}

/* One LLM; encoders feed it, generators take from it. */
static enum dt_status assemble(const struct draft *d, struct dt_node node, struct dt_model *m)
{
    const char *file = dt_node_is_scalar(node) ? dt_node_text(node) : NULL; /* what is wrong */
    int llm = -1, context = 0;

    for (int i = 0; i < d->n; i++) {
        if (d->shape[i].role != DT_ROLE_LLM)
            continue;
        if (llm >= 0)
            return dt_node_error(node, d->err,
                                 "model%s%s: \"%s\" and \"%s\" are both LLMs; a model has one",
                                 file ? " " : "", file ? file : "", d->name[llm], d->name[i]);
        llm = i;
    }
    if (llm < 0)
        return dt_node_error(node, d->err,
                             "model%s%s: has no LLM; a model is encoders, one LLM, generators",
                             file ? " " : "", file ? file : "");
    for (int role = DT_ROLE_ENCODER; role <= DT_ROLE_GENERATOR; role++) {
        for (int i = 0; i < d->n; i++) {
            struct dt_module *out = &m->modules[m->n_modules];

            if ((int)d->shape[i].role != role)
                continue;
            DT_TRY(dt_shape_build(&d->shape[i], d->shape[llm].hidden, &m->arena, d->err, out));
            memcpy(out->name, d->name[i], sizeof(out->name));
            if (role == DT_ROLE_LLM)
                m->llm = m->n_modules;
            if (out->out_tokens_per_item > context)
                context = out->out_tokens_per_item;
            m->n_modules++;
        }
    }
    m->modules[m->llm].out_tokens_per_item = context;
    assume_routing(&d->shape[llm], &m->modules[m->llm], m->assumed, sizeof(m->assumed));
    for (int i = 0; i < m->n_modules; i++)
        if (i != m->llm)
            m->edges[m->n_edges++] =
                i < m->llm ? (struct dt_model_edge){i, m->llm} : (struct dt_model_edge){m->llm, i};
    return DT_OK;
}

enum dt_status dt_model_read(struct dt_node node, struct dt_error *err, struct dt_model **out)
{
    struct draft *d = dt_calloc(1, sizeof(*d));
    struct dt_model *m = dt_calloc(1, sizeof(*m));
    enum dt_status st;

    if (!d || !m) {
        st = dt_error_nomem(err, "a model");
        goto out;
    }
    d->err = err;
    memcpy(d->model_name, "model", sizeof("model"));
    st = read_node(d, node, 0);
    if (st == DT_OK)
        memcpy(m->assumed, d->assumed, sizeof(m->assumed));
    if (st == DT_OK)
        st = assemble(d, node, m);
    if (st == DT_OK)
        st = dt_model_wires(m, err);
    if (st == DT_OK) {
        memcpy(m->name, d->model_name, sizeof(m->name));
        *out = m;
        m = NULL;
    }
out:
    dt_model_free(m);
    dt_free(d);
    return st;
}

void dt_model_free(struct dt_model *m)
{
    if (!m)
        return;
    dt_arena_free(&m->arena);
    dt_free(m);
}

int dt_model_find(const struct dt_model *m, const char *module)
{
    for (int i = 0; i < m->n_modules; i++)
        if (strcmp(m->modules[i].name, module) == 0)
            return i;
    return -1;
}
