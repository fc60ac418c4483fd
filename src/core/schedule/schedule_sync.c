/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Collectives of a program: gradient syncs and parameter gathers of each virtual stage over its
 * data-parallel group, the shared embedding, the gradient norm.
 *
 * A group has one member op per lane; the lanes of a stage hold dp * cp * ip copies of its
 * parameters.  A stage whose collectives overlap with compute is cut into buckets of consecutive
 * blocks; a bucket without trained parameters has no sync and no gather.  Experts (ep > 1) have fewer
 * copies: dp * cp / ep.  They travel behind the dense parameters of their bucket, in the same op, for
 * all lanes of the stage have met there; experts without another copy do not travel.
 *
 *   ZeRO   gradients                                       parameters
 *    0     all-reduced once, fp32                          -
 *    1     reduce-scattered once                           those trained all-gathered once, bf16
 *    1     with zero_group: reduce-scattered in each       the same in each group
 *          group, then all-reduced over groups
 *    2     reduce-scattered after each backward            the same
 *    3     the same                                        all of them all-gathered before each forward and backward
 *
 * (Rajbhandari et al., "ZeRO: Memory Optimizations Toward Training Trillion Parameter Models", arXiv 1910.02054,
 * section 5: what is partitioned; section 7: volumes (numbers of sections recalled).  Reduction after each backward,
 * and gathering for forward and backward: PyTorch's FullyShardedDataParallel, strategy FULL_SHARD.)  With 2 and 3 every
 * backward, with 3 every forward is cut into buckets whatever overlaps, since no more than one or two of them are
 * whole at a time. */
#include "core/schedule/schedule_link.h"

/* Parameters of a block's experts that one GPU of a lane holds; of them those that are no matrices. */
static double experts_per_gpu(const struct dt_block *b, const struct dt_plan_layout *l,
                              bool vectors)
{
    struct dt_block_param_counts n = dt_block_expert_count(b);

    return (double)(vectors ? n.vectors : n.matrices + n.vectors) / (l->tp * l->ep);
}

/* The same of all its parameters but those. */
static double dense_per_gpu(const struct dt_block *b, const struct dt_plan_layout *l, bool vectors)
{
    struct dt_block_param_counts n = dt_block_param_count(b), x = dt_block_expert_count(b);
    struct dt_block_param_counts w = dt_block_whole_count(b);
    int64_t whole = w.vectors + (vectors ? 0 : w.matrices);
    int64_t dealt = n.vectors - x.vectors + (vectors ? 0 : n.matrices - x.matrices) - whole;

    /* A head that shares the table of the first stage keeps its own copy when it is on another one.
     */
    if (b->kind == DT_BLOCK_LM_HEAD && b->tied && l->pp > 1 && !vectors)
        dealt += (int64_t)b->vocab * b->hidden;
    return (double)whole + (double)dealt / l->tp;
}

enum which { TRAINED, ALL };                /* of the blocks */
enum held { HELD, SHARED, SHARED_EXPERTS }; /* on a GPU; of that what others hold too */

static uint64_t params(const struct dt_plan *p, const struct dt_model *m, int module, int first,
                       int n, enum which which, enum held held, bool vectors)
{
    const struct dt_plan_layout *l = &p->modules[module].layout;
    bool experts = held == HELD || dt_plan_layout_copies(l) > l->ep;
    double sum = 0;

    for (int i = first; i < first + n; i++) {
        const struct dt_block *b = &m->modules[module].blocks[i];

        if (which == TRAINED && !dt_plan_trained(p, m, module, i))
            continue;
        sum += held == SHARED_EXPERTS ? 0 : dense_per_gpu(b, l, vectors);
        sum += experts ? experts_per_gpu(b, l, vectors) : 0;
    }
    return (uint64_t)(sum + 0.5);
}

uint64_t dt_sched_trained_params(const struct dt_plan *p, const struct dt_model *m, int module,
                                 int first, int n)
{
    return params(p, m, module, first, n, TRAINED, HELD, false);
}

double dt_sched_trained_share(const struct dt_plan *p, const struct dt_model *m, int module,
                              int first, int n)
{
    const struct dt_plan_module *mp = &p->modules[module];
    const struct dt_plan_layout *l = &mp->layout;
    double shards = (double)dt_plan_shards(mp), sum = 0;

    if (mp->zero > 0 && mp->zero_group == 0)
        shards *= dt_plan_stands_for(p);
    for (int i = first; i < first + n; i++) {
        const struct dt_block *b = &m->modules[module].blocks[i];

        if (dt_plan_trained(p, m, module, i))
            sum +=
                dense_per_gpu(b, l, false) / shards + experts_per_gpu(b, l, false) * l->ep / shards;
    }
    return sum;
}

uint64_t dt_sched_link_bytes(const struct dt_sched *s, const struct dt_sched_module *m, int stage,
                             bool all)
{
    const struct dt_plan_policy *y = &s->plan->policy;
    const struct dt_sched_vstage *v = &m->v[stage]; /* the only one of its lane */
    enum which which = all ? ALL : TRAINED;
    uint64_t bytes = (uint64_t)dt_plan_policy_elem_bytes(y) *
                     params(s->plan, s->model, m->index, v->first, v->n, which, HELD, false);

    if (y->fp32 || !y->exact_vectors)
        return bytes;
    return bytes + 2 * params(s->plan, s->model, m->index, v->first, v->n, which, HELD, true);
}

static int parts_of(const struct dt_sched_vstage *v, bool overlap)
{
    return !overlap ? 1 : v->n < DT_PARTS_MAX ? v->n : DT_PARTS_MAX;
}

/* fp32 gradients (2 bytes in fp16 training). */
static uint64_t sync_bytes(const struct dt_sched *s, const struct dt_sched_module *m,
                           const struct dt_sched_vstage *v, int bucket, enum held held)
{
    int first = v->first, n = v->n;

    dt_sched_vstage_bucket(bucket, v->b_parts, &first, &n);
    return dt_plan_policy_grad_bytes(&s->plan->policy) *
           params(s->plan, s->model, m->index, first, n, TRAINED, held, false);
}

/* What a gather of parameters brings: all of them in the type of the activations, or (see
 * struct dt_plan_policy) vectors in fp32. */
static uint64_t gather_bytes(const struct dt_sched *s, const struct dt_sched_module *m,
                             const struct dt_sched_vstage *v, int bucket, enum held held)
{
    const struct dt_plan_policy *y = &s->plan->policy;
    enum which which = v->f_each ? ALL : TRAINED;
    int first = v->first, n = v->n;
    uint64_t bytes;

    dt_sched_vstage_bucket(bucket, v->f_parts, &first, &n);
    bytes = (uint64_t)dt_plan_policy_elem_bytes(y) *
            params(s->plan, s->model, m->index, first, n, which, held, false);
    if (y->fp32 || !y->exact_vectors)
        return bytes;
    return bytes + 2 * params(s->plan, s->model, m->index, first, n, which, held, true);
}

/* Groups of the buckets that have bytes, for as many uses; returns how many buckets those are. */
static uint32_t number_groups(struct dt_sched *s, const uint64_t *bytes, int buckets, uint32_t uses,
                              uint32_t *group)
{
    uint32_t n = 0;

    for (int k = 0; k < buckets; k++)
        group[k] = bytes[k] > 0 ? s->n_groups + n++ : DT_NONE;
    s->n_groups += n * uses;
    return n;
}

/* Which collectives the virtual stage has, and whether each microbatch does. */
static void cut_stage(const struct dt_sched *s, const struct dt_sched_module *m,
                      struct dt_sched_vstage *v, bool *sync, bool *gather)
{
    const struct dt_plan_policy *y = &s->plan->policy;
    bool shared = dt_plan_layout_copies(m->layout) > 1;
    bool trains = dt_sched_trained_params(s->plan, s->model, m->index, v->first, v->n) > 0;
    int zero = s->plan->modules[m->index].zero;

    *sync = shared && trains;
    v->f_each = shared && zero > 2 &&
                params(s->plan, s->model, m->index, v->first, v->n, ALL, SHARED, false) > 0;
    v->b_each = v->backward && (v->f_each || (*sync && zero > 1));
    *gather = v->f_each || (*sync && dt_plan_shards(&s->plan->modules[m->index]) > 1);
    v->b_parts = (uint8_t)parts_of(v, v->b_each || (*sync && y->overlap_grad));
    v->f_parts = (uint8_t)parts_of(v, v->f_each || (*gather && y->overlap_param));
}

static void module_groups(struct dt_sched *s, struct dt_sched_module *m)
{
    uint32_t n = m->mb_first[1] - m->mb_first[0];

    for (int i = 0; i < m->n_v; i++) {
        struct dt_sched_vstage *v = &m->v[i];
        bool sync, gather;

        cut_stage(s, m, v, &sync, &gather);
        if (dt_sched_trained_params(s->plan, s->model, m->index, v->first, v->n) > 0) {
            m->lane_trains[i % m->pp] = true;
            m->trains = true;
        }
        for (int k = 0; k < DT_PARTS_MAX; k++)
            v->sync_group[k] = v->gather_group[k] = DT_NONE;
        for (int k = 0; sync && k < v->b_parts; k++)
            v->sync_bytes[k] = sync_bytes(s, m, v, k, SHARED);
        for (int k = 0; gather && k < v->f_parts; k++)
            v->gather_bytes[k] = gather_bytes(s, m, v, k, SHARED);
        v->sync_stride =
            number_groups(s, v->sync_bytes, v->b_parts, v->b_each ? n : 1, v->sync_group);
        v->gather_stride = number_groups(s, v->gather_bytes, v->f_parts,
                                         v->f_each ? dt_sched_uses(v, n) : 1, v->gather_group);
    }
}

/* The first and last stage of a GPT share one table: their gradients are summed over the two lanes.
 */
static bool ties_across_stages(const struct dt_sched *s)
{
    const struct dt_sched_module *m = &s->m[s->model->llm];
    const struct dt_module *mod = m->mod;
    const struct dt_block *last = mod->n_blocks > 0 ? &mod->blocks[mod->n_blocks - 1] : NULL;

    return last && m->pp > 1 && last->kind == DT_BLOCK_LM_HEAD && last->tied &&
           mod->blocks[0].kind == DT_BLOCK_EMBEDDING &&
           dt_plan_trained(s->plan, s->model, m->index, 0);
}

void dt_sched_sync_init(struct dt_sched *s)
{
    bool any = false;

    s->n_groups = 0;
    for (int i = 0; i < s->n_modules; i++) {
        module_groups(s, &s->m[i]);
        any |= s->m[i].trains;
    }
    s->tied_group = s->norm_group = DT_NONE;
    if (s->model->llm >= 0 && ties_across_stages(s)) {
        s->tied_group = s->n_groups;
        s->n_groups += (uint32_t)s->m[s->model->llm].dp;
    }
    if (any)
        s->norm_group = s->n_groups++;
}

static void tell_experts(struct dt_program *p, uint32_t first, uint32_t stride, uint32_t uses,
                         uint64_t bytes)
{
    for (uint32_t k = 0; first != DT_NONE && k < uses; k++)
        p->groups[first + k * stride].expert_bytes = bytes;
}

void dt_sched_expert_groups(const struct dt_sched *s, struct dt_program *p)
{
    for (int i = 0; i < s->n_modules; i++) {
        const struct dt_sched_module *m = &s->m[i];
        uint32_t n = m->mb_first[1] - m->mb_first[0];

        for (int j = 0; j < m->n_v && m->layout->ep > 1; j++) {
            const struct dt_sched_vstage *v = &m->v[j];

            for (int k = 0; k < v->b_parts; k++)
                tell_experts(p, v->sync_group[k], v->sync_stride, v->b_each ? n : 1,
                             sync_bytes(s, m, v, k, SHARED_EXPERTS));
            for (int k = 0; k < v->f_parts; k++)
                tell_experts(p, v->gather_group[k], v->gather_stride,
                             v->f_each ? dt_sched_uses(v, n) : 1,
                             gather_bytes(s, m, v, k, SHARED_EXPERTS));
        }
    }
}

/* Lanes of consecutive replicas lie side by side, so a node has room for as many ranks of this group as their tp ranks
 * leave; each of the tp ranks has a group of its own, and they use the NICs together. */
void dt_sched_group_shape(const struct dt_plan *p, int module, int stage, int gpus_per_node,
                          struct dt_group *g)
{
    int tp = p->modules[module].layout.tp, apart = tp < gpus_per_node ? tp : gpus_per_node;

    g->per_node = (uint16_t)(gpus_per_node / apart);
    g->ahead = (uint16_t)dt_plan_ranks_ahead(p, module, stage, gpus_per_node);
    g->share = (uint16_t)apart;
}

/* ---- what they take at least ---- */

/* A search asks before modules have their places: least where the nodes at both ends have the same part of the ranks. */
static int best_ahead(int ranks, int per_node)
{
    int ends = (ranks - 1) % per_node + 1 + per_node;

    return ranks <= per_node ? 0 : per_node - (ends + 1) / 2;
}

static double collective_s(const struct dt_sched *s, const struct dt_plan_layout *l,
                           enum dt_kop_family family, uint64_t bytes, uint64_t expert_bytes)
{
    int node = s->cluster->gpus_per_node, apart = l->tp < node ? l->tp : node;
    struct dt_cost_members m = {
        .n = l->dp * dt_sched_sync_ranks(l), .per_node = node / apart, .share = apart};
    struct dt_cost_time t;

    if (bytes <= expert_bytes)
        return 0;
    m.ahead = best_ahead(m.n, m.per_node);
    dt_cost_collective_of(s->cost, family, &m, (double)(bytes - expert_bytes), &t);
    return 1e-9 * t.ns;
}

/* Of one virtual stage, over n microbatches. */
static double vstage_collectives_s(struct dt_sched *s, const struct dt_sched_module *m, int at,
                                   int64_t n)
{
    const uint16_t *split = &s->plan->modules[m->index].split[at];
    struct dt_sched_vstage v = {.first = split[0], .n = (uint16_t)(split[1] - split[0])};
    double sum = 0, uses;
    bool sync, gather;

    v.backward = dt_plan_upstream_trained(s->plan, s->model, m->index, v.first);
    for (int b = v.first; b < v.first + v.n; b++)
        v.backward |= dt_plan_trained(s->plan, s->model, m->index, b);
    cut_stage(s, m, &v, &sync, &gather);
    uses = v.b_each ? (double)n : 1;
    for (int k = 0; sync && k < v.b_parts; k++)
        sum += uses * collective_s(s, m->layout, DT_KOP_REDUCE_SCATTER,
                                   sync_bytes(s, m, &v, k, SHARED),
                                   m->layout->ep > 1 ? sync_bytes(s, m, &v, k, SHARED_EXPERTS) : 0);
    uses = v.f_each ? (double)dt_sched_uses(&v, (uint32_t)n) : 1;
    for (int k = 0; gather && k < v.f_parts; k++)
        sum +=
            uses * collective_s(s, m->layout, DT_KOP_ALL_GATHER, gather_bytes(s, m, &v, k, SHARED),
                                m->layout->ep > 1 ? gather_bytes(s, m, &v, k, SHARED_EXPERTS) : 0);
    return sum;
}

double dt_sched_collectives_s(const struct dt_plan *plan, const struct dt_model *model,
                              const struct dt_cluster *cluster, struct dt_cost *cost, int module,
                              int64_t n)
{
    const struct dt_plan_layout *l = &plan->modules[module].layout;
    struct dt_sched s = {.plan = plan, .model = model, .cluster = cluster, .cost = cost};
    const struct dt_sched_module m = {
        .mod = &model->modules[module], .layout = l, .index = module, .pp = l->pp, .vpp = l->vpp};
    double most = 0;

    if (plan->modules[module].zero < 2)
        return 0;
    for (int stage = 0; stage < l->pp; stage++) {
        double sum = 0;

        for (int v = stage; v < l->pp * l->vpp; v += l->pp)
            sum += vstage_collectives_s(&s, &m, v, n);
        most = sum > most ? sum : most;
    }
    return most;
}
