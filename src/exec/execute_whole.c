/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * All of the model in one place: what checkpoints are written from and read into.
 *
 * What a rank holds whole is handed out as it is.  For the rest it has stages of its own, of the
 * smallest size, and moments laid out like parameters.  For a save every part has one writer, the
 * lowest of the ranks that hold it, who collects into them what the others own; after a load every
 * rank takes its own pieces out of all parts. */
#include "exec/execute_impl.h"

#include <string.h>

struct own { /* of a part: memory that the executor does not have */
    bool stage, moments;
    struct dt_optimizer opt; /* all of it, when `moments` */
};
struct whole {
    struct dt_exec *x;
    struct own *own;
};

/* ---- memory ---- */

/* This rank's stage of the lowest replica here; NULL. */
static struct dt_exec_vstage *held(const struct dt_exec *x, int m, int v)
{
    int leader = x->peers[m][v % x->pp[m]].leader;

    return leader >= 0 ? dt_exec_vs(x, m, leader, v) : NULL;
}

static enum dt_status open_part(struct dt_exec *x, struct dt_exec_part *p, struct own *own,
                                struct dt_error *err)
{
    struct dt_exec_vstage *vs = held(x, p->module, p->v);
    const struct dt_optimizer *o;

    if (vs && x->o.plan->modules[p->module].layout.tp == 1) {
        p->stage = vs->stage;
    } else {
        DT_TRY(dt_exec_shell(x, p->module, p->v, err, &p->stage));
        own->stage = true;
    }
    if (!own->stage && !vs->opt.sharded) {
        o = &vs->opt;
    } else {
        own->moments = true;
        DT_TRY(dt_optimizer_init(&own->opt, x->dev, &x->o.model->modules[p->module], p->stage, NULL,
                                 0, err));
        o = &own->opt;
    }
    p->exp_avg = o->exp_avg;
    p->exp_avg_sq = o->exp_avg_sq;
    p->trained = o->trained;
    return DT_OK;
}

/* The lowest rank that holds a piece of the virtual stage. */
static int writer_of(const struct dt_exec *x, int m, int v)
{
    int lowest = -1;

    for (int r = 0; r < x->dp[m]; r++)
        for (int t = 0; t < x->o.plan->modules[m].layout.tp; t++) {
            int rank = dt_placement_rank(&x->place, m, r, v % x->pp[m], t);

            lowest = lowest < 0 || rank < lowest ? rank : lowest;
        }
    return lowest;
}

static enum dt_status open_parts(struct dt_exec *x, bool mine, struct dt_error *err,
                                 struct dt_exec_whole *out)
{
    struct dt_exec_whole w = {0};
    struct whole *impl = dt_calloc(1, sizeof(*impl));
    enum dt_status st = DT_OK;
    int n = 0;

    for (int m = 0; m < x->o.model->n_modules; m++)
        n += x->n_v[m];
    w.impl = impl;
    w.part = dt_calloc((size_t)n, sizeof(*w.part));
    if (impl)
        impl->own = dt_calloc((size_t)n, sizeof(*impl->own));
    if (!impl || !w.part || !impl->own) {
        if (impl)
            dt_exec_whole_free(&w);
        return dt_error_nomem(err, "a checkpoint");
    }
    impl->x = x;
    for (int m = 0; m < x->o.model->n_modules; m++)
        for (int v = 0; v < x->n_v[m] && st == DT_OK; v++) {
            if (mine && x->t && writer_of(x, m, v) != x->rank)
                continue;
            w.part[w.n].module = m;
            w.part[w.n].v = v;
            st = open_part(x, &w.part[w.n], &impl->own[w.n], err);
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
    return open_parts(x, false, err, out);
}

enum dt_status dt_exec_share_new(struct dt_exec *x, struct dt_error *err, struct dt_exec_whole *out)
{
    return open_parts(x, true, err, out);
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

/* ---- collecting ---- */

/* Between what an optimizer keeps of its segments and moments laid out like parameters. */
static void copy_segments(struct dt_exec *x, const struct dt_optimizer *o, float *own, float *whole,
                          bool to_whole)
{
    for (int i = 0; i < o->n_segments; i++) {
        const struct dt_segment *s = &o->segments[i];
        float *a = own + s->moment, *b = whole + s->at;

        x->dev->copy(x->q, to_whole ? b : a, to_whole ? a : b, s->n * sizeof(float),
                     DT_COPY_ON_DEVICE);
    }
}

static enum dt_status send_now(struct dt_exec *x, int to, int tag, const float *p, size_t n,
                               struct dt_error *err)
{
    struct dt_req *req;

    if (n == 0)
        return DT_OK;
    DT_TRY(x->t->post_send(x->t, to, tag, p, n * sizeof(float), err, &req));
    return dt_transport_wait(x->t, req, x->o.limit_s, "parameters", err);
}

static enum dt_status recv_now(struct dt_exec *x, int from, int tag, float *p, size_t n,
                               struct dt_error *err)
{
    struct dt_req *req;

    if (n == 0)
        return DT_OK;
    DT_TRY(x->t->post_recv(x->t, from, tag, p, n * sizeof(float), err, &req));
    return dt_transport_wait(x->t, req, x->o.limit_s, "parameters", err);
}

/* The k-th rank of those that hold replicas of the stage, ascending; -1 = no more. */
static int peer_rank(const struct dt_exec *x, int m, int stage, int k)
{
    int last = -1;

    for (int r = 0; r < x->dp[m]; r++) { /* replicas lie side by side, so their ranks ascend */
        int rank = dt_placement_rank(&x->place, m, r, stage, 0);

        if (rank != last && k-- == 0)
            return rank;
        last = rank;
    }
    return -1;
}

static enum dt_status give_part(struct dt_exec *x, int m, int v, int to, struct dt_error *err)
{
    const struct dt_exec_peers *p = &x->peers[m][v % x->pp[m]];
    struct dt_exec_vstage *vs = held(x, m, v);

    if (!vs)
        return DT_OK;
    if (p->me == 0)
        DT_TRY(send_now(x, to, DT_EXEC_TAG_MASTER, dt_stage_master(vs->stage), dt_stage_param_floats(vs->stage),
                        err));
    if (p->me > 0 && !vs->opt.sharded)
        return DT_OK;
    DT_TRY(send_now(x, to, DT_EXEC_TAG_AVG, vs->opt.exp_avg, vs->opt.moments, err));
    return send_now(x, to, DT_EXEC_TAG_AVG_SQ, vs->opt.exp_avg_sq, vs->opt.moments, err);
}

/* Moments that member k of the peers keeps, as it keeps them. */
static enum dt_status like_peer(struct dt_exec *x, const struct dt_exec_part *p, int k,
                                struct dt_error *err, struct dt_optimizer *out)
{
    const struct dt_module_plan *mp = &x->o.plan->modules[p->module];
    struct dt_exec_vstage vs = {.module = p->module,
                                .v = p->v,
                                .stage = p->stage,
                                .first = mp->split[p->v],
                                .last = mp->split[p->v + 1]};
    struct dt_owned *owned = NULL;
    enum dt_status st;
    int n = 0;

    st = dt_exec_make_units(x, &vs, err);
    if (st == DT_OK)
        st = dt_exec_owned(x, &vs, k, true, err, &owned, &n);
    if (st == DT_OK)
        st = dt_optimizer_init(out, x->dev, &x->o.model->modules[p->module], p->stage, owned, n,
                               err);
    dt_free(owned);
    dt_free(vs.units);
    return st;
}

static enum dt_status take_moments(struct dt_exec *x, const struct dt_exec_part *p, int k, int from,
                                   struct dt_error *err)
{
    struct dt_optimizer o = {0};
    enum dt_status st = like_peer(x, p, k, err, &o);

    if (st == DT_OK)
        st = recv_now(x, from, DT_EXEC_TAG_AVG, o.exp_avg, o.moments, err);
    if (st == DT_OK)
        st = recv_now(x, from, DT_EXEC_TAG_AVG_SQ, o.exp_avg_sq, o.moments, err);
    if (st == DT_OK) {
        copy_segments(x, &o, o.exp_avg, p->exp_avg, true);
        copy_segments(x, &o, o.exp_avg_sq, p->exp_avg_sq, true);
        st = x->dev->queue_sync(x->q, err);
    }
    dt_optimizer_free(&o);
    return st;
}

static enum dt_status take_part(struct dt_exec *x, const struct dt_exec_part *p,
                                const struct own *own, struct dt_error *err)
{
    struct dt_exec_vstage *vs = held(x, p->module, p->v);
    int from, stage = p->v % x->pp[p->module];
    bool sharded = x->peers[p->module][stage].n > 1 && x->o.plan->policy.zero == 1;

    for (int k = 0; (from = peer_rank(x, p->module, stage, k)) >= 0; k++) {
        if (from != x->rank && k == 0)
            DT_TRY(recv_now(x, from, DT_EXEC_TAG_MASTER, dt_stage_master(p->stage),
                            dt_stage_param_floats(p->stage), err));
        if (from != x->rank && (k == 0 || sharded))
            DT_TRY(take_moments(x, p, k, from, err));
        if (from == x->rank && own->moments) {
            copy_segments(x, &vs->opt, vs->opt.exp_avg, p->exp_avg, true);
            copy_segments(x, &vs->opt, vs->opt.exp_avg_sq, p->exp_avg_sq, true);
        }
    }
    return x->dev->queue_sync(x->q, err);
}

static enum dt_status check_tp(const struct dt_exec *x, struct dt_error *err)
{
    for (int m = 0; m < x->o.model->n_modules; m++)
        if (x->o.plan->modules[m].layout.tp > 1)
            return dt_error_set(err, DT_ERR_INPUT,
                                "module %s: checkpoints of tensor-parallel layouts are not written "
                                "or read yet",
                                x->o.plan->module_names[m]);
    return DT_OK;
}

enum dt_status dt_exec_collect(struct dt_exec *x, struct dt_exec_whole *w, struct dt_error *err)
{
    const struct whole *impl = w->impl;

    DT_TRY(check_tp(x, err));
    for (int m = 0, k = 0; x->t && m < x->o.model->n_modules; m++)
        for (int v = 0; v < x->n_v[m]; v++) {
            int writer = writer_of(x, m, v);

            if (writer != x->rank) {
                DT_TRY(give_part(x, m, v, writer, err));
            } else {
                DT_TRY(take_part(x, &w->part[k], &impl->own[k], err));
                k++;
            }
        }
    return DT_OK;
}

enum dt_status dt_exec_spread(struct dt_exec *x, const struct dt_exec_whole *w,
                              struct dt_error *err)
{
    const struct whole *impl = w->impl;

    DT_TRY(check_tp(x, err));
    for (int k = 0; k < w->n; k++) {
        const struct dt_exec_part *p = &w->part[k];

        for (int r = 0; impl->own[k].moments && r < x->dp[p->module]; r++) {
            struct dt_exec_vstage *vs = dt_exec_vs(x, p->module, r, p->v);

            if (!vs->stage || !vs->opt.exp_avg)
                continue;
            copy_segments(x, &vs->opt, vs->opt.exp_avg, p->exp_avg, false);
            copy_segments(x, &vs->opt, vs->opt.exp_avg_sq, p->exp_avg_sq, false);
        }
    }
    DT_TRY(x->dev->queue_sync(x->q, err));
    return dt_exec_changed(x, err);
}
