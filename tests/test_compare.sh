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
# ... so they are runs of two choices: a tolerance is about one, and what differs is no error
expect 2 "not the same job: recompute (a: none; b: full); --anyway" "$DISTTRAIN" compare 1 other.db:3 -t mfu=90
expect 0 "median |difference|" "$DISTTRAIN" compare 1 other.db:3
check "the work is the same" 'grep -q "^b: the same work as a" out && grep -q "^   other choices: recompute (a: none; b: full)" out'
check "no error of a prediction" '! grep -q "median |error|" out'
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
    expect 2 "not the same job: " "$DISTTRAIN" compare 1 changed.db:last -t iteration_s=90
    check "$with is named" 'grep -q "$change" err'
    expect 0 "^b: OTHER WORK than a" "$DISTTRAIN" compare 1 changed.db:last
    check "$with comes first" 'sed -n 4p out | grep -q "^   not the same job: .*$change"'
done
check "by how much" '"$DISTTRAIN" compare 1 changed.db:2 | grep -q "OTHER WORK .*llm -50.00 %"' 
# the same samples from elsewhere are the same; a layout does not make another job
expect 0 "" "$DISTTRAIN" simulate mllm-nano-local --runs layout.db --timeline all 'plan={encoder: {dp: 2}, llm: {tp: 2}, generator: {}}' search.strategy=manual cluster.gpus_per_node=6
expect 0 "only in b" "$DISTTRAIN" compare 1 layout.db:1
# files of before say nothing about it
cp layout.db before.db
if command -v sqlite3 >/dev/null; then
    sqlite3 before.db 'DROP TABLE fact'
    expect 0 "whether they are of the same job is not known: b does not record it" "$DISTTRAIN" compare 1 before.db:1
    check "the report has its work" 'grep -q "^b: the same work" out'
fi
# warm-up and assignment are choices, too; runs of before tell them only where they are not 1f1b and slots
policies="$DISTTRAIN simulate mllm-nano-local --runs policies.db search.strategy=manual train.reorder=none"
for policy in train.warmup=1f1b train.warmup=eager train.assignment=entrain; do
    expect 0 "" $policies 'plan={encoder: {}, llm: {pp: 2}, generator: {}}' $policy
done
others() {
    expect 2 "not the same job: warmup (a: 1f1b; b: eager)" "$DISTTRAIN" compare --runs policies.db 1 2 -t iteration_s=90
    expect 2 "not the same job: assignment (a: slots; b: entrain)" "$DISTTRAIN" compare --runs policies.db 1 3 -t iteration_s=90
    expect 2 "warmup (a: eager; b: 1f1b)" "$DISTTRAIN" compare --runs policies.db 2 3 -t iteration_s=90
    check "both" 'grep -q "assignment (a: slots; b: entrain)" err'
    expect 2 "not the same job: assignment (a: entrain; b: slots)" "$DISTTRAIN" compare --runs policies.db 3 1 -t iteration_s=90
}
others
if command -v sqlite3 >/dev/null; then
    sqlite3 policies.db "DELETE FROM fact WHERE name IN ('warmup', 'assignment') AND value IN ('1f1b', 'slots')"
    others
    expect 0 "" $policies 'plan={encoder: {}, llm: {pp: 2}, generator: {}}'
    expect 0 "" "$DISTTRAIN" compare --runs policies.db 1 4 -t iteration_s=0
fi
# metrics of whole runs: the same of one run; recomputation takes time and saves memory
expect 0 "" "$DISTTRAIN" compare 1 1 -t mfu=0 -t tokens_per_s=0 -t samples_per_s=0 -t bubble_share=0 \
    -t exposed_comm_share=0 -t memory_bytes_max=0
expect 4 "mfu differs by -" "$DISTTRAIN" compare --anyway 1 other.db:3 -t mfu=0.01
expect 4 "tokens_per_s differs by -" "$DISTTRAIN" compare --anyway 1 other.db:3 -t tokens_per_s=0.01
expect 4 "memory_bytes_max differs by -" "$DISTTRAIN" compare --anyway 1 other.db:3 -t memory_bytes_max=0.01
expect 0 "" "$DISTTRAIN" compare --json 1 2
check "metrics" '[ "$(sed -n "/\"metrics\"/,/^  \]/p" out | grep -c "\"relative\"")" = 11 ]'
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
# another layout of a module: its ops are other ops, its wholes can be compared
expect 0 "encoder is compared as a whole only: other layout" "$DISTTRAIN" compare 1 layout.db:1
check "no line of its ops" '! grep -q "^encoder.forward_s" out && ! grep -q "^lane encoder/" out && grep -q "^llm.forward_s" out'
check "nor of its memory by lane" '! grep -q "^encoder/0.0" out && grep -q "^llm/0.0" out'
check "its layouts" 'grep -q "^encoder  *tp1 pp1 dp1  tp1 pp1 dp2" out'
expect 2 "no line 'encoder.forward_s' (other layout)" "$DISTTRAIN" compare 1 layout.db:1 -t encoder.forward_s=1
expect 0 "" "$DISTTRAIN" compare --json 1 layout.db:1
check "and in JSON" 'grep -q "\"why_not\": \"other layout\"" out && ! grep -q "\"name\": \"encoder.forward_s\"" out'
work() { sed -n "/\"name\": \"$1\"/,/\]/p" out | sed -n 's/^ *\([0-9][-0-9.e+]*\),*$/\1/p' | tr '\n' ' '; }
check "the same work, the GPU time of it" 'set -- $(work encoder.model_flops) && [ "$1" = "$2" ] &&
    set -- $(work encoder.forward_gpu_s) && awk "BEGIN {exit !($2 > 0 && $1 > 0)}"'
# microbatches of another size are other ops, too; a backward that is split as well
expect 0 "" "$DISTTRAIN" simulate mllm-nano-local --runs micro.db --timeline all train.microbatch=2 \
    search.strategy=manual 'plan={encoder: {}, llm: {tp: 2}, generator: {}}'
expect 0 "llm is compared as a whole only: other microbatch" "$DISTTRAIN" compare 1 micro.db:1
expect 0 "" "$DISTTRAIN" simulate mllm-nano-local --runs split.db --timeline all train.schedule=zb-h1 \
    search.strategy=manual 'plan={encoder: {}, llm: {tp: 2}, generator: {}}'
expect 0 "llm is compared as a whole only: its passes are divided into other ops" "$DISTTRAIN" compare 1 split.db:1

# many runs side by side, each against the first, named by what they are
expect 0 "" "$DISTTRAIN" simulate mllm-nano-local --runs many.db
expect 0 "" "$DISTTRAIN" simulate mllm-nano-local --runs many.db train.global_batch=4 simulate.jitter=0.01
expect 0 "" "$DISTTRAIN" simulate mllm-nano-local --runs many.db -s megatron-lm
expect 0 "^what .* a .* b .* b - a \[%\] .* c .* c - a \[%\]" "$DISTTRAIN" compare --runs many.db 1 2 3
check "their names" 'grep -q "^a  run 1: mllm-nano-local, disttrain, simulated on .* 20..-..-.. ..:..Z, " out &&
    grep -q "^b  run 2: mllm-nano-local, disttrain, train.global_batch=4 simulate.jitter=0.01, simulated on " out &&
    grep -q "^c  run 3: mllm-nano-local, megatron-lm, simulated on " out'
check "whose work is another" 'grep -q "^b: OTHER WORK" out && grep -q "^c: the same work" out'
expect 0 "" "$DISTTRAIN" compare --json --runs many.db 1 2 3
check "three values of each" '[ "$(grep -c "\"kind\": \"simulated\"" out)" = 7 ] && set -- $(work iteration_s) && [ $# = 3 ]'
expect 0 "" "$DISTTRAIN" compare --json --runs many.db 1 3
set -- $(work iteration_s); second=$2
expect 0 "" "$DISTTRAIN" compare --json --runs many.db 1 2 3
check "as of two" 'set -- $(work iteration_s) && [ "$3" = "$second" ]'
expect 4 "c: iteration_s differs by" "$DISTTRAIN" compare --anyway --runs many.db 1 1 3 -t iteration_s=0.0001
# MFU: of one peak on all sides, and of each run's own
expect 0 "" "$DISTTRAIN" simulate mllm-nano-local --runs peak.db --timeline all "cluster.peak_flops=100 GFLOP/s"
expect 0 "^mfu: of 0.05 TFLOP/s per GPU or process on all sides, stated by a; mfu_own_peak" "$DISTTRAIN" compare 1 peak.db:1
expect 0 "" "$DISTTRAIN" compare --json 1 peak.db:1
check "shares of one peak" 'set -- $(work model_flops_per_s_per_gpu) && f=$2 && set -- $(work mfu) &&
    awk "BEGIN {d = $2 * 50e9 / $f - 1; exit !(d < 1e-6 && d > -1e-6)}" && own=$2 && set -- $(work mfu_own_peak) &&
    awk "BEGIN {d = $2 * 2 / $own - 1; exit !(d < 1e-6 && d > -1e-6)}"'

# measured values
cat >measured.csv <<'END'
# from a log of another system
name,value,unit
job, nano at site A,
peak_flops, 100, GFLOP/s
mfu, 20, %
iteration_s, 500, ms
llm.forward_gpu_s, 0.1, GPU s
END
expect 0 "^b  measured.csv: nano at site A, measured" "$DISTTRAIN" compare 1 measured.csv
check "times in the unit that their names end in" 'grep -q "^iteration_s  *s  *[0-9.]*  *0.5000  " out && grep -q "^llm.forward_gpu_s  *GPU s  *[0-9.]*  *0.1000  " out && ! grep -q "_s  *\(GPU \)\?ms " out'
check "mfu of the measured peak" 'grep -q "^mfu: of 0.1 TFLOP/s per GPU or process on all sides, measured by b" out'
expect 0 "" "$DISTTRAIN" compare measured.csv 1 --json
check "first, too" 'set -- $(work iteration_s) && [ "$1" = 0.5 ]'
expect 4 "iteration_s differs by" "$DISTTRAIN" compare 1 measured.csv -t iteration_s=1
expect 2 "no line 'tokens_per_s'" "$DISTTRAIN" compare 1 measured.csv -t tokens_per_s=1
printf 'name,value,unit\nseq_len,77,\n' >seq.csv
expect 2 "not the same job: seq_len (a: 512; b: 77)" "$DISTTRAIN" compare 1 seq.csv
printf 'name,value,unit\nllm.model_flops,77,TFLOP\n' >work.csv
expect 2 "not the same job: the model FLOPs" "$DISTTRAIN" compare 1 work.csv
expect 0 "OTHER WORK than a (model FLOPs: llm +" "$DISTTRAIN" compare --anyway 1 work.csv
printf 'name,value,unit\niteration,6.3,s\n' >bad.csv
expect 2 "bad.csv:2:1: unknown metric 'iteration'; did you mean 'iteration_s'" "$DISTTRAIN" compare 1 bad.csv
printf 'name,value,unit\niteration_s,6.3,kg\n' >bad.csv
expect 2 "bad.csv:2:17: the unit of iteration_s is one of s, ms, us, ns, min, h; found 'kg'" "$DISTTRAIN" compare 1 bad.csv
printf '{"step": 1, "step_s": 9}\n{"step": 2, "step_s": 0.2}\n{"step": 3, "step_s": 0.4}\n' >metrics.jsonl
expect 0 "^b  metrics.jsonl: metrics.jsonl, measured" "$DISTTRAIN" compare 1 metrics.jsonl
check "the median without the first step" 'grep -q "^iteration_s  *s  *[0-9.]*  *0.3000  " out'
{ for step in 1 2 3; do echo "{\"run_id\": \"a\", \"step\": $step, \"step_s\": 5}"; done
  echo '{"run_id": "b", "step": 4, "step_s": 9}'; echo '{"run_id": "b", "step": 8, "step_s": 0.7}'; } >metrics.jsonl
expect 0 "" "$DISTTRAIN" compare 1 metrics.jsonl
check "of the run that logged last" 'grep -q "^iteration_s  *s  *[0-9.]*  *0.7000  " out'

# of several iterations all that the report says is of one of them, the median one, and so is what stands beside another run
several="$DISTTRAIN simulate mllm-nano-local simulate.jitter=0.2 --runs several.db --json"
expect 0 "" $several -n 5
expect 0 "" $several -n 4
median=$(number iteration_s) idle=$(number bubble_fraction) busy=$(number utilisation)
expect 0 "" "$DISTTRAIN" compare --runs several.db 1 2 --json
of() { sed -n "/\"name\": \"$1\"/,/\"relative\"/p" out | sed -n '5s/[ ,]//gp'; } # of the second run
check "b's time is the report's" '[ -n "$median" ] && [ "$(of iteration_s)" = "$median" ]'
check "not that of the first iteration" '! sed -n "/\"lines\"/,\$p" out | grep -q "\"b_s\": $median,"'
check "its bubbles" '[ "$(of bubble_share)" = "$idle" ]'
check "its utilisation" '[ "$(of encoder.busy_share)" = "$busy" ]'
check "the work is that of the iteration kept" '[ "$(grep -c "\"work\": \"same\"" out)" = 2 ]'
expect 0 "" "$DISTTRAIN" runs list --runs several.db --json
check "in the list, too" '[ "$(grep -c "\"iteration_s\": $median" out)" = 1 ]'

# ... and so is what a tolerance judges: several iterations against the first of them alone
expect 0 "" $several -n 1
expect 0 "" "$DISTTRAIN" compare --runs several.db 1 3 --json
first=$(sed -n '/"name": "iteration_s"/,/\]/p' out | sed -n '4,5s/[ ,]//gp' | tr '\n' ' ')
check "the stored iterations are the same one" 'sed -n "/\"lines\"/,\$p" out | sed -n "/\"difference_s\"/{p;q;}" | grep -q ": 0,"'
expect 4 "iteration_s differs by" "$DISTTRAIN" compare --runs several.db 1 3 -t iteration_s=0.1% --junit junit.xml
check "of the table's values" 'set -- $first && [ $# = 2 ] && [ "$1" != "$2" ] && grep -q "a: $1, b: $2, difference" junit.xml'

# JUnit: a case for each tolerance and run, also when one fails or nothing can be compared
expect 4 "iteration_s differs" "$DISTTRAIN" compare 1 2 -t mfu=90 -t iteration_s=0.001% --junit junit.xml
check "cases" 'grep -q "<testsuites .*tests=\"2\" failures=\"1\"" junit.xml && [ "$(grep -c "<testcase" junit.xml)" = 2 ] &&
    grep -q "<failure message=\"iteration_s differs by" junit.xml'
expect 0 "" "$DISTTRAIN" compare 1 1 -t mfu=0 --junit junit.xml
check "none fails" 'grep -q "tests=\"1\" failures=\"0\"" junit.xml && ! grep -q "<failure" junit.xml'
expect 2 "not the same job" "$DISTTRAIN" compare 1 many.db:2 -t mfu=0 --junit junit.xml
check "an error" 'grep -q "<error message=\"not the same job: " junit.xml'
expect 2 "needs --tolerance" "$DISTTRAIN" compare 1 1 --junit junit.xml
if command -v python3 >/dev/null; then
    check "it is XML" 'python3 -c "import xml.dom.minidom; xml.dom.minidom.parse(\"junit.xml\")"'
fi

# what cannot be compared
expect 0 "llm is compared as a whole only: a run has kept no ops" "$DISTTRAIN" compare 1 other.db:2
check "wholes are" 'grep -q "^iteration_s .*+0.0" out'
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
