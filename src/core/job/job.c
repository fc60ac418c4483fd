/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Reading jobs: overrides, then everything the job names, in the order in which one needs the
 * other: model, cluster, plan file, policies, plan map, samples, profile. */
#include "core/job/job_internal.h"

#include "base/file.h"
#include "core/profile/profile.h"
#include "core/model/shape.h"

#include <stdio.h>
#include <string.h>

enum { PATH_SIZE = 4096, JOB_MAX = 64 << 20 };

/* ---- overrides ---- */

enum dt_status dt_job_widen(struct dt_doc *doc, const char *override, struct dt_error *err)
{
    static const char *const keys[] = {"model", "cluster", "samples"};
    static const char *const kinds[] = {"models", "clusters", "samples"};
    char text[PATH_SIZE + 64], *p;

    for (size_t i = 0; i < sizeof(keys) / sizeof(keys[0]); i++) {
        size_t len = strlen(keys[i]);
        struct dt_node n = dt_map_get(dt_doc_root(doc), keys[i]);
        const char *name = dt_node_text(n), *dot = name ? strrchr(name, '.') : NULL;
        bool csv = dot && strcmp(dot, ".csv") == 0;

        if (strncmp(override, keys[i], len) != 0 || override[len] != '.')
            continue;
        if (!name || dt_node_is_null(n) || strlen(name) + 64 > PATH_SIZE / 2)
            return DT_OK; /* a map already, or wrong in a way that its reader explains */
        if (!csv) { /* a wrong name is better reported where it stands than on the command line */
            struct dt_doc *preset = NULL;

            DT_TRY(dt_preset_open(n, kinds[i], name, err, &preset));
            dt_doc_free(preset);
        }
        p = text + snprintf(text, sizeof(text), "%s={%s: \"", keys[i], csv ? "csv" : "preset");
        for (; *name; name++) {
            if (*name == '"' || *name == '\\')
                *p++ = '\\';
            *p++ = *name;
        }
        memcpy(p, "\"}", 3);
        return dt_doc_override(doc, text, err);
    }
    return DT_OK;
}

/* The same for "plan.llm.tp=4" of a job whose plan is a file: that is put aside, and its changes take its place.  The file of
 * --plan comes before it. */
static enum dt_status widen_plan(struct dt_job *j, const char *override, struct dt_error *err)
{
    struct dt_node n = dt_map_get(dt_doc_root(j->doc), "plan");

    if (strncmp(override, "plan=", 5) == 0)
        j->plan_named[0] = '\0'; /* another plan */
    if (strncmp(override, "plan.", 5) != 0 || !dt_node_is_scalar(n) || dt_node_is_null(n))
        return DT_OK;
    if (j->shallow)
        snprintf(j->plan_named, sizeof(j->plan_named), "%s", dt_node_text(n));
    else if (!j->plan_file[0])
        DT_TRY(dt_preset_relative(n, dt_node_text(n), err, j->plan_named, sizeof(j->plan_named)));
    return dt_doc_override(j->doc, "plan={}", err);
}

static enum dt_status apply_overrides(struct dt_job *j, const char *const *overrides, int n,
                                      struct dt_error *err)
{
    for (int i = 0; i < n; i++) {
        DT_TRY(dt_job_widen(j->doc, overrides[i], err));
        DT_TRY(widen_plan(j, overrides[i], err));
        DT_TRY(dt_doc_override(j->doc, overrides[i], err));
    }
    return DT_OK;
}

/* ---- profile ---- */

/* Without a profile every time comes from the roofline: an empty table of the cluster's device. */
static enum dt_status empty_profile(const char *device, struct dt_error *err,
                                    struct dt_profile **out)
{
    struct dt_profile *p = dt_calloc(1, sizeof(*p));

    if (!p)
        return dt_error_nomem(err, "a profile");
    snprintf(p->device, sizeof(p->device), "%s", device);
    snprintf(p->dtype, sizeof(p->dtype), "bf16");
    *out = p;
    return DT_OK;
}

/* `path` "": without one. */
static enum dt_status make_profile(const char *path, const char *device, struct dt_error *err,
                                   struct dt_profile **out)
{
    return *path ? dt_profile_load(path, device, "bf16", err, out)
                 : empty_profile(device, err, out);
}

static enum dt_status load_profile(const char *path, struct dt_job *j, struct dt_error *err)
{
    char key[PATH_SIZE + DT_NAME_MAX + 16];
    struct dt_profile *made;

    if (!j->inputs)
        return make_profile(path, j->cluster.device, err, &j->profile);
    snprintf(key, sizeof(key), "%s of %s", path, j->cluster.device);
    j->profile = dt_job_input_find(j->inputs, DT_JOB_PROFILE, key);
    if (j->profile)
        return DT_OK;
    DT_TRY(make_profile(path, j->cluster.device, err, &made));
    DT_TRY(dt_job_input_add(j->inputs, DT_JOB_PROFILE, key, made, err));
    j->profile = made;
    return DT_OK;
}

static enum dt_status read_profile(struct dt_node root, bool shallow, struct dt_job *j,
                                   struct dt_error *err)
{
    struct dt_node n = dt_map_get(root, "profile");
    char name[PATH_SIZE] = "", path[PATH_SIZE];

    if (!dt_node_present(n) || dt_node_is_null(n)) {
        if (!j->cost_opt.allow_analytical)
            return dt_node_error(
                dt_node_present(n) ? n : root, err,
                "job: key \"profile\" is missing (a preset such as a800, or a .sql or .db "
                "file); without one, search.allow_analytical: true estimates every time "
                "from the roofline");
        return shallow ? DT_OK : load_profile("", j, err);
    }
    DT_TRY(dt_get_string(root, "profile", name, sizeof(name), err));
    if (shallow)
        return DT_OK;
    if (strpbrk(name, "/."))
        DT_TRY(dt_preset_relative(n, name, err, path, sizeof(path)));
    else
        memcpy(path, name, sizeof(path)); /* a preset */
    return dt_preset_error_place(n, load_profile(path, j, err), err);
}

/* ---- the whole ---- */

/* Read one after the other by read_root. */
const struct dt_key dt_job_keys[] = {
    {.name = "model",
     .type = DT_KEY_OWN,
     .form = "preset, path or map",
     .file = DT_KEY_PRESET,
     .keys = dt_model_keys,
     .needed = "mllm-9b",
     .help = "the model: its modules and how they are joined"},
    {.name = "cluster",
     .type = DT_KEY_OWN,
     .at = offsetof(struct dt_job, cluster),
     .form = "preset, path or map",
     .file = DT_KEY_PRESET,
     .keys = dt_cluster_keys,
     .needed = "a800-96",
     .help = "the machine"},
    {.name = "samples",
     .type = DT_KEY_OWN,
     .form = "preset, path of a CSV file or map",
     .file = DT_KEY_PRESET,
     .keys = dt_samples_keys,
     .base = &dt_samples_pairs_defaults,
     .needed = "laion-8k",
     .help = "the training samples"},
    {.name = "profile",
     .type = DT_KEY_OWN,
     .form = "preset or path",
     .file = DT_KEY_PRESET,
     .fallback = "none; needed unless search.allow_analytical",
     .help = "measured kernel times of the cluster's device"},
    {.name = "train", .type = DT_KEY_OWN, .keys = dt_job_train_keys, .help = "how to train"},
    {.name = "search",
     .type = DT_KEY_OWN,
     .keys = dt_job_search_keys,
     .help = "how to search for a plan"},
    {.name = "plan",
     .type = DT_KEY_OWN,
     .at = offsetof(struct dt_job, plan),
     .form = "map of layouts, or path of a plan.json",
     .file = DT_KEY_FILE,
     .keys = dt_plan_map_keys,
     .fallback = "none; needed for strategy manual",
     .help = "the plan of strategy manual"},
    {.name = "simulate",
     .type = DT_KEY_OWN,
     .keys = dt_job_simulate_keys,
     .help = "what to simulate"},
    {.name = "run",
     .type = DT_KEY_OWN,
     .keys = dt_job_run_keys,
     .help = "what to train on and how"},
    {.name = NULL},
};

/* All but samples and profile. */
static enum dt_status read_stated(struct dt_node root, struct dt_job *j, struct dt_error *err)
{
    bool shallow = j->shallow;
    struct dt_node train = dt_map_get(root, "train");

    if (!dt_node_is_map(root))
        return dt_node_error(root, err,
                             "a job is a map with model, cluster, samples, profile and train");
    DT_TRY(dt_keys_check(root, "job", dt_job_keys, err));
    DT_TRY(dt_keys_require(root, "job", dt_job_keys, err));
    DT_TRY(dt_model_read(dt_map_get(root, "model"), err, &j->model));
    DT_TRY(dt_cluster_read(dt_map_get(root, "cluster"), err, &j->cluster));
    if (!shallow)
        DT_TRY(dt_job_plan_file(root, j, err));
    if (!j->has_plan)
        DT_TRY(dt_map_require(root, "job", "train", err));
    DT_TRY(dt_job_train(train, j, err));
    DT_TRY(dt_job_search(dt_map_get(root, "search"), train, j, err));
    DT_TRY(dt_job_plan_strategy(root, j, err));
    DT_TRY(dt_job_simulate(dt_map_get(root, "simulate"), j, err));
    if (j->strategy == DT_STRATEGY_ENTRAIN)
        j->search.seed = j->sim.seed;
    DT_TRY(dt_job_run(dt_map_get(root, "run"), j, err));
    dt_job_strategy_policy(root, j);
    if (j->run.precision != 0) /* auto leaves it to the device, and to a plan file */
        j->policy.fp32 = strcmp(dt_job_run_precision_names[j->run.precision], "fp32") == 0;
    j->policy.exact_vectors = dt_cluster_is_cpu(&j->cluster); /* a plan file may be of another */
    j->cost_opt.fp32 = j->policy.fp32;
    if (j->policy.stepccl && j->policy.stepccl_chunks == 0 && j->run.device == DT_JOB_RUN_CUDA)
        j->policy.stepccl_chunks = DT_STEPCCL_CHUNKS_TRAINED;
    j->cost_opt.stepccl = j->policy.stepccl;
    j->cost_opt.stepccl_chunks = j->policy.stepccl_chunks;
    j->cost_opt.cp_ring = j->policy.cp_comm == DT_CP_COMM_RING;
    return dt_job_plan_finish(root, shallow, j, err);
}

static enum dt_status read_root(struct dt_node root, struct dt_job *j, struct dt_error *err)
{
    DT_TRY(read_stated(root, j, err));
    if (!j->shallow) {
        DT_TRY(dt_job_samples(root, j, err));
        DT_TRY(dt_preset_error_place(
            dt_map_get(root, "model"),
            dt_samples_check_work(j->samples, j->model, j->policy.global_batch, err), err));
    }
    return read_profile(root, j->shallow, j, err);
}

/* A plan file beside the job states layouts and policies: of the job's `train` only what no plan holds remains, of its
 * `plan` nothing, and what the command line adds afterwards. */
static enum dt_status open_doc(const struct dt_job_source *src, struct dt_job *j,
                               struct dt_error *err)
{
    static const char *const not_in_plans[] = {"dispatch", NULL}, *const none[] = {NULL};

    DT_TRY(dt_doc_parse(j->name, src->text, src->len, err, &j->doc));
    if (j->plan_file[0]) {
        DT_TRY(dt_doc_keep(j->doc, "train", not_in_plans, err));
        DT_TRY(dt_doc_keep(j->doc, "plan", none, err));
    }
    return apply_overrides(j, src->overrides, src->n_overrides, err);
}

enum dt_status dt_job_read_source(const struct dt_job_source *src, struct dt_error *err,
                                  struct dt_job **out)
{
    struct dt_job *j;
    enum dt_status st;

    if (src->plan_file && strlen(src->plan_file) >= sizeof(j->plan_file))
        return dt_error_set(err, DT_ERR_INPUT, "the plan's file name is too long");
    j = dt_calloc(1, sizeof(*j));
    if (!j)
        return dt_error_nomem(err, "a job");
    dt_job_defaults(j);
    j->shallow = src->shallow;
    j->inputs = src->inputs;
    j->plan_text = src->plan_text;
    snprintf(j->name, sizeof(j->name), "%s", src->name);
    snprintf(j->plan_file, sizeof(j->plan_file), "%s", src->plan_file ? src->plan_file : "");
    st = open_doc(src, j, err);
    if (st == DT_OK)
        st = read_root(dt_doc_root(j->doc), j, err);
    j->plan_text = NULL;
    if (st != DT_OK) {
        dt_job_free(j);
        return st;
    }
    *out = j;
    return DT_OK;
}

enum dt_status dt_job_as_searched(const struct dt_job *j, struct dt_error *err,
                                  struct dt_search_input *in)
{
    struct dt_job *s = dt_calloc(1, sizeof(*s));
    enum dt_status st;

    if (!s)
        return dt_error_nomem(err, "a job");
    dt_job_defaults(s);
    memcpy(s->name, j->name, sizeof(s->name));
    memcpy(s->plan_named, j->plan_named, sizeof(s->plan_named));
    s->searched = true;
    s->doc = j->doc;
    st = read_stated(dt_doc_root(s->doc), s, err);
    if (st == DT_OK) {
        in->policy = s->policy;
        memcpy(in->frozen, s->frozen, sizeof(in->frozen));
        memcpy(in->recompute, s->recompute, sizeof(in->recompute));
        memcpy(in->zero, s->zero, sizeof(in->zero));
        memcpy(in->offload, s->offload, sizeof(in->offload));
        in->opt = s->search;
    }
    s->doc = NULL;
    dt_job_free(s);
    return st;
}

enum dt_status dt_job_parse(const char *name, const char *text, size_t len,
                            const char *const *overrides, int n_overrides, bool shallow,
                            struct dt_error *err, struct dt_job **out)
{
    struct dt_job_source src = {.name = name,
                                .text = text,
                                .len = len,
                                .overrides = overrides,
                                .n_overrides = n_overrides,
                                .shallow = shallow};

    return dt_job_read_source(&src, err, out);
}

enum dt_status dt_job_read_text(const char *path, struct dt_error *err, const char **name,
                                char **text, size_t *len)
{
    DT_TRY(dt_file_read(path, JOB_MAX, err, text, len));
    *name = strcmp(path, "-") == 0 ? "standard input" : path;
    return DT_OK;
}

enum dt_status dt_job_read_planned(const char *path, const char *plan_file,
                                   const char *const *overrides, int n_overrides,
                                   struct dt_error *err, struct dt_job **out)
{
    struct dt_job_source src = {
        .plan_file = plan_file, .overrides = overrides, .n_overrides = n_overrides};
    char *text;
    enum dt_status st;

    DT_TRY(dt_job_read_text(path, err, &src.name, &text, &src.len));
    src.text = text;
    st = dt_job_read_source(&src, err, out);
    dt_free(text);
    return st;
}

enum dt_status dt_job_read(const char *path, const char *const *overrides, int n_overrides,
                           struct dt_error *err, struct dt_job **out)
{
    return dt_job_read_planned(path, NULL, overrides, n_overrides, err, out);
}

void dt_job_free(struct dt_job *j)
{
    if (!j)
        return;
    dt_model_free(j->model);
    if (j->inputs) {
        dt_job_input_drop(j->inputs, j->samples);
        dt_job_input_drop(j->inputs, j->profile);
    } else {
        dt_samples_free(j->samples);
        dt_profile_free(j->profile);
    }
    dt_job_run_free(&j->run);
    dt_doc_free(j->doc);
    dt_free(j);
}

enum dt_status dt_job_check_predicted(const struct dt_job *j, struct dt_error *err)
{
    static const char says[] =
        "precision: fp32 on GPUs is for training; plans and simulations are of bf16, whose "
        "times a profile has, and are made with run.precision=bf16";
    struct dt_node at = dt_map_get(dt_map_get(dt_doc_root(j->doc), "run"), "precision");

    if (!j->policy.fp32 || dt_cluster_is_cpu(&j->cluster))
        return DT_OK;
    if (dt_node_present(at))
        return dt_node_error(at, err, "%s", says);
    return dt_error_at(err, DT_ERR_INPUT, j->plan_file[0] ? j->plan_file : j->name, 0, 0, "%s",
                       says);
}
