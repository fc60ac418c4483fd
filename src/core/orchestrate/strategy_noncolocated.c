/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Strategy noncolocated: every module has GPUs of its own.  What strategy disttrain finds without guests, and the best of it
 * once more with encoders and generators whose replicas share images instead of taking whole samples. */
#include "core/orchestrate/orchestrate_hosted.h"

#include "base/mem.h"

#include <math.h>
#include <string.h>

enum { WINDOWED = 4 /* plans that are tried with windows */, VARIANTS = 6 };

/* The plan with windows of so many slots, of generators 1 or none, timed; false: that is no plan, or nothing is changed. */
static enum dt_status try_window(struct dt_orch_table *t, struct dt_plan *p, int window, int drawn,
                                 struct dt_error *err, bool *found)
{
    struct dt_error why;
    bool closer;
    enum dt_status st;

    *found = false;
    for (int m = 0; m < p->n_modules; m++)
        if (m != t->in->model->llm)
            p->modules[m].window = m < t->in->model->llm ? window : drawn;
    if (p->n_modules == 1 || dt_plan_validate(p, t->in->model, t->in->cluster, NULL) != DT_OK)
        return DT_OK;
    st = dt_orch_time_plan(t, p, 0, HUGE_VAL, HUGE_VAL, &why, &closer);
    if (st != DT_OK && st != DT_ERR_INFEASIBLE)
        return dt_error_pass(err, &why);
    *found = st == DT_OK;
    return DT_OK;
}

/* All windows of encoders, with generators that take samples and with such that share images; variant k of VARIANTS. */
static enum dt_status add_window(struct dt_orch_table *t, const struct dt_plan *from, int k,
                                 struct dt_error *err, struct dt_plan *p, bool *found)
{
    const int llm = t->in->model->llm, pp = from->modules[llm].layout.pp;
    const int windows[] = {1, pp, DT_PLAN_WINDOW_ALL};
    int drawn = k % 2, i = k / 2;

    *found = false;
    if ((i == 1 && pp == 1) || (i > 0 && llm == 0) || (!drawn && llm == 0) ||
        (drawn && llm + 1 == from->n_modules))
        return DT_OK;
    *p = *from;
    return try_window(t, p, windows[i], drawn, err, found);
}

static enum dt_status add_windows(struct dt_orch_table *t, struct dt_error *err,
                                  struct dt_search_result *out)
{
    int n = out->n < WINDOWED ? out->n : WINDOWED;
    struct dt_plan *all = dt_realloc(out->plans, (size_t)(out->n + VARIANTS * n) * sizeof(*all));

    if (!all)
        return dt_error_nomem(err, "plans");
    out->plans = all;
    for (int i = 0; i < n; i++)
        for (int k = 0; k < VARIANTS; k++) {
            bool found;

            DT_TRY(add_window(t, &all[i], k, err, &all[out->n], &found));
            out->n += found;
        }
    return dt_orch_sort(all, out->n, err);
}

static enum dt_status plan(struct dt_orch_table *t, struct dt_error *err,
                           struct dt_search_result *out)
{
    struct dt_search_input own = *t->in;
    struct dt_orch_table *apart;
    enum dt_status st;

    if (t->gpus < own.model->n_modules)
        return dt_error_set(
            err, DT_ERR_INFEASIBLE,
            "no plan fits: %d modules with GPUs of their own need as many GPUs, and "
            "there are %d",
            own.model->n_modules, t->gpus);
    own.opt.guests = 0;
    DT_TRY(dt_orch_table_new(&own, err, &apart));
    st = dt_orch_planner_disttrain.plan(apart, err, out);
    if (st == DT_OK && own.opt.rank)
        st = add_windows(apart, err, out);
    if (st == DT_OK)
        st = dt_orch_choose_shares(apart, err, out);
    if (st == DT_OK)
        st = dt_orch_time_whole(apart, err, out);
    if (st == DT_OK && out->n > (own.opt.k > 0 ? own.opt.k : 8))
        out->n = own.opt.k > 0 ? own.opt.k : 8;
    for (int i = 0; st == DT_OK && i < out->n; i++)
        out->plans[i].strategy = DT_STRATEGY_NONCOLOCATED;
    t->simulated += apart->simulated;
    t->ops += apart->ops;
    t->untimed += apart->untimed;
    t->rejects = apart->rejects;
    t->shares = apart->shares;
    dt_orch_table_free(apart);
    return st;
}

const struct dt_orch_planner dt_orch_planner_noncolocated = {.plan = plan};
