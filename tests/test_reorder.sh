#!/bin/sh
# SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
#
# train.reorder: auto takes the way of reordering samples that simulates fastest, and says so; what is stated stays.
# Environment: DISTTRAIN (the program), srcdir (the source directory).
set -u
. "${srcdir:=.}/tests/shell.sh"
member() { sed -n "s/^ *\"$2\": \"\{0,1\}\([^\",]*\)\"\{0,1\},\{0,1\}\$/\1/p" "$1" | head -1; } # FILE NAME
policy() { echo "$(member "$1" intra_reorder) $(member "$1" inter_reorder)"; }

for job in mllm-72b-1296 mllm-9b-96 mllm-audio-64; do
    expect 0 "" "$DISTTRAIN" plan -o plan.json "$job"
    "$DISTTRAIN" plan --json "$job" >found.json </dev/null 2>err
    chosen=$(member found.json chosen) batches=$(member found.json batches)
    # a share of the replicas tells ways apart by half a per cent only; closer than that the way of the ranking stays
    tie=1.0001
    [ "$(member found.json share)" = true ] && tie=1.005
    case $chosen in
    none) words="false false" ;;
    intra) words="true false" ;;
    inter) words="false true" ;;
    both) words="true true" ;;
    *) words="nothing" ;;
    esac
    check "$job: plan.json says $(policy plan.json), chosen is $chosen" '[ "$(policy plan.json)" = "$words" ]'
    for way in none intra inter both; do
        check "$job: $chosen takes $(member found.json ${chosen}_s) s, $way $(member found.json ${way}_s) s" \
            'awk -v a="$(member found.json ${chosen}_s)" -v b="$(member found.json ${way}_s)" -v tie="$tie" "BEGIN { exit !(a > 0 && a <= tie * b) }"'
    done
    simulated() {
        "$DISTTRAIN" simulate --no-runs --json -p plan.json "$job" simulate.contention=false \
            simulate.iterations="$batches" "$@" >sim.json </dev/null 2>err
        member sim.json iteration_s
    }
    # the time that the plan is printed with is that of all its replicas, whatever the way was chosen by
    first=$(simulated simulate.iterations=1)
    check "$job: $first s simulated, $(member found.json timeline_s) s in the table" \
        'awk -v a="$first" -v b="$(member found.json timeline_s)" "BEGIN { exit !(a > 0 && (a - b)^2 <= (1e-6 * a)^2) }"'
    auto=$(simulated)
    for intra in true false; do
        for inter in true false; do
            other=$(simulated train.reorder.intra=$intra train.reorder.inter=$inter)
            check "$job: $auto s as chosen, $other s with intra $intra, inter $inter" \
                'awk -v a="$auto" -v b="$other" "BEGIN { exit !(a > 0 && a <= 1.0005 * b) }"'
        done
    done
done

# the same in words, by plan and simulate
expect 0 "^reordering of samples: $chosen, [0-9.]* s (mean timeline of $batches global batch[es]*); [a-z]* [0-9.]* s" \
    "$DISTTRAIN" plan mllm-audio-64 train.reorder=auto
expect 0 "^reordering of samples: $chosen, " "$DISTTRAIN" simulate --no-runs mllm-audio-64
"$DISTTRAIN" simulate --no-runs --json mllm-audio-64 >sim.json </dev/null 2>err
for name in chosen batches none_s intra_s inter_s both_s; do
    check "simulate --json: $name" '[ "$(member sim.json $name)" = "$(member found.json $name)" ]'
done

# what is stated stays: half of it, all of it, and a plan file's
"$DISTTRAIN" plan --json mllm-9b-96 train.reorder.intra=false >half.json </dev/null 2>err
check "only the other is chosen" '[ "$(member half.json none_s)" ] && [ "$(member half.json inter_s)" ] && ! grep -qE "intra_s|both_s" half.json'
for words in "true false" "false true"; do
    set -- $words
    expect 0 "" "$DISTTRAIN" plan -o plan.json mllm-9b-96 train.reorder.intra="$1" train.reorder.inter="$2"
    check "stated $words: $(policy plan.json)" '[ "$(policy plan.json)" = "$words" ] && ! grep -q reordering out'
    "$DISTTRAIN" simulate --no-runs -p plan.json mllm-9b-96 >out </dev/null 2>err
    check "a plan file's stays" '! grep -q reordering out'
done
expect 0 "^reordering of samples: " "$DISTTRAIN" simulate --no-runs -p plan.json mllm-9b-96 train.reorder=auto

# the baselines have none
for strategy in megatron-lm distmm; do
    expect 0 "" "$DISTTRAIN" plan -o plan.json --strategy $strategy mllm-9b-96
    check "$strategy: $(policy plan.json)" '[ "$(policy plan.json)" = "false false" ] && ! grep -q reordering out'
done
expect 2 'reorder: expected one of auto, none, inter, intra, both, batch, found "sometimes"' "$DISTTRAIN" plan mllm-9b-96 train.reorder=sometimes
expect 2 'intra: expected' "$DISTTRAIN" plan mllm-9b-96 train.reorder.intra=sometimes
totals
