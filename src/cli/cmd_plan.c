/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * disttrain plan: search layouts, print the best, explain, write plan.json. */
#include "cli/session.h"
#include "base/file.h"
#include "base/mem.h"
#include "base/text.h"

#include <string.h>

static const struct dt_cli_option options[] = {
    {"explain", 'e', DT_OPT_FLAG, NULL,
     "why the winner wins: terms, binding constraints, memory, gap to the bound"},
    {"output", 'o', DT_OPT_STRING, "FILE", "write the best plan as plan.json ('-' = stdout)"},
    {"plan", 'p', DT_OPT_STRING, "FILE",
     "take this plan instead of searching (checks and costs it)"},
    {"strategy", 's', DT_OPT_KEY, "NAME", "search.strategy"},
    {"top", 'k', DT_OPT_INT, "K", "print the K best plans (default: the job's search.top_k)"},
    {NULL, 0, DT_OPT_FLAG, NULL, NULL},
};

static enum dt_status print_json(const struct dt_session *s, const struct dt_orch_advice *advice,
                                 const struct dt_orch_decisions *decided, struct dt_error *err)
{
    struct dt_json j;
    enum dt_status st;

    dt_json_init(&j, true);
    dt_json_begin_object(&j);
    dt_json_kv_string(&j, "job", s->job->name);
    dt_json_kv_string(&j, "model", s->search.plans[0].model);
    dt_json_kv_string(&j, "cluster", s->search.plans[0].cluster);
    dt_json_kv_string(&j, "strategy", dt_cli_strategy(&s->search));
    dt_json_kv_string(&j, "assumed", s->job->model->assumed);
    dt_cli_json_notes(&j, s);
    if (s->job->search_unused[0])
        dt_json_kv_string(&j, "search_unused", s->job->search_unused);
    dt_cli_json_reorder(&j, s);
    dt_cli_classes_json(&s->search, &j);
    dt_cli_plans_json(&s->search, &j);
    dt_json_key(&j, "search");
    dt_cli_search_json(s, &j);
    st = dt_cli_data_plan(&(struct dt_cli_facts){.json = &j}, s, err);
    dt_cli_json_advice(&j, advice);
    if (decided && st == DT_OK)
        st = dt_cli_plan_explanation_json(s, decided, &j, err);
    dt_json_end_object(&j);
    if (st == DT_OK)
        return dt_cli_json_emit(&j, err);
    dt_json_discard(&j);
    return st;
}

static enum dt_status write_plan(const struct dt_session *s, const char *path, struct dt_error *err)
{
    char *text;
    DT_TRY(dt_plan_to_json(&s->search.plans[0], err, &text));
    enum dt_status st = dt_file_write(path, text, strlen(text), err);
    dt_free(text);
    return st;
}

static enum dt_status print(const struct dt_session *s, const struct dt_orch_advice *advice,
                            const struct dt_orch_decisions *decided, struct dt_error *err)
{
    printf("%s on %s: %lld sample%s per iteration, strategy %s\n", s->search.plans[0].model,
           s->search.plans[0].cluster, (long long)s->job->policy.global_batch,
           dt_plural(s->job->policy.global_batch), dt_cli_strategy(&s->search));
    dt_cli_print_plan_changes(s);
    dt_cli_classes_print(&s->search);
    dt_cli_plans_print(&s->search);
    dt_cli_search_print(s);
    dt_cli_print_reorder(s);
    DT_TRY(dt_cli_data_plan(&(struct dt_cli_facts){.width = 16}, s, err));
    dt_cli_print_advice(advice);
    dt_cli_print_cost_note(s);
    dt_cli_print_assumed(s->job->model);
    return decided ? dt_cli_plan_explanation_print(s, decided, err) : DT_OK;
}

/* Everything that is said of the best plan, which explaining it may find to be another one. */
static enum dt_status tell(const struct dt_cli *cli, struct dt_session *s, const char *output,
                           const struct dt_orch_decisions *decided, struct dt_error *err)
{
    struct dt_orch_advice advice;

    if (output)
        DT_TRY(write_plan(s, output, err));
    if (output && strcmp(output, "-") == 0)
        return DT_OK;
    DT_TRY(dt_session_advise(s, true, err, &advice));
    return (cli->json ? print_json : print)(s, &advice, decided, err);
}

static enum dt_status run(struct dt_cli *cli, struct dt_session *s, struct dt_error *err)
{
    const char *output = dt_cli_string(cli, "output", NULL);
    bool to_stdout = output && strcmp(output, "-") == 0, explain = dt_cli_flag(cli, "explain");
    struct dt_orch_decisions *decided = NULL;
    enum dt_status st;
    int64_t top;

    if (to_stdout)
        DT_TRY(dt_cli_one_stdout(cli, output, err));
    if (to_stdout && explain)
        return dt_error_set(err, DT_ERR_USAGE, "--explain and -o - both want stdout; use -o FILE");
    DT_TRY(dt_cli_int(cli, "top", 1, 1000, s->job->search.k, &top, err));
    s->job->search.k = (int)top;
    st = dt_session_plan(s, err);
    if (st != DT_OK)
        return to_stdout ? st : dt_cli_say_what_fits(s, cli->json, st, err);
    if (explain)
        DT_TRY(dt_cli_plan_decisions(s, err, &decided));
    st = tell(cli, s, output, decided, err);
    dt_free(decided);
    return st;
}

static enum dt_status command(struct dt_cli *cli, struct dt_error *err)
{
    struct dt_session s;
    struct dt_cli_overrides o;
    DT_TRY(dt_cli_overrides(cli, err, &o));
    DT_TRY(dt_session_check(cli, err));
    DT_TRY(dt_session_open(cli->args[0], dt_cli_string(cli, "plan", NULL), o.list, o.n, err, &s));
    enum dt_status st = run(cli, &s, err);
    dt_session_close(&s);
    return st;
}

const struct dt_cli_command dt_cmd_plan = {
    .name = "plan",
    .args = "JOB [KEY=VALUE...]",
    .summary = "search the layouts of a job and print the best plans",
    .options = options,
    .min_args = 1,
    .max_args = -1,
    .run = command,
};
