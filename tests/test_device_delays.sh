#!/bin/sh
# SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
# The executor on a device whose memory the host cannot touch and whose queues take their time
# (tests/fake_device.h): its tests pass as they do on the CPU, and a device that breaks its word is noticed.
# A share of the tests; with DT_CHECK_FULL=1 all of them with five seeds, over threads and MPI.
# Environment: srcdir (the source directory).
set -u
: "${srcdir:=.}"
builddir=$(pwd)
. "$srcdir/tests/shell.sh"
OMP_NUM_THREADS=1; export OMP_NUM_THREADS
DISTTRAIN_FAKE_DEVICE=1; export DISTTRAIN_FAKE_DEVICE
DISTTRAIN_FAKE_DELAY_US=2000; export DISTTRAIN_FAKE_DELAY_US

# WHAT COMMAND...: it passes
passes() {
    what=$1
    shift
    if "$@" >out 2>&1; then ok; else bad "$what"; fi
}

# NAME SEED SHARE: a layout over ranks that are threads
layout() {
    passes "layout $1, seed $2, one task in $3" env DT_TEST_CASE="$1" CK_RUN_CASE=layouts \
        DISTTRAIN_FAKE_SEED="$2" DISTTRAIN_FAKE_SHARE="$3" "$builddir/tests/test_execute_ranks"
    grep -q "^equivalence: $1 .*threads" out && ok || bad "layout $1 did not run"
}

# The same, with all ranks on one device, whose queues carry what they exchange
layout_on_queues() {
    DT_TEST_ON_QUEUE=1
    export DT_TEST_ON_QUEUE
    layout "$@"
    unset DT_TEST_ON_QUEUE
}

# The same, each rank with a device of its own, over the NCCL of tests
layout_over_nccl() {
    DT_TEST_NCCL=1
    export DT_TEST_NCCL
    layout "$@"
    unset DT_TEST_NCCL
}

if [ "${DT_CHECK_FULL:-0}" != 0 ]; then
    for seed in 1 2 3 4 5; do
        DISTTRAIN_FAKE_SEED=$seed; export DISTTRAIN_FAKE_SEED
        for t in execute_ranks execute train infer step_memory modules_grad modules_noise modules_figures modules_stage modules_tp; do
            passes "test_$t, seed $seed" "$builddir/tests/test_$t"
        done
        passes "test_execute_ranks on one device, seed $seed" \
            env DT_TEST_ON_QUEUE=1 "$builddir/tests/test_execute_ranks"
        passes "test_execute_ranks over NCCL, seed $seed" env DT_TEST_NCCL=1 CK_RUN_CASE=layouts "$builddir/tests/test_execute_ranks"
        passes "test_on_queue, seed $seed" env DT_TEST_SEED="$seed" "$builddir/tests/test_on_queue"
        (cd "$builddir" && sh "$srcdir/tests/test_execute_mpi.sh") >out 2>&1
        case $? in 0 | 77) ok ;; *) bad "over MPI, seed $seed" ;; esac
    done
else
    layout 'gpipe' 1 16
    layout 'zb-h1, pp 2/2/1 dp 2/2/1' 2 64
    layout 'fan-in 4/2/1' 3 64
    layout 'dp 2, zero 0' 4 16
    layout 'tp 2' 5 64
    layout_on_queues 'cp 4, ring, pp 2' 4 64
    layout_over_nccl 'cp 4, ring, pp 2' 4 64
    layout_on_queues 'tp 2' 2 64
    layout_on_queues 'dp 2, zero 0' 3 16
    layout_over_nccl 'fan-in 4/2/1' 1 64
    layout_over_nccl 'vpp 2, tp 2' 3 64
    passes 'operations on queues, seed 2' env DISTTRAIN_FAKE_SEED=2 DT_TEST_SEED=2 DISTTRAIN_FAKE_SHARE=32 \
        "$builddir/tests/test_on_queue"
    passes 'noise of modules, seed 1' "$builddir/tests/test_modules_noise"
    # thousands of launches: with the usual share most of a minute is waited
    passes 'training, seed 1' env DISTTRAIN_FAKE_SHARE=4096 "$builddir/tests/test_train"
    passes 'captions and drawings, seed 1' env DISTTRAIN_FAKE_SHARE=4096 "$builddir/tests/test_infer"
    if [ "${HAVE_MPI-yes}" = yes ] && command -v "${MPIRUN:-mpirun}" >/dev/null 2>&1; then
        . "$srcdir/tests/mpirun.sh"
        passes 'three ranks over MPI, seed 7' env DISTTRAIN_FAKE_SEED=7 DISTTRAIN_FAKE_SHARE=64 \
            timeout -k 5 120 "${MPIRUN:-mpirun}" -np 3 "$builddir/tests/test_execute_ranks" --mpi 2
    fi
fi

# ---- planted faults: queues that do not wait for each other, memory that goes at once, messages that are
# handed on before their readers have run ----
for fault in wait free done; do
    if timeout -k 5 120 env DT_TEST_CASE=gpipe CK_RUN_CASE=layouts DISTTRAIN_FAKE_SHARE=16 DISTTRAIN_FAKE_SEED=1 \
        DISTTRAIN_FAKE_FAULT=$fault "$builddir/tests/test_execute_ranks" >out 2>&1; then
        bad "nobody notices the fault \"$fault\""
    else
        ok
    fi
done
if timeout -k 5 120 env DISTTRAIN_FAKE_SHARE=32 DISTTRAIN_FAKE_SEED=1 DISTTRAIN_FAKE_FAULT=wait \
    "$builddir/tests/test_on_queue" >out 2>&1; then
    bad 'nobody notices that queues do not wait at gates'
else
    ok
fi
totals
