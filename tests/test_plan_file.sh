#!/bin/sh
# SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
#
# A plan file states its policies whole: a simulation of it is the simulation of the job that it was made from,
# whatever the job at hand says in `train`; what the command line says is applied everywhere, and told.
# Environment: DISTTRAIN (the program), srcdir (the source directory), DT_SEED, DT_CASES.
set -u
. "${srcdir:=.}/tests/shell.sh"
# the strategy and what it leaves unused, what a clock says, and how the reordering that the plan file states was chosen
result() {
    sed -e '/^not used with strategy /d' -e '/"search_unused":/d' -e '1s/, [a-z-]*, / /' -e '/"strategy":/d' -e '/"wall_s":/d' -e '/ops simulated in/d' \
        -e '/^reordering of samples: /d' -e '/^ *"reorder": {/,/}/d' "$1"
}
same() { # NAME: out of the first simulation is in a; that of the file in b
    result a >a.same; result b >b.same
    if cmp -s a.same b.same; then ok; else bad "$1: $(diff a.same b.same | head -4)"; fi
}

# what a plan takes and holds, as plan --json says it
said() { sed -n 's/^ *"\(timeline_s\|memory_bytes_max\)": \([^,]*\).*/\1 \2/p' "$1" | head -2 | tr '\n' ' '; }

# --- random policies ---
seed=${DT_SEED:-$(date +%s)}
echo "seed $seed"
awk -v seed="$seed" -v cases="${DT_CASES:-12}" '
function one(list,  a) { return a[1 + int(rand() * split(list, a, " "))] }
BEGIN {
    srand(seed)
    for (i = 0; i < cases; i++) {
        line = one("mllm-15b-96 mllm-9b-96 mllm-audio-64")
        if (rand() < 0.5) line = line " train.global_batch=" one("64 96 128 192")
        if (rand() < 0.3) line = line " train.microbatch=2"
        if (rand() < 0.3) line = line " train.seq_len=" one("4096 6144")
        if (rand() < 0.4) line = line " train.recompute=" one("none selective full")
        else if (rand() < 0.6) line = line " train.recompute={encoder:@" one("none selective full") ",@llm:@" one("none selective full") "}"
        if (rand() < 0.4) line = line " train.zero=" one("0 2 3")
        else if (rand() < 0.5) line = line " train.zero={encoder:@" one("0 1 2 3") ",@llm:@" one("0 1 2 3") "}"
        if (rand() < 0.3) line = line " train.schedule=" one("gpipe interleaved@search.max_vpp=2")
        if (rand() < 0.5) line = line " train.reorder.intra=" one("true false") " train.reorder.inter=" one("true false")
        if (rand() < 0.5) line = line " train.overlap={grad: " one("true false") ", param: " one("true false") "}"
        if (rand() < 0.4) line = line " train.stepccl=" one("true false")
        if (rand() < 0.3) line = line " train.precision=fp16"
        if (rand() < 0.3) line = line " train.grads=bf16"
        if (rand() < 0.3) line = line " train.frozen=[llm]"
        if (rand() < 0.3) line = line " search.strategy=" one("megatron-lm distmm")
        gsub(/@search/, " search", line)
        gsub(/overlap={grad: /, "overlap={grad:@", line); gsub(/, param: /, ",@param:@", line)
        print line
    }
}' >cases
# the first order of chunks and guests that comes near is 1.8 % behind the one that is run
echo "mllm-9b-96 train.recompute=none train.zero={encoder:@3,@llm:@1}" >>cases
# guests: the LLM on all GPUs, the encoder with it, the generator with it or on GPUs of its own
cat >>cases <<'EOF'
mllm-9b-96 search.strategy=manual plan={llm:@{tp:@8,@dp:@8},@encoder:@{dp:@64,@with:@llm},@generator:@{dp:@8}}
mllm-9b-96 search.strategy=manual plan={llm:@{tp:@4,@pp:@2,@dp:@8},@encoder:@{tp:@4,@dp:@8,@with:@llm,@first_gpu:@32},@generator:@{dp:@16,@with:@encoder}}
EOF
run=0
while read -r job keys; do
    set --
    for k in $keys; do set -- "$@" "$(echo "$k" | tr @ ' ')"; done
    # a policy that nothing fits is no case
    fits "$DISTTRAIN" simulate --no-runs "$job" "$@" || continue
    cp out a
    run=$((run + 1))
    expect 0 "" "$DISTTRAIN" plan -o q.json --json "$job" "$@"
    said out >a.said
    "$DISTTRAIN" plan -p q.json --json "$job" >out 2>err </dev/null
    said out >b.said
    check "plan says of $job $keys: $(cat a.said), of its file: $(cat b.said)" 'cmp -s a.said b.said'
    "$DISTTRAIN" simulate --no-runs -p q.json "$job" >b 2>err </dev/null
    same "$job $keys"
    "$DISTTRAIN" simulate --no-runs --json "$job" "$@" >a 2>err </dev/null
    "$DISTTRAIN" simulate --no-runs --json -p q.json "$job" >b 2>err </dev/null
    same "--json $job $keys"
done <cases
# a plan that is reordered another way than it was ranked holds what it holds in that way
expect 0 "" "$DISTTRAIN" plan -o q.json --json mllm-nano-local train.stepccl_chunks=2 "train.dispatch=5 us"
said out >a.said
expect 0 "" "$DISTTRAIN" plan -p q.json --json mllm-nano-local "train.dispatch=5 us"
said out >b.said
check "plan says $(cat a.said), of its file $(cat b.said)" 'cmp -s a.said b.said'
# of many replicas the slowest counts, whoever has planned them
expect 0 "" "$DISTTRAIN" plan -o q.json mllm-72b-1296 search.effort=quick
expect 0 "" "$DISTTRAIN" plan -p q.json --json mllm-72b-1296
stated=$(said out | cut -d' ' -f2)
expect 0 "" "$DISTTRAIN" simulate --no-runs -p q.json --json mllm-72b-1296 simulate.contention=false
simulated=$(sed -n 's/^ *"iteration_s": \([^,]*\).*/\1/p' out | head -1)
check "the stated plan is said to take $stated s, and takes $simulated s" '[ "$stated" = "$simulated" ]'
check "at least two in three of the cases can be planned: $run" '[ $((3 * run)) -ge $((2 * $(wc -l <cases))) ]'

# --- a key beside the plan: applied everywhere, and told ---
job=mllm-15b-96
expect 0 "" "$DISTTRAIN" plan -o as-job.json $job train.recompute=selective train.reorder.intra=true train.reorder.inter=true
for key in recompute=full stepccl=false reorder.intra=false overlap.grad=false global_batch=96 seq_len=4096; do
    # the layouts of as-job.json with another policy, written into it by hand
    name=${key%=*} value=${key#*=}
    told="train.$name is $value, not "
    case $name in
    reorder.intra) member=intra_reorder told="train.reorder is inter, not both" ;;
    overlap.grad) member=overlap_grad ;;
    *) member=$name ;; # of the policy, or of every module
    esac
    case $value in full) value='"full"' ;; esac
    sed "s/\"$member\": .*,\$/\"$member\": $value,/" as-job.json >by-hand.json
    check "$key is in by-hand.json" '! cmp -s as-job.json by-hand.json'
    "$DISTTRAIN" simulate --no-runs -p by-hand.json $job >a 2>err </dev/null
    expect 0 "the plan file states otherwise, and is overruled: $told" \
        "$DISTTRAIN" simulate --no-runs -p as-job.json $job "train.$key"
    grep -v 'is overruled' out >b
    same "train.$key beside the plan"
done
expect 0 '"plan_changes": "train.recompute is full, not selective"' \
    "$DISTTRAIN" simulate --no-runs --json -p as-job.json $job train.recompute=full
expect 0 "overruled: train.recompute is full, not selective" \
    "$DISTTRAIN" plan -p as-job.json $job train.recompute=full
expect 0 "overruled: llm is frozen, not trained" \
    "$DISTTRAIN" simulate --no-runs -p as-job.json $job 'train.frozen=[llm]'
# keys of the plan change the file's: the same as the file edited, by another hand
layout() { # MODULE MEMBER VALUE [MEMBER VALUE]...: of as-job.json, into by-hand.json
    in=$1; shift
    cp as-job.json by-hand.json
    while [ $# -gt 0 ]; do
        sed "/\"name\": \"$in\"/,/}/s/\"$1\": [^,]*/\"$1\": $2/" by-hand.json >by-hand.new; mv by-hand.new by-hand.json; shift 2
    done
    check "by-hand.json is another" '! cmp -s as-job.json by-hand.json'
    "$DISTTRAIN" simulate --no-runs -p by-hand.json $job >a 2>err </dev/null
}
llm() { sed -n '/"name": "llm"/,/}/s/.*"'"$1"'": \([0-9]*\),*/\1/p' as-job.json; }
layout llm recompute '"full"'
expect 0 "overruled: plan.llm.recompute is full, not selective" "$DISTTRAIN" simulate --no-runs -p as-job.json $job plan.llm.recompute=full
grep -v 'is overruled' out >b
same "plan.llm.recompute beside the plan"
tp=$(llm tp) dp=$(llm dp)
layout llm tp $((tp * 2)) dp $((dp / 2))
expect 0 "overruled: plan.llm.tp is $((tp * 2)), not $tp; plan.llm.dp is $((dp / 2)), not $dp" \
    "$DISTTRAIN" simulate --no-runs -p as-job.json $job plan.llm.tp=$((tp * 2)) plan.llm.dp=$((dp / 2))
grep -v 'is overruled' out >b
same "plan.llm.tp and dp beside the plan"
expect 3 "the plan needs [0-9]* GPUs, cluster .* has 96" "$DISTTRAIN" simulate --no-runs -p as-job.json $job plan.llm.dp=$((dp * 4))
expect 2 'unknown key "lm" in plan; did you mean "llm"' "$DISTTRAIN" simulate --no-runs -p as-job.json $job plan.lm.tp=2
expect 2 "plan: the plan is given by as-job.json; leave out one of the two" \
    "$DISTTRAIN" simulate --no-runs -p as-job.json $job plan=q.json
expect 2 'module "encoder" is missing: a plan states every module' "$DISTTRAIN" simulate --no-runs $job plan.llm.tp=2
# of a job that has a plan of its own, nothing of that is left beside the file
{ cat "$srcdir/traces/jobs/$job.yaml"; printf 'plan: {encoder: {tp: 1}, llm: {tp: 1, recompute: full}, generator: {}}\n'; } >planned.yaml
"$DISTTRAIN" simulate --no-runs -p as-job.json $job >a 2>err </dev/null
expect 0 "" "$DISTTRAIN" simulate --no-runs -p as-job.json planned.yaml
cp out b
same "the job's own plan beside the file"
# and so where a plan is kept
expect 0 "" "$DISTTRAIN" whatif $job -p as-job.json --vary plan.llm.recompute=none,full --no-runs --csv kept.csv
check "points of another plan are others" '[ "$(cut -d, -f6 kept.csv | sort -u | wc -l)" = 3 ]'
# the same through the job's own key
sed -e '/^search:/d' -e 's/^  global_batch: .*/&\n  recompute: full/' "$srcdir/traces/jobs/$job.yaml" >named.yaml
printf 'search: {strategy: manual}\nplan: as-job.json\n' >>named.yaml
expect 0 "overruled: train.recompute is full, not selective" "$DISTTRAIN" simulate --no-runs named.yaml
# keys of the plan change that one, too, as beside the job
"$DISTTRAIN" simulate --no-runs -p as-job.json $job train.recompute=full plan.llm.tp=$((tp * 2)) plan.llm.dp=$((dp / 2)) >a 2>err </dev/null
expect 0 "overruled: plan.llm.tp is $((tp * 2)), not $tp; plan.llm.dp is $((dp / 2)), not $dp; train.recompute is full, not selective" \
    "$DISTTRAIN" simulate --no-runs named.yaml plan.llm.tp=$((tp * 2)) plan.llm.dp=$((dp / 2))
cp out b
same "plan.llm.tp and dp of the plan that a job names"
expect 0 "" "$DISTTRAIN" whatif named.yaml --vary plan.llm.recompute=none,full --no-runs --csv named.csv
check "points of another plan that a job names are others" '[ "$(cut -d, -f6 named.csv | sort -u | wc -l)" = 3 ]'
expect 0 "^hint: search.strategy=disttrain would take" "$DISTTRAIN" plan named.yaml plan.llm.tp=$((tp * 2)) plan.llm.dp=$((dp / 2))
expect 2 'unknown key "lm" in plan; did you mean "llm"' "$DISTTRAIN" plan named.yaml plan.lm.tp=2
expect 2 'unknown key "tpp"' "$DISTTRAIN" plan named.yaml plan.llm.tpp=2
# of one module is more than of all
expect 0 "overruled: plan.llm.recompute is none, not [a-z]*; train.recompute is encoder full, llm none, generator full, not " \
    "$DISTTRAIN" simulate --no-runs -p as-job.json $job train.recompute=full plan.llm.recompute=none
expect 2 'module "encoder" is missing: a plan states every module' "$DISTTRAIN" plan named.yaml plan.llm.tp=2 "plan={llm: {tp: 8}}"
"$DISTTRAIN" plan -o again.json named.yaml plan=as-job.json plan.llm.tp=$((tp * 2)) plan.llm.dp=$((dp / 2)) >/dev/null 2>err </dev/null
check "the last plan named is the one that is changed" '[ "$(sed -n "/\"name\": \"llm\"/,/}/s/.*\"dp\": \([0-9]*\),*/\1/p" again.json)" = $((dp / 2)) ]'
expect 0 "overruled: plan.llm.recompute is full, not selective" "$DISTTRAIN" plan -p as-job.json named.yaml plan.llm.recompute=full
expect 2 'no file "gone.json"' "$DISTTRAIN" plan named.yaml plan=gone.json plan.llm.dp=1
# what cannot be both
expect 2 "command line:1:17: strategy: the plan is given by as-job.json" \
    "$DISTTRAIN" simulate --no-runs -p as-job.json $job search.strategy=distmm
expect 2 "either the plan is given or it is searched for" \
    "$DISTTRAIN" simulate --no-runs -p as-job.json -s distmm $job
expect 2 "whose modules are not those of" "$DISTTRAIN" simulate --no-runs -p as-job.json llama-70b-96
expect 2 "as-job.json" "$DISTTRAIN" simulate --no-runs -p as-job.json $job train.global_batch=7
"$DISTTRAIN" plan -o here.json mllm-nano-local >/dev/null 2>err </dev/null
sed -i 's/"policy": {/"policy": { "bf16_grads": true,/' here.json
expect 2 "bf16_grads: on CPUs gradients are fp32" "$DISTTRAIN" simulate --no-runs -p here.json mllm-nano-local
# a plan that was made, or a job that is trained, in fp32
sed 's/"policy": {/"policy": { "fp32": true,/' as-job.json >fp32.json
for command in plan 'simulate --no-runs'; do # no quotes: a command and its option
    expect 2 "fp32.json: precision: fp32 on GPUs is for training" "$DISTTRAIN" $command -p fp32.json $job
    expect 2 "command line:1:15: precision: fp32" "$DISTTRAIN" $command $job run.precision=fp32
done
expect 2 "command line:1:15: precision: fp32" "$DISTTRAIN" whatif --no-runs $job run.precision=fp32 --vary train.global_batch=96
# what bounds a search that there is none of
expect 0 "not used, as the plan is stated: search.gpus, search.max_cp" \
    "$DISTTRAIN" simulate --no-runs -p as-job.json $job search.gpus=8 search.max_cp=2
expect 0 '"search_unused": "search.tp"' "$DISTTRAIN" simulate --no-runs --json -p as-job.json $job 'search.tp=[2]'
"$DISTTRAIN" simulate --no-runs -p as-job.json $job search.effort=quick >out 2>err </dev/null
check "keys of the job's file and the effort are not told of" '! grep -q "not used" out'
# what another strategy would be told
expect 0 "not used with strategy distmm: search.placement, search.megatron_pp" \
    "$DISTTRAIN" simulate --no-runs -s distmm $job search.placement=auto search.megatron_pp=2
expect 0 "^not used with strategy disttrain: train.stepccl_chunks (stepccl is false)\$" "$DISTTRAIN" plan $job train.stepccl=false train.stepccl_chunks=4 search.effort=quick
expect 0 "not used with strategy disttrain: search.megatron_pp" "$DISTTRAIN" plan $job search.megatron_pp=2 search.placement=auto
# a plan beside a job whose plan is searched for, and what divides layouts that a strategy does not divide
expect 0 "^not used with strategy disttrain: plan.llm.tp, plan.llm.pp\$" "$DISTTRAIN" plan llama-70b-96 plan.llm.tp=8 plan.llm.pp=2 search.effort=quick
expect 0 '"search_unused": "plan.llm.tp"' "$DISTTRAIN" simulate --no-runs --json llama-70b-96 plan.llm.tp=8 search.effort=quick
# and in its file, a map or another file: neither layouts nor policies count, and that is told
found() { sed -e '/^not used with strategy /d' -e 's/ in [0-9.]* s$//' out; }
expect 0 "" "$DISTTRAIN" plan $job search.effort=quick
found >a
for plan in as-job.json gone.json '{encoder: {tp: 1, dp: 4, recompute: none}, llm: {tp: 2, recompute: full, zero: 0, frozen: true}, generator: {}}'; do
    { cat "$srcdir/traces/jobs/$job.yaml"; echo "plan: $plan"; } >ignored.yaml
    expect 0 "^not used with strategy disttrain: plan\$" "$DISTTRAIN" plan ignored.yaml search.effort=quick
    found >b
    check "a plan beside a search changes nothing: $(diff a b | head -2)" 'cmp -s a b'
    "$DISTTRAIN" show ignored.yaml search.effort=quick >out 2>err </dev/null
    check "what is shown of the plan is the search's" '[ "$(grep -c "^plan\.[a-z]* .* search *$" out)" = 3 ] && ! grep -q "as-job\|^plan\.llm\." out'
done
expect 0 "^not used with strategy disttrain: plan\$" "$DISTTRAIN" plan ignored.yaml search.effort=quick plan.llm.recompute=none
expect 0 "" "$DISTTRAIN" plan --json $job
free=$(said out | cut -d' ' -f2)
expect 0 "" "$DISTTRAIN" plan -o gpipe.json $job train.schedule=gpipe train.microbatch=2 train.recompute=full search.effort=quick
{ sed '/^search:/d' "$srcdir/traces/jobs/$job.yaml"; printf 'search: {strategy: manual}\nplan: gpipe.json\n'; } >named.yaml
expect 0 "" "$DISTTRAIN" plan --json named.yaml
check "the hint's search takes $free s without the plan" 'sed -n "/\"hints\"/,/]/p" out | grep -q "\"iteration_s\": $free,"'
# a plan's frozen modules and those of train
frozen() { sed -n 's/^ *"frozen": \([a-z]*\),.*/\1/p' plan.json | tr '\n' ' '; }
manual() { "$DISTTRAIN" plan -o plan.json $job search.strategy=manual "$@" >out 2>err </dev/null; }
manual 'plan={encoder: {dp: 8}, llm: {tp: 8, pp: 2, dp: 2, frozen: true}, generator: {dp: 8}}'
check "frozen by the plan: $(frozen)" '[ "$(frozen)" = "false true false " ]'
manual 'plan={encoder: {dp: 8}, llm: {tp: 8, pp: 2, dp: 2, frozen: true}, generator: {dp: 8}}' 'train.frozen=[encoder]'
check "by the plan and by train: $(frozen)" '[ "$(frozen)" = "true true false " ]'
manual 'plan={encoder: {dp: 8}, llm: {tp: 8, pp: 2, dp: 2, frozen: false}, generator: {dp: 8}}' 'train.frozen=[encoder]'
check "by train: $(frozen)" '[ "$(frozen)" = "true false false " ]'
expect 2 "frozen: the plan trains module encoder, which train.frozen names" "$DISTTRAIN" plan $job search.strategy=manual 'train.frozen=[encoder]' \
    'plan={encoder: {dp: 8, frozen: false}, llm: {tp: 8, pp: 2, dp: 2}, generator: {dp: 8}}'
expect 2 "frozen: the plan trains module llm, which train.frozen names" "$DISTTRAIN" plan -p as-job.json $job 'train.frozen=[llm]' plan.llm.frozen=false
expect 0 "^not used with strategy homogeneous: search.uniform\$" "$DISTTRAIN" plan -s homogeneous $job search.uniform=true search.effort=quick
# unfused attention has no context parallelism
expect 2 "plan, module llm: cp (context parallelism) needs attention: flash" "$DISTTRAIN" plan llama-70b-96 search.strategy=manual \
    'plan={llm: {tp: 8, cp: 2, pp: 6, dp: 1}}' model.llm.attention=unfused
# the baselines keep samples as they come, and one line says so
for strategy in megatron-lm distmm dip; do
    for way in batch both 'intra: true, inter: auto'; do
        case $way in *:*) way="{$way}" ;; esac
        expect 0 "^not used with strategy $strategy: train.reorder\$" "$DISTTRAIN" plan -s $strategy $job "train.reorder=$way" search.effort=quick
    done
    for way in auto none; do
        "$DISTTRAIN" plan -s $strategy $job train.reorder=$way search.effort=quick >out 2>err </dev/null
        check "$strategy drops nothing of reorder: $way" '! grep -q "not used" out && grep -q "$strategy" out'
    done
done
# Megatron-LM's baseline overlaps, and has one recomputation for all modules: what is stated of one is that of those that are open
megatron() { "$DISTTRAIN" plan -s megatron-lm mllm-9b-96 cluster.nodes=4 train.global_batch=32 search.effort=quick "$@" >out 2>err </dev/null; }
megatron 'train.overlap={grad: false}'
check "overlap that is off is not used" 'grep -q "^not used with strategy megatron-lm: train.overlap$" out'
megatron 'train.overlap={grad: true, param: true}'
check "overlap that is on is" '! grep -q "not used" out && grep -q "^1 " out'
for of in encoder llm; do
    megatron "train.recompute={$of: full}"
    check "recomputation that is stated of $of: $(grep "^all with" out)" 'grep -q "^all with .*recompute full," out'
done
megatron 'train.recompute={encoder: full, llm: selective}'
check "each as it is stated: $(grep "^all with" out)" 'grep -q "recompute encoder full, llm selective, generator selective," out'
expect 2 "megatron-lm has one for all modules, and full is stated of encoder, none of generator; state that of llm" \
    "$DISTTRAIN" plan -s megatron-lm mllm-9b-96 'train.recompute={encoder: full, generator: none}'
expect 0 '"search_unused": "train.reorder, train.stepccl"' \
    "$DISTTRAIN" plan --json -s megatron-lm $job train.reorder=batch train.stepccl=true search.effort=quick
"$DISTTRAIN" plan $job train.reorder=batch search.effort=quick >out 2>err </dev/null
check "strategy disttrain reorders" '! grep -q "not used" out && [ -s out ]'
"$DISTTRAIN" simulate --no-runs -s megatron-lm $job search.megatron_pp=2 search.placement=own >out 2>err </dev/null
check "its own strategy uses it" '! grep -q "not used" out && grep -q "^MFU" out'
# what no plan holds is still the job's
expect 2 "dispatch" "$DISTTRAIN" simulate --no-runs -p as-job.json $job train.dispatch=-1
expect 2 "unknown key" "$DISTTRAIN" simulate --no-runs -p as-job.json $job train.recompue=full
totals
