#!/bin/sh
# SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
# Targets: the least cluster against brute force over all sizes; days, money, energy against arithmetic of their own.
: "${DISTTRAIN:=./disttrain}" "${srcdir:=.}"
. "$srcdir/tests/shell.sh"
# at one effort, so that search and brute force see the same plans; 2.1 GPU failures a day at 100 GPUs
job="mllm-9b-96 train.global_batch=48 search.effort=quick cluster.mtbf_gpu_hours=1100"
points="mllm-nano-local --no-runs -j 1 --tokens 1B" # quickly planned
# COLUMN CONDITION FILE: values of a column, of rows that hold
values() { awk -F, -v name="$1" -v want="$2" 'NR == 1 { for (i = 1; i <= NF; i++) c[$i] = i; next }
    want == "" || $c[want] == "true" { print $c[name] }' "$3"; }

# ---- days and money of given sizes ----
# shellcheck disable=SC2086
expect 0 "" "$DISTTRAIN" whatif $job --tokens 20B --gpus 24..104+8 --no-runs --csv all.csv \
    cluster.price_per_gpu_hour=2.5 cluster.watts_per_gpu=400 cluster.pue=1.2 cluster.grams_co2_per_kwh=300
awk -F, 'NR == 1 { for (i = 1; i <= NF; i++) c[$i] = i; next }
    $c["feasible"] != "true" { next }
    function off(a, b) { d = a / b - 1; return d > 1e-7 || d < -1e-7 }
    {
        iterations = int((20e9 + 48 * 8192 - 1) / (48 * 8192))
        days = iterations * $c["iteration_s_mean"] / $c["goodput"] / 86400
        high = $c["days_p90"]
        money = days * 24 * 2.5 * $c["gpus"]
        mwh = days * 24 * 400 * 1.2 * $c["gpus"] / 1e6
        if (off($c["days"], days) || !(high > days) || off($c["days_sure"], high) || off($c["money"], money) ||
            off($c["energy_mwh"], mwh) || off($c["co2_t"], mwh * 0.3) || !($c["goodput"] < 1)) { print; bad = 1 }
        n++
    }
    END { exit bad || n < 5 }' all.csv >out
check "days, money, energy and emissions are what arithmetic says" '[ $? -eq 0 ] && ! [ -s out ]'

# ---- a sum of many iterations: their mean, and no noise of samples ----
# of images and texts as skewed as they are, which nothing packs
skewed="mllm-3b-entrain-64 search.effort=normal --tokens 1T --no-runs -j 1"
for n in 1 21; do
    # shellcheck disable=SC2086
    "$DISTTRAIN" whatif $skewed simulate.iterations=$n --csv n$n.csv >out 2>err </dev/null || bad "$n iterations"
    check "$n: days of the mean, no surer than times, surer than an iteration: $(tail -n 1 n$n.csv)" \
        'awk -v mean="$(values iteration_s_mean "" n$n.csv)" -v days="$(values days "" n$n.csv)" -v high="$(values days_p90 "" n$n.csv)" \
            -v t="$(values iteration_s "" n$n.csv)" -v t90="$(values iteration_s_p90 "" n$n.csv)" \
            "BEGIN { exit !(mean > t && high / days > 1.05 && high / days < 0.95 * t90 / t) }"'
done
check "one iteration of five batches and 21 of them say the same, and are as sure" \
    'awk -v a="$(values days "" n1.csv)" -v b="$(values days "" n21.csv)" -v p="$(values days_p90 "" n1.csv)" -v q="$(values days_p90 "" n21.csv)" \
        "BEGIN { r = a / b; s = p / a / (q / b); exit !(r > 0.98 && r < 1.02 && s > 0.999999 && s < 1.000001) }"'

# ---- the least size: against all of them ----
least() { # DAYS
    awk -F, -v days="$1" 'NR == 1 { for (i = 1; i <= NF; i++) c[$i] = i; next }
        $c["feasible"] == "true" && $c["days_sure"] <= days && (best == "" || $c["gpus"] + 0 < best) { best = $c["gpus"] + 0 }
        END { print best == "" ? "none" : best }' brute.csv
}
# shellcheck disable=SC2086
expect 0 "" "$DISTTRAIN" whatif $job --tokens 20B --gpus 8..192+8 --no-runs --csv brute.csv
for days in 5 3 2 1.5 1.2 1 0.8 0.7; do
    # shellcheck disable=SC2086
    "$DISTTRAIN" whatif $job --tokens 20B --days $days --no-runs --csv scan.csv >text 2>err </dev/null || bad "--days $days"
    answer=$(values gpus answer scan.csv)
    check "the least GPUs for $days days: ${answer:-none} is $(least $days)" '[ "${answer:-none}" = "$(least $days)" ]'
    check "and it says so: $(grep "days at" text)" 'grep -q "${answer:-no point meets}" text && grep -q "^searched: clusters of whole nodes of 8 GPUs" text'
done
# of given sizes nothing is known of the others
# shellcheck disable=SC2086
expect 0 "interval): the fewest of these sizes, 96 GPUs, " "$DISTTRAIN" whatif $job --tokens 20B --days 30 --gpus 96,192 --no-runs
# shellcheck disable=SC2086
expect 0 "interval): 96 GPUs, " "$DISTTRAIN" whatif $job --tokens 20B --days 30 --gpus 96 --no-runs
# what nothing meets: what comes nearest
# shellcheck disable=SC2086
expect 0 "" "$DISTTRAIN" whatif $job --tokens 20B --days 0.1 --gpus 8..96+8 --no-runs --csv none.csv
nearest=$(awk -F, 'NR == 1 { for (i = 1; i <= NF; i++) c[$i] = i; next }
    $c["feasible"] == "true" && (t == "" || $c["days_sure"] < t) { t = $c["days_sure"]; gpus = $c["gpus"] }
    END { printf "%d GPUs come nearest, with %.2f days", gpus, t }' none.csv)
check "no point meets this; $nearest" 'grep -q "no point meets this; $nearest at this confidence" out'
# shellcheck disable=SC2086
expect 0 "100 is not a multiple" "$DISTTRAIN" whatif $job --tokens 20B --gpus 100 --no-runs
check "and nothing on what was not predicted" '! grep -q "^days\|come nearest" out'
# another confidence: the median itself, and more
for confidence in 1 50 95; do
    # shellcheck disable=SC2086
    "$DISTTRAIN" whatif $job --tokens 20B --gpus 96 --confidence $confidence --no-runs --csv c$confidence.csv >/dev/null 2>err || bad "confidence"
done
check "surer is longer" 'awk -v a="$(values days_sure "" c1.csv)" -v b="$(values days_sure "" c50.csv)" \
    -v c="$(values days_p90 "" c50.csv)" -v d="$(values days_sure "" c95.csv)" "BEGIN { exit !(a < b && b < c && c < d) }"'

# ---- a budget ----
# shellcheck disable=SC2086
expect 0 "" "$DISTTRAIN" whatif $job --tokens 20B --budget 5K --gpus 24..104+8 --no-runs --csv budget.csv cluster.price_per_gpu_hour=2.5
best=$(awk -F, 'NR == 1 { for (i = 1; i <= NF; i++) c[$i] = i; next }
    $c["feasible"] == "true" && $c["money_sure"] <= 5000 && (best == "" || $c["days_sure"] < t) { best = $c["gpus"]; t = $c["days_sure"] }
    END { print best }' budget.csv)
check "the fastest for 5K is on $best GPUs: $(values gpus answer budget.csv)" '[ -n "$best" ] && [ "$(values gpus answer budget.csv)" = "$best" ]'
# shellcheck disable=SC2086
expect 2 "cluster.price_per_gpu_hour=PRICE; there is no default" "$DISTTRAIN" whatif $job --tokens 20B --budget 2M --no-runs
# shellcheck disable=SC2086
expect 0 "the most tokens for 5K" "$DISTTRAIN" whatif $job --budget 5K --gpus 48,96 --no-runs cluster.price_per_gpu_hour=2.5
# shellcheck disable=SC2086
expect 0 "no point meets this; 96 GPUs come nearest, with [0-9.]* days at this confidence and [0-9]* of money" \
    "$DISTTRAIN" whatif $job --tokens 20B --budget 1 --gpus 96 --no-runs cluster.price_per_gpu_hour=2.5
check "without a price there is no money" '! "$DISTTRAIN" whatif $job --tokens 20B --gpus 96 --no-runs </dev/null | grep -q money'
# what failures do
# shellcheck disable=SC2086
expect 0 "days do not include failures: the job has" "$DISTTRAIN" whatif $job --tokens 20B --gpus 96 --no-runs simulate.failures.enabled=false
# shellcheck disable=SC2086
expect 0 "days include failures of GPUs (one in 1100 GPU hours), checkpoints and restarts" \
    "$DISTTRAIN" whatif $job --tokens 20B --gpus 96 --no-runs

# whether they count is said of each point by its own cluster and keys: as if the key were stated, and in the notes
for vary in cluster.mtbf_gpu_hours=0,500 "simulate.failures.enabled=false,true cluster.mtbf_gpu_hours=500"; do
    # shellcheck disable=SC2086
    expect 0 "days include failures of GPUs.*, checkpoints and restarts at 1 of 2 points" \
        "$DISTTRAIN" whatif $points --vary $vary --csv each.csv
    check "$vary: the first has none, the second some" \
        '[ "$(values goodput "" each.csv | head -1)" = 1 ] && awk -v g="$(values goodput "" each.csv | tail -1)" "BEGIN { exit !(g < 0.99) }"'
done
check "the number is left out where points differ" '! "$DISTTRAIN" whatif $points --vary cluster.mtbf_gpu_hours=100,500 </dev/null | grep "one in"'
# shellcheck disable=SC2086
"$DISTTRAIN" simulate mllm-nano-local --no-runs --json cluster.mtbf_gpu_hours=500 simulate.failures.enabled=true search.effort=quick >one
# shellcheck disable=SC2086
expect 0 "" "$DISTTRAIN" whatif $points --vary cluster.mtbf_gpu_hours=0,500 --csv each.csv
check "goodput is that of simulate with failures" \
    '[ "$(values goodput "" each.csv | tail -1)" = "$(sed -n "s/^  \"goodput\": \(.*\),/\1/p" one)" ]'
# shellcheck disable=SC2086
expect 0 "days do not include failures\$" "$DISTTRAIN" whatif $points --vary cluster.mtbf_gpu_hours=500,1000 simulate.failures.enabled=false
# a run that never ends meets nothing
# shellcheck disable=SC2086
expect 0 "" "$DISTTRAIN" whatif $points --vary cluster.mtbf_gpu_hours=0.02,1000 --csv never.csv
check "goodput $(values goodput "" never.csv | tr '\n' ' ')meets $(values meets "" never.csv | tr '\n' ' ')" \
    '[ "$(values goodput "" never.csv | head -1)" = 0 ] && [ "$(values meets "" never.csv | tr "\n" " ")" = "false true " ]'
# small numbers have their digits, and memory its unit
# shellcheck disable=SC2086
expect 0 "no point meets this; 4 GPUs come nearest, with 0.00[1-9][0-9]* days at this confidence and 0.00[1-9][0-9]* of money" \
    "$DISTTRAIN" whatif $points --tokens 1M --days 0.0001 --gpus 4 cluster.price_per_gpu_hour=0.02 --csv small.csv
check "MiB of $(values memory_bytes_max feasible small.csv | head -1) bytes" 'grep -q "memory \[MiB\]" out &&
    grep -qF " $(awk "BEGIN { printf \"%.1f\", $(values memory_bytes_max feasible small.csv | head -1) / 1048576 }") " out'
check "days of $(values days feasible small.csv | head -1)" \
    'grep -qF " $(awk "BEGIN { printf \"%.4g\", $(values days feasible small.csv | head -1) }") " out'
# what does not fit was not searched for at another effort
# shellcheck disable=SC2086
expect 0 "plans were searched for at quick effort; search.effort=normal looks longer" \
    "$DISTTRAIN" whatif $points --vary cluster.pue=0,1.5
# energy without a pue is that of the nodes
# shellcheck disable=SC2086
expect 0 "80 % interval" "$DISTTRAIN" whatif $points --vary cluster.pue=1,1.5 cluster.watts_per_gpu=700
check "nothing is said where all points state one" '! grep -q "energy is" out'
echo '{preset: local, watts_per_gpu: 700}' >watts.yaml
echo '{preset: local, watts_per_gpu: 700, pue: 1.5}' >pue.yaml
# shellcheck disable=SC2086
expect 0 "energy is that of the nodes alone at 1 of 2 points, which state no cluster.pue" \
    "$DISTTRAIN" whatif $points --vary cluster=watts.yaml,pue.yaml
# shellcheck disable=SC2086
expect 0 "energy is that of the nodes alone: no cluster.pue is stated" "$DISTTRAIN" whatif $points --vary simulate.seed=1,2 cluster.watts_per_gpu=700

# ---- two clusters, an answer for each ----
# shellcheck disable=SC2086
expect 0 "cluster.nvlink_bandwidth=80 GB/s: at least" "$DISTTRAIN" whatif $job --tokens 20B --days 20 \
    --vary "cluster.nvlink_bandwidth=80..160*2 GB/s" --no-runs --csv two.csv
check "two answers" '[ "$(values gpus answer two.csv | wc -l)" -eq 2 ]'

# ---- wrong questions ----
for wrong in '--tokens 1X' '--tokens -1T' '--tokens 0' '--budget x' '--days 0' '--confidence 100' '--sample 4 --tokens 1T --days 5 --vary simulate.seed=1..9'; do
    # shellcheck disable=SC2086
    expect 2 "" "$DISTTRAIN" whatif $job $wrong --no-runs
done
totals
