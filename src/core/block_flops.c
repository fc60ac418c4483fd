/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Totals of blocks and modules: parameters from shapes, FLOPs from the kernel list at tp = 1.
 *
 * Convention: FLOPs count matrix multiplications, convolutions and attention, 2 per multiply-add,
 * causal attention half: per transformer layer of s tokens 2s(2h^2 + 2h^2 g/a + 3hf) + 2s^2 h
 * (causal) or + 4s^2 h (full); logits 2shV (FACTS "per-block", derived). */
#include "core/block_ops.h"

const char *const dt_recompute_names[] = {"none", "selective", "full", NULL};

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
    static const struct dt_shard whole = {.tp = 1, .cp = 1, .ep = 1, .ip = 1};
    struct dt_kop ops[DT_MAX_KOPS];
    int n = dt_block_kops(b, &whole, w, ops);
    double sum = 0;

    for (int i = 0; i < n; i++) /* unfused kernels compute the masked half too; it is not model work */
        sum += ops[i].flops * ops[i].count * (ops[i].core && b->causal ? 0.5 : 1);
    return sum;
}

static int64_t linear(int64_t in, int64_t out, bool bias)
{
    return in * out + (bias ? out : 0);
}

static int64_t norm(int64_t width, bool layernorm)
{
    return layernorm ? 2 * width : width;
}

static int64_t transformer_params(const struct dt_block *b)
{
    int64_t h = b->hidden, q = (int64_t)b->heads * b->head_dim;
    int64_t kv = (int64_t)b->kv_heads * b->head_dim, experts = b->n_experts > 0 ? b->n_experts : 1;
    bool qkv_bias = b->bias || b->qkv_bias;
    int64_t mlp =
        linear(h, b->gated ? 2 * (int64_t)b->ffn : b->ffn, b->bias) + linear(b->ffn, h, b->bias);
    int64_t total = linear(h, q, qkv_bias) + 2 * linear(h, kv, qkv_bias) + linear(q, h, b->bias);

    total += experts * mlp + 2 * norm(h, b->layernorm);
    if (b->n_experts > 0)
        total += h * b->n_experts; /* router */
    if (b->qk_norm)
        total += 2 * norm(b->head_dim, b->layernorm);
    return total;
}

static int64_t spatial_params(const struct dt_block *b)
{
    int64_t c = b->hidden, w = (int64_t)b->heads * b->head_dim, f = b->ffn;
    int64_t ctx = b->context_len > 0 ? b->context_dim : c;
    int64_t self = 3 * linear(c, w, false) + linear(w, c, true);
    int64_t cross = linear(c, w, false) + 2 * linear(ctx, w, false) + linear(w, c, true);
    int64_t geglu = linear(c, 2 * f, true) + linear(f, c, true);

    return norm(c, true) + 2 * linear(c, c, true) +
           b->depth * (3 * norm(c, true) + self + cross + geglu);
}

static int64_t resnet_params(const struct dt_block *b)
{
    int64_t i = b->c_in, o = b->c_out, taps = (int64_t)b->kernel * b->kernel;
    int64_t sum = norm(i, true) + linear(i * taps, o, true) + linear(b->time_dim, o, true) +
                  norm(o, true) + linear(o * taps, o, true);

    return i == o ? sum : sum + linear(i, o, true);
}

static int64_t projector_params(const struct dt_block *b)
{
    if (b->mid_dim == 0)
        return linear(b->in_dim, b->out_dim, b->bias);
    return linear(b->in_dim, b->mid_dim, b->bias) + linear(b->mid_dim, b->out_dim, b->bias);
}

int64_t dt_block_params(const struct dt_block *b)
{
    int64_t h = b->hidden, taps = (int64_t)b->kernel * b->kernel;

    switch (b->kind) {
    case DT_BLOCK_EMBEDDING:
        return (int64_t)b->vocab * h + (int64_t)b->max_pos * h;
    case DT_BLOCK_PATCH_EMBED:
        return linear((int64_t)b->patch * b->patch * b->channels, h, b->bias) +
               ((int64_t)b->max_pos + b->class_tokens) * h;
    case DT_BLOCK_TRANSFORMER:
        return transformer_params(b);
    case DT_BLOCK_PROJECTOR:
        return projector_params(b);
    case DT_BLOCK_LM_HEAD:
        return norm(h, b->layernorm) + (b->tied ? 0 : (int64_t)b->vocab * h);
    case DT_BLOCK_NORM:
        return norm(h, b->layernorm);
    case DT_BLOCK_CONV:
        return (b->layernorm ? norm(b->c_in, true) : 0) + linear(b->c_in * taps, b->c_out, true);
    case DT_BLOCK_RESNET:
        return resnet_params(b);
    case DT_BLOCK_SPATIAL_TRANSFORMER:
        return spatial_params(b);
    case DT_BLOCK_TIME_EMBED:
        return linear(h, b->time_dim, b->bias) +
               (b->depth > 1 ? linear(b->time_dim, b->time_dim, b->bias) : 0);
    case DT_BLOCK_KIND_N:
        break;
    }
    return 0;
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
