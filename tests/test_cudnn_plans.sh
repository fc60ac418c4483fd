#!/bin/sh
# SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
# cuDNN itself, without a card: it has a plan for every graph of ours at the presets' shapes, for sm_80 and for sm_90.
plans=$PWD/tests/cuda_cpu/cudnn_plans driver=$PWD/tests/modules/DRIVER/libcuda.so.1
[ -x "$plans" ] || { echo "SKIP: there is no C++20 compiler for $plans"; exit 77; }
. "${srcdir:=.}/tests/shell.sh"

# for sm_80 one convolution and one attention; with DT_CHECK_FULL=1 all.  CUDNN_LIBDIR: where configure has found it
if [ "${DT_CHECK_FULL:-0}" != 0 ]; then all=all; else all=few; fi
timeout 900 "$plans" "$driver" "${CUDNN_LIBDIR:-}" $all >out 2>&1
rc=$?
[ $rc != 77 ] || { cat out; exit 77; }
[ $rc = 0 ] || cat out
check "there are the plans that there should be" '[ $rc = 0 ]'
for arch in sm_80 sm_90; do
    check "$arch: forward and backward of attention" 'grep -q "^$arch attention llama-7b, forward: 14 operations, plan" out && grep -q "^$arch attention llama-7b, backward: 22 operations, plan" out'
    if [ $arch$all = sm_80few ]; then convolutions=3; else convolutions=9; fi
    check "$arch: convolutions" '[ "$(grep -c "^$arch convolution .* plan, " out)" = $convolutions ]'
done
check "and what our kernels may be for" 'grep -q "^sm_80 attention heads of 160, backward: " out'
totals
