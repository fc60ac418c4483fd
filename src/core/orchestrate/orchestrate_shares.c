/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Who shares what around the best plan: ranks with the same parameters that shard optimizer states in groups
 * (dt_plan_module.zero_group), and replicas of encoders and generators that share images instead of taking whole samples
 * (dt_plan_module.window).
 *
 * The search before this knows neither.  Both change little but the plan that they are tried on, so they are single steps from
 * the best ones, each kept where its timeline is shorter. */
#include "base/mem.h"
#include "core/orchestrate/orchestrate_internal.h"

#include <math.h>
#include <string.h>

/* As orchestrate_polish.c: less is no gain. */
#define GAIN 3e-4
/* The same where a share of the replicas stands for a plan. */
#define PART_GAIN 1e-3

/* As far as a share of the replicas may be off. */
#define NEAR 0.015

enum {
    DRAWS = 3,   /* of a generator */
    WINDOWS = 5, /* of an encoder */
    KINDS = 2,   /* of plans, the best of which is tried */
};

int dt_orch_group_of(const struct dt_orch_table *t, const struct dt_plan_module *mp, int k)
{
    int copies = (int)dt_plan_layout_copies(&mp->layout), node = t->in->cluster->gpus_per_node;
    int now = mp->zero_group > 0 ? mp->zero_group : copies, group = now;

    if (mp->zero != 1 || mp->layout.ep > 1 || mp->frozen || copies * mp->layout.tp <= node)
        return -1;
    if (k == 0 && now % 2 == 0)
        group = now / 2;
    else if (k == 1)
        group = 2 * now;
    else if (k == 2)
        group = node / mp->layout.tp;
    if (group == now || group < 1 || group > copies || copies % group != 0)
        return -1;
    return group < copies ? group : 0;
}

/* Replicas of module m that its host, or the GPUs that are left, have room for. */
static int room_for(const struct dt_orch_table *t, const struct dt_plan *p, int m)
{
    const struct dt_plan_layout *l = &p->modules[m].layout;
    int host = dt_plan_host(p, m);
    int gpus = host != m ? dt_plan_layout_gpus(&p->modules[host].layout)
                         : t->gpus - dt_plan_gpus(p) + dt_plan_layout_gpus(l);

    return gpus / (dt_plan_layout_lane_gpus(l) * l->pp);
}

/* A generator's replicas share the images of each slot, as many as there are or as there is room for, or take samples. */
static bool draw(const struct dt_orch_table *t, int m, int k, struct dt_plan *p)
{
    struct dt_plan_module *mp = &p->modules[m];
    int64_t slot = dt_plan_slot_samples(p, t->in->model->llm);

    if (k == 0)
        mp->window = mp->window == 0;
    else if (k == 1)
        mp->layout.dp = room_for(t, p, m);
    else
        mp->layout.dp = (int)slot;
    mp->window = k == 1 ? 1 : mp->window;
    return mp->layout.dp > 0;
}

/* An encoder's replicas share the images of a slot, of as many as the LLM has stages, or of all, or take samples; or of all, and
 * its parameters leave the LLM's GPUs in between, which makes room for so many images. */
static bool share(const struct dt_orch_table *t, int m, int k, struct dt_plan *p)
{
    const int llm = t->in->model->llm, pp = p->modules[llm].layout.pp;
    const int of[WINDOWS] = {0, 1, pp, DT_PLAN_WINDOW_ALL, DT_PLAN_WINDOW_ALL};
    struct dt_plan_module *mp = &p->modules[m];
    enum dt_plan_offload offload =
        dt_plan_offload_of(dt_plan_offloads_optimizer(mp), k == WINDOWS - 1);

    if ((of[k] == mp->window && offload == mp->offload) ||
        !(t->space.of[m].offloads >> offload & 1) ||
        (k == 2 && (pp == 1 || pp >= dt_plan_slots(p, llm))))
        return false;
    mp->window = of[k];
    mp->offload = offload;
    return true;
}

/* Step number k; false: there is no such step.  *last: there are no more. */
static bool step(const struct dt_orch_table *t, int k, bool groups, struct dt_plan *p, bool *last)
{
    const int llm = t->in->model->llm;

    *last = false;
    for (int m = 0; m < p->n_modules; m++) {
        int n = m == llm ? 0 : m < llm ? WINDOWS : DRAWS;

        if (k < n)
            return m < llm ? share(t, m, k, p) : draw(t, m, k, p);
        k -= n;
        if (k < DT_ORCH_GROUPS) {
            int group = groups ? dt_orch_group_of(t, &p->modules[m], k) : -1;

            if (group >= 0)
                p->modules[m].zero_group = group;
            return group >= 0;
        }
        k -= DT_ORCH_GROUPS;
    }
    *last = true;
    return false;
}

/* Times the plan, if it is one and memory holds it: HUGE_VAL else, and where it takes longer than `limit`. */
static enum dt_status time_it(struct dt_orch_table *t, struct dt_plan *p, double limit,
                              struct dt_error *err, double *seconds)
{
    const struct dt_search_input *in = t->in;
    struct dt_error why;
    bool closer;
    enum dt_status st;

    *seconds = HUGE_VAL;
    if (dt_plan_place(p, in->cluster, NULL) != DT_OK ||
        dt_plan_validate(p, in->model, in->cluster, NULL) != DT_OK || dt_plan_gpus(p) > t->gpus ||
        dt_orch_check_expected(t, p, NULL) != DT_OK)
        return DT_OK;
    st = dt_orch_time_plan(t, p, 0, limit, limit, &why, &closer);
    if (st == DT_OK)
        *seconds = p->predicted.timeline_s;
    return st == DT_OK || st == DT_ERR_INFEASIBLE ? DT_OK : dt_error_pass(err, &why);
}

/* Steps while they make the plan faster, and there are ops left of *ops.  `part`: a share of the replicas stands for it, which
 * says nothing of groups of ranks. */
static enum dt_status descend(struct dt_orch_table *t, bool part, double *ops, struct dt_error *err,
                              struct dt_plan *p, bool *changed)
{
    double now, s;
    struct dt_plan q = *p;
    bool last = false;

    DT_TRY(time_it(t, &q, HUGE_VAL, err, &now));
    for (int k = 0; !last && *ops > 0 && now < HUGE_VAL; k++) {
        q = *p;
        if (!step(t, k, !part, &q, &last))
            continue;
        *ops -= dt_orch_look_ops(t, &q, 0);
        DT_TRY(time_it(t, &q, now, err, &s));
        if (s > now * (1 - (part ? PART_GAIN : GAIN)))
            continue;
        *p = q;
        *changed = true;
        now = s;
        k = -1;
    }
    return DT_OK;
}

/* From plan i of those in the list. */
static enum dt_status try_shares(struct dt_orch_table *t, struct dt_search_result *out, int i,
                                 struct dt_error *err)
{
    double ops = dt_orch_effort_of(t->in)->reorder_ops;
    struct dt_plan p = out->plans[i];
    bool changed = false, part;

    part = dt_orch_look_ops(t, &p, 0) < dt_orch_plan_ops(&p, t->in->model->llm);
    DT_TRY(descend(t, part, &ops, err, &p, &changed));
    if (changed && p.predicted.timeline_s < out->plans[i].predicted.timeline_s)
        out->plans[out->n++] = p;
    return DT_OK;
}

enum dt_status dt_orch_choose_shares(struct dt_orch_table *t, struct dt_error *err,
                                     struct dt_search_result *out)
{
    const double best = out->plans[0].predicted.timeline_s;
    int llm = t->in->model->llm, n = out->n, tried[KINDS], kinds = 0;
    int kept = t->in->opt.k > 0 ? t->in->opt.k : 8;
    struct dt_plan *all;

    if (!t->in->opt.rank || t->in->near || best <= 0 || out->plans[0].colocated ||
        out->plans[0].n_modules == 1)
        return DT_OK;
    t->shares = t->in->opt.effort != DT_EFFORT_QUICK;
    all = dt_realloc(out->plans, ((size_t)n + KINDS) * sizeof(*all));
    if (!all)
        return dt_error_nomem(err, "plans");
    out->plans = all;
    for (int i = 0; i < n && kinds < KINDS; i++) {
        double s = all[i].predicted.timeline_s;
        bool alike = false;

        for (int k = 0; k < kinds; k++)
            alike = alike || dt_orch_plans_alike(&all[tried[k]], &all[i], llm);
        if (alike || s <= 0 || s > best * (1 + NEAR))
            continue;
        tried[kinds++] = i;
        DT_TRY(try_shares(t, out, i, err));
    }
    if (out->n == n)
        return DT_OK;
    DT_TRY(dt_orch_sort(all, out->n, err));
    out->n = out->n < kept ? out->n : kept;
    return DT_OK;
}

/* ---- in other ways of reordering ---- */

/* The best plan in that way, with the shares that suit it there, if these make it the best. */
static enum dt_status try_way(struct dt_orch_table *t, int way, double *ops, struct dt_error *err,
                              struct dt_search_result *r, bool *faster)
{
    struct dt_plan p = r->plans[0];
    struct dt_orch_reorder how;
    bool changed = false;

    *faster = false;
    dt_orch_set_way(&p.policy, way);
    DT_TRY(descend(t, false, ops, err, &p, &changed));
    if (!changed)
        return DT_OK;
    DT_TRY(dt_orch_choose_reorder(t->in, &p, err, &how));
    if (how.batches != r->reorder.batches || how.share ||
        how.mean_s[how.choice] > r->reorder.mean_s[r->reorder.choice] * (1 - GAIN))
        return DT_OK;
    r->plans[0] = p;
    r->reorder = how;
    *faster = true;
    return DT_OK;
}

enum dt_status dt_orch_choose_shares_again(struct dt_orch_table *t, struct dt_error *err,
                                           struct dt_search_result *r)
{
    int done = dt_orch_way_of(&t->in->policy); /* no step makes the plan faster in this one */
    double ops = dt_orch_effort_of(t->in)->reorder_ops;
    bool faster = t->shares && r->reorder.batches > 0 && !r->reorder.share;

    while (faster && ops > 0) {
        const struct dt_orch_reorder now = r->reorder;

        faster = false;
        for (int k = 0; k < DT_REORDER_N && !faster && ops > 0; k++) {
            int way = (now.choice + k) % DT_REORDER_N;

            if (way == done || !(now.mean_s[way] <= now.mean_s[now.choice] * (1 + NEAR)))
                continue;
            DT_TRY(try_way(t, way, &ops, err, r, &faster));
            if (faster)
                done = way;
        }
    }
    return DT_OK;
}
