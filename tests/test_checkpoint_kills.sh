#!/bin/sh
# SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
#
# Two ranks save after every step and are killed again and again, one of them or all, at random
# moments.  Each time the checkpoint that was committed last is loaded, with all its checksums, and
# training goes on from it; in the end it is where training without a break arrives, to the bit.
# No wait is without a limit: a job that does not end is a failure, shown and killed.
# Environment: DISTTRAIN (the program), srcdir (the source directory); KILLS is how often (default 6,
# with DT_CHECK_FULL 50), DT_TEST_SEED when and whom.
set -u
. "${srcdir:=.}/tests/small_job.sh"
: "${KILLS:=$([ -n "${DT_CHECK_FULL-}" ] && echo 50 || echo 6)}" "${DT_TEST_SEED:=$$}"
echo "seed $DT_TEST_SEED, $KILLS kills"
# mpirun need not wait a second between asking the rest to end and killing it
OMPI_MCA_odls_base_sigkill_timeout=0; export OMPI_MCA_odls_base_sigkill_timeout

# the COUNTth random number of this seed below LIMIT
draw() {
    awk -v s="$DT_TEST_SEED" -v k="$1" -v n="$2" \
        'BEGIN { srand(s * 1000 + k); rand(); rand(); print int(n * rand()) }'
}
latest() { cat kill/latest 2>/dev/null; }
alive() { kill -0 "$1" 2>/dev/null; }
# within SECONDS CONDITION, or until the job has ended
within() {
    within_n=$((50 * $1))
    until eval "$2"; do
        alive $job && [ $within_n -gt 0 ] || return 1
        within_n=$((within_n - 1)); sleep 0.02
    done
}
# Everything of this round is to be over now.
over() {
    finished $job 15
    for p in $(cat pids/* 2>/dev/null); do
        n=0; while alive "$p" && [ $n -lt 100 ]; do sleep 0.05; n=$((n + 1)); done
        alive "$p" && status=124
    done
    [ $status -eq 124 ] || return 0
    bad "$1: the job has not ended 15 s after the kill (of $whom: 0, 1, 2 = both, 3 = mpirun, too)"
    ps -o pid,ppid,stat,wchan:24,etimes,args -p "$job,$(cat pids/* | paste -sd,)"
    kill -9 $job $(cat pids/*) 2>/dev/null
    exit 1
}
# What the killed run left: how far had the save got?
found() {
    begun=$(ls -d kill/.tmp-* 2>/dev/null | head -1)
    if [ -z "$begun" ]; then
        newest=$(ls -d kill/step-* 2>/dev/null | tail -1)
        if [ -n "$newest" ] && [ "${newest#kill/}" != "$(latest)" ]; then echo renamed
        elif [ -d "$(ls -d kill/.old-* 2>/dev/null | head -1)" ]; then echo removing
        else echo outside; fi
    elif [ -f "$begun/manifest.json" ]; then echo complete
    elif ls "$begun" | grep -q '^share-'; then echo shares
    elif [ -n "$(ls "$begun")" ]; then echo tensors
    else echo folder; fi
}

last=0 round=0 begin=$(date +%s)
: >where
while [ $round -lt "$KILLS" ]; do
    round=$((round + 1)) at="round $round of seed $DT_TEST_SEED"
    rm -rf log
    ranked 2 pids "$DISTTRAIN" train --no-runs job.yaml run.log_dir=log \
        'run.checkpoint={dir: kill, interval: 1, keep: 2}'
    # in three rounds of four once this run has saved something, otherwise while it begins
    if [ $((round % 4)) -ne 0 ]; then
        before=$(latest)
        within 20 '[ "$(latest)" != "$before" ]'
        check "$at: a run saves something" '[ "$(latest)" != "$before" ]'
        # what one save takes, more or less: they follow each other at once
        delay=$(draw $round 150)
    else
        within 20 '[ -f pids/0 ] && [ -f pids/1 ]'
        delay=$(draw $round 800)
    fi
    sleep "$(printf '0.%03d' "$delay")"
    whom=$(draw $((round + 1000)) 4)
    case $whom in
    0 | 1) kill -9 "$(cat pids/$whom)" ;;
    2) kill -9 "$(cat pids/0)" "$(cat pids/1)" ;;
    *) kill -9 $job "$(cat pids/0)" "$(cat pids/1)" ;; # the machine goes down
    esac
    over "$at"
    check "$at: it does not end well ($status)" '[ $status -ne 0 ]'
    found >>where
    # it had loaded the last one, checksums and all, if it did anything
    if [ -s log/metrics.jsonl ]; then
        first=$(sed -n '1s/.*"step":\([0-9]*\).*/\1/p' log/metrics.jsonl)
        check "$at: went on after $last, not with ${first:-none}" '[ "$first" -eq $((last + 1)) ]'
    fi
    [ -f kill/latest ] || { [ $last -eq 0 ] || bad "$at: the checkpoints are gone"; continue; }
    step=$(latest | sed 's/step-0*//')
    check "$at: step $step after $last" '[ "$step" -ge "$last" ]'
    check "$at: at most one more than is kept" '[ $(ls -d kill/step-* | wc -l) -le 3 ]'
    last=$step
done
echo "in $(($(date +%s) - begin)) s; where saves stood:" $(sort where | uniq -c)
check "some were committed in $KILLS rounds" '[ "$last" -gt 0 ]'
check "some of $KILLS kills came while a save was under way" 'grep -qv outside where'

# --- it loads, and a start clears away what was left ---
expect 0 '"resumed": true' "$DISTTRAIN" train --no-runs --json job.yaml run.steps=$last run.checkpoint.dir=kill
check "a start clears away what was left" '! ls -A kill | grep -v "^step-[0-9]*$" | grep -qv "^latest$\|^run.json$"'

# --- without a break to the same step ---
last=$((last + 1))
for dir in kill straight; do
    expect 0 "" "$MPIRUN" -np 2 "$DISTTRAIN" train --no-runs job.yaml run.steps=$last "run.checkpoint={dir: $dir, keep: 2}"
    sums $dir/step-$(printf %08d $last) >sums.$dir
done
check "to the bit where $last steps without a break arrive" \
    '[ $(wc -l <sums.kill) -gt 60 ] && cmp -s sums.kill sums.straight'
check "and as many as are to be kept" '[ $(ls -A kill | wc -l) -eq 4 ]'

# --- that checksums are looked at ---
file=$(ls kill/$(latest)/optimizer*.safetensors | tail -1)
printf '\377' | dd of="$file" bs=1 seek=$(($(wc -c <"$file") - 3)) conv=notrunc 2>/dev/null
expect 2 "damaged" "$DISTTRAIN" train --no-runs job.yaml run.steps=$last run.checkpoint.dir=kill

echo "$last steps; $passed checks passed, $failed failed"
[ $failed -eq 0 ]
