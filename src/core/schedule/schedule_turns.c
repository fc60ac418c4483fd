/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Lanes that share GPUs take turns: a run of the program with a rule for who is next.
 *
 * An event is the end of an op that takes time, or of a group of such; what takes none ends with what it waited for.
 * GPUs on which the very same lanes lie are busy and free together, and count as one.
 * Lanes that share GPUs, directly or over others, are an island.  Where something became ready or free, the free GPUs of
 * the island are given away.  Searches run millions of ops here, so an op is half a cache line, and what the rule
 * compares lies with the lane. */
#include "core/schedule/schedule_turns.h"

#include "core/schedule/program_partners.h"
#include "core/schedule/schedule_phases.h"

#include "base/heap.h"
#include "base/mem.h"

#include <string.h>

enum class {       /* of an op */
             FREE, /* begins when it is ready: no compute, or that of a lane which shares no GPU */
             COMPUTE, /* waits for its turn */
             MEMBER   /* of a group, with which it begins and ends */
};

struct node { /* an op */
    int64_t ns,
        behind; /* how long it takes; from its begin to the end of the iteration on the longest path */
    uint32_t needs;      /* how much it waits for, */
    uint32_t waits;      /* and how much of that has not ended */
    uint32_t succ_first; /* what waits for it: succ[succ_first .. the next node's) */
    uint32_t of;         /* CLASS << CLASS_SHIFT | lane or group */
};
#define CLASS_SHIFT 30
#define OF_MASK ((1U << CLASS_SHIFT) - 1)

struct event { /* the end of an op, or of all ops of a group */
    int64_t ns;
    uint64_t op; /* or GROUP and the group */
};
#define GROUP (1U << 31)

struct island {
    uint32_t first, n; /* its lanes: lanes_of[first .. first + n) */
    uint32_t gpus, free;
    uint32_t ready; /* lanes with an op that could begin */
    bool stirred;   /* something became ready or free */
};
struct lane {
    uint32_t first_gpu, gpus; /* of those that count */
    uint32_t ready;           /* its compute op that could begin, or DT_NONE */
    uint32_t island;
    uint64_t age;   /* of that op, where the oldest is first; */
    int64_t behind; /* else what is behind it */
};
struct gpu {       /* all on which the same lanes lie */
    uint32_t last; /* its last op, DT_NONE */
    uint32_t kept; /* the look at its island in which it was kept for an op */
    bool busy;
};

struct dt_sched_turns_runs {
    struct dt_sched *s;
    const struct dt_program *p;
    struct node *node;
    uint32_t *succ, *deps; /* deps: room for those of one op */
    struct lane *lane;
    struct island *island;
    struct gpu *gpu;
    struct dt_sched_phases *phases;      /* NULL: no module has phases */
    struct dt_program_partners partners; /* ops that expert groups run together */
    uint32_t *lanes_of;
    uint32_t n_gpus, n_islands;
    /* a run */
    struct dt_sched_turns_rule rule;
    struct dt_sched_turns *turns;
    int64_t now;
    uint32_t *group_waits; /* per group: members that are not ready */
    struct event *heap;    /* what is under way */
    bool hole;             /* heap[0] was taken */
    uint32_t n_heap;
    uint32_t *over, n_over; /* ops that have ended, and what waits for them does not know yet */
    uint32_t *stir, n_stir; /* islands */
    uint32_t *choice;       /* lanes of an island */
    uint32_t looks;
    bool given_up;
};

static enum class class_of(const struct node *x) { return (enum class)(x->of >> CLASS_SHIFT); }
static uint32_t of(const struct node *x)
{
    return x->of & OF_MASK;
}

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

/* A compute op that takes no time waits for its turn anywhere: what ends at the same instant is seen first. */
static uint32_t class_and_of(const struct dt_sched_turns_runs *g, const struct dt_op *op,
                             int64_t ns)
{
    bool alone = g->island[g->lane[op->lane].island].n == 1 && ns > 0 &&
                 g->p->plan->modules[op->module].layout.ep <= 1; /* else it begins with others */

    switch (dt_op_resource(op->kind)) {
    case DT_RES_COMPUTE:
        return (uint32_t)(alone ? FREE : COMPUTE) << CLASS_SHIFT | op->lane;
    case DT_RES_COLL:
        return (uint32_t)MEMBER << CLASS_SHIFT | op->peer;
    case DT_RES_P2P_OUT:
    case DT_RES_P2P_IN:
    case DT_RES_N:
        break;
    }
    return (uint32_t)FREE << CLASS_SHIFT;
}

/* The nodes, and what waits for each. */
static int link_all(struct dt_sched_turns_runs *g, const int64_t *ns, struct dt_arena *a)
{
    const struct dt_program *p = g->p;
    uint32_t sum = 0, most = 0;

    for (uint32_t i = 0; i < p->n_ops; i++)
        most = p->ops[i].more_n > most ? p->ops[i].more_n : most;
    g->deps = DT_ARENA_NEW(a, uint32_t, (size_t)most + 4);
    g->node = dt_arena_alloc_raw(a, (size_t)p->n_ops + 1, sizeof(*g->node));
    if (!g->deps || !g->node)
        return -1;
    for (uint32_t i = 0; i <= p->n_ops; i++)
        g->node[i].succ_first = 0;
    for (uint32_t i = 0; i < p->n_ops; i++) {
        const struct dt_op *op = &p->ops[i];
        uint32_t n = deps_of(p, op, g->deps);

        for (uint32_t k = 0; k < n; k++)
            g->node[g->deps[k]].succ_first++;
        g->node[i].ns = ns[i];
        g->node[i].behind = 0;
        g->node[i].needs = n;
        g->node[i].of = class_and_of(g, op, ns[i]);
        sum += n;
    }
    g->succ = dt_arena_alloc_raw(a, (size_t)sum + 1, sizeof(*g->succ));
    if (!g->succ)
        return -1;
    sum = 0;
    for (uint32_t i = 0; i <= p->n_ops; i++) /* where its successors end */
        g->node[i].succ_first = sum += i < p->n_ops ? g->node[i].succ_first : 0;
    for (uint32_t i = p->n_ops; i-- > 0;)
        for (uint32_t n = deps_of(p, &p->ops[i], g->deps), k = 0; k < n; k++)
            g->succ[--g->node[g->deps[k]].succ_first] = i;
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
    g->lane = DT_ARENA_NEW(a, struct lane, (size_t)p->n_lanes + 1);
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

    g->island = DT_ARENA_NEW(a, struct island, (size_t)p->n_lanes + 1);
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
        struct island *x = &g->island[g->lane[l].island];

        g->lanes_of[x->first + x->n++] = (uint32_t)l;
    }
    return 0;
}

static int count_phases(struct dt_sched_turns_runs *g, struct dt_arena *a)
{
    if (dt_sched_phases_new(g->s, g->p, g->n_gpus, a, &g->phases) != 0)
        return -1;
    for (uint32_t i = 0; g->phases && i < g->p->n_ops; i++) {
        const struct lane *l = &g->lane[g->p->ops[i].lane];

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
    g->gpu = DT_ARENA_NEW(a, struct gpu, (size_t)g->n_gpus + 1);
    return g->group_waits && g->heap && g->over && g->stir && g->choice && g->gpu ? g : NULL;
}

/* ---- time behind every op ---- */

static int64_t most(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

/* All that waits for op i is known, and `behind` the most of it: so is the op, and one less is open of what it waits for. */
static void settle(struct dt_sched_turns_runs *g, uint32_t i, int64_t behind)
{
    struct node *x = &g->node[i];
    uint32_t n = deps_of(g->p, &g->p->ops[i], g->deps);

    x->behind = behind + x->ns;
    for (uint32_t k = 0; k < n; k++) {
        struct node *d = &g->node[g->deps[k]];

        d->behind = most(d->behind, x->behind);
        if (--d->waits == 0)
            g->over[g->n_over++] = g->deps[k];
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

        if (class_of(&g->node[i]) != MEMBER) {
            settle(g, i, g->node[i].behind);
            continue;
        }
        if (--g->group_waits[of(&g->node[i])] > 0)
            continue;
        x = &p->groups[of(&g->node[i])];
        for (uint32_t k = 0; k < x->n; k++) /* they end together */
            behind = most(behind, g->node[p->group_ops[x->first + k]].behind);
        for (uint32_t k = 0; k < x->n; k++)
            settle(g, p->group_ops[x->first + k], behind);
    }
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

static bool is_before(const struct dt_sched_turns_runs *g, const struct lane *x,
                      const struct lane *y)
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

static bool is_earlier(struct event a, struct event b)
{
    unsigned __int128 x = (unsigned __int128)(uint64_t)a.ns << 64 | a.op;
    unsigned __int128 y = (unsigned __int128)(uint64_t)b.ns << 64 | b.op;

    return x < y; /* without a branch that depends on the data */
}
#define EARLIER(ctx, a, b) is_earlier(a, b)
DT_HEAP(events, const void *, struct event, 4, EARLIER, DT_HEAP_SET)

/* What begins goes where what has ended was: one way through the heap instead of two. */
static void ends_later(struct dt_sched_turns_runs *g, uint32_t op, int64_t ns)
{
    struct event e = {g->now + ns, op};

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
    const struct node *x = &g->node[i];
    struct lane *l;

    switch (class_of(x)) {
    case COMPUTE:
        l = &g->lane[of(x)];
        l->ready = i;
        l->behind = x->behind;
        l->age = g->rule.longest ? 0 : age_of(g, i);
        g->island[l->island].ready++;
        stir(g, l->island);
        break;
    case MEMBER:
        if (--g->group_waits[of(x)] == 0)
            ends_later(g, GROUP | of(x), x->ns); /* of all alike */
        break;
    case FREE:
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
    const struct node *x = &g->node[i];
    const uint32_t *s = &g->succ[x->succ_first], *last = &g->succ[x[1].succ_first];

    if (class_of(x) == COMPUTE) {
        const struct lane *l = &g->lane[of(x)];

        for (uint32_t k = l->first_gpu; k < l->first_gpu + l->gpus; k++)
            g->gpu[k].busy = false;
        g->island[l->island].free += l->gpus;
        stir(g, l->island);
    }
    for (; s < last; s++)
        if (--g->node[*s].waits == 0)
            make_ready(g, *s);
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

/* Does op i wait for `last` anyway, be it for a turn that was noted just before? */
static bool is_known(const struct dt_sched_turns_runs *g, uint32_t i, uint32_t last, uint32_t noted)
{
    if (last == DT_NONE || of(&g->node[last]) == of(&g->node[i]) || depends(g, i, last))
        return true;
    for (uint32_t j = noted; j < g->turns->n; j++)
        if (g->turns->before[j][1] == last)
            return true;
    return false;
}

static enum dt_status start(struct dt_sched_turns_runs *g, uint32_t i, struct dt_error *err)
{
    const struct node *x = &g->node[i];
    struct lane *l = &g->lane[of(x)];
    struct island *island = &g->island[l->island];
    uint32_t noted = g->turns->n, before = DT_NONE;

    for (uint32_t k = l->first_gpu; k < l->first_gpu + l->gpus; k++) {
        struct gpu *gpu = &g->gpu[k];

        if (!g->rule.silent && gpu->last != before && !is_known(g, i, gpu->last, noted))
            DT_TRY(note(g->turns, i, gpu->last, err));
        before = gpu->last;
        gpu->last = i;
        gpu->busy = true;
    }
    if (g->phases)
        dt_sched_phases_begin(g->phases, i, l->first_gpu, l->gpus);
    island->free -= l->gpus;
    island->ready--;
    l->ready = DT_NONE;
    g->given_up |= g->now + x->behind > g->rule.limit_ns;
    ends_later(g, i, x->ns);
    return DT_OK;
}

static bool are_free(const struct dt_sched_turns_runs *g, const struct lane *l)
{
    for (uint32_t k = l->first_gpu; k < l->first_gpu + l->gpus; k++)
        if (g->gpu[k].busy || g->gpu[k].kept == g->looks)
            return false;
    return true;
}

/* Has the turn of op i, and of what runs with it, come?  Their GPUs may be busy yet. */
static bool may_begin(const struct dt_sched_turns_runs *g, uint32_t i)
{
    int n = dt_program_partners_n(g->p, &g->partners, i);

    for (int k = 0; k < n; k++) {
        uint32_t j = dt_program_partner(g->p, &g->partners, i, k);
        const struct lane *l = &g->lane[of(&g->node[j == DT_NONE ? i : j])];

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
    int n = dt_program_partners_n(g->p, &g->partners, i);

    for (int k = 0; k < n; k++) {
        uint32_t j = dt_program_partner(g->p, &g->partners, i, k);

        if (j != DT_NONE && !are_free(g, &g->lane[of(&g->node[j])]))
            return false;
    }
    return true;
}

static enum dt_status start_together(struct dt_sched_turns_runs *g, uint32_t i,
                                     struct dt_error *err)
{
    int n = dt_program_partners_n(g->p, &g->partners, i);

    for (int k = 0; k < n; k++) {
        uint32_t j = dt_program_partner(g->p, &g->partners, i, k);

        if (j != DT_NONE)
            DT_TRY(start(g, j, err));
    }
    return DT_OK;
}

/* The lanes of an island with an op that could begin, first by the rule first. */
static uint32_t choices(struct dt_sched_turns_runs *g, const struct island *x)
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

static enum dt_status choose(struct dt_sched_turns_runs *g, const struct island *x,
                             struct dt_error *err)
{
    uint32_t n = x->free > 0 ? choices(g, x) : 0;

    g->looks++;
    for (uint32_t c = 0; c < n; c++) {
        const struct lane *l = &g->lane[g->choice[c]];

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
        g->node[i].waits = g->node[i].needs;
    for (uint32_t k = 0; k < g->n_gpus; k++)
        g->gpu[k] = (struct gpu){.last = DT_NONE};
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
        if (g->node[i].needs == 0)
            make_ready(g, i);
    tell_all(g);
    do {
        while (is_under_way(g) && g->heap[0].ns == g->now) {
            g->hole = true;
            end(g, (uint32_t)g->heap[0].op);
        }
        while (g->n_stir > 0) {
            struct island *x = &g->island[g->stir[--g->n_stir]];

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
