/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * From candidates to plans: ranking by the program's timeline on real samples. */
#include "base/mem.h"
#include "core/orchestrate/orchestrate_internal.h"
#include "core/schedule/timeline.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Plans this close are equally fast; the one with fewer GPUs is better. */
#define TIE 1e-3
/* A plan that the bound puts this far behind the best timeline is left out.  The bound is of mean
 * samples; a test holds it to at most 0.3 % above the timeline on real ones, in random small worlds. */
#define CERTAIN 1.01
/* Programs longer than this are ranked by a share of their replicas (dt_orch_plan_share): ranking then
 * takes a few hundredths of a second a plan on any cluster. */
#define RANK_OPS 3e5
/* How much slower by the formula the leaner variant of the winner may be before its timeline is
 * asked: the timeline hides warm-up that the formula counts in full. */
#define LEAN_FORMULA 5e-3

static void set_layout(struct dt_orch_table *t, const struct dt_orch_cand *c, int m,
                       struct dt_plan *p)
{
    struct dt_plan_module *mp = &p->modules[m];
    int vpp = m == t->in->model->llm ? c->vpp : 1;
    const struct dt_orch_stage_entry *e = dt_orch_table_stage(t, m, c->tpi[m], c->pp[m], vpp);

    mp->layout = (struct dt_plan_layout){1 << c->tpi[m], 1, 1, c->pp[m], vpp, c->dp[m], 1, 0};
    if (e)
        memcpy(mp->split, e->split, (size_t)(c->pp[m] * vpp + 1) * sizeof(*mp->split));
}

enum dt_status dt_orch_cand_plan(struct dt_orch_table *t, const struct dt_orch_cand *c,
                                 enum dt_plan_strategy strategy, struct dt_error *err,
                                 struct dt_plan *out)
{
    const struct dt_search_input *in = t->in;

    dt_plan_init(out, in->model, &in->policy);
    out->strategy = strategy;
    for (int m = 0; m < in->model->n_modules; m++) {
        out->modules[m].frozen = in->frozen[m];
        set_layout(t, c, m, out);
    }
    if (t->nomem)
        return dt_error_nomem(err, "plan splits");
    out->predicted.lower_bound_s = c->lower_bound_s;
    DT_TRY(dt_plan_place(out, in->cluster, err));
    return dt_plan_validate(out, in->model, in->cluster, err);
}

/* ---- the timeline of a plan ---- */

static enum dt_status check_assigned(const struct dt_search_input *in, const struct dt_plan *p,
                                     const struct dt_assignment *a, struct dt_error *err,
                                     double *mem_bytes_max)
{
    struct dt_work work[DT_MAX_MODULES] = {{0, 0, 0, 0}};

    for (int m = 0; m < a->n_modules; m++) {
        const struct dt_assignment_module *ma = &a->m[m];

        for (uint32_t i = 0; i < ma->mb_first[ma->n_replicas]; i++)
            if (ma->work[i].tokens > work[m].tokens)
                work[m] = ma->work[i];
    }
    return dt_memory_check(p, in->model, in->cluster, work, mem_bytes_max, err);
}

static enum dt_status evaluate(const struct dt_search_input *in, const struct dt_program *prog,
                               struct dt_error *err, double *seconds)
{
    struct dt_durations dur;
    struct dt_timeline line;
    struct dt_timeline_topo topo;
    enum dt_status st;

    memset(&line, 0, sizeof(line));
    st = dt_durations_compute(prog, in->model, in->cluster, in->cost, false, err, &dur);
    if (st != DT_OK)
        return st;
    st = dt_timeline_topo_build(prog, err, &topo);
    if (st != DT_OK)
        goto free_durations;
    st = dt_timeline_eval(prog, &topo, dur.ns, err, &line);
    if (st == DT_OK)
        *seconds = (double)line.makespan_ns * 1e-9;
    dt_timeline_free(&line);
    dt_timeline_topo_free(&topo);
free_durations:
    dt_durations_free(&dur);
    return st;
}

/* The timeline of the program of `run`; memory is checked for plan `p`. */
static enum dt_status timeline_s(const struct dt_search_input *in, const struct dt_plan *p,
                                 const struct dt_plan *run, int64_t first_sample,
                                 struct dt_error *err, double *seconds, double *mem_bytes_max)
{
    struct dt_program *prog;
    struct dt_assignment *a;
    double value = 0, bytes = 0;
    enum dt_status st;

    DT_TRY(dt_assign(run, in->model, in->cost, in->samples, first_sample, err, &a));
    st = check_assigned(in, p, a, err, &bytes);
    if (st != DT_OK)
        goto free_assignment;
    st = dt_sched_compile(run, in->model, in->cluster, a, in->cost, err, &prog);
    if (st != DT_OK)
        goto free_assignment;
    st = evaluate(in, prog, err, &value);
    dt_program_free(prog);
    if (st == DT_OK) {
        *seconds = value;
        *mem_bytes_max = bytes;
    }
free_assignment:
    dt_assign_free(a);
    return st;
}

enum dt_status dt_orch_plan_timeline_s(const struct dt_search_input *in, const struct dt_plan *p,
                                       int64_t first_sample, struct dt_error *err, double *seconds,
                                       double *mem_bytes_max)
{
    double bytes;

    DT_TRY(timeline_s(in, p, p, first_sample, err, seconds, &bytes));
    if (mem_bytes_max)
        *mem_bytes_max = bytes;
    return DT_OK;
}

/* ---- ranking ---- */

/* Memory against the microbatches to be expected, where none are assigned. */
static enum dt_status check_expected(struct dt_orch_table *t, struct dt_plan *p,
                                     struct dt_error *err)
{
    const struct dt_search_input *in = t->in;
    struct dt_work work[DT_MAX_MODULES];
    double bytes = 0;

    for (int m = 0; m < p->n_modules; m++) {
        int64_t slot = dt_plan_slot_samples(p, in->model->llm);

        dt_orch_largest_work(&t->work[m],
                             (double)dt_orch_samples_per_replica(slot, p->modules[m].layout.dp),
                             t->sigmas, &work[m]);
    }
    DT_TRY(dt_memory_check(p, in->model, in->cluster, work, &bytes, err));
    p->predicted.mem_bytes_max = bytes;
    return DT_OK;
}

/* Broker groups meet only in the gradient sync, so a long program is ranked by some of them. Memory
 * must hold what they were given and what is to be expected of the others. */
static enum dt_status ranking_timeline(struct dt_orch_table *t, struct dt_plan *p,
                                       struct dt_error *err)
{
    const struct dt_search_input *in = t->in;
    struct dt_plan_prediction *q = &p->predicted;
    double expected;
    struct dt_plan part;

    if (!dt_orch_plan_share(p, in->model->llm, RANK_OPS, &part))
        return timeline_s(in, p, p, 0, err, &q->timeline_s, &q->mem_bytes_max);
    DT_TRY(check_expected(t, p, err));
    expected = q->mem_bytes_max;
    dt_plan_unpin(&part);
    DT_TRY(dt_plan_place(&part, in->cluster, err));
    DT_TRY(timeline_s(in, p, &part, 0, err, &q->timeline_s, &q->mem_bytes_max));
    q->mem_bytes_max = fmax(q->mem_bytes_max, expected);
    return DT_OK;
}

/* Predictions of one plan, with a timeline unless it takes more than `limit` seconds for certain.
 * DT_ERR_INFEASIBLE if its memory does not fit after all. */
static enum dt_status predict(struct dt_orch_table *t, struct dt_plan *p, double limit,
                              struct dt_error *err)
{
    const struct dt_search_input *in = t->in;
    double bound = p->predicted.lower_bound_s;

    dt_orch_formula_stats(in, p, t->work, &p->predicted);
    p->predicted.lower_bound_s = bound;
    if (!in->opt.rank || dt_orch_plan_least_s(t, p) > limit * CERTAIN)
        return check_expected(t, p, err);
    return ranking_timeline(t, p, err);
}

static double seconds_of(const struct dt_plan *p)
{
    return p->predicted.timeline_s > 0 ? p->predicted.timeline_s : p->predicted.staged_s;
}

static int by_seconds(const void *pa, const void *pb)
{
    const struct dt_plan *a = *(const struct dt_plan *const *)pa;
    const struct dt_plan *b = *(const struct dt_plan *const *)pb;
    bool timed_a = a->predicted.timeline_s > 0, timed_b = b->predicted.timeline_s > 0;
    double x = seconds_of(a), y = seconds_of(b);

    if (timed_a != timed_b)
        return timed_a ? -1 : 1;
    return x < y ? -1 : x > y ? 1 : dt_plan_gpus(a) - dt_plan_gpus(b);
}

/* Shortest first; then the leanest of those within TIE of the shortest comes to the front. */
static enum dt_status sort_plans(struct dt_plan *plans, int n, struct dt_error *err)
{
    const struct dt_plan **order = dt_malloc((size_t)n * sizeof(*order)), *front;
    struct dt_plan *sorted = dt_malloc((size_t)n * sizeof(*sorted));
    int lean = 0;

    if (!order || !sorted) {
        dt_free(order);
        dt_free(sorted);
        return dt_error_nomem(err, "plans");
    }
    for (int i = 0; i < n; i++)
        order[i] = &plans[i];
    qsort(order, (size_t)n, sizeof(*order), by_seconds);
    for (int i = 1; i < n && order[i]->predicted.timeline_s > 0 &&
                    seconds_of(order[i]) <= seconds_of(order[0]) * (1 + TIE);
         i++)
        if (dt_plan_gpus(order[i]) < dt_plan_gpus(order[lean]))
            lean = i;
    front = order[lean];
    memmove(order + 1, order, (size_t)lean * sizeof(*order));
    order[0] = front;
    for (int i = 0; i < n; i++)
        sorted[i] = *order[i];
    memcpy(plans, sorted, (size_t)n * sizeof(*plans));
    dt_free(order);
    dt_free(sorted);
    return DT_OK;
}

/* Where in `at` the plans stand by their bounds, the least first. */
static enum dt_status by_bound(const struct dt_orch_table *t, const struct dt_plan *plans, int n,
                               struct dt_error *err, int **at)
{
    double *least = dt_malloc((size_t)n * sizeof(*least) + 1);
    int *order = dt_malloc((size_t)n * sizeof(*order) + 1);

    if (!least || !order) {
        dt_free(least);
        dt_free(order);
        return dt_error_nomem(err, "plans");
    }
    for (int i = 0; i < n; i++) { /* a dozen at most: insertion keeps equal ones in order */
        int k = i;

        least[i] = dt_orch_plan_least_s(t, &plans[i]);
        for (; k > 0 && least[order[k - 1]] > least[i]; k--)
            order[k] = order[k - 1];
        order[k] = i;
    }
    dt_free(least);
    *at = order;
    return DT_OK;
}

enum dt_status dt_orch_rank(struct dt_orch_table *t, struct dt_plan *plans, int *n, bool sort,
                            struct dt_error *err)
{
    double limit = HUGE_VAL;
    int kept = 0, *order = NULL;

    DT_TRY(by_bound(t, plans, *n, err, &order));
    for (int i = 0; i < *n; i++) {
        struct dt_plan *p = &plans[sort ? order[i] : i];
        enum dt_status st = predict(t, p, limit, err);

        if (st == DT_ERR_INFEASIBLE) {
            t->rejects.assigned++;
            p->n_modules = 0; /* marks it */
        } else if (st != DT_OK) {
            dt_free(order);
            return st;
        }
        if (st == DT_OK && sort && p->predicted.timeline_s > 0)
            limit = fmin(limit, p->predicted.timeline_s);
    }
    dt_free(order);
    for (int i = 0; i < *n; i++)
        if (plans[i].n_modules > 0)
            plans[kept++] = plans[i];
    *n = kept;
    return sort && t->in->opt.rank && kept > 1 ? sort_plans(plans, kept, err) : DT_OK;
}

/* ---- search, plans, ranking ---- */

struct round { /* one pass of search and ranking */
    struct dt_orch_cand *cands;
    struct dt_plan *plans;
    int n;
};

static bool same_layout(const struct dt_plan *p, const struct dt_orch_cand *c)
{
    for (int m = 0; m < p->n_modules; m++) {
        const struct dt_plan_layout *l = &p->modules[m].layout;

        if (l->tp != 1 << c->tpi[m] || l->pp != c->pp[m] || l->dp != c->dp[m])
            return false;
    }
    return true;
}

/* The winner with fewer GPUs, if there is such a layout nearly as fast by the formula and as fast
 * by the timeline. */
static enum dt_status add_lean(struct dt_orch_table *t, struct round *r, int n_cands,
                               enum dt_plan_strategy strategy, struct dt_error *err)
{
    struct dt_plan *spare = &r->plans[r->n];
    struct dt_orch_cand lean;
    int one = 1;

    for (int i = 0; i < n_cands; i++) {
        if (!same_layout(&r->plans[0], &r->cands[i]) ||
            r->plans[0].modules[t->in->model->llm].layout.vpp != r->cands[i].vpp)
            continue;
        DT_TRY(dt_orch_search_lean(t, &r->cands[i], r->cands[i].total_s * (1 + LEAN_FORMULA), err,
                                   &lean));
        if (lean.gpus >= dt_plan_gpus(&r->plans[0]))
            return DT_OK;
        DT_TRY(dt_orch_cand_plan(t, &lean, strategy, err, spare));
        DT_TRY(dt_orch_rank(t, spare, &one, false, err));
        r->n += one;
        return sort_plans(r->plans, r->n, err);
    }
    return DT_OK;
}

static enum dt_status one_round(struct dt_orch_table *t, const double *cap,
                                enum dt_plan_strategy strategy, struct dt_error *err,
                                struct round *r, struct dt_search_stats *stats)
{
    int k = t->in->opt.k > 0 ? t->in->opt.k : 8, n_cands;

    DT_TRY(dt_orch_search(t, cap, k, err, r->cands, &n_cands, stats));
    for (r->n = 0; r->n < n_cands; r->n++)
        DT_TRY(dt_orch_cand_plan(t, &r->cands[r->n], strategy, err, &r->plans[r->n]));
    DT_TRY(dt_orch_rank(t, r->plans, &r->n, true, err));
    if (r->n > 0 && t->in->opt.rank)
        DT_TRY(add_lean(t, r, n_cands, strategy, err));
    if (r->n > k)
        r->n = k;
    return DT_OK;
}

enum dt_status dt_search_plans(struct dt_orch_table *t, const double *cap,
                               enum dt_plan_strategy strategy, struct dt_error *err,
                               struct dt_search_result *out)
{
    int k = t->in->opt.k > 0 ? t->in->opt.k : 8;
    struct round r = {dt_calloc((size_t)k, sizeof(*r.cands)),
                      dt_calloc((size_t)k + 1, sizeof(*r.plans)), 0};
    enum dt_status st = DT_OK;

    if (!r.cands || !r.plans)
        st = dt_error_nomem(err, "plans");
    if (st == DT_OK)
        st = one_round(t, cap, strategy, err, &r, &out->stats);
    if (st == DT_OK && r.n == 0 && t->rejects.assigned > 0) {
        /* Every plan was over when its real microbatches were known: allow for the largest possible
         * ones. */
        t->sigmas = HUGE_VAL;
        dt_orch_table_forget(t);
        st = one_round(t, cap, strategy, err, &r, &out->stats);
    }
    if (st == DT_OK && r.n == 0)
        st = dt_orch_infeasible(t, err);
    dt_free(r.cands);
    if (st != DT_OK) {
        dt_free(r.plans);
        return st;
    }
    out->plans = r.plans;
    out->n = r.n;
    return DT_OK;
}
