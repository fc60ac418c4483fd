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

#include <limits.h>
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

/* Transformer layers of the parts of a pipeline, as Megatron-LM deals them.  Every stage has as many, or the first and the last
 * have others (--decoder-first-pipeline-num-layers, --decoder-last-pipeline-num-layers); or the embedding counts as a layer of
 * the first part, and the loss as one of the last (--account-for-embedding-in-pipeline-split, -loss-). */
struct deal {
    int first, middle, last; /* of each chunk of these stages */
    int embedding, loss;     /* fewer in the very first part, and in the very last */
};

static struct deal even(int layers, int parts)
{
    return (struct deal){layers / parts, layers / parts, layers / parts, 0, 0};
}

static int dealt(const struct deal *d, int pp, int vpp, int part)
{
    int stage = part % pp;
    int n = stage == 0 ? d->first : stage == pp - 1 ? d->last : d->middle;

    return n - (part == 0 ? d->embedding : 0) - (part == pp * vpp - 1 ? d->loss : 0);
}

/* The block behind the first n layers, or the first of them. */
static int behind_layers(const struct dt_module *mod, int n)
{
    int b = 0;

    for (int seen = 0; b < mod->n_blocks; b++) {
        bool layer = mod->blocks[b].kind == DT_BLOCK_TRANSFORMER;

        if (layer && n == 0)
            return b;
        seen += layer;
        if (layer && seen == n)
            return b + 1;
    }
    return b;
}

/* The embedding joins the first stage and the head the last. */
static void deal_layers(const struct dt_module *mod, const struct deal *d, int pp, int vpp,
                        uint16_t *split)
{
    int layers = 0;

    split[0] = 0;
    for (int v = 0; v + 1 < pp * vpp; v++) {
        layers += dealt(d, pp, vpp, v);
        split[v + 1] = (uint16_t)behind_layers(mod, layers);
    }
    split[pp * vpp] = (uint16_t)mod->n_blocks;
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
    int dp, pp, vpp, microbatch;
    struct deal deal;
    enum dt_pipe_schedule schedule;
    enum dt_block_recompute recompute; /* of the LLM, and of modules of which none is stated */
};

/* Of module m: what is stated of it. */
static enum dt_block_recompute recompute_of(const struct dt_orch_table *t, const struct config *c,
                                            int m)
{
    const struct dt_orch_modes *o = &t->space.of[m];

    return o->n_recompute == 1 ? o->recompute[0] : c->recompute;
}

/* One policy of recomputation holds for all modules: what is stated of one decides for the others that are open, the LLM too. */
static bool is_one_policy(const struct dt_orch_table *t, const struct config *c)
{
    bool open = t->space.of[t->in->model->llm].n_recompute > 1;

    for (int m = 0; m < t->in->model->n_modules && open; m++)
        if (recompute_of(t, c, m) != c->recompute)
            return false;
    return true;
}

static int replica_gpus(const struct dt_orch_table *t, const struct config *c)
{
    return dt_orch_lane_gpus(&c->lane) * (c->pp + t->in->model->n_modules - 1);
}

/* The most replicas up to `most` that divide the batch and the experts' groups and fit the GPUs; 0: none. */
static int replicas_of(const struct dt_orch_table *t, const struct config *c, int most)
{
    const struct dt_module *llm = &t->in->model->modules[t->in->model->llm];
    int64_t slots = t->in->policy.global_batch / c->microbatch;
    int dp = t->gpus / replica_gpus(t, c);

    dp = dp < most ? dp : most;
    while (dp > 0 && (slots % dp != 0 || !dt_plan_allows_ep(llm, c->lane.ep, dp * c->lane.cp)))
        dp--;
    return dp;
}

/* The layouts of all modules with dp replicas, and the policy; not the split. */
static void megatron_layouts(const struct dt_orch_table *t, const struct config *c, int dp,
                             struct dt_plan *out)
{
    const struct dt_model *model = t->in->model;

    dt_search_plan_init(t->in, out);
    out->strategy = DT_STRATEGY_MEGATRON;
    out->policy.schedule = c->schedule;
    out->policy.microbatch = c->microbatch;
    for (int m = 0; m < model->n_modules; m++) {
        struct dt_plan_module *mp = &out->modules[m];

        mp->layout =
            m == model->llm
                ? (struct dt_plan_layout){c->lane.tp, c->lane.cp, c->lane.ep, c->pp,
                                          c->vpp,     dp,         1,          0}
                : (struct dt_plan_layout){1, 1, 1, 1, 1, dp, dt_orch_lane_gpus(&c->lane), 0};
        mp->recompute = recompute_of(t, c, m);
    }
}

static enum dt_status megatron_plan(struct dt_orch_table *t, const struct config *c,
                                    struct dt_error *err, struct dt_plan *out)
{
    const struct dt_search_input *in = t->in;
    const struct dt_model *model = in->model;
    int replica = replica_gpus(t, c);

    if (replica > t->gpus) {
        t->rejects.gpus++;
        if (t->rejects.gpus_least == 0 || replica < t->rejects.gpus_least)
            t->rejects.gpus_least = replica;
    }
    if (c->dp < 1)
        return DT_ERR_INFEASIBLE;
    megatron_layouts(t, c, c->dp, out);
    deal_layers(&model->modules[model->llm], &c->deal, c->pp, c->vpp,
                out->modules[model->llm].split);
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

            dt_memory_stage_again(t->acts, p, model, t->in->cluster, m, s, &work, slots, &mem);
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
                       .recompute = t->in->recompute[t->in->model->llm]};
    bool ok = false;

    if (c.lane.tp > 0 && recalled > 0 && layers % recalled == 0) {
        c.deal = even(layers, recalled);
        c.dp = replicas_of(t, &c, INT_MAX);
        ++*candidates;
        DT_TRY(try_plan(t, &c, err, &plans[0], &ok));
        *n += ok;
    }
    ok = false;
    for (c.pp = 1; c.lane.tp > 0 && !ok && c.pp <= layers && c.pp <= DT_MAX_VSTAGES; c.pp++) {
        if (layers % c.pp != 0 || (*n > 0 && c.pp == recalled))
            continue;
        c.deal = even(layers, c.pp);
        c.dp = replicas_of(t, &c, INT_MAX);
        ++*candidates;
        DT_TRY(try_plan(t, &c, err, &plans[*n], &ok));
    }
    *n += ok;
    return dt_orch_rank(t, plans, n, false, err);
}

/* ---- searched ---- */

struct times {      /* seconds of a microbatch, however the layers are dealt */
    double *before; /* [n_blocks + 1], of the LLM's blocks before each */
    double later;   /* of the whole LLM, what a split backward puts off */
    double others, others_slowest;
    double head, layer,
        tail; /* of the LLM's blocks before the layers, of a mean layer, and behind them */
};

/* Encoders and generators are stages here, which take a microbatch at once; the timer takes them sample by sample. */
static void add_times(const struct dt_orch_table *t, const struct dt_plan *p, int m,
                      struct times *x)
{
    const struct dt_block_shard shard = dt_plan_shard(&p->modules[m]);
    bool llm = m == t->in->model->llm;
    double k = p->policy.microbatch, sum = 0;
    struct dt_orch_work_stats w = t->work[m];
    struct dt_orch_block_timer timer;

    if (!llm) {
        w.n *= k;
        w.tokens *= k;
        w.tokens_sq *= k;
    }
    dt_orch_block_timer_init(&timer, t->in, p, m, &shard, &w);
    for (int b = 0; b < t->in->model->modules[m].n_blocks; b++) {
        double put_off;

        sum += dt_orch_block_timer_s(&timer, b, &put_off) * (llm ? k : 1);
        if (llm) {
            x->before[b + 1] = sum;
            x->later += k * put_off;
        }
    }
    if (!llm) {
        x->others += sum;
        x->others_slowest = fmax(x->others_slowest, sum);
    }
}

static void find_times(const struct dt_orch_table *t, const struct config *c, struct dt_plan *spare,
                       struct times *x)
{
    const struct dt_module *llm = &t->in->model->modules[t->in->model->llm];
    int layers = layers_of(llm);

    *x = (struct times){.before = x->before};
    megatron_layouts(t, c, 1, spare);
    for (int m = 0; m < spare->n_modules; m++)
        add_times(t, spare, m, x);
    x->head = x->before[behind_layers(llm, 0)];
    x->tail = x->before[llm->n_blocks] - x->before[behind_layers(llm, layers)];
    x->layer = (x->before[llm->n_blocks] - x->head - x->tail) / layers;
}

/* Seconds of an iteration whose LLM's slowest stage takes so long: all stages once, then the slowest for every other
 * microbatch. */
static double by_stages_s(const struct dt_orch_table *t, const struct config *c,
                          const struct times *x, double slowest)
{
    int64_t slots = t->in->policy.global_batch / ((int64_t)c->microbatch * (c->dp > 0 ? c->dp : 1));
    double all = x->before[t->in->model->modules[t->in->model->llm].n_blocks];
    double fill = dt_orch_llm_warmup_s(all, x->later, slots, c->pp, c->vpp);

    return dt_orch_staged_s(x->others + fill, (double)(slots - 1), slowest, x->others_slowest,
                            dt_orch_llm_pass_s(all, x->later, fill));
}

/* Of a plan that is made. */
static double slowest_stage(const struct dt_plan_module *mp, const struct times *x)
{
    double slowest = 0;

    for (int s = 0; s < mp->layout.pp; s++) {
        double sum = 0;

        for (int v = s; v < mp->layout.pp * mp->layout.vpp; v += mp->layout.pp)
            sum += x->before[mp->split[v + 1]] - x->before[mp->split[v]];
        slowest = fmax(slowest, sum);
    }
    return slowest;
}

/* The best by that are timed, as far as the budget goes.  It knows mean samples alone, and is not alike off with chunks
 * and without: POOL of each. */
enum { POOL = 96 };

struct pool {
    struct dt_plan *plans; /* [2 * POOL], those with chunks in the second half */
    int n[2], worst[2];    /* how many, and the slowest of them */
};

static bool is_full(const struct pool *pool, bool chunks)
{
    return pool->n[chunks] == POOL;
}

static double worst_of(const struct pool *pool, bool chunks)
{
    return pool->plans[(chunks ? POOL : 0) + pool->worst[chunks]].predicted.staged_s;
}

static void keep(struct pool *pool, const struct dt_plan *p, bool chunks)
{
    struct dt_plan *half = pool->plans + (chunks ? POOL : 0);
    int *worst = &pool->worst[chunks];

    if (!is_full(pool, chunks))
        half[pool->n[chunks]++] = *p;
    else if (p->predicted.staged_s < worst_of(pool, chunks))
        half[*worst] = *p;
    for (int i = 0; i < pool->n[chunks]; i++)
        if (half[i].predicted.staged_s > half[*worst].predicted.staged_s)
            *worst = i;
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

/* ---- how layers are dealt ---- */

/* What one of a configuration's deals takes, near enough: layers are hardly unlike. */
struct rated {
    struct deal deal;
    double slowest,
        ends; /* seconds of a microbatch: the slowest stage; of the first and last the slower */
};
enum { DEALS = 32, DEALS_KEPT = 8 }; /* looked at, and kept if they fit, of a configuration */

struct deals {
    struct rated best[DEALS]; /* the best first */
    int n;
};

static bool is_better(const struct rated *a, const struct rated *b)
{
    return a->slowest != b->slowest ? a->slowest < b->slowest : a->ends < b->ends;
}

static void rate(const struct config *c, const struct times *x, const struct deal *d,
                 struct deals *out)
{
    double first = x->head + x->layer * (d->first * c->vpp - d->embedding);
    double last = x->tail + x->layer * ((c->pp > 1 ? d->last : d->first) * c->vpp - d->loss);
    double middle = c->pp > 2 ? x->layer * d->middle * c->vpp : 0;
    struct rated r = {*d, fmax(middle, fmax(first, last)), fmax(first, last)};
    int at = out->n;

    if (out->n == DEALS && !is_better(&r, &out->best[DEALS - 1]))
        return;
    at = out->n < DEALS ? out->n++ : DEALS - 1;
    for (; at > 0 && is_better(&r, &out->best[at - 1]); at--)
        out->best[at] = out->best[at - 1];
    out->best[at] = r;
}

/* First and last stages of other lengths than the others: each stated, or as all others are. */
static void rate_ends(const struct config *c, const struct times *x, int layers, struct deals *out)
{
    int middle_stages = c->pp - 2;

    for (int q = middle_stages > 0 ? 1 : 0; q * middle_stages * c->vpp < layers; q++) {
        int ends = layers / c->vpp - q * middle_stages; /* of a chunk */

        for (int first = 1; first < ends; first++) {
            struct deal d = {first, q, ends - first, 0, 0};

            if (first != q || ends - first != q)
                rate(c, x, &d, out);
        }
        if (middle_stages == 0)
            return;
    }
}

/* Megatron-LM does not state both: ends of their own, and what counts as a layer. */
static void rate_deals(const struct config *c, const struct times *x, int layers, struct deals *out)
{
    int parts = c->pp * c->vpp;

    out->n = 0;
    for (int counted = 0; counted < 4; counted++) {
        struct deal d = even(layers + (counted & 1) + (counted >> 1), parts);

        d.embedding = counted & 1;
        d.loss = counted >> 1;
        if ((layers + d.embedding + d.loss) % parts == 0 && d.first > 0 &&
            (counted == 0 || c->pp > 1))
            rate(c, x, &d, out);
    }
    if (c->pp > 1 && layers % c->vpp == 0)
        rate_ends(c, x, layers, out);
}

/* A configuration with the best of its deals that fit. */
static enum dt_status try_deals(struct dt_orch_table *t, struct config *c, const struct times *x,
                                const struct deals *deals, struct pool *pool, struct dt_plan *spare,
                                struct dt_error *err, int64_t *candidates)
{
    const bool chunks = c->vpp > 1;
    int kept = 0;

    for (int i = 0; i < deals->n && kept < DEALS_KEPT; i++) {
        bool ok;

        if (is_full(pool, chunks) &&
            by_stages_s(t, c, x, deals->best[i].slowest) > worst_of(pool, chunks))
            return DT_OK;
        c->deal = deals->best[i].deal;
        ++*candidates;
        DT_TRY(try_plan(t, c, err, spare, &ok));
        if (!ok)
            continue;
        spare->predicted.staged_s = /* until it is ranked */
            by_stages_s(t, c, x, slowest_stage(&spare->modules[t->in->model->llm], x));
        keep(pool, spare, chunks);
        kept++;
    }
    return DT_OK;
}

/* Fewer replicas may have less to exchange, or a stage more. */
static enum dt_status try_config(struct dt_orch_table *t, struct config *c, const struct times *x,
                                 struct pool *pool, struct dt_plan *spare, struct dt_error *err,
                                 int64_t *candidates)
{
    struct deals deals;

    if (c->pp * c->vpp > DT_MAX_VSTAGES || (c->vpp > 1 && c->pp == 1))
        return DT_OK;
    rate_deals(c, x, layers_of(&t->in->model->modules[t->in->model->llm]), &deals);
    c->dp = replicas_of(t, c, INT_MAX);
    do
        DT_TRY(try_deals(t, c, x, &deals, pool, spare, err, candidates));
    while ((c->dp = replicas_of(t, c, c->dp - 1)) > 0);
    return DT_OK;
}

/* All depths and chunks of what one lane, microbatch and recomputation allow. */
static enum dt_status all_depths(struct dt_orch_table *t, struct config *c, const struct times *x,
                                 struct pool *pool, struct dt_plan *spare, struct dt_error *err,
                                 int64_t *candidates)
{
    const struct dt_orch_space *s = &t->space;
    int layers = layers_of(&t->in->model->modules[t->in->model->llm]);
    int stated = t->in->opt.megatron_pp, most = stated > 0 ? stated : layers + 2;

    for (int i = 0; i < s->n_pipes; i++)
        for (int pp = stated > 0 ? stated : 1; pp <= most; pp++) {
            c->vpp = s->pipe[i].vpp;
            c->schedule = s->pipe[i].schedule;
            c->pp = pp;
            if (!(s->whole && s->pipe[i].split))
                DT_TRY(try_config(t, c, x, pool, spare, err, candidates));
        }
    return DT_OK;
}

/* All that one layout for the whole model and one policy allow: TP, CP, EP, PP, chunks, how layers are dealt, microbatch,
 * recomputation, as far as they are not stated.  Megatron-LM does not split backwards. */
static enum dt_status all_configs(struct dt_orch_table *t, struct pool *pool, struct dt_plan *spare,
                                  struct dt_error *err, int64_t *candidates)
{
    const struct dt_orch_space *s = &t->space;
    const struct dt_orch_modes *o = &s->of[t->in->model->llm];
    struct times x = {.before =
                          dt_calloc((size_t)t->in->model->modules[t->in->model->llm].n_blocks + 1,
                                    sizeof(*x.before))};
    enum dt_status st = x.before ? DT_OK : dt_error_nomem(err, "times of blocks");

    for (int k = 0; st == DT_OK && k < o->n_lanes * s->n_microbatches * o->n_recompute; k++) {
        struct config c = {.lane = o->lane[k / o->n_recompute / s->n_microbatches],
                           .pp = 1,
                           .vpp = 1,
                           .microbatch = s->microbatch[k / o->n_recompute % s->n_microbatches],
                           .schedule = s->whole ? DT_SCHED_1F1B : s->pipe[0].schedule,
                           .recompute = o->recompute[k % o->n_recompute]};

        if (!is_one_policy(t, &c))
            continue;
        find_times(t, &c, spare, &x);
        st = all_depths(t, &c, &x, pool, spare, err, candidates);
    }
    dt_free(x.before);
    return st;
}

static enum dt_status searched(struct dt_orch_table *t, struct dt_error *err, struct dt_plan *plans,
                               int *n, int64_t *candidates)
{
    struct dt_plan *spare = dt_malloc(sizeof(*spare));
    struct pool pool = {plans, {0, 0}, {0, 0}};
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

/* Two that are stated unlike leave the LLM none that is that of all. */
static enum dt_status check_recompute(const struct dt_orch_table *t, struct dt_error *err)
{
    const struct dt_model *model = t->in->model;
    int first = -1;

    for (int m = 0; m < model->n_modules && t->space.of[model->llm].n_recompute > 1; m++) {
        const struct dt_orch_modes *o = &t->space.of[m];

        if (o->n_recompute > 1)
            continue;
        first = first < 0 ? m : first;
        if (o->recompute[0] != t->space.of[first].recompute[0])
            return dt_error_set(err, DT_ERR_INPUT,
                                "recompute: strategy megatron-lm has one for all modules, and %s "
                                "is stated of %s, %s of %s; state that of %s, too",
                                dt_block_recompute_names[t->space.of[first].recompute[0]],
                                model->modules[first].name,
                                dt_block_recompute_names[o->recompute[0]], model->modules[m].name,
                                model->modules[model->llm].name);
    }
    return DT_OK;
}

static enum dt_status plan(struct dt_orch_table *t, struct dt_error *err,
                           struct dt_search_result *out)
{
    int stated = t->in->opt.megatron_pp, n = 0;
    int layers = layers_of(&t->in->model->modules[t->in->model->llm]);
    struct dt_plan *plans;
    enum dt_status st;

    if (stated > layers + 2) /* the embedding and the loss may stand alone */
        return dt_error_set(err, DT_ERR_INPUT,
                            "search.megatron_pp: %d stages are more than the %d layers of module "
                            "%s can be dealt to",
                            stated, layers, t->in->model->modules[t->in->model->llm].name);
    DT_TRY(check_recompute(t, err));
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
    y->intra_reorder = y->inter_reorder = y->batch_reorder = false;
    y->stepccl = false;
    y->overlap_grad = y->overlap_param = true;
}

const struct dt_orch_planner dt_orch_planner_megatron = {.plan = plan, .policy = policy};
