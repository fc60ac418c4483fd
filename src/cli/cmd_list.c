/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * disttrain list: the presets that jobs are built from, each with a line of facts. */
#include "cli/rows.h"
#include "cli/session.h"
#include "base/doc.h"
#include "base/file.h"
#include "base/mem.h"
#include "core/model/shape.h"
#include "core/profile/profile_schema.h"

#include <string.h>

/* ---- models ---- */

/* A module preset is looked at in a model of its own, beside a small LLM where it is none. */
static enum dt_status read_model(const char *name, const char *kind, struct dt_error *err,
                                 struct dt_model **out)
{
    struct dt_doc *doc;
    char text[512];
    enum dt_status st;

    if (!kind)
        snprintf(text, sizeof(text), "\"%s\"", name);
    else if (strcmp(kind, "llm") == 0)
        snprintf(text, sizeof(text), "{modules: {llm: {preset: %s}}}", name);
    else
        snprintf(text, sizeof(text), "{modules: {%s: {preset: %s}, llm: {preset: llama-7b}}}",
                 strcmp(kind, "unet") == 0 ? "generator" : "encoder", name);
    DT_TRY(dt_doc_parse(name, text, strlen(text), err, &doc));
    st = dt_model_read(dt_doc_root(doc), err, out);
    dt_doc_free(doc);
    return st;
}

static void model_row(struct dt_cli_rows *o, const char *name, const char *kind,
                      const struct dt_model *m)
{
    const char *only = !kind                       ? NULL
                       : strcmp(kind, "llm") == 0  ? "llm"
                       : strcmp(kind, "unet") == 0 ? "generator"
                                                   : "encoder";
    int64_t params = 0;
    char text[512];
    size_t n = 0;

    for (int i = 0; i < m->n_modules; i++) {
        const struct dt_module *x = &m->modules[i];

        if (only && strcmp(x->name, only) != 0)
            continue;
        params += dt_module_params(x);
        n += n < sizeof(text) ? (size_t)snprintf(text + n, sizeof(text) - n,
                                                 "%s%s %.4g B in %d blocks", n ? ", " : "", x->name,
                                                 1e-9 * (double)dt_module_params(x), x->n_blocks)
                              : 0;
    }
    dt_cli_row(o);
    dt_cli_row_text(o, "name", "model", name);
    dt_cli_row_text(o, "kind", "kind", kind ? "module" : "model");
    dt_cli_row_int(o, "parameters", NULL, params);
    dt_cli_row_number(o, NULL, "parameters [10^9]", "%.3f", 1e-9, (double)params);
    dt_cli_row_text(o, "modules", "modules", text);
}

static enum dt_status model(struct dt_cli_rows *o, const char *name, struct dt_node root,
                            struct dt_error *err)
{
    const char *kind = dt_node_text(dt_map_get(root, "kind"));
    struct dt_model *m;

    DT_TRY(read_model(name, kind, err, &m));
    model_row(o, name, kind, m);
    dt_model_free(m);
    return DT_OK;
}

/* ---- the others ---- */

static enum dt_status cluster(struct dt_cli_rows *o, const char *name, struct dt_node root,
                              struct dt_error *err)
{
    struct dt_cluster c = dt_cluster_defaults;

    DT_TRY(dt_cluster_read(root, err, &c));
    dt_cli_row(o);
    dt_cli_row_text(o, "name", "cluster", name);
    dt_cli_row_text(o, "device", "device", c.device);
    dt_cli_row_int(o, "gpus", "GPUs", dt_cluster_gpus(&c));
    dt_cli_row_int(o, "nodes", NULL, c.nodes);
    dt_cli_row_int(o, "gpus_per_node", NULL, c.gpus_per_node);
    dt_cli_row_cell(o, "nodes", "%d of %d", c.nodes, c.gpus_per_node);
    dt_cli_row_number(o, "peak_flops", "peak [TFLOP/s]", "%.4g", o->json ? 1 : 1e-12, c.peak_flops);
    dt_cli_row_number(o, "memory_bytes", "memory [GiB]", "%.2f", o->json ? 1 : 1 / 1073741824.0,
                      c.mem_bytes);
    dt_cli_row_number(o, "nvlink_bytes_per_s", "in a node [GB/s]", "%.4g", o->json ? 1 : 1e-9,
                      c.nvlink_bytes_per_s);
    dt_cli_row_number(o, "nic_bytes_per_s", NULL, NULL, 1, c.nic_bytes_per_s);
    dt_cli_row_int(o, "nics_per_node", NULL, c.nics_per_node);
    dt_cli_row_cell(o, "NICs of a node [Gb/s]", "%d x %.4g", c.nics_per_node,
                    8e-9 * c.nic_bytes_per_s);
    return DT_OK;
}

/* What a map or a name says: a preset, or that it is stated there. */
static const char *name_of(struct dt_node n)
{
    const char *preset = dt_node_text(dt_map_get(n, "preset"));

    return dt_node_is_scalar(n) ? dt_node_text(n) : preset ? preset : "its own";
}

static void text_of(struct dt_cli_rows *o, struct dt_node map, const char *key, const char *head)
{
    const char *text = dt_node_text(dt_map_get(map, key));

    dt_cli_row_text(o, key, head, text ? text : o->json ? NULL : "-");
}

static enum dt_status job(struct dt_cli_rows *o, const char *name, struct dt_node root,
                          struct dt_error *err)
{
    struct dt_node train = dt_map_get(root, "train");
    const char *strategy = dt_node_text(dt_map_get(dt_map_get(root, "search"), "strategy"));

    (void)err;
    dt_cli_row(o);
    dt_cli_row_text(o, "name", "job", name);
    dt_cli_row_text(o, "model", "model", name_of(dt_map_get(root, "model")));
    dt_cli_row_text(o, "cluster", "cluster", name_of(dt_map_get(root, "cluster")));
    dt_cli_row_text(o, "samples", "samples", name_of(dt_map_get(root, "samples")));
    text_of(o, train, "global_batch", "batch");
    text_of(o, train, "seq_len", "tokens of a sample");
    dt_cli_row_text(o, "strategy", "strategy",
                    strategy ? strategy : dt_plan_strategy_names[DT_STRATEGY_DISTTRAIN]);
    dt_cli_row_bool(o, "trains", dt_node_present(dt_map_get(root, "run")));
    dt_cli_row_cell(o, "trains", "%s", dt_node_present(dt_map_get(root, "run")) ? "yes" : "no");
    return DT_OK;
}

static enum dt_status samples(struct dt_cli_rows *o, const char *name, struct dt_node root,
                              struct dt_error *err)
{
    const char *source = dt_node_text(dt_map_get(root, "source"));
    char line[400];

    (void)err;
    snprintf(line, sizeof(line), "%s", source ? source : "not stated");
    for (char *c = line; *c; c++)
        *c = *c == '\n' ? ' ' : *c;
    dt_cli_row(o);
    dt_cli_row_text(o, "name", "samples", name);
    dt_cli_row_text(o, "source", "source", line);
    dt_cli_row_text(o, "licence", NULL, dt_node_text(dt_map_get(root, "licence")));
    return DT_OK;
}

static enum dt_status profile(struct dt_cli_rows *o, const char *name, const char *path,
                              struct dt_error *err)
{
    struct dt_profile_table t = {0};
    char devices[512] = "";
    size_t n = 0;
    enum dt_status st = dt_profile_table_read(path, err, &t);

    if (st == DT_OK) {
        for (int i = 0; i < t.n_devices && n < sizeof(devices); i++)
            n += (size_t)snprintf(devices + n, sizeof(devices) - n, "%s%s", i ? ", " : "",
                                  t.devices[i]);
        dt_cli_row(o);
        dt_cli_row_text(o, "name", "profile", name);
        dt_cli_row_text(o, "devices", "devices", devices);
        dt_cli_row_int(o, "rows", "rows", (int64_t)t.n_rows);
        dt_cli_row_int(o, "sources", "sources", t.n_sources);
    }
    dt_profile_table_free(&t);
    return st;
}

/* ---- which ---- */

static const struct dt_cli_option options[] = {
    {"names", 0, DT_OPT_FLAG, NULL, "the names alone, one a line"},
    {NULL, 0, DT_OPT_FLAG, NULL, NULL},
};

static const char *const names[] = {"models", "clusters", "jobs", "samples", "profiles", NULL};
enum { PROFILES = 4 };

static enum dt_status one(struct dt_cli_rows *o, int kind, const char *name, struct dt_error *err)
{
    static enum dt_status (*const fact[])(struct dt_cli_rows *, const char *, struct dt_node,
                                          struct dt_error *) = {model, cluster, job, samples};
    char path[4096];
    struct dt_doc *doc;
    enum dt_status st;

    DT_TRY(dt_file_find(names[kind], name, kind == PROFILES ? ".sql" : ".yaml", err, path,
                        sizeof(path)));
    if (kind == PROFILES)
        return profile(o, name, path, err);
    DT_TRY(dt_doc_read(path, err, &doc));
    st = fact[kind](o, name, dt_doc_root(doc), err);
    dt_doc_free(doc);
    return st;
}

/* A preset that cannot be read does not hide the others. */
static void rows(struct dt_cli_rows *o, int kind, char **preset, size_t n)
{
    struct dt_error err;
    char text[sizeof(err.message) + sizeof(err.file) + 64];

    for (size_t i = 0; i < n; i++) {
        memset(&err, 0, sizeof(err));
        if (one(o, kind, preset[i], &err) == DT_OK)
            continue;
        dt_error_format(&err, text, sizeof(text));
        fprintf(stderr, "disttrain: warning: %s is left out: %s\n", preset[i], text);
    }
}

static enum dt_status facts(const struct dt_cli *cli, int kind, char **preset, size_t n,
                            struct dt_error *err)
{
    struct dt_cli_rows o;
    struct dt_json j;

    if (!cli->json) {
        dt_cli_rows_table(&o);
        rows(&o, kind, preset, n);
        dt_cli_rows_end(&o, stdout);
        return DT_OK;
    }
    dt_json_init(&j, true);
    dt_json_begin_object(&j);
    dt_cli_rows_json(&o, &j, names[kind]);
    rows(&o, kind, preset, n);
    dt_cli_rows_end(&o, NULL);
    dt_json_end_object(&j);
    return dt_cli_json_emit(&j, err);
}

static enum dt_status command(struct dt_cli *cli, struct dt_error *err)
{
    bool bare = dt_cli_flag(cli, "names") && !cli->json;
    enum dt_status st = DT_OK;
    char **preset;
    size_t n;
    int kind;

    DT_TRY(dt_cli_action(cli, err, &kind));
    DT_TRY(dt_file_presets(names[kind], kind == PROFILES ? ".sql" : ".yaml", err, &preset, &n));
    for (size_t i = 0; i < n && bare; i++)
        printf("%s\n", preset[i]);
    if (!bare)
        st = facts(cli, kind, preset, n, err);
    for (size_t i = 0; i < n; i++)
        dt_free(preset[i]);
    dt_free(preset);
    return st;
}

const struct dt_cli_command dt_cmd_list = {
    .name = "list",
    .args = "models | clusters | jobs | samples | profiles",
    .summary = "the presets that jobs are built from, with a line of facts each",
    .options = options,
    .min_args = 1,
    .max_args = 1,
    .run = command,
    .actions = names,
};
