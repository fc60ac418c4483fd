#!/bin/sh
# SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
# An encoder that joins squares of patches (merge, merge_by), from the search to training: ranks train the plan that was found as one
# process does, and as many tokens reach the LLM as there are squares.
# Environment: DISTTRAIN (the program), srcdir (the source directory).
set -u
. "${srcdir:=.}/tests/small_job.sh"
train() { # STEPS DIR PLAN OPTION...
    train_steps=$1 train_dir=$2 train_plan=$3; shift 3
    expect 0 "" "$DISTTRAIN" train --no-runs --json free.yaml run.steps="$train_steps" \
        run.checkpoint.dir="$train_dir" "plan=$train_plan" "$@"
}
grep -v '^plan:' job.yaml >free.yaml
four='cluster={preset: local, gpus_per_node: 4}'
# 16 patches of a picture, 4 squares of 2 x 2; in the projector they lie side by side, or it takes their mean
squares='model.modules.encoder={kind: encoder, layers: 1, hidden: 16, ffn: 32, heads: 2, patch: 2, channels: 1, positions: 16, merge: 2, projector: mlp'
for by in concatenate mean; do
    encoder="$squares, merge_by: $by}"
    expect 0 "" "$DISTTRAIN" plan --json free.yaml "$encoder" search.strategy=disttrain "$four" -o $by.json
    ranks=$(field gpus_used)
    check "$by: a plan of $ranks GPUs" '[ "$ranks" -gt 1 ]'
    train 4 one-$by '{colocated: true}' "$encoder"
    read=$(field loss_text) drawn=$(field loss_image)
    check "$by: something is read and drawn: $read, $drawn" 'awk -v a="$read" -v b="$drawn" "BEGIN { exit !(a > 0 && b > 0) }"'
    train 4 many-$by $by.json "$encoder" "$four" --ranks "$ranks"
    check "$by: what the search plans, trained on $ranks processes, has the losses of one" \
        'about loss_text "$read" && about loss_image "$drawn" && [ "$(field ranks)" = "$ranks" ]'
done
totals
