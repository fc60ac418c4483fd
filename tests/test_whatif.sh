#!/bin/sh
# SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
# Sweeps: every point is what simulate says of it; as many processes or ranks as one likes give the same bytes; what was
# interrupted goes on; what is refused says why.
: "${DISTTRAIN:=./disttrain}" "${srcdir:=.}"
. "$srcdir/tests/shell.sh"
job="mllm-9b-96 search.effort=quick"
vary='--vary cluster.nodes=1,3,6 --vary train.global_batch=16,32'
whatif() { "$DISTTRAIN" whatif "$@" </dev/null; }
# COLUMN FILE: the values of a column without quoted commas before it
column() { awk -F, -v name="$1" 'NR == 1 { for (i = 1; i <= NF; i++) if ($i == name) c = i; next } { print $c }' "$2"; }

# ---- the oracle: simulate, point by point ----
# shellcheck disable=SC2086 # the options are words
expect 0 "6 points over cluster.nodes and train.global_batch" "$DISTTRAIN" whatif $job $vary --runs sweep.db --csv grid.csv -j 2
check "a row for each point" '[ "$(wc -l <grid.csv)" -eq 7 ]'
member() { sed -n "s/^  \"$1\": \([^,]*\),*$/\1/p" one; }
for nodes in 1 3 6; do
    for batch in 16 32; do
        # shellcheck disable=SC2086
        "$DISTTRAIN" simulate $job --no-runs --json cluster.nodes=$nodes train.global_batch=$batch >one 2>err
        grep "^$nodes,$batch," grid.csv >row
        if grep -q '^[0-9]*,[0-9]*,true,' row; then
            want=
            for m in iteration_s iteration_s_p10 iteration_s_p90 iteration_s_mean mfu mfu_cluster tokens_per_s samples_per_s \
                bubble_fraction exposed_comm_s goodput; do want="$want,$(member $m)"; done
            want="$want,$(printf '%.9g' "$(member memory_max_bytes)"),"
            check "nodes $nodes, batch $batch: $want is in $(cat row)" 'grep -qF -- "$want" row'
            check "nodes $nodes: GPUs" 'grep -q ",quick,$(member gpus),$(member gpus_used)," row'
        else
            check "nodes $nodes, batch $batch is refused by both: $(cat row)" \
                '! [ -s one ] && grep -q "no plan fits\|does not fit" row && grep -q "no plan fits\|does not fit" err'
        fi
    done
done
check "some fit, some do not" 'column feasible grid.csv | grep -q true'

# ---- guests: memory is that of all modules on the fullest GPU, as the plan has it ----
# shellcheck disable=SC2086
expect 0 "with llm" "$DISTTRAIN" plan $job -o guests.json
# shellcheck disable=SC2086
"$DISTTRAIN" whatif $job --gpus 96 --no-runs --csv guests.csv -j 1 >/dev/null 2>err
check "memory of the fullest GPU, $(column memory_bytes_max guests.csv) of $(field mem_bytes_max guests.json)" \
    'awk -v a="$(column memory_bytes_max guests.csv)" -v b="$(field mem_bytes_max guests.json)" \
        "BEGIN { exit !(b > 5e10 && a > 0.99 * b && a < 1.01 * b) }"'

# ---- tokens of samples that are not padded are those that are trained on ----
cat >short.yaml <<'END'
model: llama-7b
cluster: {preset: h100, nodes: 1}
samples: {distribution: {text_tokens: {kind: uniform, min: 100, max: 200}, pack: none}, seed: 3}
profile: h100
train: {global_batch: 512, microbatch: 8, seq_len: 4096, recompute: selective, zero: 1, schedule: 1f1b}
search: {strategy: manual}
plan: {llm: {tp: 2, dp: 4}}
END
expect 0 "tokens are those of samples, which are not padded, 1[45][0-9] for each in the mean" \
    "$DISTTRAIN" whatif short.yaml --no-runs -j 1 --tokens 100B --gpus 8 --csv short.csv
check "$(column days short.csv) days of $(column tokens_per_s short.csv) tokens/s" \
    'awk -v days="$(column days short.csv)" -v rate="$(column tokens_per_s short.csv)" -v good="$(column goodput short.csv)" \
        "BEGIN { want = 1e11 / rate / good / 86400; exit !(want > 1 && days > 0.999 * want && days < 1.001 * want) }"'

# ---- what one point leaves in the cost model is nothing to the next ----
small="$job cluster.nodes=2 train.global_batch=16"
# shellcheck disable=SC2086
expect 0 "16 points" "$DISTTRAIN" whatif $small --vary search.placement=own,auto --vary train.zero=1,2 \
    --vary train.recompute=selective,full --vary train.microbatch=1,2 --no-runs --csv shared.csv -j 1
for placement in own auto; do for zero in 1 2; do for recompute in selective full; do for micro in 1 2; do
    # shellcheck disable=SC2086
    "$DISTTRAIN" simulate $small --no-runs --json search.placement=$placement train.zero=$zero train.recompute=$recompute \
        train.microbatch=$micro >one 2>err
    grep "^$placement,$zero,$recompute,$micro," shared.csv >row
    check "$(cat row) as simulate alone has it" 'grep -qF -- ",$(member iteration_s),$(member iteration_s_p10)," row ||
        { ! [ -s one ] && grep -q ",false," row; }'
done; done; done; done
check "most of these fit" '[ "$(column feasible shared.csv | grep -c true)" -ge 8 ]'

# ---- nor are its samples, where an encoder of sound has another patch ----
sound="mllm-nano-audio train.seq_len=1024 model.encoder.positions=0"
# shellcheck disable=SC2086
expect 0 "3 points" "$DISTTRAIN" whatif $sound --vary model.encoder.patch=16,8,4 --no-runs --csv sound.csv -j 1
for patch in 16 8 4; do
    # shellcheck disable=SC2086
    "$DISTTRAIN" simulate $sound --no-runs --json model.encoder.patch=$patch >one 2>err
    check "patch $patch: $(member iteration_s) is in $(grep "^$patch," sound.csv)" \
        '[ -s one ] && grep "^$patch," sound.csv | grep -qF -- ",$(member iteration_s),"'
done

# ---- however many work on it ----
# shellcheck disable=SC2086
for j in 1 2 5; do whatif $job $vary --no-runs --csv - -j $j >"j$j.csv" 2>err || bad "-j $j"; done
check "-j 1 is -j 2 and -j 5" 'cmp j1.csv grid.csv && cmp j1.csv j2.csv && cmp j1.csv j5.csv'

# ---- going on ----
# shellcheck disable=SC2086
expect 0 "6 of them from sweep 1 of sweep.db" "$DISTTRAIN" whatif $job $vary --runs sweep.db --csv again.csv
check "from the file they are the same" 'cmp grid.csv again.csv'
# shellcheck disable=SC2086
expect 0 '"evaluated": 2,' "$DISTTRAIN" whatif $job --vary cluster.nodes=1,3,6,9 --vary train.global_batch=16,32 \
    --runs sweep.db --json
check "and more values are more points of the same sweep" 'grep -q "\"from_runs_file\": 6" out && grep -q "\"sweep\": 1" out'
# shellcheck disable=SC2086
expect 0 '"evaluated": 6,' "$DISTTRAIN" whatif $job $vary --runs sweep.db --again --json
# another job, other samples, another plan: another sweep
for other in "simulate.seed=2" "cluster.nic_latency=1us" "train.recompute=full"; do
    # shellcheck disable=SC2086
    expect 0 '"from_runs_file": 0' "$DISTTRAIN" whatif $job "$other" --vary cluster.nodes=6 --runs sweep.db --json
done
# a profile that changes under the same name: its results are others
for content in a800 a100; do
    cp "$srcdir/traces/profiles/$content.sql" mine.sql
    # shellcheck disable=SC2086
    expect 0 '"evaluated": 1' "$DISTTRAIN" whatif $job profile=./mine.sql --vary cluster.nodes=6 --runs sweep.db --json
done
# so is any other file that a key names, also one that varies, or that the job itself names
again() { # CHANGE FILE WHATIF...: the second time as before, the third time anew, for the file has changed
    change=$1 file=$2; shift 2
    expect 0 '"from_runs_file": 0' "$DISTTRAIN" whatif "$@" --runs files.db --json
    expect 0 '"evaluated": 0' "$DISTTRAIN" whatif "$@" --runs files.db --json
    cp "$file" before && eval "$change" <before >"$file"
    check "$file is another now" '! cmp -s before "$file"'
    expect 0 '"from_runs_file": 0' "$DISTTRAIN" whatif "$@" --runs files.db --json
}
printf 'preset: a800-96\nnic_bandwidth: 25 GB/s\n' >cluster.yaml
# shellcheck disable=SC2086
again "sed s/25/1/" cluster.yaml $job cluster.nodes=2 --vary cluster.preset=./cluster.yaml
cp "$srcdir/traces/models/mllm-9b.yaml" model.yaml
# shellcheck disable=SC2086
again "sed s/resize:.512/resize:\ 256/" model.yaml $job cluster.nodes=2 --vary model.preset=./model.yaml
printf 'sample,text_tokens\n0,100\n1,4000\n' >samples.csv
sed 's/^samples:.*/samples: {csv: samples.csv}/' short.yaml >listed.yaml
again "sed '2{h;d};3G'" samples.csv listed.yaml --vary samples.csv=./samples.csv
# shellcheck disable=SC2086
expect 0 "" "$DISTTRAIN" plan $job cluster.nodes=2 -o named.json
again "sed 's/\"recompute\": \"selective\"/\"recompute\": \"full\"/'" named.json mllm-9b-96 search.strategy=manual cluster.nodes=2 \
    plan=./named.json --vary simulate.seed=1,2

# Until some points are there: each takes a few hundred bytes, the empty tables five pages or so.
wait_for_points() {
    for i in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22 23 24 25 26 27 28 29 30; do
        [ "$(cat "$1" 2>/dev/null | wc -c)" -gt 70000 ] && return
        sleep 0.3
    done
}
# SIGKILL in the middle: nothing is lost but what was at work; its processes end; the same command goes on
big='--vary cluster.nodes=3..10 --vary train.global_batch=16,32,48,64 --vary simulate.seed=1..2'
# shellcheck disable=SC2086
"$DISTTRAIN" whatif $job $big --runs killed.db -j 2 --csv killed.csv >out 2>err </dev/null &
pid=$!
wait_for_points killed.db
children=$(pgrep -P $pid)
kill -KILL $pid
wait $pid 2>/dev/null
check "it was killed before its end" '[ ! -s killed.csv ]'
for i in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20; do
    # shellcheck disable=SC2086
    kill -0 $children 2>/dev/null || break
    sleep 0.5
done
# shellcheck disable=SC2086
check "its processes end with it" '! kill -0 $children 2>/dev/null'
# shellcheck disable=SC2086
expect 0 "" "$DISTTRAIN" whatif $job $big --runs killed.db -j 2 --csv resumed.csv --json
evaluated=$(sed -n 's/.*"evaluated": \([0-9]*\).*/\1/p' out) kept=$(sed -n 's/.*"from_runs_file": \([0-9]*\).*/\1/p' out)
check "it went on: $kept kept, $evaluated evaluated" '[ "$kept" -gt 0 ] && [ $((kept + evaluated)) -eq 64 ]'
# shellcheck disable=SC2086
whatif $job $big --no-runs --csv - -j 2 >whole.csv
check "and has what an undisturbed sweep has" 'cmp whole.csv resumed.csv'

# SIGINT: says so, and ends as whoever sent it expects
# shellcheck disable=SC2086
("$DISTTRAIN" whatif $job $big --runs int.db -j 2 >out 2>err </dev/null & pid=$!; wait_for_points int.db; kill -TERM $pid; wait $pid; echo $? >code)
check "a signal ends it: $(cat code)" '[ "$(cat code)" -eq 143 ]'
check "and it says what is there" 'grep -q "interrupted; [0-9]* results* .* in sweep 1 of int.db: the same command goes on" err'

# ---- random samples ----
set -- --vary 'cluster.nodes=3..12' --vary 'cluster.nic_latency=1..100* us'
# shellcheck disable=SC2086
expect 0 "9 points of a Latin hypercube, seed 7, over" "$DISTTRAIN" whatif $job --sample 9 --seed 7 "$@" --no-runs --csv lh.csv
check "all are evaluated" '[ "$(column feasible lh.csv | grep -c true)" -eq 9 ]'

# ---- keeping the plan ----
# shellcheck disable=SC2086
"$DISTTRAIN" plan $job -o plan.json >/dev/null
# shellcheck disable=SC2086
expect 0 "" "$DISTTRAIN" whatif $job --keep-plan --vary train.global_batch=64,96 --no-runs --csv kept.csv
for batch in 64 96; do
    # shellcheck disable=SC2086
    "$DISTTRAIN" simulate mllm-9b-96 --plan plan.json --no-runs --json train.global_batch=$batch >one
    check "the kept plan at batch $batch is simulate --plan's" 'grep "^$batch,true,none," kept.csv | grep -qF ",$(member iteration_s),"'
done
# shellcheck disable=SC2086
expect 0 "" "$DISTTRAIN" whatif mllm-9b-96 --plan plan.json --vary train.global_batch=64,96 --no-runs --csv file.csv
check "and is the plan file's" '[ "$(column iteration_s kept.csv)" = "$(column iteration_s file.csv)" ]'

# ---- refused points are rows, refused commands are errors ----
# a key that has nothing to act on
expect 0 "simulate.slow_gpu.factor makes no difference to any of these points" "$DISTTRAIN" whatif $job simulate.slow_gpu.fraction=0 \
    --vary cluster.nodes=6,8 --vary simulate.slow_gpu.factor=1.1,1.5 --vary train.global_batch=64,96 --no-runs
check "other keys do" '[ "$(grep -c "makes no difference" out)" = 1 ]'
expect 0 '"idle": \[\]' "$DISTTRAIN" whatif $job --vary cluster.nodes=6,8 --no-runs --json
# nor is one idle that decides whether the plan fits
stated='plan={"llm": {"tp": 8, "pp": 4, "dp": 3, "offload": "optimizer"}}'
expect 0 "needs .* GiB of its host" "$DISTTRAIN" whatif llama-70b-96 search.strategy=manual "$stated" --no-runs -j 1 \
    --vary "cluster.host_memory=10 GB,1000 GB,2000 GB"
check "no word of no difference" '! grep -q "makes no difference" out'
expect 0 "cluster.host_memory makes no difference" "$DISTTRAIN" whatif llama-70b-96 search.strategy=manual "$stated" --no-runs -j 1 \
    --vary "cluster.host_memory=1000 GB,2000 GB"
expect 2 "gpus: 3 is not a multiple of the 8 GPUs of a node; use 8\$" "$DISTTRAIN" plan $job cluster.gpus=3
expect 0 "gpus: 100 is not a multiple of the 8 GPUs of a node; use 96 or 104" "$DISTTRAIN" whatif $job --gpus 96,100 --no-runs --csv -
expect 0 "3 points over cluster.gpus" "$DISTTRAIN" whatif $job --gpus 20..40 --no-runs --csv whole.csv
check "a range of GPUs is one of whole nodes" '[ "$(column cluster.gpus whole.csv | tr "\n" " ")" = "24 32 40 " ]'
expect 2 "no multiple of the 8 GPUs of a node is from 9 to 15" "$DISTTRAIN" whatif $job --gpus 9..15 --no-runs
expect 0 "3 points over cluster.nodes" "$DISTTRAIN" whatif $job 'cluster={preset: a800-96, nodes: 3}' --gpus 20..40 --no-runs
expect 0 "no such preset\|no profile\|nosuch" "$DISTTRAIN" whatif $job --vary profile=a800,nosuch --no-runs
expect 2 'no key "cluster.nods"; did you mean "cluster.nodes"' "$DISTTRAIN" whatif $job --vary cluster.nods=1,2
expect 2 'no key "xyzzy" (see .disttrain keys.)' "$DISTTRAIN" whatif $job --vary xyzzy=1,2
expect 2 "both stated and varied" "$DISTTRAIN" whatif $job cluster.nodes=3 --vary cluster.nodes=1,2
expect 2 "varies twice" "$DISTTRAIN" whatif $job --gpus 8 --vary cluster.nodes=1,2
expect 2 "varies twice" "$DISTTRAIN" whatif $job --vary cluster.nodes=3 --vary cluster.nodes=1,2
expect 2 "nothing varies" "$DISTTRAIN" whatif mllm-9b-96
expect 2 "nothing varies; add" "$DISTTRAIN" whatif mllm-9b-96 --sample 5 --tokens 1T
expect 2 "missing between commas" "$DISTTRAIN" whatif mllm-9b-96 --vary cluster.nodes=1,,2
expect 2 "a grid needs the step" "$DISTTRAIN" whatif mllm-9b-96 --vary simulate.jitter=0.0..0.1
expect 2 "nosuch" "$DISTTRAIN" whatif nosuch --gpus 8
expect 2 "not a runs file" "$DISTTRAIN" whatif $job --gpus 96 --runs "$srcdir/COPYING"
expect 2 "standard output\|stdout" "$DISTTRAIN" whatif $job --gpus 96 --csv - --json

# ---- a picture ----
# shellcheck disable=SC2086
expect 0 "" "$DISTTRAIN" whatif $job --gpus 48,96 --no-runs --svg picture.svg
check "an SVG file" 'head -c 5 picture.svg | grep -q "<svg" && grep -q "</svg>" picture.svg'
if command -v xmllint >/dev/null 2>&1; then check "well-formed" 'xmllint --noout picture.svg'; fi

# values in different units lie where their quantities do, and lines go from left to right whatever the order
drawn() { # KEY=VALUES: the places along x, and the axis
    "$DISTTRAIN" whatif llama-70b-96 search.strategy=manual 'plan={"llm": {"tp": 8, "pp": 4, "dp": 3}}' --no-runs -j 1 --tokens 1B \
        --vary "$1" --svg units.svg >out 2>err </dev/null || bad "--vary $1"
    sed -n 's/.*dt-line"[^>]* d="M\([^"]*\)".*/\1/p' units.svg | tr L '\n' | cut -d' ' -f1 >places
}
drawn "cluster.nic_bandwidth=200 Gb/s,0.4 Tb/s,100 Gb/s"
check "100, 200 and 400 Gb/s: $(tr '\n' ' ' <places)" \
    'awk "{ x[NR] = \$1 } END { r = (x[3] - x[2]) / (x[2] - x[1]); exit !(NR == 3 && r > 1.98 && r < 2.02) }" places'
check "in the key's own unit" 'grep -q ">cluster.nic_bandwidth \[bytes/s\]<" units.svg'
drawn "cluster.nic_bandwidth=200 Gb/s,400 Gb/s,100 Gb/s"
check "in the stated one where all have it" 'grep -q ">cluster.nic_bandwidth \[Gb/s\]<" units.svg && sort -nc places'
drawn "simulate.failures.checkpoint_interval=10 min,30 s,1 h,1 min"
check "30 s, 1 min, 10 min and 1 h on a logarithmic axis: $(tr '\n' ' ' <places)" \
    'awk "{ x[NR] = \$1 } END { r = (x[3] - x[2]) / (x[2] - x[1]); exit !(NR == 4 && r > 3.3 && r < 3.35) }" places'

# ---- over ranks ----
if [ "${HAVE_MPI-yes}" != no ] && command -v mpirun >/dev/null 2>&1; then
    . "$srcdir/tests/mpirun.sh"
    for ranks in 2 3; do
        # shellcheck disable=SC2086
        mpi_run $ranks "$DISTTRAIN" whatif $job $vary --no-runs --csv "ranks$ranks.csv" >out 2>err </dev/null || bad "$ranks ranks"
        check "$ranks ranks give the bytes of one process" 'cmp grid.csv ranks$ranks.csv'
    done
    # shellcheck disable=SC2086
    mpi_run 2 "$DISTTRAIN" whatif $job $vary --runs sweep.db --json >out 2>err </dev/null || bad "ranks on a runs file"
    check "ranks go on with what processes have found" 'grep -q "\"evaluated\": 0" out'
    check "one rank prints" '[ "$(grep -c "\"points\"" out)" -eq 1 ]'
fi
totals
