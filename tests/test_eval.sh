#!/bin/sh
# SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
# From shards to a checkpoint, captions, losses and a PNG, with a model that learns in seconds: two
# classes of pictures, dark with a light bar upright or lying.
set -u
LC_ALL=C; export LC_ALL
: "${srcdir:=.}" "${DISTTRAIN:=./disttrain}"
tmp=$(mktemp -d) || exit 99
trap 'rm -rf "$tmp"' EXIT
DISTTRAIN_TRACES=$(cd "$srcdir" && pwd)/traces; export DISTTRAIN_TRACES
case $DISTTRAIN in /*) ;; *) DISTTRAIN=$PWD/$DISTTRAIN ;; esac
cd "$tmp" || exit 99
passed=0 failed=0

bad() { failed=$((failed + 1)); echo "FAIL: $*"; }
expect() { # STATUS, PATTERN, COMMAND...
    status=$1 pattern=$2
    shift 2
    "$@" >out 2>&1
    got=$?
    if [ "$got" -ne "$status" ]; then
        bad "$*: exit $got, not $status"; cat out
    elif ! grep -q -- "$pattern" out; then
        bad "$*: no \"$pattern\""; cat out
    else
        passed=$((passed + 1))
    fi
}

# 64 pictures of 8 x 8: IDX headers, then bytes from octal escapes.
images=$(awk 'BEGIN {
    for (n = 0; n < 64; n++) for (y = 0; y < 8; y++) for (x = 0; x < 8; x++) {
        at = int(n / 2) % 5 + 1; v = n % 2 ? x : y;
        printf "\\%03o", (v == at || v == at + 1 ? 200 + n % 7 : (x * 5 + y * 3 + n) % 9) }
}')
labels=$(awk 'BEGIN { for (n = 0; n < 64; n++) printf "\\%03o", n % 2 }')
# shellcheck disable=SC2059 # the escapes are the data
{ printf '\000\000\010\003\000\000\000\100\000\000\000\010\000\000\000\010'; printf "$images"; } >images
# shellcheck disable=SC2059
{ printf '\000\000\010\001\000\000\000\100'; printf "$labels"; } >labels
expect 0 "64 samples" "$DISTTRAIN" data pack --idx images --labels labels --label-names lying,upright -o t

cat >job.yaml <<'END'
model:
  name: two-bars
  modules:
    encoder: {kind: encoder, layers: 1, hidden: 32, ffn: 64, heads: 2, patch: 4, positions: 5}
    llm: {kind: llm, layers: 1, hidden: 48, ffn: 96, heads: 4, kv_heads: 2, vocab: 260}
    generator: {kind: unet, channels: [8, 16], attention: [false, true], head_dim: 8, res_blocks: 1,
      in_channels: 1, out_channels: 1, context_dim: 24, context_len: 4, latent_scale: 1, resize: 8}
cluster: local
samples: {preset: laion-8k, max_side: 64, seed: 1}
train: {global_batch: 4, microbatch: 4, seq_len: 512}
search: {strategy: disttrain, allow_analytical: true}
run:
  data: t-000000.tar
  eval_data: t-000000.tar
  steps: 160
  lr: 4e-3
  threads: 1
  precision: fp32
  checkpoint: {dir: ck}
END
expect 2 "there is no checkpoint" "$DISTTRAIN" eval job.yaml
expect 0 "checkpoint " "$DISTTRAIN" train job.yaml --no-runs

expect 0 "trivial predictor" "$DISTTRAIN" eval job.yaml -n 32 --label-names lying,upright
expect 0 '"diffusion_loss"' "$DISTTRAIN" eval job.yaml -n 32 --label-names lying,upright --json
number() { sed -n "s/^ *\"$1\": \([0-9.e-]*\),*\$/\1/p" out; }
less() { # NAME A B: A < B
    if awk "BEGIN { exit !($2 + 0 < $3 + 0) }"; then passed=$((passed + 1)); else bad "$1: $2 is not below $3"; fi
}
# It has seen these very pictures: the word is learnt, the noise beats the linear guess.
less "wrong words" 0.75 "$(number caption_accuracy)"
less "diffusion loss" "$(number diffusion_loss)" "$(number diffusion_loss_trivial)"
less "trivial predictor" "$(number diffusion_loss_trivial)" 1
accuracy=$(number caption_accuracy)
"$DISTTRAIN" eval job.yaml -n 32 --label-names lying,upright --json --batch 7 >out 2>&1
less "accuracy in other batches" "$(awk "BEGIN { d = $(number caption_accuracy) - $accuracy; print d < 0 ? -d : d }")" 0.07
expect 2 "no run.eval_data" "$DISTTRAIN" eval - <<END
$(sed '/eval_data/d' job.yaml)
END
expect 2 "damaged\|cut off\|bytes" sh -c "cp -r ck ck3 && for f in ck3/step-*/model.safetensors; do
    printf x >>\$f; done; '$DISTTRAIN' eval job.yaml -c ck3"
expect 2 "tensor \"" sh -c "cp -r ck ck4 && for f in ck4/step-*/model.safetensors; do
    n=\$(wc -c <\$f); printf '\\252\\125' | dd of=\$f bs=1 seek=\$((n - 9)) conv=notrunc 2>/dev/null; done;
    '$DISTTRAIN' eval job.yaml -c ck4"

expect 0 "grid.png" "$DISTTRAIN" sample job.yaml --text "a photo of a lying" --text upright -n 3 --steps 8 -o grid.png
expect 0 "PNG" head -c 4 grid.png
"$DISTTRAIN" sample job.yaml --text "a photo of a lying" --text upright -n 3 --steps 8 -o again.png >out 2>&1
if cmp -s grid.png again.png; then passed=$((passed + 1)); else bad "the same seed drew something else"; fi
expect 0 "^grid.png	." "$DISTTRAIN" sample job.yaml --image grid.png train.seq_len=512 --max-tokens 20
expect 0 '"caption": "' "$DISTTRAIN" sample job.yaml --image grid.png --json
expect 2 "nothing to do" "$DISTTRAIN" sample job.yaml
expect 2 "cannot open" "$DISTTRAIN" sample job.yaml --image nothing.png
expect 2 "job.yaml" "$DISTTRAIN" sample job.yaml --image job.yaml
# Videos of one to three frames are captioned as they are learnt, those of text alone are not.
tar xf t-000000.tar
for i in 0 1 2 3 4 5; do
    mkdir -p vids/$i
    for k in 0 1 2; do [ $k -gt $((i % 3)) ] || cp "$(printf %08d $((2 * i + k))).png" vids/$i/$k.png; done
    printf 'a photo of a lying' >vids/$i.txt
done
expect 0 "6 samples" "$DISTTRAIN" data pack --videos -o vid vids
expect 0 '"captions": 6,' "$DISTTRAIN" eval job.yaml -d vid-000000.tar --label-names lying,upright --json
whole=$(number text_loss)
expect 0 '"captions": 6,' "$DISTTRAIN" eval job.yaml -d vid-000000.tar --label-names lying,upright --json run.frames_max=1
if [ "$whole" != "$(number text_loss)" ]; then passed=$((passed + 1)); else bad "later frames make no difference"; fi
echo "$passed passed, $failed failed"
[ "$failed" -eq 0 ]
