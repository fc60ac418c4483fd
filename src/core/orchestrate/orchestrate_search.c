/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * The exact search over realisable layouts, branch and bound against the K-th best found so far.
 *
 *   cell (TP_m for every module, DP_lm, vpp)    bound: a closed form, then the convex optimum
 *    `- depth (deepest generator)               generators' Pareto fronts (GPUs, warm-up, interval)
 *        `- pp_lm                               bound: its slot time and least warm-up of the rest
 *            `- encoders' Pareto fronts, then all combinations within the GPUs left
 *
 * A front holds only layouts that fit in memory.  What a layout holds in memory depends, beyond the
 * layout itself, only on the stages downstream of it, and never falls with more of them; those are
 * fixed by the outer loops, so no layout is dropped that could be part of the optimum. */
#include "base/mem.h"
#include "core/orchestrate/orchestrate_search.h"

#include <assert.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { KEEP_PER_KEY = 2 };

/* Bounds are compared with this much slack, far above rounding and far below any real difference.
 */
#define SLACK 1e-9

/* ---- the pool: the k best, at most two per (TP_lm, DP_lm, pp_lm) ---- */

static bool same_key(const struct dt_search_state *s, const struct dt_orch_cand *a,
                     const struct dt_orch_cand *b)
{
    return a->tpi[s->llm] == b->tpi[s->llm] && a->dp[s->llm] == b->dp[s->llm] &&
           a->pp[s->llm] == b->pp[s->llm];
}

/* The entry that a newcomer with this key would have to displace, or -1 when there is room. */
static int victim(const struct dt_search_state *s, const struct dt_orch_cand *c)
{
    int worst = -1, worst_key = -1, keys = 0;

    for (int i = 0; i < s->n_pool; i++) {
        if (worst < 0 || dt_orch_cand_better(&s->pool[worst], &s->pool[i]))
            worst = i;
        if (!same_key(s, &s->pool[i], c))
            continue;
        keys++;
        if (worst_key < 0 || dt_orch_cand_better(&s->pool[worst_key], &s->pool[i]))
            worst_key = i;
    }
    if (keys >= KEEP_PER_KEY)
        return worst_key;
    return s->n_pool < s->k ? -1 : worst;
}

static double pool_threshold(const struct dt_search_state *s)
{
    double worst = 0;

    if (s->n_pool < s->k)
        return HUGE_VAL;
    for (int i = 0; i < s->n_pool; i++)
        worst = fmax(worst, s->pool[i].score);
    return worst;
}

static void pool_add(struct dt_search_state *s, const struct dt_orch_cand *c)
{
    int v = victim(s, c);

    if (v < 0)
        s->pool[s->n_pool++] = *c;
    else if (dt_orch_cand_better(c, &s->pool[v]))
        s->pool[v] = *c;
}

/* ---- one cell ---- */

static double llm_interval(struct dt_search_state *s, int pp)
{
    int tpi = s->c->tpi[s->llm], m = s->t->in->policy.microbatch;
    const struct dt_orch_stage_entry *e;

    if (s->t->in->opt.uniform)
        return m * s->sample_s[s->llm] / pp;
    e = dt_orch_table_stage(s->t, s->llm, tpi, pp, s->c->vpp);
    return e ? m * e->max_s : HUGE_VAL;
}

/* The LLM's warm-up at this depth, and what its passage takes beyond it. */
static void set_base(struct dt_search_state *s, int pp)
{
    double c = s->t->in->policy.microbatch * s->sample_s[s->llm];

    s->base = dt_orch_llm_warmup_s(c, pp, s->c->vpp);
    s->pass = s->t->in->opt.uniform || s->c->vpp == 1 ? 0 : c - s->base;
}

/* The interval at which another module no longer lengthens a plan whose LLM has this one. */
static double fast_enough(const struct dt_search_state *s, double interval)
{
    if (s->pass <= 0)
        return interval;
    return s->steps > 0 ? fmax(0, interval - s->pass / s->steps) : 0;
}

static int module_cap(const struct dt_search_state *s, int m, int gpus)
{
    return s->cap && s->cap[m] < gpus ? (int)s->cap[m] : gpus;
}

static double least_warm(const struct dt_search_state *s, int from)
{
    double warm = 0;

    for (int i = from; i < s->n_others; i++) /* a replica sees at least one sample of a slot */
        warm += s->sample_s[s->others[i]];
    return warm;
}

static int least_gpus(const struct dt_search_state *s, int from)
{
    int gpus = 0;

    for (int i = from; i < s->n_others; i++)
        gpus += 1 << s->c->tpi[s->others[i]];
    return gpus;
}

/* What the interval may be at most for the total to stay within the threshold. */
static double interval_limit(const struct dt_search_state *s, double warm)
{
    double room = s->threshold * (1 + SLACK) - warm;

    if (s->steps <= 0)
        return room < 0 ? -1 : HUGE_VAL;
    return room / s->steps;
}

/* The pool's threshold for this key: a third variant of one key must beat the second. */
static double key_threshold(const struct dt_search_state *s)
{
    struct dt_orch_cand key;
    int v;

    if (s->lean)
        return s->limit;
    memset(&key, 0, sizeof(key));
    key.tpi[s->llm] = s->c->tpi[s->llm];
    key.dp[s->llm] = s->c->dp_lm;
    key.pp[s->llm] = (int16_t)s->pp_lm;
    v = victim(s, &key);
    return v < 0 ? HUGE_VAL : s->pool[v].score;
}

static void open_depth_pp(struct dt_search_state *s, int pp)
{
    const struct dt_orch_cell *c = s->c;
    int gpus = (1 << c->tpi[s->llm]) * pp * c->dp_lm, left = s->t->gpus - gpus;
    double interval, limit, warm = least_warm(s, 0);

    if (c->vpp > 1 && pp == 1) /* chunks are dealt to several stages */
        return;
    s->pp_lm = pp;
    s->threshold = key_threshold(s);
    set_base(s, pp);
    interval = s->interval_lm = llm_interval(s, pp);
    limit = interval_limit(s, s->base + warm);
    s->stats->candidates++;
    if (interval > limit)
        return;
    for (int i = 0; i < s->n_gens; i++)
        if (s->front[s->others[i]].l.o[0].gpus > left)
            return;
    if (!dt_orch_table_fits(s->t, s->llm, c->tpi[s->llm], pp, c->dp_lm, c->dp_lm, pp, c->vpp,
                            s->gen_pp))
        return;
    for (int i = s->n_gens; i < s->n_others; i++) {
        int m = s->others[i];
        int spare = left - (least_gpus(s, 0) - (1 << c->tpi[m]));
        const struct dt_orch_limits lim = {s->t->in->model->modules[m].n_blocks,
                                           module_cap(s, m, spare), limit,
                                           fast_enough(s, interval)};

        if (!dt_orch_front_build(s, m, &lim, &s->front[m]))
            return;
    }
    s->found = s->lean ? s->found : false;
    dt_orch_front_combine(s, left, gpus);
    if (s->found && !s->lean)
        pool_add(s, &s->best);
}

/* Deepest LLM pipeline that leaves a lane to every other module. */
static int llm_depth_max(const struct dt_search_state *s)
{
    const struct dt_orch_cell *c = s->c;
    int lane = (1 << c->tpi[s->llm]) * c->dp_lm;
    int room = module_cap(s, s->llm, s->t->gpus - least_gpus(s, 0)) / lane;
    int max = s->t->in->model->modules[s->llm].n_blocks / c->vpp;

    if (max * c->vpp > DT_MAX_VSTAGES)
        max = DT_MAX_VSTAGES / c->vpp;
    return room < max ? room : max;
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
    const struct dt_orch_cell *c = s->c;
    int lane = (1 << c->tpi[s->llm]) * c->dp_lm;
    int max = llm_depth_max(s), mid = (int)(x_lm / lane + 0.5);

    mid = mid < 1 ? 1 : mid > max ? max : mid;
    if (max < 1) {
        reject_gpus(s, lane + least_gpus(s, 0));
        return;
    }
    for (int d = 0; d < max; d++) {
        if (mid + d <= max)
            open_depth_pp(s, mid + d);
        if (d > 0 && mid - d >= 1)
            open_depth_pp(s, mid - d);
    }
}

/* Fastest slot the LLM can reach in this cell. */
static double llm_interval_min(struct dt_search_state *s)
{
    int pp = llm_depth_max(s);

    return pp > 0 ? s->t->in->policy.microbatch * s->sample_s[s->llm] / pp : HUGE_VAL;
}

/* Layouts of all generators, of any depth; what they hold in memory does not depend on the rest. */
static bool generator_layouts(struct dt_search_state *s)
{
    int lane = (1 << s->c->tpi[s->llm]) * s->c->dp_lm;
    double limit;

    s->threshold = s->lean ? s->limit : pool_threshold(s);
    set_base(s, s->t->in->model->modules[s->llm].n_blocks); /* the least warm-up, the most `pass` */
    s->pp_lm = s->gen_pp = 1;
    limit = interval_limit(s, s->base + least_warm(s, 0));
    for (int i = 0; i < s->n_gens; i++) {
        int m = s->others[i];
        int spare = s->t->gpus - lane - (least_gpus(s, 0) - (1 << s->c->tpi[m]));
        const struct dt_orch_limits lim = {s->t->in->model->modules[m].n_blocks,
                                           module_cap(s, m, spare), limit,
                                           fast_enough(s, llm_interval_min(s))};

        if (!dt_orch_front_build(s, m, &lim, &s->any_depth[m]))
            return false;
    }
    return true;
}

/* Generators of at most this depth; false unless one of them can be exactly so deep. */
static bool set_depth(struct dt_search_state *s, int gen_pp)
{
    bool reached = s->n_gens == 0;

    s->gen_pp = gen_pp;
    for (int i = 0; i < s->n_gens; i++) {
        const struct dt_orch_front *all = &s->any_depth[s->others[i]];

        for (size_t a = 0; a < all->l.n; a++)
            reached |= all->l.o[a].pp == gen_pp;
    }
    if (!reached)
        return false;
    for (int i = 0; i < s->n_gens; i++)
        if (!dt_orch_front_shallow(s, &s->any_depth[s->others[i]], gen_pp, &s->front[s->others[i]]))
            return false;
    return true;
}

static void set_cell(struct dt_search_state *s, const struct dt_orch_cell *c)
{
    s->c = c;
    s->slot = (int64_t)c->dp_lm * s->t->in->policy.microbatch;
    s->steps = (double)(s->t->in->policy.global_batch / s->slot) - 1;
    for (int m = 0; m < s->n_modules; m++)
        s->sample_s[m] = s->t->cost[m][c->tpi[m]].sample_s;
}

static void open_cell(struct dt_search_state *s, double x_lm)
{
    int deepest = 0;

    if (!generator_layouts(s))
        return;
    for (int i = 0; i < s->n_gens; i++) {
        const struct dt_orch_front *all = &s->any_depth[s->others[i]];

        for (size_t a = 0; a < all->l.n; a++)
            deepest = all->l.o[a].pp > deepest ? all->l.o[a].pp : deepest;
    }
    for (int gen_pp = s->n_gens ? 1 : 0; gen_pp <= deepest && !s->t->nomem; gen_pp++)
        if (set_depth(s, gen_pp))
            open_depth(s, x_lm);
}

/* ---- all cells ---- */

/* A bound without solving anything: every module at its warm-up-free share and the best split of
 * the warm-up, both with all N GPUs (Cauchy-Schwarz). */
static double quick_bound(const struct dt_search_state *s)
{
    double k_sum = 0, roots = 0, least = 0, n = s->t->gpus;

    for (int m = 0; m < s->n_modules; m++) {
        double k = (double)s->slot * (1 << s->c->tpi[m]) * s->sample_s[m];

        k_sum += k;
        if (m != s->llm) {
            roots += sqrt(k);
            least += s->sample_s[m];
        }
    }
    return s->t->in->policy.microbatch * s->sample_s[s->llm] / s->c->vpp +
           fmax(least, roots * roots / n) + s->steps * k_sum / n;
}

static double convex_bound(struct dt_search_state *s, double *x)
{
    const struct dt_orch_cell *c = s->c;
    double min_x[DT_MAX_MODULES];
    int tp[DT_MAX_MODULES];

    s->min_gpus = 0;
    for (int m = 0; m < s->n_modules; m++) {
        tp[m] = 1 << c->tpi[m];
        min_x[m] =
            dt_orch_table_min_gpus(s->t, m, c->tpi[m], m == s->llm ? c->dp_lm : (int)s->slot);
        s->min_gpus += min_x[m];
    }
    s->stats->convex_solves++;
    return dt_orch_convex_solve_base(s->n_modules, s->llm, s->sample_s, tp, c->dp_lm,
                                     s->t->in->policy.microbatch, s->t->in->policy.global_batch,
                                     s->t->gpus, min_x,
                                     s->t->in->policy.microbatch * s->sample_s[s->llm] / c->vpp, x);
}

static int by_bound(const void *pa, const void *pb)
{
    const struct dt_orch_cell *a = pa, *b = pb;

    if (a->bound != b->bound)
        return a->bound < b->bound ? -1 : 1;
    if (a->dp_lm != b->dp_lm)
        return a->dp_lm - b->dp_lm;
    if (a->vpp != b->vpp)
        return a->vpp - b->vpp;
    return memcmp(a->tpi, b->tpi, sizeof(a->tpi));
}

static bool next_tp(const struct dt_search_state *s, struct dt_orch_cell *c)
{
    for (int m = 0; m < s->n_modules; m++) {
        do {
            c->tpi[m]++;
        } while (c->tpi[m] < DT_TP_N && !s->t->cost[m][c->tpi[m]].legal);
        if (c->tpi[m] < DT_TP_N)
            return true;
        for (c->tpi[m] = 0; !s->t->cost[m][c->tpi[m]].legal;)
            c->tpi[m]++;
    }
    return false;
}

static bool first_tp(const struct dt_search_state *s, struct dt_orch_cell *c)
{
    memset(c, 0, sizeof(*c));
    for (int m = 0; m < s->n_modules; m++) {
        while (c->tpi[m] < DT_TP_N && !s->t->cost[m][c->tpi[m]].legal)
            c->tpi[m]++;
        if (c->tpi[m] == DT_TP_N)
            return false;
    }
    return true;
}

static bool list_cells(struct dt_search_state *s, struct dt_orch_cell **out, size_t *n)
{
    int64_t slots = s->t->in->policy.global_batch / s->t->in->policy.microbatch;
    size_t cap = 0;
    struct dt_orch_cell c;
    void *cells = NULL;

    *n = 0;
    *out = NULL;
    if (s->t->in->policy.global_batch % s->t->in->policy.microbatch != 0 || !first_tp(s, &c))
        return true;
    do {
        for (c.dp_lm = 1; c.dp_lm <= slots && c.dp_lm <= s->t->gpus; c.dp_lm++) {
            if (slots % c.dp_lm != 0)
                continue;
            for (c.vpp = 1; c.vpp <= s->t->max_vpp; c.vpp++) {
                if (dt_grow(&cells, &cap, *n + 1, sizeof(c)) != 0) {
                    dt_free(cells);
                    return false;
                }
                set_cell(s, &c);
                c.bound = quick_bound(s);
                ((struct dt_orch_cell *)cells)[(*n)++] = c;
            }
        }
    } while (next_tp(s, &c));
    qsort(cells, *n, sizeof(c), by_bound);
    *out = cells;
    return true;
}

static void visit_cells(struct dt_search_state *s, const struct dt_orch_cell *cells, size_t n)
{
    double x[DT_MAX_MODULES] = {0};

    s->stats->lower_bound_s = HUGE_VAL;
    for (size_t i = 0; i < n && !s->t->nomem; i++) {
        double threshold = pool_threshold(s);

        if (cells[i].bound > threshold && cells[i].bound > s->stats->lower_bound_s)
            break;
        set_cell(s, &cells[i]);
        s->cell_bound = convex_bound(s, x);
        if (s->cell_bound < s->stats->lower_bound_s)
            s->stats->lower_bound_s = s->cell_bound;
        if (isinf(s->cell_bound)) {
            reject_gpus(s, s->min_gpus);
            continue;
        }
        if (s->cell_bound * (1 - SLACK) <= threshold)
            open_cell(s, x[s->llm]);
    }
    if (isinf(s->stats->lower_bound_s))
        s->stats->lower_bound_s = 0;
}

static void search_init(struct dt_search_state *s, struct dt_orch_table *t)
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
        dt_free(s->any_depth[m].l.o);
    }
    dt_free(s->raw.o);
}

static int by_score(const void *pa, const void *pb)
{
    const struct dt_orch_cand *a = pa, *b = pb;

    return dt_orch_cand_better(a, b) ? -1 : dt_orch_cand_better(b, a) ? 1 : 0;
}

enum dt_status dt_orch_search(struct dt_orch_table *t, const double *cap, int k,
                              struct dt_error *err, struct dt_orch_cand *out, int *n,
                              struct dt_search_stats *stats)
{
    struct dt_orch_cell *cells;
    struct dt_search_state s;
    size_t n_cells;

    search_init(&s, t);
    s.cap = cap;
    s.k = k;
    s.pool = out;
    s.stats = stats;
    if (list_cells(&s, &cells, &n_cells))
        visit_cells(&s, cells, n_cells);
    else
        t->nomem = true;
    dt_free(cells);
    search_free(&s);
    if (t->nomem)
        return dt_error_nomem(err, "planner search");
    qsort(out, (size_t)s.n_pool, sizeof(*out), by_score);
    *n = s.n_pool;
    return DT_OK;
}

enum dt_status dt_orch_search_lean(struct dt_orch_table *t, const struct dt_orch_cand *c,
                                   double limit, struct dt_error *err, struct dt_orch_cand *out)
{
    struct dt_search_stats stats;
    struct dt_orch_cell cell;
    struct dt_search_state s;
    int gen_pp = 0;

    memset(&stats, 0, sizeof(stats));
    memset(&cell, 0, sizeof(cell));
    search_init(&s, t);
    cell.dp_lm = c->dp[t->in->model->llm];
    cell.vpp = (uint8_t)c->vpp;
    memcpy(cell.tpi, c->tpi, sizeof(cell.tpi));
    s.stats = &stats;
    s.lean = true;
    s.limit = limit;
    s.cell_bound = c->lower_bound_s;
    set_cell(&s, &cell);
    for (int i = 0; i < s.n_gens; i++)
        if (c->pp[s.others[i]] > gen_pp)
            gen_pp = c->pp[s.others[i]];
    if (generator_layouts(&s) && set_depth(&s, gen_pp))
        open_depth_pp(&s, c->pp[s.llm]);
    search_free(&s);
    if (t->nomem)
        return dt_error_nomem(err, "planner search");
    *out = s.found ? s.best : *c;
    if (s.found)
        out->score = out->total_s;
    return DT_OK;
}
