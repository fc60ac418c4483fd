/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Keys of Hugging Face configs: none goes unnoticed; and what is said of configs that cannot be read. */
#include "core/model/hf.h"
#include "test_util.h"

#include <math.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

/* One config of each type, every key at the library's default. */
static const struct base {
    const char *type;
    unsigned keys;
    const char *text; /* one pair of members a line, without the outer braces */
} bases[] = {
    {"llama", DT_HF_LLAMA,
     "\"model_type\": \"llama\", \"num_hidden_layers\": 2, \"hidden_size\": 48, "
     "\"intermediate_size\": 80, \"num_attention_heads\": 4, \"vocab_size\": 264"},
    {"qwen2", DT_HF_QWEN2,
     "\"model_type\": \"qwen2\", \"num_hidden_layers\": 2, \"hidden_size\": 48, "
     "\"intermediate_size\": 80, \"num_attention_heads\": 4, \"vocab_size\": 264, "
     "\"num_key_value_heads\": 4"},
    {"qwen3", DT_HF_QWEN3,
     "\"model_type\": \"qwen3\", \"num_hidden_layers\": 2, \"hidden_size\": 48, "
     "\"intermediate_size\": 80, \"num_attention_heads\": 4, \"vocab_size\": 264, "
     "\"num_key_value_heads\": 4"},
    {"mixtral", DT_HF_MIXTRAL,
     "\"model_type\": \"mixtral\", \"num_hidden_layers\": 2, \"hidden_size\": 48, "
     "\"intermediate_size\": 80, \"num_attention_heads\": 4, \"vocab_size\": 264, "
     "\"num_key_value_heads\": 4"},
    {"gpt2", DT_HF_GPT2, "\"model_type\": \"gpt2\", \"n_layer\": 2, \"n_embd\": 48, \"n_head\": 4"},
    {"vit", DT_HF_VIT,
     "\"model_type\": \"vit\", \"num_hidden_layers\": 2, \"hidden_size\": 48, "
     "\"intermediate_size\": 80, \"num_attention_heads\": 4"},
    {"clip", DT_HF_CLIP,
     "\"model_type\": \"clip_vision_model\", \"num_hidden_layers\": 2, \"hidden_size\": 48, "
     "\"intermediate_size\": 80, \"num_attention_heads\": 4"},
    {"siglip", DT_HF_SIGLIP,
     "\"model_type\": \"siglip_vision_model\", \"num_hidden_layers\": 2, \"hidden_size\": 48, "
     "\"intermediate_size\": 80, \"num_attention_heads\": 4"},
    {"mistral", DT_HF_MISTRAL,
     "\"model_type\": \"mistral\", \"num_hidden_layers\": 2, \"hidden_size\": 48, "
     "\"intermediate_size\": 80, \"num_attention_heads\": 4, \"vocab_size\": 264, "
     "\"num_key_value_heads\": 4"},
    {"qwen2_moe", DT_HF_QWEN2_MOE,
     "\"model_type\": \"qwen2_moe\", \"num_hidden_layers\": 2, \"hidden_size\": 48, "
     "\"intermediate_size\": 80, \"num_attention_heads\": 4, \"vocab_size\": 264, "
     "\"num_key_value_heads\": 4"},
    {"qwen3_moe", DT_HF_QWEN3_MOE,
     "\"model_type\": \"qwen3_moe\", \"num_hidden_layers\": 2, \"hidden_size\": 48, "
     "\"intermediate_size\": 80, \"num_attention_heads\": 4, \"vocab_size\": 264, "
     "\"num_key_value_heads\": 4"},
    {"deepseek", DT_HF_DEEPSEEK,
     "\"model_type\": \"deepseek\", \"num_hidden_layers\": 2, \"hidden_size\": 48, "
     "\"intermediate_size\": 80, \"num_attention_heads\": 4, \"vocab_size\": 264, "
     "\"n_routed_experts\": 4, "
     "\"num_experts_per_tok\": 2, \"moe_intermediate_size\": 16"},
    {"deepseek_v2", DT_HF_DEEPSEEK,
     "\"model_type\": \"deepseek_v2\", \"num_hidden_layers\": 2, \"hidden_size\": 48, "
     "\"intermediate_size\": 80, \"num_attention_heads\": 4, \"vocab_size\": 264, "
     "\"n_routed_experts\": 4, "
     "\"num_experts_per_tok\": 2, \"moe_intermediate_size\": 16, \"kv_lora_rank\": 8, "
     "\"qk_nope_head_dim\": 8, \"qk_rope_head_dim\": 4, \"v_head_dim\": 8"},
    {"olmo", DT_HF_OLMO,
     "\"model_type\": \"olmo\", \"num_hidden_layers\": 2, \"hidden_size\": 48, "
     "\"intermediate_size\": 80, \"num_attention_heads\": 4, \"vocab_size\": 264"},
    {"gemma", DT_HF_GEMMA,
     "\"model_type\": \"gemma\", \"num_hidden_layers\": 2, \"hidden_size\": 48, "
     "\"intermediate_size\": 80, \"num_attention_heads\": 4, \"vocab_size\": 264, "
     "\"num_key_value_heads\": 4"},
    {"gemma3", DT_HF_GEMMA,
     "\"model_type\": \"gemma3_text\", \"num_hidden_layers\": 2, \"hidden_size\": 48, "
     "\"intermediate_size\": 80, \"num_attention_heads\": 4, \"vocab_size\": 264, "
     "\"num_key_value_heads\": 4"},
    {"phi3", DT_HF_PHI3,
     "\"model_type\": \"phi3\", \"num_hidden_layers\": 2, \"hidden_size\": 48, "
     "\"intermediate_size\": 80, \"num_attention_heads\": 4, \"vocab_size\": 264"},
    {"internlm2", DT_HF_INTERNLM2,
     "\"model_type\": \"internlm2\", \"num_hidden_layers\": 2, \"hidden_size\": 48, "
     "\"intermediate_size\": 80, \"num_attention_heads\": 4, \"vocab_size\": 264, "
     "\"bias\": false"},
    {"neox", DT_HF_NEOX,
     "\"model_type\": \"gpt_neox\", \"num_hidden_layers\": 2, \"hidden_size\": 48, "
     "\"intermediate_size\": 80, \"num_attention_heads\": 4, \"vocab_size\": 264"},
    {"falcon", DT_HF_FALCON,
     "\"model_type\": \"falcon\", \"num_hidden_layers\": 2, \"hidden_size\": 48, "
     "\"num_attention_heads\": 4, \"vocab_size\": 264"},
    {"dinov2", DT_HF_DINOV2,
     "\"model_type\": \"dinov2\", \"num_hidden_layers\": 2, \"hidden_size\": 48, "
     "\"num_attention_heads\": 4"},
    {"intern_vit", DT_HF_INTERN_VIT,
     "\"model_type\": \"intern_vit_6b\", \"num_hidden_layers\": 2, \"hidden_size\": 48, "
     "\"intermediate_size\": 80, \"num_attention_heads\": 4"},
    {"unet", DT_HF_UNET,
     "\"_class_name\": \"UNet2DConditionModel\", \"block_out_channels\": [64, 128], "
     "\"down_block_types\": [\"CrossAttnDownBlock2D\", \"DownBlock2D\"], "
     "\"up_block_types\": [\"UpBlock2D\", \"CrossAttnUpBlock2D\"]"},
};
enum { N_BASES = sizeof(bases) / sizeof(bases[0]) };

static const struct base *base_of(const char *type)
{
    for (int i = 0; i < N_BASES; i++)
        if (strcmp(bases[i].type, type) == 0)
            return &bases[i];
    ck_abort_msg("no base %s", type);
    return NULL;
}

/* The base with `more` behind it, on a line of its own. */
static enum dt_status parse(const char *type, const char *more, struct dt_shape *s,
                            struct dt_error *err)
{
    char text[4096];
    int n =
        snprintf(text, sizeof(text), "{%s%s\n%s}", base_of(type)->text, more[0] ? "," : "", more);

    return dt_hf_parse("config.json", text, (size_t)n, s, NULL, 0, err);
}

/* ---- refused ---- */

static const struct {
    const char *type, *key, *message;
} refused[] = {
    {"llama", "\"attention_multiplier\": 2", "attention_multiplier: this key of a llama config"},
    {"llama", "\"hidden_act\": \"gelu_10\"", "hidden_act: \"gelu_10\" is not supported"},
    {"llama", "\"hidden_act\": null", "hidden_act: null is not supported"},
    {"llama", "\"rms_norm_eps\": 0", "rms_norm_eps"},
    {"llama", "\"rms_norm_eps\": -1e-5", "rms_norm_eps"},
    {"llama", "\"rope_theta\": \"x\"", "rope_theta"},
    {"llama", "\"rope_scaling\": {\"type\": \"dynamic\", \"factor\": 2}", "\"dynamic\" is not"},
    {"llama", "\"rope_scaling\": {\"rope_type\": \"yarn\", \"factor\": 2}", "\"yarn\" is not"},
    {"llama", "\"rope_scaling\": {\"rope_type\": \"longrope\"}", "\"longrope\" is not"},
    {"llama", "\"rope_scaling\": {\"rope_type\": \"linear\"}", "needs \"factor\""},
    {"llama", "\"rope_scaling\": {\"rope_type\": \"linear\", \"factor\": 2, \"beta\": 1}",
     "beta: this key of a rope_scaling config"},
    {"llama", "\"rope_scaling\": {\"type\": \"llama3\", \"factor\": 8}", "\"low_freq_factor\""},
    {"llama",
     "\"rope_scaling\": {\"type\": \"llama3\", \"factor\": 8, \"low_freq_factor\": 4, "
     "\"high_freq_factor\": 1}",
     "high_freq_factor above"},
    {"llama", "\"rope_scaling\": 8", "expected an object"},
    {"llama",
     "\"rope_parameters\": {\"rope_type\": \"default\"}, \"rope_scaling\": {\"type\": \"default\"}",
     "state one of them"},
    {"llama", "\"rope_parameters\": {\"partial_rotary_factor\": 0.5}", "partial_rotary_factor"},
    {"llama", "\"partial_rotary_factor\": 0.5", "supported: 1"},
    {"llama", "\"attention_bias\": true", "attention_bias: true is not supported"},
    {"llama", "\"mlp_bias\": true", "mlp_bias: true is not supported"},
    {"llama", "\"quantization_config\": {\"bits\": 4}", "quantization_config: this key"},
    {"llama", "\"num_experts\": 4", "num_experts: this key"},
    {"llama", "\"pruned_heads\": {\"0\": [1]}", "pruned_heads"},
    {"qwen2", "\"use_sliding_window\": true, \"sliding_window\": 64",
     "sliding_window: 64 of 32768"},
    {"qwen2", "\"layer_types\": [\"full_attention\", \"sliding_attention\"]",
     "\"sliding_attention\" is not supported"},
    {"qwen3", "\"attention_bias\": true", "attention_bias: true is not supported"},
    {"mixtral", "\"sliding_window\": 4096", "sliding_window: 4096 of 131072"},
    {"mistral", "\"attention_bias\": true", "attention_bias: true is not supported"},
    {"mistral", "\"logit_scale\": 2", "logit_scale: this key of a mistral config"},
    {"qwen3_moe", "\"mlp_only_layers\": [1]", "supported are the first layers"},
    {"qwen3_moe", "\"use_sliding_window\": true, \"sliding_window\": 64", "64 of 32768"},
    {"qwen2_moe", "\"n_routed_experts\": 4", "n_routed_experts: this key of a qwen2_moe config"},
    {"deepseek", "\"moe_layer_freq\": 2", "moe_layer_freq: 2 is not supported"},
    {"deepseek", "\"attention_bias\": true", "attention_bias: true is not supported"},
    {"deepseek",
     "\"scoring_func\": \"sigmoid\", \"rope_scaling\": {\"type\": \"twisted\", \"factor\": 2}",
     "\"twisted\" is not"},
    {"deepseek_v2", "\"n_shared_experts\": 65", "n_shared_experts"},
    {"olmo", "\"attention_bias\": true", "attention_bias: true is not supported"},
    {"gemma", "\"hidden_activation\": \"mish\"", "hidden_activation: \"mish\""},
    {"gemma3", "\"layer_types\": [\"full_attention\", \"sliding_attention\", \"full_attention\"]",
     "at equal distances"},
    {"phi3", "\"attention_bias\": true", "attention_bias: true is not supported"},
    {"neox", "\"attention_bias\": false", "attention_bias: false is not supported"},
    {"falcon", "\"alibi\": true", "alibi: true is not supported"},
    {"dinov2", "\"intermediate_size\": 96", "intermediate_size: this key of a dinov2 config"},
    {"intern_vit", "\"norm_type\": \"batch_norm\"", "norm_type: \"batch_norm\""},
    {"gpt2", "\"add_cross_attention\": true", "add_cross_attention: true is not supported"},
    {"gpt2", "\"activation_function\": \"mish\"", "activation_function: \"mish\""},
    {"gpt2", "\"rope_theta\": 10000", "rope_theta: this key of a gpt2 config"},
    {"vit", "\"qkv_bias\": false", "qkv_bias: false is not supported"},
    {"vit", "\"hidden_act\": \"tanh\"", "hidden_act: \"tanh\""},
    {"unet", "\"mid_block_scale_factor\": 2", "mid_block_scale_factor: 2 is not supported"},
    {"unet", "\"resnet_time_scale_shift\": \"scale_shift\"", "resnet_time_scale_shift"},
    {"unet", "\"act_fn\": \"gelu\"", "supported: silu|swish"},
    {"unet", "\"dropout\": 0.1", "dropout: 0.1 is not supported"},
    {"unet", "\"norm_num_groups\": 24", "not a multiple of 24 groups"},
    {"unet", "\"norm_num_groups\": null", "norm_num_groups: null"},
    {"unet", "\"mid_block_type\": null", "mid_block_type: null"},
    {"unet", "\"num_class_embeds\": 10", "num_class_embeds"},
    {"unet", "\"class_embed_type\": \"timestep\"", "class_embed_type"},
    {"unet", "\"downsample_padding\": 0", "downsample_padding"},
    {"unet", "\"center_input_sample\": true", "center_input_sample"},
    {"unet", "\"time_embedding_type\": \"fourier\"", "time_embedding_type"},
    {"unet", "\"conv_in_kernel\": 1", "conv_in_kernel"},
    {"unet", "\"only_cross_attention\": true", "only_cross_attention"},
};

START_TEST(refused_by_name_and_place)
{
    struct dt_error err = {0};
    struct dt_shape s;

    ck_assert_int_eq(parse(refused[_i].type, refused[_i].key, &s, &err), DT_ERR_INPUT);
    dt_assert_has(err.message, refused[_i].message);
    ck_assert_str_eq(err.file, "config.json");
    if (!strstr(refused[_i].message, "groups")) /* that one is of the channels */
        ck_assert_int_eq(err.line, 2);
}
END_TEST

/* ---- read ---- */

static const struct {
    const char *type, *key;
} changes[] = {
    {"llama", "\"rms_norm_eps\": 1e-5"},
    {"llama", "\"rope_theta\": 500000"},
    {"llama", "\"hidden_act\": \"gelu\""},
    {"llama", "\"num_key_value_heads\": 2"},
    {"llama", "\"head_dim\": 16"},
    {"llama", "\"tie_word_embeddings\": true"},
    {"llama", "\"rope_scaling\": {\"type\": \"linear\", \"factor\": 2.0}"},
    {"llama", "\"rope_parameters\": {\"rope_theta\": 7, \"rope_type\": \"default\"}"},
    {"qwen2", "\"rms_norm_eps\": 1e-5"},
    {"qwen3", "\"rope_theta\": 1000000"},
    {"mixtral", "\"rope_theta\": 10000"},
    {"mixtral", "\"num_local_experts\": 4"},
    {"mistral", "\"sliding_window\": 64"},
    {"mistral", "\"rope_scaling\": {\"rope_type\": \"yarn\", \"factor\": 2}"},
    {"qwen2_moe", "\"shared_expert_intermediate_size\": 96"},
    {"qwen3_moe", "\"moe_intermediate_size\": 96"},
    {"qwen3_moe", "\"decoder_sparse_step\": 2"},
    {"qwen3_moe", "\"mlp_only_layers\": [0]"},
    {"qwen3_moe", "\"norm_topk_prob\": true"},
    {"deepseek", "\"n_shared_experts\": 2"},
    {"deepseek", "\"first_k_dense_replace\": 1"},
    {"deepseek_v2", "\"q_lora_rank\": 12"},
    {"gemma", "\"head_dim\": 12"},
    {"gemma3", "\"sliding_window_pattern\": 2"},
    {"gemma3", "\"layer_types\": [\"sliding_attention\", \"full_attention\"]"},
    {"phi3", "\"partial_rotary_factor\": 0.5"},
    {"falcon", "\"new_decoder_architecture\": true"},
    {"falcon", "\"multi_query\": false"},
    {"falcon", "\"parallel_attn\": false"},
    {"falcon", "\"new_decoder_architecture\": true, \"num_ln_in_parallel_attn\": 1"},
    {"dinov2", "\"use_swiglu_ffn\": true"},
    {"intern_vit", "\"qk_normalization\": false"},
    {"gpt2", "\"layer_norm_epsilon\": 1e-6"},
    {"gpt2", "\"activation_function\": \"relu\""},
    {"gpt2", "\"scale_attn_weights\": false"},
    {"gpt2", "\"scale_attn_by_inverse_layer_idx\": true"},
    {"gpt2", "\"n_inner\": 96"},
    {"vit", "\"layer_norm_eps\": 1e-6"},
    {"vit", "\"hidden_act\": \"quick_gelu\""},
    {"clip", "\"layer_norm_eps\": 1e-6"},
    {"clip", "\"hidden_act\": \"gelu\""},
    {"siglip", "\"layer_norm_eps\": 1e-5"},
    {"siglip", "\"hidden_act\": \"gelu\""},
    {"unet", "\"norm_num_groups\": 16"},
    {"unet", "\"norm_eps\": 1e-6"},
    {"unet", "\"flip_sin_to_cos\": false"},
    {"unet", "\"freq_shift\": 1"},
    {"unet", "\"attention_head_dim\": 4"},
    {"unet", "\"cross_attention_dim\": 64"},
};

START_TEST(a_key_that_is_read_shows)
{
    struct dt_error err = {0};
    struct dt_shape plain, changed;

    memset(&plain, 0, sizeof(plain)); /* padding */
    memset(&changed, 0, sizeof(changed));
    dt_assert_ok(parse(changes[_i].type, "", &plain, &err), err);
    dt_assert_ok(parse(changes[_i].type, changes[_i].key, &changed, &err), err);
    ck_assert_msg(memcmp(&plain, &changed, sizeof(plain)) != 0, "%s: %s changes nothing",
                  changes[_i].type, changes[_i].key);
}
END_TEST

/* Defaults are those of transformers 5.23 and diffusers 0.42 (their config classes). */
START_TEST(defaults_are_the_librarys)
{
    struct dt_error err = {0};
    struct dt_shape s;

    dt_assert_ok(parse("llama", "", &s, &err), err);
    ck_assert_double_eq(s.arith.norm_eps, 1e-6);
    ck_assert_double_eq(s.arith.rope.theta, 10000);
    ck_assert_int_eq(s.arith.activation, DT_ACTIVATION_SILU);
    dt_assert_ok(parse("mixtral", "", &s, &err), err);
    ck_assert_double_eq(s.arith.norm_eps, 1e-5);
    ck_assert_double_eq(s.arith.rope.theta, 1e6);
    ck_assert(s.mixtral_names && !s.arith.top_k_raw);
    ck_assert_double_eq(s.arith.balance_loss, 0.01);
    dt_assert_ok(parse("qwen3_moe", "", &s, &err), err);
    ck_assert(!s.mixtral_names && s.arith.top_k_raw); /* norm_topk_prob is false unless stated */
    dt_assert_ok(parse("gpt2", "", &s, &err), err);
    ck_assert_double_eq(s.arith.norm_eps, 1e-5);
    ck_assert_int_eq(s.arith.activation, DT_ACTIVATION_GELU_TANH);
    dt_assert_ok(parse("vit", "", &s, &err), err);
    ck_assert_double_eq(s.arith.norm_eps, 1e-12);
    ck_assert_int_eq(s.arith.activation, DT_ACTIVATION_GELU);
    ck_assert(s.class_attends);
    dt_assert_ok(parse("clip", "", &s, &err), err);
    ck_assert(s.class_attends);
    ck_assert_double_eq(s.arith.norm_eps, 1e-5);
    ck_assert_int_eq(s.arith.activation, DT_ACTIVATION_QUICK_GELU);
    dt_assert_ok(parse("siglip", "", &s, &err), err);
    ck_assert(!s.class_attends);
    ck_assert_double_eq(s.arith.norm_eps, 1e-6);
    ck_assert_int_eq(s.arith.activation, DT_ACTIVATION_GELU_TANH);
    dt_assert_ok(parse("unet", "", &s, &err), err);
    ck_assert_double_eq(s.arith.norm_eps, 1e-5);
    ck_assert_int_eq(s.unet.norm_groups, 32);
    ck_assert(!s.arith.sine_first);
    ck_assert_double_eq(s.arith.freq_shift, 0);
}
END_TEST

START_TEST(rope_is_read_where_either_version_puts_it)
{
    static const char *const texts[] = {
        "\"rope_theta\": 500000.0, \"max_position_embeddings\": 131072, \"rope_scaling\": "
        "{\"rope_type\": \"llama3\", \"factor\": 8.0, \"low_freq_factor\": 1.0, "
        "\"high_freq_factor\": 4.0, \"original_max_position_embeddings\": 8192}",
        "\"rope_parameters\": {\"rope_theta\": 500000.0, \"rope_type\": \"llama3\", \"factor\": 8, "
        "\"low_freq_factor\": 1, \"high_freq_factor\": 4, "
        "\"original_max_position_embeddings\": 8192}",
    };
    struct dt_error err = {0};
    struct dt_shape s;

    for (int i = 0; i < 2; i++) {
        dt_assert_ok(parse("llama", texts[i], &s, &err), err);
        ck_assert_double_eq(s.arith.rope.theta, 500000);
        ck_assert_int_eq(s.arith.rope.scaling, DT_ROPE_LLAMA3);
        ck_assert_double_eq(s.arith.rope.factor, 8);
        ck_assert_double_eq(s.arith.rope.low_freq, 1);
        ck_assert_double_eq(s.arith.rope.high_freq, 4);
        ck_assert_int_eq(s.arith.rope.original, 8192);
    }
    /* what does not change attention at all */
    dt_assert_ok(parse("llama", "\"rope_scaling\": null, \"rope_theta\": 10000", &s, &err), err);
    ck_assert_int_eq(s.arith.rope.scaling, DT_ROPE_PLAIN);
    dt_assert_ok(
        parse("mixtral", "\"sliding_window\": 4096, \"max_position_embeddings\": 4096", &s, &err),
        err);
    dt_assert_ok(parse("qwen2", "\"use_sliding_window\": false, \"sliding_window\": 64", &s, &err),
                 err);
}
END_TEST

/* ---- ignored on request ---- */

static enum dt_status model(const char *config, const char *ignore, struct dt_model **m,
                            struct dt_error *err)
{
    char path[] = "/tmp/disttrain-hf-XXXXXX", yaml[512];
    struct dt_doc *doc = NULL;
    int fd = mkstemp(path), n;
    FILE *f = fdopen(fd, "w");
    enum dt_status st;

    fputs(config, f);
    fclose(f);
    n = snprintf(yaml, sizeof(yaml), "{modules: {llm: {hf: {config: '%s', ignore: %s}}}}", path,
                 ignore);
    dt_assert_ok(dt_doc_parse("job.yaml", yaml, (size_t)n, err, &doc), *err);
    st = dt_model_read(dt_doc_root(doc), err, m);
    dt_doc_free(doc);
    remove(path);
    return st;
}

/* A choice of experts that is not run may be planned only; the plain one, stated or not, is run. */
START_TEST(choices_of_experts_that_are_not_run)
{
    static const struct {
        const char *key, *why;
    } of[] = {
        {"", NULL},
        {"\"topk_method\": \"greedy\", \"n_group\": 1, \"topk_group\": 1", NULL},
        {"\"n_group\": null", NULL},
        {"\"scoring_func\": \"softmax\", \"routed_scaling_factor\": 1.0", NULL},
        {"\"topk_method\": \"group_limited_greedy\"", "groups"},
        {"\"topk_method\": \"noaux_tc\"", "groups"},
        {"\"n_group\": 2", "groups"},
        {"\"scoring_func\": \"sigmoid\"", "scores"},
        {"\"routed_scaling_factor\": 2.5", "scores"},
    };

    for (size_t i = 0; i < sizeof(of) / sizeof(of[0]); i++) {
        struct dt_error err = {0};
        struct dt_shape s;

        dt_assert_ok(parse("deepseek", of[i].key, &s, &err), err);
        ck_assert_msg(!s.planned_only == !of[i].why, "%s", of[i].key);
        if (of[i].why)
            dt_assert_has(s.planned_only, of[i].why);
    }
}
END_TEST

START_TEST(keys_are_ignored_on_request_alone)
{
    struct dt_error err = {0};
    struct dt_model *m = NULL;
    char text[1024];

    snprintf(text, sizeof(text), "{%s, \"attention_multiplier\": 2, \"rope_theta\": 5}",
             base_of("llama")->text);
    ck_assert_int_eq(model(text, "[]", &m, &err), DT_ERR_INPUT);
    dt_assert_has(err.message, "ignore: [attention_multiplier]");
    dt_assert_ok(model(text, "[attention_multiplier]", &m, &err), err);
    ck_assert_double_eq(m->modules[0].arith.rope.theta, 5);
    dt_assert_has(m->assumed, "llm.attention_multiplier: ignored, as the job asks");
    dt_model_free(m);
    /* one that would be read counts as absent */
    dt_assert_ok(model(text, "[attention_multiplier, rope_theta]", &m, &err), err);
    ck_assert_double_eq(m->modules[0].arith.rope.theta, 10000);
    dt_model_free(m);
    ck_assert_int_eq(model(text, "[attention_multiplier, rope_thta]", &m, &err), DT_ERR_INPUT);
    dt_assert_has(err.message, "the config has no key \"rope_thta\"");
    ck_assert_str_eq(err.file, "job.yaml");
    ck_assert_int_eq(model(text, "attention_multiplier", &m, &err), DT_ERR_INPUT);
    dt_assert_has(err.message, "ignore: expected a list");
}
END_TEST

/* ---- the same in a model file ---- */

static enum dt_status yaml(const char *text, struct dt_model **m, struct dt_error *err)
{
    struct dt_doc *doc = NULL;
    enum dt_status st;

    dt_assert_ok(dt_doc_parse("m.yaml", text, strlen(text), err, &doc), *err);
    st = dt_model_read(dt_doc_root(doc), err, m);
    dt_doc_free(doc);
    return st;
}

START_TEST(model_files_say_it_too)
{
    struct dt_error err = {0};
    const struct dt_module_arithmetic *a;
    struct dt_model *m = NULL;

    dt_assert_ok(yaml("{modules: {eye: {kind: encoder, layers: 1, hidden: 8, ffn: 8, heads: 2, "
                      "patch: 4, norm_eps: 1e-6, activation: quick-gelu, names: clip}, "
                      "llm: {kind: llm, layers: 1, hidden: 8, ffn: 8, heads: 2, vocab: 9, "
                      "norm_eps: 1e-6, activation: relu, attention_scale: 0.5, "
                      "attention_scale_by_layer: true, rope: {theta: 5e5, scaling: llama3, "
                      "factor: 8, low_freq_factor: 1, high_freq_factor: 4, "
                      "original_positions: 8192}}, "
                      "hand: {kind: unet, channels: [32, 64], norm_eps: 1e-6, norm_groups: 8, "
                      "sine_first: true, freq_shift: 1, context_len: 4, context_dim: 8}}}",
                      &m, &err),
                 err);
    a = &m->modules[0].arith;
    ck_assert_int_eq(a->activation, DT_ACTIVATION_QUICK_GELU);
    ck_assert(m->modules[0].tower_names == DT_TOWER_CLIP);
    a = &m->modules[1].arith;
    ck_assert_double_eq(a->norm_eps, 1e-6);
    ck_assert_int_eq(a->activation, DT_ACTIVATION_RELU);
    ck_assert_double_eq(a->attention_scale, 0.5);
    ck_assert(a->scale_by_layer);
    ck_assert_double_eq(a->rope.theta, 5e5);
    ck_assert_int_eq(a->rope.original, 8192);
    a = &m->modules[2].arith;
    ck_assert(a->sine_first);
    ck_assert_double_eq(a->freq_shift, 1);
    for (int i = 0; i < m->modules[2].n_blocks; i++)
        if (m->modules[2].blocks[i].kind == DT_BLOCK_RESNET)
            ck_assert_int_eq(m->modules[2].blocks[i].groups, 8);
    dt_model_free(m);
    ck_assert_int_eq(
        yaml("{modules: {llm: {preset: llama-7b, rope: {scaling: linear}}}}", &m, &err),
        DT_ERR_INPUT);
    dt_assert_has(err.message, "needs factor");
    ck_assert_int_eq(yaml("{modules: {llm: {preset: llama-7b, activation: habit}}}", &m, &err),
                     DT_ERR_INPUT);
    ck_assert_int_eq(yaml("{modules: {eye: {preset: vit-huge, rope: {theta: 5}}, "
                          "llm: {preset: llama-7b}}}",
                          &m, &err),
                     DT_ERR_INPUT);
    dt_assert_has(err.message, "rope");
}
END_TEST

/* Presets compute as they did: nothing is stated. */
START_TEST(presets_keep_their_habits)
{
    static const char *const names[] = {"mllm-9b", "mllm-72b", "mllm-tiny", "mllm-nano"};
    struct dt_error err = {0};

    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        struct dt_model *m = NULL;

        dt_assert_ok(yaml(names[i], &m, &err), err);
        for (int k = 0; k < m->n_modules; k++) {
            const struct dt_module_arithmetic *a = &m->modules[k].arith;

            ck_assert(a->norm_eps <= 0 && a->rope.theta <= 0 && a->attention_scale <= 0);
            ck_assert_int_eq(a->activation, DT_ACTIVATION_HABIT);
            ck_assert(!a->sine_first && !a->scale_by_layer &&
                      m->modules[k].tower_names == DT_TOWER_VIT);
            for (int b = 0; b < m->modules[k].n_blocks; b++)
                ck_assert_int_eq(m->modules[k].blocks[b].groups, 0);
        }
        dt_model_free(m);
    }
}
END_TEST

static const struct {
    const char *text, *message;
} bad[] = {
    {"{\"model_type\": \"bert\"}", "needs the head of a masked language model"},
    {"{\"model_type\": \"glados\"}", "supported: llama, mistral"},
    {"{\"model_type\": \"qwen\"}", "nearest is \"qwen2\""},
    {"{}", "needs \"model_type\""},
    {"[]", "JSON object"},
    {"{\"model_type\": \"llama\"}", "\"num_hidden_layers\" is missing"},
    {"{\"model_type\": \"llama\", \"attention_bias\": true}",
     "attention_bias: true is not supported"},
    {"{\"model_type\": \"gpt2\", \"n_layer\": 0}", "n_layer: expected an integer from 1"},
    {"{\"model_type\": \"clip\", \"vision_config\": 3}", "vision_config"},
    {"{\"model_type\": \"vit\", \"qkv_bias\": false}", "qkv_bias"},
    {"{\"_class_name\": \"UNet2DConditionModel\"}", "block_out_channels"},
    {"{\"_class_name\": \"UNet2DConditionModel\", \"block_out_channels\": [32], "
     "\"down_block_types\": "
     "[\"AttnDownBlock2D\"]}",
     "\"AttnDownBlock2D\" is not supported"},
    {"{\"_class_name\": \"UNet2DConditionModel\", \"block_out_channels\": [32, 64], "
     "\"down_block_types\": "
     "[\"DownBlock2D\", \"CrossAttnDownBlock2D\"], \"up_block_types\": [\"UpBlock2D\", "
     "\"UpBlock2D\"]}",
     "must mirror"},
    {"{\"model_type\": \"llama\", \"num_hidden_layers\": 2, \"hidden_size\": 10, "
     "\"intermediate_size\": 20, "
     "\"num_attention_heads\": 3, \"vocab_size\": 100}",
     "not a multiple of heads"},
};

START_TEST(errors_explain)
{
    char path[] = "/tmp/disttrain-hf-XXXXXX";
    int fd = mkstemp(path);
    FILE *f = fdopen(fd, "w");
    struct dt_arena arena = {0};
    struct dt_module m;
    struct dt_error err = {0};
    char assumed[256] = "";

    fputs(bad[_i].text, f);
    fclose(f);
    ck_assert_int_eq(dt_hf_module(path, &arena, &err, &m, assumed, sizeof(assumed)), DT_ERR_INPUT);
    remove(path);
    dt_assert_has(err.message, bad[_i].message);
    ck_assert_int_ge(err.line, 1);
    ck_assert_str_eq(err.file, path);
    dt_arena_free(&arena);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("hf_keys");
    TCase *t = dt_test_case(s, "keys", 0);

    tcase_add_loop_test(t, refused_by_name_and_place, 0, sizeof(refused) / sizeof(refused[0]));
    tcase_add_loop_test(t, a_key_that_is_read_shows, 0, sizeof(changes) / sizeof(changes[0]));
    tcase_add_test(t, defaults_are_the_librarys);
    tcase_add_test(t, rope_is_read_where_either_version_puts_it);
    tcase_add_test(t, choices_of_experts_that_are_not_run);
    tcase_add_test(t, keys_are_ignored_on_request_alone);
    tcase_add_test(t, model_files_say_it_too);
    tcase_add_test(t, presets_keep_their_habits);
    tcase_add_loop_test(t, errors_explain, 0, sizeof(bad) / sizeof(bad[0]));
    return dt_test_run(s);
}
