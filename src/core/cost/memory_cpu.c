/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * What a lane takes of a CPU rank's memory when it is executed, where it differs from a GPU's: the
 * master copy is the parameters, products read copies of the weights in layouts of their own, and
 * temporaries, which a GPU's reserve covers, are counted.
 *
 *   packed     weights of products in the job's precision, once as the forward reads them and once
 *              as the gradient of the input does (oneDNN's layouts); no tables
 *   wire       what replicas gather of parameters under ZeRO-1, in a job's bf16: 2 B of matrices,
 *              4 B of the rest; in fp32 they are gathered where they lie
 *   working    the temporaries of a block: gradients inside it, and what recompute or no backward
 *              keeps out of the activations
 *   beside     of a stage: two tensors between blocks, gradients of skips and of conditioning states
 *   states     conditioning states and time embeddings, kept with the activations
 *   batch      ids, targets, pixels and noise of a microbatch
 *   scratch    of kernels: logits of a chunk of rows and their gradient, or the gathered rows and
 *              the sum of a filter's gradient.  One for all lanes of a rank.
 *
 * The sizes of temporaries follow the blocks of the executor (backward in exec/modules/block_*.c),
 * those of scratch its kernels (conv_bwd_weight, xent). */
#include "core/cost/memory_impl.h"

#include <math.h>

/* derived: the limits of kernels/cpu/products.c and softmax_simd.c */
#define SLAB_BYTES 8388608.0
#define LOGITS_BYTES 335544320.0
enum { SLAB_ROWS = 256, CHUNK_MAX = 1024, CHUNK_MIN = 16, LOGITS_WIDE = 1024 };
enum { MASTER_BYTES = 4, MOMENT_BYTES = 8 };
/* derived from what a batch holds: ids, targets, positions, rows, loss; on host and device */
enum { BATCH_TOKEN_BYTES = 64, PIXEL_BYTES = 2 * 4, NOISE_BYTES = 2 * 4 };

static double tp(const struct dt_memory_lane *s)
{
    return s->shard.tp > 1 ? s->shard.tp : 1;
}

static double level_tokens(const struct dt_memory_lane *s, const struct dt_block *b)
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
static int skip_channels(const struct dt_memory_lane *s, int i)
{
    const struct dt_block *b = &s->mod->blocks[i];

    if (b->kind != DT_BLOCK_RESNET || i == 0 || channels_out(b - 1) == 0)
        return 0;
    return b->c_in > channels_out(b - 1) ? b->c_in - channels_out(b - 1) : 0;
}

/* The larger of what goes into a block and what comes out. */
static double flow_bytes(const struct dt_memory_lane *s, int i)
{
    const struct dt_block *b = &s->mod->blocks[i];
    double rows = level_tokens(s, b), in = b->c_in - skip_channels(s, i), out = b->c_out;

    switch (b->kind) {
    case DT_BLOCK_CONV:
        return s->elem * rows * fmax(in, out * (b->upsample ? 4 : b->stride > 1 ? 0.25 : 1));
    case DT_BLOCK_RESNET:
        return s->elem * rows * fmax(in, out);
    case DT_BLOCK_SPATIAL_TRANSFORMER:
        return s->elem * rows * b->hidden;
    case DT_BLOCK_PROJECTOR:
        rows = b->context_len > 0 ? (double)s->work->n * b->context_len : s->own;
        return s->elem * rows * fmax(b->in_dim, b->out_dim);
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
    return s->elem * s->own * b->hidden;
}

static double transformer_bytes(const struct dt_memory_lane *s, const struct dt_block *b)
{
    double q = ceil(b->heads / tp(s)) * b->head_dim, kv = ceil(b->kv_heads / tp(s)) * b->head_dim;
    double f = ceil(b->ffn / tp(s)), width = q + 2 * kv + q; /* of qkv and of the output */

    width += b->gated ? 3 * f : f;
    width += b->qk_norm ? 3 * (q + kv) : 0;
    width += tp(s) > 1 ? 3.0 * b->hidden : 0; /* whole rows, gathered and summed */
    return s->elem * (s->tokens * width + 2 * s->own * b->hidden);
}

static double spatial_bytes(const struct dt_memory_lane *s, const struct dt_block *b)
{
    double rows = level_tokens(s, b), w = ceil(b->heads / tp(s)) * b->head_dim;
    double f = ceil(b->ffn / tp(s)), states = (double)s->work->n * b->context_len;

    return s->elem * (rows * (3 * f + 5 * w + 6.0 * b->hidden) +
                      2 * w * (b->context_len > 0 ? states : rows));
}

static double conv_bytes(const struct dt_memory_lane *s, int i)
{
    const struct dt_block *b = &s->mod->blocks[i];
    double rows = level_tokens(s, b);

    if (b->upsample) /* the large input, and it and its gradient again in the backward */
        return s->elem * rows * 12 * b->c_in;
    if (b->layernorm) /* the last: prediction and its gradient, in fp32 too */
        return rows * (s->elem * (b->c_in + 2.0 * b->c_out) + 4.0 * b->c_out);
    return i < s->mod->n_blocks - 1 && b->stride == 1 ? 4 * rows * b->c_in : 0; /* noisy latents */
}

/* Temporaries of forward and backward of a block. */
static double temporaries(const struct dt_memory_lane *s, int i)
{
    const struct dt_block *b = &s->mod->blocks[i];
    double rows = level_tokens(s, b), mid = ceil(b->c_out / tp(s));

    switch (b->kind) {
    case DT_BLOCK_TRANSFORMER:
        return transformer_bytes(s, b);
    case DT_BLOCK_LM_HEAD:
        return s->elem * (s->own + (tp(s) > 1 ? 3 * s->tokens : 0)) * b->hidden;
    case DT_BLOCK_PROJECTOR:
        rows = b->context_len > 0 ? (double)s->work->n * b->context_len : s->tokens;
        return s->elem * rows * ceil(b->mid_dim / tp(s));
    case DT_BLOCK_RESNET:
        return s->elem * rows *
               (mid + b->c_in * (skip_channels(s, i) > 0 ? 2.0 : 1.0) +
                (tp(s) > 1 && b->c_in != b->c_out ? (double)b->c_in * (1 + 1 / tp(s)) : 0));
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
static double packed_elems(const struct dt_memory_lane *s, const struct dt_block *b)
{
    switch (b->kind) {
    case DT_BLOCK_EMBEDDING:
    case DT_BLOCK_NORM:
        return 0;
    case DT_BLOCK_PATCH_EMBED:
        return (double)b->patch * b->patch * b->channels * b->hidden;
    case DT_BLOCK_LM_HEAD:
        return (double)b->vocab * b->hidden / tp(s);
    case DT_BLOCK_TRANSFORMER:
    case DT_BLOCK_PROJECTOR:
    case DT_BLOCK_CONV:
    case DT_BLOCK_RESNET:
    case DT_BLOCK_SPATIAL_TRANSFORMER:
    case DT_BLOCK_TIME_EMBED:
    case DT_BLOCK_KIND_N:
        break;
    }
    return dt_memory_params(b, &s->mp->layout);
}

/* As the forward reads them and, where there is one, as the gradient of the input does. */
static double packed(const struct dt_memory_lane *s, int i, bool above)
{
    const struct dt_block *b = &s->mod->blocks[i];

    return s->elem * packed_elems(s, b) * (above && b->kind != DT_BLOCK_PATCH_EMBED ? 2 : 1);
}

/* A chunk of logits and, where it does not take their place, their gradient. */
static double logits_bytes(const struct dt_memory_lane *s, double vocab)
{
    double block = vocab < LOGITS_WIDE ? 32 : 64, each = s->elem < 4 ? 4 + s->elem : 4, rows, even;

    each *= ceil(vocab / block) * block;
    rows = fmax(CHUNK_MIN, fmin(CHUNK_MAX, floor(LOGITS_BYTES / each / CHUNK_MIN) * CHUNK_MIN));
    even = ceil(s->tokens / fmax(1, ceil(s->tokens / rows))); /* chunks of equal length */
    return fmin(s->tokens, ceil(even / CHUNK_MIN) * CHUNK_MIN) * each;
}

static double scratch(const struct dt_memory_lane *s, int i, bool trained)
{
    const struct dt_block *b = &s->mod->blocks[i];
    double rows, width;

    if (b->kind == DT_BLOCK_LM_HEAD)
        return logits_bytes(s, ceil(b->vocab / tp(s)));
    if (!trained || (b->kind != DT_BLOCK_CONV && b->kind != DT_BLOCK_RESNET) || b->kernel < 2)
        return 0;
    width = (double)b->kernel * b->kernel *
            (b->kind == DT_BLOCK_RESNET && b->c_out > b->c_in ? b->c_out : b->c_in);
    rows = fmax(SLAB_ROWS, floor(SLAB_BYTES / (s->elem * width) / SLAB_ROWS) * SLAB_ROWS);
    rows = fmin(rows, level_tokens(s, b) * (b->upsample ? 4 : b->stride > 1 ? 0.25 : 1));
    return 4.0 * b->c_out * width + s->elem * rows * width;
}

static double batch_bytes(const struct dt_memory_lane *s)
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
static double states_bytes(const struct dt_memory_lane *s, int first, int last)
{
    double most = 0;

    for (int i = first; i < last; i++) {
        const struct dt_block *b = &s->mod->blocks[i];

        most = fmax(most, (double)b->context_len * b->context_dim + b->time_dim);
    }
    return s->elem * (double)s->work->n * most;
}

/* Of a trained block, as its replicas gather it.  (A table that two stages share is stepped by all.)
 */
static double wire(const struct dt_memory_lane *s, int i)
{
    const struct dt_block *b = &s->mod->blocks[i];
    const struct dt_block *head = &s->mod->blocks[s->mod->n_blocks - 1];
    bool shared =
        head->kind == DT_BLOCK_LM_HEAD && head->tied && s->mp->layout.pp * s->mp->layout.vpp > 1;
    struct dt_block_param_counts p = dt_block_param_count(b);
    double all = (double)(p.matrices + p.vectors), bytes;

    if (s->elem >= MASTER_BYTES) /* gathered where they lie */
        return 0;
    if (shared && b->kind == DT_BLOCK_EMBEDDING)
        p.matrices = 0;
    bytes = s->elem * (double)p.matrices + MASTER_BYTES * (double)p.vectors;
    return all > 0 ? bytes * dt_memory_params(b, &s->mp->layout) / all : 0;
}

/* What no backward or recompute keeps out of the activations, and gradients inside the block. */
static double working(const struct dt_memory_lane *s, int i, bool above)
{
    return above ? s->whole - s->kept + temporaries(s, i) : s->whole;
}

/* Two tensors between blocks, gradients of skips and of conditioning states. */
static double beside(const struct dt_memory_lane *s, int module, const struct dt_model *m,
                     int first, int last)
{
    bool above = dt_plan_upstream_trained(s->p, m, module, first);
    double flow = 0, skips = 0;

    for (int i = first; i < last; i++) {
        above |= dt_plan_trained(s->p, m, module, i);
        flow = fmax(flow, flow_bytes(s, i));
        skips += above ? s->elem * level_tokens(s, &s->mod->blocks[i]) * skip_channels(s, i) : 0;
    }
    return 2 * flow + skips + states_bytes(s, first, last);
}

const struct dt_memory_row dt_memory_row_cpu = {.param = MASTER_BYTES,
                                                .grad = MASTER_BYTES,
                                                .optimizer = MOMENT_BYTES,
                                                .grads_of_all = true,
                                                .messages = 2,
                                                .packed = packed,
                                                .wire = wire,
                                                .working = working,
                                                .scratch = scratch,
                                                .beside = beside,
                                                .states = states_bytes,
                                                .batch = batch_bytes};
