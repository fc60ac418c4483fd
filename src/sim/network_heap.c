/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * The order in which flows finish: a 4-ary min-heap whose entries carry their keys, so that a
 * comparison looks at no flow, and before it a short sorted list of the flows that finish next.
 * Whoever follows them through memory learns from that list what to fetch ahead. */
#include "sim/network_internal.h"

#include "base/heap.h"

#include <string.h>

#define IN_SOON 0xfffffffeu /* .heap_at of a flow in the list */
enum { SOON_FEW = 8, SOON_FILL = 24, SOON_MOST = 32 };

static inline bool before(struct dt_network_finish a, struct dt_network_finish b)
{
    if (a.ns != b.ns)
        return a.ns < b.ns;
    return a.tag != b.tag ? a.tag < b.tag : a.flow < b.flow;
}

static inline void set(struct dt_network *n, uint32_t at, struct dt_network_finish e)
{
    n->heap[at] = e;
    n->flows[e.flow].heap_at = at;
}

#define BEFORE(n, a, b) before(a, b)
#define SET(n, h, i, e) set(n, i, e)
DT_HEAP(finishes, struct dt_network *, struct dt_network_finish, 4, BEFORE, SET)

static void place(struct dt_network *n, uint32_t at, struct dt_network_finish e)
{
    finishes_down(n, n->heap, n->heap_n, finishes_up(n, n->heap, at, e), e);
}

static void push(struct dt_network *n, struct dt_network_finish e)
{
    finishes_push(n, n->heap, n->heap_n++, e);
}

static void heap_remove(struct dt_network *n, uint32_t at)
{
    struct dt_network_finish last = n->heap[--n->heap_n];

    if (at < n->heap_n)
        place(n, at, last);
}

/* ---- the list: soon[soon_from .. +soon_n), no later than anything in the heap ---- */

static void soon_insert(struct dt_network *n, struct dt_network_finish e)
{
    if (n->soon_from + n->soon_n == NET_SOON) {
        memmove(n->soon, n->soon + n->soon_from, n->soon_n * sizeof *n->soon);
        n->soon_from = 0;
    }
    struct dt_network_finish *v = n->soon + n->soon_from;
    uint32_t at = n->soon_n++;
    for (; at > 0 && before(e, v[at - 1]); at--)
        v[at] = v[at - 1];
    v[at] = e;
    n->flows[e.flow].heap_at = IN_SOON;
    if (n->soon_n > SOON_MOST)
        push(n, v[--n->soon_n]);
}

static void soon_remove(struct dt_network *n, uint32_t flow)
{
    struct dt_network_finish *v = n->soon + n->soon_from;
    uint32_t at = 0;

    n->soon_n--;
    if (v[0].flow == flow) {
        n->soon_from++;
        return;
    }
    while (v[at].flow != flow)
        at++;
    memmove(v + at, v + at + 1, (n->soon_n - at) * sizeof *v);
}

static void put(struct dt_network *n, struct dt_network_finish e)
{
    if (n->soon_n > 0 && before(e, n->soon[n->soon_from + n->soon_n - 1]))
        soon_insert(n, e);
    else
        push(n, e);
}

static void refill(struct dt_network *n)
{
    while (n->soon_n < SOON_FILL && n->heap_n > 0) {
        struct dt_network_finish e = n->heap[0];
        heap_remove(n, 0);
        soon_insert(n, e);
    }
}

void dt_network_finish_set(struct dt_network *n, uint32_t flow, int64_t finish_ns)
{
    uint32_t at = n->flows[flow].heap_at;
    struct dt_network_finish e = {finish_ns, n->flows[flow].tag, flow};

    if (at < n->heap_n && !(n->soon_n > 0 && before(e, n->soon[n->soon_from + n->soon_n - 1]))) {
        place(n, at, e);
        return;
    }
    dt_network_finish_remove(n, flow);
    put(n, e);
}

void dt_network_finish_remove(struct dt_network *n, uint32_t flow)
{
    uint32_t at = n->flows[flow].heap_at;

    if (at == IN_SOON)
        soon_remove(n, flow);
    else if (at != DT_NONE)
        heap_remove(n, at);
    n->flows[flow].heap_at = DT_NONE;
}

const struct dt_network_finish *dt_network_finish_first(struct dt_network *n)
{
    if (n->soon_n < SOON_FEW)
        refill(n);
    return n->soon_n > 0 ? &n->soon[n->soon_from] : NULL;
}

uint32_t dt_network_ahead(const struct dt_network *n, uint32_t k)
{
    return k < n->soon_n ? n->soon[n->soon_from + k].tag : DT_NONE;
}

uint32_t dt_network_in_flight(const struct dt_network *n)
{
    return n->soon_n + n->heap_n;
}

uint32_t dt_network_park(struct dt_network *n, struct dt_network_finish *out)
{
    uint32_t count = dt_network_in_flight(n);

    memcpy(out, n->soon + n->soon_from, n->soon_n * sizeof *out);
    memcpy(out + n->soon_n, n->heap, n->heap_n * sizeof *out);
    for (uint32_t i = 0; i < count; i++)
        n->flows[out[i].flow].heap_at = DT_NONE;
    n->soon_n = n->heap_n = 0;
    return count;
}

void dt_network_unpark(struct dt_network *n, const struct dt_network_finish *f)
{
    put(n, *f);
}
