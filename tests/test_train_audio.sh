#!/bin/sh
# SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
# A model that hears: tones are packed, scanned, planned for, learnt, named, and prepared by producers; layouts train
# alike; what cannot be run is refused by its name.
# Environment: DISTTRAIN (the program), srcdir (the source directory).
set -u
limit_s=120
. "${srcdir:=.}/tests/shell.sh"
sums() { grep -o '^ *"[a-z].*\..*": "[0-9a-f]\{8\}"' "$1/$(cat "$1/latest")/manifest.json" | sort; }

expect 0 "tones-train-\*.tar: 600 samples in 1 shard" "$DISTTRAIN" data pack --tones 600 -o tones-train
expect 0 "" "$DISTTRAIN" data pack --tones 200 --seed 1 -o tones-test
if "$DISTTRAIN" data scan --mel-bins 128 -o s.csv tones-test-000000.tar 2>&1 | grep -q "without libsndfile"; then
    echo "skipped: built without libsndfile"; exit 77
fi

# --- packing: the same again; a folder of files is what was packed ---
expect 0 "" "$DISTTRAIN" data pack --tones 200 --seed 1 -o again
check "tones are the same again" 'cmp -s tones-test-000000.tar again-000000.tar'
mkdir in && tar xf tones-test-000000.tar -C in && rm in/*.cls
expect 0 "200 samples" "$DISTTRAIN" data pack -o folder in
check "members of a folder" '[ "$(tar tf folder-000000.tar | head -n 2 | tr "\n" " ")" = "00000000.wav 00000000.txt " ]'
head -c 2000 in/00000001.wav >in/cut.wav && echo cut >in/cut.txt
head -c 44 in/00000001.wav | sed 's/fmt /fnt /' >in/odd.wav && echo odd >in/odd.txt
printf 'a sound' >in/lonely.flac
expect 0 "200 samples" "$DISTTRAIN" data pack --replace -o folder in
check "reports damaged sounds" 'grep -q "2 sounds truncated, corrupt" out && grep -q "cut.wav: WAV: shorter" out && grep -q "without a caption.*lonely" out'
expect 2 "cut.wav" "$DISTTRAIN" data pack -o no in --on-bad fail
expect 2 "or --tones N" "$DISTTRAIN" data pack --tones 3 in -o no

# --- scanning: seconds for the planner, which counts the same tokens ---
expect 0 "200 clips of [0-9.]* s of sound" "$DISTTRAIN" data scan --mel-bins 128 --unpacked --no-shuffle --seq-len 256 -o s.csv tones-test-000000.tar
check "the CSV has seconds" '[ "$(sed -n 2p s.csv)" = sample,text_tokens,audio_s,gen_images,seq_tokens ]'
# patches from the length of the file: 16-bit values at 16 kHz behind a head of 44 bytes
for f in in/0*.wav; do wc -c <"$f"; done | awk '{ cs = int(($1 - 44) / 2 / 160); n = int((cs - 2) / 16) * 8;
    printf "%d.%02d %d\n", cs / 100, cs % 100, n }' >own
sed '1,2d' s.csv | awk -F, '{ print $3, $5 - $2 }' >scanned
check "all clips' seconds are told" 'grep -q "200 clips of $(awk "{ s += \$1 } END { printf \"%.2f\", s }" own) s of sound" out'
check "lengths and patches are those of the files" '[ "$(wc -l <own)" -eq 200 ] && cmp -s own scanned'
expect 0 "" "$DISTTRAIN" simulate --no-runs --json mllm-nano-audio 'samples={csv: s.csv}'
expect 0 "200 sounds cut to" "$DISTTRAIN" data scan --mel-bins 128 --audio-max 0.3 --seq-len 256 -o short.csv tones-test-000000.tar
expect 0 '"clips_cut": 200' "$DISTTRAIN" data scan --json --fast --mel-bins 128 --audio-max 0.3 --seq-len 256 -o short.csv tones-test-000000.tar
expect 2 "no multiple of 16" "$DISTTRAIN" data scan --mel-bins 100 tones-test-000000.tar

# --- learning ---
# the shipped job, with smaller batches in fp32
sed 's/global_batch: 8, microbatch: 4/global_batch: 4, microbatch: 2/; s/warmup_steps: 50/warmup_steps: 10/; /log_dir/d
    s/^  checkpoint:.*/  precision: fp32\n  threads: 1/' "$srcdir/traces/jobs/mllm-nano-audio.yaml" >job.yaml
expect 0 "" "$DISTTRAIN" train --no-runs --json job.yaml run.steps=110 run.threads=2 run.checkpoint.dir=learnt
predicted() { awk -v a="$(field allocated_bytes)" -v p="$(field predicted_bytes)" 'BEGIN { exit !(a > 1e6 && p > 0.9 * a && p < 1.1 * a) }'; }
check "memory as predicted" predicted
expect 0 "" "$DISTTRAIN" train --no-runs --json mllm-nano-audio run.data=tones-train-000000.tar run.steps=5 run.log_dir=log \
    'run.checkpoint={dir: during, interval: 1}'
check "and with checkpoints during the run" predicted
expect 0 "" "$DISTTRAIN" eval --json job.yaml run.checkpoint.dir=learnt --label-names do,re,mi,fa,sol,la,ti
check "notes are named: $(field caption_accuracy), and chance is one in seven" \
    'awk -v a="$(field caption_accuracy)" "BEGIN { exit !(a > 0.6) }"'
expect 0 "" "$DISTTRAIN" sample job.yaml run.checkpoint.dir=learnt --audio in/00000002.wav --audio in/00000003.wav
check "and of single files" 'awk "{ exit !(\$2 == \"a\" && NF == 5) }" out && [ "$(wc -l <out)" -eq 2 ]'
expect 2 "takes sounds in, not images" "$DISTTRAIN" sample job.yaml run.checkpoint.dir=learnt \
    --image "$srcdir/tests/fuzz/corpus/image/rgb.png"
expect 2 "cut.wav: WAV: shorter" "$DISTTRAIN" sample job.yaml run.checkpoint.dir=learnt --audio in/cut.wav

# --- layouts ---
expect 0 "" "$DISTTRAIN" train --no-runs --json job.yaml run.steps=6 run.checkpoint.dir=one
loss=$(field loss); sums one >one.sums; echo "$loss" >one.loss
near() { awk -v a="$(field loss)" -v b="$loss" 'BEGIN { exit !(a > 0 && a - b < 1e-4 * b && b - a < 1e-4 * b) }'; }
stages='plan={encoder: {pp: 2}, llm: {pp: 2}}'
expect 0 "" "$DISTTRAIN" train --no-runs --json job.yaml run.steps=6 run.checkpoint.dir=alone "$stages"
check "stages in one process: about the same loss" near
alone=$(field loss); sums alone >alone.sums
expect 0 "" "$DISTTRAIN" train --ranks 4 --no-runs --json job.yaml run.steps=6 run.checkpoint.dir=pp "$stages"
sums pp >pp.sums
check "and on four ranks: the same loss and parameters" \
    '[ "$(field loss)" = "$alone" ] && [ "$(wc -l <alone.sums)" -gt 60 ] && cmp -s alone.sums pp.sums'
expect 0 "" "$DISTTRAIN" train --ranks 2 --no-runs --json job.yaml run.steps=6 run.checkpoint.dir=dp 'plan={colocated: true, encoder: {dp: 2}, llm: {dp: 2}}'
check "replicas: about the same loss" near
expect 0 "" "$DISTTRAIN" train --ranks 4 --no-runs --json job.yaml run.steps=6 run.checkpoint.dir=tp 'plan={encoder: {tp: 2}, llm: {tp: 2}}'
check "tensor-parallel members: about the same loss" near
expect 0 "" "$DISTTRAIN" train --no-runs --json job.yaml run.steps=6 run.decay=constant run.checkpoint.dir=whole
for steps in 3 6; do
    expect 0 "" "$DISTTRAIN" train --no-runs --json job.yaml run.steps=$steps run.decay=constant run.checkpoint.dir=two
done
check "going on from a checkpoint: the same parameters" \
    '[ "$(sums whole | wc -l)" -gt 60 ] && [ "$(sums whole)" = "$(sums two)" ]'

expect 0 "^long sounds  *[1-9][0-9]* cut to what the encoder hears" "$DISTTRAIN" train --no-runs job.yaml run.steps=1 \
    run.checkpoint.dir=short model.encoder.positions=16
expect 0 '"clips_cut": [1-9]' "$DISTTRAIN" train --no-runs --json job.yaml run.steps=1 run.checkpoint.dir=short2 run.audio_max_s=0.5

# --- a sound whose header is whole and whose end is not: read by one rank, told to the other, passed over by both ---
mkdir bad && cp in/0000000* bad
head -c 300 "$srcdir/tests/fuzz/corpus/audio/mono.flac" >bad/00000004b.flac && echo "a bad one" >bad/00000004b.txt
tar cf bad.tar --sort=name -C bad .
replicas='plan={colocated: true, encoder: {dp: 2}, llm: {dp: 2}}'
expect 0 '"bad_audio": [1-9]' "$DISTTRAIN" train --no-runs --json job.yaml run.steps=6 run.data=bad.tar run.checkpoint.dir=bad1 "$replicas"
loss=$(field loss)
sums bad1 >own.sums
expect 0 '"bad_audio": [1-9]' "$DISTTRAIN" train --ranks 2 --no-runs --json job.yaml run.steps=6 run.data=bad.tar run.checkpoint.dir=bad2 "$replicas"
sums bad2 >two.sums
check "two ranks pass over it alike" '[ "$(field loss)" = "$loss" ] && [ -s own.sums ] && cmp -s own.sums two.sums'
expect 2 "00000004b: truncated or corrupt sound" "$DISTTRAIN" train --no-runs --json job.yaml run.steps=6 run.data=bad.tar run.checkpoint.dir=no run.bad_data=fatal
loss=$(sed -n 1p one.loss)

# --- producers of data ---
if ! "$DISTTRAIN" preprocess --keygen nokeys 2>&1 | grep -q "without ZeroMQ"; then
    "$DISTTRAIN" preprocess --listen 127.0.0.1:0 --insecure job.yaml >address 2>producer.err &
    producer=$!
    trap 'kill -9 $producer 2>/dev/null; rm -rf "$tmp"' EXIT
    tries=0
    while [ ! -s address ] && kill -0 $producer 2>/dev/null && [ $tries -lt 400 ]; do sleep 0.05; tries=$((tries + 1)); done
    expect 0 "" "$DISTTRAIN" train --no-runs --json job.yaml run.steps=6 run.checkpoint.dir=fed "run.data=\"$(cat address)\""
    sums fed >fed.sums
    check "the same parameters from a producer" '[ "$(field loss)" = "$loss" ] && cmp -s one.sums fed.sums'
    expect 5 "another job" "$DISTTRAIN" train --no-runs --json job.yaml run.steps=6 run.checkpoint.dir=no "run.data=\"$(cat address)\"" run.audio_max_s=0.4
    kill $producer; wait $producer 2>/dev/null
fi

# --- what cannot be run ---
expect 2 'module "encoder": an encoder of sound with frames_per_s instead of mel_bins .* cannot be run yet' "$DISTTRAIN" train --no-runs --json job.yaml run.steps=1 run.checkpoint.dir=no 'model={modules: {encoder: {preset: beats}, llm: {kind: llm, layers: 1, hidden: 16, ffn: 32, heads: 2, vocab: 264}}}'
expect 2 'module "generator": a generator of sound cannot be run yet' "$DISTTRAIN" train --no-runs mllm-nano-audio 'model={modules: {llm: {kind: llm, layers: 1, hidden: 16, ffn: 32, heads: 2, vocab: 264}, generator: {preset: audioldm-unet}}}'
expect 2 "leave one of the two out" "$DISTTRAIN" plan mllm-nano-audio model.encoder.frames_per_s=49.6
expect 2 "no multiple of patch 12" "$DISTTRAIN" plan mllm-nano-audio model.encoder.patch=12
expect 2 "a spectrogram has 1, not 3" "$DISTTRAIN" plan mllm-nano-audio model.encoder.channels=3
expect 2 "no multiple of the 8 patches" "$DISTTRAIN" plan mllm-nano-audio model.encoder.positions=100
expect 2 "state modality: audio" "$DISTTRAIN" plan mllm-nano-train model.encoder.mel_bins=128
totals
