# SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
#
# For tests of disttrain loop, on top of tests/shell.sh: 40 pictures and job.yaml, a model whose steps take milliseconds.
. "${srcdir:=.}/tests/shell.sh"
ASAN_OPTIONS=detect_leaks=0${ASAN_OPTIONS:+:$ASAN_OPTIONS}; export ASAN_OPTIONS # as in tests/mpirun.sh
command -v mpirun >/dev/null || { echo 'no mpirun: skipped'; exit 77; }
pack_two_tones

cat >job.yaml <<'JOB'
model:
  modules:
    encoder: {kind: encoder, layers: 2, hidden: 16, ffn: 32, heads: 2, patch: 4, channels: 1, positions: 4}
    llm: {kind: llm, layers: 2, hidden: 16, ffn: 32, heads: 2, vocab: 264}
    generator: {kind: unet, channels: [8, 8], head_dim: 8, res_blocks: 1, in_channels: 1, out_channels: 1,
      context_dim: 8, context_len: 2, latent_scale: 1, resize: 8}
cluster: local
samples: text
train: {global_batch: 4, microbatch: 2, seq_len: 64, recompute: none}
search: {strategy: manual, allow_analytical: true}
plan: {colocated: true}
run: {data: two-000000.tar, steps: 4, threads: 1}
JOB
