/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * The inner part of the search: a module's layouts, their Pareto front, and all combinations of
 * fronts. */
#include "base/mem.h"
#include "core/orchestrate/orchestrate_search.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- fronts ---- */

static int by_gpus(const void *pa, const void *pb)
{
    const struct dt_orch_option *a = pa, *b = pb;

    if (a->gpus != b->gpus)
        return a->gpus < b->gpus ? -1 : 1;
    if (a->interval != b->interval)
        return a->interval < b->interval ? -1 : 1;
    if (a->warm != b->warm)
        return a->warm < b->warm ? -1 : 1;
    return a->of.pp - b->of.pp;
}

static void cost_option(const struct dt_search_state *s, double c, double stage_s,
                        struct dt_orch_option *o)
{
    int pp = o->of.pp, dp = o->of.dp;

    if (s->t->in->opt.uniform) { /* the published formula: uniform stages, fractional samples */
        o->warm = (double)s->slot * c / dp;
        o->interval = o->warm / pp;
    } else {
        double k = (double)dt_orch_samples_per_replica(s->slot, dp);

        o->warm = k * c;
        o->interval = k * stage_s;
    }
}

static bool push(struct dt_search_state *s, const struct dt_orch_option *o)
{
    void *p = s->raw.o;

    if (dt_grow(&p, &s->raw.cap, s->raw.n + 1, sizeof(*o)) != 0) {
        s->t->nomem = true;
        return false;
    }
    s->raw.o = p;
    s->raw.o[s->raw.n++] = *o;
    return true;
}

/* *hopeless (NULL: is not asked): it does not, nor does any recomputation and level of ZeRO of its lane, dp and depth. */
static bool fits(struct dt_search_state *s, int m, const struct dt_orch_choice *of, bool *hopeless)
{
    const struct dt_orch_question q = {.m = m,
                                       .of = *of,
                                       .pipe = s->c->pipe,
                                       .microbatch = s->c->microbatch,
                                       .dp_lm = s->c->dp_lm,
                                       .pp_lm = s->pp_lm,
                                       .gen_pp = s->gen_pp,
                                       .behind = s->behind[m],
                                       .alone = s->alone};

    if (dt_orch_table_fits(s->t, &q))
        return true;
    if (hopeless)
        *hopeless |= dt_orch_table_hopeless(s->t, &q);
    return false;
}

/* A generator that fits alone: does it behind the deepest LLM of use and beside the deepest generator? */
static bool fits_surely(struct dt_search_state *s, int m, const struct dt_orch_choice *of)
{
    struct dt_orch_question q = {.m = m,
                                 .of = *of,
                                 .pipe = s->c->pipe,
                                 .microbatch = s->c->microbatch,
                                 .dp_lm = s->c->dp_lm,
                                 .pp_lm = s->deepest_lm,
                                 .gen_pp = of->pp};

    for (int i = 0; i < s->n_gens && s->n_gens > 1; i++) {
        int blocks = s->t->in->model->modules[s->others[i]].n_blocks;

        q.gen_pp = blocks > q.gen_pp ? blocks : q.gen_pp;
    }
    return dt_orch_table_fits(s->t, &q);
}

/* The LLM's interval, at least, where a layout takes so many GPUs and the LLM is yet to be chosen. */
static double interval_beside(const struct dt_search_state *s, int gpus)
{
    int room;

    if (!s->alone)
        return s->interval_lm;
    room = (s->room_lm - gpus) / (s->lane_gpus * s->c->dp_lm);
    return room < 1 ? HUGE_VAL
                    : s->micro * s->sample_lm / (room < s->depth_lm ? room : s->depth_lm);
}

/* May a combination with this layout stay within the threshold? */
static bool of_use(const struct dt_search_state *s, const struct dt_orch_limits *lim, int gpus,
                   double warm, double interval)
{
    return dt_orch_staged_s(lim->base + warm, s->steps, interval_beside(s, gpus), interval,
                            lim->pass) <= s->threshold * (1 + DT_ORCH_SLACK);
}

/* What one layout must have of another to beat it, beyond being no larger and no slower. */
enum rival {
    ANY,
    NONE,    /* the faster one was refused together with the others */
    SHALLOW, /* no more stages: deeper generators raise what everything upstream holds */
    SAFE, /* it fits with most under way, or has as many stages and no less recomputation: what fits here may not
              * fit behind other LLMs */
};

static enum rival rival_of(const struct dt_search_state *s, int m)
{
    if (s->careful)
        return NONE;
    if (s->t->in->model->modules[m].role != DT_ROLE_GENERATOR)
        return ANY;
    return s->alone && dt_orch_asked_again(s) ? SAFE : SHALLOW;
}

/* Is it no larger, with neither more warm-up nor a longer interval? */
static bool beats(const struct dt_orch_option *x, const struct dt_orch_option *o, enum rival rival)
{
    if (x->gpus > o->gpus || x->warm > o->warm || x->interval > o->interval ||
        (rival != ANY && x->of.pp > o->of.pp))
        return false;
    return rival != SAFE || x->sure || (x->of.pp == o->of.pp && x->of.recompute >= o->of.recompute);
}

/* A layout that fits and beats it; NULL: there is none. */
static const struct dt_orch_option *better_than(const struct dt_orch_options *l,
                                                const struct dt_orch_option *o, enum rival rival)
{
    for (size_t i = rival == NONE ? 0 : l->n; i-- > 0;)
        if (beats(&l->o[i], o, rival))
            return &l->o[i];
    return NULL;
}

/* The same among the raw ones, where any will do: nearly always the one that beat another a moment ago. */
static bool is_beaten(struct dt_search_state *s, const struct dt_orch_option *o, enum rival rival)
{
    const struct dt_orch_option *better = NULL;

    if (rival != NONE && s->beater < s->raw.n && beats(&s->raw.o[s->beater], o, rival))
        return true;
    better = better_than(&s->raw, o, rival);
    if (better)
        s->beater = (size_t)(better - s->raw.o);
    return better != NULL;
}

/* With what its ZeRO exchanges, which takes a while to find out; false: then it is of no use. */
static bool add_exchange(struct dt_search_state *s, int m, const struct dt_orch_limits *lim,
                         enum rival rival, struct dt_orch_option *o)
{
    double each;

    if (!dt_orch_counts_exchange(s, m))
        return true;
    each = dt_orch_choice_exchange_s(s->t, m, &o->of, s->c->pipe, s->c->microbatch, s->c->dp_lm);
    if (each <= o->interval)
        return true;
    o->interval = each;
    return of_use(s, lim, o->gpus, o->warm, o->interval) && !is_beaten(s, o, rival);
}

/* Nothing deeper is faster. */
static bool is_fastest(const struct dt_orch_limits *lim, const struct dt_orch_option *o)
{
    return o->of.recompute == 0 && o->interval <= lim->interval_min;
}

/* A layout that is of use and not beaten, where it fits; memory is asked last, it takes longest. */
static bool list_one(struct dt_search_state *s, int m, const struct dt_orch_limits *lim,
                     enum rival rival, struct dt_orch_option *o, bool *done, bool *hopeless)
{
    if (!fits(s, m, &o->of, hopeless)) {
        s->unfit[s->n_unfit++] = *o;
        return true;
    }
    o->sure = rival != SAFE || fits_surely(s, m, &o->of);
    if (!push(s, o))
        return false;
    *done |= is_fastest(lim, o) && o->sure && rival != NONE;
    return true;
}

/* One lane, dp, depth and level of ZeRO: every recomputation that fits and is not beaten.  *done: nothing deeper is of use;
 * *hopeless: no other level of ZeRO fits. */
static bool list_recompute(struct dt_search_state *s, int m, struct dt_orch_choice *of,
                           const struct dt_orch_limits *lim, bool *done, bool *hopeless)
{
    const struct dt_orch_modes *modes = &s->t->space.of[m];
    enum rival rival = rival_of(s, m);

    s->n_unfit = 0;
    for (int r = 0; r < modes->n_recompute; r++) {
        struct dt_orch_times *x = s->times[r];
        const struct dt_orch_stage_entry *e = dt_orch_stage_of(s->t, m, x, of->pp, 1);
        struct dt_orch_option o = {.of = *of};
        const struct dt_orch_option *better;
        bool fastest;

        if (!e)
            return false;
        s->stats->candidates++;
        if (*hopeless) /* those with more recomputation are no faster, so they are no reason to be done */
            continue;
        o.of.recompute = (uint8_t)r;
        o.gpus = dt_orch_lane_gpus(&modes->lane[of->lane]) * of->pp * of->dp;
        cost_option(s, x->sample_s, e->max_s, &o);
        o.interval = fmax(o.interval, lim->interval_min); /* being faster is worth nothing */
        fastest = is_fastest(lim, &o);
        if (!of_use(s, lim, o.gpus, o.warm, o.interval)) {
            *done |= fastest; /* deeper ones take more GPUs and are no faster */
            continue;
        }
        better = fastest ? better_than(&s->raw, &o, rival) : NULL;
        *done |= better && better->sure; /* deeper ones with more GPUs are beaten, too */
        if (better || (!fastest && is_beaten(s, &o, rival)))
            continue;
        if (add_exchange(s, m, lim, rival, &o) && !list_one(s, m, lim, rival, &o, done, hopeless))
            return false;
    }
    return !s->t->nomem;
}

/* Another level of ZeRO of those that memory refused, where it is as fast: of the others none is of use then, either. */
static bool list_unfit(struct dt_search_state *s, int m, int zero, const struct dt_orch_limits *lim,
                       bool *done)
{
    enum rival rival = rival_of(s, m);
    size_t before = s->raw.n;
    int n = s->n_unfit;

    /* all are counted, as budgets of searches count: their times are those that they have at the level before */
    s->stats->candidates += s->t->space.of[m].n_recompute;
    s->n_unfit = 0;
    for (int i = 0; i < n; i++) {
        struct dt_orch_option o = s->unfit[i];

        o.of.zero = (uint8_t)zero;
        if (s->raw.n > before && is_beaten(s, &o, rival))
            continue;
        if (!list_one(s, m, lim, rival, &o, done, NULL)) /* what is left is these few */
            return false;
    }
    return !s->t->nomem;
}

/* One lane, dp and depth, at the first level of ZeRO, by preference, at which any recomputation fits; where it is known what
 * more ZeRO exchanges, at the others, too, which may do with less recomputation. */
static bool list_zero(struct dt_search_state *s, int m, struct dt_orch_choice *of,
                      const struct dt_orch_limits *lim, bool *done)
{
    const struct dt_orch_modes *modes = &s->t->space.of[m];
    bool exchange = dt_orch_counts_exchange(s, m), hopeless = false;
    size_t before = s->raw.n;

    of->zero = 0;
    if (!list_recompute(s, m, of, lim, done, &hopeless))
        return false;
    if (hopeless && !*done) { /* counted as those that are asked about are */
        s->stats->candidates += (int64_t)modes->n_recompute * (modes->n_zero - 1);
        return true;
    }
    /* where memory refused none, another level of ZeRO is of no use, either */
    for (int z = 1; z < modes->n_zero && s->n_unfit > 0 && !*done; z++) {
        hopeless = false;
        if (s->raw.n > before && !exchange)
            break;
        of->zero = (uint8_t)z;
        if (!(exchange ? list_recompute(s, m, of, lim, done, &hopeless)
                       : list_unfit(s, m, z, lim, done)))
            return false;
    }
    return true;
}

/* Layouts of module m with dp replicas, worth their GPUs: from the shallowest pipeline that may
 * meet interval_max to the first that is as fast as anything else can be (interval_min) and fits;
 * deeper ones only cost more. */
static bool list_depths(struct dt_search_state *s, int m, int lane, int dp,
                        const struct dt_orch_limits *lim)
{
    int gpus = dt_orch_lane_gpus(&s->t->space.of[m].lane[lane]);
    double fullest = s->t->in->opt.uniform ? (double)s->slot / dp
                                           : (double)dt_orch_samples_per_replica(s->slot, dp);
    /* no stage beats the mean stage */
    double least = fullest * s->least[m]->sample_s / lim->interval_max;
    int pp = least > 1 ? (least < lim->pp_max ? (int)least : lim->pp_max) : 1;
    bool done = !of_use(s, lim, gpus * pp * dp, fullest * s->least[m]->sample_s, 0);

    for (; !done && pp <= lim->pp_max && (int64_t)gpus * pp * dp <= lim->gpus_max; pp++) {
        struct dt_orch_choice of = {(uint8_t)lane, 0, 0, (int16_t)pp, dp};

        if (!list_zero(s, m, &of, lim, &done))
            return false;
    }
    return true;
}

/* Unless `uniform`, only the least dp of each number of samples per replica is worth its GPUs:
 * about 2*sqrt(slot) of them.  Many replicas first: they need the least depth, and beat deep ones. */
static bool list_lane(struct dt_search_state *s, int m, int lane, const struct dt_orch_limits *lim)
{
    int64_t dp = lim->gpus_max / dt_orch_lane_gpus(&s->t->space.of[m].lane[lane]);

    for (int r = 0; r < s->t->space.of[m].n_recompute; r++) {
        s->times[r] = dt_orch_times_of(s->t, m, lane, r, 0, s->pipe->split);
        if (!s->times[r])
            return false;
    }
    if (dp > s->slot)
        dp = s->slot;
    for (; dp > 0; dp--) {
        if (!s->t->in->opt.uniform) {
            int64_t k = dt_orch_samples_per_replica(s->slot, (int)dp);

            dp = (s->slot + k - 1) / k;
        }
        if (!list_depths(s, m, lane, (int)dp, lim))
            return false;
    }
    return true;
}

static bool list_options(struct dt_search_state *s, int m, const struct dt_orch_limits *lim)
{
    s->raw.n = 0;
    for (int lane = 0; lane < s->t->space.of[m].n_lanes; lane++)
        if (!list_lane(s, m, lane, lim))
            return false;
    return !s->t->nomem;
}

static bool front_reserve(struct dt_search_state *s, struct dt_orch_front *f, size_t n)
{
    void *p = f->l.o;

    if (dt_grow(&p, &f->l.cap, n + 1, sizeof(*f->l.o)) != 0) {
        s->t->nomem = true;
        return false;
    }
    f->l.o = p;
    f->l.n = 0;
    f->warm_min = f->interval_min = HUGE_VAL;
    return true;
}

static void front_add(struct dt_orch_front *f, const struct dt_orch_option *o)
{
    f->l.o[f->l.n++] = *o;
    f->warm_min = fmin(f->warm_min, o->warm);
    f->interval_min = fmin(f->interval_min, o->interval);
}

/* Sorted by GPUs, an option is beaten exactly if an earlier one beats it. */
bool dt_orch_front_build(struct dt_search_state *s, int m, const struct dt_orch_limits *lim,
                         struct dt_orch_front *f)
{
    enum rival rival = rival_of(s, m);

    s->room_lm = s->t->gpus - dt_orch_cell_least_gpus(s) + s->least[m]->lane_gpus;
    s->depth_lm = dt_orch_cell_depth_max(s);
    if (!list_options(s, m, lim) || !front_reserve(s, f, s->raw.n))
        return false;
    if (s->raw.n > 1)
        qsort(s->raw.o, s->raw.n, sizeof(*s->raw.o), by_gpus);
    for (size_t i = 0; i < s->raw.n; i++)
        if (!better_than(&f->l, &s->raw.o[i], rival))
            front_add(f, &s->raw.o[i]);
    return f->l.n > 0;
}

bool dt_orch_front_shallow(struct dt_search_state *s, const struct dt_orch_front *all, int pp_max,
                           struct dt_orch_front *f)
{
    if (!front_reserve(s, f, all->l.n))
        return false;
    for (size_t i = 0; i < all->l.n; i++)
        if (all->l.o[i].of.pp <= pp_max)
            front_add(f, &all->l.o[i]);
    return f->l.n > 0;
}

/* ---- combinations ---- */

/* Is a combination of layouts that fit by themselves to be checked as a whole. */
static bool must_check(const struct dt_search_state *s)
{
    return s->n_others > 0 &&
           (s->pipe->split || (s->n_gens > 0 && s->pipe->vpp > 1) || s->n_gens > 1);
}

static void take_leaf(struct dt_search_state *s, int gpus, double total)
{
    struct dt_orch_cand c;

    memset(&c, 0, sizeof(c));
    c.total_s = total;
    c.score = s->lean ? gpus : total;
    c.gpus = gpus;
    c.pipe = s->c->pipe;
    c.microbatch = s->c->microbatch;
    c.lower_bound_s = s->cell_bound;
    c.of[s->llm] = s->of_lm;
    for (int i = 0; i < s->n_others; i++)
        c.of[s->others[i]] = s->pick[i]->of;
    if (s->found && !s->all && !dt_orch_cand_better(&c, &s->best))
        return;
    if (must_check(s) && !dt_orch_cand_fits(s->t, &c)) {
        s->refused = fmin(s->refused, c.score);
        return;
    }
    if (s->all) {
        dt_orch_pool_add(&s->pool, &c, s->llm);
        return;
    }
    s->best = c;
    s->found = true;
    if (!s->lean)
        s->threshold = total;
}

/* Is the deepest generator exactly gen_pp deep?  If not, a smaller depth has seen this combination
 * already. */
static bool depth_reached(const struct dt_search_state *s)
{
    int deepest = s->n_gens ? 0 : s->gen_pp;

    for (int i = 0; i < s->n_gens; i++)
        if (s->pick[i]->of.pp > deepest)
            deepest = s->pick[i]->of.pp;
    return deepest == s->gen_pp;
}

/* Warm-up and longest interval of the modules around the LLM. */
static double total_s(const struct dt_search_state *s, double warm, double interval)
{
    return dt_orch_staged_s(s->base + warm, s->steps, s->interval_lm, interval, s->pass);
}

/* Modules others[i..] remain; `left` GPUs, warm-up and longest interval so far, GPUs used so far.
 */
static void combine(struct dt_search_state *s, int i, int left, double warm, double interval,
                    int used)
{
    double rest_warm = 0, rest_interval = 0;
    int rest_gpus = 0;
    const struct dt_orch_front *f;

    if (i == s->n_others) {
        s->stats->candidates++;
        if (depth_reached(s))
            take_leaf(s, used, total_s(s, warm, interval));
        return;
    }
    for (int j = i + 1; j < s->n_others; j++) {
        const struct dt_orch_front *g = s->use[s->others[j]];

        rest_warm += g->warm_min;
        rest_interval = fmax(rest_interval, g->interval_min);
        rest_gpus += g->l.o[0].gpus;
    }
    f = s->use[s->others[i]];
    for (size_t a = f->l.n; a-- > 0;) { /* most GPUs first: a good incumbent early */
        const struct dt_orch_option *o = &f->l.o[a];
        double longest = fmax(interval, o->interval);
        double bound = total_s(s, warm + o->warm + rest_warm, fmax(longest, rest_interval));

        if (o->gpus + rest_gpus > left || bound > s->threshold * (1 + 1e-15))
            continue;
        if (s->lean && s->found && used + o->gpus + rest_gpus >= s->best.gpus)
            continue;
        s->pick[i] = o;
        combine(s, i + 1, left - o->gpus, warm + o->warm, longest, used + o->gpus);
    }
}

void dt_orch_front_combine(struct dt_search_state *s, int left, int used)
{
    combine(s, 0, left, 0, 0, used);
}
