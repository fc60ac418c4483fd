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
exit $failed
