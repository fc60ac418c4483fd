/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * The parts of a program: lanes are of one part when a transfer goes from one to the other or when
 * they have GPUs in one node, whose links their transfers share.  A data-parallel job falls into as
 * many parts as it has groups of replicas that feed one another (gcd brokers), or a node's worth of
 * these.  Nothing but collectives connects parts, as long as the fabric has room for all NICs. */
#include "sim/engine_internal.h"

#include "base/mem.h"

void dt_engine_parts_free(struct dt_engine_parts *s)
{
    dt_free(s->first);
    dt_free(s->lanes);
    dt_free(s->of_lane);
    dt_free(s->wide);
    dt_free(s->wide_at);
    dt_free(s->wide_of);
    dt_free(s->at[0]);
    dt_free(s->at[1]);
}

/* ---- union-find: set[i] <= i leads to the least element of i's set ---- */

static uint32_t find(uint32_t *set, uint32_t i)
{
    while (set[i] != i)
        i = set[i] = set[set[i]];
    return i;
}

static void join(uint32_t *set, uint32_t a, uint32_t b)
{
    a = find(set, a);
    b = find(set, b);
    if (a < b)
        set[b] = a;
    else
        set[a] = b;
}

/* Lanes first, nodes behind them. */
static void join_nodes(uint32_t *set, const struct dt_program *p, uint32_t gpus_per_node)
{
    for (uint32_t l = 0; l < (uint32_t)p->n_lanes; l++) {
        uint32_t gpu = p->lanes[l].first_gpu, n = p->lanes[l].gpus ? p->lanes[l].gpus : 1;
        for (uint32_t k = gpu / gpus_per_node; k <= (gpu + n - 1) / gpus_per_node; k++)
            join(set, l, (uint32_t)p->n_lanes + k);
    }
}

static void join_transfers(uint32_t *set, const struct dt_engine *e)
{
    for (uint32_t i = 0; i < e->n_sends; i++)
        if (e->sends[i].dst != DT_NONE)
            join(set, e->sends[i].src, e->sends[i].dst);
}

/* Parts in the order of their first lanes, and each one's lanes in order. */
static void number(struct dt_engine_parts *s, uint32_t *set, uint32_t n_lanes)
{
    uint32_t sum = 0;

    s->n = 0;
    for (uint32_t l = 0; l < n_lanes; l++) {
        uint32_t root = find(set, l); /* a lane: the least of its set */
        if (root == l)
            s->first[s->n] = 0;
        s->of_lane[l] = root == l ? s->n++ : s->of_lane[root];
        s->first[s->of_lane[l]]++;
    }
    for (uint32_t k = 0; k < s->n; k++)
        s->first[k] = sum += s->first[k];
    s->first[s->n] = sum;
    for (uint32_t l = n_lanes; l-- > 0;)
        s->lanes[--s->first[s->of_lane[l]]] = l;
}

static bool in_one_part(const struct dt_engine_parts *s, const struct dt_program *p, uint32_t g)
{
    const uint32_t *ops = &p->group_ops[p->groups[g].first];
    uint32_t part = s->of_lane[p->ops[ops[0]].lane];

    for (uint32_t k = 1; k < p->groups[g].n; k++)
        if (s->of_lane[p->ops[ops[k]].lane] != part)
            return false;
    return true;
}

static void find_wide(struct dt_engine_parts *s, const struct dt_program *p)
{
    s->n_wide = 0;
    s->makespan_ns = 0;
    for (uint32_t g = 0; g < p->n_groups; g++) {
        s->wide_of[g] = DT_NONE;
        if (in_one_part(s, p, g))
            continue;
        s->wide_of[g] = s->n_wide;
        s->wide_at[s->n_wide] = -1;
        s->wide[s->n_wide++] = g;
    }
}

static int grow(struct dt_engine_parts *s, const struct dt_program *p, uint32_t n_nodes)
{
    size_t lanes = (size_t)p->n_lanes + 1, groups = (size_t)p->n_groups + 1;

    return dt_grow((void **)&s->first, &s->first_cap, lanes, sizeof *s->first) ||
           /* and the sets behind the lists, while these are made */
           dt_grow((void **)&s->lanes, &s->lanes_cap, 2 * lanes + n_nodes, sizeof *s->lanes) ||
           dt_grow((void **)&s->of_lane, &s->of_lane_cap, lanes, sizeof *s->of_lane) ||
           dt_grow((void **)&s->wide, &s->wide_cap, groups, sizeof *s->wide) ||
           dt_grow((void **)&s->wide_at, &s->wide_at_cap, groups, sizeof *s->wide_at) ||
           dt_grow((void **)&s->wide_of, &s->wide_of_cap, groups, sizeof *s->wide_of);
}

enum dt_status dt_engine_part(struct dt_engine *e, const struct dt_program *p,
                              const struct dt_network *net, struct dt_error *err)
{
    struct dt_engine_parts *s = &e->parts;
    uint32_t gpus_per_node = dt_network_gpus_per_node(net), gpus = 0;

    s->n = 0;
    if (e->tangled || gpus_per_node == 0)
        return DT_OK;
    for (int l = 0; l < p->n_lanes; l++) {
        uint32_t end = p->lanes[l].first_gpu + p->lanes[l].gpus + 1u;
        gpus = end > gpus ? end : gpus;
    }
    uint32_t n_nodes = gpus / gpus_per_node + 1, n = (uint32_t)p->n_lanes + n_nodes;
    if (grow(s, p, n_nodes))
        return dt_error_nomem(err, "event engine");
    uint32_t *set = s->lanes + p->n_lanes + 1;
    for (uint32_t i = 0; i < n; i++)
        set[i] = i;
    join_nodes(set, p, gpus_per_node);
    join_transfers(set, e);
    number(s, set, (uint32_t)p->n_lanes);
    find_wide(s, p);
    return DT_OK;
}
