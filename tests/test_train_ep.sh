#!/bin/sh
# SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
# disttrain train with experts and expert parallelism: processes train as one does, use the memory that is predicted, go
# on from and to checkpoints of other layouts, and say how uneven the routing was, which simulate takes.
# Environment: DISTTRAIN (the program), srcdir (the source directory).
set -u
. "${srcdir:=.}/tests/small_job.sh"
near_to() { awk -v a="$1" -v b="$2" "BEGIN { exit !(b > 0 && a - b < $3 * b && b - a < $3 * b) }"; }
about() { near_to "$(field loss)" "$loss" 1e-4; }
experts='model.modules.llm={kind: llm, layers: 2, hidden: 16, ffn: 32, heads: 2, vocab: 264, experts: 4, top_k: 2, expert_ffn: 24, shared_ffn: 16}'
train() { # STEPS DIR PLAN OPTION...: a program's arguments, in "$@"
    train_steps=$1 train_dir=$2 train_plan=$3; shift 3
    expect 0 "" "$DISTTRAIN" train --no-runs --json job.yaml "$experts" run.steps="$train_steps" \
        run.checkpoint.dir="$train_dir" "plan=$train_plan" "$@"
}
ep2='{colocated: true, encoder: {dp: 2}, llm: {dp: 2, ep: 2}, generator: {dp: 2}}'
ep2pp2='{colocated: true, encoder: {dp: 2}, llm: {dp: 2, ep: 2, pp: 2}, generator: {dp: 4}}'
ep2dp4='{colocated: true, encoder: {dp: 2}, llm: {dp: 4, ep: 2}, generator: {dp: 2}}'
tp2='{colocated: true, encoder: {dp: 2}, llm: {tp: 2}, generator: {dp: 2}}'
ep2tp2='{colocated: true, encoder: {dp: 2}, llm: {tp: 2, dp: 2, ep: 2}, generator: {dp: 4}}'
cp2='{colocated: true, encoder: {dp: 2}, llm: {cp: 2}, generator: {dp: 2}}'
cp2ep2='{colocated: true, encoder: {dp: 2}, llm: {cp: 2, ep: 2}, generator: {dp: 2}}'
cp2ep4='{colocated: true, encoder: {dp: 4}, llm: {cp: 2, dp: 2, ep: 4}, generator: {dp: 4}}'
ep4='{encoder: {dp: 2, with: llm}, llm: {dp: 4, ep: 4}, generator: {with: llm}}'

# --- the same training ---
train 4 one '{colocated: true}' run.log_dir=log
loss=$(field loss)
uneven=$(field busiest_rank_ep2)
balance=$(field balance)
check "the summary says how uneven the routing was" \
    'awk "BEGIN { exit !($uneven >= 1 && $uneven <= 2 && $(field busiest_expert) >= $uneven && $balance >= 0.9) }"'
check "so does metrics.jsonl" \
    '[ "$(grep -c "\"experts\":{\"balance\":[0-9.]*,\"busiest_expert\":[0-9.]*,\"busiest_rank_ep2\":" log/metrics.jsonl)" = 4 ]'
train 4 ep2 "$ep2" --ranks 2
check "ep 2, about the same loss" 'about && [ "$(field ranks)" = 2 ]'
check "and as even a routing" 'near_to "$(field balance)" "$balance" 1e-3'
train 4 ep2pp2 "$ep2pp2" --ranks 4
check "ep 2 and pp 2" about
train 4 ep2dp4 "$ep2dp4" --ranks 4
check "ep 2 of dp 4" about
train 4 ep4 "$ep4" --ranks 4 train.zero=0
check "ep 4, zero 0" about
train 4 cp2 "$cp2" --ranks 2
check "cp 2, even routing of samples that are cut" about
check "which is asked for over all of a sample" 'near_to "$(field balance)" "$balance" 1e-3'
train 4 cp2ep2 "$cp2ep2" --ranks 2
check "ep 2 in a lane of cp 2" about
check "with as even a routing of all of a sample" 'near_to "$(field balance)" "$balance" 1e-3'
check "and of a group" 'near_to "$(field busiest_rank_ep2)" "$uneven" 1e-3'
train 4 cp2ep4 "$cp2ep4" --ranks 4
check "ep 4 over dp 2 and cp 2" about
train 4 tp2 "$tp2" --ranks 2
check "tp 2" about
check "every row is counted once" 'near_to "$(field balance)" "$balance" 1e-3'
train 4 ep2tp2 "$ep2tp2" --ranks 4
check "ep 2 and tp 2" about
check "with as even a routing" 'near_to "$(field balance)" "$balance" 1e-3'

# what a search comes out with is trained, on as many processes as it has planned for
grep -v '^plan:' job.yaml >free.yaml
four='cluster={preset: local, gpus_per_node: 4}'
expect 0 "" "$DISTTRAIN" plan --json free.yaml "$experts" search.strategy=disttrain train.microbatch=4 "$four" -o searched.json
check "a search splits the layers with experts by tp" \
    'tr -d " \n" <searched.json | grep -q "\"name\":\"llm\",[^}]*\"tp\":2"'
expect 0 "" "$DISTTRAIN" train --no-runs --json --ranks "$(field gpus_used)" free.yaml "$experts" "$four" \
    train.microbatch=4 plan=searched.json run.steps=4 run.checkpoint.dir=searched
check "and what it plans trains as one process does" about

# --- on from one layout's checkpoint on another ---
train 6 one '{colocated: true}'
loss=$(field loss)
check "one process goes on" 'grep -q "\"resumed\": true" out'
for dir in ep2 ep2pp2 ep2dp4 ep4 cp2ep2 cp2ep4 tp2 ep2tp2; do
    train 6 $dir '{colocated: true}'
    check "one process goes on from $dir" 'about && grep -q "\"resumed\": true" out'
done
train 8 one '{colocated: true}'
loss=$(field loss)
train 8 ep4 "$ep2dp4" --ranks 4
check "ep 2 goes on from one process" 'about && grep -q "\"resumed\": true" out'
train 8 ep2 "$cp2ep4" --ranks 4
check "and ep 4 over dp 2 and cp 2" 'about && grep -q "\"resumed\": true" out'
train 8 tp2 "$ep2tp2" --ranks 4
check "and ep 2 with tp 2" 'about && grep -q "\"resumed\": true" out'

# --- tensors have the names of Hugging Face's models ---
names() { grep -ho '"llm\.[^"]*"' "$1"/step-*/manifest.json | tr -d '"' | grep layers.0 | sort -u; }
names one >out
check "Qwen's names" 'grep -q "^llm.model.layers.0.mlp.gate.weight$" out &&
    grep -q "^llm.model.layers.0.mlp.experts.3.down_proj.weight$" out &&
    grep -q "^llm.model.layers.0.mlp.shared_experts.up_proj.weight$" out'
mixtral='model.modules.llm={kind: llm, layers: 2, hidden: 16, ffn: 24, heads: 2, vocab: 264, experts: 4, top_k: 2, expert_names: mixtral}'
expect 0 "" "$DISTTRAIN" train --no-runs --json job.yaml "$mixtral" run.steps=2 run.checkpoint.dir=mixtral 'plan={colocated: true}'
names mixtral >out
check "Mixtral's names" 'grep -q "^llm.model.layers.0.block_sparse_moe.gate.weight$" out &&
    grep -q "^llm.model.layers.0.block_sparse_moe.experts.3.w2.weight$" out'

# --- biases: of experts dealt to ranks, and whole again ---
biased='model.modules.llm={kind: llm, layers: 2, hidden: 16, ffn: 32, heads: 2, vocab: 264, experts: 4, top_k: 2, expert_ffn: 24, shared_ffn: 16, shared_gate: true, bias: true}'
biased() { # STEPS DIR PLAN OPTION...
    expect 0 "" "$DISTTRAIN" train --no-runs --json job.yaml "$biased" run.steps="$1" run.checkpoint.dir="$2" "plan=$3" ${4:-}
}
biased 4 b1 '{colocated: true}'
loss=$(field loss)
biased 4 b2 "$ep2tp2" "--ranks 4"
check "experts with biases, ep 2 and tp 2" about
biased 6 b1 '{colocated: true}'
loss=$(field loss)
biased 6 b2 '{colocated: true}'
check "one process goes on from these" 'about && grep -q "\"resumed\": true" out'
names b2 >out
check "and the biases have names" 'grep -q "^llm.model.layers.0.mlp.gate.bias$" out &&
    grep -q "^llm.model.layers.0.mlp.experts.3.gate_proj.bias$" out &&
    grep -q "^llm.model.layers.0.mlp.experts.0.down_proj.bias$" out &&
    grep -q "^llm.model.layers.0.mlp.shared_expert.down_proj.bias$" out'

# --- memory: what a rank allocates is what the model predicts, within 10 % ---
wide='model.modules.encoder={kind: encoder, layers: 2, hidden: 128, ffn: 384, heads: 4, patch: 4, channels: 1, positions: 4}'
llm='model.modules.llm={kind: llm, layers: 4, hidden: 192, ffn: 512, heads: 4, vocab: 264, experts: 8, top_k: 2, expert_ffn: 256}'
unet='model.modules.generator={kind: unet, channels: [32, 64], head_dim: 16, res_blocks: 1, in_channels: 1,
    out_channels: 1, context_dim: 64, context_len: 8, latent_scale: 1, resize: 16}'
near() { # N RANKS
    sed -n "/\"memory\": \[/,/\]/p" out | awk -v n="$1" '/"allocated_bytes"/ { a = $2 + 0 }
        /"predicted_bytes"/ { k++; p = $2 + 0; if (a < 1e6 || p < 0.9 * a || p > 1.1 * a) { print p, a; bad = 1 } }
        END { exit bad || k != n }'
}
memory() { # RANKS PRECISION PLAN
    ranks=$1
    train 2 memory "$3" --ranks $1 run.precision=$2 train.microbatch=1 train.seq_len=256 "$wide" "$llm" "$unet"
    check "memory of $ranks ranks" 'near $ranks'
    rm -rf memory
}
memory 1 fp32 '{colocated: true}'
memory 2 auto "$ep2"
memory 4 fp32 "$ep2dp4"
memory 2 fp32 "$tp2"
has_bf16 && memory 4 bf16 "$ep2tp2" # in fp32 10.1 % too much is predicted for one rank (doc/executor.md)
memory 2 fp32 "$cp2ep2"
memory 4 auto "$cp2ep4"

# --- what is refused ---
expect 2 "with ep 2 replicas need a rank each; the plan has 2 GPUs, so start 2 ranks, not 1" \
    "$DISTTRAIN" train --no-runs job.yaml "$experts" run.steps=2 "plan=$ep2"

# --- what training has measured is what simulate takes ---
simulated() { # IMBALANCE: the iteration of ep 2
    "$DISTTRAIN" simulate --no-runs --json job.yaml "$llm" "plan=$ep2" train.seq_len=1024 \
        model.modules.llm.expert_imbalance="$1" 2>/dev/null | sed -n 's/.*"iteration_s": \([^,]*\).*/\1/p' | head -1
}
expect 0 "to simulate it, set the LLM's expert_imbalance: 1." \
    "$DISTTRAIN" train --no-runs job.yaml "$experts" run.steps=2 'plan={colocated: true}'
check "a busier rank takes longer" 'awk "BEGIN { exit !($(simulated "$uneven") > $(simulated 1)) }"'
totals
