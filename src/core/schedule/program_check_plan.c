/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Check of a program: what the plan and the assignment ask for.  Virtual stages with what they train
 * and share, and the samples that microbatches of two modules have in common. */
#include "core/schedule/program_check_impl.h"

#include <stdlib.h>
#include <string.h>

enum { BUCKETS = 4 /* of a virtual stage whose collectives overlap with its compute */ };

static const struct dt_plan_layout *layout(const struct dt_check *c, int module)
{
    return &c->p->plan->modules[module].layout;
}

/* ---- virtual stages ---- */

/* Is anything trained in the modules from which data comes to this one? */
static bool trained_above(const struct dt_check *c, int module)
{
    bool above = false;

    for (int e = 0; e < c->model->n_edges && !above; e++) {
        int u = c->model->edges[e].src;

        if (c->model->edges[e].dst != module)
            continue;
        for (int b = 0; b < c->model->modules[u].n_blocks; b++)
            above |= dt_plan_trained(c->p->plan, c->model, u, b);
        above |= trained_above(c, u);
    }
    return above;
}

/* Parameters of every routed expert of a block, by the shape of its three (or two) matrices. */
static int64_t experts_of(const struct dt_block *b, bool vectors)
{
    int64_t up = b->gated ? 2 * (int64_t)b->ffn : b->ffn, biases = b->bias ? up + b->hidden : 0;

    return b->n_experts * (biases + (vectors ? 0 : (int64_t)b->hidden * (up + b->ffn)));
}

/* What every rank of tensor parallelism has whole, by the kind of block: all of it, positions of tokens, or a layer's router,
 * gate of shared experts and, of latent attention, ways down with their norms. */
static int64_t whole_of(const struct dt_block *b, bool vectors)
{
    int64_t h = b->hidden, e = b->n_experts, down = b->kv_lora + b->rope_dim, sum = 0;
    struct dt_block_param_counts n = dt_block_param_count(b);

    if (b->kind == DT_BLOCK_NORM || b->kind == DT_BLOCK_PATCH_EMBED ||
        b->kind == DT_BLOCK_TIME_EMBED)
        return n.vectors + (vectors ? 0 : n.matrices);
    if (b->kind == DT_BLOCK_EMBEDDING)
        return b->max_pos * h;
    if (b->kind != DT_BLOCK_TRANSFORMER)
        return 0;
    if (e > 0)
        sum += (b->bias ? e : 0) + (b->router_bias ? e : 0) +
               (vectors ? 0 : h * (e + (b->shared_gate ? 1 : 0)));
    if (b->kv_lora > 0)
        sum += (b->bias ? b->q_lora + down : 0) +
               (b->layernorm ? 2 : 1) * (int64_t)(b->q_lora + b->kv_lora) +
               (vectors ? 0 : h * (b->q_lora + down));
    return sum;
}

/* Expert parallelism: a rank holds one ep-th of the experts, and shares them with the ranks of other expert groups
 * alone.  Both sums are counted in ep-ths of a parameter, and what is whole on tp ranks that many times. */
static int64_t experts_sum(const struct dt_check *c, int module, int first, int n, bool all,
                           bool vectors)
{
    const struct dt_plan_layout *l = layout(c, module);
    int64_t sum = 0;

    for (int i = first; i < first + n; i++)
        if ((l->ep == 1 || l->ep < l->dp * l->cp * l->ip) &&
            (all || dt_plan_trained(c->p->plan, c->model, module, i)))
            sum += experts_of(&c->model->modules[module].blocks[i], vectors);
    return sum;
}

static int64_t params_sum(const struct dt_check *c, int module, int first, int n, bool all,
                          bool vectors)
{
    const struct dt_plan_layout *l = layout(c, module);
    int64_t sum = experts_sum(c, module, first, n, all, vectors);

    for (int i = first; i < first + n; i++) {
        const struct dt_block *b = &c->model->modules[module].blocks[i];
        struct dt_block_param_counts count = dt_block_param_count(b);

        if (!all && !dt_plan_trained(c->p->plan, c->model, module, i))
            continue;
        sum += l->ep * (count.vectors + (vectors ? 0 : count.matrices) - experts_of(b, vectors));
        sum += l->ep * (l->tp - 1) * whole_of(b, vectors);
        if (!vectors && b->kind == DT_BLOCK_LM_HEAD && b->tied && l->pp > 1)
            sum += l->ep * (int64_t)b->vocab * b->hidden; /* its own copy of the first stage's */
    }
    return sum;
}

/* Of a whole tensor's elements those of one GPU; a half goes down or up. */
static uint64_t share(int64_t sum, int tp, bool up)
{
    return (uint64_t)((2 * sum + tp - !up) / (2 * tp));
}

bool dt_check_shared(const struct dt_check *c, int module, int first, int n, bool all)
{
    const struct dt_plan_layout *l = layout(c, module);

    return share(params_sum(c, module, first, n, all, false), l->tp * l->ep, true) > 0;
}

static bool are_bytes(int64_t sum, int64_t vectors, int ranks, uint64_t each, uint64_t each_vector,
                      uint64_t bytes)
{
    for (int i = 0; i < 4; i++)
        if (bytes == each * share(sum, ranks, i & 1) + each_vector * share(vectors, ranks, i & 2))
            return true;
    return false;
}

bool dt_check_bytes(const struct dt_check *c, int module, int first, int n, bool all, uint64_t each,
                    uint64_t vectors, uint64_t bytes)
{
    int ranks = layout(c, module)->tp * layout(c, module)->ep;

    return are_bytes(params_sum(c, module, first, n, all, false),
                     params_sum(c, module, first, n, all, true), ranks, each, vectors, bytes);
}

bool dt_check_expert_bytes(const struct dt_check *c, int module, int first, int n, bool all,
                           uint64_t each, uint64_t vectors, uint64_t bytes)
{
    int ranks = layout(c, module)->tp * layout(c, module)->ep;

    if (layout(c, module)->ep == 1) /* nothing to tell apart */
        return bytes == 0;
    return are_bytes(experts_sum(c, module, first, n, all, false),
                     experts_sum(c, module, first, n, all, true), ranks, each, vectors, bytes);
}

/* What virtual stages hand on, summed over the tensors behind their last block. */
static void wire(const struct dt_check *c, const struct dt_module *mod, struct dt_check_vstage *v)
{
    struct dt_boundary_tensor t[DT_BOUNDARY_MAX];
    uint64_t elem = c->p->plan->policy.fp32 ? 4 : 2;
    int n = dt_boundary_tensors(mod, v->first + v->n, t);

    for (int i = 0; i < n; i++)
        *(t[i].per_item ? &v->item_bytes : &v->token_bytes[t[i].level]) +=
            elem * (uint64_t)t[i].width;
}

uint64_t dt_check_wire(const struct dt_check *c, int module, int v, uint32_t mb)
{
    const struct dt_check_vstage *x = &c->m[module].v[v];
    const struct dt_work *w = &c->m[module].a->work[mb];
    uint64_t sum = x->item_bytes * (uint64_t)w->n;

    for (int l = 0; l < DT_LEVEL_MAX; l++)
        sum += x->token_bytes[l] * ((uint64_t)w->tokens >> 2 * l);
    return sum;
}

static void expect_stages(struct dt_check *c, int module)
{
    const struct dt_plan_policy *y = &c->p->plan->policy;
    const struct dt_plan_layout *l = layout(c, module);
    const uint16_t *split = c->p->plan->modules[module].split;
    struct dt_check_module *m = &c->m[module];
    bool above = trained_above(c, module);
    int zero = c->p->plan->modules[module].zero, group = c->p->plan->modules[module].zero_group;

    for (int i = 0; i < m->n_v; i++) {
        struct dt_check_vstage *v = &m->v[i];
        int buckets, copies = l->dp * l->cp * l->ip;
        int shards = group > 0 ? group : copies;

        v->first = split[i];
        v->n = split[i + 1] - split[i];
        buckets = v->n < BUCKETS ? v->n : BUCKETS;
        for (int b = v->first; b < v->first + v->n; b++)
            above |= dt_plan_trained(c->p->plan, c->model, module, b);
        v->backward = above;
        v->trains = dt_check_shared(c, module, v->first, v->n, false);
        v->split = v->trains && dt_pipe_of(y->schedule)->put_off;
        v->gather_each =
            zero == 3 && copies > 1 && dt_check_shared(c, module, v->first, v->n, true);
        v->sync_each = zero >= 2 && copies > 1 && v->trains;
        if (v->trains && copies > 1)
            v->sync_parts = y->overlap_grad || v->sync_each ? buckets : 1;
        if (v->gather_each || (zero > 0 && v->trains && shards > 1))
            v->gather_parts = y->overlap_param || v->gather_each ? buckets : 1;
        wire(c, &c->model->modules[module], v);
    }
}

static enum dt_status expect_module(struct dt_check *c, int module)
{
    const struct dt_assignment_module *a = &c->p->assignment->m[module];
    const struct dt_plan_layout *l = layout(c, module);
    struct dt_check_module *m = &c->m[module];

    if (a->n_replicas != l->dp)
        return dt_error_set(c->err, DT_ERR_INTERNAL,
                            "program: module %s: the assignment has %d replicas, the plan %d",
                            c->model->modules[module].name, a->n_replicas, l->dp);
    *m = (struct dt_check_module){.a = a, .pp = l->pp, .vpp = l->vpp, .dp = l->dp};
    m->n_v = l->pp * l->vpp;
    m->n_mb = a->mb_first[l->dp];
    m->v = DT_ARENA_NEW(&c->arena, struct dt_check_vstage, m->n_v);
    m->work = DT_ARENA_NEW(&c->arena, struct dt_check_work, (size_t)m->n_mb * m->n_v + 1);
    m->inner = dt_arena_alloc(&c->arena, (size_t)m->n_mb * m->n_v + 1, sizeof(*m->inner));
    if (!m->v || !m->work || !m->inner)
        return dt_error_nomem(c->err, "check of a program");
    memset(m->work, 0xff, (size_t)m->n_mb * (size_t)m->n_v * sizeof(*m->work));
    for (size_t i = 0; i < (size_t)m->n_mb * (size_t)m->n_v; i++)
        memset(m->work[i].own, 0, sizeof(m->work[i].own));
    memset(m->inner, 0xff, (size_t)m->n_mb * (size_t)m->n_v * sizeof(*m->inner));
    expect_stages(c, module);
    return DT_OK;
}

/* ---- samples in common ---- */

/* A sample, or an item of one, in a module: its microbatch + 1 and place in that. */
struct where {
    int64_t sample;
    uint32_t item, mb, at;
};

static int by_sample(const void *x, const void *y)
{
    const struct where *a = x, *b = y;

    if (a->sample != b->sample)
        return a->sample < b->sample ? -1 : 1;
    return a->item < b->item ? -1 : a->item > b->item;
}

/* All of a module, sample by sample: whole samples, each once; or of each sample its items, each once. */
static enum dt_status find_samples(struct dt_check *c, int module, struct where **out, size_t *n)
{
    const struct dt_assignment *a = c->p->assignment;
    const struct dt_check_module *m = &c->m[module];
    size_t most = 1, samples = 0;
    struct where *w;

    for (uint32_t mb = 0; mb < m->n_mb; mb++)
        most += m->a->mb[mb].n;
    w = DT_ARENA_NEW(&c->arena, struct where, most);
    if (!w)
        return dt_error_nomem(c->err, "check of a program");
    *n = 0;
    for (uint32_t mb = 0; mb < m->n_mb; mb++)
        for (uint32_t i = 0; i < m->a->mb[mb].n; i++) {
            uint32_t k = m->a->mb[mb].first + i;

            w[(*n)++] = (struct where){m->a->samples[k] - a->first_sample,
                                       m->a->items ? m->a->items[k] : 0, mb + 1, i};
        }
    qsort(w, *n, sizeof(*w), by_sample);
    for (size_t k = 0; k < *n; k++) {
        bool first = k == 0 || w[k].sample != w[k - 1].sample;

        samples += first;
        if (w[k].sample < 0 || w[k].sample >= a->n_samples ||
            (!first && (!m->a->items || w[k].item == w[k - 1].item)))
            return dt_error_set(c->err, DT_ERR_INTERNAL,
                                "program: module %s, microbatch %u: sample %lld is in another "
                                "microbatch too, or in no batch",
                                c->model->modules[module].name, w[k].mb - 1,
                                (long long)(w[k].sample + a->first_sample));
        if (m->a->items && w[k].item != (first ? 0 : w[k - 1].item + 1))
            return dt_error_set(c->err, DT_ERR_INTERNAL,
                                "program: module %s: sample %lld lacks an item before item %u",
                                c->model->modules[module].name,
                                (long long)(w[k].sample + a->first_sample), (unsigned)w[k].item);
    }
    if (!m->a->items && samples != (size_t)a->n_samples)
        return dt_error_set(c->err, DT_ERR_INTERNAL, "program: module %s has %zu of %lld samples",
                            c->model->modules[module].name, samples, (long long)a->n_samples);
    *out = w;
    return DT_OK;
}

/* What crosses from u to d for a sample: the encoder's rows, or as many of the LLM's states as
 * each item to generate is conditioned on. */
static uint64_t crossing(const struct dt_check *c, int u, int d, struct where in_u,
                         struct where in_d)
{
    const struct dt_module *from = &c->model->modules[u], *to = &c->model->modules[d];
    int states = to->out_tokens_per_item > 0 ? to->out_tokens_per_item : from->out_tokens_per_item;
    bool items = to->role == DT_ROLE_GENERATOR && states > 0;
    const struct dt_assignment_module *a = c->m[items ? d : u].a;
    struct where at = items ? in_d : in_u;
    const struct dt_microbatch *mb = &a->mb[at.mb - 1];
    const struct dt_work *w =
        a->sample_work ? &a->sample_work[mb->first + at.at] : &a->work[at.mb - 1];
    int side = from->merge > 1 ? from->merge : 1; /* a row for the LLM has side x side patches */
    uint64_t n = (uint64_t)(items ? w->n : w->tokens / (side * side));

    if (!a->sample_work) /* of the microbatch's work an even share, in whole tokens */
        n = n * (at.at + 1) / mb->n - n * at.at / mb->n;
    return n * (uint64_t)from->out_width * (c->p->plan->policy.fp32 ? 4 : 2) *
           (items ? (uint64_t)states : 1);
}

int dt_check_by_place(const void *x, const void *y)
{
    const struct dt_check_transfer *a = x, *b = y;

    if (a->u != b->u)
        return a->u < b->u ? -1 : 1;
    if (a->u_mb != b->u_mb)
        return a->u_mb < b->u_mb ? -1 : 1;
    if (a->d != b->d)
        return a->d < b->d ? -1 : 1;
    return a->d_mb < b->d_mb ? -1 : a->d_mb > b->d_mb;
}

/* A pair for every sample, or item of one, that both modules have. */
static size_t pair(struct dt_check *c, int u, int d, const struct where *in_u, size_t n_u,
                   const struct where *in_d, size_t n_d, struct dt_check_transfer *t)
{
    size_t n = 0;

    for (size_t i = 0, k = 0; i < n_u; i++) {
        while (k > 0 && in_d[k - 1].sample >= in_u[i].sample)
            k--;
        while (k < n_d && in_d[k].sample < in_u[i].sample)
            k++;
        for (; k < n_d && in_d[k].sample == in_u[i].sample; k++)
            t[n++] = (struct dt_check_transfer){(uint32_t)u,
                                                (uint32_t)d,
                                                in_u[i].mb - 1,
                                                in_d[k].mb - 1,
                                                crossing(c, u, d, in_u[i], in_d[k]),
                                                {DT_NONE, DT_NONE}};
    }
    return n;
}

static enum dt_status expect_transfers(struct dt_check *c)
{
    size_t n = 0, kept = 0, most = 1, n_in[DT_MAX_MODULES];
    struct where *in[DT_MAX_MODULES];
    struct dt_check_transfer *t;

    for (int i = 0; i < c->model->n_modules; i++)
        DT_TRY(find_samples(c, i, &in[i], &n_in[i]));
    for (int e = 0; e < c->model->n_edges; e++) {
        int u = c->model->edges[e].src, d = c->model->edges[e].dst;

        /* one of the two has whole samples */
        most += n_in[u] > n_in[d] ? n_in[u] : n_in[d];
        if (c->m[u].a->items && c->m[d].a->items)
            return dt_error_set(c->err, DT_ERR_INTERNAL,
                                "program: modules %s and %s both share items",
                                c->model->modules[u].name, c->model->modules[d].name);
    }
    t = DT_ARENA_NEW(&c->arena, struct dt_check_transfer, most);
    if (!t)
        return dt_error_nomem(c->err, "check of a program");
    for (int e = 0; e < c->model->n_edges; e++) {
        int u = c->model->edges[e].src, d = c->model->edges[e].dst;

        n += pair(c, u, d, in[u], n_in[u], in[d], n_in[d], t + n);
    }
    qsort(t, n, sizeof(*t), dt_check_by_place);
    for (size_t i = 0; i < n; i++) {
        if (t[i].bytes == 0) /* a sample without such an item sends nothing */
            continue;
        if (kept > 0 && dt_check_by_place(&t[kept - 1], &t[i]) == 0)
            t[kept - 1].bytes += t[i].bytes;
        else
            t[kept++] = t[i];
    }
    c->transfer = t;
    c->n_transfers = (uint32_t)kept;
    return DT_OK;
}

enum dt_status dt_check_expect(struct dt_check *c)
{
    for (int i = 0; i < c->model->n_modules; i++)
        DT_TRY(expect_module(c, i));
    return expect_transfers(c);
}
