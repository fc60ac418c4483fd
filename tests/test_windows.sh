#!/bin/sh
# SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
#
# ZeRO 2 and 3 exchange at every microbatch, so modules have to work in step: with windows of several slots they do not. However
# somebody asks for both, by keys of the plan, of the policy or by a plan file, it is refused in the same words; searches propose
# neither. Generators share what one slot draws, also where they have more replicas than the batch has samples.
# Environment: DISTTRAIN (the program), srcdir (the source directory).
set -u
. "${srcdir:=.}/tests/shell.sh"
job="mimo-14b-72 cluster.nodes=1 train.global_batch=8 train.schedule=1f1b train.microbatch=1 train.recompute=full"
words='exchanges gradients at each microbatch, but a microbatch of encoder has the items of [24] slots (window), so modules do not work in step; use zero 0 or 1, or window 1 of encoder'

# --- keys ---
layout() { echo "plan={encoder: {dp: 8, with: llm, window: $1${2:-}}, llm: {tp: 4, dp: 2${3:-}}}"; }
for zero in 2 3; do
    expect 2 "module encoder: zero $zero $words" "$DISTTRAIN" simulate --no-runs $job -s manual "$(layout 2)" train.zero=$zero
    expect 2 "module llm: zero $zero $words" "$DISTTRAIN" plan $job -s manual "$(layout all)" "train.zero={encoder: 1, llm: $zero}"
    expect 2 "module llm: zero $zero $words" "$DISTTRAIN" plan $job -s manual "$(layout 2 '' ", zero: $zero")"
    expect 2 "module encoder: zero $zero $words" "$DISTTRAIN" plan $job -s manual "$(layout 2 ", zero: $zero")"
    expect 0 "" "$DISTTRAIN" plan $job -s manual "$(layout 1)" train.zero=$zero
done
# --- a file ---
expect 0 "" "$DISTTRAIN" plan -o good.json $job -s manual "$(layout 2)" train.zero=1
expect 0 "" "$DISTTRAIN" simulate --no-runs -p good.json $job
sed 's/"zero": 1/"zero": 2/' good.json >bad.json
check "bad.json is another" '! cmp -s good.json bad.json'
expect 2 "bad.json: plan, module encoder: zero 2 $words" "$DISTTRAIN" simulate --no-runs -p bad.json $job
expect 2 "module llm: zero 3 $words" "$DISTTRAIN" simulate --no-runs -p good.json $job plan.llm.zero=3
# --- searches: with ZeRO 2 or 3 no microbatch has the items of several slots ---
windows() { # slots of a window of each plan of out that has several, as "slots window"
    awk '/"name": "llm"/ { llm = 1 } /"name": "encoder"/ { llm = 0; window = "1" }
        /"window":/ { gsub(/[",]/, ""); window = $2 }
        /"dp":/ { gsub(/,/, ""); if (llm) { slots = 8 / $2; if (window != "1" && slots > 1) print slots, window } }' out
}
for strategy in colocated best; do
    expect 0 "" "$DISTTRAIN" plan --json $job -s $strategy train.zero=1
    check "$strategy: windows of several slots without ZeRO 2" '[ -n "$(windows)" ]'
    for zero in 2 3; do
        expect 0 "" "$DISTTRAIN" plan --json $job -s $strategy train.zero=$zero
        check "$strategy, zero $zero: $(windows)" '[ -z "$(windows)" ] && grep -q "\"zero\": $zero" out'
    done
done

# --- generators ---
job="mllm-9b-96 train.global_batch=8 train.microbatch=1 -s manual"
drawn() { echo "plan={llm: {tp: 8, dp: 4}, encoder: {dp: 4}, generator: {dp: $1, with: llm${2:-}}}"; }
expect 0 "with llm: tp1 pp1 dp32 = 32" "$DISTTRAIN" plan $job "$(drawn 32)"
expect 2 "a generator's replicas share the items of one slot at a time: window 1" "$DISTTRAIN" plan $job "$(drawn 8 ', window: 2')"
expect 2 "a generator's replicas share the items of one slot at a time: window 1" "$DISTTRAIN" plan $job "$(drawn 8 ', window: all')"
expect 0 '"window": 1' "$DISTTRAIN" plan --json $job "$(drawn 8 ', window: 1')"
totals
