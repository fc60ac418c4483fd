/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * The norm of all gradients, and the factor that clips them. */
#include "exec/program/execute_impl.h"

enum dt_status dt_exec_norm_init(struct dt_exec_norm *norm, const struct dt_exec_env *env,
                                 struct dt_error *err)
{
    DT_TRY(env->dev->alloc(env->dev, sizeof(double), err, (void **)&norm->sq));
    DT_TRY(env->dev->alloc(env->dev, sizeof(float), err, (void **)&norm->value));
    DT_TRY(env->dev->alloc(env->dev, sizeof(float), err, (void **)&norm->coef));
    DT_TRY(env->dev->host_alloc(env->dev, sizeof(double), err, (void **)&norm->host_sq));
    return env->dev->host_alloc(env->dev, sizeof(float), err, (void **)&norm->host);
}

void dt_exec_norm_free(struct dt_exec_norm *norm, const struct dt_device *dev)
{
    dev->free(dev, norm->sq);
    dev->free(dev, norm->value);
    dev->free(dev, norm->coef);
    dev->host_free(dev, norm->host_sq);
    dev->host_free(dev, norm->host);
}

/* Squares of all that is trained here and counted nowhere else, then those of the other ranks, then
 * the factor that clips.  Ranks that train nothing take part: all know the same. */
enum dt_status dt_exec_norm_take(struct dt_exec_norm *norm, const struct dt_exec_stages *stages,
                                 struct dt_error *err)
{
    const struct dt_exec_env *env = stages->env;
    const struct dt_exec_ranks *ranks = stages->ranks;

    env->dev->zero(env->q, norm->sq, sizeof(double));
    for (int m = 0; m < env->o.model->n_modules; m++)
        for (int k = 0; k < env->dp[m] * env->n_v[m]; k++) {
            struct dt_exec_vstage *vs = &stages->vs[m][k];
            const struct dt_exec_peers *p = &ranks->peers[m][vs->v % env->pp[m]];

            if (!vs->stage || !dt_stage_grads(vs->stage))
                continue;
            dt_exec_finish_grads(stages, vs, vs->first, vs->last);
            /* replicas hold the same sums, unless each has its piece */
            if (vs->replica == p->leader && (p->me == 0 || vs->opt.sharded))
                dt_optimizer_sum_sq(env->q, &vs->opt, norm->sq);
        }
    if (ranks->training) {
        struct dt_req *req;

        env->dev->copy(env->q, norm->host_sq, norm->sq, sizeof(double), DT_COPY_TO_HOST);
        DT_TRY(env->dev->queue_sync(env->q, err));
        DT_TRY(ranks->t->post_all_reduce(ranks->training, DT_REDUCE_F64, norm->host_sq, 1, NULL,
                                         err, &req));
        DT_TRY(dt_transport_wait(ranks->t, req, env->o.limit_s, "the gradient norm", err));
        env->dev->copy(env->q, norm->sq, norm->host_sq, sizeof(double), DT_COPY_TO_DEVICE);
    }
    env->k->clip_coef(env->q, norm->sq, (float)env->o.optimizer.clip, norm->value, norm->coef);
    env->dev->copy(env->q, norm->host, norm->value, sizeof(float), DT_COPY_TO_HOST);
    norm->known = true;
    return DT_OK;
}
