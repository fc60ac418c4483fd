/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Lanes that share GPUs take turns.
 *
 * Every lane keeps its own order; this pass merges the orders of the lanes of a GPU into one, by
 * running the program once.  A free GPU takes, of the compute ops that are ready, the first by a rule.
 * Each op then waits for the one before it on its GPUs, as an explicit dependency: simulator and
 * executor need not know what a GPU is.  The dependencies follow an order that has just been run, so
 * they close no cycle, and they only delay, so what a lane holds in flight stays within its bound.
 * A GPU with one lane gets none.
 *
 * Rules:
 *
 *     oldest    a backward first, then the lowest slot, then the upstream module, then the lower op
 *     longest   the op behind which most time passes to the end of the iteration, on the longest path
 *
 * Colocated plans (`colocated: true`) take "oldest" in turns of equal length, communication being over
 * at once.  Plans with guests are run with the durations of their ops, by both rules, and the run
 * that ends first gives the order ("oldest" unless the other is faster): "oldest" is right where all
 * modules meet on one GPU, but on the GPUs of a deep pipeline it runs a guest's backward as soon as it
 * can, before a forward of the host that the next stage waits for.
 *
 * With durations, an op that is first by the rule but finds some of its GPUs busy keeps the others for
 * itself: narrow guests would else take the GPUs of a wide lane in turn, and it would never run. */
#include "core/schedule/schedule_impl.h"

#include "base/heap.h"
#include "base/mem.h"
#include "core/schedule/timeline.h"

#include <string.h>

struct event { /* the end of an op, or of all ops of a group */
    int64_t ns;
    uint32_t op; /* or GROUP and the group */
};
#define GROUP (1U << 31)

/* What ops wait for so that lanes take turns, and when the run that it comes from has ended. */
struct turns {
    uint32_t *before_n;    /* per op: entries of `before` */
    uint32_t (*before)[2]; /* (op, what it waits for) */
    uint32_t n, cap;
    int64_t end_ns;
    uint32_t *order, n_order; /* ops as they ended */
};

struct merge {
    struct dt_sched *s;
    struct dt_program *p;
    uint32_t *succ_first, *succ; /* ops that wait for each op */
    uint32_t n_gpus;
    /* lanes that share GPUs, directly or over others, are an island */
    uint32_t *island, n_islands;       /* per lane */
    uint32_t *island_first, *lanes_of; /* its lanes */
    uint32_t islanders;                /* lanes of the largest */
    /* the rule */
    const int64_t *ns; /* per op */
    const int64_t
        *behind; /* per op: to the end of the iteration on the longest path; NULL: oldest first */
    bool keeps;  /* an op that is blocked keeps its free GPUs */
    /* the run */
    int64_t now;
    uint32_t *waits;       /* per op: dependencies that have not ended */
    uint32_t *group_waits; /* per group: members that are not ready */
    struct event *heap;    /* what is under way */
    uint32_t n_heap, n_run;
    uint32_t *over, n_over;  /* ops that have ended, and what waits for them does not know yet */
    uint32_t *ready;         /* per lane: its compute op that is ready, or DT_NONE */
    bool *stirred;           /* per island: something became ready or free */
    uint32_t *stir, n_stir;  /* those */
    uint32_t *last;          /* per GPU: its last op */
    bool *busy;              /* per GPU */
    uint32_t *kept, keeping; /* per GPU: the look at its island in which it was kept for an op */
    uint32_t *choice;        /* [islanders] */
    struct turns *turns;
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
    if (!g->succ_first)
        return -1;
    for (uint32_t i = 0; i < p->n_ops; i++)
        for (uint32_t j = 0; (d = dep_at(p, i, j)) != DT_NONE; j++) {
            g->succ_first[d + 1]++;
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

/* Colocated plans count microbatches, as they have always done; of a module with more replicas than a slot has samples
 * they are not those of the slots. */
static uint32_t age(const struct merge *g, const struct dt_op *op)
{
    const struct dt_assignment_module *a = &g->s->a->m[op->module];

    if (op->mb == DT_NONE || g->s->plan->colocated)
        return op->mb;
    return a->mb[a->mb_first[op->replica] + op->mb].slot;
}

static bool before(const struct merge *g, uint32_t a, uint32_t b)
{
    const struct dt_op *x = &g->p->ops[a], *y = &g->p->ops[b];
    bool xb = x->kind == DT_OP_BACKWARD || x->kind == DT_OP_WEIGHT_GRAD;
    bool yb = y->kind == DT_OP_BACKWARD || y->kind == DT_OP_WEIGHT_GRAD;
    uint32_t x_age, y_age;

    if (g->behind && g->behind[a] != g->behind[b])
        return g->behind[a] > g->behind[b];
    if (xb != yb)
        return xb;
    x_age = age(g, x);
    y_age = age(g, y);
    if (x_age != y_age)
        return x_age < y_age;
    return x->module != y->module ? x->module < y->module : a < b;
}

/* ---- running ---- */

#define EARLIER(ctx, a, b) ((a).ns != (b).ns ? (a).ns < (b).ns : (a).op < (b).op)
DT_HEAP(events, const void *, struct event, 4, EARLIER, DT_HEAP_SET)

static void ends_later(struct merge *g, uint32_t op, int64_t ns)
{
    events_push(NULL, g->heap, g->n_heap++, (struct event){g->now + ns, op});
}

static void stir(struct merge *g, uint32_t lane)
{
    uint32_t island = g->island[lane];

    if (!g->stirred[island])
        g->stir[g->n_stir++] = island;
    g->stirred[island] = true;
}

/* All that op i waits for has ended. */
static void make_ready(struct merge *g, uint32_t i)
{
    const struct dt_op *op = &g->p->ops[i];
    const struct dt_group *x;

    if (is_compute(op)) {
        g->ready[op->lane] = i;
        stir(g, op->lane);
        return;
    }
    if (dt_op_resource(op->kind) != DT_RES_COLL) {
        if (g->ns[i] > 0)
            ends_later(g, i, g->ns[i]);
        else
            g->over[g->n_over++] = i;
        return;
    }
    if (--g->group_waits[op->peer] > 0)
        return;
    x = &g->p->groups[op->peer];
    ends_later(g, GROUP | op->peer, g->ns[g->p->group_ops[x->first]]); /* of all alike */
}

static void tell(struct merge *g, uint32_t i)
{
    const struct dt_op *op = &g->p->ops[i];

    if (is_compute(op)) {
        const struct dt_lane *l = &g->p->lanes[op->lane];

        memset(g->busy + l->first_gpu, 0, l->gpus * sizeof(*g->busy));
        stir(g, op->lane);
    }
    for (uint32_t k = g->succ_first[i]; k < g->succ_first[i + 1]; k++)
        if (--g->waits[g->succ[k]] == 0)
            make_ready(g, g->succ[k]);
}

/* What takes no time, such as a RECV, ends with what it waited for, and never lies in the heap.  Members of a group stand
 * side by side in the order of ends. */
static void tell_all(struct merge *g)
{
    while (g->n_over > 0) {
        uint32_t i = g->over[--g->n_over];

        g->turns->order[g->turns->n_order++] = i;
        tell(g, i);
    }
}

static void end(struct merge *g, uint32_t what)
{
    const struct dt_group *x = &g->p->groups[what & ~GROUP];

    if (!(what & GROUP)) {
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

static enum dt_status note(struct turns *t, uint32_t op, uint32_t waits_for, struct dt_error *err)
{
    if (t->n == t->cap) {
        uint32_t cap = t->cap * 2 + 64;
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

static enum dt_status start(struct merge *g, uint32_t i, struct dt_error *err)
{
    const struct dt_op *op = &g->p->ops[i];
    const struct dt_lane *l = &g->p->lanes[op->lane];
    uint32_t noted = g->turns->n;

    for (uint32_t k = l->first_gpu; k < l->first_gpu + l->gpus; k++) {
        uint32_t last = g->last[k];
        bool known = last == DT_NONE || g->p->ops[last].lane == op->lane || depends(g->p, i, last);

        for (uint32_t j = noted; j < g->turns->n; j++)
            known |= g->turns->before[j][1] == last;
        if (!known)
            DT_TRY(note(g->turns, i, last, err));
        g->last[k] = i;
        g->busy[k] = true;
    }
    g->ready[op->lane] = DT_NONE;
    g->n_run++;
    ends_later(g, i, g->ns[i]);
    return DT_OK;
}

static bool gpus_free(const struct merge *g, const struct dt_lane *l)
{
    for (uint32_t k = l->first_gpu; k < l->first_gpu + l->gpus; k++)
        if (g->busy[k] || g->kept[k] == g->keeping)
            return false;
    return true;
}

/* The ready ops of an island, first by the rule first. */
static uint32_t choices(struct merge *g, uint32_t island)
{
    uint32_t n = 0;

    for (uint32_t k = g->island_first[island]; k < g->island_first[island + 1]; k++) {
        uint32_t op = g->ready[g->lanes_of[k]], j = n;

        if (op == DT_NONE)
            continue;
        for (; j > 0 && before(g, op, g->choice[j - 1]); j--)
            g->choice[j] = g->choice[j - 1];
        g->choice[j] = op;
        n++;
    }
    return n;
}

static enum dt_status choose(struct merge *g, uint32_t island, struct dt_error *err)
{
    uint32_t n = choices(g, island);

    g->keeping++;
    for (uint32_t c = 0; c < n; c++) {
        const struct dt_lane *l = &g->p->lanes[g->p->ops[g->choice[c]].lane];

        if (gpus_free(g, l))
            DT_TRY(start(g, g->choice[c], err));
        else
            for (uint32_t k = l->first_gpu; g->keeps && k < l->first_gpu + l->gpus; k++)
                g->kept[k] = g->keeping;
    }
    return DT_OK;
}

static void rewind_all(struct merge *g)
{
    const struct dt_program *p = g->p;

    g->now = 0;
    g->n_heap = g->n_run = g->n_over = g->n_stir = g->keeping = 0;
    memset(g->waits, 0, (size_t)p->n_ops * sizeof(*g->waits));
    memset(g->last, 0xff, (size_t)g->n_gpus * sizeof(*g->last));
    memset(g->kept, 0, (size_t)g->n_gpus * sizeof(*g->kept));
    memset(g->busy, 0, (size_t)g->n_gpus * sizeof(*g->busy));
    memset(g->stirred, 0, (size_t)g->n_islands * sizeof(*g->stirred));
    memset(g->ready, 0xff, (size_t)p->n_lanes * sizeof(*g->ready));
    for (uint32_t k = 0; k < g->succ_first[p->n_ops]; k++)
        g->waits[g->succ[k]]++;
    for (uint32_t i = 0; i < p->n_groups; i++)
        g->group_waits[i] = p->groups[i].n;
}

static enum dt_status run(struct merge *g, struct turns *t, struct dt_error *err)
{
    uint32_t to_run = 0;

    rewind_all(g);
    g->turns = t;
    t->n_order = 0;
    for (uint32_t i = 0; i < g->p->n_ops; i++) {
        to_run += is_compute(&g->p->ops[i]);
        t->before_n[i] = 0;
    }
    for (uint32_t i = 0; i < g->p->n_ops; i++)
        if (g->waits[i] == 0)
            make_ready(g, i);
    tell_all(g);
    do {
        while (g->n_heap > 0 && g->heap[0].ns == g->now)
            end(g, events_pop(NULL, g->heap, g->n_heap--).op);
        while (g->n_stir > 0) {
            g->stirred[g->stir[--g->n_stir]] = false;
            DT_TRY(choose(g, g->stir[g->n_stir], err));
        }
        if (g->n_heap > 0)
            g->now = g->heap[0].ns;
    } while (g->n_heap > 0);
    t->end_ns = g->now;
    if (g->n_run == to_run && t->n_order == g->p->n_ops)
        return DT_OK;
    return dt_error_set(err, DT_ERR_INFEASIBLE,
                        "modules on the same GPUs: %u of %u compute ops can never run: the lanes' "
                        "orders wait for each other",
                        to_run - g->n_run, to_run);
}

/* ---- writing the dependencies ---- */

/* Lists longer than an op's own three places are contiguous, so the table is written anew. */
static int write_deps(struct dt_program *p, const struct turns *t)
{
    uint32_t *old = p->deps, at = 0;
    uint32_t *deps = DT_ARENA_NEW(&p->arena, uint32_t, (size_t)p->n_deps + t->n + 1);

    if (!deps)
        return -1;
    for (uint32_t i = 0; i < p->n_ops; i++) {
        struct dt_op *op = &p->ops[i];

        if (op->more_n > 0) {
            memcpy(deps + at, old + op->more_first, op->more_n * sizeof(*deps));
            op->more_first = at;
            at += op->more_n;
        }
        if (t->before_n[i] == 0)
            continue;
        if (op->more_n == 0)
            op->more_first = at;
        at += t->before_n[i]; /* room for all of them; what fits into dep[] is given back below */
    }
    for (uint32_t k = 0; k < t->n; k++) {
        struct dt_op *op = &p->ops[t->before[k][0]];
        uint32_t *free_dep = op->dep[1] == DT_NONE   ? &op->dep[1]
                             : op->dep[2] == DT_NONE ? &op->dep[2]
                                                     : &deps[op->more_first + op->more_n++];

        *free_dep = t->before[k][1];
    }
    p->deps = deps;
    p->n_deps = at;
    return 0;
}

/* ---- islands ---- */

static uint32_t root_of(uint32_t *up, uint32_t gpu)
{
    while (up[gpu] != gpu)
        gpu = up[gpu] = up[up[gpu]];
    return gpu;
}

static int find_islands(struct merge *g, struct dt_arena *a)
{
    const struct dt_program *p = g->p;
    uint32_t *up = DT_ARENA_NEW(a, uint32_t, (size_t)g->n_gpus + 1);
    uint32_t *number = DT_ARENA_NEW(a, uint32_t, (size_t)g->n_gpus + 1);

    g->island = DT_ARENA_NEW(a, uint32_t, (size_t)p->n_lanes + 1);
    g->island_first = DT_ARENA_NEW(a, uint32_t, (size_t)p->n_lanes + 2);
    g->lanes_of = DT_ARENA_NEW(a, uint32_t, (size_t)p->n_lanes + 1);
    if (!up || !number || !g->island || !g->island_first || !g->lanes_of)
        return -1;
    for (uint32_t k = 0; k < g->n_gpus; k++)
        up[k] = k;
    for (int l = 0; l < p->n_lanes; l++)
        for (uint32_t k = 1; k < p->lanes[l].gpus; k++)
            up[root_of(up, p->lanes[l].first_gpu + k)] = root_of(up, p->lanes[l].first_gpu);
    for (int l = 0; l < p->n_lanes; l++) { /* numbered as their first lanes are */
        uint32_t *n = &number[root_of(up, p->lanes[l].first_gpu)];

        if (*n == 0)
            *n = ++g->n_islands;
        g->island[l] = *n - 1;
        g->island_first[*n]++;
    }
    for (uint32_t k = 0; k < g->n_islands; k++) {
        g->islanders =
            g->island_first[k + 1] > g->islanders ? g->island_first[k + 1] : g->islanders;
        g->island_first[k + 1] += g->island_first[k];
    }
    memset(number, 0, (size_t)g->n_gpus * sizeof(*number)); /* now: lanes written */
    for (int l = 0; l < p->n_lanes; l++)
        g->lanes_of[g->island_first[g->island[l]] + number[g->island[l]]++] = (uint32_t)l;
    return 0;
}

/* ---- time behind every op ---- */

/* Of op i, which is in no group: what is behind all that waits for it. */
static int64_t most_behind(const struct merge *g, const int64_t *behind, uint32_t i)
{
    int64_t most = 0;

    for (uint32_t k = g->succ_first[i]; k < g->succ_first[i + 1]; k++)
        most = behind[g->succ[k]] > most ? behind[g->succ[k]] : most;
    return most;
}

/* `order`: of a run of all ops. */
static enum dt_status find_behind(struct merge *g, const uint32_t *order, struct dt_error *err,
                                  int64_t **out)
{
    const struct dt_program *p = g->p;
    int64_t *behind = DT_ARENA_NEW(&g->s->arena, int64_t, (size_t)p->n_ops + 1);

    if (!behind)
        return dt_error_nomem(err, "turns of colocated modules");
    for (uint32_t k = p->n_ops; k-- > 0;) {
        uint32_t i = order[k];
        const struct dt_op *op = &p->ops[i];
        const struct dt_group *x;
        int64_t most = 0;

        if (dt_op_resource(op->kind) != DT_RES_COLL) {
            behind[i] = g->ns[i] + most_behind(g, behind, i);
            continue;
        }
        x = &p->groups[op->peer]; /* its members are side by side, and end together */
        for (uint32_t m = 0; m < x->n; m++) {
            int64_t b = most_behind(g, behind, p->group_ops[x->first + m]);

            most = b > most ? b : most;
        }
        for (uint32_t m = 0; m < x->n; m++)
            behind[p->group_ops[x->first + m]] = g->ns[i] + most;
        k -= x->n - 1;
    }
    *out = behind;
    return DT_OK;
}

/* ---- which order ---- */

static int merge_init(struct merge *g, struct dt_arena *a)
{
    const struct dt_program *p = g->p;

    for (int l = 0; l < p->n_lanes; l++)
        if (p->lanes[l].first_gpu + p->lanes[l].gpus > g->n_gpus)
            g->n_gpus = p->lanes[l].first_gpu + p->lanes[l].gpus;
    if (find_islands(g, a) != 0)
        return -1;
    g->waits = DT_ARENA_NEW(a, uint32_t, (size_t)p->n_ops + 1);
    g->group_waits = DT_ARENA_NEW(a, uint32_t, (size_t)p->n_groups + 1);
    g->heap = DT_ARENA_NEW(a, struct event, (size_t)p->n_ops + 1);
    g->over = DT_ARENA_NEW(a, uint32_t, (size_t)p->n_ops + 1);
    g->ready = DT_ARENA_NEW(a, uint32_t, (size_t)p->n_lanes + 1);
    g->stirred = DT_ARENA_NEW(a, bool, (size_t)g->n_islands + 1);
    g->stir = DT_ARENA_NEW(a, uint32_t, (size_t)g->n_islands + 1);
    g->choice = DT_ARENA_NEW(a, uint32_t, (size_t)g->islanders + 1);
    g->last = DT_ARENA_NEW(a, uint32_t, (size_t)g->n_gpus + 1);
    g->kept = DT_ARENA_NEW(a, uint32_t, (size_t)g->n_gpus + 1);
    g->busy = DT_ARENA_NEW(a, bool, (size_t)g->n_gpus + 1);
    if (!g->waits || !g->group_waits || !g->heap || !g->over || !g->ready || !g->stirred ||
        !g->stir || !g->choice || !g->last || !g->kept || !g->busy)
        return -1;
    return link_all(g, a);
}

/* Durations where there are no costs: turns of equal length, or a forward of 1 and a backward of 2. */
static int64_t *nominal_ns(struct merge *g, bool equal)
{
    int64_t *ns = DT_ARENA_NEW(&g->s->arena, int64_t, (size_t)g->p->n_ops + 1);

    for (uint32_t i = 0; ns && i < g->p->n_ops; i++) {
        bool whole = g->p->ops[i].kind == DT_OP_BACKWARD && !equal;

        ns[i] = is_compute(&g->p->ops[i]) ? 1 + whole : 0;
    }
    return ns;
}

static enum dt_status run_guests(struct merge *g, struct turns *oldest, struct turns *longest,
                                 struct dt_error *err)
{
    int64_t *behind = NULL;

    g->keeps = true;
    DT_TRY(run(g, oldest, err));
    DT_TRY(find_behind(g, oldest->order, err, &behind));
    g->behind = behind;
    return run(g, longest, err);
}

static enum dt_status run_rules(struct merge *g, struct turns *oldest, struct turns *longest,
                                struct dt_error *err)
{
    struct dt_sched *s = g->s;
    struct dt_durations d = {0};
    enum dt_status st;

    if (s->plan->colocated || !s->cost) {
        g->ns = nominal_ns(g, s->plan->colocated);
        if (!g->ns)
            return dt_error_nomem(err, "turns of colocated modules");
        return s->plan->colocated ? run(g, oldest, err) : run_guests(g, oldest, longest, err);
    }
    DT_TRY(dt_durations_compute(g->p, s->model, s->cluster, s->cost, false, err, &d));
    g->ns = d.ns;
    st = run_guests(g, oldest, longest, err);
    if (st == DT_OK)
        s->dur = d;
    else
        dt_durations_free(&d);
    return st;
}

static void take_order(struct dt_sched *s, struct turns *t)
{
    s->order = t->order;
    t->order = NULL;
}

enum dt_status dt_sched_colocate(struct dt_sched *s, struct dt_program *p, struct dt_error *err)
{
    struct merge g = {.s = s, .p = p};
    struct turns oldest = {.end_ns = INT64_MAX}, longest = {.end_ns = INT64_MAX}, *best;
    enum dt_status st;

    if (!dt_plan_shares(s->plan))
        return DT_OK;
    oldest.order = dt_malloc(((size_t)p->n_ops + 1) * sizeof(uint32_t));
    longest.order = dt_malloc(((size_t)p->n_ops + 1) * sizeof(uint32_t));
    oldest.before_n = DT_ARENA_NEW(&s->arena, uint32_t, (size_t)p->n_ops + 1);
    longest.before_n = DT_ARENA_NEW(&s->arena, uint32_t, (size_t)p->n_ops + 1);
    if (!oldest.order || !longest.order || !oldest.before_n || !longest.before_n ||
        merge_init(&g, &s->arena) != 0)
        st = dt_error_nomem(err, "turns of colocated modules");
    else
        st = run_rules(&g, &oldest, &longest, err);
    best = longest.end_ns < oldest.end_ns ? &longest : &oldest;
    if (st == DT_OK && write_deps(p, best) != 0)
        st = dt_error_nomem(err, "turns of colocated modules");
    if (st == DT_OK)
        take_order(s, best);
    dt_free(oldest.before);
    dt_free(oldest.order);
    dt_free(longest.before);
    dt_free(longest.order);
    return st;
}
