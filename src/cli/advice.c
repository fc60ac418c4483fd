/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * What one change of a job would bring, for people and programs. */
#include "cli/rows.h"
#include "cli/session.h"

enum dt_status dt_session_advise(const struct dt_session *s, bool fits, struct dt_error *err,
                                 struct dt_orch_advice *out)
{
    struct dt_search_input in;

    dt_session_search_input(s, &in);
    return dt_orch_advise(s->job->strategy, &in, fits ? &s->search.plans[0] : NULL,
                          s->search.stats.candidates, err, out);
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

void dt_cli_print_advice(const struct dt_orch_advice *a)
{
    struct dt_cli_rows r;

    if (a->now_s > 0) {
        for (int i = 0; i < a->n; i++)
            printf("hint: %s would take %.3f s, %.1f %% less\n", a->item[i].set,
                   a->item[i].iteration_s, 100 * (1 - a->item[i].iteration_s / a->now_s));
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
