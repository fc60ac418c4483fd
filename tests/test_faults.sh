#!/bin/sh
# SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
#
# What may happen to a rank of a training job: it dies, it stalls, it loses its launcher, it is
# another program, another job, has other data or another checkpoint.  Each time the whole job ends
# within 15 s, not with 0, and says once what happened, to which rank, where and in which op.
# (Ranks that lose each other over a network: test_hosts.sh; that hang in an op: test_supervisor.sh.)
# With DT_CHECK_FULL stalled ranks are noticed after the default 10 s of silence, else after 3 s.
# Environment: DISTTRAIN (the program), srcdir (the source directory).
set -u
. "${srcdir:=.}/tests/small_job.sh"
[ -n "${DT_CHECK_FULL-}" ] || { DISTTRAIN_HEARTBEAT_S=3; export DISTTRAIN_HEARTBEAT_S; }
host=$(uname -n)
steps() { cat log/metrics.jsonl 2>/dev/null | grep -c .; }
gone() { ! kill -0 "$(cat ranks/0)" 2>/dev/null && ! kill -0 "$(cat ranks/1)" 2>/dev/null; }

# fault NAME SIGNAL RANK PATTERN: to a job in full swing
fault() {
    name=$1 rank=$3 what=$4
    rm -rf log
    ranked 2 ranks "$DISTTRAIN" train --no-runs job.yaml run.log_dir=log \
        'run.checkpoint={dir: saved, interval: 5, keep: 1}' "plan=$plan"
    n=0
    while [ "$(steps)" -lt 7 ] && kill -0 $job 2>/dev/null && [ $n -lt 1200 ]; do sleep 0.05; n=$((n + 1)); done
    victim=$job
    [ "$rank" = launcher ] || victim=$(cat ranks/"$rank")
    begin=$(date +%s)
    [ -z "$stop_first" ] || kill -STOP $job
    kill -"$2" "$victim"
    finished $job 20
    took=$(($(date +%s) - begin))
    check "$name: status $status after $took s" '[ $status -ne 0 ] && [ $status -ne 124 ] && [ $took -le 15 ]'
    n=0
    while ! gone && [ $n -lt 100 ]; do sleep 0.05; n=$((n + 1)); done
    check "$name: all ranks are gone" gone
    [ -z "$what" ] || check "$name: it says what happened ($what)" 'grep -q "^disttrain: rank $rank on $host (process $victim) $what" err'
    [ -z "$what" ] || check "$name: and where" 'grep "^disttrain: " err |
        grep -q "last seen \(in\|after\) \(encoder\|llm\|generator\)/[01]\.[01] [a-z]"'
    check "$name: by at most one message" '[ "$(grep -c "^disttrain: " err)" -le 1 ]'
    grep '^disttrain: ' err
}
stop_first=
plan='{encoder: {}, llm: {pp: 2}, generator: {}}'
fault 'rank 1 dies' KILL 1 'has died'
fault 'rank 1 stalls' STOP 1 'has been silent for'
plan='{colocated: true, encoder: {}, llm: {tp: 2}, generator: {}}'
fault 'rank 0 dies' KILL 0 'has died'
plan='{colocated: true, encoder: {dp: 2}, llm: {dp: 2}, generator: {dp: 2}}'
fault 'rank 0 stalls' STOP 0 'has been silent for'
fault 'the launcher dies' KILL launcher ''
# nothing that ranks say gets through; they end it
stop_first=yes
fault 'rank 1 dies, and the launcher does not answer' KILL 1 ''
stop_first=

# --- refused at the start ---
# refused NAME FACT COMMAND0 -- COMMAND1: rank 0 and rank 1 differ
refused() {
    name=$1 fact=$2
    shift 2
    begin=$(date +%s)
    expect 2 "the ranks of this job differ" "$MPIRUN" -np 1 "$@"
    took=$(($(date +%s) - begin))
    check "$name: $took s" '[ $took -le 15 ]'
    check "$name: it names fact, ranks and hosts" \
        'grep -q "^  $fact: rank 0 on $host has .*; rank 1 on $host has " err'
    check "$name: once" '[ "$(grep -c "^disttrain: " err)" -eq 1 ]'
    grep "^  $fact: " err
}
train="train --no-runs job.yaml run.steps=2"
cp "$DISTTRAIN" other && printf 'x' >>other
refused 'another binary' binary "$DISTTRAIN" $train : -np 1 ./other $train
refused 'another job' job "$DISTTRAIN" $train : -np 1 "$DISTTRAIN" $train run.seed=2

mkdir a b
cp job.yaml two-000000.tar a; cp job.yaml two-000000.tar b
at=$(LC_ALL=C grep -abo light b/two-000000.tar | tail -1 | cut -d: -f1)
printf 'night' | dd of=b/two-000000.tar bs=1 seek="$at" conv=notrunc 2>/dev/null
check "data of the same length" '[ $(wc -c <a/two-000000.tar) -eq $(wc -c <b/two-000000.tar) ] &&
    ! cmp -s a/two-000000.tar b/two-000000.tar'
refused 'other data' data -wdir "$tmp/a" "$DISTTRAIN" $train : -np 1 -wdir "$tmp/b" "$DISTTRAIN" $train

cp two-000000.tar b
here='run.checkpoint.dir=here'
expect 0 "" sh -c "cd b && exec '$DISTTRAIN' $train $here"
refused 'a checkpoint that not all ranks have' checkpoint \
    -wdir "$tmp/a" "$DISTTRAIN" $train run.steps=3 $here : -np 1 -wdir "$tmp/b" "$DISTTRAIN" $train run.steps=3 $here

echo "$passed checks passed, $failed failed"
[ $failed -eq 0 ]
