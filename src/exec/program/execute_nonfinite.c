/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Where values that are not finite are: looked for only when a norm or a loss has said that there
 * are some, so it may take its time.
 *
 *   every rank   the first such tensor among its parameters, and among what it counts in the
 *                gradient norm
 *   all          the least of these places; then how many such values that tensor has
 */
#include "base/bf16.h"
#include "exec/program/execute_impl.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

enum { CHUNK = 1 << 14, NAME = sizeof(((struct dt_exec_culprit *)0)->name) };

struct search {
    const struct dt_exec_stages *stages;
    bool grads;  /* else parameters */
    float *host; /* [CHUNK] */
};
/* A parameter of a virtual stage on this rank. */
struct place {
    const struct dt_exec_vstage *vs;
    int param;
};

/* ---- this rank ---- */

static enum dt_status look(const struct search *s, const float *v, size_t n, struct dt_error *err,
                           struct dt_exec_culprit *c)
{
    const struct dt_device *dev = s->stages->env->dev;

    for (size_t at = 0; at < n; at += CHUNK) {
        size_t m = n - at < CHUNK ? n - at : CHUNK;

        dev->copy(s->stages->env->q, s->host, v + at, m * sizeof(*v), DT_COPY_TO_HOST);
        DT_TRY(dev->queue_sync(s->stages->env->q, err));
        dt_nonfinite_count(s->host, m, &c->bad);
    }
    c->values += n;
    return DT_OK;
}

/* Of rounded copies, where a stage has no masters. */
static enum dt_status look_rounded(const struct search *s, const uint16_t *v, size_t n,
                                   struct dt_error *err, struct dt_exec_culprit *c)
{
    const struct dt_device *dev = s->stages->env->dev;
    uint16_t *in = (uint16_t *)(void *)(s->host + CHUNK) - CHUNK; /* the room's second half */

    for (size_t at = 0; at < n; at += CHUNK) {
        size_t m = n - at < CHUNK ? n - at : CHUNK;

        dev->copy(s->stages->env->q, in, v + at, m * sizeof(*v), DT_COPY_TO_HOST);
        DT_TRY(dev->queue_sync(s->stages->env->q, err));
        for (size_t i = 0; i < m; i++) { /* what is written has been read */
            uint16_t x;
            float y;

            memcpy(&x, &in[i], sizeof(x));
            y = dt_bf16_to_f32(x);
            memcpy(&s->host[i], &y, sizeof(y));
        }
        dt_nonfinite_count(s->host, m, &c->bad);
    }
    c->values += n;
    return DT_OK;
}

static enum dt_status look_at_value(const struct search *s, struct dt_stage *stage,
                                    const struct dt_param *p, struct dt_error *err,
                                    struct dt_exec_culprit *c)
{
    const float *exact = dt_stage_exact(stage, p);

    if (exact)
        return look(s, exact, p->n, err, c);
    return look_rounded(s, (const uint16_t *)dt_stage_rounded(stage) + p->at, p->n, err, c);
}

/* Of gradients what this rank counts: each of the model's values is counted by one rank.  Of
 * parameters all that it has: a replica may differ from the others by mistake. */
static enum dt_status look_at(const struct search *s, const struct place *w, struct dt_error *err,
                              struct dt_exec_culprit *c)
{
    const struct dt_optimizer *o = &w->vs->opt;
    int n;
    const struct dt_param *p = &dt_stage_params(w->vs->stage, &n)[w->param];
    const float *g = dt_stage_grads(w->vs->stage);

    if (p->tied)
        return DT_OK;
    if (!s->grads)
        return look_at_value(s, w->vs->stage, p, err, c);
    for (int k = 0; g && k < o->n_segments; k++) {
        const struct dt_optimizer_segment *x = &o->segments[k];
        size_t lo = x->at > p->at ? x->at : p->at;
        size_t hi = x->at + x->n < p->at + p->n ? x->at + x->n : p->at + p->n;

        if (lo < hi && !x->tied && x->counted)
            DT_TRY(look(s, g + lo, hi - lo, err, c));
    }
    return DT_OK;
}

/* This rank's lowest replica of a virtual stage; NULL: it has none, or none that it counts. */
static const struct dt_exec_vstage *counted(const struct search *s, int module, int v)
{
    const struct dt_exec_stages *stages = s->stages;
    const struct dt_exec_peers *p = &stages->ranks->peers[module][v % stages->env->pp[module]];
    const struct dt_exec_vstage *vs =
        p->leader >= 0 ? dt_exec_vs(stages, module, p->leader, v) : NULL;

    if (!vs || !vs->stage)
        return NULL;
    return !s->grads || p->me == 0 || vs->opt.sharded ? vs : NULL;
}

/* Places in order, as numbers: module, virtual stage, parameter. */
static double key_of(int module, int v, int param)
{
    return ldexp(module, 44) + ldexp(v, 24) + param;
}

static enum dt_status first_here(const struct search *s, struct dt_error *err, double *key)
{
    *key = INFINITY;
    for (int m = 0; m < s->stages->env->o.model->n_modules; m++)
        for (int v = 0; v < s->stages->env->n_v[m]; v++) {
            struct place w = {.vs = counted(s, m, v)};
            int n = 0;

            if (w.vs)
                dt_stage_params(w.vs->stage, &n);
            for (w.param = 0; w.param < n; w.param++) {
                struct dt_exec_culprit c = {.values = 0};

                DT_TRY(look_at(s, &w, err, &c));
                if (dt_nonfinite_all(&c.bad) > 0) {
                    *key = key_of(m, v, w.param);
                    return DT_OK;
                }
            }
        }
    return DT_OK;
}

/* ---- all ranks ---- */

/* What this rank has of the place.  Of a parameter the owner says what it has. */
static enum dt_status count_here(const struct search *s, double key, struct dt_error *err,
                                 struct dt_exec_culprit *c)
{
    int m = (int)ldexp(key, -44), v = (int)ldexp(fmod(key, ldexp(1, 44)), -24);
    struct place w = {.vs = counted(s, m, v), .param = (int)fmod(key, ldexp(1, 24))};
    const struct dt_param *p;
    int n;

    if (!w.vs)
        return DT_OK;
    p = dt_stage_params(w.vs->stage, &n);
    snprintf(c->name, sizeof(c->name), "%s.%s", s->stages->env->o.model->modules[m].name,
             p[w.param].name);
    return look_at(s, &w, err, c);
}

static bool deals_experts(const struct dt_exec_env *env, double key)
{
    return dt_exec_ep_size(env, (int)ldexp(key, -44)) > 1;
}

static enum dt_status least(struct search *s, double *key, int *owner, struct dt_error *err)
{
    double *all = dt_calloc((size_t)s->stages->ranks->n, sizeof(*all));
    enum dt_status st;

    if (!all)
        return dt_error_nomem(err, "places of values");
    all[s->stages->ranks->rank] = isfinite(*key) ? *key + 1 : 0; /* 0: nothing found */
    st = dt_exec_ranks_sum(s->stages->ranks, all, (size_t)s->stages->ranks->n, err);
    *key = INFINITY;
    for (int r = 0; st == DT_OK && r < s->stages->ranks->n; r++)
        if (all[r] > 0 && all[r] - 1 < *key) {
            *key = all[r] - 1;
            *owner = r;
        }
    dt_free(all);
    return st;
}

/* Counts and the name, as numbers to be added up. */
static enum dt_status put_together(struct search *s, int owner, struct dt_error *err,
                                   struct dt_exec_culprit *c)
{
    double sum[3 + NAME] = {(double)c->bad.nan, (double)c->bad.inf, (double)c->values};

    for (int i = 0; s->stages->ranks->rank == owner && i < NAME && c->name[i]; i++)
        sum[3 + i] = (unsigned char)c->name[i];
    DT_TRY(dt_exec_ranks_sum(s->stages->ranks, sum, 3 + NAME, err));
    c->bad = (struct dt_nonfinite){(uint64_t)sum[0], (uint64_t)sum[1]};
    c->values = (uint64_t)sum[2];
    for (int i = 0; i < NAME; i++)
        c->name[i] = (char)(unsigned char)sum[3 + i];
    return DT_OK;
}

static enum dt_status find(struct search *s, struct dt_error *err, struct dt_exec_culprit *out)
{
    double key;
    int owner = 0;

    memset(out, 0, sizeof(*out));
    DT_TRY(first_here(s, err, &key));
    DT_TRY(least(s, &key, &owner, err));
    if (!isfinite(key))
        return DT_OK;
    /* where experts are dealt ranks number their parameters differently: the owner counts what it has */
    if ((s->grads && !deals_experts(s->stages->env, key)) || s->stages->ranks->rank == owner)
        DT_TRY(count_here(s, key, err, out));
    return put_together(s, owner, err, out);
}

enum dt_status dt_exec_find_nonfinite(struct dt_exec *x, struct dt_error *err,
                                      struct dt_exec_culprit *param, struct dt_exec_culprit *grad)
{
    struct search s = {.stages = &x->stages, .host = dt_malloc(CHUNK * sizeof(float))};
    enum dt_status st = s.host ? DT_OK : dt_error_nomem(err, "values of a tensor");

    if (st == DT_OK)
        st = find(&s, err, param);
    s.grads = true;
    if (st == DT_OK)
        st = find(&s, err, grad);
    dt_free(s.host);
    return st;
}
