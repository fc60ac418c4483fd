/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * The run's plan once more with something changed: each input by a tenth, the order of the samples. */
#include "cli/page.h"

#include "cli/progress.h"
#include "core/schedule/assign_choose.h"

#include <math.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

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

/* As the job is simulated, contention and all. */
static enum dt_status time_with(const struct dt_session *s, const struct change *x, double factor,
                                struct dt_error *err, double *seconds)
{
    struct dt_job *job = dt_malloc(sizeof *job); /* with what it points to still the session's */
    struct dt_cost_options opt = *dt_cost_opts(s->cost);
    struct dt_cost *cost = NULL;
    enum dt_status st;

    if (!job)
        return dt_error_nomem(err, "a page");
    *job = *s->job;
    if (x->family == DT_ERRF_HOST)
        opt.dispatch_ns *= factor;
    else if (x->family >= 0)
        for (int f = 0; f < DT_KOP_FAMILY_N; f++)
            opt.scale[f] = dt_report_error_family_of(f) == (enum dt_report_error_family)x->family
                               ? factor * (opt.scale[f] > 0 ? opt.scale[f] : 1)
                               : opt.scale[f];
    else
        *(double *)((char *)&job->cluster + x->offset) *= factor;
    st = dt_cost_new(job->model, &job->cluster, job->profile, &opt, err, &cost);
    if (st == DT_OK)
        st = dt_sim_first_s(job, &s->search.plans[0], cost, err, seconds);
    dt_cost_free(cost);
    dt_free(job);
    return st;
}

static const char *value_of(struct dt_report_page_run *r, const struct dt_session *s,
                            const struct change *x)
{
    if (x->family < 0)
        return dt_cli_page_print(
            r, "%.4g %s", x->scale * *(const double *)((const char *)&s->job->cluster + x->offset),
            x->unit);
    if (x->family == DT_ERRF_HOST)
        return dt_cli_page_print(r, "%.3g us", dt_cost_opts(s->cost)->dispatch_ns * 1e-3);
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

enum dt_status dt_cli_page_sensitivity(struct dt_report_page_run *r, const struct dt_session *s,
                                       struct dt_error *err)
{
    struct dt_report_worked_out *w = &r->worked;

    w->input = DT_ARENA_NEW(&r->arena, struct dt_report_input, CHANGES);
    if (!w->input)
        return dt_error_nomem(err, "a page");
    for (int i = 0; i < CHANGES; i++) {
        const struct change *x = &changes[i];
        double less, more;

        dt_cli_progress("sensitivity", i, CHANGES);
        if (!stated(s, x))
            continue;
        DT_TRY(time_with(s, x, 0.9, err, &less));
        DT_TRY(time_with(s, x, 1.1, err, &more));
        w->input[w->n_input++] = (struct dt_report_input){
            x->name, value_of(r, s, x), less / w->again_s - 1, more / w->again_s - 1};
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
    struct dt_durations d;
    struct dt_program *p;
    enum dt_status st;

    DT_TRY(dt_sched_compile(plan, j->model, &j->cluster, a, s->cost, err, &p));
    st = dt_durations_compute(p, j->model, &j->cluster, s->cost, false, err, &d);
    if (st == DT_OK) {
        measure(p, &d, plan->n_modules, out);
        dt_durations_free(&d);
    }
    dt_program_free(p);
    return st;
}

static enum dt_status ordered(const struct dt_session *s, const struct dt_plan_policy *policy,
                              struct dt_error *err, struct uneven *out)
{
    struct dt_plan *plan = dt_malloc(sizeof *plan);
    struct dt_assignment *a;
    enum dt_status st;

    if (!plan)
        return dt_error_nomem(err, "a page");
    *plan = s->search.plans[0];
    plan->policy = *policy;
    st = dt_assign_choose(plan, s->job->model, &s->job->cluster, s->cost, s->job->samples, 0, err,
                          &a, NULL);
    if (st == DT_OK) {
        st = compiled(s, plan, a, err, out);
        dt_assign_free(a);
    }
    if (st == DT_OK)
        st = dt_sim_first_s(s->job, plan, s->cost, err, &out->iteration_s);
    dt_free(plan);
    return st;
}

static const char *order_name(const struct dt_plan_policy *y)
{
    if (y->batch_reorder)
        return "in the way that is the fastest for each batch";
    if (y->assignment == DT_ASSIGNMENT_ENTRAIN)
        return "Entrain's assignment, to microbatches of equal encoder load, some of the LLM's "
               "work deferred";
    if (y->intra_reorder)
        return y->inter_reorder ? "between replicas and between microbatches" : "between replicas";
    return y->inter_reorder ? "between microbatches" : "none";
}

enum dt_status dt_cli_page_order(struct dt_report_page_run *r, const struct dt_session *s,
                                 struct dt_error *err)
{
    const struct dt_plan_policy *y = &s->search.plans[0].policy;
    struct dt_plan_policy as_they_come = *y;
    struct dt_report_worked_out *w = &r->worked;
    struct uneven before, after;

    w->order = DT_ARENA_NEW(&r->arena, struct dt_report_order, DT_MAX_MODULES);
    if (!w->order)
        return dt_error_nomem(err, "a page");
    as_they_come.assignment = DT_ASSIGNMENT_SLOTS;
    as_they_come.intra_reorder = as_they_come.inter_reorder = as_they_come.batch_reorder = false;
    DT_TRY(ordered(s, &as_they_come, err, &before));
    DT_TRY(ordered(s, y, err, &after));
    for (int m = 0; m < s->search.plans[0].n_modules; m++)
        w->order[w->n_order++] = (struct dt_report_order){
            dt_cli_page_keep(r, s->search.plans[0].module_names[m]), before.replica[m],
            after.replica[m], before.microbatch[m], after.microbatch[m]};
    w->order_before_s = before.iteration_s;
    w->order_after_s = after.iteration_s;
    w->order_name = order_name(y);
    return DT_OK;
}
