#!/bin/sh
# SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
#
# Several ranks on shards: each decodes what its own lanes compute with and no more, and the parameters
# are those of one rank, to the bit; also when images with a sound header turn out to be damaged.
: "${srcdir:=.}"
. "$srcdir/tests/small_job.sh"
write_small_job 'steps: 6, log_interval: 1, packed: false, data_threads: 2'
plan='{encoder: {}, llm: {dp: 2}, generator: {}}' # lanes of the encoder on one rank, of the generator on the other
digest() { sums "$1/$(ls "$1" | grep '^step-' | tail -n 1)"; }
decoded() { tr -d ' \n' <out | sed 's/.*"decoded":\[\([0-9,]*\)\].*/\1/'; }
damaged_images() { tr -d ' \n' <out | sed 's/.*"bad_images":\([0-9]*\).*/\1/'; }
# train RANKS DIR [KEY=VALUE...]
train() {
    ranks=$1 dir=$2; shift 2
    expect 0 "" "$DISTTRAIN" train --ranks $ranks --no-runs --json job.yaml "plan=$plan" run.checkpoint.dir=$dir "$@"
    digest $dir >$dir.sums
}

train 1 one
check "one rank decodes all that there is: $(decoded)" '[ "$(decoded)" -ge 24 ]'
train 2 two
check "two ranks: the same parameters" '[ -s one.sums ] && cmp -s one.sums two.sums'
# six steps and up to two batches ahead, of four images each, every one on one rank
a=$(decoded | cut -d, -f1) b=$(decoded | cut -d, -f2)
check "two ranks decode each image once: $a and $b" \
    '[ $((a + b)) -ge 24 ] && [ $((a + b)) -le 32 ] && [ $a -ge 4 ] && [ $b -ge 4 ]'
for reorder in none auto; do
    train 1 one-$reorder train.reorder=$reorder run.packed=true
    train 2 two-$reorder train.reorder=$reorder run.packed=true
    check "reorder $reorder, packed: the same parameters" \
        '[ -s one-$reorder.sums ] && cmp -s one-$reorder.sums two-$reorder.sums'
done

# ---- damage that only decoding finds: a byte of the compressed pixels ----
cp two-000000.tar sound
damaged=0
for at in $(grep -abo IDAT sound | cut -d: -f1 | sed -n '3p;4p;11p;18p;25p;31p;39p'); do
    printf '\125' | dd of=two-000000.tar bs=1 seek=$((at + 8)) conv=notrunc 2>/dev/null
    damaged=$((damaged + 1))
done
check "there is damage" '[ $damaged -eq 7 ] && ! cmp -s sound two-000000.tar'
for ranks in 1 2; do
    train $ranks damaged-$ranks run.steps=12
    damaged_images >bad-$ranks
    check "$ranks ranks pass over damaged images: $(cat bad-$ranks)" '[ "$(cat bad-$ranks)" -ge 7 ]'
done
check "as many" 'cmp -s bad-1 bad-2'
check "and the same parameters" '[ -s damaged-1.sums ] && cmp -s damaged-1.sums damaged-2.sums'
# a break between, with batches that were made again on both sides of it
train 2 parts run.steps=5
train 2 parts run.steps=12
check "as after a break" 'cmp -s damaged-1.sums parts.sums'
expect 2 "incorrect data check" "$DISTTRAIN" train --ranks 2 --no-runs job.yaml "plan=$plan" run.steps=12 run.bad_data=fatal

# ---- as many as may be, and one more; on one rank and two, and with a break in the epoch ----
train 2 limit run.steps=12 run.bad_samples=7
check "seven may be" 'cmp -s damaged-1.sums limit.sums'
train 2 limit-parts run.steps=5 run.bad_samples=6
for ranks in 1 2; do
    expect 2 "7 samples of epoch 1 cannot be used, and 6 may be (bad_samples); the last: two-000000.tar" \
        "$DISTTRAIN" train --ranks $ranks --no-runs job.yaml "plan=$plan" run.steps=12 run.bad_samples=6
    sed -n 's/.*the last: \(two-000000.tar[^:]*\):.*/\1/p' err | head -n 1 >last-$ranks
done
check "which is the same one" '[ -s last-1 ] && cmp -s last-1 last-2'
expect 2 "7 samples of epoch 1 cannot be used" \
    "$DISTTRAIN" train --ranks 2 --no-runs job.yaml "plan=$plan" run.steps=12 run.bad_samples=6 run.checkpoint.dir=limit-parts
totals
