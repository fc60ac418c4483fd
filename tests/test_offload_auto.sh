#!/bin/sh
# SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
#
# train.offload: auto, and what a search may be told to offload: what is found is what is found with it stated, plan files keep it,
# what no search makes is refused where it is written, and memory that is tight makes no search long.
# Environment: DISTTRAIN (the program), srcdir (the source directory).
set -u
. "${srcdir:=.}/tests/shell.sh"
timeline() { sed -n 's/.*"timeline_s": \([0-9.]*\).*/\1/p' "$1" | head -1; }
offload() { sed -n 's/.*"offload": "\([a-z]*\)".*/\1/p' "$1" | tr '\n' ' '; }

# plan FILE ARGUMENT...: the plan as JSON
plan() {
    file=$1; shift
    expect 0 "" "$DISTTRAIN" plan --json "$@"
    mv out "$file"
}
# no_slower A B: the first takes no longer, but for rounding
no_slower() { check "$(timeline "$1") s of $1, $(timeline "$2") of $2" "awk 'BEGIN { exit !($(timeline "$1") <= $(timeline "$2") * 1.000001) }'"; }

# nothing fits without: what is found is what stating it gives, and what the remedy names
llama="llama-70b-96 cluster.nodes=2 train.zero=1 cluster.memory=80GB"
expect 3 "train.offload=optimizer" "$DISTTRAIN" plan $llama
plan auto.json $llama train.offload=auto
plan stated.json $llama train.offload=optimizer
check "the LLM's states are offloaded" '[ "$(offload auto.json | cut -d" " -f1)" = optimizer ]'
check "$(timeline auto.json) s by auto, $(timeline stated.json) stated" '[ "$(timeline auto.json)" = "$(timeline stated.json)" ]'
expect 0 "" "$DISTTRAIN" plan $llama train.offload=auto -o plan.json
check "plan.json has it" 'grep -q "\"offload\": \"optimizer\"" plan.json'
"$DISTTRAIN" simulate $llama train.offload=auto --json >searched.json 2>err
"$DISTTRAIN" simulate $llama --plan plan.json --json >planned.json 2>err
check "a simulation of the file is that of the search" \
    '[ -n "$(timeline searched.json)" ] || grep -q iteration_s searched.json'
check "to the digit" '[ "$(grep -m1 iteration_s searched.json)" = "$(grep -m1 iteration_s planned.json)" ]'

# where something fits: never slower, and faster where memory is tight
tight="mimo-14b-72 cluster.nodes=1 train.global_batch=16 search.strategy=colocated cluster.memory=36GiB"
plan none.json $tight
plan auto.json $tight train.offload=auto
no_slower auto.json none.json
check "something is offloaded: $(offload auto.json)" 'offload auto.json | grep -q optimizer'
plan none.json mllm-9b-96 search.effort=quick
plan auto.json mllm-9b-96 search.effort=quick train.offload=auto
no_slower auto.json none.json

# parameters, where a strategy has phases
mimo="mimo-14b-72 cluster.nodes=1 train.global_batch=16"
plan leaves.json $mimo search.strategy=colocated 'train.offload={encoder: parameters}'
check "the encoder's parameters leave: $(offload leaves.json)" 'offload leaves.json | grep -q "^parameters"'
expect 0 "OFFLOAD\|away\|parameters" "$DISTTRAIN" plan $mimo search.strategy=colocated 'train.offload={encoder: parameters}' --explain
expect 2 "strategy disttrain lets no encoder run in phases" "$DISTTRAIN" plan $mimo -s disttrain 'train.offload={encoder: parameters}'
expect 2 "offload parameters of llm: parameters that nothing uses for a time are an encoder's" \
    "$DISTTRAIN" plan $mimo search.strategy=colocated train.offload=parameters
expect 2 'offload: unknown value "automatic"' "$DISTTRAIN" plan $mimo train.offload=automatic
cat >job.yaml <<'END'
model: llama-70b
cluster: {device: SomeGPU, nodes: 2, gpus_per_node: 8, memory: 80GB, nvlink_bandwidth: 400GB/s, nics_per_node: 4, nic_bandwidth: 50GB/s, peak_flops: 312e12,
  hbm_bandwidth: 2TB/s}
train: {global_batch: 16, seq_len: 4096, offload: auto}
search: {allow_analytical: true}
samples: text
profile: a800
END
expect 2 "job.yaml:4:.*offload auto: the cluster does not say how fast" "$DISTTRAIN" plan job.yaml
sed -i 's/, offload: auto}/, offload: {\n  llm: parameters}}/' job.yaml
expect 2 "job.yaml:5:.*offload parameters of llm" "$DISTTRAIN" plan job.yaml

# why: what the others would take
expect 0 "offload" "$DISTTRAIN" plan $llama train.offload=auto --explain
check "the LLM's alternatives are named" 'grep -A2 "offload.*optimizer" out | grep -q none'

# chunks of a deep LLM on few GPUs whose memory is tight: looked through for seconds of CPU time at most, not for minutes
(ulimit -t 60; "$DISTTRAIN" plan $mimo search.strategy=colocated >out 2>err)
check "a colocated plan of 8 GPUs within a minute of CPU time" '[ $? -eq 0 ] && grep -q "layouts costed" out'
totals
