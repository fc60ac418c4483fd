/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * The memory model: bytes of a stage by cause, one walk over its chunks and blocks for every
 * implementation of a device.
 *
 *                                    GPU (mixed precision AdamW)   CPU (the executor)
 *   params      of each              2 B: bf16                     4 B: the master copy
 *               copies of weights    -                             packed, and gathered under ZeRO-1
 *   grads       fp32 (or bf16)       of those trained              of a chunk that trains any
 *   optimizer   of those trained,    12 B: master, m, v            8 B: m, v; without ZeRO-1 also of
 *                                                                  frozen ones beside them
 *               over the replicas under ZeRO-1
 *   offloaded   in the host's memory 12 B: master, m, v            12 B; the device keeps the parameters, in
 *               instead              of those trained              bf16 where it need not pack them from fp32
 *   parameters  of a guest, in       the 2 B, too                  all copies of them, too
 *   offloaded   the host's memory
 *   ZeRO 2      grads over the       the share of a rank, and the  as ZeRO-1 (such plans are not run)
 *               replicas             buckets that are not reduced
 *   ZeRO 3      params as well       the share, and the buckets    as ZeRO-1
 *                                    that are gathered
 *   activations in flight            bf16                          in the job's precision
 *               (a split backward: until the weight gradient, and what it leaves for that)
 *               and a workspace      of one block                  of one block and between blocks
 *   logits_workspace                 all logits; the softmax of    the scratch of kernels
 *                                    others that wait, fp32
 *   broker      messages             once                          and their gradients; batches
 *   reserve                          charged                       taken off the limit
 *
 * Our executor on a GPU keeps what it keeps on a CPU, but instead of packed weights a copy of all parameters in
 * bf16, in which matrices are gathered, too, and one batch more, which comes while the others are in flight.
 *
 * A row of memory_impl.h says so for one of them. */
#include "core/cost/memory_impl.h"

#include "base/hash.h"
#include "base/mem.h"
#include "core/model/block_ops.h"
#include "core/model/boundary.h"

#include <assert.h>
#include <math.h>
#include <string.h>

/* ---- a GPU ---- */

/* bf16 logits and their fp32 softmax, which becomes the gradient in place and waits for the backward (Megatron-LM's
 * vocabulary-parallel cross entropy saves it; nothing but full recomputation brings it back). */
enum { SOFTMAX_BYTES = 4, LOGIT_BYTES = 2 + SOFTMAX_BYTES };

/* Keys and values of context parallelism beside a rank's own: those of all ranks, or of two of them that go round a ring, one
 * in use and one that comes (Liu et al. 2023, arXiv 2310.01889, section 3); in a backward as much again for their
 * gradients, which are reduced, or go round with them. */
static double gpu_keys(const struct dt_memory_lane *s, bool above)
{
    double part = s->p->policy.cp_comm == DT_CP_COMM_RING ? 2.0 / s->shard.cp : 1;

    return s->keys > 0 ? s->keys * part * (above ? 2 : 1) : 0;
}

/* Kernels that run again before a backward bring their outputs back for one block; of blocks without
 * a backward nothing stays, and one's activations are there at a time. */
static double gpu_working(const struct dt_memory_lane *s, int i, bool above)
{
    (void)i;
    return (above ? s->whole - s->kept : s->whole) + gpu_keys(s, above);
}

/* Logits of a microbatch on one rank. */
static double logits(const struct dt_memory_lane *s, int i)
{
    const struct dt_block *b = &s->mod->blocks[i];

    return b->kind == DT_BLOCK_LM_HEAD ? s->tokens * ceil((double)b->vocab / s->shard.tp) : 0;
}

static double gpu_logits(const struct dt_memory_lane *s, int i, bool trained)
{
    (void)trained;
    return LOGIT_BYTES * logits(s, i);
}

static double gpu_softmax(const struct dt_memory_lane *s, int i)
{
    return s->shard.recompute == DT_RECOMPUTE_FULL ? 0 : SOFTMAX_BYTES * logits(s, i);
}

static const struct dt_memory_row gpu = {.param = 2,
                                         .grad = 4,
                                         .optimizer = 12,
                                         .act_elem = DT_ELEM_BYTES,
                                         .messages = 1,
                                         .workspace_shared = true,
                                         .reserve = true,
                                         .working = gpu_working,
                                         .scratch = gpu_logits,
                                         .waiting = gpu_softmax};

/* ---- blocks ---- */

double dt_memory_params(const struct dt_block *b, const struct dt_plan_layout *l)
{
    struct dt_block_param_counts w = dt_block_whole_count(b);
    double all = (double)dt_block_params(b), experts = (double)dt_block_expert_params(b);
    double whole = (double)(w.matrices + w.vectors), dealt = all - experts - whole;

    return whole + (dealt + experts / (l->ep > 1 ? l->ep : 1)) / (l->tp > 1 ? l->tp : 1);
}

/* Activations of a block, by all that they depend on. */
struct acts {
    const struct dt_block *b; /* NULL: free */
    struct dt_block_shard shard;
    struct dt_work work;
    int elem;
    bool stashes; /* stash is known, too */
    double whole, kept, keys, stash;
};
/* Of a stage all that does not depend on how many microbatches it holds. */
struct sums {
    uint64_t a, b; /* what it is of: no two share both; 0, 0: free */
    double most, workspace, messages, stash;
    double waiting; /* of each microbatch but one whose last block waits for its backward */
    struct dt_memory of;
};
enum { MEMO_BITS = 13, SUMS_BITS = 15 };
struct dt_memory_memo { /* a newcomer takes the place of the one that was there */
    const struct dt_model *model;
    uint16_t *run[DT_MAX_MODULES]; /* [n_blocks]: the first of the equal layers that a block ends */
    struct acts of[1 << MEMO_BITS];
    struct sums sums[1 << SUMS_BITS];
};

/* Layers behind which there is nothing but their own output (core/model/boundary.c). */
static bool continues(const struct dt_module *mod, int b)
{
    return b > 0 && mod->role != DT_ROLE_GENERATOR && mod->blocks[b].kind == DT_BLOCK_TRANSFORMER &&
           memcmp(&mod->blocks[b], &mod->blocks[b - 1], sizeof(mod->blocks[b])) == 0;
}

struct dt_memory_memo *dt_memory_memo_new(const struct dt_model *m)
{
    struct dt_memory_memo *memo = dt_calloc(1, sizeof(*memo));

    for (int i = 0; memo && i < m->n_modules; i++) {
        const struct dt_module *mod = &m->modules[i];
        uint16_t *run = memo->run[i] = dt_calloc((size_t)mod->n_blocks + 1, sizeof(*run));

        if (!run) {
            dt_memory_memo_free(memo);
            return NULL;
        }
        for (int b = 0; b < mod->n_blocks; b++)
            run[b] = continues(mod, b) ? run[b - 1] : (uint16_t)b;
    }
    if (memo)
        memo->model = m;
    return memo;
}

void dt_memory_memo_free(struct dt_memory_memo *memo)
{
    for (int i = 0; memo && i < DT_MAX_MODULES; i++)
        dt_free(memo->run[i]);
    dt_free(memo);
}

static bool same_shard(const struct dt_block_shard *a, const struct dt_block_shard *b)
{
    return a->tp == b->tp && a->cp == b->cp && a->ep == b->ep && a->ip == b->ip &&
           a->seqpar == b->seqpar && a->any_routing == b->any_routing &&
           a->recompute == b->recompute;
}

static struct acts *place_of(const struct dt_memory_lane *s, const struct dt_block *b)
{
    uint64_t h = dt_hash_word((uint64_t)(b - s->mod->blocks),
                              (uint64_t)s->work->tokens << 20 ^ (uint64_t)s->work->n);

    h = dt_hash_word(h, (uint64_t)s->shard.tp << 8 | (uint64_t)s->shard.recompute);
    return &s->memo->of[dt_hash_spread(h) >> (64 - MEMO_BITS)];
}

static void measure(const struct dt_memory_lane *s, const struct dt_block *b, int elem,
                    struct acts *a)
{
    *a = (struct acts){.b = b, .shard = s->shard, .work = *s->work, .elem = elem};
    a->whole = dt_block_act_bytes_of(b, &s->shard, s->work, DT_RECOMPUTE_NONE, elem);
    a->kept = dt_block_act_bytes_of(b, &s->shard, s->work, s->shard.recompute, elem);
    a->keys = dt_block_keys_bytes(b, &s->shard, s->work, elem);
}

static void look_at_acts(struct dt_memory_lane *s, const struct dt_block *b)
{
    int elem = s->row->act_elem > 0 ? s->row->act_elem : (int)s->elem;
    struct acts own, *a = &own;

    if (s->memo) {
        b = &s->mod->blocks[s->run[b - s->mod->blocks]];
        a = place_of(s, b);
    }
    if (a == &own || a->b != b || a->elem != elem || !same_shard(&a->shard, &s->shard) ||
        memcmp(&a->work, s->work, sizeof(a->work)) != 0)
        measure(s, b, elem, a);
    /* most schedules put nothing off, and the search asks for millions of stages */
    if (s->deferred > 0 && !a->stashes) {
        a->stash = dt_block_stash_bytes(b, &s->shard, s->work, elem);
        a->stashes = true;
    }
    s->whole = a->whole;
    s->kept = a->kept;
    s->keys = a->keys;
    s->stash = s->deferred > 0 ? a->stash : 0;
}

/* Stacks repeat one block: ask the model once per run of equal ones. */
static void look_at(struct dt_memory_lane *s, const struct dt_block *b)
{
    const struct dt_plan_layout *l = &s->mp->layout;

    if (s->seen && memcmp(s->seen, b, sizeof(*b)) == 0)
        return;
    s->seen = b;
    s->params = dt_memory_params(b, l);
    s->experts = (double)dt_block_expert_params(b) / ((double)l->tp * l->ep);
    if (b->kind == DT_BLOCK_LM_HEAD && b->tied && l->pp * l->vpp > 1)
        /* the head's stage holds its own copy of the embedding table */
        s->params += (double)b->vocab * b->hidden / (l->tp > 1 ? l->tp : 1);
    look_at_acts(s, b);
}

/* ---- messages ---- */

static bool is_unet_block(const struct dt_block *b)
{
    return b->kind == DT_BLOCK_CONV || b->kind == DT_BLOCK_RESNET ||
           b->kind == DT_BLOCK_SPATIAL_TRANSFORMER || b->kind == DT_BLOCK_TIME_EMBED;
}

/* Bytes per rank behind the first `end` blocks.  Ranks of a transformer with sequence parallelism
 * hold their share of the tokens, those of a U-Net the whole of every tensor. */
static double inner_bytes(const struct dt_memory_lane *s, int end)
{
    const struct dt_block *b = &s->mod->blocks[end - 1];
    struct dt_boundary wire;
    double items = (double)s->work->n / (s->shard.ip > 1 ? s->shard.ip : 1), sum;

    dt_block_boundary(s->mod, end, (int)s->elem, &wire);
    sum = (double)wire.item_bytes * ceil(items);
    for (int l = 0; l < wire.n_levels; l++)
        sum += ldexp(s->tokens, -2 * l) * (double)wire.token_bytes[l];
    return sum / (s->shard.seqpar && !is_unet_block(b) ? s->shard.tp : 1);
}

/* What crosses a module's ends is dealt to the ranks that share it, however they hold it inside. */
static double ranks_at_ends(const struct dt_memory_lane *s)
{
    return s->shard.tp > 1 ? s->shard.tp : 1;
}

/* Is there a module in front of it, or behind it. */
static bool is_linked(const struct dt_model *m, int module, bool behind)
{
    for (int e = 0; e < m->n_edges; e++)
        if ((behind ? m->edges[e].src : m->edges[e].dst) == module)
            return true;
    return false;
}

/* What the module takes in: its own width per token, or the conditioning states of each item. */
static double input_bytes(const struct dt_memory_lane *s, const struct dt_model *m, int module)
{
    const struct dt_block *b = &s->mod->blocks[0];
    double elem = s->elem;

    if (!is_linked(m, module, false))
        return 0;

    if (b->kind == DT_BLOCK_PROJECTOR && b->context_len > 0)
        return elem * (double)b->in_dim * b->context_len * (double)s->work->n / ranks_at_ends(s);
    return elem * s->tokens * (b->kind == DT_BLOCK_PROJECTOR ? b->out_dim : b->hidden) /
           ranks_at_ends(s);
}

/* What the module hands on. */
static double output_bytes(const struct dt_memory_lane *s, const struct dt_model *m, int module)
{
    double row = s->elem * (double)s->mod->out_width / ranks_at_ends(s);

    if (!is_linked(m, module, true))
        return 0;
    if (s->mod->out_tokens_per_item > 0)
        return row * s->mod->out_tokens_per_item * (double)s->work->n;
    return row * s->tokens / dt_module_merged(s->mod);
}

/* Receive buffers for `queue` microbatches, send buffers for one in use and one in transfer. */
static double broker_bytes(const struct dt_memory_lane *s, const struct dt_model *m, int module,
                           int first, int last, int queue)
{
    double in = first > 0 ? inner_bytes(s, first) : input_bytes(s, m, module);
    double out = last < s->mod->n_blocks ? inner_bytes(s, last) : output_bytes(s, m, module);

    return queue * in + DT_MEMORY_BUFFERS * out;
}

/* ---- a stage ---- */

/* Of the block's parameters those that others hold too: experts of which there is no other copy do not travel. */
static double moved_params(const struct dt_memory_lane *s)
{
    return s->replicas > s->shard.ep ? s->params : s->params - s->experts;
}

/* Of one parameter. */
static double grad_bytes(const struct dt_memory_lane *s)
{
    return s->row == &gpu && s->p->policy.bf16_grads ? 2 : s->row->grad;
}

/* What the host holds of a chunk that offloads its optimizer's state: that, which leaves the device, and the masters, of all
 * parameters. */
static void offload(const struct dt_memory_lane *s, double optimizer, double all, double with_grads,
                    double exact, struct dt_memory *out)
{
    const struct dt_memory_row *row = s->row;

    out->optimizer -= optimizer;
    out->host += optimizer * (row->optimizer + row->master) / row->optimizer;
    if (row->grads_of_all && s->replicas > 1)
        out->host += row->master * (all - with_grads);
    if (row->exact && s->elem < row->param)
        out->params += exact - row->param * all;
}

/* Returns what it keeps of a microbatch in flight; *workspace: for the time of a block; *stash: added to, of a
 * microbatch whose weight gradients are put off. */
static double charge_chunk(struct dt_memory_lane *s, const struct dt_model *m, int module,
                           int first, int last, double *workspace, double *stash, double *waiting,
                           struct dt_memory *out)
{
    const struct dt_memory_row *row = s->row;
    double kept = 0, all = 0, with_grads = 0, moved = 0, moved_grads = 0, one;
    double exact = 0, before = out->optimizer, params_before = out->params, packed = 0;
    bool above = dt_plan_upstream_trained(s->p, m, module, first), any = false;
    int n = last - first, buckets = n < DT_PLAN_BUCKETS ? n : DT_PLAN_BUCKETS, bucket = 0;

    *workspace = 0;
    for (int i = first; i < last; i++) {
        bool trained = dt_plan_trained(s->p, m, module, i);

        look_at(s, &s->mod->blocks[i]);
        above |= trained;
        any |= trained;
        all += s->params;
        moved += moved_params(s);
        s->expert_params += s->experts;
        if (trained) {
            with_grads += s->params;
            moved_grads += moved_params(s);
            s->expert_grads += s->experts;
            /* experts have ep times fewer copies */
            out->optimizer +=
                row->optimizer * ((s->params - s->experts) / s->replicas +
                                  s->experts / (s->replicas > 1 ? s->replicas / s->shard.ep : 1));
            out->wire += row->wire && s->replicas > 1 ? row->wire(s, i) : 0;
        }
        one = row->packed ? row->packed(s, i, above) : 0;
        packed += one;
        out->params += one;
        exact += row->exact ? row->exact(s, i) : 0;
        kept += above ? s->kept : 0; /* below the first trained block nothing is kept */
        *stash += above ? s->stash : 0;
        *waiting += above && row->waiting ? row->waiting(s, i) : 0;
        *workspace = fmax(*workspace, row->working(s, i, above));
        out->logits_workspace = fmax(out->logits_workspace, row->scratch(s, i, trained));
        if (s->zero < 2 || i + 1 < first + n * (bucket + 1) / buckets)
            continue;
        s->bucket = fmax(s->bucket, moved);
        s->bucket_grads = fmax(s->bucket_grads, moved_grads);
        moved = moved_grads = 0;
        bucket++;
    }
    out->params += row->param * all;
    out->grads += grad_bytes(s) * (!row->grads_of_all ? with_grads : any ? all : 0);
    /* the executor lays moments out as it does parameters, unless it has a share of them only */
    if (row->grads_of_all && any && s->replicas <= 1)
        out->optimizer += row->optimizer * (all - with_grads);
    if (any && dt_plan_offloads_optimizer(s->mp))
        offload(s, out->optimizer - before, all, with_grads, exact, out);
    if (dt_plan_offloads_params(
            s->mp)) { /* what forwards and backwards read; beside rounded copies the rest stays */
        bool rounded = row->exact && s->elem < row->param;

        out->away += rounded ? packed : out->params - params_before;
        out->away_host += rounded ? packed : row->param * all;
    }
    *workspace += row->beside ? row->beside(s, module, m, first, last) : 0;
    return kept + (row->states ? row->states(s, first, last) : 0);
}

/* ZeRO 2 and 3: every rank keeps its share, and as many buckets are whole as the program allows (dt_program_check).
 * Never more than all of it: one buffer in which the share has its place is enough to reduce or to gather in. */
static void shard(const struct dt_memory_lane *s, struct dt_memory *out)
{
    const struct dt_plan_policy *y = &s->p->policy;
    double params = out->params, grads = out->grads;
    double gathered = dt_plan_whole_buckets(y->overlap_param) * s->row->param * s->bucket;
    double reduced = dt_plan_whole_buckets(y->overlap_grad) * grad_bytes(s) * s->bucket_grads;
    /* experts have ep times fewer copies, and so larger shares */
    double more = s->shard.ep - 1, own;

    if (s->zero > 1 && s->replicas > 1) {
        own = (grads + more * grad_bytes(s) * s->expert_grads) / s->replicas;
        out->grads = fmin(grads, own + reduced);
        out->whole += out->grads - own;
    }
    if (s->zero > 2 && s->replicas > 1) {
        own = (params + more * s->row->param * s->expert_params) / s->replicas;
        out->params = fmin(params, own + gathered);
        out->whole += out->params - own;
    }
}

static void open_lane(struct dt_memory_lane *s, const struct dt_model *m, int module)
{
    const struct dt_plan_layout *l = &s->mp->layout;

    s->mod = &m->modules[module];
    s->shard = dt_plan_shard(s->mp);
    s->shard.any_routing = s->row != &gpu;
    s->elem = dt_plan_policy_elem_bytes(&s->p->policy);
    s->zero = s->row == &gpu || s->mp->zero < 1 ? s->mp->zero : 1;
    s->replicas = (double)dt_plan_shards(s->mp);
    s->tokens = (double)s->work->tokens / (l->ip > 1 ? l->ip : 1);
    if (l->ip > 1 && s->tokens < (double)s->work->tokens_max)
        s->tokens = (double)s->work->tokens_max;
    s->tokens /= l->cp > 1 ? l->cp : 1;
    s->own = ceil(s->tokens / (l->tp > 1 ? l->tp : 1));
}

/* Bytes of the batches of a stage. */
static double batches(const struct dt_memory_lane *s, double in_flight, int64_t n_microbatches)
{
    double chunks = s->mp->layout.vpp, most = chunks * (double)n_microbatches;
    double spare = fmax(0, fmin(chunks * s->row->spare, most - in_flight));

    return s->row->batch ? s->row->batch(s) * (in_flight + spare) : 0;
}

static void sum_up(struct dt_memory_lane *s, const struct dt_model *m, int module, int stage,
                   int queue, struct sums *out)
{
    const struct dt_memory_row *row = s->row;
    const struct dt_plan_layout *l = &s->mp->layout;

    for (int chunk = 0; chunk < l->vpp; chunk++) {
        int v = chunk * l->pp + stage, first = s->mp->split[v], last = s->mp->split[v + 1];
        double own;

        if (first == last)
            continue;
        out->most = fmax(out->most, charge_chunk(s, m, module, first, last, &own, &out->stash,
                                                 &out->waiting, &out->of));
        out->workspace = row->workspace_shared ? fmax(out->workspace, own) : out->workspace + own;
        out->messages = fmax(out->messages, broker_bytes(s, m, module, first, last, queue));
    }
    shard(s, &out->of);
}

static void mix(struct sums *x, uint64_t word)
{
    x->a = dt_hash_word(x->a, word);
    x->b = dt_hash_spread(x->b ^ word);
}

/* Of all chunks with as many blocks of a run of equal layers, none of which begins or ends the run, the first. */
static int like(const struct dt_memory_lane *s, int first, int last)
{
    bool within = first > 0 && first < last && last < s->mod->n_blocks &&
                  s->run[first - 1] == s->run[last - 1];

    return within ? s->run[first - 1] + 1 : first;
}

/* The place of a stage's sums on a GPU, and in *of what they depend on. */
static struct sums *sums_of(const struct dt_memory_lane *s, int module, int stage, int queue,
                            struct sums *of)
{
    const struct dt_plan_policy *y = &s->p->policy;
    const struct dt_plan_layout *l = &s->mp->layout;
    uint64_t frozen = 0;

    for (int i = 0; i < s->p->n_modules; i++)
        frozen |= (uint64_t)s->p->modules[i].frozen << i;
    *of = (struct sums){.a = 1, .b = 2};
    mix(of, (uint64_t)module | (uint64_t)(s->deferred > 0) << 8 | (uint64_t)y->bf16_grads << 9 |
                (uint64_t)y->cp_comm << 24 | (uint64_t)y->overlap_grad << 10 |
                (uint64_t)y->overlap_param << 11 | (uint64_t)s->zero << 12 |
                (uint64_t)s->mp->recompute << 16 | (uint64_t)s->elem << 20 | (uint64_t)queue << 32);
    mix(of, frozen);
    mix(of, (uint64_t)(uint32_t)l->dp << 32 | (uint32_t)l->ip << 16 | (uint32_t)l->ep);
    mix(of, (uint64_t)(uint32_t)l->tp << 32 | (uint32_t)l->cp << 16 | (l->pp * l->vpp > 1));
    mix(of, (uint64_t)s->mp->offload << 32 | (uint32_t)s->mp->zero_group);
    mix(of, (uint64_t)s->work->n);
    mix(of, (uint64_t)s->work->tokens);
    mix(of, (uint64_t)s->work->tokens_sq);
    mix(of, (uint64_t)s->work->tokens_max);
    for (int v = stage; v < l->pp * l->vpp; v += l->pp) {
        int first = s->mp->split[v], last = s->mp->split[v + 1];

        mix(of, (uint64_t)like(s, first, last) << 32 | (uint64_t)(last - first));
    }
    return &s->memo->sums[dt_hash_finish(of->a) >> (64 - SUMS_BITS)];
}

static void stage_on(enum dt_memory_device device, struct dt_memory_memo *memo,
                     const struct dt_plan *p, const struct dt_model *m, const struct dt_cluster *c,
                     int module, int stage, const struct dt_work *work, int64_t n_microbatches,
                     struct dt_memory *out)
{
    const struct dt_plan_module *mp = &p->modules[module];
    static const struct dt_memory_row *const rows[] = {[DT_MEMORY_GPU] = &gpu,
                                                       [DT_MEMORY_CPU] = &dt_memory_row_cpu,
                                                       [DT_MEMORY_EXECUTOR] =
                                                           &dt_memory_row_executor,
                                                       [DT_MEMORY_CARD] = &dt_memory_row_card};
    const struct dt_memory_row *row = rows[device];
    struct dt_memory_lane s = {.p = p,
                               .mp = mp,
                               .row = row,
                               .work = work,
                               .memo = memo,
                               .run = memo ? memo->run[module] : NULL};
    struct dt_memory_flow flow = dt_memory_flow_of(p, m, module, stage, n_microbatches);
    struct sums own = {0}, *x = &own;

    assert(!memo || memo->model == m);
    open_lane(&s, m, module);
    s.deferred = flow.deferred;
    if (memo && device == DT_MEMORY_GPU)
        x = sums_of(&s, module, stage, flow.queue, &own);
    if (x == &own || x->a != own.a || x->b != own.b) {
        *x = own;
        sum_up(&s, m, module, stage, flow.queue, x);
    }
    *out = x->of;
    out->reserve = row->reserve ? c->mem_reserve_bytes : 0;
    out->in_flight = flow.held;
    /* chunks differ by at most a block or so: every chunk-microbatch in flight is charged as the
     * largest one */
    out->activations = x->most * out->in_flight + x->stash * s.deferred + x->workspace;
    out->beside = x->most * (flow.held - flow.beside_guests);
    out->logits_workspace += x->waiting * (flow.losses - 1);
    out->host += out->away_host;
    out->params += out->wire;
    out->broker = row->messages * x->messages + batches(&s, out->in_flight, n_microbatches);
    out->total = out->params + out->grads + out->optimizer + out->activations +
                 out->logits_workspace + out->broker + out->reserve +
                 (device == DT_MEMORY_CPU ? out->host : 0);
}

void dt_memory_stage_on(enum dt_memory_device device, const struct dt_plan *p,
                        const struct dt_model *m, const struct dt_cluster *c, int module, int stage,
                        const struct dt_work *work, int64_t n_microbatches, struct dt_memory *out)
{
    stage_on(device, NULL, p, m, c, module, stage, work, n_microbatches, out);
}

static enum dt_memory_device device_of(const struct dt_cluster *c)
{
    return dt_cluster_is_cpu(c) ? DT_MEMORY_CPU : DT_MEMORY_GPU;
}

void dt_memory_stage(const struct dt_plan *p, const struct dt_model *m, const struct dt_cluster *c,
                     int module, int stage, const struct dt_work *work, int64_t n_microbatches,
                     struct dt_memory *out)
{
    stage_on(device_of(c), NULL, p, m, c, module, stage, work, n_microbatches, out);
}

void dt_memory_stage_again(struct dt_memory_memo *memo, const struct dt_plan *p,
                           const struct dt_model *m, const struct dt_cluster *c, int module,
                           int stage, const struct dt_work *work, int64_t n_microbatches,
                           struct dt_memory *out)
{
    stage_on(device_of(c), memo, p, m, c, module, stage, work, n_microbatches, out);
}
