/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * How long each op of a program takes.
 *
 * What the predicted time stands on: times are exact sums over the ops; the shares of a virtual
 * stage are those of its mean microbatch, so that they cost one question and not one per op. */
#include "core/schedule/schedule_times.h"

#include <string.h>

struct times {
    const struct dt_program *p;
    struct dt_sched_times of;
    double *total[DT_MAX_MODULES]; /* [2 * v + backward] */
    int64_t *ns, *alpha_ns, *core_ns;
    bool want_prov;
    struct dt_cost_time prov;
};

static void stands_on(struct times *t, const struct dt_cost_time *x, double k)
{
    if (t->want_prov)
        dt_cost_time_add(&t->prov, x, k);
}

/* ---- compute ---- */

static int64_t compute_ns(struct times *t, uint32_t i)
{
    const struct dt_op *op = &t->p->ops[i];
    const struct dt_plan_module *mp = &t->p->plan->modules[op->module];
    const struct dt_assignment_module *a = &t->p->assignment->m[op->module];
    int v = op->chunk * mp->layout.pp + op->stage, backward = op->kind != DT_OP_FORWARD;
    uint32_t id = t->of.m[op->module].work_id[a->mb_first[op->replica] + op->mb];
    struct dt_cost_stage_ns s = {0};
    double now;

    if (op->parts > 1) { /* buckets of blocks, backwards from the end */
        s = dt_sched_times_part(&t->of, op->module, v, backward, op->part, op->parts, id);
    } else {
        const struct dt_cost_stage_ns *all = dt_sched_times_stage(&t->of, op->module, v);

        if (all)
            s = all[id];
    }
    now = dt_sched_times_of(&t->of, (enum dt_op_kind)op->kind, &s);
    t->total[op->module][2 * v + backward] += now;
    return dt_sched_times_ns(&t->of, i, now);
}

static int64_t step_ns(struct times *t, uint32_t i)
{
    const struct dt_op *op = &t->p->ops[i];
    int64_t ns = dt_sched_times_step(&t->of, i, op->module, op->stage);

    stands_on(t, &t->of.m[op->module].step[op->stage], 1);
    return ns;
}

static int64_t host_ns(struct times *t, uint32_t i)
{
    const struct dt_op *op = &t->p->ops[i];
    int ranks = dt_sched_host_ranks(t->p->plan, t->of.model, t->of.cluster, op->module, op->stage,
                                    DT_SCHED_HOST_COPIES);
    struct dt_cost_time cost;

    dt_cost_host_copy(t->of.cost, (double)op->bytes, ranks, &cost);
    stands_on(t, &cost, 1);
    return dt_sched_times_ns(&t->of, i, cost.ns);
}

/* Shares of the mean microbatch, scaled to the sum over the ops. */
static void stage_provenance(struct times *t, int module)
{
    const struct dt_plan_module *mp = &t->p->plan->modules[module];
    const struct dt_assignment_module *a = &t->p->assignment->m[module];
    struct dt_sched_module_times *m = &t->of.m[module];
    struct dt_work mean = {0};
    int64_t n = 0;

    for (uint32_t i = 0; i < a->mb_first[a->n_replicas]; i++) {
        dt_work_add(&mean, &a->work[i]);
        n += a->work[i].n > 0;
    }
    if (n == 0)
        return;
    mean.n = (mean.n + n - 1) / n;
    mean.tokens = (mean.tokens + n - 1) / n;
    mean.tokens_sq = (mean.tokens_sq + n - 1) / n;
    for (int v = 0; v < mp->layout.pp * mp->layout.vpp; v++) {
        struct dt_cost_stage c;

        dt_cost_stage(t->of.cost, module, mp->split[v], mp->split[v + 1] - mp->split[v],
                      &m->shard[v % mp->layout.pp], &mean, m->trainable,
                      dt_plan_upstream_trained(t->p->plan, t->of.model, module, mp->split[v]), &c);
        dt_cost_time_add(&c.dgrad, &c.wgrad, 1);
        if (c.fwd.ns > 0)
            dt_cost_time_add(&t->prov, &c.fwd, t->total[module][2 * v] / c.fwd.ns);
        if (c.dgrad.ns > 0)
            dt_cost_time_add(&t->prov, &c.dgrad, t->total[module][2 * v + 1] / c.dgrad.ns);
    }
}

/* ---- communication ---- */

static int64_t core_ns(struct times *t, uint32_t i, int64_t ns, double core)
{
    int64_t whole = core > 0 ? dt_sched_times_ns(&t->of, i, core) : 0;

    return whole < ns ? whole : ns;
}

/* What a core does for a message: measured, or else all but the latency. */
static double send_core_ns(struct times *t, uint64_t bytes, int64_t ns, int64_t alpha_ns)
{
    double carried = dt_cost_carry_ns(t->of.cost, DT_KOP_SEND_RECV, 1, (double)bytes);

    return carried < 0 ? (double)(ns - alpha_ns) : carried;
}

static void send_time(struct times *t, uint32_t i)
{
    const struct dt_op *op = &t->p->ops[i];
    const struct dt_lane *a = &t->p->lanes[op->lane];
    const struct dt_lane *b = &t->p->lanes[t->p->ops[op->peer].lane];
    const struct dt_sched_send_cost *s;

    t->ns[i] = 0;
    if (dt_sched_times_there(a, b)) /* arrays begin as zeros */
        return;
    s = dt_sched_times_send(&t->of, i, a, b, op->bytes);
    stands_on(t, &s->t, 1);
    t->ns[i] = s->ns;
    if (t->alpha_ns)
        t->alpha_ns[i] = s->alpha_ns;
    if (t->core_ns)
        t->core_ns[i] = core_ns(t, i, s->ns, send_core_ns(t, op->bytes, s->ns, s->alpha_ns));
}

static void group_time(struct times *t, const struct dt_group *g)
{
    const struct dt_program *p = t->p;
    uint32_t first = p->group_ops[g->first];
    const struct dt_op *op = &p->ops[first];
    struct dt_sched_collective c = {
        .group = g,
        .module = op->module,
        .tied = op->flags & DT_OPF_TIED,
        .bytes = op->bytes,
        .gpus = (int64_t)g->n * dt_sched_sync_ranks(&p->plan->modules[op->module].layout),
    };
    struct dt_cost_time cost;
    int64_t ns, core = 0;

    if (g->kind == DT_OP_GRAD_NORM) {
        c.gpus = 0;
        for (uint32_t k = 0; k < g->n; k++)
            c.gpus += p->lanes[p->ops[p->group_ops[g->first + k]].lane].gpus;
    }
    dt_sched_times_group(&t->of, &c, &cost);
    stands_on(t, &cost, g->n);
    ns = dt_sched_times_ns(&t->of, first, cost.ns);
    if (t->core_ns)
        core = core_ns(t, first, ns, dt_sched_times_core(&t->of, &c, (double)ns));
    for (uint32_t k = 0; k < g->n; k++) {
        t->ns[p->group_ops[g->first + k]] = ns;
        if (t->core_ns)
            t->core_ns[p->group_ops[g->first + k]] = core;
    }
}

static void all_ops(struct times *t)
{
    enum { AHEAD = 64 };
    const struct dt_program *p = t->p;

    for (uint32_t i = 0; i < p->n_ops; i++) {
        /* the other end of a transfer is of another lane, far off */
        if (i + AHEAD < p->n_ops && p->ops[i + AHEAD].kind == DT_OP_SEND &&
            p->ops[i + AHEAD].peer < p->n_ops)
            __builtin_prefetch(&p->ops[p->ops[i + AHEAD].peer].lane);
        switch ((enum dt_op_kind)p->ops[i].kind) {
        case DT_OP_FORWARD:
        case DT_OP_BACKWARD:
        case DT_OP_WEIGHT_GRAD:
            t->ns[i] = compute_ns(t, i);
            break;
        case DT_OP_STEP:
            t->ns[i] = step_ns(t, i);
            break;
        case DT_OP_SEND:
            send_time(t, i);
            break;
        case DT_OP_OFFLOAD:
        case DT_OP_RELOAD:
            t->ns[i] = host_ns(t, i);
            break;
        case DT_OP_RECV:
        case DT_OP_GRAD_SYNC:
        case DT_OP_GRAD_NORM:
        case DT_OP_PARAM_GATHER:
        case DT_OP_FETCH:
        case DT_OP_KIND_N: /* a RECV ends with its SEND, a FETCH is free, collectives follow */
            break;
        }
    }
    for (uint32_t g = 0; g < p->n_groups; g++)
        if (p->groups[g].n > 0)
            group_time(t, &p->groups[g]);
    for (int i = 0; t->want_prov && i < p->plan->n_modules; i++)
        stage_provenance(t, i);
}

/* No timeline of these durations overflows: none is longer than all of them in a row. */
static enum dt_status check(const struct times *t, struct dt_error *err)
{
    const struct dt_program *p = t->p;
    uint64_t sum = 0;

    if (t->of.late != DT_NONE) {
        const struct dt_op *op = &p->ops[t->of.late];

        return dt_error_set(err, DT_ERR_RANGE,
                            "%s of %s, stage %d, would take %.3g s; an iteration longer than 104 "
                            "days is not simulated",
                            dt_op_kind_names[op->kind], t->of.model->modules[op->module].name,
                            op->stage, 1e-9 * t->of.late_ns);
    }
    for (uint32_t i = 0; i < p->n_ops; i++)
        sum += (uint64_t)t->ns[i] >> DT_SCHED_SUM_SHIFT;
    if (sum >> DT_SCHED_SUM_BITS)
        return dt_error_set(err, DT_ERR_RANGE,
                            "all operations of an iteration together would take %.3g s of "
                            "processors' time, which is too much to be simulated",
                            1e-9 * (1 << DT_SCHED_SUM_SHIFT) * (double)sum);
    return DT_OK;
}

static bool init(struct times *t)
{
    if (dt_sched_times_init(&t->of) != 0)
        return false;
    for (int m = 0; m < t->p->plan->n_modules; m++) {
        const struct dt_plan_layout *l = &t->p->plan->modules[m].layout;

        t->total[m] = DT_ARENA_NEW(&t->of.arena, double, 2 * l->pp * l->vpp);
        if (!t->total[m])
            return false;
    }
    return true;
}

static enum dt_status compute(struct times *t, bool want_alpha, struct dt_error *err,
                              struct dt_durations *out)
{
    const struct dt_program *p = t->p;
    enum dt_status st;
    bool ok = init(t);

    t->ns = dt_calloc((size_t)p->n_ops + 1, sizeof(*t->ns));
    t->alpha_ns = want_alpha ? dt_calloc((size_t)p->n_ops + 1, sizeof(*t->alpha_ns)) : NULL;
    t->core_ns = want_alpha && t->of.cluster->cores_per_node > 0
                     ? dt_calloc((size_t)p->n_ops + 1, sizeof(*t->core_ns))
                     : NULL;
    t->of.oom =
        !ok || !t->ns ||
        (want_alpha && (!t->alpha_ns || (t->of.cluster->cores_per_node > 0 && !t->core_ns)));
    if (!t->of.oom)
        all_ops(t);
    st = t->of.oom ? dt_error_nomem(err, "durations of a program") : check(t, err);
    dt_arena_free(&t->of.arena);
    if (st != DT_OK) {
        dt_free(t->ns);
        dt_free(t->alpha_ns);
        dt_free(t->core_ns);
        return st;
    }
    *out = (struct dt_durations){
        .ns = t->ns, .alpha_ns = t->alpha_ns, .core_ns = t->core_ns, .prov = t->prov};
    return DT_OK;
}

static struct times times_of(const struct dt_program *p, const struct dt_model *model,
                             const struct dt_cluster *cluster, struct dt_cost *cost, bool want_prov)
{
    return (struct times){.p = p,
                          .of = {.plan = p->plan,
                                 .model = model,
                                 .cluster = cluster,
                                 .a = p->assignment,
                                 .cost = cost},
                          .want_prov = want_prov};
}

enum dt_status dt_durations_compute(const struct dt_program *p, const struct dt_model *model,
                                    const struct dt_cluster *cluster, struct dt_cost *cost,
                                    bool want_alpha, struct dt_error *err, struct dt_durations *out)
{
    struct times t = times_of(p, model, cluster, cost, true);

    return compute(&t, want_alpha, err, out);
}

enum dt_status dt_sched_durations(const struct dt_sched *s, const struct dt_program *p,
                                  struct dt_error *err, struct dt_durations *out)
{
    struct times t = times_of(p, s->model, s->cluster, s->cost, false);

    return compute(&t, false, err, out);
}

void dt_durations_free(struct dt_durations *d)
{
    dt_free(d->ns);
    dt_free(d->alpha_ns);
    dt_free(d->core_ns);
    memset(d, 0, sizeof(*d));
}
