/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * The topological order of a program and its evaluation.
 *
 * The order walks each resource of each lane until an op has to wait for one that is not placed
 * yet; the op that it waits for then wakes it.  So neighbours in the order are neighbours on a
 * lane, and no list of successors is needed: every resource waits for at most one op at a time. */
#include "core/schedule/timeline.h"
#include "base/mem.h"
#include "base/number.h"

#include <string.h>

/* ---- storage ---- */

enum dt_status dt_timeline_reserve(struct dt_timeline *t, uint32_t n_ops, struct dt_error *err)
{
    if (!t->begin_ns || t->cap < n_ops) {
        int64_t *b = dt_malloc(((size_t)n_ops + 1) * sizeof(*b));
        int64_t *e = dt_malloc(((size_t)n_ops + 1) * sizeof(*e));

        if (!b || !e) {
            dt_free(b);
            dt_free(e);
            return dt_error_nomem(err, "a timeline");
        }
        dt_timeline_free(t);
        t->begin_ns = b;
        t->end_ns = e;
        t->cap = n_ops;
    }
    t->n_ops = n_ops;
    return DT_OK;
}

void dt_timeline_free(struct dt_timeline *t)
{
    dt_free(t->begin_ns);
    dt_free(t->end_ns);
    memset(t, 0, sizeof(*t));
}

/* ---- order ---- */

enum rec_kind { REC_PLAIN, REC_RECV, REC_MORE, REC_GROUP };
enum { REC_SHIFT = 30 };
#define REC_MASK ((1u << REC_SHIFT) - 1)
#define PLACED UINT32_MAX

/* Resources are numbered lane * DT_RES_N + resource, and written + 1 so that 0 means none. */
struct walk {
    const struct dt_program *p;
    struct dt_timeline_topo *t;
    uint32_t *cursor; /* per resource: next op, or DT_NONE */
    struct {
        uint32_t next;  /* op of the same resource */
        uint32_t state; /* PLACED (with `t`) or the first resource that waits for it */
    } * step;           /* per op */
    uint32_t *waits;    /* per resource: the next one that waits for the same op */
    uint32_t *arrived;  /* per group */
    uint32_t *stack, n_stack;
    /* Without `t` ops are evaluated as they are placed; before, `end` holds ~duration, which is negative: one
     * miss of the caches less than a third array would cost. */
    int64_t *begin, *end;
    uint32_t placed;
};

static void walk_free(struct walk *w)
{
    dt_free(w->cursor);
    dt_free(w->step);
    dt_free(w->waits);
    dt_free(w->arrived);
    dt_free(w->stack);
}

static bool in_group(const struct dt_op *op)
{
    return dt_op_resource(op->kind) == DT_RES_COLL && op->peer != DT_NONE;
}

static enum dt_status walk_init(struct walk *w, struct dt_error *err)
{
    const struct dt_program *p = w->p;
    size_t n_res = (size_t)p->n_lanes * DT_RES_N;
    uint32_t last[DT_RES_N];

    w->cursor = dt_malloc((n_res + 1) * sizeof(uint32_t));
    w->waits = dt_calloc(n_res + 1, sizeof(uint32_t));
    w->stack = dt_malloc((n_res + 1) * sizeof(uint32_t));
    w->step = dt_calloc((size_t)p->n_ops + 1, sizeof(*w->step));
    w->arrived = dt_calloc((size_t)p->n_groups + 1, sizeof(uint32_t));
    if (w->t) {
        w->t->order = dt_malloc(((size_t)p->n_ops + 1) * sizeof(uint32_t));
        w->t->rec = dt_malloc(((size_t)p->n_ops + 1) * sizeof(*w->t->rec));
    }
    if (!w->cursor || !w->waits || !w->stack || !w->step || !w->arrived ||
        (w->t && (!w->t->order || !w->t->rec)))
        return dt_error_nomem(err, "the order of a program");
    for (int l = p->n_lanes - 1; l >= 0; l--) {
        const struct dt_lane *lane = &p->lanes[l];

        if ((uint64_t)lane->first + lane->n > (l + 1 < p->n_lanes ? lane[1].first : p->n_ops))
            return dt_error_set(err, DT_ERR_INTERNAL,
                                "program: lane %d runs into the next or past the ops", l);
        for (int r = 0; r < DT_RES_N; r++)
            last[r] = DT_NONE;
        for (uint32_t i = lane->first + lane->n; i-- > lane->first;) {
            const struct dt_op *op = &p->ops[i];
            int r = op->kind < DT_OP_KIND_N ? (int)dt_op_resource(op->kind) : DT_RES_COMPUTE;

            if (op->more_n > 0 && (uint64_t)op->more_first + op->more_n > p->n_deps)
                return dt_error_set(err, DT_ERR_INTERNAL, "program: op %u has no dependency list",
                                    i);
            w->step[i].next = last[r];
            last[r] = i;
        }
        for (int r = 0; r < DT_RES_N; r++) {
            w->cursor[l * DT_RES_N + r] = last[r];
            w->stack[w->n_stack++] = (uint32_t)(l * DT_RES_N + r);
        }
    }
    return DT_OK;
}

static void place(struct walk *w, uint32_t i)
{
    for (uint32_t r = w->step[i].state; r != 0; r = w->waits[r - 1])
        w->stack[w->n_stack++] = r - 1;
    if (w->t) {
        w->step[i].state = PLACED;
        w->t->order[w->placed] = i;
    }
    w->placed++;
}

static void record_op(struct walk *w, uint32_t i)
{
    const struct dt_op *op = &w->p->ops[i];
    struct dt_timeline_topo_rec *r = &w->t->rec[w->t->n_rec++];
    uint32_t none = w->p->n_ops; /* ends at 0 */
    unsigned tag = op->more_n > 0 ? REC_MORE : REC_PLAIN;

    if (op->kind == DT_OP_FETCH) /* it may have to wait for its input */
        tag = REC_MORE;
    if (op->kind == DT_OP_RECV) {
        tag = REC_MORE;
        if (op->more_n == 0 && (op->dep[1] == DT_NONE || op->dep[1] == op->peer) &&
            op->dep[2] == DT_NONE)
            tag = REC_RECV;
    }
    r->op = i | tag << REC_SHIFT;
    for (int k = 0; k < 3; k++)
        r->dep[k] = op->dep[k] == DT_NONE ? none : op->dep[k];
    if (tag == REC_RECV)
        r->dep[1] = op->peer;
}

/* The first op that `i` needs and that is not placed, DT_NONE when it can be placed, or an index
 * out of range. */
static uint32_t missing(const struct walk *w, uint32_t i)
{
    const struct dt_op *op = &w->p->ops[i];

    for (int k = 0; k < 3; k++)
        if (op->dep[k] != DT_NONE &&
            (op->dep[k] >= w->p->n_ops || w->step[op->dep[k]].state != PLACED))
            return op->dep[k];
    for (uint32_t k = 0; k < op->more_n; k++) {
        uint32_t d = w->p->deps[op->more_first + k];

        if (d != DT_NONE && (d >= w->p->n_ops || w->step[d].state != PLACED))
            return d;
    }
    if (op->kind == DT_OP_RECV && (op->peer >= w->p->n_ops || w->step[op->peer].state != PLACED))
        return op->peer;
    return DT_NONE;
}

static inline int64_t later(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

/* Dependency `d` of an op whose SEND, which counts from its begin, is `send`; false: it is not placed. */
static inline bool ends_by(const struct walk *w, uint32_t d, uint32_t send, int64_t *at)
{
    if (d == DT_NONE)
        return true;
    if (d >= w->p->n_ops || w->end[d] < 0)
        return false;
    if (d != send)
        *at = later(*at, w->end[d]);
    return true;
}

/* The same where ops are evaluated as they are placed; DT_NONE: *ready_ns is when `i` could begin. */
static inline uint32_t missing_timed(const struct walk *w, uint32_t i, int64_t *ready_ns)
{
    const struct dt_op *op = &w->p->ops[i];
    uint32_t send = op->kind == DT_OP_RECV ? op->peer : DT_NONE;
    int64_t at = 0;

    for (int k = 0; k < 3; k++)
        if (!ends_by(w, op->dep[k], send, &at))
            return op->dep[k];
    for (uint32_t k = 0; k < op->more_n; k++)
        if (!ends_by(w, w->p->deps[op->more_first + k], send, &at))
            return w->p->deps[op->more_first + k];
    if (op->kind == DT_OP_RECV) {
        if (send >= w->p->n_ops || w->end[send] < 0)
            return send;
        at = later(at, w->begin[send]);
    }
    *ready_ns = at;
    return DT_NONE;
}

/* The end of an op that is no collective, begins at `at` and lasts `ns`. */
static inline int64_t end_of(const struct dt_program *p, uint32_t i, int64_t at, int64_t ns,
                             const int64_t *end)
{
    const struct dt_op *op = &p->ops[i];

    if (op->kind == DT_OP_RECV)
        return later(at, end[op->peer]);
    return (op->kind == DT_OP_FETCH ? dt_program_released(p, i, at) : at) + ns;
}

/* All members have arrived, and begin when the last of them could. */
static void end_group(struct walk *w, const struct dt_group *gr)
{
    const uint32_t *member = &w->p->group_ops[gr->first];
    int64_t at = 0, ns = 0;

    for (uint32_t k = 0; k < gr->n; k++) {
        at = later(at, w->begin[member[k]]);
        ns = later(ns, ~w->end[member[k]]);
    }
    for (uint32_t k = 0; k < gr->n; k++) {
        w->begin[member[k]] = at;
        w->end[member[k]] = at + ns;
    }
}

/* All members have arrived: place them, one record for the whole group; their resources go on. */
static enum dt_status place_group(struct walk *w, uint32_t g, struct dt_error *err)
{
    const struct dt_group *gr = &w->p->groups[g];

    if (w->t)
        w->t->rec[w->t->n_rec++].op = g | (uint32_t)REC_GROUP << REC_SHIFT;
    for (uint32_t k = 0; k < gr->n; k++) {
        uint32_t op = w->p->group_ops[gr->first + k], res;

        if (op >= w->p->n_ops || w->p->ops[op].peer != g || !in_group(&w->p->ops[op]) ||
            w->p->ops[op].lane >= (uint32_t)w->p->n_lanes ||
            w->cursor[w->p->ops[op].lane * DT_RES_N + DT_RES_COLL] != op)
            return dt_error_set(err, DT_ERR_INTERNAL, "program: group %u has a wrong member list",
                                g);
        place(w, op);
        res = w->p->ops[op].lane * DT_RES_N + DT_RES_COLL;
        w->cursor[res] = w->step[op].next;
        w->stack[w->n_stack++] = res;
    }
    if (!w->t)
        end_group(w, gr);
    return DT_OK;
}

/* What the resource will look at after its next op is asked of memory now: resources take turns after an op or two,
 * so caches see no stream. */
static inline void ahead(const struct walk *w, uint32_t next)
{
    uint32_t i = next != DT_NONE ? w->step[next].next : DT_NONE;

    if (i == DT_NONE)
        return;
    __builtin_prefetch(&w->p->ops[i]);
    if (!w->t) {
        __builtin_prefetch(&w->end[i], 1);
        __builtin_prefetch(&w->begin[i], 1);
    }
}

/* Runs one resource until it has to wait. */
static enum dt_status run_resource(struct walk *w, uint32_t res, struct dt_error *err)
{
    const struct dt_program *p = w->p;

    for (uint32_t i = w->cursor[res]; i != DT_NONE; i = w->step[i].next) {
        const struct dt_op *op = &p->ops[i];
        int64_t at = 0;
        uint32_t d = w->t ? missing(w, i) : missing_timed(w, i, &at);

        ahead(w, w->step[i].next);
        w->cursor[res] = i;
        if (d != DT_NONE) {
            if (d >= p->n_ops)
                return dt_error_set(err, DT_ERR_INTERNAL,
                                    "program: op %u waits for op %u, which does not exist", i, d);
            w->waits[res] = w->step[d].state;
            w->step[d].state = res + 1;
            return DT_OK;
        }
        if (!w->t)
            w->begin[i] = at;
        if (in_group(op)) {
            if (op->peer >= p->n_groups)
                return dt_error_set(err, DT_ERR_INTERNAL, "program: op %u is of no group", i);
            if (++w->arrived[op->peer] < p->groups[op->peer].n)
                return DT_OK;
            return place_group(w, op->peer, err);
        }
        if (w->t)
            record_op(w, i);
        else
            w->end[i] = end_of(p, i, at, ~w->end[i], w->end);
        place(w, i);
    }
    w->cursor[res] = DT_NONE;
    return DT_OK;
}

static enum dt_status walk_all(struct walk *w, struct dt_error *err)
{
    const struct dt_program *p = w->p;
    enum dt_status st;

    if (p->n_ops > REC_MASK)
        return dt_error_set(err, DT_ERR_INPUT, "a program of %u ops is too long", p->n_ops);
    st = walk_init(w, err);
    while (st == DT_OK && w->n_stack > 0)
        st = run_resource(w, w->stack[--w->n_stack], err);
    if (st == DT_OK && w->placed != p->n_ops)
        st = dt_error_set(err, DT_ERR_INTERNAL,
                          "program: %u of %u ops wait for each other in a circle",
                          p->n_ops - w->placed, p->n_ops);
    walk_free(w);
    return st;
}

enum dt_status dt_timeline_topo_build(const struct dt_program *p, struct dt_error *err,
                                      struct dt_timeline_topo *out)
{
    struct dt_timeline_topo t = {0};
    struct walk w = {.p = p, .t = &t};
    enum dt_status st = walk_all(&w, err);

    if (st != DT_OK) {
        dt_timeline_topo_free(&t);
        return st;
    }
    t.n = w.placed;
    *out = t;
    return DT_OK;
}

void dt_timeline_topo_free(struct dt_timeline_topo *t)
{
    dt_free(t->order);
    dt_free(t->rec);
    memset(t, 0, sizeof(*t));
}

/* ---- evaluation ---- */

enum dt_status dt_timeline_check(int64_t makespan_ns, struct dt_error *err)
{
    if (makespan_ns >= 0 && makespan_ns < DT_TIME_MAX_NS)
        return DT_OK;
    return dt_error_set(err, DT_ERR_RANGE,
                        "the iteration would take longer than 104 days, which is not simulated");
}

/* When the op could begin as far as its dependencies go; a RECV's SEND counts from its begin. */
static int64_t ready_ns(const struct dt_program *p, const struct dt_op *op, const int64_t *begin,
                        const int64_t *end)
{
    bool recv = op->kind == DT_OP_RECV;
    int64_t at = recv ? begin[op->peer] : 0;

    for (int k = 0; k < 3; k++)
        if (op->dep[k] != DT_NONE && !(recv && op->dep[k] == op->peer))
            at = later(at, end[op->dep[k]]);
    for (uint32_t k = 0; k < op->more_n; k++) {
        uint32_t d = p->deps[op->more_first + k];

        if (d != DT_NONE && !(recv && d == op->peer))
            at = later(at, end[d]);
    }
    return at;
}

static void eval_group(const struct dt_program *p, uint32_t g, const int64_t *dur, int64_t *begin,
                       int64_t *end)
{
    const struct dt_group *gr = &p->groups[g];
    const uint32_t *member = &p->group_ops[gr->first];
    int64_t at = 0, ns = 0;

    for (uint32_t k = 0; k < gr->n; k++) {
        at = later(at, ready_ns(p, &p->ops[member[k]], begin, end));
        ns = later(ns, dur[member[k]]);
    }
    for (uint32_t k = 0; k < gr->n; k++) {
        begin[member[k]] = at;
        end[member[k]] = at + ns;
    }
}

static void eval_op(const struct dt_program *p, uint32_t i, const int64_t *dur, int64_t *begin,
                    int64_t *end)
{
    const struct dt_op *op = &p->ops[i];

    begin[i] = ready_ns(p, op, begin, end);
    end[i] = end_of(p, i, begin[i], dur[i], end);
}

/* In an order in which members of a group may be apart: all of them when the first comes. */
static void eval_in_order(const struct dt_program *p, const uint32_t *order, const int64_t *dur,
                          int64_t *begin, int64_t *end)
{
    for (uint32_t k = 0; k < p->n_ops; k++) {
        uint32_t i = order[k];

        if (!in_group(&p->ops[i]))
            eval_op(p, i, dur, begin, end);
        else if (end[i] < 0)
            eval_group(p, p->ops[i].peer, dur, begin, end);
    }
}

static int64_t last_end(const struct dt_timeline *t)
{
    int64_t last = 0;

    for (uint32_t i = 0; i < t->n_ops; i++)
        last = later(last, t->end_ns[i]);
    return last;
}

/* Either with an order or by a walk that finds one. */
static enum dt_status eval_once(const struct dt_program *p, const uint32_t *order,
                                const int64_t *dur_ns, struct dt_error *err,
                                struct dt_timeline *out)
{
    struct walk w = {.p = p};

    DT_TRY(dt_timeline_reserve(out, p->n_ops, err));
    w.begin = out->begin_ns;
    w.end = out->end_ns;
    for (uint32_t i = 0; i < p->n_ops; i++) /* none has ended */
        out->end_ns[i] = ~dur_ns[i];
    if (order)
        eval_in_order(p, order, dur_ns, out->begin_ns, out->end_ns);
    else
        DT_TRY(walk_all(&w, err));
    out->makespan_ns = last_end(out);
    return dt_timeline_check(out->makespan_ns, err);
}

enum dt_status dt_timeline_once(const struct dt_program *p, const int64_t *dur_ns,
                                struct dt_error *err, struct dt_timeline *out)
{
    return eval_once(p, NULL, dur_ns, err, out);
}

enum dt_status dt_timeline_makespan(const struct dt_program *p, const uint32_t *order,
                                    const int64_t *dur_ns, struct dt_error *err, int64_t *ns)
{
    struct dt_timeline line = {0};
    enum dt_status st = eval_once(p, order, dur_ns, err, &line);

    if (st == DT_OK)
        *ns = line.makespan_ns;
    dt_timeline_free(&line);
    return st;
}

enum dt_status dt_timeline_eval(const struct dt_program *p, const struct dt_timeline_topo *topo,
                                const int64_t *dur_ns, struct dt_error *err,
                                struct dt_timeline *out)
{
    const struct dt_timeline_topo_rec *rec = topo->rec;
    int64_t *begin, *end;

    DT_TRY(dt_timeline_reserve(out, p->n_ops, err));
    begin = out->begin_ns;
    end = out->end_ns;
    end[p->n_ops] = 0; /* what "no dependency" points at */
    for (uint32_t k = 0; k < topo->n_rec; k++, rec++) {
        uint32_t i = rec->op & REC_MASK;
        int64_t at, to;

        switch ((enum rec_kind)(rec->op >> REC_SHIFT)) {
        case REC_PLAIN:
            at = later(later(end[rec->dep[0]], end[rec->dep[1]]), end[rec->dep[2]]);
            to = at + dur_ns[i];
            break;
        case REC_RECV:
            at = later(end[rec->dep[0]], begin[rec->dep[1]]);
            to = later(at, end[rec->dep[1]]);
            break;
        case REC_MORE:
            at = ready_ns(p, &p->ops[i], begin, end);
            to = end_of(p, i, at, dur_ns[i], end);
            break;
        case REC_GROUP:
            eval_group(p, i, dur_ns, begin, end);
            continue;
        }
        begin[i] = at;
        end[i] = to;
    }
    out->makespan_ns = last_end(out);
    return dt_timeline_check(out->makespan_ns, err);
}
