/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Strategy entrain (Jang and Chowdhury 2026, arXiv 2605.27918, algorithms 1 and 2): one static layout from the loads of
 * a whole batch.  All modules have the same DP; a replica's GPUs go to modules in proportion to their loads, on as many
 * samples as make the division stable (orchestrate_sizing.c), and each module takes the layout of its GPUs with which
 *
 *     sum of all modules' passages + (K - 1) * slowest stage of all
 *
 * is least, where K is the number of a replica's microbatches.  Blocks are divided over stages so that the slowest is
 * fastest, as everywhere.
 *
 * Ours: GPUs are divided in units as wide as some lane (at most 8 GPUs), which the plans' timelines choose from; what does
 * not make whole lanes stays idle; every recomputation that fits the mean microbatch is a candidate, as the largest one
 * that is assigned may need more of it; and the best by that sum are ranked by the timelines of their programs, with
 * whatever assignment the job states. */
#include "base/mem.h"
#include "core/orchestrate/orchestrate_internal.h"
#include "core/orchestrate/orchestrate_sizing.h"

#include <stdlib.h>
#include <string.h>

enum {
    BATCHES = 8,         /* that a plan's memory has to hold; each takes some milliseconds a plan */
    POOL = 256,          /* candidates that may be ranked */
    SAMPLES_MAX = 16384, /* that loads are known of; assumed enough */
    WIDEST_UNIT = 8
};

struct sized { /* a candidate and what sized it */
    struct dt_orch_cand c;
    int unit;
    struct dt_orch_sizing sizing;
};

struct search {
    struct dt_orch_table *t;
    struct dt_orch_loads loads;
    struct sized *pool; /* by rising score */
    int n;
    struct sized at;
    int64_t steps; /* K - 1 */
    int pp_lm, gen_pp;
    int64_t costed;
};

/* ---- loads ---- */

/* On the narrowest lane of each module. */
static enum dt_status find_loads(struct search *s, double *load, struct dt_error *err)
{
    struct dt_orch_table *t = s->t;
    struct dt_plan p = t->scratch;

    for (int m = 0; m < t->in->model->n_modules; m++) {
        const struct dt_orch_modes *o = &t->space.of[m];
        struct dt_orch_choice narrow = {.dp = 1, .pp = 1};

        for (int i = 1; i < o->n_lanes; i++)
            if (dt_orch_lane_gpus(&o->lane[i]) < dt_orch_lane_gpus(&o->lane[narrow.lane]))
                narrow.lane = (uint8_t)i;
        dt_orch_choice_apply(t, m, &narrow, 1, &p);
    }
    s->loads.load = load;
    return dt_orch_sample_loads(&p, t->in->model, t->in->cost, t->in->samples, s->loads.n, err,
                                load);
}

/* ---- layouts of one division ---- */

static void keep(struct search *s)
{
    int at;

    s->costed++;
    if (s->n == POOL && s->pool[POOL - 1].c.score <= s->at.c.score)
        return;
    for (int i = 0; i < s->n; i++) /* units of another size may come to the same */
        if (s->pool[i].c.score == s->at.c.score && s->pool[i].c.pipe == s->at.c.pipe &&
            s->pool[i].c.microbatch == s->at.c.microbatch &&
            memcmp(s->pool[i].c.of, s->at.c.of, sizeof(s->at.c.of)) == 0)
            return;
    at = s->n < POOL ? s->n++ : POOL - 1;
    for (; at > 0 && s->pool[at - 1].c.score > s->at.c.score; at--)
        s->pool[at] = s->pool[at - 1];
    s->pool[at] = s->at;
}

static bool defers(const struct dt_orch_table *t)
{
    return t->in->policy.assignment == DT_ASSIGNMENT_ENTRAIN;
}

static void layouts(struct search *s, const int *order, int k, double passage, double slowest);

/* Module m in that lane and depth with every recomputation that fits, at the lowest level of ZeRO with which it does, and
 * the modules after it. */
static void layouts_with(struct search *s, const int *order, int k, double passage, double slowest,
                         int lane, int pp)
{
    struct dt_orch_table *t = s->t;
    int m = order[k], r;
    const struct dt_orch_modes *o = &t->space.of[m];
    bool llm = m == t->in->model->llm;
    double micro = t->space.microbatch[s->at.c.microbatch];
    struct dt_orch_question q = {.m = m,
                                 .pipe = s->at.c.pipe,
                                 .microbatch = s->at.c.microbatch,
                                 .dp_lm = s->at.c.of[m].dp,
                                 .pp_lm = s->pp_lm,
                                 .gen_pp = s->gen_pp};

    q.of = (struct dt_orch_choice){.lane = (uint8_t)lane, .pp = (int16_t)pp, .dp = q.dp_lm};
    for (r = 0; r < o->n_recompute; r++)
        for (int z = 0; z < o->n_zero; z++) {
            struct dt_orch_times *x = dt_orch_times_of(t, m, lane, r, llm ? q.microbatch : 0,
                                                       t->space.pipe[q.pipe].split);
            const struct dt_orch_stage_entry *e;
            double stage;

            q.of.recompute = (uint8_t)r;
            q.of.zero = (uint8_t)z;
            if (!x || (o->zero[z] > 1 && defers(t)))
                continue;
            q.behind = dt_plan_feeds_llm(t->in->model, m) ? dt_orch_behind(t, &q) : 0;
            e = dt_orch_table_fits(t, &q) ? dt_orch_stage_of(t, m, x, pp, 1) : NULL;
            if (!e)
                continue;
            stage = micro * e->max_s;
            s->at.c.of[m] = q.of;
            layouts(s, order, k + 1, passage + micro * x->sample_s,
                    stage > slowest ? stage : slowest);
            break;
        }
}

/* Layouts of modules from `k` on in the order LLM, generators, encoders: what encoders hold depends on those behind. */
static void layouts(struct search *s, const int *order, int k, double passage, double slowest)
{
    struct dt_orch_table *t = s->t;
    const struct dt_model *model = t->in->model;
    int m = order[k], dp = s->at.c.of[model->llm].dp, most, gen_pp = s->gen_pp, pp_lm = s->pp_lm;
    const struct dt_orch_modes *o = &t->space.of[m];

    if (k == model->n_modules) {
        s->at.c.score = passage + (double)s->steps * slowest;
        s->at.c.total_s = s->at.c.score;
        keep(s);
        return;
    }
    most = s->at.sizing.units[m] * s->at.unit;
    for (int i = 0; i < o->n_lanes; i++) {
        int pp = most / dt_orch_lane_gpus(&o->lane[i]);

        pp = pp < model->modules[m].n_blocks ? pp : model->modules[m].n_blocks;
        pp = pp < DT_MAX_VSTAGES ? pp : DT_MAX_VSTAGES;
        if (pp < 1 || !dt_plan_allows_ep(&model->modules[m], o->lane[i].ep, dp * o->lane[i].cp))
            continue;
        s->at.c.of[m].dp = dp;
        s->pp_lm = m == model->llm ? pp : pp_lm;
        if (m != model->llm && !dt_plan_feeds_llm(model, m))
            s->gen_pp = pp > gen_pp ? pp : gen_pp;
        layouts_with(s, order, k, passage, slowest, i, pp);
        s->gen_pp = gen_pp;
        s->pp_lm = pp_lm;
    }
}

static void in_order(const struct dt_model *m, int *order)
{
    int n = 0;

    order[n++] = m->llm;
    for (int pass = 0; pass < 2; pass++)
        for (int i = 0; i < m->n_modules; i++)
            if (i != m->llm && dt_plan_feeds_llm(m, i) == (pass == 1))
                order[n++] = i;
}

/* Is some lane that many GPUs wide? */
static bool wide(const struct dt_orch_table *t, int gpus)
{
    for (int m = 0; m < t->in->model->n_modules; m++)
        for (int i = 0; i < t->space.of[m].n_lanes; i++)
            if (dt_orch_lane_gpus(&t->space.of[m].lane[i]) == gpus)
                return true;
    return false;
}

/* All divisions of a replica's GPUs. */
static void divisions(struct search *s, int dp)
{
    struct dt_orch_table *t = s->t;
    const struct dt_model *model = t->in->model;
    int order[DT_MAX_MODULES + 1] = {0}, replica = t->gpus / dp;

    in_order(model, order);
    for (int unit = 1; unit <= WIDEST_UNIT && replica / unit >= model->n_modules; unit *= 2) {
        if (!wide(t, unit))
            continue;
        s->at.unit = unit;
        dt_orch_size(&s->loads, replica / unit, &s->at.sizing);
        s->at.sizing.unit = unit;
        for (int pipe = 0; pipe < t->space.n_pipes; pipe++) {
            enum dt_pipe_schedule schedule = t->space.pipe[pipe].schedule;

            if (t->space.pipe[pipe].vpp > 1 ||
                (schedule != DT_SCHED_1F1B && schedule != DT_SCHED_ZB_H1))
                continue;
            for (int micro = 0; micro < t->space.n_microbatches; micro++) {
                int64_t slot = (int64_t)dp * t->space.microbatch[micro];

                if (t->in->policy.global_batch % slot != 0 || t->in->policy.global_batch / slot < 2)
                    continue;
                memset(&s->at.c, 0, sizeof(s->at.c));
                s->at.c.pipe = (uint8_t)pipe;
                s->at.c.microbatch = (uint8_t)micro;
                s->at.c.of[model->llm].dp = dp;
                s->steps = t->in->policy.global_batch / slot - 1;
                s->gen_pp = 0;
                layouts(s, order, 0, 0, 0);
            }
        }
    }
}

/* ---- plans ---- */

static const struct sized *found_by(const struct search *s, const struct dt_plan *p)
{
    for (int i = 0; i < s->n; i++) {
        const struct dt_orch_cand *c = &s->pool[i].c;
        bool same = p->policy.microbatch == s->t->space.microbatch[c->microbatch] &&
                    p->policy.schedule == s->t->space.pipe[c->pipe].schedule;

        for (int m = 0; m < p->n_modules && same; m++) {
            const struct dt_plan_layout *l = &p->modules[m].layout;
            const struct dt_orch_lane *lane = &s->t->space.of[m].lane[c->of[m].lane];

            same = l->dp == c->of[m].dp && l->pp == c->of[m].pp && l->tp == lane->tp &&
                   l->cp == lane->cp && l->ep == lane->ep;
        }
        if (same)
            return &s->pool[i];
    }
    return NULL;
}

/* A batch with one very large sample has fewer, larger microbatches than others (its encoder load is what all of a replica's
 * are made alike to), so the first batch does not speak for those that follow.  A plan that orders each batch in a way of its
 * own takes one that fits. */
static enum dt_status check_batches(const struct search *s, const struct dt_plan *p,
                                    struct dt_error *err)
{
    const struct dt_search_input *in = s->t->in;
    int n = p->policy.batch_reorder ? 0 : dt_orch_distinct_batches(in, BATCHES);

    for (int b = 0; b < n; b++)
        DT_TRY(dt_orch_check_whole(in, p, b * in->policy.global_batch, err));
    return DT_OK;
}

/* The pool's plans that memory holds. */
static enum dt_status make_plans(struct search *s, struct dt_error *err,
                                 struct dt_search_result *out)
{
    struct dt_error why = {0};

    for (int i = 0; i < s->n; i++) {
        struct dt_plan *p = &out->plans[out->n];
        enum dt_status st = dt_orch_cand_plan(s->t, &s->pool[i].c, DT_STRATEGY_ENTRAIN, &why, p);

        if (st == DT_OK) {
            st = check_batches(s, p, &why);
            s->t->rejects.assigned += st == DT_ERR_INFEASIBLE;
        }
        if (st == DT_OK)
            out->n++;
        else if (st != DT_ERR_INFEASIBLE && st != DT_ERR_INPUT)
            return dt_error_pass(err, &why);
    }
    if (out->n > 0)
        return DT_OK;
    return s->t->rejects.assigned > 0 ? dt_orch_infeasible(s->t, err) : dt_error_pass(err, &why);
}

static enum dt_status rank(struct search *s, struct dt_error *err, struct dt_search_result *out)
{
    struct dt_orch_table *t = s->t;
    const struct sized *by;

    out->plans = dt_calloc((size_t)s->n + 1, sizeof(*out->plans));
    if (!out->plans)
        return dt_error_nomem(err, "plans");
    DT_TRY(make_plans(s, err, out));
    DT_TRY(dt_orch_rank(t, out->plans, &out->n, true, err));
    if (out->n == 0)
        return dt_orch_infeasible(t, err);
    out->stats.candidates = s->costed;
    by = found_by(s, &out->plans[0]);
    if (by) {
        out->sizing = by->sizing;
        dt_orch_size_stable(&s->loads, t->in->policy.global_batch, &out->sizing);
    }
    out->n = out->n < t->in->opt.k ? out->n : t->in->opt.k;
    return DT_OK;
}

static enum dt_status plan(struct dt_orch_table *t, struct dt_error *err,
                           struct dt_search_result *out)
{
    const struct dt_search_input *in = t->in;
    const struct dt_search_options *o = &in->opt;
    struct search s = {.t = t};
    double *load;

    if (!in->samples || in->samples->n < 1)
        return dt_error_set(err, DT_ERR_INPUT, "strategy entrain: no samples");
    s.loads =
        (struct dt_orch_loads){.n_modules = in->model->n_modules,
                               .n = in->samples->n < SAMPLES_MAX ? in->samples->n : SAMPLES_MAX,
                               .confidence = o->confidence > 0 ? o->confidence : 0.95,
                               .p_error = o->p_error > 0 ? o->p_error : 0.05,
                               .profile = o->profile_samples,
                               .seed = o->seed};
    load = DT_ARENA_NEW(&t->arena, double, (size_t)in->model->n_modules *(size_t)s.loads.n);
    s.pool = DT_ARENA_NEW(&t->arena, struct sized, POOL);
    if (!load || !s.pool)
        return dt_error_nomem(err, "loads of samples");
    if (defers(t)) /* what no plan can mend is said before the search */
        DT_TRY(dt_plan_check_entrain(&t->scratch, in->model, err));
    DT_TRY(find_loads(&s, load, err));
    for (int dp = 1; dp <= t->gpus / in->model->n_modules; dp++)
        if (in->policy.global_batch % dp == 0 && (o->dp == 0 || o->dp == dp))
            divisions(&s, dp);
    if (t->nomem)
        return dt_error_nomem(err, "planning");
    return s.n > 0 ? rank(&s, err, out) : dt_orch_infeasible(t, err);
}

const struct dt_orch_planner dt_orch_planner_entrain = {.plan = plan};
