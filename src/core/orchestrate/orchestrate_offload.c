/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * What is offloaded, as a dimension of the search.
 *
 * Masters and moments on the host are to the tables another way of holding a module's states, behind all levels of ZeRO
 * (dt_orch_modes), and parameters that leave between phases another way of placing a guest (orchestrate_hosted.c): both make room
 * and neither makes anything faster by itself.  A search with them orders layouts by a formula in which the room is free, so the
 * plan that needs none might be lost in it: it is searched for alone, and the better of the two is the plan. */
#include "base/mem.h"
#include "core/orchestrate/orchestrate_internal.h"

#include <math.h>
#include <string.h>

/* As orchestrate_polish.c: less is no gain, and not worth the memory of hosts. */
#define GAIN 3e-4

enum {
    LEAVES = 1U << DT_OFFLOAD_PARAMETERS | 1U << DT_OFFLOAD_ALL,
    NONE = 1U << DT_OFFLOAD_NONE,
};

bool dt_orch_may_leave(enum dt_plan_strategy s)
{
    return s == DT_STRATEGY_COLOCATED || s == DT_STRATEGY_DIP || s == DT_STRATEGY_BEST;
}

/* The same search without what may be offloaded or not; false: there is nothing of that kind, or the strategy searches through this
 * door itself. */
static bool without(enum dt_plan_strategy strategy, const struct dt_search_input *in,
                    struct dt_search_input *plain)
{
    bool any = false;

    *plain = *in;
    for (int m = 0; m < in->model->n_modules; m++) {
        unsigned set = dt_orch_offloads(in, m);

        if (!(set & NONE) || set == NONE)
            continue;
        plain->opt.offload[m] = NONE;
        any = true;
    }
    return any && strategy != DT_STRATEGY_BEST && strategy != DT_STRATEGY_MANUAL;
}

/* Megatron-LM offloads the optimizer of all modules, or of none (--optimizer-cpu-offload), and its search has no other states. */
static void open_all_or_none(struct dt_search_input *in)
{
    for (int m = 0; m < in->model->n_modules; m++) {
        if (dt_orch_offloads(in, m) >> DT_OFFLOAD_OPTIMIZER & 1)
            in->offload[m] = DT_OFFLOAD_OPTIMIZER;
        in->opt.offload[m] = 0;
    }
}

/* What is stated and the strategy does not make is no plan of it. */
static enum dt_status check(enum dt_plan_strategy strategy, const struct dt_search_input *in,
                            struct dt_error *err)
{
    if (dt_orch_may_leave(strategy) || strategy == DT_STRATEGY_MANUAL)
        return DT_OK;
    for (int m = 0; m < in->model->n_modules; m++)
        if (!(dt_orch_offloads(in, m) & ~LEAVES))
            return dt_error_set(err, DT_ERR_INFEASIBLE,
                                "no plan fits: parameters of %s are to leave its GPUs between "
                                "phases, and strategy %s has no phases",
                                in->model->modules[m].name, dt_plan_strategy_names[strategy]);
    return DT_OK;
}

static double seconds_of(const struct dt_search_result *r)
{
    const struct dt_plan_prediction *q = &r->plans[0].predicted;

    return q->timeline_s > 0 ? q->timeline_s : q->staged_s;
}

/* Plans of a second list behind the first of a list, in their order. */
static enum dt_status join(struct dt_plan **plans, int *n, const struct dt_plan *more, int n_more,
                           struct dt_error *err)
{
    struct dt_plan *all = dt_realloc(*plans, (size_t)(*n + n_more + 1) * sizeof(*all));

    if (!all)
        return dt_error_nomem(err, "plans");
    *plans = all;
    for (int i = 0; i < n_more; i++)
        if (!dt_orch_plan_listed(all, *n, &more[i]))
            all[(*n)++] = more[i];
    return *n > 2 ? dt_orch_sort(all + 1, *n - 1, err) : DT_OK;
}

static void add_stats(struct dt_search_stats *to, const struct dt_search_stats *more)
{
    to->cells += more->cells;
    to->cells_opened += more->cells_opened;
    to->candidates += more->candidates;
    to->convex_solves += more->convex_solves;
    to->simulated += more->simulated;
    to->ops += more->ops;
    to->untimed += more->untimed;
    to->unlisted += more->unlisted;
    to->lower_bound_s = fmin(to->lower_bound_s, more->lower_bound_s);
    to->floor_s = fmin(to->floor_s, more->floor_s);
}

/* The better result, with the plans of the other behind its best. */
static enum dt_status merge(const struct dt_search_input *in, struct dt_search_result *plain,
                            struct dt_search_result *with, struct dt_error *err,
                            struct dt_search_result *out)
{
    bool gains = seconds_of(with) < seconds_of(plain) * (1 - GAIN);
    struct dt_search_result *best = gains ? with : plain, *other = gains ? plain : with;
    int most = in->opt.k > 0 ? in->opt.k : 8;

    DT_TRY(join(&best->plans, &best->n, other->plans, other->n, err));
    best->n = best->n < most ? best->n : most;
    if (best->n_timed > 0 && other->n_timed > 0)
        DT_TRY(join(&best->timed, &best->n_timed, other->timed, other->n_timed, err));
    add_stats(&best->stats, &other->stats);
    *out = *best;
    dt_search_result_free(other);
    memset(plain, 0, sizeof(*plain));
    memset(with, 0, sizeof(*with));
    return DT_OK;
}

/* ---- no more than is worth it ---- */

/* The plan with less of module m on the host, if that is one, fits and takes no longer. */
static enum dt_status shed(struct dt_orch_table *t, struct dt_plan *p, int m,
                           enum dt_plan_offload offload, struct dt_error *err)
{
    const struct dt_search_input *in = t->in;
    struct dt_plan q = *p;
    struct dt_error why;
    double bytes;
    enum dt_status st;

    q.modules[m].offload = offload;
    if (!(t->space.of[m].offloads >> offload & 1) ||
        dt_plan_validate(&q, in->model, in->cluster, NULL) != DT_OK ||
        dt_orch_check_expected(t, &q, NULL) != DT_OK)
        return DT_OK;
    st = (q.policy.batch_reorder ? dt_orch_batch_timeline_s : dt_orch_plan_timeline_s)(
        in, &q, 0, &why, &q.predicted.timeline_s, &bytes);
    if (st == DT_ERR_INFEASIBLE)
        return DT_OK;
    if (st != DT_OK)
        return dt_error_pass(err, &why);
    q.predicted.mem_bytes_max = fmax(q.predicted.mem_bytes_max, bytes);
    if (q.predicted.timeline_s <= p->predicted.timeline_s)
        *p = q;
    return DT_OK;
}

/* Where memory decided for a module what another would have decided for, too, or nothing had to. */
static enum dt_status shed_all(enum dt_plan_strategy strategy, const struct dt_search_input *in,
                               struct dt_error *err, struct dt_plan *p)
{
    static const enum dt_plan_offload less[] = {DT_OFFLOAD_NONE, DT_OFFLOAD_PARAMETERS,
                                                DT_OFFLOAD_OPTIMIZER};
    struct dt_search_input own = *in;
    struct dt_orch_table *t;
    enum dt_status st = DT_OK;

    if (p->predicted.timeline_s <= 0)
        return DT_OK;
    dt_orch_policy(strategy, &own.policy);
    DT_TRY(dt_orch_table_new(&own, err, &t));
    for (int m = 0; m < p->n_modules && st == DT_OK; m++)
        for (int k = 0; k < 3 && st == DT_OK; k++)
            if (p->modules[m].offload == DT_OFFLOAD_ALL ||
                (k == 0 && p->modules[m].offload != DT_OFFLOAD_NONE))
                st = shed(t, p, m, less[k], err);
    dt_orch_table_free(t);
    return st;
}

/* One search with all that is open, of whose best plan nothing lies on hosts for nothing. */
static enum dt_status find_open(enum dt_plan_strategy strategy, const struct dt_search_input *in,
                                struct dt_error *err, struct dt_search_result *out)
{
    enum dt_status st = dt_orch_find(strategy, in, err, out);

    if (st == DT_ERR_INFEASIBLE) { /* with all of it there is most room for a plan to begin with */
        struct dt_search_input most = *in;
        struct dt_error why;

        open_all_or_none(&most);
        st = dt_orch_find(strategy, &most, &why, out);
        if (st == DT_ERR_INFEASIBLE)
            return st; /* as it was */
        DT_TRY(st == DT_OK ? st : dt_error_pass(err, &why));
    }
    DT_TRY(st);
    st = shed_all(strategy, in, err, &out->plans[0]);
    if (st != DT_OK)
        dt_search_result_free(out);
    return st;
}

enum dt_status dt_orch_find_offloading(enum dt_plan_strategy strategy,
                                       const struct dt_search_input *in, struct dt_error *err,
                                       struct dt_search_result *out)
{
    struct dt_search_result plain = {0}, with = {0};
    struct dt_search_input own, open = *in;
    struct dt_error why;
    enum dt_status st;

    DT_TRY(check(strategy, in, err));
    if (!without(strategy, in, &own))
        return dt_orch_find(strategy, in, err, out);
    if (strategy == DT_STRATEGY_MEGATRON)
        open_all_or_none(&open);
    st = dt_orch_find(strategy, &own, &why, &plain);
    if (st == DT_ERR_INFEASIBLE)
        return find_open(strategy, &open, err, out);
    DT_TRY(st == DT_OK ? st : dt_error_pass(err, &why));
    st = find_open(strategy, &open, &why, &with);
    if (st == DT_ERR_INFEASIBLE) {
        *out = plain;
        return DT_OK;
    }
    st = st == DT_OK ? merge(in, &plain, &with, err, out) : dt_error_pass(err, &why);
    if (st != DT_OK) {
        dt_search_result_free(&plain);
        dt_search_result_free(&with);
    }
    return st;
}
