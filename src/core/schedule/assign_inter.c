/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Inter-microbatch order (DistTrain section 5, published: smallest microbatch first and the
 * smallest last, the others inside the intervals of the 1F1B timeline).
 *
 *  stage 0   F0 F1 F2 F3 ....... B0 F4 .. B1 F5 . B2 F6 B3 B4 B5 B6
 *  stage 1      F0 F1 F2 ... B0 F3 B1 ...     ^
 *  stage p-1          F0 B0 F1 B1 ...         interval 2: what B2 waits for leaves room for one
 * forward
 *
 * 1F1B is walked as a wave.  Step i (from -(p-1) to n-1) is, on stage s, the forward of position
 * i + p-1-s and the backward of position i; with stages taken last to first, every input is either
 * of the step before (forward from stage s-1) or just made (backward from stage s+1).  The wave
 * thus costs O(p) a step, and step i asks stage 0 for position i + p-1 only after the interval
 * before B_i is known. */
#include "core/schedule/assign_build.h"

#include "base/mem.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_STAGES = DT_MAX_MODULES * DT_MAX_VSTAGES };

struct wave {
    const struct dt_assign_chain *c;
    const int *order;
    double *end;  /* [p] when the stage is free */
    double *fend; /* [p] end of the stage's latest forward */
    double back;  /* end of stage 1's backward of this step */
};

static inline double later(double a, double b)
{
    return a > b ? a : b;
}

/* Step i on stages p-1 .. 1. */
static inline void wave_behind(struct wave *w, int i)
{
    const int p = w->c->p, n = w->c->n;
    double back = 0;
    for (int s = p - 1; s >= 1; s--) {
        int q = i + p - 1 - s;
        double t = w->end[s];
        if (q >= 0 && q < n) {
            t = later(t, w->fend[s - 1]) + w->c->fwd[(size_t)s * n + w->order[q]];
            w->fend[s] = t;
        }
        if (i >= 0) {
            t = later(t, back) + w->c->bwd[(size_t)s * n + w->order[i]];
            back = t;
        }
        w->end[s] = t;
    }
    w->back = back;
}

/* Step i on stage 0. */
static inline void wave_front(struct wave *w, int i)
{
    const int p = w->c->p, n = w->c->n, q = i + p - 1;
    double t = w->end[0];
    if (q < n) {
        t += w->c->fwd[w->order[q]];
        w->fend[0] = t;
    }
    if (i >= 0)
        t = later(t, w->back) + w->c->bwd[w->order[i]];
    w->end[0] = t;
}

static double wave_run(struct wave *w)
{
    const int p = w->c->p;
    memset(w->end, 0, (size_t)p * sizeof(*w->end));
    memset(w->fend, 0, (size_t)p * sizeof(*w->fend));
    for (int i = 1 - p; i < w->c->n; i++) {
        wave_behind(w, i);
        wave_front(w, i);
    }
    double last = 0;
    for (int s = 0; s < p; s++)
        last = later(last, w->end[s]);
    return last;
}

double dt_assign_chain_makespan(const struct dt_assign_chain *c, const int *order)
{
    double room[2 * MAX_STAGES];
    if (c->p < 1 || c->p > MAX_STAGES)
        return NAN;
    struct wave w = {c, order, room, room + c->p, 0};
    return wave_run(&w);
}

/* ---- choosing ---- */

struct chooser { /* candidates by rising forward time on stage 0; alive[] chains past taken ones */
    int n;
    const struct dt_assign_keyed *by_fwd; /* [n] */
    int *below;   /* [n+1] union-find: slot k+1 -> nearest candidate <= k left, 0 = none */
    int smallest; /* first that may be left */
};

static int find_below(struct chooser *c, int k)
{
    int root = k;
    while (c->below[root] != root)
        root = c->below[root];
    while (c->below[k] != root) {
        int next = c->below[k];
        c->below[k] = root;
        k = next;
    }
    return root;
}

/* The largest candidate left that fits `room`, else the smallest left. */
static int choose(struct chooser *c, double room)
{
    int lo = 0, hi = c->n; /* number of candidates with cost <= room */
    while (lo < hi) {
        int mid = (lo + hi) / 2;
        if (c->by_fwd[mid].cost <= room)
            lo = mid + 1;
        else
            hi = mid;
    }
    int k = find_below(c, lo);
    if (k == 0) {
        while (find_below(c, c->smallest + 1) != c->smallest + 1)
            c->smallest++;
        k = c->smallest + 1;
    }
    c->below[k] = k - 1;
    return c->by_fwd[k - 1].index;
}

static int by_rising_cost(const void *pa, const void *pb)
{
    const struct dt_assign_keyed *a = pa, *b = pb;
    if (a->cost != b->cost)
        return a->cost > b->cost ? 1 : -1;
    return (a->index > b->index) - (a->index < b->index);
}

static double size_of(const struct dt_assign_chain *c, int mb)
{
    double t = 0;
    for (int s = 0; s < c->p; s++)
        t += c->fwd[(size_t)s * c->n + mb] + c->bwd[(size_t)s * c->n + mb];
    return t;
}

/* Positions 1 .. p-1 stand before B_0: between them they fill the time that the first microbatch is
 * away from stage 0, in equal parts of what is left. */
static int fill_first_interval(const struct dt_assign_chain *c, struct chooser *ch, int middle,
                               int *order)
{
    double room = size_of(c, order[0]) - c->fwd[order[0]] - c->bwd[order[0]];
    int q = 1;
    for (; q <= middle && q < c->p; q++) {
        int mb = choose(ch, room / (c->p - q));
        order[q] = mb;
        room -= c->fwd[mb];
    }
    return q;
}

/* by_size[]: all microbatches by rising size.  Fills order[]; returns its makespan. */
static double build_order(struct wave *w, const struct dt_assign_keyed *by_size,
                          struct dt_assign_keyed *by_fwd, int *below, int *order)
{
    const struct dt_assign_chain *c = w->c;
    const int p = c->p, n = c->n;
    int rear = p - 1 < n - 1 ? p - 1 : n - 1, middle = n - 1 - rear;
    order[0] = by_size[0].index;
    for (int r = 0; r < rear; r++) /* the p-1 next smallest close the batch, falling */
        order[n - 1 - r] = by_size[1 + r].index;
    for (int k = 0; k < middle; k++) {
        int mb = by_size[1 + rear + k].index;
        by_fwd[k] = (struct dt_assign_keyed){c->fwd[mb], mb};
    }
    qsort(by_fwd, (size_t)middle, sizeof(*by_fwd), by_rising_cost);
    for (int k = 0; k <= middle; k++)
        below[k] = k;
    struct chooser ch = {middle, by_fwd, below, 0};
    int next = fill_first_interval(c, &ch, middle, order);

    memset(w->end, 0, (size_t)p * sizeof(*w->end));
    memset(w->fend, 0, (size_t)p * sizeof(*w->fend));
    w->order = order;
    for (int i = 1 - p; i < n; i++) {
        wave_behind(w, i);
        if (i + p - 1 == next && next <= middle)
            order[next++] = choose(&ch, w->back - w->end[0]);
        wave_front(w, i);
    }
    double last = 0;
    for (int s = 0; s < p; s++)
        last = later(last, w->end[s]);
    return last;
}

/* The middle by rising size: neighbours then differ least, which helps where encoder and generator
 * times of a microbatch do not go together (ours; not in the paper).  order[] has its ends set. */
static void rise_middle(const struct dt_assign_chain *c, const struct dt_assign_keyed *by_size,
                        int *order)
{
    int rear = c->p - 1 < c->n - 1 ? c->p - 1 : c->n - 1;
    for (int q = 1; q < c->n - rear; q++)
        order[q] = by_size[rear + q].index;
}

enum dt_status dt_assign_inter_order(const struct dt_assign_chain *c, int *order, double *before,
                                     double *after)
{
    if (c->p < 1 || c->p > MAX_STAGES || c->n < 1)
        return DT_ERR_INTERNAL;
    enum dt_status st = DT_OK;
    size_t n = (size_t)c->n;
    struct dt_assign_keyed *keyed = dt_calloc(2 * n, sizeof(*keyed));
    int *ints = dt_calloc(4 * n + 1, sizeof(*ints));
    double *room = dt_calloc(2 * (size_t)c->p, sizeof(*room));
    if (!keyed || !ints || !room) {
        st = DT_ERR_NOMEM;
        goto done;
    }
    int *best = ints, *made = ints + n, *rising = ints + 2 * n;
    for (int k = 0; k < c->n; k++) {
        best[k] = k;
        keyed[k] = (struct dt_assign_keyed){size_of(c, k), k};
    }
    qsort(keyed, n, sizeof(*keyed), by_rising_cost);
    struct wave w = {c, best, room, room + c->p, 0};
    const double t_given = wave_run(&w);
    double t_best = t_given;
    double t = build_order(&w, keyed, keyed + n, ints + 3 * n, made);
    memcpy(rising, made, n * sizeof(*rising));
    rise_middle(c, keyed, rising);
    if (t < t_best) {
        t_best = t;
        best = made;
    }
    w.order = rising;
    t = wave_run(&w);
    if (t < t_best) {
        t_best = t;
        best = rising;
    }
    memcpy(order, best, n * sizeof(*order));
    *before = t_given;
    *after = t_best;
done:
    dt_free(keyed);
    dt_free(ints);
    dt_free(room);
    return st;
}
