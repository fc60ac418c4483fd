/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Virtual stages of a process: building them, and making them larger. */
#include "exec/program/execute_impl.h"

#include <string.h>

enum { SLACK = 16 }; /* limits grow by that share more than what asked for it */

/* ---- stages ---- */

static enum dt_status make_stage(const struct dt_exec_env *env, const struct dt_exec_vstage *vs,
                                 const struct dt_batch_limits *max, struct dt_tp *tp,
                                 struct dt_tp *cp, struct dt_tp *ep,
                                 const struct dt_stage_memory *gathered,
                                 const struct dt_stage_memory *summed, bool layout_only,
                                 struct dt_error *err, struct dt_stage **out)
{
    const struct dt_module *mod = &env->o.model->modules[vs->module];
    unsigned char *trained = dt_malloc((size_t)mod->n_blocks + 1);
    struct dt_stage_spec spec = {
        .model = env->o.model,
        .module = mod,
        .first = vs->first,
        .last = vs->last,
        .dtype = env->o.dtype,
        .recompute = env->o.plan->modules[vs->module].recompute,
        .trained = trained,
        .upstream_trained =
            dt_plan_upstream_trained(env->o.plan, env->o.model, vs->module, vs->first),
        .split_backward = dt_plan_splits_backward(env->o.plan, env->o.model, vs->module, vs->v),
        .max = *max,
        .dropout = (float)env->o.dropout,
        .tp = tp,
        .cp = cp,
        .ring = env->o.plan->policy.cp_comm == DT_CP_COMM_RING,
        .ep = ep,
        .chunks = env->o.plan->policy.stepccl ? env->o.plan->policy.stepccl_chunks : 0,
        .gathered = gathered,
        .summed = summed,
        .masters_away = dt_plan_offloads_optimizer(&env->o.plan->modules[vs->module]),
        .layout_only = layout_only,
    };
    enum dt_status st;

    if (!trained)
        return dt_error_nomem(err, "a stage");
    dt_plan_trainable(env->o.plan, env->o.model, vs->module, trained);
    st = dt_stage_new(env->dev, &spec, err, out);
    dt_free(trained);
    return st;
}

static struct dt_batch_limits smallest(const struct dt_exec_env *env, int module)
{
    bool llm = env->o.model->modules[module].role == DT_ROLE_LLM;

    return (struct dt_batch_limits){
        .rows = 64, .seqs = 1, .in = llm ? 64 : 0, .cond = llm ? 64 : 0};
}

enum dt_status dt_exec_layout(const struct dt_exec_env *env, int module, int v, struct dt_tp *tp,
                              struct dt_tp *ep, struct dt_error *err, struct dt_stage **out)
{
    const struct dt_plan_module *mp = &env->o.plan->modules[module];
    struct dt_batch_limits max = smallest(env, module);
    struct dt_exec_vstage vs = {
        .module = module, .v = v, .first = mp->split[v], .last = mp->split[v + 1]};

    return make_stage(env, &vs, &max, tp, NULL, ep, NULL, NULL, true, err, out);
}

static enum dt_status memory_new(void *arg, size_t bytes, struct dt_error *err, void **out)
{
    struct dt_transport *t = arg;

    return t->memory_new(t, bytes, err, out);
}

static void memory_free(void *arg, void *p)
{
    struct dt_transport *t = arg;

    t->memory_free(t, p);
}

static enum dt_status build_vstage(const struct dt_exec_stages *stages, struct dt_exec_vstage *vs,
                                   struct dt_error *err)
{
    const struct dt_exec_peers *peers =
        &stages->ranks->peers[vs->module][vs->v % stages->env->pp[vs->module]];
    struct dt_tp *tp =
        dt_exec_tp(stages->ranks, vs->module, vs->replica, vs->v % stages->env->pp[vs->module]);
    struct dt_tp *cp =
        dt_exec_cp(stages->ranks, vs->module, vs->replica, vs->v % stages->env->pp[vs->module]);
    struct dt_tp *ep =
        dt_exec_ep(stages->ranks, vs->module, vs->replica, vs->v % stages->env->pp[vs->module]);
    struct dt_transport *data = stages->ranks->data;
    const struct dt_stage_memory own = {data, memory_new, memory_free};
    bool gives = data && data->memory_new;
    bool away = dt_plan_offloads_params(&stages->env->o.plan->modules[vs->module]);
    size_t blocks = (size_t)(vs->last - vs->first) + 1;
    struct dt_optimizer_owned *owned;
    struct dt_optimizer_spec spec;
    enum dt_status st;
    int n;

    vs->max = smallest(stages->env, vs->module);
    vs->finished = dt_calloc(blocks, sizeof(*vs->finished));
    vs->fresh = dt_calloc(blocks, sizeof(*vs->fresh));
    if (!vs->finished || !vs->fresh)
        return dt_error_nomem(err, "a stage");
    DT_TRY(make_stage(stages->env, vs, &vs->max, tp, cp, ep,
                      gives && !away && dt_exec_gathers(stages, vs) ? &own : NULL,
                      gives && dt_exec_sums(stages, vs) ? &own : NULL, false, err, &vs->stage));
    DT_TRY(dt_exec_make_regions(stages->ranks, vs, err));
    dt_stage_init(stages->env->q, vs->stage, stages->env->o.seed);
    DT_TRY(
        dt_exec_owned(stages->ranks, vs, peers->me, vs->replica == peers->leader, err, &owned, &n));
    spec = dt_exec_optimizer_spec(stages->env, vs->module, vs->stage, dt_tp_rank(tp), owned, n);
    st = dt_optimizer_init(&vs->opt, stages->env->dev, &spec, stages->env->host, stages->env->q,
                           err);
    dt_free(owned);
    if (st == DT_OK)
        st = dt_exec_host_new(stages->env, vs, err);
    return st == DT_OK ? dt_exec_gather_room(stages, vs, err) : st;
}

static enum dt_status build_for_lane(const struct dt_exec_stages *stages, struct dt_exec_vstage *vs,
                                     struct dt_error *err)
{
    struct dt_device_memory_owner *before = dt_exec_for_vs(stages, vs);
    enum dt_status st = build_vstage(stages, vs, err);

    stages->env->dev->memory_for(stages->env->dev, before);
    return st;
}

enum dt_status dt_exec_build(struct dt_exec_stages *stages, struct dt_error *err)
{
    for (int m = 0; m < stages->env->o.model->n_modules; m++) {
        const struct dt_plan_module *mp = &stages->env->o.plan->modules[m];

        stages->vs[m] = dt_calloc((size_t)stages->env->dp[m] * (size_t)stages->env->n_v[m],
                                  sizeof(*stages->vs[m]));
        stages->lane[m] = dt_calloc((size_t)stages->env->dp[m] * (size_t)stages->env->pp[m],
                                    sizeof(*stages->lane[m]));
        stages->lane_most[m] = dt_calloc((size_t)stages->env->dp[m] * (size_t)stages->env->pp[m],
                                         sizeof(*stages->lane_most[m]));
        if (!stages->vs[m] || !stages->lane[m] || !stages->lane_most[m])
            return dt_error_nomem(err, "stages");
        for (int r = 0; r < stages->env->dp[m]; r++)
            for (int v = 0; v < stages->env->n_v[m]; v++) {
                struct dt_exec_vstage *vs = dt_exec_vs(stages, m, r, v);

                *vs = (struct dt_exec_vstage){.module = m, .replica = r, .v = v};
                vs->first = mp->split[v];
                vs->last = mp->split[v + 1];
                vs->split =
                    dt_plan_splits_backward(stages->env->o.plan, stages->env->o.model, m, v);
                if (stages->ranks->member[m][r * stages->env->pp[m] + v % stages->env->pp[m]] >= 0)
                    DT_TRY(build_for_lane(stages, vs, err));
            }
    }
    DT_TRY(dt_exec_share(stages, err));
    return stages->env->dev->queue_sync(stages->env->q, err);
}

/* Those of its microbatches, too. */
static void free_messages(const struct dt_exec_ranks *ranks, struct dt_exec_vstage *vs)
{
    const struct dt_device *dev = ranks->env->dev;

    dt_exec_microbatches_free(dev, vs);
    while (vs->messages) {
        struct dt_exec_message *next = vs->messages->next;

        dt_exec_message_room_free(ranks, &vs->messages->data);
        dev->event_free(vs->messages->read);
        dt_free(vs->messages);
        vs->messages = next;
    }
    while (vs->stashes) {
        struct dt_exec_stash *next = vs->stashes->next;

        dev->free(dev, vs->stashes->data.p);
        dt_free(vs->stashes);
        vs->stashes = next;
    }
}

void dt_exec_drop(struct dt_exec_stages *stages)
{
    dt_exec_unshare(stages);
    for (int m = 0; m < DT_MAX_MODULES; m++) {
        for (int i = 0; stages->vs[m] && i < stages->env->dp[m] * stages->env->n_v[m]; i++) {
            struct dt_exec_vstage *vs = &stages->vs[m][i];

            free_messages(stages->ranks, vs);
            dt_exec_host_free(stages->env, vs);
            dt_optimizer_free(&vs->opt);
            if (vs->stage)
                dt_stage_free(vs->stage);
            dt_free(vs->finished);
            dt_free(vs->fresh);
            dt_free(vs->regions);
            dt_transport_memory_free(stages->ranks->data, stages->env->dev, vs->wire);
        }
        dt_free(stages->vs[m]);
        dt_free(stages->lane[m]);
        dt_free(stages->lane_most[m]);
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
static enum dt_status resize_stage(const struct dt_exec_stages *stages, struct dt_exec_vstage *vs,
                                   const struct dt_batch_limits *max, struct dt_error *err)
{
    struct dt_device_memory_owner *before;
    enum dt_status st;

    DT_TRY(dt_exec_env_sync(stages->env, err)); /* nothing uses what goes */
    free_messages(stages->ranks, vs);
    before = dt_exec_for_vs(stages, vs);
    st = dt_stage_resize(vs->stage, max, err);
    stages->env->dev->memory_for(stages->env->dev, before);
    DT_TRY(st);
    vs->max = *max;
    return DT_OK;
}

/* Items from entry k on of one sample, as that sample with its other items put out; returns how many entries. */
static uint32_t view(struct dt_exec_iteration *it, const struct dt_assignment_module *a, uint32_t k,
                     uint32_t end, uint32_t flag, struct dt_sequence_item *items,
                     struct dt_sequence *out)
{
    const struct dt_sequence *s = it->in->seqs[a->samples[k]];
    uint32_t nth = 0, from = k;

    *out = *s;
    out->items = items;
    for (int i = 0; i < s->n_items; i++) {
        items[i] = s->items[i];
        if (!(items[i].flags & flag))
            continue;
        if (k < end && a->samples[k] == a->samples[from] && a->items[k] == nth)
            k++;
        else
            items[i].flags &= ~flag;
        nth++;
    }
    return k - from;
}

/* Entries of one sample stand side by side, their items rising. */
static enum dt_status gather_items(struct dt_exec_iteration *it,
                                   const struct dt_assignment_module *a,
                                   const struct dt_microbatch *m, uint32_t flag,
                                   struct dt_error *err, int *n)
{
    size_t items = 0, views = 0;

    for (uint32_t i = 0; i < m->n; i++)
        if (i == 0 || a->samples[m->first + i] != a->samples[m->first + i - 1]) {
            items += (size_t)it->in->seqs[a->samples[m->first + i]]->n_items;
            views++;
        }
    if (dt_grow((void **)&it->views, &it->cap_views, views + 1, sizeof(*it->views)) ||
        dt_grow((void **)&it->view_items, &it->cap_view_items, items + 1, sizeof(*it->view_items)))
        return dt_error_nomem(err, "items of a microbatch");
    items = views = 0;
    for (uint32_t k = m->first, end = m->first + m->n; k < end; views++) {
        uint32_t taken = view(it, a, k, end, flag, it->view_items + items, &it->views[views]);

        if (taken == 0)
            return dt_error_set(err, DT_ERR_INTERNAL, "a microbatch has an item that is not there");
        k += taken;
        items += (size_t)it->views[views].n_items;
        it->mb_seqs[views] = &it->views[views];
    }
    *n = (int)views;
    return DT_OK;
}

enum dt_status dt_exec_gather_seqs(struct dt_exec_iteration *it, int module, uint32_t mb, int *n,
                                   struct dt_error *err)
{
    const struct dt_assignment_module *a = &it->p->assignment->m[module];
    const struct dt_microbatch *m = &a->mb[mb];

    if (dt_grow((void **)&it->mb_seqs, &it->cap_mb_seqs, m->n + 1u, sizeof(*it->mb_seqs)))
        return dt_error_nomem(err, "samples of a microbatch");
    if (a->items)
        return gather_items(
            it, a, m, module == it->edge[DT_EDGE_COND].dst ? DT_ITEM_GENERATE : DT_ITEM_ENCODE, err,
            n);
    for (uint32_t i = 0; i < m->n; i++)
        it->mb_seqs[i] = it->in->seqs[a->samples[m->first + i]];
    *n = (int)m->n;
    return DT_OK;
}

/* Counts of every microbatch of the module, here or not: both sides of a message know its size. */
static enum dt_status count_module(struct dt_exec_iteration *it, const struct dt_exec_env *env,
                                   const struct dt_batch_cut *cut, int m, struct dt_error *err)
{
    const uint32_t *first = it->p->assignment->m[m].mb_first;
    uint32_t n_mb = first[env->dp[m]];

    if (dt_grow((void **)&it->lim[m], &it->cap_lim[m], n_mb + 1u, sizeof(*it->lim[m])))
        return dt_error_nomem(err, "sizes of microbatches");
    for (uint32_t mb = 0; mb < n_mb; mb++) {
        int n;

        DT_TRY(dt_exec_gather_seqs(it, m, mb, &n, err));
        dt_batching_limits(env->o.model, m, it->mb_seqs, n, cut, &it->lim[m][mb]);
    }
    return DT_OK;
}

/* Rows of the microbatches that the members of this rank's expert group run together; of those that a sequence is cut
 * for, as many as the one that has most. */
static void count_routed(struct dt_exec_iteration *it, const struct dt_exec_env *env,
                         const struct dt_batch_cut *cut, int m)
{
    const uint32_t *first = it->p->assignment->m[m].mb_first;
    int ep = dt_exec_ep_size(env, m), cp = cut->n > 1 ? cut->n : 1;

    for (int r = 0; ep > 1 && r < env->dp[m]; r++)
        for (uint32_t mb = first[r]; mb < first[r + 1]; mb++) {
            int group = (r * cp + cut->mine) / ep * ep;
            int64_t sum = 0;

            for (int copy = group; copy < group + ep; copy++) {
                int k = copy / cp;
                uint32_t same = first[k] + mb - first[r];

                if (same < first[k + 1])
                    sum += cp > 1 ? it->lim[m][same].gathered / cp : it->lim[m][same].rows;
            }
            it->lim[m][mb].routed = sum;
        }
}

struct dt_batch dt_exec_counts(const struct dt_exec_env *env, const struct dt_exec_iteration *it,
                               int module, uint32_t mb)
{
    const struct dt_batch_limits *l = &it->lim[module][mb];

    return (struct dt_batch){.device = env->dev,
                             .module = &env->o.model->modules[module],
                             .rows = l->rows,
                             .n_seq = l->seqs,
                             .max_len = l->max_len,
                             .keys = l->keys,
                             .keys_step = l->keys_step,
                             .steps = l->steps,
                             .gathered = l->gathered,
                             .routed = l->routed,
                             .n_sample = l->samples};
}

enum dt_status dt_exec_reserve(const struct dt_exec_stages *stages, struct dt_exec_iteration *it,
                               struct dt_error *err)
{
    for (int m = 0; m < stages->env->o.model->n_modules; m++) {
        DT_TRY(count_module(it, stages->env, &stages->ranks->cut[m], m, err));
        count_routed(it, stages->env, &stages->ranks->cut[m], m);
        for (int k = 0; k < stages->env->dp[m] * stages->env->n_v[m]; k++) {
            struct dt_exec_vstage *vs = &stages->vs[m][k];
            const uint32_t *first = &it->p->assignment->m[m].mb_first[vs->replica];
            struct dt_batch_limits max = vs->max;
            bool grown = false;

            for (uint32_t mb = first[0]; vs->stage && mb < first[1]; mb++) {
                const struct dt_batch_limits *need = &it->lim[m][mb];

                grown |= grow_limit(&max.rows, need->rows);
                grown |= grow_limit(&max.seqs, need->seqs);
                grown |= grow_limit(&max.in, need->in);
                grown |= grow_limit(&max.cond, need->cond);
                grown |= grow_limit(&max.keys, need->keys);
                grown |= grow_limit(&max.keys_step, need->keys_step);
                grown |= grow_limit(&max.steps, need->steps);
                grown |= grow_limit(&max.gathered, need->gathered);
                grown |= grow_limit(&max.routed, need->routed);
                grown |= grow_limit(&max.samples, need->samples);
                if (need->gathered > 0) /* else the rows are enough for any document */
                    grown |= grow_limit(&max.max_len, need->max_len);
            }
            if (grown)
                DT_TRY(resize_stage(stages, vs, &max, err));
        }
    }
    return DT_OK;
}

/* ---- buffers ---- */

enum dt_status dt_exec_room(const struct dt_device *dev, struct dt_exec_buffer *b, size_t bytes,
                            struct dt_error *err)
{
    if (bytes <= b->cap && b->p)
        return DT_OK;
    dev->free(dev, b->p);
    b->p = NULL;
    b->cap = 0;
    bytes = bytes > 0 ? bytes : 64;
    DT_TRY(dev->alloc(dev, bytes, err, &b->p));
    b->cap = bytes;
    return DT_OK;
}
