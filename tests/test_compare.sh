#!/bin/sh
# SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
# disttrain compare: a run against itself, against one with jitter, against another layout.
# Environment: DISTTRAIN (the program), srcdir (the source directory).
set -u
. "${srcdir:=.}/tests/shell.sh"
number() { sed -n "s/^ *\"$1\": \([-0-9.e]*\),*$/\1/p" out | head -n 1; }

expect 0 "" "$DISTTRAIN" simulate mllm-nano-local
expect 0 "" "$DISTTRAIN" simulate mllm-nano-local simulate.jitter=0.1
expect 0 "" "$DISTTRAIN" simulate mllm-nano-local --runs other.db --timeline all
expect 0 "" "$DISTTRAIN" simulate mllm-nano-local --runs other.db --timeline none
expect 0 "" "$DISTTRAIN" simulate mllm-nano-local --runs other.db train.recompute=full

# itself, in one file and across files
expect 0 "median |error| 0.0 %, bias +0.0 %" "$DISTTRAIN" compare 1 1 --tolerance iteration_s=0
expect 0 ", 0 only in a, 0 only in b" "$DISTTRAIN" compare 1 other.db:1 -t iteration_s=0% -t llm.forward_s=0
# jitter: every op is there, times differ, the largest difference comes first
expect 0 "" "$DISTTRAIN" compare last-1 last --json
check "joined" '[ "$(number joined)" -gt 100 ] && [ "$(number only_a)" = 0 ] && [ "$(number only_b)" = 0 ]'
check "errors" 'awk "BEGIN {exit !($(number median_abs_error) > 0.005)}"'
check "worst first" 'sed -n "s/^ *\"difference_s\": \([-0-9.e]*\),*$/\1/p" out | tail -n +2 |
    awk "{d = \$1 < 0 ? -\$1 : \$1; if (NR > 1 && d > last * 1.000001) exit 1; last = d} END {exit NR < 10}"'
expect 4 "iteration_s differs by" "$DISTTRAIN" compare 1 2 -t iteration_s=0.001%
# a tolerance that says nothing is refused before anything is read or printed
expect 2 "'iteration_s' is not NAME=PERCENT" "$DISTTRAIN" compare 1 no-such.db:2 -t iteration_s
expect 2 "'5 apples' is not a percentage" "$DISTTRAIN" compare 1 no-such.db:2 -t 'iteration_s=5 apples'
expect 2 "no line 'bogus'" "$DISTTRAIN" compare 1 2 --tolerance bogus=5%
check "no table before it" '[ ! -s out ]'
expect 2 "no line 'iteration_ms'; did you mean 'iteration_s'" "$DISTTRAIN" compare --json 1 2 -t iteration_ms=5%
check "nor JSON" '[ ! -s out ]'
# recomputation: backwards are longer, forwards are not
expect 4 "backward_s differs by +" "$DISTTRAIN" compare --anyway 1 other.db:3 -t llm.forward_s=0.1 -t llm.backward_s=1
# ... so they are runs of two jobs: refused, or differences instead of errors
expect 2 "not the same job: recompute (a: none; b: full); --anyway" "$DISTTRAIN" compare 1 other.db:3
expect 0 "median |difference|" "$DISTTRAIN" compare --anyway 1 other.db:3
check "no error of a prediction" 'grep -q "^not the same job: recompute" out && ! grep -q "median |error|" out'
expect 0 "" "$DISTTRAIN" compare --anyway --json 1 other.db:3
check "nor in JSON" 'grep -q "\"same_job\": false" out && grep -q "\"median_abs_error\": null" out && [ "$(number median_abs_difference)" != "" ]'
expect 0 "" "$DISTTRAIN" compare --json 1 2
check "jitter leaves the job the same" 'grep -q "\"same_job\": true" out && [ "$(number median_abs_error)" != "" ]'
# samples of other sizes, another batch, another model
for change in "samples (a: .*; b: " "global_batch (a: .*; b: 4)" "model (a: .* parameters, .*; b: "; do
    case $change in
        samples*) with="samples.seed=77";;
        global*) with=train.global_batch=4;;
        model*) with=model.llm.layers=3;;
    esac
    expect 0 "" "$DISTTRAIN" simulate mllm-nano-local --runs changed.db --timeline all $with
    expect 2 "not the same job: " "$DISTTRAIN" compare 1 changed.db:last
    check "$with is named" 'grep -q "$change" err'
done
# the same samples from elsewhere are the same; a layout does not make another job
expect 0 "" "$DISTTRAIN" simulate mllm-nano-local --runs layout.db --timeline all 'plan={encoder: {dp: 2}, llm: {}, generator: {}}' search.strategy=manual
expect 0 "only in b" "$DISTTRAIN" compare 1 layout.db:1
# files of before say nothing about it
cp layout.db before.db
if command -v sqlite3 >/dev/null; then
    sqlite3 before.db 'DROP TABLE fact'
    expect 0 "not known whether they are of the same job: b does not record it" "$DISTTRAIN" compare 1 before.db:1
fi
# metrics of whole runs: the same of one run; recomputation takes time and saves memory
expect 0 "" "$DISTTRAIN" compare 1 1 -t mfu=0 -t tokens_per_s=0 -t samples_per_s=0 -t bubble_share=0 \
    -t exposed_comm_share=0 -t memory_bytes_max=0
expect 4 "mfu differs by -" "$DISTTRAIN" compare --anyway 1 other.db:3 -t mfu=0.01
expect 4 "tokens_per_s differs by -" "$DISTTRAIN" compare --anyway 1 other.db:3 -t tokens_per_s=0.01
expect 4 "memory_bytes_max differs by -" "$DISTTRAIN" compare --anyway 1 other.db:3 -t memory_bytes_max=0.01
expect 0 "" "$DISTTRAIN" compare --json 1 2
check "metrics" '[ "$(sed -n "/\"metrics\"/,/^  \]/p" out | grep -c "\"relative\"")" = 6 ]'
bubble() { sed -n "/\"bubble_share\"/,/\"b\"/s/^ *\"$1\": \([-0-9.e]*\),*$/\1/p" out; }
a=$(bubble a) b=$(bubble b)
# memory of lanes: recomputation saves most where most is kept; the worst comes first
expect 4 "lane llm/0.0 memory_bytes differs by -" "$DISTTRAIN" compare --anyway 1 other.db:3 -t 'lane llm/0.0 memory_bytes=0.01'
check "a table of lanes" 'grep -q "memory of lanes .*a predicted .*b predicted" out && ! grep -q allocated out'
expect 0 "" "$DISTTRAIN" compare --anyway --json 1 other.db:3
lanes=$(grep -c '"lane [^ ]* compute_s"' out)
sed -n '/"memory": \[/,$p' out >memory
check "every lane" '[ "$lanes" -gt 1 ] && [ "$(grep -c "\"lane\"" memory)" = "$lanes" ]'
check "nothing was allocated" '[ "$(grep -c "allocated_bytes\": null" memory)" = $((2 * lanes)) ]'
check "worst first" 'sed -n "s/^ *\"relative\": \([-0-9.e]*\),*$/\1/p" memory |
    awk "{d = \$1 < 0 ? -\$1 : \$1; if (NR > 1 && d > last * 1.000001) exit 1; last = d} END {exit NR < 2}"'
expect 0 "" "$DISTTRAIN" simulate mllm-nano-local --json --timeline none
check "the bubble of the lanes is that of the report" 'awk "BEGIN {d = $(number bubble_fraction) - $a; exit !(d < 1e-6 && d > -1e-6)}"'
check "jitter moves it" '[ "$a" != "$b" ]'
# what cannot be compared
expect 2 "kept no ops" "$DISTTRAIN" compare 1 other.db:2
expect 2 "has no run 7" "$DISTTRAIN" compare 1 7
expect 2 "none.db: .*No such file" "$DISTTRAIN" compare 1 none.db:1
expect 2 "none.db: .*No such file" "$DISTTRAIN" compare --runs none.db 1 2
check "no file is made" '[ ! -e none.db ]'
expect 2 "is not a run" "$DISTTRAIN" compare one 1
expect 2 "has no 9 runs" "$DISTTRAIN" compare last-8 1
expect 2 "no line 'speed'" "$DISTTRAIN" compare 1 2 -t speed=3%
expect 2 "not NAME=PERCENT" "$DISTTRAIN" compare 1 2 -t iteration_s
expect 2 "not a percentage" "$DISTTRAIN" compare 1 2 -t iteration_s=much
totals
