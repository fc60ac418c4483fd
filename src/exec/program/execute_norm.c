/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * The norm of all gradients, and the factor that clips them.  Both are made on the device: the host reads the
 * norm with the losses, before the step.
 *
 * Of several ranks, each adds up the squares of what it counts, and the communication thread has these summed
 * over all of them.  Ranks that train nothing take part, since all must know the same. */
#include "exec/program/execute_impl.h"

enum dt_status dt_exec_norm_init(struct dt_exec_norm *norm, const struct dt_exec_env *env,
                                 struct dt_error *err)
{
    DT_TRY(env->dev->alloc(env->dev, sizeof(double), err, (void **)&norm->sq));
    DT_TRY(env->dev->alloc(env->dev, sizeof(float), err, (void **)&norm->value));
    DT_TRY(env->dev->alloc(env->dev, sizeof(float), err, (void **)&norm->coef));
    return env->dev->host_alloc(env->dev, 2 * sizeof(float), err, (void **)&norm->host);
}

void dt_exec_norm_free(struct dt_exec_norm *norm, const struct dt_device *dev)
{
    dev->free(dev, norm->sq);
    dev->free(dev, norm->value);
    dev->free(dev, norm->coef);
    dev->host_free(dev, norm->host);
}

/* Squares of all that is trained here and counted nowhere else. */
static void squares(struct dt_exec_norm *norm, const struct dt_exec_stages *stages,
                    struct dt_device_queue *q)
{
    const struct dt_exec_env *env = stages->env;

    env->dev->zero(q, norm->sq, sizeof(double));
    for (int m = 0; m < env->o.model->n_modules; m++)
        for (int k = 0; k < env->dp[m] * env->n_v[m]; k++) {
            const struct dt_exec_vstage *vs = &stages->vs[m][k];
            const struct dt_exec_peers *p = &stages->ranks->peers[m][vs->v % env->pp[m]];

            /* replicas hold the same sums, unless each has its piece */
            if (vs->stage && dt_stage_grads(vs->stage) && vs->replica == p->leader &&
                (p->me == 0 || vs->opt.sharded))
                dt_optimizer_sum_sq(q, &vs->opt, norm->sq);
        }
}

/* The squares are there: the factor that clips, and the norm to the host. */
static void finish(struct dt_exec_norm *norm, const struct dt_exec_env *env,
                   struct dt_device_queue *q)
{
    env->k->clip_coef(q, norm->sq, (float)env->o.optimizer.clip, norm->value, norm->coef);
    env->dev->copy(q, norm->host, norm->value, sizeof(float), DT_COPY_TO_HOST);
    if (env->offloads)
        env->dev->copy(q, norm->host + 1, norm->coef, sizeof(float), DT_COPY_TO_HOST);
    norm->known = true;
}

void dt_exec_norm_alone(struct dt_exec_norm *norm, const struct dt_exec_stages *stages)
{
    squares(norm, stages, stages->env->q);
    finish(norm, stages->env, stages->env->q);
}

static enum dt_status post(struct dt_exec_norm *norm, const struct dt_exec_stages *stages,
                           struct dt_device_queue *q, struct dt_error *err, struct dt_req **req)
{
    const struct dt_exec_ranks *ranks = stages->ranks;

    squares(norm, stages, q);
    return ranks->data->post_all_reduce(ranks->training, DT_REDUCE_F64, norm->sq, 1, q, err, req);
}

enum dt_status dt_exec_norm_post(struct dt_exec *x, uint32_t i, struct dt_error *err)
{
    struct dt_req *req;

    DT_TRY(post(&x->norm, &x->stages, x->comm.queue_of[i], err, &req));
    return dt_exec_request_add(&x->comm, i, x->ranks.data, req, NULL, err);
}

void dt_exec_norm_complete(struct dt_exec *x, uint32_t i)
{
    finish(&x->norm, &x->env, dt_exec_queue_of_lands(x, i));
}

enum dt_status dt_exec_norm_join(struct dt_exec *x, struct dt_error *err)
{
    bool on_queue = x->ranks.data->on_queue;
    struct dt_req *req;

    DT_TRY(post(&x->norm, &x->stages, x->env.q, err, on_queue ? NULL : &req));
    if (!on_queue)
        DT_TRY(dt_transport_wait(x->ranks.data, req, x->env.o.limit_s, "the gradient norm", err));
    finish(&x->norm, &x->env, x->env.q);
    return DT_OK;
}
