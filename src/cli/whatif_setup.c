/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * What is asked for, from the command line; what the job is, from its files; which sweep that makes. */
#include "config.h"

#include "cli/whatif.h"

#include "base/clock.h"
#include "base/hash.h"
#include "base/number.h"
#include "report/run_facts.h"

#include <math.h>
#include <string.h>

/* ---- options ---- */

static enum dt_status read_count(const struct dt_cli *cli, const char *option, const char *such,
                                 double *out, struct dt_error *err)
{
    const char *text = dt_cli_string(cli, option, NULL);

    if (text && !dt_number_count(text, out))
        return dt_error_set(err, DT_ERR_USAGE,
                            "--%s: '%s' is not a number above 0, such as %s (K, M, B or G, T, Q: "
                            "10^3, 10^6, 10^9, 10^12, 10^15)",
                            option, text, such);
    return DT_OK;
}

static enum dt_status read_goal(const struct dt_cli *cli, struct dt_whatif_goal *g,
                                struct dt_error *err)
{
    double percent;

    DT_TRY(read_count(cli, "tokens", "1T or 500B", &g->tokens, err));
    DT_TRY(dt_cli_double(cli, "days", 1e-6, 1e6, 0, &g->days, err));
    DT_TRY(read_count(cli, "budget", "2M or 1500000", &g->budget, err));
    DT_TRY(dt_cli_double(cli, "confidence", 1, 99.9, 80, &percent, err));
    g->confidence = percent / 100;
    g->any = g->tokens > 0 || g->days > 0 || g->budget > 0;
    return DT_OK;
}

static enum dt_status check_key(const struct dt_whatif *w, const char *key, struct dt_error *err)
{
    size_t n = strlen(key);
    char text[256];
    const char *near;

    if (!dt_keys_at(dt_job_keys, key)) {
        near = dt_keys_suggest(dt_job_keys, key, text, sizeof text);
        return dt_error_set(err, DT_ERR_USAGE, "--vary: a job has no key \"%s\"%s%s%s", key,
                            near ? "; did you mean \"" : " (see 'disttrain keys')",
                            near ? near : "", near ? "\"?" : "");
    }
    for (int a = 0; a < w->n_axes; a++)
        if (strcmp(w->axis[a].key, key) == 0)
            return dt_error_set(err, DT_ERR_USAGE, "\"%s\" varies twice", key);
    for (int i = 1; i < w->cli->n_args; i++)
        if (strncmp(w->cli->args[i], key, n) == 0 && w->cli->args[i][n] == '=')
            return dt_error_set(err, DT_ERR_USAGE,
                                "\"%s\" is both stated and varied; leave one of them out", key);
    return DT_OK;
}

static enum dt_status add_axis(struct dt_whatif *w, const char *text, struct dt_error *err)
{
    struct dt_job_axis axis;
    enum dt_status st;

    if (w->n_axes == DT_JOB_AXES_MAX)
        return dt_error_set(err, DT_ERR_USAGE, "more than %d keys vary", DT_JOB_AXES_MAX);
    DT_TRY(dt_job_axis_read(text, err, &axis));
    st = check_key(w, axis.key, err);
    if (st != DT_OK) {
        dt_job_axis_free(&axis);
        return st;
    }
    if (strcmp(axis.key, "cluster.nodes") == 0 || strcmp(axis.key, "cluster.gpus") == 0) {
        if (w->size_axis >= 0) {
            dt_job_axis_free(&axis);
            return dt_error_set(err, DT_ERR_USAGE,
                                "the cluster's size varies twice: --gpus, cluster.gpus or "
                                "cluster.nodes");
        }
        w->size_axis = w->n_axes;
    }
    w->axis[w->n_axes++] = axis;
    return DT_OK;
}

static enum dt_status read_axes(struct dt_whatif *w, struct dt_error *err)
{
    const char *gpus = dt_cli_string(w->cli, "gpus", NULL);
    char text[1024];

    for (int i = 0; i < w->cli->n_list; i++)
        DT_TRY(add_axis(w, w->cli->list[i], err));
    if (!gpus)
        return DT_OK;
    if (snprintf(text, sizeof text, "cluster.gpus=%s", gpus) >= (int)sizeof text)
        return dt_error_set(err, DT_ERR_USAGE, "--gpus: more than %zu bytes", sizeof text);
    return add_axis(w, text, err);
}

/* A target without a size of the cluster asks for one. */
static void plan_scan(struct dt_whatif *w)
{
    w->scan = w->goal.tokens > 0 && (w->goal.days > 0 || w->goal.budget > 0) && w->size_axis < 0;
    if (w->scan) {
        struct dt_job_axis *a = &w->axis[w->n_axes];

        memset(a, 0, sizeof *a);
        snprintf(a->key, sizeof a->key, "cluster.gpus");
        w->size_axis = w->n_axes++;
    }
}

enum dt_status dt_whatif_setup(struct dt_whatif *w, const struct dt_cli *cli, struct dt_error *err)
{
    int64_t jobs, seed;

    memset(w, 0, sizeof *w);
    w->cli = cli;
    w->path = cli->args[0];
    w->size_axis = -1;
    DT_TRY(dt_cli_int(cli, "jobs", 1, 4096, 0, &jobs, err));
    DT_TRY(dt_cli_int(cli, "sample", 1, DT_JOB_POINTS_MAX, 0, &w->sample, err));
    DT_TRY(dt_cli_int(cli, "seed", 0, INT64_MAX, 1, &seed, err));
    w->jobs = (int)jobs;
    w->seed = (uint64_t)seed;
    w->keep_plan = dt_cli_flag(cli, "keep-plan");
    DT_TRY(read_goal(cli, &w->goal, err));
    DT_TRY(read_axes(w, err));
    plan_scan(w);
    if (w->scan && w->sample)
        return dt_error_set(err, DT_ERR_USAGE,
                            "--sample takes points from given sizes; with --days or --budget add "
                            "--gpus A..B");
    if (w->scan && w->keep_plan)
        return dt_error_set(err, DT_ERR_USAGE,
                            "--keep-plan: a plan that is kept uses as many GPUs as it does; with "
                            "--days or --budget add --gpus, or leave it out");
    if (w->sample && w->n_axes == 0)
        return dt_error_set(err, DT_ERR_USAGE, "--sample: nothing varies; add --vary KEY=A..B");
    if (w->n_axes == 0 && !w->goal.any)
        return dt_error_set(err, DT_ERR_USAGE,
                            "nothing varies and nothing is asked for: add --vary KEY=VALUES, "
                            "--gpus, --tokens, --days or --budget");
    return DT_OK;
}

/* ---- the job ---- */

static uint64_t digest_model(uint64_t h, const struct dt_model *model)
{
    for (int i = 0; i < model->n_modules; i++) {
        const struct dt_module *m = &model->modules[i];
        const int of[] = {m->role,     m->modality,     m->patch,
                          m->merge,    m->latent_scale, m->resize,
                          m->mel_bins, m->out_width,    m->out_tokens_per_item};

        h = dt_hash_text(h, m->name);
        h = dt_hash_bytes(h, of, sizeof of);
        h = dt_hash_bytes(h, &m->frames_per_s, sizeof m->frames_per_s);
        h = dt_hash_bytes(h, m->blocks, (size_t)m->n_blocks * sizeof *m->blocks);
    }
    return dt_hash_bytes(h, model->edges, (size_t)model->n_edges * sizeof *model->edges);
}

/* Of everything that results depend on, as it was read: files may have changed under the names that the job gives. */
static enum dt_status digest_of(const struct dt_job *j, struct dt_error *err, uint64_t *out)
{
    const struct dt_sched_supply *p = &j->sim.preprocess;
    const double rates[] = {p->decode_px_per_s, p->resize_px_per_s, p->tokenize_bytes_per_s,
                            p->sound_s_per_s};
    uint64_t h = digest_model(DT_HASH_START, j->model);
    char *plan = NULL;

    for (int64_t i = 0; i < j->samples->n; i++) /* in another order they are other batches */
        h = dt_hash_number(h, dt_run_samples_digest(j->samples, i, 1));
    h = dt_hash_number(h, dt_hash_digest(1, j->profile->rows,
                                         (size_t)j->profile->n_rows * sizeof *j->profile->rows));
    h = dt_hash_bytes(h, &j->cluster, sizeof j->cluster);
    h = dt_hash_bytes(h, rates, sizeof rates);
    if (j->has_plan)
        DT_TRY(dt_plan_to_json(&j->plan, err, &plan));
    *out = dt_hash_text(h, plan ? plan : "");
    dt_free(plan);
    return DT_OK;
}

static bool stated(const struct dt_job *j, const char *map, const char *key)
{
    return dt_node_present(dt_map_get(dt_map_get(dt_doc_root(j->doc), map), key));
}

static enum dt_status see_job(void *ctx, const struct dt_session *s, const struct dt_sim_result *r,
                              struct dt_error *err)
{
    const struct dt_job *j = s->job;
    struct dt_whatif_job *out = ctx;

    (void)r;
    dt_free(out->json);
    out->json = NULL;
    DT_TRY(dt_node_to_json(dt_doc_root(j->doc), err, &out->json));
    DT_TRY(digest_of(j, err, &out->digest));
    snprintf(out->name, sizeof out->name, "%s", j->name);
    out->cluster = j->cluster;
    out->effort_stated = stated(j, "search", "effort");
    out->cluster_nodes =
        dt_node_present(dt_map_get(dt_map_get(dt_doc_root(j->doc), "cluster"), "nodes"));
    out->searches = j->strategy != DT_STRATEGY_MANUAL;
    return DT_OK;
}

static char * override(struct dt_whatif *w, const struct dt_job_axis *a, int value)
{
    size_t size = strlen(a->key) + strlen(a->value[value]) + 2;
    char *text = dt_arena_alloc(&w->arena, size, 1);

    if (text)
        snprintf(text, size, "%s=%s", a->key, a->value[value]);
    return text;
}

/* The job with this override (NULL: none) as it stands, or else with the first value of each other key that varies: a
 * job may lack what varies. */
static enum dt_status see(struct dt_whatif *w, const char *one, const struct dt_job_axis *of,
                          struct dt_whatif_job *out, struct dt_error *err)
{
    const char *overrides[DT_CLI_MAX_ARGS + 8 + DT_JOB_AXES_MAX + 1];
    int n = w->n_overrides;
    struct dt_error other;
    enum dt_status st;

    memcpy((void *)overrides, (const void *)w->overrides, (size_t)n * sizeof *overrides);
    if (one)
        overrides[n++] = one;
    st = dt_points_check(w->points, overrides, n, see_job, out, err);
    if (st == DT_OK || w->n_axes == 0)
        return st;
    for (int a = 0; a < w->n_axes; a++)
        if (w->axis[a].n > 0 && &w->axis[a] != of) {
            overrides[n] = override(w, &w->axis[a], 0);
            if (!overrides[n++])
                return dt_error_nomem(err, "points");
        }
    return dt_points_check(w->points, overrides, n, see_job, out, &other) == DT_OK ? DT_OK : st;
}

/* A range of GPUs without a step is one of whole nodes. */
static enum dt_status whole_nodes(const struct dt_whatif *w, struct dt_job_axis *a,
                                  struct dt_error *err)
{
    char text[sizeof a->key + 96];
    struct dt_job_axis nodes;
    int per_node = w->job.cluster.gpus_per_node;
    double from = ceil(a->from / per_node) * per_node;

    if (from > a->to || a->to > INT32_MAX)
        return dt_error_set(err, DT_ERR_USAGE,
                            "%s: no multiple of the %d GPUs of a node is from %.12g to %.12g",
                            a->key, per_node, a->from, a->to);
    snprintf(text, sizeof text, "%s=%.0f..%.0f+%d", a->key, from, a->to, per_node);
    DT_TRY(dt_job_axis_read(text, err, &nodes));
    dt_job_axis_free(a);
    *a = nodes;
    return DT_OK;
}

/* Sizes of --gpus as nodes, for a job whose cluster says how many nodes it has. */
static enum dt_status size_as_nodes(struct dt_whatif *w, struct dt_error *err)
{
    struct dt_job_axis *a = &w->axis[w->size_axis];
    int per_node = w->job.cluster.gpus_per_node;

    for (int i = 0; i < a->n; i++) {
        char text[32];
        int64_t gpus;

        if (!dt_number_int(a->value[i], &gpus) || gpus < 1 || gpus % per_node != 0)
            return dt_error_set(err, DT_ERR_USAGE,
                                "--gpus: \"%s\" is not a multiple of the %d GPUs of a node; "
                                "clusters are made of whole nodes",
                                a->value[i], per_node);
        snprintf(text, sizeof text, "%lld", (long long)(gpus / per_node));
        a->value[i] = dt_arena_strdup(&w->arena, text);
        if (!a->value[i])
            return dt_error_nomem(err, "points");
    }
    snprintf(a->key, sizeof a->key, "cluster.nodes");
    return DT_OK;
}

static enum dt_status keep_plan(struct dt_whatif *w, struct dt_error *err)
{
    struct dt_point_request q = {.overrides = w->overrides, .n_overrides = w->n_overrides};
    struct dt_point p;
    enum dt_status st;

    DT_TRY(dt_point_eval(w->points, &q, err, &p));
    if (p.feasible) {
        st = dt_points_keep_plan(w->points, &p.plan, err);
    } else {
        if (err)
            *err = p.error;
        st = p.error.status;
    }
    dt_point_free(&p);
    return st;
}

enum dt_status dt_whatif_open_job(struct dt_whatif *w, struct dt_error *err)
{
    bool effort_varies = false;

    for (int i = 1; i < w->cli->n_args; i++)
        w->overrides[w->n_overrides++] = w->cli->args[i];
    DT_TRY(dt_points_open(w->path, dt_cli_string(w->cli, "plan", NULL), err, &w->points));
    DT_TRY(see(w, NULL, NULL, &w->job, err));
    for (int a = 0; a < w->n_axes; a++)
        effort_varies |= strcmp(w->axis[a].key, "search.effort") == 0;
    if (w->size_axis >= 0 && w->axis[w->size_axis].between &&
        strcmp(w->axis[w->size_axis].key, "cluster.gpus") == 0)
        DT_TRY(whole_nodes(w, &w->axis[w->size_axis], err));
    if (w->size_axis >= 0 && w->job.cluster_nodes &&
        strcmp(w->axis[w->size_axis].key, "cluster.gpus") == 0)
        DT_TRY(size_as_nodes(w, err));
    if (w->keep_plan)
        DT_TRY(keep_plan(w, err));
    w->quick = w->job.searches && !w->keep_plan && !w->job.effort_stated && !effort_varies;
    return DT_OK;
}

/* ---- the sweep ---- */

struct files {
    const char *asked;
    bool any;
};

static void look_for_file(void *ctx, const char *path, const struct dt_key *key,
                          const void *defaults)
{
    struct files *f = ctx;

    (void)defaults;
    f->any |= key->file != DT_KEY_NO_FILE && dt_keys_inside(path, f->asked);
}

/* May a value of this key name a file, itself or inside of it. */
static bool names_file(const char *key)
{
    struct files f = {.asked = key};

    dt_keys_walk(dt_job_keys, NULL, look_for_file, &f);
    return f.any;
}

/* A key that names a file whose content may change: a digest of what each value stands for. */
static enum dt_status digest_values(struct dt_whatif *w, const struct dt_job_axis *a, uint64_t *h,
                                    struct dt_error *err)
{
    for (int i = 0; i < a->n; i++) {
        struct dt_whatif_job job = {0};
        struct dt_error why = {0};
        char *text = override(w, a, i);
        enum dt_status st;

        if (!text)
            return dt_error_nomem(err, "points");
        st = see(w, text, a, &job, &why);
        *h = dt_hash_text(*h, text);
        *h = st == DT_OK ? dt_hash_number(*h, job.digest) : dt_hash_text(*h, why.message);
        dt_free(job.json);
    }
    return DT_OK;
}

/* Another number where points that were kept would be others now, within a version. */
enum { ANSWERS = 4 };

static enum dt_status identity(struct dt_whatif *w, struct dt_error *err, char *out, size_t size)
{
    uint64_t h = dt_hash_number(dt_hash_text(DT_HASH_START, PACKAGE_VERSION), ANSWERS);

    h = dt_hash_text(h, w->job.json);
    h = dt_hash_number(h, w->job.digest);
    for (int i = 0; i < w->n_overrides; i++)
        h = dt_hash_text(dt_hash_number(h, (uint64_t)i), w->overrides[i]);
    h = dt_hash_number(h, w->goal.any); /* failures count then */
    h = dt_hash_number(h, dt_points_plan_digest(w->points));
    for (int a = 0; a < w->n_axes; a++) {
        h = dt_hash_text(dt_hash_number(h, 0), w->axis[a].key);
        if (names_file(w->axis[a].key))
            DT_TRY(digest_values(w, &w->axis[a], &h, err));
    }
    snprintf(out, size, "%016llx", (unsigned long long)h);
    return DT_OK;
}

static enum dt_status keys_json(const struct dt_whatif *w, struct dt_error *err, char **out)
{
    struct dt_json j;

    dt_json_init(&j, false);
    dt_json_begin_array(&j);
    for (int a = 0; a < w->n_axes; a++)
        dt_json_string(&j, w->axis[a].key);
    dt_json_end_array(&j);
    return dt_json_finish(&j, err, out);
}

enum dt_status dt_whatif_open_sweep(struct dt_whatif *w, struct dt_error *err)
{
    struct dt_sweep_about about = {
        .job_name = w->job.name, .job_json = w->job.json, .version = PACKAGE_VERSION};
    char id[64], started[32], *keys;
    enum dt_status st;

    if (dt_cli_flag(w->cli, "no-runs"))
        return DT_OK;
    DT_TRY(identity(w, err, id, sizeof id));
    DT_TRY(keys_json(w, err, &keys));
    dt_clock_utc(started, sizeof started);
    about.identity = id;
    about.keys = keys;
    about.started = started;
    st = dt_sweep_open(dt_cli_runs_file(w->cli), &about, err, &w->sweep, &w->kept, &w->n_kept);
    dt_free(keys);
    if (st == DT_OK)
        w->sweep_id = dt_sweep_id(w->sweep);
    if (st == DT_OK && dt_cli_flag(w->cli, "again")) {
        dt_sweep_points_free(w->kept, w->n_kept);
        w->kept = NULL;
        w->n_kept = 0;
    }
    return st;
}

void dt_whatif_close(struct dt_whatif *w)
{
    if (w->engine)
        w->engine->close(w->engine);
    dt_sweep_close(w->sweep);
    dt_sweep_points_free(w->kept, w->n_kept);
    for (int i = 0; i < w->n; i++)
        dt_free(w->point[i].set);
    dt_free(w->point);
    for (int a = 0; a < w->n_axes; a++)
        dt_job_axis_free(&w->axis[a]);
    dt_points_close(w->points);
    dt_free(w->job.json);
    dt_arena_free(&w->arena);
    memset(w, 0, sizeof *w);
}
