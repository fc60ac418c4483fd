/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * disttrain simulate: plan (or take a plan), simulate, print, keep the run. */

#include "cli/session.h"
#include "cli/table.h"
#include "base/doc.h"
#include "base/text.h"
#include "base/file.h"
#include "base/mem.h"
#include "base/clock.h"

#include <string.h>

static const struct dt_cli_option options[] = {
    {"plan", 'p', DT_OPT_STRING, "FILE", "simulate this plan.json instead of searching"},
    {"strategy", 's', DT_OPT_KEY, "NAME", "search.strategy"},
    {"iterations", 'n', DT_OPT_KEY, "N", "simulate.iterations"},
    {"seed", 0, DT_OPT_KEY, "N", "simulate.seed"},
    {"explain", 'e', DT_OPT_FLAG, NULL,
     "the twenty largest contributions to the iteration, their sources and intervals"},
    {"print-program", 0, DT_OPT_FLAG, NULL, "list the ops of a lane as text instead of the report"},
    {"lane", 0, DT_OPT_INT, "N", "the lane that --print-program lists (default 0; -1 = all)"},
    {"runs", 0, DT_OPT_STRING, "FILE",
     "keep the run in this SQLite file (default $DISTTRAIN_RUNS or ./disttrain-runs.db)"},
    {"no-runs", 0, DT_OPT_FLAG, NULL, "keep nothing"},
    {"timeline", 0, DT_OPT_STRING, "WHAT",
     "what the runs file keeps per op: auto (up to 400,000 ops), all or none"},
    {"svg", 0, DT_OPT_STRING, "FILE",
     "draw the first iteration's timeline (one replica of every module)"},
    {"timeline-text", 0, DT_OPT_FLAG, NULL,
     "the same in characters, below the report; for small pipelines"},
    {NULL, 0, DT_OPT_FLAG, NULL, NULL},
};

static void print_report(const struct dt_session *s, const struct dt_sim_result *res, double wall_s)
{
    const struct dt_report *r = &res->report;
    const struct dt_plan *p = &s->search.plans[0];
    const struct dt_cli_facts f = {.width = 16};
    char samples[512];
    printf("%s on %s, %s, %lld sample%s of %d tokens per iteration\n", p->model, p->cluster,
           dt_plan_strategy_names[p->strategy], (long long)p->policy.global_batch,
           dt_plural(p->policy.global_batch), p->policy.seq_len);
    dt_cli_print_plan_changes(s);
    putchar('\n');
    dt_cli_print_modules(p, r, dt_cluster_is_cpu(&s->job->cluster));
    putchar('\n');
    dt_cli_report_facts(&f, s, res);
    printf("\nMFU counts causal attention once (half), recomputation not; %s\nthe predicted time "
           "rests on:",
           "HFU counts what the hardware runs.");
    for (int k = 0; k < DT_PROV_N; k++)
        if (r->prov_share[k] >= 0.0005)
            printf(" %s %.1f %%", dt_cost_prov_names[k], 100 * r->prov_share[k]);
    dt_samples_describe(s->job->samples, s->job->model, samples, sizeof samples);
    printf("\nsamples: %s\n", samples);
    dt_cli_print_reorder(s);
    dt_cli_print_ways(s, res);
    dt_cli_classes_print(&s->search);
    dt_cli_print_cost_note(s);
    dt_cli_print_assumed(s->job->model);
    printf("%llu ops simulated in %.3f s\n", (unsigned long long)r->ops, wall_s);
}

/* --timeline, before anything is worked out. */
static enum dt_status check_timeline(const struct dt_cli *cli, struct dt_error *err)
{
    static const char *const words[] = {"auto", "all", "none", NULL};
    const char *what = dt_cli_string(cli, "timeline", "auto"), *near;

    for (int i = 0; words[i]; i++)
        if (strcmp(what, words[i]) == 0)
            return DT_OK;
    near = dt_suggest(what, words);
    return dt_error_set(err, DT_ERR_USAGE, "--timeline: '%s' is not auto, all or none%s%s", what,
                        near ? "; did you mean " : "", near ? near : "");
}

/* Whatever becomes of the runs file, the result stands. */
static void keep_run(const struct dt_cli *cli, const struct dt_session *s,
                     const struct dt_sim_result *res, const char *report)
{
    const char *what = dt_cli_string(cli, "timeline", "auto");
    bool ops =
        strcmp(what, "all") == 0 || (strcmp(what, "auto") == 0 && res->program->n_ops <= 400000);
    struct dt_error err = {0};

    if (!dt_cli_flag(cli, "no-runs") &&
        dt_session_keep_run(s, res, report, dt_cli_runs_file(cli), ops, &err) != DT_OK)
        dt_cli_warn_not_kept(&err);
}

static enum dt_status json_program(const struct dt_session *s, const struct dt_program *p, int lane,
                                   struct dt_error *err)
{
    struct dt_json j;
    enum dt_status st;

    dt_json_init(&j, false);
    dt_json_begin_object(&j);
    dt_json_kv_string(&j, "job", s->job->name);
    dt_json_kv_string(&j, "model", p->plan->model);
    st = dt_program_json(p, lane, &j, err);
    dt_json_end_object(&j);
    if (st == DT_OK)
        return dt_cli_json_emit(&j, err);
    dt_json_discard(&j);
    return st;
}

static enum dt_status print_program(struct dt_cli *cli, const struct dt_session *s,
                                    const struct dt_sim_result *r, struct dt_error *err)
{
    int64_t lane;
    char *text;
    DT_TRY(dt_cli_int(cli, "lane", -1, r->program->n_lanes - 1, 0, &lane, err));
    if (cli->json)
        return json_program(s, r->program, (int)lane, err);
    DT_TRY(dt_program_print(r->program, (int)lane, err, &text));
    fputs(text, stdout);
    dt_free(text);
    return DT_OK;
}

/* Slow GPUs, where the job has some, as they would stand out in a run. */
static enum dt_status print_outliers(const struct dt_session *s, const struct dt_sim_result *r,
                                     struct dt_error *err)
{
    struct dt_outliers o;

    DT_TRY(dt_outliers_find(r->program, &r->timeline, err, &o));
    dt_cli_print_outliers("stands out", r->program, s->job->model, &o, NULL, NULL);
    return DT_OK;
}

static enum dt_status show(struct dt_cli *cli, const struct dt_session *s,
                           const struct dt_sim_result *r, double wall_s, struct dt_error *err)
{
    char *json;
    if (dt_cli_flag(cli, "print-program"))
        return print_program(cli, s, r, err);
    if (dt_cli_string(cli, "svg", NULL))
        DT_TRY(dt_cli_timeline_write(dt_cli_string(cli, "svg", NULL), s, r, err));
    DT_TRY(dt_session_report_json(s, r, dt_cli_flag(cli, "explain"), wall_s, err, &json));
    enum dt_status st = DT_OK;
    if (cli->json)
        puts(json);
    else
        print_report(s, r, wall_s);
    if (!cli->json && s->job->sim.slow_gpu_fraction > 0)
        st = print_outliers(s, r, err);
    if (st == DT_OK && !cli->json && dt_cli_flag(cli, "explain"))
        dt_cli_print_explanation(&r->explanation, s->job->model);
    if (st == DT_OK && !cli->json && dt_cli_flag(cli, "timeline-text"))
        st = dt_cli_timeline_print(s, r, err);
    if (st == DT_OK)
        keep_run(cli, s, r, json);
    dt_free(json);
    return st;
}

static enum dt_status run(struct dt_cli *cli, struct dt_session *s, struct dt_error *err)
{
    struct dt_sim_result r;
    enum dt_status st = dt_session_plan(s, err);
    if (st != DT_OK)
        return dt_cli_say_what_fits(s, cli->json, st, err);
    uint64_t t0 = dt_clock_ns();
    DT_TRY(dt_session_simulate(s, "simulating iteration", err, &r));
    st = show(cli, s, &r, (double)(dt_clock_ns() - t0) * 1e-9, err);
    dt_sim_result_free(&r);
    return st;
}

static enum dt_status command(struct dt_cli *cli, struct dt_error *err)
{
    struct dt_session s;
    struct dt_cli_overrides o;
    DT_TRY(check_timeline(cli, err));
    if (dt_cli_flag(cli, "timeline-text") && (cli->json || dt_cli_flag(cli, "print-program")))
        return dt_error_set(err, DT_ERR_USAGE,
                            "--timeline-text is drawn below the report: it excludes --%s",
                            cli->json ? "json" : "print-program");
    if (!dt_cli_flag(cli, "no-runs"))
        DT_TRY(dt_file_check(dt_cli_runs_file(cli), err));
    DT_TRY(dt_cli_overrides(cli, err, &o));
    DT_TRY(dt_session_check(cli, err));
    DT_TRY(dt_session_open(cli->args[0], dt_cli_string(cli, "plan", NULL), o.list, o.n, err, &s));
    enum dt_status st = run(cli, &s, err);
    dt_session_close(&s);
    return st;
}

const struct dt_cli_command dt_cmd_simulate = {
    .name = "simulate",
    .args = "JOB [KEY=VALUE...]",
    .summary = "predict iteration time, MFU and memory of a job",
    .options = options,
    .min_args = 1,
    .max_args = -1,
    .run = command,
};
