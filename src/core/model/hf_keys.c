/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Keys of Hugging Face configs: those that are read, those that cannot change what a model
 * computes, and those that may only have one value.  What is in none of these lists is refused: a
 * key unknown here may stand for arithmetic that the model was trained with. */
#include "core/model/hf.h"

#include "base/number.h"

#include <stdio.h>
#include <string.h>

#define QWENS (DT_HF_QWEN2 | DT_HF_QWEN3 | DT_HF_QWEN2_MOE | DT_HF_QWEN3_MOE)
#define EXPERTS (DT_HF_MIXTRAL | DT_HF_QWEN2_MOE | DT_HF_QWEN3_MOE | DT_HF_DEEPSEEK | DT_HF_OLMO)
#define LLAMAS                                                                                     \
    (DT_HF_LLAMA | QWENS | EXPERTS | DT_HF_MISTRAL | DT_HF_GEMMA | DT_HF_PHI3 | DT_HF_INTERNLM2)
#define OLDER (DT_HF_NEOX | DT_HF_FALCON)
#define TEXT (LLAMAS | OLDER | DT_HF_GPT2)
#define VITS (DT_HF_VIT | DT_HF_CLIP | DT_HF_SIGLIP | DT_HF_DINOV2 | DT_HF_INTERN_VIT)
#define TOWERS (VITS | DT_HF_QWEN_VISION)
#define TRANSFORMERS (TEXT | TOWERS | DT_HF_PAIR | DT_HF_VLM)
#define ANY (TRANSFORMERS | DT_HF_UNET)

struct key {
    const char *name;
    unsigned types;
    const char *values; /* only_keys: the supported one, or several with bars between */
    const char *why;
};

/* `why`: "null" where null is the library's default or means the same. */
static const struct key read_keys[] = {
    {"num_hidden_layers", LLAMAS | OLDER | VITS, NULL, ""},
    {"hidden_size", LLAMAS | OLDER | TOWERS, NULL, ""},
    {"intermediate_size",
     LLAMAS | DT_HF_NEOX | DT_HF_VIT | DT_HF_CLIP | DT_HF_SIGLIP | DT_HF_INTERN_VIT |
         DT_HF_QWEN_VISION,
     NULL, ""},
    {"num_attention_heads", LLAMAS | OLDER | VITS, NULL, ""},
    {"num_key_value_heads", LLAMAS, NULL, "null"},
    {"head_dim", LLAMAS, NULL, "null"},
    {"vocab_size", TEXT, NULL, ""},
    {"rms_norm_eps", LLAMAS, NULL, ""},
    {"hidden_act", (LLAMAS & ~(unsigned)DT_HF_GEMMA) | DT_HF_NEOX | TOWERS, NULL, ""},
    {"rope_theta", LLAMAS | DT_HF_ROPE, NULL, ""},
    {"rope_scaling", LLAMAS, NULL, "null"},
    {"rope_parameters", LLAMAS, NULL, "null"},
    {"max_position_embeddings", LLAMAS, NULL, ""},
    {"tie_word_embeddings", TEXT, NULL, ""},
    {"hidden_activation", DT_HF_GEMMA, NULL, "null"},
    {"attention_bias", DT_HF_LLAMA | DT_HF_QWEN3 | DT_HF_QWEN3_MOE | DT_HF_NEOX, NULL, ""},
    {"mlp_bias", DT_HF_LLAMA, NULL, ""},
    {"use_sliding_window", QWENS, NULL, "null"},
    {"sliding_window", QWENS | DT_HF_MIXTRAL | DT_HF_MISTRAL | DT_HF_GEMMA | DT_HF_PHI3, NULL,
     "null"},
    {"layer_types", QWENS | DT_HF_GEMMA, NULL, "null"},
    {"num_local_experts", DT_HF_MIXTRAL, NULL, ""},
    {"num_experts_per_tok", EXPERTS, NULL, ""},
    {"num_experts", DT_HF_QWEN2_MOE | DT_HF_QWEN3_MOE | DT_HF_OLMO, NULL, ""},
    {"moe_intermediate_size", DT_HF_QWEN2_MOE | DT_HF_QWEN3_MOE | DT_HF_DEEPSEEK, NULL, ""},
    {"shared_expert_intermediate_size", DT_HF_QWEN2_MOE, NULL, ""},
    {"norm_topk_prob", DT_HF_QWEN2_MOE | DT_HF_QWEN3_MOE | DT_HF_DEEPSEEK | DT_HF_OLMO, NULL, ""},
    {"decoder_sparse_step", DT_HF_QWEN2_MOE | DT_HF_QWEN3_MOE, NULL, ""},
    {"mlp_only_layers", DT_HF_QWEN2_MOE | DT_HF_QWEN3_MOE, NULL, "null"},
    {"router_aux_loss_coef", EXPERTS, NULL, "null"},
    {"aux_loss_alpha", DT_HF_DEEPSEEK, NULL, ""},
    {"seq_aux", DT_HF_DEEPSEEK, NULL, ""},
    {"n_routed_experts", DT_HF_DEEPSEEK, NULL, ""},
    {"scoring_func", DT_HF_DEEPSEEK, NULL, ""},
    {"routed_scaling_factor", DT_HF_DEEPSEEK, NULL, ""},
    {"topk_method", DT_HF_DEEPSEEK, NULL, ""},
    {"n_group", DT_HF_DEEPSEEK, NULL, "null"},
    {"n_shared_experts", DT_HF_DEEPSEEK, NULL, "null"},
    {"first_k_dense_replace", DT_HF_DEEPSEEK, NULL, ""},
    {"q_lora_rank", DT_HF_DEEPSEEK, NULL, "null"},
    {"kv_lora_rank", DT_HF_DEEPSEEK, NULL, ""},
    {"qk_nope_head_dim", DT_HF_DEEPSEEK, NULL, ""},
    {"qk_rope_head_dim", DT_HF_DEEPSEEK, NULL, ""},
    {"v_head_dim", DT_HF_DEEPSEEK, NULL, ""},
    {"num_nextn_predict_layers", DT_HF_DEEPSEEK, NULL, ""},
    {"query_pre_attn_scalar", DT_HF_GEMMA, NULL, ""},
    {"sliding_window_pattern", DT_HF_GEMMA, NULL, ""},
    {"partial_rotary_factor", DT_HF_PHI3, NULL, ""},
    {"bias", DT_HF_INTERNLM2 | DT_HF_FALCON, NULL, ""},
    {"layer_norm_eps", DT_HF_NEOX, NULL, ""},
    {"rotary_pct", DT_HF_NEOX, NULL, ""},
    {"rotary_emb_base", DT_HF_NEOX, NULL, ""},
    {"layer_norm_epsilon", DT_HF_FALCON, NULL, ""},
    {"ffn_hidden_size", DT_HF_FALCON, NULL, ""},
    {"activation", DT_HF_FALCON, NULL, ""},
    {"new_decoder_architecture", DT_HF_FALCON, NULL, ""},
    {"multi_query", DT_HF_FALCON, NULL, ""},
    {"parallel_attn", DT_HF_FALCON, NULL, ""},
    {"num_kv_heads", DT_HF_FALCON, NULL, "null"},
    {"num_ln_in_parallel_attn", DT_HF_FALCON, NULL, "null"},
    {"alibi", DT_HF_FALCON, NULL, ""},
    {"type", DT_HF_ROPE, NULL, ""},
    {"rope_type", DT_HF_ROPE, NULL, ""},
    {"factor", DT_HF_ROPE, NULL, ""},
    {"low_freq_factor", DT_HF_ROPE, NULL, ""},
    {"high_freq_factor", DT_HF_ROPE, NULL, ""},
    {"original_max_position_embeddings", DT_HF_ROPE, NULL, ""},
    {"n_layer", DT_HF_GPT2, NULL, ""},
    {"n_embd", DT_HF_GPT2, NULL, ""},
    {"n_head", DT_HF_GPT2, NULL, ""},
    {"n_inner", DT_HF_GPT2, NULL, "null"},
    {"n_positions", DT_HF_GPT2, NULL, ""},
    {"layer_norm_epsilon", DT_HF_GPT2, NULL, ""},
    {"activation_function", DT_HF_GPT2, NULL, ""},
    {"scale_attn_weights", DT_HF_GPT2, NULL, ""},
    {"scale_attn_by_inverse_layer_idx", DT_HF_GPT2, NULL, ""},
    {"image_size", VITS, NULL, ""},
    {"patch_size", TOWERS, NULL, ""},
    {"num_channels", VITS, NULL, ""},
    {"layer_norm_eps", VITS, NULL, ""},
    {"qkv_bias", DT_HF_VIT | DT_HF_DINOV2 | DT_HF_INTERN_VIT, NULL, ""},
    {"mlp_ratio", DT_HF_DINOV2 | DT_HF_QWEN_VISION, NULL, ""},
    {"use_swiglu_ffn", DT_HF_DINOV2, NULL, ""},
    {"qk_normalization", DT_HF_INTERN_VIT, NULL, ""},
    {"norm_type", DT_HF_INTERN_VIT, NULL, ""},
    {"depth", DT_HF_QWEN_VISION, NULL, ""},
    {"embed_dim", DT_HF_QWEN_VISION, NULL, ""},
    {"num_heads", DT_HF_QWEN_VISION, NULL, ""},
    {"in_chans", DT_HF_QWEN_VISION, NULL, ""},
    {"in_channels", DT_HF_QWEN_VISION, NULL, ""},
    {"temporal_patch_size", DT_HF_QWEN_VISION, NULL, ""},
    {"spatial_merge_size", DT_HF_QWEN_VISION, NULL, ""},
    {"window_size", DT_HF_QWEN_VISION, NULL, ""},
    {"fullatt_block_indexes", DT_HF_QWEN_VISION, NULL, ""},
    {"text_config", DT_HF_VLM, NULL, ""},
    {"llm_config", DT_HF_VLM, NULL, ""},
    {"vision_feature_layer", DT_HF_VLM, NULL, ""},
    {"vision_feature_select_strategy", DT_HF_VLM, NULL, ""},
    {"multimodal_projector_bias", DT_HF_VLM, NULL, ""},
    {"downsample_ratio", DT_HF_VLM, NULL, ""},
    {"mm_tokens_per_image", DT_HF_VLM, NULL, ""},
    {"vision_config", DT_HF_PAIR | DT_HF_VLM, NULL, ""},
    {"block_out_channels", DT_HF_UNET, NULL, ""},
    {"down_block_types", DT_HF_UNET, NULL, ""},
    {"up_block_types", DT_HF_UNET, NULL, ""},
    {"mid_block_type", DT_HF_UNET, NULL, ""},
    {"layers_per_block", DT_HF_UNET, NULL, ""},
    {"in_channels", DT_HF_UNET, NULL, ""},
    {"out_channels", DT_HF_UNET, NULL, ""},
    {"cross_attention_dim", DT_HF_UNET, NULL, ""},
    {"attention_head_dim", DT_HF_UNET, NULL, ""},
    {"num_attention_heads", DT_HF_UNET, NULL, "null"},
    {"transformer_layers_per_block", DT_HF_UNET, NULL, ""},
    {"time_embedding_dim", DT_HF_UNET, NULL, "null"},
    {"norm_num_groups", DT_HF_UNET, NULL, ""},
    {"norm_eps", DT_HF_UNET, NULL, ""},
    {"flip_sin_to_cos", DT_HF_UNET, NULL, ""},
    {"freq_shift", DT_HF_UNET, NULL, ""},
    {"only_cross_attention", DT_HF_UNET, NULL, ""},
    {"dual_cross_attention", DT_HF_UNET, NULL, ""},
    {"class_embed_type", DT_HF_UNET, NULL, "null"},
    {"addition_embed_type", DT_HF_UNET, NULL, "null"},
    {"projection_class_embeddings_input_dim", DT_HF_UNET, NULL, "null"},
    {"class_embeddings_concat", DT_HF_UNET, NULL, ""},
};

static const struct key idle_keys[] = {
    {"model_type", ANY, NULL, "chooses the reader"},
    {"_class_name", ANY, NULL, "chooses the reader"},
    {"architectures", ANY, NULL, "a name; heads of other tasks are not built"},
    {"_name_or_path", ANY, NULL, "a name"},
    {"name_or_path", ANY, NULL, "a name"},
    {"_commit_hash", ANY, NULL, "a name"},
    {"transformers_version", ANY, NULL, "who wrote the file"},
    {"_diffusers_version", ANY, NULL, "who wrote the file"},
    {"_use_default_values", ANY, NULL, "which keys the writer left at their defaults"},
    {"torch_dtype", ANY, NULL, "precision is the job's (run.precision)"},
    {"dtype", ANY, NULL, "precision is the job's (run.precision)"},
    {"use_bfloat16", ANY, NULL, "precision is the job's (run.precision)"},
    {"attn_implementation", ANY, NULL, "which kernels ran elsewhere"},
    {"_attn_implementation", ANY, NULL, "which kernels ran elsewhere"},
    {"_attn_implementation_autoset", ANY, NULL, "which kernels ran elsewhere"},
    {"_flash_attn_2_enabled", ANY, NULL, "which kernels ran elsewhere"},
    {"chunk_size_feed_forward", ANY, NULL, "how a product is cut up, not what it is"},
    {"pretraining_tp", TEXT, NULL, "how products are cut up, not what they are"},
    {"gradient_checkpointing", ANY, NULL, "memory against time; the job's (train.recompute)"},
    {"torchscript", ANY, NULL, "how the library runs"},
    {"use_cache", ANY, NULL, "of inference"},
    {"return_dict", ANY, NULL, "what the library's calls return"},
    {"output_attentions", ANY, NULL, "what the library's calls return"},
    {"output_hidden_states", ANY, NULL, "what the library's calls return"},
    {"output_scores", ANY, NULL, "what the library's calls return"},
    {"return_dict_in_generate", ANY, NULL, "what the library's calls return"},
    {"initializer_range", ANY, NULL, "of weights before training; ours are in doc/modules.md"},
    {"initializer_factor", ANY, NULL, "of weights before training"},
    /* dropout: of training alone, and there the job says it (run.dropout) */
    {"attention_dropout", TRANSFORMERS, NULL, "dropout is the job's (run.dropout)"},
    {"attention_probs_dropout_prob", TRANSFORMERS, NULL, "dropout is the job's (run.dropout)"},
    {"hidden_dropout_prob", TRANSFORMERS, NULL, "dropout is the job's (run.dropout)"},
    {"dropout", TRANSFORMERS, NULL, "dropout is the job's (run.dropout)"},
    {"attn_pdrop", DT_HF_GPT2, NULL, "dropout is the job's (run.dropout)"},
    {"embd_pdrop", DT_HF_GPT2, NULL, "dropout is the job's (run.dropout)"},
    {"resid_pdrop", DT_HF_GPT2, NULL, "dropout is the job's (run.dropout)"},
    {"hidden_dropout", LLAMAS, NULL, "dropout is the job's (run.dropout)"},
    /* tokens are the tokenizer's */
    {"tokenizer_class", ANY, NULL, "tokens are the tokenizer's (run.tokenizer)"},
    {"bos_token_id", TRANSFORMERS, NULL, "tokens are the tokenizer's"},
    {"eos_token_id", TRANSFORMERS, NULL, "tokens are the tokenizer's"},
    {"pad_token_id", TRANSFORMERS, NULL, "padding has no loss, and no token attends to it"},
    {"sep_token_id", TRANSFORMERS, NULL, "tokens are the tokenizer's"},
    {"decoder_start_token_id", TRANSFORMERS, NULL, "tokens are the tokenizer's"},
    {"prefix", TRANSFORMERS, NULL, "tokens are the tokenizer's"},
    {"unk_token_id", TRANSFORMERS, NULL, "tokens are the tokenizer's"},
    /* generation */
    {"begin_suppress_tokens", TRANSFORMERS, NULL, "of generation"},
    {"suppress_tokens", TRANSFORMERS, NULL, "of generation"},
    {"forced_bos_token_id", TRANSFORMERS, NULL, "of generation"},
    {"forced_eos_token_id", TRANSFORMERS, NULL, "of generation"},
    {"bad_words_ids", TRANSFORMERS, NULL, "of generation"},
    {"max_length", TRANSFORMERS, NULL, "of generation"},
    {"min_length", TRANSFORMERS, NULL, "of generation"},
    {"do_sample", TRANSFORMERS, NULL, "of generation"},
    {"early_stopping", TRANSFORMERS, NULL, "of generation"},
    {"num_beams", TRANSFORMERS, NULL, "of generation"},
    {"num_beam_groups", TRANSFORMERS, NULL, "of generation"},
    {"diversity_penalty", TRANSFORMERS, NULL, "of generation"},
    {"temperature", TRANSFORMERS, NULL, "of generation"},
    {"top_k", TRANSFORMERS, NULL, "of generation"},
    {"top_p", TRANSFORMERS, NULL, "of generation"},
    {"typical_p", TRANSFORMERS, NULL, "of generation"},
    {"repetition_penalty", TRANSFORMERS, NULL, "of generation"},
    {"length_penalty", TRANSFORMERS, NULL, "of generation"},
    {"no_repeat_ngram_size", TRANSFORMERS, NULL, "of generation"},
    {"encoder_no_repeat_ngram_size", TRANSFORMERS, NULL, "of generation"},
    {"num_return_sequences", TRANSFORMERS, NULL, "of generation"},
    {"remove_invalid_values", TRANSFORMERS, NULL, "of generation"},
    {"exponential_decay_length_penalty", TRANSFORMERS, NULL, "of generation"},
    {"task_specific_params", TRANSFORMERS, NULL, "of other tasks"},
    {"finetuning_task", TRANSFORMERS, NULL, "of other tasks"},
    {"problem_type", TRANSFORMERS, NULL, "of other tasks"},
    {"id2label", TRANSFORMERS, NULL, "of other tasks"},
    {"label2id", TRANSFORMERS, NULL, "of other tasks"},
    {"num_labels", TRANSFORMERS, NULL, "of other tasks"},
    {"tf_legacy_loss", TRANSFORMERS, NULL, "of other tasks"},
    {"summary_activation", DT_HF_GPT2, NULL, "of other tasks"},
    {"summary_first_dropout", DT_HF_GPT2, NULL, "of other tasks"},
    {"summary_proj_to_labels", DT_HF_GPT2, NULL, "of other tasks"},
    {"summary_type", DT_HF_GPT2, NULL, "of other tasks"},
    {"summary_use_proj", DT_HF_GPT2, NULL, "of other tasks"},
    {"n_ctx", DT_HF_GPT2, NULL, "an old name of n_positions, which has the table's size"},
    {"reorder_and_upcast_attn", DT_HF_GPT2, NULL, "precision of a product; ours sum in fp32"},
    {"max_window_layers", QWENS, NULL, "only with use_sliding_window"},
    {"resid_pdrop", DT_HF_PHI3, NULL, "dropout is the job's (run.dropout)"},
    {"embd_pdrop", DT_HF_PHI3, NULL, "dropout is the job's (run.dropout)"},
    {"original_max_position_embeddings", DT_HF_PHI3, NULL, "of rotary positions that are planned"},
    {"max_position_embeddings", OLDER, NULL, "rotary positions have no table"},
    {"rope_theta", DT_HF_FALCON, NULL, "of rotary positions; Falcon is planned"},
    {"use_parallel_residual", DT_HF_NEOX, NULL, "attention beside the MLP or before it: planned"},
    {"rope_local_base_freq", DT_HF_GEMMA, NULL, "of rotary positions; Gemma is planned"},
    {"attn_logit_softcapping", DT_HF_GEMMA, NULL, "element-wise; Gemma is planned"},
    {"final_logit_softcapping", DT_HF_GEMMA, NULL, "element-wise; Gemma is planned"},
    {"cache_implementation", DT_HF_GEMMA, NULL, "of generation"},
    {"hidden_act", DT_HF_GEMMA, NULL, "a mistake in the first files; hidden_activation is read"},
    {"clip_qkv", DT_HF_OLMO, NULL, "element-wise; OLMo is planned"},
    {"output_router_logits", EXPERTS, NULL, "what the library's calls return"},
    {"router_jitter_noise", DT_HF_MIXTRAL, NULL, "noise in training; none is added here"},
    {"topk_group", DT_HF_DEEPSEEK, NULL, "only with n_group; groups are planned"},
    {"ep_size", DT_HF_DEEPSEEK, NULL, "the plan's (ep)"},
    {"layerscale_value", DT_HF_DINOV2, NULL, "of weights before training"},
    {"drop_path_rate", DT_HF_DINOV2 | DT_HF_INTERN_VIT, NULL, "of training; planned"},
    {"use_mask_token", DT_HF_DINOV2, NULL, "the token is counted"},
    {"use_flash_attn", DT_HF_INTERN_VIT, NULL, "which kernels ran elsewhere"},
    {"spatial_patch_size", DT_HF_QWEN_VISION, NULL, "patch_size says it"},
    {"out_hidden_size", DT_HF_QWEN_VISION, NULL, "the LLM's width"},
    {"tokens_per_second", DT_HF_QWEN_VISION, NULL, "of videos"},
    {"image_token_index", DT_HF_VLM, NULL, "tokens are the tokenizer's"},
    {"image_token_id", DT_HF_VLM, NULL, "tokens are the tokenizer's"},
    {"video_token_id", DT_HF_VLM, NULL, "tokens are the tokenizer's"},
    {"vision_start_token_id", DT_HF_VLM, NULL, "tokens are the tokenizer's"},
    {"vision_end_token_id", DT_HF_VLM, NULL, "tokens are the tokenizer's"},
    {"boi_token_index", DT_HF_VLM, NULL, "tokens are the tokenizer's"},
    {"eoi_token_index", DT_HF_VLM, NULL, "tokens are the tokenizer's"},
    {"image_seq_length", DT_HF_VLM, NULL, "samples say the sizes of images"},
    {"ignore_index", DT_HF_VLM, NULL, "of a loss"},
    {"vocab_size", DT_HF_VLM, NULL, "the LLM's config says it"},
    {"hidden_size", DT_HF_VLM, NULL, "the LLM's config says it"},
    {"projection_dim", DT_HF_VLM, NULL, "the LLM's width"},
    {"ps_version", DT_HF_VLM, NULL, "the order of merged patches"},
    {"dynamic_image_size", DT_HF_VLM, NULL, "samples say the sizes of images"},
    {"force_image_size", DT_HF_VLM, NULL, "samples say the sizes of images"},
    {"max_dynamic_patch", DT_HF_VLM, NULL, "samples say the sizes of images"},
    {"min_dynamic_patch", DT_HF_VLM, NULL, "samples say the sizes of images"},
    {"use_thumbnail", DT_HF_VLM, NULL, "samples say the sizes of images"},
    {"template", DT_HF_VLM, NULL, "of the text around an image"},
    {"tie_word_embeddings", DT_HF_VLM, NULL, "the LLM's config says it"},
    {"encoder_stride", DT_HF_VIT, NULL, "of the decoder for masked images"},
    {"pooler_act", DT_HF_VIT, NULL, "of the pooler, which is left out"},
    {"pooler_output_size", DT_HF_VIT, NULL, "of the pooler, which is left out"},
    {"tie_word_embeddings", TOWERS | DT_HF_PAIR, NULL, "a vision tower has no words"},
    {"projection_dim", DT_HF_CLIP | DT_HF_SIGLIP | DT_HF_PAIR, NULL, "projections are left out"},
    {"vision_use_head", DT_HF_SIGLIP, NULL, "the pooling head is left out"},
    {"is_decoder", TEXT, NULL, "they are decoders"},
    {"text_config", DT_HF_PAIR, NULL, "the text tower is left out"},
    {"text_config_dict", DT_HF_PAIR, NULL, "the text tower is left out"},
    {"vision_config_dict", DT_HF_PAIR, NULL, "an older copy of vision_config"},
    {"logit_scale_init_value", DT_HF_PAIR, NULL, "of the contrastive loss"},
    {"sample_size", DT_HF_UNET, NULL, "latents of any size are taken"},
    {"use_linear_projection", DT_HF_UNET, NULL, "a 1x1 convolution is that linear layer"},
    {"upcast_attention", DT_HF_UNET, NULL, "precision of a product; ours sum in fp32"},
    {"addition_time_embed_dim", DT_HF_UNET, NULL, "class embeddings are planned, not run"},
    {"addition_embed_type_num_heads", DT_HF_UNET, NULL, "only with addition_embed_type: text"},
    {"force_upcast", DT_HF_UNET, NULL, "precision is the job's (run.precision)"},
};

static const struct key only_keys[] = {
    {"is_encoder_decoder", TRANSFORMERS, "false", "one stack of layers"},
    {"is_decoder", TOWERS | DT_HF_PAIR, "false", "a tower's attention sees both ways"},
    {"add_cross_attention", TRANSFORMERS, "false", "layers have self-attention alone"},
    {"cross_attention_hidden_size", TRANSFORMERS, "null", "layers have self-attention alone"},
    {"tie_encoder_decoder", TRANSFORMERS, "false", "one stack of layers"},
    {"pruned_heads", TRANSFORMERS, "{}", "all heads of a layer are there"},
    {"partial_rotary_factor", (LLAMAS & ~(unsigned)DT_HF_PHI3) | DT_HF_ROPE, "1",
     "rotary positions turn whole heads"},
    {"attention_bias", DT_HF_DEEPSEEK | DT_HF_OLMO | DT_HF_MISTRAL | DT_HF_GEMMA | DT_HF_PHI3,
     "false", "layers are taken without biases"},
    {"attention_factor", DT_HF_ROPE, "null", "of scalings that are not supported"},
    {"rope_interleaved", LLAMAS, "false", "pairs are half a head apart"},
    {"moe_layer_freq", DT_HF_DEEPSEEK, "1", "every layer behind the first ones has experts"},
    {"norm_topk_prob", DT_HF_MIXTRAL, "true", "weights of the chosen experts add up to 1"},
    {"projector_hidden_act", DT_HF_VLM, "gelu", "projectors have this between their layers"},
    {"select_layer", DT_HF_VLM, "-1", "features are those of the last layer"},
    {"center_input_sample", DT_HF_UNET, "false", "latents go in as they are"},
    {"downsample_padding", DT_HF_UNET, "1", "convolutions are padded by half their size"},
    {"mid_block_scale_factor", DT_HF_UNET, "1", "residuals are added as they are"},
    {"dropout", DT_HF_UNET, "0", "U-Nets have no dropout here"},
    {"act_fn", DT_HF_UNET, "silu|swish", "norm and SiLU are one kernel"},
    {"reverse_transformer_layers_per_block", DT_HF_UNET, "null", "the way up mirrors the way down"},
    {"encoder_hid_dim", DT_HF_UNET, "null", "conditioning states are taken as they come"},
    {"encoder_hid_dim_type", DT_HF_UNET, "null", "conditioning states are taken as they come"},
    {"num_class_embeds", DT_HF_UNET, "null", "there are no class tables"},
    {"resnet_time_scale_shift", DT_HF_UNET, "default", "the time embedding is added"},
    {"resnet_skip_time_act", DT_HF_UNET, "false", "the time embedding goes through SiLU"},
    {"resnet_out_scale_factor", DT_HF_UNET, "1", "residuals are added as they are"},
    {"time_embedding_type", DT_HF_UNET, "positional", "sinusoids of the timestep"},
    {"time_embedding_act_fn", DT_HF_UNET, "null", "nothing behind the time embedding"},
    {"timestep_post_act", DT_HF_UNET, "null", "nothing behind the time embedding"},
    {"time_cond_proj_dim", DT_HF_UNET, "null", "no condition on the timestep"},
    {"conv_in_kernel", DT_HF_UNET, "3", "filters of 3 x 3"},
    {"conv_out_kernel", DT_HF_UNET, "3", "filters of 3 x 3"},
    {"attention_type", DT_HF_UNET, "default", "no gated attention"},
    {"mid_block_only_cross_attention", DT_HF_UNET, "null|false", "self- and cross-attention"},
    {"cross_attention_norm", DT_HF_UNET, "null", "conditioning states are taken as they come"},
};

#define COUNT(a) (sizeof(a) / sizeof((a)[0]))

static const struct key *find(const struct key *keys, size_t n, const char *name, unsigned types)
{
    for (size_t i = 0; i < n; i++)
        if ((keys[i].types & types) && strcmp(keys[i].name, name) == 0)
            return &keys[i];
    return NULL;
}

bool dt_hf_ignored(const struct dt_hf *hf, const char *key)
{
    for (size_t i = 0; i < dt_seq_size(hf->ignore); i++) {
        const char *text = dt_node_text(dt_seq_at(hf->ignore, i));

        if (text && strcmp(text, key) == 0)
            return true;
    }
    return false;
}

/* 1.0 is 1, and null is as good as false. */
static bool is_value(struct dt_node v, const char *want, size_t len)
{
    const char *text = dt_node_text(v);
    double a, b;
    char word[32];

    snprintf(word, sizeof(word), "%.*s", (int)len, want);
    if (dt_node_is_null(v))
        return strcmp(word, "null") == 0 || strcmp(word, "false") == 0 || strcmp(word, "{}") == 0;
    if (!text)
        return strcmp(word, "{}") == 0 &&
               (dt_node_is_map(v) ? dt_map_size(v) : dt_seq_size(v)) == 0;
    return strcmp(text, word) == 0 ||
           (dt_number_double(text, &a) && dt_number_double(word, &b) && a <= b && a >= b);
}

static enum dt_status check_only(const struct dt_hf *hf, const struct key *k, struct dt_node v)
{
    const char *text = dt_node_text(v), *at = k->values;

    for (size_t len; *at; at += len + (at[len] == '|')) {
        len = strcspn(at, "|");
        if (is_value(v, at, len))
            return DT_OK;
    }
    return dt_node_error(v, hf->err, "%s: %.60s is not supported (supported: %s; %s)", k->name,
                         text ? text : "this", k->values, k->why);
}

static enum dt_status unknown(const struct dt_hf *hf, const char *key, struct dt_node v)
{
    return dt_node_error(
        v, hf->err,
        "%.60s: this key of a %s config is not known here and may change what the model computes; "
        "if it does not, write hf: {config: FILE, ignore: [%.60s]}",
        key, hf->type, key);
}

enum dt_status dt_hf_check_keys(const struct dt_hf *hf, unsigned types)
{
    for (size_t i = 0; i < dt_map_size(hf->map); i++) {
        const struct key *k;
        struct dt_node v;
        const char *name;

        dt_map_at(hf->map, i, &name, &v);
        if (dt_hf_ignored(hf, name) || find(idle_keys, COUNT(idle_keys), name, types))
            continue;
        k = find(read_keys, COUNT(read_keys), name, types);
        if (k && (strcmp(k->why, "null") == 0 || !dt_node_is_null(v)))
            continue;
        if (k)
            return dt_node_error(v, hf->err,
                                 "%s: null is not supported; state a value, or leave the key out "
                                 "for the library's default",
                                 name);
        k = find(only_keys, COUNT(only_keys), name, types);
        if (!k)
            return unknown(hf, name, v);
        DT_TRY(check_only(hf, k, v));
    }
    return DT_OK;
}
