/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Strategy homogeneous: all modules have the LLM's tensor, context and data parallelism.  Encoders lie on its first stage and
 * generators on its last one, each as one stage; ranks of context parallelism encode other images.  The LLM's stages may be
 * uneven, so that those with a module more have fewer blocks. */
#include "core/orchestrate/orchestrate_hosted.h"

#include "base/mem.h"

#include <math.h>

/* Seconds of a module's slot on the LLM's lanes, for one replica. */
static double module_s(struct dt_orch_table *t, const struct dt_orch_cand *c, int m)
{
    const struct dt_orch_space *s = &t->space;
    const struct dt_orch_choice *of = &c->of[t->in->model->llm];
    const struct dt_orch_lane *wide = &s->of[t->in->model->llm].lane[of->lane];

    for (int l = 0; l < s->of[m].n_lanes; l++) {
        const struct dt_orch_lane *lane = &s->of[m].lane[l];
        struct dt_orch_times *x;

        if (lane->tp != wide->tp || lane->cp != 1 || lane->ep != 1)
            continue;
        x = dt_orch_times_of(t, m, l, 0, 0, s->pipe[c->pipe].split);
        return x ? s->microbatch[c->microbatch] * x->sample_s / wide->cp : HUGE_VAL;
    }
    return HUGE_VAL; /* its heads cannot be dealt so */
}

static double guests_s(struct dt_orch_table *t, const struct dt_orch_cand *c,
                       const struct dt_orch_hosted_view *v)
{
    double sum = 0, most = 0, even;
    int pp = c->of[t->in->model->llm].pp;

    for (int m = 0; m < t->in->model->n_modules; m++) {
        double x = m == t->in->model->llm ? 0 : module_s(t, c, m);

        sum += x;
        most = fmax(most, x);
    }
    even = (v->passage + sum) / pp;
    return sum + v->steps * (fmax(fmax(v->interval, most), even) - v->interval);
}

/* Stages of the LLM that take as long with what lies on the first and on the last. */
static bool split_beside(struct dt_orch_table *t, const struct dt_orch_cand *c, struct dt_plan *p)
{
    const struct dt_model *model = t->in->model;
    const struct dt_orch_pipe *pipe = &t->space.pipe[c->pipe];
    const struct dt_orch_choice *of = &c->of[model->llm];
    int n = model->modules[model->llm].n_blocks;
    struct dt_orch_times *x =
        dt_orch_times_of(t, model->llm, of->lane, of->recompute, c->microbatch, pipe->split);
    double *cost = dt_malloc((size_t)n * sizeof(*cost));

    if (!x || !cost) {
        t->nomem = true;
        dt_free(cost);
        return false;
    }
    for (int b = 0; b < n; b++)
        cost[b] = t->space.microbatch[c->microbatch] * x->block_s[b];
    for (int m = 0; m < model->n_modules; m++)
        if (m != model->llm)
            cost[m < model->llm ? 0 : n - 1] += module_s(t, c, m);
    dt_plan_split_blocks(cost, n, of->pp * pipe->vpp, p->modules[model->llm].split);
    dt_free(cost);
    return true;
}

static bool place(struct dt_orch_table *t, const struct dt_orch_cand *c, int variant,
                  struct dt_plan *p)
{
    const struct dt_plan_layout *l = &p->modules[t->in->model->llm].layout;

    if (variant == 1 && (l->pp == 1 || !split_beside(t, c, p)))
        return false;
    for (int m = 0; m < p->n_modules; m++) {
        struct dt_plan_module *mp = &p->modules[m];

        if (m == t->in->model->llm)
            continue;
        mp->layout = (struct dt_plan_layout){
            .tp = l->tp, .cp = 1, .ep = 1, .ip = l->cp, .pp = 1, .vpp = 1, .dp = l->dp};
        mp->split[0] = 0;
        mp->split[1] = (uint16_t)t->in->model->modules[m].n_blocks;
        if (m > t->in->model->llm) { /* the LLM is the only module with GPUs, so it begins at 0 */
            mp->pinned = true;
            mp->layout.first_gpu = (l->pp - 1) * l->dp * dt_plan_layout_lane_gpus(l);
        }
    }
    return true;
}

static enum dt_status plan(struct dt_orch_table *t, struct dt_error *err,
                           struct dt_search_result *out)
{
    static const struct dt_orch_hosted class = {
        .strategy = DT_STRATEGY_HOMOGENEOUS, .variants = 2, .guests_s = guests_s, .place = place};

    return dt_orch_hosted_plans(t, &class, err, out);
}

const struct dt_orch_planner dt_orch_planner_homogeneous = {.plan = plan};
