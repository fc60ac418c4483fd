/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Which samples meet in a slot, who of a slot takes which, and the order of the slots.
 *
 * Intra-microbatch reordering (DistTrain section 5, published: sort by cost, falling; each to the
 * least-loaded DP group).  Samples go, by LPT with equal cardinality, first to the broker groups,
 * whose pipelines never meet before the gradients do; then, within a group, to the slots, because
 * the group's encoder and generator replicas work slot by slot and the fullest slot holds up all of
 * them; then to the LLM replicas.  At last each module's replicas share the slot's samples by LPT
 * on that module's own cost. */
#include "core/schedule/assign_build.h"

#include "base/mem.h"

#include <stdlib.h>
#include <string.h>

static double own_cost(const struct dt_assign_module *m, int i)
{
    return m->fwd[i] + m->bwd[i];
}

/* ---- dealing samples to slots ---- */

struct dealer { /* workspace of one dt_assign_deal */
    struct dt_assign_keyed *items, *group, *slot, *by_age;
    int *bin, *heap, *fill, *place;
    double *load;
};

static enum dt_status dealer_init(const struct dt_assign_job *j, struct dealer *d)
{
    int bins = j->batch; /* groups, slots and LLM replicas are each no more */
    d->items = DT_ARENA_NEW(j->scratch, struct dt_assign_keyed, j->batch);
    d->group = DT_ARENA_NEW(j->scratch, struct dt_assign_keyed, j->batch);
    d->slot = DT_ARENA_NEW(j->scratch, struct dt_assign_keyed, j->batch);
    d->by_age = DT_ARENA_NEW(j->scratch, struct dt_assign_keyed, j->slots);
    d->bin = DT_ARENA_NEW(j->scratch, int, j->batch);
    d->heap = DT_ARENA_NEW(j->scratch, int, bins);
    d->fill = DT_ARENA_NEW(j->scratch, int, bins);
    d->place = DT_ARENA_NEW(j->scratch, int, bins);
    d->load = DT_ARENA_NEW(j->scratch, double, bins);
    return d->items && d->group && d->slot && d->by_age && d->bin && d->heap && d->fill &&
                   d->place && d->load
               ? DT_OK
               : DT_ERR_NOMEM;
}

/* LPT of n sorted items onto k bins of n/k each; out[] is bin-major, each bin in falling order. */
static void deal_equal(struct dealer *d, const struct dt_assign_keyed *items, int n, int k,
                       struct dt_assign_keyed *out)
{
    int cap = n / k;
    memset(d->load, 0, (size_t)k * sizeof(*d->load));
    memset(d->place, 0, (size_t)k * sizeof(*d->place));
    dt_assign_lpt_sorted(items, n, k, cap, d->load, d->heap, d->fill, d->bin);
    for (int i = 0; i < n; i++)
        out[d->bin[i] * cap + d->place[d->bin[i]]++] = items[i];
}

static int rising(const void *a, const void *b)
{
    int x = *(const int *)a, y = *(const int *)b;
    return (x > y) - (x < y);
}

/* One group: its samples (falling) to slots, slots by their oldest sample so that no order but the
 * given one is implied, each slot's samples to the LLM replicas, which keep their running loads. */
static void deal_group(struct dt_assign_job *j, struct dealer *d, int g,
                       const struct dt_assign_keyed *items)
{
    const int n = j->slots, size = j->group_size, m = j->plan->policy.microbatch, reps = size / m;
    deal_equal(d, items, n * size, n, d->slot);
    for (int k = 0; k < n; k++) {
        int oldest = d->slot[k * size].index;
        for (int i = 1; i < size; i++)
            if (d->slot[k * size + i].index < oldest)
                oldest = d->slot[k * size + i].index;
        d->by_age[k] = (struct dt_assign_keyed){-(double)oldest, k};
    }
    dt_assign_keyed_sort(d->by_age, n);
    memset(d->load, 0, (size_t)reps * sizeof(*d->load));
    for (int k = 0; k < n; k++) {
        const struct dt_assign_keyed *slot = d->slot + d->by_age[k].index * size;
        int *at = j->at + k * j->slot_size + g * size;
        dt_assign_lpt_sorted(slot, size, reps, m, d->load, d->heap, d->fill, d->bin);
        memset(d->place, 0, (size_t)reps * sizeof(*d->place));
        for (int i = 0; i < size; i++)
            at[d->bin[i] * m + d->place[d->bin[i]]++] = slot[i].index;
        for (int r = 0; m > 1 && r < reps; r++)
            qsort(at + r * m, (size_t)m, sizeof(*at), rising);
    }
}

enum dt_status dt_assign_deal(struct dt_assign_job *j, struct dt_error *err)
{
    struct dealer d;
    j->at = DT_ARENA_NEW(j->scratch, int, j->batch);
    if (!j->at)
        return dt_error_nomem(err, "assignment");
    for (int i = 0; i < j->batch; i++)
        j->at[i] = i;
    if (!j->plan->policy.intra_reorder)
        return DT_OK;
    if (dealer_init(j, &d) != DT_OK)
        return dt_error_nomem(err, "assignment");
    for (int i = 0; i < j->batch; i++) {
        /* Time on the pipeline's path: a module's replicas work on a slot side by side. */
        double cost = 0;
        for (int m = 0; m < j->model->n_modules; m++)
            if (m != j->model->llm)
                cost += own_cost(&j->m[m], i) / j->m[m].dp;
        d.items[i] = (struct dt_assign_keyed){cost, i};
    }
    dt_assign_keyed_sort(d.items, j->batch);
    deal_equal(&d, d.items, j->batch, j->groups, d.group);
    for (int g = 0; g < j->groups; g++)
        deal_group(j, &d, g, d.group + g * (j->batch / j->groups));
    return DT_OK;
}

/* ---- sharing a slot among the replicas of a module ---- */

static void share_evenly(const struct dt_assign_job *j, int dp, int *replica)
{
    for (int k = 0; k < j->slots; k++)
        for (int r = 0; r < dp; r++) {
            int64_t from = (int64_t)r * j->slot_size / dp;
            int64_t to = (int64_t)(r + 1) * j->slot_size / dp;
            for (int64_t p = from; p < to; p++)
                replica[k * j->slot_size + p] = r;
        }
}

/* Every (slot, group) by LPT on the module's own cost; any number of samples to a replica. */
static enum dt_status share_by_cost(struct dt_assign_job *j, int m, int *replica)
{
    const struct dt_assign_module *am = &j->m[m];
    const int size = j->group_size;
    struct dt_assign_keyed *items = DT_ARENA_NEW(j->scratch, struct dt_assign_keyed, size);
    int *ints = DT_ARENA_NEW(j->scratch, int, 2 * am->share + size);
    double *load = DT_ARENA_NEW(j->scratch, double, am->share);
    if (!items || !ints || !load)
        return DT_ERR_NOMEM;
    int *heap = ints, *fill = ints + am->share, *bin = ints + 2 * am->share;
    for (int base = 0; base < j->batch; base += size) {
        int g = base % j->slot_size / size;
        for (int i = 0; i < size; i++)
            items[i] = (struct dt_assign_keyed){own_cost(am, j->at[base + i]), i};
        dt_assign_keyed_sort(items, size);
        memset(load, 0, (size_t)am->share * sizeof(*load));
        dt_assign_lpt_sorted(items, size, am->share, size + 1, load, heap, fill, bin);
        for (int i = 0; i < size; i++)
            replica[base + items[i].index] = g * am->share + bin[i];
    }
    return DT_OK;
}

enum dt_status dt_assign_share(struct dt_assign_job *j, struct dt_error *err)
{
    j->replica = DT_ARENA_NEW(j->scratch, int, (size_t)j->model->n_modules *(size_t)j->batch);
    if (!j->replica)
        return dt_error_nomem(err, "assignment");
    for (int m = 0; m < j->model->n_modules; m++) {
        int *replica = j->replica + (size_t)m * j->batch;
        if (j->m[m].spread || j->m[m].window > 0)
            continue; /* dealt in turn when written */
        if (m == j->model->llm || !j->plan->policy.intra_reorder)
            share_evenly(j, j->m[m].dp, replica); /* the LLM: M to each, exactly */
        else if (share_by_cost(j, m, replica) != DT_OK)
            return dt_error_nomem(err, "assignment");
    }
    return DT_OK;
}
