/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * ZeRO-1's other half: what a rank has stepped goes to the other replicas.
 *
 *   masters   [ piece 0 | piece 1, this rank's | piece 2 ]     fp32
 *                  ^          | pack                 ^
 *   wire      [ bf16.. | bf16, vectors fp32     | bf16.. ]     all-gather
 *                  |_________________________________| unpack
 *
 * A rank's own piece is the truth, in fp32.  Where a job computes in bf16, matrices travel rounded
 * to it, since every kernel reads them so: whether they are rounded by their owner or by who uses
 * them, products are the same to the bit, so replicas still train alike, and as one process does.
 * What kernels read in fp32 (norms, biases, learned positions) arrives exactly.  Masters of others'
 * pieces are therefore good to compute with and for nothing else: before parameters are saved,
 * dt_exec_gather brings the exact ones.
 *
 * A stage that keeps its masters rounded beside them (dt_stage_rounded) has matrices as they travel: they
 * are gathered where they lie, the wire has vectors alone, and others' masters of matrices stay behind.
 * Only tables that are looked up by rows come to the masters, too.  Where the host has the masters (plan.MODULE.offload) the
 * same holds for what the stage keeps in fp32 instead.
 *
 * In fp32 masters are gathered where they lie, and the gaps between tensors with them. */
#include "exec/program/execute_impl.h"

static const struct dt_exec_peers *peers_of(const struct dt_exec_ranks *ranks,
                                            const struct dt_exec_vstage *vs)
{
    return &ranks->peers[vs->module][vs->v % ranks->env->pp[vs->module]];
}

/* Of a region. */
static const struct dt_exec_peers *holders_of(const struct dt_exec_ranks *ranks,
                                              const struct dt_exec_vstage *vs,
                                              const struct dt_exec_region *u)
{
    return dt_exec_region_peers(ranks, vs->module, vs->v % ranks->env->pp[vs->module], u);
}

/* ---- what travels ---- */

/* The part of a parameter that lies in [at, at + n). */
static size_t overlap(const struct dt_param *p, size_t at, size_t n, size_t *first)
{
    size_t end = p->at + p->n < at + n ? p->at + p->n : at + n;

    *first = p->at > at ? p->at : at;
    return end > *first ? end - *first : 0;
}

/* On the wire. */
static size_t elem_bytes(struct dt_stage *s, const struct dt_param *p)
{
    if (p->rounded)
        return dt_stage_rounded(s) ? 0 : dt_dtype_bytes(DT_BF16);
    return dt_dtype_bytes(DT_F32);
}

static size_t wire_bytes(struct dt_stage *s, size_t at, size_t n)
{
    int n_params;
    const struct dt_param *p = dt_stage_params(s, &n_params);
    size_t bytes = 0, first;

    for (int i = 0; i < n_params; i++)
        bytes += overlap(&p[i], at, n, &first) * elem_bytes(s, &p[i]);
    return bytes;
}

/* Between masters [at, at + n) and what travels of them: its parameters in the stage's order. */
static void convert(const struct dt_exec_env *env, struct dt_device_queue *q, struct dt_stage *s,
                    size_t at, size_t n, char *wire, bool pack)
{
    const uint16_t *rounded = dt_stage_rounded(s);
    int n_params;
    const struct dt_param *p = dt_stage_params(s, &n_params);

    for (int i = 0; i < n_params; i++) {
        size_t first, count = overlap(&p[i], at, n, &first);
        size_t bytes = count * elem_bytes(s, &p[i]);
        float *m = dt_stage_exact(s, &p[i]);

        if (count == 0)
            continue;
        m = m ? m + (first - p[i].at) : NULL; /* rounded ones alone of a stage without masters */
        if (!p[i].rounded)
            env->dev->copy(q, pack ? (void *)wire : (void *)m, pack ? (void *)m : (void *)wire,
                           bytes, DT_COPY_ON_DEVICE);
        else if (rounded && !pack && p[i].looked_up)
            env->k->cast(q, (int64_t)count, DT_BF16, rounded + first, DT_F32, m);
        else if (!rounded && pack)
            env->k->cast(q, (int64_t)count, DT_F32, m, DT_BF16, wire);
        else if (!rounded)
            env->k->cast(q, (int64_t)count, DT_BF16, wire, DT_F32, m);
        wire += bytes;
    }
}

bool dt_exec_gathers(const struct dt_exec_stages *stages, const struct dt_exec_vstage *vs)
{
    const struct dt_exec_peers *p = peers_of(stages->ranks, vs);

    return stages->env->o.plan->modules[vs->module].zero > 0 && p->group &&
           vs->replica == p->leader;
}

enum dt_status dt_exec_gather_room(const struct dt_exec_stages *stages, struct dt_exec_vstage *vs,
                                   struct dt_error *err)
{
    size_t bytes = 0;
    void *room;

    if (stages->env->o.dtype == DT_F32 || !dt_exec_gathers(stages, vs) || vs->n_regions == 0)
        return DT_OK;
    for (int k = 0; k < vs->n_regions; k++) {
        struct dt_exec_region *u = &vs->regions[k];

        u->wire_at = bytes;
        bytes += u->whole ? 0 : wire_bytes(vs->stage, u->at, u->n);
    }
    /* never nothing: a region without vectors has its place, too */
    DT_TRY(dt_transport_memory_new(stages->ranks->data, stages->env->dev, bytes + sizeof(float),
                                   err, &room));
    vs->wire = room;
    return DT_OK;
}

/* ---- gathering ---- */

enum form { MASTERS, ROUNDED, WIRE };

/* Bytes of each member's piece. */
static enum dt_status pieces(const struct dt_exec_ranks *ranks, const struct dt_exec_vstage *vs,
                             const struct dt_exec_region *u, enum form form, struct dt_error *err,
                             size_t **out)
{
    int members = holders_of(ranks, vs, u)->n_group;
    size_t *bytes = dt_malloc((size_t)members * sizeof(*bytes)), at, n;

    if (!bytes)
        return dt_error_nomem(err, "pieces of a stage");
    for (int k = 0; k < members; k++) {
        dt_exec_piece(u, members, k, &at, &n);
        bytes[k] = form == WIRE      ? wire_bytes(vs->stage, at, n)
                   : form == ROUNDED ? n * dt_dtype_bytes(DT_BF16)
                                     : n * sizeof(float);
    }
    *out = bytes;
    return DT_OK;
}

/* This rank's piece onto the wire, or the others' off it. */
static void convert_region(const struct dt_exec_stages *stages, struct dt_device_queue *q,
                           struct dt_exec_vstage *vs, const struct dt_exec_region *u, bool pack)
{
    const struct dt_exec_peers *p = holders_of(stages->ranks, vs, u);
    size_t wire = u->wire_at;

    for (int k = 0; k < p->n_group; k++) {
        size_t at, n;

        dt_exec_piece(u, p->n_group, k, &at, &n);
        if ((k == p->me % p->n_group) == pack)
            convert(stages->env, q, vs->stage, at, n, vs->wire + wire, pack);
        wire += wire_bytes(vs->stage, at, n);
    }
}

static enum dt_status gather_region(const struct dt_exec_ranks *ranks, struct dt_device_queue *q,
                                    const struct dt_exec_vstage *vs, const struct dt_exec_region *u,
                                    enum form form, struct dt_error *err, struct dt_req **req)
{
    void *buf = form == WIRE      ? (void *)(vs->wire + u->wire_at)
                : form == ROUNDED ? (void *)((uint16_t *)dt_stage_rounded(vs->stage) + u->at)
                                  : (void *)(dt_stage_master(vs->stage) + u->at);
    size_t *bytes = NULL;
    enum dt_status st;

    DT_TRY(pieces(ranks, vs, u, form, err, &bytes));
    st = ranks->data->post_all_gather(holders_of(ranks, vs, u)->group, buf, bytes, q, err, req);
    dt_free(bytes);
    return st;
}

static enum dt_status post(struct dt_exec *x, uint32_t i, const struct dt_exec_vstage *vs,
                           const struct dt_exec_region *u, enum form form, struct dt_error *err)
{
    struct dt_req *req;

    if (form == WIRE && wire_bytes(vs->stage, u->at, u->n) == 0)
        return DT_OK;
    DT_TRY(gather_region(&x->ranks, x->comm.queue_of[i], vs, u, form, err, &req));
    return dt_exec_request_add(&x->comm, i, x->ranks.data, req, NULL, err);
}

enum dt_status dt_exec_gather_post(struct dt_exec *x, uint32_t i, struct dt_error *err)
{
    const struct dt_op *op = &x->it.p->ops[i];
    struct dt_exec_vstage *vs = dt_exec_leader_stage(&x->stages, op);

    for (int k = 0; k < vs->n_regions; k++) {
        const struct dt_exec_region *u = &vs->regions[k];

        if (u->whole || !holders_of(&x->ranks, vs, u)->group ||
            !dt_exec_in_bucket(&x->stages, op, u))
            continue;
        if (!vs->wire) {
            DT_TRY(post(x, i, vs, u, MASTERS, err));
            continue;
        }
        convert_region(&x->stages, x->comm.queue_of[i], vs, u, true);
        DT_TRY(post(x, i, vs, u, WIRE, err));
        if (dt_stage_rounded(vs->stage))
            DT_TRY(post(x, i, vs, u, ROUNDED, err));
    }
    return DT_OK;
}

void dt_exec_gather_complete(struct dt_exec *x, uint32_t i)
{
    struct dt_device_queue *q = dt_exec_queue_of_lands(x, i);
    const struct dt_op *op = &x->it.p->ops[i];
    struct dt_exec_vstage *vs = dt_exec_leader_stage(&x->stages, op);

    for (int k = 0; k < vs->n_regions; k++) {
        const struct dt_exec_region *u = &vs->regions[k];

        if (u->whole || !dt_exec_in_bucket(&x->stages, op, u))
            continue;
        if (!holders_of(&x->ranks, vs, u)->group) /* each replica here has stepped all */
            continue;
        if (vs->wire)
            convert_region(&x->stages, q, vs, u, false);
        dt_exec_copy_here(&x->stages, q, op, false, u->at, u->n);
    }
}

/* The truth is with the owners, on their hosts, from where execute_collect.c takes it. */
static bool offloaded(const struct dt_exec *x, int module)
{
    return dt_plan_offloads_optimizer(&x->env.o.plan->modules[module]);
}

enum dt_status dt_exec_gather(struct dt_exec *x, struct dt_error *err)
{
    for (int m = 0; x->ranks.t && m < x->env.o.model->n_modules; m++)
        for (int v = 0; x->env.o.plan->modules[m].zero > 0 && v < x->env.n_v[m]; v++) {
            const struct dt_exec_peers *p = &x->ranks.peers[m][v % x->env.pp[m]];
            struct dt_exec_vstage *vs =
                p->leader >= 0 ? dt_exec_vs(&x->stages, m, p->leader, v) : NULL;
            struct dt_op like = {.module = (uint8_t)m,
                                 .chunk = (uint8_t)(v / x->env.pp[m]),
                                 .stage = (uint16_t)(v % x->env.pp[m])};

            if (!vs || !p->group || offloaded(x, m))
                continue;
            for (int k = 0; k < vs->n_regions; k++) {
                struct dt_req *req;

                if (vs->regions[k].whole || !holders_of(&x->ranks, vs, &vs->regions[k])->group)
                    continue;
                DT_TRY(gather_region(&x->ranks, x->env.q, vs, &vs->regions[k], MASTERS, err, &req));
                DT_TRY(dt_transport_wait(x->ranks.data, req, x->env.o.limit_s, "parameters", err));
                dt_exec_copy_here(&x->stages, x->env.q, &like, false, vs->regions[k].at,
                                  vs->regions[k].n);
            }
            for (int r = 0; r < x->env.dp[m]; r++)
                if (dt_exec_vs(&x->stages, m, r, v)->stage)
                    dt_stage_changed(x->env.q, dt_exec_vs(&x->stages, m, r, v)->stage, vs->first,
                                     vs->last);
        }
    return x->env.dev->queue_sync(x->env.q, err);
}
