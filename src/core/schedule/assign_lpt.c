/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Longest processing time first (Graham 1969): items in order of falling cost, each into the bin
 * with the least load.  A binary heap of bins ordered by (load, bin) makes ties go to the lowest
 * bin. */
#include "core/schedule/assign_build.h"

#include "base/heap.h"
#include "base/mem.h"

#include <stdlib.h>

static inline bool bin_before(const double *load, int a, int b)
{
    return load[a] < load[b] || (load[a] == load[b] && a < b);
}

DT_HEAP(bins, const double *, int, 2, bin_before, DT_HEAP_SET)

void dt_assign_lpt_sorted(const struct dt_assign_keyed *items, int n, int k, int cap, double *load,
                          int *heap, int *fill, int *bin)
{
    int live = k;
    for (int b = 0; b < k; b++) {
        heap[b] = b;
        fill[b] = 0;
    }
    /* Callers may start from unequal loads; a heap of equal ones is already in order. */
    bins_make(load, heap, (uint32_t)live);
    for (int i = 0; i < n; i++) {
        int b = heap[0];
        bin[i] = b;
        load[b] += items[i].cost;
        if (++fill[b] == cap) /* a full bin leaves */
            heap[0] = heap[--live];
        if (live)
            bins_down(load, heap, (uint32_t)live, 0, heap[0]);
    }
}

static int by_falling_cost(const void *pa, const void *pb)
{
    const struct dt_assign_keyed *a = pa, *b = pb;
    if (a->cost != b->cost)
        return a->cost < b->cost ? 1 : -1;
    return (a->index > b->index) - (a->index < b->index);
}

void dt_assign_keyed_sort(struct dt_assign_keyed *items, int n)
{
    qsort(items, (size_t)n, sizeof(*items), by_falling_cost);
}

enum dt_status dt_assign_lpt(const double *cost, int n, int k, bool equal, int *bin,
                             double *max_load)
{
    if (n < 0 || k < 1)
        return DT_ERR_INTERNAL;
    enum dt_status st = DT_OK;
    struct dt_assign_keyed *items = dt_calloc((size_t)n + 1, sizeof(*items));
    double *load = dt_calloc((size_t)k, sizeof(*load));
    int *work = dt_calloc(2 * (size_t)k + (size_t)n, sizeof(*work));
    if (!items || !load || !work) {
        st = DT_ERR_NOMEM;
        goto done;
    }
    for (int i = 0; i < n; i++)
        items[i] = (struct dt_assign_keyed){cost[i], i};
    dt_assign_keyed_sort(items, n);
    int *sorted_bin = work + 2 * k;
    /* At most ceil(n/k) to a bin always leaves room for the rest. */
    dt_assign_lpt_sorted(items, n, k, equal ? (n + k - 1) / k : n + 1, load, work, work + k,
                         sorted_bin);
    double worst = 0;
    for (int i = 0; i < n; i++)
        bin[items[i].index] = sorted_bin[i];
    for (int b = 0; b < k; b++)
        worst = load[b] > worst ? load[b] : worst;
    *max_load = worst;
done:
    dt_free(items);
    dt_free(load);
    dt_free(work);
    return st;
}
