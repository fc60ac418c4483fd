/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * The ranks of a job: which lanes are here, who acts together with whom, who owns which piece.
 *
 * Of device memory:
 *   peers     ranks that hold replicas of a stage (of the same tp member): gradients, parameters; where they shard in
 *             groups, those of a group, and those of the same place in all groups
 *   tied      the two stages that share a table, per replica
 *   tp        members of a lane
 *   ep        members of an expert group: neighbours among those that hold the same dense parameters, which are the cp
 *             members of a stage's replicas
 *   expert_peers  of what these hold: those of the same place in all groups
 *   training  all, where anything is trained: the norm
 * Of host memory:
 *   world     all: losses */
#include "exec/program/execute_impl.h"

#include <string.h>

enum { ALIGN = 16 }; /* floats: pieces begin where vectors like to (64 bytes) */

static int member_of(const struct dt_exec_ranks *ranks, int m, int r, int s)
{
    return ranks->member[m][r * ranks->env->pp[m] + s];
}

/* A comm of the ranks that are marked; NULL where this rank is none of them or alone. */
static enum dt_status comm_of(const struct dt_exec_ranks *ranks, struct dt_transport *t,
                              const bool *in, struct dt_error *err, struct dt_comm **out)
{
    int *list, n = 0;
    enum dt_status st;

    *out = NULL;
    for (int r = 0; r < ranks->n; r++)
        n += in[r];
    if (n < 2 || !in[ranks->rank])
        return DT_OK;
    list = dt_malloc((size_t)n * sizeof(*list));
    if (!list)
        return dt_error_nomem(err, "ranks");
    n = 0;
    for (int r = 0; r < ranks->n; r++)
        if (in[r])
            list[n++] = r;
    st = t->comm_new(t, list, n, err, out);
    dt_free(list);
    return st;
}

static void clear(const struct dt_exec_ranks *ranks, bool *in)
{
    memset(in, 0, (size_t)ranks->n * sizeof(*in));
}

/* ---- lanes ---- */

static enum dt_status find_lanes(struct dt_exec_ranks *ranks, struct dt_error *err)
{
    for (int m = 0; m < ranks->env->o.model->n_modules; m++) {
        const struct dt_plan_layout *l = &ranks->env->o.plan->modules[m].layout;

        ranks->member[m] = dt_malloc((size_t)(l->dp * l->pp) * sizeof(*ranks->member[m]));
        ranks->peers[m] = dt_calloc((size_t)l->pp, sizeof(*ranks->peers[m]));
        ranks->tp[m] = dt_calloc((size_t)(l->dp * l->pp), sizeof(*ranks->tp[m]));
        ranks->cp[m] = dt_calloc((size_t)(l->dp * l->pp), sizeof(*ranks->cp[m]));
        ranks->ep[m] = dt_calloc((size_t)(l->dp * l->pp), sizeof(*ranks->ep[m]));
        ranks->expert_peers[m] = dt_calloc((size_t)l->pp, sizeof(*ranks->expert_peers[m]));
        ranks->cut[m] = (struct dt_batch_cut){
            .n = l->cp, .ring = ranks->env->o.plan->policy.cp_comm == DT_CP_COMM_RING};
        if (!ranks->member[m] || !ranks->peers[m] || !ranks->tp[m] || !ranks->cp[m] ||
            !ranks->ep[m] || !ranks->expert_peers[m])
            return dt_error_nomem(err, "lanes");
        for (int r = 0; r < l->dp; r++)
            for (int s = 0; s < l->pp; s++)
                ranks->member[m][r * l->pp + s] =
                    ranks->t ? dt_placement_member(&ranks->place, m, r, s, ranks->rank) : 0;
    }
    return DT_OK;
}

/* Ranks of a group, from GPUs of one: every rank stands for as many replicas. */
static enum dt_status size_groups(const struct dt_exec_ranks *ranks, int m, struct dt_exec_peers *p,
                                  struct dt_error *err)
{
    const struct dt_plan_module *mp = &ranks->env->o.plan->modules[m];
    int copies = (int)dt_plan_layout_copies(&mp->layout);

    p->n_group = p->n;
    if (mp->zero_group == 0 || p->n == 1)
        return DT_OK;
    if (copies % p->n != 0 || (int64_t)mp->zero_group * p->n % copies != 0)
        return dt_error_set(err, DT_ERR_INPUT,
                            "module %s: groups of %d of the %d GPUs that hold the same parameters "
                            "(zero_group) cannot be made of the %d ranks that stand for them; "
                            "start a rank for each GPU",
                            ranks->env->o.plan->module_names[m], mp->zero_group, copies, p->n);
    p->n_group = (int)((int64_t)mp->zero_group * p->n / copies);
    return DT_OK;
}

/* in: the peers, this rank among them. */
static enum dt_status join_groups(const struct dt_exec_ranks *ranks, struct dt_exec_peers *p,
                                  const bool *in, struct dt_error *err)
{
    bool *some = dt_calloc((size_t)ranks->n, sizeof(*some));
    enum dt_status st;
    int k = 0;

    if (!some)
        return dt_error_nomem(err, "ranks");
    for (int r = 0; r < ranks->n; r++)
        if (in[r])
            some[r] = k++ / p->n_group == p->me / p->n_group;
    st = comm_of(ranks, ranks->data, some, err, &p->group);
    k = 0;
    for (int r = 0; r < ranks->n; r++)
        if (in[r])
            some[r] = k++ % p->n_group == p->me % p->n_group;
    if (st == DT_OK)
        st = comm_of(ranks, ranks->data, some, err, &p->over);
    dt_free(some);
    return st;
}

static enum dt_status join_peers(struct dt_exec_ranks *ranks, int m, bool *in, struct dt_error *err)
{
    int tp = ranks->env->o.plan->modules[m].layout.tp, members = dt_exec_members(ranks->env, m);

    for (int s = 0; s < ranks->env->pp[m]; s++) {
        struct dt_exec_peers *p = &ranks->peers[m][s];

        *p = (struct dt_exec_peers){.n = 1, .n_group = 1, .leader = -1};
        for (int r = ranks->env->dp[m] - 1; r >= 0; r--)
            p->leader = member_of(ranks, m, r, s) >= 0 ? r : p->leader;
        for (int t = 0; ranks->t && t < tp; t++) {
            struct dt_comm *c;

            clear(ranks, in);
            for (int r = 0; r < ranks->env->dp[m]; r++)
                for (int k = t; k < members; k += tp)
                    in[dt_placement_rank(&ranks->place, m, r, s, k)] = true;
            p->n = 0;
            for (int r = 0; r < ranks->n; r++)
                p->n += in[r];
            DT_TRY(size_groups(ranks, m, p, err));
            DT_TRY(comm_of(ranks, ranks->data, in, err, &c));
            if (!c)
                continue;
            if (p->comm) /* two members of different replicas: they could not both be a piece */
                return dt_error_set(err, DT_ERR_INPUT,
                                    "module %s: rank %d would be different tp members of its "
                                    "replicas; start a rank for each GPU",
                                    ranks->env->o.plan->module_names[m], ranks->rank);
            p->comm = p->group = c;
            p->me = dt_comm_member(c);
            if (p->n_group < p->n)
                DT_TRY(join_groups(ranks, p, in, err));
        }
    }
    return DT_OK;
}

/* Members first, first + step, .. of a lane: n of them. */
static enum dt_status join_some(const struct dt_exec_ranks *ranks, int m, int lane, int first,
                                int step, int n, bool *in, struct dt_error *err, struct dt_tp *g)
{
    struct dt_comm *c;

    clear(ranks, in);
    for (int k = 0; k < n; k++)
        in[dt_placement_rank(&ranks->place, m, lane / ranks->env->pp[m], lane % ranks->env->pp[m],
                             first + k * step)] = true;
    DT_TRY(comm_of(ranks, ranks->data, in, err, &c));
    if (c)
        *g = (struct dt_tp){
            .comm = c, .rank = dt_comm_member(c), .size = n, .limit_s = ranks->env->o.limit_s};
    return DT_OK;
}

static enum dt_status join_members(struct dt_exec_ranks *ranks, int m, bool *in,
                                   struct dt_error *err)
{
    const struct dt_plan_policy *y = &ranks->env->o.plan->policy;
    int tp = ranks->env->o.plan->modules[m].layout.tp, cp = dt_exec_members(ranks->env, m) / tp;

    for (int lane = 0; lane < ranks->env->dp[m] * ranks->env->pp[m]; lane++) {
        for (int c = 0; tp > 1 && c < cp; c++)
            DT_TRY(join_some(ranks, m, lane, c * tp, 1, tp, in, err, &ranks->tp[m][lane]));
        for (int t = 0; cp > 1 && t < tp; t++)
            DT_TRY(join_some(ranks, m, lane, t, tp, cp, in, err, &ranks->cp[m][lane]));
        if (ranks->tp[m][lane].comm && y->stepccl && y->stepccl_chunks > 1)
            DT_TRY(dt_tp_beside_new(&ranks->tp[m][lane], ranks->env->dev, err));
        if (ranks->cp[m][lane].comm && ranks->cut[m].ring)
            DT_TRY(dt_tp_beside_new(&ranks->cp[m][lane], ranks->env->dev, err));
    }
    return DT_OK;
}

/* Copies first, first + step, .. of a tensor-parallel member of a stage: n of them, a rank each (placement.c,
 * check_experts).  Copy k is context-parallel member k % cp of replica k / cp. */
struct copies {
    int m, s, t;
    int first, step, n;
};

static enum dt_status join_copies(const struct dt_exec_ranks *ranks, const struct copies *r,
                                  bool *in, struct dt_error *err, struct dt_comm **out)
{
    const struct dt_plan_layout *l = &ranks->env->o.plan->modules[r->m].layout;

    clear(ranks, in);
    for (int k = 0; k < r->n; k++) {
        int copy = r->first + k * r->step;

        in[dt_placement_rank(&ranks->place, r->m, copy / l->cp, r->s,
                             copy % l->cp * l->tp + r->t)] = true;
    }
    return comm_of(ranks, ranks->data, in, err, out);
}

/* Expert groups of a stage, and who holds the same experts. */
static enum dt_status join_stage_experts(struct dt_exec_ranks *ranks, int m, int s, bool *in,
                                         struct dt_error *err)
{
    const struct dt_plan_layout *l = &ranks->env->o.plan->modules[m].layout;
    int ep = l->ep, copies = l->dp * l->cp;
    struct dt_exec_peers *p = &ranks->expert_peers[m][s];
    struct dt_comm *c;

    *p = (struct dt_exec_peers){
        .n = copies / ep, .n_group = copies / ep, .leader = ranks->peers[m][s].leader};
    for (int t = 0; t < l->tp; t++) {
        for (int g = 0; g < copies; g += ep) {
            DT_TRY(join_copies(ranks, &(struct copies){m, s, t, g, 1, ep}, in, err, &c));
            if (c)
                ranks->ep[m][(g + dt_comm_member(c)) / l->cp * l->pp + s] =
                    (struct dt_tp){.comm = c,
                                   .rank = dt_comm_member(c),
                                   .size = ep,
                                   .limit_s = ranks->env->o.limit_s};
        }
        for (int e = 0; e < ep; e++) {
            DT_TRY(join_copies(ranks, &(struct copies){m, s, t, e, ep, copies / ep}, in, err, &c));
            if (c) {
                p->comm = p->group = c;
                p->me = dt_comm_member(c);
            }
        }
    }
    return DT_OK;
}

static enum dt_status join_experts(struct dt_exec_ranks *ranks, int m, bool *in,
                                   struct dt_error *err)
{
    for (int s = 0; dt_exec_ep_size(ranks->env, m) > 1 && s < ranks->env->pp[m]; s++)
        DT_TRY(join_stage_experts(ranks, m, s, in, err));
    return DT_OK;
}

/* A rank sizes its microbatches for one share of their sequences. */
static enum dt_status find_cut(struct dt_exec_ranks *ranks, int m, struct dt_error *err)
{
    bool found = false;

    for (int lane = 0; lane < ranks->env->dp[m] * ranks->env->pp[m]; lane++) {
        const struct dt_tp *cp = &ranks->cp[m][lane];

        if (!cp->comm)
            continue;
        if (found && cp->rank != ranks->cut[m].mine)
            return dt_error_set(err, DT_ERR_INPUT,
                                "module %s: rank %d would be different cp members of its lanes; "
                                "start a rank for each GPU",
                                ranks->env->o.plan->module_names[m], ranks->rank);
        ranks->cut[m].mine = cp->rank;
        found = true;
    }
    return DT_OK;
}

/* The two lanes of each replica whose stages share a table. */
static enum dt_status join_tied(struct dt_exec_ranks *ranks, bool *in, struct dt_error *err)
{
    int m = ranks->env->o.model->llm, members = dt_exec_members(ranks->env, m);

    ranks->tied = dt_calloc((size_t)ranks->env->dp[m], sizeof(struct dt_comm *));
    if (!ranks->tied)
        return dt_error_nomem(err, "lanes");
    for (int r = 0; ranks->env->pp[m] > 1 && ranks->t && r < ranks->env->dp[m]; r++)
        for (int t = 0; t < members; t++) {
            struct dt_comm *c;

            clear(ranks, in);
            in[dt_placement_rank(&ranks->place, m, r, 0, t)] = true;
            in[dt_placement_rank(&ranks->place, m, r, ranks->env->pp[m] - 1, t)] = true;
            DT_TRY(comm_of(ranks, ranks->data, in, err, &c));
            ranks->tied[r] = c ? c : ranks->tied[r];
        }
    return DT_OK;
}

static bool anything_trains(const struct dt_exec_env *env)
{
    for (int m = 0; m < env->o.model->n_modules; m++)
        for (int b = 0; b < env->o.model->modules[m].n_blocks; b++)
            if (dt_plan_trained(env->o.plan, env->o.model, m, b))
                return true;
    return false;
}

static enum dt_status join_all(struct dt_exec_ranks *ranks, bool *in, struct dt_error *err)
{
    for (int m = 0; m < ranks->env->o.model->n_modules; m++) {
        DT_TRY(join_peers(ranks, m, in, err));
        DT_TRY(join_members(ranks, m, in, err));
        DT_TRY(join_experts(ranks, m, in, err));
        DT_TRY(find_cut(ranks, m, err));
    }
    DT_TRY(join_tied(ranks, in, err));
    if (!ranks->t)
        return DT_OK;
    for (int r = 0; r < ranks->n; r++)
        in[r] = true;
    if (anything_trains(ranks->env))
        DT_TRY(comm_of(ranks, ranks->data, in, err, &ranks->training));
    return comm_of(ranks, ranks->t, in, err, &ranks->world);
}

enum dt_status dt_exec_place(struct dt_exec_ranks *ranks, struct dt_error *err)
{
    enum dt_status st;
    bool *in;

    ranks->t = ranks->env->o.transport && ranks->env->o.transport->size > 1
                   ? ranks->env->o.transport
                   : NULL;
    ranks->rank = ranks->t ? ranks->t->rank : 0;
    ranks->n = ranks->t ? ranks->t->size : 1;
    if (ranks->t && ranks->env->o.data)
        ranks->data = ranks->env->o.data;
    else if (ranks->t)
        DT_TRY(dt_transport_open_device(ranks->t, ranks->env->dev, ranks->env->o.over, err,
                                        &ranks->data));
    DT_TRY(dt_placement_init(&ranks->place, ranks->env->o.plan, ranks->n, err));
    DT_TRY(find_lanes(ranks, err));
    in = dt_malloc((size_t)ranks->n * sizeof(*in));
    if (!in)
        return dt_error_nomem(err, "ranks");
    st = join_all(ranks, in, err);
    dt_free(in);
    return st;
}

enum dt_status dt_exec_ranks_sum(const struct dt_exec_ranks *ranks, double *v, size_t n,
                                 struct dt_error *err)
{
    struct dt_req *req;

    if (!ranks->world)
        return DT_OK;
    DT_TRY(ranks->t->post_all_reduce(ranks->world, DT_REDUCE_F64, v, n, NULL, err, &req));
    return dt_transport_wait(ranks->t, req, ranks->env->o.limit_s, "all ranks", err);
}

static void leave(struct dt_comm *c)
{
    if (c)
        dt_comm_transport(c)->comm_free(c);
}

void dt_exec_unplace(struct dt_exec_ranks *ranks)
{
    for (int m = 0; m < DT_MAX_MODULES; m++) {
        for (int s = 0; ranks->peers[m] && s < ranks->env->pp[m]; s++) {
            struct dt_exec_peers *p = &ranks->peers[m][s];

            leave(p->group != p->comm ? p->group : NULL);
            leave(p->over);
            leave(p->comm);
            leave(ranks->expert_peers[m] ? ranks->expert_peers[m][s].comm : NULL);
        }
        for (int k = 0; ranks->tp[m] && k < ranks->env->pp[m] * ranks->env->dp[m]; k++) {
            dt_tp_beside_free(&ranks->tp[m][k]);
            leave(ranks->tp[m][k].comm);
        }
        for (int k = 0; ranks->cp[m] && k < ranks->env->pp[m] * ranks->env->dp[m]; k++) {
            dt_tp_beside_free(&ranks->cp[m][k]);
            leave(ranks->cp[m][k].comm);
        }
        for (int k = 0; ranks->ep[m] && k < ranks->env->pp[m] * ranks->env->dp[m]; k++)
            leave(ranks->ep[m][k].comm);
        dt_free(ranks->ep[m]);
        dt_free(ranks->expert_peers[m]);
        dt_free(ranks->member[m]);
        dt_free(ranks->peers[m]);
        dt_free(ranks->tp[m]);
        dt_free(ranks->cp[m]);
    }
    for (int r = 0; ranks->tied && r < ranks->env->dp[ranks->env->o.model->llm]; r++)
        leave(ranks->tied[r]);
    dt_free((void *)ranks->tied);
    leave(ranks->training);
    leave(ranks->world);
    if (ranks->data && ranks->data != ranks->env->o.data)
        ranks->data->close(ranks->data);
    dt_placement_free(&ranks->place);
}

int dt_exec_feeders(const struct dt_exec_ranks *ranks, const struct dt_op *send,
                    const struct dt_op *recv)
{
    return recv->flags & DT_OPF_BOUNDARY ? dt_exec_members(ranks->env, send->module) : 1;
}

int dt_exec_feeder(const struct dt_op *recv, int t, int k)
{
    return recv->flags & DT_OPF_BOUNDARY ? k : t;
}

int dt_exec_rank_of(const struct dt_exec_ranks *ranks, const struct dt_op *op, int member)
{
    return ranks->t ? dt_placement_rank(&ranks->place, op->module, op->replica, op->stage, member)
                    : 0;
}

void dt_exec_route(const struct dt_exec_ranks *ranks, const struct dt_op *from,
                   const struct dt_op *to, int t, int *from_rank, int *to_rank)
{
    int members = dt_exec_members(ranks->env, from->module), s;

    if (!ranks->t) {
        *from_rank = *to_rank = 0;
        return;
    }
    *to_rank = dt_placement_rank(&ranks->place, to->module, to->replica, to->stage, t);
    /* all members know: one of the same rank is nearest */
    s = dt_placement_member(&ranks->place, from->module, from->replica, from->stage, *to_rank);
    if (s < 0 || (from->module == to->module && s != t))
        s = t % members;
    *from_rank = dt_placement_rank(&ranks->place, from->module, from->replica, from->stage, s);
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

/* The same of one block, whose experts are a region of their own. */
static enum dt_status add_expert_block(struct dt_exec_vstage *vs, size_t *cap, int block,
                                       struct dt_error *err)
{
    struct dt_param_range r = dt_stage_range(vs->stage, block);
    struct dt_exec_region u = {
        .first = block, .last = block + 1, .at = r.at, .n = r.n_experts, .experts = true};

    DT_TRY(add_region(vs, cap, u, err));
    u.at = r.at + r.n_experts;
    u.n = r.n - r.n_experts;
    u.experts = false;
    return add_region(vs, cap, u, err);
}

/* Do blocks have experts that are elsewhere? */
static bool deals_experts(const struct dt_exec_env *env, const struct dt_exec_vstage *vs, int block)
{
    return dt_exec_ep_size(env, vs->module) > 1 &&
           env->o.model->modules[vs->module].blocks[block].n_experts > 0;
}

enum dt_status dt_exec_make_regions(const struct dt_exec_ranks *ranks, struct dt_exec_vstage *vs,
                                    struct dt_error *err)
{
    int n = vs->last - vs->first, parts = n < DT_EXEC_PARTS ? n : DT_EXEC_PARTS;
    bool tied = vs->module == ranks->env->o.model->llm && ranks->env->pp[vs->module] > 1 &&
                (vs->v == 0 || vs->v == ranks->env->n_v[vs->module] - 1);
    const struct dt_param *table = tied ? dt_exec_shared_table(ranks->env, vs) : NULL;
    size_t cap = 0;

    if (!ranks->env->o.plan->policy.overlap_grad && !ranks->env->o.plan->policy.overlap_param)
        parts = 1;
    for (int k = 0; k < parts; k++) {
        int lo = vs->first + n * k / parts, hi = vs->first + n * (k + 1) / parts;

        for (int b = lo, e; b < hi; b = e) {
            e = b + 1;
            if (!dt_stage_trained(vs->stage, b))
                continue;
            if (deals_experts(ranks->env, vs, b)) {
                DT_TRY(add_expert_block(vs, &cap, b, err));
                continue;
            }
            while (e < hi && dt_stage_trained(vs->stage, e) && !deals_experts(ranks->env, vs, e))
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

enum dt_status dt_exec_owned(const struct dt_exec_ranks *ranks, const struct dt_exec_vstage *vs,
                             int me, bool leads, struct dt_error *err,
                             struct dt_optimizer_owned **out, int *n)
{
    int stage = vs->v % ranks->env->pp[vs->module], ep = dt_exec_ep_size(ranks->env, vs->module);
    struct dt_optimizer_owned *o;

    *out = NULL;
    *n = 0;
    if (!dt_exec_shards(ranks, vs->module, stage) && ep <= 1)
        return DT_OK;
    o = dt_malloc(((size_t)vs->n_regions + 1) * sizeof(*o));
    if (!o)
        return dt_error_nomem(err, "pieces of a stage");
    for (int k = 0; k < vs->n_regions; k++) {
        const struct dt_exec_region *u = &vs->regions[k];
        const struct dt_exec_peers *p = dt_exec_region_peers(ranks, vs->module, stage, u);
        /* among those that hold it; expert groups are neighbours */
        int mine = u->experts ? me / ep : me;
        struct dt_optimizer_owned *w = &o[*n];

        *w = (struct dt_optimizer_owned){u->at, u->n, mine == 0};
        /* one replica steps for the others of its rank */
        if (!u->whole && dt_exec_peers_shard(ranks, vs->module, p)) {
            if (!leads)
                continue;
            dt_exec_piece(u, p->n_group, mine % p->n_group, &w->at, &w->n);
            w->counted = mine < p->n_group; /* of the first group */
        }
        *n += w->n > 0;
    }
    *out = o;
    return DT_OK;
}
