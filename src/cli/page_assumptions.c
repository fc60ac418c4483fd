/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * What a page says that its numbers rest on. */
#include "cli/page.h"

#include <string.h>

/* Numbers of a cluster that times rest on; 0 = the cluster has none. */
static const struct {
    const char *key, *what;
    double is; /* the unit that it is shown in */
    const char *unit;
} of_cluster[] = {
    {"gpus_per_node", "devices of a node", 1, ""},
    {"cores_per_node", "cores of a node", 1, ""},
    {"peak_flops", "peak of a device, dense bf16", 1e12, " TFLOP/s"},
    {"memory", "memory of a device", 1073741824, " GiB"},
    {"memory_reserve", "of it held in reserve", 1073741824, " GiB"},
    {"hbm_bandwidth", "bandwidth of a device's memory", 1e9, " GB/s"},
    {"nvlink_bandwidth", "link inside a node, of a device and direction", 1e9, " GB/s"},
    {"nvlink_latency", "latency inside a node", 1e-6, " us"},
    {"nics_per_node", "NICs of a node", 1, ""},
    {"nic_bandwidth", "line rate of a NIC and direction", 1e9, " GB/s"},
    {"nic_efficiency", "of it usable", 0.01, " %"},
    {"nic_latency", "latency between nodes", 1e-6, " us"},
    {"oversubscription", "oversubscription of the fabric", 1, ""},
    {"mtbf_gpu_hours", "from a failure to the next", 1, " GPU hours"},
};
enum { OF_CLUSTER = sizeof of_cluster / sizeof of_cluster[0] };

static void assume(struct dt_report_page_run *r, const char *what, const char *value,
                   const char *source)
{
    struct dt_report_worked_out *w = &r->worked;

    w->assumption[w->n_assumption++] = (struct dt_report_assumption){what, value, source};
}

static double number_at(const struct dt_cluster *c, const struct dt_key *key)
{
    const char *p = (const char *)c + key->at;

    return key->type == DT_KEY_INTEGER ? *(const int *)(const void *)p
                                       : *(const double *)(const void *)p;
}

static void cluster(struct dt_report_page_run *r, const struct dt_job *job)
{
    const struct dt_cluster *c = &job->cluster;

    assume(r, "device", dt_cli_page_keep(r, c->device),
           dt_cli_page_cluster_source(r, job, "device"));
    for (int i = 0; i < OF_CLUSTER; i++) {
        const char *key = of_cluster[i].key;
        double v = number_at(c, dt_keys_at(dt_cluster_keys, key));
        bool of_failures = strcmp(key, "mtbf_gpu_hours") == 0;

        if (v > 0 && (!of_failures || job->sim.failures))
            assume(r, of_cluster[i].what,
                   dt_cli_page_print(r, "%.4g%s", v / of_cluster[i].is, of_cluster[i].unit),
                   dt_cli_page_cluster_source(r, job, key));
    }
}

void dt_cli_page_assume(struct dt_report_page_run *r, const struct dt_session *s)
{
    const struct dt_cost_tuning tuning =
        s->job->cost_opt.tuning ? *s->job->cost_opt.tuning : dt_cost_tuning_default;
    struct dt_cost_tuning *t = DT_ARENA_NEW(&r->arena, struct dt_cost_tuning, 1);
    char text[512];

    r->worked.assumption = DT_ARENA_NEW(&r->arena, struct dt_report_assumption,
                                        2 + OF_CLUSTER + DT_ERRF_N + DT_COST_CONSTANTS);
    if (!r->worked.assumption || !t) {
        r->no_memory = true;
        return;
    }
    *t = tuning;
    dt_samples_describe(s->job->samples, s->job->model, text, sizeof text);
    assume(r, "samples", dt_cli_page_keep(r, text), dt_cli_page_keep(r, s->job->samples->source));
    cluster(r, s->job);
    for (int i = 0; i < DT_COST_CONSTANTS; i++)
        assume(r, dt_cli_page_keep(r, dt_cost_constants[i].meaning),
               dt_cli_page_print(r, "%.4g %s", *dt_cost_tuning_at(t, i), dt_cost_constants[i].unit),
               dt_cost_constants[i].source);
    for (int f = 0; f < DT_ERRF_N; f++)
        assume(r, dt_cli_page_print(r, "error of times: %s", dt_report_error_family_names[f]),
               dt_cli_page_print(r, "%.0f %% standard deviation, where no profile row says more",
                                 100 * dt_report_error_sigma[f]),
               "doc/calibration.md");
}
