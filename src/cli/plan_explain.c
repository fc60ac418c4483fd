/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * `plan --explain`: what bounds the best plan, how far it is from the bound, and its memory; as text
 * and as JSON. */
#include "base/mem.h"
#include "cli/plan_bubbles.h"
#include "cli/plan_entrain.h"
#include "cli/rows.h"
#include "core/cost/memory.h"
#include "core/schedule/assign_choose.h"

#include <math.h>

/* ---- the steady interval ---- */

static enum dt_status binding(const struct dt_session *s, struct dt_error *err,
                              struct dt_orch_binding *b)
{
    struct dt_search_input in;

    dt_session_search_input(s, &in);
    return dt_orch_plan_binding(&in, &s->search.plans[0], err, b);
}

static void steady(struct dt_cli_rows *r, const struct dt_plan *p, const struct dt_orch_binding *b)
{
    for (int m = 0; m < p->n_modules; m++) {
        const struct dt_plan_layout *l = &p->modules[m].layout;

        dt_cli_row(r);
        dt_cli_row_text(r, "name", "module", p->module_names[m]);
        dt_cli_row_int(r, "gpus", "GPUs", dt_plan_layout_gpus(l));
        dt_cli_row_int(r, "tp", "TP", l->tp);
        dt_cli_row_number(r, "sample_s", "C_m(TP) [ms/sample]", "%.3f", 1e3, b->sample_s[m]);
        dt_cli_row_number(r, "ideal_s", "ideal [ms/slot]", "%.3f", 1e3, b->ideal_s[m]);
        dt_cli_row_number(r, "interval_s", "slowest stage [ms/slot]", "%.3f", 1e3,
                          b->interval_s[m]);
        dt_cli_row_int(r, "slowest_stage", NULL, b->stage_of[m]);
        dt_cli_row_text(r, NULL, "binds", m == b->module ? "<- sets the steady interval" : "");
    }
}

static enum dt_status print_steady(const struct dt_session *s, struct dt_error *err)
{
    struct dt_orch_binding b;
    struct dt_cli_rows r;

    DT_TRY(binding(s, err, &b));
    dt_cli_rows_table(&r);
    steady(&r, &s->search.plans[0], &b);
    dt_cli_rows_end(&r, stdout);
    printf("%s\n", b.why);
    return DT_OK;
}

static enum dt_status json_steady(const struct dt_session *s, struct dt_json *j,
                                  struct dt_error *err)
{
    const struct dt_plan *p = &s->search.plans[0];
    struct dt_orch_binding b;
    struct dt_cli_rows r;

    DT_TRY(binding(s, err, &b));
    dt_json_kv_string(j, "binding_module", p->module_names[b.module]);
    dt_json_kv_string(j, "why", b.why);
    dt_cli_rows_json(&r, j, "modules");
    steady(&r, p, &b);
    dt_cli_rows_end(&r, NULL);
    return DT_OK;
}

/* ---- memory ---- */

struct charged {
    struct dt_work work[DT_MAX_MODULES]; /* the largest microbatch of every module */
    struct dt_plan *ahead;               /* dt_sched_ahead */
};

/* With the first global batch. */
static enum dt_status largest(const struct dt_session *s, struct dt_error *err, struct charged *x)
{
    const struct dt_plan *p = &s->search.plans[0];
    struct dt_assignment *a;
    enum dt_status st;

    DT_TRY(dt_assign_choose(p, s->job->model, &s->job->cluster, s->cost, s->job->samples, 0, err,
                            &a, NULL));
    for (int m = 0; m < a->n_modules; m++)
        dt_report_largest(p, &s->job->cluster, a, m, &x->work[m]);
    st = dt_sched_ahead(p, s->job->model, &s->job->cluster, a, err, &x->ahead);
    dt_assign_free(a);
    return st;
}

static void stage(struct dt_cli_rows *r, const struct dt_cluster *c, const struct dt_plan *p,
                  int module, int stage, bool offloads, bool away, const struct dt_memory *mem)
{
    const uint16_t *split = p->modules[module].split;
    bool mib = dt_cluster_is_cpu(c);
    double unit = 1 / (mib ? 1048576.0 : 1073741824.0);
    double other = mem->logits_workspace + mem->broker + mem->reserve;

    dt_cli_row(r);
    dt_cli_row_text(r, "module", "module", p->module_names[module]);
    dt_cli_row_int(r, "stage", "stage", stage);
    dt_cli_row_int(r, "blocks", "blocks", split[stage + 1] - split[stage]);
    dt_cli_row_number(r, "params_bytes", mib ? "params [MiB]" : "params [GiB]", "%.2f", unit,
                      mem->params);
    dt_cli_row_number(r, "grads_bytes", mib ? "grads [MiB]" : "grads [GiB]", "%.2f", unit,
                      mem->grads);
    dt_cli_row_number(r, "whole_bytes", NULL, NULL, 1, mem->whole);
    dt_cli_row_number(r, "optimizer_bytes", mib ? "optim [MiB]" : "optim [GiB]", "%.2f", unit,
                      mem->optimizer);
    dt_cli_row_number(r, "activations_bytes", mib ? "activ. [MiB]" : "activ. [GiB]", "%.2f", unit,
                      mem->activations);
    dt_cli_row_int(r, "in_flight", "x in flight", mem->in_flight);
    if (offloads)
        dt_cli_row_number(r, "host_bytes", mib ? "host [MiB]" : "host [GiB]", "%.2f", unit,
                          mem->host);
    if (away) {
        dt_cli_row_number(r, "away_bytes", mib ? "away [MiB]" : "away [GiB]", "%.2f", unit,
                          mem->away);
        dt_cli_row_number(r, "beside_bytes", mib ? "beside [MiB]" : "beside [GiB]", "%.2f", unit,
                          mem->beside);
    }
    dt_cli_row_number(r, "other_bytes", mib ? "other [MiB]" : "other [GiB]", "%.2f", unit, other);
    dt_cli_row_number(r, "total_bytes", mib ? "total [MiB]" : "total [GiB]", "%.2f", unit,
                      mem->total);
}

/* Do parameters of guests leave for a time?  Of a GPU's stages together the least of `away` and `beside` is never there. */
static bool any_away(const struct dt_plan *p)
{
    for (int m = 0; m < p->n_modules; m++)
        if (dt_plan_offloads_params(&p->modules[m]))
            return true;
    return false;
}

static void stages(struct dt_cli_rows *r, const struct dt_session *s, const struct charged *x)
{
    const struct dt_plan *p = x->ahead ? x->ahead : &s->search.plans[0];
    const struct dt_cluster *c = &s->job->cluster;
    struct dt_memory mem;

    for (int m = 0; m < p->n_modules; m++)
        for (int k = 0; k < p->modules[m].layout.pp; k++) {
            dt_memory_stage(p, s->job->model, c, m, k, &x->work[m],
                            dt_plan_microbatches(p, s->job->model->llm, m), &mem);
            stage(r, c, p, m, k, dt_plan_offloads(p, s->job->model), any_away(p), &mem);
        }
}

static void print_memory(const struct dt_session *s, const struct charged *x)
{
    struct dt_cli_rows r;

    dt_cli_rows_table(&r);
    stages(&r, s, x);
    dt_cli_rows_end(&r, stdout);
}

/* What is offloaded, against what the cluster says that a node has. */
static enum dt_status print_hosts(const struct dt_session *s, const struct charged *x,
                                  struct dt_error *err)
{
    const struct dt_plan *p = x->ahead ? x->ahead : &s->search.plans[0];
    const struct dt_cluster *c = &s->job->cluster;
    struct dt_memory_host h;

    DT_TRY(dt_memory_host(p, s->job->model, c, x->work, err, &h));
    if (h.node_bytes <= 0)
        return DT_OK;
    printf("memory of hosts, for what is offloaded: at most %.2f GiB of a GPU, %.2f of a node",
           h.gpu_bytes / 1073741824.0, h.node_bytes / 1073741824.0);
    if (c->host_mem_bytes > 0)
        printf(", which has %.2f\n", c->host_mem_bytes / 1073741824.0);
    else
        printf("; what a node has is not known: state cluster.host_memory\n");
    return DT_OK;
}

static enum dt_status json_hosts(const struct dt_session *s, const struct charged *x,
                                 struct dt_json *j, struct dt_error *err)
{
    const struct dt_plan *p = x->ahead ? x->ahead : &s->search.plans[0];
    const struct dt_cluster *c = &s->job->cluster;
    struct dt_memory_host h;

    DT_TRY(dt_memory_host(p, s->job->model, c, x->work, err, &h));
    if (h.node_bytes <= 0)
        return DT_OK;
    dt_json_kv_double(j, "host_gpu_bytes", h.gpu_bytes);
    dt_json_kv_double(j, "host_node_bytes", h.node_bytes);
    if (c->host_mem_bytes > 0)
        dt_json_kv_double(j, "host_memory_bytes", c->host_mem_bytes);
    return DT_OK;
}

/* ---- all of it ---- */

/* Of the plan's formula to its convex lower bound, relative; NaN without one. */
static double gap(const struct dt_plan_prediction *q)
{
    return q->lower_bound_s > 0 ? q->total_s / q->lower_bound_s - 1 : NAN;
}

enum dt_status dt_cli_plan_explanation_print(const struct dt_session *s,
                                             const struct dt_orch_decisions *decided,
                                             struct dt_error *err)
{
    const struct dt_plan *p = &s->search.plans[0];
    const struct dt_plan_prediction *q = &p->predicted;
    struct charged x = {.ahead = NULL};
    enum dt_status st;

    printf("\nbest plan: formula %.3f s = warm-up %.3f s + steady %.3f s", q->total_s, q->warmup_s,
           q->steady_s);
    if (q->timeline_s > 0)
        printf("; timeline on real samples %.3f s", q->timeline_s);
    putchar('\n');
    DT_TRY(print_steady(s, err));
    if (q->lower_bound_s > 0)
        printf("convex lower bound of the formula with its schedule, vpp, microbatch, TP and DP of "
               "the LLM: %.3f s (gap "
               "of this plan %.2f %%)\n",
               q->lower_bound_s, 100 * gap(q));
    printf("GPUs: %d of %d used\n", dt_plan_gpus(p), dt_cluster_gpus(&s->job->cluster));
    if (s->search.stats.infeasible[0])
        printf("rejected: %s\n", s->search.stats.infeasible);
    printf("\nmemory per %s, largest microbatch (limit %.2f GiB):\n",
           dt_cluster_is_cpu(&s->job->cluster) ? "process" : "GPU",
           dt_memory_limit(&s->job->cluster) / (1024.0 * 1024 * 1024));
    DT_TRY(largest(s, err, &x));
    print_memory(s, &x);
    st = print_hosts(s, &x, err);
    dt_free(x.ahead);
    DT_TRY(st);
    DT_TRY(dt_cli_plan_entrain_print(s, err));
    DT_TRY(dt_cli_plan_bubbles_print(s, err));
    dt_cli_plan_decisions_print(s, decided);
    return DT_OK;
}

enum dt_status dt_cli_plan_explanation_json(const struct dt_session *s,
                                            const struct dt_orch_decisions *decided,
                                            struct dt_json *j, struct dt_error *err)
{
    struct dt_cli_rows r;
    struct charged x = {.ahead = NULL};
    enum dt_status st;

    dt_json_key(j, "explain");
    dt_json_begin_object(j);
    st = json_steady(s, j, err);
    if (st == DT_OK)
        st = dt_cli_plan_entrain_json(s, j, err);
    if (st == DT_OK)
        st = dt_cli_plan_bubbles_json(s, j, err);
    if (st == DT_OK)
        st = largest(s, err, &x);
    if (st != DT_OK)
        return st;
    dt_json_kv_double(j, "gap", gap(&s->search.plans[0].predicted)); /* null without a bound */
    dt_json_kv_int(j, "gpus", dt_cluster_gpus(&s->job->cluster));
    dt_json_kv_double(j, "memory_limit_bytes", dt_memory_limit(&s->job->cluster));
    dt_cli_rows_json(&r, j, "memory");
    stages(&r, s, &x);
    dt_cli_rows_end(&r, NULL);
    st = json_hosts(s, &x, j, err);
    dt_free(x.ahead);
    DT_TRY(st);
    dt_cli_plan_decisions_json(s, decided, j);
    dt_json_end_object(j);
    return DT_OK;
}
