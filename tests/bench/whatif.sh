#!/bin/sh
# SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
# A sweep of MLLM-72B from 96 to 4,096 GPUs, every number of nodes at two global batches, on all cores; and the same points
# as single calls of simulate, one after the other, as far as a share of them tells.
set -u
LC_ALL=C; export LC_ALL
: "${DISTTRAIN:=./disttrain}"
now() { date +%s.%N; }
job="mllm-72b-1296 search.effort=quick --no-runs"
singles=24
out=$(mktemp) || exit 99
trap 'rm -f "$out" "$out.times"' EXIT

begun=$(now)
# shellcheck disable=SC2086 # the job is words
"$DISTTRAIN" whatif $job --vary "cluster.nodes=${WHATIF_NODES:-12..512}" --vary train.global_batch=1920,3840 --json >"$out" || exit 1
sweep_s=$(echo "$(now) - $begun" | bc)
times >"$out.times" # the second line: user and system time of what has ended
sweep_cpu_s=$(awk 'NR == 2 { for (i = 1; i <= 2; i++) { split($i, t, "[ms]"); s += 60 * t[1] + t[2] } print s }' "$out.times")
points=$(grep -c '"feasible"' "$out")
begun=$(now)
for i in 0 1 2 3 4 5 6 7 8 9 10 11; do
    for batch in 1920 3840; do
        # shellcheck disable=SC2086
        "$DISTTRAIN" simulate $job cluster.nodes=$((12 + 45 * i)) train.global_batch=$batch >/dev/null 2>&1
    done
done
single_s=$(echo "($(now) - $begun) / $singles" | bc -l)
awk -v s="$sweep_s" -v cpu="$sweep_cpu_s" -v n="$points" -v one="$single_s" 'BEGIN {
    printf "bench: whatif_72b_96_to_4096 %.1f s\n", s
    printf "bench: whatif_72b_96_to_4096_cpu %.1f s\n", cpu
    printf "bench: whatif_72b_points %.1f points/s ratio %.2f of simulate, call by call\n", n / s, n * one / s }'
