#!/bin/sh
# SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
# Types of Hugging Face configs that disttrain-job(5) calls planned are refused by disttrain train, each with its reason;
# those that it says can be run are not.  Every type that is read is one or the other here.
# Environment: DISTTRAIN (the program), srcdir (the source directory).
set -u
. "${srcdir:=.}/tests/small_job.sh"

llm='"num_hidden_layers": 1, "hidden_size": 16, "intermediate_size": 32, "num_attention_heads": 2, "num_key_value_heads": 2, "vocab_size": 264'
eye='"num_hidden_layers": 1, "hidden_size": 16, "intermediate_size": 32, "num_attention_heads": 2, "image_size": 8, "patch_size": 4'
moe='"num_experts_per_tok": 1, "moe_intermediate_size": 8'
mla='"n_routed_experts": 2, "kv_lora_rank": 8, "qk_nope_head_dim": 4, "qk_rope_head_dim": 4, "v_head_dim": 8'
qwen='"depth": 1, "num_heads": 2, "patch_size": 4'

# VERDICT TYPE PART KEYS: what train says, or "runs"
cat >types <<END
runs|llama|text|$llm
runs|mistral|text|$llm, "sliding_window": null
runs|qwen2|text|$llm
runs|qwen3|text|$llm
runs|mixtral|text|$llm, "num_local_experts": 2
runs|qwen2_moe|text|$llm, $moe, "num_experts": 2, "shared_expert_intermediate_size": 8
runs|qwen3_moe|text|$llm, $moe, "num_experts": 2
runs|deepseek|text|$llm, $moe, "n_routed_experts": 2
runs|gpt2|text|"n_layer": 1, "n_embd": 16, "n_head": 2, "vocab_size": 264
runs|siglip|vision|"vision_config": {$eye}
runs|siglip_vision_model|vision|$eye
runs|qwen2_vl_vision|vision|$qwen, "embed_dim": 16
runs|qwen2_5_vl_vision|vision|$qwen, "hidden_size": 16, "intermediate_size": 32, "window_size": 16
attention to a window|mistral|text|$llm
multi-head latent attention|deepseek_v2|text|$llm, $moe, $mla
cannot be run|deepseek_v3|text|$llm, $moe, $mla
all heads' queries|olmoe|text|$llm, "num_experts": 2, "num_experts_per_tok": 1
other norms|olmo|text|$llm
OLMo 2|olmo2|text|$llm
Gemma|gemma|text|$llm, "head_dim": 8
Gemma|gemma2|text|$llm, "head_dim": 8
Gemma|gemma3_text|text|$llm, "head_dim": 8
Phi-3's files|phi3|text|$llm
InternLM2's order|internlm2|text|$llm, "bias": false
GPT-NeoX|gpt_neox|text|"num_hidden_layers": 1, "hidden_size": 16, "intermediate_size": 32, "num_attention_heads": 2, "vocab_size": 264
Falcon|falcon|text|"num_hidden_layers": 1, "hidden_size": 16, "num_attention_heads": 2, "vocab_size": 264
class token|vit|vision|$eye
class token|clip|vision|"vision_config": {$eye}
class token|clip_vision_model|vision|$eye
cannot be run|dinov2|vision|"num_hidden_layers": 1, "hidden_size": 16, "num_attention_heads": 2, "image_size": 8, "patch_size": 4
cannot be run|intern_vit_6b|vision|$eye
END
pairs="llava internvl_chat paligemma gemma3 qwen2_vl qwen2_5_vl" # of two of these

can_be_run() { # TYPE: does the page say so
    sed -n '/^Of these llama/,/can be run/p' "$srcdir/man/disttrain-job.5" | grep -qw "$1"
}
while IFS='|' read -r verdict type part keys; do
    echo "{\"model_type\": \"$type\", $keys}" >config.json
    own_eye='encoder: {kind: encoder, layers: 1, hidden: 16, ffn: 32, heads: 2, patch: 4, positions: 4}'
    own_llm='llm: {kind: llm, layers: 1, hidden: 16, ffn: 32, heads: 2, vocab: 264}'
    [ "$part" = text ] && own_llm='llm: {hf: config.json}' || own_eye='encoder: {hf: config.json}'
    set -- "$DISTTRAIN" train --no-runs job.yaml "model={modules: {$own_eye, $own_llm}}" 'plan={colocated: true}' run.steps=1
    if [ "$verdict" = runs ]; then
        expect 0 "" "$@"
        check "$type is among those that can be run" 'can_be_run "${type%_vision*}"'
    else
        expect 2 "$verdict.*only planned" "$@"
        check "$type is not" '[ $type = mistral ] || ! can_be_run "${type%_vision*}"' # with a window
    fi
done <types

# an LLM whose patches have three positions, whatever its config says of them
echo "{\"model_type\": \"qwen2_vl\", $llm, \"vision_config\": {$qwen, \"embed_dim\": 16}}" >config.json
expect 2 "multimodal rotary positions cannot be run yet, only planned" "$DISTTRAIN" train --no-runs job.yaml \
    'model={hf: config.json}' 'plan={colocated: true}' run.steps=1

# every type that is read is in the list above
echo '{"model_type": "unheard"}' >config.json
expect 2 "supported: llama" "$DISTTRAIN" plan job.yaml 'model={modules: {llm: {hf: config.json}}}'
for type in $(sed -n 's/.*(supported: \(.*\)).*/\1/p' err | tr -d ,); do
    check "$type is looked at" 'cut -d "|" -f 2 types | grep -qx "$type" || case " $pairs UNet2DConditionModel " in *" $type "*) ;; *) false ;; esac'
done
totals
