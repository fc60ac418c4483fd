#!/bin/sh
# SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
#
# disttrain train --ranks: nothing of a job outlives what started it, whoever is killed and whoever
# stands still; a signal sent twice ends it; a command line of any length reaches every rank; exit
# statuses are the documented ones.  And tasks that do not know of each other are refused.
# Environment: DISTTRAIN (the program), srcdir (the source directory).
set -u
. "${srcdir:=.}/tests/small_job.sh"
train="train --no-runs job.yaml"
steps() { cat log/metrics.jsonl 2>/dev/null | grep -c .; }
children() { for children_of; do cat /proc/"$children_of"/task/*/children 2>/dev/null; done; }
# living PID...: those that still run; each is looked at once, for it may go between two looks
living() {
    for living_pid; do
        case $(sed -n 's/^State:[[:space:]]*//p' /proc/"$living_pid"/status 2>/dev/null) in
        '' | Z* | X*) ;;
        *) echo "$living_pid" ;;
        esac
    done
}

# the tests may run under nohup
defaults='env --default-signal=HUP'
$defaults true 2>/dev/null || defaults=
# begin N OPTION...: a job of N ranks, past its first steps; $job, $launcher and $ranks are processes
begin() {
    rm -rf log
    begin_n=$1; shift
    $defaults "$DISTTRAIN" $train --ranks "$begin_n" run.log_dir=log "$@" >out 2>err </dev/null &
    job=$!
    n=0
    while [ "$(steps)" -lt 3 ] && kill -0 $job 2>/dev/null && [ $n -lt 1200 ]; do sleep 0.05; n=$((n + 1)); done
    launcher=$(children $job)
    ranks=$(children $launcher)
    check "a job of $begin_n ranks runs" '[ "$(echo $ranks | wc -w)" -eq $begin_n ]'
}
# over NAME SECONDS: nothing of it is left after so long, at most
over() {
    n=0
    while [ -n "$(living $launcher $ranks)" ] && [ $n -lt $((20 * $2)) ]; do sleep 0.05; n=$((n + 1)); done
    check "$1: left of $launcher $ranks: $(living $launcher $ranks)" '[ -z "$(living $launcher $ranks)" ]'
    kill -KILL $(living $launcher $ranks) 2>/dev/null
    finished $job 20
}
first() { echo $ranks | cut -d' ' -f1; }

# --- nothing is left ---
begin 2; kill -KILL $job; over 'the parent is killed' 30
begin 2; kill -STOP "$(first)"; kill -KILL $job; over 'the parent is killed while a rank stands still' 30
begin 3; kill -STOP "$(first)"; kill -KILL $launcher; over 'the launcher is killed while a rank stands still' 30
check "and the status is 5, not $status" '[ $status -eq 5 ]'
begin 2; kill -STOP $launcher; kill -KILL $job; over 'the parent is killed while the launcher stands still' 30
# the same where mpirun is the user's: its ranks have no parent of ours, and one of them is stopped
rm -rf log
ranked 2 started "$DISTTRAIN" $train run.log_dir=log
n=0
while [ "$(steps)" -lt 3 ] && [ $n -lt 1200 ]; do sleep 0.05; n=$((n + 1)); done
launcher=$job ranks="$(cat started/0) $(cat started/1)"
kill -STOP "$(first)"; kill -KILL $job; over 'mpirun is killed while a rank stands still' 30

# --- in order, and at once ---
for signal in HUP INT TERM; do
    begin 2 'run.checkpoint={dir: saved, interval: 0}'
    kill -$signal $job; over "$signal" 60
    check "$signal ends it in order: status $status" '[ $status -eq 0 ] && [ -f saved/latest ]'
    rm -rf saved
done
for signal in INT TERM; do
    begin 2; kill -STOP "$(first)"
    kill -$signal $job; sleep 0.5; kill -$signal $job
    over "$signal twice, with a rank that stands still" 9 # sooner than that rank's silence is noticed
    check "$signal twice: status $status" '[ $status -ge 129 ] && [ $status -lt 160 ]'
done

# --- statuses ---
begin 2; kill -KILL "$(first)"; over 'a rank is killed' 30
check "a killed rank: status $status" '[ $status -eq 5 ]'
# a rank of each try is killed
rm -rf log
"$DISTTRAIN" $train --ranks 2 --max-restarts 1 run.log_dir=log 'run.checkpoint={dir: kept, interval: 1}' \
    >out 2>err </dev/null &
job=$! ranks= before=0
for try in 1 2; do
    old=$ranks n=0
    while ranks=$(children $(children $job)); [ $n -lt 1200 ]; do
        [ "$(steps)" -gt $((before + 2)) ] && [ "$(echo $ranks | wc -w)" -eq 2 ] && [ "$ranks" != "$old" ] && break
        sleep 0.05; n=$((n + 1))
    done
    before=$(steps)
    kill -KILL "$(first)"
done
finished $job 60
check "a rank of each try is killed: status $status" '[ $status -eq 5 ]'
check "it says so" 'grep -q "the job ended with status 5; restart 1 of 1" err'
expect 2 "unknown key" "$DISTTRAIN" $train --ranks 2 --max-restarts 3 run.checkpoint.dir=new run.stps=3
check "bad input is not tried again" '! grep -q restart err'
expect 2 "cannot start no-such-mpirun" env DISTTRAIN_MPIRUN=no-such-mpirun "$DISTTRAIN" $train --ranks 2
expect 2 "needs the job in a file" "$DISTTRAIN" train --no-runs - --ranks 2

# --- long command lines ---
# 2,000 arguments, of 200,000 bytes, and after them some that must not be lost or changed
digits=$(printf '%083d' 0)
set --
n=0
while [ $n -lt 2000 ]; do set -- "$@" "run.lr=0.001$digits$((n % 10))"; n=$((n + 1)); done
odd='run.log_dir="odd\\name #"' lines='run.checkpoint={dir: "two
  words", interval: 0}'
expect 0 '"steps": *2\b' "$DISTTRAIN" $train --json --ranks 2 "$@" run.steps=2 "$odd" "$lines"
check "its arguments came whole" '[ -f "odd\\name #/metrics.jsonl" ] && [ -f "two words/latest" ]'
check "both ranks ran" 'grep -q "\"ranks\": *2\b" out'
expect 2 'nonsense' "$DISTTRAIN" $train --ranks 2 "$@" run.nonsense=1
# another host's launcher might not hand the environment down
expect 2 "did not pass on the command line of 123456 bytes" "$DISTTRAIN" @environment 123456
# what the system cannot hand on is said: a \ takes two bytes on the way
slashes=$(printf '%05300d' 0 | tr 0 '\\')
set --
n=0
while [ $n -lt 25 ]; do set -- "$@" "run.lr=0.001 # $slashes"; n=$((n + 1)); done
expect 2 'together longer than this system allows' sh -c 'ulimit -s 1024 && exec "$@"' sh "$DISTTRAIN" $train --ranks 2 "$@" run.steps=1
expect 0 "" "$DISTTRAIN" $train --ranks 2 "$@" run.steps=1

# --- tasks that do not know of each other ---
# alone WANT VARIABLE=VALUE...: exit status of a step with these
alone() { want=$1; shift; expect "$want" "${says-}" env "$@" "$DISTTRAIN" $train run.steps=1 ${more-}; }
says='one of several tasks'
alone 2 SLURM_JOB_ID=7 SLURM_NTASKS=4 SLURM_PROCID=2 SLURM_STEP_ID=0 SLURM_STEP_NUM_TASKS=4
check "it says what to do" 'grep -q "srun --mpi=pmix" err && grep -q -- "--ranks N" err'
alone 2 SLURM_JOB_ID=7 SLURM_NTASKS=4 SLURM_PROCID=0 SLURM_STEP_ID=0
alone 2 SLURM_JOB_ID=7 SLURM_NPROCS=4 SLURM_PROCID=0 SLURM_STEPID=0
alone 2 SLURM_PROCID=3
alone 2 OMPI_COMM_WORLD_SIZE=2 OMPI_COMM_WORLD_RANK=0
alone 2 PMI_SIZE=2 PMI_RANK=1
alone 2 PMIX_NAMESPACE=x PMIX_RANK=1
alone 2 PALS_RANKID=1
alone 2 WORLD_SIZE=2 RANK=0
more='--ranks 2' alone 2 WORLD_SIZE=2 RANK=0
says=
alone 0 SLURM_JOB_ID=7 SLURM_NTASKS=4                             # the shell of salloc
alone 0 SLURM_JOB_ID=7 SLURM_NTASKS=4 SLURM_PROCID=0 ENVIRONMENT=BATCH
alone 0 SLURM_NTASKS=4 SLURM_PROCID=0 SLURM_STEP_ID=4294967290 SLURM_STEP_NUM_TASKS=1
alone 0 WORLD_SIZE=1 RANK=0
more='--ranks 1' alone 0 SLURM_NTASKS=4 SLURM_PROCID=2 SLURM_STEP_ID=0
more='--ranks 2' alone 0 SLURM_JOB_ID=7 SLURM_NTASKS=4 SLURM_PROCID=0 ENVIRONMENT=BATCH
totals
