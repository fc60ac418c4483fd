#!/bin/sh
# SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
# disttrain runs: what is listed, shown, tagged, removed and pruned; old files; other programs at work.
# Environment: DISTTRAIN (the program), srcdir (the source directory).
set -u
. "${srcdir:=.}/tests/shell.sh"
runs="$DISTTRAIN runs"
simulate="$DISTTRAIN simulate mllm-nano-local"
ids() { $runs list --json "$@" | sed -n 's/^ *"run": \([0-9]*\),/\1/p' | tr '\n' ' '; }

# nothing is made where nothing is
for action in list "show 1" "rm 1" "prune --keep 1" "tag 1 x" "tag --delete x"; do
    expect 2 "No such file" $runs $action --runs none.db
done
check "no file" '[ ! -e none.db ]'

expect 0 "" $simulate
expect 0 "" $simulate train.global_batch=4 simulate.jitter=0.01
expect 0 "" $simulate -s megatron-lm --timeline none
expect 0 "" $simulate
expect 0 "^  1  -     simulated  mllm-nano-local  disttrain " $runs list
check "overrides" 'grep -q "^  2 .* train.global_batch=4 simulate.jitter=0.01$" out'
check "ops that are not kept" 'grep -q "^  3 .* megatron-lm .*  none of [0-9]* " out'
check "the size of the file" 'tail -n 1 out | grep -q "^disttrain-runs.db: 4 runs, [0-9.]* KiB"'
expect 0 "" $runs list --last 2
check "the newest two" '[ "$(grep -c simulated out)" = 2 ] && grep -q "^  4 " out'
expect 0 "" $runs list --json
check "the host" 'grep -q "\"host\": \"$(uname -n)\"" out'
expect 0 "^run 2: mllm-nano-local, disttrain, train.global_batch=4 simulate.jitter=0.01, simulated on " $runs show 2
check "its values" 'grep -q "^iteration_s " out && grep -q "^llm.forward_gpu_s " out && grep -q "^global_batch  *4$" out'
expect 0 '"global_batch": 4' $runs show --json 2
check "its documents" 'grep -q "\"format\": \"disttrain-plan\"" out && grep -q "\"iteration_s_p10\"" out'

# tags: names for all commands, which keep
expect 0 "run 2 is tagged base" $runs tag 2 base
expect 0 "^a  run 2: .*\[base\]" "$DISTTRAIN" compare base last
expect 0 "" "$DISTTRAIN" trace export disttrain-runs.db:base -o t.json
expect 2 "run 2 has a tag" $runs rm 1 base
check "all or none" '[ "$(ids)" = "1 2 3 4 " ]'
for bad in last last-2 7 '' a:b 'a b' -; do expect 2 "" $runs tag 1 -- "$bad"; done
expect 2 "has no run 9" $runs tag 9 nine
expect 2 "'nine' is not a run" $runs show nine
expect 0 "" $runs tag 4 base
expect 0 "^run 4: " $runs show base
expect 0 "tag base is removed" $runs tag --delete base
expect 2 "has no tag 'base'" $runs tag --delete base
expect 2 "changes one file: name it with --runs other.db" $runs rm other.db:1

# removing: the number is not given again, the file shrinks
before=$(wc -c <disttrain-runs.db)
expect 0 "^removed runs 4, 1; " $runs rm last 1 4
check "two are left" '[ "$(ids)" = "2 3 " ]'
check "the file is smaller" '[ "$(wc -c <disttrain-runs.db)" -lt "$before" ]'
expect 0 "" $simulate
check "a new number" '[ "$(ids)" = "2 3 5 " ]'
if command -v sqlite3 >/dev/null; then
    check "nothing of theirs stays" '[ "$(for t in lane memory fact work origin op; do
        sqlite3 disttrain-runs.db "SELECT count(*) FROM $t WHERE run IN (1, 4)"; done | tr "\n" " ")" = "0 0 0 0 0 0 " ]'
    check "it is sound" '[ "$(sqlite3 disttrain-runs.db "PRAGMA integrity_check")" = ok ]'
fi

# pruning
expect 2 "needs to know what goes" $runs prune
expect 2 "'a month' is not a number with a unit" $runs prune --older 'a month'
expect 2 "'5' is not a number with a unit" $runs prune --size 5
expect 0 "would remove runs 2, 3; " $runs prune --keep 1 --dry-run
check "nothing went" '[ "$(ids)" = "2 3 5 " ]'
expect 0 "" $runs tag 2 kept
expect 0 "^removed run 5: only their ops" $runs prune --ops --size 1B
expect 0 "ops  *[0-9]*, not kept" $runs show 5
expect 0 "removed no run" $runs prune --older 1h
for i in 1 2 3; do expect 0 "" $simulate; done
expect 0 "^removed runs 3, 5, 6; " $runs prune --keep 2
check "the tagged one stays" '[ "$(ids)" = "2 7 8 " ]'
expect 0 "" $runs prune --older 0s --dry-run --json
check "in JSON" 'grep -q "\"dry_run\": true" out && grep -q "\"bytes_after\": [0-9]" out'
if command -v sqlite3 >/dev/null; then
    sqlite3 disttrain-runs.db "UPDATE run SET started = '2020-01-01T00:00:00Z' WHERE id IN (2, 7)"
    expect 0 "^removed run 7; " $runs prune --older 30d
    check "by age" '[ "$(ids)" = "2 8 " ]'
fi
for i in 1 2 3 4 5 6; do "$DISTTRAIN" simulate --json mllm-nano-local >/dev/null; done
size=$(wc -c <disttrain-runs.db)
expect 0 "^removed runs 8, " $runs prune --size "$((size * 2 / 3))B"
check "by size" '[ "$(wc -c <disttrain-runs.db)" -le $((size * 2 / 3)) ] && [ "$(ids | tr -d " ")" != "" ]'
last=$(ids)

# another program has the file: writers wait, readers do not mind, all is done
expect 0 "" $runs tag last newest
"$DISTTRAIN" simulate --json mllm-nano-local >/dev/null & a=$!
"$DISTTRAIN" simulate --json mllm-nano-local >/dev/null & b=$!
$runs prune --keep 3 >/dev/null & c=$!
$runs tag 2 again >/dev/null & d=$!
wait $a && wait $b && wait $c && wait $d
check "four at once" '[ $? = 0 ] && "$DISTTRAIN" runs list >/dev/null'
if command -v sqlite3 >/dev/null; then
    check "it is sound then" '[ "$(sqlite3 disttrain-runs.db "PRAGMA integrity_check")" = ok ]'
    # a reader that stays: the runs go, the space later
    mkfifo reader
    { printf 'BEGIN; SELECT count(*) FROM run;\n'; cat reader; } | sqlite3 disttrain-runs.db >seen & r=$!
    exec 8>reader
    until [ -s seen ]; do sleep 0.05; done
    expect 1 "kept it locked" $runs prune --keep 1
    exec 8>&-
    wait $r
    expect 0 "removed run" $runs prune --keep 1

    # a file of before: it is read as it is, and gets the tables that it lacks
    sqlite3 old.db <"$srcdir/tests/data/runs-before.sql"
    cp old.db same.db
    expect 0 "^  1  -     simulated  mllm-nano-local" $runs list --runs old.db
    expect 0 "^b: the same work as a" "$DISTTRAIN" compare old.db:1 old.db:2
    expect 0 "" "$DISTTRAIN" compare --json old.db:1 old.db:1 -t llm.forward_gpu_s=0
    expect 2 "'x' is not a run" $runs show --runs old.db x
    check "reading changes nothing" 'cmp -s old.db same.db'
    expect 0 "" $runs tag --runs old.db 1 x
    expect 0 "" $simulate --runs old.db
    check "three runs" '[ "$(ids --runs old.db)" = "1 2 3 " ]'
    expect 0 "^b: the same work as a" "$DISTTRAIN" compare old.db:x old.db:3
    expect 0 "removed run 2" $runs rm --runs old.db 2
    expect 0 "" $runs show --runs old.db x
fi

# loss curves
mkdir log
{ for i in 1 2 3 4 5 6 7 8; do printf '{"time": "2026-11-22T18:35:0%dZ", "step": %d, "loss": %d.5, "grad_norm": null, "lr": 0.1}\n' $i $i $((10 - i)); done
  printf '{"step": 8, "event": "spike", "action": "rollback", "to_step": 5, "samples": {"n": [1, 2]}}\n'
  for i in 6 7 8; do printf '{"step": %d, "loss": %d.25, "lr": 0.1}\n' $i $((10 - i)); done
  printf '{"step": 9, "lo'; } >log/metrics.jsonl
expect 0 "^log: 8 steps, loss 9.5 at step 1, 2.25 at step 8; 3 done again" $runs plot log
expect 0 '"values":\[9.5,8.5,7.5,6.5,5.5,4.25,3.25,2.25\]' $runs plot --json log/metrics.jsonl
expect 0 "" $runs plot log log/metrics.jsonl --svg loss.svg
check "a picture" 'head -c 200 loss.svg | grep -q "<svg" && grep -q "loss" loss.svg'
expect 2 "no step has a grad_norm" $runs plot log --value grad_norm
expect 2 "did you mean 'loss'" $runs plot log --value los
expect 2 "a log has no 'speed'" $runs plot log --value speed
printf '{"step": 1, "loss": 2}\n{"step": }\n' >bad.jsonl
expect 2 "bad.jsonl:2:.*not a line of metrics.jsonl" $runs plot bad.jsonl
expect 2 "has no log" $runs plot last
COLUMNS=60 $runs plot log >narrow; COLUMNS=120 $runs plot log >wide
widest() { sed '/ steps, /d' "$1" | LC_ALL=C.UTF-8 wc -L; }
check "as wide as it may be" '[ "$(widest narrow)" -le 60 ] && [ "$(widest wide)" -gt 60 ]'
if command -v script >/dev/null; then
    escape=$(printf '\033')
    script -qec "$runs plot log" /dev/null </dev/null >coloured
    check "colours on a terminal" 'grep -q "$escape\[" coloured'
    NO_COLOR=1 script -qec "$runs plot log" /dev/null </dev/null >plain
    check "none with NO_COLOR" '! grep -q "$escape\[" plain'
fi
check "none elsewhere" '! grep -q "$(printf "\033")" narrow'
totals
