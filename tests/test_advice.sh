#!/bin/sh
# SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
#
# Where no plan fits, every change that is named makes one fit, with the iteration time that is named, and less of it does
# not; where one fits, a hint names a stated key that costs more than 3 %, and keeps what it promises. Some cases are of make check-full.
# Environment: DISTTRAIN (the program), srcdir (the source directory).
set -u
. "${srcdir:=.}/tests/shell.sh"
# the items of a list: KEY|KEY=VALUE...|SECONDS, a line each
items() { # FILE LIST
    sed -n "/\"$2\": \\[/,/^ *\\]/p" "$1" | awk -F'": ' '
        { gsub(/^ *"|,$/, ""); v = $2; gsub(/^"|"$/, "", v); at[$1] = v }
        /gpus_used/ { print at["key"] "|" at["set"] "|" at["iteration_s"] }'
}
timeline() { sed -n 's/.*"timeline_s": \([0-9.]*\).*/\1/p' "$1" | head -1; }
near() { awk -v a="$1" -v b="$2" 'BEGIN { exit !(a > 0 && a < 1.0001 * b && b < 1.0001 * a) }'; }
# runs plan --json on $@ and the words of SET: one value with blanks in braces, or words
with() { # SET ARGUMENT...
    set_it=$1; shift
    case $set_it in
    *"{"*) "$DISTTRAIN" plan --json "$@" "$set_it" >with.json 2>err </dev/null ;;
    *) "$DISTTRAIN" plan --json "$@" $set_it >with.json 2>err </dev/null ;;
    esac
}
less() { # SET: a little less than that; nothing where there is no less
    case $1 in
    search.gpus=* | cluster.nodes=*) echo "${1%%=*}=$((${1#*=} - 1))" ;;
    cluster.memory=*) n=${1#*=}; echo "cluster.memory=$((${n%GiB} - 1))GiB" ;;
    esac
}

# are_named KEYS, ARGUMENT...: these keys are among those of items, which plans of other times may add to; "": there is none
are_named() {
    all=" $(cut -d'|' -f1 items | tr '\n' ' ')" keys=$1; shift
    if [ -z "$keys" ]; then check "$*: named is$all" '[ "$all" = " " ]'; fi
    for k in $keys; do
        case $all in *" $k "*) ok ;; *) bad "$*: named is$all, not $k" ;; esac
    done
}

nothing_fits() { # KEYS, ARGUMENT...: these keys are named
    named=$1; shift
    expect 3 "a plan would fit with any one of these changes:" "$DISTTRAIN" plan "$@"
    expect 3 '"no_plan": "no plan fits model ' "$DISTTRAIN" plan --json "$@"
    items out would_fit >items
    are_named "$named" "$@"
    while IFS='|' read -r key change seconds; do
        with "$change" "$@"
        check "$*: $change fits" '[ $? -eq 0 ]'
        check "$*: $change takes $(timeline with.json) s, not $seconds s" 'near "$(timeline with.json)" "$seconds"'
        fewer=$(less "$change")
        [ "$fewer" ] || continue
        with "$fewer" "$@"
        check "$*: $fewer does not fit" '[ $? -eq 3 ]'
    done <items
}
nothing_fits "offload gpus memory" mllm-72b-96 search.gpus=8
nothing_fits "offload gpus memory" llama-70b-96 cluster.nodes=1 cluster.memory=80GB
nothing_fits "microbatch recompute gpus memory" mllm-9b-96 train.microbatch=8 train.recompute=none \
    train.zero=1 train.schedule=1f1b search.gpus=12
all_of_it && nothing_fits "recompute tp offload gpus memory" mllm-9b-96 train.schedule=1f1b train.microbatch=1 train.recompute=selective \
    train.zero=0 'search.tp=[1]' cluster.memory=24GiB
expect 3 "^search.gpus=" "$DISTTRAIN" simulate --no-runs mllm-72b-96 search.gpus=8

# 70 billion parameters on 8 H100: what fits is said for any profile
sed 's/a800/h100/' "$srcdir/traces/jobs/llama-70b-96.yaml" >llama.yaml
all_of_it && nothing_fits "offload gpus memory" llama.yaml cluster=h100 cluster.nodes=1 search.allow_analytical=true

# --- hints ---
hints() { # KEYS, ARGUMENT...
    named=$1; shift
    expect 0 "" "$DISTTRAIN" plan --json "$@"
    now=$(timeline out)
    items out hints >items
    are_named "$named" "$@"
    while IFS='|' read -r key change seconds; do
        check "$*: $change gains enough: $now s, $seconds s" 'awk -v a="$seconds" -v b="$now" "BEGIN { exit !(a > 0 && a <= 0.97 * b) }"'
        with "$change" "$@"
        check "$*: $change takes $(timeline with.json) s, no more than $seconds s" \
            'awk -v a="$(timeline with.json)" -v b="$seconds" "BEGIN { exit !(a > 0 && a <= 1.001 * b) }"'
    done <items
}
stated="train.microbatch=1 train.recompute=selective train.zero=1"
hints "schedule" mllm-72b-96 $stated train.schedule=1f1b
expect 0 "^hint: train.schedule=interleaved search.max_vpp=[0-9]* would take [0-9.]* s, [0-9.]* % less" \
    "$DISTTRAIN" plan mllm-72b-96 $stated train.schedule=1f1b
# plans that are not ranked have no hints, and it is not said that none fits
"$DISTTRAIN" plan mllm-9b-96 search.rank=false >unranked || :
check "plans without ranking: $(tail -1 unranked)" '! grep -q "would make a plan fit" unranked && grep -q "layouts costed" unranked'
hints "schedule recompute" mllm-9b-96 train.microbatch=1 train.recompute=full train.zero=1 train.schedule=1f1b
all_of_it && hints "microbatch schedule recompute" mllm-9b-96 train.microbatch=8 train.recompute=full train.zero=1 train.schedule=1f1b
# experts that are not dealt out
hints "zero ep" qwen3-30b-a3b-64 -s disttrain search.max_ep=1
# a stated plan, in a map or in a file that the job names: what the search gives with the other keys as they are
hints "strategy" gpt3-175b-1024
"$DISTTRAIN" plan -o stated.json gpt3-175b-1024 >/dev/null
sed 's/^plan:.*/plan: stated.json/; /^  llm: {tp: 8/d' "$srcdir/traces/jobs/gpt3-175b-1024.yaml" >stated.yaml
all_of_it && hints "strategy" stated.yaml
hints "strategy" mllm-nano-train
expect 0 "^hint: search.strategy=disttrain would take [0-9.]* s on 4 GPUs, [0-9.]* % less" "$DISTTRAIN" plan mllm-nano-train
# a plan that the search finds, or that is given beside the job, has none
"$DISTTRAIN" plan -o found.json gpt3-175b-1024 -s disttrain >/dev/null
sed 's/^plan:.*/plan: found.json/; /^  llm: {tp: 8/d' "$srcdir/traces/jobs/gpt3-175b-1024.yaml" >found.yaml
hints "" found.yaml
expect 0 '"hints": \[\]' "$DISTTRAIN" plan --json -p stated.json gpt3-175b-1024
totals
