#!/bin/sh
# SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
# run.transport=ipc: ranks of a host exchange what pipelines hand on by memory that they map (here on the module of cards
# built for a CPU), with the losses and parameters of the staged transport, to the bit; and where it cannot be, a sentence.
builddir=$PWD module=$PWD/tests/modules/CPU
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

# --- ranks of tests/execute_layouts.c, processes on the fake device: what each sees is what it sees staged ---
# layout NAME SEED
layout() {
    # its number, ranks, and what was asked for
    set -- $("$builddir/tests/test_execute_ranks" --list | sed -n "s/^\([0-9]* [0-9]*\) $1\$/\1/p") "$1" "$2"
    for ipc in 0 1; do
        mpi_run "$2" env DISTTRAIN_FAKE_DEVICE=1 DISTTRAIN_FAKE_DELAY_US=500 DISTTRAIN_FAKE_SEED="$4" DT_TEST_IPC=$ipc \
            "$builddir/tests/test_execute_ranks" --mpi "$1" >out 2>err </dev/null
        grep "^equivalence: " out >"seen.$ipc"
    done
    what=$3
    check "$what, seed $4" '[ "$(grep -c " mpi:" seen.1)" -eq 1 ] && cmp -s seen.0 seen.1'
}
layout disjoint 1
mpi_run 3 env DISTTRAIN_FAKE_DEVICE=1 DISTTRAIN_FAKE_IPC=map DT_TEST_IPC=1 \
    "$builddir/tests/test_execute_ranks" --mpi 2 >out 2>&1 </dev/null
check "it is what is asked for" 'grep -q "rank 0 cannot reach the memory of rank 1: the fake device was told to refuse" out'
layout "tp 2" 2
layout "encoder dp 4 with LLM pp 2 dp 2" 3

# --- disttrain train on the module of cards built for a CPU, whose measurement of the products alone takes long ---
# auto does not choose it: nothing of others could be opened
pp='plan={encoder: {}, llm: {pp: 2}, generator: {}}'
dp='plan={colocated: true, encoder: {dp: 2}, llm: {dp: 2, pp: 2}, generator: {dp: 4}}'
if [ "${DT_CHECK_FULL:-0}" != 0 ]; then
    limit_s=600
    train auto-pp 2 hidden "$pp" run.transport=auto
    train ipc-pp 2 "" "$pp" run.transport=ipc
    same auto-pp ipc-pp "pp 2"
    train staged-dp 4 hidden "$dp" run.transport=staged
    train ipc-dp 4 "" "$dp" run.transport=ipc
    same staged-dp ipc-dp "dp 2, pp 2"
fi

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
