/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Which plans Entrain's assignment goes with: it deals the samples of a replica to microbatches of its own, so a replica of
 * the LLM has one of every encoder and generator, and all of them have several microbatches. */
#include "core/model/plan.h"

const char *const dt_plan_assignment_names[DT_ASSIGNMENT_N + 1] = {
#define NAME(id, name, help) name,
    DT_ASSIGNMENTS(NAME)
#undef NAME
};

bool dt_plan_feeds_llm(const struct dt_model *m, int module)
{
    for (int e = 0; e < m->n_edges; e++)
        if (m->edges[e].src == module &&
            (m->edges[e].dst == m->llm || dt_plan_feeds_llm(m, m->edges[e].dst)))
            return true;
    return false;
}

static enum dt_status check_module(const struct dt_plan *p, int llm, int i, struct dt_error *err)
{
    const struct dt_plan_module *mp = &p->modules[i];
    const char *name = p->module_names[i];

    if (mp->layout.dp != p->modules[llm].layout.dp)
        return dt_error_set(err, DT_ERR_INPUT,
                            "assignment entrain: a replica of %s needs one of %s, but their dp are "
                            "%d and %d; make them equal, or use assignment slots",
                            p->module_names[llm], name, p->modules[llm].layout.dp, mp->layout.dp);
    if (mp->with || p->colocated)
        return dt_error_set(err, DT_ERR_INPUT,
                            "assignment entrain: every module needs GPUs of its own, but %s shares "
                            "those of another; leave out with and colocated, or use assignment "
                            "slots",
                            name);
    if (mp->window != 0)
        return dt_error_set(err, DT_ERR_INPUT,
                            "assignment entrain: it deals whole samples, but replicas of %s share "
                            "items of a window; leave out window, or use assignment slots",
                            name);
    if (mp->zero > 1)
        return dt_error_set(err, DT_ERR_INPUT,
                            "assignment entrain: replicas of %s run different numbers of "
                            "microbatches, but with zero %d they would meet at each of them; use "
                            "zero 0 or 1, or assignment slots",
                            name, mp->zero);
    return DT_OK;
}

enum dt_status dt_plan_check_entrain(const struct dt_plan *p, const struct dt_model *m,
                                     struct dt_error *err)
{
    bool encoder = false;

    for (int i = 0; i < m->n_modules; i++)
        encoder |= dt_plan_feeds_llm(m, i);
    if (!encoder)
        return dt_error_set(err, DT_ERR_INPUT,
                            "assignment entrain: it balances encoders against the LLM, and model "
                            "%s has no encoder; use assignment slots",
                            m->name);
    if (p->policy.schedule != DT_SCHED_1F1B && p->policy.schedule != DT_SCHED_ZB_H1)
        return dt_error_set(
            err, DT_ERR_INPUT, "assignment entrain: it goes with schedules %s and %s, not with %s",
            dt_pipe_schedule_names[DT_SCHED_1F1B], dt_pipe_schedule_names[DT_SCHED_ZB_H1],
            dt_pipe_schedule_names[p->policy.schedule]);
    for (int i = 0; i < m->n_modules; i++)
        DT_TRY(check_module(p, m->llm, i, err));
    if (dt_plan_slots(p, m->llm) < 2)
        return dt_error_set(err, DT_ERR_INPUT,
                            "assignment entrain: a replica has one microbatch (global batch %lld, "
                            "dp %d, microbatch %d), so there is nothing to balance; use fewer "
                            "replicas, a smaller microbatch or assignment slots",
                            (long long)p->policy.global_batch, p->modules[m->llm].layout.dp,
                            p->policy.microbatch);
    return DT_OK;
}
