#!/bin/sh
# SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
#
# Every key of a cluster's network counts: with one plan, a better network is never slower, and where the job
# uses what the key describes, a much worse one is slower: with modules on GPUs of their own, and with guests, whose turns
# follow the times.  Known devices bring their data sheets; rows stand in for devices of the same chip only, and that is told.
# Environment: DISTTRAIN (the program), srcdir (the source directory).
set -u
. "${srcdir:=.}/tests/shell.sh"
seconds() { "$DISTTRAIN" simulate --no-runs --json "$@" 2>err </dev/null | sed -n 's/^ *"iteration_s": \(.*\),$/\1/p'; }
# never_slower NAME: times of ever better networks, one a line in `times`
never_slower() {
    check "$1: $(tr '\n' ' ' <times)" \
        'awk "NF == 0 || (NR > 1 && \$1 > last * 1.000001) { bad = 1 } { last = \$1 } END { exit bad || NR < 3 }" times'
}
counts() { check "$1 does nothing: $(tr '\n' ' ' <times)" '[ "$(sort -u times | wc -l)" -gt 1 ]'; }

for plan in "llama-70b-96 own" "mllm-15b-96 own" "mllm-15b-96 auto" "mllm-9b-96 auto"; do
    job=${plan% *} placement=${plan#* }
    expect 0 "" "$DISTTRAIN" plan -o plan.json $job search.placement=$placement
    check "$job, placement $placement: which modules are guests" \
        '{ grep -q "\"with\":" plan.json && echo auto || echo own; } | grep -qx $placement'
    for key in "nvlink_bandwidth=10 GB/s,50 GB/s,100 GB/s,160 GB/s,240 GB/s,400 GB/s,600 GB/s" \
        "nic_bandwidth=10 Gb/s,100 Gb/s,200 Gb/s,800 Gb/s" "nics_per_node=1,2,4,8" "nic_efficiency=0.1,0.5,0.94,1" \
        "oversubscription=16,4,1" "nvlink_latency=1 ms,8 us,0 s" "nic_latency=10 ms,24 us,0 s"; do
        name=${key%%=*}
        echo "${key#*=}" | tr , '\n' >values
        while read -r value; do seconds -p plan.json $job "cluster.$name=$value"; done <values >times
        never_slower "$job, placement $placement, cluster.$name from worst to best"
        counts "$job, placement $placement, cluster.$name"
    done
done
# an LLM of chunks with guests: which order the chunks take is decided with the guests' turns; the lists of each order are greedy
# and may lose a little, not the 6 % of an order that is right without guests
"$DISTTRAIN" plan -o plan.json mllm-72b-96 >out 2>err
for value in 160 200 240 300 400; do seconds -p plan.json mllm-72b-96 "cluster.nvlink_bandwidth=$value GB/s"; done >times
check "a kept plan of MLLM-72B, NVLink from 160 to 400 GB/s: $(tr '\n' ' ' <times)" \
    'awk "NR == 1 || \$1 < best { best = \$1 } \$1 > 1.02 * best { bad = 1 } END { exit NR != 5 || bad }" times'
# without rows the latencies count, too
for name in nvlink_latency nic_latency; do
    for value in "10 ms" "24 us" "0 s"; do
        seconds llama-70b-96 "cluster.$name=$value" profile=null search.allow_analytical=true search.tp=4 \
            search.strategy=manual 'plan={llm: {tp: 4, pp: 24, dp: 1}}' train.recompute=full
    done >times
    never_slower "cluster.$name without a profile"
    counts "cluster.$name without a profile"
done

# a latency that is not stated is that of the rows, which the preset states, too; without tensor parallelism it only delays messages
seconds llama-70b-96 >times
seconds llama-70b-96 'cluster={name: mine, device: a800, nodes: 12, gpus_per_node: 8, peak_flops: 312 TFLOP/s, memory: 80 GB,
    memory_reserve: 4 GB, hbm_bandwidth: 2 TB/s, nvlink_bandwidth: 160 GB/s, nics_per_node: 4, nic_bandwidth: 200 Gb/s, nic_efficiency: 0.94}' >>times
check "latencies that are not stated: $(tr '\n' ' ' <times)" '[ "$(wc -l <times)" = 2 ] && [ "$(sort -u times | wc -l)" = 1 ]'
# two stages on nodes of their own, one microbatch: a message there and one back, and two steps of the all-reduce of the
# gradient's norm, each later by what the latency grows
for value in 22.885 1022.885; do
    seconds llama-70b-96 model=llama-7b search.strategy=manual 'plan={llm: {tp: 8, pp: 2, dp: 1}}' train.global_batch=1 \
        "cluster.nic_latency=$value us"
done >times
check "four times a millisecond: $(tr '\n' ' ' <times)" 'awk "{ t[NR] = \$1 } END { d = t[2] - t[1]; exit NR != 2 || d < 0.003999 || d > 0.004001 }" times'

# --- devices ---
expect 0 "profiled kernels take as long as on A800-SXM4-80GB with 312 TFLOP/s and 2 TB/s, but no less than" \
    "$DISTTRAIN" simulate --no-runs llama-70b-96 cluster.peak_flops="624 TFLOP/s"
expect 0 "kernels of H800-SXM5-80GB are those of H100-SXM5-80GB, the same chip; collectives .* from rows over 371 GB/s for 165 GB/s" \
    "$DISTTRAIN" simulate --no-runs llama-70b-96 'cluster={preset: h100, nodes: 12}' profile=h100 cluster.device=h800
expect 0 '"profile_note": "kernels of H800' "$DISTTRAIN" plan --json llama-70b-96 'cluster={preset: h800, nodes: 12}' profile=h100
expect 0 "for 400 GB/s" "$DISTTRAIN" plan llama-70b-96 \
    'cluster={preset: h100, nodes: 12, device: H800, nvlink_bandwidth: 400 GB/s}' profile=h100
expect 2 "no rows for device 'H200-SXM5-141GB'; the file has H100-SXM5-80GB" \
    "$DISTTRAIN" plan llama-70b-96 'cluster={preset: h200, nodes: 12}' profile=h100
# A800: rows of an A100 brought over here, and those that were brought over when the profile was made
seconds llama-70b-96 'cluster={preset: a800, nodes: 12}' profile=a100 >times
seconds llama-70b-96 'cluster={preset: a800, nodes: 12}' profile=a800 >>times
check "the two ways from A100 to A800 agree within 1 %: $(tr '\n' ' ' <times)" \
    'awk "{ t[NR] = \$1 } END { d = t[1] / t[2] - 1; exit NR != 2 || d > 0.01 || d < -0.01 }" times'
# each preset is a cluster that can be planned on, and says what the device's data sheet says
for p in a100 a40 a800 h100 h20 h200 h800 l40s; do
    "$DISTTRAIN" simulate --no-runs --json llama-70b-96 "cluster={preset: $p, nodes: 24}" profile=null \
        search.allow_analytical=true train.recompute=full >by-preset 2>err
    check "preset $p" 'grep -q iteration_s by-preset'
    device=$(sed -n 's/^device: //p' "$srcdir/traces/clusters/$p.yaml")
    # the preset of another device with this one's name: the values are the sheet's
    other=a100; [ $p = a100 ] && other=h100
    awk -v p=$p '/^(nics_per_node|nic_|nvlink_latency|memory_reserve|oversubscription|mtbf)/ { k = $1; sub(":", "", k); v = $0
        sub("^[^:]*: ", "", v); printf ", %s: %s", k, v }' "$srcdir/traces/clusters/$p.yaml" >rest
    "$DISTTRAIN" simulate --no-runs --json llama-70b-96 \
        "cluster={preset: $other, name: $p, nodes: 24, device: $device$(cat rest)}" profile=null \
        search.allow_analytical=true train.recompute=full >by-device 2>err
    sed -i '/"wall_s"/d' by-preset by-device
    check "preset $p is not its device's sheet: $(diff by-preset by-device | head -4)" 'cmp -s by-preset by-device'
done
totals
