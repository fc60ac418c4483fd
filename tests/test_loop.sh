#!/bin/sh
# SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
# disttrain loop: layouts are profiled, predicted, trained and compared; on a busy machine cores are
# left out or nothing is said; what is stopped leaves nothing.  How near the times come is no test's
# matter on a machine that does other things too (--anyway).
# Environment: DISTTRAIN (the program), srcdir (the source directory).
set -u
. "${srcdir:=.}/tests/loop_job.sh"

mkdir "$tmp/made"
TMPDIR=$tmp/made; export TMPDIR # others may run loops, too
expect 2 "no run: map" "$DISTTRAIN" loop mllm-nano-local
expect 2 "whole number" "$DISTTRAIN" loop job.yaml --ranks 0
expect 0 "" "$DISTTRAIN" loop --anyway job.yaml --ranks 2 --steps 2 --warm-up 1 --seconds 0 --json --runs runs.db
check "silent in a pipe" '[ ! -s err ]'
check "layouts" '[ "$(grep -c "\"predicted_s\": [0-9.e-]*," out)" -ge 10 ]'
check "all measured" '! grep -q "\"measured_s\": 0[,e]" out && grep -q "\"median_abs_error\"" out'
check "context parallelism, and with it a window" 'grep -q "\"layout\": \"colocated 1x1 1x1 cp 2 1x1\"" out &&
    grep -q "\"layout\": \"colocated 1x2 window all 1x1 cp 2 1x2\"" out'
check "several ranks" 'grep -q "\"ranks\": 2" out && grep -q "\"ranks\": 1" out'
# both runs of a layout are of the same step and join on every op
expect 0 "ops joined, 0 only in a, 0 only in b" "$DISTTRAIN" compare --runs runs.db 1 2
check "memory of lanes, predicted by one model" 'grep -A 3 "memory of lanes" out | grep -q "llm/0.0.*[0-9]"'
check "one peak for both" 'grep -q "^mfu: of .* on all sides, measured by b" out'
# ... while a simulation of other samples predicts nothing of it
expect 0 "" "$DISTTRAIN" simulate job.yaml --runs text.db --timeline all
expect 2 "not the same job: .*samples (a: sequences of " "$DISTTRAIN" compare text.db:1 runs.db:2
check "what was read is named" 'grep -q "; b: two-000000.tar, step 3, " err'
expect 0 "ops joined, 0 only in a, 0 only in b" "$DISTTRAIN" compare --runs runs.db 1 2
check "predicted, then measured" 'grep -q "^a  run 1: .*, simulated on" out && grep -q "^b  run 2: .*, executed on" out'
expect 0 "median |error|" "$DISTTRAIN" loop --anyway job.yaml --ranks 1 --steps 1 --warm-up 0 --seconds 0
expect 5 "failed; its last output was" env PATH=/none "$DISTTRAIN" loop --anyway job.yaml --ranks 2 --steps 1 --warm-up 0 --seconds 0
# (make check-full.)  A profile of blocks that take three times as long, at the same speed of the machine, is measured again.  In place of mpirun a
# script gives all profiles the first one's times, the second three times these.
if all_of_it && command -v sqlite3 >/dev/null && [ "$(nproc)" -ge 2 ]; then
    cat >made/launcher <<'END'
#!/bin/sh
case " $* " in *" profile "*) ;; *) exec mpirun "$@" ;; esac
here=$(dirname "$0") out=
for word in "$@"; do [ "$before" != --output ] || out=$word; before=$word; done
mpirun "$@" >"$here/said" || exit
sed 's/"reference_s": *[^,}]*/"reference_s": 0.001/' "$here/said"
echo x >>"$here/profiles"
[ -e "$here/first.db" ] || cp "$out" "$here/first.db"
cp "$here/first.db" "$out"
[ $(wc -l <"$here/profiles") -ne 2 ] ||
    sqlite3 "$out" 'UPDATE point SET median_ns = 3 * median_ns, p10_ns = 3 * p10_ns, p90_ns = 3 * p90_ns'
END
    chmod +x made/launcher
    expect 0 '' env DISTTRAIN_MPIRUN="$tmp/made/launcher" "$DISTTRAIN" loop --anyway job.yaml --ranks 2 --steps 1 --warm-up 0 --seconds 0 --json
    # where other work leaves one core, blocks are profiled without the launcher
    grep -q '"cores": 1,' out || check "three profiles and the second again" '[ $(wc -l <made/profiles) -eq 4 ] && grep -q "\"taken_again\": [1-9]" out'
fi
# Every core busy: no table.  All but one, or a test beside this one: a table of the others, or none.
burners=
burn() { (exec sh -c 'while :; do :; done') & burners="$burners $!"; }
put_out() { [ -z "$burners" ] || kill $burners; burners=; }
trap 'put_out; rm -rf "$tmp"' EXIT
cores=$(nproc)
k=0; while [ $k -lt $((2 * cores)) ]; do burn; k=$((k + 1)); done
expect 7 "machine too busy: other work takes" "$DISTTRAIN" loop job.yaml --ranks 1 --steps 1 --warm-up 0 --seconds 0
check "no table" '[ ! -s out ]'
put_out
burn
"$DISTTRAIN" loop job.yaml --ranks 1 --steps 2 --warm-up 1 --seconds 0 --json >out 2>err
status=$?
put_out
check "a table or none" '[ $status -eq 7 ] && grep -q "machine too busy" err && [ ! -s out ] ||
    { [ $status -eq 0 ] && grep -q "\"cores\": [0-9]" out && grep -q "\"foreign_max\": " out; }'
# Stopped by a signal while a child runs: it is told, waited for, and the folder goes.
"$DISTTRAIN" loop --anyway job.yaml --ranks 1 --steps 9999 --warm-up 0 --seconds 0 >out 2>err &
loop=$!
k=0; while [ ! -s "$(echo made/disttrain-loop-*/log-*/metrics.jsonl)" ] && [ $k -lt 600 ]; do sleep 0.1; k=$((k + 1)); done
check "it runs" '[ $k -lt 600 ]'
kill -TERM $loop
wait $loop
status=$?
check "ended by the signal" '[ $status -eq 143 ]'
check "nothing is left" '[ -z "$(find made -name "disttrain-loop-*")" ]'
expect 1 "made/none: cannot make a folder" env TMPDIR="$tmp/made/none" "$DISTTRAIN" loop job.yaml --ranks 1
totals
