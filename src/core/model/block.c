/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Blocks as kernels: the one list that FLOPs, times and activations derive from.
 *
 * Tensor parallelism is Megatron's (Shoeybi et al. 2019; sequence parallelism: Korthikanti et al.
 * 2022):
 *
 *   norm(s/tp) -AG-> qkv (n/tp) -> attention (heads/tp) -> out (k/tp) -RS-> add(s/tp)
 *   norm(s/tp) -AG-> up  (n/tp) -> activation           -> down (k/tp) -RS-> add(s/tp)
 *
 * Heads that tp does not divide are dealt unevenly; the list is that of the widest rank. */
#include "core/model/block_ops.h"

#include <math.h>

const char *const dt_kop_family_names[DT_KOP_FAMILY_N + 1] = {
    "gemm",           "attn_causal", "attn_full", "attn_cross", "conv2d",
    "norm",           "groupnorm",   "act",       "add",        "rope",
    "embed",          "xent",        "adamw",     "all_reduce", "all_gather",
    "reduce_scatter", "all_to_all",  "send_recv", "block",
};

void dt_block_share_init(struct dt_block_share *w, const struct dt_block *b,
                         const struct dt_block_shard *s, const struct dt_work *work)
{
    double part = 1.0;

    if (s->ip > 1) {
        part = 1.0 / s->ip;
        if (work->tokens > 0 && (double)work->tokens_max / (double)work->tokens > part)
            part = (double)work->tokens_max / (double)work->tokens;
        if (part > 1)
            part = 1;
    }
    w->tp = s->tp > 1 ? s->tp : 1;
    w->cp = s->cp > 1 ? s->cp : 1;
    w->ep = s->ep > 1 ? s->ep : 1;
    w->seqpar = s->seqpar && w->tp > 1 && !b->no_seqpar;
    w->n = (double)work->n * part;
    if (work->n > 0 && w->n < 1)
        w->n = 1;
    w->tokens_all = (double)work->tokens * part;
    w->tokens = w->tokens_all / w->cp;
    w->tokens_sq = (double)work->tokens_sq * part;
    w->seq = work->tokens > 0 ? (double)work->tokens_sq / (double)work->tokens : 0;
    w->norm_tokens = w->seqpar ? w->tokens / w->tp : w->tokens;
}

static struct dt_kop *push(struct dt_kop_list *o, enum dt_kop_family f, double count)
{
    static struct dt_kop
        sink; /* never reached: every block's list is far below DT_MAX_KOPS (tested) */
    struct dt_kop *k = o->n < DT_MAX_KOPS ? &o->k[o->n++] : &sink;

    *k = (struct dt_kop){.family = f, .count = count, .by_sq = o->by_sq};
    return k;
}

/* The kernel that would come next is in the list already. */
static bool stays(struct dt_kop_list *o)
{
    if (!o->again || o->by_sq)
        return false;
    o->n += o->n < DT_MAX_KOPS;
    return true;
}

static int64_t dim(double v)
{
    int64_t i = llround(v);

    return i > 0 ? i : 1;
}

void dt_kop_emit_gemm(struct dt_kop_list *o, double m, double n, double k, double count)
{
    struct dt_kop *op;

    if (stays(o))
        return;
    op = push(o, DT_KOP_GEMM, count);
    op->d[0] = dim(m);
    op->d[1] = dim(n);
    op->d[2] = dim(k);
    op->flops = 2 * m * n * k;
    op->bytes = DT_ELEM_BYTES * (m * k + k * n + m * n);
    op->has_weight = true;
}

void dt_kop_emit_pointwise(struct dt_kop_list *o, enum dt_kop_family f, double tokens, double width,
                           int64_t extra, double passes, bool has_weight, double count)
{
    struct dt_kop *op;

    if (stays(o))
        return;
    op = push(o, f, count);
    op->d[0] = dim(tokens);
    op->d[1] = dim(width);
    op->d[2] = extra;
    op->bytes = passes * DT_ELEM_BYTES * tokens * width;
    op->has_weight = has_weight;
}

void dt_kop_emit_coll_apart(struct dt_kop_list *o, enum dt_kop_family f, double gpus, double stride,
                            double bytes, double count)
{
    struct dt_kop *op;

    if (gpus <= 1 || stays(o))
        return;
    op = push(o, f, count);
    op->d[0] = (int64_t)gpus;
    op->d[1] = (int64_t)gpus;
    op->d[2] = dim(bytes);
    op->d[3] = (int64_t)stride;
    op->bytes = bytes;
}

void dt_kop_emit_coll(struct dt_kop_list *o, enum dt_kop_family f, double gpus, double bytes,
                      double count)
{
    dt_kop_emit_coll_apart(o, f, gpus, 1, bytes, count);
}

void dt_kop_emit_attention(struct dt_kop_list *o, bool causal, double seq, double tokens_sq,
                           double heads, double kv_heads, double head_dim, double count)
{
    double flops_per_pair = (causal ? 2 : 4) * heads * head_dim;
    int64_t s = dim(seq);
    int64_t batch = dim(tokens_sq / ((double)s * (double)s));
    double pairs = (double)batch * (double)s * (double)s;
    struct dt_kop *op;

    o->by_sq = true;
    op = push(o, causal ? DT_KOP_ATTN_CAUSAL : DT_KOP_ATTN_FULL, 0);
    o->by_sq = false;
    op->d[0] = batch;
    op->d[1] = s;
    op->d[2] = (int64_t)heads;
    op->d[3] = (int64_t)kv_heads;
    op->d[4] = (int64_t)head_dim;
    op->flops = flops_per_pair * pairs;
    op->bytes = DT_ELEM_BYTES * (double)batch * (double)s * head_dim * (2 * heads + 2 * kv_heads);
    /* batch and seq are whole numbers; the multiplicity carries what rounding lost, so that work is
     * exact */
    op->count = count * tokens_sq / pairs;
}

void dt_kop_emit_cross(struct dt_kop_list *o, double items, double tokens, double heads,
                       double kv_len, double head_dim, double count)
{
    struct dt_kop *op;

    if (stays(o))
        return;
    op = push(o, DT_KOP_ATTN_CROSS, count);
    op->d[0] = dim(items);
    op->d[1] = dim(tokens / (double)op->d[0]);
    op->d[2] = (int64_t)heads;
    op->d[3] = (int64_t)kv_len;
    op->d[4] = (int64_t)head_dim;
    op->flops = 4 * tokens * kv_len * heads * head_dim;
    op->bytes = DT_ELEM_BYTES * heads * head_dim * (2 * tokens + 2 * items * kv_len);
}

void dt_kop_emit_conv(struct dt_kop_list *o, double pixels, double c_in, double c_out, int kernel,
                      int stride)
{
    struct dt_kop *op;
    double taps = (double)kernel * kernel;

    if (stays(o))
        return;
    op = push(o, DT_KOP_CONV2D, 1);
    op->d[0] = dim(pixels);
    op->d[1] = (int64_t)c_in;
    op->d[2] = (int64_t)c_out;
    op->d[3] = kernel;
    op->d[4] = stride;
    op->flops = 2 * pixels * c_in * c_out * taps;
    op->bytes =
        DT_ELEM_BYTES * (pixels * stride * stride * c_in + pixels * c_out + taps * c_in * c_out);
    op->has_weight = true;
}

void dt_kop_emit_tp_enter(struct dt_kop_list *o, double tokens, double width)
{
    if (o->w.seqpar)
        dt_kop_emit_coll(o, DT_KOP_ALL_GATHER, o->w.tp, DT_ELEM_BYTES * tokens * width, 1);
}

void dt_kop_emit_tp_leave(struct dt_kop_list *o, double tokens, double width)
{
    dt_kop_emit_coll(o, o->w.seqpar ? DT_KOP_REDUCE_SCATTER : DT_KOP_ALL_REDUCE, o->w.tp,
                     DT_ELEM_BYTES * tokens * width, 1);
}

static void attention_half(const struct dt_block *b, struct dt_kop_list *o)
{
    const struct dt_block_share *w = &o->w;
    double heads = dt_block_ceil_div(b->heads, w->tp), kv = dt_block_ceil_div(b->kv_heads, w->tp);
    double qd = heads * b->head_dim, kvd = kv * b->head_dim;

    dt_kop_emit_pointwise(o, DT_KOP_NORM, w->norm_tokens, b->hidden, 0, 2, true, 1);
    dt_kop_emit_tp_enter(o, w->tokens, b->hidden);
    dt_kop_emit_gemm(o, w->tokens, qd + 2 * kvd, b->hidden, 1);
    if (b->qk_norm)
        dt_kop_emit_pointwise(o, DT_KOP_NORM, w->tokens * (heads + kv), b->head_dim, 0, 2, true, 1);
    if (b->causal && b->max_pos == 0) /* rotary positions unless they are learned */
        dt_kop_emit_pointwise(o, DT_KOP_ROPE, w->tokens, qd + kvd, 0, 2, false, 1);
    /* context parallelism gathers keys and values and deals the causal triangle evenly */
    dt_kop_emit_coll_apart(o, DT_KOP_ALL_GATHER, w->cp, w->tp,
                           DT_ELEM_BYTES * w->tokens_all * 2 * kvd, 1);
    dt_kop_emit_attention(o, b->causal, w->seq, w->tokens_sq, heads, kv, b->head_dim, 1 / w->cp);
    dt_kop_emit_gemm(o, w->tokens, b->hidden, qd, 1);
    dt_kop_emit_tp_leave(o, w->tokens, b->hidden);
    dt_kop_emit_pointwise(o, DT_KOP_ADD, w->norm_tokens, b->hidden, 0, 3, false, 1);
}

static void mlp_half(const struct dt_block *b, struct dt_kop_list *o)
{
    const struct dt_block_share *w = &o->w;
    double f = dt_block_ceil_div(b->ffn, w->tp), rows = w->tokens, experts = 1;

    dt_kop_emit_pointwise(o, DT_KOP_NORM, w->norm_tokens, b->hidden, 0, 2, true, 1);
    dt_kop_emit_tp_enter(o, w->tokens, b->hidden);
    if (b->n_experts > 0) {
        /* Every expert-parallel rank brings its own tokens and holds n_experts/ep experts: on
         * average it processes tokens*top_k rows, spread evenly (routing imbalance is not
         * modelled). */
        double bytes = DT_ELEM_BYTES * w->norm_tokens * b->top_k * b->hidden;

        experts = dt_block_ceil_div(b->n_experts, w->ep);
        rows = w->tokens * b->top_k / experts;
        dt_kop_emit_gemm(o, w->norm_tokens, b->n_experts, b->hidden, 1);
        /* dispatch and combine; expert groups span lanes */
        dt_kop_emit_coll_apart(o, DT_KOP_ALL_TO_ALL, w->ep, w->tp * w->cp, bytes, 2);
    }
    dt_kop_emit_gemm(o, rows, b->gated ? 2 * f : f, b->hidden, experts);
    dt_kop_emit_pointwise(o, DT_KOP_ACT, rows, f, b->gated, b->gated ? 3 : 2, false, experts);
    dt_kop_emit_gemm(o, rows, b->hidden, f, experts);
    dt_kop_emit_tp_leave(o, w->tokens, b->hidden);
    dt_kop_emit_pointwise(o, DT_KOP_ADD, w->norm_tokens, b->hidden, 0, 3, false, 1);
}

/* Vocabulary-parallel table: every rank looks up its own rows, the partial sums are combined. */
static void embedding(const struct dt_block *b, struct dt_kop_list *o)
{
    dt_kop_emit_pointwise(o, DT_KOP_EMBED, o->w.tokens, b->hidden, 0, 2, true, 1);
    dt_kop_emit_tp_leave(o, o->w.tokens, b->hidden);
    if (b->max_pos > 0)
        dt_kop_emit_pointwise(o, DT_KOP_ADD, o->w.norm_tokens, b->hidden, 0, 3, true, 1);
}

static void patch_embed(const struct dt_block *b, struct dt_kop_list *o)
{
    double in = (double)b->patch * b->patch * b->channels;

    dt_kop_emit_gemm(o, o->w.norm_tokens, b->hidden, in, 1);
    if (b->max_pos > 0)
        dt_kop_emit_pointwise(o, DT_KOP_ADD, o->w.norm_tokens, b->hidden, 0, 3, true, 1);
}

static void lm_head(const struct dt_block *b, struct dt_kop_list *o)
{
    double v = dt_block_ceil_div(b->vocab, o->w.tp);

    dt_kop_emit_pointwise(o, DT_KOP_NORM, o->w.norm_tokens, b->hidden, 0, 2, true, 1);
    dt_kop_emit_tp_enter(o, o->w.tokens, b->hidden);
    dt_kop_emit_gemm(o, o->w.tokens, v, b->hidden, 1);
    /* vocabulary-parallel loss: maximum, target logit and sum of exponentials, one fp32 per token
     * each */
    dt_kop_emit_coll(o, DT_KOP_ALL_REDUCE, o->w.tp, 4 * o->w.tokens, 3);
    dt_kop_emit_pointwise(o, DT_KOP_XENT, o->w.tokens, v, 0, 2, false, 1);
}

static void projector(const struct dt_block *b, struct dt_kop_list *o)
{
    struct dt_block_share *w = &o->w;

    if (b->context_len >
        0) { /* conditioning tokens of generated items, not the item's own pixels */
        w->tokens = w->n * b->context_len / w->cp;
        w->norm_tokens = w->seqpar ? w->tokens / w->tp : w->tokens;
    }
    dt_kop_emit_tp_enter(o, w->tokens, b->in_dim);
    if (b->mid_dim > 0) {
        double mid = dt_block_ceil_div(b->mid_dim, w->tp);

        dt_kop_emit_gemm(o, w->tokens, mid, b->in_dim, 1);
        dt_kop_emit_pointwise(o, DT_KOP_ACT, w->tokens, mid, 0, 2, false, 1);
        dt_kop_emit_gemm(o, w->tokens, b->out_dim, mid, 1);
        dt_kop_emit_tp_leave(o, w->tokens, b->out_dim);
        return;
    }
    dt_kop_emit_gemm(o, w->tokens, dt_block_ceil_div(b->out_dim, w->tp), b->in_dim, 1);
    dt_kop_emit_coll(o, DT_KOP_ALL_GATHER, w->tp, DT_ELEM_BYTES * w->tokens * b->out_dim, 1);
}

bool dt_block_by_items(const struct dt_block *b)
{
    switch (b->kind) {
    case DT_BLOCK_EMBEDDING:
    case DT_BLOCK_PATCH_EMBED:
    case DT_BLOCK_TRANSFORMER:
    case DT_BLOCK_LM_HEAD:
    case DT_BLOCK_NORM:
    case DT_BLOCK_CONV:
        return false;
    case DT_BLOCK_PROJECTOR:
        return b->context_len > 0;
    case DT_BLOCK_RESNET:
    case DT_BLOCK_SPATIAL_TRANSFORMER:
    case DT_BLOCK_TIME_EMBED:
    case DT_BLOCK_KIND_N:
        break;
    }
    return true;
}

static int kops(const struct dt_block *b, const struct dt_block_shard *s,
                const struct dt_work *work, bool again, struct dt_kop *out)
{
    struct dt_kop_list o = {.k = out, .again = again};

    if (work->n <= 0 || work->tokens <= 0)
        return 0;
    dt_block_share_init(&o.w, b, s, work);
    switch (b->kind) {
    case DT_BLOCK_EMBEDDING:
        if (b->unfused)
            dt_block_unfused_embedding(b, &o);
        else
            embedding(b, &o);
        break;
    case DT_BLOCK_PATCH_EMBED:
        patch_embed(b, &o);
        break;
    case DT_BLOCK_TRANSFORMER:
        if (b->unfused && b->n_experts == 0) {
            dt_block_unfused_transformer(b, &o);
            break;
        }
        attention_half(b, &o);
        mlp_half(b, &o);
        break;
    case DT_BLOCK_PROJECTOR:
        projector(b, &o);
        break;
    case DT_BLOCK_LM_HEAD:
        if (b->unfused)
            dt_block_unfused_head(b, &o);
        else
            lm_head(b, &o);
        break;
    case DT_BLOCK_NORM:
        dt_kop_emit_pointwise(&o, DT_KOP_NORM, o.w.norm_tokens, b->hidden, 0, 2, true, 1);
        break;
    case DT_BLOCK_CONV:
    case DT_BLOCK_RESNET:
    case DT_BLOCK_SPATIAL_TRANSFORMER:
    case DT_BLOCK_TIME_EMBED:
    case DT_BLOCK_KIND_N:
        dt_block_unet_kops(b, &o);
    }
    return o.n;
}

int dt_block_kops(const struct dt_block *b, const struct dt_block_shard *s,
                  const struct dt_work *work, struct dt_kop *out)
{
    return kops(b, s, work, false, out);
}

int dt_block_kops_again(const struct dt_block *b, const struct dt_block_shard *s,
                        const struct dt_work *work, struct dt_kop *list)
{
    return kops(b, s, work, true, list);
}
