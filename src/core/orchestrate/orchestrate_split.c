/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Splits that give time for memory.
 *
 * Blocks are divided so that the slowest stage is as fast as it can be, which is about as many for every stage.  But the first
 * stages hold more microbatches in flight than the last, so that memory binds there alone, and the plan is given up, or
 * recomputes more in all of its stages.  Here such a plan gets the split with the fastest slowest stage of those that fit:
 * fewer blocks for the stages that hold much, more for the others.
 *
 * What a stage holds grows with every block, so a split is filled from its end: each part takes as many blocks as time and memory
 * allow.  Of several chunks of a stage each is taken to be as long as the one that is asked about. */
#include "base/mem.h"
#include "core/orchestrate/orchestrate_internal.h"

#include <math.h>
#include <string.h>

enum {
    PART_BLOCKS = 3 /* with fewer one block more costs more than recomputing all of them does */
};
#define CLOSE 1e-9 /* of the slowest part, relative */

struct held {     /* by a stage, as in struct dt_memory */
    double bytes; /* without what stages of one GPU need once */
    double once, away, beside;
};

struct known {
    int stage; /* 1 + the stage; 0: none */
    struct held held;
};

struct shaping {
    struct dt_orch_table *t;
    struct dt_plan *p;
    int m, blocks, parts;
    bool alike; /* the blocks between the first and the last, as those of an LLM are */
    struct dt_work work[DT_MAX_MODULES];
    /* of each stage, bytes that others take on its GPUs, and of these what leaves between phases */
    double beside[DT_MAX_VSTAGES], away[DT_MAX_VSTAGES];
    struct known last[DT_MAX_MODULES];
    /* [parts][blocks + 1]: 1 + the first block of the longest part that ends before this one; 0 = not asked yet */
    uint16_t *reach;
};

static struct held held_by(const struct shaping *x, int m, int stage)
{
    const struct dt_search_input *in = x->t->in;
    struct dt_memory mem;
    int64_t n = dt_plan_microbatches(x->p, in->model->llm, m);
    double once;

    dt_memory_stage_again(x->t->acts, x->p, in->model, in->cluster, m, stage, &x->work[m],
                          n > 0 ? n : 1, &mem);
    once = dt_cluster_is_cpu(in->cluster) ? mem.logits_workspace : mem.reserve;
    return (struct held){mem.total - once, once, mem.away, mem.beside};
}

/* Do the GPUs of these two stages overlap? */
static bool meet(const struct dt_plan *p, int m, int stage, int other, int its)
{
    const struct dt_plan_layout *a = &p->modules[m].layout, *b = &p->modules[other].layout;
    int na = dt_plan_layout_lane_gpus(a) * a->dp, nb = dt_plan_layout_lane_gpus(b) * b->dp;
    int from = a->first_gpu + stage * na, its_from = b->first_gpu + its * nb;

    return from < its_from + nb && its_from < from + na;
}

/* What stage k of another module holds: the one that was asked about last is known. */
static const struct held *held_by_other(struct shaping *x, int o, int k)
{
    struct known *last = &x->last[o];

    if (last->stage != k + 1)
        *last = (struct known){k + 1, held_by(x, o, k)};
    return &last->held;
}

static void look_beside(struct shaping *x, int stage)
{
    const struct dt_plan *p = x->p;

    x->beside[stage] = x->away[stage] = 0;
    for (int o = 0; o < p->n_modules && dt_plan_shares(p); o++)
        for (int k = 0; o != x->m && k < p->modules[o].layout.pp; k++)
            if (meet(p, x->m, stage, o, k)) {
                const struct held *h = held_by_other(x, o, k);

                x->beside[stage] += h->bytes;
                x->away[stage] += h->away;
            }
}

static bool stage_fits(const struct shaping *x, int stage)
{
    struct held h = held_by(x, x->m, stage);

    return h.bytes + h.once + x->beside[stage] - fmin(x->away[stage], h.beside) <=
           dt_memory_limit(x->t->in->cluster);
}

static bool all_fit(const struct shaping *x)
{
    for (int s = 0; s < x->p->modules[x->m].layout.pp; s++)
        if (!stage_fits(x, s))
            return false;
    return true;
}

/* Would the part's stage fit if this part were [first, end), and the stage's others as long? */
static bool part_fits(const struct shaping *x, int part, int first, int end)
{
    struct dt_plan_module *mp = &x->p->modules[x->m];
    int n = end - first, pp = mp->layout.pp;

    for (int v = part % pp; v < x->parts; v += pp) {
        int at = v == part           ? first
                 : v == 0            ? 0
                 : v + 1 == x->parts ? x->blocks - n
                                     : v * x->blocks / x->parts;

        if (at + n > x->blocks)
            at = x->blocks - n;
        mp->split[v] = (uint16_t)at;
        mp->split[v + 1] = (uint16_t)(at + n);
    }
    return stage_fits(x, part % pp);
}

/* The first block of the longest part that ends there, fits, and leaves a block for each before it; `end` if none does. */
static int reach_of(struct shaping *x, int part, int end)
{
    uint16_t *known = &x->reach[part * (x->blocks + 1) + end];
    int lo = part, hi = end; /* hi fits */

    if (*known)
        return *known - 1;
    while (lo < hi) {
        int mid = lo + (hi - lo) / 2;

        if (part_fits(x, part, mid, end))
            hi = mid;
        else
            lo = mid + 1;
    }
    *known = (uint16_t)(hi + 1);
    return hi;
}

/* The split in which every part, from the last, takes what time and memory allow; false where blocks are left. */
static bool fill(struct shaping *x, const double *cost, double limit, uint16_t *split)
{
    int end = x->blocks, longest = 0;

    split[x->parts] = (uint16_t)end;
    for (int v = x->parts - 1; v >= 0; v--) {
        int first = reach_of(x, v, end), b = end;
        double sum = 0;

        while (b > first && sum + cost[b - 1] <= limit)
            sum += cost[--b];
        if (b == end)
            return false;
        longest = end - first > longest ? end - first : longest;
        split[v] = (uint16_t)b;
        end = b;
        /* those before it hold no fewer microbatches than the last but one: nearly all that is asked about ends here */
        if (x->alike && v == x->parts - 2 && end > v * (longest + 1))
            return false;
    }
    return end == 0;
}

/* fill() gives up behind the last part but one where neither of the last two takes so many blocks; most splits are refused here.
 * Only of blocks that are alike, of more than two parts. */
static bool may_fill(struct shaping *x)
{
    int n = (x->blocks + 1) / x->parts; /* the least with 2 n + (parts - 2) (n + 1) >= blocks */

    while (2 * n + (x->parts - 2) * (n + 1) < x->blocks)
        n++;
    while (n > 1 && 2 * (n - 1) + (x->parts - 2) * n >= x->blocks)
        n--;
    return part_fits(x, x->parts - 1, x->blocks - n, x->blocks) ||
           part_fits(x, x->parts - 2, x->blocks - 2 * n, x->blocks - n);
}

/* The split with the fastest slowest part of those that fit, if there is one. */
static bool divide(struct shaping *x, const double *cost)
{
    uint16_t split[DT_MAX_VSTAGES + 1], *out = x->p->modules[x->m].split;
    double lo = 0, hi = 0;

    if (x->alike && x->parts > 2 && !may_fill(x))
        return false;
    for (int b = 0; b < x->blocks; b++)
        hi += cost[b];
    hi *= 1 + CLOSE;
    if (!fill(x, cost, hi, split))
        return false;
    while (hi - lo > CLOSE * hi) {
        double limit = 0.5 * (lo + hi);

        *(fill(x, cost, limit, split) ? &hi : &lo) = limit;
    }
    if (!fill(x, cost, hi, split))
        return false;
    memcpy(out, split, (size_t)(x->parts + 1) * sizeof(*split));
    return true;
}

/* Another split of module m, with which it fits; else it is as it was. */
static bool shape(struct shaping *x, const double *cost)
{
    uint16_t *split = x->p->modules[x->m].split, stated[DT_MAX_VSTAGES + 1];
    size_t size = (size_t)(x->parts + 1) * sizeof(*split);
    bool found;

    x->reach = dt_calloc((size_t)x->parts * (size_t)(x->blocks + 1), sizeof(*x->reach));
    if (!x->reach) {
        x->t->nomem = true;
        return false;
    }
    memcpy(stated, split, size);
    found = divide(x, cost) && all_fit(x);
    dt_free(x->reach);
    if (!found)
        memcpy(split, stated, size);
    return found;
}

/* Can this module have other splits? */
static bool is_long(const struct dt_orch_table *t, const struct dt_plan *p, int m)
{
    const struct dt_plan_layout *l = &p->modules[m].layout;

    return l->pp > 1 && t->in->model->modules[m].n_blocks >= PART_BLOCKS * l->pp * l->vpp;
}

static void set_work(struct shaping *x)
{
    for (int i = 0; i < x->p->n_modules; i++)
        dt_orch_expected_work(&x->t->work[i], x->p, x->t->in->model->llm, i, x->t->sigmas,
                              &x->work[i]);
}

/* The LLM's first stage, and of each guest the one that lies there; with a block less would be nothing left of each chunk. */
bool dt_orch_split_may_fit(struct dt_orch_table *t, struct dt_plan *p)
{
    int llm = t->in->model->llm;
    struct shaping x = {.t = t,
                        .p = p,
                        .m = llm,
                        .blocks = t->in->model->modules[llm].n_blocks,
                        .parts = p->modules[llm].layout.pp * p->modules[llm].layout.vpp};
    uint16_t *split = p->modules[llm].split, stated[DT_MAX_VSTAGES + 1];
    size_t size = (size_t)(x.parts + 1) * sizeof(*split);
    bool fits;

    set_work(&x);
    for (int m = 0; m < p->n_modules; m++) {
        struct held h;

        if (p->modules[m].with) {
            h = held_by(&x, m, 0);
            x.beside[0] += h.bytes;
            x.away[0] += h.away;
        }
        if (p->modules[m].with && is_long(t, p, m))
            return true;
    }
    if (stage_fits(&x, 0))
        return true;
    if (!is_long(t, p, llm))
        return false;
    memcpy(stated, split, size);
    fits = part_fits(&x, 0, 0, 1);
    memcpy(split, stated, size);
    return fits;
}

enum dt_orch_fit dt_orch_split_module(struct dt_orch_table *t, struct dt_plan *p, int m,
                                      const struct dt_orch_times *times)
{
    const struct dt_plan_layout *l = &p->modules[m].layout;
    struct shaping x = {.t = t,
                        .p = p,
                        .m = m,
                        .alike = m == t->in->model->llm,
                        .blocks = t->in->model->modules[m].n_blocks,
                        .parts = l->pp * l->vpp};

    if (!is_long(t, p, m) || !times)
        return DT_ORCH_FIT_LEFT;
    set_work(&x);
    for (int s = l->pp - 1; s >= 0; s--) {
        look_beside(&x, s);
        /* the stages before these hold no fewer microbatches: none of them has room for more blocks than it has */
        if (s == l->pp - 2 && x.alike && !stage_fits(&x, s) && !stage_fits(&x, s + 1))
            return DT_ORCH_FIT_NONE;
    }
    if (all_fit(&x))
        return DT_ORCH_FIT_LEFT;
    return shape(&x, times->block_s) ? DT_ORCH_FIT_CHANGED : DT_ORCH_FIT_NONE;
}

bool dt_orch_split_any(struct dt_orch_table *t, struct dt_plan *p, int m,
                       const struct dt_orch_times *times)
{
    const struct dt_plan_layout *l = &p->modules[m].layout;
    struct shaping x = {.t = t,
                        .p = p,
                        .m = m,
                        .blocks = t->in->model->modules[m].n_blocks,
                        .parts = l->pp * l->vpp};

    set_work(&x);
    for (int s = 0; s < l->pp; s++)
        look_beside(&x, s);
    return shape(&x, times->block_s);
}

bool dt_orch_split_to_fit(struct dt_orch_table *t, const struct dt_orch_cand *c, struct dt_plan *p)
{
    bool changed = false;

    for (int m = 0; m < p->n_modules; m++) {
        enum dt_orch_fit fit =
            dt_orch_split_module(t, p, m,
                                 dt_orch_times_of(t, m, c->of[m].lane, c->of[m].recompute,
                                                  m == t->in->model->llm ? c->microbatch : 0,
                                                  t->space.pipe[c->pipe].split));

        if (fit == DT_ORCH_FIT_NONE)
            return false;
        changed |= fit == DT_ORCH_FIT_CHANGED;
    }
    return changed;
}
