/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Strategy manual: the plan is stated; it is placed, checked and costed. */
#include "base/mem.h"
#include "core/orchestrate/orchestrate_internal.h"

enum dt_status dt_orch_plan_stated(struct dt_orch_table *t, struct dt_error *err,
                                   struct dt_search_result *out)
{
    const struct dt_search_input *in = t->in;
    struct dt_plan *p;
    int n = 1;
    enum dt_status st;

    if (!in->manual)
        return dt_error_set(err, DT_ERR_INPUT, "strategy manual needs a plan");
    p = dt_malloc(sizeof(*p));
    if (!p)
        return dt_error_nomem(err, "plan");
    *p = *in->manual;
    p->strategy = DT_STRATEGY_MANUAL;
    st = dt_plan_place(p, in->cluster, err);
    if (st == DT_OK)
        st = dt_plan_validate(p, in->model, in->cluster, err);
    if (st == DT_OK)
        st = dt_orch_rank(t, p, &n, false, err);
    if (st == DT_OK && n == 0)
        st = DT_ERR_INFEASIBLE; /* the memory check has said why */
    if (st != DT_OK) {
        dt_free(p);
        return st;
    }
    out->plans = p;
    out->n = 1;
    return DT_OK;
}

const struct dt_orch_planner dt_orch_planner_manual = {.plan = dt_orch_plan_stated};
