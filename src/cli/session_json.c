/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * JSON members shared by the commands; the schema is documented in disttrain-json(5). */
#include "cli/session.h"

#include "base/mem.h"
#include "cli/rows.h"
#include "report/sanity.h"

static void modules(struct dt_cli_rows *o, const struct dt_plan *p, const struct dt_report *r,
                    bool cpu)
{
    char layout[160];

    for (int m = 0; m < p->n_modules; m++) {
        const struct dt_plan_layout *l = &p->modules[m].layout;
        bool frozen = p->modules[m].frozen;

        dt_cli_row(o);
        dt_cli_row_text(o, "name", NULL, p->module_names[m]);
        dt_cli_row_cell(o, "module", "%s%s", p->module_names[m], frozen ? " (frozen)" : "");
        dt_cli_layout_text(p, m, layout, sizeof layout);
        dt_cli_row_text(o, NULL, "layout = GPUs", layout);
        dt_cli_row_int(o, "gpus", NULL, dt_plan_layout_gpus(l));
        if (p->modules[m].with)
            dt_cli_row_text(o, "with", NULL, p->module_names[p->modules[m].with - 1]);
        if (p->modules[m].window == DT_PLAN_WINDOW_ALL)
            dt_cli_row_text(o, "window", NULL, "all");
        else if (p->modules[m].window > 0)
            dt_cli_row_int(o, "window", NULL, p->modules[m].window);
        dt_cli_row_int(o, "tp", NULL, l->tp);
        dt_cli_row_int(o, "cp", NULL, l->cp);
        dt_cli_row_int(o, "ep", NULL, l->ep);
        dt_cli_row_int(o, "pp", NULL, l->pp);
        dt_cli_row_int(o, "vpp", NULL, l->vpp);
        dt_cli_row_int(o, "dp", NULL, l->dp);
        dt_cli_row_int(o, "ip", NULL, l->ip);
        dt_cli_row_bool(o, "frozen", frozen);
        dt_cli_row_text(o, "recompute", "recompute",
                        dt_block_recompute_names[p->modules[m].recompute]);
        dt_cli_row_int(o, "zero", "ZeRO", p->modules[m].zero);
        if (p->modules[m].zero_group > 0)
            dt_cli_row_int(o, "zero_group", NULL, p->modules[m].zero_group);
        if (p->modules[m].offload != DT_OFFLOAD_NONE)
            dt_cli_row_text(o, "offload", NULL, dt_plan_offload_names[p->modules[m].offload]);
        if (!r)
            continue;
        dt_cli_row_number(o, NULL, "model FLOPs [PFLOP]", "%.3f", 1e-15, r->model_flops[m]);
        dt_cli_row_number(o, "utilisation", "busy [%]", "%.1f", 100, r->timeline.utilisation[m]);
        dt_cli_row_number(o, "memory_bytes_max", cpu ? "memory max [MiB]" : "memory max [GiB]",
                          "%.2f", 1 / (cpu ? 1048576.0 : 1073741824.0), r->memory.of_module[m]);
        dt_cli_row_number(o, "model_flops", NULL, NULL, 1, r->model_flops[m]);
    }
}

void dt_cli_print_modules(const struct dt_plan *p, const struct dt_report *r, bool cpu)
{
    struct dt_cli_rows o;

    dt_cli_rows_table(&o);
    modules(&o, p, r, cpu);
    dt_cli_rows_end(&o, stdout);
}

void dt_cli_json_modules(struct dt_json *j, const struct dt_plan *p, const struct dt_report *r)
{
    struct dt_cli_rows o;

    dt_cli_rows_json(&o, j, "modules");
    modules(&o, p, r, false);
    dt_cli_rows_end(&o, NULL);
}

void dt_cli_json_notes(struct dt_json *j, const struct dt_session *s)
{
    char note[512];

    if (s->job->plan_changes[0])
        dt_json_kv_string(j, "plan_changes", s->job->plan_changes);
    dt_cost_note(s->cost, note, sizeof note);
    if (note[0])
        dt_json_kv_string(j, "profile_note", note);
}

/* Of all iterations: plans are checked with the first batch, others may have larger microbatches. */
static void memory_facts(const struct dt_cli_facts *f, const struct dt_cluster *c,
                         const struct dt_sim_result *res)
{
    const struct dt_report *r = &res->report;
    bool cpu = dt_cluster_is_cpu(c);
    struct dt_error why;

    dt_cli_fact_number(f, "memory_max_bytes", "memory",
                       cpu ? "%10.2f MiB   of the fullest process"
                           : "%10.2f GiB   of the fullest GPU",
                       1 / (cpu ? 1048576.0 : 1073741824.0), r->memory.fullest);
    dt_cli_fact_int(f, "memory_max_iteration", res->iterations > 1 ? "" : NULL,
                    ", in iteration %lld", r->memory_iteration);
    dt_cli_fact_note(f, "\n");
    dt_cli_fact_int(f, "memory_unfit_iterations", NULL, NULL, r->unfit);
    if (dt_report_check_memory(r, c, &why) != DT_OK)
        dt_cli_fact_text(f, "memory_unfit", "does not fit", "%s\n", why.message);
}

/* What is offloaded. */
static void host_facts(const struct dt_cli_facts *f, const struct dt_cluster *c,
                       const struct dt_memory_host *h)
{
    dt_cli_fact_number(f, "host_gpu_bytes", "host memory", "%10.2f GiB of a GPU at most, ",
                       1 / 1073741824.0, h->gpu_bytes);
    dt_cli_fact_number(f, "host_node_bytes", "", "%.2f of a node", 1 / 1073741824.0, h->node_bytes);
    if (c->host_mem_bytes > 0)
        dt_cli_fact_number(f, "host_memory_bytes", "", ", which has %.2f\n", 1 / 1073741824.0,
                           c->host_mem_bytes);
    else
        dt_cli_fact_note(f, "; what a node has is not known: state cluster.host_memory\n");
}

void dt_cli_report_facts(const struct dt_cli_facts *f, const struct dt_session *s,
                         const struct dt_sim_result *res)
{
    const struct dt_report *r = &res->report;
    bool spread = res->iterations > 1 || s->job->sim.jitter > 0;

    dt_cli_fact_number(f, "iteration_s", "iteration", "%10.3f s", 1, r->iteration_s);
    dt_cli_fact_number(f, "iteration_s_p10", "", "   (80 %% interval %.3f", 1, r->iteration_s_p10);
    dt_cli_fact_number(f, "iteration_s_p90", "", " to %.3f s)\n", 1, r->iteration_s_p90);
    dt_cli_fact_number(f, "iteration_s_mean", NULL, NULL, 1, r->iteration_s_mean);
    dt_cli_fact_number(f, "samples_s_p10", spread ? "  samples and jitter only" : NULL,
                       "      p10 %.3f s", 1, r->samples_s_p10);
    dt_cli_fact_number(f, "samples_s_p90", spread ? "" : NULL, ", p90 %.3f s", 1, r->samples_s_p90);
    dt_cli_fact_int(f, "iterations", spread ? "" : NULL,
                    res->iterations == 1 ? " over %lld iteration\n" : " over %lld iterations\n",
                    res->iterations);
    dt_cli_fact_number(f, "mfu", "MFU", "%10.2f %%", 100, r->mfu);
    dt_cli_fact_note(f, "   of %d GPUs used (%.2f %% of the cluster's %d)\n", r->gpus_used,
                     100 * r->mfu_cluster, r->gpus);
    dt_cli_fact_number(f, "hfu", "HFU", "%10.2f %%\n", 100, r->hfu);
    dt_cli_fact_number(f, "mfu_cluster", NULL, NULL, 1, r->mfu_cluster);
    if (r->mfu > 1) /* of a CPU: dt_report_check */
        dt_cli_fact_note(
            f, "  above 100 %%: cluster.peak_flops, %.3g FLOP/s, is less than was measured here\n",
            s->job->cluster.peak_flops);
    dt_cli_fact_number(f, "tokens_per_s", NULL, NULL, 1, r->tokens_per_s);
    dt_cli_fact_number(f, "samples_per_s", "throughput", "%10.1f samples/s", 1, r->samples_per_s);
    dt_cli_fact_note(f, ", %.0f tokens/s\n", r->tokens_per_s);
    dt_cli_fact_number(f, "goodput", NULL, NULL, 1, res->goodput);
    dt_cli_fact_int(f, "gpus", NULL, NULL, r->gpus);
    dt_cli_fact_int(f, "gpus_used", NULL, NULL, r->gpus_used);
    dt_cli_fact_number(f, "bubble_fraction", "bubbles",
                       "%10.2f %%   of the used GPUs' time without compute\n", 100,
                       r->bubble_fraction);
    dt_cli_fact_number(f, "exposed_comm_s", "exposed comm.",
                       "%10.3f s   mean over GPUs, outside kernels\n", 1, r->exposed_comm_s);
    memory_facts(f, &s->job->cluster, res);
    if (r->memory.host.node_bytes > 0)
        host_facts(f, &s->job->cluster, &r->memory.host);
    if (s->job->sim.preprocess.mode != DT_SCHED_SUPPLY_NONE)
        dt_cli_data_facts(f, s, &res->data);
    if (s->job->sim.failures) /* the last line, an earlier member */
        dt_cli_fact_number(f, NULL, "goodput",
                           "%10.2f %%   of wall time, failures and checkpoints included\n", 100,
                           res->goodput);
}

void dt_cli_json_report(struct dt_json *j, const struct dt_session *s, const struct dt_plan *p,
                        const struct dt_sim_result *r)
{
    const struct dt_report *rep = &r->report;
    const struct dt_cli_facts f = {.json = j};

    dt_json_kv_string(j, "job", s->job->name);
    dt_json_kv_string(j, "model", p->model);
    dt_json_kv_string(j, "cluster", p->cluster);
    dt_json_kv_string(j, "strategy", dt_plan_strategy_names[p->strategy]);
    dt_json_kv_string(j, "assumed", s->job->model->assumed);
    dt_cli_json_notes(j, s);
    if (s->job->search_unused[0])
        dt_json_kv_string(j, "search_unused", s->job->search_unused);
    dt_cli_json_reorder(j, s);
    dt_cli_json_ways(j, s, r);
    dt_cli_classes_json(&s->search, j);
    dt_cli_report_facts(&f, s, r);
    dt_cli_json_modules(j, p, rep);
    dt_json_key(j, "provenance");
    dt_json_begin_object(j);
    for (int k = 0; k < DT_PROV_N; k++)
        dt_json_kv_double(j, dt_cost_prov_names[k], rep->prov_share[k]);
    dt_json_end_object(j);
    dt_json_kv_int(j, "ops", (int64_t)rep->ops);
    dt_json_kv_int(j, "seed", (int64_t)s->job->sim.seed);
}

/* ---- what stands out ---- */

static const struct dt_outlier *outlier(const struct dt_outliers *o, int i)
{
    return i < o->n_lanes ? &o->lane[i] : &o->op[i - o->n_lanes];
}

void dt_cli_print_outliers(const char *heading, const struct dt_program *p,
                           const struct dt_model *m, const struct dt_outliers *o, const int *rank,
                           const char *const *host)
{
    for (int i = 0; i < o->n_lanes + o->n_ops; i++) {
        const struct dt_outlier *x = outlier(o, i);
        char place[96], text[320];

        if (rank)
            snprintf(place, sizeof place, "rank %d%s%s", rank[x->lane], host ? " on " : "",
                     host ? host[rank[x->lane]] : "");
        dt_outlier_text(p, m, x, rank ? place : NULL, text, sizeof text);
        printf("%-16s %s\n", i == 0 ? heading : "", text);
    }
}

void dt_cli_json_outliers(struct dt_json *j, const struct dt_program *p, const struct dt_model *m,
                          const struct dt_outliers *o, const int *rank, const char *const *host)
{
    dt_json_begin_array(j);
    for (int i = 0; i < o->n_lanes + o->n_ops; i++) {
        const struct dt_outlier *x = outlier(o, i);
        const struct dt_lane *l = &p->lanes[x->lane];
        const struct dt_op *op = x->op == DT_NONE ? NULL : &p->ops[x->op];

        dt_json_begin_object(j);
        dt_json_kv_string(j, "module", m->modules[l->module].name);
        dt_json_kv_int(j, "replica", l->replica);
        dt_json_kv_int(j, "stage", l->stage);
        if (rank)
            dt_json_kv_int(j, "rank", rank[x->lane]);
        if (rank && host)
            dt_json_kv_string(j, "host", host[rank[x->lane]]);
        dt_json_kv_string(j, "op", op ? dt_op_kind_names[op->kind] : NULL);
        if (op) {
            dt_json_kv_int(j, "chunk", op->chunk);
            dt_json_kv_int(j, "microbatch", op->mb);
        }
        dt_json_kv_double(j, "took_s", x->ns * 1e-9);
        dt_json_kv_double(j, "usual_s", x->usual * 1e-9);
        dt_json_end_object(j);
    }
    dt_json_end_array(j);
}

enum dt_status dt_cli_json_emit(struct dt_json *j, struct dt_error *err)
{
    char *text;
    DT_TRY(dt_json_finish(j, err, &text));
    puts(text);
    dt_free(text);
    return DT_OK;
}
