#!/bin/sh
# SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
# Looking longer does not end with a slower plan: what a normal search chooses takes, simulated whole, at most as long as what
# a quick one does.
# Environment: DISTTRAIN (the program), srcdir (the source directory).
set -u
LC_ALL=C; export LC_ALL
: "${DISTTRAIN:=./disttrain}" "${srcdir:=.}"
DISTTRAIN_TRACES=$srcdir/traces; export DISTTRAIN_TRACES
tmp=$(mktemp -d) || exit 99
trap 'rm -rf "$tmp"' EXIT
failed=0

seconds() { # NODES EFFORT
    "$DISTTRAIN" plan -o "$tmp/plan.json" mllm-72b-1296 "cluster.nodes=$1" "search.effort=$2" >/dev/null || return
    "$DISTTRAIN" simulate --no-runs -p "$tmp/plan.json" mllm-72b-1296 "cluster.nodes=$1" simulate.contention=false |
        awk '/^iteration/ { print $2 }'
}

for nodes in 63 162 256; do
    quick=$(seconds $nodes quick)
    normal=$(seconds $nodes normal)
    # the reordering is chosen by some of the replicas: 0.2 %
    if awk -v n="$normal" -v q="$quick" 'BEGIN { exit !(n > 0 && q > 0 && n <= 1.002 * q) }'; then
        echo "$nodes nodes: normal $normal s, quick $quick s"
    else
        echo "FAIL: $nodes nodes: normal ${normal:-?} s, quick ${quick:-?} s"
        failed=1
    fi
done
exit $failed
