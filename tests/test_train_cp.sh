#!/bin/sh
# SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
# disttrain train with context parallelism: processes train as one does, use the memory that is predicted, and go on
# from and to checkpoints of other layouts.
# Environment: DISTTRAIN (the program), srcdir (the source directory).
set -u
. "${srcdir:=.}/tests/small_job.sh"
train() { # STEPS DIR PLAN OPTION...: a program's arguments, in "$@"
    train_steps=$1 train_dir=$2 train_plan=$3; shift 3
    expect 0 "" "$DISTTRAIN" train --no-runs --json job.yaml run.steps="$train_steps" \
        run.checkpoint.dir="$train_dir" "plan=$train_plan" "$@"
}
cp2='{encoder: {}, llm: {cp: 2}, generator: {}}'
cp2pp2='{colocated: true, encoder: {dp: 2}, llm: {cp: 2, pp: 2}, generator: {dp: 4}}'
cp2tp2='{colocated: true, encoder: {dp: 2}, llm: {cp: 2, tp: 2}, generator: {dp: 2}}'
cp4='{colocated: true, encoder: {dp: 2}, llm: {cp: 4}, generator: {dp: 2}}'

# --- the same training ---
train 4 one '{colocated: true}'
loss=$(field loss)
train 4 cp2 "$cp2" --ranks 4
check "cp 2, about the same loss" 'about loss "$loss" && [ "$(field ranks)" = 4 ]'
train 4 cp2pp2 "$cp2pp2" --ranks 4
check "cp 2 and pp 2 on GPUs of all modules" 'about loss "$loss"'
train 4 cp4 "$cp4" --ranks 4
check "cp 4" 'about loss "$loss"'
train 4 ring "$cp4" --ranks 4 train.cp_comm=ring
check "cp 4 on a ring" 'about loss "$loss"'
expect 0 "" "$DISTTRAIN" plan job.yaml -o cp2.json "plan=$cp2pp2"
sed 's/"intra_reorder"/"cp_comm": "ring", "intra_reorder"/' cp2.json >ring.json
train 4 ring2 ring.json --ranks 4
check "cp 2 and pp 2 on a ring, by a plan file" 'about loss "$loss" && grep -q "\"cp_comm\": \"ring\"" ring.json'
train 4 tp2 '{encoder: {}, llm: {tp: 2}, generator: {}}' --ranks 4

# --- on from one layout's checkpoint on another ---
train 6 one '{colocated: true}'
loss=$(field loss)
check "one process goes on" 'grep -q "\"resumed\": true" out'
for dir in cp2 cp2pp2 cp4 ring ring2; do
    train 6 $dir '{colocated: true}'
    check "one process goes on from $dir" 'about loss "$loss" && grep -q "\"resumed\": true" out'
done
train 6 tp2 "$cp2tp2" --ranks 4
check "cp 2 goes on from tp 2" 'about loss "$loss" && grep -q "\"resumed\": true" out'

# --- memory: what a rank allocates is what the model predicts, within 10 % ---
wide='model.modules.encoder={kind: encoder, layers: 2, hidden: 128, ffn: 384, heads: 4, patch: 4, channels: 1, positions: 4}'
llm='model.modules.llm={kind: llm, layers: 4, hidden: 192, ffn: 512, heads: 4, vocab: 264}'
unet='model.modules.generator={kind: unet, channels: [32, 64], head_dim: 16, res_blocks: 1, in_channels: 1,
    out_channels: 1, context_dim: 64, context_len: 8, latent_scale: 1, resize: 16}'
near() { # N RANKS
    sed -n "/\"memory\": \[/,/\]/p" out | awk -v n="$1" '/"allocated_bytes"/ { a = $2 + 0 }
        /"predicted_bytes"/ { k++; p = $2 + 0; if (a < 1e6 || p < 0.9 * a || p > 1.1 * a) { print p, a; bad = 1 } }
        END { exit bad || k != n }'
}
all() { # WHAT: over ranks, MiB
    sed -n "/\"memory\": \[/,/\]/p" out | awk -v w="\"$1_bytes\":" '$1 == w { s += $2 } END { printf "%.2f\n", s / 1048576 }'
}
for precision in fp32 auto; do
    for plan in "$cp2" "$cp2tp2" "$cp4"; do
        for way in gather $([ "$plan" = "$cp4" ] && echo ring); do
            train 2 memory "$plan" --ranks 4 run.precision=$precision train.microbatch=2 train.seq_len=256 \
                train.cp_comm=$way "$wide" "$llm" "$unet"
            check "memory of four ranks, $precision, $plan, $way" 'near 4'
            eval "takes_$way=$(all allocated) says_$way=$(all predicted) loss_$way=$(field loss)"
            rm -rf memory
        done
    done
    check "the same loss, $precision: $loss_gather, $loss_ring" 'awk "BEGIN { d = $loss_gather / $loss_ring - 1
        exit !(d * d < 1e-6) }"'
    # at least: gathering took twice as much more as is predicted, each being within the 10 % of above
    echo "$precision, cp 4: gather $takes_gather MiB (predicted $says_gather), ring $takes_ring ($says_ring)"
    check "a ring takes less than gathering by what is predicted, $precision" 'awk "BEGIN { took = $takes_gather - $takes_ring
        said = $says_gather - $says_ring; exit !(said > 1 && took > 0.9 * said) }"'
done

# --- what is refused ---
expect 2 "module encoder: cp 2 and ip 1 are planned and simulated; training takes cp for the LLM" \
    "$DISTTRAIN" train --ranks 4 --no-runs job.yaml run.steps=2 'plan={encoder: {cp: 2}, llm: {}, generator: {}}'
expect 2 "module llm: the 2 members of a lane need a rank each" \
    "$DISTTRAIN" train --ranks 2 --no-runs job.yaml run.steps=2 "plan=$cp2"

# --- simulated: over nodes a ring is slower than gathering, inside a node attention hides it ---
long() { # NODES TP CP WAY: the iteration
    "$DISTTRAIN" simulate --no-runs --json mimo-14b-72 cluster.nodes=$1 cluster.memory="640 GB" search.strategy=manual \
        train.global_batch=4 train.seq_len=32768 train.microbatch=1 train.schedule=1f1b train.zero=1 train.reorder=none \
        train.recompute=none train.cp_comm=$4 "plan={encoder: {dp: $((8 * $1)), with: llm, window: all}, llm: {tp: $2, cp: $3}}" \
        2>/dev/null | sed -n 's/.*"iteration_s": \([^,]*\).*/\1/p'
}
check "a ring over two nodes, a narrow lane" 'awk "BEGIN { exit !($(long 2 1 16 ring) > 1.1 * $(long 2 1 16 gather)) }"'
check "a ring in a node" 'awk "BEGIN { exit !($(long 1 1 8 ring) < $(long 1 1 8 gather)) }"'
totals
