#!/bin/sh
# SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
# disttrain loop --orders, and train --orders, with which it measures: which step is of which batch, and what follows from the numbers.  How near
# predicted gains come to measured ones is no test's matter on a machine that does other things too (--anyway).
# Environment: DISTTRAIN (the program), srcdir (the source directory).
set -u
. "${srcdir:=.}/tests/loop_job.sh"

# which step is of which batch: with a learning rate of 0 its loss says so, whatever the order
turns="train --from-scratch --no-runs --orders 1,2,2 job.yaml run.lr=0 run.log_interval=1 run.log_dir=turns"
expect 2 "goes with --from-scratch" "$DISTTRAIN" train --orders 1,2,3 job.yaml
for wrong in 1,2 1,2,0 1,0,2 -1,2,2 1,2,3,4 1,2,x 1,2,10001 ''; do
    expect 2 "is not W,B,R" "$DISTTRAIN" train --from-scratch --orders "$wrong" job.yaml
done
expect 2 "may roll back" "$DISTTRAIN" $turns run.nonfinite=rollback "run.checkpoint={dir: ck, interval: 9}"
expect 0 "" "$DISTTRAIN" $turns --reference 1 "plan={colocated: true, encoder: {dp: 2}, llm: {dp: 2}, generator: {dp: 2}}" --ranks 2
check "batches come again, in every order, there and back" '[ "$(sed "s/.*\"order\":\"\([a-z]*\).*/\1/" turns/metrics.jsonl | tr "\n" " ")" = \
    "none intra inter both intra inter both none inter both none intra none both inter intra intra none both inter " ]'
check "the same ones" '[ "$(sed "s/.*\"loss_text\":\([0-9.]*\).*/\1/" turns/metrics.jsonl | cut -c 1-6 |
    awk "{ b = NR <= 12 ? int((NR - 1) / 4) : int((NR - 9) / 4); if (!(b in v)) v[b] = \$1; else if (v[b] != \$1) bad = 1 }
        END { print bad + 0, v[0] != v[1] && v[1] != v[2] }")" = "0 1" ]'
check "the speed of both ranks" 'grep -q "\"reference_ranks_s\":\[[0-9.e-]*,[0-9.e-]*\]" turns/metrics.jsonl'

# gains_follow STATUS: 0 if what is in out follows from its numbers: status 4 where a gain is predicted otherwise
gains_follow() {
    awk -v status="$1" '
        function word(s) { sub(/^[^:]*: "?/, "", s); sub(/"?,?$/, "", s); return s }
        function near(a, b) { return size(a - b) < 1e-6 * (1 + size(b)) }
        function size(a) { return a < 0 ? -a : a }
        /"predicted_s"/ { t[n] = word($0) }
        /"measured_s"/ { m[n] = word($0) }
        /"layout"/ { n++ }
        /"gain_predicted"/ { p = word($0) }
        /"gain_predicted_within"/ { pw = word($0) }
        /"gain_measured"/ { g = word($0) }
        /"gain_measured_within"/ { gw = word($0) }
        /"gain_apart"/ { d = word($0) }
        /"gain_apart_within"/ {
            w = word($0)
            if (!near(d, p - g) || !near(w, sqrt(pw * pw + gw * gw)) || !near(m[1] / m[n], g) || !near(t[1] / t[n], p)) wrong = 1
            if (n == 1 && (p != 1 || g != 1 || w != 0)) wrong = 1
            if (size(d) > 0.03 + w) missed = 1
        }
        END { exit !(n >= 4 && !wrong && status == (missed ? 4 : 0)) }' out
}
orders() { # ARGUMENT...
    "$DISTTRAIN" loop --orders job.yaml --steps 2 --warm-up 1 --seconds 0 --json "$@" >out 2>err
    status=$?
}
orders --anyway
check "gains follow from the numbers ($status)" 'gains_follow $status'
check "said, if one is predicted otherwise" '[ $status -eq 0 ] || grep -q "is predicted .* points too" err'
check "rounds" 'grep -q "\"rounds\": 8" out && grep -q "\"trainings\": 2" out'
check "not Entrain's on shared GPUs" '! grep -q "entrain" out'
orders --anyway --runs orders.db "plan={encoder: {}, llm: {}, generator: {}}"
check "with Entrain's, too ($status)" 'gains_follow $status && [ "$(grep -c "\"layout\": " out)" -eq 5 ] && grep -q "\"layout\": \"entrain\"" out'
expect 0 "ops joined, 0 only in a, 0 only in b" "$DISTTRAIN" compare --runs orders.db 9 10
"$DISTTRAIN" loop --anyway --orders job.yaml --steps 1 --warm-up 0 --seconds 0 >out 2>err
check "for people" 'grep -q "^intra and inter .* ± [0-9.]* .* ± [0-9.]* .* ± [0-9.]*$" out &&
    grep -q "^times of .as they come. are brought to one speed .*; the others. follow from its by their gains$" out &&
    grep -q "^predicted and measured gains are [0-9.]* points apart at most, known within [0-9.]*$" out'
# steps of milliseconds: known within 3 points, or no table
if all_of_it; then
    orders
    check "a table, or none and why ($status)" '[ $status -eq 7 ] && [ ! -s out ] && grep -q "machine too busy" err || gains_follow $status'
fi
totals
