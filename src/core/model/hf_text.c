/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Hugging Face configs of language models -> shapes.  Defaults are those of transformers' config
 * classes. */
#include "core/model/hf.h"

#include <string.h>

/* ---- attention over a window: supported where it is never shorter than a sequence can be ---- */

enum dt_status dt_hf_whole_window(const struct dt_hf *hf, int positions)
{
    int window = 0;

    if (!dt_hf_has(hf, "sliding_window"))
        return DT_OK;
    if (dt_hf_has(hf, "max_position_embeddings"))
        DT_TRY(dt_get_i32(hf->map, "max_position_embeddings", 1, DT_LIM_POSITIONS, &positions,
                          hf->err));
    DT_TRY(dt_get_i32(hf->map, "sliding_window", 1, DT_LIM_POSITIONS, &window, hf->err));
    if (window < positions)
        return dt_node_error(dt_map_get(hf->map, "sliding_window"), hf->err,
                             "sliding_window: %d of %d positions is not supported (supported: "
                             "null, or no fewer than max_position_embeddings)",
                             window, positions);
    return DT_OK;
}

static enum dt_status layer_types(const struct dt_hf *hf)
{
    struct dt_node list = dt_hf_get(hf, "layer_types");

    if (dt_node_present(list) && !dt_node_is_seq(list))
        return dt_node_error(list, hf->err, "layer_types: expected a list");
    for (size_t i = 0; i < dt_seq_size(list); i++) {
        struct dt_node v = dt_seq_at(list, i);
        const char *text = dt_node_text(v);

        if (!text || strcmp(text, "full_attention") != 0)
            return dt_node_error(v, hf->err,
                                 "layer_types: \"%.60s\" is not supported (supported: "
                                 "full_attention)",
                                 text ? text : "?");
    }
    return DT_OK;
}

enum dt_status dt_hf_qwen_window(const struct dt_hf *hf, int positions)
{
    bool window = false;

    DT_TRY(layer_types(hf));
    DT_TRY(dt_hf_bool(hf, "use_sliding_window", false, &window));
    return window ? dt_hf_whole_window(hf, positions) : DT_OK;
}

/* ---- what Llama and its kin share ---- */

enum dt_status dt_hf_llama_like(const struct dt_hf *hf, const struct dt_hf_habits *h,
                                struct dt_shape *s)
{
    int kv_heads;

    dt_shape_init(s, DT_SHAPE_LLM);
    DT_TRY(dt_hf_need(hf, "num_hidden_layers", DT_LIM_LAYERS, &s->layers));
    DT_TRY(dt_hf_need(hf, "hidden_size", DT_LIM_HIDDEN, &s->hidden));
    DT_TRY(dt_hf_need(hf, "intermediate_size", DT_LIM_FFN, &s->ffn));
    DT_TRY(dt_hf_need(hf, "num_attention_heads", DT_LIM_HEADS, &s->heads));
    DT_TRY(dt_hf_need(hf, "vocab_size", DT_LIM_VOCAB, &s->vocab));
    kv_heads = h->kv_heads > 0 && dt_hf_absent(hf, "num_key_value_heads") ? h->kv_heads : s->heads;
    DT_TRY(dt_hf_int(hf, "num_key_value_heads", DT_LIM_HEADS, kv_heads, &s->kv_heads));
    if (dt_hf_has(hf, "head_dim"))
        DT_TRY(dt_hf_need(hf, "head_dim", DT_LIM_HEADS, &s->head_dim));
    DT_TRY(dt_hf_double(hf, "rms_norm_eps", DT_NORM_EPS_MIN, 1, h->norm_eps, &s->arith.norm_eps));
    DT_TRY(dt_hf_activation(hf, h->activation_key ? h->activation_key : "hidden_act",
                            h->activation ? h->activation : "silu", &s->arith.activation));
    DT_TRY(dt_hf_rope(hf, h->theta, s));
    return dt_hf_bool(hf, "tie_word_embeddings", h->tied, &s->tied);
}

enum dt_status dt_hf_llama(const struct dt_hf *hf, struct dt_shape *s)
{
    DT_TRY(dt_hf_only(hf, "attention_bias", false, "Llama layers are taken without biases"));
    DT_TRY(dt_hf_only(hf, "mlp_bias", false, "Llama layers are taken without biases"));
    return dt_hf_llama_like(hf, &(struct dt_hf_habits){.norm_eps = 1e-6, .theta = 10000}, s);
}

enum dt_status dt_hf_qwen2(const struct dt_hf *hf, struct dt_shape *s)
{
    const struct dt_hf_habits habits = {.norm_eps = 1e-6, .theta = 10000, .kv_heads = 32};

    DT_TRY(dt_hf_llama_like(hf, &habits, s));
    s->qkv_bias = true;
    return dt_hf_qwen_window(hf, 32768);
}

enum dt_status dt_hf_qwen3(const struct dt_hf *hf, struct dt_shape *s)
{
    const struct dt_hf_habits habits = {.norm_eps = 1e-6, .theta = 10000, .kv_heads = 32};

    DT_TRY(dt_hf_only(hf, "attention_bias", false, "Qwen3 layers are taken without biases"));
    DT_TRY(dt_hf_llama_like(hf, &habits, s));
    s->qk_norm = true;
    if (s->head_dim == 0)
        DT_TRY(dt_hf_int(hf, "head_dim", DT_LIM_HEADS, 128, &s->head_dim));
    return dt_hf_qwen_window(hf, 32768);
}

enum dt_status dt_hf_window(const struct dt_hf *hf, struct dt_shape *s)
{
    if (!dt_hf_has(hf, "sliding_window"))
        return DT_OK;
    return dt_hf_need(hf, "sliding_window", DT_LIM_POSITIONS, &s->window);
}

enum dt_status dt_hf_mistral(const struct dt_hf *hf, struct dt_shape *s)
{
    const struct dt_hf_habits habits = {.norm_eps = 1e-6, .theta = 10000, .kv_heads = 8};

    DT_TRY(dt_hf_llama_like(hf, &habits, s));
    if (dt_hf_absent(hf, "sliding_window")) /* null: none */
        return dt_hf_int(hf, "sliding_window", DT_LIM_POSITIONS, 4096, &s->window);
    return dt_hf_window(hf, s);
}

enum dt_status dt_hf_internlm2(const struct dt_hf *hf, struct dt_shape *s)
{
    if (dt_hf_absent(hf,
                     "bias")) /* the class of InternLM's own files: configuration_internlm2.py */
        return dt_node_error(hf->map, hf->err,
                             "bias: absent, it is true to InternLM2's own code, and its layers are "
                             "taken without biases; state false if they have none");
    DT_TRY(dt_hf_only(hf, "bias", false, "InternLM2 layers are taken without biases"));
    DT_TRY(dt_hf_llama_like(hf, &(struct dt_hf_habits){.norm_eps = 1e-6, .theta = 10000}, s));
    s->planned_only = "InternLM2's order of queries, keys and values in files";
    return DT_OK;
}

enum dt_status dt_hf_gpt2(const struct dt_hf *hf, struct dt_shape *s)
{
    bool scaled = true;

    dt_shape_init(s, DT_SHAPE_LLM);
    s->gated = false;
    s->bias = s->layernorm = true;
    DT_TRY(dt_hf_need(hf, "n_layer", DT_LIM_LAYERS, &s->layers));
    DT_TRY(dt_hf_need(hf, "n_embd", DT_LIM_HIDDEN, &s->hidden));
    DT_TRY(dt_hf_need(hf, "n_head", DT_LIM_HEADS, &s->heads));
    DT_TRY(dt_hf_int(hf, "n_inner", DT_LIM_FFN, 4 * s->hidden, &s->ffn));
    DT_TRY(dt_hf_int(hf, "n_positions", DT_LIM_POSITIONS, 1024, &s->positions));
    DT_TRY(dt_hf_int(hf, "vocab_size", DT_LIM_VOCAB, 50257, &s->vocab));
    DT_TRY(dt_hf_double(hf, "layer_norm_epsilon", DT_NORM_EPS_MIN, 1, 1e-5, &s->arith.norm_eps));
    DT_TRY(dt_hf_activation(hf, "activation_function", "gelu_new", &s->arith.activation));
    DT_TRY(dt_hf_bool(hf, "scale_attn_weights", true, &scaled));
    if (!scaled)
        s->arith.attention_scale = 1;
    DT_TRY(dt_hf_bool(hf, "scale_attn_by_inverse_layer_idx", false, &s->arith.scale_by_layer));
    return dt_hf_bool(hf, "tie_word_embeddings", true, &s->tied);
}
