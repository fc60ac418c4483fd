/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Max-min fair rates by progressive filling, and the order in which flows finish.
 *
 * All rates of a component rise together from zero.  A flow stops at its own cap, or when a link on
 * its path is full; then the others rise on.  The result is the max-min fair allocation: every flow
 * is at its cap or crosses a full link on which nobody is faster (Bertsekas and Gallager, Data
 * Networks, section 6.5.2).
 *
 * Only the flows whose rates can change take part: those on links where something began or ended,
 * those that share a full link with them, and so on.  All others keep their rates and take their
 * bandwidth off the links they share with these.  If that holds one of these down on a link where
 * one of the others is faster, the allocation is not fair yet, and the flows of that link take part
 * too.  What comes out is the max-min fair allocation of all flows: for each of them the condition
 * above holds. */
#include "sim/network_internal.h"

#include <math.h>

/* ---- finish times ---- */

static bool finishes_before(const struct dt_network *n, uint32_t a, uint32_t b)
{
    const struct dt_net_flow *x = &n->flows[a], *y = &n->flows[b];

    if (x->finish_ns != y->finish_ns)
        return x->finish_ns < y->finish_ns;
    return x->tag != y->tag ? x->tag < y->tag : a < b;
}

static void heap_set(struct dt_network *n, uint32_t at, uint32_t flow)
{
    n->heap[at] = flow;
    n->flows[flow].heap_at = at;
}

static void heap_place(struct dt_network *n, uint32_t at, uint32_t flow)
{
    while (at > 0 && finishes_before(n, flow, n->heap[(at - 1) / 2])) {
        heap_set(n, at, n->heap[(at - 1) / 2]);
        at = (at - 1) / 2;
    }
    for (;;) {
        uint32_t c = 2 * at + 1;
        if (c >= n->heap_n)
            break;
        if (c + 1 < n->heap_n && finishes_before(n, n->heap[c + 1], n->heap[c]))
            c++;
        if (!finishes_before(n, n->heap[c], flow))
            break;
        heap_set(n, at, n->heap[c]);
        at = c;
    }
    heap_set(n, at, flow);
}

void dt_net_heap_update(struct dt_network *n, uint32_t flow)
{
    uint32_t at = n->flows[flow].heap_at;

    heap_place(n, at == DT_NONE ? n->heap_n++ : at, flow);
}

void dt_net_heap_remove(struct dt_network *n, uint32_t flow)
{
    uint32_t at = n->flows[flow].heap_at;
    uint32_t last = n->heap[--n->heap_n];

    n->flows[flow].heap_at = DT_NONE;
    if (last != flow)
        heap_place(n, at, last);
}

/* ---- progressive filling ---- */

static void level_sift(struct dt_net_level *v, uint32_t count, uint32_t i)
{
    struct dt_net_level e = v[i];

    for (;;) {
        uint32_t c = 2 * i + 1;
        if (c >= count)
            break;
        /* Ties by id: the order of processing is a function of the flows, not of how they were
         * found. */
        if (c + 1 < count &&
            (v[c + 1].rate < v[c].rate || (v[c + 1].rate == v[c].rate && v[c + 1].id < v[c].id)))
            c++;
        if (e.rate < v[c].rate || (e.rate == v[c].rate && e.id < v[c].id))
            break;
        v[i] = v[c];
        i = c;
    }
    v[i] = e;
}

static uint32_t add_flows_of(struct dt_network *n, uint32_t link, uint32_t n_flows)
{
    for (uint32_t h = n->links[link].head; h != DT_NONE; h = n->hops[h].next) {
        struct dt_net_flow *f = &n->flows[n->hops[h].flow];
        if (f->stamp == n->stamp)
            continue;
        f->stamp = n->stamp;
        n->todo[n_flows++] = n->hops[h].flow;
    }
    return n_flows;
}

/* The flows on dirty links: where the component starts. */
static uint32_t open_component(struct dt_network *n)
{
    uint32_t flows = 0;

    if (++n->stamp == 0) { /* after 2^32 recomputations old stamps could look new */
        for (uint32_t i = 0; i < n->n_links; i++)
            n->links[i].stamp = 0;
        for (uint32_t i = 0; i < n->n_slots; i++)
            n->flows[i].stamp = 0;
        n->stamp = 1;
    }
    for (uint32_t i = 0; i < n->n_dirty; i++) {
        n->links[n->dirty[i]].live = 0;
        flows = add_flows_of(n, n->dirty[i], flows);
    }
    n->n_dirty = 0;
    return flows;
}

/* From flow `from` on: links that can bind into todo_links[], and the flows that share a full one
 * into todo[]. */
static uint32_t close_component(struct dt_network *n, uint32_t from, uint32_t flows,
                                uint32_t *n_links)
{
    for (uint32_t i = from; i < flows; i++) {
        const struct dt_net_flow *f = &n->flows[n->todo[i]];
        for (uint32_t k = 0; k < f->n_hops; k++) {
            uint32_t id = n->hops[f->first_hop + k].link;
            struct dt_net_link *l = &n->links[id];
            if (l->stamp == n->stamp || !dt_net_binds(l))
                continue;
            l->stamp = n->stamp;
            n->todo_links[(*n_links)++] = id;
            if (dt_net_full(l))
                flows = add_flows_of(n, id, flows);
        }
    }
    return flows;
}

/* What every link has left for the component's flows when the others keep what they have. */
static void share_links(struct dt_network *n, uint32_t n_flows, uint32_t n_links)
{
    for (uint32_t i = 0; i < n_links; i++) {
        struct dt_net_link *l = &n->links[n->todo_links[i]];
        l->spare = l->capacity - l->load;
        l->weight = 0;
        l->live = 0;
    }
    for (uint32_t i = 0; i < n_flows; i++) {
        struct dt_net_flow *f = &n->flows[n->todo[i]];
        f->frozen = 0;
        for (uint32_t k = 0; k < f->n_hops; k++) {
            const struct dt_net_hop *h = &n->hops[f->first_hop + k];
            struct dt_net_link *l = &n->links[h->link];
            if (l->stamp != n->stamp)
                continue;
            l->spare += h->weight * f->rate;
            l->weight += h->weight;
            l->live++;
        }
    }
    for (uint32_t i = 0; i < n_links; i++) {
        struct dt_net_link *l = &n->links[n->todo_links[i]];
        l->shared = l->live < l->count;
        if (!l->shared)
            l->spare = l->capacity; /* no rounding */
    }
}

static uint32_t start_levels(struct dt_network *n, uint32_t n_flows, uint32_t n_links)
{
    uint32_t count = 0;

    for (uint32_t i = 0; i < n_links; i++) {
        const struct dt_net_link *l = &n->links[n->todo_links[i]];
        n->level[count++] = (struct dt_net_level){l->spare / l->weight, n->todo_links[i]};
    }
    for (uint32_t i = 0; i < n_flows; i++)
        n->level[count++] = (struct dt_net_level){n->flows[n->todo[i]].cap, n->todo[i] | NET_FLOW};
    for (uint32_t i = count / 2; i-- > 0;)
        level_sift(n->level, count, i);
    return count;
}

/* Move the flow's clock to the instant and give it its new rate. */
static void set_rate(struct dt_network *n, uint32_t flow, double rate)
{
    struct dt_net_flow *f = &n->flows[flow];

    /* A rate that only rounding changed is the same rate: its finish time stays as it was. */
    if (f->rate > 0 && fabs(rate - f->rate) <= 1e-12 * f->rate)
        return;
    f->remaining -= f->rate * (double)(n->dirty_ns - f->last_ns) * 1e-9;
    if (f->remaining < 0)
        f->remaining = 0; /* less than the bytes of half a nanosecond */
    f->last_ns = n->dirty_ns;
    for (uint32_t k = 0; k < f->n_hops; k++) {
        const struct dt_net_hop *h = &n->hops[f->first_hop + k];
        n->links[h->link].load += h->weight * (rate - f->rate);
    }
    f->rate = rate;
    double ns = f->remaining / rate * 1e9;
    f->finish_ns = n->dirty_ns + (ns < 4e18 ? llround(ns) : INT64_MAX / 2);
    dt_net_heap_update(n, flow);
}

static void freeze(struct dt_network *n, uint32_t flow, double rate)
{
    struct dt_net_flow *f = &n->flows[flow];

    f->frozen = 1;
    f->next_rate = rate;
    for (uint32_t k = 0; k < f->n_hops; k++) {
        const struct dt_net_hop *h = &n->hops[f->first_hop + k];
        struct dt_net_link *l = &n->links[h->link];
        if (l->stamp != n->stamp)
            continue;
        l->spare -= h->weight * rate;
        l->weight -= h->weight;
        l->live--;
    }
}

static uint32_t freeze_link(struct dt_network *n, uint32_t link, double rate)
{
    uint32_t count = 0;

    for (uint32_t h = n->links[link].head; h != DT_NONE; h = n->hops[h].next) {
        const struct dt_net_flow *f = &n->flows[n->hops[h].flow];
        if (f->stamp != n->stamp || f->frozen)
            continue;
        freeze(n, n->hops[h].flow, rate);
        count++;
    }
    return count;
}

/* Would the link hold the component to `rate` while somebody else on it is faster?  Then that is
 * not fair, and those flows belong to the component. */
static bool others_faster(const struct dt_network *n, uint32_t link, double rate)
{
    if (!n->links[link].shared)
        return false;
    for (uint32_t h = n->links[link].head; h != DT_NONE; h = n->hops[h].next) {
        const struct dt_net_flow *f = &n->flows[n->hops[h].flow];
        if (f->stamp != n->stamp && f->rate > rate * (1 + 1e-12))
            return true;
    }
    return false;
}

/* A heap of levels.  Levels of links only rise while filling, so an outdated one is found
 * when it comes up.  Returns the link whose other flows have to take part, or DT_NONE when every
 * flow has its next_rate. */
static uint32_t fill(struct dt_network *n, uint32_t n_flows, uint32_t n_links)
{
    uint32_t count = start_levels(n, n_flows, n_links), left = n_flows;

    while (left > 0 && count > 0) {
        struct dt_net_level v = n->level[0];
        if (v.id & NET_FLOW) {
            if (!n->flows[v.id & ~NET_FLOW].frozen) {
                freeze(n, v.id & ~NET_FLOW, v.rate);
                left--;
            }
        } else if (n->links[v.id].live > 0) {
            double now = n->links[v.id].spare / n->links[v.id].weight;
            if (now >
                v.rate * (1 + 1e-12)) { /* flows that stopped lower left room: look again later */
                n->level[0].rate = now;
                level_sift(n->level, count, 0);
                continue;
            }
            if (others_faster(n, v.id, v.rate))
                return v.id;
            left -= freeze_link(n, v.id, v.rate);
        }
        n->level[0] = n->level[--count];
        if (count > 0)
            level_sift(n->level, count, 0);
    }
    return DT_NONE;
}

void dt_net_solve(struct dt_network *n)
{
    uint32_t n_links = 0, from = 0, n_flows = open_component(n), link;

    n->solves++;
    do {
        n_flows = close_component(n, from, n_flows, &n_links);
        share_links(n, n_flows, n_links);
        n->flows_solved += n_flows;
        from = n_flows;
        link = fill(n, n_flows, n_links);
        if (link != DT_NONE)
            n_flows = add_flows_of(n, link, n_flows);
    } while (link != DT_NONE);
    for (uint32_t i = 0; i < n_flows; i++)
        set_rate(n, n->todo[i], n->flows[n->todo[i]].next_rate);
    for (uint32_t i = 0; i < n_links; i++)
        n->links[n->todo_links[i]].live = 0;
}
