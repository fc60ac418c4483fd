/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * The neighbours of the best plans, by timeline.
 *
 * The search keeps what a formula says is fast, and the formula does not know transfers, what ZeRO exchanges at every
 * microbatch, or the samples themselves.  So the best plans are the start of a descent: of all plans that differ in one
 * thing (and in what has to follow it) those that the formula, scaled to the timeline of the plan at hand, puts within reach are
 * timed, the most promising first; the first that is faster is the next plan at hand, until there is none. */
#include "base/mem.h"
#include "core/orchestrate/orchestrate_moves.h"

#include <math.h>
#include <string.h>

/* A neighbour is timed where it is expected to take at most so much more than the plan at hand: the formula compares
 * neighbours far better than strangers.  Where there are few GPUs, more. */
#define REACH 0.03
#define FAR_REACH 0.3
/* In the end so many times as much, where there are operations left. */
#define WIDER 2
/* Descents start at plans that take at most so much more than the best. */
#define FAR_SEED 0.08
/* Samples by whose replicas two neighbours are compared first. */
#define SAMPLES 128.0
/* Less than that is no gain. */
#define GAIN 3e-4
/* Nor is that of a program that is far longer: it makes all that follows dearer. */
#define LONGER_GAIN 5e-3
/* A descent that has brought nothing in its turn and is so much behind the best is given up. */
#define BEHIND 0.02
/* A neighbour whose program has more ops takes the time of many others.  It is left out unless the plan at hand is as
 * long, or nearly. */
#define LONG_PROGRAM 40000.0
#define NEARLY 1.5
/* A plan that was passed over is gone back to if it takes at most so much more than the best. */
#define PASSED_NEAR 0.02
/* A neighbour that is so near to what it may take at most need not have the best turns of guests. */
#define ROUGH 0.015
/* As orchestrate_rank.c: the bound is of mean samples. */
#define CERTAIN 1.01

enum {
    SEEDS = 6, /* descents, and where there are few GPUs */
    FEW_SEEDS = 24,
    NEAR_SEEDS = 2, /* near what another search found */
    TURNS = 8,      /* that each gets at least, were all to go on for ever */
    LAST_TURN = 3,  /* as long as others, for those that have fallen behind */
    FEW_GPUS = 16,
    PASSED = 24,    /* plans passed over that are kept */
    VISITS = 12,    /* of these, that are gone back to */
    WIDE_SHARE = 8, /* of the budget: what neighbours further off may take of it in vain, */
    WIDE_LOOKS = 8, /* which has to be enough for so many */
    NEAR = 4,       /* plans of another result that are taken over */
    FASTEST = 8,    /* plans that are kept for those who look closer */
    LESSONS = 64,
};

enum progress {
    GOING,
    LATER /* what is ahead comes first */,
    DONE,
    WIDE /* neighbours further off were tried, too */
};

/* What the timelines of neighbours with another LLM were to what was expected of them: the least of those that were timed.  The
 * formula is off by as much for the others around that LLM. */
struct lesson {
    struct dt_orch_choice llm;
    uint8_t pipe, microbatch;
    double ratio;
};

struct descent {
    enum progress progress;
    struct dt_plan start, plan; /* where it began, and where it is */
    struct dt_orch_hand hand;
    struct lesson lesson[LESSONS]; /* of the plan at hand */
    int n_lessons;
};

struct passed { /* a neighbour that was not faster than the plan at hand */
    struct dt_orch_spot at;
    double first_s, ratio; /* as in struct dt_orch_hand */
};

struct polish {
    struct dt_orch_moves moves;
    enum dt_plan_strategy strategy;
    struct descent *d; /* the one whose turn it is */
    struct descent all[FEW_SEEDS];
    int n;
    struct passed passed[PASSED]; /* the fastest first, no two equally fast */
    int n_passed;
    struct dt_plan fastest[FASTEST]; /* the fastest first, of those that were timed whole */
    int n_fastest;
};

/* The timeline of a plan that fits, by as many samples (0: a closer look); 0: it does not.  HUGE_VAL: it takes longer
 * than `limit`. */
static enum dt_status glance(struct polish *w, struct dt_plan *p, double samples, double limit,
                             struct dt_error *err, double *seconds, bool *share)
{
    double rough = limit * (1 - ROUGH); /* the neighbours of what is as near are tried anyway */
    struct dt_error why;
    enum dt_status st = dt_orch_time_plan(w->moves.t, p, samples, limit, rough, &why, share);

    *seconds = st == DT_OK ? p->predicted.timeline_s : 0;
    if (st == DT_OK || st == DT_ERR_INFEASIBLE)
        return DT_OK;
    return dt_error_pass(err, &why);
}

/* This plan, whose timeline at first sight is s, becomes the one at hand. */
static void settle(struct polish *w, const struct dt_orch_spot *at, const struct dt_plan *p,
                   double s)
{
    w->d->hand.at = *at;
    w->d->plan = *p;
    w->d->hand.first_s = s;
    w->d->hand.ratio = s / dt_orch_spot_formula_s(&w->moves, at);
    w->d->hand.listed = false;
    w->d->n_lessons = 0;
}

/* The next level of ZeRO of a module where the spot does not fit; false where there is none, or that has been tried. */
static bool raise_zero(struct polish *w, struct dt_orch_spot *s, int m)
{
    if (s->c.of[m].zero + 1 >= w->moves.t->space.of[m].n_zero)
        return false;
    s->c.of[m].zero++;
    if (!dt_orch_spot_is_legal(&w->moves, s)) { /* others may still have more */
        s->c.of[m].zero--;
        return false;
    }
    return dt_orch_spot_remember(&w->moves, s);
}

static bool has_llm(const struct polish *w, const struct dt_orch_spot *s, const struct lesson *x)
{
    const struct dt_orch_choice *c = &s->c.of[w->moves.llm];

    return s->c.pipe == x->pipe && s->c.microbatch == x->microbatch && c->lane == x->llm.lane &&
           c->recompute == x->llm.recompute && c->zero == x->llm.zero && c->pp == x->llm.pp &&
           c->dp == x->llm.dp;
}

static struct lesson *lesson_of(struct polish *w, const struct dt_orch_spot *s)
{
    for (int i = 0; i < w->d->n_lessons; i++)
        if (has_llm(w, s, &w->d->lesson[i]))
            return &w->d->lesson[i];
    return NULL;
}

/* A neighbour that was expected to take so long takes `seconds`, or more. */
static void learn(struct polish *w, const struct dt_orch_spot *s, double expect, double seconds)
{
    const struct dt_orch_spot *at = &w->d->hand.at;
    struct lesson x = {at->c.of[w->moves.llm], at->c.pipe, at->c.microbatch, 0}, *known;

    if (w->moves.few || has_llm(w, s, &x) || !(expect > 0))
        return;
    known = lesson_of(w, s);
    if (known)
        known->ratio = fmin(known->ratio, seconds / expect);
    else if (w->d->n_lessons < LESSONS)
        w->d->lesson[w->d->n_lessons++] =
            (struct lesson){s->c.of[w->moves.llm], s->c.pipe, s->c.microbatch, seconds / expect};
}

/* Is the neighbour out of reach, as others with its LLM are? */
static bool is_hopeless(struct polish *w, const struct dt_orch_move *m)
{
    const struct lesson *x = lesson_of(w, &m->to);

    return x && m->expect * x->ratio > w->d->hand.first_s * (1 + w->moves.reach);
}

/* A spot as a plan, with as much more ZeRO of the LLM, then of the guests, as makes it fit: the formula does not know what that
 * takes. */
static enum dt_status fit_spot(struct polish *w, struct dt_orch_spot *s, struct dt_error *err,
                               struct dt_plan *out)
{
    enum dt_status st = dt_orch_cand_plan_with(w->moves.t, &s->c, s->set, w->strategy, err, out);

    while (st == DT_ERR_INFEASIBLE && raise_zero(w, s, w->moves.llm))
        st = dt_orch_cand_plan_with(w->moves.t, &s->c, s->set, w->strategy, err, out);
    for (int m = 0; m < w->moves.in->model->n_modules; m++)
        while (st == DT_ERR_INFEASIBLE && (s->set >> m & 1) && raise_zero(w, s, m))
            st = dt_orch_cand_plan_with(w->moves.t, &s->c, s->set, w->strategy, err, out);
    return st;
}

static bool is_long(const struct polish *w, const struct dt_plan *p)
{
    double ops = dt_orch_look_ops(w->moves.t, p, SAMPLES);

    return !w->moves.few && ops > LONG_PROGRAM &&
           ops > NEARLY * dt_orch_look_ops(w->moves.t, &w->d->plan, SAMPLES);
}

static double gain_of(const struct polish *w, const struct dt_plan *p)
{
    bool longer = dt_orch_look_ops(w->moves.t, p, SAMPLES) >
                  NEARLY * dt_orch_look_ops(w->moves.t, &w->d->plan, SAMPLES);

    return longer && !w->moves.few ? LONGER_GAIN : GAIN;
}

static void pass_over(struct polish *w, const struct dt_orch_spot *at, double s)
{
    int i = 0, end = w->n_passed < PASSED ? w->n_passed : PASSED - 1;

    while (i < w->n_passed && w->passed[i].first_s < s)
        i++;
    if (i == PASSED || (i < w->n_passed && w->passed[i].first_s == s))
        return;
    memmove(&w->passed[i + 1], &w->passed[i], (size_t)(end - i) * sizeof(w->passed[0]));
    w->passed[i] = (struct passed){*at, s, s / dt_orch_spot_formula_s(&w->moves, at)};
    w->n_passed = end + 1;
}

static void keep_fastest(struct polish *w, const struct dt_plan *p)
{
    int i = w->n_fastest, end = w->n_fastest < FASTEST ? w->n_fastest : FASTEST - 1;

    while (i > 0 && w->fastest[i - 1].predicted.timeline_s > p->predicted.timeline_s)
        i--;
    if (i == FASTEST || dt_orch_plan_listed(w->fastest, w->n_fastest, p))
        return;
    memmove(&w->fastest[i + 1], &w->fastest[i], (size_t)(end - i) * sizeof(*p));
    w->fastest[i] = *p;
    w->n_fastest = end + 1;
}

/* Of many replicas some were looked at; the largest microbatch may be another one's. */
static enum dt_status fits_whole(const struct polish *w, const struct dt_plan *p,
                                 struct dt_error *err, bool *fits)
{
    struct dt_error why;
    enum dt_status st = dt_orch_check_whole(w->moves.in, p, 0, &why);

    *fits = st == DT_OK;
    return st == DT_OK || st == DT_ERR_INFEASIBLE ? DT_OK : dt_error_pass(err, &why);
}

/* Tries a neighbour; *better: it is the plan at hand now. */
static enum dt_status try_move(struct polish *w, const struct dt_orch_move *move,
                               struct dt_error *err, bool *better)
{
    struct dt_orch_spot to = move->to;
    struct dt_plan p;
    struct dt_error why;
    double s, closer;
    bool share, more, fits = true;
    enum dt_status st;

    *better = false;
    if (is_hopeless(w, move))
        return DT_OK;
    if (!dt_orch_spot_remember(&w->moves, &to))
        return w->moves.nomem ? dt_error_nomem(err, "planner search") : DT_OK;
    st = fit_spot(w, &to, &why, &p);
    if (st == DT_ERR_INFEASIBLE || st == DT_ERR_INPUT ||
        (st == DT_OK &&
         (dt_orch_plan_least_s(w->moves.t, &p) > w->d->hand.first_s * CERTAIN || is_long(w, &p))))
        return DT_OK;
    if (st != DT_OK)
        return dt_error_pass(err, &why);
    /* slower ones are never gone back to: the best may only be faster then */
    DT_TRY(glance(w, &p, SAMPLES, w->d->hand.first_s * (1 + PASSED_NEAR), err, &s, &share));
    if (s > 0)
        learn(w, &move->to, move->expect, fmin(s, w->d->hand.first_s * (1 + PASSED_NEAR)));
    if (s > 0 && s < HUGE_VAL && !share)
        keep_fastest(w, &p);
    if (s > w->d->hand.first_s * (1 - gain_of(w, &p)) && s < HUGE_VAL)
        pass_over(w, &to, s);
    if (s <= 0 || s > w->d->hand.first_s * (1 - gain_of(w, &p)))
        return DT_OK;
    closer = s;
    if (share)
        DT_TRY(glance(w, &p, 0, w->d->plan.predicted.timeline_s, err, &closer, &more));
    if (closer <= 0 || closer > w->d->plan.predicted.timeline_s * (1 - GAIN))
        return DT_OK;
    if (share)
        DT_TRY(fits_whole(w, &p, err, &fits));
    if (!fits)
        return DT_OK;
    settle(w, &to, &p, s);
    *better = true;
    return DT_OK;
}

/* Is the plan at hand so far behind that of another descent that no more is to be expected of it? */
static bool is_behind(const struct polish *w)
{
    double best = HUGE_VAL;

    for (int i = 0; i < w->n; i++)
        best = fmin(best, w->all[i].hand.first_s);
    return !w->moves.few && w->d->hand.first_s > best * (1 + BEHIND);
}

/* Goes on with a descent until that many ops have brought nothing. */
static enum dt_status take_turn(struct polish *w, int64_t ops, int64_t end, struct dt_error *err)
{
    struct dt_orch_hand *h = &w->d->hand;
    int64_t begin = w->moves.t->ops, since = begin;
    bool better;

    while (w->moves.t->ops < end && w->moves.t->ops - since < ops) {
        if (!h->listed)
            DT_TRY(dt_orch_moves_list(&w->moves, h, err));
        if (h->next == h->n) {
            w->d->progress = DONE;
            return DT_OK;
        }
        DT_TRY(try_move(w, &h->moves[h->next++], err, &better));
        since = better ? w->moves.t->ops : since;
    }
    if (since == begin && is_behind(w))
        w->d->progress = LATER;
    return DT_OK;
}

/* Is there a descent from another plan of this kind? */
static bool is_known(const struct polish *w, const struct dt_plan *p)
{
    for (int k = 0; k < w->n; k++)
        if (dt_orch_plans_alike(&w->all[k].start, p, w->moves.llm))
            return true;
    return false;
}

/* A descent from this plan. */
static enum dt_status start(struct polish *w, const struct dt_plan *p, struct dt_error *err)
{
    struct dt_plan again = *p;
    struct dt_orch_spot at;
    double s;
    bool share, fits = true;

    if ((!w->moves.few && is_known(w, p)) || !dt_orch_spot_of(&w->moves, p, &at) ||
        !dt_orch_spot_remember(&w->moves, &at))
        return DT_OK;
    w->d = &w->all[w->n];
    DT_TRY(glance(w, &again, SAMPLES, HUGE_VAL, err, &s, &share));
    if (share)
        DT_TRY(fits_whole(w, &again, err, &fits));
    if (s <= 0 || !fits)
        return DT_OK;
    w->n++;
    w->d->start = *p;
    settle(w, &at, p, s);
    return DT_OK;
}

/* The descents take turns, so that none of them uses up the budget in vain. */
static enum dt_status take_turns(struct polish *w, int64_t ops, int64_t end, struct dt_error *err)
{
    bool going = true;

    while (going && w->moves.t->ops < end) {
        going = false;
        for (int i = 0; i < w->n && w->moves.t->ops < end; i++) {
            if (w->all[i].progress != GOING)
                continue;
            w->d = &w->all[i];
            DT_TRY(take_turn(w, ops, end, err));
            going = going || w->d->progress == GOING;
        }
    }
    return DT_OK;
}

/* Two changes away from the best plan: the neighbours of plans that were nearly as fast, with which its descent
 * goes on when one is faster. */
static enum dt_status look_behind(struct polish *w, int64_t end, struct dt_error *err)
{
    struct dt_orch_hand *h;

    for (int i = 0; i < w->n; i++)
        if (i == 0 || w->all[i].hand.first_s < w->d->hand.first_s)
            w->d = &w->all[i];
    for (int k = 0; k < VISITS && w->n_passed > 0 && w->moves.t->ops < end; k++) {
        struct passed x = w->passed[0];
        bool better = false;

        memmove(w->passed, w->passed + 1, (size_t)--w->n_passed * sizeof(x));
        h = &w->d->hand;
        if (x.first_s > h->first_s * (1 + PASSED_NEAR))
            break;
        h->at = x.at;
        h->ratio = x.ratio;
        w->d->n_lessons = 0;
        DT_TRY(dt_orch_moves_list(&w->moves, h, err));
        while (h->next < h->n && !better && w->moves.t->ops < end)
            DT_TRY(try_move(w, &h->moves[h->next++], err, &better));
        if (!better)
            continue;
        DT_TRY(take_turn(w, end, end, err));
        k = -1; /* from a new plan */
    }
    return DT_OK;
}

/* Those that have fallen behind, once nothing else is left to be done: the shortest programs first. */
static enum dt_status catch_up(struct polish *w, int64_t ops, int64_t end, struct dt_error *err)
{
    while (w->moves.t->ops < end) {
        double least = HUGE_VAL;

        for (int i = 0; i < w->n; i++) {
            double each = dt_orch_look_ops(w->moves.t, &w->all[i].plan, SAMPLES);

            if (w->all[i].progress != LATER || each >= least)
                continue;
            least = each;
            w->d = &w->all[i];
        }
        if (isinf(least))
            break;
        DT_TRY(take_turn(w, LAST_TURN * ops, end, err));
        w->d->progress = DONE;
    }
    return DT_OK;
}

/* The descents that ended near the best once more, the best first, with neighbours that the formula puts further off, where
 * these are soon timed. */
static enum dt_status look_wider(struct polish *w, int64_t end, struct dt_error *err)
{
    int64_t ops = dt_orch_budget(w->moves.in) / WIDE_SHARE;
    enum dt_status st = DT_OK;

    w->moves.reach *= WIDER;
    for (int n = 0; n < w->n && st == DT_OK && w->moves.t->ops < end; n++) {
        int next = -1;

        for (int i = 0; i < w->n; i++)
            if (w->all[i].progress != WIDE &&
                (next < 0 || w->all[i].hand.first_s < w->all[next].hand.first_s))
                next = i;
        w->d = &w->all[next];
        if (is_behind(w) ||
            WIDE_LOOKS * dt_orch_look_ops(w->moves.t, &w->d->plan, SAMPLES) > (double)ops)
            break;
        w->d->hand.listed = false;
        st = take_turn(w, ops, end, err);
        w->d->progress = WIDE;
    }
    w->moves.reach /= WIDER;
    return st;
}

static enum dt_status look_around(struct polish *w, int64_t layouts, struct dt_error *err)
{
    int64_t begin = w->moves.t->ops, end = dt_orch_polish_end(w->moves.in, begin, layouts), ops;

    if (w->n == 0)
        return DT_OK;
    ops = (end - begin) / (TURNS * w->n);
    DT_TRY(take_turns(w, ops, end, err));
    DT_TRY(look_behind(w, end, err));
    DT_TRY(catch_up(w, ops, end, err));
    return w->moves.few ? DT_OK : look_wider(w, end, err);
}

/* The best plan of in->near, changed as little as brings it into the space; where it does not fit then, with more
 * recomputation of the LLM. */
static enum dt_status nearest(struct polish *w, struct dt_error *err, struct dt_plan *out,
                              bool *found)
{
    struct dt_orch_spot s;

    *found = false;
    dt_orch_spot_near(&w->moves, &w->moves.in->near->plans[0], &s);
    if (!dt_orch_spot_is_legal(&w->moves, &s))
        return DT_OK;
    for (int n = w->moves.t->space.of[w->moves.llm].n_recompute; s.c.of[w->moves.llm].recompute < n;
         s.c.of[w->moves.llm].recompute++) {
        struct dt_error why;
        double seconds;
        bool share;
        enum dt_status st = dt_orch_cand_plan_with(w->moves.t, &s.c, s.set, w->strategy, &why, out);

        if (st == DT_ERR_INFEASIBLE || st == DT_ERR_INPUT)
            continue;
        if (st != DT_OK)
            return dt_error_pass(err, &why);
        DT_TRY(glance(w, out, 0, HUGE_VAL, err, &seconds, &share));
        *found = seconds > 0;
        return DT_OK;
    }
    return DT_OK;
}

/* Adds plans of in->near: those that were timed and are in the space, and the nearest to the best. */
static enum dt_status add_near(struct polish *w, struct dt_error *err, struct dt_search_result *out)
{
    const struct dt_search_result *near = w->moves.in->near;
    struct dt_orch_spot s;
    struct dt_plan *all;
    int n = 0;
    bool found;

    if (near->n == 0 || near->plans[0].colocated)
        return DT_OK;
    all = dt_realloc(out->plans, (size_t)(out->n + NEAR + 1) * sizeof(*all));
    if (!all)
        return dt_error_nomem(err, "plans");
    out->plans = all;
    for (int i = 0; i < near->n_timed && n < NEAR; i++) {
        const struct dt_plan *p = &near->timed[i];

        if (!dt_orch_spot_of(&w->moves, p, &s) || (s.set & ~w->moves.in->opt.guests) ||
            !dt_orch_spot_is_legal(&w->moves, &s) || dt_orch_plan_listed(all, out->n, p))
            continue;
        all[out->n++] = *p;
        n++;
    }
    DT_TRY(nearest(w, err, &all[out->n], &found));
    if (found && !dt_orch_plan_listed(all, out->n, &all[out->n]))
        out->n++;
    return dt_orch_sort(all, out->n, err);
}

static enum dt_status polish(struct polish *w, struct dt_error *err, struct dt_search_result *out)
{
    int seeds = w->moves.in->near ? NEAR_SEEDS : w->moves.few ? FEW_SEEDS : SEEDS;
    struct dt_plan *all;

    if (w->moves.in->near)
        DT_TRY(add_near(w, err, out));
    for (int i = 0; i < out->n && w->n < seeds; i++) { /* the best of those that may start first */
        double s = out->plans[i].predicted.timeline_s, best = w->all[0].start.predicted.timeline_s;

        if (s > 0 && (w->n == 0 || s <= best * (1 + (w->moves.few ? FAR_REACH : FAR_SEED))))
            DT_TRY(start(w, &out->plans[i], err));
    }
    DT_TRY(look_around(w, out->stats.candidates, err));
    all = dt_realloc(out->plans, (size_t)(out->n + w->n) * sizeof(*all));
    if (!all)
        return dt_error_nomem(err, "plans");
    out->plans = all;
    for (int i = 0; i < w->n; i++) {
        const struct descent *d = &w->all[i];
        struct dt_plan *same = dt_orch_plan_listed(out->plans, out->n, &d->plan);

        if (same && same->predicted.timeline_s <= 0) /* the budget did not reach it before */
            *same = d->plan;
        else if (!same)
            all[out->n++] = d->plan;
    }
    return dt_orch_sort(all, out->n, err);
}

static enum dt_status descend(struct dt_orch_table *t, const double *cap,
                              enum dt_plan_strategy strategy, struct dt_error *err,
                              struct dt_search_result *out)
{
    struct polish *w = dt_calloc(1, sizeof(*w));
    enum dt_status st;

    if (!w)
        return dt_error_nomem(err, "planner search");
    w->moves.t = t;
    w->moves.in = t->in;
    w->moves.cap = cap;
    w->strategy = strategy;
    w->moves.llm = t->in->model->llm;
    w->moves.few = t->gpus <= FEW_GPUS;
    w->moves.reach = w->moves.few ? FAR_REACH : REACH;
    st = polish(w, err, out);
    t->n_near = 0;
    t->near = DT_ARENA_NEW(&t->arena, struct dt_plan, FASTEST);
    if (st == DT_OK && !t->near)
        st = dt_error_nomem(err, "plans");
    for (int i = 0; st == DT_OK && i < w->n_fastest; i++)
        t->near[t->n_near++] = w->fastest[i];
    for (int i = 0; i < FEW_SEEDS; i++)
        dt_free(w->all[i].hand.moves);
    dt_hash_table_free(&w->moves.seen);
    dt_free(w);
    return st;
}

/* out->timed, for those who ask why the others are not the best. */
static enum dt_status keep_timed(struct dt_search_result *out, struct dt_error *err)
{
    int n = 0;

    while (n < out->n && out->plans[n].predicted.timeline_s > 0)
        n++;
    out->timed = dt_malloc(((size_t)n + 1) * sizeof(*out->timed));
    if (!out->timed)
        return dt_error_nomem(err, "plans");
    memcpy(out->timed, out->plans, (size_t)n * sizeof(*out->timed));
    out->n_timed = n;
    return DT_OK;
}

enum dt_status dt_orch_polish(struct dt_orch_table *t, const double *cap,
                              enum dt_plan_strategy strategy, struct dt_error *err,
                              struct dt_search_result *out)
{
    int k = t->in->opt.k > 0 ? t->in->opt.k : 8;
    enum dt_status st = DT_OK;

    if (t->in->opt.rank && !t->in->opt.uniform &&
        dt_orch_polish_end(t->in, 0, out->stats.candidates) > 0) {
        st = descend(t, cap, strategy, err, out);
        if (st == DT_OK)
            st = keep_timed(out, err);
    }
    out->n = out->n < k ? out->n : k;
    return st;
}
