/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Fills a page about a run with what is worked out from its job. */
#include "cli/page.h"

#include "cli/point.h"
#include "cli/progress.h"
#include "core/cost/memory.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { PARTS_MAX = 15 };
#define P90 1.2816 /* 90th percentile of a standard normal distribution */

/* ---- memory ---- */

struct memory { /* of all stages, with the first batch */
    const struct dt_session *s;
    struct dt_work work[DT_MAX_MODULES];
    int64_t micro[DT_MAX_MODULES];
};

static void stage_memory(const struct memory *m, const struct dt_run_view_lane *l,
                         struct dt_memory *out)
{
    const struct dt_session *s = m->s;

    dt_memory_stage(&s->search.plans[0], s->job->model, &s->job->cluster, l->module, l->stage,
                    &m->work[l->module], m->micro[l->module], out);
}

/* What the row's guests add on one of its GPUs: all but what stages of one GPU need once. */
static double guest_bytes(const struct memory *m, const struct dt_run_view *v,
                          const struct dt_run_view_row *row, int64_t gpu)
{
    bool cpu = dt_cluster_is_cpu(&m->s->job->cluster);
    double sum = 0, away, beside;
    struct dt_memory mem;

    stage_memory(m, &v->lane[row->lane], &mem);
    away = mem.away;
    beside = mem.beside;
    for (int g = 0; g < row->n_guests; g++) {
        const struct dt_run_view_lane *x = &v->lane[row->guest[g]];

        if (gpu < x->first_gpu || gpu >= x->first_gpu + x->gpus)
            continue;
        stage_memory(m, x, &mem);
        sum += mem.total - (cpu ? mem.logits_workspace : mem.reserve);
        away += mem.away;
        beside += mem.beside;
    }
    return sum - (away < beside ? away : beside); /* either they are there or all activations */
}

/* On the GPU where they take most; what meets changes only where a lane begins. */
static double guests_most(const struct memory *m, const struct dt_run_view *v,
                          const struct dt_run_view_row *row)
{
    int64_t first = v->lane[row->lane].first_gpu;
    double most = guest_bytes(m, v, row, first);

    for (int g = 0; g < row->n_guests; g++)
        if (v->lane[row->guest[g]].first_gpu > first)
            most = fmax(most, guest_bytes(m, v, row, v->lane[row->guest[g]].first_gpu));
    return most;
}

static enum dt_status memory(struct dt_report_page_run *r, const struct dt_session *s,
                             const struct dt_sim_result *res, struct dt_error *err)
{
    struct dt_report_worked_out *w = &r->worked;
    struct memory all = {.s = s};
    struct dt_run_view_row *rows;
    struct dt_run_view v;
    struct dt_memory mem;
    char name[96];
    int n, more;

    for (int m = 0; m < s->search.plans[0].n_modules; m++)
        all.micro[m] = dt_report_largest(&s->search.plans[0], &s->job->cluster, res->assignment, m,
                                         &all.work[m]);
    DT_TRY(dt_run_view_of(res->program, s->job->model, &res->timeline, err, &v));
    enum dt_status st = dt_run_view_rows(&v, err, &rows, &n, &more);
    if (st == DT_OK)
        w->stage = DT_ARENA_NEW(&r->arena, struct dt_report_stage, n + 1);
    r->no_memory |= st == DT_OK && !w->stage;
    for (int i = 0; st == DT_OK && w->stage && i < n; i++) {
        stage_memory(&all, &v.lane[rows[i].lane], &mem);
        dt_run_view_row_name(&v, &rows[i], name, sizeof name);
        w->stage[w->n_stage++] =
            (struct dt_report_stage){.name = dt_cli_page_keep(r, name),
                                     .params = mem.params,
                                     .grads = mem.grads,
                                     .optimizer = mem.optimizer,
                                     .activations = mem.activations,
                                     .other = mem.logits_workspace + mem.broker + mem.reserve,
                                     .guests = guests_most(&all, &v, &rows[i])};
    }
    w->memory_limit_bytes = dt_memory_limit(&s->job->cluster);
    if (st == DT_OK)
        dt_free(rows);
    dt_run_view_free(&v);
    return st;
}

/* ---- contributions ---- */

static const char *rests_on(const struct dt_explain_contribution *c)
{
    return c->rests >= 0    ? dt_profile_row_kind_names[c->rests]
           : c->rests == -1 ? "computed"
                            : "assumed";
}

static void parts(struct dt_report_page_run *r, const struct dt_session *s,
                  const struct dt_explanation *e)
{
    struct dt_report_worked_out *w = &r->worked;
    char text[96];

    w->part = DT_ARENA_NEW(&r->arena, struct dt_report_part, PARTS_MAX);
    r->no_memory |= !w->part;
    for (int i = 0; w->part && i < e->n && i < PARTS_MAX; i++) {
        const struct dt_explain_contribution *c = &e->at[i];
        double seconds = 1e-9 * c->critical_ns;

        dt_explain_contribution_text(c, text, sizeof text);
        w->part[w->n_part++] = (struct dt_report_part){
            .what = dt_cli_page_keep(r, text),
            .module = dt_cli_page_keep(r, s->job->model->modules[c->module].name),
            .direction = c->direction >= 0 ? dt_cost_direction_names[c->direction] : "–",
            .rests_on = rests_on(c),
            .source = dt_cli_page_keep(r, c->source),
            .s = seconds,
            .p10_s = seconds * exp(-P90 * c->sigma),
            .p90_s = seconds * exp(P90 * c->sigma),
            .share = c->critical_ns / e->makespan_ns};
    }
}

/* ---- plans ---- */

static bool same_layouts(const struct dt_plan *a, const struct dt_plan *b)
{
    bool same = a->n_modules == b->n_modules && a->policy.schedule == b->policy.schedule &&
                a->policy.microbatch == b->policy.microbatch;

    for (int m = 0; same && m < a->n_modules; m++) {
        const struct dt_plan_module *x = &a->modules[m], *y = &b->modules[m];

        same = memcmp(&x->layout, &y->layout, sizeof x->layout) == 0 && x->with == y->with &&
               x->recompute == y->recompute && x->zero == y->zero &&
               x->zero_group == y->zero_group && x->offload == y->offload &&
               x->phases == y->phases && x->window == y->window;
    }
    return same;
}

static const char *reorder_text(const struct dt_plan_policy *y)
{
    if (y->batch_reorder)
        return "by batch";
    if (y->intra_reorder)
        return y->inter_reorder ? "intra and inter" : "intra";
    return y->inter_reorder ? "inter" : "none";
}

static int by_time(const void *va, const void *vb)
{
    const struct dt_report_next *a = va, *b = vb;

    if (a->iteration_s != b->iteration_s)
        return a->iteration_s > b->iteration_s ? 1 : -1;
    return strcmp(a->text, b->text);
}

/* One of the plans that are not the best as it would have been planned if it were: the search chooses how samples are
 * reordered for its best plan only. */
static enum dt_status next_plan(const struct dt_session *s, int i, struct dt_error *err,
                                struct dt_plan *out)
{
    struct dt_search_input in;
    struct dt_orch_reorder how;

    *out = s->search.plans[i];
    dt_session_search_input(s, &in);
    return dt_orch_choose_reorder(&in, out, err, &how);
}

/* The search times plans without contention, some of them on a share of their replicas and some not at all: here all
 * are simulated as the job is, so that they can stand beside it. */
static enum dt_status next(struct dt_report_page_run *r, const struct dt_session *s,
                           const struct dt_sim_result *res, struct dt_error *err)
{
    struct dt_report_worked_out *w = &r->worked;
    char text[512], recompute[128], zero[128];

    w->next = DT_ARENA_NEW(&r->arena, struct dt_report_next, s->search.n);
    if (!w->next)
        return dt_error_nomem(err, "a page");
    for (int i = 0; i < s->search.n; i++) {
        struct dt_plan plan = s->search.plans[i], *p = &plan;
        double seconds = 1e-9 * (double)res->timeline.makespan_ns;

        dt_cli_progress("other plans", i, s->search.n);
        if (i > 0) {
            DT_TRY(next_plan(s, i, err, &plan));
            DT_TRY(dt_sim_first_s(s->job, p, s->cost, err, &seconds));
        }
        dt_cli_plan_text(p, text, sizeof text);
        w->next[w->n_next++] = (struct dt_report_next){
            .text = dt_cli_page_keep(r, text),
            .policy = dt_cli_page_print(
                r, "%s, microbatch %d, recompute %s, ZeRO %s, reorder %s",
                dt_pipe_schedule_names[p->policy.schedule], p->policy.microbatch,
                dt_plan_recompute_text(p, recompute, sizeof recompute),
                dt_plan_zero_text(p, zero, sizeof zero), reorder_text(&p->policy)),
            .iteration_s = seconds,
            .memory_bytes = p->predicted.mem_bytes_max,
            .gpus = dt_plan_gpus(p),
            .same = r->has_plan && same_layouts(p, &r->plan)};
    }
    dt_cli_progress_end();
    qsort(w->next, (size_t)w->n_next, sizeof *w->next, by_time);
    return DT_OK;
}

/* ---- all of it ---- */

enum dt_status dt_cli_page_fill(struct dt_report_page_run *r, const struct dt_session *s,
                                const struct dt_sim_result *res, bool deep, struct dt_error *err)
{
    r->cpu = dt_cluster_is_cpu(&s->job->cluster);
    r->worked.again_s = 1e-9 * (double)res->timeline.makespan_ns;
    DT_TRY(memory(r, s, res, err));
    parts(r, s, &res->explanation);
    dt_cli_page_assume(r, s);
    if (s->search.plans[0].strategy != DT_STRATEGY_MANUAL)
        DT_TRY(next(r, s, res, err));
    if (deep)
        DT_TRY(dt_cli_page_order(r, s, err));
    if (deep)
        DT_TRY(dt_cli_page_sensitivity(r, s, err));
    return r->no_memory ? dt_error_nomem(err, "a page") : DT_OK;
}

static enum dt_status visit_search(void *ctx, const struct dt_session *s,
                                   const struct dt_sim_result *res, struct dt_error *err)
{
    return s->search.plans[0].strategy != DT_STRATEGY_MANUAL ? next(ctx, s, res, err) : DT_OK;
}

static enum dt_status visit_run(void *ctx, const struct dt_session *s,
                                const struct dt_sim_result *res, struct dt_error *err)
{
    return dt_cli_page_fill(ctx, s, res, true, err);
}

static enum dt_status evaluate(struct dt_points *points, dt_point_visit_fn *visit,
                               struct dt_report_page_run *r, const char **why, struct dt_error *err)
{
    const struct dt_point_request q = {.visit = visit, .ctx = r};
    char text[1024];
    struct dt_point p;

    DT_TRY(dt_point_eval(points, &q, err, &p));
    if (!p.feasible) {
        dt_error_format(&p.error, text, sizeof text);
        *why = dt_cli_page_keep(r, text);
    }
    dt_point_free(&p);
    return DT_OK;
}

static enum dt_status work_out(struct dt_report_page_run *r, struct dt_points *points,
                               struct dt_error *err)
{
    struct dt_report_worked_out *w = &r->worked;

    DT_TRY(evaluate(points, visit_search, r, &w->why_no_next, err));
    if (w->n_next == 0 && !w->why_no_next)
        w->why_no_next =
            "The job states its plan: there was no search, and there are no other plans.";
    DT_TRY(dt_points_keep_plan(points, &r->plan, err));
    return evaluate(points, visit_run, r, &w->why_not, err);
}

enum dt_status dt_cli_page_work_out(struct dt_report_page_run *r, struct dt_error *err)
{
    struct dt_points *points;
    struct dt_error why = {0};
    char text[1024];
    enum dt_status st;

    if (!r->job_json || !r->has_plan) {
        r->worked.why_not = "the run keeps no job, or no plan.";
        return DT_OK;
    }
    st = dt_points_open_text(r->job, r->job_json, &why, &points);
    if (st == DT_OK) {
        st = work_out(r, points, &why);
        dt_points_close(points);
    }
    if (st == DT_OK && r->no_memory)
        st = dt_error_nomem(&why, "a page");
    if (st == DT_ERR_NOMEM) {
        if (err)
            *err = why;
        return st;
    }
    if (st != DT_OK) {
        dt_error_format(&why, text, sizeof text);
        r->worked.why_not = dt_cli_page_keep(r, text);
    }
    return DT_OK;
}
