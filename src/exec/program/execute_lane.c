/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Virtual stages of a process: building them, making them larger, and their microbatches. */
#include "exec/program/execute_impl.h"

#include <string.h>

enum { SLACK = 16 }; /* limits grow by that share more than what asked for it */

/* ---- stages ---- */

static enum dt_status make_stage(const struct dt_exec *x, const struct dt_exec_vstage *vs,
                                 const struct dt_batch_limits *max, struct dt_tp *tp,
                                 struct dt_error *err, struct dt_stage **out)
{
    const struct dt_module *mod = &x->o.model->modules[vs->module];
    unsigned char *trained = dt_malloc((size_t)mod->n_blocks + 1);
    struct dt_stage_spec spec = {
        .model = x->o.model,
        .module = mod,
        .first = vs->first,
        .last = vs->last,
        .dtype = x->o.dtype,
        .recompute = x->o.plan->policy.recompute,
        .trained = trained,
        .upstream_trained = dt_plan_upstream_trained(x->o.plan, x->o.model, vs->module, vs->first),
        .max = *max,
        .dropout = (float)x->o.dropout,
        .tp = tp,
    };
    enum dt_status st;

    if (!trained)
        return dt_error_nomem(err, "a stage");
    dt_plan_trainable(x->o.plan, x->o.model, vs->module, trained);
    st = dt_stage_new(x->dev, &spec, err, out);
    dt_free(trained);
    return st;
}

static struct dt_batch_limits smallest(const struct dt_exec *x, int module)
{
    bool llm = x->o.model->modules[module].role == DT_ROLE_LLM;

    return (struct dt_batch_limits){
        .rows = 64, .seqs = 1, .in = llm ? 64 : 0, .cond = llm ? 64 : 0};
}

enum dt_status dt_exec_shell(const struct dt_exec *x, int module, int v, struct dt_tp *tp,
                             struct dt_error *err, struct dt_stage **out)
{
    const struct dt_plan_module *mp = &x->o.plan->modules[module];
    struct dt_batch_limits max = smallest(x, module);
    struct dt_exec_vstage vs = {
        .module = module, .v = v, .first = mp->split[v], .last = mp->split[v + 1]};

    return make_stage(x, &vs, &max, tp, err, out);
}

static enum dt_status build_vstage(struct dt_exec *x, struct dt_exec_vstage *vs,
                                   struct dt_error *err)
{
    const struct dt_exec_peers *peers = &x->peers[vs->module][vs->v % x->pp[vs->module]];
    struct dt_tp *tp = dt_exec_tp(x, vs->module, vs->replica, vs->v % x->pp[vs->module]);
    size_t blocks = (size_t)(vs->last - vs->first) + 1;
    struct dt_optimizer_owned *owned;
    enum dt_status st;
    int n;

    vs->max = smallest(x, vs->module);
    vs->finished = dt_calloc(blocks, sizeof(*vs->finished));
    vs->fresh = dt_calloc(blocks, sizeof(*vs->fresh));
    if (!vs->finished || !vs->fresh)
        return dt_error_nomem(err, "a stage");
    DT_TRY(make_stage(x, vs, &vs->max, tp, err, &vs->stage));
    DT_TRY(dt_exec_make_regions(x, vs, err));
    dt_stage_init(x->q, vs->stage, x->o.seed);
    DT_TRY(dt_exec_owned(x, vs, peers->me, vs->replica == peers->leader, err, &owned, &n));
    st = dt_optimizer_init(&vs->opt, x->dev, &x->o.model->modules[vs->module], vs->stage,
                           dt_tp_rank(tp), owned, n, err);
    dt_free(owned);
    return st == DT_OK ? dt_exec_gather_room(x, vs, err) : st;
}

static enum dt_status build_for_lane(struct dt_exec *x, struct dt_exec_vstage *vs,
                                     struct dt_error *err)
{
    struct dt_device_memory_owner *before = dt_exec_for_vs(x, vs);
    enum dt_status st = build_vstage(x, vs, err);

    x->dev->memory_for(x->dev, before);
    return st;
}

enum dt_status dt_exec_build(struct dt_exec *x, struct dt_error *err)
{
    for (int m = 0; m < x->o.model->n_modules; m++) {
        const struct dt_plan_module *mp = &x->o.plan->modules[m];

        x->vs[m] = dt_calloc((size_t)x->dp[m] * (size_t)x->n_v[m], sizeof(*x->vs[m]));
        x->lane[m] = dt_calloc((size_t)x->dp[m] * (size_t)x->pp[m], sizeof(*x->lane[m]));
        if (!x->vs[m] || !x->lane[m])
            return dt_error_nomem(err, "stages");
        for (int r = 0; r < x->dp[m]; r++)
            for (int v = 0; v < x->n_v[m]; v++) {
                struct dt_exec_vstage *vs = dt_exec_vs(x, m, r, v);

                *vs = (struct dt_exec_vstage){.module = m, .replica = r, .v = v};
                vs->first = mp->split[v];
                vs->last = mp->split[v + 1];
                if (x->member[m][r * x->pp[m] + v % x->pp[m]] >= 0)
                    DT_TRY(build_for_lane(x, vs, err));
            }
    }
    return x->dev->queue_sync(x->q, err);
}

static void free_microbatch(struct dt_exec *x, struct dt_exec_microbatch *s)
{
    x->dev->free(x->dev, s->saved.p);
    if (s->batch)
        dt_batch_free(s->batch);
    dt_free(s);
}

static void free_microbatches(struct dt_exec *x, struct dt_exec_vstage *vs)
{
    while (vs->microbatches) {
        struct dt_exec_microbatch *next = vs->microbatches->next;

        free_microbatch(x, vs->microbatches);
        vs->microbatches = next;
    }
    while (vs->messages) {
        struct dt_exec_message *next = vs->messages->next;

        x->dev->free(x->dev, vs->messages->data.p);
        dt_free(vs->messages);
        vs->messages = next;
    }
    vs->in_use = 0;
}

void dt_exec_drop(struct dt_exec *x)
{
    for (int m = 0; m < DT_MAX_MODULES; m++) {
        for (int i = 0; x->vs[m] && i < x->dp[m] * x->n_v[m]; i++) {
            struct dt_exec_vstage *vs = &x->vs[m][i];

            free_microbatches(x, vs);
            dt_optimizer_free(&vs->opt);
            if (vs->stage)
                dt_stage_free(vs->stage);
            dt_free(vs->finished);
            dt_free(vs->fresh);
            dt_free(vs->regions);
            x->dev->free(x->dev, vs->wire);
        }
        dt_free(x->vs[m]);
        dt_free(x->lane[m]);
    }
}

/* ---- limits ---- */

static bool grow_limit(int64_t *max, int64_t need)
{
    if (need <= *max)
        return false;
    *max = need + need / SLACK;
    return true;
}

/* Microbatches and the workspace are sized by the limits. */
static enum dt_status resize_stage(struct dt_exec *x, struct dt_exec_vstage *vs,
                                   const struct dt_batch_limits *max, struct dt_error *err)
{
    struct dt_device_memory_owner *before;
    enum dt_status st;

    DT_TRY(x->dev->queue_sync(x->q, err)); /* nothing uses what goes */
    free_microbatches(x, vs);
    before = dt_exec_for_vs(x, vs);
    st = dt_stage_resize(vs->stage, max, err);
    x->dev->memory_for(x->dev, before);
    DT_TRY(st);
    vs->max = *max;
    return DT_OK;
}

/* The sequences of a microbatch, in its order. */
static enum dt_status gather_seqs(struct dt_exec *x, int module, uint32_t mb, int *n,
                                  struct dt_error *err)
{
    const struct dt_assignment_module *a = &x->p->assignment->m[module];
    const struct dt_microbatch *m = &a->mb[mb];

    if (dt_grow((void **)&x->mb_seqs, &x->cap_mb_seqs, m->n + 1u, sizeof(*x->mb_seqs)))
        return dt_error_nomem(err, "samples of a microbatch");
    for (uint32_t i = 0; i < m->n; i++)
        x->mb_seqs[i] = x->in->seqs[a->samples[m->first + i]];
    *n = (int)m->n;
    return DT_OK;
}

/* Counts of every microbatch of the module, here or not: both sides of a message know its size. */
static enum dt_status count_module(struct dt_exec *x, int m, struct dt_error *err)
{
    const uint32_t *first = x->p->assignment->m[m].mb_first;
    uint32_t n_mb = first[x->dp[m]];

    if (dt_grow((void **)&x->lim[m], &x->cap_lim[m], n_mb + 1u, sizeof(*x->lim[m])))
        return dt_error_nomem(err, "sizes of microbatches");
    for (uint32_t mb = 0; mb < n_mb; mb++) {
        int n;

        DT_TRY(gather_seqs(x, m, mb, &n, err));
        dt_batching_limits(x->o.model, m, x->mb_seqs, n, &x->lim[m][mb]);
    }
    return DT_OK;
}

struct dt_batch dt_exec_counts(const struct dt_exec *x, int module, uint32_t mb)
{
    const struct dt_batch_limits *l = &x->lim[module][mb];

    return (struct dt_batch){.device = x->dev,
                             .module = &x->o.model->modules[module],
                             .rows = l->rows,
                             .n_seq = l->seqs,
                             .n_in = l->in,
                             .n_cond = l->cond,
                             .max_len = l->max_len};
}

enum dt_status dt_exec_reserve(struct dt_exec *x, struct dt_error *err)
{
    for (int m = 0; m < x->o.model->n_modules; m++) {
        DT_TRY(count_module(x, m, err));
        for (int k = 0; k < x->dp[m] * x->n_v[m]; k++) {
            struct dt_exec_vstage *vs = &x->vs[m][k];
            const uint32_t *first = &x->p->assignment->m[m].mb_first[vs->replica];
            struct dt_batch_limits max = vs->max;
            bool grown = false;

            for (uint32_t mb = first[0]; vs->stage && mb < first[1]; mb++) {
                const struct dt_batch_limits *need = &x->lim[m][mb];

                grown |= grow_limit(&max.rows, need->rows);
                grown |= grow_limit(&max.seqs, need->seqs);
                grown |= grow_limit(&max.in, need->in);
                grown |= grow_limit(&max.cond, need->cond);
            }
            if (grown)
                DT_TRY(resize_stage(x, vs, &max, err));
        }
    }
    return DT_OK;
}

/* ---- microbatches ---- */

enum dt_status dt_exec_room(struct dt_exec *x, struct dt_exec_buffer *b, size_t bytes,
                            struct dt_error *err)
{
    if (bytes <= b->cap && b->p)
        return DT_OK;
    x->dev->free(x->dev, b->p);
    b->p = NULL;
    b->cap = 0;
    bytes = bytes > 0 ? bytes : 64;
    DT_TRY(x->dev->alloc(x->dev, bytes, err, &b->p));
    b->cap = bytes;
    return DT_OK;
}

static enum dt_status fill_microbatch(struct dt_exec *x, struct dt_exec_vstage *vs,
                                      struct dt_exec_microbatch *s, struct dt_error *err)
{
    uint32_t global = x->p->assignment->m[vs->module].mb_first[vs->replica] + s->mb;
    struct dt_batch *b = s->batch;
    int n;

    DT_TRY(gather_seqs(x, vs->module, global, &n, err));
    b->train = dt_stage_has_backward(vs->stage);
    b->noise_seed = x->o.seed;
    b->loss_scale = (float)(x->o.model->modules[vs->module].role == DT_ROLE_LLM ? x->text_scale
                                                                                : x->image_scale);
    DT_TRY(dt_batching_fill(x->o.model, vs->module, x->mb_seqs, n, b, err));
    s->empty = b->rows == 0;
    if (s->empty)
        return DT_OK;
    if (x->o.model->modules[vs->module].role == DT_ROLE_GENERATOR)
        dt_batch_diffuse(b, x->o.diffusion, x->o.seed, (uint64_t)x->in->step);
    DT_TRY(dt_batch_upload(x->q, b, err));
    if (dt_stage_has_backward(vs->stage))
        DT_TRY(dt_exec_room(x, &s->saved, dt_stage_saved_bytes(vs->stage, b), err));
    return DT_OK;
}

static enum dt_status unused_microbatch(struct dt_exec *x, struct dt_exec_vstage *vs,
                                        struct dt_error *err, struct dt_exec_microbatch **out)
{
    struct dt_exec_microbatch *s;

    for (s = vs->microbatches; s; s = s->next)
        if (!s->used) {
            *out = s;
            /* its host arrays may still be on their way to a card */
            return x->dev->info.host_memory ? DT_OK : x->dev->queue_sync(x->q, err);
        }
    s = dt_calloc(1, sizeof(*s));
    if (!s)
        return dt_error_nomem(err, "a microbatch");
    s->next = vs->microbatches;
    vs->microbatches = s;
    DT_TRY(dt_batch_new(x->dev, &x->o.model->modules[vs->module], &vs->max, err, &s->batch));
    *out = s;
    return DT_OK;
}

enum dt_status dt_exec_microbatch_get(struct dt_exec *x, struct dt_exec_vstage *vs, uint32_t mb,
                                      struct dt_error *err, struct dt_exec_microbatch **out)
{
    struct dt_exec_microbatch *s = vs->microbatches;

    while (s && (!s->used || s->mb != mb))
        s = s->next;
    if (!s) {
        DT_TRY(unused_microbatch(x, vs, err, &s));
        s->mb = mb;
        s->in = s->dout = NULL;
        s->in_from = s->dout_from = s->out = s->din = NULL;
        DT_TRY(fill_microbatch(x, vs, s, err));
        s->used = true;
        if (++vs->in_use > vs->in_use_max)
            vs->in_use_max = vs->in_use;
    }
    *out = s;
    return DT_OK;
}

void dt_exec_microbatch_done(struct dt_exec_vstage *vs, struct dt_exec_microbatch *s)
{
    s->used = false;
    vs->in_use--;
}
