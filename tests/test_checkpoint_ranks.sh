#!/bin/sh
# SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
# Checkpoints of several ranks: layouts, killed runs, how many are kept.
# Environment: DISTTRAIN (the program), srcdir (the source directory); KILLS (default 6) is how often
# a run is killed, DT_TEST_SEED when.
set -u
LC_ALL=C; export LC_ALL
: "${DISTTRAIN:=./disttrain}" "${srcdir:=.}" "${KILLS:=6}" "${DT_TEST_SEED:=$$}"
case $DISTTRAIN in /*) ;; *) DISTTRAIN=$PWD/$DISTTRAIN ;; esac
srcdir=$(cd "$srcdir" && pwd)
. "$srcdir/tests/mpirun.sh"
DISTTRAIN_TRACES=$srcdir/traces; export DISTTRAIN_TRACES
tmp=$(mktemp -d) || exit 99
trap 'rm -rf "$tmp"' EXIT
cd "$tmp" || exit 99
passed=0 failed=0

ok() { passed=$((passed + 1)); }
bad() { failed=$((failed + 1)); echo "FAIL: $1"; sed 's/^/    /' out err 2>/dev/null | head -30; }
check() { if eval "$2"; then ok; else bad "$1"; fi; }
# expect CODE TEXT COMMAND...
expect() {
    code=$1 text=$2; shift 2
    timeout -k 5 120 "$@" >out 2>err </dev/null
    got=$?
    if [ $got -ne "$code" ]; then bad "'$*' exits $got, not $code"; return; fi
    if [ -n "$text" ] && ! cat out err | grep -q -- "$text"; then bad "'$*' does not say '$text'"; return; fi
    ok
}
field() { sed -n "s/.*\"$1\": \([^,]*\).*/\1/p" out; }
# checksums of all tensors: files are cut by ranks
sums() { grep -o '^ *"[a-z].*\..*": "[0-9a-f]\{8\}"' "$1/manifest.json" | sort; }
near() { awk -v a="$1" -v b="$2" 'BEGIN { exit !(a - b < 1e-3 * b && b - a < 1e-3 * b) }'; }

# --- data: 40 pictures of 8 x 8, labels 0 and 1 ---
i=0
{ printf '\000\000\010\003\000\000\000\050\000\000\000\010\000\000\000\010'
  while [ $i -lt 40 ]; do
      c=$([ $((i % 2)) -eq 0 ] && echo '\050' || echo '\310')
      j=0; while [ $j -lt 64 ]; do printf "$c"; j=$((j + 1)); done
      i=$((i + 1))
  done; } >images
i=0
{ printf '\000\000\010\001\000\000\000\050'
  while [ $i -lt 40 ]; do printf "\\00$((i % 2))"; i=$((i + 1)); done; } >labels
expect 0 "40 samples" "$DISTTRAIN" data pack --idx images --labels labels --label-names dark,light -o two
cat >job.yaml <<'END'
model:
  modules:
    encoder: {kind: encoder, layers: 1, hidden: 16, ffn: 32, heads: 2, patch: 4, channels: 1, positions: 4}
    llm: {kind: llm, layers: 4, hidden: 16, ffn: 32, heads: 2, vocab: 264}
    generator: {kind: unet, channels: [8, 8], head_dim: 8, res_blocks: 1, in_channels: 1, out_channels: 1,
      context_dim: 8, context_len: 2, latent_scale: 1, resize: 8}
cluster: local
samples: text
train: {global_batch: 4, microbatch: 1, seq_len: 64}
search: {allow_analytical: true, strategy: manual}
plan: {encoder: {}, llm: {pp: 2}, generator: {}}
run: {data: two-000000.tar, steps: 4, precision: fp32, threads: 1, log_dir: log, checkpoint: {dir: one}}
END
cat >train <<'END'
#!/bin/sh
ranks=$1; shift
exec "$DISTTRAIN" train --ranks "$ranks" --no-runs --json job.yaml "$@"
END
chmod +x train; export DISTTRAIN
pp='plan={encoder: {}, llm: {pp: 2}, generator: {}}'
dp='plan={colocated: true, encoder: {dp: 2}, llm: {dp: 2}, generator: {dp: 2}}'
mixed='plan={encoder: {}, llm: {dp: 2}, generator: {}}'


constant='run.decay=constant run.warmup_steps=1'

# --- the same layout: interrupted or not, the same bits ---
n=0
for layout in "$pp" "$dp" "$mixed"; do
    n=$((n + 1))
    expect 0 "" ./train 2 $constant "$layout" run.checkpoint.dir=through$n
    expect 0 "" ./train 2 $constant "$layout" run.steps=2 run.checkpoint.dir=twice$n
    expect 0 '"resumed": true' ./train 2 $constant "$layout" run.checkpoint.dir=twice$n
    sums through$n/step-00000004 >sums.a; sums twice$n/step-00000004 >sums.b
    check "layout $n goes on to the bit" '[ $(wc -l <sums.a) -gt 60 ] && cmp -s sums.a sums.b'
    check "layout $n: both ranks have written" '[ -f twice$n/step-00000004/model-00002-of-00002.safetensors ] || [ $n -eq 2 ]'
    check "layout $n: nothing is left of the shares" '! ls -a twice$n twice$n/* | grep -q "share-\|tmp"'
done

# --- another layout: it goes on alike, and one process reads what many have written ---
expect 0 "" ./train 1 $constant run.steps=6 "$pp" run.checkpoint.dir=whole
loss=$(field loss)
for from in 1 2 3; do
    for to in "1 $pp" "2 $dp" "4 $pp"; do
        cp -r through$from on
        expect 0 '"resumed": true' ./train "${to%% *}" $constant run.steps=6 "${to#* }" run.checkpoint.dir=on
        check "from layout $from to ${to#* } on ${to%% *} ranks" 'near "$(field loss)" "$loss"'
        rm -rf on
    done
done
expect 0 "" "$DISTTRAIN" eval job.yaml --data two-000000.tar --checkpoint through1

# --- tensor parallelism: slices are joined when they are written and cut when they are read ---
tp='plan={colocated: true, encoder: {}, llm: {tp: 2}, generator: {}}'
expect 0 "" ./train 2 $constant "$tp" run.checkpoint.dir=sliced
cp -r sliced on
expect 0 '"resumed": true' ./train 1 $constant run.steps=6 "$pp" run.checkpoint.dir=on
check "from tp 2 to one process" 'near "$(field loss)" "$loss"'
rm -rf on; cp -r through1 on
expect 0 '"resumed": true' ./train 2 $constant run.steps=6 "$tp" run.checkpoint.dir=on
check "from pp 2 to tp 2" 'near "$(field loss)" "$loss"'
rm -rf on

# --- a full disk: one message, and what was committed before is whole ---
mkdir disk
cat >full <<'END'
#!/bin/sh
mount -t tmpfs -o size=1500k none disk || exit 77
"$DISTTRAIN" train --ranks 2 --no-runs job.yaml run.steps=40 'run.checkpoint={dir: disk/ck, interval: 1, keep: 40}' && exit 1
[ -f disk/ck/latest ] && ! ls -a disk/ck disk/ck/* | grep -q 'share-\|tmp' || { ls -a disk/ck; exit 1; }
exec "$DISTTRAIN" eval job.yaml --data two-000000.tar --checkpoint disk/ck
END
chmod +x full
if unshare -m mount -t tmpfs none disk 2>/dev/null; then
    expect 0 "model after [1-9]" unshare -m ./full
    check "said once" '[ "$(grep -c "No space left on device" err)" -eq 1 ]'
else
    echo "a full disk: not tested, as nothing may be mounted here"
fi

# --- the newest ones are kept ---
expect 0 "" ./train 2 $constant "$mixed" run.steps=9 'run.checkpoint={dir: few, interval: 1, keep: 3}'
check "three of nine are there" '[ "$(echo few/step-*)" = "few/step-00000007 few/step-00000008 few/step-00000009" ]'
check "the pointer is right" '[ "$(cat few/latest)" = step-00000009 ]'

# --- runs that are killed at any moment: what was committed last is whole ---
pids() { grep -l "$tmp/kill" /proc/[0-9]*/cmdline 2>/dev/null | sed 's,/proc/\([0-9]*\)/.*,\1,' | sort -n; }
last=0 round=0
while [ $round -lt "$KILLS" ]; do
    round=$((round + 1))
    timeout 120 "$DISTTRAIN" train --ranks 2 --no-runs job.yaml "$mixed" $constant run.steps=1000000 \
        "run.checkpoint={dir: $tmp/kill, interval: 1, keep: 2}" >out 2>err &
    pid=$!
    sleep "$(awk -v s="$((DT_TEST_SEED + round))" 'BEGIN { srand(s); print 0.2 + 2 * rand() }')"
    # a rank, or everything at once
    if [ $((round % 2)) -eq 0 ]; then kill -9 $(pids | tail -1); else kill -9 $(pids); fi 2>/dev/null
    wait $pid
    kill -9 $(pids) 2>/dev/null
    [ -f kill/latest ] || { [ $last -eq 0 ] || bad "round $round: the checkpoints are gone"; continue; }
    step=$(sed 's/step-0*//' kill/latest)
    check "round $round of seed $DT_TEST_SEED: step $step after $last" '[ "$step" -ge "$last" ]'
    last=$step
    expect 0 '"resumed": true' "$DISTTRAIN" train --no-runs --json job.yaml run.steps="$step" \
        "run.checkpoint.dir=$tmp/kill" run.log_dir=verify
done
check "some were committed in $KILLS rounds" '[ "$last" -gt 0 ]'

echo "$passed checks passed, $failed failed"
[ $failed -eq 0 ]
