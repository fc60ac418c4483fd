/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * disttrain show: the job as it is resolved, each value with where it comes from. */
#include "cli/rows.h"
#include "cli/session.h"
#include "base/doc.h"
#include "base/file.h"
#include "base/mem.h"
#include "base/number.h"
#include "base/text.h"
#include "core/model/shape.h"

#include <stdlib.h>
#include <string.h>

static const struct dt_cli_option options[] = {
    {"plan", 'p', DT_OPT_STRING, "FILE", "with this plan.json instead of searching"},
    {"strategy", 's', DT_OPT_KEY, "NAME", "search.strategy"},
    {"no-search", 0, DT_OPT_FLAG, NULL, "do not search for a plan; what it decides stays open"},
    {NULL, 0, DT_OPT_FLAG, NULL, NULL},
};

enum { LAYERS_MAX = 24, DOCS_MAX = 64, PATH_SIZE = 256, VALUE_SIZE = 400, COLUMNS_MAX = 56 };

struct show {
    struct dt_cli_rows rows;
    const struct dt_session *s;
    bool planned;
    const char *job;                 /* the job's file */
    const struct dt_doc *as_written; /* without what the command line changes; NULL = not known */
    struct dt_doc *doc[DOCS_MAX];    /* presets that are open */
    int n_docs;
    struct dt_error *err;
    enum dt_status st;
};

/* ---- rows ---- */

/* Of a value in the table: whole characters. */
static size_t shown_bytes(const char *value)
{
    return dt_text_fit(value, COLUMNS_MAX);
}

static void row(struct show *w, const char *key, const char *value, const char *from,
                const char *file, int line)
{
    const char *folder = file && strcmp(from, "preset") == 0 ? strstr(file, "/traces/") : NULL;
    const char *shown = folder ? folder + strlen("/traces/") : file;
    char where[600];

    if (file && line > 0)
        snprintf(where, sizeof(where), "%s:%d", shown, line);
    else
        snprintf(where, sizeof(where), "%s", file ? shown : "");
    dt_cli_row(&w->rows);
    dt_cli_row_text(&w->rows, "key", "key", key);
    dt_cli_row_text(&w->rows, "value", NULL, value);
    dt_cli_row_cell(&w->rows, "value", "%.*s%s", (int)shown_bytes(value), value,
                    value[shown_bytes(value)] ? "..." : "");
    dt_cli_row_text(&w->rows, "from", "from", from);
    dt_cli_row_cell(&w->rows, "where", "%s", where);
    if (w->rows.json) {
        dt_json_kv_string(w->rows.json, "file", file);
        dt_json_key(w->rows.json, "line");
        if (line > 0)
            dt_json_int(w->rows.json, line);
        else
            dt_json_null(w->rows.json);
    }
}

/* A scalar, or a list or map in one line. */
static size_t value_text(struct dt_node n, char *buf, size_t size, size_t at)
{
    const char *key;
    struct dt_node v;
    size_t count = dt_node_is_map(n) ? dt_map_size(n) : dt_node_is_seq(n) ? dt_seq_size(n) : 0;

#define ADD(...) at += at < size ? (size_t)snprintf(buf + at, size - at, __VA_ARGS__) : 0
    if (dt_node_is_scalar(n) || dt_node_is_null(n)) {
        const char *text = dt_node_text(n);

        ADD("%s", text ? text : "null");
        return at;
    }
    ADD("%s", dt_node_is_map(n) ? "{" : "[");
    for (size_t i = 0; i < count && at < size; i++) {
        if (i > 0)
            ADD(", ");
        if (dt_node_is_map(n)) {
            dt_map_at(n, i, &key, &v);
            ADD("%s: ", key);
        } else {
            v = dt_seq_at(n, i);
        }
        at = value_text(v, buf, size, at);
    }
    ADD("%s", dt_node_is_map(n) ? "}" : "]");
#undef ADD
    return at;
}

static struct dt_node at(struct dt_node n, const char *path)
{
    char part[PATH_SIZE];

    while (*path && dt_node_is_map(n)) {
        size_t len = strcspn(path, ".");

        snprintf(part, sizeof(part), "%.*s", (int)len, path);
        n = dt_map_get(n, part);
        path += len + (path[len] == '.');
    }
    return *path ? (struct dt_node){NULL, NULL} : n;
}

/* A name of a preset that became `preset:` of a map, because the command line sets a key beside it, is still the job's. */
static struct dt_node first_said(const struct show *w, const char *path, struct dt_node n)
{
    const char *dot = strrchr(path, '.'), *file, *text = dt_node_text(n), *was;
    char map[PATH_SIZE];
    struct dt_node before;
    int line, col;

    dt_node_where(n, &file, &line, &col);
    if (!w->as_written || strcmp(file, "command line") != 0 || !dot || !text ||
        strcmp(dot, ".preset") != 0)
        return n;
    snprintf(map, sizeof(map), "%.*s", (int)(dot - path), path);
    before = at(dt_doc_root(w->as_written), map);
    was = dt_node_is_scalar(before) ? dt_node_text(before) : NULL;
    return was && strcmp(was, text) == 0 ? before : n;
}

/* A number of a module that a change of another one derives anew, as it was built; 0: this key is not of one. */
static int built(const struct dt_module *m, const char *key)
{
    for (int i = 0; i < m->n_blocks; i++) {
        const struct dt_block *b = &m->blocks[i];

        if (b->kind == DT_BLOCK_TRANSFORMER && strcmp(key, "kv_heads") == 0)
            return b->kv_heads;
        if (b->kind == DT_BLOCK_TRANSFORMER && strcmp(key, "head_dim") == 0)
            return b->head_dim;
        if (b->kind == DT_BLOCK_TIME_EMBED && strcmp(key, "time_dim") == 0)
            return b->time_dim;
    }
    return 0;
}

/* Is what a preset states replaced by another number, because a number that it followed from was changed? */
static bool derived(const struct show *w, const char *path, struct dt_node n, int *value)
{
    const struct dt_model *model = w->s->job->model;
    char part[PATH_SIZE];
    const char *name = part + strlen("model."), *text = dt_node_text(n);
    int64_t said;
    char *key;
    int m;

    snprintf(part, sizeof(part), "%s", path);
    key = strrchr(part, '.');
    if (strncmp(part, "model.", strlen("model.")) != 0 || key < name || !text ||
        !dt_number_int(text, &said))
        return false;
    *key++ = '\0';
    m = dt_model_find(model, name);
    *value = m >= 0 ? built(&model->modules[m], key) : 0;
    return *value > 0 && *value != said;
}

static void stated(struct show *w, const char *path, struct dt_node n)
{
    char value[VALUE_SIZE];
    const char *file, *from;
    int line, col, now;

    if (derived(w, path, n, &now)) {
        snprintf(value, sizeof(value), "%d", now);
        row(w, path, value, "derived", NULL, 0);
        return;
    }
    if (value_text(n, value, sizeof(value), 0) >= sizeof(value))
        memcpy(value + sizeof(value) - 4, "...", 4);
    for (char *c = value; *c; c++)
        *c = (unsigned char)*c < 0x20 ? ' ' : *c;
    dt_node_where(first_said(w, path, n), &file, &line, &col);
    from = strcmp(file, "command line") == 0 ? "command line"
           : strcmp(file, w->job) == 0       ? "job"
                                             : "preset";
    row(w, path, value, from, *from == 'c' ? NULL : file, *from == 'c' ? 0 : line);
}

/* ---- what documents state: a job's map, and the presets that it is built on ---- */

struct layers {
    struct dt_node node[LAYERS_MAX];
    int n;
};

static void add_layer(struct layers *l, struct dt_node n)
{
    if (l->n < LAYERS_MAX && dt_node_is_map(n))
        l->node[l->n++] = n;
}

/* The folder of presets for maps at this path; NULL: they have none. */
static const char *kind_at(const char *path)
{
    return strcmp(path, "cluster") == 0                                    ? "clusters"
           : strcmp(path, "samples") == 0                                  ? "samples"
           : strcmp(path, "model") == 0 || strncmp(path, "model.", 6) == 0 ? "models"
                                                                           : NULL;
}

/* Behind the layers, the presets that they name. */
static void add_preset(struct show *w, struct layers *l, struct dt_node name, const char *path)
{
    const char *kind = kind_at(path), *text = dt_node_text(name);
    struct dt_doc *doc;
    size_t n = text ? strlen(text) : 0;

    if (!kind || !text || w->st != DT_OK || w->n_docs == DOCS_MAX ||
        (n > 4 && strcmp(text + n - 4, ".csv") == 0))
        return;
    w->st = dt_preset_open(name, kind, text, w->err, &doc);
    if (w->st != DT_OK)
        return;
    w->doc[w->n_docs++] = doc;
    add_layer(l, dt_doc_root(doc));
}

/* Modules of a model stand in it or in its `modules`; presets behind what is built on them. */
static void complete(struct show *w, struct layers *l, const char *path)
{
    for (int i = 0; i < l->n; i++) {
        if (strcmp(path, "model") == 0)
            add_layer(l, dt_map_get(l->node[i], "modules"));
        if (dt_node_is_scalar(dt_map_get(l->node[i], "preset")))
            add_preset(w, l, dt_map_get(l->node[i], "preset"), path);
    }
}

static void walk(struct show *w, struct layers *l, const char *path);

/* The key of layer i, which no layer before it has. */
static void walk_key(struct show *w, const struct layers *l, int i, const char *key,
                     struct dt_node value, const char *path)
{
    struct layers below = {.n = 0};
    char name[PATH_SIZE];

    if (snprintf(name, sizeof(name), "%s.%s", path, key) >= (int)sizeof(name))
        return;
    if (!dt_node_is_map(value)) {
        stated(w, name, value);
        if (dt_node_is_scalar(value) && strcmp(key, "preset") != 0 && kind_at(name) &&
            strcmp(path, "model") == 0 && strcmp(key, "name") != 0) {
            add_preset(w, &below, value, name);
            walk(w, &below, name);
        }
        return;
    }
    for (int k = i; k < l->n; k++)
        add_layer(&below, dt_map_get(l->node[k], key));
    walk(w, &below, name);
}

static void walk(struct show *w, struct layers *l, const char *path)
{
    struct dt_node value;
    const char *key;

    complete(w, l, path);
    for (int i = 0; i < l->n && w->st == DT_OK; i++)
        for (size_t k = 0; k < dt_map_size(l->node[i]); k++) {
            bool before = false;

            dt_map_at(l->node[i], k, &key, &value);
            for (int j = 0; j < i; j++)
                before |= dt_node_present(dt_map_get(l->node[j], key));
            if (!before && !(strcmp(path, "model") == 0 && strcmp(key, "modules") == 0))
                walk_key(w, l, i, key, value, path);
        }
}

static void section(struct show *w, const char *name)
{
    struct dt_node n = dt_map_get(dt_doc_root(w->s->job->doc), name);
    struct layers l = {.n = 0};

    if (!dt_node_present(n))
        return;
    if (dt_node_is_map(n)) {
        add_layer(&l, n);
    } else {
        stated(w, name, n);
        add_preset(w, &l, n, name);
    }
    walk(w, &l, name);
}

/* ---- what the search decided, and defaults ---- */

static bool all_open(const unsigned *bits, int n)
{
    for (int m = 0; m < n; m++)
        if (bits[m] == 0)
            return false;
    return n > 0;
}

/* Is the key left to the search; *value is what it chose. */
static bool searched(const struct show *w, const char *path, char *value, size_t size)
{
    const struct dt_job *job = w->s->job;
    const struct dt_search_options *o = &job->search;
    const struct dt_plan *p = w->planned ? &w->s->search.plans[0] : NULL;
    int n = job->model->n_modules;

    snprintf(value, size, "open");
    if (strcmp(path, "train.schedule") == 0 && o->schedules != 0) {
        if (p)
            snprintf(value, size, "%s", dt_pipe_schedule_names[p->policy.schedule]);
    } else if (strcmp(path, "train.microbatch") == 0 && o->max_microbatch > 0) {
        if (p)
            snprintf(value, size, "%d", p->policy.microbatch);
    } else if (strcmp(path, "train.recompute") == 0 && all_open(o->recompute, n)) {
        if (p)
            dt_plan_recompute_text(p, value, size);
    } else if (strcmp(path, "train.zero") == 0 && all_open(o->zero, n)) {
        if (p)
            dt_plan_zero_text(p, value, size);
    } else if (strcmp(path, "train.reorder.intra") == 0 && o->free_intra) {
        if (p)
            snprintf(value, size, "%s", p->policy.intra_reorder ? "true" : "false");
    } else if (strcmp(path, "train.reorder.inter") == 0 && o->free_inter) {
        if (p)
            snprintf(value, size, "%s", p->policy.inter_reorder ? "true" : "false");
    } else {
        return false;
    }
    return true;
}

struct defaults {
    struct show *w;
    const char *section;
};

static void rest(void *ctx, const char *path, const struct dt_key *key, const void *defaults)
{
    struct defaults *d = ctx;
    struct show *w = d->w;
    char value[VALUE_SIZE];
    struct dt_node n;
    size_t len = strlen(d->section);

    if (strncmp(path, d->section, len) != 0 || path[len] != '.' || dt_keys_open(path) ||
        key->type == DT_KEY_MAP || (key->keys && key->type == DT_KEY_OWN))
        return;
    n = at(dt_doc_root(w->s->job->doc), path);
    if (searched(w, path, value, sizeof(value)) &&
        (!dt_node_present(n) || strcmp(dt_node_text(n) ? dt_node_text(n) : "", "auto") == 0)) {
        row(w, path, value, "search", NULL, 0);
        return;
    }
    if (dt_node_present(n) || key->needed)
        return;
    dt_key_default_text(key, defaults, value, sizeof(value));
    if (value[0] && strcmp(value, "none") != 0)
        row(w, path, value, "default", NULL, 0);
}

/* Layouts: by the search, or as a plan file has them. */
static void layouts(struct show *w)
{
    const struct dt_job *job = w->s->job;
    const struct dt_plan *p = &w->s->search.plans[0];
    char key[PATH_SIZE], value[VALUE_SIZE];

    if (!w->planned ||
        (job->has_plan && dt_node_present(dt_map_get(dt_doc_root(job->doc), "plan"))))
        return;
    for (int m = 0; m < p->n_modules; m++) {
        snprintf(key, sizeof(key), "plan.%s", p->module_names[m]);
        dt_cli_layout_text(p, m, value, sizeof(value));
        row(w, key, value, job->plan_file[0] ? "plan file" : "search",
            job->plan_file[0] ? job->plan_file : NULL, 0);
    }
}

/* ---- all of it ---- */

static enum dt_status show_job(struct show *w, const struct dt_job *fresh)
{
    static const char *const sections[] = {"model",  "cluster",  "samples", "profile", "train",
                                           "search", "simulate", "run",     "plan",    NULL};

    for (int i = 0; sections[i] && w->st == DT_OK; i++) {
        struct defaults d = {w, sections[i]};
        bool has_run = strcmp(sections[i], "run") != 0 || w->s->job->run.stated;

        if (sections[i + 1] || w->s->job->has_plan) /* else the plan is not used */
            section(w, sections[i]);
        if (i >= 4 && sections[i + 1] && has_run) /* not of a plan */
            dt_keys_walk(dt_job_keys, fresh, rest, &d);
    }
    layouts(w);
    return w->st;
}

static enum dt_status print(struct show *w, bool json, struct dt_error *err)
{
    struct dt_job *fresh = dt_calloc(1, sizeof(*fresh));
    struct dt_json j;
    enum dt_status st;

    if (!fresh)
        return dt_error_nomem(err, "defaults");
    dt_job_defaults(fresh);
    if (json) {
        dt_json_init(&j, true);
        dt_json_begin_object(&j);
        dt_json_kv_string(&j, "job", w->s->job->name);
        dt_json_kv_bool(&j, "planned", w->planned);
        dt_cli_rows_json(&w->rows, &j, "values");
    } else {
        dt_cli_rows_table(&w->rows);
    }
    st = show_job(w, fresh);
    if (!json && st == DT_OK)
        dt_cli_rows_end(&w->rows, stdout);
    else if (json)
        dt_cli_rows_end(&w->rows, NULL);
    else
        dt_cli_table_free(&w->rows.cells);
    if (json && st == DT_OK) {
        dt_json_end_object(&j);
        st = dt_cli_json_emit(&j, err);
    } else if (json) {
        dt_json_discard(&j);
    }
    dt_free(fresh);
    return st;
}

static enum dt_status command(struct dt_cli *cli, struct dt_error *err)
{
    struct dt_error why = {0};
    struct dt_cli_overrides o;
    struct dt_session s;
    struct show w = {.s = &s, .err = err};
    struct dt_doc *as_written = NULL;
    enum dt_status st;

    DT_TRY(dt_cli_overrides(cli, err, &o));
    DT_TRY(dt_session_check(cli, err));
    DT_TRY(dt_session_open(cli->args[0], dt_cli_string(cli, "plan", NULL), o.list, o.n, err, &s));
    w.job = dt_doc_name(s.job->doc);
    if (!dt_file_is_stream(cli->args[0]) && dt_doc_read(w.job, NULL, &as_written) == DT_OK)
        w.as_written = as_written;
    w.planned = !dt_cli_flag(cli, "no-search") && dt_session_plan(&s, &why) == DT_OK;
    st = print(&w, cli->json, err);
    if (st == DT_OK && !w.planned && why.message[0]) { /* all the same, this is the job */
        fflush(stdout);
        fprintf(stderr, "disttrain: warning: what the search decides is open: %s\n", why.message);
    }
    for (int i = 0; i < w.n_docs; i++)
        dt_doc_free(w.doc[i]);
    dt_doc_free(as_written);
    dt_session_close(&s);
    return st;
}

const struct dt_cli_command dt_cmd_show = {
    .name = "show",
    .args = "JOB [KEY=VALUE...]",
    .summary = "the resolved job, and where each value comes from",
    .options = options,
    .min_args = 1,
    .max_args = -1,
    .run = command,
};
