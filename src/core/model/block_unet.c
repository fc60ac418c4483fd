/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * The U-Net's blocks as kernels.
 *
 * Tensor parallelism splits channels: activations between blocks are whole on every rank, inside a
 * block the first convolution or projection is split by output channels and the last by input
 * channels, followed by one all-reduce of the block's output:
 *
 *   ResBlock     GN -> conv (c_out/tp) -> GN (c_out/tp) -> conv (c_in/tp) -AR-> + shortcut
 *   transformer  GN -> proj_in (n/tp) -AG-> self      -AR-> cross     -AR-> GEGLU     -AR-> proj_out (k/tp) -AR->
 *                                           n/tp, k/tp      n/tp, k/tp      n/tp, k/tp
 */
#include "core/model/block_ops.h"

double dt_block_level_scale(int level)
{
    double f = 1;

    while (level-- > 0)
        f /= 4;
    return f;
}

static void conv(const struct dt_block *b, struct dt_kop_list *o, double tokens)
{
    double out = b->upsample ? tokens * 4 : b->stride == 2 ? tokens / 4 : tokens;
    bool split_out = b->c_out >= b->c_in;
    double c_in = split_out ? b->c_in : dt_block_ceil_div(b->c_in, o->w.tp);
    double c_out = split_out ? dt_block_ceil_div(b->c_out, o->w.tp) : b->c_out;

    if (b->layernorm) { /* GroupNorm + SiLU in front of conv_out */
        dt_kop_emit_pointwise(o, DT_KOP_GROUPNORM, tokens, c_in, 0, 3, true, 1);
        dt_kop_emit_pointwise(o, DT_KOP_ACT, tokens, c_in, 0, 2, false, 1);
    }
    dt_kop_emit_conv(o, out, c_in, c_out, b->kernel, b->stride);
    dt_kop_emit_coll(o, split_out ? DT_KOP_ALL_GATHER : DT_KOP_ALL_REDUCE, o->w.tp,
                     DT_ELEM_BYTES * out * b->c_out, 1);
}

static void resnet(const struct dt_block *b, struct dt_kop_list *o, double tokens)
{
    double mid = dt_block_ceil_div(b->c_out, o->w.tp);

    dt_kop_emit_pointwise(o, DT_KOP_GROUPNORM, tokens, b->c_in, 0, 3, true, 1);
    dt_kop_emit_pointwise(o, DT_KOP_ACT, tokens, b->c_in, 0, 2, false, 1);
    dt_kop_emit_conv(o, tokens, b->c_in, mid, b->kernel, 1);
    dt_kop_emit_gemm(o, o->w.n, mid, b->time_dim,
                     1); /* time embedding of each item, added to its channels */
    dt_kop_emit_pointwise(o, DT_KOP_GROUPNORM, tokens, mid, 0, 3, true, 1);
    dt_kop_emit_pointwise(o, DT_KOP_ACT, tokens, mid, 0, 2, false, 1);
    dt_kop_emit_conv(o, tokens, mid, b->c_out, b->kernel, 1);
    if (b->c_in != b->c_out)
        dt_kop_emit_conv(o, tokens, dt_block_ceil_div(b->c_in, o->w.tp), b->c_out, 1, 1);
    dt_kop_emit_coll(o, DT_KOP_ALL_REDUCE, o->w.tp, DT_ELEM_BYTES * tokens * b->c_out, 1);
    dt_kop_emit_pointwise(o, DT_KOP_ADD, tokens, b->c_out, 0, 3, false, 1);
}

static void self_attention(const struct dt_block *b, struct dt_kop_list *o, double tokens,
                           double repeat)
{
    double scale = dt_block_level_scale(b->level), heads = dt_block_ceil_div(b->heads, o->w.tp);
    double width = heads * b->head_dim;

    dt_kop_emit_gemm(o, tokens, 3 * width, b->hidden, repeat);
    dt_kop_emit_attention(o, false, o->w.seq * scale, o->w.tokens_sq * scale * scale, heads, heads,
                          b->head_dim, repeat);
    dt_kop_emit_gemm(o, tokens, b->hidden, width, repeat);
}

static void cross_attention(const struct dt_block *b, struct dt_kop_list *o, double tokens,
                            double repeat)
{
    double heads = dt_block_ceil_div(b->heads, o->w.tp), width = heads * b->head_dim;

    dt_kop_emit_gemm(o, tokens, width, b->hidden, repeat);
    dt_kop_emit_gemm(o, o->w.n * b->context_len, 2 * width, b->context_dim, repeat);
    dt_kop_emit_cross(o, o->w.n, tokens, heads, b->context_len, b->head_dim, repeat);
    dt_kop_emit_gemm(o, tokens, b->hidden, width, repeat);
}

static void spatial_transformer(const struct dt_block *b, struct dt_kop_list *o, double tokens)
{
    double c = b->hidden, d = b->depth, f = dt_block_ceil_div(b->ffn, o->w.tp), split;
    double bytes = DT_ELEM_BYTES * tokens * c;

    split = dt_block_ceil_div(b->hidden, o->w.tp);
    dt_kop_emit_pointwise(o, DT_KOP_GROUPNORM, tokens, c, 0, 3, true, 1);
    dt_kop_emit_gemm(o, tokens, split, c, 1);
    dt_kop_emit_coll(o, DT_KOP_ALL_GATHER, o->w.tp, bytes, 1);
    dt_kop_emit_pointwise(o, DT_KOP_NORM, tokens, c, 0, 2, true, 3 * d);
    if (b->context_len > 0) {
        self_attention(b, o, tokens, d);
        cross_attention(b, o, tokens, d);
    } else { /* no cross-attention states: the second attention is a self-attention too (AudioLDM)
              */
        self_attention(b, o, tokens, 2 * d);
    }
    dt_kop_emit_gemm(o, tokens, 2 * f, c, d);
    dt_kop_emit_pointwise(o, DT_KOP_ACT, tokens, f, 1, 3, false, d);
    dt_kop_emit_gemm(o, tokens, c, f, d);
    dt_kop_emit_coll(o, DT_KOP_ALL_REDUCE, o->w.tp, bytes, 3 * d);
    dt_kop_emit_pointwise(o, DT_KOP_ADD, tokens, c, 0, 3, false, 3 * d);
    dt_kop_emit_gemm(o, tokens, c, split, 1);
    dt_kop_emit_coll(o, DT_KOP_ALL_REDUCE, o->w.tp, bytes, 1);
    dt_kop_emit_pointwise(o, DT_KOP_ADD, tokens, c, 0, 3, false, 1);
}

/* Two layers on one vector per item; too small to split, so every rank repeats it. */
static void time_embed(const struct dt_block *b, struct dt_kop_list *o)
{
    dt_kop_emit_gemm(o, o->w.n, b->time_dim, b->hidden, 1);
    if (b->depth < 2)
        return;
    dt_kop_emit_pointwise(o, DT_KOP_ACT, o->w.n, b->time_dim, 0, 2, false, 1);
    dt_kop_emit_gemm(o, o->w.n, b->time_dim, b->time_dim, 1);
}

void dt_block_unet_kops(const struct dt_block *b, struct dt_kop_list *o)
{
    double tokens = o->w.tokens * dt_block_level_scale(b->level);

    switch (b->kind) {
    case DT_BLOCK_CONV:
        conv(b, o, tokens);
        break;
    case DT_BLOCK_RESNET:
        resnet(b, o, tokens);
        break;
    case DT_BLOCK_SPATIAL_TRANSFORMER:
        spatial_transformer(b, o, tokens);
        break;
    case DT_BLOCK_TIME_EMBED:
        time_embed(b, o);
        break;
    case DT_BLOCK_EMBEDDING:
    case DT_BLOCK_PATCH_EMBED:
    case DT_BLOCK_TRANSFORMER:
    case DT_BLOCK_PROJECTOR:
    case DT_BLOCK_LM_HEAD:
    case DT_BLOCK_NORM:
    case DT_BLOCK_KIND_N:
        break;
    }
}
