#!/bin/sh
# SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
# disttrain loop: layouts are profiled, predicted, trained and compared.  How near the times come is
# no test's matter on a machine that does other things too.
# Environment: DISTTRAIN (the program), srcdir (the source directory).
set -u
LC_ALL=C; export LC_ALL
: "${DISTTRAIN:=./disttrain}" "${srcdir:=.}"
case $DISTTRAIN in /*) ;; *) DISTTRAIN=$PWD/$DISTTRAIN ;; esac
DISTTRAIN_TRACES=$(cd "$srcdir" && pwd)/traces; export DISTTRAIN_TRACES
tmp=$(mktemp -d) || exit 99
trap 'rm -rf "$tmp"' EXIT
cd "$tmp" || exit 99
passed=0 failed=0

ok() { passed=$((passed + 1)); }
bad() { failed=$((failed + 1)); echo "FAIL: $1"; sed 's/^/    /' out err 2>/dev/null | head -20; }
check() { if eval "$2"; then ok; else bad "$1"; fi; }
expect() { # CODE TEXT COMMAND...
    code=$1 text=$2; shift 2
    "$@" >out 2>err </dev/null
    got=$?
    if [ $got -ne "$code" ]; then bad "'$*' exits $got, not $code"; return; fi
    if [ -n "$text" ] && ! cat out err | grep -q -- "$text"; then bad "'$*' does not say '$text'"; return; fi
    ok
}

# --- data: 40 pictures of 8 x 8 ---
{ printf '\000\000\010\003\000\000\000\050\000\000\000\010\000\000\000\010'
  i=0; while [ $i -lt 40 ]; do
      j=0; while [ $j -lt 64 ]; do printf "\\$(printf %03o $(((i * 7 + j * 3) % 256)))"; j=$((j + 1)); done
      i=$((i + 1))
  done; } >images
{ printf '\000\000\010\001\000\000\000\050'
  i=0; while [ $i -lt 40 ]; do printf "\\00$((i % 2))"; i=$((i + 1)); done; } >labels
expect 0 "40 samples" "$DISTTRAIN" data pack --idx images --labels labels --label-names dark,light -o two

cat >job.yaml <<'END'
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
END
command -v mpirun >/dev/null || { echo 'no mpirun: skipped'; exit 77; }
expect 2 "no run: map" "$DISTTRAIN" loop mllm-nano-local
expect 2 "whole number" "$DISTTRAIN" loop job.yaml --ranks 0
expect 0 "" "$DISTTRAIN" loop job.yaml --ranks 2 --steps 2 --warm-up 1 --seconds 0 --json --runs runs.db
check "silent in a pipe" '[ ! -s err ]'
check "layouts" '[ "$(grep -c "\"predicted_s\": [0-9.e-]*," out)" -ge 10 ]'
check "all measured" '! grep -q "\"measured_s\": 0[,e]" out && grep -q "\"median_abs_error\"" out'
check "several ranks" 'grep -q "\"ranks\": 2" out && grep -q "\"ranks\": 1" out'
# both runs of a layout are of the same step and join on every op
expect 0 "ops joined, 0 only in a, 0 only in b" "$DISTTRAIN" compare --runs runs.db 1 2
check "predicted, then measured" 'grep -q "run 1, simulated" out && grep -q "run 2, executed" out'
expect 0 "median |error|" "$DISTTRAIN" loop job.yaml --ranks 1 --steps 1 --warm-up 0 --seconds 0
expect 5 "failed; it said last" env PATH=/none "$DISTTRAIN" loop job.yaml --ranks 2 --steps 1 --warm-up 0 --seconds 0
check "nothing is left in /tmp" '[ -z "$(find /tmp -maxdepth 1 -name "disttrain-loop-*" -newer job.yaml 2>/dev/null)" ]'
echo "$passed passed, $failed failed"
[ $failed -eq 0 ]
