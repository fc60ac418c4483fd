/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * What the ranks hold of a part comes to its writer.
 *
 *   who holds it   masters, moments -> page-locked buffer -> control transport
 *   the writer     .. -> page-locked buffer -> where it lies in the whole, in host memory
 *
 * Every rank sends its floats in the order in which it keeps them; spans say where they go.  No side takes
 * device memory, and the next stretch is copied while one is sent or put away. */
#include "exec/program/execute_whole.h"

#include <stdlib.h>
#include <string.h>

/* ---- where a member's floats go ---- */

struct span { /* n floats from `at` of those that come are the whole's from `to` */
    size_t at, to, n;
};
struct spans {
    struct span *s;
    size_t n, cap;
};

static enum dt_status add_span(struct spans *l, size_t at, size_t to, size_t n,
                               struct dt_error *err)
{
    if (n == 0)
        return DT_OK;
    if (dt_grow((void **)&l->s, &l->cap, l->n + 1, sizeof(*l->s)) != 0)
        return dt_error_nomem(err, "where parameters go");
    l->s[l->n++] = (struct span){at, to, n};
    return DT_OK;
}

static int by_place(const void *a, const void *b)
{
    const struct span *x = a, *y = b;

    return x->at < y->at ? -1 : x->at > y->at;
}

/* Of a member's masters, tensor by tensor: it has those of the whole in their order, of experts some. */
static enum dt_status find_spans(const struct dt_stage *member, const struct dt_exec_part *whole,
                                 struct dt_error *err, struct spans *out)
{
    int n;
    const struct dt_param *p = dt_stage_params(member, &n), *q = whole->params;

    for (int i = 0, j = 0; i < n && j < whole->n_params; j++) {
        if (strcmp(p[i].name, q[j].name) != 0)
            continue;
        for (int64_t k = 0; k < dt_param_runs(&p[i]); k++) {
            struct dt_param_run r = dt_param_run(&p[i], k);

            DT_TRY(add_span(out, p[i].at + r.at, q[j].at + r.whole, r.n, err));
        }
        i++;
    }
    if (out->n > 1)
        qsort(out->s, out->n, sizeof(*out->s), by_place);
    return DT_OK;
}

/* Of what an optimizer keeps: segments ascend, as the masters' spans do. */
static enum dt_status find_kept(const struct dt_optimizer_segment *kept, int n,
                                const struct spans *masters, struct dt_error *err,
                                struct spans *out)
{
    size_t k = 0;

    for (int i = 0; i < n; i++) {
        const struct dt_optimizer_segment *s = &kept[i];

        while (k < masters->n && masters->s[k].at + masters->s[k].n <= s->at)
            k++;
        for (size_t j = k; j < masters->n && masters->s[j].at < s->at + s->n; j++) {
            const struct span *m = &masters->s[j];
            size_t lo = m->at > s->at ? m->at : s->at, end = m->at + m->n;
            size_t hi = end < s->at + s->n ? end : s->at + s->n;

            DT_TRY(add_span(out, s->moment + lo - s->at, m->to + lo - m->at, hi - lo, err));
        }
    }
    return DT_OK;
}

static enum dt_status find_moments(const struct dt_optimizer *o, const struct spans *masters,
                                   struct dt_error *err, struct spans *out)
{
    return find_kept(o->segments, o->n_segments, masters, err, out);
}

/* Of the masters that it keeps on the host, what is not trained among them. */
static enum dt_status find_masters(const struct dt_optimizer *o, const struct spans *masters,
                                   struct dt_error *err, struct spans *out)
{
    DT_TRY(find_moments(o, masters, err, out));
    for (int i = 0; i < o->n_kept;
         i++) /* in the order of their blocks, which is another one inside */
        DT_TRY(find_kept(&o->kept[i], 1, masters, err, out));
    if (out->n > 1)
        qsort(out->s, out->n, sizeof(*out->s), by_place);
    return DT_OK;
}

/* ---- stretches ---- */

struct putting { /* floats that come one after the other into `whole` */
    const struct spans *spans;
    size_t next; /* span */
    float *whole;
};

static enum dt_status put_away(void *arg, size_t at, const void *p, size_t bytes,
                               struct dt_error *err)
{
    struct putting *w = arg;
    size_t first = at / sizeof(float), end = first + bytes / sizeof(float);
    const float *from = p;

    (void)err;
    while (w->next < w->spans->n && w->spans->s[w->next].at < end) {
        const struct span *s = &w->spans->s[w->next];
        size_t lo = s->at > first ? s->at : first;
        size_t hi = s->at + s->n < end ? s->at + s->n : end;

        if (hi > lo)
            memcpy(w->whole + s->to + (lo - s->at), from + (lo - first), (hi - lo) * sizeof(float));
        if (s->at + s->n > end) /* goes on in the next stretch */
            break;
        w->next++;
    }
    return DT_OK;
}

struct sending {
    const struct dt_exec_ranks *ranks;
    int to, tag;
};

static enum dt_status send_stretch(void *arg, size_t at, const void *p, size_t bytes,
                                   struct dt_error *err)
{
    const struct sending *s = arg;
    struct dt_transport *t = s->ranks->t;
    struct dt_req *req;

    (void)at;
    DT_TRY(t->post_send(t, s->to, s->tag, p, bytes, NULL, err, &req));
    return dt_transport_wait(t, req, s->ranks->env->o.limit_s, "parameters", err);
}

/* `host`: they are in the host's memory. */
static enum dt_status give(struct dt_exec_whole_impl *impl, int to, int tag, const float *p,
                           size_t n, bool host, struct dt_error *err)
{
    struct sending s = {&impl->x->ranks, to, tag};
    size_t bytes = n * sizeof(*p), most = impl->ferry.bytes;

    if (!host)
        return dt_ferry_out(&impl->ferry, p, bytes, send_stretch, &s, err);
    for (size_t at = 0; at < bytes; at += most)
        DT_TRY(
            send_stretch(&s, at, (const char *)p + at, bytes - at < most ? bytes - at : most, err));
    return DT_OK;
}

struct source { /* floats on their way to this rank */
    int from, tag;
    const float *here; /* NULL: of another rank */
    bool host;         /* here, in the host's memory */
};

static enum dt_status take(struct dt_exec_whole_impl *impl, const struct source *f, size_t n,
                           struct putting *to, struct dt_error *err)
{
    const struct dt_exec_ranks *ranks = &impl->x->ranks;
    size_t bytes = n * sizeof(float);

    if (f->here && f->host)
        return put_away(to, 0, f->here, bytes, err);
    if (f->here)
        return dt_ferry_out(&impl->ferry, f->here, bytes, put_away, to, err);
    for (size_t at = 0; at < bytes; at += impl->ferry.bytes) {
        size_t some = bytes - at < impl->ferry.bytes ? bytes - at : impl->ferry.bytes;
        struct dt_req *req;
        void *room;

        DT_TRY(dt_ferry_room(&impl->ferry, err, &room));
        DT_TRY(ranks->t->post_recv(ranks->t, f->from, f->tag, room, some, NULL, err, &req));
        DT_TRY(dt_transport_wait(ranks->t, req, ranks->env->o.limit_s, "parameters", err));
        DT_TRY(put_away(to, at, room, some, err));
    }
    return DT_OK;
}

/* ---- who has what ---- */

/* The k-th rank of those that hold copies of a tensor-parallel member of the stage, ascending; -1 = no more. */
static int peer_rank(const struct dt_exec_ranks *ranks, int m, int stage, int t, int k)
{
    int tp = ranks->env->o.plan->modules[m].layout.tp, cp = dt_exec_members(ranks->env, m) / tp;
    int last = -1;

    for (int i = 0; i < ranks->env->dp[m] * cp; i++) { /* they lie side by side: ranks ascend */
        int rank = dt_placement_rank(&ranks->place, m, i / cp, stage, i % cp * tp + t);

        if (rank != last && k-- == 0)
            return rank;
        last = rank;
    }
    return -1;
}

/* Moments that rank k of the replicas keeps, as it keeps them. */
static enum dt_status like_peer(const struct dt_exec_ranks *ranks, const struct dt_exec_part *p,
                                struct dt_stage *member, int t, int k, struct dt_error *err,
                                struct dt_optimizer *out)
{
    const struct dt_plan_module *mp = &ranks->env->o.plan->modules[p->module];
    struct dt_exec_vstage vs = {.module = p->module,
                                .v = p->v,
                                .stage = member,
                                .first = mp->split[p->v],
                                .last = mp->split[p->v + 1]};
    struct dt_optimizer_owned *owned = NULL;
    enum dt_status st;
    int n = 0;

    st = dt_exec_make_regions(ranks, &vs, err);
    if (st == DT_OK)
        st = dt_exec_owned(ranks, &vs, k, true, err, &owned, &n);
    if (st == DT_OK) {
        struct dt_optimizer_spec spec =
            dt_exec_optimizer_spec(ranks->env, p->module, member, t, owned, n);

        st = dt_optimizer_layout(out, &spec, err);
    }
    dt_free(owned);
    dt_free(vs.regions);
    return st;
}

/* How many of the peers have moments to give: those of the first group that shards, else the first, or of an expert
 * group each. */
static int givers(const struct dt_exec_ranks *ranks, int m, int stage)
{
    return dt_exec_shards(ranks, m, stage) ? ranks->peers[m][stage].n_group
                                           : dt_exec_ep_size(ranks->env, m);
}

static enum dt_status give_part(struct dt_exec_whole_impl *impl, int m, int v, int to,
                                struct dt_error *err)
{
    const struct dt_exec_stages *stages = &impl->x->stages;
    const struct dt_exec_peers *p = &stages->ranks->peers[m][v % stages->env->pp[m]];
    struct dt_exec_vstage *vs = dt_exec_held(stages, m, v);
    const struct dt_optimizer *o;

    if (!vs)
        return DT_OK;
    o = &vs->opt;
    if (!o->offloaded &&
        p->me < dt_exec_ep_size(stages->env, m)) /* of an expert group each, else the first */
        DT_TRY(give(impl, to, DT_EXEC_TAG_MASTER, dt_stage_master(vs->stage),
                    dt_stage_param_floats(vs->stage), false, err));
    if (p->me >= givers(stages->ranks, m, v % stages->env->pp[m]))
        return DT_OK;
    if (o->offloaded)
        DT_TRY(give(impl, to, DT_EXEC_TAG_MASTER, o->master, o->masters, true, err));
    DT_TRY(give(impl, to, DT_EXEC_TAG_AVG, o->exp_avg, o->moments, o->offloaded, err));
    return give(impl, to, DT_EXEC_TAG_AVG_SQ, o->exp_avg_sq, o->moments, o->offloaded, err);
}

/* ---- taking ---- */

struct member { /* of a part's tensor-parallel ones or of its expert group's, on its way */
    struct dt_exec_whole_impl *impl;
    const struct dt_exec_part *part;
    struct dt_stage *layout;
    struct spans masters;
    int t;
    int k, ep; /* of the peers k, k + ep, ... */
};

/* This rank's, where it is the one that they come from. */
static const struct dt_exec_vstage *held_by(const struct member *m, int from)
{
    const struct dt_exec_stages *stages = &m->impl->x->stages;

    return from == stages->ranks->rank ? dt_exec_held(stages, m->part->module, m->part->v) : NULL;
}

/* What the optimizer of the k-th rank of the replicas keeps. */
static enum dt_status take_kept(const struct member *m, int from, const struct dt_optimizer *o,
                                struct dt_error *err)
{
    const struct dt_exec_vstage *vs = held_by(m, from);
    const struct source of[] = {
        {from, DT_EXEC_TAG_MASTER, vs ? vs->opt.master : NULL, true},
        {from, DT_EXEC_TAG_AVG, vs ? vs->opt.exp_avg : NULL, o->offloaded},
        {from, DT_EXEC_TAG_AVG_SQ, vs ? vs->opt.exp_avg_sq : NULL, o->offloaded}};
    float *const to[] = {m->part->master, m->part->exp_avg, m->part->exp_avg_sq};
    enum dt_status st = DT_OK;

    for (int i = o->offloaded ? 0 : 1; st == DT_OK && i < 3; i++) {
        struct spans spans = {NULL, 0, 0};
        struct putting put = {&spans, 0, to[i]};

        st = i == 0 ? find_masters(o, &m->masters, err, &spans)
                    : find_moments(o, &m->masters, err, &spans);
        if (st == DT_OK)
            st = take(m->impl, &of[i], i == 0 ? o->masters : o->moments, &put, err);
        dt_free(spans.s);
    }
    return st;
}

static enum dt_status take_all_masters(const struct member *m, int from, struct dt_error *err)
{
    const struct dt_exec_vstage *vs = held_by(m, from);
    const struct source of = {from, DT_EXEC_TAG_MASTER, vs ? dt_stage_master(vs->stage) : NULL,
                              false};
    struct putting masters = {&m->masters, 0, m->part->master};

    return take(m->impl, &of, dt_stage_param_floats(m->layout), &masters, err);
}

static enum dt_status take_from(const struct member *m, int k, int from, int givers,
                                struct dt_error *err)
{
    struct dt_optimizer o = {0};
    enum dt_status st = like_peer(&m->impl->x->ranks, m->part, m->layout, m->t, k, err, &o);

    if (st == DT_OK && k == m->k && !o.offloaded)
        st = take_all_masters(m, from, err);
    if (st == DT_OK && k < givers)
        st = take_kept(m, from, &o, err);
    dt_optimizer_free(&o);
    return st;
}

static enum dt_status take_member(const struct member *m, struct dt_error *err)
{
    const struct dt_exec_stages *stages = &m->impl->x->stages;
    int from, module = m->part->module, stage = m->part->v % stages->env->pp[module];
    int n = givers(stages->ranks, module, stage);

    for (int k = 0; (from = peer_rank(stages->ranks, module, stage, m->t, k)) >= 0; k++)
        if (k % m->ep == m->k && (k == m->k || k < n))
            DT_TRY(take_from(m, k, from, n, err));
    return DT_OK;
}

static enum dt_status take_part(struct dt_exec_whole_impl *impl, const struct dt_exec_part *p,
                                struct dt_error *err)
{
    const struct dt_exec_env *env = &impl->x->env;
    int size = env->o.plan->modules[p->module].layout.tp, n = dt_exec_ep_size(env, p->module);
    enum dt_status st = DT_OK;

    for (int i = 0; st == DT_OK && i < size * n; i++) {
        struct dt_tp tp = {.rank = i / n, .size = size}, ep = {.rank = i % n, .size = n};
        struct member m = {.impl = impl, .part = p, .t = i / n, .k = i % n, .ep = n};

        st = dt_exec_layout(env, p->module, p->v, size > 1 ? &tp : NULL, n > 1 ? &ep : NULL, err,
                            &m.layout);
        if (st == DT_OK)
            st = find_spans(m.layout, p, err, &m.masters);
        if (st == DT_OK)
            st = take_member(&m, err);
        dt_free(m.masters.s);
        dt_stage_free(m.layout);
    }
    return st;
}

enum dt_status dt_exec_collect(struct dt_exec *x, struct dt_exec_whole *w, struct dt_error *err)
{
    struct dt_exec_whole_impl *impl = w->impl;

    for (int m = 0, k = 0; m < x->env.o.model->n_modules; m++)
        for (int v = 0; v < x->env.n_v[m]; v++) {
            int writer = x->ranks.t ? dt_exec_writer(&x->ranks, m, v) : x->ranks.rank;

            if (writer != x->ranks.rank)
                DT_TRY(give_part(impl, m, v, writer, err));
            else
                DT_TRY(take_part(impl, &w->part[k++], err));
        }
    DT_TRY(x->env.dev->queue_sync(x->env.q, err));
    dt_ferry_close(&impl->ferry); /* training goes on while files are written from the copy */
    return DT_OK;
}
