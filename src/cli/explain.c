/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * `simulate --explain`: the largest contributions to an iteration, as a table and as JSON. */
#include "cli/session.h"
#include "cli/rows.h"

#include <math.h>

enum { LARGEST = 20 };
#define P90 1.2816 /* 90th percentile of a standard normal distribution */

static const char *rests_on(const struct dt_explain_contribution *c)
{
    return c->rests >= 0    ? dt_profile_row_kind_names[c->rests]
           : c->rests == -1 ? "computed"
                            : "assumed";
}

static const char *direction(const struct dt_explain_contribution *c)
{
    return c->direction >= 0 ? dt_cost_direction_names[c->direction] : "-";
}

static void contributions(struct dt_cli_rows *r, const struct dt_explanation *e,
                          const struct dt_model *m)
{
    char text[96];

    for (int i = 0; i < e->n && i < LARGEST; i++) {
        const struct dt_explain_contribution *c = &e->at[i];
        double s = c->critical_ns * 1e-9;

        dt_explain_contribution_text(c, text, sizeof text);
        dt_cli_row(r);
        dt_cli_row_text(r, "what", "contribution", text);
        dt_cli_row_text(r, "module", "module", m->modules[c->module].name);
        dt_cli_row_text(r, "direction", "direction", direction(c));
        dt_cli_row_number(r, "critical_s", "critical [s]", "%.4f", 1, s);
        dt_cli_row_number(r, "critical_s_p10", NULL, NULL, 1, s * exp(-P90 * c->sigma));
        dt_cli_row_number(r, "critical_s_p90", NULL, NULL, 1, s * exp(P90 * c->sigma));
        dt_cli_row_number(r, "critical_share", "share [%]", "%.1f", 100,
                          c->critical_ns / e->makespan_ns);
        dt_cli_row_number(r, "gpu_share", "GPUs [%]", "%.1f", 100, c->gpu_ns / e->gpu_ns);
        dt_cli_row_cell(r, "80 % of it", "-%.0f .. +%.0f %%", 100 * (1 - exp(-P90 * c->sigma)),
                        100 * (exp(P90 * c->sigma) - 1));
        dt_cli_row_text(r, "family", NULL,
                        dt_report_error_family_names[dt_explain_contribution_family(c)]);
        dt_cli_row_text(r, "rests_on", NULL, rests_on(c));
        dt_cli_row_text(r, "source", NULL, c->source);
        dt_cli_row_cell(r, "rests on", "%s: %s", rests_on(c), c->source);
    }
}

void dt_cli_print_explanation(const struct dt_explanation *e, const struct dt_model *m)
{
    double left = 1, left_gpu = 1;
    struct dt_cli_rows r;

    printf("\nlargest contributions to the iteration: time on the critical path, its share; share "
           "of all GPUs' time in computation, messages and collectives\n");
    dt_cli_rows_table(&r);
    contributions(&r, e, m);
    dt_cli_rows_end(&r, stdout);
    for (int i = 0; i < e->n && i < LARGEST; i++) {
        left -= e->at[i].critical_ns / e->makespan_ns;
        left_gpu -= e->at[i].gpu_ns / e->gpu_ns;
    }
    printf("the rest: %.1f %% of the critical path, %.1f %% of the GPUs' time in ops\n", 100 * left,
           100 * left_gpu);
}

static void family_shares(struct dt_json *j, const struct dt_explanation *e)
{
    dt_json_key(j, "families");
    dt_json_begin_array(j);
    for (int f = 0; f < DT_ERRF_N; f++) {
        dt_json_begin_object(j);
        dt_json_kv_string(j, "family", dt_report_error_family_names[f]);
        dt_json_kv_double(j, "critical_share", e->share[f]);
        dt_json_kv_double(j, "sigma", e->sigma[f]);
        dt_json_end_object(j);
    }
    dt_json_end_array(j);
}

void dt_cli_json_explanation(struct dt_json *j, const struct dt_explanation *e,
                             const struct dt_model *m)
{
    struct dt_cli_rows r;

    dt_json_key(j, "explain");
    dt_json_begin_object(j);
    dt_cli_rows_json(&r, j, "contributions");
    contributions(&r, e, m);
    dt_cli_rows_end(&r, NULL);
    family_shares(j, e);
    dt_json_end_object(j);
}
