/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Strategy megatron-lm, the first baseline of the evaluation, as recalled from the paper's body, not re-checked against
 * it.
 *
 * The encoder and the generator are one extra pipeline stage each, as wide as the LLM's lanes and with its DP; they are
 * replicated over the TP ranks, which work on different images (ip = the LLM's tp); where the LLM has context parallelism,
 * over these ranks, too, as Megatron Core deals images to them (models/multimodal/context_parallel.py there).  Experts are
 * dealt to DP times CP ranks, each split over TP, which is Megatron Core's default.
 *
 * Within that the fastest configuration is searched for, so that the baseline is not weaker than it has to be; or it is
 * the published one, as recalled: TP 8 and PP_lm 1 / 2 / 10 for the 7B / 13B / 70B LLM; other sizes take the shallowest
 * pipeline that fits. */
#include "base/mem.h"
#include "core/orchestrate/orchestrate_internal.h"

#include <math.h>
#include <stdlib.h>
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

/* TP 8, or the widest allowed below it; 0: none is. */
static struct dt_orch_lane published_lane(const struct dt_orch_table *t)
{
    const struct dt_orch_modes *o = &t->space.of[t->in->model->llm];
    struct dt_orch_lane widest = {0, 1, 1};

    for (int i = 0; i < o->n_lanes; i++)
        if (o->lane[i].tp <= 8 && o->lane[i].tp > widest.tp)
            widest.tp = o->lane[i].tp;
    return widest;
}

struct config { /* one layout for the whole model */
    struct dt_orch_lane lane;
    int pp, vpp, microbatch;
    enum dt_pipe_schedule schedule;
    enum dt_block_recompute recompute; /* of all modules, unless they keep what is stated of each */
    bool stated_recompute;
};

static enum dt_status megatron_plan(struct dt_orch_table *t, const struct config *c,
                                    struct dt_error *err, struct dt_plan *out)
{
    const struct dt_search_input *in = t->in;
    const struct dt_model *model = in->model;
    const struct dt_module *llm = &model->modules[model->llm];
    int64_t slots = in->policy.global_batch / c->microbatch;
    int lane = dt_orch_lane_gpus(&c->lane), replica = lane * (c->pp + model->n_modules - 1);
    int dp = t->gpus / replica;

    while (dp > 0 && (slots % dp != 0 || !dt_plan_allows_ep(llm, c->lane.ep, dp * c->lane.cp)))
        dp--;
    if (replica > t->gpus) {
        t->rejects.gpus++;
        if (t->rejects.gpus_least == 0 || replica < t->rejects.gpus_least)
            t->rejects.gpus_least = replica;
    }
    if (dp < 1)
        return DT_ERR_INFEASIBLE;
    dt_search_plan_init(in, out);
    out->strategy = DT_STRATEGY_MEGATRON;
    out->policy.schedule = c->schedule;
    out->policy.microbatch = c->microbatch;
    for (int m = 0; m < model->n_modules; m++) {
        struct dt_plan_module *mp = &out->modules[m];

        mp->layout = m == model->llm
                         ? (struct dt_plan_layout){c->lane.tp, c->lane.cp, c->lane.ep, c->pp,
                                                   c->vpp,     dp,         1,          0}
                         : (struct dt_plan_layout){1, 1, 1, 1, 1, dp, lane, 0};
        mp->recompute = c->stated_recompute ? mp->recompute : c->recompute;
    }
    even_layers(llm, layers_of(llm), c->pp * c->vpp, out->modules[model->llm].split);
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

/* ---- as published ---- */

/* The plan if it can be built and fits. */
static enum dt_status try_plan(struct dt_orch_table *t, const struct config *c,
                               struct dt_error *err, struct dt_plan *out, bool *ok)
{
    enum dt_status st = megatron_plan(t, c, err, out);

    *ok = st == DT_OK && megatron_fits(t, out);
    return st == DT_ERR_INFEASIBLE ? DT_OK : st;
}

/* Of the policy as it is stated: the recalled pipeline if it fits, and the shallowest other one that does. */
static enum dt_status published(struct dt_orch_table *t, struct dt_error *err,
                                struct dt_plan *plans, int *n, int64_t *candidates)
{
    const struct dt_module *llm = &t->in->model->modules[t->in->model->llm];
    int layers = layers_of(llm), recalled = recalled_pp((double)dt_module_params(llm));
    struct config c = {.lane = published_lane(t),
                       .pp = recalled,
                       .vpp = 1,
                       .microbatch = t->in->policy.microbatch,
                       .schedule = t->in->policy.schedule,
                       .stated_recompute = true};
    bool ok = false;

    if (c.lane.tp > 0 && recalled > 0 && layers % recalled == 0) {
        ++*candidates;
        DT_TRY(try_plan(t, &c, err, &plans[0], &ok));
        *n += ok;
    }
    ok = false;
    for (c.pp = 1; c.lane.tp > 0 && !ok && c.pp <= layers && c.pp <= DT_MAX_VSTAGES; c.pp++) {
        if (layers % c.pp != 0 || (*n > 0 && c.pp == recalled))
            continue;
        ++*candidates;
        DT_TRY(try_plan(t, &c, err, &plans[*n], &ok));
    }
    *n += ok;
    return dt_orch_rank(t, plans, n, false, err);
}

/* ---- searched ---- */

struct stages {        /* seconds of a microbatch */
    double llm, later; /* the whole LLM; of it, what a split backward puts off */
    double llm_slowest, others_slowest, others;
};

/* Adds module m.  Encoders and generators are stages here, which take a microbatch at once; the timer takes them sample
 * by sample. */
static void add_stages(const struct dt_orch_table *t, const struct dt_plan *p, int m,
                       struct stages *x)
{
    const struct dt_plan_module *mp = &p->modules[m];
    const struct dt_block_shard shard = dt_plan_shard(mp);
    bool llm = m == t->in->model->llm;
    double stage[DT_MAX_VSTAGES] = {0}, k = p->policy.microbatch, sum = 0, later = 0;
    struct dt_orch_work_stats w = t->work[m];
    struct dt_orch_block_timer timer;

    if (!llm) {
        w.n *= k;
        w.tokens *= k;
        w.tokens_sq *= k;
    }
    dt_orch_block_timer_init(&timer, t->in, p, m, &shard, &w);
    for (int v = 0; v < mp->layout.pp * mp->layout.vpp; v++)
        for (int b = mp->split[v]; b < mp->split[v + 1]; b++) {
            double put_off, s = dt_orch_block_timer_s(&timer, b, &put_off) * (llm ? k : 1);

            stage[v % mp->layout.pp] += s;
            sum += s;
            later += k * put_off;
        }
    if (!llm) {
        x->others += sum;
        x->others_slowest = fmax(x->others_slowest, sum);
        return;
    }
    x->llm = sum;
    x->later = later;
    for (int s = 0; s < mp->layout.pp; s++)
        x->llm_slowest = fmax(x->llm_slowest, stage[s]);
}

/* Seconds of an iteration: all stages once, then the slowest for every other microbatch. */
static double by_stages_s(const struct dt_orch_table *t, const struct dt_plan *p)
{
    const struct dt_plan_layout *l = &p->modules[t->in->model->llm].layout;
    int64_t slots = dt_plan_slots(p, t->in->model->llm);
    struct stages x = {0};
    double fill;

    for (int m = 0; m < p->n_modules; m++)
        add_stages(t, p, m, &x);
    fill = dt_orch_llm_warmup_s(x.llm, x.later, slots, l->pp, l->vpp);
    return dt_orch_staged_s(x.others + fill, (double)(slots - 1), x.llm_slowest, x.others_slowest,
                            dt_orch_llm_pass_s(x.llm, x.later, fill));
}

/* The best by that are timed, as far as the budget goes.  It knows mean samples alone, and is not alike off with chunks
 * and without: POOL of each. */
enum { POOL = 48 };

struct pool {
    struct dt_plan *plans; /* [2 * POOL], those with chunks in the second half */
    int n[2];
};

static void keep(struct pool *pool, const struct dt_plan *p, bool chunks)
{
    struct dt_plan *half = pool->plans + (chunks ? POOL : 0);
    int *n = &pool->n[chunks], worst = 0;

    if (*n < POOL) {
        half[(*n)++] = *p;
        return;
    }
    for (int i = 1; i < POOL; i++)
        if (half[i].predicted.staged_s > half[worst].predicted.staged_s)
            worst = i;
    if (p->predicted.staged_s < half[worst].predicted.staged_s)
        half[worst] = *p;
}

static int by_staged(const void *pa, const void *pb)
{
    const struct dt_plan *a = pa, *b = pb;
    double x = a->predicted.staged_s, y = b->predicted.staged_s;

    return x != y ? (x < y ? -1 : 1) : dt_plan_gpus(a) - dt_plan_gpus(b);
}

/* Both halves as one list, best first. */
static int merge(struct pool *pool)
{
    memmove(pool->plans + pool->n[0], pool->plans + POOL,
            (size_t)pool->n[1] * sizeof(*pool->plans));
    qsort(pool->plans, (size_t)(pool->n[0] + pool->n[1]), sizeof(*pool->plans), by_staged);
    return pool->n[0] + pool->n[1];
}

static enum dt_status try_config(struct dt_orch_table *t, const struct config *c, struct pool *pool,
                                 struct dt_plan *spare, struct dt_error *err, int64_t *candidates)
{
    const struct dt_module *llm = &t->in->model->modules[t->in->model->llm];
    bool ok;

    if (layers_of(llm) % (c->pp * c->vpp) != 0 || c->pp * c->vpp > DT_MAX_VSTAGES ||
        (c->vpp > 1 && c->pp == 1))
        return DT_OK;
    ++*candidates;
    DT_TRY(try_plan(t, c, err, spare, &ok));
    if (!ok)
        return DT_OK;
    spare->predicted.staged_s = by_stages_s(t, spare); /* until it is ranked */
    keep(pool, spare, c->vpp > 1);
    return DT_OK;
}

/* All that one layout for the whole model, even layers and one policy allow: TP, CP, EP, PP, chunks, microbatch,
 * recomputation, as far as they are not stated.  Megatron-LM does not split backwards. */
static enum dt_status all_configs(struct dt_orch_table *t, struct pool *pool, struct dt_plan *spare,
                                  struct dt_error *err, int64_t *candidates)
{
    const struct dt_orch_space *s = &t->space;
    const struct dt_orch_modes *o = &s->of[t->in->model->llm];
    int layers = layers_of(&t->in->model->modules[t->in->model->llm]),
        stated = t->in->opt.megatron_pp;
    bool whole = false;

    for (int i = 0; i < s->n_pipes; i++)
        whole |= !s->pipe[i].split;
    for (int l = 0; l < o->n_lanes; l++)
        for (int i = 0; i < s->n_pipes; i++)
            for (int pp = stated > 0 ? stated : 1; pp <= (stated > 0 ? stated : layers); pp++)
                for (int k = 0; k < s->n_microbatches * o->n_recompute; k++) {
                    struct config c = {.lane = o->lane[l],
                                       .pp = pp,
                                       .vpp = s->pipe[i].vpp,
                                       .microbatch = s->microbatch[k / o->n_recompute],
                                       .schedule = s->pipe[i].schedule,
                                       .recompute = o->recompute[k % o->n_recompute],
                                       .stated_recompute = o->n_recompute == 1};

                    if (!(whole && s->pipe[i].split))
                        DT_TRY(try_config(t, &c, pool, spare, err, candidates));
                }
    return DT_OK;
}

static enum dt_status searched(struct dt_orch_table *t, struct dt_error *err, struct dt_plan *plans,
                               int *n, int64_t *candidates)
{
    struct dt_plan *spare = dt_malloc(sizeof(*spare));
    struct pool pool = {plans, {0, 0}};
    enum dt_status st;
    int k = t->in->opt.k > 0 ? t->in->opt.k : 8;

    if (!spare)
        return dt_error_nomem(err, "plans");
    st = all_configs(t, &pool, spare, err, candidates);
    dt_free(spare);
    if (st != DT_OK)
        return st;
    *n = merge(&pool);
    DT_TRY(dt_orch_rank(t, plans, n, true, err));
    *n = *n < k ? *n : k;
    return DT_OK;
}

static enum dt_status plan(struct dt_orch_table *t, struct dt_error *err,
                           struct dt_search_result *out)
{
    int stated = t->in->opt.megatron_pp, n = 0;
    int layers = layers_of(&t->in->model->modules[t->in->model->llm]);
    struct dt_plan *plans;
    enum dt_status st;

    if (stated > 0 && layers % stated != 0)
        return dt_error_set(
            err, DT_ERR_INPUT,
            "search.megatron_pp: %d stages do not take the %d layers of module %s evenly", stated,
            layers, t->in->model->modules[t->in->model->llm].name);
    plans = dt_malloc(2 * POOL * sizeof(*plans));
    if (!plans)
        return dt_error_nomem(err, "plans");
    st = (stated == DT_MEGATRON_PUBLISHED ? published : searched)(t, err, plans, &n,
                                                                  &out->stats.candidates);
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
