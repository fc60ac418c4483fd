#!/bin/sh
# SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
#
# train.reorder: batch.  Batches of unlike samples are ordered in unlike ways, on every rank the same, after a restart the same, in
# the simulator the same; the keys are refused where nothing reads them.
# Environment: DISTTRAIN (the program), srcdir (the source directory).
. "${srcdir:-.}/tests/shell.sh"

pictures 8 010 small
pictures 16 020 mid
pictures 32 040 large
cat >job.yaml <<END
model:
  modules:
    encoder: {kind: encoder, layers: 4, hidden: 64, ffn: 256, heads: 2, patch: 4, channels: 1, positions: 64}
    llm: {kind: llm, layers: 4, hidden: 32, ffn: 64, heads: 2, vocab: 264}
cluster: local
samples: text
train: {global_batch: 16, microbatch: 2, seq_len: 128, reorder: batch}
search: {allow_analytical: true, strategy: manual}
plan: {encoder: {dp: 2}, llm: {dp: 2}}
run: {data: [small-000000.tar, mid-000000.tar, large-000000.tar], shuffle: true, packed: false, generate: 0, precision: fp32, threads: 1,
  decay: constant, warmup_steps: 1, steps: 12, log_interval: 1, log_dir: log, checkpoint: {dir: saved, interval: 4, keep: 9}}
END
orders() { grep -o '"order": *"[a-z]*"' "$1/metrics.jsonl" | cut -d '"' -f 4; }
losses() { sed -n 's/.*"step": *\([0-9]*\),.*"loss": *\([0-9.e-]*\),.*/\1 \2/p' "$1/metrics.jsonl"; }
train="$DISTTRAIN train --no-runs job.yaml"
expect 0 "" $train
orders log >all
check "an order for each step" '[ "$(wc -l <all)" -eq 12 ]'
check "not the same for all: $(sort all | uniq -c | tr -s " \n" " ")" '[ "$(sort -u all | wc -l)" -ge 2 ]'
# a run that goes on behind step 8 as if it had never stopped
rm -rf saved/step-00000012 log2
expect 0 "" $train run.log_dir=log2
orders log2 >again
check "the same orders after a restart" 'tail -n 4 all | cmp -s - again'
losses log | tail -n 4 >whole; losses log2 >rest
check "and the same losses" 'cmp -s whole rest'
if command -v mpirun >/dev/null; then
    expect 0 "" "$DISTTRAIN" train --no-runs --ranks 4 job.yaml run.log_dir=log3 run.checkpoint.dir=saved3 run.steps=6
    orders log3 >ranks
    check "the same orders on four ranks" 'head -n 6 all | cmp -s - ranks'
fi
# the same samples in a stated order: no step says so, and what is learnt is the same up to the order of sums
expect 0 "" $train train.reorder=none run.log_dir=log4 run.checkpoint.dir=saved4
check "one order needs no word" '! grep -q "\"order\"" log4/metrics.jsonl'
losses log >ours; losses log4 >others
check "losses are those of the samples as they come" 'paste -d " " ours others | awk "{ n++; d = \$2 - \$4;
    if (d * d > 1e-8 * \$2 * \$2) exit 1 } END { exit n != 12 }"'

# what is planned, kept in a file and simulated
skewed="mllm-3b-entrain-64 train.global_batch=64 train.warmup=eager simulate.iterations=8 simulate.contention=false"
plan='plan={encoder: {tp: 2, pp: 4, dp: 4}, llm: {tp: 2, pp: 4, dp: 4}}'
simulated() { "$DISTTRAIN" simulate --no-runs --json $skewed search.strategy=manual "$@" >out 2>err &&
    sed -n '/^  "iteration_s": /{s/.*: //;s/,//;p;}' out | head -n 1; }
for way in none intra inter both; do
    simulated "$plan" train.reorder=$way >time-$way
done
simulated "$plan" train.assignment=entrain >time-entrain
simulated "$plan" train.reorder=batch >time-batch
check "a word for each batch, not all the same" '[ "$(sed -n "/\"orders\"/,/\]/p" out | grep -c "^ *\"[a-z]*\",*$")" -eq 8 ] &&
    [ "$(sed -n "/\"orders\"/,/\]/p" out | grep "^ *\"[a-z]*\",*$" | tr -d " ,\"" | sort -u | wc -l)" -ge 2 ]'
check "its median batch takes no longer than that of any one way: $(cat time-*)" \
    '[ -s time-batch ] && for way in none intra inter both entrain; do
        awk -v a="$(cat time-batch)" -v b="$(cat time-$way)" "BEGIN { exit !(a <= b) }" || exit 1; done'
expect 0 "" "$DISTTRAIN" plan $skewed search.strategy=manual "$plan" train.reorder=batch train.reorder_budget=0.25s -o plan.json
check "plan.json has it" 'grep -q "\"batch_reorder\": true" plan.json && grep -q "\"reorder_budget_s\": 0.25" plan.json'
simulated plan=plan.json >time-file
check "and is simulated as it says" 'cmp -s time-batch time-file'
expect 0 "samples of 8 global batches are ordered: " "$DISTTRAIN" simulate --no-runs $skewed search.strategy=manual "$plan" train.reorder=batch
# beside a plan that states another order, the key is the job's
expect 0 "" "$DISTTRAIN" plan $skewed search.strategy=manual "$plan" train.reorder=none -o none.json
simulated plan=none.json train.reorder=batch >time-beside
check "and so is a plan of another order with the key beside it" 'cmp -s time-batch time-beside'
check "which is said" '"$DISTTRAIN" simulate --no-runs $skewed -p none.json train.reorder=batch 2>&1 | grep -q "train.reorder is batch, not none"'
sed 's/"intra_reorder"/"reorder_budget_s": 0.25, "intra_reorder"/' none.json >budget.json
expect 2 "budget.json:.*reorder_budget_s goes with batch_reorder" "$DISTTRAIN" simulate --no-runs $skewed -p budget.json
# a budget for one program leaves the first way
expect 0 "are ordered: both 8$" "$DISTTRAIN" simulate --no-runs $skewed search.strategy=manual "$plan" train.reorder=batch \
    train.reorder_budget=1us
expect 2 "reorder_budget: it is for the timelines of each batch" "$DISTTRAIN" simulate --no-runs $skewed search.strategy=manual \
    "$plan" train.reorder_budget=1s
expect 2 "assignment entrain has an order of its own" "$DISTTRAIN" simulate --no-runs $skewed search.strategy=manual "$plan" \
    train.reorder=batch train.assignment=entrain
totals
