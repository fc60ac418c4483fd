/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Encoders in phases, as DIP schedules them (arXiv 2504.14145, PipeWeaver; as described in arXiv 2605.27918): a pipeline over the
 * GPUs of the LLM, whose microbatches all go forward before the LLM begins and backward when it has ended.
 *
 *   GPU 0   E0 E1 E2 E3       | L0 L1 L2 L0' L3 L1' L2' L3' |            E0' E1' E2' E3'
 *   GPU 1      E0 E1 E2 E3    |    L0 L0' L1 L1' ...        | E0' E1' E2' E3'
 *
 * GPUs do not wait for each other: each begins the next phase when it has ended its own part of the one before. */
#include "core/model/plan.h"

static enum dt_status check_module(const struct dt_plan *p, const struct dt_model *m, int i,
                                   struct dt_error *err)
{
    const char *name = p->module_names[i];

    if (m->modules[i].role != DT_ROLE_ENCODER)
        return dt_error_set(err, DT_ERR_INPUT,
                            "plan, module %s: phases (all forwards before the LLM, all backwards "
                            "behind it) are for encoders",
                            name);
    for (int e = 0; e < m->n_edges; e++)
        if (m->edges[e].dst == i)
            return dt_error_set(err, DT_ERR_INPUT,
                                "plan, module %s: it takes inputs of %s, which may wait for work "
                                "that phases put behind it; leave out phases",
                                name, p->module_names[m->edges[e].src]);
    if (dt_plan_host(p, i) == i && !p->colocated)
        return dt_error_set(err, DT_ERR_INPUT,
                            "plan, module %s: phases are of GPUs that modules share; say with whom "
                            "(with: %s), or leave out phases",
                            name, p->module_names[m->llm]);
    if (p->modules[i].window != 0)
        return dt_error_set(err, DT_ERR_INPUT,
                            "plan, module %s: phases have a microbatch for every slot, a window "
                            "one for several; leave out one of the two",
                            name);
    for (int o = 0; o < p->n_modules; o++)
        if (p->modules[o].layout.vpp > 1)
            return dt_error_set(err, DT_ERR_INPUT,
                                "plan, module %s: phases go with stages of one chunk, and %s has "
                                "%d; use vpp 1, or leave out phases",
                                name, p->module_names[o], p->modules[o].layout.vpp);
    return DT_OK;
}

enum dt_status dt_plan_check_phases(const struct dt_plan *p, const struct dt_model *m,
                                    struct dt_error *err)
{
    for (int i = 0; i < p->n_modules; i++)
        if (p->modules[i].phases)
            DT_TRY(check_module(p, m, i, err));
    return DT_OK;
}
