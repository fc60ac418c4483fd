#!/bin/sh
# SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
# A CPU without AVX-512, whichever is here: no products in bf16, rows that are rounded by how many there are, products that have
# the stack pointer in the heap.  Eleven tests failed on such a CPU before anybody looked.
: "${srcdir:=.}"
programs=$PWD/tests
. "$srcdir/tests/shell.sh"
ONEDNN_MAX_CPU_ISA=AVX2 DNNL_MAX_CPU_ISA=AVX2; export ONEDNN_MAX_CPU_ISA DNNL_MAX_CPU_ISA

check "there is no bf16 here" '! has_bf16'
for t in stepccl modules_figures; do expect 0 "" "$programs/test_$t"; done

# --- a signal ends training in order, whenever it comes: glibc looks at the heap ---
pack_two_tones
write_quick_job
for ms in 150 250 350 450 600; do
    rm -rf early
    GLIBC_TUNABLES=glibc.malloc.check=3 LD_PRELOAD=libc_malloc_debug.so.0 \
        "$DISTTRAIN" train --no-runs --json job.yaml run.steps=1000000 run.checkpoint.dir=early >out 2>err &
    pid=$!
    sleep 0.$ms; kill -TERM $pid 2>/dev/null
    wait $pid
    got=$?
    # 143: it came before training began
    check "a signal after $ms ms: exit status $got" '{ [ $got -eq 0 ] || [ $got -eq 143 ]; } && ! grep -q corrupted err'
done
totals
