#!/bin/sh
# SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
# Training on what producers make: the same parameters to the bit as from the shards, for any number of
# producers and ranks, across resumption; producers that are killed and stopped; keys; what is refused.
: "${srcdir:=.}"
. "$srcdir/tests/small_job.sh"
write_small_job 'steps: 6, log_interval: 1'
if "$DISTTRAIN" preprocess --keygen nokeys 2>&1 | grep -q "without ZeroMQ"; then
    echo "built without ZeroMQ"; exit 77
fi
pids=
trap 'kill -9 $pids 2>/dev/null; rm -rf "$tmp"' EXIT

# producer N [OPTION...]: the N-th, in the background; its address in $address
producer() {
    k=$1; shift
    rm -f "p$k"
    "$DISTTRAIN" preprocess --listen "127.0.0.1:${port:-0}" "${@:---insecure}" job.yaml >"p$k" 2>"e$k" &
    pid=$!; pids="$pids $pid"
    tries=0
    while [ ! -s "p$k" ] && kill -0 $pid 2>/dev/null && [ $tries -lt 400 ]; do
        sleep 0.05; tries=$((tries + 1))
    done
    address=$(cat "p$k")
}
# some N: that many; $list, $those
some() {
    list= those=
    i=1; while [ $i -le "$1" ]; do
        producer $i; list=$list${list:+,}$address; those="$those $pid"; i=$((i + 1))
    done
}
quit() { kill $those 2>/dev/null; wait $those 2>/dev/null; }
digest() { sums "$1/$(ls "$1" | grep '^step-' | tail -n 1)"; }


# ---- the same parameters ----
for reorder in none auto; do
    expect 0 "" "$DISTTRAIN" train --no-runs job.yaml train.reorder=$reorder run.checkpoint.dir=own-$reorder
    digest own-$reorder >own-$reorder.sums
    check "there are parameters" '[ -s own-$reorder.sums ]'
done
for n in 1 2 5; do
    some $n
    for reorder in none auto; do
        expect 0 "" "$DISTTRAIN" train --no-runs --json job.yaml train.reorder=$reorder "run.data=\"$list\"" \
            run.checkpoint.dir=fed-$n-$reorder
        check "the summary says so" 'grep -q "\"mode\": \"disaggregated\"" out && grep -q "\"producers\": $n" out'
        digest fed-$n-$reorder >sums
        check "$n producers, reorder $reorder: the same parameters" 'cmp -s sums own-$reorder.sums'
    done
    quit
done

# ---- kept indexes of shards make no difference, written by several ranks or by one, damaged or not ----
for k in 1 2 3; do
    [ $k -lt 3 ] || printf 'no index' >"$(ls index/*)"
    expect 0 "" "$DISTTRAIN" train --no-runs job.yaml train.reorder=none run.checkpoint.dir=index-$k run.data_index=index
    digest index-$k >sums
    check "run $k with an index: the same parameters" 'cmp -s sums own-none.sums'
    check "one index, whole" '[ "$(ls -A index | grep -c "^two-000000.tar.*index$")" -eq 1 ] && [ "$(wc -c <"$(ls index/*)")" -gt 600 ]'
done
rm -rf index
expect 0 "" "$DISTTRAIN" train --no-runs --ranks 4 job.yaml "plan={encoder: {}, llm: {pp: 2}, generator: {}}" run.data_index=index
check "four ranks leave one index and nothing else" '[ "$(ls -A index | wc -l)" -eq 1 ]'
expect 0 "" "$DISTTRAIN" train --no-runs job.yaml run.data_index=none
check "few samples leave none beside them" '[ ! -e .disttrain-index ]'
expect 1 "cannot make this folder" "$DISTTRAIN" train --no-runs job.yaml run.data_index=two-000000.tar/x

# ---- ranks; going on from a checkpoint ----
some 2
for ranks in 2 4; do
    case $ranks in
    2) plan='{encoder: {}, llm: {pp: 2}, generator: {}}' ;;
    4) plan='{encoder: {}, llm: {dp: 2}, generator: {}}' ;;
    esac
    expect 0 "" "$DISTTRAIN" train --ranks $ranks --no-runs job.yaml "plan=$plan" run.checkpoint.dir=own-r$ranks
    digest own-r$ranks >own.sums
    expect 0 "" "$DISTTRAIN" train --ranks $ranks --no-runs job.yaml "plan=$plan" "run.data=\"$list\"" \
        run.checkpoint.dir=fed-r$ranks
    digest fed-r$ranks >sums
    check "$ranks ranks: the same parameters" '[ -s sums ] && cmp -s sums own.sums'
    expect 0 "" "$DISTTRAIN" train --ranks $ranks --no-runs job.yaml "plan=$plan" "run.data=\"$list\"" \
        run.checkpoint.dir=two-r$ranks run.steps=3
    expect 0 "" "$DISTTRAIN" train --ranks $ranks --no-runs job.yaml "plan=$plan" "run.data=\"$list\"" \
        run.checkpoint.dir=two-r$ranks
    digest two-r$ranks >sums
    check "$ranks ranks, resumed: the same parameters" 'cmp -s sums own.sums'
done
quit

# ---- from shards to producers and back, and the other way round ----
some 1
for first in shards producers; do
    for steps in 2 4 6; do
        case $first$steps in shards4 | producers2 | producers6) data="\"$list\"" ;; *) data=two-000000.tar ;; esac
        expect 0 "" "$DISTTRAIN" train --no-runs job.yaml "run.data=$data" run.steps=$steps run.checkpoint.dir=$first
    done
    digest $first >sums
    check "first $first: the same parameters" 'cmp -s sums own-none.sums || cmp -s sums own-auto.sums'
done
cp two-000000.tar kept; printf x | dd of=two-000000.tar bs=1 seek=700 conv=notrunc 2>/dev/null
expect 2 "has changed" "$DISTTRAIN" train --no-runs job.yaml run.steps=7 run.checkpoint.dir=shards
mv kept two-000000.tar
quit

# ---- videos ----
mkdir -p vids
tar xf two-000000.tar
i=0; while [ $i -lt 12 ]; do
    mkdir vids/$i
    k=0; while [ $k -le $((i % 4)) ]; do cp "$(printf %08d $((2 * i + k))).png" vids/$i/$k.png; k=$((k + 1)); done
    printf 'video %d' $i >vids/$i.txt; i=$((i + 1))
done
rm -f 000*
expect 0 "12 samples" "$DISTTRAIN" data pack --videos -o vid vids
cp job.yaml pictures.yaml
sed 's/data: two-000000.tar/data: [vid-000000.tar, two-000000.tar], frames_max: 3/' pictures.yaml >job.yaml
expect 0 "" "$DISTTRAIN" train --no-runs job.yaml run.checkpoint.dir=own-video
digest own-video >own.sums
plan='{encoder: {}, llm: {pp: 2}, generator: {}}'
expect 0 "" "$DISTTRAIN" train --no-runs job.yaml "plan=$plan" run.checkpoint.dir=lanes-video
digest lanes-video >lanes.sums
expect 0 "" "$DISTTRAIN" train --no-runs --ranks 4 job.yaml "plan=$plan" run.checkpoint.dir=ranks-video
digest ranks-video >sums
check "videos over ranks, each of which decodes its own: the same parameters" '[ -s sums ] && cmp -s sums lanes.sums'
some 2
expect 0 "" "$DISTTRAIN" train --no-runs job.yaml run.checkpoint.dir=fed-video "run.data=\"$list\""
digest fed-video >sums
check "videos from producers: the same parameters" '[ -s sums ] && cmp -s sums own.sums'
expect 0 "" "$DISTTRAIN" train --no-runs --ranks 4 job.yaml "plan=$plan" run.checkpoint.dir=fed-ranks "run.data=\"$list\""
digest fed-ranks >sums
check "and over ranks" '[ -s sums ] && cmp -s sums lanes.sums'
expect 5 "another job" "$DISTTRAIN" train --no-runs job.yaml "run.data=\"$list\"" run.frames_max=2
quit
mv pictures.yaml job.yaml

# ---- producers that are killed, and stand still ----
some 3
set -- $those
"$DISTTRAIN" train --no-runs --json job.yaml "run.data=\"$list\"" run.checkpoint.dir=killed run.steps=400 >out 2>err &
job=$!
sleep 1; kill -9 $1; kill -STOP $2
wait $job; status=$?
check "training goes on with the last producer" '[ $status -eq 0 ]'
kill -9 $2
digest killed >sums
expect 0 "" "$DISTTRAIN" train --no-runs job.yaml run.checkpoint.dir=unkilled run.steps=400
digest unkilled >own.sums
check "nothing is lost or doubled" '[ -s sums ] && cmp -s sums own.sums'
quit

# ---- what is refused ----
expect 2 "keygen" "$DISTTRAIN" preprocess --listen 127.0.0.1:0 job.yaml
expect 2 "own addresses only" "$DISTTRAIN" preprocess --listen 0.0.0.0:0 --insecure job.yaml
expect 2 "needs the shards" "$DISTTRAIN" preprocess --listen 127.0.0.1:0 --insecure job.yaml run.data=tcp://127.0.0.1:1
expect 2 "not from both" "$DISTTRAIN" train --no-runs job.yaml "run.data=[tcp://127.0.0.1:1, two-000000.tar]"
expect 2 "need keys" "$DISTTRAIN" train --no-runs job.yaml run.data=tcp://192.0.2.1:7070
some 1
expect 5 "another job" "$DISTTRAIN" train --no-runs job.yaml "run.data=\"$list\"" run.seed=77
quit

# ---- keys ----
expect 0 "" "$DISTTRAIN" preprocess --keygen keys
check "only their owner can read them" '[ "$(ls -l keys keys.train | cut -c1-10 | sort -u)" = "-rw-------" ]'
producer 1 --keys keys
expect 0 "" "$DISTTRAIN" train --no-runs job.yaml "run.data=\"$address\"" run.data_keys=keys.train run.checkpoint.dir=keyed
digest keyed >sums
check "with keys: the same parameters" 'cmp -s sums own-none.sums || cmp -s sums own-auto.sums'
kill $pid; wait $pid
check "a producer says what it has served" 'grep -q "^served *$address for [0-9.]* s$" p1 && grep -q "^consumers *1$" p1 &&
    grep -q "^documents *[1-9][0-9]* made (0 bad), [1-9][0-9]* sent in [1-9][0-9]* bytes$" p1 &&
    grep -q "^making *[0-9.]* s of a core, [0-9.]* ms a document; workers: 1, [0-9.]* % of the time$" p1'
# as JSON, of a set of which three samples are bad: a caption that is not UTF-8, none, an image that is none
mkdir bad && tar xf two-000000.tar -C bad
printf '\377' >bad/00000003.txt; rm bad/00000004.txt; head -c 40 bad/00000005.png >bad/cut && mv bad/cut bad/00000005.png
(cd bad && tar cf ../bad-000000.tar --sort=name *)
"$DISTTRAIN" preprocess --listen 127.0.0.1:0 --insecure --json --workers 2 job.yaml run.data=bad-000000.tar >p9 2>e9 &
pid=$!; pids="$pids $pid"
while [ ! -s e9 ] && kill -0 $pid 2>/dev/null; do sleep 0.05; done
address=$(head -n 1 e9)
expect 0 "" "$DISTTRAIN" train --no-runs --json job.yaml "run.data=\"$address\"" run.steps=30
received=$(sed -n 's/^ *"bytes_per_step": \([0-9]*\).*/\1/p' out)
kill $pid; wait $pid
member() { sed -n "s/^ *\"$1\": \"*\([^\",]*\)\"*,*$/\1/p" p9; }
check "the same as JSON" '[ "$(member address)" = "$address" ] && [ "$(member consumers)" = 1 ] && [ "$(member workers)" = 2 ] && [ "$(member refused)" = 0 ]'
made=$(member made); bad=$(member bad); images=$(member images)
check "bad ones are counted in every epoch" '[ "$bad" -ge 6 ] && [ "$bad" -le $((made / 40 * 3 + 3)) ]'
check "an image of each document that is good" '[ "$images" -ge $((made - bad)) ] && [ "$images" -le $((made - bad + 2)) ]' # those being made
check "what training received was sent" '[ "$received" -gt 100 ] && [ "$(member sent_bytes)" -ge $((29 * received)) ]'
totals
