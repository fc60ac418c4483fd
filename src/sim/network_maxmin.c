/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Max-min fair rates by progressive filling.
 *
 * All rates of a component rise together from zero.  A flow stops at its own cap, or when a link on
 * its path is full; then the others rise on.  The result is the max-min fair allocation: every flow
 * is at its cap or crosses a full link on which nobody is faster (Bertsekas and Gallager, Data
 * Networks, section 6.5.2).
 *
 * Only the flows whose rates can change take part; all others keep their rates and take their
 * bandwidth off the links they share with these.  Every flow below its cap remembers its bottleneck.
 * The component starts with the flows on links where something began or ended and those that share
 * a full link with them, and so on.  A wide flow (a ring over many nodes) would tie all of its
 * links together, though mostly one of them holds it back, so it takes part only if it must.
 * When the component has its rates, somebody outside must take part too if
 *   - it is faster than a flow of the component that a common link holds down, or
 *   - its bottleneck is not full any more, or has somebody faster on it now;
 * and the component is filled again with it.  What comes out is the max-min fair allocation of all
 * flows, because for each of them the condition above holds. */
#include "sim/network_internal.h"

#include "base/heap.h"
#include "base/number.h"

#include <math.h>

/* Ties by id: the order of processing is a function of the flows, not of how they were found. */
#define LOWER(ctx, a, b) ((a).rate < (b).rate || ((a).rate == (b).rate && (a).id < (b).id))
DT_HEAP(levels, const void *, struct dt_network_level, 2, LOWER, DT_HEAP_SET)

static uint32_t add_flow(struct dt_network *n, uint32_t flow, uint32_t n_flows)
{
    n->flows[flow].stamp = n->stamp;
    n->todo[n_flows] = flow;
    return n_flows + 1;
}

/* The flows of a link that the component does not have yet; wide ones only when everybody is asked
 * for, or when they are new or held back here by `link`'s being full. */
enum wide { WIDE_NONE, WIDE_HELD, WIDE_ALL };
static uint32_t add_flows_of(struct dt_network *n, uint32_t link, enum wide wide, uint32_t n_flows)
{
    for (uint32_t h = n->links[link].head; h != DT_NONE; h = n->hops[h].next) {
        const struct dt_network_flow *f = &n->flows[n->hops[h].flow];
        if (f->stamp == n->stamp)
            continue;
        if (wide == WIDE_ALL || f->n_hops <= NET_WIDE_HOPS ||
            (wide == WIDE_HELD && (f->rate == 0 || f->bottleneck == link)))
            n_flows = add_flow(n, n->hops[h].flow, n_flows);
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
        for (uint32_t i = 0; i < n->n_ids; i++)
            n->flows[i].stamp = 0;
        n->stamp = 1;
    }
    for (uint32_t i = 0; i < n->n_dirty; i++) {
        n->links[n->dirty[i]].live = 0;
        flows = add_flows_of(n, n->dirty[i], WIDE_HELD, flows);
    }
    n->n_dirty = 0;
    return flows;
}

/* From flow `from` on: links that can bind into todo_links[], and the flows that share a full one
 * into todo[]; those of a wide flow's links only when `all` take part at once. */
static uint32_t close_component(struct dt_network *n, uint32_t from, uint32_t flows, bool all,
                                uint32_t *n_links)
{
    for (uint32_t i = from; i < flows; i++) {
        const struct dt_network_flow *f = &n->flows[n->todo[i]];
        bool spreads = all || f->n_hops <= NET_WIDE_HOPS;
        for (uint32_t k = 0; k < f->n_hops; k++) {
            uint32_t id = n->hops[f->first_hop + k].link;
            struct dt_network_link *l = &n->links[id];
            if (l->stamp == n->stamp || !dt_network_binds(l))
                continue;
            l->stamp = n->stamp;
            n->todo_links[(*n_links)++] = id;
            if (spreads && dt_network_full(l))
                flows = add_flows_of(n, id, all ? WIDE_ALL : WIDE_NONE, flows);
        }
    }
    return flows;
}

/* What every link has left for the component's flows when the others keep what they have. */
static void share_links(struct dt_network *n, uint32_t n_flows, uint32_t n_links)
{
    for (uint32_t i = 0; i < n_links; i++) {
        struct dt_network_link *l = &n->links[n->todo_links[i]];
        l->spare = l->capacity - l->load;
        l->weight = l->top = 0;
        l->live = 0;
    }
    for (uint32_t i = 0; i < n_flows; i++) {
        struct dt_network_flow *f = &n->flows[n->todo[i]];
        f->frozen = 0;
        for (uint32_t k = 0; k < f->n_hops; k++) {
            const struct dt_network_hop *h = &n->hops[f->first_hop + k];
            struct dt_network_link *l = &n->links[h->link];
            if (l->stamp != n->stamp)
                continue;
            l->spare += h->weight * f->rate;
            l->weight += h->weight;
            l->live++;
        }
    }
    for (uint32_t i = 0; i < n_links; i++) {
        struct dt_network_link *l = &n->links[n->todo_links[i]];
        l->shared = l->live < l->count;
        if (!l->shared)
            l->spare = l->capacity; /* no rounding */
        else if (l->spare < 0)
            l->spare = 0; /* rounding of the loads */
    }
}

static uint32_t start_levels(struct dt_network *n, uint32_t n_flows, uint32_t n_links)
{
    uint32_t count = 0;

    for (uint32_t i = 0; i < n_links; i++) {
        const struct dt_network_link *l = &n->links[n->todo_links[i]];
        n->level[count++] = (struct dt_network_level){l->spare / l->weight, n->todo_links[i]};
    }
    for (uint32_t i = 0; i < n_flows; i++)
        n->level[count++] =
            (struct dt_network_level){n->flows[n->todo[i]].cap, n->todo[i] | NET_FLOW};
    levels_make(NULL, n->level, count);
    return count;
}

/* Move the flow's clock to the instant and give it its new rate. */
static void set_rate(struct dt_network *n, uint32_t flow, double rate)
{
    struct dt_network_flow *f = &n->flows[flow];

    /* A rate that only rounding changed is the same rate: its finish time stays as it was. */
    f->bottleneck = f->next_bottleneck;
    if (f->rate > 0 && fabs(rate - f->rate) <= 1e-12 * f->rate)
        return;
    f->remaining -= f->rate * (double)(n->dirty_ns - f->last_ns) * 1e-9;
    if (f->remaining < 0)
        f->remaining = 0; /* less than the bytes of half a nanosecond */
    f->last_ns = n->dirty_ns;
    for (uint32_t k = 0; k < f->n_hops; k++) {
        const struct dt_network_hop *h = &n->hops[f->first_hop + k];
        n->links[h->link].load += h->weight * (rate - f->rate);
    }
    f->rate = rate;
    double ns = f->remaining / rate * 1e9;
    dt_network_finish_set(
        n, flow, n->dirty_ns + (ns < (double)DT_TIME_MAX_NS ? llround(ns) : DT_TIME_MAX_NS));
}

static void freeze(struct dt_network *n, uint32_t flow, double rate, uint32_t bottleneck)
{
    struct dt_network_flow *f = &n->flows[flow];

    f->frozen = 1;
    f->next_rate = rate;
    f->next_bottleneck = bottleneck;
    for (uint32_t k = 0; k < f->n_hops; k++) {
        const struct dt_network_hop *h = &n->hops[f->first_hop + k];
        struct dt_network_link *l = &n->links[h->link];
        if (l->stamp != n->stamp)
            continue;
        l->top = rate; /* rates only rise while filling */
        l->spare -= h->weight * rate;
        l->weight -= h->weight;
        l->live--;
    }
}

static uint32_t freeze_link(struct dt_network *n, uint32_t link, double rate)
{
    uint32_t count = 0;

    for (uint32_t h = n->links[link].head; h != DT_NONE; h = n->hops[h].next) {
        const struct dt_network_flow *f = &n->flows[n->hops[h].flow];
        if (f->stamp != n->stamp || f->frozen)
            continue;
        freeze(n, n->hops[h].flow, rate, link);
        count++;
    }
    return count;
}

/* The link would hold the component to `rate`: that is not fair while somebody else on it is faster.
 * Adds those. */
static uint32_t add_faster(struct dt_network *n, uint32_t link, double rate, uint32_t n_flows)
{
    if (!n->links[link].shared)
        return n_flows;
    for (uint32_t h = n->links[link].head; h != DT_NONE; h = n->hops[h].next) {
        const struct dt_network_flow *f = &n->flows[n->hops[h].flow];
        if (f->stamp != n->stamp && f->rate > rate * (1 + 1e-12))
            n_flows = add_flow(n, n->hops[h].flow, n_flows);
    }
    return n_flows;
}

/* Others whose bottleneck, a link of the component, is none any more. */
static uint32_t add_released(struct dt_network *n, uint32_t n_links, uint32_t n_flows)
{
    for (uint32_t i = 0; i < n_links; i++) {
        uint32_t id = n->todo_links[i];
        const struct dt_network_link *l = &n->links[id];
        if (!l->shared)
            continue;
        bool full = l->spare <= l->capacity * 1e-9;
        for (uint32_t h = l->head; h != DT_NONE; h = n->hops[h].next) {
            const struct dt_network_flow *f = &n->flows[n->hops[h].flow];
            if (f->stamp != n->stamp && f->bottleneck == id &&
                (!full || l->top > f->rate * (1 + 1e-12)))
                n_flows = add_flow(n, n->hops[h].flow, n_flows);
        }
    }
    return n_flows;
}

/* A heap of levels.  Levels of links only rise while filling, so an outdated one is found
 * when it comes up.  Returns n_flows when every flow has its next_rate, and more when others have to
 * take part, which are in todo[] then. */
static uint32_t fill(struct dt_network *n, uint32_t n_flows, uint32_t n_links)
{
    uint32_t count = start_levels(n, n_flows, n_links), left = n_flows;

    while (left > 0 && count > 0) {
        struct dt_network_level v = n->level[0];
        if (v.id & NET_FLOW) {
            if (!n->flows[v.id & ~NET_FLOW].frozen) {
                freeze(n, v.id & ~NET_FLOW, v.rate, DT_NONE);
                left--;
            }
        } else if (n->links[v.id].live > 0) {
            double now = n->links[v.id].spare / n->links[v.id].weight;
            if (now >
                v.rate * (1 + 1e-12)) { /* flows that stopped lower left room: look again later */
                v.rate = now;
                levels_down(NULL, n->level, count, 0, v);
                continue;
            }
            uint32_t with = add_faster(n, v.id, v.rate, n_flows);
            if (with > n_flows)
                return with;
            left -= freeze_link(n, v.id, v.rate);
        }
        levels_pop(NULL, n->level, count--);
    }
    return add_released(n, n_links, n_flows);
}

/* Everybody else on the full links found so far. */
static uint32_t add_sharers(struct dt_network *n, uint32_t n_links, uint32_t n_flows)
{
    for (uint32_t i = 0; i < n_links; i++)
        if (dt_network_full(&n->links[n->todo_links[i]]))
            n_flows = add_flows_of(n, n->todo_links[i], WIDE_ALL, n_flows);
    return n_flows;
}

enum { PASSES_LAZY = 4 }; /* after so many, whoever shares a full link takes part at once */

void dt_network_solve(struct dt_network *n)
{
    uint32_t n_links = 0, from = 0, n_flows = open_component(n), passes = 0;

    n->solves++;
    for (;;) {
        bool all = passes++ >= PASSES_LAZY;
        if (passes == PASSES_LAZY + 1)
            n_flows = add_sharers(n, n_links, n_flows);
        n_flows = close_component(n, from, n_flows, all, &n_links);
        share_links(n, n_flows, n_links);
        n->flows_solved += n_flows;
        from = n_flows;
        n_flows = fill(n, n_flows, n_links);
        if (n_flows == from)
            break;
    }
    for (uint32_t i = 0; i < n_flows; i++)
        set_rate(n, n->todo[i], n->flows[n->todo[i]].next_rate);
    for (uint32_t i = 0; i < n_links; i++)
        n->links[n->todo_links[i]].live = 0;
}
