/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * What preprocessing takes, and how many cores keep the GPUs fed: lines and members of simulate and plan. */
#include "base/text.h"
#include "cli/session.h"
#include "core/schedule/assign_choose.h"
#include "core/schedule/schedule.h"

#include <stdio.h>

/* Cores that begin a batch with its iteration are waited for, however many they are. */
static const char *ahead(const struct dt_sched_supply *p)
{
    return p->prefetch == 0 ? ", if batches are made ahead (prefetch is 0)" : "";
}

/* A node makes what it fetches itself, so the one that fetches the most says how many cores each must have. */
static void needed_colocated(const struct dt_cli_facts *f, const struct dt_sched_supply *p,
                             const struct dt_sched_supplied *made, double core_s, double fed_s,
                             int gpus)
{
    double share = made->core_s > 0 ? made->node_core_s / made->core_s : 0;
    double each = fed_s > 0 ? core_s * share / fed_s : 0;

    dt_cli_fact_number(f, "cores_needed", NULL, NULL, 1, each * made->nodes);
    dt_cli_fact_number(f, "cores_per_node_needed", NULL, NULL, 1, each);
    dt_cli_fact_note(f, "%-*s%10.1f cores on each of %d node%s keep %d GPUs fed%s\n", f->width, "",
                     each, made->nodes, dt_plural(made->nodes), gpus, ahead(p));
}

/* CPU nodes, and what the link into a GPU node takes, which no number of them makes faster. */
static void needed_of_cpus(const struct dt_cli_facts *f, const struct dt_sched_supply *p,
                           const struct dt_sched_supplied *made, double core_s, double fed_s,
                           int gpus)
{
    double cores = fed_s > 0 ? core_s / fed_s : 0, link_s = made->node_bytes / p->bw_bytes_per_s;
    int each = p->cores_per_cpu_node;

    dt_cli_fact_number(f, "cores_needed", NULL, NULL, 1, cores);
    dt_cli_fact_number(f, "cpu_nodes_needed", NULL, NULL, 1, cores / each);
    dt_cli_fact_note(f, "%-*s%10.*f nodes of %d cores keep %d GPUs fed, if the links do%s\n",
                     f->width, "", cores < each ? 3 : 1, cores / each, each, gpus, ahead(p));
    dt_cli_fact_number(f, "link_s", "busiest link", "%10.3f s   for what one node gets of a batch",
                       1, link_s);
    dt_cli_fact_note(
        f, "%s\n", link_s > fed_s ? ": GPUs wait for it, whatever the cores (rpc_bandwidth)" : "");
}

static void needed(const struct dt_cli_facts *f, const struct dt_sched_supply *p,
                   const struct dt_sched_supplied *made, double core_s, double fed_s, int gpus)
{
    dt_cli_fact_number(f, "core_s", "preprocessing", "%10.3f s   of a core", 1, core_s);
    dt_cli_fact_bool(f, "measured", p->measured);
    dt_cli_fact_note(f, " (%s rates)\n", p->measured ? "measured" : "assumed");
    if (p->mode == DT_SCHED_SUPPLY_DISAGGREGATED)
        needed_of_cpus(f, p, made, core_s, fed_s, gpus);
    else
        needed_colocated(f, p, made, core_s, fed_s, gpus);
}

static void begin(const struct dt_cli_facts *f, const struct dt_sched_supply *p)
{
    if (!f->json)
        return;
    dt_json_key(f->json, "preprocess");
    dt_json_begin_object(f->json);
    dt_json_kv_string(f->json, "mode", dt_sched_supply_names[p->mode]);
}

static void end(const struct dt_cli_facts *f)
{
    if (f->json)
        dt_json_end_object(f->json);
}

void dt_cli_data_facts(const struct dt_cli_facts *f, const struct dt_session *s,
                       const struct dt_sim_data *d)
{
    const struct dt_sched_supply *p = &s->job->sim.preprocess;

    begin(f, p);
    dt_cli_fact_number(f, "exposed_s", "waits for data",
                       "%10.3f s   longer than with all data there", 1, d->exposed_s);
    dt_cli_fact_note(f, " (%s)\n", dt_sched_supply_names[p->mode]);
    dt_cli_fact_bool(f, "settled", d->settled);
    if (!d->settled)
        dt_cli_fact_note(
            f, "%-*s           iterations had not begun to repeat yet: they may still change\n",
            f->width, "");
    dt_cli_fact_number(f, "fed_s", NULL, NULL, 1, d->fed_s);
    dt_cli_fact_int(f, "cores", NULL, NULL, d->made.cores);
    dt_cli_fact_int(f, "nodes_fetching", NULL, NULL, d->made.nodes);
    dt_cli_fact_number(f, "bytes", NULL, NULL, 1, d->made.bytes);
    needed(f, p, &d->made, d->core_s, d->fed_s, dt_plan_gpus(&s->search.plans[0]));
    end(f);
}

/* Of the first global batch. */
static enum dt_status first_batch(const struct dt_session *s, struct dt_error *err,
                                  struct dt_sched_supplied *out)
{
    const struct dt_plan *p = &s->search.plans[0];
    const struct dt_job *j = s->job;
    struct dt_program *program = NULL;
    struct dt_assignment *a;
    enum dt_status st;

    DT_TRY(dt_assign_choose(p, j->model, &j->cluster, s->cost, j->samples, 0, err, &a, NULL));
    st = dt_sched_compile(p, j->model, &j->cluster, a, s->cost, err, &program);
    if (st == DT_OK)
        st = dt_sched_supply_batch(&j->sim.preprocess, j->model, &j->cluster, j->samples, program,
                                   err, out);
    dt_program_free(program);
    dt_assign_free(a);
    return st;
}

enum dt_status dt_cli_data_plan(const struct dt_cli_facts *f, const struct dt_session *s,
                                struct dt_error *err)
{
    const struct dt_sched_supply *p = &s->job->sim.preprocess;
    const struct dt_plan *plan = &s->search.plans[0];
    double timeline_s = plan->predicted.timeline_s;
    struct dt_sched_supplied made;

    if (p->mode == DT_SCHED_SUPPLY_NONE)
        return DT_OK;
    DT_TRY(first_batch(s, err, &made));
    begin(f, p);
    needed(f, p, &made, made.core_s, timeline_s > 0 ? timeline_s : plan->predicted.total_s,
           dt_plan_gpus(plan));
    end(f);
    return DT_OK;
}
