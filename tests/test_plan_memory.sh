#!/bin/sh
# SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
# Memory that is nearly full: a plan is found wherever one is found with less memory, and more memory is never slower; and
# what one stated policy forbids costs no more than that policy does.
# Environment: DISTTRAIN (the program), srcdir (the source directory).
set -u
LC_ALL=C; export LC_ALL
: "${DISTTRAIN:=./disttrain}" "${srcdir:=.}"
DISTTRAIN_TRACES=$srcdir/traces; export DISTTRAIN_TRACES
failed=0

seconds() { # JOB KEY...: of the best plan's timeline; nothing where there is none
    "$DISTTRAIN" plan "$@" 2>/dev/null | awk '/^1 / { print $NF }'
}
check() { # WHAT SECONDS LIMIT
    if awk -v s="$2" -v most="$3" 'BEGIN { exit !(s > 0 && s <= most) }'; then
        echo "$1: $2 s, at most $3 s"
    else
        echo "FAIL: $1: ${2:-no plan}, at most $3 s"
        failed=1
    fi
}

# with samples of unequal sizes, what a share of the replicas fills is not what the fullest of all fills
before=1e9
for gib in 36 40 48 66 74; do
    s=$(seconds mllm-15b-1296 cluster.memory=${gib}GiB)
    check "$gib GiB" "$s" "$before"
    before=$(awk -v s="${s:-1e9}" 'BEGIN { print 1.005 * s }')
done

free=$(seconds mllm-15b-96)
check "all policies free" "$free" 3.2
limit=$(awk -v s="${free:-0}" 'BEGIN { print 1.04 * s }')
for policy in '{encoder: none}' '{llm: selective}' '{generator: selective}'; do
    check "train.recompute=$policy" "$(seconds mllm-15b-96 "train.recompute=$policy")" "$limit"
done

# where the first stage alone is too large, it gets fewer blocks: the plan's layout with stages alike does not fit
job="llama-70b-96 train.schedule=1f1b cluster.memory=80GB"
check "uneven stages" "$(seconds $job)" 20.6
tmp=$(mktemp -d) || exit 99
trap 'rm -rf "$tmp"' EXIT
"$DISTTRAIN" plan -o "$tmp/uneven.json" $job >/dev/null 2>&1
layout=$(tr -d ' \n' <"$tmp/uneven.json" | sed 's/.*"tp":\([0-9]*\),.*"pp":\([0-9]*\),.*"dp":\([0-9]*\),.*"recompute":"\([a-z]*\)","zero":\([0-9]\).*/tp: \1, pp: \2, dp: \3, recompute: \4, zero: \5/')
out=$("$DISTTRAIN" plan $job -s manual "plan={llm: {$layout}}" train.microbatch="$(sed -n 's/.*"microbatch": \([0-9]*\),/\1/p' "$tmp/uneven.json")" 2>&1)
if [ $? -eq 3 ] && echo "$out" | grep -q "llm stage 0 needs"; then
    echo "with stages alike $layout does not fit"
else
    echo "FAIL: with stages alike $layout should not fit: $out"
    failed=1
fi
# and where nothing fits with stages alike, a plan is found
check "24 GPUs" "$(seconds llama-70b-96 cluster.nodes=3 train.schedule=1f1b train.recompute=selective train.zero=1 cluster.memory=64GiB)" 82
# what ZeRO exchanges decides where links are slow: deeper pipelines with fewer replicas
check "ZeRO 3 on slow links" "$(seconds llama-70b-96 train.zero=3 cluster.nic_bandwidth=25Gb/s)" 24
exit $failed
