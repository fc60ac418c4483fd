/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * The search of strategies whose other modules are all guests of the LLM: layouts of the LLM in the order of a formula,
 * around each what the strategy places there, with as little recomputation of the guests as memory allows, then
 * timelines. */
#include "core/orchestrate/orchestrate_hosted_impl.h"
#include "base/mem.h"

#include <math.h>
#include <string.h>

enum {
    PLANS_MAX = 480,
    FEW_PLANS_MAX = 2400,
    FEW_GPUS = 16, /* on so few every variant of every LLM is tried */
    /* splits of chunks of LLMs on so few, the likeliest first, whose memory may be asked for, and steps of looking for them */
    ALL_SPLITS = 30000,
    ALL_STEPS = 3000000,
    AGAIN = DT_ORCH_HOSTED_BEST, /* plans whose LLMs are tried with all variants */
    WHOLE = 4,
};

/* ---- layouts of the LLM ---- */

static void keep(struct dt_orch_hosting *w, enum dt_pipe_schedule s,
                 const struct dt_orch_host_lm *x)
{
    struct dt_orch_host_lm *h = w->host[s];
    int at = w->n[s];

    if (at == w->most && h[--at].score <= x->score)
        return;
    for (; at > 0 && h[at - 1].score > x->score; at--)
        h[at] = h[at - 1];
    h[at] = *x;
    w->n[s] += w->n[s] < w->most;
}

/* The first level of ZeRO with which the LLM fits alone. */
static bool llm_fits(struct dt_orch_hosting *w, struct dt_orch_cand *c)
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

static void try_host(struct dt_orch_hosting *w, struct dt_orch_host_lm *x)
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

static void depths(struct dt_orch_hosting *w, struct dt_orch_host_lm *x, int lane)
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

static void find_hosts(struct dt_orch_hosting *w)
{
    const struct dt_orch_space *s = &w->t->space;
    int64_t batch = w->t->in->policy.global_batch;

    for (int p = 0; p < s->n_pipes; p++)
        for (int i = 0; i < s->n_microbatches; i++)
            for (int l = 0; l < s->of[w->llm].n_lanes; l++) {
                int lane = dt_orch_lane_gpus(&s->of[w->llm].lane[l]);

                for (int dp = 1; dp * lane <= w->t->gpus; dp++) {
                    struct dt_orch_host_lm x = {
                        .c = {.pipe = (uint8_t)p, .microbatch = (uint8_t)i}};

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

enum dt_status dt_orch_hosted_settle(struct dt_orch_table *t, struct dt_plan *p)
{
    const struct dt_search_input *in = t->in;

    if (dt_plan_place(p, in->cluster, NULL) != DT_OK ||
        dt_plan_validate(p, in->model, in->cluster, NULL) != DT_OK)
        return DT_ERR_INFEASIBLE;
    return dt_orch_check_expected(t, p, NULL);
}

/* On few GPUs memory may want stages that differ: the split with the fastest slowest part of those that fit. */
static bool split_to_fit(struct dt_orch_hosting *w, const struct dt_orch_cand *c, struct dt_plan *p)
{
    struct dt_orch_table *t = w->t;
    const struct dt_orch_choice *of = &c->of[w->llm];
    const struct dt_plan_layout *l = &p->modules[w->llm].layout;
    struct dt_orch_times *times = dt_orch_times_of(t, w->llm, of->lane, of->recompute,
                                                   c->microbatch, t->space.pipe[c->pipe].split);

    if (!w->few || !times || !times->block_s || l->pp * l->vpp < 2 || !dt_orch_hosts_may_hold(t, p))
        return false;
    if (l->vpp > 1)
        return dt_orch_hosted_chunks(t, times, &w->left, p);
    return dt_orch_split_any(t, p, w->llm, times) && dt_orch_hosted_settle(w->t, p) == DT_OK;
}

/* ---- what guests hold ---- */

enum { LEAVE = 1U << DT_OFFLOAD_PARAMETERS | 1U << DT_OFFLOAD_ALL };

bool dt_orch_hosted_may_leave(const struct dt_orch_hosting *w, int m)
{
    return m < w->llm && (w->t->space.of[m].offloads & LEAVE) != 0;
}

bool dt_orch_hosted_may_stay(const struct dt_orch_hosting *w, int m)
{
    return (w->t->space.of[m].offloads & ~LEAVE) != 0;
}

bool dt_orch_hosted_can_leave(const struct dt_orch_hosting *w, struct dt_plan *p, int m)
{
    enum dt_plan_offload stated = p->modules[m].offload;
    bool can;

    if (!dt_orch_hosted_may_leave(w, m))
        return false;
    p->modules[m].offload = DT_OFFLOAD_PARAMETERS;
    can = dt_plan_check_offload(p, w->t->in->model, m, w->t->in->cluster, NULL) == DT_OK;
    p->modules[m].offload = stated;
    return can;
}

/* Whose parameters leave between phases: of all guests that can, if `leave`, else of those that have to.  False: there is no such
 * plan. */
static bool who_leaves(const struct dt_orch_hosting *w, struct dt_plan *p, bool leave,
                       bool leaves[DT_MAX_MODULES])
{
    bool any = false;

    for (int m = 0; m < p->n_modules; m++) {
        bool stay = dt_orch_hosted_may_stay(w, m);

        leaves[m] = (leave || !stay) && dt_orch_hosted_can_leave(w, p, m);
        if (!stay && !leaves[m])
            return false;
        any |= leaves[m];
    }
    return any || !leave;
}

struct making { /* of plans around an LLM */
    const struct dt_orch_cand *c;
    int variant;
    bool leave;       /* the parameters of guests, between phases, where they can */
    bool llm_on_host; /* its masters and moments */
    bool guests_on_host;
    bool splits; /* of the LLM may be changed for memory */
};

/* The LLM's states number `zero`, and guests' recomputation number r. */
static void make_lean(const struct dt_orch_hosting *w, const struct making *x, int zero, int r,
                      const bool leaves[DT_MAX_MODULES], struct dt_plan *p)
{
    for (int m = 0; m < p->n_modules; m++) {
        const struct dt_orch_modes *o = &w->t->space.of[m];
        int z = m == w->llm ? zero : dt_orch_state_of(o, x->guests_on_host);

        dt_orch_states_apply(o, z > 0 ? z : 0, leaves[m], &p->modules[m]);
        if (m != w->llm)
            p->modules[m].recompute = o->recompute[r < o->n_recompute ? r : o->n_recompute - 1];
    }
}

/* Guests recompute as little as fits; with more ZeRO of the LLM only where nothing fits without.  Splits may be changed for it from
 * the first ZeRO on. */
static bool lean_enough(struct dt_orch_hosting *w, const struct making *x,
                        const bool leaves[DT_MAX_MODULES], struct dt_plan *p)
{
    const struct dt_orch_space *s = &w->t->space;
    const struct dt_orch_modes *llm = &s->of[w->llm];
    const struct dt_plan placed = *p;
    int most = 1; /* without guests, too */

    for (int m = 0; m < p->n_modules; m++)
        most = m != w->llm && s->of[m].n_recompute > most ? s->of[m].n_recompute : most;
    for (int z = x->splits ? 0 : x->c->of[w->llm].zero; z < llm->n_zero; z++)
        for (int r = 0; r < most && llm->on_host[z] == x->llm_on_host; r++) {
            *p = placed;
            make_lean(w, x, z, r, leaves, p);
            if (dt_orch_hosted_settle(w->t, p) == DT_OK || (x->splits && split_to_fit(w, x->c, p)))
                return true;
        }
    return false;
}

/* Did it have to take more of anything than it would have with more memory? */
static bool lacks_room(const struct dt_orch_hosting *w, const struct dt_plan *p)
{
    for (int m = 0; m < p->n_modules; m++)
        if (dt_orch_space_zero(w->t, m, &p->modules[m]) > 0 ||
            (m != w->llm && p->modules[m].recompute != w->t->space.of[m].recompute[0]))
            return true;
    return false;
}

/* ---- */

static bool make(struct dt_orch_hosting *w, const struct making *x, struct dt_plan *p)
{
    struct dt_orch_table *t = w->t;
    const struct dt_orch_cand *c = x->c;
    const struct dt_orch_pipe *pipe = &t->space.pipe[c->pipe];
    bool leaves[DT_MAX_MODULES];

    dt_search_plan_init(t->in, p);
    p->strategy = w->h->strategy;
    p->policy.schedule = pipe->schedule;
    p->policy.microbatch = t->space.microbatch[c->microbatch];
    dt_orch_choice_apply(t, w->llm, &c->of[w->llm], pipe->vpp, p);
    for (int m = 0; m < p->n_modules; m++)
        p->modules[m].with = m == w->llm ? 0 : (uint8_t)(w->llm + 1);
    if (!dt_orch_hosted_split(t, c, w->llm, p) || !w->h->place(t, c, x->variant, p) ||
        !who_leaves(w, p, x->leave, leaves))
        return false;
    if (lean_enough(w, x, leaves, p))
        return true;
    if (x->splits || !w->few)
        dt_orch_note_unfit(t, p); /* with the least that it may hold */
    return false;
}

/* May masters and moments of some guest lie there?  Those of the others lie where they may. */
static bool guests_may(const struct dt_orch_hosting *w, bool on_host)
{
    bool any = w->t->in->model->n_modules == 1 && !on_host;

    for (int m = 0; m < w->t->in->model->n_modules; m++)
        any |= m != w->llm && dt_orch_state_of(&w->t->space.of[m], on_host) >= 0;
    return any;
}

/* False: there is no such plan, or it is listed. */
static bool add_plan(struct dt_orch_hosting *w, const struct making *x, struct dt_plan *plans,
                     int *n)
{
    bool made = make(w, x, &plans[*n]) && !dt_orch_plan_listed_split(plans, *n, &plans[*n]);

    *n += made;
    return made;
}

/* With masters and moments where `x` has them; on few GPUs also with other splits of the LLM, where memory was short: of chunks, which
 * take long to look through, only where nothing fits. */
static bool add_split(struct dt_orch_hosting *w, struct making *x, struct dt_plan *plans, int *n,
                      int room)
{
    int before = *n;

    x->splits = false;
    add_plan(w, x, plans, n);
    x->splits =
        w->few &&
        (*n == before || (w->t->space.pipe[x->c->pipe].vpp == 1 && lacks_room(w, &plans[before])));
    if (x->splits && *n < room)
        add_plan(w, x, plans, n);
    return *n > before;
}

static void add_plans(struct dt_orch_hosting *w, const struct dt_orch_cand *c, int variant,
                      struct dt_plan *plans, int *n, int room)
{
    for (int leave = w->leaving; leave >= 0; leave--)
        for (int k = 0; k < 4 && *n < room; k++) {
            struct making x = {.c = c,
                               .variant = variant,
                               .leave = leave > 0,
                               .llm_on_host = k & 2,
                               .guests_on_host = k & 1};

            if (dt_orch_state_of(&w->t->space.of[w->llm], x.llm_on_host) < 0 ||
                !guests_may(w, x.guests_on_host))
                continue;
            if (add_split(w, &x, plans, n, room) && !w->few)
                break;
        }
}

/* Plan after plan of the LLMs in turn, the likeliest variant of each first. */
static int list(struct dt_orch_hosting *w, struct dt_plan *plans, int room)
{
    int n = 0;

    for (int k = 0; k < w->h->variants; k++)
        for (int i = 0; i < w->most; i++)
            for (int s = 0; s < DT_SCHED_N; s++)
                if (i < w->n[s])
                    add_plans(w, &w->host[s][i].c, k, plans, &n, room);
    return n;
}

static const struct dt_orch_cand *host_of(const struct dt_orch_hosting *w, const struct dt_plan *p)
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
static enum dt_status again(struct dt_orch_hosting *w, struct dt_plan *plans, int *n, int room,
                            struct dt_error *err)
{
    int best = *n < AGAIN ? *n : AGAIN, all = best;

    for (int i = 0; i < best; i++) {
        const struct dt_orch_cand *c = host_of(w, &plans[i]);

        for (int k = 0; c && k < w->h->variants; k++)
            add_plans(w, c, k, plans, &all, room);
    }
    *n = all;
    return rank(w->t, plans, n, err);
}

static enum dt_status plans_of(struct dt_orch_hosting *w, bool few, struct dt_error *err,
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
        st = dt_orch_hosted_polish(w, plans, n, err);
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
    struct dt_orch_hosting *w;
    enum dt_status st;

    if (dt_orch_hosts_hold_none(t))
        return dt_orch_infeasible(t, err);
    w = dt_calloc(1, sizeof(*w));
    if (!w)
        return dt_error_nomem(err, "planner search");
    *w =
        (struct dt_orch_hosting){.t = t,
                                 .few = few,
                                 .h = h,
                                 .stats = &out->stats,
                                 .llm = t->in->model->llm,
                                 .left = {.splits = ALL_SPLITS, .steps = ALL_STEPS},
                                 .most = few ? DT_ORCH_HOSTS_MAX : dt_orch_effort_of(t->in)->hosts};
    for (int m = 0; m < w->llm; m++)
        w->leaving |= dt_orch_hosted_may_leave(w, m);
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
