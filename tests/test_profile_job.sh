#!/bin/sh
# SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
# disttrain profile JOB: what is measured here is enough to simulate the job without estimates.
# Environment: DISTTRAIN (the program), srcdir (the source directory).
set -u
. "${srcdir:=.}/tests/shell.sh"
ASAN_OPTIONS=detect_leaks=0${ASAN_OPTIONS:+:$ASAN_OPTIONS}; export ASAN_OPTIONS # as in tests/mpirun.sh

pack_two_tones
write_quick_job
sed 's/^samples: text/samples: {csv: sizes.csv}/' job.yaml >scanned.yaml && mv scanned.yaml job.yaml
expect 0 "" "$DISTTRAIN" data scan two-000000.tar --job job.yaml -o sizes.csv
expect 2 "no run: map" "$DISTTRAIN" profile mllm-nano-local
expect 0 "rows of device cpu" "$DISTTRAIN" profile job.yaml -o here.sql --repeats 3 --seconds 0
check "silent in a pipe" '[ ! -s err ]'
expect 0 "measured on" "$DISTTRAIN" profile job.yaml -o here.db --repeats 3 --seconds 0 --json run.precision=fp32
check "json" 'grep -q "\"rows\": [1-9]" out && grep -q "fp32" out'
expect 0 "block" "$DISTTRAIN" db show here.sql
for phase in fwd dgrad wgrad; do
    check "rows of $phase" "grep -q \"'block','$phase','measured'\" here.sql"
done
# All times at one speed: at a hundredth of it they are a hundred times as long, within what times scatter by.
expect 0 "" "$DISTTRAIN" profile job.yaml -o fast.db --repeats 3 --seconds 0 --reference 0.0005 --json
check "the speed that was asked for" 'grep -q "\"reference_s\": 0.0005" out'
expect 0 "" "$DISTTRAIN" profile job.yaml -o slow.db --repeats 3 --seconds 0 --reference 0.05
if command -v sqlite3 >/dev/null; then
    for what in "op = 'block' AND phase = 'fwd'" "op = 'block' AND phase = 'dgrad'" "op = 'block' AND phase = 'wgrad'" "op = 'adamw'"; do
        for file in fast slow; do
            sqlite3 $file.db "SELECT sum(median_ns) FROM point JOIN series ON series = id WHERE $what" >$file
        done
        check "is what times are brought to: $what" \
            '[ -s fast ] && [ -s slow ] && awk "NR == 1 { f = \$1 } NR == 2 { exit !(\$1 / f > 20 && \$1 / f < 500) }" fast slow'
    done
fi
expect 0 "" "$DISTTRAIN" profile --data job.yaml -o fast.sql --reference 0.0005 --json
cp out fast; expect 0 "" "$DISTTRAIN" profile --data job.yaml -o slow.sql --reference 0.05 --json
rate() { sed -n 's/^.*"decode_px_per_s": \([0-9.e+]*\).*/\1/p' "$1"; }
check "and rates" 'awk -v f="$(rate fast)" -v s="$(rate out)" "BEGIN { exit !(f / s > 20 && f / s < 500) }"'
expect 2 "reference" "$DISTTRAIN" profile job.yaml --reference 0
# Nothing is estimated any more, although the job says nothing about kernels.
for file in here.sql here.db; do
    expect 0 "" "$DISTTRAIN" simulate job.yaml profile=$PWD/$file search.allow_analytical=false --json --no-runs
    check "nearly all measured or interpolated ($file): the gradient norm is not" 'awk -F"[:,]" "/\"measured\"/ {m=\$2} /\"interpolated\"/ {i=\$2}
        /\"extrapolated\"/ {x=\$2} END {exit !(m + i + x > 0.8)}" out'
done
# Two ranks: the messages between them too, and all blocks.
if command -v mpirun >/dev/null; then
    expect 0 "rows of device cpu" "$DISTTRAIN" profile --ranks 2 job.yaml -o two.sql --repeats 3 --seconds 0
    check "once" '[ "$(grep -c "rows of device" out)" -eq 1 ]'
    for op in send_recv all_reduce reduce_scatter all_gather block; do
        check "rows of $op" "grep -q \"'$op','fwd','measured'\" two.sql"
    done
    expect 2 "no run: map" "$DISTTRAIN" profile --ranks 2 mllm-nano-local
fi
# Rows measured without recomputation say nothing about a job with it.
expect 2 "has no rows" "$DISTTRAIN" simulate job.yaml profile=$PWD/here.sql search.allow_analytical=false train.recompute=full --no-runs
totals
