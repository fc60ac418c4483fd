/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Weights and names of diffusers' UNet2DConditionModel.
 *
 * Initialisation: PyTorch's default deviation; the last layer of each residual branch and conv_out
 * are zero, so that the network starts as the identity of its skips (Dhariwal & Nichol 2021).
 *
 * Tensor parallelism deals channels inside ResBlocks (in whole groups of the second norm) and
 * transformers (by heads), and the outputs of the convolutions that halve and double; conv_in,
 * conv_out and the time embedding are whole at every member. */
#include "exec/modules/names.h"

#include <stdio.h>

static int max_level(const struct dt_module *m)
{
    int most = 0;

    for (int i = 0; i < m->n_blocks; i++)
        if (m->blocks[i].level > most)
            most = m->blocks[i].level;
    return most;
}

/* First block of the way up: the ResBlock that takes more channels than it is given. */
static int up_begin(const struct dt_module *m)
{
    int channels = 0;

    for (int i = 0; i < m->n_blocks; i++) {
        const struct dt_block *b = &m->blocks[i];

        if (b->kind == DT_BLOCK_RESNET && b->c_in > channels)
            return i;
        if (b->kind == DT_BLOCK_RESNET || b->kind == DT_BLOCK_CONV)
            channels = b->c_out;
    }
    return m->n_blocks;
}

/* Called for every block in order; the numbers run along. */
void dt_nn_unet_place(struct dt_nn_unet_place *p, const struct dt_module *m, int i)
{
    const struct dt_block *b = &m->blocks[i];
    int up = up_begin(m), block;

    if (b->kind != DT_BLOCK_RESNET && b->kind != DT_BLOCK_SPATIAL_TRANSFORMER &&
        b->kind != DT_BLOCK_CONV)
        return;
    if (i >= up) {
        block = max_level(m) - b->level;
        if (p->part != DT_UNET_UP || p->block != block)
            p->resnet = p->attention = -1;
        p->part = DT_UNET_UP;
    } else if (i >= up - 3) {
        block = 0;
        if (p->part != DT_UNET_MID)
            p->resnet = p->attention = -1;
        p->part = DT_UNET_MID;
    } else {
        block = b->level;
        if (p->part != DT_UNET_DOWN || p->block != block)
            p->resnet = p->attention = -1;
        p->part = DT_UNET_DOWN;
    }
    p->block = block;
    p->resnet += b->kind == DT_BLOCK_RESNET;
    if (b->kind == DT_BLOCK_SPATIAL_TRANSFORMER)
        p->attention = p->part == DT_UNET_MID ? 0 : p->resnet;
    switch (p->part) {
    case DT_UNET_MID:
        snprintf(p->prefix, sizeof(p->prefix), "mid_block.");
        break;
    case DT_UNET_UP:
        snprintf(p->prefix, sizeof(p->prefix), "up_blocks.%d.", block);
        break;
    case DT_UNET_BEFORE:
    case DT_UNET_DOWN:
        snprintf(p->prefix, sizeof(p->prefix), "down_blocks.%d.", block);
    }
}

static enum dt_status filter(struct dt_nn_namer *m, int role, int64_t out, int64_t in, int kernel,
                             const struct dt_nn_deal *deal, double std, const char *name)
{
    int weight = dt_nn_weight_add(m->s, m->n, role, out, in, kernel, true, deal);

    DT_TRY(dt_param_add(m->s, weight, 0, weight < 0 ? 0 : m->s->weights[weight].out, 4,
                        (int64_t[]){out, in, kernel, kernel},
                        std > 0 ? DT_INIT_NORMAL : DT_INIT_ZERO, std, false, m->err, "%s%s.weight",
                        m->prefix, name));
    dt_param_deal(m->s, deal);
    return dt_nn_name_bias(m, role + 1, out, deal, name);
}

static double conv_std(const struct dt_block *b, int64_t in)
{
    return dt_nn_fan_in_std(in * b->kernel * b->kernel);
}

enum dt_status dt_nn_names_conv(struct dt_nn_namer *m)
{
    const struct dt_block *b = m->n->b;
    const struct dt_nn_deal *by_out = DT_BY_OUT(b->c_out, 1), *deal = NULL;
    const char *name = "conv_in";

    m->prefix[0] = '\0';
    if (b->layernorm) {
        DT_TRY(dt_nn_name_norm(m, CONV_G, b->c_in, NULL, true, "conv_norm_out"));
        return filter(m, CONV_W, b->c_out, b->c_in, b->kernel, NULL, 0, "conv_out");
    }
    if (m->n->index != m->s->facts.conv_in) {
        name = b->upsample ? "upsamplers.0.conv" : "downsamplers.0.conv";
        snprintf(m->prefix, sizeof(m->prefix), "%s", m->unet.prefix);
        deal = by_out;
    }
    return filter(m, CONV_W, b->c_out, b->c_in, b->kernel, deal, conv_std(b, b->c_in), name);
}

enum dt_status dt_nn_names_resnet(struct dt_nn_namer *m)
{
    const struct dt_block *b = m->n->b;
    int groups = dt_block_groups(b, b->c_out), each = b->c_out / groups, weight;
    const struct dt_nn_deal *by_out = DT_BY_OUT(groups, each), *by_in = DT_BY_IN(b->c_in, 1);

    snprintf(m->prefix, sizeof(m->prefix), "%sresnets.%d.", m->unet.prefix, m->unet.resnet);
    DT_TRY(dt_nn_name_norm(m, RES_N1, b->c_in, NULL, true, "norm1"));
    DT_TRY(filter(m, RES_C1, b->c_out, b->c_in, b->kernel, by_out, conv_std(b, b->c_in), "conv1"));
    DT_TRY(dt_nn_name_linear(m, RES_T, b->c_out, b->time_dim, by_out, true,
                             dt_nn_fan_in_std(b->time_dim), "time_emb_proj"));
    DT_TRY(dt_nn_name_norm(m, RES_N2, b->c_out, by_out, true, "norm2"));
    DT_TRY(filter(m, RES_C2, b->c_out, b->c_out, b->kernel, DT_BY_IN(groups, each), 0, "conv2"));
    if (b->c_in == b->c_out)
        return DT_OK;
    /* 1x1: by rows */
    weight = dt_nn_weight_add(m->s, m->n, RES_S, b->c_out, b->c_in, 0, true, by_in);
    DT_TRY(dt_param_add(m->s, weight, 0, b->c_out, 4, (int64_t[]){b->c_out, b->c_in, 1, 1},
                        DT_INIT_NORMAL, dt_nn_fan_in_std(b->c_in), false, m->err,
                        "%sconv_shortcut.weight", m->prefix));
    dt_param_deal(m->s, by_in);
    return dt_nn_name_bias(m, RES_SB, b->c_out, by_in, "conv_shortcut");
}

static enum dt_status name_attentions(struct dt_nn_namer *m, int layer)
{
    static const char *const qkv[] = {"attn1.to_q", "attn1.to_k", "attn1.to_v"};
    static const char *const kv[] = {"attn2.to_k", "attn2.to_v"};
    const struct dt_block *b = m->n->b;
    int64_t c = b->hidden, w = (int64_t)b->heads * b->head_dim;
    int64_t ctx = b->context_len > 0 ? b->context_dim : c;
    int at = SP_N + layer * SPL_N;

    const struct dt_nn_deal *by_in = DT_BY_IN(b->heads, b->head_dim);

    DT_TRY(dt_nn_name_norm(m, at + SPL_N1, c, NULL, true, "norm1"));
    DT_TRY(dt_nn_name_packed(m, at + SPL_QKV, -1, 3, (int64_t[]){w, w, w}, c, b->head_dim,
                             dt_nn_fan_in_std(c), qkv));
    DT_TRY(
        dt_nn_name_linear(m, at + SPL_O, c, w, by_in, true, dt_nn_fan_in_std(w), "attn1.to_out.0"));
    DT_TRY(dt_nn_name_norm(m, at + SPL_N2, c, NULL, true, "norm2"));
    DT_TRY(dt_nn_name_matrix(m, at + SPL_Q, w, c, DT_BY_OUT(b->heads, b->head_dim),
                             dt_nn_fan_in_std(c), "attn2.to_q"));
    DT_TRY(dt_nn_name_packed(m, at + SPL_KV, -1, 2, (int64_t[]){w, w}, ctx, b->head_dim,
                             dt_nn_fan_in_std(ctx), kv));
    return dt_nn_name_linear(m, at + SPL_O2, c, w, by_in, true, dt_nn_fan_in_std(w),
                             "attn2.to_out.0");
}

enum dt_status dt_nn_names_spatial(struct dt_nn_namer *m)
{
    const struct dt_block *b = m->n->b;
    int64_t c = b->hidden, f = b->ffn;
    const struct dt_nn_deal up = {DT_DEAL_OUT, 2, {f, f}, 1}; /* GEGLU: [up | gate] */
    char prefix[64];

    snprintf(prefix, sizeof(prefix), "%sattentions.%d.", m->unet.prefix, m->unet.attention);
    snprintf(m->prefix, sizeof(m->prefix), "%s", prefix);
    DT_TRY(dt_nn_name_norm(m, SP_G, c, NULL, true, "norm"));
    DT_TRY(
        dt_nn_name_linear(m, SP_IN, c, c, DT_BY_OUT(c, 1), true, dt_nn_fan_in_std(c), "proj_in"));
    DT_TRY(dt_nn_name_linear(m, SP_OUT, c, c, DT_BY_IN(c, 1), true, 0, "proj_out"));
    for (int i = 0; i < b->depth; i++) {
        int at = SP_N + i * SPL_N;

        snprintf(m->prefix, sizeof(m->prefix), "%stransformer_blocks.%d.", prefix, i);
        DT_TRY(name_attentions(m, i));
        DT_TRY(dt_nn_name_norm(m, at + SPL_N3, c, NULL, true, "norm3"));
        DT_TRY(dt_nn_name_linear(m, at + SPL_UP, 2 * f, c, &up, true, dt_nn_fan_in_std(c),
                                 "ff.net.0.proj"));
        DT_TRY(dt_nn_name_linear(m, at + SPL_DOWN, c, f, DT_BY_IN(f, 1), true, dt_nn_fan_in_std(f),
                                 "ff.net.2"));
    }
    return DT_OK;
}

enum dt_status dt_nn_names_time(struct dt_nn_namer *m)
{
    const struct dt_block *b = m->n->b;

    snprintf(m->prefix, sizeof(m->prefix), "time_embedding.");
    DT_TRY(dt_nn_name_linear(m, TIME_W1, b->time_dim, b->hidden, NULL, b->bias,
                             dt_nn_fan_in_std(b->hidden), "linear_1"));
    return dt_nn_name_linear(m, TIME_W2, b->time_dim, b->time_dim, NULL, b->bias,
                             dt_nn_fan_in_std(b->time_dim), "linear_2");
}
