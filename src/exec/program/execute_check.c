/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * What training refuses of models and layouts that may be planned. */
#include "exec/program/execute_impl.h"

enum dt_status dt_exec_find_edges(struct dt_exec_iteration *it, const struct dt_exec_env *env,
                                  struct dt_error *err)
{
    const struct dt_model *m = env->o.model;

    it->edge[DT_EDGE_IN].src = it->edge[DT_EDGE_COND].src = -1;
    it->edge[DT_EDGE_IN].dst = it->edge[DT_EDGE_COND].dst = -1;
    for (int e = 0; e < m->n_edges; e++) {
        struct dt_exec_edge *x_edge =
            &it->edge[m->edges[e].dst == m->llm ? DT_EDGE_IN : DT_EDGE_COND];

        if (x_edge->src >= 0 || (m->edges[e].dst != m->llm && m->edges[e].src != m->llm))
            return dt_error_set(err, DT_ERR_INPUT,
                                "model %s: training takes one encoder, one LLM and one generator "
                                "at most",
                                m->name);
        x_edge->src = m->edges[e].src;
        x_edge->dst = m->edges[e].dst;
    }
    return DT_OK;
}

/* Expert groups, as far as they run. */
static enum dt_status check_experts(const struct dt_exec_options *o, int m, struct dt_error *err)
{
    const struct dt_plan_layout *l = &o->plan->modules[m].layout;

    if (l->ep <= 1)
        return DT_OK;
    if (o->plan->modules[m].zero_group > 0)
        return dt_error_set(
            err, DT_ERR_INPUT,
            "module %s: zero_group %d with ep %d is planned and simulated; training "
            "shards over all that hold the same parameters: leave zero_group out",
            o->plan->module_names[m], o->plan->modules[m].zero_group, l->ep);
    return DT_OK;
}

enum dt_status dt_exec_check_layout(const struct dt_exec_options *o, struct dt_error *err)
{
    for (int m = 0; m < o->plan->n_modules; m++) {
        const struct dt_plan_layout *l = &o->plan->modules[m].layout;

        if (l->ip != 1 || (l->cp > 1 && m != o->model->llm))
            return dt_error_set(err, DT_ERR_INPUT,
                                "module %s: cp %d and ip %d are planned and simulated; training "
                                "takes cp for the LLM, else 1 of each",
                                o->plan->module_names[m], l->cp, l->ip);
        DT_TRY(check_experts(o, m, err));
        if (o->plan->modules[m].zero > 1 && dt_plan_layout_copies(l) > 1)
            return dt_error_set(err, DT_ERR_INPUT,
                                "module %s: zero %d is planned and simulated; training shards the "
                                "optimizer's states alone: zero 0 or 1",
                                o->plan->module_names[m], o->plan->modules[m].zero);
        if (l->pp == 1 && l->vpp > 1)
            return dt_error_set(err, DT_ERR_INPUT, "module %s: vpp %d needs more than one stage",
                                o->plan->module_names[m], l->vpp);
    }
    return DT_OK;
}
