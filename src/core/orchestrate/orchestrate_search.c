/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * The exact search over realisable layouts, branch and bound against the K-th best found so far.
 *
 *   cell (schedule and vpp, microbatch, lane of the LLM, DP_lm)    bound: a closed form, then the convex optimum
 *    `- depth (deepest generator)               generators' Pareto fronts (GPUs, warm-up, interval) over all modes
 *        `- pp_lm                               bound: its slot time and least warm-up of the rest
 *            `- ZeRO of the LLM                 with the fastest recomputation that fits: slower ones bring nothing
 *                `- encoders' Pareto fronts, then all combinations within the GPUs left
 *
 * A front holds only layouts that fit in memory.  What a layout holds in memory depends, beyond the
 * layout itself, only on the stages downstream of it, and never falls with more of them; those are
 * fixed by the outer loops, so no layout is dropped that could be part of the optimum.  Two things upstream matter a
 * little: what waits for a generator behind a deep or interleaved LLM, and what stages behind others put off where
 * backwards are split; there a combination is checked as a whole. */
#include "base/mem.h"
#include "core/orchestrate/orchestrate_search.h"

#include <assert.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Schedules do not compete, but for one that is so much slower by the formula than another. */
#define FAR 0.3

/* ---- what the timelines of the space cannot undercut ---- */

static void note_floor(struct dt_search_state *s, double seconds)
{
    s->stats->floor_s = fmin(s->stats->floor_s, seconds);
}

/* Of the cell, whatever the depth: no stage beats the mean stage. */
static void note_cell_floor(struct dt_search_state *s)
{
    int max = dt_orch_cell_depth_max(s);

    for (int pp = s->pipe->vpp > 1 ? 2 : 1; pp <= max; pp++)
        note_floor(s, dt_orch_cell_floor(s, pp, s->micro * s->sample_lm / pp));
}

/* ---- one cell ---- */

/* The interval at which another module no longer lengthens a plan whose LLM has this one. */
static double fast_enough(const struct dt_search_state *s, double interval)
{
    if (s->pass <= 0)
        return interval;
    return s->steps > 0 ? fmax(0, interval - s->pass / s->steps) : 0;
}

/* What the interval may be at most for the total to stay within the threshold. */
static double interval_limit(const struct dt_search_state *s, double warm)
{
    double room = s->threshold * (1 + DT_ORCH_SLACK) - warm;

    if (s->steps <= 0)
        return room < 0 ? -1 : HUGE_VAL;
    return room / s->steps;
}

/* The pool's threshold for this key: a third variant of one key must beat the second. */
static double key_threshold(const struct dt_search_state *s, int zero)
{
    struct dt_orch_cand key;

    if (s->lean)
        return s->limit;
    memset(&key, 0, sizeof(key));
    key.pipe = s->c->pipe;
    key.microbatch = s->c->microbatch;
    key.of[s->llm].lane = s->c->lane;
    key.of[s->llm].zero = (uint8_t)zero;
    key.of[s->llm].dp = s->c->dp_lm;
    key.of[s->llm].pp = (int16_t)s->pp_lm;
    return dt_orch_pool_key_threshold(&s->pool, &key, s->llm);
}

/* The LLM's view of its times at the depth at hand: warm-up, passage, interval. */
struct llm_view {
    double base, pass, interval, total;
    double work; /* interval, but for what ZeRO exchanges */
};

/* False when no combination around it stays within the threshold. */
static bool of_use(const struct dt_search_state *s, struct llm_view *v)
{
    int left = s->t->gpus - s->lane_gpus * s->pp_lm * s->c->dp_lm;

    return dt_orch_cell_bound(s, left, v->base, v->pass, v->interval) <=
           s->threshold * (1 + DT_ORCH_SLACK);
}

static bool view_llm(struct dt_search_state *s, struct dt_orch_times *x, struct llm_view *v)
{
    double c = s->micro * x->sample_s, later = s->micro * x->later_s;
    const struct dt_orch_stage_entry *e;

    v->base = dt_orch_llm_warmup_s(c, later, (int64_t)s->steps + 1, s->pp_lm, s->pipe->vpp);
    v->pass = s->t->in->opt.uniform ? 0 : dt_orch_llm_pass_s(c, later, v->base);
    v->interval = c / s->pp_lm; /* no split is faster */
    if (!of_use(s, v))
        return false;
    if (!s->t->in->opt.uniform) {
        e = dt_orch_stage_of(s->t, s->llm, x, s->pp_lm, s->pipe->vpp);
        v->interval = e ? s->micro * e->max_s : HUGE_VAL;
    }
    v->work = v->interval;
    v->total = dt_orch_staged_s(v->base, s->steps, v->interval, 0, v->pass);
    return of_use(s, v);
}

/* The same once it is known what it exchanges. */
static bool view_exchange(struct dt_search_state *s, const struct dt_orch_choice *of,
                          struct llm_view *v)
{
    double each;

    if (!dt_orch_counts_exchange(s, s->llm))
        return true;
    each = dt_orch_choice_exchange_s(s->t, s->llm, of, s->c->pipe, s->c->microbatch, s->c->dp_lm);
    if (each <= v->interval)
        return true;
    v->interval = each;
    v->total = dt_orch_staged_s(v->base, s->steps, v->interval, 0, v->pass);
    return of_use(s, v);
}

/* No combination whose deepest generator is `at` with this layout is faster by the formula. */
static double bound_with(const struct dt_search_state *s, const struct llm_view *v, int at,
                         const struct dt_orch_option *o, int left)
{
    double warm = v->base + o->warm, interval = o->interval, roots = 0, work = 0, least = 0;

    left -= o->gpus;
    for (int i = 0; i < s->n_others; i++) {
        int m = s->others[i];

        if (i < s->n_gens && i != at) {
            warm += s->shallow[m].warm_min;
            interval = fmax(interval, s->shallow[m].interval_min);
            left -= s->shallow[m].l.o[0].gpus;
        } else if (i >= s->n_gens) {
            work += (double)s->slot * s->least[m]->gpu_s;
            roots += sqrt((double)s->slot * s->least[m]->gpu_s);
            least += s->least[m]->sample_s;
        }
    }
    if (left < 0 || (left == 0 && work > 0))
        return HUGE_VAL;
    if (work > 0) {
        warm += fmax(least, roots * roots / left);
        interval = fmax(interval, work / left);
    }
    return dt_orch_staged_s(warm, s->steps, v->interval, interval, v->pass);
}

/* May one with a generator of exactly this depth stay within the threshold? */
static bool depth_pays(const struct dt_search_state *s, const struct llm_view *v)
{
    int left = s->t->gpus - s->lane_gpus * s->pp_lm * s->c->dp_lm;

    for (int i = 0; i < s->n_gens; i++) {
        const struct dt_orch_options *l = &s->shallow[s->others[i]].l;

        for (size_t a = 0; a < l->n; a++)
            if (l->o[a].of.pp == s->gen_pp &&
                bound_with(s, v, i, &l->o[a], left) <= s->threshold * (1 + DT_ORCH_SLACK))
                return true;
    }
    return s->n_gens == 0;
}

enum llm_fate { LLM_TAKEN, LLM_TOO_SLOW, LLM_TOO_LARGE };

/* The fastest recomputation of the LLM at this depth that fits with this level of ZeRO, if it is faster than *best;
 * *best becomes what it takes. */
static enum llm_fate choose_llm(struct dt_search_state *s, int zero, int from, double *best)
{
    struct dt_orch_question q = {
        .m = s->llm,
        .of = {s->c->lane, 0, (uint8_t)zero, (int16_t)s->pp_lm, s->c->dp_lm},
        .pipe = s->c->pipe,
        .microbatch = s->c->microbatch,
        .dp_lm = s->c->dp_lm,
        .pp_lm = s->pp_lm,
        .gen_pp = s->gen_pp};
    bool slow = false, taken = false;

    for (int r = from; r < s->t->space.of[s->llm].n_recompute && !s->t->nomem; r++) {
        struct dt_orch_times *x =
            dt_orch_times_of(s->t, s->llm, s->c->lane, r, s->c->microbatch, s->pipe->split);
        struct llm_view v;

        if (!x || (s->only && r != s->only->recompute))
            continue;
        q.of.recompute = (uint8_t)r;
        if (!view_llm(s, x, &v) || !depth_pays(s, &v)) {
            slow = true;
            continue;
        }
        if (v.total < *best && !view_exchange(s, &q.of, &v)) {
            slow = true;
            continue;
        }
        if (v.total >= *best || !dt_orch_table_fits(s->t, &q))
            continue;
        *best = v.total;
        taken = true;
        s->of_lm = q.of;
        s->base = v.base;
        s->pass = v.pass;
        s->interval_lm = v.interval;
        s->work_lm = v.work;
    }
    return taken ? LLM_TAKEN : slow ? LLM_TOO_SLOW : LLM_TOO_LARGE;
}

/* Warm-up of all modules but m, at least. */
static double least_beside(const struct dt_search_state *s, int m)
{
    return s->base + dt_orch_cell_least_warm(s) - s->least[m]->sample_s;
}

/* What the layouts of module m may take beside the LLM at hand. */
static struct dt_orch_limits limits_of(const struct dt_search_state *s, int m, int left, int pp_max)
{
    int spare = left - (dt_orch_cell_least_gpus(s) - s->least[m]->lane_gpus);

    return (struct dt_orch_limits){
        .pp_max = pp_max,
        .gpus_max = dt_orch_module_cap(s, m, spare),
        .interval_max = interval_limit(s, s->base + dt_orch_cell_least_warm(s)),
        .interval_min = fast_enough(s, s->interval_lm),
        .base = least_beside(s, m),
        .pass = s->pass,
    };
}

static bool encoder_layouts(struct dt_search_state *s, int left)
{
    struct dt_orch_question q = {.pipe = s->c->pipe,
                                 .microbatch = s->c->microbatch,
                                 .dp_lm = s->c->dp_lm,
                                 .pp_lm = s->pp_lm,
                                 .gen_pp = s->gen_pp};

    for (int i = s->n_gens; i < s->n_others; i++) {
        int m = s->others[i];
        struct dt_orch_limits lim = limits_of(s, m, left, s->t->in->model->modules[m].n_blocks);

        q.m = m;
        s->behind[m] = dt_orch_behind(s->t, &q);
        s->use[m] = &s->front[m];
        if (!dt_orch_front_build(s, m, &lim, &s->front[m]))
            return false;
    }
    return true;
}

/* The generators that fit behind the LLM at hand; false unless the deepest of them can still be as deep. */
static bool generator_fronts(struct dt_search_state *s, int left)
{
    bool reached = s->n_gens == 0;

    for (int i = 0; i < s->n_gens; i++) {
        int m = s->others[i];
        int blocks = s->t->in->model->modules[m].n_blocks;
        struct dt_orch_limits lim = limits_of(s, m, left, s->gen_pp < blocks ? s->gen_pp : blocks);

        s->use[m] = &s->shallow[m];
        if (dt_orch_asked_again(s) || s->careful) {
            s->use[m] = &s->front[m];
            if (!dt_orch_front_build(s, m, &lim, &s->front[m]))
                return false;
        }
        for (size_t a = 0; a < s->use[m]->l.n; a++)
            reached |= s->use[m]->l.o[a].of.pp == s->gen_pp;
    }
    return reached;
}

static void combine(struct dt_search_state *s, int left)
{
    if (generator_fronts(s, left) && encoder_layouts(s, left))
        dt_orch_front_combine(s, left, s->t->gpus - left);
}

/* The combinations around the LLM as it was chosen; false: what fits by itself and is the fastest did not fit together, not
 * even where slower layouts are tried instead. */
static bool open_llm(struct dt_search_state *s, int left)
{
    const bool only_best = !s->lean && !s->all;

    s->found = s->lean ? s->found : false;
    s->refused = HUGE_VAL;
    combine(s, left);
    if (only_best && s->refused < s->threshold) {
        s->careful = true;
        s->refused = HUGE_VAL;
        combine(s, left);
        s->careful = false;
    }
    if (s->found && only_best)
        dt_orch_pool_add(&s->pool, &s->best, s->llm);
    return !only_best || s->refused >= s->threshold;
}

/* A level of ZeRO above the cheapest that fits is of use only with less recomputation.  Level 3 is tried where no other
 * fits, unless it is known here what its gathers take. */
static void open_depth_pp(struct dt_search_state *s, int pp)
{
    int gpus = s->lane_gpus * pp * s->c->dp_lm, left = s->t->gpus - gpus;
    const struct dt_orch_modes *modes = &s->t->space.of[s->llm];
    double best = HUGE_VAL;

    if (s->pipe->vpp > 1 && pp == 1) /* chunks are dealt to several stages */
        return;
    s->pp_lm = pp;
    s->stats->candidates++;
    for (int i = 0; i < s->n_gens; i++)
        if (s->shallow[s->others[i]].l.o[0].gpus > left)
            return;
    for (int z = 0; z < modes->n_zero && !s->t->nomem; z++) {
        enum llm_fate fate;

        if ((s->only && z != s->only->zero) ||
            (modes->zero[z] > 2 && best < HUGE_VAL && !dt_orch_counts_exchange(s, s->llm)))
            continue;
        s->threshold = key_threshold(s, z);
        fate = choose_llm(s, z, 0, &best);
        if (fate != LLM_TOO_LARGE)
            note_floor(s,
                       dt_orch_cell_floor(
                           s, pp, fate == LLM_TAKEN ? s->work_lm : s->micro * s->sample_lm / pp));
        while (fate == LLM_TAKEN && !open_llm(s, left)) {
            best = HUGE_VAL; /* more recomputation, or ZeRO, may make room */
            fate = choose_llm(s, z, s->of_lm.recompute + 1, &best);
            best = HUGE_VAL;
        }
    }
}

static void reject_gpus(struct dt_search_state *s, double need)
{
    struct dt_orch_rejects *r = &s->t->rejects;

    if (r->gpus++ == 0 || (int64_t)ceil(need) < r->gpus_least)
        r->gpus_least = (int64_t)ceil(need);
}

/* Depths of the LLM pipeline outwards from where the convex optimum lies. */
static void open_depth(struct dt_search_state *s, double x_lm)
{
    int lane = s->lane_gpus * s->c->dp_lm;
    int max = dt_orch_cell_depth_max(s), mid = (int)(x_lm / lane + 0.5);

    mid = mid < 1 ? 1 : mid > max ? max : mid;
    if (max < 1) {
        reject_gpus(s, lane + dt_orch_cell_least_gpus(s));
        return;
    }
    for (int d = 0; d < max && !s->t->nomem; d++) {
        if (mid + d <= max)
            open_depth_pp(s, mid + d);
        if (d > 0 && mid - d >= 1)
            open_depth_pp(s, mid - d);
    }
}

/* Fastest slot the LLM can reach in this cell. */
static double llm_interval_min(struct dt_search_state *s)
{
    int pp = dt_orch_cell_depth_max(s);

    return pp > 0 ? s->micro * s->sample_lm / pp : HUGE_VAL;
}

/* The least warm-up and the most `pass` that the LLM may have at any depth. */
static void set_least_base(struct dt_search_state *s)
{
    bool plain = s->t->in->opt.uniform || (s->pipe->vpp == 1 && !s->pipe->split);

    s->base = dt_orch_cell_least_base(s);
    s->pass = plain ? 0 : s->micro * s->sample_lm - s->base;
}

/* Layouts of all generators, of any depth; what they hold in memory does not depend on the rest. */
static bool generator_layouts(struct dt_search_state *s)
{
    int lane = s->lane_gpus * s->c->dp_lm;
    double enough;
    bool ok = true;

    s->threshold = s->lean ? s->limit : dt_orch_pool_threshold(&s->pool);
    set_least_base(s);
    enough = fast_enough(s, llm_interval_min(s));
    s->pp_lm = s->gen_pp = 1;
    s->alone = true;
    s->interval_lm = llm_interval_min(s);
    s->pass = 0;
    for (int i = 0; i < s->n_gens && ok; i++) {
        int m = s->others[i];
        struct dt_orch_limits lim =
            limits_of(s, m, s->t->gpus - lane, s->t->in->model->modules[m].n_blocks);

        lim.interval_min = enough;
        ok = dt_orch_front_build(s, m, &lim, &s->any_depth[m]);
    }
    s->alone = false;
    return ok;
}

/* Generators of at most this depth; false unless one of them can be exactly so deep. */
static bool set_depth(struct dt_search_state *s, int gen_pp)
{
    bool reached = s->n_gens == 0;

    s->gen_pp = gen_pp;
    for (int i = 0; i < s->n_gens; i++) {
        const struct dt_orch_front *all = &s->any_depth[s->others[i]];

        for (size_t a = 0; a < all->l.n; a++)
            reached |= all->l.o[a].of.pp == gen_pp;
    }
    if (!reached)
        return false;
    for (int i = 0; i < s->n_gens; i++)
        if (!dt_orch_front_shallow(s, &s->any_depth[s->others[i]], gen_pp,
                                   &s->shallow[s->others[i]]))
            return false;
    return true;
}

/* Is the LLM, as fast as it may be, of use at this depth? */
static bool depth_of_use(struct dt_search_state *s, int pp)
{
    const struct dt_orch_modes *o = &s->t->space.of[s->llm];

    s->pp_lm = pp;
    for (int r = 0; r < o->n_recompute; r++) {
        struct dt_orch_times *x =
            dt_orch_times_of(s->t, s->llm, s->c->lane, r, s->c->microbatch, s->pipe->split);
        struct llm_view v;

        if (x && view_llm(s, x, &v))
            return true;
    }
    return false;
}

/* The deepest LLM of use; false: there is none. */
static bool set_deepest(struct dt_search_state *s)
{
    int max = dt_orch_cell_depth_max(s);

    s->threshold = s->lean ? s->limit : dt_orch_pool_threshold(&s->pool);
    s->deepest_lm = max;
    while (s->deepest_lm > 0 && !depth_of_use(s, s->deepest_lm))
        s->deepest_lm--;
    return s->deepest_lm > 0 || max < 1; /* the rejection is to be counted */
}

static void open_cell(struct dt_search_state *s, double x_lm)
{
    int deepest = 0;

    s->stats->cells_opened++;
    if (!set_deepest(s) || !generator_layouts(s)) {
        note_cell_floor(s);
        return;
    }
    for (int i = 0; i < s->n_gens; i++) {
        const struct dt_orch_front *all = &s->any_depth[s->others[i]];

        for (size_t a = 0; a < all->l.n; a++)
            deepest = all->l.o[a].of.pp > deepest ? all->l.o[a].of.pp : deepest;
    }
    for (int gen_pp = s->n_gens ? 1 : 0; gen_pp <= deepest && !s->t->nomem; gen_pp++)
        if (set_depth(s, gen_pp))
            open_depth(s, x_lm);
}

/* ---- all cells ---- */

static void visit_cells(struct dt_search_state *s, const struct dt_orch_cell *cells, size_t n)
{
    double x[DT_MAX_MODULES] = {0}, least = HUGE_VAL;
    bool far = false; /* all that follow are beyond the threshold, too */

    s->stats->cells += (int64_t)n;
    for (size_t i = 0; i < n && !s->t->nomem; i++) {
        double threshold = dt_orch_pool_threshold(&s->pool);

        dt_orch_cell_set(s, &cells[i]);
        far = far || (cells[i].bound > threshold && cells[i].bound > least);
        if (far) {
            note_cell_floor(s);
            continue;
        }
        s->cell_bound = dt_orch_cell_convex(s, x);
        least = fmin(least, s->cell_bound);
        if (isinf(s->cell_bound))
            reject_gpus(s, s->min_gpus);
        else if (fmax(s->cell_bound, cells[i].bound) * (1 - DT_ORCH_SLACK) <= threshold)
            open_cell(s, x[s->llm]);
        else
            note_cell_floor(s);
    }
    s->stats->lower_bound_s = fmin(s->stats->lower_bound_s, least);
}

void dt_orch_search_init(struct dt_search_state *s, struct dt_orch_table *t)
{
    const struct dt_model *model = t->in->model;

    memset(s, 0, sizeof(*s));
    s->t = t;
    s->llm = model->llm;
    s->n_modules = model->n_modules;
    for (int pass = 0; pass < 2; pass++)
        for (int m = 0; m < model->n_modules; m++)
            if (model->modules[m].role == (pass ? DT_ROLE_ENCODER : DT_ROLE_GENERATOR)) {
                s->others[s->n_others++] = m;
                s->n_gens += !pass;
            }
    assert(s->n_others == s->n_modules - 1);
}

static void search_free(struct dt_search_state *s)
{
    for (int m = 0; m < s->n_modules; m++) {
        dt_free(s->front[m].l.o);
        dt_free(s->shallow[m].l.o);
        dt_free(s->any_depth[m].l.o);
    }
    dt_free(s->raw.o);
}

/* Everything with this schedule that takes at most `limit`, into a pool of its own at `out`. */
static int search_schedule(struct dt_orch_table *t, enum dt_pipe_schedule schedule,
                           const double *cap, const struct dt_orch_keep *keep, double limit,
                           struct dt_orch_cand *out, struct dt_search_stats *stats)
{
    struct dt_orch_cell *cells;
    struct dt_search_state s;
    size_t n_cells;

    dt_orch_search_init(&s, t);
    s.cap = cap;
    s.pool = (struct dt_orch_pool){out, keep->k, 0, keep->per_key, keep->sure, keep->margin, limit};
    s.all = keep->per_key > DT_ORCH_PER_KEY;
    s.stats = stats;
    if (dt_orch_cells_list(&s, schedule, &cells, &n_cells))
        visit_cells(&s, cells, n_cells);
    else
        t->nomem = true;
    dt_free(cells);
    search_free(&s);
    return s.pool.n;
}

static int by_score(const void *pa, const void *pb)
{
    const struct dt_orch_cand *a = pa, *b = pb;

    return dt_orch_cand_better(a, b) ? -1 : dt_orch_cand_better(b, a) ? 1 : 0;
}

enum dt_status dt_orch_search(struct dt_orch_table *t, const double *cap,
                              const struct dt_orch_keep *keep, struct dt_error *err,
                              struct dt_orch_cand *out, int *n, struct dt_search_stats *stats)
{
    double least = HUGE_VAL;
    int kept = 0;

    stats->lower_bound_s = stats->floor_s = HUGE_VAL;
    for (int i = 0; i < DT_SCHED_N; i++) {
        double limit = keep->margin > 0 ? least * (1 + fmax(FAR, keep->margin)) : HUGE_VAL;
        int found =
            search_schedule(t, (enum dt_pipe_schedule)i, cap, keep, limit, out + kept, stats);

        if (found > 0)
            least = fmin(least, out[kept].score);
        kept += found;
    }
    if (isinf(stats->lower_bound_s))
        stats->lower_bound_s = 0;
    if (isinf(stats->floor_s))
        stats->floor_s = 0;
    if (t->nomem)
        return dt_error_nomem(err, "planner search");
    if (kept > 1)
        qsort(out, (size_t)kept, sizeof(*out), by_score);
    *n = kept;
    return DT_OK;
}

enum dt_status dt_orch_search_lean(struct dt_orch_table *t, const struct dt_orch_cand *c,
                                   double limit, struct dt_error *err, struct dt_orch_cand *out)
{
    const struct dt_orch_choice *llm = &c->of[t->in->model->llm];
    struct dt_orch_cell cell = {0, llm->dp, c->pipe, c->microbatch, llm->lane};
    struct dt_search_stats stats;
    struct dt_search_state s;
    int gen_pp = 0;

    memset(&stats, 0, sizeof(stats));
    dt_orch_search_init(&s, t);
    s.stats = &stats;
    s.lean = true;
    s.only = llm;
    s.limit = limit;
    s.cell_bound = c->lower_bound_s;
    dt_orch_cell_set(&s, &cell);
    s.deepest_lm = llm->pp;
    for (int i = 0; i < s.n_gens; i++)
        if (c->of[s.others[i]].pp > gen_pp)
            gen_pp = c->of[s.others[i]].pp;
    if (generator_layouts(&s) && set_depth(&s, gen_pp))
        open_depth_pp(&s, llm->pp);
    search_free(&s);
    if (t->nomem)
        return dt_error_nomem(err, "planner search");
    *out = s.found ? s.best : *c;
    if (s.found)
        out->score = out->total_s;
    return DT_OK;
}

enum dt_status dt_orch_search_around(struct dt_orch_table *t, const struct dt_orch_cand *c,
                                     const double *cap, double limit, int k, struct dt_error *err,
                                     struct dt_orch_cand *out, int *n)
{
    const struct dt_orch_choice *llm = &c->of[t->in->model->llm];
    struct dt_orch_cell cell = {0, llm->dp, c->pipe, c->microbatch, llm->lane};
    struct dt_search_stats stats;
    struct dt_search_state s;
    int deepest = 0;

    memset(&stats, 0, sizeof(stats));
    dt_orch_search_init(&s, t);
    s.cap = cap;
    s.stats = &stats;
    s.only = llm;
    s.all = true;
    s.pool = (struct dt_orch_pool){out, k, 0, k, k, 0, limit};
    dt_orch_cell_set(&s, &cell);
    s.deepest_lm = llm->pp;
    if (llm->pp <= dt_orch_cell_depth_max(&s) && generator_layouts(&s)) {
        for (int i = 0; i < s.n_gens; i++) {
            const struct dt_orch_front *all = &s.any_depth[s.others[i]];

            for (size_t a = 0; a < all->l.n; a++)
                deepest = all->l.o[a].of.pp > deepest ? all->l.o[a].of.pp : deepest;
        }
        for (int gen_pp = s.n_gens ? 1 : 0; gen_pp <= deepest; gen_pp++)
            if (set_depth(&s, gen_pp))
                open_depth_pp(&s, llm->pp);
    }
    search_free(&s);
    if (t->nomem)
        return dt_error_nomem(err, "planner search");
    *n = s.pool.n;
    return DT_OK;
}
