#!/bin/sh
# SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
#
# What plan --explain says of an alternative is near what the search gives with that key stated, and where one finds no
# plan, the other finds none.  No alternative is faster than the plan: one that is becomes the plan, in everything that is
# printed and written.
# Environment: DISTTRAIN (the program), srcdir (the source directory).
: "${DISTTRAIN:=./disttrain}" "${srcdir:=.}"
. "$srcdir/tests/shell.sh"

# the decisions of a plan --explain --json: DIMENSION|MODULE|VALUE|CHOSEN|SECONDS (none: no plan), a line each
decisions() {
    sed -n '/"decisions": \[/,/^ *\]/p' "$1" | awk -F'": ' '
        { gsub(/^ *"|,$/, ""); v = $2; gsub(/^"|"$/, "", v); at[$1] = v }
        /}/ && at["dimension"] { print at["dimension"] "|" at["module"] "|" at["value"] "|" at["chosen"] "|" \
            (at["iteration_s"] ? at["iteration_s"] : "none"); delete at }'
}
timeline() { sed -n 's/.*"timeline_s": \([0-9.]*\).*/\1/p' "$1" | head -1; }
# the keys of a job that state an alternative, a line each
keys() { # DIMENSION MODULE VALUE SCHEDULE
    case $1 in
    schedule | microbatch) echo "train.$1=$3" ;;
    recompute | zero) echo "train.$1={$2: $3}" ;;
    placement) echo "search.placement=$3" ;;
    vpp) echo "train.schedule=$4"; echo "search.max_vpp=${3#at most }" ;;
    cp | ep) echo "search.max_$1=${3#at most }" ;;
    tp) case $3 in
        "below 8"*) echo "search.tp=[1,2,4]" ;;
        "below 4"*) echo "search.tp=[1,2]" ;;
        "below 2"*) echo "search.tp=[1]" ;;
        esac ;;
    esac
}
as_good() { awk -v a="$1" -v b="$2" 'BEGIN { exit !(a < 1.005 * b) }'; } # looking near what is known may find more, too
asked=0 good=0
explained() { # ARGUMENT...
    expect 0 '"decisions"' "$DISTTRAIN" plan --explain --json "$@"
    decisions out >list
    best=$(timeline out)
    schedule=
    check "$*: some of it was decided" '[ "$(grep -c "|false|" list)" -ge 5 ]'
    while IFS='|' read -r dimension module value chosen seconds; do
        if [ "$chosen" = true ]; then
            [ "$dimension" = schedule ] && schedule=$value
            check "$*: chosen $dimension $value takes $seconds s, not $best s" '[ "$seconds" = "$best" ]'
            continue
        fi
        keys "$dimension" "$module" "$value" "$schedule" >keys
        check "$*: $dimension $value can be stated" '[ -s keys ]'
        first=$(sed -n 1p keys) second=$(sed -n 2p keys)
        "$DISTTRAIN" plan --json "$@" "$first" ${second:+"$second"} >stated.json 2>err </dev/null
        stated=$(timeline stated.json)
        what="$*: $dimension $module $value: $seconds s, stated ${stated:-none} s, the best $best s"
        [ "$seconds" = none ] || check "$what: it is faster" 'awk -v a="$seconds" -v b="$best" "BEGIN { exit !(a >= 0.9996 * b) }"'
        if [ "$seconds" = none ]; then
            check "$what" '[ -z "$stated" ]'
        else
            check "$what" 'awk -v a="$seconds" -v b="$stated" "BEGIN { exit !(b > 0 && a < 1.08 * b && b < 1.08 * a) }"'
            asked=$((asked + 1))
            as_good "$seconds" "$stated" && good=$((good + 1))
        fi
    done <list
}
explained mllm-9b-96 cluster.nodes=4 train.global_batch=32
# the search alone finds that plan: an encoder that divides its gradients to fit, which the formula puts 6 % behind
check "the search alone ended elsewhere" '[ "$best" ] && ! grep -q "\"searched_s\"" out'
# with little to look at it ends 0.8 % behind: the plan, the file and its simulation are those of the explanation
expect 0 '"decisions"' "$DISTTRAIN" plan --explain --json -o plan.json mllm-9b-96 cluster.nodes=4 train.global_batch=32 \
    search.budget=50000 cluster.memory=80GB
best=$(timeline out)
searched=$(sed -n 's/.*"searched_s": \([0-9.]*\).*/\1/p' out)
check "the search alone ended with ${searched:-the same plan}, the best takes $best s" \
    'awk -v a="${searched:-0}" -v b="$best" "BEGIN { exit !(a > 1.001 * b) }"'
check "plan.json has another timeline than what is printed" '[ "$(timeline plan.json)" = "$best" ]'
expect 0 "iteration_s" "$DISTTRAIN" simulate --json --no-runs -p plan.json mllm-9b-96 cluster.nodes=4 train.global_batch=32 \
    simulate.contention=false cluster.memory=80GB
simulated=$(sed -n 's/^ *"iteration_s": \([0-9.]*\).*/\1/p' out | head -1)
check "the plan is said to take $best s, and takes $simulated s" '[ "$simulated" = "$best" ]'
explained llama-70b-96 cluster.nodes=8
check "$good of $asked prices at most 0.5 % above the stated search" '[ $((4 * good)) -ge $((3 * asked)) ]'
totals
