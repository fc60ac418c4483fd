/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * What keeps the cost of ranking down: a bound that tells which programs need not be built at all,
 * and a share of the replicas that stands for all of them where a program would be long.
 *
 * The bound: what the timeline of a plan cannot be shorter than, from block times of the mean
 * sample.
 *
 *   every module    its slowest stage does all slots of a mean replica, one after the other; images of a window together, which
 *                   take less than one sample's at a time
 *   LLM, stage s    before its first forward and after its last backward the stages above it work
 *   generator       before and after, one microbatch passes the whole LLM
 *   ZeRO 2 and 3    collectives of all microbatches follow each other on a lane
 *   LLM, 1F1B       stage 0 keeps w microbatches in flight; each comes back only after all stages,
 *                   all transfers between them, there and back, and the generator behind them */
#include "base/number.h"
#include "core/orchestrate/orchestrate_internal.h"
#include "core/schedule/schedule.h"

#include <math.h>
#include <string.h>

const struct dt_orch_times *dt_orch_plan_times(struct dt_orch_table *t, const struct dt_plan *p,
                                               int m)
{
    int lane = dt_orch_space_lane(t, m, &p->modules[m].layout);
    int recompute = dt_orch_space_recompute(t, m, p->modules[m].recompute);
    int microbatch = m == t->in->model->llm ? dt_orch_space_microbatch(t, p->policy.microbatch) : 0;

    if (lane < 0 || recompute < 0 || microbatch < 0)
        return NULL;
    return dt_orch_times_of(t, m, lane, recompute, microbatch,
                            dt_pipe_of(p->policy.schedule)->put_off != NULL);
}

static double stage_s(const struct dt_orch_times *c, const struct dt_plan_module *mp, int stage)
{
    const struct dt_plan_layout *l = &mp->layout;
    double sum = 0;

    for (int v = stage; v < l->pp * l->vpp; v += l->pp)
        for (int b = mp->split[v]; b < mp->split[v + 1]; b++)
            sum += c->block_s[b];
    return sum;
}

/* Activations of one microbatch from stage 0 to the last and their gradients back. */
static double round_trip_s(const struct dt_orch_table *t, const struct dt_plan *p, int m)
{
    const struct dt_plan_layout *l = &p->modules[m].layout;
    const struct dt_module *mod = &t->in->model->modules[m];
    int gpn = t->in->cluster->gpus_per_node, width = 0;
    double bytes, sum = 0;

    for (int b = 0; b < mod->n_blocks; b++)
        if (mod->blocks[b].kind == DT_BLOCK_TRANSFORMER)
            width = mod->blocks[b].hidden;
    bytes = 2 * t->work[m].tokens * p->policy.microbatch * width;
    for (int s = 0; s + 1 < l->pp && bytes > 0; s++) {
        bool same = dt_plan_lane_gpu(p, m, 0, s) / gpn == dt_plan_lane_gpu(p, m, 0, s + 1) / gpn;
        struct dt_cost_time one;
        double alpha, rate;

        dt_cost_p2p(t->in->cost, same, dt_plan_layout_lane_gpus(l), bytes, &one, &alpha, &rate);
        sum += 2e-9 * one.ns;
    }
    return sum;
}

/* What the gradients of the LLM's outputs wait for: the generator that takes longest over the mean
 * microbatch. */
static double beyond_s(struct dt_orch_table *t, const struct dt_plan *p, double slot)
{
    double most = 0;

    for (int m = 0; m < p->n_modules; m++) {
        const struct dt_plan_layout *l = &p->modules[m].layout;
        const struct dt_orch_times *c;

        if (t->in->model->modules[m].role != DT_ROLE_GENERATOR || l->dp > slot)
            continue;
        c = dt_orch_plan_times(t, p, m);
        most = fmax(most, c ? fmin(1, t->work[m].n) * slot / l->dp * c->sample_s : 0);
    }
    return most;
}

/* Stages above work before the first forward of a stage and after its last backward, but not where chunks come
 * back, nor on what a split backward puts off. */
static double llm_least_s(struct dt_orch_table *t, const struct dt_plan *p, int m,
                          const struct dt_orch_times *c, double slot, double slots)
{
    const struct dt_plan_layout *l = &p->modules[m].layout;
    double above = 0, least = 0, all = 0, now = 1 - c->later_s / fmax(c->sample_s, 1e-300);

    for (int s = 0; s < l->pp; s++) {
        double x = p->policy.microbatch * stage_s(c, &p->modules[m], s);

        least = fmax(least, above + slots * x);
        above += l->vpp == 1 && c->later_s <= 0 ? x : 0;
        all += x;
    }
    least = fmax(least, all * fmax(0, now));
    if (dt_pipe_of(p->policy.schedule)->in_step && l->vpp == 1 &&
        p->policy.warmup == DT_WARMUP_1F1B && /* more may be in flight than is known yet */
        dt_plan_upstream_trained(p, t->in->model, m, p->modules[m].split[1])) {
        int w = dt_memory_in_flight(p, t->in->model, m, 0, (int64_t)slots);

        least = fmax(least, (all + round_trip_s(t, p, m) + beyond_s(t, p, slot)) *
                                (1 + floor((slots - 1) / w)));
    }
    return least;
}

/* What the samples of a window take a replica in one microbatch, to what they take one by one: kernels of few rows wait for
 * parameters that those of many read but once. */
static double together(struct dt_orch_table *t, const struct dt_plan *p, int m)
{
    const struct dt_module *mod = &t->in->model->modules[m];
    const struct dt_block_shard shard = dt_plan_shard(&p->modules[m]);
    double k = (double)(dt_plan_window(p, t->in->model->llm, m) *
                        dt_plan_slot_samples(p, t->in->model->llm)) /
               p->modules[m].layout.dp;
    struct dt_orch_block_timer one, all;
    double apart_s = 0, all_s = 0;

    if (k <= 1)
        return 1;
    dt_orch_block_timer_init(&one, t->in, p, m, &shard, &t->work[m]);
    all = one;
    all.k = k;
    dt_orch_mean_work(&t->work[m], k, &all.work);
    for (int b = 0; b < mod->n_blocks; b++) {
        if (b > 1 && memcmp(&mod->blocks[b], &mod->blocks[b - 1], sizeof(*mod->blocks)) == 0)
            continue; /* stacks repeat one block */
        apart_s += dt_orch_block_timer_s(&one, b, NULL);
        all_s += dt_orch_block_timer_s(&all, b, NULL);
    }
    return apart_s > 0 ? fmin(1, all_s / apart_s) : 1;
}

double dt_orch_plan_least_s(struct dt_orch_table *t, const struct dt_plan *p)
{
    const int llm = t->in->model->llm;
    double slot = (double)dt_plan_slot_samples(p, llm), slots = (double)dt_plan_slots(p, llm);
    double least = 0;

    for (int m = 0; m < p->n_modules; m++) {
        const struct dt_plan_layout *l = &p->modules[m].layout;
        const struct dt_orch_times *c = dt_orch_plan_times(t, p, m);
        double slowest = 0, around = 0;

        if (!c)
            return 0;
        if (l->dp <= slot) /* else not every replica has a microbatch in every slot */
            least = fmax(least, dt_sched_collectives_s(p, t->in->model, t->in->cluster, t->in->cost,
                                                       m, (int64_t)slots));
        if (m == llm) {
            least = fmax(least, llm_least_s(t, p, m, c, slot, slots));
            continue;
        }
        for (int s = 0; s < l->pp; s++)
            slowest = fmax(slowest, stage_s(c, &p->modules[m], s));
        if (t->in->model->modules[m].role == DT_ROLE_GENERATOR) {
            const struct dt_orch_times *lc = dt_orch_plan_times(t, p, llm);

            around = lc ? p->policy.microbatch * (lc->sample_s - lc->later_s) : 0;
        }
        least = fmax(least, around + slots * slot / l->dp * slowest * together(t, p, m));
    }
    return least;
}

/* ---- a share of the replicas ---- */

double dt_orch_plan_ops(const struct dt_plan *p, int llm)
{
    double slots = (double)dt_plan_slots(p, llm), ops = 0;

    for (int m = 0; m < p->n_modules; m++) {
        const struct dt_plan_layout *l = &p->modules[m].layout;
        double stages = (double)l->pp * l->vpp;

        /* forward and backward of every virtual stage; SEND and RECV between them and, in both
         * directions, between modules */
        ops += slots * l->dp * (2 * stages + 4 * (stages - 1) + (m == llm ? 0 : 5));
    }
    return ops;
}

bool dt_orch_plan_share(const struct dt_plan *p, int llm, double ops_max, struct dt_plan *out)
{
    double ops = dt_orch_plan_ops(p, llm);
    int groups = 0, keep = 1;

    if (ops <= ops_max)
        return false;
    for (int m = 0; m < p->n_modules; m++)
        groups = dt_number_gcd(p->modules[m].layout.dp, groups);
    for (int k = 1; k <= groups; k++)
        if (groups % k == 0 && ops * k / groups <= ops_max)
            keep = k;
    if (keep == groups)
        return false;
    *out = *p;
    for (int m = 0; m < p->n_modules; m++)
        out->modules[m].layout.dp = p->modules[m].layout.dp / groups * keep;
    out->policy.global_batch = p->policy.global_batch / groups * keep;
    out->stands_for = dt_plan_stands_for(p) * (groups / keep);
    return true;
}
