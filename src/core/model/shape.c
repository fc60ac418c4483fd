/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Shapes into blocks: transformers here, U-Nets in shape_unet.c's walk down, through and up. */
#include "core/model/shape.h"
#include "core/model/shape_build.h"

void dt_shape_init(struct dt_shape *s, enum dt_shape_kind kind)
{
    *s = dt_shape_defaults[kind];
}

int dt_shape_context_tokens(const struct dt_shape *s)
{
    return s->unet.context_len > 0 ? s->unet.context_len : s->unet.class_dim > 0 ? 1 : 0;
}

int dt_shape_context_width(const struct dt_shape *s)
{
    return s->unet.context_len > 0 ? s->unet.context_dim : s->unet.class_dim;
}

struct dt_block *dt_shape_builder_add(struct dt_shape_builder *b, enum dt_block_kind kind)
{
    struct dt_block *p = b->blocks && b->n < b->cap ? &b->blocks[b->n] : &b->spare;

    *p = (struct dt_block){.kind = kind};
    b->n++;
    return p;
}

static void add_experts(const struct dt_shape *s, int layer, struct dt_block *p)
{
    int every = s->moe_every > 0 ? s->moe_every : 1;

    if (s->n_experts == 0 || layer < s->dense_first || (layer + 1) % every != 0)
        return;
    p->ffn = s->expert_ffn > 0 ? s->expert_ffn : s->ffn;
    p->n_experts = s->n_experts;
    p->top_k = s->top_k;
    p->shared_ffn = s->shared_ffn;
    p->shared_gate = s->shared_gate;
    p->router_bias = s->router_bias;
    p->capacity = s->capacity;
    p->imbalance = s->imbalance;
}

static void add_transformers(const struct dt_shape *s, bool causal, struct dt_shape_builder *b)
{
    for (int i = 0; i < s->layers; i++) {
        struct dt_block *p = dt_shape_builder_add(b, DT_BLOCK_TRANSFORMER);

        p->hidden = s->hidden;
        p->ffn = s->ffn;
        p->heads = s->heads;
        p->kv_heads = s->kv_heads;
        p->head_dim = s->head_dim;
        p->max_pos = s->positions;
        add_experts(s, i, p);
        p->window = s->window_every > 0 && (i + 1) % s->window_every == 0 ? 0 : s->window;
        p->q_lora = s->q_lora;
        p->kv_lora = s->kv_lora;
        p->rope_dim = s->rope_dim;
        p->v_dim = s->v_dim;
        p->norms = s->norms == 2 ? 0 : s->norms;
        p->norm_free = s->norm_free;
        p->layer_scale = s->layer_scale;
        p->qk_norm_whole = s->qk_norm_whole;
        p->no_qkv_bias = s->no_qkv_bias;
        p->grid_rope = s->grid_rope;
        p->causal = causal;
        p->gated = s->gated;
        p->bias = s->bias;
        p->qkv_bias = s->qkv_bias;
        p->qk_norm = s->qk_norm;
        p->layernorm = s->layernorm;
        p->unfused = s->unfused;
        p->no_seqpar = s->no_seqpar;
    }
}

static void build_llm(const struct dt_shape *s, struct dt_shape_builder *b)
{
    struct dt_block *p = dt_shape_builder_add(b, DT_BLOCK_EMBEDDING);

    p->hidden = s->hidden;
    p->vocab = s->vocab;
    p->max_pos = s->positions;
    p->unfused = s->unfused;
    p->no_seqpar = s->no_seqpar;
    add_transformers(s, true, b);
    p = dt_shape_builder_add(b, DT_BLOCK_LM_HEAD);
    p->unfused = s->unfused;
    p->no_seqpar = s->no_seqpar;
    p->hidden = s->hidden;
    p->vocab = s->vocab;
    p->tied = s->tied;
    p->norm_free = s->norm_free;
    p->layernorm = s->layernorm;
}

static void add_norm(const struct dt_shape *s, struct dt_shape_builder *b)
{
    struct dt_block *p = dt_shape_builder_add(b, DT_BLOCK_NORM);

    p->hidden = s->hidden;
    p->layernorm = s->layernorm;
}

static void build_encoder(const struct dt_shape *s, struct dt_shape_builder *b)
{
    struct dt_block *p = dt_shape_builder_add(b, DT_BLOCK_PATCH_EMBED);

    p->hidden = s->hidden;
    p->patch = s->patch;
    p->channels = s->channels;
    p->max_pos = s->positions;
    p->class_tokens = s->class_tokens;
    p->class_attends = s->class_attends && s->class_tokens > 0;
    p->bias = s->patch_bias;
    if (s->pre_norm)
        add_norm(s, b);
    add_transformers(s, false, b);
    if (s->final_norm)
        add_norm(s, b);
}

static void add_projector(const struct dt_shape *s, int in, int out, int tokens,
                          struct dt_shape_builder *b)
{
    struct dt_block *p = dt_shape_builder_add(b, DT_BLOCK_PROJECTOR);

    p->in_dim = in;
    p->out_dim = out;
    p->context_len = tokens;
    p->bias = s->projector_bias;
    p->in_norm = s->projector_norm;
    p->window = s->window;
    if (s->merge > 1) {
        p->merge = s->merge;
        p->pool = s->merge_mean;
        p->in_dim *= s->merge_mean ? 1 : s->merge * s->merge;
    }
    if (s->projector == DT_PROJ_MLP)
        p->mid_dim = s->projector_hidden > 0 ? s->projector_hidden : out;
}

static void build(const struct dt_shape *s, int llm_hidden, struct dt_shape_builder *b)
{
    bool project = llm_hidden > 0 && s->projector != DT_PROJ_NONE;

    switch (s->kind) {
    case DT_SHAPE_LLM:
        build_llm(s, b);
        break;
    case DT_SHAPE_ENCODER:
        build_encoder(s, b);
        if (project)
            add_projector(s, s->hidden, llm_hidden, 0, b);
        break;
    case DT_SHAPE_UNET:
        if (project)
            add_projector(s, llm_hidden, dt_shape_context_width(s), dt_shape_context_tokens(s), b);
        dt_shape_build_unet(&s->unet, b);
        break;
    case DT_SHAPE_NONE:
        break;
    }
}

enum dt_status dt_shape_build(const struct dt_shape *s, int llm_hidden, struct dt_arena *arena,
                              struct dt_error *err, struct dt_module *out)
{
    struct dt_shape_builder b = {0};
    bool project = llm_hidden > 0 && s->projector != DT_PROJ_NONE;

    build(s, llm_hidden, &b); /* counts */
    b.cap = b.n;
    b.blocks = DT_ARENA_NEW(arena, struct dt_block, b.cap);
    if (!b.blocks)
        return dt_error_nomem(err, "model blocks");
    b.n = 0;
    build(s, llm_hidden, &b);
    out->role = s->role;
    out->modality = s->modality;
    out->n_blocks = b.n;
    out->blocks = b.blocks;
    out->patch = s->kind == DT_SHAPE_ENCODER ? s->patch : 0;
    out->latent_scale = s->kind == DT_SHAPE_UNET ? s->latent_scale : 0;
    out->merge = project ? s->merge : 1;
    out->resize = s->resize;
    out->tower_names = s->tower_names;
    out->mixtral_names = s->mixtral_names;
    out->arith = s->arith;
    out->planned_only = s->planned_only;
    out->frames_per_s = s->frames_per_s;
    out->mel_bins = s->mel_bins;
    out->out_tokens_per_item = 0;
    switch (s->role) {
    case DT_ROLE_ENCODER:
        out->out_width = project ? llm_hidden : s->hidden;
        break;
    case DT_ROLE_LLM:
        out->out_width = s->hidden;
        break;
    case DT_ROLE_GENERATOR: /* what it takes in: the sink of the graph hands nothing on */
        out->out_width = 0;
        out->out_tokens_per_item = dt_shape_context_tokens(s);
        break;
    }
    return DT_OK;
}
