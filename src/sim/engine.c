/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * The event loop.
 *
 *   ready(op) --> end known --> propagate: one dependency less for each successor --> ready(op)
 *       |                           ^
 *       +--> flow start event --> flow in the network --> transfer end
 *
 * When an op ends follows from when it begins, unless it shares bandwidth.  So only transfers are
 * events, taken in the order of virtual time; the ends of all other ops are told to their
 * successors as soon as they are known, which keeps to a lane and its memory.  A transfer never
 * begins before the event that made it ready, so the order of events is the same as if every op
 * were one.
 *
 * The timing rules are core/program.h's.  Nothing in the loop allocates.  The loop is compiled once
 * per combination of options, so that a run without network and noise pays for neither. */
#include "sim/engine_internal.h"

#include "core/mem.h"

#include <string.h>

struct run { /* one dt_engine_run */
    struct dt_engine *e;
    const struct dt_program *p;
    struct dt_network *net;
    const struct dt_noise *noise;
    const int64_t *alpha_ns; /* per op */
    struct dt_queue queue;
    struct engine_node *node;
    int64_t last; /* latest end so far */
    uint64_t events;
    uint32_t n_ended, done;
    bool nomem;
};
#define INLINE static inline __attribute__((always_inline))

enum dt_status dt_engine_new(struct dt_error *err, struct dt_engine **out)
{
    struct dt_engine *e = dt_calloc(1, sizeof *e);

    if (!e)
        return dt_error_nomem(err, "event engine");
    *out = e;
    return DT_OK;
}

void dt_engine_free(struct dt_engine *e)
{
    if (!e)
        return;
    dt_free(e->node);
    dt_free(e->sends);
    dt_free(e->succ);
    dt_free(e->group_left);
    dt_free(e->members);
    dt_free(e->events);
    dt_free(e->ended);
    dt_free(e->gpu_lane);
    dt_free(e);
}

uint64_t dt_engine_events(const struct dt_engine *e)
{
    return e->n_events;
}

INLINE void ended(struct run *r, uint32_t op)
{
    r->e->ended[r->n_ended++] = op;
}

INLINE void end_at(struct run *r, uint32_t op, int64_t at)
{
    r->node[op].end_ns = at;
    r->last = at > r->last ? at : r->last;
    ended(r, op);
}

/* Does the group move bytes between nodes? */
static bool group_flows(const struct run *r, uint32_t g, int64_t ns)
{
    const struct dt_group *gr = &r->p->groups[g];
    const uint32_t *ops = &r->p->group_ops[gr->first];
    const struct dt_op *op = &r->p->ops[ops[0]];
    /* A norm is a scalar: latency only. */
    bool moves = op->kind == DT_OP_GRAD_SYNC || op->kind == DT_OP_PARAM_GATHER;

    if (!moves || ns <= 0 || op->bytes == 0 || gr->n < 2 || gr->n > (uint32_t)r->p->n_lanes)
        return false;
    for (uint32_t i = 0; i < gr->n; i++)
        r->e->members[i] = r->p->ops[ops[i]].lane;
    return dt_network_ring_crosses(r->net, r->p->lanes, r->e->members, gr->n);
}

static void ring_start(struct run *r, uint32_t g, int64_t now)
{
    const struct dt_group *gr = &r->p->groups[g];
    const uint32_t *ops = &r->p->group_ops[gr->first];
    const struct dt_op *op = &r->p->ops[ops[0]];
    int64_t ns = 0;

    for (uint32_t i = 0; i < gr->n; i++) {
        r->e->members[i] = r->p->ops[ops[i]].lane;
        ns = r->node[ops[i]].end_ns > ns ? r->node[ops[i]].end_ns : ns;
    }
    /* Ring: reduce-scatter or all-gather pass (n-1)/n of the buffer, all-reduce does both. */
    bool tied = op->flags & DT_OPF_TIED, zero = !r->p->plan || r->p->plan->policy.zero > 0;
    bool all_reduce = op->kind == DT_OP_GRAD_SYNC && (tied || !zero);
    double bytes = (double)op->bytes * (gr->n - 1) / gr->n * (all_reduce ? 2 : 1);
    if (dt_network_start_ring(r->net, r->p->lanes, r->e->members, gr->n, bytes, ns, now, ops[0]) ==
        DT_NONE)
        r->nomem = true;
}

/* All members are ready: each one's begin is when it was. */
static void group_begin(struct run *r, uint32_t g)
{
    const struct dt_group *gr = &r->p->groups[g];
    const uint32_t *ops = &r->p->group_ops[gr->first];
    int64_t at = 0, ns = 0;

    for (uint32_t i = 0; i < gr->n; i++) {
        at = r->node[ops[i]].begin_ns > at ? r->node[ops[i]].begin_ns : at;
        ns = r->node[ops[i]].end_ns > ns ? r->node[ops[i]].end_ns : ns;
    }
    for (uint32_t i = 0; i < gr->n; i++)
        r->node[ops[i]].begin_ns = at;
    if (r->net && group_flows(r, g, ns)) { /* its first member speaks for the group */
        dt_queue_put(&r->queue, dt_event_make(at, DT_EVENT_FLOW_START, ops[0]));
        return;
    }
    for (uint32_t i = 0; i < gr->n; i++)
        end_at(r, ops[i], at + ns);
}

INLINE int64_t alpha_of(const struct run *r, uint32_t i)
{
    return r->node[i].alpha < ENGINE_ALPHAS - 1 ? r->e->alpha_ns[r->node[i].alpha] : r->alpha_ns[i];
}

static void flow_start(struct run *r, uint32_t i, int64_t now)
{
    if (r->node[i].class == ENGINE_GROUP) {
        ring_start(r, r->node[i].peer, now);
        return;
    }
    const struct engine_send *send = &r->e->sends[r->node[i].peer];
    /* Alone, the flow takes exactly what the duration has beyond its latency. */
    double s = (double)(r->node[i].end_ns - alpha_of(r, i)) * 1e-9, cap = send->bytes / s;
    uint32_t id;

    if (send->pair) {
        const double weight[2] = {1.0 / send->share[0], 1.0 / send->share[1]};
        id = dt_network_start_path(r->net, send->link, weight, 2, send->bytes, cap, now, i);
    } else {
        id = dt_network_start(r->net, &r->p->lanes[send->src], &r->p->lanes[send->dst], send->bytes,
                              cap, now, i);
    }
    if (id == DT_NONE)
        r->nomem = true;
}

INLINE void send_begin(struct run *r, uint32_t i, bool with_net)
{
    const struct engine_node *n = &r->node[i];
    if (!with_net || n->alpha == 0) {
        end_at(r, i, n->begin_ns + n->end_ns);
        return;
    }
    dt_queue_put(&r->queue, dt_event_make(n->begin_ns + alpha_of(r, i), DT_EVENT_FLOW_START, i));
}

INLINE int64_t noisy(const struct run *r, uint32_t i)
{
    const struct dt_op *op = &r->p->ops[i];

    if (dt_op_resource(op->kind) != DT_RES_COMPUTE)
        return r->node[i].end_ns;
    return dt_noise_apply(r->noise, op->lane, i - r->p->lanes[op->lane].first, r->node[i].end_ns);
}

/* Everything the op waits for has ended, at the latest when its begin says. */
INLINE void ready(struct run *r, uint32_t i, bool with_net, bool with_noise)
{
    switch ((enum engine_class)r->node[i].class) {
    case ENGINE_PLAIN:
        end_at(r, i, r->node[i].begin_ns + (with_noise ? noisy(r, i) : r->node[i].end_ns));
        break;
    case ENGINE_SEND:
        send_begin(r, i, with_net);
        break;
    case ENGINE_RECV: {
        /* It occupies its resource from when it is next there and the SEND has begun. */
        uint32_t send = r->node[i].peer;
        if (r->node[send].begin_ns > r->node[i].begin_ns)
            r->node[i].begin_ns = r->node[send].begin_ns;
        end_at(r, i,
               r->node[i].begin_ns > r->node[send].end_ns ? r->node[i].begin_ns
                                                          : r->node[send].end_ns);
        break;
    }
    case ENGINE_GROUP:
        if (--r->e->group_left[r->node[i].peer] == 0)
            group_begin(r, r->node[i].peer);
        break;
    }
}

/* Tell the successors of everything whose end is known; what that settles is told in turn. */
INLINE void propagate(struct run *r, bool with_net, bool with_noise)
{
    while (r->n_ended > 0) {
        uint32_t i = r->e->ended[--r->n_ended];
        const uint32_t *s = &r->e->succ[r->node[i].succ_first];
        const uint32_t *last = &r->e->succ[r->node[i + 1].succ_first];
        int64_t end = r->node[i].end_ns;
        r->done++;
        for (; s < last; s++) {
            struct engine_node *n = &r->node[*s];
            if (end > n->begin_ns && (n->class != ENGINE_RECV || n->peer != i))
                n->begin_ns = end;
            if (--n->need == 0)
                ready(r, *s, with_net, with_noise);
        }
    }
}

INLINE void finish(struct run *r, uint32_t i, int64_t now)
{
    if (r->node[i].class != ENGINE_GROUP) {
        end_at(r, i, now);
        return;
    }
    const struct dt_group *gr = &r->p->groups[r->node[i].peer];
    for (uint32_t k = 0; k < gr->n; k++)
        end_at(r, r->p->group_ops[gr->first + k], now);
}

enum { AHEAD = 6 };
/* Transfers that end together or soon after one another each wake a lane in a part of memory of its
 * own: what the ops behind ops[j] need is on its way before their turn comes. */
INLINE void fetch_ahead(const struct run *r, const uint32_t *ops, uint32_t n, uint32_t j)
{
    if (j + 6 < n)
        __builtin_prefetch(&r->node[ops[j + 6]]);
    if (j + 4 < n)
        __builtin_prefetch(&r->e->succ[r->node[ops[j + 4]].succ_first]);
    if (j + 2 < n) {
        const struct engine_node *x = &r->node[ops[j + 2]];
        for (uint32_t k = x->succ_first; k < x[1].succ_first; k++)
            __builtin_prefetch(&r->node[r->e->succ[k]]);
    }
    if (j + 1 < n) { /* the RECV's own successors: the lane that the transfer wakes */
        const struct engine_node *x = &r->node[ops[j + 1]];
        for (uint32_t k = x->succ_first; k < x[1].succ_first; k++)
            __builtin_prefetch(&r->e->succ[r->node[r->e->succ[k]].succ_first]);
    }
}

/* Transfers that end no later than until_ns, all of one instant; false when there are none. */
INLINE bool transfers_end(struct run *r, int64_t until_ns, bool with_noise)
{
    uint32_t ops[256 + AHEAD], n = 0, ahead = 0, flow;
    int64_t t;

    while (n < 256 && dt_network_due(r->net, until_ns, &t, &flow, &ops[n])) {
        dt_network_end(r->net, flow, t);
        until_ns = t;
        n++;
    }
    while (ahead < AHEAD && (ops[n + ahead] = dt_network_ahead(r->net, ahead)) != DT_NONE)
        ahead++;
    for (uint32_t j = 0; j < n; j++) {
        fetch_ahead(r, ops, n + ahead, j);
        finish(r, ops[j], until_ns);
        propagate(r, true, with_noise);
    }
    r->events += n;
    return n > 0;
}

/* A SEND is queued when the op before it begins, long before it starts itself: its memory is cold
 * again.  The next start is among the children of the heap's root. */
INLINE void fetch_starts(struct run *r)
{
    const struct dt_event *h = r->queue.heap;

    for (uint32_t k = 1; k < 5 && k < r->queue.n; k++)
        __builtin_prefetch(&r->node[dt_event_sequence(h[k])]);
    if (!dt_queue_empty(&r->queue)) {
        const struct engine_node *next = &r->node[dt_event_sequence(dt_queue_first(&r->queue))];
        __builtin_prefetch(&r->e->sends[next->class == ENGINE_SEND ? next->peer : 0]);
    }
}

/* Transfers that start at the instant of the first one queued. */
INLINE void flows_start(struct run *r)
{
    int64_t now = dt_queue_first(&r->queue).time_ns;
    uint32_t ops[64], n = 0;

    while (n < 64 && !dt_queue_empty(&r->queue) && dt_queue_first(&r->queue).time_ns == now) {
        ops[n] = dt_event_sequence(dt_queue_take(&r->queue));
        __builtin_prefetch(&r->node[ops[n++]]);
    }
    for (uint32_t j = 0; j < n; j++) {
        if (j + 4 < n)
            __builtin_prefetch(
                &r->e->sends[r->node[ops[j + 4]].class == ENGINE_SEND ? r->node[ops[j + 4]].peer
                                                                      : 0]);
        flow_start(r, ops[j], now);
    }
    fetch_starts(r);
    r->events += n;
}

/* The next thing that happens: transfers' ends before starts at the same instant. */
INLINE bool step(struct run *r, bool with_noise)
{
    bool queued = !dt_queue_empty(&r->queue);

    if (transfers_end(r, queued ? dt_queue_first(&r->queue).time_ns : INT64_MAX, with_noise))
        return true;
    if (!queued)
        return false;
    flows_start(r);
    return true;
}

INLINE int64_t loop(struct run *r, bool with_net, bool with_noise)
{
    for (uint32_t i = 0; i < r->p->n_ops; i++)
        if (r->node[i].need_all == 0) {
            ready(r, i, with_net, with_noise);
            propagate(r, with_net, with_noise);
        }
    while (with_net && step(r, with_noise))
        ;
    r->e->n_events = r->events + r->done;
    return r->last;
}
static __attribute__((noinline)) int64_t loop_plain(struct run *r)
{
    return loop(r, false, false);
}
static __attribute__((noinline)) int64_t loop_noise(struct run *r)
{
    return loop(r, false, true);
}
static __attribute__((noinline)) int64_t loop_net(struct run *r)
{
    return loop(r, true, false);
}
static __attribute__((noinline)) int64_t loop_both(struct run *r)
{
    return loop(r, true, true);
}

/* Room for a flow per lane and per group: then no flow start allocates. */
static enum dt_status reserve_network(struct dt_engine *e, const struct dt_program *p,
                                      struct dt_network *net, struct dt_error *err)
{
    uint32_t wide = 1;
    size_t hops = 0, path;

    for (int l = 0; l < p->n_lanes; l++)
        wide = p->lanes[l].gpus > wide ? p->lanes[l].gpus : wide;
    path = dt_network_path_max(net, wide);
    hops = (size_t)p->n_lanes * path;
    for (uint32_t g = 0; g < p->n_groups; g++) {
        const struct dt_group *gr = &p->groups[g];
        if (gr->n > (uint32_t)p->n_lanes)
            continue;
        for (uint32_t i = 0; i < gr->n; i++)
            e->members[i] = p->ops[p->group_ops[gr->first + i]].lane;
        uint32_t h = dt_network_ring_hops(net, p->lanes, e->members, gr->n);
        path = h > path ? h : path;
        hops += h;
    }
    dt_network_reset(net);
    return dt_network_reserve(net, (size_t)p->n_lanes + p->n_groups, hops, path, err);
}

/* Where the latency stands in e->alpha_ns[1 .. ENGINE_ALPHAS-2]; the last index when there is no
 * room. */
static uint32_t alpha_index(struct dt_engine *e, int64_t alpha_ns)
{
    enum { FIRST = 1, N = ENGINE_ALPHAS - 2 };
    uint32_t at = (uint32_t)(((uint64_t)alpha_ns * 0x9e3779b97f4a7c15u) >> 32) % N;

    for (int probe = 0; probe < 8; probe++, at = (at + 1) % N) {
        if (e->alpha_ns[FIRST + at] < 0)
            e->alpha_ns[FIRST + at] = alpha_ns;
        if (e->alpha_ns[FIRST + at] == alpha_ns)
            return FIRST + at;
    }
    return ENGINE_ALPHAS - 1;
}

/* What holds for all SENDs of a run with this network. */
static enum dt_status prepare_routes(struct dt_engine *e, const struct dt_program *p,
                                     const struct dt_network *net, struct dt_error *err, bool *even)
{
    uint32_t n_gpus = dt_network_gpus(net);

    if (dt_grow((void **)&e->gpu_lane, &e->gpu_lane_cap, n_gpus + 1u, sizeof *e->gpu_lane))
        return dt_error_nomem(err, "event engine");
    *even = dt_network_even(net, p->lanes, (uint32_t)p->n_lanes, e->gpu_lane);
    for (int k = 0; k < ENGINE_ALPHAS; k++)
        e->alpha_ns[k] = -1;
    return DT_OK;
}

static inline void route_send(struct dt_engine *e, const struct dt_program *p,
                              const struct dt_durations *dur, const struct dt_network *net,
                              bool even, uint32_t i)
{
    struct engine_node *n = &e->node[i];
    struct engine_send *s = &e->sends[n->peer];

    n->alpha = 0;
    if (s->dst == DT_NONE || dur->ns[i] <= dur->alpha_ns[i])
        return;
    n->alpha = alpha_index(e, dur->alpha_ns[i]);
    s->pair = even && dt_network_pair(net, &p->lanes[s->src], &p->lanes[s->dst], s->link, s->share);
}

/* Everything as before the first op, and what this run's network (NULL: none) and latencies mean
 * for the SENDs: one walk over the ops, which do not fit into any cache. */
static enum dt_status reset(struct dt_engine *e, const struct dt_program *p,
                            const struct dt_durations *dur, const struct dt_network *net, bool even,
                            struct dt_error *err)
{
    int64_t sign = 0;

    for (uint32_t i = 0; i < p->n_ops; i++) {
        struct engine_node *n = &e->node[i];
        n->begin_ns = 0;
        n->end_ns = dur->ns[i];
        n->need = n->need_all;
        sign |= dur->ns[i];
        if (net && n->class == ENGINE_SEND)
            route_send(e, p, dur, net, even, i);
    }
    for (uint32_t g = 0; g < p->n_groups; g++)
        e->group_left[g] = p->groups[g].n;
    if (sign < 0)
        return dt_error_set(err, DT_ERR_INTERNAL, "engine: negative duration");
    return DT_OK;
}

static void write_out(const struct run *r, int64_t makespan, struct dt_timeline *out)
{
    out->n_ops = r->p->n_ops;
    out->makespan_ns = makespan;
    for (uint32_t i = 0; i < r->p->n_ops; i++) {
        out->begin_ns[i] = r->node[i].begin_ns;
        out->end_ns[i] = r->node[i].end_ns;
    }
}

static enum dt_status stuck(const struct run *r, struct dt_error *err)
{
    uint32_t i = 0;

    while (i < r->p->n_ops && r->node[i].need == 0)
        i++;
    return dt_error_set(err, DT_ERR_INTERNAL,
                        "engine: deadlock: %u of %u ops never began; op %u still waits for %u",
                        r->p->n_ops - r->done, r->p->n_ops, i,
                        i < r->p->n_ops ? r->node[i].need : 0);
}

enum dt_status dt_engine_run(struct dt_engine *e, const struct dt_program *p,
                             const struct dt_durations *dur, struct dt_network *network,
                             const struct dt_noise *noise, struct dt_error *err,
                             struct dt_timeline *out)
{
    bool even = false;

    if (network && !dur->alpha_ns)
        return dt_error_set(err, DT_ERR_INTERNAL, "engine: a network needs the latency of SENDs");
    DT_TRY(dt_engine_prepare(e, p, err));
    DT_TRY(dt_timeline_reserve(out, p->n_ops, err));
    if (network) {
        DT_TRY(reserve_network(e, p, network, err));
        DT_TRY(prepare_routes(e, p, network, err, &even));
    }
    DT_TRY(reset(e, p, dur, network, even, err));
    if (noise && !(noise->jitter > 0) && !noise->slowdown)
        noise = NULL;

    struct run r = {
        .e = e, .p = p, .net = network, .noise = noise, .alpha_ns = dur->alpha_ns, .node = e->node};
    dt_queue_init(&r.queue, e->events);
    int64_t makespan = network ? noise ? loop_both(&r) : loop_net(&r)
                       : noise ? loop_noise(&r)
                               : loop_plain(&r);
    if (r.nomem)
        return dt_error_nomem(err, "network flows");
    if (r.done != p->n_ops)
        return stuck(&r, err);
    write_out(&r, makespan, out);
    return DT_OK;
}
