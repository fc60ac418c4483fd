#!/bin/sh
# SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
# disttrain train with a generator whose replicas share the images of a slot (plan.generator.window), more of them than the batch has
# samples: processes train as one does, and one goes on from their checkpoint.
# Environment: DISTTRAIN (the program), srcdir (the source directory).
set -u
. "${srcdir:=.}/tests/small_job.sh"
train() { # STEPS DIR PLAN OPTION...
    train_steps=$1 train_dir=$2 train_plan=$3; shift 3
    expect 0 "" "$DISTTRAIN" train --no-runs --json job.yaml run.steps="$train_steps" \
        run.checkpoint.dir="$train_dir" "plan=$train_plan" train.global_batch=2 "$@"
}
more='{colocated: true, encoder: {dp: 4}, llm: {dp: 2}, generator: {dp: 4}}' # of 2 samples
train 4 one '{colocated: true}'
read=$(field loss_text) drawn=$(field loss_image)
check "something is read and drawn: $read, $drawn" 'awk -v a="$read" -v b="$drawn" "BEGIN { exit !(a > 0 && b > 0) }"'
train 4 four "$more" --ranks 4
check "four ranks, the same losses" 'about loss_text "$read" && about loss_image "$drawn" && [ "$(field ranks)" = 4 ]'
train 4 two "$more" --ranks 2
check "two ranks, the same losses" 'about loss_text "$read" && about loss_image "$drawn"'
train 4 apart '{encoder: {}, llm: {}, generator: {dp: 2, window: 1}}' --ranks 4 train.microbatch=2
check "GPUs of their own, the same losses" 'about loss_text "$read" && about loss_image "$drawn"'
train 6 one '{colocated: true}'
read=$(field loss_text) drawn=$(field loss_image)
train 6 four '{colocated: true}'
check "one process goes on from four" 'about loss_text "$read" && about loss_image "$drawn" && grep -q "\"resumed\": true" out'
expect 2 "a generator's replicas share the items of one slot at a time: window 1" "$DISTTRAIN" train --no-runs job.yaml \
    "plan={colocated: true, generator: {dp: 2, window: 2}}"
totals
