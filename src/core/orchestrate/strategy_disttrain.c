/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Strategy disttrain: every module has a layout of its own, found by search. */
#include "base/mem.h"
#include "base/text.h"
#include "core/orchestrate/orchestrate_internal.h"

#include <math.h>
#include <string.h>

enum {
    QUICK_PLANS = 4, /* of a quick search that are kept */
    FINALISTS = 4,   /* that are timed whole */
};

/* How much less than a share of its replicas a whole plan may take. */
#define LEAD 0.01
/* Less is no gain. */
#define TIE 1e-3
/* By how much guests' work in bubbles may turn an order, at most 3 % on the shipped jobs. */
#define NEAR 0.03

/* All modules share the GPUs and take turns, each as narrow as it may be and with as many replicas as divide the batch. */
static enum dt_status colocated(struct dt_orch_table *t, struct dt_error *err,
                                struct dt_search_result *out)
{
    const struct dt_search_input *stated = t->in;
    struct dt_search_input in = *stated;
    int tp = (int)(in.opt.tp_mask & -in.opt.tp_mask), dp;
    struct dt_plan p;
    enum dt_status st;

    tp = tp > 0 ? tp : 1;
    dp = t->gpus / tp;
    dt_search_plan_init(&in, &p);
    p.colocated = true;
    while (dp > 1 && in.policy.global_batch % ((int64_t)dp * in.policy.microbatch) != 0)
        dp--;
    for (int m = 0; m < p.n_modules; m++) {
        p.modules[m].layout.tp = tp;
        p.modules[m].layout.dp = dp;
    }
    in.manual = &p;
    t->in = &in;
    st = dp > 0 ? dt_orch_plan_stated(t, err, out) : DT_ERR_INPUT;
    t->in = stated;
    if (st == DT_OK)
        out->plans[0].strategy = DT_STRATEGY_DISTTRAIN;
    return st;
}

/* Nothing fits: once more, with uneven stages wherever even ones do not fit.  Why nothing fits is as it was. */
static enum dt_status search_uneven(struct dt_orch_table *t, struct dt_error *err,
                                    struct dt_search_result *out)
{
    const struct dt_orch_rejects rejects = t->rejects;
    struct dt_error why;
    enum dt_status st;

    t->uneven = true;
    dt_orch_table_forget(t);
    st = dt_search_plans(t, NULL, DT_STRATEGY_DISTTRAIN, &why, out);
    if (st == DT_ERR_INFEASIBLE)
        t->rejects = rejects;
    return st == DT_OK || st == DT_ERR_INFEASIBLE ? st : dt_error_pass(err, &why);
}

static enum dt_status with_and_without_guests(struct dt_orch_table *t, struct dt_error *err,
                                              struct dt_search_result *out)
{
    enum dt_status st = dt_search_plans(t, NULL, DT_STRATEGY_DISTTRAIN, err, out);

    if (st != DT_OK && st != DT_ERR_INFEASIBLE)
        return st;
    DT_TRY(dt_orch_place_guests(t, DT_STRATEGY_DISTTRAIN, err, out));
    if (out->n > 0)
        return DT_OK;
    return t->rejects.memory > 0 ? search_uneven(t, err, out) : st;
}

/* Is it among the plans that have a timeline? */
static bool is_timed(const struct dt_search_result *r, const struct dt_plan *p)
{
    const struct dt_plan *q = dt_orch_plan_listed(r->plans, r->n, p);

    return q && q->predicted.timeline_s > 0;
}

/* The plans of a result beside those of `out`, timed like them. */
static enum dt_status merge(struct dt_orch_table *t, const struct dt_search_result *from,
                            struct dt_error *err, struct dt_search_result *out)
{
    struct dt_plan *all =
        dt_realloc(out->plans, (size_t)(out->n + from->n + 1) * sizeof(*out->plans));

    if (!all)
        return dt_error_nomem(err, "plans");
    out->plans = all;
    for (int i = 0; i < from->n && i < (t->in->near ? 1 : QUICK_PLANS); i++) {
        struct dt_plan p = from->plans[i];
        struct dt_error why;
        bool closer;
        enum dt_status st;

        if (p.predicted.timeline_s <= 0 || is_timed(out, &p))
            continue;
        st = dt_orch_time_plan(t, &p, 0, HUGE_VAL, HUGE_VAL, &why, &closer);
        if (st == DT_OK)
            all[out->n++] = p;
        else if (st != DT_ERR_INFEASIBLE)
            return dt_error_pass(err, &why);
    }
    return dt_orch_sort(all, out->n, err);
}

/* What a quick search finds: it opens other cells, as it tries fewer, and what it finds is never to be lost by looking
 * longer. */
static enum dt_status add_quick(struct dt_orch_table *t, struct dt_error *err,
                                struct dt_search_result *out, struct dt_plan *best)
{
    struct dt_search_input in = *t->in;
    struct dt_search_result quick = {0};
    struct dt_orch_table *q;
    enum dt_status st;

    if (in.opt.effort == DT_EFFORT_QUICK || !in.opt.rank || in.opt.uniform)
        return DT_OK;
    in.opt.effort = DT_EFFORT_QUICK;
    in.opt.budget = 0;
    DT_TRY(dt_orch_table_new(&in, err, &q));
    st = with_and_without_guests(q, err, &quick);
    if (st == DT_OK)
        st = merge(t, &quick, err, out);
    if (st == DT_OK) {
        const struct dt_plan *merged = dt_orch_plan_listed(out->plans, out->n, &quick.plans[0]);

        *best = merged ? *merged : quick.plans[0];
    }
    t->simulated += q->simulated;
    t->ops += q->ops;
    dt_search_result_free(&quick);
    dt_orch_table_free(q);
    return st == DT_ERR_INFEASIBLE ? DT_OK : st;
}

/* The best plan of another strategy. */
static enum dt_status add_best(struct dt_orch_table *t, enum dt_plan_strategy strategy,
                               struct dt_error *err, struct dt_search_result *out)
{
    int kept = t->in->opt.k > 0 ? t->in->opt.k : 8;
    struct dt_search_input in = *t->in;
    struct dt_search_result found;
    struct dt_plan *all;
    enum dt_status st;

    in.opt.free_intra = in.opt.free_inter = false; /* whose way is chosen when it is the best */
    st = dt_orch_find(strategy, &in, err, &found);
    if (st != DT_OK)
        return st == DT_ERR_INFEASIBLE ? DT_OK : st;
    t->simulated += found.stats.simulated;
    t->ops += found.stats.ops;
    all = dt_realloc(out->plans, (size_t)(out->n + 1) * sizeof(*all));
    if (all) {
        out->plans = all;
        all[out->n] = found.plans[0];
        all[out->n].strategy = DT_STRATEGY_DISTTRAIN;
        out->n += !dt_orch_plan_listed_split(all, out->n, &found.plans[0]);
        st = dt_orch_sort(all, out->n, err);
        out->n = out->n < kept ? out->n : kept;
    } else {
        st = dt_error_nomem(err, "plans");
    }
    dt_search_result_free(&found);
    return st;
}

/* Those that have a timeline before the others, each in the order they come in. */
static void timed_first(struct dt_plan *plans, int n)
{
    int timed = 0;

    for (int i = 0; i < n; i++) {
        struct dt_plan p = plans[i];

        if (p.predicted.timeline_s <= 0)
            continue;
        memmove(&plans[timed + 1], &plans[timed], (size_t)(i - timed) * sizeof(p));
        plans[timed++] = p;
    }
}

/* *slower: for certain than `best`, and then its time is left at 0. */
static enum dt_status time_whole(struct dt_orch_table *t, struct dt_plan *p, double best,
                                 struct dt_error *err, bool *slower)
{
    double s = 0, bytes;

    t->ops += (int64_t)dt_orch_plan_ops(p, t->in->model->llm);
    if (best < HUGE_VAL)
        DT_TRY(dt_orch_run_timeline_s(t->in, p, p, DT_ORCH_GLANCE, best, best, 0, err, &s, &bytes));
    *slower = s >= HUGE_VAL;
    if (*slower)
        return DT_OK;
    return dt_orch_plan_timeline_s(t->in, p, 0, err, &p->predicted.timeline_s,
                                   &p->predicted.mem_bytes_max);
}

/* Plans were ranked whole, but with the turns of a rule: those that are near the best are timed with guests' work in bubbles, too, as
 * many as a ranking's program has ops for. */
static enum dt_status time_exactly(struct dt_orch_table *t, struct dt_plan *plans, int of,
                                   double limit, struct dt_error *err, int *timed)
{
    double left = dt_orch_effort_of(t->in)->rank_ops;
    int n = 0;

    for (; n < of && left > 0; n++) {
        struct dt_plan *p = &plans[n];
        double ops = dt_orch_plan_ops(p, t->in->model->llm), seconds, bytes;
        struct dt_error why;
        enum dt_status st;

        if (p->predicted.timeline_s <= 0 || p->predicted.timeline_s > limit)
            break;
        left -= ops;
        t->ops += (int64_t)ops;
        st = dt_orch_plan_timeline_s(t->in, p, 0, &why, &seconds, &bytes);
        if (st != DT_OK && st != DT_ERR_INFEASIBLE)
            return dt_error_pass(err, &why);
        if (st == DT_OK)
            p->predicted.timeline_s = fmin(p->predicted.timeline_s, seconds);
    }
    *timed = n;
    return n > 1 ? dt_orch_sort(plans, n, err) : DT_OK;
}

/* The same of the neighbours that descents passed by, the best of which becomes the best plan where it is faster. */
static enum dt_status time_near(struct dt_orch_table *t, struct dt_error *err,
                                struct dt_search_result *out)
{
    double limit = out->plans[0].predicted.timeline_s * (1 + NEAR);
    int timed, kept = 0, most = t->in->opt.k > 0 ? t->in->opt.k : 8;
    struct dt_plan *all;

    DT_TRY(time_exactly(t, out->plans, out->n, limit, err, &timed));
    for (int i = 0; i < t->n_near; i++)
        if (!dt_orch_plan_listed(out->plans, out->n, &t->near[i]))
            t->near[kept++] = t->near[i];
    t->n_near = kept;
    DT_TRY(time_exactly(t, t->near, kept, limit, err, &timed));
    if (timed == 0 ||
        t->near[0].predicted.timeline_s >= out->plans[0].predicted.timeline_s * (1 - TIE))
        return DT_OK;
    all = dt_realloc(out->plans, (size_t)(out->n + 1) * sizeof(*all));
    if (!all)
        return dt_error_nomem(err, "plans");
    memmove(all + 1, all, (size_t)out->n++ * sizeof(*all));
    all[0] = t->near[0];
    out->plans = all;
    out->n = out->n < most ? out->n : most;
    return DT_OK;
}

/* Where plans were ranked by a share of their replicas, the slowest of many is not seen: the best of each kind, and the best of
 * the quick search, are timed whole, and these alone are ordered by it.  As all replicas hardly ever take less than some of them,
 * those that a share puts behind what the best takes whole are not timed; they keep their order. */
static enum dt_status time_finalists(struct dt_orch_table *t, struct dt_plan *quick,
                                     struct dt_error *err, struct dt_search_result *out)
{
    struct dt_search_result first = {.n = 1, .plans = quick};
    struct dt_plan *all, final[FINALISTS + 1];
    struct dt_error last = {0};
    double best = HUGE_VAL;
    int llm = t->in->model->llm, n = 0;

    if (!t->in->opt.rank || t->in->opt.effort == DT_EFFORT_QUICK)
        return DT_OK;
    if (dt_orch_plan_ops(&out->plans[0], llm) <= dt_orch_effort_of(t->in)->rank_ops)
        return t->in->policy.batch_reorder ? DT_OK : time_near(t, err, out);
    all = dt_realloc(out->plans, (size_t)(out->n + 1) * sizeof(*all));
    if (!all)
        return dt_error_nomem(err, "plans");
    out->plans = all;
    if (quick->n_modules > 0 && !is_timed(out, quick))
        all[out->n++] = *quick;
    for (int i = 0; i < out->n; i++) {
        struct dt_plan *p = &all[i];
        double share = p->predicted.timeline_s;
        bool chosen = share > 0 && n < FINALISTS, slower;
        struct dt_error why;
        enum dt_status st;

        for (int k = 0; k < n; k++)
            chosen = chosen && !dt_orch_plans_alike(&final[k], p, llm);
        chosen = chosen || (quick->n_modules > 0 && is_timed(&first, p));
        p->predicted.timeline_s = 0;
        if (!chosen || share > best * (1 + LEAD))
            continue;
        st = time_whole(t, p, best, &why, &slower);
        if (st == DT_OK && slower)
            continue;
        if (st == DT_OK) {
            best = fmin(best, p->predicted.timeline_s);
            final[n++] = *p;
        } else if (st == DT_ERR_INFEASIBLE) {
            last = why;
        } else {
            return dt_error_pass(err, &why);
        }
    }
    if (n == 0) {
        if (err)
            *err = last;
        return DT_ERR_INFEASIBLE;
    }
    timed_first(all, out->n);
    return dt_orch_sort(all, n, err);
}

/* Fewer GPUs than modules: whoever lies on GPUs of others is a guest, or there is no plan. */
static bool shares_all(const struct dt_orch_table *t)
{
    return t->gpus < t->in->model->n_modules && t->in->opt.guests != 0;
}

/* The best plans in this table's space. */
static enum dt_status look_around(struct dt_orch_table *t, struct dt_error *err,
                                  struct dt_search_result *out, struct dt_plan *quick)
{
    if (t->in->near)
        DT_TRY(add_quick(t, err, out, quick));
    if (out->n == 0)
        DT_TRY(with_and_without_guests(t, err, out));
    if (!t->in->near)
        DT_TRY(add_quick(t, err, out, quick));
    DT_TRY(dt_orch_polish(t, NULL, DT_STRATEGY_DISTTRAIN, err, out));
    /* with GPUs of their own alone the space is the published one */
    return t->in->near || !t->in->opt.guests ? DT_OK : dt_orch_choose_shares(t, err, out);
}

static enum dt_status look(struct dt_orch_table *t, struct dt_error *err,
                           struct dt_search_result *out)
{
    struct dt_plan quick = {0};
    enum dt_status st = look_around(t, err, out, &quick);

    if (shares_all(t) && (st == DT_OK || st == DT_ERR_INFEASIBLE)) {
        struct dt_error why;

        st = add_best(t, DT_STRATEGY_HOMOGENEOUS, &why, out);
        if (st == DT_OK)
            st = add_best(t, DT_STRATEGY_COLOCATED, &why, out);
        if (st != DT_OK)
            return dt_error_pass(err, &why);
        st = out->n > 0 ? DT_OK : DT_ERR_INFEASIBLE; /* which has been explained */
    }
    if (st != DT_OK || t->in->near)
        return st;
    return time_finalists(t, &quick, err, out);
}

/* Memory may hold none of the finalists with all of their real microbatches: allow for the largest possible ones then. */
static enum dt_status look_carefully(struct dt_orch_table *t, struct dt_error *err,
                                     struct dt_search_result *out)
{
    enum dt_status st = look(t, err, out);

    if (st != DT_ERR_INFEASIBLE || out->n == 0 || isinf(t->sigmas))
        return st;
    dt_search_result_free(out);
    memset(out, 0, sizeof(*out));
    t->sigmas = HUGE_VAL;
    dt_orch_table_forget(t);
    return look(t, err, out);
}

/* Where nothing else fits on fewer GPUs than there are modules: if not even this, what it needs says more than that some module
 * has no GPUs of its own. */
static enum dt_status take_turns(struct dt_orch_table *t, struct dt_error *err,
                                 struct dt_search_result *out)
{
    struct dt_error why;
    enum dt_status st;

    dt_search_result_free(out);
    st = colocated(t, &why, out);
    if (st == DT_OK || st == DT_ERR_NOMEM)
        return st == DT_OK ? st : dt_error_pass(err, &why);
    if (st == DT_ERR_INPUT) /* such a plan cannot be */
        return DT_ERR_INFEASIBLE;
    return dt_error_set(err, DT_ERR_INFEASIBLE,
                        "no plan fits model %s on %d GPU%s of cluster %s; all modules in turn: %s",
                        t->in->model->name, t->gpus, dt_plural(t->gpus), t->in->cluster->name,
                        why.message);
}

static enum dt_status plan(struct dt_orch_table *t, struct dt_error *err,
                           struct dt_search_result *out)
{
    bool few = t->gpus < t->in->model->n_modules, guests = t->in->opt.guests != 0;
    enum dt_status st;

    if (few && !guests &&
        dt_cluster_is_cpu(t->in->cluster)) /* as the executor's ranks share them */
        return colocated(t, err, out);
    if (dt_orch_hosts_hold_none(t))
        return dt_orch_infeasible(t, err);
    st = look_carefully(t, err, out);
    return st == DT_ERR_INFEASIBLE && shares_all(t) ? take_turns(t, err, out) : st;
}

const struct dt_orch_planner dt_orch_planner_disttrain = {.plan = plan};
