/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Offload of guests' parameters between phases (core/model/plan_offload.c).
 *
 * OFFLOAD copies them to the host on a queue of its own, beside the forwards that read them, and they are given back behind the
 * last of these.  RELOAD takes memory again, for which buffers of activations that the host's lanes do not need any more go back to
 * the device: the program has few of them in flight there (dt_memory_beside_guests).  Memory is given and taken where ops are
 * issued, in the program's order; the device sees to it that nothing is written while it is in use (dt_device.free).
 *
 * The host keeps what is not trained from the first iteration on; only what steps change is copied again. */
#include "exec/program/execute_impl.h"

enum dt_status dt_exec_host_new(const struct dt_exec_env *env, struct dt_exec_vstage *vs,
                                struct dt_error *err)
{
    if (!dt_plan_offloads_params(&env->o.plan->modules[vs->module]))
        return DT_OK;
    return env->dev->host_alloc(env->dev, dt_stage_away_bytes(vs->stage) + 1, err, &vs->away);
}

void dt_exec_host_free(const struct dt_exec_env *env, struct dt_exec_vstage *vs)
{
    if (vs->away)
        env->dev->host_free(env->dev, vs->away);
    vs->away = NULL;
}

int64_t dt_exec_host_bytes(const struct dt_exec_stages *stages)
{
    const struct dt_exec_env *env = stages->env;
    int64_t bytes = 0;

    for (int m = 0; m < env->o.model->n_modules; m++)
        for (int i = 0; stages->vs[m] && i < env->dp[m] * env->n_v[m]; i++)
            if (stages->vs[m][i].away)
                bytes += (int64_t)dt_stage_away_bytes(stages->vs[m][i].stage);
    return bytes;
}

static enum dt_status bring_back(struct dt_device_queue *q, struct dt_exec_vstage *vs,
                                 struct dt_error *err)
{
    DT_TRY(dt_stage_return(q, vs->stage, vs->away, err));
    dt_optimizer_moved(&vs->opt);
    return DT_OK;
}

static void leave(struct dt_exec_vstage *vs)
{
    if (vs->offloaded && vs->forwards == 0)
        dt_stage_leave(vs->stage);
}

void dt_exec_host_offload(const struct dt_exec_stages *stages, const struct dt_op *op)
{
    struct dt_exec_vstage *vs = dt_exec_op_vs(stages, op);

    dt_stage_copy_away(stages->env->link, vs->stage, vs->away, !vs->away_kept);
    vs->away_kept = vs->offloaded = true;
    leave(vs);
}

void dt_exec_host_forward(struct dt_exec_vstage *vs)
{
    vs->forwards--;
    leave(vs);
}

static bool meet(const struct dt_lane *a, const struct dt_lane *b)
{
    return a->first_gpu < b->first_gpu + b->gpus && b->first_gpu < a->first_gpu + a->gpus;
}

/* What a lane has now may be the most that it comes to. */
static void note_most(const struct dt_exec_stages *stages, const struct dt_lane *l)
{
    int at = l->replica * stages->env->pp[l->module] + l->stage;
    int64_t now = __atomic_load_n(&stages->lane[l->module][at].now_bytes, __ATOMIC_RELAXED);

    if (now > stages->lane_most[l->module][at])
        stages->lane_most[l->module][at] = now;
}

static void trim_lane(const struct dt_exec_stages *stages, const struct dt_lane *l)
{
    const struct dt_exec_env *env = stages->env;

    note_most(stages, l);
    for (int v = l->stage; v < env->n_v[l->module]; v += env->pp[l->module]) {
        struct dt_exec_vstage *vs = dt_exec_vs(stages, l->module, l->replica, v);

        if (vs->stage)
            dt_exec_microbatches_trim(env->dev, vs);
    }
}

enum dt_status dt_exec_host_begin(const struct dt_exec_stages *stages, struct dt_error *err)
{
    const struct dt_exec_env *env = stages->env;

    for (int m = 0; env->link && m < env->o.model->n_modules; m++)
        for (int i = 0; i < env->dp[m] * env->n_v[m]; i++) {
            struct dt_exec_vstage *vs = &stages->vs[m][i];
            struct dt_device_memory_owner *before;
            enum dt_status st;

            vs->offloaded = false;
            vs->forwards = 0;
            if (vs->stage && dt_plan_hosts_offload(env->o.plan, m))
                dt_exec_microbatches_trim(env->dev,
                                          vs); /* what one was made for may fit none now */
            if (!vs->stage || !dt_stage_is_away(vs->stage))
                continue;
            before = dt_exec_for_vs(stages, vs);
            st = bring_back(env->q, vs, err);
            env->dev->memory_for(env->dev, before);
            DT_TRY(st);
        }
    return DT_OK;
}

enum dt_status dt_exec_host_reload(const struct dt_exec_stages *stages, const struct dt_program *p,
                                   const struct dt_op *op, struct dt_error *err)
{
    int host = dt_plan_host(p->plan, op->module);

    for (int l = 0; l < p->n_lanes; l++)
        if (p->lanes[l].module == host && meet(&p->lanes[l], &p->lanes[op->lane]))
            trim_lane(stages, &p->lanes[l]);
    return bring_back(stages->env->link, dt_exec_op_vs(stages, op), err);
}
