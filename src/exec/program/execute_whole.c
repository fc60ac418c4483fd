/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * All of the model in one place: what checkpoints are written from and read into.
 *
 * A part says which parameters a virtual stage has and where they would lie if no ranks shared it.  To
 * write, every part has one writer, the lowest of the ranks that hold it, who collects in its host's memory
 * what they own (execute_collect.c).  To read, every rank takes its own pieces out of each tensor
 * (execute_put.c). */
#include "exec/program/execute_whole.h"

#include <string.h>

struct dt_exec_vstage *dt_exec_held(const struct dt_exec_stages *stages, int module, int v)
{
    int leader = stages->ranks->peers[module][v % stages->env->pp[module]].leader;

    return leader >= 0 ? dt_exec_vs(stages, module, leader, v) : NULL;
}

int dt_exec_writer(const struct dt_exec_ranks *ranks, int module, int v)
{
    int lowest = -1;

    for (int r = 0; r < ranks->env->dp[module]; r++)
        for (int t = 0; t < dt_exec_members(ranks->env, module); t++) {
            int rank = dt_placement_rank(&ranks->place, module, r, v % ranks->env->pp[module], t);

            lowest = lowest < 0 || rank < lowest ? rank : lowest;
        }
    return lowest;
}

static enum dt_status lay_out(const struct dt_exec_env *env, struct dt_exec_part *p,
                              struct dt_exec_whole_own *own, struct dt_error *err)
{
    struct dt_optimizer_spec spec;

    DT_TRY(dt_exec_layout(env, p->module, p->v, NULL, NULL, err, &own->layout));
    spec = dt_exec_optimizer_spec(env, p->module, own->layout, 0, NULL, 0);
    DT_TRY(dt_optimizer_layout(&own->moments, &spec, err));
    p->params = dt_stage_params(own->layout, &p->n_params);
    p->trained = own->moments.trained;
    return DT_OK;
}

/* This rank has the tensors of the whole in their order, of experts some. */
static enum dt_status find_here(const struct dt_exec_stages *stages, const struct dt_exec_part *p,
                                struct dt_exec_whole_own *own, struct dt_error *err)
{
    struct dt_exec_vstage *vs = dt_exec_held(stages, p->module, p->v);
    const struct dt_param *mine = NULL;
    int n = 0, k = 0;

    own->here = dt_malloc(((size_t)p->n_params + 1) * sizeof(*own->here));
    if (!own->here)
        return dt_error_nomem(err, "a checkpoint");
    if (vs)
        mine = dt_stage_params(vs->stage, &n);
    for (int i = 0; i < p->n_params; i++)
        own->here[i] = k < n && strcmp(mine[k].name, p->params[i].name) == 0 ? k++ : -1;
    return DT_OK;
}

static enum dt_status make_room(struct dt_exec_part *p, const struct dt_exec_whole_own *own,
                                struct dt_error *err)
{
    size_t n = dt_stage_param_floats(own->layout) + 1;
    bool trains = own->moments.n_segments > 0;

    p->master = dt_malloc(n * sizeof(float));
    p->exp_avg = trains ? dt_malloc(n * sizeof(float)) : NULL;
    p->exp_avg_sq = trains ? dt_malloc(n * sizeof(float)) : NULL;
    if (!p->master || (trains && (!p->exp_avg || !p->exp_avg_sq)))
        return dt_error_nomem(err, "what a checkpoint is written from");
    return DT_OK;
}

static enum dt_status open_parts(struct dt_exec *x, bool share, struct dt_error *err,
                                 struct dt_exec_whole *w)
{
    const struct dt_exec_env *env = &x->env;
    struct dt_exec_whole_impl *impl = w->impl;

    for (int m = 0; m < env->o.model->n_modules; m++)
        for (int v = 0; v < env->n_v[m]; v++) {
            struct dt_exec_part *p = &w->part[w->n];

            if (share && x->ranks.t && dt_exec_writer(&x->ranks, m, v) != x->ranks.rank)
                continue;
            *p = (struct dt_exec_part){.module = m, .v = v, .impl = impl, .own = &impl->own[w->n]};
            w->n++;
            DT_TRY(lay_out(env, p, &impl->own[w->n - 1], err));
            DT_TRY(find_here(&x->stages, p, &impl->own[w->n - 1], err));
            if (share)
                DT_TRY(make_room(p, &impl->own[w->n - 1], err));
        }
    return dt_ferry_open(&impl->ferry, env->dev, env->q, env->o.ferry_bytes, err);
}

static enum dt_status open_whole(struct dt_exec *x, bool share, struct dt_error *err,
                                 struct dt_exec_whole *out)
{
    struct dt_exec_whole_impl *impl = dt_calloc(1, sizeof(*impl));
    struct dt_exec_whole w = {.impl = impl};
    enum dt_status st;
    int n = 0;

    for (int m = 0; m < x->env.o.model->n_modules; m++)
        n += x->env.n_v[m];
    w.part = dt_calloc((size_t)n, sizeof(*w.part));
    if (impl) {
        impl->x = x;
        impl->own = dt_calloc((size_t)n, sizeof(*impl->own));
    }
    st = w.part && impl && impl->own ? open_parts(x, share, err, &w)
                                     : dt_error_nomem(err, "a checkpoint");
    if (st != DT_OK) {
        dt_exec_whole_free(&w);
        return st;
    }
    *out = w;
    return DT_OK;
}

enum dt_status dt_exec_whole_new(struct dt_exec *x, struct dt_error *err, struct dt_exec_whole *out)
{
    return open_whole(x, false, err, out);
}

enum dt_status dt_exec_share_new(struct dt_exec *x, struct dt_error *err, struct dt_exec_whole *out)
{
    return open_whole(x, true, err, out);
}

void dt_exec_whole_free(struct dt_exec_whole *w)
{
    struct dt_exec_whole_impl *impl = w->impl;

    for (int k = 0; k < w->n; k++) {
        dt_free(impl->own[k].here);
        dt_optimizer_free(&impl->own[k].moments);
        dt_stage_free(impl->own[k].layout);
        dt_free(w->part[k].master);
        dt_free(w->part[k].exp_avg);
        dt_free(w->part[k].exp_avg_sq);
    }
    if (impl) {
        dt_ferry_close(&impl->ferry);
        dt_free(impl->own);
    }
    dt_free(impl);
    dt_free(w->part);
    memset(w, 0, sizeof(*w));
}
