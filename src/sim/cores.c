/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Every pool of cores has a clock that runs at its rate: an op that begins when it shows v is over when
 * it shows v + its duration, however often the rate changes meanwhile.  Whole nanoseconds stay whole
 * as long as the rate is 1. */
#include "sim/cores.h"

#include "base/heap.h"
#include "base/mem.h"
#include "base/number.h"

#include <math.h>
#include <string.h>

struct pool { /* of a rank's own cores, or of all of a host with fewer cores than ranks */
    int cores;
    double shown;  /* by its clock */
    uint32_t *op;  /* that need a core and are under way */
    double *until; /* when its clock shows this they are over */
    int n;
};
struct event { /* the end of anything that needs no core, the latency of messages included */
    double ns;
    uint32_t op; /* of a collective: its first member */
};
struct cores {
    const struct dt_program *p;
    const int64_t *ns, *core_ns;
    int gpus_per_node, cores, n_pools;
    int64_t batch_ns;
    struct pool *pool;
    int *pool_of;                /* [n_lanes] */
    uint32_t *left;              /* [n_ops] dependencies still to end */
    uint32_t *next_first, *next; /* who waits for op i: next[next_first[i] .. next_first[i+1]) */
    uint32_t *met;               /* [n_groups] members that are ready, then those still at work */
    struct event *heap;
    uint32_t n_heap;
    uint32_t *ready, n_ready; /* stack of ops to begin now */
    double now;
    uint32_t done;
    int64_t *begin, *end;
    struct dt_arena arena;
};

/* ---- who waits for whom; a RECV waits for its SEND too ---- */

static uint32_t deps_of(const struct dt_program *p, uint32_t i, uint32_t k)
{
    const struct dt_op *op = &p->ops[i];

    if (k < 3)
        return op->dep[k];
    if (k < 3u + op->more_n)
        return p->deps[op->more_first + k - 3];
    return op->kind == DT_OP_RECV ? op->peer : DT_NONE;
}

static uint32_t deps_count(const struct dt_program *p, uint32_t i)
{
    return 4u + p->ops[i].more_n;
}

static int link_ops(struct cores *c)
{
    const struct dt_program *p = c->p;
    uint32_t n = p->n_ops, all = 0, *at;

    c->left = DT_ARENA_NEW(&c->arena, uint32_t, n + 1);
    c->next_first = DT_ARENA_NEW(&c->arena, uint32_t, n + 2);
    at = DT_ARENA_NEW(&c->arena, uint32_t, n + 1);
    if (!c->left || !c->next_first || !at)
        return -1;
    for (uint32_t i = 0; i < n; i++)
        for (uint32_t k = 0; k < deps_count(p, i); k++) {
            uint32_t d = deps_of(p, i, k);

            if (d == DT_NONE)
                continue;
            c->left[i]++;
            c->next_first[d + 1]++;
            all++;
        }
    for (uint32_t i = 0; i < n; i++)
        c->next_first[i + 1] += c->next_first[i];
    c->next = DT_ARENA_NEW(&c->arena, uint32_t, all + 1);
    if (!c->next)
        return -1;
    memcpy(at, c->next_first, n * sizeof(*at));
    for (uint32_t i = 0; i < n; i++)
        for (uint32_t k = 0; k < deps_count(p, i); k++) {
            uint32_t d = deps_of(p, i, k);

            if (d != DT_NONE)
                c->next[at[d]++] = i;
        }
    return 0;
}

static int host_number(const struct cores *c, uint32_t lane)
{
    return (int)(c->p->lanes[lane].first_gpu / (uint32_t)c->gpus_per_node);
}

/* A rank is a GPU: colocated lanes begin at the same one. */
static bool first_of_rank(const struct dt_program *p, int lane)
{
    for (int l = 0; l < lane; l++)
        if (p->lanes[l].first_gpu == p->lanes[lane].first_gpu)
            return false;
    return true;
}

/* What ranks do beside the program is under way from the begin on. */
static void begin_batches(struct cores *c)
{
    for (int l = 0; l < c->p->n_lanes && c->batch_ns > 0; l++) {
        struct pool *h = &c->pool[c->pool_of[l]];

        if (!first_of_rank(c->p, l))
            continue;
        h->op[h->n] = DT_NONE;
        h->until[h->n++] = (double)c->batch_ns;
    }
}

/* Ranks of one host, whose first GPU is `gpu`: each gets its share of the cores, as an executor's rank binds
 * itself to (comm/cores.h), or all share them where there are too few.  Lanes of a rank share what it has. */
static void pools_of_host(struct cores *c, uint32_t gpu, bool *used)
{
    int n = c->gpus_per_node, ranks = 0, k = 0;

    for (int g = 0; g < n; g++)
        ranks += used[gpu + (uint32_t)g];
    for (int g = 0; g < n; g++) {
        if (!used[gpu + (uint32_t)g])
            continue;
        for (int l = 0; l < c->p->n_lanes; l++)
            if (c->p->lanes[l].first_gpu == gpu + (uint32_t)g)
                c->pool_of[l] = c->n_pools;
        if (ranks <= c->cores)
            c->pool[c->n_pools++].cores =
                (int)((int64_t)(k + 1) * c->cores / ranks) - (int)((int64_t)k * c->cores / ranks);
        k++;
    }
    if (ranks > c->cores)
        c->pool[c->n_pools++].cores = c->cores;
}

static int make_pools(struct cores *c)
{
    const struct dt_program *p = c->p;
    uint32_t gpus = 0, node = (uint32_t)c->gpus_per_node;
    bool *used;

    for (int l = 0; l < p->n_lanes; l++) {
        uint32_t end = p->lanes[l].first_gpu + (p->lanes[l].gpus > 0 ? p->lanes[l].gpus : 1);

        gpus = end > gpus ? end : gpus;
    }
    gpus = (gpus + node - 1) / node * node;
    used = DT_ARENA_NEW(&c->arena, bool, gpus + 1);
    c->pool = DT_ARENA_NEW(&c->arena, struct pool, gpus + 1);
    c->pool_of = DT_ARENA_NEW(&c->arena, int, p->n_lanes + 1);
    if (!used || !c->pool || !c->pool_of)
        return -1;
    for (int l = 0; l < p->n_lanes; l++)
        for (uint32_t g = 0; g == 0 || g < p->lanes[l].gpus; g++)
            used[p->lanes[l].first_gpu + g] = true;
    for (uint32_t g = 0; g < gpus; g += node)
        pools_of_host(c, g, used);
    return 0;
}

static int prepare(struct cores *c)
{
    const struct dt_program *p = c->p;
    uint32_t n = p->n_ops, *ops;

    if (make_pools(c) != 0)
        return -1;
    c->met = DT_ARENA_NEW(&c->arena, uint32_t, p->n_groups + 1);
    ops = DT_ARENA_NEW(&c->arena, uint32_t, c->n_pools + 1);
    c->heap = DT_ARENA_NEW(&c->arena, struct event, n + 1);
    c->ready = DT_ARENA_NEW(&c->arena, uint32_t, n + 1);
    if (!c->met || !c->heap || !c->ready || !ops)
        return -1;
    for (int l = 0; l < p->n_lanes; l++)
        ops[c->pool_of[l]] += p->lanes[l].n + (c->batch_ns > 0);
    for (int h = 0; h < c->n_pools; h++) {
        c->pool[h].op = DT_ARENA_NEW(&c->arena, uint32_t, ops[h] + 1);
        c->pool[h].until = DT_ARENA_NEW(&c->arena, double, ops[h] + 1);
        if (!c->pool[h].op || !c->pool[h].until)
            return -1;
    }
    return link_ops(c);
}

/* ---- events ---- */

#define BEFORE(ctx, a, b) ((a).ns != (b).ns ? (a).ns < (b).ns : (a).op < (b).op)
DT_HEAP(events, const void *, struct event, 2, BEFORE, DT_HEAP_SET)

static void push(struct cores *c, double ns, uint32_t op)
{
    events_push(NULL, c->heap, c->n_heap++, (struct event){ns, op});
}

static struct event pop(struct cores *c)
{
    return events_pop(NULL, c->heap, c->n_heap--);
}

static double rate(const struct pool *h)
{
    return h->n > h->cores ? (double)h->cores / h->n : 1;
}

/* ---- beginnings and ends ---- */

static void work(struct cores *c, uint32_t lane, uint32_t i, int64_t ns)
{
    struct pool *h = &c->pool[c->pool_of[lane]];

    h->op[h->n] = i;
    h->until[h->n++] = h->shown + (double)ns;
}

/* A collective takes as long as the slowest of its members. */
static int64_t most(const struct cores *c, const int64_t *ns, uint32_t i)
{
    const struct dt_op *op = &c->p->ops[i];
    int64_t all = ns[i];

    if (dt_op_resource((enum dt_op_kind)op->kind) == DT_RES_COLL)
        for (uint32_t k = 0; k < c->p->groups[op->peer].n; k++) {
            int64_t one = ns[c->p->group_ops[c->p->groups[op->peer].first + k]];

            all = one > all ? one : all;
        }
    return all;
}

static int64_t takes(const struct cores *c, uint32_t i)
{
    return c->p->ops[i].kind == DT_OP_RECV ? 0 : most(c, c->ns, i); /* ends with its SEND */
}

/* Of a message or collective: what a core has to do for it at each end, or for each member.  Between hosts it is the
 * network that takes the time. */
static int64_t work_of(const struct cores *c, uint32_t i)
{
    const struct dt_program *p = c->p;
    const struct dt_op *op = &p->ops[i];
    const struct dt_group *g;
    int home = host_number(c, op->lane);

    if (op->kind == DT_OP_RECV || op->kind == DT_OP_FETCH)
        return 0;
    if (op->kind == DT_OP_SEND)
        return host_number(c, p->ops[op->peer].lane) == home ? c->core_ns[i] : 0;
    g = &p->groups[op->peer];
    for (uint32_t k = 0; k < g->n; k++)
        if (host_number(c, p->ops[p->group_ops[g->first + k]].lane) != home)
            return 0;
    return most(c, c->core_ns, i);
}

static void begin_collective(struct cores *c, uint32_t i)
{
    const struct dt_group *g = &c->p->groups[c->p->ops[i].peer];
    const uint32_t *member = &c->p->group_ops[g->first];

    if (++c->met[c->p->ops[i].peer] < g->n)
        return;
    for (uint32_t k = 0; k < g->n; k++)
        c->begin[member[k]] = llround(c->now);
    push(c, c->now + (double)(takes(c, member[0]) - work_of(c, member[0])), member[0]);
}

static void begin_op(struct cores *c, uint32_t i)
{
    const struct dt_op *op = &c->p->ops[i];
    double released = (double)dt_program_released(c->p, i, 0); /* of a FETCH: its input is there */

    switch (dt_op_resource((enum dt_op_kind)op->kind)) {
    case DT_RES_COMPUTE:
        c->begin[i] = llround(c->now);
        work(c, op->lane, i, c->ns[i]);
        break;
    case DT_RES_COLL:
        begin_collective(c, i);
        break;
    case DT_RES_P2P_OUT:
    case DT_RES_P2P_IN:
    case DT_RES_HOST: /* a copy engine's, of no core */
    case DT_RES_N:
        c->begin[i] = llround(c->now);
        if (op->kind == DT_OP_SEND && work_of(c, i) > 0) /* whoever sends goes on */
            work(c, op->lane, DT_NONE, work_of(c, i));
        push(c, fmax(c->now, released) + (double)(takes(c, i) - work_of(c, i)), i);
    }
}

/* A RECV has begun when the resource was free and the SEND under way, not only when it ended. */
static int64_t recv_begin(const struct cores *c, uint32_t i)
{
    int64_t t = c->begin[c->p->ops[i].peer];

    for (uint32_t k = 0; k < 3u + c->p->ops[i].more_n; k++) {
        uint32_t d = deps_of(c->p, i, k);

        if (d != DT_NONE && c->end[d] > t)
            t = c->end[d];
    }
    return t;
}

static void end_op(struct cores *c, uint32_t i)
{
    c->end[i] = llround(c->now);
    if (c->p->ops[i].kind == DT_OP_RECV)
        c->begin[i] = recv_begin(c, i);
    c->done++;
    for (uint32_t k = c->next_first[i]; k < c->next_first[i + 1]; k++)
        if (--c->left[c->next[k]] == 0)
            c->ready[c->n_ready++] = c->next[k];
}

static void end_group(struct cores *c, uint32_t i)
{
    const struct dt_group *g = &c->p->groups[c->p->ops[i].peer];

    for (uint32_t k = 0; k < g->n; k++)
        end_op(c, c->p->group_ops[g->first + k]);
}

/* The end of a latency is the beginning of work. */
static void end_event(struct cores *c, uint32_t i)
{
    const struct dt_op *op = &c->p->ops[i];
    bool group = dt_op_resource((enum dt_op_kind)op->kind) == DT_RES_COLL;
    const struct dt_group *g = group ? &c->p->groups[op->peer] : NULL;
    int64_t ns = work_of(c, i);

    if (ns <= 0) {
        group ? end_group(c, i) : end_op(c, i);
        return;
    }
    for (uint32_t k = 0; group && k < g->n; k++)
        work(c, c->p->ops[c->p->group_ops[g->first + k]].lane, c->p->group_ops[g->first + k], ns);
    if (!group) /* it is the receiver that has a message at the end */
        work(c, op->kind == DT_OP_SEND ? c->p->ops[op->peer].lane : op->lane, i, ns);
}

/* When the next op of a pool is over, at its rate of now; INFINITY when it has none. */
static double next_of(const struct cores *c, const struct pool *h)
{
    double least = INFINITY;

    for (int k = 0; k < h->n; k++)
        least = h->until[k] < least ? h->until[k] : least;
    return h->n > 0 ? c->now + (least - h->shown) / rate(h) : INFINITY;
}

/* Time goes on to `to`; `due`: this pool's earliest op ends then, which its clock shows exactly. */
static void advance(struct cores *c, double to, const bool *due)
{
    for (int k = 0; k < c->n_pools; k++) {
        struct pool *h = &c->pool[k];
        double least = INFINITY;

        for (int i = 0; i < h->n; i++)
            least = h->until[i] < least ? h->until[i] : least;
        h->shown = due[k] ? least : h->shown + (to - c->now) * rate(h);
    }
    c->now = to;
}

static void end_works(struct cores *c, struct pool *h)
{
    for (int k = 0; k < h->n;) {
        uint32_t i = h->op[k];

        if (h->until[k] > h->shown) {
            k++;
            continue;
        }
        h->op[k] = h->op[--h->n];
        h->until[k] = h->until[h->n];
        if (i == DT_NONE)
            continue;
        if (dt_op_resource((enum dt_op_kind)c->p->ops[i].kind) != DT_RES_COLL)
            end_op(c, i);
        else if (--c->met[c->p->ops[i].peer] == 0)
            end_group(c, i);
    }
}

static void begin_ready(struct cores *c)
{
    while (c->n_ready > 0)
        begin_op(c, c->ready[--c->n_ready]);
}

static enum dt_status walk(struct cores *c, struct dt_error *err)
{
    bool *due = DT_ARENA_NEW(&c->arena, bool, c->n_pools + 1);

    if (!due)
        return dt_error_nomem(err, "pools of cores");
    begin_batches(c);
    for (uint32_t i = 0; i < c->p->n_ops; i++)
        if (c->left[i] == 0)
            c->ready[c->n_ready++] = i;
    begin_ready(c);
    while (c->done < c->p->n_ops) {
        double to = c->n_heap > 0 ? c->heap[0].ns : INFINITY;

        for (int h = 0; h < c->n_pools; h++) {
            double t = next_of(c, &c->pool[h]);

            to = t < to ? t : to;
        }
        if (isinf(to))
            return dt_error_set(err, DT_ERR_INTERNAL, "the program waits for itself");
        if (!(to < (double)DT_TIME_MAX_NS))
            return dt_timeline_check(DT_TIME_MAX_NS, err);
        for (int h = 0; h < c->n_pools; h++)
            due[h] = next_of(c, &c->pool[h]) <= to;
        advance(c, to, due);
        while (c->n_heap > 0 && c->heap[0].ns <= to)
            end_event(c, pop(c).op);
        for (int h = 0; h < c->n_pools; h++)
            if (due[h])
                end_works(c, &c->pool[h]);
        begin_ready(c);
    }
    return DT_OK;
}

enum dt_status dt_sim_cores_run(const struct dt_program *p, const struct dt_durations *d,
                                int gpus_per_node, int cores_per_node, int64_t batch_ns,
                                struct dt_error *err, struct dt_timeline *out)
{
    struct cores c = {.p = p,
                      .ns = d->ns,
                      .core_ns = d->core_ns,
                      .gpus_per_node = gpus_per_node,
                      .cores = cores_per_node,
                      .batch_ns = batch_ns};
    enum dt_status st;

    DT_TRY(dt_timeline_reserve(out, p->n_ops, err));
    c.begin = out->begin_ns;
    c.end = out->end_ns;
    st = prepare(&c) != 0 ? dt_error_nomem(err, "a program on shared cores") : walk(&c, err);
    dt_arena_free(&c.arena);
    DT_TRY(st);
    out->makespan_ns = 0;
    for (uint32_t i = 0; i < p->n_ops; i++)
        if (out->end_ns[i] > out->makespan_ns)
            out->makespan_ns = out->end_ns[i];
    return DT_OK;
}

bool dt_sim_cores_shared(const struct dt_plan *p, const struct dt_cluster *c)
{
    int ranks = dt_plan_gpus(p);

    ranks = ranks < c->gpus_per_node ? ranks : c->gpus_per_node;
    return c->cores_per_node > 0 && ranks > 1 && 2 * ranks > c->cores_per_node;
}
