/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * What a plan has in the memory of hosts.  Ranks of a node share it, whatever modules they are of. */
#include "core/cost/memory_impl.h"

#include "base/mem.h"

#include <math.h>

/* GPUs [first, first + n) of a stage, over all replicas, and what each of them has on its host. */
struct range {
    int first, n;
    double each;
};

static struct range range_of(const struct dt_plan *p, const struct dt_model *m,
                             const struct dt_cluster *c, const struct dt_work *work, int module,
                             int stage)
{
    const struct dt_plan_layout *l = &p->modules[module].layout;
    int64_t n = dt_plan_microbatches(p, m->llm, module);
    struct dt_memory mem;

    dt_memory_stage(p, m, c, module, stage, &work[module], n > 0 ? n : 1, &mem);
    return (struct range){dt_plan_lane_gpu(p, module, 0, stage),
                          dt_plan_layout_lane_gpus(l) * l->dp, mem.host};
}

/* Which stages meet changes only where one begins, so one GPU there stands for those that follow. */
static double most_of_a_gpu(const struct range *r, int n, double room)
{
    double most = 0;

    for (int i = 0; i < n; i++) {
        double sum = 0;

        for (int k = 0; k < n; k++)
            if (r[i].first >= r[k].first && r[i].first < r[k].first + r[k].n)
                sum += r[k].each;
        most = fmax(most, sum > 0 ? sum + room : 0);
    }
    return most;
}

static int overlap(const struct range *r, int first, int n)
{
    int lo = r->first > first ? r->first : first;
    int end = r->first + r->n < first + n ? r->first + r->n : first + n;

    return end > lo ? end - lo : 0;
}

static double most_of_a_node(const struct range *r, int n, int gpus, int per_node, double room)
{
    double most = 0;

    for (int first = 0; first < gpus; first += per_node) {
        double sum = 0;

        for (int k = 0; k < n; k++)
            sum += r[k].each * overlap(&r[k], first, per_node);
        most = fmax(most, sum > 0 ? sum + per_node * room : 0);
    }
    return most;
}

enum dt_status dt_memory_host(const struct dt_plan *p, const struct dt_model *m,
                              const struct dt_cluster *c, const struct dt_work *work,
                              struct dt_error *err, struct dt_memory_host *out)
{
    double room = dt_plan_steps_on_host(p, m) ? DT_MEMORY_HOST_ROOM : 0;
    int n = 0, gpus = 0, stages = 0;
    struct range *r;

    *out = (struct dt_memory_host){0};
    if (dt_cluster_is_cpu(c) || !dt_plan_offloads(p, m))
        return DT_OK;
    for (int i = 0; i < p->n_modules; i++)
        stages += p->modules[i].layout.pp;
    r = dt_malloc(((size_t)stages + 1) * sizeof(*r));
    if (!r)
        return dt_error_nomem(err, "memory of hosts");
    for (int i = 0; i < p->n_modules; i++)
        for (int s = 0; s < p->modules[i].layout.pp; s++) {
            r[n] = range_of(p, m, c, work, i, s);
            gpus = r[n].first + r[n].n > gpus ? r[n].first + r[n].n : gpus;
            out->all_bytes += r[n].each * r[n].n;
            n++;
        }
    out->gpu_bytes = most_of_a_gpu(r, n, room);
    out->node_bytes = most_of_a_node(r, n, gpus, c->gpus_per_node, room);
    dt_free(r);
    return DT_OK;
}
