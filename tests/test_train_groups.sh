#!/bin/sh
# SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
# disttrain train with optimizer states sharded in groups of replicas (plan.MODULE.zero_group): processes train as one
# does, use the memory that is predicted, and go on from and to checkpoints of other groups.
# Environment: DISTTRAIN (the program), srcdir (the source directory).
set -u
. "${srcdir:=.}/tests/small_job.sh"
train() { # STEPS DIR PLAN OPTION...
    train_steps=$1 train_dir=$2 train_plan=$3; shift 3
    expect 0 "" "$DISTTRAIN" train --no-runs --json job.yaml run.steps="$train_steps" \
        run.checkpoint.dir="$train_dir" "plan=$train_plan" "$@"
}
plan() { # GROUP of all modules, each with four replicas
    echo "{colocated: true, encoder: {dp: 4, zero_group: $1}, llm: {dp: 4, zero_group: $1}, generator: {dp: 4, zero_group: $1}}"
}

train 4 one '{colocated: true}'
loss=$(field loss)
for group in 1 2 4; do
    train 4 of$group "$(plan $group)" --ranks 4
    check "groups of $group, about the same loss" 'about loss "$loss" && [ "$(field ranks)" = 4 ]'
done
train 6 one '{colocated: true}'
loss=$(field loss)
train 6 of2 '{colocated: true}'
check "one process goes on from groups of 2" 'about loss "$loss" && grep -q "\"resumed\": true" out'
train 6 of4 "$(plan 2)" --ranks 4
check "groups of 2 go on from groups of 4" 'about loss "$loss" && grep -q "\"resumed\": true" out'
train 6 of1 "$(plan 4)" --ranks 2
check "two ranks go on from groups of 1" 'about loss "$loss" && grep -q "\"resumed\": true" out'

# --- memory: as predicted within 10 %, and the less the larger the group ---
wide='model.modules.encoder={kind: encoder, layers: 2, hidden: 128, ffn: 384, heads: 4, patch: 4, channels: 1, positions: 4}'
llm='model.modules.llm={kind: llm, layers: 4, hidden: 192, ffn: 512, heads: 4, vocab: 264}'
near() { # N RANKS
    sed -n "/\"memory\": \[/,/\]/p" out | awk -v n="$1" '/"allocated_bytes"/ { a = $2 + 0; if (a > most) most = a }
        /"predicted_bytes"/ { k++; p = $2 + 0; if (a < 1e6 || p < 0.9 * a || p > 1.1 * a) { print p, a; bad = 1 } }
        END { print most >"most"; exit bad || k != n }'
}
last=0
for group in 4 2 1; do
    train 2 memory "$(plan $group)" --ranks 4 "$wide" "$llm"
    check "memory of four ranks, groups of $group" 'near 4'
    check "groups of $group hold $(cat most) bytes, more than $last" '[ "$(cat most)" -gt "$last" ]'
    last=$(cat most)
    rm -rf memory
done
train 2 memory "$(plan 2)" --ranks 2 "$wide" "$llm"
check "memory of two ranks, groups of 2 of four" 'near 2'

expect 2 "zero_group 3 does not divide dp\*cp\*ip = 4" "$DISTTRAIN" train --ranks 4 --no-runs job.yaml run.steps=2 "plan=$(plan 3)"
expect 2 "start a rank for each GPU" "$DISTTRAIN" train --ranks 3 --no-runs job.yaml run.steps=2 "plan=$(plan 2)"
expect 2 "it takes zero 1 and ep 1, not zero 0 and ep 1" "$DISTTRAIN" train --ranks 4 --no-runs job.yaml run.steps=2 train.zero=0 \
    "plan=$(plan 2)"
totals
