/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * The search of strategies whose other modules are all guests of the LLM: layouts of the LLM in the order of a formula,
 * around each what the strategy places there, with as little recomputation of the guests as memory allows, then
 * timelines. */
#include "core/orchestrate/orchestrate_hosted.h"
#include "base/mem.h"

#include <math.h>
#include <string.h>

enum {
    HOSTS_MAX = 96,
    PLANS_MAX = 240,
    FEW_PLANS_MAX = 2400,
    FEW_GPUS = 16, /* on so few every variant of every LLM is tried */
    SPLITS =
        100, /* of chunks of an LLM on so few whose memory is asked for, under each of these bounds */
    BOUNDS = 5,
    AGAIN = 6, /* plans whose LLMs are tried with all variants */
    WHOLE = 4,
    NEAR_MAX =
        48, /* plans near the best on few GPUs, by the turns of a rule, that are timed with bubbles */
};
/* How near. */
#define NEAR 0.2

struct host {
    double score; /* seconds of an iteration, near enough */
    struct dt_orch_cand c;
};

struct hosting {
    struct dt_orch_table *t;
    bool few; /* GPUs */
    const struct dt_orch_hosted *h;
    struct dt_search_stats *stats;
    int llm, most, n[DT_SCHED_N];
    struct host host[DT_SCHED_N][HOSTS_MAX]; /* of each schedule, the best first */
};

/* ---- layouts of the LLM ---- */

static void keep(struct hosting *w, enum dt_pipe_schedule s, const struct host *x)
{
    struct host *h = w->host[s];
    int at = w->n[s];

    if (at == w->most && h[--at].score <= x->score)
        return;
    for (; at > 0 && h[at - 1].score > x->score; at--)
        h[at] = h[at - 1];
    h[at] = *x;
    w->n[s] += w->n[s] < w->most;
}

/* The first level of ZeRO with which the LLM fits alone. */
static bool llm_fits(struct hosting *w, struct dt_orch_cand *c)
{
    struct dt_orch_table *t = w->t;
    struct dt_orch_choice *of = &c->of[w->llm];
    struct dt_orch_question q = {.m = w->llm,
                                 .pipe = c->pipe,
                                 .microbatch = c->microbatch,
                                 .dp_lm = of->dp,
                                 .pp_lm = of->pp};

    for (int m = 0; m < t->in->model->n_modules; m++)
        if (t->in->model->modules[m].role == DT_ROLE_GENERATOR)
            q.gen_pp = 1;
    for (int z = 0; z < t->space.of[w->llm].n_zero; z++) {
        of->zero = (uint8_t)z;
        q.of = *of;
        if (dt_orch_table_fits(t, &q))
            return true;
    }
    of->zero = 0;
    return w->few; /* with other splits it may */
}

static void try_host(struct hosting *w, struct host *x)
{
    struct dt_orch_table *t = w->t;
    const struct dt_orch_pipe *pipe = &t->space.pipe[x->c.pipe];
    const struct dt_orch_choice *of = &x->c.of[w->llm];
    double micro = t->space.microbatch[x->c.microbatch], base, c, later;
    struct dt_orch_times *times =
        dt_orch_times_of(t, w->llm, of->lane, of->recompute, x->c.microbatch, pipe->split);
    const struct dt_orch_stage_entry *e;
    struct dt_orch_hosted_view v = {.gpus = x->c.gpus};

    if (!times)
        return;
    v.slot = (int64_t)(of->dp * micro);
    v.steps = (double)(t->in->policy.global_batch / v.slot) - 1;
    v.passage = c = micro * times->sample_s;
    later = micro * times->later_s;
    base = dt_orch_llm_warmup_s(c, later, (int64_t)v.steps + 1, of->pp, pipe->vpp);
    x->score = base + v.steps * c / of->pp;
    if (w->n[pipe->schedule] == w->most && x->score >= w->host[pipe->schedule][w->most - 1].score)
        return;
    e = dt_orch_stage_of(t, w->llm, times, of->pp, pipe->vpp);
    if (!e)
        return;
    v.interval = micro * e->max_s;
    x->score = base + v.steps * v.interval + w->h->guests_s(t, &x->c, &v);
    w->stats->candidates++;
    if (isinf(x->score) ||
        (w->n[pipe->schedule] == w->most &&
         x->score >= w->host[pipe->schedule][w->most - 1].score) ||
        !llm_fits(w, &x->c))
        return;
    keep(w, pipe->schedule, x);
}

static void depths(struct hosting *w, struct host *x, int lane)
{
    const struct dt_orch_space *s = &w->t->space;
    int blocks = w->t->in->model->modules[w->llm].n_blocks, vpp = s->pipe[x->c.pipe].vpp;
    struct dt_orch_choice *of = &x->c.of[w->llm];

    for (int pp = vpp > 1 ? 2 : 1; pp * vpp <= blocks && pp * of->dp * lane <= w->t->gpus; pp++)
        for (int r = 0; r < s->of[w->llm].n_recompute && !w->t->nomem; r++) {
            of->pp = (int16_t)pp;
            of->recompute = (uint8_t)r;
            x->c.gpus = pp * of->dp * lane;
            try_host(w, x);
        }
}

static void find_hosts(struct hosting *w)
{
    const struct dt_orch_space *s = &w->t->space;
    int64_t batch = w->t->in->policy.global_batch;

    for (int p = 0; p < s->n_pipes; p++)
        for (int i = 0; i < s->n_microbatches; i++)
            for (int l = 0; l < s->of[w->llm].n_lanes; l++) {
                int lane = dt_orch_lane_gpus(&s->of[w->llm].lane[l]);

                for (int dp = 1; dp * lane <= w->t->gpus; dp++) {
                    struct host x = {.c = {.pipe = (uint8_t)p, .microbatch = (uint8_t)i}};

                    if (batch % ((int64_t)dp * s->microbatch[i]) != 0 ||
                        (w->t->in->opt.dp > 0 && dp != w->t->in->opt.dp))
                        continue;
                    x.c.of[w->llm].lane = (uint8_t)l;
                    x.c.of[w->llm].dp = dp;
                    depths(w, &x, lane);
                }
            }
}

/* ---- plans ---- */

bool dt_orch_hosted_split(struct dt_orch_table *t, const struct dt_orch_cand *c, int m,
                          struct dt_plan *p)
{
    const struct dt_orch_pipe *pipe = &t->space.pipe[c->pipe];
    const struct dt_orch_choice *of = &c->of[m];
    bool llm = m == t->in->model->llm;
    struct dt_orch_times *x =
        dt_orch_times_of(t, m, of->lane, of->recompute, llm ? c->microbatch : 0, pipe->split);
    int vpp = llm ? pipe->vpp : 1;
    const struct dt_orch_stage_entry *e = x ? dt_orch_stage_of(t, m, x, of->pp, vpp) : NULL;

    if (!e)
        return false;
    memcpy(p->modules[m].split, e->split, (size_t)(of->pp * vpp + 1) * sizeof(*e->split));
    return true;
}

/* The plan as it stands, if it is one and memory holds it. */
static enum dt_status settle_plan(struct dt_orch_table *t, struct dt_plan *p)
{
    const struct dt_search_input *in = t->in;

    if (dt_plan_place(p, in->cluster, NULL) != DT_OK ||
        dt_plan_validate(p, in->model, in->cluster, NULL) != DT_OK)
        return DT_ERR_INFEASIBLE;
    return dt_orch_check_expected(t, p, NULL);
}

static enum dt_status settle(struct hosting *w, struct dt_plan *p)
{
    return settle_plan(w->t, p);
}

struct splitting { /* ways of dealing the LLM's blocks to stages of several chunks */
    struct dt_orch_table *t;
    const double *block_s;
    double
        best; /* the slowest part may not take as long: a bound, then the slowest part of that in `found` */
    double asked; /* memory was asked of those whose slowest part takes less */
    double all_s; /* of all blocks */
    int blocks, parts, left;
    struct dt_plan p, found;
};

/* Parts from v on; those before take `before` seconds, the slowest of them `slowest`. */
static void try_splits(struct splitting *x, int v, double before, double slowest)
{
    uint16_t *split = x->p.modules[x->t->in->model->llm].split;
    double sum = 0;

    if (v == x->parts) {
        struct dt_plan p = x->p;

        if (slowest >= x->asked && x->left-- > 0 && settle_plan(x->t, &p) == DT_OK) {
            x->best = slowest;
            x->found = p;
        }
        return;
    }
    for (int end = split[v] + 1; end <= x->blocks - (x->parts - 1 - v); end++) {
        sum += x->block_s[end - 1];
        if (fmax(slowest, sum) >= x->best || x->left <= 0)
            return;
        if (v + 1 == x->parts && end < x->blocks)
            continue;
        if (v + 1 < x->parts && x->all_s - before - sum >= x->best * (x->parts - 1 - v))
            continue; /* the rest cannot be dealt into parts that are all faster */
        split[v + 1] = (uint16_t)end;
        try_splits(x, v + 1, before + sum, fmax(slowest, sum));
    }
}

/* Parts that are nearly even first, then such as are less and less: in the order of their blocks alone the first to be asked
 * for would be those with one block for every part but the last. */
static bool widen(struct splitting *x)
{
    static const double times_even[BOUNDS] = {1.1, 1.25, 1.5, 2, HUGE_VAL};
    bool found = false;

    for (int i = 0; i < BOUNDS && !found; i++) {
        double bound = x->all_s / x->parts * times_even[i];

        x->best = bound;
        x->left = SPLITS;
        try_splits(x, 0, 0, 0);
        found = x->best < bound;
        x->asked = bound;
    }
    return found;
}

bool dt_orch_hosted_chunks(struct dt_orch_table *t, const struct dt_orch_times *times,
                           struct dt_plan *p)
{
    const int llm = t->in->model->llm;
    const struct dt_plan_layout *l = &p->modules[llm].layout;
    struct splitting *x = dt_calloc(1, sizeof(*x)); /* plans are too large for the stack */
    bool found;

    if (!x) {
        t->nomem = true;
        return false;
    }
    *x = (struct splitting){.t = t,
                            .block_s = times->block_s,
                            .blocks = t->in->model->modules[llm].n_blocks,
                            .parts = l->pp * l->vpp,
                            .p = *p};
    for (int b = 0; b < x->blocks; b++)
        x->all_s += x->block_s[b];
    found = widen(x);
    if (found)
        *p = x->found;
    dt_free(x);
    return found;
}

/* On few GPUs memory may want stages that differ: the split with the fastest slowest part of those that fit. */
static bool split_to_fit(struct hosting *w, const struct dt_orch_cand *c, struct dt_plan *p)
{
    struct dt_orch_table *t = w->t;
    const struct dt_orch_choice *of = &c->of[w->llm];
    const struct dt_plan_layout *l = &p->modules[w->llm].layout;
    struct dt_orch_times *times = dt_orch_times_of(t, w->llm, of->lane, of->recompute,
                                                   c->microbatch, t->space.pipe[c->pipe].split);

    if (!w->few || !times || !times->block_s || l->pp * l->vpp < 2 || !dt_orch_hosts_may_hold(t, p))
        return false;
    if (l->vpp > 1)
        return dt_orch_hosted_chunks(t, times, p);
    return dt_orch_split_any(t, p, w->llm, times) && settle(w, p) == DT_OK;
}

/* Guests recompute as little as fits; with more ZeRO of the LLM only where nothing fits without.  `splits`: of the LLM may be
 * changed for it. */
static bool lean_enough(struct hosting *w, const struct dt_orch_cand *c, bool splits,
                        struct dt_plan *p)
{
    const struct dt_orch_space *s = &w->t->space;
    const struct dt_plan placed = *p;
    int most = 1; /* without guests, too */

    for (int m = 0; m < p->n_modules; m++)
        most = m != w->llm && s->of[m].n_recompute > most ? s->of[m].n_recompute : most;
    for (int z = c->of[w->llm].zero; z < s->of[w->llm].n_zero; z++)
        for (int r = 0; r < most; r++) {
            *p = placed;
            p->modules[w->llm].zero = s->of[w->llm].zero[z];
            for (int m = 0; m < p->n_modules; m++) {
                const struct dt_orch_modes *o = &s->of[m];

                if (m == w->llm)
                    continue;
                p->modules[m].recompute = o->recompute[r < o->n_recompute ? r : o->n_recompute - 1];
                p->modules[m].zero = o->zero[0];
            }
            if (settle(w, p) == DT_OK || (splits && split_to_fit(w, c, p)))
                return true;
        }
    return false;
}

static bool make(struct hosting *w, const struct dt_orch_cand *c, int variant, struct dt_plan *p)
{
    struct dt_orch_table *t = w->t;
    const struct dt_orch_pipe *pipe = &t->space.pipe[c->pipe];

    dt_search_plan_init(t->in, p);
    p->strategy = w->h->strategy;
    p->policy.schedule = pipe->schedule;
    p->policy.microbatch = t->space.microbatch[c->microbatch];
    dt_orch_choice_apply(t, w->llm, &c->of[w->llm], pipe->vpp, p);
    for (int m = 0; m < p->n_modules; m++)
        p->modules[m].with = m == w->llm ? 0 : (uint8_t)(w->llm + 1);
    if (!dt_orch_hosted_split(t, c, w->llm, p) || !w->h->place(t, c, variant, p))
        return false;
    if (lean_enough(w, c, false, p))
        return true;
    if (w->few && lean_enough(w, c, true, p))
        return true;
    dt_orch_note_unfit(t, p); /* with the least that it may hold */
    return false;
}

/* Plan after plan of the LLMs in turn, the likeliest variant of each first. */
static int list(struct hosting *w, struct dt_plan *plans, int room)
{
    int n = 0;

    for (int k = 0; k < w->h->variants; k++)
        for (int i = 0; i < w->most; i++)
            for (int s = 0; s < DT_SCHED_N && n < room; s++)
                if (i < w->n[s] && make(w, &w->host[s][i].c, k, &plans[n]) &&
                    !dt_orch_plan_listed_split(plans, n, &plans[n]))
                    n++;
    return n;
}

static const struct dt_orch_cand *host_of(const struct hosting *w, const struct dt_plan *p)
{
    const struct dt_plan_module *mp = &p->modules[w->llm];
    const struct dt_orch_space *s = &w->t->space;

    for (int i = 0; i < w->n[p->policy.schedule]; i++) {
        const struct dt_orch_cand *c = &w->host[p->policy.schedule][i].c;
        const struct dt_orch_choice *of = &c->of[w->llm];

        if (s->pipe[c->pipe].vpp == mp->layout.vpp &&
            s->microbatch[c->microbatch] == p->policy.microbatch && of->dp == mp->layout.dp &&
            of->pp == mp->layout.pp && of->lane == dt_orch_space_lane(w->t, w->llm, &mp->layout) &&
            s->of[w->llm].recompute[of->recompute] == mp->recompute)
            return c;
    }
    return NULL;
}

/* By timelines, as far as a budget of its own goes; without ranking by the formula. */
static enum dt_status rank(struct dt_orch_table *t, struct dt_plan *plans, int *n,
                           struct dt_error *err)
{
    int64_t spent = t->ops;
    enum dt_status st;

    t->ops = 0;
    st = dt_orch_rank(t, plans, n, true, err);
    t->ops += spent;
    return st == DT_OK && *n > 1 ? dt_orch_sort(plans, *n, err) : st;
}

/* All variants around the LLMs of the best plans, beside these. */
static enum dt_status again(struct hosting *w, struct dt_plan *plans, int *n, int room,
                            struct dt_error *err)
{
    int best = *n < AGAIN ? *n : AGAIN, all = best;

    for (int i = 0; i < best; i++) {
        const struct dt_orch_cand *c = host_of(w, &plans[i]);

        for (int k = 0; c && k < w->h->variants && all < room; k++)
            if (make(w, c, k, &plans[all]) && !dt_orch_plan_listed_split(plans, all, &plans[all]))
                all++;
    }
    *n = all;
    return rank(w->t, plans, n, err);
}

/* ---- one thing at a time ---- */

/* Generators whose replicas take samples share items, and the other way round. */
static void turn_items(const struct hosting *w, struct dt_plan *p)
{
    for (int m = w->llm + 1; m < p->n_modules; m++)
        p->modules[m].window = p->modules[m].window == 0;
}

static bool regroup(const struct hosting *w, int k, struct dt_plan *p)
{
    struct dt_plan_module *mp = &p->modules[k / DT_ORCH_GROUPS];
    int group = dt_orch_group_of(w->t, mp, k % DT_ORCH_GROUPS);

    if (group >= 0)
        mp->zero_group = group;
    return group >= 0;
}

/* Window number k of encoders, in slots: one longer or shorter, twice or half as long; on few GPUs also the shortest ones, as
 * between a longer and a shorter one that are slower may be one that is not. */
enum { NEAR_WINDOWS = 4, SHORT_WINDOWS = 16 };
static int64_t window_of(const struct hosting *w, const struct dt_plan *p, int k)
{
    int64_t now = dt_plan_window(p, w->llm, 0);
    const int64_t near[NEAR_WINDOWS] = {now - 1, now + 1, now / 2, 2 * now};

    return k < NEAR_WINDOWS ? near[k] : k - NEAR_WINDOWS + 1;
}

static bool give_window(const struct hosting *w, int k, struct dt_plan *p)
{
    int64_t window = window_of(w, p, k), slots = dt_plan_slots(p, w->llm);

    if (window < 1 || window > slots || window == dt_plan_window(p, w->llm, 0))
        return false;
    for (int m = 0; m < w->llm; m++)
        p->modules[m].window = window == slots ? DT_PLAN_WINDOW_ALL : (int)window;
    return true;
}

/* A boundary between two of so many parts one block on or back, or (few GPUs) a block from any part to any other, those between
 * passing one on. */
static int moves_of(const struct hosting *w, int parts)
{
    return w->few ? parts * (parts - 1) : 2 * (parts - 1);
}

static void move_block(const struct hosting *w, int k, int parts, uint16_t *split)
{
    int from = k / 2, to = k / 2 + 1;

    if (w->few) {
        from = k / (parts - 1);
        to = k % (parts - 1);
        to += to >= from;
    } else if (k % 2 == 1) {
        from++;
        to--;
    }
    for (int v = from + 1; v <= to; v++)
        split[v]--;
    for (int v = to + 1; v <= from; v++)
        split[v]++;
}

/* Neighbour number k of a plan: a block of the LLM elsewhere, or an encoder's window, or what generators share, or a module's group;
 * false: that is none.  *last: there are no more. */
static bool neighbour(const struct hosting *w, int k, struct dt_plan *p, bool *last)
{
    struct dt_plan_module *llm = &p->modules[w->llm];
    int parts = llm->layout.pp * llm->layout.vpp, moves = moves_of(w, parts);
    int windows = w->llm == 0 || p->modules[0].window == 0 ? 0
                  : w->few                                 ? NEAR_WINDOWS + SHORT_WINDOWS
                                                           : NEAR_WINDOWS;
    int grouped = moves + windows + (w->h->drawn && w->llm + 1 < p->n_modules);

    *last = k >= grouped + (w->h->groups ? DT_ORCH_GROUPS * p->n_modules : 0);
    if (*last)
        return false;
    if (k >= grouped)
        return regroup(w, k - grouped, p);
    if (k < moves) {
        move_block(w, k, parts, llm->split);
        return true;
    }
    if (k == moves + windows) {
        turn_items(w, p);
        return true;
    }
    return give_window(w, k - moves, p);
}

/* The time of a plan that settled, whose guests take turns by a rule, or (few GPUs) are placed into bubbles; HUGE_VAL: what is
 * assigned does not fit. */
static enum dt_status time_it(struct hosting *w, struct dt_plan *p, struct dt_error *err,
                              double *seconds)
{
    struct dt_error why;
    bool closer;
    enum dt_status st =
        w->few ? dt_orch_plan_timeline_s(w->t->in, p, 0, &why, &p->predicted.timeline_s, NULL)
               : dt_orch_time_plan(w->t, p, 0, HUGE_VAL, HUGE_VAL, &why, &closer);

    *seconds = st == DT_OK ? p->predicted.timeline_s : HUGE_VAL;
    return st == DT_OK || st == DT_ERR_INFEASIBLE ? DT_OK : dt_error_pass(err, &why);
}

/* The plan after the last step that made it faster; *ops are what is left to spend. */
static enum dt_status descend(struct hosting *w, struct dt_plan *p, double *ops,
                              struct dt_error *err)
{
    struct dt_orch_table *t = w->t;
    bool last = false;

    for (int k = 0; !last && *ops > 0; k++) {
        struct dt_plan q = *p;
        double s;

        if (!neighbour(w, k, &q, &last) || settle(w, &q) != DT_OK)
            continue;
        *ops -= dt_orch_look_ops(t, &q, 0);
        DT_TRY(time_it(w, &q, err, &s));
        if (s < p->predicted.timeline_s) {
            *p = q;
            k = -1; /* from the beginning */
        }
    }
    return DT_OK;
}

/* Guests' work in bubbles may turn the order of those that come near the best. */
static enum dt_status time_near(struct hosting *w, struct dt_plan *plans, int n,
                                struct dt_error *err)
{
    double limit = plans[0].predicted.timeline_s * (1 + NEAR), s;
    int near = 0;

    for (; near < n && near < NEAR_MAX && plans[near].predicted.timeline_s > 0; near++) {
        if (plans[near].predicted.timeline_s > limit)
            break;
        DT_TRY(time_it(w, &plans[near], err, &s));
    }
    return near > 1 ? dt_orch_sort(plans, near, err) : DT_OK;
}

/* The best plans, each as fast as single steps make it. */
static enum dt_status polish(struct hosting *w, struct dt_plan *plans, int n, struct dt_error *err)
{
    double ops = (double)w->t->in->opt.neighbours;

    if (ops <= 0)
        ops = dt_orch_effort_of(w->t->in)->polish * (double)dt_orch_budget(w->t->in) / AGAIN;
    if (w->few)
        DT_TRY(time_near(w, plans, n, err));
    for (int i = 0; i < n && i < AGAIN; i++)
        if (plans[i].predicted.timeline_s > 0)
            DT_TRY(descend(w, &plans[i], &ops, err));
    return dt_orch_sort(plans, n, err);
}

static enum dt_status plans_of(struct hosting *w, bool few, struct dt_error *err,
                               struct dt_search_result *out)
{
    int room = few ? FEW_PLANS_MAX : PLANS_MAX, n;
    int kept = w->t->in->opt.k > 0 ? w->t->in->opt.k : 8;
    struct dt_plan *plans = dt_calloc((size_t)room, sizeof(*plans));
    enum dt_status st;

    if (!plans)
        return dt_error_nomem(err, "plans");
    find_hosts(w);
    n = list(w, plans, room);
    st = w->t->nomem ? dt_error_nomem(err, "planner search") : DT_OK;
    if (st == DT_OK && n > 0)
        st = rank(w->t, plans, &n, err);
    if (st == DT_OK && n > 0 && !few && w->t->in->opt.rank)
        st = again(w, plans, &n, room, err);
    if (st == DT_OK && n > 0 && w->t->in->opt.rank)
        st = polish(w, plans, n, err);
    if (st == DT_OK && n == 0)
        st = dt_orch_infeasible(w->t, err);
    if (st != DT_OK) {
        dt_free(plans);
        return st;
    }
    out->plans = plans;
    out->n = n < kept ? n : kept;
    return dt_orch_time_whole(w->t, err, out);
}

enum dt_status dt_orch_hosted_plans(struct dt_orch_table *t, const struct dt_orch_hosted *h,
                                    struct dt_error *err, struct dt_search_result *out)
{
    bool few = t->gpus <= FEW_GPUS;
    struct hosting *w = dt_calloc(1, sizeof(*w));
    enum dt_status st;

    if (!w)
        return dt_error_nomem(err, "planner search");
    *w = (struct hosting){.t = t,
                          .few = few,
                          .h = h,
                          .stats = &out->stats,
                          .llm = t->in->model->llm,
                          .most = few ? HOSTS_MAX : dt_orch_effort_of(t->in)->hosts};
    st = plans_of(w, few, err, out);
    dt_free(w);
    return st;
}

/* ---- whole ---- */

enum dt_status dt_orch_time_whole(struct dt_orch_table *t, struct dt_error *err,
                                  struct dt_search_result *out)
{
    double most = dt_orch_effort_of(t->in)->rank_ops;
    struct dt_error last = {0};
    int kept = 0, n = out->n < WHOLE ? out->n : WHOLE;

    if (!t->in->opt.rank || t->in->opt.effort == DT_EFFORT_QUICK)
        return DT_OK;
    for (int i = 0; i < out->n; i++) {
        struct dt_plan p = out->plans[i];
        double ops = dt_orch_plan_ops(&p, t->in->model->llm);
        enum dt_status st = DT_OK;

        if (i < n && ops > most && p.predicted.timeline_s > 0) {
            t->ops += (int64_t)ops;
            st = dt_orch_plan_timeline_s(t->in, &p, 0, &last, &p.predicted.timeline_s,
                                         &p.predicted.mem_bytes_max);
        }
        if (st == DT_OK)
            out->plans[kept++] = p;
        else if (st != DT_ERR_INFEASIBLE)
            return dt_error_pass(err, &last);
        n -= st == DT_ERR_INFEASIBLE;
    }
    out->n = kept;
    if (kept == 0) {
        if (err)
            *err = last;
        return DT_ERR_INFEASIBLE;
    }
    return n > 1 ? dt_orch_sort(out->plans, n, err) : DT_OK;
}
