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
 *   beside     of a stage: two tensors between blocks, gradients of skips and of conditioning states; rooms of StepCCL's
 *              chunks; the table of rotary positions
 *   states     conditioning states and time embeddings, kept with the activations
 *   batch      ids, targets, pixels and noise of a microbatch
 *   scratch    of kernels: logits of a chunk of rows and their gradient, or the gathered rows and
 *              the sum of a filter's gradient.  One for all lanes of a rank.
 *
 * `working`, `beside` and `batch` are rooms, which the executor makes for the fullest microbatch and a sixteenth more.
 * oneDNN's blocks, to which it fills up packed weights, are not counted: they differ between CPUs, and matter to widths
 * below a hundred or so alone.
 *
 * What each kind of block takes is its row's (core/model/block_KIND.c): the sizes of temporaries follow the blocks of the
 * executor (backward in exec/modules/block_*.c), those of scratch its kernels (conv_bwd_weight, xent).
 *
 * The executor on a device that does not pack has a row, too, which differs in `packed`, and so has a card, whose
 * kernels take other workspaces (memory_card.c). */
#include "core/cost/memory_impl.h"
#include "core/model/block_ops.h"

#include <math.h>

enum { MASTER_BYTES = 4, MOMENT_BYTES = 8 };
/* derived from what a batch holds: ids, targets, positions, rows, loss; on host and device */
enum { BATCH_TOKEN_BYTES = 64, PIXEL_BYTES = 2 * 4, NOISE_BYTES = 2 * 4 };
/* derived: rooms have that part of what they are made for to spare (exec/program/execute_lane.c) */
enum { SPARE = 16, ANGLE_BYTES = 4 };

static double tp(const struct dt_memory_lane *s)
{
    return s->shard.tp > 1 ? s->shard.tp : 1;
}

/* By what a room for that many rows, or items, is larger than they need. */
static double roomy(double n)
{
    return n > 0 ? 1 + floor(n / SPARE) / n : 1;
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

struct dt_block_cpu dt_memory_block(const struct dt_memory_lane *s, int i)
{
    const struct dt_block *b = &s->mod->blocks[i];

    return (struct dt_block_cpu){.e = s->elem,
                                 .tp = tp(s),
                                 .cp = s->shard.cp > 1 ? s->shard.cp : 1,
                                 .ring = s->p->policy.cp_comm == DT_CP_COMM_RING,
                                 .ep = s->shard.ep > 1 ? s->shard.ep : 1,
                                 .tokens = s->tokens,
                                 .own = s->own,
                                 .rows = level_tokens(s, b),
                                 .items = (double)s->work->n,
                                 .params = dt_memory_params(b, &s->mp->layout),
                                 .skip = skip_channels(s, i),
                                 .last = i == s->mod->n_blocks - 1};
}

/* The larger of what goes into a block and what comes out. */
static double flow_bytes(const struct dt_memory_lane *s, int i)
{
    const struct dt_block *b = &s->mod->blocks[i];
    struct dt_block_cpu c = dt_memory_block(s, i);

    return dt_block_row_of(b)->cpu_flow(b, &c);
}

/* Temporaries of forward and backward of a block. */
static double temporaries(const struct dt_memory_lane *s, int i)
{
    const struct dt_block *b = &s->mod->blocks[i];
    struct dt_block_cpu c = dt_memory_block(s, i);

    return dt_block_row_of(b)->cpu_temporaries(b, &c);
}

/* As the forward reads them and, where there is one, as the gradient of the input does. */
static double packed(const struct dt_memory_lane *s, int i, bool above)
{
    const struct dt_block *b = &s->mod->blocks[i];
    struct dt_block_cpu c = dt_memory_block(s, i);

    return s->elem * dt_block_row_of(b)->cpu_packed(b, &c) *
           (above && b->kind != DT_BLOCK_PATCH_EMBED ? 2 : 1);
}

static double scratch(const struct dt_memory_lane *s, int i, bool trained)
{
    const struct dt_block *b = &s->mod->blocks[i];
    struct dt_block_cpu c = dt_memory_block(s, i);

    return trained || b->kind == DT_BLOCK_LM_HEAD ? dt_block_row_of(b)->cpu_scratch(b, &c) : 0;
}

/* Sines and cosines of every patch, and on the host of every row and column that there may be. */
static double turn_bytes(const struct dt_module *m)
{
    for (int i = 0; i < m->n_blocks; i++)
        if (m->blocks[i].grid_rope)
            return (PIXEL_BYTES + PIXEL_BYTES / 4) * m->blocks[i].head_dim;
    return 0;
}

static double batch_bytes(const struct dt_memory_lane *s)
{
    const struct dt_block *b = &s->mod->blocks[0];

    for (int i = 0; i < s->mod->n_blocks; i++) {
        b = &s->mod->blocks[i];
        if (b->kind == DT_BLOCK_PATCH_EMBED)
            return s->tokens *
                   (PIXEL_BYTES * b->patch * b->patch * b->channels + 8 + turn_bytes(s->mod));
        if (b->kind == DT_BLOCK_CONV)
            return s->tokens * (PIXEL_BYTES + NOISE_BYTES) * b->c_in;
    }
    return s->tokens * BATCH_TOKEN_BYTES;
}

static double batch_room(const struct dt_memory_lane *s)
{
    return roomy(s->tokens) * batch_bytes(s);
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

/* Of a trained block, as its replicas gather it: bytes of each matrix element and of each vector's.  (A table that
 * two stages share is stepped by all.) */
static double gathered(const struct dt_memory_lane *s, int i, double matrix, double vector)
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
    bytes = matrix * (double)p.matrices + vector * (double)p.vectors;
    return all > 0 ? bytes * dt_memory_params(b, &s->mp->layout) / all : 0;
}

static double wire(const struct dt_memory_lane *s, int i)
{
    return gathered(s, i, s->elem, MASTER_BYTES);
}

/* Matrices are gathered where their rounded copies lie. */
static double wire_vectors(const struct dt_memory_lane *s, int i)
{
    return gathered(s, i, 0, MASTER_BYTES);
}

/* What kernels read in fp32 beside the rounded copies: vectors, and the table that is looked up by rows. */
static double exact(const struct dt_memory_lane *s, int i)
{
    const struct dt_block *b = &s->mod->blocks[i];
    struct dt_block_param_counts p = dt_block_param_count(b);
    double all = (double)(p.matrices + p.vectors), matrices = (double)p.matrices;

    if (b->kind != DT_BLOCK_EMBEDDING)
        matrices = 0;
    return all > 0 ? MASTER_BYTES * (matrices + (double)p.vectors) *
                         dt_memory_params(b, &s->mp->layout) / all
                   : 0;
}

/* What no backward or recompute keeps out of the activations, and gradients inside the block. */
static double working(const struct dt_memory_lane *s, int i, bool above)
{
    return roomy(s->tokens) * (above ? s->whole - s->kept + temporaries(s, i) : s->whole);
}

/* StepCCL: rooms of a chunk of rows of what the members have shares of, and of all rows of what they sum
 * (exec/modules/tp_chunks.c). */
static double chunk_rooms(const struct dt_memory_lane *s, int first, int last)
{
    const struct dt_plan_policy *y = &s->p->policy;
    double share = 0, whole = 0;

    if (!y->stepccl || y->stepccl_chunks < 2 || tp(s) < 2)
        return 0;
    for (int i = 0; i < s->mod->n_blocks; i++) /* a module without sequence parallelism */
        if (s->mod->blocks[i].no_seqpar || s->mod->blocks[i].kind == DT_BLOCK_CONV)
            return 0;
    for (int i = first; i < last; i++) {
        const struct dt_block_row *row = dt_block_row_of(&s->mod->blocks[i]);
        struct dt_block_dealt d = {0, 0};

        if (row->dealt)
            d = row->dealt(&s->mod->blocks[i], tp(s));
        share = fmax(share, d.share);
        whole = fmax(whole, d.whole);
    }
    return s->elem *
           ((floor(s->tokens / y->stepccl_chunks) + 2 * tp(s)) * share + s->tokens * whole);
}

/* Sines and cosines of every position of a document that there may be: of whole ones, where members have parts. */
static double rotary_bytes(const struct dt_memory_lane *s, int first, int last)
{
    double positions = s->shard.cp > 1 ? (double)s->work->tokens_max : s->tokens;
    int width = 0;

    for (int i = first; i < last; i++) {
        const struct dt_block *b = &s->mod->blocks[i];

        if (b->kind == DT_BLOCK_TRANSFORMER && b->causal && b->max_pos == 0)
            width = b->head_dim;
    }
    return ANGLE_BYTES * width * positions * roomy(positions);
}

/* Two tensors between blocks, gradients of skips and of conditioning states, rooms of chunks, rotary positions. */
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
    return roomy(s->tokens) * (2 * flow + skips + chunk_rooms(s, first, last)) +
           roomy((double)s->work->n) * states_bytes(s, first, last) + rotary_bytes(s, first, last);
}

/* All parameters once more, rounded; in fp32 products read the master itself. */
static double rounded(const struct dt_memory_lane *s, int i, bool above)
{
    (void)i;
    (void)above;
    return s->elem < MASTER_BYTES ? s->elem * s->params : 0;
}

#define EXECUTOR                                                                                   \
    .param = MASTER_BYTES, .grad = MASTER_BYTES, .optimizer = MOMENT_BYTES,                        \
    .master = MASTER_BYTES, .grads_of_all = true, .messages = 2, .working = working,               \
    .beside = beside, .states = states_bytes, .batch = batch_room
#define UNPACKED EXECUTOR, .packed = rounded, .exact = exact, .wire = wire_vectors, .spare = 1
const struct dt_memory_row dt_memory_row_cpu = {EXECUTOR, .packed = packed, .wire = wire,
                                                .scratch = scratch};
const struct dt_memory_row dt_memory_row_executor = {UNPACKED, .scratch = scratch};
const struct dt_memory_row dt_memory_row_card = {UNPACKED, .scratch = dt_memory_card_scratch};
