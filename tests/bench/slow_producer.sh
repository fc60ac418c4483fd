#!/bin/sh
# SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
# The wait for data, predicted and measured: pictures of 48, 256 and 1,024 pixels a side, few of them large, for a small
# model, made by two producers of one thread, one of which shares its core with six processes.  Predicted from a profile of this
# machine and the rates of a core (disttrain profile, with --data), simulated with what training reads; measured by training.
# A core's speed changes within seconds, by half on some machines, so a prediction is brought from the speed of its profile to that of its
# training: by the core time that a document took the producers, over the core time that it was predicted to take.
# The model is tiny because training shares its core with the other producer, which no prediction knows of.
: "${srcdir:=.}"
. "$srcdir/tests/shell.sh"
pids= sharers=
trap 'kill $pids $sharers 2>/dev/null; rm -rf "$tmp"' EXIT
if "$DISTTRAIN" preprocess --keygen keys 2>&1 | grep -q 'without ZeroMQ'; then
    echo '# no ZeroMQ: producers not measured'
    exit 0
fi

# ---- data: noise, so that the files are as large as the pictures ----
u32() { printf "\\$(printf %03o $(($1 >> 24)))\\$(printf %03o $(($1 >> 16 & 255)))\\$(printf %03o $(($1 >> 8 & 255)))\\$(printf %03o $(($1 & 255)))"; }
pictures() { # COUNT SIDE
    { printf '\000\000\010\003'; u32 "$1"; u32 "$2"; u32 "$2"; head -c $(($1 * $2 * $2)) /dev/urandom; } >images
    { printf '\000\000\010\001'; u32 "$1"; head -c "$1" /dev/zero; } >labels
    "$DISTTRAIN" data pack --idx images --labels labels --label-names noise -o "side$2" >/dev/null 2>err || { cat err >&2; exit 1; }
    rm images labels
}
pictures 100 48; pictures 60 256; pictures 40 1024
batch=40
cat >job.yaml <<END
model:
  modules:
    encoder: {kind: encoder, layers: 1, hidden: 32, ffn: 64, heads: 2, patch: 8, channels: 1, positions: 16, resize: 32}
    llm: {kind: llm, layers: 1, hidden: 32, ffn: 64, heads: 2, vocab: 264}
cluster: local
samples: sizes.csv
train: {global_batch: $batch, microbatch: 10, seq_len: 64, recompute: none, zero: 0, schedule: 1f1b}
search: {allow_analytical: true, strategy: manual}
plan: {colocated: true}
run: {data: ., precision: fp32, threads: 1, decay: constant, warmup_steps: 1, packed: false,
  generate: 0, log_interval: 1}
END
# sizes as stored, which is what has to be decoded, in the orders of 40 epochs
"$DISTTRAIN" data scan --fast --unpacked --generate 0 --fit none side*-000000.tar | sed '/^#/d' | cut -d, -f1-4 >epoch.csv
{
    sed -n '1p' epoch.csv
    for epoch in $(seq 40); do
        sed '1d' epoch.csv | awk -v seed=$epoch 'BEGIN { srand(seed) } { print rand() "\t" $0 }' | sort -g | cut -f2-
    done | awk -F, -v OFS=, '{ $1 = NR - 1; print }'
} >sizes.csv

# ---- a core that seven processes share, and what that makes of the speed of one ----
core=$(($(nproc) - 1))
if [ "$core" -lt 1 ] || ! taskset -c $core true 2>/dev/null; then
    echo '# one core only: a slow producer not measured'
    exit 0
fi
share() { # the other six; in $sharers
    sharers=
    for i in 1 2 3 4 5 6; do
        taskset -c $core sh -c 'while :; do :; done' & sharers="$sharers $!"
    done
}
cat >work.sh <<'END'
i=0; while [ $i -lt 1000000 ]; do i=$((i + 1)); done
times
END
# wall time over time of the core, which does not depend on how fast the machine is just then
factor() {
    begin=$(date +%s%N)
    taskset -c $core sh work.sh >times
    awk -v wall=$(($(date +%s%N) - begin)) 'NR == 1 { split($1, u, /[ms]/); split($2, s, /[ms]/)
        printf "%.4f", wall * 1e-9 / (60 * (u[1] + s[1]) + u[2] + s[2]) }' times
}

producer() { # N CORE
    taskset -c $2 "$DISTTRAIN" preprocess --listen 127.0.0.1:0 --workers 1 --insecure job.yaml >"p$1" 2>/dev/null &
    pids="$pids $!"
    tries=0
    while [ ! -s "p$1" ] && [ $tries -lt 400 ]; do sleep 0.05; tries=$((tries + 1)); done
}
ran() { # FILE COMMAND...
    into=$1; shift
    "$@" >"$into" 2>err </dev/null || { echo "# '$*' failed:"; cat err; exit 1; }
}
number() { sed -n "s/^.*\"$1\": \([-0-9.e+]*\).*/\1/p" "$2" | head -n 1; }

speed=0.0015 # of both profiles: the reference kernel takes so long
steps=60
# What is waited for a step, in s: predicted and measured.  Training asks for 1,024 documents ahead, 25 batches.  The first 10 of 60 steps are not counted: producers have
# made documents for them while training began.
round() {
    share; factor=$(factor) # the others go on: cores may share execution units and caches
    ran log taskset -c 0 "$DISTTRAIN" profile --reference $speed job.yaml -o local.sql
    ran log taskset -c 0 "$DISTTRAIN" profile --reference $speed --data job.yaml -o cpu.sql
    kill $sharers; wait 2>/dev/null
    pids=
    producer 1 0; producer 2 $core
    share; pids="$pids $sharers"
    rm -rf log.d
    ran out taskset -c 0 "$DISTTRAIN" train --no-runs --json job.yaml run.steps=$steps run.log_dir=log.d "run.data=\"$(cat p2),$(cat p1)\""
    kill $pids; wait 2>/dev/null
    ran out "$DISTTRAIN" simulate --no-runs --json job.yaml profile=local.sql simulate.iterations=$((steps + 20)) \
        "simulate.preprocess={mode: disaggregated, cpu_nodes: 2, cores_per_cpu_node: 1, slow_nodes: 1, slow_factor: $factor, rpc_bandwidth: 1 GB/s, prefetch: 25, profile: cpu.sql}"
    # "making 2.0 s of a core, 1.6 ms a document"
    slower=$(awk -v predicted="$(number core_s out)" -v batch=$batch '
        / of a core, / { s += $2; n += 1e3 * $2 / $7 } END { print s / n / (predicted / batch) }' p1 p2)
    rm p1 p2
    awk -v predicted="$(number exposed_s out)" -v slower="$slower" -v factor="$factor" '
        match($0, /"data_s": */) && NR > 10 { sum += substr($0, RSTART + RLENGTH); n++ }
        END { print predicted * slower, sum / n, slower, factor }' log.d/metrics.jsonl
}
for i in 1 2 3 4 5 6 7; do round; done >rounds
awk '{ print $1 / $2 }' rounds | sort -g | sed -n 4p >ratio
awk '{ print $2 }' rounds | sort -g | sed -n 4p >measured
sed 's/^/# predicted, measured [s]; core time of a document over the profile; times as long with others: /' rounds
echo "bench: data_exposed_slow_producer $(cat measured) s/step ratio $(cat ratio) of predicted to measured, median of 7"
