#!/bin/sh
# SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
# disttrain train --init-from: checkpoints named as Mixtral's, Qwen2-MoE's and the vision towers' of Qwen2-VL and Qwen2.5-VL
# are read whole, on layouts that deal their tensors, and come out of a checkpoint bit for bit.  The files are written by
# tests/hf_weights.py, which states names and shapes as the classes of transformers have them.
# Environment: DISTTRAIN (the program), srcdir (the source directory), PYTHON.
set -u
. "${srcdir:=.}/tests/small_job.sh"
: "${PYTHON:=python3}"
"$PYTHON" -c 'import json, struct' 2>/dev/null || { echo 'no Python: skipped'; exit 77; }
weights() { "$PYTHON" "$srcdir/tests/hf_weights.py" "$@"; }
train() { # DIR KIND OPTION...: one step that changes nothing, from KIND's weights
    train_dir=$1 train_kind=$2; shift 2
    expect 0 "" "$DISTTRAIN" train --no-runs --json --init-from $train_kind.safetensors job.yaml \
        run.steps=1 run.lr=0 run.checkpoint.dir=$train_dir "$@"
}
read_whole() { # MODULE: nothing missing, nothing left over
    tr -d ' \n' <out | grep -q "{\"module\":\"$1\",\"asked\":[1-9][0-9]*,\"found\":[1-9][0-9]*,\"missing\":0,\"unused\":0}"
}
model() { # KIND: an encoder of our own before it, for the pictures
    echo "{modules: {encoder: {kind: encoder, layers: 1, hidden: 16, ffn: 32, heads: 2, patch: 4, positions: 4},
        llm: {hf: $1.json}}}"
}
loss() { sed -n 's/.*"loss": \([^,]*\).*/\1/p' out | head -1; }

for kind in mixtral qwen2_moe; do
    weights write $kind . || exit 99
    n=0 one=
    for layout in 1 '2 tp: 2' '4 dp: 2, ep: 2, tp: 2' '4 dp: 4, ep: 4' '4 dp: 2, ep: 2, pp: 2'; do
        n=$((n + 1)) ranks=${layout%% *} degrees=${layout#?}
        train $kind$n $kind "model=$(model $kind)" "plan={colocated: true, llm: {$degrees}}" run.init_partial=true \
            --ranks $ranks
        check "$kind,$degrees: all tensors are read, no other is asked for" 'read_whole llm'
        check "$kind,$degrees: the same in the checkpoint" 'weights same $kind . $kind$n/step-*'
        # the same numbers mean the same everywhere; the encoder's are drawn alike
        one=${one:-$(loss)}
        check "$kind,$degrees: a loss of $(loss), of $one on one rank" \
            'awk "BEGIN { d = $(loss) / $one - 1; exit !($one > 0 && d < 1e-6 && d > -1e-6) }"'
    done
done

# --- a vision tower and its merger, beside an LLM of our own ---
for kind in qwen2_vl qwen2_5_vl; do
    weights write $kind . || exit 99
    tower="{modules: {encoder: {hf: {config: $kind.json, part: vision}},
        llm: {kind: llm, layers: 1, hidden: 16, ffn: 32, heads: 2, vocab: 264}}}"
    n=0
    for plan in '{encoder: {}, llm: {}}' '{encoder: {tp: 2}, llm: {}}' '{encoder: {pp: 2}, llm: {}}'; do
        n=$((n + 1)) ranks=$((n > 1 ? 3 : 2))
        train $kind$n $kind "model=$tower" "plan=$plan" run.init_partial=true --ranks $ranks
        check "$kind, $plan: all tensors are read, no other is asked for" 'read_whole encoder'
        check "$kind, $plan: the same in the checkpoint" 'weights same $kind . $kind$n/step-*'
    done
done
# what is of another shape is refused by name
expect 2 "mlp.shared_expert.gate_proj.weight is \[20, 16\], should be \[24, 16\]" "$DISTTRAIN" train --no-runs --init-from qwen2_moe.safetensors job.yaml \
    "model=$(model qwen2_moe | sed 's/json}/json, shared_ffn: 24}/')" 'plan={colocated: true}' run.init_partial=true run.steps=1 run.checkpoint.dir=no
totals
