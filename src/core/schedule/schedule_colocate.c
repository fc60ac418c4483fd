/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Colocated modules: lanes that share GPUs take turns.
 *
 * Every lane keeps its own order; this pass merges the orders of the lanes of a GPU into one, by
 * running the program once in turns of equal length.  In a turn every free GPU takes, of the
 * compute ops that are ready,
 *
 *     a backward first, then the lowest microbatch, then the upstream module, then the lower op
 *
 * and communication is over at once.  Each op then waits for the one before it on its GPUs, as an
 * explicit dependency: simulator and executor need not know what a GPU is.  The dependencies follow
 * an order that has just been run, so they close no cycle, and they only delay, so what a lane
 * holds in flight stays within its bound. */
#include "core/schedule/schedule_impl.h"

#include "base/heap.h"

#include <string.h>

struct merge {
    struct dt_sched *s;
    struct dt_program *p;
    uint32_t *succ_first, *succ; /* ops that wait for each op */
    uint32_t *waits;             /* per op: dependencies that have not ended */
    uint32_t *group_waits;       /* per group: members that are not ready */
    uint32_t *ready, n_ready;    /* compute ops, heap by rank */
    uint32_t *done, n_done;      /* ended in this turn, to be passed on */
    uint32_t *held;              /* ready ops whose GPU is taken in this turn */
    uint32_t *last, *turn;       /* per GPU: its last op; the turn it was taken in, + 1 */
    uint32_t *before_n;          /* per op: entries of `before` */
    uint32_t (*before)[2];       /* (op, what it waits for) */
    uint32_t n_before, cap_before, n_run, n_gpus;
};

static bool is_compute(const struct dt_op *op)
{
    return dt_op_resource(op->kind) == DT_RES_COMPUTE;
}

/* ---- who waits for whom ---- */

/* Calls for the j-th dependency of op i: DT_NONE ends the list.  A RECV waits for its SEND. */
static uint32_t dep_at(const struct dt_program *p, uint32_t i, uint32_t j)
{
    const struct dt_op *op = &p->ops[i];

    for (int k = 0; k < 3; k++)
        if (op->dep[k] != DT_NONE && j-- == 0)
            return op->dep[k];
    if (j < op->more_n)
        return p->deps[op->more_first + j];
    return op->kind == DT_OP_RECV && j == op->more_n ? op->peer : DT_NONE;
}

static bool depends(const struct dt_program *p, uint32_t i, uint32_t on)
{
    uint32_t d;

    for (uint32_t j = 0; (d = dep_at(p, i, j)) != DT_NONE; j++)
        if (d == on)
            return true;
    return false;
}

static int link_all(struct merge *g, struct dt_arena *a)
{
    const struct dt_program *p = g->p;
    uint32_t sum = 0, d;

    g->succ_first = DT_ARENA_NEW(a, uint32_t, (size_t)p->n_ops + 2);
    g->waits = DT_ARENA_NEW(a, uint32_t, (size_t)p->n_ops + 1);
    if (!g->succ_first || !g->waits)
        return -1;
    for (uint32_t i = 0; i < p->n_ops; i++)
        for (uint32_t j = 0; (d = dep_at(p, i, j)) != DT_NONE; j++) {
            g->succ_first[d + 1]++;
            g->waits[i]++;
            sum++;
        }
    for (uint32_t i = 0; i < p->n_ops; i++)
        g->succ_first[i + 1] += g->succ_first[i];
    g->succ = DT_ARENA_NEW(a, uint32_t, (size_t)sum + 1);
    if (!g->succ)
        return -1;
    for (uint32_t i = p->n_ops; i-- > 0;)
        for (uint32_t j = 0; (d = dep_at(p, i, j)) != DT_NONE; j++)
            g->succ[--g->succ_first[d + 1]] = i;
    memmove(g->succ_first, g->succ_first + 1, (size_t)p->n_ops * sizeof(uint32_t));
    g->succ_first[p->n_ops] = sum;
    return 0;
}

/* ---- the order of choice ---- */

static bool before(const struct dt_program *p, uint32_t a, uint32_t b)
{
    const struct dt_op *x = &p->ops[a], *y = &p->ops[b];
    bool xb = x->kind == DT_OP_BACKWARD || x->kind == DT_OP_WEIGHT_GRAD;
    bool yb = y->kind == DT_OP_BACKWARD || y->kind == DT_OP_WEIGHT_GRAD;

    if (xb != yb)
        return xb;
    if (x->mb != y->mb)
        return x->mb < y->mb;
    return x->module != y->module ? x->module < y->module : a < b;
}

DT_HEAP(ops, const struct dt_program *, uint32_t, 2, before, DT_HEAP_SET)

static void ready_push(struct merge *g, uint32_t op)
{
    ops_push(g->p, g->ready, g->n_ready++, op);
}

static uint32_t ready_pop(struct merge *g)
{
    return ops_pop(g->p, g->ready, g->n_ready--);
}

/* ---- running ---- */

/* All that op i waits for has ended. */
static void make_ready(struct merge *g, uint32_t i)
{
    const struct dt_op *op = &g->p->ops[i];
    const struct dt_group *x;

    if (is_compute(op)) {
        ready_push(g, i);
        return;
    }
    if (dt_op_resource(op->kind) != DT_RES_COLL) {
        g->done[g->n_done++] = i;
        return;
    }
    x = &g->p->groups[op->peer];
    if (--g->group_waits[op->peer] > 0)
        return;
    for (uint32_t k = 0; k < x->n; k++)
        g->done[g->n_done++] = g->p->group_ops[x->first + k];
}

/* Ops that are done make those ready that waited for nothing else. */
static void complete_all(struct merge *g)
{
    while (g->n_done > 0) {
        uint32_t i = g->done[--g->n_done];

        for (uint32_t k = g->succ_first[i]; k < g->succ_first[i + 1]; k++)
            if (--g->waits[g->succ[k]] == 0)
                make_ready(g, g->succ[k]);
    }
}

static enum dt_status note(struct merge *g, uint32_t op, uint32_t waits_for, struct dt_error *err)
{
    if (g->n_before == g->cap_before) {
        uint32_t cap = g->cap_before * 2 + 64;
        void *grown = dt_realloc(g->before, (size_t)cap * sizeof(*g->before));

        if (!grown)
            return dt_error_nomem(err, "turns of colocated modules");
        g->before = grown;
        g->cap_before = cap;
    }
    g->before[g->n_before][0] = op;
    g->before[g->n_before++][1] = waits_for;
    g->before_n[op]++;
    return DT_OK;
}

static bool gpus_free(const struct merge *g, const struct dt_lane *l, uint32_t turn)
{
    for (uint32_t k = l->first_gpu; k < l->first_gpu + l->gpus; k++)
        if (g->turn[k] == turn)
            return false;
    return true;
}

static enum dt_status start(struct merge *g, uint32_t i, uint32_t turn, struct dt_error *err)
{
    const struct dt_op *op = &g->p->ops[i];
    const struct dt_lane *l = &g->p->lanes[op->lane];
    uint32_t noted = g->n_before;

    for (uint32_t k = l->first_gpu; k < l->first_gpu + l->gpus; k++) {
        uint32_t last = g->last[k];
        bool known = last == DT_NONE || g->p->ops[last].lane == op->lane || depends(g->p, i, last);

        for (uint32_t j = noted; j < g->n_before; j++)
            known |= g->before[j][1] == last;
        if (!known)
            DT_TRY(note(g, i, last, err));
        g->last[k] = i;
        g->turn[k] = turn;
    }
    g->n_run++;
    return DT_OK;
}

static enum dt_status run(struct merge *g, struct dt_error *err)
{
    uint32_t *started = g->held + g->p->n_ops;

    for (uint32_t i = 0; i < g->p->n_ops; i++)
        if (g->waits[i] == 0)
            make_ready(g, i);
    complete_all(g);
    for (uint32_t turn = 1; g->n_ready > 0; turn++) {
        uint32_t n_held = 0, n_started = 0;

        while (g->n_ready > 0) {
            uint32_t i = ready_pop(g);

            if (!gpus_free(g, &g->p->lanes[g->p->ops[i].lane], turn)) {
                g->held[n_held++] = i;
                continue;
            }
            DT_TRY(start(g, i, turn, err));
            started[n_started++] = i;
        }
        while (n_held > 0)
            ready_push(g, g->held[--n_held]);
        for (uint32_t k = 0; k < n_started; k++) {
            g->done[g->n_done++] = started[k];
            complete_all(g);
        }
    }
    return DT_OK;
}

/* ---- writing the dependencies ---- */

/* Lists longer than an op's own three places are contiguous, so the table is written anew. */
static int write_deps(struct merge *g)
{
    struct dt_program *p = g->p;
    uint32_t *old = p->deps, at = 0;
    uint32_t *deps = DT_ARENA_NEW(&p->arena, uint32_t, (size_t)p->n_deps + g->n_before + 1);

    if (!deps)
        return -1;
    for (uint32_t i = 0; i < p->n_ops; i++) {
        struct dt_op *op = &p->ops[i];

        if (op->more_n > 0) {
            memcpy(deps + at, old + op->more_first, op->more_n * sizeof(*deps));
            op->more_first = at;
            at += op->more_n;
        }
        if (g->before_n[i] == 0)
            continue;
        if (op->more_n == 0)
            op->more_first = at;
        at += g->before_n[i]; /* room for all of them; what fits into dep[] is given back below */
    }
    for (uint32_t k = 0; k < g->n_before; k++) {
        struct dt_op *op = &p->ops[g->before[k][0]];
        uint32_t *free_dep = op->dep[1] == DT_NONE   ? &op->dep[1]
                             : op->dep[2] == DT_NONE ? &op->dep[2]
                                                     : &deps[op->more_first + op->more_n++];

        *free_dep = g->before[k][1];
    }
    p->deps = deps;
    p->n_deps = at;
    return 0;
}

static int merge_init(struct merge *g, struct dt_arena *a)
{
    const struct dt_program *p = g->p;

    for (int l = 0; l < p->n_lanes; l++)
        if (p->lanes[l].first_gpu + p->lanes[l].gpus > g->n_gpus)
            g->n_gpus = p->lanes[l].first_gpu + p->lanes[l].gpus;
    g->group_waits = DT_ARENA_NEW(a, uint32_t, (size_t)p->n_groups + 1);
    g->ready = DT_ARENA_NEW(a, uint32_t, (size_t)p->n_ops + 1);
    g->done = DT_ARENA_NEW(a, uint32_t, (size_t)p->n_ops + 1);
    g->held = DT_ARENA_NEW(a, uint32_t, 2 * (size_t)p->n_ops + 1);
    g->last = DT_ARENA_NEW(a, uint32_t, (size_t)g->n_gpus + 1);
    g->turn = DT_ARENA_NEW(a, uint32_t, (size_t)g->n_gpus + 1);
    g->before_n = DT_ARENA_NEW(a, uint32_t, (size_t)p->n_ops + 1);
    if (!g->group_waits || !g->ready || !g->done || !g->held || !g->last || !g->turn ||
        !g->before_n)
        return -1;
    memset(g->last, 0xff, (size_t)g->n_gpus * sizeof(*g->last));
    for (uint32_t i = 0; i < p->n_groups; i++)
        g->group_waits[i] = p->groups[i].n;
    return link_all(g, a);
}

enum dt_status dt_sched_colocate(struct dt_sched *s, struct dt_program *p, struct dt_error *err)
{
    struct merge g = {.s = s, .p = p};
    uint32_t to_run = 0;
    enum dt_status st;

    if (!s->plan->colocated)
        return DT_OK;
    if (merge_init(&g, &s->arena) != 0)
        return dt_error_nomem(err, "turns of colocated modules");
    for (uint32_t i = 0; i < p->n_ops; i++)
        to_run += is_compute(&p->ops[i]);
    st = run(&g, err);
    if (st == DT_OK && g.n_run != to_run)
        st =
            dt_error_set(err, DT_ERR_INFEASIBLE,
                         "colocated modules: %u of %u compute ops can never run: the lanes' orders "
                         "wait for each other",
                         to_run - g.n_run, to_run);
    if (st == DT_OK && write_deps(&g) != 0)
        st = dt_error_nomem(err, "turns of colocated modules");
    dt_free(g.before);
    return st;
}
