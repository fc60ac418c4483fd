#!/bin/sh
# SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
# run.transport=ipc: ranks of a host exchange what pipelines hand on by memory that they map (here on the module of cards
# built for a CPU), with the losses and parameters of the staged transport, to the bit; and where it cannot be, a sentence.
module=$PWD/tests/modules/CPU
[ -f "$module/disttrain-cuda.so" ] || { echo "SKIP: there is no C++20 compiler for $module/disttrain-cuda.so"; exit 77; }
. "${srcdir:=.}/tests/small_job.sh"
DISTTRAIN_MODULES=$module OMP_NUM_THREADS=1
export DISTTRAIN_MODULES OMP_NUM_THREADS

# train DIR RANKS IPC KEY...: 2 steps on cards; IPC: of the environment (tests/cuda_cpu/ipc.cc)
train() {
    dir=$1 ranks=$2 ipc=$3; shift 3
    expect 0 "" env CUCPU_IPC="$ipc" "$DISTTRAIN" train --ranks "$ranks" --no-runs --json job.yaml run.steps=2 \
        run.device=cuda run.log_dir="$dir.log" run.checkpoint.dir="$dir" train.seq_len=32 "$@"
    grep -o '"loss":[^,]*' "$dir.log/metrics.jsonl" >"$dir.loss"
    sums "$(ls -d "$dir"/step-* | tail -1)" >"$dir.sums"
}
# same A B WHAT
same() {
    a=$1 b=$2
    check "$3: the same losses of both steps" '[ $(wc -l <$a.loss) -eq 2 ] && cmp -s $a.loss $b.loss'
    check "$3: the same parameters and moments" '[ $(wc -l <$a.sums) -gt 20 ] && cmp -s $a.sums $b.sums'
}

# auto does not choose it: nothing of others could be opened
pp='plan={encoder: {}, llm: {pp: 2}, generator: {}}'
train auto-pp 2 hidden "$pp" run.transport=auto
train ipc-pp 2 "" "$pp" run.transport=ipc
same auto-pp ipc-pp "pp 2"
dp='plan={colocated: true, encoder: {dp: 2}, llm: {dp: 2, pp: 2}, generator: {dp: 4}}'
train staged-dp 4 hidden "$dp" run.transport=staged
train ipc-dp 4 "" "$dp" run.transport=ipc
same staged-dp ipc-dp "dp 2, pp 2"

# refused WHY DEVICE VARIABLE=VALUE: once, on behalf of all ranks
refused() {
    why=$1
    expect 2 "run.transport ipc cannot be used: .*$why" env "$3" "$DISTTRAIN" train --ranks 2 --no-runs job.yaml \
        run.steps=1 run.device="$2" run.transport=ipc "$pp" run.checkpoint.dir=refused
    check "in one sentence: $why" '[ "$(cat out err | grep -c "cannot be used")" = 1 ]'
}
refused "the CPU's memory belongs to its process" cpu CUCPU_IPC=
refused "operation not supported; .*has no CUDA IPC" cuda CUCPU_IPC=no
refused "rank 0 cannot reach the memory of rank 1: .*PID and an IPC namespace" cuda CUCPU_IPC=hidden
refused "DISTTRAIN_CUDA_ARENA=0" cuda DISTTRAIN_CUDA_ARENA=0
check "nothing is left of those" '[ ! -e refused ]'
totals
