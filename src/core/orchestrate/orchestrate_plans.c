/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * From candidates to plans: search, ranking, and the leaner variant of the winner. */
#include "base/hash.h"
#include "base/mem.h"
#include "core/orchestrate/orchestrate_internal.h"

#include <math.h>
#include <string.h>

/* Where the space is so small that this was done in no time, once more with plans far slower by the formula. */
#define WIDE_MARGIN 0.5
enum { WIDE_CANDIDATES = 100000, WIDE_PER_KEY = 24 };
enum { REFUSED_LEAST = 4096 }; /* entries that the table of what does not fit begins with */
/* On so few the exact search is quick, and every layout counts. */
enum { EXACT_GPUS = 32 };
/* How much slower by the formula the leaner variant of the winner may be before its timeline is
 * asked: the timeline hides warm-up that the formula counts in full. */
#define LEAN_FORMULA 5e-3

enum dt_status dt_orch_cand_layouts(struct dt_orch_table *t, const struct dt_orch_cand *c,
                                    enum dt_plan_strategy strategy, struct dt_error *err,
                                    struct dt_plan *out)
{
    const struct dt_search_input *in = t->in;
    const struct dt_orch_pipe *pipe = &t->space.pipe[c->pipe];

    dt_search_plan_init(in, out);
    out->strategy = strategy;
    out->policy.schedule = pipe->schedule;
    out->policy.microbatch = t->space.microbatch[c->microbatch];
    for (int m = 0; m < in->model->n_modules; m++) {
        bool llm = m == in->model->llm;
        struct dt_orch_times *x = dt_orch_times_of(t, m, c->of[m].lane, c->of[m].recompute,
                                                   llm ? c->microbatch : 0, pipe->split);
        const struct dt_orch_stage_entry *e =
            x ? dt_orch_stage_of(t, m, x, c->of[m].pp, llm ? pipe->vpp : 1) : NULL;

        if (!e)
            return dt_error_nomem(err, "plan splits");
        dt_orch_choice_apply(t, m, &c->of[m], pipe->vpp, out);
        memcpy(out->modules[m].split, e->split,
               (size_t)(c->of[m].pp * (llm ? pipe->vpp : 1) + 1) * sizeof(*e->split));
    }
    out->predicted.lower_bound_s = c->lower_bound_s;
    return DT_OK;
}

enum dt_status dt_orch_cand_plan(struct dt_orch_table *t, const struct dt_orch_cand *c,
                                 enum dt_plan_strategy strategy, struct dt_error *err,
                                 struct dt_plan *out)
{
    DT_TRY(dt_orch_cand_layouts(t, c, strategy, err, out));
    DT_TRY(dt_plan_place(out, t->in->cluster, err));
    if (t->uneven)
        dt_orch_split_to_fit(t, c, out); /* ranking leaves out what does not fit then */
    return dt_plan_validate(out, t->in->model, t->in->cluster, err);
}

void dt_orch_cand_key(const struct dt_orch_cand *c, unsigned guests, int n_modules, uint64_t key[2])
{
    key[0] = DT_HASH_START;
    key[1] = (uint64_t)c->pipe << 56 | (uint64_t)c->microbatch << 48 | (uint64_t)guests;
    for (int m = 0; m < n_modules; m++) {
        const struct dt_orch_choice *of = &c->of[m];
        uint64_t word = (uint64_t)of->lane | (uint64_t)of->recompute << 8 |
                        (uint64_t)of->zero << 12 | (uint64_t)of->pp << 16 | (uint64_t)of->dp << 32;

        key[0] = dt_hash_number(key[0], word);
        key[1] = dt_hash_spread(key[1] ^ word);
    }
    key[0] |= 1; /* of a table's keys the first word is not 0 */
}

/* What memory is known to say of a candidate. */
enum { NOT_EVENLY = 1, REFUSED = 2 };

/* With the fastest splits.  *found: where it does not fit, what memory says. */
static enum dt_status even_plan(struct dt_orch_table *t, const struct dt_orch_cand *c,
                                unsigned guests, enum dt_plan_strategy strategy,
                                struct dt_error *err, struct dt_plan *out, unsigned *found)
{
    const struct dt_search_input *in = t->in;
    enum dt_status st;

    *found = REFUSED;
    DT_TRY(dt_orch_cand_layouts(t, c, strategy, err, out));
    for (int m = 0; m < out->n_modules; m++)
        out->modules[m].with = guests >> m & 1 ? (uint8_t)(in->model->llm + 1) : 0;
    DT_TRY(dt_plan_place(out, in->cluster, err));
    DT_TRY(dt_plan_validate(out, in->model, in->cluster, err));
    if (guests && !dt_orch_split_may_fit(t, out))
        return DT_ERR_INFEASIBLE;
    *found = NOT_EVENLY;
    st = dt_orch_check_expected(t, out,
                                NULL); /* looking for remedies takes longer than all the rest */
    return st == DT_ERR_NOMEM ? dt_error_nomem(err, "memory of stages") : st;
}

/* A candidate is asked about by lists of hosts, in two orders of guests, and by descents; most do not fit. */
enum dt_status dt_orch_cand_plan_split(struct dt_orch_table *t, const struct dt_orch_cand *c,
                                       unsigned guests, enum dt_plan_strategy strategy, bool uneven,
                                       struct dt_error *err, struct dt_plan *out, bool *even)
{
    struct refused {
        uint64_t key[2];
        unsigned found;
    } * e;
    uint64_t key[2];
    unsigned found;
    enum dt_status st;

    dt_orch_cand_key(c, guests, t->in->model->n_modules, key);
    e = dt_hash_table_of(&t->refused, sizeof(*e), REFUSED_LEAST, key, NULL);
    if (!e)
        return dt_error_nomem(err, "planner search");
    *even = false;
    if (e->found & (uneven ? REFUSED : REFUSED | NOT_EVENLY))
        return DT_ERR_INFEASIBLE;
    st = even_plan(t, c, guests, strategy, err, out, &found);
    *even = st == DT_OK;
    if (st != DT_ERR_INFEASIBLE)
        return st;
    e->found |= found;
    if (found == REFUSED || !uneven)
        return st;
    if (dt_orch_split_to_fit(t, c, out))
        st = dt_orch_check_expected(t, out, NULL);
    if (st == DT_ERR_INFEASIBLE)
        e->found |= REFUSED;
    return st == DT_ERR_NOMEM ? dt_error_nomem(err, "memory of stages") : st;
}

enum dt_status dt_orch_cand_plan_with(struct dt_orch_table *t, const struct dt_orch_cand *c,
                                      unsigned guests, enum dt_plan_strategy strategy,
                                      struct dt_error *err, struct dt_plan *out)
{
    bool even;

    return dt_orch_cand_plan_split(t, c, guests, strategy, true, err, out, &even);
}

static bool are_same(const struct dt_plan *p, const struct dt_plan *q)
{
    bool same =
        p->policy.schedule == q->policy.schedule && p->policy.microbatch == q->policy.microbatch;

    for (int m = 0; m < p->n_modules && same; m++) {
        const struct dt_plan_module *a = &p->modules[m], *b = &q->modules[m];

        same = memcmp(&a->layout, &b->layout, sizeof(a->layout)) == 0 && a->with == b->with &&
               a->recompute == b->recompute && a->zero == b->zero &&
               a->zero_group == b->zero_group && a->offload == b->offload &&
               a->window == b->window && a->phases == b->phases;
    }
    return same;
}

/* Of two plans that are the same otherwise. */
static bool are_split_alike(const struct dt_plan *p, const struct dt_plan *q)
{
    bool alike = true;

    for (int m = 0; m < p->n_modules && alike; m++) {
        const struct dt_plan_module *a = &p->modules[m], *b = &q->modules[m];
        size_t stages = (size_t)(a->layout.pp * a->layout.vpp) + 1;

        alike = memcmp(a->split, b->split, stages * sizeof(a->split[0])) == 0;
    }
    return alike;
}

bool dt_orch_plan_listed_split(const struct dt_plan *plans, int n, const struct dt_plan *p)
{
    for (int i = 0; i < n; i++)
        if (are_same(&plans[i], p) && are_split_alike(&plans[i], p))
            return true;
    return false;
}

struct dt_plan *dt_orch_plan_listed(struct dt_plan *plans, int n, const struct dt_plan *p)
{
    for (int i = 0; i < n; i++)
        if (are_same(&plans[i], p))
            return &plans[i];
    return NULL;
}

static bool has_deep_guests(const struct dt_plan *p)
{
    for (int m = 0; m < p->n_modules; m++)
        if (p->modules[m].with > 0 && p->modules[m].layout.pp > 1)
            return true;
    return false;
}

bool dt_orch_plans_alike(const struct dt_plan *p, const struct dt_plan *q, int llm)
{
    bool alike = p->policy.schedule == q->policy.schedule &&
                 p->policy.microbatch == q->policy.microbatch &&
                 p->modules[llm].layout.tp == q->modules[llm].layout.tp &&
                 has_deep_guests(p) == has_deep_guests(q);

    for (int m = 0; m < p->n_modules; m++)
        alike = alike && p->modules[m].with == q->modules[m].with;
    return alike;
}

struct round { /* one pass of search and ranking */
    struct dt_orch_cand *cands;
    struct dt_plan *plans;
    int n;
};

static bool is_of(const struct dt_orch_table *t, const struct dt_plan *p,
                  const struct dt_orch_cand *c)
{
    const struct dt_orch_pipe *pipe = &t->space.pipe[c->pipe];

    if (p->policy.schedule != pipe->schedule ||
        p->policy.microbatch != t->space.microbatch[c->microbatch] ||
        p->modules[t->in->model->llm].layout.vpp != pipe->vpp)
        return false;
    for (int m = 0; m < p->n_modules; m++) {
        const struct dt_plan_layout *l = &p->modules[m].layout;

        if (dt_orch_space_lane(t, m, l) != c->of[m].lane || l->pp != c->of[m].pp ||
            l->dp != c->of[m].dp ||
            dt_orch_space_recompute(t, m, p->modules[m].recompute) != c->of[m].recompute ||
            dt_orch_space_zero(t, m, &p->modules[m]) != c->of[m].zero)
            return false;
    }
    return true;
}

/* The winner with fewer GPUs, if there is such a layout nearly as fast by the formula and as fast
 * by the timeline. */
static enum dt_status add_lean(struct dt_orch_table *t, struct round *r, int n_cands,
                               enum dt_plan_strategy strategy, struct dt_error *err)
{
    struct dt_plan *spare = &r->plans[r->n], *same;
    struct dt_orch_cand lean;
    int one = 1;

    for (int i = 0; i < n_cands; i++) {
        if (!is_of(t, &r->plans[0], &r->cands[i]))
            continue;
        DT_TRY(dt_orch_search_lean(t, &r->cands[i], r->cands[i].total_s * (1 + LEAN_FORMULA), err,
                                   &lean));
        if (lean.gpus >= dt_plan_gpus(&r->plans[0]))
            return DT_OK;
        DT_TRY(dt_orch_cand_plan(t, &lean, strategy, err, spare));
        same = dt_orch_plan_listed(r->plans, r->n, spare);
        if (same && same->predicted.timeline_s > 0)
            return DT_OK;
        DT_TRY(dt_orch_rank(t, spare, &one, false, err));
        if (same && one) /* the budget did not reach it before */
            *same = *spare;
        else
            r->n += one;
        return dt_orch_sort(r->plans, r->n, err);
    }
    return DT_OK;
}

static int kept_plans(const struct dt_search_input *in)
{
    return in->opt.k > 0 ? in->opt.k : 8;
}

/* Candidates that are worth a timeline; without ranking those that are returned. */
static int pool_size(const struct dt_search_input *in)
{
    int k = kept_plans(in), pool = dt_orch_effort_of(in)->pool;

    return in->opt.rank && k < pool ? pool : k;
}

static enum dt_status one_round(struct dt_orch_table *t, const double *cap,
                                enum dt_plan_strategy strategy, double margin, struct dt_error *err,
                                struct round *r, struct dt_search_stats *stats)
{
    const struct dt_orch_keep keep = {pool_size(t->in), kept_plans(t->in),
                                      t->in->opt.rank ? margin : 0,
                                      margin < WIDE_MARGIN ? DT_ORCH_PER_KEY : WIDE_PER_KEY};
    int n_cands = 0;

    memset(stats, 0, sizeof(*stats));
    t->rejects = (struct dt_orch_rejects){.heads = t->rejects.heads, .nodes = t->rejects.nodes};
    if (dt_orch_effort_of(t->in)->coarse && t->gpus > EXACT_GPUS && !cap && !t->in->opt.uniform)
        DT_TRY(dt_orch_search_quick(t, keep.k, err, r->cands, &n_cands, stats));
    if (n_cands == 0)
        DT_TRY(dt_orch_search(t, cap, &keep, err, r->cands, &n_cands, stats));
    for (r->n = 0; r->n < n_cands; r->n++)
        DT_TRY(dt_orch_cand_plan(t, &r->cands[r->n], strategy, err, &r->plans[r->n]));
    DT_TRY(dt_orch_rank(t, r->plans, &r->n, true, err));
    if (r->n > 0 && t->in->opt.rank)
        DT_TRY(add_lean(t, r, n_cands, strategy, err));
    return DT_OK;
}

/* Was that so little that far more may be looked at? */
static bool was_short(const struct dt_orch_table *t, const struct dt_search_stats *stats)
{
    return t->in->opt.rank && t->in->opt.margin <= 0 && dt_orch_effort_of(t->in)->wide &&
           stats->candidates < WIDE_CANDIDATES && t->ops < dt_orch_budget(t->in) / 8;
}

static enum dt_status rounds(struct dt_orch_table *t, const double *cap,
                             enum dt_plan_strategy strategy, struct dt_error *err, struct round *r,
                             struct dt_search_stats *stats)
{
    double margin = t->in->opt.margin > 0 ? t->in->opt.margin : dt_orch_effort_of(t->in)->margin;

    DT_TRY(one_round(t, cap, strategy, margin, err, r, stats));
    if (r->n == 0 && t->rejects.assigned > 0) {
        /* Every plan was over when its real microbatches were known: allow for the largest possible
         * ones. */
        t->sigmas = HUGE_VAL;
        dt_orch_table_forget(t);
        DT_TRY(one_round(t, cap, strategy, margin, err, r, stats));
    }
    if (r->n > 0 && was_short(t, stats))
        DT_TRY(one_round(t, cap, strategy, WIDE_MARGIN, err, r, stats));
    return r->n > 0 ? DT_OK : dt_orch_infeasible(t, err);
}

enum dt_status dt_search_plans(struct dt_orch_table *t, const double *cap,
                               enum dt_plan_strategy strategy, struct dt_error *err,
                               struct dt_search_result *out)
{
    size_t all = (size_t)pool_size(t->in) * DT_SCHED_N;
    struct round r = {dt_calloc(all, sizeof(*r.cands)), dt_calloc(all + 1, sizeof(*r.plans)), 0};
    enum dt_status st = DT_OK;

    if (!r.cands || !r.plans)
        st = dt_error_nomem(err, "plans");
    if (st == DT_OK)
        st = rounds(t, cap, strategy, err, &r, &out->stats);
    dt_free(r.cands);
    if (st != DT_OK) {
        dt_free(r.plans);
        return st;
    }
    out->plans = r.plans;
    out->n = r.n;
    return DT_OK;
}
