/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * `plan --explain` of Entrain: how many samples sized the modules, what fewer would have given, and how equal
 * microbatches are with its assignment. */
#include "cli/plan_entrain.h"
#include "cli/rows.h"
#include "core/schedule/assign_spread.h"

#include <math.h>
#include <stdio.h>

/* ---- sizing ---- */

static void modules(struct dt_cli_rows *r, const struct dt_session *s)
{
    const struct dt_orch_sizing *z = &s->search.sizing;

    for (int m = 0; m < z->n_modules; m++) {
        dt_cli_row(r);
        dt_cli_row_text(r, "name", "module", s->search.plans[0].module_names[m]);
        dt_cli_row_number(r, "share", "load [%]", "%.2f", 100, z->share[m]);
        dt_cli_row_number(r, "mean_share", "mean of samples' own [%]", "%.2f", 100,
                          z->mean_share[m]);
        dt_cli_row_int(r, "gpus", "GPUs of a replica", (int64_t)z->units[m] * z->unit);
    }
}

static void steps(struct dt_cli_rows *r, const struct dt_session *s)
{
    const struct dt_orch_sizing *z = &s->search.sizing;

    for (int k = 0; k < z->n_steps; k++) {
        const struct dt_orch_sizing_step *x = &z->step[k];
        char seen[DT_MAX_MODULES * (DT_NAME_MAX + 32)];
        size_t used = 0;

        for (int m = 0; m < z->n_modules && used < sizeof(seen); m++)
            used += (size_t)snprintf(seen + used, sizeof(seen) - used, "%s%s %d to %d",
                                     m ? ", " : "", s->search.plans[0].module_names[m],
                                     x->least[m] * z->unit, x->most[m] * z->unit);
        dt_cli_row(r);
        dt_cli_row_int(r, "samples", "samples", x->samples);
        dt_cli_row_int(r, "differ", "draws that differ", x->others);
        dt_cli_row_text(r, "gpus", "GPUs seen", seen);
    }
}

/* The divisions of the global batches that were drawn; the plan's first. */
static void divisions(struct dt_cli_rows *r, const struct dt_session *s)
{
    const struct dt_orch_sizing *z = &s->search.sizing;
    const struct dt_orch_sizing_stable *x = &z->stable;

    for (int k = -1; k < x->n_others; k++) {
        const int *units = k < 0 ? z->units : x->other[k].units;
        char gpus[DT_MAX_MODULES * (DT_NAME_MAX + 16)];
        size_t used = 0;

        for (int m = 0; m < z->n_modules && used < sizeof(gpus); m++)
            used += (size_t)snprintf(gpus + used, sizeof(gpus) - used, "%s%s %d", m ? ", " : "",
                                     s->search.plans[0].module_names[m], units[m] * z->unit);
        dt_cli_row(r);
        dt_cli_row_text(r, "gpus", "GPUs of a replica", gpus);
        dt_cli_row_number(r, "share", "global batches that ask for it [%]", "%.1f", 100,
                          (double)(k < 0 ? x->same : x->other[k].draws) / x->draws);
    }
}

static void print_stable(const struct dt_session *s)
{
    const struct dt_orch_sizing *z = &s->search.sizing;
    const struct dt_orch_sizing_stable *x = &z->stable;
    struct dt_cli_rows r;

    printf("\nstability: %.1f %% of %d global batches drawn (%lld samples each) ask for the plan's "
           "division; ",
           100.0 * x->same / x->draws, x->draws, (long long)x->batch);
    if (isfinite(x->margin))
        printf("another one is asked for when %.2f %% of the load move from %s to %s\n",
               100 * x->margin, s->search.plans[0].module_names[x->from],
               s->search.plans[0].module_names[x->to]);
    else
        printf("there is no other, as each module has one unit\n");
    if (x->n_others == 0)
        return;
    dt_cli_rows_table(&r);
    divisions(&r, s);
    dt_cli_rows_end(&r, stdout);
}

static void print_sizing(const struct dt_session *s)
{
    const struct dt_orch_sizing *z = &s->search.sizing;
    struct dt_cli_rows r;

    if (z->n_modules == 0)
        return;
    printf("\nGPUs of a replica, in units of %d, by the loads of %lld sample%s", z->unit,
           (long long)z->samples, z->samples == 1 ? "" : "s");
    if (z->trials == 0)
        printf(" (search.profile_samples)\n");
    else if (z->boundary)
        printf(": all, as draws of so many still differ: the mean lies on a boundary between "
               "layouts\n");
    else
        printf(" = b_min: %d draws of so many in a row give the same\n", z->trials);
    if (z->trials > 0 && !z->boundary && s->job->policy.global_batch < z->samples)
        printf("a global batch of %lld is less than b_min: others may ask for another layout\n",
               (long long)s->job->policy.global_batch);
    dt_cli_rows_table(&r);
    modules(&r, s);
    dt_cli_rows_end(&r, stdout);
    if (z->n_steps > 0) {
        dt_cli_rows_table(&r);
        steps(&r, s);
        dt_cli_rows_end(&r, stdout);
    }
    print_stable(s);
}

static void json_sizing(const struct dt_session *s, struct dt_json *j)
{
    const struct dt_orch_sizing *z = &s->search.sizing;
    struct dt_cli_rows r;

    if (z->n_modules == 0)
        return;
    dt_json_key(j, "sizing");
    dt_json_begin_object(j);
    dt_json_kv_int(j, "samples", z->samples);
    dt_json_kv_int(j, "trials", z->trials);
    dt_json_kv_bool(j, "boundary", z->boundary);
    dt_json_kv_int(j, "unit_gpus", z->unit);
    dt_cli_rows_json(&r, j, "modules");
    modules(&r, s);
    dt_cli_rows_end(&r, NULL);
    dt_cli_rows_json(&r, j, "draws");
    steps(&r, s);
    dt_cli_rows_end(&r, NULL);
    dt_json_kv_double(j, "margin", z->stable.margin);
    if (isfinite(z->stable.margin)) {
        dt_json_kv_string(j, "margin_from", s->search.plans[0].module_names[z->stable.from]);
        dt_json_kv_string(j, "margin_to", s->search.plans[0].module_names[z->stable.to]);
    }
    dt_cli_rows_json(&r, j, "divisions");
    divisions(&r, s);
    dt_cli_rows_end(&r, NULL);
    dt_json_end_object(j);
}

/* ---- microbatches ---- */

static void variability(struct dt_cli_rows *r, const struct dt_session *s,
                        const struct dt_assign_spreads *x)
{
    for (int m = 0; m < s->search.plans[0].n_modules; m++) {
        const struct dt_assign_spread *of = x->of[m];

        dt_cli_row(r);
        dt_cli_row_text(r, "name", "module", s->search.plans[0].module_names[m]);
        dt_cli_row_number(r, "given_std_s", "as given: std [ms]", "%.1f", 1e3, of[0].std_s);
        dt_cli_row_number(r, "given_cv", "cv", "%.3f", 1, of[0].cv);
        dt_cli_row_number(r, "given_max_over_mean", "max/mean", "%.3f", 1, of[0].max_over_mean);
        dt_cli_row_number(r, "balanced_cv", "balanced: cv", "%.3f", 1, of[1].cv);
        dt_cli_row_number(r, "balanced_max_over_mean", "max/mean", "%.3f", 1, of[1].max_over_mean);
        dt_cli_row_number(r, "std_s", "deferred: std [ms]", "%.1f", 1e3, of[2].std_s);
        dt_cli_row_number(r, "cv", "cv", "%.3f", 1, of[2].cv);
        dt_cli_row_number(r, "max_over_mean", "max/mean", "%.3f", 1, of[2].max_over_mean);
        dt_cli_row_number(r, "within_cv", "of a replica: cv", "%.3f", 1, of[2].within_cv);
    }
}

static enum dt_status spreads(const struct dt_session *s, struct dt_error *err,
                              struct dt_assign_spreads *x)
{
    struct dt_search_input in;

    dt_session_search_input(s, &in);
    return dt_assign_spread(&s->search.plans[0], in.model, in.cost, in.samples, 0, err, x);
}

static bool defers(const struct dt_session *s)
{
    return s->search.plans[0].policy.assignment == DT_ASSIGNMENT_ENTRAIN;
}

enum dt_status dt_cli_plan_entrain_print(const struct dt_session *s, struct dt_error *err)
{
    struct dt_assign_spreads x;
    struct dt_cli_rows r;

    print_sizing(s);
    if (!defers(s))
        return DT_OK;
    DT_TRY(spreads(s, err, &x));
    printf("\nmicrobatches of the first global batch: %lld to %lld for each replica (at most %d), "
           "%lld of %lld samples deferred in the LLM\n",
           (long long)x.fewest, (long long)x.most, x.slots, (long long)x.deferred,
           (long long)x.samples);
    dt_cli_rows_table(&r);
    variability(&r, s, &x);
    dt_cli_rows_end(&r, stdout);
    return DT_OK;
}

enum dt_status dt_cli_plan_entrain_json(const struct dt_session *s, struct dt_json *j,
                                        struct dt_error *err)
{
    struct dt_assign_spreads x;
    struct dt_cli_rows r;

    json_sizing(s, j);
    if (!defers(s))
        return DT_OK;
    DT_TRY(spreads(s, err, &x));
    dt_json_key(j, "assignment");
    dt_json_begin_object(j);
    dt_json_kv_int(j, "samples", x.samples);
    dt_json_kv_int(j, "deferred", x.deferred);
    dt_json_kv_int(j, "microbatches", x.slots);
    dt_json_kv_int(j, "microbatches_least", x.fewest);
    dt_json_kv_int(j, "microbatches_most", x.most);
    dt_cli_rows_json(&r, j, "variability");
    variability(&r, s, &x);
    dt_cli_rows_end(&r, NULL);
    dt_json_end_object(j);
    return DT_OK;
}
