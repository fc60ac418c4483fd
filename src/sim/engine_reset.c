/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Before a run: room in the network, ops as before the first, the routes of transfers. */
#include "sim/engine_internal.h"

#include "base/hash.h"
#include "base/mem.h"

/* Room for a flow per lane and per group: then no flow start allocates. */
enum dt_status dt_engine_reserve_network(struct dt_engine *e, const struct dt_program *p,
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
    uint32_t at = (uint32_t)(((uint64_t)alpha_ns * DT_HASH_GOLDEN) >> 32) % N;

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
    struct dt_engine_node *n = &e->node[i];
    struct dt_engine_send *s = &e->sends[n->peer];

    n->alpha = 0;
    if (s->dst == DT_NONE || dur->ns[i] <= dur->alpha_ns[i])
        return;
    n->alpha = alpha_index(e, dur->alpha_ns[i]);
    s->pair = even && dt_network_pair(net, &p->lanes[s->src], &p->lanes[s->dst], s->link, s->share);
}

/* One walk over the ops, which do not fit into any cache. */
enum dt_status dt_engine_reset(struct dt_engine *e, const struct dt_program *p,
                               const struct dt_durations *dur, const struct dt_network *net,
                               struct dt_error *err)
{
    int64_t sign = 0;
    bool even = false;

    if (net)
        DT_TRY(prepare_routes(e, p, net, err, &even));
    for (uint32_t i = 0; i < p->n_ops; i++) {
        struct dt_engine_node *n = &e->node[i];
        dt_engine_reset_op(e, dur, i);
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
