#!/bin/sh
# SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
# The module of cards, built for a CPU (tests/cuda_cpu): its kernels do what the CPU's do.
builddir=$PWD module=$PWD/tests/modules/CPU
[ -f "$module/disttrain-cuda.so" ] || { echo "SKIP: there is no C++20 compiler for $module/disttrain-cuda.so"; exit 77; }
. "${srcdir:=.}/tests/shell.sh"

# every block of memory is on its own, with a guard behind it
DISTTRAIN_MODULES=$module DISTTRAIN_TEST_DEVICE=cuda DISTTRAIN_CUDA_ARENA=0
export DISTTRAIN_MODULES DISTTRAIN_TEST_DEVICE DISTTRAIN_CUDA_ARENA
for t in basic device norm loss product route attention; do
    "$builddir/tests/test_kernels_$t" >out 2>&1
    rc=$?
    tail -5 out
    check "kernels of cards: $t" '[ $rc = 0 ] && grep -q "100%: Checks: [1-9]" out'
done
# convolutions and attention by the graphs that cuDNN would get
for t in product attention; do
    CUCPU_DNN=yes DISTTRAIN_CUDNN=at-once "$builddir/tests/test_kernels_$t" >out 2>&1
    rc=$?
    check "graphs of cuDNN: $t" '[ $rc = 0 ] && grep -q "100%: Checks: [1-9]" out'
done
# another order of threads, and queues that dawdle
CUCPU_SEED=2 CUCPU_SHARE=4 CUCPU_DELAY_US=300 "$builddir/tests/test_kernels_norm" >out 2>&1
rc=$?
check "norms with threads in another order" '[ $rc = 0 ]'

# a card with less shared memory than the backward on tensor cores wants
CUCPU_SHARED_KIB=48 "$builddir/tests/test_kernels_attention" >out 2>&1
rc=$?
check "attention with little shared memory" '[ $rc = 0 ]'

# ---- the executor on it ----
OMP_NUM_THREADS=1 CUCPU_SHARE=64 CUCPU_DELAY_US=500
export OMP_NUM_THREADS CUCPU_SHARE CUCPU_DELAY_US
# NAME [VARIABLE=VALUE]...: the tests of a program
passes() {
    name=$1
    shift
    env "$@" "$builddir/tests/test_$name" >out 2>&1
    rc=$?
    [ $rc = 0 ] || tail -5 out
    check "test_$name on the module of cards, $*" '[ $rc = 0 ] && grep -q "100%: Checks: [1-9]" out'
}
# NAME SEED: a layout over ranks that are threads
layout() {
    name=$1
    env DT_TEST_CASE="$1" CK_RUN_CASE=layouts CUCPU_SEED="$2" "$builddir/tests/test_execute_ranks" >out 2>&1
    rc=$?
    [ $rc = 0 ] || tail -5 out
    check "layout $1, seed $2" '[ $rc = 0 ] && grep -q "^equivalence: $name .*threads" out'
}
DISTTRAIN_CUDA_ARENA=1
if [ "${DT_CHECK_FULL:-0}" != 0 ]; then
    for t in execute execute_ranks train infer step_memory modules_grad modules_noise modules_figures modules_stage modules_tp; do
        passes $t CUCPU_SEED=1
    done
    DISTTRAIN_CUDA_ARENA=0
    for t in infer step_memory modules_grad modules_figures modules_stage; do
        passes $t CUCPU_SEED=2
        passes $t CUCPU_SEED=3 CUCPU_DNN=yes DISTTRAIN_CUDNN=at-once
    done
    layout 'fan-in 4/2/1' 3
    layout 'tp 2' 4
    layout 'cp 2, ring, pp 2' 5
else
    passes step_memory CUCPU_SEED=1
    passes modules_noise CUCPU_SEED=2
    passes step_memory CUCPU_SEED=3 CUCPU_DNN=yes DISTTRAIN_CUDNN=at-once
    layout 'gpipe' 1
    DISTTRAIN_CUDA_ARENA=0
    layout 'tp 2' 2
    layout 'tp 2, colocated' 3 # a SEND that waits behind another, whose op waits for who needs the first
    layout 'fan-in 4/2/1' 3
fi
# functions of the host, which streams call one after another
passes device_calls CUCPU_SEED=5
# ranks that are processes and map each other's memory
passes ipc CUCPU_SEED=4 DISTTRAIN_CUDA_ARENA=64
passes ipc_ends CUCPU_SEED=4
unset CUCPU_SHARE CUCPU_DELAY_US

# ---- the imitation finds what is wrong ----
faults=$builddir/tests/cuda_cpu/faults
# fault WHAT TEXT: ends the program, saying so; TEXT empty: gives a wrong result in one of eight orders at least
fault() {
    wrong=0 says=$2
    for seed in 1 2 3 4 5 6 7 8; do
        CUCPU_SEED=$seed CUCPU_SHARE=1 CUCPU_DELAY_US=${delay:-0} "$faults" "$1" >out 2>&1
        rc=$?
        [ $rc != 1 ] || wrong=$((wrong + 1))
    done
    if [ -n "$says" ]; then check "$1 is found" '[ $rc -gt 2 ] && grep -q "$says" out'; else check "$1 is found" '[ $wrong -gt 0 ]'; fi
}
for fine in right waited; do
    for seed in 1 2 3 4 5 6 7 8; do
        CUCPU_SEED=$seed CUCPU_SHARE=1 CUCPU_DELAY_US=2000 "$faults" "$fine" >out 2>&1
        rc=$?
        check "$fine, order $seed" '[ $rc = 0 ]'
    done
done
fault "no barrier" ""
fault "not waited" ""
delay=20000
fault "not ordered" ""
delay=0
fault "half a barrier" "kernel half_meet hangs"
fault "two barriers" "wait at two barriers"
fault freed "turned is given .* in 256 bytes that have been freed"
fault "the host's" "turned is given .* which is not memory of the card"
for what in beyond touched; do # the guard behind a block, and what the host may not see
    "$faults" $what >out 2>&1
    rc=$?
    check "$what is found" '[ $rc -gt 2 ]'
done
fault large "launched with a grid of 1 x 1 x 1 blocks of 2048"

# the object that nvcc makes of X.cu is X.cu.o, of which make's own rules would link X.cu, the source
: >"$builddir/none.cu.o"
(cd "$builddir" && unset MAKEFLAGS MAKELEVEL && make -n none.cu) >out 2>&1
rc=$?
rm -f "$builddir/none.cu.o"
check "no source is made of an object" '[ $rc -ne 0 ] && grep -q "No rule to make target .none.cu" out'
totals
