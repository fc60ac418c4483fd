/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Forwards and backwards from the cost of their blocks, once per distinct microbatch; transfers by size, collectives by
 * group. */
#include "core/schedule/schedule_times.h"

#include "base/hash.h"
#include "base/number.h"

#include <string.h>

enum { SENDS = 4096 }; /* entries of the transfer cache, a power of two */

int64_t dt_sched_times_ns(struct dt_sched_times *t, uint32_t i, double ns)
{
    int64_t whole = 0;

    if (!dt_number_ns(ns, &whole) && t->late == DT_NONE) {
        t->late = i;
        t->late_ns = ns;
    }
    return whole;
}

static int number_works(struct dt_sched_times *t, int module)
{
    const struct dt_assignment_module *a = &t->a->m[module];
    struct dt_sched_module_times *m = &t->m[module];
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

static int init_module(struct dt_sched_times *t, int i)
{
    const struct dt_plan_module *mp = &t->plan->modules[i];
    const struct dt_plan_layout *l = &mp->layout;
    struct dt_sched_module_times *m = &t->m[i];
    size_t v = (size_t)l->pp * l->vpp;

    m->trainable = DT_ARENA_NEW(&t->arena, unsigned char, t->model->modules[i].n_blocks + 1);
    if (!m->trainable || number_works(t, i) != 0)
        return -1;
    dt_plan_trainable(t->plan, t->model, i, m->trainable);
    m->ns = DT_ARENA_NEW(&t->arena, struct dt_cost_stage_ns *, v);
    m->part = DT_ARENA_NEW(&t->arena, struct dt_sched_part_cost, 2 * v * DT_PARTS_MAX);
    m->shard = DT_ARENA_NEW(&t->arena, struct dt_block_shard, l->pp);
    m->step_ns = DT_ARENA_NEW(&t->arena, int64_t, l->pp);
    m->step = DT_ARENA_NEW(&t->arena, struct dt_cost_time, l->pp);
    if (!m->ns || !m->part || !m->shard || !m->step_ns || !m->step)
        return -1;
    for (int s = 0; s < l->pp; s++) {
        m->shard[s] = dt_plan_stage_shard(t->plan, i, s, t->cluster->gpus_per_node);
        m->step_ns[s] = -1;
    }
    return 0;
}

int dt_sched_times_init(struct dt_sched_times *t)
{
    t->late = DT_NONE;
    t->sends = DT_ARENA_NEW(&t->arena, struct dt_sched_send_cost, SENDS);
    if (!t->sends)
        return -1;
    for (int i = 0; i < t->plan->n_modules; i++)
        if (init_module(t, i) != 0)
            return -1;
    return 0;
}

/* ---- compute ---- */

/* Times of blocks [first, first + n) of a stage for all works of the module; NULL: out of memory. */
static struct dt_cost_stage_ns *all_works(struct dt_sched_times *t, int module, int stage,
                                          int first, int n)
{
    struct dt_sched_module_times *m = &t->m[module];
    struct dt_cost_stage_ns *ns =
        t->oom ? NULL : DT_ARENA_NEW(&t->arena, struct dt_cost_stage_ns, m->n_ids);

    if (ns && dt_cost_stages_ns(t->cost, module, first, n, &m->shard[stage], m->work, m->n_ids,
                                m->trainable,
                                dt_plan_upstream_trained(t->plan, t->model, module, first), ns))
        return ns;
    t->oom = true;
    return NULL;
}

/* With collectives of each microbatch every op is cut, else the first or last of a chunk: there the work that comes is
 * nearly always that of the microbatch before. */
struct dt_cost_stage_ns dt_sched_times_part(struct dt_sched_times *t, int module, int v,
                                            bool backward, int part, int parts, uint32_t id)
{
    const uint16_t *split = &t->plan->modules[module].split[v];
    struct dt_sched_module_times *m = &t->m[module];
    struct dt_sched_part_cost *c = &m->part[(2 * v + backward) * DT_PARTS_MAX + part];
    bool each = t->plan->modules[module].zero > (backward ? 1 : 2);
    int first = split[0], n = split[1] - split[0], stage = v % t->plan->modules[module].layout.pp;

    dt_sched_vstage_bucket(backward ? parts - 1 - part : part, parts, &first, &n);
    if (each && (!c->all || c->first != first || c->n != n)) {
        *c = (struct dt_sched_part_cost){.first = first, .n = n};
        c->all = all_works(t, module, stage, first, n);
    }
    if (each)
        return c->all ? c->all[id] : (struct dt_cost_stage_ns){0};
    if (c->id != id + 1 || c->first != first || c->n != n)
        *c = (struct dt_sched_part_cost){
            first, n, id + 1,
            dt_cost_stage_ns(t->cost, module, first, n, &m->shard[stage], &m->work[id],
                             m->trainable,
                             dt_plan_upstream_trained(t->plan, t->model, module, first)),
            NULL};
    return c->ns;
}

/* Those of another virtual stage of identical blocks, trained alike; NULL: none has been asked for. */
static struct dt_cost_stage_ns *same_stage(const struct dt_sched_times *t, int module, int v)
{
    const struct dt_plan_module *mp = &t->plan->modules[module];
    const struct dt_sched_module_times *m = &t->m[module];
    int first = mp->split[v], n = mp->split[v + 1] - first;
    int like = dt_cost_stage_like(t->cost, module, first, n);
    bool upstream = dt_plan_upstream_trained(t->plan, t->model, module, first);
    int pp = mp->layout.pp, ahead = m->shard[v % pp].ahead;

    for (int u = 0; u < pp * mp->layout.vpp; u++) {
        int at = mp->split[u];

        if (m->ns[u] && m->shard[u % pp].ahead == ahead && mp->split[u + 1] - at == n &&
            dt_cost_stage_like(t->cost, module, at, n) == like &&
            memcmp(&m->trainable[at], &m->trainable[first], (size_t)n) == 0 &&
            dt_plan_upstream_trained(t->plan, t->model, module, at) == upstream)
            return m->ns[u];
    }
    return NULL;
}

const struct dt_cost_stage_ns *dt_sched_times_stage(struct dt_sched_times *t, int module, int v)
{
    const uint16_t *split = &t->plan->modules[module].split[v];
    struct dt_sched_module_times *m = &t->m[module];

    if (!m->ns[v])
        m->ns[v] = same_stage(t, module, v);
    if (!m->ns[v])
        m->ns[v] = all_works(t, module, v % t->plan->modules[module].layout.pp, split[0],
                             split[1] - split[0]);
    return m->ns[v];
}

int64_t dt_sched_times_step(struct dt_sched_times *t, uint32_t i, int module, int stage)
{
    const struct dt_plan *p = t->plan;
    const struct dt_plan_layout *l = &p->modules[module].layout;
    struct dt_sched_module_times *m = &t->m[module];

    if (m->step_ns[stage] < 0) {
        double params = 0;

        for (int c = 0; c < l->vpp; c++) {
            const uint16_t *split = &p->modules[module].split[c * l->pp + stage];
            int n = split[1] - split[0];

            /* ZeRO: each of the ranks that hold the same parameters updates its share of them. */
            params += p->modules[module].zero > 0
                          ? dt_sched_trained_share(p, t->model, module, split[0], n)
                          : (double)dt_sched_trained_params(p, t->model, module, split[0], n);
        }
        if (dt_plan_offloads_optimizer(&p->modules[module]))
            dt_cost_optimizer_host(
                t->cost, params,
                dt_sched_host_ranks(p, t->model, t->cluster, module, stage, DT_SCHED_HOST_STEPS),
                p->policy.bf16_grads ? 2 : 4, dt_plan_policy_elem_bytes(&p->policy),
                &m->step[stage]);
        else
            dt_cost_optimizer(t->cost, params, &m->step[stage]);
        m->step_ns[stage] = dt_sched_times_ns(t, i, m->step[stage].ns);
    }
    return m->step_ns[stage];
}

/* ---- communication ---- */

const struct dt_sched_send_cost *dt_sched_times_send(struct dt_sched_times *t, uint32_t i,
                                                     const struct dt_lane *a,
                                                     const struct dt_lane *b, uint64_t bytes)
{
    uint32_t gpn = (uint32_t)t->cluster->gpus_per_node;
    uint32_t width = a->gpus < b->gpus ? a->gpus : b->gpus;
    bool same = a->first_gpu / gpn == b->first_gpu / gpn;
    struct dt_sched_send_cost *s =
        &t->sends[dt_hash_word(dt_hash_word(width * 2u + same, bytes), 0) >> 40 & (SENDS - 1)];

    if (!s->used || s->bytes != bytes || s->width != width || s->same_node != same) {
        double alpha, rate;

        *s = (struct dt_sched_send_cost){
            .bytes = bytes, .width = width, .same_node = same, .used = true};
        dt_cost_p2p(t->cost, same, (int)width, (double)bytes, &s->t, &alpha, &rate);
        s->ns = dt_sched_times_ns(t, i, s->t.ns);
        s->alpha_ns = dt_sched_times_ns(t, i, alpha);
        s->alpha_ns = s->alpha_ns < s->ns ? s->alpha_ns : s->ns;
    }
    return s;
}

/* One collective after another that an op of a group stands for, each among some of the group's GPUs: as many in `ways` sets,
 * each `step` places behind the one before, all at the same time. */
struct part {
    enum dt_kop_family family;
    struct dt_cost_members of;
    int step, ways;
    double bytes;
};
enum { PARTS = 2 };

/* Of ranks in a row every so many-th: as many sets as there are ranks between two of one, the later of which may begin with another
 * place of the node. */
static struct part every(const struct dt_sched_times *t, const struct dt_group *g, int nth, int tp,
                         int64_t ranks, enum dt_kop_family family, double bytes)
{
    int gpn = t->cluster->gpus_per_node, apart = nth * tp;

    return (struct part){
        .family = family,
        .of = {.n = (int)(ranks / nth),
               .per_node = apart < gpn ? gpn / apart : 1,
               .ahead = apart < gpn ? g->ahead / nth : 0,
               .share = apart < gpn ? apart : gpn},
        .step = 1,
        .ways = apart < gpn && g->ahead % nth > 0 ? 2 : 1,
        .bytes = bytes,
    };
}

/* The ranks in a row: in groups of n, or all.  Where some of the replicas stand for a plan, they may be fewer than a group. */
static struct part in_row(const struct dt_group *g, int n, int64_t ranks, enum dt_kop_family family,
                          double bytes)
{
    int64_t groups = n > 0 && ranks > n ? ranks / n : 1;

    return (struct part){
        .family = family,
        .of = {.n = n > 0 ? n : (int)ranks,
               .per_node = g->per_node,
               .ahead = g->ahead,
               .share = g->share},
        .step = n,
        .ways = n % g->per_node == 0 ? 1 : (int)(groups < g->per_node ? groups : g->per_node),
        .bytes = bytes,
    };
}

static int parts_of(const struct dt_sched_times *t, const struct dt_sched_collective *c,
                    struct part *out)
{
    const struct dt_plan_module *m = &t->plan->modules[c->module];
    const struct dt_plan_layout *l = &m->layout;
    const struct dt_group *g = c->group;
    enum dt_kop_family family = DT_KOP_ALL_REDUCE;
    int64_t ranks = c->gpus * (c->tied ? 1 : dt_plan_takes_part(t->plan));
    int n = 0;

    if (g->kind == DT_OP_PARAM_GATHER)
        family = DT_KOP_ALL_GATHER;
    else if (g->kind == DT_OP_GRAD_SYNC && m->zero > 0 && !c->tied)
        family = DT_KOP_REDUCE_SCATTER;
    if (m->zero_group > 0 && !c->tied && g->kind != DT_OP_GRAD_NORM) {
        out[n++] = in_row(g, m->zero_group, ranks, family, (double)c->bytes);
        if (family == DT_KOP_REDUCE_SCATTER) /* each rank's shard is summed over the groups */
            out[n++] = every(t, g, m->zero_group, l->tp, ranks, DT_KOP_ALL_REDUCE,
                             (double)c->bytes / m->zero_group);
        return n;
    }
    out[n++] = in_row(g, 0, ranks, family, (double)(c->bytes - g->expert_bytes));
    if (g->expert_bytes > 0) /* among those that hold the same ones */
        out[n++] = every(t, g, l->ep, l->tp, ranks, family, (double)g->expert_bytes);
    return n;
}

/* That of the set which lies worst. */
static void slowest(struct dt_sched_times *t, const struct part *x, struct dt_cost_time *out)
{
    struct dt_cost_members of = x->of;
    struct dt_cost_time one;

    *out = (struct dt_cost_time){0};
    for (int k = 0; k < x->ways; k++, of.ahead += x->step) {
        dt_cost_collective_of(t->cost, x->family, &of, x->bytes, &one);
        if (one.ns > out->ns)
            *out = one;
    }
}

void dt_sched_times_group(struct dt_sched_times *t, const struct dt_sched_collective *c,
                          struct dt_cost_time *cost)
{
    struct part part[PARTS];
    int n = parts_of(t, c, part);

    *cost = (struct dt_cost_time){0};
    for (int k = 0; k < n; k++) {
        struct dt_cost_time one;

        slowest(t, &part[k], &one);
        dt_cost_time_add(cost, &one, 1);
    }
}

double dt_sched_times_core(struct dt_sched_times *t, const struct dt_sched_collective *c, double ns)
{
    struct part part[PARTS];
    int n = parts_of(t, c, part);
    double carried = 0, alpha = 0;

    for (int k = 0; k < n; k++) {
        const struct part *x = &part[k];
        double one;

        if (x->of.n < 2 || x->bytes <= 0)
            continue;
        one = dt_cost_carry_ns(t->cost, x->family, x->of.n, x->bytes);
        carried = one < 0 || carried < 0 ? -1 : carried + one;
        alpha += dt_cost_collective_alpha_ns(t->cost, x->family, x->of.n);
    }
    return carried < 0 ? ns - alpha : carried;
}
