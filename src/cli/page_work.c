/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING. */
#include "cli/page.h"

#include "cli/point.h"
#include "cli/progress.h"
#include "core/cost/memory.h"

#include <math.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

enum { PARTS_MAX = 15 };
#define P90 1.2816 /* 90th percentile of a standard normal distribution */
#define GIB 1073741824.0

/* A text of the page's arena; that memory ran out is asked once, at the end. */
static const char *keep(struct dt_report_page_run *r, const char *s)
{
    const char *copy = dt_arena_strdup(&r->arena, s);

    r->no_memory |= !copy;
    return copy ? copy : "";
}

static const char *print(struct dt_report_page_run *r, const char *fmt, ...)
    __attribute__((format(printf, 2, 3)));
static const char *print(struct dt_report_page_run *r, const char *fmt, ...)
{
    char text[1024];
    va_list ap;

    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    return keep(r, text);
}

/* ---- memory ---- */

/* What a guest adds on a GPU: all but what stages of one GPU need once. */
static double guest_bytes(const struct dt_memory *m, bool cpu)
{
    return m->total - (cpu ? m->logits_workspace : m->reserve);
}

static enum dt_status memory(struct dt_report_page_run *r, const struct dt_session *s,
                             const struct dt_sim_result *res, struct dt_error *err)
{
    const struct dt_plan *p = &s->search.plans[0];
    const struct dt_cluster *c = &s->job->cluster;
    struct dt_report_worked_out *w = &r->worked;
    struct dt_work work[DT_MAX_MODULES];
    int64_t micro[DT_MAX_MODULES];
    struct dt_run_view_row *rows;
    struct dt_run_view v;
    struct dt_memory mem;
    char name[96];
    int n, more;

    for (int m = 0; m < p->n_modules; m++)
        micro[m] = dt_report_largest(c, &res->assignment->m[m], &work[m]);
    DT_TRY(dt_run_view_of(res->program, s->job->model, &res->timeline, err, &v));
    enum dt_status st = dt_run_view_rows(&v, err, &rows, &n, &more);
    if (st == DT_OK)
        w->stage = DT_ARENA_NEW(&r->arena, struct dt_report_stage, n + 1);
    r->no_memory |= st == DT_OK && !w->stage;
    for (int i = 0; st == DT_OK && w->stage && i < n; i++) {
        const struct dt_run_view_lane *l = &v.lane[rows[i].lane];
        struct dt_report_stage *out = &w->stage[w->n_stage++];
        double total;

        dt_memory_stage(p, s->job->model, c, l->module, l->stage, &work[l->module],
                        micro[l->module], &mem);
        dt_run_view_row_name(&v, &rows[i], name, sizeof name);
        *out = (struct dt_report_stage){.name = keep(r, name),
                                        .params = mem.params,
                                        .grads = mem.grads,
                                        .optimizer = mem.optimizer,
                                        .activations = mem.activations,
                                        .other = mem.logits_workspace + mem.broker + mem.reserve};
        total = mem.total;
        for (int g = 0; g < rows[i].n_guests; g++) {
            const struct dt_run_view_lane *x = &v.lane[rows[i].guest[g]];

            dt_memory_stage(p, s->job->model, c, x->module, x->stage, &work[x->module],
                            micro[x->module], &mem);
            out->guests += guest_bytes(&mem, dt_cluster_is_cpu(c));
        }
        total += out->guests;
        w->memory_bytes = total > w->memory_bytes ? total : w->memory_bytes;
    }
    w->memory_limit_bytes = dt_memory_limit(c);
    if (st == DT_OK)
        dt_free(rows);
    dt_run_view_free(&v);
    return st;
}

/* ---- contributions, assumptions ---- */

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
            .what = keep(r, text),
            .module = keep(r, s->job->model->modules[c->module].name),
            .direction = c->direction >= 0 ? dt_cost_direction_names[c->direction] : "–",
            .rests_on = rests_on(c),
            .source = keep(r, c->source),
            .s = seconds,
            .p10_s = seconds * exp(-P90 * c->sigma),
            .p90_s = seconds * exp(P90 * c->sigma),
            .share = c->critical_ns / e->makespan_ns};
    }
}

static void assume(struct dt_report_page_run *r, const char *what, const char *value,
                   const char *source)
{
    struct dt_report_worked_out *w = &r->worked;

    w->assumption[w->n_assumption++] = (struct dt_report_assumption){what, value, source};
}

static void assumptions(struct dt_report_page_run *r, const struct dt_session *s)
{
    const struct dt_cluster *c = &s->job->cluster;
    const char *from = print(r, "cluster %s, whose file names the source of each value", c->name);
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
    assume(r, "samples", keep(r, text), keep(r, s->job->samples->source));
    assume(r, "device", keep(r, c->device), from);
    assume(r, "peak of a device", print(r, "%.4g TFLOP/s", c->peak_flops * 1e-12), from);
    assume(r, "memory of a device", print(r, "%.1f GiB", c->mem_bytes / GIB), from);
    assume(r, "of it held in reserve", print(r, "%.1f GiB", c->mem_reserve_bytes / GIB), from);
    if (c->nvlink_bytes_per_s > 0)
        assume(r, "link inside a node, of a GPU and direction",
               print(r, "%.4g GB/s, latency %.3g us", c->nvlink_bytes_per_s * 1e-9,
                     c->nvlink_latency_s * 1e6),
               from);
    if (c->nic_bytes_per_s > 0) {
        assume(r, "network of a node",
               print(r, "%d x %.4g GB/s, of which %.0f %% are usable, latency %.3g us",
                     c->nics_per_node, c->nic_bytes_per_s * 1e-9, 100 * c->nic_efficiency,
                     c->nic_latency_s * 1e6),
               from);
        assume(r, "oversubscription of the fabric", print(r, "%.3g", c->fabric_oversubscription),
               from);
    }
    for (int i = 0; i < DT_COST_CONSTANTS; i++)
        assume(r, keep(r, dt_cost_constants[i].meaning),
               print(r, "%.4g %s", *dt_cost_tuning_at(t, i), dt_cost_constants[i].unit),
               dt_cost_constants[i].source);
    for (int f = 0; f < DT_ERRF_N; f++)
        assume(r, print(r, "error of times: %s", dt_report_error_family_names[f]),
               print(r, "%.0f %% standard deviation, where no profile row says more",
                     100 * dt_report_error_sigma[f]),
               "doc/calibration.md");
}

/* ---- plans ---- */

static bool same_layouts(const struct dt_plan *a, const struct dt_plan *b)
{
    bool same = a->n_modules == b->n_modules && a->policy.schedule == b->policy.schedule &&
                a->policy.microbatch == b->policy.microbatch;

    for (int m = 0; same && m < a->n_modules; m++) {
        const struct dt_plan_module *x = &a->modules[m], *y = &b->modules[m];

        same = memcmp(&x->layout, &y->layout, sizeof x->layout) == 0 && x->with == y->with &&
               x->recompute == y->recompute && x->zero == y->zero;
    }
    return same;
}

static void next(struct dt_report_page_run *r, const struct dt_session *s)
{
    struct dt_report_worked_out *w = &r->worked;
    char text[512], recompute[128], zero[128];

    w->next = DT_ARENA_NEW(&r->arena, struct dt_report_next, s->search.n);
    r->no_memory |= !w->next;
    for (int i = 0; w->next && i < s->search.n; i++) {
        const struct dt_plan *p = &s->search.plans[i];

        dt_cli_plan_text(p, text, sizeof text);
        w->next[w->n_next++] = (struct dt_report_next){
            .text = keep(r, text),
            .policy = print(r, "%s, microbatch %d, recompute %s, ZeRO %s",
                            dt_pipe_schedule_names[p->policy.schedule], p->policy.microbatch,
                            dt_plan_recompute_text(p, recompute, sizeof recompute),
                            dt_plan_zero_text(p, zero, sizeof zero)),
            .iteration_s =
                p->predicted.timeline_s > 0 ? p->predicted.timeline_s : p->predicted.staged_s,
            .memory_bytes = p->predicted.mem_bytes_max,
            .gpus = dt_plan_gpus(p),
            .same = r->has_plan && same_layouts(p, &r->plan)};
    }
}

/* ---- sensitivity: this plan, with one input changed ---- */

struct change {
    const char *name;
    int family;    /* enum dt_report_error_family; -1: of the cluster */
    size_t offset; /* of the double in struct dt_cluster */
    double scale;  /* to the unit it is shown in */
    const char *unit;
};
static const struct change changes[] = {
    {"time of matrix products", DT_ERRF_GEMM, 0, 1, NULL},
    {"time of attention", DT_ERRF_ATTENTION, 0, 1, NULL},
    {"time of memory-bound kernels", DT_ERRF_MEMORY_BOUND, 0, 1, NULL},
    {"time of collectives", DT_ERRF_COLLECTIVE, 0, 1, NULL},
    {"time of messages", DT_ERRF_P2P, 0, 1, NULL},
    {"time to issue a kernel", DT_ERRF_HOST, 0, 1, NULL},
    {"bandwidth inside a node", -1, offsetof(struct dt_cluster, nvlink_bytes_per_s), 1e-9, "GB/s"},
    {"bandwidth of a NIC", -1, offsetof(struct dt_cluster, nic_bytes_per_s), 1e-9, "GB/s"},
    {"latency between nodes", -1, offsetof(struct dt_cluster, nic_latency_s), 1e6, "us"},
    {"memory bandwidth", -1, offsetof(struct dt_cluster, hbm_bytes_per_s), 1e-9, "GB/s"},
    {"peak of a device", -1, offsetof(struct dt_cluster, peak_flops), 1e-12, "TFLOP/s"},
};
enum { CHANGES = sizeof changes / sizeof changes[0] };

static enum dt_status timeline_with(const struct dt_session *s, const struct change *x,
                                    double factor, struct dt_error *err, double *seconds)
{
    struct dt_cost_options opt = *dt_cost_opts(s->cost);
    struct dt_cluster c = s->job->cluster;
    struct dt_search_input in;
    struct dt_cost *cost;
    enum dt_status st;

    if (x && x->family == DT_ERRF_HOST)
        opt.dispatch_ns *= factor;
    else if (x && x->family >= 0)
        for (int f = 0; f < DT_KOP_FAMILY_N; f++)
            opt.scale[f] = dt_report_error_family_of(f) == (enum dt_report_error_family)x->family
                               ? factor * (opt.scale[f] > 0 ? opt.scale[f] : 1)
                               : opt.scale[f];
    else if (x)
        *(double *)((char *)&c + x->offset) *= factor;
    DT_TRY(dt_cost_new(s->job->model, &c, s->job->profile, &opt, err, &cost));
    dt_session_search_input(s, &in);
    in.cluster = &c;
    in.cost = cost;
    st = dt_orch_plan_timeline_s(&in, &s->search.plans[0], 0, err, seconds, NULL);
    dt_cost_free(cost);
    return st;
}

static const char *value_of(struct dt_report_page_run *r, const struct dt_session *s,
                            const struct change *x)
{
    if (x->family < 0)
        return print(r, "%.4g %s",
                     x->scale * *(const double *)((const char *)&s->job->cluster + x->offset),
                     x->unit);
    if (x->family == DT_ERRF_HOST)
        return print(r, "%.3g us", dt_cost_opts(s->cost)->dispatch_ns * 1e-3);
    return "as the cost model has it";
}

/* A cluster may have no such thing, and kernels may be taken to wait for no host. */
static bool stated(const struct dt_session *s, const struct change *x)
{
    if (x->family == DT_ERRF_HOST)
        return dt_cost_opts(s->cost)->dispatch_ns > 0;
    return x->family >= 0 || *(const double *)((const char *)&s->job->cluster + x->offset) > 0;
}

static int by_effect(const void *va, const void *vb)
{
    const struct dt_report_input *a = va, *b = vb;
    double x = fmax(fabs(a->less), fabs(a->more)), y = fmax(fabs(b->less), fabs(b->more));

    if (x != y)
        return x > y ? -1 : 1;
    return strcmp(a->name, b->name);
}

static enum dt_status inputs(struct dt_report_page_run *r, const struct dt_session *s,
                             struct dt_error *err)
{
    struct dt_report_worked_out *w = &r->worked;

    w->input = DT_ARENA_NEW(&r->arena, struct dt_report_input, CHANGES);
    if (!w->input)
        return dt_error_nomem(err, "a page");
    DT_TRY(timeline_with(s, NULL, 1, err, &w->base_s));
    for (int i = 0; i < CHANGES; i++) {
        const struct change *x = &changes[i];
        double less, more;

        dt_cli_progress("sensitivity", i, CHANGES);
        if (!stated(s, x))
            continue;
        DT_TRY(timeline_with(s, x, 0.9, err, &less));
        DT_TRY(timeline_with(s, x, 1.1, err, &more));
        w->input[w->n_input++] = (struct dt_report_input){
            x->name, value_of(r, s, x), less / w->base_s - 1, more / w->base_s - 1};
    }
    dt_cli_progress_end();
    qsort(w->input, (size_t)w->n_input, sizeof *w->input, by_effect);
    return DT_OK;
}

/* ---- stragglers: the first global batch, as its samples come and reordered ---- */

struct uneven {
    double replica[DT_MAX_MODULES], microbatch[DT_MAX_MODULES]; /* slowest / mean */
    double iteration_s;
};

static void measure(const struct dt_program *p, const struct dt_durations *d, int n_modules,
                    struct uneven *out)
{
    for (int m = 0; m < n_modules; m++) {
        double sum = 0, slowest = 0, micro = 0, longest = 0;
        int64_t lanes = 0, passes = 0;

        for (int k = 0; k < p->n_lanes; k++) {
            const struct dt_lane *l = &p->lanes[k];
            double lane = 0;

            if (l->module != m || l->stage != 0)
                continue;
            for (uint32_t i = l->first; i < l->first + l->n; i++) {
                if (p->ops[i].kind != DT_OP_FORWARD && p->ops[i].kind != DT_OP_BACKWARD &&
                    p->ops[i].kind != DT_OP_WEIGHT_GRAD)
                    continue;
                lane += (double)d->ns[i];
                if (p->ops[i].kind == DT_OP_FORWARD) {
                    micro += (double)d->ns[i];
                    longest = fmax(longest, (double)d->ns[i]);
                    passes++;
                }
            }
            sum += lane;
            slowest = fmax(slowest, lane);
            lanes++;
        }
        out->replica[m] = sum > 0 ? slowest * (double)lanes / sum : 1;
        out->microbatch[m] = micro > 0 ? longest * (double)passes / micro : 1;
    }
}

static enum dt_status compiled(const struct dt_session *s, const struct dt_plan *plan,
                               const struct dt_assignment *a, struct dt_error *err,
                               struct uneven *out)
{
    const struct dt_job *j = s->job;
    struct dt_timeline_topo topo = {0};
    struct dt_timeline t = {0};
    struct dt_durations d = {0};
    struct dt_program *p;
    enum dt_status st;

    DT_TRY(dt_sched_compile(plan, j->model, &j->cluster, a, s->cost, err, &p));
    st = dt_durations_compute(p, j->model, &j->cluster, s->cost, false, err, &d);
    if (st == DT_OK)
        st = dt_timeline_topo_build(p, err, &topo);
    if (st == DT_OK)
        st = dt_timeline_eval(p, &topo, d.ns, err, &t);
    if (st == DT_OK) {
        measure(p, &d, plan->n_modules, out);
        out->iteration_s = 1e-9 * (double)t.makespan_ns;
    }
    dt_timeline_topo_free(&topo);
    dt_timeline_free(&t);
    dt_durations_free(&d);
    dt_program_free(p);
    return st;
}

static enum dt_status ordered(const struct dt_session *s, bool intra, bool inter,
                              struct dt_error *err, struct uneven *out)
{
    struct dt_plan *plan = dt_malloc(sizeof *plan);
    struct dt_assignment *a;
    enum dt_status st;

    if (!plan)
        return dt_error_nomem(err, "a page");
    *plan = s->search.plans[0];
    plan->policy.intra_reorder = intra;
    plan->policy.inter_reorder = inter;
    st = dt_assign(plan, s->job->model, s->cost, s->job->samples, 0, err, &a);
    if (st == DT_OK) {
        st = compiled(s, plan, a, err, out);
        dt_assign_free(a);
    }
    dt_free(plan);
    return st;
}

static enum dt_status order(struct dt_report_page_run *r, const struct dt_session *s,
                            struct dt_error *err)
{
    const struct dt_plan_policy *y = &s->search.plans[0].policy;
    struct dt_report_worked_out *w = &r->worked;
    struct uneven before, after;

    w->order = DT_ARENA_NEW(&r->arena, struct dt_report_order, DT_MAX_MODULES);
    if (!w->order)
        return dt_error_nomem(err, "a page");
    DT_TRY(ordered(s, false, false, err, &before));
    DT_TRY(ordered(s, y->intra_reorder, y->inter_reorder, err, &after));
    for (int m = 0; m < s->search.plans[0].n_modules; m++)
        w->order[w->n_order++] =
            (struct dt_report_order){keep(r, s->search.plans[0].module_names[m]), before.replica[m],
                                     after.replica[m], before.microbatch[m], after.microbatch[m]};
    w->order_before_s = before.iteration_s;
    w->order_after_s = after.iteration_s;
    w->order_name =
        y->intra_reorder
            ? y->inter_reorder ? "between replicas and between microbatches" : "between replicas"
        : y->inter_reorder ? "between microbatches"
                           : "none";
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
    assumptions(r, s);
    if (s->search.plans[0].strategy != DT_STRATEGY_MANUAL)
        next(r, s);
    if (deep)
        DT_TRY(order(r, s, err));
    if (deep)
        DT_TRY(inputs(r, s, err));
    return r->no_memory ? dt_error_nomem(err, "a page") : DT_OK;
}

static enum dt_status visit_search(void *ctx, const struct dt_session *s,
                                   const struct dt_sim_result *res, struct dt_error *err)
{
    (void)res;
    (void)err;
    if (s->search.plans[0].strategy != DT_STRATEGY_MANUAL)
        next(ctx, s);
    return DT_OK;
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
        *why = keep(r, text);
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
        r->worked.why_not = keep(r, text);
    }
    return DT_OK;
}
