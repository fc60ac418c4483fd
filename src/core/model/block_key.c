/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING. */
#include "core/model/block_key.h"

#include "base/hash.h"

#include <string.h>

static uint64_t bits(double x)
{
    uint64_t u;

    memcpy(&u, &x, sizeof(u));
    return u;
}

int64_t dt_block_key(const struct dt_block *b, const struct dt_block_shard *s)
{
    /* Names beside numbers would be kinder, but a profile's dims are numbers. */
    const int64_t v[] = {b->kind,        b->hidden,      b->ffn,       b->heads,
                         b->kv_heads,    b->head_dim,    b->vocab,     b->max_pos,
                         b->n_experts,   b->top_k,       b->causal,    b->gated,
                         b->bias,        b->tied,        b->layernorm, b->qkv_bias,
                         b->qk_norm,     b->unfused,     b->no_seqpar, b->patch,
                         b->channels,    b->c_in,        b->c_out,     b->kernel,
                         b->stride,      b->upsample,    b->level,     b->time_dim,
                         b->context_dim, b->context_len, b->depth,     b->in_dim,
                         b->out_dim,     b->mid_dim,     s->tp,        s->tp > 1 ? s->seqpar : 0,
                         s->recompute};
    uint64_t h = DT_HASH_START;

    for (unsigned i = 0; i < sizeof(v) / sizeof(v[0]); i++)
        h = dt_hash_number(h, (uint64_t)v[i]);
    /* younger than profiles that people have: blocks without them keep their keys */
    if (b->class_attends || b->groups > 0) {
        h = dt_hash_number(h, (uint64_t)b->class_attends);
        h = dt_hash_number(h, (uint64_t)b->groups);
    }
    if (b->merge > 0 || b->pool || b->in_norm != DT_NORM_NONE) {
        h = dt_hash_number(h, (uint64_t)b->merge << 1 | b->pool);
        h = dt_hash_number(h, b->in_norm);
    }
    if (b->shared_ffn || b->shared_gate || b->capacity > 0 || b->imbalance > 0) {
        h = dt_hash_number(h, (uint64_t)b->shared_ffn << 1 | b->shared_gate);
        h = dt_hash_number(h, bits(b->capacity));
        h = dt_hash_number(h, bits(b->imbalance));
    }
    if (b->norms || b->window || b->norm_free || b->layer_scale || b->qk_norm_whole ||
        b->no_qkv_bias || b->router_bias || b->q_lora || b->kv_lora || b->rope_dim || b->v_dim) {
        h = dt_hash_number(h, (uint64_t)b->norms << 8 | (uint64_t)b->router_bias << 4 |
                                  (uint64_t)b->norm_free << 3 | (uint64_t)b->layer_scale << 2 |
                                  (uint64_t)b->qk_norm_whole << 1 | b->no_qkv_bias);
        h = dt_hash_number(h, (uint64_t)b->window);
        h = dt_hash_number(h, (uint64_t)b->q_lora << 32 | (uint64_t)b->kv_lora);
        h = dt_hash_number(h, (uint64_t)b->rope_dim << 32 | (uint64_t)b->v_dim);
    }
    if (b->grid_rope)
        h = dt_hash_number(h, 2);
    return (int64_t)(h >> 17) + 1; /* dims of a profile are below 2^48 */
}

/* The same tokens, each a sequence of its own. */
static double flops_alone(const struct dt_block *b, const struct dt_work *w)
{
    struct dt_work alone = {w->n, w->tokens, w->tokens, 1};

    return dt_block_flops(b, &alone);
}

double dt_block_equivalent_tokens(const struct dt_block *b, const struct dt_work *w)
{
    double alone = w->tokens > 0 ? flops_alone(b, w) : 0;

    return alone > 0 ? (double)w->tokens * dt_block_flops(b, w) / alone : (double)w->tokens;
}

int64_t dt_block_work_key(const struct dt_block *b, const struct dt_block_shard *s)
{
    const struct dt_work probe = {1, 64, 64 * 64, 64};
    uint64_t key = (uint64_t)dt_block_key(b, s);

    if (dt_block_equivalent_tokens(b, &probe) == (double)probe.tokens)
        return (int64_t)key;
    return (int64_t)(dt_hash_number(dt_hash_number(DT_HASH_START, key), 1) >> 17) + 1;
}
