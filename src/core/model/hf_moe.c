/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Hugging Face configs of language models with experts -> shapes.  Defaults are those of transformers' config classes. */
#include "core/model/hf.h"

#include "base/number.h"

#include <string.h>

/* transformers takes the shares of choices and the mean probabilities of all layers and the whole batch together, and choices
 * add up to experts per token there; ours is of each layer and sample (doc/modules.md), so that no factor makes one the other. */
static void other_balance(const struct dt_hf *hf, const char *key, const struct dt_shape *s)
{
    const char *text = dt_node_text(dt_hf_get(hf, key));

    if (text)
        dt_hf_assume(hf,
                     "%s: %.40s not taken, it is of another loss; balance_loss is %g unless stated",
                     key, text, s->arith.balance_loss);
}

enum dt_status dt_hf_mixtral(const struct dt_hf *hf, struct dt_shape *s)
{
    const struct dt_hf_habits habits = {.norm_eps = 1e-5, .theta = 1e6, .kv_heads = 8};

    DT_TRY(dt_hf_llama_like(hf, &habits, s));
    DT_TRY(dt_hf_int(hf, "num_local_experts", DT_LIM_EXPERTS, 8, &s->n_experts));
    DT_TRY(dt_hf_int(hf, "num_experts_per_tok", DT_LIM_EXPERTS, 2, &s->top_k));
    s->mixtral_names = true;
    other_balance(hf, "router_aux_loss_coef", s);
    return dt_hf_whole_window(hf, 4096 * 32);
}

/* Are the weights of the chosen experts divided by their sum?  (MixtralConfig has no key: they are.) */
static enum dt_status weights(const struct dt_hf *hf, bool fallback, struct dt_shape *s)
{
    bool normed = fallback;

    DT_TRY(dt_hf_bool(hf, "norm_topk_prob", fallback, &normed));
    s->arith.top_k_raw = !normed;
    return DT_OK;
}

/* mlp_only_layers: dense layers.  The first few of all are taken, as no published model has others. */
static enum dt_status dense_layers(const struct dt_hf *hf, struct dt_shape *s)
{
    struct dt_node list = dt_hf_get(hf, "mlp_only_layers");

    if (dt_node_present(list) && !dt_node_is_seq(list))
        return dt_node_error(list, hf->err, "mlp_only_layers: expected a list");
    for (size_t i = 0; i < dt_seq_size(list); i++) {
        const char *text = dt_node_text(dt_seq_at(list, i));
        int64_t layer;

        if (!text || !dt_number_int(text, &layer) || layer != (int64_t)i)
            return dt_node_error(dt_seq_at(list, i), hf->err,
                                 "mlp_only_layers: supported are the first layers, 0, 1 and so on");
    }
    s->dense_first = (int)dt_seq_size(list);
    return DT_OK;
}

static enum dt_status qwen_experts(const struct dt_hf *hf, int experts, int top_k, int width,
                                   struct dt_shape *s)
{
    DT_TRY(dt_hf_int(hf, "num_experts", DT_LIM_EXPERTS, experts, &s->n_experts));
    DT_TRY(dt_hf_int(hf, "num_experts_per_tok", DT_LIM_EXPERTS, top_k, &s->top_k));
    DT_TRY(dt_hf_int(hf, "moe_intermediate_size", DT_LIM_FFN, width, &s->expert_ffn));
    DT_TRY(dt_hf_int(hf, "decoder_sparse_step", DT_LIM_LAYERS, 1, &s->moe_every));
    DT_TRY(dense_layers(hf, s));
    other_balance(hf, "router_aux_loss_coef", s);
    DT_TRY(weights(hf, false, s));
    return dt_hf_qwen_window(hf, 32768);
}

enum dt_status dt_hf_qwen2_moe(const struct dt_hf *hf, struct dt_shape *s)
{
    const struct dt_hf_habits habits = {.norm_eps = 1e-6, .theta = 10000, .kv_heads = 16};

    DT_TRY(dt_hf_llama_like(hf, &habits, s));
    DT_TRY(dt_hf_int(hf, "shared_expert_intermediate_size", DT_LIM_FFN, 5632, &s->shared_ffn));
    s->qkv_bias = s->shared_gate = true;
    return qwen_experts(hf, 60, 4, 1408, s);
}

enum dt_status dt_hf_qwen3_moe(const struct dt_hf *hf, struct dt_shape *s)
{
    const struct dt_hf_habits habits = {.norm_eps = 1e-6, .theta = 10000, .kv_heads = 4};

    DT_TRY(dt_hf_only(hf, "attention_bias", false, "Qwen3 layers are taken without biases"));
    DT_TRY(dt_hf_llama_like(hf, &habits, s));
    s->qk_norm = true;
    return qwen_experts(hf, 128, 8, 768, s);
}

/* ---- DeepSeek ---- */

/* What the class of a type has where a key is absent. */
struct deepseek {
    int q_lora, shared, dense, groups;
    double factor;
    bool normed;
};
static const struct deepseek first = {.groups = 1, .factor = 1};
static const struct deepseek second = {.q_lora = 1536, .shared = 2, .groups = 1, .factor = 1};
static const struct deepseek third = {
    .q_lora = 1536, .shared = 1, .dense = 3, .groups = 8, .factor = 2.5, .normed = true};

/* A number of which null means none. */
static enum dt_status count(const struct dt_hf *hf, const char *key, int min, int max, int fallback,
                            int *out)
{
    if (dt_hf_has(hf, key))
        return dt_get_i32(hf->map, key, min, max, out, hf->err);
    if (!dt_hf_absent(hf, key))
        return DT_OK;
    *out = fallback;
    dt_hf_assume(hf, "%s: %d", key, fallback);
    return DT_OK;
}

/* Scores other than a softmax, scaled, or of groups of which only the best are chosen from, are not what is run. */
static enum dt_status plain_scores(const struct dt_hf *hf, const struct deepseek *absent,
                                   struct dt_shape *s)
{
    const char *scores = dt_node_text(dt_hf_get(hf, "scoring_func"));
    const char *method = dt_node_text(dt_hf_get(hf, "topk_method"));
    double factor = 1;
    int groups = 1;

    DT_TRY(dt_hf_double(hf, "routed_scaling_factor", 0, 1e6, absent->factor, &factor));
    DT_TRY(count(hf, "n_group", 1, DT_LIM_EXPERTS, absent->groups, &groups));
    if ((scores && strcmp(scores, "softmax") != 0) || factor != 1)
        s->planned_only = "scores of experts other than a plain softmax";
    else if ((method && strcmp(method, "greedy") != 0) || groups > 1)
        s->planned_only = "experts that are chosen by groups";
    return DT_OK;
}

/* n_shared_experts as wide together as that many experts. */
static enum dt_status deepseek_experts(const struct dt_hf *hf, const struct deepseek *absent,
                                       struct dt_shape *s)
{
    int shared = 0;

    DT_TRY(dt_hf_need(hf, "n_routed_experts", DT_LIM_EXPERTS, &s->n_experts));
    DT_TRY(dt_hf_need(hf, "num_experts_per_tok", DT_LIM_EXPERTS, &s->top_k));
    DT_TRY(dt_hf_need(hf, "moe_intermediate_size", DT_LIM_FFN, &s->expert_ffn));
    DT_TRY(count(hf, "n_shared_experts", 0, 64, absent->shared, &shared));
    DT_TRY(count(hf, "first_k_dense_replace", 0, DT_LIM_LAYERS, absent->dense, &s->dense_first));
    if ((int64_t)shared * s->expert_ffn > DT_LIM_FFN)
        return dt_node_error(hf->map, hf->err, "n_shared_experts: %d of %d are too wide", shared,
                             s->expert_ffn);
    s->shared_ffn = shared * s->expert_ffn;
    DT_TRY(plain_scores(hf, absent, s));
    return weights(hf, absent->normed, s);
}

/* With seq_aux the loss is that of each layer and sequence, experts times the sum of share of choices times mean probability:
 * ours.  Without, it is of the whole batch.  (modeling_deepseek.py beside DeepSeekMoE's weights, and its defaults.) */
static enum dt_status deepseek_balance(const struct dt_hf *hf, struct dt_shape *s)
{
    bool by_sequence = true;

    other_balance(hf, "router_aux_loss_coef", s);
    DT_TRY(dt_hf_bool(hf, "seq_aux", true, &by_sequence));
    if (by_sequence)
        return dt_hf_double(hf, "aux_loss_alpha", 0, 100, 0.001, &s->arith.balance_loss);
    other_balance(hf, "aux_loss_alpha", s);
    return DT_OK;
}

enum dt_status dt_hf_deepseek(const struct dt_hf *hf, struct dt_shape *s)
{
    DT_TRY(dt_hf_llama_like(hf, &(struct dt_hf_habits){.norm_eps = 1e-6, .theta = 10000}, s));
    DT_TRY(deepseek_balance(hf, s));
    return deepseek_experts(hf, &first, s);
}

static enum dt_status latent(const struct dt_hf *hf, const struct deepseek *absent,
                             struct dt_shape *s)
{
    int nope = 0;

    DT_TRY(dt_hf_llama_like(hf, &(struct dt_hf_habits){.norm_eps = 1e-6, .theta = 10000}, s));
    DT_TRY(count(hf, "q_lora_rank", 1, DT_LIM_HIDDEN, absent->q_lora, &s->q_lora));
    DT_TRY(dt_hf_need(hf, "kv_lora_rank", DT_LIM_HIDDEN, &s->kv_lora));
    DT_TRY(dt_hf_need(hf, "qk_nope_head_dim", DT_LIM_HEADS / 2, &nope));
    DT_TRY(dt_hf_need(hf, "qk_rope_head_dim", DT_LIM_HEADS / 2, &s->rope_dim));
    DT_TRY(dt_hf_need(hf, "v_head_dim", DT_LIM_HEADS, &s->v_dim));
    s->head_dim = nope + s->rope_dim;
    s->kv_heads = s->heads;
    return deepseek_experts(hf, absent, s);
}

enum dt_status dt_hf_deepseek_v2(const struct dt_hf *hf, struct dt_shape *s)
{
    return latent(hf, &second, s);
}

enum dt_status dt_hf_deepseek_v3(const struct dt_hf *hf, struct dt_shape *s)
{
    DT_TRY(latent(hf, &third, s));
    s->router_bias = true;
    if (dt_hf_has(hf, "num_nextn_predict_layers"))
        dt_hf_assume(hf, "num_nextn_predict_layers: left out");
    return DT_OK;
}

enum dt_status dt_hf_olmoe(const struct dt_hf *hf, struct dt_shape *s)
{
    DT_TRY(dt_hf_llama_like(hf, &(struct dt_hf_habits){.norm_eps = 1e-5, .theta = 10000}, s));
    DT_TRY(dt_hf_int(hf, "num_experts", DT_LIM_EXPERTS, 64, &s->n_experts));
    DT_TRY(dt_hf_int(hf, "num_experts_per_tok", DT_LIM_EXPERTS, 8, &s->top_k));
    s->qk_norm_whole = true;
    other_balance(hf, "router_aux_loss_coef", s);
    return weights(hf, false, s);
}
