/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Entrain's assignment: samples to replicas, to microbatches of equal encoder load, and pairs of those.
 *
 * Published are the two sorts of the first step (falling by the load of the encoder, each sample to the replica with the
 * least load of the LLM), the division of a replica's samples by the load of the LLM, the list schedule of both parts by the
 * load of the encoder, and the pairing.  Ours, where the text leaves it open: K_eff rounds down, the two parts are divided
 * at the median, the middle one of an odd number of microbatches stays alone, samples that no encoder sees go to the
 * microbatch with the least load of the LLM, and every tie. */
#include "core/schedule/assign_entrain.h"

#include "base/heap.h"

#include <stdlib.h>
#include <string.h>

/* Sums of equal loads may come out a little below the multiple that they are. */
#define ALMOST 1e-9

struct keyed {
    double load;
    int64_t id;
    int i;
};

static int by_falling_load(const void *pa, const void *pb)
{
    const struct keyed *a = pa, *b = pb;

    if (a->load != b->load)
        return a->load < b->load ? 1 : -1;
    if (a->id != b->id)
        return a->id > b->id ? 1 : -1;
    return (a->i > b->i) - (a->i < b->i);
}

/* A replica or microbatch that takes samples. */
struct bin {
    double load;
    int count, at;
};

static inline bool emptier(const void *unused, struct bin a, struct bin b)
{
    (void)unused;
    if (a.load != b.load)
        return a.load < b.load;
    /* what has no load at all is dealt out, too */
    return a.load <= 0 && a.count != b.count ? a.count < b.count : a.at < b.at;
}

DT_HEAP(bins, const void *, struct bin, 2, emptier, DT_HEAP_SET)

static void bins_begin(struct bin *heap, int n)
{
    for (int b = 0; b < n; b++)
        heap[b] = (struct bin){.at = b};
}

/* The emptiest bin takes one more sample; which one it is. */
static int bins_take(struct bin *heap, int n, double load)
{
    struct bin b = heap[0];

    b.load += load;
    b.count++;
    bins_down(NULL, heap, (uint32_t)n, 0, b);
    return b.at;
}

struct dealing {
    const struct dt_assign_loads *in;
    struct dt_assign_entrained *out;
    int k;
    struct keyed *sorted; /* [n] workspace */
    struct bin *heap;     /* [max(dp, k)] */
    int *placed;  /* [n] samples of a replica in the order in which microbatches took them */
    int *list;    /* [n] the same by microbatch */
    int *first;   /* [k + 1] of each in list */
    int *mb;      /* [n] of each sample, before microbatches have their positions */
    double *load; /* [k] of the LLM, by microbatch */
};

static struct keyed key(const struct dealing *d, const double *load, int i)
{
    return (struct keyed){load[i], d->in->id ? d->in->id[i] : i, i};
}

/* ---- to replicas ---- */

static void to_replicas(struct dealing *d, int dp)
{
    int n = d->in->n;

    for (int i = 0; i < n; i++)
        d->sorted[i] = key(d, d->in->enc, i);
    qsort(d->sorted, (size_t)n, sizeof(*d->sorted), by_falling_load);
    bins_begin(d->heap, dp);
    for (int s = 0; s < n; s++) {
        int i = d->sorted[s].i, r = bins_take(d->heap, dp, d->in->llm[i]);

        d->out->replica[i] = r;
        d->out->of[r].samples++;
    }
}

/* Sorts the samples by replica, those of one by falling load of the encoder: first[r] .. first[r + 1] of list. */
static void list_replicas(struct dealing *d, int dp, int *list, int *first)
{
    for (int r = 0; r < dp; r++)
        first[r + 1] = first[r] + d->out->of[r].samples;
    for (int s = 0; s < d->in->n; s++)
        list[first[d->out->replica[d->sorted[s].i]]++] = d->sorted[s].i;
    for (int r = dp; r > 0; r--)
        first[r] = first[r - 1];
    first[0] = 0;
}

/* ---- to microbatches ---- */

/* A sample is indivisible: more microbatches than the sum of loads over the largest would only make the rest too light. */
static int positions_of(const struct dealing *d, const int *list, int n)
{
    double most = 0, sum = 0, fit;
    int k = d->k < n ? d->k : n;

    for (int s = 0; s < n; s++) {
        most = most < d->in->enc[list[s]] ? d->in->enc[list[s]] : most;
        sum += d->in->enc[list[s]];
    }
    fit = most > 0 ? sum / most * (1 + ALMOST) : k;
    return fit < 1 ? 1 : fit < k ? (int)fit : k;
}

/* Samples with the greater loads of the LLM first, so that every microbatch has small ones, too; in each half by falling
 * load of the encoder to the microbatch with the least.  What no encoder sees comes last, by the LLM's loads alone. */
static void to_microbatches(struct dealing *d, const int *list, int n, int k)
{
    int unseen = 0, at = 0, half = n / 2;

    for (int s = 0; s < n; s++)
        d->sorted[s] = key(d, d->in->llm, list[s]);
    qsort(d->sorted, (size_t)n, sizeof(*d->sorted), by_falling_load);
    for (int s = 0; s < n; s++)
        d->sorted[s].load = d->in->enc[d->sorted[s].i];
    qsort(d->sorted, (size_t)half, sizeof(*d->sorted), by_falling_load);
    qsort(d->sorted + half, (size_t)(n - half), sizeof(*d->sorted), by_falling_load);
    bins_begin(d->heap, k);
    memset(d->load, 0, (size_t)k * sizeof(*d->load));
    for (int s = 0; s < n; s++) {
        int i = d->sorted[s].i;

        if (d->in->enc[i] <= 0) {
            d->sorted[unseen++] = key(d, d->in->llm, i);
            continue;
        }
        d->placed[at++] = i;
        d->mb[i] = bins_take(d->heap, k, d->in->enc[i]);
        d->load[d->mb[i]] += d->in->llm[i];
    }
    qsort(d->sorted, (size_t)unseen, sizeof(*d->sorted), by_falling_load);
    for (int b = 0; b < k; b++)
        d->heap[b] = (struct bin){.load = d->load[b], .at = b};
    bins_make(NULL, d->heap, (uint32_t)k);
    for (int s = 0; s < unseen; s++) {
        int i = d->sorted[s].i;

        d->placed[at++] = i;
        d->mb[i] = bins_take(d->heap, k, d->in->llm[i]);
        d->load[d->mb[i]] += d->in->llm[i];
    }
}

/* ---- pairs ---- */

/* Microbatches of a replica by falling load of the LLM: the first `pairs` are heavy, the last `pairs` light. */
struct pairing {
    int pairs, middle; /* middle: the one that is left of an odd number, or -1 */
    struct keyed *by_load;
    const int **items; /* [pairs] samples of the heavy ones */
    int *n_items;
    struct dt_assign_subsets **sets;
    int *name, *of, *free_columns;
    double *cost, *alone;
};

static int pairing_alloc(struct pairing *p, struct dt_arena *arena)
{
    int n = p->pairs;

    p->items = DT_ARENA_NEW(arena, const int *, n + 1);
    p->n_items = DT_ARENA_NEW(arena, int, n + 1);
    p->sets = DT_ARENA_NEW(arena, struct dt_assign_subsets *, n + 1);
    p->name = DT_ARENA_NEW(arena, int, (size_t)n *(size_t)n + 1);
    p->cost = DT_ARENA_NEW(arena, double, (size_t)n *(size_t)n + 1);
    p->alone = DT_ARENA_NEW(arena, double, n + 1);
    p->of = DT_ARENA_NEW(arena, int, n + 1);
    p->free_columns = DT_ARENA_NEW(arena, int, n + 1);
    return p->items && p->n_items && p->sets && p->name && p->cost && p->alone && p->of &&
                   p->free_columns
               ? 0
               : -1;
}

/* What every pair would cost: half of the difference is deferred, as nearly as whole samples allow. */
static enum dt_status weigh_pairs(struct pairing *p, const struct dealing *d, int k,
                                  struct dt_arena *arena)
{
    for (int a = 0; a < p->pairs; a++) {
        double heavy = p->by_load[a].load;

        if (dt_assign_subsets_new(p->items[a], p->n_items[a], d->in->llm, arena, &p->sets[a]) !=
            DT_OK)
            return DT_ERR_NOMEM;
        p->alone[a] = heavy;
        for (int b = 0; b < p->pairs; b++) {
            double light = p->by_load[k - p->pairs + b].load;
            int at = a * p->pairs + b;
            double moved = dt_assign_subsets_near(p->sets[a], (heavy - light) / 2, &p->name[at]);

            p->cost[at] = heavy - moved > light + moved ? heavy - moved : light + moved;
        }
    }
    return DT_OK;
}

/* Rows without a column of their own take those that are left, in order, and defer nothing. */
static void defer(struct pairing *p, const struct dealing *d, int *deferred)
{
    int left = 0;

    memset(p->free_columns, 0, (size_t)p->pairs * sizeof(*p->free_columns));
    for (int a = 0; a < p->pairs; a++)
        if (p->of[a] >= 0)
            p->free_columns[p->of[a]] = 1; /* taken */
    for (int a = 0; a < p->pairs; a++) {
        if (p->of[a] >= 0) {
            *deferred += dt_assign_subsets_take(p->sets[a], p->name[a * p->pairs + p->of[a]],
                                                d->out->deferred);
            continue;
        }
        while (p->free_columns[left])
            left++;
        p->of[a] = left++;
    }
}

/* Pairs follow each other, the heaviest first: heavy 0, its light one, heavy 1, ...; the one without a partner comes last. */
static void place(const struct pairing *p, struct dealing *d, const int *list, int n, int k,
                  int *position)
{
    for (int a = 0; a < p->pairs; a++) {
        position[p->by_load[a].i] = 2 * a;
        position[p->by_load[k - p->pairs + p->of[a]].i] = 2 * a + 1;
    }
    if (p->middle >= 0)
        position[p->middle] = k - 1;
    for (int s = 0; s < n; s++)
        d->out->position[list[s]] = position[d->mb[list[s]]];
}

/* first[b] .. first[b + 1] of list: samples of microbatch b, in the order in which it took them. */
static void list_microbatches(struct dealing *d, int n, int k)
{
    memset(d->first, 0, ((size_t)k + 1) * sizeof(*d->first));
    for (int s = 0; s < n; s++)
        d->first[d->mb[d->placed[s]] + 1]++;
    for (int b = 0; b < k; b++)
        d->first[b + 1] += d->first[b];
    for (int s = 0; s < n; s++)
        d->list[d->first[d->mb[d->placed[s]]]++] = d->placed[s];
    for (int b = k; b > 0; b--)
        d->first[b] = d->first[b - 1];
    d->first[0] = 0;
}

static enum dt_status pair_up(struct dealing *d, const int *list, int n,
                              struct dt_assign_replica *of, struct dt_arena *arena)
{
    int k = of->positions;
    struct pairing p = {.pairs = k / 2, .middle = -1};
    int *position = DT_ARENA_NEW(arena, int, k + 1);
    enum dt_status st;

    p.by_load = DT_ARENA_NEW(arena, struct keyed, k + 1);
    if (!position || !p.by_load || pairing_alloc(&p, arena) != 0)
        return DT_ERR_NOMEM;
    for (int b = 0; b < k; b++)
        p.by_load[b] = (struct keyed){d->load[b], b, b};
    qsort(p.by_load, (size_t)k, sizeof(*p.by_load), by_falling_load);
    if (k % 2)
        p.middle = p.by_load[k / 2].i;
    list_microbatches(d, n, k);
    for (int a = 0; a < p.pairs; a++) {
        int b = p.by_load[a].i;

        p.items[a] = d->list + d->first[b];
        p.n_items[a] = d->first[b + 1] - d->first[b];
    }
    st = weigh_pairs(&p, d, k, arena);
    if (st == DT_OK)
        st = dt_assign_bottleneck(p.pairs, p.cost, p.alone, k % 2 ? p.by_load[k / 2].load : 0,
                                  arena, p.of, &of->most);
    if (st != DT_OK)
        return st;
    defer(&p, d, &of->deferred);
    place(&p, d, list, n, k, position);
    return DT_OK;
}

/* ---- all of it ---- */

static int dealing_alloc(struct dealing *d, int n, int dp, struct dt_arena *arena)
{
    int bins = dp > d->k ? dp : d->k;

    d->sorted = DT_ARENA_NEW(arena, struct keyed, n);
    d->heap = DT_ARENA_NEW(arena, struct bin, bins);
    d->placed = DT_ARENA_NEW(arena, int, n);
    d->list = DT_ARENA_NEW(arena, int, n);
    d->first = DT_ARENA_NEW(arena, int, bins + 1);
    d->mb = DT_ARENA_NEW(arena, int, n);
    d->load = DT_ARENA_NEW(arena, double, bins);
    return d->sorted && d->heap && d->placed && d->list && d->first && d->mb && d->load ? 0 : -1;
}

static enum dt_status one_replica(struct dealing *d, const int *list, struct dt_assign_replica *of)
{
    struct dt_arena scratch = {0};
    enum dt_status st;

    of->positions = positions_of(d, list, of->samples);
    to_microbatches(d, list, of->samples, of->positions);
    st = pair_up(d, list, of->samples, of, &scratch);
    dt_arena_free(&scratch);
    return st;
}

enum dt_status dt_assign_entrain(const struct dt_assign_loads *in, int dp, int k,
                                 struct dt_arena *arena, struct dt_assign_entrained *out)
{
    struct dt_arena scratch = {0};
    struct dealing d = {.in = in, .out = out, .k = k};
    int *list, *first;
    enum dt_status st = DT_OK;

    if (in->n < 1 || dp < 1 || k < 1)
        return DT_ERR_INTERNAL;
    out->replica = DT_ARENA_NEW(arena, int, in->n);
    out->position = DT_ARENA_NEW(arena, int, in->n);
    out->deferred = DT_ARENA_NEW(arena, bool, in->n);
    out->of = DT_ARENA_NEW(arena, struct dt_assign_replica, dp);
    list = DT_ARENA_NEW(&scratch, int, in->n);
    first = DT_ARENA_NEW(&scratch, int, dp + 1);
    if (!out->replica || !out->position || !out->deferred || !out->of || !list || !first ||
        dealing_alloc(&d, in->n, dp, &scratch) != 0)
        st = DT_ERR_NOMEM;
    if (st == DT_OK) {
        to_replicas(&d, dp);
        list_replicas(&d, dp, list, first);
    }
    for (int r = 0; r < dp && st == DT_OK; r++)
        if (out->of[r].samples > 0)
            st = one_replica(&d, list + first[r], &out->of[r]);
    dt_arena_free(&scratch);
    return st;
}
