/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Memory of a lane on a CPU.  The sizes of temporaries follow the blocks of the executor (backward
 * in exec/modules/block_*.c), those of scratch its kernels (conv_bwd_weight, xent). */
#include "core/cost/memory_cpu.h"
#include "core/cost/memory.h"

#include <math.h>

/* derived: the limits of kernels/cpu/products.c and softmax_simd.c */
#define SLAB_BYTES 8388608.0
#define LOGITS_BYTES 335544320.0
enum { SLAB_ROWS = 256, CHUNK_MAX = 1024, CHUNK_MIN = 16, LOGITS_WIDE = 1024 };
enum { MASTER_BYTES = 4, MOMENT_BYTES = 8 };
/* derived from what a batch holds: ids, targets, positions, rows, loss; on host and device */
enum { BATCH_TOKEN_BYTES = 64, PIXEL_BYTES = 2 * 4, NOISE_BYTES = 2 * 4 };

struct lane {
    const struct dt_plan *p;
    const struct dt_module *mod;
    const struct dt_plan_layout *l;
    struct dt_block_shard shard;
    const struct dt_work *work;
    double e, tp, tokens, own; /* bytes of an element; tokens here, between blocks */
};

static double level_tokens(const struct lane *s, const struct dt_block *b)
{
    return ldexp(s->tokens, -2 * b->level);
}

/* Channels that a block hands on; 0 = none that matter. */
static int channels_out(const struct dt_block *b)
{
    return b->kind == DT_BLOCK_SPATIAL_TRANSFORMER                  ? b->hidden
           : b->kind == DT_BLOCK_CONV || b->kind == DT_BLOCK_RESNET ? b->c_out
                                                                    : 0;
}

/* Channels of the skip that a ResBlock joins to what comes from the block before. */
static int skip_channels(const struct lane *s, int i)
{
    const struct dt_block *b = &s->mod->blocks[i];

    if (b->kind != DT_BLOCK_RESNET || i == 0 || channels_out(b - 1) == 0)
        return 0;
    return b->c_in > channels_out(b - 1) ? b->c_in - channels_out(b - 1) : 0;
}

/* The larger of what goes into a block and what comes out. */
static double flow_bytes(const struct lane *s, int i)
{
    const struct dt_block *b = &s->mod->blocks[i];
    double rows = level_tokens(s, b), in = b->c_in - skip_channels(s, i), out = b->c_out;

    switch (b->kind) {
    case DT_BLOCK_CONV:
        return s->e * rows * fmax(in, out * (b->upsample ? 4 : b->stride > 1 ? 0.25 : 1));
    case DT_BLOCK_RESNET:
        return s->e * rows * fmax(in, out);
    case DT_BLOCK_SPATIAL_TRANSFORMER:
        return s->e * rows * b->hidden;
    case DT_BLOCK_PROJECTOR:
        rows = b->context_len > 0 ? (double)s->work->n * b->context_len : s->own;
        return s->e * rows * fmax(b->in_dim, b->out_dim);
    case DT_BLOCK_TIME_EMBED:
        return 0;
    case DT_BLOCK_EMBEDDING:
    case DT_BLOCK_PATCH_EMBED:
    case DT_BLOCK_TRANSFORMER:
    case DT_BLOCK_LM_HEAD:
    case DT_BLOCK_NORM:
    case DT_BLOCK_KIND_N:
        break;
    }
    return s->e * s->own * b->hidden;
}

static double transformer_bytes(const struct lane *s, const struct dt_block *b)
{
    double q = ceil(b->heads / s->tp) * b->head_dim, kv = ceil(b->kv_heads / s->tp) * b->head_dim;
    double f = ceil(b->ffn / s->tp), width = q + 2 * kv + q; /* of qkv and of the output */

    width += b->gated ? 3 * f : f;
    width += b->qk_norm ? 3 * (q + kv) : 0;
    width += s->tp > 1 ? 3.0 * b->hidden : 0; /* whole rows, gathered and summed */
    return s->e * (s->tokens * width + 2 * s->own * b->hidden);
}

static double spatial_bytes(const struct lane *s, const struct dt_block *b)
{
    double rows = level_tokens(s, b), w = ceil(b->heads / s->tp) * b->head_dim;
    double f = ceil(b->ffn / s->tp), states = (double)s->work->n * b->context_len;

    return s->e * (rows * (3 * f + 5 * w + 6.0 * b->hidden) +
                   2 * w * (b->context_len > 0 ? states : rows));
}

static double conv_bytes(const struct lane *s, int i)
{
    const struct dt_block *b = &s->mod->blocks[i];
    double rows = level_tokens(s, b);

    if (b->upsample) /* the large input, and it and its gradient again in the backward */
        return s->e * rows * 12 * b->c_in;
    if (b->layernorm) /* the last: prediction and its gradient, in fp32 too */
        return rows * (s->e * (b->c_in + 2.0 * b->c_out) + 4.0 * b->c_out);
    return i < s->mod->n_blocks - 1 && b->stride == 1 ? 4 * rows * b->c_in : 0; /* noisy latents */
}

/* Temporaries of forward and backward of a block. */
static double temporaries(const struct lane *s, int i)
{
    const struct dt_block *b = &s->mod->blocks[i];
    double rows = level_tokens(s, b), mid = ceil(b->c_out / s->tp);

    switch (b->kind) {
    case DT_BLOCK_TRANSFORMER:
        return transformer_bytes(s, b);
    case DT_BLOCK_LM_HEAD:
        return s->e * (s->own + (s->tp > 1 ? 3 * s->tokens : 0)) * b->hidden;
    case DT_BLOCK_PROJECTOR:
        rows = b->context_len > 0 ? (double)s->work->n * b->context_len : s->tokens;
        return s->e * rows * ceil(b->mid_dim / s->tp);
    case DT_BLOCK_RESNET:
        return s->e * rows *
               (mid + b->c_in * (skip_channels(s, i) > 0 ? 2.0 : 1.0) +
                (s->tp > 1 && b->c_in != b->c_out ? (double)b->c_in * (1 + 1 / s->tp) : 0));
    case DT_BLOCK_SPATIAL_TRANSFORMER:
        return spatial_bytes(s, b);
    case DT_BLOCK_CONV:
        return conv_bytes(s, i);
    case DT_BLOCK_EMBEDDING:
    case DT_BLOCK_PATCH_EMBED:
    case DT_BLOCK_NORM:
    case DT_BLOCK_TIME_EMBED:
    case DT_BLOCK_KIND_N:
        break;
    }
    return 0;
}

/* Weights of products. */
static double packed_elems(const struct lane *s, const struct dt_block *b)
{
    switch (b->kind) {
    case DT_BLOCK_EMBEDDING:
    case DT_BLOCK_NORM:
        return 0;
    case DT_BLOCK_PATCH_EMBED:
        return (double)b->patch * b->patch * b->channels * b->hidden;
    case DT_BLOCK_LM_HEAD:
        return (double)b->vocab * b->hidden / s->tp;
    case DT_BLOCK_TRANSFORMER:
    case DT_BLOCK_PROJECTOR:
    case DT_BLOCK_CONV:
    case DT_BLOCK_RESNET:
    case DT_BLOCK_SPATIAL_TRANSFORMER:
    case DT_BLOCK_TIME_EMBED:
    case DT_BLOCK_KIND_N:
        break;
    }
    return dt_memory_params(b, s->l);
}

/* A chunk of logits and, where it does not take their place, their gradient. */
static double logits_bytes(const struct lane *s, double vocab)
{
    double block = vocab < LOGITS_WIDE ? 32 : 64, each = s->e < 4 ? 4 + s->e : 4, rows, even;

    each *= ceil(vocab / block) * block;
    rows = fmax(CHUNK_MIN, fmin(CHUNK_MAX, floor(LOGITS_BYTES / each / CHUNK_MIN) * CHUNK_MIN));
    even = ceil(s->tokens / fmax(1, ceil(s->tokens / rows))); /* chunks of equal length */
    return fmin(s->tokens, ceil(even / CHUNK_MIN) * CHUNK_MIN) * each;
}

static double scratch_bytes(const struct lane *s, const struct dt_block *b)
{
    double rows, width;

    if (b->kind == DT_BLOCK_LM_HEAD)
        return logits_bytes(s, ceil(b->vocab / s->tp));
    if ((b->kind != DT_BLOCK_CONV && b->kind != DT_BLOCK_RESNET) || b->kernel < 2)
        return 0;
    width = (double)b->kernel * b->kernel *
            (b->kind == DT_BLOCK_RESNET && b->c_out > b->c_in ? b->c_out : b->c_in);
    rows = fmax(SLAB_ROWS, floor(SLAB_BYTES / (s->e * width) / SLAB_ROWS) * SLAB_ROWS);
    rows = fmin(rows, level_tokens(s, b) * (b->upsample ? 4 : b->stride > 1 ? 0.25 : 1));
    return 4.0 * b->c_out * width + s->e * rows * width;
}

static double batch_bytes(const struct lane *s)
{
    const struct dt_block *b = &s->mod->blocks[0];

    for (int i = 0; i < s->mod->n_blocks; i++) {
        b = &s->mod->blocks[i];
        if (b->kind == DT_BLOCK_PATCH_EMBED)
            return s->tokens * (PIXEL_BYTES * b->patch * b->patch * b->channels + 8);
        if (b->kind == DT_BLOCK_CONV)
            return s->tokens * (PIXEL_BYTES + NOISE_BYTES) * b->c_in;
    }
    return s->tokens * BATCH_TOKEN_BYTES;
}

/* Conditioning states and time embeddings of a U-Net. */
static double states_bytes(const struct lane *s, int first, int last)
{
    double most = 0;

    for (int i = first; i < last; i++) {
        const struct dt_block *b = &s->mod->blocks[i];

        most = fmax(most, (double)b->context_len * b->context_dim + b->time_dim);
    }
    return s->e * (double)s->work->n * most;
}

/* Of a trained block, as its replicas gather it.  (A table that two stages share is stepped by all.)
 */
static double wire_bytes(const struct lane *s, const struct dt_block *b)
{
    const struct dt_block *head = &s->mod->blocks[s->mod->n_blocks - 1];
    bool shared = head->kind == DT_BLOCK_LM_HEAD && head->tied && s->l->pp * s->l->vpp > 1;
    struct dt_block_param_counts p = dt_block_param_count(b);
    double all = (double)(p.matrices + p.vectors), bytes;

    if (shared && b->kind == DT_BLOCK_EMBEDDING)
        p.matrices = 0;
    bytes = s->e * (double)p.matrices + MASTER_BYTES * (double)p.vectors;
    return all > 0 ? bytes * dt_memory_params(b, s->l) / all : 0;
}

/* One virtual stage has memory of its own. */
static void charge_chunk(const struct lane *s, int module, const struct dt_model *m, int first,
                         int last, double *kept, struct dt_memory_cpu *out)
{
    double replicas = s->p->policy.zero > 0 ? (double)s->l->dp * s->l->cp * s->l->ip : 1;
    double flow = 0, temp = 0, params = 0, skips = 0;
    bool above = dt_plan_upstream_trained(s->p, m, module, first), any = false;

    for (int i = first; i < last; i++) {
        const struct dt_block *b = &s->mod->blocks[i];
        bool trained = dt_plan_trained(s->p, m, module, i);
        double n = dt_memory_params(b, s->l), keeps, whole;

        if (b->kind == DT_BLOCK_LM_HEAD && b->tied && s->l->pp * s->l->vpp > 1)
            n += (double)b->vocab * b->hidden / s->tp; /* a copy of the embedding's table */
        above |= trained;
        any |= trained;
        params += n;
        out->moments += trained ? MOMENT_BYTES * n / replicas : 0;
        out->wire += trained && replicas > 1 && s->e < MASTER_BYTES ? wire_bytes(s, b) : 0;
        out->packed +=
            s->e * packed_elems(s, b) * (above && b->kind != DT_BLOCK_PATCH_EMBED ? 2 : 1);
        whole = dt_block_act_bytes_of(b, &s->shard, s->work, DT_RECOMPUTE_NONE, (int)s->e);
        keeps =
            above ? dt_block_act_bytes_of(b, &s->shard, s->work, s->p->policy.recompute, (int)s->e)
                  : 0;
        *kept += keeps;
        temp = fmax(temp, whole - keeps + (above ? temporaries(s, i) : 0));
        flow = fmax(flow, flow_bytes(s, i));
        skips += above ? s->e * level_tokens(s, b) * skip_channels(s, i) : 0;
        out->scratch =
            fmax(out->scratch, trained || b->kind == DT_BLOCK_LM_HEAD ? scratch_bytes(s, b) : 0);
    }
    out->master += MASTER_BYTES * params;
    out->grads += any ? MASTER_BYTES * params : 0;
    out->workspace += 2 * flow + temp + skips + states_bytes(s, first, last);
    *kept += states_bytes(s, first, last);
}

void dt_memory_cpu_stage(const struct dt_plan *p, const struct dt_model *m,
                         const struct dt_cluster *c, int module, int stage,
                         const struct dt_work *work, int64_t n_microbatches, int elem_bytes,
                         struct dt_memory_cpu *out)
{
    const struct dt_plan_module *mp = &p->modules[module];
    const struct dt_plan_layout *l = &mp->layout;
    struct lane s = {.p = p, .mod = &m->modules[module], .l = l, .work = work};
    struct dt_memory gpu;
    double most = 0;

    *out = (struct dt_memory_cpu){0};
    s.e = elem_bytes;
    s.tp = l->tp > 1 ? l->tp : 1;
    s.shard = (struct dt_block_shard){l->tp, l->cp, l->ep, l->ip, l->tp > 1};
    s.tokens = (double)work->tokens / (l->ip > 1 ? l->ip : 1) / (l->cp > 1 ? l->cp : 1);
    s.own = ceil(s.tokens / s.tp);
    dt_memory_gpu_stage(p, m, c, module, stage, work, n_microbatches, &gpu);
    for (int chunk = 0; chunk < l->vpp; chunk++) {
        int v = chunk * l->pp + stage;
        double kept = 0;

        if (mp->split[v] < mp->split[v + 1])
            charge_chunk(&s, module, m, mp->split[v], mp->split[v + 1], &kept, out);
        most = fmax(most, kept);
    }
    out->activations = most * gpu.in_flight;
    out->messages = 2 * gpu.broker; /* and their gradients */
    out->batches = batch_bytes(&s) * gpu.in_flight;
    out->total = out->master + out->grads + out->moments + out->wire + out->packed +
                 out->activations + out->workspace + out->messages + out->batches;
}
