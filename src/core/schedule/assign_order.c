/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * The order of slots in each broker group: the group's replicas form one pipeline, whose k-th
 * microbatch takes, in every stage, as long as the slowest replica needs for slot k. */
#include "core/schedule/assign_build.h"

#include "base/mem.h"

#include <string.h>

struct path { /* the modules of the longest way through the graph: encoder, LLM, generator */
    int n, module[3];
    int p;                   /* stages in all */
    double *fwd_at, *bwd_at; /* [p] share of its module's time that a stage takes */
};

/* Mean time per sample and replica: which of several parallel encoders (or generators) is on the
 * path. */
static double weight_of(const struct dt_assign_module *m, int batch)
{
    double t = 0;
    for (int i = 0; i < batch; i++)
        t += m->fwd[i] + m->bwd[i];
    return t / m->dp;
}

static int heaviest(const struct dt_assign_job *j, enum dt_module_role role)
{
    int best = -1;
    double most = -1;
    for (int m = 0; m < j->model->n_modules; m++) {
        double w = j->model->modules[m].role == role ? weight_of(&j->m[m], j->batch) : -1;
        if (w > most) {
            most = w;
            best = m;
        }
    }
    return best;
}

/* The work of the average sample of those that have any. */
static struct dt_work mean_work(const struct dt_assign_module *m, int batch)
{
    struct dt_work sum = {0};
    int64_t n = 0;
    for (int i = 0; i < batch; i++) {
        dt_work_add(&sum, &m->work[i]);
        n += m->work[i].n > 0;
    }
    if (n == 0)
        return sum;
    struct dt_work w = {(sum.n + n - 1) / n, sum.tokens / n, sum.tokens_sq / n, sum.tokens_max};
    return w;
}

static struct dt_cost_stage_ns range_time(const struct dt_assign_job *j, int m, int first, int n,
                                          const struct dt_work *w, const unsigned char *trained)
{
    const struct dt_module *mod = &j->model->modules[m];
    struct dt_cost_stage_ns t = {0};
    bool above = dt_plan_upstream_trained(j->plan, j->model, m, first);
    if (j->cost) {
        struct dt_block_shard shard = dt_plan_shard(&j->plan->modules[m]);
        return dt_cost_stage_ns(j->cost, m, first, n, &shard, w, trained, above);
    }
    for (int b = first; b < first + n; b++) {
        double f = dt_block_flops(&mod->blocks[b], w);
        t.fwd += f;
        t.bwd += f * ((above || trained[b]) + trained[b]);
        above = above || trained[b];
    }
    return t;
}

/* Fills fwd_at/bwd_at of module m's pp stages: a stage holds its chunks of every vpp round. */
static enum dt_status stage_shares(struct dt_assign_job *j, int m, double *fwd_at, double *bwd_at)
{
    const struct dt_plan_module *mp = &j->plan->modules[m];
    const struct dt_plan_layout *l = &mp->layout;
    struct dt_work w = mean_work(&j->m[m], j->batch);
    struct dt_cost_stage_ns sum = {0};
    unsigned char *trained =
        dt_arena_alloc(j->scratch, (size_t)j->model->modules[m].n_blocks + 1, 1);
    if (!trained)
        return DT_ERR_NOMEM;
    dt_plan_trainable(j->plan, j->model, m, trained);
    for (int v = 0; v < l->pp * l->vpp; v++) {
        int n = mp->split[v + 1] - mp->split[v];
        struct dt_cost_stage_ns t = range_time(j, m, mp->split[v], n, &w, trained);
        fwd_at[v % l->pp] += t.fwd;
        bwd_at[v % l->pp] += t.bwd;
        sum.fwd += t.fwd;
        sum.bwd += t.bwd;
    }
    for (int s = 0; s < l->pp; s++) {
        fwd_at[s] = sum.fwd > 0 ? fwd_at[s] / sum.fwd : 0;
        bwd_at[s] = sum.bwd > 0 ? bwd_at[s] / sum.bwd : 0;
    }
    return DT_OK;
}

static enum dt_status find_path(struct dt_assign_job *j, struct path *path)
{
    const int on[] = {heaviest(j, DT_ROLE_ENCODER), j->model->llm, heaviest(j, DT_ROLE_GENERATOR)};
    memset(path, 0, sizeof(*path));
    for (int k = 0; k < 3; k++)
        if (on[k] >= 0) {
            path->module[path->n++] = on[k];
            path->p += j->plan->modules[on[k]].layout.pp;
        }
    path->fwd_at = DT_ARENA_NEW(j->scratch, double, path->p);
    path->bwd_at = DT_ARENA_NEW(j->scratch, double, path->p);
    if (!path->fwd_at || !path->bwd_at)
        return DT_ERR_NOMEM;
    for (int k = 0, s = 0; k < path->n; s += j->plan->modules[path->module[k]].layout.pp, k++)
        if (stage_shares(j, path->module[k], path->fwd_at + s, path->bwd_at + s) != DT_OK)
            return DT_ERR_NOMEM;
    return DT_OK;
}

/* Time of the slowest replica of module m for one slot of group g; load[share] is workspace. */
static struct dt_cost_stage_ns slot_time(const struct dt_assign_job *j, int m, int g, int slot,
                                         struct dt_cost_stage_ns *load)
{
    const struct dt_assign_module *am = &j->m[m];
    const int base = slot * j->slot_size + g * j->group_size;
    const int *replica = j->replica + (size_t)m * j->batch;
    struct dt_cost_stage_ns worst = {0};
    if (am->window > 0) { /* items, as even as may be */
        for (int i = base; i < base + j->group_size; i++) {
            worst.fwd += am->fwd[j->at[i]] / am->share;
            worst.bwd += am->bwd[j->at[i]] / am->share;
        }
        return worst;
    }
    if (am->spread) { /* one sample to a replica, which then rests until its turn comes again */
        for (int i = base; i < base + j->group_size; i++) {
            struct dt_cost_stage_ns t = {.fwd = am->fwd[j->at[i]], .bwd = am->bwd[j->at[i]]};
            if (t.fwd + t.bwd > worst.fwd + worst.bwd)
                worst = t;
        }
        double k = (double)j->slot_size / am->dp;
        return (struct dt_cost_stage_ns){.fwd = worst.fwd * k, .bwd = worst.bwd * k};
    }
    memset(load, 0, (size_t)am->share * sizeof(*load));
    for (int i = base; i < base + j->group_size; i++) {
        struct dt_cost_stage_ns *l = &load[replica[i] - g * am->share];
        l->fwd += am->fwd[j->at[i]];
        l->bwd += am->bwd[j->at[i]];
    }
    for (int r = 0; r < am->share; r++)
        if (load[r].fwd + load[r].bwd > worst.fwd + worst.bwd)
            worst = load[r];
    return worst;
}

struct sorter {        /* workspace of dt_assign_order */
    double *fwd, *bwd; /* [p * slots] */
    int *order, *copy;
    struct dt_cost_stage_ns *load;
};

static void fill_chain(const struct dt_assign_job *j, const struct path *path, int g,
                       struct sorter *w)
{
    for (int k = 0, s = 0; k < path->n; k++) {
        int m = path->module[k], pp = j->plan->modules[m].layout.pp;
        for (int slot = 0; slot < j->slots; slot++) {
            struct dt_cost_stage_ns t = slot_time(j, m, g, slot, w->load);
            for (int i = s; i < s + pp; i++) {
                w->fwd[(size_t)i * j->slots + slot] = t.fwd * path->fwd_at[i];
                w->bwd[(size_t)i * j->slots + slot] = t.bwd * path->bwd_at[i];
            }
        }
        s += pp;
    }
}

/* Moves the group's part of every slot to its new place. */
static void permute(const struct dt_assign_job *j, int g, const int *order, int *copy, int *what)
{
    const int size = j->group_size;
    for (int k = 0; k < j->slots; k++)
        memcpy(copy + k * size, what + order[k] * j->slot_size + g * size,
               (size_t)size * sizeof(*copy));
    for (int k = 0; k < j->slots; k++)
        memcpy(what + k * j->slot_size + g * size, copy + k * size, (size_t)size * sizeof(*copy));
}

enum dt_status dt_assign_order(struct dt_assign_job *j, struct dt_error *err)
{
    struct path path;
    int most = 1;
    if (find_path(j, &path) != DT_OK)
        return dt_error_nomem(err, "assignment");
    for (int m = 0; m < j->model->n_modules; m++)
        most = j->m[m].share > most ? j->m[m].share : most;
    struct sorter w = {
        .fwd = DT_ARENA_NEW(j->scratch, double, (size_t)path.p *(size_t)j->slots),
        .bwd = DT_ARENA_NEW(j->scratch, double, (size_t)path.p *(size_t)j->slots),
        .order = DT_ARENA_NEW(j->scratch, int, j->slots),
        .copy = DT_ARENA_NEW(j->scratch, int, j->batch / j->groups),
        .load = DT_ARENA_NEW(j->scratch, struct dt_cost_stage_ns, most),
    };
    if (!w.fwd || !w.bwd || !w.order || !w.copy || !w.load)
        return dt_error_nomem(err, "assignment");
    struct dt_assign_chain chain = {path.p, j->slots, w.fwd, w.bwd};
    for (int g = 0; g < j->groups; g++) {
        double before, after;
        fill_chain(j, &path, g, &w);
        enum dt_status st = dt_assign_inter_order(&chain, w.order, &before, &after);
        if (st == DT_ERR_NOMEM)
            return dt_error_nomem(err, "assignment");
        if (st != DT_OK)
            return dt_error_set(err, st, "assignment: a pipeline of %d stages has no order",
                                path.p);
        permute(j, g, w.order, w.copy, j->at);
        for (int m = 0; m < j->model->n_modules; m++)
            if (!j->m[m].spread && j->m[m].window == 0)
                permute(j, g, w.order, w.copy, j->replica + (size_t)m * j->batch);
    }
    return DT_OK;
}
