/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Weights and Hugging Face names of text blocks: LlamaForCausalLM (also Qwen2, Qwen3),
 * GPT2LMHeadModel.  names_vision.c: vision towers; names_unet.c: UNet2DConditionModel.  Projectors,
 * which no published architecture prescribes, take LLaVA's names on the encoder's side.
 *
 * Initialisation: matrices and tables normal with deviation 0.02 (initializer_range of all three),
 * those that write into the residual stream divided by sqrt(2 layers) (GPT-2); norms 1, biases 0.
 */
#include "exec/modules/names.h"

#include <math.h>
#include <stdio.h>

static bool gpt2(const struct dt_block *b)
{
    return b->n_experts == 0 && b->causal && b->layernorm && !b->gated && b->max_pos > 0;
}

/* Rows of a weight; of one that there was no memory for, none. */
static int64_t rows_of(const struct dt_nn_namer *m, int weight)
{
    return weight < 0 ? 0 : m->s->weights[weight].out;
}

enum dt_status dt_nn_name_matrix(struct dt_nn_namer *m, int role, int64_t out, int64_t in,
                                 const struct dt_nn_deal *deal, double std, const char *name)
{
    int weight = dt_nn_weight_add(m->s, m->n, role, out, in, 0, true, deal);

    DT_TRY(dt_param_add(m->s, weight, 0, rows_of(m, weight), 2, (int64_t[]){out, in},
                        std > 0 ? DT_INIT_NORMAL : DT_INIT_ZERO, std, false, m->err, "%s%s.weight",
                        m->prefix, name));
    dt_param_deal(m->s, deal);
    return DT_OK;
}

enum dt_status dt_nn_name_vector(struct dt_nn_namer *m, int role, int64_t n,
                                 const struct dt_nn_deal *deal, bool ones, const char *name)
{
    int weight = dt_nn_weight_add(m->s, m->n, role, n, 0, 0, false, deal);

    DT_TRY(dt_param_add(m->s, weight, 0, rows_of(m, weight), 1, &n,
                        ones ? DT_INIT_ONE : DT_INIT_ZERO, 0, false, m->err, "%s%s", m->prefix,
                        name));
    dt_param_deal(m->s, deal);
    return DT_OK;
}

enum dt_status dt_nn_name_norm(struct dt_nn_namer *m, int role, int64_t n,
                               const struct dt_nn_deal *deal, bool layernorm, const char *name)
{
    char text[64];

    snprintf(text, sizeof(text), "%s.weight", name);
    DT_TRY(dt_nn_name_vector(m, role, n, deal, true, text));
    if (!layernorm)
        return DT_OK;
    snprintf(text, sizeof(text), "%s.bias", name);
    return dt_nn_name_vector(m, role + 1, n, deal, false, text);
}

enum dt_status dt_nn_name_bias(struct dt_nn_namer *m, int role, int64_t n,
                               const struct dt_nn_deal *deal, const char *name)
{
    bool inputs = deal && deal->by == DT_DEAL_IN;
    char text[64];

    snprintf(text, sizeof(text), "%s.bias", name);
    DT_TRY(dt_nn_name_vector(m, role, n, inputs ? NULL : deal, false, text));
    if (inputs)
        m->s->weights[m->n->weight[role]].partial = false;
    return DT_OK;
}

enum dt_status dt_nn_name_linear(struct dt_nn_namer *m, int role, int64_t out, int64_t in,
                                 const struct dt_nn_deal *deal, bool bias, double std,
                                 const char *name)
{
    DT_TRY(dt_nn_name_matrix(m, role, out, in, deal, std, name));
    return bias ? dt_nn_name_bias(m, role + 1, out, deal, name) : DT_OK;
}

/* Several named matrices (and biases) that one product takes together. */
enum dt_status dt_nn_name_packed(struct dt_nn_namer *m, int role, int bias_role, int n,
                                 const int64_t *outs, int64_t in, int64_t grain, double std,
                                 const char *const *names)
{
    struct dt_nn_deal all = {.by = DT_DEAL_OUT, .n = n, .size = grain};
    int64_t total = 0, row = 0;
    int weight, bias = -1;

    for (int i = 0; i < n; i++) {
        total += outs[i];
        all.grains[i] = outs[i] / grain;
    }
    weight = dt_nn_weight_add(m->s, m->n, role, total, in, 0, true, &all);
    if (bias_role >= 0)
        bias = dt_nn_weight_add(m->s, m->n, bias_role, total, 0, 0, false, &all);
    for (int i = 0; i < n; i++) {
        struct dt_nn_deal one = {DT_DEAL_OUT, 1, {outs[i] / grain}, grain};
        int64_t rows = dt_nn_mine(m->s, one.grains[0]) * grain;

        DT_TRY(dt_param_add(m->s, weight, row, rows, 2, (int64_t[]){outs[i], in}, DT_INIT_NORMAL,
                            std, false, m->err, "%s%s.weight", m->prefix, names[i]));
        dt_param_deal(m->s, &one);
        if (bias_role >= 0) {
            DT_TRY(dt_param_add(m->s, bias, row, rows, 1, &outs[i], DT_INIT_ZERO, 0, false, m->err,
                                "%s%s.bias", m->prefix, names[i]));
            dt_param_deal(m->s, &one);
        }
        row += rows;
    }
    return DT_OK;
}

static enum dt_status table(struct dt_nn_namer *m, int role, int64_t rows, int64_t width,
                            const struct dt_nn_deal *deal, const char *name)
{
    int weight = dt_nn_weight_add(m->s, m->n, role, rows, width, 0, false, deal);

    DT_TRY(dt_param_add(m->s, weight, 0, rows_of(m, weight), 2, (int64_t[]){rows, width},
                        DT_INIT_NORMAL, DT_INIT_STD, false, m->err, "%s%s", m->prefix, name));
    dt_param_deal(m->s, deal);
    return DT_OK;
}

/* ---- language models ---- */

double dt_nn_residual_std(const struct dt_nn_namer *m)
{
    int n = m->s->facts.n_transformers;

    return DT_INIT_STD / sqrt(2.0 * (n > 0 ? n : 1));
}

enum dt_status dt_nn_names_embedding(struct dt_nn_namer *m)
{
    const struct dt_block *b = m->n->b;
    bool g = m->gpt2;

    m->prefix[0] = '\0';
    DT_TRY(table(m, EMB_TOKEN, b->vocab, b->hidden, DT_BY_OUT(b->vocab, 1),
                 g ? "transformer.wte.weight" : "model.embed_tokens.weight"));
    m->s->weights[m->n->weight[EMB_TOKEN]].rounded = true; /* a look-up rounds, once */
    m->s->weights[m->n->weight[EMB_TOKEN]].looked_up = true;
    if (m->tied) /* the head multiplies with the same table */
        m->s->weights[m->n->weight[EMB_TOKEN]].product = true;
    if (b->max_pos > 0)
        DT_TRY(table(m, EMB_POS, b->max_pos, b->hidden, NULL,
                     g ? "transformer.wpe.weight" : "model.embed_positions.weight"));
    return DT_OK;
}

/* GPT-2's Conv1D: [in][out] in files, [out][in] here. */
static enum dt_status conv1d(struct dt_nn_namer *m, int role, int64_t out, int64_t in,
                             const struct dt_nn_deal *deal, double std, const char *name)
{
    int weight = dt_nn_weight_add(m->s, m->n, role, out, in, 0, true, deal);

    DT_TRY(dt_param_add(m->s, weight, 0, rows_of(m, weight), 2, (int64_t[]){in, out},
                        DT_INIT_NORMAL, std, true, m->err, "%s%s.weight", m->prefix, name));
    dt_param_deal(m->s, deal);
    return dt_nn_name_bias(m, role + 1, out, deal, name);
}

static enum dt_status name_gpt2_layer(struct dt_nn_namer *m)
{
    const struct dt_block *b = m->n->b;
    int64_t q = (int64_t)b->heads * b->head_dim, kv = (int64_t)b->kv_heads * b->head_dim;
    const struct dt_nn_deal heads = {
        DT_DEAL_OUT, 3, {b->heads, b->kv_heads, b->kv_heads}, b->head_dim};

    snprintf(m->prefix, sizeof(m->prefix), "transformer.h.%d.", m->layer);
    DT_TRY(dt_nn_name_norm(m, TF_N1, b->hidden, NULL, true, "ln_1"));
    DT_TRY(conv1d(m, TF_QKV, q + 2 * kv, b->hidden, &heads, DT_INIT_STD, "attn.c_attn"));
    DT_TRY(conv1d(m, TF_O, b->hidden, q, DT_BY_IN(b->heads, b->head_dim), dt_nn_residual_std(m),
                  "attn.c_proj"));
    DT_TRY(dt_nn_name_norm(m, TF_N2, b->hidden, NULL, true, "ln_2"));
    DT_TRY(conv1d(m, TF_UP, b->ffn, b->hidden, DT_BY_OUT(b->ffn, 1), DT_INIT_STD, "mlp.c_fc"));
    return conv1d(m, TF_DOWN, b->hidden, b->ffn, DT_BY_IN(b->ffn, 1), dt_nn_residual_std(m),
                  "mlp.c_proj");
}

/* Norms of q and k, which every member applies to its own heads. */
enum dt_status dt_nn_name_head_norms(struct dt_nn_namer *m, const char *q, const char *k)
{
    const struct dt_block *b = m->n->b;

    if (!b->qk_norm)
        return DT_OK;
    DT_TRY(dt_nn_name_vector(m, TF_QN, b->head_dim, NULL, true, q));
    DT_TRY(dt_nn_name_vector(m, TF_KN, b->head_dim, NULL, true, k));
    m->s->weights[m->n->weight[TF_QN]].partial = m->s->weights[m->n->weight[TF_KN]].partial =
        m->s->tp != NULL;
    return DT_OK;
}

/* A gate's or plain MLP's matrices, named PREFIX.gate_proj or the like; w: gate, up, down. */
static enum dt_status name_mlp(struct dt_nn_namer *m, int up, int down, int64_t width,
                               const char *at, const char *const w[3])
{
    const struct dt_block *b = m->n->b;
    char text[3][64];
    const char *both[2] = {text[0], text[1]};

    for (int i = 0; i < 3; i++)
        snprintf(text[i], sizeof(text[i]), "%s.%s", at, w[i]);
    if (b->gated)
        DT_TRY(dt_nn_name_packed(m, up, b->bias ? up + 1 : -1, 2, (int64_t[]){width, width},
                                 b->hidden, 1, DT_INIT_STD, both));
    else
        DT_TRY(dt_nn_name_linear(m, up, width, b->hidden, DT_BY_OUT(width, 1), b->bias, DT_INIT_STD,
                                 text[1]));
    return dt_nn_name_linear(m, down, b->hidden, width, DT_BY_IN(width, 1), b->bias,
                             dt_nn_residual_std(m), text[2]);
}

/* Of all rows' logits, which every tensor-parallel member has: each has the whole gradient. */
static enum dt_status name_whole(struct dt_nn_namer *m, int role, int64_t out, bool bias,
                                 const char *name)
{
    DT_TRY(dt_nn_name_linear(m, role, out, m->n->b->hidden, NULL, bias, DT_INIT_STD, name));
    for (int i = 0; i <= bias; i++)
        m->s->weights[m->n->weight[role + i]].partial = false;
    return DT_OK;
}

/* Qwen2MoeForCausalLM's and Qwen3MoeForCausalLM's names, or MixtralForCausalLM's; of shared experts DeepSeek's, or with
 * a gate Qwen2-MoE's. */
static enum dt_status name_experts(struct dt_nn_namer *m)
{
    static const char *const qwen[] = {"gate_proj", "up_proj", "down_proj"};
    static const char *const mixtral[] = {"w1", "w3", "w2"};
    const struct dt_block *b = m->n->b;
    bool other = m->s->module->mixtral_names;
    const char *mlp = other ? "block_sparse_moe" : "mlp";
    int first = dt_nn_experts_first(m->s, b);
    char at[64];

    snprintf(at, sizeof(at), "%s.gate", mlp);
    DT_TRY(name_whole(m, TF_ROUTER, b->n_experts, b->bias, at));
    for (int e = 0; e < dt_nn_experts_here(m->s, b); e++) {
        snprintf(at, sizeof(at), "%s.experts.%d", mlp, first + e);
        DT_TRY(name_mlp(m, dt_nn_expert_up(e), dt_nn_expert_down(e), b->ffn, at,
                        other ? mixtral : qwen));
        for (int i = 0; i < DT_EXPERT_ROLES; i++)
            if (m->n->weight[dt_nn_expert_up(e) + i] >= 0)
                m->s->weights[m->n->weight[dt_nn_expert_up(e) + i]].expert = true;
    }
    if (b->shared_ffn == 0)
        return DT_OK;
    if (b->shared_gate) {
        snprintf(at, sizeof(at), "%s.shared_expert_gate", mlp);
        DT_TRY(name_whole(m, TF_SHARED_GATE, 1, false, at));
    }
    snprintf(at, sizeof(at), "%s.%s", mlp, b->shared_gate ? "shared_expert" : "shared_experts");
    return name_mlp(m, TF_SHARED_UP, TF_SHARED_DOWN, b->shared_ffn, at, qwen);
}

static enum dt_status name_llama_layer(struct dt_nn_namer *m)
{
    static const char *const qkv[] = {"self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"};
    static const char *const up[] = {"mlp.gate_proj", "mlp.up_proj"};
    const struct dt_block *b = m->n->b;
    int64_t q = (int64_t)b->heads * b->head_dim, kv = (int64_t)b->kv_heads * b->head_dim;

    snprintf(m->prefix, sizeof(m->prefix), "model.layers.%d.", m->layer);
    DT_TRY(dt_nn_name_norm(m, TF_N1, b->hidden, NULL, b->layernorm, "input_layernorm"));
    DT_TRY(dt_nn_name_packed(m, TF_QKV, b->bias || b->qkv_bias ? TF_QKVB : -1, 3,
                             (int64_t[]){q, kv, kv}, b->hidden, b->head_dim, DT_INIT_STD, qkv));
    DT_TRY(dt_nn_name_head_norms(m, "self_attn.q_norm.weight", "self_attn.k_norm.weight"));
    DT_TRY(dt_nn_name_linear(m, TF_O, b->hidden, q, DT_BY_IN(b->heads, b->head_dim), b->bias,
                             dt_nn_residual_std(m), "self_attn.o_proj"));
    DT_TRY(dt_nn_name_norm(m, TF_N2, b->hidden, NULL, b->layernorm, "post_attention_layernorm"));
    if (b->n_experts > 0)
        return name_experts(m);
    if (b->gated)
        DT_TRY(dt_nn_name_packed(m, TF_UP, b->bias ? TF_UPB : -1, 2, (int64_t[]){b->ffn, b->ffn},
                                 b->hidden, 1, DT_INIT_STD, up));
    else
        DT_TRY(dt_nn_name_linear(m, TF_UP, b->ffn, b->hidden, DT_BY_OUT(b->ffn, 1), b->bias,
                                 DT_INIT_STD, "mlp.up_proj"));
    return dt_nn_name_linear(m, TF_DOWN, b->hidden, b->ffn, DT_BY_IN(b->ffn, 1), b->bias,
                             dt_nn_residual_std(m), "mlp.down_proj");
}

enum dt_status dt_nn_names_head(struct dt_nn_namer *m)
{
    const struct dt_block *b = m->n->b;
    struct dt_param *p;

    m->prefix[0] = '\0';
    DT_TRY(dt_nn_name_norm(m, HEAD_G, b->hidden, NULL, b->layernorm,
                           m->gpt2 ? "transformer.ln_f" : "model.norm"));
    if (!b->tied)
        return dt_nn_name_matrix(m, HEAD_W, b->vocab, b->hidden, DT_BY_OUT(b->vocab, 1),
                                 DT_INIT_STD, "lm_head");
    if (m->s->first == 0) { /* the embedding is here too */
        m->n->weight[HEAD_W] = m->s->nodes[0].weight[EMB_TOKEN];
        return DT_OK;
    }
    DT_TRY(dt_nn_name_matrix(m, HEAD_W, b->vocab, b->hidden, DT_BY_OUT(b->vocab, 1), DT_INIT_STD,
                             m->gpt2 ? "transformer.wte" : "model.embed_tokens"));
    p = &m->s->params[m->s->n_params - 1];
    p->tied = true;
    return DT_OK;
}

enum dt_status dt_nn_names_projector(struct dt_nn_namer *m)
{
    const struct dt_block *b = m->n->b;
    int64_t mid = b->mid_dim > 0 ? b->mid_dim : b->out_dim;

    bool merger = m->s->module->tower_names == DT_TOWER_QWEN && b->context_len == 0;

    snprintf(m->prefix, sizeof(m->prefix), "%s",
             merger               ? "visual.merger.mlp."
             : b->context_len > 0 ? "context_projector."
                                  : "multi_modal_projector.");
    if (b->in_norm != DT_NORM_NONE)
        DT_TRY(dt_nn_name_norm(m, PROJ_G, b->in_dim, NULL, b->in_norm == DT_NORM_LAYERNORM,
                               b->in_norm == DT_NORM_LAYERNORM ? "layer_norm" : "norm"));
    DT_TRY(dt_nn_name_linear(m, PROJ_W1, mid, b->in_dim, DT_BY_OUT(mid, 1), b->bias,
                             dt_nn_fan_in_std(b->in_dim),
                             merger           ? "0"
                             : b->mid_dim > 0 ? "linear_1"
                                              : "linear"));
    if (b->mid_dim == 0)
        return DT_OK;
    return dt_nn_name_linear(m, PROJ_W2, b->out_dim, mid, DT_BY_IN(mid, 1), b->bias,
                             dt_nn_fan_in_std(mid), merger ? "2" : "linear_2");
}

double dt_nn_fan_in_std(int64_t fan_in)
{
    return 1 / sqrt(3.0 * (double)fan_in);
}

/* ---- all blocks, in order: layers are numbered through the whole module ---- */

enum dt_status dt_nn_names_transformer(struct dt_nn_namer *m)
{
    if (!m->n->b->causal)
        return dt_nn_name_tower_layer(m);
    return m->gpt2 ? name_gpt2_layer(m) : name_llama_layer(m);
}

#define ROW(id, name, kind) dt_nn_names_##kind,
static dt_nn_names_fn *const names[DT_BLOCK_KIND_N] = {DT_BLOCK_KINDS(ROW)};

enum dt_status dt_nn_names(struct dt_stage *s, struct dt_error *err)
{
    const struct dt_module *mod = s->module;
    struct dt_nn_namer m = {.s = s, .err = err};

    for (int i = 0; i < mod->n_blocks; i++) {
        m.gpt2 |= mod->blocks[i].kind == DT_BLOCK_TRANSFORMER && gpt2(&mod->blocks[i]);
        m.tied |= mod->blocks[i].kind == DT_BLOCK_LM_HEAD && mod->blocks[i].tied;
    }
    m.tied &= s->last == mod->n_blocks;
    for (int i = 0; i < s->last; i++) {
        dt_nn_unet_place(&m.unet, mod, i);
        if (i >= s->first) {
            m.n = &s->nodes[i - s->first];
            DT_TRY(names[m.n->b->kind](&m));
        }
        m.layer += mod->blocks[i].kind == DT_BLOCK_TRANSFORMER;
    }
    return DT_OK;
}
