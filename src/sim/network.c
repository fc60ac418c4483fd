/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Links, paths and the life of a flow.  Rates are network_maxmin.c's.
 *
 * Starting a flow is O(its hops + log flows) while all of its links have room for all that it can
 * take, and so is ending one that crosses no full link: nobody else's rate changes.  Otherwise the
 * link is marked dirty and the flows affected get new rates once per instant, however many flows
 * start and end in it. */
#include "sim/network_internal.h"

#include "base/mem.h"

#include <math.h>
#include <string.h>

static enum dt_status init_links(struct dt_network *n, uint32_t n_links, uint32_t n_nodes,
                                 struct dt_error *err)
{
    n->n_links = n_links;
    n->links = dt_calloc(n_links, sizeof *n->links);
    n->todo_links = dt_calloc(n_links, sizeof *n->todo_links);
    n->node_mark = dt_calloc(n_nodes, sizeof *n->node_mark);
    n->ring_node = dt_calloc(n_nodes, sizeof *n->ring_node);
    n->ring_gpus = dt_calloc(n_nodes, sizeof *n->ring_gpus);
    if (!n->links || !n->todo_links || !n->node_mark || !n->ring_node || !n->ring_gpus)
        return dt_error_nomem(err, "network links");
    dt_network_reset(n);
    return DT_OK;
}

static void set_capacity(struct dt_network *n, uint32_t first, uint32_t count, double bytes_per_s)
{
    for (uint32_t i = 0; i < count; i++)
        n->links[first + i].capacity = bytes_per_s;
}

enum dt_status dt_network_new(const struct dt_cluster *c, struct dt_error *err,
                              struct dt_network **out)
{
    uint32_t gpus = (uint32_t)dt_cluster_gpus(c), nodes = (uint32_t)c->nodes;
    double nic = c->nics_per_node * c->nic_bytes_per_s * c->nic_efficiency;
    struct dt_network *n = dt_calloc(1, sizeof *n);

    if (!n)
        return dt_error_nomem(err, "network");
    n->cluster = *c;
    n->has_cluster = true;
    n->port_in = n->port_out + gpus;
    n->nic_out = n->port_in + gpus;
    n->nic_in = n->nic_out + nodes;
    n->fabric = n->nic_in + nodes;
    n->fabric_binds = c->fabric_oversubscription > 1;
    enum dt_status s = init_links(n, n->fabric + 1, nodes, err);
    if (s != DT_OK) {
        dt_network_free(n);
        return s;
    }
    set_capacity(n, n->port_out, 2 * gpus, c->nvlink_bytes_per_s);
    set_capacity(n, n->nic_out, 2 * nodes, nic);
    /* Full bisection carries whatever the NICs inject; less than that is what "oversubscribed"
     * means. */
    set_capacity(n, n->fabric, 1, nodes * nic / (n->fabric_binds ? c->fabric_oversubscription : 1));
    *out = n;
    return DT_OK;
}

enum dt_status dt_network_new_links(const double *capacity, int n_links, struct dt_error *err,
                                    struct dt_network **out)
{
    struct dt_network *n = dt_calloc(1, sizeof *n);

    if (!n)
        return dt_error_nomem(err, "network");
    enum dt_status s = init_links(n, (uint32_t)n_links, 1, err);
    if (s != DT_OK) {
        dt_network_free(n);
        return s;
    }
    for (int i = 0; i < n_links; i++)
        n->links[i].capacity = capacity[i];
    *out = n;
    return DT_OK;
}

void dt_network_free(struct dt_network *n)
{
    if (!n)
        return;
    dt_free(n->links);
    dt_free(n->flows);
    dt_free(n->hops);
    dt_free(n->heap);
    dt_free(n->dirty);
    dt_free(n->todo);
    dt_free(n->todo_links);
    dt_free(n->level);
    dt_free(n->scratch_link);
    dt_free(n->scratch_weight);
    dt_free(n->node_mark);
    dt_free(n->ring_node);
    dt_free(n->ring_gpus);
    dt_free(n);
}

void dt_network_reset(struct dt_network *n)
{
    for (uint32_t i = 0; i < n->n_links; i++) {
        n->links[i].demand = n->links[i].load = 0;
        n->links[i].head = DT_NONE;
        n->links[i].count = 0;
        n->links[i].stamp = 0;
        n->links[i].live = 0;
    }
    for (int k = 0; k < NET_CLASSES; k++)
        n->free_head[k] = DT_NONE;
    n->n_ids = n->n_hops = n->heap_n = n->soon_n = n->soon_from = n->n_dirty = n->stamp = 0;
    n->solves = n->flows_solved = 0;
}

static int grow_flows(struct dt_network *n, size_t flows, size_t hops)
{
    /* A recomputation may hold an entry per binding link and per flow at once. */
    return dt_grow((void **)&n->flows, &n->flows_cap, flows, sizeof *n->flows) ||
           dt_grow((void **)&n->heap, &n->heap_cap, flows, sizeof *n->heap) ||
           dt_grow((void **)&n->todo, &n->todo_cap, flows, sizeof *n->todo) ||
           dt_grow((void **)&n->level, &n->level_cap, flows + n->n_links, sizeof *n->level) ||
           dt_grow((void **)&n->hops, &n->hops_cap, hops, sizeof *n->hops);
}

static int grow_scratch(struct dt_network *n, size_t path)
{
    return dt_grow((void **)&n->scratch_link, &n->scratch_cap, path, sizeof *n->scratch_link) ||
           dt_grow((void **)&n->scratch_weight, &n->scratch_weight_cap, path,
                   sizeof *n->scratch_weight);
}

enum dt_status dt_network_reserve(struct dt_network *n, size_t flows, size_t hops, size_t path,
                                  struct dt_error *err)
{
    /* Size classes round a path up to twice its length, or to the least class. */
    if (grow_flows(n, n->n_ids + flows, n->n_hops + 2 * hops + NET_HOPS_MIN * flows) ||
        grow_scratch(n, path) ||
        dt_grow((void **)&n->dirty, &n->dirty_cap, n->n_links, sizeof *n->dirty))
        return dt_error_nomem(err, "network flows");
    return DT_OK;
}

/* The id of a flow whose region holds n_hops, from the free list of its class or new. */
static uint32_t take_id(struct dt_network *n, uint32_t n_hops)
{
    uint8_t k = 0;

    while ((uint32_t)NET_HOPS_MIN << k < n_hops)
        k++;
    uint32_t f = n->free_head[k];
    if (f != DT_NONE) {
        n->free_head[k] = n->flows[f].tag;
        return f;
    }
    uint32_t room = (uint32_t)NET_HOPS_MIN << k;
    if (grow_flows(n, (size_t)n->n_ids + 1, (size_t)n->n_hops + room) ||
        dt_grow((void **)&n->dirty, &n->dirty_cap, n->n_links, sizeof *n->dirty))
        return DT_NONE;
    f = n->n_ids++;
    memset(&n->flows[f], 0, sizeof n->flows[f]);
    n->flows[f].first_hop = n->n_hops;
    n->flows[f].size_class = k;
    n->n_hops += room;
    return f;
}

static void flush_before(struct dt_network *n, int64_t now_ns)
{
    if (n->n_dirty > 0 && n->dirty_ns != now_ns)
        dt_network_solve(n);
    n->dirty_ns = now_ns;
}

/* At most one entry per link: the dirty list is sized for n_links. */
static void mark_dirty(struct dt_network *n, uint32_t link)
{
    if (n->links[link].live == DT_NONE)
        return;
    n->links[link].live = DT_NONE;
    n->dirty[n->n_dirty++] = link;
}

static void join_link(struct dt_network *n, uint32_t hop, uint32_t flow, uint32_t link,
                      double weight)
{
    struct dt_network_hop *h = &n->hops[hop];
    struct dt_network_link *l = &n->links[link];

    /* The profile is the authority on what a lone transfer takes, the network only on how transfers
     * in flight at once share: a flow by itself never asks a link for more than it has. */
    if (weight * n->flows[flow].cap > l->capacity)
        weight = l->capacity / n->flows[flow].cap;
    h->link = link;
    h->flow = flow;
    h->weight = weight;
    h->prev = DT_NONE;
    h->next = l->head;
    if (l->head != DT_NONE)
        n->hops[l->head].prev = hop;
    l->head = hop;
    l->count++;
    l->demand += weight * n->flows[flow].cap;
}

static void leave_link(struct dt_network *n, uint32_t hop)
{
    struct dt_network_hop *h = &n->hops[hop];
    struct dt_network_link *l = &n->links[h->link];

    if (h->prev != DT_NONE)
        n->hops[h->prev].next = h->next;
    else
        l->head = h->next;
    if (h->next != DT_NONE)
        n->hops[h->next].prev = h->prev;
    /* An empty link forgets its rounding errors. */
    if (--l->count == 0) {
        l->demand = l->load = 0;
        return;
    }
    l->demand -= h->weight * n->flows[h->flow].cap;
    l->load -= h->weight * n->flows[h->flow].rate;
}

uint32_t dt_network_start_path(struct dt_network *n, const uint32_t *link, const double *weight,
                               uint32_t n_hops, double bytes, double cap_bytes_per_s,
                               int64_t now_ns, uint32_t tag)
{
    bool held = false;

    flush_before(n, now_ns);
    uint32_t id = take_id(n, n_hops);
    if (id == DT_NONE)
        return DT_NONE;
    struct dt_network_flow *f = &n->flows[id];
    f->cap = cap_bytes_per_s;
    f->bytes = f->remaining = bytes;
    f->last_ns = now_ns;
    f->n_hops = n_hops;
    f->tag = tag;
    f->heap_at = DT_NONE;
    f->rate = 0; /* until the recomputation, if some link may hold it back */
    f->bottleneck = DT_NONE;
    for (uint32_t i = 0; i < n_hops; i++) {
        struct dt_network_link *l = &n->links[link[i]];
        join_link(n, f->first_hop + i, id, link[i], weight[i]);
        if (dt_network_binds(l) &&
            (l->live == DT_NONE ||
             dt_network_short(l, n->hops[f->first_hop + i].weight * f->cap))) {
            held = true;
            mark_dirty(n, link[i]);
        }
    }
    if (!held) {
        f->rate = f->cap;
        for (uint32_t i = 0; i < n_hops; i++)
            n->links[link[i]].load += n->hops[f->first_hop + i].weight * f->cap;
        dt_network_finish_set(n, id, now_ns + llround(bytes / f->cap * 1e9));
    }
    return id;
}

void dt_network_end(struct dt_network *n, uint32_t flow, int64_t now_ns)
{
    struct dt_network_flow *f = &n->flows[flow];

    flush_before(n, now_ns);
    for (uint32_t i = 0; i < f->n_hops; i++) {
        struct dt_network_hop *h = &n->hops[f->first_hop + i];
        bool bound = dt_network_binds(&n->links[h->link]) && dt_network_full(&n->links[h->link]);
        leave_link(n, f->first_hop + i);
        if (bound && n->links[h->link].count > 0)
            mark_dirty(n, h->link);
    }
    dt_network_finish_remove(n, flow);
    f->tag = n->free_head[f->size_class];
    n->free_head[f->size_class] = flow;
}

bool dt_network_due(struct dt_network *n, int64_t until_ns, int64_t *finish_ns, uint32_t *flow,
                    uint32_t *tag)
{
    const struct dt_network_finish *first = dt_network_finish_first(n);

    /* What changed at this instant changes nobody's bytes before the next one: flows that finish
     * now do so. */
    if (n->n_dirty > 0 && until_ns > n->dirty_ns && !(first && first->ns <= n->dirty_ns)) {
        dt_network_solve(n);
        first = dt_network_finish_first(n);
    }
    if (!first || first->ns > until_ns)
        return false;
    *flow = first->flow;
    *finish_ns = first->ns;
    *tag = first->tag;
    return true;
}

bool dt_network_next(struct dt_network *n, int64_t *finish_ns, uint32_t *flow, uint32_t *tag)
{
    return dt_network_due(n, INT64_MAX, finish_ns, flow, tag);
}

void dt_network_settle(struct dt_network *n)
{
    if (n->n_dirty > 0)
        dt_network_solve(n);
}

/* Rates are a cache of the flows in flight: filling it does not change the network's meaning. */
static void settle(const struct dt_network *n)
{
    dt_network_settle((struct dt_network *)(uintptr_t)n);
}

double dt_network_rate(const struct dt_network *n, uint32_t flow)
{
    settle(n);
    return n->flows[flow].rate;
}

double dt_network_moved(const struct dt_network *n, uint32_t flow, int64_t now_ns)
{
    settle(n);
    const struct dt_network_flow *f = &n->flows[flow];
    return f->bytes - f->remaining + f->rate * (double)(now_ns - f->last_ns) * 1e-9;
}

int dt_network_links(const struct dt_network *n)
{
    return (int)n->n_links;
}

void dt_network_link_load(const struct dt_network *n, int link, double *load, double *capacity)
{
    double sum = 0;

    settle(n);
    for (uint32_t h = n->links[link].head; h != DT_NONE; h = n->hops[h].next)
        sum += n->hops[h].weight * n->flows[n->hops[h].flow].rate;
    *load = sum;
    *capacity = n->links[link].capacity;
}

void dt_network_stats(const struct dt_network *n, uint64_t *solves, uint64_t *flows_solved)
{
    *solves = n->solves;
    *flows_solved = n->flows_solved;
}
