/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * The list schedule: a simulated execution whose order becomes the fixed order of its lanes.
 *
 * A lane that is free takes, of what is ready, the oldest backward, else a forward within its
 * in-flight bound.  Where lanes have a fixed order as well (slots that are not aligned, without chunks), that is run
 * beside it; the compiler asks for the list schedule in a second program if it ends earlier here, and keeps the program
 * that is.  A lane of several chunks has a choice of forwards; these rules are tried, beside Megatron-core's order, and
 * the run that ends first gives the order, Megatron-core's unless another is 5 % faster (with guests, of those that end 4 % later at most,
 * the one whose program ends first with their turns):
 *
 *   deepest    the last chunk that can run: keeps step with modules around that deliver and take
 *              one microbatch at a time
 *   groups     pp microbatches chunk by chunk: fills the pipeline fastest when they are all there
 *   joined     where pp does not divide them: as many groups as there are whole ones, of pp or more microbatches, and
 *              backwards of a group chunk by chunk, too.  A last group of one would pass all chunks alone, with as many
 *              idle turns in each as it lacks microbatches; so would its oldest microbatch on the way back
 *
 * The result is an order that did execute, hence free of deadlock.  When slots are aligned one
 * replica of each module stands for all; otherwise every lane takes part.  Durations are those of
 * the mean microbatch of each virtual stage (1 and 2 units a stage without a cost model); transfers
 * take no time.  Ties fall to the lower lane, so that equal inputs give equal orders.
 *
 * Why the bound cannot block the run: let O be the first microbatch of a lane with forwards to run
 * that are held for a backward.  Any other one may begin a forward only if the places that O still
 * needs stay free after it.  When O becomes the lane's oldest unfinished microbatch, the one before
 * it has given back as many places as O can need, and none of them went to a younger one; so the
 * oldest microbatch of all can always go on. */
#include "core/schedule/schedule_impl.h"

#include "base/heap.h"

#include <string.h>

enum { CLEARLY = 5, NEAR = 4 }; /* percent */

enum { UNIT = 5040 }; /* of time without a cost model; every vpp up to 10 divides it */

enum rule { MEGATRON, DEEPEST, GROUPS, JOINED, N_RULES };

struct event {
    int64_t ns;
    uint32_t lane;
};
struct list_lane {
    uint8_t module;
    bool fixed, busy, touched, backward;
    uint16_t stage;
    uint32_t n, held, cap, at; /* at: next entry of a fixed order */
    uint32_t running;          /* code */
    uint32_t first_mb;
    uint32_t *next_f;    /* [vpp]: next forward of each chunk */
    uint32_t *needs;     /* [vpp + 1]: chunks from this one on that run a backward */
    uint32_t first_open; /* first microbatch with such a chunk to run forward */
    uint32_t credit_at; /* without backwards: forwards whose outputs have been consumed, in order */
    int64_t left_ns;    /* of its work */
    uint32_t ready_n, *ready; /* codes of backwards that can run, the oldest last */
    uint32_t n_code, *code;   /* the order so far */
    struct dt_sched_lane_order *order;
};
struct list {
    struct dt_sched *s;
    const bool *is_list, *given; /* of modules: on the list; lanes come with a fixed order too */
    bool defers[DT_MAX_MODULES]; /* dt_plan_defers */
    enum rule rule;              /* in force */
    int replicas[DT_MAX_MODULES];
    uint32_t lane_base[DT_MAX_MODULES], n_mb[DT_MAX_MODULES];
    size_t task_base[DT_MAX_MODULES], n_tasks, done;
    int64_t *ns[DT_MAX_MODULES]; /* [2 * n_v]: forward, backward */
    uint32_t n_lanes, n_events, n_touched;
    struct list_lane *lanes;
    uint32_t *waits, *touched;
    uint32_t *unread; /* [n_tasks], of forwards: outputs not consumed yet */
    int64_t *when;    /* [n_tasks]: its end in this run */
    struct event *heap;
    int64_t now, limit; /* a run that cannot end before the limit is given up */
    bool given_up;
    struct dt_arena arena;
};

static size_t task_of(const struct list *l, int module, uint32_t mb, int v, int backward)
{
    return l->task_base[module] + ((size_t)mb * l->s->m[module].n_v + v) * 2 + backward;
}

#define EARLIER(ctx, a, b) ((a).ns != (b).ns ? (a).ns < (b).ns : (a).lane < (b).lane)
DT_HEAP(events, const void *, struct event, 2, EARLIER, DT_HEAP_SET)

static void heap_push(struct list *l, struct event e)
{
    events_push(NULL, l->heap, l->n_events++, e);
}

static struct event heap_pop(struct list *l)
{
    return events_pop(NULL, l->heap, l->n_events--);
}

/* The mean microbatch: an order fitted to single microbatches did worse on the others that share
 * it. */
static void mean_work(const struct dt_sched *s, int module, struct dt_work *w)
{
    uint32_t n = s->m[module].n_mb;

    memset(w, 0, sizeof(*w));
    for (uint32_t i = 0; i < n; i++)
        dt_work_add(w, &s->a->m[module].work[i]);
    w->n = (w->n + n - 1) / n;
    w->tokens = (w->tokens + n - 1) / n;
    w->tokens_sq = (w->tokens_sq + n - 1) / n;
}

static int stage_times(struct list *l, int module)
{
    struct dt_sched *s = l->s;
    const struct dt_sched_module *m = &s->m[module];
    unsigned char *trainable = DT_ARENA_NEW(&l->arena, unsigned char, m->mod->n_blocks + 1);
    struct dt_work w;

    l->ns[module] = DT_ARENA_NEW(&l->arena, int64_t, 2 * m->n_v);
    if (!l->ns[module] || !trainable)
        return -1;
    if (s->cost && m->n_mb > 0) {
        mean_work(s, module, &w);
        dt_plan_trainable(s->plan, s->model, module, trainable);
    }
    for (int v = 0; v < m->n_v; v++) {
        const struct dt_block_shard shard =
            dt_plan_stage_shard(s->plan, module, v % m->pp, s->cluster->gpus_per_node);
        struct dt_cost_stage_ns t = {.fwd = UNIT / m->vpp, .bwd = 2 * UNIT / m->vpp};

        if (s->cost && m->n_mb > 0)
            t = dt_cost_stage_ns(
                s->cost, module, m->v[v].first, m->v[v].n, &shard, &w, trainable,
                dt_plan_upstream_trained(s->plan, s->model, module, m->v[v].first));
        l->ns[module][2 * v] = t.fwd >= 1 ? (int64_t)t.fwd : 1;
        l->ns[module][2 * v + 1] = t.bwd >= 1 ? (int64_t)t.bwd : 1;
    }
    return 0;
}

/* Is microbatch mb what the position before it has deferred (Entrain)?  It comes in the order of the lane with that
 * position's other part, in both directions, and both count as one that is held. */
static bool is_deferred(const struct list *l, int module, uint32_t mb)
{
    const struct dt_sched_module *m = &l->s->m[module];
    int r;

    if (!l->defers[module]) /* nearly always, and asked for every op */
        return false;
    r = m->replica_of[mb];
    return dt_assignment_deferred(&l->s->a->m[module], m->mb_first[r], m->mb_first[r + 1], mb);
}

static bool has_deferred(const struct list *l, int module, uint32_t mb)
{
    return mb + 1 < l->n_mb[module] && is_deferred(l, module, mb + 1);
}

/* Unfinished inputs of every task.  Aligned: microbatch k of each module stands for its slot. */
static void count_inputs(struct list *l)
{
    struct dt_sched *s = l->s;

    for (int i = 0; i < s->n_modules; i++) {
        const struct dt_sched_module *m = &s->m[i];

        for (uint32_t mb = 0; mb < l->n_mb[i]; mb++)
            for (int v = 0; v < m->n_v; v++) {
                l->waits[task_of(l, i, mb, v, 0)] = v > 0;
                l->unread[task_of(l, i, mb, v, 0)] = v < m->n_v - 1;
                l->waits[task_of(l, i, mb, v, 1)] = 1 + (v < m->n_v - 1) + is_deferred(l, i, mb);
            }
    }
    for (int e = 0; s->aligned && e < s->model->n_edges; e++) {
        const struct dt_model_edge *x = &s->model->edges[e];

        for (uint32_t k = 0; k < l->n_mb[x->src]; k++) {
            l->waits[task_of(l, x->dst, k, 0, 0)]++;
            l->unread[task_of(l, x->src, k, s->m[x->src].n_v - 1, 0)]++;
            l->waits[task_of(l, x->src, k, s->m[x->src].n_v - 1, 1)] += s->m[x->src].mirrored_out;
        }
    }
    for (uint32_t t = 0; !s->aligned && t < s->n_transfers; t++) {
        const struct dt_sched_transfer *x = &s->transfers[t];

        l->waits[task_of(l, x->d, x->d_mb, 0, 0)]++;
        l->unread[task_of(l, x->u, x->u_mb, s->m[x->u].n_v - 1, 0)]++;
        l->waits[task_of(l, x->u, x->u_mb, s->m[x->u].n_v - 1, 1)] += x->grad;
    }
}

static int lane_init(struct list *l, struct list_lane *x, int local)
{
    const struct dt_sched *s = l->s;
    const struct dt_sched_module *m = &s->m[x->module];
    int replica = local / m->pp;

    x->stage = (uint16_t)(local % m->pp);
    x->order = &m->order[local];
    x->first_mb = m->mb_first[replica];
    x->n = m->mb_first[replica + 1] - x->first_mb;
    x->cap = (uint32_t)dt_memory_in_flight(s->plan, s->model, x->module, x->stage, (int64_t)x->n);
    x->next_f = DT_ARENA_NEW(&l->arena, uint32_t, m->vpp);
    x->needs = DT_ARENA_NEW(&l->arena, uint32_t, m->vpp + 1);
    x->ready = DT_ARENA_NEW(&l->arena, uint32_t, (size_t)x->n * m->vpp + 1);
    x->code = DT_ARENA_NEW(&l->arena, uint32_t, 2 * (size_t)x->n * m->vpp + 1);
    if (!x->next_f || !x->needs || !x->ready || !x->code)
        return -1;
    for (int c = m->vpp - 1; c >= 0; c--)
        x->needs[c] = x->needs[c + 1] + m->v[c * m->pp + x->stage].backward;
    x->backward = x->needs[0] > 0;
    return 0;
}

static int list_init(struct list *l)
{
    struct dt_sched *s = l->s;

    for (int i = 0; i < s->n_modules; i++) {
        l->replicas[i] = s->aligned ? 1 : s->m[i].dp;
        l->lane_base[i] = l->n_lanes;
        l->n_lanes += (uint32_t)(l->replicas[i] * s->m[i].pp);
        l->n_mb[i] = s->m[i].mb_first[l->replicas[i]];
        l->task_base[i] = l->n_tasks;
        l->n_tasks += (size_t)l->n_mb[i] * s->m[i].n_v * 2;
        s->m[i].when = DT_ARENA_NEW(&s->arena, int64_t, (size_t)l->n_mb[i] * s->m[i].n_v * 2 + 1);
        if (!s->m[i].when)
            return -1;
    }
    l->lanes = DT_ARENA_NEW(&l->arena, struct list_lane, l->n_lanes);
    l->waits = DT_ARENA_NEW(&l->arena, uint32_t, l->n_tasks + 1);
    l->unread = DT_ARENA_NEW(&l->arena, uint32_t, l->n_tasks + 1);
    l->when = DT_ARENA_NEW(&l->arena, int64_t, l->n_tasks + 1);
    l->touched = DT_ARENA_NEW(&l->arena, uint32_t, l->n_lanes);
    l->heap = DT_ARENA_NEW(&l->arena, struct event, l->n_lanes + 1);
    if (!l->lanes || !l->waits || !l->when || !l->unread || !l->touched || !l->heap)
        return -1;
    for (uint32_t i = 0; i < l->n_lanes; i++) {
        struct list_lane *x = &l->lanes[i];
        int module = 0, local;

        while (module + 1 < s->n_modules && i >= l->lane_base[module + 1])
            module++;
        local = (int)(i - l->lane_base[module]);
        x->module = (uint8_t)module;
        if (lane_init(l, x, local) != 0)
            return -1;
    }
    for (int i = 0; i < s->n_modules; i++)
        if (stage_times(l, i) != 0)
            return -1;
    return 0;
}

/* What a lane has to do. */
static int64_t work_of(const struct list *l, const struct list_lane *x)
{
    const struct dt_sched_module *m = &l->s->m[x->module];
    int64_t ns = 0;

    for (int v = x->stage; v < m->n_v; v += m->pp)
        ns += l->ns[x->module][2 * v] + (m->v[v].backward ? l->ns[x->module][2 * v + 1] : 0);
    return ns * x->n;
}

/* Back to the start, with orders of the caller (fixed) or none. */
static void list_reset(struct list *l, bool fixed, enum rule rule)
{
    l->rule = rule;
    l->done = 0;
    l->now = 0;
    l->given_up = false;
    l->n_events = l->n_touched = 0;
    for (uint32_t i = 0; i < l->n_lanes; i++) {
        struct list_lane *x = &l->lanes[i];
        int vpp = l->s->m[x->module].vpp;

        x->fixed = !l->is_list[x->module] || (fixed && l->given[x->module]);
        x->busy = x->touched = false;
        x->left_ns = work_of(l, x);
        x->held = x->at = x->first_open = x->credit_at = x->ready_n = x->n_code = 0;
        memset(x->next_f, 0, (size_t)vpp * sizeof(*x->next_f));
    }
    count_inputs(l);
}

static void touch(struct list *l, uint32_t lane)
{
    if (l->lanes[lane].touched)
        return;
    l->lanes[lane].touched = true;
    l->touched[l->n_touched++] = lane;
}

/* Microbatches that a lane takes chunk by chunk. */
static uint32_t group_size(const struct list *l, const struct list_lane *x)
{
    uint32_t pp = (uint32_t)l->s->m[x->module].pp, whole = x->n / pp;

    return l->rule == JOINED && whole > 0 ? (x->n + whole - 1) / whole : pp;
}

/* Which backward goes first: the oldest; of joined groups the deepest chunk. */
static uint32_t backward_rank(const struct list *l, const struct list_lane *x, uint32_t code)
{
    uint32_t group = group_size(l, x), mb = DT_CODE_MB(code),
             vpp = (uint32_t)l->s->m[x->module].vpp;

    if (l->rule != JOINED)
        return code;
    return (mb / group * vpp + vpp - 1 - DT_CODE_CHUNK(code)) * group + mb % group;
}

/* One input of (module, mb, v, backward) is there. */
static void satisfy(struct list *l, int module, uint32_t mb, int v, int backward)
{
    const struct dt_sched_module *m = &l->s->m[module];
    uint32_t lane;
    int replica = l->replicas[module] > 1 ? m->replica_of[mb] : 0;

    if (backward && !m->v[v].backward)
        return;
    if (--l->waits[task_of(l, module, mb, v, backward)] > 0)
        return;
    lane = l->lane_base[module] + (uint32_t)(replica * m->pp + v % m->pp);
    if (backward && !l->lanes[lane].fixed) {
        struct list_lane *x = &l->lanes[lane];
        uint32_t code = DT_CODE(mb - x->first_mb, v / m->pp, DT_CODE_BACKWARD), i = x->ready_n++;
        uint32_t rank = backward_rank(l, x, code);

        for (; i > 0 && backward_rank(l, x, x->ready[i - 1]) < rank; i--) /* the first last */
            x->ready[i] = x->ready[i - 1];
        x->ready[i] = code;
    }
    touch(l, lane);
}

/* A forward of (module, mb, v) has consumed an output of its producer, which may have waited for
 * that. */
static void consumed(struct list *l, int module, uint32_t mb, int v)
{
    const struct dt_sched_module *m = &l->s->m[module];
    int replica = l->replicas[module] > 1 ? m->replica_of[mb] : 0;
    uint32_t lane = l->lane_base[module] + (uint32_t)(replica * m->pp + v % m->pp);

    l->unread[task_of(l, module, mb, v, 0)]--;
    if (!l->lanes[lane].backward)
        touch(l, lane);
}

static void consume_inputs(struct list *l, int module, uint32_t mb, int v)
{
    struct dt_sched *s = l->s;
    const struct dt_sched_module *m = &s->m[module];

    if (v > 0) {
        consumed(l, module, mb, v - 1);
        return;
    }
    for (int e = 0; s->aligned && e < s->model->n_edges; e++)
        if (s->model->edges[e].dst == module)
            consumed(l, s->model->edges[e].src, mb, s->m[s->model->edges[e].src].n_v - 1);
    for (uint32_t i = m->in_first[mb]; !s->aligned && i < m->in_first[mb + 1]; i++) {
        const struct dt_sched_transfer *t = &s->transfers[m->in[i]];

        consumed(l, t->u, t->u_mb, s->m[t->u].n_v - 1);
    }
}

static void finish(struct list *l, struct list_lane *x)
{
    struct dt_sched *s = l->s;
    const struct dt_sched_module *m = &s->m[x->module];
    uint32_t mb = x->first_mb + DT_CODE_MB(x->running);
    int v = (int)DT_CODE_CHUNK(x->running) * m->pp + x->stage;
    bool backward = DT_CODE_KIND(x->running) == DT_CODE_BACKWARD;

    x->busy = false;
    l->done++;
    l->when[task_of(l, x->module, mb, v, backward)] = l->now;
    if (!backward) {
        consume_inputs(l, x->module, mb, v);
        satisfy(l, x->module, mb, v, 1);
        if (v + 1 < m->n_v)
            satisfy(l, x->module, mb, v + 1, 0);
    } else if (v > 0) {
        satisfy(l, x->module, mb, v - 1, 1);
    }
    if (backward && has_deferred(l, x->module, mb))
        satisfy(l, x->module, mb + 1, v, 1);
    for (int e = 0; s->aligned && e < s->model->n_edges; e++) {
        const struct dt_model_edge *y = &s->model->edges[e];

        if (!backward && v == m->n_v - 1 && y->src == x->module)
            satisfy(l, y->dst, mb, 0, 0);
        if (backward && v == 0 && y->dst == x->module && s->m[y->src].mirrored_out)
            satisfy(l, y->src, mb, s->m[y->src].n_v - 1, 1);
    }
    if (s->aligned)
        return;
    for (uint32_t i = m->out_first[mb]; !backward && v == m->n_v - 1 && i < m->out_first[mb + 1];
         i++)
        satisfy(l, s->transfers[m->out[i]].d, s->transfers[m->out[i]].d_mb, 0, 0);
    for (uint32_t i = m->in_first[mb]; backward && v == 0 && i < m->in_first[mb + 1]; i++) {
        const struct dt_sched_transfer *t = &s->transfers[m->in[i]];

        if (t->grad)
            satisfy(l, t->u, t->u_mb, s->m[t->u].n_v - 1, 1);
    }
}

/* Chunks of microbatch mb that are still to be run forward and held for a backward. */
static uint32_t open_chunks(const struct list_lane *x, int vpp, uint32_t mb)
{
    int c = 0;

    while (c < vpp && x->next_f[c] > mb)
        c++;
    return x->needs[c];
}

/* Without backwards: has what the lane sent after forward i - bound been consumed? */
static bool has_credit(const struct list *l, struct list_lane *x)
{
    const struct dt_sched_module *m = &l->s->m[x->module];
    const uint32_t *code = x->fixed ? x->order->code : x->code;
    uint32_t done = x->fixed ? x->at : x->n_code;

    while (x->credit_at < done) {
        uint32_t c = code[x->credit_at];

        if (l->unread[task_of(l, x->module, x->first_mb + DT_CODE_MB(c),
                              (int)DT_CODE_CHUNK(c) * m->pp + x->stage, 0)] > 0)
            break;
        x->credit_at++;
    }
    return done < x->cap + x->credit_at;
}

/* May forwards begin as far as memory goes? */
struct room {
    bool oldest; /* of the lane's first microbatch with any to run */
    bool others; /* of one behind it, for which places that the first still needs stay free */
};

static struct room room_of(const struct list_lane *x, int vpp)
{
    return (struct room){x->held < x->cap,
                         x->held + 1 + open_chunks(x, vpp, x->first_open) <= x->cap};
}

/* May the lane run the next forward of this chunk as far as memory goes? */
static bool within_bound(const struct list *l, const struct list_lane *x,
                         const struct dt_sched_module *m, const struct room *room, int chunk)
{
    uint32_t mb = x->next_f[chunk];

    if (!x->backward || is_deferred(l, x->module, x->first_mb + mb)) /* its position is held */
        return true;
    if (!m->v[chunk * m->pp + x->stage].backward) /* holds nothing, but must not run away */
        return mb < x->first_open + x->cap;
    return mb == x->first_open ? room->oldest : room->others;
}

/* Of the chunks whose next forward can run the last, or by groups the one that comes first; DT_NONE. */
static uint32_t forward_of(const struct list *l, const struct list_lane *x)
{
    const struct dt_sched_module *m = &l->s->m[x->module];
    const struct room room = room_of(x, m->vpp);
    const size_t first = task_of(l, x->module, x->first_mb, x->stage, 0);
    uint32_t best = DT_NONE, rank = DT_NONE, group = group_size(l, x);

    for (int c = m->vpp - 1; c >= 0; c--) {
        uint32_t mb = x->next_f[c], at;

        if (mb >= x->n || l->waits[first + 2 * ((size_t)mb * m->n_v + c * m->pp)] > 0 ||
            !within_bound(l, x, m, &room, c))
            continue;
        if (l->rule == DEEPEST)
            return DT_CODE(mb, c, DT_CODE_FORWARD);
        at = (mb / group * (uint32_t)m->vpp + (uint32_t)c) * group + mb % group;
        if (at < rank) {
            best = DT_CODE(mb, c, DT_CODE_FORWARD);
            rank = at;
        }
    }
    return best;
}

static uint32_t choose_forward(struct list *l, struct list_lane *x)
{
    const struct dt_sched_module *m = &l->s->m[x->module];
    uint32_t best;

    if ((!x->backward && !has_credit(l, x)) || (best = forward_of(l, x)) == DT_NONE)
        return DT_NONE;
    x->next_f[DT_CODE_CHUNK(best)]++;
    x->held += m->v[(int)DT_CODE_CHUNK(best) * m->pp + x->stage].backward &&
               !is_deferred(l, x->module, x->first_mb + DT_CODE_MB(best));
    while (x->first_open < x->n && open_chunks(x, m->vpp, x->first_open) == 0)
        x->first_open++;
    return best;
}

/* The code of what a free lane runs next, or DT_NONE. */
static uint32_t choose(struct list *l, struct list_lane *x)
{
    const struct dt_sched_module *m = &l->s->m[x->module];

    if (x->fixed) {
        uint32_t code = x->at < x->order->n ? x->order->code[x->at] : DT_NONE;

        if (code == DT_NONE || (!x->backward && !has_credit(l, x)) ||
            l->waits[task_of(l, x->module, x->first_mb + DT_CODE_MB(code),
                             (int)DT_CODE_CHUNK(code) * m->pp + x->stage, DT_CODE_KIND(code))] > 0)
            return DT_NONE;
        x->at++;
        return code;
    }
    if (x->ready_n > 0) {
        uint32_t code = x->ready[--x->ready_n];

        x->held -= !has_deferred(l, x->module, x->first_mb + DT_CODE_MB(code));
        return code;
    }
    return choose_forward(l, x);
}

static void start_touched(struct list *l)
{
    for (uint32_t i = 0; i < l->n_touched; i++) {
        struct list_lane *x = &l->lanes[l->touched[i]];
        uint32_t code;
        int64_t ns;
        int v;

        x->touched = false;
        if (x->busy || (code = choose(l, x)) == DT_NONE)
            continue;
        if (!x->fixed)
            x->code[x->n_code++] = code;
        v = (int)DT_CODE_CHUNK(code) * l->s->m[x->module].pp + x->stage;
        x->running = code;
        x->busy = true;
        ns = l->ns[x->module][2 * v + DT_CODE_KIND(code)];
        l->given_up |= l->now + x->left_ns >= l->limit;
        x->left_ns -= ns;
        heap_push(l, (struct event){l->now + ns, l->touched[i]});
    }
    l->n_touched = 0;
}

static size_t tasks_to_do(const struct list *l)
{
    size_t n = 0;

    for (int i = 0; i < l->s->n_modules; i++)
        for (int v = 0; v < l->s->m[i].n_v; v++)
            n += (size_t)l->n_mb[i] * (1 + l->s->m[i].v[v].backward);
    return n;
}

/* Runs to the end; the time that takes, or INT64_MAX when the lanes block each other or the limit is missed. */
static int64_t list_run(struct list *l, bool fixed, enum rule rule)
{
    list_reset(l, fixed, rule);
    for (uint32_t i = 0; i < l->n_lanes; i++)
        touch(l, i);
    start_touched(l);
    while (l->n_events > 0 && !l->given_up) {
        l->now = l->heap[0].ns;
        while (l->n_events > 0 && l->heap[0].ns == l->now) {
            uint32_t lane = heap_pop(l).lane;

            finish(l, &l->lanes[lane]);
            touch(l, lane);
        }
        start_touched(l);
    }
    return l->done == tasks_to_do(l) ? l->now : INT64_MAX;
}

/* Keeps the orders and times of the last run. */
static void keep_orders(struct list *l)
{
    for (uint32_t i = 0; i < l->n_lanes; i++) {
        struct list_lane *x = &l->lanes[i];

        if (x->fixed)
            continue;
        memcpy(x->order->code, x->code, x->n_code * sizeof(*x->code));
        x->order->n = x->n_code;
    }
    for (int i = 0; i < l->s->n_modules; i++)
        memcpy(l->s->m[i].when, l->when + l->task_base[i],
               (size_t)l->n_mb[i] * l->s->m[i].n_v * 2 * sizeof(*l->when));
}

/* Is there a last group of fewer than pp microbatches, behind whole ones? */
static bool is_ragged(const struct list *l)
{
    for (uint32_t i = 0; i < l->n_lanes; i++) {
        const struct dt_sched_module *m = &l->s->m[l->lanes[i].module];
        uint32_t n = l->lanes[i].n, pp = (uint32_t)m->pp;

        if (m->vpp > 1 && n > pp && n % pp != 0)
            return true;
    }
    return false;
}

/* The run by a rule that was asked for. */
static int64_t one_of_chunks(struct list *l, enum rule rule)
{
    int64_t ns;

    l->limit = INT64_MAX;
    ns = list_run(l, rule == MEGATRON, rule);
    if (ns < INT64_MAX)
        keep_orders(l);
    return ns;
}

/* Keeps the order that ends first; its time, or INT64_MAX where every one blocks.  The runs know nothing of guests, so that
 * where there are some, rules that come near the best are named. */
static int64_t best_of_chunks(struct list *l)
{
    const bool guests = dt_plan_shares(l->s->plan);
    int64_t best = INT64_MAX, ended[N_RULES];
    enum rule chosen = MEGATRON, rules = is_ragged(l) ? N_RULES : JOINED;

    for (enum rule rule = MEGATRON; rule < rules; rule++) {
        int64_t ns;

        l->limit = guests && best < INT64_MAX ? best + best / 100 * NEAR : best;
        ended[rule] = ns = list_run(l, rule == MEGATRON, rule);

        /* Megatron-core's order is regular and bears unequal microbatches best, which means do not
         * show: another must be clearly faster. */
        if (ns < best) {
            best = rule == MEGATRON && ns < INT64_MAX ? ns / 100 * (100 - CLEARLY) : ns;
            chosen = rule;
            keep_orders(l);
        }
    }
    for (enum rule rule = MEGATRON; guests && best < INT64_MAX && rule < rules; rule++)
        if (rule != chosen && ended[rule] < best + best / 100 * NEAR)
            l->s->other_rules |= 1U << rule;
    return best;
}

/* The list schedule, or the fixed order unless the list schedule is asked for. */
static int64_t best_of_two(struct list *l, bool any_fixed)
{
    int64_t listed, fixed = INT64_MAX;

    l->limit = INT64_MAX;
    listed = list_run(l, false, DEEPEST);
    if (any_fixed && l->s->take == DT_SCHED_FIXED) {
        fixed = list_run(l, true, DEEPEST);
        l->s->list_sooner = listed < fixed;
        if (fixed == INT64_MAX) /* transfers leave their slots: no order by slots */
            listed = list_run(l, false, DEEPEST);
    }
    keep_orders(l);
    return fixed < INT64_MAX ? fixed : listed;
}

enum dt_status dt_sched_list(struct dt_sched *s, const bool *list, const bool *fixed,
                             struct dt_error *err)
{
    struct list l = {.s = s, .is_list = list, .given = fixed};
    bool chunks = false, both = false;
    int64_t ns;

    for (int i = 0; i < s->n_modules; i++) {
        l.defers[i] = dt_plan_defers(s->plan, s->model, i);
        both |= list[i] && fixed[i];
        chunks |= list[i] && s->m[i].vpp > 1;
    }
    if (list_init(&l) != 0) {
        dt_arena_free(&l.arena);
        return dt_error_nomem(err, "list schedule");
    }
    if (!chunks)
        ns = best_of_two(&l, both);
    else
        ns = s->chunk_rule == 0 ? best_of_chunks(&l)
                                : one_of_chunks(&l, (enum rule)(s->chunk_rule - 1));
    dt_arena_free(&l.arena);
    if (ns == INT64_MAX)
        return dt_error_set(err, DT_ERR_INFEASIBLE,
                            "no order of the microbatches keeps within the in-flight bounds");
    return DT_OK;
}
