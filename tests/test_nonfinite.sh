#!/bin/sh
# SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
# Numbers that are none, end to end: weights that are not finite are refused; a sample that makes the loss NaN is
# named and its step skipped, rolled back or the end, alone and over ranks; what diverges stops.
# Environment: DISTTRAIN (the program), srcdir (the source directory).
set -u
. "${srcdir:=.}/tests/small_job.sh"
alone='plan={colocated: true, encoder: {}, llm: {}, generator: {}}'

# --- data: the sample with the key 00000017 is white, whiter than all others ---
{ printf '\000\000\010\003\000\000\000\050\000\000\000\010\000\000\000\010'
  i=0
  while [ $i -lt 40 ]; do
      if [ $i -eq 17 ]; then printf '%064d' 0 | tr 0 '\377'
      elif [ $((i % 2)) -eq 0 ]; then printf '%064d' 0 | tr 0 '\050'
      else printf '%064d' 0 | tr 0 '\310'; fi
      i=$((i + 1))
  done; } >images
expect 0 "40 samples" "$DISTTRAIN" data pack --idx images --labels labels --label-names dark,light -o three

# --- weights of the first patch filter: 16 x VALUE (bytes of a float), in a copy of a run's ---
expect 0 "" "$DISTTRAIN" train --no-runs job.yaml "$alone" run.data=three-000000.tar run.steps=1 run.checkpoint.dir=begin
weights() {
    cp begin/step-00000001/model.safetensors "$1"
    header=$(od -A n -t u8 -N 8 "$1" | tr -d ' ')
    at=$(head -c $((8 + header)) "$1" | tail -c "$header" |
        sed 's/.*"encoder.embeddings.patch_embeddings.projection.weight":{[^}]*"data_offsets":\[\([0-9]*\),.*/\1/')
    i=0
    while [ $i -lt "$3" ]; do
        printf "$2" | dd of="$1" bs=1 seek=$((8 + header + at + 4 * i)) conv=notrunc 2>/dev/null
        i=$((i + 1))
    done
}
weights none.safetensors '\000\000\300\177' 2  # NaN
weights heavy.safetensors '\034\155\212\175' 16 # 2.3e37: white overflows, light and dark do not

# --- not finite: refused, whoever reads it ---
expect 2 'none.safetensors: tensor "encoder.embeddings.patch_embeddings.projection.weight": 2 of 256 values are not finite (2 NaN' \
    "$DISTTRAIN" train --no-runs job.yaml "$alone" --init-from none.safetensors run.steps=1
check "no word of nan as a result" '! grep -q "loss" out'
expect 2 "2 of 256 values are not finite" "$DISTTRAIN" train --no-runs job.yaml --ranks 4 --init-from none.safetensors run.steps=1
# without clipping and reordering a pipeline computes the same to the bit (it adds up the norm in another order)
train() { # DIR what else
    train_dir=$1; shift
    "$DISTTRAIN" train --no-runs job.yaml --init-from heavy.safetensors run.data=three-000000.tar run.lr=1e-3 \
        run.clip=0 run.steps=30 'train.reorder={intra: false, inter: false}' "run.checkpoint={dir: $train_dir, interval: 3}" "run.log_dir=log-$train_dir" "$@" >out 2>err </dev/null
    got=$?
}

# --- skipping, which is the default ---
train skip "$alone" --json
check "skipping goes on" '[ $got -eq 0 ]'
n=$(grep -c "warning: step" err)
check "a warning for each" '[ "$n" -ge 1 ] && [ "$n" -lt 10 ]'
check "with module, tensor and sample" '! grep "warning: step" err |
    grep -qv "module llm is not finite; first such gradient: encoder.*values are not finite.*of sample.*three-000000.tar:00000017.*skipped"'
check "counted" 'grep -q "\"skipped_steps\": $n" out && grep -q "\"nonfinite_steps\": $n" out && ! grep -qi ": nan\|: inf" out'
check "logged" '[ $(grep -c "\"event\":\"nonfinite\",\"action\":\"skip\"" log-skip/metrics.jsonl) -eq $n ] &&
    grep "\"event\"" log-skip/metrics.jsonl | head -1 | grep -q "\"module\":\"llm\".*\"gradient\":{\"tensor\":\"encoder.*three-000000.tar:00000017"'
check "a line for each step, too" '[ $(grep -c "\"tokens\"" log-skip/metrics.jsonl) -eq 30 ]'
sums skip/step-00000030 >alone.sums
bad=$(sed -n 's/.*warning: step \([0-9]*\):.*/\1/p' err | head -1)

# --- and by name, too, where producers read the data ---
if ! "$DISTTRAIN" preprocess --keygen nokeys 2>&1 | grep -q "without ZeroMQ"; then
    grep "warning: step" err >own.warnings
    "$DISTTRAIN" preprocess --listen 127.0.0.1:0 --insecure job.yaml run.data=three-000000.tar >address 2>producer.err &
    producer=$!
    tries=0
    while [ ! -s address ] && [ $tries -lt 400 ]; do sleep 0.05; tries=$((tries + 1)); done
    train fed "$alone" "run.data=\"$(cat address)\""
    kill $producer; wait $producer
    check "producers know the names of samples" '[ $got -eq 0 ] && grep "warning: step" err | cmp -s - own.warnings'
    check "and so does the log" 'grep -q "\"sample_names\":\[\"three-000000.tar:000" log-fed/metrics.jsonl'
fi

# --- skipping leaves no trace: going on from a checkpoint, and other layouts ---
train parts "$alone" run.steps=$((bad + 1))
train parts "$alone"
check "resumed behind a skipped step" '[ $got -eq 0 ] && sums parts/step-00000030 | cmp -s - alone.sums'
pipeline='plan={encoder: {}, llm: {pp: 2}, generator: {}}'
train lanes "$pipeline"
sums lanes/step-00000030 >lanes.sums
train ranks "$pipeline" --ranks 4
check "over ranks" '[ $got -eq 0 ] && [ $(grep -c "warning: step" err) -eq $n ]'
check "as lanes of one process do" '[ -s lanes.sums ] && sums ranks/step-00000030 | cmp -s - lanes.sums'
check "as without a pipeline" 'cmp -s alone.sums lanes.sums'
train shards --ranks 4
check "with ZeRO-1" '[ $got -eq 0 ] && [ $(grep -c "warning: step" err) -eq $n ]'

# --- stopping, and going on from what is kept ---
before=$(printf %08d $(((bad - 1) / 3 * 3)))
train stop "$alone" run.nonfinite=stop
check "stopping has its exit code" '[ $got -eq 6 ]'
check "it says where and what is kept" 'grep -q "step $bad: .*training stops; the last good checkpoint is stop/step-$before, which is not removed" err'
check "nothing worse is saved" '[ "$(cat stop/latest)" = "step-$before" ] && [ ! -d stop/step-$(printf %08d $bad) ]'
train stop "$alone" run.nonfinite=skip
check "it goes on from there" '[ $got -eq 0 ] && sums stop/step-00000030 | cmp -s - alone.sums'
check "and the checkpoint is still there" '[ -f stop/step-$before/model.safetensors ] && [ $(ls -d stop/step-* | wc -l) -eq 3 ]'
train ranked --ranks 4 run.nonfinite=stop
check "ranks stop alike" '[ $got -eq 6 ] && [ $(grep -c "disttrain: step $bad: " err) -eq 1 ] && [ -f ranked/step-$before/kept ]'
# a restart would meet it again
"$DISTTRAIN" train --no-runs job.yaml --init-from heavy.safetensors run.data=three-000000.tar run.lr=1e-3 run.steps=30 \
    'run.checkpoint={dir: again, interval: 3}' run.nonfinite=stop --ranks 4 --max-restarts 3 >out 2>err </dev/null
got=$?
check "no restart" '[ $got -eq 6 ] && ! grep -q "restart 1 of" err'

# --- rolling back ---
train back "$alone" run.nonfinite=rollback --json
check "rolling back goes on" '[ $got -eq 0 ] && grep -q "\"rollbacks\": [1-9]" out && grep -q "\"last_step\": 30" out'
check "it says where to" 'grep -q "step $bad: .*; back to step $(((bad - 1) / 3 * 3)), 1 of at most 3 times" err'
sums back/step-00000030 >back.sums
train back4 --ranks 4 "$pipeline" run.nonfinite=rollback
check "ranks roll back alike" '[ $got -eq 0 ] && sums back4/step-00000030 | cmp -s - back.sums'
expect 2 "needs run.checkpoint" "$DISTTRAIN" train --no-runs job.yaml run.nonfinite=rollback

# --- all samples are bad: not for ever ---
weights full.safetensors '\377\377\177\177' 256 # the largest number there is
for how in skip rollback; do
    "$DISTTRAIN" train --no-runs job.yaml "$alone" --init-from full.safetensors run.steps=30 "run.nonfinite={$how: 2}" \
        "run.checkpoint.dir=never-$how" >out 2>err </dev/null
    got=$?
    check "$how ends" '[ $got -eq 6 ] && [ $(grep -c warning err) -eq 2 ] && grep -q "training stops after 2 such steps" err'
done
check "no checkpoint of it" '! ls never-skip | grep -q step- && [ "$(cat never-rollback/latest)" = step-00000000 ]'

# --- spikes: with a threshold so low that some losses are beyond it ---
noisy="run.packed=false train.global_batch=2 run.image_weight=5 run.clip=0"
spiky="spike={action: skip, deviations: 1, window: 16}"
"$DISTTRAIN" train --no-runs --json job.yaml "$alone" $noisy run.steps=150 "run.$spiky" run.log_dir=log-spike >out 2>err </dev/null
check "spikes are skipped" 'grep -q "warning: step .*: the loss is [0-9.]*, beyond the limit [0-9.]* (median of the last steps [0-9.]*); the step is skipped" err'
n=$(grep -c "the step is skipped" err)
check "and counted" 'grep -q "\"skipped_steps\": $n" out && [ $(grep -c "\"event\":\"spike\",\"action\":\"skip\"" log-spike/metrics.jsonl) -eq $n ]'
sed -n 's/.*warning: \(step [0-9]*\):.*/\1/p' err >alone.spikes
"$DISTTRAIN" train --no-runs --ranks 4 job.yaml "$pipeline" $noisy run.steps=150 "run.$spiky" >out 2>err </dev/null
sed -n 's/.*warning: \(step [0-9]*\):.*/\1/p' err | cmp -s - alone.spikes
check "ranks see the same spikes" "[ $? -eq 0 ]"
"$DISTTRAIN" train --no-runs job.yaml "$alone" $noisy run.steps=150 "run.spike={action: warn, deviations: 1, window: 16}" >out 2>err </dev/null
check "a warning changes nothing" 'grep -q "loss spikes  *[1-9]" out && ! grep -q skipped out err'
expect 6 "training stops" "$DISTTRAIN" train --no-runs job.yaml "$alone" $noisy run.steps=150 "run.spike={action: stop, deviations: 1, window: 16}"

# --- eval and sample: a finite checkpoint whose model gives no numbers ---
"$DISTTRAIN" train --no-runs job.yaml "$alone" --init-from heavy.safetensors run.steps=1 run.checkpoint.dir=heavy run.lr=0 \
    >/dev/null 2>&1 </dev/null
expect 6 "module llm: .* not finite" "$DISTTRAIN" eval job.yaml "$alone" -c heavy -n 40 run.eval_data=three-000000.tar
check "eval prints no nan" '! grep -qi "nan$\|: nan" out'
expect 0 "text loss" "$DISTTRAIN" eval job.yaml "$alone" -c heavy -n 4 run.eval_data=two-000000.tar

totals
