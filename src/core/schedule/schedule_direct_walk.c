/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * The walk of lanes through their orders of forwards and backwards (schedule_direct.c). */
#include "base/number.h"
#include "core/schedule/schedule_direct_impl.h"

/* A lane that is walking. */
struct walk {
    struct dt_sched_direct *d;
    const struct dt_sched_module *m;
    const struct dt_assignment_module *a;
    struct dt_sched_module_state *of;
    struct dt_sched_lane_state *x;
    const struct dt_sched_lane_order *o;
    uint32_t lane;
    int replica, stage;
};

/* ---- messages ---- */

/* False: it has not been sent; the lane is called when it is. */
static inline bool receive(const struct walk *w, struct dt_sched_message *x)
{
    int64_t *in = &w->x->at_ns[DT_RES_P2P_IN];

    if (x->end_ns < 0) {
        x->end_ns = -2 - (int64_t)w->lane;
        return false;
    }
    *in = dt_sched_later(dt_sched_later(*in, x->begin_ns), x->end_ns);
    return true;
}

static int64_t message_ns(const struct walk *w, uint32_t to, uint64_t bytes)
{
    const struct dt_lane *a = &w->d->p.lanes[w->lane], *b = &w->d->p.lanes[to];

    return dt_sched_times_there(a, b) ? 0 : dt_sched_times_send(&w->d->t, 0, a, b, bytes)->ns;
}

static inline void send(const struct walk *w, struct dt_sched_message *x, bool grad, uint32_t to,
                        uint64_t bytes)
{
    struct dt_sched_sent *like = &w->x->sent[grad];
    int64_t *at = w->x->at_ns;

    if (like->to != to || like->bytes != bytes)
        *like = (struct dt_sched_sent){bytes, message_ns(w, to, bytes), to};
    w->d->sum += (uint64_t)like->ns >> DT_SCHED_SUM_SHIFT;
    if (x->end_ns < -1)
        w->d->stack[w->d->n_stack++] = (uint32_t)(-2 - x->end_ns);
    x->begin_ns = dt_sched_later(at[DT_RES_P2P_OUT], at[DT_RES_COMPUTE]);
    x->end_ns = at[DT_RES_P2P_OUT] = x->begin_ns + like->ns;
}

/* ---- collectives of each microbatch ---- */

/* The lane's next round, for which it is ready at that time. */
static uint32_t join_round(const struct walk *w, int64_t ready_ns, int64_t ns)
{
    struct dt_sched_stage_state *st = &w->of->stage[w->stage];
    struct dt_sched_round *t = &st->round[w->x->n_rounds];
    struct dt_sched_direct *d = w->d;

    d->sum += (uint64_t)ns >> DT_SCHED_SUM_SHIFT;
    t->ready_ns = dt_sched_later(t->ready_ns, ready_ns);
    if (++t->come == (uint32_t)w->m->dp) {
        st->end_ns = t->end_ns = dt_sched_later(st->end_ns, t->ready_ns) + ns;
        for (uint32_t l = st->waiting; l != DT_NONE; l = d->lane[l].also_waits)
            d->stack[d->n_stack++] = l;
        st->waiting = DT_NONE;
    }
    return w->x->n_rounds++;
}

/* The gather of the part that comes some parts after the one which ends now; with it, places of struct fill. */
static uint32_t gather_ahead(const struct walk *w, int64_t now)
{
    struct dt_sched_fill_gather g = dt_sched_fill_next(w->m, w->o, w->stage, &w->x->ahead);

    if (g.bucket < 0)
        return DT_NONE;
    return join_round(w, now, w->of->gather_ns[g.v * DT_PARTS_MAX + g.bucket]);
}

static bool reduces(const struct dt_sched_vstage *v, enum dt_op_kind kind)
{
    return v->b_each && kind == (v->split ? DT_OP_WEIGHT_GRAD : DT_OP_BACKWARD);
}

/* Behind part i of an op. */
static void rounds_behind(const struct walk *w, enum dt_op_kind kind, int v, int i)
{
    const struct dt_sched_vstage *x = &w->m->v[v];
    int lead = dt_sched_fill_lead(w->d->s), bucket = x->b_parts - 1 - i;
    int64_t now = w->x->at_ns[DT_RES_COMPUTE];

    w->x->gathered[(w->x->n_parts + (uint32_t)lead) % 2] = gather_ahead(w, now);
    if (reduces(x, kind)) {
        w->x->unreduced[1] = w->x->unreduced[0];
        w->x->unreduced[0] = DT_NONE;
        if (x->sync_group[bucket] != DT_NONE)
            w->x->unreduced[0] = join_round(w, now, w->of->sync_ns[v * DT_PARTS_MAX + bucket]);
    }
    w->x->n_parts++;
}

/* False: the round has not ended; the lane is called when it, or one before it, has. */
static bool round_ended(const struct walk *w, uint32_t round, int64_t *at)
{
    struct dt_sched_stage_state *st = &w->of->stage[w->stage];

    if (round == DT_NONE)
        return true;
    if (st->round[round].end_ns < 0) {
        w->x->also_waits = st->waiting;
        st->waiting = w->lane;
        return false;
    }
    *at = dt_sched_later(*at, st->round[round].end_ns);
    return true;
}

/* Part i of an op waits for its own gather, and for the sync that frees the gradients of a bucket: its own or, where
 * syncs do not overlap with compute, any compute's. */
static bool rounds_before(const struct walk *w, enum dt_op_kind kind, int v, int i, int64_t *at)
{
    const struct dt_sched_vstage *x = &w->m->v[v];
    bool overlap = w->d->s->plan->policy.overlap_grad;
    int whole = x->b_parts > 1 ? dt_plan_whole_buckets(overlap) : 1;

    if (!round_ended(w, w->x->gathered[w->x->n_parts % 2], at))
        return false;
    if (reduces(x, kind))
        return round_ended(w, w->x->unreduced[whole - 1], at);
    return overlap || i > 0 || round_ended(w, w->x->unreduced[0], at);
}

static void begin_rounds(const struct walk *w)
{
    struct dt_sched_lane_state *x = w->x;

    x->gathered[0] = x->gathered[1] = x->unreduced[0] = x->unreduced[1] = DT_NONE;
    x->ahead = dt_sched_fill_first(w->m, w->o, w->stage);
    for (int k = 0; k < dt_sched_fill_lead(w->d->s); k++)
        x->gathered[k] = gather_ahead(w, 0);
}

/* ---- forwards and backwards ---- */

static inline int64_t part_ns(const struct walk *w, enum dt_op_kind kind, int v, int part,
                              int parts, uint32_t mb)
{
    struct dt_sched_direct *d = w->d;
    uint32_t id = d->t.m[w->m->index].work_id[mb];
    struct dt_cost_stage_ns s;
    int64_t ns;

    if (parts == 1) {
        ns = w->of->ns[v][id][kind == DT_OP_FORWARD    ? DT_CODE_FORWARD
                              : kind == DT_OP_BACKWARD ? DT_CODE_BACKWARD
                                                       : DT_CODE_WEIGHT];
    } else {
        s = dt_sched_times_part(&d->t, w->m->index, v, kind != DT_OP_FORWARD, part, parts, id);
        ns = dt_sched_direct_ns(d, dt_sched_times_of(&d->t, kind, &s));
    }
    d->sum += (uint64_t)ns >> DT_SCHED_SUM_SHIFT;
    return ns;
}

/* The parts of an op that are left, the first of which has its inputs at `at`; after: what else each waits for, done: when
 * each has ended, both may be NULL.  False: a part has to wait. */
static inline bool run_parts(const struct walk *w, enum dt_op_kind kind, int v, uint32_t k,
                             int parts, int64_t at, const int64_t *after, int64_t *done)
{
    bool rounds = w->of->stage[w->stage].round;
    int64_t *now = &w->x->at_ns[DT_RES_COMPUTE];

    for (int i = w->x->part; i < parts; i++, at = 0) {
        w->x->part = i;
        at = dt_sched_later(at, *now);
        if (after)
            at = dt_sched_later(at, after[i]);
        if (rounds && !rounds_before(w, kind, v, i, &at))
            return false;
        *now = at + part_ns(w, kind, v, i, parts, w->m->mb_first[w->replica] + k);
        if (done)
            done[i] = *now;
        if (rounds)
            rounds_behind(w, kind, v, i);
    }
    w->x->part = 0;
    return true;
}

/* What a forward waits for: *at is when all of it is there. */
static inline bool forward_inputs(const struct walk *w, int v, uint32_t k, int64_t *at)
{
    const struct dt_sched_module *m = w->m;
    uint32_t mb = m->mb_first[w->replica] + k;
    bool any;

    if (v > 0) {
        any = dt_sched_fill_crosses(m, w->a, v - 1, mb);
        if (any && !receive(w, &w->of->f[dt_sched_at(m, w->replica, v - 1, k)]))
            return false;
    } else {
        any = w->a->mb[mb].n > 0; /* its FETCH */
        for (uint32_t i = m->in_first[mb]; i < m->in_first[mb + 1]; i++, any = true)
            if (!receive(w, &w->d->forward[m->in[i]]))
                return false;
    }
    *at = any ? w->x->at_ns[DT_RES_P2P_IN] : 0;
    return true;
}

static inline void forward_outputs(const struct walk *w, int v, uint32_t k)
{
    const struct dt_sched_module *m = w->m;
    uint32_t mb = m->mb_first[w->replica] + k;

    if (v < m->n_v - 1) {
        if (dt_sched_fill_crosses(m, w->a, v, mb))
            send(w, &w->of->f[dt_sched_at(m, w->replica, v, k)], false,
                 dt_sched_lane_of(m, w->replica, v + 1),
                 dt_sched_vstage_bytes(&m->v[v], &w->a->work[mb]));
        return;
    }
    for (uint32_t i = m->out_first[mb]; i < m->out_first[mb + 1]; i++) {
        const struct dt_sched_transfer *t = &w->d->s->transfers[m->out[i]];
        const struct dt_sched_module *to = &w->d->s->m[t->d];

        send(w, &w->d->forward[m->out[i]], false, dt_sched_lane_of(to, to->replica_of[t->d_mb], 0),
             t->bytes);
    }
}

static bool forward(const struct walk *w, int v, uint32_t k)
{
    const struct dt_sched_module *m = w->m;
    bool first = k == w->o->first_f[v / m->pp];
    int64_t at = 0;

    if (w->x->part == 0 && !forward_inputs(w, v, k, &at))
        return false;
    /* Without overlap all gathers of the iteration stand before the first compute op. */
    if (!w->x->forwards && !w->d->s->plan->policy.overlap_param)
        at = dt_sched_later(at, w->of->stage[w->stage].head_ns);
    if (!run_parts(w, DT_OP_FORWARD, v, k, dt_sched_forward_parts(&m->v[v], first), at,
                   first ? &w->of->gathered_ns[v * DT_PARTS_MAX] : NULL, NULL))
        return false;
    w->x->forwards = true;
    forward_outputs(w, v, k);
    return true;
}

static inline bool backward_inputs(const struct walk *w, int v, uint32_t k, int64_t *at)
{
    const struct dt_sched_module *m = w->m;
    uint32_t mb = m->mb_first[w->replica] + k;
    bool any = false;

    if (v < m->n_v - 1) {
        any = dt_sched_fill_crosses(m, w->a, v, mb);
        if (any && !receive(w, &w->of->b[dt_sched_at(m, w->replica, v + 1, k)]))
            return false;
    } else {
        for (uint32_t i = m->out_first[mb]; i < m->out_first[mb + 1]; i++, any = true)
            if (!receive(w, &w->d->grad[m->out[i]]))
                return false;
    }
    *at = any ? w->x->at_ns[DT_RES_P2P_IN] : 0;
    return true;
}

static inline void backward_outputs(const struct walk *w, int v, uint32_t k)
{
    const struct dt_sched_module *m = w->m;
    uint32_t mb = m->mb_first[w->replica] + k;

    if (v > 0) {
        if (m->v[v - 1].backward && dt_sched_fill_crosses(m, w->a, v - 1, mb))
            send(w, &w->of->b[dt_sched_at(m, w->replica, v, k)], true,
                 dt_sched_lane_of(m, w->replica, v - 1),
                 dt_sched_vstage_bytes(&m->v[v - 1], &w->a->work[mb]));
        return;
    }
    for (uint32_t i = m->in_first[mb]; i < m->in_first[mb + 1]; i++) {
        const struct dt_sched_transfer *t = &w->d->s->transfers[m->in[i]];
        const struct dt_sched_module *to = &w->d->s->m[t->u];

        if (t->grad)
            send(w, &w->d->grad[m->in[i]], true,
                 dt_sched_lane_of(to, to->replica_of[t->u_mb], to->n_v - 1), t->bytes);
    }
}

/* A backward or weight gradient; the one that completes the gradients of its chunk in buckets. */
static bool gradients(const struct walk *w, enum dt_op_kind kind, int v, uint32_t k, int64_t at)
{
    const struct dt_sched_module *m = w->m;
    bool last = k == w->o->last_b[v / m->pp] && m->v[v].split == (kind == DT_OP_WEIGHT_GRAD);
    int parts = kind == DT_OP_WEIGHT_GRAD ? dt_sched_gradient_parts(&m->v[v], last)
                                          : dt_sched_backward_parts(&m->v[v], last);

    return run_parts(w, kind, v, k, parts, at, NULL,
                     last ? &w->of->grads_ns[(w->replica * m->n_v + v) * DT_PARTS_MAX] : NULL);
}

static bool backward(const struct walk *w, int v, uint32_t k)
{
    int64_t at = 0;

    if (w->x->part == 0 && !backward_inputs(w, v, k, &at))
        return false;
    if (!gradients(w, DT_OP_BACKWARD, v, k, at))
        return false;
    backward_outputs(w, v, k);
    return true;
}

static bool weight(const struct walk *w, int v, uint32_t k)
{
    return gradients(w, DT_OP_WEIGHT_GRAD, v, k, 0);
}

/* Runs a lane until it has to wait. */
static void run_lane(struct dt_sched_direct *d, uint32_t lane)
{
    static bool (*const step_of[])(const struct walk *w, int v, uint32_t k) = {
        [DT_CODE_FORWARD] = forward, [DT_CODE_BACKWARD] = backward, [DT_CODE_WEIGHT] = weight};
    const struct dt_lane *l = &d->p.lanes[lane];
    const struct dt_sched_module *m = &d->s->m[l->module];
    const struct walk w = {.d = d,
                           .m = m,
                           .a = &d->s->a->m[l->module],
                           .of = &d->m[l->module],
                           .x = &d->lane[lane],
                           .o = dt_sched_order(d->s, m, l->replica, l->stage),
                           .lane = lane,
                           .replica = l->replica,
                           .stage = l->stage};

    if (w.x->next == 0 && w.x->part == 0 && w.x->n_rounds == 0 && w.of->stage[w.stage].round)
        begin_rounds(&w);
    for (; w.x->next < w.o->n; w.x->next++) {
        uint32_t code = w.o->code[w.x->next];

        if (!step_of[DT_CODE_KIND(code)](&w, (int)DT_CODE_CHUNK(code) * m->pp + w.stage,
                                         DT_CODE_MB(code)))
            return;
        if (w.x->at_ns[DT_RES_COMPUTE] >= DT_TIME_MAX_NS ||
            w.x->at_ns[DT_RES_P2P_OUT] >= DT_TIME_MAX_NS) {
            d->late = true;
            return;
        }
    }
    d->done++;
}

bool dt_sched_direct_walk(struct dt_sched_direct *d)
{
    while (d->n_stack > 0 && !d->late)
        run_lane(d, d->stack[--d->n_stack]);
    return !d->late && d->done == d->s->n_lanes;
}
