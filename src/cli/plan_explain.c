/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * `plan --explain`: what bounds the best plan, how far it is from the bound, and its memory; as text
 * and as JSON. */
#include "cli/session.h"
#include "cli/table.h"
#include "core/cost/memory.h"

/* ---- the steady interval ---- */

static enum dt_status binding(const struct dt_session *s, struct dt_search_input *in,
                              struct dt_error *err, struct dt_orch_binding *b)
{
    dt_session_search_input(s, in);
    return dt_orch_plan_binding(in, &s->search.plans[0], err, b);
}

static enum dt_status print_steady(const struct dt_session *s, struct dt_error *err)
{
    static const char *const heads[] = {
        "module", "GPUs", "TP", "C_m(TP) [ms/sample]", "ideal [ms/slot]", "slowest stage [ms/slot]",
        "binds"};
    const struct dt_plan *p = &s->search.plans[0];
    struct dt_search_input in;
    struct dt_orch_binding b;
    struct dt_cli_table t;

    DT_TRY(binding(s, &in, err, &b));
    dt_cli_table_init(&t, 7, heads);
    for (int m = 0; m < p->n_modules; m++) {
        const struct dt_plan_layout *l = &p->modules[m].layout;

        dt_cli_table_cell(&t, "%s", p->module_names[m]);
        dt_cli_table_cell(&t, "%d", dt_plan_layout_gpus(l));
        dt_cli_table_cell(&t, "%d", l->tp);
        dt_cli_table_cell(&t, "%.3f", 1e3 * dt_orch_module_sample_s(&in, m, l->tp));
        dt_cli_table_cell(&t, "%.3f", 1e3 * b.ideal_s[m]);
        dt_cli_table_cell(&t, "%.3f", 1e3 * b.interval_s[m]);
        dt_cli_table_cell(&t, "%s", m == b.module ? "<- sets the steady interval" : "");
    }
    dt_cli_table_print(&t, stdout);
    printf("%s\n", b.why);
    return DT_OK;
}

static enum dt_status json_steady(const struct dt_session *s, struct dt_json *j,
                                  struct dt_error *err)
{
    const struct dt_plan *p = &s->search.plans[0];
    struct dt_search_input in;
    struct dt_orch_binding b;

    DT_TRY(binding(s, &in, err, &b));
    dt_json_kv_string(j, "binding_module", p->module_names[b.module]);
    dt_json_kv_string(j, "why", b.why);
    dt_json_key(j, "modules");
    dt_json_begin_array(j);
    for (int m = 0; m < p->n_modules; m++) {
        const struct dt_plan_layout *l = &p->modules[m].layout;

        dt_json_begin_object(j);
        dt_json_kv_string(j, "name", p->module_names[m]);
        dt_json_kv_int(j, "gpus", dt_plan_layout_gpus(l));
        dt_json_kv_int(j, "tp", l->tp);
        dt_json_kv_double(j, "sample_s", dt_orch_module_sample_s(&in, m, l->tp));
        dt_json_kv_double(j, "ideal_s", b.ideal_s[m]);
        dt_json_kv_double(j, "interval_s", b.interval_s[m]);
        dt_json_kv_int(j, "slowest_stage", b.stage_of[m]);
        dt_json_end_object(j);
    }
    dt_json_end_array(j);
    return DT_OK;
}

/* ---- memory ---- */

/* The largest microbatch of every module. */
static enum dt_status largest(const struct dt_session *s, struct dt_error *err,
                              struct dt_work work[DT_MAX_MODULES])
{
    struct dt_assignment *a;

    DT_TRY(dt_assign(&s->search.plans[0], s->job->model, s->cost, s->job->samples, 0, err, &a));
    for (int m = 0; m < a->n_modules; m++)
        dt_report_largest(&s->job->cluster, &a->m[m], &work[m]);
    dt_assign_free(a);
    return DT_OK;
}

struct row { /* one stage */
    const char *module;
    int stage, blocks;
    struct dt_memory mem;
};

static double other(const struct dt_memory *m)
{
    return m->logits_workspace + m->broker + m->reserve;
}

static void print_row(void *ctx, const struct dt_cluster *c, const struct row *r)
{
    const double unit = dt_cluster_is_cpu(c) ? 1048576.0 : 1073741824.0;
    struct dt_cli_table *t = ctx;

    dt_cli_table_cell(t, "%s", r->module);
    dt_cli_table_cell(t, "%d", r->stage);
    dt_cli_table_cell(t, "%d", r->blocks);
    dt_cli_table_cell(t, "%.2f", r->mem.params / unit);
    dt_cli_table_cell(t, "%.2f", r->mem.grads / unit);
    dt_cli_table_cell(t, "%.2f", r->mem.optimizer / unit);
    dt_cli_table_cell(t, "%.2f", r->mem.activations / unit);
    dt_cli_table_cell(t, "%d", r->mem.in_flight);
    dt_cli_table_cell(t, "%.2f", other(&r->mem) / unit);
    dt_cli_table_cell(t, "%.2f", r->mem.total / unit);
}

static void json_row(void *ctx, const struct dt_cluster *c, const struct row *r)
{
    struct dt_json *j = ctx;

    (void)c;
    dt_json_begin_object(j);
    dt_json_kv_string(j, "module", r->module);
    dt_json_kv_int(j, "stage", r->stage);
    dt_json_kv_int(j, "blocks", r->blocks);
    dt_json_kv_double(j, "params_bytes", r->mem.params);
    dt_json_kv_double(j, "grads_bytes", r->mem.grads);
    dt_json_kv_double(j, "optimizer_bytes", r->mem.optimizer);
    dt_json_kv_double(j, "activations_bytes", r->mem.activations);
    dt_json_kv_int(j, "in_flight", r->mem.in_flight);
    dt_json_kv_double(j, "other_bytes", other(&r->mem));
    dt_json_kv_double(j, "total_bytes", r->mem.total);
    dt_json_end_object(j);
}

static void each_stage(const struct dt_session *s, const struct dt_work *work,
                       void (*show)(void *ctx, const struct dt_cluster *c, const struct row *r),
                       void *ctx)
{
    const struct dt_plan *p = &s->search.plans[0];
    int64_t n_mb = dt_plan_slots(p, s->job->model->llm);

    for (int m = 0; m < p->n_modules; m++)
        for (int stage = 0; stage < p->modules[m].layout.pp; stage++) {
            const uint16_t *split = p->modules[m].split;
            struct row r = {.module = p->module_names[m],
                            .stage = stage,
                            .blocks = split[stage + 1] - split[stage]};

            dt_memory_stage(p, s->job->model, &s->job->cluster, m, stage, &work[m], n_mb, &r.mem);
            show(ctx, &s->job->cluster, &r);
        }
}

static void print_memory(const struct dt_session *s, const struct dt_work *work)
{
    static const char *const gpu[] = {"module",      "stage",       "blocks",       "params [GiB]",
                                      "grads [GiB]", "optim [GiB]", "activ. [GiB]", "x in flight",
                                      "other [GiB]", "total [GiB]"};
    static const char *const process[] = {
        "module",      "stage",        "blocks",      "params [MiB]", "grads [MiB]",
        "optim [MiB]", "activ. [MiB]", "x in flight", "other [MiB]",  "total [MiB]"};
    struct dt_cli_table t;

    dt_cli_table_init(&t, 10, dt_cluster_is_cpu(&s->job->cluster) ? process : gpu);
    each_stage(s, work, print_row, &t);
    dt_cli_table_print(&t, stdout);
}

/* ---- all of it ---- */

enum dt_status dt_cli_plan_explanation_print(const struct dt_session *s, struct dt_error *err)
{
    const struct dt_plan *p = &s->search.plans[0];
    const struct dt_plan_prediction *q = &p->predicted;
    struct dt_work work[DT_MAX_MODULES] = {{0}};
    double bound = s->search.stats.lower_bound_s;

    printf("\nbest plan: formula %.3f s = warm-up %.3f s + steady %.3f s", q->total_s, q->warmup_s,
           q->steady_s);
    if (q->timeline_s > 0)
        printf("; timeline on real samples %.3f s", q->timeline_s);
    putchar('\n');
    DT_TRY(print_steady(s, err));
    if (bound > 0)
        printf("convex lower bound of the formula over all layouts: %.3f s (gap of this plan %.2f "
               "%%); for its own"
               " (TP, DP_lm): %.3f s\n",
               bound, 100 * (q->total_s / bound - 1), q->lower_bound_s);
    printf("GPUs: %d of %d used\n", dt_plan_gpus(p), dt_cluster_gpus(&s->job->cluster));
    if (s->search.stats.infeasible[0])
        printf("rejected: %s\n", s->search.stats.infeasible);
    printf("\nmemory per %s, largest microbatch (limit %.2f GiB):\n",
           dt_cluster_is_cpu(&s->job->cluster) ? "process" : "GPU",
           dt_memory_limit(&s->job->cluster) / (1024.0 * 1024 * 1024));
    DT_TRY(largest(s, err, work));
    print_memory(s, work);
    return DT_OK;
}

enum dt_status dt_cli_plan_explanation_json(const struct dt_session *s, struct dt_json *j,
                                            struct dt_error *err)
{
    struct dt_work work[DT_MAX_MODULES] = {{0}};
    double bound = s->search.stats.lower_bound_s;

    DT_TRY(largest(s, err, work));
    dt_json_key(j, "explain");
    dt_json_begin_object(j);
    DT_TRY(json_steady(s, j, err));
    dt_json_key(j, "gap"); /* null without a bound */
    if (bound > 0)
        dt_json_double(j, s->search.plans[0].predicted.total_s / bound - 1);
    else
        dt_json_null(j);
    dt_json_kv_int(j, "gpus", dt_cluster_gpus(&s->job->cluster));
    dt_json_kv_double(j, "memory_limit_bytes", dt_memory_limit(&s->job->cluster));
    dt_json_key(j, "memory");
    dt_json_begin_array(j);
    each_stage(s, work, json_row, j);
    dt_json_end_array(j);
    dt_json_end_object(j);
    return DT_OK;
}
