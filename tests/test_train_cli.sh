#!/bin/sh
# SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
# disttrain train: from IDX files to a trained checkpoint, stopping by signal, plans of few GPUs.
# Environment: DISTTRAIN (the program), srcdir (the source directory).
set -u
. "${srcdir:=.}/tests/shell.sh"

pack_two_tones

cat >job.yaml <<'END'
model:
  modules:
    encoder: {kind: encoder, layers: 1, hidden: 16, ffn: 32, heads: 2, patch: 4, channels: 1, positions: 4}
    llm: {kind: llm, layers: 1, hidden: 16, ffn: 32, heads: 2, vocab: 264}
    generator: {kind: unet, channels: [8, 8], head_dim: 8, res_blocks: 1, in_channels: 1, out_channels: 1,
      context_dim: 8, context_len: 2, latent_scale: 1, resize: 8}
cluster: local
samples: text
train: {global_batch: 4, microbatch: 2, seq_len: 64}
search: {allow_analytical: true}
run: {data: two-000000.tar, steps: 4, threads: 1, log_dir: log, checkpoint: {dir: saved}}
END
# --- usage ---
expect 2 "no run: map" "$DISTTRAIN" train mllm-nano-local
expect 2 "did you mean" "$DISTTRAIN" train job.yaml run.stepz=3
expect 2 "data pack" "$DISTTRAIN" train job.yaml 'run={steps: 2}'
expect 2 "none.tar" "$DISTTRAIN" train job.yaml run.data=none.tar
expect 2 "precision: fp16 is for simulations" "$DISTTRAIN" train job.yaml train.precision=fp16
expect 2 "tp" "$DISTTRAIN" train job.yaml search.strategy=manual 'plan={encoder: {}, llm: {tp: 2}, generator: {}}'

# --- a run, silent but for its summary ---
expect 0 "image loss" "$DISTTRAIN" train job.yaml
check "data and order" 'grep -q "data and order .* per batch (order .*exposed" out'
check "nothing on stderr" '[ ! -s err ]'
check "metrics of every step" '[ $(grep -c loss_text log/metrics.jsonl) -eq 4 ]'
check "no reference unless asked" '! grep -q reference log/metrics.jsonl'
expect 2 "reference" "$DISTTRAIN" train job.yaml --reference 0
expect 0 "" "$DISTTRAIN" train --no-runs job.yaml --reference 2 run.log_dir=log2 'run.checkpoint={dir: saved2}'
check "the reference kernel around every second step" \
    '[ "$(sed -n "s/.*\"step\":\([0-9]*\),.*\"reference_before_s\":[0-9.e-]*[1-9].*\"reference_after_s\":[0-9.].*/\1/p" log2/metrics.jsonl | tr "\n" " ")" = "2 4 " ]'
check "an event file" 'ls log/*tfevents* >/dev/null 2>&1'
check "a checkpoint" '[ -f saved/step-00000004/model.safetensors ]'
check "the run is kept" '[ -s disttrain-runs.db ]'
expect 0 '"resumed": true' "$DISTTRAIN" train --json --no-runs job.yaml run.steps=6
check "what was made beside the steps" 'grep -A 7 "\"loading\"" out | grep -q "\"batches\": 2" && grep -q "\"exposed_s\"" out'
check "it went on" 'grep -q "\"first_step\": 4" out && grep -q "\"last_step\": 6" out'
expect 2 "from-scratch" "$DISTTRAIN" train --no-runs job.yaml run.seed=3

# --- how fast it was ---
expect 0 "" "$DISTTRAIN" train --json --runs fast.db job.yaml run.steps=3 run.log_dir=fast run.checkpoint.dir=fast
check "rates are tokens and FLOPs per second" "speed_holds fast fast.db"

# --- what was made beside the last step is in the trace: steps of 0.2 s, so that the thread has its turn in them ---
expect 0 "" "$DISTTRAIN" train --runs beside.db job.yaml run.steps=2 run.checkpoint.dir=beside train.global_batch=64 \
    model.modules.llm.layers=4 model.modules.llm.hidden=128 model.modules.llm.ffn=512
expect 0 "" "$DISTTRAIN" trace export last --runs beside.db
# slices of a category: pid, begin, end, name
slices() {
    sed -n 's/^{"ph": "X", "cat": "'"$1"'", "name": "\([^"]*\)", "pid": \([0-9]*\), .*"ts": \([0-9.]*\), "dur": \([0-9.]*\),.*/\2 \3 \4 \1/p' trace.json |
        awk '{ printf "%s %s %.3f", $1, $2, $2 + $3; for (i = 4; i <= NF; i++) printf " %s", $i; print "" }'
}
slices compute >compute; slices data >data
cp data out; cp compute err
check "loading and ordering of batches to come" '[ -s data ] && ! grep -vq " load batch [34]$\| order batch [34]$" data &&
    grep -q load data && grep -q order data'
check "on a thread of rank 0" 'pid=$(sed -n "s/.*process_name\", \"pid\": \([0-9]*\), .*rank 0.*/\1/p" trace.json) &&
    grep -q "thread_name\", \"pid\": $pid, \"tid\": 0, .*\"data\"" trace.json && ! grep -vq "^$pid " data &&
    ! grep -q "^$pid " compute'
check "while the step computes" 'awk "NR == FNR { if (\$3 > end) end = \$3; b[NR] = \$2; e[NR] = \$3; n = NR; next }
    { if (\$2 >= end || \$3 <= 0) exit bad = 1; for (i = 1; i <= n; i++) if (\$2 < e[i] && \$3 > b[i]) { found++; break } }
    END { exit bad || !found }" compute data'
check "one after the other, order after load" 'sort -k 2,2n data | awk "\$2 < end { exit 1 } { end = \$3 }" &&
    awk "{ if (\$4 == \"load\") e[\$6] = \$3; else if (\$6 in e && \$2 < e[\$6]) exit 1 }" data'

# --- the line on a terminal ---
if script -qec true /dev/null </dev/null >/dev/null 2>&1; then # util-linux's script is one
    on_terminal() { # COLUMNS FOLDER
        script -qec "stty cols $1; '$DISTTRAIN' train --no-runs job.yaml run.steps=3 run.checkpoint.dir=$2" /dev/null \
            </dev/null 2>err | tr "\r" "\n" | sed "s/^$(printf '\033')\[K//" >out
    }
    number='[0-9.]*[0-9]'
    on_terminal 200 seen
    check "losses, time left, MFU and rates" 'grep -q "step 3/3  text $number  image $number  ETA 0 s  MFU $number %  $number tokens/s  $number samples/s" out'
    check "a line per step" '[ $(grep -c "ETA .*MFU $number %" out) -eq 3 ]'
    on_terminal 40 narrow
    check "no wider than the terminal" '[ $(grep -c "^step [0-9]" out) -eq 3 ] && ! grep "^step [0-9]" out | grep -q "........................................"'
    check "and only whole fields" '! grep "^step [0-9]" out | grep -v " text $number\( *image $number\)\{0,1\}$"'
fi

# --- weights of another run, and of nowhere ---
expect 0 "weights read  *[1-9]" "$DISTTRAIN" train --no-runs --init-from saved job.yaml run.steps=6 run.checkpoint.dir=other run.lr=0
cp saved/step-00000006/model.safetensors 'of: "all" {5}.safetensors'
"$DISTTRAIN" train --no-runs --json --init-from 'of: "all" {5}.safetensors' job.yaml run.steps=6 run.checkpoint.dir=third run.lr=0 >out 2>err
a=$(ls other/step-00000006/model.safetensors) b=third/step-00000006/model.safetensors
check "the same weights by either name" 'cmp -s "$a" "$b" && cmp -s "$a" saved/step-00000006/model.safetensors'
expect 2 "nowhere" "$DISTTRAIN" train --no-runs --init-from nowhere job.yaml run.steps=1 run.checkpoint.dir=fourth
expect 0 "resumed" "$DISTTRAIN" train --no-runs --init-from saved job.yaml run.steps=7 run.checkpoint.dir=third

# --- a module of which they have nothing ---
sed 's/^    encoder:/    eye:/' job.yaml >eye.yaml
expect 2 'none of the 2[0-9] parameters of module "eye" is there.*looked for embeddings.patch_embeddings.projection.weight, .*also has encoder\.' \
    "$DISTTRAIN" train --no-runs --init-from saved eye.yaml run.steps=1 run.checkpoint.dir=fifth
check "nothing was trained" '[ ! -e fifth/latest ]'
expect 0 "eye  *0 of 2[0-9]; missing: embeddings" \
    "$DISTTRAIN" train --no-runs --init-from saved --init-partial eye.yaml run.steps=1 run.checkpoint.dir=fifth
expect 0 '"module": "llm",' "$DISTTRAIN" train --no-runs --json --init-from saved eye.yaml run.steps=1 run.checkpoint.dir=sixth run.init_partial=true
check "counts of every module in JSON" 'tr -d " \n" <out | grep -q "\"init\":{\"found\":[1-9][0-9]*,\"missing\":2[0-9],\"unused\":2[0-9],\"modules\":\[{\"module\":\"eye\",\"asked\":2[0-9],\"found\":0,\"missing\":2[0-9],\"unused\":0},"'

# --- layers of which they have a part: a name that is not theirs ---
expect 0 "" "$DISTTRAIN" train --no-runs job.yaml run.steps=1 run.checkpoint.dir=plain model.modules.llm.gated=false
expect 2 '1 layer of module "llm" is there in part, and the rest would start at random; looked for model.layers.0.mlp.gate_proj.weight, for one; .*--init-partial' \
    "$DISTTRAIN" train --no-runs --init-from plain job.yaml run.steps=1 run.checkpoint.dir=halves
check "nothing was trained" '[ ! -e halves/latest ]'
expect 0 "llm  *[0-9]* of [0-9]*; missing: model.layers.0.mlp.gate_proj.weight$" \
    "$DISTTRAIN" train --no-runs --init-from plain --init-partial job.yaml run.steps=1 run.checkpoint.dir=halves
# whole layers that they lack are new ones
expect 0 "llm  *[0-9]* of [0-9]*; missing: model.layers.1" \
    "$DISTTRAIN" train --no-runs --init-from saved job.yaml run.steps=1 run.checkpoint.dir=more model.modules.llm.layers=3

# --- a finished job ---
expect 0 '"finished_before": false' "$DISTTRAIN" train --no-runs --json job.yaml run.steps=3 run.checkpoint.dir=seen3
for n in 3 2; do # as many steps as it has, and fewer
    expect 0 "nothing to do .*its checkpoint is of step 3, and run.steps is $n" \
        "$DISTTRAIN" train --no-runs job.yaml run.steps=$n run.checkpoint.dir=seen3
done
check "it says what to change" 'grep -q "set run.steps above 3" out && grep -q -- --from-scratch out && ! grep -q "^steps" out'
expect 0 '"finished_before": true' "$DISTTRAIN" train --no-runs --json job.yaml run.steps=2 run.checkpoint.dir=seen3

# --- a signal ends it in order ---
"$DISTTRAIN" train --no-runs --json job.yaml run.steps=1000000 >out 2>err &
pid=$!
n=0
while [ $n -lt 300 ] && [ $(grep -c . log/metrics.jsonl) -lt 12 ]; do sleep 0.1; n=$((n + 1)); done
kill -INT $pid 2>/dev/null || kill -TERM $pid
# a shell without job control starts background commands with SIGINT ignored
sleep 0.5; kill -TERM $pid 2>/dev/null
wait $pid
check "a stopped run exits with 0" "[ $? -eq 0 ]"
check "it says so" 'grep -q "\"stopped\": true" out'
last=$(sed -n 's/.*"last_step": \([0-9]*\).*/\1/p' out)
check "it saved where it stopped" '[ -d "saved/step-$(printf %08d "$last")" ]'

# --- fewer GPUs than modules: they share them ---
expect 0 '"colocated": true' "$DISTTRAIN" plan -o - mllm-nano-local cluster.gpus_per_node=1
expect 0 "1 GPUs used" "$DISTTRAIN" simulate --no-runs mllm-nano-train

totals
