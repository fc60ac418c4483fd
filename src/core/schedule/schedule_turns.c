/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Lanes that share GPUs take turns: a run of the program with a rule for who is next.
 *
 * An event is the end of an op that takes time, or of a group of such; what takes none ends with what it waited for.
 * GPUs on which the very same lanes lie are busy and free together, and count as one.
 * Lanes that share GPUs, directly or over others, are an island.  Where something became ready or free, the free GPUs of
 * the island are given away.  Searches run millions of ops here, so an op is half a cache line, and what the rule
 * compares lies with the lane. */
#include "core/schedule/schedule_turns_impl.h"

#include "base/heap.h"
#include "base/mem.h"

#include <string.h>

/* ---- turns ---- */

static enum dt_status note(struct dt_sched_turns *t, uint32_t op, uint32_t waits_for,
                           struct dt_error *err)
{
    if (t->n == t->cap) {
        uint32_t cap = t->cap * 2 + 1024;
        void *grown = dt_realloc(t->before, (size_t)cap * sizeof(*t->before));

        if (!grown)
            return dt_error_nomem(err, "turns of colocated modules");
        t->before = grown;
        t->cap = cap;
    }
    t->before[t->n][0] = op;
    t->before[t->n++][1] = waits_for;
    t->before_n[op]++;
    return DT_OK;
}

/* ---- the order of choice ---- */

/* A window counts as its first slot. */
static uint32_t slot_of(const struct dt_sched_turns_runs *g, const struct dt_op *op)
{
    const struct dt_assignment_module *a = &g->s->a->m[op->module];

    if (op->mb == DT_NONE)
        return op->mb;
    return a->mb[a->mb_first[op->replica] + op->mb].slot;
}

/* Backwards before forwards, then the lowest slot, then the upstream module. */
static uint64_t age_of(const struct dt_sched_turns_runs *g, uint32_t i)
{
    const struct dt_op *op = &g->p->ops[i];
    bool backward = op->kind == DT_OP_BACKWARD || op->kind == DT_OP_WEIGHT_GRAD;

    return (uint64_t)!backward << 40 | (uint64_t)slot_of(g, op) << 8 | op->module;
}

static bool is_before(const struct dt_sched_turns_runs *g, const struct dt_sched_turns_lane *x,
                      const struct dt_sched_turns_lane *y)
{
    uint64_t x_age = x->age, y_age = y->age;

    if (g->rule.longest) {
        if (x->behind != y->behind)
            return x->behind > y->behind;
        x_age = age_of(g, x->ready);
        y_age = age_of(g, y->ready);
    }
    return x_age != y_age ? x_age < y_age : x->ready < y->ready;
}

/* ---- running ---- */

static bool is_earlier(struct dt_sched_turns_event a, struct dt_sched_turns_event b)
{
    unsigned __int128 x = (unsigned __int128)(uint64_t)a.ns << 64 | a.op;
    unsigned __int128 y = (unsigned __int128)(uint64_t)b.ns << 64 | b.op;

    return x < y; /* without a branch that depends on the data */
}
#define EARLIER(ctx, a, b) is_earlier(a, b)
DT_HEAP(events, const void *, struct dt_sched_turns_event, 4, EARLIER, DT_HEAP_SET)

/* What begins goes where what has ended was: one way through the heap instead of two. */
static void ends_later(struct dt_sched_turns_runs *g, uint32_t op, int64_t ns)
{
    struct dt_sched_turns_event e = {g->now + ns, op};

    if (g->hole)
        events_down(NULL, g->heap, g->n_heap, 0, e);
    else
        events_push(NULL, g->heap, g->n_heap++, e);
    g->hole = false;
}

/* Is something under way?  Then heap[0] ends first. */
static bool is_under_way(struct dt_sched_turns_runs *g)
{
    if (g->hole && --g->n_heap > 0)
        events_down(NULL, g->heap, g->n_heap, 0, g->heap[g->n_heap]);
    g->hole = false;
    return g->n_heap > 0;
}

static void stir(struct dt_sched_turns_runs *g, uint32_t island)
{
    if (!g->island[island].stirred)
        g->stir[g->n_stir++] = island;
    g->island[island].stirred = true;
}

/* All that op i waits for has ended. */
static void make_ready(struct dt_sched_turns_runs *g, uint32_t i)
{
    const struct dt_sched_turns_node *x = &g->node[i];
    struct dt_sched_turns_lane *l;

    switch (dt_sched_turns_class_of(x)) {
    case DT_SCHED_TURNS_COMPUTE:
        l = &g->lane[dt_sched_turns_of(x)];
        l->ready = i;
        l->behind = x->behind;
        l->age = g->rule.longest ? 0 : age_of(g, i);
        DT_SCHED_TURNS_ASK(&g->p->ops[i], DT_SCHED_TURNS_AHEAD);
        g->island[l->island].ready++;
        stir(g, l->island);
        break;
    case DT_SCHED_TURNS_MEMBER:
        if (--g->group_waits[dt_sched_turns_of(x)] == 0)
            ends_later(g, DT_SCHED_TURNS_GROUP | dt_sched_turns_of(x), x->ns); /* of all alike */
        break;
    case DT_SCHED_TURNS_FREE:
        g->given_up |= g->now + x->behind > g->rule.limit_ns;
        if (x->ns > 0)
            ends_later(g, i, x->ns);
        else
            g->over[g->n_over++] = i;
        break;
    }
}

static void tell(struct dt_sched_turns_runs *g, uint32_t i)
{
    const struct dt_sched_turns_node *x = &g->node[i];
    const uint32_t *s = &g->succ[x->succ_first], *last = &g->succ[x[1].succ_first];

    DT_SCHED_TURNS_ASK(x, DT_SCHED_TURNS_AHEAD);
    DT_SCHED_TURNS_ASK(s, 2 * DT_SCHED_TURNS_AHEAD);
    if (dt_sched_turns_class_of(x) == DT_SCHED_TURNS_COMPUTE) {
        const struct dt_sched_turns_lane *l = &g->lane[dt_sched_turns_of(x)];

        for (uint32_t k = l->first_gpu; k < l->first_gpu + l->gpus; k++)
            g->gpu[k].busy = false;
        g->island[l->island].free += l->gpus;
        stir(g, l->island);
    }
    for (; s < last; s++) {
        DT_SCHED_TURNS_ASK(&g->node[*s], DT_SCHED_TURNS_AHEAD);
        if (--g->node[*s].waits == 0)
            make_ready(g, *s);
    }
}

/* What takes no time, such as a RECV, ends with what it waited for, and never lies in the heap. */
static void tell_all(struct dt_sched_turns_runs *g)
{
    while (g->n_over > 0) {
        uint32_t i = g->over[--g->n_over];

        g->turns->order[g->turns->n_order++] = i;
        tell(g, i);
    }
}

static void end(struct dt_sched_turns_runs *g, uint32_t what)
{
    const struct dt_group *x = &g->p->groups[what & ~DT_SCHED_TURNS_GROUP];

    if (!(what & DT_SCHED_TURNS_GROUP)) {
        g->over[g->n_over++] = what;
        tell_all(g);
        return;
    }
    for (uint32_t k = 0; k < x->n; k++)
        g->turns->order[g->turns->n_order++] = g->p->group_ops[x->first + k];
    for (uint32_t k = 0; k < x->n; k++)
        tell(g, g->p->group_ops[x->first + k]);
    tell_all(g);
}

static bool depends(const struct dt_sched_turns_runs *g, uint32_t i, uint32_t on)
{
    const struct dt_op *op = &g->p->ops[i];

    if (op->dep[0] == on || op->dep[1] == on || op->dep[2] == on)
        return true;
    for (uint32_t k = 0; k < op->more_n; k++)
        if (g->p->deps[op->more_first + k] == on)
            return true;
    return false;
}

/* Does op i wait for `last` anyway, be it for a turn that was noted just before? */
static bool is_known(const struct dt_sched_turns_runs *g, uint32_t i, uint32_t last, uint32_t noted)
{
    if (last == DT_NONE || dt_sched_turns_of(&g->node[last]) == dt_sched_turns_of(&g->node[i]) ||
        depends(g, i, last))
        return true;
    for (uint32_t j = noted; j < g->turns->n; j++)
        if (g->turns->before[j][1] == last)
            return true;
    return false;
}

/* A GPU's next op: that it waits for the one before. */
static enum dt_status follow(struct dt_sched_turns_runs *g, struct dt_sched_turns_gpu *gpu,
                             uint32_t i, uint32_t noted, uint32_t *before, struct dt_error *err)
{
    if (!g->rule.silent && gpu->last != *before && !is_known(g, i, gpu->last, noted))
        DT_TRY(note(g->turns, i, gpu->last, err));
    *before = gpu->last;
    gpu->last = i;
    return DT_OK;
}

static enum dt_status start(struct dt_sched_turns_runs *g, uint32_t i, struct dt_error *err)
{
    const struct dt_sched_turns_node *x = &g->node[i];
    struct dt_sched_turns_lane *l = &g->lane[dt_sched_turns_of(x)];
    struct dt_sched_turns_island *island = &g->island[l->island];
    uint32_t noted = g->turns->n, before = DT_NONE;
    int64_t ends = x->behind;

    for (uint32_t k = l->first_gpu; k < l->first_gpu + l->gpus; k++) {
        struct dt_sched_turns_gpu *gpu = &g->gpu[k];

        DT_TRY(follow(g, gpu, i, noted, &before, err));
        gpu->busy = true;
        ends = dt_sched_turns_most(ends, gpu->left_ns + gpu->tail_ns);
        gpu->left_ns -= x->ns;
    }
    if (g->phases)
        dt_sched_phases_begin(g->phases, i, l->first_gpu, l->gpus);
    island->free -= l->gpus;
    island->ready--;
    l->ready = DT_NONE;
    g->given_up |= g->now + ends > g->rule.limit_ns;
    ends_later(g, i, x->ns);
    return DT_OK;
}

static bool are_free(const struct dt_sched_turns_runs *g, const struct dt_sched_turns_lane *l)
{
    for (uint32_t k = l->first_gpu; k < l->first_gpu + l->gpus; k++)
        if (g->gpu[k].busy || g->gpu[k].kept == g->looks)
            return false;
    return true;
}

/* Has the turn of op i, and of what runs with it, come?  Their GPUs may be busy yet. */
static bool may_begin(const struct dt_sched_turns_runs *g, uint32_t i)
{
    const struct dt_sched_turns_lane *own = &g->lane[dt_sched_turns_of(&g->node[i])];
    int n;

    if (!g->partners.any)
        return !g->phases || dt_sched_phases_allow(g->phases, i, own->first_gpu, own->gpus);
    n = dt_program_partners_n(g->p, &g->partners, i);
    for (int k = 0; k < n; k++) {
        uint32_t j = dt_program_partner(g->p, &g->partners, i, k);
        const struct dt_sched_turns_lane *l =
            &g->lane[dt_sched_turns_of(&g->node[j == DT_NONE ? i : j])];

        if (j != DT_NONE &&
            (l->ready != j ||
             (g->phases && !dt_sched_phases_allow(g->phases, j, l->first_gpu, l->gpus))))
            return false;
    }
    return true;
}

/* Are the GPUs of op i, and of what runs with it, free? */
static bool have_gpus(const struct dt_sched_turns_runs *g, uint32_t i)
{
    int n;

    if (!g->partners.any)
        return are_free(g, &g->lane[dt_sched_turns_of(&g->node[i])]);
    n = dt_program_partners_n(g->p, &g->partners, i);
    for (int k = 0; k < n; k++) {
        uint32_t j = dt_program_partner(g->p, &g->partners, i, k);

        if (j != DT_NONE && !are_free(g, &g->lane[dt_sched_turns_of(&g->node[j])]))
            return false;
    }
    return true;
}

static enum dt_status start_together(struct dt_sched_turns_runs *g, uint32_t i,
                                     struct dt_error *err)
{
    int n;

    if (!g->partners.any)
        return start(g, i, err);
    n = dt_program_partners_n(g->p, &g->partners, i);
    for (int k = 0; k < n; k++) {
        uint32_t j = dt_program_partner(g->p, &g->partners, i, k);

        if (j != DT_NONE)
            DT_TRY(start(g, j, err));
    }
    return DT_OK;
}

/* The lanes of an island with an op that could begin, first by the rule first. */
static uint32_t choices(struct dt_sched_turns_runs *g, const struct dt_sched_turns_island *x)
{
    uint32_t n = 0;

    for (uint32_t k = x->first; n < x->ready; k++) {
        uint32_t lane = g->lanes_of[k], j = n;

        if (g->lane[lane].ready == DT_NONE)
            continue;
        for (; j > 0 && is_before(g, &g->lane[lane], &g->lane[g->choice[j - 1]]); j--)
            g->choice[j] = g->choice[j - 1];
        g->choice[j] = lane;
        n++;
    }
    return n;
}

static enum dt_status choose(struct dt_sched_turns_runs *g, const struct dt_sched_turns_island *x,
                             struct dt_error *err)
{
    uint32_t n = x->free > 0 ? choices(g, x) : 0;

    g->looks++;
    for (uint32_t c = 0; c < n; c++) {
        const struct dt_sched_turns_lane *l = &g->lane[g->choice[c]];

        if (l->ready == DT_NONE || !may_begin(g, l->ready)) /* none: it began with another */
            continue;
        if (have_gpus(g, l->ready))
            DT_TRY(start_together(g, l->ready, err));
        else
            for (uint32_t k = l->first_gpu; g->rule.keeps && k < l->first_gpu + l->gpus; k++)
                g->gpu[k].kept = g->looks;
    }
    return DT_OK;
}

static void rewind_all(struct dt_sched_turns_runs *g)
{
    const struct dt_program *p = g->p;

    g->now = 0;
    g->n_heap = g->n_over = g->n_stir = g->looks = 0;
    g->hole = g->given_up = false;
    if (g->phases)
        dt_sched_phases_rewind(g->phases);
    for (uint32_t i = 0; i < p->n_ops; i++)
        g->node[i].waits = g->node[i + 1].pred_first - g->node[i].pred_first;
    for (uint32_t k = 0; k < g->n_gpus; k++) {
        g->gpu[k].last = DT_NONE;
        g->gpu[k].kept = 0;
        g->gpu[k].busy = false;
        g->gpu[k].left_ns = g->gpu[k].work_ns;
    }
    for (uint32_t k = 0; k < g->n_islands; k++) {
        g->island[k].free = g->island[k].gpus;
        g->island[k].ready = 0;
        g->island[k].stirred = false;
    }
    for (int l = 0; l < p->n_lanes; l++)
        g->lane[l].ready = DT_NONE;
    for (uint32_t i = 0; i < p->n_groups; i++)
        g->group_waits[i] = p->groups[i].n;
}

static enum dt_status stuck(const struct dt_sched_turns_runs *g, struct dt_error *err)
{
    uint32_t all = 0, run = 0;

    for (uint32_t i = 0; i < g->p->n_ops; i++)
        all += dt_op_resource(g->p->ops[i].kind) == DT_RES_COMPUTE;
    for (uint32_t i = 0; i < g->turns->n_order; i++)
        run += dt_op_resource(g->p->ops[g->turns->order[i]].kind) == DT_RES_COMPUTE;
    return dt_error_set(err, DT_ERR_INFEASIBLE,
                        "modules on the same GPUs: %u of %u compute ops can never run: the lanes' "
                        "orders wait for each other",
                        all - run, all);
}

enum dt_status dt_sched_turns_run(struct dt_sched_turns_runs *g,
                                  const struct dt_sched_turns_rule *rule, struct dt_error *err,
                                  struct dt_sched_turns *t)
{
    g->rule = *rule;
    g->turns = t;
    rewind_all(g);
    t->end_ns = INT64_MAX;
    for (uint32_t i = 0; i < g->p->n_ops; i++)
        if (g->node[i].waits == 0)
            make_ready(g, i);
    tell_all(g);
    do {
        while (is_under_way(g) && g->heap[0].ns == g->now) {
            g->hole = true;
            end(g, (uint32_t)g->heap[0].op);
        }
        while (g->n_stir > 0) {
            struct dt_sched_turns_island *x = &g->island[g->stir[--g->n_stir]];

            x->stirred = false;
            DT_TRY(choose(g, x, err));
        }
        if (g->given_up)
            return DT_OK;
        if (is_under_way(g))
            g->now = g->heap[0].ns;
    } while (g->n_heap > 0);
    if (t->n_order < g->p->n_ops)
        return stuck(g, err);
    t->end_ns = g->now;
    return DT_OK;
}

/* ---- an order that is known ---- */

static int64_t ready_ns(const struct dt_sched_turns_runs *g, uint32_t i)
{
    const uint32_t *d = &g->pred[g->node[i].pred_first],
                   *last = &g->pred[g->node[i + 1].pred_first];
    int64_t at = 0;

    for (; d < last; d++)
        at = dt_sched_turns_most(at, g->node[*d].ends);
    return at;
}

/* The GPUs of op i are its own from when they are free. */
static enum dt_status follow_all(struct dt_sched_turns_runs *g, uint32_t i, struct dt_error *err)
{
    struct dt_sched_turns_node *x = &g->node[i];
    const struct dt_sched_turns_lane *l = &g->lane[dt_sched_turns_of(x)];
    uint32_t noted = g->turns->n, before = DT_NONE;
    int64_t at = ready_ns(g, i);

    for (uint32_t k = l->first_gpu; k < l->first_gpu + l->gpus; k++) {
        if (g->gpu[k].last != DT_NONE)
            at = dt_sched_turns_most(at, g->node[g->gpu[k].last].ends);
        DT_TRY(follow(g, &g->gpu[k], i, noted, &before, err));
    }
    x->ends = at + x->ns;
    return DT_OK;
}

/* Members of a group, the first of which is op i, lie side by side. */
static void end_group(const struct dt_sched_turns_runs *g, uint32_t i)
{
    const struct dt_group *gr = &g->p->groups[dt_sched_turns_of(&g->node[i])];
    int64_t at = 0;

    for (uint32_t k = 0; k < gr->n; k++)
        at = dt_sched_turns_most(at, ready_ns(g, g->p->group_ops[gr->first + k]));
    for (uint32_t k = 0; k < gr->n; k++)
        g->node[g->p->group_ops[gr->first + k]].ends = at + g->node[i].ns;
}

static bool is_same_group(const struct dt_sched_turns_runs *g, uint32_t i, uint32_t j)
{
    return g->node[i].of == g->node[j].of;
}

enum dt_status dt_sched_turns_follow(struct dt_sched_turns_runs *g, bool silent,
                                     struct dt_error *err, struct dt_sched_turns *t)
{
    int64_t last = 0;

    g->rule = (struct dt_sched_turns_rule){.silent = silent};
    g->turns = t;
    for (uint32_t k = 0; k < g->n_gpus; k++)
        g->gpu[k].last = DT_NONE;
    for (uint32_t at = 0; at < g->p->n_ops; at++) {
        uint32_t i = t->order[at];
        struct dt_sched_turns_node *x = &g->node[i];
        enum dt_sched_turns_class class = dt_sched_turns_class_of(x);

        DT_SCHED_TURNS_ASK(x, DT_SCHED_TURNS_AHEAD);
        DT_SCHED_TURNS_ASK(&g->pred[x->pred_first], 2 * DT_SCHED_TURNS_AHEAD);

        if (class == DT_SCHED_TURNS_COMPUTE)
            DT_TRY(follow_all(g, i, err));
        else if (class == DT_SCHED_TURNS_FREE)
            x->ends = ready_ns(g, i) + x->ns;
        else if (at == 0 || !is_same_group(g, i, t->order[at - 1]))
            end_group(g, i);
        last = dt_sched_turns_most(last, x->ends);
    }
    t->n_order = g->p->n_ops;
    t->end_ns = last;
    return DT_OK;
}
