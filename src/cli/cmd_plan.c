/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * disttrain plan: search layouts, print the best, explain, write plan.json. */
#include "cli/session.h"
#include "cli/table.h"
#include "base/file.h"
#include "base/mem.h"
#include "core/cost/memory.h"

#include <string.h>

const struct dt_option dt_plan_options[] = {
    {"explain", 'e', DT_OPT_FLAG, NULL,
     "why the winner wins: terms, binding constraints, memory, gap to the bound"},
    {"output", 'o', DT_OPT_STRING, "FILE", "write the best plan as plan.json ('-' = stdout)"},
    {"plan", 'p', DT_OPT_STRING, "FILE",
     "take this plan instead of searching (checks and costs it)"},
    {"strategy", 's', DT_OPT_STRING, "NAME",
     "disttrain, megatron-lm, distmm or manual (overrides the job)"},
    {"top", 'k', DT_OPT_INT, "K", "print the K best plans (default: the job's search.top_k)"},
    {NULL, 0, DT_OPT_FLAG, NULL, NULL},
};

static void print_plans(const struct dt_session *s)
{
    const char *heads[5 + DT_MAX_MODULES];
    char layout[96];
    const struct dt_plan *first = &s->search.plans[0];
    struct dt_table t;
    int n = 0;
    heads[n++] = "#";
    for (int m = 0; m < first->n_modules; m++)
        heads[n++] = first->module_names[m];
    heads[n++] = "GPUs";
    heads[n++] = "formula [s]";
    heads[n++] = "staged [s]";
    heads[n++] = "timeline [s]";
    dt_table_init(&t, n, heads);
    for (int i = 0; i < s->search.n; i++) {
        const struct dt_plan *p = &s->search.plans[i];
        dt_table_cell(&t, "%d", i + 1);
        for (int m = 0; m < p->n_modules; m++) {
            dt_layout_text(p, m, layout, sizeof layout);
            dt_table_cell(&t, "%s", layout);
        }
        dt_table_cell(&t, "%d", dt_plan_gpus(p));
        dt_table_cell(&t, "%.3f", p->predicted.total_s);
        dt_table_cell(&t, "%.3f", p->predicted.staged_s);
        if (p->predicted.timeline_s > 0)
            dt_table_cell(&t, "%.3f", p->predicted.timeline_s);
        else
            dt_table_cell(&t, "-");
    }
    dt_table_print(&t, stdout);
}

static void explain_memory(const struct dt_session *s, const struct dt_plan *p,
                           const struct dt_work *work)
{
    static const char *const gpu[] = {"module",      "stage",       "blocks",       "params [GiB]",
                                      "grads [GiB]", "optim [GiB]", "activ. [GiB]", "x in flight",
                                      "other [GiB]", "total [GiB]"};
    static const char *const process[] = {
        "module",      "stage",        "blocks",      "params [MiB]", "grads [MiB]",
        "optim [MiB]", "activ. [MiB]", "x in flight", "other [MiB]",  "total [MiB]"};
    bool cpu = dt_cluster_is_cpu(&s->job->cluster);
    const double unit = cpu ? 1048576.0 : 1073741824.0;
    struct dt_table t;

    dt_table_init(&t, 10, cpu ? process : gpu);
    for (int m = 0; m < p->n_modules; m++) {
        const struct dt_layout *l = &p->modules[m].layout;
        int64_t n_mb = p->policy.global_batch /
                       ((int64_t)p->policy.microbatch * p->modules[s->job->model->llm].layout.dp);
        for (int stage = 0; stage < l->pp; stage++) {
            struct dt_memory mem;
            const uint16_t *split = p->modules[m].split;
            dt_memory_stage(p, s->job->model, &s->job->cluster, m, stage, &work[m], n_mb, &mem);
            dt_table_cell(&t, "%s", p->module_names[m]);
            dt_table_cell(&t, "%d", stage);
            dt_table_cell(&t, "%d", split[stage + 1] - split[stage]);
            dt_table_cell(&t, "%.2f", mem.params / unit);
            dt_table_cell(&t, "%.2f", mem.grads / unit);
            dt_table_cell(&t, "%.2f", mem.optimizer / unit);
            dt_table_cell(&t, "%.2f", mem.activations / unit);
            dt_table_cell(&t, "%d", mem.in_flight);
            dt_table_cell(&t, "%.2f", (mem.logits_workspace + mem.broker + mem.reserve) / unit);
            dt_table_cell(&t, "%.2f", mem.total / unit);
        }
    }
    dt_table_print(&t, stdout);
}

static enum dt_status explain_steady(const struct dt_session *s, const struct dt_plan *p,
                                     struct dt_error *err)
{
    static const char *const heads[] = {
        "module", "GPUs", "TP", "C_m(TP) [ms/sample]", "ideal [ms/slot]", "slowest stage [ms/slot]",
        "binds"};
    struct dt_search_input in;
    struct dt_binding b;
    struct dt_table t;

    dt_session_search_input(s, &in);
    DT_TRY(dt_plan_binding(&in, p, err, &b));
    dt_table_init(&t, 7, heads);
    for (int m = 0; m < p->n_modules; m++) {
        const struct dt_layout *l = &p->modules[m].layout;
        dt_table_cell(&t, "%s", p->module_names[m]);
        dt_table_cell(&t, "%d", dt_layout_gpus(l));
        dt_table_cell(&t, "%d", l->tp);
        dt_table_cell(&t, "%.3f", 1e3 * dt_module_sample_s(&in, m, l->tp));
        dt_table_cell(&t, "%.3f", 1e3 * b.ideal_s[m]);
        dt_table_cell(&t, "%.3f", 1e3 * b.interval_s[m]);
        dt_table_cell(&t, "%s", m == b.module ? "<- sets the steady interval" : "");
    }
    dt_table_print(&t, stdout);
    printf("%s\n", b.why);
    return DT_OK;
}

static enum dt_status explain(const struct dt_session *s, struct dt_error *err)
{
    const struct dt_plan *p = &s->search.plans[0];
    const struct dt_plan_prediction *q = &p->predicted;
    struct dt_assignment *a;
    struct dt_work work[DT_MAX_MODULES] = {{0}};
    printf("\nbest plan: formula %.3f s = warm-up %.3f s + steady %.3f s", q->total_s, q->warmup_s,
           q->steady_s);
    if (q->timeline_s > 0)
        printf("; timeline on real samples %.3f s", q->timeline_s);
    putchar('\n');
    DT_TRY(explain_steady(s, p, err));
    if (s->search.stats.lower_bound_s > 0)
        printf("convex lower bound of the formula over all layouts: %.3f s (gap of this plan %.2f "
               "%%); for its own"
               " (TP, DP_lm): %.3f s\n",
               s->search.stats.lower_bound_s,
               100 * (q->total_s / s->search.stats.lower_bound_s - 1), q->lower_bound_s);
    printf("GPUs: %d of %d used\n", dt_plan_gpus(p), dt_cluster_gpus(&s->job->cluster));
    if (s->search.stats.infeasible[0])
        printf("rejected: %s\n", s->search.stats.infeasible);
    printf("\nmemory per %s, largest microbatch (limit %.2f GiB):\n",
           dt_cluster_is_cpu(&s->job->cluster) ? "process" : "GPU",
           dt_memory_limit(&s->job->cluster) / (1024.0 * 1024 * 1024));
    DT_TRY(dt_assign(p, s->job->model, s->cost, s->job->samples, 0, err, &a));
    for (int m = 0; m < a->n_modules; m++)
        dt_report_largest(&s->job->cluster, &a->m[m], &work[m]);
    dt_assign_free(a);
    explain_memory(s, p, work);
    return DT_OK;
}

static enum dt_status print_json(const struct dt_session *s, struct dt_error *err)
{
    struct dt_json j;
    dt_json_init(&j, true);
    dt_json_begin_object(&j);
    dt_json_kv_string(&j, "job", s->job->name);
    dt_json_kv_string(&j, "model", s->search.plans[0].model);
    dt_json_kv_string(&j, "cluster", s->search.plans[0].cluster);
    dt_json_kv_string(&j, "strategy", dt_strategy_names[s->search.plans[0].strategy]);
    dt_json_kv_string(&j, "assumed", s->job->model->assumed);
    dt_json_key(&j, "plans");
    dt_json_begin_array(&j);
    for (int i = 0; i < s->search.n; i++) {
        const struct dt_plan *p = &s->search.plans[i];
        dt_json_begin_object(&j);
        dt_json_kv_double(&j, "warmup_s", p->predicted.warmup_s);
        dt_json_kv_double(&j, "steady_s", p->predicted.steady_s);
        dt_json_kv_double(&j, "formula_s", p->predicted.total_s);
        dt_json_kv_double(&j, "staged_s", p->predicted.staged_s);
        dt_json_kv_double(&j, "timeline_s", p->predicted.timeline_s);
        dt_json_kv_double(&j, "lower_bound_s", p->predicted.lower_bound_s);
        dt_json_kv_double(&j, "memory_bytes_max", p->predicted.mem_bytes_max);
        dt_json_kv_int(&j, "gpus_used", dt_plan_gpus(p));
        dt_json_modules(&j, p, NULL);
        dt_json_end_object(&j);
    }
    dt_json_end_array(&j);
    dt_json_key(&j, "search");
    dt_json_begin_object(&j);
    dt_json_kv_int(&j, "candidates", s->search.stats.candidates);
    dt_json_kv_int(&j, "convex_solves", s->search.stats.convex_solves);
    dt_json_kv_double(&j, "wall_s", s->search_wall_s);
    dt_json_kv_double(&j, "lower_bound_s", s->search.stats.lower_bound_s);
    dt_json_kv_string(&j, "rejected", s->search.stats.infeasible);
    dt_json_end_object(&j);
    dt_json_end_object(&j);
    return dt_json_emit(&j, err);
}

static enum dt_status write_plan(const struct dt_session *s, const char *path, struct dt_error *err)
{
    char *text;
    DT_TRY(dt_plan_to_json(&s->search.plans[0], err, &text));
    enum dt_status st = dt_file_write(path, text, strlen(text), err);
    dt_free(text);
    return st;
}

static enum dt_status run(struct dt_cli *cli, struct dt_session *s, struct dt_error *err)
{
    const char *output = dt_cli_string(cli, "output", NULL);
    int64_t top;
    DT_TRY(dt_cli_int(cli, "top", 1, 1000, s->job->search.k, &top, err));
    s->job->search.k = (int)top;
    DT_TRY(dt_session_plan(s, dt_cli_string(cli, "plan", NULL), err));
    if (output)
        DT_TRY(write_plan(s, output, err));
    if (output && strcmp(output, "-") == 0)
        return DT_OK;
    if (cli->json)
        return print_json(s, err);
    printf("%s on %s: %lld samples per iteration, strategy %s\n", s->search.plans[0].model,
           s->search.plans[0].cluster, (long long)s->job->policy.global_batch,
           dt_strategy_names[s->search.plans[0].strategy]);
    print_plans(s);
    printf("%lld layouts costed in %.3f s\n", (long long)s->search.stats.candidates,
           s->search_wall_s);
    dt_print_assumed(s->job->model);
    return dt_cli_flag(cli, "explain") ? explain(s, err) : DT_OK;
}

enum dt_status dt_cmd_plan(struct dt_cli *cli, struct dt_error *err)
{
    struct dt_session s;
    char strategy[96];
    const char *overrides[DT_CLI_MAX_ARGS + 1];
    int n = 0;
    for (int i = 1; i < cli->n_args; i++)
        overrides[n++] = cli->args[i];
    if (dt_cli_string(cli, "strategy", NULL)) {
        snprintf(strategy, sizeof strategy, "search.strategy=%s",
                 dt_cli_string(cli, "strategy", ""));
        overrides[n++] = strategy;
    }
    DT_TRY(dt_session_open(cli->args[0], overrides, n, err, &s));
    enum dt_status st = run(cli, &s, err);
    dt_session_close(&s);
    return st;
}
