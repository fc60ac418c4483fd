#!/bin/sh
# SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
#
# Training on three producers that are killed with SIGKILL at random moments, one of them or all, and
# started again at their places some time later.  Nothing is lost or doubled: in the end the
# parameters are those of as many steps on the shards themselves, to the bit.
# Environment: KILLS is how often (default 5, with DT_CHECK_FULL 50), DT_TEST_SEED when and whom.
: "${srcdir:=.}"
. "$srcdir/tests/small_job.sh"
: "${KILLS:=$([ -n "${DT_CHECK_FULL-}" ] && echo 50 || echo 5)}" "${DT_TEST_SEED:=$$}"
echo "seed $DT_TEST_SEED, $KILLS kills"
if "$DISTTRAIN" preprocess --keygen nokeys 2>&1 | grep -q "without ZeroMQ"; then
    echo "built without ZeroMQ"; exit 77
fi
pids= job=
trap 'kill -9 $pids $job 2>/dev/null; rm -rf "$tmp"' EXIT

draw() { # COUNT LIMIT: the COUNT-th random number of this seed below LIMIT
    awk -v s="$DT_TEST_SEED" -v k="$1" -v n="$2" \
        'BEGIN { srand(s * 1000 + k); rand(); rand(); print int(n * rand()) }'
}
# serve N: the N-th producer, where it was before; its process in pid_N, its address in address_N
serve() {
    rm -f "p$1"
    eval "at=\${address_$1:-127.0.0.1:0}"
    "$DISTTRAIN" preprocess --listen "${at#tcp://}" --insecure job.yaml >"p$1" 2>>"e$1" &
    eval "pid_$1=$!"; pids="$pids $!"
    tries=0
    while [ ! -s "p$1" ] && kill -0 $! 2>/dev/null && [ $tries -lt 400 ]; do
        sleep 0.05; tries=$((tries + 1))
    done
    [ -s "p$1" ] || bad "producer $1 listens"
    eval "address_$1=\$(cat p$1)"
}
quit() { # N
    eval "kill -9 \$pid_$1 2>/dev/null; wait \$pid_$1 2>/dev/null"
}
steps() { [ -s log/metrics.jsonl ] && tail -n 1 log/metrics.jsonl | sed 's/.*"step":\([0-9]*\).*/\1/'; }

for n in 1 2 3; do serve $n; done
"$DISTTRAIN" train --no-runs job.yaml "run.data=\"$address_1,$address_2,$address_3\"" run.log_dir=log \
    'run.checkpoint={dir: killed, keep: 1, interval: 1000000}' run.data_silent_s=1 >out 2>err &
job=$!
tries=0
until [ -n "$(steps)" ] || [ $tries -gt 400 ]; do sleep 0.05; tries=$((tries + 1)); done
check "training begins" '[ -n "$(steps)" ]'
round=0
while [ $round -lt "$KILLS" ] && [ $failed -eq 0 ]; do
    round=$((round + 1)) before=$(steps)
    sleep "$(printf '0.%03d' "$(draw $round 600)")"
    whom=$(draw $((round + 1000)) 4)
    case $whom in 0) whom='1 2 3' ;; esac
    for n in $whom; do quit $n; done
    # at once, so that ZeroMQ connects again by itself, or when the others have been asked
    sleep "$(draw $((round + 2000)) 2).$(draw $((round + 3000)) 10)"
    for n in $whom; do serve $n; done
    tries=0
    until [ "$(steps)" -gt $((before + 1)) ] || [ $tries -gt 800 ] || ! kill -0 $job 2>/dev/null; do
        sleep 0.05; tries=$((tries + 1))
    done
    check "round $round of seed $DT_TEST_SEED: training goes on after $before ($whom killed)" \
        '[ "$(steps)" -gt $((before + 1)) ] && kill -0 $job'
done
kill -TERM $job; finished $job 60
check "it ends well ($status)" '[ $status -eq 0 ] || [ $status -eq 130 ] || [ $status -eq 143 ]'
last=$(ls killed | sed -n 's/^step-0*//p' | tail -n 1)
check "at $last steps it was told of producers that are gone and back" \
    'grep -q "its share moves" err && grep -q "is back" err'
for n in 1 2 3; do quit $n; done
expect 0 "" "$DISTTRAIN" train --no-runs job.yaml run.steps="$last" run.checkpoint.dir=straight
for d in killed straight; do sums "$d/$(ls $d | grep '^step-' | tail -n 1)" >sums.$d; done
check "$last steps on producers killed $KILLS times: the parameters of the shards themselves" \
    '[ -s sums.killed ] && cmp -s sums.killed sums.straight'
totals
