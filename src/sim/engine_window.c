/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Windows of virtual time in which parts do not touch one another.
 *
 *   virtual time -->  now                                 until: the first wide group may begin
 *   gather | gather | part 0: ~~~~~~~~~~~~~~~~~~~~~~~~~~~ | sync | sync | norm | step
 *                   | part 1: ~~~~~~~~~~~~~~~~~~~~~~~~~~~ |
 *
 * In the order of virtual time, each event touches another part of a memory that no cache holds.
 * Inside a window the order between parts means nothing, so that each part goes through it by
 * itself: its ops fit into a core's cache, its events into a short queue. */
#include "sim/engine_internal.h"

#include "base/mem.h"

#include <string.h>

enum {
    WORTH = 16
}; /* a window is at least this part of the whole: there are no more than so many */

static int64_t first_wide_begin(const struct dt_engine_run *r)
{
    const struct dt_engine_parts *s = &r->e->parts;
    int64_t until = INT64_MAX;

    for (uint32_t w = 0; w < s->n_wide; w++)
        if (r->e->group_left[s->wide[w]] > 0 && s->wide_at[w] < until)
            until = s->wide_at[w];
    return until;
}

static uint32_t part_of(const struct dt_engine_run *r, uint32_t op)
{
    return r->e->parts.of_lane[r->p->ops[op].lane];
}

/* Counts to ends: at[k] is where part k's items end. */
static void sum_up(uint32_t *at, uint32_t n)
{
    for (uint32_t k = 1; k < n; k++)
        at[k] += at[k - 1];
}

/* Empties the queue into e->parked[], by part; event_at[k] is where part k's begin. */
static void park_events(struct dt_engine_run *r, uint32_t *event_at)
{
    const struct dt_sim_event *v = r->queue.heap;
    uint32_t n = r->queue.n, parts = r->e->parts.n;

    memset(event_at, 0, (parts + (size_t)1) * sizeof *event_at);
    for (uint32_t i = 0; i < n; i++)
        event_at[part_of(r, dt_sim_event_sequence(v[i]))]++;
    sum_up(event_at, parts + 1);
    for (uint32_t i = n; i-- > 0;)
        r->e->parked[--event_at[part_of(r, dt_sim_event_sequence(v[i]))]] = v[i];
    r->queue.n = 0;
}

/* The same for flows in flight: from flows[1], in which they lie in any order, to flows[0]. */
static void park_flows(struct dt_engine_run *r, uint32_t n, uint32_t *flow_at)
{
    const struct dt_network_finish *v = r->e->flows[1];
    uint32_t parts = r->e->parts.n;

    memset(flow_at, 0, (parts + (size_t)1) * sizeof *flow_at);
    for (uint32_t i = 0; i < n; i++)
        flow_at[part_of(r, v[i].tag)]++;
    sum_up(flow_at, parts + 1);
    for (uint32_t i = n; i-- > 0;)
        r->e->flows[0][--flow_at[part_of(r, v[i].tag)]] = v[i];
}

static int reserve(struct dt_engine_run *r)
{
    struct dt_engine *e = r->e;
    size_t flows = dt_network_in_flight(r->net) + 1u;

    return dt_grow((void **)&e->parked, &e->parked_cap, r->queue.n + 1u, sizeof *e->parked) ||
           dt_grow((void **)&e->flows[0], &e->flows_cap[0], flows, sizeof **e->flows) ||
           dt_grow((void **)&e->flows[1], &e->flows_cap[1], flows, sizeof **e->flows) ||
           dt_grow((void **)&e->parts.at[0], &e->parts.at_cap[0], e->parts.n + 1u,
                   sizeof **e->parts.at) ||
           dt_grow((void **)&e->parts.at[1], &e->parts.at_cap[1], e->parts.n + 1u,
                   sizeof **e->parts.at);
}

/* Flows that outlast the window join those of the parts before. */
static uint32_t keep_flows(struct dt_engine_run *r, uint32_t kept)
{
    struct dt_engine *e = r->e;
    size_t n = (size_t)kept + dt_network_in_flight(r->net);

    if (dt_grow((void **)&e->flows[1], &e->flows_cap[1], n + 1, sizeof **e->flows)) {
        r->nomem = true;
        return kept;
    }
    return kept + dt_network_park(r->net, e->flows[1] + kept);
}

static void run_parts(struct dt_engine_run *r, void (*advance)(struct dt_engine_run *),
                      const uint32_t *event_at, const uint32_t *flow_at)
{
    struct dt_engine *e = r->e;
    uint32_t later = 0, kept = 0;

    for (uint32_t k = 0; k < e->parts.n; k++) {
        /* Events from `until` on stay where they are; there are never more events than ops. */
        dt_sim_queue_init(&r->queue, e->events + later);
        for (uint32_t i = event_at[k]; i < event_at[k + 1]; i++)
            dt_sim_queue_put(&r->queue, e->parked[i]);
        for (uint32_t i = flow_at[k]; i < flow_at[k + 1]; i++)
            dt_network_unpark(r->net, &e->flows[0][i]);
        advance(r);
        dt_network_settle(r->net);
        dt_sim_queue_fill_hole(&r->queue);
        later += r->queue.n;
        kept = keep_flows(r, kept);
    }
    dt_sim_queue_init(&r->queue, e->events);
    r->queue.n = later;
    dt_sim_queue_order(&r->queue);
    for (uint32_t i = 0; i < kept; i++)
        dt_network_unpark(r->net, &e->flows[1][i]);
}

void dt_engine_window(struct dt_engine_run *r, void (*advance)(struct dt_engine_run *))
{
    struct dt_engine_parts *s = &r->e->parts;
    int64_t until = first_wide_begin(r);

    if (until <= r->now_ns || until - r->now_ns < s->makespan_ns / WORTH)
        return;
    dt_network_settle(r->net);
    dt_sim_queue_fill_hole(&r->queue);
    if (reserve(r)) {
        r->nomem = true;
        return;
    }
    park_events(r, s->at[0]);
    park_flows(r, dt_network_park(r->net, r->e->flows[1]), s->at[1]);
    r->until_ns = until;
    run_parts(r, advance, s->at[0], s->at[1]);
    r->until_ns = INT64_MAX;
    r->e->n_windows++;
}
