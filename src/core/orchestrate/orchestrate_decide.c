/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Why a plan is as it is, dimension by dimension: the same search once more for each alternative, with that dimension
 * fixed to it and everything else open.  What it finds is the price of the alternative, what it cannot find the reason
 * against it.  A descent that begins elsewhere may also end in a faster plan: then that is the plan, and its decisions are
 * explained. */
#include "base/mem.h"
#include "base/text.h"
#include "core/orchestrate/orchestrate_internal.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* As strategy_disttrain.c: hardly ever do all replicas take so much less than those that the search compared. */
#define LEAD 0.01
/* An alternative that is so much faster becomes the plan; as orchestrate_polish.c, less is no gain. */
#define GAIN 3e-4

/* Of the search for one alternative. */
enum {
    NEIGHBOURS = 250000,           /* ops of neighbours that it may time */
    BUDGET = DT_SEARCH_BUDGET / 4, /* of others, where it has to look everywhere */
    WHOLE = 2,                     /* plans that are timed whole */
    ROUNDS = 8,                    /* each begins with a faster plan */
};

const char *const dt_orch_dimension_names[DT_ORCH_DIMENSION_N + 1] = {
    [DT_ORCH_SCHEDULE] = "schedule",
    [DT_ORCH_VPP] = "vpp",
    [DT_ORCH_MICROBATCH] = "microbatch",
    [DT_ORCH_RECOMPUTE] = "recompute",
    [DT_ORCH_ZERO] = "zero",
    [DT_ORCH_OFFLOAD] = "offload",
    [DT_ORCH_TP] = "tp",
    [DT_ORCH_CP] = "cp",
    [DT_ORCH_EP] = "ep",
    [DT_ORCH_PLACEMENT] = "placement",
};

struct asking {
    const struct dt_search_input *in;
    enum dt_plan_strategy strategy;
    const struct dt_search_result *found;
    const struct dt_plan *best; /* of these */
    /* Its timeline, as it is stated, to that of all replicas: many replicas are timed by some of them. */
    double scale;
    struct dt_orch_decisions *out;
    struct dt_plan
        fastest; /* of the alternatives, if it is faster than the best; else without modules */
    char by[96]; /* which one that is */
    enum dt_orch_dimension dimension;
    int module; /* -1: of the whole plan */
};

static void add(struct asking *a, const struct dt_orch_decision *d)
{
    if (a->out->n < DT_ORCH_DECISIONS_MAX)
        a->out->d[a->out->n++] = *d;
}

/* What the chosen plan's module would hold in its largest stage with another recomputation, level of ZeRO or offload. */
static void same_layout(const struct asking *a, int value, struct dt_orch_decision *d)
{
    const struct dt_search_input *in = a->in;
    struct dt_work work[DT_MAX_MODULES];
    struct dt_plan p = *a->best;
    struct dt_memory mem;

    if (a->dimension == DT_ORCH_RECOMPUTE)
        p.modules[a->module].recompute = (enum dt_block_recompute)value;
    else if (a->dimension == DT_ORCH_ZERO)
        p.modules[a->module].zero = value;
    else if (a->dimension == DT_ORCH_OFFLOAD)
        p.modules[a->module].offload = (enum dt_plan_offload)value;
    else
        return;
    if (dt_plan_check_offload(&p, in->model, a->module, in->cluster, NULL) != DT_OK)
        return;
    dt_search_largest_work(in, &p, work);
    for (int s = 0; s < p.modules[a->module].layout.pp; s++) {
        dt_memory_stage(&p, in->model, in->cluster, a->module, s, &work[a->module],
                        dt_plan_slots(&p, in->model->llm), &mem);
        if (mem.total > d->same_bytes) {
            d->same_bytes = mem.total;
            d->same_stage = s;
        }
    }
}

/* The least timeline of the first plans of a result whose microbatches fit, as whole as the chosen plan's, and reordered like
 * it: the search compared some of their replicas.  Those that these put behind a whole one are not timed. */
static enum dt_status whole_s(const struct asking *a, const struct dt_search_input *in,
                              const struct dt_search_result *r, struct dt_error *err,
                              struct dt_plan *best, double *least)
{
    int n = 0;

    for (int i = 0; i < r->n && n < WHOLE && r->plans[i].predicted.timeline_s > 0; i++) {
        struct dt_plan p = r->plans[i];
        double s, bytes;
        enum dt_status st;

        if (n > 0 && p.predicted.timeline_s > *least * (1 + LEAD))
            break;
        p.policy.intra_reorder = a->best->policy.intra_reorder;
        p.policy.inter_reorder = a->best->policy.inter_reorder;
        st = dt_orch_plan_timeline_s(in, &p, 0, err, &s, &bytes);
        if (st != DT_OK && st != DT_ERR_INFEASIBLE)
            return st;
        if (st != DT_OK || (n++ > 0 && s >= *least))
            continue;
        *least = p.predicted.timeline_s = s;
        p.predicted.mem_bytes_max = fmax(p.predicted.mem_bytes_max, bytes);
        *best = p;
    }
    *least *= a->scale;
    return n > 0 ? DT_OK : DT_ERR_INFEASIBLE;
}

static void note_faster(struct asking *a, const struct dt_orch_decision *d, const struct dt_plan *p)
{
    double now = a->fastest.n_modules > 0 ? a->fastest.predicted.timeline_s * a->scale
                                          : a->best->predicted.timeline_s * (1 - GAIN);
    const char *module = a->module < 0 ? "" : a->in->model->modules[a->module].name;

    if (d->seconds >= now)
        return;
    a->fastest = *p;
    snprintf(a->by, sizeof(a->by), "%.48s%s%s %s", module, *module ? " " : "",
             dt_orch_dimension_names[a->dimension], d->text);
}

/* The alternative `value`, stated by `own`. */
static enum dt_status ask(struct asking *a, struct dt_search_input *own, int value,
                          const char *text, struct dt_error *err)
{
    struct dt_orch_decision d = {.dimension = a->dimension, .module = a->module, .value = value};
    struct dt_search_result r = {0};
    struct dt_error why;
    struct dt_plan best;
    enum dt_status st;

    snprintf(d.text, sizeof(d.text), "%s", text);
    same_layout(a, value, &d);
    own->opt.budget = BUDGET;
    own->opt.neighbours = NEIGHBOURS;
    own->opt.free_intra = own->opt.free_inter = false;
    own->near = a->found;
    memset(&why, 0, sizeof(why));
    st = dt_orch_find_plans(a->strategy, own, &why, &r);
    if (st == DT_OK && own->opt.rank)
        st = whole_s(a, own, &r, &why, &best, &d.seconds);
    else if (st == DT_OK)
        d.seconds = r.plans[0].predicted.staged_s;
    dt_search_result_free(&r);
    if (st == DT_OK && own->opt.rank)
        note_faster(a, &d, &best);
    if (st == DT_ERR_INFEASIBLE || st == DT_ERR_INPUT)
        snprintf(d.why, sizeof(d.why), "%.*s", (int)sizeof(d.why) - 1, why.message);
    else if (st != DT_OK)
        return dt_error_pass(err, &why);
    add(a, &d);
    return DT_OK;
}

static void chosen(struct asking *a, int value, const char *text)
{
    struct dt_orch_decision d = {.dimension = a->dimension,
                                 .module = a->module,
                                 .value = value,
                                 .chosen = true,
                                 .seconds = a->in->opt.rank ? a->best->predicted.timeline_s
                                                            : a->best->predicted.staged_s};

    snprintf(d.text, sizeof(d.text), "%s", text);
    add(a, &d);
}

/* ---- of the whole plan ---- */

static enum dt_status schedules(struct asking *a, struct dt_error *err)
{
    unsigned set = a->in->opt.schedules;
    int best = (int)a->best->policy.schedule;

    if (!set || !(set & (set - 1)))
        return DT_OK;
    a->dimension = DT_ORCH_SCHEDULE;
    chosen(a, best, dt_pipe_schedule_names[best]);
    for (int i = 0; i < DT_SCHED_N; i++) {
        struct dt_search_input own = *a->in;

        if (i == best || !(set >> i & 1))
            continue;
        own.opt.schedules = 1U << i;
        own.policy.schedule = (enum dt_pipe_schedule)i;
        DT_TRY(ask(a, &own, i, dt_pipe_schedule_names[i], err));
    }
    return DT_OK;
}

/* A half and a quarter of the chunks. */
static enum dt_status chunks(struct asking *a, struct dt_error *err)
{
    const struct dt_plan_layout *l = &a->best->modules[a->in->model->llm].layout;
    char text[32];

    if (!dt_pipe_of(a->best->policy.schedule)->chunks || l->vpp < 2)
        return DT_OK;
    a->dimension = DT_ORCH_VPP;
    snprintf(text, sizeof(text), "%d", l->vpp);
    chosen(a, l->vpp, text);
    for (int vpp = l->vpp / 2; vpp >= 2 && vpp >= l->vpp / 4; vpp /= 2) {
        struct dt_search_input own = *a->in;

        own.opt.schedules = 1U << a->best->policy.schedule;
        own.policy.schedule = a->best->policy.schedule;
        own.opt.max_vpp = vpp;
        snprintf(text, sizeof(text), "at most %d", vpp);
        DT_TRY(ask(a, &own, vpp, text, err));
    }
    return DT_OK;
}

/* The divisors of the batch next to the one that was chosen. */
static enum dt_status microbatches(struct asking *a, struct dt_error *err)
{
    int best = a->best->policy.microbatch, most = a->in->opt.max_microbatch;
    char text[32];

    if (most < 1)
        return DT_OK;
    a->dimension = DT_ORCH_MICROBATCH;
    snprintf(text, sizeof(text), "%d", best);
    chosen(a, best, text);
    for (int step = -1; step <= 1; step += 2) {
        struct dt_search_input own = *a->in;
        int m = best + step;

        while (m >= 1 && m <= most && a->in->policy.global_batch % m != 0)
            m += step;
        if (m < 1 || m > most)
            continue;
        own.opt.max_microbatch = 0;
        own.policy.microbatch = m;
        snprintf(text, sizeof(text), "%d", m);
        DT_TRY(ask(a, &own, m, text, err));
    }
    return DT_OK;
}

/* ---- of a module ---- */

static enum dt_status recomputes(struct asking *a, struct dt_error *err)
{
    unsigned set = a->in->opt.recompute[a->module];
    int best = (int)a->best->modules[a->module].recompute;

    if (!set || !(set & (set - 1)))
        return DT_OK;
    a->dimension = DT_ORCH_RECOMPUTE;
    chosen(a, best, dt_block_recompute_names[best]);
    for (int i = 0; i < DT_ORCH_RECOMPUTE_N; i++) {
        struct dt_search_input own = *a->in;

        if (i == best || !(set >> i & 1))
            continue;
        own.opt.recompute[a->module] = 1U << i;
        DT_TRY(ask(a, &own, i, dt_block_recompute_names[i], err));
    }
    return DT_OK;
}

static enum dt_status zeros(struct asking *a, struct dt_error *err)
{
    unsigned set = a->in->opt.zero[a->module];
    int best = a->best->modules[a->module].zero;
    char text[32];

    if (!set || !(set & (set - 1)))
        return DT_OK;
    a->dimension = DT_ORCH_ZERO;
    snprintf(text, sizeof(text), "%d", best);
    chosen(a, best, text);
    for (int i = 0; i <= DT_ZERO_MAX; i++) {
        struct dt_search_input own = *a->in;

        if (i == best || !(set >> i & 1))
            continue;
        own.opt.zero[a->module] = 1U << i;
        snprintf(text, sizeof(text), "%d", i);
        DT_TRY(ask(a, &own, i, text, err));
    }
    return DT_OK;
}

/* What of the module lies on the host. */
static enum dt_status offloads(struct asking *a, struct dt_error *err)
{
    unsigned set = a->in->opt.offload[a->module];
    int best = (int)a->best->modules[a->module].offload;

    if (!set || !(set & (set - 1)))
        return DT_OK;
    a->dimension = DT_ORCH_OFFLOAD;
    chosen(a, best, dt_plan_offload_names[best]);
    for (int i = 0; i < DT_OFFLOAD_N; i++) {
        struct dt_search_input own = *a->in;
        bool leaves = i == DT_OFFLOAD_PARAMETERS || i == DT_OFFLOAD_ALL;

        if (i == best || !(set >> i & 1) ||
            (leaves && (!dt_orch_may_leave(a->strategy) || a->module >= a->in->model->llm)))
            continue;
        own.opt.offload[a->module] = 1U << i;
        DT_TRY(ask(a, &own, i, dt_plan_offload_names[i], err));
    }
    return DT_OK;
}

/* The LLM's context parallelism: none, where it has some. */
static enum dt_status contexts(struct asking *a, struct dt_error *err)
{
    const struct dt_plan_layout *l = &a->best->modules[a->in->model->llm].layout;
    struct dt_search_input own = *a->in;
    char text[32];

    if (l->cp < 2)
        return DT_OK;
    a->dimension = DT_ORCH_CP;
    snprintf(text, sizeof(text), "%d", l->cp);
    chosen(a, l->cp, text);
    own.opt.max_cp = l->cp / 2;
    snprintf(text, sizeof(text), "at most %d", l->cp / 2);
    return ask(a, &own, l->cp / 2, text, err);
}

/* Its expert parallelism: less, where it has some. */
static enum dt_status experts(struct asking *a, struct dt_error *err)
{
    const struct dt_plan_layout *l = &a->best->modules[a->in->model->llm].layout;
    struct dt_search_input own = *a->in;
    char text[32];

    if (l->ep < 2)
        return DT_OK;
    a->dimension = DT_ORCH_EP;
    snprintf(text, sizeof(text), "%d", l->ep);
    chosen(a, l->ep, text);
    own.opt.max_ep = l->ep / 2;
    snprintf(text, sizeof(text), "at most %d", l->ep / 2);
    return ask(a, &own, l->ep / 2, text, err);
}

/* Less tensor parallelism in every module than the LLM has. */
static enum dt_status tensors(struct asking *a, struct dt_error *err)
{
    int tp = a->best->modules[a->in->model->llm].layout.tp;
    unsigned all = a->in->opt.tp_mask ? a->in->opt.tp_mask : 0xfu;
    struct dt_search_input own = *a->in;
    char text[32];

    own.opt.tp_mask = all & ((unsigned)tp - 1);
    if (own.opt.tp_mask == 0)
        return DT_OK;
    a->dimension = DT_ORCH_TP;
    snprintf(text, sizeof(text), "%d", tp);
    chosen(a, tp, text);
    snprintf(text, sizeof(text), "below %d everywhere", tp);
    return ask(a, &own, tp / 2, text, err);
}

/* GPUs of their own for all modules, where some are guests. */
static enum dt_status placements(struct asking *a, struct dt_error *err)
{
    struct dt_search_input own = *a->in;
    const struct dt_plan *p = a->best;
    char text[32];
    int guests = 0;

    if (own.opt.guests == 0 || !dt_plan_shares(p) || p->colocated)
        return DT_OK;
    for (int m = 0; m < p->n_modules; m++)
        guests += p->modules[m].with > 0;
    a->dimension = DT_ORCH_PLACEMENT;
    snprintf(text, sizeof(text), "%d guest%s", guests, dt_plural(guests));
    chosen(a, guests, text);
    own.opt.guests = 0;
    return ask(a, &own, 0, "own", err);
}

static enum dt_status ask_all(struct asking *a, struct dt_error *err)
{
    DT_TRY(schedules(a, err));
    DT_TRY(chunks(a, err));
    DT_TRY(microbatches(a, err));
    DT_TRY(placements(a, err));
    for (a->module = 0; a->module < a->in->model->n_modules; a->module++) {
        DT_TRY(recomputes(a, err));
        if (a->module == a->in->model->llm) /* the others are small: their ZeRO decides nothing */
            DT_TRY(zeros(a, err));
        DT_TRY(offloads(a, err));
    }
    a->module = -1;
    DT_TRY(tensors(a, err));
    a->module = a->in->model->llm;
    DT_TRY(contexts(a, err));
    return experts(a, err);
}

/* ---- a faster one ---- */

/* The plan comes to the front of a list with room for it. */
static void put_first(struct dt_plan *plans, int *n, const struct dt_plan *p)
{
    struct dt_plan first = *p, *same = dt_orch_plan_listed(plans, *n, p);
    int before = same ? (int)(same - plans) : (*n)++;

    memmove(plans + 1, plans, (size_t)before * sizeof(*plans));
    plans[0] = first;
}

static enum dt_status make_first(struct dt_plan **plans, int *n, const struct dt_plan *p,
                                 struct dt_error *err)
{
    void *more = dt_realloc(*plans, (size_t)(*n + 1) * sizeof(**plans));

    if (!more)
        return dt_error_nomem(err, "plans");
    *plans = more;
    put_first(*plans, n, p);
    return DT_OK;
}

/* The fastest alternative becomes the plan, reordered as suits it. */
static enum dt_status adopt(const struct asking *a, struct dt_search_result *found,
                            struct dt_error *err)
{
    struct dt_search_input own = *a->in;
    int k = found->n;

    dt_orch_policy(a->strategy, &own.policy);
    DT_TRY(make_first(&found->timed, &found->n_timed, &a->fastest, err));
    DT_TRY(make_first(&found->plans, &found->n, &a->fastest, err));
    if (k >= (own.opt.k > 0 ? own.opt.k : 8))
        found->n = k;
    return dt_orch_choose_reorder(&own, &found->plans[0], err, &found->reorder);
}

/* What an earlier round found of an alternative is a plan still. */
static void remember(const struct dt_orch_decisions *before, struct dt_orch_decisions *out)
{
    for (int i = 0; i < out->n; i++)
        for (int k = 0; k < before->n && !out->d[i].chosen; k++) {
            const struct dt_orch_decision *x = &before->d[k];
            struct dt_orch_decision *d = &out->d[i];

            if (x->dimension == d->dimension && x->module == d->module && x->seconds > 0 &&
                strcmp(x->text, d->text) == 0 && (d->seconds <= 0 || x->seconds < d->seconds))
                d->seconds = x->seconds;
        }
}

/* One round around the best plan. */
static enum dt_status decide(struct asking *a, struct dt_error *err)
{
    double whole;

    a->best = &a->found->plans[0];
    a->out->n = 0;
    a->scale = 1;
    a->module = -1;
    a->fastest.n_modules = 0;
    if (a->in->opt.rank) {
        enum dt_status st = dt_orch_plan_timeline_s(a->in, a->best, 0, err, &whole, NULL);

        if (st != DT_OK && st != DT_ERR_INFEASIBLE)
            return st;
        a->scale = st == DT_OK ? a->best->predicted.timeline_s / whole : 1;
    }
    return ask_all(a, err);
}

enum dt_status dt_orch_decide(enum dt_plan_strategy strategy, const struct dt_search_input *in,
                              struct dt_search_result *found, struct dt_error *err,
                              struct dt_orch_decisions *out)
{
    struct asking a = {.in = in, .strategy = strategy, .found = found, .out = out};
    struct dt_orch_decisions *before;
    enum dt_status st = DT_OK;

    *out = (struct dt_orch_decisions){.n = 0};
    if (strategy == DT_STRATEGY_MANUAL ||
        strategy == DT_STRATEGY_ENTRAIN) /* what it chooses in follows from the loads */
        return DT_OK;
    before = dt_calloc(1, sizeof(*before)); /* too large for the stack */
    if (!before)
        return dt_error_nomem(err, "decisions");
    for (int round = 0; round < ROUNDS && st == DT_OK; round++) {
        *before = *out;
        st = decide(&a, err);
        remember(before, out);
        if (st != DT_OK || a.fastest.n_modules == 0 || strategy == DT_STRATEGY_BEST ||
            round + 1 == ROUNDS)
            break;
        if (out->searched_s <= 0)
            out->searched_s = found->plans[0].predicted.timeline_s;
        snprintf(out->by, sizeof(out->by), "%s", a.by);
        st = adopt(&a, found, err);
    }
    dt_free(before);
    return st;
}
