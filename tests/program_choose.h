/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * A random program, and operations of it that are chosen by what they are. */
#ifndef DT_TESTS_PROGRAM_CHOOSE_H
#define DT_TESTS_PROGRAM_CHOOSE_H

#include "random_plan.h"

static struct sched_fixture s; /* large: not on the stack */
static struct dt_rng rng;

typedef bool pick(const struct dt_op *o);

static inline bool any(const struct dt_op *o)
{
    return o->kind < DT_OP_KIND_N;
}
static inline bool is_forward(const struct dt_op *o)
{
    return o->kind == DT_OP_FORWARD;
}
static inline bool is_backward(const struct dt_op *o)
{
    return o->kind == DT_OP_BACKWARD;
}
static inline bool is_work(const struct dt_op *o)
{
    return o->kind == DT_OP_FORWARD || o->kind == DT_OP_BACKWARD || o->kind == DT_OP_WEIGHT_GRAD;
}
static inline bool is_weight(const struct dt_op *o)
{
    return o->kind == DT_OP_WEIGHT_GRAD;
}
static inline bool is_cut(const struct dt_op *o)
{
    return is_work(o) && o->parts > 1;
}
static inline bool is_send(const struct dt_op *o)
{
    return o->kind == DT_OP_SEND;
}
static inline bool is_recv(const struct dt_op *o)
{
    return o->kind == DT_OP_RECV;
}
static inline bool is_fetch(const struct dt_op *o)
{
    return o->kind == DT_OP_FETCH;
}
static inline bool is_message(const struct dt_op *o)
{
    return is_send(o) || is_recv(o);
}
static inline bool is_sync(const struct dt_op *o)
{
    return o->kind == DT_OP_GRAD_SYNC && !(o->flags & DT_OPF_TIED);
}
static inline bool is_tied(const struct dt_op *o)
{
    return o->kind == DT_OP_GRAD_SYNC && (o->flags & DT_OPF_TIED);
}
static inline bool is_gather(const struct dt_op *o)
{
    return o->kind == DT_OP_PARAM_GATHER;
}
static inline bool is_norm(const struct dt_op *o)
{
    return o->kind == DT_OP_GRAD_NORM;
}
static inline bool is_step(const struct dt_op *o)
{
    return o->kind == DT_OP_STEP;
}
static inline bool is_collective(const struct dt_op *o)
{
    return dt_op_resource(o->kind) == DT_RES_COLL;
}

static inline bool is_link(const struct dt_op *o)
{
    return dt_op_resource(o->kind) == DT_RES_HOST;
}
static inline bool is_reload(const struct dt_op *o)
{
    return o->kind == DT_OP_RELOAD;
}

/* of a microbatch */
static inline bool is_own(const struct dt_op *o)
{
    return is_collective(o) && o->mb != DT_NONE;
}
static inline bool is_own_gather(const struct dt_op *o)
{
    return is_gather(o) && is_own(o);
}
static inline bool is_own_sync(const struct dt_op *o)
{
    return is_sync(o) && is_own(o);
}

static inline uint32_t below(uint32_t n)
{
    return (uint32_t)dt_rng_below(&rng, n);
}

/* A random op, of one lane or (DT_NONE) of any, other than `not`; DT_NONE when there is none. */
static inline uint32_t choose(pick *is, uint32_t lane, uint32_t not )
{
    uint32_t n = 0, found = DT_NONE;

    for (uint32_t i = 0; i < s.p->n_ops; i++)
        if (i != not &&(lane == DT_NONE || s.p->ops[i].lane == lane) && is(&s.p->ops[i]) &&
            below(++n) == 0)
            found = i;
    return found;
}

static inline struct dt_op *at(uint32_t i)
{
    return &s.p->ops[i];
}

#endif
