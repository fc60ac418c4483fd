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
# between nodes rows go through the NICs
"$DISTTRAIN" simulate --no-runs --json qwen3-30b-a3b-64 plan.llm.ep=16 >ep16.json 2>/dev/null
check "an expert group over two nodes is slower than in one" \
    'awk "BEGIN { exit !($(member iteration_s <ep16.json) > 1.2 * $(member iteration_s <ep8.json)) }"'
expect 2 "plan, module llm: ep 16 does not divide dp\*cp = 8, the ranks that experts are dealt to" \
    "$DISTTRAIN" simulate --no-runs mixtral-8x7b-64 plan.llm.ep=16
expect 2 "expert_imbalance: with expert_capacity every expert has the rows of its capacity; state one of the two" \
    "$DISTTRAIN" simulate --no-runs mixtral-8x7b-64 'model={preset: mixtral-8x7b, llm: {expert_capacity: 1.25, expert_imbalance: 1.5}}'
totals
