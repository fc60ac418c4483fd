/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING. */
#include "config.h"

#include "cli/session.h"

#include "cli/progress.h"
#include "base/doc.h"
#include "base/file.h"
#include "base/mem.h"
#include "report/runs.h"
#include "report/sanity.h"
#include "core/model/shape.h"
#include "base/clock.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum dt_status dt_session_survey(const struct dt_job *job, struct dt_cost *cost,
                                 struct dt_error *err)
{
    /* a stated plan is all that there is to cost */
    struct dt_cost_modes modes;

    modes.tp = job->has_plan ? 0 : job->search.tp_mask;
    for (int m = 0; job->has_plan && m < job->plan.n_modules; m++)
        modes.tp |= (unsigned)job->plan.modules[m].layout.tp;
    for (int m = 0; m < job->model->n_modules; m++)
        modes.recompute[m] = 1U << job->recompute[m];
    return dt_cost_survey(cost, &modes, err);
}

enum dt_status dt_session_open(const char *path, const char *plan_file,
                               const char *const *overrides, int n_overrides, struct dt_error *err,
                               struct dt_session *s)
{
    char found[4096];
    memset(s, 0, sizeof *s);
    if (strcmp(path, "-") != 0) {
        DT_TRY(dt_file_find("jobs", path, ".yaml", err, found, sizeof found));
        path = found;
    }
    DT_TRY(dt_job_read_planned(path, plan_file, overrides, n_overrides, err, &s->job));
    enum dt_status st =
        dt_cli_overrides_text(overrides, n_overrides, plan_file, err, &s->overrides);
    if (st == DT_OK)
        st = dt_cost_new(s->job->model, &s->job->cluster, s->job->profile, &s->job->cost_opt, err,
                         &s->cost);
    if (st == DT_OK)
        st = dt_session_survey(s->job, s->cost, err);
    if (st == DT_OK)
        st = dt_orch_timed_new(err, &s->timed);
    if (st == DT_OK)
        dt_orch_timed_on(s->timed, s->cost, 1, s->job->samples, 1);
    else
        dt_session_close(s);
    return st;
}

void dt_session_close(struct dt_session *s)
{
    dt_search_result_free(&s->search);
    dt_orch_timed_free(s->timed);
    dt_cost_free(s->cost);
    dt_job_free(s->job);
    dt_free(s->overrides);
    memset(s, 0, sizeof *s);
}

void dt_session_search_input(const struct dt_session *s, struct dt_search_input *in)
{
    memset(in, 0, sizeof *in);
    in->model = s->job->model;
    in->cluster = &s->job->cluster;
    in->samples = s->job->samples;
    in->cost = s->cost;
    in->policy = s->job->policy;
    memcpy(in->frozen, s->job->frozen, sizeof in->frozen);
    memcpy(in->offload, s->job->offload, sizeof in->offload);
    memcpy(in->recompute, s->job->recompute, sizeof in->recompute);
    memcpy(in->zero, s->job->zero, sizeof in->zero);
    in->opt = s->job->search;
    in->timed = s->timed;
}

enum dt_status dt_session_check(const struct dt_cli *cli, struct dt_error *err)
{
    const char *strategy = dt_cli_string(cli, "strategy", "manual");

    if (dt_cli_string(cli, "plan", NULL) && strcmp(strategy, "manual") != 0)
        return dt_error_set(err, DT_ERR_USAGE,
                            "--plan and --strategy=%s: either the plan is given or it is searched "
                            "for; leave one of them out",
                            strategy);
    return DT_OK;
}

enum dt_status dt_session_plan(struct dt_session *s, struct dt_error *err)
{
    struct dt_search_input in;
    const struct dt_job *job = s->job;
    uint64_t t0 = dt_clock_ns();

    DT_TRY(dt_job_check_predicted(job, err));
    dt_session_search_input(s, &in);
    if (job->strategy == DT_STRATEGY_MANUAL) {
        if (!job->has_plan)
            return dt_error_at(err, DT_ERR_INPUT, job->name, 0, 0,
                               "strategy manual needs a plan: map (or a plan.json) in the job");
        in.manual = &job->plan;
    }
    enum dt_status st = dt_orch_find_plans(job->strategy, &in, err, &s->search);
    s->search_wall_s = (double)(dt_clock_ns() - t0) * 1e-9;
    if (job->plan_file[0] && st == DT_ERR_INPUT && err && !err->file[0])
        snprintf(err->file, sizeof err->file, "%.*s", (int)sizeof err->file - 1, job->plan_file);
    else if (in.manual &&
             !job->plan_file[0]) /* what the planner refuses stands in the job's plan: map */
        st = dt_preset_error_place(dt_map_get(dt_doc_root(job->doc), "plan"), st, err);
    return dt_report_suspect(job, st, err);
}

void dt_cli_print_cost_note(const struct dt_session *s)
{
    char note[512];

    dt_cost_note(s->cost, note, sizeof note);
    if (note[0])
        printf("%s\n", note);
}

void dt_cli_print_reorder(const struct dt_session *s)
{
    const struct dt_orch_reorder *r = &s->search.reorder;
    const char *before = "";

    if (r->batches == 0)
        return;
    printf("reordering of samples: %s, %.3f s (mean timeline of %d global batch%s%s);",
           dt_orch_reorder_names[r->choice], r->mean_s[r->choice], r->batches,
           r->batches == 1 ? "" : "es", r->share ? " on a share of the replicas" : "");
    for (int way = DT_REORDER_N - 1; way >= 0; way--) {
        if (way == r->choice || isnan(r->mean_s[way]))
            continue;
        if (isinf(r->mean_s[way]))
            printf("%s %s does not fit", before, dt_orch_reorder_names[way]);
        else
            printf("%s %s %.3f s", before, dt_orch_reorder_names[way], r->mean_s[way]);
        before = ",";
    }
    putchar('\n');
}

void dt_cli_json_reorder(struct dt_json *j, const struct dt_session *s)
{
    const struct dt_orch_reorder *r = &s->search.reorder;
    char key[16];

    if (r->batches == 0)
        return;
    dt_json_key(j, "reorder");
    dt_json_begin_object(j);
    dt_json_kv_string(j, "chosen", dt_orch_reorder_names[r->choice]);
    dt_json_kv_int(j, "batches", r->batches);
    dt_json_kv_bool(j, "share", r->share);
    for (int way = 0; way < DT_REORDER_N; way++)
        if (isfinite(r->mean_s[way])) {
            snprintf(key, sizeof key, "%s_s", dt_orch_reorder_names[way]);
            dt_json_kv_double(j, key, r->mean_s[way]);
        }
    dt_json_end_object(j);
}

void dt_cli_print_ways(const struct dt_session *s, const struct dt_sim_result *r)
{
    const char *before = "";

    if (!s->search.plans[0].policy.batch_reorder)
        return;
    printf("samples of %d global batch%s are ordered:", r->iterations,
           r->iterations == 1 ? "" : "es");
    for (int way = 0; way < DT_WAY_N; way++) {
        int n = 0;

        for (int i = 0; i < r->iterations; i++)
            n += (int)r->way[i] == way;
        if (n > 0)
            printf("%s %s %d", before, dt_assign_way_names[way], n);
        before = n > 0 ? "," : before;
    }
    putchar('\n');
}

void dt_cli_json_ways(struct dt_json *j, const struct dt_session *s, const struct dt_sim_result *r)
{
    if (!s->search.plans[0].policy.batch_reorder)
        return;
    dt_json_key(j, "orders");
    dt_json_begin_array(j);
    for (int i = 0; i < r->iterations; i++)
        dt_json_string(j, dt_assign_way_names[r->way[i]]);
    dt_json_end_array(j);
}

void dt_cli_print_plan_changes(const struct dt_session *s)
{
    const struct dt_job *job = s->job;

    if (job->plan_changes[0])
        printf("the plan file states otherwise, and is overruled: %s\n", job->plan_changes);
    if (job->search_unused[0] && job->strategy == DT_STRATEGY_MANUAL)
        printf("not used, as the plan is stated: %s\n", job->search_unused);
    else if (job->search_unused[0])
        printf("not used with strategy %s: %s\n", dt_plan_strategy_names[job->strategy],
               job->search_unused);
}

static void report_progress(void *ctx, int done, int total)
{
    dt_cli_progress(ctx, done, total);
}

enum dt_status dt_session_simulate(struct dt_session *s, const char *label, struct dt_error *err,
                                   struct dt_sim_result *out)
{
    union {
        const char *in;
        void *out;
    } what = {label};
    enum dt_status st =
        dt_sim_run(s->job, &s->search.plans[0], s->cost, report_progress, what.out, err, out);
    dt_cli_progress_end();
    return st;
}

enum dt_status dt_session_report_json(const struct dt_session *s, const struct dt_sim_result *r,
                                      bool explain, double wall_s, struct dt_error *err, char **out)
{
    struct dt_outliers o;
    struct dt_json j;
    dt_json_init(&j, true);
    dt_json_begin_object(&j);
    dt_cli_json_report(&j, s, &s->search.plans[0], r);
    if (explain)
        dt_cli_json_explanation(&j, &r->explanation, s->job->model);
    if (s->job->sim.slow_gpu_fraction > 0) {
        DT_TRY(dt_outliers_find(r->program, &r->timeline, err, &o));
        dt_json_key(&j, "stand_out");
        dt_cli_json_outliers(&j, r->program, s->job->model, &o, NULL, NULL);
    }
    dt_json_kv_double(&j, "wall_s", wall_s);
    dt_json_end_object(&j);
    return dt_json_finish(&j, err, out);
}

static enum dt_status lane_memory(const struct dt_session *s, const struct dt_program *p,
                                  struct dt_error *err, struct dt_run_memory **out)
{
    struct dt_run_memory *memory = dt_malloc((size_t)p->n_lanes * sizeof(*memory));
    double *bytes = dt_malloc((size_t)p->n_lanes * sizeof(*bytes));
    enum dt_status st = DT_OK;

    if (!memory || !bytes)
        st = dt_error_nomem(err, "lanes");
    if (st == DT_OK)
        st = dt_report_lane_memory(p, s->job->model, &s->job->cluster, err, bytes);
    for (int i = 0; st == DT_OK && i < p->n_lanes; i++)
        memory[i] = (struct dt_run_memory){(int64_t)bytes[i], -1};
    dt_free(bytes);
    if (st == DT_OK)
        *out = memory;
    else
        dt_free(memory);
    return st;
}

enum dt_status dt_session_keep_run(const struct dt_session *s, const struct dt_sim_result *res,
                                   const char *report, const char *file, bool ops,
                                   struct dt_error *err)
{
    struct dt_run_memory *memory = NULL;
    struct dt_run_facts facts;
    double model_flops[DT_MAX_MODULES], hardware_flops;
    char started[32], host[256], *job = NULL;
    int64_t id;
    enum dt_status st;

    dt_clock_utc(started, sizeof started);
    DT_TRY(dt_doc_to_json(s->job->doc, err, &job));
    dt_run_facts_of(
        s->job->model, &s->search.plans[0], s->job->samples->source,
        dt_run_samples_digest(s->job->samples, 0, s->search.plans[0].policy.global_batch),
        s->job->cluster.peak_flops, &facts);
    /* of the iteration whose timeline is kept */
    dt_report_flops(&s->search.plans[0], s->job->model, res->assignment, model_flops,
                    &hardware_flops);
    struct dt_run_record run = {
        .kind = DT_RUN_SIMULATED,
        .job_name = s->job->name,
        .job_json = job,
        .started = started,
        .version = PACKAGE_VERSION,
        .report_json = report,
        .seed = s->job->sim.seed,
        .plan = &s->search.plans[0],
        .model = s->job->model,
        .program = res->program,
        .timeline = &res->timeline,
        .memory_of = dt_cluster_is_cpu(&s->job->cluster) ? "cpu" : "gpu",
        .facts = &facts,
        .model_flops = model_flops,
        .host = dt_cli_host(host, sizeof host),
        .overrides = s->overrides,
        .ops = ops,
    };
    st = lane_memory(s, res->program, err, &memory);
    run.lane_memory = memory;
    if (st == DT_OK)
        st = dt_runs_add(file, &run, err, &id);
    dt_free(memory);
    dt_free(job);
    return st;
}

const char *dt_cli_runs_file(const struct dt_cli *cli)
{
    const char *file = dt_cli_string(cli, "runs", getenv("DISTTRAIN_RUNS"));

    return file && *file ? file : "disttrain-runs.db";
}

char *dt_cli_host(char *buf, size_t size)
{
    if (gethostname(buf, size) != 0)
        buf[0] = '\0';
    buf[size - 1] = '\0';
    return buf;
}

enum dt_status dt_cli_overrides_text(const char *const *list, int n, const char *plan,
                                     struct dt_error *err, char **out)
{
    size_t size = plan ? strlen(plan) + 16 : 1, at = 0;
    char *text;

    *out = NULL;
    for (int i = 0; i < n; i++)
        size += strlen(list[i]) + 1;
    if (n == 0 && !plan)
        return DT_OK;
    text = dt_malloc(size);
    if (!text)
        return dt_error_nomem(err, "the overrides");
    for (int i = 0; i < n; i++) {
        char *line = text + at;

        at += (size_t)snprintf(line, size - at, "%s%s", at ? "\n" : "", list[i]);
        for (line += line > text; *line; line++)
            *line = *line == '\n' ? ' ' : *line;
    }
    if (plan)
        snprintf(text + at, size - at, "%s--plan=%s", at ? "\n" : "", plan);
    *out = text;
    return DT_OK;
}

void dt_cli_warn_not_kept(const struct dt_error *err)
{
    char text[sizeof err->message + sizeof err->file + 64];

    fflush(stdout);
    dt_error_format(err, text, sizeof text);
    fprintf(stderr,
            "disttrain: warning: the result is complete, but its run was not stored: %s (--runs "
            "FILE names another file, --no-runs stores none)\n",
            text);
}

void dt_cli_layout_text(const struct dt_plan *p, int module, char *buf, size_t size)
{
    const struct dt_plan_layout *l = &p->modules[module].layout;
    char extra[96] = "", host[DT_NAME_MAX + 16] = "";
    size_t n = 0;
    if (l->cp > 1)
        n += (size_t)snprintf(extra + n, sizeof extra - n, " cp%d", l->cp);
    if (l->ep > 1)
        n += (size_t)snprintf(extra + n, sizeof extra - n, " ep%d", l->ep);
    if (l->ip > 1)
        n += (size_t)snprintf(extra + n, sizeof extra - n, " ip%d", l->ip);
    if (l->vpp > 1)
        n += (size_t)snprintf(extra + n, sizeof extra - n, " vpp%d", l->vpp);
    if (p->modules[module].window == DT_PLAN_WINDOW_ALL)
        snprintf(extra + n, sizeof extra - n, " window all");
    else if (p->modules[module].window > 0)
        snprintf(extra + n, sizeof extra - n, " window %d", p->modules[module].window);
    if (p->modules[module].with)
        snprintf(host, sizeof host, "with %s: ", p->module_names[p->modules[module].with - 1]);
    snprintf(buf, size, "%stp%d pp%d dp%d%s = %d", host, l->tp, l->pp, l->dp, extra,
             dt_plan_layout_gpus(l));
}

void dt_cli_plan_text(const struct dt_plan *p, char *buf, size_t size)
{
    char layout[160];
    size_t n = 0;

    buf[0] = '\0';
    for (int m = 0; m < p->n_modules && n < size; m++) {
        dt_cli_layout_text(p, m, layout, sizeof layout);
        n += (size_t)snprintf(buf + n, size - n, "%s%s %s", m > 0 ? "; " : "", p->module_names[m],
                              layout);
    }
}

void dt_cli_print_assumed(const struct dt_model *m)
{
    if (!m->assumed[0])
        return;
    printf("assumed:\n");
    for (const char *line = m->assumed; *line;) {
        size_t n = strcspn(line, "\n");
        printf("  %.*s\n", (int)n, line);
        line += n + (line[n] == '\n');
    }
}
