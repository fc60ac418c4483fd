#!/bin/sh
# SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
#
# Shipped jobs with experts: degrees of expert parallelism change memory and time, not the model's work, and what routing
# does is told as an assumption.
# Environment: DISTTRAIN (the program), srcdir (the source directory).
set -u
. "${srcdir:=.}/tests/shell.sh"
member() { tr ',' '\n' | sed -n "s/.*\"$1\": *\([0-9.e+]*\).*/\1/p" | head -1; } # NAME

for job in mixtral-8x7b-64 qwen3-30b-a3b-64; do
    flops= bytes=
    for ep in 2 4 8; do
        expect 0 '"assumed": "llm.expert_imbalance: 1 (the busiest rank' \
            "$DISTTRAIN" simulate --no-runs --json "$job" plan.llm.ep=$ep
        "$DISTTRAIN" simulate --no-runs --json "$job" plan.llm.ep=$ep >"ep$ep.json" 2>/dev/null
        f=$(member model_flops <"ep$ep.json") b=$(member memory_bytes_max <"ep$ep.json")
        check "$job, ep $ep: the model's work is ${flops:-$f}" '[ "$f" = "${flops:-$f}" ]'
        [ -z "$bytes" ] || check "$job, ep $ep: $b bytes are less than $bytes" '[ "$b" -lt "$bytes" ]'
        flops=$f bytes=$b
    done
    # a crowded rank costs time, at one and the same MFU's work
    "$DISTTRAIN" simulate --no-runs --json "$job" plan.llm.ep=8 model.llm.expert_imbalance=1.5 >crowded.json 2>/dev/null
    check "$job: imbalance costs time" 'awk "BEGIN { exit !($(member iteration_s <crowded.json) > 1.05 * $(member iteration_s <ep8.json)) }"'
    check "$job: imbalance is no work" '[ "$(member model_flops <crowded.json)" = "$flops" ]'
    check "$job: the assumption is what was stated" 'grep -q "llm.expert_imbalance: 1.5 " crowded.json'
done
# rows that pad a capacity are run, but no work of the model: 22.5 of 27.6 GFLOP of a token are experts'; so are the scores that attention makes again
"$DISTTRAIN" simulate --no-runs --json mixtral-8x7b-64 model.llm.expert_capacity=1.5 >padded.json 2>/dev/null
check "capacity counts in HFU: $(field hfu padded.json), MFU $(field mfu padded.json)" \
    'awk "BEGIN { x = $(field hfu padded.json) / $(field mfu padded.json); exit !(x > 1.41 && x < 1.43) }"'
# the search finds for a shipped job with experts what its stated plan does, or better
for job in mixtral-8x7b-64 qwen3-30b-a3b-64; do
    "$DISTTRAIN" simulate --no-runs --json $job >stated.json 2>/dev/null
    expect 0 '"strategy": "disttrain"' "$DISTTRAIN" simulate --no-runs --json -s disttrain $job
    check "$job: $(member iteration_s <out) s of the search, $(member iteration_s <stated.json) s of the plan" \
        'awk "BEGIN { exit !($(member iteration_s <out) <= 1.001 * $(member iteration_s <stated.json)) }"'
    check "$job: the same work" '[ "$(member model_flops <out)" = "$(member model_flops <stated.json)" ]'
done
# the search deals experts too, and more to choose from is never worse
cat >search.yaml <<J
model: {preset: qwen3-30b-a3b, llm: {layers: 12}}
cluster: {preset: h100, nodes: 2}
samples: text
profile: h100
train: {global_batch: 64, seq_len: 4096}
J
for most in 1 2 0; do
    expect 0 "" "$DISTTRAIN" plan --json search.yaml search.max_ep=$most
    member timeline_s <out >"best$most"
    grep -o '"ep": *[0-9]*' out | head -1 | tr -dc 0-9 >"ep$most"
done
check "without expert parallelism there is none" '[ "$(cat ep1)" -eq 1 ]'
check "at most two is at most two" '[ "$(cat ep2)" -le 2 ]'
check "ep up to 2 ($(cat best2) s) is no worse than none ($(cat best1) s)" 'awk "BEGIN { exit !($(cat best2) <= $(cat best1)) }"'
check "any ep ($(cat best0) s, ep $(cat ep0)) is no worse than that" 'awk "BEGIN { exit !($(cat best0) <= $(cat best2)) }"'
# on nodes of six GPUs groups of three and six lie in one node, those of four do not
cat >six.yaml <<J
model: {preset: qwen3-30b-a3b, llm: {layers: 24, experts: 96}}
cluster: {preset: h100, nodes: 2, gpus_per_node: 6}
samples: text
profile: h100
train: {global_batch: 48, seq_len: 4096, zero: 1}
J
for most in 2 4 0; do
    expect 0 "" "$DISTTRAIN" plan --json six.yaml search.max_ep=$most
    member timeline_s <out >"best$most"
    grep -o '"ep": *[0-9]*' out | head -1 | tr -dc 0-9 >"ep$most"
done
check "groups of at most four are of three, not of $(cat ep4)" '[ "$(cat ep4)" -eq 3 ]'
check "groups of any size are of six, not of $(cat ep0)" '[ "$(cat ep0)" -eq 6 ]'
check "more to choose from is faster: $(cat best2), $(cat best4), $(cat best0) s" \
    'awk "BEGIN { exit !($(cat best4) < $(cat best2) && $(cat best0) < $(cat best4)) }"'
# between nodes rows go through the NICs
"$DISTTRAIN" simulate --no-runs --json qwen3-30b-a3b-64 plan.llm.ep=16 >ep16.json 2>/dev/null
check "an expert group over two nodes is slower than in one" \
    'awk "BEGIN { exit !($(member iteration_s <ep16.json) > 1.2 * $(member iteration_s <ep8.json)) }"'
expect 2 "plan, module llm: ep 16 does not divide dp\*cp = 8, the ranks that experts are dealt to" \
    "$DISTTRAIN" simulate --no-runs mixtral-8x7b-64 plan.llm.ep=16
expect 2 "expert_imbalance: with expert_capacity every expert has the rows of its capacity; state one of the two" \
    "$DISTTRAIN" simulate --no-runs mixtral-8x7b-64 'model={preset: mixtral-8x7b, llm: {expert_capacity: 1.25, expert_imbalance: 1.5}}'
totals
