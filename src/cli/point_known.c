/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING. */
#include "cli/point_known.h"

#include "base/mem.h"

#include <string.h>

enum { KNOWN = 64 }; /* simulations kept, the latest used ones; plans that come again come soon */

struct known {
    char *plan; /* plan.json without predictions; NULL = an empty place */
    struct dt_cluster cluster;
    struct dt_job_simulate_options sim;
    uint64_t samples, cost;
    struct dt_report report;
    double goodput;
    uint64_t used;
};
struct dt_point_known {
    struct known at[KNOWN];
    uint64_t clock;
};

enum dt_status dt_point_known_new(struct dt_error *err, struct dt_point_known **out)
{
    struct dt_point_known *k = dt_calloc(1, sizeof *k);

    if (!k)
        return dt_error_nomem(err, "points");
    *out = k;
    return DT_OK;
}

void dt_point_known_free(struct dt_point_known *k)
{
    if (!k)
        return;
    for (int i = 0; i < KNOWN; i++)
        dt_free(k->at[i].plan);
    dt_free(k);
}

/* NULL: out of memory. */
static char *plan_text(const struct dt_plan *plan)
{
    struct dt_plan p = *plan;
    char *text;

    memset(&p.predicted, 0, sizeof p.predicted);
    return dt_plan_to_json(&p, NULL, &text) == DT_OK ? text : NULL;
}

/* Nodes without lanes have no traffic, but all nodes together make the capacity of a fabric that is less than they. */
static struct dt_cluster simulated_part(const struct dt_cluster *c)
{
    struct dt_cluster part = *c;

    part.nodes = c->fabric_oversubscription > 1 ? c->nodes : 1;
    part.price_per_gpu_hour = part.watts_per_gpu = part.pue = part.grams_co2_per_kwh = 0;
    return part;
}

bool dt_point_known_find(struct dt_point_known *k, const struct dt_point_sim *sim,
                         struct dt_report *report, double *goodput)
{
    struct dt_cluster cluster = simulated_part(&sim->job->cluster);
    char *plan = plan_text(sim->plan);
    bool found = false;

    for (int i = 0; plan && !found && i < KNOWN; i++) {
        struct known *e = &k->at[i];

        if (!e->plan || e->samples != sim->samples || e->cost != sim->cost ||
            memcmp(&e->cluster, &cluster, sizeof cluster) != 0 ||
            memcmp(&e->sim, &sim->job->sim, sizeof e->sim) != 0 || strcmp(e->plan, plan) != 0)
            continue;
        found = true;
        e->used = ++k->clock;
        *report = e->report;
        dt_report_set_gpus(report, dt_cluster_gpus(&sim->job->cluster));
        *goodput = e->goodput;
    }
    dt_free(plan);
    return found;
}

void dt_point_known_add(struct dt_point_known *k, const struct dt_point_sim *sim,
                        const struct dt_report *report, double goodput)
{
    struct known *e = &k->at[0];
    char *plan = plan_text(sim->plan);

    if (!plan)
        return;
    for (int i = 1; i < KNOWN; i++)
        if (k->at[i].used < e->used)
            e = &k->at[i];
    dt_free(e->plan);
    *e = (struct known){.plan = plan,
                        .cluster = simulated_part(&sim->job->cluster),
                        .sim = sim->job->sim,
                        .samples = sim->samples,
                        .cost = sim->cost,
                        .report = *report,
                        .goodput = goodput,
                        .used = ++k->clock};
}
