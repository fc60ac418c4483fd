/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Who shares a host's memory bandwidth.  Optimizers step behind the norm of all gradients, so those of a node that step on
 * the host do so at the same time, whatever modules they are of; a GPU that several modules share steps them one after
 * another. */
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

static bool gpu_steps(const struct dt_plan *p, const struct dt_model *m, int gpu)
{
    for (int i = 0; i < p->n_modules; i++)
        for (int s = 0, first, end; s < p->modules[i].layout.pp; s++) {
            gpus_of(p, i, s, &first, &end);
            if (gpu >= first && gpu < end && steps_on_host(p, m, i, s))
                return true;
        }
    return false;
}

static int of_node(const struct dt_plan *p, const struct dt_model *m, int node, int per_node)
{
    int n = 0;

    for (int k = 0; k < per_node; k++)
        n += gpu_steps(p, m, node * per_node + k);
    return n;
}

/* A node between the first and the last one is full of the stage's own GPUs.  A share of a plan's replicas lies on few GPUs: the
 * others are beside them in the plan. */
int dt_sched_host_ranks(const struct dt_plan *p, const struct dt_model *m,
                        const struct dt_cluster *c, int module, int stage)
{
    int per_node = c->gpus_per_node, first, end, a, b;

    gpus_of(p, module, stage, &first, &end);
    if (end / per_node > (first + per_node - 1) / per_node)
        return per_node;
    a = of_node(p, m, first / per_node, per_node);
    b = of_node(p, m, (end - 1) / per_node, per_node);
    a = a > b ? a : b;
    a *= dt_plan_stands_for(p);
    return a < per_node ? a : per_node;
}
