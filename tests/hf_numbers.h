/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Made by tests/hf_numbers.py --table: torch 2.15.0+cu132, transformers 5.23.0. */
{"{\"model_type\": \"llama\", \"vocab_size\": 97, \"hidden_size\": 48, \"intermediate_size\""
 ": 80, \"num_hidden_layers\": 3, \"num_attention_heads\": 4, \"num_key_value_heads\": 2"
 ", \"max_position_embeddings\": 128}",
 {5.314418022, 5.445137896, -6.941981028}},
    {"{\"model_type\": \"llama\", \"vocab_size\": 97, \"hidden_size\": 48, \"intermediate_size\""
     ": 80, \"num_hidden_layers\": 3, \"num_attention_heads\": 4, \"num_key_value_heads\": 2"
     ", \"max_position_embeddings\": 128, \"rope_theta\": 500000.0}",
     {5.330479157, 5.473559476, -6.732098229}},
    {"{\"model_type\": \"llama\", \"vocab_size\": 97, \"hidden_size\": 48, \"intermediate_size\""
     ": 80, \"num_hidden_layers\": 3, \"num_attention_heads\": 4, \"num_key_value_heads\": 2"
     ", \"max_position_embeddings\": 128, \"rope_theta\": 500000.0, \"rope_scaling\": {\"rope"
     "_type\": \"llama3\", \"factor\": 8.0, \"low_freq_factor\": 1.0, \"high_freq_factor\": 4.0"
     ", \"original_max_position_embeddings\": 64}}",
     {5.306207173, 5.442637941, -6.579525054}},
    {"{\"model_type\": \"llama\", \"vocab_size\": 97, \"hidden_size\": 48, \"intermediate_size\""
     ": 80, \"num_hidden_layers\": 3, \"num_attention_heads\": 4, \"num_key_value_heads\": 2"
     ", \"max_position_embeddings\": 128, \"rope_scaling\": {\"rope_type\": \"linear\", \"facto"
     "r\": 4.0}}",
     {5.29653591, 5.444652298, -6.530896844}},
    {"{\"model_type\": \"llama\", \"vocab_size\": 97, \"hidden_size\": 48, \"intermediate_size\""
     ": 80, \"num_hidden_layers\": 3, \"num_attention_heads\": 4, \"num_key_value_heads\": 2"
     ", \"max_position_embeddings\": 128, \"rms_norm_eps\": 0.01, \"hidden_act\": \"gelu\"}",
     {5.449474137, 5.567725135, -7.480926331}},
    {"{\"model_type\": \"qwen2\", \"vocab_size\": 97, \"hidden_size\": 48, \"intermediate_size\""
     ": 80, \"num_hidden_layers\": 3, \"num_attention_heads\": 4, \"num_key_value_heads\": 2"
     ", \"max_position_embeddings\": 128}",
     {5.362155637, 5.519931878, -6.951243445}},
    {"{\"model_type\": \"qwen3\", \"vocab_size\": 97, \"hidden_size\": 48, \"intermediate_size\""
     ": 80, \"num_hidden_layers\": 3, \"num_attention_heads\": 4, \"num_key_value_heads\": 2"
     ", \"max_position_embeddings\": 128, \"head_dim\": 16, \"rope_theta\": 1000000.0, \"tie_"
     "word_embeddings\": true}",
     {5.419632582, 5.526994673, -6.678532192}},
    {"{\"model_type\": \"gpt2\", \"vocab_size\": 97, \"n_positions\": 32, \"n_embd\": 48, \"n_lay"
     "er\": 3, \"n_head\": 3}",
     {5.360827149, 5.505108863, -7.804265661}},
    {"{\"model_type\": \"gpt2\", \"vocab_size\": 97, \"n_positions\": 32, \"n_embd\": 48, \"n_lay"
     "er\": 3, \"n_head\": 3, \"scale_attn_weights\": false, \"scale_attn_by_inverse_layer_i"
     "dx\": true, \"layer_norm_epsilon\": 0.01}",
     {5.32055942, 5.466705875, -8.035758823}},
    {"{\"model_type\": \"siglip_vision_model\", \"hidden_size\": 48, \"intermediate_size\": 80"
     ", \"num_hidden_layers\": 2, \"num_attention_heads\": 3, \"image_size\": 16, \"patch_siz"
     "e\": 4, \"vision_use_head\": false}",
     {0.006617768953, 0.9908815187, -6.25016139}},
    {"{\"model_type\": \"siglip_vision_model\", \"hidden_size\": 48, \"intermediate_size\": 80"
     ", \"num_hidden_layers\": 2, \"num_attention_heads\": 3, \"image_size\": 16, \"patch_siz"
     "e\": 4, \"vision_use_head\": false, \"layer_norm_eps\": 0.01, \"hidden_act\": \"quick_ge"
     "lu\"}",
     {0.006725066941, 0.9896469906, -6.047263437}},
    {"{\"_class_name\": \"UNet2DConditionModel\", \"sample_size\": 16, \"in_channels\": 3, \"ou"
     "t_channels\": 3, \"block_out_channels\": [32, 64], \"layers_per_block\": 1, \"cross_at"
     "tention_dim\": 24, \"attention_head_dim\": 2, \"norm_num_groups\": 8, \"down_block_typ"
     "es\": [\"CrossAttnDownBlock2D\", \"DownBlock2D\"], \"up_block_types\": [\"UpBlock2D\", \"C"
     "rossAttnUpBlock2D\"]}",
     {-0.2551602401, 0.8311872887, -7.972760346}},
    {"{\"_class_name\": \"UNet2DConditionModel\", \"sample_size\": 16, \"in_channels\": 3, \"ou"
     "t_channels\": 3, \"block_out_channels\": [32, 64], \"layers_per_block\": 1, \"cross_at"
     "tention_dim\": 24, \"attention_head_dim\": 2, \"norm_num_groups\": 16, \"down_block_ty"
     "pes\": [\"CrossAttnDownBlock2D\", \"DownBlock2D\"], \"up_block_types\": [\"UpBlock2D\", \""
     "CrossAttnUpBlock2D\"], \"norm_eps\": 0.01, \"flip_sin_to_cos\": false, \"freq_shift\": "
     "1}",
     {-0.1826762926, 0.7461536054, -6.23458775}},
