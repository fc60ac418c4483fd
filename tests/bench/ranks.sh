#!/bin/sh
# SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
# Training by several ranks on this machine: what the executor itself costs, and what it costs to put
# two ranks on every core.  mllm-nano-train at the same global batch, in turns: one process with a
# thread per core; twice as many ranks as cores with one thread each, every module's replicas on all
# of them.  Medians of steps after those in which kernels of new shapes are made.
# Environment: DISTTRAIN (the program), srcdir.
set -u
LC_ALL=C; export LC_ALL
: "${DISTTRAIN:=./disttrain}" "${srcdir:=.}" "${TURNS:=3}"
case $DISTTRAIN in /*) ;; *) DISTTRAIN=$PWD/$DISTTRAIN ;; esac
DISTTRAIN_TRACES=$(cd "$srcdir" && pwd)/traces; export DISTTRAIN_TRACES
tmp=$(mktemp -d) || exit 99
trap 'rm -rf "$tmp"' EXIT
cd "$tmp" || exit 99
command -v mpirun >/dev/null || { echo '# no mpirun: several ranks not measured'; exit 0; }
"$DISTTRAIN" data pack --fashion-mnist train -o fashion-train >/dev/null 2>&1 ||
    { echo '# no Fashion-MNIST (Debian: dataset-fashion-mnist): several ranks not measured'; exit 0; }
cores=$(getconf _NPROCESSORS_ONLN)
ranks=$((2 * cores))
[ "$ranks" -le 8 ] || ranks=8 # as many as a global batch of 8 has samples

train() { # NAME RANKS THREADS
    "$DISTTRAIN" train --ranks "$2" --from-scratch --no-runs --json mllm-nano-train search.strategy=manual \
        search.allow_analytical=true "cluster={preset: local, gpus_per_node: $ranks}" train.microbatch=1 \
        "plan={colocated: true, encoder: {pp: 1, dp: $2}, llm: {pp: 1, dp: $2}, generator: {pp: 1, dp: $2}}" \
        run.steps=40 run.threads="$3" run.log_interval=1 run.log_dir="log-$1" \
        "run.checkpoint={dir: saved-$1, interval: 0}" >"out-$1" 2>err || { cat err; exit 1; }
    grep -o '"step_s":[0-9.e-]*' "log-$1/metrics.jsonl" | cut -d: -f2 | tail -n 28 >>"steps-$1"
    sed -n 's/.*"share_outside_compute": \([0-9.e-]*\).*/\1/p' "out-$1" >>"share-$1"
    rm -rf "log-$1" "saved-$1"
}
median() { sort -g "$1" | awk '{v[NR] = $1} END {print NR % 2 ? v[(NR + 1) / 2] : (v[NR / 2] + v[NR / 2 + 1]) / 2}'; }

turn=0
while [ $turn -lt "$TURNS" ]; do
    train one 1 "$cores"
    train many "$ranks" 1
    turn=$((turn + 1))
done
awk -v s="$(median share-one)" -v one="$(median steps-one)" -v many="$(median steps-many)" -v r="$ranks" -v c="$cores" 'BEGIN {
    printf "bench: executor_outside_kernels %.4f of_step ratio %.2f of target_0.02\n", s, s / 0.02
    printf "bench: train_one_process_%d_threads %.1f samples/s\n", c, 8 / one
    printf "bench: train_%d_ranks_%d_cores %.1f samples/s ratio %.2f of one_process\n", r, c, 8 / many, one / many
    printf "bench: train_%d_ranks_%d_cores_against_target %.2f of_one_process ratio %.2f of target_0.90\n", r, c, one / many, one / many / 0.9
}'
