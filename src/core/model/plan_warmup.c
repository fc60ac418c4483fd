/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * How far ahead of its backwards a stage may be (Entrain's eager forwards; Jang and Chowdhury 2026, arXiv 2605.27918), and
 * which plans that goes with.
 *
 * Let a stage hold a + 1 microbatches in 1F1B.  1F1B cannot deadlock as F(k) has the time 2k - a, B(k) the time 2k + a + 1, and
 * data flows to smaller a (core/pipeline/one_f_one_b.c).  With `ahead` more of them everywhere that stays so as long as
 * `ahead` does not grow along any path. */
#include "core/model/plan.h"

#define NAME(id, name, help) name,
const char *const dt_plan_warmup_names[DT_WARMUP_N + 1] = {DT_WARMUPS(NAME) NULL};

bool dt_plan_is_ahead(const struct dt_plan *p)
{
    for (int m = 0; m < p->n_modules;
         m++) /* of any stage: the plan may not have been checked yet */
        for (int s = 0; s < p->modules[m].layout.pp; s++)
            if (p->modules[m].ahead[s] > 0)
                return true;
    return false;
}

static enum dt_status grows(const struct dt_plan *p, int m, int stage, struct dt_error *err)
{
    return dt_error_set(err, DT_ERR_INPUT,
                        "plan, module %s: stage %d is ahead by %d, more than the stage in front of "
                        "it, which it would wait for; let ahead fall along the pipeline",
                        p->module_names[m], stage, p->modules[m].ahead[stage]);
}

static enum dt_status check_order(const struct dt_plan *p, const struct dt_model *m,
                                  struct dt_error *err)
{
    for (int i = 0; i < p->n_modules; i++)
        for (int s = 1; s < p->modules[i].layout.pp; s++)
            if (p->modules[i].ahead[s] > p->modules[i].ahead[s - 1])
                return grows(p, i, s, err);
    for (int e = 0; e < m->n_edges; e++) {
        const struct dt_plan_module *src = &p->modules[m->edges[e].src];
        const struct dt_plan_module *dst = &p->modules[m->edges[e].dst];

        if (dst->ahead[0] > src->ahead[src->layout.pp - 1])
            return grows(p, m->edges[e].dst, 0, err);
    }
    return DT_OK;
}

enum dt_status dt_plan_check_warmup(const struct dt_plan *p, const struct dt_model *m,
                                    struct dt_error *err)
{
    enum dt_pipe_schedule schedule = p->policy.schedule;

    if (p->policy.warmup != DT_WARMUP_EAGER)
        return dt_plan_is_ahead(p) ? dt_error_set(err, DT_ERR_INPUT,
                                                  "plan: ahead is for warmup eager; leave it out, "
                                                  "or use train.warmup: eager")
                                   : DT_OK;
    if (schedule != DT_SCHED_1F1B && schedule != DT_SCHED_ZB_H1)
        return dt_error_set(
            err, DT_ERR_INPUT, "warmup eager: it goes with schedules %s and %s, not with %s",
            dt_pipe_schedule_names[DT_SCHED_1F1B], dt_pipe_schedule_names[DT_SCHED_ZB_H1],
            dt_pipe_schedule_names[schedule]);
    if (dt_plan_shares(p))
        return dt_error_set(err, DT_ERR_INPUT,
                            "warmup eager: every module needs GPUs of its own, whose memory it has "
                            "for itself; leave out with and colocated, or use warmup 1f1b");
    for (int i = 0; i < p->n_modules; i++)
        if (p->modules[i].window != 0)
            return dt_error_set(err, DT_ERR_INPUT,
                                "warmup eager: %s takes whole windows; leave out window, or use "
                                "warmup 1f1b",
                                p->module_names[i]);
    return check_order(p, m, err);
}
