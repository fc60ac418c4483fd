/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * From "op waits for" (the program) to "op is waited for by" (what an event engine walks), in O(ops
 * + dependencies). */
#include "sim/engine_internal.h"

#include "base/hash.h"
#include "base/mem.h"

#include <string.h>

static uint64_t mix_words(uint64_t h, const uint32_t *w, size_t n)
{
    for (size_t i = 0; i < n; i++)
        h = dt_hash_word(h, w[i]);
    return h;
}

/* Everything that the arrays depend on.  Comparing addresses would not do: the next program may lie
 * where the last one did. */
static uint64_t fingerprint(const struct dt_program *p)
{
    uint64_t h[6] = {1, 2, 3, 4, 5, 6}, w[6];

    _Static_assert(sizeof(struct dt_op) == sizeof w, "an op is six words");
    for (uint32_t i = 0; i < p->n_ops; i++) {
        memcpy(w, &p->ops[i], sizeof w);
        for (int k = 0; k < 6; k++)
            h[k] = dt_hash_word(h[k], w[k]);
    }
    h[0] = dt_hash_word(mix_words(h[0], p->deps, p->n_deps), p->n_ops);
    h[1] = dt_hash_word(mix_words(h[1], p->group_ops, p->n_group_ops), p->n_groups);
    for (uint32_t g = 0; g < p->n_groups; g++)
        h[2] = dt_hash_word(h[2], (uint64_t)p->groups[g].first << 32 | p->groups[g].n);
    for (int k = 1; k < 6; k++)
        h[0] = dt_hash_word(h[0], h[k]);
    return h[0] | 1; /* never the "none" value */
}

static enum dt_engine_class class_of(const struct dt_op *op)
{
    switch ((enum dt_op_kind)op->kind) {
    case DT_OP_SEND:
        return ENGINE_SEND;
    case DT_OP_RECV:
        return ENGINE_RECV;
    case DT_OP_FORWARD:
    case DT_OP_BACKWARD:
    case DT_OP_WEIGHT_GRAD:
    case DT_OP_GRAD_SYNC:
    case DT_OP_GRAD_NORM:
    case DT_OP_STEP:
    case DT_OP_PARAM_GATHER:
    case DT_OP_FETCH:
    case DT_OP_OFFLOAD:
    case DT_OP_RELOAD:
    case DT_OP_KIND_N:
        break;
    }
    return dt_op_resource(op->kind) == DT_RES_COLL && op->peer != DT_NONE ? ENGINE_GROUP
                                                                          : ENGINE_PLAIN;
}

/* Calls VISIT(d) for every dependency d of OP, a RECV's SEND once and last. */
#define FOR_DEPENDENCIES(p, op, is_recv, VISIT)                                                    \
    do {                                                                                           \
        for (int k_ = 0; k_ < 3; k_++)                                                             \
            if ((op)->dep[k_] != DT_NONE && !((is_recv) && (op)->dep[k_] == (op)->peer))           \
                VISIT((op)->dep[k_]);                                                              \
        for (uint32_t m_ = 0; m_ < (op)->more_n; m_++) {                                           \
            uint32_t d_ = (p)->deps[(op)->more_first + m_];                                        \
            if (d_ != DT_NONE && !((is_recv) && d_ == (op)->peer))                                 \
                VISIT(d_);                                                                         \
        }                                                                                          \
        if (is_recv)                                                                               \
            VISIT((op)->peer);                                                                     \
    } while (0)

/* A RECV's SEND is of another lane, far off: ask for what the walk needs of it well before. */
#define FETCH_AHEAD(p, i, WHAT)                                                                    \
    do {                                                                                           \
        uint32_t far_ = (i) + 24 < (p)->n_ops ? (p)->ops[(i) + 24].peer : DT_NONE;                 \
        if (far_ < (p)->n_ops)                                                                     \
            __builtin_prefetch(&(WHAT)[far_]);                                                     \
    } while (0)

static enum dt_status check_op(const struct dt_program *p, uint32_t i, struct dt_error *err)
{
    const struct dt_op *op = &p->ops[i];
    bool ok = op->lane < (uint32_t)p->n_lanes;

    ok = ok && (op->more_n == 0 || (uint64_t)op->more_first + op->more_n <= p->n_deps);
    for (int k = 0; k < 3; k++)
        ok = ok && (op->dep[k] == DT_NONE || op->dep[k] < p->n_ops);
    for (uint32_t m = 0; ok && m < op->more_n; m++)
        ok = p->deps[op->more_first + m] == DT_NONE || p->deps[op->more_first + m] < p->n_ops;
    if (op->kind == DT_OP_RECV)
        ok = ok && op->peer < p->n_ops && p->ops[op->peer].kind == DT_OP_SEND;
    if (class_of(op) == ENGINE_GROUP)
        ok = ok && op->peer < p->n_groups;
    if (!ok)
        return dt_error_set(err, DT_ERR_INTERNAL,
                            "engine: op %u (%s) refers to an op or group that does not exist", i,
                            dt_op_kind_names[op->kind]);
    return DT_OK;
}

static enum dt_status check_groups(const struct dt_program *p, struct dt_error *err)
{
    for (uint32_t g = 0; g < p->n_groups; g++) {
        const struct dt_group *gr = &p->groups[g];
        bool ok = gr->n > 0 && (uint64_t)gr->first + gr->n <= p->n_group_ops;
        for (uint32_t k = 0; ok && k < gr->n; k++) {
            uint32_t op = p->group_ops[gr->first + k];
            ok = op < p->n_ops && p->ops[op].peer == g && class_of(&p->ops[op]) == ENGINE_GROUP;
        }
        if (!ok)
            return dt_error_set(err, DT_ERR_INTERNAL, "engine: group %u has a wrong member list",
                                g);
    }
    return DT_OK;
}

static int grow(struct dt_engine *e, const struct dt_program *p)
{
    size_t n = p->n_ops;

    return dt_grow((void **)&e->node, &e->node_cap, n + 1, sizeof *e->node) ||
           dt_grow((void **)&e->events, &e->events_cap, n + 1, sizeof *e->events) ||
           dt_grow((void **)&e->ended, &e->ended_cap, n + 1, sizeof *e->ended) ||
           dt_grow((void **)&e->group_left, &e->group_cap, p->n_groups + 1u, sizeof(uint32_t)) ||
           dt_grow((void **)&e->members, &e->members_cap, p->n_lanes + 1u, sizeof(uint32_t));
}

/* First pass: count what each op needs and who needs it, and the SENDs. */
static enum dt_status count(struct dt_engine *e, const struct dt_program *p, struct dt_error *err,
                            uint64_t *edges)
{
    memset(e->node, 0, (p->n_ops + (size_t)1) * sizeof *e->node);
    e->tangled = false;
    e->n_sends = 0;
    *edges = 0;
    for (uint32_t i = 0; i < p->n_ops; i++) {
        const struct dt_op *op = &p->ops[i];
        FETCH_AHEAD(p, i, p->ops);
        FETCH_AHEAD(p, i, e->node);
        DT_TRY(check_op(p, i, err));
        enum dt_engine_class c = class_of(op);
        uint32_t need = 0;
        const struct dt_lane *l = &p->lanes[op->lane];
#define COUNT(d)                                                                                   \
    (e->node[d].succ_first++, need++,                                                              \
     e->tangled |= (d)-l->first >= l->n && !(c == ENGINE_RECV && (d) == op->peer))
        FOR_DEPENDENCIES(p, op, c == ENGINE_RECV, COUNT);
#undef COUNT
        *edges += need;
        e->n_sends += c == ENGINE_SEND;
        e->node[i].need_all = need;
        e->node[i].class = c;
        e->node[i].peer = op->peer;
    }
    return DT_OK;
}

/* Second pass: place successors.  Backwards, so that each list ends up in program order.  SENDs keep their figures
 * together: an op's whole record is too much to fetch in the loop. */
static void place(struct dt_engine *e, const struct dt_program *p)
{
    uint32_t sum = 0, send = e->n_sends;

    for (uint32_t i = 0; i < p->n_ops; i++)
        e->node[i].succ_first = sum += e->node[i].succ_first;
    e->node[p->n_ops].succ_first = sum;
    for (uint32_t i = p->n_ops; i-- > 0;) {
        const struct dt_op *op = &p->ops[i];

        if (i >= 24 && p->ops[i - 24].peer < p->n_ops) {
            __builtin_prefetch(&e->node[p->ops[i - 24].peer]);
            __builtin_prefetch(&p->ops[p->ops[i - 24].peer]);
        }
#define PLACE(d) (e->succ[--e->node[d].succ_first] = i)
        FOR_DEPENDENCIES(p, op, e->node[i].class == ENGINE_RECV, PLACE);
#undef PLACE
        if (e->node[i].class != ENGINE_SEND)
            continue;
        e->sends[--send] = (struct dt_engine_send){
            .bytes = op->bytes > 0 ? (double)op->bytes : 1,
            .src = op->lane,
            .dst = op->peer < p->n_ops ? p->ops[op->peer].lane : DT_NONE,
        };
        e->node[i].peer = send;
    }
}

enum dt_status dt_engine_prepare(struct dt_engine *e, const struct dt_program *p,
                                 struct dt_error *err)
{
    uint64_t print = e->remembers ? fingerprint(p) : 0, edges = 0;

    if (print != 0 && print == e->fingerprint && p->n_ops == e->n_ops && p->n_groups == e->n_groups)
        return DT_OK;
    e->fingerprint = 0;
    if (grow(e, p))
        return dt_error_nomem(err, "event engine");
    DT_TRY(count(e, p, err, &edges));
    DT_TRY(check_groups(p, err));
    if (edges >= DT_NONE)
        return dt_error_set(err, DT_ERR_INTERNAL, "engine: more than 2^32 dependencies");
    if (dt_grow((void **)&e->succ, &e->succ_cap, edges + 1, sizeof *e->succ) ||
        dt_grow((void **)&e->sends, &e->sends_cap, e->n_sends + 1u, sizeof *e->sends))
        return dt_error_nomem(err, "event engine");
    place(e, p);
    e->n_ops = p->n_ops;
    e->n_groups = p->n_groups;
    e->fingerprint = print;
    return DT_OK;
}
