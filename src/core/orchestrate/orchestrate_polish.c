/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * The neighbours of the best plans, by timeline.
 *
 * The search keeps what a formula says is fast, and the formula does not know transfers, what ZeRO exchanges at every
 * microbatch, or the samples themselves.  So the best plans are the start of a descent: of all plans that differ in one
 * thing (and in what has to follow it) those that the formula, scaled to the timeline of the plan at hand, puts within reach are
 * timed, the most promising first; the first that is faster is the next plan at hand, until there is none. */
#include "base/hash.h"
#include "base/mem.h"
#include "core/orchestrate/orchestrate_internal.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* A neighbour is timed where it is expected to take at most so much more than the plan at hand: the formula compares
 * neighbours far better than strangers.  Where there are few GPUs, more. */
#define REACH 0.03
#define FAR_REACH 0.3
/* Descents start at plans that take at most so much more than the best. */
#define FAR_SEED 0.08
/* Samples by whose replicas two neighbours are compared first. */
#define SAMPLES 128.0
/* Less than that is no gain. */
#define GAIN 3e-4
/* As orchestrate_rank.c: the bound is of mean samples. */
#define CERTAIN 1.01

enum {
    SEEDS = 6, /* descents, and where there are few GPUs */
    FEW_SEEDS = 24,
    TURNS = 4, /* that each gets at least, were all to go on for ever */
    FEW_GPUS = 16,
    AROUND = 4, /* surroundings of an LLM that are looked at */
};

struct spot { /* a plan, by its places in the space */
    struct dt_orch_cand c;
    unsigned set; /* bit m: module m is a guest */
};

struct move {
    struct spot to;
    double expect; /* seconds */
};

struct descent {
    struct dt_plan start;
    /* the plan at hand */
    struct spot at;
    struct dt_plan plan;
    double first_s; /* its timeline at first sight */
    double ratio;   /* of that to the formula */
    /* its neighbours; those before `next` have been tried */
    struct move *moves;
    size_t n, next, cap;
    bool listed;
};

struct polish {
    struct dt_orch_table *t;
    const struct dt_search_input *in;
    const double *cap;
    enum dt_plan_strategy strategy;
    int llm;
    bool few;
    struct descent *d; /* the one whose turn it is */
    struct descent all[FEW_SEEDS];
    int n;
    uint64_t *seen; /* what is not to be tried (again) */
    size_t n_seen, seen_cap;
    bool nomem;
};

/* ---- spots ---- */

static const struct dt_orch_lane *lane_of(const struct polish *w, const struct spot *s, int m)
{
    return &w->t->space.of[m].lane[s->c.of[m].lane];
}

static int gpus_of(const struct polish *w, const struct spot *s, int m)
{
    return dt_orch_lane_gpus(lane_of(w, s, m)) * s->c.of[m].pp * s->c.of[m].dp;
}

static int64_t slot_of(const struct polish *w, const struct spot *s)
{
    return (int64_t)s->c.of[w->llm].dp * w->t->space.microbatch[s->c.microbatch];
}

/* GPUs that the hosts leave, negative where there are not so many. */
static int gpus_left(const struct polish *w, const struct spot *s)
{
    int left = w->t->gpus;

    for (int m = 0; m < w->in->model->n_modules; m++)
        left -= s->set >> m & 1 ? 0 : gpus_of(w, s, m);
    return left;
}

/* False where the space does not hold the plan. */
static bool spot_of(const struct polish *w, const struct dt_plan *p, struct spot *out)
{
    const struct dt_orch_space *space = &w->t->space;
    struct spot s;

    memset(&s, 0, sizeof(s)); /* hashed as bytes */
    s.c.pipe = DT_ORCH_PIPES_MAX;
    for (int i = 0; i < space->n_pipes; i++)
        if (space->pipe[i].schedule == p->policy.schedule &&
            space->pipe[i].vpp == p->modules[w->llm].layout.vpp)
            s.c.pipe = (uint8_t)i;
    if (s.c.pipe == DT_ORCH_PIPES_MAX || dt_orch_space_microbatch(w->t, p->policy.microbatch) < 0 ||
        p->colocated)
        return false;
    s.c.microbatch = (uint8_t)dt_orch_space_microbatch(w->t, p->policy.microbatch);
    for (int m = 0; m < p->n_modules; m++) {
        const struct dt_plan_layout *l = &p->modules[m].layout;
        int lane = dt_orch_space_lane(w->t, m, l), zero = -1;
        int recompute = dt_orch_space_recompute(w->t, m, p->modules[m].recompute);

        for (int z = 0; z < space->of[m].n_zero; z++)
            zero = space->of[m].zero[z] == p->modules[m].zero ? z : zero;
        if (lane < 0 || recompute < 0 || zero < 0)
            return false;
        s.c.of[m] = (struct dt_orch_choice){(uint8_t)lane, (uint8_t)recompute, (uint8_t)zero,
                                            (int16_t)l->pp, l->dp};
        s.set |= dt_plan_host(p, m) != m ? 1U << m : 0;
    }
    *out = s;
    return true;
}

static enum dt_status plan_of(struct polish *w, const struct spot *s, struct dt_error *err,
                              struct dt_plan *out)
{
    DT_TRY(dt_orch_cand_layouts(w->t, &s->c, w->strategy, err, out));
    for (int m = 0; m < out->n_modules; m++)
        out->modules[m].with = s->set >> m & 1 ? (uint8_t)(w->llm + 1) : 0;
    DT_TRY(dt_plan_place(out, w->in->cluster, err));
    DT_TRY(dt_plan_validate(out, w->in->model, w->in->cluster, err));
    return dt_orch_check_expected(w->t, out, err);
}

/* ---- what the formula says of a spot ---- */

struct passing { /* of a module: a sample through it, and through its slowest stage */
    double sample_s, later_s, slowest_s;
};

static bool passing_of(struct polish *w, const struct spot *s, int m, struct passing *out)
{
    const struct dt_orch_pipe *pipe = &w->t->space.pipe[s->c.pipe];
    bool llm = m == w->llm;
    struct dt_orch_times *x = dt_orch_times_of(w->t, m, s->c.of[m].lane, s->c.of[m].recompute,
                                               llm ? s->c.microbatch : 0, pipe->split);
    const struct dt_orch_stage_entry *e =
        x ? dt_orch_stage_of(w->t, m, x, s->c.of[m].pp, llm ? pipe->vpp : 1) : NULL;

    if (!e) {
        w->nomem = true;
        return false;
    }
    *out = (struct passing){x->sample_s, x->later_s, e->max_s};
    return true;
}

/* The staged formula, as dt_orch_formula() has it of a plan. */
static double formula_s(struct polish *w, const struct spot *s)
{
    const struct dt_orch_pipe *pipe = &w->t->space.pipe[s->c.pipe];
    double micro = w->t->space.microbatch[s->c.microbatch], warm = 0, pass = 0;
    double llm = 0, guests = 0, others = 0;
    int64_t slot = slot_of(w, s), slots = w->in->policy.global_batch / slot;

    for (int m = 0; m < w->in->model->n_modules; m++) {
        const struct dt_orch_choice *of = &s->c.of[m];
        struct passing x;
        double share;

        if (!passing_of(w, s, m, &x))
            return HUGE_VAL;
        if (m == w->llm) {
            double base = dt_orch_llm_warmup_s(micro * x.sample_s, micro * x.later_s, slots, of->pp,
                                               pipe->vpp);

            warm += base;
            pass = dt_orch_llm_pass_s(micro * x.sample_s, micro * x.later_s, base);
            llm = micro * x.slowest_s;
            continue;
        }
        share = of->dp > slot ? (double)slot / of->dp
                              : (double)dt_orch_samples_per_replica(slot, of->dp);
        warm += fmax(1, share) * x.sample_s;
        if (s->set >> m & 1)
            guests += share * x.slowest_s;
        else
            others = fmax(others, share * x.slowest_s);
    }
    return dt_orch_staged_s(warm, (double)(slots - 1), llm + guests, others, pass);
}

/* ---- proposals ---- */

/* False where it was there before. */
static bool remember(struct polish *w, const struct spot *s)
{
    uint64_t h = dt_hash_bytes(DT_HASH_START, &s->c.pipe, sizeof(s->c.pipe));
    size_t i;

    h = dt_hash_number(h, (uint64_t)s->c.microbatch << 32 | s->set);
    for (int m = 0; m < w->in->model->n_modules; m++) {
        const struct dt_orch_choice *of = &s->c.of[m];

        h = dt_hash_number(h, (uint64_t)of->lane | (uint64_t)of->recompute << 8 |
                                  (uint64_t)of->zero << 12 | (uint64_t)of->pp << 16 |
                                  (uint64_t)of->dp << 32);
    }
    h |= 1; /* 0: free */
    if ((w->n_seen + 1) * 2 > w->seen_cap) {
        size_t cap = w->seen_cap ? 2 * w->seen_cap : 4096;
        uint64_t *bigger = dt_calloc(cap, sizeof(*bigger));

        if (!bigger) {
            w->nomem = true;
            return false;
        }
        for (size_t k = 0; k < w->seen_cap; k++) {
            for (i = w->seen[k] & (cap - 1); w->seen[k] && bigger[i]; i = (i + 1) & (cap - 1))
                ;
            if (w->seen[k])
                bigger[i] = w->seen[k];
        }
        dt_free(w->seen);
        w->seen = bigger;
        w->seen_cap = cap;
    }
    for (i = h & (w->seen_cap - 1); w->seen[i]; i = (i + 1) & (w->seen_cap - 1))
        if (w->seen[i] == h)
            return false;
    w->seen[i] = h;
    w->n_seen++;
    return true;
}

/* Of the space, but for memory. */
static bool is_legal(const struct polish *w, const struct spot *s)
{
    const struct dt_orch_space *space = &w->t->space;
    const struct dt_orch_pipe *pipe = &space->pipe[s->c.pipe];
    int64_t slot = slot_of(w, s), batch = w->in->policy.global_batch;
    const struct dt_orch_choice *llm = &s->c.of[w->llm];

    if (llm->dp < 1 || batch % slot != 0 || (pipe->vpp > 1 && llm->pp < 2) ||
        llm->pp * pipe->vpp > DT_MAX_VSTAGES ||
        !dt_plan_allows_ep(&w->in->model->modules[w->llm], lane_of(w, s, w->llm)->ep,
                           llm->dp * lane_of(w, s, w->llm)->cp) ||
        gpus_left(w, s) < 0)
        return false;
    for (int m = 0; m < w->in->model->n_modules; m++) {
        const struct dt_orch_choice *of = &s->c.of[m];
        bool guest = s->set >> m & 1;
        int chunks = of->pp * (m == w->llm ? pipe->vpp : 1), gpus = gpus_of(w, s, m);

        if (of->dp < 1 || of->pp < 1 || chunks > w->in->model->modules[m].n_blocks ||
            (w->cap && gpus > w->cap[m]) ||
            (guest && (of->pp > 1 || of->dp > batch || gpus > gpus_of(w, s, w->llm))) ||
            (!guest && m != w->llm && of->dp > (w->few ? batch : slot)) ||
            (pipe->split && space->of[m].zero[of->zero] > 2))
            return false;
    }
    return true;
}

static void propose(struct polish *w, const struct spot *s)
{
    double reach = w->few ? FAR_REACH : REACH, expect;
    struct descent *d = w->d;
    void *p = d->moves;

    if (w->nomem || !is_legal(w, s))
        return;
    expect = formula_s(w, s) * w->d->ratio;
    /* Where many are in reach, those that a better plan leaves behind are not come back to: far ones are seen sooner. */
    if (expect > w->d->first_s * (1 + reach) || (!w->few && !remember(w, s)))
        return;
    if (dt_grow(&p, &d->cap, d->n + 1, sizeof(*d->moves)) != 0) {
        w->nomem = true;
        return;
    }
    d->moves = p;
    d->moves[d->n++] = (struct move){*s, expect};
}

/* ---- changes of one module around the LLM ---- */

/* Numbers of replicas next to dp: of modules with GPUs of their own the least of each number of samples, of guests those
 * that share the batch evenly, and as many as there is room for. */
static void other_replicas(struct polish *w, const struct spot *from, int m)
{
    int64_t slot = slot_of(w, from), batch = w->in->policy.global_batch;
    int dp = from->c.of[m].dp;
    struct spot s = *from;

    if (from->set >> m & 1) {
        int most = gpus_of(w, from, w->llm) / dt_orch_lane_gpus(lane_of(w, from, m)), d;

        most = most < batch ? most : (int)batch;
        s.c.of[m].dp = most;
        propose(w, &s);
        for (d = dp + 1; d <= most && batch % d != 0; d++)
            ;
        s.c.of[m].dp = d;
        propose(w, &s);
        for (d = dp < most ? dp - 1 : most - 1; d > 1 && batch % d != 0; d--)
            ;
        s.c.of[m].dp = d;
        propose(w, &s);
        return;
    }
    for (int64_t step = -1; step <= 1; step++) {
        int64_t k = dt_orch_samples_per_replica(slot, dp) + step;

        if (k < 1 || k > slot)
            continue;
        s.c.of[m].dp = (int)((slot + k - 1) / k);
        propose(w, &s);
        s.c.of[m].dp = dp + (int)step; /* to the formula that is the same, or waste */
        if (w->few)
            propose(w, &s);
    }
}

/* Another lane, recomputation or level of ZeRO, with as many replicas, or on as many GPUs. */
static void other_modes(struct polish *w, const struct spot *from, int m)
{
    const struct dt_orch_modes *o = &w->t->space.of[m];
    int gpus = dt_orch_lane_gpus(lane_of(w, from, m)) * from->c.of[m].dp;
    struct spot s = *from;

    for (int l = 0; l < o->n_lanes; l++)
        for (int r = 0; r < o->n_recompute; r++) {
            s.c.of[m].lane = (uint8_t)l;
            s.c.of[m].recompute = (uint8_t)r;
            s.c.of[m].dp = from->c.of[m].dp;
            propose(w, &s);
            other_replicas(w, &s, m);
            s.c.of[m].dp = gpus / dt_orch_lane_gpus(&o->lane[l]);
            propose(w, &s);
        }
    s = *from;
    for (int z = 0; z < o->n_zero; z++) {
        s.c.of[m].zero = (uint8_t)z;
        propose(w, &s);
    }
}

static void change_module(struct polish *w, int m)
{
    struct spot s = w->d->at;

    other_modes(w, &w->d->at, m);
    for (int step = -1; step <= 1; step += 2) {
        s.c.of[m].pp = (int16_t)(w->d->at.c.of[m].pp + step);
        other_modes(w, &s, m);
    }
    for (int other = 0; other < w->in->model->n_modules; other++) { /* recomputation of two */
        if (other == w->llm || other <= m)
            continue;
        for (int a = 0; a < w->t->space.of[m].n_recompute; a++)
            for (int b = 0; b < w->t->space.of[other].n_recompute; b++) {
                s = w->d->at;
                s.c.of[m].recompute = (uint8_t)a;
                s.c.of[other].recompute = (uint8_t)b;
                propose(w, &s);
            }
    }
}

/* ---- changes of the LLM ---- */

/* Around an LLM: what is there now, as far as it fits; without guests also the best by the formula. */
static void around_llm(struct polish *w, const struct spot *from, struct dt_error *err)
{
    struct dt_orch_cand near[AROUND];
    struct spot s = *from;
    int n = 0;

    propose(w, &s);
    for (int m = 0; m < w->in->model->n_modules && from->set; m++)
        if (from->set >> m & 1) {
            int most = gpus_of(w, from, w->llm) / dt_orch_lane_gpus(lane_of(w, from, m));

            s.c.of[m].dp =
                most < w->in->policy.global_batch ? most : (int)w->in->policy.global_batch;
        }
    propose(w, &s);
    if (from->set || w->in->model->n_modules == 1)
        return;
    s = *from;
    for (int m = 0; m < w->in->model->n_modules; m++)
        if (m != w->llm)
            s.c.of[m] = (struct dt_orch_choice){0, 0, 0, 1, 1};
    if (!is_legal(w, &s) ||
        dt_orch_search_around(w->t, &from->c, w->cap,
                              w->d->first_s / w->d->ratio * (1 + (w->few ? FAR_REACH : REACH)),
                              AROUND, err, near, &n) != DT_OK)
        return;
    for (int i = 0; i < n; i++) {
        memset(&s, 0, sizeof(s));
        s.c.pipe = from->c.pipe;
        s.c.microbatch = from->c.microbatch;
        memcpy(s.c.of, near[i].of, sizeof(s.c.of));
        propose(w, &s);
    }
}

/* That LLM with any recomputation, unless it is too slow whatever is around it. */
static void any_recompute(struct polish *w, const struct spot *from, struct dt_error *err)
{
    const struct dt_orch_pipe *pipe = &w->t->space.pipe[from->c.pipe];
    const struct dt_orch_choice *of = &from->c.of[w->llm];
    double micro = w->t->space.microbatch[from->c.microbatch];
    struct spot s = *from;

    if (of->dp < 1 || of->pp < 1 || of->pp < (pipe->vpp > 1 ? 2 : 1) ||
        of->pp * pipe->vpp > w->in->model->modules[w->llm].n_blocks ||
        of->pp * pipe->vpp > DT_MAX_VSTAGES || gpus_of(w, from, w->llm) > w->t->gpus ||
        w->in->policy.global_batch % slot_of(w, from) != 0)
        return;
    for (int r = 0; r < w->t->space.of[w->llm].n_recompute; r++) {
        double steps = (double)(w->in->policy.global_batch / slot_of(w, from)) - 1;
        struct passing x;

        s.c.of[w->llm].recompute = (uint8_t)r;
        if (!passing_of(w, &s, w->llm, &x))
            return;
        if ((dt_orch_llm_warmup_s(micro * x.sample_s, micro * x.later_s, (int64_t)steps + 1, of->pp,
                                  pipe->vpp) +
             steps * micro * x.slowest_s) *
                w->d->ratio <=
            w->d->first_s * (1 + (w->few ? FAR_REACH : REACH)))
            around_llm(w, &s, err);
    }
}

/* Replicas dp, as deep as now, and as deep as the GPUs that the LLM has now allow. */
static void with_replicas(struct polish *w, const struct spot *from, int64_t dp,
                          struct dt_error *err)
{
    int now = gpus_of(w, &w->d->at, w->llm);
    struct spot s = *from;
    int64_t deep;

    if (dp < 1 || dp > w->t->gpus)
        return;
    s.c.of[w->llm].dp = (int)dp;
    any_recompute(w, &s, err);
    deep = now / (dp * dt_orch_lane_gpus(lane_of(w, &s, w->llm)));
    if (deep < 1 || deep == s.c.of[w->llm].pp)
        return;
    s.c.of[w->llm].pp = (int16_t)deep;
    any_recompute(w, &s, err);
}

/* The next number of replicas above (step 1) or below (-1) with which slots share the batch. */
static int64_t next_replicas(const struct polish *w, const struct spot *s, int step)
{
    int64_t slots = w->in->policy.global_batch / w->t->space.microbatch[s->c.microbatch];
    int64_t dp = s->c.of[w->llm].dp + step;

    while (dp >= 1 && dp <= w->t->gpus && slots % dp != 0)
        dp += step;
    return dp;
}

/* Another width and microbatch: with as many replicas, on as many GPUs, or with slots of as many samples. */
static void other_shape(struct polish *w, int l, int microbatch, struct dt_error *err)
{
    const struct dt_orch_space *space = &w->t->space;
    int wide = dt_orch_lane_gpus(&space->of[w->llm].lane[l]), micro = space->microbatch[microbatch];
    int lane = dt_orch_lane_gpus(lane_of(w, &w->d->at, w->llm));
    int64_t slot = slot_of(w, &w->d->at), dp = w->d->at.c.of[w->llm].dp;
    struct spot s = w->d->at;

    if (wide > 2 * lane || 2 * wide < lane)
        return;
    s.c.of[w->llm].lane = (uint8_t)l;
    s.c.microbatch = (uint8_t)microbatch;
    with_replicas(w, &s, dp, err);
    if (wide != lane)
        with_replicas(w, &s, dp * lane / wide, err);
    if (slot % micro == 0 && slot / micro != dp)
        with_replicas(w, &s, slot / micro, err);
}

static void change_llm(struct polish *w, struct dt_error *err)
{
    const struct dt_orch_space *space = &w->t->space;
    const struct dt_orch_choice *of = &w->d->at.c.of[w->llm];
    struct spot s = w->d->at;

    for (int z = 0; z < space->of[w->llm].n_zero; z++) {
        s.c.of[w->llm].zero = (uint8_t)z;
        any_recompute(w, &s, err);
    }
    s = w->d->at;
    for (int p = 0; p < space->n_pipes; p++) {
        s.c.pipe = (uint8_t)p;
        any_recompute(w, &s, err);
    }
    s = w->d->at;
    for (int step = -2; step <= 2; step++) {
        s.c.of[w->llm].pp = (int16_t)(of->pp + step);
        any_recompute(w, &s, err);
    }
    with_replicas(w, &w->d->at, next_replicas(w, &w->d->at, 1), err);
    with_replicas(w, &w->d->at, next_replicas(w, &w->d->at, -1), err);
    for (int l = 0; l < space->of[w->llm].n_lanes; l++)
        for (int i = 0; i < space->n_microbatches; i++)
            other_shape(w, l, i, err);
}

/* ---- changes of the placement ---- */

static void change_placement(struct polish *w, int m, struct dt_error *err)
{
    struct spot s = w->d->at;

    s.set ^= 1U << m;
    s.c.of[m].pp = 1;
    if (!(w->d->at.set >> m & 1)) {
        other_modes(w, &s, m);
        return;
    }
    if (s.set == 0) /* everything around the LLM, which makes room */
        for (int step = 0; step < 3; step++, s.c.of[w->llm].pp--)
            around_llm(w, &s, err);
    s.c.of[w->llm] = w->d->at.c.of[w->llm];
    for (int step = 0; step < 3 && s.c.of[w->llm].pp > 0; step++, s.c.of[w->llm].pp--) {
        s.c.of[m].dp = (int)fmin((double)slot_of(w, &s), w->d->at.c.of[m].dp);
        other_modes(w, &s, m);
    }
}

/* ---- the descent ---- */

static int by_expectation(const void *pa, const void *pb)
{
    const struct move *a = pa, *b = pb;

    return a->expect < b->expect ? -1 : a->expect > b->expect;
}

static enum dt_status neighbours(struct polish *w, struct dt_error *err)
{
    const struct dt_model *model = w->in->model;

    w->d->n = w->d->next = 0;
    change_llm(w, err);
    for (int m = 0; m < model->n_modules; m++) {
        if (m == w->llm)
            continue;
        change_module(w, m);
        if (w->in->opt.guests >> m & 1 && !w->cap)
            change_placement(w, m, err);
    }
    if (w->nomem || w->t->nomem)
        return dt_error_nomem(err, "planner search");
    if (w->d->n > 1)
        qsort(w->d->moves, w->d->n, sizeof(*w->d->moves), by_expectation);
    w->d->listed = true;
    return DT_OK;
}

/* The timeline of a plan that fits, by as many samples (0: a closer look); 0: it does not. */
static enum dt_status glance(struct polish *w, struct dt_plan *p, double samples,
                             struct dt_error *err, double *seconds, bool *share)
{
    struct dt_error why;
    enum dt_status st = dt_orch_time_plan(w->t, p, samples, &why, share);

    *seconds = st == DT_OK ? p->predicted.timeline_s : 0;
    if (st == DT_OK || st == DT_ERR_INFEASIBLE)
        return DT_OK;
    if (err)
        *err = why;
    return st;
}

/* This plan, whose timeline at first sight is s, becomes the one at hand. */
static void settle(struct polish *w, const struct spot *at, const struct dt_plan *p, double s)
{
    w->d->at = *at;
    w->d->plan = *p;
    w->d->first_s = s;
    w->d->ratio = s / formula_s(w, at);
    w->d->listed = false;
}

/* A spot as a plan, with as much more ZeRO of the LLM as makes it fit: the formula does not know what that takes. */
static enum dt_status fit_spot(struct polish *w, struct spot *s, struct dt_error *err,
                               struct dt_plan *out)
{
    enum dt_status st = plan_of(w, s, err, out);
    uint8_t *zero = &s->c.of[w->llm].zero;

    while (st == DT_ERR_INFEASIBLE && *zero + 1 < w->t->space.of[w->llm].n_zero) {
        ++*zero;
        if (!is_legal(w, s) || !remember(w, s))
            break;
        st = plan_of(w, s, err, out);
    }
    return st;
}

/* Tries a neighbour; *better: it is the plan at hand now. */
static enum dt_status try_move(struct polish *w, struct spot to, struct dt_error *err, bool *better)
{
    struct dt_plan p;
    struct dt_error why;
    double s;
    bool share, more;
    enum dt_status st;

    *better = false;
    if (w->few && !remember(w, &to))
        return w->nomem ? dt_error_nomem(err, "planner search") : DT_OK;
    st = fit_spot(w, &to, &why, &p);
    if (st == DT_ERR_INFEASIBLE || st == DT_ERR_INPUT ||
        (st == DT_OK && dt_orch_plan_least_s(w->t, &p) > w->d->first_s * CERTAIN))
        return DT_OK;
    if (st != DT_OK) {
        if (err)
            *err = why;
        return st;
    }
    DT_TRY(glance(w, &p, SAMPLES, err, &s, &share));
    if (s <= 0 || s > w->d->first_s * (1 - GAIN))
        return DT_OK;
    if (share) {
        double closer;

        DT_TRY(glance(w, &p, 0, err, &closer, &more));
        if (closer <= 0 || closer > w->d->plan.predicted.timeline_s * (1 - GAIN))
            return DT_OK;
    }
    settle(w, &to, &p, s);
    *better = true;
    return DT_OK;
}

/* Goes on with a descent until no neighbour is left (*done), or that many ops have brought nothing. */
static enum dt_status take_turn(struct polish *w, int64_t ops, int64_t end, struct dt_error *err,
                                bool *done)
{
    struct descent *d = w->d;
    int64_t since = w->t->ops;
    bool better;

    *done = false;
    while (w->t->ops < end && w->t->ops - since < ops) {
        if (!d->listed)
            DT_TRY(neighbours(w, err));
        if (d->next == d->n) {
            *done = true;
            return DT_OK;
        }
        DT_TRY(try_move(w, d->moves[d->next++].to, err, &better));
        since = better ? w->t->ops : since;
    }
    return DT_OK;
}

/* Is there a descent from another plan with this one's schedule, guests, microbatch and width of the LLM? */
static bool is_alike(const struct polish *w, const struct dt_plan *p)
{
    for (int k = 0; k < w->n; k++) {
        const struct dt_plan *q = &w->all[k].start;
        bool alike = q->policy.schedule == p->policy.schedule &&
                     q->policy.microbatch == p->policy.microbatch &&
                     q->modules[w->llm].layout.tp == p->modules[w->llm].layout.tp;

        for (int m = 0; m < p->n_modules; m++)
            alike = alike && q->modules[m].with == p->modules[m].with;
        if (alike)
            return true;
    }
    return false;
}

/* A descent from this plan. */
static enum dt_status start(struct polish *w, const struct dt_plan *p, struct dt_error *err)
{
    struct dt_plan again = *p;
    struct spot at;
    double s;
    bool share;

    if ((!w->few && is_alike(w, p)) || !spot_of(w, p, &at) || !remember(w, &at))
        return DT_OK;
    w->d = &w->all[w->n];
    DT_TRY(glance(w, &again, SAMPLES, err, &s, &share));
    if (s <= 0)
        return DT_OK;
    w->n++;
    w->d->start = *p;
    settle(w, &at, p, s);
    return DT_OK;
}

/* The descents take turns, so that none of them uses up the budget in vain. */
static enum dt_status take_turns(struct polish *w, struct dt_error *err)
{
    int64_t budget = dt_orch_polish_budget(w->in), end = w->t->ops + budget;
    bool done[FEW_SEEDS] = {false}, all = false;

    while (!all && w->t->ops < end) {
        all = true;
        for (int i = 0; i < w->n && w->t->ops < end; i++) {
            if (done[i])
                continue;
            w->d = &w->all[i];
            DT_TRY(take_turn(w, budget / (TURNS * w->n), end, err, &done[i]));
            all = all && done[i];
        }
    }
    return DT_OK;
}

/* The plan of `out` that is this spot; NULL: there is none. */
static struct dt_plan *listed(const struct polish *w, const struct dt_search_result *out,
                              const struct spot *at)
{
    for (int i = 0; i < out->n; i++) {
        struct spot s;

        if (spot_of(w, &out->plans[i], &s) && s.c.pipe == at->c.pipe &&
            s.c.microbatch == at->c.microbatch && s.set == at->set &&
            memcmp(s.c.of, at->c.of, sizeof(s.c.of)) == 0)
            return &out->plans[i];
    }
    return NULL;
}

static enum dt_status polish(struct polish *w, struct dt_error *err, struct dt_search_result *out)
{
    struct dt_plan *all;

    for (int i = 0; i < out->n && w->n < (w->few ? FEW_SEEDS : SEEDS); i++) {
        double s = out->plans[i].predicted.timeline_s;

        if (s > 0 &&
            s <= out->plans[0].predicted.timeline_s * (1 + (w->few ? FAR_REACH : FAR_SEED)))
            DT_TRY(start(w, &out->plans[i], err));
    }
    DT_TRY(take_turns(w, err));
    all = dt_realloc(out->plans, (size_t)(out->n + w->n) * sizeof(*all));
    if (!all)
        return dt_error_nomem(err, "plans");
    out->plans = all;
    for (int i = 0; i < w->n; i++) {
        const struct descent *d = &w->all[i];
        struct dt_plan *same = listed(w, out, &d->at);

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
    w->t = t;
    w->in = t->in;
    w->cap = cap;
    w->strategy = strategy;
    w->llm = t->in->model->llm;
    w->few = t->gpus <= FEW_GPUS;
    st = polish(w, err, out);
    for (int i = 0; i < FEW_SEEDS; i++)
        dt_free(w->all[i].moves);
    dt_free(w->seen);
    dt_free(w);
    return st;
}

enum dt_status dt_orch_polish(struct dt_orch_table *t, const double *cap,
                              enum dt_plan_strategy strategy, struct dt_error *err,
                              struct dt_search_result *out)
{
    int k = t->in->opt.k > 0 ? t->in->opt.k : 8;
    enum dt_status st = DT_OK;

    if (t->in->opt.rank && !t->in->opt.uniform && dt_orch_polish_budget(t->in) > 0)
        st = descend(t, cap, strategy, err, out);
    out->n = out->n < k ? out->n : k;
    return st;
}
