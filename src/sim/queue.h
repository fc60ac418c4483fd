/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * The event queue: a 4-ary min-heap of 16-byte events under one total order (time, priority,
 * sequence).
 *
 * Four children of 16 bytes fill a cache line, so a level costs one miss.  An event that is taken
 * leaves a hole at the root, which the next put fills: "an op ends, its successor begins" costs one
 * sift instead of two. The storage belongs to the caller of dt_sim_queue_init; nothing here allocates.
 */
#ifndef DT_SIM_QUEUE_H
#define DT_SIM_QUEUE_H

#include "base/heap.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* What happens first at one instant.  Transfers end (rank 0) outside this queue, in the network,
 * and ops whose end is known beforehand (rank 1) do without an event. */
enum dt_sim_event_priority {
    DT_EVENT_TRANSFER_END, /* bandwidth is given back ... */
    DT_EVENT_OP_END,       /* ... then ops end and their successors begin ... */
    DT_EVENT_FLOW_START,   /* ... then new transfers ask for bandwidth */
};

struct dt_sim_event {
    int64_t time_ns;
    uint64_t order; /* priority << 32 | sequence; the sequence is the op's index in the program */
};

static inline struct dt_sim_event
dt_sim_event_make(int64_t time_ns, enum dt_sim_event_priority priority, uint32_t sequence)
{
    struct dt_sim_event e = {time_ns, (uint64_t)priority << 32 | sequence};
    return e;
}
static inline uint32_t dt_sim_event_sequence(struct dt_sim_event e)
{
    return (uint32_t)e.order;
}
static inline enum dt_sim_event_priority dt_sim_event_priority(struct dt_sim_event e)
{
    return (enum dt_sim_event_priority)(e.order >> 32);
}
/* THE order of events.  Strict and total as long as no (priority, sequence) is queued twice. */
static inline bool dt_sim_event_before(struct dt_sim_event a, struct dt_sim_event b)
{
    /* One wide comparison compiles to cmp/sbb without a branch that depends on the data.  Times are
     * never negative. */
    unsigned __int128 x = (unsigned __int128)(uint64_t)a.time_ns << 64 | a.order;
    unsigned __int128 y = (unsigned __int128)(uint64_t)b.time_ns << 64 | b.order;
    return x < y;
}

struct dt_sim_queue {
    struct dt_sim_event *heap;
    uint32_t n; /* events, the hole included */
    bool hole;  /* heap[0] was taken */
};

static inline void dt_sim_queue_init(struct dt_sim_queue *q, struct dt_sim_event *storage)
{
    q->heap = storage;
    q->n = 0;
    q->hole = false;
}
static inline bool dt_sim_queue_empty(const struct dt_sim_queue *q)
{
    return q->n == (uint32_t)q->hole;
}

#define DT_SIM_EVENT_BEFORE(ctx, a, b) dt_sim_event_before(a, b)
DT_HEAP(dt_sim_events, const void *, struct dt_sim_event, 4, DT_SIM_EVENT_BEFORE, DT_HEAP_SET)

static inline void dt_sim_queue_put(struct dt_sim_queue *q, struct dt_sim_event e)
{
    if (q->hole) {
        q->hole = false;
        dt_sim_events_down(NULL, q->heap, q->n, 0, e);
        return;
    }
    dt_sim_events_push(NULL, q->heap, q->n++, e);
}

static inline void dt_sim_queue_fill_hole(struct dt_sim_queue *q)
{
    if (!q->hole)
        return;
    q->hole = false;
    struct dt_sim_event last = q->heap[--q->n];
    if (q->n > 0)
        dt_sim_events_down(NULL, q->heap, q->n, 0, last);
}

/* Makes a heap of the events that stand in heap[0 .. n) in any order. */
static inline void dt_sim_queue_order(struct dt_sim_queue *q)
{
    dt_sim_events_make(NULL, q->heap, q->n);
}

/* The earliest event; the queue must not be empty. */
static inline struct dt_sim_event dt_sim_queue_first(struct dt_sim_queue *q)
{
    dt_sim_queue_fill_hole(q);
    return q->heap[0];
}
static inline struct dt_sim_event dt_sim_queue_take(struct dt_sim_queue *q)
{
    dt_sim_queue_fill_hole(q);
    q->hole = true;
    return q->heap[0];
}

#endif
