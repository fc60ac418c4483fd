/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Check of a program: who waits for whom.
 *
 *   op -> what it names in dep[] and deps[]       RECV -> its SEND       group -> what any member waits for */
#include "core/schedule/program_check_impl.h"

#include <string.h>

static bool is_p2p(const struct dt_op *op)
{
    enum dt_op_resource r = dt_op_resource(op->kind);

    return r == DT_RES_P2P_OUT || r == DT_RES_P2P_IN;
}

static bool is_collective(const struct dt_op *op)
{
    return dt_op_resource(op->kind) == DT_RES_COLL;
}

/* The j-th op that op i waits for; false behind the last.  DT_NONE where a place is not used. */
static bool waits_for(const struct dt_program *p, uint32_t i, uint32_t j, uint32_t *out)
{
    const struct dt_op *op = &p->ops[i];

    if (j < 3)
        *out = op->dep[j];
    else if (j < 3u + op->more_n)
        *out = p->deps[op->more_first + j - 3];
    else if (j == 3u + op->more_n && op->kind == DT_OP_RECV)
        *out = op->peer;
    else
        return false;
    return true;
}

/* ---- the order ---- */

struct sort {
    uint32_t *first, *next; /* of each op: who waits for it, next[first[i] .. first[i + 1]) */
    uint32_t *open;         /* per op: what it waits for and has not been placed */
    uint32_t *group_open;   /* per group: members that are not ready */
    uint32_t n;             /* placed */
    uint32_t passed;        /* placed ops whose waiters have been told */
};

static int list_waiters(struct dt_check *c, struct sort *s)
{
    const struct dt_program *p = c->p;
    uint32_t d, sum = 0;

    s->first = DT_ARENA_NEW(&c->arena, uint32_t, (size_t)p->n_ops + 2);
    s->open = DT_ARENA_NEW(&c->arena, uint32_t, (size_t)p->n_ops + 1);
    s->group_open = DT_ARENA_NEW(&c->arena, uint32_t, (size_t)p->n_groups + 1);
    if (!s->first || !s->open || !s->group_open)
        return -1;
    for (uint32_t i = 0; i < p->n_ops; i++)
        for (uint32_t j = 0; waits_for(p, i, j, &d); j++)
            if (d != DT_NONE) {
                s->first[d + 1]++;
                s->open[i]++;
                sum++;
            }
    s->next = DT_ARENA_NEW(&c->arena, uint32_t, (size_t)sum + 1);
    if (!s->next)
        return -1;
    for (uint32_t i = 0; i < p->n_ops; i++)
        s->first[i + 1] += s->first[i];
    for (uint32_t i = p->n_ops;
         i-- > 0;) /* from the ends of the lists; they begin there afterwards */
        for (uint32_t j = 0; waits_for(p, i, j, &d); j++)
            if (d != DT_NONE)
                s->next[--s->first[d + 1]] = i;
    memmove(s->first, s->first + 1, (size_t)p->n_ops * sizeof(*s->first));
    s->first[p->n_ops] = sum;
    for (uint32_t g = 0; g < p->n_groups; g++)
        s->group_open[g] = p->groups[g].n;
    return 0;
}

static void put(struct dt_check *c, struct sort *s, uint32_t i, uint32_t position)
{
    c->position[i] = position;
    c->order[s->n++] = i;
}

/* Nothing that op i waits for is left. */
static void ready(struct dt_check *c, struct sort *s, uint32_t i)
{
    const struct dt_op *op = &c->p->ops[i];
    const struct dt_group *g;
    uint32_t position = s->n;

    if (!is_collective(op)) {
        put(c, s, i, position);
        return;
    }
    g = &c->p->groups[op->peer];
    if (--s->group_open[op->peer] > 0)
        return;
    for (uint32_t k = 0; k < g->n; k++)
        put(c, s, c->p->group_ops[g->first + k], position);
}

/* An op on a circle: go from any that is left to one that it waits for and that is left too. */
static uint32_t on_circle(const struct dt_check *c)
{
    const struct dt_program *p = c->p;
    uint32_t i = 0, d;

    while (c->position[i] != DT_NONE)
        i++;
    for (uint32_t step = 0; step < p->n_ops; step++) {
        uint32_t from = i, members = 1;
        const uint32_t *member = &from;

        if (is_collective(&p->ops[i])) { /* it waits for what any member waits for */
            member = &p->group_ops[p->groups[p->ops[i].peer].first];
            members = p->groups[p->ops[i].peer].n;
        }
        for (uint32_t k = 0; k < members && i == from; k++)
            for (uint32_t j = 0; i == from && waits_for(p, member[k], j, &d); j++)
                if (d != DT_NONE && c->position[d] == DT_NONE)
                    i = d;
    }
    return i;
}

enum dt_status dt_check_order(struct dt_check *c)
{
    const struct dt_program *p = c->p;
    struct sort s = {0};

    c->order = DT_ARENA_NEW(&c->arena, uint32_t, (size_t)p->n_ops + 1);
    c->position = DT_ARENA_NEW(&c->arena, uint32_t, (size_t)p->n_ops + 1);
    c->stack = DT_ARENA_NEW(&c->arena, uint32_t, (size_t)p->n_ops + 1);
    c->seen = DT_ARENA_NEW(&c->arena, uint32_t, (size_t)p->n_ops + 1);
    if (!c->order || !c->position || !c->stack || !c->seen || list_waiters(c, &s) != 0)
        return dt_error_nomem(c->err, "check of a program");
    memset(c->position, 0xff, (size_t)p->n_ops * sizeof(*c->position));
    for (uint32_t i = 0; i < p->n_ops; i++)
        if (s.open[i] == 0)
            ready(c, &s, i);
    while (s.passed < s.n) {
        uint32_t i = c->order[s.passed++];

        for (uint32_t k = s.first[i]; k < s.first[i + 1]; k++)
            if (--s.open[s.next[k]] == 0)
                ready(c, &s, s.next[k]);
    }
    if (s.n < p->n_ops)
        return dt_check_fail(c, on_circle(c),
                             "waits for itself: %u of %u ops stand in or behind a circle",
                             p->n_ops - s.n, p->n_ops);
    return DT_OK;
}

/* ---- after ---- */

/* Pushes an op, unless it has been looked at or stands too early to wait for `earlier`. */
static void push(struct dt_check *c, uint32_t *n, uint32_t i, uint32_t earlier)
{
    if (c->seen[i] == c->stamp || c->position[i] <= c->position[earlier])
        return;
    c->seen[i] = c->stamp;
    c->stack[(*n)++] = i;
}

static bool chained(const struct dt_check *c, uint32_t later, uint32_t earlier)
{
    const struct dt_op *a = &c->p->ops[later], *b = &c->p->ops[earlier];

    return a->lane == b->lane && !is_p2p(a) && dt_op_resource(a->kind) == dt_op_resource(b->kind) &&
           earlier < later;
}

bool dt_check_after(struct dt_check *c, uint32_t later, uint32_t earlier)
{
    const struct dt_program *p = c->p;
    uint32_t n = 0, d;

    if (later == earlier)
        return false;
    if (chained(c, later, earlier))
        return true;
    c->stamp++;
    push(c, &n, later, earlier);
    while (n > 0) {
        uint32_t i = c->stack[--n];
        const struct dt_op *op = &p->ops[i];

        for (uint32_t j = 0; waits_for(p, i, j, &d); j++) {
            if (d == DT_NONE)
                continue;
            if (is_p2p(op) && is_p2p(&p->ops[d]) && d != op->peer)
                continue;
            if (d == earlier)
                return true;
            push(c, &n, d, earlier);
        }
        if (is_collective(op)) /* it begins when every member can */
            for (uint32_t k = 0; k < p->groups[op->peer].n; k++)
                push(c, &n, p->group_ops[p->groups[op->peer].first + k], earlier);
    }
    return false;
}
