/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Strategy best: the best plan of each class (homogeneous, colocated, noncolocated), timed whole with the reordering that is
 * best for it; the fastest of these is the plan.  What the others take, and what binds each, goes with the result. */
#include "core/orchestrate/orchestrate_internal.h"

#include "base/mem.h"

#include <stdio.h>
#include <string.h>

static const enum dt_plan_strategy classes[DT_SEARCH_CLASSES] = {
    DT_STRATEGY_HOMOGENEOUS, DT_STRATEGY_COLOCATED, DT_STRATEGY_NONCOLOCATED};

/* A GPU that is so full leaves no room for anything else. */
#define FULL 0.9

static enum dt_status what_binds(const struct dt_orch_table *t, const struct dt_plan *p,
                                 struct dt_error *err, struct dt_search_class *c)
{
    double limit = dt_memory_limit(t->in->cluster), gib = 1024.0 * 1024 * 1024;
    struct dt_orch_binding b;
    int n;

    DT_TRY(dt_orch_plan_binding(t->in, p, err, &b));
    n = snprintf(c->why, sizeof(c->why), "%s", b.why);
    if (c->mem_bytes > FULL * limit && n > 0 && (size_t)n < sizeof(c->why))
        snprintf(c->why + n, sizeof(c->why) - (size_t)n,
                 "; memory: %.1f of %.1f GiB of the fullest GPU", c->mem_bytes / gib, limit / gib);
    return DT_OK;
}

/* The best plan of a class, appended to those of `out`. */
static enum dt_status look_at(struct dt_orch_table *t, struct dt_search_class *c,
                              struct dt_error *err, struct dt_search_result *out)
{
    struct dt_search_result found;
    struct dt_error why;
    enum dt_status st = dt_orch_find_plans(c->strategy, t->in, &why, &found);

    if (st == DT_ERR_INFEASIBLE) {
        snprintf(c->why, sizeof(c->why), "%.*s", (int)sizeof(c->why) - 1, why.message);
        return DT_OK;
    }
    if (st != DT_OK)
        return dt_error_pass(err, &why);
    out->plans[out->n] = found.plans[0];
    out->stats.candidates += found.stats.candidates;
    t->simulated += found.stats.simulated;
    t->ops += found.stats.ops;
    t->untimed += found.stats.untimed;
    dt_search_result_free(&found);
    if (t->in->opt.rank) {
        struct dt_plan_prediction *q = &out->plans[out->n].predicted;

        DT_TRY(dt_orch_plan_timeline_s(t->in, &out->plans[out->n], 0, err, &q->timeline_s,
                                       &q->mem_bytes_max));
    }
    c->fits = true;
    c->mem_bytes = out->plans[out->n].predicted.mem_bytes_max;
    DT_TRY(what_binds(t, &out->plans[out->n], err, c));
    out->n++;
    return DT_OK;
}

static enum dt_status none(const struct dt_search_result *r, struct dt_error *err)
{
    char text[1600];
    size_t n = 0;

    for (int i = 0; i < r->n_classes && n < sizeof(text); i++)
        n += (size_t)snprintf(text + n, sizeof(text) - n, "%s%s: %s", i ? "; " : "",
                              dt_plan_strategy_names[r->classes[i].strategy], r->classes[i].why);
    return dt_error_set(err, DT_ERR_INFEASIBLE, "%s", text);
}

static double seconds_of(const struct dt_plan *p)
{
    return p->predicted.timeline_s > 0 ? p->predicted.timeline_s : p->predicted.staged_s;
}

static bool is_before(const struct dt_plan *p, const struct dt_plan *q)
{
    double a = seconds_of(p), b = seconds_of(q);

    return a < b || (a <= b && dt_plan_gpus(p) < dt_plan_gpus(q));
}

/* The fastest first, however little it is before the others. */
static void sort(struct dt_plan *plans, int n)
{
    for (int i = 1; i < n; i++)
        for (int k = i; k > 0 && is_before(&plans[k], &plans[k - 1]); k--) {
            const struct dt_plan p = plans[k];

            plans[k] = plans[k - 1];
            plans[k - 1] = p;
        }
}

static enum dt_status plan(struct dt_orch_table *t, struct dt_error *err,
                           struct dt_search_result *out)
{
    out->plans = dt_calloc(DT_SEARCH_CLASSES, sizeof(*out->plans));
    if (!out->plans)
        return dt_error_nomem(err, "plans");
    for (int i = 0; i < DT_SEARCH_CLASSES; i++) {
        struct dt_search_class *c = &out->classes[out->n_classes++];

        c->strategy = classes[i];
        DT_TRY(look_at(t, c, err, out));
    }
    sort(out->plans, out->n);
    return out->n > 0 ? DT_OK : none(out, err);
}

const struct dt_orch_planner dt_orch_planner_best = {.plan = plan};
