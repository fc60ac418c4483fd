/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Hugging Face configs that leave something out: what the library's class of the type has there. */
#include "core/model/hf.h"
#include "test_util.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* Key-value heads that a config does not state: a number where transformers' class of the type has one; null is as many as heads. */
START_TEST(absent_heads_are_the_librarys)
{
    static const struct {
        const char *type;
        int kv_heads, window;
    } types[] = {
        {"llama", 64, 0},    {"mistral", 8, 4096}, {"mixtral", 8, 0},
        {"qwen2", 32, 0},    {"qwen3", 32, 0},     {"qwen2_moe", 16, 0},
        {"qwen3_moe", 4, 0}, {"gemma", 16, 0},     {"gemma2", 4, 4096},
    };

    for (size_t i = 0; i < sizeof(types) / sizeof(types[0]); i++)
        for (int null = 0; null < 2; null++) {
            struct dt_error err = {0};
            struct dt_shape s;
            char text[512];
            int n = snprintf(text, sizeof(text),
                             "{\"model_type\": \"%s\", \"num_hidden_layers\": 2, "
                             "\"hidden_size\": 1024, \"intermediate_size\": 80, "
                             "\"num_attention_heads\": 64, \"vocab_size\": 264%s}",
                             types[i].type,
                             !null ? ""
                             : types[i].window > 0
                                 ? ", \"num_key_value_heads\": null, \"sliding_window\": null"
                                 : ", \"num_key_value_heads\": null");

            if (null && strcmp(types[i].type, "gemma2") == 0) /* has no such layers */
                continue;
            dt_assert_ok(dt_hf_parse("config.json", text, (size_t)n, &s, NULL, 0, &err), err);
            ck_assert_msg(s.kv_heads == (null ? 64 : types[i].kv_heads), "%s: %d", types[i].type,
                          s.kv_heads);
            ck_assert_msg(s.window == (null ? 0 : types[i].window), "%s: window %d", types[i].type,
                          s.window);
        }
}
END_TEST

#define SMALL                                                                                      \
    "\"num_hidden_layers\": 5, \"hidden_size\": 48, \"intermediate_size\": 80, "                   \
    "\"num_attention_heads\": 4, \"vocab_size\": 264"
#define LATENT                                                                                     \
    SMALL ", \"n_routed_experts\": 4, \"num_experts_per_tok\": 2, \"moe_intermediate_size\": 16, " \
          "\"kv_lora_rank\": 8, \"qk_nope_head_dim\": 8, \"qk_rope_head_dim\": 4, "                \
          "\"v_head_dim\": 8"

static enum dt_status parse_all(const char *type, const char *keys, char *assumed, size_t size,
                                struct dt_shape *s, struct dt_error *err)
{
    char text[1024];
    int n = snprintf(text, sizeof(text), "{\"model_type\": \"%s\", %s}", type, keys);

    return dt_hf_parse("config.json", text, (size_t)n, s, assumed, size, err);
}

/* Of transformers 5.23: DeepseekV2Config and DeepseekV3Config; null is none. */
START_TEST(absent_keys_of_deepseek_are_the_librarys)
{
    static const struct {
        const char *type;
        int q_lora, shared, dense;
        bool raw;
        const char *assumed;
    } types[] = {{"deepseek_v2", 1536, 2, 0, true, "n_shared_experts: 2"},
                 {"deepseek_v3", 1536, 1, 3, false, "first_k_dense_replace: 3"}};

    for (size_t i = 0; i < sizeof(types) / sizeof(types[0]); i++) {
        struct dt_error err = {0};
        char assumed[1024] = "";
        struct dt_shape s;

        dt_assert_ok(parse_all(types[i].type, LATENT, assumed, sizeof(assumed), &s, &err), err);
        ck_assert_int_eq(s.q_lora, types[i].q_lora);
        ck_assert_int_eq(s.shared_ffn, types[i].shared * 16);
        ck_assert_int_eq(s.dense_first, types[i].dense);
        ck_assert_int_eq(s.arith.top_k_raw, types[i].raw);
        dt_assert_has(assumed, types[i].assumed);
        dt_assert_has(assumed, "q_lora_rank: 1536");
        dt_assert_ok(parse_all(types[i].type,
                               LATENT ", \"q_lora_rank\": null, \"n_shared_experts\": null",
                               assumed, sizeof(assumed), &s, &err),
                     err);
        ck_assert(s.q_lora == 0 && s.shared_ffn == 0);
    }
}
END_TEST

/* InternLM2's layers have biases unless their config says that they have none. */
START_TEST(biases_of_internlm2_must_be_denied)
{
    struct dt_error err = {0};
    struct dt_shape s;

    ck_assert_int_eq(parse_all("internlm2", SMALL, NULL, 0, &s, &err), DT_ERR_INPUT);
    dt_assert_has(err.message, "bias: absent");
    ck_assert_int_eq(parse_all("internlm2", SMALL ", \"bias\": true", NULL, 0, &s, &err),
                     DT_ERR_INPUT);
    dt_assert_has(err.message, "bias: true is not supported");
}
END_TEST

/* Attention beside the MLP: of Falcon's new architecture each has a norm unless the config says that they share one, as 11B's
 * does; of the old one they share it. */
START_TEST(norms_of_falcon)
{
    static const struct {
        const char *keys;
        int norms;
    } of[] = {{"", 1},
              {", \"parallel_attn\": false", 2},
              {", \"new_decoder_architecture\": true", 2},
              {", \"new_decoder_architecture\": true, \"num_ln_in_parallel_attn\": null", 2},
              {", \"new_decoder_architecture\": true, \"num_ln_in_parallel_attn\": 2", 2},
              {", \"new_decoder_architecture\": true, \"num_ln_in_parallel_attn\": 1", 1}};

    for (size_t i = 0; i < sizeof(of) / sizeof(of[0]); i++) {
        struct dt_error err = {0};
        struct dt_shape s;
        char keys[512];

        snprintf(keys, sizeof(keys),
                 "\"num_hidden_layers\": 2, \"hidden_size\": 48, \"num_attention_heads\": 4, "
                 "\"vocab_size\": 264%s",
                 of[i].keys);
        dt_assert_ok(parse_all("falcon", keys, NULL, 0, &s, &err), err);
        ck_assert_msg(s.norms == of[i].norms, "%s: %d", of[i].keys, s.norms);
    }
}
END_TEST

/* Layers of Qwen2.5-VL's tower that see all: Qwen2_5_VLVisionConfig has 7, 15, 23 and 31; a list must be regular up to the last
 * layer. */
START_TEST(whole_layers_of_qwen_vision)
{
    static const struct {
        int layers;
        const char *list;
        int every; /* -1: refused, and why */
        const char *says;
    } of[] = {
        {32, NULL, 8, "fullatt_block_indexes: [7, 15, 23, 31]\n"},
        {16, NULL, 8, "fullatt_block_indexes: [7, 15, 23, 31]\n"},
        {40, NULL, -1, "with 40 layers it ends early"},
        {32, "[7, 15, 23, 31]", 8, NULL},
        {39, "[7, 15, 23, 31]", 8, NULL},
        {8, "[7]", 8, NULL},
        {16, "[]", 0, NULL},
        {16, "[7]", -1,
         "with 16 layers it ends early (supported: layers at equal distances, here up to 15)"},
        {32, "[7, 15, 23]", -1, "here up to 31"},
        {32, "[7, 16]", -1, "supported are layers at equal distances"},
        {8, "7", -1, "expected a list"},
        {8, "[x]", -1, "expected numbers of layers"},
        {8, "null", -1, "null is not supported"},
    };

    for (size_t i = 0; i < sizeof(of) / sizeof(of[0]); i++) {
        struct dt_error err = {0};
        struct dt_shape s;
        char keys[512], assumed[1024] = "";
        enum dt_status st;

        snprintf(keys, sizeof(keys),
                 "\"depth\": %d, \"hidden_size\": 64, \"intermediate_size\": 128%s%s", of[i].layers,
                 of[i].list ? ", \"fullatt_block_indexes\": " : "", of[i].list ? of[i].list : "");
        st = parse_all("qwen2_5_vl_vision", keys, assumed, sizeof(assumed), &s, &err);
        if (of[i].every < 0) {
            ck_assert_int_eq(st, DT_ERR_INPUT);
            dt_assert_has(err.message, of[i].says);
            continue;
        }
        dt_assert_ok(st, err);
        ck_assert_int_eq(s.window_every, of[i].every);
        ck_assert(!strstr(assumed, "fullatt") == !of[i].says);
        if (of[i].says)
            dt_assert_has(assumed, of[i].says);
    }
}
END_TEST

/* The factor of the loss for even routing: DeepSeekMoE's by sequence is ours, and of others a line says that it is not taken. */
START_TEST(balance_is_taken_or_told)
{
#define MOE ", \"num_experts_per_tok\": 2, \"moe_intermediate_size\": 16"
#define ROUTED MOE ", \"n_routed_experts\": 4"
#define NOT "router_aux_loss_coef: 0.5 not taken, it is of another loss; balance_loss is 0.01"
    static const struct {
        const char *type, *keys;
        double balance;
        const char *told; /* NULL: nothing of the kind */
    } of[] = {
        {"mixtral", "", 0.01, NULL},
        {"mixtral", ", \"router_aux_loss_coef\": null", 0.01, NULL},
        {"mixtral", ", \"router_aux_loss_coef\": 0.5", 0.01, NOT},
        {"qwen2_moe", MOE ", \"router_aux_loss_coef\": 0.5", 0.01, NOT},
        {"qwen3_moe", MOE ", \"router_aux_loss_coef\": 0.5", 0.01, NOT},
        {"olmoe", ", \"router_aux_loss_coef\": 0.5", 0.01, NOT},
        {"deepseek", ROUTED, 0.001, "aux_loss_alpha: 0.001\n"},
        {"deepseek", ROUTED ", \"aux_loss_alpha\": 0.25, \"seq_aux\": true", 0.25, NULL},
        {"deepseek", ROUTED ", \"aux_loss_alpha\": 0", 0, NULL},
        {"deepseek", ROUTED ", \"aux_loss_alpha\": 0.25, \"seq_aux\": false", 0.01,
         "aux_loss_alpha: 0.25 not taken, it is of another loss; balance_loss is 0.01"},
    };

    for (size_t i = 0; i < sizeof(of) / sizeof(of[0]); i++) {
        struct dt_error err = {0};
        struct dt_shape s;
        char keys[1024], assumed[1024] = "";

        snprintf(keys, sizeof(keys), SMALL ", \"num_key_value_heads\": 4%s", of[i].keys);
        dt_assert_ok(parse_all(of[i].type, keys, assumed, sizeof(assumed), &s, &err), err);
        ck_assert_msg(fabs(s.arith.balance_loss - of[i].balance) < 1e-12, "%s%s: %g", of[i].type,
                      of[i].keys, s.arith.balance_loss);
        ck_assert(!strstr(assumed, "aux_loss_") == !of[i].told);
        if (of[i].told)
            dt_assert_has(assumed, of[i].told);
    }
}
END_TEST

int main(void)
{
    Suite *s = suite_create("hf_defaults");
    TCase *t = dt_test_case(s, "defaults", 0);

    tcase_add_test(t, absent_heads_are_the_librarys);
    tcase_add_test(t, absent_keys_of_deepseek_are_the_librarys);
    tcase_add_test(t, biases_of_internlm2_must_be_denied);
    tcase_add_test(t, norms_of_falcon);
    tcase_add_test(t, whole_layers_of_qwen_vision);
    tcase_add_test(t, balance_is_taken_or_told);
    return dt_test_run(s);
}
