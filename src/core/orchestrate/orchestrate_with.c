/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * The search over placements: encoders and generators as guests on the GPUs of the LLM.
 *
 * The plans of the other search give every module GPUs of its own.  Here, for every set of guests,
 *
 *   hosts      all layouts of the LLM that fit, by the staged formula with the guests' work spread over the LLM's GPUs;
 *              the modules that are no guests need the GPUs that are left.  Once with the least ZeRO with which the LLM
 *              alone fits, and once with more, which makes room for guests, or for less recomputation of theirs; where that
 *              is open, once with masters and moments on the host
 *   the rest   the fastest layouts on the GPUs that the LLM leaves
 *   guests     lanes and replicas over the host's GPUs, the least loaded first, of which the memory of the GPUs, LLM and
 *              all guests together, decides; of one stage, and of as many as the host, which lie where its stages do
 *
 * and the timelines of the best of them, until their bounds reach the best timeline or the budget is spent.  The
 * formula only says what is looked at first. */
#include "base/mem.h"
#include "core/orchestrate/orchestrate_guests.h"

#include <math.h>
#include <string.h>

/* The formula of a plan may be so far above its timeline: it counts in full what the timeline hides. */
#define SLACK 1.03

enum {
    /* of a schedule: layouts of the LLM that are worth a plan on few GPUs, and at most */
    FEW_HOSTS_MAX = 96,
    QUICK_COMBOS = 6, /* the same at quick effort */
    SWIFT_SLOTS = 8,
    SETS_MAX = 32,
    HOST_LISTS = 2,
    LISTS = HOST_LISTS * DT_SCHED_N * DT_ORCH_RECOMPUTE_N,
    PLANS_MAX = 480, /* half of them with more ZeRO than the LLM alone needs */
    FEW_PLANS_MAX = 1200,
    LONG_PROGRAM = 40000, /* ops of 256 samples: such plans would take the time of many others */
};

struct host {
    double score;    /* seconds of an iteration by the formula */
    double interval; /* of a slot, with the guests */
    unsigned set;    /* bit m: module m is a guest */
    struct dt_orch_cand c;
    /* Its guests take the layouts of the least load, or rather those that a microbatch passes fast: the pipeline waits
     * for them.  Of each order, combinations that have had their turn. */
    bool swift;
    int tried[2];
    bool deep;    /* guests have as many stages as the LLM */
    bool on_host; /* the masters and moments of LLM and guests, where they may be */
    bool legal;   /* such a host is of the space */
    enum {
        UNKNOWN,
        CHOSEN, /* the layouts of the modules that are no guests are in c */
        NONE    /* they do not fit */
    } others;
    uint8_t least_zero; /* with which the LLM alone fits */
};

struct placing {
    struct dt_orch_table *t;
    const struct dt_search_input *in;
    struct dt_search_result *out;
    enum dt_plan_strategy strategy;
    int llm, n_sets, hosts_max, plans_max;
    unsigned set[SETS_MAX];
    bool few;       /* GPUs: nearly everything is tried */
    bool few_looks; /* only what is most likely to pay */
    bool thorough;  /* other levels of ZeRO and depths of guests, and all recomputations alike */
    double limit;   /* what the formula may come to */
    /* By schedule: the formula is off by another factor for each.  By recomputation of the LLM: those with less of it are faster
     * by the formula and leave no memory to guests, so they would crowd out those that guests fit beside.  Of LLMs that only
     * differ in their chunks the first list has the best by the formula, which makes room for others; the second has them all,
     * as fewer chunks leave wider gaps to guests. */
    struct hosts {
        int n;
        struct host h[FEW_HOSTS_MAX];
    } hosts[HOST_LISTS][DT_SCHED_N][DT_ORCH_RECOMPUTE_N];
};

/* ---- sets of guests ---- */

/* All of up to three modules; of more, each alone, all of a role, and all. */
static void list_sets(struct placing *w)
{
    unsigned of_role[2] = {0, 0}, all;
    int n = 0;

    for (int m = 0; m < w->in->model->n_modules; m++)
        if (m != w->llm && (w->in->opt.guests >> m & 1)) {
            of_role[w->in->model->modules[m].role == DT_ROLE_GENERATOR] |= 1U << m;
            n++;
        }
    all = of_role[0] | of_role[1];
    for (unsigned s = 1; s <= all && all; s++) {
        bool single = (s & (s - 1)) == 0;

        if ((s & ~all) != 0 || w->n_sets == SETS_MAX)
            continue;
        if (n <= 3 || single || s == of_role[0] || s == of_role[1] || s == all)
            w->set[w->n_sets++] = s;
    }
}

/* ---- hosts ---- */

struct view { /* a layout of the LLM */
    int pipe, microbatch, gpus;
    struct dt_orch_choice of;
    int64_t slot;
    double bound; /* cell_bound */
    double steps, base, pass, interval;
};

static struct hosts *hosts_of(struct placing *w, int list, const struct view *v)
{
    int recompute = w->thorough ? v->of.recompute : 0;

    return &w->hosts[list][w->t->space.pipe[v->pipe].schedule][recompute];
}

/* Of the first list, the scores of which reach further. */
static double threshold(struct placing *w, const struct view *v)
{
    const struct hosts *o = hosts_of(w, 0, v);

    return o->n < w->hosts_max ? w->limit : fmin(w->limit, o->h[w->hosts_max - 1].score);
}

/* The LLM that only differs in its chunks. */
static bool same_but_chunks(const struct host *a, unsigned set, const struct view *v, int llm)
{
    const struct dt_orch_choice *x = &a->c.of[llm], *y = &v->of;

    return a->set == set && a->c.microbatch == v->microbatch && x->lane == y->lane &&
           x->dp == y->dp && x->pp == y->pp && x->recompute == y->recompute;
}

static void keep_host(struct placing *w, int list, unsigned set, const struct view *v, double score,
                      double interval)
{
    struct hosts *o = hosts_of(w, list, v);
    struct host *h = o->h;
    int at = 0, end = o->n;

    while (at < o->n && h[at].score <= score) {
        if (list == 0 && same_but_chunks(&h[at], set, v, w->llm))
            return;
        at++;
    }
    for (int i = at; i < o->n && list == 0; i++)
        if (same_but_chunks(&h[i], set, v, w->llm)) {
            end = i;
            break;
        }
    if (end == o->n && o->n < w->hosts_max)
        o->n++;
    else if (end == w->hosts_max)
        end--;
    if (at > end)
        return;
    memmove(h + at + 1, h + at, (size_t)(end - at) * sizeof(*h));
    memset(&h[at], 0, sizeof(h[at]));
    h[at].score = score;
    h[at].interval = interval;
    h[at].set = set;
    h[at].c.pipe = (uint8_t)v->pipe;
    h[at].c.microbatch = (uint8_t)v->microbatch;
    h[at].c.of[w->llm] = v->of;
    h[at].least_zero = v->of.zero;
    h[at].c.gpus = v->gpus;
    h[at].c.lower_bound_s = v->bound;
}

/* Seconds of an iteration with these guests, by the formula; *interval of a slot on the LLM. */
static double score_of(const struct placing *w, const struct view *v, unsigned set,
                       double *interval)
{
    const struct dt_orch_space *space = &w->t->space;
    double warm = v->base, guests = 0, rest = 0;
    int left = w->t->gpus - v->gpus, lanes = 0;

    for (int m = 0; m < w->in->model->n_modules; m++) {
        const struct dt_orch_least *l = &w->t->least[m][space->pipe[v->pipe].split];

        if (m == w->llm)
            continue;
        warm += l->sample_s;
        if (set >> m & 1)
            guests += (double)v->slot * l->gpu_s;
        else
            rest += (double)v->slot * l->gpu_s;
        lanes += set >> m & 1 ? 0 : l->lane_gpus;
    }
    if (lanes > left)
        return HUGE_VAL;
    *interval = v->interval + guests / v->gpus;
    return dt_orch_staged_s(warm, v->steps, *interval, left > 0 ? rest / left : 0, v->pass);
}

static bool llm_fits(const struct placing *w, struct view *v)
{
    const struct dt_orch_modes *o = &w->t->space.of[w->llm];
    struct dt_orch_question q = {.m = w->llm,
                                 .pipe = v->pipe,
                                 .microbatch = v->microbatch,
                                 .dp_lm = v->of.dp,
                                 .pp_lm = v->of.pp};

    for (int m = 0; m < w->in->model->n_modules; m++)
        if (w->in->model->modules[m].role == DT_ROLE_GENERATOR)
            q.gen_pp = 1;
    for (int z = 0; z < o->n_zero; z++) {
        if (w->few_looks &&
            o->zero[z] > 1) /* guests of few replicas are out of step with it, and it takes long */
            continue;
        v->of.zero = (uint8_t)z;
        q.of = v->of;
        if (dt_orch_table_fits(w->t, &q))
            return true;
    }
    return false;
}

/* No timeline with this LLM undercuts it. */
static double floor_s(const struct view *v, double c, double later, const struct dt_orch_pipe *pipe)
{
    if (pipe->vpp == 1 && !pipe->split)
        return c + v->steps * v->interval;
    return fmax(c - later, (v->steps + 1) * v->interval);
}

/* One way of running the LLM's blocks in a layout. */
static void try_host(struct placing *w, struct view *v)
{
    const struct dt_orch_pipe *pipe = &w->t->space.pipe[v->pipe];
    struct dt_orch_times *x =
        dt_orch_times_of(w->t, w->llm, v->of.lane, v->of.recompute, v->microbatch, pipe->split);
    double micro = w->t->space.microbatch[v->microbatch], c, later, least;
    const struct dt_orch_stage_entry *e;
    struct dt_search_stats *stats = &w->out->stats;
    bool fits = false;

    if (!x)
        return;
    c = micro * x->sample_s;
    later = micro * x->later_s;
    v->base = dt_orch_llm_warmup_s(c, later, (int64_t)v->steps + 1, v->of.pp, pipe->vpp);
    v->pass = dt_orch_llm_pass_s(c, later, v->base);
    v->interval = c / v->of.pp;
    least = floor_s(v, c, later, pipe);
    if (least > threshold(w, v) && !(stats->floor_s > 0 && least < stats->floor_s))
        return;
    e = dt_orch_stage_of(w->t, w->llm, x, v->of.pp, pipe->vpp);
    if (!e)
        return;
    v->interval = micro * e->max_s;
    least = floor_s(v, c, later, pipe);
    stats->candidates++;
    for (int i = 0; i < w->n_sets; i++) {
        double interval = 0, score = score_of(w, v, w->set[i], &interval);

        if (score >= threshold(w, v))
            continue;
        if (!fits && !(fits = llm_fits(w, v)))
            return;
        for (int list = 0; list < HOST_LISTS; list++)
            keep_host(w, list, w->set[i], v, score, interval);
    }
    if (stats->floor_s > 0 && least < stats->floor_s && (fits || llm_fits(w, v)))
        stats->floor_s = least;
}

static void depths_of(struct placing *w, struct view *v, int lane_gpus)
{
    int blocks = w->in->model->modules[w->llm].n_blocks, vpp = w->t->space.pipe[v->pipe].vpp;

    for (int pp = vpp > 1 ? 2 : 1; pp * vpp <= blocks && pp * v->of.dp * lane_gpus <= w->t->gpus;
         pp++) {
        v->of.pp = (int16_t)pp;
        v->gpus = pp * v->of.dp * lane_gpus;
        for (int r = 0; r < w->t->space.of[w->llm].n_recompute && !w->t->nomem; r++) {
            v->of.recompute = (uint8_t)r;
            try_host(w, v);
        }
    }
}

/* The formula of no plan of the cell is below it, whoever is a guest: the work of a slot on all GPUs at once. */
static double cell_bound(struct placing *w, const struct view *v)
{
    const struct dt_orch_pipe *pipe = &w->t->space.pipe[v->pipe];
    double micro = w->t->space.microbatch[v->microbatch], gpus = w->t->gpus, work = 0;
    double sample = HUGE_VAL, base = HUGE_VAL, lm;

    for (int r = 0; r < w->t->space.of[w->llm].n_recompute; r++) {
        struct dt_orch_times *x =
            dt_orch_times_of(w->t, w->llm, v->of.lane, r, v->microbatch, pipe->split);

        if (!x)
            return 0;
        sample = fmin(sample, x->sample_s);
        base = fmin(base, micro * fmax(0, x->sample_s / pipe->vpp - 2 * x->later_s));
    }
    for (int m = 0; m < w->in->model->n_modules; m++)
        work += m == w->llm ? 0 : (double)v->slot * w->t->least[m][pipe->split].gpu_s;
    lm = (double)v->slot * dt_orch_lane_gpus(&w->t->space.of[w->llm].lane[v->of.lane]) * sample;
    base = pipe->split ? base
                       : fmax(base, lm / gpus); /* the first slot is not faster than the others */
    return base + work / gpus + v->steps * (work + lm) / gpus;
}

/* At quick effort, and where there are plans without guests: chunks and split backwards leave few gaps for guests. */
static bool hosts_guests(const struct placing *w, int pipe)
{
    return !w->few_looks || w->t->space.pipe[pipe].schedule == DT_SCHED_1F1B;
}

static void find_hosts(struct placing *w)
{
    struct dt_search_stats *stats = &w->out->stats;
    const struct dt_orch_space *s = &w->t->space;
    int64_t batch = w->in->policy.global_batch;

    for (int p = 0; p < s->n_pipes; p++)
        for (int i = 0; i < s->n_microbatches && hosts_guests(w, p); i++)
            for (int l = 0; l < s->of[w->llm].n_lanes; l++) {
                int lane = dt_orch_lane_gpus(&s->of[w->llm].lane[l]);

                for (int dp = 1; dp * lane <= w->t->gpus && dp <= batch / s->microbatch[i]; dp++) {
                    struct view v = {.pipe = p, .microbatch = i, .of = {.lane = (uint8_t)l}};

                    v.slot = (int64_t)dp * s->microbatch[i];
                    if (batch % v.slot != 0 ||
                        dt_orch_table_min_gpus(w->t, w->llm, lane, dp) > w->t->gpus)
                        continue;
                    v.of.dp = dp;
                    v.steps = (double)(batch / v.slot) - 1;
                    v.bound = cell_bound(w, &v);
                    if (w->n_sets > 0)
                        stats->lower_bound_s = stats->lower_bound_s > 0
                                                   ? fmin(stats->lower_bound_s, v.bound)
                                                   : v.bound;
                    depths_of(w, &v, lane);
                }
            }
}

/* ---- guests ---- */

/* Replicas that exchange something at every microbatch work in step, so none of the others is without a sample in a slot
 * (dt_plan_validate). */
static bool are_in_step(const struct placing *w, const struct host *h)
{
    const struct dt_orch_choice *llm = &h->c.of[w->llm];
    const struct dt_orch_modes *o = &w->t->space.of[w->llm];
    int64_t slot = (int64_t)llm->dp * w->t->space.microbatch[h->c.microbatch];

    for (int m = 0; m < w->in->model->n_modules; m++)
        if (o->zero[llm->zero] > 1 && llm->dp * o->lane[llm->lane].cp > 1 && h->c.of[m].dp > slot)
            return false;
    return true;
}

/* Layouts of the modules that are no guests, once for each host; false: they do not fit. */
static bool choose_others(struct placing *w, struct host *h)
{
    int left = w->t->gpus - h->c.gpus,
        later = 0; /* GPUs that modules still to come need at least */

    if (h->others != UNKNOWN)
        return h->others == CHOSEN;
    h->others = NONE;
    for (int m = 0; m < w->in->model->n_modules; m++)
        later += m == w->llm || (h->set >> m & 1) ? 0 : w->t->least[m][0].lane_gpus;
    for (int m = 0; m < w->in->model->n_modules; m++) {
        int gpus;

        if (m == w->llm || (h->set >> m & 1))
            continue;
        later -= w->t->least[m][0].lane_gpus;
        gpus = dt_orch_choose_own(w->t, &h->c, m, left - later, h->interval, 1);
        if (gpus == 0)
            return false;
        left -= gpus;
    }
    h->others = CHOSEN;
    return true;
}

/* The next plan of a host that fits; *found = false: there are no more.  Guests that leave the LLM so little memory that it has to
 * have uneven stages may cost more than they save: of these and the next that do not, those that are faster by the formula. */
static enum dt_status next_plan(struct placing *w, struct host *h, struct dt_error *err,
                                struct dt_plan *out, bool *found)
{
    struct dt_orch_guest o[DT_MAX_MODULES][DT_ORCH_GUEST_LAYOUTS];
    struct dt_orch_guest_combo combo[DT_ORCH_GUEST_COMBOS];
    int n[DT_MAX_MODULES], module[DT_MAX_MODULES], guests = 0, n_combos;
    bool even = false;

    *found = false;
    if (!choose_others(w, h))
        return DT_OK;
    for (int m = 0; m < w->in->model->n_modules; m++) {
        if (!(h->set >> m & 1))
            continue;
        module[guests] = m;
        n[guests] = dt_orch_guest_layouts(w->t, &h->c, m, h->deep, h->on_host, o[guests]);
        if (n[guests++] == 0)
            return DT_OK;
    }
    n_combos = dt_orch_guest_combos(o, n, guests, h->swift ? SWIFT_SLOTS : 0, combo);
    for (int k = h->tried[h->swift]; k < n_combos && !even; k++) {
        struct dt_plan p;
        enum dt_status st;

        h->tried[h->swift] = *found ? h->tried[h->swift] : k + 1;
        for (int i = 0; i < guests; i++)
            h->c.of[module[i]] = o[i][combo[k].of[i]].of;
        if (!are_in_step(w, h))
            continue;
        st = dt_orch_cand_plan_split(w->t, &h->c, h->set, w->strategy, !*found, err, &p, &even);
        if (st == DT_ERR_INFEASIBLE || st == DT_ERR_INPUT)
            continue;
        DT_TRY(st);
        if (*found || !even) /* these are compared; of the others most are listed before */
            dt_orch_formula_stats(w->in, &p, w->t->work, &p.predicted);
        if (*found && p.predicted.staged_s >= out->predicted.staged_s)
            continue;
        *out = p;
        *found = true;
        h->tried[h->swift] = k + 1;
    }
    return DT_OK;
}

/* ---- timelines ---- */

static bool is_long(const struct placing *w, const struct dt_plan *p)
{
    double share = fmin(1, 256.0 / (double)p->policy.global_batch);

    return share * dt_orch_plan_ops(p, w->llm) > LONG_PROGRAM;
}

/* The host once more from its first combination, in one of these ways; false where that is no other one. */
enum way {
    LEAST_ZERO, /* of the LLM, with which it alone fits */
    MORE_ZERO,  /* the next level that divides more than that does */
    ON_HOST,    /* masters and moments of LLM and guests */
};
static bool set_host(const struct placing *w, struct host *h, bool deep, enum way way)
{
    const struct dt_orch_modes *o = &w->t->space.of[w->llm];
    int z = h->least_zero;

    while (way == MORE_ZERO && ++z < o->n_zero && (o->zero[z] < 2 || o->on_host[z]))
        ;
    if (way == ON_HOST)
        z = o->on_host[z] ? o->n_zero : dt_orch_state_of(o, true);
    if (z < 0 || z >= o->n_zero || (deep && h->c.of[w->llm].pp < 2) ||
        (way != LEAST_ZERO && w->t->space.pipe[h->c.pipe].split && o->zero[z] > 2))
        return false;
    h->c.of[w->llm].zero = (uint8_t)z;
    h->on_host = way == ON_HOST;
    h->deep = deep;
    h->tried[0] = h->tried[1] = 0;
    return true;
}

/* The best hosts of all lists, then the second best ...; NULL behind the last one. */
static struct host *host_at(struct placing *w, int i)
{
    struct hosts *o = &w->hosts[i % HOST_LISTS][i / HOST_LISTS % DT_SCHED_N]
                               [i / HOST_LISTS / DT_SCHED_N % DT_ORCH_RECOMPUTE_N];

    return i / LISTS < o->n ? &o->h[i / LISTS] : NULL;
}

/* Two plans of every host, on few GPUs more, behind the *n of plans[], which has room for plans_max. */
static enum dt_status list_plans(struct placing *w, bool deep, enum way way, struct dt_error *err,
                                 struct dt_plan *plans, int *n)
{
    int most = w->thorough && way == LEAST_ZERO ? w->plans_max / 2 : w->plans_max;
    int rounds = !w->few                            ? 2
                 : dt_orch_effort_of(w->in)->coarse ? QUICK_COMBOS
                                                    : DT_ORCH_GUEST_COMBOS;

    for (int k = 0; k < rounds; k++)
        for (int i = 0; i < w->hosts_max * LISTS; i++) {
            struct host *h = host_at(w, i);
            bool found;

            if (!h)
                continue;
            if (k == 0)
                h->legal = set_host(w, h, deep, way);
            if (!h->legal)
                continue;
            if (*n == most) { /* the list is full: who is left out is told */
                w->out->stats.unlisted += k == 0;
                continue;
            }
            h->swift = k % 2;
            DT_TRY(next_plan(w, h, err, &plans[*n], &found));
            if (!found || is_long(w, &plans[*n]) || dt_orch_plan_listed(plans, *n, &plans[*n]))
                continue;
            if (plans[*n].predicted.staged_s <= 0)
                dt_orch_formula_stats(w->in, &plans[*n], w->t->work, &plans[*n].predicted);
            plans[(*n)++].predicted.lower_bound_s = h->c.lower_bound_s;
        }
    return w->t->nomem ? dt_error_nomem(err, "planner search") : DT_OK;
}

/* Ranks them beside the best plan so far, which says when one need not be timed; of the budget, so much is theirs. */
static enum dt_status rank_plans(struct placing *w, bool deep, struct dt_plan *plans, int *n,
                                 struct dt_error *err)
{
    int64_t budget = dt_orch_budget(w->in),
            theirs = dt_orch_effort_of(w->in)->guest_budget / (deep ? 2 : 1);
    int64_t spent = w->t->ops, begin = budget > theirs ? budget - theirs : 0;
    enum dt_status st;

    w->t->ops = begin;
    st = dt_orch_rank(w->t, plans, n, true, err);
    w->t->ops += spent - begin;
    return st;
}

/* The plans of `out`, and those of these that are new: the ones with guests. */
static enum dt_status merge_plans(struct dt_search_result *out, const struct dt_plan *plans, int n,
                                  struct dt_error *err)
{
    struct dt_plan *all = dt_realloc(out->plans, ((size_t)out->n + (size_t)n + 1) * sizeof(*all));

    if (!all)
        return dt_error_nomem(err, "plans");
    out->plans = all;
    for (int i = 0; i < n; i++)
        if (dt_plan_shares(&plans[i]) && !dt_orch_plan_listed(all, out->n, &plans[i]))
            all[out->n++] = plans[i];
    return out->n > 1 ? dt_orch_sort(all, out->n, err) : DT_OK;
}

/* The plans of one depth of guests, and what was the best before. */
static enum dt_status place_depth(struct placing *w, bool deep, struct dt_plan *plans,
                                  struct dt_error *err)
{
    int n = 0, others;

    if (w->out->n > 0)
        plans[n++] = w->out->plans[0];
    others = n;
    DT_TRY(list_plans(w, deep, LEAST_ZERO, err, plans, &n));
    if (w->thorough)
        DT_TRY(list_plans(w, deep, MORE_ZERO, err, plans, &n));
    DT_TRY(list_plans(w, deep, ON_HOST, err, plans, &n));
    if (n == others)
        return DT_OK;
    DT_TRY(rank_plans(w, deep, plans, &n, err));
    return merge_plans(w->out, plans, n, err);
}

static enum dt_status place(struct placing *w, struct dt_plan *plans, struct dt_error *err)
{
    list_sets(w);
    find_hosts(w);
    DT_TRY(place_depth(w, false, plans, err));
    return w->thorough ? place_depth(w, true, plans, err) : DT_OK;
}

enum dt_status dt_orch_place_guests(struct dt_orch_table *t, enum dt_plan_strategy strategy,
                                    struct dt_error *err, struct dt_search_result *out)
{
    const struct dt_search_options *o = &t->in->opt;
    const struct dt_orch_effort *effort = dt_orch_effort_of(t->in);
    bool few = t->gpus <= DT_ORCH_GUEST_FEW;
    struct placing *w;
    struct dt_plan *plans;
    enum dt_status st;

    if (o->guests == 0 || o->uniform || t->in->model->n_modules < 2)
        return DT_OK;
    if (!o->rank && out->n > 0) /* the formula alone does not tell */
        return DT_OK;
    w = dt_calloc(1, sizeof(*w));
    plans = dt_calloc(few ? FEW_PLANS_MAX : PLANS_MAX, sizeof(*plans));
    if (w && plans) {
        *w = (struct placing){.t = t, .in = t->in, .out = out, .strategy = strategy};
        w->llm = t->in->model->llm;
        w->few = few;
        w->few_looks = effort->coarse && !few && out->n > 0;
        w->thorough = !effort->coarse && !few;
        w->hosts_max = few ? FEW_HOSTS_MAX : effort->hosts;
        w->plans_max = few ? FEW_PLANS_MAX : PLANS_MAX;
        w->limit = out->n > 0 ? (few ? 2 : SLACK) * out->plans[0].predicted.timeline_s : HUGE_VAL;
        st = place(w, plans, err);
    } else {
        st = dt_error_nomem(err, "planner search");
    }
    dt_free(plans);
    dt_free(w);
    return st;
}
