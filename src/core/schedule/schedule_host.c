/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Who shares a host's memory bandwidth.  Optimizers step behind the norm of all gradients, so those of a node that step on
 * the host do so at the same time, whatever modules they are of; a GPU that several modules share steps them one after
 * another.  The same goes for copies of guests' parameters, which leave when all guests' forwards begin and come back when
 * the host's backwards drain. */
#include "core/schedule/schedule_impl.h"

static bool steps_on_host(const struct dt_plan *p, const struct dt_model *m, int module, int stage)
{
    const struct dt_plan_module *mp = &p->modules[module];

    for (int v = stage; v < mp->layout.pp * mp->layout.vpp; v += mp->layout.pp)
        if (dt_plan_offloads_optimizer(mp) &&
            dt_sched_trained_params(p, m, module, mp->split[v], mp->split[v + 1] - mp->split[v]) >
                0)
            return true;
    return false;
}

/* GPUs [*first, *end) of a stage, over its replicas. */
static void gpus_of(const struct dt_plan *p, int module, int stage, int *first, int *end)
{
    const struct dt_plan_layout *l = &p->modules[module].layout;

    *first = dt_plan_lane_gpu(p, module, 0, stage);
    *end = *first + dt_plan_layout_lane_gpus(l) * l->dp;
}

static bool uses_host(const struct dt_plan *p, const struct dt_model *m, int module, int stage,
                      enum dt_sched_host_use use)
{
    return use == DT_SCHED_HOST_STEPS ? steps_on_host(p, m, module, stage)
                                      : dt_plan_offloads_params(&p->modules[module]);
}

static bool gpu_uses(const struct dt_plan *p, const struct dt_model *m, int gpu,
                     enum dt_sched_host_use use)
{
    for (int i = 0; i < p->n_modules; i++)
        for (int s = 0, first, end; s < p->modules[i].layout.pp; s++) {
            gpus_of(p, i, s, &first, &end);
            if (gpu >= first && gpu < end && uses_host(p, m, i, s, use))
                return true;
        }
    return false;
}

static int of_node(const struct dt_plan *p, const struct dt_model *m, int node, int per_node,
                   enum dt_sched_host_use use)
{
    int n = 0;

    for (int k = 0; k < per_node; k++)
        n += gpu_uses(p, m, node * per_node + k, use);
    return n;
}

/* A node between the first and the last one is full of the stage's own GPUs.  A share of a plan's replicas lies on few GPUs: the
 * others are beside them in the plan. */
int dt_sched_host_ranks(const struct dt_plan *p, const struct dt_model *m,
                        const struct dt_cluster *c, int module, int stage,
                        enum dt_sched_host_use use)
{
    int per_node = c->gpus_per_node, first, end, a, b;

    gpus_of(p, module, stage, &first, &end);
    if (end / per_node > (first + per_node - 1) / per_node)
        return per_node;
    a = of_node(p, m, first / per_node, per_node, use);
    b = of_node(p, m, (end - 1) / per_node, per_node, use);
    a = a > b ? a : b;
    a *= dt_plan_stands_for(p);
    return a < per_node ? a : per_node;
}

/* Of the stage of a module that has most. */
static double step_s(const struct dt_plan *p, const struct dt_model *m, int module, int ranks,
                     struct dt_cost *cost)
{
    const struct dt_plan_module *mp = &p->modules[module];
    double most = 0;

    for (int s = 0; s < mp->layout.pp; s++) {
        struct dt_cost_time t;
        double params = 0;

        for (int v = s; v < mp->layout.pp * mp->layout.vpp; v += mp->layout.pp) {
            int n = mp->split[v + 1] - mp->split[v];

            params += mp->zero > 0 ? dt_sched_trained_share(p, m, module, mp->split[v], n)
                                   : (double)dt_sched_trained_params(p, m, module, mp->split[v], n);
        }
        dt_cost_optimizer_host(cost, params, ranks, p->policy.bf16_grads ? 2 : 4,
                               dt_plan_policy_elem_bytes(&p->policy), &t);
        most = t.ns > most ? t.ns : most;
    }
    return most / 1e9;
}

double dt_sched_host_step_s(const struct dt_plan *p, const struct dt_model *m,
                            const struct dt_cluster *c, struct dt_cost *cost)
{
    int gpus = dt_plan_gpus(p), ranks = gpus < c->gpus_per_node ? gpus : c->gpus_per_node;
    double of[DT_MAX_MODULES] = {0}, most = 0;

    for (int i = 0; i < p->n_modules; i++) {
        double *sum = &of[p->colocated ? 0 : dt_plan_host(p, i)];

        if (dt_plan_offloads_optimizer(&p->modules[i]))
            *sum += step_s(p, m, i, ranks, cost);
        most = *sum > most ? *sum : most;
    }
    return most;
}
