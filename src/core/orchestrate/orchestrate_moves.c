/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * The neighbours of a plan: changes of the LLM, of a module around it, and of the placement, each with what has to follow. */
#include "core/orchestrate/orchestrate_moves.h"
#include "base/mem.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum {
    AROUND = 4, /* surroundings of an LLM that are looked at */
    ALL_MODULES = 3,
    SEEN_LEAST = 4096, /* entries that the table of spots begins with */
};
/* How many times as slow as others a neighbour of other chunks may seem: the formula knows neither their transfers nor a last
 * group of fewer microbatches. */
#define CHUNKS_REACH 2
/* The same of one whose encoder or generator on GPUs of its own has one stage less: it does without what these sent each other. */
#define STAGES_REACH 3

/* ---- spots ---- */

static const struct dt_orch_lane *lane_of(const struct dt_orch_moves *w,
                                          const struct dt_orch_spot *s, int m)
{
    return &w->t->space.of[m].lane[s->c.of[m].lane];
}

static int gpus_of(const struct dt_orch_moves *w, const struct dt_orch_spot *s, int m)
{
    return dt_orch_lane_gpus(lane_of(w, s, m)) * s->c.of[m].pp * s->c.of[m].dp;
}

static int64_t slot_of(const struct dt_orch_moves *w, const struct dt_orch_spot *s)
{
    return (int64_t)s->c.of[w->llm].dp * w->t->space.microbatch[s->c.microbatch];
}

/* GPUs that the hosts leave, negative where there are not so many. */
static int gpus_left(const struct dt_orch_moves *w, const struct dt_orch_spot *s)
{
    int left = w->t->gpus;

    for (int m = 0; m < w->in->model->n_modules; m++)
        left -= s->set >> m & 1 ? 0 : gpus_of(w, s, m);
    return left;
}

/* False where the space does not hold the plan. */
bool dt_orch_spot_of(const struct dt_orch_moves *w, const struct dt_plan *p,
                     struct dt_orch_spot *out)
{
    const struct dt_orch_space *space = &w->t->space;
    struct dt_orch_spot s;

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
        int lane = dt_orch_space_lane(w->t, m, l),
            zero = dt_orch_space_zero(w->t, m, &p->modules[m]);
        int recompute = dt_orch_space_recompute(w->t, m, p->modules[m].recompute);

        if (lane < 0 || recompute < 0 || zero < 0)
            return false;
        s.c.of[m] = (struct dt_orch_choice){(uint8_t)lane, (uint8_t)recompute, (uint8_t)zero,
                                            (int16_t)l->pp, l->dp};
        s.set |= dt_plan_host(p, m) != m ? 1U << m : 0;
    }
    *out = s;
    return true;
}

static int off_by(int a, int b)
{
    return a > b ? a - b : b - a;
}

static uint8_t nearest_pipe(const struct dt_orch_space *space, const struct dt_plan *p, int vpp)
{
    int best = 0;

    for (int i = 1; i < space->n_pipes; i++) {
        const struct dt_orch_pipe *a = &space->pipe[i], *b = &space->pipe[best];
        bool same = a->schedule == p->policy.schedule, before = b->schedule == p->policy.schedule;

        if (same != before ? same : off_by(a->vpp, vpp) < off_by(b->vpp, vpp))
            best = i;
    }
    return (uint8_t)best;
}

/* Where masters and moments lie matters more than how many share them. */
static int states_off_by(const struct dt_orch_modes *o, int z, const struct dt_plan_module *mp)
{
    return off_by(o->zero[z], mp->zero) +
           (o->on_host[z] == dt_plan_offloads_optimizer(mp) ? 0 : DT_ZERO_MAX + 1);
}

static struct dt_orch_choice nearest_choice(const struct dt_orch_modes *o,
                                            const struct dt_plan_module *mp)
{
    const struct dt_plan_layout *l = &mp->layout;
    struct dt_orch_choice c = {.pp = (int16_t)l->pp, .dp = l->dp};

    for (int i = 1; i < o->n_lanes; i++) {
        const struct dt_orch_lane *a = &o->lane[i], *b = &o->lane[c.lane];

        if (off_by(a->tp, l->tp) + off_by(a->cp, l->cp) + off_by(a->ep, l->ep) <
            off_by(b->tp, l->tp) + off_by(b->cp, l->cp) + off_by(b->ep, l->ep))
            c.lane = (uint8_t)i;
    }
    for (int i = 1; i < o->n_recompute; i++)
        if (off_by((int)o->recompute[i], (int)mp->recompute) <
            off_by((int)o->recompute[c.recompute], (int)mp->recompute))
            c.recompute = (uint8_t)i;
    for (int i = 1; i < o->n_zero; i++)
        if (states_off_by(o, i, mp) < states_off_by(o, c.zero, mp))
            c.zero = (uint8_t)i;
    return c;
}

void dt_orch_spot_near(const struct dt_orch_moves *w, const struct dt_plan *p,
                       struct dt_orch_spot *out)
{
    const struct dt_orch_space *space = &w->t->space;
    struct dt_orch_spot s;

    memset(&s, 0, sizeof(s));
    s.c.pipe = nearest_pipe(space, p, p->modules[w->llm].layout.vpp);
    for (int i = 1; i < space->n_microbatches; i++)
        if (off_by(space->microbatch[i], p->policy.microbatch) <
            off_by(space->microbatch[s.c.microbatch], p->policy.microbatch))
            s.c.microbatch = (uint8_t)i;
    for (int m = 0; m < p->n_modules; m++) {
        s.c.of[m] = nearest_choice(&space->of[m], &p->modules[m]);
        if (dt_plan_host(p, m) != m && (w->in->opt.guests >> m & 1))
            s.set |= 1U << m;
    }
    *out = s;
}

/* ---- what the formula says of a spot ---- */

struct passing { /* of a module: a sample through it, and through its slowest stage */
    double sample_s, later_s, slowest_s;
};

static bool passing_of(struct dt_orch_moves *w, const struct dt_orch_spot *s, int m,
                       struct passing *out)
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
double dt_orch_spot_formula_s(struct dt_orch_moves *w, const struct dt_orch_spot *s)
{
    const struct dt_orch_pipe *pipe = &w->t->space.pipe[s->c.pipe];
    double micro = w->t->space.microbatch[s->c.microbatch], warm = 0, pass = 0;
    double llm = 0, guests = 0, others = 0, exchange_lm = 0;
    int64_t slot = slot_of(w, s), slots = w->in->policy.global_batch / slot;

    for (int m = 0; m < w->in->model->n_modules; m++) {
        const struct dt_orch_choice *of = &s->c.of[m];
        struct passing x;
        double share, exchange;

        if (!passing_of(w, s, m, &x))
            return HUGE_VAL;
        exchange =
            dt_orch_choice_exchange_s(w->t, m, of, s->c.pipe, s->c.microbatch, s->c.of[w->llm].dp);
        if (m == w->llm || s->set >> m & 1)
            exchange_lm = fmax(exchange_lm, exchange);
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
            others = fmax(others, fmax(share * x.slowest_s, exchange));
    }
    return dt_orch_staged_s(warm, (double)(slots - 1), fmax(llm + guests, exchange_lm), others,
                            pass);
}

/* ---- proposals ---- */

bool dt_orch_spot_remember(struct dt_orch_moves *w, const struct dt_orch_spot *s)
{
    uint64_t key[2];
    bool isnew;

    dt_orch_cand_key(&s->c, s->set, w->in->model->n_modules, key);
    if (!dt_hash_table_of(&w->seen, sizeof(key), SEEN_LEAST, key, &isnew)) {
        w->nomem = true;
        return false;
    }
    return isnew;
}

/* Of the space, but for memory. */
bool dt_orch_spot_is_legal(const struct dt_orch_moves *w, const struct dt_orch_spot *s)
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
            (guest && (of->dp > batch || gpus > gpus_of(w, s, w->llm))) ||
            (!guest && m != w->llm && of->dp > (w->few ? batch : slot)) ||
            (pipe->split && space->of[m].zero[of->zero] > 2))
            return false;
    }
    return true;
}

static void propose(struct dt_orch_moves *w, const struct dt_orch_spot *s)
{
    double expect;
    struct dt_orch_hand *h = w->hand;
    void *p = h->moves;

    if (w->nomem || !dt_orch_spot_is_legal(w, s))
        return;
    expect = dt_orch_spot_formula_s(w, s) * h->ratio;
    if (expect > h->first_s * (1 + w->reach))
        return;
    if (dt_grow(&p, &h->cap, h->n + 1, sizeof(*h->moves)) != 0) {
        w->nomem = true;
        return;
    }
    h->moves = p;
    h->moves[h->n++] = (struct dt_orch_move){*s, expect};
}

/* ---- changes of one module around the LLM ---- */

/* Replicas of a guest that its host has room for. */
static int room_for(const struct dt_orch_moves *w, const struct dt_orch_spot *s, int m)
{
    int most = gpus_of(w, s, w->llm) /
               (dt_orch_lane_gpus(lane_of(w, s, m)) * (s->c.of[m].pp > 1 ? s->c.of[m].pp : 1));

    return most < w->in->policy.global_batch ? most : (int)w->in->policy.global_batch;
}

/* Numbers of replicas next to dp: of modules with GPUs of their own the least of each number of samples, of guests those
 * that share the batch evenly, and as many as there is room for. */
static void other_replicas(struct dt_orch_moves *w, const struct dt_orch_spot *from, int m)
{
    int64_t slot = slot_of(w, from), batch = w->in->policy.global_batch;
    int dp = from->c.of[m].dp;
    struct dt_orch_spot s = *from;

    if (from->set >> m & 1) {
        int most = room_for(w, from, m), d;

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
static void other_modes(struct dt_orch_moves *w, const struct dt_orch_spot *from, int m)
{
    const struct dt_orch_modes *o = &w->t->space.of[m];
    int gpus = dt_orch_lane_gpus(lane_of(w, from, m)) * from->c.of[m].dp;
    struct dt_orch_spot s = *from;

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

/* Recomputation of two modules. */
static void recompute_two(struct dt_orch_moves *w, const struct dt_orch_spot *from, int m,
                          int other)
{
    struct dt_orch_spot s = *from;

    for (int a = 0; a < w->t->space.of[m].n_recompute; a++)
        for (int b = 0; b < w->t->space.of[other].n_recompute; b++) {
            s.c.of[m].recompute = (uint8_t)a;
            s.c.of[other].recompute = (uint8_t)b;
            propose(w, &s);
        }
}

/* Recomputation of all modules at once: what one does without may be what another one has room for.  Of many modules, of the LLM and
 * one more. */
static void recompute_all(struct dt_orch_moves *w)
{
    const struct dt_orch_space *space = &w->t->space;
    int n = w->in->model->n_modules, m = 0;
    struct dt_orch_spot s = w->hand->at;

    if (n > ALL_MODULES) {
        for (m = 0; m < n; m++)
            if (m != w->llm)
                recompute_two(w, &s, m, w->llm);
        return;
    }
    for (int i = 0; i < n; i++)
        s.c.of[i].recompute = 0;
    while (m < n) {
        propose(w, &s);
        for (m = 0; m < n && ++s.c.of[m].recompute >= space->of[m].n_recompute; m++)
            s.c.of[m].recompute = 0;
    }
}

/* Two guests in lanes of one width: those of different widths wait for each other's. */
static void widen_two(struct dt_orch_moves *w, int m, int other)
{
    const struct dt_orch_modes *o = &w->t->space.of[m], *p = &w->t->space.of[other];
    struct dt_orch_spot s = w->hand->at;

    for (int a = 0; a < o->n_lanes; a++)
        for (int b = 0; b < p->n_lanes; b++) {
            if (dt_orch_lane_gpus(&o->lane[a]) != dt_orch_lane_gpus(&p->lane[b]))
                continue;
            s.c.of[m].lane = (uint8_t)a;
            s.c.of[other].lane = (uint8_t)b;
            s.c.of[m].dp = room_for(w, &s, m);
            s.c.of[other].dp = room_for(w, &s, other);
            recompute_two(w, &s, m, other);
        }
}

static void change_module(struct dt_orch_moves *w, int m)
{
    const double reach = w->reach;
    struct dt_orch_spot s = w->hand->at;

    other_modes(w, &w->hand->at, m);
    for (int step = -1; step <= 1; step += 2) {
        w->reach = step < 0 && !(s.set >> m & 1) ? STAGES_REACH * reach : reach;
        s.c.of[m].pp = (int16_t)(w->hand->at.c.of[m].pp + step);
        other_modes(w, &s, m);
    }
    w->reach = reach;
    for (int other = m + 1; other < w->in->model->n_modules; other++) {
        if (other == w->llm)
            continue;
        recompute_two(w, &w->hand->at, m, other);
        if (w->hand->at.set >> m & w->hand->at.set >> other & 1)
            widen_two(w, m, other);
    }
}

/* ---- changes of the LLM ---- */

/* Around an LLM: what is there now, as far as it fits; without guests also the best by the formula. */
static void around_llm(struct dt_orch_moves *w, const struct dt_orch_spot *from)
{
    struct dt_orch_cand near[AROUND];
    struct dt_orch_spot s = *from;
    int n = 0;

    propose(w, &s);
    for (int m = 0; m < w->in->model->n_modules && from->set; m++)
        if (from->set >> m & 1)
            s.c.of[m].dp = room_for(w, from, m);
    propose(w, &s);
    /* and where that does not fit, in as little memory as they need */
    for (int m = 0; m < w->in->model->n_modules && from->set; m++)
        if (from->set >> m & 1)
            s.c.of[m].recompute = (uint8_t)(w->t->space.of[m].n_recompute - 1);
    propose(w, &s);
    if (from->set || w->in->model->n_modules == 1)
        return;
    s = *from;
    for (int m = 0; m < w->in->model->n_modules; m++)
        if (m != w->llm)
            s.c.of[m] = (struct dt_orch_choice){0, 0, 0, 1, 1};
    if (!dt_orch_spot_is_legal(w, &s) ||
        dt_orch_search_around(w->t, &from->c, w->cap,
                              w->hand->first_s / w->hand->ratio * (1 + w->reach), AROUND, NULL,
                              near, &n) != DT_OK)
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
static void any_recompute(struct dt_orch_moves *w, const struct dt_orch_spot *from)
{
    const struct dt_orch_pipe *pipe = &w->t->space.pipe[from->c.pipe];
    const struct dt_orch_choice *of = &from->c.of[w->llm];
    double micro = w->t->space.microbatch[from->c.microbatch];
    struct dt_orch_spot s = *from;

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
                w->hand->ratio <=
            w->hand->first_s * (1 + w->reach))
            around_llm(w, &s);
    }
}

/* Replicas dp, as deep as now, and as deep as the GPUs that the LLM has now allow. */
static void with_replicas(struct dt_orch_moves *w, const struct dt_orch_spot *from, int64_t dp)
{
    int now = gpus_of(w, &w->hand->at, w->llm);
    struct dt_orch_spot s = *from;
    int64_t deep;

    if (dp < 1 || dp > w->t->gpus)
        return;
    s.c.of[w->llm].dp = (int)dp;
    any_recompute(w, &s);
    deep = now / (dp * dt_orch_lane_gpus(lane_of(w, &s, w->llm)));
    if (deep < 1 || deep == s.c.of[w->llm].pp)
        return;
    s.c.of[w->llm].pp = (int16_t)deep;
    any_recompute(w, &s);
}

/* The next number of replicas above (step 1) or below (-1) with which slots share the batch. */
static int64_t next_replicas(const struct dt_orch_moves *w, const struct dt_orch_spot *s, int step)
{
    int64_t slots = w->in->policy.global_batch / w->t->space.microbatch[s->c.microbatch];
    int64_t dp = s->c.of[w->llm].dp + step;

    while (dp >= 1 && dp <= w->t->gpus && slots % dp != 0)
        dp += step;
    return dp;
}

/* Another width and microbatch: with as many replicas, on as many GPUs, or with slots of as many samples. */
static void other_shape(struct dt_orch_moves *w, int l, int microbatch)
{
    const struct dt_orch_space *space = &w->t->space;
    int wide = dt_orch_lane_gpus(&space->of[w->llm].lane[l]), micro = space->microbatch[microbatch];
    int lane = dt_orch_lane_gpus(lane_of(w, &w->hand->at, w->llm));
    int64_t slot = slot_of(w, &w->hand->at), dp = w->hand->at.c.of[w->llm].dp;
    struct dt_orch_spot s = w->hand->at;

    if (wide > 2 * lane || 2 * wide < lane)
        return;
    s.c.of[w->llm].lane = (uint8_t)l;
    s.c.microbatch = (uint8_t)microbatch;
    with_replicas(w, &s, dp);
    if (wide != lane)
        with_replicas(w, &s, dp * lane / wide);
    if (slot % micro == 0 && slot / micro != dp)
        with_replicas(w, &s, slot / micro);
}

static void change_llm(struct dt_orch_moves *w)
{
    const struct dt_orch_space *space = &w->t->space;
    const struct dt_orch_choice *of = &w->hand->at.c.of[w->llm];
    struct dt_orch_spot s = w->hand->at;

    for (int z = 0; z < space->of[w->llm].n_zero; z++) {
        s.c.of[w->llm].zero = (uint8_t)z;
        any_recompute(w, &s);
    }
    s = w->hand->at;
    w->reach *= CHUNKS_REACH;
    for (int p = 0; p < space->n_pipes; p++) {
        s.c.pipe = (uint8_t)p;
        any_recompute(w, &s);
    }
    w->reach /= CHUNKS_REACH;
    s = w->hand->at;
    for (int step = -2; step <= 2; step++) {
        s.c.of[w->llm].pp = (int16_t)(of->pp + step);
        any_recompute(w, &s);
    }
    with_replicas(w, &w->hand->at, next_replicas(w, &w->hand->at, 1));
    with_replicas(w, &w->hand->at, next_replicas(w, &w->hand->at, -1));
    for (int l = 0; l < space->of[w->llm].n_lanes; l++)
        for (int i = 0; i < space->n_microbatches; i++)
            other_shape(w, l, i);
}

/* ---- changes of the placement ---- */

static void change_placement(struct dt_orch_moves *w, int m)
{
    struct dt_orch_spot s = w->hand->at;

    s.set ^= 1U << m;
    s.c.of[m].pp = 1;
    if (!(w->hand->at.set >> m & 1)) {
        other_modes(w, &s, m);
        return;
    }
    if (s.set == 0) /* everything around the LLM, which makes room */
        for (int step = 0; step < 3; step++, s.c.of[w->llm].pp--)
            around_llm(w, &s);
    s.c.of[w->llm] = w->hand->at.c.of[w->llm];
    for (int step = 0; step < 3 && s.c.of[w->llm].pp > 0; step++, s.c.of[w->llm].pp--) {
        s.c.of[m].dp = (int)fmin((double)slot_of(w, &s), w->hand->at.c.of[m].dp);
        other_modes(w, &s, m);
    }
}

/* ---- all of them ---- */

static int by_expectation(const void *pa, const void *pb)
{
    const struct dt_orch_move *a = pa, *b = pb;

    return a->expect < b->expect ? -1 : a->expect > b->expect;
}

enum dt_status dt_orch_moves_list(struct dt_orch_moves *w, struct dt_orch_hand *h,
                                  struct dt_error *err)
{
    const struct dt_model *model = w->in->model;

    w->hand = h;
    h->n = h->next = 0;
    change_llm(w);
    recompute_all(w);
    for (int m = 0; m < model->n_modules; m++) {
        if (m == w->llm)
            continue;
        change_module(w, m);
        if (w->in->opt.guests >> m & 1 && !w->cap)
            change_placement(w, m);
    }
    if (w->nomem || w->t->nomem)
        return dt_error_nomem(err, "planner search");
    if (h->n > 1)
        qsort(h->moves, h->n, sizeof(*h->moves), by_expectation);
    h->listed = true;
    return DT_OK;
}
