/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * The U-Net as a list of blocks: time embedding, conv_in, levels down, middle, levels up, conv_out.
 *
 *   level 0  R T R T  down ----- skips -----  R T R T R T        out
 *   level 1    R T R T  down ---------------  R T R T R T  up
 *   ...
 *   last       R R  ->  R T R (middle)  ->  R R R  up
 *
 * On the way up each ResBlock takes its input concatenated with the skip that was pushed last; that
 * is where its c_in comes from (the layout of diffusers' UNet2DConditionModel; totals pinned in
 * tests/test_model.c). */
#include "core/model/shape_build.h"

enum { MAX_SKIPS = 256 };

struct walk {
    const struct dt_shape_unet *u;
    struct dt_shape_builder *b;
    int channels; /* of the running activation */
    int skip[MAX_SKIPS], n_skips;
};

static void push_skip(struct walk *w)
{
    if (w->n_skips < MAX_SKIPS)
        w->skip[w->n_skips++] = w->channels;
}

static int pop_skip(struct walk *w)
{
    return w->n_skips > 0 ? w->skip[--w->n_skips] : 0;
}

static void conv(struct walk *w, int level, int c_in, int c_out, int stride, bool upsample,
                 bool norm)
{
    struct dt_block *p = dt_shape_builder_add(w->b, DT_BLOCK_CONV);

    p->level = level;
    p->c_in = c_in;
    p->c_out = c_out;
    p->kernel = 3;
    p->stride = stride;
    p->upsample = upsample;
    p->layernorm = norm;
    p->groups = norm ? w->u->norm_groups : 0;
    w->channels = c_out;
}

static void resnet(struct walk *w, int level, int skip)
{
    const struct dt_shape_unet *u = w->u;
    struct dt_block *p = dt_shape_builder_add(w->b, DT_BLOCK_RESNET);

    p->level = level;
    p->c_in = w->channels + skip;
    p->c_out = u->channels[level];
    p->kernel = 3;
    p->stride = 1;
    p->time_dim = u->class_concat ? 2 * u->time_dim : u->time_dim;
    p->groups = u->norm_groups;
    w->channels = p->c_out;
}

static void attend(struct walk *w, int level)
{
    const struct dt_shape_unet *u = w->u;
    struct dt_block *p = dt_shape_builder_add(w->b, DT_BLOCK_SPATIAL_TRANSFORMER);

    p->level = level;
    p->hidden = w->channels;
    p->ffn = 4 * w->channels; /* GEGLU, multiplier 4 */
    p->gated = p->bias = p->layernorm = true;
    p->heads = p->kv_heads = u->heads[level];
    p->head_dim = u->channels[level] / u->heads[level];
    p->depth = u->depth[level];
    p->groups = u->norm_groups;
    p->context_dim = u->context_dim;
    p->context_len = u->context_len;
}

static void embed(struct walk *w, int in, int out, int layers)
{
    struct dt_block *p = dt_shape_builder_add(w->b, DT_BLOCK_TIME_EMBED);

    p->hidden = in;
    p->time_dim = out;
    p->depth = layers;
    p->bias = true;
}

static void level_down(struct walk *w, int level)
{
    for (int i = 0; i < w->u->res_blocks; i++) {
        resnet(w, level, 0);
        if (w->u->attention[level])
            attend(w, level);
        push_skip(w);
    }
    if (level + 1 < w->u->n_levels) {
        conv(w, level, w->channels, w->channels, 2, false, false);
        push_skip(w);
    }
}

static void level_up(struct walk *w, int level)
{
    for (int i = 0; i < w->u->res_blocks + 1; i++) {
        resnet(w, level, pop_skip(w));
        if (w->u->attention[level])
            attend(w, level);
    }
    if (level > 0)
        conv(w, level, w->channels, w->channels, 1, true, false);
}

void dt_shape_build_unet(const struct dt_shape_unet *u, struct dt_shape_builder *b)
{
    struct walk w = {.u = u, .b = b};
    int last = u->n_levels - 1;

    embed(&w, u->channels[0], u->time_dim, 2);
    if (u->class_dim > 0)
        embed(&w, u->class_dim, u->time_dim, u->class_layers);
    conv(&w, 0, u->in_channels, u->channels[0], 1, false, false);
    push_skip(&w);
    for (int l = 0; l <= last; l++)
        level_down(&w, l);
    resnet(&w, last, 0);
    attend(&w, last);
    resnet(&w, last, 0);
    for (int l = last; l >= 0; l--)
        level_up(&w, l);
    conv(&w, 0, u->channels[0], u->out_channels, 1, false, true);
}
