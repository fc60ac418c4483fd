/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Whose turn it is: over a transport that is on_queue, everything is put there in one order.
 *
 * Two threads of a rank post: the main thread within ops of lanes that are divided (tensor and context parallelism) or
 * in an expert group, the communication thread all others.  Which of them comes first must not depend on how fast they
 * are: a library whose kernels wait for those of other ranks wants the same order in every run, and orders of ranks
 * that do not contradict one another.  So both take turns, in the order of execute_order.c, which all ranks cut from
 * the same one.
 *
 * Nobody waits for ever: what has its turn waits for ops that are before it in that order, here or on other ranks,
 * and posts wait for nobody.  Ops that post nothing take no turns; a STEP, which waits for losses of all ranks, is one
 * of them. */
#include "exec/program/execute_impl.h"

#include <string.h>

static bool posts_in_main(const struct dt_exec *x, const struct dt_op *op)
{
    return dt_op_resource(op->kind) == DT_RES_COMPUTE && op->kind != DT_OP_STEP &&
           (dt_exec_tp(&x->ranks, op->module, op->replica, op->stage) ||
            dt_exec_cp(&x->ranks, op->module, op->replica, op->stage) ||
            dt_exec_ep(&x->ranks, op->module, op->replica, op->stage));
}

static bool takes_turns(const struct dt_exec *x, uint32_t i)
{
    return x->comm.graph.kind[i] == DT_EXEC_COMM ? dt_exec_leader(x->it.p, &x->ranks, i) == i
                                                 : posts_in_main(x, &x->it.p->ops[i]);
}

enum dt_status dt_exec_turns_begin(struct dt_exec *x, struct dt_error *err)
{
    struct dt_exec_turns *t = &x->comm.turns;

    t->n = t->next = 0;
    if (!x->ranks.data->on_queue)
        return DT_OK;
    if (dt_grow((void **)&t->op, &t->cap, x->it.n_order + 1u, sizeof(*t->op)) ||
        dt_grow((void **)&t->takes, &t->cap_takes, x->it.p->n_ops + 1u, sizeof(*t->takes)))
        return dt_error_nomem(err, "the order of a program");
    memset(t->takes, 0, x->it.p->n_ops);
    for (uint32_t k = 0; k < x->it.n_order; k++)
        if (takes_turns(x, x->it.order[k])) {
            t->takes[x->it.order[k]] = 1;
            t->op[t->n++] = x->it.order[k];
        }
    return DT_OK;
}

static bool takes(const struct dt_exec_turns *t, const struct dt_program *p, uint32_t i)
{
    return t->n > 0 && i < p->n_ops && t->takes[i];
}

bool dt_exec_turn(const struct dt_exec_turns *t, const struct dt_program *p, uint32_t i)
{
    return !takes(t, p, i) || t->op[t->next] == i;
}

bool dt_exec_turn_over(struct dt_exec_turns *t, const struct dt_program *p, uint32_t i)
{
    if (!takes(t, p, i))
        return false;
    t->next++;
    return true;
}

void dt_exec_turns_free(struct dt_exec_turns *t)
{
    dt_free(t->op);
    dt_free(t->takes);
}
