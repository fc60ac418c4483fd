/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * The ranks of a job: which lanes are here, who acts together with whom, who owns which piece.
 *
 *   peers     ranks that hold replicas of a stage (of the same tp member): gradients, parameters
 *   tied      the two stages that share a table, per replica
 *   training  all, where anything is trained: the norm
 *   world     all: losses
 *   tp        members of a lane */
#include "exec/program/execute_impl.h"

#include <string.h>

enum { ALIGN = 16 }; /* floats: pieces begin where vectors like to (64 bytes) */

static int member_of(const struct dt_exec *x, int m, int r, int s)
{
    return x->member[m][r * x->pp[m] + s];
}

/* A comm of the ranks that are marked; NULL where this rank is none of them or alone. */
static enum dt_status comm_of(struct dt_exec *x, const bool *in, struct dt_error *err,
                              struct dt_comm **out)
{
    int *ranks, n = 0;
    enum dt_status st;

    *out = NULL;
    for (int r = 0; r < x->ranks; r++)
        n += in[r];
    if (n < 2 || !in[x->rank])
        return DT_OK;
    ranks = dt_malloc((size_t)n * sizeof(*ranks));
    if (!ranks)
        return dt_error_nomem(err, "ranks");
    n = 0;
    for (int r = 0; r < x->ranks; r++)
        if (in[r])
            ranks[n++] = r;
    st = x->t->comm_new(x->t, ranks, n, err, out);
    dt_free(ranks);
    return st;
}

static void clear(const struct dt_exec *x, bool *in)
{
    memset(in, 0, (size_t)x->ranks * sizeof(*in));
}

/* ---- lanes ---- */

static enum dt_status find_lanes(struct dt_exec *x, struct dt_error *err)
{
    for (int m = 0; m < x->o.model->n_modules; m++) {
        const struct dt_plan_layout *l = &x->o.plan->modules[m].layout;

        x->pp[m] = l->pp;
        x->dp[m] = l->dp;
        x->n_v[m] = l->pp * l->vpp;
        x->member[m] = dt_malloc((size_t)(l->dp * l->pp) * sizeof(*x->member[m]));
        x->peers[m] = dt_calloc((size_t)l->pp, sizeof(*x->peers[m]));
        x->tp[m] = dt_calloc((size_t)(l->dp * l->pp), sizeof(*x->tp[m]));
        if (!x->member[m] || !x->peers[m] || !x->tp[m])
            return dt_error_nomem(err, "lanes");
        for (int r = 0; r < l->dp; r++)
            for (int s = 0; s < l->pp; s++)
                x->member[m][r * l->pp + s] =
                    x->t ? dt_placement_member(&x->place, m, r, s, x->rank) : 0;
    }
    return DT_OK;
}

static enum dt_status join_peers(struct dt_exec *x, int m, bool *in, struct dt_error *err)
{
    int tp = x->o.plan->modules[m].layout.tp;

    for (int s = 0; s < x->pp[m]; s++) {
        struct dt_exec_peers *p = &x->peers[m][s];

        *p = (struct dt_exec_peers){.n = 1, .leader = -1};
        for (int r = x->dp[m] - 1; r >= 0; r--)
            p->leader = member_of(x, m, r, s) >= 0 ? r : p->leader;
        for (int t = 0; x->t && t < tp; t++) {
            struct dt_comm *c;

            clear(x, in);
            for (int r = 0; r < x->dp[m]; r++)
                in[dt_placement_rank(&x->place, m, r, s, t)] = true;
            p->n = 0;
            for (int r = 0; r < x->ranks; r++)
                p->n += in[r];
            DT_TRY(comm_of(x, in, err, &c));
            if (!c)
                continue;
            if (p->comm) /* two members of different replicas: they could not both be a piece */
                return dt_error_set(err, DT_ERR_INPUT,
                                    "module %s: rank %d would be different tp members of its "
                                    "replicas; start a rank for each GPU",
                                    x->o.plan->module_names[m], x->rank);
            p->comm = c;
            p->me = dt_comm_member(c);
        }
    }
    return DT_OK;
}

static enum dt_status join_members(struct dt_exec *x, int m, bool *in, struct dt_error *err)
{
    int tp = x->o.plan->modules[m].layout.tp;

    for (int lane = 0; tp > 1 && lane < x->dp[m] * x->pp[m]; lane++) {
        struct dt_tp *g = &x->tp[m][lane];

        clear(x, in);
        for (int t = 0; t < tp; t++)
            in[dt_placement_rank(&x->place, m, lane / x->pp[m], lane % x->pp[m], t)] = true;
        DT_TRY(comm_of(x, in, err, &g->comm));
        if (!g->comm)
            continue;
        g->rank = dt_comm_member(g->comm);
        g->size = tp;
        g->device = x->dev;
        g->limit_s = x->o.limit_s;
    }
    return DT_OK;
}

/* The two lanes of each replica whose stages share a table. */
static enum dt_status join_tied(struct dt_exec *x, bool *in, struct dt_error *err)
{
    int m = x->o.model->llm, tp = x->o.plan->modules[m].layout.tp;

    x->tied = dt_calloc((size_t)x->dp[m], sizeof(struct dt_comm *));
    if (!x->tied)
        return dt_error_nomem(err, "lanes");
    for (int r = 0; x->pp[m] > 1 && x->t && r < x->dp[m]; r++)
        for (int t = 0; t < tp; t++) {
            struct dt_comm *c;

            clear(x, in);
            in[dt_placement_rank(&x->place, m, r, 0, t)] = true;
            in[dt_placement_rank(&x->place, m, r, x->pp[m] - 1, t)] = true;
            DT_TRY(comm_of(x, in, err, &c));
            x->tied[r] = c ? c : x->tied[r];
        }
    return DT_OK;
}

static bool anything_trains(const struct dt_exec *x)
{
    for (int m = 0; m < x->o.model->n_modules; m++)
        for (int b = 0; b < x->o.model->modules[m].n_blocks; b++)
            if (dt_plan_trained(x->o.plan, x->o.model, m, b))
                return true;
    return false;
}

static enum dt_status join_all(struct dt_exec *x, bool *in, struct dt_error *err)
{
    for (int m = 0; m < x->o.model->n_modules; m++) {
        DT_TRY(join_peers(x, m, in, err));
        DT_TRY(join_members(x, m, in, err));
    }
    DT_TRY(join_tied(x, in, err));
    if (!x->t)
        return DT_OK;
    for (int r = 0; r < x->ranks; r++)
        in[r] = true;
    if (anything_trains(x))
        DT_TRY(comm_of(x, in, err, &x->training));
    return comm_of(x, in, err, &x->world);
}

enum dt_status dt_exec_place(struct dt_exec *x, struct dt_error *err)
{
    enum dt_status st;
    bool *in;

    x->t = x->o.transport && x->o.transport->size > 1 ? x->o.transport : NULL;
    x->rank = x->t ? x->t->rank : 0;
    x->ranks = x->t ? x->t->size : 1;
    DT_TRY(dt_placement_init(&x->place, x->o.plan, x->ranks, err));
    DT_TRY(find_lanes(x, err));
    in = dt_malloc((size_t)x->ranks * sizeof(*in));
    if (!in)
        return dt_error_nomem(err, "ranks");
    st = join_all(x, in, err);
    dt_free(in);
    return st;
}

static void leave(struct dt_exec *x, struct dt_comm *c)
{
    if (c)
        x->t->comm_free(c);
}

void dt_exec_unplace(struct dt_exec *x)
{
    for (int m = 0; m < DT_MAX_MODULES; m++) {
        for (int s = 0; x->peers[m] && s < x->pp[m]; s++)
            leave(x, x->peers[m][s].comm);
        for (int k = 0; x->tp[m] && k < x->pp[m] * x->dp[m]; k++)
            leave(x, x->tp[m][k].comm);
        dt_free(x->member[m]);
        dt_free(x->peers[m]);
        dt_free(x->tp[m]);
    }
    for (int r = 0; x->tied && r < x->dp[x->o.model->llm]; r++)
        leave(x, x->tied[r]);
    dt_free((void *)x->tied);
    leave(x, x->training);
    leave(x, x->world);
    dt_placement_free(&x->place);
}

void dt_exec_route(const struct dt_exec *x, const struct dt_op *from, const struct dt_op *to, int t,
                   int *from_rank, int *to_rank)
{
    int members = x->o.plan->modules[from->module].layout.tp, s;

    if (!x->t) {
        *from_rank = *to_rank = 0;
        return;
    }
    *to_rank = dt_placement_rank(&x->place, to->module, to->replica, to->stage, t);
    /* whole tensors are equal on all members: one of the same rank is nearest */
    s = dt_placement_member(&x->place, from->module, from->replica, from->stage, *to_rank);
    if (s < 0 || (from->module == to->module && s != t))
        s = t % members;
    *from_rank = dt_placement_rank(&x->place, from->module, from->replica, from->stage, s);
}

/* ---- who owns what ---- */

static enum dt_status add_region(struct dt_exec_vstage *vs, size_t *cap, struct dt_exec_region u,
                                 struct dt_error *err)
{
    if (u.n == 0)
        return DT_OK;
    if (dt_grow((void **)&vs->regions, cap, (size_t)vs->n_regions + 1, sizeof(*vs->regions)))
        return dt_error_nomem(err, "pieces of a stage");
    vs->regions[vs->n_regions++] = u;
    return DT_OK;
}

/* A run of trained blocks; a table that two stages share is a region of its own. */
static enum dt_status add_run(struct dt_exec_vstage *vs, size_t *cap, int first, int last,
                              const struct dt_param *table, struct dt_error *err)
{
    struct dt_param_range a = dt_stage_range(vs->stage, first),
                          z = dt_stage_range(vs->stage, last - 1);
    struct dt_exec_region u = {.first = first, .last = last, .at = a.at, .n = z.at + z.n - a.at};

    if (!table || table->block < first || table->block >= last)
        return add_region(vs, cap, u, err);
    u.n = table->at - a.at;
    DT_TRY(add_region(vs, cap, u, err));
    u.at = table->at;
    u.n = table->n;
    u.whole = true;
    DT_TRY(add_region(vs, cap, u, err));
    u.whole = false;
    u.at = table->at + table->n;
    u.n = z.at + z.n - u.at;
    return add_region(vs, cap, u, err);
}

enum dt_status dt_exec_make_regions(struct dt_exec *x, struct dt_exec_vstage *vs,
                                    struct dt_error *err)
{
    int n = vs->last - vs->first, parts = n < DT_EXEC_PARTS ? n : DT_EXEC_PARTS;
    bool tied = vs->module == x->o.model->llm && x->pp[vs->module] > 1 &&
                (vs->v == 0 || vs->v == x->n_v[vs->module] - 1);
    const struct dt_param *table = tied ? dt_exec_shared_table(x, vs) : NULL;
    size_t cap = 0;

    if (!x->o.plan->policy.overlap_grad && !x->o.plan->policy.overlap_param)
        parts = 1;
    for (int k = 0; k < parts; k++) {
        int lo = vs->first + n * k / parts, hi = vs->first + n * (k + 1) / parts;

        for (int b = lo, e; b < hi; b = e) {
            e = b + 1;
            if (!dt_stage_trained(vs->stage, b))
                continue;
            while (e < hi && dt_stage_trained(vs->stage, e))
                e++;
            DT_TRY(add_run(vs, &cap, b, e, table, err));
        }
    }
    return DT_OK;
}

void dt_exec_piece(const struct dt_exec_region *u, int members, int member, size_t *at, size_t *n)
{
    size_t granules = (u->n + ALIGN - 1) / ALIGN, q = granules / (size_t)members,
           r = granules % (size_t)members, k = (size_t)member;
    size_t first = (k * q + (k < r ? k : r)) * ALIGN, count = (q + (k < r)) * ALIGN;

    first = first < u->n ? first : u->n;
    *at = u->at + first;
    *n = count < u->n - first ? count : u->n - first;
}

enum dt_status dt_exec_owned(const struct dt_exec *x, const struct dt_exec_vstage *vs, int me,
                             bool leads, struct dt_error *err, struct dt_optimizer_owned **out,
                             int *n)
{
    int members = x->peers[vs->module][vs->v % x->pp[vs->module]].n;
    struct dt_optimizer_owned *o;

    *out = NULL;
    *n = 0;
    if (members == 1 || x->o.plan->policy.zero != 1)
        return DT_OK;
    o = dt_malloc(((size_t)vs->n_regions + 1) * sizeof(*o));
    if (!o)
        return dt_error_nomem(err, "pieces of a stage");
    for (int k = 0; k < vs->n_regions; k++) {
        const struct dt_exec_region *u = &vs->regions[k];
        struct dt_optimizer_owned *w = &o[*n];

        *w = (struct dt_optimizer_owned){u->at, u->n, me == 0};
        if (!u->whole) { /* one replica steps for the others of its rank */
            if (!leads)
                continue;
            dt_exec_piece(u, members, me, &w->at, &w->n);
            w->counted = true;
        }
        *n += w->n > 0;
    }
    *out = o;
    return DT_OK;
}
