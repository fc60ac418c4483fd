#!/bin/sh
# SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
# Training with ranks by cuDNN's plans, on the module of cards built for a CPU.  Loading a plan's kernels waits for all
# streams, and within a step some of them wait for other ranks: the imitation ends the program where both meet.
module=$PWD/tests/modules/CPU
[ -f "$module/disttrain-cuda.so" ] || { echo "SKIP: there is no C++20 compiler for $module/disttrain-cuda.so"; exit 77; }
. "${srcdir:=.}/tests/small_job.sh"
DISTTRAIN_MODULES=$module OMP_NUM_THREADS=1 CUCPU_SHARE=8 CUCPU_DELAY_US=1000
export DISTTRAIN_MODULES OMP_NUM_THREADS CUCPU_SHARE CUCPU_DELAY_US

# tensor parallelism puts collectives on the main queue, between the kernels
expect 0 "" env CUCPU_DNN=yes CUCPU_DNN_TELLS="$PWD/told" DISTTRAIN_CUDNN=2 "$DISTTRAIN" train --ranks 2 --no-runs --json job.yaml \
    run.steps=3 run.device=cuda run.precision=bf16 run.transport=staged run.log_dir=log run.checkpoint.dir=trained \
    train.seq_len=32 'plan={colocated: true, encoder: {tp: 2}, llm: {tp: 2}, generator: {dp: 2}}'
check "3 steps" '[ "$(wc -l <log/metrics.jsonl)" -eq 3 ]'
check "both ranks have run attention by plans, forward and backward" \
    '[ "$(awk "\$4 > 0 && \$5 > 0" told | wc -l)" -eq 2 ]'
check "and one at least convolutions" 'awk "\$1 > 0 && \$2 > 0 && \$3 > 0 { n++ } END { exit !n }" told'
totals
