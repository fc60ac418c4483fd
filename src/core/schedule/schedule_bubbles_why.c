/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * What placing guests' work into bubbles has changed, and what keeps the iteration from being shorter: chains of ops, the work
 * of a GPU, what guests may hold. */
#include "core/schedule/schedule_bubbles.h"

#include "core/schedule/schedule_turns_impl.h"

#include "base/heap.h"

#include <stdlib.h>
#include <string.h>

/* ---- one GPU ---- */

struct job {
    int64_t head_ns, ns, tail_ns; /* before it at least, its own, behind it at least */
    uint32_t op;
};

static int by_head(const void *va, const void *vb)
{
    const struct job *a = va, *b = vb;

    if (a->head_ns != b->head_ns)
        return a->head_ns < b->head_ns ? -1 : 1;
    return a->op < b->op ? -1 : a->op > b->op;
}

#define LONGER(ctx, a, b) ((a).tail_ns != (b).tail_ns ? (a).tail_ns > (b).tail_ns : (a).op < (b).op)
DT_HEAP(jobs, const void *, struct job, 4, LONGER, DT_HEAP_SET)

/* No order of a GPU's ops ends sooner than the one that always works on what has most behind it, and may leave it for
 * another op (Jackson 1955, the bound of one machine).  `heap`: room for n. */
static int64_t one_gpu_ns(struct job *x, uint32_t n, struct job *heap)
{
    int64_t now = 0, least = 0;
    uint32_t i = 0, waiting = 0;

    qsort(x, n, sizeof(*x), by_head);
    while (i < n || waiting > 0) {
        if (waiting == 0)
            now = dt_sched_turns_most(now, x[i].head_ns);
        while (i < n && x[i].head_ns <= now)
            jobs_push(NULL, heap, waiting++, x[i++]);
        if (i < n && now + heap[0].ns > x[i].head_ns) {
            heap[0].ns -= x[i].head_ns - now; /* not what orders the heap */
            now = x[i].head_ns;
            continue;
        }
        now += heap[0].ns;
        least = dt_sched_turns_most(least, now + heap[0].tail_ns);
        jobs_pop(NULL, heap, waiting--);
    }
    return least;
}

/* When every op could begin if GPUs were free: the ops behind what they wait for, as they are in `order`. */
static void find_heads(const struct dt_sched_turns_runs *g, const uint32_t *order, int64_t *head)
{
    memset(head, 0, g->p->n_ops * sizeof(*head));
    for (uint32_t at = 0; at < g->p->n_ops; at++) {
        uint32_t i = order[at];
        const struct dt_sched_turns_node *x = &g->node[i];

        for (uint32_t k = x->succ_first; k < x[1].succ_first; k++)
            head[g->succ[k]] = dt_sched_turns_most(head[g->succ[k]], head[i] + x->ns);
    }
}

static int find_work(const struct dt_sched_turns_runs *g, const uint32_t *order, int64_t *work_ns)
{
    struct dt_arena *a = &g->s->arena;
    const struct dt_program *p = g->p;
    struct job *job = dt_arena_alloc_raw(a, (size_t)p->n_ops + 1, sizeof(*job));
    struct job *heap = dt_arena_alloc_raw(a, (size_t)p->n_ops + 1, sizeof(*heap));
    int64_t *head = dt_arena_alloc_raw(a, (size_t)p->n_ops + 1, sizeof(*head));

    if (!job || !heap || !head)
        return -1;
    find_heads(g, order, head);
    for (uint32_t k = 0; k < g->n_gpus; k++) {
        uint32_t n = 0;

        for (int l = 0; l < p->n_lanes; l++) {
            if (k - g->lane[l].first_gpu >= g->lane[l].gpus) /* or below it */
                continue;
            for (uint32_t i = p->lanes[l].first; i < p->lanes[l].first + p->lanes[l].n; i++)
                if (dt_sched_turns_class_of(&g->node[i]) == DT_SCHED_TURNS_COMPUTE)
                    job[n++] =
                        (struct job){head[i], g->node[i].ns, g->node[i].behind - g->node[i].ns, i};
        }
        *work_ns = dt_sched_turns_most(*work_ns, one_gpu_ns(job, n, heap));
    }
    return 0;
}

/* ---- without the bound on what guests hold ---- */

static bool is_guest(const struct dt_sched *s, const struct dt_op *op)
{
    return dt_plan_host(s->plan, op->module) != op->module;
}

static bool add_dep(struct dt_op *op, uint32_t d)
{
    for (int k = 1; k < 3; k++)
        if (op->dep[k] == DT_NONE || op->dep[k] == d) {
            op->dep[k] = d;
            return true;
        }
    return false;
}

/* Forwards of a guest's lane wait for forwards alone, backwards for backwards and their own forward. */
static void free_lane(const struct dt_lane *l, struct dt_op *ops)
{
    uint32_t forward = DT_NONE, backward = DT_NONE;

    for (uint32_t i = l->first; i < l->first + l->n; i++) {
        struct dt_op *op = &ops[i];
        uint32_t own = i;

        if (op->kind == DT_OP_FORWARD) {
            op->dep[0] = forward;
            forward = i;
        } else if (op->kind == DT_OP_BACKWARD) {
            while (own > l->first && (ops[own].kind != DT_OP_FORWARD || ops[own].mb != op->mb ||
                                      ops[own].chunk != op->chunk))
                own--;
            if (ops[own].kind == DT_OP_FORWARD && add_dep(op, own))
                op->dep[0] = backward;
            backward = i;
        }
    }
}

/* Where turns in which the iteration is shorter are found from those of `t`, when it ends in them. */
static enum dt_status find_free(struct dt_sched_turns_runs *g, const struct dt_sched_turns *t,
                                struct dt_error *err, int64_t *free_ns)
{
    struct dt_arena *a = &g->s->arena;
    struct dt_program p = *g->p;
    int64_t *ns = dt_arena_alloc_raw(a, (size_t)p.n_ops + 1, sizeof(*ns));
    struct dt_op *ops = dt_arena_alloc_raw(a, (size_t)p.n_ops + 1, sizeof(*ops));
    struct dt_sched_turns_runs *other;
    struct dt_sched_turns free;
    enum dt_status st;

    if (!ns || !ops)
        return dt_error_nomem(err, "bubbles of a program");
    for (uint32_t i = 0; i < p.n_ops; i++) {
        ns[i] = g->node[i].ns;
        ops[i] = p.ops[i];
    }
    p.ops = ops;
    for (int l = 0; l < p.n_lanes; l++)
        if (p.lanes[l].n > 0 && is_guest(g->s, &ops[p.lanes[l].first]))
            free_lane(&p.lanes[l], ops);
    other = dt_sched_turns_prepare(g->s, &p, ns);
    if (!other)
        return dt_error_nomem(err, "bubbles of a program");
    dt_sched_turns_find_behind(other);
    DT_TRY(dt_sched_turns_new(&p, true, err, &free));
    memcpy(free.order, t->order, p.n_ops * sizeof(*free.order));
    st = dt_sched_bubbles_fill(other, true, err, &free);
    *free_ns = free.end_ns;
    dt_sched_turns_free(&free);
    return st;
}

/* ---- all of it ---- */

/* Which op of its GPU each one is, into `rank`; the first GPU of its lane. */
static void find_ranks(const struct dt_sched_turns_runs *g, const uint32_t *order, uint32_t *count,
                       uint32_t *rank)
{
    memset(count, 0, g->n_gpus * sizeof(*count));
    for (uint32_t at = 0; at < g->p->n_ops; at++) {
        const struct dt_sched_turns_node *x = &g->node[order[at]];
        const struct dt_sched_turns_lane *l = &g->lane[dt_sched_turns_of(x)];

        if (dt_sched_turns_class_of(x) != DT_SCHED_TURNS_COMPUTE)
            continue;
        rank[order[at]] = count[l->first_gpu];
        for (uint32_t k = l->first_gpu; k < l->first_gpu + l->gpus; k++)
            count[k]++;
    }
}

static int count_moved(const struct dt_sched_turns_runs *g, const uint32_t *before,
                       const uint32_t *order, struct dt_sched_bubbles *out)
{
    struct dt_arena *a = &g->s->arena;
    uint32_t *count = DT_ARENA_NEW(a, uint32_t, (size_t)g->n_gpus + 1), *rank[2];

    for (int k = 0; k < 2; k++)
        if (!(rank[k] = DT_ARENA_NEW(a, uint32_t, (size_t)g->p->n_ops + 1)))
            return -1;
    if (!count)
        return -1;
    find_ranks(g, before, count, rank[0]);
    find_ranks(g, order, count, rank[1]);
    for (uint32_t i = 0; i < g->p->n_ops; i++)
        if (dt_sched_turns_class_of(&g->node[i]) == DT_SCHED_TURNS_COMPUTE &&
            is_guest(g->s, &g->p->ops[i])) {
            out->guest_ops++;
            out->moved += rank[0][i] != rank[1][i];
        }
    return 0;
}

enum dt_status dt_sched_bubbles_explain(struct dt_sched_turns_runs *g, const uint32_t *before,
                                        const struct dt_sched_turns *t, struct dt_error *err,
                                        struct dt_sched_bubbles *out)
{
    dt_sched_turns_find_behind(g); /* passes have written over it */
    if (find_work(g, t->order, &out->work_ns) != 0 || count_moved(g, before, t->order, out) != 0)
        return dt_error_nomem(err, "bubbles of a program");
    out->free_ns = 0;
    return g->phases || g->partners.any ? DT_OK : find_free(g, t, err, &out->free_ns);
}
