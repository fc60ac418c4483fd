/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * What preprocessing takes, and how many cores keep the GPUs fed: lines and members of simulate and plan. */
#include "cli/session.h"

#include <stdio.h>

/* CPU nodes, or cores where their size is not stated, that make a batch of core_s in fed_s. */
static void needed(const struct dt_cli_facts *f, const struct dt_sched_supply *p, double core_s,
                   double fed_s, int gpus)
{
    double cores = fed_s > 0 ? core_s / fed_s : 0;
    int each = p->mode == DT_SCHED_SUPPLY_DISAGGREGATED ? p->cores_per_cpu_node : 1;

    dt_cli_fact_number(f, "core_s", "preprocessing", "%10.3f s   of a core", 1, core_s);
    dt_cli_fact_bool(f, "measured", p->measured);
    dt_cli_fact_note(f, " (%s rates)\n", p->measured ? "measured" : "assumed");
    dt_cli_fact_number(f, "cores_needed", NULL, NULL, 1, cores);
    if (p->mode == DT_SCHED_SUPPLY_DISAGGREGATED)
        dt_cli_fact_number(f, "cpu_nodes_needed", NULL, NULL, 1, cores / each);
    if (p->mode == DT_SCHED_SUPPLY_DISAGGREGATED)
        dt_cli_fact_note(f, "%-*s%10.*f nodes of %d cores keep %d GPUs fed\n", f->width, "",
                         cores < each ? 3 : 1, cores / each, each, gpus);
    else
        dt_cli_fact_note(f, "%-*s%10.1f cores keep %d GPUs fed\n", f->width, "", cores, gpus);
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
    needed(f, p, d->core_s, d->fed_s, dt_plan_gpus(&s->search.plans[0]));
    end(f);
}

void dt_cli_data_plan(const struct dt_cli_facts *f, const struct dt_session *s)
{
    const struct dt_job *j = s->job;
    double timeline_s = s->search.plans[0].predicted.timeline_s;

    /* how often each sample is decoded with reads: slot depends on the replicas: simulate says it */
    if (j->sim.preprocess.mode == DT_SCHED_SUPPLY_NONE ||
        j->sim.preprocess.reads == DT_SCHED_READS_SLOT)
        return;
    begin(f, &j->sim.preprocess);
    needed(
        f, &j->sim.preprocess,
        dt_sched_supply_core_s(&j->sim.preprocess, j->model, j->samples, 0, j->policy.global_batch),
        timeline_s > 0 ? timeline_s : s->search.plans[0].predicted.total_s,
        dt_plan_gpus(&s->search.plans[0]));
    end(f);
}
