/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * What a page says that its numbers rest on. */
#include "cli/page.h"

#define GIB 1073741824.0

static void assume(struct dt_report_page_run *r, const char *what, const char *value,
                   const char *source)
{
    struct dt_report_worked_out *w = &r->worked;

    w->assumption[w->n_assumption++] = (struct dt_report_assumption){what, value, source};
}

void dt_cli_page_assume(struct dt_report_page_run *r, const struct dt_session *s)
{
    const struct dt_cluster *c = &s->job->cluster;
    const char *from =
        dt_cli_page_print(r, "cluster %s, whose file names the source of each value", c->name);
    const struct dt_cost_tuning tuning =
        s->job->cost_opt.tuning ? *s->job->cost_opt.tuning : dt_cost_tuning_default;
    struct dt_cost_tuning *t = DT_ARENA_NEW(&r->arena, struct dt_cost_tuning, 1);
    char text[512];

    r->worked.assumption =
        DT_ARENA_NEW(&r->arena, struct dt_report_assumption, 16 + DT_ERRF_N + DT_COST_CONSTANTS);
    if (!r->worked.assumption || !t) {
        r->no_memory = true;
        return;
    }
    *t = tuning;
    dt_samples_describe(s->job->samples, s->job->model, text, sizeof text);
    assume(r, "samples", dt_cli_page_keep(r, text), dt_cli_page_keep(r, s->job->samples->source));
    assume(r, "device", dt_cli_page_keep(r, c->device), from);
    assume(r, "peak of a device", dt_cli_page_print(r, "%.4g TFLOP/s", c->peak_flops * 1e-12),
           from);
    assume(r, "memory of a device", dt_cli_page_print(r, "%.1f GiB", c->mem_bytes / GIB), from);
    assume(r, "of it held in reserve", dt_cli_page_print(r, "%.1f GiB", c->mem_reserve_bytes / GIB),
           from);
    if (c->nvlink_bytes_per_s > 0)
        assume(r, "link inside a node, of a GPU and direction",
               dt_cli_page_print(r, "%.4g GB/s, latency %.3g us", c->nvlink_bytes_per_s * 1e-9,
                                 c->nvlink_latency_s * 1e6),
               from);
    if (c->nic_bytes_per_s > 0) {
        assume(r, "network of a node",
               dt_cli_page_print(r, "%d x %.4g GB/s, of which %.0f %% are usable, latency %.3g us",
                                 c->nics_per_node, c->nic_bytes_per_s * 1e-9,
                                 100 * c->nic_efficiency, c->nic_latency_s * 1e6),
               from);
        assume(r, "oversubscription of the fabric",
               dt_cli_page_print(r, "%.3g", c->fabric_oversubscription), from);
    }
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
