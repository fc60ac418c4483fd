/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Totals of blocks and modules: parameters from shapes, FLOPs from the kernel list at tp = 1.
 *
 * Convention: FLOPs count matrix multiplications, convolutions and attention, 2 per multiply-add,
 * causal attention half: per transformer layer of s tokens 2s(2h^2 + 2h^2 g/a + 3hf) + 2s^2 h
 * (causal) or + 4s^2 h (full); logits 2shV (FACTS "per-block", derived). */
#include "core/model/block_ops.h"

const char *const dt_block_recompute_names[] = {"none", "selective", "full", NULL};

static const char *const kind_names[DT_BLOCK_KIND_N] = {
    "embedding", "patch-embedding", "transformer", "projector",           "lm-head",
    "norm",      "convolution",     "resnet",      "spatial-transformer", "time-embedding",
};

const char *dt_block_kind_name(enum dt_block_kind k)
{
    return (unsigned)k < DT_BLOCK_KIND_N ? kind_names[k] : "unknown";
}

double dt_block_flops(const struct dt_block *b, const struct dt_work *w)
{
    static const struct dt_block_shard whole = {.tp = 1, .cp = 1, .ep = 1, .ip = 1};
    struct dt_kop ops[DT_MAX_KOPS];
    int n = dt_block_kops(b, &whole, w, ops);
    double sum = 0;

    for (int i = 0; i < n;
         i++) /* unfused kernels compute the masked half too; it is not model work */
        sum += ops[i].flops * ops[i].count * (ops[i].core && b->causal ? 0.5 : 1);
    return sum;
}

/* `times` linear layers, or convolutions of taps in one. */
static void linear(struct dt_block_param_counts *p, int64_t times, int64_t in, int64_t out,
                   bool bias)
{
    p->matrices += times * in * out;
    p->vectors += bias ? times * out : 0;
}

static void norm(struct dt_block_param_counts *p, int64_t times, int64_t width, bool layernorm)
{
    p->vectors += times * (layernorm ? 2 * width : width);
}

static void transformer_params(const struct dt_block *b, struct dt_block_param_counts *p)
{
    int64_t h = b->hidden, q = (int64_t)b->heads * b->head_dim;
    int64_t kv = (int64_t)b->kv_heads * b->head_dim, experts = b->n_experts > 0 ? b->n_experts : 1;
    bool qkv_bias = b->bias || b->qkv_bias;

    linear(p, 1, h, q, qkv_bias);
    linear(p, 2, h, kv, qkv_bias);
    linear(p, 1, q, h, b->bias);
    linear(p, experts, h, b->gated ? 2 * (int64_t)b->ffn : b->ffn, b->bias);
    linear(p, experts, b->ffn, h, b->bias);
    norm(p, 2, h, b->layernorm);
    if (b->n_experts > 0)
        linear(p, 1, h, b->n_experts, false); /* router */
    if (b->qk_norm)
        norm(p, 2, b->head_dim, b->layernorm);
}

static void spatial_params(const struct dt_block *b, struct dt_block_param_counts *p)
{
    int64_t c = b->hidden, w = (int64_t)b->heads * b->head_dim, f = b->ffn, d = b->depth;
    int64_t ctx = b->context_len > 0 ? b->context_dim : c;

    norm(p, 1, c, true);
    linear(p, 2, c, c, true);
    norm(p, 3 * d, c, true);
    linear(p, 3 * d, c, w, false); /* self-attention */
    linear(p, d, w, c, true);
    linear(p, d, c, w, false); /* cross-attention */
    linear(p, 2 * d, ctx, w, false);
    linear(p, d, w, c, true);
    linear(p, d, c, 2 * f, true); /* GEGLU */
    linear(p, d, f, c, true);
}

static void resnet_params(const struct dt_block *b, struct dt_block_param_counts *p)
{
    int64_t i = b->c_in, o = b->c_out, taps = (int64_t)b->kernel * b->kernel;

    norm(p, 1, i, true);
    linear(p, 1, i * taps, o, true);
    linear(p, 1, b->time_dim, o, true);
    norm(p, 1, o, true);
    linear(p, 1, o * taps, o, true);
    if (i != o)
        linear(p, 1, i, o, true);
}

static void projector_params(const struct dt_block *b, struct dt_block_param_counts *p)
{
    linear(p, 1, b->in_dim, b->mid_dim > 0 ? b->mid_dim : b->out_dim, b->bias);
    if (b->mid_dim > 0)
        linear(p, 1, b->mid_dim, b->out_dim, b->bias);
}

struct dt_block_param_counts dt_block_param_count(const struct dt_block *b)
{
    int64_t h = b->hidden, taps = (int64_t)b->kernel * b->kernel;
    struct dt_block_param_counts p = {0};

    switch (b->kind) {
    case DT_BLOCK_EMBEDDING:
        p.matrices = (int64_t)b->vocab * h;
        p.vectors = (int64_t)b->max_pos * h;
        break;
    case DT_BLOCK_PATCH_EMBED:
        linear(&p, 1, (int64_t)b->patch * b->patch * b->channels, h, b->bias);
        p.vectors += ((int64_t)b->max_pos + b->class_tokens) * h;
        break;
    case DT_BLOCK_TRANSFORMER:
        transformer_params(b, &p);
        break;
    case DT_BLOCK_PROJECTOR:
        projector_params(b, &p);
        break;
    case DT_BLOCK_LM_HEAD:
        norm(&p, 1, h, b->layernorm);
        p.matrices = b->tied ? 0 : (int64_t)b->vocab * h;
        break;
    case DT_BLOCK_NORM:
        norm(&p, 1, h, b->layernorm);
        break;
    case DT_BLOCK_CONV:
        if (b->layernorm)
            norm(&p, 1, b->c_in, true);
        linear(&p, 1, b->c_in * taps, b->c_out, true);
        break;
    case DT_BLOCK_RESNET:
        resnet_params(b, &p);
        break;
    case DT_BLOCK_SPATIAL_TRANSFORMER:
        spatial_params(b, &p);
        break;
    case DT_BLOCK_TIME_EMBED:
        linear(&p, 1, h, b->time_dim, b->bias);
        if (b->depth > 1)
            linear(&p, 1, b->time_dim, b->time_dim, b->bias);
        break;
    case DT_BLOCK_KIND_N:
        break;
    }
    return p;
}

int64_t dt_block_params(const struct dt_block *b)
{
    struct dt_block_param_counts p = dt_block_param_count(b);

    return p.matrices + p.vectors;
}

double dt_module_flops(const struct dt_module *m, const struct dt_work *w)
{
    double sum = 0;

    for (int i = 0; i < m->n_blocks; i++)
        sum += dt_block_flops(&m->blocks[i], w);
    return sum;
}

int64_t dt_module_params(const struct dt_module *m)
{
    int64_t sum = 0;

    for (int i = 0; i < m->n_blocks; i++)
        sum += dt_block_params(&m->blocks[i]);
    return sum;
}
