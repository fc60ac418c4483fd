/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Lanes that share GPUs take turns: what a run of the program (schedule_turns.c) begins with.  Who waits for whom, which
 * lanes share GPUs, how much time passes behind every op, and how much every GPU has to do. */
#include "core/schedule/schedule_turns_impl.h"

enum {
    DENSE = 4
}; /* runs by two rules that were a quarter apart left the busiest GPU idle for a third */

/* ---- who waits for whom ---- */

/* What an op waits for, a RECV also for its SEND, into `d`: how many. */
static uint32_t deps_of(const struct dt_program *p, const struct dt_op *op, uint32_t *d)
{
    uint32_t n = 0;

    for (int k = 0; k < 3; k++)
        if (op->dep[k] != DT_NONE)
            d[n++] = op->dep[k];
    for (uint32_t k = 0; k < op->more_n; k++)
        d[n++] = p->deps[op->more_first + k];
    if (op->kind == DT_OP_RECV)
        d[n++] = op->peer;
    return n;
}

/* A compute op that takes no time waits for its turn anywhere: what ends at the same instant is seen first. */
static uint32_t class_and_of(const struct dt_sched_turns_runs *g, const struct dt_op *op,
                             int64_t ns)
{
    bool alone = g->island[g->lane[op->lane].island].n == 1 && ns > 0 &&
                 g->p->plan->modules[op->module].layout.ep <= 1; /* else it begins with others */

    switch (dt_op_resource(op->kind)) {
    case DT_RES_COMPUTE:
        return (uint32_t)(alone ? DT_SCHED_TURNS_FREE : DT_SCHED_TURNS_COMPUTE)
                   << DT_SCHED_TURNS_SHIFT |
               op->lane;
    case DT_RES_COLL:
        return (uint32_t)DT_SCHED_TURNS_MEMBER << DT_SCHED_TURNS_SHIFT | op->peer;
    case DT_RES_P2P_OUT:
    case DT_RES_P2P_IN:
    case DT_RES_HOST:
    case DT_RES_N:
        break;
    }
    return (uint32_t)DT_SCHED_TURNS_FREE << DT_SCHED_TURNS_SHIFT;
}

/* The nodes, and what each waits for. */
static int link_back(struct dt_sched_turns_runs *g, const int64_t *ns, struct dt_arena *a)
{
    const struct dt_program *p = g->p;
    uint32_t sum = 0;

    /* three places of its own, a RECV's SEND, and the table */
    g->pred = dt_arena_alloc_raw(a, 4 * (size_t)p->n_ops + p->n_deps + 1, sizeof(*g->pred));
    g->node = dt_arena_alloc_raw(a, (size_t)p->n_ops + 1, sizeof(*g->node));
    if (!g->pred || !g->node)
        return -1;
    for (uint32_t i = 0; i < p->n_ops; i++) {
        const struct dt_op *op = &p->ops[i];

        g->node[i] = (struct dt_sched_turns_node){
            .ns = ns[i], .pred_first = sum, .of = class_and_of(g, op, ns[i])};
        sum += deps_of(p, op, g->pred + sum);
    }
    g->node[p->n_ops] = (struct dt_sched_turns_node){.pred_first = sum};
    return 0;
}

/* What waits for each. */
static int link_all(struct dt_sched_turns_runs *g, const int64_t *ns, struct dt_arena *a)
{
    const uint32_t n = g->p->n_ops;
    uint32_t all, sum = 0;

    if (link_back(g, ns, a) != 0)
        return -1;
    all = g->node[n].pred_first;
    for (uint32_t k = 0; k < all; k++)
        g->node[g->pred[k]].succ_first++;
    g->succ = dt_arena_alloc_raw(a, (size_t)all + 1, sizeof(*g->succ));
    if (!g->succ)
        return -1;
    for (uint32_t i = 0; i <= n; i++) /* where its successors end */
        g->node[i].succ_first = sum += i < n ? g->node[i].succ_first : 0;
    for (uint32_t i = n; i-- > 0;)
        for (uint32_t k = g->node[i].pred_first; k < g->node[i + 1].pred_first; k++)
            g->succ[--g->node[g->pred[k]].succ_first] = i;
    return 0;
}

/* ---- islands ---- */

static uint32_t root_of(uint32_t *up, uint32_t gpu)
{
    while (up[gpu] != gpu)
        gpu = up[gpu] = up[up[gpu]];
    return gpu;
}

/* Between two GPUs at which lanes begin or end lie the same lanes on all. */
static int count_gpus(struct dt_sched_turns_runs *g, struct dt_arena *a)
{
    const struct dt_program *p = g->p;
    uint32_t n = 0, *to;

    for (int l = 0; l < p->n_lanes; l++)
        if (p->lanes[l].first_gpu + p->lanes[l].gpus > n)
            n = p->lanes[l].first_gpu + p->lanes[l].gpus;
    to = DT_ARENA_NEW(a, uint32_t, (size_t)n + 1);
    g->lane = DT_ARENA_NEW(a, struct dt_sched_turns_lane, (size_t)p->n_lanes + 1);
    if (!to || !g->lane)
        return -1;
    for (int l = 0; l < p->n_lanes; l++)
        to[p->lanes[l].first_gpu] = to[p->lanes[l].first_gpu + p->lanes[l].gpus] = 1;
    for (uint32_t k = 0; k <= n; k++)
        g->n_gpus = to[k] += k > 0 ? to[k - 1] : 0;
    for (int l = 0; l < p->n_lanes; l++) {
        uint32_t first = to[p->lanes[l].first_gpu];

        g->lane[l].first_gpu = first;
        g->lane[l].gpus = to[p->lanes[l].first_gpu + p->lanes[l].gpus] - first;
    }
    return 0;
}

static int find_islands(struct dt_sched_turns_runs *g, struct dt_arena *a)
{
    const struct dt_program *p = g->p;
    uint32_t *up = DT_ARENA_NEW(a, uint32_t, (size_t)g->n_gpus + 1);
    uint32_t *number = DT_ARENA_NEW(a, uint32_t, (size_t)g->n_gpus + 1);
    uint32_t at = 0;

    g->island = DT_ARENA_NEW(a, struct dt_sched_turns_island, (size_t)p->n_lanes + 1);
    g->lanes_of = DT_ARENA_NEW(a, uint32_t, (size_t)p->n_lanes + 1);
    if (!up || !number || !g->island || !g->lanes_of)
        return -1;
    for (uint32_t k = 0; k < g->n_gpus; k++)
        up[k] = k;
    for (int l = 0; l < p->n_lanes; l++)
        for (uint32_t k = 1; k < g->lane[l].gpus; k++)
            up[root_of(up, g->lane[l].first_gpu + k)] = root_of(up, g->lane[l].first_gpu);
    for (int l = 0; l < p->n_lanes; l++) { /* numbered as their first lanes are */
        uint32_t *n = &number[root_of(up, g->lane[l].first_gpu)];

        if (*n == 0)
            *n = ++g->n_islands;
        g->lane[l].island = *n - 1;
        g->island[*n - 1].n++;
    }
    for (uint32_t k = 0; k < g->n_islands; k++) {
        g->island[k].first = at;
        at += g->island[k].n;
        g->island[k].n = 0;
    }
    for (uint32_t k = 0; k < g->n_gpus; k++)
        if (number[root_of(up, k)] > 0)
            g->island[number[root_of(up, k)] - 1].gpus++;
    for (int l = 0; l < p->n_lanes; l++) {
        struct dt_sched_turns_island *x = &g->island[g->lane[l].island];

        g->lanes_of[x->first + x->n++] = (uint32_t)l;
    }
    return 0;
}

static int count_phases(struct dt_sched_turns_runs *g, struct dt_arena *a)
{
    if (dt_sched_phases_new(g->s, g->p, g->n_gpus, a, &g->phases) != 0)
        return -1;
    for (uint32_t i = 0; g->phases && i < g->p->n_ops; i++) {
        const struct dt_sched_turns_lane *l = &g->lane[g->p->ops[i].lane];

        dt_sched_phases_add(g->phases, i, l->first_gpu, l->gpus);
    }
    return 0;
}

struct dt_sched_turns_runs *dt_sched_turns_prepare(struct dt_sched *s, const struct dt_program *p,
                                                   const int64_t *ns)
{
    struct dt_arena *a = &s->arena;
    struct dt_sched_turns_runs *g = DT_ARENA_NEW(a, struct dt_sched_turns_runs, 1);

    if (!g)
        return NULL;
    g->s = s;
    g->p = p;
    if (count_gpus(g, a) != 0 || find_islands(g, a) != 0 || link_all(g, ns, a) != 0 ||
        count_phases(g, a) != 0 || dt_program_partners_find(p, a, NULL, &g->partners) != DT_OK)
        return NULL;
    g->group_waits = DT_ARENA_NEW(a, uint32_t, (size_t)p->n_groups + 1);
    g->heap = dt_arena_alloc_raw(a, (size_t)p->n_ops + 1, sizeof(*g->heap));
    g->over = dt_arena_alloc_raw(a, (size_t)p->n_ops + 1, sizeof(*g->over));
    g->stir = DT_ARENA_NEW(a, uint32_t, (size_t)g->n_islands + 1);
    g->choice = DT_ARENA_NEW(a, uint32_t, (size_t)p->n_lanes + 1);
    g->gpu = DT_ARENA_NEW(a, struct dt_sched_turns_gpu, (size_t)g->n_gpus + 1);
    return g->group_waits && g->heap && g->over && g->stir && g->choice && g->gpu ? g : NULL;
}

/* ---- time behind every op ---- */

static int64_t least(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

/* All that waits for op i is known, and `behind` the most of it: so is the op, and one less is open of what it waits for. */
static void settle(struct dt_sched_turns_runs *g, uint32_t i, int64_t behind)
{
    struct dt_sched_turns_node *x = &g->node[i];
    const uint32_t *pred = g->pred + x->pred_first, *last = g->pred + x[1].pred_first;

    x->behind = behind + x->ns;
    DT_SCHED_TURNS_ASK(x, -DT_SCHED_TURNS_AHEAD);
    DT_SCHED_TURNS_ASK(pred, -2 * DT_SCHED_TURNS_AHEAD);
    for (; pred < last; pred++) {
        struct dt_sched_turns_node *d = &g->node[*pred];

        DT_SCHED_TURNS_ASK(d, -DT_SCHED_TURNS_AHEAD);
        d->behind = dt_sched_turns_most(d->behind, x->behind);
        if (--d->waits == 0)
            g->over[g->n_over++] = *pred;
    }
}

/* What every GPU has to do, and the longest chain. */
static void find_work(struct dt_sched_turns_runs *g)
{
    g->chain_ns = 0;
    for (uint32_t k = 0; k < g->n_gpus; k++) {
        g->gpu[k].work_ns = 0;
        g->gpu[k].tail_ns = INT64_MAX;
    }
    for (uint32_t i = 0; i < g->p->n_ops; i++) {
        const struct dt_sched_turns_node *x = &g->node[i];
        const struct dt_sched_turns_lane *l;

        g->chain_ns = dt_sched_turns_most(g->chain_ns, x->behind);
        if (dt_sched_turns_class_of(x) != DT_SCHED_TURNS_COMPUTE)
            continue;
        l = &g->lane[dt_sched_turns_of(x)];
        for (uint32_t k = l->first_gpu; k < l->first_gpu + l->gpus; k++) {
            g->gpu[k].work_ns += x->ns;
            g->gpu[k].tail_ns = least(g->gpu[k].tail_ns, x->behind - x->ns);
        }
    }
}

/* From the ends of the program to its beginnings; lanes that wait for each other stay unknown. */
void dt_sched_turns_find_behind(struct dt_sched_turns_runs *g)
{
    const struct dt_program *p = g->p;

    g->n_over = 0;
    for (uint32_t i = 0; i < p->n_groups; i++)
        g->group_waits[i] = p->groups[i].n;
    for (uint32_t i = 0; i < p->n_ops; i++) {
        g->node[i].behind = 0;
        g->node[i].waits = g->node[i + 1].succ_first - g->node[i].succ_first;
        if (g->node[i].waits == 0)
            g->over[g->n_over++] = i;
    }
    while (g->n_over > 0) {
        uint32_t i = g->over[--g->n_over];
        const struct dt_group *x;
        int64_t behind = 0;

        if (dt_sched_turns_class_of(&g->node[i]) != DT_SCHED_TURNS_MEMBER) {
            settle(g, i, g->node[i].behind);
            continue;
        }
        if (--g->group_waits[dt_sched_turns_of(&g->node[i])] > 0)
            continue;
        x = &p->groups[dt_sched_turns_of(&g->node[i])];
        for (uint32_t k = 0; k < x->n; k++) /* they end together */
            behind = dt_sched_turns_most(behind, g->node[p->group_ops[x->first + k]].behind);
        for (uint32_t k = 0; k < x->n; k++)
            settle(g, p->group_ops[x->first + k], behind);
    }
    find_work(g);
}

bool dt_sched_turns_are_dense(const struct dt_sched_turns_runs *g, int64_t end_ns)
{
    int64_t most = 0;

    for (uint32_t k = 0; k < g->n_gpus; k++)
        if (g->gpu[k].work_ns > 0)
            most = dt_sched_turns_most(most, g->gpu[k].work_ns + g->gpu[k].tail_ns);
    return end_ns <= most + most / DENSE;
}
