#!/bin/sh
# SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
# disttrain train with optimizer states in the host's memory (train.offload): the bits of checkpoints are those of training without,
# each goes on from the other's, memory is as predicted; plan files have it, and what would fit names it.
# Environment: DISTTRAIN (the program), srcdir (the source directory).
set -u
. "${srcdir:=.}/tests/small_job.sh"
train() { # STEPS DIR OPTION...
    train_steps=$1 train_dir=$2; shift 2
    expect 0 "" "$DISTTRAIN" train --no-runs --json job.yaml run.steps="$train_steps" run.checkpoint.dir="$train_dir" \
        run.checkpoint.interval=2 run.checkpoint.keep=8 "$@"
}
latest() { ls -d "$1"/step-* | sort | tail -n 1; }
bits() { sums "$(latest "$1")" >"bits.$1"; [ -s "bits.$1" ]; }
same() { bits "$1" && bits "$2" && cmp -s "bits.$1" "bits.$2"; }

alone='plan={colocated: true}'
replicas='plan={colocated: true, encoder: {dp: 2}, llm: {dp: 2}, generator: {dp: 2}}'
for way in alone replicas; do
    for precision in fp32 $(has_bf16 && echo bf16); do
        eval "plan=\$$way"
        ranks=1; [ $way = alone ] || ranks=2
        rm -rf without with
        train 4 without "$plan" --ranks $ranks run.precision=$precision
        train 4 with "$plan" --ranks $ranks run.precision=$precision train.offload=optimizer
        check "$way, $precision: the bits of a checkpoint" 'same without with'
        train 6 without "$plan" --ranks $ranks run.precision=$precision train.offload=optimizer
        check "$way, $precision: goes on with it from a checkpoint without" 'grep -q "\"resumed\": true" out'
        train 6 with "$plan" --ranks $ranks run.precision=$precision
        check "$way, $precision: goes on without it from a checkpoint with" 'grep -q "\"resumed\": true" out'
        check "$way, $precision: the same bits again" 'same without with'
    done
done
rm -rf without with
train 4 without "$replicas" --ranks 2
train 4 with "$replicas" --ranks 2 'train.offload={llm: optimizer}'
check "of the LLM alone" 'same without with'
rm -rf without with
train 4 without "$alone" 'train.frozen=[encoder]'
train 4 with "$alone" 'train.frozen=[encoder]' train.offload=optimizer
check "of a frozen module its projector's" 'same without with'

# a job without a plan: all modules on one device, and what train: says of them
sed '/^plan:/d; s/, strategy: manual//' job.yaml >unplanned.yaml
check "the job states no plan" '! grep -q "plan:\|manual" unplanned.yaml'
train_unplanned() { expect 0 "$1" "$DISTTRAIN" train --no-runs unplanned.yaml run.steps=2 run.checkpoint.dir="$2" train.offload="$3"; }
rm -rf without with
train_unplanned "" without none
check "nothing is offloaded unless it is stated" '! grep -q "of its host, offloaded" out'
train_unplanned "of its host, offloaded (predicted" with optimizer
check "without a plan: the bits of a checkpoint" 'same without with'
# and one that is not used, as the strategy is another
expect 0 "warning: plan: not used with strategy disttrain; search.strategy: manual makes it count" "$DISTTRAIN" train --no-runs unplanned.yaml run.steps=2 \
    run.checkpoint.dir=ignored "plan={colocated: true, llm: {frozen: true}}"
check "a plan that is not used: the bits of a checkpoint" 'same without ignored'
expect 2 "offload" "$DISTTRAIN" train --no-runs unplanned.yaml run.steps=2 'train.offload={encoder: parameters}'

# --- parameters of a guest, between phases ---
guest() { echo "plan={encoder: {dp: 2, with: llm, window: all, offload: $1}, llm: {pp: 2}, generator: {}}"; }
rm -rf without with
train 2 without "$(guest none)" --ranks 3
train 2 with "$(guest all)" --ranks 3
check "parameters and states: the bits of a checkpoint" 'same without with'
train 4 with "$(guest parameters)" --ranks 3
check "goes on with the parameters alone" 'grep -q "\"resumed\": true" out'
train 4 without "$(guest none)" --ranks 3
check "the same bits again" 'same without with'
expect 0 " OFFLOAD " "$DISTTRAIN" simulate job.yaml "$(guest parameters)" --print-program --lane 0
check "and back" 'grep -q "RELOAD " out'
expect 2 "use window: all, or phases: true" "$DISTTRAIN" simulate job.yaml \
    'plan={encoder: {dp: 2, with: llm, offload: parameters}, llm: {pp: 2}, generator: {}}'
expect 2 "parameters that nothing uses for a time are an encoder.s" "$DISTTRAIN" plan llama-70b-96 train.offload=parameters

# --- memory: as predicted within 10 %, on the device and on the host ---
wide='model.modules.encoder={kind: encoder, layers: 2, hidden: 128, ffn: 384, heads: 4, patch: 4, channels: 1, positions: 4}'
llm='model.modules.llm={kind: llm, layers: 4, hidden: 192, ffn: 512, heads: 4, vocab: 264}'
near() { # RANKS
    sed -n "/\"memory\": \[/,/\]/p" out | awk -v n="$1" '
        function hold(p, a) { k++; if (a < 1e6 || p < 0.9 * a || p > 1.1 * a) { print p, a; bad = 1 } }
        /"allocated_bytes"/ { a = $2 + 0 } /"predicted_bytes"/ { hold($2 + 0, a) }
        /"allocated_host_bytes"/ { h = $2 + 0 } /"predicted_host_bytes"/ { hold($2 + 0, h) }
        END { exit bad || k != 2 * n }'
}
for ranks in 1 2; do
    plan=$alone; [ $ranks = 1 ] || plan=$replicas
    train 2 memory "$plan" --ranks $ranks "$wide" "$llm" train.offload=optimizer
    check "memory of $ranks rank(s)" "near $ranks"
    rm -rf memory
done
expect 0 "of its host, offloaded (predicted" "$DISTTRAIN" train --no-runs job.yaml run.steps=2 "$alone" train.offload=optimizer

# --- plans ---
expect 0 "" "$DISTTRAIN" plan job.yaml "$replicas" 'train.offload={llm: optimizer}' -o plan.json
check "plan.json has it where it is" '[ "$(grep -c "\"offload\": \"optimizer\"" plan.json)" = 1 ]'
expect 0 "" "$DISTTRAIN" plan job.yaml "$replicas" -o none.json
check "and not where it is not" '! grep -q offload none.json'
expect 0 "train.offload is optimizer, not encoder none, llm optimizer, generator none" \
    "$DISTTRAIN" simulate job.yaml --plan plan.json train.offload=optimizer
expect 0 "plan.encoder.offload is optimizer, not none" \
    "$DISTTRAIN" simulate job.yaml --plan plan.json plan.encoder.offload=optimizer
expect 2 'offload: unknown value "optimiser"; did you mean "optimizer"?' "$DISTTRAIN" simulate job.yaml train.offload=optimiser
big='llama-70b-96 cluster.nodes=2 cluster.memory=80GB train.zero=1'
expect 3 "train.offload=optimizer" "$DISTTRAIN" plan $big
expect 0 "" "$DISTTRAIN" plan $big 'train.offload={llm: optimizer}' --explain
check "hosts of which it is not known what they have" 'grep -q "memory of hosts.* of a node; what a node has is not known" out'
expect 0 "of a node, which has" "$DISTTRAIN" simulate $big 'train.offload={llm: optimizer}' cluster.host_memory=1TB
expect 3 "hosts: .* plans offload more than fits, at least .* GiB of a node (385.5 GiB)" "$DISTTRAIN" plan $big 'train.offload={llm: optimizer}' cluster.host_memory=413.9GB
expect 3 "hosts: every plan offloads at least 385.4 GiB of a node (279.4 GiB)" "$DISTTRAIN" plan $big 'train.offload={llm: optimizer}' cluster.host_memory=300GB
check "which is not promised then" '! grep -q "train.offload" out'
# 12 bytes of 7.2e9 parameters on two nodes
for class in homogeneous colocated; do
    expect 3 "hosts: every plan offloads at least [3-9][0-9.]* GiB of a node (1.0 GiB)" timeout 60 "$DISTTRAIN" plan mllm-9b-96 \
        cluster.nodes=2 search.strategy=$class train.offload=optimizer cluster.host_memory=1GiB
done
check "nor are microbatches said to be too large" '! grep -q "assigned:" err'
expect 0 "" "$DISTTRAIN" plan mllm-9b-96 cluster.nodes=2 search.strategy=homogeneous train.offload=optimizer cluster.host_memory=46.5GiB
# timelines that points of a sweep share are of the same host
for key in 'host_bandwidth=5GB/s,50GB/s' 'host_memory_bandwidth=50GB/s,500GB/s'; do
    expect 0 "" "$DISTTRAIN" whatif gpt3-175b-1024 train.offload=optimizer --vary "cluster.$key" --json
    check "cluster.${key%%=*} changes the time of the step" \
        '[ "$(grep -o "\"iteration_s\": [0-9.]*" out | sort -u | wc -l)" -ge 2 ]'
done
expect 2 "state cluster.host_bandwidth" "$DISTTRAIN" simulate job.yaml cluster.device=other cluster.cores_per_node=0 run.precision=bf16 \
    'plan={colocated: true}' train.offload=optimizer
totals
