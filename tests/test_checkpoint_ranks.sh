#!/bin/sh
# SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
#
# Checkpoints of several ranks: going on from them on the same layout (to the bit) and on others (alike),
# how many are kept, what a full disk leaves.  With DT_CHECK_FULL more layouts, and each from each.
# (Killed runs: test_checkpoint_kills.sh.)
# Environment: DISTTRAIN (the program), srcdir (the source directory).
set -u
. "${srcdir:=.}/tests/small_job.sh"
sed -i 's/llm: {kind: llm, layers: 2/llm: {kind: llm, layers: 4/; s/steps: 1000000/steps: 4/' job.yaml

near() { awk -v a="$1" -v b="$2" 'BEGIN { exit !(b > 0 && a - b < 1e-3 * b && b - a < 1e-3 * b) }'; }
alike() { near "$(field loss)" "$loss" && near "$(field grad_norm)" "$norm"; }
# losses of steps 3 and 4, to the last digit
losses() { grep -o '"step":[34],"loss":[^,]*\|"step": [34], "loss": [^,]*' "$1"/metrics.jsonl; }

# layout K: the ranks and the plan of a layout
layout() {
    case $1 in
    1) echo "2 {encoder: {}, llm: {pp: 2}, generator: {}}" ;;
    2) echo "2 {colocated: true, encoder: {dp: 2}, llm: {dp: 2}, generator: {dp: 2}}" ;;
    3) echo "2 {encoder: {}, llm: {dp: 2}, generator: {}}" ;;
    4) echo "2 {colocated: true, encoder: {}, llm: {tp: 2}, generator: {}}" ;;
    5) echo "1 {encoder: {}, llm: {pp: 2, vpp: 2}, generator: {}}" ;;
    6) echo "4 {encoder: {}, llm: {tp: 2}, generator: {}}" ;;
    7) echo "4 {encoder: {}, llm: {pp: 2}, generator: {}}" ;;
    8) echo "6 {encoder: {}, llm: {tp: 2, pp: 2}, generator: {}}" ;;
    9) echo "4 {colocated: true, encoder: {dp: 4}, llm: {tp: 2, dp: 2}, generator: {dp: 2, tp: 2}}" ;;
    esac
}
# train LAYOUT SETTING...
train() {
    ranks=$(layout "$1"); plan=${ranks#* } ranks=${ranks%% *}
    shift
    expect 0 "" "$DISTTRAIN" train --ranks "$ranks" --no-runs --json job.yaml "plan=$plan" "$@"
}

if [ -n "${DT_CHECK_FULL-}" ]; then all='1 2 3 4 5 6 7 8 9'; else all='1 2 3 4'; fi

# --- the same layout: interrupted or not, the same bits ---
for k in $all; do
    train "$k" run.checkpoint.dir=through$k run.log_dir=log/through$k
    train "$k" run.checkpoint.dir=twice$k run.log_dir=log/twice$k run.steps=2
    train "$k" run.checkpoint.dir=twice$k run.log_dir=log/twice$k
    check "layout $k resumes" '[ "$(field resumed)" = true ]'
    sums through$k/step-00000004 >sums.a; sums twice$k/step-00000004 >sums.b
    check "layout $k goes on to the bit" '[ $(wc -l <sums.a) -gt 60 ] && cmp -s sums.a sums.b'
    check "layout $k: so do the losses" '[ "$(losses log/through$k | wc -l)" -eq 2 ] &&
        [ "$(losses log/through$k)" = "$(losses log/twice$k)" ]'
    check "layout $k: nothing is left of the shares" '! ls -a twice$k twice$k/* | grep -q "share-\|tmp"'
done
check "both ranks have written" '[ -f twice1/step-00000004/model-00002-of-00002.safetensors ]'

# --- in bf16, where replicas know only their own piece exactly: what is saved is exact ---
precision=bf16
"$DISTTRAIN" train --no-runs job.yaml run.steps=1 run.precision=bf16 >out 2>&1 || precision=fp32 # no AVX-512
half() { train "$@" run.precision=$precision; }
half 2 run.checkpoint.dir=half run.log_dir=log/half
half 2 run.checkpoint.dir=halves run.log_dir=log/halves run.steps=2
half 2 run.checkpoint.dir=halves run.log_dir=log/halves
sums half/step-00000004 >sums.a; sums halves/step-00000004 >sums.b
check "replicas go on to the bit in $precision" '[ $(wc -l <sums.a) -gt 60 ] && cmp -s sums.a sums.b'
half 2 'run.checkpoint={dir: every, interval: 1}'
sums every/step-00000004 >sums.b
check "saving at every step changes nothing" 'cmp -s sums.a sums.b'
for zero in 0 1; do # without ZeRO every rank knows all exactly; clipped by a norm of another order of sums
    half 2 run.checkpoint.dir=zero$zero train.zero=$zero run.clip=0
    sums zero$zero/step-00000004 >sums.$zero
done
check "ZeRO-1 trains as ZeRO-0 to the bit" '[ $(wc -l <sums.0) -gt 60 ] && cmp -s sums.0 sums.1'
cp -r half on
expect 0 '"resumed": true' "$DISTTRAIN" train --no-runs --json job.yaml run.steps=6 run.checkpoint.dir=on run.precision=$precision
loss=$(field loss) norm=$(field grad_norm)
rm -rf on; cp -r half on
half 3 run.steps=6 run.checkpoint.dir=on
check "from there to other replicas" '[ "$(field resumed)" = true ] && alike'
rm -rf on
expect 0 '"first_step": 0' "$DISTTRAIN" train --no-runs --json job.yaml run.steps=2 run.init_from=half run.precision=$precision
loss=$(field loss) norm=$(field grad_norm)
half 2 run.steps=2 run.init_from=half
check "from its weights" alike
expect 0 "" "$DISTTRAIN" eval job.yaml --data two-000000.tar --checkpoint half

# --- another layout: it goes on alike, and one process reads what many have written ---
expect 0 "" "$DISTTRAIN" train --no-runs --json job.yaml run.steps=6 run.checkpoint.dir=whole "plan=$(layout 1 | cut -d' ' -f2-)"
loss=$(field loss) norm=$(field grad_norm)
for from in $all; do
    # to one process and to the next one of the list, from tensor-parallel members to stages and back;
    # in full to each
    others=$(($from % 4 + 1)) ranks=
    [ -z "${DT_CHECK_FULL-}" ] || others=$all
    cp -r through$from on
    expect 0 '"resumed": true' "$DISTTRAIN" train --no-runs --json job.yaml run.steps=6 run.checkpoint.dir=on
    check "from layout $from to one process" alike
    rm -rf on
    for to in $others; do
        cp -r through$from on
        train "$to" run.steps=6 run.checkpoint.dir=on
        check "from layout $from to layout $to" '[ "$(field resumed)" = true ] && alike'
        rm -rf on
    done
done
cp -r whole on
rm -rf on/step-00000006; cp -r through4/step-00000004 on; printf 'step-00000004\n' >on/latest
train 1 run.steps=6 run.checkpoint.dir=on
check "what tp members wrote, among others' checkpoints" '[ "$(field resumed)" = true ] && alike'
rm -rf on
expect 0 "" "$DISTTRAIN" eval job.yaml --data two-000000.tar --checkpoint through1

# --- the newest ones are kept ---
train 3 run.steps=9 'run.checkpoint={dir: few, interval: 1, keep: 3}'
check "three of nine are there" '[ "$(echo few/step-*)" = "few/step-00000007 few/step-00000008 few/step-00000009" ]'
check "the pointer is right" '[ "$(cat few/latest)" = step-00000009 ]'

# --- a full disk: one message, and what was committed before is whole ---
left() { ls -a "$1" "$1"/* | grep 'share-\|tmp\|old'; }
# files may not grow: the limit holds for MPI's own, too, so of one process
expect 0 "" "$DISTTRAIN" train --no-runs job.yaml run.steps=2 run.checkpoint.dir=narrow
expect 1 "File too large" sh -c 'ulimit -f 64; exec "$@"' - "$DISTTRAIN" train --no-runs job.yaml \
    run.checkpoint.dir=narrow
check "said once" '[ "$(grep -c "^disttrain: " err)" -eq 1 ]'
check "nothing else is left" '! left narrow && [ "$(cat narrow/latest)" = step-00000002 ]'
expect 0 '"first_step": 2' "$DISTTRAIN" train --no-runs --json job.yaml run.steps=2 run.checkpoint.dir=narrow

# a file system that fills up, where one may be mounted
mkdir disk
cat >full <<'END'
#!/bin/sh
mount -t tmpfs -o size=1500k none disk || exit 77
"$DISTTRAIN" train --ranks 2 --no-runs job.yaml run.steps=40 'run.checkpoint={dir: disk/ck, interval: 1, keep: 40}'
[ $? -eq 1 ] || exit 1
[ -f disk/ck/latest ] && ! ls -a disk/ck disk/ck/* | grep 'share-\|tmp\|old' || { ls -a disk/ck; exit 1; }
"$DISTTRAIN" eval job.yaml --data two-000000.tar --checkpoint disk/ck || exit 1
# what a killed save had left is room for the next
mkdir disk/ck/.tmp-step-00000099.999999
printf 'disttrain-checkpoint 1\nrun some\nprocess host boot/space 999999 1\n' \
    >disk/ck/.tmp-step-00000099.999999/.disttrain
dd if=/dev/zero of=disk/ck/.tmp-step-00000099.999999/model.safetensors bs=4k 2>/dev/null
step=$(sed 's/step-0*//' disk/ck/latest)
rm -rf disk/ck/step-00000001
exec "$DISTTRAIN" train --ranks 2 --no-runs job.yaml run.steps=$((step + 1)) 'run.checkpoint={dir: disk/ck, keep: 40}'
END
chmod +x full
if unshare -m mount -t tmpfs none disk 2>/dev/null; then
    expect 0 "model after [1-9]" unshare -m ./full
    check "said once" '[ "$(grep -c "No space left on device" err)" -eq 1 ]'
else
    echo "a full file system: not tested, as nothing may be mounted here"
fi

echo "$passed checks passed, $failed failed"
[ $failed -eq 0 ]
