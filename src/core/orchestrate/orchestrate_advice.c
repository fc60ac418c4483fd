/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * What one change of the job would bring: where no plan fits, the least change of each key with which one does; where
 * one fits, the keys that are stated and cost more than GAIN.
 *
 * The search is asked as a user would ask it, with one key opened, so that an answer is what the job gives with the
 * value that is named.  A key that the search chooses anyway needs no advice. */
#include "core/orchestrate/orchestrate_internal.h"
#include "core/pipeline/pipeline.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#define GAIN 0.03
#define GIB 1073741824.0
enum {
    MICROBATCH_MOST = 16,
    NODES_MOST = 4096,
    NODES_TIMES = 64, /* so many times the cluster's are tried at most */
    MEMORY_MOST_GIB = 1024,
    STEPS = 4, /* beyond the least that fits by estimate, when microbatches are assigned */
    /* Of hints, which must not make a search slow that has found a plan: */
    HINT_LAYOUTS =
        1000000, /* costed for all of them; seen on one core: half a second to a second */
    HINT_OPS = DT_SEARCH_BUDGET / 8, /* of programs that rank the plans of one */
    HINT_VPP =
        4, /* chunks per stage, where any number of them makes too many layouts: so many times as many */
    ALL_VPP_TIMES = 15,
};

const char *const dt_orch_advice_names[DT_ADVICE_N + 1] = {
    [DT_ADVICE_STRATEGY] = "strategy",
    [DT_ADVICE_RECOMPUTE] = "recompute",
    [DT_ADVICE_ZERO] = "zero",
    [DT_ADVICE_MICROBATCH] = "microbatch",
    [DT_ADVICE_SCHEDULE] = "schedule",
    [DT_ADVICE_CP] = "cp",
    [DT_ADVICE_EP] = "ep",
    [DT_ADVICE_TP] = "tp",
    [DT_ADVICE_OFFLOAD] = "offload",
    [DT_ADVICE_GPUS] = "gpus",
    [DT_ADVICE_MEMORY] = "memory",
};

struct asked { /* the job with one key changed */
    struct dt_search_input in;
    struct dt_cluster cluster;
};

struct advisor {
    enum dt_plan_strategy strategy;
    const struct dt_search_input *in;
    struct dt_orch_advice *out;
    double layouts; /* costed so far */
};

/* ---- asking ---- */

/* The best plan of the changed job; *fits false if there is none. */
static enum dt_status ask(struct advisor *v, const struct asked *a, struct dt_error *err,
                          bool *fits, struct dt_plan *best)
{
    struct dt_search_result r;
    struct dt_error why;
    enum dt_status st = dt_orch_find_plans(v->strategy, &a->in, &why, &r);

    v->out->searches++;
    *fits = st == DT_OK;
    if (st == DT_OK) {
        v->layouts += (double)r.stats.candidates;
        *best = r.plans[0];
        dt_search_result_free(&r);
    } else if (st != DT_ERR_INFEASIBLE &&
               st != DT_ERR_INPUT) { /* what is refused does not fit either */
        return dt_error_pass(err, &why);
    }
    return DT_OK;
}

static void start(const struct advisor *v, struct asked *a)
{
    a->in = *v->in;
    a->cluster = *v->in->cluster;
    a->in.cluster = &a->cluster;
}

__attribute__((format(printf, 4, 5))) static void note(struct advisor *v,
                                                       enum dt_orch_advice_key key,
                                                       const struct dt_plan *best, const char *fmt,
                                                       ...)
{
    struct dt_orch_advice_item *x = &v->out->item[v->out->n];
    va_list ap;

    if (v->out->now_s > 0 && best->predicted.timeline_s > v->out->now_s * (1 - GAIN))
        return;
    v->out->n++;
    x->key = key;
    x->iteration_s =
        best->predicted.timeline_s > 0 ? best->predicted.timeline_s : best->predicted.staged_s;
    x->gpus = dt_plan_gpus(best);
    va_start(ap, fmt);
    vsnprintf(x->set, sizeof(x->set), fmt, ap);
    va_end(ap);
}

/* ---- keys of which the search takes sets ---- */

static bool widen(unsigned *set, unsigned all)
{
    bool narrow = *set != 0 ? (*set & all) != all : true;

    *set |= all;
    return narrow;
}

/* Opens the key; false where the search chooses from as much already. */
static bool open_key(struct asked *a, enum dt_orch_advice_key key)
{
    const struct dt_search_input *in = &a->in;
    struct dt_search_options *o = &a->in.opt;
    bool cpu = dt_cluster_is_cpu(&a->cluster), narrow = false;
    unsigned all;

    switch (key) {
    case DT_ADVICE_RECOMPUTE:
        for (int m = 0; m < in->model->n_modules; m++)
            narrow |= widen(&o->recompute[m], (1U << DT_ORCH_RECOMPUTE_N) - 1);
        return narrow;
    case DT_ADVICE_ZERO:
        for (int m = 0; m < in->model->n_modules; m++)
            narrow |= widen(&o->zero[m], (cpu ? 4U : 2U << DT_ZERO_MAX) - 1);
        return narrow;
    case DT_ADVICE_MICROBATCH:
        narrow = o->max_microbatch == 0;
        o->max_microbatch = narrow ? MICROBATCH_MOST : o->max_microbatch;
        return narrow;
    case DT_ADVICE_SCHEDULE:
        all = (1U << DT_SCHED_N) - 1 - (1U << DT_SCHED_GPIPE);
        narrow = o->schedules == 0;
        o->schedules = narrow ? all : o->schedules;
        o->max_vpp = 0;
        return narrow;
    case DT_ADVICE_CP:
        narrow = o->max_cp > 0 && !cpu;
        o->max_cp = 0;
        return narrow;
    case DT_ADVICE_EP:
        narrow = o->max_ep > 0;
        o->max_ep = 0;
        return narrow;
    case DT_ADVICE_TP:
        all = 0;
        for (int bit = 0; bit < 4; bit++)
            all |= 1 << bit <= a->cluster.gpus_per_node ? 1U << bit : 0;
        narrow = (o->tp_mask & all) != all && o->tp_mask != 0;
        o->tp_mask |= all;
        return narrow;
    case DT_ADVICE_OFFLOAD:
        for (int m = 0; m < in->model->n_modules && !cpu && a->cluster.host_bytes_per_s > 0; m++)
            narrow |= widen(&o->offload[m], 1U << in->offload[m] | ((1U << DT_OFFLOAD_N) - 1));
        return narrow;
    case DT_ADVICE_STRATEGY:
    case DT_ADVICE_GPUS:
    case DT_ADVICE_MEMORY:
    case DT_ADVICE_N:
        break;
    }
    return false;
}

static const char *value_of(const struct dt_plan_module *mp, enum dt_orch_advice_key key)
{
    static const char *const levels[DT_ZERO_MAX + 1] = {"0", "1", "2", "3"};

    return key == DT_ADVICE_ZERO      ? levels[mp->zero]
           : key == DT_ADVICE_OFFLOAD ? dt_plan_offload_names[mp->offload]
                                      : dt_block_recompute_names[mp->recompute];
}

/* A value for all modules, or a map of them; what is not offloaded need not be said. */
static void of_modules(const struct dt_plan *p, enum dt_orch_advice_key key, char *text,
                       size_t size)
{
    const char *before = "{";
    bool same = true;
    size_t n = 0;

    for (int m = 1; m < p->n_modules; m++)
        same &= value_of(&p->modules[m], key) == value_of(&p->modules[0], key);
    if (same) {
        snprintf(text, size, "%s", value_of(&p->modules[0], key));
        return;
    }
    for (int m = 0; m < p->n_modules && n < size; m++) {
        if (key == DT_ADVICE_OFFLOAD && p->modules[m].offload == DT_OFFLOAD_NONE)
            continue;
        n += (size_t)snprintf(text + n, size - n, "%s%s: %s", before, p->module_names[m],
                              value_of(&p->modules[m], key));
        before = ", ";
    }
    if (n < size)
        snprintf(text + n, size - n, "}");
}

static void note_open(struct advisor *v, const struct asked *a, enum dt_orch_advice_key key,
                      const struct dt_plan *best)
{
    const struct dt_plan_layout *llm = &best->modules[v->in->model->llm].layout;
    char text[256];
    size_t n = 0;

    switch (key) {
    case DT_ADVICE_RECOMPUTE:
    case DT_ADVICE_ZERO:
    case DT_ADVICE_OFFLOAD:
        of_modules(best, key, text, sizeof(text));
        note(v, key, best, "train.%s=%s", dt_orch_advice_names[key], text);
        break;
    case DT_ADVICE_MICROBATCH:
        note(v, key, best, "train.microbatch=%d", best->policy.microbatch);
        break;
    case DT_ADVICE_SCHEDULE:
        if (llm->vpp > 1)
            note(v, key, best, "train.schedule=%s search.max_vpp=%d",
                 dt_pipe_schedule_names[best->policy.schedule], llm->vpp);
        else
            note(v, key, best, "train.schedule=%s", dt_pipe_schedule_names[best->policy.schedule]);
        break;
    case DT_ADVICE_CP:
        note(v, key, best, "search.max_cp=%d", llm->cp);
        break;
    case DT_ADVICE_EP:
        note(v, key, best, "search.max_ep=%d", llm->ep);
        break;
    case DT_ADVICE_TP:
        for (int bit = 0; bit < 31 && n < sizeof(text); bit++)
            if (a->in.opt.tp_mask >> bit & 1)
                n += (size_t)snprintf(text + n, sizeof(text) - n, "%s%d", n ? "," : "", 1 << bit);
        note(v, key, best, "search.tp=[%s]", text);
        break;
    case DT_ADVICE_STRATEGY:
    case DT_ADVICE_GPUS:
    case DT_ADVICE_MEMORY:
    case DT_ADVICE_N:
        break;
    }
}

/* A hint is cheap: few timelines, the reordering that was chosen, recomputation of the LLM alone. */
static void cheaply(struct asked *a, const struct dt_search_input *stated,
                    const struct dt_plan *now, double layouts)
{
    struct dt_search_options *o = &a->in.opt;

    o->budget = HINT_OPS;
    o->free_intra = o->free_inter = false;
    a->in.policy.intra_reorder = now->policy.intra_reorder;
    a->in.policy.inter_reorder = now->policy.inter_reorder;
    for (int m = 0; m < stated->model->n_modules; m++)
        if (m != stated->model->llm)
            o->recompute[m] = stated->opt.recompute[m];
    if (o->max_vpp == 0 && layouts * ALL_VPP_TIMES > HINT_LAYOUTS / 2.0)
        o->max_vpp = HINT_VPP;
}

/* The opened key with the plan's value, as the job would state it. */
static void state_value(struct asked *a, const struct dt_search_input *stated,
                        enum dt_orch_advice_key key, const struct dt_plan *p)
{
    const struct dt_plan_layout *llm = &p->modules[stated->model->llm].layout;
    struct dt_search_options *o = &a->in.opt;

    switch (key) {
    case DT_ADVICE_RECOMPUTE:
    case DT_ADVICE_ZERO:
        for (int m = 0; m < p->n_modules; m++) {
            *(key == DT_ADVICE_ZERO ? &o->zero[m] : &o->recompute[m]) = 0;
            if (key == DT_ADVICE_ZERO)
                a->in.zero[m] = p->modules[m].zero;
            else
                a->in.recompute[m] = p->modules[m].recompute;
        }
        break;
    case DT_ADVICE_OFFLOAD:
        for (int m = 0; m < p->n_modules; m++) {
            o->offload[m] = 0;
            a->in.offload[m] = p->modules[m].offload;
        }
        break;
    case DT_ADVICE_MICROBATCH:
        o->max_microbatch = 0;
        a->in.policy.microbatch = p->policy.microbatch;
        break;
    case DT_ADVICE_SCHEDULE:
        o->schedules = 0;
        a->in.policy.schedule = p->policy.schedule;
        o->max_vpp = llm->vpp > 1 ? llm->vpp : stated->opt.max_vpp;
        break;
    case DT_ADVICE_CP:
        o->max_cp = llm->cp;
        break;
    case DT_ADVICE_EP:
        o->max_ep = llm->ep;
        break;
    case DT_ADVICE_TP: /* the list is the value */
    case DT_ADVICE_STRATEGY:
    case DT_ADVICE_GPUS:
    case DT_ADVICE_MEMORY:
    case DT_ADVICE_N:
        break;
    }
}

static enum dt_status advise_open(struct advisor *v, enum dt_orch_advice_key key,
                                  const struct dt_plan *now, double layouts, struct dt_error *err)
{
    /* of the layouts that the search costed: how many times as many there are with this key open, as seen */
    static const double times[DT_ADVICE_N] = {
        [DT_ADVICE_RECOMPUTE] = 3, [DT_ADVICE_ZERO] = 1, [DT_ADVICE_MICROBATCH] = 2,
        [DT_ADVICE_SCHEDULE] = 6,  [DT_ADVICE_CP] = 2,   [DT_ADVICE_EP] = 3,
        [DT_ADVICE_TP] = 4,
    };
    struct dt_plan best;
    struct asked a;
    bool fits;

    start(v, &a);
    if (!open_key(&a, key))
        return DT_OK;
    if (now && v->layouts + times[key] * layouts > HINT_LAYOUTS) {
        v->out->left_out[v->out->n_left_out++] = key;
        return DT_OK;
    }
    if (now)
        cheaply(&a, v->in, now, layouts);
    DT_TRY(ask(v, &a, err, &fits, &best));
    if (!fits)
        return DT_OK;
    /* with the value stated the search goes other ways: what is promised is what that gives */
    state_value(&a, v->in, key, &best);
    DT_TRY(ask(v, &a, err, &fits, &best));
    if (fits)
        note_open(v, &a, key, &best);
    return DT_OK;
}

/* ---- GPUs and memory: the least that is enough ---- */

static void set_amount(const struct advisor *v, enum dt_orch_advice_key key, int amount,
                       struct asked *a)
{
    int per_node = v->in->cluster->gpus_per_node;

    start(v, a);
    if (key == DT_ADVICE_MEMORY) {
        a->cluster.mem_bytes = amount * GIB;
        return;
    }
    a->in.opt.gpus = amount;
    if (amount > dt_cluster_gpus(v->in->cluster)) {
        a->cluster.nodes = (amount + per_node - 1) / per_node;
        a->in.opt.gpus = 0;
    }
}

/* Whether that much is enough: by estimate, or (`full`) with a plan that is ranked like the job's own. */
static enum dt_status enough(struct advisor *v, enum dt_orch_advice_key key, int amount, bool full,
                             struct dt_error *err, bool *fits, struct dt_plan *best)
{
    struct asked a;

    set_amount(v, key, amount, &a);
    if (!full) {
        a.in.opt.rank = false;
        a.in.opt.k = 1;
    }
    return ask(v, &a, err, fits, best);
}

static enum dt_status advise_amount(struct advisor *v, enum dt_orch_advice_key key, int little,
                                    int step, int most, struct dt_error *err)
{
    struct dt_plan best;
    int lo = little, hi = little; /* lo is not enough */
    bool fits = false;

    while (!fits) {
        lo = hi;
        if (lo >= most)
            return DT_OK;
        hi = lo < most / 2 ? 2 * lo : most;
        hi = hi < lo + step ? lo + step : hi;
        DT_TRY(enough(v, key, hi, false, err, &fits, &best));
    }
    while (hi - lo > step) {
        int mid = lo + (hi - lo) / 2 / step * step;

        mid = mid == lo ? lo + step : mid;
        DT_TRY(enough(v, key, mid, false, err, &fits, &best));
        *(fits ? &hi : &lo) = mid;
    }
    fits = false;
    for (int i = 0; i < STEPS && !fits; i++, hi += fits ? 0 : step)
        DT_TRY(enough(v, key, hi, true, err, &fits, &best));
    if (!fits)
        return DT_OK;
    if (key == DT_ADVICE_MEMORY)
        note(v, key, &best, "cluster.memory=%dGiB", hi);
    else if (hi <= dt_cluster_gpus(v->in->cluster))
        note(v, key, &best, "search.gpus=%d", hi);
    else
        note(v, key, &best, "cluster.nodes=%d",
             (hi + v->in->cluster->gpus_per_node - 1) / v->in->cluster->gpus_per_node);
    return DT_OK;
}

/* Inside the cluster if only some of its GPUs may be used, else whole nodes more. */
static enum dt_status advise_gpus(struct advisor *v, struct dt_error *err)
{
    int all = dt_cluster_gpus(v->in->cluster), per_node = v->in->cluster->gpus_per_node;
    int used = v->in->opt.gpus > 0 ? v->in->opt.gpus : all, n = v->out->n;
    int nodes = v->in->cluster->nodes;
    int most = nodes < NODES_MOST / NODES_TIMES ? nodes * NODES_TIMES : NODES_MOST;

    if (used < all)
        DT_TRY(advise_amount(v, DT_ADVICE_GPUS, used, 1, all, err));
    if (v->out->n > n || all >= most * per_node)
        return DT_OK;
    return advise_amount(v, DT_ADVICE_GPUS, all, per_node, most * per_node, err);
}

/* ---- a stated plan ---- */

static enum dt_status advise_search(struct advisor *v, struct dt_error *err)
{
    struct dt_plan best;
    struct asked a;
    bool fits;

    start(v, &a);
    a.in.manual = NULL;
    v->strategy = DT_STRATEGY_DISTTRAIN;
    DT_TRY(ask(v, &a, err, &fits, &best));
    if (fits)
        note(v, DT_ADVICE_STRATEGY, &best, "search.strategy=%s",
             dt_plan_strategy_names[v->strategy]);
    return DT_OK;
}

/* ---- */

enum dt_status dt_orch_advise(enum dt_plan_strategy strategy, const struct dt_search_input *in,
                              const struct dt_plan *now, int64_t layouts, struct dt_error *err,
                              struct dt_orch_advice *out)
{
    bool ranked = now && now->predicted.timeline_s > 0;
    bool stated = strategy == DT_STRATEGY_MANUAL;
    struct dt_orch_advice got = {.now_s = !now     ? 0
                                          : ranked ? now->predicted.timeline_s
                                                   : now->predicted.staged_s,
                                 .now_gpus = now ? dt_plan_gpus(now) : 0};
    struct advisor v = {strategy, in, &got, 0};

    if (!in || (stated && !now) || (now && !ranked)) {
        *out = got;
        return DT_OK;
    }
    if (stated)
        DT_TRY(advise_search(&v, err));
    for (int key = 0; !stated && key < DT_ADVICE_OFFLOAD; key++)
        DT_TRY(advise_open(&v, (enum dt_orch_advice_key)key, now, (double)layouts, err));
    if (!now) {
        DT_TRY(advise_open(&v, DT_ADVICE_OFFLOAD, now, (double)layouts, err));
        DT_TRY(advise_gpus(&v, err));
        DT_TRY(advise_amount(&v, DT_ADVICE_MEMORY, (int)(in->cluster->mem_bytes / GIB), 1,
                             MEMORY_MOST_GIB, err));
    }
    *out = got;
    return DT_OK;
}
