/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Boundaries inside a module.
 *
 * Stacks of transformer layers hand on one tensor.  A U-Net also owes its later blocks the skips
 * that are pending, the time embedding and the conditioning states:
 *
 *   down   conv_in  R(T)  R(T)  down | R(T) ...        each output is pushed
 *   up              R(T)  R(T)  R(T) | up  ...         each R pops one: its c_in is larger by it
 *
 * Blocks do not say what they push.  Pops can be told (c_in exceeds the running channels); the
 * first as many outputs of convolutions and ResBlocks (with their attention) are the pushes, for
 * nothing else comes before the middle (see shape_unet.c).  The output of the block before a
 * boundary is often the last push as well; it crosses once.  Latents and timesteps do not cross:
 * the stage that adds the noise reads the samples itself. */
#include "core/model/boundary.h"

#include <string.h>

static bool is_unet(const struct dt_module *m)
{
    for (int i = 0; i < m->n_blocks; i++)
        if (m->blocks[i].kind == DT_BLOCK_RESNET)
            return true;
    return false;
}

/* Beside the path of the activations: makes conditioning or time embeddings. */
static bool aside(const struct dt_module *m, const struct dt_block *b)
{
    return b->kind == DT_BLOCK_TIME_EMBED ||
           (b->kind == DT_BLOCK_PROJECTOR && m->role == DT_ROLE_GENERATOR);
}

static struct dt_boundary_tensor output_of(const struct dt_module *m, int i)
{
    const struct dt_block *b = &m->blocks[i];
    struct dt_boundary_tensor t = {DT_TENSOR_MAIN, i, b->level, b->hidden, false};

    if (b->kind == DT_BLOCK_PROJECTOR) {
        t.width = b->out_dim;
    } else if (b->kind == DT_BLOCK_RESNET || b->kind == DT_BLOCK_CONV) {
        t.width = b->c_out;
        if (b->kind == DT_BLOCK_CONV)
            t.level += (b->stride == 2) - (b->upsample && b->level > 0);
    }
    return t;
}

static int channels_after(const struct dt_block *b, int before)
{
    if (b->kind == DT_BLOCK_CONV || b->kind == DT_BLOCK_RESNET)
        return b->c_out;
    return b->kind == DT_BLOCK_SPATIAL_TRANSFORMER ? b->hidden : before;
}

static bool pops(const struct dt_block *b, int channels)
{
    return b->kind == DT_BLOCK_RESNET && channels > 0 && b->c_in > channels;
}

static int count_pops(const struct dt_module *m)
{
    int channels = 0, n = 0;

    for (int i = 0; i < m->n_blocks; i++) {
        n += pops(&m->blocks[i], channels);
        channels = channels_after(&m->blocks[i], channels);
    }
    return n;
}

/* Is the output of block i of the kind that a level on the way down pushes? */
static bool may_push(const struct dt_module *m, int i)
{
    const struct dt_block *b = &m->blocks[i];
    bool attended = i + 1 < m->n_blocks && m->blocks[i + 1].kind == DT_BLOCK_SPATIAL_TRANSFORMER;

    return (b->kind == DT_BLOCK_CONV && !b->upsample) ||
           (b->kind == DT_BLOCK_RESNET && !attended) || b->kind == DT_BLOCK_SPATIAL_TRANSFORMER;
}

/* Skips pushed before `end` and not popped: blocks, oldest first. */
static int pending_skips(const struct dt_module *m, int end, int *block, int max)
{
    int left = count_pops(m), n = 0, channels = 0;

    for (int i = 0; i < end; i++) {
        if (pops(&m->blocks[i], channels)) {
            n -= n > 0;
        }
        channels = channels_after(&m->blocks[i], channels);
        if (left > 0 && n < max && may_push(m, i)) {
            block[n++] = i;
            left--;
        }
    }
    return n;
}

/* Conditioning and time embeddings that blocks after the boundary use. */
static int add_aside(const struct dt_module *m, int end, struct dt_boundary_tensor *out)
{
    struct dt_boundary_tensor context = {.kind = DT_TENSOR_CONTEXT, .block = -1, .per_item = true};
    struct dt_boundary_tensor time = {.kind = DT_TENSOR_TIME, .block = -1, .per_item = true};
    int64_t needed = 0;
    int n = 0;

    for (int i = end; i < m->n_blocks; i++) {
        const struct dt_block *b = &m->blocks[i];
        int width = b->kind == DT_BLOCK_PROJECTOR ? b->in_dim : b->context_dim;

        /* the first user decides: a projector still to come takes the raw states */
        if (b->context_len > 0 && context.width == 0)
            context.width = (int64_t)b->context_len * width;
        if (b->kind == DT_BLOCK_RESNET && b->time_dim > needed)
            needed = b->time_dim;
    }
    for (int i = 0; i < end; i++) {
        if (m->blocks[i].kind == DT_BLOCK_TIME_EMBED) {
            time.width += m->blocks[i].time_dim;
            time.block = i;
        } else if (m->blocks[i].kind == DT_BLOCK_PROJECTOR) {
            context.block = i;
        }
    }
    if (time.width > needed) /* embeddings that are added, not concatenated */
        time.width = needed;
    if (context.width > 0)
        out[n++] = context;
    if (time.width > 0)
        out[n++] = time;
    return n;
}

int dt_boundary_tensors(const struct dt_module *m, int end,
                        struct dt_boundary_tensor out[DT_BOUNDARY_MAX])
{
    int skip[DT_BOUNDARY_MAX / 2], n_skips = 0, n = 0, last = -1;

    if (end <= 0 || end >= m->n_blocks)
        return 0;
    if (m->role != DT_ROLE_GENERATOR && m->blocks[end - 1].kind == DT_BLOCK_TRANSFORMER) {
        out[0] = output_of(m, end - 1); /* a plain stack; the search asks often */
        return 1;
    }
    for (int i = 0; i < end; i++)
        last = aside(m, &m->blocks[i]) ? last : i;
    if (last >= 0)
        out[n++] = output_of(m, last);
    if (is_unet(m))
        n_skips = pending_skips(m, end, skip, DT_BOUNDARY_MAX / 2 - 1);
    for (int i = 0; i < n_skips; i++)
        if (skip[i] != last) {
            out[n] = output_of(m, skip[i]);
            out[n++].kind = DT_TENSOR_SKIP;
        }
    return n + add_aside(m, end, out + n);
}

/* At a byte an element. */
static void work_out(const struct dt_module *m, int end, struct dt_boundary *out)
{
    struct dt_boundary_tensor t[DT_BOUNDARY_MAX];
    int n = dt_boundary_tensors(m, end, t);

    memset(out, 0, sizeof(*out));
    for (int i = 0; i < n; i++) {
        uint64_t bytes = (uint64_t)t[i].width;
        int level = t[i].level < DT_LEVEL_MAX ? t[i].level : DT_LEVEL_MAX - 1;

        if (t[i].per_item) {
            out->item_bytes += bytes;
            continue;
        }
        out->token_bytes[level] += bytes;
        out->n_levels = level + 1 > out->n_levels ? level + 1 : out->n_levels;
    }
}

void dt_block_boundary(const struct dt_module *m, int end, int elem_bytes, struct dt_boundary *out)
{
    struct dt_boundary one;
    const struct dt_boundary *w = &one;

    if (m->wire && end > 0 && end < m->n_blocks)
        w = &m->wire[end];
    else
        work_out(m, end, &one);
    *out = (struct dt_boundary){.n_levels = w->n_levels,
                                .item_bytes = (uint64_t)elem_bytes * w->item_bytes};
    for (int l = 0; l < w->n_levels; l++)
        out->token_bytes[l] = (uint64_t)elem_bytes * w->token_bytes[l];
}

enum dt_status dt_model_wires(struct dt_model *m, struct dt_error *err)
{
    for (int i = 0; i < m->n_modules; i++) {
        struct dt_module *mod = &m->modules[i];
        struct dt_boundary *wire = DT_ARENA_NEW(&m->arena, struct dt_boundary, mod->n_blocks);

        if (!wire)
            return dt_error_nomem(err, "a model");
        for (int end = 1; end < mod->n_blocks; end++)
            work_out(mod, end, &wire[end]);
        mod->wire = wire;
    }
    return DT_OK;
}

uint64_t dt_block_boundary_bytes(const struct dt_module *m, int end, const struct dt_work *w)
{
    struct dt_boundary b;

    dt_block_boundary(m, end, 2, &b);
    return dt_boundary_bytes(&b, w->tokens, w->n);
}
