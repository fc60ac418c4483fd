/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Hugging Face configs of GPT-NeoX, Falcon, OLMo and Phi-3 -> shapes.  Defaults are those of transformers' config
 * classes. */
#include "core/model/hf.h"

enum dt_status dt_hf_gpt_neox(const struct dt_hf *hf, struct dt_shape *s)
{
    double part = 0.25;

    dt_shape_init(s, DT_SHAPE_LLM);
    s->gated = false;
    s->bias = s->layernorm = true;
    DT_TRY(dt_hf_need(hf, "num_hidden_layers", DT_LIM_LAYERS, &s->layers));
    DT_TRY(dt_hf_need(hf, "hidden_size", DT_LIM_HIDDEN, &s->hidden));
    DT_TRY(dt_hf_need(hf, "intermediate_size", DT_LIM_FFN, &s->ffn));
    DT_TRY(dt_hf_need(hf, "num_attention_heads", DT_LIM_HEADS, &s->heads));
    DT_TRY(dt_hf_need(hf, "vocab_size", DT_LIM_VOCAB, &s->vocab));
    DT_TRY(dt_hf_double(hf, "layer_norm_eps", DT_NORM_EPS_MIN, 1, 1e-5, &s->arith.norm_eps));
    DT_TRY(dt_hf_activation(hf, "hidden_act", "gelu", &s->arith.activation));
    DT_TRY(dt_hf_double(hf, "rotary_emb_base", DT_ROPE_THETA_MIN, DT_ROPE_THETA_MAX, 10000,
                        &s->arith.rope.theta));
    DT_TRY(dt_hf_double(hf, "rotary_pct", 0, 1, 0.25, &part));
    DT_TRY(dt_hf_only(hf, "attention_bias", true, "GPT-NeoX layers are taken with biases"));
    s->planned_only = "attention beside the MLP (GPT-NeoX)";
    return dt_hf_bool(hf, "tie_word_embeddings", false, &s->tied);
}

enum dt_status dt_hf_falcon(const struct dt_hf *hf, struct dt_shape *s)
{
    bool grouped = false, multi_query = true, parallel = true;

    dt_shape_init(s, DT_SHAPE_LLM);
    s->gated = false;
    s->layernorm = true;
    DT_TRY(dt_hf_only(hf, "alibi", false, "rotary positions; ALiBi biases are not modelled"));
    DT_TRY(dt_hf_need(hf, "num_hidden_layers", DT_LIM_LAYERS, &s->layers));
    DT_TRY(dt_hf_need(hf, "hidden_size", DT_LIM_HIDDEN, &s->hidden));
    DT_TRY(dt_hf_need(hf, "num_attention_heads", DT_LIM_HEADS, &s->heads));
    DT_TRY(dt_hf_need(hf, "vocab_size", DT_LIM_VOCAB, &s->vocab));
    DT_TRY(dt_hf_int(hf, "ffn_hidden_size", DT_LIM_FFN, 4 * s->hidden, &s->ffn));
    DT_TRY(dt_hf_double(hf, "layer_norm_epsilon", DT_NORM_EPS_MIN, 1, 1e-5, &s->arith.norm_eps));
    DT_TRY(dt_hf_activation(hf, "activation", "gelu", &s->arith.activation));
    DT_TRY(dt_hf_bool(hf, "new_decoder_architecture", false, &grouped));
    DT_TRY(dt_hf_bool(hf, "multi_query", true, &multi_query));
    DT_TRY(dt_hf_bool(hf, "parallel_attn", true, &parallel));
    DT_TRY(dt_hf_bool(hf, "bias", false, &s->bias));
    if (grouped)
        DT_TRY(dt_hf_int(hf, "num_kv_heads", DT_LIM_HEADS, s->heads, &s->kv_heads));
    else
        s->kv_heads = multi_query ? 1 : s->heads;
    DT_TRY(dt_hf_int(hf, "num_ln_in_parallel_attn", 2, grouped ? 2 : 1, &s->norms));
    if (!parallel)
        s->norms = 2;
    s->planned_only = "attention beside the MLP (Falcon)";
    return dt_hf_bool(hf, "tie_word_embeddings", true, &s->tied);
}

enum dt_status dt_hf_olmo(const struct dt_hf *hf, struct dt_shape *s)
{
    DT_TRY(dt_hf_llama_like(hf, &(struct dt_hf_habits){.norm_eps = 1e-5, .theta = 10000}, s));
    s->layernorm = s->norm_free = true;
    return DT_OK;
}

/* The norms lie behind attention and MLP: as many, and as large. */
enum dt_status dt_hf_olmo2(const struct dt_hf *hf, struct dt_shape *s)
{
    DT_TRY(dt_hf_llama_like(hf, &(struct dt_hf_habits){.norm_eps = 1e-5, .theta = 10000}, s));
    s->qk_norm_whole = true;
    s->planned_only = "norms behind attention and MLP instead of before (OLMo 2)";
    return DT_OK;
}

enum dt_status dt_hf_phi3(const struct dt_hf *hf, struct dt_shape *s)
{
    double part = 1;

    DT_TRY(dt_hf_llama_like(hf, &(struct dt_hf_habits){.norm_eps = 1e-5, .theta = 10000}, s));
    if (dt_hf_has(hf, "partial_rotary_factor"))
        DT_TRY(dt_get_double(hf->map, "partial_rotary_factor", 0, 1, &part, hf->err));
    s->planned_only = part < 1 ? "rotary positions of a part of a head"
                               : "the fused projections of Phi-3's files";
    return dt_hf_window(hf, s);
}
