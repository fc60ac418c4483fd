#!/bin/sh
# SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
#
# A checkpoint folder with other things in it, with two trainings, of two runs, with changed data: what is
# not ours stays, nobody trains where somebody else does, and nothing wrong is gone on from.
# (Single functions: test_checkpoint_dir.c, test_checkpoint_lock.c, test_shard_print.c.)
# Environment: DISTTRAIN (the program), srcdir (the source directory).
set -u
. "${srcdir:=.}/tests/small_job.sh"
train() { expect "$1" "$2" "$DISTTRAIN" train --no-runs --json job.yaml "run.steps=$3" "$4"; }

# --- links and what others have put there ---
mkdir c v; echo precious >v/a
ln -s ../v c/.tmp-x.999999; ln -s ../v c/.old-step-00000001.999999
train 0 "left alone, as this program did not make it" 1 'run.checkpoint={dir: c, keep: 1}'
check "what a link leads to stays" '[ "$(ls -A v)" = a ] && [ -L c/.tmp-x.999999 ]'
mkdir archive; mv c/step-00000001 archive; ln -s ../archive/step-00000001 c
train 0 '"resumed": true' 2 'run.checkpoint={dir: c, keep: 1}'
train 0 '"resumed": true' 3 'run.checkpoint={dir: c, keep: 1}'
check "an archived step stays" '[ -f archive/step-00000001/model.safetensors ] && [ -L c/step-00000001 ] &&
    [ ! -e c/step-00000002 ]'
echo mine >c/step-00000003/notes.txt
train 0 "this program did not write" 4 'run.checkpoint={dir: c, keep: 1}'
check "notes stay" '[ "$(ls -A c/step-00000003)" = notes.txt ]'
rm -r c; mkdir c; echo precious >victim
# the process that trains knows what its temporary files are called, and so does whoever plants them
expect 0 "" sh -c 'ln -s ../victim c/latest.tmp.$$; mkfifo c/run.json.tmp.$$; ln -s ../victim c/lock.tmp.$$
    exec "$@"' - "$DISTTRAIN" train --no-runs job.yaml run.steps=1 run.checkpoint.dir=c
check "nothing goes through a planted name" '[ "$(cat victim)" = precious ] && [ "$(cat c/latest)" = step-00000001 ]'

# --- two trainings ---
"$DISTTRAIN" train --no-runs job.yaml 'run.checkpoint={dir: two, interval: 1, keep: 1}' run.log_dir=log >first 2>&1 &
first=$!
n=0; while [ ! -f two/latest ] && [ $n -lt 600 ]; do sleep 0.05; n=$((n + 1)); done
train 2 "another training uses this folder: process $first on $(uname -n), run [0-9a-f]\{32\}, since 20" 5 run.checkpoint.dir=two
check "it says how to get past it" 'grep -q "remove two/lock" err && [ "$(grep -c "^disttrain: " err)" -eq 1 ]'
expect 2 "another training uses this folder" "$DISTTRAIN" train --ranks 2 --no-runs job.yaml run.checkpoint.dir=two
check "ranks say it once" '[ "$(grep -c "another training" err)" -eq 1 ]'
# readers need no lock, and what keep takes away from them is not the end
for k in 1 2 3; do
    expect 0 "" "$DISTTRAIN" eval job.yaml --data two-000000.tar --checkpoint two
done
check "the first one trains on" 'kill -0 $first'
kill -KILL $first; wait $first 2>/dev/null
check "a killed one leaves its lock" '[ -f two/lock ]'
last=$(sed 's/step-0*//' two/latest)
train 0 '"resumed": true' $((last + 1)) run.checkpoint.dir=two
check "which is stale at once, and goes at the end" '[ ! -e two/lock ] && [ -f two/run.json ]'
check "one run from first to last" \
    '[ "$(sed -n "s/.*\"run_id\": //p" two/run.json two/step-*/manifest.json | sort -u | wc -l)" -eq 1 ]'

# --- runs ---
old=$(cat two/latest)
sums two/$old >sums.old
# a run from scratch that is killed before it saves starts from scratch again, not from what was there
rm -rf log
"$DISTTRAIN" train --ranks 2 --max-restarts 2 --from-scratch --no-runs --json job.yaml run.steps=150 \
    'run.checkpoint={dir: two, keep: 1}' run.log_dir=log >out 2>err </dev/null &
job=$!
n=0
while [ $n -lt 600 ] && [ "$(cat log/metrics.jsonl 2>/dev/null | grep -c .)" -lt 5 ]; do sleep 0.05; n=$((n + 1)); done
parent() { sed 's/.*) [A-Z] \([0-9]*\) .*/\1/' "/proc/$1/stat" 2>/dev/null; }
victim=$(for p in /proc/[0-9]*; do
    p=${p#/proc/} up=$(parent "${p#/proc/}")
    [ -n "$up" ] && [ "$(parent "$up")" = "$job" ] && grep -q disttrain "/proc/$p/cmdline" && echo "$p"
done 2>/dev/null | sort -n | tail -1)
kill -9 "$victim"
finished $job 120
check "the restarted job ends well ($status)" '[ $status -eq 0 ] && [ $(grep -c "restart [0-9] of 2" err) -eq 1 ]'
check "it began anew" '[ "$(field first_step)" = 0 ] && [ "$(field resumed)" = false ]'
check "the other run's checkpoint is set aside, once" 'sums two/before-1/$old | cmp -s - sums.old &&
    [ "$(cat two/before-1/latest)" = "$old" ] && [ ! -e two/before-2 ] && [ "$(grep -c "in two/before-1 now" err)" = 1 ]'
check "and only this run's are here" '[ "$(ls -d two/step-*)" = two/step-00000150 ]'
run=$(sed -n 's/.*"run_id": "\(.*\)",/\1/p' two/step-00000150/manifest.json)
check "the summary names the run" '[ -n "$run" ] && [ "$(field run_id)" = "$run" ]'
# each goes on from its own
expect 0 '"first_step": 150' "$DISTTRAIN" train --no-runs --json --run-id "$run" job.yaml run.steps=151 run.checkpoint.dir=two
other=$(sed -n 's/.*"run_id": "\(.*\)",/\1/p' two/before-1/$old/manifest.json)
expect 0 "\"first_step\": $(echo $old | sed 's/step-0*//')" "$DISTTRAIN" train --no-runs --json --run-id "$other" job.yaml \
    run.steps=160 run.checkpoint.dir=two
expect 0 '"first_step": 0' "$DISTTRAIN" train --no-runs --json --run-id job-17 job.yaml run.steps=1 run.checkpoint.dir=two
expect 2 "1 to 64 letters" "$DISTTRAIN" train --no-runs --run-id 'a/b' job.yaml run.steps=1 run.checkpoint.dir=two
check "a run that is resumed moves none" '[ ! -e two/before-2 ]'
# a start that a job's script repeats: begun anew once, resumed after that
expect 0 '"first_step": 0' "$DISTTRAIN" train --no-runs --json --from-scratch --run-id again job.yaml run.steps=2 run.checkpoint.dir=three
expect 0 '"first_step": 2' "$DISTTRAIN" train --no-runs --json --from-scratch --run-id again job.yaml run.steps=3 run.checkpoint.dir=three
check "its own run is not moved" '[ ! -e three/before-1 ] && [ -d three/step-00000002 ] && [ -d three/step-00000003 ]'
# stopped before anything is saved: what goes on without a word is the older one, and it says so
killed_early() {
    rm -rf log
    "$DISTTRAIN" train --no-runs job.yaml "$@" run.log_dir=log >/dev/null 2>&1 &
    first=$!
    n=0; while [ $n -lt 600 ] && [ "$(cat log/metrics.jsonl 2>/dev/null | grep -c .)" -lt 1 ]; do sleep 0.05; n=$((n + 1)); done
    kill -KILL $first; wait $first 2>/dev/null
}
killed_early --from-scratch run.checkpoint.dir=three
train 0 "no checkpoint to resume, so a new run begins; three/before-1/step-00000003 .*\"--run-id again\" resumes" 1 \
    run.checkpoint.dir=three
expect 0 '"first_step": 3' "$DISTTRAIN" train --no-runs --json --run-id again job.yaml run.steps=4 run.checkpoint.dir=three
# a start that fails moves nothing
expect 2 "no-such.tar" "$DISTTRAIN" train --no-runs --from-scratch job.yaml run.steps=1 run.checkpoint.dir=three run.data=no-such.tar
check "nothing moved" '[ ! -e three/before-2 ] && [ -d three/step-00000004 ]'
killed_early --run-id early run.checkpoint.dir=two
train 0 "which began here at .*, has no checkpoint; resuming from two/step-00000001 of run job-17" 2 run.checkpoint.dir=two

# --- what is not complete ---
rm -rf part; cp -r two part
rm part/$(cat part/latest)/manifest.json
train 0 "^disttrain: warning: part: latest, $(cat part/latest) cannot be gone on from .*; taking step-" 200 run.checkpoint.dir=part
rm -f part/step-*/manifest.json
train 2 "no checkpoint is complete any more" 200 run.checkpoint.dir=part
expect 2 "no checkpoint is complete any more" "$DISTTRAIN" eval job.yaml --data two-000000.tar --checkpoint part
expect 0 "what was left of the run before is in part/before-2 now" "$DISTTRAIN" train --no-runs --from-scratch job.yaml run.steps=1 \
    run.checkpoint.dir=part
check "what is damaged is out of the way" '[ "$(ls -d part/step-*)" = part/step-00000001 ] && [ "$(cat part/latest)" = step-00000001 ]'

# --- data ---
cp two-000000.tar data.tar
data() { expect "$1" "$2" "$DISTTRAIN" train --no-runs --json job.yaml "run.steps=$3" run.checkpoint.dir=d run.data=data.tar $4; }
data 0 "" 2 ""
data 0 '"resumed": true' 3 ""
sleep 2.2; touch -r data.tar when
data 0 '"resumed": true' 4 "" # its times are old enough to go by from here on
at=$(LC_ALL=C grep -abo light data.tar | tail -1 | cut -d: -f1)
printf 'night' | dd of=data.tar bs=1 seek="$at" conv=notrunc 2>/dev/null
touch -r when data.tar
data 2 "data.tar: this shard has changed: the CRC-32 of its contents is " 5 ""
check "it says what to do" 'grep -q -- "--changed-data" err'
expect 2 "data.tar: this shard has changed" "$DISTTRAIN" train --ranks 2 --no-runs job.yaml run.steps=5 run.checkpoint.dir=d run.data=data.tar
check "ranks say it once" '[ "$(grep -c "has changed" err)" -eq 1 ]'
data 0 '"first_step": 4' 5 --changed-data
data 0 '"first_step": 5' 6 "" # that is its data now
cp data.tar copy.tar; mv copy.tar data.tar # another inode, the same bytes
data 0 '"first_step": 6' 7 ""
step=d/$(cat d/latest)
seal() { # the manifest says what state.json is now
    crc=$(gzip -c <$step/state.json | tail -c 8 | od -An -tu1 -N4 | awk '{ printf "%02x%02x%02x%02x", $4, $3, $2, $1 }')
    bytes=$(wc -c <$step/state.json)
    sed -i "/\"state.json\"/,/crc32/{s/\"crc32\": \"[0-9a-f]*\"/\"crc32\": \"$crc\"/;s/\"bytes\": [0-9]*/\"bytes\": $bytes/}" $step/manifest.json
}
# a reader that made something else of the same bytes: the checkpoint of a program that did not count readers
sed -i '/"reader"/d' $step/state.json
seal
data 2 "read by an earlier version of this program (reader 1; this one is 3).*pixels of PNGs of 16 bits" 8 ""
data 0 '"first_step": 7' 8 --changed-data
data 0 '"first_step": 8' 9 ""
# no fingerprint is none that fits
step=d/$(cat d/latest)
sed -i 's/"fingerprint": "[0-9a-f]*"/"fingerprint": "0000000000000000"/' $step/state.json
seal
data 2 "does not say which data" 10 ""
data 0 '"first_step": 9' 10 --changed-data

# --- what train does is safe at the desk, too ---
# two runs in one log: their lines name them; a run that is resumed keeps its name
for steps in 2 3; do expect 0 "" "$DISTTRAIN" train --no-runs job.yaml run.steps=$steps run.checkpoint.dir=one run.log_dir=both run.log_interval=1; done
expect 0 "" "$DISTTRAIN" train --no-runs job.yaml run.steps=2 run.log_dir=both run.log_interval=1
check "a log of two runs" '[ "$(sed -n "s/^{\"run_id\":\"\([0-9a-f]\{32\}\)\",.*/\1/p" both/metrics.jsonl | uniq -c | awk "{ print \$1 }" | tr "\n" " ")" = "3 2 " ] &&
    [ "$(sed -n "1s/^{\"run_id\":\"\([0-9a-f]*\)\".*/\1/p" both/metrics.jsonl)" = "$(sed -n "s/.*\"run_id\": \"\(.*\)\",/\1/p" one/step-00000003/manifest.json)" ]'
# ... and are drawn apart: one that logs other steps of its own mixes with none, and a resumed one is whole
mixed="$DISTTRAIN train --runs mixed.db job.yaml run.log_dir=mixed"
for steps in 2 3; do expect 0 "" $mixed run.steps=$steps run.checkpoint.dir=mixedck run.log_interval=1; done
expect 0 "" $mixed run.steps=2 run.log_interval=2
expect 0 "" "$DISTTRAIN" runs plot --runs mixed.db mixed 1 2 3 --json
check "the run that logged last by the folder, each by its number" \
    '[ "$(sed "s/\"name\"/\n&/g" out | sed -n "s/^\"name\":\"\([^\"]*\)\",\"steps\":\(\[[0-9,]*\]\).*other_runs\":\([0-9]*\).*/\1 \2 \3/p" | tr "\n" " ")" = \
       "mixed [2] 3 run 1 [1,2,3] 1 run 2 [1,2,3] 1 run 3 [2] 3 " ]'
expect 0 "^run 3: 1 step, .*; 3 of other runs left out" "$DISTTRAIN" runs plot --runs mixed.db 3
expect 0 "" $mixed run.steps=1 run.log_interval=1 run.checkpoint.dir=mixedck --from-scratch
expect 2 "mixed: has no step of run 1; when a run begins from scratch" "$DISTTRAIN" runs plot --runs mixed.db 1
expect 0 "^run 4: 1 step, " "$DISTTRAIN" runs plot --runs mixed.db 4
expect 0 "" "$DISTTRAIN" simulate --runs mixed.db job.yaml run.log_dir=mixed
expect 2 "run 5 has no log: it was simulated" "$DISTTRAIN" runs plot --runs mixed.db last
# from scratch: the checkpoints and the log of the run before are set aside, the new one has its own
fresh='run.checkpoint.dir=fresh run.log_dir=freshlog run.log_interval=1'
expect 0 "" "$DISTTRAIN" train --no-runs job.yaml run.steps=3 $fresh
cp freshlog/metrics.jsonl first.jsonl; sums fresh/step-00000003 >sums.first
expect 0 "warning: freshlog: the log of the run before is in freshlog/before-1 now" \
    "$DISTTRAIN" train --no-runs --from-scratch job.yaml run.steps=2 $fresh
check "its log is as it was" 'cmp -s first.jsonl freshlog/before-1/metrics.jsonl && ls freshlog/before-1/events.out.tfevents.* >/dev/null'
check "the new one begins at step 1" '[ "$(sed -n "s/.*\"step\":\([0-9]*\),.*/\1/p" freshlog/metrics.jsonl | tr "\n" " ")" = "1 2 " ] &&
    [ "$(ls freshlog/events.out.tfevents.* | wc -l)" = 1 ]'
check "it says where its checkpoint is" 'grep -q "^disttrain: warning: fresh: step-00000003 of the run before is in fresh/before-1 now" err'
check "its checkpoint is as it was" 'sums fresh/before-1/step-00000003 | cmp -s - sums.first && [ ! -e fresh/step-00000003 ] &&
    [ "$(cat fresh/latest)" = step-00000002 ]'
expect 0 "" "$DISTTRAIN" eval job.yaml --data two-000000.tar --checkpoint fresh/before-1
expect 0 "freshlog/before-2 now" "$DISTTRAIN" train --no-runs --from-scratch job.yaml run.steps=1 $fresh
check "none is overwritten" '[ -d fresh/before-1/step-00000003 ] && [ -d fresh/before-2/step-00000002 ] && cmp -s first.jsonl freshlog/before-1/metrics.jsonl && [ "$(grep -c . freshlog/before-2/metrics.jsonl)" = 2 ]'
expect 0 "" "$DISTTRAIN" train --no-runs job.yaml run.steps=2 $fresh
check "what goes on goes on in its log" '[ "$(grep -c . freshlog/metrics.jsonl)" = 2 ] && [ ! -e freshlog/before-3 ]'
# what it logs can be drawn, also by the run, and compared with it
expect 0 "^freshlog: 2 steps, loss [0-9.]* at step 1, [0-9.]* at step 2" "$DISTTRAIN" runs plot freshlog
expect 0 "" "$DISTTRAIN" train --runs kept.db job.yaml run.steps=3 $fresh
expect 0 "^run 1: 3 steps, loss_text " "$DISTTRAIN" runs plot --runs kept.db last --value loss_text
expect 0 "^b  freshlog: freshlog, measured" "$DISTTRAIN" compare --runs kept.db last freshlog
check "times of its steps" 'grep -q "^iteration_s  *m*s  *[0-9.]*  *[0-9.]*  " out'
expect 0 "" "$DISTTRAIN" runs show --json --runs kept.db last
check "the work of an executed run" '[ "$(grep -c "\"name\": \"[a-z]*.model_flops\"" out)" = 3 ]'
# its rate, time and GPUs are of the step that is stored, and give its work; so does the MFU of the processes, here one
row() { sed -n "/\"name\": \"$1\"/,/\]/s/^ *\([0-9][-0-9.e+]*\),*\$/\1/p" out; }
flops=$(row '[a-z]*.model_flops' | awk '{ s += $1 } END { printf "%.9g", s }') peak=$(field gemm_peak_flops) time=$(row iteration_s)
check "rate and MFU give $flops FLOPs" 'awk -v f="$flops" -v r="$(row model_flops_per_s_per_gpu)" -v g="$(row gpus_used)" -v t="$time" \
    -v m="$(row mfu)" -v p="$peak" "BEGIN { a = r * t * g / f; b = m * t * p / f; exit !(g == 4 && a > 0.99999 && a < 1.00001 && b > 0.99999 && b < 1.00001) }"'
mfu=$(row mfu)
expect 0 "" "$DISTTRAIN" runs list --json --runs kept.db
check "in the list, too" '[ "$(field mfu)" = "$mfu" ]'
# too many ranks: nobody is started
printf '#!/bin/sh\ntouch started\nexit 1\n' >launcher; chmod +x launcher
expect 2 "99 ranks for a plan of 4 GPUs: start 4 (or fewer)" \
    env DISTTRAIN_MPIRUN=./launcher "$DISTTRAIN" train --no-runs --ranks 99 job.yaml run.steps=1
expect 2 "2 ranks for a plan of 1 GPU: start 1" env DISTTRAIN_MPIRUN=./launcher "$DISTTRAIN" train --no-runs --ranks 2 job.yaml \
    run.steps=1 'plan={encoder: {}, llm: {}, generator: {}, colocated: true}'
check "before processes start" '[ ! -e started ]'
# one base for all that a job names: the folder of the job, or else the working directory
mkdir elsewhere
(cd elsewhere && expect 0 "" "$DISTTRAIN" train --no-runs ../job.yaml run.steps=4 $fresh run.data=two-000000.tar
    check "data, checkpoint and log beside the job" '[ -d ../fresh/step-00000004 ] && [ ! -e fresh ] && [ ! -e freshlog ]'
    check "it went on" '[ "$(grep -c . ../freshlog/metrics.jsonl)" = 4 ]'
    expect 0 "" "$DISTTRAIN" eval ../job.yaml --data ../two-000000.tar run.checkpoint.dir=fresh
    expect 0 "" "$DISTTRAIN" train --no-runs ../job.yaml run.steps=1 run.checkpoint.dir=new run.data=two-000000.tar
    check "what is in neither is made here" '[ -d new/step-00000001 ]'
    echo "$passed $failed" >../inside)
check "from another folder" '[ "$(cat inside)" = "$((passed + 6)) $failed" ]'
totals
