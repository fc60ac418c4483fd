/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * How long each op takes: forwards and backwards from the cost of their blocks, once per distinct
 * microbatch; transfers by size, collectives by group.
 *
 * What the predicted time stands on: times are exact sums over the ops; the shares of a virtual
 * stage are those of its mean microbatch, so that they cost one question and not one per op. */
#include "base/hash.h"
#include "base/number.h"
#include "core/schedule/schedule_impl.h"

#include <string.h>

enum { SENDS = 4096 }; /* entries of the transfer cache, a power of two */

struct send_cost {
    uint64_t bytes;
    uint32_t width;
    bool same_node, used;
    struct dt_cost_time t;
    int64_t ns, alpha_ns;
};
struct
    part_cost {   /* of one of the parts that an op is cut into: the last work that was asked for */
    int first, n; /* blocks */
    uint32_t id;  /* of the work, + 1; 0: none yet */
    struct dt_cost_stage_ns ns;
};
struct module_times {
    struct dt_block_shard shard;
    unsigned char *trainable;
    uint32_t *work_id; /* [mb]: microbatches of equal work share an id */
    uint32_t n_ids;
    struct dt_work *work;         /* [n_ids] */
    struct dt_cost_stage_ns **ns; /* [v][n_ids]; NULL: not asked yet */
    struct part_cost *part;       /* [v][backward][DT_PARTS_MAX] */
    double *total;                /* [2 * v + backward] */
    int64_t *step_ns;             /* [pp], negative: not asked yet */
    struct dt_cost_time *step;
};
struct times {
    const struct dt_program *p;
    const struct dt_model *model;
    const struct dt_cluster *cluster;
    struct dt_cost *cost;
    struct module_times m[DT_MAX_MODULES];
    struct send_cost *sends;
    bool oom;
    uint32_t late;  /* an op whose time is no time; DT_NONE */
    double late_ns; /* that */
    int64_t *ns, *alpha_ns;
    bool want_prov;
    struct dt_cost_time prov;
    struct dt_arena arena;
};

static void stands_on(struct times *t, const struct dt_cost_time *x, double k)
{
    if (t->want_prov)
        dt_cost_time_add(&t->prov, x, k);
}

/* Of op i.  What is no time gives 0, and an error at the end. */
static int64_t whole_ns(struct times *t, uint32_t i, double ns)
{
    int64_t whole = 0;

    if (!dt_number_ns(ns, &whole) && t->late == DT_NONE) {
        t->late = i;
        t->late_ns = ns;
    }
    return whole;
}

static int number_works(struct times *t, int module)
{
    const struct dt_assignment_module *a = &t->p->assignment->m[module];
    struct module_times *m = &t->m[module];
    uint32_t n = a->mb_first[a->n_replicas], size = 16, *entry;

    while (size < 2 * n)
        size *= 2;
    entry = DT_ARENA_NEW(&t->arena, uint32_t, size);
    m->work_id = DT_ARENA_NEW(&t->arena, uint32_t, n + 1);
    m->work = DT_ARENA_NEW(&t->arena, struct dt_work, n + 1);
    if (!entry || !m->work_id || !m->work)
        return -1;
    for (uint32_t i = 0; i < n; i++) {
        const struct dt_work *w = &a->work[i];
        uint64_t h = dt_hash_word(
            dt_hash_word(dt_hash_word(dt_hash_word(0, (uint64_t)w->n), (uint64_t)w->tokens),
                         (uint64_t)w->tokens_sq),
            (uint64_t)w->tokens_max);
        uint32_t at = (uint32_t)(h >> 16) & (size - 1);

        while (entry[at] != 0 && memcmp(&m->work[entry[at] - 1], w, sizeof(*w)) != 0)
            at = (at + 1) & (size - 1);
        if (entry[at] == 0) {
            m->work[m->n_ids++] = *w;
            entry[at] = m->n_ids;
        }
        m->work_id[i] = entry[at] - 1;
    }
    return 0;
}

static int init_module(struct times *t, int i)
{
    const struct dt_plan_module *mp = &t->p->plan->modules[i];
    const struct dt_plan_layout *l = &mp->layout;
    struct module_times *m = &t->m[i];
    size_t v = (size_t)l->pp * l->vpp;

    m->shard = dt_plan_shard(mp);
    m->trainable = DT_ARENA_NEW(&t->arena, unsigned char, t->model->modules[i].n_blocks + 1);
    if (!m->trainable || number_works(t, i) != 0)
        return -1;
    dt_plan_trainable(t->p->plan, t->model, i, m->trainable);
    m->ns = DT_ARENA_NEW(&t->arena, struct dt_cost_stage_ns *, v);
    m->part = DT_ARENA_NEW(&t->arena, struct part_cost, 2 * v * DT_PARTS_MAX);
    m->total = DT_ARENA_NEW(&t->arena, double, 2 * v);
    m->step_ns = DT_ARENA_NEW(&t->arena, int64_t, l->pp);
    m->step = DT_ARENA_NEW(&t->arena, struct dt_cost_time, l->pp);
    if (!m->ns || !m->part || !m->total || !m->step_ns || !m->step)
        return -1;
    for (int s = 0; s < l->pp; s++)
        m->step_ns[s] = -1;
    return 0;
}

/* ---- compute ---- */

/* Of one part of virtual stage v: nearly always that of the microbatch before. */
static struct dt_cost_stage_ns part_ns(struct times *t, const struct dt_op *op, int v,
                                       bool backward, uint32_t id)
{
    const uint16_t *split = &t->p->plan->modules[op->module].split[v];
    struct module_times *m = &t->m[op->module];
    struct part_cost *c = &m->part[(2 * v + backward) * DT_PARTS_MAX + op->part];
    int first = split[0], n = split[1] - split[0];

    dt_sched_vstage_bucket(backward ? op->parts - 1 - op->part : op->part, op->parts, &first, &n);
    if (c->id != id + 1 || c->first != first || c->n != n)
        *c = (struct part_cost){
            first, n, id + 1,
            dt_cost_stage_ns(t->cost, op->module, first, n, &m->shard, &m->work[id], m->trainable,
                             dt_plan_upstream_trained(t->p->plan, t->model, op->module, first))};
    return c->ns;
}

/* The stage's times for all works of its module: each comes to each stage.  NULL: out of memory. */
static const struct dt_cost_stage_ns *stage_ns(struct times *t, int module, int v)
{
    const uint16_t *split = &t->p->plan->modules[module].split[v];
    struct module_times *m = &t->m[module];
    bool above;

    if (m->ns[v] || t->oom)
        return m->ns[v];
    above = dt_plan_upstream_trained(t->p->plan, t->model, module, split[0]);
    m->ns[v] = DT_ARENA_NEW(&t->arena, struct dt_cost_stage_ns, m->n_ids);
    if (!m->ns[v] || !dt_cost_stages_ns(t->cost, module, split[0], split[1] - split[0], &m->shard,
                                        m->work, m->n_ids, m->trainable, above, m->ns[v])) {
        t->oom = true;
        m->ns[v] = NULL;
    }
    return m->ns[v];
}

static int64_t compute_ns(struct times *t, uint32_t i)
{
    const struct dt_op *op = &t->p->ops[i];
    const struct dt_plan_module *mp = &t->p->plan->modules[op->module];
    const struct dt_assignment_module *a = &t->p->assignment->m[op->module];
    struct module_times *m = &t->m[op->module];
    int v = op->chunk * mp->layout.pp + op->stage, backward = op->kind != DT_OP_FORWARD;
    uint32_t id = m->work_id[a->mb_first[op->replica] + op->mb];
    struct dt_cost_stage_ns s = {0};
    double now;

    if (op->parts > 1) { /* buckets of blocks, backwards from the end */
        s = part_ns(t, op, v, backward, id);
    } else {
        const struct dt_cost_stage_ns *all = stage_ns(t, op->module, v);

        if (all)
            s = all[id];
    }
    now = backward ? s.bwd : s.fwd;
    if (op->kind == DT_OP_WEIGHT_GRAD)
        now = s.later + s.again;
    else if (backward && dt_pipe_of(t->p->plan->policy.schedule)->put_off)
        now = s.bwd - s.later;
    m->total[2 * v + backward] += now;
    return whole_ns(t, i, now);
}

static int64_t step_ns(struct times *t, uint32_t i)
{
    const struct dt_op *op = &t->p->ops[i];
    const struct dt_plan *p = t->p->plan;
    const struct dt_plan_layout *l = &p->modules[op->module].layout;
    struct module_times *m = &t->m[op->module];

    if (m->step_ns[op->stage] < 0) {
        double params = 0;

        for (int c = 0; c < l->vpp; c++) {
            const uint16_t *split = &p->modules[op->module].split[c * l->pp + op->stage];
            int n = split[1] - split[0];

            /* ZeRO: each of the ranks that hold the same parameters updates its share of them. */
            params += p->modules[op->module].zero > 0
                          ? dt_sched_trained_share(p, t->model, op->module, split[0], n)
                          : (double)dt_sched_trained_params(p, t->model, op->module, split[0], n);
        }
        dt_cost_optimizer(t->cost, params, &m->step[op->stage]);
        m->step_ns[op->stage] = whole_ns(t, i, m->step[op->stage].ns);
    }
    stands_on(t, &m->step[op->stage], 1);
    return m->step_ns[op->stage];
}

/* Shares of the mean microbatch, scaled to the sum over the ops. */
static void stage_provenance(struct times *t, int module)
{
    const struct dt_plan_module *mp = &t->p->plan->modules[module];
    const struct dt_assignment_module *a = &t->p->assignment->m[module];
    struct module_times *m = &t->m[module];
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

        dt_cost_stage(t->cost, module, mp->split[v], mp->split[v + 1] - mp->split[v], &m->shard,
                      &mean, m->trainable,
                      dt_plan_upstream_trained(t->p->plan, t->model, module, mp->split[v]), &c);
        dt_cost_time_add(&c.dgrad, &c.wgrad, 1);
        if (c.fwd.ns > 0)
            dt_cost_time_add(&t->prov, &c.fwd, m->total[2 * v] / c.fwd.ns);
        if (c.dgrad.ns > 0)
            dt_cost_time_add(&t->prov, &c.dgrad, m->total[2 * v + 1] / c.dgrad.ns);
    }
}

/* ---- communication ---- */

static void send_time(struct times *t, uint32_t i)
{
    const struct dt_op *op = &t->p->ops[i];
    const struct dt_lane *a = &t->p->lanes[op->lane];
    const struct dt_lane *b = &t->p->lanes[t->p->ops[op->peer].lane];
    uint32_t gpn = (uint32_t)t->cluster->gpus_per_node;
    uint32_t width = a->gpus < b->gpus ? a->gpus : b->gpus;
    bool same = a->first_gpu / gpn == b->first_gpu / gpn;
    bool there = a->first_gpu == b->first_gpu && a->gpus == b->gpus; /* colocated: nothing moves */
    struct send_cost *s =
        &t->sends[dt_hash_word(dt_hash_word(width * 2u + same, op->bytes), 0) >> 40 & (SENDS - 1)];

    if (!s->used || s->bytes != op->bytes || s->width != width || s->same_node != same) {
        double alpha, rate;

        *s =
            (struct send_cost){.bytes = op->bytes, .width = width, .same_node = same, .used = true};
        dt_cost_p2p(t->cost, same, (int)width, (double)op->bytes, &s->t, &alpha, &rate);
        s->ns = whole_ns(t, i, s->t.ns);
        s->alpha_ns = whole_ns(t, i, alpha);
        s->alpha_ns = s->alpha_ns < s->ns ? s->alpha_ns : s->ns;
    }
    if (!there)
        stands_on(t, &s->t, 1);
    t->ns[i] = there ? 0 : s->ns;
    if (t->alpha_ns)
        t->alpha_ns[i] = there ? 0 : s->alpha_ns;
}

/* What a group moves of experts, among the ranks that hold the same ones: tp * ep GPUs apart, as many groups as GPUs
 * between them. */
static void expert_time(struct times *t, const struct dt_group *g, const struct dt_plan_layout *l,
                        enum dt_kop_family family, struct dt_cost_time *sum)
{
    int gpn = t->cluster->gpus_per_node, apart = l->tp * l->ep;
    struct dt_cost_time cost;

    dt_cost_collective(t->cost, family, l->dp * dt_sched_sync_ranks(l) / l->ep,
                       apart < gpn ? gpn / apart : 1, apart < gpn ? apart : gpn,
                       (double)g->expert_bytes, &cost);
    dt_cost_time_add(sum, &cost, 1);
}

static void group_time(struct times *t, const struct dt_group *g)
{
    const struct dt_program *p = t->p;
    uint32_t first = p->group_ops[g->first];
    const struct dt_op *op = &p->ops[first];
    const struct dt_plan_layout *l = &p->plan->modules[op->module].layout;
    int64_t gpus = (int64_t)g->n * dt_sched_sync_ranks(l);
    enum dt_kop_family family = DT_KOP_ALL_REDUCE;
    struct dt_cost_time cost;
    int64_t ns, alpha;

    if (g->kind == DT_OP_PARAM_GATHER)
        family = DT_KOP_ALL_GATHER;
    else if (g->kind == DT_OP_GRAD_SYNC && p->plan->modules[op->module].zero > 0 &&
             !(op->flags & DT_OPF_TIED))
        family = DT_KOP_REDUCE_SCATTER;
    if (g->kind == DT_OP_GRAD_NORM) {
        gpus = 0;
        for (uint32_t k = 0; k < g->n; k++)
            gpus += p->lanes[p->ops[p->group_ops[g->first + k]].lane].gpus;
    }
    dt_cost_collective(t->cost, family, (int)gpus, g->per_node, g->share,
                       (double)(op->bytes - g->expert_bytes), &cost);
    if (g->expert_bytes > 0)
        expert_time(t, g, l, family, &cost);
    stands_on(t, &cost, g->n);
    ns = whole_ns(t, first, cost.ns);
    alpha = t->alpha_ns && t->cluster->cores_per_node > 0
                ? whole_ns(t, first, dt_cost_collective_alpha_ns(t->cost, family, (int)gpus))
                : 0;
    for (uint32_t k = 0; k < g->n; k++) {
        t->ns[p->group_ops[g->first + k]] = ns;
        if (t->alpha_ns)
            t->alpha_ns[p->group_ops[g->first + k]] = alpha < ns ? alpha : ns;
    }
}

static void all_ops(struct times *t)
{
    const struct dt_program *p = t->p;

    for (uint32_t i = 0; i < p->n_ops; i++) {
        /* the other end of a transfer is of another lane, far off */
        if (i + 16 < p->n_ops && p->ops[i + 16].kind == DT_OP_SEND &&
            p->ops[i + 16].peer < p->n_ops)
            __builtin_prefetch(&p->ops[p->ops[i + 16].peer]);
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
    uint64_t sum = 0; /* in 2^20 ns, of which 2^41 are far from the end of 64 bits */

    if (t->late != DT_NONE) {
        const struct dt_op *op = &p->ops[t->late];

        return dt_error_set(err, DT_ERR_RANGE,
                            "%s of %s, stage %d, would take %.3g s; an iteration longer than 104 "
                            "days is not simulated",
                            dt_op_kind_names[op->kind], t->model->modules[op->module].name,
                            op->stage, 1e-9 * t->late_ns);
    }
    for (uint32_t i = 0; i < p->n_ops; i++)
        sum += (uint64_t)t->ns[i] >> 20;
    if (sum >> 41)
        return dt_error_set(err, DT_ERR_RANGE,
                            "all operations of an iteration together would take %.3g s of "
                            "processors' time, which is too much to be simulated",
                            1e-9 * 1048576 * (double)sum);
    return DT_OK;
}

static enum dt_status compute(struct times *t, bool want_alpha, struct dt_error *err,
                              struct dt_durations *out)
{
    const struct dt_program *p = t->p;
    enum dt_status st;
    bool ok = true;

    for (int i = 0; i < p->plan->n_modules && ok; i++)
        ok = init_module(t, i) == 0;
    t->sends = ok ? DT_ARENA_NEW(&t->arena, struct send_cost, SENDS) : NULL;
    t->ns = dt_calloc((size_t)p->n_ops + 1, sizeof(*t->ns));
    t->alpha_ns = want_alpha ? dt_calloc((size_t)p->n_ops + 1, sizeof(*t->alpha_ns)) : NULL;
    t->oom = !t->sends || !t->ns || (want_alpha && !t->alpha_ns);
    if (!t->oom)
        all_ops(t);
    st = t->oom ? dt_error_nomem(err, "durations of a program") : check(t, err);
    dt_arena_free(&t->arena);
    if (st != DT_OK) {
        dt_free(t->ns);
        dt_free(t->alpha_ns);
        return st;
    }
    *out = (struct dt_durations){.ns = t->ns, .alpha_ns = t->alpha_ns, .prov = t->prov};
    return DT_OK;
}

enum dt_status dt_durations_compute(const struct dt_program *p, const struct dt_model *model,
                                    const struct dt_cluster *cluster, struct dt_cost *cost,
                                    bool want_alpha, struct dt_error *err, struct dt_durations *out)
{
    struct times t = {.p = p,
                      .model = model,
                      .cluster = cluster,
                      .cost = cost,
                      .late = DT_NONE,
                      .want_prov = true};

    return compute(&t, want_alpha, err, out);
}

enum dt_status dt_sched_durations(const struct dt_sched *s, const struct dt_program *p,
                                  struct dt_error *err, struct dt_durations *out)
{
    struct times t = {
        .p = p, .model = s->model, .cluster = s->cluster, .cost = s->cost, .late = DT_NONE};

    return compute(&t, false, err, out);
}

void dt_durations_free(struct dt_durations *d)
{
    dt_free(d->ns);
    dt_free(d->alpha_ns);
    memset(d, 0, sizeof(*d));
}
