/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * The order in which flows finish: a 4-ary min-heap whose entries carry their keys, so that a
 * comparison looks at no flow. */
#include "sim/network_internal.h"

static inline bool before(struct dt_net_finish a, struct dt_net_finish b)
{
    if (a.ns != b.ns)
        return a.ns < b.ns;
    return a.tag != b.tag ? a.tag < b.tag : a.flow < b.flow;
}

static inline void set(struct dt_network *n, uint32_t at, struct dt_net_finish e)
{
    n->heap[at] = e;
    n->flows[e.flow].heap_at = at;
}

static void place(struct dt_network *n, uint32_t at, struct dt_net_finish e)
{
    struct dt_net_finish *h = n->heap;

    while (at > 0 && before(e, h[(at - 1) / 4])) {
        set(n, at, h[(at - 1) / 4]);
        at = (at - 1) / 4;
    }
    for (;;) {
        uint32_t c = 4 * at + 1, best = c, last = c + 4 < n->heap_n ? c + 4 : n->heap_n;
        if (c >= n->heap_n)
            break;
        for (uint32_t k = c + 1; k < last; k++)
            best = before(h[k], h[best]) ? k : best;
        if (!before(h[best], e))
            break;
        set(n, at, h[best]);
        at = best;
    }
    set(n, at, e);
}

void dt_net_heap_update(struct dt_network *n, uint32_t flow, int64_t finish_ns)
{
    uint32_t at = n->flows[flow].heap_at;
    struct dt_net_finish e = {finish_ns, n->flows[flow].tag, flow};

    place(n, at == DT_NONE ? n->heap_n++ : at, e);
}

void dt_net_heap_remove(struct dt_network *n, uint32_t flow)
{
    uint32_t at = n->flows[flow].heap_at;
    struct dt_net_finish last = n->heap[--n->heap_n];

    n->flows[flow].heap_at = DT_NONE;
    if (last.flow != flow)
        place(n, at, last);
}
