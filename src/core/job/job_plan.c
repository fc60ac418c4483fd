/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * The plan of a job: a map in it, a plan.json that it names, or one beside it.  There is one policy in the
 * end, which cost, program and memory share; what it has that the plan file states otherwise is told. */
#include "core/job/job_internal.h"

#include "core/model/shape.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

enum { PATH_SIZE = 4096 };

static bool is_file(struct dt_node n)
{
    return dt_node_is_scalar(n) && !dt_node_is_null(n);
}

static bool same_modules(const struct dt_plan *p, const struct dt_model *m)
{
    bool same = p->n_modules == m->n_modules;

    for (int i = 0; same && i < m->n_modules; i++)
        same = strcmp(p->module_names[i], m->modules[i].name) == 0;
    return same;
}

static void from_plan(struct dt_job *j, int module)
{
    j->frozen[module] = j->plan.modules[module].frozen;
    j->recompute[module] = j->plan.modules[module].recompute;
    j->zero[module] = j->plan.modules[module].zero;
    j->offload[module] = j->plan.modules[module].offload;
}

static void into_plan(const struct dt_job *j, int module, struct dt_plan *p)
{
    p->modules[module].frozen = j->frozen[module];
    p->modules[module].recompute = j->recompute[module];
    p->modules[module].zero = j->zero[module];
    p->modules[module].offload = j->offload[module];
}

/* What names the file, for messages: the job's node, or (beside it) the file alone. */
static enum dt_status read_file(struct dt_node n, const char *path, struct dt_job *j,
                                struct dt_error *err)
{
    if (j->plan_text)
        DT_TRY(dt_plan_parse(path, j->plan_text, strlen(j->plan_text), err, &j->plan));
    else
        DT_TRY(dt_plan_read(path, err, &j->plan));
    if (strcmp(j->plan.cluster, j->cluster.name) != 0) /* its GPUs are others */
        dt_plan_unpin(&j->plan);
    if (!same_modules(&j->plan, j->model)) {
        struct dt_error why;

        dt_error_set(&why, DT_ERR_INPUT,
                     "plan: \"%.1000s\" is for model \"%s\", whose modules are not those of this "
                     "job's model \"%s\"",
                     path, j->plan.model, j->model->name);
        return dt_node_present(n) ? dt_node_error(n, err, "%s", why.message)
                                  : dt_error_set(err, DT_ERR_INPUT, "%s", why.message);
    }
    for (int i = 0; i < j->model->n_modules; i++)
        from_plan(j, i);
    j->policy = j->plan.policy;
    if (!j->policy.batch_reorder) /* which the job may add */
        j->policy.reorder_budget_s = DT_REORDER_BUDGET_S;
    j->search.free_intra = j->search.free_inter = false;
    j->has_plan = true;
    j->plan_from_file = true;
    return DT_OK;
}

/* ---- what the job has otherwise than the plan file ---- */

__attribute__((format(printf, 2, 3))) static void tell(struct dt_job *j, const char *fmt, ...)
{
    size_t used = strlen(j->plan_changes), size = sizeof(j->plan_changes);
    va_list ap;

    if (used > 0 && used + 2 < size)
        used += (size_t)snprintf(j->plan_changes + used, size - used, "; ");
    va_start(ap, fmt);
    vsnprintf(j->plan_changes + used, size - used, fmt, ap);
    va_end(ap);
}

static void tell_int(struct dt_job *j, const char *key, int64_t used, int64_t stated)
{
    if (used != stated)
        tell(j, "%s is %lld, not %lld", key, (long long)used, (long long)stated);
}

static void tell_word(struct dt_job *j, const char *key, const char *used, const char *stated)
{
    if (strcmp(used, stated) != 0)
        tell(j, "%s is %s, not %s", key, used, stated);
}

static void tell_bool(struct dt_job *j, const char *key, bool used, bool stated)
{
    tell_word(j, key, used ? "true" : "false", stated ? "true" : "false");
}

static const char *host_of(const struct dt_plan *p, int module)
{
    int host = dt_plan_host(p, module);

    return host == module ? "GPUs of its own" : p->module_names[host];
}

static const char *window_text(int window, char *buf, size_t size)
{
    if (window == 0)
        return "whole samples";
    if (window == DT_PLAN_WINDOW_ALL)
        return "all";
    snprintf(buf, size, "%d", window);
    return buf;
}

static void compare_layouts(struct dt_job *j, const struct dt_plan *stated, int m)
{
    const struct dt_plan_module *is = &j->plan.modules[m], *was = &stated->modules[m];
    const struct {
        const char *name;
        int is, was;
    } degrees[] = {
        {"tp", is->layout.tp, was->layout.tp},          {"cp", is->layout.cp, was->layout.cp},
        {"ep", is->layout.ep, was->layout.ep},          {"ip", is->layout.ip, was->layout.ip},
        {"pp", is->layout.pp, was->layout.pp},          {"vpp", is->layout.vpp, was->layout.vpp},
        {"dp", is->layout.dp, was->layout.dp},          {"zero", is->zero, was->zero},
        {"zero_group", is->zero_group, was->zero_group}};
    char key[DT_NAME_MAX + 32], now[16], before[16];

    for (size_t i = 0; i < sizeof(degrees) / sizeof(degrees[0]); i++) {
        snprintf(key, sizeof(key), "plan.%s.%s", j->model->modules[m].name, degrees[i].name);
        tell_int(j, key, degrees[i].is, degrees[i].was);
    }
    snprintf(key, sizeof(key), "plan.%s.recompute", j->model->modules[m].name);
    tell_word(j, key, dt_block_recompute_names[is->recompute],
              dt_block_recompute_names[was->recompute]);
    snprintf(key, sizeof(key), "plan.%s.offload", j->model->modules[m].name);
    tell_word(j, key, dt_plan_offload_names[is->offload], dt_plan_offload_names[was->offload]);
    snprintf(key, sizeof(key), "plan.%s.frozen", j->model->modules[m].name);
    tell_bool(j, key, is->frozen, was->frozen);
    snprintf(key, sizeof(key), "plan.%s.with", j->model->modules[m].name);
    tell_word(j, key, host_of(&j->plan, m), host_of(stated, m));
    snprintf(key, sizeof(key), "plan.%s.window", j->model->modules[m].name);
    tell_word(j, key, window_text(is->window, now, sizeof(now)),
              window_text(was->window, before, sizeof(before)));
    snprintf(key, sizeof(key), "plan.%s.phases", j->model->modules[m].name);
    tell_bool(j, key, is->phases, was->phases);
    if (memcmp(is->ahead, was->ahead, sizeof(is->ahead)) != 0)
        tell(j, "plan.%s.ahead is another", j->model->modules[m].name);
    if (is->layout.pp * is->layout.vpp == was->layout.pp * was->layout.vpp &&
        memcmp(is->split, was->split, sizeof(is->split)) != 0)
        tell(j, "plan.%s.split is another", j->model->modules[m].name);
}

/* What the command line says of a plan beside the job, or of one that the job names. */
static enum dt_status change_file(struct dt_node n, struct dt_job *j, struct dt_error *err)
{
    struct dt_plan stated = j->plan;
    const char *file = "";
    int line, col;

    if (is_file(n)) {
        dt_node_where(n, &file, &line, &col);
        return strcmp(file, dt_doc_name(j->doc)) == 0
                   ? DT_OK
                   : dt_node_error(n, err,
                                   "plan: the plan is given by %s; leave out one of the two",
                                   j->plan_file);
    }
    if (!dt_node_is_map(n))
        return DT_OK;
    DT_TRY(dt_plan_change(n, j->model, err, &j->plan));
    for (int m = 0; m < j->model->n_modules; m++) {
        from_plan(j, m);
        compare_layouts(j, &stated, m);
    }
    return DT_OK;
}

/* Will the strategy be manual?  Asked before `search` is read, as a plan file brings policies along. */
static bool is_manual(struct dt_node root, const struct dt_job *j)
{
    const char *word = dt_node_text(dt_map_get(dt_map_get(root, "search"), "strategy"));
    const char *manual = dt_plan_strategy_names[DT_STRATEGY_MANUAL];

    return j->plan_file[0] || (!j->searched && word && strcmp(word, manual) == 0);
}

enum dt_status dt_job_plan_file(struct dt_node root, struct dt_job *j, struct dt_error *err)
{
    struct dt_node n = dt_map_get(root, "plan"), none = {NULL, NULL};
    char path[PATH_SIZE];

    if (!is_manual(root, j))
        return DT_OK;
    if (j->plan_file[0]) {
        DT_TRY(read_file(none, j->plan_file, j, err));
        return change_file(n, j, err);
    }
    if (j->plan_named[0] && !is_file(n)) {
        DT_TRY(read_file(none, j->plan_named, j, err));
        return change_file(n, j, err);
    }
    if (!is_file(n))
        return DT_OK;
    DT_TRY(dt_preset_relative(n, dt_node_text(n), err, path, sizeof(path)));
    return read_file(n, path, j, err);
}

/* How the job would look for a plan is of no interest then; asking for both is a contradiction. */
enum dt_status dt_job_plan_strategy(struct dt_node root, struct dt_job *j, struct dt_error *err)
{
    struct dt_node n = dt_map_get(dt_map_get(root, "search"), "strategy");
    const char *file = "";
    int line, col;

    if (!j->plan_file[0])
        return DT_OK;
    if (dt_node_present(n))
        dt_node_where(n, &file, &line, &col);
    if (strcmp(file, dt_doc_name(j->doc)) != 0 && *file && j->strategy != DT_STRATEGY_MANUAL)
        return dt_node_error(n, err,
                             "strategy: the plan is given by %s, so none is searched for; leave "
                             "this out, or the plan file",
                             j->plan_file);
    j->strategy = DT_STRATEGY_MANUAL;
    return DT_OK;
}

/* ---- policies ---- */

static void compare_modules(struct dt_job *j)
{
    struct dt_plan used = j->plan;
    char a[DT_MAX_MODULES * (DT_NAME_MAX + 16)], b[DT_MAX_MODULES * (DT_NAME_MAX + 16)];

    for (int m = 0; m < j->model->n_modules; m++)
        into_plan(j, m, &used);
    tell_word(j, "train.recompute", dt_plan_recompute_text(&used, a, sizeof(a)),
              dt_plan_recompute_text(&j->plan, b, sizeof(b)));
    tell_word(j, "train.zero", dt_plan_zero_text(&used, a, sizeof(a)),
              dt_plan_zero_text(&j->plan, b, sizeof(b)));
    tell_word(j, "train.offload", dt_plan_offload_text(&used, a, sizeof(a)),
              dt_plan_offload_text(&j->plan, b, sizeof(b)));
}

static const char *reorder_word(const struct dt_plan_policy *y)
{
    if (y->batch_reorder)
        return "batch";
    if (y->intra_reorder)
        return y->inter_reorder ? "both" : "intra";
    return y->inter_reorder ? "inter" : "none";
}

/* exact_vectors follows the cluster and is no key of anybody's. */
static void compare_policies(struct dt_job *j, const struct dt_plan_policy *stated)
{
    const struct dt_plan_policy *y = &j->policy;

    tell_int(j, "train.global_batch", y->global_batch, stated->global_batch);
    tell_int(j, "train.microbatch", y->microbatch, stated->microbatch);
    tell_int(j, "train.seq_len", y->seq_len, stated->seq_len);
    tell_word(j, "train.schedule", dt_pipe_schedule_names[y->schedule],
              dt_pipe_schedule_names[stated->schedule]);
    compare_modules(j);
    tell_word(j, "train.assignment", dt_plan_assignment_names[y->assignment],
              dt_plan_assignment_names[stated->assignment]);
    tell_word(j, "train.warmup", dt_plan_warmup_names[y->warmup],
              dt_plan_warmup_names[stated->warmup]);
    tell_word(j, "train.reorder", reorder_word(y), reorder_word(stated));
    if (y->batch_reorder && stated->batch_reorder &&
        y->reorder_budget_s != stated->reorder_budget_s)
        tell(j, "train.reorder_budget is %g s, not %g s", y->reorder_budget_s,
             stated->reorder_budget_s);
    tell_word(j, "train.cp_comm", dt_plan_cp_comm_names[y->cp_comm],
              dt_plan_cp_comm_names[stated->cp_comm]);
    tell_bool(j, "train.stepccl", y->stepccl, stated->stepccl);
    tell_int(j, "train.stepccl_chunks", y->stepccl_chunks, stated->stepccl_chunks);
    tell_word(j, "train.precision", y->half_grads ? "fp16" : "bf16",
              stated->half_grads ? "fp16" : "bf16");
    tell_word(j, "train.grads", y->bf16_grads ? "bf16" : "fp32",
              stated->bf16_grads ? "bf16" : "fp32");
    tell_word(j, "run.precision", y->fp32 ? "fp32" : "bf16", stated->fp32 ? "fp32" : "bf16");
    tell_bool(j, "train.overlap.grad", y->overlap_grad, stated->overlap_grad);
    tell_bool(j, "train.overlap.param", y->overlap_param, stated->overlap_param);
}

static void compare_frozen(struct dt_job *j)
{
    for (int m = 0; m < j->model->n_modules; m++)
        if (j->frozen[m] != j->plan.modules[m].frozen)
            tell(j, "%s is %s", j->model->modules[m].name,
                 j->frozen[m] ? "frozen, not trained" : "trained, not frozen");
}

/* A plan may freeze more modules than `train.frozen` names, and none less. */
static enum dt_status check_frozen(struct dt_node n, const struct dt_plan *p,
                                   const struct dt_job *j, struct dt_error *err)
{
    for (int m = 0; m < j->model->n_modules; m++) {
        const char *name = j->model->modules[m].name;
        struct dt_node at = dt_map_get(dt_map_get(n, name), "frozen");

        if (dt_node_present(at) && j->frozen[m] && !p->modules[m].frozen)
            return dt_node_error(at, err,
                                 "frozen: the plan trains module %s, which train.frozen names; "
                                 "leave it out of one of the two",
                                 name);
    }
    return DT_OK;
}

/* What the command line says of one module of the file's plan is more than what `train` says of all. */
static void keep_changes(struct dt_node n, struct dt_job *j)
{
    for (int m = 0; m < j->model->n_modules; m++) {
        struct dt_node of = dt_map_get(n, j->model->modules[m].name);

        if (dt_node_present(dt_map_get(of, "frozen")))
            j->frozen[m] = j->plan.modules[m].frozen;
        if (dt_node_present(dt_map_get(of, "recompute")))
            j->recompute[m] = j->plan.modules[m].recompute;
        if (dt_node_present(dt_map_get(of, "zero")))
            j->zero[m] = j->plan.modules[m].zero;
        if (dt_node_present(dt_map_get(of, "offload")))
            j->offload[m] = j->plan.modules[m].offload;
    }
}

/* ---- the plan in the end ---- */

/* Of a strategy that searches the map is checked, and that is all. */
static enum dt_status from_map(struct dt_node n, struct dt_job *j, struct dt_error *err)
{
    struct dt_plan p, base;

    dt_plan_init(&base, j->model, &j->policy);
    for (int i = 0; i < j->model->n_modules; i++)
        into_plan(j, i, &base);
    DT_TRY(dt_plan_from_node(n, j->model, &base, err, &p));
    if (j->strategy != DT_STRATEGY_MANUAL)
        return DT_OK;
    DT_TRY(check_frozen(n, &p, j, err));
    j->plan = p;
    for (int i = 0; i < j->model->n_modules; i++)
        from_plan(j, i);
    j->has_plan = true;
    return DT_OK;
}

/* Has nothing to say to the job's strategy. */
static bool of_others(const struct dt_job *j, const char *key)
{
    if (strcmp(key, "megatron_pp") == 0)
        return j->strategy != DT_STRATEGY_MEGATRON && j->search.megatron_pp != DT_MEGATRON_AUTO;
    if (strcmp(key, "uniform") == 0) /* their layouts are not divided by the formula */
        return j->search.uniform &&
               (j->strategy == DT_STRATEGY_MEGATRON || j->strategy == DT_STRATEGY_HOMOGENEOUS ||
                j->strategy == DT_STRATEGY_COLOCATED || j->strategy == DT_STRATEGY_DIP);
    return strcmp(key, "placement") == 0 && j->strategy != DT_STRATEGY_DISTTRAIN &&
           j->search.guests != 0;
}

/* As many as there is room for; key "": the whole map. */
static void note_unused(struct dt_job *j, const char *map, const char *key)
{
    size_t used = strlen(j->search_unused), size = sizeof(j->search_unused);
    int n = snprintf(j->search_unused + used, size - used, "%s%s%s%s", used > 0 ? ", " : "", map,
                     *key ? "." : "", key);

    if (n < 0 || (size_t)n >= size - used)
        j->search_unused[used] = '\0';
}

/* Outside of the job's own file? */
static bool is_beside(const struct dt_job *j, struct dt_node n)
{
    const char *file = "";
    int line, col;

    dt_node_where(n, &file, &line, &col);
    return strcmp(file, dt_doc_name(j->doc)) != 0;
}

/* What bounds the space of a search, and is not searched where a plan is stated, or not by this strategy.  In the job's own
 * file such a key waits for the day without a plan, or with the other strategy; who states it beside the job means it to
 * count. */
static void list_unused(struct dt_node root, bool stated, struct dt_job *j)
{
    static const char *const bounds[] = {"gpus",    "tp",         "placement",       "max_vpp",
                                         "max_cp",  "max_ep",     "uniform",         "megatron_pp",
                                         "p_error", "confidence", "profile_samples", "dp"};

    for (size_t i = 0; i < sizeof(bounds) / sizeof(bounds[0]); i++) {
        struct dt_node n = dt_map_get(dt_map_get(root, "search"), bounds[i]);

        if (dt_node_present(n) && (stated || of_others(j, bounds[i])) && is_beside(j, n))
            note_unused(j, "search", bounds[i]);
    }
}

/* Does some of it stand in the job's own file? */
static bool has_own(const struct dt_job *j, struct dt_node n)
{
    struct dt_node value;
    const char *key;

    if (!dt_node_is_map(n) || dt_map_size(n) == 0)
        return !is_beside(j, n);
    for (size_t i = 0; i < dt_map_size(n); i++) {
        dt_map_at(n, i, &key, &value);
        if (has_own(j, value))
            return true;
    }
    return false;
}

static void list_keys(struct dt_node n, const char *path, struct dt_job *j)
{
    for (size_t i = 0; i < dt_map_size(n); i++) {
        struct dt_node value;
        const char *key;
        char below[128];

        dt_map_at(n, i, &key, &value);
        snprintf(below, sizeof(below), "%s.%s", path, key);
        if (dt_node_is_map(value))
            list_keys(value, below, j);
        else
            note_unused(j, path, key);
    }
}

/* What is stated of a plan that is searched for: nobody states one to have it dropped, wherever it stands. */
static void list_plan(struct dt_node n, struct dt_job *j)
{
    if (!j->plan_named[0] && dt_node_is_map(n) && !has_own(j, n))
        list_keys(n, "plan", j);
    else
        note_unused(j, "plan", "");
}

/* A way of reordering, or overlap that is off, is told of wherever it is stated, as nothing else says that samples keep their order,
 * or that collectives are hidden; StepCCL, which jobs' files state for all strategies, and the chunks of one that is off, where they
 * stand beside the job. */
void dt_job_strategy_policy(struct dt_node root, struct dt_job *j)
{
    const struct dt_plan_policy stated = j->policy, *y = &j->policy;
    struct dt_node stepccl = dt_map_get(dt_map_get(root, "train"), "stepccl");
    struct dt_node chunks = dt_map_get(dt_map_get(root, "train"), "stepccl_chunks");

    dt_orch_policy(j->strategy, &j->policy);
    if ((stated.intra_reorder && !y->intra_reorder && !j->search.free_intra) ||
        (stated.inter_reorder && !y->inter_reorder && !j->search.free_inter))
        note_unused(j, "train", "reorder");
    if (stated.overlap_grad != y->overlap_grad || stated.overlap_param != y->overlap_param)
        note_unused(j, "train", "overlap");
    if (stated.stepccl && !y->stepccl && dt_node_present(stepccl) && is_beside(j, stepccl))
        note_unused(j, "train", "stepccl");
    if (stated.stepccl_chunks > 0 && !y->stepccl && dt_node_present(chunks) && is_beside(j, chunks))
        note_unused(j, "train",
                    stated.stepccl ? "stepccl_chunks" : "stepccl_chunks (stepccl is false)");
}

/* Of plans that are searched for: whether a module becomes a guest whose parameters may leave is the strategy's, and how long it
 * takes is the cluster's to say. */
static enum dt_status check_searched(struct dt_node root, const struct dt_job *j,
                                     struct dt_error *err)
{
    struct dt_node n = dt_map_get(dt_map_get(root, "train"), "offload");

    for (int m = 0; m < j->model->n_modules; m++) {
        const char *name = j->model->modules[m].name;
        bool leaves = j->offload[m] == DT_OFFLOAD_PARAMETERS || j->offload[m] == DT_OFFLOAD_ALL;
        struct dt_node at = dt_node_is_map(n) ? dt_map_get(n, name) : n;

        if (j->search.offload[m] && j->cluster.host_bytes_per_s <= 0)
            return dt_node_error(
                at, err,
                "offload auto: the cluster does not say how fast a GPU's copies to "
                "and from the host are; state cluster.host_bandwidth (such as "
                "25 GB/s for PCIe 4 x16)");
        if (leaves && m >= j->model->llm)
            return dt_node_error(at, err,
                                 "offload %s of %s: parameters that nothing uses for a time are an "
                                 "encoder's, between its forwards and its backwards; use optimizer "
                                 "or none",
                                 dt_plan_offload_names[j->offload[m]], name);
        if (leaves && !dt_orch_may_leave(j->strategy))
            return dt_node_error(at, err,
                                 "offload %s of %s: strategy %s lets no encoder run in phases on "
                                 "the LLM's GPUs, between which its parameters could leave; use "
                                 "search.strategy: colocated, or manual with a plan, or optimizer "
                                 "or none",
                                 dt_plan_offload_names[j->offload[m]], name,
                                 dt_plan_strategy_names[j->strategy]);
    }
    return DT_OK;
}

enum dt_status dt_job_plan_finish(struct dt_node root, bool shallow, struct dt_job *j,
                                  struct dt_error *err)
{
    struct dt_node n = dt_map_get(root, "plan");
    bool present = dt_node_present(n) && !dt_node_is_null(n);

    if (shallow && (is_file(n) || j->plan_named[0]))
        return DT_OK;
    if (j->strategy == DT_STRATEGY_MANUAL && !present && !j->has_plan)
        return dt_node_error(
            dt_map_get(dt_map_get(root, "search"), "strategy"), err,
            "strategy: manual needs \"plan\", a map such as {%s: {tp: 8, pp: 1, dp: 1}} "
            "or the path of a plan.json",
            j->model->modules[j->model->llm].name);
    if (present && !j->has_plan && !is_file(n) && !j->plan_named[0])
        DT_TRY(from_map(n, j, err));
    if (!j->has_plan) {
        list_unused(root, false, j);
        if (present)
            list_plan(n, j);
        return check_searched(root, j, err);
    }
    if (j->plan_from_file) {
        DT_TRY(check_frozen(n, &j->plan, j, err));
        if (dt_node_is_map(n))
            keep_changes(n, j);
        compare_policies(j, &j->plan.policy);
        compare_frozen(j);
    }
    for (int i = 0; i < j->model->n_modules; i++)
        into_plan(j, i, &j->plan);
    j->plan.policy = j->policy;
    memcpy(j->plan.model, j->model->name, sizeof(j->plan.model));
    memcpy(j->plan.cluster, j->cluster.name, sizeof(j->plan.cluster));
    list_unused(root, true, j);
    return DT_OK;
}
