/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Strategy megatron-lm, the first baseline of the evaluation, as recalled from the paper's body, not re-checked against
 * it.
 *
 * The encoder and the generator are one extra pipeline stage each, as wide as the LLM's lanes and with its DP; they are
 * replicated over the TP ranks, which work on different images (ip = the LLM's tp).  Recalled: TP 8 and PP_lm 1 / 2 /
 * 10 for the 7B / 13B / 70B LLM; other sizes take the shallowest pipeline that fits. */
#include "base/mem.h"
#include "core/orchestrate/orchestrate_internal.h"

#include <math.h>
#include <string.h>

static int recalled_pp(double llm_params)
{
    static const struct {
        double params_min, params_max;
        int pp;
    } recalled[] = {{6e9, 9e9, 1}, {12e9, 16e9, 2}, {65e9, 75e9, 10}};

    for (size_t i = 0; i < sizeof(recalled) / sizeof(recalled[0]); i++)
        if (llm_params >= recalled[i].params_min && llm_params < recalled[i].params_max)
            return recalled[i].pp;
    return 0;
}

static int layers_of(const struct dt_module *mod)
{
    int n = 0;

    for (int b = 0; b < mod->n_blocks; b++)
        n += mod->blocks[b].kind == DT_BLOCK_TRANSFORMER;
    return n;
}

/* Megatron-LM deals transformer layers evenly; the embedding joins the first stage and the head the
 * last. */
static void even_layers(const struct dt_module *mod, int layers, int pp, uint16_t *split)
{
    int stage = 1, seen = 0;

    split[0] = 0;
    for (int b = 0; b < mod->n_blocks && stage < pp; b++) {
        seen += mod->blocks[b].kind == DT_BLOCK_TRANSFORMER;
        if (seen == layers / pp * stage)
            split[stage++] = (uint16_t)(b + 1);
    }
    split[pp] = (uint16_t)mod->n_blocks;
}

/* TP 8, or the widest allowed below it. */
static int megatron_tp(const struct dt_orch_table *t)
{
    const struct dt_orch_modes *o = &t->space.of[t->in->model->llm];
    int widest = 0;

    for (int i = 0; i < o->n_lanes; i++)
        if (o->lane[i].tp <= 8 && o->lane[i].cp == 1 && o->lane[i].tp > widest)
            widest = o->lane[i].tp;
    return widest;
}

static enum dt_status megatron_plan(struct dt_orch_table *t, int tp, int pp, struct dt_error *err,
                                    struct dt_plan *out)
{
    const struct dt_search_input *in = t->in;
    const struct dt_model *model = in->model;
    const struct dt_module *llm = &model->modules[model->llm];
    int64_t slots = in->policy.global_batch / in->policy.microbatch;
    int replica = tp * (pp + model->n_modules - 1), dp = t->gpus / replica;

    while (dp > 1 && slots % dp != 0)
        dp--;
    if (dp < 1) {
        t->rejects.gpus++;
        if (t->rejects.gpus_least == 0 || replica < t->rejects.gpus_least)
            t->rejects.gpus_least = replica;
        return DT_ERR_INFEASIBLE;
    }
    dt_search_plan_init(in, out);
    out->strategy = DT_STRATEGY_MEGATRON;
    for (int m = 0; m < model->n_modules; m++)
        out->modules[m].layout = m == model->llm
                                     ? (struct dt_plan_layout){tp, 1, 1, pp, 1, dp, 1, 0}
                                     : (struct dt_plan_layout){1, 1, 1, 1, 1, dp, tp, 0};
    even_layers(llm, layers_of(llm), pp, out->modules[model->llm].split);
    DT_TRY(dt_plan_place(out, in->cluster, err));
    return dt_plan_validate(out, model, in->cluster, err);
}

/* Does it fit; notes the reason if not. */
static bool megatron_fits(struct dt_orch_table *t, const struct dt_plan *p)
{
    const struct dt_model *model = t->in->model;
    int64_t slot = dt_plan_slot_samples(p, model->llm), slots = dt_plan_slots(p, model->llm);
    bool fits = true;

    for (int m = 0; m < p->n_modules && fits; m++) {
        struct dt_work work;

        dt_orch_largest_work(&t->work[m],
                             (double)dt_orch_samples_per_replica(slot, p->modules[m].layout.dp),
                             t->sigmas, &work);
        for (int s = 0; s < p->modules[m].layout.pp && fits; s++) {
            struct dt_memory mem;

            dt_memory_stage(p, model, t->in->cluster, m, s, &work, slots, &mem);
            fits = mem.total <= dt_memory_limit(t->in->cluster);
            if (!fits)
                dt_orch_note_reject(t, p, m, s, &mem);
        }
    }
    return fits;
}

/* The plan with this pp if it can be built and fits. */
static enum dt_status try_pp(struct dt_orch_table *t, int tp, int pp, struct dt_error *err,
                             struct dt_plan *out, bool *ok)
{
    enum dt_status st = megatron_plan(t, tp, pp, err, out);

    *ok = st == DT_OK && megatron_fits(t, out);
    return st == DT_ERR_INFEASIBLE ? DT_OK : st;
}

static enum dt_status plan(struct dt_orch_table *t, struct dt_error *err,
                           struct dt_search_result *out)
{
    const struct dt_module *llm = &t->in->model->modules[t->in->model->llm];
    int layers = layers_of(llm), tp = megatron_tp(t), stated = t->in->opt.megatron_pp, n = 0;
    struct dt_plan *plans = dt_malloc(2 * sizeof(*plans));
    enum dt_status st = DT_OK;
    bool ok = false;

    if (!plans)
        return dt_error_nomem(err, "plans");
    if (stated == 0)
        stated = recalled_pp((double)dt_module_params(llm));
    if (tp > 0 && stated > 0 && layers % stated == 0 && stated <= DT_MAX_VSTAGES) {
        out->stats.candidates++;
        st = try_pp(t, tp, stated, err, &plans[0], &ok);
        n += ok;
    }
    ok = false;
    for (int pp = 1; st == DT_OK && tp > 0 && !ok && pp <= layers && pp <= DT_MAX_VSTAGES; pp++) {
        if (layers % pp != 0 || (n > 0 && pp == stated))
            continue;
        out->stats.candidates++;
        st = try_pp(t, tp, pp, err, &plans[n], &ok);
    }
    n += ok;
    if (st == DT_OK)
        st = dt_orch_rank(t, plans, &n, false, err);
    if (st == DT_OK && n == 0)
        st = dt_orch_infeasible(t, err);
    if (st != DT_OK) {
        dt_free(plans);
        return st;
    }
    out->plans = plans;
    out->n = n;
    return DT_OK;
}

static void policy(struct dt_plan_policy *y)
{
    y->intra_reorder = y->inter_reorder = false;
    y->stepccl = false;
    y->overlap_grad = y->overlap_param = true;
}

const struct dt_orch_planner dt_orch_planner_megatron = {.plan = plan, .policy = policy};
