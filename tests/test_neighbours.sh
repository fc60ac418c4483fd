#!/bin/sh
# SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
#
# Neighbouring inputs have neighbouring plans: where NVLink gets faster step by step, by a fifth of a per cent or by an eighth, a
# baseline's plan gets no slower by more than 0.2 %, and no faster by more than NVLink does; latencies that are 0.1 % off change
# it by no more than that.  Plans of a thousand GPUs without reordering are ranked by some of their replicas; where these were other
# ones than those that the iteration waits for, or lay nearer to each other than in the plan, such a step cost a tenth.
# Environment: DISTTRAIN (the program), srcdir (the source directory).
set -u
. "${srcdir:=.}/tests/shell.sh"
timeline() { "$DISTTRAIN" plan --json "$@" 2>err </dev/null | sed -n 's/^ *"timeline_s": \(.*\),$/\1/p' | head -1; }

# walk JOB... : over NVLink's bandwidths in GB/s
walk() {
    bandwidths=$1 last='' before=''
    shift
    for now in $bandwidths; do
        seconds=$(timeline "$@" "cluster.nvlink_bandwidth=$now GB/s")
        check "$*: no plan with $now GB/s" '[ "$seconds" ]'
        [ -z "$before" ] || check "$*: $last s with $before GB/s, $seconds s with $now" \
            'awk -v a="$last" -v b="$seconds" -v less="$before" -v more="$now" \
                "BEGIN { exit !(b <= 1.002 * a && b * more >= 0.998 * a * less) }"'
        last=$seconds before=$now
    done
}
published="train.schedule=1f1b train.microbatch=1 train.recompute=selective train.zero=1 search.placement=own"
# shellcheck disable=SC2086 # one word each
walk "160 160.2 160.5 165 180 200" mllm-15b-1296 search.strategy=distmm $published
walk "160 175 180 200" mllm-15b-1296 search.strategy=distmm
walk "160 160.2 180" mllm-9b-1296 search.strategy=distmm
for latency in 22.86 22.91; do
    seconds=$(timeline mllm-15b-1296 search.strategy=distmm "cluster.nic_latency=$latency us")
    [ "$latency" = 22.86 ] && last=$seconds
    check "$last s with 22.86 us, $seconds s with $latency us" \
        'awk -v a="$last" -v b="$seconds" "BEGIN { exit !(b > 0.999 * a && b < 1.001 * a) }"'
done
totals
