/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * All of the model in one place: what checkpoints are written from and read into.
 *
 * What a rank holds whole is handed out as it is.  For the rest it has stages of its own, of the
 * smallest size, and moments laid out like parameters.  For a save every part has one writer, the
 * lowest of the ranks that hold it, who collects into them what the others own; after a load every
 * rank takes its own pieces out of all parts. */
#include "exec/program/execute_impl.h"

#include <string.h>

struct own { /* of a part: memory that the executor does not have */
    bool stage, moments;
    struct dt_optimizer opt; /* all of it, when `moments` */
};
struct whole {
    struct own *own;
};

/* ---- memory ---- */

/* This rank's stage of the lowest replica here; NULL. */
static struct dt_exec_vstage *held(const struct dt_exec_stages *stages, int m, int v)
{
    int leader = stages->ranks->peers[m][v % stages->env->pp[m]].leader;

    return leader >= 0 ? dt_exec_vs(stages, m, leader, v) : NULL;
}

static enum dt_status open_part(const struct dt_exec_stages *stages, struct dt_exec_part *p,
                                struct own *own, struct dt_error *err)
{
    struct dt_exec_vstage *vs = held(stages, p->module, p->v);
    const struct dt_optimizer *o;

    if (vs && stages->env->o.plan->modules[p->module].layout.tp == 1) {
        p->stage = vs->stage;
    } else {
        DT_TRY(dt_exec_shell(stages->env, p->module, p->v, NULL, err, &p->stage));
        own->stage = true;
    }
    if (!own->stage && !vs->opt.sharded) {
        o = &vs->opt;
    } else {
        own->moments = true;
        DT_TRY(dt_optimizer_init(&own->opt, stages->env->dev,
                                 &stages->env->o.model->modules[p->module], p->stage, 0, NULL, 0,
                                 err));
        o = &own->opt;
    }
    p->exp_avg = o->exp_avg;
    p->exp_avg_sq = o->exp_avg_sq;
    p->trained = o->trained;
    return DT_OK;
}

/* The lowest rank that holds a piece of the virtual stage. */
static int writer_of(const struct dt_exec_ranks *ranks, int m, int v)
{
    int lowest = -1;

    for (int r = 0; r < ranks->env->dp[m]; r++)
        for (int t = 0; t < ranks->env->o.plan->modules[m].layout.tp; t++) {
            int rank = dt_placement_rank(&ranks->place, m, r, v % ranks->env->pp[m], t);

            lowest = lowest < 0 || rank < lowest ? rank : lowest;
        }
    return lowest;
}

static enum dt_status open_parts(const struct dt_exec_stages *stages, bool mine,
                                 struct dt_error *err, struct dt_exec_whole *out)
{
    struct dt_exec_whole w = {0};
    struct whole *impl = dt_calloc(1, sizeof(*impl));
    enum dt_status st = DT_OK;
    int n = 0;

    for (int m = 0; m < stages->env->o.model->n_modules; m++)
        n += stages->env->n_v[m];
    w.impl = impl;
    w.part = dt_calloc((size_t)n, sizeof(*w.part));
    if (impl)
        impl->own = dt_calloc((size_t)n, sizeof(*impl->own));
    if (!impl || !w.part || !impl->own) {
        if (impl)
            dt_exec_whole_free(&w);
        return dt_error_nomem(err, "a checkpoint");
    }
    for (int m = 0; m < stages->env->o.model->n_modules; m++)
        for (int v = 0; v < stages->env->n_v[m] && st == DT_OK; v++) {
            if (mine && stages->ranks->t && writer_of(stages->ranks, m, v) != stages->ranks->rank)
                continue;
            w.part[w.n].module = m;
            w.part[w.n].v = v;
            st = open_part(stages, &w.part[w.n], &impl->own[w.n], err);
            w.n++;
        }
    if (st != DT_OK) {
        dt_exec_whole_free(&w);
        return st;
    }
    *out = w;
    return DT_OK;
}

enum dt_status dt_exec_whole_new(struct dt_exec *x, struct dt_error *err, struct dt_exec_whole *out)
{
    return open_parts(&x->stages, false, err, out);
}

enum dt_status dt_exec_share_new(struct dt_exec *x, struct dt_error *err, struct dt_exec_whole *out)
{
    return open_parts(&x->stages, true, err, out);
}

void dt_exec_whole_free(struct dt_exec_whole *w)
{
    struct whole *impl = w->impl;

    for (int k = 0; impl && impl->own && k < w->n; k++) {
        if (impl->own[k].moments)
            dt_optimizer_free(&impl->own[k].opt);
        if (impl->own[k].stage)
            dt_stage_free(w->part[k].stage);
    }
    if (impl)
        dt_free(impl->own);
    dt_free(impl);
    dt_free(w->part);
    memset(w, 0, sizeof(*w));
}

/* ---- between layouts ---- */

/* Between what an optimizer keeps of its segments and moments laid out like parameters. */
static void copy_segments(const struct dt_exec_env *env, const struct dt_optimizer *o, float *own,
                          float *all, bool to_all)
{
    for (int i = 0; i < o->n_segments; i++) {
        const struct dt_optimizer_segment *s = &o->segments[i];
        float *a = own + s->moment, *b = all + s->at;

        env->dev->copy(env->q, to_all ? b : a, to_all ? a : b, s->n * sizeof(float),
                       DT_COPY_ON_DEVICE);
    }
}

/* Between a tensor-parallel member's floats and those of the whole stage, tensor by tensor. */
static void copy_slices(const struct dt_exec_env *env, const struct dt_stage *member, float *own,
                        const struct dt_stage *whole, float *all, bool to_all)
{
    int n, n_all;
    const struct dt_param *p = dt_stage_params(member, &n), *q = dt_stage_params(whole, &n_all);

    for (int i = 0; own && all && i < n && i < n_all; i++)
        for (int64_t k = 0; k < dt_param_runs(&p[i]); k++) {
            struct dt_param_run r = dt_param_run(&p[i], k);
            float *a = own + p[i].at + r.at, *b = all + q[i].at + r.whole;

            env->dev->copy(env->q, to_all ? b : a, to_all ? a : b, r.n * sizeof(float),
                           DT_COPY_ON_DEVICE);
        }
}

/* ---- collecting ---- */

static enum dt_status send_now(const struct dt_exec_ranks *ranks, int to, int tag, const float *p,
                               size_t n, struct dt_error *err)
{
    struct dt_req *req;

    if (n == 0)
        return DT_OK;
    DT_TRY(ranks->data->post_send(ranks->data, to, tag, p, n * sizeof(float), ranks->env->q, err,
                                  &req));
    return dt_transport_wait(ranks->data, req, ranks->env->o.limit_s, "parameters", err);
}

static enum dt_status recv_now(const struct dt_exec_ranks *ranks, int from, int tag, float *p,
                               size_t n, struct dt_error *err)
{
    struct dt_req *req;

    if (n == 0)
        return DT_OK;
    DT_TRY(ranks->data->post_recv(ranks->data, from, tag, p, n * sizeof(float), ranks->env->q, err,
                                  &req));
    return dt_transport_wait(ranks->data, req, ranks->env->o.limit_s, "parameters", err);
}

/* The k-th rank of those that hold replicas of a member of the stage, ascending; -1 = no more. */
static int peer_rank(const struct dt_exec_ranks *ranks, int m, int stage, int t, int k)
{
    int last = -1;

    for (int r = 0; r < ranks->env->dp[m];
         r++) { /* replicas lie side by side, so their ranks ascend */
        int rank = dt_placement_rank(&ranks->place, m, r, stage, t);

        if (rank != last && k-- == 0)
            return rank;
        last = rank;
    }
    return -1;
}

static enum dt_status give_part(const struct dt_exec_stages *stages, int m, int v, int to,
                                struct dt_error *err)
{
    const struct dt_exec_peers *p = &stages->ranks->peers[m][v % stages->env->pp[m]];
    struct dt_exec_vstage *vs = held(stages, m, v);

    if (!vs)
        return DT_OK;
    if (p->me == 0)
        DT_TRY(send_now(stages->ranks, to, DT_EXEC_TAG_MASTER, dt_stage_master(vs->stage),
                        dt_stage_param_floats(vs->stage), err));
    if (p->me > 0 && !vs->opt.sharded)
        return DT_OK;
    DT_TRY(send_now(stages->ranks, to, DT_EXEC_TAG_AVG, vs->opt.exp_avg, vs->opt.moments, err));
    return send_now(stages->ranks, to, DT_EXEC_TAG_AVG_SQ, vs->opt.exp_avg_sq, vs->opt.moments,
                    err);
}

/* One tensor-parallel member of a virtual stage on its way into the whole. */
struct member {
    int module, v, t;
    bool apart; /* stage and moments are not the whole's own */
    struct dt_stage *stage;
    float *exp_avg, *exp_avg_sq; /* laid out like its parameters */
    struct dt_optimizer all;
};

static enum dt_status open_member(const struct dt_exec_env *env, const struct dt_exec_part *p,
                                  int t, struct dt_error *err, struct member *m)
{
    struct dt_tp tp = {.rank = t, .size = env->o.plan->modules[p->module].layout.tp};

    *m = (struct member){.module = p->module,
                         .v = p->v,
                         .t = t,
                         .apart = tp.size > 1,
                         .stage = p->stage,
                         .exp_avg = p->exp_avg,
                         .exp_avg_sq = p->exp_avg_sq};
    if (!m->apart)
        return DT_OK;
    m->stage = NULL;
    DT_TRY(dt_exec_shell(env, p->module, p->v, &tp, err, &m->stage));
    DT_TRY(dt_optimizer_init(&m->all, env->dev, &env->o.model->modules[p->module], m->stage, t,
                             NULL, 0, err));
    m->exp_avg = m->all.exp_avg;
    m->exp_avg_sq = m->all.exp_avg_sq;
    return DT_OK;
}

static void close_member(struct member *m)
{
    if (!m->apart)
        return;
    dt_optimizer_free(&m->all);
    if (m->stage)
        dt_stage_free(m->stage);
}

/* Moments that rank k of the replicas keeps, as it keeps them. */
static enum dt_status like_peer(const struct dt_exec_ranks *ranks, const struct member *m, int k,
                                struct dt_error *err, struct dt_optimizer *out)
{
    const struct dt_plan_module *mp = &ranks->env->o.plan->modules[m->module];
    struct dt_exec_vstage vs = {.module = m->module,
                                .v = m->v,
                                .stage = m->stage,
                                .first = mp->split[m->v],
                                .last = mp->split[m->v + 1]};
    struct dt_optimizer_owned *owned = NULL;
    enum dt_status st;
    int n = 0;

    st = dt_exec_make_regions(ranks, &vs, err);
    if (st == DT_OK)
        st = dt_exec_owned(ranks, &vs, k, true, err, &owned, &n);
    if (st == DT_OK)
        st = dt_optimizer_init(out, ranks->env->dev, &ranks->env->o.model->modules[m->module],
                               m->stage, m->t, owned, n, err);
    dt_free(owned);
    dt_free(vs.regions);
    return st;
}

static enum dt_status take_moments(const struct dt_exec_ranks *ranks, const struct member *m, int k,
                                   int from, struct dt_error *err)
{
    struct dt_optimizer o = {0};
    enum dt_status st = like_peer(ranks, m, k, err, &o);

    if (st == DT_OK)
        st = recv_now(ranks, from, DT_EXEC_TAG_AVG, o.exp_avg, o.moments, err);
    if (st == DT_OK)
        st = recv_now(ranks, from, DT_EXEC_TAG_AVG_SQ, o.exp_avg_sq, o.moments, err);
    if (st == DT_OK) {
        copy_segments(ranks->env, &o, o.exp_avg, m->exp_avg, true);
        copy_segments(ranks->env, &o, o.exp_avg_sq, m->exp_avg_sq, true);
        st = ranks->env->dev->queue_sync(ranks->env->q, err);
    }
    dt_optimizer_free(&o);
    return st;
}

/* From this rank itself; what the whole shares with the executor is there already. */
static void take_here(const struct dt_exec_stages *stages, const struct member *m, bool moments)
{
    struct dt_exec_vstage *vs = held(stages, m->module, m->v);

    if (m->stage != vs->stage)
        stages->env->dev->copy(stages->env->q, dt_stage_master(m->stage),
                               dt_stage_master(vs->stage),
                               dt_stage_param_floats(vs->stage) * sizeof(float), DT_COPY_ON_DEVICE);
    if (!moments || !vs->opt.exp_avg)
        return;
    copy_segments(stages->env, &vs->opt, vs->opt.exp_avg, m->exp_avg, true);
    copy_segments(stages->env, &vs->opt, vs->opt.exp_avg_sq, m->exp_avg_sq, true);
}

static enum dt_status take_member(const struct dt_exec_stages *stages, const struct member *m,
                                  bool moments, struct dt_error *err)
{
    int from, stage = m->v % stages->env->pp[m->module];
    bool sharded = stages->ranks->peers[m->module][stage].n > 1 &&
                   stages->env->o.plan->modules[m->module].zero > 0;

    for (int k = 0; (from = peer_rank(stages->ranks, m->module, stage, m->t, k)) >= 0; k++) {
        if (from == stages->ranks->rank) {
            take_here(stages, m, moments);
            continue;
        }
        if (k == 0)
            DT_TRY(recv_now(stages->ranks, from, DT_EXEC_TAG_MASTER, dt_stage_master(m->stage),
                            dt_stage_param_floats(m->stage), err));
        if (k == 0 || sharded)
            DT_TRY(take_moments(stages->ranks, m, k, from, err));
    }
    return DT_OK;
}

static enum dt_status take_part(const struct dt_exec_stages *stages, const struct dt_exec_part *p,
                                const struct own *own, struct dt_error *err)
{
    enum dt_status st = DT_OK;

    for (int t = 0; st == DT_OK && t < stages->env->o.plan->modules[p->module].layout.tp; t++) {
        struct member m;

        st = open_member(stages->env, p, t, err, &m);
        if (st == DT_OK)
            st = take_member(stages, &m, own->moments, err);
        if (st == DT_OK && m.apart) {
            copy_slices(stages->env, m.stage, dt_stage_master(m.stage), p->stage,
                        dt_stage_master(p->stage), true);
            copy_slices(stages->env, m.stage, m.exp_avg, p->stage, p->exp_avg, true);
            copy_slices(stages->env, m.stage, m.exp_avg_sq, p->stage, p->exp_avg_sq, true);
        }
        if (st == DT_OK)
            st = stages->env->dev->queue_sync(stages->env->q, err);
        close_member(&m);
    }
    return st;
}

enum dt_status dt_exec_collect(struct dt_exec *x, struct dt_exec_whole *w, struct dt_error *err)
{
    const struct whole *impl = w->impl;

    for (int m = 0, k = 0; x->ranks.t && m < x->env.o.model->n_modules; m++)
        for (int v = 0; v < x->env.n_v[m]; v++) {
            int writer = writer_of(&x->ranks, m, v);

            if (writer != x->ranks.rank) {
                DT_TRY(give_part(&x->stages, m, v, writer, err));
            } else {
                DT_TRY(take_part(&x->stages, &w->part[k], &impl->own[k], err));
                k++;
            }
        }
    return DT_OK;
}

/* ---- spreading ---- */

/* A tensor-parallel member takes its slices, then of the moments what it owns. */
static enum dt_status spread_slices(const struct dt_exec_env *env, const struct dt_exec_part *p,
                                    struct dt_exec_vstage *vs, struct dt_error *err)
{
    struct dt_optimizer all = {0};
    enum dt_status st;

    copy_slices(env, vs->stage, dt_stage_master(vs->stage), p->stage, dt_stage_master(p->stage),
                false);
    if (!vs->opt.exp_avg)
        return DT_OK;
    st = dt_optimizer_init(&all, env->dev, &env->o.model->modules[p->module], vs->stage, 0, NULL, 0,
                           err);
    if (st == DT_OK) {
        copy_slices(env, vs->stage, all.exp_avg, p->stage, p->exp_avg, false);
        copy_slices(env, vs->stage, all.exp_avg_sq, p->stage, p->exp_avg_sq, false);
        copy_segments(env, &vs->opt, vs->opt.exp_avg, all.exp_avg, false);
        copy_segments(env, &vs->opt, vs->opt.exp_avg_sq, all.exp_avg_sq, false);
        st = env->dev->queue_sync(env->q, err);
    }
    dt_optimizer_free(&all);
    return st;
}

static enum dt_status spread_part(const struct dt_exec_stages *stages, const struct dt_exec_part *p,
                                  const struct own *own, struct dt_error *err)
{
    for (int r = 0; r < stages->env->dp[p->module]; r++) {
        struct dt_exec_vstage *vs = dt_exec_vs(stages, p->module, r, p->v);

        if (!vs->stage)
            continue;
        if (stages->env->o.plan->modules[p->module].layout.tp > 1) {
            DT_TRY(spread_slices(stages->env, p, vs, err));
        } else if (own->moments && vs->opt.exp_avg) {
            copy_segments(stages->env, &vs->opt, vs->opt.exp_avg, p->exp_avg, false);
            copy_segments(stages->env, &vs->opt, vs->opt.exp_avg_sq, p->exp_avg_sq, false);
        }
    }
    return DT_OK;
}

enum dt_status dt_exec_spread(struct dt_exec *x, const struct dt_exec_whole *w,
                              struct dt_error *err)
{
    const struct whole *impl = w->impl;

    for (int k = 0; k < w->n; k++)
        DT_TRY(spread_part(&x->stages, &w->part[k], &impl->own[k], err));
    DT_TRY(x->env.dev->queue_sync(x->env.q, err));
    return dt_exec_changed(x, err);
}
