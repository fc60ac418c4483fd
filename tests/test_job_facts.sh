#!/bin/sh
# SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
#
# What a job says and what is made of it are the same thing: tokens of images are those of the encoder, assumptions are
# told only where they were made, and a key that could have no effect is refused.
# Environment: DISTTRAIN (the program), srcdir (the source directory).
set -u
. "${srcdir:=.}/tests/shell.sh"
# simulates CODE TEXT ARGUMENT...
simulates() { simulates_code=$1 simulates_text=$2; shift 2; expect "$simulates_code" "$simulates_text" "$DISTTRAIN" simulate --no-runs "$@"; }

# --- an image is as many tokens as its encoder makes of it ---
job() { # ENCODER SAMPLES
    cat >job.yaml <<J
model: {name: m, modules: {encoder: {preset: vit-huge, projector: mlp, $1}, llm: {preset: llama-7b}}}
cluster: a800-96
profile: a800
samples: $2
train: {global_batch: 16, microbatch: 1, seq_len: 1024, recompute: full}
J
}
printf 'text_tokens,images\n0,512x512\n0,512x512\n' >s.csv
job 'patch: 16' s.csv; simulates 0 "" job.yaml
job 'patch: 14' s.csv; simulates 2 "one token per 14-px patch) and clips come to 1369 tokens, more than the sequence's 1024" job.yaml
job 'patch: 14, resize: 224' s.csv; simulates 0 "" job.yaml
job 'patch: 14, merge: 2' s.csv; simulates 0 "" job.yaml
job 'patch: 14, merge: 2' '{csv: s.csv, patch: 28}'; simulates 0 "" job.yaml
job 'patch: 14' '{csv: s.csv, patch: 28}'
simulates 2 "job.yaml:4:30: patch: the encoder makes one token of 14 x 14 pixels, not of 28 x 28; leave this key out, or change patch or merge" job.yaml
job 'patch: 14, merge: 2' '{preset: laion-8k, max_side: 400, patch: 14}'
simulates 2 "job.yaml:4:51: patch: the encoder makes one token of 28 x 28 pixels, not of 14 x 14" job.yaml
job 'patch: 14, merge: 2' s.csv
sed -i 's/projector: mlp/projector: none/' job.yaml
simulates 2 "merge: the projector takes the merged rows in; state projector: linear or mlp" job.yaml

# --- what was assumed of the images ---
simulates 0 "; 50 % of the images or clips generated (assumed), each at 512 x 512 pixels (resize)" mllm-9b-96
simulates 0 "; 25 % of the images or clips generated (stated), each at" mllm-9b-96 samples.generate=0.25
simulates 0 "; no image or clip is generated (stated)" mllm-9b-96 samples.generate=0
simulates 0 "; none is generated, for no module does" llama-70b-96 samples=laion-8k
"$DISTTRAIN" simulate --no-runs llama-70b-96 >text.out 2>&1
check "samples without images say nothing of images" 'grep -q "^samples:" text.out && ! grep -q generated text.out'

# --- one is one ---
cat >one.yaml <<J
model: llama-7b
cluster: a800-96
profile: a800
samples: text
train: {global_batch: 1, microbatch: 1, seq_len: 1024}
search: {gpus: 8}
J
for command in "plan --explain" "simulate --no-runs --explain"; do
    "$DISTTRAIN" $command one.yaml >out 2>err </dev/null
    check "$command of one sample: $(grep -o "1 samples" out | head -1)" 'grep -q "1 sample" out && ! grep -q "\\b1 samples" out'
done

# --- keys that could have no effect ---
simulates 2 "command line:1:16: max_vpp: schedule 1f1b has one chunk of blocks per stage; chunks need train.schedule: interleaved" \
    llama-70b-96 search.max_vpp=2 train.schedule=1f1b
simulates 0 "" llama-70b-96 search.max_vpp=2 train.schedule=interleaved
simulates 2 "vpp 2 with pp 1: chunks are dealt to several stages; use vpp 1" llama-70b-96 search.strategy=manual \
    train.schedule=interleaved 'plan={llm: {tp: 8, vpp: 2}}' train.recompute=full
totals
