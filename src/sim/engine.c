/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * The event loop.
 *
 *   ready(op) --> op end event, or flow start event --> flow in the network --> transfer end
 *       ^                                                                            |
 *       +----------------- ended(op): one dependency less for each successor <-------+
 *
 * The timing rules are core/program.h's.  Nothing in the loop allocates.  The loop is compiled once
 * per combination of options, so that a run without network and noise pays for neither. */
#include "sim/engine_internal.h"

#include "core/mem.h"

#include <string.h>

struct run { /* one dt_engine_run */
    struct dt_engine *e;
    const struct dt_program *p;
    const int64_t *dur, *alpha;
    struct dt_network *net;
    const struct dt_noise *noise;
    struct dt_queue queue;
    struct engine_node *node;
    int64_t *begin, *end;
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

INLINE void end_at(struct run *r, uint32_t op, int64_t now, int64_t ns)
{
    r->end[op] = now + ns;
    if (ns == 0)
        ended(r, op);
    else
        dt_queue_put(&r->queue, dt_event_make(now + ns, DT_EVENT_OP_END, op));
}

/* The group's flow between nodes; false when it stays inside one or needs none. */
static bool group_flow(struct run *r, uint32_t g, int64_t now, int64_t ns)
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
    if (!dt_network_ring_crosses(r->net, r->p->lanes, r->e->members, gr->n))
        return false;
    /* Ring: reduce-scatter or all-gather pass (n-1)/n of the buffer, all-reduce does both. */
    bool tied = op->flags & DT_OPF_TIED, zero = !r->p->plan || r->p->plan->policy.zero > 0;
    bool all_reduce = op->kind == DT_OP_GRAD_SYNC && (tied || !zero);
    double bytes = (double)op->bytes * (gr->n - 1) / gr->n * (all_reduce ? 2 : 1);
    if (dt_network_start_ring(r->net, r->p->lanes, r->e->members, gr->n, bytes, ns, now, ops[0]) ==
        DT_NONE)
        r->nomem = true;
    return true;
}

static void group_begin(struct run *r, uint32_t g, int64_t now)
{
    const struct dt_group *gr = &r->p->groups[g];
    const uint32_t *ops = &r->p->group_ops[gr->first];
    int64_t ns = 0;

    for (uint32_t i = 0; i < gr->n; i++) {
        r->begin[ops[i]] = now;
        ns = r->dur[ops[i]] > ns ? r->dur[ops[i]] : ns;
    }
    if (r->net && group_flow(r, g, now, ns))
        return;
    for (uint32_t i = 0; i < gr->n; i++)
        r->end[ops[i]] = now + ns;
    if (ns > 0) { /* one event speaks for the group: its first member's */
        dt_queue_put(&r->queue, dt_event_make(now + ns, DT_EVENT_OP_END, ops[0]));
        return;
    }
    for (uint32_t i = 0; i < gr->n; i++)
        ended(r, ops[i]);
}

static void flow_start(struct run *r, uint32_t i, int64_t now)
{
    const struct engine_send *send = &r->e->sends[r->node[i].peer];
    /* Alone, the flow takes exactly what the duration has beyond its latency. */
    double s = (double)(r->dur[i] - r->alpha[i]) * 1e-9;

    if (dt_network_start(r->net, &r->p->lanes[send->src], &r->p->lanes[send->dst], send->bytes,
                         send->bytes / s, now, i) == DT_NONE)
        r->nomem = true;
}

INLINE void send_begin(struct run *r, uint32_t i, int64_t now, bool with_net)
{
    r->begin[i] = now;
    if (!with_net || r->dur[i] <= r->alpha[i] || r->e->sends[r->node[i].peer].dst == DT_NONE)
        end_at(r, i, now, r->dur[i]);
    else if (r->alpha[i] > 0)
        dt_queue_put(&r->queue, dt_event_make(now + r->alpha[i], DT_EVENT_FLOW_START, i));
    else
        flow_start(r, i, now);
}

INLINE int64_t noisy(const struct run *r, uint32_t i)
{
    const struct dt_op *op = &r->p->ops[i];

    if (dt_op_resource(op->kind) != DT_RES_COMPUTE)
        return r->dur[i];
    return dt_noise_apply(r->noise, op->lane, i - r->p->lanes[op->lane].first, r->dur[i]);
}

INLINE void ready(struct run *r, uint32_t i, int64_t now, bool with_net, bool with_noise)
{
    switch ((enum engine_class)r->node[i].class) {
    case ENGINE_PLAIN:
        r->begin[i] = now;
        end_at(r, i, now, with_noise ? noisy(r, i) : r->dur[i]);
        break;
    case ENGINE_SEND:
        send_begin(r, i, now, with_net);
        break;
    case ENGINE_RECV:
        /* It occupies its resource from when it is next there (noted by propagate) and the SEND has
         * begun. */
        if (r->begin[r->node[i].peer] > r->begin[i])
            r->begin[i] = r->begin[r->node[i].peer];
        r->end[i] = now;
        ended(r, i);
        break;
    case ENGINE_GROUP:
        if (--r->e->group_left[r->node[i].peer] == 0)
            group_begin(r, r->node[i].peer, now);
        break;
    }
}

/* Tell the successors of everything that ended now; what they make end now as well is told in turn.
 */
INLINE void propagate(struct run *r, int64_t now, bool with_net, bool with_noise)
{
    while (r->n_ended > 0) {
        uint32_t i = r->e->ended[--r->n_ended];
        const uint32_t *s = &r->e->succ[r->node[i].succ_first];
        const uint32_t *last = &r->e->succ[r->node[i + 1].succ_first];
        r->done++;
        for (; s < last; s++) {
            struct engine_node *n = &r->node[*s];
            if (n->class == ENGINE_RECV && n->peer != i)
                r->begin[*s] = now; /* the last one to end stays */
            if (--n->need == 0)
                ready(r, *s, now, with_net, with_noise);
        }
    }
}

INLINE void finish(struct run *r, uint32_t i, int64_t now, bool from_net)
{
    if (r->node[i].class != ENGINE_GROUP) {
        if (from_net)
            r->end[i] = now;
        ended(r, i);
        return;
    }
    const struct dt_group *gr = &r->p->groups[r->node[i].peer];
    for (uint32_t k = 0; k < gr->n; k++) {
        uint32_t op = r->p->group_ops[gr->first + k];
        if (from_net)
            r->end[op] = now;
        ended(r, op);
    }
}

/* The next thing that happens: a transfer's end before anything queued for the same instant. */
INLINE bool step(struct run *r, int64_t *now, bool with_net)
{
    bool queued = !dt_queue_empty(&r->queue);

    if (with_net) {
        uint32_t flow, op;
        int64_t t;
        int64_t until = queued ? dt_queue_first(&r->queue).time_ns : INT64_MAX;
        if (dt_network_due(r->net, until, &t, &flow, &op)) {
            dt_network_end(r->net, flow, *now = t);
            finish(r, op, t, true);
            return true;
        }
    }
    if (!queued)
        return false;
    struct dt_event ev = dt_queue_take(&r->queue);
    *now = ev.time_ns;
    if (with_net && dt_event_priority(ev) == DT_EVENT_FLOW_START)
        flow_start(r, dt_event_sequence(ev), ev.time_ns);
    else
        finish(r, dt_event_sequence(ev), ev.time_ns, false);
    return true;
}

INLINE int64_t loop(struct run *r, bool with_net, bool with_noise)
{
    int64_t now = 0;
    uint64_t events = 0;

    for (uint32_t i = 0; i < r->p->n_ops; i++)
        if (r->node[i].need_all == 0)
            ready(r, i, 0, with_net, with_noise);
    do {
        events++;
        propagate(r, now, with_net, with_noise);
    } while (step(r, &now, with_net));
    r->e->n_events = events;
    return now;
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

static enum dt_status reset(struct dt_engine *e, const struct dt_program *p, const int64_t *dur,
                            int64_t *begin, struct dt_error *err)
{
    int64_t sign = 0;

    memset(begin, 0, p->n_ops * sizeof *begin); /* RECVs gather theirs */
    for (uint32_t i = 0; i < p->n_ops; i++) {
        e->node[i].need = e->node[i].need_all;
        sign |= dur[i];
    }
    for (uint32_t g = 0; g < p->n_groups; g++)
        e->group_left[g] = p->groups[g].n;
    if (sign < 0)
        return dt_error_set(err, DT_ERR_INTERNAL, "engine: negative duration");
    return DT_OK;
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
    if (network && !dur->alpha_ns)
        return dt_error_set(err, DT_ERR_INTERNAL, "engine: a network needs the latency of SENDs");
    DT_TRY(dt_engine_prepare(e, p, err));
    DT_TRY(dt_timeline_reserve(out, p->n_ops, err));
    DT_TRY(reset(e, p, dur->ns, out->begin_ns, err));
    if (network)
        DT_TRY(reserve_network(e, p, network, err));
    if (noise && !(noise->jitter > 0) && !noise->slowdown)
        noise = NULL;

    struct run r = {.e = e,
                    .p = p,
                    .dur = dur->ns,
                    .alpha = dur->alpha_ns,
                    .net = network,
                    .noise = noise,
                    .node = e->node,
                    .begin = out->begin_ns,
                    .end = out->end_ns};
    dt_queue_init(&r.queue, e->events);
    int64_t makespan = network ? noise ? loop_both(&r) : loop_net(&r)
                       : noise ? loop_noise(&r)
                               : loop_plain(&r);
    if (r.nomem)
        return dt_error_nomem(err, "network flows");
    if (r.done != p->n_ops)
        return stuck(&r, err);
    out->n_ops = p->n_ops;
    out->makespan_ns = makespan;
    return DT_OK;
}
