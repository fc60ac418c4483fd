/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Who waits for whom on this rank, counted from the program.
 *
 * Ops of lanes that are elsewhere are left out: what a rank needs of them comes as a message.  Only
 * where an op waits for another rank's compute op and no message says that it has ended (the credit
 * of lanes without a backward) a token of one byte is sent.  Lanes that share a GPU need none:
 * whoever stands for that GPU has both.
 *
 * SENDs are buffered: the next one waits until a SEND has been posted, not until it is over, which
 * is what the proof in core/schedule/program_check.c assumes.  Hand-offs inside the rank and FETCHes are
 * done by the main thread when it needs them, so nothing of the communication thread waits for
 * these; a hand-off waits for the messages before it in its queue, as the program has it. */
#include "exec/program/execute_impl.h"

#include <string.h>

/* ---- which thread ---- */

/* Who takes it: members of the receiving lane on this rank, and on others. */
static void takers(const struct dt_program *p, const struct dt_exec_ranks *ranks,
                   const struct dt_op *from, int *here, int *away)
{
    const struct dt_op *to = &p->ops[from->peer];

    *here = *away = 0;
    for (int t = 0; t < dt_exec_members(ranks->env, to->module); t++)
        for (int k = 0; k < dt_exec_feeders(ranks, from, to); k++) {
            if (dt_exec_rank_of(ranks, from, dt_exec_feeder(to, t, k)) != ranks->rank)
                continue;
            if (dt_exec_rank_of(ranks, to, t) == ranks->rank)
                ++*here;
            else
                ++*away;
        }
}

int dt_exec_send_users(const struct dt_program *p, const struct dt_exec_ranks *ranks, uint32_t send)
{
    int here, away;

    takers(p, ranks, &p->ops[send], &here, &away);
    return here + (away > 0);
}

static bool sends_away(const struct dt_program *p, const struct dt_exec_ranks *ranks,
                       const struct dt_op *from)
{
    int here, away;

    takers(p, ranks, from, &here, &away);
    return away > 0;
}

/* Does this rank's member take some of it from another rank? */
static bool comes(const struct dt_program *p, const struct dt_exec_ranks *ranks,
                  const struct dt_op *to)
{
    const struct dt_op *from = &p->ops[to->peer];

    for (int k = 0; k < dt_exec_feeders(ranks, from, to); k++)
        if (dt_exec_rank_of(ranks, from, dt_exec_feeder(to, dt_exec_member(ranks, to), k)) !=
            ranks->rank)
            return true;
    return false;
}

static enum dt_exec_where where(const struct dt_program *p, const struct dt_exec_ranks *ranks,
                                const struct dt_op *op)
{
    const struct dt_exec_peers *peers;

    if (!dt_exec_here(ranks, op))
        return DT_EXEC_ELSEWHERE;
    switch ((enum dt_op_kind)op->kind) {
    case DT_OP_SEND:
        return sends_away(p, ranks, op) ? DT_EXEC_COMM : DT_EXEC_MAIN;
    case DT_OP_RECV:
        return comes(p, ranks, op) ? DT_EXEC_COMM : DT_EXEC_MAIN;
    case DT_OP_GRAD_SYNC:
    case DT_OP_PARAM_GATHER:
        peers = &ranks->peers[op->module][op->stage];
        if (op->flags & DT_OPF_TIED)
            return ranks->tied[op->replica] ? DT_EXEC_COMM : DT_EXEC_MAIN;
        return peers->comm ? DT_EXEC_COMM : DT_EXEC_MAIN;
    case DT_OP_GRAD_NORM:
        return ranks->training ? DT_EXEC_COMM : DT_EXEC_MAIN;
    case DT_OP_FORWARD:
    case DT_OP_BACKWARD:
    case DT_OP_WEIGHT_GRAD:
    case DT_OP_STEP:
    case DT_OP_FETCH:
    case DT_OP_OFFLOAD:
    case DT_OP_RELOAD:
    case DT_OP_KIND_N:
        break;
    }
    return DT_EXEC_MAIN;
}

/* ---- dependencies ---- */

uint32_t dt_exec_dep(const struct dt_program *p, uint32_t i, uint32_t j)
{
    const struct dt_op *op = &p->ops[i];

    for (int k = 0; k < 3; k++)
        if (op->dep[k] != DT_NONE && j-- == 0)
            return op->dep[k];
    return j < op->more_n ? p->deps[op->more_first + j] : DT_NONE;
}

static bool is_p2p(const struct dt_op *op)
{
    enum dt_op_resource r = dt_op_resource(op->kind);

    return r == DT_RES_P2P_OUT || r == DT_RES_P2P_IN;
}

/* What op i (here) waits for instead of d: DT_NONE = nothing that this rank counts. */
static uint32_t counted(const struct dt_exec_graph *g, const struct dt_program *p, uint32_t i,
                        uint32_t d)
{
    const struct dt_op *op = &p->ops[i];
    bool comm = g->kind[i] == DT_EXEC_COMM;

    if (op->kind == DT_OP_RECV && d == op->peer)
        return DT_NONE;
    if (is_p2p(op) && is_p2p(&p->ops[d])) { /* the order of its resource */
        if (!comm && op->kind == DT_OP_SEND)
            return DT_NONE;
        while (d != DT_NONE && g->kind[d] != DT_EXEC_COMM)
            d = p->ops[d].dep[0];
        return d;
    }
    return g->kind[d] == DT_EXEC_ELSEWHERE ? DT_NONE : d;
}

uint32_t dt_exec_leader(const struct dt_program *p, const struct dt_exec_ranks *ranks, uint32_t i)
{
    const struct dt_op *op = &p->ops[i];
    const struct dt_group *g;

    if (dt_op_resource(op->kind) != DT_RES_COLL)
        return i;
    g = &p->groups[op->peer];
    for (uint32_t k = 0; k < g->n; k++)
        if (dt_exec_here(ranks, &p->ops[p->group_ops[g->first + k]]))
            return p->group_ops[g->first + k];
    return i;
}

/* ---- tokens ---- */

static bool lanes_meet(const struct dt_program *p, uint32_t a, uint32_t b)
{
    const struct dt_lane *x = &p->lanes[a], *y = &p->lanes[b];

    return x->first_gpu < y->first_gpu + y->gpus && y->first_gpu < x->first_gpu + x->gpus;
}

static enum dt_status add_token(struct dt_exec_graph *g, struct dt_exec_token t,
                                struct dt_error *err)
{

    if (dt_grow((void **)&g->tokens, &g->cap_tokens, g->n_tokens + 1u, sizeof(*g->tokens)))
        return dt_error_nomem(err, "tokens of a program");
    g->tokens[g->n_tokens++] = t;
    return DT_OK;
}

/* Op i of one lane waits for op d of another. */
static enum dt_status tokens_of(struct dt_exec_graph *g, const struct dt_program *p,
                                const struct dt_exec_ranks *ranks, uint32_t i, uint32_t d,
                                struct dt_error *err)
{
    const struct dt_op *to = &p->ops[i], *from = &p->ops[d];
    int tag = DT_EXEC_TAG_TOKEN + (int)(i % (DT_EXEC_TAG_OWN - DT_EXEC_TAG_TOKEN));

    if (lanes_meet(p, to->lane, from->lane))
        return DT_OK;
    for (int t = 0; t < dt_exec_members(ranks->env, to->module); t++) {
        int a, b;

        dt_exec_route(ranks, from, to, t, &a, &b);
        if (a == b)
            continue;
        if (a == ranks->rank)
            DT_TRY(add_token(g, (struct dt_exec_token){b, tag, false, d}, err));
        if (b == ranks->rank)
            DT_TRY(add_token(g, (struct dt_exec_token){a, tag, true, i}, err));
    }
    return DT_OK;
}

static enum dt_status find_tokens(struct dt_exec_graph *g, const struct dt_program *p,
                                  const struct dt_exec_ranks *ranks, struct dt_error *err)
{
    uint32_t d;

    g->n_tokens = 0;
    for (uint32_t i = 0; i < p->n_ops; i++) {
        if (dt_op_resource(p->ops[i].kind) != DT_RES_COMPUTE)
            continue;
        for (uint32_t j = 0; (d = dt_exec_dep(p, i, j)) != DT_NONE; j++)
            if (p->ops[d].lane != p->ops[i].lane)
                DT_TRY(tokens_of(g, p, ranks, i, d, err));
    }
    return DT_OK;
}

/* ---- the lists ---- */

static void link(struct dt_exec_graph *g, uint32_t from, uint32_t to, bool count)
{
    if (count) {
        g->succ_first[from + 1]++;
        g->pending[to]++;
        g->hears[to] |= g->kind[from] == DT_EXEC_COMM;
    } else {
        g->succ[--g->succ_first[from + 1]] = to;
    }
}

static void link_all(struct dt_exec_graph *g, const struct dt_exec_iteration *it,
                     const struct dt_exec_ranks *ranks, bool count)
{
    const struct dt_program *p = it->p;
    uint32_t d;

    for (uint32_t i = 0; i < p->n_ops; i++) {
        if (g->kind[i] == DT_EXEC_ELSEWHERE)
            continue;
        for (uint32_t j = 0; (d = dt_exec_dep(p, i, j)) != DT_NONE; j++) {
            d = counted(g, it->p, i, d);
            if (d != DT_NONE)
                link(g, d, dt_exec_leader(it->p, ranks, i), count);
        }
    }
    /* a step is made or not, by the losses of all */
    for (uint32_t i = 0; !it->late_steps && i < p->n_ops; i++)
        if (p->ops[i].kind == DT_OP_STEP && g->kind[i] == DT_EXEC_MAIN)
            link(g, dt_exec_loss_number(g), i, count);
    for (uint32_t k = 0; k < g->n_tokens; k++) {
        if (g->tokens[k].hears)
            link(g, p->n_ops + k, g->tokens[k].op, count);
        else
            link(g, g->tokens[k].op, p->n_ops + k, count);
    }
}

enum dt_status dt_exec_graph(struct dt_exec_graph *g, const struct dt_exec_iteration *it,
                             const struct dt_exec_ranks *ranks, struct dt_error *err)
{
    uint32_t n_ops = it->p->n_ops, sum = 0;

    DT_TRY(find_tokens(g, it->p, ranks, err));
    g->n = n_ops + g->n_tokens + 1;
    if (dt_grow((void **)&g->pending, &g->cap_pending, g->n, sizeof(*g->pending)) ||
        dt_grow((void **)&g->succ_first, &g->cap_succ_first, g->n + 2u, sizeof(*g->succ_first)) ||
        dt_grow((void **)&g->hears, &g->cap_hears, g->n, sizeof(*g->hears)) ||
        dt_grow((void **)&g->kind, &g->cap_kind, g->n + 1u, sizeof(*g->kind)))
        return dt_error_nomem(err, "the order of a program");
    for (uint32_t i = 0; i < n_ops; i++)
        g->kind[i] = (unsigned char)where(it->p, ranks, &it->p->ops[i]);
    memset(g->kind + n_ops, DT_EXEC_COMM, g->n - n_ops);
    memset(g->pending, 0, g->n * sizeof(*g->pending));
    memset(g->hears, 0, g->n * sizeof(*g->hears));
    memset(g->succ_first, 0, (g->n + 2u) * sizeof(*g->succ_first));
    link_all(g, it, ranks, true);
    for (uint32_t i = 0; i <= g->n; i++) /* ends of the lists, one place further */
        sum = g->succ_first[i] += i > 0 ? g->succ_first[i - 1] : 0;
    if (dt_grow((void **)&g->succ, &g->cap_succ, sum + 1u, sizeof(*g->succ)))
        return dt_error_nomem(err, "the order of a program");
    link_all(g, it, ranks, false);
    /* filled from the ends: succ_first[i + 1] is where the list of i begins now */
    memmove(g->succ_first, g->succ_first + 1, g->n * sizeof(*g->succ_first));
    g->succ_first[g->n] = sum;
    g->pending[dt_exec_loss_number(g)] = 1; /* dt_exec_comm_post_losses */
    return DT_OK;
}

void dt_exec_graph_free(struct dt_exec_graph *g)
{
    dt_free(g->pending);
    dt_free(g->hears);
    dt_free(g->kind);
    dt_free(g->succ_first);
    dt_free(g->succ);
    dt_free(g->tokens);
}
