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
/* Candidates whose timelines may be asked for, and how much slower than the best of them by the formula one may be:
 * the formula is up to 8 % off the timeline. */
enum { POOL = 96 };
#define MARGIN 0.08
/* How much slower by the formula the leaner variant of the winner may be before its timeline is
 * asked: the timeline hides warm-up that the formula counts in full. */
#define LEAN_FORMULA 5e-3

enum dt_status dt_orch_cand_plan(struct dt_orch_table *t, const struct dt_orch_cand *c,
                                 enum dt_plan_strategy strategy, struct dt_error *err,
                                 struct dt_plan *out)
{
    const struct dt_search_input *in = t->in;
    const struct dt_orch_pipe *pipe = &t->space.pipe[c->pipe];

    dt_search_plan_init(in, out);
    out->strategy = strategy;
    out->policy.schedule = pipe->schedule;
    out->policy.microbatch = t->space.microbatch[c->microbatch];
    for (int m = 0; m < in->model->n_modules; m++) {
        bool llm = m == in->model->llm;
        struct dt_orch_times *x = dt_orch_times_of(t, m, c->of[m].lane, c->of[m].recompute,
                                                   llm ? c->microbatch : 0, pipe->split);
        const struct dt_orch_stage_entry *e =
            x ? dt_orch_stage_of(t, m, x, c->of[m].pp, llm ? pipe->vpp : 1) : NULL;

        if (!e)
            return dt_error_nomem(err, "plan splits");
        dt_orch_choice_apply(t, m, &c->of[m], pipe->vpp, out);
        memcpy(out->modules[m].split, e->split,
               (size_t)(c->of[m].pp * (llm ? pipe->vpp : 1) + 1) * sizeof(*e->split));
    }
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

    t->simulated++;
    if (!dt_orch_plan_share(p, in->model->llm, RANK_OPS, &part)) {
        t->ops += (int64_t)dt_orch_plan_ops(p, in->model->llm);
        return timeline_s(in, p, p, 0, err, &q->timeline_s, &q->mem_bytes_max);
    }
    t->ops += (int64_t)dt_orch_plan_ops(&part, in->model->llm);
    DT_TRY(check_expected(t, p, err));
    expected = q->mem_bytes_max;
    dt_plan_unpin(&part);
    DT_TRY(dt_plan_place(&part, in->cluster, err));
    DT_TRY(timeline_s(in, p, &part, 0, err, &q->timeline_s, &q->mem_bytes_max));
    q->mem_bytes_max = fmax(q->mem_bytes_max, expected);
    return DT_OK;
}

/* Predictions of one plan, with a timeline unless it takes more than `limit` seconds for certain, or the budget is
 * spent.  DT_ERR_INFEASIBLE if its memory does not fit after all. */
static enum dt_status predict(struct dt_orch_table *t, struct dt_plan *p, double limit,
                              struct dt_error *err)
{
    const struct dt_search_input *in = t->in;
    int64_t budget = in->opt.budget > 0 ? in->opt.budget : DT_SEARCH_BUDGET;

    if (!in->opt.rank || dt_orch_plan_least_s(t, p) > limit * CERTAIN)
        return check_expected(t, p, err);
    if (t->ops < budget || isinf(limit))
        return ranking_timeline(t, p, err);
    t->untimed++;
    return check_expected(t, p, err);
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

/* What the timelines are to the formula, by the LLM's pipe: the formula leaves out transfers, which chunks multiply,
 * and counts warm-up that the timeline hides.  A pipe that no plan was timed with takes the one before it. */
struct ratios {
    double sum[DT_SCHED_N][DT_SEARCH_VPP_MAX + 1];
    int n[DT_SCHED_N][DT_SEARCH_VPP_MAX + 1];
};

static int vpp_of(const struct dt_orch_table *t, const struct dt_plan *p)
{
    int vpp = p->modules[t->in->model->llm].layout.vpp;

    return vpp < DT_SEARCH_VPP_MAX ? vpp : DT_SEARCH_VPP_MAX;
}

static double ratio_of(const struct dt_orch_table *t, const struct ratios *r,
                       const struct dt_plan *p)
{
    for (int v = vpp_of(t, p); v > 0; v--)
        if (r->n[p->policy.schedule][v] > 0)
            return r->sum[p->policy.schedule][v] / r->n[p->policy.schedule][v];
    return 1;
}

static void learn_ratio(const struct dt_orch_table *t, struct ratios *r, const struct dt_plan *p)
{
    int v = vpp_of(t, p);

    if (p->predicted.timeline_s <= 0 || p->predicted.staged_s <= 0)
        return;
    r->sum[p->policy.schedule][v] += p->predicted.timeline_s / p->predicted.staged_s;
    r->n[p->policy.schedule][v]++;
}

/* The plan to be timed next: the one of least expected time, of those not yet asked. */
static int next_plan(const struct dt_orch_table *t, const struct ratios *r,
                     const struct dt_plan *plans, const bool *asked, int n)
{
    double least = HUGE_VAL;
    int best = 0;

    for (int i = 0; i < n; i++) {
        double s = asked[i] ? HUGE_VAL : plans[i].predicted.staged_s * ratio_of(t, r, &plans[i]);

        if (s < least) {
            least = s;
            best = i;
        }
    }
    return best;
}

static enum dt_status rank(struct dt_orch_table *t, struct dt_plan *plans, int n, bool sort,
                           bool *asked, struct dt_error *err)
{
    double limit = HUGE_VAL;
    struct ratios r;

    memset(&r, 0, sizeof(r));
    for (int k = 0; k < n; k++) {
        int i = sort ? next_plan(t, &r, plans, asked, n) : k;
        struct dt_plan *p = &plans[i];
        enum dt_status st = predict(t, p, limit, err);

        asked[i] = true;
        if (st == DT_ERR_INFEASIBLE) {
            t->rejects.assigned++;
            p->n_modules = 0; /* marks it */
            continue;
        }
        DT_TRY(st);
        learn_ratio(t, &r, p);
        if (sort && p->predicted.timeline_s > 0)
            limit = fmin(limit, p->predicted.timeline_s);
    }
    return DT_OK;
}

enum dt_status dt_orch_rank(struct dt_orch_table *t, struct dt_plan *plans, int *n, bool sort,
                            struct dt_error *err)
{
    bool *asked = dt_calloc((size_t)*n + 1, sizeof(*asked));
    enum dt_status st;
    int kept = 0;

    if (!asked)
        return dt_error_nomem(err, "plans");
    for (int i = 0; i < *n; i++) {
        double bound = plans[i].predicted.lower_bound_s;

        dt_orch_formula_stats(t->in, &plans[i], t->work, &plans[i].predicted);
        plans[i].predicted.lower_bound_s = bound;
    }
    st = rank(t, plans, *n, sort, asked, err);
    dt_free(asked);
    DT_TRY(st);
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

static bool is_of(const struct dt_orch_table *t, const struct dt_plan *p,
                  const struct dt_orch_cand *c)
{
    const struct dt_orch_pipe *pipe = &t->space.pipe[c->pipe];

    if (p->policy.schedule != pipe->schedule ||
        p->policy.microbatch != t->space.microbatch[c->microbatch] ||
        p->modules[t->in->model->llm].layout.vpp != pipe->vpp)
        return false;
    for (int m = 0; m < p->n_modules; m++) {
        const struct dt_plan_layout *l = &p->modules[m].layout;

        if (dt_orch_space_lane(t, m, l) != c->of[m].lane || l->pp != c->of[m].pp ||
            l->dp != c->of[m].dp ||
            dt_orch_space_recompute(t, m, p->modules[m].recompute) != c->of[m].recompute)
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
        if (!is_of(t, &r->plans[0], &r->cands[i]))
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

static int kept_plans(const struct dt_search_input *in)
{
    return in->opt.k > 0 ? in->opt.k : 8;
}

/* Candidates that are worth a timeline; without ranking those that are returned. */
static int pool_size(const struct dt_search_input *in)
{
    int k = kept_plans(in);

    return in->opt.rank && k < POOL ? POOL : k;
}

static enum dt_status one_round(struct dt_orch_table *t, const double *cap,
                                enum dt_plan_strategy strategy, struct dt_error *err,
                                struct round *r, struct dt_search_stats *stats)
{
    const struct dt_orch_keep keep = {pool_size(t->in), kept_plans(t->in),
                                      t->in->opt.rank ? MARGIN : 0};
    int n_cands;

    DT_TRY(dt_orch_search(t, cap, &keep, err, r->cands, &n_cands, stats));
    for (r->n = 0; r->n < n_cands; r->n++)
        DT_TRY(dt_orch_cand_plan(t, &r->cands[r->n], strategy, err, &r->plans[r->n]));
    DT_TRY(dt_orch_rank(t, r->plans, &r->n, true, err));
    if (r->n > 0 && t->in->opt.rank)
        DT_TRY(add_lean(t, r, n_cands, strategy, err));
    if (r->n > keep.sure)
        r->n = keep.sure;
    return DT_OK;
}

enum dt_status dt_search_plans(struct dt_orch_table *t, const double *cap,
                               enum dt_plan_strategy strategy, struct dt_error *err,
                               struct dt_search_result *out)
{
    int k = pool_size(t->in);
    size_t all = (size_t)k * DT_SCHED_N;
    struct round r = {dt_calloc(all, sizeof(*r.cands)), dt_calloc(all + 1, sizeof(*r.plans)), 0};
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
