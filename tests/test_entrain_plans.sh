#!/bin/sh
# SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
#
# Strategy and assignment entrain on the command line: plans, what --explain says, what is refused and why.
. "${srcdir:-.}/tests/shell.sh"

plan="$DISTTRAIN plan mllm-9b-96"
expect 0 "strategy entrain" $plan -s entrain -o plan.json
check "its assignment is in the file" "grep -q '\"assignment\": \"entrain\"' plan.json"
check "all modules have the same dp" "[ \"\$(grep -o '\"dp\": [0-9]*' plan.json | sort -u | wc -l)\" = 1 ]"
expect 0 "^iteration" "$DISTTRAIN" simulate mllm-9b-96 --no-runs -p plan.json

expect 0 "= b_min: 59 draws of so many in a row give the same" $plan -s entrain --explain
check "draws are shown" "grep -q 'draws that differ' out"
check "variability is shown" "grep -q 'max/mean' out"
expect 0 '"trials": 59' $plan -s entrain --explain --json
check "with what is deferred" "grep -q '\"deferred\": ' out"
expect 0 "by the loads of 1 sample (search.profile_samples)" $plan -s entrain --explain search.profile_samples=1
expect 0 "strategy entrain" $plan -s entrain train.assignment=slots

# The shipped job defers; its replicas may be stated, GPUs are divided in lanes, and draws go by the job's seed.
job="$DISTTRAIN plan mllm-3b-entrain-64 --explain"
expect 0 "in units of 2" $job search.dp=4
check "it defers" "grep -Eq ', [1-9][0-9]* of 512 samples deferred' out"
check "dp is what was stated" "grep -q 'tp2 pp4 dp4 = 32  tp2 pp4 dp4 = 32' out && ! grep -Eq 'dp(1|2|8|16) ' out"
grep -A 14 'draws that differ' out >seed.1
expect 0 "draws that differ" $job search.dp=4 samples.seed=1 simulate.seed=2
grep -A 14 'draws that differ' out >seed.2
check "another seed draws others" "! cmp -s seed.1 seed.2"
expect 0 "ask for the plan.s division; there is no other, as each module has one unit" $job search.dp=16
# Largest microbatches that are assigned need more recomputation than the mean one.
expect 0 "encoder full" $job search.dp=4 samples.distribution.image_side.sigma=0.4 samples.distribution.image_side.mu=6.4

# The layout that is fastest for the first batch does not hold the second one's largest images: plans have to.
layouts='plan={encoder: {tp: 2, dp: 16}, llm: {tp: 2, dp: 16}}'
recompute='train.recompute={encoder: selective, llm: none}'
stated="mllm-3b-entrain-64 --no-runs search.strategy=manual train.assignment=entrain simulate.contention=false"
gib() { sed -n 's/^memory *\([0-9.]*\) GiB.*/\1/p' out; }
expect 0 "of the fullest GPU\$" "$DISTTRAIN" simulate $stated "$layouts" "$recompute"
first=$(gib)
expect 0 "^does not fit .*iteration 2 needs [0-9.]* GiB of a GPU, [0-9.]* more than it has" \
    "$DISTTRAIN" simulate $stated "$layouts" "$recompute" -n 2
second=$(gib)
expect 0 "of the fullest GPU, in iteration 2" "$DISTTRAIN" simulate $stated "$layouts" "$recompute" -n 4
check "more batches need no less" "awk 'BEGIN { exit !($first < 44.7 && 44.7 < $second && $second == $(gib)) }'"
expect 0 '"memory_unfit_iterations": [1-9]' "$DISTTRAIN" simulate $stated "$layouts" "$recompute" -n 2 --json
expect 0 "^ *2 .*iteration 2 needs [0-9.]* GiB of a GPU" "$DISTTRAIN" whatif $stated "$layouts" "$recompute" \
    --vary simulate.iterations=1,2
check "one batch fits" "grep -q '^ *1 .* encoder tp2' out"
expect 0 "^memory " "$DISTTRAIN" simulate mllm-3b-entrain-64 --no-runs simulate.contention=false -n 8
check "the planned one holds all eight" "! grep -q 'does not fit' out"

# Eager forwards: as far ahead as the memory of each batch allows, or as a plan file says.
entrain="mllm-3b-entrain-64 search.dp=4"
expect 0 "strategy entrain" "$DISTTRAIN" plan $entrain train.warmup=eager -o eager.json
check "it says so" "grep -q '\"warmup\": \"eager\"' eager.json"
expect 0 "^iteration" "$DISTTRAIN" simulate $entrain train.warmup=eager --no-runs
grep '^iteration' out >eager.found
expect 0 "^iteration" "$DISTTRAIN" simulate mllm-3b-entrain-64 --no-runs -p eager.json
check "the file gives the same" "grep '^iteration' out | cmp -s - eager.found"
seconds() { sed -n 's/^iteration *\([0-9.]*\) s.*/\1/p' "$1"; }
expect 0 "^iteration" "$DISTTRAIN" simulate $entrain --no-runs
check "no slower than 1f1b" "awk 'BEGIN { exit !($(seconds eager.found) <= $(seconds out)) }'"
expect 2 "goes with modules that have GPUs of their own" $plan train.warmup=eager
expect 0 "^encoder .* 32  " "$DISTTRAIN" plan $entrain train.warmup=eager train.recompute=full --explain
sed 's/"zero": 1,/"zero": 1, "ahead": [2, 2, 2, 2],/' eager.json >ahead.json
expect 0 "^iteration" "$DISTTRAIN" simulate mllm-3b-entrain-64 --no-runs -p ahead.json
expect 2 "train.warmup: eager" "$DISTTRAIN" plan mllm-3b-entrain-64 -p ahead.json train.warmup=1f1b

# DIP's layout: the LLM's stages over the same GPUs, in phases, and every microbatch held.
expect 0 "with llm: tp2 pp8 dp4 = 64  tp2 pp8 dp4 = 64" "$DISTTRAIN" plan $entrain -s dip -o dip.json
check "in phases" "grep -q '\"phases\": true' dip.json"
expect 0 "^encoder .* 32  " "$DISTTRAIN" plan $entrain -s dip --explain
expect 0 "strategy dip" $plan -s dip
expect 2 "has no encoder" "$DISTTRAIN" plan llama-70b-96 -s dip

# What does not go together, a message each.
expect 2 "has an order of its own" $plan -s entrain train.reorder=both
expect 2 "use search.strategy: entrain" $plan train.assignment=entrain
expect 2 "does not size modules by samples" $plan search.profile_samples=1
expect 2 "one number of replicas for all" $plan search.dp=4
expect 2 "nothing is drawn" $plan -s entrain search.profile_samples=4 search.confidence=0.9
expect 2 "GPUs of its own" $plan -s entrain search.placement=auto
expect 2 "goes with schedules 1f1b and zb-h1, not with gpipe" $plan -s entrain train.schedule=gpipe
expect 2 "nothing to balance" $plan -s entrain train.global_batch=1 train.microbatch=1
expect 2 "has no encoder" "$DISTTRAIN" plan llama-70b-96 -s entrain
totals
