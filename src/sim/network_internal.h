/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * What network.c (links, flows, their lifecycle) and network_maxmin.c (their rates) share.
 *
 *   flow --first_hop--> hop hop hop        hops of a flow are adjacent
 *                        |   |   |
 *   link <---------------+   |   |         hops of a link form a list
 */
#ifndef DT_SIM_NETWORK_INTERNAL_H
#define DT_SIM_NETWORK_INTERNAL_H

#include "sim/network.h"

struct dt_network_hop {
    uint32_t link, flow;
    uint32_t prev, next; /* on the same link */
    double weight;
};

struct dt_network_link {
    double capacity;
    double demand; /* sum of weight * cap: what the link would carry if nobody were held back */
    double load;   /* sum of weight * rate: what it carries */
    uint32_t head, count;
    uint32_t stamp;       /* of the last recomputation that visited it */
    uint32_t live;        /* recomputation: hops of flows without a rate yet ... */
    double spare, weight; /* ... capacity left for them, sum of their weights */
    bool shared;          /* ... with flows that keep their rates */
    double top;           /* ... highest rate given on it */
};

struct dt_network_flow {
    double rate, cap, remaining; /* bytes/s, bytes/s, bytes at last_ns */
    double bytes;
    double next_rate; /* recomputation */
    int64_t last_ns;
    uint32_t first_hop, n_hops;
    uint32_t tag, heap_at;
    uint32_t bottleneck; /* the full link, nobody faster on it, that holds it back; NONE: its cap */
    uint32_t next_bottleneck;
    uint32_t stamp;
    uint8_t size_class, frozen;
};

struct dt_network_level { /* recomputation: a link or a flow's own cap that may bind at this rate */
    double rate;
    uint32_t id; /* links as they are, flows with NET_FLOW set */
};
#define NET_FLOW 0x80000000u
enum { NET_CLASSES = 28, NET_HOPS_MIN = 4 }; /* size class k holds up to 4 << k hops */
/* A flow over more links than this (a ring over many nodes) has its rate recomputed only when what
 * holds it back changes, not whenever something moves on one of its links. */
enum { NET_WIDE_HOPS = 64 };
enum { NET_SOON = 64 };

struct dt_network {
    struct dt_cluster cluster;
    bool has_cluster, fabric_binds;
    uint32_t n_links, port_out, port_in, nic_out, nic_in, fabric; /* first link of each kind */
    struct dt_network_link *links;
    struct dt_network_flow *flows; /* [id] */
    size_t flows_cap;
    uint32_t n_ids;
    struct dt_network_hop *hops;
    size_t hops_cap;
    uint32_t n_hops;
    uint32_t free_head[NET_CLASSES]; /* lists of free ids through .tag */
    struct dt_network_finish *heap;  /* of flows with a rate, but for those in soon[] */
    size_t heap_cap;
    uint32_t heap_n;
    uint32_t soon_from, soon_n;
    struct dt_network_finish soon[NET_SOON]; /* sorted: those that finish before all in the heap */
    uint32_t *dirty;                         /* links whose flows need new rates as of dirty_ns */
    size_t dirty_cap;
    uint32_t n_dirty;
    int64_t dirty_ns;
    uint32_t stamp;
    uint32_t *todo; /* recomputation: the component's flows */
    size_t todo_cap;
    uint32_t *todo_links; /* its binding links */
    struct dt_network_level *level;
    size_t level_cap;
    uint32_t *scratch_link; /* a path under construction */
    double *scratch_weight;
    size_t scratch_cap, scratch_weight_cap;
    uint32_t *node_mark; /* per node: position + 1 in the path under construction */
    uint32_t *ring_node,
        *ring_gpus; /* nodes of a ring that is looked at; per node: its GPUs there */
    uint64_t solves, flows_solved;
};

/* A link can hold somebody back only if the flows on it could together exceed it.  The tolerance
 * absorbs the rounding of caps that add up to exactly the capacity. */
static inline bool dt_network_binds(const struct dt_network_link *l)
{
    return l->demand > l->capacity * (1 + 1e-9);
}

/* Such a link is full: what it carries may not rise, so whoever comes or goes on it changes what the
 * others get. */
static inline bool dt_network_full(const struct dt_network_link *l)
{
    return l->load >= l->capacity * (1 - 1e-9);
}
/* Does a flow that asks for `more` have to be held back, as far as the rates in force go? */
static inline bool dt_network_short(const struct dt_network_link *l, double more)
{
    return l->load + more > l->capacity * (1 + 1e-9);
}

/* When flows finish: sets or changes it, forgets it, and the first of all (NULL: none). */
void dt_network_finish_set(struct dt_network *n, uint32_t flow, int64_t finish_ns);
void dt_network_finish_remove(struct dt_network *n, uint32_t flow);
const struct dt_network_finish *dt_network_finish_first(struct dt_network *n);
/* Gives every flow that touches a dirty link, and all that these affect, its max-min rate. */
void dt_network_solve(struct dt_network *n);

#endif
