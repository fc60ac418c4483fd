/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Strategy colocated: all other modules lie on all GPUs of the LLM, each with a width of its own.  Encoders run in windows
 * (doc/program.md): their replicas share the images of all slots of a window, forward before and backward behind what the
 * LLM does of it.  Generators' replicas take samples, or share the images of each slot. */
#include "core/orchestrate/orchestrate_hosted.h"

#include <math.h>

/* Of generators: no more replicas than a slot has samples; one on every lane, samples dealt in turn; the same, but they share
 * items. */
enum { DEAL_FEW, DEAL_SAMPLES, DEAL_ITEMS, DEALS };
enum { WIDTHS = 4, WINDOWS = 4 };

static double guests_s(struct dt_orch_table *t, const struct dt_orch_cand *c,
                       const struct dt_orch_hosted_view *v)
{
    double sum = 0;

    for (int m = 0; m < t->in->model->n_modules; m++)
        if (m != t->in->model->llm)
            sum += t->least[m][t->space.pipe[c->pipe].split].gpu_s;
    return (v->steps + 1) * (double)v->slot * sum / v->gpus;
}

/* Slots of a window: the whole batch, or what the first stage has in flight, once or twice, or one; 0: as one before it. */
static int window_of(int k, int pp, int64_t slots)
{
    const int of[WINDOWS] = {DT_PLAN_WINDOW_ALL, pp, 2 * pp, 1};

    if (k > 0 && (of[k] >= slots || (k == WINDOWS - 1 && pp == 1)))
        return 0;
    return of[k];
}

/* Lane number k of those of the module, or its widest. */
static const struct dt_orch_lane *lane_of(const struct dt_orch_table *t, int m, int k)
{
    const struct dt_orch_modes *o = &t->space.of[m];

    return &o->lane[k < o->n_lanes ? k : o->n_lanes - 1];
}

static bool has_generators(const struct dt_model *m)
{
    return m->llm + 1 < m->n_modules;
}

/* Variants: the width of encoders, then that of generators, then how these are dealt what they draw, then the window. */
static bool place(struct dt_orch_table *t, const struct dt_orch_cand *c, int variant,
                  struct dt_plan *p)
{
    const struct dt_model *model = t->in->model;
    int width = variant % WIDTHS, generator = variant / WIDTHS % WIDTHS;
    int deal = variant / (WIDTHS * WIDTHS) % DEALS, k = variant / (WIDTHS * WIDTHS * DEALS);
    int64_t slot = dt_plan_slot_samples(p, model->llm), slots = dt_plan_slots(p, model->llm);
    int window = window_of(k, c->of[model->llm].pp, slots), widest = 1;

    if ((!has_generators(model) && (generator > 0 || deal > 0)) ||
        (has_generators(model) && model->llm == 0 && (width > 0 || k > 0)) || window == 0)
        return false;
    for (int m = 0; m < p->n_modules; m++) {
        struct dt_plan_module *mp = &p->modules[m];
        bool encoder = m < model->llm;
        const struct dt_orch_lane *lane = lane_of(t, m, encoder ? width : generator);
        int lanes;

        if (m == model->llm)
            continue;
        lanes = c->gpus / dt_orch_lane_gpus(lane);
        if (c->gpus % dt_orch_lane_gpus(lane) != 0)
            return false;
        widest = t->space.of[m].n_lanes > widest ? t->space.of[m].n_lanes : widest;
        mp->layout = (struct dt_plan_layout){
            .tp = lane->tp, .cp = lane->cp, .ep = 1, .ip = 1, .pp = 1, .vpp = 1, .dp = lanes};
        mp->split[0] = 0;
        mp->split[1] = (uint16_t)model->modules[m].n_blocks;
        mp->window = encoder ? window : deal == DEAL_ITEMS;
        if (encoder)
            continue;
        if (deal == DEAL_FEW && lanes > slot)
            mp->layout.dp = (int)slot;
        if ((deal != DEAL_FEW && lanes <= slot) ||
            (deal == DEAL_SAMPLES && lanes > t->in->policy.global_batch))
            return false;
    }
    return width < widest && generator < widest;
}

static enum dt_status plan(struct dt_orch_table *t, struct dt_error *err,
                           struct dt_search_result *out)
{
    static const struct dt_orch_hosted class = {.strategy = DT_STRATEGY_COLOCATED,
                                                .variants = WIDTHS * WIDTHS * DEALS * WINDOWS,
                                                .guests_s = guests_s,
                                                .place = place,
                                                .drawn = true,
                                                .groups = true};

    return dt_orch_hosted_plans(t, &class, err, out);
}

const struct dt_orch_planner dt_orch_planner_colocated = {.plan = plan};
