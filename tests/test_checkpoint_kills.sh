#!/bin/sh
# SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
#
# Two ranks save after every step and are killed again and again, one of them or all, at random
# moments.  Each time the checkpoint that was committed last is loaded, with all its checksums, and
# training goes on from it; in the end it is where training without a break arrives, to the bit.
# Environment: DISTTRAIN (the program), srcdir (the source directory); KILLS is how often (default 6,
# with DT_CHECK_FULL 50), DT_TEST_SEED when and whom.
set -u
. "${srcdir:=.}/tests/small_job.sh"
: "${KILLS:=$([ -n "${DT_CHECK_FULL-}" ] && echo 50 || echo 6)}" "${DT_TEST_SEED:=$$}"
echo "seed $DT_TEST_SEED, $KILLS kills"

# the COUNTth random number of this seed below LIMIT
draw() {
    awk -v s="$DT_TEST_SEED" -v k="$1" -v n="$2" \
        'BEGIN { srand(s * 1000 + k); rand(); rand(); print int(n * rand()) }'
}
latest() { cat kill/latest 2>/dev/null; }
alive() { kill -0 "$1" 2>/dev/null; }

last=0 round=0
while [ $round -lt "$KILLS" ]; do
    round=$((round + 1))
    before=$(latest)
    ranked 2 pids "$DISTTRAIN" train --no-runs job.yaml 'run.checkpoint={dir: kill, interval: 1, keep: 2}'
    # in three rounds of four once this run has saved something, otherwise while it begins
    n=0
    if [ $((round % 4)) -ne 0 ]; then
        while [ "$(latest)" = "$before" ] && alive $job && [ $n -lt 600 ]; do sleep 0.05; n=$((n + 1)); done
        check "round $round of seed $DT_TEST_SEED: something was saved" '[ "$(latest)" != "$before" ]'
    else
        while [ ! -f pids/0 -o ! -f pids/1 ] && [ $n -lt 600 ]; do sleep 0.05; n=$((n + 1)); done
    fi
    sleep "$(printf '0.%03d' "$(draw $round 600)")"
    whom=$(draw $((round + 1000)) 4)
    case $whom in
    0 | 1) kill -9 "$(cat pids/$whom)" ;;
    2) kill -9 "$(cat pids/0)" "$(cat pids/1)" ;;
    *) kill -9 $job "$(cat pids/0)" "$(cat pids/1)" ;; # the machine goes down
    esac
    finished $job 15
    check "round $round of seed $DT_TEST_SEED: the job ends within 15 s, not well ($status)" \
        '[ $status -ne 0 ] && [ $status -ne 124 ]'
    for p in "$(cat pids/0)" "$(cat pids/1)"; do
        alive "$p" && { finished "$p" 5; alive "$p" && bad "round $round: process $p lives on"; }
    done
    [ -f kill/latest ] || { [ $last -eq 0 ] || bad "round $round: the checkpoints are gone"; continue; }
    step=$(latest | sed 's/step-0*//')
    check "round $round of seed $DT_TEST_SEED: step $step after $last" '[ "$step" -ge "$last" ]'
    last=$step
    # loads everything and trains for no step
    expect 0 '"resumed": true' "$DISTTRAIN" train --no-runs --json job.yaml run.steps="$step" run.checkpoint.dir=kill
    check "round $round of seed $DT_TEST_SEED: a start clears away what was left" \
        '! ls -A kill | grep -v "^step-[0-9]*$" | grep -qv "^latest$"'
    check "round $round: at most one more than is kept" '[ $(ls -d kill/step-* | wc -l) -le 3 ]'
done
check "some were committed in $KILLS rounds" '[ "$last" -gt 0 ]'

# --- without a break to the same step ---
last=$((last + 1))
for dir in kill straight; do
    expect 0 "" "$MPIRUN" -np 2 "$DISTTRAIN" train --no-runs job.yaml run.steps=$last "run.checkpoint={dir: $dir, keep: 2}"
    sums $dir/step-$(printf %08d $last) >sums.$dir
done
check "to the bit where $last steps without a break arrive" \
    '[ $(wc -l <sums.kill) -gt 60 ] && cmp -s sums.kill sums.straight'
check "and as many as are to be kept" '[ $(ls -A kill | wc -l) -eq 3 ]'

# --- that checksums are looked at ---
file=$(ls kill/$(latest)/optimizer*.safetensors | tail -1)
printf '\377' | dd of="$file" bs=1 seek=$(($(wc -c <"$file") - 3)) conv=notrunc 2>/dev/null
expect 2 "damaged" "$DISTTRAIN" train --no-runs job.yaml run.steps=$last run.checkpoint.dir=kill

echo "$last steps; $passed checks passed, $failed failed"
[ $failed -eq 0 ]
