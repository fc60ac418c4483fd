/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * What the page of disttrain serve offers: the keys' rows, and how each stands in the job. */
#include "config.h"

#include "cli/serve.h"

#include "base/file.h"
#include "base/json.h"
#include "base/mem.h"
#include "report/chart.h"

#include <math.h>
#include <string.h>

/* Controls that the page begins with, and what they are called; every other key can be added. */
static const struct {
    const char *key, *label;
} first[] = {
    {"cluster.nodes", "Nodes"},
    {"cluster.gpus_per_node", "GPUs per node"},
    {"cluster.nic_bandwidth", "NIC bandwidth"},
    {"train.global_batch", "Global batch"},
    {"train.seq_len", "Sequence length"},
    {"search.strategy", "Strategy"},
    {"train.recompute", "Recompute"},
    {"train.frozen", "Frozen modules"},
};

struct listing {
    struct dt_json *j;
    const struct dt_job *job;
};

/* As stated in the job, where its form is its own; else as it was read. */
static void add_value(struct dt_json *j, const struct dt_key *key, const char *path,
                      const struct dt_job *job, const void *in)
{
    char text[512] = "", part[64];
    struct dt_node n = dt_doc_root(job->doc);

    for (const char *p = path; *p; p += strcspn(p, ".") + (p[strcspn(p, ".")] == '.')) {
        snprintf(part, sizeof(part), "%.*s", (int)strcspn(p, "."), p);
        n = dt_map_get(n, part);
    }
    if (dt_node_is_scalar(n) && key->type != DT_KEY_QUANTITY) {
        dt_json_kv_string(j, "value", dt_node_text(n));
        return;
    }
    if (dt_node_is_seq(n)) { /* of words or numbers */
        size_t used = (size_t)snprintf(text, sizeof(text), "[");

        for (size_t i = 0; i < dt_seq_size(n) && used < sizeof(text); i++) {
            const char *item = dt_node_text(dt_seq_at(n, i));

            used += (size_t)snprintf(text + used, sizeof(text) - used, "%s%s", i ? ", " : "",
                                     item ? item : "...");
        }
        if (used < sizeof(text))
            snprintf(text + used, sizeof(text) - used, "]");
    } else if (in && (strncmp(path, "cluster.", 8) == 0 || !key->fallback)) {
        dt_key_value_text(key, in, text, sizeof(text));
    }
    if (!text[0] && key->fallback)
        dt_key_default_text(key, in, text, sizeof(text));
    dt_json_kv_string(j, "value", text);
}

static void add_limit(struct dt_json *j, const char *name, double v)
{
    dt_json_key(j, name);
    if (fabs(v) < 1e300)
        dt_json_double(j, v);
    else
        dt_json_null(j);
}

/* Keys behind names that the job chooses are for the command line; what names files is not for HTTP at all. */
static bool is_offered(const char *path, const struct dt_key *key)
{
    return key->file != DT_KEY_FILE && key->type != DT_KEY_MAP && !dt_keys_open(path) &&
           strncmp(path, "run.", 4) != 0 && strcmp(path, "run") != 0 &&
           !(key->type == DT_KEY_OWN && key->keys && key->file == DT_KEY_NO_FILE && !key->words);
}

static void add_key(void *ctx, const char *path, const struct dt_key *key, const void *in)
{
    struct listing *l = ctx;
    char text[512], range[256];

    if (!is_offered(path, key))
        return;
    dt_json_begin_object(l->j);
    dt_json_kv_string(l->j, "key", path);
    dt_json_kv_string(l->j, "type", dt_key_type_name(key));
    dt_key_type_text(key, text, sizeof(text));
    dt_key_range_text(key, range, sizeof(range));
    snprintf(text + strlen(text), sizeof(text) - strlen(text), "%s%s", *range ? ", " : "", range);
    dt_json_kv_string(l->j, "takes", text);
    add_limit(l->j, "min", key->min);
    add_limit(l->j, "max", key->max);
    dt_json_kv_string(l->j, "unit", key->unit);
    dt_json_key(l->j, "words");
    dt_json_begin_array(l->j);
    for (int i = 0; key->words && key->words[i]; i++)
        dt_json_string(l->j, key->words[i]);
    dt_json_end_array(l->j);
    add_value(l->j, key, path, l->job, in);
    dt_json_kv_string(l->j, "meaning", key->help);
    dt_json_end_object(l->j);
}

static void add_command(struct dt_json *j, const struct dt_cli_served *d)
{
    dt_json_key(j, "command");
    dt_json_begin_array(j);
    dt_json_string(j, "disttrain");
    dt_json_string(j, "simulate");
    if (d->plan_file) {
        dt_json_string(j, "--plan");
        dt_json_string(j, d->plan_file);
    }
    dt_json_string(j, d->job);
    for (int i = 0; i < d->n_overrides; i++)
        dt_json_string(j, d->overrides[i]);
    dt_json_end_array(j);
}

static void add_first(struct dt_json *j, const struct dt_cluster *c)
{
    enum { N = sizeof(first) / sizeof(first[0]) };

    dt_json_key(j, "first");
    dt_json_begin_array(j);
    for (int i = 0; i < N; i++)
        if (i != 2 || c->nodes > 1 || !dt_cluster_is_cpu(c))
            dt_json_string(j, first[i].key);
    dt_json_end_array(j);
    dt_json_key(j, "labels");
    dt_json_begin_object(j);
    for (int i = 0; i < N; i++)
        dt_json_kv_string(j, first[i].key, first[i].label);
    dt_json_end_object(j);
}

static enum dt_status write_keys(const struct dt_cli_served *d, const struct dt_job *job,
                                 struct dt_error *err, char **text)
{
    struct dt_json j;
    struct listing l = {&j, job};
    char *style;

    DT_TRY(dt_chart_page_style(err, &style));
    dt_json_init(&j, false);
    dt_json_begin_object(&j);
    dt_json_kv_string(&j, "job", d->job);
    dt_json_kv_string(&j, "model", job->model->name);
    dt_json_kv_string(&j, "cluster", job->cluster.name);
    dt_json_kv_string(&j, "version", PACKAGE_VERSION);
    dt_json_kv_string(&j, "style", style); /* of timelines */
    dt_free(style);
    add_command(&j, d);
    dt_json_key(&j, "modules");
    dt_json_begin_array(&j);
    for (int m = 0; m < job->model->n_modules; m++)
        dt_json_string(&j, job->model->modules[m].name);
    dt_json_end_array(&j);
    add_first(&j, &job->cluster);
    dt_json_key(&j, "keys");
    dt_json_begin_array(&j);
    dt_keys_walk(dt_job_keys, job, add_key, &l);
    dt_json_end_array(&j);
    dt_json_end_object(&j);
    return dt_json_finish(&j, err, text);
}

enum dt_status dt_cli_serve_keys(const struct dt_cli_served *d, struct dt_error *err, char **text)
{
    char found[4096];
    struct dt_job *job;
    enum dt_status st;

    DT_TRY(dt_file_find("jobs", d->job, ".yaml", err, found, sizeof(found)));
    DT_TRY(dt_job_read_planned(found, d->plan_file, d->overrides, d->n_overrides, err, &job));
    st = write_keys(d, job, err, text);
    dt_job_free(job);
    return st;
}
