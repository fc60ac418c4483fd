/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * What one change of a job would bring, for people and programs. */
#include "cli/rows.h"
#include "cli/session.h"
#include "base/text.h"

/* A stated plan is compared with what would be found; *asked false where that cannot be. */
static enum dt_status as_searched(const struct dt_session *s, struct dt_error *err,
                                  struct dt_search_input *in, bool *asked)
{
    struct dt_cost_modes modes = {0};
    struct dt_error why;
    enum dt_status st;

    *asked = false;
    if (s->job->plan_file[0])
        return DT_OK;
    st = dt_job_as_searched(s->job, &why, in);
    /* a job that names a plan.json may lack what only a search needs of `train` */
    if (st == DT_ERR_INPUT)
        return DT_OK;
    if (st != DT_OK)
        return dt_error_pass(err, &why);
    modes.tp = in->opt.tp_mask;
    for (int m = 0; m < in->model->n_modules; m++)
        modes.recompute[m] = 1U << in->recompute[m];
    st = dt_cost_survey(s->cost, &modes, &why);
    *asked = st == DT_OK;
    return st == DT_OK || st == DT_ERR_MISSING_PROFILE ? DT_OK : dt_error_pass(err, &why);
}

enum dt_status dt_session_advise(const struct dt_session *s, bool fits, struct dt_error *err,
                                 struct dt_orch_advice *out)
{
    const struct dt_plan *now = fits ? &s->search.plans[0] : NULL;
    struct dt_search_input in;
    bool asked = true;

    dt_session_search_input(s, &in);
    if (s->job->strategy == DT_STRATEGY_MANUAL)
        DT_TRY(as_searched(s, err, &in, &asked));
    return dt_orch_advise(s->job->strategy, asked ? &in : NULL, now, s->search.stats.candidates,
                          err, out);
}

static void items(struct dt_cli_rows *r, const struct dt_orch_advice *a)
{
    for (int i = 0; i < a->n; i++) {
        const struct dt_orch_advice_item *x = &a->item[i];

        dt_cli_row(r);
        dt_cli_row_text(r, "key", NULL, dt_orch_advice_names[x->key]);
        dt_cli_row_text(r, "set", "change", x->set);
        dt_cli_row_number(r, "iteration_s", "iteration [s]", "%.3f", 1, x->iteration_s);
        dt_cli_row_int(r, "gpus_used", "GPUs used", x->gpus);
    }
}

static void print_hint(const struct dt_orch_advice *a, const struct dt_orch_advice_item *x)
{
    printf("hint: %s would take %.3f s", x->set, x->iteration_s);
    if (x->gpus != a->now_gpus)
        printf(" on %d GPU%s", x->gpus, dt_plural(x->gpus));
    printf(", %.1f %% less\n", 100 * (1 - x->iteration_s / a->now_s));
}

void dt_cli_print_advice(const struct dt_orch_advice *a)
{
    struct dt_cli_rows r;

    if (a->now_s > 0) {
        for (int i = 0; i < a->n; i++)
            print_hint(a, &a->item[i]);
        for (int i = 0; i < a->n_left_out; i++)
            printf("%s%s%s", i ? ", " : "no hint was looked for, which would take long: ",
                   dt_orch_advice_names[a->left_out[i]], i + 1 == a->n_left_out ? "\n" : "");
        return;
    }
    if (a->n == 0) {
        printf("no change of one key would make a plan fit\n");
        return;
    }
    printf("a plan would fit with any one of these changes:\n");
    dt_cli_rows_table(&r);
    items(&r, a);
    dt_cli_rows_end(&r, stdout);
}

void dt_cli_json_advice(struct dt_json *j, const struct dt_orch_advice *a)
{
    struct dt_cli_rows r;

    dt_cli_rows_json(&r, j, a->now_s > 0 ? "hints" : "would_fit");
    items(&r, a);
    dt_cli_rows_end(&r, NULL);
    if (a->now_s <= 0)
        return;
    dt_json_key(j, "hints_left_out");
    dt_json_begin_array(j);
    for (int i = 0; i < a->n_left_out; i++)
        dt_json_string(j, dt_orch_advice_names[a->left_out[i]]);
    dt_json_end_array(j);
}

static enum dt_status emit(const struct dt_session *s, const struct dt_orch_advice *a,
                           const struct dt_error *why, struct dt_error *err)
{
    struct dt_json j;

    dt_json_init(&j, true);
    dt_json_begin_object(&j);
    dt_json_kv_string(&j, "job", s->job->name);
    dt_json_kv_string(&j, "model", s->job->model->name);
    dt_json_kv_string(&j, "cluster", s->job->cluster.name);
    dt_json_kv_string(&j, "strategy", dt_plan_strategy_names[s->job->strategy]);
    dt_json_kv_string(&j, "no_plan", why->message);
    dt_cli_json_advice(&j, a);
    dt_json_end_object(&j);
    return dt_cli_json_emit(&j, err);
}

enum dt_status dt_cli_say_what_fits(const struct dt_session *s, bool json, enum dt_status st,
                                    struct dt_error *err)
{
    const struct dt_error why = *err;
    struct dt_orch_advice a;

    if (st != DT_ERR_INFEASIBLE || s->job->strategy == DT_STRATEGY_MANUAL)
        return st;
    DT_TRY(dt_session_advise(s, false, err, &a));
    if (json)
        DT_TRY(emit(s, &a, &why, err));
    else
        dt_cli_print_advice(&a);
    *err = why;
    return st;
}
