/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * The order of RECVs.
 *
 * SENDs leave a lane in the order of their producers, RECVs are posted in the order of their
 * consumers.  Neither adds a cycle: what a RECV must wait for in its queue has an earlier consumer,
 * what a SEND waits for an earlier producer.  Point-to-point messages between two lanes must also
 * meet in the same order on both sides.  With two interleaved stages, or after a list schedule, the
 * two orders can differ.  Then the receiving lane takes the order of its messages' producers
 * instead, by the time L at which the list schedule ended them, or without one by topological level
 * (a forward counts 1, a backward 2), ties by producer:
 *
 *     producer P ---> SEND ----> RECV ---> consumer C        L(P) < L(C)
 *
 * A RECV at L(P) waits only for RECVs at smaller or equal L, so sorting by L keeps the program free
 * of cycles, and since L grows along the lane of the producers, all messages of one sender stay in
 * its order.  With the list schedule's times no RECV waits longer than its own message did there.
 */
#include "core/schedule/schedule_impl.h"

#include <stdlib.h>
#include <string.h>

static uint32_t producer_of(const struct dt_program *p, const struct dt_op *recv)
{
    return p->ops[recv->peer].dep[1];
}

/* Does the lane receive from every peer in the order in which the peer sends?  last[lane] = last
 * SEND of it + 1. */
static bool lane_matches(const struct dt_program *p, const struct dt_lane *l, uint32_t *last)
{
    bool ok = true;

    for (uint32_t i = l->first; i < l->first + l->n; i++)
        if (p->ops[i].kind == DT_OP_RECV) {
            uint32_t *from = &last[p->ops[p->ops[i].peer].lane];

            ok &= p->ops[i].peer >= *from;
            *from = p->ops[i].peer + 1;
        }
    for (uint32_t i = l->first; i < l->first + l->n; i++)
        if (p->ops[i].kind == DT_OP_RECV)
            last[p->ops[p->ops[i].peer].lane] = 0;
    return ok;
}

struct levels {
    const struct dt_sched *s;
    uint32_t *level;          /* [n_ops], of compute ops */
    uint32_t *cursor;         /* [n_lanes]: next op of the lane */
    uint32_t *stack, *waiter; /* waiter[op]: lane + 1 that stands at the consumer of this SEND */
    uint32_t n_stack;
};

/* Runs a lane until it needs a message whose producer has no level yet.  Array order is the order
 * of consumers, so RECVs stand right before the op that uses them. */
static void run_lane(const struct dt_program *p, struct levels *v, uint32_t lane)
{
    const struct dt_lane *l = &p->lanes[lane];
    uint32_t i = v->cursor[lane], now = 0;

    for (uint32_t j = i; j > l->first && now == 0; j--) /* level reached before the pause */
        now = v->level[j - 1];
    for (; i < l->first + l->n; i++) {
        const struct dt_op *op = &p->ops[i];

        if (op->kind == DT_OP_RECV) {
            uint32_t from = v->level[producer_of(p, op)];

            if (from == 0) {
                v->waiter[op->peer] = lane + 1;
                break;
            }
            now = from > now ? from : now;
            v->level[i] = now; /* kept for the pause above */
        } else if (op->kind == DT_OP_FORWARD || op->kind == DT_OP_BACKWARD) {
            now += op->kind == DT_OP_FORWARD ? 1 : 2;
            v->level[i] = now;
        } else if (op->kind == DT_OP_SEND && v->waiter[i]) {
            v->stack[v->n_stack++] = v->waiter[i] - 1;
        }
    }
    v->cursor[lane] = i;
}

static int levels_init(const struct dt_program *p, struct levels *v, struct dt_arena *a)
{
    v->level = DT_ARENA_NEW(a, uint32_t, p->n_ops + 1);
    v->waiter = DT_ARENA_NEW(a, uint32_t, p->n_ops + 1);
    v->cursor = DT_ARENA_NEW(a, uint32_t, p->n_lanes + 1);
    v->stack = DT_ARENA_NEW(a, uint32_t, p->n_lanes + 1);
    if (!v->level || !v->waiter || !v->cursor || !v->stack)
        return -1;
    for (int i = 0; i < p->n_lanes; i++) {
        v->cursor[i] = p->lanes[i].first;
        v->stack[p->n_lanes - 1 - i] = (uint32_t)i;
    }
    for (v->n_stack = (uint32_t)p->n_lanes; v->n_stack > 0;)
        run_lane(p, v, v->stack[--v->n_stack]);
    return 0;
}

/* L of the producer of a RECV's message. */
static int64_t level_of(const struct dt_program *p, const struct levels *v,
                        const struct dt_op *recv)
{
    uint32_t i = producer_of(p, recv);
    const struct dt_op *op = &p->ops[i];
    const struct dt_sched_module *m = &v->s->m[op->module];
    size_t mb = op->mb + (v->s->aligned ? 0 : m->mb_first[op->replica]);

    if (!m->when)
        return v->level[i];
    return m->when[(mb * (size_t)m->n_v + (size_t)(op->chunk * m->pp + op->stage)) * 2 +
                   (op->kind == DT_OP_BACKWARD)];
}

struct arrival {
    int64_t level;
    uint32_t send, old; /* send: index of the SEND, which follows its producer */
    struct dt_op op;
};

static int by_level(const void *a, const void *b)
{
    const struct arrival *x = a, *y = b;

    if (x->level != y->level)
        return x->level < y->level ? -1 : 1;
    return x->send < y->send ? -1 : 1;
}

static uint32_t renamed(const uint32_t *map, const struct dt_lane *l, uint32_t op)
{
    return op >= l->first && op < l->first + l->n ? map[op - l->first] : op;
}

/* Puts the lane's RECVs and FETCHes into the order of levels, in the places that they have. */
static int reorder_lane(struct dt_program *p, const struct dt_lane *l, const struct levels *v)
{
    struct arrival *in = dt_malloc(((size_t)l->n + 1) * sizeof(*in));
    uint32_t *map = dt_malloc(((size_t)l->n + 1) * sizeof(*map));
    uint32_t n = 0, previous = DT_NONE, k = 0;

    if (!in || !map) {
        dt_free(in);
        dt_free(map);
        return -1;
    }
    for (uint32_t i = 0; i < l->n; i++) {
        const struct dt_op *op = &p->ops[l->first + i];

        map[i] = l->first + i;
        if (dt_op_resource(op->kind) != DT_RES_P2P_IN)
            continue;
        in[n] = (struct arrival){.send = l->first + i, .old = l->first + i, .op = *op};
        if (op->kind == DT_OP_RECV) {
            in[n].send = op->peer;
            in[n].level = level_of(p, v, op);
        }
        n++;
    }
    qsort(in, n, sizeof(*in), by_level);
    for (uint32_t i = l->first; i < l->first + l->n; i++)
        if (dt_op_resource(p->ops[i].kind) == DT_RES_P2P_IN) {
            map[in[k].old - l->first] = i;
            p->ops[i] = in[k].op;
            p->ops[i].dep[0] = previous;
            previous = i;
            if (p->ops[i].kind == DT_OP_RECV)
                p->ops[p->ops[i].peer].peer = i;
            k++;
        }
    for (uint32_t i = l->first; i < l->first + l->n; i++) {
        struct dt_op *op = &p->ops[i];

        if (dt_op_resource(op->kind) == DT_RES_P2P_IN)
            continue;
        for (int d = 1; d < 3; d++)
            op->dep[d] = renamed(map, l, op->dep[d]);
        for (uint32_t d = 0; d < op->more_n; d++)
            p->deps[op->more_first + d] = renamed(map, l, p->deps[op->more_first + d]);
    }
    dt_free(in);
    dt_free(map);
    return 0;
}

enum dt_status dt_sched_match(struct dt_sched *s, struct dt_program *p, struct dt_error *err)
{
    uint32_t *last = DT_ARENA_NEW(&s->arena, uint32_t, p->n_lanes + 1);
    bool *bad = DT_ARENA_NEW(&s->arena, bool, p->n_lanes + 1), any = false;
    struct levels v = {.s = s};

    if (!last || !bad)
        return dt_error_nomem(err, "order of messages");
    for (int i = 0; i < p->n_lanes; i++)
        any |= bad[i] = !lane_matches(p, &p->lanes[i], last);
    if (!any)
        return DT_OK;
    if (!s->m[0].when && levels_init(p, &v, &s->arena) != 0)
        return dt_error_nomem(err, "order of messages");
    for (int i = 0; i < p->n_lanes; i++)
        if (bad[i] && reorder_lane(p, &p->lanes[i], &v) != 0)
            return dt_error_nomem(err, "order of messages");
    return DT_OK;
}
