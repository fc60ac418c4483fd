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
cp two-000000.tar sound.tar
damaged=0
for at in $(grep -abo IDAT sound.tar | cut -d: -f1 | sed -n '3p;4p;11p;18p;25p;31p;39p'); do
    printf '\125' | dd of=two-000000.tar bs=1 seek=$((at + 8)) conv=notrunc 2>/dev/null
    damaged=$((damaged + 1))
done
check "there is damage" '[ $damaged -eq 7 ] && ! cmp -s sound.tar two-000000.tar'
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

# ---- documents of 40, 50, 30 and 10 tokens, the third damaged, and two sequences of 64 a batch: whether the third can be
# decoded, which is not of the first batch, decides that the fourth is ----
tar xf sound.tar 00000000.png
mkdir border
# document NUMBER TOKENS: bos, bytes and eos
document() {
    cp 00000000.png border/$1.png
    printf '%0*d' $(($2 - 2)) 0 >border/$1.txt
}
spoil() { printf '\125' | dd of="$1" bs=1 seek=$(($(grep -abo IDAT "$1" | cut -d: -f1 | head -n 1) + 8)) conv=notrunc 2>/dev/null; }
document 1 40; document 2 50; document 3 30; document 4 10
spoil border/3.png
(cd border && tar cf ../border.tar 1.png 1.txt 2.png 2.txt 3.png 3.txt 4.png 4.txt)
losses() { sed -n 's/.*"step":\([0-9]*\),"loss":\([0-9.e-]*\),.*"tokens":\([0-9]*\),.*"bad_documents":\([0-9]*\),.*/\1 \3 \4 \2/p' "$1/metrics.jsonl"; }
for ranks in 1 2; do
    expect 0 "" "$DISTTRAIN" train --ranks $ranks --no-runs job.yaml "plan=$plan" run.data=border.tar run.packed=true run.generate=1 \
        run.shuffle=false train.global_batch=2 run.steps=3 run.log_dir=border-$ranks
    losses border-$ranks >border-$ranks.losses
done
check "the first batch has 40 + 50 + 10 tokens and one bad sample" '[ "$(head -n 1 border-1.losses | cut -d" " -f1-3)" = "1 100 1" ]'
check "so it has on two ranks, with the same losses: $(paste -sd, border-2.losses)" 'cmp -s border-1.losses border-2.losses'

# ---- what was trained on the data before the damage is kept ----
rm -f border/*
for k in 01 02 03 04 05 06 07 08 09 10 11 12; do document $k 20; done
spoil border/10.png
(cd border && tar cf ../tenth.tar --sort=name *)
for ranks in 1 2; do
    for every in 0 2; do
        expect 2 "tenth.tar, sample 10: " "$DISTTRAIN" train --ranks $ranks --no-runs job.yaml "plan=$plan" run.data=tenth.tar \
            run.shuffle=false run.bad_data=fatal run.checkpoint="{dir: kept-$ranks-$every, interval: $every}"
        check "the state of step 2 is there" '[ "$(cat kept-$ranks-$every/latest)" = step-00000002 ] &&
            grep -q "warning: the data cannot be gone on with; the state of step 2 is in kept-$ranks-$every" err'
    done
done
cp 00000000.png border/10.png
(cd border && tar cf ../tenth.tar --sort=name *)
expect 0 "3 to 3 of 3, resumed" "$DISTTRAIN" train --no-runs job.yaml "plan=$plan" run.data=tenth.tar run.shuffle=false run.steps=3 \
    --changed-data run.checkpoint.dir=kept-2-0

# ---- a size that the generator cannot halve ----
expect 2 'module "generator": resize: 7 pixels are 7 latents a side, which are no multiple of 2' \
    "$DISTTRAIN" train --no-runs job.yaml model.modules.generator.resize=7
expect 2 "none of 40 samples can be used; the last: sound.tar, sample 000000[0-9]*: an image of 7 x 7 is 7 x 7 latents" \
    "$DISTTRAIN" train --no-runs job.yaml model.modules.generator.resize=7 run.fit=max run.generate=1 run.data=sound.tar
totals
