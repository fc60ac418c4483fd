#!/bin/sh
# SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
#
# Training with Entrain's assignment on data whose mix changes midway, and on data whose mix stays: the first is told of, in
# text, in the log and in JSON, the second is not.  And what lanes take with it.
. "${srcdir:-.}/tests/shell.sh"

pictures 8 010 small
pictures 32 040 large

# An encoder of one stage and an LLM of two; small pictures are most of the LLM's work, large ones of the encoder's.
cat >job.yaml <<END
model:
  modules:
    encoder: {kind: encoder, layers: 4, hidden: 64, ffn: 256, heads: 2, patch: 4, channels: 1, positions: 64}
    llm: {kind: llm, layers: 4, hidden: 32, ffn: 64, heads: 2, vocab: 264}
cluster: local
samples: text
train: {global_batch: 8, microbatch: 2, seq_len: 128, assignment: entrain}
search: {allow_analytical: true, strategy: manual}
plan: {encoder: {}, llm: {pp: 2}}
run: {data: [small-000000.tar, large-000000.tar], shuffle: false, packed: false, generate: 0, precision: fp32, threads: 1,
  decay: constant, warmup_steps: 1, steps: 48, log_dir: log}
END
train="$DISTTRAIN train --no-runs job.yaml"
expect 0 '"asks_for": 2' $train --json
check "it is told once" "[ \$(grep -c 'warning: step [0-9]*: the last 64 samples ask for another division' err) = 1 ]"
check "with what each module should have" "grep -q 'encoder 2 instead of 1, llm 1 instead of 2' err"
check "and what that would bring" "grep -Eq 'would take [0-9.e-]* s instead of [0-9.e-]* s, [0-9.]* % (less|more)' err"
check "behind the change, not before" "grep -q '\"step\": 40,' out && grep -q '\"then_s\"' out"
check "the log has it" "[ \$(grep -c '\"event\": *\"mix\"' log/metrics.jsonl) = 1 ]"

rm -rf log
expect 0 '"last_step": 48' $train --json 'run.data=[small-000000.tar,small-000000.tar]'
check "a mix that stays says nothing" "! grep -q 'another division' err && ! grep -q asks_for out && ! grep -q mix log/metrics.jsonl"
# Parts of a position are microbatches of unlike sizes: what one holds is in a buffer of about its own size, so that lanes take
# no more than they are charged.
expect 0 '"lanes"' $train --json model.modules.encoder.hidden=32 model.modules.encoder.ffn=128 'plan={encoder: {}, llm: {pp: 3}}' \
    train.global_batch=192 train.microbatch=8 run.shuffle=true run.steps=4
sed -nE '/"lanes"/,$s/.*"(allocated|predicted)_bytes": *([0-9]*).*/\2/p' out | paste -d ' ' - - >lanes
check "every lane takes at most what it is charged, and not much less" \
    "[ \$(wc -l <lanes) = 4 ] && awk '\$1 > \$2 || \$1 < 0.7 * \$2 { exit 1 }' lanes"

rm -rf log
expect 0 '"last_step": 48' $train --json train.assignment=slots train.reorder=none
check "nor do plans of other assignments" "! grep -q 'another division' err"
totals
