/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Weights and Hugging Face names of vision towers: ViTModel's, those that CLIPVisionModel and
 * SiglipVisionModel share, or Qwen2VLForConditionalGeneration's, whose q, k and v are one tensor. */
#include "exec/modules/names.h"

#include <stdio.h>

struct tower { /* what comes before, and the names of a tower's tensors */
    const char *top, *patch, *position, *class_token;
    const char *layer, *norm1, *qkv[3], *q_norm, *k_norm, *o, *norm2, *gate, *up, *down;
    const char *norm_before, *norm_behind;
};
static const struct tower towers[] = {
    {"",
     "embeddings.patch_embeddings.projection",
     "embeddings.position_embeddings",
     "embeddings.cls_token",
     "encoder.layer.",
     "layernorm_before",
     {"attention.attention.query", "attention.attention.key", "attention.attention.value"},
     "attention.attention.q_norm.weight",
     "attention.attention.k_norm.weight",
     "attention.output.dense",
     "layernorm_after",
     NULL,
     "intermediate.dense",
     "output.dense",
     "pre_layrnorm",
     "layernorm"},
    {"vision_model.",
     "embeddings.patch_embedding",
     "embeddings.position_embedding.weight",
     "embeddings.class_embedding",
     "encoder.layers.",
     "layer_norm1",
     {"self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"},
     "self_attn.q_norm.weight",
     "self_attn.k_norm.weight",
     "self_attn.out_proj",
     "layer_norm2",
     NULL,
     "mlp.fc1",
     "mlp.fc2",
     "pre_layrnorm", /* sic */
     "post_layernorm"},
    {"visual.",
     "patch_embed.proj",
     "pos_embed", /* these three are of ours: it has no such tensors */
     "cls_token",
     "blocks.",
     "norm1",
     {"attn.qkv", NULL, NULL},
     "attn.q_norm.weight",
     "attn.k_norm.weight",
     "attn.proj",
     "norm2",
     "mlp.gate_proj", /* Qwen2.5-VL's */
     "mlp.fc1",
     "mlp.fc2",
     "pre_norm",
     "merger.ln_q"},
};

static const struct tower *tower_of(const struct dt_nn_namer *m)
{
    return &towers[m->s->module->tower_names];
}

/* n rows of the block's width, of which nothing reads those before `first` and those from `end` on; the shape in files
 * depends on who wrote them. */
static enum dt_status table(struct dt_nn_namer *m, int role, int64_t n, int64_t first, int64_t end,
                            int n_dims, const int64_t *shape, const char *name)
{
    const int64_t width = m->n->b->hidden;
    int weight = dt_nn_weight_add(m->s, m->n, role, n, width, 0, false, NULL);
    struct dt_param *p;

    DT_TRY(dt_param_add(m->s, weight, 0, n, n_dims, shape, DT_INIT_NORMAL, DT_INIT_STD, false,
                        m->err, "%s%s", m->prefix, name));
    p = &m->s->params[m->s->n_params - 1];
    p->idle_first = (size_t)((first < n ? first : n) * width);
    p->idle_last = (size_t)((end < n ? n - end : 0) * width);
    return DT_OK;
}

/* Patches of an image have positions of a square grid, those of sound all behind the class tokens'. */
static int64_t patch_positions_end(const struct dt_nn_namer *m)
{
    const struct dt_block *b = m->n->b;
    int side = b->class_tokens < b->max_pos ? dt_nn_grid_side(b) : 0;

    return m->s->module->modality == DT_MODALITY_AUDIO ? b->max_pos : b->class_tokens + side * side;
}

enum dt_status dt_nn_names_patch(struct dt_nn_namer *m)
{
    const struct dt_block *b = m->n->b;
    const struct tower *t = tower_of(m);
    bool clip = m->s->module->tower_names == DT_TOWER_CLIP;
    bool moments = m->s->module->tower_names == DT_TOWER_QWEN && b->channels % 3 == 0;
    const int64_t flat[] = {b->hidden, b->channels, b->patch, b->patch},
                  deep[] = {b->hidden, 3, b->channels / 3, b->patch, b->patch};
    int weight =
        dt_nn_weight_add(m->s, m->n, PATCH_W, b->hidden, m->s->facts.patch_width, 0, true, NULL);

    snprintf(m->prefix, sizeof(m->prefix), "%s", t->top);
    DT_TRY(dt_param_add(m->s, weight, 0, b->hidden, moments ? 5 : 4, moments ? deep : flat,
                        DT_INIT_NORMAL, DT_INIT_STD, false, m->err, "%s%s.weight", m->prefix,
                        t->patch));
    if (b->bias)
        DT_TRY(dt_nn_name_bias(m, PATCH_B, b->hidden, NULL, t->patch));
    if (b->max_pos > 0)
        DT_TRY(table(
            m, PATCH_POS, b->max_pos, b->class_tokens, patch_positions_end(m), clip ? 2 : 3,
            clip ? (int64_t[]){b->max_pos, b->hidden, 0} : (int64_t[]){1, b->max_pos, b->hidden},
            t->position));
    if (b->class_tokens > 0) /* loaded and kept; patches do not attend to them (doc/modules.md) */
        DT_TRY(table(m, PATCH_CLASS, b->class_tokens, 0, 0, clip && b->class_tokens == 1 ? 1 : 3,
                     clip && b->class_tokens == 1 ? (int64_t[]){b->hidden, 0, 0}
                                                  : (int64_t[]){1, b->class_tokens, b->hidden},
                     t->class_token));
    return DT_OK;
}

/* One tensor of all three; else packed of theirs. */
static enum dt_status name_qkv(struct dt_nn_namer *m, const struct tower *t, int64_t q, int64_t kv)
{
    const struct dt_block *b = m->n->b;
    const struct dt_nn_deal heads = {
        DT_DEAL_OUT, 3, {b->heads, b->kv_heads, b->kv_heads}, b->head_dim};
    bool bias = b->bias || b->qkv_bias;

    if (t->qkv[1])
        return dt_nn_name_packed(m, TF_QKV, bias ? TF_QKVB : -1, 3, (int64_t[]){q, kv, kv},
                                 b->hidden, b->head_dim, DT_INIT_STD, t->qkv);
    return dt_nn_name_linear(m, TF_QKV, q + 2 * kv, b->hidden, &heads, bias, DT_INIT_STD,
                             t->qkv[0]);
}

/* A gate has a tensor of its own, or lies with `up` in one. */
static enum dt_status name_up(struct dt_nn_namer *m, const struct tower *t)
{
    const struct dt_block *b = m->n->b;
    const struct dt_nn_deal up = {DT_DEAL_OUT, b->gated ? 2 : 1, {b->ffn, b->ffn}, 1};

    if (b->gated && t->gate)
        return dt_nn_name_packed(m, TF_UP, b->bias ? TF_UPB : -1, 2, (int64_t[]){b->ffn, b->ffn},
                                 b->hidden, 1, DT_INIT_STD,
                                 (const char *const[]){t->gate, "mlp.up_proj"});
    return dt_nn_name_linear(m, TF_UP, b->gated ? 2 * (int64_t)b->ffn : b->ffn, b->hidden, &up,
                             b->bias, DT_INIT_STD, t->up);
}

enum dt_status dt_nn_name_tower_layer(struct dt_nn_namer *m)
{
    const struct dt_block *b = m->n->b;
    const struct tower *t = tower_of(m);
    int64_t q = (int64_t)b->heads * b->head_dim, kv = (int64_t)b->kv_heads * b->head_dim;

    snprintf(m->prefix, sizeof(m->prefix), "%s%s%d.", t->top, t->layer, m->layer);
    DT_TRY(dt_nn_name_norm(m, TF_N1, b->hidden, NULL, b->layernorm, t->norm1));
    DT_TRY(name_qkv(m, t, q, kv));
    DT_TRY(dt_nn_name_head_norms(m, t->q_norm, t->k_norm));
    DT_TRY(dt_nn_name_linear(m, TF_O, b->hidden, q, DT_BY_IN(b->heads, b->head_dim), b->bias,
                             dt_nn_residual_std(m), t->o));
    DT_TRY(dt_nn_name_norm(m, TF_N2, b->hidden, NULL, b->layernorm, t->norm2));
    DT_TRY(name_up(m, t));
    return dt_nn_name_linear(m, TF_DOWN, b->hidden, b->ffn, DT_BY_IN(b->ffn, 1), b->bias,
                             dt_nn_residual_std(m),
                             b->gated && t->gate ? "mlp.down_proj" : t->down);
}

enum dt_status dt_nn_names_norm(struct dt_nn_namer *m)
{
    const struct dt_block *b = m->n->b;
    const struct tower *t = tower_of(m);
    bool before = m->n->index == 1; /* CLIP's norm in front of the layers */

    snprintf(m->prefix, sizeof(m->prefix), "%s", t->top);
    return dt_nn_name_norm(m, NORM_G, b->hidden, NULL, b->layernorm,
                           before ? t->norm_before : t->norm_behind);
}
