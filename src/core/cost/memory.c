/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * The memory model (mixed precision AdamW; DESIGN section 4):
 *
 *   parameters   2 B each (bf16)
 *   gradients    4 B of each trained one (fp32)
 *   optimizer   12 B of each trained one (master, m and v); divided over the data-parallel ranks
 *                under ZeRO-1
 *   activations  of a microbatch, times the microbatches in flight
 *   logits       where the LM head is
 *   buffers      of what crosses a module's boundary
 *   reserve      of the GPU */
#include "core/cost/memory.h"
#include "core/model/boundary.h"
#include "core/cost/memory_cpu.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

enum { PARAM_BYTES = 2, GRAD_BYTES = 4, OPTIMIZER_BYTES = 12 };
/* bf16 logits and their fp32 softmax, which becomes the gradient in place. */
enum { LOGIT_BYTES = 2 + 4 };
enum { BUFFERS = 2 /* one in use, one in transfer */ };
#define GIB 1073741824.0

/* ---- microbatches in flight ---- */

static int behind(const struct dt_plan *p, const struct dt_model *m, int module, bool stages);

/* The lane as its schedule sees it. */
static struct dt_pipe_lane pipe_lane(const struct dt_plan *p, const struct dt_model *m, int module,
                                     int stage, int64_t n)
{
    const struct dt_plan_layout *l = &p->modules[module].layout;
    bool bounded = dt_pipe_of(p->policy.schedule)->bounded;

    return (struct dt_pipe_lane){l->pp, l->vpp, stage, bounded ? behind(p, m, module, false) : 0,
                                 n};
}

/* The largest of the schedule's depths (or of the number of stages) over the paths that leave the module. */
static int behind(const struct dt_plan *p, const struct dt_model *m, int module, bool stages)
{
    int most = 0;

    for (int e = 0; e < m->n_edges; e++) {
        int dst = m->edges[e].dst, d;
        struct dt_pipe_lane l;

        if (m->edges[e].src != module)
            continue;
        if (stages) {
            d = p->modules[dst].layout.pp + behind(p, m, dst, true);
        } else {
            l = pipe_lane(p, m, dst, 0, 0);
            d = dt_pipe_of(p->policy.schedule)->depth(&l);
        }
        d -= p->colocated; /* its first stage takes turns with our last instead of overlapping */
        most = d > most ? d : most;
    }
    return most;
}

int dt_memory_stages_after(const struct dt_plan *p, const struct dt_model *m, int module, int stage)
{
    return p->modules[module].layout.pp - 1 - stage + behind(p, m, module, true);
}

int dt_memory_in_flight(const struct dt_plan *p, const struct dt_model *m, int module, int stage,
                        int64_t n_microbatches)
{
    struct dt_pipe_lane l = pipe_lane(p, m, module, stage, n_microbatches);
    int64_t want = dt_pipe_of(p->policy.schedule)->in_flight(&l);

    return want > INT32_MAX ? INT32_MAX : (int)want;
}

/* ---- messages that wait at a stage ----
 *
 * A lane with backwards has a message under way or unread only for what it holds itself: the
 * backward that frees it comes after the consumer's.  Of those the consumer holds its own share, so
 * at worst (its own share full) the difference waits.  A lane without backwards may run until its
 * bound is unread (its credits), whatever the consumer holds. */

static int chunks_held(const struct dt_plan *p, const struct dt_model *m, int module, int stage)
{
    const struct dt_plan_module *mp = &p->modules[module];
    int n = 0;

    for (int v = stage; v < mp->layout.pp * mp->layout.vpp; v += mp->layout.pp) {
        bool backward = dt_plan_upstream_trained(p, m, module, mp->split[v]);

        for (int b = mp->split[v]; b < mp->split[v + 1] && !backward; b++)
            backward = dt_plan_trained(p, m, module, b);
        n += backward;
    }
    return n;
}

bool dt_memory_forward_only(const struct dt_plan *p, const struct dt_model *m, int module,
                            int stage)
{
    return chunks_held(p, m, module, stage) == 0;
}

/* Messages of (u, stage) that may wait at a consumer that holds `here` microbatches. */
static int waiting(const struct dt_plan *p, const struct dt_model *m, int u, int stage, bool last,
                   int64_t n, int here)
{
    int held = chunks_held(p, m, u, stage), bound = dt_memory_in_flight(p, m, u, stage, n);

    if (held == 0)
        return bound;
    /* before the backward of its last chunk a microbatch holds all of them */
    return (last ? bound / held : bound) - here;
}

int dt_memory_queue(const struct dt_plan *p, const struct dt_model *m, int module, int stage,
                    int64_t n_microbatches)
{
    const struct dt_plan_layout *l = &p->modules[module].layout;
    int here = dt_memory_in_flight(p, m, module, stage, n_microbatches), most = BUFFERS, w;
    int held = chunks_held(p, m, module, stage);

    if (l->pp > 1 && (stage > 0 || l->vpp > 1)) {
        w = waiting(p, m, module, (stage + l->pp - 1) % l->pp, false, n_microbatches,
                    held > 0 ? here : 0);
        most = w > most ? w : most;
    }
    for (int e = 0; stage == 0 && e < m->n_edges; e++) {
        int u = m->edges[e].src;

        if (m->edges[e].dst != module)
            continue;
        w = waiting(p, m, u, p->modules[u].layout.pp - 1, true, n_microbatches,
                    held > 0 ? here / held : 0);
        most = w > most ? w : most;
    }
    return most;
}

/* ---- bytes of a stage ---- */

/* Norm tables, patch and time embeddings are whole on every rank. */
double dt_memory_params(const struct dt_block *b, const struct dt_plan_layout *l)
{
    double all = (double)dt_block_params(b), experts = 0;

    if (b->kind == DT_BLOCK_NORM || b->kind == DT_BLOCK_PATCH_EMBED ||
        b->kind == DT_BLOCK_TIME_EMBED)
        return all;
    if (b->n_experts > 0)
        experts = (double)b->n_experts * (b->gated ? 3 : 2) * b->hidden * b->ffn;
    return (all - experts + experts / (l->ep > 1 ? l->ep : 1)) / (l->tp > 1 ? l->tp : 1);
}

static bool is_unet_block(const struct dt_block *b)
{
    return b->kind == DT_BLOCK_CONV || b->kind == DT_BLOCK_RESNET ||
           b->kind == DT_BLOCK_SPATIAL_TRANSFORMER || b->kind == DT_BLOCK_TIME_EMBED;
}

struct stage {
    const struct dt_plan *p;
    const struct dt_module *mod;
    const struct dt_plan_module *mp;
    struct dt_block_shard shard;
    const struct dt_work *work;
    double tokens;      /* of the fullest rank */
    double working_set; /* kernels run again before a backward bring their outputs back for one
                           block */
    double largest;     /* activations of the largest block, all kept */
    bool backward;
    const struct dt_block *seen; /* the block that the next three numbers are of */
    double params, whole, kept;
};

/* Stacks repeat one block: ask the model once per run of equal ones. */
static void look_at(struct stage *s, const struct dt_block *b)
{
    const struct dt_plan_layout *l = &s->mp->layout;

    if (s->seen && memcmp(s->seen, b, sizeof(*b)) == 0)
        return;
    s->seen = b;
    s->params = dt_memory_params(b, l);
    if (b->kind == DT_BLOCK_LM_HEAD && b->tied && l->pp * l->vpp > 1)
        /* the head's stage holds its own copy of the embedding table */
        s->params += (double)b->vocab * b->hidden / (l->tp > 1 ? l->tp : 1);
    s->whole = dt_block_act_bytes(b, &s->shard, s->work, DT_RECOMPUTE_NONE);
    s->kept = dt_block_act_bytes(b, &s->shard, s->work, s->p->policy.recompute);
    s->working_set = fmax(s->working_set, s->whole - s->kept);
    s->largest = fmax(s->largest, s->whole);
}

static void charge_block(struct stage *s, const struct dt_block *b, bool trained,
                         struct dt_memory *out)
{
    const struct dt_plan_layout *l = &s->mp->layout;
    double ranks = s->p->policy.zero > 0 ? (double)l->dp * l->cp * l->ip : 1;

    look_at(s, b);
    out->params += PARAM_BYTES * s->params;
    if (trained) {
        out->grads += GRAD_BYTES * s->params;
        out->optimizer += OPTIMIZER_BYTES * s->params / ranks;
    }
    if (b->kind == DT_BLOCK_LM_HEAD)
        out->logits_workspace += LOGIT_BYTES * s->tokens * ceil((double)b->vocab / s->shard.tp);
}

/* Bytes per rank behind the first `end` blocks.  Ranks of a transformer with sequence parallelism
 * hold their share of the tokens, those of a U-Net the whole of every tensor. */
static double inner_bytes(const struct stage *s, int end)
{
    const struct dt_block *b = &s->mod->blocks[end - 1];
    struct dt_boundary wire;
    double items = (double)s->work->n / (s->shard.ip > 1 ? s->shard.ip : 1), sum;

    dt_block_boundary(s->mod, end, dt_plan_policy_elem_bytes(&s->p->policy), &wire);
    sum = (double)wire.item_bytes * ceil(items);
    for (int l = 0; l < wire.n_levels; l++)
        sum += ldexp(s->tokens, -2 * l) * (double)wire.token_bytes[l];
    return sum / (s->shard.seqpar && !is_unet_block(b) ? s->shard.tp : 1);
}

/* What the module takes in: its own width per token, or the conditioning states of each item. */
static double input_bytes(const struct stage *s)
{
    const struct dt_block *b = &s->mod->blocks[0];
    double elem = dt_plan_policy_elem_bytes(&s->p->policy);

    if (b->kind == DT_BLOCK_PROJECTOR && b->context_len > 0)
        return elem * (double)b->in_dim * b->context_len * (double)s->work->n;
    return elem * s->tokens * (b->kind == DT_BLOCK_PROJECTOR ? b->out_dim : b->hidden) /
           (s->shard.seqpar ? s->shard.tp : 1);
}

/* Receive buffers for `queue` microbatches, send buffers for one in use and one in transfer. */
static double broker_bytes(const struct stage *s, int first, int last, int queue)
{
    double in = first > 0 ? inner_bytes(s, first) : input_bytes(s), out;
    double elem = dt_plan_policy_elem_bytes(&s->p->policy);

    if (last < s->mod->n_blocks)
        out = inner_bytes(s, last);
    else if (s->mod->out_tokens_per_item > 0)
        out = elem * (double)s->mod->out_width * s->mod->out_tokens_per_item * (double)s->work->n;
    else
        out = elem * (double)s->mod->out_width * s->tokens;
    return queue * in + BUFFERS * out;
}

void dt_memory_gpu_stage(const struct dt_plan *p, const struct dt_model *m,
                         const struct dt_cluster *c, int module, int stage,
                         const struct dt_work *work, int64_t n_microbatches, struct dt_memory *out)
{
    const struct dt_plan_module *mp = &p->modules[module];
    const struct dt_plan_layout *l = &mp->layout;
    struct stage s = {.p = p, .mod = &m->modules[module], .mp = mp, .work = work};
    int queue = dt_memory_queue(p, m, module, stage, n_microbatches);
    double most = 0;

    *out = (struct dt_memory){.reserve = c->mem_reserve_bytes};
    s.shard = (struct dt_block_shard){l->tp, l->cp, l->ep, l->ip, l->tp > 1};
    s.tokens = (double)work->tokens / (l->ip > 1 ? l->ip : 1);
    if (l->ip > 1 && s.tokens < (double)work->tokens_max)
        s.tokens = (double)work->tokens_max;
    s.tokens /= l->cp > 1 ? l->cp : 1;
    for (int chunk = 0; chunk < l->vpp; chunk++) {
        int v = chunk * l->pp + stage, first = mp->split[v], last = mp->split[v + 1];
        bool above = first < last && dt_plan_upstream_trained(p, m, module, first);
        double act = 0, broker;

        for (int b = first; b < last; b++) {
            bool trained = dt_plan_trained(p, m, module, b);

            above |= trained;
            charge_block(&s, &s.mod->blocks[b], trained, out);
            if (above) /* below the first trained block nothing is kept for a backward */
                act += s.kept;
        }
        s.backward |= above;
        most = act > most ? act : most;
        broker = first < last ? broker_bytes(&s, first, last, queue) : 0;
        out->broker = broker > out->broker ? broker : out->broker;
    }
    out->in_flight = dt_memory_in_flight(p, m, module, stage, n_microbatches);
    /* chunks differ by at most a block or so: every chunk-microbatch in flight is charged as the
     * largest one */
    out->activations = most * out->in_flight + (s.backward ? s.working_set : s.largest);
    out->total = out->params + out->grads + out->optimizer + out->activations +
                 out->logits_workspace + out->broker + out->reserve;
}

/* ---- either ---- */

static void process_stage(const struct dt_plan *p, const struct dt_model *m,
                          const struct dt_cluster *c, int module, int stage,
                          const struct dt_work *work, int64_t n_microbatches, struct dt_memory *out)
{
    struct dt_memory_cpu s;

    dt_memory_cpu_stage(p, m, c, module, stage, work, n_microbatches,
                        dt_plan_policy_elem_bytes(&p->policy), &s);
    *out =
        (struct dt_memory){.params = s.master + s.packed + s.wire,
                           .grads = s.grads,
                           .optimizer = s.moments,
                           .activations = s.activations + s.workspace,
                           .logits_workspace = s.scratch,
                           .broker = s.messages + s.batches,
                           .total = s.total + s.scratch,
                           .in_flight = dt_memory_in_flight(p, m, module, stage, n_microbatches)};
}

void dt_memory_stage(const struct dt_plan *p, const struct dt_model *m, const struct dt_cluster *c,
                     int module, int stage, const struct dt_work *work, int64_t n_microbatches,
                     struct dt_memory *out)
{
    if (dt_cluster_is_cpu(c))
        process_stage(p, m, c, module, stage, work, n_microbatches, out);
    else
        dt_memory_gpu_stage(p, m, c, module, stage, work, n_microbatches, out);
}

double dt_memory_limit(const struct dt_cluster *c)
{
    return dt_cluster_is_cpu(c) ? c->mem_bytes - c->mem_reserve_bytes : c->mem_bytes;
}

/* ---- the check ---- */

static double gib(double bytes)
{
    return bytes / GIB;
}

struct place {
    int module, stage;
    const struct dt_work *work;
    int64_t n;
};

static int try_change(const struct dt_plan *p, const struct dt_model *m, const struct dt_cluster *c,
                      const struct place *at, const char *what, char *text, size_t size)
{
    struct dt_memory mem;
    int n;

    dt_memory_stage(p, m, c, at->module, at->stage, at->work, at->n, &mem);
    n = snprintf(text, size, "%s%s: %.1f GiB%s", text[-1] == ' ' ? "" : ", ", what, gib(mem.total),
                 mem.total <= c->mem_bytes ? " (fits)" : "");
    return n > 0 && (size_t)n < size ? n : 0;
}

/* What each remedy would bring, computed with the same model. */
static void remedies(const struct dt_plan *p, const struct dt_model *m, const struct dt_cluster *c,
                     const struct place *at, char *text, size_t size)
{
    struct dt_plan q;
    struct dt_plan_layout *l = &q.modules[at->module].layout;
    int k = snprintf(text, size, "this stage with ");

    if (p->policy.recompute != DT_RECOMPUTE_FULL) {
        q = *p;
        q.policy.recompute = DT_RECOMPUTE_FULL;
        k += try_change(&q, m, c, at, "recompute full", text + k, size - (size_t)k);
    }
    if (p->policy.zero == 0) {
        q = *p;
        q.policy.zero = 1;
        k += try_change(&q, m, c, at, "zero 1", text + k, size - (size_t)k);
    }
    q = *p;
    if (l->tp * 2 <= c->gpus_per_node) {
        l->tp *= 2;
        k += try_change(&q, m, c, at, "twice the tp", text + k, size - (size_t)k);
    }
    q = *p;
    if (l->pp * l->vpp * 2 <= DT_MAX_VSTAGES && l->vpp == 1 &&
        q.modules[at->module].split[at->stage + 1] - q.modules[at->module].split[at->stage] > 1) {
        uint16_t *split = q.modules[at->module].split;

        l->pp *= 2; /* a stage with the first half of these blocks, twice as deep a pipeline */
        split[at->stage + 1] = (uint16_t)((split[at->stage] + split[at->stage + 1] + 1) / 2);
        try_change(&q, m, c, at, "twice the pp", text + k, size - (size_t)k);
    }
}

static enum dt_status too_large(const struct dt_plan *p, const struct dt_model *m,
                                const struct dt_cluster *c, const struct place *at,
                                const struct dt_memory *mem, struct dt_error *err)
{
    char help[512];

    if (!err)
        return DT_ERR_INFEASIBLE;
    remedies(p, m, c, at, help, sizeof(help));
    if (dt_cluster_is_cpu(c))
        return dt_error_set(
            err, DT_ERR_INFEASIBLE,
            "%s stage %d needs %.3f GiB of a process, which has %.3f GiB besides its reserve: "
            "parameters and their packed copies %.3f, gradients %.3f, moments %.3f, "
            "activations %.3f (%d in flight), scratch %.3f, messages and batches %.3f; %s",
            m->modules[at->module].name, at->stage, gib(mem->total), gib(dt_memory_limit(c)),
            gib(mem->params), gib(mem->grads), gib(mem->optimizer), gib(mem->activations),
            mem->in_flight, gib(mem->logits_workspace), gib(mem->broker), help);
    return dt_error_set(
        err, DT_ERR_INFEASIBLE,
        "%s stage %d needs %.1f GiB per GPU, the GPU has %.1f GiB: parameters %.1f, gradients "
        "%.1f, "
        "optimizer %.1f, activations %.1f (%d in flight), logits %.1f, transfer buffers %.1f, "
        "reserve %.1f; %s",
        m->modules[at->module].name, at->stage, gib(mem->total), gib(c->mem_bytes),
        gib(mem->params), gib(mem->grads), gib(mem->optimizer), gib(mem->activations),
        mem->in_flight, gib(mem->logits_workspace), gib(mem->broker), gib(mem->reserve), help);
}

/* Colocated modules: the stages that share a GPU add up; the reserve counts once, and so does the
 * scratch of kernels in a process. */
static enum dt_status check_shared(const struct dt_plan *p, const struct dt_model *m,
                                   const struct dt_cluster *c, const struct dt_work *work,
                                   int64_t n, double *most, struct dt_error *err)
{
    bool cpu = dt_cluster_is_cpu(c);

    for (int gpu = 0; gpu < dt_plan_gpus(p); gpu++) {
        double sum = 0, shared = 0;

        for (int module = 0; module < p->n_modules; module++) {
            const struct dt_plan_layout *l = &p->modules[module].layout;
            int stage = gpu / dt_plan_layout_lane_gpus(l) / l->dp;
            struct dt_memory mem;
            double once;

            if (stage >= l->pp)
                continue;
            dt_memory_stage(p, m, c, module, stage, &work[module], n, &mem);
            once = cpu ? mem.logits_workspace : mem.reserve;
            sum += mem.total - fmin(once, shared);
            shared = fmax(once, shared);
        }
        if (sum > dt_memory_limit(c))
            return dt_error_set(err, DT_ERR_INFEASIBLE,
                                "colocated modules need %.2f GiB of %s %d, cluster %s has %.2f "
                                "GiB; more %s, a smaller microbatch or recomputation would help",
                                sum / GIB, cpu ? "process" : "GPU", gpu, c->name,
                                dt_memory_limit(c) / GIB, cpu ? "processes" : "GPUs");
        *most = sum > *most ? sum : *most;
    }
    return DT_OK;
}

enum dt_status dt_memory_check(const struct dt_plan *p, const struct dt_model *m,
                               const struct dt_cluster *c, const struct dt_work *work,
                               double *max_bytes, struct dt_error *err)
{
    int64_t n = dt_plan_slots(p, m->llm);
    double most = 0;

    for (int module = 0; module < p->n_modules; module++) {
        for (int stage = 0; stage < p->modules[module].layout.pp; stage++) {
            struct place at = {module, stage, &work[module], n > 0 ? n : 1};
            struct dt_memory mem;

            dt_memory_stage(p, m, c, module, stage, at.work, at.n, &mem);
            if (mem.total > dt_memory_limit(c))
                return too_large(p, m, c, &at, &mem, err);
            most = mem.total > most ? mem.total : most;
        }
    }
    if (p->colocated)
        DT_TRY(check_shared(p, m, c, work, n > 0 ? n : 1, &most, err));
    if (max_bytes)
        *max_bytes = most;
    return DT_OK;
}
