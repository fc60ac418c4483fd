/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * One order for all ops of a process; of it those whose lanes are here.
 *
 * Compute ops and collectives follow the program's topological order.  Messages and fetches are
 * pulled in by whoever needs them, right before it, so that data waits in memory no longer than it
 * must; the dependencies of every op still come before it.  What goes over the host link has a queue of its own and comes as
 * soon as all is placed that it waits for, so that it hides behind what follows.
 *
 * Members of an expert group wait for each other inside their compute ops, so the n-th ones of their lanes have one
 * place in the order, behind what any of them waits for: whoever is at such a place has behind it all that the others
 * need to come there, too. */
#include "exec/program/execute_impl.h"

#include <string.h>

enum { NOT_PLACED, PLACED, BEGUN };

static void place(struct dt_exec_iteration *it, const struct dt_exec_ranks *ranks, uint32_t i);

static void put(struct dt_exec_iteration *it, const struct dt_exec_ranks *ranks, uint32_t i)
{
    it->placed[i] = PLACED;
    if (dt_exec_here(ranks, &it->p->ops[i]))
        it->order[it->n_order++] = i;
}

static void place_deps(struct dt_exec_iteration *it, const struct dt_exec_ranks *ranks, uint32_t i)
{
    const struct dt_op *op = &it->p->ops[i];

    for (int k = 0; k < 3; k++)
        if (op->dep[k] != DT_NONE)
            place(it, ranks, op->dep[k]);
    for (uint32_t k = 0; k < op->more_n; k++)
        place(it, ranks, it->p->deps[op->more_first + k]);
    if (op->kind == DT_OP_RECV)
        place(it, ranks, op->peer);
}

/* ---- expert groups ---- */

/* All members together, or: they do not run the same. */
static void place_members(struct dt_exec_iteration *it, const struct dt_exec_ranks *ranks,
                          uint32_t i, int n)
{
    const struct dt_program_partners *g = &it->partners;
    uint32_t at;

    for (int k = 0; k < n; k++) {
        at = dt_program_partner(it->p, g, i, k);
        it->cyclic |= at == DT_NONE || it->placed[at] != NOT_PLACED;
    }
    if (it->cyclic)
        return;
    for (int k = 0; k < n; k++)
        it->placed[dt_program_partner(it->p, g, i, k)] = BEGUN;
    for (int k = 0; k < n; k++)
        place_deps(it, ranks, dt_program_partner(it->p, g, i, k));
    for (int k = 0; k < n; k++)
        put(it, ranks, dt_program_partner(it->p, g, i, k));
}

/* Depth: chains of messages that nobody has asked for yet. */
static void place(struct dt_exec_iteration *it, const struct dt_exec_ranks *ranks, uint32_t i)
{
    const struct dt_op *op = &it->p->ops[i];

    int n = dt_program_partners_n(it->p, &it->partners, i);

    it->cyclic |= it->placed[i] == BEGUN; /* what the op waits for waits for another member's */
    if (it->placed[i] || it->cyclic)
        return;
    if (n > 1) {
        place_members(it, ranks, i, n);
        return;
    }
    if (dt_op_resource(op->kind) != DT_RES_COLL) {
        place_deps(it, ranks, i);
        put(it, ranks, i);
        return;
    }
    /* all members together, after what any of them waits for */
    const struct dt_group *g = &it->p->groups[op->peer];
    for (uint32_t k = 0; k < g->n; k++)
        place_deps(it, ranks, it->p->group_ops[g->first + k]);
    for (uint32_t k = 0; k < g->n; k++)
        put(it, ranks, it->p->group_ops[g->first + k]);
}

/* A step is made when the losses of all samples are known.  Where modules share GPUs a frozen one may
 * have forwards left when another steps: whoever waited for losses there would wait for itself. */
static bool forward_after_step(const struct dt_exec_iteration *it)
{
    bool step = false;

    for (uint32_t k = 0; k < it->n_order; k++) {
        enum dt_op_kind kind = it->p->ops[it->order[k]].kind;

        if (kind == DT_OP_FORWARD && step)
            return true;
        step |= kind == DT_OP_STEP;
    }
    return false;
}

/* ---- the host link ---- */

static bool are_placed(const struct dt_exec_iteration *it, uint32_t i)
{
    uint32_t d;

    for (uint32_t k = 0; (d = dt_exec_dep(it->p, i, k)) != DT_NONE; k++)
        if (!it->placed[d])
            return false;
    return true;
}

/* Ops of the host link here: links[n], in their lanes' order. */
static enum dt_status find_links(const struct dt_exec_iteration *it,
                                 const struct dt_exec_ranks *ranks, struct dt_error *err,
                                 uint32_t **links, uint32_t *n)
{
    *n = 0;
    *links = NULL;
    for (uint32_t i = 0; ranks->env->link && i < it->p->n_ops; i++)
        *n += dt_op_resource(it->p->ops[i].kind) == DT_RES_HOST;
    if (*n == 0)
        return DT_OK;
    *links = dt_malloc(*n * sizeof(**links));
    if (!*links)
        return dt_error_nomem(err, "the order of a program");
    *n = 0;
    for (uint32_t i = 0; i < it->p->n_ops; i++)
        if (dt_op_resource(it->p->ops[i].kind) == DT_RES_HOST &&
            dt_exec_here(ranks, &it->p->ops[i]))
            (*links)[(*n)++] = i;
    return DT_OK;
}

/* Those whose turn has come; the others remain. */
static void place_links(struct dt_exec_iteration *it, const struct dt_exec_ranks *ranks,
                        uint32_t *links, uint32_t *n)
{
    uint32_t left = 0;

    for (uint32_t k = 0; k < *n; k++)
        if (are_placed(it, links[k]))
            place(it, ranks, links[k]);
        else
            links[left++] = links[k];
    *n = left;
}

static enum dt_status place_all(struct dt_exec_iteration *it, const struct dt_exec_ranks *ranks,
                                const struct dt_timeline_topo *topo, struct dt_error *err)
{
    uint32_t *links, n_links, before;

    DT_TRY(find_links(it, ranks, err, &links, &n_links));
    place_links(it, ranks, links, &n_links);
    for (uint32_t k = 0; k < topo->n; k++) {
        enum dt_op_resource r = dt_op_resource(it->p->ops[topo->order[k]].kind);

        if (r != DT_RES_COMPUTE && r != DT_RES_COLL)
            continue;
        before = it->n_order;
        place(it, ranks, topo->order[k]);
        if (it->n_order > before)
            place_links(it, ranks, links, &n_links);
    }
    for (uint32_t k = 0; k < topo->n; k++)
        place(it, ranks, topo->order[k]);
    dt_free(links);
    return DT_OK;
}

enum dt_status dt_exec_make_order(struct dt_exec_iteration *it, const struct dt_exec_ranks *ranks,
                                  struct dt_error *err)
{
    const struct dt_program *p = it->p;
    struct dt_timeline_topo topo = {0};
    enum dt_status st;

    if (dt_grow((void **)&it->order, &it->cap_order, p->n_ops + 1u, sizeof(*it->order)) ||
        dt_grow((void **)&it->placed, &it->cap_placed, p->n_ops + 1u, sizeof(*it->placed)))
        return dt_error_nomem(err, "the order of a program");
    memset(it->placed, 0, p->n_ops);
    it->n_order = 0;
    it->cyclic = false;
    dt_arena_free(&it->partners_of);
    DT_TRY(dt_program_partners_find(p, &it->partners_of, err, &it->partners));
    DT_TRY(dt_timeline_topo_build(p, err, &topo));
    st = place_all(it, ranks, &topo, err);
    dt_timeline_topo_free(&topo);
    DT_TRY(st);
    if (it->cyclic)
        return dt_error_set(
            err, DT_ERR_INPUT,
            "the lanes of an expert group (ep) cannot run their microbatches side by "
            "side in this program: use the same number of microbatches for each, "
            "and modules that share no GPUs, or schedule 1f1b");
    it->late_steps = forward_after_step(it);
    return DT_OK;
}
