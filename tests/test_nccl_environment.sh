#!/bin/sh
# SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
# What ranks tell NCCL by the environment, as the NCCL of tests finds it; there, as on one card, they are refused.
module=$PWD/tests/modules/CPU nccl=$PWD/tests/modules/NCCL
[ -f "$module/disttrain-cuda.so" ] || { echo "SKIP: there is no C++20 compiler for $module/disttrain-cuda.so"; exit 77; }
. "${srcdir:=.}/tests/small_job.sh"
DISTTRAIN_MODULES=$module DISTTRAIN_CUDA_LIBS=$nccl OMP_NUM_THREADS=1
export DISTTRAIN_MODULES DISTTRAIN_CUDA_LIBS OMP_NUM_THREADS
unset NCCL_NVLS_ENABLE

# tells WANT DETERMINISTIC [VARIABLE=VALUE]: on both ranks
tells() {
    want=$1 key=$2
    shift 2
    rm -f told
    expect 2 "share the card" env FAKE_NCCL_TELLS="$PWD/told" "$@" "$DISTTRAIN" train --ranks 2 --no-runs job.yaml \
        run.steps=1 run.device=cuda run.transport=nccl run.deterministic="$key" \
        'plan={encoder: {}, llm: {pp: 2}, generator: {}}'
    check "deterministic: $key $*: NVLS $want" '[ "$(grep -c "^NCCL_NVLS_ENABLE $want\$" told)" = 2 ]'
}
tells "is not set" false
tells 0 true
tells 1 true NCCL_NVLS_ENABLE=1
totals
