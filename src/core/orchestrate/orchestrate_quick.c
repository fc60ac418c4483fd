/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * The search at quick effort: the most promising layouts of the LLM, each with one layout of the modules around it.
 *
 * Where the exact search (orchestrate_search.c) builds the fronts of all modules for every cell that its bound leaves
 * open, this one goes by depths.  A cell with a depth has a bound that is close, as the LLM's slowest stage and the GPUs
 * left are known; they are taken in its order, the LLM with the fastest recomputation that fits, and the others share
 * the GPUs that are left in proportion to the roots of their needs, as the convex optimum has it.  Each pipe has a few
 * candidates of its own: the formula leaves out what chunks send, so it does not tell numbers of chunks apart. */
#include "base/mem.h"
#include "core/orchestrate/orchestrate_search.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum {
    OF_PIPE = 3,     /* candidates of a pipe */
    TRIED = 10,      /* layouts of the LLM that are given modules around them, of a pipe */
    LOOKED_AT = 160, /* whose memory is asked for */
};
/* How much slower by the formula than the best of its schedule a candidate may be. */
#define MARGIN 0.08

struct place { /* a cell and a depth */
    double bound;
    uint32_t cell;
    int16_t pp;
};

struct quick {
    struct dt_orch_table *t;
    struct dt_search_state s; /* the cell at hand */
    struct dt_orch_cell *cells;
    struct place *place;
    size_t n_cells, n, cap;
};

/* The LLM's view at a depth: no split is faster than one of equal blocks. */
static double llm_interval(const struct quick *q, const struct dt_orch_times *x, int pp)
{
    const struct dt_orch_stage_entry *e =
        dt_orch_stage_of(q->t, q->s.llm, (struct dt_orch_times *)x, pp, q->s.pipe->vpp);

    return e ? q->s.micro * e->max_s : HUGE_VAL;
}

/* What no combination around an LLM of this time of a sample undercuts by the formula. */
static double bound_at(struct quick *q, double sample, double later, double interval, int pp)
{
    struct dt_search_state *s = &q->s;
    double c = s->micro * sample, put_off = s->micro * later;
    double base = dt_orch_llm_warmup_s(c, put_off, (int64_t)s->steps + 1, pp, s->pipe->vpp);
    int left = s->t->gpus - s->lane_gpus * pp * s->c->dp_lm;

    return dt_orch_cell_bound(s, left, base, dt_orch_llm_pass_s(c, put_off, base), interval);
}

static bool add_place(struct quick *q, double bound, uint32_t cell, int pp)
{
    void *p = q->place;

    if (dt_grow(&p, &q->cap, q->n + 1, sizeof(*q->place)) != 0) {
        q->t->nomem = true;
        return false;
    }
    q->place = p;
    q->place[q->n++] = (struct place){bound, cell, (int16_t)pp};
    return true;
}

static int by_bound(const void *pa, const void *pb)
{
    const struct place *a = pa, *b = pb;

    if (a->bound != b->bound)
        return a->bound < b->bound ? -1 : 1;
    return a->cell != b->cell ? (a->cell < b->cell ? -1 : 1) : a->pp - b->pp;
}

/* Every depth of the pipe's cells whose bound is not far above the least. */
static bool list_places(struct quick *q, int pipe)
{
    double least = HUGE_VAL;
    size_t kept = 0;

    q->n = 0;
    for (size_t i = 0; i < q->n_cells; i++) {
        int max;

        if (q->cells[i].pipe != pipe)
            continue;
        if (q->cells[i].bound > least * (1 + MARGIN))
            break; /* they come in this order */
        dt_orch_cell_set(&q->s, &q->cells[i]);
        max = dt_orch_cell_depth_max(&q->s);
        for (int pp = q->s.pipe->vpp > 1 ? 2 : 1; pp <= max; pp++) {
            double bound = bound_at(q, q->s.sample_lm, 0, q->s.micro * q->s.sample_lm / pp, pp);

            least = fmin(least, bound);
            if (bound <= least * (1 + MARGIN) && !add_place(q, bound, (uint32_t)i, pp))
                return false;
        }
    }
    for (size_t i = 0; i < q->n; i++)
        if (q->place[i].bound <= least * (1 + MARGIN))
            q->place[kept++] = q->place[i];
    q->n = kept;
    if (q->n > 1)
        qsort(q->place, q->n, sizeof(*q->place), by_bound);
    return true;
}

/* The fastest recomputation of the LLM that fits, with the least ZeRO; false: none within the threshold. */
static bool choose_llm(struct quick *q, int pp, int gen_pp, double threshold,
                       struct dt_orch_cand *c, double *interval, double *bound)
{
    struct dt_search_state *s = &q->s;
    const struct dt_orch_modes *modes = &q->t->space.of[s->llm];
    struct dt_orch_question ask = {.m = s->llm,
                                   .pipe = s->c->pipe,
                                   .microbatch = s->c->microbatch,
                                   .dp_lm = s->c->dp_lm,
                                   .pp_lm = pp,
                                   .gen_pp = gen_pp};

    for (int z = 0; z < modes->n_zero; z++)
        for (int r = 0; r < modes->n_recompute && !q->t->nomem; r++) {
            struct dt_orch_times *x =
                dt_orch_times_of(q->t, s->llm, s->c->lane, r, s->c->microbatch, s->pipe->split);

            if (!x)
                return false;
            *interval = llm_interval(q, x, pp);
            *bound = bound_at(q, x->sample_s, x->later_s, *interval, pp);
            ask.of = (struct dt_orch_choice){s->c->lane, (uint8_t)r, (uint8_t)z, (int16_t)pp,
                                             s->c->dp_lm};
            if (*bound > threshold || !dt_orch_table_fits(q->t, &ask))
                continue;
            c->of[s->llm] = ask.of;
            return true;
        }
    return false;
}

/* The module's share of the GPUs that are left for it and those after it, by the roots of their needs. */
static int share_of(const struct quick *q, int from, int left)
{
    const struct dt_search_state *s = &q->s;
    double roots = 0, own = sqrt(s->least[s->others[from]]->gpu_s);
    int later = 0, share;

    for (int i = from; i < s->n_others; i++) {
        roots += sqrt(s->least[s->others[i]]->gpu_s);
        later += i > from ? s->least[s->others[i]]->lane_gpus : 0;
    }
    share = roots > 0 && later > 0 ? (int)ceil(left * own / roots) : left;
    return share < left - later ? share : left - later;
}

/* Generators come first, and what they leave goes to the encoders; *deepest: of them. */
static bool choose_others(struct quick *q, struct dt_orch_cand *c, double interval, int left,
                          int *deepest)
{
    const struct dt_search_state *s = &q->s;

    *deepest = s->n_gens > 0;
    for (int i = 0; i < s->n_others; i++) {
        int m = s->others[i];
        int gpus = dt_orch_choose_own(q->t, c, m, share_of(q, i, left), interval, *deepest);

        if (gpus == 0 && i + 1 == s->n_others)
            return false;
        if (gpus == 0) /* its share is too small */
            gpus = dt_orch_choose_own(q->t, c, m, share_of(q, s->n_others - 1, left) - 1, interval,
                                      *deepest);
        if (gpus == 0)
            return false;
        left -= gpus;
        if (i < s->n_gens && c->of[m].pp > *deepest)
            *deepest = c->of[m].pp;
    }
    return left >= 0;
}

/* The formula of the candidate. */
static double formula(const struct quick *q, const struct dt_orch_cand *c, double interval)
{
    const struct dt_search_state *s = &q->s;
    const struct dt_orch_choice *of = &c->of[s->llm];
    const struct dt_orch_times *x =
        dt_orch_times_of(q->t, s->llm, of->lane, of->recompute, c->microbatch, s->pipe->split);
    double later = s->micro * x->later_s, all = s->micro * x->sample_s, longest = 0;
    double base = dt_orch_llm_warmup_s(all, later, (int64_t)s->steps + 1, of->pp, s->pipe->vpp);
    double warm = base;

    for (int i = 0; i < s->n_others; i++) {
        const struct dt_orch_choice *o = &c->of[s->others[i]];
        struct dt_orch_times *y =
            dt_orch_times_of(q->t, s->others[i], o->lane, o->recompute, 0, s->pipe->split);
        const struct dt_orch_stage_entry *e = dt_orch_stage_of(q->t, s->others[i], y, o->pp, 1);
        double k = (double)dt_orch_samples_per_replica(s->slot, o->dp);

        warm += k * y->sample_s;
        longest = fmax(longest, e ? k * e->max_s : HUGE_VAL);
    }
    return dt_orch_staged_s(warm, s->steps, interval, longest,
                            dt_orch_llm_pass_s(all, later, base));
}

static int gpus_of(const struct quick *q, const struct dt_orch_cand *c)
{
    int sum = 0;

    for (int m = 0; m < q->s.n_modules; m++)
        sum +=
            dt_orch_lane_gpus(&q->t->space.of[m].lane[c->of[m].lane]) * c->of[m].pp * c->of[m].dp;
    return sum;
}

/* Tries one place; false: there is no plan in it worth keeping. */
static bool try_place(struct quick *q, const struct place *p, struct dt_orch_pool *pool,
                      bool *with_llm)
{
    struct dt_search_state *s = &q->s;
    struct dt_orch_cand c;
    double interval, bound, threshold = dt_orch_pool_threshold(pool);
    int deepest = 1, left;

    memset(&c, 0, sizeof(c));
    dt_orch_cell_set(s, &q->cells[p->cell]);
    c.pipe = s->c->pipe;
    c.microbatch = s->c->microbatch;
    *with_llm = choose_llm(q, p->pp, s->n_gens > 0, threshold, &c, &interval, &bound);
    if (!*with_llm)
        return false;
    left = q->t->gpus - s->lane_gpus * p->pp * s->c->dp_lm;
    if (!choose_others(q, &c, interval, left, &deepest))
        return false;
    if (deepest > 1 && !choose_llm(q, p->pp, deepest, threshold, &c, &interval, &bound))
        return false;
    c.total_s = c.score = formula(q, &c, interval);
    c.gpus = gpus_of(q, &c);
    c.lower_bound_s = s->c->bound;
    if (s->n_others > 0 && !dt_orch_cand_fits(q->t, &c))
        return false;
    dt_orch_pool_add(pool, &c, s->llm);
    return true;
}

/* The best of a pipe into out[OF_PIPE]. */
static int search_pipe(struct quick *q, int pipe, struct dt_search_stats *stats,
                       struct dt_orch_cand *out)
{
    struct dt_orch_pool pool = {
        .c = out, .k = OF_PIPE, .per_key = 1, .sure = 1, .margin = MARGIN, .limit = HUGE_VAL};
    int tried = 0, looked = 0;

    if (!list_places(q, pipe))
        return 0;
    for (size_t i = 0; i < q->n && tried < TRIED && looked < LOOKED_AT && !q->t->nomem; i++) {
        bool with_llm;

        if (q->place[i].bound > dt_orch_pool_threshold(&pool))
            break;
        looked++;
        (void)try_place(q, &q->place[i], &pool, &with_llm);
        tried += with_llm;
    }
    stats->candidates += (int64_t)q->n;
    stats->cells_opened += tried;
    return pool.n;
}

static int by_score(const void *pa, const void *pb)
{
    const struct dt_orch_cand *a = pa, *b = pb;

    return dt_orch_cand_better(a, b) ? -1 : dt_orch_cand_better(b, a) ? 1 : 0;
}

enum dt_status dt_orch_search_quick(struct dt_orch_table *t, int k, struct dt_error *err,
                                    struct dt_orch_cand *out, int *n, struct dt_search_stats *stats)
{
    struct dt_orch_cand found[DT_ORCH_PIPES_MAX * OF_PIPE];
    struct quick q = {.t = t};
    int all = 0;

    dt_orch_search_init(&q.s, t);
    q.s.stats = stats;
    for (int i = 0; i < DT_SCHED_N && !t->nomem; i++) {
        dt_free(q.cells);
        q.cells = NULL;
        if (!dt_orch_cells_list(&q.s, (enum dt_pipe_schedule)i, &q.cells, &q.n_cells))
            t->nomem = true;
        stats->cells += (int64_t)q.n_cells;
        if (q.n_cells > 0 && (stats->lower_bound_s == 0 || q.cells[0].bound < stats->lower_bound_s))
            stats->lower_bound_s = q.cells[0].bound;
        for (int p = 0; p < t->space.n_pipes && q.n_cells > 0 && !t->nomem; p++)
            if ((int)t->space.pipe[p].schedule == i)
                all += search_pipe(&q, p, stats, found + all);
    }
    dt_free(q.cells);
    dt_free(q.place);
    if (t->nomem)
        return dt_error_nomem(err, "planner search");
    if (all > 1)
        qsort(found, (size_t)all, sizeof(*found), by_score);
    *n = all < k ? all : k;
    memcpy(out, found, (size_t)*n * sizeof(*out));
    return DT_OK;
}
