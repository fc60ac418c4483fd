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
 * were one.  Between collectives this order is kept within parts only (engine_window.c).
 *
 * The timing rules are core/schedule/program.h's.  Nothing in the loop allocates.  The loop is compiled once
 * per combination of options, so that a run without network and noise pays for neither. */
#include "sim/engine_internal.h"

#include "base/mem.h"
#include "base/number.h"

#include <string.h>

#define INLINE static inline __attribute__((always_inline))

enum dt_status dt_engine_new(struct dt_error *err, struct dt_engine **out)
{
    struct dt_engine *e = dt_calloc(1, sizeof *e);

    if (!e)
        return dt_error_nomem(err, "event engine");
    e->in_windows = e->remembers = true;
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
    dt_free(e->parked);
    dt_free(e->flows[0]);
    dt_free(e->flows[1]);
    dt_engine_parts_free(&e->parts);
    dt_free(e);
}

uint64_t dt_engine_events(const struct dt_engine *e)
{
    return e->n_events;
}

uint32_t dt_engine_windows(const struct dt_engine *e)
{
    return e->n_windows;
}

void dt_engine_set_windows(struct dt_engine *e, bool on)
{
    e->in_windows = on;
}

void dt_engine_set_memory(struct dt_engine *e, bool on)
{
    e->remembers = on;
}

INLINE void ended(struct dt_engine_run *r, uint32_t op)
{
    r->e->ended[r->n_ended++] = op;
}

/* From the end of time on (DT_TIME_MAX_NS) nothing moves any more, so that nothing overflows; the run
 * is an error then. */
INLINE void end_at(struct dt_engine_run *r, uint32_t op, int64_t at)
{
    at = at < DT_TIME_MAX_NS ? at : DT_TIME_MAX_NS;
    r->node[op].end_ns = at;
    r->last = at > r->last ? at : r->last;
    ended(r, op);
}

static bool is_wide(const struct dt_engine_run *r, uint32_t g)
{
    return r->e->parts.n > 0 && r->e->parts.wide_of[g] != DT_NONE;
}

/* All members are ready: each one's begin is when it was. */
static void group_begin(struct dt_engine_run *r, uint32_t g)
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
    if (r->until_ns < INT64_MAX && at < r->until_ns && is_wide(r, g))
        r->early = true;
    if (r->net && dt_engine_group_flows(r, g, ns)) { /* its first member speaks for the group */
        r->wide_open += is_wide(r, g);
        dt_sim_queue_put(&r->queue, dt_sim_event_make(at, DT_EVENT_FLOW_START, ops[0]));
        return;
    }
    for (uint32_t i = 0; i < gr->n; i++)
        end_at(r, ops[i], at + ns);
}

INLINE int64_t alpha_of(const struct dt_engine_run *r, uint32_t i)
{
    return r->node[i].alpha < ENGINE_ALPHAS - 1 ? r->e->alpha_ns[r->node[i].alpha] : r->alpha_ns[i];
}

static void flow_start(struct dt_engine_run *r, uint32_t i, int64_t now)
{
    if (r->node[i].class == ENGINE_GROUP) {
        dt_engine_ring_start(r, r->node[i].peer, now);
        return;
    }
    const struct dt_engine_send *send = &r->e->sends[r->node[i].peer];
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

INLINE void send_begin(struct dt_engine_run *r, uint32_t i, bool with_net)
{
    const struct dt_engine_node *n = &r->node[i];
    if (!with_net || n->alpha == 0) {
        end_at(r, i, n->begin_ns + n->end_ns);
        return;
    }
    dt_sim_queue_put(&r->queue,
                     dt_sim_event_make(n->begin_ns + alpha_of(r, i), DT_EVENT_FLOW_START, i));
}

/* The group begins no earlier than this member is ready. */
static void group_alone(struct dt_engine_run *r, uint32_t i)
{
    struct dt_engine_parts *s = &r->e->parts;
    uint32_t w = s->wide_of[r->node[i].peer];

    if (w != DT_NONE && r->node[i].begin_ns > s->wide_at[w])
        s->wide_at[w] = r->node[i].begin_ns;
    end_at(r, i, r->node[i].begin_ns + r->node[i].end_ns);
}

INLINE int64_t noisy(const struct dt_engine_run *r, uint32_t i)
{
    const struct dt_op *op = &r->p->ops[i];

    if (dt_op_resource(op->kind) != DT_RES_COMPUTE)
        return r->node[i].end_ns;
    return dt_sim_noise_apply(r->noise, op->lane, i - r->p->lanes[op->lane].first,
                              r->node[i].end_ns);
}

/* Everything the op waits for has ended, at the latest when its begin says. */
enum loop_mode { LOOP_PLAIN, LOOP_NET, LOOP_BOUND }; /* BOUND: plain, collectives wait for nobody */
INLINE void ready(struct dt_engine_run *r, uint32_t i, enum loop_mode mode, bool with_noise)
{
    switch ((enum dt_engine_class)r->node[i].class) {
    case ENGINE_PLAIN:
        end_at(r, i,
               dt_program_released(r->p, i, r->node[i].begin_ns) +
                   (with_noise ? noisy(r, i) : r->node[i].end_ns));
        break;
    case ENGINE_SEND:
        send_begin(r, i, mode == LOOP_NET);
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
        if (mode == LOOP_BOUND)
            group_alone(r, i);
        else if (--r->e->group_left[r->node[i].peer] == 0)
            group_begin(r, r->node[i].peer);
        break;
    }
}

/* Tell the successors of everything whose end is known; what that settles is told in turn. */
INLINE void propagate(struct dt_engine_run *r, enum loop_mode mode, bool with_noise)
{
    while (r->n_ended > 0) {
        uint32_t i = r->e->ended[--r->n_ended];
        const uint32_t *s = &r->e->succ[r->node[i].succ_first];
        const uint32_t *last = &r->e->succ[r->node[i + 1].succ_first];
        int64_t end = r->node[i].end_ns;
        r->done++;
        for (; s < last; s++) {
            struct dt_engine_node *n = &r->node[*s];
            if (end > n->begin_ns && (n->class != ENGINE_RECV || n->peer != i))
                n->begin_ns = end;
            if (--n->need == 0)
                ready(r, *s, mode, with_noise);
        }
    }
}

INLINE void finish(struct dt_engine_run *r, uint32_t i, int64_t now)
{
    if (r->node[i].class != ENGINE_GROUP) {
        end_at(r, i, now);
        return;
    }
    const struct dt_group *gr = &r->p->groups[r->node[i].peer];
    for (uint32_t k = 0; k < gr->n; k++)
        end_at(r, r->p->group_ops[gr->first + k], now);
    r->wide_open -= is_wide(r, r->node[i].peer);
}

enum { AHEAD = 6 };
/* Transfers that end together or soon after one another each wake a lane in a part of memory of its
 * own: what the ops behind ops[j] need is on its way before their turn comes. */
INLINE void fetch_ahead(const struct dt_engine_run *r, const uint32_t *ops, uint32_t n, uint32_t j)
{
    if (j + 6 < n)
        __builtin_prefetch(&r->node[ops[j + 6]]);
    if (j + 4 < n)
        __builtin_prefetch(&r->e->succ[r->node[ops[j + 4]].succ_first]);
    if (j + 2 < n) {
        const struct dt_engine_node *x = &r->node[ops[j + 2]];
        for (uint32_t k = x->succ_first; k < x[1].succ_first; k++)
            __builtin_prefetch(&r->node[r->e->succ[k]]);
    }
    if (j + 1 < n) { /* the RECV's own successors: the lane that the transfer wakes */
        const struct dt_engine_node *x = &r->node[ops[j + 1]];
        for (uint32_t k = x->succ_first; k < x[1].succ_first; k++)
            __builtin_prefetch(&r->e->succ[r->node[r->e->succ[k]].succ_first]);
    }
}

/* Transfers that end no later than until_ns, all of one instant; false when there are none. */
INLINE bool transfers_end(struct dt_engine_run *r, int64_t until_ns, bool with_noise)
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
        propagate(r, LOOP_NET, with_noise);
    }
    r->events += n;
    r->now_ns = n > 0 ? until_ns : r->now_ns;
    return n > 0;
}

/* A SEND is queued when the op before it begins, long before it starts itself: its memory is cold
 * again.  The next start is among the children of the heap's root. */
INLINE void fetch_starts(struct dt_engine_run *r)
{
    const struct dt_sim_event *h = r->queue.heap;

    for (uint32_t k = 1; k < 5 && k < r->queue.n; k++)
        __builtin_prefetch(&r->node[dt_sim_event_sequence(h[k])]);
    if (!dt_sim_queue_empty(&r->queue)) {
        const struct dt_engine_node *next =
            &r->node[dt_sim_event_sequence(dt_sim_queue_first(&r->queue))];
        __builtin_prefetch(&r->e->sends[next->class == ENGINE_SEND ? next->peer : 0]);
    }
}

/* Transfers that start at the instant of the first one queued. */
INLINE void flows_start(struct dt_engine_run *r)
{
    int64_t now = dt_sim_queue_first(&r->queue).time_ns;
    uint32_t ops[64], n = 0;

    while (n < 64 && !dt_sim_queue_empty(&r->queue) &&
           dt_sim_queue_first(&r->queue).time_ns == now) {
        ops[n] = dt_sim_event_sequence(dt_sim_queue_take(&r->queue));
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
    r->now_ns = now;
}

/* The next thing that happens before r->until_ns: transfers' ends before starts at one instant. */
INLINE bool step(struct dt_engine_run *r, bool with_noise)
{
    int64_t start =
        dt_sim_queue_empty(&r->queue) ? INT64_MAX : dt_sim_queue_first(&r->queue).time_ns;

    if (r->last >= DT_TIME_MAX_NS)
        return false;
    if (transfers_end(r, start < r->until_ns ? start : r->until_ns - 1, with_noise))
        return true;
    if (start >= r->until_ns)
        return false;
    flows_start(r);
    return true;
}

INLINE void begin(struct dt_engine_run *r, enum loop_mode mode, bool with_noise)
{
    for (uint32_t i = 0; i < r->p->n_ops; i++)
        if (r->node[i].need_all == 0) {
            ready(r, i, mode, with_noise);
            propagate(r, mode, with_noise);
        }
}

static void advance_exact(struct dt_engine_run *r)
{
    while (step(r, false))
        ;
}
static void advance_noisy(struct dt_engine_run *r)
{
    while (step(r, true))
        ;
}

/* With a network: whenever no wide group moves bytes, parts may run by themselves for a while. */
INLINE void loop_net(struct dt_engine_run *r, bool with_noise)
{
    bool tied = true;

    begin(r, LOOP_NET, with_noise);
    do {
        if (tied && r->wide_open == 0 && r->e->parts.n > 1)
            dt_engine_window(r, with_noise ? advance_noisy : advance_exact);
        tied = r->wide_open > 0;
    } while (step(r, with_noise));
}

static __attribute__((noinline)) void run_plain(struct dt_engine_run *r)
{
    begin(r, LOOP_PLAIN, false);
}
static __attribute__((noinline)) void run_noise(struct dt_engine_run *r)
{
    begin(r, LOOP_PLAIN, true);
}
static __attribute__((noinline)) void run_net(struct dt_engine_run *r)
{
    loop_net(r, false);
}
static __attribute__((noinline)) void run_both(struct dt_engine_run *r)
{
    loop_net(r, true);
}

INLINE void bound_part(struct dt_engine_run *r, uint32_t part, bool with_noise)
{
    const struct dt_engine_parts *s = &r->e->parts;

    for (uint32_t k = s->first[part]; k < s->first[part + 1]; k++) {
        const struct dt_lane *l = &r->p->lanes[s->lanes[k]];
        for (uint32_t i = l->first; i < l->first + l->n; i++)
            if (r->node[i].need_all == 0) {
                ready(r, i, LOOP_BOUND, with_noise);
                propagate(r, LOOP_BOUND, with_noise);
            }
    }
}

enum { BOUNDED_MOST = 8 };
/* How early wide groups can begin.  Sharing bandwidth and waiting for others only delay, so the
 * times of one part without either are a lower bound; most often a part has a member of every
 * group. */
static void bound(struct dt_engine_run *r, const struct dt_durations *dur)
{
    struct dt_engine_parts *s = &r->e->parts;
    uint32_t tries = 0;

    for (uint32_t w = 0; w < s->n_wide && tries < BOUNDED_MOST; w++) {
        if (s->wide_at[w] >= 0)
            continue;
        uint32_t op = r->p->group_ops[r->p->groups[s->wide[w]].first];
        uint32_t part = s->of_lane[r->p->ops[op].lane];
        if (r->noise)
            bound_part(r, part, true);
        else
            bound_part(r, part, false);
        for (uint32_t k = s->first[part]; k < s->first[part + 1]; k++) {
            const struct dt_lane *l = &r->p->lanes[s->lanes[k]];
            for (uint32_t i = l->first; i < l->first + l->n; i++)
                dt_engine_reset_op(r->e, dur, i);
        }
        s->makespan_ns = r->last > s->makespan_ns ? r->last : s->makespan_ns;
        r->last = 0;
        r->done = 0;
        tries++;
    }
}

static void write_out(const struct dt_engine_run *r, int64_t makespan, struct dt_timeline *out)
{
    out->n_ops = r->p->n_ops;
    out->makespan_ns = makespan;
    for (uint32_t i = 0; i < r->p->n_ops; i++) {
        out->begin_ns[i] = r->node[i].begin_ns;
        out->end_ns[i] = r->node[i].end_ns;
    }
}

static enum dt_status stuck(const struct dt_engine_run *r, struct dt_error *err)
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
                             const struct dt_sim_noise *noise, struct dt_error *err,
                             struct dt_timeline *out)
{
    if (network && !dur->alpha_ns)
        return dt_error_set(err, DT_ERR_INTERNAL, "engine: a network needs the latency of SENDs");
    DT_TRY(dt_engine_prepare(e, p, err));
    DT_TRY(dt_timeline_reserve(out, p->n_ops, err));
    e->parts.n = e->n_windows = 0;
    if (network) {
        DT_TRY(dt_engine_reserve_network(e, p, network, err));
        if (e->in_windows)
            DT_TRY(dt_engine_part(e, p, network, err));
    }
    DT_TRY(dt_engine_reset(e, p, dur, network, err));
    if (noise && !(noise->jitter > 0) && !noise->slowdown)
        noise = NULL;

    struct dt_engine_run r = {.e = e,
                              .p = p,
                              .net = network,
                              .noise = noise,
                              .alpha_ns = dur->alpha_ns,
                              .node = e->node,
                              .until_ns = INT64_MAX};
    dt_sim_queue_init(&r.queue, e->events);
    if (e->parts.n > 1)
        bound(&r, dur);
    if (network)
        (noise ? run_both : run_net)(&r);
    else
        (noise ? run_noise : run_plain)(&r);
    e->n_events = r.events + r.done;
    if (r.nomem)
        return dt_error_nomem(err, "network flows");
    DT_TRY(dt_timeline_check(r.last, err));
    if (r.early)
        return dt_error_set(err, DT_ERR_INTERNAL, "engine: a collective began before its bound");
    if (r.done != p->n_ops)
        return stuck(&r, err);
    write_out(&r, r.last, out);
    return DT_OK;
}
