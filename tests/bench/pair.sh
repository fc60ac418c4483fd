#!/bin/sh
# SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
# Is training as fast as that of another version of the program?
#
#     tests/bench/pair.sh OLD [NEW]
#
# Both train mllm-nano-train, as one process and as two ranks with a thread each, in turns, so that a busy machine slows
# both: the old and the new one, then the new and the old one.  A turn's ratio is that of the medians of its steps, after
# those in which kernels of new shapes are made.  Prints the median of the turns' ratios and their range.
# Environment: TURNS (8); RANKS ("1 2"); DISTTRAIN_TRACES for programs that are not installed.
set -u
LC_ALL=C; export LC_ALL
: "${TURNS:=8}" "${RANKS:=1 2}"
[ $# -ge 1 ] || { echo 'usage: pair.sh OLD [NEW]' >&2; exit 2; }
here=$(cd "$(dirname "$0")/../.." && pwd)
: "${DISTTRAIN_TRACES:=$here/traces}"; export DISTTRAIN_TRACES
old=$(realpath "$1") new=$(realpath "${2:-./disttrain}")
tmp=$(mktemp -d) || exit 99
trap 'rm -rf "$tmp"' EXIT
cd "$tmp" || exit 99
"$new" data pack --fashion-mnist train -o fashion-train >/dev/null 2>&1 ||
    { echo '# no Fashion-MNIST (Debian: dataset-fashion-mnist)'; exit 77; }

# PROGRAM RANKS: the median of its steps
train() {
    "$1" train --ranks "$2" --from-scratch --no-runs --json mllm-nano-train search.strategy=manual \
        search.allow_analytical=true 'cluster={preset: local, gpus_per_node: 2}' train.microbatch=1 \
        "plan={colocated: true, encoder: {pp: 1, dp: $2}, llm: {pp: 1, dp: $2}, generator: {pp: 1, dp: $2}}" \
        run.steps=40 run.threads=1 run.log_interval=1 run.log_dir=log \
        'run.checkpoint={dir: saved, interval: 0}' >out 2>err || { cat err >&2; exit 1; }
    grep -o '"step_s":[0-9.e-]*' log/metrics.jsonl | cut -d: -f2 | tail -n 30 | sort -g | sed -n 15p
    rm -rf log saved
}

for ranks in $RANKS; do
    turn=0
    : >ratios
    while [ $turn -lt "$TURNS" ]; do
        if [ $((turn % 2)) -eq 0 ]; then a=$(train "$old" $ranks) b=$(train "$new" $ranks)
        else b=$(train "$new" $ranks) a=$(train "$old" $ranks); fi
        [ -n "$a" ] && [ -n "$b" ] || exit 1
        echo "$a $b" | awk '{print $2 / $1}' >>ratios
        turn=$((turn + 1))
    done
    sort -g ratios | awk -v r=$ranks '{v[NR] = $1} END {
        printf "bench: step_of_%d_rank%s %.4f of_the_old (%d turns, %.4f to %.4f)\n", r, (r > 1 ? "s" : ""),
            NR % 2 ? v[(NR + 1) / 2] : (v[NR / 2] + v[NR / 2 + 1]) / 2, NR, v[1], v[NR]}'
done
